//! Interfaces with several workers: the distribution of sockets, and hand-offs of packets.

use crate::ends::two_with_failing_device;
use crate::sockets::connect;
use crate::{TIMEOUT, Two, at, byte};
use pollux::pinned::{Config, Interface, TcpListener, WorkerRow};
use pollux::{Mode, Node};
use pollux_node::fabric::Embedded;
use std::io::{ErrorKind, Read, Write};
use std::net::IpAddr;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread::scope;
use std::time::Duration;

fn workers(workers: u8) -> Config {
    Config { workers, ..Config::default() }
}

/// A host without an IPv6 address, which is up without duplicate address detection.
fn up(fabric: &Embedded, host: u8, mode: Mode, config: Config) -> Interface {
    let node = Node::open(&fabric.port(&format!("host{host}"))).expect("a device");
    let setup = node.interface("ib0").mode(mode).timeout(TIMEOUT);
    setup.address(&format!("10.0.0.{host}/24")).up_pinned(config).expect("it comes up")
}

/// Two hosts with a number of workers each.
fn two_of(mode: Mode, [first, second]: [u8; 2]) -> Two {
    let fabric = Embedded::start("single:2").expect("it starts");
    let (first, second) = scope(|scope| {
        let second = scope.spawn(|| up(&fabric, 2, mode, workers(second)));
        (up(&fabric, 1, mode, workers(first)), second.join().expect("it comes up"))
    });
    Two { first, second, fabric }
}

fn rows(interface: &Interface) -> Vec<WorkerRow> {
    interface.workers().expect("it is served")
}

/// Packets of an interface that were handed off between workers, and those dropped.
fn handed(interface: &Interface) -> (u64, u64) {
    let rows = rows(interface);
    (rows.iter().map(|row| row.handed.sent).sum(), rows.iter().map(|row| row.handed.dropped).sum())
}

/// Echoes a number of connections, each in a thread.
fn echo(listener: &TcpListener, connections: usize) {
    listener.set_timeout(Some(TIMEOUT)).unwrap();
    scope(|scope| {
        for _ in 0..connections {
            let (mut stream, _) = listener.accept().expect("a connection");
            scope.spawn(move || {
                stream.set_read_timeout(Some(TIMEOUT)).unwrap();
                let mut bytes = [0; 4096];
                while let Ok(len @ 1..) = stream.read(&mut bytes) {
                    stream.write_all(&bytes[..len]).expect("there is space");
                }
            });
        }
    });
}

/// Sends data by a connection, and checks the echo.
fn check_echo(interface: &Interface, port: u16, bytes: usize) {
    let mut stream = connect(interface, at(2, port));
    stream.set_read_timeout(Some(TIMEOUT)).unwrap();
    let sent: Vec<u8> = (0..bytes).map(byte).collect();
    let mut echoed = vec![0; bytes];
    for _ in 0..3 {
        stream.write_all(&sent).expect("there is space");
        stream.read_exact(&mut echoed).expect("it is echoed");
        assert_eq!(echoed, sent);
    }
}

#[test]
fn every_worker_has_some_of_many_connections() {
    const CONNECTIONS: usize = 24;
    for (mode, counts) in [(Mode::Rc, [3, 2]), (Mode::Ud, [1, 2])] {
        let two = two_of(mode, counts);
        let listener = two.second.tcp_listen(at(2, 7), CONNECTIONS).expect("the port is free");
        let is_seen = AtomicUsize::new(0);
        scope(|scope| {
            scope.spawn(|| echo(&listener, CONNECTIONS));
            let ask = || {
                let connect = |_| two.first.tcp_connect(at(2, 7)).expect("a listener");
                let mut streams: Vec<_> = (0..CONNECTIONS / 4).map(connect).collect();
                is_seen.fetch_add(1, Ordering::Relaxed);
                while is_seen.load(Ordering::Relaxed) < 5 {
                    std::thread::yield_now();
                }
                for stream in &mut streams {
                    stream.set_read_timeout(Some(TIMEOUT)).unwrap();
                    let mut echoed = [0; 3000];
                    stream.write_all(&[7; 3000]).expect("there is space");
                    stream.read_exact(&mut echoed).expect("it is echoed");
                    assert_eq!(echoed, [7; 3000]);
                }
            };
            (0..4).for_each(|_| drop(scope.spawn(ask)));
            while is_seen.load(Ordering::Relaxed) < 4 {
                std::thread::yield_now();
            }
            let (first, second) = (rows(&two.first), rows(&two.second));
            is_seen.fetch_add(1, Ordering::Relaxed);
            assert_eq!([first.len(), second.len()], counts.map(usize::from));
            // Outgoing connections are assigned in turn, incoming ones by flow steering.
            for row in &first {
                assert_eq!(row.sockets, CONNECTIONS / first.len(), "{first:?}");
            }
            assert!(second.iter().all(|row| row.sockets > 0 && row.listeners == 1), "{second:?}");
        });
    }
}

