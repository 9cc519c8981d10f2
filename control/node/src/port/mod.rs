//! Ports: the control plane's end of a device. A port has a device context of its own, its MAD
//! transport, and the interfaces there, each in its own partition. Workers open further contexts
//! of the same port ([`PortHandle::open_worker`]) and share nothing with this one.
//!
//! ```text
//!   interface -- PortHandle --+--> MAD transport: each MAD to one interface, or to all
//!                              |
//!   interface -- PortHandle --+--> device: port state, and its events to all
//! ```
//!
//! 1. this file: the port, and the choice of its MAD transport;
//! 2. [`gsi`]: MADs by queue pair 1; [`umad`]: by libibumad, where the kernel has queue pair 1;
//!    [`in_band`]: as packets, where there is no queue pair 1; `port_tables`: indexes in the P_Key
//!    and GID tables;
//! 3. `sharing`: finds the interface of a MAD at a port with several interfaces.
//!
//! Why a lock: each interface owns its access to the port. One thread runs all interfaces of a
//! port, so it never waits for the lock.

pub(crate) mod address_handles;
pub mod gsi;
pub mod in_band;
mod port_tables;
mod sharing;
pub mod umad;

use crate::device::Opened;
use crate::fabric::Embedded;
use gsi::Gsi;
use in_band::InBand;
use pollux_control::bounded::BoundedQueue;
use pollux_control::ipoib::{DatagramAdjacency, PacketSource as Source, PortView};
use pollux_control::mad::Envelope;
use pollux_ibverbs::management::ManagementPort;
use pollux_verbs::time::Time;
use pollux_verbs::*;
use pollux_wire::address::Gid;
use pollux_wire::keys::PKey;
use pollux_wire::mad::{MadHeader, Method, MgmtClass};
use sharing::{Subscribers, addressee, set_interface};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;
use umad::{Umad, kernel_has_ipoib};

/// Maximum number of queued MADs of an interface.
const MADS_MAX: usize = 1024;
/// Maximum number of queued events of an interface.
const EVENTS_MAX: usize = 1024;

/// Interval of polls for MADs and events of a device without a wake source.
const POLL_EVERY: Duration = Duration::from_millis(2);

/// A port of one or several interfaces.
#[derive(Clone)]
pub struct DevicePort {
    inner: Arc<Mutex<Inner>>,
    /// Descriptors of the MAD transport and of the device, readable when there is input.
    descriptors: Arc<[OwnedFd]>,
}

/// The context of one interface at a port.
pub struct PortHandle {
    port: DevicePort,
    number: usize,
}

pub enum PortAccess {
    /// The interface opens the port of this device for itself.
    Alone(Opened),
    Shared(PortHandle),
}

impl From<Opened> for PortAccess {
    fn from(opened: Opened) -> Self {
        Self::Alone(opened)
    }
}

impl From<PortHandle> for PortAccess {
    fn from(context: PortHandle) -> Self {
        Self::Shared(context)
    }
}

impl PortAccess {
    /// The context of an interface in this partition. With `connects`, this fails while another
    /// agent on this host receives the CM messages.
    pub fn context(self, p_key: PKey, connects: bool) -> Result<PortHandle, VerbsError> {
        let context = match self {
            Self::Alone(opened) => DevicePort::new(opened)?.context(p_key)?,
            Self::Shared(context) => context,
        };
        if connects {
            context.port.lock().transport.accept_connections()?;
        }
        Ok(context)
    }
}

struct Inner {
    transport: Transport,
    device: Box<dyn Device + Send>,
    number: u8,
    /// The partitions of the interfaces, by context number.
    p_keys: Vec<PKey>,
    contexts: Vec<ContextState>,
    subscribers: Subscribers,
    // The fabric ends after the device has left it.
    fabric: Option<Arc<Embedded>>,
}

/// The MAD transport of a port: only this file knows all of them.
enum Transport {
    /// Queue pair 1 (IBA 13.5).
    Gsi(Gsi),
    /// Agents of the kernel, which has queue pair 1 of InfiniBand adapters.
    Umad(Umad),
    /// Packets, where there is no InfiniBand management.
    InBand(InBand),
}

struct ContextState {
    mads: BoundedQueue<Envelope>,
    events: BoundedQueue<AsyncEvent>,
}

