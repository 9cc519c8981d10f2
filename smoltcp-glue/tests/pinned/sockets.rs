//! Calls of pinned sockets, and their use by several threads.

use crate::{TIMEOUT, Two, at, byte, two, two_with};
use pollux::pinned::{Config, Idle, Interface, TcpStream};
use pollux::stack::{KEEPALIVE_MIN, StackConfig};
use pollux::{Mode, Node, UdpSlot, UpError};
use std::io::{ErrorKind, Read, Write};
use std::net::{IpAddr, Shutdown, SocketAddr};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::thread::{scope, spawn};
use std::time::Duration;

const SHORT_TIMEOUT: Duration = Duration::from_millis(20);

/// A connection; retries until the path is resolved.
pub fn connect(interface: &Interface, to: SocketAddr) -> TcpStream {
    let connected = (0..100).find_map(|_| interface.tcp_connect(to).ok());
    connected.expect("a listener")
}

#[test]
fn datagrams_are_echoed_in_all_modes() {
    for mode in [Mode::Ud, Mode::Rc, Mode::Auto] {
        let two = two(mode);
        let echo = two.second.udp_bind(at(2, 7)).expect("the port is free");
        let is_over = AtomicBool::new(false);
        scope(|scope| {
            scope.spawn(|| {
                echo.set_read_timeout(Some(SHORT_TIMEOUT)).unwrap();
                let mut buffer = vec![0; 65_536];
                while !is_over.load(Ordering::Relaxed) {
                    if let Ok((received, from)) = echo.recv_from(&mut buffer) {
                        let _ = echo.send_to(&buffer[..received], from);
                    }
                }
            });
            let socket = two.first.udp_bind(at(1, 0)).expect("a port is free");
            assert_eq!(socket.local_addr().expect("it is bound").ip(), at(1, 0).ip());
            socket.set_read_timeout(Some(Duration::from_millis(200))).unwrap();
            let mut buffer = vec![0; 65_536];
            let longest = if mode == Mode::Ud { 2044 } else { 65_520 };
            for len in [0, 1, 64, 2044 - 28, longest - 28] {
                let payload: Vec<u8> = (len..2 * len).map(byte).collect();
                let is_answered = (0..100).any(|_| {
                    let is_sent = socket.send_to(&payload, at(2, 7)).is_ok();
                    while is_sent && let Ok((received, from)) = socket.recv_from(&mut buffer) {
                        if (&buffer[..received], from) == (&payload[..], at(2, 7)) {
                            return true;
                        }
                    }
                    false
                });
                if !is_answered {
                    is_over.store(true, Ordering::Relaxed);
                }
                assert!(is_answered, "{len} bytes, {mode:?}");
            }
            is_over.store(true, Ordering::Relaxed);
        });
    }
}

/// A checksum of content and order.
fn sum(bytes: &[u8], mut sum: u64) -> u64 {
    for byte in bytes {
        sum = (sum ^ u64::from(*byte)).wrapping_mul(0x0100_0000_01b3);
    }
    sum
}

#[test]
fn streams_in_both_directions_arrive_intact() {
    const BYTES: usize = 8_000_000;
    let send = |stream: &TcpStream| {
        let (mut sent, mut all) = (0, 0);
        while sent < BYTES {
            let len = (1 + sent % 70_001).min(BYTES - sent);
            let part: Vec<u8> = (sent..sent + len).map(byte).collect();
            (&mut &*stream).write_all(&part).expect("there is space in time");
            all = sum(&part, all);
            sent += len;
        }
        (&mut &*stream).flush().expect("all of it is acknowledged");
        stream.shutdown(Shutdown::Write).expect("it is open");
        all
    };
    let receive = |stream: &TcpStream| {
        let (mut received, mut all, mut buffer) = (0, 0, vec![0; 50_000]);
        loop {
            match (&mut &*stream).read(&mut buffer).expect("all of it arrives") {
                0 => break,
                len => {
                    all = sum(&buffer[..len], all);
                    received += len;
                }
            }
        }
        assert_eq!(received, BYTES);
        all
    };
    for (mode, idle) in
        [(Mode::Ud, Idle::Adaptive), (Mode::Rc, Idle::Adaptive), (Mode::Rc, Idle::Poll)]
    {
        let two = two_with(mode, &Config { idle, ..Config::default() });
        let there = SocketAddr::from(([0xfd00, 0, 0, 0, 0, 0, 0, 2], 80));
        let listener = two.second.tcp_listen(there, 4).expect("the port is free");
        let client = connect(&two.first, there);
        let (server, peer) = listener.accept().expect("a connection");
        assert_eq!(peer, client.local_addr().expect("an end"));
        for stream in [&client, &server] {
            stream.set_read_timeout(Some(TIMEOUT)).unwrap();
            stream.set_write_timeout(Some(TIMEOUT)).unwrap();
        }
        scope(|scope| {
            // Four threads: a sender and a receiver at each end.
            let sent = [&client, &server].map(|stream| scope.spawn(move || send(stream)));
            let received = [&server, &client].map(|stream| scope.spawn(move || receive(stream)));
            let [sent, received] =
                [sent, received].map(|both| both.map(|one| one.join().expect("a sum")));
            assert_eq!(sent, received);
        });
    }
}

