//! A direct ring: messages of one route from one client to another, without the server.
//!
//! The memory segment of a ring has the entries and the sleep word of the receiver. Sender and
//! receiver write to it, and can damage only the traffic between them. The state and the counters
//! of the ring are in the [`port_page`](super::port_page) that the sender shares with the server.

use super::exposure::Exposure;
use super::port_page::{RingState, SLOTS};
use super::shared_leases::PeerLeases;
use super::{PAGE_BYTES_MAX, tag, wake_socket};
use crate::time::Time;
use pollux_hca::Adapter;
use pollux_hca::frame::{Arrival, sges_of, size_of_message};
use pollux_hca::head::{LEASED, is_management, route_bits};
use pollux_hca::lease::LeasedMemory;
use pollux_mem::counters::{CounterReader, SharedCounters};
use pollux_mem::region::MapError;
use pollux_mem::shared_ring::{Entry, RingReceiver, RingSender, SharedRing};
use pollux_mem::sleep_word::{SleepWatch, SleepWord};
use pollux_mem::words::LINE_WORDS;
use pollux_mem::{Segment, Words};
use std::os::fd::OwnedFd;
use std::sync::atomic::Ordering;

const PACKETS: usize = 0;
const WORDS: usize = 1;

/// Attempts to send to a full ring after which messages are dropped, as a switch drops the head of
/// a queue after its lifetime limit (IBA 18.2.5.4). A receiver that has stopped must not block the
/// sender's traffic to others.
const STALLS_MAX: u32 = 1 << 20;

/// The limit of packets, and of words, that a sender can have sent between two reads of its
/// counters by the server. A higher count is false.
const TRAFFIC_MAX: u64 = 1 << 40;

fn bytes() -> usize {
    (SharedRing::words(SLOTS).expect("a power of two") + 2 * LINE_WORDS) * 8
}

/// The words of the ring and of the receiver's sleep word.
fn layout(segment: &Segment) -> Result<(Words, Words), MapError> {
    let mut words = Words::over(segment.map()?);
    let ring = SharedRing::words(SLOTS).expect("a power of two");
    let mut take = |count| words.take(count).expect("the segment's length was checked");
    Ok((take(ring), take(LINE_WORDS)))
}

fn open(fd: OwnedFd) -> Option<(SharedRing, Words)> {
    let segment = Segment::from_fd(fd, bytes()..=bytes() + PAGE_BYTES_MAX).ok()?;
    let (ring, sleep) = layout(&segment).ok()?;
    Some((SharedRing::open(ring).ok()?, sleep))
}

/// The server's side of a ring.
pub(crate) struct Granted {
    /// The slot of the ring's state in the sender's page.
    pub(crate) slot: usize,
    state: Words,
    counters: CounterReader,
    /// The last reading of packets and words.
    seen: [u64; 2],
    /// The segment in the outstanding request to the receiver.
    outstanding: Option<u32>,
}

impl Granted {
    /// Creates a ring, still closed, in a slot of its sender. Returns it with the descriptor of its
    /// memory.
    pub(crate) fn create(slot: usize, ring_state: RingState) -> Result<(Self, OwnedFd), MapError> {
        let segment = Segment::create("pollux-direct", bytes())?;
        SharedRing::create(layout(&segment)?.0, SLOTS).expect("the segment is large enough");
        let RingState { state, counters } = ring_state;
        let counters = CounterReader::new(counters);
        let mut granted = Self { slot, state, counters, seen: [0; 2], outstanding: None };
        granted.traffic();
        Ok((granted, segment.into_fd()))
    }

    /// Allows the sender to use the ring, under this number.
    pub(crate) fn open(&self, number: u64) {
        self.state.as_slice()[0].store(number, Ordering::Release);
    }

    pub(crate) fn close(&self) {
        self.state.as_slice()[0].store(0, Ordering::Release);
    }

    /// Packets and words since the last call, as the sender counts them: untrusted, but bounded.
    pub(crate) fn traffic(&mut self) -> [u64; 2] {
        let now = [PACKETS, WORDS].map(|counter| self.counters.read(counter).unwrap_or(0));
        let before = std::mem::replace(&mut self.seen, now);
        [0, 1].map(|nth| now[nth].wrapping_sub(before[nth]).min(TRAFFIC_MAX))
    }

    /// Records a request to the receiver to map or unmap a segment. `false` if the previous request
    /// has no answer yet.
    pub(crate) fn begin_request(&mut self, segment: u32) -> bool {
        let may = self.outstanding.is_none();
        self.outstanding = self.outstanding.or(Some(segment));
        may
    }

