//! Destinations beyond the link of an interface, where the node has routes of its own.
//!
//! Interfaces of all kinds use the same: the routes of the node, and packets for its other
//! interfaces.

use crate::bounded::Queue;
use crate::icmp::{ErrorBudget, IcmpError};
use std::net::IpAddr;
use std::sync::Arc;

/// Packets for other interfaces that wait for the node, at most.
const ELSEWHERE_MAX: usize = 256;

/// A route of the node to a destination.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NodeRoute {
    /// To a gateway, or without one to the destination itself, at the link of an interface.
    Link {
        /// The number of the interface.
        interface: u16,
        /// The router at that link; without one, the destination is there.
        gateway: Option<IpAddr>,
    },
    /// No route.
    Nowhere,
    /// Packets are dropped.
    Blackhole,
    /// Packets are answered with this error.
    Rejected(IcmpError),
}

/// The interface to the node's routes.
pub trait NodeRoutes: Send + Sync {
    /// The hash of the flow of a packet, which is the one that workers use.
    fn flow_of(&self, packet: &[u8]) -> u32;

    /// Where packets to a destination go. The hash chooses among several next hops.
    fn route_to(&self, destination: IpAddr, flow: u32) -> NodeRoute;

    /// The ICMP errors that the interfaces of the node may send together.
    fn error_budget(&self) -> ErrorBudget;
}

/// A packet for another interface.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Elsewhere {
    /// The number of the interface.
    pub interface: u16,
    /// The packet, from its IP header on.
    pub packet: Vec<u8>,
    /// The result at the other interface.
    pub what: ElsewhereKind,
}

/// The result of a packet at another interface.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ElsewhereKind {
    /// It leaves to this next hop.
    Leaves(IpAddr),
    /// It cannot be delivered. It arrived at that interface, or its sender is beyond it: that one
    /// sends the ICMP error, with an address of its own (RFC 1812 4.3.2.4).
    Failed(IcmpError),
}

/// The way of a packet in transit through the node, of which control has a part.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TransitHop {
    /// The number of the interface where it arrived. Errors go back by the routes of the domain of
    /// that one: in the domain of another, its source may be another host, or none.
    pub from: u16,
    /// Its next hop at the link of this interface, by the routes of that domain.
    pub next_hop: IpAddr,
}

/// The routes of the node, and the number of this interface in them.
pub(crate) struct Beyond {
    pub(crate) number: u16,
    pub(crate) routes: Option<Arc<dyn NodeRoutes>>,
    pub(crate) elsewhere: Queue<Elsewhere>,
}

impl Beyond {
    /// Without any routes.
    pub(crate) const fn new() -> Self {
        Self { number: 0, routes: None, elsewhere: Queue::new(ELSEWHERE_MAX) }
    }

    /// Another interface that is to send an error about a packet that arrived there.
    pub(crate) fn error_elsewhere(&mut self, from: u16, packet: &[u8], error: IcmpError) -> bool {
        let is_elsewhere = from != self.number && self.routes.is_some();
        if is_elsewhere {
            let (packet, what) = (packet.to_vec(), ElsewhereKind::Failed(error));
            self.elsewhere.push(Elsewhere { interface: from, packet, what });
        }
        is_elsewhere
    }

    /// The hash of the flow of a packet.
    pub(crate) fn flow_of(&self, packet: &[u8]) -> u32 {
        self.routes.as_ref().map_or(0, |routes| routes.flow_of(packet))
    }

    /// The gateway on this link; without one, the destination is on it.
    pub(crate) fn gateway(&self, destination: IpAddr, flow: u32) -> Option<Option<IpAddr>> {
        match self.routes.as_ref()?.route_to(destination, flow) {
            NodeRoute::Link { interface, gateway } if interface == self.number => Some(gateway),
            _ => None,
        }
    }

    /// The other interface that leads to an address.
    pub(crate) fn interface_to(&self, address: IpAddr, flow: u32) -> Option<u16> {
        match self.routes.as_ref()?.route_to(address, flow) {
            NodeRoute::Link { interface, .. } if interface != self.number => Some(interface),
            _ => None,
        }
    }
}
