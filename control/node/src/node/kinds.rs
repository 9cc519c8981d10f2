//! The kinds of interfaces of a node, behind what all of them have.
//!
//! ```text
//!   configuration --> Named --> NodeInterface   state, addresses, routes, ping, rows
//!                                     |
//!                         workers     +--> `worker_port`: packets, in a worker thread
//! ```
//!
//! Opening, routing, reports and changes of a node know [`NodeInterface`] only. What one kind alone
//! has, such as connections, is reached by a method that gives nothing for the others.

use super::ipoib_rows;
use super::outage::Outage;
use crate::admin::page::RowKey;
use crate::admin::rows::{DropCount, InterfaceStatus, NeighborState, NeighborStatus};
use crate::config::diff::Setting;
use crate::interface::echo::{EchoId, EchoRequest, Outcome};
use crate::interface::{Interface, PingError};
use crate::plain::PlainLink;
use pollux_control::address::Addresses;
use pollux_control::beyond::{Elsewhere, ElsewhereKind, NodeRoutes};
use pollux_control::icmp::IcmpCounters;
use pollux_dataplane::capture::{CaptureReader, CaptureTerms};
use pollux_dataplane::port::PortId;
use pollux_verbs::time::Time;
use std::collections::BTreeSet;
use std::net::IpAddr;
use std::sync::Arc;

/// The control plane of an interface of any kind, at its device.
pub(super) trait NodeInterface: Send {
    /// Handles what has arrived, and timers. Returns whether there was anything to do.
    fn step(&mut self, now: Time) -> bool;
    /// The reason for which it has ended.
    fn failed(&self) -> Option<Outage>;
    /// The time of the next timer.
    fn poll_timeout(&self) -> Option<Time>;
    /// Workers that got commands since the last call, one bit each: they may sleep.
    fn take_notified(&mut self) -> u32;

    /// Begins to leave the link.
    fn leave(&mut self, now: Time);
    /// Whether it has left, and all its workers have ended.
    fn has_left(&self) -> bool;
    /// Whether all packets that it accepted have left.
    fn is_drained(&self, now: Time) -> bool;

    /// Changes a setting. `false` if there is no space for it.
    fn apply(&mut self, now: Time, setting: &Setting) -> bool;
    /// Sets the addresses of all interfaces of the node. Returns whether they are new.
    fn set_node_addresses(&mut self, now: Time, all: &Arc<BTreeSet<IpAddr>>) -> bool;
    /// Sets the routes of the node, and the number of this interface in them.
    fn set_node_routes(&mut self, number: PortId, routes: Arc<dyn NodeRoutes>);
    /// The next packet that leaves by another interface.
    fn poll_elsewhere(&mut self) -> Option<Elsewhere>;
    /// Handles a packet that another interface has for this one.
    fn handle_elsewhere(&mut self, now: Time, packet: Vec<u8>, what: ElsewhereKind);

    /// Whether packets pass.
    fn is_up(&self) -> bool;
    /// Its state, and the reason of that.
    fn state(&self) -> (&'static str, String);
    /// The addresses that are configured, and those that it has by itself.
    fn addresses(&self) -> &Addresses;
    /// Its addresses for which packets may come by other interfaces.
    fn addresses_for_node(&self) -> Vec<IpAddr>;
    /// An address in each of its subnets, with the prefix length.
    fn subnets(&self) -> Vec<(IpAddr, u8)>;
    /// Whether it has a route to an address.
    fn leads_to(&self, now: Time, to: IpAddr) -> bool;

    /// Sends an ICMP echo request. [`NodeInterface::echo`] returns the outcome.
    fn ping(&mut self, now: Time, request: EchoRequest) -> Result<EchoId, PingError>;
    /// Takes the outcome of an echo request, once there is one, and the sender of the ICMP error
    /// that is the reason.
    fn echo(&mut self, id: EchoId) -> Option<(Outcome, Option<IpAddr>)>;

    /// Its row, without the domain.
    fn status(&self, now: Time, name: &str, device: &str) -> InterfaceStatus;
    /// Its drop counters.
    fn drops(&self, name: &str) -> Vec<DropCount>;
    /// Its neighbors after this one, as many as a page has; and the last, if there are more.
    fn neighbors(
        &self,
        now: Time,
        name: &str,
        after: Option<RowKey>,
    ) -> (Vec<NeighborStatus>, Option<RowKey>);

    /// Begins a capture, with a reader for each worker. It ends when they are dropped.
    fn capture(&mut self, terms: &CaptureTerms) -> Vec<CaptureReader>;
    /// ICMP messages that were sent, or kept back by a rate limit.
    fn icmp_counters(&self) -> &IcmpCounters;
    /// The states of its neighbors, if it asks for their addresses.
    fn neighbor_states(&self) -> Option<Vec<NeighborState>>;
    /// Packets that wait for a neighbor, a path or a group, if there is anything to wait for.
    fn pending(&self) -> Option<usize>;

    /// The interface, if it is one of IPoIB: it has connections, groups and shadows.
    fn ipoib(&self) -> Option<&Interface>;
    /// The same, to change it.
    fn ipoib_mut(&mut self) -> Option<&mut Interface>;
    /// The interface, if it is a plain one.
    fn plain(&self) -> Option<&PlainLink>;
}

impl NodeInterface for Interface {
    fn step(&mut self, now: Time) -> bool {
        Interface::step(self, now)
    }