/// The access of a worker to a device: a device context of its own.
pub struct WorkerAccess {
    pub(crate) device: Box<dyn Device + Send>,
    pub(crate) port: u8,
    pub(crate) pd: Pd,
    /// The fabric of the device, which has to outlive it.
    pub(crate) fabric: Option<Arc<Embedded>>,
}

impl DevicePort {
    /// The port of a device, without interfaces.
    pub fn new(opened: Opened) -> Result<Self, VerbsError> {
        let Opened { mut device, port: number, fabric, management } = opened;
        let transport = Transport::choose(&mut *device, number, management)?;
        let of_device = device.wake_source().map(|source| source.fd.try_clone_to_owned());
        let descriptors = transport.descriptor().into_iter().chain(of_device.and_then(Result::ok));
        let descriptors = descriptors.collect();
        let (p_keys, contexts) = (Vec::new(), Vec::new());
        let inner = Inner {
            transport,
            device,
            number,
            p_keys,
            contexts,
            subscribers: Subscribers::default(),
            fabric,
        };
        Ok(Self { inner: Arc::new(Mutex::new(inner)), descriptors })
    }

    /// Returns the context for an interface of this partition. It replaces the context of an
    /// earlier interface in the partition. A port without queue pair 1 can have only one.
    pub fn context(&self, p_key: PKey) -> Result<PortHandle, VerbsError> {
        let mut inner = self.lock();
        let state = ContextState {
            mads: BoundedQueue::new(MADS_MAX),
            events: BoundedQueue::new(EVENTS_MAX),
        };
        let known = inner.p_keys.iter().position(|known| known.partition() == p_key.partition());
        let number = known.unwrap_or(inner.contexts.len());
        match known {
            Some(number) => inner.contexts[number] = state,
            None if number > 0 && matches!(inner.transport, Transport::InBand(_)) => {
                let capability = "several interfaces at a port without queue pair 1";
                return Err(VerbsError::Unsupported { verb: "port", capability });
            }
            None => {
                inner.p_keys.push(p_key);
                inner.contexts.push(state);
            }
        }
        Ok(PortHandle { port: self.clone(), number })
    }

    /// Arms the device. Input from now on ends a sleep; the caller polls once more for earlier
    /// input. A refusal is ignored.
    pub fn arm(&self) {
        let Inner { transport, device, .. } = &mut *self.lock();
        let _ = transport.cq().map(|cq| device.arm(cq, Arm::Any));
    }

    /// The longest sleep of the caller. A device without a wake source has to be polled.
    pub fn sleep_max(&self) -> Duration {
        self.lock().device.wake_source().map_or(POLL_EVERY, |source| source.longest)
    }

