//! Message buffers in the registered memory of an end. Each queue pair has slots for the messages
//! that it sends, and slots for those that it receives.
//!
//! With checked payloads ([`crate::payload`]), each message in flight has its own slot, in both
//! directions, except that the atomics of a queue pair all change one slot. Unchecked sends all use
//! one slot, which stays in the caches, as in perftest. Other unchecked operations use two slots in
//! each direction.
//!
//! Each queue pair numbers its messages separately, because order is guaranteed only within a queue
//! pair.

use super::end::{GRH_BYTES, RecvId, VerbsEnd};
use crate::error::PerfError;
use crate::payload::{self, MessageMemory, PayloadCheck};
use crate::plan::{Plan, What};
use crate::verbs_plan::VerbsOp;
use pollux_mem::Memory;
use pollux_verbs::{Completion, Device, QpType};

/// How often a message whose last word has arrived is checked before it counts as wrong.
const LOOKS_MAX: u32 = 1_000_000;
/// The largest memory of an end, in bytes.
const MEMORY_MAX: usize = 4 << 30;
/// Slots are aligned to cache lines.
const ALIGNED_TO: usize = 64;

/// The memory from an offset on.
struct Part<'m>(&'m Memory, usize);

impl MessageMemory for Part<'_> {
    fn read(&self, at: usize, out: &mut [u8]) {
        assert!(self.0.read(self.1 + at, out), "slots are within the memory");
    }

    fn write(&mut self, at: usize, bytes: &[u8]) {
        assert!(self.0.write(self.1 + at, bytes), "slots are within the memory");
    }
}

pub struct MessageBuffers {
    pub memory: Memory,
    /// The length of a message.
    bytes: usize,
    /// The length of the GRH in front of a received message.
    header: usize,
    is_checked: bool,
    /// Whether each message gets its number before it is sent.
    is_numbered: bool,
    /// Whether all messages share the first slot.
    is_shared: bool,
    /// Bytes from one slot to the next.
    stride: usize,
    /// Slots of each queue pair for messages that it sends.
    sends: u64,
    /// Slots of each queue pair for messages that it receives.
    receives: u64,
    /// The number of receive slots that the other end writes with RDMA.
    written: u64,
    /// Receives that are posted to each queue pair.
    posted: u64,
    /// One per queue pair.
    flows: Vec<FlowPayloads>,
}

#[derive(Clone, Copy)]
struct FlowPayloads {
    /// The number of the next message.
    next: u64,
    check: PayloadCheck,
}

impl MessageBuffers {
    pub fn new(plan: &Plan) -> Result<Self, PerfError> {
        let bytes = plan.bytes as usize;
        let is_datagram = plan.transport.qp_type() == QpType::Ud;
        let header = if is_datagram { GRH_BYTES as usize } else { 0 };
        let stride = (bytes + GRH_BYTES as usize).next_multiple_of(ALIGNED_TO);
        let depth = u64::from(plan.verbs.depth(plan.bytes));
        let (sends, receives) = if plan.unchecked { (2, 2) } else { (depth, 2 * depth) };
        let is_shared = plan.unchecked && plan.verbs.op == VerbsOp::Send;
        // In latency measurements of writes, the other end waits until the number is in its memory.
        let is_numbered = match plan.verbs.op {
            VerbsOp::Send => !plan.unchecked,
            VerbsOp::Write => !plan.unchecked || plan.what == What::Lat,
            VerbsOp::Read | VerbsOp::Atomic => false,
        };
        // The first message that an end waits for is 1: zeroed memory may look like message 0.
        let first = u64::from(plan.what == What::Lat && plan.verbs.op == VerbsOp::Write);
        let qps = usize::from(plan.verbs.qps);
        let slots = if is_shared { 1 } else { (sends + receives) as usize * qps };
        let all = (slots * stride).next_multiple_of(4096);
        if all > MEMORY_MAX {
            let why = format!(
                "the messages of each end need {all} bytes, but at most {MEMORY_MAX} are possible: \
                 write a smaller --qp, --tx-depth or --size"
            );
            return Err(PerfError::Plan(why));
        }
        // The process of the other end can access only shared memory.
        let memory = if plan.processes { Memory::shared(all) } else { Memory::private(all) };
        let no_memory =
            |error| PerfError::Plan(format!("no memory for {all} bytes of messages: {error}"));
        let buffers = Self {
            memory: memory.map_err(no_memory)?,
            bytes,
            header,
            is_checked: !plan.unchecked,
            is_numbered,
            is_shared,
            stride,
            sends,
            receives,
            // In latency measurements of writes, two slots alternate. A message of one byte has
            // only the low eight bits of its number. With two slots, these always differ from those
            // of the previous message in the same slot.
            written: if plan.what == What::Lat { 2 } else { receives },
            posted: 2 * depth,
            flows: vec![FlowPayloads { next: first, check: PayloadCheck::default() }; qps],
        };
        if !is_shared {
            for (qp, number) in (0..qps).flat_map(|qp| (0..sends).map(move |number| (qp, number))) {
                let mut message = buffers.part(buffers.send_at(qp, number));
                payload::prepare(&mut message, bytes);
                // The other end checks this number when it has read the message by RDMA.
                payload::write(&mut message, bytes, number);
            }
        }
        Ok(buffers)
    }

