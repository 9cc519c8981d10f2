//! Packets that are longer than the MTU of their path (RFC 4755 7.2).
//!
//! Each destination has its own MTU: the receive MTU of the peer on a connection, or the datagram
//! MTU of the path. A packet that is too long waits while a connection with a larger MTU is set up.
//! Otherwise it is fragmented, if it is an IPv4 packet that allows this (RFC 791 2.3), or its
//! sender (a local socket, or another host) gets an ICMP error.

use super::{Adjacency, InterfaceDrop, IpoibInterface, PendingPacket};
use crate::fragment::fragments;
use crate::frame::destination;
use crate::icmp::IcmpError;
use pollux_verbs::time::Time;
use std::net::IpAddr;

impl IpoibInterface {
    /// Handles a packet longer than the MTU of its path. `next_hop` is its next hop, if the caller
    /// knows it.
    pub(super) fn too_big(
        &mut self,
        now: Time,
        pending: PendingPacket,
        next_hop: Option<IpAddr>,
        mtu: u32,
    ) {
        let PendingPacket { packet, from, .. } = &pending;
        let by_routes = || {
            let to = destination(packet)?;
            Some(self.next_hop_of(now, to, self.routing.flow_of(packet))?.ip())
        };
        let link = next_hop.or_else(by_routes).and_then(|hop| self.neighbors.address(hop));
        let key = link.and_then(|link| self.peers.find(&link));
        if let Some((link, key)) = link.zip(key) {
            let has_grown = match self.peers.all.get(&key).map(|peer| peer.adjacency()) {
                Some(Adjacency::Connected { mtu, .. }) => packet.len() <= mtu as usize,
                _ => self.is_connecting(now, key),
            };
            if has_grown {
                return self.send_to_peer(now, &link, pending);
            }
        }
        let from = *from;
        for part in self.fit(now, pending.packet, from, mtu) {
            let part = PendingPacket { from, ..PendingPacket::of(part) };
            match next_hop {
                Some(next_hop) => self.send_to(now, next_hop, part),
                None => self.route(now, part),
            }
        }
    }

    /// Fits a packet to an MTU. Returns the packet itself or its fragments, or nothing after an
    /// ICMP error to its sender.
    pub(super) fn fit(
        &mut self,
        now: Time,
        packet: Vec<u8>,
        from: Option<u16>,
        mtu: u32,
    ) -> Vec<Vec<u8>> {
        if packet.len() <= mtu as usize {
            return vec![packet];
        }
        let fragments = fragments(&packet, mtu as usize, self.part_id);
        self.part_id = self.part_id.wrapping_add(1);
        fragments.unwrap_or_else(|| {
            self.drops.count(InterfaceDrop::TooBig);
            self.send_error_back(now, &packet, from, IcmpError::TooBig(mtu));
            Vec::new()
        })
    }
}
