//! The usual message, by the shortest way.
//!
//! Nearly all that queue pairs carry is short messages and acknowledgements, in order, with nothing
//! in between. This file handles those and nothing else: it asks for everything that makes a
//! message usual, and then does what [`requester`](super::requester) and
//! [`responder`](super::responder) would do, in a tenth of the instructions. What is not usual it
//! leaves untouched to them, so every rule stands there, and none stands only here. The tests run
//! all of it both ways.
//!
//! What makes it short: all that a packet's admission asks (IBA 9.6.1) is two words of its head,
//! known beforehand ([`Usual`]), compared at once. They are made anew when anything that they
//! depend on has changed.

use super::qp::{Common, QueuePair};
use super::qpn::number_of;
use super::queue::Entries;
use super::{Adapter, Shared};
use crate::frame::{COPY_BYTES_MAX, Message};
use crate::head;
use crate::link::Link;
use crate::time::Time;
use pollux_mem::Memory;
use pollux_mem::shared_ring::{Entry, FIRST_WORDS};
use pollux_verbs::work::{Destination, SendOp};
use pollux_verbs::{
    AddressVector, Completion, CompletionKind, CompletionStatus, Data, Migration, QpState, QpType,
    SendFlags, SendRequest, Source, With,
};
use pollux_wire::address::{Lid, Qpn};
use pollux_wire::mad::smp::PortState;
use pollux_wire::packet::{Deth, Grh, Opcode, Operation, Syndrome};
use pollux_wire::psn::Psn;

/// What the heads of a queue pair's usual messages have in common, as long as nothing changes.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Usual {
    /// The state of the port that this was made for; 0: made for none.
    epoch: u64,
    /// Whether this queue pair has usual messages at all.
    is: bool,
    /// First words: of a message, of an acknowledgement; as sent, and as received.
    message: u64,
    ack: u64,
    message_comes: u64,
    ack_comes: u64,
    /// Upper halves of the second words; of datagrams only what concerns our own port.
    sent: u64,
    comes: u64,
    /// Which bits of the second word have to match.
    comes_mask: u64,
    /// The longest message.
    bytes_max: usize,
    pkey_index: u16,
}

/// Where the DLID and the SLID are in the second word.
const DLID: u64 = 0xffff << 32;
const SLID: u64 = 0xffff << 48;

/// A message that has come by the shortcut, wherever it lies.
pub(crate) trait Incoming {
    /// The first words of its head, the same at every look.
    fn first_words(&self) -> [u64; FIRST_WORDS];
    fn head_words(&self) -> usize;
    fn bytes(&self) -> usize;
    /// Copies its bytes into memory, to `at` on.
    fn copy_to(&self, memory: &Memory, at: usize) -> bool;
}

impl Incoming for Entry<'_> {
    #[inline(always)]
    fn first_words(&self) -> [u64; FIRST_WORDS] {
        Entry::first_words(self)
    }

    #[inline(always)]
    fn head_words(&self) -> usize {
        Entry::head_words(self)
    }

    #[inline(always)]
    fn bytes(&self) -> usize {
        Entry::bytes(self)
    }

    #[inline(always)]
    fn copy_to(&self, memory: &Memory, at: usize) -> bool {
        Entry::copy_to(self, memory, at)
    }
}

impl Incoming for Message {
    fn first_words(&self) -> [u64; FIRST_WORDS] {
        Message::first_words(self)
    }

    fn head_words(&self) -> usize {
        self.words()
    }

    fn bytes(&self) -> usize {
        self.payload().len()
    }

    fn copy_to(&self, memory: &Memory, at: usize) -> bool {
        memory.write(at, self.payload())
    }
}

impl Usual {
    /// Something has changed.
    pub(crate) fn forget(&mut self) {
        self.epoch = 0;
    }
}

impl QueuePair {
    /// Whether the queue pair has usual messages now.
    #[inline(always)]
    fn is_usual(&mut self, shared: &Shared) -> bool {
        if self.common.usual.epoch != shared.epoch {
            self.common.usual = self.find_usual(shared);
        }
        self.common.usual.is
    }

