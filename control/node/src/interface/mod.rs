//! A running interface: control's decisions, carried out at a device.
//!
//! ```text
//!   device --> port driver --arrived--> control --actions, frames, MADs--> port driver --> device
//!                                         ^ |
//!                                         | +--actions--> worker group ==> secondary worker
//!                                         +----events----------------- <== secondary worker
//! ```
//!
//! 1. [`port_driver`]: the device and everything that a worker has there; [`gsi`]: queue pair 1 of
//!    the interface; [`in_band`]: MADs as packets, for Ethernet, which has no queue pair 1;
//! 2. `actions` and [`sending`]: carry out actions of control, and send packets of the host;
//! 3. [`sockets`]: the fast path between a socket stack and the device;
//! 4. [`echo`]: our echo requests, for `pollux ping`;
//! 5. `sleep`: sleep at the device of an idle worker;
//! 6. [`SecondaryWorker`]: a further worker of the interface, with a port driver of its own;
//!    `worker_channel`: the rings between it and the primary worker; `worker_group`: all secondary
//!    workers, as the primary worker sees them; [`counters`]: the counters of each worker.
//!
//! An interface with several workers is one interface: its primary worker has control, queue pair
//! 1, groups and the queue pair that its link address names. Each secondary worker has connections
//! of its own, which control makes for it.
//!
//! An interface has no clock and no thread: its caller passes the time, and calls
//! [`Interface::step`] again after it did something, and at [`Interface::poll_timeout`].

mod actions;
pub mod counters;
pub mod echo;
pub mod gsi;
mod handles;
pub mod in_band;
mod losses;
pub mod port_driver;
mod secondary_worker;
mod seen;
pub mod sending;
mod sleep;
pub mod sockets;
mod worker_channel;
mod worker_group;

pub use secondary_worker::SecondaryWorker;
pub use sockets::WorkerPort;

use crate::config::{InterfaceSettings, Mode};
use crate::port::PortAccess;
use counters::DriverCounters;
use echo::{EchoId, Echoes, Outcome};
use pollux_control::bounded::Queue;
use pollux_control::interface as control;
use pollux_control::interface::{Delivery, Worker};
use pollux_control::peer::{PeerConfig, Policy};
use pollux_dataplane::ipoib::Received;
use pollux_verbs::VerbsError;
use pollux_verbs::rng::SeededRng;
use pollux_verbs::time::Time;
use pollux_wire::address::Scope;
use pollux_wire::ip::ipoib::{EtherType, IpoibHeader};
use port_driver::{Arrived, DeviceError, PortDriver, Terms};
use sockets::{Take, Used};
use std::net::IpAddr;
use std::time::Duration;
use worker_channel::WorkerEvent;
use worker_group::WorkerGroup;

/// How often control is told which connections are used.
const USES_EVERY: Duration = Duration::from_secs(1);
/// How long MADs wait for secondary workers to modify the queue pairs that the MADs announce, and
/// how often that is checked.
const MODIFY_MAX: Duration = Duration::from_millis(50);
const MODIFY_LOOK: Duration = Duration::from_micros(50);
/// Packets that wait for sockets, at most.
const DELIVERIES_MAX: usize = 4096;

/// An interface at a device.
pub struct Interface {
    control: control::Interface,
    /// Whether control was told something, and may have something to do for it.
    control_is_due: bool,
    /// When control has something to do though it is told nothing: asking costs more than all else
    /// that an idle turn does.
    control_due: Option<Time>,
    driver: PortDriver,
    workers: WorkerGroup,
    arrived: Arrived,
    echoes: Echoes,
    /// What came for sockets, if there are any.
    deliveries: Option<Queue<Delivery>>,
    /// When control is told which connections are used.
    uses_due: Time,
    /// Neighbors that it was told of.
    used: Used,
    /// Neighbors that TCP made progress with, as it was told.
    confirmed: Used,
    /// When control is looked at, at the latest.
    look_at: Time,
    /// Since when management waits for secondary workers, and when it is looked at again.
    held: Option<(Time, Time)>,
    is_leaving: bool,
    /// Why it does not run any more.
    failed: Option<VerbsError>,
}

impl Interface {
    /// An interface at a device, which comes up as soon as it can, and which one worker moves,
    /// whatever its settings say. The seed is to be unknown to others.
    pub fn new(
        now: Time,
        access: impl Into<PortAccess>,
        settings: &InterfaceSettings,
        seed: u64,
    ) -> Result<Self, DeviceError> {
        let alone = InterfaceSettings { workers: 1, ..settings.clone() };
        Self::with_workers(now, access, &alone, seed).map(|(interface, _)| interface)
    }

