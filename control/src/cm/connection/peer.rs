//! Messages of the peer of a connection. The caller has checked their sender.

use super::*;

impl Connection {
    /// A repeated REQ: the answer to it was lost, or is still to come.
    pub(in crate::cm) fn handle_req_again(&self, out: &mut Outbox) {
        match &self.state {
            State::RepSent(repeat) => self.send(out, &repeat.message),
            // A REQ at this time is a probe: see [`Connection::probe`].
            State::Established { .. } => match &self.rep {
                Some(rep) => self.send(out, &CmMessage::Rep(**rep)),
                None => out.count(CmDrop::Repeated),
            },
            State::TimeWait { last_message: Some(message), .. } => self.send(out, message),
            _ => out.count(CmDrop::Repeated),
        }
    }

    /// The first REP or a repeated one. No other connection has the peer's queue pair.
    pub(in crate::cm) fn handle_rep(&mut self, now: Time, out: &mut Outbox, rep: &Rep) {
        match &self.state {
            State::ReqSent(_) | State::MraReqReceived(_) => {
                (self.remote_id, self.rep) = (Some(rep.local_comm_id), Some(Box::new(*rep)));
                let until = now + out.config.consumer_time_max;
                self.state = State::RepReceived { until };
                out.emit_event(CmEvent::Reply { key: self.key, rep: Box::new(*rep) });
            }
            State::Established { rtu: Some(rtu), .. } => {
                self.send(out, &CmMessage::Rtu(**rtu));
                out.emit_event(CmEvent::Remembered { key: self.key });
            }
            State::TimeWait { last_message: Some(message), .. } => self.send(out, message),
            _ => out.count(CmDrop::Repeated),
        }
    }

    pub(in crate::cm) fn awaits_rep(&self) -> bool {
        matches!(self.state, State::ReqSent(_) | State::MraReqReceived(_))
    }

    pub(in crate::cm) fn handle_mra(&mut self, now: Time, out: &mut Outbox, mra: &Mra) {
        let wait = response_time(self.packet_life_time, mra.service_timeout);
        let state = std::mem::replace(&mut self.state, State::Closed);
        self.state = match (state, mra.message_mraed) {
            (State::ReqSent(repeat) | State::MraReqReceived(repeat), AnsweredMessage::REQ) => {
                State::MraReqReceived(out.extend_due(now, repeat, wait))
            }
            (State::RepSent(repeat) | State::MraRepReceived(repeat), AnsweredMessage::REP) => {
                State::MraRepReceived(out.extend_due(now, repeat, wait))
            }
            (State::Established { rtu, offered: Some(repeat), offer }, AnsweredMessage::OTHER) => {
                let offered = Some(out.extend_due(now, repeat, wait));
                State::Established { rtu, offered, offer }
            }
            (state, _) => {
                out.count(CmDrop::WrongState);
                state
            }
        };
    }

    pub(in crate::cm) fn handle_rtu(&mut self, out: &mut Outbox) {
        match self.state {
            State::RepSent(_) | State::MraRepReceived(_) => {
                self.establish(None);
                out.emit_event(CmEvent::Established { key: self.key });
            }
            State::Established { .. } => {
                out.emit_event(CmEvent::Remembered { key: self.key });
            }
            _ => out.count(CmDrop::Repeated),
        }
    }

    pub(in crate::cm) fn handle_rej(&mut self, now: Time, out: &mut Outbox, rej: &Rej) {
        let phase = self.state.phase();
        if matches!(phase, Phase::TimeWait | Phase::Closed) {
            return out.count(CmDrop::Repeated);
        }
        self.emit_ended(out, ConnectionEnd::Rejected(Box::new(*rej)));
        // A peer that rejected the request has no packets in flight.
        let is_unmade =
            matches!(phase, Phase::ReqSent | Phase::MraReqReceived | Phase::ReqReceived);
        if is_unmade && rej.reason != RejectReason::STALE_CONNECTION {
            self.close(out);
        } else {
            self.wait_time(now, out, None);
        }
    }

