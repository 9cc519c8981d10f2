//! An interface: its control plane at a port, and its workers.
//!
//! ```text
//!   port: MADs, events --> IpoibLink --actions, frames--> InterfaceWorker <--packets--> device
//!                                    <-----events--------
//! ```
//!
//! 1. [`InterfaceWorker`]: a worker, which moves packets between its queue pairs and sockets
//!    without control; [`port_driver`]: its device, and all objects that it has there;
//! 2. `worker_channel`: the rings between control and a worker; `worker_ends`: all workers, as
//!    control sees them;
//! 3. [`echo`]: ICMP echo requests, for `pollux ping`; `for_kernel`: packets between the interface
//!    and the kernel; `setting`: changes of settings;
//! 4. [`Inline`]: control and a worker in one thread.
//!
//! Control has the MAD transport, and a device context of its own; it never touches the contexts of
//! workers. All workers are alike, except that worker 0 has the UD queue pair of the link address.
//!
//! An interface has no clock and no thread: its caller passes the time, and calls
//! [`IpoibLink::step`] again after a busy step, and at [`IpoibLink::poll_timeout`].

pub mod echo;
pub(crate) mod for_kernel;
mod inline;
pub mod port_driver;
mod reported;
mod setting;
mod worker;
mod worker_channel;
mod worker_ends;

pub use echo::PingError;
pub use inline::Inline;
pub use port_driver::sending::destination;
pub use port_driver::{DeviceError, NotSent, Take};
pub(crate) use reported::Reported;
pub use worker::InterfaceWorker;

use crate::config::{InterfaceSettings, Mode};
use crate::port::{DevicePort, MadDrops, PortAccess, PortHandle};
use echo::{EchoId, EchoOutcome, EchoRequest, Echoes};
use for_kernel::KernelDrops;
use pollux_control::bounded::BoundedQueue;
use pollux_control::icmp::IcmpError;
use pollux_control::ipoib as control;
use pollux_control::ipoib::{Action, By, OutgoingPacket};
use pollux_control::mad::Envelope;
use pollux_dataplane::capture::{CaptureReader, CaptureTerms};
use pollux_dataplane::port::TransitError;
use pollux_mem::pool::PoolError;
use pollux_mem::snapshot::Publisher;
use pollux_verbs::rng::SeededRng;
use pollux_verbs::time::Time;
use pollux_verbs::{AsyncEvent, VerbsError};
use pollux_wire::address::{Gid, Scope};
use pollux_wire::ethernet::EtherType;
use port_driver::counters::DriverCounters;
use port_driver::memory::WorkerMemory;
use port_driver::{PortDriver, PortDriverConfig};
use setting::{config, receive_mtu};
use std::collections::BTreeSet;
use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;
use worker_channel::{WorkerEvent, channel};
use worker_ends::WorkerEnds;

/// The interval between retries of subscriptions to groups that the network refused.
const RETRY_EVERY: Duration = Duration::from_secs(1);
/// MADs wait until workers have modified the queue pairs that the MADs announce: the longest wait,
/// and the interval of checks.
const MODIFY_MAX: Duration = Duration::from_millis(50);
const MODIFY_LOOK: Duration = Duration::from_micros(50);

/// Returns the packet memory of the thread in which the worker with this number runs.
pub type MemoryOf<'a> = &'a mut dyn FnMut(u8) -> Result<Arc<WorkerMemory>, PoolError>;

/// The control plane of an interface, at a port.
pub struct IpoibLink {
    control: control::IpoibInterface,
    /// Whether control got input since it was drained.
    control_is_due: bool,
    /// The next timeout of control. Computing it costs more than the rest of an idle step.
    control_due: Option<Time>,
    port: PortHandle,
    mads: Vec<Envelope>,
    workers: WorkerEnds,
    echoes: Echoes,
    /// Whether packets for this host go to the sockets of worker 0.
    delivers: bool,
    /// Packets for the kernel, if it has a shadow of the interface.
    for_kernel: Option<BoundedQueue<Vec<u8>>>,
    pub(crate) kernel_drops: KernelDrops,
    /// Packets for this host that neither sockets nor the kernel take.
    pub(crate) no_socket: u64,
    /// Groups that the network refused, and the time of the next retry.
    unsubscribed: BTreeSet<Gid>,
    retry_at: Time,
    /// Since when MADs wait for workers, and when the next check is due.
    held: Option<(Time, Time)>,
    is_leaving: bool,
    failed: Option<VerbsError>,
}