#[test]
fn each_half_of_a_connection_is_closed_separately() {
    let two = two(Mode::Rc);
    let listener = two.second.tcp_listen(at(2, 80), 4).expect("the port is free");
    let server = spawn(move || {
        let (mut stream, _) = listener.accept().expect("a connection");
        let mut request = String::new();
        stream.read_to_string(&mut request).expect("all of it arrives");
        stream.write_all(request.to_uppercase().as_bytes()).expect("the sending half is open");
    });
    let mut stream = connect(&two.first, at(2, 80));
    stream.write_all(b"request").expect("there is space");
    stream.shutdown(Shutdown::Write).expect("it is open");
    let late = stream.write(b"more").expect_err("the sending half is closed");
    assert_eq!(late.kind(), ErrorKind::BrokenPipe);
    let mut response = String::new();
    stream.read_to_string(&mut response).expect("the receiving half is open");
    assert_eq!(response, "REQUEST");
    assert_eq!(stream.read(&mut [0; 9]).expect("it was ended"), 0);
    server.join().expect("it does not panic");
}

#[test]
fn calls_return_the_error_kinds_of_the_standard_library() {
    let two = two(Mode::Ud);
    let socket = two.first.udp_bind(at(1, 0)).expect("a port is free");
    socket.set_nonblocking(true).unwrap();
    let would_wait = socket.recv_from(&mut [0; 9]).expect_err("nothing was sent");
    assert_eq!(would_wait.kind(), ErrorKind::WouldBlock);
    socket.set_nonblocking(false).unwrap();
    socket.set_read_timeout(Some(SHORT_TIMEOUT)).unwrap();
    let late = socket.recv_from(&mut [0; 9]).expect_err("nothing was sent");
    assert_eq!(late.kind(), ErrorKind::TimedOut);
    let refused = two.first.tcp_connect(at(2, 81)).err().expect("no listener");
    assert_eq!(refused.kind(), ErrorKind::ConnectionRefused);
    let soon = two.first.tcp_connect_timeout(at(8, 80), SHORT_TIMEOUT);
    assert_eq!(soon.err().expect("no such host").kind(), ErrorKind::TimedOut);
    let absent = two.first.tcp_connect(at(9, 80)).err().expect("no such host");
    assert_eq!(absent.kind(), ErrorKind::HostUnreachable);

    socket.connect(at(2, 10)).expect("it is an address");
    socket.set_read_timeout(Some(TIMEOUT)).unwrap();
    socket.send(b"request").expect("there is space");
    let refused = socket.recv_from(&mut [0; 9]).expect_err("no such host");
    assert_eq!(refused.kind(), ErrorKind::ConnectionRefused);
    let too_long = socket.send(&vec![0; 65_508]).expect_err("no packet is so long");
    assert!(too_long.to_string().contains("65507 bytes"), "{too_long}");
    let no_port = socket.send_to(b"", at(2, 0)).expect_err("port 0 is invalid");
    assert_eq!(no_port.kind(), ErrorKind::InvalidInput);
    let foreign = two.first.udp_bind(at(7, 0)).err().expect("the address is not local");
    assert_eq!(foreign.kind(), ErrorKind::AddrNotAvailable);
    let taken = two.first.udp_bind(socket.local_addr().expect("it is bound")).err();
    assert_eq!(taken.expect("it is taken").kind(), ErrorKind::AddrInUse);

    let listener = two.second.tcp_listen(at(2, 80), 4).expect("the port is free");
    listener.set_nonblocking(true).unwrap();
    assert!(!listener.is_ready());
    let error = listener.accept().err().expect("no connection");
    assert_eq!(error.kind(), ErrorKind::WouldBlock);
    listener.set_nonblocking(false).unwrap();
    listener.set_timeout(Some(SHORT_TIMEOUT)).unwrap();
    let error = listener.accept().err().expect("no connection");
    assert_eq!(error.kind(), ErrorKind::TimedOut);
    let mut stream = connect(&two.first, at(2, 80));
    let (accepted, _) = listener.accept().expect("a connection");
    stream.set_nonblocking(true).unwrap();
    let nothing = stream.read(&mut [0; 9]).expect_err("nothing was sent");
    assert_eq!((nothing.kind(), stream.is_readable()), (ErrorKind::WouldBlock, false));
    let mut written = 0;
    let full = loop {
        match stream.write(&[7; 16_384]) {
            Ok(count) => written += count,
            Err(error) => break error,
        }
    };
    assert_eq!(full.kind(), ErrorKind::WouldBlock);
    // The ring is full; then the buffers of both stacks fill.
    stream.set_nonblocking(false).unwrap();
    stream.set_write_timeout(Some(SHORT_TIMEOUT)).unwrap();
    let unread = loop {
        match (stream.write(&[7; 16_384]), stream.flush()) {
            (Ok(count), _) => written += count,
            (Err(full), Err(unread)) => break [full, unread],
            (Err(_), Ok(())) => {}
        }
        assert!(written < 1 << 24, "no buffer is that large");
    };
    assert!(unread.iter().all(|error| error.kind() == ErrorKind::TimedOut), "{unread:?}");
    stream.set_write_timeout(Some(TIMEOUT)).unwrap();
    scope(|scope| {
        scope.spawn(|| {
            let mut all = vec![0; written];
            (&mut &accepted).read_exact(&mut all).expect("all of it arrives");
        });
        stream.flush().expect("the peer reads");
    });
}

