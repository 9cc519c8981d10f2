//! Repetitions of messages, refusals, and limits.

use super::world::*;
use crate::cm::CmDatagram;
use crate::cm::{Cm, CmConfig, CmDrop, CmError, Connect, ConnectionEnd, Phase};
use crate::mad::{Envelope, GlobalAddress, MadAddress};
use pollux_verbs::rng::SeededRng;
use pollux_verbs::time::Time;
use pollux_wire::address::{Gid, Guid, Lid, Qpn};
use pollux_wire::keys::PKey;
use pollux_wire::mad::cm::*;
use pollux_wire::mad::service_id::ServiceId;
use pollux_wire::psn::Psn;
use pollux_wire::units::TimeCode;
use std::time::Duration;

const SOON: Duration = Duration::from_millis(1);
/// Between a message and its repetition: there and back again, and the peer's four seconds.
const INTERVAL: Duration = Duration::from_nanos((2 << 14 | 1 << 20) * 4096);

fn deaf(seed: u64) -> World {
    let mut world = World::new(seed);
    world.weather.lost = 1_000_000;
    world
}

fn count(world: &World, name: &str) -> usize {
    world.words().iter().filter(|word| *word == name).count()
}

#[test]
fn a_request_is_sent_sixteen_times_and_then_withdrawn() {
    let mut world = deaf(1);
    let id = world.connect(0);
    for said in 1..=16 {
        assert_eq!(count(&world, "0 REQ"), said);
        // A little later each time, so that many do not say it at once.
        let due = world.sides[0].cm.poll_timeout().unwrap();
        assert!(due >= world.now + INTERVAL && due <= world.now + INTERVAL * 9 / 8, "{due:?}");
        world.step();
    }
    assert_eq!(world.words().last().unwrap(), "0 REJ TIMEOUT");
    let CmMessage::Rej(rej) = world.said.last().unwrap().1 else { panic!() };
    assert_eq!(rej.timed_out_ca(), Some(guid(0)));
    assert_eq!(rej.private_data[..92], request_of(&world).private_data, "whom it is from");
    assert!(matches!(world.sides[0].seen[&id].end, Some(ConnectionEnd::TimedOut)));
    while world.step() {}
    assert_eq!((count(&world, "0 REQ"), world.phase(0, id)), (16, None));
}

fn request_of(world: &World) -> Req {
    let CmMessage::Req(req) = world.said[0].1 else { panic!("the first message is no request") };
    req
}

#[test]
fn a_reply_is_sent_sixteen_times_and_then_withdrawn_reliably() {
    let mut world = World::new(1);
    world.sides[1].is_slow = true;
    world.connect(1);
    world.pass(SOON);
    let id = world.only(0);
    world.weather.lost = 1_000_000;
    world.pass(INTERVAL * 19);
    assert_eq!(count(&world, "0 REP"), 16);
    assert_eq!(count(&world, "0 REJ TIMEOUT"), 1);
    assert!(matches!(world.sides[0].seen[&id].end, Some(ConnectionEnd::TimedOut)));
    assert_eq!(world.phase(0, id), Some(Phase::DreqSent), "the peer may believe that it stands");
}

#[test]
fn every_repeated_message_is_answered_again() {
    let mut world = World::new(1);
    let id = world.connect(0);
    world.pass(SOON);
    let [req, rep] = [0, 1].map(|i| world.said[i].1);
    world.inject(0, address(1), &rep);
    assert_eq!(count(&world, "0 RTU"), 2);
    let said = world.said.len();
    world.inject(1, address(0), &req);
    world.pass(SOON);
    assert_eq!(world.words()[said..], ["1 REP", "0 RTU"], "it is asked whether it still stands");
    let said = world.said.len();
    let now = world.now;
    world.sides[0].cm.disconnect(now, id, [0; 220]).unwrap();
    world.exchange(0);
    world.pass(SOON);
    let dreq = world.said[said].1;
    world.inject(1, address(0), &dreq);
    assert_eq!(world.words()[said..], ["0 DREQ", "1 DREP", "1 DREP"]);
    while world.step() {}
    world.inject(1, address(0), &dreq);
    assert_eq!(count(&world, "1 DREP"), 3, "also when nobody knows of it any more");
    world.inject(0, address(1), &rep);
    assert_eq!(world.words().last().unwrap(), "0 REJ INVALID_COMM_ID");
}

