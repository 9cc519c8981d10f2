//! A port that several interfaces share, each in a partition of its own. The device, its protection
//! domain and queue pair 1 exist once; every interface has a [`SharedPortContext`].
//!
//! ```text
//!   interface -- SharedPortContext --+
//!                                    +--> device: own queue pairs, CQs, buffers; events to all
//!   interface -- SharedPortContext --+--> queue pair 1: each MAD to one interface, or to all
//! ```
//!
//! `sharing` finds the interface that a MAD is for; `device` is the device that a context shows.
//!
//! Why a lock, where a device has none: each interface owns its access to the device. One thread
//! runs all of them, so it never waits for the lock. An interface that is alone at its port has the
//! device itself, without a lock ([`PortAccess::Own`]).

mod device;
mod sharing;

use crate::device::Opened;
use crate::fabric::Embedded;
use crate::interface::gsi::Gsi;
use crate::interface::in_band::InBand;
use device::{Objects, SharedDevice};
use pollux_control::bounded::Queue;
use pollux_control::interface::{DatagramAdjacency, PortView};
use pollux_control::mad::Envelope;
use pollux_verbs::time::Time;
use pollux_verbs::*;
use pollux_wire::keys::PKey;
use pollux_wire::mad::{MadHeader, Method, MgmtClass};
use sharing::{Subscribers, addressee, asking};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// Datagrams that wait for an interface, at most.
const MADS_MAX: usize = 1024;
/// Events that wait for an interface, at most.
const EVENTS_MAX: usize = 1024;

/// Where an interface is at a device.
pub enum PortAccess {
    /// It has the device for itself.
    Own(Opened),
    /// Others are there too.
    Shared(SharedPortContext),
}

impl From<Opened> for PortAccess {
    fn from(opened: Opened) -> Self {
        Self::Own(opened)
    }
}

impl From<SharedPortContext> for PortAccess {
    fn from(context: SharedPortContext) -> Self {
        Self::Shared(context)
    }
}

/// A port for several interfaces.
pub struct SharedPort {
    inner: Arc<Mutex<Inner>>,
}

/// The place of one interface at a shared port.
#[derive(Clone)]
pub struct SharedPortContext {
    inner: Arc<Mutex<Inner>>,
    number: usize,
}

struct Inner {
    device: Box<dyn Device + Send>,
    port: u8,
    pd: Pd,
    gsi: Gsi,
    /// The interfaces' partitions, in the order of their numbers.
    p_keys: Vec<PKey>,
    contexts: Vec<ContextState>,
    subscribers: Subscribers,
    fabric: Option<Arc<Embedded>>,
}

/// What an interface has to be told, and what it has made at the device.
struct ContextState {
    mads: Queue<Envelope>,
    events: Queue<AsyncEvent>,
    objects: Objects,
}

impl SharedPort {
    /// The port of a device, without interfaces.
    pub fn new(opened: Opened) -> Result<Self, VerbsError> {
        let Opened { mut device, port, fabric } = opened;
        let pd = device.create_pd()?;
        let gsi = Gsi::new(&mut *device, pd, port)?;
        let (p_keys, contexts) = (Vec::new(), Vec::new());
        let subscribers = Subscribers::default();
        let inner = Inner { device, port, pd, gsi, p_keys, contexts, subscribers, fabric };
        Ok(Self { inner: Arc::new(Mutex::new(inner)) })
    }

    /// A place for the interface of this partition; the same one for the next, once it has gone.
    pub fn context(&self, p_key: PKey) -> SharedPortContext {
        let mut inner = lock(&self.inner);
        let (mads, events) = (Queue::new(MADS_MAX), Queue::new(EVENTS_MAX));
        let state = ContextState { mads, events, objects: Objects::default() };
        let known = inner.p_keys.iter().position(|known| known.partition() == p_key.partition());
        match known {
            Some(number) => inner.contexts[number] = state,
            None => {
                inner.p_keys.push(p_key);
                inner.contexts.push(state);
            }
        }
        let number = known.unwrap_or(inner.contexts.len() - 1);
        SharedPortContext { inner: Arc::clone(&self.inner), number }
    }
}

