//! One connection: its state (IBA 12.9), its data and its timers. The diagram is in [`super`].

mod transitions;

use super::outbox::{Outbox, Repeat};
use super::timing::{ack_timeout, packet_life_time, response_time};
use super::{CmDrop, CmError, CmEvent, Connect, ConnectionEnd, ListenerData, Role};
use crate::cm::index::{Keys, Source};
use crate::effects::ConnectionKey;
use crate::mad::MadAddress;
use pollux_verbs::named_enum;
use pollux_verbs::time::Time;
use pollux_wire::address::{Gid, Guid, Qpn};
use pollux_wire::mad::cm::{
    AnsweredMessage, Apr, CmMessage, CommId, Drep, Dreq, Lap, Mra, Rej, RejectReason, Rep, Req, Rtu,
};
use pollux_wire::units::TimeCode;
use std::fmt;
use std::time::Duration;

/// An alternate path that the peer offers by a LAP.
#[derive(Clone, Debug)]
pub(super) enum Offer {
    None,
    /// The consumer must answer it.
    Received {
        transaction_id: u64,
    },
    /// The last APR, to answer a repeated LAP.
    Answered {
        transaction_id: u64,
        apr: Box<Apr>,
    },
}

#[derive(Clone, Debug)]
pub(super) enum State {
    ReqSent(Repeat),
    MraReqReceived(Repeat),
    RepReceived {
        until: Time,
    },
    ReqReceived {
        until: Time,
    },
    RepSent(Repeat),
    MraRepReceived(Repeat),
    Established {
        /// The RTU of the active side, to answer a repeated REP.
        rtu: Option<Box<Rtu>>,
        /// Our LAP, until its APR arrives.
        offered: Option<Repeat>,
        offer: Offer,
    },
    DreqSent(Repeat),
    TimeWait {
        until: Time,
        /// The last message, to answer a repeated message of the peer.
        last_message: Option<Box<CmMessage>>,
    },
    /// To be removed from the tables.
    Closed,
}

named_enum! {
    pub enum Phase {
        ReqSent = "REQ sent",
        MraReqReceived = "MRA(REQ) received",
        RepReceived = "REP received",
        ReqReceived = "REQ received",
        RepSent = "REP sent",
        MraRepReceived = "MRA(REP) received",
        Established = "established",
        DreqSent = "DREQ sent",
        TimeWait = "time-wait",
        Closed = "closed",
    }
}

impl fmt::Display for Phase {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

impl State {
    pub(super) const fn phase(&self) -> Phase {
        match self {
            Self::ReqSent(_) => Phase::ReqSent,
            Self::MraReqReceived(_) => Phase::MraReqReceived,
            Self::RepReceived { .. } => Phase::RepReceived,
            Self::ReqReceived { .. } => Phase::ReqReceived,
            Self::RepSent(_) => Phase::RepSent,
            Self::MraRepReceived(_) => Phase::MraRepReceived,
            Self::Established { .. } => Phase::Established,
            Self::DreqSent(_) => Phase::DreqSent,
            Self::TimeWait { .. } => Phase::TimeWait,
            Self::Closed => Phase::Closed,
        }
    }

    pub(super) fn due(&self) -> Option<Time> {
        match self {
            Self::ReqSent(repeat)
            | Self::MraReqReceived(repeat)
            | Self::RepSent(repeat)
            | Self::MraRepReceived(repeat)
            | Self::DreqSent(repeat) => Some(repeat.due),
            Self::RepReceived { until, .. }
            | Self::ReqReceived { until, .. }
            | Self::TimeWait { until, .. } => Some(*until),
            Self::Established { offered, .. } => offered.as_ref().map(|repeat| repeat.due),
            Self::Closed => None,
        }
    }
}

/// A connection, from its request to the end of TIME-WAIT.
#[derive(Clone, Debug)]
pub(super) struct Connection {
    pub(super) key: ConnectionKey,
    pub(super) role: Role,
    /// The address of the peer's CM.
    pub(super) peer: MadAddress,
    pub(super) peer_gid: Gid,
    pub(super) remote_id: Option<CommId>,
    pub(super) req: Box<Req>,
    pub(super) rep: Option<Box<Rep>>,
    /// The transaction ID of the REQ, which all answers repeat.
    pub(super) transaction_id: u64,
    pub(super) packet_life_time: TimeCode,
    pub(super) since: Time,
    pub(super) state: State,
    /// The private data of the listener, for a REJ before the REP.
    pub(super) listener_data: Option<ListenerData>,
    /// The consumer knows that the connection has ended, or ended it itself.
    has_reported_end: bool,
}

impl Connection {
    pub(super) fn active(
        now: Time,
        key: ConnectionKey,
        transaction_id: u64,
        connect: Connect,
        out: &mut Outbox,
    ) -> Self {
        let Connect { to, req, packet_life_time } = connect;
        let message = CmMessage::Req(req);
        let interval = response_time(packet_life_time, req.remote_cm_response_timeout);
        let times_left = req.max_cm_retries;
        let repeat = out.begin_repeat(now, &to, message, transaction_id, (interval, times_left));
        Self {
            key,
            role: Role::Active,
            peer: to,
            peer_gid: req.primary.remote_gid,
            remote_id: None,
            req: Box::new(req),
            rep: None,
            transaction_id,
            packet_life_time,
            since: now,
            state: State::ReqSent(repeat),
            listener_data: None,
            has_reported_end: false,
        }
    }

