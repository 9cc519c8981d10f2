//! Connected mode between interfaces that keep to the RFC.

use crate::world::{Weather, World, packet, v4, v6};
use pollux_control::cm::{Role, request_along};
use pollux_control::ipoib::connected::{ConnectionRow, PeerConfig, Policy};
use pollux_control::ipoib::{InterfaceConfig, InterfaceRow, WorkerId};
use pollux_control::mad::{Envelope, MadAddress};
use pollux_fabric::sm::SmConfig;
use pollux_verbs::QpType;
use pollux_wire::address::{Gid, Guid, Qpn};
use pollux_wire::ethernet::EtherType;
use pollux_wire::ip::arp::{ArpOperation, ArpPacket};
use pollux_wire::ip::link_address::LinkAddress;
use pollux_wire::keys::PKey;
use pollux_wire::mad::Method;
use pollux_wire::mad::cm::ipoib::{Dialect, IpoibPrivateData};
use pollux_wire::mad::cm::{CmMessage, Req};
use pollux_wire::mad::sa::{PathRecord, PathRecordMask, SaMad};
use pollux_wire::units::{Mtu, TimeCode};
use std::net::Ipv4Addr;
use std::time::Duration;

const SECOND: Duration = Duration::from_secs(1);

fn connected(seed: u64, hosts: usize, policy: Policy) -> World {
    with(seed, hosts, |mut config, _| {
        config.peer.policy = policy;
        config
    })
}

fn with(
    seed: u64,
    hosts: usize,
    adjust: impl Fn(InterfaceConfig, usize) -> InterfaceConfig,
) -> World {
    let mut world = World::with(seed, hosts, SmConfig::default(), adjust);
    world.pass(5 * SECOND);
    world.assert_up();
    world
}

/// How many connections each host has that do not end.
fn counts(world: &World) -> Vec<usize> {
    let stays = |row: &ConnectionRow| row.state != "ending";
    world.hosts.iter().map(|host| host.interface.connection_rows().filter(stays).count()).collect()
}

/// No queue pair without its connection, and no connection without its queue pair.
fn assert_conserved(world: &World) {
    for (nth, host) in world.hosts.iter().enumerate() {
        let rows: Vec<_> = host.interface.connection_rows().collect();
        let queue_pairs: Vec<_> = host.port_driver.connections.keys().copied().collect();
        let keys: Vec<_> = rows.iter().map(|row| row.connection).collect();
        assert_eq!(keys, queue_pairs, "{nth}: {rows:?}");
    }
}

// req: cm-handshake, cm-receive-mtu, cm-connection-per-link-address, cm-connection-record
#[test]
fn one_connection_carries_both_directions_and_all_addresses() {
    for (policy, qp_type) in [(Policy::Rc, QpType::Rc), (Policy::Uc, QpType::Uc)] {
        let mut world = with(1, 2, |mut config, nth| {
            config.peer.policy = policy;
            config.peer.receive_mtu = if nth == 0 { 65_524 } else { 32_004 };
            config
        });
        assert!(world.reaches(0, 1, &packet(v4(1), v4(2), b"there"), SECOND));
        assert!(world.reaches(1, 0, &packet(v4(2), v4(1), b"back"), SECOND));
        assert!(world.reaches(0, 1, &packet(v6(1), v6(2), b"by another address"), SECOND));
        assert!(
            world.reaches(1, 0, &packet(v4(2), v4(1), &vec![7; 31_980]), SECOND),
            "32,000 bytes"
        );
        assert_eq!(counts(&world), [1, 1], "{policy:?}");
        for host in &world.hosts {
            let row = host.interface.connection_rows().next().unwrap();
            assert_eq!((row.state, row.qp_type, row.mtu), ("open", qp_type, 32_000));
            assert!(row.may_send);
        }
        let made = [0, 1].map(|nth: usize| world.hosts[nth].port_driver.made % 1000);
        assert_eq!(made, [1, 1], "the second address made no other connection");
        assert_conserved(&world);
    }
}

