//! Execution of requests: SENDs, RDMA writes, RDMA reads and atomics (IBA 9.7.4).

use super::*;
use pollux_verbs::Sge;

impl Responder {
    pub(super) fn execute_send(
        &mut self,
        common: &mut Common,
        shared: &mut Shared,
        arrival: &Arrival<'_>,
    ) -> Result<(), Refusal> {
        let bytes = arrival.payload.bytes();
        let (work, done) = match std::mem::take(&mut self.in_progress) {
            InProgress::Send { work, bytes } => (work, bytes),
            _ => {
                let recv_bytes =
                    common.next_recv_bytes(&mut shared.srqs).ok_or(Refusal::NotReady)?;
                if common.init.qp_type == QpType::Uc && bytes as u64 > recv_bytes {
                    return Err(Refusal::Fatal(NakCode::INVALID_REQUEST));
                }
                (common.take_recv(shared).ok_or(Refusal::NotReady)?, 0)
            }
        };
        if (done + bytes) as u64 > work.bytes {
            return self.length_error(common, shared, work);
        }
        let pd = common.recv_pd(shared);
        let Ok(pieces) = shared.memory.local(pd, work.entries.as_slice(), true) else {
            common.complete_recv(shared, &work, CompletionStatus::LocalProtection);
            return Err(Refusal::RecvFailed(NakCode::REMOTE_OPERATIONAL_ERROR));
        };
        if !arrival.payload.copy_to(&pieces, done) {
            common.give_back_recv(shared, work);
            return Err(Refusal::Revoked);
        }
        self.expected = self.expected.plus(arrival.head.packets);
        if !arrival.head.opcode.operation().ends() {
            self.in_progress = InProgress::Send { work, bytes: done + bytes };
            return Ok(());
        }
        let with = match arrival.extended {
            Extended::Imm(imm) => With::Imm(imm.data),
            Extended::Ieth(ieth) => {
                let rkey = RKey(ieth.rkey);
                if shared.memory.invalidate(common.init.pd, rkey).is_err() {
                    common.complete_recv(shared, &work, CompletionStatus::LocalAccess);
                    return Err(Refusal::RecvFailed(NakCode::REMOTE_ACCESS_ERROR));
                }
                With::Invalidated(rkey)
            }
            _ => With::Nothing,
        };
        self.msn = self.msn.plus(1);
        let total = (done + bytes) as u32;
        complete(common, shared, &work, CompletionKind::Recv, total, with, arrival.head.se);
        Ok(())
    }

    /// Refuses a message that is too long for its receive. On UC, the receive goes back to its
    /// queue for the next message.
    fn length_error(
        &mut self,
        common: &mut Common,
        shared: &mut Shared,
        work: RecvWork,
    ) -> Result<(), Refusal> {
        if common.init.qp_type == QpType::Rc {
            common.complete_recv(shared, &work, CompletionStatus::LocalLength);
            return Err(Refusal::RecvFailed(NakCode::INVALID_REQUEST));
        }
        common.give_back_recv(shared, work);
        Err(Refusal::Fatal(NakCode::INVALID_REQUEST))
    }

    pub(super) fn execute_write(
        &mut self,
        common: &mut Common,
        shared: &mut Shared,
        arrival: &Arrival<'_>,
    ) -> Result<(), Refusal> {
        let invalid = Refusal::Fatal(NakCode::INVALID_REQUEST);
        let (reth, done) = match (&self.in_progress, arrival.extended) {
            (InProgress::Write { reth, bytes }, _) => (*reth, *bytes),
            (_, Extended::Reth(reth) | Extended::RethImm(reth, _)) => (reth, 0),
            _ => return Err(invalid),
        };
        let bytes = arrival.payload.bytes() as u64;
        let ends = arrival.head.opcode.operation().ends();
        let left = u64::from(reth.dma_len).checked_sub(done + bytes);
        let too_long = u64::from(reth.dma_len) > MESSAGE_BYTES_MAX;
        let wrong_end = left.is_none_or(|left| (left == 0) != ends);
        check_op_valid(common, Access::REMOTE_WRITE)?;
        if too_long || wrong_end {
            return Err(invalid);
        }
        // The first packet checks the range of the whole message, so that a message that exceeds
        // its memory region writes nothing.
        let (at, length) = if done == 0 { (0, reth.dma_len) } else { (done, bytes as u32) };
        let address = reth.va.checked_add(at).ok_or(ACCESS_ERROR)?;
        let piece = [check_rkey(common, shared, reth.rkey, address, length, Access::REMOTE_WRITE)?];
        let imm = match arrival.extended {
            Extended::Imm(imm) | Extended::RethImm(_, imm) => Some(imm.data),
            _ => None,
        };
        if imm.is_some() && common.next_recv_bytes(&mut shared.srqs).is_none() {
            return Err(Refusal::NotReady);
        }
        if !arrival.payload.copy_to(&shared.memory.pieces(&piece), 0) {
            return Err(Refusal::Revoked);
        }
        self.expected = self.expected.plus(arrival.head.packets);
        if !ends {
            self.in_progress = InProgress::Write { reth, bytes: done + bytes };
            return Ok(());
        }
        self.in_progress = InProgress::Nothing;
        self.msn = self.msn.plus(1);
        if let Some((data, work)) = imm.zip(imm.and_then(|_| common.take_recv(shared))) {
            let (kind, with) = (CompletionKind::RecvWriteImm, With::Imm(data));
            complete(common, shared, &work, kind, reth.dma_len, with, arrival.head.se);
        }
        Ok(())
    }

