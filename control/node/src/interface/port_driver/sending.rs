//! Sends packets of control and of the host, by the fast path of sockets, or by punt to control.
//!
//! The netdev returns refused packets with the reason. If the send queue is full, a packet waits.
//! If a packet has no route, it is punted to control. All other refused packets are counted.

use super::{FRAMES_MAX, PortDriver, Take, WAITING_MAX, take_if_for_socket};
use pollux_control::beyond::TransitHop;
use pollux_control::ipoib::{By, DatagramAdjacency, OutgoingPacket};
use pollux_dataplane::ipoib::{self, Received};
use pollux_dataplane::neighbor::{DatagramRoute, Route};
use pollux_dataplane::port::{TransitPacket, TxPacket};
use pollux_dataplane::reason::{ForwardDrop, Refusal};
use pollux_dataplane::verdict::Verdict;
use pollux_mem::Buf;
use pollux_verbs::VerbsError;
use pollux_wire::ethernet::EtherType;
use pollux_wire::ip::ipv4::Ipv4Header;
use pollux_wire::ip::ipv6::Ipv6Header;
use std::collections::VecDeque;
use std::net::IpAddr;

const BATCH_MAX: usize = 32;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NotSent {
    NoIp,
    /// The packet is longer than the MTU of its route, which is this many bytes.
    TooBig(u32),
    Full,
    Unreachable,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::interface) enum PuntReason {
    /// A packet of the host without a route: its destination is no known next hop.
    NoRoute,
    /// A packet in transit without an adjacency, or longer than this MTU.
    Transit(TransitHop, Option<u32>),
    /// A packet longer than the MTU of its route, which is this many bytes.
    TooBig(u32),
}

impl PortDriver {
    /// Sends a packet of control, or queues it until there is space.
    pub fn send(&mut self, frame: OutgoingPacket) {
        if self.frames.is_empty() && self.send_frame(&frame) != Err(NotSent::Full) {
            return;
        }
        match self.frames.len() < FRAMES_MAX {
            true => self.frames.push_back(frame),
            false => self.counts.no_room += 1,
        }
    }

    /// Sends queued packets of control, as far as there is space. Returns whether any was sent.
    pub(in crate::interface) fn send_frames(&mut self) -> bool {
        let before = self.frames.len();
        while let Some(frame) = self.frames.pop_front() {
            if self.send_frame(&frame) == Err(NotSent::Full) {
                self.frames.push_front(frame);
                break;
            }
        }
        self.frames.len() < before
    }

    /// Sends a packet of control by its present route. Counts failures, except a lack of space.
    fn send_frame(&mut self, frame: &OutgoingPacket) -> Result<(), NotSent> {
        if self.waiting.len() == WAITING_MAX {
            return Err(NotSent::Full);
        }
        let route = match frame.by {
            By::Datagram(adjacency) => self.datagram(&adjacency),
            By::Peer(key) => self.peers.get(&key).map(|known| known.route),
        };
        let sent = route.ok_or(NotSent::Unreachable);
        let sent = sent.and_then(|route| self.send_by(frame.ether_type, &frame.packet, route));
        self.counts.no_room += u64::from(sent.is_err_and(|why| why != NotSent::Full));
        sent
    }

    /// Sends a packet of the host, or punts it if it has no route.
    pub fn send_packet(&mut self, packet: &[u8]) -> Result<(), NotSent> {
        let (ether_type, to) = destination(packet).ok_or(NotSent::NoIp)?;
        let route = self.reader.refresh().route(to);
        self.send_by(ether_type, packet, route)
    }

    pub(in crate::interface) fn route_mtu(&mut self, next_hop: IpAddr) -> Option<u32> {
        self.reader.refresh().route(next_hop).mtu()
    }

    fn datagram(&mut self, adjacency: &DatagramAdjacency) -> Option<Route> {
        let ah = self.handles.of(&mut *self.device, &adjacency.vector).ok()?;
        Some(Route::Datagram(DatagramRoute { ah, qpn: adjacency.qpn, mtu: adjacency.mtu }))
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
                // Buffers hold the largest MTU, so a packet that fits no buffer may be too long for
                // its route.
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
        let mut refused = std::mem::take(&mut self.refused);
        self.post_batch(&mut refused);
        let last = refused.pop();
        self.refused = refused;
        last.map_or(Ok(()), |refused| self.take_back(refused))
    }