fn path_between(from: &InterfaceRow, to: &InterfaceRow) -> PathRecord {
    PathRecord {
        sgid: from.address.gid,
        dgid: to.address.gid,
        p_key: PKey::DEFAULT,
        mtu: Mtu::BYTES_2048,
        ..PathRecord::default()
    }
}

/// A reliable queue pair does not know for a second that its other end is gone.
#[test]
fn the_first_packet_to_a_peer_that_has_restarted_is_not_lost_in_the_connection_before() {
    for policy in [Policy::Rc, Policy::Uc] {
        let mut world = connected(3, 2, policy);
        assert!(world.reaches(0, 1, &packet(v4(1), v4(2), b"there"), SECOND));
        let qpn = world.hosts[1].qpn;
        world.pass(3 * SECOND);
        world.restart_with(1, qpn, |mut config| {
            config.peer.policy = policy;
            config
        });
        while !world.hosts[1].port_driver.own.contains(&v4(2)) {
            world.pass(SECOND / 50);
        }
        // It announces itself, and host 0 asks about the connection.
        world.pass(SECOND / 20);
        let sent = packet(v4(1), v4(2), b"there again");
        world.send(0, sent.clone());
        world.pass(SECOND / 10);
        assert!(world.heard(1, &sent), "{policy:?}");
    }
}

/// A REQ from the LID of another port than the one that it names.
#[test]
fn a_request_in_the_name_of_another_port_is_dropped() {
    let mut world = connected(9, 3, Policy::Rc);
    assert!(world.reaches(0, 1, &packet(v4(1), v4(2), b"there"), SECOND));
    let before: Vec<_> = world.hosts[0].interface.connection_rows().collect();
    let rows: Vec<_> = world.hosts.iter().map(|host| host.interface.row()).collect();
    let words = IpoibPrivateData { ud_qpn: rows[1].address.qpn, receive_mtu: 65_524 };
    let req = Req {
        service_id: Dialect::Rfc.service_id(rows[0].address.qpn),
        local_qpn: Qpn(0x777),
        private_data: words.padded(),
        ..request_along(&path_between(&rows[1], &rows[0]), TimeCode(8))
    };
    let peer = MadAddress::gsi(rows[2].link.unwrap().lid, 0, PKey::DEFAULT);
    let mad = CmMessage::Req(req).emit_mad(1);
    let now = world.now;
    world.hosts[0].interface.handle_mad(now, &Envelope { peer, mad });
    world.settle();
    let after: Vec<_> = world.hosts[0].interface.connection_rows().collect();
    assert_eq!(before, after);
    let mut drops = world.hosts[0].interface.drop_rows();
    assert!(drops.any(|row| row.1 == "imposter" && row.2 == 1));
}

// req: cm-crossing-requests
#[test]
fn requests_that_cross_make_one_connection() {
    let mut crossings = 0;
    for seed in 0..30 {
        let mut world = connected(seed, 2, Policy::Rc);
        // Both resolve each other first, by datagrams of resolution alone.
        let now = world.now;
        for (one, other) in [(1, 2), (2, 1)] {
            let nth = usize::from(one) - 1;
            world.hosts[nth].interface.handle_miss(
                now,
                WorkerId::PRIMARY,
                packet(v4(one), v4(other), b"cross"),
            );
        }
        world.mads_lost = if seed % 2 == 0 { 0 } else { 300_000 };
        world.settle();
        world.pass(3 * SECOND);
        world.mads_lost = 0;
        world.pass(60 * SECOND);
        assert!(world.reaches(0, 1, &packet(v4(1), v4(2), &[1; 9000]), SECOND), "seed {seed}");
        assert!(world.reaches(1, 0, &packet(v4(2), v4(1), &[2; 9000]), SECOND), "seed {seed}");
        world.pass(30 * SECOND);
        assert_eq!(counts(&world), [1, 1], "seed {seed}");
        assert_conserved(&world);
        let ends = [0, 1].map(|nth: usize| {
            let mut rows = world.hosts[nth].interface.connection_rows();
            rows.next().expect("there is one")
        });
        // Each end knows the other's address; the side with the smaller one has accepted.
        let [one, other] = [&ends[1].peer, &ends[0].peer].map(LinkAddress::comparison_form);
        let roles =
            if one < other { (Role::Passive, Role::Active) } else { (Role::Active, Role::Passive) };
        let is_lossless = seed % 2 == 0;
        assert!(!is_lossless || (ends[0].role, ends[1].role) == roles, "seed {seed}");
        let rows = world.hosts.iter().flat_map(|host| host.interface.drop_rows());
        crossings += rows.filter(|row| row.1 == "crossing").map(|row| row.2).sum::<u64>();
    }
    assert!(crossings >= 30, "{crossings} requests have crossed");
}

