//! What sockets do, as inline ones do it, and between threads.

use crate::{TIMEOUT, Two, at, byte, two, two_with};
use pollux::pinned::{Config, Idle, Interface, TcpStream};
use pollux::stack::StackConfig;
use pollux::{Mode, Node, UdpSlot, UpError};
use std::io::{ErrorKind, Read, Write};
use std::net::{IpAddr, Shutdown, SocketAddr};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::thread::{scope, spawn};
use std::time::Duration;

const BRIEFLY: Duration = Duration::from_millis(20);

/// A connection, however long its way takes to be made.
pub fn connect(interface: &Interface, to: SocketAddr) -> TcpStream {
    let connected = (0..100).find_map(|_| interface.tcp_connect(to).ok());
    connected.expect("somebody listens")
}

#[test]
fn datagrams_are_echoed_in_all_modes() {
    for mode in [Mode::Ud, Mode::Rc, Mode::Auto] {
        let two = two(mode);
        let echo = two.second.udp_bind(at(2, 7)).expect("the port is free");
        let is_over = AtomicBool::new(false);
        scope(|scope| {
            scope.spawn(|| {
                echo.set_read_timeout(Some(BRIEFLY));
                let mut buffer = vec![0; 65_536];
                while !is_over.load(Ordering::Relaxed) {
                    if let Ok((came, from)) = echo.recv_from(&mut buffer) {
                        let _ = echo.send_to(&buffer[..came], from);
                    }
                }
            });
            let socket = two.first.udp_bind(at(1, 0)).expect("a port is free");
            assert_eq!(socket.local_addr().expect("it is bound").ip(), at(1, 0).ip());
            socket.set_read_timeout(Some(Duration::from_millis(200)));
            let mut buffer = vec![0; 65_536];
            let longest = if mode == Mode::Ud { 2044 } else { 65_520 };
            for len in [0, 1, 64, 2044 - 28, longest - 28] {
                let payload: Vec<u8> = (len..2 * len).map(byte).collect();
                let is_answered = (0..100).any(|_| {
                    let is_sent = socket.send_to(&payload, at(2, 7)).is_ok();
                    while is_sent && let Ok((came, from)) = socket.recv_from(&mut buffer) {
                        if (&buffer[..came], from) == (&payload[..], at(2, 7)) {
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

/// What was sent, as somebody who knows its order and content would say it.
fn sum(bytes: &[u8], mut sum: u64) -> u64 {
    for byte in bytes {
        sum = (sum ^ u64::from(*byte)).wrapping_mul(0x0100_0000_01b3);
    }
    sum
}

#[test]
fn eight_megabytes_go_each_way_at_once() {
    const BYTES: usize = 8_000_000;
    let send = |stream: &TcpStream| {
        let (mut sent, mut all) = (0, 0);
        while sent < BYTES {
            let len = (1 + sent % 70_001).min(BYTES - sent);
            let part: Vec<u8> = (sent..sent + len).map(byte).collect();
            (&mut &*stream).write_all(&part).expect("there is room in time");
            all = sum(&part, all);
            sent += len;
        }
        (&mut &*stream).flush().expect("all of it is acknowledged");
        stream.shutdown(Shutdown::Write).expect("it is open");
        all
    };
    let receive = |stream: &TcpStream| {
        let (mut came, mut all, mut buffer) = (0, 0, vec![0; 50_000]);
        loop {
            match (&mut &*stream).read(&mut buffer).expect("it comes whole") {
                0 => break,
                len => {
                    all = sum(&buffer[..len], all);
                    came += len;
                }
            }
        }
        assert_eq!(came, BYTES);
        all
    };
    for (mode, idle) in
        [(Mode::Ud, Idle::Adaptive), (Mode::Rc, Idle::Adaptive), (Mode::Rc, Idle::Poll)]
    {
        let two = two_with(mode, &Config { idle, ..Config::default() });
        let there = SocketAddr::from(([0xfd00, 0, 0, 0, 0, 0, 0, 2], 80));
        let listener = two.second.tcp_listen(there, 4).expect("the port is free");
        let ours = connect(&two.first, there);
        let (theirs, peer) = listener.accept().expect("somebody came");
        assert_eq!(peer, ours.local_addr().expect("an end"));
        for stream in [&ours, &theirs] {
            stream.set_read_timeout(Some(TIMEOUT));
            stream.set_write_timeout(Some(TIMEOUT));
        }
        scope(|scope| {
            // Both ends of both in threads of their own: four share two connections' ends.
            let sent = [&ours, &theirs].map(|stream| scope.spawn(move || send(stream)));
            let came = [&theirs, &ours].map(|stream| scope.spawn(move || receive(stream)));
            let [sent, came] = [sent, came].map(|both| both.map(|one| one.join().expect("a sum")));
            assert_eq!(sent, came);
        });
    }
}

#[test]
fn half_a_connection_is_ended_by_itself() {
    let two = two(Mode::Rc);
    let listener = two.second.tcp_listen(at(2, 80), 4).expect("the port is free");
    let server = spawn(move || {
        let (mut stream, _) = listener.accept().expect("somebody comes");
        let mut request = String::new();
        stream.read_to_string(&mut request).expect("it comes whole");
        stream.write_all(request.to_uppercase().as_bytes()).expect("our half is open");
    });
    let mut stream = connect(&two.first, at(2, 80));
    stream.write_all(b"whole").expect("there is room");
    stream.shutdown(Shutdown::Write).expect("it is open");
    let late = stream.write(b"more").expect_err("our half is shut");
    assert_eq!(late.kind(), ErrorKind::BrokenPipe);
    let mut response = String::new();
    stream.read_to_string(&mut response).expect("the other half is open");
    assert_eq!(response, "WHOLE");
    assert_eq!(stream.read(&mut [0; 9]).expect("it was ended"), 0);
    server.join().expect("it does not panic");
}

#[test]
fn calls_that_would_wait_say_so_and_refusals_are_told() {
    let two = two(Mode::Ud);
    let socket = two.first.udp_bind(at(1, 0)).expect("a port is free");
    socket.set_nonblocking(true);
    let would_wait = socket.recv_from(&mut [0; 9]).expect_err("nothing was sent");
    assert_eq!(would_wait.kind(), ErrorKind::WouldBlock);
    socket.set_read_timeout(Some(BRIEFLY));
    let late = socket.recv_from(&mut [0; 9]).expect_err("nothing was sent");
    assert_eq!(late.kind(), ErrorKind::TimedOut);
    let refused = two.first.tcp_connect(at(2, 81)).err().expect("nobody listens");
    assert_eq!(refused.kind(), ErrorKind::ConnectionRefused);
    let soon = two.first.tcp_connect_timeout(at(8, 80), BRIEFLY);
    assert_eq!(soon.err().expect("nobody is there").kind(), ErrorKind::TimedOut);
    let nobody = two.first.tcp_connect(at(9, 80)).err().expect("nobody is there");
    assert_eq!(nobody.kind(), ErrorKind::HostUnreachable);

    socket.connect(at(2, 10)).expect("it is an address");
    socket.set_read_timeout(Some(TIMEOUT));
    socket.send(b"anybody?").expect("there is room");
    let refused = socket.recv_from(&mut [0; 9]).expect_err("nobody is there");
    assert_eq!(refused.kind(), ErrorKind::ConnectionRefused);
    let too_long = socket.send(&[0; 2044]).expect_err("no datagram is so long");
    assert!(too_long.to_string().contains("2016 bytes"), "{too_long}");
    let nowhere = socket.send_to(b"", at(2, 0)).expect_err("there is no port 0");
    assert_eq!(nowhere.kind(), ErrorKind::InvalidInput);
    let not_ours = two.first.udp_bind(at(7, 0)).err().expect("it is not our address");
    assert_eq!(not_ours.kind(), ErrorKind::AddrNotAvailable);
    let taken = two.first.udp_bind(socket.local_addr().expect("it is bound")).err();
    assert_eq!(taken.expect("it is taken").kind(), ErrorKind::AddrInUse);

    let listener = two.second.tcp_listen(at(2, 80), 4).expect("the port is free");
    listener.set_nonblocking(true);
    assert!(!listener.is_ready());
    let nobody = listener.accept().err().expect("nobody comes");
    assert_eq!(nobody.kind(), ErrorKind::WouldBlock);
    listener.set_timeout(Some(BRIEFLY));
    let nobody = listener.accept().err().expect("nobody comes");
    assert_eq!(nobody.kind(), ErrorKind::TimedOut);
    let mut stream = connect(&two.first, at(2, 80));
    let (accepted, _) = listener.accept().expect("somebody came");
    stream.set_nonblocking(true);
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
    // The ring is full; the windows are when all that waits has no room.
    stream.set_write_timeout(Some(BRIEFLY));
    let unread = loop {
        match (stream.write(&[7; 16_384]), stream.flush()) {
            (Ok(count), _) => written += count,
            (Err(full), Err(unread)) => break [full, unread],
            (Err(_), Ok(())) => {}
        }
        assert!(written < 1 << 24, "nobody has room for all that");
    };
    assert!(unread.iter().all(|error| error.kind() == ErrorKind::TimedOut), "{unread:?}");
    stream.set_write_timeout(Some(TIMEOUT));
    scope(|scope| {
        scope.spawn(|| {
            let mut all = vec![0; written];
            (&mut &accepted).read_exact(&mut all).expect("all of it comes");
        });
        stream.flush().expect("the peer reads");
    });
}

#[test]
fn an_interface_is_asked_from_any_thread() {
    let Two { first, second: _second, fabric: _fabric } = two(Mode::Rc);
    let asked = spawn(move || {
        assert!(first.addresses().expect("it is served").contains(&at(1, 0).ip()));
        let took = (0..100).find_map(|_| first.ping(at(2, 0).ip(), 64, TIMEOUT).ok());
        assert!(took.is_some(), "it answers");
        let nobody = first.ping(at(9, 0).ip(), 64, TIMEOUT).expect_err("nobody is there");
        assert_eq!(nobody.kind(), ErrorKind::HostUnreachable);
        first.neighbors().expect("it is served")
    });
    let neighbors = asked.join().expect("it does not panic");
    assert!(neighbors.iter().any(|one| one.addresses.contains(&at(2, 0).ip())));
}

#[test]
fn groups_and_batches() {
    let group: IpAddr = "239.1.2.3".parse().expect("an address");
    let two = two(Mode::Ud);
    let (speaker, is_over) =
        (two.first.udp_bind(at(1, 6000)).expect("free"), AtomicBool::new(false));
    let listener = two.second.udp_bind(SocketAddr::from(([0, 0, 0, 0], 5000))).expect("free");
    listener.set_read_timeout(Some(TIMEOUT));
    listener.join(group).expect("it is one");
    assert!(listener.join(at(1, 0).ip()).is_err(), "it is none");
    scope(|scope| {
        scope.spawn(|| {
            let (mut first, mut second) = ([0; 9], [0; 9]);
            let mut slots = [&mut first, &mut second]
                .map(|buffer| UdpSlot { buffer: &mut buffer[..], received: None });
            let mut came = listener.recv_batch(&mut slots).expect("somebody speaks");
            let one = slots[0].received.expect("it came");
            assert_eq!((one.from, one.to, one.len), (at(1, 6000), group, 3));
            while came < 2 {
                came += listener.recv_batch(&mut slots[..1]).expect("there were two");
            }
            is_over.store(true, Ordering::Relaxed);
            listener.leave(group);
        });
        // Joining takes its time.
        let to = SocketAddr::new(group, 5000);
        while !is_over.load(Ordering::Relaxed) {
            assert_eq!(speaker.send_batch(&[(b"one", to), (b"two", to)]).expect("room"), 2);
            std::thread::park_timeout(BRIEFLY);
        }
    });
    speaker.set_read_timeout(Some(TIMEOUT));
    speaker.send_to(b"self", at(1, 6000)).expect("there is room");
    let mut buffer = [0; 9];
    speaker.recv_from(&mut buffer).expect("it comes back");
    assert_eq!(&buffer[..4], b"self");
}

#[test]
fn many_threads_share_an_interface_a_socket_and_a_listener() {
    const THREADS: usize = 6;
    const ROUNDS: u32 = 100;
    let two = two(Mode::Rc);
    let listener = Arc::new(two.second.tcp_listen(at(2, 80), 64).expect("the port is free"));
    let echo = two.second.udp_bind(at(2, 7)).expect("the port is free");
    let (served, is_over) = (AtomicUsize::new(0), AtomicBool::new(false));
    // The way is made once, and not by all at the same time.
    assert!((0..100).any(|_| two.first.ping(at(2, 0).ip(), 64, TIMEOUT).is_ok()));
    scope(|scope| {
        for _ in 0..2 {
            // Two accept at the same listener, two receive at the same socket.
            scope.spawn(|| {
                listener.set_timeout(Some(TIMEOUT));
                while served.fetch_add(1, Ordering::Relaxed) < THREADS {
                    let (mut stream, _) = listener.accept().expect("somebody comes");
                    scope.spawn(move || {
                        let mut buffer = [0; 64];
                        while let Ok(len @ 1..) = stream.read(&mut buffer) {
                            stream.write_all(&buffer[..len]).expect("the peer reads");
                        }
                    });
                }
            });
            scope.spawn(|| {
                echo.set_read_timeout(Some(BRIEFLY));
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
                socket.set_read_timeout(Some(Duration::from_millis(500)));
                stream.set_read_timeout(Some(TIMEOUT));
                for round in 0..ROUNDS {
                    let (question, mut answer) = (round.to_ne_bytes(), [0; 4]);
                    stream.write_all(&question).expect("it is open");
                    stream.read_exact(&mut answer).expect("it is answered");
                    assert_eq!(answer, question);
                    let is_answered = (0..100).any(|_| {
                        socket.send_to(&question, at(2, 7)).expect("there is room");
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
fn each_of_many_sockets_hears_what_it_is_sent() {
    const SOCKETS: u16 = 400;
    let two = two(Mode::Ud);
    let bind = |number| two.second.udp_bind(at(2, 10_000 + number)).expect("the port is free");
    let sockets: Vec<_> = (0..SOCKETS).map(bind).collect();
    let speaker = two.first.udp_bind(at(1, 0)).expect("a port is free");
    let mut waits: Vec<_> = (0..SOCKETS).collect();
    // Datagrams may be lost, at first all of them.
    for _ in 0..100 {
        for number in &waits {
            let to = at(2, 10_000 + number);
            speaker.send_to(&number.to_ne_bytes(), to).expect("there is room in time");
        }
        waits.retain(|number| {
            let (socket, mut said) = (&sockets[usize::from(*number)], [0; 2]);
            socket.set_read_timeout(Some(BRIEFLY));
            let is_heard = socket.recv_from(&mut said).is_ok();
            assert!(!is_heard || said == number.to_ne_bytes(), "another's");
            !is_heard
        });
        if waits.is_empty() {
            return;
        }
    }
    panic!("{} have heard nothing", waits.len());
}

#[test]
fn a_backlog_is_accepted_in_order_and_loses_nobody() {
    const CONNECTIONS: u8 = 40;
    let two = two(Mode::Rc);
    let listener = two.second.tcp_listen(at(2, 80), 64).expect("the port is free");
    // All are open, and have said something, before anybody accepts one.
    let streams: Vec<_> = (0..CONNECTIONS)
        .map(|number| {
            let mut stream = connect(&two.first, at(2, 80));
            stream.write_all(&[number]).expect("it is open");
            stream.flush().expect("it is acknowledged");
            stream
        })
        .collect();
    listener.set_timeout(Some(TIMEOUT));
    for (number, stream) in (0..).zip(&streams) {
        let (mut accepted, peer) = listener.accept().expect("it waits");
        assert_eq!(peer, stream.local_addr().expect("an end"));
        let mut said = [0];
        accepted.read_exact(&mut said).expect("it was said");
        assert_eq!(said, [number]);
    }
    assert!(!listener.is_ready());
}

#[test]
fn what_no_worker_can_be_is_said() {
    let setup = Node::open("soft:")
        .expect("a device")
        .interface("ib0")
        .timeout(TIMEOUT)
        .address("10.0.0.1/24");
    let nowhere = Config { cores: vec![99_999], ..Config::default() };
    let refusal = setup.clone().up_pinned(nowhere).err().expect("there is no such core");
    assert!(matches!(refusal, UpError::Core(99_999)), "{refusal}");
    let none = Node::open("soft:/nowhere/fabric@host1").expect("a device").interface("ib0");
    let refusal = none.up_pinned(Config::default()).err().expect("it is none").to_string();
    assert!(refusal.contains("pollux fabric --socket /nowhere/fabric"), "{refusal}");
    let few = Config { sockets_max: 2, ..Config::default() };
    let interface = setup.up_pinned(few).expect("it comes up");
    let sockets = [0, 0].map(|_| interface.udp_bind(at(1, 0)).expect("a port is free"));
    let full = interface.udp_bind(at(1, 0)).err().expect("two are all");
    assert_eq!(full.kind(), ErrorKind::QuotaExceeded);
    drop(sockets);
    assert!((0..100).any(|_| interface.udp_bind(at(1, 0)).is_ok()));
}

#[test]
fn a_connection_has_the_keepalive_that_it_was_given() {
    let two = two(Mode::Ud);
    let listener = two.second.tcp_listen(at(2, 80), 1).expect("the port is free");
    let stream = connect(&two.first, at(2, 80));
    let _accepted = listener.accept().expect("it listens");
    let get = || stream.keepalive().expect("it is open");
    assert_eq!(get(), StackConfig::default().tcp.keepalive);
    for (set, is) in [(None, None), (Some(60), Some(60)), (Some(1), Some(10))] {
        stream.set_keepalive(set.map(Duration::from_secs)).expect("it is open");
        assert_eq!(get(), is.map(Duration::from_secs));
    }
}
