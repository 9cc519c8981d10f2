//! The transitions of a connection by calls of the consumer and by messages of the peer. The caller
//! has checked the sender of a message. Transitions by timeouts are in [`super`].

use super::*;

/// Calls of the consumer.
impl Connection {
    fn refusal(&self) -> CmError {
        CmError::WrongState(self.state.phase())
    }

    pub(in crate::cm) fn accept(
        &mut self,
        now: Time,
        out: &mut Outbox,
        mut rep: Rep,
    ) -> Result<(), CmError> {
        let State::ReqReceived { .. } = self.state else { return Err(self.refusal()) };
        rep.local_comm_id = self.key.comm_id();
        rep.remote_comm_id = self.req.local_comm_id;
        rep.local_ca_guid = out.config.ca_guid;
        self.rep = Some(Box::new(rep));
        let repeat = self.begin_repeat(now, out, CmMessage::Rep(rep), self.transaction_id);
        self.state = State::RepSent(repeat);
        Ok(())
    }

    pub(in crate::cm) fn confirm(
        &mut self,
        out: &mut Outbox,
        private_data: [u8; 224],
    ) -> Result<(), CmError> {
        let State::RepReceived { .. } = self.state else { return Err(self.refusal()) };
        let local_comm_id = self.key.comm_id();
        let remote_comm_id = self.remote_id.unwrap_or_default();
        let rtu = Rtu { local_comm_id, remote_comm_id, private_data };
        self.send(out, &CmMessage::Rtu(rtu));
        self.establish(Some(rtu));
        Ok(())
    }

    pub(in crate::cm) fn handle_data(&mut self, out: &mut Outbox) -> Result<(), CmError> {
        match self.state {
            State::RepSent(_) | State::MraRepReceived(_) => {
                self.establish(None);
                out.emit_event(CmEvent::Established { key: self.key });
                Ok(())
            }
            State::Established { .. } => Ok(()),
            _ => Err(self.refusal()),
        }
    }

    pub(in crate::cm) fn ignore(&mut self, out: &mut Outbox) {
        if let State::ReqReceived { .. } = self.state {
            self.close(out);
        }
    }

    pub(in crate::cm) fn probe(&mut self, out: &mut Outbox) -> Result<(), CmError> {
        let State::Established { .. } = self.state else { return Err(self.refusal()) };
        match (self.role, &self.rep) {
            (Role::Passive, Some(rep)) => self.send(out, &CmMessage::Rep(**rep)),
            _ => self.send(out, &CmMessage::Req(*self.req)),
        }
        Ok(())
    }

    pub(in crate::cm) fn reject(
        &mut self,
        now: Time,
        out: &mut Outbox,
        reason: RejectReason,
        info: &[u8],
        private_data: [u8; 148],
    ) -> Result<(), CmError> {
        let message = match self.state {
            State::ReqReceived { .. } => AnsweredMessage::REQ,
            State::RepReceived { .. } => AnsweredMessage::REP,
            _ => return Err(self.refusal()),
        };
        let mut rej = Rej { private_data, ..self.rejection(out, message, reason) };
        if !info.is_empty() {
            rej = rej.with_info(info);
        }
        self.has_reported_end = true;
        self.reject_and_wait(now, out, rej);
        Ok(())
    }

    /// Ends the connection with the message that its state calls for.
    pub(in crate::cm) fn disconnect(
        &mut self,
        now: Time,
        out: &mut Outbox,
        transaction_id: u64,
        private_data: [u8; 220],
    ) {
        let reason = RejectReason::CONSUMER_REJECT;
        let phase = self.state.phase();
        match phase {
            Phase::DreqSent | Phase::TimeWait | Phase::Closed => return,
            Phase::Established => return self.send_dreq(now, out, transaction_id, private_data),
            // The consumer itself aborts the handshake, so it gets no `Ended` event.
            _ => self.has_reported_end = true,
        }
        let message = match phase {
            Phase::ReqSent | Phase::MraReqReceived => {
                return self.time_out(now, out, AnsweredMessage::OTHER);
            }
            Phase::RepSent | Phase::MraRepReceived => {
                return self.reject_and_disconnect(now, out, reason);
            }
            Phase::RepReceived => AnsweredMessage::REP,
            _ => AnsweredMessage::REQ,
        };
        let rej = self.rejection(out, message, reason);
        self.reject_and_wait(now, out, rej);
    }

