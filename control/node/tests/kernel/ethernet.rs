//! Interfaces at Ethernet: a kernel at one end of a cable, a node at the other, and a kernel behind
//! the fabric of the node. The judges are ping, `ip neighbor`, iperf3, arping and tshark.

use crate::namespace::Namespace;
use crate::nodes::{NodeInNamespace, until};
use crate::tun::{Server, iperf3, say};
use pollux_mem::net_device::NetDeviceSocket;
use pollux_mem::packet_socket::PacketSocket;
use pollux_node::admin::rows::{DropCount, InterfaceStatus, NeighborState, NeighborStatus};
use pollux_node::fabric::Embedded;
use pollux_referee::tshark::dissect_ethernet;
use pollux_wire::ethernet::{EtherType, EthernetFrame, MacAddress};
use pollux_wire::ip::arp::{ArpOperation, ArpPacket};
use std::net::Ipv4Addr;

/// A host, a router at its cable, and a host behind that.
///
/// ```text
///   10.5.0.2 kernel h0 --cable-- eth0 10.5.0.1 node 10.0.0.1 --fabric-- 10.0.0.2 node, its kernel
/// ```
struct Hosts {
    host: Namespace,
    router: NodeInNamespace,
    behind: NodeInNamespace,
    _fabric: Embedded,
}

impl Hosts {
    /// `keys` are further ones of the interface. The cable is not there when the node starts.
    fn start(test: &str, keys: &str) -> Option<Self> {
        pollux_referee::program_of(test, "ethtool", "--referees")?;
        let fabric = Embedded::start("single:2").expect("it starts");
        let port = |nth| fabric.port(&format!("host{nth}"));
        let router = format!(
            "[router]\n[interface.ib0]\ndevice = {:?}\n\
             address = [\"10.0.0.1/24\", \"fd00::1/64\"]\n\
             [interface.eth0]\nkind = \"ethernet\"\ndevice = \"eth0\"\n\
             address = [\"10.5.0.1/24\", \"fd05::1/64\"]\n{keys}\n",
            port(1)
        );
        let behind = format!(
            "[router]\n[interface.ib0]\ndevice = {:?}\nshadow = \"ib0\"\n\
             address = [\"10.0.0.2/24\", \"fd00::2/64\"]\nrouter = [\"10.0.0.1\", \"fd00::1\"]\n",
            port(2)
        );
        let host = Namespace::enter(test)?;
        let router = NodeInNamespace::start(test, &router)?;
        let behind = NodeInNamespace::start(test, &behind)?;
        let hosts = Self { host, router, behind, _fabric: fabric };
        hosts.wait_for_state("missing");
        hosts.connect();
        Some(hosts)
    }

    fn connect(&self) {
        let Self { host, router, behind, .. } = self;
        let router = &router.namespace;
        router.ip(&format!("link add eth0 type veth peer name h0 netns {}", host.name()));
        // A veth leaves checksums and segments to its peer, as no cable does.
        say(host, "ethtool", "-K h0 tx off tso off gso off");
        host.ip("address add 10.5.0.2/24 dev h0");
        host.ip("address add fd05::2/64 dev h0 nodad");
        host.ip("link set h0 up");
        router.ip("link set eth0 up");
        host.ip("route add 10.0.0.0/24 via 10.5.0.1");
        host.ip("-6 route add fd00::/64 via fd05::1");
        until("the shadow", || {
            let text = format!("{:?}", behind.namespace.json("address show ib0"));
            if text.contains("fd00::2") { Ok(()) } else { Err(text) }
        });
        behind.namespace.ip("route replace default via 10.0.0.1");
        behind.namespace.ip("-6 route replace default via fd00::1");
    }

    fn row(&self) -> InterfaceStatus {
        let rows: Vec<InterfaceStatus> = self.router.show();
        rows.into_iter().find(|row| row.interface == "eth0").expect("its row")
    }

    fn wait_for_state(&self, state: &str) {
        until(&format!("eth0 is {state}"), || {
            let row = self.row();
            if row.state == state { Ok(()) } else { Err(format!("{row:?}")) }
        });
    }

    /// Waits until the host reaches an address.
    fn wait_for_ping(&self, to: &str) {
        until(&format!("a reply of {to}"), || {
            let message = say(&self.host, "ping", &format!("-c 1 -W 1 {to}"));
            if message.contains(" 0% packet loss") { Ok(()) } else { Err(message) }
        });
    }

