//! Processes that are stopped, cables that are pulled, and a fabric that ends and begins again: all
//! recover by themselves.

use crate::nodes::{Node, interface};
use crate::running::{Running, TIMEOUT};
use pollux::{Interface, Mode};
use std::io::{Read, Write};
use std::net::{Shutdown, SocketAddr};
use std::process::Command;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::thread::{scope, sleep};
use std::time::{Duration, Instant};

/// Nodes at a fabric that begins again.
const NODES: u32 = 10;
/// Bytes of the longest packets, which go by connections only.
const LONG: &str = "60000";
/// Bytes that arrive before and after an outage, and bytes of one call.
const SHARE: usize = 1 << 20;
const CHUNK: usize = 5000;

/// How long a node is stopped: `POLLUX_STOP_SECONDS`, if a long run is wanted.
fn long_stop() -> Option<Duration> {
    let seconds = std::env::var("POLLUX_STOP_SECONDS").ok()?;
    Some(Duration::from_secs(seconds.parse().expect("a number")))
}

/// How long a node is stopped: by default longer than the retries of a connection last.
fn stop_time() -> Duration {
    long_stop().unwrap_or(Duration::from_secs(5))
}

/// How long there is no fabric, or no cable: TCP resumes after as long again, or twice as long.
fn outage_time() -> Duration {
    Duration::from_secs(if long_stop().is_some() { 3 } else { 1 })
}

fn signal(node: &Node, signal: &str) {
    let id = node.child.0.id().to_string();
    assert!(Command::new("kill").args([signal, &id]).status().expect("kill").success());
}

/// Both reach each other by datagrams and connections.
fn reach_each_other([first, second]: [&Node; 2]) {
    for size in ["56", LONG] {
        first.reach("10.0.0.2", size);
        second.reach("10.0.0.1", size);
    }
}

fn is_connected(node: &Node) -> bool {
    let rows = node.show("connections");
    rows.as_array().is_some_and(|rows| rows.iter().any(|row| row["state"] == "open"))
}

#[test]
fn a_node_that_was_stopped_for_long_recovers_by_itself() {
    let fabric = Running::new("stopped", &["--topology", "single:2"]);
    let nodes = [1, 2].map(|host| Node::start(&fabric, host, "rc"));
    nodes.iter().for_each(Node::come_up);
    let [first, second] = &nodes;
    reach_each_other([first, second]);
    assert!(is_connected(first) && is_connected(second));
    signal(first, "-STOP");
    let begun = Instant::now();
    // The other one notices: packets are in flight all the time.
    while begun.elapsed() < stop_time() {
        let (is_answered, output) = second.ask(&["ping", "10.0.0.1", "--count", "1"]);
        assert!(!is_answered, "it is stopped: {output}");
    }
    signal(first, "-CONT");
    reach_each_other([first, second]);
    assert!(is_connected(first) && is_connected(second));
    for (node, peer) in [(first, "10.0.0.2"), (second, "10.0.0.1")] {
        // It may be about to be probed.
        let begun = Instant::now();
        loop {
            node.reach(peer, LONG);
            let rows = node.show("neighbors");
            assert_eq!(rows[0]["by"], "connection", "{rows}");
            if rows[0]["state"] == "reachable" {
                break;
            }
            assert!(begun.elapsed() < TIMEOUT, "{rows}");
            sleep(Duration::from_millis(100));
        }
        let rows = node.show("interfaces");
        assert_eq!(rows[0]["state"], "up", "{rows}");
    }
}

/// Ten nodes that have connections in a ring.
fn ten(fabric: &Running) -> Vec<Node> {
    let node = |host| {
        let interface = interface(fabric, host, "ib0", "10.0.0");
        Node::with(fabric, host, &format!("{interface}mode = \"rc\"\n"))
    };
    let nodes: Vec<_> = (1..=NODES).map(node).collect();
    nodes.iter().for_each(Node::come_up);
    reach_in_a_ring(&nodes);
    nodes
}

fn reach_in_a_ring(nodes: &[Node]) {
    for (node, next) in nodes.iter().zip((1..=NODES).cycle().skip(1)) {
        node.reach(&format!("10.0.0.{next}"), LONG);
    }
}

#[test]
fn ten_nodes_recover_when_their_fabric_restarts() {
    let mut fabric = Running::new("ten", &["--topology", &format!("single:{NODES}")]);
    let nodes = ten(&fabric);
    for outage in [Duration::ZERO, outage_time()] {
        fabric.replace_after(outage);
        reach_in_a_ring(&nodes);
        nodes.iter().for_each(|node| assert!(is_connected(node)));
    }
}

#[test]
fn ten_nodes_recover_when_their_cables_are_plugged_in() {
    let fabric = Running::new("cables", &["--topology", &format!("single:{NODES}")]);
    let nodes = ten(&fabric);
    let mut faults = Vec::new();
    for host in 1..=NODES {
        let (is_ok, number) = fabric.ask(&["fault", "add", &format!("host{host}:1/down")]);
        assert!(is_ok, "{number}");
        faults.push(number.trim().to_owned());
    }
    fabric.until_it(&["show", "ports"], "nobody up", |_| {
        nodes.iter().all(|node| node.show("interfaces")[0]["state"] == "down")
    });
    for fault in &faults {
        let (is_ok, output) = fabric.ask(&["fault", "del", fault]);
        assert!(is_ok, "{output}");
    }
    nodes.iter().for_each(Node::come_up);
    reach_in_a_ring(&nodes);
}

