//! Resolution of a packet: from its destination to the next hop, the link address and the path.
//! Also the events and frames of address resolution (RFC 4391 9, RFC 4755 3).

use super::{Delivery, InterfaceDrop, IpoibInterface, PendingPacket, WorkerId};
use crate::address::NextHop;
use crate::arp::ArpEvent;
use crate::beyond::{InterfaceTransfer, TransferKind};
use crate::frame::{LinkFrame, To, destination};
use crate::icmp::IcmpError;
use crate::membership::MembershipEvent;
use crate::nd::NdEvent;
use crate::neighbor::{Claim, ClaimKind, NeighborEvent, Resolution, Solicitation};
use pollux_verbs::time::Time;
use pollux_wire::ip::mgid::GroupId;
use std::net::IpAddr;

impl IpoibInterface {
    pub(super) fn route(&mut self, now: Time, pending: PendingPacket) {
        let flow = self.routing.flow_of(&pending.packet);
        self.route_by(now, pending, flow);
    }

    /// Like [`Self::route`], with the flow hash of another packet.
    fn route_by(&mut self, now: Time, pending: PendingPacket, flow: u32) {
        let Some(destination) = destination(&pending.packet) else {
            return self.drops.count(InterfaceDrop::Malformed);
        };
        if self.addresses.is_ours(destination) {
            let PendingPacket { ether_type, packet, .. } = pending;
            return self.deliveries.push(Delivery { ether_type, packet });
        }
        let Some(pending) = self.route_beyond(now, destination, flow, pending) else { return };
        match self.next_hop_of(now, destination, flow) {
            Some(NextHop::Group(ip)) => {
                let id = GroupId::of(ip).unwrap_or(GroupId::Broadcast);
                self.send_to_group(now, id, pending);
            }
            Some(hop) => self.send_to(now, hop.ip(), pending),
            None => {
                self.drops.count(InterfaceDrop::NoRoute);
                self.send_icmp_error(now, &pending.packet, IcmpError::NoRoute);
            }
        }
    }

    pub(super) fn send_to(&mut self, now: Time, next_hop: IpAddr, pending: PendingPacket) {
        if let Some(id) = GroupId::of(next_hop) {
            return self.send_to_group(now, id, pending);
        }
        if !self.check_up() {
            return;
        }
        match self.neighbors.resolve(now, next_hop, pending) {
            Resolution::Known(link, pending) => {
                // The call may have caused events.
                self.handle_neighbor_events(now);
                self.send_to_peer(now, &link, pending);
            }
            Resolution::Waits => {}
            Resolution::Unreachable(pending) => self.unreachable(now, &pending),
        }
    }

    /// Sends an ICMP error to the sender of a packet. The flow hash of that packet selects the next
    /// hop of the error, so that all interfaces of the node select the same one, and the error has
    /// an address of the interface by which it leaves.
    pub(super) fn send_icmp_error(&mut self, now: Time, packet: &[u8], error: IcmpError) {
        if destination(packet).is_none() {
            return;
        }
        let flow = self.routing.flow_of(packet);
        if let Some(interface) = self.sender_is_beyond(now, packet, flow) {
            let (packet, kind) = (packet.to_vec(), TransferKind::IcmpError(error));
            return self.routing.transfers.push(InterfaceTransfer { interface, packet, kind });
        }
        let frame = self.icmp.error_about(now, packet, false, error, &self.addresses);
        if let Some(frame) = frame {
            self.route_by(now, PendingPacket::of(frame.packet), flow);
        }
    }

    /// Sends an ICMP error to the sender of a packet. If the packet is in transit, the interface
    /// `from` where it arrived sends the error.
    pub(super) fn send_error_back(
        &mut self,
        now: Time,
        packet: &[u8],
        from: Option<u16>,
        error: IcmpError,
    ) {
        if !from.is_some_and(|from| self.routing.transfer_error(from, packet, error)) {
            self.send_icmp_error(now, packet, error);
        }
    }