    #[cold]
    fn find_usual(&self, shared: &Shared) -> Usual {
        let none = Usual { epoch: shared.epoch, ..Usual::default() };
        let (common, port) = (&self.common, &shared.port);
        let is_ud = common.init.qp_type == QpType::Ud;
        // A datagram's way is its own; its queue pair knows only where it comes from.
        let path = if is_ud { Some(AddressVector::default()) } else { common.attributes.path };
        let Some(path) = path else { return none };
        let pkey = common.pkey(port);
        let is = common.state == QpState::Rts
            && common.init.qp_type != QpType::Gsi
            && path.grh.is_none()
            // The first packet of a peer's that is ready as well changes something.
            && common.migration() != Migration::Rearm
            && port.state == PortState::ACTIVE
            && (is_ud || !port.lid.covers(port.lmc, path.dlid))
            // Two limited members share a key and still may not talk; and 0 is no key.
            && pkey.is_full()
            && pkey.matches(pkey);
        if !is {
            return none;
        }
        let first = |operation, dest_qp: Qpn, whole| {
            let opcode = Opcode::new(common.transport(), operation);
            let is_armed = common.migration() == Migration::Armed;
            let flag = if is_armed { head::NO_MIG_REQ } else { 0 };
            head::first_word(opcode, pkey, dest_qp, whole) | flag
        };
        let dest_qp = common.attributes.dest_qp.unwrap_or_default();
        let sl = u64::from(path.sl) << 56;
        let ack_req = if common.init.qp_type == QpType::Rc { head::ACK_REQ } else { 0 };
        let slid = port.lid.0 | u16::from(path.src_path_bits);
        let mtu = if is_ud { port.mtu.bytes().unwrap_or(256) } else { common.mtu() };
        Usual {
            is,
            message: first(Operation::SEND_ONLY, dest_qp, !is_ud) | ack_req | sl,
            ack: first(Operation::ACKNOWLEDGE, dest_qp, false) | sl,
            message_comes: first(Operation::SEND_ONLY, common.qpn, !is_ud),
            ack_comes: first(Operation::ACKNOWLEDGE, common.qpn, false),
            sent: u64::from(path.dlid.0) << 32 | u64::from(slid) << 48,
            comes: u64::from(slid) << 32 | u64::from(path.dlid.0) << 48,
            comes_mask: if is_ud { DLID } else { DLID | SLID },
            bytes_max: COPY_BYTES_MAX.min(mtu),
            pkey_index: port.pkey_index(pkey).unwrap_or(0),
            ..none
        }
    }

    /// Sends a request at once, if it is usual and nothing stands before it.
    #[inline(always)]
    fn send_usual<L: Link>(
        &mut self,
        shared: &mut Shared,
        now: Time,
        request: &SendRequest<'_>,
        link: &mut L,
    ) -> bool {
        if request.flags.has(SendFlags::FENCE)
            || !self.is_usual(shared)
            || !self.requester.is_clear(&self.common)
        {
            return false;
        }
        let (common, usual) = (&self.common, &self.common.usual);
        let se = if request.flags.has(SendFlags::SOLICITED) { head::SE } else { 0 };
        let first = usual.message | se;
        let second = usual.sent | u64::from(self.requester.psn().get());
        let is_ud = common.init.qp_type == QpType::Ud;
        let went = match request.op {
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
        if !went {
            return false;
        }
        if common.init.qp_type == QpType::Rc {
            self.requester.sent_usual(&self.common, request, now);
        } else {
            self.requester.sent_unreliable(&self.common, shared, request);
        }
        true
    }

    /// Takes a message into the next receive, if both are usual.
    #[inline(always)]
    fn take_usual(&mut self, shared: &mut Shared, message: &impl Incoming) -> bool {
        let common = &mut self.common;
        let bytes = message.bytes();
        let [first, second, third, fourth] = message.first_words();
        if bytes > common.usual.bytes_max || third != 1 {
            return false;
        }
        let (skip, from) = if common.init.qp_type == QpType::Ud {
            let deth = head::deth_of(fourth);
            if message.head_words() != 4 || Some(deth.qkey) != common.attributes.qkey {
                return false;
            }
            let from = Source {
                src_qp: deth.src_qp,
                slid: Lid((second >> 48) as u16),
                sl: (first >> 56) as u8 & 0xf,
                dlid_path_bits: ((second >> 32) as u16 & shared.port.path_bits_max()) as u8,
                pkey_index: common.usual.pkey_index,
                has_grh: false,
            };
            (Grh::LEN, Some(from))
        } else {
            let psn = Psn::new(second as u32 & 0xff_ffff);
            if message.head_words() != 3 || !self.responder.expects(psn) {
                return false;
            }
            (0, None)
        };
        let queue = match common.init.srq {
            None => &mut common.receives,
            Some(srq) => match shared.srqs.get_mut(srq.0) {
                Some(queue) if queue.limit == 0 && queue.pd == common.init.pd => {
                    &mut queue.requests
                }
                _ => return false,
            },
        };
        let Some(work) = queue.front() else { return false };
        let Entries::One(sge) = &work.entries else { return false };
        if skip + bytes > sge.bytes as usize {
            return false;
        }
        let Ok((memory, at)) = shared.memory.place(common.init.pd, sge, true) else { return false };
        if !message.copy_to(memory, at + skip) {
            return false;
        }
        let id = work.id;
        queue.pop_front();
        if common.init.qp_type != QpType::Ud {
            let is_reliable = common.init.qp_type == QpType::Rc;
            self.responder.took_usual(is_reliable && first & head::ACK_REQ != 0);
        }
        let completion = Completion {
            id,
            status: CompletionStatus::Success,
            kind: CompletionKind::Recv,
            qpn: common.qpn,
            bytes: (skip + bytes) as u32,
            with: With::Nothing,
            from,
        };
        common.complete(shared, common.init.recv_cq, completion, first & head::SE != 0);
        true
    }

    /// Sends the only answer that waits, if it is an acknowledgement like all.
    #[inline(always)]
    pub(super) fn answer_usual<L: Link>(&mut self, shared: &Shared, link: &mut L) -> bool {
        if !self.is_usual(shared) {
            return false;
        }
        let Some((psn, aeth)) = self.responder.usual_answer(&self.common) else { return false };
        let usual = &self.common.usual;
        let words = [usual.ack, usual.sent | u64::from(psn.get()), 1, head::aeth_word(aeth)];
        if !link.send_bytes(&words, &[]) {
            return false;
        }
        self.responder.answered();
        true
    }
}

/// Sends what a request names, if it is short and lies in one place.
#[inline(always)]
fn send_data<L: Link>(
    common: &Common,
    shared: &Shared,
    words: &[u64],
    data: &Data<'_>,
    link: &mut L,
) -> bool {
    let bytes_max = common.usual.bytes_max;
    match *data {
        Data::Inline(bytes) => {
            bytes.len() <= bytes_max.min(common.init.inline_bytes_max as usize)
                && link.send_bytes(words, bytes)
        }
        Data::Sges(&[sge]) if sge.bytes as usize <= bytes_max && common.init.send_sges_max > 0 => {
            let Ok((memory, at)) = shared.memory.place(common.init.pd, &sge, false) else {
                return false;
            };
            let mut done = at;
            link.send_message(words, sge.bytes as usize, |part| {
                let reached = memory.read(done, part);
                debug_assert!(reached, "the region was asked");
                done += part.len();
            })
        }
        _ => false,
    }
}

/// The head of a datagram, if its way is usual.
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
    let is_usual = *pd == common.init.pd
        && path.grh.is_none()
        && to.qpn.0 <= 0xff_ffff
        && !dlid.is_multicast()
        && !shared.port.lid.covers(shared.port.lmc, dlid)
        && !to.qkey.is_privileged();
    if !is_usual {
        return None;
    }
    let first = first | u64::from(to.qpn.0) << 32 | u64::from(path.sl) << 56;
    let second = second | u64::from(dlid.0) << 32 | u64::from(path.src_path_bits) << 48;
    let deth = Deth { qkey: to.qkey, src_qp: common.qpn };
    Some([first, second, 1, head::deth_word(deth)])
}