#[test]
fn an_mra_extends_the_timeout_a_limited_number_of_times() {
    let mut world = World::new(1);
    world.sides[1].is_slow = true;
    let id = world.connect(0);
    world.pass(SOON);
    let other = world.only(1);
    let mra = |world: &mut World| {
        world.send_mra([id, other], AnsweredMessage::REQ, TimeCode(23));
        world.pass(SOON);
    };
    mra(&mut world);
    assert_eq!(world.phase(0, id), Some(Phase::MraReqReceived));
    // 34 seconds, and there and back again.
    let due = world.sides[0].cm.poll_timeout().unwrap();
    let wait = due.since_start() - world.now.since_start();
    assert!(wait > Duration::from_secs(34) && wait < Duration::from_secs(35), "{wait:?}");
    let mras = usize::from(CmConfig::of(guid(0)).mras_max);
    (0..mras).for_each(|_| mra(&mut world));
    assert!(world.sides[0].cm.drops().of(CmDrop::TooManyMras) > 0);
    let now = world.now;
    world.sides[1].cm.accept(now, other, reply(Qpn(0x999))).unwrap();
    world.exchange(1);
    world.pass(SOON);
    assert_eq!(world.phase(0, id), Some(Phase::Established));
}

#[test]
fn a_consumer_that_never_answers_is_answered_for() {
    let mut world = World::new(1);
    world.sides[1].is_slow = true;
    let id = world.connect(0);
    world.pass(SOON);
    let other = world.only(1);
    world.pass(CmConfig::of(guid(1)).consumer_time_max);
    let Some(ConnectionEnd::Rejected(rej)) = &world.sides[0].seen[&id].end else { panic!() };
    assert_eq!(rej.private_data, WORDS, "in the listener's words");
    assert!(matches!(world.sides[1].seen[&other].end, Some(ConnectionEnd::TimedOut)));
    while world.step() {}
    assert!(world.sides.iter().all(|side| side.cm.index.is_empty()));
}

#[test]
fn a_new_request_of_a_connected_queue_pair_shows_the_connection_stale() {
    let mut world = World::new(1);
    let id = world.connect(0);
    world.pass(SOON);
    let other = world.only(1);
    let now = world.now;
    // The first side loses its memory.
    world.sides[0].cm.disconnect(now, id, [0; 220]).unwrap();
    while world.sides[0].cm.poll_transmit().is_some() {}
    let said = world.said.len();
    let req = Req { starting_psn: Psn::new(77), ..request_of(&world) };
    let again = world.ask(0, req);
    world.pass(SOON);
    assert_eq!(world.words()[said..][..3], ["0 REQ", "1 DREQ", "1 REJ STALE_CONNECTION"]);
    assert_eq!(world.sides[1].seen[&other].end, Some(ConnectionEnd::Stale));
    let Some(ConnectionEnd::Rejected(rej)) = &world.sides[0].seen[&again].end else { panic!() };
    assert_eq!(rej.reason, RejectReason::STALE_CONNECTION);
    assert_eq!(world.phase(0, again), Some(Phase::TimeWait), "the queue pair is not to be reused");
    let fresh = world.connect(0);
    world.pass(SOON);
    assert_eq!(world.phase(0, fresh), Some(Phase::Established));
}

#[test]
fn a_reply_from_a_connected_queue_pair_is_rejected_as_stale() {
    let mut world = World::new(1);
    let first = world.connect(0);
    world.pass(SOON);
    world.sides[1].is_slow = true;
    let second = world.connect(0);
    world.pass(SOON);
    let CmMessage::Rep(rep) = world.said[1].1 else { panic!() };
    let remote_comm_id = second.comm_id();
    let doubled = CmMessage::Rep(Rep { local_comm_id: CommId(0x5555), remote_comm_id, ..rep });
    world.inject(0, address(1), &doubled);
    assert_eq!(world.sides[0].seen[&first].end, Some(ConnectionEnd::Stale));
    assert_eq!(world.sides[0].seen[&second].end, Some(ConnectionEnd::Stale));
    assert_eq!(count(&world, "0 REJ STALE_CONNECTION"), 1);
    assert_eq!(world.sides[0].cm.drops().of(CmDrop::Stale), 1);
}

