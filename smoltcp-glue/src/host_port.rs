//! The port through which a host sends and receives: the interface, or a secondary worker's port.

use pollux_control::interface as control;
use pollux_control::interface::Delivery;
use pollux_node::interface::port_driver::PortDriver;
use pollux_node::interface::sockets::Take;
use pollux_node::interface::{Interface, SecondaryWorker, WorkerPort};
use pollux_verbs::VerbsError;
use pollux_verbs::time::Time;
use std::collections::BTreeSet;
use std::net::IpAddr;

/// The port of one worker.
///
/// Why no `dyn`: several calls are made for each packet, and a branch that always goes the same way
/// costs less than a call that nobody can see through.
#[expect(clippy::large_enum_variant, reason = "a host has one, and each call would go through it")]
pub enum HostPort {
    /// The primary worker's: with control plane, management and groups.
    Primary(Interface),
    /// A secondary worker's.
    Secondary(SecondaryWorker),
}

impl HostPort {
    /// The port of a primary worker with sockets.
    pub(crate) fn primary_of(mut interface: Interface) -> Self {
        interface.keep_deliveries();
        Self::Primary(interface)
    }

    /// The control plane, for reports; only the primary worker has it.
    pub fn control(&self) -> Option<&control::Interface> {
        match self {
            Self::Primary(primary) => Some(primary.control()),
            Self::Secondary(_) => None,
        }
    }

    /// The port driver, for reports.
    pub fn driver(&self) -> &PortDriver {
        WorkerPort::driver(self)
    }

    /// Runs one step without sockets; returns whether there was anything to do.
    pub(crate) fn step(&mut self, now: Time) -> bool {
        match self {
            Self::Primary(primary) => primary.step(now),
            Self::Secondary(secondary) => secondary.step(now),
        }
    }

    /// The interface, on the primary worker.
    pub(crate) const fn primary(&mut self) -> Option<&mut Interface> {
        match self {
            Self::Primary(primary) => Some(primary),
            Self::Secondary(_) => None,
        }
    }
}

macro_rules! of_either {
    ($post:ident.$call:ident($($argument:expr),*)) => {
        match $post {
            Self::Primary(one) => <Interface as WorkerPort>::$call(one, $($argument),*),
            Self::Secondary(one) => <SecondaryWorker as WorkerPort>::$call(one, $($argument),*),
        }
    };
}

impl WorkerPort for HostPort {
    fn driver(&self) -> &PortDriver {
        of_either!(self.driver())
    }

    #[inline]
    fn driver_mut(&mut self) -> &mut PortDriver {
        of_either!(self.driver_mut())
    }

    #[inline]
    fn report_use(&mut self, now: Time, next_hop: IpAddr) {
        of_either!(self.report_use(now, next_hop));
    }

    fn report_progress(&mut self, now: Time, to: IpAddr) {
        of_either!(self.report_progress(now, to));
    }

    fn failed(&self) -> Option<&VerbsError> {
        of_either!(self.failed())
    }

    fn breathe(&mut self, now: Time, take: Take<'_>) -> bool {
        of_either!(self.breathe(now, take))
    }

    fn is_due(&self, now: Time) -> bool {
        of_either!(self.is_due(now))
    }

    fn poll_timeout(&self) -> Option<Time> {
        of_either!(self.poll_timeout())
    }

    fn poll_delivery(&mut self) -> Option<Delivery> {
        of_either!(self.poll_delivery())
    }

    fn refuse(&mut self, now: Time, packet: &[u8]) {
        of_either!(self.refuse(now, packet));
    }

    #[inline]
    fn take_notified(&mut self) -> u32 {
        of_either!(self.take_notified())
    }

    fn has_sent(&self, now: Time) -> bool {
        of_either!(self.has_sent(now))
    }

    fn own(&self) -> BTreeSet<IpAddr> {
        of_either!(self.own())
    }

    fn source_for(&self, to: IpAddr) -> Option<IpAddr> {
        of_either!(self.source_for(to))
    }

    fn is_on_link(&self, now: Time, to: IpAddr) -> bool {
        of_either!(self.is_on_link(now, to))
    }

    fn datagram_mtu(&self) -> Option<u32> {
        of_either!(self.datagram_mtu())
    }
}
