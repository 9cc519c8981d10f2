//! Datagram mode: up and down, resolution, groups.

use crate::world::{World, packet, v4, v6};
use pollux_control::address::NextHop;
use pollux_control::ipoib::{
    Adjacency, GroupTerms, InterfaceConfig, IpoibInterface, PacketSource, PortView, ReceivedPacket,
};
use pollux_control::mad::{Envelope, MadAddress};
use pollux_control::nd::{Nd, NdConfig};
use pollux_fabric::sm::{Partitions, SmConfig};
use pollux_verbs::rng::SeededRng;
use pollux_verbs::time::Time;
use pollux_wire::address::{Gid, Guid, Lid, Qpn};
use pollux_wire::ethernet::EtherType;
use pollux_wire::ip::arp::{ArpOperation, ArpPacket};
use pollux_wire::ip::link_address::LinkAddress;
use pollux_wire::keys::{PKey, QKey};
use pollux_wire::mad::sa::{McMemberRecord, SaMad};
use pollux_wire::mad::{MadStatus, Method};
use std::collections::BTreeSet;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::time::Duration;

const SECOND: Duration = Duration::from_secs(1);

fn assert_all_reach(world: &mut World, within: Duration) {
    let hosts = world.hosts.len() as u8;
    for from in 0..hosts {
        for to in (0..hosts).filter(|to| *to != from) {
            let (one, other) = (usize::from(from), usize::from(to));
            let datagram = packet(v4(from + 1), v4(to + 1), b"four");
            assert!(world.reaches(one, other, &datagram, within), "{from} to {to}");
        }
    }
}

fn row(world: &World, nth: usize) -> (&'static str, String, Option<&'static str>) {
    let row = world.hosts[nth].interface.row();
    (row.state, row.why, row.waits_for)
}

// req: cm-ud-always
#[test]
fn all_hosts_resolve_each_other() {
    let mut world = World::up(1, 4);
    assert_all_reach(&mut world, SECOND);
    for from in 1..=4u16 {
        for to in (1..=4u16).filter(|to| *to != from) {
            let (one, other) = (usize::from(from) - 1, usize::from(to) - 1);
            let datagram = packet(v6(from), v6(to), b"six");
            assert!(world.reaches(one, other, &datagram, SECOND), "{from} to {to} by IPv6");
        }
    }
}

// req: ud-qkey, cm-default-mtu, ud-broadcast-gid
#[test]
fn the_broadcast_group_rules_the_link() {
    let world = World::up(2, 2);
    let row = world.hosts[0].interface.row();
    let link = row.link.unwrap();
    assert_eq!((link.mtu, link.qkey.0), (2044, 0x0b1b));
    assert_eq!(world.hosts[0].port_driver.link, Some(link));
    let broadcast = LinkAddress::group(Gid([
        0xff, 0x12, 0x40, 0x1b, 0xff, 0xff, 0, 0, 0, 0, 0, 0, 0xff, 0xff, 0xff, 0xff,
    ]));
    assert!(world.hosts[0].port_driver.attached.contains_key(&broadcast.gid));
}

// req: ud-full-member, ud-pkey-configured
#[test]
fn an_interface_waits_for_its_p_key_and_full_membership_with_a_reason() {
    let mut world = World::new(3, 2);
    world.seen = |nth, mut view| {
        if nth == 0 {
            view.pkeys = vec![PKey(0x8001), PKey(0)];
        }
        view
    };
    world.pass(3 * SECOND);
    let (state, why, waits_for) = row(&world, 0);
    assert_eq!((state, why.as_str()), ("down", "the port's table has no key of the partition"));
    assert_eq!(waits_for, Some("the subnet manager to give the port the key"));
    world.seen = |nth, mut view| {
        if nth == 0 {
            view.pkeys = vec![PKey(0x7fff)];
        }
        view
    };
    world.pass(SECOND);
    assert!(row(&world, 0).1.contains("only a limited member"), "{:?}", row(&world, 0));
    world.seen = |_, view| view;
    world.pass(3 * SECOND);
    world.assert_up();
    assert_all_reach(&mut world, SECOND);
}

