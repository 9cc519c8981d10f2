//! A net with adapters in one thread: [`crate::link::world`] for many nodes. Time is virtual, or
//! that of a clock.
//!
//! Why a lock, though all of it is one thread's: what runs a node wants devices that can be handed
//! to its thread, and the same code is to run here. Nobody ever waits for it.

use super::Net;
use super::seats::Seat;
use crate::device::SoftDevice;
use crate::frame::Frame;
use crate::hca::violation::KeyViolation;
use crate::hca::{Adapter, SEATS_MAX};
use crate::lend::Lender;
use crate::link::Link;
use crate::link::threads::Clock;
use crate::sm::{self, Residents};
use crate::time::Time;
use crate::topology::End;
use pollux_verbs::error::over;
use pollux_verbs::{Device, VerbsError};
use pollux_wire::mad::MgmtClass;
use std::collections::{BTreeMap, BTreeSet};
use std::ops::{Deref, DerefMut};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

/// A net, and the time in it.
#[derive(Clone)]
pub struct NetWorld {
    inner: Arc<Mutex<Inner>>,
}

struct Inner {
    now: Time,
    /// Tells the time, which then does not wait for anybody.
    clock: Option<Clock>,
    net: Net,
    managers: Residents,
    deadlines: BTreeMap<Seat, Time>,
    /// Ports whose adapters nobody polls.
    stopped: BTreeSet<End>,
}

/// An adapter's link to a net.
pub struct NetLink {
    world: NetWorld,
    seat: Seat,
    /// The port as of then was told to the adapter.
    epoch: u64,
}

impl NetWorld {
    /// A world that begins now.
    pub fn new(net: Net) -> Self {
        Self::with(net, None)
    }

    /// A world in which time goes by as a clock says.
    pub fn on_clock(net: Net, clock: Clock) -> Self {
        Self::with(net, Some(clock))
    }

    fn with(net: Net, clock: Option<Clock>) -> Self {
        let (managers, deadlines) = (Residents::default(), BTreeMap::new());
        let stopped = BTreeSet::new();
        let inner = Inner { now: Time::START, clock, net, managers, deadlines, stopped };
        Self { inner: Arc::new(Mutex::new(inner)) }
    }

    /// The link at a port.
    pub fn link(&self, end: End) -> NetLink {
        self.link_at(end.into())
    }

    fn link_at(&self, seat: Seat) -> NetLink {
        NetLink { world: self.clone(), seat, epoch: 0 }
    }

    /// A subnet manager of our own starts at a port. From now on there is always something that is
    /// to happen.
    pub fn start_manager(&self, at: End, config: sm::Config) {
        let inner = &mut *self.lock();
        inner.managers.start(inner.net.subnet_mut(), at, config);
    }

    /// Stops the process that polls a port's adapters, or lets it go on. Time does not wait for a
    /// stopped process: frames for it queue up, and its deadlines pass.
    pub fn set_stopped(&self, end: End, is_stopped: bool) {
        let mut inner = self.lock();
        match is_stopped {
            true => inner.stopped.insert(end),
            false => inner.stopped.remove(&end),
        };
    }

    /// What time it is.
    pub fn now(&self) -> Time {
        let inner = self.lock();
        inner.clock.as_ref().map_or(inner.now, |clock| clock())
    }

    /// The net; to be let go of before anything else is asked of this world.
    pub fn net(&self) -> impl Deref<Target = Net> + '_ {
        NetGuard(self.lock())
    }

    /// The same, to be changed.
    pub fn net_mut(&self) -> impl DerefMut<Target = Net> + '_ {
        NetGuard(self.lock())
    }

    /// A panic elsewhere ends the thread that all of it is in.
    fn lock(&self) -> MutexGuard<'_, Inner> {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Moves the clock to the next thing that is to happen; says whether there is any. It stands
    /// still while an adapter has not taken what has come. A clock needs no moving.
    pub fn step(&self) -> bool {
        let now = self.now();
        let mut inner = self.lock();
        if inner.clock.is_some() {
            inner.pass(now);
            return true;
        }
        if inner.is_waited_for() {
            return true;
        }
        let next = inner.next();
        next.into_iter().for_each(|next| inner.pass(next));
        next.is_some()
    }

    /// The same for whoever has something to do at `end`: the clock does not move beyond that. Says
    /// whether anything happened here, or is still to be taken.
    pub fn step_until(&self, end: Time) -> bool {
        let mut inner = self.lock();
        if inner.is_waited_for() {
            return true;
        }
        let next = inner.next();
        inner.pass(next.unwrap_or(end).min(end));
        next.is_some_and(|next| next <= end)
    }
}

/// The net of a world, as long as nobody else has it.
struct NetGuard<'a>(MutexGuard<'a, Inner>);

