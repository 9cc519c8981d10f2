//! Every state and everything that can happen in it, as one table.
//!
//! A cell says what the side answers, a slash, and the state that it is in then; `.` is the same
//! state, `-` no answer.

use super::world::*;
use crate::cm::{Cm, Phase};
use crate::effects::ConnectionKey;
use pollux_verbs::time::Time;
use pollux_wire::address::Qpn;
use pollux_wire::mad::cm::*;
use pollux_wire::units::TimeCode;
use std::fmt::Write;
use std::time::Duration;

const SOON: Duration = Duration::from_millis(1);
const SERVICE_TIMEOUT: TimeCode = TimeCode(22);

/// Brings side 0 into a state; its connection.
fn bring(world: &mut World, phase: Phase) -> ConnectionKey {
    let is_passive = matches!(phase, Phase::ReqReceived | Phase::RepSent | Phase::MraRepReceived);
    let from = usize::from(is_passive);
    world.sides[0].is_slow = matches!(phase, Phase::ReqReceived | Phase::RepReceived);
    world.sides[1].is_slow = matches!(
        phase,
        Phase::ReqSent | Phase::MraReqReceived | Phase::RepSent | Phase::MraRepReceived
    );
    let id = world.connect(from);
    world.pass(SOON);
    let other = world.only(1);
    let own = if is_passive { world.only(0) } else { id };
    let now = world.now;
    match phase {
        Phase::MraReqReceived => {
            world.send_mra([own, other], AnsweredMessage::REQ, SERVICE_TIMEOUT);
        }
        Phase::MraRepReceived => {
            world.send_mra([own, other], AnsweredMessage::REP, SERVICE_TIMEOUT);
        }
        Phase::DreqSent => {
            world.weather.lost = 1_000_000;
            world.sides[0].cm.disconnect(now, own, [0; 220]).unwrap();
            world.exchange(0);
        }
        Phase::TimeWait => {
            world.sides[0].cm.disconnect(now, own, [0; 220]).unwrap();
            world.exchange(0);
        }
        _ => {}
    }
    world.pass(SOON);
    assert_eq!(world.phase(0, own), Some(phase));
    own
}

/// The same, and for one that is established, on which side it is and what it was offered.
fn bring_to(world: &mut World, state: &Start) -> ConnectionKey {
    let own = match state.is_passive {
        true => {
            world.connect(1);
            world.pass(SOON);
            world.only(0)
        }
        false => bring(world, state.phase),
    };
    if state.is_offered {
        let messages = messages(world, own);
        let (_, lap) = messages.iter().find(|(name, _)| *name == "LAP").unwrap();
        world.inject(0, address(1), lap);
    }
    assert_eq!(world.phase(0, own), Some(state.phase));
    own
}

/// Where side 0 is when something happens.
struct Start {
    name: &'static str,
    phase: Phase,
    is_passive: bool,
    is_offered: bool,
}

const fn start(name: &'static str, phase: Phase) -> Start {
    Start { name, phase, is_passive: false, is_offered: false }
}

const STARTS: [Start; 11] = [
    start("REQ sent", Phase::ReqSent),
    start("MRA(REQ) received", Phase::MraReqReceived),
    start("REP received", Phase::RepReceived),
    start("REQ received", Phase::ReqReceived),
    start("REP sent", Phase::RepSent),
    start("MRA(REP) received", Phase::MraRepReceived),
    start("established", Phase::Established),
    Start { is_passive: true, ..start("established, passive", Phase::Established) },
    Start { is_offered: true, ..start("established, path offered", Phase::Established) },
    start("DREQ sent", Phase::DreqSent),
    start("time-wait", Phase::TimeWait),
];

type Call = fn(&mut Cm, Time, ConnectionKey) -> bool;

const CALLS: [(&str, Call); 9] = [
    ("accept", |cm, now, id| cm.accept(now, id, reply(Qpn(9))).is_ok()),
    ("confirm", |cm, now, id| cm.confirm(now, id, [0; 224]).is_ok()),
    ("reject", |cm, now, id| {
        cm.reject(now, id, RejectReason::CONSUMER_REJECT, &[], [0; 148]).is_ok()
    }),
    ("data", |cm, now, id| cm.handle_data(now, id).is_ok()),
    ("disconnect", |cm, now, id| cm.disconnect(now, id, [0; 220]).is_ok()),
    ("offer path", |cm, now, id| cm.offer_path(now, id, Lap::default()).is_ok()),
    ("answer path", |cm, now, id| cm.answer_path(now, id, Apr::default()).is_ok()),
    ("probe", |cm, now, id| cm.probe(now, id).is_ok()),
    ("ignore", |cm, now, id| {
        cm.ignore(now, id);
        true
    }),
];

