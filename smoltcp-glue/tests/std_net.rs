//! The sockets as those of `std::net`: the same code, with the kernel's sockets, with inline ones,
//! and with pinned ones, behaves alike.

use pollux::{Node, Setup, pinned};
use std::io::{self, ErrorKind, Read, Write};
use std::net::{Ipv4Addr, Shutdown, SocketAddr};
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

/// Long enough for any answer; it only ends a hang.
const LIMIT: Duration = Duration::from_secs(60);
/// Passes when nothing arrives.
const SHORT: Duration = Duration::from_millis(5);

fn setup() -> Setup {
    Node::open("soft:").unwrap().interface("ib0").address("10.0.0.1/24")
}

/// Tests of one process take turns: their interfaces have one address, on one fabric.
fn turn() -> MutexGuard<'static, ()> {
    static TURN: Mutex<()> = Mutex::new(());
    TURN.lock().unwrap_or_else(PoisonError::into_inner)
}

fn kind<T>(result: io::Result<T>) -> ErrorKind {
    result.err().map(|error| error.kind()).expect("an error")
}

/// std allows both for a timeout.
fn is_timeout(kind: ErrorKind) -> bool {
    matches!(kind, ErrorKind::TimedOut | ErrorKind::WouldBlock)
}

/// Sends to a group until a member hears it, and has heard all: a worker may hear of the join later
/// than its caller.
macro_rules! until_heard {
    ($member:expr, $sender:expr, $to:expr, $buffer:expr) => {
        let number = |bytes: &[u8]| u32::from_be_bytes(*bytes.first_chunk().unwrap());
        $member.set_read_timeout(Some(SHORT)).unwrap();
        loop {
            let sent = SENT.fetch_add(1, Ordering::Relaxed);
            $sender.send_to(&sent.to_be_bytes(), $to).unwrap();
            if $member.recv($buffer).is_ok() {
                $member.set_read_timeout(Some(LIMIT)).unwrap();
                while number($buffer) != sent {
                    $member.recv($buffer).unwrap();
                }
                break;
            }
        }
    };
}

/// Datagrams that were sent to groups.
static SENT: AtomicU32 = AtomicU32::new(0);

