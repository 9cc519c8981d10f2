//! ICMPv4 and ICMPv6: echo replies, and ICMP errors about packets that cannot be delivered.
//!
//! RFC 1122 3.2.2 and RFC 4443 2.4 forbid errors about errors, about packets to a group, and about
//! packets without a unicast source. So two nodes cannot send each other errors forever, and one
//! packet cannot cause many errors. Errors also have a rate limit: one token bucket per family,
//! which all interfaces of a node share (RFC 4443 2.4 (f), RFC 1812 4.3.2.8). Why one per family: a
//! flood of packets of one family does not stop path MTU discovery of the other.
//!
//! Why replies to a unicast echo request have no rate limit: RFC 1122 3.2.2.6 and RFC 4443 4.2
//! require a reply to each, and RFC 4443 2.4 (f) limits errors, not replies. A unicast request
//! causes one packet of the same length, so even a forged source amplifies nothing. Receiving the
//! request costs as much as sending the reply, so the receive queue bounds both. A healthy neighbor
//! in shared memory sends 300,000 requests a second. A request to a group is different: all members
//! answer it, so these replies have a rate limit. Linux makes the same distinction
//! (`icmp_ratemask`).

mod budget;
mod counters;
#[cfg(test)]
mod tests;

pub use budget::ErrorBudget;
pub use counters::{IcmpCounters, IcmpSentKind};

use crate::address::Addresses;
use crate::bounded::RateLimit;
use crate::frame::{CONTROL_DSCP, LinkFrame, NoLink, Sender, To};
use pollux_verbs::drops::Drops;
use pollux_verbs::reasons;
use pollux_verbs::time::Time;
use pollux_wire::ip::IpProtocol;
use pollux_wire::ip::icmp::Icmpv6Type;
use pollux_wire::ip::icmpv4::{
    self, Icmpv4Message, Icmpv4TimeExceeded, Icmpv4Type, Icmpv4Unreachable,
};
use pollux_wire::ip::icmpv6::{
    self, Icmpv6Message, Icmpv6ParameterProblem, Icmpv6TimeExceeded, Icmpv6Unreachable,
};
use pollux_wire::ip::ipv4::{Ipv4Header, Ipv4Packet};
use pollux_wire::ip::ipv6::{IPV6_MTU_MIN, Ipv6Header, Ipv6Packet};
use pollux_wire::ip::ipv6_ext::UpperLayer;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

pub(crate) const HOP_LIMIT: u8 = 64;
/// The longest ICMPv4 error, in bytes (RFC 1812 4.3.2.3).
const V4_LEN_MAX: usize = 576;
/// Bytes of an error before the packet that the error quotes.
const V4_HEADERS: usize = Ipv4Header::LEN + 8;
const V6_HEADERS: usize = Ipv6Header::LEN + 8;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum IcmpError {
    NoRoute,
    /// The link-layer address of the next hop is not resolved.
    AddressUnreachable,
    RejectRoute,
    NoPort,
    /// The packet is longer than this MTU, in bytes.
    TooBig(u32),
    TimeExceeded,
    Prohibited,
    /// The byte at this offset of the packet's header is wrong.
    ParameterProblem(u8),
}

reasons! {
    pub enum IcmpDrop {
        Malformed = "malformed",
        Checksum = "checksum",
        Fragment = "fragment",
        NotAnEcho = "not_an_echo",
        ToGroup = "to_group",
        FromNobody = "from_nobody",
        AboutError = "about_error",
        NoSource = "no_source",
        Rate = "rate",
    }
}

#[derive(Clone, Copy, Debug)]
pub struct IcmpConfig {
    /// Errors per second and family, at most, of all interfaces that share the [`ErrorBudget`].
    pub errors_per_second_max: u32,
    pub errors_burst_max: u32,
    /// Replies per second to echo requests to a group, at most.
    pub group_echoes_per_second_max: u32,
    pub group_echoes_burst_max: u32,
}

impl Default for IcmpConfig {
    fn default() -> Self {
        Self {
            errors_per_second_max: 1000,
            errors_burst_max: 50,
            group_echoes_per_second_max: 1000,
            group_echoes_burst_max: 50,
        }
    }
}

pub struct Icmp {
    errors: ErrorBudget,
    group_echoes: RateLimit,
    drops: Drops<IcmpDrop>,
    counters: IcmpCounters,
}

