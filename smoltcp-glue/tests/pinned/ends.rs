//! The end of sockets, threads, interfaces and devices, and its effect on the others.

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

/// Asserts that a new connection between the two hosts works.
fn assert_works(two: &Two, port: u16) {
    let listener = two.second.tcp_listen(at(2, port), 4).expect("the port is free");
    listener.set_timeout(Some(TIMEOUT)).unwrap();
    scope(|scope| {
        scope.spawn(|| {
            let (mut stream, _) = listener.accept().expect("a connection");
            let mut bytes = [0; 5];
            stream.read_exact(&mut bytes).expect("it arrives");
            stream.write_all(&bytes).expect("there is space");
        });
        let mut stream = connect(&two.first, at(2, port));
        stream.set_read_timeout(Some(TIMEOUT)).unwrap();
        stream.write_all(b"still").expect("there is space");
        let mut bytes = [0; 5];
        stream.read_exact(&mut bytes).expect("it is echoed");
        assert_eq!(&bytes, b"still");
    });
}

#[test]
fn an_opening_connection_can_be_dropped() {
    let two = two(Mode::Ud);
    // To an absent host, before the attempt has failed.
    drop(two.first.tcp_begin(at(9, 80)).expect("it is an address"));
    // To a listener.
    let listener = two.second.tcp_listen(at(2, 80), 4).expect("the port is free");
    for _ in 0..10 {
        drop(two.first.tcp_begin(at(2, 80)).expect("it is an address"));
    }
    // The port is free again as soon as its socket is dropped.
    drop(listener);
    assert_works(&two, 80);
}

#[test]
fn a_dropped_listener_resets_its_waiting_connections() {
    let two = two(Mode::Rc);
    for _ in 0..3 {
        let listener = two.second.tcp_listen(at(2, 80), 64).expect("the port is free");
        // More than the accept queue of the application holds.
        let mut streams = [(); 24].map(|()| connect(&two.first, at(2, 80)));
        drop(listener);
        for stream in &mut streams {
            stream.set_read_timeout(Some(TIMEOUT)).unwrap();
            let ended = stream.read(&mut [0; 9]).expect_err("it was not accepted");
            assert_eq!(ended.kind(), ErrorKind::ConnectionReset);
        }
    }
    assert_works(&two, 80);
}

/// Rings and buffers of a connection that has ended are those of a later one: also of one that was
/// reset with data in them.
#[test]
fn connections_in_a_row_carry_their_own_bytes_alone() {
    let two = two(Mode::Rc);
    let listener = two.second.tcp_listen(at(2, 80), 4).expect("the port is free");
    listener.set_timeout(Some(TIMEOUT)).unwrap();
    for round in 0..60 {
        let mut client = connect(&two.first, at(2, 80));
        let (mut server, _) = listener.accept().expect("a connection");
        client.set_read_timeout(Some(TIMEOUT)).unwrap();
        server.set_read_timeout(Some(TIMEOUT)).unwrap();
        let (request, response) = (vec![round; 70_000], vec![100 + round; 70_000]);
        client.write_all(&request).unwrap();
        server.write_all(&response).unwrap();
        let mut bytes = vec![0; 70_000];
        server.read_exact(&mut bytes).unwrap();
        assert!(bytes == request, "round {round}");
        // In two rounds of three the client leaves data unread.
        if round % 3 == 0 {
            client.read_exact(&mut bytes).unwrap();
            assert!(bytes == response, "round {round}");
        }
        client.set_linger(round % 3 == 1);
        drop((client, server));
    }
}

#[test]
fn data_written_before_a_drop_arrive() {
    const BYTES: usize = 3_000_000;
    let two = two(Mode::Rc);
    let listener = two.second.tcp_listen(at(2, 80), 4).expect("the port is free");
    listener.set_timeout(Some(TIMEOUT)).unwrap();
    scope(|scope| {
        scope.spawn(|| {
            let mut stream = connect(&two.first, at(2, 80));
            let all: Vec<u8> = (0..BYTES).map(byte).collect();
            stream.write_all(&all).expect("there is space in time");
            // Most of it is still in the ring and in the window when the stream is dropped.
        });
        let (mut stream, _) = listener.accept().expect("a connection");
        stream.set_read_timeout(Some(TIMEOUT)).unwrap();
        std::thread::park_timeout(Duration::from_millis(30));
        let mut all = Vec::new();
        stream.read_to_end(&mut all).expect("all of it arrives");
        assert_eq!(all.len(), BYTES);
        assert!(all.iter().enumerate().all(|(offset, one)| *one == byte(offset)));
    });
    drop(listener);
    assert_works(&two, 80);
}

#[test]
fn data_before_a_close_of_the_peer_arrive() {
    let two = two(Mode::Rc);
    let listener = two.second.tcp_listen(at(2, 80), 4).expect("the port is free");
    let mut stream = connect(&two.first, at(2, 80));
    stream.set_read_timeout(Some(TIMEOUT)).unwrap();
    let (mut peer, _) = listener.accept().expect("a connection");
    peer.write_all(b"bye").expect("there is space");
    drop(peer);
    let mut bytes = Vec::new();
    stream.read_to_end(&mut bytes).expect("end of file");
    assert_eq!(bytes, b"bye");
    drop((stream, listener));
    assert_works(&two, 80);
}

