//! The link address of an interface, for InfiniBand and Ethernet.
//!
//! ARP, neighbor discovery and the neighbor cache differ between InfiniBand and Ethernet only in
//! the address: its length, its option in neighbor discovery, and the part that identifies an
//! interface.

use pollux_wire::address::{Gid, Qpn};
use pollux_wire::ethernet::MacAddress;
use pollux_wire::ip::arp::HardwareAddress;
use pollux_wire::ip::link_address::LinkAddress;
use pollux_wire::ip::nd_option::LinkLayerAddress;
use std::fmt;

pub trait InterfaceAddress:
    HardwareAddress + Into<LinkLayerAddress> + Copy + Default + Eq + fmt::Debug
{
    /// The part of the address that identifies the interface.
    type Key: Copy + Ord + fmt::Debug;

    /// The address without its flags.
    fn key(&self) -> Self::Key;

    /// Whether an interface can have this address: it is neither null nor a group.
    fn is_interface(&self) -> bool;

    /// Whether both addresses are of one port. An interface that restarts at a port gets another
    /// queue pair, and so another address.
    fn is_same_port(&self, other: &Self) -> bool;

    /// The address without the flags of connected mode.
    #[must_use]
    fn without_flags(self) -> Self;

    /// The address, if it is of this kind of link.
    fn of_link(address: LinkLayerAddress) -> Option<Self>;

    fn is_same(&self, other: &Self) -> bool {
        self.key() == other.key()
    }
}

impl InterfaceAddress for LinkAddress {
    type Key = [u8; Self::LEN];

    fn key(&self) -> Self::Key {
        self.comparison_form()
    }

    /// The QPN is not one for management or multicast, and the GID is a unicast GID.
    fn is_interface(&self) -> bool {
        let is_datagram_qp = !matches!(self.qpn, Qpn::SMI | Qpn::GSI | Qpn::MULTICAST);
        is_datagram_qp && !self.gid.is_multicast() && self.gid != Gid::NONE
    }

    fn is_same_port(&self, other: &Self) -> bool {
        self.gid == other.gid
    }

    fn without_flags(self) -> Self {
        self.without_flags()
    }

    fn of_link(address: LinkLayerAddress) -> Option<Self> {
        match address {
            LinkLayerAddress::InfiniBand(address) => Some(address),
            LinkLayerAddress::Ethernet(_) => None,
        }
    }
}

impl InterfaceAddress for MacAddress {
    type Key = Self;

    fn key(&self) -> Self {
        *self
    }

    fn is_interface(&self) -> bool {
        !self.is_group() && *self != Self::default()
    }

    fn is_same_port(&self, other: &Self) -> bool {
        self == other
    }

    fn without_flags(self) -> Self {
        self
    }

    fn of_link(address: LinkLayerAddress) -> Option<Self> {
        match address {
            LinkLayerAddress::Ethernet(address) => Some(address),
            LinkLayerAddress::InfiniBand(_) => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn groups_and_null_addresses_are_no_interfaces() {
        assert!(MacAddress([2, 0, 0, 0, 0, 1]).is_interface());
        assert!(!MacAddress::BROADCAST.is_interface() && !MacAddress::default().is_interface());
        assert!(!LinkAddress::group(Gid([0xff; 16])).is_interface());
        assert!(!LinkAddress::default().is_interface());
    }

    #[test]
    fn an_address_is_of_one_kind_of_link() {
        let mac = MacAddress([2, 0, 0, 0, 0, 1]);
        assert_eq!(MacAddress::of_link(mac.into()), Some(mac));
        assert_eq!(LinkAddress::of_link(mac.into()), None);
        let link = LinkAddress::default();
        assert_eq!(LinkAddress::of_link(link.into()), Some(link));
        assert_eq!(MacAddress::of_link(link.into()), None);
    }
}
