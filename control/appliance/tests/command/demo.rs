//! `pollux demo`: figures of all three modes, and a status that tells the truth.

use serde_json::Value;
use std::process::Command;

/// Its status, what it prints, and what it says beside that.
fn demo(folder: Option<&str>) -> (bool, String, String) {
    let mut command = Command::new(env!("CARGO_BIN_EXE_pollux"));
    command.args(["demo", "--json"]);
    if let Some(folder) = folder {
        command.env("TMPDIR", folder);
    }
    let output = command.output().expect("it runs");
    let [printed, told] =
        [output.stdout, output.stderr].map(|it| String::from_utf8_lossy(&it).into_owned());
    (output.status.success(), printed, told)
}

#[test]
fn a_demonstration_needs_nothing_and_shows_every_mode() {
    let begun = std::time::Instant::now();
    let (is_ok, printed, told) = demo(None);
    let took = begun.elapsed().as_secs_f64();
    assert!(is_ok, "{told}");
    let figures: Value = serde_json::from_str(&printed).expect("it is JSON");
    let modes = figures["modes"].as_array().expect("a list");
    let expected = [
        ("UD", "datagram", 2044),
        ("RC", "RC connection", 65_520),
        ("UC", "UC connection", 65_520),
    ];
    assert_eq!(modes.len(), expected.len());
    let mut measured = 0.0;
    for (mode, (name, by, mtu)) in modes.iter().zip(expected) {
        assert_eq!(mode["mode"], name);
        for host in [0, 1] {
            let row = &mode["resolved"][host];
            assert_eq!((&row["by"], &row["mtu"]), (&by.into(), &mtu.into()), "{mode}");
        }
        // What a datagram carries at most, and what only a connection does: 28 are headers.
        assert_eq!(mode["longest_echo_bytes"], mtu - 28, "{mode}");
        for what in ["ping", "udp", "tcp"] {
            measured += assert_adds_up(&mode[what], what == "udp");
        }
        let (bytes, seconds) =
            (number(&mode["stream"]["bytes"]), number(&mode["stream"]["seconds"]));
        measured += seconds;
        assert!(seconds >= 0.5 && bytes >= 262_144.0, "{mode}");
        let rate = number(&mode["stream_gbit_s"]);
        assert!((rate * seconds * 1e9 / 8.0 - bytes).abs() < 1.0, "{mode}");
    }
    assert!(measured <= took, "{measured} s were measured within {took} s");
    assert!(told.contains("10.0.0.3 is resolved, and pinged") && !told.contains("failed"));
}

fn number(value: &Value) -> f64 {
    value.as_f64().unwrap_or_else(|| panic!("{value} is no number"))
}

/// Round trips that fit to their number and their time; gives that time. Each question has its
/// answer, but for a few of datagrams that may be late.
fn assert_adds_up(trips: &Value, may_be_late: bool) -> f64 {
    let of = |key: &str| number(&trips[key]);
    let (count, seconds) = (of("count"), of("seconds"));
    assert_eq!(of("asked"), count + of("warm_up") + of("lost"), "{trips}");
    assert!(of("lost") <= if may_be_late { 5.0 } else { 0.0 }, "{trips}");
    let order = ["min_us", "median_us", "p999_us", "max_us"].map(of);
    assert!(order.is_sorted() && order[0] > 0.0, "{trips}");
    // It ends with the first round trip that is not within half a second.
    assert!((0.5..0.5 + of("max_us") / 1e6 + 1e-9).contains(&seconds), "{trips}");
    let (least, most) = (order[0] * count / 1e6, order[3] * count / 1e6);
    assert!((least..=most + 1e-9).contains(&seconds), "{trips}");
    // Half of them took the median at least, one in a thousand the other one.
    assert!(seconds + 1e-9 >= (order[1] * (count / 2.0).floor()) / 1e6, "{trips}");
    assert!(seconds + 1e-9 >= (order[2] * (count / 1000.0).floor()) / 1e6, "{trips}");
    seconds
}

#[test]
fn a_demonstration_that_cannot_be_has_a_bad_status_and_says_why() {
    let (is_ok, printed, told) = demo(Some("/nowhere"));
    assert!(!is_ok && printed.is_empty(), "{printed}");
    assert!(told.contains("failed\npollux: a switch, three hosts"), "{told}");
    assert!(told.contains("TMPDIR name a folder that you may write to"), "{told}");
}
