//! Forwarding of packets in transit from the port of arrival to the port of the next hop (RFC 1812
//! 5, RFC 8200, RFC 4443), with reverse path checks (RFC 3704).
//!
//! ```text
//!   batch of a port --> martian? --> path back? --> route --> filter --> TTL --> queues
//!                       options?         |            |         |        |       one send each
//!                          v             v            v         v        v
//!                            counted             rejected: control sends an ICMP error
//! ```
//!
//! Each packet takes one route look-up. It stays in its buffer, where its TTL and checksum are
//! changed. At the end of a breath the queues of all ports are sent, so each port gets one batch.
//!
//! A port belongs to a routing domain (VRF), and packets that arrive there use the routes of this
//! domain. A route may lead into another domain, whose routes are then looked up. Packets cross
//! domains only by such routes.
//!
//! If a route has several next hops, the hash of the flow chooses one, so the packets of a flow
//! stay in order. The hash has a secret seed. With the same hash, two routers in a row would choose
//! alike, and the second would use only half of its links.
//!
//! Multicast packets have their own routes, to several ports ([`MulticastTable`]).

mod martian;
mod multicast;
#[cfg(test)]
mod multicast_tests;
mod options;
#[cfg(test)]
mod tests;

pub use martian::martian;
pub use multicast::{MulticastHop, MulticastRoute, MulticastTable, is_routed_group};

use crate::acl::{AclAction, AclFilter};
use crate::flow::hash_of_flow;
use crate::headers::Form;
use crate::port::{PacketPort, PortId, TransitError, TransitPacket, TxPacket};
use crate::reason::ForwardDrop;
use multicast::{Arrival, Departures};
use pollux_verbs::time::Time;
use pollux_wire::ethernet::EtherType;
use pollux_wire::ip::ipv4::Ipv4Header;
use pollux_wire::ip::ipv6::Ipv6Header;
use std::net::{IpAddr, Ipv4Addr};

/// A routing domain of a node: an index in a version of the tables.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct DomainId(pub u16);

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RouteTo {
    /// To a gateway on the link of a port, or without a gateway to the destination itself.
    Port {
        port: PortId,
        gateway: Option<IpAddr>,
    },
    Domain(DomainId),
    Nowhere,
    Blackhole,
    /// Rejected with destination unreachable.
    Unreachable,
    /// Rejected with administratively prohibited.
    Prohibited,
}

pub const LOOK_UPS_MAX: usize = 32;

/// A version of the FIB.
pub trait RouteLookup {
    /// The route to a destination. `flow` computes the hash that chooses among several next hops.
    fn look_up(&self, destination: IpAddr, flow: impl FnOnce() -> u32) -> &RouteTo;

    /// Finds the routes to at most [`LOOK_UPS_MAX`] destinations as [`Self::look_up`] does, in
    /// order. `flow` computes the hash for the destination at an index.
    #[inline]
    fn look_up_all<'a>(
        &'a self,
        destinations: &[IpAddr],
        flow: impl Fn(usize) -> u32,
        found: &mut [&'a RouteTo; LOOK_UPS_MAX],
    ) {
        for (nth, (destination, found)) in destinations.iter().zip(found).enumerate() {
            *found = self.look_up(*destination, || flow(nth));
        }
    }

    /// All next hops of the route to an address.
    fn next_hops(&self, address: IpAddr) -> &[RouteTo];
}

/// A version of all tables that forwarding reads.
pub trait ForwardTables {
    type Routes: RouteLookup;

    /// The rules for packets that arrive at a port. `None` if the port is not in this version.
    fn ingress(&self, port: PortId) -> Option<Ingress<'_, Self::Routes>>;

    /// The routes of a domain. `None` if the domain is not in this version.
    fn domain(&self, domain: DomainId) -> Option<&Self::Routes>;

    fn multicast(&self, _: PortId) -> Option<&MulticastTable> {
        None
    }