/// A panic elsewhere leaves nothing half done that matters here.
fn lock(inner: &Mutex<Inner>) -> MutexGuard<'_, Inner> {
    inner.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Inner {
    fn poll_mads(&mut self, now: Time) -> Result<bool, VerbsError> {
        let mut received = Vec::new();
        let busy = self.gsi.poll(now, &mut *self.device, &mut received)?;
        for envelope in received {
            self.dispatch(envelope);
        }
        Ok(busy)
    }

    fn dispatch(&mut self, envelope: Envelope) {
        match addressee(&envelope, &self.p_keys).and_then(|number| self.contexts.get_mut(number)) {
            Some(context) => context.mads.push(envelope),
            None => self.contexts.iter_mut().for_each(|one| one.mads.push(envelope)),
        }
    }

    fn send(&mut self, number: usize, envelope: &Envelope) {
        let (mut header, _) = MadHeader::read(&envelope.mad).expect("a datagram has a header");
        let mut envelope = *envelope;
        if header.mgmt_class == MgmtClass::SUBN_ADM {
            if header.method == Method::REPORT_RESP && number > 0 {
                return;
            }
            if let Some(answer) = self.subscribers.answer(number, &envelope) {
                return self.contexts[number].mads.push(answer);
            }
            if header.method != Method::REPORT_RESP {
                header.transaction_id = asking(number, header.transaction_id);
                envelope.mad[..MadHeader::LEN].copy_from_slice(&header.emit());
            }
        }
        self.gsi.send(&mut *self.device, &envelope);
    }

    fn event(&mut self, number: usize) -> Option<AsyncEvent> {
        while let Some(event) = self.device.async_event() {
            self.contexts.iter_mut().for_each(|one| one.events.push(event));
        }
        self.contexts[number].events.pop()
    }
}

/// How an interface's management datagrams come and go.
pub(crate) enum Management {
    /// By queue pair 1, which it has for itself (IBA 13.5).
    Own(Gsi),
    /// By that of the port that it shares.
    Shared(SharedPortContext),
    /// In band, where there is no queue pair 1.
    InBand(InBand),
    /// By those of another worker.
    Elsewhere,
}

/// What an interface has of a device.
pub(crate) struct PortResources {
    pub(crate) device: Box<dyn Device + Send>,
    pub(crate) port: u8,
    pub(crate) pd: Pd,
    pub(crate) management: Management,
    /// To be held as long as the device.
    pub(crate) fabric: Option<Arc<Embedded>>,
}

impl PortAccess {
    /// The device, its port, the protection domain, and its management.
    pub(crate) fn acquire(self) -> Result<PortResources, VerbsError> {
        match self {
            Self::Own(Opened { mut device, port, fabric }) => {
                let pd = device.create_pd()?;
                let attributes = device.attributes();
                let management = if attributes.can.subnet {
                    Management::Own(Gsi::new(&mut *device, pd, port)?)
                } else {
                    Management::InBand(InBand::new(&attributes.name, port))
                };
                Ok(PortResources { device, port, pd, management, fabric })
            }
            Self::Shared(context) => {
                let (port, pd, fabric) = {
                    let inner = lock(&context.inner);
                    (inner.port, inner.pd, inner.fabric.clone())
                };
                let device = Box::new(SharedDevice(context.clone()));
                Ok(PortResources {
                    device,
                    port,
                    pd,
                    management: Management::Shared(context),
                    fabric,
                })
            }
        }
    }
}

impl PortResources {
    /// What another worker has of the same device: all but management.
    pub(crate) fn for_worker(
        device: &mut dyn Device,
        port: u8,
        fabric: Option<Arc<Embedded>>,
    ) -> Result<Self, VerbsError> {
        let mut device = device.open_shared()?;
        let pd = device.create_pd()?;
        Ok(Self { device, port, pd, management: Management::Elsewhere, fabric })
    }
}

impl Management {
    /// Takes what has come for this interface; says whether anything was done.
    pub(crate) fn poll(
        &mut self,
        now: Time,
        device: &mut dyn Device,
        received: &mut Vec<Envelope>,
    ) -> Result<bool, VerbsError> {
        match self {
            Self::Own(gsi) => gsi.poll(now, device, received),
            Self::Shared(context) => {
                let mut inner = lock(&context.inner);
                let busy = inner.poll_mads(now)?;
                let mads = &mut inner.contexts[context.number].mads;
                let before = received.len();
                received.extend(std::iter::from_fn(|| mads.pop()));
                Ok(busy || received.len() > before)
            }
            Self::InBand(in_band) => {
                let before = received.len();
                received.extend(in_band.take_answers());
                Ok(received.len() > before)
            }
            Self::Elsewhere => Ok(false),
        }
    }

    /// Sends a datagram, if that can be, or says which way it is to go as a packet.
    pub(crate) fn send(
        &mut self,
        device: &mut dyn Device,
        envelope: &Envelope,
    ) -> Option<DatagramAdjacency> {
        match self {
            Self::Own(gsi) => gsi.send(device, envelope),
            Self::Shared(context) => lock(&context.inner).send(context.number, envelope),
            Self::InBand(in_band) => {
                let mtu = device.port(in_band.port()).map(|port| port.mtu);
                return in_band.send(envelope, mtu.unwrap_or_default());
            }
            Self::Elsewhere => {}
        }
        None
    }