    pub(super) fn passive(
        now: Time,
        key: ConnectionKey,
        (peer, transaction_id, req): (MadAddress, u64, &Req),
        listener_data: Option<ListenerData>,
        out: &mut Outbox,
    ) -> Self {
        out.emit_event(CmEvent::Request { key, req: Box::new(*req) });
        let until = now + out.config.consumer_time_max;
        Self {
            key,
            role: Role::Passive,
            peer,
            peer_gid: req.primary.local_gid,
            remote_id: Some(req.local_comm_id),
            req: Box::new(*req),
            rep: None,
            transaction_id,
            packet_life_time: packet_life_time(req),
            since: now,
            state: State::ReqReceived { until },
            listener_data,
            has_reported_end: false,
        }
    }

    pub(super) fn keys(&self) -> Keys {
        let phase = self.state.phase();
        if phase == Phase::Closed {
            return Keys::default();
        }
        // A rejected request is kept for a while, and counts against the limit of its source.
        let is_pending = match phase {
            Phase::ReqReceived | Phase::RepSent | Phase::MraRepReceived => true,
            Phase::TimeWait => self.role == Role::Passive && self.rep.is_none(),
            _ => false,
        };
        let remote_qpn = self.remote_qpn().filter(|_| phase != Phase::TimeWait);
        let is_far = self.role == Role::Passive && self.peer.is_beyond_router();
        Keys {
            due: self.state.due(),
            remote_id: self.remote_id.map(|remote_id| (remote_id, self.peer_gid)),
            remote_qp: remote_qpn.map(|qpn| (self.peer_gid, qpn)),
            pending_from: is_pending.then(|| Source::of(&self.peer)),
            router: is_far.then_some(self.peer.lid),
        }
    }

    pub(super) fn local_qpn(&self) -> Option<Qpn> {
        match self.role {
            Role::Active => Some(self.req.local_qpn),
            Role::Passive => self.rep.as_ref().map(|rep| rep.local_qpn),
        }
    }

    pub(super) fn remote_qpn(&self) -> Option<Qpn> {
        match self.role {
            Role::Active => self.rep.as_ref().map(|rep| rep.local_qpn),
            Role::Passive => Some(self.req.local_qpn),
        }
    }

    pub(super) fn remote_ca_guid(&self) -> Option<Guid> {
        match self.role {
            Role::Active => self.rep.as_ref().map(|rep| rep.local_ca_guid),
            Role::Passive => Some(self.req.local_ca_guid),
        }
    }

    fn send(&self, out: &mut Outbox, message: &CmMessage) {
        out.send(&self.peer, self.transaction_id, message);
    }

    /// Reports the end and its reason to the consumer, once.
    fn emit_ended(&mut self, out: &mut Outbox, end: ConnectionEnd) {
        if !self.has_reported_end {
            self.has_reported_end = true;
            out.emit_event(CmEvent::Ended { key: self.key, end });
        }
    }

    fn enter_time_wait(&mut self, now: Time, out: &Outbox, last_message: Option<CmMessage>) {
        let acknowledged = match (&self.rep, self.role) {
            (Some(rep), Role::Active) => ack_timeout(self.packet_life_time, rep.target_ack_delay),
            _ => self.req.primary.local_ack_timeout,
        };
        let wait = Duration::from_nanos(acknowledged.nanoseconds());
        let until = now + wait.min(out.config.time_wait_max);
        self.state = State::TimeWait { until, last_message: last_message.map(Box::new) };
    }

    /// The retry interval and the number of retries of messages that this side sends.
    fn retry_timing(&self) -> (Duration, u8) {
        let response = match self.role {
            Role::Active => self.req.remote_cm_response_timeout,
            Role::Passive => self.req.local_cm_response_timeout,
        };
        (response_time(self.packet_life_time, response), self.req.max_cm_retries)
    }

    fn begin_repeat(
        &self,
        now: Time,
        out: &mut Outbox,
        message: CmMessage,
        transaction: u64,
    ) -> Repeat {
        out.begin_repeat(now, &self.peer, message, transaction, self.retry_timing())
    }

