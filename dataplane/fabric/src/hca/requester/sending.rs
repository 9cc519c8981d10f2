//! What the requester sends: the packet at the present place, or a whole message (IBA 9.7.3,
//! 9.9.1).

use super::*;

impl Requester {
    /// The next packet or message, if one may be sent now.
    pub(crate) fn poll_transmit(
        &mut self,
        common: &Common,
        shared: &mut Shared,
        now: Time,
        shortcut: bool,
    ) -> Option<Frame> {
        while self.may_send(common, now) {
            if self.queue[self.next].is_local() {
                self.carry_out_local(common, shared);
                continue;
            }
            if self.packet == 0 && !self.begin(common) {
                break;
            }
            let work = &self.queue[self.next];
            let (pd, sges, writes) = (common.init.pd, work.kept.sges(), work.needs_answer());
            if shared.memory.local(pd, sges, writes, &mut self.pieces).is_err() {
                self.break_off(common, CompletionStatus::LocalProtection);
                break;
            }
            let whole = work.needs_answer() || shortcut && self.packet == 0;
            let frame = self.emit(common, shared, whole, shortcut);
            self.sent(common, shared, now, whole);
            return Some(frame);
        }
        None
    }

    /// Whether anything may be sent now at all.
    fn may_send(&mut self, common: &Common, now: Time) -> bool {
        if !matches!(common.state, QpState::Rts | QpState::Sqd)
            || self.failed.is_some()
            || self.next >= self.queue.len()
        {
            return false;
        }
        if self.rnr_until.is_some_and(|until| now < until) {
            return false;
        }
        self.rnr_until = None;
        // A request that cannot be sent ends the queue once those before it are done, which may
        // have to be sent again for that.
        if self.queue[self.next].broken.is_some() {
            return false;
        }
        // Going back during a drain sends again what was sent; only the new waits.
        let work = &self.queue[self.next];
        let is_new = self.packet == 0 && work.is_untouched();
        let is_fenced = work.flags.has(SendFlags::FENCE);
        if is_new && (self.draining.is_some() || is_fenced && self.reads_outstanding() > 0) {
            return false;
        }
        let psn = if work.packets > 0 { work.psn.plus(self.packet) } else { self.psn };
        work.is_local() || (psn.since(self.acked) as u32) < UNACKED_PACKETS_MAX
    }

    /// Whether the request at `next` may be begun, or begun again; gives it its numbers if it is
    /// new.
    fn begin(&mut self, common: &Common) -> bool {
        let work = &self.queue[self.next];
        let is_read = work.needs_answer();
        let depth = u32::from(common.attributes.initiator_depth.unwrap_or(0));
        if is_read && depth == 0 {
            self.break_off(common, CompletionStatus::LocalQpOperation);
            return false;
        }
        if matches!(work.op, SendOp::CompareSwap { .. } | SendOp::FetchAdd { .. })
            && work.octets != ATOMIC_OCTETS
        {
            self.break_off(common, CompletionStatus::LocalLength);
            return false;
        }
        let is_new = work.packets == 0;
        if !is_new {
            return true;
        }
        let must_wait = is_read && self.reads_outstanding() >= depth
            || work.takes_recv() && self.ssn_allowed.is_some_and(|last| last.is_before(self.ssn));
        let packets = match work.op {
            SendOp::CompareSwap { .. } | SendOp::FetchAdd { .. } => 1,
            _ => common.packets(work.octets),
        };
        let unacked = self.psn.since(self.acked) as u32;
        if must_wait || unacked > 0 && unacked + packets > UNACKED_PSNS_MAX {
            return false;
        }
        let (psn, ssn) = (self.psn, self.ssn);
        let work = &mut self.queue[self.next];
        (work.psn, work.packets, work.ssn) = (psn, packets, ssn);
        self.psn = psn.plus(packets);
        self.ssn = ssn.plus(1);
        true
    }

    /// Reads and atomics before `next` that are not answered.
    fn reads_outstanding(&self) -> u32 {
        let before = self.queue.iter().take(self.next);
        before.filter(|work| work.needs_answer() && !work.done).count() as u32
    }

    /// The request at `next` cannot be sent. Those before it go on.
    pub(super) fn break_off(&mut self, common: &Common, status: CompletionStatus) {
        self.packet = 0;
        if self.next == 0 || common.init.qp_type == QpType::Uc {
            self.failed = Some(status);
        } else {
            self.queue[self.next].broken = Some(status);
        }
    }

    /// Makes the packet, or the whole message, at the present place.
    fn emit(&self, common: &Common, shared: &Shared, whole: bool, shortcut: bool) -> Frame {
        let work = &self.queue[self.next];
        let port = &shared.port;
        let psn = work.psn.plus(self.packet);
        let (operation, extended) = self.operation(common, whole);
        let mut headers = common.headers(port, operation, psn, extended);
        let last = whole || self.packet + 1 == work.packets;
        headers.bth.se = last && work.flags.has(SendFlags::SOLICITED) && work.takes_recv();
        headers.bth.ack_req = common.init.qp_type == QpType::Rc
            && (last || (self.packet + 1).is_multiple_of(PACKETS_PER_ACK));
        if work.needs_answer() {
            return request_frame(headers, work.packets - self.packet, shortcut);
        }
        if whole {
            let payload = whole_payload(common, work, &self.pieces);
            return message(headers, work.packets, payload);
        }
        let mtu = common.mtu();
        let at = self.packet as usize * mtu;
        let octets = (work.octets as usize - at).min(mtu);
        packet(&headers, octets, |room| match &work.kept {
            Kept::Inline(data) => room.copy_from_slice(&data[at..at + octets]),
            _ => gather(&self.pieces, at, room),
        })
    }