/// The tests, with the sockets that `$open` gives for an address of the host: functions that
/// listen, connect, and bind.
macro_rules! behaves_as_std {
    ($name:ident, $ip:expr, $open:expr) => {
        mod $name {
            use super::*;

            fn any_port() -> SocketAddr {
                SocketAddr::new($ip.into(), 0)
            }

            #[test]
            fn connections_carry_bytes_both_ways_and_end() {
                let _turn = turn();
                let (listen, connect, _) = $open;
                let listener = listen(any_port()).unwrap();
                let at = listener.local_addr().unwrap();
                assert!(at.port() != 0 && at.ip() == any_port().ip());
                let mut client = connect(at).unwrap();
                let mut server = listener.incoming().next().unwrap().unwrap();
                assert_eq!(client.peer_addr().unwrap(), at);
                assert_eq!(client.local_addr().unwrap(), server.peer_addr().unwrap());
                client.set_read_timeout(Some(LIMIT)).unwrap();
                server.set_read_timeout(Some(LIMIT)).unwrap();
                client.write_all(b"request").unwrap();
                let mut buffer = [0; 16];
                for _ in 0..2 {
                    assert_eq!(server.peek(&mut buffer[..3]).unwrap(), 3);
                    assert_eq!(&buffer[..3], b"req");
                }
                server.read_exact(&mut buffer[..7]).unwrap();
                assert_eq!(&buffer[..7], b"request");
                client.shutdown(Shutdown::Write).unwrap();
                assert_eq!(kind(client.write(b"more")), ErrorKind::BrokenPipe);
                assert_eq!(server.read(&mut buffer).unwrap(), 0);
                assert_eq!(server.peek(&mut buffer).unwrap(), 0);
                // The connection closes with the last of its handles.
                let mut writer = server.try_clone().unwrap();
                drop(server);
                writer.write_all(b"response").unwrap();
                client.read_exact(&mut buffer[..8]).unwrap();
                assert_eq!(&buffer[..8], b"response");
                drop(writer);
                assert_eq!(client.read(&mut buffer).unwrap(), 0);
                assert!(client.take_error().unwrap().is_none());
                assert!(listener.take_error().unwrap().is_none());
            }

            #[test]
            fn timeouts_and_nonblocking_calls_end_as_those_of_std() {
                let _turn = turn();
                let (listen, connect, _) = $open;
                let listener = listen(any_port()).unwrap();
                listener.set_nonblocking(true).unwrap();
                assert_eq!(kind(listener.accept()), ErrorKind::WouldBlock);
                listener.set_nonblocking(false).unwrap();
                let again = listener.try_clone().unwrap();
                drop(listener);
                let listener = again;
                let mut client = connect(listener.local_addr().unwrap()).unwrap();
                let (_server, _) = listener.accept().unwrap();
                assert_eq!(client.read_timeout().unwrap(), None);
                assert_eq!(client.write_timeout().unwrap(), None);
                let zero = Some(Duration::ZERO);
                assert_eq!(kind(client.set_read_timeout(zero)), ErrorKind::InvalidInput);
                assert_eq!(kind(client.set_write_timeout(zero)), ErrorKind::InvalidInput);
                client.set_read_timeout(Some(SHORT)).unwrap();
                client.set_nonblocking(true).unwrap();
                assert_eq!(kind(client.read(&mut [0])), ErrorKind::WouldBlock);
                assert_eq!(kind(client.peek(&mut [0])), ErrorKind::WouldBlock);
                client.set_nonblocking(false).unwrap();
                assert!(client.read_timeout().unwrap().is_some_and(|set| set >= SHORT));
                assert!(is_timeout(kind(client.read(&mut [0]))));
                for is_on in [true, false] {
                    client.set_nodelay(is_on).unwrap();
                    assert_eq!(client.nodelay().unwrap(), is_on);
                }
            }

            #[test]
            fn a_port_without_a_listener_refuses() {
                let _turn = turn();
                let (listen, connect, _) = $open;
                let at = listen(any_port()).unwrap().local_addr().unwrap();
                assert_eq!(kind(connect(at)), ErrorKind::ConnectionRefused);
            }

            #[test]
            fn datagrams_reach_bound_and_connected_sockets() {
                let _turn = turn();
                let (.., bind) = $open;
                let (one, other) = (bind(any_port()).unwrap(), bind(any_port()).unwrap());
                let [from, to] = [&one, &other].map(|socket| socket.local_addr().unwrap());
                one.set_read_timeout(Some(LIMIT)).unwrap();
                other.set_read_timeout(Some(LIMIT)).unwrap();
                assert_eq!(kind(one.peer_addr()), ErrorKind::NotConnected);
                assert!(one.send(b"to whom?").is_err());
                assert_eq!(one.send_to(b"a datagram", to).unwrap(), 10);
                let mut buffer = [0; 16];
                assert_eq!(other.peek_from(&mut buffer).unwrap(), (10, from));
                assert_eq!(other.peek(&mut buffer[..1]).unwrap(), 1);
                assert_eq!(other.recv_from(&mut buffer[..4]).unwrap(), (4, from));
                assert_eq!(&buffer[..4], b"a da");
                other.connect(from).unwrap();
                assert_eq!(other.peer_addr().unwrap(), from);
                assert_eq!(other.send(b"an answer").unwrap(), 9);
                assert_eq!(one.recv(&mut buffer).unwrap(), 9);
                assert_eq!(&buffer[..9], b"an answer");
                let again = one.try_clone().unwrap();
                drop(one);
                let one = again;
                one.set_read_timeout(Some(SHORT)).unwrap();
                assert!(is_timeout(kind(one.recv(&mut buffer))));
                one.set_nonblocking(true).unwrap();
                assert_eq!(kind(one.recv_from(&mut buffer)), ErrorKind::WouldBlock);
                let longest = vec![7; 65_507];
                other.set_read_timeout(Some(LIMIT)).unwrap();
                assert_eq!(one.send_to(&longest, to).unwrap(), 65_507);
                let mut long = vec![0; 65_536];
                assert_eq!(other.recv(&mut long).unwrap(), 65_507);
                assert!(one.send_to(&vec![0; 65_508], to).is_err());
                assert!(one.take_error().unwrap().is_none());
                let no_group = one.join_multicast_v4(&Ipv4Addr::LOCALHOST, &Ipv4Addr::UNSPECIFIED);
                assert_eq!(kind(no_group), ErrorKind::InvalidInput);
            }

            #[test]
            fn options_of_datagram_sockets_have_the_defaults_and_limits_of_std() {
                let _turn = turn();
                let (.., bind) = $open;
                let socket = bind(any_port()).unwrap();
                assert_eq!((socket.ttl().unwrap(), socket.multicast_ttl_v4().unwrap()), (64, 1));
                assert_eq!(kind(socket.set_ttl(0)), ErrorKind::InvalidInput);
                assert_eq!(kind(socket.set_ttl(256)), ErrorKind::InvalidInput);
                assert_eq!(kind(socket.set_multicast_ttl_v4(256)), ErrorKind::InvalidInput);
                socket.set_ttl(255).unwrap();
                socket.set_multicast_ttl_v4(0).unwrap();
                assert_eq!((socket.ttl().unwrap(), socket.multicast_ttl_v4().unwrap()), (255, 0));
                assert!(socket.multicast_loop_v4().unwrap() && !socket.broadcast().unwrap());
                socket.set_multicast_loop_v4(false).unwrap();
                socket.set_broadcast(true).unwrap();
                assert!(!socket.multicast_loop_v4().unwrap() && socket.broadcast().unwrap());
            }

            #[test]
            fn members_of_the_own_host_hear_a_sender() {
                let _turn = turn();
                let (.., bind) = $open;
                let group = Ipv4Addr::new(239, 1, 2, 3);
                let member = bind((Ipv4Addr::UNSPECIFIED, 0).into()).unwrap();
                let port = member.local_addr().unwrap().port();
                let own = Ipv4Addr::from($ip);
                member.join_multicast_v4(&group, &own).unwrap();
                let sender = bind(any_port()).unwrap();
                let mut buffer = [0; 16];
                until_heard!(member, sender, (group, port), &mut buffer);
                member.leave_multicast_v4(&group, &own).unwrap();
                sender.send_to(b"to nobody", (group, port)).unwrap();
                sender.send_to(b"to you", (own, port)).unwrap();
                assert_eq!(member.recv_from(&mut buffer).unwrap().0, 6);
                assert_eq!(&buffer[..6], b"to you");
            }
        }
    };
}

