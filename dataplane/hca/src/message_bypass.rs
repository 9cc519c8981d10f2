//! Message bypass: delivery of a message without packets.
//!
//! As long as nothing on the path needs packets, a message passes from one adapter to another
//! unsegmented and without CRCs. It means the same as its packets would: it has the opcode of a
//! one-packet message, takes as many PSNs as it would have packets, and gets the same answers. So
//! an adapter handles messages and packets by the same code, and a connection can change between
//! them after each message.
//!
//! A short message carries its bytes. A long message of a reliable connection is leased if
//! possible: the receiver copies it from the sender's memory ([`lease`](crate::lease)). Other
//! messages carry up to 64 KiB, enough for the longest IP packet. Still longer ones are segmented
//! by the path MTU, also on the bypass.
//!
//! [`Link::wants_packets`](crate::link::Link::wants_packets) decides, once for each post or poll.
//! It switches the bypass off for:
//!
//! - a capture or another tap in the fabric;
//! - a link with faults (loss, corruption, reordering, delay), or one that is set to packets only;
//! - a rate model: virtual lanes, flow control and VL arbitration work on packets;
//! - IB routers, which change the GRH of packets;
//! - a foreign wire, which leads to another program or another machine.
//!
//! The fast paths of requester and responder handle short bypass messages that arrive in order.

use crate::Adapter;
use crate::frame::Message;
use crate::head;
use crate::qpn::number_of;
use pollux_mem::Memory;
use pollux_mem::shared_ring::{BYTES_MAX, Entry, FIRST_WORDS};
use pollux_verbs::time::Time;
use pollux_wire::address::Qpn;
use pollux_wire::packet::Syndrome;
use pollux_wire::psn::Psn;

/// The maximum length of a short message, which is never leased, in bytes.
pub(crate) const COPY_BYTES_MAX: usize = 512;

pub(crate) const CARRIED_BYTES_MAX: usize = BYTES_MAX;

/// How the bytes of a message reach the receiver.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Carriage {
    /// In packets or messages of a path MTU each.
    Segmented,
    /// In one message.
    Carried,
    /// The receiver copies them out of the sender's memory.
    Leased,
}

impl Carriage {
    /// `can_lease` returns whether the receiver can read the sender's memory.
    #[inline(always)]
    pub(crate) fn of(bytes: usize, can_lease: impl FnOnce() -> bool) -> Self {
        if bytes > COPY_BYTES_MAX && can_lease() {
            Self::Leased
        } else if bytes <= CARRIED_BYTES_MAX {
            Self::Carried
        } else {
            Self::Segmented
        }
    }
}

/// A received bypass message: an entry of a ring, or a stored frame.
pub trait BypassMessage {
    /// The first words of its head, the same in every call.
    fn first_words(&self) -> [u64; FIRST_WORDS];
    fn head_words(&self) -> usize;
    fn bytes(&self) -> usize;
    /// Copies the payload to offset `at` of a memory. Returns `false` if it does not fit.
    fn copy_to(&self, memory: &Memory, at: usize) -> bool;
}

impl BypassMessage for Entry<'_> {
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

impl BypassMessage for Message {
    fn first_words(&self) -> [u64; FIRST_WORDS] {
        Message::first_words(self)
    }

    fn head_words(&self) -> usize {
        self.head().len()
    }

    fn bytes(&self) -> usize {
        self.payload().len()
    }

    fn copy_to(&self, memory: &Memory, at: usize) -> bool {
        memory.write(at, self.payload())
    }
}

impl Adapter {
    /// Handles a message or an ACK that qualifies for the fast path. Returns whether it did.
    #[inline(always)]
    pub fn receive_fast(&mut self, now: Time, message: &impl BypassMessage) -> bool {
        let [first, second, _, fourth] = message.first_words();
        let number = number_of(Qpn((first >> 32) as u32 & 0xff_ffff));
        let Some(number) = number else { return false };
        let Some(qp) = self.qps.get_mut(number) else { return false };
        if !qp.common.has_fast_path(&self.shared) {
            return false;
        }
        let heads = &qp.common.heads;
        if second & heads.received_mask != heads.received & heads.received_mask {
            return false;
        }
        let first = first & !(head::SE | head::ACK_REQ | head::SL);
        if first == qp.common.heads.received_message {
            let is_taken = qp.responder.receive_fast(&mut qp.common, &mut self.shared, message);
            if is_taken && qp.responder.has_answer() && !qp.is_active {
                qp.is_active = true;
                self.active.push_back(number);
            }
            return is_taken;
        }
        if first == qp.common.heads.received_ack && message.head_words() == 4 {
            let psn = Psn::new(second as u32 & 0xff_ffff);
            let aeth = head::aeth_of(fourth);
            let Syndrome::Ack(_) = aeth.syndrome else { return false };
            let is_taken =
                qp.requester.receive_fast_ack(&qp.common, &mut self.shared, now, psn, aeth);
            if is_taken && (qp.requester.has_more() || qp.needs_timer()) {
                self.activate(number);
            }
            return is_taken;
        }
        false
    }
}
