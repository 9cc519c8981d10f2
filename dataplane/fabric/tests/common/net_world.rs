//! A net with adapters in one thread, in virtual time or on a clock.
//!
//! In virtual time a simulation of hours runs in seconds, and a seed replays it. On a clock, the
//! net can have wires to other fabrics.
//!
//! Why a lock in a single thread: a node requires devices that are `Send`, and the same code runs
//! here. The lock is never contended.

use pollux_fabric::link::threads::Clock;
use pollux_fabric::link::{FrameSink, Link};
use pollux_fabric::net::Net;
use pollux_fabric::net::shared_port::PortContext;
use pollux_fabric::sm;
use pollux_fabric::topology::End;
use pollux_fabric::{
    Adapter, Fabric, Frame, KeyViolation, LeaseTable, PORT_CONTEXTS_MAX, SoftDevice, Time,
};
use pollux_verbs::error::over;
use pollux_verbs::{Device, VerbsError};
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
    /// The clock; without one, time is virtual.
    clock: Option<Clock>,
    fabric: Fabric,
    deadlines: BTreeMap<PortContext, Time>,
    /// Ports whose process is stopped.
    stopped: BTreeSet<End>,
}

pub struct NetLink {
    world: NetWorld,
    context: PortContext,
    /// The epoch of the port state that the adapter has.
    epoch: u64,
}

impl NetWorld {
    pub fn new(net: Net) -> Self {
        Self::with(net, None)
    }

    /// A new world on a clock.
    pub fn on_clock(net: Net, clock: Clock) -> Self {
        Self::with(net, Some(clock))
    }

    fn with(net: Net, clock: Option<Clock>) -> Self {
        let (fabric, deadlines, stopped) = (Fabric::new(net), BTreeMap::new(), BTreeSet::new());
        let inner = Inner { now: Time::START, clock, fabric, deadlines, stopped };
        Self { inner: Arc::new(Mutex::new(inner)) }
    }

    pub fn link(&self, end: End) -> NetLink {
        self.link_at(end.into())
    }

    fn link_at(&self, context: PortContext) -> NetLink {
        NetLink { world: self.clone(), context, epoch: 0 }
    }

    /// Starts a subnet manager at a port. From now on there is always a next event.
    pub fn start_manager(&self, at: End, config: sm::SmConfig) {
        self.lock().fabric.start_manager(at, config);
    }

    /// Stops the process of a port's adapters, or continues it. Time does not wait for a stopped
    /// process: frames for it wait, and its deadlines pass.
    pub fn set_stopped(&self, end: End, is_stopped: bool) {
        let mut inner = self.lock();
        match is_stopped {
            true => inner.stopped.insert(end),
            false => inner.stopped.remove(&end),
        };
    }

    pub fn now(&self) -> Time {
        let inner = self.lock();
        inner.clock.as_ref().map_or(inner.now, |clock| clock())
    }

    /// The net. The guard must be dropped before the next call of this world.
    pub fn net(&self) -> impl Deref<Target = Net> + '_ {
        NetGuard(self.lock())
    }

    pub fn net_mut(&self) -> impl DerefMut<Target = Net> + '_ {
        NetGuard(self.lock())
    }

    /// Poisoning does not matter: a panic ends the single thread that uses the lock.
    fn lock(&self) -> MutexGuard<'_, Inner> {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Advances virtual time to the next event; returns whether there is one. Time stops while an
    /// adapter has frames to take. A real clock advances by itself.
    pub fn step(&self) -> bool {
        let now = self.now();
        let mut inner = self.lock();
        if inner.clock.is_some() {
            inner.advance_to(now);
            return true;
        }
        if inner.has_waiting_frames() {
            return true;
        }
        let next = inner.next();
        next.into_iter().for_each(|next| inner.advance_to(next));
        next.is_some()
    }

    /// Advances virtual time, but not beyond `end`. Returns whether an event was handled, or a
    /// frame waits.
    pub fn step_until(&self, end: Time) -> bool {
        let mut inner = self.lock();
        if inner.has_waiting_frames() {
            return true;
        }
        let next = inner.next();
        inner.advance_to(next.unwrap_or(end).min(end));
        next.is_some_and(|next| next <= end)
    }
}

