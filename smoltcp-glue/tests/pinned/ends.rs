//! How sockets, threads, interfaces and devices end, and what whoever is left hears of it.

use crate::device::ailing;
use crate::sockets::connect;
use crate::{TIMEOUT, Two, at, byte, two, up};
use pollux::pinned::Config;
use pollux::{Mode, Node};
use pollux_node::fabric::Embedded;
use pollux_verbs::AsyncEvent;
use std::io::{ErrorKind, Read, Write};
use std::net::Shutdown;
use std::thread::{scope, spawn};
use std::time::Duration;

/// Whether a connection between the two still works.
fn works(two: &Two, port: u16) {
    let listener = two.second.tcp_listen(at(2, port), 4).expect("the port is free");
    listener.set_timeout(Some(TIMEOUT));
    scope(|scope| {
        scope.spawn(|| {
            let (mut stream, _) = listener.accept().expect("somebody comes");
            let mut said = [0; 5];
            stream.read_exact(&mut said).expect("it is said");
            stream.write_all(&said).expect("there is room");
        });
        let mut stream = connect(&two.first, at(2, port));
        stream.set_read_timeout(Some(TIMEOUT));
        stream.write_all(b"still").expect("there is room");
        let mut said = [0; 5];
        stream.read_exact(&mut said).expect("it is echoed");
        assert_eq!(&said, b"still");
    });
}

#[test]
fn a_connection_is_dropped_while_it_is_being_made() {
    let two = two(Mode::Ud);
    // Nobody is there, and nobody will have said so yet.
    drop(two.first.tcp_begin(at(9, 80)).expect("it is an address"));
    // Somebody is there and listens.
    let listener = two.second.tcp_listen(at(2, 80), 4).expect("the port is free");
    for _ in 0..10 {
        drop(two.first.tcp_begin(at(2, 80)).expect("it is an address"));
    }
    // The port is free again as soon as its socket is dropped.
    drop(listener);
    works(&two, 80);
}

#[test]
fn a_listener_is_dropped_with_connections_that_wait() {
    let two = two(Mode::Rc);
    for _ in 0..3 {
        let listener = two.second.tcp_listen(at(2, 80), 64).expect("the port is free");
        // More than are on their way to who accepts them.
        let mut streams = [(); 24].map(|()| connect(&two.first, at(2, 80)));
        drop(listener);
        for stream in &mut streams {
            stream.set_read_timeout(Some(TIMEOUT));
            let ended = stream.read(&mut [0; 9]).expect_err("nobody accepted it");
            assert_eq!(ended.kind(), ErrorKind::ConnectionReset);
        }
    }
    works(&two, 80);
}

#[test]
fn what_was_written_before_a_connection_is_dropped_arrives() {
    const BYTES: usize = 3_000_000;
    let two = two(Mode::Rc);
    let listener = two.second.tcp_listen(at(2, 80), 4).expect("the port is free");
    listener.set_timeout(Some(TIMEOUT));
    scope(|scope| {
        scope.spawn(|| {
            let mut stream = connect(&two.first, at(2, 80));
            let all: Vec<u8> = (0..BYTES).map(byte).collect();
            stream.write_all(&all).expect("there is room in time");
            // More of it is in the ring and in the window than has been read.
        });
        let (mut stream, _) = listener.accept().expect("somebody comes");
        stream.set_read_timeout(Some(TIMEOUT));
        std::thread::park_timeout(Duration::from_millis(30));
        let mut all = Vec::new();
        stream.read_to_end(&mut all).expect("it comes whole");
        assert_eq!(all.len(), BYTES);
        assert!(all.iter().enumerate().all(|(place, one)| *one == byte(place)));
    });
    drop(listener);
    works(&two, 80);
}

#[test]
fn a_peer_that_closes_is_heard_to_the_end() {
    let two = two(Mode::Rc);
    let listener = two.second.tcp_listen(at(2, 80), 4).expect("the port is free");
    let mut stream = connect(&two.first, at(2, 80));
    stream.set_read_timeout(Some(TIMEOUT));
    let (mut peer, _) = listener.accept().expect("somebody came");
    peer.write_all(b"bye").expect("there is room");
    drop(peer);
    let mut said = Vec::new();
    stream.read_to_end(&mut said).expect("it was ended in order");
    assert_eq!(said, b"bye");
    drop((stream, listener));
    works(&two, 80);
}

#[test]
fn a_peer_is_told_by_a_reset_what_nobody_read_or_sends() {
    let two = two(Mode::Rc);
    let listener = two.second.tcp_listen(at(2, 80), 4).expect("the port is free");
    for lingers in [true, false] {
        let mut stream = connect(&two.first, at(2, 80));
        stream.set_read_timeout(Some(TIMEOUT));
        let (peer, _) = listener.accept().expect("somebody came");
        if lingers {
            stream.write_all(b"unread").expect("there is room");
            stream.flush().expect("it is acknowledged");
        }
        peer.set_linger(lingers);
        drop(peer);
        let ended = stream.read(&mut [0; 9]).expect_err("it was not ended in order");
        assert_eq!(ended.kind(), ErrorKind::ConnectionReset);
        let ended = stream.write(b"late").expect_err("it was not ended in order");
        assert_eq!(ended.kind(), ErrorKind::ConnectionReset);
        assert!(stream.flush().is_ok() || !lingers);
        assert!(stream.shutdown(Shutdown::Write).is_err());
    }
    drop(listener);
    works(&two, 80);
}