    /// A REJ with the private data of our last REQ or REP, or else of the listener. The peer
    /// identifies us by this data (RFC 4755 6).
    fn rejection(
        &self,
        out: &Outbox,
        message_rejected: AnsweredMessage,
        reason: RejectReason,
    ) -> Rej {
        let own: &[u8] = match (self.role, &self.rep) {
            (Role::Active, _) => &self.req.private_data,
            (Role::Passive, Some(rep)) => &rep.private_data,
            (Role::Passive, None) => {
                self.listener_data.as_ref().map_or(&[], |listener_data| listener_data.as_slice())
            }
        };
        let mut private_data = [0; 148];
        let len = own.len().min(private_data.len());
        private_data[..len].copy_from_slice(&own[..len]);
        let rej = Rej {
            local_comm_id: self.key.comm_id(),
            remote_comm_id: self.remote_id.unwrap_or_default(),
            message_rejected,
            reason,
            private_data,
            ..Rej::default()
        };
        match reason {
            RejectReason::TIMEOUT => rej.with_info(&out.config.ca_guid.0.to_be_bytes()),
            _ => rej,
        }
    }

    fn establish(&mut self, rtu: Option<Rtu>) {
        let rtu = rtu.map(Box::new);
        self.state = State::Established { rtu, offered: None, offer: Offer::None };
    }

    fn close(&mut self, out: &mut Outbox) {
        out.emit_event(CmEvent::Closed { key: self.key });
        self.state = State::Closed;
    }

    fn send_dreq(
        &mut self,
        now: Time,
        out: &mut Outbox,
        transaction_id: u64,
        private_data: [u8; 220],
    ) {
        let dreq = Dreq {
            local_comm_id: self.key.comm_id(),
            remote_comm_id: self.remote_id.unwrap_or_default(),
            remote_qpn: self.remote_qpn().unwrap_or_default(),
            private_data,
        };
        let repeat = self.begin_repeat(now, out, CmMessage::Dreq(dreq), transaction_id);
        self.state = State::DreqSent(repeat);
    }

    fn reject_and_wait(&mut self, now: Time, out: &mut Outbox, rej: Rej) {
        let message = CmMessage::Rej(rej);
        self.send(out, &message);
        self.enter_time_wait(now, out, Some(message));
    }

    fn time_out(&mut self, now: Time, out: &mut Outbox, message: AnsweredMessage) {
        self.emit_ended(out, ConnectionEnd::TimedOut);
        let rej = self.rejection(out, message, RejectReason::TIMEOUT);
        self.reject_and_wait(now, out, rej);
    }

    /// Ends a connection after our REP, by a REJ and a DREQ. If the peer's RTU was lost, the peer
    /// considers the connection established. The REJ is sent once and may be lost too, but the DREQ
    /// is repeated.
    fn reject_and_disconnect(&mut self, now: Time, out: &mut Outbox, reason: RejectReason) {
        let rej = self.rejection(out, AnsweredMessage::OTHER, reason);
        self.send(out, &CmMessage::Rej(rej));
        self.send_dreq(now, out, self.transaction_id, [0; 220]);
    }
}

impl Connection {
    pub(super) fn handle_timeout(&mut self, now: Time, out: &mut Outbox) {
        match &mut self.state {
            State::ReqSent(repeat) | State::RepSent(repeat) | State::DreqSent(repeat)
                if repeat.times_left > 0 =>
            {
                out.repeat(now, &self.peer, repeat);
            }
            State::MraReqReceived(repeat) if repeat.times_left > 0 => {
                out.repeat(now, &self.peer, repeat);
                self.state = State::ReqSent(repeat.clone());
            }
            State::MraRepReceived(repeat) if repeat.times_left > 0 => {
                out.repeat(now, &self.peer, repeat);
                self.state = State::RepSent(repeat.clone());
            }
            State::Established { offered: Some(repeat), .. } if repeat.times_left > 0 => {
                out.repeat(now, &self.peer, repeat);
            }
            _ => self.give_up(now, out),
        }
    }

    fn give_up(&mut self, now: Time, out: &mut Outbox) {
        match &mut self.state {
            State::ReqSent(_) | State::MraReqReceived(_) => {
                self.time_out(now, out, AnsweredMessage::OTHER);
            }
            State::RepSent(_) | State::MraRepReceived(_) => {
                self.emit_ended(out, ConnectionEnd::TimedOut);
                self.reject_and_disconnect(now, out, RejectReason::TIMEOUT);
            }
            State::RepReceived { .. } => self.time_out(now, out, AnsweredMessage::REP),
            State::ReqReceived { .. } => {
                self.emit_ended(out, ConnectionEnd::TimedOut);
                let reason = RejectReason::CONSUMER_REJECT;
                let rej = self.rejection(out, AnsweredMessage::REQ, reason);
                self.reject_and_wait(now, out, rej);
            }
            State::DreqSent(_) => {
                self.emit_ended(out, ConnectionEnd::TimedOut);
                self.enter_time_wait(now, out, None);
            }
            State::Established { offered, .. } => {
                *offered = None;
                out.emit_event(CmEvent::PathAnswered { key: self.key, apr: None });
            }
            State::TimeWait { .. } => self.close(out),
            State::Closed => {}
        }
    }
}
