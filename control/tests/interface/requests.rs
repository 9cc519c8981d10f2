//! Requests for connections in the name of others, and floods of them.

use crate::world::{World, packet, v4};
use pollux_control::cm::request_along;
use pollux_control::ipoib::InterfaceRow;
use pollux_control::ipoib::connected::{ConnectionRow, Policy};
use pollux_control::mad::{Envelope, GlobalAddress, MadAddress};
use pollux_fabric::sm::SmConfig;
use pollux_wire::address::{Gid, Guid, Lid, Qpn};
use pollux_wire::keys::PKey;
use pollux_wire::mad::cm::ipoib::{Dialect, IpoibPrivateData};
use pollux_wire::mad::cm::{CmMessage, CommId, Req};
use pollux_wire::mad::sa::PathRecord;
use pollux_wire::units::{Mtu, TimeCode};
use std::time::Duration;

const SECOND: Duration = Duration::from_secs(1);
/// More forged GIDs than the table of paths has entries.
const FORGED: u64 = 16_384;

fn world(seed: u64, hosts: usize) -> World {
    let mut world = World::with(seed, hosts, SmConfig::default(), |mut config, _| {
        config.peer.policy = Policy::Rc;
        config
    });
    world.pass(5 * SECOND);
    world.assert_up();
    world
}

/// What a port asks for a connection with, under any name.
fn request(to: &InterfaceRow, gid: Gid, qpn: Qpn, number: u32) -> Req {
    let path = PathRecord {
        sgid: gid,
        dgid: to.address.gid,
        p_key: PKey::DEFAULT,
        mtu: Mtu::BYTES_2048,
        ..PathRecord::default()
    };
    let words = IpoibPrivateData { ud_qpn: qpn, receive_mtu: 65_524 };
    Req {
        service_id: Dialect::Rfc.service_id(to.address.qpn),
        local_comm_id: CommId(number),
        local_qpn: Qpn(0x10_0000 + number),
        private_data: words.padded(),
        ..request_along(&path, TimeCode(8))
    }
}

/// Sends it to host 0 from a LID, with a GRH of these GIDs or without one.
fn arrives(world: &mut World, req: Req, lid: Lid, gids: Option<(Gid, Gid)>) {
    let global = gids.map(|(remote_gid, local_gid)| GlobalAddress {
        remote_gid,
        local_gid,
        ..GlobalAddress::default()
    });
    let peer = MadAddress { global, ..MadAddress::gsi(lid, 0, PKey::DEFAULT) };
    let mad = CmMessage::Req(req).emit_mad(u64::from(req.local_comm_id.0));
    let now = world.now;
    world.hosts[0].interface.handle_mad(now, &Envelope { peer, mad });
}

fn rows(world: &World) -> Vec<InterfaceRow> {
    world.hosts.iter().map(|host| host.interface.row()).collect()
}

fn connections(world: &World) -> Vec<ConnectionRow> {
    world.hosts[0].interface.connection_rows().collect()
}

fn dropped(world: &World, why: &str) -> u64 {
    world.hosts[0].interface.drop_rows().filter(|row| row.1 == why).map(|row| row.2).sum()
}

fn forged(number: u64) -> Gid {
    Gid::new(Gid::DEFAULT_PREFIX, Guid(0xbad0_0000 + number))
}

#[test]
fn a_grh_does_not_make_a_stranger_a_peer() {
    let mut world = world(41, 3);
    assert!(world.reaches(0, 1, &packet(v4(1), v4(2), b"there"), SECOND));
    let rows = rows(&world);
    let (us, victim) = (rows[0].address.gid, rows[1].address);
    let stranger = rows[2].link.unwrap().lid;
    let before = connections(&world);
    let far = |gid: Gid| Gid::new(0x1234, gid.guid());
    let lies = [
        (victim.gid, Some((victim.gid, us))),
        // A GRH that says that it crossed a router.
        (victim.gid, Some((victim.gid, far(us)))),
        (victim.gid, None),
        (victim.gid, Some((rows[2].address.gid, us))),
    ];
    for (number, (gid, gids)) in (1..).zip(lies) {
        let req = request(&rows[0], gid, victim.qpn, number);
        arrives(&mut world, req, stranger, gids);
        world.pass(SECOND);
        assert_eq!(connections(&world), before, "{number}");
        assert_eq!(dropped(&world, "imposter"), u64::from(number));
    }
    // A name in another subnet, to which there is no router.
    let req = request(&rows[0], far(victim.gid), victim.qpn, 9);
    arrives(&mut world, req, stranger, Some((far(victim.gid), far(us))));
    world.pass(SECOND);
    assert_eq!(connections(&world), before);
    assert!(world.reaches(0, 1, &packet(v4(1), v4(2), &[1; 9000]), SECOND), "by the old one");
    assert_eq!(connections(&world).len(), 1);
}