#[test]
fn a_silent_administrator_is_asked_again_with_pauses_until_it_speaks() {
    let mut world = World::new(4, 2);
    world.mads_lost = 1_000_000;
    world.pass(60 * SECOND);
    let (state, why, _) = row(&world, 0);
    assert!(state == "joining" || state == "waiting", "{state}: {why}");
    world.pass(300 * SECOND);
    world.mads_lost = 0;
    world.pass(40 * SECOND);
    world.assert_up();
    assert_all_reach(&mut world, SECOND);
}

fn managed(text: &str) -> SmConfig {
    let partitions = Partitions::read("partitions.conf", text).unwrap();
    SmConfig { partitions, ..SmConfig::default() }
}

#[test]
fn a_link_too_narrow_for_ipv6_is_refused_with_a_remedy() {
    let narrow = managed("Default=0x7fff, ipoib, mtu=3 : ALL=full;");
    let mut world = World::with(5, 2, narrow, |mut config, nth| {
        config.ipv6 = nth == 1;
        config
    });
    world.pass(5 * SECOND);
    assert_eq!(row(&world, 0).0, "up", "enough for IPv4");
    let (state, why, _) = row(&world, 1);
    assert_eq!(state, "waiting");
    assert!(why.contains("1020 bytes, and 1280 are needed"), "{why}");
}

/// The fabric's own administrator makes no broadcast groups, so one is played here.
#[test]
fn a_broadcast_group_that_is_not_there_is_made_if_that_was_configured() {
    let world = World::up(15, 1);
    let view = world.view(0);
    for makes in [false, true] {
        let mut config = InterfaceConfig::new(Guid(1), Qpn(0x48), PKey::DEFAULT);
        config.create = makes.then(GroupTerms::default);
        let mut interface = IpoibInterface::new(Time::START, config, 15);
        interface.handle_port(Time::START, &view);
        let join = interface.poll_mad().unwrap();
        let (mask, _) = SaMad::parse(&join.mad).record::<McMemberRecord>().unwrap();
        assert_eq!(mask.0, 0x1_0083, "as Linux joins, which makes no group");
        let refused = MadStatus::SA_INSUFFICIENT_COMPONENTS;
        interface.handle_mad(Time::START, &answered(&join, refused, |record| record));
        let Some(create) = interface.poll_mad() else {
            assert!(!makes, "nobody asked to make the group");
            assert_eq!(interface.row().state, "waiting");
            continue;
        };
        assert!(makes, "somebody makes groups unasked");
        let made = |record| McMemberRecord { mlid: Lid(0xc001), ..record };
        interface.handle_mad(Time::START, &answered(&create, MadStatus::OK, made));
        let link = interface.row().link.unwrap();
        assert_eq!((link.qkey, link.mtu), (QKey::IPOIB_OPENSM, 2044));
    }
}

fn answered(
    question: &Envelope,
    status: MadStatus,
    change: impl Fn(McMemberRecord) -> McMemberRecord,
) -> Envelope {
    let mut mad = SaMad::parse(&question.mad);
    let (mask, record) = mad.record::<McMemberRecord>().unwrap();
    mad = SaMad { header: mad.header, ..SaMad::new(Method::GET_RESP, 0, mask, change(record)) };
    mad.header.method = Method::GET_RESP;
    mad.header.status = status;
    Envelope { peer: question.peer, mad: mad.emit() }
}

