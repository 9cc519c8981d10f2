//! Reception of responses: ACK, AETH NAK, RNR NAK, read and atomic responses (IBA 9.7.5.1, 9.9.2).
//! A NAK is a retransmission or the end of the queue pair; an RNR NAK starts the RNR timer.

use super::*;

impl Requester {
    pub(crate) fn handle(
        &mut self,
        common: &Common,
        shared: &mut Shared,
        now: Time,
        arrival: &Arrival<'_>,
    ) -> Result<(), DropReason> {
        let psn = arrival.head.psn;
        if !psn.is_before(self.sent_end) {
            return Err(DropReason::Sequence);
        }
        match (arrival.head.opcode.operation(), arrival.extended) {
            (Operation::ACKNOWLEDGE, Extended::Aeth(aeth)) => {
                self.take_credits(aeth.syndrome, aeth.msn);
                if psn.is_before(self.acked) {
                    return Ok(());
                }
                self.handle_ack(common, shared, now, psn, aeth.syndrome)
            }
            (Operation::ATOMIC_ACKNOWLEDGE, Extended::AethAtomicAckEth(aeth, original)) => {
                self.take_credits(aeth.syndrome, aeth.msn);
                let bytes = original.original.to_ne_bytes();
                self.handle_data(common, shared, now, arrival, Answer::Atomic(bytes))
            }
            (_, extended) => {
                if let Extended::Aeth(aeth) = extended {
                    self.take_credits(aeth.syndrome, aeth.msn);
                }
                self.handle_data(common, shared, now, arrival, Answer::Read)
            }
        }
    }

    #[inline]
    pub(super) fn take_credits(&mut self, syndrome: Syndrome, msn: Psn) {
        // On a wire that reorders packets, an ACK with an older MSN may arrive later.
        if let Syndrome::Ack(credits) = syndrome
            && !msn.is_before(self.peer_msn)
        {
            self.peer_msn = msn;
            self.ssn_allowed = credits.count().map(|count| msn.plus(count.into()));
        }
    }

    fn handle_ack(
        &mut self,
        common: &Common,
        shared: &mut Shared,
        now: Time,
        psn: Psn,
        syndrome: Syndrome,
    ) -> Result<(), DropReason> {
        match syndrome {
            Syndrome::Ack(_) => {
                // If a read or atomic response up to this PSN is still missing, it was lost.
                let lost = self.first_unanswered().filter(|lost| !psn.is_before(*lost));
                self.advance_acked(common, shared, now, lost.unwrap_or(psn.plus(1)));
                if let Some(lost) = lost {
                    self.request_again(lost);
                }
            }
            Syndrome::RnrNak(timer) => {
                let before = self.acked;
                self.advance_acked(common, shared, now, psn);
                // Nothing is sent while the RNR timer runs. So a second RNR NAK without progress is
                // a duplicate and must not restart the timer.
                if self.rnr_until.is_none() || self.acked != before {
                    self.start_rnr_timer(now, timer);
                }
            }
            Syndrome::Nak(NakCode::PSN_SEQUENCE_ERROR) => {
                self.advance_acked(common, shared, now, psn);
                // A responder sends one NAK per gap (IBA 9.7.5.2.8), so a second NAK with the same
                // PSN is a duplicate.
                if self.nak_psn.replace(psn) != Some(psn) {
                    self.retry(self.acked);
                }
            }
            Syndrome::Nak(code) => {
                self.advance_acked(common, shared, now, psn);
                self.failed = Some(match code {
                    NakCode::REMOTE_ACCESS_ERROR => CompletionStatus::RemoteAccess,
                    NakCode::REMOTE_OPERATIONAL_ERROR => CompletionStatus::RemoteOperation,
                    _ => CompletionStatus::RemoteInvalidRequest,
                });
            }
            Syndrome::Reserved(_) => return Err(DropReason::Opcode),
        }
        Ok(())
    }