// req: cm-policy, cm-flags-ud-only, cm-ud-always
#[test]
fn policy_decides_by_interface_and_by_peer() {
    let mut world = with(3, 3, |mut config, nth| {
        config.peer.policy = if nth == 1 { Policy::Ud } else { Policy::Auto };
        config
    });
    let gets_there = |world: &mut World, from: u8, to: u8| {
        let datagram = packet(v4(from), v4(to), b"by whatever way");
        assert!(world.reaches(usize::from(from) - 1, usize::from(to) - 1, &datagram, SECOND));
    };
    gets_there(&mut world, 1, 2);
    gets_there(&mut world, 2, 1);
    assert_eq!(counts(&world), [0, 0, 0], "one side has connected mode off");
    let seen = world.hosts[0].interface.peer_rows().next().unwrap().link;
    assert!(!seen.rc && !seen.uc, "and says so");
    gets_there(&mut world, 1, 3);
    assert_eq!(counts(&world), [1, 0, 1]);

    let mut world = with(4, 2, |mut config, _| {
        config.peer.policy = Policy::Auto;
        config.policies.insert(v4(2), Policy::Ud);
        config.policies.insert(v4(1), Policy::Ud);
        config
    });
    gets_there(&mut world, 1, 2);
    assert_eq!(counts(&world), [0, 0], "the peer is an exception");
}

// req: cm-teardown-with-interface
#[test]
fn connections_end_with_their_interface_and_come_back() {
    let mut world = connected(5, 2, Policy::Rc);
    assert!(world.reaches(0, 1, &packet(v4(1), v4(2), b"before"), SECOND));
    assert_eq!(counts(&world), [1, 1]);
    let now = world.now;
    world.hosts[0].interface.set_open(now, false);
    world.settle();
    assert_eq!(counts(&world), [0, 0], "the other side has heard of it");
    world.send(1, packet(v4(2), v4(1), b"meanwhile"));
    world.pass(SECOND);
    assert!(
        world.hosts[0].port_driver.connections.is_empty(),
        "an interface that is down accepts none"
    );
    let now = world.now;
    world.hosts[0].interface.set_open(now, true);
    world.pass(5 * SECOND);
    assert!(world.reaches(0, 1, &packet(v4(1), v4(2), &[3; 9000]), 5 * SECOND));
    assert_eq!(counts(&world), [1, 1]);
    assert_conserved(&world);
}

#[test]
fn a_connection_that_failed_is_made_again_for_the_next_packet() {
    let mut world = connected(6, 2, Policy::Rc);
    assert!(world.reaches(0, 1, &packet(v4(1), v4(2), b"before"), SECOND));
    world.pass(10 * SECOND);
    let key = *world.hosts[0].port_driver.connections.keys().next().unwrap();
    world.hosts[0].port_driver.fail(key);
    world.settle();
    assert!(world.reaches(0, 1, &packet(v4(1), v4(2), &[4; 9000]), 2 * SECOND));
    world.pass(10 * SECOND);
    assert_eq!(counts(&world), [1, 1]);
    assert_conserved(&world);
}

// req: cm-teardown-on-expiry
#[test]
fn an_idle_connection_ends_with_its_neighbor() {
    let mut world = with(7, 2, |mut config, _| {
        config.peer.policy = Policy::Rc;
        config.neighbor.idle_for = Some(60 * SECOND);
        config
    });
    assert!(world.reaches(0, 1, &packet(v4(1), v4(2), b"once"), SECOND));
    assert_eq!(counts(&world), [1, 1]);
    world.pass(200 * SECOND);
    assert_eq!(counts(&world), [0, 0]);
    assert!(world.reaches(0, 1, &packet(v4(1), v4(2), b"again"), SECOND));
}