    /// Records the answer of the receiver; returns whether there was a request.
    pub(crate) fn end_request(&mut self, segment: u32) -> bool {
        self.outstanding.take_if(|outstanding| *outstanding == segment).is_some()
    }
}

pub(crate) struct DirectSender {
    pub(crate) number: u64,
    pub(crate) route: u64,
    /// Whether SWITCH was sent to the server.
    pub(crate) is_begun: bool,
    pub(crate) exposure: Exposure,
    state: Words,
    counters: SharedCounters,
    ring: RingSender,
    stalls: u32,
    receiver_sleep: SleepWatch,
    wake_socket: OwnedFd,
}

impl DirectSender {
    pub(crate) fn open(
        fd: OwnedFd,
        number: u64,
        route: u64,
        ring_state: &RingState,
        wake_socket: OwnedFd,
    ) -> Option<Self> {
        let RingState { state, counters } = ring_state.clone();
        let (ring, sleep) = open(fd)?;
        Some(Self {
            number,
            route,
            is_begun: false,
            exposure: Exposure::default(),
            state,
            counters: SharedCounters::new(counters),
            ring: ring.sender(),
            stalls: 0,
            receiver_sleep: SleepWatch::new(sleep),
            wake_socket,
        })
    }

    #[inline(always)]
    pub(crate) fn is_open(&self) -> bool {
        self.state.as_slice()[0].load(Ordering::Acquire) == self.number
    }

    #[inline(always)]
    pub(crate) fn send_bytes(&mut self, head: &[u64], bytes: &[u8]) -> bool {
        let sent = self.ring.send_bytes(tag::MESSAGE, head, bytes);
        self.count(sent, head, bytes.len() as u64)
    }

    #[inline(always)]
    pub(crate) fn send(&mut self, head: &[u64], bytes: usize, fill: impl FnMut(&mut [u8])) -> bool {
        if head[0] & LEASED != 0 {
            return self.send_leased(head, bytes, fill);
        }
        let sent = self.ring.send(tag::MESSAGE, head, bytes, fill);
        self.count(sent, head, bytes as u64)
    }

    /// Sends a message that has the location of its payload as content. The counters get the length
    /// of the payload.
    #[cold]
    fn send_leased(&mut self, head: &[u64], bytes: usize, mut fill: impl FnMut(&mut [u8])) -> bool {
        let mut descriptor = vec![0; bytes];
        fill(&mut descriptor);
        let leased = sges_of(&descriptor).map(|sge| u64::from(sge.bytes)).sum();
        let sent = self.ring.send_bytes(tag::MESSAGE, head, &descriptor);
        self.count(sent, head, leased)
    }

    /// Counts a message that was sent. Returns whether it is done: sent, or dropped because the
    /// ring was full too often.
    #[inline(always)]
    fn count(&mut self, sent: bool, head: &[u64], bytes: u64) -> bool {
        if !sent {
            return self.count_stall();
        }
        self.stalls = 0;
        if self.receiver_sleep.must_wake() {
            wake_socket::notify(&self.wake_socket);
        }
        let (packets, words) = size_of_message(head[2] as u32, bytes);
        self.counters.add(PACKETS, packets);
        self.counters.add(WORDS, words);
        true
    }

    #[cold]
    fn count_stall(&mut self) -> bool {
        self.stalls = self.stalls.saturating_add(1);
        self.stalls > STALLS_MAX
    }
}

pub(crate) struct DirectReceiver {
    pub(crate) number: u64,
    pub(crate) route: u64,
    pub(crate) peer_leases: PeerLeases,
    pub(crate) ring: RingReceiver,
    /// Shows the sender that this process sleeps.
    pub(crate) sleep: SleepWord,
    /// Ends the sleep. Without a wake socket, this process sleeps for a millisecond at most.
    pub(crate) wake_socket: Option<OwnedFd>,
}

impl DirectReceiver {
    pub(crate) fn open(
        fd: OwnedFd,
        number: u64,
        route: u64,
        wake_socket: Option<OwnedFd>,
    ) -> Option<Self> {
        let (ring, sleep) = open(fd)?;
        let (ring, sleep) = (ring.receiver(), SleepWord::new(sleep));
        Some(Self { number, route, peer_leases: PeerLeases::default(), ring, sleep, wake_socket })
    }

    /// Passes the next message to the adapter; returns whether there was one.
    #[inline(always)]
    pub(super) fn receive(&mut self, now: Time, adapter: &mut Adapter, buf: &mut Vec<u8>) -> bool {
        let Self { route, peer_leases, ring, .. } = self;
        ring.receive(|entry| {
            let [first, second, ..] = entry.first_words();
            if entry.tag() != tag::MESSAGE || route_bits(first, second) != *route {
                adapter.handle_message(now, None);
                return;
            }
            deliver(entry, Some(peer_leases), now, adapter, buf);
        })
    }
}

