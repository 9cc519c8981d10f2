//! The kinds of interfaces of a node, with the same methods for each.
//!
//! ```text
//!   configuration --> ConfiguredInterface --> NodeInterface   state, addresses, routes, ping, rows
//!                                     |
//!                         workers     +--> `worker_port`: packets, in a worker thread
//! ```
//!
//! The code for opening, routing, reports and changes of a node uses only [`NodeInterface`]. State
//! that only one kind has, such as connections, has a method that returns `None` for other kinds.

use super::ipoib_rows;
use super::outage::Outage;
use crate::admin::page::RowKey;
use crate::admin::rows::{DropCount, InterfaceStatus, NeighborStatus};
use crate::config::diff::Setting;
use crate::interface::echo::{EchoId, EchoOutcome, EchoRequest};
use crate::interface::{IpoibLink, PingError};
use crate::plain::PlainLink;
use pollux_control::address::{Addresses, text_of_duplicates};
use pollux_control::beyond::{InterfaceTransfer, NodeRoutes, TransferKind};
use pollux_control::icmp::IcmpCounters;
use pollux_dataplane::capture::{CaptureReader, CaptureTerms};
use pollux_dataplane::port::PortId;
use pollux_verbs::time::Time;
use std::collections::BTreeSet;
use std::fmt;
use std::net::IpAddr;
use std::sync::Arc;

/// The control plane of an interface of any kind, at its device.
pub(super) enum NodeInterface {
    Ipoib(Box<IpoibLink>),
    Plain(Box<PlainLink>),
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct LinkState {
    pub(super) name: &'static str,
    pub(super) why: String,
}

impl fmt::Display for LinkState {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.name, self.why)
    }
}

/// Makes the same call at an interface or a port of any kind.
macro_rules! at_kind {
    ($self:expr, $one:ident => $call:expr) => {
        match $self {
            Self::Ipoib($one) => $call,
            Self::Plain($one) => $call,
        }
    };
}
pub(super) use at_kind;

impl NodeInterface {
    /// Handles input and timers. Returns whether there was anything to do.
    pub(super) fn step(&mut self, now: Time) -> bool {
        at_kind!(self, one => one.step(now))
    }

    /// The reason why the interface has ended, if it has.
    pub(super) fn failed(&self) -> Option<Outage> {
        match self {
            Self::Ipoib(one) => one.failed().map(|error| Outage::Failed(error.clone())),
            Self::Plain(one) => {
                let lost = one.lost().map(|error| Outage::NoLink(Arc::new(error)));
                lost.or_else(|| one.failure().map(Outage::LinkFailed))
            }
        }
    }

    pub(super) fn poll_timeout(&self) -> Option<Time> {
        at_kind!(self, one => one.poll_timeout())
    }

    /// Workers that got commands since the last call, one bit each. They may sleep, so the caller
    /// wakes them.
    pub(super) fn take_notified(&mut self) -> u32 {
        at_kind!(self, one => one.take_notified())
    }

    /// Begins to leave the link.
    pub(super) fn leave(&mut self, now: Time) {
        at_kind!(self, one => one.leave(now));
    }

    /// Whether the interface has left its link, and all its workers have ended.
    pub(super) fn has_left(&self) -> bool {
        at_kind!(self, one => one.has_left())
    }

    /// Whether all packets that the interface accepted have been sent.
    pub(super) fn is_drained(&self) -> bool {
        at_kind!(self, one => one.is_drained())
    }

    /// Changes a setting. `false` if there is no space for it.
    pub(super) fn apply(&mut self, now: Time, setting: &Setting) -> bool {
        at_kind!(self, one => one.apply(now, setting))
    }

    /// Sets the addresses of all interfaces of the domain. Returns whether they have changed.
    pub(super) fn set_node_addresses(&mut self, now: Time, all: &Arc<BTreeSet<IpAddr>>) -> bool {
        at_kind!(self, one => one.set_node_addresses(now, all))
    }

    pub(super) fn set_node_routes(&mut self, number: PortId, routes: Arc<dyn NodeRoutes>) {
        at_kind!(self, one => one.set_node_routes(number, routes));
    }

    /// The next packet that leaves by another interface.
    pub(super) fn poll_transfer(&mut self) -> Option<InterfaceTransfer> {
        at_kind!(self, one => one.poll_transfer())
    }

    /// Handles a packet of another interface that leaves by this one.
    pub(super) fn handle_transfer(&mut self, now: Time, packet: Vec<u8>, kind: TransferKind) {
        at_kind!(self, one => one.handle_transfer(now, packet, kind));
    }

    /// Whether packets pass.
    pub(super) fn is_up(&self) -> bool {
        at_kind!(self, one => one.control().is_up())
    }

    pub(super) fn state(&self) -> LinkState {
        let (name, why) = match self {
            Self::Ipoib(one) => {
                let row = one.control().row();
                (row.state, row.why)
            }
            Self::Plain(one) => one.state(),
        };
        LinkState { name, why: why + &text_of_duplicates(self.addresses()) }
    }