impl Icmp {
    pub fn new(config: &IcmpConfig) -> Self {
        Self {
            errors: ErrorBudget::new(config),
            group_echoes: RateLimit::new(
                config.group_echoes_per_second_max,
                config.group_echoes_burst_max,
            ),
            drops: Drops::default(),
            counters: IcmpCounters::default(),
        }
    }

    pub fn handle_echo(
        &mut self,
        now: Time,
        bytes: &[u8],
        addresses: &Addresses,
    ) -> Option<LinkFrame<NoLink>> {
        let answer = match bytes.first().map(|first| first >> 4) {
            Some(4) => echo_v4(bytes).map(|frame| (frame, false)),
            _ => echo_v6(bytes, addresses),
        };
        let allowed =
            answer.and_then(|(frame, to_group)| match !to_group || self.group_echoes.take(now) {
                true => Ok(frame),
                false => Err(IcmpDrop::Rate),
            });
        self.count(bytes, IcmpSentKind::EchoReply, allowed)
    }

    /// The ICMP error about a packet; `None` if it may not be sent. `to_group`: the packet came to
    /// a multicast group of the link.
    pub fn error_about(
        &mut self,
        now: Time,
        bytes: &[u8],
        to_group: bool,
        error: IcmpError,
        addresses: &Addresses,
    ) -> Option<LinkFrame<NoLink>> {
        let answer = match bytes.first().map(|first| first >> 4) {
            Some(4) => error_v4(bytes, to_group, error, addresses),
            _ => error_v6(bytes, to_group, error, addresses),
        };
        // Only errors that are sent use up the rate limit.
        let allowed = answer.and_then(|frame| match self.errors.take(now, frame.ether_type) {
            true => Ok(frame),
            false => Err(IcmpDrop::Rate),
        });
        self.count(bytes, IcmpSentKind::of(error), allowed)
    }

    fn count(
        &mut self,
        about: &[u8],
        kind: IcmpSentKind,
        message: Result<LinkFrame<NoLink>, IcmpDrop>,
    ) -> Option<LinkFrame<NoLink>> {
        let family = if about.first().is_some_and(|first| first >> 4 == 4) { 4 } else { 6 };
        match message {
            Ok(_) => self.counters.count_sent(family, kind),
            Err(reason) => {
                self.drops.count(reason);
                if reason == IcmpDrop::Rate {
                    self.counters.count_suppressed(family);
                }
            }
        }
        message.ok()
    }

    pub(crate) fn share(&mut self, errors: ErrorBudget) {
        self.errors = errors;
    }

    pub const fn counters(&self) -> &IcmpCounters {
        &self.counters
    }

    pub const fn drops(&self) -> &Drops<IcmpDrop> {
        &self.drops
    }
}

fn echo_v4(bytes: &[u8]) -> Result<LinkFrame<NoLink>, IcmpDrop> {
    let packet = Ipv4Packet::parse(bytes).map_err(|_| IcmpDrop::Malformed)?;
    let header = packet.header();
    if header.is_fragment() {
        return Err(IcmpDrop::Fragment);
    }
    if !packet.checksum_ok() || !icmpv4::checksum_ok(packet.payload()) {
        return Err(IcmpDrop::Checksum);
    }
    let message = Icmpv4Message::parse(packet.payload()).map_err(|_| IcmpDrop::Malformed)?;
    let Icmpv4Message::EchoRequest(echo) = message else { return Err(IcmpDrop::NotAnEcho) };
    if !is_single_v4(header.source) {
        return Err(IcmpDrop::FromNobody);
    }
    // A broadcast request would make every node answer the source (RFC 1122 3.2.2.6).
    if !is_single_v4(header.destination) {
        return Err(IcmpDrop::ToGroup);
    }
    let (source, destination) = (header.destination, header.source);
    v4_frame(source, destination, header.dscp, &Icmpv4Message::EchoReply(echo))
}

/// The reply, and whether the request was to a group.
fn echo_v6(bytes: &[u8], addresses: &Addresses) -> Result<(LinkFrame<NoLink>, bool), IcmpDrop> {
    let packet = Ipv6Packet::parse(bytes).map_err(|_| IcmpDrop::Malformed)?;
    let header = packet.header();
    let upper =
        UpperLayer::find(header.next_header, packet.payload()).map_err(|_| IcmpDrop::Malformed)?;
    if upper.fragment.is_some() {
        return Err(IcmpDrop::Fragment);
    }
    if !icmpv6::checksum_ok(upper.payload, &header.pseudo_header()) {
        return Err(IcmpDrop::Checksum);
    }
    let message = Icmpv6Message::parse(upper.payload).map_err(|_| IcmpDrop::Malformed)?;
    let Icmpv6Message::EchoRequest(echo) = message else { return Err(IcmpDrop::NotAnEcho) };
    if !is_single_v6(header.source) {
        return Err(IcmpDrop::FromNobody);
    }
    // A request to a group is answered from an address of ours (RFC 4443 4.2).
    let to_group = header.destination.is_multicast();
    let source = match to_group {
        true => own_v6(addresses, header.source).ok_or(IcmpDrop::NoSource)?,
        false => header.destination,
    };
    v6_frame(source, header.source, &Icmpv6Message::EchoReply(echo)).map(|frame| (frame, to_group))
}