    /// The route to a destination, also if it is in another domain.
    #[inline]
    fn resolve<'a>(
        &'a self,
        routes: &'a Self::Routes,
        destination: IpAddr,
        flow: impl Fn() -> u32,
    ) -> &'a RouteTo {
        self.resolve_further(routes.look_up(destination, &flow), destination, flow)
    }

    /// Follows a route into another domain. Every other route is returned unchanged.
    ///
    /// Why only once: two domains that lead into each other would be a loop.
    #[inline]
    fn resolve_further<'a>(
        &'a self,
        route: &'a RouteTo,
        destination: IpAddr,
        flow: impl FnOnce() -> u32,
    ) -> &'a RouteTo {
        let RouteTo::Domain(next) = route else { return route };
        match self.domain(*next).map(|next| next.look_up(destination, flow)) {
            None | Some(RouteTo::Domain(_)) => &RouteTo::Nowhere,
            Some(route) => route,
        }
    }

    /// Whether a packet from `source` passes the reverse path check of `ingress`.
    fn has_reverse_path(&self, ingress: &Ingress<'_, Self::Routes>, source: IpAddr) -> bool {
        let leaves = |routes: &Self::Routes| {
            routes.next_hops(source).iter().any(|hop| matches!(hop, RouteTo::Port { .. }))
        };
        ingress.routes.next_hops(source).iter().any(|hop| match (ingress.reverse_path, *hop) {
            (ReversePath::Any, _) => true,
            (ReversePath::Strict(here), RouteTo::Port { port, .. }) => port == here,
            (ReversePath::Loose, RouteTo::Port { .. }) => true,
            (ReversePath::Loose, RouteTo::Domain(next)) => self.domain(next).is_some_and(leaves),
            _ => false,
        })
    }
}

#[derive(Clone, Copy, Debug)]
pub struct Ingress<'a, R> {
    pub routes: &'a R,
    pub reverse_path: ReversePath,
}

/// The reverse path check: which sources may arrive at a port, by the routes to them (uRPF, RFC
/// 3704).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum ReversePath {
    /// All.
    #[default]
    Any,
    /// Sources to which there is a route by any port, a default route included (RFC 3704 2.4).
    Loose,
    /// Sources to which there is a route by this port, and perhaps others (RFC 3704 2.3).
    Strict(PortId),
}

/// For a node with one domain and without reverse path checks, the routes are the tables.
impl<R: RouteLookup> ForwardTables for R {
    type Routes = R;

    #[inline]
    fn ingress(&self, _: PortId) -> Option<Ingress<'_, R>> {
        Some(Ingress { routes: self, reverse_path: ReversePath::Any })
    }

    fn domain(&self, _: DomainId) -> Option<&R> {
        None
    }
}

/// The packets that are sent by one port in this breath.
#[derive(Debug, Default)]
struct TxQueue {
    /// The index of the port among the ports of the worker. `None` if the worker does not have it.
    port: Option<usize>,
    /// The access control list for packets that leave by this port.
    filter: Option<AclFilter>,
    batch: Vec<TxPacket>,
}

#[derive(Debug)]
pub struct Forwarder {
    transit: Vec<TransitPacket>,
    /// The identifiers of the worker's ports, in order.
    ports: Vec<PortId>,
    /// The queues by [`PortId`].
    queues: Vec<TxQueue>,
    filled: Vec<usize>,
    seed: u64,
}

impl Forwarder {
    /// The seed must be secret.
    pub fn new(seed: u64) -> Self {
        Self {
            transit: Vec::new(),
            ports: Vec::new(),
            queues: Vec::new(),
            filled: Vec::new(),
            seed,
        }
    }

    /// Sets the identifiers of the ports, in the order in which [`Forwarder::breathe`] gets them.
    pub fn set_ports(&mut self, ports: impl Iterator<Item = PortId>) {
        self.queues.iter_mut().for_each(|queue| queue.port = None);
        self.ports.clear();
        for (index, id) in ports.enumerate() {
            self.ports.push(id);
            self.queue_of(id).port = Some(index);
        }
    }

    /// Sets the access control lists for packets that leave by these ports. Other ports have none.
    pub fn set_filters(&mut self, filters: impl Iterator<Item = (PortId, AclFilter)>) {
        self.queues.iter_mut().for_each(|queue| queue.filter = None);
        filters.for_each(|(id, filter)| self.queue_of(id).filter = Some(filter));
    }

    fn queue_of(&mut self, PortId(id): PortId) -> &mut TxQueue {
        let at = usize::from(id);
        if self.queues.len() <= at {
            self.queues.resize_with(at + 1, TxQueue::default);
        }
        &mut self.queues[at]
    }

    /// Polls all ports once, and forwards the packets in transit. Returns whether there was
    /// anything to do.
    pub fn breathe<P: PacketPort>(
        &mut self,
        now: Time,
        ports: &mut [P],
        tables: &impl ForwardTables,
    ) -> bool {
        let mut busy = false;
        for (index, port) in ports.iter_mut().enumerate() {
            busy |= port.poll(now, &mut self.transit);
            if !self.transit.is_empty() {
                let id = self.ports.get(index).copied();
                let ingress = id.and_then(|id| Some((id, tables.ingress(id)?)));
                self.forward_all(port, tables, ingress);
            }
        }
        self.flush(now, ports);
        busy
    }

