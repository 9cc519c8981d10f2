//! Sockets of two applications that exchange data.

use pollux::stack::{KEEPALIVE_MIN, StackConfig, TcpConfig};
use pollux::{Interface, Mode, Node, TcpStream, UdpSlot, UpError};
use pollux_node::fabric::Embedded;
use std::io::{ErrorKind, Read, Write};
use std::net::{IpAddr, Shutdown, SocketAddr};
use std::sync::Barrier;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

/// The timeout of every call; none takes a tenth of it.
const TIMEOUT: Duration = Duration::from_secs(30);
/// The receive timeout of servers, which check for the end of the test then.
const POLL: Duration = Duration::from_millis(20);
const MODES: [Mode; 3] = [Mode::Ud, Mode::Rc, Mode::Auto];

pub fn at(host: u8, port: u16) -> SocketAddr {
    SocketAddr::from(([10, 0, 0, host], port))
}

/// Runs two applications, each at a host of a fabric. Both interfaces stay up until both have
/// ended, since an interface that goes down answers no longer.
pub fn two(mode: Mode, first: impl FnOnce(&Interface), second: impl FnOnce(&Interface) + Send) {
    let fabric = Embedded::start("single:2").expect("it starts");
    let ports = ["host1", "host2"].map(|host| Node::open(&fabric.port(host)).expect("a device"));
    let both_are_up = Barrier::new(2);
    let open = |host: usize| {
        let setup = ports[host].interface("ib0").mode(mode).timeout(TIMEOUT);
        let setup = setup.address(&format!("10.0.0.{}/24", host + 1));
        setup.address(&format!("fd00::{}/64", host + 1)).up().expect("it comes up")
    };
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let interface = open(1);
            both_are_up.wait();
            second(&interface);
        });
        let interface = open(0);
        both_are_up.wait();
        first(&interface);
    });
}

/// Connects to a listener that the peer opens meanwhile: before that, it refuses.
pub fn connect(interface: &Interface, to: SocketAddr) -> TcpStream {
    let connected = (0..1000).find_map(|_| interface.tcp_connect(to).ok());
    connected.expect("a listener")
}

/// Ends the server, also when a test fails.
struct End<'a>(&'a AtomicBool);

impl Drop for End<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

#[test]
fn datagrams_are_echoed() {
    for mode in MODES {
        let is_over = AtomicBool::new(false);
        let client = |interface: &Interface| {
            let _end = End(&is_over);
            let socket = interface.udp_bind(at(1, 0)).expect("a port is free");
            socket.set_read_timeout(Some(Duration::from_millis(200))).unwrap();
            let mut buffer = vec![0; 65_536];
            let longest = if mode == Mode::Ud { 2044 } else { 65_520 };
            for len in [0, 1, 64, 2044 - 28, longest - 28] {
                let payload = vec![len as u8; len];
                // The first datagram may precede the server, and a long one the connection. A late
                // echo is one of two.
                let is_answered = (0..100).any(|_| {
                    let is_sent = socket.send_to(&payload, at(2, 7)).is_ok();
                    while is_sent && let Ok((received, from)) = socket.recv_from(&mut buffer) {
                        if (&buffer[..received], from) == (&payload[..], at(2, 7)) {
                            return true;
                        }
                    }
                    false
                });
                assert!(is_answered, "{len} bytes");
            }
        };
        let server = |interface: &Interface| {
            let socket = interface.udp_bind(at(2, 7)).expect("the port is free");
            socket.set_read_timeout(Some(POLL)).unwrap();
            let mut buffer = vec![0; 65_536];
            while !is_over.load(Ordering::Relaxed) {
                if let Ok((received, from)) = socket.recv_from(&mut buffer) {
                    // Fails while the connection is being set up; the client retries.
                    let _ = socket.send_to(&buffer[..received], from);
                }
            }
        };
        two(mode, client, server);
    }
}

/// The byte at an offset of a stream.
pub const fn byte(at: usize) -> u8 {
    ((at as u64).wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 56) as u8
}

