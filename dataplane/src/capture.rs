//! Captures: copies of packets that an interface receives, sends or drops, on their way from a
//! worker to control.
//!
//! ```text
//!   worker: batch --> CaptureTap: filter, copy --ring--> CaptureReader --> control, the command
//!                                  \-- full: counted as missed
//! ```
//!
//! A capture must not slow packets that nobody captures: an interface without a tap tests that once
//! for each batch. A tap never waits for its reader. Its ring is bounded, and what does not fit is
//! counted, so that a capture says how much it lacks.
//!
//! Packets begin with their IP header. Packets of ARP are no part of a capture.

use crate::filter::PacketFilter;
use crate::reason::ForwardDrop;
use pollux_mem::byte_ring::{Reader, Writer, ring};
use pollux_verbs::time::Time;
use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

/// Bytes of a ring. Its pages take no memory until they are used.
pub const CAPTURE_RING_BYTES: usize = 4 << 20;
/// The longest part of a packet that is copied.
pub const SNAP_BYTES_MAX: usize = 65_535;
/// Bytes before each packet in the ring: time, length, length of the copy, event.
const RECORD_BYTES: usize = 8 + 4 + 4 + 8;
/// Packets of a host that does not forward, which have no [`ForwardDrop`].
const TRANSIT: &str = "transit";

/// What happened to a captured packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CaptureEvent {
    /// It came by the link, for whom it may be.
    Received,
    /// The adapter took it.
    Sent,
    /// It was dropped, for a reason among [`capture_reasons`].
    Dropped(&'static str),
}

/// Reasons of drops that can be captured.
pub fn capture_reasons() -> impl Iterator<Item = &'static str> {
    ForwardDrop::ALL.iter().map(|why| why.name()).chain([TRANSIT])
}

/// Which packets a capture takes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CaptureTerms {
    /// Those that pass this filter.
    pub filter: PacketFilter,
    /// At most so many bytes of each.
    pub snap_bytes: usize,
    /// Only those that are dropped for this reason; without one, those that are received and sent.
    pub reason: Option<&'static str>,
}

/// State that both ends share.
#[derive(Debug, Default)]
struct Shared {
    missed: AtomicU64,
    is_over: AtomicBool,
}

/// Captures at one port, at most.
pub const TAPS_MAX: usize = 8;

/// The captures at a port, and the time of the packets that they get.
#[derive(Debug)]
pub struct CaptureTaps {
    all: Vec<CaptureTap>,
    now: Time,
}

/// The end of a worker.
pub struct CaptureTap {
    terms: CaptureTerms,
    writer: Writer,
    /// Packets that are being sent: where each lies, and its part of `copies`.
    offered: Vec<(usize, CopiedPacket)>,
    copies: Vec<u8>,
    shared: Arc<Shared>,
}

/// A packet in a buffer of copies.
#[derive(Clone, Copy, Debug)]
struct CopiedPacket {
    bytes: usize,
    begin: usize,
    kept: usize,
}

/// The end of control. The tap ends when it is dropped.
pub struct CaptureReader {
    reader: Reader,
    shared: Arc<Shared>,
}

/// A packet of the ring, as it was or cut short.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CapturedBytes {
    /// When it was.
    pub time: Time,
    /// What happened to it.
    pub event: CaptureEvent,
    /// Its length.
    pub bytes: usize,
    /// Its beginning.
    pub packet: Vec<u8>,
}

/// Both ends of a capture at one worker.
pub fn capture(terms: CaptureTerms) -> (CaptureTap, CaptureReader) {
    let (writer, reader) = ring(CAPTURE_RING_BYTES).expect("a power of two");
    let shared = Arc::new(Shared::default());
    let tap = CaptureTap {
        terms,
        writer,
        offered: Vec::new(),
        copies: Vec::new(),
        shared: Arc::clone(&shared),
    };
    (tap, CaptureReader { reader, shared })
}

impl fmt::Debug for CaptureTap {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("CaptureTap").field("terms", &self.terms).finish_non_exhaustive()
    }
}

impl CaptureTaps {
    /// None.
    pub fn new(now: Time) -> Self {
        Self { all: Vec::new(), now }
    }

    /// Adds a tap. Beyond the limit it is dropped, and its reader gets nothing.
    pub fn add(&mut self, tap: CaptureTap) {
        self.drop_over();
        if self.all.len() < TAPS_MAX {
            self.all.push(tap);
        }
    }

