//! IP fragments (RFC 791 3.2, RFC 8200 4.5): reassembly of received packets, and fragmentation of
//! packets longer than the path MTU.
//!
//! If fragments overlap, their packet is given up, as on Linux (RFC 5722 requires this for IPv6). A
//! packet that times out is given up when the next fragment arrives: until then, nothing else needs
//! its memory. When all memory is in use, the oldest packet is given up.

use super::outbox::Outbox;
use pollux_dataplane::headers::PacketHeaders;
use pollux_verbs::time::Time;
use pollux_wire::ip::IpProtocol;
use pollux_wire::ip::ipv4::{Ipv4Header, Ipv4Packet};
use pollux_wire::ip::ipv6::{Ipv6Header, Ipv6Packet};
use pollux_wire::ip::ipv6_ext::{Extension, FragmentHeader};
use std::collections::BTreeMap;
use std::net::IpAddr;
use std::time::Duration;

/// Maximum memory for incomplete packets, in bytes (`ipfrag_high_thresh` of Linux).
const BYTES_MAX: usize = 4 << 20;
/// Maximum number of fragments of a packet: the longest packet has 119 at an MTU of 576.
const PIECES_MAX: usize = 256;
/// The memory of a fragment in addition to its bytes.
const PIECE_OVERHEAD: usize = 128;
/// The timeout of IPv4 packets, as on Linux.
const V4_TIMEOUT: Duration = Duration::from_secs(30);
/// RFC 8200 4.5.
const V6_TIMEOUT: Duration = Duration::from_secs(60);

/// The fields by which fragments belong to one packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct PacketKey {
    source: IpAddr,
    destination: IpAddr,
    /// Only for IPv4.
    protocol: Option<u8>,
    identification: u32,
}

#[derive(Clone, Copy)]
enum Header {
    V4(Ipv4Header),
    V6(Ipv6Header),
}

struct Fragment<'a> {
    key: PacketKey,
    /// The IP header, for IPv6 with the protocol after the fragment header.
    header: Header,
    /// In bytes.
    offset: usize,
    has_more: bool,
    payload: &'a [u8],
}

struct Incomplete {
    /// Packets are numbered in the order in which they began to arrive.
    number: u64,
    until: Time,
    /// The header of the fragment at offset 0.
    header: Option<Header>,
    /// Keyed by offset in bytes.
    pieces: BTreeMap<usize, Box<[u8]>>,
    /// The total length of the pieces, which do not overlap.
    bytes: usize,
    /// The length of the payload, known once the last fragment has arrived.
    len: Option<usize>,
}

enum Insertion {
    Added,
    Duplicate,
    Contradiction,
}

#[derive(Default)]
pub(super) struct Reassembly {
    incomplete: BTreeMap<PacketKey, Incomplete>,
    by_age: BTreeMap<u64, PacketKey>,
    begun: u64,
    /// Memory in use.
    bytes: usize,
    /// Packets that were given up, and fragments that are malformed.
    pub(super) given_up: u64,
}

impl<'a> Fragment<'a> {
    fn parse(packet: &'a [u8]) -> Option<Self> {
        if packet.first()? >> 4 == 4 {
            let parsed = Ipv4Packet::parse(packet).ok()?;
            let header = parsed.header();
            let key = PacketKey {
                source: header.source.into(),
                destination: header.destination.into(),
                protocol: Some(header.protocol.0),
                identification: header.identification.into(),
            };
            let (offset, has_more) = (header.fragment_offset, header.more_fragments);
            let (header, payload) = (Header::V4(header), parsed.payload());
            return Some(Self { key, header, offset: usize::from(offset) * 8, has_more, payload });
        }
        let parsed = Ipv6Packet::parse(packet).ok()?;
        let header = parsed.header();
        let (mut next_header, mut rest) = (header.next_header, parsed.payload());
        let fragment = loop {
            let (extension, behind) = Extension::read(next_header, rest).ok()??;
            (next_header, rest) = (extension.next_header(), behind);
            if let Extension::Fragment(fragment) = extension {
                break fragment;
            }
        };
        let key = PacketKey {
            source: header.source.into(),
            destination: header.destination.into(),
            protocol: None,
            identification: fragment.identification,
        };
        Some(Self {
            key,
            header: Header::V6(Ipv6Header { next_header, ..header }),
            offset: usize::from(fragment.fragment_offset) * 8,
            has_more: fragment.more_fragments,
            payload: rest,
        })
    }