#[test]
fn a_stream_is_echoed() {
    const BYTES: usize = 4_000_000;
    for mode in MODES {
        for is_v6 in [false, true] {
            let there = match is_v6 {
                false => at(2, 80),
                true => SocketAddr::from(([0xfd00, 0, 0, 0, 0, 0, 0, 2], 80)),
            };
            let server = |interface: &Interface| {
                let listener = interface.tcp_listen(there, 4).expect("the port is free");
                listener.set_timeout(Some(TIMEOUT)).unwrap();
                let (mut stream, peer) = listener.accept().expect("a connection");
                assert_eq!(stream.peer_addr().expect("it is open"), peer);
                stream.set_read_timeout(Some(TIMEOUT)).unwrap();
                let mut all = Vec::new();
                stream.read_to_end(&mut all).expect("all of it arrives");
                assert_eq!(all.len(), BYTES);
                stream.write_all(&all).expect("there is space in time");
                stream.shutdown(Shutdown::Write).expect("it is open");
                assert_eq!(stream.read(&mut [0; 9]).expect("it was ended"), 0);
            };
            let client = |interface: &Interface| {
                let mut stream = connect(interface, there);
                stream.set_read_timeout(Some(TIMEOUT)).unwrap();
                let all: Vec<u8> = (0..BYTES).map(byte).collect();
                stream.write_all(&all).expect("there is space in time");
                stream.shutdown(Shutdown::Write).expect("it is open");
                let mut back = Vec::new();
                stream.read_to_end(&mut back).expect("all of it arrives");
                assert!(back == all, "{} wrong bytes", back.len());
            };
            two(mode, client, server);
        }
    }
}

#[test]
fn a_stream_may_be_empty() {
    let client = |interface: &Interface| {
        let mut stream = interface.tcp_begin(at(2, 80)).expect("a port is free");
        stream.shutdown(Shutdown::Write).expect("it opens first");
        let mut response = String::new();
        stream.read_to_string(&mut response).expect("it arrives");
        assert_eq!(response, "no request");
    };
    let server = |interface: &Interface| {
        let listener = interface.tcp_listen(at(2, 80), 1).expect("the port is free");
        listener.set_timeout(Some(TIMEOUT)).unwrap();
        let (mut stream, _) = listener.accept().expect("a connection");
        assert_eq!(stream.read(&mut [0]).expect("it ends"), 0);
        stream.write_all(b"no request").expect("there is space");
    };
    two(Mode::Rc, client, server);
}

#[test]
fn calls_return_the_error_kinds_of_the_standard_library() {
    let is_over = AtomicBool::new(false);
    let silent = |interface: &Interface| {
        let socket = interface.udp_bind(at(2, 9)).expect("the port is free");
        socket.set_read_timeout(Some(POLL)).unwrap();
        while !is_over.load(Ordering::Relaxed) {
            let error = socket.recv_from(&mut [0; 9]).expect_err("nothing was sent");
            assert_eq!(error.kind(), ErrorKind::TimedOut);
        }
    };
    let client = |interface: &Interface| {
        let _end = End(&is_over);
        let socket = interface.udp_bind(at(1, 0)).expect("a port is free");
        socket.set_nonblocking(true).unwrap();
        let would_wait = socket.recv_from(&mut [0; 9]).expect_err("nothing was sent");
        assert_eq!(would_wait.kind(), ErrorKind::WouldBlock);
        socket.set_nonblocking(false).unwrap();
        socket.set_read_timeout(Some(Duration::from_millis(1))).unwrap();
        let late = socket.recv_from(&mut [0; 9]).expect_err("nothing was sent");
        assert_eq!(late.kind(), ErrorKind::TimedOut);

        let refused = interface.tcp_connect(at(2, 81)).err().expect("no listener");
        assert_eq!(refused.kind(), ErrorKind::ConnectionRefused);
        let soon = interface.tcp_connect_timeout(at(8, 80), Duration::from_millis(1));
        assert_eq!(soon.err().expect("no such host").kind(), ErrorKind::TimedOut);
        let absent = interface.tcp_connect(at(9, 80)).err().expect("no such host");
        assert_eq!(absent.kind(), ErrorKind::HostUnreachable);
        for no_route in ["127.0.0.1:80", "192.0.2.1:80"] {
            let error = interface.tcp_connect(no_route).err().expect("there is no route");
            assert_eq!(error.kind(), ErrorKind::HostUnreachable, "{no_route}: {error}");
        }
        socket.connect(at(2, 10)).expect("it is an address");
        socket.set_read_timeout(Some(TIMEOUT)).unwrap();
        socket.send(b"request").expect("there is space");
        let refused = socket.recv_from(&mut [0; 9]).expect_err("no such host");
        assert_eq!(refused.kind(), ErrorKind::ConnectionRefused);
        let foreign = interface.udp_bind(at(7, 0)).err().expect("the address is not local");
        assert_eq!(foreign.kind(), ErrorKind::AddrNotAvailable);
    };
    two(Mode::Ud, client, silent);
}