    /// The same with as many workers as the settings say: the interface itself for the first, and a
    /// secondary worker for each other. A secondary worker may go to another thread.
    pub fn with_workers(
        now: Time,
        access: impl Into<PortAccess>,
        settings: &InterfaceSettings,
        seed: u64,
    ) -> Result<(Self, Vec<SecondaryWorker>), DeviceError> {
        let mut rng = SeededRng::secret(seed);
        let message_bytes = (settings.mode != Mode::Ud).then_some(receive_mtu(settings));
        let terms = Terms { p_key: settings.pkey, scope: Scope::LINK_LOCAL, message_bytes };
        let mut driver = PortDriver::new(access.into(), terms, rng.next_u64())?;
        let mut workers = WorkerGroup::default();
        let secondaries = (1..settings.workers).map(|number| {
            let worker = (Worker(number), &mut driver);
            SecondaryWorker::join(now, &mut workers, worker, terms, rng.next_u64())
        });
        let secondaries = secondaries.collect::<Result<Vec<_>, _>>()?;
        let config = config(settings, &driver);
        let mut interface = Self {
            control: control::Interface::new(now, config, rng.next_u64()),
            control_is_due: true,
            control_due: None,
            driver,
            workers,
            arrived: Arrived { port_changed: true, ..Arrived::default() },
            echoes: Echoes::default(),
            deliveries: None,
            uses_due: now + USES_EVERY,
            used: Used::new(),
            confirmed: Used::new(),
            look_at: now,
            held: None,
            is_leaving: false,
            failed: None,
        };
        interface.step(now);
        Ok((interface, secondaries))
    }

    /// What is decided, to be shown.
    pub fn control(&self) -> &control::Interface {
        &self.control
    }

    /// What is moved, to be shown.
    pub fn driver(&self) -> &PortDriver {
        &self.driver
    }

    /// What each of its workers has moved. Of secondary workers it is known with a short delay.
    pub fn counters(&self) -> impl Iterator<Item = (Worker, DriverCounters)> {
        [(Worker::LEAD, self.driver.counters())].into_iter().chain(self.workers.counters())
    }

    /// Why it does not run any more, if that is so.
    pub fn failed(&self) -> Option<&VerbsError> {
        self.failed.as_ref()
    }

    /// Does what there is to do; says whether that was anything.
    pub fn step(&mut self, now: Time) -> bool {
        if self.failed.is_some() {
            return false;
        }
        self.turn(now, &mut |_| false)
    }

    /// The same, where somebody takes packets before control does.
    fn turn(&mut self, now: Time, take: Take<'_>) -> bool {
        let polled = self.driver.poll(now, &mut self.arrived);
        let stepped = polled
            .and_then(|busy| Ok(self.handle_arrived(now, take)? | busy))
            .and_then(|busy| Ok(self.poll_workers(now)? | busy));
        let mut busy = match stepped {
            Ok(busy) => busy,
            Err(error) => return self.fail(error),
        };
        self.control_is_due |= self.held.is_some_and(|(_, look_at)| look_at <= now);
        if std::mem::take(&mut self.control_is_due) {
            busy |= self.drain(now);
            self.control_due = self.control.poll_timeout();
        }
        if self.control_due.is_some_and(|due| due <= now) {
            self.control_mut().handle_timeout(now);
            busy = true;
        }
        if self.uses_due <= now {
            self.driver.report_uses();
            self.driver.retry(now);
            self.workers.publish(|| self.control.snapshot());
            self.uses_due = now + USES_EVERY;
        }
        self.echoes.handle_timeout(now);
        if self.control_is_due {
            self.drain(now);
        }
        if self.is_leaving && self.is_idle() && self.workers.is_idle() {
            self.workers.end();
        }
        busy
    }

    /// It does not run any more, and its secondary workers neither.
    fn fail(&mut self, why: VerbsError) -> bool {
        self.workers.end();
        self.failed = Some(why);
        true
    }

    /// Control, to be told something.
    fn control_mut(&mut self) -> &mut control::Interface {
        self.control_is_due = true;
        &mut self.control
    }

