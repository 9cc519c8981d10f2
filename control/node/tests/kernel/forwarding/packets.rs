//! Packets for two routers, from a seed. Most have a twist: a field that is wrong, an address
//! without a host, an extension, a length beyond an MTU.
//!
//! Each packet has a number, by which its fragments and errors are recognized: the identification
//! of IPv4, or the flow label of IPv6. Each ICMP error quotes the part of the packet that has it.

use pollux_verbs::rng::SeededRng;
use pollux_wire::ip::checksum::Sum;
use std::net::{Ipv4Addr, Ipv6Addr};

/// The peculiarity of a packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Twist {
    /// TTL or hop limit of 0, 1 or 2.
    Hops,
    Checksum,
    /// A header length below the minimum, or beyond the packet.
    HeaderLength,
    /// A length of the packet below that of the header, or beyond the packet.
    Length,
    Padding,
    Version,
    Cut,
    FragmentFirst,
    FragmentLater,
    ReservedFlag,
    Big,
    DontFragment,
    Class,
    RecordRoute,
    Timestamp,
    SourceRoute,
    RouterAlert,
    OtherOption,
    BrokenOption,
    Source(&'static str),
    Destination(&'static str),
    IcmpError,
    IcmpQuery,
    IcmpUnknown,
    Discovery,
    Listener,
    /// Options for each hop that may be skipped.
    HopByHop,
    /// The same, whose first two bits ask a node that does not know them to drop the packet.
    HopByHopUnknown,
    HopByHopBroken,
    Jumbo,
    DestinationOptions,
    Routing,
    Security,
    NoNextHeader,
    BrokenChain,
    /// An IPv4 destination with a blackhole route.
    Blackhole,
    /// An IPv6 destination whose route has the type unreachable.
    Unreachable,
}

/// A packet, and what is peculiar about it.
#[derive(Clone, Debug)]
pub struct Case {
    pub id: u32,
    pub bytes: Vec<u8>,
    pub twists: Vec<Twist>,
}

/// So many packets.
pub fn cases(seed: u64, count: u32) -> Vec<Case> {
    let mut rng = SeededRng::new(seed);
    (1..=count)
        .map(|id| if rng.below(2) == 0 { v4(&mut rng, id) } else { v6(&mut rng, id) })
        .collect()
}

fn pick<T: Copy>(rng: &mut SeededRng, all: &[T]) -> T {
    all[rng.below(all.len() as u64) as usize]
}

fn bytes(rng: &mut SeededRng, count: usize) -> Vec<u8> {
    (0..count).map(|_| rng.next_u64() as u8).collect()
}

/// Lengths of payloads: short ones, around each MTU, and longer.
const PAYLOADS: [usize; 12] = [0, 1, 8, 20, 64, 300, 520, 600, 1000, 1190, 1200, 1230];
const BIG_PAYLOADS: [usize; 12] =
    [1231, 1240, 1241, 1260, 1261, 1440, 1441, 1480, 1481, 2000, 3000, 4000];

/// Destinations with a route, of whatever kind: two links, back, and the three that reject.
const TO_V4: [[u8; 4]; 12] = [
    [198, 18, 0, 1],
    [198, 18, 7, 9],
    [198, 18, 255, 255],
    [10, 1, 0, 77],
    [198, 19, 0, 1],
    [198, 19, 3, 3],
    [192, 0, 2, 200],
    [203, 0, 113, 1],
    [203, 0, 113, 70],
    [203, 0, 113, 130],
    [100, 64, 0, 1],
    [8, 8, 8, 8],
];
/// A host at the first link, beyond a router of it, or beyond no route.
///
/// Why there are many: the kernel limits errors about routes to some for each sender.
fn from_v4(rng: &mut SeededRng) -> [u8; 4] {
    let [third, fourth] = [1 + rng.below(250) as u8, 1 + rng.below(250) as u8];
    match rng.below(8) {
        0..3 => [10, 0, third, fourth],
        3..7 => [10, 128, third, fourth],
        _ => [172, 31, third, fourth],
    }
}
const NO_SOURCES_V4: [(&str, [u8; 4]); 13] = [
    ("0/32", [0, 0, 0, 0]),
    ("0/8", [0, 1, 2, 3]),
    ("127/8", [127, 0, 0, 1]),
    ("169.254/16", [169, 254, 7, 7]),
    ("224/4", [224, 0, 0, 5]),
    ("224/4", [239, 1, 1, 1]),
    ("240/4", [240, 0, 0, 1]),
    ("255/32", [255, 255, 255, 255]),
    ("own", [10, 0, 0, 1]),
    ("own", [10, 1, 0, 1]),
    ("broadcast", [10, 0, 255, 255]),
    ("broadcast", [10, 1, 0, 255]),
    ("other link", [10, 1, 0, 9]),
];
const NO_DESTINATIONS_V4: [(&str, [u8; 4]); 13] = [
    ("0/32", [0, 0, 0, 0]),
    ("0/8", [0, 1, 2, 3]),
    ("127/8", [127, 0, 0, 1]),
    ("169.254/16", [169, 254, 7, 7]),
    ("group", [224, 0, 0, 1]),
    ("group", [239, 1, 1, 1]),
    ("240/4", [240, 0, 0, 1]),
    ("255/32", [255, 255, 255, 255]),
    ("broadcast", [10, 1, 0, 255]),
    ("broadcast", [10, 0, 255, 255]),
    ("network", [10, 1, 0, 0]),
    ("network", [10, 0, 0, 0]),
    ("first link", [10, 0, 0, 9]),
];

/// A packet of IPv4 before it is written.
struct V4 {
    version: u8,
    header_words: Option<u8>,
    class: u8,
    total: Option<u16>,
    id: u16,
    flags: u16,
    ttl: u8,
    protocol: u8,
    source: [u8; 4],
    destination: [u8; 4],
    options: Vec<u8>,
    payload: Vec<u8>,
    padding: usize,
    is_sum_wrong: bool,
}

impl V4 {
    fn write(&self) -> Vec<u8> {
        let mut options = self.options.clone();
        options.resize(options.len().next_multiple_of(4), 0);
        let words = self.header_words.unwrap_or(5 + (options.len() / 4) as u8);
        let total = 20 + options.len() + self.payload.len();
        let total = self.total.unwrap_or(total as u16);
        let mut header = vec![self.version << 4 | words & 15, self.class];
        header.extend(total.to_be_bytes());
        header.extend(self.id.to_be_bytes());
        header.extend(self.flags.to_be_bytes());
        header.extend([self.ttl, self.protocol, 0, 0]);
        header.extend(self.source);
        header.extend(self.destination);
        header.extend(options);
        let mut all = header;
        let summed = usize::from(words & 15) * 4;
        all.extend(&self.payload);
        let sum = Sum::of(&all[..summed.clamp(20, all.len())]).checksum();
        let sum = if self.is_sum_wrong { sum ^ 0x0101 } else { sum };
        all[10..12].copy_from_slice(&sum.to_be_bytes());
        all.resize(all.len() + self.padding, 0xee);
        all
    }
}

/// Options of IPv4 with what they are.
const OPTIONS_V4: [(Twist, &[u8]); 23] = [
    (Twist::OtherOption, &[1, 1, 1, 1]),
    (Twist::OtherOption, &[0, 0, 0, 0]),
    (Twist::OtherOption, &[130, 11, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1]),
    (Twist::OtherOption, &[94, 4, 7, 7, 222, 4, 8, 8]),
    (Twist::RecordRoute, &[7, 11, 4, 0, 0, 0, 0, 0, 0, 0, 0, 0]),
    (Twist::RecordRoute, &[7, 7, 8, 10, 9, 9, 9, 0]),
    (Twist::Timestamp, &[68, 12, 5, 0, 0, 0, 0, 0, 0, 0, 0, 0]),
    (Twist::Timestamp, &[68, 8, 9, 0, 1, 2, 3, 4]),
    (Twist::SourceRoute, &[131, 7, 4, 198, 18, 0, 9, 0]),
    (Twist::SourceRoute, &[131, 7, 8, 198, 18, 0, 9, 0]),
    (Twist::SourceRoute, &[137, 7, 4, 198, 18, 0, 9, 0]),
    (Twist::RouterAlert, &[148, 4, 0, 0]),
    (Twist::BrokenOption, &[130, 0, 0, 0]),
    (Twist::BrokenOption, &[130, 1, 0, 0]),
    (Twist::BrokenOption, &[1, 1, 94, 9]),
    (Twist::BrokenOption, &[1, 1, 1, 94]),
    (Twist::BrokenOption, &[7, 2, 4, 0]),
    (Twist::BrokenOption, &[7, 7, 3, 0, 0, 0, 0, 0]),
    (Twist::BrokenOption, &[7, 7, 4, 0, 0, 0, 0, 7, 7, 4, 0, 0]),
    (Twist::BrokenOption, &[7, 7, 6, 0, 0, 0, 0, 0]),
    (Twist::BrokenOption, &[68, 3, 5, 0]),
    (Twist::BrokenOption, &[68, 8, 4, 0, 0, 0, 0, 0]),
    (Twist::BrokenOption, &[148, 3, 0, 0]),
];

fn v4(rng: &mut SeededRng, id: u32) -> Case {
    let payload = pick(rng, &PAYLOADS);
    let mut packet = V4 {
        version: 4,
        header_words: None,
        class: 0,
        total: None,
        id: id as u16,
        flags: 0,
        ttl: pick(rng, &[3, 64, 255]),
        protocol: pick(rng, &[17, 17, 6, 47, 132, 253]),
        source: from_v4(rng),
        destination: pick(rng, &TO_V4),
        options: Vec::new(),
        payload: bytes(rng, payload),
        padding: 0,
        is_sum_wrong: false,
    };
    let mut twists = Vec::new();
    for _ in 0..rng.below(3) {
        let twist = twist_v4(rng, &mut packet);
        note(&mut twists, twist);
    }
    if packet.destination == [203, 0, 113, 1] {
        twists.push(Twist::Blackhole);
    }
    let mut bytes = packet.write();
    note(&mut twists, (bytes.len() > 1280).then_some(Twist::Big));
    if rng.below(60) == 0 {
        twists.push(Twist::Cut);
        bytes.truncate(rng.below(40) as usize);
    }
    Case { id, bytes, twists }
}

/// Adds a twist. A second address replaces the first.
fn note(twists: &mut Vec<Twist>, twist: Option<Twist>) {
    let Some(twist) = twist else { return };
    twists.retain(|before| match (before, twist) {
        (Twist::Source(_), Twist::Source(_)) | (Twist::Destination(_), Twist::Destination(_)) => {
            false
        }
        (before, twist) => *before != twist,
    });
    twists.push(twist);
}

/// Gives a packet one peculiarity.
fn twist_v4(rng: &mut SeededRng, packet: &mut V4) -> Option<Twist> {
    Some(match rng.below(24) {
        0 | 1 => {
            packet.ttl = rng.below(3) as u8;
            Twist::Hops
        }
        2 => {
            packet.is_sum_wrong = true;
            Twist::Checksum
        }
        3..=5 => lengths_v4(rng, packet),
        6 if rng.below(4) == 0 => {
            packet.version = 6;
            Twist::Version
        }
        6 | 7 => {
            packet.flags |= 0x2000;
            Twist::FragmentFirst
        }
        8 => {
            packet.flags |= pick(rng, &[0x0001, 0x2001, 0x00b9, 0x20b9, 0x1000]);
            Twist::FragmentLater
        }
        9 => {
            packet.flags |= 0x8000;
            Twist::ReservedFlag
        }
        10..=12 => {
            let payload = pick(rng, &BIG_PAYLOADS);
            let more = payload.saturating_sub(packet.payload.len());
            packet.payload.extend(bytes(rng, more));
            Twist::Big
        }
        13 => {
            packet.flags |= 0x4000;
            Twist::DontFragment
        }
        14 => {
            packet.class = pick(rng, &[0x02, 0x10, 0x1e, 0xb8, 0xc0, 0xff]);
            Twist::Class
        }
        15..=17 => {
            let (twist, options) = pick(rng, &OPTIONS_V4);
            packet.options = options.to_vec();
            twist
        }
        18 | 19 => {
            let (name, address) = pick(rng, &NO_SOURCES_V4);
            packet.source = address;
            if name == "other link" {
                packet.source[3] = 2 + rng.below(250) as u8;
            }
            Twist::Source(name)
        }
        20 | 21 => {
            let (name, address) = pick(rng, &NO_DESTINATIONS_V4);
            packet.destination = address;
            Twist::Destination(name)
        }
        _ => icmp_v4(rng, packet),
    })
}

fn lengths_v4(rng: &mut SeededRng, packet: &mut V4) -> Twist {
    let whole = (20 + packet.options.len() + packet.payload.len()) as u16;
    match rng.below(3) {
        0 => {
            packet.header_words = Some(pick(rng, &[0, 1, 4, 6, 8, 15]));
            Twist::HeaderLength
        }
        1 => {
            packet.total = Some(pick(rng, &[0, 10, 19, 20, whole + 1, whole + 100, 65_535]));
            Twist::Length
        }
        _ => {
            packet.padding = rng.below(50) as usize;
            Twist::Padding
        }
    }
}

fn icmp_v4(rng: &mut SeededRng, packet: &mut V4) -> Twist {
    let (twist, kind) = pick(
        rng,
        &[
            (Twist::IcmpQuery, 8),
            (Twist::IcmpQuery, 0),
            (Twist::IcmpQuery, 13),
            (Twist::IcmpQuery, 14),
            (Twist::IcmpQuery, 17),
            (Twist::IcmpQuery, 18),
            (Twist::IcmpQuery, 15),
            (Twist::IcmpError, 3),
            (Twist::IcmpError, 4),
            (Twist::IcmpError, 5),
            (Twist::IcmpError, 11),
            (Twist::IcmpError, 12),
            (Twist::IcmpUnknown, 1),
            (Twist::IcmpUnknown, 44),
            (Twist::IcmpUnknown, 200),
        ],
    );
    packet.protocol = 1;
    if let Some(first) = packet.payload.first_mut() {
        *first = kind;
    }
    twist
}

fn six(text: &str) -> Ipv6Addr {
    text.parse().expect("an address")
}

const TO_V6: [&str; 13] = [
    "2001:db8:b::1",
    "2001:db8:b:7::9",
    "2001:db8:b::2",
    "fd00:b::77",
    "2001:db8:c::1",
    "2001:db8:c:3::3",
    "2001:db8:a::200",
    "2001:db8:bad:1::1",
    "2001:db8:bad:2::1",
    "2001:db8:bad:3::1",
    "2001:db8:ffff::1",
    "2600::1",
    "64:ff9b::1",
];
const FROM_V6: [&str; 6] = [
    "fd00:a::50",
    "fd00:a::51",
    "2001:db8:a::7",
    "2001:db8:a::8",
    "2001:db8:a::9",
    "2001:db8:dead::1",
];
const NO_SOURCES_V6: [(&str, &str); 14] = [
    ("::", "::"),
    ("::", "::"),
    ("::", "::"),
    ("::1", "::1"),
    ("link-local", "fe80::7"),
    ("link-local", "febf::7"),
    ("mapped", "::ffff:10.0.0.50"),
    ("compatible", "::10.0.0.50"),
    ("group", "ff02::1"),
    ("group", "ff0e::7"),
    ("own", "fd00:a::1"),
    ("own", "fd00:b::1"),
    ("other link", "fd00:b::9"),
    ("site-local", "fec0::7"),
];
const NO_DESTINATIONS_V6: [(&str, &str); 13] = [
    ("::", "::"),
    ("::1", "::1"),
    ("link-local", "fe80::7"),
    ("mapped", "::ffff:198.18.0.1"),
    ("compatible", "::198.18.0.1"),
    ("group", "ff02::1"),
    ("group", "ff0e::7"),
    ("group", "ff01::1"),
    ("group", "ff00::1"),
    ("site-local", "fec0::7"),
    ("anycast", "fd00:b::"),
    ("anycast", "fd00:a::"),
    ("first link", "fd00:a::9"),
];

/// A packet of IPv6 before it is written.
struct V6 {
    version: u8,
    class: u8,
    label: u32,
    length: Option<u16>,
    next_header: u8,
    hop_limit: u8,
    source: Ipv6Addr,
    destination: Ipv6Addr,
    payload: Vec<u8>,
    padding: usize,
}

impl V6 {
    fn write(&self) -> Vec<u8> {
        let word = u32::from(self.version) << 28 | u32::from(self.class) << 20 | self.label;
        let mut all = word.to_be_bytes().to_vec();
        all.extend(self.length.unwrap_or(self.payload.len() as u16).to_be_bytes());
        all.extend([self.next_header, self.hop_limit]);
        all.extend(self.source.octets());
        all.extend(self.destination.octets());
        all.extend(&self.payload);
        all.resize(all.len() + self.padding, 0xee);
        all
    }

    /// Puts an extension header before the payload: its first byte will be the next header.
    fn extend(&mut self, kind: u8, header: &[u8]) {
        let mut all = header.to_vec();
        all[0] = self.next_header;
        all.append(&mut self.payload);
        (self.next_header, self.payload) = (kind, all);
    }
}

fn v6(rng: &mut SeededRng, id: u32) -> Case {
    let payload = pick(rng, &PAYLOADS);
    let mut packet = V6 {
        version: 6,
        class: 0,
        label: id,
        length: None,
        next_header: pick(rng, &[17, 17, 6, 47, 132, 253]),
        hop_limit: pick(rng, &[3, 64, 255]),
        source: six(pick(rng, &FROM_V6)),
        destination: six(pick(rng, &TO_V6)),
        payload: bytes(rng, payload),
        padding: 0,
    };
    let mut twists = Vec::new();
    for _ in 0..rng.below(3) {
        let twist = twist_v6(rng, &mut packet);
        note(&mut twists, twist);
    }
    match (packet.next_header, packet.length) {
        (0, Some(0)) => note(&mut twists, Some(Twist::Jumbo)),
        (0, Some(..8)) => note(&mut twists, Some(Twist::HopByHopBroken)),
        _ => {}
    }
    if packet.destination == six("2001:db8:bad:2::1") {
        twists.push(Twist::Unreachable);
    }
    let mut bytes = packet.write();
    note(&mut twists, (bytes.len() > 1280).then_some(Twist::Big));
    if rng.below(60) == 0 {
        twists.push(Twist::Cut);
        bytes.truncate(rng.below(60) as usize);
    }
    Case { id, bytes, twists }
}

/// Gives a packet one peculiarity.
fn twist_v6(rng: &mut SeededRng, packet: &mut V6) -> Option<Twist> {
    Some(match rng.below(20) {
        0 | 1 => {
            packet.hop_limit = rng.below(3) as u8;
            Twist::Hops
        }
        2 => {
            let whole = packet.payload.len() as u16;
            packet.length = Some(pick(rng, &[0, whole / 2, whole + 1, whole + 100, 65_535]));
            Twist::Length
        }
        3 => {
            packet.padding = rng.below(50) as usize;
            Twist::Padding
        }
        4 if rng.below(4) == 0 => {
            packet.version = 4;
            Twist::Version
        }
        4..=6 => {
            let payload = pick(rng, &BIG_PAYLOADS);
            let more = payload.saturating_sub(packet.payload.len());
            packet.payload.extend(bytes(rng, more));
            Twist::Big
        }
        7 => {
            packet.class = pick(rng, &[0x02, 0x10, 0xb8, 0xc0, 0xff]);
            Twist::Class
        }
        8 | 9 => {
            let (name, address) = pick(rng, &NO_SOURCES_V6);
            packet.source = six(address);
            Twist::Source(name)
        }
        10 | 11 => {
            let (name, address) = pick(rng, &NO_DESTINATIONS_V6);
            packet.destination = six(address);
            Twist::Destination(name)
        }
        12..=14 => icmp_v6(rng, packet)?,
        _ => {
            let (twist, kind, header) = pick(rng, &EXTENSIONS);
            packet.extend(kind, header);
            twist
        }
    })
}

/// Extension headers: their numbers and bytes.
const EXTENSIONS: [(Twist, u8, &[u8]); 22] = [
    (Twist::HopByHop, 0, &[0, 0, 1, 4, 0, 0, 0, 0]),
    (Twist::HopByHop, 0, &[0, 0, 0, 0, 0, 0, 0, 0]),
    (Twist::HopByHop, 0, &[0, 0, 0x1e, 4, 7, 7, 7, 7]),
    (Twist::RouterAlert, 0, &[0, 0, 5, 2, 0, 0, 1, 0]),
    (Twist::HopByHopUnknown, 0, &[0, 0, 0x5e, 4, 7, 7, 7, 7]),
    (Twist::HopByHopUnknown, 0, &[0, 0, 0x9e, 4, 7, 7, 7, 7]),
    (Twist::HopByHopUnknown, 0, &[0, 0, 0xde, 4, 7, 7, 7, 7]),
    (Twist::HopByHopBroken, 0, &[0, 0, 1, 9, 0, 0, 0, 0]),
    (Twist::HopByHopBroken, 0, &[0, 200, 1, 4, 0, 0, 0, 0]),
    (Twist::Jumbo, 0, &[0, 0, 0xc2, 4, 0, 1, 0, 0]),
    (Twist::DestinationOptions, 60, &[0, 0, 1, 4, 0, 0, 0, 0]),
    (Twist::DestinationOptions, 60, &[0, 0, 0xde, 4, 7, 7, 7, 7]),
    (Twist::Routing, 43, &[0, 0, 0, 0, 0, 0, 0, 0]),
    (Twist::Routing, 43, &[0, 0, 99, 1, 0, 0, 0, 0]),
    (Twist::FragmentFirst, 44, &[0, 0, 0, 1, 0, 0, 0, 7]),
    (Twist::FragmentLater, 44, &[0, 0, 0, 9, 0, 0, 0, 7]),
    (Twist::FragmentLater, 44, &[0, 0, 0, 0x40, 0, 0, 0, 7]),
    (Twist::Security, 50, &[0, 1, 2, 3, 0, 0, 0, 1, 9, 9]),
    (Twist::Security, 51, &[0, 1, 0, 0, 0, 0, 0, 1, 0, 0, 0, 1]),
    (Twist::NoNextHeader, 59, &[0, 0, 0, 0]),
    (Twist::BrokenChain, 60, &[0, 250, 1, 4, 0, 0, 0, 0]),
    (Twist::BrokenChain, 43, &[0, 255, 0, 0]),
];

/// Makes an upper layer one of ICMPv6, in a packet that has no extensions yet.
fn icmp_v6(rng: &mut SeededRng, packet: &mut V6) -> Option<Twist> {
    if ![17, 6, 47, 132, 253].contains(&packet.next_header) {
        return None;
    }
    let (twist, kind) = pick(
        rng,
        &[
            (Twist::IcmpQuery, 128),
            (Twist::IcmpQuery, 129),
            (Twist::IcmpQuery, 139),
            (Twist::IcmpError, 1),
            (Twist::IcmpError, 2),
            (Twist::IcmpError, 3),
            (Twist::IcmpError, 4),
            (Twist::IcmpError, 100),
            (Twist::IcmpUnknown, 200),
            (Twist::Discovery, 133),
            (Twist::Discovery, 134),
            (Twist::Discovery, 135),
            (Twist::Discovery, 136),
            (Twist::Discovery, 137),
            (Twist::Listener, 130),
            (Twist::Listener, 143),
        ],
    );
    packet.next_header = 58;
    if let Some(first) = packet.payload.first_mut() {
        *first = kind;
    }
    Some(twist)
}

/// Where the sender of a marker is.
#[derive(Clone, Copy, Debug)]
pub enum Sender {
    AtA,
    AtB,
}

/// A long packet of IPv4, of which the routers are known to make something: what they make of
/// packets before it is there by then.
pub fn marker(
    id: u16,
    sender: Sender,
    destination: Ipv4Addr,
    ttl: u8,
    may_fragment: bool,
) -> Vec<u8> {
    let source = match sender {
        Sender::AtA => [10, 0, 0, 50],
        Sender::AtB => [10, 1, 0, 9],
    };
    let packet = V4 {
        version: 4,
        header_words: None,
        class: 0,
        total: None,
        id,
        flags: if may_fragment { 0 } else { 0x4000 },
        ttl,
        protocol: 17,
        source,
        destination: destination.octets(),
        options: Vec::new(),
        payload: vec![7; 2000],
        padding: 0,
        is_sum_wrong: false,
    };
    packet.write()
}