// req: ud-path-resolution
#[test]
fn after_a_change_of_lids_all_hosts_reach_each_other_again() {
    let mut world = World::up(6, 3);
    assert_all_reach(&mut world, SECOND);
    let guid = |world: &World, nth: usize| {
        let at = world.hosts[nth].at;
        world.subnet.nodes()[at.node as usize].gid(at.port).guid()
    };
    let lids = [0, 1, 2].map(|nth| world.view(nth).lid);
    let swapped = (0..3).map(|nth| (guid(&world, nth), lids[(nth + 1) % 3])).collect();
    let manager = world.manager();
    world.managers.stop(&mut world.subnet, manager);
    let config = SmConfig { lids: swapped, ..SmConfig::default() };
    world.managers.start(&mut world.subnet, manager, config);
    world.pass(20 * SECOND);
    assert_eq!(world.view(0).lid, lids[1], "the manager did as it was told");
    world.assert_up();
    assert_all_reach(&mut world, 5 * SECOND);
}

// req: ud-path-resolution
#[test]
fn paths_are_asked_for_again_on_reregistration_and_forgotten_with_the_lid() {
    let mut world = World::up(32, 3);
    assert_all_reach(&mut world, SECOND);
    let asked = |world: &World| -> Vec<bool> {
        world.hosts[0].interface.path_rows().map(|path| path.is_asked).collect()
    };
    assert_eq!(asked(&world), [false, false]);
    let now = world.now;
    world.hosts[0].interface.handle_reregister(now);
    assert_eq!(asked(&world), [true, true], "the subnet manager may have other paths");
    world.settle();
    world.pass(SECOND);
    assert_eq!(asked(&world), [false, false], "the subnet administrator has answered");
    let view = PortView { lid: Lid(0x77), ..world.view(0) };
    let now = world.now;
    world.hosts[0].interface.handle_port(now, &view);
    assert_eq!(asked(&world), [false; 0], "paths from another LID are of no use");
}

#[test]
fn a_new_peer_takes_the_room_of_the_path_that_was_used_least_recently() {
    let mut world = World::with(33, 4, SmConfig::default(), |mut config, nth| {
        config.paths_max = if nth == 0 { 2 } else { config.paths_max };
        config
    });
    world.pass(5 * SECOND);
    for to in [2, 3, 4] {
        let datagram = packet(v4(1), v4(to), b"there");
        assert!(world.reaches(0, usize::from(to) - 1, &datagram, SECOND), "to {to}");
        world.pass(SECOND);
    }
    let kept: BTreeSet<_> = world.hosts[0].interface.path_rows().map(|path| path.gid).collect();
    let latest = [2, 3].map(|nth: usize| world.hosts[nth].interface.row().address.gid);
    assert_eq!(kept, BTreeSet::from(latest));
}

#[test]
fn a_path_that_was_evicted_while_it_was_queried_is_not_queried_twice() {
    let mut world = World::with(34, 1, SmConfig::default(), |mut config, _| {
        config.paths_max = 2;
        config.neighbor.unsolicited_entries_per_second_max = 0;
        config
    });
    world.pass(5 * SECOND);
    let manager = world.manager();
    world.managers.stop(&mut world.subnet, manager);
    // Three hosts ask in turn, so each evicts the path of another one.
    for turn in 0..300_u16 {
        let host = turn % 3;
        let sender_hardware = LinkAddress {
            rc: false,
            uc: false,
            qpn: Qpn(0x99),
            gid: Gid::new(Gid::DEFAULT_PREFIX, Guid(0x7700 + u64::from(host))),
        };
        let request = ArpPacket {
            operation: ArpOperation::REQUEST,
            sender_hardware,
            sender_protocol: Ipv4Addr::new(10, 0, 0, 100 + host as u8),
            target_hardware: LinkAddress::default(),
            target_protocol: Ipv4Addr::new(10, 0, 0, 1),
        };
        let mut bytes = vec![0; ArpPacket::<LinkAddress>::LEN];
        request.write(&mut bytes).unwrap();
        world.inject(0, EtherType::ARP, &bytes);
    }
    let (queued, in_flight) = world.hosts[0].interface.load().sa_queries;
    assert!((1..=3).contains(&(queued + in_flight)), "{queued} and {in_flight} queries of 3 paths");
}