// req: cm-imposter
#[test]
fn a_peer_that_breaks_connections_gets_datagrams_after_a_few_attempts() {
    let mut world = connected(8, 3, Policy::Rc);
    world.hosts[1].port_driver.is_out_of_queue_pairs = true;
    let mut arrived = 0;
    for _ in 0..600 {
        let datagram = packet(v4(1), v4(2), b"on and on");
        arrived += u32::from(world.reaches(0, 1, &datagram, Duration::from_millis(1)));
        world.pass(SECOND / 2);
    }
    assert!(arrived >= 599, "{arrived} of 600");
    assert!(
        world.hosts[0].port_driver.made - 1000 <= 5,
        "{} attempts",
        world.hosts[0].port_driver.made - 1000
    );
    let link = world.hosts[0].interface.peer_rows().next().unwrap().link;
    let pause = world.hosts[0].interface.pause_of(&link, WorkerId::PRIMARY).unwrap();
    let said = pause.text(pause.since);
    let expected = "too many connection attempts failed (REJ 28, CONSUMER_REJECT), retry in 600 s";
    assert_eq!(said, expected);
    assert!(world.reaches(0, 2, &packet(v4(1), v4(3), &[5; 9000]), SECOND), "others do not suffer");
    assert_conserved(&world);
}

/// A peer that begins anew with the very numbers that it had, and then only listens.
#[test]
fn an_unreliable_connection_that_the_peer_has_forgotten_is_found_out_in_time() {
    for (asks, is_announced) in [(0, false), (0, true), (1, false), (1, true)] {
        let policy = |mut config: InterfaceConfig| {
            config.peer.policy = Policy::Uc;
            config
        };
        let mut world = with(10, 2, |config, _| policy(config));
        let first = if asks == 0 { (v4(1), v4(2)) } else { (v4(2), v4(1)) };
        assert!(world.reaches(asks, 1 - asks, &packet(first.0, first.1, b"before"), SECOND));
        assert_eq!(counts(&world), [1, 1]);
        let qpn = world.hosts[1].qpn;
        world.pass(3 * SECOND);
        world.restart_with(1, qpn, policy);
        world.hosts[1].port_driver.made = 3000;
        world.weather.lost = if is_announced { 0 } else { 1_000_000 };
        world.pass(5 * SECOND);
        world.weather.lost = 0;
        let long = packet(v4(1), v4(2), &[1; 9000]);
        let begun = world.now;
        assert!(world.reaches(0, 1, &long, 35 * SECOND), "{asks}: never found");
        let took = world.now.since_start() - begun.since_start();
        let config = PeerConfig::of(Guid(0));
        let (least, most) = match is_announced {
            true => (Duration::ZERO, SECOND),
            false => (config.probe_after, config.probe_after + 2 * config.probe_interval),
        };
        assert!(took >= least && took <= most, "{asks}, announced: {is_announced}: {took:?}");
        assert_eq!(counts(&world), [1, 1]);
    }
}

#[test]
fn a_peer_that_stops_offering_uc_loses_its_connection() {
    let mut world = connected(12, 2, Policy::Uc);
    assert!(world.reaches(0, 1, &packet(v4(1), v4(2), b"before"), SECOND));
    let qpn = world.hosts[1].qpn;
    world.restart_with(1, qpn, |config| config);
    world.pass(5 * SECOND);
    // Its question says what it takes.
    assert!(world.reaches(1, 0, &packet(v4(2), v4(1), b"after"), SECOND));
    assert_eq!(counts(&world), [0, 0]);
    assert!(world.reaches(0, 1, &packet(v4(1), v4(2), b"by datagram"), SECOND));
}