    pub(in crate::cm) fn offer_path(
        &mut self,
        now: Time,
        out: &mut Outbox,
        transaction_id: u64,
        mut lap: Lap,
    ) -> Result<(), CmError> {
        let State::Established { offered: None, .. } = self.state else {
            return Err(self.refusal());
        };
        lap.local_comm_id = self.key.comm_id();
        lap.remote_comm_id = self.remote_id.unwrap_or_default();
        lap.remote_qpn = self.remote_qpn().unwrap_or_default();
        let repeat = self.begin_repeat(now, out, CmMessage::Lap(lap), transaction_id);
        if let State::Established { offered, .. } = &mut self.state {
            *offered = Some(repeat);
        }
        Ok(())
    }

    pub(in crate::cm) fn answer_path(
        &mut self,
        out: &mut Outbox,
        mut apr: Apr,
    ) -> Result<(), CmError> {
        let refusal = self.refusal();
        let State::Established { offer, .. } = &mut self.state else { return Err(refusal) };
        let Offer::Received { transaction_id } = *offer else { return Err(refusal) };
        apr.local_comm_id = self.key.comm_id();
        apr.remote_comm_id = self.remote_id.unwrap_or_default();
        *offer = Offer::Answered { transaction_id, apr: Box::new(apr) };
        out.send(&self.peer, transaction_id, &CmMessage::Apr(apr));
        Ok(())
    }
}

/// Messages of the peer.
impl Connection {
    /// Handles a repeated REQ: its answer was lost, or was not sent yet.
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

    /// Handles the first REP or a repeated one. The caller has checked that no other connection
    /// uses the peer's queue pair.
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
        // A peer that rejected the REQ has no packets in flight.
        let is_unmade =
            matches!(phase, Phase::ReqSent | Phase::MraReqReceived | Phase::ReqReceived);
        if is_unmade && rej.reason != RejectReason::STALE_CONNECTION {
            self.close(out);
        } else {
            self.enter_time_wait(now, out, None);
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
            self.enter_time_wait(now, out, None);
        }
    }

    pub(in crate::cm) fn handle_drep(&mut self, now: Time, out: &mut Outbox) {
        if !matches!(self.state, State::DreqSent(_)) {
            return out.count(CmDrop::Repeated);
        }
        self.emit_ended(out, ConnectionEnd::Answered);
        self.enter_time_wait(now, out, None);
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

    /// Handles an APR; one for an earlier LAP is ignored.
    pub(in crate::cm) fn handle_apr(&mut self, out: &mut Outbox, transaction_id: u64, apr: &Apr) {
        let State::Established { offered, .. } = &mut self.state else {
            return out.count(CmDrop::WrongState);
        };
        // The MAD transport may have changed the upper half of the transaction ID.
        let is_answered = |it: &mut Repeat| it.transaction_id as u32 == transaction_id as u32;
        if offered.take_if(is_answered).is_none() {
            return out.count(CmDrop::Repeated);
        }
        let apr = Some(Box::new(*apr));
        out.emit_event(CmEvent::PathAnswered { key: self.key, apr });
    }

    /// Ends a stale connection: the peer uses its queue pair or communication ID for another one.
    pub(in crate::cm) fn handle_stale(&mut self, now: Time, out: &mut Outbox, transaction_id: u64) {
        self.emit_ended(out, ConnectionEnd::Stale);
        let message = match self.state.phase() {
            Phase::Established => {
                return self.send_dreq(now, out, transaction_id, [0; 220]);
            }
            Phase::DreqSent => return self.enter_time_wait(now, out, None),
            Phase::ReqReceived => AnsweredMessage::REQ,
            Phase::RepReceived => AnsweredMessage::REP,
            Phase::RepSent | Phase::MraRepReceived => {
                return self.reject_and_disconnect(now, out, RejectReason::STALE_CONNECTION);
            }
            Phase::ReqSent | Phase::MraReqReceived | Phase::TimeWait | Phase::Closed => return,
        };
        let rej = self.rejection(out, message, RejectReason::STALE_CONNECTION);
        self.reject_and_wait(now, out, rej);
    }

    /// Ends a connection that the peer accepted with a queue pair of another connection.
    pub(in crate::cm) fn refuse_stale_rep(&mut self, now: Time, out: &mut Outbox, rep: &Rep) {
        self.remote_id = Some(rep.local_comm_id);
        self.emit_ended(out, ConnectionEnd::Stale);
        let rej = self.rejection(out, AnsweredMessage::REP, RejectReason::STALE_CONNECTION);
        self.reject_and_wait(now, out, rej);
    }
}