    /// Drops a packet to an unreachable next hop. The sender gets an ICMP error, unless it is a
    /// packet of address resolution.
    pub(super) fn unreachable(&mut self, now: Time, pending: &PendingPacket) {
        self.drops.count(InterfaceDrop::Unreachable);
        if !pending.by_datagram {
            self.send_error_back(now, &pending.packet, pending.from, IcmpError::AddressUnreachable);
        }
    }

    pub(super) fn handle_resolution_events(&mut self, now: Time) -> bool {
        let mut has_progress = self.handle_neighbor_events(now);
        while let Some(event) = self.arp.poll_event() {
            has_progress = true;
            self.handle_arp_event(now, event);
        }
        while let Some(event) = self.nd.poll_event() {
            has_progress = true;
            self.handle_nd_event(now, event);
        }
        has_progress | self.send_resolution_frames(now)
    }

    fn send_resolution_frames(&mut self, now: Time) -> bool {
        let mut has_progress = false;
        while let Some(frame) = self.arp.poll_transmit().or_else(|| self.nd.poll_transmit()) {
            has_progress = true;
            self.send_frame(now, frame);
        }
        has_progress
    }

    pub(super) fn handle_membership_events(&mut self, now: Time) -> bool {
        let mut has_progress = false;
        while let Some(event) = self.membership.poll_event() {
            has_progress = true;
            match event {
                MembershipEvent::Join(id) => self.want_group(now, id),
                MembershipEvent::Leave(id) => self.unwant_group(now, id),
            }
        }
        while let Some(frame) = self.membership.poll_transmit() {
            has_progress = true;
            self.send_frame(now, frame.at_link());
        }
        has_progress
    }

    pub(super) fn forget_neighbors(&mut self, now: Time) {
        self.neighbors.flush();
        self.handle_neighbor_events(now);
        for (ip, _) in self.config.neighbors.clone() {
            self.neighbors.remove(ip);
        }
        self.handle_neighbor_events(now);
        self.paths = Default::default();
    }

    fn handle_neighbor_events(&mut self, now: Time) -> bool {
        let mut has_progress = false;
        while let Some(event) = self.neighbors.poll_event() {
            has_progress = true;
            self.handle_neighbor_event(now, event);
        }
        while let Some(question) = self.neighbors.poll_transmit() {
            has_progress = true;
            self.solicit(question);
            // One call may solicit more neighbors than the queues of ARP and ND hold, so their
            // frames are sent after each. A lost solicitation counts as sent, and neighbors with
            // the same timing would lose theirs each time.
            self.send_resolution_frames(now);
        }
        has_progress
    }

    fn handle_neighbor_event(&mut self, now: Time, event: NeighborEvent<PendingPacket>) {
        match event {
            NeighborEvent::Resolved(ip, link, packets) => {
                self.out_of_service.handle_resolved(now, ip);
                self.bind(now, ip, link);
                for pending in packets {
                    self.send_to_peer(now, &link, pending);
                }
            }
            NeighborEvent::Changed(ip, before, link) => {
                if !link.is_same_interface(&before) {
                    self.out_of_service.handle_moved(now, ip);
                    self.unbind(now, ip, &before);
                }
                self.bind(now, ip, link);
            }
            NeighborEvent::Lost(ip, link) => {
                self.unbind(now, ip, &link);
                self.handle_unresponsive(now, ip, link.gid);
            }
            NeighborEvent::Unreachable(_, packets) => {
                packets.iter().for_each(|pending| self.unreachable(now, pending));
            }
            NeighborEvent::Forgotten(ip, link, packets) => {
                self.out_of_service.handle_forgotten(ip);
                packets.iter().for_each(|_| self.drops.count(InterfaceDrop::PeerGone));
                if let Some(link) = link {
                    self.unbind(now, ip, &link);
                }
            }
        }
    }

