//! Destinations beyond the link of an interface of IPoIB.
//!
//! Packets of this node, and packets in transit that wait for a neighbor, go where the routes of
//! the node lead: to a next hop on this link, or to another interface. Without such a route, the
//! interface uses the routes of its link: on-link prefixes, redirects and default routers.

use super::{InterfaceDrop, IpoibInterface, PendingPacket};
use crate::beyond::{Elsewhere, ElsewhereKind, NodeRoute, NodeRoutes};
use crate::frame::source;
use crate::icmp::IcmpError;
use crate::thread_check::assert_no_worker_thread;
use pollux_verbs::time::Time;
use std::net::IpAddr;
use std::sync::Arc;

impl IpoibInterface {
    /// Sets the routes of the node, and the number of this interface in them.
    pub fn set_node_routes(&mut self, number: u16, routes: Arc<dyn NodeRoutes>) {
        assert_no_worker_thread();
        self.icmp.share(routes.error_budget());
        (self.beyond.number, self.beyond.routes) = (number, Some(routes));
    }

    /// A packet in transit cannot be forwarded: its sender gets an ICMP error.
    pub fn handle_rejected(&mut self, now: Time, packet: &[u8], error: IcmpError) {
        assert_no_worker_thread();
        self.send_icmp_error(now, packet, error);
        self.pump(now);
    }

    /// Handles a packet that another interface has forwarded to this one.
    pub fn handle_elsewhere(&mut self, now: Time, packet: Vec<u8>, what: ElsewhereKind) {
        assert_no_worker_thread();
        match what {
            ElsewhereKind::Leaves(next_hop) => {
                self.send_to(now, next_hop, PendingPacket::of(packet));
            }
            ElsewhereKind::Failed(error) => self.send_icmp_error(now, &packet, error),
        }
        self.pump(now);
    }

    pub fn poll_elsewhere(&mut self) -> Option<Elsewhere> {
        self.beyond.elsewhere.pop()
    }

    /// Handles a packet that the routes of the node lead elsewhere; otherwise returns it.
    pub(super) fn route_beyond(
        &mut self,
        now: Time,
        destination: IpAddr,
        flow: u32,
        pending: PendingPacket,
    ) -> Option<PendingPacket> {
        // A subnet may be at several interfaces.
        let routes = self.beyond.routes.as_ref();
        let Some(routes) = routes.filter(|_| !self.routes.is_on_link(now, destination)) else {
            return Some(pending);
        };
        match routes.route_to(destination, flow) {
            _ if destination.is_multicast() => return Some(pending),
            NodeRoute::Link { interface, gateway } if interface != self.beyond.number => {
                let what = ElsewhereKind::Leaves(gateway.unwrap_or(destination));
                self.beyond.elsewhere.push(Elsewhere { interface, packet: pending.packet, what });
            }
            NodeRoute::Blackhole => self.drops.count(InterfaceDrop::Blackhole),
            NodeRoute::Rejected(error) => {
                self.drops.count(InterfaceDrop::NoRoute);
                self.send_icmp_error(now, &pending.packet, error);
            }
            NodeRoute::Link { .. } | NodeRoute::Nowhere => return Some(pending),
        }
        None
    }

    /// The other interface that the sender of a packet is beyond, by the routes of the node.
    pub(super) fn sender_is_beyond(&self, now: Time, packet: &[u8], flow: u32) -> Option<u16> {
        let sender = source(packet)?;
        if self.routes.is_on_link(now, sender) {
            return None;
        }
        self.beyond.interface_to(sender, flow)
    }
}