    pub(super) fn execute_read(
        &mut self,
        common: &mut Common,
        shared: &mut Shared,
        psn: Psn,
        reth: &Reth,
    ) -> Result<(), Refusal> {
        check_op_valid(common, Access::REMOTE_READ)?;
        self.check_resource(common)?;
        self.answer_read(common, shared, psn, reth, Repetition::Original)?;
        let packets = common.packets(reth.dma_len.into());
        self.record_executed(common, Executed { psn, packets, original: None });
        Ok(())
    }

    /// Checks the length and the R_Key of a read, and queues its response.
    pub(super) fn answer_read(
        &mut self,
        common: &Common,
        shared: &Shared,
        psn: Psn,
        reth: &Reth,
        repetition: Repetition,
    ) -> Result<(), Refusal> {
        if u64::from(reth.dma_len) > MESSAGE_BYTES_MAX {
            return Err(Refusal::Fatal(NakCode::INVALID_REQUEST));
        }
        check_rkey(common, shared, reth.rkey, reth.va, reth.dma_len, Access::REMOTE_READ)?;
        let packets = common.packets(reth.dma_len.into());
        let read = ReadAnswer { psn, reth: *reth, packet: 0, packets, repetition };
        self.answers.push_back(Answer::Read(read));
        Ok(())
    }

    pub(super) fn execute_atomic(
        &mut self,
        common: &mut Common,
        shared: &mut Shared,
        arrival: &Arrival<'_>,
        atomic: &AtomicEth,
    ) -> Result<(), Refusal> {
        check_op_valid(common, Access::REMOTE_ATOMIC)?;
        self.check_resource(common)?;
        if !atomic.va.is_multiple_of(8) {
            return Err(Refusal::Fatal(NakCode::INVALID_REQUEST));
        }
        let piece = check_rkey(common, shared, atomic.rkey, atomic.va, 8, Access::REMOTE_ATOMIC)?;
        let swaps = arrival.head.opcode.operation() == Operation::COMPARE_SWAP;
        let original =
            shared.memory.pieces(&[piece]).update(|old| match (swaps, old == atomic.compare) {
                (true, true) => atomic.swap_or_add,
                (true, false) => old,
                (false, _) => old.wrapping_add(atomic.swap_or_add),
            });
        let original = original.ok_or(ACCESS_ERROR)?;
        let psn = arrival.head.psn;
        self.answers.push_back(Answer::Atomic { psn, original, repetition: Repetition::Original });
        self.record_executed(common, Executed { psn, packets: 1, original: Some(original) });
        Ok(())
    }

    /// Fails unless a responder resource is free for one more read or atomic.
    fn check_resource(&self, common: &Common) -> Result<(), Refusal> {
        let resources = usize::from(common.attributes.responder_resources.unwrap_or(0));
        let waiting = self.answers.iter().filter(|answer| answer.takes_resource()).count();
        if waiting >= resources {
            return Err(Refusal::Fatal(NakCode::INVALID_REQUEST));
        }
        Ok(())
    }

    fn record_executed(&mut self, common: &Common, executed: Executed) {
        let resources = usize::from(common.attributes.responder_resources.unwrap_or(0));
        while self.executed.len() >= resources.max(1) {
            self.executed.pop_front();
        }
        self.executed.push_back(executed);
        self.expected = executed.end();
        self.msn = self.msn.plus(1);
    }
}

const ACCESS_ERROR: Refusal = Refusal::Fatal(NakCode::REMOTE_ACCESS_ERROR);

/// Fails unless the queue pair grants its peer this access.
fn check_op_valid(common: &Common, need: Access) -> Result<(), Refusal> {
    if common.allows(need) { Ok(()) } else { Err(Refusal::Fatal(NakCode::INVALID_REQUEST)) }
}

/// The memory that a request names. Fails if the R_Key does not allow the access.
fn check_rkey(
    common: &Common,
    shared: &Shared,
    rkey: u32,
    address: u64,
    bytes: u32,
    need: Access,
) -> Result<Sge, Refusal> {
    let piece = shared.memory.remote(common.init.pd, RKey(rkey), address, bytes, need);
    piece.map_err(|_| ACCESS_ERROR)
}

/// Completes a receive with success.
fn complete(
    common: &Common,
    shared: &mut Shared,
    work: &RecvWork,
    kind: CompletionKind,
    bytes: u32,
    with: With,
    solicited: bool,
) {
    let completion = common.completion(work.id, CompletionStatus::Success, kind);
    let completion = Completion { bytes, with, ..completion };
    common.complete(shared, common.init.recv_cq, completion, solicited);
}