#[test]
fn strangers_that_claim_anothers_queue_pair_make_nothing_stale() {
    let mut world = World::new(1);
    let id = world.connect(0);
    world.pass(SOON);
    let other = world.only(1);
    // Two say that they are the first side, and have a queue pair that is connected.
    let own = request_of(&world);
    world.inject(1, address(5), &CmMessage::Req(own));
    let claim = Req { local_comm_id: CommId(0x4444), ..own };
    world.inject(1, address(6), &CmMessage::Req(claim));
    assert_eq!(world.phase(1, other), Some(Phase::Established));
    // One claims the queue pair of which the second side will speak next.
    let next = Qpn(world.qpn(1).0 + 1);
    let claim = Req { local_comm_id: CommId(9), ..request(1, 0, next) };
    world.inject(0, address(5), &CmMessage::Req(claim));
    let said = world.said.len();
    let second = world.connect(0);
    world.pass(SOON);
    let CmMessage::Rep(rep) = world.said[said + 1].1 else { panic!("{:?}", world.words()) };
    assert_eq!(rep.local_qpn, next);
    assert_eq!(world.phase(0, second), Some(Phase::Established));
    assert_eq!(world.phase(0, id), Some(Phase::Established));
}

#[test]
fn a_peer_that_uses_its_queue_pair_again_need_not_hear_our_goodbye() {
    let mut world = World::new(1);
    let id = world.connect(1);
    world.pass(SOON);
    world.weather.lost = 1_000_000;
    let now = world.now;
    let own = world.only(0);
    world.sides[0].cm.disconnect(now, own, [0; 220]).unwrap();
    world.exchange(0);
    world.sides[1].cm.disconnect(now, id, [0; 220]).unwrap();
    world.exchange(1);
    world.weather.lost = 0;
    assert_eq!(world.phase(0, own), Some(Phase::DreqSent));
    let req = CmMessage::Req(Req { local_comm_id: CommId(0x4444), ..request_of(&world) });
    world.inject(0, address(1), &req);
    assert_eq!(world.phase(0, own), Some(Phase::TimeWait));
    assert_eq!(count(&world, "0 REP"), 2);
}

// req: cm-connection-record
#[test]
fn requests_that_cross_make_two_connections_that_are_listed() {
    let mut world = World::new(1);
    let ours = world.connect(0);
    let theirs = world.connect(1);
    world.pass(SOON);
    for (end, own) in [(0, ours), (1, theirs)] {
        let views: Vec<_> = world.sides[end].cm.connections().collect();
        assert_eq!(views.len(), 2);
        assert!(views.iter().all(|view| view.state.phase() == Phase::Established
            && view.peer_gid == gid(1 - end)
            && view.local_qpn().is_some()
            && view.remote_qpn().is_some()));
        assert!(views.iter().any(|view| view.key == own));
    }
}

#[test]
fn a_flood_of_requests_of_one_peer_leaves_room_for_others() {
    let config =
        |config| CmConfig { requests_pending_per_peer_max: 3, requests_pending_max: 5, ..config };
    let mut world = World::with(1, config);
    world.sides[1].is_slow = true;
    for _ in 0..10 {
        world.connect(0);
    }
    world.pass(SOON);
    let pending = |world: &World| world.sides[1].cm.count();
    assert_eq!((pending(&world), world.sides[1].cm.drops().of(CmDrop::TooManyRequests)), (3, 7));
    assert_eq!(count(&world, "1 REJ NO_RESOURCES"), 0, "they will come again by themselves");
    for (from, number) in (5..).zip(0..5) {
        let req = Req { local_comm_id: CommId(number), ..request(from, 1, Qpn(number)) };
        let envelope = Envelope { peer: address(from), mad: CmMessage::Req(req).emit_mad(1) };
        world.sides[1].cm.handle_mad(world.now, &CmDatagram::parse(&envelope));
    }
    assert_eq!(pending(&world), 5);
}