#[test]
fn groups_batches_and_loopback_work() {
    let group: IpAddr = "239.1.2.3".parse().expect("an address");
    let is_over = AtomicBool::new(false);
    let sender = |interface: &Interface| {
        let _end = End(&is_over);
        let socket = interface.udp_bind(at(1, 6000)).expect("the port is free");
        socket.set_read_timeout(Some(Duration::from_millis(200))).unwrap();
        let mut buffer = [0; 9];
        // Datagrams are lost until the join is complete.
        let to = SocketAddr::new(group, 5000);
        let is_received = (0..100).any(|_| {
            assert_eq!(socket.send_batch(&[(b"one", to), (b"two", to)]).expect("space"), 2);
            socket.recv_from(&mut buffer).is_ok()
        });
        assert!(is_received, "the group has no member");
        socket.set_read_timeout(Some(TIMEOUT)).unwrap();
        socket.send_to(b"self", at(1, 6000)).expect("there is space");
        while &buffer[..4] != b"self" {
            socket.recv_from(&mut buffer).expect("it loops back");
        }
    };
    let member = |interface: &Interface| {
        let socket = interface.udp_bind(SocketAddr::from(([0, 0, 0, 0], 5000))).expect("free");
        socket.set_read_timeout(Some(TIMEOUT)).unwrap();
        socket.join(group).expect("it is a group");
        let (mut first, mut second) = ([0; 9], [0; 9]);
        let mut slots = [&mut first, &mut second]
            .map(|buffer| UdpSlot { buffer: &mut buffer[..], received: None });
        let mut received = socket.recv_batch(&mut slots).expect("a datagram");
        let one = slots[0].received.expect("a datagram");
        assert_eq!((one.from, one.to, one.len), (at(1, 6000), group, 3));
        while received < 2 {
            received += socket.recv_batch(&mut slots[..1]).expect("the second datagram");
        }
        socket.set_read_timeout(Some(POLL)).unwrap();
        while !is_over.load(Ordering::Relaxed) {
            socket.send_to(b"reply", one.from).expect("there is space");
            let _ = socket.recv_from(&mut [0; 9]);
        }
        socket.leave(group);
    };
    two(Mode::Ud, sender, member);
}

