//! Packet capture: copies of packets that an interface receives, sends or drops, which a worker
//! passes to control.
//!
//! ```text
//!   worker: batch --> CaptureTap: filter, copy --ring--> CaptureReader --> control, the command
//!                                  \-- full: counted as missed
//! ```
//!
//! A capture must not slow down other packets. An interface without a tap only tests for one once
//! per batch. A tap never waits for its reader: its ring is bounded, and packets that do not fit
//! are counted, so that a capture reports its losses.
//!
//! Packets begin with their IP header. ARP packets are not captured.

use crate::filter::PacketFilter;
use crate::reason::ForwardDrop;
use pollux_mem::byte_ring::{Reader, Writer, ring};
use pollux_verbs::time::Time;
use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

/// The length of a ring in bytes. Its pages take no memory until they are used.
pub const CAPTURE_RING_BYTES: usize = 4 << 20;
/// The maximum number of bytes that are copied of a packet.
pub const SNAP_BYTES_MAX: usize = 65_535;
/// The length of the header before each packet in the ring: time, length, length of the copy,
/// event.
const RECORD_BYTES: usize = 8 + 4 + 4 + 8;
/// The drop reason of packets in transit at a host that does not forward. They have no
/// [`ForwardDrop`].
pub const TRANSIT: &str = "transit";

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CaptureEvent {
    /// The packet was received on the link, for any destination.
    Received,
    /// The adapter accepted the packet for transmission.
    Sent,
    /// The packet was dropped for one of [`capture_reasons`].
    Dropped(&'static str),
}

pub fn capture_reasons() -> impl Iterator<Item = &'static str> {
    ForwardDrop::ALL.iter().map(|why| why.name()).chain([TRANSIT])
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CaptureTerms {
    pub filter: PacketFilter,
    /// The maximum number of bytes that are copied of each packet.
    pub snap_bytes: usize,
    /// With a reason, only packets dropped for this reason are captured; without one, received and
    /// sent packets.
    pub reason: Option<&'static str>,
}

#[derive(Debug, Default)]
struct Shared {
    missed: AtomicU64,
    is_over: AtomicBool,
}

pub const TAPS_MAX: usize = 8;

/// The taps of a port, and the time of the current packets.
#[derive(Debug)]
pub struct CaptureTaps {
    all: Vec<CaptureTap>,
    now: Time,
}

/// The worker's end of a capture.
pub struct CaptureTap {
    terms: CaptureTerms,
    writer: Writer,
    /// The packets that are being sent: their addresses, and their ranges in `copies`.
    offered: Vec<(usize, CopiedPacket)>,
    copies: Vec<u8>,
    shared: Arc<Shared>,
}

#[derive(Clone, Copy, Debug)]
struct CopiedPacket {
    bytes: usize,
    begin: usize,
    kept: usize,
}

/// The control end of a capture. Its drop ends the tap.
pub struct CaptureReader {
    reader: Reader,
    shared: Arc<Shared>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CapturedBytes {
    pub time: Time,
    pub event: CaptureEvent,
    /// The length of the original packet.
    pub bytes: usize,
    /// The captured part.
    pub packet: Vec<u8>,
}

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
    pub fn new(now: Time) -> Self {
        Self { all: Vec::new(), now }
    }

    /// Adds a tap. Beyond [`TAPS_MAX`], the tap is dropped, and its reader gets nothing.
    pub fn add(&mut self, tap: CaptureTap) {
        self.drop_over();
        if self.all.len() < TAPS_MAX {
            self.all.push(tap);
        }
    }

    /// Drops the taps whose readers have been dropped.
    pub fn drop_over(&mut self) {
        self.all.retain(|tap| !tap.is_over());
    }

    /// Whether there is no tap, so that packets need not be passed.
    #[inline]
    pub const fn is_empty(&self) -> bool {
        self.all.is_empty()
    }

    #[inline]
    pub const fn set_time(&mut self, now: Time) {
        self.now = now;
    }

    #[cold]
    pub fn record(&mut self, event: CaptureEvent, packet: &[u8]) {
        self.all.iter_mut().for_each(|tap| tap.record(self.now, event, packet));
    }

    /// Copies a packet that is about to be sent. It is known only after the batch whether the
    /// packet was sent, and by then its buffer belongs to the adapter.
    #[cold]
    pub fn offer(&mut self, packet: &[u8]) {
        self.all.iter_mut().for_each(|tap| tap.offer(packet));
    }

    /// Records the offered packets as sent, except for those at refused addresses.
    #[cold]
    pub fn finish_offers(&mut self, is_refused: impl Fn(usize) -> bool) {
        self.all.iter_mut().for_each(|tap| tap.finish_offers(self.now, &is_refused));
    }
}

impl CaptureTap {
    /// Whether the reader has been dropped.
    fn is_over(&self) -> bool {
        self.shared.is_over.load(Ordering::Relaxed)
    }

    fn record(&mut self, now: Time, event: CaptureEvent, packet: &[u8]) {
        let reason = match event {
            CaptureEvent::Received | CaptureEvent::Sent => None,
            CaptureEvent::Dropped(reason) => Some(reason),
        };
        if self.terms.reason == reason && self.terms.filter.matches(packet, packet.len()) {
            let copy = &packet[..packet.len().min(self.terms.snap_bytes)];
            write(&mut self.writer, &self.shared, now, event, packet.len(), copy);
        }
    }

    fn offer(&mut self, packet: &[u8]) {
        let Self { terms, offered, copies, .. } = self;
        if terms.reason.is_none() && terms.filter.matches(packet, packet.len()) {
            let (begin, kept) = (copies.len(), packet.len().min(terms.snap_bytes));
            copies.extend_from_slice(&packet[..kept]);
            let copied = CopiedPacket { bytes: packet.len(), begin, kept };
            offered.push((packet.as_ptr().addr(), copied));
        }
    }

    fn finish_offers(&mut self, now: Time, is_refused: impl Fn(usize) -> bool) {
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

/// Writes a record, or counts the packet as missed if the ring is full.
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
    pub fn read(&mut self) -> Option<CapturedBytes> {
        let mut header = [0; RECORD_BYTES];
        // A record becomes readable as a unit.
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
    fn captured_packets_are_copied_up_to_the_snap_length() {
        let (mut tap, mut reader) = capture(terms(None));
        let now = Time::START + Duration::from_micros(3);
        tap.record(now, CaptureEvent::Received, &packet(60));
        tap.record(now, CaptureEvent::Received, &[0x60; 60]);
        let [sent, refused] = [packet(200), packet(70)];
        tap.offer(&sent);
        tap.offer(&refused);
        tap.finish_offers(now, |at| at == refused.as_ptr().addr());
        tap.record(now, CaptureEvent::Dropped("martian_source"), &packet(60));
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
            capture_reasons()
                .for_each(|one| tap.record(Time::START, CaptureEvent::Dropped(one), &packet(60)));
            tap.record(Time::START, CaptureEvent::Received, &packet(60));
            let events: Vec<_> =
                std::iter::from_fn(|| reader.read()).map(|one| one.event).collect();
            assert_eq!(events, [CaptureEvent::Dropped(reason)]);
        }
    }

    #[test]
    fn a_full_ring_misses_packets_and_counts_them() {
        let (mut tap, mut reader) = capture(terms(None));
        let count = CAPTURE_RING_BYTES / 60;
        (0..count).for_each(|_| tap.record(Time::START, CaptureEvent::Received, &packet(60)));
        let read = std::iter::from_fn(|| reader.read()).count();
        assert_eq!(read, CAPTURE_RING_BYTES / (RECORD_BYTES + 60));
        assert_eq!(reader.missed() as usize, count - read);
    }
}
