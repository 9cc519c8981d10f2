//! A read-only snapshot of an interface for worker threads: its addresses, the on-link prefixes and
//! the datagram MTU.

use super::IpoibInterface;
use crate::address::{Address, is_broadcast, is_in, source_for};
use std::net::IpAddr;

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct InterfaceSnapshot {
    addresses: Vec<Address>,
    /// On-link prefixes, with their lengths.
    on_link: Vec<(IpAddr, u8)>,
    datagram_mtu: Option<u32>,
}

impl IpoibInterface {
    pub fn snapshot(&self) -> InterfaceSnapshot {
        InterfaceSnapshot {
            addresses: self.addresses.iter().copied().collect(),
            on_link: self.routes.on_link().collect(),
            datagram_mtu: self.link().map(|link| link.mtu),
        }
    }
}

impl InterfaceSnapshot {
    pub fn own(&self) -> impl Iterator<Item = IpAddr> {
        self.addresses
            .iter()
            .filter(|address| address.state.may_be_source())
            .map(|address| address.ip)
    }

    /// The source address for a destination (RFC 6724 5).
    pub fn source_for(&self, to: IpAddr) -> Option<IpAddr> {
        source_for(self.addresses.iter(), to)
    }

    /// Whether a destination is a unicast address on the link.
    pub fn is_on_link(&self, to: IpAddr) -> bool {
        let is_for_many = match to {
            IpAddr::V4(ip) => ip.is_multicast() || is_broadcast(self.addresses.iter(), ip),
            IpAddr::V6(ip) => ip.is_multicast(),
        };
        let is_local = matches!(to, IpAddr::V6(ip) if ip.is_unicast_link_local());
        !is_for_many && (is_local || self.on_link.iter().any(|&prefix| is_in(to, prefix)))
    }

    /// The longest IP packet in a datagram, in bytes; `None` until the interface is up.
    pub fn datagram_mtu(&self) -> Option<u32> {
        self.datagram_mtu
    }
}
