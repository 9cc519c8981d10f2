//! Neighbor discovery for IPv6 (RFC 4861, RFC 4391 9.3): address resolution, duplicate address
//! detection (RFC 4862 5.4), and router discovery.
//!
//! A message is accepted only from the link itself: with the maximum hop limit, which a forwarded
//! packet cannot have, and unfragmented (RFC 4861 7.1, RFC 6980). Solicitations go to the
//! solicited-node group, or to the known address of a neighbor that is probed. An answer goes to
//! the requester by UD (RFC 4755 3), and to all nodes if the request was duplicate address
//! detection.

mod own;
mod routers;
#[cfg(test)]
mod tests;

pub use own::DadState;
pub use routers::RouterAdvertised;

use crate::frame::{LinkFrame, Sender, To};
use crate::link::InterfaceAddress;
use crate::neighbor::{Claim, ClaimKind};
use crate::output::{Output, output_methods};
use pollux_verbs::reasons;
use pollux_verbs::rng::SeededRng;
use pollux_verbs::time::Time;
use pollux_wire::ip::IpProtocol;
use pollux_wire::ip::icmpv6::{Icmpv6Message, checksum_ok};
use pollux_wire::ip::ipv6::{Ipv6Header, Ipv6Packet};
use pollux_wire::ip::ipv6_ext::UpperLayer;
use pollux_wire::ip::link_address::LinkAddress;
use pollux_wire::ip::list::List;
use pollux_wire::ip::nd::{
    NdBody, NdMessage, NeighborAdvertisement, NeighborSolicitation, Redirect,
};
use pollux_wire::ip::nd_option::NdOption;
use routers::Solicitations;
use std::collections::BTreeMap;
use std::net::{IpAddr, Ipv6Addr};
use std::time::Duration;

pub const OWN_MAX: usize = 64;
const EVENTS_MAX: usize = 256;
pub const ALL_NODES: Ipv6Addr = Ipv6Addr::new(0xff02, 0, 0, 0, 0, 0, 0, 1);
pub const ALL_ROUTERS: Ipv6Addr = Ipv6Addr::new(0xff02, 0, 0, 0, 0, 0, 0, 2);
/// The hop limit of a message that no router has forwarded.
const HOP_LIMIT: u8 = 255;
/// Solicitations for an address before it is used (DupAddrDetectTransmits, RFC 4862 5.1).
pub const DETECTIONS: u8 = 1;
const DETECTION_DELAY_MAX: Duration = Duration::from_secs(1);

/// The solicited-node group of `address` (RFC 4291 2.7.1).
pub const fn solicited_node(address: Ipv6Addr) -> Ipv6Addr {
    let [.., a, b, c] = address.octets();
    let high = 0xff00 | a as u16;
    Ipv6Addr::new(0xff02, 0, 0, 0, 0, 1, high, (b as u16) << 8 | c as u16)
}

#[derive(Clone, Copy, Debug)]
pub struct NdConfig<L = LinkAddress> {
    /// Our link address: UD queue pair, port, and flags (none while connected mode is off, RFC 4755
    /// 3.1).
    pub link: L,
    /// Solicitations of duplicate address detection; with 0, an address is used at once (RFC 4862
    /// 5.1).
    pub detections: u8,
    /// The retransmit timer.
    pub retry_after: Duration,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum NdEvent<L = LinkAddress> {
    Claim(Claim<L>),
    /// Duplicate address detection is done: this address is ours now.
    Assigned(Ipv6Addr),
    /// Another node has this address, at this link address if known. We gave it up.
    Duplicate(Ipv6Addr, Option<L>),
    /// Another node claims this address of ours, and we keep it (RFC 4862 5.4.4).
    Contested(Ipv6Addr),
    Router(RouterAdvertised),
    /// This neighbor is not a router, or is no longer one (RFC 4861 7.2.5).
    NotRouter(Ipv6Addr),
    Redirected {
        /// The sender. The redirect counts only if this is the current next hop (RFC 4861 8.1).
        router: Ipv6Addr,
        destination: Ipv6Addr,
        /// The new next hop; the destination itself if it is on the link.
        target: Ipv6Addr,
    },
}

reasons! {
    pub enum NdDrop {
        Malformed = "malformed",
        /// A router may have forwarded it.
        HopLimit = "hop_limit",
        Fragment = "fragment",
        Checksum = "checksum",
        BadAddress = "bad_address",
        BadHardware = "bad_hardware",
        /// Our own packet, looped back.
        Own = "own",
        NotForUs = "not_for_us",
    }
}

pub struct Nd<L = LinkAddress> {
    config: NdConfig<L>,
    rng: SeededRng,
    own: BTreeMap<Ipv6Addr, DadState>,
    solicitations: Option<Solicitations>,
    output: Output<L, NdEvent<L>, NdDrop>,
}

struct Received<L> {
    source: Ipv6Addr,
    destination: Ipv6Addr,
    source_link: Option<L>,
    target_link: Option<L>,
}

impl<L: InterfaceAddress> Nd<L> {
    pub fn new(config: NdConfig<L>, seed: u64) -> Self {
        Self {
            config,
            rng: SeededRng::secret(seed),
            own: BTreeMap::new(),
            solicitations: None,
            output: Output::new(EVENTS_MAX),
        }
    }