#[test]
fn a_shut_receiving_half_ends_after_what_has_arrived() {
    let client = |interface: &Interface| {
        let mut stream = connect(interface, at(2, 80));
        stream.set_read_timeout(Some(TIMEOUT)).unwrap();
        let mut first = [0; 1];
        stream.read_exact(&mut first).expect("it arrives");
        stream.shutdown(Shutdown::Read).expect("it is open");
        let mut rest = Vec::new();
        stream.read_to_end(&mut rest).expect("the end");
        assert_eq!((&first[..], &rest[..]), (&b"a"[..], &b"bc"[..]));
        stream.write_all(b"x").expect("the other half is open");
        stream.flush().expect("it is acknowledged");
    };
    let server = |interface: &Interface| {
        let listener = interface.tcp_listen(at(2, 80), 4).expect("the port is free");
        listener.set_timeout(Some(TIMEOUT)).unwrap();
        let (mut stream, _) = listener.accept().expect("a connection");
        stream.set_read_timeout(Some(TIMEOUT)).unwrap();
        stream.write_all(b"abc").expect("it is open");
        stream.read_exact(&mut [0; 1]).expect("it arrives");
    };
    two(Mode::Rc, client, server);
}

#[test]
fn limits_below_their_least_are_refused() {
    let short = TcpConfig { keepalive: Some(Duration::from_millis(999)), ..TcpConfig::default() };
    let limits = StackConfig { tcp: short, ..StackConfig::default() };
    let ib0 = Node::open("soft:").expect("a device").interface("ib0").address("10.0.0.1/24");
    let error = ib0.limits(limits).up().expect_err("it is too short");
    assert!(error.to_string().contains("at least 1 s"), "{error}");
}

/// In fragments where neither a connection nor a group carries them whole.
#[test]
fn the_longest_datagrams_reach_hosts_and_groups() {
    let group = SocketAddr::from(([239, 1, 2, 3], 5000));
    for mode in MODES {
        let sender = |interface: &Interface| {
            let socket = interface.udp_bind(at(1, 6000)).expect("the port is free");
            let sizes = [2016, 2017, 20_000, 65_507];
            let mut acknowledged = [0; 1];
            socket.set_read_timeout(Some(POLL)).unwrap();
            // Datagrams are lost until the receiver is there, and has joined.
            let send_until_heard = |len: usize, to: SocketAddr| {
                let is_heard = (0..1000).any(|_| {
                    socket.send_to(&vec![len as u8; len], to).expect("there is space");
                    socket.recv(&mut [0; 1]).is_ok()
                });
                assert!(is_heard, "{len} bytes to {to}, {mode:?}");
            };
            for (len, to) in sizes.into_iter().flat_map(|len| [(len, at(2, 5000)), (len, group)]) {
                send_until_heard(len, to);
            }
            socket.set_read_timeout(Some(TIMEOUT)).unwrap();
            socket.send_to(&vec![9; 10_000], at(1, 6000)).expect("there is space");
            while acknowledged != [9] {
                socket.recv(&mut acknowledged).expect("it loops back");
            }
            let error = socket.send_to(&vec![7; 65_508], group).expect_err("too long");
            let found = (error.kind(), error.to_string().contains("send at most 65507 bytes"));
            assert_eq!(found, (ErrorKind::InvalidInput, true), "{error}");
            socket.send_to(b"", at(2, 5000)).expect("there is space");
        };
        let receiver = |interface: &Interface| {
            let socket = interface.udp_bind("0.0.0.0:5000").expect("the port is free");
            socket.join(group.ip()).expect("it is a group");
            socket.set_read_timeout(Some(TIMEOUT)).unwrap();
            let mut buffer = vec![0; 65_536];
            loop {
                let (len, from) = socket.recv_from(&mut buffer).expect("a datagram");
                if len == 0 {
                    break;
                }
                assert!(buffer[..len].iter().all(|byte| *byte == len as u8), "{len} bytes");
                socket.send_to(b"!", from).expect("there is space");
            }
        };
        two(mode, sender, receiver);
    }
}

#[test]
fn datagrams_sent_before_an_interface_is_dropped_arrive() {
    for mode in MODES {
        // The neighbor is not resolved yet.
        let sender = |interface: &Interface| {
            let socket = interface.udp_bind(at(1, 0)).expect("a port is free");
            for number in 0..10 {
                socket.send_to(&[number; 64], at(2, 9)).expect("there is space");
            }
        };
        let receiver = |interface: &Interface| {
            let socket = interface.udp_bind(at(2, 9)).expect("the port is free");
            socket.set_read_timeout(Some(TIMEOUT)).unwrap();
            for number in 0..10 {
                let mut datagram = [0; 64];
                socket.recv_from(&mut datagram).expect("all arrive");
                assert_eq!(datagram, [number; 64], "{mode:?}");
            }
        };
        two(mode, sender, receiver);
    }
}

