//! Interfaces with several workers: who has which socket, and what goes between them.

use crate::ends::two_of_which_one_is_lost;
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

/// A host that is up at once, since nobody asks whether others have its address of IPv6.
fn up(fabric: &Embedded, host: u8, mode: Mode, config: Config) -> Interface {
    let node = Node::open(&fabric.port(&format!("host{host}"))).expect("a device");
    let setup = node.interface("ib0").mode(mode).timeout(TIMEOUT);
    setup.address(&format!("10.0.0.{host}/24")).up_pinned(config).expect("it comes up")
}

/// Two hosts with so many workers each.
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

/// Packets that came to one worker of an interface and were another's: given, and lost.
fn handed(interface: &Interface) -> (u64, u64) {
    let rows = rows(interface);
    (rows.iter().map(|row| row.handed.sent).sum(), rows.iter().map(|row| row.handed.dropped).sum())
}

/// Answers as many connections as come, each by its thread.
fn echo(listener: &TcpListener, connections: usize) {
    listener.set_timeout(Some(TIMEOUT));
    scope(|scope| {
        for _ in 0..connections {
            let (mut stream, _) = listener.accept().expect("somebody comes");
            scope.spawn(move || {
                stream.set_read_timeout(Some(TIMEOUT));
                let mut said = [0; 4096];
                while let Ok(len @ 1..) = stream.read(&mut said) {
                    stream.write_all(&said[..len]).expect("there is room");
                }
            });
        }
    });
}

/// Says something by a connection, and hears it again.
fn ask(interface: &Interface, port: u16, bytes: usize) {
    let mut stream = connect(interface, at(2, port));
    stream.set_read_timeout(Some(TIMEOUT));
    let said: Vec<u8> = (0..bytes).map(byte).collect();
    let mut heard = vec![0; bytes];
    for _ in 0..3 {
        stream.write_all(&said).expect("there is room");
        stream.read_exact(&mut heard).expect("it is echoed");
        assert_eq!(heard, said);
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
                let connect = |_| two.first.tcp_connect(at(2, 7)).expect("somebody listens");
                let mut streams: Vec<_> = (0..CONNECTIONS / 4).map(connect).collect();
                is_seen.fetch_add(1, Ordering::Relaxed);
                while is_seen.load(Ordering::Relaxed) < 5 {
                    std::thread::yield_now();
                }
                for stream in &mut streams {
                    stream.set_read_timeout(Some(TIMEOUT));
                    let mut heard = [0; 3000];
                    stream.write_all(&[7; 3000]).expect("there is room");
                    stream.read_exact(&mut heard).expect("it is echoed");
                    assert_eq!(heard, [7; 3000]);
                }
            };
            (0..4).for_each(|_| drop(scope.spawn(ask)));
            while is_seen.load(Ordering::Relaxed) < 4 {
                std::thread::yield_now();
            }
            let (first, second) = (rows(&two.first), rows(&two.second));
            is_seen.fetch_add(1, Ordering::Relaxed);
            assert_eq!([first.len(), second.len()], counts.map(usize::from));
            // Those who ask have them in turn; those who are asked have what they are dealt.
            for row in &first {
                assert_eq!(row.sockets, CONNECTIONS / first.len(), "{first:?}");
            }
            assert!(second.iter().all(|row| row.sockets > 0 && row.listeners == 1), "{second:?}");
        });
    }
}

#[test]
fn workers_of_two_interfaces_speak_with_their_likes() {
    let two = two_of(Mode::Rc, [2, 2]);
    let listener = two.second.tcp_listen(at(2, 7), 16).expect("the port is free");
    scope(|scope| {
        scope.spawn(|| echo(&listener, 8));
        // Until each has its connection, what it sends goes by datagrams, which worker 0 hears.
        (0..8).for_each(|_| ask(&two.first, 7, 20_000));
    });
    let before = [handed(&two.first), handed(&two.second)];
    scope(|scope| {
        scope.spawn(|| echo(&listener, 4));
        (0..4).for_each(|_| ask(&two.first, 7, 20_000));
    });
    assert_eq!([handed(&two.first), handed(&two.second)], before);
}

#[test]
fn what_comes_to_another_worker_is_handed_over() {
    // As with Linux: one connection, and so one worker who gets all.
    let two = two_of(Mode::Rc, [1, 3]);
    let listener = two.second.tcp_listen(at(2, 7), 16).expect("the port is free");
    scope(|scope| {
        scope.spawn(|| echo(&listener, 8));
        (0..8).for_each(|_| ask(&two.first, 7, 20_000));
    });
    // The last packets may be on their way between the workers, which answer one after the other.
    let (given, lost, taken) = (0..1_000)
        .map(|_| {
            let (given, lost) = handed(&two.second);
            let taken = rows(&two.second).iter().map(|row| row.handed.received).sum::<u64>();
            (given, lost, taken)
        })
        .find(|(given, _, taken)| given == taken)
        .expect("the workers come to rest");
    assert!(given > 8, "{given} given, {taken} taken");
    assert_eq!((lost, handed(&two.first)), (0, (0, 0)));
}

