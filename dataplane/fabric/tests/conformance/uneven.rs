//! Schedules by seed: the turns of each side, the frames it takes in a turn, and when the link is
//! full.
//!
//! The suite polls both sides in turn, and a world without faults is deterministic. An adapter that
//! relied on that would pass. Here a link delays arrived frames, or has no space for a frame, like
//! a busy ring between threads; a trace shows whether two seeds differ.

use crate::pair_world::WorldLink;
use pollux_fabric::link::fault::SeededRng;
use pollux_fabric::link::{FrameSink, Link};
use pollux_fabric::{Adapter, LeaseTable, Time};
use std::cell::RefCell;
use std::hash::{DefaultHasher, Hasher};
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

/// The events of frames in order, with their ends: without times, so that it differs only if the
/// adapters behaved differently.
#[derive(Clone, Default)]
pub struct Trace(Rc<RefCell<DefaultHasher>>);

impl Trace {
    /// The hash of the trace.
    pub fn digest(&self) -> u64 {
        self.0.borrow().finish()
    }
}

/// Random events, with their probability in a million.
#[derive(Clone)]
pub struct Schedule {
    inner: Rc<RefCell<Inner>>,
    trace: Trace,
    /// The longest additional delay of a frame.
    pub jitter: Duration,
    /// A link delivers no frame though one has arrived: the end of a side's turn.
    withheld: u32,
    /// A link has no space.
    refused: u32,
    /// Additional turns of the sides, at most.
    extra_turns_max: u64,
}

struct Inner {
    rng: SeededRng,
    /// Whether a frame of an end was refused since the last call.
    owes: [bool; 2],
    /// Whether a frame was sent or taken since the last call.
    is_busy: bool,
}

impl Inner {
    const fn new(rng: SeededRng) -> Self {
        Self { rng, owes: [false; 2], is_busy: false }
    }
}

impl Schedule {
    /// An even schedule.
    pub fn even(trace: Trace) -> Self {
        Self {
            jitter: Duration::ZERO,
            withheld: 0,
            refused: 0,
            extra_turns_max: 0,
            inner: Rc::new(RefCell::new(Inner::new(SeededRng::new(0)))),
            trace,
        }
    }

    /// An uneven schedule, by seed.
    pub fn uneven(seed: u64, trace: Trace) -> Self {
        // Not the RNG of the wire.
        let mut rng = SeededRng::new(!seed);
        Self {
            jitter: Duration::from_nanos(rng.below(20_000)),
            withheld: rng.below(600_000) as u32,
            refused: rng.below(200_000) as u32,
            extra_turns_max: rng.below(7),
            inner: Rc::new(RefCell::new(Inner::new(rng))),
            trace,
        }
    }

    /// Whether a frame moved since the last call, or the link refused one: then the sides do not
    /// wait for the wire, and no time passes. A refused side may have changed its state since, so a
    /// refusal counts once.
    pub fn take_busy(&self) -> bool {
        let mut inner = self.inner.borrow_mut();
        let owes = std::mem::take(&mut inner.owes) != [false; 2];
        std::mem::take(&mut inner.is_busy) || owes
    }

    /// The order of turns.
    pub fn turns(&self) -> impl Iterator<Item = usize> + use<> {
        let rng = &mut self.inner.borrow_mut().rng;
        let turns = rng.below(self.extra_turns_max + 1);
        let sides: Vec<usize> = (0..turns).map(|_| rng.below(2) as usize).collect();
        sides.into_iter()
    }

    fn note(&self, what: u8, end: usize) {
        self.trace.0.borrow_mut().write(&[what, end as u8]);
        self.inner.borrow_mut().is_busy = true;
    }

    fn happens(&self, per_million: u32) -> bool {
        self.inner.borrow_mut().rng.happens(per_million)
    }
}

/// One end of a world's link, with its schedule.
pub struct UnevenLink {
    link: WorldLink,
    end: usize,
    schedule: Schedule,
}

impl UnevenLink {
    /// That end of the link.
    pub fn new(link: WorldLink, end: usize, schedule: Schedule) -> Self {
        Self { link, end, schedule }
    }
}

impl UnevenLink {
    /// Whether something may be sent now; it will be then.
    fn has_room(&mut self) -> bool {
        let refused = self.schedule.happens(self.schedule.refused);
        self.schedule.inner.borrow_mut().owes[self.end] = refused;
        if !refused {
            self.schedule.note(b's', self.end);
        }
        !refused
    }
}

impl FrameSink for UnevenLink {
    fn send_packet(&mut self, bytes: &[u8]) -> bool {
        self.has_room() && self.link.send_packet(bytes)
    }

    fn send_message(&mut self, head: &[u64], bytes: usize, fill: impl FnMut(&mut [u8])) -> bool {
        self.has_room() && self.link.send_message(head, bytes, fill)
    }
}

impl Link for UnevenLink {
    fn now(&self) -> Time {
        self.link.now()
    }

    fn is_virtual(&self) -> bool {
        self.link.is_virtual()
    }

    fn attach(&mut self, leases: &Arc<LeaseTable>) {
        self.link.attach(leases);
    }

    fn receive(&mut self, now: Time, adapter: &mut Adapter) -> bool {
        if self.schedule.happens(self.schedule.withheld) {
            return false;
        }
        let came = self.link.receive(now, adapter);
        if came {
            self.schedule.note(b'r', self.end);
        }
        came
    }

    fn wants_packets(&self) -> bool {
        self.link.wants_packets()
    }

    fn set_deadline(&mut self, deadline: Option<Time>) {
        self.link.set_deadline(deadline);
    }

    fn idle(&mut self, end: Time) {
        if !self.schedule.inner.borrow().owes[self.end] {
            self.link.idle(end);
        }
    }
}