#[test]
#[expect(clippy::disallowed_methods, reason = "it polls two interfaces within a timeout")]
fn long_datagrams_reach_a_peer_that_returns_in_connected_mode() {
    let fabric = Embedded::start("single:3").expect("it starts");
    let open = |host: &str, address: &str, mode| {
        let setup = Node::open(&fabric.port(host))
            .expect("a device")
            .interface("ib0")
            .address(address)
            .mode(mode);
        setup.timeout(TIMEOUT).up().expect("it comes up")
    };
    let interface = open("host1", "10.0.0.1/24", Mode::Rc);
    let socket = interface.udp_bind(at(1, 7)).expect("the port is free");
    let (long, end) = (vec![7; 20_000], Instant::now() + TIMEOUT);
    for (host, mode) in [("host2", Mode::Ud), ("host3", Mode::Rc)] {
        let peer = open(host, "10.0.0.2/24", mode);
        let sink = peer.udp_bind(at(2, 7)).expect("the port is free");
        while !sink.is_readable() {
            assert!(Instant::now() < end, "no datagram in time");
            // Some are lost until the peer, and its MTU, is known.
            socket.send_to(&long, at(2, 7)).expect("there is space");
            // Sending serves the other interface only.
            peer.step();
        }
        let mut datagram = vec![0; 20_001];
        assert_eq!(sink.recv_from(&mut datagram).expect("it arrived").0, long.len());
    }
}

#[test]
fn addresses_are_resolved_as_in_the_standard_library() {
    let client = |interface: &Interface| {
        let stream = (0..1000).find_map(|_| interface.tcp_connect("10.0.0.2:80").ok());
        let mut response = String::new();
        stream.expect("a listener").read_to_string(&mut response).expect("it arrives");
        assert_eq!(response, "hello");
        let refusal = interface.tcp_connect("10.0.0.2").err().expect("there is no port");
        assert_eq!(refusal.kind(), ErrorKind::InvalidInput);
    };
    let server = |interface: &Interface| {
        let listener = interface.tcp_listen(("10.0.0.2", 80), 1).expect("the port is free");
        listener.set_timeout(Some(TIMEOUT)).unwrap();
        let stream = listener.incoming().next().expect("the iterator is endless");
        stream.expect("a connection").write_all(b"hello").expect("there is space");
    };
    two(Mode::Rc, client, server);
}

#[test]
fn a_configuration_file_configures_an_interface() {
    let fabric = Embedded::start("single:1").expect("it starts");
    let folder = fabric.path().parent().expect("a folder").to_owned();
    let file = folder.join("node.toml");
    let open = |text: &str| {
        std::fs::write(&file, text).expect("the folder is there");
        Node::open(&file.display().to_string())
    };
    let port = fabric.port("host1");
    let text = format!("[interface.ib7]\ndevice = {port:?}\naddress = ['10.0.0.7/24']\nmtu = 9000");
    let node = open(&text).expect("it is a configuration");
    let error = node.interface("ib0").up().expect_err("no such interface");
    assert!(error.to_string().contains("no interface \"ib0\"; it has ib7"), "{error}");
    // Limits of sockets do not raise the MTU of the file.
    let limited = node.interface("ib7").limits(StackConfig::default());
    assert!(format!("{limited:?}").matches("mtu: 9000").count() >= 2, "{limited:?}");
    let interface = node.interface("ib7").timeout(TIMEOUT).up().expect("it comes up");
    interface.udp_bind("10.0.0.7:1").expect("its own address");
    let error = open(&text.replace("mtu", "mto")).expect_err("an unknown key").to_string();
    assert!(error.contains("node.toml") && error.contains("mtu"), "{error}");
}

