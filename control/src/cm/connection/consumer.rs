//! Calls of the consumer on a connection.

use super::*;

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
        self.is_over = true;
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
            // The consumer aborted the handshake itself, so it needs no `Ended` event.
            _ => self.is_over = true,
        }
        let message = match phase {
            Phase::ReqSent | Phase::MraReqReceived => {
                return self.time_out(now, out, AnsweredMessage::OTHER);
            }
            Phase::RepSent | Phase::MraRepReceived => return self.part(now, out, reason),
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