    /// Drops the taps whose readers are gone.
    pub fn drop_over(&mut self) {
        self.all.retain(|tap| !tap.is_over());
    }

    /// Whether there is none, so that packets need not be shown.
    #[inline]
    pub const fn is_empty(&self) -> bool {
        self.all.is_empty()
    }

    /// The time of the packets that follow.
    #[inline]
    pub const fn set_time(&mut self, now: Time) {
        self.now = now;
    }

    /// A packet was received.
    #[cold]
    pub fn receive(&mut self, packet: &[u8]) {
        self.all.iter_mut().for_each(|tap| tap.receive(self.now, packet));
    }

    /// A packet was sent.
    #[cold]
    pub fn send(&mut self, packet: &[u8]) {
        self.all.iter_mut().for_each(|tap| tap.send(self.now, packet));
    }

    /// A packet was dropped.
    #[cold]
    pub fn drop_packet(&mut self, packet: &[u8], reason: &'static str) {
        self.all.iter_mut().for_each(|tap| tap.drop_packet(self.now, packet, reason));
    }

    /// A packet was dropped because the node does not forward.
    #[cold]
    pub fn drop_transit(&mut self, packet: &[u8]) {
        self.drop_packet(packet, TRANSIT);
    }

    /// A packet is about to be sent. Whether it was is known after the batch, when its buffer is
    /// the adapter's.
    #[cold]
    pub fn offer(&mut self, packet: &[u8]) {
        self.all.iter_mut().for_each(|tap| tap.offer(packet));
    }

    /// The offered packets were sent, but for those at these addresses.
    #[cold]
    pub fn settle(&mut self, is_refused: impl Fn(usize) -> bool) {
        self.all.iter_mut().for_each(|tap| tap.settle(self.now, &is_refused));
    }
}

impl CaptureTap {
    /// Whether its reader is gone.
    pub fn is_over(&self) -> bool {
        self.shared.is_over.load(Ordering::Relaxed)
    }

    /// A packet was received.
    pub fn receive(&mut self, now: Time, packet: &[u8]) {
        if self.terms.reason.is_none() {
            self.take(now, CaptureEvent::Received, packet);
        }
    }

    /// A packet was dropped.
    pub fn drop_packet(&mut self, now: Time, packet: &[u8], reason: &'static str) {
        if self.terms.reason == Some(reason) {
            self.take(now, CaptureEvent::Dropped(reason), packet);
        }
    }

    /// A packet was sent.
    pub fn send(&mut self, now: Time, packet: &[u8]) {
        if self.terms.reason.is_none() {
            self.take(now, CaptureEvent::Sent, packet);
        }
    }

    fn take(&mut self, now: Time, event: CaptureEvent, packet: &[u8]) {
        if self.terms.filter.matches(packet, packet.len()) {
            let kept = packet.len().min(self.terms.snap_bytes);
            let copy = &packet[..kept];
            write(&mut self.writer, &self.shared, now, event, packet.len(), copy);
        }
    }

    /// A packet is about to be sent. Whether it was is known after the batch, when its buffer is
    /// the adapter's.
    pub fn offer(&mut self, packet: &[u8]) {
        let Self { terms, offered, copies, .. } = self;
        if terms.reason.is_none() && terms.filter.matches(packet, packet.len()) {
            let (begin, kept) = (copies.len(), packet.len().min(terms.snap_bytes));
            copies.extend_from_slice(&packet[..kept]);
            let copied = CopiedPacket { bytes: packet.len(), begin, kept };
            offered.push((packet.as_ptr().addr(), copied));
        }
    }

    /// The offered packets were sent, but for those at these addresses.
    pub fn settle(&mut self, now: Time, is_refused: impl Fn(usize) -> bool) {
        let Self { writer, offered, copies, shared, .. } = self;
        for (at, CopiedPacket { bytes, begin, kept }) in offered.drain(..) {
            if !is_refused(at) {
                let copy = &copies[begin..begin + kept];
                write(writer, shared, now, CaptureEvent::Sent, bytes, copy);
            }
        }
        copies.clear();
    }
}

