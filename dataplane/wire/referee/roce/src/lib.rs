//! A link to an Ethernet, on which adapters of other vendors use RoCEv2 (IBA A17).
//!
//! The [`station`] is a host on the Ethernet, without I/O; [`neighbors`] is its neighbor table. An
//! [`EthernetWire`] transfers frames; [`stream`] implements one, and [`middle`] has wires that wrap
//! another wire: faults by rule, and captures. [`packet`] is the format. A [`RoceLink`] connects a
//! station and a wire.
//!
//! ```text
//! adapter -- RoceLink -- station
//!               |
//!             Faulty -- Tapped -- StreamWire ~~~ the Ethernet
//! ```
#![forbid(unsafe_code)]

pub mod middle;
pub mod neighbors;
pub mod packet;
pub mod station;
pub mod stream;

use packet::IP_LEN_MAX;
use pollux_fabric::Adapter;
use pollux_fabric::LeaseTable;
use pollux_fabric::Time;
use pollux_fabric::link::threads::Clock;
use pollux_fabric::link::{FrameSink, Link};
use pollux_wire::ethernet::EthernetHeader;
use station::Station;
use std::sync::Arc;

/// Length of the longest frame in bytes.
pub const FRAME_BYTES_MAX: usize = EthernetHeader::LEN + IP_LEN_MAX;

/// Moves Ethernet frames.
pub trait EthernetWire {
    fn has_room(&mut self) -> bool;
    /// Sends a frame, or drops it if the wire has no space.
    fn send(&mut self, now: Time, frame: &[u8]);
    /// Replaces the content of `frame` with the next received frame; returns whether there was one.
    fn receive(&mut self, now: Time, frame: &mut Vec<u8>) -> bool;
}

/// A link between an adapter's port and an Ethernet.
pub struct RoceLink<W> {
    station: Station,
    wire: W,
    clock: Clock,
    frame: Vec<u8>,
    packet: Vec<u8>,
}

impl<W: EthernetWire> RoceLink<W> {
    pub fn new(station: Station, wire: W, clock: Clock) -> Self {
        let (frame, packet) = (Vec::new(), Vec::new());
        Self { station, wire, clock, frame, packet }
    }

    pub fn wire_mut(&mut self) -> &mut W {
        &mut self.wire
    }

    pub fn station(&self) -> &Station {
        &self.station
    }

    fn flush(&mut self, now: Time) {
        while self.wire.has_room()
            && let Some(frame) = self.station.poll_transmit()
        {
            self.wire.send(now, &frame);
        }
    }
}

impl<W: EthernetWire> FrameSink for RoceLink<W> {
    fn send_packet(&mut self, bytes: &[u8]) -> bool {
        let now = self.now();
        self.flush(now);
        if self.station.is_full() || !self.wire.has_room() {
            return false;
        }
        self.station.handle_packet(now, bytes);
        self.flush(now);
        true
    }

    fn send_message(&mut self, _: &[u64], _: usize, _: impl FnMut(&mut [u8])) -> bool {
        unreachable!("a link that wants packets was given a message")
    }
}

impl<W: EthernetWire> Link for RoceLink<W> {
    fn now(&self) -> Time {
        (self.clock)()
    }

    fn is_virtual(&self) -> bool {
        false
    }

    /// Always: the Ethernet carries only packets, no messages.
    fn wants_packets(&self) -> bool {
        true
    }

    /// Does nothing: memory is not leased to other machines.
    fn attach(&mut self, _: &Arc<LeaseTable>) {}

    fn receive(&mut self, now: Time, adapter: &mut Adapter) -> bool {
        self.station.handle_timeout(now);
        let came = self.wire.receive(now, &mut self.frame);
        if came && self.station.handle_frame(now, &self.frame, &mut self.packet) {
            adapter.handle_packet(now, &self.packet);
        }
        self.flush(now);
        came
    }

    fn set_deadline(&mut self, _: Option<Time>) {}

    fn idle(&mut self, _: Time) {
        std::thread::yield_now();
    }
}
