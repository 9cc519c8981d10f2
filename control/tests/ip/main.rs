//! Several nodes on one link in virtual time: what the machines do together, by seed.

mod dissected;
mod node;
mod world;

use node::{Node, link};
use pollux_control::address::AddressState;
use pollux_control::nd::ALL_NODES;
use pollux_control::neighbor::{NeighborConfig, Neighbors, State};
use pollux_verbs::rng::SeededRng;
use pollux_verbs::time::Time;
use pollux_wire::ip::IpProtocol;
use pollux_wire::ip::arp::{ArpOperation, ArpPacket};
use pollux_wire::ip::icmpv6;
use pollux_wire::ip::ipoib::EtherType;
use pollux_wire::ip::ipv6::Ipv6Header;
use pollux_wire::ip::link_address::LinkAddress;
use pollux_wire::ip::list::List;
use pollux_wire::ip::nd::{NdBody, NdMessage, RouterAdvertisement};
use pollux_wire::ip::nd_option::{NdOption, PrefixInformation};
use std::net::{IpAddr, Ipv4Addr};
use std::time::Duration;
use world::{Faults, World};

const SECOND: Duration = Duration::from_secs(1);
/// After this an address is probed, announced and ours.
const SETTLED: Duration = Duration::from_secs(12);

fn v4(number: u64) -> IpAddr {
    format!("10.0.0.{number}").parse().unwrap()
}

fn v6(number: u64) -> IpAddr {
    format!("fd00::{number}").parse().unwrap()
}

/// A link with nodes 1 to `count`, each with an address of each family.
fn world(count: u64, seed: u64, faults: Faults) -> World {
    let nodes = (1..=count).map(|number| {
        let mut node = Node::new(number, 0x40 + number as u32, seed * 100 + number);
        node.start(Time::START);
        node.configure(Time::START, &v4(number).to_string(), 24);
        node.configure(Time::START, &v6(number).to_string(), 64);
        node
    });
    World::new(seed, faults, nodes.collect())
}

fn bad_link() -> Faults {
    Faults { loss: 300_000, duplication: 100_000, delay: Duration::from_millis(300) }
}

#[test]
fn nodes_find_each_other_and_answer() {
    let mut world = world(3, 1, Faults::default());
    world.run_for(SETTLED);
    for (from, to) in [(0, v4(2)), (0, v6(3)), (1, v6(1)), (2, v4(1))] {
        let now = world.now;
        world.nodes[from].ping(now, to);
        world.run_for(SECOND);
        assert_eq!(world.nodes[from].echoes.pop(), Some(to));
        assert!(world.nodes[from].duplicates.is_empty());
    }
    // Whoever was asked knows who asked, without asking back.
    assert_eq!(world.nodes[1].neighbors.address(v4(1)), Some(link(1, 0x41)));
}

// req: cm-resolution-on-ud
#[test]
fn whatever_happens_on_the_link_resolution_ends_and_no_packet_is_lost_in_it() {
    for seed in 0..60 {
        let mut world = world(4, seed, bad_link());
        world.run_for(SETTLED);
        let mut rng = SeededRng::new(seed);
        for _ in 0..60 {
            let now = world.now;
            let from = rng.below(4) as usize;
            // Number 5 and above do not exist.
            let number = 1 + rng.below(6);
            let to = if rng.happens(500_000) { v4(number) } else { v6(number) };
            world.nodes[from].ping(now, to);
            world.run_for(rng.duration(3 * SECOND));
        }
        world.run_for(30 * SECOND);
        for (number, node) in world.nodes.iter().enumerate() {
            let fates = node.fates;
            let ends = fates.sent + fates.unreachable + fates.no_route;
            assert_eq!(fates.wanted, ends, "seed {seed}, node {number}: {fates:?}");
            for row in node.rows(world.now) {
                let is_stuck = matches!(row.state, State::Incomplete { .. } | State::Probe { .. });
                assert!(!is_stuck, "seed {seed}, node {number}: {row:?}");
            }
        }
        // Three questions for each that is asked for, and pauses between failures.
        assert!(world.to_groups < 1200, "seed {seed}: {} broadcasts", world.to_groups);
        world.faults = Faults::default();
        let now = world.now;
        let heard = world.nodes[0].echoes.len();
        world.nodes[0].ping(now, v6(2));
        world.run_for(10 * SECOND);
        assert!(world.nodes[0].echoes.len() > heard, "seed {seed}: mended, and still deaf");
    }
}

