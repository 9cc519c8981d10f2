//! Interface identifiers, and the addresses formed from them (RFC 4391 8, RFC 4862 5.3 and 5.5.3).

use pollux_wire::address::Guid;
use std::net::Ipv6Addr;

/// The universal/local bit of an EUI-64, inverted in an interface identifier (RFC 4291 2.5.1).
const UNIVERSAL: u64 = 0x0200_0000_0000_0000;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct InterfaceId(pub u64);

impl InterfaceId {
    /// The modified EUI-64 of a port.
    ///
    /// Why the bit is set and not toggled: RFC 4391 8 inverts only a clear bit. A GUID with the bit
    /// set is already a modified EUI-64, although IBA requires the plain form, and toggling would
    /// clear the bit. Linux does the same.
    pub const fn of_port(guid: Guid) -> Self {
        Self(guid.0 | UNIVERSAL)
    }

    pub const fn in_prefix(self, prefix: Ipv6Addr) -> Ipv6Addr {
        let prefix = prefix.to_bits() >> 64 << 64;
        Ipv6Addr::from_bits(prefix | self.0 as u128)
    }

    pub const fn link_local(self) -> Ipv6Addr {
        self.in_prefix(Ipv6Addr::new(0xfe80, 0, 0, 0, 0, 0, 0, 0))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    // req: ud-slaac
    #[test]
    fn the_universal_bit_is_set_once() {
        let plain = InterfaceId::of_port(Guid(0x0002_c903_0000_1001));
        let modified = InterfaceId::of_port(Guid(0x0202_c903_0000_1001));
        assert_eq!(plain.link_local(), "fe80::202:c903:0:1001".parse::<Ipv6Addr>().unwrap());
        assert_eq!(modified, plain, "already modified, so not toggled back");
        let global = plain.in_prefix("2001:db8:1:2:ffff::".parse().unwrap());
        assert_eq!(global, "2001:db8:1:2:202:c903:0:1001".parse::<Ipv6Addr>().unwrap());
    }
}