impl IpoibLink {
    /// Creates an interface and its workers. The interface comes up as soon as possible, and
    /// workers may move to other threads. The seed has to be secret.
    pub fn new(
        now: Time,
        access: impl Into<PortAccess>,
        settings: &InterfaceSettings,
        seed: u64,
    ) -> Result<(Self, Vec<InterfaceWorker>), DeviceError> {
        let connects = settings.mode != Mode::Ud;
        Self::with_memory(now, access, settings, seed, &mut |_| WorkerMemory::new(1, connects))
    }

    /// Does the same as [`IpoibLink::new`], but workers use the packet memory of their threads.
    pub fn with_memory(
        now: Time,
        access: impl Into<PortAccess>,
        settings: &InterfaceSettings,
        seed: u64,
        memory: MemoryOf<'_>,
    ) -> Result<(Self, Vec<InterfaceWorker>), DeviceError> {
        let mut rng = SeededRng::secret(seed);
        let message_bytes = (settings.mode != Mode::Ud).then_some(receive_mtu(settings));
        let terms =
            PortDriverConfig { p_key: settings.pkey, scope: Scope::LINK_LOCAL, message_bytes };
        let port = access.into().context(settings.pkey, settings.mode != Mode::Ud)?;
        let mut drivers = Vec::new();
        for number in 0..settings.workers {
            let access = port.open_worker().map_err(DeviceError::NoWorkerContext)?;
            let memory = memory(number).map_err(DeviceError::Memory)?;
            drivers.push(PortDriver::new(access, terms, memory, rng.next_u64())?);
        }
        let qpns: Vec<_> = drivers.iter().map(PortDriver::qpn).collect();
        let (first, others) = qpns.split_first().expect("an interface has at least one worker");
        others.iter().for_each(|&qpn| drivers[0].add_sibling(qpn));
        let config = config(settings, &port, *first);
        let mut ends = WorkerEnds::default();
        let worker = |(number, driver): (u8, PortDriver)| {
            let (control_end, end) = channel();
            let counters = Publisher::new(DriverCounters::default());
            ends.join(control_end, counters.reader());
            InterfaceWorker::new(now, control::WorkerId(number), driver, counters, end)
        };
        let workers = (0..).zip(drivers).map(worker).collect();
        let mut interface = Self {
            control: control::IpoibInterface::new(now, config, rng.next_u64()),
            control_is_due: true,
            control_due: None,
            port,
            mads: Vec::new(),
            workers: ends,
            echoes: Echoes::default(),
            delivers: false,
            for_kernel: None,
            kernel_drops: KernelDrops::default(),
            no_socket: 0,
            unsubscribed: BTreeSet::new(),
            retry_at: now + RETRY_EVERY,
            held: None,
            is_leaving: false,
            failed: None,
        };
        match interface.port.view() {
            Ok(port) => interface.control.handle_port(now, &port),
            Err(why) => interface.fail(why),
        }
        interface.step(now);
        Ok((interface, workers))
    }

    /// The control plane, for reports.
    pub fn control(&self) -> &control::IpoibInterface {
        &self.control
    }

    /// The state, LID and keys of the port.
    pub fn port(&self) -> Result<control::PortView, VerbsError> {
        self.port.view()
    }

    /// The counters of all workers, as last published by them.
    pub fn counters(&self) -> impl Iterator<Item = (control::WorkerId, DriverCounters)> {
        self.workers.counters()
    }

    /// Drops of the MAD transport, which all interfaces at the port share.
    pub fn mad_drops(&self) -> MadDrops {
        self.port.drops()
    }

    /// Dropped packets of control and for sockets: the ring of the worker was full.
    pub const fn packets_dropped(&self) -> u64 {
        self.workers.packets_dropped
    }

    pub const fn failed(&self) -> Option<&VerbsError> {
        self.failed.as_ref()
    }

    /// Workers to be woken, one bit each: they got commands since the last call.
    pub fn take_notified(&mut self) -> u32 {
        self.workers.take_notified()
    }

    fn control_mut(&mut self) -> &mut control::IpoibInterface {
        self.control_is_due = true;
        &mut self.control
    }

    /// Releases the lease, leaves all groups and disconnects all peers. [`IpoibLink::has_left`]
    /// reports when that is complete.
    pub fn leave(&mut self, now: Time) {
        if self.is_leaving {
            return;
        }
        self.control_mut().release(now);
        self.drain(now);
        self.control_mut().set_open(now, false);
        self.drain(now);
        self.is_leaving = true;
    }

    /// Whether all peers were notified, everything is released, and all workers have ended.
    pub fn has_left(&self) -> bool {
        self.failed.is_some() || self.has_disconnected() && self.workers.is_gone()
    }

    /// Whether all peers were notified, and all workers have stopped their queue pairs.
    pub fn has_disconnected(&self) -> bool {
        let is_sent = !self.control.is_up() && self.held.is_none() && self.port.is_idle();
        self.failed.is_some() || is_sent && self.workers.is_idle()
    }