#[test]
fn datagrams_come_to_the_worker_that_has_their_port() {
    let two = two_of(Mode::Ud, [2, 2]);
    let bind = |port| {
        let socket = two.second.udp_bind(at(2, port)).expect("the port is free");
        socket.set_read_timeout(Some(TIMEOUT));
        socket
    };
    let sockets: Vec<_> = (5000..5016).map(bind).collect();
    let taken = two.second.udp_bind(at(2, 5003)).err().expect("somebody has it");
    assert_eq!(taken.kind(), ErrorKind::AddrInUse);
    assert!(rows(&two.second).iter().all(|row| row.sockets > 2), "{:?}", rows(&two.second));
    let ours: Vec<_> = (0..4).map(|_| two.first.udp_bind(at(1, 0)).expect("one is free")).collect();
    assert!(rows(&two.first).iter().all(|row| row.sockets == 2));
    for (nth, socket) in sockets.iter().enumerate() {
        let (to, from) = (socket.local_addr().expect("it is bound"), &ours[nth % ours.len()]);
        let from_at = from.local_addr().expect("it is bound");
        from.set_read_timeout(Some(TIMEOUT));
        let mut datagram = [0; 9];
        from.send_to(&[nth as u8], to).expect("there is room");
        assert_eq!(socket.recv_from(&mut datagram).expect("it comes"), (1, from_at));
        socket.send_to(&datagram[..1], from_at).expect("there is room");
        assert_eq!(from.recv_from(&mut datagram).expect("it comes"), (1, to));
        assert_eq!(datagram[0], nth as u8);
    }
    assert!(handed(&two.second).0 > 0, "worker 0 hears all, and has not all ports");
    // A port is free again when its socket is dropped, whoever had it.
    drop(sockets);
    (5000..5016).for_each(|port| drop(bind(port)));
}

#[test]
fn groups_are_heard_at_any_worker() {
    let two = two_of(Mode::Rc, [2, 2]);
    let group: IpAddr = "239.1.2.3".parse().expect("a group");
    let members: Vec<_> = (5000..5008)
        .map(|port| {
            let member = two.second.udp_bind(at(2, port)).expect("the port is free");
            member.set_read_timeout(Some(Duration::from_millis(20)));
            member.join(group).expect("it is a group");
            member
        })
        .collect();
    assert!(rows(&two.second).iter().all(|row| row.sockets > 0));
    let sender = two.first.udp_bind(at(1, 0)).expect("a port is free");
    for member in &members {
        let to = (group, member.local_addr().expect("it is bound").port());
        // Until the link knows who hears it.
        let heard = (0..500).any(|_| {
            sender.send_to(b"all", to).expect("there is room");
            member.recv_from(&mut [0; 9]).is_ok()
        });
        assert!(heard, "{to:?}");
    }
    // As long as one is there, the interface hears it.
    let (last, others) = members.split_last().expect("there are some");
    others.iter().for_each(|member| member.leave(group));
    // Longer than it takes to leave a group that nobody hears.
    last.set_read_timeout(Some(Duration::from_millis(300)));
    while last.recv_from(&mut [0; 9]).is_ok() {}
    let to = (group, last.local_addr().expect("it is bound").port());
    let heard = (0..20).filter(|_| {
        sender.send_to(b"all", to).expect("there is room");
        last.recv_from(&mut [0; 9]).is_ok()
    });
    assert!(heard.count() > 10);
}

#[test]
fn workers_of_one_interface_speak_with_each_other() {
    let two = two_of(Mode::Rc, [1, 3]);
    let listener = two.second.tcp_listen(at(2, 7), 16).expect("the port is free");
    scope(|scope| {
        scope.spawn(|| echo(&listener, 6));
        (0..6).for_each(|_| ask(&two.second, 7, 20_000));
    });
    let socket = two.second.udp_bind(at(2, 5000)).expect("the port is free");
    socket.set_read_timeout(Some(TIMEOUT));
    for _ in 0..3 {
        let other = two.second.udp_bind(at(2, 0)).expect("a port is free");
        other.send_to(b"here", at(2, 5000)).expect("there is room");
        let (len, from) = socket.recv_from(&mut [0; 9]).expect("it comes");
        assert_eq!((len, from), (4, other.local_addr().expect("it is bound")));
    }
    let took = two.second.ping(at(1, 0).ip(), 64, TIMEOUT).expect("it answers");
    assert!(took < TIMEOUT);
}

#[test]
fn a_port_that_nobody_has_is_refused_by_any_worker() {
    let two = two_of(Mode::Rc, [2, 2]);
    for port in 5000..5008 {
        let socket = two.first.udp_bind(at(1, port)).expect("the port is free");
        socket.connect(at(2, port)).expect("it is an address");
        socket.set_read_timeout(Some(Duration::from_millis(50)));
        let refused = (0..200).any(|_| {
            let sent = socket.send(b"anybody?");
            let heard = sent.and_then(|()| socket.recv_from(&mut [0; 9]).map(drop));
            heard.is_err_and(|why| why.kind() == ErrorKind::ConnectionRefused)
        });
        assert!(refused, "port {port}");
        let why = two.first.tcp_connect(at(2, port)).err().expect("nobody listens");
        assert_eq!(why.kind(), ErrorKind::ConnectionRefused);
    }
}

