//! A datagram in a ring of octets: its length and addresses, then its payload.
//!
//! It never leaves the process, so the layout is nobody else's business: 16 octets of an address,
//! its family, its port; the same address of the other end without a port; the length.

use pollux_mem::octets::{Reader, Writer};
use std::net::{IpAddr, Ipv6Addr, SocketAddr};

/// Octets before the payload.
pub(super) const HEAD_OCTETS: usize = 40;
/// The longest payload, and more.
pub(super) const PAYLOAD_MAX: usize = 1 << 16;

/// What stands before the payload.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Head {
    /// Octets of the payload.
    pub(super) len: usize,
    /// The other end.
    pub(super) peer: SocketAddr,
    /// Our address, or the group, that it came to.
    pub(super) to: IpAddr,
}

impl Head {
    fn to_octets(self) -> [u8; HEAD_OCTETS] {
        let mut octets = [0; HEAD_OCTETS];
        octets[..16].copy_from_slice(&address(self.peer.ip()));
        octets[16] = u8::from(self.peer.is_ipv6());
        octets[17] = u8::from(self.to.is_ipv6());
        octets[18..20].copy_from_slice(&self.peer.port().to_ne_bytes());
        octets[20..36].copy_from_slice(&address(self.to));
        octets[36..].copy_from_slice(&(self.len as u32).to_ne_bytes());
        octets
    }

    fn from_octets(octets: &[u8; HEAD_OCTETS]) -> Self {
        let part = |at: usize| *octets[at..].first_chunk().expect("it is within the head");
        let port = u16::from_ne_bytes([octets[18], octets[19]]);
        let len = u32::from_ne_bytes(*octets.last_chunk().expect("it is within the head"));
        Self {
            len: len as usize,
            peer: SocketAddr::new(ip(part(0), octets[16] != 0), port),
            to: ip(part(20), octets[17] != 0),
        }
    }

    /// Appends a datagram; says whether there was room.
    pub(super) fn write(self, ring: &mut Writer, payload: &[u8]) -> bool {
        debug_assert_eq!(self.len, payload.len());
        ring.write_whole(&[&self.to_octets(), payload])
    }

    /// The head of the datagram that is next.
    pub(super) fn peek(ring: &mut Reader) -> Option<Self> {
        let mut octets = [0; HEAD_OCTETS];
        ring.peek(0, &mut octets).then(|| Self::from_octets(&octets))
    }

    /// Takes the datagram that is next: as much of its payload as the buffer has room for.
    pub(super) fn read(ring: &mut Reader, buffer: &mut [u8]) -> Option<Self> {
        let head = Self::peek(ring)?;
        let len = head.len.min(buffer.len());
        let is_there = ring.peek(HEAD_OCTETS, &mut buffer[..len]);
        debug_assert!(is_there, "a datagram is written whole");
        ring.skip(HEAD_OCTETS + head.len);
        Some(head)
    }
}

fn address(ip: IpAddr) -> [u8; 16] {
    match ip {
        IpAddr::V4(ip) => ip.to_ipv6_mapped().octets(),
        IpAddr::V6(ip) => ip.octets(),
    }
}

fn ip(octets: [u8; 16], is_v6: bool) -> IpAddr {
    let ip = Ipv6Addr::from(octets);
    ip.to_ipv4_mapped().filter(|_| !is_v6).map_or(IpAddr::V6(ip), IpAddr::V4)
}

#[cfg(test)]
mod tests {
    use super::*;
    use pollux_mem::octets;

    #[test]
    fn datagrams_come_as_they_went() {
        let (mut writer, mut reader) = octets::ring(256).expect("a ring");
        let text = ["10.0.0.1:7", "[::1]:65535", "[::ffff:10.0.0.1]:1"];
        let ends = text.map(|text| text.parse::<SocketAddr>().expect("an address"));
        for round in 0..100 {
            let peer = ends[round % 3];
            let head = Head { len: round % 90, peer, to: ends[(round + 1) % 3].ip() };
            assert!(head.write(&mut writer, &vec![round as u8; head.len]));
            let mut buffer = [0; 50];
            assert_eq!(Head::peek(&mut reader), Some(head));
            assert_eq!(Head::read(&mut reader, &mut buffer), Some(head));
            assert!(buffer[..head.len.min(50)].iter().all(|octet| *octet == round as u8));
            assert_eq!(Head::read(&mut reader, &mut buffer), None);
        }
        let head = Head { len: 250, peer: ends[0], to: ends[0].ip() };
        assert!(!head.write(&mut writer, &[0; 250]));
        assert!(reader.is_empty());
    }
}
