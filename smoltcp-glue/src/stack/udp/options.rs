//! The options of UDP sockets in `std::net`, with the defaults of Linux: the hop limits of
//! datagrams, and whether multicast datagrams are looped back.

use super::{UdpId, UdpState};
use crate::stack::packet::HOP_LIMIT;
use crate::stack::{Stack, UdpError};
use std::net::IpAddr;

/// The options of a UDP socket.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct UdpOptions {
    /// Hop limit of unicast packets.
    pub ttl: u8,
    /// Hop limit of packets to groups; 0 keeps them on this host.
    pub multicast_ttl: u8,
    /// Whether sockets of this host that joined a group get the datagrams that this socket sends to
    /// it.
    pub multicast_loop: bool,
    /// Has no effect: sockets send broadcasts with and without it.
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
