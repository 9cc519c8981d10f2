//! `null:` as a port: a source and a sink of packets, to measure forwarding alone.
//!
//! A poll receives a full batch of packets to a list of destinations, round-robin. Sent packets are
//! discarded. For each packet, the port does only what every port has to do: on reception it
//! allocates a buffer, writes the headers, parses them and decides the verdict; on transmission it
//! frees the buffer.

use crate::acl::AclFilter;
use crate::headers::PacketHeaders;
use crate::packet_memory::{PACKET_OFFSET, PacketMemory, STOCK_MAX};
use crate::port::{BATCH_MAX, PacketPort, TransitError, TransitPacket, TxPacket};
use crate::reason::{ForwardDrop, ForwardDrops};
use crate::verdict::{Destinations, Verdict};
use pollux_mem::prefetch::prefetch;
use pollux_mem::{Buf, Cache};
use pollux_verbs::WakeSource;
use pollux_verbs::time::Time;
use pollux_wire::ip::IpProtocol;
use pollux_wire::ip::checksum::update_u16;
use pollux_wire::ip::ipv4::Ipv4Header;
use pollux_wire::ip::ipv6::Ipv6Header;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

/// A protocol without ports and checksums, for experiments (RFC 3692).
const PROTOCOL: IpProtocol = IpProtocol(253);
const TTL: u8 = 64;
/// The source addresses of all packets (RFC 2544 C.2.2, RFC 5180 8).
const SOURCE_V4: Ipv4Addr = Ipv4Addr::new(198, 18, 0, 1);
const SOURCE_V6: Ipv6Addr = Ipv6Addr::new(0x2001, 2, 0, 0, 0, 0, 0, 1);

#[derive(Debug)]
pub struct NullPort {
    cache: Cache,
    arriving: Vec<Buf>,
    batch: usize,
    own: Destinations,
    source: Source,
    received: u64,
    sent: u64,
    drops: ForwardDrops,
}

#[derive(Debug)]
struct Source {
    packet_bytes: usize,
    /// The header of each packet, complete except for the destination.
    v4: Ipv4Header,
    v6: Ipv6Header,
    destinations: Box<[IpAddr]>,
    next: usize,
}

impl NullPort {
    /// A port that receives packets of `packet_bytes` bytes, headers included, to these
    /// destinations in turn. Without destinations it is only a sink. `None` if no packet can have
    /// this length.
    pub fn new(
        packets: &PacketMemory,
        packet_bytes: u16,
        destinations: impl Into<Box<[IpAddr]>>,
    ) -> Option<Self> {
        let fits = u32::from(packet_bytes) <= packets.packet_bytes_max();
        Some(Self {
            cache: packets.pool().cache(STOCK_MAX),
            arriving: Vec::with_capacity(BATCH_MAX),
            batch: BATCH_MAX,
            own: Destinations::new(),
            source: Source::new(packet_bytes, destinations.into()).filter(|_| fits)?,
            received: 0,
            sent: 0,
            drops: ForwardDrops::default(),
        })
    }

    /// Sets the number of packets per poll, at most a full batch, for a paced source.
    pub fn set_batch(&mut self, packets: usize) {
        self.batch = packets.min(BATCH_MAX);
    }

    pub const fn received(&self) -> u64 {
        self.received
    }

    pub const fn sent(&self) -> u64 {
        self.sent
    }

    /// The drops of packets that arrived here.
    pub const fn drops(&self) -> &ForwardDrops {
        &self.drops
    }
}

impl Source {
    fn new(packet_bytes: u16, destinations: Box<[IpAddr]>) -> Option<Self> {
        let v4 =
            Ipv4Header { ttl: TTL, protocol: PROTOCOL, source: SOURCE_V4, ..Ipv4Header::default() };
        let v6 = Ipv6Header {
            hop_limit: TTL,
            next_header: PROTOCOL,
            source: SOURCE_V6,
            ..Ipv6Header::default()
        };
        // Each header is written once and parsed, which fills in version, lengths and checksum.
        let mut bytes = vec![0; u16::MAX.into()];
        let v6_payload = usize::from(packet_bytes).checked_sub(Ipv6Header::LEN)?;
        let v4_payload = usize::from(packet_bytes).checked_sub(Ipv4Header::LEN)?;
        v4.write_packet(&[], v4_payload, &mut bytes).ok()?;
        let v4 = Ipv4Header::parse(bytes.first_chunk()?);
        v6.write_packet(v6_payload, &mut bytes).ok()?;
        let v6 = Ipv6Header::parse(bytes.first_chunk()?);
        Some(Self { packet_bytes: packet_bytes.into(), v4, v6, destinations, next: 0 })
    }

