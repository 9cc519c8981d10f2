//! Access control lists: ordered rules of addresses, protocol, ports and ICMP type. The first rule
//! that matches a packet decides. A packet that matches no rule is permitted.
//!
//! ```text
//!   packet --> fields, once --> rules of its family, in order --> permit, deny or reject
//!                                        |
//!                                        +--> counter of the rule, of this worker
//! ```
//!
//! The rules of each address family are an array of compiled rules. An absent condition is compiled
//! to one that matches everything, so a rule is a few comparisons. No memory is allocated per
//! packet.
//!
//! Only the first fragment has ports or an ICMP type, and a packet whose extension headers cannot
//! be parsed has neither. Only rules without these conditions match such packets. A list that
//! denies a port therefore passes later fragments of denied packets, which the destination cannot
//! reassemble without the first (RFC 1858 2).
//!
//! Each worker has its own counters, which only this worker writes. So counting needs no lock, and
//! workers share no cache line.

use crate::headers::{Form, PacketHeaders};
use pollux_wire::ethernet::EtherType;
use pollux_wire::ip::IpProtocol;
use pollux_wire::ip::ipv4::Ipv4Header;
use pollux_wire::ip::ipv6::Ipv6Header;
use pollux_wire::ip::ipv6_ext::UpperLayer;
use std::net::IpAddr;
use std::ops::{BitAnd, RangeInclusive};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AclAction {
    Permit,
    /// Dropped silently.
    Deny,
    /// Dropped, and the sender gets an ICMP error.
    Reject,
}

/// A rule. An absent condition matches every packet.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AclRule {
    pub action: AclAction,
    /// Address and prefix length.
    pub source: Option<(IpAddr, u8)>,
    pub destination: Option<(IpAddr, u8)>,
    pub protocol: Option<IpProtocol>,
    /// Set only if the protocol is TCP or UDP.
    pub source_ports: Option<RangeInclusive<u16>>,
    /// Set only if the protocol is TCP or UDP.
    pub destination_ports: Option<RangeInclusive<u16>>,
    /// Set only if the protocol is ICMP or ICMPv6.
    pub icmp_type: Option<u8>,
}

/// An access control list, with a counter for each rule and worker.
#[derive(Debug)]
pub struct Acl {
    v4: Box<[Compiled<u32>]>,
    v6: Box<[Compiled<u128>]>,
    counts: Box<[RuleCounts]>,
}

/// The number of packets that each rule has matched in one worker.
type RuleCounts = Box<[AtomicU64]>;

/// An access control list as one worker applies it.
#[derive(Clone, Debug)]
pub struct AclFilter {
    acl: Arc<Acl>,
    worker: usize,
}

#[derive(Clone, Copy, Debug)]
struct Compiled<A> {
    source: Masked<A>,
    destination: Masked<A>,
    /// The protocol, or [`ANY_PROTOCOL`].
    protocol: u16,
    source_ports: [u32; 2],
    /// The range of destination ports, or of ICMP types.
    destination_ports: [u32; 2],
    action: AclAction,
    rule: u32,
}

/// An address, and a mask of its significant bits.
#[derive(Clone, Copy, Debug)]
struct Masked<A> {
    bits: A,
    mask: A,
}

#[derive(Clone, Copy, Debug)]
struct Fields<A> {
    source: A,
    destination: A,
    protocol: u16,
    source_port: u32,
    /// The destination port, or the ICMP type.
    destination_port: u32,
}

const ANY_PROTOCOL: u16 = 0x100;
/// The port of a packet without ports. It is above all real ports, so only [`ANY_PORT`] contains
/// it.
const NO_PORT: u32 = 0x1_0000;
const ANY_PORT: [u32; 2] = [0, NO_PORT];

impl Acl {
    pub fn new(rules: &[AclRule], workers: usize) -> Self {
        let numbered = || rules.iter().zip(0..);
        let count = |_| rules.iter().map(|_| AtomicU64::new(0)).collect();
        Self {
            v4: numbered().filter_map(|(rule, nth)| rule.compile_v4(nth)).collect(),
            v6: numbered().filter_map(|(rule, nth)| rule.compile_v6(nth)).collect(),
            counts: (0..workers).map(count).collect(),
        }
    }

    /// The number of packets that each rule has matched in all workers.
    pub fn packets(&self) -> Vec<u64> {
        let rules = self.counts.first().map_or(0, |counts| counts.len());
        let read = |counts: &RuleCounts, nth: usize| counts[nth].load(Ordering::Relaxed);
        (0..rules).map(|nth| self.counts.iter().map(|counts| read(counts, nth)).sum()).collect()
    }

    fn find(&self, headers: &PacketHeaders, packet: &[u8]) -> Option<(AclAction, u32)> {
        match headers.ether_type {
            EtherType::IPV4 => {
                let header = Ipv4Header::parse(packet.first_chunk()?);
                let is_first = header.fragment_offset == 0;
                let (source, destination) = (header.source.to_bits(), header.destination.to_bits());
                first(&self.v4, &Fields::new(source, destination, headers, packet, is_first))
            }
            EtherType::IPV6 => {
                let header = Ipv6Header::parse(packet.first_chunk()?);
                let is_first = headers.form != Form::Fragment || is_first_fragment(&header, packet);
                let (source, destination) = (header.source.to_bits(), header.destination.to_bits());
                first(&self.v6, &Fields::new(source, destination, headers, packet, is_first))
            }
            _ => None,
        }
    }
}