    /// Starts the RNR timer, or fails the request if no RNR retry is left (IBA 9.7.5.2.8).
    fn start_rnr_timer(&mut self, now: Time, timer: RnrTimer) {
        match self.rnr_retries_left {
            0 => {
                self.failed = Some(CompletionStatus::RnrRetryExceeded);
                return;
            }
            7 => {}
            _ => self.rnr_retries_left -= 1,
        }
        self.rnr_until = Some(now + timer.duration());
        self.ack_deadline = None;
        self.go_back(self.acked);
    }

    /// The PSN of the first missing packet of a read or atomic response.
    pub(super) fn first_unanswered(&self) -> Option<Psn> {
        self.unanswered().map(|work| work.psn.plus(work.answered_packets))
    }

    fn unanswered(&self) -> Option<&SendWork> {
        if self.answers_due == 0 {
            return None;
        }
        self.queue.iter().find(|work| work.needs_answer() && !work.done && work.packets > 0)
    }

    /// Retransmits from `psn` on to get a lost response again, at most once until there is
    /// progress.
    fn request_again(&mut self, psn: Psn) {
        if !self.requested_again {
            self.requested_again = true;
            self.retry(psn);
        }
    }

    /// Handles a packet of a read response, or an atomic response.
    fn handle_data(
        &mut self,
        common: &Common,
        shared: &mut Shared,
        now: Time,
        arrival: &Arrival<'_>,
        answer: Answer,
    ) -> Result<(), DropReason> {
        let psn = arrival.head.psn;
        let index = self.queue.iter().position(|w| w.needs_answer() && !w.done && w.packets > 0);
        let Some(work) = index.and_then(|index| self.queue.get_mut(index)) else {
            return Err(DropReason::Sequence);
        };
        let expected = work.psn.plus(work.answered_packets);
        if psn.is_before(expected) {
            return Err(DropReason::Sequence);
        }
        if psn != expected {
            self.request_again(expected);
            return Ok(());
        }
        if !answer.fits(work, common, arrival) {
            self.advance_acked(common, shared, now, psn);
            self.failed = Some(CompletionStatus::BadResponse);
            return Ok(());
        }
        let (pd, skip) = (common.init.pd, work.answered as usize);
        let Ok(pieces) = shared.memory.local(pd, work.data.sges(), true) else {
            self.advance_acked(common, shared, now, psn);
            self.failed = Some(CompletionStatus::LocalProtection);
            return Ok(());
        };
        let copied = match answer {
            Answer::Read => arrival.payload.copy_to(&pieces, skip),
            Answer::Atomic(bytes) => PayloadSource::Bytes(&bytes).copy_to(&pieces, 0),
        };
        if !copied {
            return Err(DropReason::Revoked);
        }
        work.answered += arrival.payload.bytes() as u64;
        work.answered_packets += arrival.head.packets;
        work.done = work.answered_packets == work.packets;
        self.answers_due -= u32::from(work.done);
        self.advance_acked(common, shared, now, psn.plus(arrival.head.packets));
        // Requests behind this one that were acknowledged before it can complete now.
        self.retire(common, shared);
        Ok(())
    }
}

enum Answer {
    Read,
    Atomic([u8; 8]),
}

impl Answer {
    fn fits(&self, work: &SendWork, common: &Common, arrival: &Arrival<'_>) -> bool {
        let is_read = matches!(work.op, SendOp::Read(_));
        let bytes = arrival.payload.bytes() as u64;
        if arrival.head.packets != common.packets(bytes) {
            return false;
        }
        let Self::Read = self else { return !is_read && bytes == 0 };
        let left = work.bytes - work.answered;
        let operation = arrival.head.opcode.operation();
        let ends =
            matches!(operation, Operation::READ_RESPONSE_LAST | Operation::READ_RESPONSE_ONLY);
        let due = if arrival.head.unsegmented { left } else { left.min(common.mtu() as u64) };
        let due_end = arrival.head.packets == work.packets - work.answered_packets;
        is_read && bytes == due && ends == due_end
    }
}
