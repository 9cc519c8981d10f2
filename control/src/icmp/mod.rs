//! ICMP of both families: the echo, and complaints about packets that cannot be delivered.
//!
//! When never to complain is the same thought in RFC 1122 3.2.2 and RFC 4443 2.4: not about an
//! error, not to a group, not about what came to a group, and not to nobody. So no two nodes can
//! complain to each other for ever, and no packet makes many complain. Beyond that there is a rate.
//!
//! Why replies to an echo request for one node have no rate: RFC 1122 3.2.2.6 and RFC 4443 4.2
//! require a reply to each, and RFC 4443 2.4 (f) limits errors, not replies. A request that one
//! node gets makes one packet of the same length, so it multiplies nothing, whoever's name it
//! bears; reading the request has already cost as much as sending the reply, so the receive queue
//! bounds both. A neighbor in shared memory asks 300,000 times a second, and is healthy. A request
//! for a group is answered by all its members, so one packet makes many: these replies have a rate,
//! and so have errors. Linux divides them in the same way (`icmp_ratemask`).

#[cfg(test)]
mod tests;

use crate::address::Addresses;
use crate::bounded::Rate;
use crate::drops::{Drops, reasons};
use crate::frame::{Frame, Sender, To};
use pollux_verbs::time::Time;
use pollux_wire::ip::IpProtocol;
use pollux_wire::ip::icmpv4::{
    self, Icmpv4Message, Icmpv4TimeExceeded, Icmpv4Type, Icmpv4Unreachable,
};
use pollux_wire::ip::icmpv6::{
    self, Icmpv6Message, Icmpv6TimeExceeded, Icmpv6Type, Icmpv6Unreachable,
};
use pollux_wire::ip::ipv4::{Ipv4Header, Ipv4Packet};
use pollux_wire::ip::ipv6::{IPV6_MTU_MIN, Ipv6Header, Ipv6Packet};
use pollux_wire::ip::ipv6_ext::UpperLayer;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

/// How far our packets may go.
const HOP_LIMIT: u8 = 64;
/// How long a complaint of IPv4 may be (RFC 1812 4.3.2.3).
const V4_LEN_MAX: usize = 576;
/// Bytes before the packet that is complained about.
const V4_HEADERS: usize = Ipv4Header::LEN + 8;
const V6_HEADERS: usize = Ipv6Header::LEN + 8;

/// What is wrong with a packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum IcmpError {
    /// Nobody knows the way.
    NoRoute,
    /// The next node does not answer.
    NoAnswer,
    /// Nobody listens at the port.
    NoPort,
    /// It does not fit, and so much would.
    TooBig(u32),
    /// It was too long on its way.
    TimeExceeded,
    /// It is not let through.
    Prohibited,
}

reasons! {
    /// Why a packet was not answered.
    pub enum IcmpDrop {
        /// It is no whole packet of ICMP.
        Malformed = "malformed",
        /// Its checksum is wrong.
        Checksum = "checksum",
        /// It came in parts, or is a part.
        Fragment = "fragment",
        /// It is no echo request.
        NotAnEcho = "not_an_echo",
        /// It went to a group.
        ToGroup = "to_group",
        /// It came from what is no single node.
        FromNobody = "from_nobody",
        /// It is an error itself.
        AboutError = "about_error",
        /// There is no address of ours to answer from.
        NoSource = "no_source",
        /// There were too many of late.
        Rate = "rate",
    }
}

/// How much is said.
#[derive(Clone, Copy, Debug)]
pub struct IcmpConfig {
    /// Complaints in a second, at most.
    pub errors_per_second_max: u32,
    /// Complaints at once after a pause, at most.
    pub errors_burst_max: u32,
    /// Replies in a second to echo requests for a group, at most.
    pub group_echoes_per_second_max: u32,
    /// The same at once after a pause, at most.
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

/// ICMP of an interface.
pub struct Icmp {
    errors: Rate,
    group_echoes: Rate,
    drops: Drops<IcmpDrop>,
}

impl Icmp {
    /// One that has not said anything yet.
    pub fn new(config: &IcmpConfig) -> Self {
        Self {
            errors: Rate::new(config.errors_per_second_max, config.errors_burst_max),
            group_echoes: Rate::new(
                config.group_echoes_per_second_max,
                config.group_echoes_burst_max,
            ),
            drops: Drops::default(),
        }
    }