#[test]
fn a_thread_that_panics_takes_its_sockets_along_and_nothing_else() {
    let two = two(Mode::Rc);
    let listener = two.second.tcp_listen(at(2, 80), 4).expect("the port is free");
    let socket = two.second.udp_bind(at(2, 7)).expect("the port is free");
    let panics = spawn(move || {
        let (mut stream, _) = listener.accept().expect("somebody comes");
        stream.write_all(b"last").expect("there is room");
        let _held = socket;
        std::panic::resume_unwind(Box::new("as it is to"));
    });
    let mut stream = connect(&two.first, at(2, 80));
    stream.set_read_timeout(Some(TIMEOUT));
    let mut said = Vec::new();
    stream.read_to_end(&mut said).expect("it was ended in order");
    assert_eq!(said, b"last");
    assert!(panics.join().is_err());
    assert!(two.second.udp_bind(at(2, 7)).is_ok(), "the port is free again");
    works(&two, 80);
}

#[test]
fn what_was_sent_before_an_interface_ends_arrives() {
    for mode in [Mode::Ud, Mode::Rc] {
        let Two { first, second, fabric: _fabric } = two(mode);
        let socket = second.udp_bind(at(2, 9)).expect("the port is free");
        let listener = second.tcp_listen(at(2, 80), 4).expect("the port is free");
        socket.set_read_timeout(Some(TIMEOUT));
        // Nobody has ever asked where the other one is.
        let sender = first.udp_bind(at(1, 0)).expect("a port is free");
        drop(first);
        for number in 0..10 {
            sender.send_to(&[number; 64], at(2, 9)).expect("there is room");
        }
        drop(sender);
        for number in 0..10 {
            let mut datagram = [0; 64];
            socket.recv_from(&mut datagram).expect("all come");
            assert_eq!(datagram, [number; 64], "{mode:?}");
        }
        drop(listener);
    }
}

#[test]
fn a_stream_outlives_its_interface_and_both_end_with_it() {
    let Two { first, second, fabric: _fabric } = two(Mode::Rc);
    let listener = second.tcp_listen(at(2, 80), 4).expect("the port is free");
    let mut stream = connect(&first, at(2, 80));
    drop(first);
    let (mut peer, _) = listener.accept().expect("somebody came");
    stream.write_all(b"still").expect("there is room");
    drop(stream);
    let mut said = Vec::new();
    peer.read_to_end(&mut said).expect("it was ended in order");
    assert_eq!(said, b"still");
}

/// Two hosts, and what makes the device of a worker of the first one fail.
pub fn two_of_which_one_is_lost(
    config: &Config,
    worker: usize,
) -> (Two, impl FnOnce() + Send + use<>) {
    let fabric = Embedded::start("single:2").expect("it starts");
    let (opened, illness) = ailing(&fabric.port("host1"));
    let setup =
        Node::open("host1").expect("a device").interface("ib0").mode(Mode::Rc).timeout(TIMEOUT);
    let setup = setup.address("10.0.0.1/24");
    let first = setup.up_pinned_at(opened, config.clone()).expect("it comes up");
    let second = up(&fabric, 2, Mode::Rc, Config::default());
    let lose = move || {
        let illness = match worker.checked_sub(1) {
            Some(hand) => illness.lock().expect("no test has panicked").beside[hand].clone(),
            None => illness,
        };
        let mut illness = illness.lock().expect("no test has panicked");
        illness.events.push_back(AsyncEvent::DeviceFatal);
    };
    (Two { first, second, fabric }, lose)
}

#[test]
fn calls_that_wait_end_when_the_device_is_lost() {
    let (Two { first, second, fabric: _fabric }, lose) =
        two_of_which_one_is_lost(&Config::default(), 0);
    let listener = second.tcp_listen(at(2, 80), 4).expect("the port is free");
    let stream = connect(&first, at(2, 80));
    let (_peer, _) = listener.accept().expect("somebody came");
    let listener = first.tcp_listen(at(1, 80), 4).expect("the port is free");
    let socket = first.udp_bind(at(1, 0)).expect("a port is free");
    scope(|scope| {
        let calls = [
            scope.spawn(|| (&stream).read(&mut [0; 9]).map(drop)),
            scope.spawn(|| {
                while (&stream).write(&[0; 9000])? > 0 {}
                Ok(())
            }),
            scope.spawn(|| listener.accept().map(drop)),
            scope.spawn(|| socket.recv_from(&mut [0; 9]).map(drop)),
            scope.spawn(|| first.tcp_connect(at(9, 80)).map(drop)),
            scope.spawn(|| first.ping(at(9, 0).ip(), 64, TIMEOUT).map(drop)),
        ];
        std::thread::park_timeout(Duration::from_millis(50));
        lose();
        for (number, call) in calls.into_iter().enumerate() {
            let ended = call.join().expect("it does not panic").expect_err("there is no device");
            let is_told = ended.to_string().contains("has no device any more");
            // A neighbor may be given up in the same moment.
            assert!(is_told || number >= 4, "call {number}: {ended}");
        }
    });
    // What is asked later is told the same.
    let late = [
        first.udp_bind(at(1, 0)).map(drop),
        first.addresses().map(drop),
        (&stream).write(b"late").map(drop),
        socket.send_to(b"late", at(2, 7)),
        socket.join("239.1.2.3".parse().expect("an address")),
        listener.accept().map(drop),
    ];
    for ended in late {
        assert!(ended.expect_err("there is no device").to_string().contains("no device any more"));
    }
}