    fn drops(&self, of: &str, why: &str) -> u64 {
        let rows: Vec<DropCount> = self.router.show();
        let row =
            rows.into_iter().find(|row| row.interface == "eth0" && row.of == of && row.why == why);
        row.map_or_else(|| panic!("no counter {of} {why}"), |row| row.count)
    }

    /// Echo requests that the kernel beside the router has seen.
    fn echoes_of_kernel(&self) -> u64 {
        let message = say(&self.router.namespace, "nstat", "-asz IcmpInEchos");
        let line = message.lines().find(|line| line.starts_with("IcmpInEchos")).expect("a counter");
        line.split_whitespace().nth(1).and_then(|count| count.parse().ok()).expect("a number")
    }
}

/// Has an address answer each of so many echo requests, and none twice. To ping, an answer is lost
/// that comes two round trips after the last request, so each has a ping of its own.
fn reach(host: &Namespace, count: u32, to: &str) {
    for _ in 0..count {
        let message = say(host, "ping", &format!("-c 1 -W 20 {to}"));
        assert!(message.contains("1 received, 0% packet loss"), "{message}");
    }
    let message = say(host, "ping", &format!("-c {count} -i 0.1 {to}"));
    assert!(message.contains("bytes from") && !message.contains("DUP"), "{message}");
}

/// Ping both families, to the router and through it; iperf3 through it, in both directions.
fn passes(test: &str, keys: &str, way: &str) {
    if pollux_referee::program_of(test, "iperf3", "--referees").is_none() {
        return;
    }
    let Some(hosts) = Hosts::start(test, keys) else { return };
    for to in ["10.5.0.1", "fd05::1", "10.0.0.2", "fd00::2"] {
        hosts.wait_for_ping(to);
    }
    let row = hosts.row();
    assert_eq!((row.state.as_str(), row.mtu), ("up", Some(1500)), "{row:?}");
    assert!(row.why.contains(&format!("by {way}")), "{}", row.why);
    for to in ["10.5.0.1", "fd05::1"] {
        reach(&hosts.host, 5, to);
    }
    let known = format!("{:?}", hosts.host.json("neighbor show dev h0"));
    let link = row.link.expect("an address");
    assert!(known.contains(&link) && known.contains("10.5.0.1"), "{known}");
    let neighbors: Vec<NeighborStatus> = hosts.router.show();
    let ours = neighbors.iter().find(|one| one.address == Ipv4Addr::new(10, 5, 0, 2));
    let ours = ours.expect("the host is a neighbor");
    assert!(ours.link.is_some() && ours.state != NeighborState::Failed, "{ours:?}");
    let _server = Server::start(&hosts.behind.namespace);
    for options in ["10.0.0.2 -n 32M", "10.0.0.2 -n 32M -R", "fd00::2 -n 32M"] {
        let end = iperf3(&hosts.host, &format!("-c {options}"));
        // The last bytes may be in flight when the client reports that it has sent all.
        assert!(end["sum_received"]["bytes"].as_u64() >= Some(24 << 20), "{options}: {end}");
    }
    assert_eq!(hosts.drops("frame", "too_long"), 0);
}

#[test]
fn packets_pass_by_packet_sockets() {
    passes("ethernet packet", "frames = \"packet\"", "AF_PACKET");
}

#[test]
fn packets_pass_by_af_xdp_behind_the_driver() {
    passes("ethernet generic", "frames = \"generic\"", "AF_XDP, generic");
}

#[test]
fn packets_pass_by_af_xdp_in_the_driver_which_is_the_best_that_a_veth_has() {
    passes("ethernet native", "", "AF_XDP, native");
}

#[test]
fn with_af_xdp_the_kernel_answers_nothing() {
    let Some(hosts) = Hosts::start("ethernet kernel", "") else { return };
    // The kernel beside the router has the same address.
    hosts.router.namespace.ip("address add 10.5.0.1/24 dev eth0");
    let before = hosts.echoes_of_kernel();
    hosts.wait_for_ping("10.5.0.1");
    reach(&hosts.host, 3, "10.5.0.1");
    assert_eq!(hosts.echoes_of_kernel(), before);
}

