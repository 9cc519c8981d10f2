//! Events between ARP, neighbor discovery and the neighbor cache.

use super::{EthernetDrop, EthernetEvent, EthernetNeighbors, OutgoingFrame};
use crate::address::{Addresses, is_in};
use crate::arp::ArpEvent;
use crate::frame::{LinkFrame, To, destination};
use crate::nd::NdEvent;
use crate::neighbor::{Claim, NeighborEvent, Solicitation};
use pollux_verbs::time::Time;
use pollux_wire::ethernet::{EtherType, MacAddress};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

impl EthernetNeighbors {
    pub(super) fn set_sources(&mut self, ours: &Addresses) {
        let v4 = ours.iter().filter(|one| one.state.may_be_source()).find_map(|one| match one.ip {
            IpAddr::V4(ip) => Some(ip),
            IpAddr::V6(_) => None,
        });
        let v6 = ours.link_local().unwrap_or(Ipv6Addr::UNSPECIFIED);
        self.membership.set_sources(v4.unwrap_or(Ipv4Addr::UNSPECIFIED), v6);
    }

    pub(super) fn handle_neighbor_event(&mut self, event: NeighborEvent<Vec<u8>, MacAddress>) {
        match event {
            NeighborEvent::Resolved(ip, address, packets) => {
                self.changes.push_back((ip, Some(address)));
                packets.into_iter().for_each(|packet| self.push(address, packet));
            }
            NeighborEvent::Changed(ip, _, address) => {
                self.changes.push_back((ip, Some(address)));
            }
            NeighborEvent::Lost(ip, _) => self.changes.push_back((ip, None)),
            NeighborEvent::Unreachable(_, packets) => {
                packets.into_iter().for_each(|packet| self.unreachable(packet));
            }
            NeighborEvent::Forgotten(ip, _, packets) => {
                packets.iter().for_each(|_| self.drops.count(EthernetDrop::NeighborGone));
                self.changes.push_back((ip, None));
            }
        }
    }

    pub(super) fn solicit(&mut self, question: Solicitation<MacAddress>, ours: &Addresses) {
        let Solicitation { ip, at } = question;
        match (ours.source_for(ip), ip) {
            (Some(IpAddr::V4(source)), IpAddr::V4(ip)) => self.arp.solicit(source, ip, at),
            (Some(IpAddr::V6(source)), IpAddr::V6(ip)) => self.nd.solicit(source, ip, at),
            _ => self.drops.count(EthernetDrop::NoSource),
        }
    }

    /// Handles a claim. A claim of an off-link address is ignored: it could divert packets that
    /// have to go to a router.
    fn handle_claim(&mut self, now: Time, claim: Claim<MacAddress>, ours: &Addresses) {
        let is_on_link = match claim.ip {
            IpAddr::V4(ip) if ours.is_broadcast(ip) => false,
            IpAddr::V6(ip) if ip.is_unicast_link_local() => true,
            ip => ours.iter().any(|one| is_in(ip, (one.ip, one.prefix_len))),
        };
        match is_on_link {
            true => self.neighbors.handle_claim(now, claim),
            false => self.drops.count(EthernetDrop::ClaimOffLink),
        }
    }

    pub(super) fn handle_arp_event(
        &mut self,
        now: Time,
        event: ArpEvent<MacAddress>,
        ours: &Addresses,
    ) {
        match event {
            ArpEvent::Claim(claim) => self.handle_claim(now, claim, ours),
            ArpEvent::Held(ip) => self.events.push_back(EthernetEvent::Assigned(ip.into())),
            ArpEvent::Ceded(ip, by) => {
                self.events.push_back(EthernetEvent::Duplicate(ip.into(), Some(by)));
            }
            ArpEvent::Contested(..) => self.drops.count(EthernetDrop::AddressContested),
            ArpEvent::Inverse(..) | ArpEvent::Unanswered(_) => {}
        }
    }

    pub(super) fn handle_nd_event(
        &mut self,
        now: Time,
        event: NdEvent<MacAddress>,
        ours: &Addresses,
    ) {
        match event {
            NdEvent::Claim(claim) => self.handle_claim(now, claim, ours),
            NdEvent::Assigned(ip) => {
                self.events.push_back(EthernetEvent::Assigned(ip.into()));
                self.nd.announce(ip);
            }
            NdEvent::Duplicate(ip, by) => {
                self.events.push_back(EthernetEvent::Duplicate(ip.into(), by));
            }
            NdEvent::Contested(_) => self.drops.count(EthernetDrop::AddressContested),
            NdEvent::Router(_) | NdEvent::NotRouter(_) | NdEvent::Redirected { .. } => {}
        }
    }

    /// Sends the frames of all protocols. Returns whether there were any.
    pub(super) fn send_frames(&mut self, now: Time, ours: &Addresses) -> bool {
        let mut has_progress = false;
        while let Some(frame) = self.arp.poll_transmit().or_else(|| self.nd.poll_transmit()) {
            has_progress = true;
            self.send_frame(now, frame, ours);
        }
        while let Some(frame) = self.membership.poll_transmit() {
            has_progress = true;
            self.send_frame(now, frame.at_link(), ours);
        }
        has_progress
    }

    fn send_frame(&mut self, now: Time, frame: LinkFrame<MacAddress>, ours: &Addresses) {
        let LinkFrame { to, ether_type, packet } = frame;
        let to = match to {
            To::Link(address) => Some(address),
            To::Group(_) if ether_type == EtherType::ARP => Some(MacAddress::BROADCAST),
            To::Group(_) | To::Route => None,
            To::Neighbor(ip) => return self.resolve(now, ip, packet, ours),
        };
        match (to, destination(&packet)) {
            (Some(to), _) => self.frames.push(OutgoingFrame { to, ether_type, packet }),
            (None, Some(destination)) => self.resolve(now, destination, packet, ours),
            (None, None) => {}
        }
    }
}