#[test]
fn listeners_come_and_go_at_all_workers() {
    let two = two_of(Mode::Rc, [2, 2]);
    scope(|scope| {
        for thread in 0..4 {
            let two = &two;
            scope.spawn(move || {
                let port = 100 + thread;
                for _ in 0..5 {
                    let listener = two.second.tcp_listen(at(2, port), 8).expect("it is free");
                    let taken = two.second.tcp_listen(at(2, port), 8).err().expect("it is not");
                    assert_eq!(taken.kind(), ErrorKind::AddrInUse);
                    listener.set_timeout(Some(TIMEOUT));
                    let mut streams = [(); 3].map(|()| connect(&two.first, at(2, port)));
                    let (mut peer, _) = listener.accept().expect("somebody came");
                    let ours = peer.peer_addr().expect("it is open");
                    peer.write_all(b"bye").expect("there is room");
                    drop((peer, listener));
                    for stream in &mut streams {
                        stream.set_read_timeout(Some(TIMEOUT));
                        let mut said = Vec::new();
                        let read = stream.read_to_end(&mut said);
                        match stream.local_addr().expect("an end") == ours {
                            true => {
                                assert_eq!((read.expect("an end"), &said[..]), (3, &b"bye"[..]));
                            }
                            false => assert!(read.is_err(), "nobody accepted it"),
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
fn what_workers_were_given_arrives_though_the_interface_ends() {
    const BYTES: usize = 100_000;
    let Two { first, second, fabric: _fabric } = two_of(Mode::Rc, [3, 2]);
    let listener = second.tcp_listen(at(2, 80), 16).expect("the port is free");
    listener.set_timeout(Some(TIMEOUT));
    let all: Vec<u8> = (0..BYTES).map(byte).collect();
    let streams = [(); 6].map(|()| connect(&first, at(2, 80)));
    let mut peers = [(); 6].map(|()| listener.accept().expect("somebody came").0);
    scope(|scope| {
        for peer in &mut peers {
            scope.spawn(|| {
                let mut heard = Vec::new();
                peer.read_to_end(&mut heard).expect("it comes whole");
                assert!(heard == all);
            });
        }
        for mut stream in streams {
            stream.write_all(&all).expect("there is room in time");
        }
        drop(first);
    });
}

#[test]
fn datagrams_of_all_workers_leave_though_nobody_knows_their_way_yet() {
    let fabric = Embedded::start("single:2").expect("it starts");
    let first = up(&fabric, 1, Mode::Ud, workers(3));
    // A host that is served only when somebody asks its sockets.
    let node = Node::open(&fabric.port("host2")).expect("a device");
    let second = node.interface("ib0").address("10.0.0.2/24").up().expect("it comes up");
    let ears = (5000..5012).map(|port| second.udp_bind(at(2, port)).expect("the port is free"));
    let ears: Vec<_> = ears.collect();
    for port in 5000..5012 {
        let socket = first.udp_bind(at(1, port)).expect("the port is free");
        socket.send_to(b"last words", at(2, port)).expect("there is room");
    }
    scope(|scope| {
        scope.spawn(|| drop(first));
        std::thread::park_timeout(Duration::from_millis(200));
        for ear in ears {
            ear.set_read_timeout(Some(TIMEOUT));
            assert_eq!(ear.recv_from(&mut [0; 20]).expect("it comes").0, 10);
        }
    });
}

#[test]
fn sockets_of_all_workers_are_counted_together() {
    let fabric = Embedded::start("single:1").expect("it starts");
    let host = up(&fabric, 1, Mode::Ud, Config { sockets_max: 5, ..workers(2) });
    let bind = || host.udp_bind(at(1, 0)).ok();
    let mut sockets: Vec<_> = std::iter::from_fn(bind).take(9).collect();
    assert_eq!(sockets.len(), 5);
    sockets.pop();
    assert!((0..100).any(|_| bind().is_some()));
}

#[test]
fn all_workers_end_when_the_device_of_one_is_lost() {
    for worker in [0, 1] {
        let (Two { first, second: _second, fabric: _fabric }, lose) =
            two_of_which_one_is_lost(&workers(2), worker);
        let listener = first.tcp_listen(at(1, 80), 4).expect("the port is free");
        let sockets = [0, 0].map(|_| first.udp_bind(at(1, 0)).expect("a port is free"));
        assert!(rows(&first).iter().all(|row| row.sockets == 1));
        scope(|scope| {
            let mut calls = vec![scope.spawn(|| listener.accept().map(drop))];
            for socket in &sockets {
                calls.push(scope.spawn(|| socket.recv_from(&mut [0; 9]).map(drop)));
            }
            lose();
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