#[test]
fn an_interface_stays_up_while_the_administrator_is_silent() {
    let mut world = World::up(16, 3);
    assert_all_reach(&mut world, SECOND);
    let group = IpAddr::V4(Ipv4Addr::new(239, 1, 2, 3));
    let now = world.now;
    assert!(world.hosts[1].interface.join(now, group));
    world.settle();
    let datagram = packet(v4(1), group, b"to the group");
    assert!(world.reaches(0, 1, &datagram, SECOND));
    let (now, manager) = (world.now, world.manager());
    world.managers.stop(&mut world.subnet, manager);
    world.hosts.iter_mut().for_each(|host| host.interface.handle_reregister(now));
    world.settle();
    for _ in 0..6 {
        world.pass(10 * SECOND);
        world.assert_up();
        let rows: Vec<_> = world.hosts[0].interface.group_rows().collect();
        assert!(world.reaches(0, 1, &datagram, SECOND), "{rows:?}");
    }
    assert_all_reach(&mut world, SECOND);
}

#[test]
fn all_groups_are_joined_again_at_a_new_subnet_manager() {
    let mut world = World::up(7, 3);
    assert_all_reach(&mut world, SECOND);
    let group = IpAddr::V4(Ipv4Addr::new(239, 1, 2, 3));
    let now = world.now;
    assert!(world.hosts[1].interface.join(now, group));
    world.settle();
    let manager = world.manager();
    world.managers.stop(&mut world.subnet, manager);
    world.pass(5 * SECOND);
    assert_all_reach(&mut world, SECOND);
    world.managers.start(&mut world.subnet, manager, SmConfig::default());
    world.pass(20 * SECOND);
    let now = world.now;
    world.hosts.iter_mut().for_each(|host| host.interface.handle_reregister(now));
    world.settle();
    world.pass(SECOND);
    world.assert_up();
    let datagram = packet(v4(1), group, b"to the group");
    assert!(world.reaches(0, 1, &datagram, SECOND), "{:?}", world.hosts[0].interface.row());
    assert_all_reach(&mut world, SECOND);
}

// req: ud-send-only, ud-group-traps, ud-multicast-membership, cm-multicast-on-ud
#[test]
fn groups_are_joined_to_send_and_fall_back_to_all_routers() {
    let mut world = World::up(8, 4);
    let group = IpAddr::V4(Ipv4Addr::new(239, 1, 2, 3));
    let routers = IpAddr::V4(Ipv4Addr::new(224, 0, 0, 2));
    let datagram = packet(v4(1), group, b"to the group");
    assert!(!world.reaches(0, 1, &datagram, SECOND), "nobody is in it");
    let dropped = |world: &World| {
        let rows = world.hosts[0].interface.drop_rows();
        rows.filter(|row| row.1 == "no_group").map(|row| row.2).sum::<u64>()
    };
    assert!(dropped(&world) > 0);

    let now = world.now;
    assert!(world.hosts[2].interface.join(now, routers));
    assert!(world.hosts[2].interface.join(now, group));
    world.hosts[2].interface.leave(now, group);
    world.settle();
    world.pass(2 * SECOND);
    world.hosts[2].got.clear();
    world.send(0, datagram.clone());
    let heard_by_router = |world: &World| world.heard(2, &datagram);
    assert!(heard_by_router(&world), "a router hears what nobody else does");

    let now = world.now;
    assert!(world.hosts[1].interface.join(now, group));
    world.pass(2 * SECOND);
    assert!(world.reaches(0, 1, &datagram, SECOND), "somebody is in it now");
    let slow_path = world.hosts[0].slow_path;
    assert!(world.reaches(0, 1, &datagram, SECOND));
    assert_eq!(world.hosts[0].slow_path, slow_path, "the data path sends datagrams to the group");
    let rows: Vec<_> = world.hosts[0].interface.group_rows().collect();
    assert!(rows.iter().any(|row| row.state == "send-only" && !row.is_full_member), "{rows:?}");

    let now = world.now;
    world.hosts[1].interface.leave(now, group);
    world.pass(2 * SECOND);
    assert!(!world.reaches(0, 1, &datagram, SECOND), "and is not any more");
    assert!(!world.hosts[1].port_driver.attached.keys().any(|mgid| mgid.0[12..] == [15, 1, 2, 3]));
}

