//! Flow steering: which worker of an interface handles a flow (the part of RSS in hardware NICs).
//!
//! | packet | the worker is chosen by |
//! |---|---|
//! | TCP | both addresses and both ports, the same in both directions |
//! | UDP | the local port, so one worker has a socket for all its peers |
//! | ICMP error | the packet that it quotes |
//! | fragment, anything else | nothing: the primary worker |
//!
//! Why the hash has no seed: two nodes with the same number of workers assign a TCP connection to
//! the same worker number without communication. So its segments use the IB connection between
//! these two workers and need no hand-off. A peer that chooses its ports can put all its flows on
//! one worker. That worker is busy, but the others are not affected. Flow tables have secret seeds
//! of their own.

use crate::headers::{Form, PacketHeaders};
use pollux_wire::ethernet::EtherType;
use pollux_wire::ip::IpProtocol;
use pollux_wire::ip::icmp::Icmpv6Type;
use pollux_wire::ip::ipv4::Ipv4Header;
use pollux_wire::ip::ipv6::Ipv6Header;
use pollux_wire::ip::ipv6_ext::UpperLayer;
use std::net::{IpAddr, SocketAddr};

/// The worker that handles packets without a flow.
pub const PRIMARY_WORKER: u8 = 0;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FlowSteering {
    workers: u8,
}

/// Odd multipliers of the hash, the same as in the neighbor table.
const FACTORS: [u64; 2] = [0x9e37_79b9_7f4a_7c15, 0xd6e8_feb8_6659_fd93];

/// The length of the ICMP header before the quoted packet, in both versions.
const ICMP_LEN: usize = 8;

/// Types of ICMPv4 that quote a packet (RFC 792): unreachable, quench, redirect, time, parameter.
const QUOTING_ICMPV4: [u8; 5] = [3, 4, 5, 11, 12];

struct FlowHeaders<'a> {
    protocol: IpProtocol,
    source: IpAddr,
    destination: IpAddr,
    payload: &'a [u8],
}

/// Determines which port is the local one.
#[derive(Clone, Copy)]
enum Direction {
    In,
    Out,
}

impl FlowSteering {
    pub const SINGLE: Self = Self { workers: 1 };

    /// Steering among this number of workers. 0 counts as 1.
    pub const fn among(workers: u8) -> Self {
        Self { workers: if workers == 0 { 1 } else { workers } }
    }

    pub const fn workers(self) -> u8 {
        self.workers
    }

    #[inline]
    pub fn connection(self, one: SocketAddr, other: SocketAddr) -> u8 {
        self.by_endpoints(endpoint(one.ip(), one.port()), endpoint(other.ip(), other.port()))
    }

    /// The worker of the UDP sockets at a local port.
    #[inline]
    pub const fn port(self, port: u16) -> u8 {
        self.worker_of((port as u64).wrapping_mul(FACTORS[0]))
    }

    #[inline]
    pub fn received(self, headers: &PacketHeaders, packet: &[u8]) -> u8 {
        if self.workers == 1 {
            return PRIMARY_WORKER;
        }
        let found = FlowHeaders::of(headers, packet);
        found.and_then(|found| self.find(&found, Direction::In)).unwrap_or(PRIMARY_WORKER)
    }

    #[inline]
    fn find(self, headers: &FlowHeaders<'_>, direction: Direction) -> Option<u8> {
        match headers.protocol {
            IpProtocol::TCP => {
                let [source, destination] = ports(headers.payload)?;
                Some(self.by_endpoints(
                    endpoint(headers.source, source),
                    endpoint(headers.destination, destination),
                ))
            }
            IpProtocol::UDP => {
                let [source, destination] = ports(headers.payload)?;
                Some(self.port(match direction {
                    Direction::In => destination,
                    Direction::Out => source,
                }))
            }
            IpProtocol::ICMPV4 | IpProtocol::ICMPV6 => self.find_quoted(headers, direction),
            _ => None,
        }
    }

