//! Two ends, a wire between them that may lose, repeat and delay, and a consumer for each.

use crate::cm::CmDatagram;
use crate::cm::{
    Cm, CmConfig, CmEvent, Connect, ConnectionEnd, LocalPort, Phase, Terms, request_along,
};
use crate::effects::ConnectionKey;
use crate::mad::{Envelope, MadAddress};
use pollux_verbs::rng::SeededRng;
use pollux_verbs::time::Time;
use pollux_wire::address::{Gid, Guid, Lid, Qpn};
use pollux_wire::keys::PKey;
use pollux_wire::mad::cm::{AnsweredMessage, CmMessage, Mra, Rej, RejectReason, Rep, Req};
use pollux_wire::mad::sa::PathRecord;
use pollux_wire::mad::service_id::ServiceId;
use pollux_wire::psn::Psn;
use pollux_wire::units::{Mtu, Rate, TimeCode};
use std::collections::BTreeMap;
use std::time::Duration;

pub(super) const SERVICE: ServiceId = ServiceId(0x0100_0000_0000_0048);
/// What listeners say when their consumer has no say.
pub(super) const WORDS: [u8; 148] = [0x48; 148];
pub(super) const LIFE_TIME: TimeCode = TimeCode(14);

pub(super) fn lid(end: usize) -> Lid {
    Lid(end as u16 + 1)
}

pub(super) fn guid(end: usize) -> Guid {
    Guid(0x0002_c903_0000_1000 + end as u64)
}

pub(super) fn gid(end: usize) -> Gid {
    Gid::new(Gid::DEFAULT_PREFIX, guid(end))
}

pub(super) fn address(end: usize) -> MadAddress {
    MadAddress::gsi(lid(end), 0, PKey::DEFAULT)
}

pub(super) fn path(from: usize, to: usize) -> PathRecord {
    PathRecord {
        sgid: gid(from),
        dgid: gid(to),
        slid: lid(from),
        dlid: lid(to),
        p_key: PKey::DEFAULT,
        mtu: Mtu::BYTES_2048,
        rate: Rate::GBPS_100,
        packet_life_time: LIFE_TIME,
        ..PathRecord::default()
    }
}

pub(super) fn request(from: usize, to: usize, qpn: Qpn) -> Req {
    Req {
        service_id: SERVICE,
        local_qpn: qpn,
        starting_psn: Psn::new(qpn.0 * 3),
        retry_count: 6,
        rnr_retry_count: 5,
        private_data: [qpn.0 as u8; 92],
        ..request_along(&path(from, to), TimeCode(15))
    }
}

pub(super) fn reply(qpn: Qpn) -> Rep {
    Rep {
        local_qpn: qpn,
        starting_psn: Psn::new(qpn.0 * 5),
        rnr_retry_count: 7,
        target_ack_delay: TimeCode(15),
        private_data: [qpn.0 as u8; 196],
        ..Rep::default()
    }
}

/// Lost and duplicated messages in a million, and the longest delay.
#[derive(Clone, Copy, Default)]
pub(super) struct Weather {
    pub(super) lost: u32,
    pub(super) doubled: u32,
    pub(super) late: Duration,
}

/// What a consumer knows of a connection.
#[derive(Clone, Debug, Default)]
pub(super) struct Seen {
    pub(super) terms: Option<Terms>,
    pub(super) is_established: bool,
    pub(super) end: Option<ConnectionEnd>,
    pub(super) is_closed: bool,
}

pub(super) struct Side {
    pub(super) cm: Cm,
    pub(super) seen: BTreeMap<ConnectionKey, Seen>,
    next_qpn: u32,
    /// What requests are answered with: a reply unless a reason says otherwise.
    pub(super) refusal: Option<RejectReason>,
    /// Requests and replies stay unanswered.
    pub(super) is_slow: bool,
}