#[test]
fn workers_of_two_interfaces_exchange_packets_without_hand_offs() {
    let two = two_of(Mode::Rc, [2, 2]);
    let listener = two.second.tcp_listen(at(2, 7), 16).expect("the port is free");
    scope(|scope| {
        scope.spawn(|| echo(&listener, 8));
        // Until the connections are up, packets are UD messages, which worker 0 receives.
        (0..8).for_each(|_| check_echo(&two.first, 7, 20_000));
    });
    let before = [handed(&two.first), handed(&two.second)];
    scope(|scope| {
        scope.spawn(|| echo(&listener, 4));
        (0..4).for_each(|_| check_echo(&two.first, 7, 20_000));
    });
    assert_eq!([handed(&two.first), handed(&two.second)], before);
}

#[test]
fn packets_at_another_worker_are_handed_off() {
    // As with Linux: one connection, so one worker receives all packets.
    let two = two_of(Mode::Rc, [1, 3]);
    let listener = two.second.tcp_listen(at(2, 7), 16).expect("the port is free");
    scope(|scope| {
        // Each has a worker by its ports, which are drawn: with a few, all might have the same.
        scope.spawn(|| echo(&listener, 32));
        (0..32).for_each(|_| check_echo(&two.first, 7, 20_000));
    });
    // The last packets may be in a ring, and workers are queried in turn.
    let (sent, dropped, received) = (0..1_000)
        .map(|_| {
            let (sent, dropped) = handed(&two.second);
            let received = rows(&two.second).iter().map(|row| row.handed.received).sum::<u64>();
            (sent, dropped, received)
        })
        .find(|(sent, _, received)| sent == received)
        .expect("the workers become idle");
    assert!(sent > 8, "{sent} sent, {received} received");
    assert_eq!((dropped, handed(&two.first)), (0, (0, 0)));
}

#[test]
fn datagrams_reach_the_worker_of_their_port() {
    let two = two_of(Mode::Ud, [2, 2]);
    let bind = |port| {
        let socket = two.second.udp_bind(at(2, port)).expect("the port is free");
        socket.set_read_timeout(Some(TIMEOUT)).unwrap();
        socket
    };
    let sockets: Vec<_> = (5000..5016).map(bind).collect();
    let taken = two.second.udp_bind(at(2, 5003)).err().expect("the port is in use");
    assert_eq!(taken.kind(), ErrorKind::AddrInUse);
    assert!(rows(&two.second).iter().all(|row| row.sockets > 2), "{:?}", rows(&two.second));
    let senders: Vec<_> =
        (0..4).map(|_| two.first.udp_bind(at(1, 0)).expect("one is free")).collect();
    assert!(rows(&two.first).iter().all(|row| row.sockets == 2));
    for (nth, socket) in sockets.iter().enumerate() {
        let (to, from) = (socket.local_addr().expect("it is bound"), &senders[nth % senders.len()]);
        let from_at = from.local_addr().expect("it is bound");
        from.set_read_timeout(Some(TIMEOUT)).unwrap();
        let mut datagram = [0; 9];
        from.send_to(&[nth as u8], to).expect("there is space");
        assert_eq!(socket.recv_from(&mut datagram).expect("it arrives"), (1, from_at));
        socket.send_to(&datagram[..1], from_at).expect("there is space");
        assert_eq!(from.recv_from(&mut datagram).expect("it arrives"), (1, to));
        assert_eq!(datagram[0], nth as u8);
    }
    assert!(handed(&two.second).0 > 0, "worker 0 receives all, and has only some ports");
    // A port is free again when its socket is dropped, at any worker.
    drop(sockets);
    (5000..5016).for_each(|port| drop(bind(port)));
}

/// Fragments have no flow: a packet is put together before it is handed to the worker of its port.
#[test]
fn datagrams_in_fragments_reach_the_worker_of_their_port() {
    for mode in [Mode::Ud, Mode::Rc] {
        let two = two_of(mode, [3, 2]);
        let server = two.second.udp_bind(at(2, 5000)).expect("the port is free");
        server.set_read_timeout(Some(TIMEOUT)).unwrap();
        // One for each worker, and more.
        let clients: Vec<_> = (0..9).map(|_| two.first.udp_bind(at(1, 0)).expect("free")).collect();
        let mut buffer = vec![0; 65_536];
        for (client, number) in clients.iter().zip(1..) {
            client.set_read_timeout(Some(TIMEOUT)).unwrap();
            let datagram = vec![number; 65_507 - usize::from(number)];
            client.send_to(&datagram, at(2, 5000)).expect("there is space");
            let (len, from) = server.recv_from(&mut buffer).expect("it arrives");
            assert!(buffer[..len] == datagram, "{len} bytes of {number}, {mode:?}");
            server.send_to(&buffer[..len], from).expect("there is space");
            let len = client.recv(&mut buffer).expect("it comes back");
            assert!(buffer[..len] == datagram, "{len} bytes of {number}, {mode:?}");
        }
    }
}

