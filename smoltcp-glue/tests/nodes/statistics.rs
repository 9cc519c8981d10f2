//! What interfaces count, inline and pinned.

use crate::info::setup;
use crate::sockets::at;
use pollux::pinned::Config;
use pollux::stack::StackConfig;
use pollux::{InterfaceStatistics, pinned};
use pollux_node::fabric::Embedded;
use std::io::{ErrorKind, Read, Write};
use std::time::{Duration, Instant};

const TIMEOUT: Duration = Duration::from_secs(30);
const BYTES: usize = 100_000;
const DATAGRAMS: u64 = 2000;

/// Sends more datagrams to a socket than its queues hold.
#[expect(clippy::disallowed_methods, reason = "it polls within a timeout")]
fn fill(
    mut send: impl FnMut() -> std::io::Result<usize>,
    mut receive: impl FnMut() -> std::io::Result<usize>,
    statistics: impl Fn() -> InterfaceStatistics,
) {
    for _ in 0..DATAGRAMS {
        send().unwrap();
    }
    let (mut received, begun) = (0, Instant::now());
    loop {
        match receive() {
            Ok(_) => received += 1,
            Err(why) => assert_eq!(why.kind(), ErrorKind::WouldBlock),
        }
        let counted = statistics();
        let dropped = counted.drops.get("udp queue_full").copied().unwrap_or(0);
        if dropped + received == DATAGRAMS {
            assert!(dropped > 0 && received > 0, "{counted}");
            assert!(counted.to_string().contains(&format!("{dropped} udp queue_full")));
            assert_eq!((counted.udp_sockets, counted.tcp_connections), (1, 0));
            return;
        }
        assert!(begun.elapsed() < TIMEOUT, "{received} received: {counted}");
    }
}

fn short_queues() -> StackConfig {
    StackConfig { udp_queue_bytes_max: 10_000, ..StackConfig::default() }
}

#[test]
fn datagrams_that_an_inline_queue_cannot_hold_are_drops() {
    let fabric = Embedded::start("single:2").unwrap();
    let interface = setup(&fabric, 1).limits(short_queues()).up().unwrap();
    let socket = interface.udp_bind(at(1, 7)).unwrap();
    socket.set_write_timeout(Some(TIMEOUT)).unwrap();
    socket.set_nonblocking(false).unwrap();
    let receive = || {
        socket.set_nonblocking(true)?;
        socket.recv(&mut [0; 1000])
    };
    let send = || socket.send_to(&[7; 1000], at(1, 7));
    fill(send, receive, || interface.statistics().unwrap());
}

#[test]
fn datagrams_that_a_pinned_queue_cannot_hold_are_drops() {
    let fabric = Embedded::start("single:2").unwrap();
    let setup = setup(&fabric, 1).limits(short_queues());
    let interface = setup.up_pinned(Config::default()).unwrap();
    let socket = interface.udp_bind(at(1, 7)).unwrap();
    socket.set_write_timeout(Some(TIMEOUT)).unwrap();
    let receive = || {
        socket.set_nonblocking(true)?;
        socket.recv(&mut [0; 1000])
    };
    let send = || socket.send_to(&[7; 1000], at(1, 7));
    fill(send, receive, || interface.statistics().unwrap());
}

/// Exchanges bytes with a peer that is at another interface.
fn exchange<S: Read + Write>(peer: &pinned::Interface, connect: impl FnOnce() -> S) -> S {
    let listener = peer.tcp_listen(at(2, 7), 1).unwrap();
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let (mut stream, _) = listener.accept().unwrap();
            stream.set_read_timeout(Some(TIMEOUT)).unwrap();
            let mut bytes = vec![0; BYTES];
            stream.read_exact(&mut bytes).unwrap();
            stream.write_all(&bytes).unwrap();
            stream.flush().unwrap();
        });
        let mut stream = connect();
        stream.write_all(&vec![7; BYTES]).unwrap();
        stream.read_exact(&mut vec![0; BYTES]).unwrap();
        stream
    })
}

/// The bytes of the streams, and not many more.
fn has_exchanged(counted: &InterfaceStatistics) {
    let expected = BYTES as u64..2 * BYTES as u64;
    assert!(expected.contains(&counted.bytes_sent), "{counted}");
    assert!(expected.contains(&counted.bytes_received), "{counted}");
    // An MTU of 2,044 bytes.
    assert!(counted.packets_sent > 49 && counted.packets_received > 49, "{counted}");
    assert_eq!(counted.drops.len(), 0, "{counted}");
}

#[test]
fn traffic_and_sockets_are_counted_inline_and_pinned() {
    let fabric = Embedded::start("single:2").unwrap();
    let peer = setup(&fabric, 2).up_pinned(Config::default()).unwrap();
    let interface = setup(&fabric, 1).up().unwrap();
    let _stream = exchange(&peer, || interface.tcp_connect(at(2, 7)).unwrap());
    let inline = interface.statistics().unwrap();
    has_exchanged(&inline);
    assert_eq!((inline.tcp_connections, inline.tcp_listeners, inline.udp_sockets), (1, 0, 0));
    let _listener = peer.tcp_listen(at(2, 8), 1).unwrap();
    let pinned = peer.statistics().unwrap();
    has_exchanged(&pinned);
    assert_eq!((pinned.tcp_listeners, pinned.udp_sockets), (1, 0));
    let text = pinned.to_string();
    assert!(text.starts_with(&format!("sent: {} packets", pinned.packets_sent)), "{text}");
    assert!(text.ends_with("dropped: none"), "{text}");
}