    pub(in crate::interface) fn take_back(
        &mut self,
        refused: ipoib::Refused,
    ) -> Result<(), NotSent> {
        let ipoib::Refused { why, outgoing, mtu } = refused;
        if why == Refusal::Full {
            return self.wait(outgoing);
        }
        let packet = outgoing.packet.bytes();
        let done = match (why, mtu) {
            // Control opens another connection, or sends the packet as a datagram.
            (Refusal::Disconnected | Refusal::Stale, _) => self.punt(packet),
            (Refusal::TooBig, Some(mtu)) => self.punt_too_big(packet, mtu),
            _ => Err(NotSent::Unreachable),
        };
        self.netdev.recycle(outgoing.packet);
        done
    }

    fn wait(&mut self, outgoing: ipoib::Outgoing) -> Result<(), NotSent> {
        if self.waiting.len() == WAITING_MAX {
            self.netdev.recycle(outgoing.packet);
            return Err(NotSent::Full);
        }
        self.waiting.push_back(outgoing);
        Ok(())
    }

    /// Moves packets of the batch to the waiting packets if the same queue pair has some there.
    pub(in crate::interface) fn queue_behind_others(&mut self) {
        let waiting = &self.waiting;
        let behind: Vec<_> = self.batch.extract_if(.., |one| is_behind(waiting, one)).collect();
        for one in behind {
            self.counts.no_room += u64::from(self.wait(one).is_err());
        }
    }

    pub(in crate::interface) fn punt(&mut self, packet: &[u8]) -> Result<(), NotSent> {
        self.pass_to_control(packet, PuntReason::NoRoute)
    }

    /// Punts a packet that is too long. Control may have a larger MTU for it, or sends an ICMP
    /// error.
    fn punt_too_big(&mut self, packet: &[u8], mtu: u32) -> Result<(), NotSent> {
        self.pass_to_control(packet, PuntReason::TooBig(mtu))
    }

    fn pass_to_control(&mut self, packet: &[u8], why: PuntReason) -> Result<(), NotSent> {
        if self.punts.len() == WAITING_MAX {
            return Err(NotSent::Full);
        }
        self.punts.push_back((packet.to_vec(), why));
        Ok(())
    }

    /// Sends waiting packets. Returns whether any was sent. Packets for a full queue pair are left
    /// alone, so that a stalled peer costs the other ports of the worker little.
    pub(in crate::interface) fn send_waiting(&mut self) -> bool {
        let Self { waiting, netdev, .. } = self;
        if !waiting.iter().any(|one| netdev.has_space(&one.route)) {
            return false;
        }
        let (before, mut batch) = (waiting.len(), Vec::new());
        for one in std::mem::take(waiting) {
            match netdev.has_space(&one.route) {
                true => batch.push(one),
                false => waiting.push_back(one),
            }
        }
        let mut refused = std::mem::take(&mut self.refused);
        self.post(&mut batch, &mut refused);
        for one in refused.drain(..) {
            self.counts.no_room += u64::from(self.take_back(one).is_err());
        }
        self.refused = refused;
        self.waiting.len() < before
    }
}

impl PortDriver {
    /// Receives packets, offers them to sockets first, and sends waiting packets.
    #[inline(always)]
    pub(in crate::interface) fn poll_packets(
        &mut self,
        packets: &mut Vec<Received>,
        take: Take<'_>,
        transit: Option<&mut Vec<TransitPacket>>,
    ) -> Result<bool, VerbsError> {
        let before = packets.len();
        let mut busy = self.netdev.poll(&mut *self.device, &self.own, packets)? > 0;
        self.note_first_packets(&packets[before..]);
        self.tap_received(&packets[before..]);
        if self.filter.is_some() {
            self.filter(packets, before);
        }
        busy |= !self.waiting.is_empty() && self.send_waiting();
        if let Some(transit) = transit {
            self.drop_spoofed(packets, before);
            self.take_transit(packets, before, transit);
        }
        for received in packets.extract_if(.., |one| take_if_for_socket(one, take)) {
            self.recycle(received);
        }
        Ok(busy)
    }

    /// Drops the packets in transit from index `from` on that have one of our addresses as source.
    fn drop_spoofed(&mut self, packets: &mut Vec<Received>, from: usize) {
        let Self { own, forward_drops, netdev, .. } = self;
        let is_spoofed = |one: &mut Received| {
            one.verdict == Verdict::Transit && own.is_spoofed(&one.headers, one.packet.bytes())
        };
        for received in packets.extract_if(from.., is_spoofed) {
            forward_drops.count(ForwardDrop::MartianSource);
            netdev.recycle(received.packet);
        }
    }