    /// Starts duplicate address detection for an address; brief detection is for a program that
    /// waits for the address. Returns `false` if there are already [`OWN_MAX`] addresses.
    pub fn add(&mut self, now: Time, ip: Ipv6Addr, is_brief: bool) -> bool {
        if self.own.len() >= OWN_MAX && !self.own.contains_key(&ip) {
            return false;
        }
        let is_brief = is_brief && self.config.detections > 0;
        // The delay keeps nodes that start together, or receive the same router advertisement, from
        // probing together (RFC 4862 5.4.2).
        let until = match self.config.detections {
            _ if is_brief => now,
            0 => now,
            _ => now + self.rng.duration(DETECTION_DELAY_MAX),
        };
        self.own.insert(ip, DadState::Tentative { sent: 0, until, is_brief });
        true
    }

    pub fn remove(&mut self, ip: Ipv6Addr) {
        self.own.remove(&ip);
    }

    /// Sets a new link address, and announces it for each of our addresses (RFC 4861 7.2.6, RFC
    /// 4391 9.4).
    pub fn set_link_address(&mut self, link: L) {
        self.config.link = link;
        let all: Vec<_> = self.own.keys().copied().collect();
        for ip in all {
            self.announce(ip);
        }
    }

    /// Announces an address of ours to all nodes (RFC 4861 7.2.6), so that neighbors replace the
    /// link address of an interface that had the IP address before.
    pub fn announce(&mut self, ip: Ipv6Addr) {
        if self.is_ours(ip) {
            self.advertise(To::group_of(ALL_NODES.into()), ip, ALL_NODES, false);
        }
    }

    /// Sets the retransmit timer that routers advertise (RFC 4861 6.3.4).
    pub const fn set_retry_after(&mut self, retry_after: Duration) {
        self.config.retry_after = retry_after;
    }

    pub fn own(&self) -> impl Iterator<Item = (Ipv6Addr, DadState)> {
        self.own.iter().map(|(&ip, &state)| (ip, state))
    }

    /// Sends a solicitation for `target`: to the link address `at` where it was last known, or to
    /// its solicited-node group if `at` is `None`.
    pub fn solicit(&mut self, source: Ipv6Addr, target: Ipv6Addr, at: Option<L>) {
        let (to, destination) = match at {
            Some(address) => (To::Link(address), target),
            None => {
                let group = solicited_node(target);
                (To::group_of(group.into()), group)
            }
        };
        let link = [NdOption::Source(self.config.link.into())];
        let body = NdBody::NeighborSolicitation(NeighborSolicitation { target });
        self.send(to, source, destination, body, &link);
    }

    /// Starts router solicitations. They end when a default router advertises itself, or after the
    /// last retry.
    pub fn solicit_routers(&mut self, now: Time) {
        self.solicitations = Some(Solicitations::new(now, &mut self.rng));
    }

    /// `bytes` is an IPv6 packet with a neighbor discovery message.
    pub fn handle_packet(&mut self, bytes: &[u8]) {
        if let Err(reason) = self.handle(bytes) {
            self.output.count(reason);
        }
    }

    pub fn handle_timeout(&mut self, now: Time) {
        let due = |state: &DadState| state.due().is_some_and(|due| due <= now);
        let addresses: Vec<Ipv6Addr> =
            self.own.iter().filter(|(_, state)| due(state)).map(|(&ip, _)| ip).collect();
        for ip in addresses {
            self.detect(now, ip);
        }
        if let Some(solicitations) = self.solicitations.filter(|ours| ours.until <= now) {
            self.solicitations = solicitations.next(now);
            self.send_router_solicitation();
        }
    }

    pub fn poll_timeout(&self) -> Option<Time> {
        let own = self.own.values().filter_map(DadState::due);
        own.chain(self.solicitations.map(|solicitations| solicitations.until)).min()
    }

    output_methods!(L, NdEvent<L>, NdDrop);