#[test]
fn a_port_that_asks_before_it_is_a_neighbor_is_connected_by_its_first_request() {
    let mut world = world(42, 2);
    let rows = rows(&world);
    let (asker, lid) = (rows[1].address, rows[1].link.unwrap().lid);
    assert_eq!(world.hosts[0].interface.path_rows().count(), 0, "nobody is known here");
    for gids in [None, Some((asker.gid, rows[0].address.gid))] {
        let number = 1 + u32::from(gids.is_some());
        arrives(&mut world, request(&rows[0], asker.gid, asker.qpn, number), lid, gids);
        world.settle();
        // The port itself, which knows nothing of it, ends it.
        assert_eq!(connections(&world).len(), number as usize, "accepted without a repetition");
    }
    assert_eq!(world.hosts[0].interface.path_rows().count(), 0, "and nothing is kept of it");
}

/// Requests in forged names, from one port or from all LIDs at once; with them, what honest nodes
/// want of us.
fn flood(world: &mut World, lid: impl Fn(u64) -> Lid, with_grh: bool) {
    let rows = rows(world);
    let us = rows[0].address.gid;
    for number in 0..FORGED {
        let gid = forged(number);
        let req = request(&rows[0], gid, Qpn(0x99), number as u32 + 1);
        arrives(world, req, lid(number), with_grh.then_some((gid, us)));
    }
}

#[test]
fn a_flood_of_forged_requests_does_not_affect_other_peers() {
    for (seed, with_grh, from_all) in [(43, false, false), (44, true, false), (45, false, true)] {
        let mut world = world(seed, 5);
        assert!(world.reaches(0, 1, &packet(v4(1), v4(2), b"before"), SECOND));
        let before = connections(&world);
        let stranger = rows(&world)[4].link.unwrap().lid;
        let lid = |number: u64| match from_all {
            false => stranger,
            true => Lid(0x1000 + (number % 0x8000) as u16),
        };
        let known = |world: &World| -> Vec<_> {
            world.hosts[0].interface.path_rows().map(|row| row.gid).collect()
        };
        let paths = known(&world);
        let asked = world.questions;
        flood(&mut world, lid, with_grh);
        let held = if from_all { 2048 } else { 64 };
        assert_eq!(dropped(&world, "request_put_off"), FORGED - held, "the others will come again");
        assert_eq!(known(&world), paths, "nothing is kept of strangers");
        // New peers: one that we request, one that requests us.
        assert!(world.reaches(0, 2, &packet(v4(1), v4(3), &[1; 9000]), SECOND), "{seed}");
        assert!(world.reaches(3, 0, &packet(v4(4), v4(1), &[2; 9000]), SECOND), "{seed}");
        assert_eq!(dropped(&world, "request_unverified"), held);
        assert_eq!(dropped(&world, "queries_full"), 0);
        assert!(world.questions - asked <= held + 100, "{} questions", world.questions - asked);
        let after = connections(&world);
        assert!(after.contains(&before[0]) && after.len() == 3, "{after:?}");
        assert!(world.reaches(0, 1, &packet(v4(1), v4(2), &[3; 9000]), SECOND));
        // A second later the port may ask for as many again, and gets as little.
        world.pass(SECOND);
        flood(&mut world, lid, with_grh);
        world.pass(SECOND);
        assert_eq!(dropped(&world, "request_unverified"), 2 * held);
        assert_eq!(connections(&world).len(), 3);
    }
}

#[test]
fn paths_of_peers_stay_when_strangers_have_to_be_answered() {
    let mut world = World::with(46, 4, SmConfig::default(), |mut config, _| {
        config.peer.policy = Policy::Rc;
        config.paths_max = 2;
        // Requests of unknown nodes create no entry.
        config.neighbor.unsolicited_entries_per_second_max = 0;
        config
    });
    world.pass(5 * SECOND);
    for (to, other) in [(1, 2), (2, 3)] {
        assert!(world.reaches(0, to, &packet(v4(1), v4(other), b"first"), SECOND));
    }
    let paths = |world: &World| -> Vec<_> {
        world.hosts[0].interface.path_rows().map(|row| row.gid).collect()
    };
    let before = paths(&world);
    assert_eq!(before.len(), 2);
    world.send(3, packet(v4(4), v4(1), b"who are you?"));
    assert_eq!(paths(&world), before, "the answer had no path");
    assert_eq!(dropped(&world, "paths_full"), 1);
    assert!(world.reaches(0, 3, &packet(v4(1), v4(4), b"a peer takes that of another"), SECOND));
    assert_eq!(paths(&world).len(), 2);
    assert!(world.reaches(0, 1, &packet(v4(1), v4(2), &[1; 9000]), SECOND), "which goes on");
}