#[test]
fn with_packet_sockets_a_rule_keeps_the_kernel_from_answering() {
    let test = "ethernet nft";
    if pollux_referee::program_of(test, "nft", "--referees").is_none() {
        return;
    }
    let Some(hosts) = Hosts::start(test, "frames = \"packet\"") else { return };
    hosts.router.namespace.ip("address add 10.5.0.1/24 dev eth0");
    let rule = "add table netdev pollux { chain in { type filter hook ingress device \"eth0\" \
                priority -500; policy drop; }; }";
    let mut nft = hosts.router.namespace.command("nft");
    let done = nft.arg(rule).output().expect("nft runs");
    assert!(done.status.success(), "{done:?}");
    let before = hosts.echoes_of_kernel();
    hosts.wait_for_ping("10.5.0.1");
    reach(&hosts.host, 3, "10.5.0.1");
    assert_eq!(hosts.echoes_of_kernel(), before);
}

#[test]
fn a_device_that_is_down_or_removed_is_a_state_and_is_opened_again() {
    let Some(hosts) = Hosts::start("ethernet states", "") else { return };
    hosts.wait_for_ping("10.5.0.1");
    hosts.router.namespace.ip("link set eth0 down");
    hosts.wait_for_state("down");
    assert!(hosts.row().why.contains("eth0 is down; `ip link set eth0 up`"), "{:?}", hosts.row());
    hosts.router.namespace.ip("link set eth0 up");
    hosts.wait_for_ping("10.5.0.1");
    hosts.host.ip("link set h0 down");
    hosts.wait_for_state("down");
    assert!(hosts.row().why.contains("no carrier"), "{:?}", hosts.row());
    hosts.router.namespace.ip("link del eth0");
    hosts.wait_for_state("missing");
    assert!(hosts.row().why.contains("there is no network device eth0"), "{:?}", hosts.row());
    hosts.connect();
    hosts.wait_for_ping("10.5.0.1");
    hosts.wait_for_ping("fd00::2");
}

/// The frames of a host of a VLAN, as the test writes them: this kernel may have no VLANs.
struct VlanHost {
    address: MacAddress,
    socket: PacketSocket,
    /// All frames that came.
    frames: Vec<Vec<u8>>,
}

impl VlanHost {
    fn ask(&mut self, vlan: Option<u16>, target: Ipv4Addr) {
        let request = ArpPacket {
            operation: ArpOperation::REQUEST,
            sender_hardware: self.address,
            sender_protocol: Ipv4Addr::new(10, 7, 0, 2),
            target_hardware: MacAddress::default(),
            target_protocol: target,
        };
        let frame = EthernetFrame {
            destination: MacAddress::BROADCAST,
            source: self.address,
            vlan,
            ether_type: EtherType::ARP,
            payload: &[],
        };
        let mut bytes = [0; 64];
        request.write(frame.write_header(&mut bytes).expect("space")).expect("space");
        let (sent, error) = self.socket.send([&bytes[..60]].into_iter());
        assert_eq!((sent, error), (1, None));
    }

    /// The sender of the reply for `target`.
    fn answer(&mut self, target: Ipv4Addr) -> Option<MacAddress> {
        let Self { socket, frames, address, .. } = self;
        socket.receive(|frame| frames.push(frame.bytes.to_vec())).expect("it receives");
        frames.iter().find_map(|bytes| {
            let frame = EthernetFrame::parse(bytes).ok()?;
            let reply = ArpPacket::<MacAddress>::parse(frame.payload).ok()?;
            let is_it = reply.operation == ArpOperation::REPLY
                && reply.sender_protocol == target
                && frame.destination == *address;
            is_it.then_some(reply.sender_hardware)
        })
    }
}

