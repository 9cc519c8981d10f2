//! Management datagrams of a port: by queue pair 1, or in band where there is none.

use super::gsi::Gsi;
use super::in_band::InBand;
use pollux_control::interface::DatagramWay;
use pollux_control::mad::Envelope;
use pollux_verbs::{Device, Pd, VerbsError};

/// How management datagrams come and go at a port.
#[derive(Debug)]
pub enum Management {
    /// By queue pair 1 (IBA 13.5).
    Gsi(Gsi),
    /// There is nobody to talk to but peers, and those in band.
    InBand(InBand),
}

impl Management {
    /// What the device has.
    pub fn new(device: &mut dyn Device, pd: Pd, port: u8) -> Result<Self, VerbsError> {
        let attributes = device.attributes();
        if attributes.can.subnet {
            Gsi::new(device, pd, port).map(Self::Gsi)
        } else {
            Ok(Self::InBand(InBand::new(&attributes.name, port)))
        }
    }

    /// Takes what has come; says whether anything was done.
    pub fn poll(
        &mut self,
        device: &mut dyn Device,
        received: &mut Vec<Envelope>,
    ) -> Result<bool, VerbsError> {
        match self {
            Self::Gsi(gsi) => gsi.poll(device, received),
            Self::InBand(in_band) => {
                let before = received.len();
                received.extend(in_band.take_answers());
                Ok(received.len() > before)
            }
        }
    }

    /// Sends a datagram, or says which way it is to go as a packet.
    pub fn send(&mut self, device: &mut dyn Device, envelope: &Envelope) -> Option<DatagramWay> {
        match self {
            Self::Gsi(gsi) => {
                gsi.send(device, envelope);
                None
            }
            Self::InBand(in_band) => in_band.send(envelope),
        }
    }

    /// Whether all is sent.
    pub fn is_idle(&self) -> bool {
        match self {
            Self::Gsi(gsi) => gsi.is_idle(),
            Self::InBand(_) => true,
        }
    }

    /// Datagrams that could not be sent.
    pub fn unsent(&self) -> u64 {
        match self {
            Self::Gsi(gsi) => gsi.unsent(),
            Self::InBand(in_band) => in_band.unsent(),
        }
    }

    /// What stands in for a subnet, if something does.
    pub fn in_band(&mut self) -> Option<&mut InBand> {
        match self {
            Self::Gsi(_) => None,
            Self::InBand(in_band) => Some(in_band),
        }
    }
}