#[test]
fn any_worker_can_have_members_of_a_group() {
    let two = two_of(Mode::Rc, [2, 2]);
    let group: IpAddr = "239.1.2.3".parse().expect("a group");
    let members: Vec<_> = (5000..5008)
        .map(|port| {
            let member = two.second.udp_bind(at(2, port)).expect("the port is free");
            member.set_read_timeout(Some(Duration::from_millis(20))).unwrap();
            member.join(group).expect("it is a group");
            member
        })
        .collect();
    assert!(rows(&two.second).iter().all(|row| row.sockets > 0));
    let sender = two.first.udp_bind(at(1, 0)).expect("a port is free");
    for member in &members {
        let to = (group, member.local_addr().expect("it is bound").port());
        // Datagrams are lost until the join is complete.
        let is_received = (0..500).any(|_| {
            sender.send_to(b"all", to).expect("there is space");
            member.recv_from(&mut [0; 9]).is_ok()
        });
        assert!(is_received, "{to:?}");
    }
    // The interface stays in the group as long as it has a member.
    let (last, others) = members.split_last().expect("there are some");
    others.iter().for_each(|member| member.leave(group));
    // Longer than it takes to leave a group.
    last.set_read_timeout(Some(Duration::from_millis(300))).unwrap();
    while last.recv_from(&mut [0; 9]).is_ok() {}
    let to = (group, last.local_addr().expect("it is bound").port());
    let received = (0..20).filter(|_| {
        sender.send_to(b"all", to).expect("there is space");
        last.recv_from(&mut [0; 9]).is_ok()
    });
    assert!(received.count() > 10);
}

#[test]
fn workers_of_one_interface_exchange_packets() {
    let two = two_of(Mode::Rc, [1, 3]);
    let listener = two.second.tcp_listen(at(2, 7), 16).expect("the port is free");
    scope(|scope| {
        scope.spawn(|| echo(&listener, 6));
        (0..6).for_each(|_| check_echo(&two.second, 7, 20_000));
    });
    let socket = two.second.udp_bind(at(2, 5000)).expect("the port is free");
    socket.set_read_timeout(Some(TIMEOUT)).unwrap();
    for _ in 0..3 {
        let other = two.second.udp_bind(at(2, 0)).expect("a port is free");
        other.send_to(b"here", at(2, 5000)).expect("there is space");
        let (len, from) = socket.recv_from(&mut [0; 9]).expect("it arrives");
        assert_eq!((len, from), (4, other.local_addr().expect("it is bound")));
    }
    let took = two.second.ping(at(1, 0).ip(), 64, TIMEOUT).expect("it answers");
    assert!(took < TIMEOUT);
}

#[test]
fn any_worker_refuses_packets_to_closed_ports() {
    let two = two_of(Mode::Rc, [2, 2]);
    for port in 5000..5008 {
        let socket = two.first.udp_bind(at(1, port)).expect("the port is free");
        socket.connect(at(2, port)).expect("it is an address");
        socket.set_read_timeout(Some(Duration::from_millis(50))).unwrap();
        let refused = (0..200).any(|_| {
            let sent = socket.send(b"request");
            let received = sent.and_then(|_| socket.recv_from(&mut [0; 9]).map(drop));
            received.is_err_and(|why| why.kind() == ErrorKind::ConnectionRefused)
        });
        assert!(refused, "port {port}");
        let why = two.first.tcp_connect(at(2, port)).err().expect("no listener");
        assert_eq!(why.kind(), ErrorKind::ConnectionRefused);
    }
}

#[test]
fn listeners_are_opened_and_closed_at_all_workers() {
    let two = two_of(Mode::Rc, [2, 2]);
    scope(|scope| {
        for thread in 0..4 {
            let two = &two;
            scope.spawn(move || {
                let port = 100 + thread;
                for _ in 0..5 {
                    let listener = two.second.tcp_listen(at(2, port), 8).expect("it is free");
                    let taken = two.second.tcp_listen(at(2, port), 8).err().expect("it is in use");
                    assert_eq!(taken.kind(), ErrorKind::AddrInUse);
                    listener.set_timeout(Some(TIMEOUT)).unwrap();
                    let mut streams = [(); 3].map(|()| connect(&two.first, at(2, port)));
                    let (mut peer, _) = listener.accept().expect("a connection");
                    let accepted = peer.peer_addr().expect("it is open");
                    peer.write_all(b"bye").expect("there is space");
                    drop((peer, listener));
                    for stream in &mut streams {
                        stream.set_read_timeout(Some(TIMEOUT)).unwrap();
                        let mut bytes = Vec::new();
                        let read = stream.read_to_end(&mut bytes);
                        match stream.local_addr().expect("an end") == accepted {
                            true => {
                                assert_eq!((read.expect("an end"), &bytes[..]), (3, &b"bye"[..]));
                            }
                            false => assert!(read.is_err(), "it was not accepted"),
                        }
                    }
                }
            });
        }
    });
    for row in rows(&two.second) {
        assert_eq!((row.listeners, row.sockets), (0, 0));
    }
}

