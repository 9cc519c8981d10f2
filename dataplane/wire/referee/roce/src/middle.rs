//! Wires that wrap another wire: faults by rule and seed, and captures.

use super::EthernetWire;
use super::packet::RocePacket;
use pollux_fabric::Time;
use pollux_fabric::link::fault::{Faults, SeededRng};
use pollux_wire::ethernet::EthernetHeader;
use std::collections::BTreeMap;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FrameDirection {
    Out,
    In,
}

/// Delayed frames in each direction, at most; further frames are not delayed.
const LATE_FRAMES_MAX: usize = 4096;

/// A wire with faults, by a separate rule for each direction. Rules apply only to RoCEv2 packets,
/// not to ARP and neighbor discovery, which would retry only after seconds.
pub struct Faulty<W> {
    inner: W,
    rng: SeededRng,
    outgoing: Direction,
    incoming: Direction,
}

#[derive(Default)]
struct Direction {
    faults: Faults,
    late: BTreeMap<(Time, u64), Vec<u8>>,
    kept: u64,
}

impl<W: EthernetWire> Faulty<W> {
    /// A wire without faults.
    pub fn new(inner: W, seed: u64) -> Self {
        let (outgoing, incoming) = Default::default();
        Self { inner, rng: SeededRng::new(seed), outgoing, incoming }
    }

    /// Changes the rule of one direction.
    pub fn set_faults(&mut self, way: FrameDirection, faults: Faults) {
        match way {
            FrameDirection::Out => self.outgoing.faults = faults,
            FrameDirection::In => self.incoming.faults = faults,
        }
    }

    pub fn inner_mut(&mut self) -> &mut W {
        &mut self.inner
    }
}

impl Direction {
    /// Whether the rule of this direction applies to the frame.
    fn strikes(&self, frame: &[u8]) -> bool {
        !self.faults.are_none()
            && EthernetHeader::read(frame).is_ok_and(|(header, bytes)| {
                matches!(RocePacket::parse(header.ether_type, bytes), Ok(Some(_)))
            })
    }

    /// Applies the rule to a frame. Returns the copies to forward now, and keeps delayed ones.
    fn strike(&mut self, rng: &mut SeededRng, now: Time, frame: &[u8]) -> Vec<Vec<u8>> {
        let fate = self.faults.decide(rng, frame.len());
        let mut at_once = Vec::new();
        for delay in fate.delays {
            let mut copy = frame.to_vec();
            if let Some(bit) = fate.flipped_bit {
                copy[bit / 8] ^= 0x80 >> (bit % 8);
            }
            if delay.is_zero() || self.late.len() >= LATE_FRAMES_MAX {
                at_once.push(copy);
            } else {
                self.kept += 1;
                self.late.insert((now + delay, self.kept), copy);
            }
        }
        at_once
    }

    /// Removes a delayed frame that is due at `now`.
    fn due(&mut self, now: Time) -> Option<Vec<u8>> {
        let entry = self.late.first_entry().filter(|entry| entry.key().0 <= now)?;
        Some(entry.remove())
    }
}

impl<W: EthernetWire> EthernetWire for Faulty<W> {
    fn has_room(&mut self) -> bool {
        self.inner.has_room()
    }

    fn send(&mut self, now: Time, frame: &[u8]) {
        if !self.outgoing.strikes(frame) {
            return self.inner.send(now, frame);
        }
        for copy in self.outgoing.strike(&mut self.rng, now, frame) {
            self.inner.send(now, &copy);
        }
    }

    fn receive(&mut self, now: Time, frame: &mut Vec<u8>) -> bool {
        while let Some(late) = self.outgoing.due(now) {
            self.inner.send(now, &late);
        }
        loop {
            if let Some(late) = self.incoming.due(now) {
                *frame = late;
                return true;
            }
            if !self.inner.receive(now, frame) {
                return false;
            }
            if !self.incoming.strikes(frame) {
                return true;
            }
            for copy in self.incoming.strike(&mut self.rng, now, frame) {
                self.incoming.kept += 1;
                self.incoming.late.insert((now, self.incoming.kept), copy);
            }
        }
    }
}

/// A function that is called with every frame.
pub type FrameTap = Box<dyn FnMut(Time, FrameDirection, &[u8])>;

/// A wire that shows every frame to a tap.
pub struct Tapped<W> {
    inner: W,
    tap: FrameTap,
}

impl<W> Tapped<W> {
    pub fn new(inner: W, tap: FrameTap) -> Self {
        Self { inner, tap }
    }

    pub fn inner_mut(&mut self) -> &mut W {
        &mut self.inner
    }
}

impl<W: EthernetWire> EthernetWire for Tapped<W> {
    fn has_room(&mut self) -> bool {
        self.inner.has_room()
    }

    fn send(&mut self, now: Time, frame: &[u8]) {
        (self.tap)(now, FrameDirection::Out, frame);
        self.inner.send(now, frame);
    }

    fn receive(&mut self, now: Time, frame: &mut Vec<u8>) -> bool {
        let came = self.inner.receive(now, frame);
        if came {
            (self.tap)(now, FrameDirection::In, frame);
        }
        came
    }
}