    /// A packet came that may be an echo request to us.
    pub fn handle_echo(&mut self, now: Time, bytes: &[u8], addresses: &Addresses) -> Option<Frame> {
        let answer = match bytes.first().map(|first| first >> 4) {
            Some(4) => echo_v4(bytes).map(|frame| (frame, false)),
            _ => echo_v6(bytes, addresses),
        };
        let allowed =
            answer.and_then(|(frame, to_group)| match !to_group || self.group_echoes.take(now) {
                true => Ok(frame),
                false => Err(IcmpDrop::Rate),
            });
        allowed.map_err(|reason| self.drops.count(reason)).ok()
    }

    /// A packet cannot be delivered: what to tell its sender, if anything. `to_group` says that it
    /// came to a group of the link.
    pub fn error_about(
        &mut self,
        now: Time,
        bytes: &[u8],
        to_group: bool,
        error: IcmpError,
        addresses: &Addresses,
    ) -> Option<Frame> {
        let answer = match bytes.first().map(|first| first >> 4) {
            Some(4) => error_v4(bytes, to_group, error, addresses),
            _ => error_v6(bytes, to_group, error, addresses),
        };
        // The rate is for what is sent, so that what never would be cannot use it up.
        let allowed = answer.and_then(|frame| match self.errors.take(now) {
            true => Ok(frame),
            false => Err(IcmpDrop::Rate),
        });
        allowed.map_err(|reason| self.drops.count(reason)).ok()
    }

    /// What was not answered, and why.
    pub const fn drops(&self) -> &Drops<IcmpDrop> {
        &self.drops
    }
}

fn echo_v4(bytes: &[u8]) -> Result<Frame, IcmpDrop> {
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
    // An echo to everyone would make everyone answer one node (RFC 1122 3.2.2.6).
    if !is_single_v4(header.destination) {
        return Err(IcmpDrop::ToGroup);
    }
    let (source, destination) = (header.destination, header.source);
    v4_frame(source, destination, header.dscp, &Icmpv4Message::EchoReply(echo))
}

/// The reply, and whether the request was for a group.
fn echo_v6(bytes: &[u8], addresses: &Addresses) -> Result<(Frame, bool), IcmpDrop> {
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
    // RFC 4443 4.2: a request to a group is answered from an address of ours.
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
) -> Result<Frame, IcmpDrop> {
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
        IcmpError::NoAnswer => unreachable(Icmpv4Unreachable::HOST, 0),
        IcmpError::NoPort => unreachable(Icmpv4Unreachable::PORT, 0),
        IcmpError::Prohibited => unreachable(Icmpv4Unreachable::COMMUNICATION_PROHIBITED, 0),
        IcmpError::TooBig(mtu) => unreachable(Icmpv4Unreachable::FRAGMENTATION_NEEDED, mtu),
        IcmpError::TimeExceeded => {
            Icmpv4Message::TimeExceeded { code: Icmpv4TimeExceeded::IN_TRANSIT, original }
        }
    };
    let is_ours = addresses.is_ours(header.destination.into());
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
) -> Result<Frame, IcmpDrop> {
    let packet = Ipv6Packet::parse(bytes).map_err(|_| IcmpDrop::Malformed)?;
    let header = packet.header();
    // Path MTU discovery works for groups as well (RFC 4443 2.4 e.3).
    let is_about_size = matches!(error, IcmpError::TooBig(_));
    if (to_group || header.destination.is_multicast()) && !is_about_size {
        return Err(IcmpDrop::ToGroup);
    }
    if !is_single_v6(header.source) {
        return Err(IcmpDrop::FromNobody);
    }
    let upper =
        UpperLayer::find(header.next_header, packet.payload()).map_err(|_| IcmpDrop::Malformed)?;
    if upper.protocol == IpProtocol::ICMPV6 && !is_v6_query(&upper) {
        return Err(IcmpDrop::AboutError);
    }
    let len = Ipv6Header::LEN + packet.payload().len();
    let original = &bytes[..len.min(IPV6_MTU_MIN as usize - V6_HEADERS)];
    let unreachable = |code| Icmpv6Message::DestinationUnreachable { code, original };
    let message = match error {
        IcmpError::NoRoute => unreachable(Icmpv6Unreachable::NO_ROUTE),
        IcmpError::NoAnswer => unreachable(Icmpv6Unreachable::ADDRESS),
        IcmpError::NoPort => unreachable(Icmpv6Unreachable::PORT),
        IcmpError::Prohibited => unreachable(Icmpv6Unreachable::PROHIBITED),
        IcmpError::TooBig(mtu) => Icmpv6Message::PacketTooBig { mtu, original },
        IcmpError::TimeExceeded => {
            Icmpv6Message::TimeExceeded { code: Icmpv6TimeExceeded::HOP_LIMIT, original }
        }
    };
    let is_ours = addresses.is_ours(header.destination.into());
    let own = if is_ours { Some(header.destination) } else { own_v6(addresses, header.source) };
    v6_frame(own.ok_or(IcmpDrop::NoSource)?, header.source, &message)
}

