//! Fragments of an IPv4 packet that is longer than an MTU (RFC 791 2.3).

use pollux_wire::ip::checksum::Sum;
use pollux_wire::ip::ipv4::{Ipv4Header, Ipv4OptionKind, Ipv4Packet};

/// Bytes per unit of the fragment offset.
const UNIT: usize = 8;

/// The fragments of a packet. `None` if the packet is malformed or forbids fragmentation, or if
/// `mtu` has no space for payload. Identification 0 is replaced by `id`, except in a fragment.
pub(crate) fn fragments(bytes: &[u8], mtu: usize, id: u16) -> Option<Vec<Vec<u8>>> {
    let packet = Ipv4Packet::parse(bytes).ok()?;
    let header = packet.header();
    let options = bytes.get(Ipv4Header::LEN..header.header_len())?;
    let payload_max = mtu.checked_sub(header.header_len())? / UNIT * UNIT;
    if header.dont_fragment || payload_max == 0 {
        return None;
    }
    let has_id = header.identification != 0 || header.is_fragment();
    let identification = if has_id { header.identification } else { id };
    let later_options = options_of_later_fragments(options);
    let count = packet.payload().len().div_ceil(payload_max);
    let fragment = |(nth, payload): (usize, &[u8])| {
        let offset = usize::from(header.fragment_offset) + nth * payload_max / UNIT;
        let options = if offset == 0 { options } else { &later_options };
        let own = Ipv4Header {
            identification,
            more_fragments: header.more_fragments || nth + 1 < count,
            fragment_offset: u16::try_from(offset).ok()?,
            total_length: u16::try_from(header.header_len() + payload.len()).ok()?,
            header_checksum: 0,
            ..header
        };
        let sum = Sum::of(&own.emit()).then(Sum::of(options));
        let own = Ipv4Header { header_checksum: sum.checksum(), ..own };
        Some([&own.emit()[..], options, payload].concat())
    };
    packet.payload().chunks(payload_max).enumerate().map(fragment).collect()
}

/// The options of all fragments except the first: options without the copied flag are replaced by
/// no-operation (RFC 791 3.1). Bytes from a malformed option on stay as they are.
fn options_of_later_fragments(options: &[u8]) -> Vec<u8> {
    const COPIED: u8 = 0x80;
    let mut all = options.to_vec();
    let mut at = 0;
    while let Some(&kind) = all.get(at) {
        let len = match Ipv4OptionKind(kind) {
            Ipv4OptionKind::END => break,
            Ipv4OptionKind::NO_OPERATION => 1,
            _ => all.get(at + 1).map_or(0, |len| usize::from(*len)),
        };
        let Some(option) = all.get_mut(at..at + len).filter(|_| len > 0) else { break };
        if kind & COPIED == 0 {
            option.fill(Ipv4OptionKind::NO_OPERATION.0);
        }
        at += len;
    }
    all
}

#[cfg(test)]
mod tests {
    use super::*;
    use pollux_wire::ip::IpProtocol;
    use pollux_wire::ip::ipv4::Ipv4Option;
    use proptest::prelude::*;

    fn packet(header: Ipv4Header, payload: &[u8]) -> Vec<u8> {
        let mut packet = vec![0; Ipv4Header::LEN + payload.len()];
        header.write_packet(&[], payload.len(), &mut packet).unwrap().copy_from_slice(payload);
        packet
    }

    fn header(identification: u16) -> Ipv4Header {
        Ipv4Header { identification, ttl: 9, protocol: IpProtocol::UDP, ..Ipv4Header::default() }
    }

    /// Checks each fragment, and returns the payload of all.
    fn joined(fragments: &[Vec<u8>], header: &Ipv4Header) -> Vec<u8> {
        let mut payload = Vec::new();
        for (nth, bytes) in fragments.iter().enumerate() {
            let fragment = Ipv4Packet::parse(bytes).unwrap();
            let own = fragment.header();
            assert!(fragment.checksum_ok() && own.identification == header.identification);
            assert_eq!((own.ttl, own.protocol), (header.ttl, header.protocol));
            assert_eq!(usize::from(own.fragment_offset) * UNIT, payload.len());
            assert_eq!(own.more_fragments, nth + 1 < fragments.len());
            payload.extend_from_slice(fragment.payload());
        }
        payload
    }

    proptest! {
        /// Fragments can be fragmented again on a narrower link.
        #[test]
        fn fragments_make_the_whole(
            len in 0usize..20_000, mtu in 28usize..3000, narrow in 28usize..600,
        ) {
            let payload: Vec<u8> = (0..len).map(|at| at as u8).collect();
            let whole = packet(header(7), &payload);
            let once = fragments(&whole, mtu, 1).unwrap();
            prop_assert!(once.iter().all(|fragment| fragment.len() <= mtu));
            prop_assert_eq!(&joined(&once, &header(7)), &payload);
            let twice: Vec<_> =
                once.iter().flat_map(|fragment| fragments(fragment, narrow, 1).unwrap()).collect();
            prop_assert!(twice.iter().all(|fragment| fragment.len() <= narrow));
            prop_assert_eq!(&joined(&twice, &header(7)), &payload);
        }

        #[test]
        fn any_bytes_are_survived(bytes in prop::collection::vec(any::<u8>(), 0..100), mtu: u16) {
            let _fragments = fragments(&bytes, mtu.into(), 1);
        }
    }

    /// One option has the copied flag, the other has not.
    #[test]
    fn options_go_with_the_first_part_and_copied_ones_with_all() {
        let options = [
            Ipv4Option::ROUTER_ALERT,
            Ipv4Option { kind: Ipv4OptionKind::RECORD_ROUTE, data: &[4, 0, 0, 0, 0] },
        ];
        let mut whole = vec![0; 32 + 100];
        let payload = header(7).write_packet(&options, 100, &mut whole).unwrap();
        payload.fill(9);
        let fragments = fragments(&whole, 32 + 48, 1).unwrap();
        let first = [&[148, 4, 0, 0, 7, 7, 4, 0, 0, 0, 0, 0][..]];
        let others = [&[148, 4, 0, 0, 1, 1, 1, 1, 1, 1, 1, 0][..]; 2];
        let found: Vec<_> = fragments.iter().map(|fragment| &fragment[20..32]).collect();
        assert_eq!(found, [&first[..], &others[..]].concat());
        assert_eq!(joined(&fragments, &header(7)), [9; 100]);
        // Fragments of a later fragment keep the options of that fragment.
        let again = super::fragments(&fragments[1], 32 + 16, 1).unwrap();
        assert!(again.iter().all(|fragment| fragment[20..32] == *others[0]));
    }

    #[test]
    fn a_packet_with_dont_fragment_is_not_fragmented() {
        let whole = Ipv4Header { dont_fragment: true, ..header(7) };
        assert_eq!(fragments(&packet(whole, &[1; 100]), 60, 1), None);
        assert_eq!(fragments(&[0x60; 100], 60, 1), None, "only IPv4");
        assert_eq!(
            fragments(&packet(header(7), &[1; 100]), 27, 1),
            None,
            "no room for any payload"
        );
        let unnamed = fragments(&packet(header(0), &[1; 100]), 60, 9).unwrap();
        assert_eq!(joined(&unnamed, &header(9)), [1; 100], "fragments need a name");
    }
}
