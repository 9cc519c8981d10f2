//! Limits that protect against strangers, met by healthy neighbors: fast ones, and many.

use crate::datagrams::claim;
use crate::world::{World, packet, v4, v6};
use pollux_control::ipoib::connected::Policy;
use pollux_fabric::sm::SmConfig;
use pollux_wire::ethernet::EtherType;
use pollux_wire::ip::IpProtocol;
use pollux_wire::ip::arp::{ArpOperation, ArpPacket};
use pollux_wire::ip::icmp::IcmpEcho;
use pollux_wire::ip::icmpv4::{self, Icmpv4Message};
use pollux_wire::ip::icmpv6::{self, Icmpv6Message};
use pollux_wire::ip::ipv4::{Ipv4Header, Ipv4Packet};
use pollux_wire::ip::ipv6::{Ipv6Header, Ipv6Packet};
use pollux_wire::ip::link_address::LinkAddress;
use std::collections::BTreeSet;
use std::net::{IpAddr, Ipv4Addr};
use std::time::Duration;

const SECOND: Duration = Duration::from_secs(1);
/// How often `pollux demo` asks in a second on a fast machine.
const DEMO_RATE: u32 = 300_000;
/// About as often as 200 Gb/s carry packets of this length.
const LINE_RATE: u32 = 100_000_000;

fn request(source: IpAddr, destination: IpAddr, number: u32) -> Vec<u8> {
    let data = number.to_be_bytes();
    let echo = IcmpEcho { identifier: 7, sequence: number as u16, data: &data };
    let mut message = [0; 12];
    let mut bytes = packet(source, destination, &message);
    if source.is_ipv4() {
        Icmpv4Message::EchoRequest(echo).write(&mut message).unwrap();
        icmpv4::fill_checksum(&mut message).unwrap();
        let header = Ipv4Packet::parse(&bytes).unwrap().header();
        let header = Ipv4Header { protocol: IpProtocol::ICMPV4, ..header };
        let payload = header.write_packet(&[], message.len(), &mut bytes).unwrap();
        payload.copy_from_slice(&message);
    } else {
        let header = Ipv6Packet::parse(&bytes).unwrap().header();
        let header = Ipv6Header { next_header: IpProtocol::ICMPV6, ..header };
        Icmpv6Message::EchoRequest(echo).write(&mut message).unwrap();
        icmpv6::fill_checksum(&mut message, &header.pseudo_header()).unwrap();
        let payload = header.write_packet(message.len(), &mut bytes).unwrap();
        payload.copy_from_slice(&message);
    }
    bytes
}

/// The number in an echo reply.
fn number(reply: &[u8]) -> Option<u32> {
    let data = match reply[0] >> 4 {
        4 => match Icmpv4Message::parse(Ipv4Packet::parse(reply).ok()?.payload()).ok()? {
            Icmpv4Message::EchoReply(echo) => echo.data,
            _ => return None,
        },
        _ => match Icmpv6Message::parse(Ipv6Packet::parse(reply).ok()?.payload()).ok()? {
            Icmpv6Message::EchoReply(echo) => echo.data,
            _ => return None,
        },
    };
    data.try_into().ok().map(u32::from_be_bytes)
}

/// The first host asks the second so often, evenly, at so many a second; how often it was answered.
fn answered(world: &mut World, (from, to): (IpAddr, IpAddr), count: u32, rate: u32) -> u32 {
    let mut next = 0;
    for asked in 0..count {
        world.now = world.now + SECOND / rate;
        world.send(0, request(from, to, asked));
        for reply in world.hosts[0].got.drain(..) {
            assert_eq!(number(&reply), Some(next), "each is answered once, in order");
            next += 1;
        }
        for host in &mut world.hosts {
            host.seen.clear();
            host.sent.clear();
            host.got.clear();
        }
    }
    next
}