    /// The worker for an ICMP error, which is that of the quoted packet. Only a received error
    /// quotes a packet that this node has sent, and a quoted packet is never an error itself (RFC
    /// 1122 3.2.2).
    #[cold]
    fn find_quoted(self, headers: &FlowHeaders<'_>, direction: Direction) -> Option<u8> {
        let (icmp, quoted) = headers.payload.split_at_checked(ICMP_LEN)?;
        let quotes = match headers.protocol {
            IpProtocol::ICMPV4 => QUOTING_ICMPV4.contains(&icmp[0]),
            _ => Icmpv6Type(icmp[0]).is_error(),
        };
        match direction {
            Direction::In if quotes => self.find(&FlowHeaders::of_quoted(quoted)?, Direction::Out),
            _ => None,
        }
    }

    #[inline]
    fn by_endpoints(self, one: u64, other: u64) -> u8 {
        let (low, high) = (one.min(other), one.max(other));
        let product = u128::from(low ^ FACTORS[0]) * u128::from(high ^ FACTORS[1]);
        self.worker_of(product as u64 ^ (product >> 64) as u64)
    }

    /// Reduces a hash to a worker by its upper bits, which are mixed best. By the remainder, each
    /// worker of a node with half as many workers has exactly the flows of two workers here.
    #[inline]
    const fn worker_of(self, hash: u64) -> u8 {
        ((hash >> 48) as u16 % self.workers as u16) as u8
    }
}

impl<'a> FlowHeaders<'a> {
    /// `None` for a fragment, which may lack the ports.
    #[inline]
    fn of(headers: &PacketHeaders, packet: &'a [u8]) -> Option<Self> {
        matches!(headers.form, Form::Plain | Form::Extended).then_some(())?;
        Some(Self {
            protocol: headers.protocol,
            source: headers.source(packet)?,
            destination: headers.destination(packet)?,
            payload: headers.payload(packet),
        })
    }

    /// The quoted packet may be truncated.
    #[cold]
    fn of_quoted(packet: &'a [u8]) -> Option<Self> {
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
                let upper = UpperLayer::find(header.next_header, packet.get(Ipv6Header::LEN..)?);
                let upper = upper.ok().filter(|upper| upper.fragment.is_none())?;
                let (protocol, payload) = (upper.protocol, upper.payload);
                Some(Self { protocol, source, destination, payload })
            }
            _ => None,
        }
    }
}

/// The hash of a flow, which chooses one of several next hops. Unlike flow steering, it has a
/// secret seed.
///
/// All fragments of a packet are hashed by their addresses alone, since only the first has ports.
/// IPv6 packets with a flow label are hashed by it (RFC 6438).
#[inline]
pub fn hash_of_flow(headers: &PacketHeaders, packet: &[u8], seed: u64) -> u32 {
    let addresses = headers.source(packet).zip(headers.destination(packet));
    let Some((source, destination)) = addresses else { return 0 };
    let label = match packet.first_chunk() {
        Some(fixed) if headers.ether_type == EtherType::IPV6 => Ipv6Header::parse(fixed).flow_label,
        _ => 0,
    };
    let has_ports = matches!(headers.protocol, IpProtocol::TCP | IpProtocol::UDP);
    let is_unfragmented = matches!(headers.form, Form::Plain | Form::Extended);
    let ports =
        ports(headers.payload(packet)).filter(|_| has_ports && is_unfragmented && label == 0);
    let protocol = if is_unfragmented { u64::from(headers.protocol.0) } else { 0 };
    let [from, to] = ports.unwrap_or_default();
    let one = endpoint(source, from) ^ seed;
    let other = endpoint(destination, to) ^ u64::from(label) << 32 ^ protocol << 24;
    let product = u128::from(one ^ FACTORS[0]) * u128::from(other.rotate_left(31) ^ FACTORS[1]);
    let mixed = (product as u64 ^ (product >> 64) as u64).wrapping_mul(FACTORS[0]);
    (mixed >> 32) as u32
}

/// The source and destination ports, which are the first fields of both UDP and TCP.
#[inline]
fn ports(payload: &[u8]) -> Option<[u16; 2]> {
    let &[a, b, c, d] = payload.first_chunk()?;
    Some([u16::from_be_bytes([a, b]), u16::from_be_bytes([c, d])])
}