    pub(in crate::cm) fn handle_dreq(
        &mut self,
        now: Time,
        out: &mut Outbox,
        transaction_id: u64,
        dreq: &Dreq,
    ) {
        if self.local_qpn() != Some(dreq.remote_qpn) {
            return out.count(CmDrop::WrongQp);
        }
        let phase = self.state.phase();
        if matches!(phase, Phase::ReqReceived | Phase::ReqSent | Phase::MraReqReceived) {
            return out.count(CmDrop::WrongState);
        }
        let (local_comm_id, remote_comm_id) = (self.key.comm_id(), dreq.local_comm_id);
        let drep = Drep { local_comm_id, remote_comm_id, private_data: [0; 224] };
        out.send(&self.peer, transaction_id, &CmMessage::Drep(drep));
        if phase != Phase::TimeWait {
            self.emit_ended(out, ConnectionEnd::Asked);
            self.wait_time(now, out, None);
        }
    }

    pub(in crate::cm) fn handle_drep(&mut self, now: Time, out: &mut Outbox) {
        if !matches!(self.state, State::DreqSent(_)) {
            return out.count(CmDrop::Repeated);
        }
        self.emit_ended(out, ConnectionEnd::Answered);
        self.wait_time(now, out, None);
    }

    pub(in crate::cm) fn handle_lap(&mut self, out: &mut Outbox, transaction_id: u64, lap: &Lap) {
        let local_qpn = self.local_qpn();
        let State::Established { offer, .. } = &mut self.state else {
            return out.count(CmDrop::WrongState);
        };
        match offer {
            Offer::Answered { transaction_id: known, apr } if *known == transaction_id => {
                out.send(&self.peer, transaction_id, &CmMessage::Apr(**apr));
            }
            Offer::Received { .. } => out.count(CmDrop::Repeated),
            Offer::None | Offer::Answered { .. } if local_qpn != Some(lap.remote_qpn) => {
                out.count(CmDrop::WrongQp);
            }
            Offer::None | Offer::Answered { .. } => {
                *offer = Offer::Received { transaction_id };
                let (key, lap) = (self.key, Box::new(*lap));
                out.emit_event(CmEvent::PathOffered { key, lap });
            }
        }
    }

    /// An answer to an earlier offer is ignored.
    pub(in crate::cm) fn handle_apr(&mut self, out: &mut Outbox, transaction_id: u64, apr: &Apr) {
        let State::Established { offered, .. } = &mut self.state else {
            return out.count(CmDrop::WrongState);
        };
        // The transport may have changed the upper half.
        let is_answered = |it: &mut Repeat| it.transaction_id as u32 == transaction_id as u32;
        if offered.take_if(is_answered).is_none() {
            return out.count(CmDrop::Repeated);
        }
        let apr = Some(Box::new(*apr));
        out.emit_event(CmEvent::PathAnswered { key: self.key, apr });
    }

    /// The peer uses its queue pair for another connection, so this one is stale.
    pub(in crate::cm) fn handle_stale(&mut self, now: Time, out: &mut Outbox, transaction_id: u64) {
        self.emit_ended(out, ConnectionEnd::Stale);
        let message = match self.state.phase() {
            Phase::Established => {
                return self.send_dreq(now, out, transaction_id, [0; 220]);
            }
            Phase::DreqSent => return self.wait_time(now, out, None),
            Phase::ReqReceived => AnsweredMessage::REQ,
            Phase::RepReceived => AnsweredMessage::REP,
            Phase::RepSent | Phase::MraRepReceived => {
                return self.part(now, out, RejectReason::STALE_CONNECTION);
            }
            Phase::ReqSent | Phase::MraReqReceived | Phase::TimeWait | Phase::Closed => return,
        };
        let rej = self.rejection(out, message, RejectReason::STALE_CONNECTION);
        self.reject_and_wait(now, out, rej);
    }

    /// The queue pair in the REP belongs to another connection, so this one ends.
    pub(in crate::cm) fn refuse_stale_rep(&mut self, now: Time, out: &mut Outbox, rep: &Rep) {
        self.remote_id = Some(rep.local_comm_id);
        self.emit_ended(out, ConnectionEnd::Stale);
        let rej = self.rejection(out, AnsweredMessage::REP, RejectReason::STALE_CONNECTION);
        self.reject_and_wait(now, out, rej);
    }
}
