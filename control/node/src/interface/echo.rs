//! Echo requests of ours, and what became of each (RFC 792, RFC 4443 4).
//!
//! A request has an identifier of its own, so an answer to another one is nobody's. Errors count
//! for the request whose front they quote.

use super::PingError;
use super::sending::NotSent;
use crate::admin::CONNECTIONS_MAX;
use pollux_control::interface::Delivery;
use pollux_verbs::time::Time;
use pollux_wire::ip::IpProtocol;
use pollux_wire::ip::icmp::Echo;
use pollux_wire::ip::icmpv4::{self, Icmpv4Message, Icmpv4Unreachable};
use pollux_wire::ip::icmpv6::{self, Icmpv6Message};
use pollux_wire::ip::ipoib::EtherType;
use pollux_wire::ip::ipv4::{Ipv4Header, Ipv4Packet};
use pollux_wire::ip::ipv6::{Ipv6Header, Ipv6Packet};
use std::collections::BTreeMap;
use std::net::IpAddr;
use std::time::Duration;

/// Requests under way at a time: one for each that the node's socket takes.
const REQUESTS_MAX: usize = CONNECTIONS_MAX;
/// Bytes of a header of ICMP.
const ICMP_LEN: usize = 8;
const HOP_LIMIT: u8 = 64;

/// Names a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct EchoId(u16);

/// What became of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// It was answered.
    Answered {
        /// Bytes of the answer, with the header of ICMP.
        bytes: usize,
        /// What was left of the answer's.
        hop_limit: u8,
        /// How long it took.
        after: Duration,
    },
    /// Nobody answered in time.
    Silence,
    /// It could not be sent.
    NotSent(NotSent),
    /// Somebody on the way, or we ourselves, found no way.
    Unreachable,
}

#[derive(Debug)]
struct Request {
    to: IpAddr,
    bytes: usize,
    sent: Time,
    until: Time,
    outcome: Option<Outcome>,
}

/// Requests under way.
#[derive(Debug, Default)]
pub struct Echoes {
    next: u16,
    requests: BTreeMap<EchoId, Request>,
}

impl Echoes {
    /// A request with so many bytes of data, and its name.
    pub fn ask(
        &mut self,
        now: Time,
        (from, to): (IpAddr, IpAddr),
        bytes: usize,
        patience: Duration,
    ) -> Result<(EchoId, Vec<u8>), PingError> {
        // What nobody asked about any more makes room.
        self.requests.retain(|_, request| now < request.until + patience);
        let id = EchoId(self.next);
        if self.requests.len() == REQUESTS_MAX || self.requests.contains_key(&id) {
            return Err(PingError::TooMany);
        }
        let data: Vec<u8> = (0..bytes).map(|at| at as u8).collect();
        let packet = request(from, to, Echo { identifier: id.0, sequence: 1, data: &data });
        let packet = packet.ok_or(PingError::TooLong)?;
        self.next = self.next.wrapping_add(1);
        let until = now + patience;
        self.requests.insert(id, Request { to, bytes, sent: now, until, outcome: None });
        Ok((id, packet))
    }

    /// It could not be sent.
    pub fn not_sent(&mut self, id: EchoId, why: NotSent) {
        self.set(id, Outcome::NotSent(why));
    }

    /// A packet came for local sockets; says whether it was about a request of ours.
    pub fn handle(&mut self, now: Time, delivery: &Delivery) -> bool {
        self.read(now, delivery).is_some()
    }

    /// When somebody will have been silent for too long.
    pub fn poll_timeout(&self) -> Option<Time> {
        let waiting = self.requests.values().filter(|request| request.outcome.is_none());
        waiting.map(|request| request.until).min()
    }

    /// Time goes by.
    pub fn handle_timeout(&mut self, now: Time) {
        let waiting = self.requests.values_mut().filter(|request| request.outcome.is_none());
        for late in waiting.filter(|request| request.until <= now) {
            late.outcome = Some(Outcome::Silence);
        }
    }

    /// What became of a request, once; nothing as long as it is under way.
    pub fn take(&mut self, id: EchoId) -> Option<Outcome> {
        let outcome = self.requests.get(&id)?.outcome?;
        self.requests.remove(&id);
        Some(outcome)
    }

    fn set(&mut self, id: EchoId, outcome: Outcome) {
        if let Some(request) = self.requests.get_mut(&id) {
            request.outcome.get_or_insert(outcome);
        }
    }

