//! Transmission of requests: the packet at the current position, or a whole message (IBA 9.7.3,
//! 9.9.1).

use super::*;
use crate::lease::LeasedMemory;
use crate::message_bypass::Carriage;
use crate::sink::FrameSink;

impl Requester {
    /// Sends the next packet or message, if one may be sent now.
    #[inline]
    pub(crate) fn transmit(
        &mut self,
        common: &Common,
        shared: &mut Shared,
        now: Time,
        bypass: bool,
        outlet: &mut Outlet<'_, impl FrameSink>,
    ) -> Sent {
        while self.may_send(common, now) {
            if self.queue[self.next].is_local() {
                self.execute_local(common, shared);
                continue;
            }
            if self.packet == 0 && !self.begin(common) {
                break;
            }
            let work = &self.queue[self.next];
            let (pd, writes) = (common.init.pd, work.needs_answer());
            let Ok(pieces) = shared.memory.local(pd, work.data.sges(), writes) else {
                self.set_local_error(common, CompletionStatus::LocalProtection);
                break;
            };
            let carriage = if work.needs_answer() {
                Carriage::Carried
            } else if bypass {
                self.carriage(common, shared, work, &pieces, outlet)
            } else {
                Carriage::Segmented
            };
            if !outlet.send(&self.outgoing(common, shared, pieces, carriage, bypass)) {
                return Sent::Stalled;
            }
            self.advance(common, shared, now, carriage != Carriage::Segmented);
            return Sent::More;
        }
        Sent::All
    }

    /// How the message bypass transfers the data of a request. A lease needs RC: the consumer must
    /// not change the memory until the acknowledgement. If the first packets of a request were sent
    /// segmented, so are the others.
    fn carriage(
        &self,
        common: &Common,
        shared: &Shared,
        work: &SendWork,
        pieces: &Pieces<'_>,
        outlet: &mut Outlet<'_, impl FrameSink>,
    ) -> Carriage {
        if self.packet > 0 {
            return Carriage::Segmented;
        }
        Carriage::of(work.bytes as usize, || {
            let (head, _) = common.head(&shared.port, Operation::SEND_ONLY, work.psn);
            common.init.qp_type == QpType::Rc && outlet.can_lease(&head, pieces, &shared.leases)
        })
    }

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
        // A request with a local error fails the queue pair only after the requests before it are
        // complete, because those may need retransmission.
        if self.queue[self.next].local_error.is_some() {
            return false;
        }
        // A drain stops new requests, but not retransmission.
        let work = &self.queue[self.next];
        let is_new = self.packet == 0 && work.is_untouched();
        let is_fenced = work.flags.has(SendFlags::FENCE);
        if is_new && (self.draining.is_some() || is_fenced && self.reads_outstanding() > 0) {
            return false;
        }
        let psn = if work.packets > 0 { work.psn.plus(self.packet) } else { self.psn };
        work.is_local() || (psn.since(self.acked) as u32) < UNACKED_PACKETS_MAX
    }

    /// Whether the request at `next` may be started, or restarted; assigns PSNs to a new one.
    fn begin(&mut self, common: &Common) -> bool {
        let work = &self.queue[self.next];
        let is_read = work.needs_answer();
        let depth = u32::from(common.attributes.initiator_depth.unwrap_or(0));
        if is_read && depth == 0 {
            self.set_local_error(common, CompletionStatus::LocalQpOperation);
            return false;
        }
        if matches!(work.op, SendOp::CompareSwap { .. } | SendOp::FetchAdd { .. })
            && work.bytes != ATOMIC_BYTES
        {
            self.set_local_error(common, CompletionStatus::LocalLength);
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
            _ => common.packets(work.bytes),
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

    /// The number of started reads and atomics without a complete response.
    fn reads_outstanding(&self) -> u32 {
        let before = self.queue.iter().take(self.next);
        before.filter(|work| work.needs_answer() && !work.done).count() as u32
    }

    /// Records that the request at `next` cannot be sent. The requests before it complete first.
    pub(super) fn set_local_error(&mut self, common: &Common, status: CompletionStatus) {
        self.packet = 0;
        if self.next == 0 || common.init.qp_type == QpType::Uc {
            self.failed = Some(status);
        } else {
            self.queue[self.next].local_error = Some(status);
        }
    }

    /// The packet at the current position, or the whole message.
    #[inline(always)]
    fn outgoing<'a>(
        &'a self,
        common: &Common,
        shared: &'a Shared,
        pieces: Pieces<'a>,
        carriage: Carriage,
        bypass: bool,
    ) -> FrameToSend<'a> {
        let unsegmented = carriage != Carriage::Segmented;
        let work = &self.queue[self.next];
        let psn = work.psn.plus(self.packet);
        let (operation, extended) = self.operation(common, unsegmented);
        let (mut head, grh) = common.head(&shared.port, operation, psn);
        let last = unsegmented || self.packet + 1 == work.packets;
        head.se = last && work.flags.has(SendFlags::SOLICITED) && work.takes_recv();
        head.ack_req = common.init.qp_type == QpType::Rc
            && (last || (self.packet + 1).is_multiple_of(PACKETS_PER_ACK));
        head.unsegmented = unsegmented;
        if unsegmented {
            head.packets = work.packets - self.packet;
        }
        let mtu = common.mtu();
        let skip = self.packet as usize * mtu;
        let bytes = work.bytes as usize;
        let payload = match work.data {
            _ if work.needs_answer() => Payload::NONE,
            StoredData::Inline(slot) if unsegmented => Payload::Bytes(self.inline.get(slot, bytes)),
            StoredData::Inline(slot) => {
                let bytes = self.inline.get(slot, bytes);
                Payload::Bytes(&bytes[skip..bytes.len().min(skip + mtu)])
            }
            StoredData::Sges(_) => match carriage {
                Carriage::Segmented => {
                    Payload::Copied { pieces, skip, bytes: (bytes - skip).min(mtu) }
                }
                Carriage::Carried => Payload::Copied { pieces, skip: 0, bytes },
                Carriage::Leased => {
                    head.leased = true;
                    Payload::Leased { pieces, qp_lease: shared.leases.qp_lease(common.qpn) }
                }
            },
        };
        FrameToSend { head, grh, extended, payload, as_packet: !bypass }
    }

    fn operation(&self, common: &Common, unsegmented: bool) -> (Operation, Extended) {
        let work = &self.queue[self.next];
        let only = unsegmented || work.packets == 1;
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
                // A retransmitted read requests only the missing part.
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

    fn advance(&mut self, common: &Common, shared: &mut Shared, now: Time, unsegmented: bool) {
        let work = &self.queue[self.next];
        self.packet = if unsegmented { work.packets } else { self.packet + 1 };
        let end = work.psn.plus(self.packet);
        if self.sent_end.is_before(end) {
            self.sent_end = end;
        }
        if self.packet == work.packets {
            self.next += 1;
            self.packet = 0;
        }
        if common.init.qp_type == QpType::Uc {
            // UC has no acknowledgements, so a request is complete when it is sent.
            self.acked = self.sent_end;
            self.retire(common, shared);
        } else if self.ack_deadline.is_none() {
            self.start_timer(common, now);
        }
    }
}

/// The RETH of a request for the data after its first `skip` bytes.
fn reth(work: &SendWork, remote: Remote, skip: u64) -> Reth {
    Reth {
        va: remote.address.wrapping_add(skip),
        rkey: remote.rkey.0,
        dma_len: (work.bytes - skip) as u32,
    }
}