    /// The descriptors that end a sleep.
    pub fn descriptors(&self) -> impl Iterator<Item = BorrowedFd<'_>> {
        self.descriptors.iter().map(AsFd::as_fd)
    }

    /// A panic elsewhere leaves the state usable.
    fn lock(&self) -> MutexGuard<'_, Inner> {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Inner {
    fn poll_mads(&mut self, now: Time) -> Result<bool, VerbsError> {
        let mut received = Vec::new();
        let Self { transport, device, number, .. } = self;
        let busy = transport.poll(now, &mut **device, *number, &mut received)?;
        for envelope in received {
            self.dispatch(envelope);
        }
        Ok(busy)
    }

    fn dispatch(&mut self, envelope: Envelope) {
        if let [only] = &mut self.contexts[..] {
            return only.mads.push(envelope);
        }
        match addressee(&envelope, &self.p_keys).and_then(|number| self.contexts.get_mut(number)) {
            Some(context) => context.mads.push(envelope),
            None => self.contexts.iter_mut().for_each(|one| one.mads.push(envelope)),
        }
    }

    fn send(&mut self, number: usize, envelope: &Envelope) -> Option<DatagramAdjacency> {
        let (mut header, _) = MadHeader::read(&envelope.mad).expect("a datagram has a header");
        let mut envelope = *envelope;
        if header.mgmt_class == MgmtClass::SUBN_ADM {
            if header.method == Method::REPORT_RESP && number > 0 {
                return None;
            }
            if let Some(answer) = self.subscribers.answer(number, &envelope) {
                self.contexts[number].mads.push(answer);
                return None;
            }
            if header.method != Method::REPORT_RESP {
                header.transaction_id = set_interface(number, header.transaction_id);
                envelope.mad[..MadHeader::LEN].copy_from_slice(&header.emit());
            }
        }
        self.transport.send(&mut *self.device, self.number, &envelope)
    }

    fn view(&self) -> Result<PortView, VerbsError> {
        let port = self.device.port(self.number)?;
        let gid = |index| self.device.gid(self.number, index);
        let p_key = |index| self.device.pkey(self.number, index);
        let view = PortView {
            number: self.number,
            state: port.state,
            lid: port.lid,
            lmc: port.lmc,
            sm_lid: port.sm_lid,
            sm_sl: port.sm_sl,
            mtu: port.mtu,
            gids: (0..port.gids).map(gid).collect::<Result<_, _>>()?,
            pkeys: (0..port.pkeys).map(p_key).collect::<Result<_, _>>()?,
        };
        Ok(match self.transport {
            Transport::Gsi(_) | Transport::Umad(_) => view,
            Transport::InBand(_) => InBand::view(view),
        })
    }

    /// Fails if the device has lost an object that every interface needs.
    fn check_loss(&self, event: &AsyncEvent) -> Result<(), VerbsError> {
        let lost = |what, why| Err(VerbsError::Lost { what, why });
        match (event, &self.transport) {
            (AsyncEvent::DeviceFatal, _) => lost("adapter", "it reports a fatal error"),
            (AsyncEvent::CqError(cq), Transport::Gsi(gsi)) if *cq == gsi.cq => {
                lost("completion queue", "it overran")
            }
            (AsyncEvent::QpFatal(qp), Transport::Gsi(gsi)) if *qp == gsi.qp => {
                lost("queue pair 1", "it failed")
            }
            _ => Ok(()),
        }
    }
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct MadDrops {
    /// MADs that could not be sent.
    pub unsent: u64,
    /// Received datagrams that are no MADs, or of a partition that the port does not have.
    pub malformed: u64,
}

impl PortHandle {
    pub fn open_worker(&self) -> Result<WorkerAccess, VerbsError> {
        let mut inner = self.port.lock();
        let mut device = inner.device.open_shared()?;
        let pd = device.create_pd()?;
        Ok(WorkerAccess { device, port: inner.number, pd, fabric: inner.fabric.clone() })
    }

    pub(crate) const fn port(&self) -> &DevicePort {
        &self.port
    }

    pub(crate) fn is(&self, number: u8) -> bool {
        self.port.lock().number == number
    }

    pub(crate) fn attributes(&self) -> DeviceAttributes {
        self.port.lock().device.attributes()
    }

    pub fn view(&self) -> Result<PortView, VerbsError> {
        self.port.lock().view()
    }

    /// Receives MADs for this interface. Returns whether there was anything to do.
    pub fn poll(&mut self, now: Time, received: &mut Vec<Envelope>) -> Result<bool, VerbsError> {
        let inner = &mut *self.port.lock();
        let busy = inner.poll_mads(now)?;
        let (mads, before) = (&mut inner.contexts[self.number].mads, received.len());
        received.extend(std::iter::from_fn(|| mads.pop()));
        Ok(busy || received.len() > before)
    }

    /// Sends a MAD, or returns the adjacency by which the caller has to send it as a packet.
    pub fn send(&mut self, envelope: &Envelope) -> Option<DatagramAdjacency> {
        self.port.lock().send(self.number, envelope)
    }

    /// The next event of the port. Each interface gets all events. Fails if the device is lost, or
    /// an object that every interface needs.
    pub fn async_event(&mut self) -> Result<Option<AsyncEvent>, VerbsError> {
        let inner = &mut *self.port.lock();
        while let Some(event) = inner.device.async_event() {
            inner.contexts.iter_mut().for_each(|one| one.events.push(event));
        }
        let event = inner.contexts[self.number].events.pop();
        event.iter().try_for_each(|event| inner.check_loss(event))?;
        Ok(event)
    }

    /// Drops of the MAD transport, which all interfaces at the port share.
    pub fn drops(&self) -> MadDrops {
        match &self.port.lock().transport {
            Transport::Gsi(gsi) => gsi.drops,
            Transport::Umad(umad) => umad.drops,
            Transport::InBand(in_band) => in_band.drops,
        }
    }