// req: cm-resolution-on-ud, cm-reply-own-address
#[test]
fn an_arp_reply_waits_for_the_path_to_the_requester() {
    let mut world = World::up(9, 2);
    world.mads_lost = 1_000_000;
    world.send(0, packet(v4(1), v4(2), b"who are you?"));
    world.pass(SECOND / 5);
    let replies = |world: &World| {
        let sent = world.hosts[1].sent.iter().filter(|frame| frame.ether_type == EtherType::ARP);
        let parsed = sent.filter_map(|frame| ArpPacket::<LinkAddress>::parse(&frame.packet).ok());
        parsed.filter(|arp| arp.operation == ArpOperation::REPLY).collect::<Vec<_>>()
    };
    assert!(replies(&world).is_empty(), "there is no way yet");
    world.mads_lost = 0;
    world.pass(5 * SECOND);
    let replies = replies(&world);
    assert!(!replies.is_empty());
    let own = world.hosts[1].interface.row().address;
    assert!(replies.iter().all(|reply| reply.sender_hardware == own), "our own address");
    assert!(world.reaches(0, 1, &packet(v4(1), v4(2), b"now"), SECOND));
}

// req: ud-qpn-change
#[test]
fn a_peer_with_another_queue_pair_is_found_though_its_announcement_was_lost() {
    let mut world = World::up(10, 2);
    let datagram = packet(v4(1), v4(2), b"steadily");
    assert!(world.reaches(0, 1, &datagram, SECOND));
    world.weather.lost = 1_000_000;
    world.restart(1, Qpn(0x99));
    world.pass(8 * SECOND);
    world.weather.lost = 0;
    world.hosts[1].got.clear();
    let mut waited = 0;
    while world.hosts[1].got.is_empty() {
        world.send(0, datagram.clone());
        world.pass(SECOND);
        waited += 1;
        assert!(waited < 90, "still lost after {waited} s");
    }
}

#[test]
fn a_crowd_of_liars_costs_tables_their_limits_and_no_more() {
    let mut world = World::with(11, 3, SmConfig::default(), |mut config, _| {
        config.neighbor.entries_max = 64;
        config.paths_max = 64;
        config
    });
    world.pass(5 * SECOND);
    assert_all_reach(&mut world, SECOND);
    let mut rng = SeededRng::new(11);
    let victim = world.hosts[0].interface.row().address;
    for _ in 0..3000 {
        let (ip, guid) = (rng.next_u64() as u32, Guid(rng.next_u64()));
        let gid = Gid::new(Gid::DEFAULT_PREFIX, guid);
        let qpn = Qpn(rng.below(1 << 24) as u32);
        let lie = ArpPacket {
            operation: if rng.happens(500_000) {
                ArpOperation::REQUEST
            } else {
                ArpOperation::REPLY
            },
            sender_hardware: LinkAddress { rc: true, uc: false, qpn, gid },
            sender_protocol: Ipv4Addr::from_bits(0x0a00_0000 | ip & 0xff),
            target_hardware: victim,
            target_protocol: Ipv4Addr::new(10, 0, 0, 1),
        };
        let mut bytes = vec![0; ArpPacket::<LinkAddress>::LEN];
        lie.write(&mut bytes).unwrap();
        world.inject(0, EtherType::ARP, &bytes);
        if rng.happens(20_000) {
            world.pass(SECOND / 50);
        }
    }
    assert!(world.hosts[0].interface.neighbor_rows().count() <= 64);
    assert!(world.hosts[0].interface.path_rows().count() <= 64);
    assert!(world.hosts[0].interface.peer_rows().count() <= 64);
    world.pass(120 * SECOND);
    assert_all_reach(&mut world, 30 * SECOND);
}

