//! Which worker of an interface has a flow, where several share it.
//!
//! | packet | its worker is by |
//! |---|---|
//! | TCP | both addresses and both ports, whichever is the sender's |
//! | UDP | our own port, so that a socket is at one worker whoever writes to it |
//! | an error of ICMP | the packet that it quotes |
//! | a fragment, and all else | nothing: the lead has it |
//!
//! Why there is no seed: two nodes that have as many workers deal a connection of TCP to the same
//! worker each without a word, and so its segments come to whom they are for by the connections
//! that these two workers have with each other. Whoever chooses ports can give all his flows to one
//! worker, which costs the others nothing and him what a busy worker costs; tables of flows have
//! secrets of their own.

use pollux_wire::ip::IpProtocol;
use pollux_wire::ip::icmpv6::Icmpv6Type;
use pollux_wire::ip::ipv4::Ipv4Header;
use pollux_wire::ip::ipv6::Ipv6Header;
use pollux_wire::ip::ipv6_ext::UpperLayer;
use std::net::{IpAddr, SocketAddr};

/// The worker that has what is no flow's.
pub const LEAD: u8 = 0;

/// How flows are dealt to workers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Deal {
    workers: u8,
}

/// Numbers that look like any (as in the tables of neighbors).
const FACTORS: [u64; 2] = [0x9e37_79b9_7f4a_7c15, 0xd6e8_feb8_6659_fd93];

/// Bytes in front of what an error of ICMP quotes, of either version.
const ICMP_LEN: usize = 8;

/// Types of ICMPv4 that quote a packet (RFC 792): unreachable, quench, redirect, time, parameter.
const QUOTING_ICMPV4: [u8; 5] = [3, 4, 5, 11, 12];

/// What a packet says of its flow.
struct Front<'a> {
    protocol: IpProtocol,
    source: IpAddr,
    destination: IpAddr,
    payload: &'a [u8],
}

/// Whether a packet came to us or went from us: which of its ports is ours.
#[derive(Clone, Copy)]
enum Direction {
    In,
    Out,
}

impl Deal {
    /// All flows are the only worker's.
    pub const ALONE: Self = Self { workers: 1 };

    /// Among so many workers; at least one.
    pub const fn among(workers: u8) -> Self {
        Self { workers: if workers == 0 { 1 } else { workers } }
    }

    /// How many there are.
    pub const fn workers(self) -> u8 {
        self.workers
    }

    /// Whose a connection of TCP is.
    #[inline]
    pub fn connection(self, one: SocketAddr, other: SocketAddr) -> u8 {
        self.by_ends(end(one.ip(), one.port()), end(other.ip(), other.port()))
    }

    /// Whose the UDP sockets at a port of ours are.
    #[inline]
    pub const fn port(self, port: u16) -> u8 {
        self.place((port as u64).wrapping_mul(FACTORS[0]))
    }

    /// Whose a packet is that came to us.
    #[inline]
    pub fn received(self, packet: &[u8]) -> u8 {
        match self.workers {
            1 => LEAD,
            _ => self.find(packet, Direction::In).unwrap_or(LEAD),
        }
    }

    #[inline]
    fn find(self, packet: &[u8], direction: Direction) -> Option<u8> {
        let front = Front::of(packet)?;
        match front.protocol {
            IpProtocol::TCP => {
                let [source, destination] = ports(front.payload)?;
                Some(self.by_ends(end(front.source, source), end(front.destination, destination)))
            }
            IpProtocol::UDP => {
                let [source, destination] = ports(front.payload)?;
                Some(self.port(match direction {
                    Direction::In => destination,
                    Direction::Out => source,
                }))
            }
            IpProtocol::ICMPV4 | IpProtocol::ICMPV6 => self.find_quoted(&front, direction),
            _ => None,
        }
    }

    /// An error that came is about a packet that went, which quotes no other (RFC 1122 3.2.2).
    #[cold]
    fn find_quoted(self, front: &Front<'_>, direction: Direction) -> Option<u8> {
        let (icmp, quoted) = front.payload.split_at_checked(ICMP_LEN)?;
        let quotes = match front.protocol {
            IpProtocol::ICMPV4 => QUOTING_ICMPV4.contains(&icmp[0]),
            _ => Icmpv6Type(icmp[0]).is_error(),
        };
        match direction {
            Direction::In if quotes => self.find(quoted, Direction::Out),
            _ => None,
        }
    }

    #[inline]
    fn by_ends(self, one: u64, other: u64) -> u8 {
        let (low, high) = (one.min(other), one.max(other));
        let product = u128::from(low ^ FACTORS[0]) * u128::from(high ^ FACTORS[1]);
        self.place(product as u64 ^ (product >> 64) as u64)
    }

