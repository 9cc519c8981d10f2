//! The routes of the node at an IPoIB interface, for destinations beyond its link.
//!
//! A packet to a destination that is not on the link follows the routes of the node: to a gateway
//! on this link, or to another interface. Without such a route, the interface uses its own routes:
//! redirects and default routers.

use super::{InterfaceDrop, IpoibInterface, PendingPacket};
use crate::beyond::{InterfaceTransfer, NodeRoute, NodeRoutes, TransferKind};
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
        (self.routing.number, self.routing.routes) = (number, Some(routes));
    }

    /// Handles a packet in transit that cannot be forwarded: sends an ICMP error to its sender.
    pub fn handle_rejected(&mut self, now: Time, packet: &[u8], error: IcmpError) {
        assert_no_worker_thread();
        self.send_icmp_error(now, packet, error);
        self.pump(now);
    }

    /// Handles a packet or an error that another interface passes to this one.
    pub fn handle_transfer(&mut self, now: Time, packet: Vec<u8>, kind: TransferKind) {
        assert_no_worker_thread();
        match kind {
            TransferKind::Forward(next_hop) => {
                self.send_to(now, next_hop, PendingPacket::of(packet));
            }
            TransferKind::IcmpError(error) => self.send_icmp_error(now, &packet, error),
        }
        self.pump(now);
    }

    pub fn poll_transfer(&mut self) -> Option<InterfaceTransfer> {
        self.routing.transfers.pop()
    }

    /// Passes a packet to another interface or drops it, if the routes of the node say so.
    /// Otherwise returns it, for a next hop on this link.
    pub(super) fn route_beyond(
        &mut self,
        now: Time,
        destination: IpAddr,
        flow: u32,
        pending: PendingPacket,
    ) -> Option<PendingPacket> {
        // A destination on this link stays here, even if its subnet is also at other interfaces.
        let routes = self.routing.routes.as_ref();
        let Some(routes) = routes.filter(|_| !self.routes.is_on_link(now, destination)) else {
            return Some(pending);
        };
        match routes.route_to(destination, flow) {
            _ if destination.is_multicast() => return Some(pending),
            NodeRoute::Link { interface, gateway } if interface != self.routing.number => {
                let kind = TransferKind::Forward(gateway.unwrap_or(destination));
                self.routing.transfers.push(InterfaceTransfer {
                    interface,
                    packet: pending.packet,
                    kind,
                });
            }
            NodeRoute::Blackhole => self.drops.count(InterfaceDrop::Blackhole),
            NodeRoute::Rejected(error) => {
                self.drops.count(InterfaceDrop::NoRoute);
                self.send_icmp_error(now, &pending.packet, error);
            }
            NodeRoute::Link { .. } | NodeRoute::NoRoute => return Some(pending),
        }
        None
    }

    /// The other interface that leads to the sender of a packet, by the routes of the node.
    pub(super) fn sender_is_beyond(&self, now: Time, packet: &[u8], flow: u32) -> Option<u16> {
        let sender = source(packet)?;
        if self.routes.is_on_link(now, sender) {
            return None;
        }
        self.routing.interface_to(sender, flow)
    }
}
