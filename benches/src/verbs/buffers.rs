//! The messages of an end in its memory: a slot for each that may be under way.
//!
//! With checked payloads ([`crate::payload`]) a message has a slot of its own until it is done, in
//! both directions. Otherwise all share the first, which stays in the caches, as with perftest.

use super::end::{GRH_BYTES, VerbsEnd};
use crate::error::PerfError;
use crate::payload::{self, MessageMemory, PayloadCheck};
use crate::plan::{Plan, VerbsOp, What};
use pollux_mem::Memory;
use pollux_verbs::{Completion, Device, QpType, Sge};

/// Messages that may be under way, and posted receives, at most.
const SENDS_MAX: usize = 256;
const RECEIVES_MAX: usize = 512;
/// Slots of one direction have this space, or that of two messages. More would not stay in caches.
const BYTES_MAX: usize = 1 << 20;
/// Looks at a message whose end is here, until all of it has to be.
const LOOKS_MAX: u32 = 1_000_000;
/// A slot begins on a cache line.
const ALIGNED_TO: usize = 64;

/// Part of the memory, from an offset on.
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
    /// Of a message.
    bytes: usize,
    /// In front of a received message.
    header: usize,
    is_checked: bool,
    /// All messages share the first slot.
    is_shared: bool,
    stride: usize,
    sends: u64,
    receives: u64,
    /// The slots into which the other end writes, of those of receives.
    written: u64,
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
        let slots =
            |most: usize| if plan.unchecked { 2 } else { (BYTES_MAX / stride).clamp(2, most) };
        let (sends, receives) = (slots(SENDS_MAX), slots(RECEIVES_MAX));
        let is_shared = plan.unchecked && plan.op == VerbsOp::Send;
        let all = if is_shared { 1 } else { sends + receives };
        let all = (all * stride).next_multiple_of(4096);
        // Another process can only read shared memory.
        let memory = if plan.processes { Memory::shared(all) } else { Memory::private(all) };
        let no_memory = |error| PerfError::Plan(format!("no memory for messages: {error}"));
        let buffers = Self {
            memory: memory.map_err(no_memory)?,
            bytes,
            header,
            is_checked: !plan.unchecked,
            is_shared,
            stride,
            sends: sends as u64,
            receives: receives as u64,
            // A message that is waited for differs from the one before in the same slot.
            written: if plan.what == What::Lat { 2 } else { receives as u64 },
            next: 0,
            check: PayloadCheck::default(),
        };
        if !is_shared {
            for number in 0..buffers.sends {
                payload::prepare(&mut buffers.part(buffers.send_at(number)), bytes);
                // What the other end reads.
                payload::write(&mut buffers.part(buffers.send_at(number)), bytes, number);
            }
        }
        Ok(buffers)
    }

    const fn part(&self, at: usize) -> Part<'_> {
        Part(&self.memory, at)
    }

    /// Messages that may be under way; they are sent in batches of which one completion tells.
    pub fn window(&self) -> u64 {
        if self.is_checked { self.sends } else { SENDS_MAX as u64 }
    }

    /// Messages with a wrong payload.
    pub const fn wrong(&self) -> u64 {
        self.check.wrong
    }

    /// The offset of the message with a number, to send or to be read.
    pub fn send_at(&self, number: u64) -> usize {
        if self.is_shared { 0 } else { (number % self.sends) as usize * self.stride }
    }

    /// The offset of a message that is received, or that is read.
    pub fn receive_at(&self, slot: u64) -> usize {
        let slot = (self.sends + slot % self.receives) as usize;
        if self.is_shared { 0 } else { slot * self.stride }
    }

    /// The offset of a message that the other end writes.
    pub fn written_at(&self, number: u64) -> usize {
        self.receive_at(number % self.written)
    }

    /// Posts all receives.
    pub fn post<D: Device + ?Sized>(&self, end: &mut VerbsEnd<D>) -> Result<(), PerfError> {
        let receives = if self.is_shared { RECEIVES_MAX as u64 } else { self.receives };
        (0..receives).try_for_each(|slot| self.receive(end, slot))
    }

    /// Posts a receive, for a slot whose message is done.
    pub fn receive<D: Device + ?Sized>(
        &self,
        end: &mut VerbsEnd<D>,
        slot: u64,
    ) -> Result<(), PerfError> {
        end.recv_at(slot, self.receive_at(slot), (self.header + self.bytes) as u32)
    }

    /// Writes the message with a number; returns its offset.
    pub fn write(&mut self, number: u64) -> usize {
        let at = self.send_at(number);
        payload::write(&mut self.part(at), self.bytes, number);
        at
    }

    /// Writes the next message for a request that the caller posts.
    pub fn next_sge<D: Device + ?Sized>(&mut self, end: &VerbsEnd<D>) -> Sge {
        let number = self.next;
        self.next += 1;
        let at = if self.is_checked { self.write(number) } else { 0 };
        end.sge(at, self.bytes as u32)
    }

    /// Sends the next message; returns its number.
    pub fn send<D: Device + ?Sized>(&mut self, end: &mut VerbsEnd<D>) -> Result<u64, PerfError> {
        let number = self.next;
        self.next += 1;
        match self.is_checked {
            true => {
                let at = self.write(number);
                end.send_from(&self.memory, at, self.bytes as u32)?;
            }
            false => end.send(self.bytes as u32)?,
        }
        Ok(number)
    }

    /// Sends a message that was received.
    pub fn send_back<D: Device + ?Sized>(
        &self,
        end: &mut VerbsEnd<D>,
        received: &Completion,
    ) -> Result<(), PerfError> {
        match self.is_checked {
            true => {
                let at = self.receive_at(received.id) + self.header;
                end.send_from(&self.memory, at, self.bytes as u32)
            }
            false => end.send(self.bytes as u32),
        }
    }

    /// Checks a message: the next one, or that with a number.
    pub fn check(&mut self, received: &Completion, number: Option<u64>) {
        if self.is_checked {
            let message = Part(&self.memory, self.receive_at(received.id) + self.header);
            match number {
                _ if received.bytes as usize != self.header + self.bytes => self.check.wrong += 1,
                Some(number) => self.check.check_is(&message, self.bytes, number),
                None => self.check.check(&message, self.bytes),
            }
        }
    }

    /// Checks the message with a number at an offset.
    fn check_at(&mut self, at: usize, number: u64) {
        if self.is_checked {
            self.check.check_is(&Part(&self.memory, at), self.bytes, number);
        }
    }

    /// Whether the end of the message with a number is here.
    pub fn has_arrived(&self, number: u64) -> bool {
        payload::has_end(&self.part(self.written_at(number)), self.bytes, number)
    }

    /// Checks a message whose end has arrived. Other parts of it may become visible later (IBA
    /// 9.5, o9-20), so there is a time for that.
    pub fn check_arrived(&mut self, number: u64) {
        let at = self.written_at(number);
        let is_here = |_: &u32| payload::is_whole(&Part(&self.memory, at), self.bytes, number);
        if self.is_checked && !(0..LOOKS_MAX).any(|look| is_here(&look)) {
            self.check.wrong += 1;
        }
    }

    /// Checks what a read or an atomic has fetched.
    pub fn check_fetched(&mut self, op: VerbsOp, number: u64) {
        match op {
            VerbsOp::Send | VerbsOp::Write => {}
            VerbsOp::Read => self.check_at(self.receive_at(number), number % self.sends),
            VerbsOp::Atomic => {
                let fetched = self.number_at(self.send_at(number));
                self.check.wrong += u64::from(self.is_checked && fetched != number);
            }
        }
    }

    /// Checks what so many writes or atomics have left here.
    pub fn check_written(&mut self, op: VerbsOp, done: u64) {
        match op {
            VerbsOp::Send | VerbsOp::Read => {}
            VerbsOp::Write => {
                for number in done.saturating_sub(self.written)..done {
                    self.check_at(self.written_at(number), number);
                }
            }
            VerbsOp::Atomic => {
                let counted = self.number_at(self.receive_at(0));
                self.check.wrong += u64::from(self.is_checked && counted != done);
            }
        }
    }

    fn number_at(&self, at: usize) -> u64 {
        let mut number = [0; 8];
        self.part(at).read(0, &mut number);
        u64::from_ne_bytes(number)
    }
}
