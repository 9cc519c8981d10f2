//! Packet filters in the syntax of pcap-filter(7), which choose the packets that a capture takes.
//!
//! ```text
//!   text --tokens--> parser --Test tree--> PacketFilter --matches(packet)--> bool
//! ```
//!
//! The supported subset: `ip`, `ip6`, `tcp`, `udp`, `icmp`, `icmp6`, `host`, `net`, `port`,
//! `portrange`, `proto`, `less`, `greater`, with `src`, `dst`, `and`, `or`, `not` and parentheses.
//! All have the meaning that libpcap gives them, even where it is unexpected. `and` and `or` have
//! the same precedence and associate from left to right. `port` matches TCP, UDP and SCTP, and no
//! later fragments. IPv6 extension headers are not skipped, except that the names of protocols skip
//! a fragment header.
//!
//! A packet begins with its IP header. It may be truncated: a test of a missing field fails.

mod parse;
#[cfg(test)]
mod tests;

pub use parse::FilterError;

use pollux_wire::ip::IpProtocol;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

/// The offsets of the protocol field of IPv4 and the next header field of IPv6.
const V4_PROTOCOL: usize = 9;
const V6_NEXT_HEADER: usize = 6;
/// The offset of the flags and the fragment offset of IPv4, and the mask of the fragment offset.
const V4_FRAGMENT: usize = 6;
const V4_OFFSET_BITS: u16 = 0x1fff;
const V6_LEN: usize = 40;
/// The next header value of a fragment header (RFC 8200 4.5).
const V6_FRAGMENT: u8 = 44;
/// SCTP (RFC 9260) has its ports at the same offsets as TCP.
const SCTP: u8 = 132;

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PacketFilter {
    /// `None` accepts every packet.
    test: Option<Test>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
enum Test {
    And(Box<Test>, Box<Test>),
    Or(Box<Test>, Box<Test>),
    Not(Box<Test>),
    Version(u8),
    /// The protocol number, in one IP version or in both.
    Protocol {
        version: Option<u8>,
        number: u8,
    },
    Net {
        side: Side,
        network: IpAddr,
        len: u8,
    },
    /// The port range, of one protocol or of all protocols with ports.
    Port {
        side: Side,
        protocol: Option<u8>,
        first: u16,
        last: u16,
    },
    Less(u32),
    Greater(u32),
}

/// The end that an address or a port belongs to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Side {
    Source,
    Destination,
    Either,
    Both,
}

impl Side {
    fn holds(self, source: bool, destination: bool) -> bool {
        match self {
            Self::Source => source,
            Self::Destination => destination,
            Self::Either => source || destination,
            Self::Both => source && destination,
        }
    }
}

impl PacketFilter {
    /// An empty text accepts every packet.
    pub fn parse(text: &str) -> Result<Self, FilterError> {
        Ok(Self { test: parse::parse(text)? })
    }

    /// Whether the filter accepts a packet of `bytes` bytes that begins with `packet`.
    pub fn matches(&self, packet: &[u8], bytes: usize) -> bool {
        self.test.as_ref().is_none_or(|test| test.holds(packet, bytes))
    }
}

impl Test {
    fn holds(&self, packet: &[u8], bytes: usize) -> bool {
        match self {
            Self::And(one, other) => one.holds(packet, bytes) && other.holds(packet, bytes),
            Self::Or(one, other) => one.holds(packet, bytes) || other.holds(packet, bytes),
            Self::Not(test) => !test.holds(packet, bytes),
            Self::Version(number) => version(packet) == Some(*number),
            Self::Protocol { version: wanted, number } => {
                wanted.is_none_or(|wanted| version(packet) == Some(wanted))
                    && has_protocol(packet, *number)
            }
            Self::Net { side, network, len } => match addresses(packet) {
                Some((source, destination)) => side.holds(
                    has_prefix(source, *network, *len),
                    has_prefix(destination, *network, *len),
                ),
                None => false,
            },
            Self::Port { side, protocol, first, last } => match ports(packet) {
                Some((number, source, destination)) => {
                    let is_in = |port| (*first..=*last).contains(&port);
                    protocol.is_none_or(|wanted| wanted == number)
                        && side.holds(is_in(source), is_in(destination))
                }
                None => false,
            },
            Self::Less(most) => bytes <= *most as usize,
            Self::Greater(least) => bytes >= *least as usize,
        }
    }
}

fn version(packet: &[u8]) -> Option<u8> {
    packet.first().map(|first| first >> 4)
}

fn has_protocol(packet: &[u8], number: u8) -> bool {
    let at = |offset: usize| packet.get(offset).copied();
    match version(packet) {
        Some(4) => at(V4_PROTOCOL) == Some(number),
        Some(6) => match at(V6_NEXT_HEADER) {
            Some(V6_FRAGMENT) if number != V6_FRAGMENT => at(V6_LEN) == Some(number),
            next => next == Some(number),
        },
        _ => false,
    }
}

fn addresses(packet: &[u8]) -> Option<(IpAddr, IpAddr)> {
    let v4 = |at: usize| {
        let bytes = packet.get(at..at + 4)?.first_chunk::<4>()?;
        Some(IpAddr::from(Ipv4Addr::from(*bytes)))
    };
    let v6 = |at: usize| {
        let bytes = packet.get(at..at + 16)?.first_chunk::<16>()?;
        Some(IpAddr::from(Ipv6Addr::from(*bytes)))
    };
    match version(packet)? {
        4 => v4(12).zip(v4(16)),
        6 => v6(8).zip(v6(24)),
        _ => None,
    }
}

fn has_prefix(ip: IpAddr, network: IpAddr, len: u8) -> bool {
    match (ip, network) {
        (IpAddr::V4(ip), IpAddr::V4(network)) => {
            let hosts = u32::MAX.checked_shr(len.into()).unwrap_or(0);
            (ip.to_bits() ^ network.to_bits()) & !hosts == 0
        }
        (IpAddr::V6(ip), IpAddr::V6(network)) => {
            let hosts = u128::MAX.checked_shr(len.into()).unwrap_or(0);
            (ip.to_bits() ^ network.to_bits()) & !hosts == 0
        }
        _ => false,
    }
}

/// The protocol and the ports of TCP, UDP or SCTP.
fn ports(packet: &[u8]) -> Option<(u8, u16, u16)> {
    let word = |at: usize| {
        let bytes = packet.get(at..at + 2)?;
        Some(u16::from_be_bytes([bytes[0], bytes[1]]))
    };
    let (number, at) = match version(packet)? {
        4 if word(V4_FRAGMENT)? & V4_OFFSET_BITS == 0 => {
            (*packet.get(V4_PROTOCOL)?, usize::from(packet[0] & 0xf) * 4)
        }
        6 => (*packet.get(V6_NEXT_HEADER)?, V6_LEN),
        _ => return None,
    };
    let has_ports = [IpProtocol::TCP.0, IpProtocol::UDP.0, SCTP].contains(&number);
    has_ports.then_some((number, word(at)?, word(at + 2)?))
}