impl Deref for NetGuard<'_> {
    type Target = Net;

    fn deref(&self) -> &Net {
        &self.0.net
    }
}

impl DerefMut for NetGuard<'_> {
    fn deref_mut(&mut self) -> &mut Net {
        &mut self.0.net
    }
}

impl Inner {
    /// Whether a process that is not stopped has frames to take.
    fn is_waited_for(&self) -> bool {
        let stopped = self.stopped.iter().map(|end| self.net.waiting_at(*end)).sum();
        self.net.waiting() > stopped
    }

    /// When something happens next.
    fn next(&self) -> Option<Time> {
        let running = self.deadlines.iter().filter(|(seat, _)| !self.stopped.contains(&seat.end));
        let due = running.map(|(_, due)| *due).min();
        let traps = self.net.subnet().traps_due();
        [self.net.deadline(), due, self.managers.due(), traps].into_iter().flatten().min()
    }

    fn pass(&mut self, until: Time) {
        self.now = self.now.max(until);
        let (now, net, managers) = (self.now, &mut self.net, &mut self.managers);
        managers.timeout(now);
        if net.subnet().traps_due().is_some_and(|due| due <= now) {
            net.subnet_mut().send_traps(now);
        }
        net.advance(now);
        loop {
            while let Some(delivery) = net.poll_delivery() {
                if managers.take(delivery.at, MgmtClass(delivery.datagram.mad[1])) {
                    managers.handle(now, delivery.at, &delivery.datagram);
                } else {
                    net.give(delivery);
                }
            }
            if !managers.transmit(now, |at, datagram| net.send_datagram(now, at, datagram)) {
                break;
            }
        }
    }
}

impl Drop for NetLink {
    /// An adapter that is gone takes nothing more, and waits for nothing.
    fn drop(&mut self) {
        let mut inner = self.world.lock();
        inner.net.detach(self.seat);
        inner.deadlines.remove(&self.seat);
    }
}

impl Link for NetLink {
    fn now(&self) -> Time {
        self.world.now()
    }

    fn is_virtual(&self) -> bool {
        self.world.lock().clock.is_none()
    }

    fn wants_packets(&self) -> bool {
        self.world.net().wants_packets()
    }

    fn attach(&mut self, lender: &Arc<Lender>) {
        self.world.net_mut().attach(self.seat, lender);
    }

    fn refresh(&mut self, adapter: &mut Adapter) {
        let net = self.world.net();
        if self.epoch != net.epoch() {
            self.epoch = net.epoch();
            adapter.take_port(net.port(self.seat.end));
        }
    }

    fn has_agents(&self) -> bool {
        true
    }

    fn send_packet(&mut self, bytes: &[u8]) -> bool {
        let now = self.world.now();
        let mut inner = self.world.lock();
        inner.net.send(now, self.seat, Frame::Packet(bytes.to_vec()));
        true
    }

    fn send_message(&mut self, head: &[u64], bytes: usize, fill: impl FnMut(&mut [u8])) -> bool {
        let now = self.world.now();
        let mut inner = self.world.lock();
        inner.net.send(now, self.seat, Frame::message(head, bytes, fill));
        true
    }

    fn receive(&mut self, now: Time, adapter: &mut Adapter) -> bool {
        let now_there = self.world.now();
        let mut inner = self.world.lock();
        inner.pass(now_there);
        let Some((origin, frame)) = inner.net.take(self.seat) else { return false };
        let lender = inner.net.lender(origin);
        drop(inner);
        adapter.handle(now, &frame, lender.as_deref());
        true
    }

    fn report(&mut self, violation: &KeyViolation) {
        self.world.net_mut().key_violation(self.seat.end, violation);
    }

    fn open_shared(&mut self, name: &str) -> Result<Box<dyn Device + Send>, VerbsError> {
        let net = self.world.net();
        let end = self.seat.end;
        let seat = net.free_seat(end).ok_or(over("open_shared", "seats_max", SEATS_MAX.into()))?;
        let adapter = Adapter::seated(net.port(end), seat.number);
        drop(net);
        Ok(Box::new(SoftDevice::new(name, adapter, self.world.link_at(seat))))
    }

    fn set_deadline(&mut self, deadline: Option<Time>) {
        let mut inner = self.world.lock();
        match deadline {
            Some(deadline) => inner.deadlines.insert(self.seat, deadline),
            None => inner.deadlines.remove(&self.seat),
        };
    }

    fn idle(&mut self, end: Time) {
        if !self.is_virtual() {
            return std::thread::yield_now();
        }
        let mut inner = self.world.lock();
        let own = inner.deadlines.get(&self.seat).copied();
        let next = [inner.net.deadline(), own, Some(end)].into_iter().flatten().min();
        let soon = inner.now + Duration::from_nanos(1);
        let next = next.unwrap_or(end).max(soon);
        inner.pass(next);
    }
}