    /// Takes leave: of servers, of groups, and of peers. [`Interface::has_left`] tells when they
    /// know.
    pub fn leave(&mut self, now: Time) {
        self.control_mut().release(now);
        self.drain(now);
        self.control_mut().set_open(now, false);
        self.drain(now);
        self.is_leaving = true;
    }

    /// Whether all have been told: what is left are queue pairs for whose numbers packets may be
    /// under way. Of secondary workers nothing is left.
    pub fn has_left(&self) -> bool {
        self.failed.is_some() || self.is_idle() && self.workers.is_gone()
    }

    /// Whether nothing is left to be said.
    fn is_idle(&self) -> bool {
        !self.control.is_up() && self.held.is_none() && self.driver.is_idle()
    }

    /// When there is something to do though nothing comes.
    pub fn poll_timeout(&self) -> Option<Time> {
        let held = self.held.map(|(_, look_at)| look_at);
        let own = [self.echoes.poll_timeout(), Some(self.uses_due), held];
        own.into_iter()
            .chain([self.control.poll_timeout()])
            .flatten()
            .min()
            .filter(|_| self.failed.is_none())
    }

    /// Asks a node for an echo of so many bytes. What becomes of it [`Interface::echo`] tells.
    pub fn ping(
        &mut self,
        now: Time,
        to: IpAddr,
        bytes: usize,
        patience: Duration,
    ) -> Result<EchoId, PingError> {
        if !self.control.is_up() {
            return Err(PingError::Down);
        }
        let from = self.control.addresses().source_for(to).ok_or(PingError::NoSource)?;
        let (id, packet) = self.echoes.ask(now, (from, to), bytes, patience)?;
        if let Err(why) = self.send(now, &packet) {
            self.echoes.not_sent(id, why);
        }
        Ok(id)
    }

    /// What became of a request, once; nothing as long as it is under way.
    pub fn echo(&mut self, id: EchoId) -> Option<Outcome> {
        self.echoes.take(id)
    }

    /// From now on somebody takes what comes for sockets.
    pub fn keep_deliveries(&mut self) {
        self.deliveries.get_or_insert_with(|| Queue::new(DELIVERIES_MAX));
    }

    /// The next packet for sockets.
    pub fn poll_delivery(&mut self) -> Option<Delivery> {
        self.deliveries.as_mut()?.pop()
    }

    /// A socket hears a group. `false` if it is none, or there are too many.
    pub fn join_group(&mut self, now: Time, group: IpAddr) -> bool {
        let is_joined = self.control_mut().join(now, group);
        self.drain(now);
        is_joined
    }

    /// A socket hears a group no more.
    pub fn leave_group(&mut self, now: Time, group: IpAddr) {
        self.control_mut().leave(now, group);
        self.drain(now);
    }

    /// Tells control what has come.
    fn handle_arrived(&mut self, now: Time, take: Take<'_>) -> Result<bool, VerbsError> {
        let mut arrived = std::mem::take(&mut self.arrived);
        let busy = !arrived.is_empty();
        if arrived.port_changed {
            let port = self.driver.port()?;
            self.control_mut().handle_port(now, &port);
        }
        if arrived.reregister {
            self.control_mut().handle_reregister(now);
        }
        for envelope in arrived.mads.drain(..) {
            self.control_mut().handle_mad(now, &envelope);
        }
        for received in arrived.packets.drain(..) {
            if !take(received.packet.bytes()) {
                self.handle_packet(now, &received);
            }
            self.driver.recycle(received);
        }
        for (connection, event) in arrived.connection_events.drain(..) {
            self.control_mut().handle_connection(now, connection, &event);
        }
        for (packet, mtu) in arrived.too_big.drain(..) {
            self.control_mut().handle_too_big(now, &packet, mtu);
        }
        for packet in arrived.punts.drain(..) {
            self.control_mut().handle_miss(now, Worker::LEAD, packet);
        }
        (arrived.port_changed, arrived.reregister) = (false, false);
        self.arrived = arrived;
        Ok(busy)
    }

    fn handle_packet(&mut self, now: Time, received: &Received) {
        if !self.driver.is_for_us(received) {
            return;
        }
        let Some(from) = self.driver.from(received) else { return };
        let (ether_type, packet) = (received.ether_type, received.packet.bytes());
        if ether_type == EtherType::IN_BAND_MAD {
            if let Some(envelope) = self.driver.management_in(received) {
                self.control_mut().handle_mad(now, &envelope);
            }
            return;
        }
        self.control_mut().handle_packet(now, control::Received { ether_type, packet, from });
    }