    fn handle(&mut self, bytes: &[u8]) -> Result<(), NdDrop> {
        let packet = Ipv6Packet::parse(bytes).map_err(|_| NdDrop::Malformed)?;
        let header = packet.header();
        let upper = UpperLayer::find(header.next_header, packet.payload())
            .map_err(|_| NdDrop::Malformed)?;
        match upper {
            UpperLayer { fragment: Some(_), .. } => return Err(NdDrop::Fragment),
            UpperLayer { protocol: IpProtocol::ICMPV6, .. } => {}
            _ => return Err(NdDrop::Malformed),
        }
        if header.hop_limit != HOP_LIMIT {
            return Err(NdDrop::HopLimit);
        }
        if !checksum_ok(upper.payload, &header.pseudo_header()) {
            return Err(NdDrop::Checksum);
        }
        let message = NdMessage::parse(upper.payload).map_err(|_| NdDrop::Malformed)?;
        self.handle_message(&header, &message)
    }

    fn handle_message(
        &mut self,
        header: &Ipv6Header,
        message: &NdMessage<'_>,
    ) -> Result<(), NdDrop> {
        let received = self.check(header, message)?;
        match message.body {
            NdBody::NeighborSolicitation(body) => self.handle_solicitation(&received, body.target),
            NdBody::NeighborAdvertisement(body) => self.handle_advertisement(&received, &body),
            // Only routers handle it.
            NdBody::RouterSolicitation => Ok(()),
            NdBody::RouterAdvertisement(body) => {
                if !received.source.is_unicast_link_local() {
                    return Err(NdDrop::BadAddress);
                }
                self.claim_of_requester(received.source, received.source_link);
                if body.router_lifetime_seconds > 0 {
                    self.solicitations = None;
                }
                let advertised = RouterAdvertised::new(received.source, &body, &message.options);
                self.output.report(NdEvent::Router(advertised));
                Ok(())
            }
            NdBody::Redirect(body) => self.handle_redirect(&received, &body),
        }
    }

    /// The checks of all messages (RFC 4861 6.1, 7.1, 8.1).
    fn check(
        &mut self,
        header: &Ipv6Header,
        message: &NdMessage<'_>,
    ) -> Result<Received<L>, NdDrop> {
        let Ipv6Header { source, destination, .. } = *header;
        if source.is_multicast() || source.is_loopback() || destination.is_unspecified() {
            return Err(NdDrop::BadAddress);
        }
        let mut received = Received { source, destination, source_link: None, target_link: None };
        for option in message.options.iter() {
            let (link, address) = match option {
                NdOption::Source(address) => (&mut received.source_link, address),
                NdOption::Target(address) => (&mut received.target_link, address),
                _ => continue,
            };
            *link = L::of_link(address).or(*link);
        }
        let links = [received.source_link, received.target_link];
        if links.iter().flatten().any(|address| !address.is_interface()) {
            return Err(NdDrop::BadHardware);
        }
        let is_ours = |address: &L| address.is_same(&self.config.link);
        if links.iter().flatten().any(is_ours) {
            return Err(NdDrop::Own);
        }
        if self.is_ours(source) {
            self.conflict(source, received.target_link.or(received.source_link));
            return Err(NdDrop::BadAddress);
        }
        Ok(received)
    }

    /// Handles a solicitation for `target`, from address resolution or from duplicate address
    /// detection (RFC 4861 7.2.3, RFC 4862 5.4.3).
    fn handle_solicitation(
        &mut self,
        received: &Received<L>,
        target: Ipv6Addr,
    ) -> Result<(), NdDrop> {
        let Received { source, destination, source_link, .. } = *received;
        let is_detection = source.is_unspecified();
        let is_bad_detection =
            is_detection && (destination != solicited_node(target) || source_link.is_some());
        if target.is_multicast() || is_bad_detection {
            return Err(NdDrop::BadAddress);
        }
        match (self.own.get(&target), is_detection) {
            (None, _) | (Some(DadState::Tentative { .. }), false) => Err(NdDrop::NotForUs),
            (Some(DadState::Tentative { .. }), true) => {
                self.give_up(target, None);
                Ok(())
            }
            (Some(_), true) => {
                self.announce(target);
                Ok(())
            }
            (Some(_), false) => {
                self.claim_of_requester(source, source_link);
                let to = source_link.map_or(To::Neighbor(source.into()), To::Link);
                self.advertise(to, target, source, true);
                Ok(())
            }
        }
    }

