//! Packets that are longer than their way takes (RFC 4755 7.2).
//!
//! A way's length is its destination's own: what a connection takes, or what a datagram has room
//! for along the path to that port. A packet that is too long waits if a wider way is being made.
//! Else it goes in parts, if it is one of IPv4 that may (RFC 791 2.3), and otherwise its sender is
//! told how much would fit: a socket here, or a host for which somebody forwards.

use super::{Adjacency, Interface, InterfaceDrop, PendingPacket};
use crate::icmp::IcmpError;
use pollux_verbs::time::Time;
use pollux_wire::ip::ipv4::{Ipv4Header, Ipv4Packet};

/// Bytes that a fragment's place is counted in.
const UNIT: usize = 8;

impl Interface {
    /// A packet was longer than its way takes.
    pub(super) fn too_big(&mut self, now: Time, packet: &[u8], mtu: u32) {
        let next_hop = super::resolution::destination(packet)
            .and_then(|destination| self.next_hop(now, destination));
        let link = next_hop.and_then(|hop| self.neighbors.address(hop.ip()));
        let key = link.and_then(|link| self.peers.find(&link));
        if let Some((link, key)) = link.zip(key) {
            let has_grown = match self.peers.all.get(&key).map(|peer| peer.adjacency()) {
                Some(Adjacency::Connected { mtu, .. }) => packet.len() <= mtu as usize,
                _ => self.is_connecting(now, key),
            };
            if has_grown {
                return self.send_to_peer(now, &link, PendingPacket::of(packet.to_vec()));
            }
        }
        for part in self.fit(now, packet.to_vec(), mtu) {
            self.route(now, PendingPacket::of(part));
        }
    }

    /// What is sent of a packet where `mtu` bytes fit: itself, its parts, or nothing, of which its
    /// sender is told.
    pub(super) fn fit(&mut self, now: Time, packet: Vec<u8>, mtu: u32) -> Vec<Vec<u8>> {
        if packet.len() <= mtu as usize {
            return vec![packet];
        }
        let parts = parts(&packet, mtu as usize, self.part_id);
        self.part_id = self.part_id.wrapping_add(1);
        parts.unwrap_or_else(|| {
            self.drops.count(InterfaceDrop::TooBig);
            self.send_icmp_error(now, &packet, IcmpError::TooBig(mtu));
            Vec::new()
        })
    }
}

/// The parts of a packet, if there may be any. One that was to go whole has perhaps no
/// identification that tells its parts from another's; it gets `id` then.
fn parts(bytes: &[u8], mtu: usize, id: u16) -> Option<Vec<Vec<u8>>> {
    let packet = Ipv4Packet::parse(bytes).ok()?;
    let header = packet.header();
    // Which options go with every part is their own affair, and nobody sends any.
    let has_options = header.header_len() != Ipv4Header::LEN;
    let room = mtu.checked_sub(Ipv4Header::LEN)? / UNIT * UNIT;
    if header.dont_fragment || has_options || room == 0 {
        return None;
    }
    let has_id = header.identification != 0 || header.is_fragment();
    let identification = if has_id { header.identification } else { id };
    let count = packet.payload().len().div_ceil(room);
    let part = |(nth, payload): (usize, &[u8])| {
        let offset = usize::from(header.fragment_offset) + nth * room / UNIT;
        let header = Ipv4Header {
            identification,
            more_fragments: header.more_fragments || nth + 1 < count,
            fragment_offset: u16::try_from(offset).ok()?,
            ..header
        };
        let mut part = vec![0; Ipv4Header::LEN + payload.len()];
        header.write_packet(&[], payload.len(), &mut part).ok()?.copy_from_slice(payload);
        Some(part)
    };
    packet.payload().chunks(room).enumerate().map(part).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use pollux_wire::ip::IpProtocol;
    use proptest::prelude::*;

    fn packet(header: Ipv4Header, payload: &[u8]) -> Vec<u8> {
        let mut packet = vec![0; Ipv4Header::LEN + payload.len()];
        header.write_packet(&[], payload.len(), &mut packet).unwrap().copy_from_slice(payload);
        packet
    }

    fn header(identification: u16) -> Ipv4Header {
        Ipv4Header { identification, ttl: 9, protocol: IpProtocol::UDP, ..Ipv4Header::default() }
    }

    /// The payload that parts make, if each is well.
    fn joined(parts: &[Vec<u8>], header: &Ipv4Header) -> Vec<u8> {
        let mut payload = Vec::new();
        for (nth, bytes) in parts.iter().enumerate() {
            let part = Ipv4Packet::parse(bytes).unwrap();
            let own = part.header();
            assert!(part.checksum_ok() && own.identification == header.identification);
            assert_eq!((own.ttl, own.protocol), (header.ttl, header.protocol));
            assert_eq!(usize::from(own.fragment_offset) * UNIT, payload.len());
            assert_eq!(own.more_fragments, nth + 1 < parts.len());
            payload.extend_from_slice(part.payload());
        }
        payload
    }

    proptest! {
        /// Also where parts are parted again on a narrower link.
        #[test]
        fn parts_make_the_whole(
            len in 0usize..20_000, mtu in 28usize..3000, narrow in 28usize..600,
        ) {
            let payload: Vec<u8> = (0..len).map(|at| at as u8).collect();
            let whole = packet(header(7), &payload);
            let once = parts(&whole, mtu, 1).unwrap();
            prop_assert!(once.iter().all(|part| part.len() <= mtu));
            prop_assert_eq!(&joined(&once, &header(7)), &payload);
            let twice: Vec<_> =
                once.iter().flat_map(|part| parts(part, narrow, 1).unwrap()).collect();
            prop_assert!(twice.iter().all(|part| part.len() <= narrow));
            prop_assert_eq!(&joined(&twice, &header(7)), &payload);
        }

        #[test]
        fn any_bytes_are_survived(bytes in prop::collection::vec(any::<u8>(), 0..100), mtu: u16) {
            let _parts = parts(&bytes, mtu.into(), 1);
        }
    }

    #[test]
    fn what_must_not_be_parted_is_not() {
        let whole = Ipv4Header { dont_fragment: true, ..header(7) };
        assert_eq!(parts(&packet(whole, &[1; 100]), 60, 1), None);
        assert_eq!(parts(&[0x60; 100], 60, 1), None, "only IPv4");
        assert_eq!(parts(&packet(header(7), &[1; 100]), 27, 1), None, "no room for any payload");
        let unnamed = parts(&packet(header(0), &[1; 100]), 60, 9).unwrap();
        assert_eq!(joined(&unnamed, &header(9)), [1; 100], "parts need a name");
    }
}
