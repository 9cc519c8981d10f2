//! Packets that a node forwards while its configuration is changed beside them: none is lost.

use crate::router::{Net, R};
use crate::running::pollux;
use crate::stream::{FROM, Host, Site};
use pollux::Mode;
use serde_json::Value;
use std::process::{Child, Command, Stdio};

const RELOADS: usize = 100;
/// What a process may have more of in the end, beside what its allocator keeps.
const GROWTH_KB_MAX: u64 = 4096;

/// Another route of each kind, another address of ib0, a static neighbor of ib1, and an interface.
fn with_more() -> String {
    let address = "\"10.1.0.254/24\"";
    let more = R.replace(address, &format!("{address}, \"10.1.0.253/24\""));
    format!(
        "{more}[[interface.ib1.neighbor]]\naddress = \"10.2.0.77\"\n\
         link = \"80:00:00:48:fe:80:00:00:00:00:00:00:00:02:c9:03:00:00:10:01\"\n\
         [interface.ib2]\ndevice = \"soft:fabric.sock@host4\"\naddress = [\"10.4.0.1/24\"]\n\
         [router]\n[[route]]\nto = \"10.9.0.0/16\"\nvia = [\"10.2.0.1\", \"10.1.0.1\"]\n\
         [[route]]\nto = \"10.2.0.128/25\"\ntype = \"prohibit\"\n"
    )
}

/// Pings from a node until a signal ends it.
fn stream(net: &Net, node: &str, to: &str) -> Child {
    let socket = format!("{node}.sock");
    let mut command = pollux(&["ping", to, "--interval", "0.001", "--socket", &socket]);
    command.current_dir(&net.folder).stdout(Stdio::piped()).spawn().expect("it starts")
}

/// Ends it: how many packets it sent and received.
fn counts(stream: Child) -> (u64, u64) {
    let id = stream.id().to_string();
    assert!(Command::new("kill").args(["-INT", &id]).status().expect("kill").success());
    let output = stream.wait_with_output().expect("it ends");
    let printed = String::from_utf8_lossy(&output.stdout).into_owned();
    let line = printed.lines().find(|line| line.contains("packets transmitted"));
    let line = line.unwrap_or_else(|| panic!("no statistics: {printed}"));
    let mut numbers = line.split(' ').filter_map(|word| word.parse().ok());
    (numbers.next().expect("sent"), numbers.next().expect("received"))
}

/// The link addresses of both interfaces, which have the queue pairs for datagrams, and those of
/// connections.
fn queue_pairs(net: &Net) -> Vec<Value> {
    let mut rows = net.rows("r", "interfaces");
    rows.retain(|row| row["interface"] != "ib2");
    let links = rows.iter().map(|row| row["link"].clone());
    let connections = net.rows("r", "connections");
    links.chain(connections.iter().map(|row| row["qpn"].clone())).collect()
}

#[test]
fn a_hundred_reloads_beside_streams_lose_no_packet_and_keep_queue_pairs() {
    let base = format!("{R}[router]\n");
    let net = Net::new("no-loss", &base);
    for (node, to) in [("a", "10.2.0.1"), ("a", "fd02::1"), ("b", "10.1.0.1")] {
        net.until(node, to, "ttl=63");
    }
    let before = queue_pairs(&net);
    assert!(before.len() > 2 && before.iter().all(|one| !one.is_null()), "{before:?}");
    let streams = [("a", "10.2.0.1"), ("a", "fd02::1"), ("b", "10.1.0.1")];
    let streams = streams.map(|(node, to)| stream(&net, node, to));
    for nth in 0..RELOADS {
        let text = if nth % 2 == 0 { with_more() } else { base.clone() };
        std::fs::write(net.folder.join("r.toml"), text).expect("it is ours");
        let (is_done, printed) = net.run("r", "reload");
        assert!(is_done && printed.contains("route: "), "{printed}");
        assert!(printed.contains("ib2: ") && printed.contains("ib0: "), "{printed}");
    }
    for stream in streams {
        let (sent, received) = counts(stream);
        assert_eq!(sent, received);
        // How many there are beside a reload depends on the machine.
        assert!(sent >= 10, "only {sent} packets beside {RELOADS} reloads");
    }
    assert_eq!(queue_pairs(&net), before);
}

/// The receiver of a stream through the router.
const TO: Host = Host { mode: Mode::Ud, ..crate::stream::TO };

/// How many reloads there are, and how many datagrams between two: with `POLLUX_RELOAD_SECONDS`
/// there is a reload each second for so long.
fn reloads() -> (usize, usize) {
    match std::env::var("POLLUX_RELOAD_SECONDS") {
        Ok(seconds) => (seconds.parse().expect("a number"), 1000),
        Err(_) => (RELOADS, 10),
    }
}

/// Kilobytes of memory that a process has (`VmRSS`, proc_pid_status(5)).
fn resident_kb(process: u32) -> u64 {
    let status = std::fs::read_to_string(format!("/proc/{process}/status")).expect("it runs");
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:")).expect("a line");
    line.split_whitespace().next().and_then(|kb| kb.parse().ok()).expect("a number")
}

/// Routes of an administrator come and go as well, so that nothing of the router stands still.
#[test]
fn a_stream_at_a_known_rate_loses_nothing_beside_reloads_and_memory_stays_flat() {
    let site = Site::new("no-loss-stream");
    let texts = [with_more(), format!("{R}[router]\n")];
    let texts = texts.map(|text| text.replace("fabric.sock", "socket"));
    site.write("r", &texts[1]);
    site.start("r");
    let (reloads, between) = reloads();
    let (memory, outcome) = site.stream(&FROM, &TO, |stream| {
        let mut memory = [0; 2];
        for nth in 0..reloads {
            site.reload("r", &texts[nth % 2]);
            for route in 0..2 {
                let to = format!("10.77.{route}.0/24");
                site.run("r", &["route", "add", &to, "via", "10.2.0.1"]);
                site.run("r", &["route", "del", &to]);
            }
            stream.go_on(between);
            // All that grows once has grown by then.
            memory[usize::from(nth > reloads / 4)] = resident_kb(site.id("r"));
        }
        memory
    });
    let [before, after] = memory;
    println!(
        "{} datagrams, {reloads} reloads, {before} kB of memory, {after} in the end",
        outcome.sent
    );
    assert_eq!(outcome.lost, [0; 0], "of {}", outcome.sent);
    assert!(after < before + GROWTH_KB_MAX, "{before} kB of memory became {after}");
}