    fn read(&mut self, now: Time, delivery: &Delivery) -> Option<()> {
        match delivery.ether_type {
            EtherType::IPV4 => {
                let packet = Ipv4Packet::parse(&delivery.packet).ok()?;
                let header = packet.header();
                if header.protocol != IpProtocol::ICMPV4 || !icmpv4::checksum_ok(packet.payload()) {
                    return None;
                }
                match Icmpv4Message::parse(packet.payload()).ok()? {
                    Icmpv4Message::EchoReply(echo) => {
                        self.answered(now, header.source.into(), header.ttl, &echo)
                    }
                    Icmpv4Message::DestinationUnreachable { code, next_hop_mtu, original } => {
                        let is_size = code == Icmpv4Unreachable::FRAGMENTATION_NEEDED;
                        let mtu = is_size.then_some(next_hop_mtu.into());
                        self.complained(quoted(original)?, mtu)
                    }
                    _ => None,
                }
            }
            EtherType::IPV6 => {
                let packet = Ipv6Packet::parse(&delivery.packet).ok()?;
                let header = packet.header();
                let is_whole = icmpv6::checksum_ok(packet.payload(), &header.pseudo_header());
                if header.next_header != IpProtocol::ICMPV6 || !is_whole {
                    return None;
                }
                match Icmpv6Message::parse(packet.payload()).ok()? {
                    Icmpv6Message::EchoReply(echo) => {
                        self.answered(now, header.source.into(), header.hop_limit, &echo)
                    }
                    Icmpv6Message::DestinationUnreachable { original, .. } => {
                        self.complained(quoted(original)?, None)
                    }
                    Icmpv6Message::PacketTooBig { mtu, original } => {
                        self.complained(quoted(original)?, Some(mtu))
                    }
                    _ => None,
                }
            }
            _ => None,
        }
    }

    fn answered(&mut self, now: Time, from: IpAddr, hop_limit: u8, echo: &Echo<'_>) -> Option<()> {
        let id = EchoId(echo.identifier);
        let request = self.requests.get(&id).filter(|request| request.to == from)?;
        let is_same = echo.data.len() == request.bytes
            && echo.data.iter().enumerate().all(|(at, &byte)| byte == at as u8);
        let after = now.since_start().saturating_sub(request.sent.since_start());
        let bytes = echo.data.len() + ICMP_LEN;
        is_same.then(|| self.set(id, Outcome::Answered { bytes, hop_limit, after }))
    }

    fn complained(&mut self, id: EchoId, mtu: Option<u32>) -> Option<()> {
        let outcome = match mtu {
            Some(mtu) => Outcome::NotSent(NotSent::TooBig(mtu)),
            None => Outcome::Unreachable,
        };
        self.requests.contains_key(&id).then(|| self.set(id, outcome))
    }
}

/// The request that the front of a packet is of. Its data may be cut off, so no length is checked.
fn quoted(original: &[u8]) -> Option<EchoId> {
    let (is_request, message) = match original.first()? >> 4 {
        4 => {
            let header = Ipv4Header::parse(original.first_chunk()?);
            let message = original.get(header.header_len()..)?;
            (header.protocol == IpProtocol::ICMPV4 && message.first() == Some(&8), message)
        }
        6 => {
            let header = Ipv6Header::parse(original.first_chunk()?);
            let message = original.get(Ipv6Header::LEN..)?;
            (header.next_header == IpProtocol::ICMPV6 && message.first() == Some(&128), message)
        }
        _ => return None,
    };
    let &[_, _, _, _, high, low, ..] = message else { return None };
    is_request.then_some(EchoId(u16::from_be_bytes([high, low])))
}

fn request(from: IpAddr, to: IpAddr, echo: Echo<'_>) -> Option<Vec<u8>> {
    match (from, to) {
        (IpAddr::V4(source), IpAddr::V4(destination)) => {
            let message = Icmpv4Message::EchoRequest(echo);
            let header = Ipv4Header {
                // Whoever asks with so many bytes wants to know whether they get there.
                dont_fragment: true,
                ttl: HOP_LIMIT,
                protocol: IpProtocol::ICMPV4,
                source,
                destination,
                ..Ipv4Header::default()
            };
            let mut packet = vec![0; Ipv4Header::LEN + message.wire_len()];
            let room = header.write_packet(&[], message.wire_len(), &mut packet).ok()?;
            message.write(room).ok()?;
            icmpv4::fill_checksum(room).ok()?;
            Some(packet)
        }
        (IpAddr::V6(source), IpAddr::V6(destination)) => {
            let message = Icmpv6Message::EchoRequest(echo);
            let (hop_limit, next_header) = (HOP_LIMIT, IpProtocol::ICMPV6);
            let header =
                Ipv6Header { hop_limit, next_header, source, destination, ..Ipv6Header::default() };
            let mut packet = vec![0; Ipv6Header::LEN + message.wire_len()];
            let room = header.write_packet(message.wire_len(), &mut packet).ok()?;
            message.write(room).ok()?;
            icmpv6::fill_checksum(room, &header.pseudo_header()).ok()?;
            Some(packet)
        }
        _ => None,
    }
}
