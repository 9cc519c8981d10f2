//! Multicast routes: packets of a socket of one kernel reach sockets of two others, over two links
//! of IPoIB and TUN devices. The judges are those sockets.

use crate::nodes::{NodeInNamespace, until};
use pollux_node::fabric::Embedded;
use rustix::net::sockopt::set_ipv6_multicast_hops;
use std::io::ErrorKind;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, UdpSocket};
use std::sync::Arc;
use std::thread::spawn;
use std::time::Duration;

const GROUP: Ipv4Addr = Ipv4Addr::new(239, 1, 2, 3);
const GROUP_V6: Ipv6Addr = Ipv6Addr::new(0xff05, 0, 0, 0, 0, 0, 0, 7);
const PORT: u16 = 5000;

/// Three kernels, each with a TUN device of a node.
///
/// ```text
///   192.168.1.2 --tun0-- first ib0 --- ib1 middle ib2 --- ib0 last --tun0-- 192.168.3.2
///                                          tun0
///                                            |
///                                       192.168.2.2
/// ```
struct Kernels {
    first: NodeInNamespace,
    middle: NodeInNamespace,
    last: NodeInNamespace,
    _fabrics: [Embedded; 2],
}

fn routes(from: &str, to: &str) -> String {
    let route =
        |group: IpAddr| format!("[[multicast]]\ngroup = \"{group}\"\nfrom = {from:?}\nto = {to}\n");
    route(GROUP.into()) + &route(GROUP_V6.into())
}

fn interface(name: &str, fabric: &Embedded, host: u8, address: u8) -> String {
    let device = fabric.port(&format!("host{host}"));
    format!(
        "[interface.{name}]\ndevice = {device:?}\n\
         address = [\"10.{address}.0.{host}/24\", \"fd0{address}::{host}/64\"]\n"
    )
}

fn start(test: &str, nth: u8, config: &str) -> Option<NodeInNamespace> {
    let config = format!(
        "[router]\n{config}[interface.tun0]\nkind = \"tun\"\n\
         address = [\"192.168.{nth}.1/24\", \"fd10:{nth}::1/64\"]\n\
         kernel_address = [\"192.168.{nth}.2/24\", \"fd10:{nth}::2/64\"]\n"
    );
    let node = NodeInNamespace::start(test, &config)?;
    until("the device", || {
        let text = format!("{:?}", node.namespace.json("address show"));
        let is_there = text.contains(&format!("fd10:{nth}::2")) && text.contains("LOWER_UP");
        if is_there { Ok(()) } else { Err(text) }
    });
    node.namespace.ip(&format!("route add default via 192.168.{nth}.1 dev tun0"));
    node.namespace.ip(&format!("-6 route add default via fd10:{nth}::1 dev tun0"));
    node.namespace.ip("-6 route add ff00::/8 dev tun0 table local");
    Some(node)
}

impl Kernels {
    fn start(test: &str) -> Option<Self> {
        let fabrics = [(); 2].map(|()| Embedded::start("single:2").expect("it starts"));
        let [left, right] = &fabrics;
        let first = interface("ib0", left, 1, 1) + &routes("tun0", "[\"ib0\"]");
        let middle = interface("ib1", left, 2, 1)
            + &interface("ib2", right, 1, 2)
            + &routes("ib1", "[\"ib2\", \"tun0\"]");
        let last = interface("ib0", right, 2, 2) + &routes("ib0", "[\"tun0\"]");
        let first = start(test, 1, &first)?;
        let (middle, last) = (start(test, 2, &middle)?, start(test, 3, &last)?);
        Some(Self { first, middle, last, _fabrics: fabrics })
    }
}

/// A socket of a kernel that is a member of the group, and receives within moments or not at all.
fn member(node: &NodeInNamespace, group: IpAddr) -> UdpSocket {
    let namespace = Arc::clone(&node.namespace);
    let make = move || {
        namespace.join();
        let socket = UdpSocket::bind(SocketAddr::from((group, PORT))).expect("a socket");
        match group {
            IpAddr::V4(group) => socket.join_multicast_v4(&group, &Ipv4Addr::UNSPECIFIED),
            IpAddr::V6(group) => socket.join_multicast_v6(&group, 0),
        }
        .expect("a member");
        socket.set_read_timeout(Some(Duration::from_millis(100))).expect("a timeout");
        socket
    };
    spawn(make).join().expect("it is made")
}