/// Passes a message to the adapter. A message of a direct ring has the sender's leases.
#[inline(always)]
pub(super) fn deliver(
    entry: &Entry<'_>,
    leases: Option<&PeerLeases>,
    now: Time,
    adapter: &mut Adapter,
    buf: &mut Vec<u8>,
) {
    if !adapter.receive_fast(now, entry) {
        // Management datagrams must come from the server, because the agents are there.
        let is_misplaced = leases.is_some() && is_management(entry.first_words()[0]);
        let leases = leases.map(|peer_leases| peer_leases as &dyn LeasedMemory);
        let arrival = Arrival::of_entry(entry, leases, buf).filter(|_| !is_misplaced);
        adapter.handle_message(now, arrival.as_ref());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn place() -> RingState {
        let line = || Words::private(16).unwrap();
        RingState { state: line(), counters: line() }
    }

    /// Ring 1, open: the server's view, and both ends.
    fn ring() -> (Granted, DirectSender, DirectReceiver) {
        let place = place();
        let (granted, fd) = Granted::create(0, place.clone()).unwrap();
        granted.open(1);
        let (near, far) = wake_socket::pair().unwrap();
        let out = DirectSender::open(fd.try_clone().unwrap(), 1, 2, &place, far).unwrap();
        (granted, out, DirectReceiver::open(fd, 1, 2, Some(near)).unwrap())
    }

    #[test]
    fn messages_are_counted_and_stop_when_the_server_closes_the_ring() {
        let (mut granted, mut out, mut from) = ring();
        assert!(out.is_open() && out.send_bytes(&[0, 0, 1], b"four"));
        assert!(out.send(&[0, 0, 3], 9, |part| part.fill(7)));
        assert_eq!(granted.traffic(), [4, (24 + 4) / 4 + (3 * 24 + 9_u64).div_ceil(4)]);
        assert_eq!(granted.traffic(), [0, 0]);
        let mut descriptor = [0; 24];
        descriptor[20..].copy_from_slice(&4096u32.to_le_bytes());
        assert!(out.send(&[LEASED, 0, 1], 24, |part| part.copy_from_slice(&descriptor)));
        assert_eq!(granted.traffic(), [1, (24 + 4096) / 4]);
        for bytes in [4, 9, 24] {
            assert!(from.ring.receive(|entry| assert_eq!(entry.bytes(), bytes)));
        }
        granted.close();
        assert!(!out.is_open());
        granted.open(2);
        assert!(!out.is_open(), "another ring in the same place");
    }

    /// The receiver cannot write to the state and the counters of a ring.
    #[test]
    fn a_receiver_has_no_say_in_whether_a_ring_is_open() {
        let place = place();
        let (mut granted, fd) = Granted::create(0, place.clone()).unwrap();
        granted.open(1);
        let (_near, far) = wake_socket::pair().unwrap();
        let mut out = DirectSender::open(fd.try_clone().unwrap(), 1, 2, &place, far).unwrap();
        assert!(out.send_bytes(&[0, 0, 1], b"four"));
        granted.close();
        let receivers = Words::over(Segment::from_fd(fd, 1..=1 << 30).unwrap().map().unwrap());
        for value in [1, u64::MAX] {
            receivers.as_slice().iter().for_each(|word| word.store(value, Ordering::Release));
        }
        assert!(!out.is_open());
        assert_eq!(granted.traffic(), [1, (24 + 4) / 4]);
    }

    #[test]
    fn no_counter_of_a_sender_is_out_of_bounds() {
        let (mut granted, mut out, _from) = ring();
        for amount in [u64::MAX, 1, u64::MAX / 2, u64::MAX - 7] {
            out.counters.add(PACKETS, amount);
            out.counters.add(WORDS, amount);
            assert_eq!(granted.traffic(), [amount.min(TRAFFIC_MAX); 2]);
        }
    }

    #[test]
    fn a_receiver_is_asked_one_thing_at_a_time() {
        let (mut granted, ..) = ring();
        assert!(granted.begin_request(3) && !granted.begin_request(4) && !granted.end_request(4));
        assert!(granted.end_request(3) && !granted.end_request(3) && granted.begin_request(4));
    }

    #[test]
    fn a_peer_that_does_not_receive_blocks_its_sender_for_a_limited_time() {
        let (_granted, mut out, _from) = ring();
        while out.send_bytes(&[0, 0, 1], b"") {}
        assert!((0..=STALLS_MAX).any(|_| out.send_bytes(&[0, 0, 1], b"")));
    }
}