    /// The upper bits of a hash, which are the best, spread over the workers such that those of a
    /// node with half as many workers have the flows of two each.
    #[inline]
    const fn place(self, hash: u64) -> u8 {
        ((hash >> 48) as u16 % self.workers as u16) as u8
    }
}

impl<'a> Front<'a> {
    /// What the first headers say; nothing of a fragment, whose ports may be elsewhere.
    #[inline]
    fn of(packet: &'a [u8]) -> Option<Self> {
        match packet.first()? >> 4 {
            4 => {
                let header = Ipv4Header::parse(packet.first_chunk()?);
                let payload = packet.get(header.header_len()..)?;
                let (source, destination) = (header.source.into(), header.destination.into());
                let protocol = header.protocol;
                (!header.is_fragment()).then_some(Self { protocol, source, destination, payload })
            }
            6 => {
                let header = Ipv6Header::parse(packet.first_chunk()?);
                let (source, destination) = (header.source.into(), header.destination.into());
                let upper = UpperLayer::find(header.next_header, &packet[Ipv6Header::LEN..]);
                let upper = upper.ok().filter(|upper| upper.fragment.is_none())?;
                let (protocol, payload) = (upper.protocol, upper.payload);
                Some(Self { protocol, source, destination, payload })
            }
            _ => None,
        }
    }
}

/// The ports with which UDP and TCP begin, the sender's first.
#[inline]
fn ports(payload: &[u8]) -> Option<[u16; 2]> {
    let &[a, b, c, d] = payload.first_chunk()?;
    Some([u16::from_be_bytes([a, b]), u16::from_be_bytes([c, d])])
}

