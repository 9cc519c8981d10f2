//! The fast path of the requester: a post sends one short message immediately, and an ACK completes
//! it.
//!
//! Nearly all traffic of queue pairs is short messages and ACKs, in order. This file handles them
//! in a tenth of the instructions. For everything else its functions return `false` without a
//! change of state, and the slow path takes over. The slow path implements the whole specification;
//! this file adds no rule. Tests run both.

use super::*;
use crate::head;
use crate::sink::FrameSink;
use pollux_verbs::Data;
use pollux_verbs::work::Destination;
use pollux_wire::address::Qpn;
use pollux_wire::packet::Deth;

impl Requester {
    /// Sends a request immediately, if it qualifies for the fast path and no earlier request waits
    /// to be sent. Returns whether it was sent.
    #[inline(always)]
    pub(crate) fn send_fast<L: FrameSink>(
        &mut self,
        common: &mut Common,
        shared: &mut Shared,
        now: Time,
        request: &SendRequest<'_>,
        link: &mut L,
    ) -> bool {
        if request.flags.has(SendFlags::FENCE)
            || !common.has_fast_path(shared)
            || !self.can_send_now(common)
        {
            return false;
        }
        let heads = &common.heads;
        let se = if request.flags.has(SendFlags::SOLICITED) { head::SE } else { 0 };
        let first = heads.message | se;
        let second = heads.sent | u64::from(self.psn.get());
        let is_ud = common.init.qp_type == QpType::Ud;
        let sent = match request.op {
            SendOp::Send if !is_ud => {
                send_data(common, shared, &[first, second, 1], &request.data, link)
            }
            SendOp::Datagram(to) if is_ud => {
                let Some(words) = datagram_words(common, shared, &to, first, second) else {
                    return false;
                };
                send_data(common, shared, &words, &request.data, link)
            }
            _ => false,
        };
        if !sent {
            return false;
        }
        if common.init.qp_type == QpType::Rc {
            self.record_sent(common, request, now);
        } else {
            self.complete_unreliable(common, shared, request);
        }
        true
    }

    /// Whether a new message may be sent immediately, before it is queued.
    #[inline(always)]
    fn can_send_now(&self, common: &Common) -> bool {
        self.next == self.queue.len()
            && self.next < common.init.send_requests_max as usize
            && self.failed.is_none()
            && self.rnr_until.is_none()
            && self.draining.is_none()
            && (self.psn.since(self.acked) as u32) < UNACKED_PACKETS_MAX
            && self.ssn_allowed.is_none_or(|last| !last.is_before(self.ssn))
    }

    /// Queues a one-packet message that was just sent, until its acknowledgement.
    #[inline(always)]
    fn record_sent(&mut self, common: &Common, request: &SendRequest<'_>, now: Time) {
        let mut work =
            SendWork::new(request, AddressVector::default(), &mut self.inline, &common.init);
        (work.psn, work.packets, work.ssn) = (self.psn, 1, self.ssn);
        self.queue.push_back(work);
        self.next += 1;
        (self.psn, self.ssn) = (self.psn.plus(1), self.ssn.plus(1));
        self.sent_end = self.psn;
        if self.ack_deadline.is_none() {
            self.start_timer(common, now);
        }
    }

    /// Completes a one-packet message that was just sent and needs no acknowledgement.
    #[inline(always)]
    fn complete_unreliable(
        &mut self,
        common: &Common,
        shared: &mut Shared,
        request: &SendRequest<'_>,
    ) {
        self.psn = self.psn.plus(1);
        (self.acked, self.sent_end) = (self.psn, self.psn);
        if common.init.signal_all || request.flags.has(SendFlags::SIGNALED) {
            let (status, kind) = (CompletionStatus::Success, CompletionKind::Send);
            let completion = common.completion(request.id, status, kind);
            common.complete(shared, common.init.send_cq, completion, false);
        }
    }

    /// Handles an ACK, unless a read or atomic response is outstanding. Returns whether it did.
    #[inline(always)]
    pub(crate) fn receive_fast_ack(
        &mut self,
        common: &Common,
        shared: &mut Shared,
        now: Time,
        psn: Psn,
        aeth: Aeth,
    ) -> bool {
        let awaited = !psn.is_before(self.acked) && psn.is_before(self.sent_end);
        if !awaited || self.answers_due > 0 || self.failed.is_some() {
            return false;
        }
        self.take_credits(aeth.syndrome, aeth.msn);
        self.advance_acked(common, shared, now, psn.plus(1));
        true
    }
}

/// Sends the data of a request, if it is short and contiguous. Returns whether it was sent.
#[inline(always)]
fn send_data<L: FrameSink>(
    common: &Common,
    shared: &Shared,
    words: &[u64],
    data: &Data<'_>,
    link: &mut L,
) -> bool {
    let bytes_max = common.heads.bytes_max;
    match *data {
        Data::Inline(bytes) => {
            bytes.len() <= bytes_max.min(common.init.inline_bytes_max as usize)
                && link.send_bytes(words, bytes)
        }
        Data::Sges(&[sge]) if sge.bytes as usize <= bytes_max && common.init.send_sges_max > 0 => {
            let Ok((memory, at)) = shared.memory.locate(common.init.pd, &sge, false) else {
                return false;
            };
            let mut done = at;
            link.send_message(words, sge.bytes as usize, |part| {
                let reached = memory.read(done, part);
                debug_assert!(reached, "the region was checked");
                done += part.len();
            })
        }
        _ => false,
    }
}

/// The head words of a datagram, if its path qualifies for the fast path.
#[inline(always)]
fn datagram_words(
    common: &Common,
    shared: &Shared,
    to: &Destination,
    first: u64,
    second: u64,
) -> Option<[u64; 4]> {
    let (pd, path) = shared.ahs.get(to.ah.0)?;
    let dlid = path.dlid;
    let is_fast = *pd == common.init.pd
        && path.grh.is_none()
        && to.qpn <= Qpn::MAX
        && !dlid.is_multicast()
        && !shared.port.lid.covers(shared.port.lmc, dlid)
        && !to.qkey.is_privileged();
    if !is_fast {
        return None;
    }
    let first = first | u64::from(to.qpn.0) << 32 | u64::from(path.sl) << 56;
    let second = second | u64::from(dlid.0) << 32 | u64::from(path.src_path_bits) << 48;
    let deth = Deth { qkey: to.qkey, src_qp: common.qpn };
    Some([first, second, 1, head::deth_word(deth)])
}
