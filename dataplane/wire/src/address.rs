//! InfiniBand addresses: LIDs, GUIDs, GIDs and their scopes, queue pair numbers (IBA 4.1).

use core::fmt;
use core::net::Ipv6Addr;

/// A local identifier: the address of a port within its subnet (IBA 4.1.3).
#[derive(Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Lid(pub u16);

impl Lid {
    /// The LID of a port to which the subnet manager has not assigned one yet.
    pub const NONE: Self = Self(0);
    /// The permissive LID. As a destination, it is the port at the other end of the link, for
    /// directed-route SMPs. In messages, it stands for no particular LID.
    pub const PERMISSIVE: Self = Self(0xffff);
    pub const UNICAST_FIRST: Self = Self(1);
    pub const UNICAST_LAST: Self = Self(0xbfff);
    pub const MULTICAST_FIRST: Self = Self(0xc000);
    pub const MULTICAST_LAST: Self = Self(0xfffe);

    #[inline]
    pub const fn is_unicast(self) -> bool {
        self.0 >= Self::UNICAST_FIRST.0 && self.0 <= Self::UNICAST_LAST.0
    }

    #[inline]
    pub const fn is_multicast(self) -> bool {
        self.0 >= Self::MULTICAST_FIRST.0 && self.0 <= Self::MULTICAST_LAST.0
    }

    /// The path bits: the low `lmc` bits, which tell the LIDs of one port apart (IBA 4.1.3).
    #[inline]
    pub const fn path_bits(self, lmc: u8) -> u8 {
        (self.0 & ((1 << (lmc & 7)) - 1)) as u8
    }

    /// Whether `dlid` is one of the LIDs of a port with base LID `self` and this LMC (IBA 4.1.3).
    #[inline]
    pub const fn covers(self, lmc: u8, dlid: Self) -> bool {
        // An LMC has three bits, so the shift cannot overflow.
        self.0 >> (lmc & 7) == dlid.0 >> (lmc & 7)
    }
}

impl fmt::Display for Lid {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.is_multicast() || *self == Self::PERMISSIVE {
            write!(f, "{:#06x}", self.0)
        } else {
            write!(f, "{}", self.0)
        }
    }
}

/// A globally unique identifier of a node, a port or a system (IBA 4.1.1): an EUI-64.
#[derive(Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Guid(pub u64);

/// A queue pair number: 24 bits.
#[derive(Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Qpn(pub u32);

impl Qpn {
    pub const SMI: Self = Self(0);
    pub const GSI: Self = Self(1);
    /// The destination QPN of every multicast packet.
    pub const MULTICAST: Self = Self(0xff_ffff);
    pub const MAX: Self = Self(0xff_ffff);
}

/// A global identifier: a 64-bit prefix and a 64-bit GUID, in the form of an IPv6 address (IBA
/// 4.1.1).
#[derive(Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Gid(pub [u8; 16]);

impl Gid {
    pub const NONE: Self = Self([0; 16]);
    pub const DEFAULT_PREFIX: u64 = 0xfe80_0000_0000_0000;

    #[inline]
    pub const fn new(prefix: u64, guid: Guid) -> Self {
        Self(((prefix as u128) << 64 | guid.0 as u128).to_be_bytes())
    }

    #[inline]
    pub const fn prefix(self) -> u64 {
        (u128::from_be_bytes(self.0) >> 64) as u64
    }

    #[inline]
    pub const fn guid(self) -> Guid {
        Guid(u128::from_be_bytes(self.0) as u64)
    }

    #[inline]
    pub const fn is_multicast(self) -> bool {
        self.0[0] == 0xff
    }

    /// Whether the prefix is the link-local one. Every port accepts it in addition to its own.
    #[inline]
    pub const fn is_link_local(self) -> bool {
        self.prefix() == Self::DEFAULT_PREFIX
    }
}

impl fmt::Display for Gid {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        Ipv6Addr::from(self.0).fmt(f)
    }
}

codes! {
    /// The scope of a multicast group: four bits of its GID (IBA 4.1.1), with the same codes as in
    /// IPv6 (RFC 4291 2.7).
    pub struct Scope(u8) {
        INTERFACE_LOCAL = 1,
        LINK_LOCAL = 2,
        ADMIN_LOCAL = 4,
        SITE_LOCAL = 5,
        ORGANIZATION_LOCAL = 8,
        GLOBAL = 14,
    }
}

debug_by_display!(Lid, Gid);
number_field!(Lid(u16));
hex_number!(Guid(u64), 18);
hex_number!(Qpn(u32), 8);

impl crate::layout::Field for Gid {
    const WIDTH_MAX: usize = 128;
    #[inline(always)]
    fn load(bytes: &[u8], bit: usize, _width: usize) -> Self {
        let mut gid = [0; 16];
        gid.copy_from_slice(&bytes[bit / 8..bit / 8 + 16]);
        Self(gid)
    }
    #[inline(always)]
    fn store(self, bytes: &mut [u8], bit: usize, _width: usize) {
        bytes[bit / 8..bit / 8 + 16].copy_from_slice(&self.0);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::format;

    #[test]
    fn lid_ranges_meet_without_gap_or_overlap() {
        for lid in 0..=u16::MAX {
            let lid = Lid(lid);
            let kinds =
                [lid == Lid::NONE, lid.is_unicast(), lid.is_multicast(), lid == Lid::PERMISSIVE];
            assert_eq!(kinds.iter().filter(|&&is| is).count(), 1, "{lid:?}");
        }
    }

    #[test]
    fn lmc_gives_a_port_a_range() {
        assert!(Lid(0x10).covers(2, Lid(0x13)));
        assert!(!Lid(0x10).covers(2, Lid(0x14)));
        assert!(!Lid(0x10).covers(0, Lid(0x11)));
    }

    #[test]
    fn gid_is_prefix_and_guid() {
        let gid = Gid::new(Gid::DEFAULT_PREFIX, Guid(0x0002_c903_0000_1001));
        assert_eq!(format!("{gid}"), "fe80::2:c903:0:1001");
        assert_eq!((gid.prefix(), gid.guid()), (Gid::DEFAULT_PREFIX, Guid(0x0002_c903_0000_1001)));
        assert!(gid.is_link_local() && !gid.is_multicast());
    }
}