    #[inline]
    fn fill(&mut self, packet: &mut Buf) -> Option<()> {
        let to = *self.destinations.get(self.next)?;
        // The prefetch keeps the source from waiting for memory.
        self.destinations.get(self.next + BATCH_MAX).into_iter().for_each(prefetch);
        self.next = if self.next + 1 < self.destinations.len() { self.next + 1 } else { 0 };
        let bytes = packet.set_window(PACKET_OFFSET, self.packet_bytes)?;
        match to {
            IpAddr::V4(destination) => {
                let [high, low] = [destination.to_bits() >> 16, destination.to_bits() & 0xffff];
                let checksum = update_u16(self.v4.header_checksum, 0, high as u16);
                let header_checksum = update_u16(checksum, 0, low as u16);
                Ipv4Header { destination, header_checksum, ..self.v4 }.write(bytes).ok().map(drop)
            }
            IpAddr::V6(destination) => {
                Ipv6Header { destination, ..self.v6 }.write(bytes).ok().map(drop)
            }
        }
    }
}

impl PacketPort for NullPort {
    /// All headers are written before any is parsed, as with packets from a network: a processor
    /// stalls if it reads bytes of which it has just written parts.
    #[inline]
    fn poll(&mut self, _now: Time, transit: &mut Vec<TransitPacket>) -> bool {
        let Self { cache, arriving, batch, own, source, received, .. } = self;
        while arriving.len() < *batch {
            let Some(mut packet) = cache.alloc() else { break };
            if source.fill(&mut packet).is_none() {
                cache.free(packet);
                break;
            }
            arriving.push(packet);
        }
        *received += arriving.len() as u64;
        let before = transit.len();
        for packet in arriving.drain(..) {
            let one = transit.push_mut(TransitPacket { packet, headers: PacketHeaders::NONE });
            let TransitPacket { packet, headers } = one;
            let is_ip = headers.set_ip(packet.bytes()).is_ok();
            if !is_ip || own.verdict(headers, packet.bytes()) != Verdict::Transit {
                transit.pop().into_iter().for_each(|one| cache.free(one.packet));
            }
        }
        transit.len() > before
    }

    /// No filter: all packets of this port are to be forwarded.
    fn set_filter(&mut self, _: Option<AclFilter>) {}

    #[inline]
    fn send(&mut self, _now: Time, batch: &mut Vec<TxPacket>) {
        self.sent += batch.len() as u64;
        batch.drain(..).for_each(|one| self.cache.free(one.packet));
    }

    fn reject(&mut self, packet: Buf, why: TransitError) {
        self.drop_transit(packet, why.reason());
    }

    fn drop_transit(&mut self, packet: Buf, why: ForwardDrop) {
        self.drops.count(why);
        self.cache.free(packet);
    }

    fn copy(&mut self, packet: &Buf) -> Option<Buf> {
        let Some(mut copy) = self.cache.alloc() else {
            self.drops.count(ForwardDrop::NoBuffer);
            return None;
        };
        copy.push_back(packet.len())?.copy_from_slice(packet.bytes());
        Some(copy)
    }

    fn packets(&self) -> u64 {
        self.received + self.sent
    }

    fn poll_timeout(&self) -> Option<Time> {
        None
    }

    /// A source always has another packet, so only a sink can sleep.
    fn arm(&mut self) -> bool {
        self.source.destinations.is_empty()
    }

    fn wake_source(&mut self) -> Option<WakeSource<'_>> {
        None
    }

    fn woken(&mut self) {}
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::forward::{Forwarder, RouteLookup, RouteTo};
    use crate::port::PortId;

    struct ToTheOther;

    impl RouteLookup for ToTheOther {
        fn look_up(&self, destination: IpAddr, _: impl FnOnce() -> u32) -> &RouteTo {
            match destination {
                IpAddr::V4(ip) if ip.octets()[0] == 99 => &RouteTo::Nowhere,
                _ => &RouteTo::Port { port: PortId(1), gateway: None },
            }
        }

        fn next_hops(&self, _: IpAddr) -> &[RouteTo] {
            &[]
        }
    }

    #[test]
    fn packets_of_the_source_are_forwarded_or_counted() {
        let packets = PacketMemory::new(512, 2048).unwrap();
        let to =
            ["10.0.0.9", "fd00::9", "99.0.0.1", "198.51.100.200"].map(|ip| ip.parse().unwrap());
        let source = NullPort::new(&packets, 64, to).unwrap();
        let sink = NullPort::new(&packets, 64, []).unwrap();
        let mut ports = [source, sink];
        let mut forwarder = Forwarder::new(1);
        forwarder.set_ports([PortId(0), PortId(1)].into_iter());
        for _ in 0..10 {
            assert!(forwarder.breathe(Time::START, &mut ports, &ToTheOther));
        }
        let [source, sink] = &ports;
        assert_eq!((source.received(), sink.sent()), (640, 480));
        assert_eq!(source.drops().of(ForwardDrop::NoRoute), 160);
        assert_eq!(source.drops().total(), 160);
    }

    #[test]
    fn impossible_packet_lengths_are_refused() {
        let packets = PacketMemory::new(64, 2048).unwrap();
        for bytes in [0, 39, 2049] {
            assert!(NullPort::new(&packets, bytes, []).is_none(), "{bytes}");
        }
        for bytes in [40, 64, 1500, 2048] {
            let mut port = NullPort::new(&packets, bytes, ["10.0.0.9".parse().unwrap()]).unwrap();
            let mut transit = Vec::new();
            assert!(port.poll(Time::START, &mut transit));
            assert!(transit.iter().all(|one| one.packet.len() == usize::from(bytes)));
        }
    }
}
