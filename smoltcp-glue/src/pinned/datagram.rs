//! A datagram in a byte ring: a head with addresses and length, then the payload.
//!
//! A record never leaves the process, so numbers are in native byte order:
//!
//! | bytes | field |
//! |---|---|
//! | 0 to 15 | address of the peer, IPv4 mapped to IPv6 |
//! | 16, 17 | whether the address of the peer, and the destination, are IPv6 |
//! | 18, 19 | port of the peer |
//! | 20 to 35 | destination |
//! | 36 to 39 | length of the payload |

use crate::stack::UdpReceived;
use pollux_mem::byte_ring::{Reader, Writer};
use std::net::{IpAddr, Ipv6Addr, SocketAddr};

pub(super) const HEAD_BYTES: usize = 40;
/// An upper bound of the payload, in bytes.
pub(super) const PAYLOAD_MAX: usize = 1 << 16;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Head {
    /// Bytes of the payload.
    pub(super) len: usize,
    /// The sender of a received datagram, or the destination of one to send.
    pub(super) peer: SocketAddr,
    /// The destination address.
    pub(super) to: IpAddr,
}

impl Head {
    fn to_bytes(self) -> [u8; HEAD_BYTES] {
        let mut bytes = [0; HEAD_BYTES];
        bytes[..16].copy_from_slice(&address(self.peer.ip()));
        bytes[16] = u8::from(self.peer.is_ipv6());
        bytes[17] = u8::from(self.to.is_ipv6());
        bytes[18..20].copy_from_slice(&self.peer.port().to_ne_bytes());
        bytes[20..36].copy_from_slice(&address(self.to));
        bytes[36..].copy_from_slice(&(self.len as u32).to_ne_bytes());
        bytes
    }

    fn from_bytes(bytes: &[u8; HEAD_BYTES]) -> Self {
        let part = |at: usize| *bytes[at..].first_chunk().expect("it is within the head");
        let port = u16::from_ne_bytes([bytes[18], bytes[19]]);
        let len = u32::from_ne_bytes(*bytes.last_chunk().expect("it is within the head"));
        Self {
            len: len as usize,
            peer: SocketAddr::new(ip(part(0), bytes[16] != 0), port),
            to: ip(part(20), bytes[17] != 0),
        }
    }

    /// Appends a datagram; returns whether there was space.
    pub(super) fn write(self, ring: &mut Writer, payload: &[u8]) -> bool {
        debug_assert_eq!(self.len, payload.len());
        ring.write_whole(&[&self.to_bytes(), payload])
    }

    /// The head of the next datagram.
    pub(super) fn peek(ring: &mut Reader) -> Option<Self> {
        let mut bytes = [0; HEAD_BYTES];
        ring.peek(0, &mut bytes).then(|| Self::from_bytes(&bytes))
    }

    /// Copies the next datagram: as much of its payload as fits the buffer.
    pub(super) fn copy(ring: &mut Reader, buffer: &mut [u8]) -> Option<Self> {
        let head = Self::peek(ring)?;
        let len = head.len.min(buffer.len());
        let is_there = ring.peek(HEAD_BYTES, &mut buffer[..len]);
        debug_assert!(is_there, "a datagram is written at once");
        Some(head)
    }

    /// Takes the next datagram, as [`Self::copy`] does.
    pub(super) fn read(ring: &mut Reader, buffer: &mut [u8]) -> Option<Self> {
        let head = Self::copy(ring, buffer)?;
        ring.skip(HEAD_BYTES + head.len);
        Some(head)
    }

    /// The result of a receive call with a buffer of this length.
    pub(super) fn received(self, buffer_len: usize) -> UdpReceived {
        let (len, payload_len) = (self.len.min(buffer_len), self.len);
        UdpReceived { len, payload_len, from: self.peer, to: self.to }
    }
}

fn address(ip: IpAddr) -> [u8; 16] {
    match ip {
        IpAddr::V4(ip) => ip.to_ipv6_mapped().octets(),
        IpAddr::V6(ip) => ip.octets(),
    }
}

fn ip(bytes: [u8; 16], is_v6: bool) -> IpAddr {
    let ip = Ipv6Addr::from(bytes);
    ip.to_ipv4_mapped().filter(|_| !is_v6).map_or(IpAddr::V6(ip), IpAddr::V4)
}

#[cfg(test)]
mod tests {
    use super::*;
    use pollux_mem::byte_ring;

    #[test]
    fn datagrams_are_read_as_they_were_written() {
        let (mut writer, mut reader) = byte_ring::ring(256).expect("a ring");
        let text = ["10.0.0.1:7", "[::1]:65535", "[::ffff:10.0.0.1]:1"];
        let ends = text.map(|text| text.parse::<SocketAddr>().expect("an address"));
        for round in 0..100 {
            let peer = ends[round % 3];
            let head = Head { len: round % 90, peer, to: ends[(round + 1) % 3].ip() };
            assert!(head.write(&mut writer, &vec![round as u8; head.len]));
            let mut buffer = [0; 50];
            assert_eq!(Head::peek(&mut reader), Some(head));
            assert_eq!(Head::read(&mut reader, &mut buffer), Some(head));
            assert!(buffer[..head.len.min(50)].iter().all(|byte| *byte == round as u8));
            assert_eq!(Head::read(&mut reader, &mut buffer), None);
        }
        let head = Head { len: 250, peer: ends[0], to: ends[0].ip() };
        assert!(!head.write(&mut writer, &[0; 250]));
        assert!(reader.is_empty());
    }
}
