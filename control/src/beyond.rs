//! The routes of the node, for destinations beyond the link of an interface.
//!
//! Interfaces of all kinds share these routes. A packet for another interface of the node leaves
//! through a queue of [`InterfaceTransfer`].

use crate::bounded::BoundedQueue;
use crate::icmp::{ErrorBudget, IcmpError};
use std::net::IpAddr;
use std::sync::Arc;

const INTERFACE_TRANSFERS_MAX: usize = 256;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NodeRoute {
    Link {
        interface: u16,
        /// `None` if the destination is on the link.
        gateway: Option<IpAddr>,
    },
    /// The node has no route.
    NoRoute,
    Blackhole,
    Rejected(IcmpError),
}

pub trait NodeRoutes: Send + Sync {
    /// The flow hash of a packet, equal to the one that workers compute.
    fn flow_of(&self, packet: &[u8]) -> u32;

    /// The route to a destination; `flow` selects one of several next hops.
    fn route_to(&self, destination: IpAddr, flow: u32) -> NodeRoute;

    fn error_budget(&self) -> ErrorBudget;
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct InterfaceTransfer {
    pub interface: u16,
    /// The packet, from its IP header on.
    pub packet: Vec<u8>,
    pub kind: TransferKind,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TransferKind {
    /// That interface sends the packet to this next hop.
    Forward(IpAddr),
    /// The packet cannot be delivered. That interface, where the packet arrived or which leads to
    /// its sender, sends the ICMP error from an address of its own (RFC 1812 4.3.2.4).
    IcmpError(IcmpError),
}

/// A packet in transit that control has to fragment or reject.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TransitHop {
    /// The number of the interface where the packet arrived. An ICMP error uses the routing domain
    /// of that interface, because in another domain the source address may belong to another host.
    pub from: u16,
    /// The next hop on the link of this interface, by the routes of that domain.
    pub next_hop: IpAddr,
}

/// The routes of the node, the number of this interface in them, and packets for other interfaces.
pub(crate) struct NodeRouting {
    pub(crate) number: u16,
    pub(crate) routes: Option<Arc<dyn NodeRoutes>>,
    pub(crate) transfers: BoundedQueue<InterfaceTransfer>,
}

impl NodeRouting {
    pub(crate) const fn new() -> Self {
        Self { number: 0, routes: None, transfers: BoundedQueue::new(INTERFACE_TRANSFERS_MAX) }
    }

    /// Passes an ICMP error to the interface `from`, where the packet arrived. Returns `false` if
    /// this interface has to send the error itself.
    pub(crate) fn transfer_error(&mut self, from: u16, packet: &[u8], error: IcmpError) -> bool {
        let is_transferred = from != self.number && self.routes.is_some();
        if is_transferred {
            let (packet, kind) = (packet.to_vec(), TransferKind::IcmpError(error));
            self.transfers.push(InterfaceTransfer { interface: from, packet, kind });
        }
        is_transferred
    }

    pub(crate) fn flow_of(&self, packet: &[u8]) -> u32 {
        self.routes.as_ref().map_or(0, |routes| routes.flow_of(packet))
    }

    /// The gateway to `destination` if its route leads to this link: `Some(None)` if the
    /// destination is on the link itself.
    pub(crate) fn gateway(&self, destination: IpAddr, flow: u32) -> Option<Option<IpAddr>> {
        match self.routes.as_ref()?.route_to(destination, flow) {
            NodeRoute::Link { interface, gateway } if interface == self.number => Some(gateway),
            _ => None,
        }
    }

    pub(crate) fn interface_to(&self, address: IpAddr, flow: u32) -> Option<u16> {
        match self.routes.as_ref()?.route_to(address, flow) {
            NodeRoute::Link { interface, .. } if interface != self.number => Some(interface),
            _ => None,
        }
    }
}