/// All messages, as the peer would send them about the connection.
fn messages(world: &World, own: ConnectionKey) -> Vec<(&'static str, CmMessage)> {
    let view = world.sides[0].cm.connections().find(|view| view.key == own).unwrap();
    let others = world.sides[1].cm.connections().next().unwrap().key.comm_id();
    let local_comm_id = view.remote_id.unwrap_or(others);
    let remote_comm_id = own.comm_id();
    let remote_qpn = view.local_qpn().unwrap_or_default();
    let mra = |message_mraed| {
        let service_timeout = SERVICE_TIMEOUT;
        CmMessage::Mra(Mra {
            local_comm_id,
            remote_comm_id,
            message_mraed,
            service_timeout,
            ..Mra::default()
        })
    };
    let rej = |reason| {
        let message_rejected = AnsweredMessage::REQ;
        CmMessage::Rej(Rej {
            local_comm_id,
            remote_comm_id,
            message_rejected,
            reason,
            ..Rej::default()
        })
    };
    let rep = Rep { local_comm_id, remote_comm_id, ..reply(Qpn(0x777)) };
    let dreq = Dreq { local_comm_id, remote_comm_id, remote_qpn, ..Dreq::default() };
    vec![
        ("REQ again", world.said[0].1),
        ("REP", CmMessage::Rep(rep)),
        ("RTU", CmMessage::Rtu(Rtu { local_comm_id, remote_comm_id, ..Rtu::default() })),
        ("MRA REQ", mra(AnsweredMessage::REQ)),
        ("MRA REP", mra(AnsweredMessage::REP)),
        ("REJ", rej(RejectReason::CONSUMER_REJECT)),
        ("REJ stale", rej(RejectReason::STALE_CONNECTION)),
        ("DREQ", CmMessage::Dreq(dreq)),
        ("DREP", CmMessage::Drep(Drep { local_comm_id, remote_comm_id, ..Drep::default() })),
        (
            "LAP",
            CmMessage::Lap(Lap { local_comm_id, remote_comm_id, remote_qpn, ..Lap::default() }),
        ),
        ("APR", CmMessage::Apr(Apr { local_comm_id, remote_comm_id, ..Apr::default() })),
    ]
}

fn cell(world: &World, own: ConnectionKey, before: Phase, said: usize) -> String {
    let answers: Vec<_> = world.said[said..]
        .iter()
        .filter(|(from, _)| *from == 0)
        .map(|(_, message)| word(message))
        .collect();
    let answers = if answers.is_empty() { "-".into() } else { answers.join("+") };
    match world.phase(0, own) {
        Some(phase) if phase == before => format!("{answers} / ."),
        Some(phase) => format!("{answers} / {phase}"),
        None => format!("{answers} / closed"),
    }
}

fn table() -> String {
    let mut table = String::new();
    for state in STARTS {
        let phase = state.phase;
        writeln!(table, "{}", state.name).unwrap();
        let mut line = |name: &str, cell: String| {
            if cell != "- / ." {
                writeln!(table, "  {name:<11} {cell}").unwrap();
            }
        };
        for (name, call) in CALLS {
            let mut world = World::new(7);
            let own = bring_to(&mut world, &state);
            let (said, now) = (world.said.len(), world.now);
            let is_taken = call(&mut world.sides[0].cm, now, own);
            world.exchange(0);
            let changed = cell(&world, own, phase, said);
            assert!(is_taken || changed == "- / .", "a refused call changes nothing");
            line(name, changed);
        }
        let mut world = World::new(7);
        let own = bring_to(&mut world, &state);
        for (name, message) in messages(&world, own) {
            let mut world = World::new(7);
            let own = bring_to(&mut world, &state);
            if matches!(message, CmMessage::Req(_)) && world.said[0].0 == 0 {
                continue;
            }
            let said = world.said.len();
            world.inject(0, address(1), &message);
            line(name, cell(&world, own, phase, said));
        }
        let (said, due) = (world.said.len(), world.sides[0].cm.poll_timeout());
        if let Some(due) = due {
            world.sides[0].cm.handle_timeout(due);
            world.exchange(0);
            line("timeout", cell(&world, own, phase, said));
        }
    }
    table
}

#[test]
fn every_state_and_everything_that_can_happen() {
    let table = table();
    assert!(table == include_str!("table.txt"), "\n{table}");
}
