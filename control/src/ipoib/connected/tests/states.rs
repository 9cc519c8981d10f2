//! Every state of a connection and everything that can happen in it, as one table; and what has to
//! hold between connections and all that is derived from them.
//!
//! A cell says what is done at the device and said to the peer, a slash, and the state then; `.` is
//! the same state, `-` nothing, `gone` no connection.

use super::*;
use crate::cm::CmDatagram;
use crate::cm::ConnectionEnd;
use crate::ipoib::connected::probe::Probe;
use pollux_wire::mad::cm::Rej;
use std::fmt::Write;

impl Connections {
    /// Asserts that states, indices and attempts fit each other.
    pub(super) fn check_states(&self) {
        self.all.check();
        let all: Vec<_> = self.peers.keys().flat_map(|peer| self.all.of_peer(*peer)).collect();
        assert_eq!(all.len(), self.all.len(), "each is of a peer");
        for (key, it) in &all {
            let is_ours = it.role == Role::Active;
            match &it.state {
                State::CreatingForReq { .. } | State::ReqSent { .. } => {
                    assert!(is_ours, "{it:?}");
                    assert_eq!(self.outstanding_request(it.peer, it.worker), Some(*key), "{it:?}");
                }
                State::CreatingForRep | State::RepSent { .. } => {
                    assert!(!is_ours && it.mtu >= 68, "{it:?}");
                }
                State::Open { .. } => {
                    assert!(it.mtu >= 68 && it.paths.mtu.is_some(), "{it:?}");
                }
                State::Ending { .. } => assert_eq!(it.probe, Probe::Idle, "{it:?}"),
            }
            assert!(self.local.is_some() || it.is_ending(), "the interface is down: {it:?}");
        }
        let mut due = BTreeSet::new();
        for (address, peer) in &self.peers {
            for (attempts, worker) in peer.attempts.iter().zip(self.workers()) {
                due.extend(attempts.attempt.due().map(|at| (at, *address, worker)));
                if let Attempt::UnderWay(key) = attempts.attempt {
                    let asked = self.all.get(&key).expect("it is there");
                    assert_eq!((asked.peer, asked.worker), (*address, worker));
                    assert!(asked.role == Role::Active && asked.is_under_way(), "{asked:?}");
                }
            }
        }
        assert_eq!(due, self.due, "pauses");
        let probes = all.iter().filter_map(|(key, it)| match it.probe {
            Probe::Idle => None,
            Probe::Unanswered { until } | Probe::Asked { until, .. } => Some((until, *key)),
        });
        assert_eq!(probes.collect::<BTreeSet<_>>(), self.probes, "probes");
        let alternates = all.iter().filter_map(|(key, it)| Some((it.paths.due?, *key)));
        assert_eq!(alternates.collect::<BTreeSet<_>>(), self.alternates_due, "second paths");
    }
}

/// Delivers REQs of peers; the device does nothing.
fn hear(pair: &mut Pair) {
    while let Some(envelope) = pair.theirs.poll_transmit() {
        let peer = MadAddress::gsi(pair.their_lid, 0, PKey::DEFAULT);
        pair.ours.handle_mad(pair.now, &CmDatagram::parse(&Envelope { peer, mad: envelope.mad }));
    }
}

fn ask_for_packet(pair: &mut Pair) {
    let path = path(&OURS, &THEIRS);
    pair.ours.connect(pair.now, &THEIRS, WorkerId::PRIMARY, pair.qp_type, &path);
}

fn only(pair: &Pair) -> ConnectionKey {
    pair.ours.rows().next().expect("there is one").connection
}

fn open(pair: &mut Pair) {
    pair.connect();
    pair.accept(65_524, THEIRS.qpn);
}

/// Ends the only connection, before the peer and the device act on it.
fn end(pair: &mut Pair) {
    pair.ours.end(pair.now, only(pair), PeerDrop::Idle);
}

type Start = fn(&mut Pair);