    /// Whether all packets that the interface accepted have been sent, by control and by workers.
    pub fn is_drained(&self) -> bool {
        self.failed.is_some() || self.workers.has_sent() && self.has_sent()
    }

    /// Whether no packet waits for a neighbor, a connection or a group.
    pub fn has_sent(&self) -> bool {
        let control = &self.control;
        self.workers.has_no_events()
            && control.neighbor_rows().all(|row| row.pending == 0)
            && control.peer_rows().all(|row| row.pending == 0)
            && control.group_rows().all(|row| row.pending == 0)
    }

    /// Sends an ICMP echo request. [`IpoibLink::echo`] returns the outcome.
    pub fn ping(&mut self, now: Time, request: EchoRequest) -> Result<EchoId, PingError> {
        if !self.control.is_up() {
            return Err(PingError::Down);
        }
        let from = self.control.addresses().source_for(request.to).ok_or(PingError::NoSource)?;
        let (id, packet) = self.echoes.request(now, from, request)?;
        self.control_mut().handle_miss(now, control::WorkerId::PRIMARY, packet);
        Ok(id)
    }

    /// Takes the outcome of an echo request, if it has one yet, and the sender of the ICMP error
    /// that caused it.
    pub fn echo(&mut self, id: EchoId) -> Option<(EchoOutcome, Option<IpAddr>)> {
        self.echoes.take(id)
    }

    /// Begins a capture. It ends when the returned readers, one for each worker, are dropped.
    pub fn capture(&mut self, terms: &CaptureTerms) -> Vec<CaptureReader> {
        self.workers.capture(terms)
    }

    /// Passes packets for sockets to worker 0 from now on, and neighbor changes to all workers.
    pub fn serve_sockets(&mut self, now: Time) {
        self.delivers = true;
        self.control_mut().watch_neighbors(now);
    }

    /// Handles what has arrived, and timers. Returns whether there was anything to do.
    pub fn step(&mut self, now: Time) -> bool {
        if self.failed.is_some() {
            return false;
        }
        let mut busy = match self.handle_input(now) {
            Ok(busy) => busy,
            Err(error) => {
                self.fail(error);
                return true;
            }
        };
        self.control_is_due |= self.held.is_some_and(|(_, look_at)| look_at <= now);
        if self.control_due.is_some_and(|due| due <= now) {
            self.control_mut().handle_timeout(now);
        }
        if self.retry_at <= now {
            self.retry_at = now + RETRY_EVERY;
            let port = &mut self.port;
            self.unsubscribed.retain(|mgid| !port.subscribe(*mgid));
        }
        if std::mem::take(&mut self.control_is_due) {
            busy |= self.drain(now);
            self.control_due = self.control.poll_timeout();
        }
        self.echoes.handle_timeout(now);
        if self.is_leaving && self.has_disconnected() {
            self.workers.end();
        }
        busy
    }

    pub const fn sleep_port(&self) -> &DevicePort {
        self.port.port()
    }

    pub fn poll_timeout(&self) -> Option<Time> {
        let held = self.held.map(|(_, look_at)| look_at);
        let retry = (!self.unsubscribed.is_empty()).then_some(self.retry_at);
        let all = [self.echoes.poll_timeout(), held, retry, self.control.poll_timeout()];
        all.into_iter().flatten().min().filter(|_| self.failed.is_none())
    }

    fn fail(&mut self, why: VerbsError) {
        self.workers.end();
        self.failed = Some(why);
    }

    /// Passes input of the port and of workers to control.
    fn handle_input(&mut self, now: Time) -> Result<bool, VerbsError> {
        let mut busy = self.handle_port_events(now)?;
        let mut mads = std::mem::take(&mut self.mads);
        busy |= self.port.poll(now, &mut mads)?;
        for envelope in mads.drain(..) {
            self.control_mut().handle_mad(now, &envelope);
        }
        self.mads = mads;
        Ok(self.poll_workers(now)? | busy)
    }

    fn handle_port_events(&mut self, now: Time) -> Result<bool, VerbsError> {
        let (mut port_changed, mut reregister) = (false, false);
        let mut busy = false;
        while let Some(event) = self.port.async_event()? {
            busy = true;
            match event {
                AsyncEvent::ClientReregister(port) => reregister |= self.port.is(port),
                // The port may be up again by now, and the subnet manager may have removed it from
                // its groups meanwhile.
                AsyncEvent::PortError(port) if self.port.is(port) => {
                    (port_changed, reregister) = (true, true);
                }
                AsyncEvent::PortActive(port)
                | AsyncEvent::LidChange(port)
                | AsyncEvent::PkeyChange(port)
                | AsyncEvent::GidChange(port)
                | AsyncEvent::SmChange(port) => port_changed |= self.port.is(port),
                _ => {}
            }
        }
        if port_changed {
            let port = self.port.view()?;
            self.control_mut().handle_port(now, &port);
        }
        if reregister {
            self.control_mut().handle_reregister(now);
        }
        Ok(busy)
    }