/// The precedence of errors: CS6 (RFC 1812 4.3.2.5).
const CONTROL_DSCP: u8 = 48;

fn v4_frame(
    source: Ipv4Addr,
    destination: Ipv4Addr,
    dscp: u8,
    message: &Icmpv4Message<'_>,
) -> Result<Frame, IcmpDrop> {
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
    let frame = Frame::ipv4(To::Route, &header, &[], &payload);
    frame.filter(|_| is_written).ok_or(IcmpDrop::Malformed)
}

fn v6_frame(
    source: Ipv6Addr,
    destination: Ipv6Addr,
    message: &Icmpv6Message<'_>,
) -> Result<Frame, IcmpDrop> {
    let from = Sender { source, destination, hop_limit: HOP_LIMIT, router_alert: false };
    Frame::icmpv6(To::Route, from, message).ok_or(IcmpDrop::Malformed)
}

fn own_v6(addresses: &Addresses, to: Ipv6Addr) -> Option<Ipv6Addr> {
    match addresses.source_for(to.into()) {
        Some(IpAddr::V6(ip)) => Some(ip),
        _ => None,
    }
}

/// Whether an address is that of one node (RFC 1122 3.2.2).
fn is_single_v4(ip: Ipv4Addr) -> bool {
    !(ip.is_unspecified() || ip.is_loopback() || ip.is_multicast() || ip.octets()[0] >= 240)
}

fn is_single_v6(ip: Ipv6Addr) -> bool {
    !(ip.is_unspecified() || ip.is_loopback() || ip.is_multicast())
}

/// Whether a message of ICMP asks or answers, and so may be complained about.
fn is_v4_query(message: &[u8]) -> bool {
    let kind = message.first().map(|&kind| Icmpv4Type(kind));
    matches!(kind, Some(Icmpv4Type::ECHO_REQUEST | Icmpv4Type::ECHO_REPLY))
}

/// The same for ICMPv6. The middle of a message may be anything.
fn is_v6_query(upper: &UpperLayer<'_>) -> bool {
    let is_front = upper.fragment.is_none_or(|fragment| fragment.fragment_offset == 0);
    let kind = upper.payload.first().map(|&kind| Icmpv6Type(kind));
    is_front && kind.is_some_and(|kind| !kind.is_error() && kind != Icmpv6Type::REDIRECT)
}
