//! Link addresses: the hardware addresses of an IP over InfiniBand link (RFC 4391 9.1.1, RFC 4755
//! 3.1; draft of 2001, 3.3.2).
//!
//! To send to a link address, a node also needs a path to its GID, which it queries from the SA.
//! The link address of the draft of 2001 has 26 bytes and includes the LID and the Q_Key instead.
//! Both forms are ARP hardware addresses.

use crate::address::{Gid, Lid, Qpn};
use crate::keys::QKey;
use core::fmt;

layout! {
    /// The address of an interface: its connected modes, UD queue pair and port GID (RFC 4755 3.1).
    pub struct LinkAddress: 20 bytes {
        /// Accepts reliable connections.
        0:0    1  rc: bool,
        /// Accepts unreliable connections.
        0:1    1  uc: bool,
        /// The UD queue pair of the interface.
        1:0   24  qpn: Qpn,
        /// The GID of the port or of a multicast group.
        4:0  128  gid: Gid,
    }
}

/// All 20 bytes in hexadecimal, separated by colons.
impl fmt::Display for LinkAddress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let [first, rest @ ..] = self.emit();
        write!(f, "{first:02x}")?;
        rest.iter().try_for_each(|byte| write!(f, ":{byte:02x}"))
    }
}

impl LinkAddress {
    /// The address of all members of a multicast group.
    pub const fn group(mgid: Gid) -> Self {
        Self { rc: false, uc: false, qpn: Qpn::MULTICAST, gid: mgid }
    }

    #[must_use]
    pub const fn without_flags(self) -> Self {
        Self { rc: false, uc: false, ..self }
    }

    /// Whether both addresses belong to the same interface. Flags are ignored, because an interface
    /// may change them.
    pub fn is_same_interface(&self, other: &Self) -> bool {
        self.without_flags() == other.without_flags()
    }

    /// The bytes of the address without flags. Their order decides which of two crossing connection
    /// requests wins (RFC 4755 3.3). They are also the key of maps of interfaces.
    pub fn comparison_form(&self) -> [u8; Self::LEN] {
        self.without_flags().emit()
    }
}

layout! {
    /// The address of an interface in the draft of 2001 (3.3.2). It is sufficient to send a
    /// datagram without a path query.
    pub struct DraftLinkAddress: 26 bytes {
        0:0   16  lid: Lid,
        2:0    1  uc: bool,
        2:1    1  rc: bool,
        2:2    1  raw_ethertype: bool,
        2:3    1  raw_ipv6: bool,
        /// The interface binds services to separate queue pairs.
        2:4    1  qpn_demultiplexing: bool,
        /// The UD queue pair for all other traffic.
        3:0   24  qpn: Qpn,
        6:0   32  q_key: QKey,
        10:0 128  gid: Gid,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::address::Guid;

    const GID: Gid = Gid::new(Gid::DEFAULT_PREFIX, Guid(0x0002_c903_0000_1001));

    // req: cm-flags-octet
    #[test]
    fn flags_are_the_two_upper_bits_of_the_first_byte() {
        for (rc, uc, byte) in
            [(false, false, 0), (true, false, 0x80), (false, true, 0x40), (true, true, 0xc0)]
        {
            let address = LinkAddress { rc, uc, qpn: Qpn(0x48), gid: GID };
            let mut bytes = address.emit();
            assert_eq!(bytes[..4], [byte, 0, 0, 0x48]);
            bytes[0] |= 0x3f;
            assert_eq!(LinkAddress::parse(&bytes), address, "reserved bits are ignored");
        }
    }

    #[test]
    fn an_interface_stays_itself_when_its_flags_change() {
        let plain = LinkAddress { rc: false, uc: false, qpn: Qpn(0x48), gid: GID };
        let connected = LinkAddress { rc: true, uc: true, ..plain };
        assert_ne!(plain, connected);
        assert!(plain.is_same_interface(&connected));
        assert!(!plain.is_same_interface(&LinkAddress { qpn: Qpn(0x49), ..plain }));
        assert!(!plain.is_same_interface(&LinkAddress { gid: Gid::NONE, ..plain }));
    }

    #[test]
    fn comparison_is_by_queue_pair_then_gid_and_ignores_flags() {
        let low = LinkAddress { rc: true, uc: true, qpn: Qpn(0x48), gid: GID };
        let high = LinkAddress { rc: false, uc: false, qpn: Qpn(0x49), gid: Gid::NONE };
        assert!(low.comparison_form() < high.comparison_form());
        assert_eq!(low.comparison_form(), low.without_flags().emit());
    }

    #[test]
    fn draft_address_has_its_capabilities_in_the_third_byte() {
        let none = DraftLinkAddress {
            lid: Lid(0x1234),
            qpn: Qpn(0x56_789a),
            q_key: QKey(0x0b1b),
            gid: GID,
            ..DraftLinkAddress::default()
        };
        let capabilities = [
            (DraftLinkAddress { uc: true, ..none }, 0x80),
            (DraftLinkAddress { rc: true, ..none }, 0x40),
            (DraftLinkAddress { raw_ethertype: true, ..none }, 0x20),
            (DraftLinkAddress { raw_ipv6: true, ..none }, 0x10),
            (DraftLinkAddress { qpn_demultiplexing: true, ..none }, 0x08),
        ];
        for (address, bit) in capabilities {
            let mut bytes = address.emit();
            assert_eq!(bytes[..10], [0x12, 0x34, bit, 0x56, 0x78, 0x9a, 0, 0, 0x0b, 0x1b]);
            assert_eq!(bytes[10..], GID.0);
            bytes[2] |= 0x07;
            assert_eq!(DraftLinkAddress::parse(&bytes), address, "unknown bits are ignored");
        }
    }
}