    pub(in crate::interface) fn has_room(&self) -> bool {
        self.waiting.is_empty()
    }

    /// Whether all accepted packets are at the device or at control.
    pub(in crate::interface) fn has_moved(&self) -> bool {
        let is_moved = self.waiting.is_empty() && self.batch.is_empty();
        is_moved && self.frames.is_empty() && self.punts.is_empty()
    }

    #[inline(always)]
    pub(in crate::interface) fn draft(&mut self, bytes: usize) -> Option<&mut [u8]> {
        if let Some(old) = self.draft.take() {
            self.netdev.recycle(old);
        }
        let mut buf = self.netdev.buffer(bytes)?;
        buf.push_back(bytes)?;
        Some(self.draft.insert(buf).bytes_mut())
    }

    pub(in crate::interface) fn drafted(&self) -> &[u8] {
        self.draft.as_ref().map_or(&[], |draft| draft.bytes())
    }

    /// Adds the draft to the batch. Returns its next hop.
    #[inline(always)]
    pub(in crate::interface) fn send_draft(&mut self) -> Result<IpAddr, NotSent> {
        let packet = self.draft.take().ok_or(NotSent::NoIp)?;
        let Some((ether_type, to)) = destination(packet.bytes()) else {
            self.netdev.recycle(packet);
            return Err(NotSent::NoIp);
        };
        let route = self.reader.refresh().route(to);
        if matches!(route, Route::Unknown | Route::Pending) {
            // Earlier packets are sent first.
            self.flush();
            let punted = self.punt(packet.bytes());
            self.netdev.recycle(packet);
            return punted.map(|()| to);
        }
        self.batch.push(ipoib::Outgoing { packet, ether_type, route });
        if self.batch.len() >= BATCH_MAX {
            self.flush();
        }
        Ok(to)
    }

    #[inline]
    fn post_batch(&mut self, refused: &mut Vec<ipoib::Refused>) {
        let mut batch = std::mem::take(&mut self.batch);
        self.post(&mut batch, refused);
        self.batch = batch;
    }

    /// Sends the batch. Packets without space wait. If too many wait, packets are dropped and
    /// counted.
    pub(in crate::interface) fn flush(&mut self) {
        if self.batch.is_empty() {
            return;
        }
        if !self.waiting.is_empty() {
            self.queue_behind_others();
        }
        let mut refused = std::mem::take(&mut self.refused);
        self.post_batch(&mut refused);
        for one in refused.drain(..) {
            self.counts.no_room += u64::from(self.take_back(one).is_err());
        }
        self.refused = refused;
    }
}

/// Forwarding.
impl PortDriver {
    /// Sends packets in transit. Punts packets without a route, and packets longer than the MTU of
    /// their route. `used` gets each next hop, once for a run of packets.
    pub(in crate::interface) fn forward(
        &mut self,
        batch: &mut Vec<TxPacket>,
        mut used: impl FnMut(IpAddr),
    ) {
        let mut last = None;
        for TxPacket { packet, ether_type, next_hop, from } in batch.drain(..) {
            let route = match last {
                Some((hop, route)) if hop == next_hop => route,
                _ => {
                    used(next_hop);
                    self.reader.refresh().route(next_hop)
                }
            };
            last = Some((next_hop, route));
            let mtu = route.mtu();
            if mtu.is_none_or(|mtu| packet.len() > mtu as usize) {
                let why = PuntReason::Transit(TransitHop { from: from.0, next_hop }, mtu);
                let punted = self.pass_to_control(packet.bytes(), why);
                self.counts.no_room += u64::from(punted.is_err());
                self.netdev.recycle(packet);
                continue;
            }
            let Some(packet) = self.netdev.adopt(packet) else {
                self.counts.no_room += 1;
                continue;
            };
            self.batch.push(ipoib::Outgoing { packet, ether_type, route });
            if self.batch.len() >= BATCH_MAX {
                self.flush();
            }
        }
        self.flush();
    }

    pub(in crate::interface) fn recycle_buf(&mut self, packet: Buf) {
        self.netdev.recycle(packet);
    }
}

fn is_behind(waiting: &VecDeque<ipoib::Outgoing>, outgoing: &ipoib::Outgoing) -> bool {
    waiting.iter().any(|before| match (&before.route, &outgoing.route) {
        (Route::Connected(one), Route::Connected(other)) => one.connection == other.connection,
        (Route::Datagram(_), Route::Datagram(_)) => true,
        _ => false,
    })
}

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