#[test]
fn requests_by_one_router_leave_slots_for_others() {
    let mut world = World::with(1, |config| CmConfig { connections_per_router_max: 3, ..config });
    let from = |lid, number| {
        let remote_gid = Gid::new(0x0002, Guid(number));
        let local_gid = Gid::new(0x0001, Guid(1));
        let global = GlobalAddress { remote_gid, local_gid, ..GlobalAddress::default() };
        MadAddress { global: Some(global), ..MadAddress::gsi(Lid(lid), 0, PKey::DEFAULT) }
    };
    let mut ask = |lid, number: u32| {
        let peer = from(lid, number.into());
        let mut req = Req { local_comm_id: CommId(number), ..request(5, 1, Qpn(number)) };
        req.primary.local_gid = peer.global.unwrap().remote_gid;
        let envelope = Envelope { peer, mad: CmMessage::Req(req).emit_mad(number.into()) };
        world.sides[1].cm.handle_mad(world.now, &CmDatagram::parse(&envelope));
        world.sides[1].cm.count()
    };
    let counts: Vec<_> = (1..=5).map(|number| ask(7, number)).collect();
    assert_eq!(counts, [1, 2, 3, 3, 3]);
    assert_eq!(ask(8, 6), 4, "another router");
    assert_eq!(world.sides[1].cm.drops().of(CmDrop::TooManyRequests), 2);
}

#[test]
fn a_full_table_fails_connect_and_ignores_requests() {
    let mut world = World::with(1, |config| CmConfig { connections_max: 2, ..config });
    world.connect(0);
    world.connect(0);
    world.pass(SOON);
    let qpn = world.qpn(0);
    let req = Req { local_comm_id: CommId(3), ..request(0, 1, qpn) };
    world.inject(1, address(0), &CmMessage::Req(req));
    assert_eq!(count(&world, "1 REJ NO_RESOURCES"), 0, "it will come again by itself");
    assert_eq!(world.sides[1].cm.drops().of(CmDrop::TableFull), 1);
    let connect = Connect { to: address(1), req, packet_life_time: LIFE_TIME };
    let (now, key) = (world.now, world.sides[0].cm.new_key());
    assert_eq!(world.sides[0].cm.connect(now, key, connect), Err(CmError::Full));
}

#[test]
fn an_error_names_the_limit_that_is_reached() {
    let mut world = World::with(1, |config| CmConfig { listeners_max: 1, ..config });
    let side = &mut world.sides[0].cm;
    let text = |result: Result<(), CmError>| result.unwrap_err().to_string();
    let too_many = (1..=2).map(|number| side.listen(ServiceId(number), [0; 148])).last().unwrap();
    assert!(text(too_many).contains("listener"));
    let req = request(0, 1, Qpn(5));
    let connect = Connect { to: address(1), req, packet_life_time: LIFE_TIME };
    let key = side.new_key();
    side.connect(world.now, key, connect).unwrap();
    assert!(text(side.connect(world.now, key, connect)).contains(&key.comm_id().to_string()));
}

#[test]
fn a_request_for_a_port_that_we_are_not_learns_which_we_are() {
    let mut world = World::new(1);
    let qpn = world.qpn(0);
    let mut req = request(0, 1, qpn);
    req.primary.remote_gid = gid(9);
    let id = world.ask(0, req);
    world.pass(SOON);
    let Some(ConnectionEnd::Rejected(rej)) = &world.sides[0].seen[&id].end else { panic!() };
    assert_eq!(rej.reason, RejectReason::INVALID_PRIMARY_REMOTE_GID);
    assert_eq!(rej.info(), gid(1).0);
    assert_eq!(rej.private_data, WORDS);
}

#[test]
fn questions_that_we_do_not_serve_are_answered_so() {
    let mut world = World::new(1);
    let sidr = SidrReq { request_id: CommId(5), service_id: SERVICE, ..SidrReq::default() };
    world.inject(0, address(1), &CmMessage::SidrReq(sidr));
    let CmMessage::SidrRep(rep) = world.said[0].1 else { panic!() };
    assert_eq!((rep.request_id, rep.status), (CommId(5), SidrStatus::UNSUPPORTED_SERVICE_ID));
    let mut mad = CmMessage::Req(request(1, 0, Qpn(5))).emit_mad(1);
    mad[2] = 9;
    world.sides[0]
        .cm
        .handle_mad(Time::START, &CmDatagram::parse(&Envelope { peer: address(1), mad }));
    world.exchange(0);
    assert_eq!(world.words()[1], "0 REJ UNSUPPORTED_CLASS_VERSION");
}