    fn failed(&self) -> Option<Outage> {
        Interface::failed(self).map(|error| Outage::Failed(error.clone()))
    }

    fn poll_timeout(&self) -> Option<Time> {
        Interface::poll_timeout(self)
    }

    fn take_notified(&mut self) -> u32 {
        Interface::take_notified(self)
    }

    fn leave(&mut self, now: Time) {
        Interface::leave(self, now);
    }

    fn has_left(&self) -> bool {
        Interface::has_left(self)
    }

    fn is_drained(&self, now: Time) -> bool {
        Interface::is_drained(self, now)
    }

    fn apply(&mut self, now: Time, setting: &Setting) -> bool {
        Interface::apply(self, now, setting)
    }

    fn set_node_addresses(&mut self, now: Time, all: &Arc<BTreeSet<IpAddr>>) -> bool {
        Interface::set_node_addresses(self, now, all)
    }

    fn set_node_routes(&mut self, number: PortId, routes: Arc<dyn NodeRoutes>) {
        Interface::set_node_routes(self, number, routes);
    }

    fn poll_elsewhere(&mut self) -> Option<Elsewhere> {
        Interface::poll_elsewhere(self)
    }

    fn handle_elsewhere(&mut self, now: Time, packet: Vec<u8>, what: ElsewhereKind) {
        Interface::handle_elsewhere(self, now, packet, what);
    }

    fn is_up(&self) -> bool {
        self.control().is_up()
    }

    fn state(&self) -> (&'static str, String) {
        let row = self.control().row();
        (row.state, row.why)
    }

    fn addresses(&self) -> &Addresses {
        self.control().addresses()
    }

    fn addresses_for_node(&self) -> Vec<IpAddr> {
        self.control().addresses_for_node().collect()
    }

    fn subnets(&self) -> Vec<(IpAddr, u8)> {
        self.control().subnets().collect()
    }

    fn leads_to(&self, now: Time, to: IpAddr) -> bool {
        self.control().next_hop(now, to).is_some()
    }

    fn ping(&mut self, now: Time, request: EchoRequest) -> Result<EchoId, PingError> {
        Interface::ping(self, now, request)
    }

    fn echo(&mut self, id: EchoId) -> Option<(Outcome, Option<IpAddr>)> {
        Interface::echo(self, id)
    }

    fn status(&self, now: Time, name: &str, device: &str) -> InterfaceStatus {
        ipoib_rows::status(now, name, device, self)
    }

    fn drops(&self, name: &str) -> Vec<DropCount> {
        super::drop_counts::drops(name, self)
    }

    fn neighbors(
        &self,
        now: Time,
        name: &str,
        after: Option<RowKey>,
    ) -> (Vec<NeighborStatus>, Option<RowKey>) {
        ipoib_rows::neighbors(now, name, self, after)
    }

    fn capture(&mut self, terms: &CaptureTerms) -> Vec<CaptureReader> {
        Interface::capture(self, terms)
    }

    fn icmp_counters(&self) -> &IcmpCounters {
        self.control().icmp_counters()
    }

    fn neighbor_states(&self) -> Option<Vec<NeighborState>> {
        let rows = self.control().neighbor_rows_after(None);
        Some(rows.map(|row| NeighborState::of(&row.state)).collect())
    }