    pub(super) fn has_duplicates(&self) -> bool {
        self.addresses().duplicates().next().is_some()
    }

    /// The configured addresses, and those that the interface made itself.
    pub(super) fn addresses(&self) -> &Addresses {
        at_kind!(self, one => one.control().addresses())
    }

    /// Addresses of the interface whose packets may also arrive at other interfaces of the node.
    pub(super) fn addresses_for_node(&self) -> Vec<IpAddr> {
        at_kind!(self, one => one.control().addresses_for_node().collect())
    }

    /// One address in each subnet of the interface, with the prefix length.
    pub(super) fn subnets(&self) -> Vec<(IpAddr, u8)> {
        at_kind!(self, one => one.control().subnets().collect())
    }

    /// Whether the interface has a route to an address.
    pub(super) fn leads_to(&self, now: Time, to: IpAddr) -> bool {
        match self {
            Self::Ipoib(one) => one.control().next_hop(now, to).is_some(),
            Self::Plain(one) => one.control().leads_to(to),
        }
    }

    /// Sends an ICMP echo request. [`NodeInterface::echo`] returns the outcome.
    pub(super) fn ping(&mut self, now: Time, request: EchoRequest) -> Result<EchoId, PingError> {
        at_kind!(self, one => one.ping(now, request))
    }

    /// Takes the outcome of an echo request, if it has one yet, and the sender of the ICMP error
    /// that caused it.
    pub(super) fn echo(&mut self, id: EchoId) -> Option<(EchoOutcome, Option<IpAddr>)> {
        at_kind!(self, one => one.echo(id))
    }

    /// The row of the interface, without the domain.
    pub(super) fn status(&self, now: Time, name: &str, device: &str) -> InterfaceStatus {
        let row = match self {
            Self::Ipoib(one) => ipoib_rows::status(now, one),
            Self::Plain(one) => one.status(now),
        };
        let LinkState { name: state, why } = self.state();
        let addresses = self.addresses().unique();
        InterfaceStatus {
            interface: name.into(),
            device: device.into(),
            state: state.into(),
            why,
            addresses: addresses.map(|one| format!("{}/{}", one.ip, one.prefix_len)).collect(),
            ..row
        }
    }

    /// The drop counters of the interface, zeros included.
    pub(super) fn drops(&self, name: &str) -> Vec<DropCount> {
        match self {
            Self::Ipoib(one) => one.drop_counts(name),
            Self::Plain(one) => one.drops(name),
        }
    }

    /// A page of the neighbors after `after`, and the key of its last row if there may be more.
    pub(super) fn neighbors(
        &self,
        now: Time,
        name: &str,
        after: Option<RowKey>,
    ) -> (Vec<NeighborStatus>, Option<RowKey>) {
        let after = match after {
            Some(RowKey::Neighbor(ip)) => Some(ip),
            _ => None,
        };
        match self {
            Self::Ipoib(one) => ipoib_rows::neighbors(now, name, one, after),
            Self::Plain(one) => one.neighbors(now, name, after),
        }
    }

    /// Begins a capture, and returns a reader for each worker. The capture ends when the readers
    /// are dropped.
    pub(super) fn capture(&mut self, terms: &CaptureTerms) -> Vec<CaptureReader> {
        at_kind!(self, one => one.capture(terms))
    }

    /// ICMP messages that were sent, or suppressed by a rate limit.
    pub(super) fn icmp_counters(&self) -> &IcmpCounters {
        at_kind!(self, one => one.control().icmp_counters())
    }

    /// The states of the neighbors; `None` if the interface resolves no link addresses.
    pub(super) fn neighbor_states(&self) -> Option<Vec<&'static str>> {
        Some(match self {
            Self::Ipoib(one) => {
                let rows = one.control().neighbor_rows_after(None);
                rows.map(|row| row.state.name()).collect()
            }
            Self::Plain(one) => {
                let rows = one.control().ethernet()?.rows_after(None);
                rows.map(|row| row.state.name()).collect()
            }
        })
    }

    /// Packets that wait for a neighbor, a path or a group; `None` if they never wait.
    pub(super) fn pending(&self) -> Option<usize> {
        match self {
            Self::Ipoib(one) => Some(one.control().load().pending),
            Self::Plain(one) => Some(one.control().ethernet()?.pending()),
        }
    }

    /// The interface, if it is an IPoIB interface: only those have connections, groups and shadows.
    pub(super) fn ipoib(&self) -> Option<&IpoibLink> {
        match self {
            Self::Ipoib(one) => Some(one),
            Self::Plain(_) => None,
        }
    }

    pub(super) fn ipoib_mut(&mut self) -> Option<&mut IpoibLink> {
        match self {
            Self::Ipoib(one) => Some(one),
            Self::Plain(_) => None,
        }
    }
}