    /// Queues the packets that a port received.
    ///
    /// Why there are several passes: in a large FIB a look-up waits for memory several times, and
    /// in passes the look-ups of a batch wait together.
    #[inline]
    fn forward_all<P: PacketPort, T: ForwardTables>(
        &mut self,
        from: &mut P,
        tables: &T,
        ingress: Option<(PortId, Ingress<'_, T::Routes>)>,
    ) {
        let Some((from_id, ingress)) = ingress else {
            let all = self.transit.drain(..);
            return all.for_each(|one| from.drop_transit(one.packet, ForwardDrop::PortAway));
        };
        let mut all = self.transit.drain(..);
        while let [_, ..] = all.as_slice() {
            let some = &all.as_slice()[..all.len().min(LOOK_UPS_MAX)];
            let count = some.len();
            let mut destinations = [IpAddr::V4(Ipv4Addr::UNSPECIFIED); LOOK_UPS_MAX];
            let routed = route_all(some, &mut destinations, self.seed, tables, &ingress);
            let routed = routed.iter().zip(&destinations);
            for (mut one, (routed, destination)) in all.by_ref().take(count).zip(routed) {
                let queue = routed.and_then(|route| {
                    let (port, next_hop) = next_hop(route, destination)?;
                    let at = usize::from(port.0);
                    let queue = self.queues.get_mut(at).filter(|queue| queue.port.is_some());
                    let queue = queue.ok_or(ForwardError::Drop(ForwardDrop::PortAway))?;
                    if let Some(filter) = &queue.filter {
                        check_acl_out(filter, &one)?;
                    }
                    decrement_ttl(one.headers.ether_type, one.packet.bytes_mut())?;
                    Ok((at, queue, next_hop))
                });
                match queue {
                    Ok((at, queue, next_hop)) => {
                        if queue.batch.is_empty() {
                            self.filled.push(at);
                        }
                        if one.packet.len() > one.headers.packet_bytes() {
                            // Removes link-layer padding.
                            one.packet.truncate(one.headers.packet_bytes());
                        }
                        let (ether_type, next_hop) = (one.headers.ether_type, *next_hop);
                        let packet = one.packet;
                        queue.batch.push(TxPacket { packet, ether_type, next_hop, from: from_id });
                    }
                    Err(ForwardError::Drop(why)) => from.drop_transit(one.packet, why),
                    Err(ForwardError::Reject(why)) => from.reject(one.packet, why),
                    Err(ForwardError::Multicast) => {
                        let table = tables.multicast(from_id);
                        let arrival = Arrival { from, port: from_id, table };
                        let (queues, filled) = (&mut self.queues, &mut self.filled);
                        Departures { queues, filled }.replicate(arrival, one);
                    }
                }
            }
        }
    }

    #[inline]
    fn flush<P: PacketPort>(&mut self, now: Time, ports: &mut [P]) {
        for at in self.filled.drain(..) {
            let queue = &mut self.queues[at];
            match queue.port.and_then(|index| ports.get_mut(index)) {
                Some(port) => port.send(now, &mut queue.batch),
                None => queue.batch.clear(),
            }
        }
    }
}

/// Why a packet is not forwarded to one next hop.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum ForwardError {
    Drop(ForwardDrop),
    Reject(TransitError),
    Multicast,
}

/// The route of a packet that may be forwarded.
type Routed<'a> = Result<&'a RouteTo, ForwardError>;

/// Checks and routes at most [`LOOK_UPS_MAX`] packets. Sets `destinations` to their destinations.
#[inline]
fn route_all<'a, T: ForwardTables>(
    packets: &[TransitPacket],
    destinations: &mut [IpAddr; LOOK_UPS_MAX],
    seed: u64,
    tables: &'a T,
    ingress: &Ingress<'a, T::Routes>,
) -> [Routed<'a>; LOOK_UPS_MAX] {
    let mut routed = [Ok(&RouteTo::Nowhere); LOOK_UPS_MAX];
    for ((one, to), routed) in packets.iter().zip(&mut *destinations).zip(&mut routed) {
        if let Err(error) = check(one, to, tables, ingress) {
            *routed = Err(error);
        }
    }
    let destinations = &destinations[..packets.len().min(LOOK_UPS_MAX)];
    let flow = |nth: usize| {
        let TransitPacket { packet, headers } = &packets[nth];
        hash_of_flow(headers, packet.bytes(), seed)
    };
    let mut routes = [&RouteTo::Nowhere; LOOK_UPS_MAX];
    ingress.routes.look_up_all(destinations, flow, &mut routes);
    for (nth, (routed, route)) in routed.iter_mut().zip(routes).take(destinations.len()).enumerate()
    {
        if let Ok(routed) = routed {
            *routed = tables.resolve_further(route, destinations[nth], || flow(nth));
        }
    }
    routed
}