#[test]
fn a_drop_with_unread_data_or_without_linger_is_a_reset() {
    let two = two(Mode::Rc);
    let listener = two.second.tcp_listen(at(2, 80), 4).expect("the port is free");
    for lingers in [true, false] {
        let mut stream = connect(&two.first, at(2, 80));
        stream.set_read_timeout(Some(TIMEOUT)).unwrap();
        let (peer, _) = listener.accept().expect("a connection");
        if lingers {
            stream.write_all(b"unread").expect("there is space");
            stream.flush().expect("it is acknowledged");
        }
        peer.set_linger(lingers);
        drop(peer);
        let ended = stream.read(&mut [0; 9]).expect_err("a reset");
        assert_eq!(ended.kind(), ErrorKind::ConnectionReset);
        let ended = stream.write(b"late").expect_err("a reset");
        assert_eq!(ended.kind(), ErrorKind::ConnectionReset);
        assert!(stream.flush().is_ok() || !lingers);
        assert!(stream.shutdown(Shutdown::Write).is_err());
    }
    drop(listener);
    assert_works(&two, 80);
}

#[test]
fn a_panic_of_a_thread_closes_its_sockets_only() {
    let two = two(Mode::Rc);
    let listener = two.second.tcp_listen(at(2, 80), 4).expect("the port is free");
    let socket = two.second.udp_bind(at(2, 7)).expect("the port is free");
    let panics = spawn(move || {
        let (mut stream, _) = listener.accept().expect("a connection");
        stream.write_all(b"last").expect("there is space");
        let _held = socket;
        std::panic::resume_unwind(Box::new("a panic of the test"));
    });
    let mut stream = connect(&two.first, at(2, 80));
    stream.set_read_timeout(Some(TIMEOUT)).unwrap();
    let mut bytes = Vec::new();
    stream.read_to_end(&mut bytes).expect("end of file");
    assert_eq!(bytes, b"last");
    assert!(panics.join().is_err());
    assert!(two.second.udp_bind(at(2, 7)).is_ok(), "the port is free again");
    assert_works(&two, 80);
}

#[test]
fn datagrams_sent_before_an_interface_is_dropped_arrive() {
    for mode in [Mode::Ud, Mode::Rc] {
        let Two { first, second, fabric: _fabric } = two(mode);
        let socket = second.udp_bind(at(2, 9)).expect("the port is free");
        let listener = second.tcp_listen(at(2, 80), 4).expect("the port is free");
        socket.set_read_timeout(Some(TIMEOUT)).unwrap();
        // The neighbor is not resolved yet.
        let sender = first.udp_bind(at(1, 0)).expect("a port is free");
        drop(first);
        for number in 0..10 {
            sender.send_to(&[number; 64], at(2, 9)).expect("there is space");
        }
        drop(sender);
        for number in 0..10 {
            let mut datagram = [0; 64];
            socket.recv_from(&mut datagram).expect("all arrive");
            assert_eq!(datagram, [number; 64], "{mode:?}");
        }
        drop(listener);
    }
}

#[test]
fn a_stream_outlives_the_handle_of_its_interface() {
    let Two { first, second, fabric: _fabric } = two(Mode::Rc);
    let listener = second.tcp_listen(at(2, 80), 4).expect("the port is free");
    let mut stream = connect(&first, at(2, 80));
    drop(first);
    let (mut peer, _) = listener.accept().expect("a connection");
    stream.write_all(b"still").expect("there is space");
    drop(stream);
    let mut bytes = Vec::new();
    peer.read_to_end(&mut bytes).expect("end of file");
    assert_eq!(bytes, b"still");
}

/// Two hosts, and a function that makes the device of a worker of the first fail.
pub fn two_with_failing_device(
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
    let fail = move || {
        let illness = match worker.checked_sub(1) {
            Some(index) => illness.lock().expect("no test has panicked").beside[index].clone(),
            None => illness,
        };
        let mut illness = illness.lock().expect("no test has panicked");
        illness.events.push_back(AsyncEvent::DeviceFatal);
    };
    (Two { first, second, fabric }, fail)
}

#[test]
fn blocking_calls_return_when_the_device_fails() {
    let (Two { first, second, fabric: _fabric }, fail) =
        two_with_failing_device(&Config::default(), 0);
    let listener = second.tcp_listen(at(2, 80), 4).expect("the port is free");
    let stream = connect(&first, at(2, 80));
    let (_peer, _) = listener.accept().expect("a connection");
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
        fail();
        for (number, call) in calls.into_iter().enumerate() {
            let ended = call.join().expect("it does not panic").expect_err("there is no device");
            let is_reported = ended.to_string().contains("has no device any more");
            // The neighbor may time out at the same time.
            assert!(is_reported || number >= 4, "call {number}: {ended}");
        }
    });
    // Later calls return the same error.
    let late = [
        first.udp_bind(at(1, 0)).map(drop),
        first.addresses().map(drop),
        (&stream).write(b"late").map(drop),
        socket.send_to(b"late", at(2, 7)).map(drop),
        socket.join("239.1.2.3".parse().expect("an address")),
        listener.accept().map(drop),
    ];
    for ended in late {
        assert!(ended.expect_err("there is no device").to_string().contains("no device any more"));
    }
}