struct NetGuard<'a>(MutexGuard<'a, Inner>);

impl Deref for NetGuard<'_> {
    type Target = Net;

    fn deref(&self) -> &Net {
        &self.0.fabric.net
    }
}

impl DerefMut for NetGuard<'_> {
    fn deref_mut(&mut self) -> &mut Net {
        &mut self.0.fabric.net
    }
}

impl Inner {
    /// Whether a process that is not stopped has frames to take.
    fn has_waiting_frames(&self) -> bool {
        let stopped = self.stopped.iter().map(|end| self.fabric.net.waiting_at(*end)).sum();
        self.fabric.net.waiting() > stopped
    }

    fn next(&self) -> Option<Time> {
        let running =
            self.deadlines.iter().filter(|(context, _)| !self.stopped.contains(&context.end));
        let due = running.map(|(_, due)| *due).min();
        [self.fabric.due(), due].into_iter().flatten().min()
    }

    fn advance_to(&mut self, until: Time) {
        self.now = self.now.max(until);
        self.fabric.advance(self.now);
    }
}

impl Drop for NetLink {
    /// A dropped adapter takes no frames and has no deadline.
    fn drop(&mut self) {
        let mut inner = self.world.lock();
        inner.fabric.net.detach(self.context);
        inner.deadlines.remove(&self.context);
    }
}

impl FrameSink for NetLink {
    fn has_agents(&self) -> bool {
        true
    }

    fn send_packet(&mut self, bytes: &[u8]) -> bool {
        let now = self.world.now();
        let mut inner = self.world.lock();
        inner.fabric.net.send(now, self.context, Frame::Packet(bytes.to_vec()));
        true
    }

    fn send_message(&mut self, head: &[u64], bytes: usize, fill: impl FnMut(&mut [u8])) -> bool {
        let now = self.world.now();
        let mut inner = self.world.lock();
        inner.fabric.net.send(now, self.context, Frame::message(head, bytes, fill));
        true
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

    fn attach(&mut self, leases: &Arc<LeaseTable>) {
        self.world.net_mut().attach(self.context, leases);
    }

    fn refresh(&mut self, adapter: &mut Adapter) {
        let net = self.world.net();
        if self.epoch != net.epoch() {
            self.epoch = net.epoch();
            adapter.take_port(net.port(self.context.end));
        }
    }

    fn receive(&mut self, now: Time, adapter: &mut Adapter) -> bool {
        let world_now = self.world.now();
        let mut inner = self.world.lock();
        inner.advance_to(world_now);
        let Some((origin, frame)) = inner.fabric.net.take(self.context) else { return false };
        let leases = inner.fabric.net.leases(origin);
        drop(inner);
        adapter.handle(now, &frame, leases.as_deref());
        true
    }

    fn report(&mut self, violation: &KeyViolation) {
        self.world.net_mut().key_violation(self.context.end, violation);
    }

    fn open_shared(&mut self, name: &str) -> Result<Box<dyn Device + Send>, VerbsError> {
        let net = self.world.net();
        let end = self.context.end;
        let context = net.free_context(end).ok_or(over(
            "open_shared",
            "port_contexts_max",
            PORT_CONTEXTS_MAX.into(),
        ))?;
        let adapter = Adapter::in_context(net.port(end), context.vhca_index);
        drop(net);
        Ok(Box::new(SoftDevice::new(name, adapter, self.world.link_at(context))))
    }

    fn set_deadline(&mut self, deadline: Option<Time>) {
        let mut inner = self.world.lock();
        match deadline {
            Some(deadline) => inner.deadlines.insert(self.context, deadline),
            None => inner.deadlines.remove(&self.context),
        };
    }

    fn idle(&mut self, end: Time) {
        if !self.is_virtual() {
            return std::thread::yield_now();
        }
        let mut inner = self.world.lock();
        let own = inner.deadlines.get(&self.context).copied();
        let next = [inner.fabric.net.deadline(), own, Some(end)].into_iter().flatten().min();
        let next = next.unwrap_or(end).max(inner.now + Duration::from_nanos(1));
        inner.advance_to(next);
    }
}
