//! A connection from its first message to its last, in good weather.

use super::world::*;
use crate::cm::{CmDrop, ConnectionEnd, Phase};
use pollux_wire::mad::cm::{CmMessage, Dreq, RejectReason, Req};
use std::time::Duration;

const SOON: Duration = Duration::from_millis(10);

fn request_of(world: &World) -> Req {
    let CmMessage::Req(req) = world.said[0].1 else { panic!("the first message is no request") };
    req
}

// req: cm-handshake
#[test]
fn request_reply_and_confirmation_make_a_connection() {
    let mut world = World::new(1);
    let id = world.connect(0);
    world.pass(SOON);
    assert_eq!(world.words(), ["0 REQ", "1 REP", "0 RTU"]);
    let other = world.only(1);
    assert_eq!(world.phase(0, id), Some(Phase::Established));
    assert_eq!(world.phase(1, other), Some(Phase::Established));
    let req = request_of(&world);
    let CmMessage::Rep(rep) = world.said[1].1 else { panic!() };
    assert_eq!((req.service_id, req.local_ca_guid), (SERVICE, guid(0)));
    assert_eq!((rep.remote_comm_id, rep.local_ca_guid), (req.local_comm_id, guid(1)));
    let [ours, theirs] =
        [(0, id), (1, other)].map(|(end, id)| world.sides[end].cm.terms(id).unwrap());
    assert_eq!((ours.dest_qp, theirs.dest_qp), (rep.local_qpn, req.local_qpn));
    assert_eq!((ours.rq_psn, theirs.sq_psn), (req.starting_psn, req.starting_psn));
    assert_eq!((ours.sq_psn, theirs.rq_psn), (rep.starting_psn, rep.starting_psn));
    assert_eq!(world.sides[0].cm.poll_timeout(), None, "an idle connection costs no timer");
}

// req: cm-handshake
#[test]
fn a_rejection_ends_it_with_its_reason_and_the_consumers_private_data() {
    let mut world = World::new(1);
    world.sides[1].refusal = Some(RejectReason::CONSUMER_REJECT);
    let id = world.connect(0);
    world.pass(SOON);
    assert_eq!(world.words(), ["0 REQ", "1 REJ CONSUMER_REJECT"]);
    let seen = &world.sides[0].seen[&id];
    let Some(ConnectionEnd::Rejected(rej)) = &seen.end else { panic!("{seen:?}") };
    assert_eq!((rej.reason, rej.private_data), (RejectReason::CONSUMER_REJECT, [9; 148]));
    assert!(seen.is_closed && !seen.is_established);
}

#[test]
fn a_service_id_without_a_listener_is_rejected() {
    let mut world = World::new(1);
    let qpn = world.qpn(0);
    let mut req = request(0, 1, qpn);
    req.service_id.0 ^= 1 << 40;
    world.ask(0, req);
    world.pass(SOON);
    assert_eq!(world.words(), ["0 REQ", "1 REJ INVALID_SERVICE_ID"]);
    assert_eq!(world.sides[1].cm.drops().of(CmDrop::NoListener), 1);
}

#[test]
fn disconnecting_is_agreed_on_and_leaves_nothing_behind() {
    let mut world = World::new(1);
    let id = world.connect(0);
    world.pass(SOON);
    let now = world.now;
    world.sides[0].cm.disconnect(now, id, [3; 220]).unwrap();
    world.exchange(0);
    world.pass(SOON);
    assert_eq!(world.words()[3..], ["0 DREQ", "1 DREP"]);
    let other = world.only(1);
    assert!(matches!(world.sides[0].seen[&id].end, Some(ConnectionEnd::Answered)));
    assert_eq!(world.sides[1].seen[&other].end, Some(ConnectionEnd::Asked));
    let (_, CmMessage::Dreq(dreq)) = &world.said[3] else { panic!() };
    assert_eq!(dreq.private_data, [3; 220]);
    assert_eq!(world.phase(1, other), Some(Phase::TimeWait));
    while world.step() {}
    for side in &world.sides {
        assert!(side.seen.values().all(|seen| seen.is_closed));
        assert!(side.cm.index.is_empty() && side.cm.connections().next().is_none());
    }
}

#[test]
fn messages_of_another_port_change_no_connection() {
    let mut world = World::new(1);
    let id = world.connect(0);
    world.pass(SOON);
    let dreq = Dreq {
        local_comm_id: world.only(1).comm_id(),
        remote_comm_id: id.comm_id(),
        remote_qpn: request_of(&world).local_qpn,
        ..Dreq::default()
    };
    world.inject(0, address(5), &CmMessage::Dreq(dreq));
    assert_eq!(world.phase(0, id), Some(Phase::Established));
    assert_eq!(world.sides[0].cm.drops().of(CmDrop::Stranger), 1);
    world.inject(0, address(1), &CmMessage::Dreq(dreq));
    assert_eq!(world.phase(0, id), Some(Phase::TimeWait));
}
