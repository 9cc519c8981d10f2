//! The messages of an end in its memory: a slot for each that may be under way.
//!
//! With checked payloads ([`crate::payload`]) a message has a slot of its own until it is done, in
//! both directions. Otherwise all share the first, which stays in the caches, as with perftest.

use super::end::{GRH_BYTES, VerbsEnd};
use crate::error::PerfError;
use crate::payload::{self, MessageMemory, PayloadCheck};
use crate::plan::Plan;
use pollux_mem::Memory;
use pollux_verbs::{Completion, Device, QpType, Sge};

/// Messages that may be under way, and posted receives, at most.
const SENDS_MAX: usize = 256;
const RECEIVES_MAX: usize = 512;
/// Slots of one direction have this space, or that of two messages. More would not stay in caches.
const BYTES_MAX: usize = 1 << 20;
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
    stride: usize,
    sends: usize,
    receives: usize,
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
        let slots = |most: usize| (BYTES_MAX / stride).clamp(2, most);
        let (sends, receives) = (slots(SENDS_MAX), slots(RECEIVES_MAX));
        let all = if plan.unchecked { 1 } else { sends + receives };
        let all = (all * stride).next_multiple_of(4096);
        // Another process can only read shared memory.
        let memory = if plan.processes { Memory::shared(all) } else { Memory::private(all) };
        let no_memory = |error| PerfError::Plan(format!("no memory for messages: {error}"));
        let memory = memory.map_err(no_memory)?;
        let (is_checked, check) = (!plan.unchecked, PayloadCheck::default());
        if is_checked {
            (0..sends).for_each(|slot| payload::prepare(&mut Part(&memory, slot * stride), bytes));
        }
        Ok(Self { memory, bytes, header, is_checked, stride, sends, receives, next: 0, check })
    }

    /// Messages that may be under way; they are sent in batches of which one completion tells.
    pub fn window(&self) -> u64 {
        if self.is_checked { self.sends as u64 } else { SENDS_MAX as u64 }
    }

    /// Messages with a wrong payload.
    pub const fn wrong(&self) -> u64 {
        self.check.wrong
    }

    fn receive_at(&self, slot: u64) -> usize {
        if self.is_checked { (self.sends + slot as usize) * self.stride } else { 0 }
    }

    /// Posts all receives.
    pub fn post<D: Device + ?Sized>(&self, end: &mut VerbsEnd<D>) -> Result<(), PerfError> {
        let receives = if self.is_checked { self.receives } else { RECEIVES_MAX };
        (0..receives as u64).try_for_each(|slot| self.receive(end, slot))
    }

    /// Posts a receive, for a slot whose message is done.
    pub fn receive<D: Device + ?Sized>(
        &self,
        end: &mut VerbsEnd<D>,
        slot: u64,
    ) -> Result<(), PerfError> {
        end.recv_at(slot, self.receive_at(slot), (self.header + self.bytes) as u32)
    }

    /// Writes the next message; returns its offset and its number.
    fn write(&mut self) -> (usize, u64) {
        let number = self.next;
        let at = (number % self.sends as u64) as usize * self.stride;
        payload::write(&mut Part(&self.memory, at), self.bytes, number);
        self.next += 1;
        (at, number)
    }

    /// Writes the next message for a request that the caller posts.
    pub fn next_sge<D: Device + ?Sized>(&mut self, end: &VerbsEnd<D>) -> Sge {
        let at = if self.is_checked { self.write().0 } else { 0 };
        end.sge(at, self.bytes as u32)
    }

    /// Sends the next message; returns its number.
    pub fn send<D: Device + ?Sized>(&mut self, end: &mut VerbsEnd<D>) -> Result<u64, PerfError> {
        if !self.is_checked {
            return end.send(self.bytes as u32).map(|()| 0);
        }
        let (at, number) = self.write();
        end.send_from(&self.memory, at, self.bytes as u32)?;
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
            let at = self.receive_at(received.id) + self.header;
            let message = Part(&self.memory, at);
            match number {
                _ if received.bytes as usize != self.header + self.bytes => self.check.wrong += 1,
                Some(number) => self.check.check_is(&message, self.bytes, number),
                None => self.check.check(&message, self.bytes),
            }
        }
    }
}