// req: ud-slaac
#[test]
fn no_two_nodes_hold_one_address() {
    for seed in 0..100 {
        let faults = Faults { delay: Duration::from_millis(50), ..Faults::default() };
        let mut world = world(2, seed, faults);
        // The second begins at any time: before, while, or after the first has it.
        let mut rng = SeededRng::new(seed);
        let now = world.now;
        world.nodes[0].configure(now, "10.0.0.9", 24);
        world.nodes[0].configure(now, "fd00::9", 64);
        world.run_for(rng.duration(SETTLED));
        let now = world.now;
        world.nodes[1].configure(now, "10.0.0.9", 24);
        world.nodes[1].configure(now, "fd00::9", 64);
        world.run_for(2 * SETTLED);
        for ip in [v4(9), v6(9)] {
            let holders = world.nodes.iter().filter(|node| node.addresses.is_ours(ip)).count();
            let losers = world.nodes.iter().filter(|node| node.duplicates.contains(&ip)).count();
            assert_eq!((holders <= 1, holders + losers), (true, 2), "seed {seed}: {ip}");
        }
    }
}

// req: ud-qpn-change
#[test]
fn a_restarted_peer_is_found_at_its_new_queue_pair() {
    for announces in [true, false] {
        let mut world = world(2, 7, Faults::default());
        world.run_for(SETTLED);
        for to in [v4(2), v6(2)] {
            let now = world.now;
            world.nodes[0].ping(now, to);
        }
        world.run_for(SECOND);
        assert_eq!(world.nodes[0].echoes.len(), 2);
        let (now, moved) = (world.now, link(2, 0x99));
        world.nodes[1].link = moved;
        world.nodes[1].arp.set_link_address(now, moved);
        world.nodes[1].nd.set_link_address(moved);
        if !announces {
            world.faults.loss = 1_000_000;
            world.run_for(5 * SECOND);
            world.faults.loss = 0;
        }
        let began = world.now;
        let (mut seen, mut last) = (0, [false; 2]);
        while !last.iter().all(|found| *found) {
            let now = world.now;
            for to in [v4(2), v6(2)] {
                world.nodes[0].ping(now, to);
            }
            world.run_for(SECOND);
            let new = world.nodes[0].echoes[2 + seen..].to_vec();
            seen += new.len();
            last = [last[0] || new.contains(&v4(2)), last[1] || new.contains(&v6(2))];
            assert!(world.now < began + 60 * SECOND, "announced: {announces}, {last:?}");
        }
        assert!(!announces || world.now <= began + 2 * SECOND, "told, and so known at once");
        assert_eq!(world.nodes[0].neighbors.address(v4(2)), Some(moved));
        assert_eq!(world.nodes[0].neighbors.address(v6(2)), Some(moved));
    }
}

fn advertisement(lifetime: u16, prefix: PrefixInformation) -> Vec<u8> {
    let body =
        RouterAdvertisement { router_lifetime_seconds: lifetime, ..RouterAdvertisement::default() };
    let options = [NdOption::SourceLinkAddress(link(2, 0x42)), NdOption::Prefix(prefix)];
    let message =
        NdMessage { body: NdBody::RouterAdvertisement(body), options: List::of(&options) };
    let header = Ipv6Header {
        next_header: IpProtocol::ICMPV6,
        hop_limit: 255,
        source: "fe80::202:c903:0:1002".parse().unwrap(),
        destination: ALL_NODES,
        ..Ipv6Header::default()
    };
    let mut packet = vec![0; Ipv6Header::LEN + message.wire_len()];
    let room = header.write_packet(message.wire_len(), &mut packet).unwrap();
    message.write(room).unwrap();
    icmpv6::fill_checksum(room, &header.pseudo_header()).unwrap();
    packet
}

