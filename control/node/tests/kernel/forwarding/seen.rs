//! The output of a router, so that two can be compared: packets in transit by all of their bytes,
//! and ICMP errors by their fields.

use super::routers::LinkNumber;
use pollux_wire::ip::checksum::Sum;
use std::fmt;

/// Addresses of the routers.
const OWN_V4: [[u8; 4]; 3] = [[10, 0, 0, 1], [10, 1, 0, 1], [10, 2, 0, 1]];

/// A packet that left a router.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Seen {
    /// One in transit, or a fragment of it.
    Packet { link: LinkNumber, bytes: Vec<u8> },
    /// An error.
    Error(SeenError),
}

/// An ICMP error of a router. The identification of IPv4, which is free, is not part of it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SeenError {
    pub link: LinkNumber,
    pub source: Vec<u8>,
    pub destination: Vec<u8>,
    pub class: u8,
    pub hops: u8,
    /// Of IPv4.
    pub options: Vec<u8>,
    pub kind: u8,
    pub code: u8,
    /// The fields after the checksum: an MTU, a pointer, or nothing.
    pub word: u32,
    pub quoted: Vec<u8>,
    pub is_sum_right: bool,
}

/// The fate of a packet.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PacketFate(pub Vec<Seen>);

impl fmt::Display for PacketFate {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.0[..] {
            [] => f.write_str("dropped"),
            [Seen::Packet { link, .. }] => write!(f, "sent to {}", name(*link)),
            [Seen::Error(error)] => write!(f, "error {}/{}", error.kind, error.code),
            [Seen::Packet { link, .. }, ..] => write!(f, "fragments to {}", name(*link)),
            _ => f.write_str("several"),
        }
    }
}

const fn name(link: LinkNumber) -> &'static str {
    ["a", "b", "c"][link]
}

impl PacketFate {
    /// The differences between two of the same kind.
    pub fn difference(&self, other: &Self) -> &'static str {
        let (Self(one), Self(two)) = (self, other);
        if one == two {
            return "";
        }
        match (&one[..], &two[..]) {
            ([Seen::Error(one)], [Seen::Error(two)]) => one.difference(two),
            _ if one.len() != two.len() => "count",
            _ => "bytes",
        }
    }
}

impl SeenError {
    fn difference(&self, other: &Self) -> &'static str {
        if self.options != other.options {
            "options"
        } else if self.quoted.len() != other.quoted.len() {
            "length of the quoted packet"
        } else if without_hops(&self.quoted) != without_hops(&other.quoted) {
            "quoted packet"
        } else if self.quoted != other.quoted {
            "hops of the quoted packet"
        } else if self.word != other.word {
            "MTU or pointer"
        } else if (self.source.as_slice(), &self.destination) != (&other.source, &other.destination)
        {
            "addresses"
        } else if self.class != other.class {
            "class"
        } else {
            "other"
        }
    }
}

/// A packet without what each router changes.
fn without_hops(packet: &[u8]) -> Vec<u8> {
    let mut packet = packet.to_vec();
    let is_v4 = packet.first().is_some_and(|first| first >> 4 == 4);
    let changed: &[usize] = if is_v4 { &[8, 10, 11] } else { &[7] };
    changed.iter().for_each(|at| packet.get_mut(*at).into_iter().for_each(|byte| *byte = 0));
    packet
}

/// Reads what left a router.
pub fn seen(link: LinkNumber, bytes: &[u8]) -> Seen {
    match error_v4(link, bytes).or_else(|| error_v6(link, bytes)) {
        Some(error) => Seen::Error(error),
        None => Seen::Packet { link, bytes: bytes.to_vec() },
    }
}

fn error_v4(link: LinkNumber, bytes: &[u8]) -> Option<SeenError> {
    let is_own = bytes.len() >= 28 && OWN_V4.iter().any(|own| *own == bytes[12..16]);
    let (header, message) = bytes.split_at_checked(usize::from(bytes.first()? & 15) * 4)?;
    let is_error = is_own && bytes[0] >> 4 == 4 && bytes[9] == 1 && message.len() >= 8;
    (is_error && [3, 5, 11, 12].contains(&message[0])).then(|| SeenError {
        link,
        source: bytes[12..16].to_vec(),
        destination: bytes[16..20].to_vec(),
        class: bytes[1],
        hops: bytes[8],
        options: header[20..].to_vec(),
        kind: message[0],
        code: message[1],
        word: u32::from_be_bytes([message[4], message[5], message[6], message[7]]),
        quoted: message[8..].to_vec(),
        is_sum_right: Sum::of(header).is_ok() && Sum::of(message).is_ok(),
    })
}

fn error_v6(link: LinkNumber, bytes: &[u8]) -> Option<SeenError> {
    let own = [0xa, 0xb, 0xc].map(|link| {
        let mut own = [0; 16];
        (own[0], own[3], own[15]) = (0xfd, link, 1);
        own
    });
    let is_own = bytes.len() >= 48 && own.iter().any(|own| *own == bytes[8..24]);
    let is_error =
        is_own && bytes[0] >> 4 == 6 && bytes[6] == 58 && (bytes[40] < 128 || bytes[40] == 137);
    is_error.then(|| {
        let pseudo =
            [&bytes[8..40], &(bytes.len() as u32 - 40).to_be_bytes(), &[0, 0, 0, 58]].concat();
        SeenError {
            link,
            source: bytes[8..24].to_vec(),
            destination: bytes[24..40].to_vec(),
            class: bytes[0] << 4 | bytes[1] >> 4,
            hops: bytes[7],
            options: Vec::new(),
            kind: bytes[40],
            code: bytes[41],
            word: u32::from_be_bytes([bytes[44], bytes[45], bytes[46], bytes[47]]),
            quoted: bytes[48..].to_vec(),
            is_sum_right: Sum::of(&pseudo).then(Sum::of(&bytes[40..])).is_ok(),
        }
    })
}

/// The number of the packet of which this is, or of that which an error quotes.
pub fn number(bytes: &[u8]) -> Option<u32> {
    match seen(0, bytes) {
        Seen::Error(error) => own_number(&error.quoted),
        Seen::Packet { .. } => own_number(bytes),
    }
}

fn own_number(bytes: &[u8]) -> Option<u32> {
    match bytes.first()? >> 4 {
        4 => Some(u16::from_be_bytes(bytes.get(4..6)?.try_into().ok()?).into()),
        _ => {
            let word = u32::from_be_bytes(bytes.get(..4)?.try_into().ok()?);
            Some(word & 0xf_ffff)
        }
    }
}