/// A claim of an address.
pub fn claim(ip: Ipv4Addr, link: LinkAddress, to: LinkAddress) -> Vec<u8> {
    let claim = ArpPacket {
        operation: ArpOperation::REQUEST,
        sender_hardware: link,
        sender_protocol: ip,
        target_hardware: to,
        target_protocol: Ipv4Addr::new(10, 0, 0, 1),
    };
    let mut bytes = vec![0; ArpPacket::<LinkAddress>::LEN];
    claim.write(&mut bytes).unwrap();
    bytes
}

#[test]
fn claims_about_off_link_and_broadcast_addresses_are_ignored() {
    let mut world = World::up(16, 2);
    let (victim, liar) = (world.hosts[0].interface.row().address, world.hosts[1].interface.row());
    let broadcast = world.hosts[0].port_driver.bound.get(&v4(255)).copied();
    assert!(broadcast.is_some());
    for ip in [Ipv4Addr::new(192, 0, 2, 7), Ipv4Addr::new(10, 0, 0, 255)] {
        world.inject(0, EtherType::ARP, &claim(ip, liar.address, victim));
    }
    let bound = &world.hosts[0].port_driver.bound;
    assert_eq!(bound.get(&v4(255)).copied(), broadcast);
    assert!(!bound.contains_key(&IpAddr::from([192, 0, 2, 7])), "{bound:?}");
    world.inject(0, EtherType::ARP, &claim(Ipv4Addr::new(10, 0, 0, 9), liar.address, victim));
    assert!(world.hosts[0].port_driver.bound.contains_key(&v4(9)), "on the link it may be new");
}

#[test]
fn claims_in_the_name_of_another_interface_are_dropped() {
    let mut world = World::up(17, 3);
    assert_all_reach(&mut world, SECOND);
    let rows: Vec<_> = world.hosts.iter().map(|host| host.interface.row()).collect();
    let bound = world.hosts[0].port_driver.bound.clone();
    let lie = claim(Ipv4Addr::new(10, 0, 0, 2), rows[2].address, rows[0].address);
    let (liar, qpn) = (LinkAddress { qpn: Qpn(7), ..rows[2].address }, rows[2].address.qpn);
    for (gid, qpn) in [(rows[1].address.gid, qpn), (liar.gid, liar.qpn)] {
        let lid = rows[2].link.unwrap().lid;
        let from = PacketSource::Datagram { qpn, lid, gid: Some(gid), group: None };
        let received = ReceivedPacket { ether_type: EtherType::ARP, packet: &lie, from };
        world.hosts[0].interface.handle_packet(world.now, received);
        world.settle();
    }
    assert_eq!(world.hosts[0].port_driver.bound, bound);
    let mut drops = world.hosts[0].interface.drop_rows();
    assert!(drops.any(|row| row.1 == "imposter" && row.2 == 2));
}

#[test]
fn a_claim_does_not_move_an_address_from_a_neighbor_that_answers() {
    let mut world = World::up(25, 3);
    assert_all_reach(&mut world, SECOND);
    let rows: Vec<_> = world.hosts.iter().map(|host| host.interface.row()).collect();
    let bound = world.hosts[0].port_driver.bound.clone();
    let lie = claim(Ipv4Addr::new(10, 0, 0, 2), rows[2].address, rows[0].address);
    let own = &world.hosts[2];
    let from = PacketSource::Datagram {
        qpn: own.qpn,
        lid: rows[2].link.unwrap().lid,
        gid: Some(rows[2].address.gid),
        group: None,
    };
    for _ in 0..10 {
        let received = ReceivedPacket { ether_type: EtherType::ARP, packet: &lie, from };
        world.hosts[0].interface.handle_packet(world.now, received);
        world.settle();
        world.pass(SECOND / 10);
        assert_eq!(world.hosts[0].port_driver.bound, bound);
    }
    assert!(world.reaches(0, 1, &packet(v4(1), v4(2), b"to whom it is"), SECOND));
}