    /// Handles an advertisement (RFC 4861 7.2.5, RFC 4862 5.4.4).
    fn handle_advertisement(
        &mut self,
        received: &Received<L>,
        body: &NeighborAdvertisement,
    ) -> Result<(), NdDrop> {
        let NeighborAdvertisement { router, solicited, override_cached, target } = *body;
        let is_bad = target.is_multicast() || received.source.is_unspecified();
        if is_bad || (solicited && received.destination.is_multicast()) {
            return Err(NdDrop::BadAddress);
        }
        if self.own.contains_key(&target) {
            self.conflict(target, received.target_link);
            return Ok(());
        }
        let kind = ClaimKind::Answer { solicited, override_cached };
        let claim = Claim { ip: target.into(), address: received.target_link, kind };
        self.output.report(NdEvent::Claim(claim));
        if !router {
            self.output.report(NdEvent::NotRouter(target));
        }
        Ok(())
    }

    /// Handles a redirect (RFC 4861 8.1).
    fn handle_redirect(&mut self, received: &Received<L>, body: &Redirect) -> Result<(), NdDrop> {
        let Redirect { target, destination } = *body;
        let is_next_hop = target == destination || target.is_unicast_link_local();
        let is_from_router = received.source.is_unicast_link_local();
        if !is_next_hop || !is_from_router || destination.is_multicast() || self.is_ours(target) {
            return Err(NdDrop::BadAddress);
        }
        self.claim_of_requester(target, received.target_link);
        self.output.report(NdEvent::Redirected { router: received.source, destination, target });
        Ok(())
    }

    /// Handles a conflict: another node uses an address of ours. An assigned address is kept, any
    /// other is given up.
    fn conflict(&mut self, ip: Ipv6Addr, by: Option<L>) {
        match self.own.get(&ip) {
            Some(DadState::Assigned) => self.output.report(NdEvent::Contested(ip)),
            _ => self.give_up(ip, by),
        }
    }

    fn give_up(&mut self, ip: Ipv6Addr, by: Option<L>) {
        self.own.remove(&ip);
        self.output.report(NdEvent::Duplicate(ip, by));
    }

    fn claim_of_requester(&mut self, ip: Ipv6Addr, address: Option<L>) {
        if address.is_some() {
            let ip = IpAddr::V6(ip);
            self.output.report(NdEvent::Claim(Claim { ip, address, kind: ClaimKind::Request }));
        }
    }

    fn is_ours(&self, ip: Ipv6Addr) -> bool {
        self.own.get(&ip).is_some_and(DadState::is_ours)
    }

    /// Sends the next solicitation of duplicate address detection for `ip`, or ends the detection.
    fn detect(&mut self, now: Time, ip: Ipv6Addr) {
        let NdConfig { detections, retry_after, .. } = self.config;
        let Some(state) = self.own.get_mut(&ip) else { return };
        let was_ours = state.is_ours();
        let (next, ask) = state.timed_out(now, detections, retry_after);
        *state = next;
        if ask {
            let group = solicited_node(ip);
            let body = NdBody::NeighborSolicitation(NeighborSolicitation { target: ip });
            self.send(To::group_of(group.into()), Ipv6Addr::UNSPECIFIED, group, body, &[]);
        }
        if next.is_ours() && !was_ours {
            self.output.report(NdEvent::Assigned(ip));
        }
    }

    fn advertise(&mut self, to: To<L>, ip: Ipv6Addr, destination: Ipv6Addr, solicited: bool) {
        let body = NdBody::NeighborAdvertisement(NeighborAdvertisement {
            router: false,
            solicited,
            override_cached: true,
            target: ip,
        });
        let link = [NdOption::Target(self.config.link.into())];
        self.send(to, ip, destination, body, &link);
    }

    /// Sends a router solicitation from our link-local address, or from the unspecified address if
    /// there is none.
    fn send_router_solicitation(&mut self) {
        let mut ours = self.own.iter().filter(|(_, state)| state.is_ours());
        let local = ours.find(|(ip, _)| ip.is_unicast_link_local()).map(|(&ip, _)| ip);
        let link = [NdOption::Source(self.config.link.into())];
        let options = if local.is_some() { &link[..] } else { &[] };
        let source = local.unwrap_or(Ipv6Addr::UNSPECIFIED);
        let to = To::group_of(ALL_ROUTERS.into());
        self.send(to, source, ALL_ROUTERS, NdBody::RouterSolicitation, options);
    }

    fn send(
        &mut self,
        to: To<L>,
        source: Ipv6Addr,
        destination: Ipv6Addr,
        body: NdBody,
        options: &[NdOption<'_>],
    ) {
        let from = Sender { source, destination, hop_limit: HOP_LIMIT, router_alert: false };
        let message = Icmpv6Message::Nd(NdMessage { body, options: List::of(options) });
        if let Some(frame) = LinkFrame::icmpv6(to, from, &message) {
            self.output.send(frame);
        }
    }
}