pub(super) struct World {
    pub(super) now: Time,
    pub(super) sides: Vec<Side>,
    wire: BTreeMap<(Time, u64), (usize, Envelope)>,
    sent: u64,
    rng: SeededRng,
    pub(super) weather: Weather,
    /// Every message that was sent: from where, and what.
    pub(super) said: Vec<(usize, CmMessage)>,
}

impl World {
    pub(super) fn new(seed: u64) -> Self {
        Self::with(seed, |config| config)
    }

    pub(super) fn with(seed: u64, limits: impl Fn(CmConfig) -> CmConfig) -> Self {
        let side = |end| {
            let config = limits(CmConfig::of(guid(end)));
            let mut cm = Cm::new(config, SeededRng::new(seed * 2 + end as u64));
            cm.listen(SERVICE, WORDS).unwrap();
            cm.handle_port(LocalPort { gids: vec![gid(end)], ..LocalPort::default() });
            let (seen, next_qpn) = (BTreeMap::new(), 0x100 * (end as u32 + 1));
            Side { cm, seen, next_qpn, refusal: None, is_slow: false }
        };
        Self {
            now: Time::START,
            sides: (0..2).map(side).collect(),
            wire: BTreeMap::new(),
            sent: 0,
            rng: SeededRng::new(!seed),
            weather: Weather::default(),
            said: Vec::new(),
        }
    }

    pub(super) fn qpn(&mut self, end: usize) -> Qpn {
        self.sides[end].next_qpn += 1;
        Qpn(self.sides[end].next_qpn)
    }

    pub(super) fn connect(&mut self, from: usize) -> ConnectionKey {
        let to = 1 - from;
        let req = request(from, to, self.qpn(from));
        self.ask(from, req)
    }

    pub(super) fn ask(&mut self, from: usize, req: Req) -> ConnectionKey {
        let connect = Connect { to: address(1 - from), req, packet_life_time: LIFE_TIME };
        let id = self.sides[from].cm.new_key();
        self.sides[from].cm.connect(self.now, id, connect).unwrap();
        self.sides[from].seen.insert(id, Seen::default());
        self.exchange(from);
        id
    }

    pub(super) fn phase(&self, end: usize, id: ConnectionKey) -> Option<Phase> {
        self.sides[end].cm.phase(id)
    }

    /// Sends the messages of a side, and passes its events to its consumer.
    pub(super) fn exchange(&mut self, end: usize) {
        loop {
            while let Some(envelope) = self.sides[end].cm.poll_transmit() {
                self.put(end, &envelope);
            }
            let Some(event) = self.sides[end].cm.poll_event() else { return };
            self.own(end, event);
        }
    }

    fn put(&mut self, from: usize, envelope: &Envelope) {
        let to = usize::from(envelope.peer.lid.0) - 1;
        let (_, message) = CmMessage::parse_mad(&envelope.mad).unwrap();
        self.said.push((from, message));
        if to >= self.sides.len() {
            return;
        }
        let copies = if self.rng.happens(self.weather.doubled) { 2 } else { 1 };
        for _ in 0..copies {
            if self.rng.happens(self.weather.lost) {
                continue;
            }
            let peer = MadAddress { lid: lid(from), ..envelope.peer };
            let at = self.now + Duration::from_micros(10) + self.rng.duration(self.weather.late);
            self.sent += 1;
            self.wire.insert((at, self.sent), (to, Envelope { peer, ..*envelope }));
        }
    }

