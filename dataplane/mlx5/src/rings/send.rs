//! Send queues.
//!
//! The ring consists of blocks, and its indices have 16 bits. A CQE completes its own request and
//! all requests before it. Unsignaled requests that succeed have no CQE of their own.

#[cfg(all(test, target_arch = "x86_64"))]
pub(crate) mod mistakes;

use crate::memory::{Record, RingMemory, SendRegister};
use crate::wqe::{self, Av, BLOCK, UNIT, Unit, Units, flag};
use pollux_verbs::{CompletionKind, Data, PostRefusal, SendFlags, SendRequest};

/// The maximum number of blocks of a ring, whose indices have 16 bits.
const BLOCKS_MAX: u32 = 1 << 15;

#[derive(Debug)]
pub(crate) struct SendRing {
    memory: RingMemory,
    record: Record,
    qpn: u32,
    /// The flags of every request: signaled, if the queue pair signals all.
    flags: u8,
    /// The fence flag that the next request needs.
    next_fence: u8,
    blocks: u16,
    requests_max: u16,
    /// The indices after the last block written and after the last block completed, which wrap.
    producer: u16,
    done: u16,
    /// The numbers of requests written and of requests completed, which wrap.
    posted: u16,
    completed: u16,
    /// The outstanding requests, by their first block.
    work: Box<[Work]>,
    /// The last WQE written.
    last: Last,
}

#[derive(Clone, Copy, Debug)]
struct Work {
    id: u64,
    /// `producer` and `posted` after the request was written.
    end: u16,
    posted: u16,
    kind: CompletionKind,
}

#[derive(Clone, Copy, Debug, Default)]
struct Last {
    at: usize,
    units: usize,
    first: u64,
}

/// A completed request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Sent {
    pub(crate) id: u64,
    pub(crate) kind: CompletionKind,
}

/// The limits with which a ring is created.
#[derive(Clone, Copy, Debug)]
pub(crate) struct SendLimits {
    pub(crate) requests_max: u32,
    pub(crate) signal_all: bool,
}

impl SendRing {
    #[cfg(test)]
    pub(crate) fn memory(&self) -> &RingMemory {
        &self.memory
    }

    /// A send ring. `None` if it has too many blocks.
    pub(crate) fn new(
        memory: RingMemory,
        record: Record,
        qpn: u32,
        limits: SendLimits,
    ) -> Option<Self> {
        let blocks = u32::try_from(memory.bytes() / BLOCK).ok()?;
        if blocks > BLOCKS_MAX {
            return None;
        }
        let nothing = Work { id: 0, end: 0, posted: 0, kind: CompletionKind::Send };
        Some(Self {
            memory,
            record,
            qpn,
            flags: if limits.signal_all { flag::CQE_ALWAYS } else { 0 },
            next_fence: 0,
            blocks: blocks as u16,
            requests_max: limits.requests_max.min(blocks) as u16,
            producer: 0,
            done: 0,
            posted: 0,
            completed: 0,
            work: vec![nothing; blocks as usize].into(),
            last: Last::default(),
        })
    }

    /// Writes a request, which the adapter does not see before [`SendRing::ring`]. `av` is the
    /// address vector of a datagram.
    #[inline(always)]
    pub(crate) fn write(
        &mut self,
        request: &SendRequest<'_>,
        av: Option<&Av>,
    ) -> Result<(), PostRefusal> {
        let blocks_max = wqe::blocks(1 + wqe::body_units_max(&request.op, request.data));
        let used = self.producer.wrapping_sub(self.done);
        let outstanding = self.posted.wrapping_sub(self.completed);
        if usize::from(used) + blocks_max > self.blocks.into() || outstanding >= self.requests_max {
            return Err(PostRefusal::Full);
        }
        if let Data::Sges(sges) = request.data
            && sges.iter().any(|sge| sge.bytes > wqe::SGE_BYTES_MAX)
        {
            return Err(PostRefusal::TooLong);
        }
        let slot = usize::from(self.producer & (self.blocks - 1));
        let at = slot * BLOCK;
        let mut rest = Rest { memory: &self.memory, at: at + UNIT, units: 1 };
        let operation = wqe::body(&request.op, request.data, av, self.qpn, &mut rest);
        let units = rest.units;
        let fence = if request.flags.has(SendFlags::FENCE) { 0 } else { self.next_fence };
        let is_umr = operation.opcode == wqe::opcode::UMR;
        self.next_fence = if is_umr { flag::SMALL_FENCE } else { 0 };
        let flags = wqe::flags(request.flags) | self.flags | fence;
        let control = wqe::control(operation, self.producer, self.qpn, units, flags);
        self.memory.write(at, control);
        self.last = Last { at, units, first: control[0] };
        self.producer = self.producer.wrapping_add(wqe::blocks(units) as u16);
        self.posted = self.posted.wrapping_add(1);
        let (end, posted) = (self.producer, self.posted);
        self.work[slot] = Work { id: request.id, end, posted, kind: request.op.kind() };
        Ok(())
    }

    /// Rings the doorbell for the requests written. A single request (`is_one`) is written to the
    /// register itself if it fits and has more than a control segment, which saves the adapter a
    /// read.
    #[inline]
    pub(crate) fn ring(&mut self, is_one: bool, register: &mut SendRegister) {
        self.record.set(Record::SEND, self.producer.into());
        let Last { at, units, first } = self.last;
        let blocks = wqe::blocks(units);
        if is_one && units > 1 && register.takes(blocks) {
            register.ring_by_wqe(blocks, |nth| self.memory.read_block(at + nth * BLOCK));
        } else {
            register.ring(first);
        }
    }

    /// Completes the request whose first block has this index, and all requests before it. Returns
    /// the request.
    #[inline]
    pub(crate) fn complete(&mut self, index: u16) -> Sent {
        let work = self.work[usize::from(index & (self.blocks - 1))];
        self.done = work.end;
        self.completed = work.posted;
        Sent { id: work.id, kind: work.kind }
    }

    /// Resets the ring to its state after creation. Posted requests are discarded.
    pub(crate) fn reset(&mut self) {
        (self.producer, self.done) = (0, 0);
        (self.posted, self.completed) = (0, 0);
        self.next_fence = 0;
        self.record.set(Record::SEND, 0);
    }
}

/// Writes the units of a WQE, which wraps at the end of the ring.
struct Rest<'a> {
    memory: &'a RingMemory,
    at: usize,
    units: usize,
}

impl Rest<'_> {
    #[inline]
    fn advance(&mut self, units: usize) -> usize {
        let at = self.at;
        self.at = at + units * UNIT;
        self.units += units;
        at
    }
}

impl Units for Rest<'_> {
    #[inline]
    fn put(&mut self, unit: Unit) {
        let at = self.advance(1);
        self.memory.write(at, unit);
    }

    #[inline]
    fn put_bytes(&mut self, head: u32, bytes: &[u8]) {
        let at = self.advance((4 + bytes.len()).div_ceil(UNIT));
        self.memory.write_be32(at, head);
        self.memory.write_around(at + 4, bytes);
    }
}
