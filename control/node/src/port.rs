//! A port that several interfaces share, each in a partition of its own: the device, its
//! protection domain and queue pair 1 are there once, and every interface has a [`Seat`].
//!
//! ```text
//!   interface --Seat--+
//!                     +--> device: its own queue pairs, queues, buffers; events go to all
//!   interface --Seat--+--> queue pair 1: datagrams go to whose they are
//! ```
//!
//! Whose a management datagram is: an answer of the administrator is for whoever asked, whose
//! number is the upper half of the transaction id; a notice is for all, and the first says that it
//! came; a request for a connection is for the interface of the partition that it names, and all
//! that follows for that of the partition by which it comes. What is nobody's the first refuses.
//!
//! Why a lock, where a device has none: interfaces own their way to the device, and one thread
//! that runs them all never waits for it. An interface that is alone at its port has the device
//! itself, and goes without ([`Place::Own`]).

use crate::device::Opened;
use crate::fabric::Embedded;
use crate::interface::gsi::Gsi;
use crate::interface::in_band::InBand;
use pollux_control::bounded::Queue;
use pollux_control::interface::{DatagramWay, PortView};
use pollux_control::mad::Envelope;
use pollux_mem::Memory;
use pollux_verbs::time::Time;
use pollux_verbs::*;
use pollux_wire::address::{Gid, Lid, Qpn};
use pollux_wire::keys::PKey;
use pollux_wire::mad::cm::CmMessage;
use pollux_wire::mad::{MadHeader, Method, MgmtClass};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

/// Datagrams that wait for an interface, at most.
const MADS_MAX: usize = 1024;
/// Events that wait for an interface, at most.
const EVENTS_MAX: usize = 1024;

/// Where an interface is at a device.
pub enum Place {
    /// It has the device for itself.
    Own(Opened),
    /// Others are there too.
    Shared(Seat),
}

impl From<Opened> for Place {
    fn from(opened: Opened) -> Self {
        Self::Own(opened)
    }
}

impl From<Seat> for Place {
    fn from(seat: Seat) -> Self {
        Self::Shared(seat)
    }
}

/// A port for several interfaces.
pub struct SharedPort {
    inner: Arc<Mutex<Inner>>,
}

/// The place of one interface at a shared port.
#[derive(Clone)]
pub struct Seat {
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
    seated: Vec<Seated>,
    fabric: Option<Arc<Embedded>>,
}

/// What an interface has to be told.
struct Seated {
    mads: Queue<Envelope>,
    events: Queue<AsyncEvent>,
}

impl SharedPort {
    /// The port of a device, without interfaces.
    pub fn new(opened: Opened) -> Result<Self, VerbsError> {
        let Opened { mut device, port, fabric } = opened;
        let pd = device.create_pd()?;
        let gsi = Gsi::new(&mut *device, pd, port)?;
        let (p_keys, seated) = (Vec::new(), Vec::new());
        let inner = Inner { device, port, pd, gsi, p_keys, seated, fabric };
        Ok(Self { inner: Arc::new(Mutex::new(inner)) })
    }

    /// A place for the interface of this partition.
    pub fn seat(&self, p_key: PKey) -> Seat {
        let mut inner = lock(&self.inner);
        inner.p_keys.push(p_key);
        let (mads, events) = (Queue::new(MADS_MAX), Queue::new(EVENTS_MAX));
        inner.seated.push(Seated { mads, events });
        Seat { inner: Arc::clone(&self.inner), number: inner.seated.len() - 1 }
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
            self.hand_out(envelope);
        }
        Ok(busy)
    }

    fn hand_out(&mut self, envelope: Envelope) {
        match whose(&envelope, &self.p_keys).and_then(|number| self.seated.get_mut(number)) {
            Some(seated) => seated.mads.push(envelope),
            None => self.seated.iter_mut().for_each(|one| one.mads.push(envelope)),
        }
    }

    fn send(&mut self, number: usize, envelope: &Envelope) {
        let (mut header, _) = MadHeader::read(&envelope.mad).expect("a datagram has a header");
        let mut envelope = *envelope;
        if header.mgmt_class == MgmtClass::SUBN_ADM {
            if header.method == Method::REPORT_RESP && number > 0 {
                return;
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
            self.seated.iter_mut().for_each(|one| one.events.push(event));
        }
        self.seated[number].events.pop()
    }
}

/// The number of the interface that a datagram is for; none if it is for all. What is nobody's the
/// first one refuses.
fn whose(envelope: &Envelope, p_keys: &[PKey]) -> Option<usize> {
    let in_partition =
        |p_key: PKey| p_keys.iter().position(|own| own.partition() == p_key.partition());
    let (header, _) = MadHeader::read(&envelope.mad).expect("a datagram has a header");
    let number = match header.mgmt_class {
        MgmtClass::SUBN_ADM if header.method == Method::REPORT => return None,
        MgmtClass::SUBN_ADM => asked_by(header.transaction_id).filter(|it| *it < p_keys.len()),
        MgmtClass::COMM_MGT => match CmMessage::parse_mad(&envelope.mad) {
            Ok((_, CmMessage::Req(req))) => in_partition(req.p_key),
            _ => in_partition(envelope.peer.p_key),
        },
        _ => None,
    };
    Some(number.unwrap_or(0))
}

