//! Destinations beyond the link of an interface, where the node has routes of its own.
//!
//! Interfaces of all kinds share the routes of the node and the packets for its other interfaces.

use crate::bounded::BoundedQueue;
use crate::icmp::{ErrorBudget, IcmpError};
use std::net::IpAddr;
use std::sync::Arc;

const ELSEWHERE_MAX: usize = 256;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NodeRoute {
    Link {
        interface: u16,
        /// `None` if the destination is on the link.
        gateway: Option<IpAddr>,
    },
    Nowhere,
    Blackhole,
    Rejected(IcmpError),
}

pub trait NodeRoutes: Send + Sync {
    /// The flow hash of a packet, as workers compute it.
    fn flow_of(&self, packet: &[u8]) -> u32;

    /// `flow` chooses among several next hops.
    fn route_to(&self, destination: IpAddr, flow: u32) -> NodeRoute;

    fn error_budget(&self) -> ErrorBudget;
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Elsewhere {
    pub interface: u16,
    /// The packet, from its IP header on.
    pub packet: Vec<u8>,
    pub what: ElsewhereKind,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ElsewhereKind {
    Leaves(IpAddr),
    /// It cannot be delivered. That interface, where it arrived or its sender is, sends the ICMP
    /// error with an address of its own (RFC 1812 4.3.2.4).
    Failed(IcmpError),
}

/// A packet in transit that control has to fragment or reject.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TransitHop {
    /// The number of the interface where it arrived, by whose routing domain errors return: in
    /// another domain, its source may be another host.
    pub from: u16,
    /// Its next hop at the link of this interface, by the routes of that domain.
    pub next_hop: IpAddr,
}

/// The routes of the node, and the number of this interface in them.
pub(crate) struct Beyond {
    pub(crate) number: u16,
    pub(crate) routes: Option<Arc<dyn NodeRoutes>>,
    pub(crate) elsewhere: BoundedQueue<Elsewhere>,
}

impl Beyond {
    pub(crate) const fn new() -> Self {
        Self { number: 0, routes: None, elsewhere: BoundedQueue::new(ELSEWHERE_MAX) }
    }

    /// Has the interface where a packet arrived send the error; `false` if it is this one.
    pub(crate) fn error_elsewhere(&mut self, from: u16, packet: &[u8], error: IcmpError) -> bool {
        let is_elsewhere = from != self.number && self.routes.is_some();
        if is_elsewhere {
            let (packet, what) = (packet.to_vec(), ElsewhereKind::Failed(error));
            self.elsewhere.push(Elsewhere { interface: from, packet, what });
        }
        is_elsewhere
    }

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

    pub(crate) fn interface_to(&self, address: IpAddr, flow: u32) -> Option<u16> {
        match self.routes.as_ref()?.route_to(address, flow) {
            NodeRoute::Link { interface, .. } if interface != self.number => Some(interface),
            _ => None,
        }
    }
}
