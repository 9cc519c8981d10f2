//! The channel between the control plane of a plain interface and one of its ports: a ring of
//! packets each way, and what each end publishes.
//!
//! ```text
//!   control: PlainLink  --frames, state--------------------------> port
//!                       <--packets for us or for errors, counters--
//! ```
//!
//! The rings carry only packets. A packet that finds no space is dropped and counted, and nothing
//! waits. Captures have a ring of their own, since packets could fill the other one. State that
//! must not be lost is published, and the reader sees the latest version.

use super::counters::PlainCounters;
use crate::kernel::KernelError;
use pollux_control::beyond::TransitHop;
use pollux_control::plain::{PlainFrame, PlainState};
use pollux_dataplane::capture::{CaptureReader, CaptureTap, CaptureTerms, TAPS_MAX, capture};
use pollux_dataplane::port::TransitError;
use pollux_dataplane::verdict::Destinations;
use pollux_mem::mpsc::{self, Receiver, Sender};
use pollux_mem::snapshot::{Publisher, Snapshot};
use std::net::IpAddr;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock};

const FRAMES_MAX: usize = 1024;
const EVENTS_MAX: usize = 1024;

#[derive(Debug)]
pub(super) enum PlainEvent {
    /// A packet for this node, or of a protocol of the link.
    Packet(Vec<u8>),
    /// A packet in transit that cannot be forwarded.
    Rejected(Vec<u8>, TransitError),
    /// A packet in transit that is longer than the MTU.
    TooBig(Vec<u8>, TransitHop),
    /// A packet in transit to a next hop whose address is not known.
    Unresolved(Vec<u8>, IpAddr),
    Arp(Vec<u8>),
    Use(IpAddr),
}

/// The state of an interface that its ports use.
#[derive(Debug, Default)]
pub(super) struct PortState {
    pub(super) own: Destinations,
    pub(super) mtu: usize,
}

impl PortState {
    pub(super) fn of(state: &PlainState) -> Self {
        let mut own = Destinations::new();
        state.own.iter().for_each(|ip| own.insert(*ip));
        Self { own, mtu: state.mtu as usize }
    }
}

#[derive(Debug, Default)]
struct Shared {
    /// The port is to end, or its interface has been dropped.
    is_over: AtomicBool,
    /// The port has been dropped.
    is_gone: AtomicBool,
    failure: OnceLock<KernelError>,
}

pub(super) struct ControlSide {
    frames: Sender<PlainFrame>,
    taps: Sender<CaptureTap>,
    events: Receiver<PlainEvent>,
    counters: Snapshot<PlainCounters>,
    /// Whether a command was sent since the last [`ControlSide::take_notified`].
    is_notified: bool,
    pub(super) frames_dropped: u64,
    shared: Arc<Shared>,
}

pub(super) struct PortSide {
    frames: Receiver<PlainFrame>,
    taps: Receiver<CaptureTap>,
    events: Sender<PlainEvent>,
    state: Snapshot<PortState>,
    counters: Publisher<PlainCounters>,
    /// Whether events were sent since the last [`PortSide::take_has_events`].
    has_events: bool,
    shared: Arc<Shared>,
}

pub(super) fn channel(state: Snapshot<PortState>) -> (ControlSide, PortSide) {
    let (frames, frame_receiver) = mpsc::ring(FRAMES_MAX).expect("a power of two");
    let (event_sender, events) = mpsc::ring(EVENTS_MAX).expect("a power of two");
    let (taps, tap_receiver) = mpsc::ring(TAPS_MAX).expect("a power of two");
    let shared = Arc::new(Shared::default());
    let counters = Publisher::new(PlainCounters::default());
    let control = ControlSide {
        frames,
        taps,
        events,
        counters: counters.reader(),
        is_notified: false,
        frames_dropped: 0,
        shared: Arc::clone(&shared),
    };
    let port = PortSide {
        frames: frame_receiver,
        taps: tap_receiver,
        events: event_sender,
        state,
        counters,
        has_events: false,
        shared,
    };
    (control, port)
}

impl ControlSide {
    /// Sends a packet, or counts it as dropped.
    pub(super) fn send(&mut self, frame: PlainFrame) {
        self.frames_dropped += u64::from(self.frames.push(frame).is_err());
        self.is_notified = true;
    }