/// As with bonding, or a virtual address: another node announces what the last one gave up.
#[test]
fn an_address_that_moves_is_followed_within_half_a_second() {
    let mut world = World::up(26, 3);
    assert_all_reach(&mut world, SECOND);
    let now = world.now;
    world.hosts[1].interface.remove_address(now, v4(2));
    world.settle();
    assert!(world.hosts[2].interface.add_address(now, v4(2), 24));
    world.pass(SECOND / 2);
    let datagram = packet(v4(1), v4(2), b"to who has it now");
    world.hosts[2].got.clear();
    world.send(0, datagram.clone());
    assert!(world.heard(2, &datagram));
}

#[test]
fn any_datagram_and_any_packet_is_survived() {
    let mut world = World::up(12, 2);
    let mut rng = SeededRng::new(12);
    for round in 0..4000u32 {
        let bytes: Vec<u8> = (0..rng.below(300)).map(|_| rng.next_u64() as u8).collect();
        let kinds = [EtherType::ARP, EtherType::RARP, EtherType::IPV4, EtherType::IPV6];
        world.inject(0, kinds[round as usize % 4], &bytes);
        let mut mad = [0; 256];
        mad.iter_mut().for_each(|byte| *byte = rng.next_u64() as u8);
        mad[..4].copy_from_slice(&[1, [3, 7][round as usize % 2], 2, rng.next_u64() as u8]);
        let peer = MadAddress::gsi(Lid(1), 0, PKey::DEFAULT);
        let now = world.now;
        world.hosts[0].interface.handle_mad(now, &Envelope { peer, mad });
        world.settle();
    }
    world.pass(60 * SECOND);
    assert_all_reach(&mut world, 5 * SECOND);
}

#[test]
fn an_unreachable_neighbor_causes_an_icmp_error() {
    let mut world = World::up(13, 2);
    world.send(0, packet(v4(1), v4(77), b"nobody there"));
    world.pass(10 * SECOND);
    let got = &world.hosts[0].got;
    assert!(got.iter().any(|it| it[9] == 1 && it[20] == 3), "host unreachable: {got:?}");
    let adjacencies: Vec<_> = world.hosts[0].port_driver.peers.values().collect();
    assert!(adjacencies.iter().all(|adjacency| !matches!(adjacency, Adjacency::Connected { .. })));
}

/// A neighbor solicitation from a port that the administrator does not know.
#[test]
fn an_answer_of_neighbor_discovery_that_cannot_go_is_no_reason_to_tell_ourselves() {
    let mut world = World::up(24, 2);
    world.hosts[0].got.clear();
    let (source, target) = (Ipv6Addr::new(0xfd00, 0, 0, 0, 0, 0, 0, 0x77), v6(1));
    let gid = Gid::new(Gid::DEFAULT_PREFIX, Guid(0xdead));
    let link = LinkAddress { rc: false, uc: false, qpn: Qpn(0x77), gid };
    let IpAddr::V6(target) = target else { unreachable!() };
    let config = NdConfig { link, detections: 0, retry_after: SECOND };
    let mut stranger = Nd::new(config, 24);
    stranger.solicit(source, target, Some(world.hosts[0].interface.row().address));
    let question = stranger.poll_transmit().unwrap().packet;
    for _ in 0..2 {
        world.inject(0, EtherType::IPV6, &question);
        world.pass(2 * SECOND);
    }
    let drops: Vec<_> = world.hosts[0].interface.drop_rows().collect();
    let unreachable = drops.iter().find(|row| (row.0, row.1) == ("interface", "unreachable"));
    assert_eq!(unreachable.unwrap().2, 2, "no answer could go");
    assert_eq!(world.hosts[0].got, Vec::<Vec<u8>>::new(), "no ICMP error for our own sockets");
}