const STARTS: [(&str, Start); 9] = [
    ("creating for REQ", ask_for_packet),
    ("REQ sent", Pair::connect),
    ("open, requested by us", open),
    ("creating for REP", |pair| {
        pair.ask(Dialect::Rfc, &THEIRS, 0x600);
        hear(pair);
    }),
    ("REP sent", |pair| {
        pair.ask(Dialect::Rfc, &THEIRS, 0x600);
        pair.settle();
    }),
    ("open, requested by the peer", |pair| {
        pair.ask(Dialect::Rfc, &THEIRS, 0x600);
        pair.settle();
        pair.confirm_all();
    }),
    ("ending before it was made", |pair| {
        ask_for_packet(pair);
        end(pair);
    }),
    ("ending, the peer is to part", |pair| {
        open(pair);
        end(pair);
    }),
    ("ending, the queue pair is to go", |pair| {
        open(pair);
        let id = only(pair);
        end(pair);
        pair.ours.handle_closed(pair.now, id);
    }),
];

type Event = fn(&mut Pair, ConnectionKey, Option<ConnectionKey>);

/// What the device says of the connection.
macro_rules! news {
    ($news:expr) => {
        |pair, key, _| pair.ours.handle_event(pair.now, key, &$news)
    };
}

/// What connection management says of it, if that has it.
macro_rules! told {
    ($end:expr) => {
        |pair, _, id| {
            if let Some(id) = id {
                pair.ours.handle_connection_end(pair.now, id, $end);
            }
        }
    };
}

fn rejected(reason: RejectReason) -> ConnectionEnd {
    ConnectionEnd::Rejected(Box::new(Rej { reason, ..Rej::default() }))
}

const EVENTS: [(&str, Event); 25] = [
    ("made", news!(QueuePairEvent::Made { qpn: Qpn(0x999) })),
    ("failed", news!(QueuePairEvent::Failed)),
    ("failed after long", |pair, key, _| {
        pair.now = pair.now + Duration::from_secs(10);
        pair.ours.handle_event(pair.now, key, &QueuePairEvent::Failed);
    }),
    ("used", news!(QueuePairEvent::Used { received: false })),
    ("data came", news!(QueuePairEvent::DataCame)),
    ("migrated", news!(QueuePairEvent::Migrated)),
    ("alternate refused", news!(QueuePairEvent::AlternateRefused)),
    ("queue pair gone", news!(QueuePairEvent::Ended)),
    ("REP", |pair, _, _| {
        let asked = pair.told.iter().find_map(|event| match event {
            CmEvent::Request { key: id, .. } => Some(*id),
            _ => None,
        });
        let private_data = IpoibPrivateData { ud_qpn: THEIRS.qpn, receive_mtu: 65_524 }.padded();
        let rep = Rep { local_qpn: Qpn(0x500), private_data, ..Rep::default() };
        if asked.is_some_and(|id| pair.theirs.accept(pair.now, id, rep).is_ok()) {
            hear(pair);
        }
    }),
    ("REP, unasked", |pair, _, id| {
        let private_data = IpoibPrivateData { ud_qpn: THEIRS.qpn, receive_mtu: 65_524 }.padded();
        if let Some(id) = id {
            pair.ours.handle_reply(pair.now, id, &Rep { private_data, ..Rep::default() });
        }
    }),
    ("RTU", |pair, _, id| id.into_iter().for_each(|id| pair.ours.handle_established(pair.now, id))),
    ("remembered", |pair, _, id| {
        id.into_iter().for_each(|id| pair.ours.set_probe(id, Probe::Idle));
    }),
    ("REJ, service ID", told!(rejected(RejectReason::INVALID_SERVICE_ID))),
    ("REJ", told!(rejected(RejectReason::CONSUMER_REJECT))),
    ("silence", told!(ConnectionEnd::TimedOut)),
    ("DREQ", told!(ConnectionEnd::Asked)),
    ("stale", told!(ConnectionEnd::Stale)),
    ("closed", |pair, _, id| id.into_iter().for_each(|id| pair.ours.handle_closed(pair.now, id))),
    ("REQ", |pair, _, _| {
        pair.ask(Dialect::Rfc, &THEIRS, 0x700);
        hear(pair);
    }),
    ("packet", |pair, _, _| ask_for_packet(pair)),
    ("announcement", |pair, _, _| pair.ours.handle_announcement(pair.now, &THEIRS)),
    ("offers none", |pair, _, _| {
        pair.ours.handle_neighbor(pair.now, &LinkAddress { rc: false, uc: false, ..THEIRS });
    }),
    ("forgotten", |pair, _, _| pair.ours.forget(pair.now, &THEIRS)),
    ("down", |pair, _, _| pair.ours.set_local_end(pair.now, None)),
    ("unused for long", |pair, _, _| {
        pair.now = pair.now + Duration::from_secs(1000);
        pair.ours.end_idle(pair.now);
    }),
];

