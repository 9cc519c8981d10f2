//! The encapsulation header of IP over InfiniBand, and the IP MTU (RFC 4391 6, RFC 4755 4 and 5).
//!
//! The header precedes every packet, in datagram mode and in connected mode. It contains only the
//! EtherType of the packet.

use crate::ethernet::EtherType;

layout! {
    /// The encapsulation header (RFC 4391 6).
    pub struct IpoibHeader: 4 bytes {
        0:0   16  ether_type: EtherType,
    }
}

/// The longest IP packet in a message of at most `message_bytes_max` bytes. This limit is the MTU
/// of the broadcast group for datagrams, and a receive MTU for connections.
#[inline]
pub const fn ip_mtu(message_bytes_max: u32) -> u32 {
    message_bytes_max.saturating_sub(IpoibHeader::LEN as u32)
}

/// The longest IP packet on a connection between ends with these receive MTUs (RFC 4755 5.1).
#[inline]
pub const fn connection_ip_mtu(receive_mtu: u32, peer_receive_mtu: u32) -> u32 {
    ip_mtu(if receive_mtu < peer_receive_mtu { receive_mtu } else { peer_receive_mtu })
}

#[cfg(test)]
mod tests {
    use super::*;

    // req: ud-encapsulation
    #[test]
    fn header_is_a_type_and_zeros_and_takes_four_bytes_of_the_mtu() {
        let codes = [
            (EtherType::IPV4, [0x08, 0x00]),
            (EtherType::IPV6, [0x86, 0xdd]),
            (EtherType::ARP, [0x08, 0x06]),
            (EtherType::RARP, [0x80, 0x35]),
        ];
        for (ether_type, [high, low]) in codes {
            let header = IpoibHeader { ether_type };
            assert_eq!(header.emit(), [high, low, 0, 0]);
            let bytes = [high, low, 0xde, 0xad, 1, 2];
            let (read, packet) = IpoibHeader::read(&bytes).unwrap();
            assert_eq!((read, packet), (header, &[1, 2][..]), "reserved bytes are ignored");
        }
        assert_eq!((ip_mtu(2048), ip_mtu(4096), ip_mtu(256)), (2044, 4092, 252));
    }

    #[test]
    fn the_smaller_receive_mtu_limits_a_connection() {
        assert_eq!(connection_ip_mtu(65_524, 65_524), 65_520);
        assert_eq!(connection_ip_mtu(65_524, 2048), 2044);
        assert_eq!(connection_ip_mtu(4096, 65_524), 4092);
        assert_eq!(connection_ip_mtu(3, 65_524), 0, "a receive MTU below the header");
    }

    #[test]
    fn fewer_than_four_bytes_are_no_packet() {
        assert!(IpoibHeader::read(&[8, 0, 0]).is_err());
    }
}