#[test]
fn a_datagram_from_another_lid_of_a_peer_is_reason_to_ask_for_its_path() {
    let mut world = World::up(21, 2);
    assert_all_reach(&mut world, SECOND);
    world.pass(2 * SECOND);
    let (row, lid) = (world.hosts[1].interface.row(), world.view(1).lid);
    let datagram = packet(v4(2), v4(1), b"from elsewhere");
    let is_asked = |world: &mut World, lid, gid| {
        let from = PacketSource::Datagram { qpn: row.address.qpn, lid, gid, group: None };
        let received = ReceivedPacket { ether_type: EtherType::IPV4, packet: &datagram, from };
        world.hosts[0].interface.handle_packet(world.now, received);
        let mut paths = world.hosts[0].interface.path_rows();
        let is_asked = paths.find(|path| path.gid == row.address.gid).unwrap().is_asked;
        drop(paths);
        world.pass(2 * SECOND);
        is_asked
    };
    assert!(!is_asked(&mut world, lid, None), "it comes from where it is");
    assert!(is_asked(&mut world, Lid(lid.0 + 1), None), "as its address and queue pair tell");
    assert!(is_asked(&mut world, Lid(lid.0 + 1), Some(row.address.gid)));
}

#[test]
fn duplicate_detection_waits_until_the_group_is_joined() {
    let mut world = World::up(22, 2);
    world.mads_lost = 1_000_000;
    let (now, ip) = (world.now, v6(99));
    assert!(world.hosts[0].interface.add_address(now, ip, 64));
    world.pass(20 * SECOND);
    assert!(!world.hosts[0].port_driver.own.contains(&ip), "its group is not joined");
    world.mads_lost = 0;
    world.pass(60 * SECOND);
    assert!(world.hosts[0].port_driver.own.contains(&ip));
}

#[test]
fn a_prefix_stays_on_the_link_as_long_as_an_address_of_ours_has_it() {
    let mut world = World::up(23, 2);
    let now = world.now;
    assert!(world.hosts[0].interface.add_address(now, v4(9), 24));
    assert!(world.hosts[0].interface.add_address(now, IpAddr::from([10, 0, 0, 10]), 25));
    world.settle();
    let hop = |world: &World| world.hosts[0].interface.next_hop(world.now, v4(200));
    world.hosts[0].interface.remove_address(now, v4(9));
    assert_eq!(hop(&world), Some(NextHop::OnLink(v4(200))), "10.0.0.1/24 has it as well");
    assert!(world.reaches(0, 1, &packet(v4(1), v4(2), b"still there"), SECOND));
    world.hosts[0].interface.remove_address(now, v4(1));
    assert_eq!(hop(&world), None, "10.0.0.10/25 does not reach that far");
    let near = world.hosts[0].interface.next_hop(world.now, v4(100));
    assert_eq!(near, Some(NextHop::OnLink(v4(100))));
    world.hosts[0].interface.remove_address(now, IpAddr::from([10, 0, 0, 10]));
    assert_eq!(world.hosts[0].interface.next_hop(world.now, v4(100)), None, "the last one went");
}

/// A stale neighbor is probed by ARP while packets are sent to it.
#[test]
fn a_flow_of_datagrams_takes_the_slow_path_once() {
    let mut world = World::up(31, 2);
    let datagram = packet(v4(1), v4(2), b"on and on");
    let mut arrived = 0;
    for _ in 0..3000 {
        world.send(0, datagram.clone());
        world.pass(Duration::from_millis(100));
        arrived += std::mem::take(&mut world.hosts[1].got).len();
    }
    assert_eq!((world.hosts[0].slow_path, arrived), (1, 3000));
    let asked = world.hosts[0].sent.iter().filter(|it| it.ether_type == EtherType::ARP);
    assert!(asked.count() > 5, "it is asked whether it is still there, for five minutes");
}