#[test]
fn an_interface_can_be_queried_by_any_thread() {
    let Two { first, second: _second, fabric: _fabric } = two(Mode::Rc);
    let asked = spawn(move || {
        assert!(first.addresses().expect("it is served").contains(&at(1, 0).ip()));
        let took = (0..100).find_map(|_| first.ping(at(2, 0).ip(), 64, TIMEOUT).ok());
        assert!(took.is_some(), "it answers");
        let absent = first.ping(at(9, 0).ip(), 64, TIMEOUT).expect_err("no such host");
        assert_eq!(absent.kind(), ErrorKind::HostUnreachable);
        first.neighbors().expect("it is served")
    });
    let neighbors = asked.join().expect("it does not panic");
    assert!(neighbors.iter().any(|one| one.addresses.contains(&at(2, 0).ip())));
}

#[test]
fn groups_batches_and_loopback_work() {
    let group: IpAddr = "239.1.2.3".parse().expect("an address");
    let two = two(Mode::Ud);
    let (sender, is_over) =
        (two.first.udp_bind(at(1, 6000)).expect("free"), AtomicBool::new(false));
    let listener = two.second.udp_bind(SocketAddr::from(([0, 0, 0, 0], 5000))).expect("free");
    listener.set_read_timeout(Some(TIMEOUT)).unwrap();
    listener.join(group).expect("it is a group");
    assert!(listener.join(at(1, 0).ip()).is_err(), "it is no group");
    scope(|scope| {
        scope.spawn(|| {
            let (mut first, mut second) = ([0; 9], [0; 9]);
            let mut slots = [&mut first, &mut second]
                .map(|buffer| UdpSlot { buffer: &mut buffer[..], received: None });
            let mut received = listener.recv_batch(&mut slots).expect("a datagram");
            let one = slots[0].received.expect("a datagram");
            assert_eq!((one.from, one.to, one.len), (at(1, 6000), group, 3));
            while received < 2 {
                received += listener.recv_batch(&mut slots[..1]).expect("the second datagram");
            }
            is_over.store(true, Ordering::Relaxed);
            listener.leave(group);
        });
        // Datagrams are lost until the join is complete.
        let to = SocketAddr::new(group, 5000);
        while !is_over.load(Ordering::Relaxed) {
            assert_eq!(sender.send_batch(&[(b"one", to), (b"two", to)]).expect("space"), 2);
            std::thread::park_timeout(SHORT_TIMEOUT);
        }
    });
    sender.set_read_timeout(Some(TIMEOUT)).unwrap();
    sender.send_to(b"self", at(1, 6000)).expect("there is space");
    let mut buffer = [0; 9];
    sender.recv_from(&mut buffer).expect("it loops back");
    assert_eq!(&buffer[..4], b"self");
}

