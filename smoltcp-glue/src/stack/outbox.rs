//! The queue of outgoing packets. Buffers are reused, so that sending does not allocate in the
//! steady state.

use std::collections::VecDeque;

/// A packet buffer that only grows.
#[derive(Debug, Default)]
pub(super) struct Packet {
    bytes: Vec<u8>,
    len: usize,
}

impl Packet {
    pub(super) fn bytes(&self) -> &[u8] {
        &self.bytes[..self.len]
    }

    pub(super) fn bytes_mut(&mut self) -> &mut [u8] {
        &mut self.bytes[..self.len]
    }
}

/// The sink of outgoing packets: it provides the buffer of each packet.
pub trait PacketSink {
    /// A buffer for a packet of this length, with arbitrary contents.
    fn buffer(&mut self, len: usize) -> &mut [u8];
}

impl PacketSink for Packet {
    fn buffer(&mut self, len: usize) -> &mut [u8] {
        if self.bytes.len() < len {
            self.bytes.resize(len, 0);
        }
        self.len = len;
        &mut self.bytes[..len]
    }
}

#[derive(Debug)]
pub(super) struct Outbox {
    waiting: VecDeque<Packet>,
    spare: Vec<Packet>,
    packets_max: usize,
    /// The number of packets taken from the queue so far.
    popped: u64,
    /// The value of `popped` after the last queued fragment.
    fragments_until: u64,
}

impl Outbox {
    pub(super) const fn new(packets_max: usize) -> Self {
        Self {
            waiting: VecDeque::new(),
            spare: Vec::new(),
            packets_max,
            popped: 0,
            fragments_until: 0,
        }
    }

    pub(super) fn is_empty(&self) -> bool {
        self.waiting.is_empty()
    }

    pub(super) fn has_space(&self) -> bool {
        self.waiting.len() < self.packets_max
    }

    pub(super) fn has_fragments(&self) -> bool {
        self.popped < self.fragments_until
    }

    /// A buffer for one more packet; `None` if the outbox is full.
    pub(super) fn push(&mut self, len: usize) -> Option<&mut [u8]> {
        self.has_space().then(|| self.push_more(len))
    }

    /// A buffer for one more fragment of a packet. The limit does not apply; the caller fragments
    /// no other datagram while fragments wait.
    pub(super) fn push_fragment(&mut self, len: usize) -> &mut [u8] {
        self.fragments_until = self.popped + self.waiting.len() as u64 + 1;
        self.push_more(len)
    }

    fn push_more(&mut self, len: usize) -> &mut [u8] {
        let packet = self.spare.pop().unwrap_or_default();
        self.waiting.push_back(packet);
        let at = self.waiting.len() - 1;
        self.waiting[at].buffer(len)
    }

    /// Moves the oldest packet into `sink`; `false` if there is none.
    pub(super) fn pop(&mut self, sink: &mut dyn PacketSink) -> bool {
        let Some(next) = self.waiting.pop_front() else { return false };
        sink.buffer(next.len).copy_from_slice(next.bytes());
        self.popped += 1;
        self.spare.push(next);
        true
    }
}