    fn solicit(&mut self, Solicitation { ip, at }: Solicitation) {
        match (self.addresses.source_for(ip), ip) {
            (Some(IpAddr::V4(source)), IpAddr::V4(ip)) => self.arp.solicit(source, ip, at),
            (Some(IpAddr::V6(source)), IpAddr::V6(ip)) => self.nd.solicit(source, ip, at),
            _ => self.drops.count(InterfaceDrop::NoSource),
        }
    }

    /// Handles a claim. A claim about an address that no neighbor can have is ignored: a forged one
    /// could capture packets that go to a router or to the broadcast group.
    fn handle_claim(&mut self, now: Time, claim: Claim) {
        let is_for_all = matches!(claim.ip, IpAddr::V4(ip) if self.addresses.is_broadcast(ip));
        if is_for_all || !self.routes.is_on_link(now, claim.ip) {
            return self.drops.count(InterfaceDrop::ClaimOffLink);
        }
        if let Some(link) = claim.address {
            self.retry_path_early(now, link.gid);
            if matches!(claim.kind, ClaimKind::Answer { solicited: false, .. }) {
                self.connections.handle_announcement(now, &link);
                self.out_of_service.handle_moved(now, claim.ip);
            }
        }
        self.neighbors.handle_claim(now, claim);
    }

    fn handle_arp_event(&mut self, now: Time, event: ArpEvent) {
        match event {
            ArpEvent::Claim(claim) => self.handle_claim(now, claim),
            ArpEvent::Held(ip) => self.addresses.handle_assigned(now, ip.into()),
            ArpEvent::Ceded(ip, by) => self.addresses.handle_duplicate(now, ip.into(), Some(by)),
            ArpEvent::Contested(..) => self.drops.count(InterfaceDrop::AddressContested),
            ArpEvent::Inverse(..) | ArpEvent::Unanswered(_) => {}
        }
    }

    fn handle_nd_event(&mut self, now: Time, event: NdEvent) {
        match event {
            NdEvent::Claim(claim) => self.handle_claim(now, claim),
            NdEvent::Assigned(ip) => {
                self.addresses.handle_assigned(now, ip.into());
                self.nd.announce(ip);
            }
            NdEvent::Duplicate(ip, by) => self.addresses.handle_duplicate(now, ip.into(), by),
            NdEvent::Contested(_) => self.drops.count(InterfaceDrop::AddressContested),
            NdEvent::Router(advertised) => {
                self.routes.handle_router(now, &advertised);
                self.neighbors.set_times(advertised.reachable_for, advertised.retry_after);
                advertised.retry_after.into_iter().for_each(|after| self.nd.set_retry_after(after));
                let id = self.interface_id();
                advertised.prefixes.iter().for_each(|it| self.addresses.handle_prefix(now, it, id));
            }
            NdEvent::NotRouter(ip) => self.routes.handle_not_router(ip),
            NdEvent::Redirected { router, destination, target } => {
                let neighbors = &self.neighbors;
                let may_be_reachable = |ip| neighbors.may_be_reachable(ip);
                self.routes.handle_redirect(now, router, destination, target, may_be_reachable);
            }
        }
    }

    /// Sends a frame of a control protocol: by datagram, unless it goes by route (RFC 4755 3).
    pub(super) fn send_frame(&mut self, now: Time, frame: LinkFrame) {
        let LinkFrame { to, ether_type, packet } = frame;
        let worker = WorkerId::PRIMARY;
        let pending = PendingPacket { ether_type, packet, by_datagram: true, worker, from: None };
        match to {
            To::Group(id) => self.send_to_group(now, id, pending),
            To::Link(link) => {
                if self.check_up() {
                    self.send_to_link(now, link.gid, link.qpn, pending);
                }
            }
            To::Neighbor(ip) => self.send_to(now, ip, pending),
            To::Route => self.route(now, PendingPacket::of(pending.packet)),
        }
    }
}