/// The number of an interface, in the upper half of a transaction id: that is for what is between
/// whoever asks and the wire, and nobody else's is 0.
fn asking(number: usize, transaction_id: u64) -> u64 {
    (number as u64 + 1) << 32 | transaction_id & u64::from(u32::MAX)
}

fn asked_by(transaction_id: u64) -> Option<usize> {
    usize::try_from(transaction_id >> 32).ok()?.checked_sub(1)
}

/// How an interface's management datagrams come and go.
pub(crate) enum Management {
    /// By queue pair 1, which it has for itself (IBA 13.5).
    Own(Gsi),
    /// By that of the port that it shares.
    Shared(Seat),
    /// In band, where there is no queue pair 1.
    InBand(InBand),
    /// By those of another worker.
    Elsewhere,
}

/// What an interface has of a device.
pub(crate) struct Taken {
    pub(crate) device: Box<dyn Device + Send>,
    pub(crate) port: u8,
    pub(crate) pd: Pd,
    pub(crate) management: Management,
    /// To be held as long as the device.
    pub(crate) fabric: Option<Arc<Embedded>>,
}

impl Place {
    /// The device, its port, the protection domain, and its management.
    pub(crate) fn take(self) -> Result<Taken, VerbsError> {
        match self {
            Self::Own(Opened { mut device, port, fabric }) => {
                let pd = device.create_pd()?;
                let attributes = device.attributes();
                let management = if attributes.can.subnet {
                    Management::Own(Gsi::new(&mut *device, pd, port)?)
                } else {
                    Management::InBand(InBand::new(&attributes.name, port))
                };
                Ok(Taken { device, port, pd, management, fabric })
            }
            Self::Shared(seat) => {
                let (port, pd, fabric) = {
                    let inner = lock(&seat.inner);
                    (inner.port, inner.pd, inner.fabric.clone())
                };
                let device = Box::new(seat.clone());
                Ok(Taken { device, port, pd, management: Management::Shared(seat), fabric })
            }
        }
    }
}

