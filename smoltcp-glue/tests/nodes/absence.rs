//! An application that computes and makes no calls, while a peer sends to it.

use crate::sockets::{at, byte, connect, two};
use pollux::{Interface, Mode, NeighborRoute};
use std::io::{Read, Write};
use std::net::{IpAddr, Ipv4Addr};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::time::Duration;

/// Rounds of the peer.
const ROUNDS: usize = 30;
/// Bytes of the stream in a round.
const BYTES: usize = 500;
/// The timeout of a ping: the sockets of an application that computes are served slower.
const PING_MAX: Duration = Duration::from_secs(5);
const GROUP: IpAddr = IpAddr::V4(Ipv4Addr::new(239, 1, 2, 3));

/// The time of computing: `POLLUX_COMPUTE_SECONDS`, or less than any timeout of the link.
#[expect(clippy::disallowed_methods, reason = "the environment sets the time of the test")]
fn computing() -> Duration {
    let seconds = std::env::var("POLLUX_COMPUTE_SECONDS").ok();
    Duration::from_secs(seconds.map_or(12, |seconds| seconds.parse().expect("a number")))
}

#[test]
fn an_application_that_computes_loses_no_neighbor_group_or_connection() {
    for mode in [Mode::Ud, Mode::Rc] {
        let ((to_other, from_computer), (to_computer, from_other)) = (channel(), channel());
        let computer = |interface: &Interface| compute(mode, interface, (to_other, from_other));
        let other = |interface: &Interface| talk(mode, interface, (to_computer, from_computer));
        two(mode, computer, other);
    }
}

/// Makes no call until the peer has sent everything; then all of it was received.
fn compute(mode: Mode, interface: &Interface, (to_other, from_other): (Sender<()>, Receiver<()>)) {
    let listener = interface.tcp_listen(at(1, 80), 4).expect("the port is free");
    let groups = interface.udp_bind(at(1, 5000)).expect("the port is free");
    groups.join(GROUP).expect("there is space");
    let (mut stream, _) = listener.accept().expect("a connection");
    let before = route(mode, interface, at(2, 0).ip());
    to_other.send(()).expect("the peer waits");
    from_other.recv().expect("the peer has sent everything");
    assert_eq!(routes(interface), [before], "its neighbors and connections are the same");
    // A datagram to a group may wait for the join, and arrive after a later one to a host.
    groups.set_read_timeout(Some(PING_MAX)).unwrap();
    let mut datagram = [0; 9];
    for round in 0..ROUNDS {
        let (len, _) = groups.recv_from(&mut datagram).expect("it arrived");
        assert_eq!(datagram[..len], [round as u8]);
    }
    to_other.send(()).expect("the peer waits");
    let mut bytes = Vec::new();
    stream.read_to_end(&mut bytes).expect("end of file");
    assert_eq!(bytes.len(), ROUNDS * BYTES);
    assert!(bytes.iter().enumerate().all(|(offset, got)| *got == byte(offset)));
}

/// Pings the application that computes, and sends to its group and its connection.
#[expect(clippy::disallowed_methods, reason = "the computing takes real time")]
fn talk(
    mode: Mode,
    interface: &Interface,
    (to_computer, from_computer): (Sender<()>, Receiver<()>),
) {
    let mut stream = connect(interface, at(1, 80));
    let socket = interface.udp_bind(at(2, 0)).expect("a port is free");
    let before = route(mode, interface, at(1, 0).ip());
    from_computer.recv().expect("it computes from now on");
    let mut written = 0;
    for round in 0..ROUNDS {
        std::thread::sleep(computing() / ROUNDS as u32);
        let answer = interface.ping(at(1, 0).ip(), 56, PING_MAX);
        assert!(answer.is_ok(), "no answer in round {round}: {answer:?}");
        socket.send_to(&[round as u8], (GROUP, 5000)).expect("there is space");
        let bytes: Vec<_> = (written..written + BYTES).map(byte).collect();
        stream.write_all(&bytes).expect("it is connected");
        written += BYTES;
    }
    interface.ping(at(1, 0).ip(), 56, PING_MAX).expect("it answers to the end");
    assert_eq!(routes(interface), [before], "its neighbors and connections are the same");
    to_computer.send(()).expect("the peer waits");
    from_computer.recv().expect("the peer has checked its neighbors");
}

/// Waits for the route to a neighbor that this mode uses.
fn route(mode: Mode, interface: &Interface, to: IpAddr) -> NeighborRoute {
    let route = (0..1000).find_map(|_| {
        interface.ping(to, 56, PING_MAX).expect("it answers");
        let route = routes(interface).pop()?;
        (route.connection.is_some() == (mode == Mode::Rc)).then_some(route)
    });
    route.expect("it is a neighbor")
}

/// The neighbors without their groups.
fn routes(interface: &Interface) -> Vec<NeighborRoute> {
    let mut routes = interface.neighbors();
    routes.iter_mut().for_each(|route| route.addresses.retain(|ip| !ip.is_multicast()));
    routes.retain(|route| !route.addresses.is_empty());
    routes
}
