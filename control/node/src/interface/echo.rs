//! ICMP echo requests of this node, and their outcomes (RFC 792, RFC 4443 4).
//!
//! Each request has its own identifier, so a late reply to an earlier request is ignored. An ICMP
//! error belongs to the request that it quotes.

use super::port_driver::sending::NotSent;
use crate::admin::CONNECTIONS_MAX;
use pollux_control::ipoib::Delivery;
use pollux_verbs::time::Time;
use pollux_wire::ethernet::EtherType;
use pollux_wire::ip::IpProtocol;
use pollux_wire::ip::icmp::IcmpEcho;
use pollux_wire::ip::icmpv4::{self, Icmpv4Message, Icmpv4Unreachable};
use pollux_wire::ip::icmpv6::{self, Icmpv6Message, Icmpv6Unreachable};
use pollux_wire::ip::ipv4::{Ipv4Header, Ipv4Packet};
use pollux_wire::ip::ipv6::{Ipv6Header, Ipv6Packet};
use std::collections::BTreeMap;
use std::net::IpAddr;
use std::time::Duration;

/// Maximum number of pending requests: one for each connection of the admin socket.
const REQUESTS_MAX: usize = CONNECTIONS_MAX;
const ICMP_LEN: usize = 8;
const HOP_LIMIT: u8 = 64;

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct EchoId(u16);

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum EchoOutcome {
    Answered {
        /// Bytes of the ICMP message.
        bytes: usize,
        hop_limit: u8,
        after: Duration,
    },
    /// No reply arrived in time.
    Silence,
    NotSent(NotSent),
    /// A router or this host answered with destination unreachable.
    Unreachable,
    Prohibited,
    TimeExceeded,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum PingError {
    Down,
    NoSource,
    TooMany,
    /// The data does not fit an IP packet.
    TooLong,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct EchoRequest {
    pub to: IpAddr,
    /// Bytes of data.
    pub bytes: usize,
    /// The TTL, or hop limit.
    pub ttl: u8,
    pub timeout: Duration,
}

impl EchoRequest {
    /// An echo request with the default TTL.
    pub const fn new(to: IpAddr, bytes: usize, timeout: Duration) -> Self {
        Self { to, bytes, ttl: HOP_LIMIT, timeout }
    }
}

#[derive(Debug)]
struct Request {
    to: IpAddr,
    bytes: usize,
    sent: Time,
    until: Time,
    outcome: Option<EchoOutcome>,
    /// The sender of the ICMP error.
    reporter: Option<IpAddr>,
}

#[derive(Debug, Default)]
pub struct Echoes {
    next: u16,
    requests: BTreeMap<EchoId, Request>,
}

impl Echoes {
    pub fn request(
        &mut self,
        now: Time,
        from: IpAddr,
        EchoRequest { to, bytes, ttl, timeout }: EchoRequest,
    ) -> Result<(EchoId, Vec<u8>), PingError> {
        // Requests with an outcome that was not taken are dropped some time after their timeout.
        self.requests.retain(|_, request| now < request.until + timeout);
        let id = EchoId(self.next);
        if self.requests.len() == REQUESTS_MAX || self.requests.contains_key(&id) {
            return Err(PingError::TooMany);
        }
        let data: Vec<u8> = (0..bytes).map(|at| at as u8).collect();
        let packet =
            request(from, to, ttl, IcmpEcho { identifier: id.0, sequence: 1, data: &data });
        let packet = packet.ok_or(PingError::TooLong)?;
        self.next = self.next.wrapping_add(1);
        let until = now + timeout;
        self.requests
            .insert(id, Request { to, bytes, sent: now, until, outcome: None, reporter: None });
        Ok((id, packet))
    }

    /// Handles a packet for local sockets. Returns whether it belongs to a request.
    pub fn handle(&mut self, now: Time, delivery: &Delivery) -> bool {
        self.read(now, delivery).is_some()
    }

    pub fn poll_timeout(&self) -> Option<Time> {
        let waiting = self.requests.values().filter(|request| request.outcome.is_none());
        waiting.map(|request| request.until).min()
    }

    /// Ends requests that have timed out.
    pub fn handle_timeout(&mut self, now: Time) {
        let waiting = self.requests.values_mut().filter(|request| request.outcome.is_none());
        for late in waiting.filter(|request| request.until <= now) {
            late.outcome = Some(EchoOutcome::Silence);
        }
    }

    /// Takes the outcome of a request, if it has one yet, and the sender of the ICMP error that
    /// caused it.
    pub fn take(&mut self, id: EchoId) -> Option<(EchoOutcome, Option<IpAddr>)> {
        let request = self.requests.get(&id)?;
        let (outcome, reporter) = (request.outcome?, request.reporter);
        self.requests.remove(&id);
        Some((outcome, reporter))
    }

    fn read(&mut self, now: Time, delivery: &Delivery) -> Option<()> {
        match delivery.ether_type {
            EtherType::IPV4 => {
                let packet = Ipv4Packet::parse(&delivery.packet).ok()?;
                let header = packet.header();
                if header.protocol != IpProtocol::ICMPV4 || !icmpv4::checksum_ok(packet.payload()) {
                    return None;
                }
                let (original, outcome) = match Icmpv4Message::parse(packet.payload()).ok()? {
                    Icmpv4Message::EchoReply(echo) => {
                        return self.handle_reply(now, header.source.into(), header.ttl, &echo);
                    }
                    Icmpv4Message::DestinationUnreachable { code, next_hop_mtu, original } => {
                        let outcome = match code {
                            Icmpv4Unreachable::FRAGMENTATION_NEEDED => {
                                EchoOutcome::NotSent(NotSent::TooBig(next_hop_mtu.into()))
                            }
                            Icmpv4Unreachable::COMMUNICATION_PROHIBITED => EchoOutcome::Prohibited,
                            _ => EchoOutcome::Unreachable,
                        };
                        (original, outcome)
                    }
                    Icmpv4Message::TimeExceeded { original, .. } => {
                        (original, EchoOutcome::TimeExceeded)
                    }
                    _ => return None,
                };
                self.handle_error(quoted(original)?, header.source.into(), outcome)
            }
            EtherType::IPV6 => {
                let packet = Ipv6Packet::parse(&delivery.packet).ok()?;
                let header = packet.header();
                let is_intact = icmpv6::checksum_ok(packet.payload(), &header.pseudo_header());
                if header.next_header != IpProtocol::ICMPV6 || !is_intact {
                    return None;
                }
                let (original, outcome) = match Icmpv6Message::parse(packet.payload()).ok()? {
                    Icmpv6Message::EchoReply(echo) => {
                        return self.handle_reply(
                            now,
                            header.source.into(),
                            header.hop_limit,
                            &echo,
                        );
                    }
                    Icmpv6Message::DestinationUnreachable { code, original } => match code {
                        Icmpv6Unreachable::PROHIBITED => (original, EchoOutcome::Prohibited),
                        _ => (original, EchoOutcome::Unreachable),
                    },
                    Icmpv6Message::PacketTooBig { mtu, original } => {
                        (original, EchoOutcome::NotSent(NotSent::TooBig(mtu)))
                    }
                    Icmpv6Message::TimeExceeded { original, .. } => {
                        (original, EchoOutcome::TimeExceeded)
                    }
                    _ => return None,
                };
                self.handle_error(quoted(original)?, header.source.into(), outcome)
            }
            _ => None,
        }
    }

    fn handle_reply(
        &mut self,
        now: Time,
        from: IpAddr,
        hop_limit: u8,
        echo: &IcmpEcho<'_>,
    ) -> Option<()> {
        let id = EchoId(echo.identifier);
        let request = self.requests.get_mut(&id).filter(|request| request.to == from)?;
        let is_same = echo.data.len() == request.bytes
            && echo.data.iter().enumerate().all(|(at, &byte)| byte == at as u8);
        let after = now.since(request.sent);
        let bytes = echo.data.len() + ICMP_LEN;
        let outcome = EchoOutcome::Answered { bytes, hop_limit, after };
        is_same.then(|| _ = request.outcome.get_or_insert(outcome))
    }

    fn handle_error(&mut self, id: EchoId, from: IpAddr, outcome: EchoOutcome) -> Option<()> {
        let request = self.requests.get_mut(&id)?;
        if request.outcome.is_none() {
            (request.outcome, request.reporter) = (Some(outcome), Some(from));
        }
        Some(())
    }
}

/// The request that an ICMP error quotes. The quoted packet may be truncated, so its lengths are
/// not checked.
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

fn request(from: IpAddr, to: IpAddr, ttl: u8, echo: IcmpEcho<'_>) -> Option<Vec<u8>> {
    match (from, to) {
        (IpAddr::V4(source), IpAddr::V4(destination)) => {
            let message = Icmpv4Message::EchoRequest(echo);
            let header = Ipv4Header {
                // A long request tests the path MTU.
                dont_fragment: true,
                ttl,
                protocol: IpProtocol::ICMPV4,
                source,
                destination,
                ..Ipv4Header::default()
            };
            let mut packet = vec![0; Ipv4Header::LEN + message.wire_len()];
            let payload = header.write_packet(&[], message.wire_len(), &mut packet).ok()?;
            message.write(payload).ok()?;
            icmpv4::fill_checksum(payload).ok()?;
            Some(packet)
        }
        (IpAddr::V6(source), IpAddr::V6(destination)) => {
            let message = Icmpv6Message::EchoRequest(echo);
            let (hop_limit, next_header) = (ttl, IpProtocol::ICMPV6);
            let header =
                Ipv6Header { hop_limit, next_header, source, destination, ..Ipv6Header::default() };
            let mut packet = vec![0; Ipv6Header::LEN + message.wire_len()];
            let payload = header.write_packet(message.wire_len(), &mut packet).ok()?;
            message.write(payload).ok()?;
            icmpv6::fill_checksum(payload, &header.pseudo_header()).ok()?;
            Some(packet)
        }
        _ => None,
    }
}