    /// Whether a packet can contain this fragment: all fragments but the last have a multiple of 8
    /// bytes, and the end is within the longest IP packet.
    fn is_valid(&self) -> bool {
        let packet_max = usize::from(u16::MAX) - self.header.len();
        !self.payload.is_empty()
            && (!self.has_more || self.payload.len().is_multiple_of(8))
            && self.offset + self.payload.len() <= packet_max
    }
}

impl Header {
    const fn len(&self) -> usize {
        match self {
            Self::V4(_) => Ipv4Header::LEN,
            Self::V6(_) => Ipv6Header::LEN,
        }
    }

    /// The reassembled packet, without options and extension headers.
    fn packet<'p>(&self, len: usize, pieces: impl Iterator<Item = &'p [u8]>) -> Option<Vec<u8>> {
        let mut packet = vec![0; self.len() + len];
        let mut payload = match *self {
            Self::V4(header) => {
                let (more_fragments, fragment_offset) = (false, 0);
                let whole = Ipv4Header { more_fragments, fragment_offset, ..header };
                whole.write_packet(&[], len, &mut packet).ok()?
            }
            Self::V6(header) => header.write_packet(len, &mut packet).ok()?,
        };
        for piece in pieces {
            let (front, rest) = payload.split_at_mut_checked(piece.len())?;
            front.copy_from_slice(piece);
            payload = rest;
        }
        Some(packet)
    }
}

impl Incomplete {
    fn insert(&mut self, fragment: &Fragment<'_>) -> Insertion {
        let (start, end) = (fragment.offset, fragment.offset + fragment.payload.len());
        let before = self.pieces.range(..=start).next_back();
        if before.is_some_and(|(at, piece)| *at == start && at + piece.len() == end) {
            return Insertion::Duplicate;
        }
        let overlaps = before.is_some_and(|(at, piece)| at + piece.len() > start)
            || self.pieces.range(start..).next().is_some_and(|(at, _)| *at < end);
        let is_beyond = self.len.is_some_and(|len| end > len || !fragment.has_more);
        let last = self.pieces.last_key_value().map_or(0, |(at, piece)| at + piece.len());
        let is_short = !fragment.has_more && last > end;
        if overlaps || is_beyond || is_short || self.pieces.len() == PIECES_MAX {
            return Insertion::Contradiction;
        }
        if !fragment.has_more {
            self.len = Some(end);
        }
        if start == 0 {
            self.header = Some(fragment.header);
        }
        self.bytes += fragment.payload.len();
        self.pieces.insert(start, fragment.payload.into());
        Insertion::Added
    }

    fn memory(&self) -> usize {
        self.bytes + self.pieces.len() * PIECE_OVERHEAD
    }

    fn whole(&self) -> Option<Vec<u8>> {
        let len = self.len.filter(|len| *len == self.bytes)?;
        self.header?.packet(len, self.pieces.values().map(|piece| &**piece))
    }
}

impl Reassembly {
    /// Adds a fragment; returns the packet that it completes.
    pub(super) fn add(&mut self, now: Time, bytes: &[u8]) -> Option<Vec<u8>> {
        self.expire(now);
        let Some(fragment) = Fragment::parse(bytes).filter(Fragment::is_valid) else {
            self.given_up += 1;
            return None;
        };
        if fragment.offset == 0 && !fragment.has_more {
            // RFC 6946: an atomic fragment is independent of others with the same identification.
            let payload = fragment.payload;
            return fragment.header.packet(payload.len(), std::iter::once(payload));
        }
        let key = fragment.key;
        let begun = &mut self.begun;
        let incomplete = self.incomplete.entry(key).or_insert_with(|| {
            *begun += 1;
            self.by_age.insert(*begun, key);
            let timeout = if key.source.is_ipv4() { V4_TIMEOUT } else { V6_TIMEOUT };
            Incomplete {
                number: *begun,
                until: now + timeout,
                header: None,
                pieces: BTreeMap::new(),
                bytes: 0,
                len: None,
            }
        });
        match incomplete.insert(&fragment) {
            Insertion::Duplicate => return None,
            Insertion::Contradiction => {
                self.give_up(key);
                return None;
            }
            Insertion::Added => {}
        }
        let whole = incomplete.whole();
        self.bytes += fragment.payload.len() + PIECE_OVERHEAD;
        if whole.is_some() {
            self.remove(key);
        }
        while self.bytes > BYTES_MAX
            && let Some((_, &oldest)) = self.by_age.first_key_value()
        {
            self.give_up(oldest);
        }
        whole
    }