    /// Whether all MADs are sent.
    pub fn is_idle(&self) -> bool {
        match &self.port.lock().transport {
            Transport::Gsi(gsi) => gsi.is_idle(),
            Transport::Umad(_) | Transport::InBand(_) => true,
        }
    }

    /// The MAD in a packet that was received in band.
    pub(crate) fn management_in(
        &self,
        from: &Source,
        packet: &[u8],
        local_gid: Gid,
    ) -> Option<Envelope> {
        match &mut self.port.lock().transport {
            Transport::InBand(in_band) => in_band.receive(from, packet, local_gid),
            Transport::Gsi(_) | Transport::Umad(_) => None,
        }
    }

    /// Makes the network deliver the packets of a group, where attaching a queue pair is not
    /// enough. Returns whether that succeeded.
    pub(crate) fn subscribe(&mut self, mgid: Gid) -> bool {
        match &mut self.port.lock().transport {
            Transport::InBand(in_band) => in_band.subscribe(mgid),
            Transport::Gsi(_) | Transport::Umad(_) => true,
        }
    }

    /// Ends [`PortHandle::subscribe`].
    pub(crate) fn unsubscribe(&mut self, mgid: Gid) {
        if let Transport::InBand(in_band) = &mut self.port.lock().transport {
            in_band.unsubscribe(mgid);
        }
    }
}

impl Transport {
    /// Chooses the configured management, if there is any. Without, packets are used at a port
    /// without InfiniBand management, queue pair 1 if the device offers it, and else the kernel's
    /// agents.
    fn choose(
        device: &mut dyn Device,
        port: u8,
        management: Option<Box<dyn ManagementPort>>,
    ) -> Result<Self, VerbsError> {
        let attributes = device.attributes();
        if let Some(management) = management {
            return Umad::new(management, kernel_has_ipoib()).map(Self::Umad);
        }
        if !attributes.can.subnet {
            return Ok(Self::InBand(InBand::new(&attributes.name, port)));
        }
        if attributes.can.gsi {
            let pd = device.create_pd()?;
            return Gsi::new(device, pd, port).map(Self::Gsi);
        }
        let name = format!("{}:{port}", attributes.name);
        let management = pollux_ibverbs::open_management(&name).map_err(|error| {
            let reason = error.to_string();
            VerbsError::Invalid { verb: "management", argument: "umad", reason }
        })?;
        Umad::new(management, kernel_has_ipoib()).map(Self::Umad)
    }

    fn poll(
        &mut self,
        now: Time,
        device: &mut dyn Device,
        port: u8,
        received: &mut Vec<Envelope>,
    ) -> Result<bool, VerbsError> {
        match self {
            Self::Gsi(gsi) => gsi.poll(now, device, received),
            Self::Umad(umad) => umad.poll(device, port, received),
            Self::InBand(in_band) => {
                received.extend(in_band.take_answers());
                Ok(!received.is_empty())
            }
        }
    }

    fn send(
        &mut self,
        device: &mut dyn Device,
        port: u8,
        envelope: &Envelope,
    ) -> Option<DatagramAdjacency> {
        match self {
            Self::Gsi(gsi) => gsi.send(device, envelope),
            Self::Umad(umad) => umad.send(device, port, envelope),
            Self::InBand(in_band) => {
                let mtu = device.port(port).map(|port| port.mtu);
                return in_band.send(envelope, mtu.unwrap_or_default());
            }
        }
        None
    }

    /// Prepares for CM messages. Fails while another agent receives them.
    fn accept_connections(&mut self) -> Result<(), VerbsError> {
        match self {
            Self::Umad(umad) => umad.accept_connections(),
            Self::Gsi(_) | Self::InBand(_) => Ok(()),
        }
    }

    /// A descriptor that is readable when a MAD has arrived; `None` if there is none.
    fn descriptor(&self) -> Option<OwnedFd> {
        match self {
            Self::Umad(umad) => umad.descriptor(),
            Self::Gsi(_) | Self::InBand(_) => None,
        }
    }

    /// The completion queue of its queue pair, if it has one.
    fn cq(&self) -> Option<Cq> {
        match self {
            Self::Gsi(gsi) => Some(gsi.cq),
            Self::Umad(_) | Self::InBand(_) => None,
        }
    }
}
