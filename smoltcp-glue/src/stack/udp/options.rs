//! What a socket writes in the IP headers of its datagrams, and whether it hears them itself: the
//! options of `std::net`, with Linux's defaults.

use super::{UdpId, UdpState};
use crate::stack::packet::HOP_LIMIT;
use crate::stack::{Stack, UdpError};
use std::net::IpAddr;

/// The options of a UDP socket.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct UdpOptions {
    /// Hop limit of packets to one host.
    pub ttl: u8,
    /// Hop limit of packets to groups; 0 keeps them on this host.
    pub multicast_ttl: u8,
    /// Whether sockets of this host get datagrams to groups that they joined.
    pub multicast_loop: bool,
    /// As `std::net` has it; broadcasts are sent with and without it.
    pub broadcast: bool,
}

impl Default for UdpOptions {
    fn default() -> Self {
        Self { ttl: HOP_LIMIT, multicast_ttl: 1, multicast_loop: true, broadcast: false }
    }
}

impl UdpOptions {
    pub(super) const fn hop_limit(self, to: IpAddr) -> u8 {
        if to.is_multicast() { self.multicast_ttl } else { self.ttl }
    }
}

impl Stack {
    /// The options of a socket.
    pub fn udp_options(&self, id: UdpId) -> Result<UdpOptions, UdpError> {
        self.udp.sockets.get(id).map(|socket| socket.options).ok_or(UdpError::Closed)
    }

    /// Changes the options of a socket.
    pub fn udp_set_options(
        &mut self,
        id: UdpId,
        change: impl FnOnce(&mut UdpOptions),
    ) -> Result<(), UdpError> {
        let socket: &mut UdpState = self.udp.sockets.get_mut(id).ok_or(UdpError::Closed)?;
        change(&mut socket.options);
        Ok(())
    }
}