    fn expire(&mut self, now: Time) {
        while let Some((_, &oldest)) = self.by_age.first_key_value()
            && self.incomplete.get(&oldest).is_none_or(|one| one.until <= now)
        {
            self.give_up(oldest);
        }
    }

    fn give_up(&mut self, key: PacketKey) {
        self.given_up += 1;
        self.remove(key);
    }

    fn remove(&mut self, key: PacketKey) {
        if let Some(incomplete) = self.incomplete.remove(&key) {
            self.by_age.remove(&incomplete.number);
            self.bytes -= incomplete.memory();
        }
    }
}

/// Writes a packet without options as fragments.
pub(super) fn write_fragments(
    packet: &[u8],
    mtu: u32,
    identification: u32,
    out: &mut Outbox,
) -> Option<()> {
    let headers = PacketHeaders::parse_ip(packet).ok()?;
    let (payload, is_v4) = (headers.payload(packet), packet.first()? >> 4 == 4);
    let head = if is_v4 { Ipv4Header::LEN } else { Ipv6Header::LEN + FragmentHeader::LEN };
    let piece_max =
        (mtu as usize).checked_sub(head).map(|space| space & !7).filter(|max| *max > 0)?;
    for (number, piece) in payload.chunks(piece_max).enumerate() {
        let at = number * piece_max;
        let fragment_offset = (at / 8) as u16;
        let more_fragments = at + piece.len() < payload.len();
        let buffer = out.push_fragment(head + piece.len());
        let space = if is_v4 {
            let header = Ipv4Header {
                identification: identification as u16,
                dont_fragment: false,
                more_fragments,
                fragment_offset,
                ..Ipv4Header::parse(packet.first_chunk()?)
            };
            header.write_packet(&[], piece.len(), buffer).ok()?
        } else {
            let fixed = Ipv6Header::parse(packet.first_chunk()?);
            let next_header = fixed.next_header;
            let header = Ipv6Header { next_header: IpProtocol::FRAGMENT, ..fixed };
            let space = header.write_packet(FragmentHeader::LEN + piece.len(), buffer).ok()?;
            let header =
                FragmentHeader { next_header, fragment_offset, more_fragments, identification };
            header.write(space).ok()?
        };
        space.copy_from_slice(piece);
    }
    Some(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::collection::vec;
    use proptest::prelude::*;

    fn packet(is_v4: bool, len: usize) -> Vec<u8> {
        let payload: Vec<u8> = (0..len).map(|at| (at * 7 + at / 256) as u8).collect();
        let protocol = IpProtocol::UDP;
        let header = match is_v4 {
            true => Header::V4(Ipv4Header {
                protocol,
                ttl: 64,
                dont_fragment: true,
                source: [10, 0, 0, 1].into(),
                destination: [10, 0, 0, 2].into(),
                ..Ipv4Header::default()
            }),
            false => Header::V6(Ipv6Header { next_header: protocol, ..Ipv6Header::default() }),
        };
        header.packet(len, std::iter::once(&payload[..])).expect("it fits")
    }

    fn fragments(packet: &[u8], mtu: u32, identification: u32) -> Vec<Vec<u8>> {
        let mut out = Outbox::new(1);
        write_fragments(packet, mtu, identification, &mut out).expect("it has no options");
        let mut buffer = super::super::outbox::Packet::default();
        let mut all = Vec::new();
        while out.pop(&mut buffer) {
            all.push(buffer.bytes().to_vec());
        }
        all
    }

    /// Whether the packets are the same, except for the don't-fragment bit.
    fn is_same(whole: &[u8], packet: &[u8]) -> bool {
        let is_v4 = packet[0] >> 4 == 4;
        whole[if is_v4 { 20 } else { 40 }..] == packet[if is_v4 { 20 } else { 40 }..]
            && whole.len() == packet.len()
            && whole[12..20] == packet[12..20]
            && PacketHeaders::parse_ip(whole).is_ok_and(|headers| headers.is_plain_transport())
    }

    proptest! {
        #[test]
        fn fragments_in_any_order_make_the_packet(
            is_v4: bool,
            len in 1..65_000_usize,
            mtu in 1280..4096_u32,
            seed: u64,
        ) {
            let packet = packet(is_v4, len);
            let mut all = fragments(&packet, mtu, 7);
            prop_assert!(all.iter().all(|one| one.len() <= mtu as usize));
            let mut rng = pollux_verbs::rng::SeededRng::new(seed);
            for index in (1..all.len()).rev() {
                all.swap(index, rng.below(index as u64 + 1) as usize);
            }
            let mut reassembly = Reassembly::default();
            let last = all.pop().expect("there is one");
            for one in &all {
                // Each fragment arrives twice.
                prop_assert_eq!(reassembly.add(Time::START, one), None);
                prop_assert_eq!(reassembly.add(Time::START, one), None);
            }
            let whole = reassembly.add(Time::START, &last).expect("it is complete");
            prop_assert!(is_same(&whole, &packet));
            prop_assert_eq!((reassembly.bytes, reassembly.by_age.len()), (0, 0));
            prop_assert_eq!(reassembly.given_up, 0);
        }

        #[test]
        fn any_fragments_are_handled_within_the_memory(
            is_v4: bool,
            all in vec((0..200_u16, any::<bool>(), 0..200_usize, 0..4_u32), 1..200),
        ) {
            let mut reassembly = Reassembly::default();
            for (at, more_fragments, len, identification) in all {
                let mut one = fragments(&packet(is_v4, len.max(1)), 4096, identification).remove(0);
                match is_v4 {
                    true => (one[6], one[7]) = (u8::from(more_fragments) << 5, at as u8),
                    false => {
                        let field = at << 3 | u16::from(more_fragments);
                        one[42..44].copy_from_slice(&field.to_be_bytes());
                    }
                }
                let _ = reassembly.add(Time::START, &one);
                let memory: usize = reassembly.incomplete.values().map(Incomplete::memory).sum();
                prop_assert_eq!(memory, reassembly.bytes);
                prop_assert_eq!(reassembly.by_age.len(), reassembly.incomplete.len());
            }
        }
    }

    #[test]
    fn overlapping_fragments_end_their_packet() {
        for is_v4 in [true, false] {
            let all = fragments(&packet(is_v4, 5000), 1280, 7);
            let others = fragments(&packet(is_v4, 5000), 1480, 7);
            let mut reassembly = Reassembly::default();
            assert_eq!(reassembly.add(Time::START, &all[1]), None);
            assert_eq!(reassembly.add(Time::START, &others[1]), None);
            assert_eq!((reassembly.given_up, reassembly.bytes), (1, 0));
            // A fragment beyond the end of the packet.
            let short = fragments(&packet(is_v4, 2000), 1280, 7);
            assert_eq!(reassembly.add(Time::START, &all[3]), None);
            assert_eq!(reassembly.add(Time::START, &short[1]), None);
            assert_eq!((reassembly.given_up, reassembly.bytes), (2, 0));
        }
    }

    #[test]
    fn an_incomplete_packet_is_given_up_in_time() {
        for (is_v4, timeout) in [(true, V4_TIMEOUT), (false, V6_TIMEOUT)] {
            let mut reassembly = Reassembly::default();
            let all = fragments(&packet(is_v4, 3000), 2044, 7);
            assert_eq!(reassembly.add(Time::START, &all[0]), None);
            let late = Time::START + timeout;
            assert_eq!(reassembly.add(late, &all[1]), None);
            assert_eq!(reassembly.given_up, 1);
            assert!(reassembly.add(late, &all[0]).is_some(), "both are there again");
            assert_eq!(reassembly.bytes, 0);
        }
    }

    #[test]
    fn the_oldest_packet_makes_space() {
        let mut reassembly = Reassembly::default();
        let firsts = (0..10_000).map(|number| fragments(&packet(true, 3000), 2044, number));
        for all in firsts {
            assert_eq!(reassembly.add(Time::START, &all[0]), None);
            assert!(reassembly.bytes <= BYTES_MAX);
        }
        let kept = BYTES_MAX / (2024 + PIECE_OVERHEAD);
        assert_eq!(reassembly.incomplete.len(), kept);
        assert_eq!(reassembly.given_up, (10_000 - kept) as u64);
        let newest = fragments(&packet(true, 3000), 2044, 9999);
        assert!(reassembly.add(Time::START, &newest[1]).is_some());
    }

    /// RFC 6946: an atomic fragment is a packet, independent of others with its identification.
    #[test]
    fn a_single_fragment_is_a_packet() {
        for is_v4 in [true, false] {
            let mut reassembly = Reassembly::default();
            let all = fragments(&packet(is_v4, 3000), 2044, 7);
            assert_eq!(reassembly.add(Time::START, &all[0]), None);
            let small = packet(is_v4, 100);
            let whole = reassembly.add(Time::START, &fragments(&small, 2044, 7)[0]);
            assert!(is_same(&whole.expect("it is one"), &small));
            assert!(reassembly.add(Time::START, &all[1]).is_some());
        }
    }
}