#[inline]
fn endpoint(ip: IpAddr, port: u16) -> u64 {
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

    fn received(steering: FlowSteering, packet: &[u8]) -> u8 {
        steering.received(&PacketHeaders::parse_ip(packet).expect("a packet"), packet)
    }

    fn at(text: &str) -> SocketAddr {
        text.parse().expect("an address")
    }

    fn packet(protocol: IpProtocol, from: IpAddr, to: IpAddr, payload: &[u8]) -> Vec<u8> {
        let mut packet = vec![0; 40 + payload.len()];
        let len = payload.len();
        let buffer = match (from, to) {
            (IpAddr::V4(source), IpAddr::V4(destination)) => {
                packet.truncate(20 + len);
                let header =
                    Ipv4Header { protocol, source, destination, ttl: 9, ..Default::default() };
                header.write_packet(&[], len, &mut packet).expect("it fits")
            }
            (IpAddr::V6(source), IpAddr::V6(destination)) => {
                let next_header = protocol;
                let header =
                    Ipv6Header { next_header, source, destination, ..Ipv6Header::default() };
                header.write_packet(len, &mut packet).expect("it fits")
            }
            _ => unreachable!("addresses of one family"),
        };
        buffer.copy_from_slice(payload);
        packet
    }

    fn sent(protocol: IpProtocol, from: &str, to: &str) -> Vec<u8> {
        let (from, to) = (at(from), at(to));
        let mut payload = [from.port().to_be_bytes(), to.port().to_be_bytes()].concat();
        payload.resize(20, 0);
        packet(protocol, from.ip(), to.ip(), &payload)
    }

    #[test]
    fn both_directions_of_a_connection_have_one_worker() {
        for workers in 1..=8 {
            let steering = FlowSteering::among(workers);
            for (one, other) in [(ONE, OTHER), (ONE_V6, OTHER_V6), (ONE, ONE)] {
                let worker = steering.connection(at(one), at(other));
                assert!(worker < workers);
                assert_eq!(steering.connection(at(other), at(one)), worker);
                for (from, to) in [(one, other), (other, one)] {
                    assert_eq!(received(steering, &sent(IpProtocol::TCP, from, to)), worker);
                }
            }
        }
        assert_eq!(FlowSteering::among(0), FlowSteering::SINGLE);
    }

    #[test]
    fn steering_is_the_same_on_every_node_and_in_every_version() {
        let steering = FlowSteering::among(8);
        let connections = [(ONE, OTHER), (ONE_V6, OTHER_V6)];
        assert_eq!(connections.map(|(one, other)| steering.connection(at(one), at(other))), [5, 7]);
        assert_eq!([7, 53, 50_000].map(|port| steering.port(port)), [4, 4, 6]);
    }

    #[test]
    fn half_as_many_workers_have_the_flows_of_two_each() {
        let (few, many) = (FlowSteering::among(2), FlowSteering::among(4));
        for port in 1..1000 {
            let one = SocketAddr::new(at(ONE).ip(), port);
            let worker = many.connection(one, at(OTHER));
            assert_eq!(few.connection(one, at(OTHER)), worker % 2);
            assert_eq!(few.port(port), many.port(port) % 2);
        }
    }

    #[test]
    fn a_datagram_is_steered_by_the_local_port() {
        let steering = FlowSteering::among(8);
        for port in [7, 53, 5000] {
            let to = format!("10.0.0.1:{port}");
            for from in [OTHER, "10.0.0.3:7"] {
                assert_eq!(
                    received(steering, &sent(IpProtocol::UDP, from, &to)),
                    steering.port(port)
                );
            }
            // A multicast destination changes nothing.
            let group = sent(IpProtocol::UDP, OTHER, &format!("239.1.2.3:{port}"));
            assert_eq!(received(steering, &group), steering.port(port));
        }
    }

    #[test]
    fn an_icmp_error_is_steered_by_the_quoted_packet() {
        let steering = FlowSteering::among(8);
        for (ours, theirs, icmp, kind) in
            [(ONE, OTHER, IpProtocol::ICMPV4, 3), (ONE_V6, OTHER_V6, IpProtocol::ICMPV6, 2)]
        {
            for protocol in [IpProtocol::TCP, IpProtocol::UDP] {
                let quotable = sent(protocol, ours, theirs);
                let quoted = [&[kind, 0, 0, 0, 0, 0, 0, 0], &quotable[..]].concat();
                let error = packet(icmp, at(theirs).ip(), at(ours).ip(), &quoted);
                let owner = match protocol {
                    IpProtocol::TCP => steering.connection(at(ours), at(theirs)),
                    _ => steering.port(at(ours).port()),
                };
                assert_eq!(received(steering, &error), owner);
                // An error that quotes an error has no flow, and a message that quotes nothing has
                // none either.
                let again = [&[kind, 0, 0, 0, 0, 0, 0, 0], &error[..]].concat();
                let again = packet(icmp, at(theirs).ip(), at(ours).ip(), &again);
                assert_eq!(received(steering, &again), PRIMARY_WORKER);
                let echo = [&[128, 0, 0, 0, 0, 0, 0, 0], &quotable[..]].concat();
                let echo = packet(icmp, at(theirs).ip(), at(ours).ip(), &echo);
                assert_eq!(received(steering, &echo), PRIMARY_WORKER);
            }
        }
    }

    #[test]
    fn fragments_and_other_packets_go_to_the_primary_worker() {
        let steering = FlowSteering::among(8);
        let datagram = sent(IpProtocol::UDP, OTHER, ONE);
        assert_ne!(received(steering, &datagram), PRIMARY_WORKER);
        let mut fragment = datagram;
        fragment[6] = 0x20;
        fragment[10] -= 0x20;
        assert_eq!(received(steering, &fragment), PRIMARY_WORKER);
        let other = packet(IpProtocol(200), at(OTHER).ip(), at(ONE).ip(), &[7; 40]);
        assert_eq!(received(steering, &other), PRIMARY_WORKER);
        let short = packet(IpProtocol::UDP, at(OTHER).ip(), at(ONE).ip(), &[7; 3]);
        assert_eq!(received(steering, &short), PRIMARY_WORKER);
    }

    /// The packet that an error quotes is hostile input like any other.
    #[test]
    fn any_quoted_bytes_are_parsed() {
        let steering = FlowSteering::among(8);
        let quotable = sent(IpProtocol::UDP, ONE_V6, OTHER_V6);
        for len in 0..quotable.len() {
            let quoted = [&[1, 0, 0, 0, 0, 0, 0, 0], &quotable[..len]].concat();
            let error = packet(IpProtocol::ICMPV6, at(OTHER_V6).ip(), at(ONE_V6).ip(), &quoted);
            let expected = if len < 44 { PRIMARY_WORKER } else { steering.port(at(ONE_V6).port()) };
            assert_eq!(received(steering, &error), expected, "{len}");
        }
    }

    /// The flows of each worker, relative to an even share.
    fn shares(workers: u8, assigned: impl Iterator<Item = u8>) -> Vec<f64> {
        let mut counts = vec![0; usize::from(workers)];
        assigned.for_each(|worker| counts[usize::from(worker)] += 1);
        let all: u32 = counts.iter().sum();
        let fair = f64::from(all) / f64::from(workers);
        counts.iter().map(|count| f64::from(*count) / fair).collect()
    }

    #[test]
    fn flows_are_spread_evenly_over_workers() {
        let server = [at("10.0.0.1:80"), at("[fd00::1]:80")];
        for workers in 2..=8 {
            let steering = FlowSteering::among(workers);
            let ports = 50_000..54_096_u16;
            let mut spreads = vec![shares(workers, ports.clone().map(|port| steering.port(port)))];
            for server in server {
                let mut host = server;
                host.set_port(40_000);
                let by_port = ports.clone().map(|port| {
                    let mut client = server;
                    client.set_port(port);
                    steering.connection(server, client)
                });
                spreads.push(shares(workers, by_port));
                let by_host = (1..4096_u16).map(|nth| {
                    let [high, low] = nth.to_be_bytes();
                    host.set_ip(match server.ip() {
                        IpAddr::V4(_) => IpAddr::from([10, 0, high, low]),
                        IpAddr::V6(_) => IpAddr::from([0xfd00, 0, 0, 0, 0, 0, 0, nth]),
                    });
                    steering.connection(server, host)
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