#[test]
fn interfaces_share_a_device_by_vlan() {
    let keys = "[interface.vlan7]\nkind = \"ethernet\"\ndevice = \"eth0\"\nvlan = 7\n\
                address = [\"10.7.0.1/24\"]\n";
    let Some(hosts) = Hosts::start("ethernet vlan", keys) else { return };
    hosts.wait_for_ping("10.5.0.1");
    let rows: Vec<InterfaceStatus> = hosts.router.show();
    let ways: Vec<_> = rows.iter().map(|row| (row.interface.as_str(), &row.why)).collect();
    assert!(ways.iter().any(|(_, why)| why.contains("AF_XDP, native")), "{ways:?}");
    assert!(ways.iter().any(|(_, why)| why.contains("AF_PACKET, since bind")), "{ways:?}");
    // This thread is in the namespace of the host.
    let device = NetDeviceSocket::open().and_then(|all| all.read("h0")).expect("it is there");
    let open = |vlan| PacketSocket::open(device.index, vlan, 2000).expect("a socket");
    let address = MacAddress(device.address.expect("Ethernet"));
    let mut tagged = VlanHost { address, socket: open(Some(7)), frames: Vec::new() };
    let mut untagged = VlanHost { address, socket: open(None), frames: Vec::new() };
    let (own, other) = (Ipv4Addr::new(10, 7, 0, 1), Ipv4Addr::new(10, 5, 0, 1));
    until("an answer in the VLAN", || {
        tagged.ask(Some(7), own);
        tagged.answer(own).map(drop).ok_or_else(|| format!("{} frames", tagged.frames.len()))
    });
    // Neither answers in the other's VLAN, nor in one without a host.
    tagged.ask(Some(7), other);
    untagged.ask(None, own);
    untagged.ask(Some(8), own);
    until("an answer without a tag", || {
        untagged.ask(None, other);
        untagged.answer(other).map(drop).ok_or_else(|| "none".to_owned())
    });
    until("another answer in the VLAN", || {
        tagged.frames.clear();
        tagged.ask(Some(7), own);
        assert_eq!(tagged.answer(other), None);
        tagged.answer(own).map(drop).ok_or_else(|| "none".to_owned())
    });
    assert_eq!(untagged.answer(own), None);
}

#[test]
fn what_is_no_frame_of_ours_is_counted() {
    let Some(hosts) = Hosts::start("ethernet drops", "frames = \"packet\"") else { return };
    hosts.wait_for_ping("10.5.0.1");
    let device = NetDeviceSocket::open().and_then(|all| all.read("h0")).expect("it is there");
    let mut socket = PacketSocket::for_sending(device.index).expect("a socket");
    let source = MacAddress(device.address.expect("Ethernet"));
    let ours = MacAddress::parse_text(&hosts.row().link.expect("an address")).expect("it reads");
    let strange = MacAddress([2, 9, 9, 9, 9, 9]);
    for (destination, ether_type, why) in
        [(strange, EtherType::IPV4, "not_ours"), (ours, EtherType(0x88cc), "unknown_type")]
    {
        let before = hosts.drops("frame", why);
        let frame = EthernetFrame { destination, source, vlan: None, ether_type, payload: &[] };
        let mut bytes = [0; 60];
        frame.write_header(&mut bytes).expect("space");
        until(why, || {
            assert_eq!(socket.send([&bytes[..]].into_iter()), (1, None));
            let now = hosts.drops("frame", why);
            if now > before { Ok(()) } else { Err(format!("{now}")) }
        });
    }
}

#[test]
fn tshark_finds_nothing_malformed_in_what_is_sent() {
    let test = "ethernet capture";
    let Some(hosts) = Hosts::start(test, "frames = \"generic\"") else { return };
    let device = NetDeviceSocket::open().and_then(|all| all.read("h0")).expect("it is there");
    let mut socket = PacketSocket::open(device.index, None, 2000).expect("a socket");
    for to in ["10.5.0.1", "fd05::1", "10.0.0.2", "fd00::2"] {
        hosts.wait_for_ping(to);
    }
    say(&hosts.host, "ping", "-c 1 -W 20 -t 1 10.0.0.2");
    say(&hosts.host, "ping", "-c 1 -W 20 172.31.0.1");
    let mut frames: Vec<Vec<u8>> = Vec::new();
    while socket.receive(|frame| frames.push(frame.bytes.to_vec())).expect("it receives") > 0 {}
    let frames: Vec<&[u8]> = frames.iter().map(Vec::as_slice).collect();
    let Some(rows) = dissect_ethernet(test, &frames, &["frame.protocols"]) else { return };
    assert!(rows.iter().all(|row| row.malformed.is_empty()));
    for protocol in ["ethertype:arp", "ethertype:ip:icmp", "ethertype:ipv6:icmpv6"] {
        let count = rows.iter().filter(|row| row.values[0].contains(protocol)).count();
        assert!(count > 0, "{protocol} among {} frames", rows.len());
    }
}