#[test]
fn errors_of_invalid_setups_give_advice() {
    let refusal = |setup: pollux::Setup| {
        let error = setup.up().expect_err("it is invalid");
        assert_eq!(format!("{error:?}"), error.to_string(), "as `main` prints it");
        error.to_string()
    };
    let nowhere = Node::open("soft:/nowhere/fabric@host1").expect("a device").interface("ib0");
    assert!(refusal(nowhere.clone()).contains("pollux fabric --socket /nowhere/fabric"));
    assert!(refusal(nowhere.clone().address("10.0.0.1")).contains("write 10.0.0.1/24"));
    for (address, why) in [("224.0.0.1/4", "multicast"), ("10.0.0.0/24", "the network")] {
        let text = refusal(nowhere.clone().address(address));
        assert!(text.contains(why) && text.contains("write a host's address"), "{text}");
    }
    assert!(matches!(nowhere.address("10.0.0.1/33").up(), Err(UpError::Address(_))));
}

#[test]
fn keepalive_is_set_and_read_back() {
    let client = |interface: &Interface| {
        let stream = connect(interface, at(2, 80));
        let get = || stream.keepalive().expect("it is open");
        assert_eq!(get(), StackConfig::default().tcp.keepalive);
        for set in [None, Some(Duration::from_secs(60)), Some(KEEPALIVE_MIN)] {
            stream.set_keepalive(set).expect("it is open");
            assert_eq!(get(), set);
        }
        let short = stream.set_keepalive(Some(KEEPALIVE_MIN - Duration::from_nanos(1)));
        assert_eq!(short.map_err(|error| error.kind()), Err(ErrorKind::InvalidInput));
    };
    let server = |interface: &Interface| {
        let listener = interface.tcp_listen(at(2, 80), 1).expect("the port is free");
        let (mut stream, _) = listener.accept().expect("it listens");
        assert_eq!(stream.read(&mut [0]).expect("it is open"), 0);
    };
    two(Mode::Ud, client, server);
}

/// The peer, which does not read, learns of the lost data by the reset.
#[test]
fn a_dropped_interface_resets_connections_with_unsent_data() {
    let fabric = Embedded::start("single:2").expect("it starts");
    let open = |host: usize| {
        let node = Node::open(&fabric.port(&format!("host{host}"))).expect("a device");
        let setup = node.interface("ib0").timeout(TIMEOUT);
        setup.address(&format!("10.0.0.{host}/24")).up().expect("it comes up")
    };
    let is_dropped = Barrier::new(2);
    let has_written = Barrier::new(2);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let interface = open(1);
            let mut stream = connect(&interface, at(2, 80));
            let limits = StackConfig::default().tcp;
            let more = limits.send_bytes + limits.receive_bytes / 2;
            stream.write_all(&vec![7; more]).expect("there is space");
            has_written.wait();
            drop(stream);
            drop(interface);
            is_dropped.wait();
        });
        let interface = open(2);
        let listener = interface.tcp_listen(at(2, 80), 1).expect("the port is free");
        let (mut stream, _) = listener.accept().expect("it listens");
        stream.set_nonblocking(true).unwrap();
        // Its window closes, since nothing is read; the interface still answers.
        let writer = scope.spawn(|| has_written.wait());
        while !writer.is_finished() {
            interface.step();
        }
        let dropping = scope.spawn(|| is_dropped.wait());
        while !dropping.is_finished() {
            interface.step();
        }
        stream.set_nonblocking(false).unwrap();
        stream.set_read_timeout(Some(TIMEOUT)).unwrap();
        let mut buffer = vec![0; 100_000];
        let end = loop {
            match stream.read(&mut buffer) {
                Ok(0) => break None,
                Ok(_) => {}
                Err(error) => break Some(error.kind()),
            }
        };
        assert_eq!(end, Some(ErrorKind::ConnectionReset));
    });
}