impl Taken {
    /// What another worker has of the same device: all but management.
    pub(crate) fn beside(
        device: &mut dyn Device,
        port: u8,
        fabric: Option<Arc<Embedded>>,
    ) -> Result<Self, VerbsError> {
        let mut device = device.beside()?;
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
            Self::Shared(seat) => {
                let mut inner = lock(&seat.inner);
                let busy = inner.poll_mads(now)?;
                let mads = &mut inner.seated[seat.number].mads;
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
    ) -> Option<DatagramWay> {
        match self {
            Self::Own(gsi) => gsi.send(device, envelope),
            Self::Shared(seat) => lock(&seat.inner).send(seat.number, envelope),
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
            Self::Shared(seat) => lock(&seat.inner).gsi.unsent(),
            Self::InBand(in_band) => in_band.unsent(),
            Self::Elsewhere => 0,
        }
    }

    /// Whether all is sent.
    pub(crate) fn is_idle(&self) -> bool {
        match self {
            Self::Own(gsi) => gsi.is_idle(),
            Self::Shared(seat) => lock(&seat.inner).gsi.is_idle(),
            Self::InBand(_) | Self::Elsewhere => true,
        }
    }

    /// Where its datagrams complete, if it has any of its own.
    pub(crate) fn cq(&self) -> Option<Cq> {
        match self {
            Self::Own(gsi) => Some(gsi.cq()),
            Self::Shared(seat) => Some(lock(&seat.inner).gsi.cq()),
            Self::InBand(_) | Self::Elsewhere => None,
        }
    }

    /// Whether its datagrams go by that.
    pub(crate) fn is_its_qp(&self, qp: Qp) -> bool {
        match self {
            Self::Own(gsi) => gsi.qp() == qp,
            Self::Shared(seat) => lock(&seat.inner).gsi.qp() == qp,
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

/// Verbs that the device does, for whoever asks.
macro_rules! pass_on {
    ($($verb:ident($($name:ident: $kind:ty),*) -> $answer:ty;)*) => {
        $(fn $verb(&self, $($name: $kind),*) -> $answer {
            lock(&self.inner).device.$verb($($name),*)
        })*
    };
}
macro_rules! pass_on_mut {
    ($($verb:ident($($name:ident: $kind:ty),*) -> $answer:ty;)*) => {
        $(fn $verb(&mut self, $($name: $kind),*) -> $answer {
            lock(&self.inner).device.$verb($($name),*)
        })*
    };
}

impl Device for Seat {
    pass_on! {
        attributes() -> DeviceAttributes;
        port(port: u8) -> Result<PortAttributes, VerbsError>;
        gid(port: u8, index: u8) -> Result<Gid, VerbsError>;
        pkey(port: u8, index: u16) -> Result<PKey, VerbsError>;
        qpn(qp: Qp) -> Result<Qpn, VerbsError>;
        query_qp(qp: Qp) -> Result<(QpState, QpAttributes), VerbsError>;
    }
    pass_on_mut! {
        create_pd() -> Result<Pd, VerbsError>;
        destroy_pd(pd: Pd) -> Result<(), VerbsError>;
        register(pd: Pd, memory: &Memory, access: Access) -> Result<MemoryRegion, VerbsError>;
        deregister(region: LKey) -> Result<(), VerbsError>;
        create_window(pd: Pd) -> Result<MemoryWindow, VerbsError>;
        destroy_window(window: RKey) -> Result<(), VerbsError>;
        create_cq(completions_max: u32) -> Result<Cq, VerbsError>;
        destroy_cq(cq: Cq) -> Result<(), VerbsError>;
        create_srq(pd: Pd, requests_max: u32, sges_max: u32) -> Result<Srq, VerbsError>;
        set_srq_limit(srq: Srq, limit: u32) -> Result<(), VerbsError>;
        destroy_srq(srq: Srq) -> Result<(), VerbsError>;
        create_qp(init: &QpInit) -> Result<Qp, VerbsError>;
        modify_qp(qp: Qp, change: &QpAttributes) -> Result<(), VerbsError>;
        destroy_qp(qp: Qp) -> Result<(), VerbsError>;
        create_ah(pd: Pd, address: &AddressVector) -> Result<Ah, VerbsError>;
        destroy_ah(ah: Ah) -> Result<(), VerbsError>;
        attach_multicast(qp: Qp, mgid: Gid, mlid: Lid) -> Result<(), VerbsError>;
        detach_multicast(qp: Qp, mgid: Gid, mlid: Lid) -> Result<(), VerbsError>;
        post_send(qp: Qp, batch: &[SendRequest<'_>]) -> Result<(), PostError>;
        post_recv(qp: Qp, batch: &[RecvRequest<'_>]) -> Result<(), PostError>;
        post_srq_recv(srq: Srq, batch: &[RecvRequest<'_>]) -> Result<(), PostError>;
        poll(cq: Cq, completions: &mut [Completion]) -> Result<usize, VerbsError>;
        arm(cq: Cq, arm: Arm) -> Result<(), VerbsError>;
        wait(timeout: Duration) -> Result<Option<Cq>, VerbsError>;
        // What another worker gets nobody shares: it needs no seat.
        beside() -> Result<Box<dyn Device + Send>, VerbsError>;
    }

    /// Events are everybody's: each interface knows its own queue pairs, and all have the port.
    fn async_event(&mut self) -> Option<AsyncEvent> {
        lock(&self.inner).event(self.number)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use pollux_control::mad::MadAddress;
    use pollux_wire::mad::cm::{Req, Rtu};
    use pollux_wire::mad::{AttributeId, MAD_LEN};

    const P_KEYS: [PKey; 3] = [PKey::DEFAULT, PKey(0x8001), PKey(0x8002)];

    fn from(p_key: u16, mad: [u8; MAD_LEN]) -> Option<usize> {
        whose(&Envelope { peer: MadAddress::gsi(Lid(1), 0, PKey(p_key)), mad }, &P_KEYS)
    }

    fn datagram(class: MgmtClass, method: Method, transaction_id: u64) -> [u8; MAD_LEN] {
        let mut mad = [0; MAD_LEN];
        let header = MadHeader::new(class, method, transaction_id, AttributeId(0x38));
        mad[..MadHeader::LEN].copy_from_slice(&header.emit());
        mad
    }

    #[test]
    fn answers_are_for_whoever_asked_and_notices_for_all() {
        let answer = |id| from(0xffff, datagram(MgmtClass::SUBN_ADM, Method::GET_RESP, id));
        for number in 0..3 {
            let id = asking(number, 0x1234_5678_9abc_def0);
            assert_eq!((answer(id), id as u32), (Some(number), 0x9abc_def0));
        }
        for nobodys in [7, asking(3, 7), u64::MAX] {
            assert_eq!(answer(nobodys), Some(0));
        }
        let notice = datagram(MgmtClass::SUBN_ADM, Method::REPORT, asking(1, 7));
        assert_eq!(from(0xffff, notice), None);
        assert_eq!(from(0x8001, datagram(MgmtClass::PERF, Method::GET, 7)), Some(0));
    }

    #[test]
    fn connections_are_made_in_the_partition_that_a_request_names() {
        let request = |p_key| CmMessage::Req(Req { p_key: PKey(p_key), ..Req::default() });
        assert_eq!(from(0xffff, request(0x8002).emit_mad(7)), Some(2));
        assert_eq!(from(0x8001, request(0x8009).emit_mad(7)), Some(0), "to be refused");
        let rtu = CmMessage::Rtu(Rtu::default()).emit_mad(asking(2, 7));
        assert_eq!(from(0x8001, rtu), Some(1));
        assert_eq!(from(0x0001, rtu), Some(1), "a limited member means the same partition");
        assert_eq!(from(0x8009, rtu), Some(0));
    }
}