/// Writes a record, or counts it as missed.
fn write(
    writer: &mut Writer,
    shared: &Shared,
    now: Time,
    event: CaptureEvent,
    bytes: usize,
    copy: &[u8],
) {
    let number: u64 = match event {
        CaptureEvent::Received => 0,
        CaptureEvent::Sent => 1,
        CaptureEvent::Dropped(reason) => {
            2 + capture_reasons().position(|one| one == reason).unwrap_or_default() as u64
        }
    };
    let nanos = now.since_start().as_nanos() as u64;
    let lengths = [bytes as u32, copy.len() as u32].map(u32::to_ne_bytes);
    let parts = [&nanos.to_ne_bytes()[..], &lengths[0], &lengths[1], &number.to_ne_bytes(), copy];
    if !writer.write_whole(&parts) {
        shared.missed.fetch_add(1, Ordering::Relaxed);
    }
}

impl CaptureReader {
    /// The next packet.
    pub fn read(&mut self) -> Option<CapturedBytes> {
        let mut header = [0; RECORD_BYTES];
        // Records become visible whole.
        if self.reader.read(&mut header) < RECORD_BYTES {
            return None;
        }
        let word = |at: usize| header[at..at + 4].try_into().map_or(0, u32::from_ne_bytes);
        let long = |at: usize| header[at..at + 8].try_into().map_or(0, u64::from_ne_bytes);
        let mut packet = vec![0; word(12) as usize];
        self.reader.read(&mut packet);
        let event = match long(16) {
            0 => CaptureEvent::Received,
            1 => CaptureEvent::Sent,
            number => CaptureEvent::Dropped(capture_reasons().nth(number as usize - 2)?),
        };
        let time = Time::START + Duration::from_nanos(long(0));
        Some(CapturedBytes { time, event, bytes: word(8) as usize, packet })
    }

    /// Packets that found no space in the ring.
    pub fn missed(&self) -> u64 {
        self.shared.missed.load(Ordering::Relaxed)
    }
}

impl Drop for CaptureReader {
    fn drop(&mut self) {
        self.shared.is_over.store(true, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn terms(reason: Option<&'static str>) -> CaptureTerms {
        let filter = PacketFilter::parse("ip").expect("a filter");
        CaptureTerms { filter, snap_bytes: 100, reason }
    }

    fn packet(len: usize) -> Vec<u8> {
        let mut packet = vec![7; len];
        packet[0] = 0x45;
        packet
    }

    #[test]
    fn packets_are_captured_as_they_were_or_cut_short() {
        let (mut tap, mut reader) = capture(terms(None));
        let now = Time::START + Duration::from_micros(3);
        tap.receive(now, &packet(60));
        tap.receive(now, &[0x60; 60]);
        let [sent, refused] = [packet(200), packet(70)];
        tap.offer(&sent);
        tap.offer(&refused);
        tap.settle(now, |at| at == refused.as_ptr().addr());
        tap.drop_packet(now, &packet(60), "martian_source");
        let first = reader.read().expect("the first");
        assert_eq!((first.time, first.event, first.bytes), (now, CaptureEvent::Received, 60));
        assert_eq!(first.packet, packet(60));
        let second = reader.read().expect("the second");
        assert_eq!((second.event, second.bytes), (CaptureEvent::Sent, 200));
        assert_eq!(second.packet, packet(200)[..100]);
        assert_eq!((reader.read(), reader.missed()), (None, 0));
        drop(reader);
        assert!(tap.is_over());
    }

    #[test]
    fn drops_are_captured_for_their_reason_only() {
        for reason in capture_reasons() {
            let (mut tap, mut reader) = capture(terms(Some(reason)));
            capture_reasons().for_each(|one| tap.drop_packet(Time::START, &packet(60), one));
            tap.receive(Time::START, &packet(60));
            let events: Vec<_> =
                std::iter::from_fn(|| reader.read()).map(|one| one.event).collect();
            assert_eq!(events, [CaptureEvent::Dropped(reason)]);
        }
    }

    #[test]
    fn a_full_ring_misses_packets_and_counts_them() {
        let (mut tap, mut reader) = capture(terms(None));
        let count = CAPTURE_RING_BYTES / 60;
        (0..count).for_each(|_| tap.receive(Time::START, &packet(60)));
        let read = std::iter::from_fn(|| reader.read()).count();
        assert_eq!(read, CAPTURE_RING_BYTES / (RECORD_BYTES + 60));
        assert_eq!(reader.missed() as usize, count - read);
    }
}