    /// Datagrams that could not be sent, of whichever interface.
    pub(crate) fn unsent(&self) -> u64 {
        match self {
            Self::Own(gsi) => gsi.unsent(),
            Self::Shared(context) => lock(&context.inner).gsi.unsent(),
            Self::InBand(in_band) => in_band.unsent(),
            Self::Elsewhere => 0,
        }
    }

    /// Whether all is sent.
    pub(crate) fn is_idle(&self) -> bool {
        match self {
            Self::Own(gsi) => gsi.is_idle(),
            Self::Shared(context) => lock(&context.inner).gsi.is_idle(),
            Self::InBand(_) | Self::Elsewhere => true,
        }
    }

    /// Where its datagrams complete, if it has any of its own.
    pub(crate) fn cq(&self) -> Option<Cq> {
        match self {
            Self::Own(gsi) => Some(gsi.cq()),
            Self::Shared(context) => Some(lock(&context.inner).gsi.cq()),
            Self::InBand(_) | Self::Elsewhere => None,
        }
    }

    /// Whether its datagrams go by that.
    pub(crate) fn is_its_qp(&self, qp: Qp) -> bool {
        match self {
            Self::Own(gsi) => gsi.qp() == qp,
            Self::Shared(context) => lock(&context.inner).gsi.qp() == qp,
            Self::InBand(_) | Self::Elsewhere => false,
        }
    }

    /// The port as control is to see it.
    pub(crate) fn view(&self, port: PortView) -> PortView {
        match self {
            Self::InBand(_) => InBand::view(port),
            Self::Own(_) | Self::Shared(_) | Self::Elsewhere => port,
        }
    }

    /// What stands in for a subnet, if something does.
    pub(crate) fn in_band(&mut self) -> Option<&mut InBand> {
        match self {
            Self::InBand(in_band) => Some(in_band),
            Self::Own(_) | Self::Shared(_) | Self::Elsewhere => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use pollux_mem::Memory;

    #[test]
    fn what_one_made_at_a_shared_device_goes_with_it() {
        let fabric = Embedded::start("single:1").expect("it starts");
        let opened = crate::open(&format!("soft:{}@host1", fabric.path().display()));
        let port = SharedPort::new(opened.expect("nobody is there")).expect("it has what we need");
        let access = |p_key| PortAccess::from(port.context(p_key)).acquire().expect("it has room");
        let (mut one, mut other) = (access(PKey::DEFAULT), access(PKey(0x8001)));
        let make = |resources: &mut PortResources| {
            let (device, pd) = (&mut resources.device, resources.pd);
            let cq = device.create_cq(8).expect("there is room");
            let memory = Memory::private(4096).expect("there is memory");
            device.register(pd, &memory, Access::LOCAL_WRITE).expect("there is room");
            device.create_srq(pd, 8, 1).expect("there is room");
            let address = AddressVector { port: 1, ..AddressVector::default() };
            device.create_ah(pd, &address).expect("there is room");
            let qp = device.create_qp(&QpInit {
                qp_type: QpType::Ud,
                pd,
                send_cq: cq,
                recv_cq: cq,
                srq: None,
                send_requests_max: 1,
                recv_requests_max: 1,
                send_sges_max: 1,
                recv_sges_max: 1,
                inline_bytes_max: 0,
                signal_all: false,
            });
            qp.expect("there is room")
        };
        let (qp_of_one, qp_of_other) = (make(&mut one), make(&mut other));
        assert!(other.device.query_qp(qp_of_one).is_ok(), "one device has both");
        drop(one);
        assert!(other.device.query_qp(qp_of_one).is_err());
        assert!(other.device.query_qp(qp_of_other).is_ok());
        let sizes = |number: usize| {
            let inner = lock(&port.inner);
            let Objects { pds, regions, cqs, srqs, qps, ahs, groups } =
                &inner.contexts[number].objects;
            [pds.len(), regions.len(), cqs.len(), srqs.len(), qps.len(), ahs.len(), groups.len()]
        };
        assert_eq!((sizes(0), sizes(1)), ([0; 7], [0, 1, 1, 1, 1, 1, 0]));
        // Whoever comes next in that partition has its number.
        let again = access(PKey::DEFAULT);
        assert_eq!(lock(&port.inner).contexts.len(), 2);
        drop((again, other));
        assert_eq!(sizes(1), [0; 7]);
    }
}