// req: ud-slaac
#[test]
fn a_router_gives_an_address_and_a_way_out_and_takes_them_back() {
    let mut world = world(2, 3, Faults::default());
    world.run_for(SETTLED);
    let prefix = PrefixInformation {
        prefix_length: 64,
        on_link: true,
        autonomous: true,
        valid_lifetime_seconds: 600,
        preferred_lifetime_seconds: 300,
        prefix: "2001:db8::".parse().unwrap(),
    };
    let now = world.now;
    world.nodes[0].receive(now, EtherType::IPV6, &advertisement(400, prefix));
    let own: IpAddr = "2001:db8::202:c903:0:1001".parse().unwrap();
    let far: IpAddr = "2a00::1".parse().unwrap();
    world.run_for(5 * SECOND);
    let state = |world: &World| {
        world.nodes[0].addresses.iter().find(|one| one.ip == own).map(|one| one.state)
    };
    assert_eq!(state(&world), Some(AddressState::Preferred));
    assert_eq!(world.nodes[0].addresses.source_for(far), Some(own));
    // The router's link address came with what it said: nobody is asked.
    let (now, asked) = (world.now, world.to_groups);
    world.nodes[0].ping(now, far);
    world.run_for(SECOND);
    assert_eq!((world.to_groups, world.nodes[0].fates.sent), (asked, 1));
    world.run_for(295 * SECOND);
    assert_eq!(state(&world), Some(AddressState::Deprecated));
    world.run_for(100 * SECOND);
    let now = world.now;
    world.nodes[0].ping(now, far);
    assert_eq!(world.nodes[0].fates.no_route, 1, "it is no router any more");
    world.run_for(200 * SECOND);
    assert_eq!(state(&world), None);
}

/// Forged packets by the thousand, from link addresses that are nowhere: whoever is in use stays,
/// and what is kept has its limit.
#[test]
fn a_storm_of_forged_claims_does_not_part_two_nodes() {
    for seed in 0..20 {
        let mut world = world(2, seed, Faults::default());
        let config = NeighborConfig { entries_max: 32, ..NeighborConfig::default() };
        world.nodes[0].neighbors = Neighbors::new(config, seed);
        world.run_for(SETTLED);
        let mut rng = SeededRng::new(seed);
        for round in 0..40 {
            let now = world.now;
            for to in [v4(2), v6(2)] {
                world.nodes[0].ping(now, to);
            }
            world.run_for(SECOND);
            assert_eq!(world.nodes[0].echoes.len(), 2 * (round + 1), "seed {seed}");
            for _ in 0..200 {
                let now = world.now;
                world.nodes[0].receive(now, EtherType::ARP, &forged(&mut rng));
                world.nodes[0].drain(now);
            }
            assert!(world.nodes[0].rows(world.now).len() <= 32);
        }
    }
}

/// A question to node 1, or an answer, from anybody but nodes 1 and 2.
fn forged(rng: &mut SeededRng) -> Vec<u8> {
    let operation = ArpOperation(1 + rng.below(2) as u16);
    let nowhere = link(1000 + rng.below(100_000), 2 + rng.below(1000) as u32);
    let packet = ArpPacket {
        operation,
        sender_hardware: nowhere,
        sender_protocol: Ipv4Addr::from_bits(0x0a00_0003 + rng.below(0xff_0000) as u32),
        target_hardware: link(1, 0x41),
        target_protocol: Ipv4Addr::new(10, 0, 0, 1),
    };
    let mut bytes = vec![0; ArpPacket::<LinkAddress>::LEN];
    packet.write(&mut bytes).unwrap();
    bytes
}