#[test]
fn under_faults_all_hosts_connect_and_nothing_is_left() {
    for seed in 0..12 {
        let mut world = connected(seed, 4, Policy::Auto);
        world.weather = Weather { lost: 100_000, doubled: 50_000, delayed: 200_000 };
        world.mads_lost = 150_000;
        for round in 0..40u8 {
            for from in 0..4u8 {
                let to = (from + 1 + round % 3) % 4;
                world.send(usize::from(from), packet(v4(from + 1), v4(to + 1), &[round; 3000]));
            }
            world.pass(SECOND / 2);
            if round % 10 == 5 {
                let key = world.hosts[0].port_driver.connections.keys().next().copied();
                key.into_iter().for_each(|key| world.hosts[0].port_driver.fail(key));
            }
        }
        (world.weather, world.mads_lost) = (Weather::default(), 0);
        world.pass(70 * SECOND);
        for from in 0..4u8 {
            for to in (0..4u8).filter(|to| *to != from) {
                let datagram = packet(v4(from + 1), v4(to + 1), &[9; 9000]);
                let (one, other) = (usize::from(from), usize::from(to));
                assert!(world.reaches(one, other, &datagram, 10 * SECOND), "seed {seed}");
            }
        }
        world.pass(60 * SECOND);
        assert_eq!(counts(&world), [3, 3, 3, 3], "seed {seed}: one for each pair");
        assert_conserved(&world);
    }
}

/// What management drops shows with everything else.
#[test]
fn a_request_that_connection_management_refuses_is_counted_where_people_look() {
    let mut world = connected(14, 2, Policy::Rc);
    let rows: Vec<_> = world.hosts.iter().map(|host| host.interface.row()).collect();
    let req = Req {
        service_id: Dialect::Rfc.service_id(Qpn(0x00ab_cdef)),
        local_qpn: Qpn(0x777),
        ..request_along(&path_between(&rows[1], &rows[0]), TimeCode(8))
    };
    let peer = MadAddress::gsi(rows[1].link.unwrap().lid, 0, PKey::DEFAULT);
    let now = world.now;
    let mad = CmMessage::Req(req).emit_mad(1);
    world.hosts[0].interface.handle_mad(now, &Envelope { peer, mad });
    let answer = SaMad::new(Method::GET_RESP, 77, PathRecordMask(0), PathRecord::default()).emit();
    let administrator = MadAddress::gsi(world.view(0).sm_lid, 0, PKey::DEFAULT);
    for peer in [peer, administrator] {
        world.hosts[0].interface.handle_mad(now, &Envelope { peer, mad: answer });
    }
    let rows: Vec<_> = world.hosts[0].interface.drop_rows().filter(|row| row.2 > 0).collect();
    for expected in [("cm", "no_listener", 1), ("sa", "stranger", 1), ("mad", "not_asked", 1)] {
        assert!(rows.contains(&expected), "{expected:?}: {rows:?}");
    }
}

#[test]
fn requests_of_unknown_nodes_end_no_idle_connection() {
    let mut world = with(15, 2, |mut config, _| {
        config.peer.policy = Policy::Rc;
        config.neighbor.entries_max = 16;
        config
    });
    assert!(world.reaches(0, 1, &packet(v4(1), v4(2), b"once"), SECOND));
    world.pass(60 * SECOND);
    assert_eq!(counts(&world), [1, 1]);
    let us = world.hosts[0].interface.row().address;
    for host in 100..200u8 {
        let gid = Gid::new(Gid::DEFAULT_PREFIX, Guid(u64::from(host)));
        let question = ArpPacket {
            operation: ArpOperation::REQUEST,
            sender_hardware: LinkAddress { gid, ..us },
            sender_protocol: Ipv4Addr::new(10, 0, 0, host),
            target_hardware: us,
            target_protocol: Ipv4Addr::new(10, 0, 0, 1),
        };
        let mut bytes = vec![0; ArpPacket::<LinkAddress>::LEN];
        question.write(&mut bytes).unwrap();
        world.inject(0, EtherType::ARP, &bytes);
    }
    world.pass(SECOND);
    assert_eq!(counts(&world), [1, 1]);
    assert!(world.hosts[0].interface.neighbor_rows().any(|row| row.ip == v4(2)));
}