#[test]
fn a_neighbor_is_answered_each_echo_at_whatever_rate_it_asks() {
    for policy in [Policy::Ud, Policy::Rc, Policy::Uc] {
        let mut world = World::with(31, 2, SmConfig::default(), |mut config, _| {
            config.peer.policy = policy;
            config
        });
        world.pass(5 * SECOND);
        for addresses in [(v4(1), v4(2)), (v6(1), v6(2))] {
            world.send(0, request(addresses.0, addresses.1, 0));
            world.pass(SECOND);
            assert_eq!(world.hosts[0].got.len(), 1, "it is resolved, and connected");
            world.hosts[0].got.clear();
            // A whole second once; a tenth of it is as much a burst for the others.
            let count = if (policy, addresses) == (Policy::Rc, (v4(1), v4(2))) {
                DEMO_RATE
            } else {
                DEMO_RATE / 10
            };
            for rate in [DEMO_RATE, LINE_RATE] {
                let answered = answered(&mut world, addresses, count, rate);
                assert_eq!(answered, count, "{policy:?} {addresses:?} at {rate}");
            }
        }
    }
}

/// Addresses of neighbors, as many as may introduce themselves in one second.
fn crowd() -> Vec<Ipv4Addr> {
    (0..1000).map(|number: u32| Ipv4Addr::from_bits(0x0a01_0000 + number)).collect()
}

/// The addresses that a host has asked for by ARP since it was asked last.
fn asked_for(world: &mut World) -> BTreeSet<Ipv4Addr> {
    let sent = world.hosts[0].sent.drain(..).filter(|one| one.ether_type == EtherType::ARP);
    let parsed = sent.filter_map(|one| ArpPacket::<LinkAddress>::parse(&one.packet).ok());
    let requests = parsed.filter(|arp| arp.operation == ArpOperation::REQUEST);
    requests.map(|arp| arp.target_protocol).collect()
}

/// Two hosts of a large network.
fn large() -> World {
    let mut world = World::with(32, 2, SmConfig::default(), |config, nth| {
        config.address(IpAddr::V4(Ipv4Addr::new(10, 255, 0, nth as u8 + 1)), 8)
    });
    world.pass(5 * SECOND);
    world.assert_up();
    world
}

#[test]
fn a_thousand_neighbors_that_are_used_at_once_are_all_probed_at_once() {
    let mut world = large();
    let (own, link) =
        (world.hosts[0].interface.row().address, world.hosts[1].interface.row().address);
    for ip in crowd() {
        world.inject(0, EtherType::ARP, &claim(ip, link, own));
    }
    world.pass(SECOND);
    let now = world.now;
    for ip in crowd() {
        world.hosts[0].interface.handle_use(now, ip.into());
    }
    world.settle();
    world.pass(4 * SECOND);
    world.hosts[0].sent.clear();
    // Nobody confirms for five seconds; then the first probe of each is due, in one turn.
    world.pass(SECOND + SECOND / 2);
    let probed = asked_for(&mut world);
    assert_eq!(probed.len(), crowd().len());
    assert!(crowd().iter().all(|ip| probed.contains(ip)));
    let lost = world.hosts[0].interface.drop_rows().find(|(_, why, _)| *why == "frames_full");
    assert_eq!(lost, Some(("interface", "frames_full", 0)));
}

#[test]
fn five_thousand_neighbors_that_are_looked_for_at_once_are_all_asked_for() {
    let mut world = large();
    world.hosts[0].sent.clear();
    let crowd: BTreeSet<_> =
        (0..5000).map(|nth: u32| Ipv4Addr::from_bits(0x0a01_0000 + nth)).collect();
    for ip in &crowd {
        world.send(0, packet(IpAddr::V4(Ipv4Addr::new(10, 255, 0, 1)), (*ip).into(), b"who?"));
    }
    // A thousand may be asked for by broadcast at once, and then a thousand in a second.
    let (own, link) =
        (world.hosts[0].interface.row().address, world.hosts[1].interface.row().address);
    let mut asked = BTreeSet::new();
    for _ in 0..5 {
        let now = asked_for(&mut world);
        for ip in &now {
            world.inject(0, EtherType::ARP, &claim(*ip, link, own));
        }
        asked.extend(now);
        world.pass(SECOND);
    }
    assert_eq!(asked.len(), crowd.len());
}