#[test]
fn data_written_before_an_interface_is_dropped_arrive() {
    const BYTES: usize = 100_000;
    let Two { first, second, fabric: _fabric } = two_of(Mode::Rc, [3, 2]);
    let listener = second.tcp_listen(at(2, 80), 16).expect("the port is free");
    listener.set_timeout(Some(TIMEOUT)).unwrap();
    let all: Vec<u8> = (0..BYTES).map(byte).collect();
    let streams = [(); 6].map(|()| connect(&first, at(2, 80)));
    let mut peers = [(); 6].map(|()| listener.accept().expect("a connection").0);
    scope(|scope| {
        for peer in &mut peers {
            scope.spawn(|| {
                let mut received = Vec::new();
                peer.read_to_end(&mut received).expect("all of it arrives");
                assert!(received == all);
            });
        }
        for mut stream in streams {
            stream.write_all(&all).expect("there is space in time");
        }
        drop(first);
    });
}

#[test]
fn datagrams_to_an_unresolved_neighbor_leave_before_the_interface_ends() {
    let fabric = Embedded::start("single:2").expect("it starts");
    let first = up(&fabric, 1, Mode::Ud, workers(3));
    // An inline host, which is served in calls on its sockets.
    let node = Node::open(&fabric.port("host2")).expect("a device");
    let second = node.interface("ib0").address("10.0.0.2/24").up().expect("it comes up");
    let receivers =
        (5000..5012).map(|port| second.udp_bind(at(2, port)).expect("the port is free"));
    let receivers: Vec<_> = receivers.collect();
    for port in 5000..5012 {
        let socket = first.udp_bind(at(1, port)).expect("the port is free");
        socket.send_to(b"last bytes", at(2, port)).expect("there is space");
    }
    scope(|scope| {
        scope.spawn(|| drop(first));
        std::thread::park_timeout(Duration::from_millis(200));
        for receiver in receivers {
            receiver.set_read_timeout(Some(TIMEOUT)).unwrap();
            assert_eq!(receiver.recv_from(&mut [0; 20]).expect("it arrives").0, 10);
        }
    });
}

#[test]
fn the_socket_limit_is_of_all_workers_together() {
    let fabric = Embedded::start("single:1").expect("it starts");
    let host = up(&fabric, 1, Mode::Ud, Config { sockets_max: 5, ..workers(2) });
    let bind = || host.udp_bind(at(1, 0)).ok();
    let mut sockets: Vec<_> = std::iter::from_fn(bind).take(9).collect();
    assert_eq!(sockets.len(), 5);
    sockets.pop();
    assert!((0..100).any(|_| bind().is_some()));
}

#[test]
fn all_workers_end_when_the_device_of_one_fails() {
    for worker in [0, 1] {
        let (Two { first, second: _second, fabric: _fabric }, fail) =
            two_with_failing_device(&workers(2), worker);
        let listener = first.tcp_listen(at(1, 80), 4).expect("the port is free");
        let sockets = [0, 0].map(|_| first.udp_bind(at(1, 0)).expect("a port is free"));
        assert!(rows(&first).iter().all(|row| row.sockets == 1));
        scope(|scope| {
            let mut calls = vec![scope.spawn(|| listener.accept().map(drop))];
            for socket in &sockets {
                calls.push(scope.spawn(|| socket.recv_from(&mut [0; 9]).map(drop)));
            }
            fail();
            for call in calls {
                let ended = call.join().expect("it does not panic").expect_err("no device");
                assert!(ended.to_string().contains("has no device any more"), "{ended}");
            }
        });
        assert!(first.udp_bind(at(1, 0)).is_err() && first.tcp_listen(at(1, 81), 4).is_err());
    }
}

#[test]
fn too_many_workers_are_refused() {
    let setup = Node::open("soft:").expect("a device").interface("ib0");
    let refusal = setup.up_pinned(workers(9)).err().expect("they are too many").to_string();
    assert!(refusal.contains("9 workers are too many"), "{refusal}");
}
