//! Link addresses: the hardware addresses of an IP over InfiniBand link (RFC 4391 9.1.1, RFC 4755
//! 3.1; draft of 2001, 3.3.2).
//!
//! A send also needs the path to the GID of a link address, which is queried from the subnet
//! administrator. The draft of 2001 had it all in 26 bytes instead; both are ARP hardware
//! addresses.

use crate::address::{Gid, Lid, Qpn};
use crate::keys::QKey;
use core::fmt;

layout! {
    /// Address of an interface: its connection modes, UD queue pair and port (RFC 4755 3.1).
    pub struct LinkAddress: 20 bytes {
        /// Takes reliable connections.
        0:0    1  rc: bool,
        0:1    1  uc: bool,
        /// The UD queue pair, which every interface has.
        1:0   24  qpn: Qpn,
        /// The port, or a group.
        4:0  128  gid: Gid,
    }
}

/// All 20 bytes in hex.
impl fmt::Display for LinkAddress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let [first, rest @ ..] = self.emit();
        write!(f, "{first:02x}")?;
        rest.iter().try_for_each(|byte| write!(f, ":{byte:02x}"))
    }
}

impl LinkAddress {
    /// The address of a multicast group: every queue pair that joined it.
    pub const fn group(mgid: Gid) -> Self {
        Self { rc: false, uc: false, qpn: Qpn::MULTICAST, gid: mgid }
    }

    #[must_use]
    pub const fn without_flags(self) -> Self {
        Self { rc: false, uc: false, ..self }
    }

    /// Whether both belong to the same interface, which may change its flags. Neighbors and
    /// connections are looked up by this comparison.
    pub fn is_same_interface(&self, other: &Self) -> bool {
        self.without_flags() == other.without_flags()
    }

    /// The number that decides the tie-break of crossing requests: these bytes, without flags (RFC
    /// 4755 3.3). Also a key for ordered maps of interfaces.
    pub fn comparison_form(&self) -> [u8; Self::LEN] {
        self.without_flags().emit()
    }
}

layout! {
    /// Address of an interface in the draft of 2001 (3.3.2): enough for a send without any query.
    pub struct DraftLinkAddress: 26 bytes {
        0:0   16  lid: Lid,
        2:0    1  uc: bool,
        2:1    1  rc: bool,
        2:2    1  raw_ethertype: bool,
        2:3    1  raw_ipv6: bool,
        /// Binds services to queue pairs of their own.
        2:4    1  qpn_demultiplexing: bool,
        /// The UD queue pair for everything else.
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