    /// Passes events of workers to control. Returns whether there were any.
    fn poll_workers(&mut self, now: Time) -> Result<bool, VerbsError> {
        let Self { workers, control, port, .. } = self;
        let mut busy = false;
        let polled = workers.poll_events(|worker, event| {
            busy = true;
            match event {
                WorkerEvent::Connection(connection, event) => {
                    control.handle_connection(now, connection, &event);
                }
                WorkerEvent::Packet(EtherType::IN_BAND_MAD, packet, from) => {
                    let own = control.link().map(|link| link.gid);
                    let envelope = own.and_then(|own| port.management_in(&from, &packet, own));
                    if let Some(envelope) = envelope {
                        control.handle_mad(now, &envelope);
                    }
                }
                WorkerEvent::Packet(ether_type, packet, from) => {
                    let packet = &packet[..];
                    control
                        .handle_packet(now, control::ReceivedPacket { ether_type, packet, from });
                }
                WorkerEvent::NoListener(packet) => control.handle_no_listener(now, &packet),
                WorkerEvent::Punt(packet) => control.handle_miss(now, worker, packet),
                WorkerEvent::Transit(packet, hop, mtu) => {
                    control.handle_transit(now, worker, packet, hop, mtu);
                }
                WorkerEvent::TooBig(packet, mtu) => control.handle_too_big(now, &packet, mtu),
                WorkerEvent::Rejected(packet, why) => {
                    control.handle_rejected(now, &packet, icmp_error(why));
                }
                WorkerEvent::Use(next_hop) => control.handle_use(now, next_hop),
                WorkerEvent::Progress(to) => control.handle_progress(now, to),
            }
        });
        self.control_is_due |= busy;
        polled.map(|()| busy)
    }

    /// Passes actions, packets and neighbor changes of control to workers, and sends its MADs.
    /// Returns whether there were any.
    fn drain(&mut self, now: Time) -> bool {
        let mut busy = false;
        while let Some(action) = self.control.poll_action() {
            self.note_group(&action);
            self.workers.assign(action);
            busy = true;
        }
        if busy {
            self.workers.publish(self.control.snapshot());
        }
        busy |= self.send_mads(now);
        while let Some(outgoing) = self.control.poll_frame() {
            self.workers.send(outgoing);
            busy = true;
        }
        while let Some(change) = self.control.poll_neighbor_change() {
            self.workers.report(change);
            busy = true;
        }
        while let Some(delivery) = self.control.poll_delivery() {
            let is_taken = self.echoes.handle(now, &delivery);
            if let Some(packets) = &mut self.for_kernel {
                packets.push(delivery.packet.clone());
            }
            if self.delivers {
                self.workers.deliver(delivery);
            } else if self.for_kernel.is_none() && !is_taken {
                self.no_socket += 1;
                if delivery.has_port() {
                    self.control.handle_no_listener(now, &delivery.packet);
                }
            }
            busy = true;
        }
        busy
    }

    /// Subscribes the port to groups that worker 0 attaches to, and ends subscriptions.
    fn note_group(&mut self, action: &Action) {
        match action {
            Action::Attach { mgid, .. } if !self.port.subscribe(*mgid) => {
                self.unsubscribed.insert(*mgid);
            }
            Action::Detach { mgid, .. } => {
                self.unsubscribed.remove(mgid);
                self.port.unsubscribe(*mgid);
            }
            _ => {}
        }
    }

    /// Sends MADs of control, once workers have modified the queue pairs that the MADs announce, or
    /// after [`MODIFY_MAX`].
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
            if let Some(adjacency) = self.port.send(&envelope) {
                let (ether_type, packet) = (EtherType::IN_BAND_MAD, envelope.mad.to_vec());
                self.workers.send(OutgoingPacket {
                    ether_type,
                    packet,
                    by: By::Datagram(adjacency),
                });
            }
            busy = true;
        }
        busy
    }
}

/// The ICMP error about a packet in transit.
pub(crate) const fn icmp_error(why: TransitError) -> IcmpError {
    match why {
        TransitError::NoRoute => IcmpError::NoRoute,
        TransitError::Unreachable => IcmpError::RejectRoute,
        TransitError::Prohibited | TransitError::Filtered => IcmpError::Prohibited,
        TransitError::TimeExceeded => IcmpError::TimeExceeded,
        TransitError::BadOption(pointer) => IcmpError::ParameterProblem(pointer),
    }
}