    const fn part(&self, at: usize) -> Part<'_> {
        Part(&self.memory, at)
    }

    /// The number of messages with a wrong payload.
    pub fn wrong(&self) -> u64 {
        self.flows.iter().map(|flow| flow.check.wrong).sum()
    }

    fn slot(&self, qp: usize, slot: u64) -> usize {
        let first = qp * (self.sends + self.receives) as usize;
        if self.is_shared { 0 } else { (first + slot as usize) * self.stride }
    }

    /// The offset of a message that this end sends, or that the other end reads; for an atomic, of
    /// the fetched value.
    pub fn send_at(&self, qp: usize, number: u64) -> usize {
        self.slot(qp, number % self.sends)
    }

    /// The offset of a message that this end receives, or fetches with an RDMA read. Slot 0 is the
    /// counter that atomics of the other end change.
    pub fn receive_at(&self, qp: usize, slot: u64) -> usize {
        self.slot(qp, self.sends + slot % self.receives)
    }

    /// The offset of a message that an RDMA write of the other end delivers. Both ends have the
    /// same layout, so this is also the offset at the other end for a write of this end.
    pub fn written_at(&self, qp: usize, number: u64) -> usize {
        self.receive_at(qp, number % self.written)
    }

    /// Posts all receives.
    pub fn post<D: Device + ?Sized>(&self, end: &mut VerbsEnd<D>) -> Result<(), PerfError> {
        let all = (0..self.flows.len()).flat_map(|qp| (0..self.posted).map(move |slot| (qp, slot)));
        all.into_iter()
            .try_for_each(|(qp, slot)| self.receive(end, RecvId { qp, slot: slot as u32 }))
    }

    /// Posts a receive for a slot, initially or after its message was processed.
    pub fn receive<D: Device + ?Sized>(
        &self,
        end: &mut VerbsEnd<D>,
        id: RecvId,
    ) -> Result<(), PerfError> {
        let at = self.receive_at(id.qp, id.slot.into());
        end.recv_at(id, at, (self.header + self.bytes) as u32)
    }

    /// Prepares the next message of a queue pair. Returns its number and its offset.
    pub fn next(&mut self, qp: usize) -> (u64, usize) {
        let number = self.flows[qp].next;
        self.flows[qp].next += 1;
        let at = self.send_at(qp, number);
        if self.is_numbered {
            payload::write(&mut self.part(at), self.bytes, number);
        }
        (number, at)
    }

    /// The offset of the payload that a receive has delivered.
    pub fn received_at(&self, id: RecvId) -> usize {
        self.receive_at(id.qp, id.slot.into()) + self.header
    }

    /// Checks a received message. It must have the given number, or, if `number` is `None`, a later
    /// one than the last message of its queue pair ([`PayloadCheck::check`]).
    pub fn check(&mut self, received: &Completion, number: Option<u64>) {
        if self.is_checked {
            let id = RecvId::of(received);
            let message = Part(&self.memory, self.received_at(id));
            let check = &mut self.flows[id.qp].check;
            match number {
                _ if received.bytes as usize != self.header + self.bytes => check.wrong += 1,
                Some(number) => check.check_is(&message, self.bytes, number),
                None => check.check(&message, self.bytes),
            }
        }
    }

    /// Checks that the message at an offset has this number.
    fn check_at(&mut self, qp: usize, at: usize, number: u64) {
        if self.is_checked {
            self.flows[qp].check.check_is(&Part(&self.memory, at), self.bytes, number);
        }
    }

    /// Whether the last word of an RDMA-written message with this number has arrived.
    pub fn has_arrived(&self, qp: usize, number: u64) -> bool {
        payload::has_end(&self.part(self.written_at(qp, number)), self.bytes, number)
    }

    /// Checks a message whose last word has arrived. Its other parts may become visible later (IBA
    /// 9.5, o9-20), so the check is repeated up to [`LOOKS_MAX`] times.
    pub fn check_arrived(&mut self, qp: usize, number: u64) {
        let at = self.written_at(qp, number);
        let is_here = |_: &u32| payload::is_whole(&Part(&self.memory, at), self.bytes, number);
        if self.is_checked && !(0..LOOKS_MAX).any(|look| is_here(&look)) {
            self.flows[qp].check.wrong += 1;
        }
    }

    /// Checks the value that an RDMA read or an atomic with this number has fetched.
    pub fn check_fetched(&mut self, op: VerbsOp, qp: usize, number: u64) {
        match op {
            VerbsOp::Send | VerbsOp::Write => {}
            VerbsOp::Read => {
                self.check_at(qp, self.receive_at(qp, number), number % self.sends);
            }
            VerbsOp::Atomic => {
                let fetched = self.number_at(self.send_at(qp, number));
                self.flows[qp].check.wrong += u64::from(self.is_checked && fetched != number);
            }
        }
    }

    /// Checks this end's memory after `done` writes or atomics of the other end on a queue pair.
    /// Returns the number of missing writes among those that were not overwritten. Earlier writes
    /// cannot be checked.
    pub fn check_written(&mut self, op: VerbsOp, qp: usize, done: u64) -> u64 {
        match op {
            VerbsOp::Write if self.is_checked => {
                let last = done.saturating_sub(self.written)..done;
                let is_missing = |number: &u64| {
                    let message = self.part(self.written_at(qp, *number));
                    !payload::is_whole(&message, self.bytes, *number)
                };
                last.filter(is_missing).count() as u64
            }
            VerbsOp::Atomic => {
                let counted = self.number_at(self.receive_at(qp, 0));
                self.flows[qp].check.wrong += u64::from(self.is_checked && counted != done);
                0
            }
            _ => 0,
        }
    }

    /// Adds to the number of messages with a wrong payload.
    pub fn add_wrong(&mut self, qp: usize, count: u64) {
        self.flows[qp].check.wrong += count;
    }

    fn number_at(&self, at: usize) -> u64 {
        let mut number = [0; 8];
        self.part(at).read(0, &mut number);
        u64::from_ne_bytes(number)
    }
}
