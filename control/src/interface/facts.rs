//! What whoever sends packets away from control has to know of the interface: its addresses, who is
//! on the link, and how long a datagram may be. A value, so that it can be given to other threads.

use super::Interface;
use crate::address::{Address, is_broadcast, is_in, source_for};
use std::net::IpAddr;

/// An interface as it is now.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Facts {
    addresses: Vec<Address>,
    /// Prefixes that neighbors have, with their lengths.
    on_link: Vec<(IpAddr, u8)>,
    datagram_mtu: Option<u32>,
}

impl Interface {
    /// What others have to know of it.
    pub fn facts(&self) -> Facts {
        Facts {
            addresses: self.addresses.iter().copied().collect(),
            on_link: self.routes.on_link().collect(),
            datagram_mtu: self.link().map(|link| link.mtu),
        }
    }
}

impl Facts {
    /// Addresses that packets may be sent from.
    pub fn own(&self) -> impl Iterator<Item = IpAddr> {
        self.addresses.iter().filter(|one| one.state.may_be_source()).map(|one| one.ip)
    }

    /// Which of them to send from (RFC 6724 5).
    pub fn source_for(&self, to: IpAddr) -> Option<IpAddr> {
        source_for(self.addresses.iter(), to)
    }

    /// Whether a node with this address is a neighbor. Groups are none.
    pub fn is_on_link(&self, to: IpAddr) -> bool {
        let is_for_many = match to {
            IpAddr::V4(ip) => ip.is_multicast() || is_broadcast(self.addresses.iter(), ip),
            IpAddr::V6(ip) => ip.is_multicast(),
        };
        let is_local = matches!(to, IpAddr::V6(ip) if ip.is_unicast_link_local());
        !is_for_many && (is_local || self.on_link.iter().any(|&prefix| is_in(to, prefix)))
    }

    /// The longest IP packet of a datagram, once the interface is up.
    pub fn datagram_mtu(&self) -> Option<u32> {
        self.datagram_mtu
    }
}