    /// Operation and extended headers of the packet at the present place.
    fn operation(&self, common: &Common, whole: bool) -> (Operation, Extended) {
        let work = &self.queue[self.next];
        let only = whole || work.packets == 1;
        let first = self.packet == 0;
        let last = only || self.packet + 1 == work.packets;
        let imm = |data| Extended::Imm(ImmDt { data });
        match work.op {
            SendOp::Send if only => (Operation::SEND_ONLY, Extended::None),
            SendOp::SendImm(data) if only => (Operation::SEND_ONLY_IMM, imm(data)),
            SendOp::SendInvalidate(rkey) if only => {
                (Operation::SEND_ONLY_INVALIDATE, Extended::Ieth(Ieth { rkey: rkey.0 }))
            }
            SendOp::SendImm(data) if last => (Operation::SEND_LAST_IMM, imm(data)),
            SendOp::SendInvalidate(rkey) if last => {
                (Operation::SEND_LAST_INVALIDATE, Extended::Ieth(Ieth { rkey: rkey.0 }))
            }
            SendOp::Write(remote) if only => {
                (Operation::WRITE_ONLY, Extended::Reth(reth(work, remote, 0)))
            }
            SendOp::WriteImm(remote, data) if only => {
                let reth = reth(work, remote, 0);
                (Operation::WRITE_ONLY_IMM, Extended::RethImm(reth, ImmDt { data }))
            }
            SendOp::Write(remote) | SendOp::WriteImm(remote, _) if first => {
                (Operation::WRITE_FIRST, Extended::Reth(reth(work, remote, 0)))
            }
            SendOp::WriteImm(_, data) if last => (Operation::WRITE_LAST_IMM, imm(data)),
            SendOp::Write(_) if last => (Operation::WRITE_LAST, Extended::None),
            SendOp::Write(_) | SendOp::WriteImm(..) => (Operation::WRITE_MIDDLE, Extended::None),
            SendOp::Read(remote) => {
                // Asked again, a read asks for what has not come yet.
                let skip = u64::from(self.packet) * common.mtu() as u64;
                (Operation::READ_REQUEST, Extended::Reth(reth(work, remote, skip)))
            }
            SendOp::CompareSwap { remote, compare, swap } => {
                let (va, rkey) = (remote.address, remote.rkey.0);
                let atomic = AtomicEth { va, rkey, swap_or_add: swap, compare };
                (Operation::COMPARE_SWAP, Extended::AtomicEth(atomic))
            }
            SendOp::FetchAdd { remote, add } => {
                let (va, rkey) = (remote.address, remote.rkey.0);
                let atomic = AtomicEth { va, rkey, swap_or_add: add, compare: 0 };
                (Operation::FETCH_ADD, Extended::AtomicEth(atomic))
            }
            _ if first => (Operation::SEND_FIRST, Extended::None),
            _ if last => (Operation::SEND_LAST, Extended::None),
            _ => (Operation::SEND_MIDDLE, Extended::None),
        }
    }

    /// The present packet, or message, is on its way.
    fn sent(&mut self, common: &Common, shared: &mut Shared, now: Time, whole: bool) {
        let work = &self.queue[self.next];
        self.packet = if whole { work.packets } else { self.packet + 1 };
        let end = work.psn.plus(self.packet);
        if self.sent_end.is_before(end) {
            self.sent_end = end;
        }
        if self.packet == work.packets {
            self.next += 1;
            self.packet = 0;
        }
        if common.init.qp_type == QpType::Uc {
            // There will be no answer: what is sent is done.
            self.acked = self.sent_end;
            self.retire(common, shared);
        } else if self.ack_deadline.is_none() {
            self.start_timer(common, now);
        }
    }
}

/// A request for an answer, which has no payload of its own.
fn request_frame(headers: Headers, packets: u32, shortcut: bool) -> Frame {
    if shortcut { message(headers, packets, Payload::empty()) } else { packet(&headers, 0, |_| {}) }
}

/// The payload of a message in one piece. Without an acknowledgement to wait for, its owner may
/// change the memory at once, so then it goes by copy.
fn whole_payload(common: &Common, work: &SendWork, pieces: &[Piece]) -> Payload {
    let octets = work.octets as usize;
    if let Kept::Inline(data) = &work.kept {
        return Payload::small(&data[..octets]);
    }
    if common.init.qp_type == QpType::Rc {
        return Payload::of(pieces, octets);
    }
    Payload::copy(pieces, octets)
}

/// The header of an RDMA request that skips what is done already.
fn reth(work: &SendWork, remote: Remote, skip: u64) -> Reth {
    Reth {
        va: remote.address.wrapping_add(skip),
        rkey: remote.rkey.0,
        dma_len: (work.octets - skip) as u32,
    }
}
