//! The processor time of an idle application, in a process of its own, whose time is counted.
//!
//! The limit is on processor time. On an idle machine it takes 5 ticks; beside other programs,
//! which share caches and cores, up to 24 were seen. A thread that polls instead of sleeping takes
//! 400.

use pollux::pinned::Config;
use pollux::{Mode, Node};
use std::io::ErrorKind;
use std::sync::mpsc::channel;
use std::time::Duration;

const IDLE: Duration = Duration::from_secs(4);
/// For all threads: of the fabric, the control plane, the workers, and this one.
const TICKS_MAX: u64 = 80;

/// The processor time of this process in ticks, of which a second has a hundred.
fn ticks() -> u64 {
    let stat = std::fs::read_to_string("/proc/self/stat").expect("there is /proc");
    let fields: Vec<&str> = stat.rsplit(')').next().expect("a name").split_whitespace().collect();
    // User and system time are fields 14 and 15 (proc(5)); the name is field 2.
    fields[11..13].iter().map(|field| field.parse::<u64>().expect("a number")).sum()
}

#[test]
fn a_blocked_application_and_its_idle_workers_cost_no_processor_time() {
    let setup = |address: &str| {
        let node = Node::open("soft:").expect("the fabric starts");
        node.interface("ib0").address(address).mode(Mode::Rc)
    };
    let (up, is_up) = channel();
    let pinned = std::thread::spawn(move || {
        let interface = setup("10.0.0.2/24").up_pinned(Config::default()).expect("it comes up");
        let socket = interface.udp_bind("10.0.0.2:7").expect("the port is free");
        up.send(()).expect("the other thread waits");
        let mut byte = [0];
        let (len, from) = socket.recv_from(&mut byte).expect("the peer sends");
        socket.send_to(&byte[..len], from).expect("there is space");
        socket.recv_from(&mut byte).expect("the peer sends again");
    });
    let inline = setup("10.0.0.1/24").up().expect("it comes up");
    is_up.recv().expect("the peer is up");
    let socket = inline.udp_bind("10.0.0.1:7").expect("the port is free");
    let mut byte = [0];
    socket.send_to(b"1", "10.0.0.2:7").expect("there is space");
    socket.recv_from(&mut byte).expect("the peer answers");
    let before = ticks();
    socket.set_read_timeout(Some(IDLE)).unwrap();
    let nothing = socket.recv_from(&mut byte).expect_err("nothing was sent");
    let spent = ticks() - before;
    assert_eq!(nothing.kind(), ErrorKind::TimedOut);
    assert!(spent <= TICKS_MAX, "{spent} ticks in {IDLE:?}");
    socket.send_to(b"2", "10.0.0.2:7").expect("there is space");
    pinned.join().expect("it received both");
}