fn error_v4(
    bytes: &[u8],
    to_group: bool,
    error: IcmpError,
    addresses: &Addresses,
) -> Result<LinkFrame<NoLink>, IcmpDrop> {
    let packet = Ipv4Packet::parse(bytes).map_err(|_| IcmpDrop::Malformed)?;
    let header = packet.header();
    if header.fragment_offset != 0 {
        return Err(IcmpDrop::Fragment);
    }
    let is_group = !is_single_v4(header.destination) || addresses.is_broadcast(header.destination);
    if to_group || is_group {
        return Err(IcmpDrop::ToGroup);
    }
    if !is_single_v4(header.source) || addresses.is_broadcast(header.source) {
        return Err(IcmpDrop::FromNobody);
    }
    if header.protocol == IpProtocol::ICMPV4 && !is_v4_query(packet.payload()) {
        return Err(IcmpDrop::AboutError);
    }
    let original = &bytes[..bytes.len().min(usize::from(header.total_length))];
    let original = &original[..original.len().min(V4_LEN_MAX - V4_HEADERS)];
    let unreachable = |code, mtu: u32| Icmpv4Message::DestinationUnreachable {
        code,
        next_hop_mtu: u16::try_from(mtu).unwrap_or(u16::MAX),
        original,
    };
    let message = match error {
        IcmpError::NoRoute => unreachable(Icmpv4Unreachable::NET, 0),
        IcmpError::AddressUnreachable | IcmpError::RejectRoute => {
            unreachable(Icmpv4Unreachable::HOST, 0)
        }
        IcmpError::NoPort => unreachable(Icmpv4Unreachable::PORT, 0),
        IcmpError::Prohibited => unreachable(Icmpv4Unreachable::COMMUNICATION_PROHIBITED, 0),
        IcmpError::TooBig(mtu) => unreachable(Icmpv4Unreachable::FRAGMENTATION_NEEDED, mtu),
        IcmpError::TimeExceeded => {
            Icmpv4Message::TimeExceeded { code: Icmpv4TimeExceeded::IN_TRANSIT, original }
        }
        IcmpError::ParameterProblem(pointer) => {
            Icmpv4Message::ParameterProblem { code: 0, pointer, original }
        }
    };
    let is_ours = addresses.is_of_node(header.destination.into());
    let own = is_ours.then_some(IpAddr::V4(header.destination));
    match own.or_else(|| addresses.source_for(header.source.into())) {
        Some(IpAddr::V4(source)) => v4_frame(source, header.source, CONTROL_DSCP, &message),
        _ => Err(IcmpDrop::NoSource),
    }
}

