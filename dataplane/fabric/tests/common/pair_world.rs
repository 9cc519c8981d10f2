//! Two adapters joined in one thread and virtual time, without a net between them.
//!
//! A world is a queue of frames in flight, and a clock that moves only when there is nothing to do:
//! then to the next arrival, or to the next timer of an adapter. So hours of timeouts cost no time,
//! and a seed replays a run.
//!
//! The two ends of a link share the world by reference count and cell, in one thread.
#![allow(dead_code, reason = "not every test needs all of it")]

use pollux_fabric::link::fault::SeededRng;
use pollux_fabric::link::{FrameSink, Link, Wire};
use pollux_fabric::{Adapter, Frame, LeaseTable, Time};
use std::cell::RefCell;
use std::collections::BTreeMap;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

/// Callback for every packet: its time, the end that sent it, and its bytes, LRH to VCRC.
pub type Tap = Box<dyn FnMut(Time, usize, &[u8])>;

/// Two ends of a link, and the time between them.
#[derive(Clone)]
pub struct World {
    inner: Rc<RefCell<Inner>>,
}

struct Inner {
    now: Time,
    rng: SeededRng,
    wire: Wire,
    tap: Option<Tap>,
    /// Frames in flight, by arrival and then by order of sending, each with its receiver.
    travelling: BTreeMap<(Time, u64), (usize, Frame)>,
    sent: u64,
    /// The arrival time of the last frame for each end, without delayed ones.
    latest: [Time; 2],
    deadlines: [Option<Time>; 2],
    is_cut: bool,
    leases: [Option<Arc<LeaseTable>>; 2],
}

pub struct WorldLink {
    world: World,
    end: usize,
}

impl World {
    pub fn new(seed: u64, wire: Wire) -> (Self, [WorldLink; 2]) {
        let inner = Inner {
            now: Time::START,
            rng: SeededRng::new(seed),
            wire,
            tap: None,
            travelling: BTreeMap::new(),
            sent: 0,
            latest: [Time::START; 2],
            deadlines: [None; 2],
            is_cut: false,
            leases: [None, None],
        };
        let world = Self { inner: Rc::new(RefCell::new(inner)) };
        let link = |end| WorldLink { world: world.clone(), end };
        let links = [link(0), link(1)];
        (world, links)
    }

    pub fn now(&self) -> Time {
        self.inner.borrow().now
    }

    pub fn is_quiet(&self) -> bool {
        self.inner.borrow().travelling.is_empty()
    }

    /// Changes the wire. Frames in flight arrive as planned.
    pub fn set_wire(&self, wire: Wire) {
        self.inner.borrow_mut().wire = wire;
    }

    /// Cuts the link, or repairs it. Frames in flight are lost.
    pub fn set_cut(&self, is_cut: bool) {
        let mut inner = self.inner.borrow_mut();
        inner.is_cut = is_cut;
        if is_cut {
            inner.travelling.clear();
        }
    }

    /// Shows every packet to `tap`. Messages are then sent as packets.
    pub fn set_tap(&self, tap: Tap) {
        self.inner.borrow_mut().tap = Some(tap);
    }

    /// Moves the clock to the next event; returns whether there is one.
    pub fn step(&self) -> bool {
        let mut inner = self.inner.borrow_mut();
        let arrival = inner.travelling.keys().next().map(|&(at, _)| at);
        let due = inner.deadlines.iter().flatten().min().copied();
        let next = [arrival, due].into_iter().flatten().min();
        let Some(next) = next else { return false };
        inner.now = inner.now.max(next);
        true
    }
}

impl WorldLink {
    fn take(&mut self) -> Option<Frame> {
        let mut inner = self.world.inner.borrow_mut();
        let arrived = inner.travelling.iter();
        let mut arrived = arrived.take_while(|((at, _), _)| *at <= inner.now);
        let key = arrived.find(|(_, (to, _))| *to == self.end).map(|(key, _)| *key)?;
        inner.travelling.remove(&key).map(|(_, frame)| frame)
    }
}

impl FrameSink for WorldLink {
    fn send_packet(&mut self, bytes: &[u8]) -> bool {
        self.world.inner.borrow_mut().send(self.end, Frame::Packet(bytes.to_vec()));
        true
    }

    fn send_message(&mut self, head: &[u64], bytes: usize, fill: impl FnMut(&mut [u8])) -> bool {
        self.world.inner.borrow_mut().send(self.end, Frame::message(head, bytes, fill));
        true
    }
}

impl Link for WorldLink {
    fn now(&self) -> Time {
        self.world.now()
    }

    fn is_virtual(&self) -> bool {
        true
    }

    fn attach(&mut self, leases: &Arc<LeaseTable>) {
        self.world.inner.borrow_mut().leases[self.end] = Some(leases.clone());
    }

    fn receive(&mut self, now: Time, adapter: &mut Adapter) -> bool {
        let Some(frame) = self.take() else { return false };
        let leases = self.world.inner.borrow().leases[1 - self.end].clone();
        adapter.handle(now, &frame, leases.as_deref());
        true
    }

    fn wants_packets(&self) -> bool {
        let inner = self.world.inner.borrow();
        inner.wire.packets_only || inner.tap.is_some() || !inner.wire.faults.are_none()
    }

    fn set_deadline(&mut self, deadline: Option<Time>) {
        self.world.inner.borrow_mut().deadlines[self.end] = deadline;
    }

    fn idle(&mut self, end: Time) {
        let mut inner = self.world.inner.borrow_mut();
        let arrival = inner.travelling.keys().next().map(|&(at, _)| at);
        let own = inner.deadlines[self.end];
        let next = [arrival, own, Some(end)].into_iter().flatten().min();
        inner.now = inner.now.max(next.unwrap_or(end)).max(inner.now + Duration::from_nanos(1));
    }
}

impl Inner {
    fn send(&mut self, from: usize, frame: Frame) {
        if self.is_cut {
            return;
        }
        let to = 1 - from;
        let bytes = match frame {
            Frame::Packet(bytes) => bytes,
            message @ Frame::Message(_) => return self.put(to, Duration::ZERO, message),
        };
        if let Some(tap) = &mut self.tap {
            tap(self.now, from, &bytes);
        }
        let fate = self.wire.faults.decide(&mut self.rng, bytes.len());
        for delay in fate.delays {
            let mut copy = bytes.clone();
            if let Some(bit) = fate.flipped_bit {
                copy[bit / 8] ^= 0x80 >> (bit % 8);
            }
            self.put(to, delay, Frame::Packet(copy));
        }
    }

    fn put(&mut self, to: usize, delay: Duration, frame: Frame) {
        let jitter = self.rng.duration(self.wire.jitter);
        let in_order = self.latest[to].max(self.now + self.wire.latency + jitter);
        self.latest[to] = in_order;
        self.sent += 1;
        self.travelling.insert((in_order + delay, self.sent), (to, frame));
    }
}

#[test]
fn jitter_spreads_frames_and_keeps_their_order() {
    let wire = Wire { jitter: Duration::from_micros(20), ..Wire::default() };
    let (world, [mut a, mut b]) = World::new(1, wire);
    let sent: Vec<Vec<u8>> = (0..100).map(|nth| vec![nth]).collect();
    for bytes in &sent {
        assert!(a.send_packet(bytes));
    }
    let (mut received, mut steps) = (Vec::new(), 0);
    while world.step() {
        steps += 1;
        while let Some(Frame::Packet(bytes)) = b.take() {
            received.push(bytes);
        }
    }
    assert_eq!(received, sent);
    assert!(steps > 1, "all arrived at once");
}
