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
    let [said, told] =
        [output.stdout, output.stderr].map(|it| String::from_utf8_lossy(&it).into_owned());
    (output.status.success(), said, told)
}

#[test]
fn a_demonstration_needs_nothing_and_shows_every_mode() {
    let (well, said, told) = demo(None);
    assert!(well, "{told}");
    let figures: Value = serde_json::from_str(&said).expect("it is JSON");
    let modes = figures["modes"].as_array().expect("a list");
    let by = ["datagram", "RC connection", "UC connection"];
    assert_eq!(modes.len(), by.len());
    for (mode, by) in modes.iter().zip(by) {
        for host in [0, 1] {
            let row = &mode["resolved"][host];
            let mtu = if by == "datagram" { 2044 } else { 65_520 };
            assert_eq!((&row["by"], &row["mtu"]), (&by.into(), &mtu.into()), "{mode}");
        }
        for what in ["ping", "udp", "tcp"] {
            let (median, late) = (&mode[what]["median_us"], &mode[what]["p999_us"]);
            assert!(0.0 < median.as_f64().unwrap(), "{mode}");
            assert!(median.as_f64() <= late.as_f64(), "{mode}");
        }
        assert!(0.0 < mode["stream_gbit_s"].as_f64().unwrap(), "{mode}");
    }
    assert!(told.contains("10.0.0.3 is resolved, and pinged") && !told.contains("failed"));
}

#[test]
fn a_demonstration_that_cannot_be_has_a_bad_status_and_says_why() {
    let (well, said, told) = demo(Some("/nowhere"));
    assert!(!well && said.is_empty(), "{said}");
    assert!(told.contains("failed\npollux: a switch, three hosts"), "{told}");
}