    fn pending(&self) -> Option<usize> {
        Some(self.control().load().pending)
    }

    fn ipoib(&self) -> Option<&Interface> {
        Some(self)
    }

    fn ipoib_mut(&mut self) -> Option<&mut Interface> {
        Some(self)
    }

    fn plain(&self) -> Option<&PlainLink> {
        None
    }
}

impl NodeInterface for PlainLink {
    fn step(&mut self, now: Time) -> bool {
        PlainLink::step(self, now)
    }

    fn failed(&self) -> Option<Outage> {
        let lost = self.lost().map(|error| Outage::NoLink(Arc::new(error)));
        lost.or_else(|| self.failure().map(Outage::LinkFailed))
    }

    fn poll_timeout(&self) -> Option<Time> {
        PlainLink::poll_timeout(self)
    }

    fn take_notified(&mut self) -> u32 {
        PlainLink::take_notified(self)
    }

    fn leave(&mut self, now: Time) {
        PlainLink::leave(self, now);
    }

    fn has_left(&self) -> bool {
        PlainLink::has_left(self)
    }

    /// Nothing else waits here: the kernel takes a packet, or it is dropped.
    fn is_drained(&self, _: Time) -> bool {
        PlainLink::is_drained(self)
    }

    fn apply(&mut self, now: Time, setting: &Setting) -> bool {
        PlainLink::apply(self, now, setting)
    }

    fn set_node_addresses(&mut self, now: Time, all: &Arc<BTreeSet<IpAddr>>) -> bool {
        PlainLink::set_node_addresses(self, now, all)
    }

    fn set_node_routes(&mut self, number: PortId, routes: Arc<dyn NodeRoutes>) {
        PlainLink::set_node_routes(self, number, routes);
    }

    fn poll_elsewhere(&mut self) -> Option<Elsewhere> {
        PlainLink::poll_elsewhere(self)
    }

    fn handle_elsewhere(&mut self, now: Time, packet: Vec<u8>, what: ElsewhereKind) {
        PlainLink::handle_elsewhere(self, now, packet, what);
    }

    fn is_up(&self) -> bool {
        self.control().is_up()
    }

    fn state(&self) -> (&'static str, String) {
        PlainLink::state(self)
    }

    fn addresses(&self) -> &Addresses {
        self.control().addresses()
    }

    fn addresses_for_node(&self) -> Vec<IpAddr> {
        self.control().addresses_for_node().collect()
    }

    fn subnets(&self) -> Vec<(IpAddr, u8)> {
        self.control().subnets().collect()
    }

    fn leads_to(&self, _: Time, to: IpAddr) -> bool {
        self.control().leads_to(to)
    }

    fn ping(&mut self, now: Time, request: EchoRequest) -> Result<EchoId, PingError> {
        PlainLink::ping(self, now, request)
    }

    fn echo(&mut self, id: EchoId) -> Option<(Outcome, Option<IpAddr>)> {
        PlainLink::echo(self, id)
    }

    fn status(&self, now: Time, name: &str, device: &str) -> InterfaceStatus {
        PlainLink::status(self, now, name, device)
    }

    fn drops(&self, name: &str) -> Vec<DropCount> {
        PlainLink::drops(self, name)
    }

    fn neighbors(
        &self,
        now: Time,
        name: &str,
        after: Option<RowKey>,
    ) -> (Vec<NeighborStatus>, Option<RowKey>) {
        PlainLink::neighbors(self, now, name, after)
    }

    fn capture(&mut self, terms: &CaptureTerms) -> Vec<CaptureReader> {
        PlainLink::capture(self, terms)
    }

    fn icmp_counters(&self) -> &IcmpCounters {
        self.control().icmp_counters()
    }

    fn neighbor_states(&self) -> Option<Vec<NeighborState>> {
        let rows = self.control().ethernet()?.rows_after(None);
        Some(rows.map(|row| NeighborState::of(&row.state)).collect())
    }

    fn pending(&self) -> Option<usize> {
        Some(self.control().ethernet()?.pending())
    }

    fn ipoib(&self) -> Option<&Interface> {
        None
    }

    fn ipoib_mut(&mut self) -> Option<&mut Interface> {
        None
    }

    fn plain(&self) -> Option<&PlainLink> {
        Some(self)
    }
}