    /// Begins a capture. If there are too many, its reader gets no packets.
    pub(super) fn capture(&mut self, terms: CaptureTerms) -> CaptureReader {
        let (tap, reader) = capture(terms);
        let _ = self.taps.push(tap);
        self.is_notified = true;
        reader
    }

    pub(super) fn poll(&mut self) -> Option<PlainEvent> {
        self.events.pop()
    }

    /// The counters of the port, as last published by it.
    pub(super) fn counters(&self) -> PlainCounters {
        self.counters.clone().refresh().clone()
    }

    /// Whether a command was sent since the last call. The port may sleep, so the caller wakes it.
    pub(super) const fn take_notified(&mut self) -> bool {
        std::mem::replace(&mut self.is_notified, false)
    }

    pub(super) fn end(&mut self) {
        self.shared.is_over.store(true, Ordering::Release);
        self.is_notified = true;
    }

    pub(super) fn is_gone(&self) -> bool {
        self.shared.is_gone.load(Ordering::Acquire)
    }

    /// The reason for which the port has ended, if it has failed.
    pub(super) fn failure(&self) -> Option<&KernelError> {
        self.shared.failure.get()
    }
}

impl Drop for ControlSide {
    fn drop(&mut self) {
        self.end();
    }
}

impl PortSide {
    pub(super) fn poll(&mut self) -> Option<PlainFrame> {
        self.frames.pop()
    }

    pub(super) fn poll_tap(&mut self) -> Option<CaptureTap> {
        self.taps.pop()
    }

    /// Sends a packet to control; `false` if there is no space for it.
    pub(super) fn send(&mut self, event: PlainEvent) -> bool {
        let is_sent = self.events.push(event).is_ok();
        self.has_events |= is_sent;
        is_sent
    }

    pub(super) fn state(&mut self) -> &PortState {
        self.state.refresh()
    }

    /// Publishes counters if they have changed.
    pub(super) fn publish(&mut self, counters: &PlainCounters) {
        if *self.counters.current() != *counters {
            self.counters.publish(counters.clone());
        }
    }

    /// Whether events were sent since the last call. Control may sleep, so the caller wakes it.
    pub(super) const fn take_has_events(&mut self) -> bool {
        std::mem::replace(&mut self.has_events, false)
    }

    pub(super) fn is_over(&self) -> bool {
        self.shared.is_over.load(Ordering::Acquire)
    }

    /// Publishes the reason for which the port ends.
    pub(super) fn fail(&mut self, why: &KernelError) {
        let _ = self.shared.failure.set(why.clone());
        self.has_events = true;
    }
}

impl Drop for PortSide {
    fn drop(&mut self) {
        self.shared.is_gone.store(true, Ordering::Release);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use pollux_control::plain::FrameTo;
    use std::net::Ipv4Addr;

    fn frame(first: u8) -> PlainFrame {
        PlainFrame { packet: vec![first], to: FrameTo::NextHop(Ipv4Addr::UNSPECIFIED.into()) }
    }

    #[test]
    fn packets_pass_in_order_and_those_without_space_are_counted() {
        let state = Publisher::new(PortState::default());
        let (mut control, mut port) = channel(state.reader());
        (0..FRAMES_MAX + 3).for_each(|nth| control.send(frame(nth as u8)));
        assert_eq!(control.frames_dropped, 3);
        assert!(control.take_notified() && !control.take_notified());
        assert_eq!(port.poll(), Some(frame(0)));
        let sent = (0..EVENTS_MAX + 3).filter(|_| port.send(PlainEvent::Packet(vec![7]))).count();
        assert_eq!(sent, EVENTS_MAX);
        assert!(port.take_has_events() && !port.take_has_events());
        assert!(matches!(control.poll(), Some(PlainEvent::Packet(packet)) if packet == [7]));
    }

    #[test]
    fn each_end_sees_that_the_other_was_dropped() {
        let state = Publisher::new(PortState::default());
        let (mut control, mut port) = channel(state.reader());
        port.fail(&KernelError::NoAnswer { operation: "be read" });
        assert!(control.failure().is_some() && !control.is_gone() && !port.is_over());
        control.end();
        assert!(port.is_over());
        drop(port);
        assert!(control.is_gone());
    }
}