/// Actions for the device, and messages to the peer.
fn outcome(pair: &mut Pair) -> String {
    let actions = std::iter::from_fn(|| pair.ours.poll_action()).map(|action| match action {
        Action::Connect { .. } => "make".to_owned(),
        Action::Disconnect { .. } => "destroy".to_owned(),
        Action::Modify { attributes, .. } => match attributes.state {
            Some(state) => format!("{state:?}"),
            None => "alternate".to_owned(),
        },
        other => panic!("{other:?}"),
    });
    let mut all: Vec<_> = actions.collect();
    while let Some(envelope) = pair.ours.poll_mad() {
        let (_, message) = CmMessage::parse_mad(&envelope.mad).unwrap();
        let message = format!("{message:?}");
        all.extend(message.split('(').next().map(str::to_uppercase));
    }
    if all.is_empty() { "-".to_owned() } else { all.join("+") }
}

/// The state of the connection, and of others that there are by now.
fn state(pair: &Pair, key: ConnectionKey) -> String {
    let own = pair.ours.rows().find(|row| row.connection == key);
    let own = own.map_or_else(
        || "gone".to_owned(),
        |row| match row.state {
            "ending" => format!("ending ({})", row.why),
            state => state.to_owned(),
        },
    );
    let others = pair.ours.rows().filter(|row| row.connection != key);
    others.fold(own, |all, row| format!("{all}, another {}", row.state))
}

fn table(qp_type: QpType) -> String {
    let mut table = String::new();
    for (name, start) in STARTS {
        writeln!(table, "{name}").unwrap();
        for (event, happen) in EVENTS {
            let mut pair = Pair::new(&[Dialect::Rfc, Dialect::Linux]);
            pair.qp_type = qp_type;
            start(&mut pair);
            pair.ours.check_states();
            let key = only(&pair);
            let id = pair.ours.all.get(&key).filter(|it| it.state.has_cm_connection()).map(|_| key);
            let (_, before) = (outcome(&mut pair), state(&pair, key));
            happen(&mut pair, key, id);
            pair.ours.check_states();
            let (outcome, after) = (outcome(&mut pair), state(&pair, key));
            let after = if after == before { ".".to_owned() } else { after };
            if (outcome.as_str(), after.as_str()) != ("-", ".") {
                writeln!(table, "    {event:<18} {outcome} / {after}").unwrap();
            }
        }
    }
    table
}

#[test]
fn every_state_of_a_connection_and_everything_that_can_happen() {
    let table = table(QpType::Rc);
    assert!(table == include_str!("states.txt"), "\n{table}");
}

#[test]
fn unreliable_connections_go_through_the_same_states() {
    let without_flags = |table: String| {
        let is_of_kind = |line: &&str| !line.trim_start().starts_with("offers none");
        table.lines().filter(is_of_kind).map(|line| format!("{line}\n")).collect::<String>()
    };
    assert_eq!(without_flags(table(QpType::Uc)), without_flags(table(QpType::Rc)));
}