#[test]
fn a_peer_that_gave_up_is_found_by_its_own_name_and_node() {
    let mut world = World::new(1);
    world.sides[1].is_slow = true;
    let id = world.connect(0);
    world.pass(SOON);
    let other = world.only(1);
    let timeout = Rej {
        local_comm_id: id.comm_id(),
        message_rejected: AnsweredMessage::OTHER,
        reason: RejectReason::TIMEOUT,
        ..Rej::default()
    };
    let of = |guid: Guid| CmMessage::Rej(timeout.with_info(&guid.0.to_be_bytes()));
    world.inject(1, address(0), &of(guid(7)));
    assert_eq!(world.phase(1, other), Some(Phase::ReqReceived), "another node's");
    world.inject(1, address(0), &of(guid(0)));
    assert_eq!(world.phase(1, other), None);
}

#[test]
fn another_path_is_offered_and_answered_and_answered_again() {
    let mut world = World::new(1);
    let id = world.connect(0);
    world.pass(SOON);
    let other = world.only(1);
    let now = world.now;
    let lap = Lap { alternate_local_lid: lid(0), ..Lap::default() };
    world.sides[0].cm.offer_path(now, id, lap).unwrap();
    assert!(world.sides[0].cm.offer_path(now, id, lap).is_err(), "one at a time");
    world.exchange(0);
    world.pass(SOON);
    let apr = Apr { status: ApStatus::REJECTED, ..Apr::default() };
    world.sides[1].cm.answer_path(now, other, apr).unwrap();
    assert!(world.sides[1].cm.answer_path(now, other, apr).is_err());
    // The answer is lost, so the offer is repeated.
    while world.sides[1].cm.poll_transmit().is_some() {}
    world.pass(INTERVAL * 9 / 8 + SOON);
    assert_eq!(world.words()[3..], ["0 LAP", "0 LAP", "1 APR"]);
    let CmMessage::Apr(apr) = world.said[5].1 else { panic!() };
    assert_eq!((apr.remote_comm_id, apr.status), (id.comm_id(), ApStatus::REJECTED));
    assert_eq!(world.sides[0].cm.poll_timeout(), None);
}

#[test]
fn packets_under_way_are_waited_for_as_long_as_they_may_take() {
    let mut world = World::new(1);
    let id = world.connect(0);
    world.pass(SOON);
    let now = world.now;
    world.sides[0].cm.disconnect(now, id, [0; 220]).unwrap();
    world.exchange(0);
    world.pass(SOON);
    let view = world.sides[0].cm.connections().next().unwrap();
    let wait = view.state.due().unwrap().since_start() - view.since.since_start();
    // A life time of 14 and a delay of 15 make 16: 268 ms.
    assert_eq!(wait, Duration::from_nanos(4096 << 16));
}

/// Both sides stand; one of them forgets, the other asks, and finds out by the answer.
#[test]
fn a_connection_that_the_peer_has_forgotten_is_found_out_by_asking() {
    for asks in 0..2 {
        let mut world = World::new(1);
        let id = world.connect(0);
        world.pass(SOON);
        let ids = [id, world.only(1)];
        let now = world.now;
        world.sides[asks].cm.probe(now, ids[asks]).unwrap();
        world.exchange(asks);
        world.pass(SOON);
        for (side, id) in ids.into_iter().enumerate() {
            assert_eq!(world.phase(side, id), Some(Phase::Established), "both remember");
        }
        let other = 1 - asks;
        let mut anew = Cm::new(CmConfig::of(guid(other)), SeededRng::new(77));
        anew.listen(SERVICE, WORDS).unwrap();
        world.sides[other].cm = anew;
        world.sides[asks].cm.probe(now, ids[asks]).unwrap();
        world.exchange(asks);
        world.pass(SOON);
        let end = &world.sides[asks].seen[&ids[asks]].end;
        assert!(
            matches!(end, Some(ConnectionEnd::Stale | ConnectionEnd::Rejected(_))),
            "{asks}: {end:?}"
        );
    }
}