    fn own(&mut self, end: usize, event: CmEvent) {
        let now = self.now;
        match event {
            CmEvent::Request { key: id, .. } => {
                self.sides[end].seen.insert(id, Seen::default());
                if self.sides[end].is_slow {
                    return;
                }
                let qpn = self.qpn(end);
                let side = &mut self.sides[end];
                match side.refusal {
                    Some(reason) => side.cm.reject(now, id, reason, &[], [9; 148]).unwrap(),
                    None => side.cm.accept(now, id, reply(qpn)).unwrap(),
                }
            }
            CmEvent::Reply { key: id, .. } => {
                let side = &mut self.sides[end];
                if !side.is_slow {
                    side.cm.confirm(now, id, [7; 224]).unwrap();
                    side.establish(id);
                }
            }
            CmEvent::Established { key: id, .. } => self.sides[end].establish(id),
            CmEvent::Ended { key: id, end: reason, .. } => {
                let seen = self.sides[end].seen.get_mut(&id).unwrap();
                assert!(seen.end.replace(reason).is_none(), "{id:?} ended twice");
            }
            CmEvent::Closed { key: id } => {
                self.sides[end].seen.get_mut(&id).unwrap().is_closed = true;
            }
            CmEvent::Remembered { .. }
            | CmEvent::PathOffered { .. }
            | CmEvent::PathAnswered { .. } => {}
        }
    }

    /// Goes on to the next thing that happens; false if nothing will.
    pub(super) fn step(&mut self) -> bool {
        let wire = self.wire.first_key_value().map(|((at, _), _)| *at);
        let timers = self.sides.iter().filter_map(|side| side.cm.poll_timeout());
        let Some(next) = wire.into_iter().chain(timers).min() else { return false };
        assert!(next >= self.now, "a deadline in the past was not met");
        self.now = next;
        while let Some(entry) = self.wire.first_entry().filter(|entry| entry.key().0 <= next) {
            let (to, envelope) = entry.remove();
            self.sides[to].cm.handle_mad(next, &CmDatagram::parse(&envelope));
            self.exchange(to);
        }
        for end in 0..self.sides.len() {
            self.sides[end].cm.handle_timeout(next);
            self.exchange(end);
        }
        true
    }

    /// Goes on for so long.
    pub(super) fn pass(&mut self, time: Duration) {
        let until = self.now + time;
        let due = |world: &Self| {
            let wire = world.wire.first_key_value().map(|((at, _), _)| *at);
            let timers = world.sides.iter().filter_map(|side| side.cm.poll_timeout());
            wire.into_iter().chain(timers).min()
        };
        while due(self).is_some_and(|due| due <= until) {
            self.step();
        }
        self.now = until;
    }

    /// Injects a message with a forged sender.
    pub(super) fn inject(&mut self, to: usize, from: MadAddress, message: &CmMessage) {
        let envelope = Envelope { peer: from, mad: message.emit_mad(0x7777) };
        self.sides[to].cm.handle_mad(self.now, &CmDatagram::parse(&envelope));
        self.exchange(to);
    }

    /// Side 1 asks side 0 for more time to answer a message about their connections `ids`.
    pub(super) fn send_mra(
        &mut self,
        ids: [ConnectionKey; 2],
        message_mraed: AnsweredMessage,
        service_timeout: TimeCode,
    ) {
        let [remote_comm_id, local_comm_id] = ids.map(ConnectionKey::comm_id);
        let mra =
            Mra { local_comm_id, remote_comm_id, message_mraed, service_timeout, ..Mra::default() };
        self.inject(0, address(1), &CmMessage::Mra(mra));
    }

    /// The only connection of a side.
    pub(super) fn only(&self, end: usize) -> ConnectionKey {
        let mut all = self.sides[end].cm.connections();
        let id = all.next().expect("a connection").key;
        assert!(all.next().is_none());
        id
    }

    /// The names of all messages, in order.
    pub(super) fn words(&self) -> Vec<String> {
        self.said.iter().map(|(from, message)| format!("{from} {}", word(message))).collect()
    }
}

impl Side {
    fn establish(&mut self, id: ConnectionKey) {
        let terms = self.cm.terms(id);
        let seen = self.seen.get_mut(&id).unwrap();
        (seen.is_established, seen.terms) = (true, terms);
    }
}

pub(super) fn word(message: &CmMessage) -> String {
    match message {
        CmMessage::Rej(Rej { reason, .. }) => format!("REJ {reason}"),
        other => format!("{other:?}").split('(').next().unwrap_or_default().to_uppercase(),
    }
}
