//! Multicast forwarding: one packet to several ports (RFC 1112, RFC 5110 3).
//!
//! ```text
//!   (source, group) --> route of that source, or of the group --> arrived at the route's port?
//!                                |                                       |
//!                                v                                       v
//!                   none: counted as `multicast`            no: counted as `multicast_rpf`
//!
//!   yes --> each outgoing port but that of arrival --> TTL --> filter --> queue
//! ```
//!
//! Routes are stored by the port where their packets may arrive. A packet that arrives at another
//! port, by a loop or from a forger, is not multiplied (reverse path forwarding). Each outgoing
//! port has a TTL threshold, and only packets with a higher TTL leave there.
//!
//! Every outgoing port except the last gets a copy, because a link changes the packet when it sends
//! it. Packets to a group of the link are not forwarded, and a dropped multicast packet causes no
//! ICMP error (RFC 1122 3.2.2, RFC 4443 2.4).

use super::{TxQueue, check_acl_out, decrement_ttl};
use crate::port::{PacketPort, PortId, TransitPacket, TxPacket};
use crate::reason::ForwardDrop;
use pollux_wire::ethernet::EtherType;
use pollux_wire::ip::ipv4::Ipv4Header;
use pollux_wire::ip::ipv6::Ipv6Header;
use std::collections::BTreeMap;
use std::net::IpAddr;

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MulticastRoute {
    pub group: IpAddr,
    /// The source. A route without a source is for all sources without a route of their own.
    pub source: Option<IpAddr>,
    pub from: PortId,
    pub to: Vec<MulticastHop>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct MulticastHop {
    pub port: PortId,
    /// Only packets with a higher TTL or hop limit on arrival leave here.
    pub ttl_threshold: u8,
}

#[derive(Clone, Debug, Default)]
pub struct MulticastTable {
    /// Sorted, for binary search.
    groups: Box<[(IpAddr, GroupRoutes)]>,
}

/// Outgoing ports by the port of arrival.
type ByPort = BTreeMap<PortId, Box<[MulticastHop]>>;

#[derive(Clone, Debug, Default)]
struct GroupRoutes {
    by_source: BTreeMap<IpAddr, ByPort>,
    /// The routes for all other sources.
    any: ByPort,
}

impl MulticastTable {
    /// If two routes have the same source, group and port of arrival, the first is used.
    pub fn new(routes: impl IntoIterator<Item = MulticastRoute>) -> Self {
        let mut groups = BTreeMap::<IpAddr, GroupRoutes>::new();
        for MulticastRoute { group, source, from, to } in routes {
            let routes = groups.entry(group).or_default();
            let by_port = match source {
                Some(source) => routes.by_source.entry(source).or_default(),
                None => &mut routes.any,
            };
            by_port.entry(from).or_insert_with(|| to.into());
        }
        Self { groups: groups.into_iter().collect() }
    }

    /// The outgoing ports of a packet. An error is the reason to drop it.
    fn look_up(
        &self,
        source: IpAddr,
        group: IpAddr,
        from: PortId,
    ) -> Result<&[MulticastHop], ForwardDrop> {
        let at = self.groups.binary_search_by_key(&group, |(group, _)| *group);
        let (_, routes) = &self.groups[at.map_err(|_| ForwardDrop::Multicast)?];
        let by_port = routes.by_source.get(&source).unwrap_or(&routes.any);
        match by_port.get(&from) {
            Some(hops) => Ok(hops),
            None if by_port.is_empty() => Err(ForwardDrop::Multicast),
            None => Err(ForwardDrop::MulticastRpf),
        }
    }
}

/// Whether packets to a group may leave its link. The groups of the link's own protocols (RFC 5771
/// 4) and those of link-local or smaller scope (RFC 4291 2.7) may not.
#[inline]
pub const fn is_routed_group(group: IpAddr) -> bool {
    match group {
        IpAddr::V4(ip) => ip.is_multicast() && !matches!(ip.octets(), [224, 0, 0, _]),
        IpAddr::V6(ip) => ip.is_multicast() && ip.octets()[1] & 0x0f > 2,
    }
}

/// The port where a packet arrived, and the routes of that port.
pub(super) struct Arrival<'a, P> {
    pub(super) from: &'a mut P,
    pub(super) port: PortId,
    pub(super) table: Option<&'a MulticastTable>,
}

