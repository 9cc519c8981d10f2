//! `pollux capture`, judged by tshark and tcpdump: what is in a file, and what a filter takes.

use crate::router::{Net, R};
use crate::running::{Ending, TIMEOUT, output_of, pollux};
use pollux_dataplane::filter::PacketFilter;
use pollux_referee::program_of;
use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::{Child, ChildStderr, Command, Stdio};
use std::time::Instant;

/// Filters whose results are compared with those of tcpdump.
const FILTERS: [&str; 22] = [
    "ip",
    "ip6",
    "icmp",
    "icmp6",
    "udp",
    "tcp or icmp",
    "host 10.2.0.1",
    "src host 10.2.0.1",
    "dst 10.2.0.1",
    "src and dst net 10.0.0.0/8",
    "src net 10.1",
    "net fd02::/64",
    "host fd01::1 and icmp6",
    "not icmp",
    "not (icmp or icmp6)",
    "icmp or icmp6 and ip6",
    "ip proto 1",
    "proto 58",
    "less 84",
    "greater 85",
    "port 9",
    "ip host 10.1.0.1 or 10.2.0.1 and greater 100",
];

/// A capture at the router that runs.
struct Capture {
    child: Child,
    stderr: BufReader<ChildStderr>,
}

impl Capture {
    /// It has begun when this returns.
    fn begin(net: &Net, arguments: &[&str]) -> Self {
        let mut command = pollux(&[&["capture", "--socket", "r.sock"], arguments].concat());
        let command = command.current_dir(&net.folder).stdout(Stdio::piped());
        let mut child = command.stderr(Stdio::piped()).spawn().expect("it starts");
        let mut stderr = BufReader::new(child.stderr.take().expect("it is piped"));
        let mut line = String::new();
        stderr.read_line(&mut line).expect("a line");
        assert!(line.starts_with("pollux: capturing at "), "{line}");
        Self { child, stderr }
    }

    /// Waits for its end: what it printed, and its last line.
    fn wait(mut self) -> (String, String) {
        let mut last = String::new();
        self.stderr.read_line(&mut last).expect("a line");
        let output = self.child.wait_with_output().expect("it ends");
        assert!(output.status.success(), "{last}");
        (String::from_utf8_lossy(&output.stdout).into_owned(), last)
    }

    fn end(self) -> (String, String) {
        let id = self.child.id().to_string();
        assert!(Command::new("kill").args(["-INT", &id]).status().expect("kill").success());
        self.wait()
    }
}

/// The lines that a program prints about a file.
fn lines(program: &Path, arguments: &[&str]) -> Vec<String> {
    let output = Command::new(program).args(arguments).output().expect("it starts");
    let printed = String::from_utf8_lossy(&output.stdout).into_owned();
    assert!(output.status.success(), "{printed}{}", String::from_utf8_lossy(&output.stderr));
    printed.lines().map(String::from).collect()
}

fn ping(net: &Net, node: &str, arguments: &str) {
    let (is_done, printed) = net.run(node, &format!("ping {arguments} --interval 0.001"));
    assert!(is_done, "{printed}");
}

#[test]
fn a_file_has_each_packet_and_tshark_finds_nothing_malformed() {
    let test = "a_file_has_each_packet_and_tshark_finds_nothing_malformed";
    let Some(tshark) = program_of(test, "tshark", "--referees") else { return };
    let net = Net::new("capture", &format!("{R}[router]\n"));
    net.until("a", "10.2.0.1", "ttl=63");
    net.until("a", "fd02::1", "ttl=63");
    let path = net.folder.join("all.pcapng").display().to_string();
    let capture =
        Capture::begin(&net, &["--write", &path, "icmp", "or", "icmp6", "and", "greater", "73"]);
    ping(&net, "a", "10.2.0.1 --count 20");
    ping(&net, "a", "fd02::1 --count 10");
    ping(&net, "b", "10.1.0.1 --count 5 --size 1000");
    let (_, last) = capture.end();
    // A request and a reply, each received at one interface and sent at the other.
    assert_eq!(last, "pollux: 140 packets captured, 0 missed\n");
    let fields = [
        "-r",
        &path,
        "-T",
        "fields",
        "-e",
        "_ws.malformed",
        "-e",
        "frame.interface_name",
        "-e",
        "frame.len",
        "-e",
        "ip.ttl",
        "-e",
        "frame.packet_flags_direction",
    ];
    let rows = lines(&tshark, &fields);
    assert_eq!(rows.len(), 140);
    let count = |row: &str| rows.iter().filter(|one| *one == row).count();
    // The TTL has been counted down between the two.
    for (interface, way, ttl) in [("ib0", 1, 64), ("ib0", 2, 63), ("ib1", 1, 64), ("ib1", 2, 63)] {
        for (len, times) in [(84, 20), (1028, 5)] {
            let row = format!("\t{interface}\t{len}\t{ttl}\t0x{way:08x}");
            assert_eq!(count(&row), times, "{row:?} in {rows:?}");
        }
        assert_eq!(count(&format!("\t{interface}\t104\t\t0x{way:08x}")), 10, "{rows:?}");
    }
    assert!(rows.iter().all(|row| row.starts_with('\t')), "malformed: {rows:?}");
}