fn at(host: u8) -> SocketAddr {
    SocketAddr::from(([10, 0, 0, host], 80))
}

fn open(port: &str, host: u8, mode: Mode) -> Interface {
    let setup = pollux::Node::open(port).expect("a device").interface("ib0").mode(mode);
    let setup = setup.timeout(TIMEOUT).address(&format!("10.0.0.{host}/24"));
    setup.up().expect("it comes up")
}

/// The byte at an offset of a stream.
const fn byte(at: usize) -> u8 {
    ((at as u64).wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 56) as u8
}

/// Writes until it is over, and then waits until all has arrived.
fn write(interface: &Interface, is_over: &AtomicBool) -> usize {
    let connected = (0..100).find_map(|_| interface.tcp_connect(at(2)).ok());
    let mut stream = connected.expect("somebody listens");
    stream.set_read_timeout(Some(TIMEOUT)).unwrap();
    let mut written = 0;
    while !is_over.load(Ordering::Relaxed) {
        let bytes: Vec<_> = (written..written + CHUNK).map(byte).collect();
        stream.write_all(&bytes).expect("the stream goes on");
        written += bytes.len();
    }
    stream.shutdown(Shutdown::Write).expect("the stream goes on");
    assert_eq!(stream.read(&mut [0]).expect("the stream goes on"), 0, "all has arrived");
    written
}

/// Reads to the end.
fn read(interface: &Interface, read: &AtomicUsize) -> usize {
    let listener = interface.tcp_listen(at(2), 4).expect("the port is free");
    listener.set_timeout(Some(TIMEOUT)).unwrap();
    let (mut stream, _) = listener.accept().expect("somebody comes");
    stream.set_read_timeout(Some(TIMEOUT)).unwrap();
    let mut bytes = [0; CHUNK];
    loop {
        let len = stream.read(&mut bytes).expect("the stream goes on");
        let place = read.load(Ordering::Relaxed);
        let is_right = bytes[..len].iter().zip(place..).all(|(got, at)| *got == byte(at));
        assert!(is_right, "wrong bytes after {place}");
        read.store(place + len, Ordering::Relaxed);
        if len == 0 {
            return place;
        }
    }
}

/// Ends whoever writes, also when a test fails.
struct End<'a>(&'a AtomicBool);

impl Drop for End<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

/// A stream between two applications, with data in flight before, during and after an outage.
fn outlive(mode: Mode, fabric: &mut Running, outage: fn(&mut Running)) {
    let [first, second] = [1, 2].map(|host| fabric.port(host));
    let (is_over, arrived) = (AtomicBool::new(false), AtomicUsize::new(0));
    let wait_for = |bytes: usize| {
        let begun = Instant::now();
        while arrived.load(Ordering::Relaxed) < bytes {
            assert!(begun.elapsed() < TIMEOUT, "{mode:?}: {arrived:?} of {bytes} bytes arrive");
            sleep(Duration::from_millis(1));
        }
    };
    scope(|scope| {
        let reader = scope.spawn(|| read(&open(&second, 2, mode), &arrived));
        let writer = scope.spawn(|| write(&open(&first, 1, mode), &is_over));
        let end = End(&is_over);
        wait_for(SHARE);
        outage(fabric);
        wait_for(arrived.load(Ordering::Relaxed) + SHARE);
        drop(end);
        let written = writer.join().expect("it writes all");
        assert_eq!(reader.join().expect("it reads all"), written, "{mode:?}");
    });
}

fn pull_a_cable(fabric: &mut Running) {
    let (is_ok, fault) = fabric.ask(&["fault", "add", "host1:1/down"]);
    assert!(is_ok, "{fault}");
    sleep(outage_time());
    let (is_ok, output) = fabric.ask(&["fault", "del", fault.trim()]);
    assert!(is_ok, "{output}");
}

fn stop(fabric: &mut Running) {
    fabric.signal("-STOP");
    sleep(outage_time());
    fabric.signal("-CONT");
}

fn replace(fabric: &mut Running) {
    fabric.replace_after(outage_time());
}

#[test]
fn streams_by_datagrams_go_on_after_outages_of_the_fabric() {
    let mut fabric = Running::new("stream_ud", &["--topology", "single:2"]);
    for outage in [pull_a_cable, stop, replace] {
        outlive(Mode::Ud, &mut fabric, outage);
    }
}

#[test]
fn streams_by_connections_go_on_after_outages_of_the_fabric() {
    let mut fabric = Running::new("stream_rc", &["--topology", "single:2"]);
    for outage in [pull_a_cable, stop, replace] {
        outlive(Mode::Rc, &mut fabric, outage);
    }
}