/// The queues of all ports, and the list of filled queues.
pub(super) struct Departures<'a> {
    pub(super) queues: &'a mut [TxQueue],
    pub(super) filled: &'a mut Vec<usize>,
}

impl Departures<'_> {
    /// Queues a multicast packet at all of its outgoing ports.
    ///
    /// Why this is not inlined: most packets are unicast, and the loop for them is to stay short.
    #[inline(never)]
    pub(super) fn replicate<P: PacketPort>(
        &mut self,
        arrival: Arrival<'_, P>,
        mut one: TransitPacket,
    ) {
        let Arrival { from, port, table } = arrival;
        let (group, ttl, hops) = match outgoing(&mut one, port, table) {
            Ok(outgoing) => outgoing,
            Err(why) => return from.drop_transit(one.packet, why),
        };
        // Removes link-layer padding.
        one.packet.truncate(one.headers.packet_bytes());
        let ether_type = one.headers.ether_type;
        let (mut last, mut why) = (None, ForwardDrop::Multicast);
        for hop in hops.iter().filter(|hop| hop.port != port) {
            if ttl <= hop.ttl_threshold {
                why = ForwardDrop::TimeExceeded;
                continue;
            }
            let next = self.queue_of(hop.port, &one);
            if let Some(before) = last.replace(next)
                && let Some(packet) = from.copy(&one.packet)
            {
                self.finish(
                    from,
                    before,
                    TxPacket { packet, ether_type, next_hop: group, from: port },
                );
            }
        }
        let packet = TxPacket { packet: one.packet, ether_type, next_hop: group, from: port };
        self.finish(from, last.unwrap_or(Err(why)), packet);
    }

    /// Queues a packet, or drops it at its port of arrival.
    fn finish<P: PacketPort>(
        &mut self,
        from: &mut P,
        how: Result<usize, ForwardDrop>,
        packet: TxPacket,
    ) {
        match how {
            Ok(at) => {
                let queue = &mut self.queues[at];
                if queue.batch.is_empty() {
                    self.filled.push(at);
                }
                queue.batch.push(packet);
            }
            Err(why) => from.drop_transit(packet.packet, why),
        }
    }

    /// The queue of an outgoing port. An error is the reason to drop the packet there.
    fn queue_of(&self, port: PortId, packet: &TransitPacket) -> Result<usize, ForwardDrop> {
        let at = usize::from(port.0);
        let queue = self.queues.get(at).filter(|queue| queue.port.is_some());
        let queue = queue.ok_or(ForwardDrop::PortAway)?;
        let filtered = queue.filter.as_ref().map_or(Ok(()), |filter| check_acl_out(filter, packet));
        filtered.map(|()| at).map_err(|_| ForwardDrop::AclOut)
    }
}

/// Decrements the TTL of a packet. Returns its group, its TTL on arrival, and its outgoing ports.
fn outgoing<'a>(
    one: &mut TransitPacket,
    port: PortId,
    table: Option<&'a MulticastTable>,
) -> Result<(IpAddr, u8, &'a [MulticastHop]), ForwardDrop> {
    let TransitPacket { packet, headers } = one;
    let bytes = packet.bytes();
    let addresses = headers.source(bytes).zip(headers.destination(bytes));
    let (source, group) = addresses.ok_or(ForwardDrop::MartianSource)?;
    if !is_routed_group(group) {
        return Err(ForwardDrop::Multicast);
    }
    let hops = table.ok_or(ForwardDrop::Multicast)?.look_up(source, group, port)?;
    let ttl = match headers.ether_type {
        EtherType::IPV4 => bytes.first_chunk().map(|header| Ipv4Header::parse(header).ttl),
        _ => bytes.first_chunk().map(|header| Ipv6Header::parse(header).hop_limit),
    };
    let taken = decrement_ttl(headers.ether_type, packet.bytes_mut());
    taken.map_err(|_| ForwardDrop::TimeExceeded)?;
    Ok((group, ttl.unwrap_or_default(), hops))
}