#[test]
fn filters_take_the_packets_that_tcpdump_takes() {
    let test = "filters_take_the_packets_that_tcpdump_takes";
    let Some(tcpdump) = program_of(test, "tcpdump", "--referees") else { return };
    let net = Net::new("capture-filters", &format!("{R}[router]\n"));
    net.until("a", "10.2.0.1", "ttl=63");
    net.until("a", "fd02::1", "ttl=63");
    let path = net.folder.join("all.pcapng").display().to_string();
    // libpcap refuses this link type at a second interface.
    let capture = Capture::begin(&net, &["--write", &path, "--interface", "ib0"]);
    ping(&net, "a", "10.2.0.1 --count 7");
    ping(&net, "a", "fd02::1 --count 5 --size 200");
    ping(&net, "b", "10.1.0.1 --count 3 --size 1000");
    capture.end();
    let packets = packets_of(&tcpdump, &path, "");
    assert!(packets.len() >= 30, "{}", packets.len());
    for filter in FILTERS {
        let compiled = PacketFilter::parse(filter).expect(filter);
        let taken = packets.iter().filter(|packet| compiled.matches(packet, packet.len()));
        let taken: Vec<_> = taken.cloned().collect();
        assert_eq!(taken, packets_of(&tcpdump, &path, filter), "{filter}");
    }
}

/// The packets of a file that tcpdump takes by a filter.
fn packets_of(tcpdump: &Path, path: &str, filter: &str) -> Vec<Vec<u8>> {
    let mut packets: Vec<Vec<u8>> = Vec::new();
    for line in lines(tcpdump, &["-r", path, "-n", "-t", "-q", "-x", "--", filter]) {
        let Some((_, digits)) =
            line.trim_start().split_once(":  ").filter(|_| line.starts_with('\t'))
        else {
            packets.push(Vec::new());
            continue;
        };
        let digits: String = digits.split(' ').collect();
        let bytes = (0..digits.len() / 2).map(|at| u8::from_str_radix(&digits[2 * at..][..2], 16));
        packets.last_mut().expect("a line before").extend(bytes.map(|byte| byte.expect("hex")));
    }
    packets
}

#[test]
fn packets_that_are_dropped_for_a_reason_are_captured_with_it() {
    let net = Net::new(
        "capture-drops",
        &format!(
            "{R}[router]\n[[route]]\nto = \"10.7.0.0/16\"\n\
        type = \"blackhole\"\n"
        ),
    );
    net.until("a", "10.2.0.1", "ttl=63");
    let capture = Capture::begin(&net, &["--drop", "blackhole", "--count", "1"]);
    net.until("a", "10.7.0.1", "no answer");
    net.until("a", "10.2.0.1", "ttl=63");
    let (printed, last) = capture.wait();
    let ends = "ib0 dropped (blackhole) 10.1.0.1 > 10.7.0.1: ICMP, 84 bytes\n";
    assert!(printed.ends_with(ends), "{printed}");
    assert_eq!(
        (printed.lines().count(), last.as_str()),
        (1, "pollux: 1 packets captured, 0 missed\n")
    );
    let denied = R.replacen("[interface.ib0]", "[interface.ib0]\nacl_in = \"web\"", 1);
    let denied = denied + "[router]\n[[acl.web]]\naction = \"deny\"\n";
    std::fs::write(net.folder.join("r.toml"), denied).expect("it is ours");
    assert!(net.run("r", "reload").0);
    let capture = Capture::begin(&net, &["--drop", "acl_in", "--count", "1"]);
    net.until("a", "10.2.0.1", "no answer");
    let (printed, _) = capture.wait();
    assert!(
        printed.ends_with("ib0 dropped (acl_in) 10.1.0.1 > 10.2.0.1: ICMP, 84 bytes\n"),
        "{printed}"
    );
    let wrong = |arguments: &[&str]| {
        let mut all = vec!["capture", "--socket"];
        let socket = net.folder.join("r.sock").display().to_string();
        all.push(&socket);
        all.extend(arguments);
        let (is_done, printed) = output_of(&all);
        assert!(!is_done, "{printed}");
        printed
    };
    let printed = wrong(&["--drop", "nothing"]);
    assert!(
        printed.contains("write one of martian_source, ") && printed.contains("transit"),
        "{printed}"
    );
    let printed = wrong(&["icmp", "and", "prot", "53"]);
    assert!(
        printed.contains("filter, character 10: \"prot\": neither a filter keyword"),
        "{printed}"
    );
    assert!(wrong(&["--interface", "ib7"]).contains("there is no interface ib7"));
}

#[test]
fn captures_of_clients_that_are_gone_make_space_for_others() {
    let net = Net::new("capture-gone", R);
    net.until("a", "10.1.0.254", "ttl=64");
    for _ in 0..8 {
        let mut capture = Capture::begin(&net, &["--interface", "ib0"]);
        capture.child.kill().expect("it is ours");
        capture.child.wait().expect("it is ours");
    }
    let (is_done, printed) = net.run("r", "capture --count 1");
    assert!(!is_done && printed.contains("8 captures run already"), "{printed}");
    let mut pings = pollux(&["ping", "10.1.0.254", "--interval", "0.01", "--socket", "a.sock"]);
    let pings = pings.current_dir(&net.folder).stdout(Stdio::null()).spawn().expect("it starts");
    let _pings = Ending(pings);
    let begun = Instant::now();
    while !net.run("r", "capture --count 1 --interface ib0 host 10.1.0.1").0 {
        assert!(begun.elapsed() < TIMEOUT, "no capture ends by itself");
    }
}