/// Checks whether a packet may be forwarded, and sets its destination.
///
/// Why each family has its own code: the compiler copies an `IpAddr` of an unknown family in
/// pieces.
#[inline]
fn check<T: ForwardTables>(
    packet: &TransitPacket,
    destination: &mut IpAddr,
    tables: &T,
    ingress: &Ingress<'_, T::Routes>,
) -> Result<(), ForwardError> {
    const MARTIAN: ForwardError = ForwardError::Drop(ForwardDrop::MartianSource);
    let bytes = packet.packet.bytes();
    match packet.headers.ether_type {
        EtherType::IPV4 => {
            let header = Ipv4Header::parse(bytes.first_chunk().ok_or(MARTIAN)?);
            *destination = header.destination.into();
            check_addresses(header.source.into(), header.destination.into(), tables, ingress)?;
            match packet.headers.form {
                Form::Plain => Ok(()),
                _ => check_options(bytes, *destination, tables, ingress),
            }
        }
        EtherType::IPV6 => {
            let header = Ipv6Header::parse(bytes.first_chunk().ok_or(MARTIAN)?);
            *destination = header.destination.into();
            check_addresses(header.source.into(), header.destination.into(), tables, ingress)
        }
        _ => Err(MARTIAN),
    }
}

/// Checks the options of a packet.
///
/// A packet to a blackhole gets no ICMP error. The broadcast addresses of other links have such
/// routes, too.
#[cold]
fn check_options<T: ForwardTables>(
    packet: &[u8],
    destination: IpAddr,
    tables: &T,
    ingress: &Ingress<'_, T::Routes>,
) -> Result<(), ForwardError> {
    options::check(packet).map_err(|why| {
        let route = tables.resolve(ingress.routes, destination, || 0);
        let is_silent = *route == RouteTo::Blackhole || destination.is_multicast();
        if is_silent { ForwardError::Drop(ForwardDrop::Blackhole) } else { why }
    })
}

#[inline(always)]
fn check_addresses<T: ForwardTables>(
    source: IpAddr,
    destination: IpAddr,
    tables: &T,
    ingress: &Ingress<'_, T::Routes>,
) -> Result<(), ForwardError> {
    if let Some(why) = martian(source, destination) {
        return Err(ForwardError::Drop(why));
    }
    if ingress.reverse_path != ReversePath::Any && !tables.has_reverse_path(ingress, source) {
        return Err(ForwardError::Drop(ForwardDrop::ReversePath));
    }
    if destination.is_multicast() {
        return Err(ForwardError::Multicast);
    }
    Ok(())
}

#[inline]
fn next_hop<'a>(
    route: &'a RouteTo,
    destination: &'a IpAddr,
) -> Result<(PortId, &'a IpAddr), ForwardError> {
    match route {
        RouteTo::Port { port, gateway } => Ok((*port, gateway.as_ref().unwrap_or(destination))),
        RouteTo::Nowhere | RouteTo::Domain(_) => Err(ForwardError::Reject(TransitError::NoRoute)),
        RouteTo::Blackhole => Err(ForwardError::Drop(ForwardDrop::Blackhole)),
        RouteTo::Unreachable => Err(ForwardError::Reject(TransitError::Unreachable)),
        RouteTo::Prohibited => Err(ForwardError::Reject(TransitError::Prohibited)),
    }
}

/// Checks the access control list of the port where a packet leaves.
fn check_acl_out(filter: &AclFilter, packet: &TransitPacket) -> Result<(), ForwardError> {
    match filter.decide(&packet.headers, packet.packet.bytes()) {
        AclAction::Permit => Ok(()),
        AclAction::Deny => Err(ForwardError::Drop(ForwardDrop::AclOut)),
        AclAction::Reject => Err(ForwardError::Reject(TransitError::Filtered)),
    }
}

/// Decrements the TTL or hop limit. A packet whose TTL has expired is rejected unchanged.
#[inline]
fn decrement_ttl(ether_type: EtherType, packet: &mut [u8]) -> Result<(), ForwardError> {
    const EXPIRED: ForwardError = ForwardError::Reject(TransitError::TimeExceeded);
    if ether_type == EtherType::IPV4 {
        let header = packet.first_chunk_mut().ok_or(EXPIRED)?;
        if Ipv4Header::parse(header).ttl <= 1 {
            return Err(EXPIRED);
        }
        Ipv4Header::decrement_ttl(header);
    } else {
        let header = packet.first_chunk_mut().ok_or(EXPIRED)?;
        if Ipv6Header::parse(header).hop_limit <= 1 {
            return Err(EXPIRED);
        }
        Ipv6Header::decrement_hop_limit(header);
    }
    Ok(())
}
