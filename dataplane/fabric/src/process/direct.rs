//! A direct lane: messages of one route from one client to another, past the server.
//!
//! Its segment has the ring and nothing else: sender and receiver write to it, and each can spoil
//! only what goes from the one to the other. Whether it may be used, and what has gone by it,
//! stands in the [`board`](super::board) that the sender shares with the server.

use super::board::{LanePlace, SLOTS};
use super::exposure::Exposure;
use super::loans::Borrowed;
use super::tag;
use crate::frame::sges_of;
use crate::head::LENT;
use crate::net::size_of_message;
use pollux_mem::counters::{CounterReader, Counters};
use pollux_mem::region::MapError;
use pollux_mem::shared_ring::{RingReceiver, RingSender, SharedRing};
use pollux_mem::{Segment, Words};
use std::os::fd::OwnedFd;
use std::sync::atomic::Ordering;

const PACKETS: usize = 0;
const WORDS: usize = 1;

/// Tries without room after which a lane is taken for stuck, and what is for it is thrown away as a
/// switch does at the head of a queue whose time is up (IBA 18.2.5.4): one peer that takes nothing
/// must not hold up the way to all others.
const STALLS_MAX: u32 = 1 << 20;

/// Packets, or words, that a sender can have sent between two looks of the server's.
const WENT_MAX: u64 = 1 << 40;

fn bytes() -> usize {
    SharedRing::words(SLOTS).expect("a power of two") * 8
}

fn open(fd: OwnedFd) -> Option<SharedRing> {
    let page = 1 << 16;
    let segment = Segment::from_fd(fd, bytes()..=bytes() + page).ok()?;
    SharedRing::open(Words::over(segment.map().ok()?)).ok()
}

/// The server's view.
pub(crate) struct Granted {
    /// Which of its sender's places it has.
    pub(crate) slot: usize,
    state: Words,
    counters: CounterReader,
    /// Packets and words that were seen last.
    seen: [u64; 2],
    /// The segment that the receiver has been told of, and has not answered for.
    asked: Option<u32>,
}

impl Granted {
    /// A new lane with one of its sender's places, closed; and what its ends map.
    pub(crate) fn create(slot: usize, place: LanePlace) -> Result<(Self, OwnedFd), MapError> {
        let segment = Segment::create("pollux-direct", bytes())?;
        SharedRing::create(Words::over(segment.map()?), SLOTS)
            .expect("the segment is large enough");
        let LanePlace { state, counters } = place;
        let counters = CounterReader::new(counters);
        let mut granted = Self { slot, state, counters, seen: [0; 2], asked: None };
        granted.went();
        Ok((granted, segment.into_fd()))
    }

    /// The sender may use it from now on, under this number.
    pub(crate) fn open(&self, number: u64) {
        self.state.as_slice()[0].store(number, Ordering::Release);
    }

    /// The sender may not use it from now on.
    pub(crate) fn close(&self) {
        self.state.as_slice()[0].store(0, Ordering::Release);
    }

    /// Packets and words since the last look, as the sender counts them: any numbers, but none
    /// beyond what can go in that time.
    pub(crate) fn went(&mut self) -> [u64; 2] {
        let now = [PACKETS, WORDS].map(|counter| self.counters.read(counter).unwrap_or(0));
        let before = std::mem::replace(&mut self.seen, now);
        [0, 1].map(|nth| now[nth].wrapping_sub(before[nth]).min(WENT_MAX))
    }

    /// The receiver is asked to map a segment, or to give it up. False if it has not answered yet
    /// what it was asked before.
    pub(crate) fn ask(&mut self, segment: u32) -> bool {
        let may = self.asked.is_none();
        self.asked = self.asked.or(Some(segment));
        may
    }

    /// The receiver answers; says whether it was asked.
    pub(crate) fn answer(&mut self, segment: u32) -> bool {
        self.asked.take_if(|asked| *asked == segment).is_some()
    }
}

/// The sender's end.
pub(crate) struct Out {
    pub(crate) number: u64,
    /// What may go by it.
    pub(crate) route: u64,
    /// The server knows that the sender uses it.
    pub(crate) is_begun: bool,
    /// What its receiver may read.
    pub(crate) exposure: Exposure,
    state: Words,
    counters: Counters,
    lane: RingSender,
    stalls: u32,
}

impl Out {
    pub(crate) fn open(fd: OwnedFd, number: u64, route: u64, place: &LanePlace) -> Option<Self> {
        let LanePlace { state, counters } = place.clone();
        let (lane, counters) = (open(fd)?.sender(), Counters::new(counters));
        let (is_begun, exposure, stalls) = (false, Exposure::default(), 0);
        Some(Self { number, route, is_begun, exposure, state, counters, lane, stalls })
    }

    /// Whether it may be used.
    #[inline(always)]
    pub(crate) fn is_open(&self) -> bool {
        self.state.as_slice()[0].load(Ordering::Acquire) == self.number
    }

    #[inline(always)]
    pub(crate) fn send_bytes(&mut self, head: &[u64], bytes: &[u8]) -> bool {
        let went = self.lane.send_bytes(tag::MESSAGE, head, bytes);
        self.count(went, head, bytes.len() as u64)
    }