/// An end of a connection as one number.
#[inline]
fn end(ip: IpAddr, port: u16) -> u64 {
    match ip {
        IpAddr::V4(ip) => u64::from(ip.to_bits()) << 16 | u64::from(port),
        IpAddr::V6(ip) => {
            let bits = ip.to_bits();
            let (low, high) = (bits as u64, (bits >> 64) as u64);
            (high ^ low.rotate_left(23)).wrapping_mul(FACTORS[0]) ^ u64::from(port)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const ONE: &str = "10.0.0.1:80";
    const OTHER: &str = "10.0.0.2:50000";
    const ONE_V6: &str = "[fd00::1]:80";
    const OTHER_V6: &str = "[fd00::2]:50000";

    fn at(text: &str) -> SocketAddr {
        text.parse().expect("an address")
    }

    fn packet(protocol: IpProtocol, from: IpAddr, to: IpAddr, payload: &[u8]) -> Vec<u8> {
        let mut packet = vec![0; 40 + payload.len()];
        let len = payload.len();
        let room = match (from, to) {
            (IpAddr::V4(source), IpAddr::V4(destination)) => {
                packet.truncate(20 + len);
                let header =
                    Ipv4Header { protocol, source, destination, ttl: 9, ..Default::default() };
                header.write_packet(&[], len, &mut packet).expect("there is room")
            }
            (IpAddr::V6(source), IpAddr::V6(destination)) => {
                let next_header = protocol;
                let header =
                    Ipv6Header { next_header, source, destination, ..Ipv6Header::default() };
                header.write_packet(len, &mut packet).expect("there is room")
            }
            _ => unreachable!("addresses of one family"),
        };
        room.copy_from_slice(payload);
        packet
    }

    fn sent(protocol: IpProtocol, from: &str, to: &str) -> Vec<u8> {
        let (from, to) = (at(from), at(to));
        let mut payload = [from.port().to_be_bytes(), to.port().to_be_bytes()].concat();
        payload.resize(20, 0);
        packet(protocol, from.ip(), to.ip(), &payload)
    }

    #[test]
    fn both_ways_of_a_connection_are_the_same_workers() {
        for workers in 1..=8 {
            let deal = Deal::among(workers);
            for (one, other) in [(ONE, OTHER), (ONE_V6, OTHER_V6), (ONE, ONE)] {
                let worker = deal.connection(at(one), at(other));
                assert!(worker < workers);
                assert_eq!(deal.connection(at(other), at(one)), worker);
                for (from, to) in [(one, other), (other, one)] {
                    assert_eq!(deal.received(&sent(IpProtocol::TCP, from, to)), worker);
                }
            }
        }
        assert_eq!(Deal::among(0), Deal::ALONE);
    }

    #[test]
    fn it_is_the_same_on_every_node_and_in_every_version() {
        let deal = Deal::among(8);
        let connections = [(ONE, OTHER), (ONE_V6, OTHER_V6)];
        assert_eq!(connections.map(|(one, other)| deal.connection(at(one), at(other))), [5, 7]);
        assert_eq!([7, 53, 50_000].map(|port| deal.port(port)), [4, 4, 6]);
    }

    #[test]
    fn a_worker_of_few_has_the_flows_of_whole_workers_of_many() {
        let (few, many) = (Deal::among(2), Deal::among(4));
        for port in 1..1000 {
            let one = SocketAddr::new(at(ONE).ip(), port);
            let worker = many.connection(one, at(OTHER));
            assert_eq!(few.connection(one, at(OTHER)), worker % 2);
            assert_eq!(few.port(port), many.port(port) % 2);
        }
    }

    #[test]
    fn a_datagram_is_whose_our_port_is() {
        let deal = Deal::among(8);
        for port in [7, 53, 5000] {
            let to = format!("10.0.0.1:{port}");
            for from in [OTHER, "10.0.0.3:7"] {
                assert_eq!(deal.received(&sent(IpProtocol::UDP, from, &to)), deal.port(port));
            }
            // A group is no other address here.
            let group = sent(IpProtocol::UDP, OTHER, &format!("239.1.2.3:{port}"));
            assert_eq!(deal.received(&group), deal.port(port));
        }
    }

    #[test]
    fn an_error_is_whose_the_packet_was() {
        let deal = Deal::among(8);
        for (ours, theirs, icmp, kind) in
            [(ONE, OTHER, IpProtocol::ICMPV4, 3), (ONE_V6, OTHER_V6, IpProtocol::ICMPV6, 2)]
        {
            for protocol in [IpProtocol::TCP, IpProtocol::UDP] {
                let went = sent(protocol, ours, theirs);
                let quoted = [&[kind, 0, 0, 0, 0, 0, 0, 0], &went[..]].concat();
                let came = packet(icmp, at(theirs).ip(), at(ours).ip(), &quoted);
                let owner = match protocol {
                    IpProtocol::TCP => deal.connection(at(ours), at(theirs)),
                    _ => deal.port(at(ours).port()),
                };
                assert_eq!(deal.received(&came), owner);
                // An error about an error is nobody's, nor is what quotes nothing.
                let again = [&[kind, 0, 0, 0, 0, 0, 0, 0], &came[..]].concat();
                let again = packet(icmp, at(theirs).ip(), at(ours).ip(), &again);
                assert_eq!(deal.received(&again), LEAD);
                let echo = [&[128, 0, 0, 0, 0, 0, 0, 0], &went[..]].concat();
                let echo = packet(icmp, at(theirs).ip(), at(ours).ip(), &echo);
                assert_eq!(deal.received(&echo), LEAD);
            }
        }
    }

    #[test]
    fn fragments_and_rubbish_are_the_leads() {
        let deal = Deal::among(8);
        let whole = sent(IpProtocol::UDP, OTHER, ONE);
        assert_ne!(deal.received(&whole), LEAD);
        let mut fragment = whole.clone();
        fragment[6] = 0x20;
        assert_eq!(deal.received(&fragment), LEAD);
        for len in 0..24 {
            assert_eq!(deal.received(&whole[..len]), LEAD);
        }
        let mut strange = whole;
        strange[0] = 0x4f;
        assert_eq!(deal.received(&strange), LEAD);
        strange[0] = 0x95;
        assert_eq!(deal.received(&strange), LEAD);
    }

    /// How many of some flows each worker has, as parts of what were fair.
    fn shares(workers: u8, owners: impl Iterator<Item = u8>) -> Vec<f64> {
        let mut counts = vec![0; usize::from(workers)];
        owners.for_each(|owner| counts[usize::from(owner)] += 1);
        let all: u32 = counts.iter().sum();
        let fair = f64::from(all) / f64::from(workers);
        counts.iter().map(|count| f64::from(*count) / fair).collect()
    }

    #[test]
    fn flows_are_spread() {
        let server = [at("10.0.0.1:80"), at("[fd00::1]:80")];
        for workers in 2..=8 {
            let deal = Deal::among(workers);
            let ports = 50_000..54_096_u16;
            let mut spreads = vec![shares(workers, ports.clone().map(|port| deal.port(port)))];
            for server in server {
                let mut host = server;
                host.set_port(40_000);
                let by_port = ports.clone().map(|port| {
                    let mut client = server;
                    client.set_port(port);
                    deal.connection(server, client)
                });
                spreads.push(shares(workers, by_port));
                let by_host = (1..4096_u16).map(|nth| {
                    let [high, low] = nth.to_be_bytes();
                    host.set_ip(match server.ip() {
                        IpAddr::V4(_) => IpAddr::from([10, 0, high, low]),
                        IpAddr::V6(_) => IpAddr::from([0xfd00, 0, 0, 0, 0, 0, 0, nth]),
                    });
                    deal.connection(server, host)
                });
                spreads.push(shares(workers, by_host.collect::<Vec<_>>().into_iter()));
            }
            for spread in spreads {
                let is_even = spread.iter().all(|share| (0.8..1.2).contains(share));
                assert!(is_even, "{workers} workers: {spread:?}");
            }
        }
    }
}