    /// Tells control what secondary workers have told; says whether that was anything.
    fn poll_workers(&mut self, now: Time) -> Result<bool, VerbsError> {
        let Self { workers, control, control_is_due, .. } = self;
        let mut busy = false;
        let polled = workers.poll_events(|worker, event| {
            busy = true;
            match event {
                WorkerEvent::Connection(connection, event) => {
                    control.handle_connection(now, connection, &event);
                }
                WorkerEvent::Packet(ether_type, packet, from) => {
                    let packet = &packet[..];
                    control.handle_packet(now, control::Received { ether_type, packet, from });
                }
                WorkerEvent::NoListener(packet) => control.handle_no_listener(now, &packet),
                WorkerEvent::Punt(packet) => control.handle_miss(now, worker, packet),
                WorkerEvent::TooBig(packet, mtu) => control.handle_too_big(now, &packet, mtu),
                WorkerEvent::Use(next_hop) => control.handle_use(now, next_hop),
                WorkerEvent::Progress(to) => control.handle_progress(now, to),
            }
        });
        *control_is_due |= busy;
        polled.map(|()| busy)
    }

    /// Does what control wants, until it wants nothing more; says whether that was anything.
    fn drain(&mut self, now: Time) -> bool {
        let mut busy = false;
        while let Some(action) = self.control.poll_action() {
            if let Some(action) = self.workers.assign(action) {
                self.driver.carry_out(now, action);
            }
            busy = true;
        }
        if busy {
            self.driver.show_changes();
            self.workers.publish(|| self.control.snapshot());
        }
        busy |= self.send_mads(now);
        while let Some(outgoing) = self.control.poll_frame() {
            self.driver.send(&outgoing);
            busy = true;
        }
        while let Some(delivery) = self.control.poll_delivery() {
            self.echoes.handle(now, &delivery);
            if let Some(deliveries) = &mut self.deliveries {
                deliveries.push(delivery);
            }
            busy = true;
        }
        busy
    }
}

/// Management.
impl Interface {
    /// Sends MADs of control, once secondary workers have modified the queue pairs that the MADs
    /// announce, or after [`MODIFY_MAX`].
    fn send_mads(&mut self, now: Time) -> bool {
        if self.workers.is_modifying() {
            let (since, _) = self.held.unwrap_or((now, now));
            if now < since + MODIFY_MAX {
                self.held = Some((since, now + MODIFY_LOOK));
                return false;
            }
        }
        self.held = None;
        let mut busy = false;
        while let Some(envelope) = self.control.poll_mad() {
            self.driver.send_mad(&envelope);
            busy = true;
        }
        busy
    }
}

/// What an interface with these settings is to control.
fn config(settings: &InterfaceSettings, driver: &PortDriver) -> control::InterfaceConfig {
    let guid = driver.node_guid();
    let peer = match driver.acks_when_polled() {
        true => PeerConfig::of_polled(guid),
        false => PeerConfig::of(guid),
    };
    control::InterfaceConfig {
        addresses: settings.fixed_addresses().map(|prefix| (prefix.ip, prefix.len)).collect(),
        dhcp: settings.asks_for_address(),
        mtu_max: settings.mtu,
        routers: settings.router.clone(),
        neighbors: settings.neighbor.iter().map(|one| (one.address, one.link)).collect(),
        ipv6: settings.ipv6,
        workers: settings.workers,
        peer: PeerConfig {
            policy: policy(settings.mode),
            receive_mtu: receive_mtu(settings),
            migrates: driver.migrates(),
            ..peer
        },
        policies: settings.peer.iter().map(|one| (one.address, policy(one.mode))).collect(),
        ..control::InterfaceConfig::new(guid, driver.qpn(), settings.pkey)
    }
}

/// The longest message of a connection.
const fn receive_mtu(settings: &InterfaceSettings) -> u32 {
    settings.mtu + IpoibHeader::LEN as u32
}

/// What a configuration calls a policy.
const fn policy(mode: Mode) -> Policy {
    match mode {
        Mode::Ud => Policy::Ud,
        Mode::Rc => Policy::Rc,
        Mode::Uc => Policy::Uc,
        Mode::Auto => Policy::Auto,
    }
}

/// Why nobody is asked for an echo.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum PingError {
    /// The interface is down.
    Down,
    /// It has no address to ask from.
    NoSource,
    /// Too many requests are under way.
    TooMany,
    /// No IP packet is so long.
    TooLong,
}