#[test]
fn a_shutdown_ends_a_read_of_another_thread() {
    let two = two(Mode::Rc);
    let server = two.second.tcp_listen(at(2, 80), 4).expect("the port is free");
    for how in [Shutdown::Read, Shutdown::Both] {
        let stream = two.first.tcp_connect(at(2, 80)).expect("there is a listener");
        let (mut peer, _) = server.accept().expect("a connection");
        peer.write_all(b"abc").expect("it is open");
        scope(|scope| {
            let reading = scope.spawn(|| {
                let mut received = Vec::new();
                (&stream).read_to_end(&mut received).map(|_| received)
            });
            // All of it has been read, so the thread waits, or will.
            peer.flush().expect("it is acknowledged");
            while stream.is_readable() {
                std::thread::yield_now();
            }
            stream.shutdown(how).expect("it is open");
            assert_eq!(reading.join().expect("no panic").expect("the end"), b"abc", "{how:?}");
        });
        // What is sent goes on after the receiving half.
        let is_sent = (&stream).write_all(b"def").is_ok();
        assert_eq!(is_sent, how == Shutdown::Read);
    }
}

#[test]
fn many_threads_share_an_interface_a_socket_and_a_listener() {
    const THREADS: usize = 6;
    const ROUNDS: u32 = 100;
    let two = two(Mode::Rc);
    let listener = Arc::new(two.second.tcp_listen(at(2, 80), 64).expect("the port is free"));
    let echo = two.second.udp_bind(at(2, 7)).expect("the port is free");
    let (served, is_over) = (AtomicUsize::new(0), AtomicBool::new(false));
    // Resolves the path once.
    assert!((0..100).any(|_| two.first.ping(at(2, 0).ip(), 64, TIMEOUT).is_ok()));
    scope(|scope| {
        for _ in 0..2 {
            // Two threads accept from one listener, and two receive from one socket.
            scope.spawn(|| {
                listener.set_timeout(Some(TIMEOUT)).unwrap();
                while served.fetch_add(1, Ordering::Relaxed) < THREADS {
                    let (mut stream, _) = listener.accept().expect("a connection");
                    scope.spawn(move || {
                        let mut buffer = [0; 64];
                        while let Ok(len @ 1..) = stream.read(&mut buffer) {
                            stream.write_all(&buffer[..len]).expect("the peer reads");
                        }
                    });
                }
            });
            scope.spawn(|| {
                echo.set_read_timeout(Some(SHORT_TIMEOUT)).unwrap();
                let mut buffer = [0; 64];
                while !is_over.load(Ordering::Relaxed) {
                    if let Ok((len, from)) = echo.recv_from(&mut buffer) {
                        let _ = echo.send_to(&buffer[..len], from);
                    }
                }
            });
        }
        let clients: [_; THREADS] = std::array::from_fn(|_| {
            scope.spawn(|| {
                let mut stream = connect(&two.first, at(2, 80));
                let socket = two.first.udp_bind(at(1, 0)).expect("a port is free");
                socket.set_read_timeout(Some(Duration::from_millis(500))).unwrap();
                stream.set_read_timeout(Some(TIMEOUT)).unwrap();
                for round in 0..ROUNDS {
                    let (question, mut answer) = (round.to_ne_bytes(), [0; 4]);
                    stream.write_all(&question).expect("it is open");
                    stream.read_exact(&mut answer).expect("it is answered");
                    assert_eq!(answer, question);
                    let is_answered = (0..100).any(|_| {
                        socket.send_to(&question, at(2, 7)).expect("there is space");
                        while let Ok((4, _)) = socket.recv_from(&mut answer) {
                            if answer == question {
                                return true;
                            }
                        }
                        false
                    });
                    assert!(is_answered, "round {round}");
                }
            })
        });
        let outcomes = clients.map(std::thread::ScopedJoinHandle::join);
        is_over.store(true, Ordering::Relaxed);
        assert!(outcomes.iter().all(Result::is_ok));
    });
}