/// A socket of a kernel that sends to groups.
fn sender(node: &NodeInNamespace, local: &str, ttl: u32) -> UdpSocket {
    let namespace = Arc::clone(&node.namespace);
    let local: IpAddr = local.parse().expect("an address");
    let make = move || {
        namespace.join();
        let socket = UdpSocket::bind((local, 0)).expect("a socket");
        match local {
            IpAddr::V4(_) => socket.set_multicast_ttl_v4(ttl).expect("a TTL"),
            IpAddr::V6(_) => set_ipv6_multicast_hops(&socket, ttl).expect("a hop limit"),
        }
        socket
    };
    spawn(make).join().expect("it is made")
}

/// The datagrams that a socket has received.
fn received(socket: &UdpSocket) -> Vec<u8> {
    let mut all = Vec::new();
    let mut packet = [0; 64];
    loop {
        match socket.recv(&mut packet) {
            Ok(bytes) => all.extend(&packet[..bytes]),
            Err(error) if error.kind() == ErrorKind::WouldBlock => return all,
            Err(error) => panic!("{error}"),
        }
    }
}

/// How often a node dropped packets in transit for a reason.
fn drops(node: &NodeInNamespace, why: &str) -> u64 {
    let all = node.drops();
    all.iter().filter(|one| one.why == why).map(|one| one.count).sum()
}

/// Each of several packets arrives once at both members, and in order.
fn both_receive(source: &UdpSocket, group: IpAddr, [near, far]: [&UdpSocket; 2]) {
    // Groups are joined by and by, and packets before that are lost.
    until("packets at both", || {
        source.send_to(b"-", (group, PORT)).expect("it is sent");
        let got = [near, far].map(|socket| received(socket).len());
        if got.contains(&0) { Err(format!("{got:?}")) } else { Ok(()) }
    });
    let text: Vec<u8> = (b'a'..=b'z').collect();
    for byte in &text {
        source.send_to(&[*byte], (group, PORT)).expect("it is sent");
    }
    for (which, socket) in [("near", near), ("far", far)] {
        let mut got = Vec::new();
        until(which, || {
            got.extend(received(socket).into_iter().filter(|byte| *byte != b'-'));
            if got.len() >= text.len() { Ok(()) } else { Err(format!("{got:?}")) }
        });
        assert_eq!(got, text);
    }
}

#[test]
fn packets_to_a_group_leave_by_each_interface_of_its_route() {
    let Some(kernels) = Kernels::start("multicast") else { return };
    let Kernels { first, middle, last, .. } = &kernels;
    let (near, far) = (member(middle, GROUP.into()), member(last, GROUP.into()));
    both_receive(&sender(first, "192.168.1.2", 4), GROUP.into(), [&near, &far]);
    // Each router takes one from the TTL.
    let source = sender(first, "192.168.1.2", 3);
    let before = drops(last, "time_exceeded");
    source.send_to(b"!", (GROUP, PORT)).expect("it is sent");
    until("a TTL that runs out at the last router", || {
        let now = drops(last, "time_exceeded");
        if now > before { Ok(()) } else { Err(format!("{now}")) }
    });
    assert_eq!((received(&near), received(&far)), (b"!".to_vec(), Vec::new()));
    // By another interface than the route says, and to a group without a route.
    let wrong = sender(middle, "192.168.2.2", 4);
    wrong.send_to(b"?", (GROUP, PORT)).expect("it is sent");
    wrong.send_to(b"?", (Ipv4Addr::new(239, 1, 2, 4), PORT)).expect("it is sent");
    until("drops", || {
        let counts = ["multicast_rpf", "multicast"].map(|why| drops(middle, why));
        if counts.contains(&0) { Err(format!("{counts:?}")) } else { Ok(()) }
    });
    assert_eq!(received(&far), b"");
}

#[test]
fn packets_to_a_group_of_ipv6_are_forwarded() {
    let Some(kernels) = Kernels::start("multicast six") else { return };
    let Kernels { first, middle, last, .. } = &kernels;
    let (near, far) = (member(middle, GROUP_V6.into()), member(last, GROUP_V6.into()));
    both_receive(&sender(first, "fd10:1::2", 4), GROUP_V6.into(), [&near, &far]);
    let before = drops(last, "time_exceeded");
    let source = sender(first, "fd10:1::2", 3);
    source.send_to(b"!", (GROUP_V6, PORT)).expect("it is sent");
    until("a hop limit that runs out at the last router", || {
        let now = drops(last, "time_exceeded");
        if now > before { Ok(()) } else { Err(format!("{now}")) }
    });
    assert_eq!((received(&near), received(&far)), (b"!".to_vec(), Vec::new()));
}