impl Adapter {
    /// Sends a request at once, if it is usual.
    #[inline(always)]
    pub(crate) fn send_usual<L: Link>(
        &mut self,
        now: Time,
        number: u32,
        request: &SendRequest<'_>,
        link: &mut L,
    ) -> bool {
        let Some(qp) = self.qps.get_mut(number) else { return false };
        let went = qp.send_usual(&mut self.shared, now, request, link);
        if went && qp.is_unwatched() {
            self.watch(number);
        }
        went
    }

    /// Takes a message or an acknowledgement, if it is usual.
    #[inline(always)]
    pub(crate) fn take_usual(&mut self, now: Time, message: &impl Incoming) -> bool {
        let [first, second, _, fourth] = message.first_words();
        let number = number_of(Qpn((first >> 32) as u32 & 0xff_ffff));
        let Some(number) = number else { return false };
        let Some(qp) = self.qps.get_mut(number) else { return false };
        if !qp.is_usual(&self.shared) {
            return false;
        }
        let usual = &qp.common.usual;
        if second & usual.comes_mask != usual.comes & usual.comes_mask {
            return false;
        }
        let first = first & !(head::SE | head::ACK_REQ | head::SL);
        if first == qp.common.usual.message_comes {
            let took = qp.take_usual(&mut self.shared, message);
            if took && qp.responder.has_answer() && !qp.is_active {
                qp.is_active = true;
                self.active.push_back(number);
            }
            return took;
        }
        if first == qp.common.usual.ack_comes && message.head_words() == 4 {
            let psn = Psn::new(second as u32 & 0xff_ffff);
            let aeth = head::aeth_of(fourth);
            let Syndrome::Ack(_) = aeth.syndrome else { return false };
            let took = qp.requester.take_usual_ack(&qp.common, &mut self.shared, now, psn, aeth);
            if took && (qp.requester.has_more() || qp.is_unwatched()) {
                self.touch(number);
            }
            return took;
        }
        false
    }
}
