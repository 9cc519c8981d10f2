//! The MAD transport of a port, and the choice of it: only this file knows all of them.

use super::MadDrops;
use super::gsi::Gsi;
use super::in_band::InBand;
use super::umad::{Umad, kernel_has_ipoib};
use pollux_control::ipoib::{DatagramAdjacency, PortView};
use pollux_control::mad::Envelope;
use pollux_ibverbs::management::ManagementPort;
use pollux_verbs::time::Time;
use pollux_verbs::{AsyncEvent, Cq, Device, VerbsError};
use std::os::fd::OwnedFd;

pub(super) enum Transport {
    /// Queue pair 1 (IBA 13.5).
    Gsi(Gsi),
    /// Agents of the kernel, which has queue pair 1 of adapters on InfiniBand.
    Umad(Umad),
    /// Packets, where there is no InfiniBand management.
    InBand(InBand),
}

impl Transport {
    /// The configured management, if there is any; otherwise queue pair 1 if the device gives it
    /// out, the kernel's agents on InfiniBand, and packets elsewhere.
    pub(super) fn choose(
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

    pub(super) fn poll(
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

    pub(super) fn send(
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

    pub(super) fn view(&self, port: PortView) -> PortView {
        match self {
            Self::Gsi(_) | Self::Umad(_) => port,
            Self::InBand(_) => InBand::view(port),
        }
    }

    /// Prepares for CM messages. Fails while another agent takes them.
    pub(super) fn accept_connections(&mut self) -> Result<(), VerbsError> {
        match self {
            Self::Umad(umad) => umad.accept_connections(),
            Self::Gsi(_) | Self::InBand(_) => Ok(()),
        }
    }

    /// A descriptor that is readable when a MAD has arrived; `None` if there is none.
    pub(super) fn descriptor(&self) -> Option<OwnedFd> {
        match self {
            Self::Umad(umad) => umad.descriptor(),
            Self::Gsi(_) | Self::InBand(_) => None,
        }
    }

    /// The completion queue of its queue pair, if it has one.
    pub(super) fn cq(&self) -> Option<Cq> {
        match self {
            Self::Gsi(gsi) => Some(gsi.cq),
            Self::Umad(_) | Self::InBand(_) => None,
        }
    }

    /// Whether several interfaces may have it.
    pub(super) const fn is_shared(&self) -> bool {
        !matches!(self, Self::InBand(_))
    }

    pub(super) const fn drops(&self) -> MadDrops {
        match self {
            Self::Gsi(gsi) => gsi.drops,
            Self::Umad(umad) => umad.drops,
            Self::InBand(in_band) => in_band.drops,
        }
    }

    pub(super) fn is_idle(&self) -> bool {
        match self {
            Self::Gsi(gsi) => gsi.is_idle(),
            Self::Umad(_) | Self::InBand(_) => true,
        }
    }

    /// Fails if the device has lost an object that the transport cannot work without.
    pub(super) fn check_loss(&self, event: &AsyncEvent) -> Result<(), VerbsError> {
        let Self::Gsi(gsi) = self else { return Ok(()) };
        let lost = |what, why| Err(VerbsError::Lost { what, why });
        match *event {
            AsyncEvent::CqError(cq) if cq == gsi.cq => lost("completion queue", "it overran"),
            AsyncEvent::QpFatal(qp) if qp == gsi.qp => lost("queue pair 1", "it failed"),
            _ => Ok(()),
        }
    }
}