impl AclFilter {
    /// `worker` must be below the number of workers for which the list was created.
    pub const fn new(acl: Arc<Acl>, worker: usize) -> Self {
        Self { acl, worker }
    }

    #[inline]
    pub fn decide(&self, headers: &PacketHeaders, packet: &[u8]) -> AclAction {
        let Some((action, rule)) = self.acl.find(headers, packet) else {
            return AclAction::Permit;
        };
        let counts = self.acl.counts.get(self.worker);
        if let Some(count) = counts.and_then(|counts| counts.get(rule as usize)) {
            // Only this worker writes the counter.
            count.store(count.load(Ordering::Relaxed) + 1, Ordering::Relaxed);
        }
        action
    }
}

impl AclRule {
    fn compile_v4(&self, rule: u32) -> Option<Compiled<u32>> {
        let bits = |ip| match ip {
            IpAddr::V4(ip) => Some(ip.to_bits()),
            IpAddr::V6(_) => None,
        };
        let mask = |len: u8| !u32::MAX.checked_shr(len.into()).unwrap_or(0);
        self.compile(IpProtocol::ICMPV6, bits, mask, rule)
    }

    fn compile_v6(&self, rule: u32) -> Option<Compiled<u128>> {
        let bits = |ip| match ip {
            IpAddr::V4(_) => None,
            IpAddr::V6(ip) => Some(ip.to_bits()),
        };
        let mask = |len: u8| !u128::MAX.checked_shr(len.into()).unwrap_or(0);
        self.compile(IpProtocol::ICMPV4, bits, mask, rule)
    }

    /// `None` if an address or the ICMP protocol of the rule belongs to the other family.
    fn compile<A: Copy + Default + BitAnd<Output = A>>(
        &self,
        icmp_of_other: IpProtocol,
        bits: impl Fn(IpAddr) -> Option<A>,
        mask: impl Fn(u8) -> A,
        rule: u32,
    ) -> Option<Compiled<A>> {
        if self.protocol == Some(icmp_of_other) {
            return None;
        }
        let masked = |prefix: Option<(IpAddr, u8)>| match prefix {
            None => Some(Masked { bits: A::default(), mask: A::default() }),
            Some((ip, len)) => Some(Masked { bits: bits(ip)? & mask(len), mask: mask(len) }),
        };
        let range = |ports: &Option<RangeInclusive<u16>>| {
            ports.as_ref().map_or(ANY_PORT, |all| [*all.start(), *all.end()].map(u32::from))
        };
        let of_type = self.icmp_type.map(|kind| [u32::from(kind); 2]);
        Some(Compiled {
            source: masked(self.source)?,
            destination: masked(self.destination)?,
            protocol: self.protocol.map_or(ANY_PROTOCOL, |protocol| protocol.0.into()),
            source_ports: range(&self.source_ports),
            destination_ports: of_type.unwrap_or_else(|| range(&self.destination_ports)),
            action: self.action,
            rule,
        })
    }
}

impl<A> Fields<A> {
    /// The fields of a packet. Only an unfragmented packet or a first fragment has ports or an ICMP
    /// type.
    #[inline]
    fn new(
        source: A,
        destination: A,
        headers: &PacketHeaders,
        packet: &[u8],
        is_first: bool,
    ) -> Self {
        let payload = if is_first { headers.payload(packet) } else { &[] };
        let (source_port, destination_port) = match (headers.protocol, payload) {
            (IpProtocol::TCP | IpProtocol::UDP, &[a, b, c, d, ..]) => {
                (u16::from_be_bytes([a, b]).into(), u16::from_be_bytes([c, d]).into())
            }
            (IpProtocol::ICMPV4 | IpProtocol::ICMPV6, &[kind, ..]) => (NO_PORT, kind.into()),
            _ => (NO_PORT, NO_PORT),
        };
        let protocol = headers.protocol.0.into();
        Self { source, destination, protocol, source_port, destination_port }
    }
}

impl<A: Copy + PartialEq + BitAnd<Output = A>> Masked<A> {
    #[inline]
    fn has(&self, address: A) -> bool {
        address & self.mask == self.bits
    }
}

#[inline]
fn first<A>(rules: &[Compiled<A>], fields: &Fields<A>) -> Option<(AclAction, u32)>
where
    A: Copy + PartialEq + BitAnd<Output = A>,
{
    let is_in = |range: [u32; 2], port: u32| range[0] <= port && port <= range[1];
    let matches = |rule: &&Compiled<A>| {
        rule.source.has(fields.source)
            && rule.destination.has(fields.destination)
            && (rule.protocol == fields.protocol || rule.protocol == ANY_PROTOCOL)
            && is_in(rule.source_ports, fields.source_port)
            && is_in(rule.destination_ports, fields.destination_port)
    };
    rules.iter().find(matches).map(|rule| (rule.action, rule.rule))
}

/// Whether an IPv6 fragment is the first, which has the upper-layer header.
#[cold]
fn is_first_fragment(header: &Ipv6Header, packet: &[u8]) -> bool {
    let behind = packet.get(Ipv6Header::LEN..).unwrap_or_default();
    let upper = UpperLayer::find(header.next_header, behind).ok();
    upper.and_then(|upper| upper.fragment).is_some_and(|fragment| fragment.fragment_offset == 0)
}

#[cfg(test)]
mod tests;