fn error_v6(
    bytes: &[u8],
    to_group: bool,
    error: IcmpError,
    addresses: &Addresses,
) -> Result<LinkFrame<NoLink>, IcmpDrop> {
    let packet = Ipv6Packet::parse(bytes).map_err(|_| IcmpDrop::Malformed)?;
    let header = packet.header();
    // Path MTU discovery works for groups as well, so Packet Too Big is allowed (RFC 4443 2.4 e.3).
    let is_about_size = matches!(error, IcmpError::TooBig(_));
    if (to_group || header.destination.is_multicast()) && !is_about_size {
        return Err(IcmpDrop::ToGroup);
    }
    if !is_single_v6(header.source) {
        return Err(IcmpDrop::FromNobody);
    }
    // A packet with an unreadable header chain does not count as an ICMP error.
    let upper = UpperLayer::find(header.next_header, packet.payload());
    if upper.is_ok_and(|upper| upper.protocol == IpProtocol::ICMPV6 && is_v6_error(&upper)) {
        return Err(IcmpDrop::AboutError);
    }
    let len = Ipv6Header::LEN + packet.payload().len();
    let original = &bytes[..len.min(IPV6_MTU_MIN as usize - V6_HEADERS)];
    let unreachable = |code| Icmpv6Message::DestinationUnreachable { code, original };
    let message = match error {
        IcmpError::NoRoute => unreachable(Icmpv6Unreachable::NO_ROUTE),
        IcmpError::AddressUnreachable => unreachable(Icmpv6Unreachable::ADDRESS),
        IcmpError::RejectRoute => unreachable(Icmpv6Unreachable::REJECT_ROUTE),
        IcmpError::NoPort => unreachable(Icmpv6Unreachable::PORT),
        IcmpError::Prohibited => unreachable(Icmpv6Unreachable::PROHIBITED),
        IcmpError::TooBig(mtu) => Icmpv6Message::PacketTooBig { mtu, original },
        IcmpError::TimeExceeded => {
            Icmpv6Message::TimeExceeded { code: Icmpv6TimeExceeded::HOP_LIMIT, original }
        }
        IcmpError::ParameterProblem(pointer) => Icmpv6Message::ParameterProblem {
            code: Icmpv6ParameterProblem::HEADER_FIELD,
            pointer: pointer.into(),
            original,
        },
    };
    let is_ours = addresses.is_of_node(header.destination.into());
    let own = if is_ours { Some(header.destination) } else { own_v6(addresses, header.source) };
    v6_frame(own.ok_or(IcmpDrop::NoSource)?, header.source, &message)
}

fn v4_frame(
    source: Ipv4Addr,
    destination: Ipv4Addr,
    dscp: u8,
    message: &Icmpv4Message<'_>,
) -> Result<LinkFrame<NoLink>, IcmpDrop> {
    let mut payload = vec![0; message.wire_len()];
    let header = Ipv4Header {
        dscp,
        ttl: HOP_LIMIT,
        protocol: IpProtocol::ICMPV4,
        source,
        destination,
        ..Ipv4Header::default()
    };
    let is_written =
        message.write(&mut payload).is_ok() && icmpv4::fill_checksum(&mut payload).is_ok();
    let frame = LinkFrame::ipv4(To::Route, &header, &[], &payload);
    frame.filter(|_| is_written).ok_or(IcmpDrop::Malformed)
}

fn v6_frame(
    source: Ipv6Addr,
    destination: Ipv6Addr,
    message: &Icmpv6Message<'_>,
) -> Result<LinkFrame<NoLink>, IcmpDrop> {
    let from = Sender { source, destination, hop_limit: HOP_LIMIT, router_alert: false };
    LinkFrame::icmpv6(To::Route, from, message).ok_or(IcmpDrop::Malformed)
}

fn own_v6(addresses: &Addresses, to: Ipv6Addr) -> Option<Ipv6Addr> {
    match addresses.source_for(to.into()) {
        Some(IpAddr::V6(ip)) => Some(ip),
        _ => None,
    }
}

/// Whether an address can belong to a single node (RFC 1122 3.2.2).
pub(crate) fn is_single_v4(ip: Ipv4Addr) -> bool {
    !(ip.is_unspecified() || ip.is_loopback() || ip.is_multicast() || ip.octets()[0] >= 240)
}

pub(crate) fn is_single_v6(ip: Ipv6Addr) -> bool {
    !(ip.is_unspecified() || ip.is_loopback() || ip.is_multicast())
}

/// Whether an ICMPv4 message is a query or a reply, about which errors are allowed. A message of an
/// unknown type may be an error.
fn is_v4_query(message: &[u8]) -> bool {
    const ROUTERS: std::ops::RangeInclusive<u8> = 9..=10;
    const TIME_TO_MASK: std::ops::RangeInclusive<u8> = 13..=18;
    message.first().is_some_and(|kind| {
        let is_echo =
            matches!(Icmpv4Type(*kind), Icmpv4Type::ECHO_REQUEST | Icmpv4Type::ECHO_REPLY);
        is_echo || ROUTERS.contains(kind) || TIME_TO_MASK.contains(kind)
    })
}

/// Whether an ICMPv6 message is an error or a redirect (RFC 4443 2.4 e). A message that is cut off
/// before its type counts as one. A later fragment does not, because errors are not fragmented (RFC
/// 4443 2.4 c).
fn is_v6_error(upper: &UpperLayer<'_>) -> bool {
    let is_front = upper.fragment.is_none_or(|fragment| fragment.fragment_offset == 0);
    let kind = upper.payload.first().map(|&kind| Icmpv6Type(kind));
    is_front && kind.is_none_or(|kind| kind.is_error() || kind == Icmpv6Type::REDIRECT)
}