#[test]
fn each_of_many_sockets_receives_its_datagrams() {
    const SOCKETS: u16 = 400;
    let two = two(Mode::Ud);
    let bind = |number| two.second.udp_bind(at(2, 10_000 + number)).expect("the port is free");
    let sockets: Vec<_> = (0..SOCKETS).map(bind).collect();
    let sender = two.first.udp_bind(at(1, 0)).expect("a port is free");
    let mut waits: Vec<_> = (0..SOCKETS).collect();
    // Datagrams are lost until the path is resolved.
    for _ in 0..100 {
        for number in &waits {
            let to = at(2, 10_000 + number);
            sender.send_to(&number.to_ne_bytes(), to).expect("there is space in time");
        }
        waits.retain(|number| {
            let (socket, mut bytes) = (&sockets[usize::from(*number)], [0; 2]);
            socket.set_read_timeout(Some(SHORT_TIMEOUT)).unwrap();
            let is_received = socket.recv_from(&mut bytes).is_ok();
            assert!(!is_received || bytes == number.to_ne_bytes(), "of another socket");
            !is_received
        });
        if waits.is_empty() {
            return;
        }
    }
    panic!("{} have received nothing", waits.len());
}

#[test]
fn a_backlog_is_accepted_in_order_without_loss() {
    const CONNECTIONS: u8 = 40;
    let two = two(Mode::Rc);
    let listener = two.second.tcp_listen(at(2, 80), 64).expect("the port is free");
    // All are open and have sent data before the first is accepted.
    let streams: Vec<_> = (0..CONNECTIONS)
        .map(|number| {
            let mut stream = connect(&two.first, at(2, 80));
            stream.write_all(&[number]).expect("it is open");
            stream.flush().expect("it is acknowledged");
            stream
        })
        .collect();
    listener.set_timeout(Some(TIMEOUT)).unwrap();
    for (number, stream) in (0..).zip(&streams) {
        let (mut accepted, peer) = listener.accept().expect("it waits");
        assert_eq!(peer, stream.local_addr().expect("an end"));
        let mut byte = [0];
        accepted.read_exact(&mut byte).expect("it was sent");
        assert_eq!(byte, [number]);
    }
    assert!(!listener.is_ready());
}

#[test]
fn invalid_configurations_and_the_socket_limit_are_errors() {
    let setup = Node::open("soft:")
        .expect("a device")
        .interface("ib0")
        .timeout(TIMEOUT)
        .address("10.0.0.1/24");
    let nowhere = Config { cores: vec![99_999], ..Config::default() };
    let refusal = setup.clone().up_pinned(nowhere).err().expect("there is no such core");
    assert!(matches!(refusal, UpError::Core(99_999)), "{refusal}");
    let none = Node::open("soft:/nowhere/fabric@host1").expect("a device").interface("ib0");
    let refusal = none.up_pinned(Config::default()).err().expect("it is no group").to_string();
    assert!(refusal.contains("pollux fabric --socket /nowhere/fabric"), "{refusal}");
    let few = Config { sockets_max: 2, ..Config::default() };
    let interface = setup.up_pinned(few).expect("it comes up");
    let sockets = [0, 0].map(|_| interface.udp_bind(at(1, 0)).expect("a port is free"));
    let full = interface.udp_bind(at(1, 0)).err().expect("the limit is two");
    assert_eq!(full.kind(), ErrorKind::QuotaExceeded);
    drop(sockets);
    assert!((0..100).any(|_| interface.udp_bind(at(1, 0)).is_ok()));
}

#[test]
fn keepalive_is_set_and_read_back() {
    let two = two(Mode::Ud);
    let listener = two.second.tcp_listen(at(2, 80), 1).expect("the port is free");
    let stream = connect(&two.first, at(2, 80));
    let _accepted = listener.accept().expect("it listens");
    let get = || stream.keepalive().expect("it is open");
    assert_eq!(get(), StackConfig::default().tcp.keepalive);
    for set in [None, Some(Duration::from_secs(60)), Some(KEEPALIVE_MIN)] {
        stream.set_keepalive(set).expect("it is open");
        assert_eq!(get(), set);
    }
    let short = stream.set_keepalive(Some(KEEPALIVE_MIN - Duration::from_nanos(1)));
    assert_eq!(short.map_err(|error| error.kind()), Err(ErrorKind::InvalidInput));
}
