//! Packets on their way out: control's own, and those of the host.
//!
//! What the netdev refuses comes back with the reason. A full queue makes a packet wait; one that
//! has no way goes to control, which finds one; the rest is counted.

use super::port_driver::{PortDriver, WAITING_MAX};
use pollux_control::interface::{By, DatagramAdjacency, Outgoing};
use pollux_dataplane::ipoib;
use pollux_dataplane::neighbor::{Datagram, Route};
use pollux_dataplane::reason::Refusal;
use pollux_wire::ip::ipoib::EtherType;
use pollux_wire::ip::ipv4::Ipv4Header;
use pollux_wire::ip::ipv6::Ipv6Header;
use std::collections::VecDeque;
use std::net::IpAddr;

/// Why a packet of the host was not taken.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NotSent {
    /// It is no packet of IP.
    NoIp,
    /// It is longer than the way takes, which is this long.
    TooBig(u32),
    /// There is no room for it now.
    Full,
    /// The interface is down, or the next hop does not answer.
    Unreachable,
}

impl PortDriver {
    /// Sends a packet of control's.
    pub fn send(&mut self, outgoing: &Outgoing) {
        let route = match outgoing.by {
            By::Datagram(adjacency) => self.datagram(&adjacency),
            By::Peer(key) => self.peers.get(&key).map(|known| known.route),
        };
        let is_accepted = route.is_some_and(|route| {
            self.send_by(outgoing.ether_type, &outgoing.packet, route).is_ok()
        });
        self.counts.no_room += u64::from(!is_accepted);
    }

    /// Sends a packet of the host, whose destination is its next hop; others, and those whose next
    /// hop is not known yet, are control's.
    pub fn send_packet(&mut self, packet: &[u8]) -> Result<(), NotSent> {
        let (ether_type, to) = destination(packet).ok_or(NotSent::NoIp)?;
        let route = self.reader.refresh().route(to);
        self.send_by(ether_type, packet, route)
    }

    pub(super) fn route_mtu(&mut self, next_hop: IpAddr) -> Option<u32> {
        self.reader.refresh().route(next_hop).mtu()
    }

    fn datagram(&mut self, adjacency: &DatagramAdjacency) -> Option<Route> {
        let ah = self.handles.of(&mut *self.device, &adjacency.vector).ok()?;
        Some(Route::Datagram(Datagram { ah, qpn: adjacency.qpn, mtu: adjacency.mtu }))
    }

    fn send_by(
        &mut self,
        ether_type: EtherType,
        packet: &[u8],
        route: Route,
    ) -> Result<(), NotSent> {
        if matches!(route, Route::Unknown | Route::Pending) {
            return self.punt(packet);
        }
        let Some(mut buf) = self.netdev.buffer(packet.len()) else {
            return match route.mtu() {
                // No buffer is that long, since no way is.
                Some(mtu) if packet.len() > mtu as usize => self.punt_too_big(packet, mtu),
                _ => Err(NotSent::Full),
            };
        };
        match buf.push_back(packet.len()) {
            Some(room) => room.copy_from_slice(packet),
            None => return Err(NotSent::Full),
        }
        let outgoing = ipoib::Outgoing { packet: buf, ether_type, route };
        self.flush();
        if is_behind(&self.waiting, &outgoing) {
            return self.wait(outgoing);
        }
        self.batch.push(outgoing);
        self.netdev.send(&mut *self.device, &mut self.batch, &mut self.refused);
        self.refused.pop().map_or(Ok(()), |refused| self.take_back(refused))
    }

    pub(super) fn take_back(&mut self, refused: ipoib::Refused) -> Result<(), NotSent> {
        let ipoib::Refused { why, outgoing, mtu } = refused;
        if why == Refusal::Full {
            return self.wait(outgoing);
        }
        let packet = outgoing.packet.bytes();
        let done = match (why, mtu) {
            // Control makes another connection, or sends it by datagram.
            (Refusal::Disconnected | Refusal::Stale, _) => self.punt(packet),
            (Refusal::TooBig, Some(mtu)) => self.punt_too_big(packet, mtu),
            _ => Err(NotSent::Unreachable),
        };
        self.netdev.recycle(outgoing.packet);
        done
    }

    /// A packet waits for room, behind those that go the same way.
    fn wait(&mut self, outgoing: ipoib::Outgoing) -> Result<(), NotSent> {
        if self.waiting.len() == WAITING_MAX {
            self.netdev.recycle(outgoing.packet);
            return Err(NotSent::Full);
        }
        self.waiting.push_back(outgoing);
        Ok(())
    }

    /// Of the batch, what would overtake others waits behind them.
    pub(super) fn queue_behind_others(&mut self) {
        let waiting = &self.waiting;
        let behind: Vec<_> = self.batch.extract_if(.., |one| is_behind(waiting, one)).collect();
        for one in behind {
            self.counts.no_room += u64::from(self.wait(one).is_err());
        }
    }

    pub(super) fn punt(&mut self, packet: &[u8]) -> Result<(), NotSent> {
        if self.punts.len() == WAITING_MAX {
            return Err(NotSent::Full);
        }
        self.punts.push(packet.to_vec());
        Ok(())
    }

    /// Control knows whether the way will be wider, and who is to be told that it is not.
    fn punt_too_big(&mut self, packet: &[u8], mtu: u32) -> Result<(), NotSent> {
        if self.too_big.len() == WAITING_MAX {
            return Err(NotSent::Full);
        }
        self.too_big.push((packet.to_vec(), mtu));
        Ok(())
    }

    /// Sends what waited for room; says whether anything was sent.
    pub(super) fn send_waiting(&mut self) -> bool {
        let before = self.waiting.len();
        if before == 0 {
            return false;
        }
        let mut batch: Vec<_> = self.waiting.drain(..).collect();
        let mut refused = std::mem::take(&mut self.refused);
        self.netdev.send(&mut *self.device, &mut batch, &mut refused);
        for one in refused.drain(..) {
            self.counts.no_room += u64::from(self.take_back(one).is_err());
        }
        self.refused = refused;
        self.waiting.len() < before
    }
}

/// Whether others wait that go by the same queue pair.
fn is_behind(waiting: &VecDeque<ipoib::Outgoing>, outgoing: &ipoib::Outgoing) -> bool {
    waiting.iter().any(|before| match (&before.route, &outgoing.route) {
        (Route::Connected(one), Route::Connected(other)) => one.connection == other.connection,
        (Route::Datagram(_), Route::Datagram(_)) => true,
        _ => false,
    })
}

/// What a packet is, and where it goes.
pub fn destination(packet: &[u8]) -> Option<(EtherType, IpAddr)> {
    match packet.first()? >> 4 {
        4 => {
            let (header, _) = Ipv4Header::read(packet).ok()?;
            Some((EtherType::IPV4, header.destination.into()))
        }
        6 => {
            let (header, _) = Ipv6Header::read(packet).ok()?;
            Some((EtherType::IPV6, header.destination.into()))
        }
        _ => None,
    }
}