behaves_as_std!(kernel, Ipv4Addr::LOCALHOST, {
    use std::net::{TcpListener, TcpStream, UdpSocket};
    (
        TcpListener::bind::<SocketAddr>,
        TcpStream::connect::<SocketAddr>,
        UdpSocket::bind::<SocketAddr>,
    )
});

/// What the kernel's loopback device has not, or `std::net` not.
macro_rules! has_groups {
    ($name:ident, $interface:expr) => {
        #[test]
        fn $name() {
            let _turn = turn();
            let ib0 = $interface;
            let group = Ipv4Addr::new(239, 1, 2, 3);
            let members: [_; 2] = std::array::from_fn(|_| {
                let member = ib0.udp_bind_shared("0.0.0.0:5000").unwrap();
                member.join(group.into()).unwrap();
                member.set_read_timeout(Some(LIMIT)).unwrap();
                member
            });
            let picky = ib0.udp_bind_shared("239.1.2.3:5000").unwrap();
            picky.join_source(group.into(), [10, 0, 0, 9].into()).unwrap();
            assert!(picky.join_source(group.into(), [239, 0, 0, 9].into()).is_err());
            let sender = ib0.udp_bind("10.0.0.1:0").unwrap();
            let mut buffer = [0; 16];
            for member in &members {
                until_heard!(member, sender, (group, 5000), &mut buffer);
            }
            picky.set_nonblocking(true).unwrap();
            assert_eq!(kind(picky.recv(&mut buffer)), ErrorKind::WouldBlock);
            picky.leave_source(group.into(), [10, 0, 0, 9].into()).unwrap();
            assert!(picky.leave_source(group.into(), [10, 0, 0, 9].into()).is_err());
            drop((members, picky));
            let member = ib0.udp_bind("0.0.0.0:5000").unwrap();
            member.join(group.into()).unwrap();
            until_heard!(member, sender, (group, 5000), &mut buffer);
            sender.set_multicast_loop_v4(false).unwrap();
            sender.send_to(b"to others", (group, 5000)).unwrap();
            sender.send_to(b"to you", "10.0.0.1:5000").unwrap();
            assert_eq!(member.recv_from(&mut buffer).unwrap().0, 6);
            assert_eq!(&buffer[..6], b"to you");
        }
    };
}

fn pinned_interface() -> pinned::Interface {
    setup().up_pinned(pinned::Config { workers: 2, ..Default::default() }).unwrap()
}

has_groups!(inline_sockets_share_groups_and_turn_loops_off, setup().up().unwrap());
has_groups!(pinned_sockets_share_groups_and_turn_loops_off, pinned_interface());

behaves_as_std!(inline, [10, 0, 0, 1], {
    let ib0 = setup().up().unwrap();
    let (ib1, ib2) = (ib0.clone(), ib0.clone());
    (
        move |at: SocketAddr| ib0.tcp_listen(at, 4),
        move |at: SocketAddr| ib1.tcp_connect(at),
        move |at: SocketAddr| ib2.udp_bind(at),
    )
});

behaves_as_std!(pinned_sockets, [10, 0, 0, 1], {
    let ib0 = pinned_interface();
    let (ib1, ib2) = (ib0.clone(), ib0.clone());
    (
        move |at: SocketAddr| ib0.tcp_listen(at, 4),
        move |at: SocketAddr| ib1.tcp_connect(at),
        move |at: SocketAddr| ib2.udp_bind(at),
    )
});