    #[inline(always)]
    pub(crate) fn send(&mut self, head: &[u64], bytes: usize, fill: impl FnMut(&mut [u8])) -> bool {
        if head[0] & LENT != 0 {
            return self.send_lent(head, bytes, fill);
        }
        let went = self.lane.send(tag::MESSAGE, head, bytes, fill);
        self.count(went, head, bytes as u64)
    }

    /// What travels says where the bytes are; what is counted is those.
    #[cold]
    fn send_lent(&mut self, head: &[u64], bytes: usize, mut fill: impl FnMut(&mut [u8])) -> bool {
        let mut wheres = vec![0; bytes];
        fill(&mut wheres);
        let lent = sges_of(&wheres).map(|sge| u64::from(sge.bytes)).sum();
        let went = self.lane.send_bytes(tag::MESSAGE, head, &wheres);
        self.count(went, head, lent)
    }

    /// Counts what went; says whether it is done with, one way or the other.
    #[inline(always)]
    fn count(&mut self, went: bool, head: &[u64], bytes: u64) -> bool {
        if !went {
            return self.stalled();
        }
        self.stalls = 0;
        let (packets, words) = size_of_message(head[2] as u32, bytes);
        self.counters.add(PACKETS, packets);
        self.counters.add(WORDS, words);
        true
    }

    #[cold]
    fn stalled(&mut self) -> bool {
        self.stalls = self.stalls.saturating_add(1);
        self.stalls > STALLS_MAX
    }
}

/// The receiver's end.
pub(crate) struct In {
    pub(crate) number: u64,
    /// What may come by it.
    pub(crate) route: u64,
    /// What its sender lets us read.
    pub(crate) borrowed: Borrowed,
    pub(crate) lane: RingReceiver,
}

impl In {
    pub(crate) fn open(fd: OwnedFd, number: u64, route: u64) -> Option<Self> {
        let lane = open(fd)?.receiver();
        Some(Self { number, route, borrowed: Borrowed::default(), lane })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn place() -> LanePlace {
        let line = || Words::private(16).unwrap();
        LanePlace { state: line(), counters: line() }
    }

    /// Lane 1, open: the server's view, and both ends.
    fn lane() -> (Granted, Out, In) {
        let place = place();
        let (granted, fd) = Granted::create(0, place.clone()).unwrap();
        granted.open(1);
        let out = Out::open(fd.try_clone().unwrap(), 1, 2, &place).unwrap();
        (granted, out, In::open(fd, 1, 2).unwrap())
    }

    #[test]
    fn what_goes_is_counted_and_ends_when_the_server_says_so() {
        let (mut granted, mut out, mut from) = lane();
        assert!(out.is_open() && out.send_bytes(&[0, 0, 1], b"four"));
        assert!(out.send(&[0, 0, 3], 9, |part| part.fill(7)));
        assert_eq!(granted.went(), [4, (24 + 4) / 4 + (3 * 24 + 9_u64).div_ceil(4)]);
        assert_eq!(granted.went(), [0, 0]);
        let mut wheres = [0; 24];
        wheres[20..].copy_from_slice(&4096u32.to_le_bytes());
        assert!(out.send(&[LENT, 0, 1], 24, |part| part.copy_from_slice(&wheres)));
        assert_eq!(granted.went(), [1, (24 + 4096) / 4]);
        for bytes in [4, 9, 24] {
            assert!(from.lane.receive(|entry| assert_eq!(entry.bytes(), bytes)));
        }
        granted.close();
        assert!(!out.is_open());
        granted.open(2);
        assert!(!out.is_open(), "another lane in the same place");
    }

    /// Nothing that the receiver can write to says whether the lane is open, or what went by it.
    #[test]
    fn a_receiver_has_no_say_in_whether_a_lane_is_open() {
        let place = place();
        let (mut granted, fd) = Granted::create(0, place.clone()).unwrap();
        granted.open(1);
        let mut out = Out::open(fd.try_clone().unwrap(), 1, 2, &place).unwrap();
        assert!(out.send_bytes(&[0, 0, 1], b"four"));
        granted.close();
        let receivers = Words::over(Segment::from_fd(fd, 1..=1 << 30).unwrap().map().unwrap());
        for value in [1, u64::MAX] {
            receivers.as_slice().iter().for_each(|word| word.store(value, Ordering::Release));
        }
        assert!(!out.is_open());
        assert_eq!(granted.went(), [1, (24 + 4) / 4]);
    }

    #[test]
    fn no_counter_of_a_sender_is_out_of_bounds() {
        let (mut granted, mut out, _from) = lane();
        for amount in [u64::MAX, 1, u64::MAX / 2, u64::MAX - 7] {
            out.counters.add(PACKETS, amount);
            out.counters.add(WORDS, amount);
            assert_eq!(granted.went(), [amount.min(WENT_MAX); 2]);
        }
    }

    #[test]
    fn a_receiver_is_asked_one_thing_at_a_time() {
        let (mut granted, ..) = lane();
        assert!(granted.ask(3) && !granted.ask(4) && !granted.answer(4));
        assert!(granted.answer(3) && !granted.answer(3) && granted.ask(4));
    }

    #[test]
    fn a_peer_that_takes_nothing_holds_nobody_up_for_ever() {
        let (_granted, mut out, _from) = lane();
        while out.send_bytes(&[0, 0, 1], b"") {}
        assert!((0..=STALLS_MAX).any(|_| out.send_bytes(&[0, 0, 1], b"")));
    }
}
