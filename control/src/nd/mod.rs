//! Neighbor discovery for IPv6 (RFC 4861, RFC 4391 9.3): who has which address, whether anybody
//! has ours (RFC 4862 5.4), and what routers say.
//!
//! A message counts only if it comes from the link itself: with the hop limit that no router lets
//! through, whole, and in no fragment (RFC 4861 7.1, RFC 6980). Questions go to the solicited-node
//! group, and every answer to one interface by UD (RFC 4755 3).

mod own;
mod routers;
#[cfg(test)]
mod tests;

pub use own::OwnState;
pub use routers::{
    PREFIXES_PER_ADVERTISEMENT_MAX, RouterAdvertised, SERVERS_PER_ADVERTISEMENT_MAX,
};

use crate::bounded::Queue;
use crate::drops::{Drops, reasons};
use crate::frame::{FRAMES_MAX, Frame, Sender, To, is_interface};
use crate::neighbor::{Claim, ClaimKind};
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

/// Addresses of ours, at most.
pub const OWN_MAX: usize = 64;
/// What happened and was not taken yet, at most.
const EVENTS_MAX: usize = 256;
/// Whoever is on the link.
pub const ALL_NODES: Ipv6Addr = Ipv6Addr::new(0xff02, 0, 0, 0, 0, 0, 0, 1);
/// Every router on the link.
pub const ALL_ROUTERS: Ipv6Addr = Ipv6Addr::new(0xff02, 0, 0, 0, 0, 0, 0, 2);
/// The hop limit that shows that no router was on the way.
const HOP_LIMIT: u8 = 255;
const DETECTION_DELAY_MAX: Duration = Duration::from_secs(1);

/// The group in which whoever has `address` hears questions about it (RFC 4291 2.7.1).
pub const fn solicited_node(address: Ipv6Addr) -> Ipv6Addr {
    let [.., a, b, c] = address.octets();
    let high = 0xff00 | a as u16;
    Ipv6Addr::new(0xff02, 0, 0, 0, 0, 1, high, (b as u16) << 8 | c as u16)
}

/// How neighbor discovery behaves.
#[derive(Clone, Copy, Debug)]
pub struct NdConfig {
    /// Where we are: our UD queue pair, our port, and what we offer (nothing while connected mode
    /// is off, RFC 4755 3.1).
    pub link: LinkAddress,
    /// Whether we forward: told in every answer.
    pub is_router: bool,
    /// How often others are asked whether they have an address before it is used; 0 uses it at
    /// once (RFC 4862 5.1).
    pub detections: u8,
    /// How long an answer may take.
    pub retry_after: Duration,
}

/// What neighbor discovery found out.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum NdEvent {
    /// A neighbor says where it is.
    Claim(Claim),
    /// Nobody else has this address; it is ours now.
    Assigned(Ipv6Addr),
    /// Another node has this address, which we wished for: it is not ours.
    Duplicate(Ipv6Addr),
    /// Another node says that it has this address of ours (RFC 4862 5.4.4).
    Contested(Ipv6Addr),
    /// A router speaks.
    Router(RouterAdvertised),
    /// This node is no router, whatever it was before (RFC 4861 7.2.5).
    NotRouter(Ipv6Addr),
    /// A router says that packets to somebody go better another way.
    Redirected {
        /// Who says so: it counts only from the next hop in use (RFC 4861 8.1).
        router: Ipv6Addr,
        /// To whom.
        destination: Ipv6Addr,
        /// Which way; the destination itself when that is on the link.
        target: Ipv6Addr,
    },
}

reasons! {
    /// Why a packet was dropped.
    pub enum NdDrop {
        /// It is no such message, or not whole.
        Malformed = "malformed",
        /// It came from beyond the link.
        HopLimit = "hop_limit",
        /// It came in parts.
        Fragment = "fragment",
        /// Its checksum is wrong.
        Checksum = "checksum",
        /// Its addresses cannot be those of such a message.
        BadAddress = "bad_address",
        /// Its link address is that of no interface.
        BadHardware = "bad_hardware",
        /// It is our own, come back.
        Own = "own",
        /// It asks for what we do not have.
        NotForUs = "not_for_us",
    }
}

/// Neighbor discovery on one interface.
pub struct Nd {
    config: NdConfig,
    rng: SeededRng,
    own: BTreeMap<Ipv6Addr, OwnState>,
    solicitations: Option<Solicitations>,
    frames: Queue<Frame>,
    events: Queue<NdEvent>,
    drops: Drops<NdDrop>,
}

/// What a received message has beside its body.
struct Received {
    source: Ipv6Addr,
    destination: Ipv6Addr,
    source_link: Option<LinkAddress>,
    target_link: Option<LinkAddress>,
}

impl Nd {
    /// One that has no address yet.
    pub fn new(config: NdConfig, seed: u64) -> Self {
        Self {
            config,
            rng: SeededRng::secret(seed),
            own: BTreeMap::new(),
            solicitations: None,
            frames: Queue::new(FRAMES_MAX),
            events: Queue::new(EVENTS_MAX),
            drops: Drops::default(),
        }
    }

    /// Begins to claim an address, after asking whether another node has it. `false` if there are
    /// too many.
    pub fn add(&mut self, now: Time, ip: Ipv6Addr) -> bool {
        if self.own.len() >= OWN_MAX && !self.own.contains_key(&ip) {
            return false;
        }
        // The delay also keeps the groups that are joined first from being flooded (RFC 4862
        // 5.4.2).
        let until = match self.config.detections {
            0 => now,
            _ => now + self.rng.duration(DETECTION_DELAY_MAX),
        };
        self.own.insert(ip, OwnState::Tentative { sent: 0, until });
        true
    }

    /// Gives an address up.
    pub fn remove(&mut self, ip: Ipv6Addr) {
        self.own.remove(&ip);
    }

    /// Our link address changed: everyone is told, for each address (RFC 4861 7.2.6, RFC 4391
    /// 9.4).
    pub fn set_link_address(&mut self, link: LinkAddress) {
        self.config.link = link;
        let ours: Vec<_> =
            self.own.iter().filter(|(_, state)| state.is_ours()).map(|(&ip, _)| ip).collect();
        for ip in ours {
            self.advertise(To::group_of(ALL_NODES.into()), ip, ALL_NODES, false);
        }
    }

    /// What routers say of how long answers may take (RFC 4861 6.3.4).
    pub const fn set_retry_after(&mut self, retry_after: Duration) {
        self.config.retry_after = retry_after;
    }

    /// How far our addresses are.
    pub fn own(&self) -> impl Iterator<Item = (Ipv6Addr, OwnState)> {
        self.own.iter().map(|(&ip, &state)| (ip, state))
    }

    /// Asks who has `target`: its group, or who had it.
    pub fn solicit(&mut self, source: Ipv6Addr, target: Ipv6Addr, at: Option<LinkAddress>) {
        let (to, destination) = match at {
            Some(address) => (To::Link(address), target),
            None => {
                let group = solicited_node(target);
                (To::group_of(group.into()), group)
            }
        };
        let link = [NdOption::SourceLinkAddress(self.config.link)];
        let body = NdBody::NeighborSolicitation(NeighborSolicitation { target });
        self.send(to, source, destination, body, &link);
    }

    /// Asks which routers there are, until one answers or nobody did a few times.
    pub fn solicit_routers(&mut self, now: Time) {
        self.solicitations = Some(Solicitations::new(now, &mut self.rng));
    }

    /// An IPv6 packet came that carries such a message, without the header of the link.
    pub fn handle_packet(&mut self, bytes: &[u8]) {
        if let Err(reason) = self.handle(bytes) {
            self.drops.count(reason);
        }
    }

    /// Does what is due by now.
    pub fn handle_timeout(&mut self, now: Time) {
        let due = |state: &OwnState| state.due().is_some_and(|due| due <= now);
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

    /// When something is due.
    pub fn poll_timeout(&self) -> Option<Time> {
        let own = self.own.values().filter_map(OwnState::due);
        own.chain(self.solicitations.map(|solicitations| solicitations.until)).min()
    }

    /// The next frame to send.
    pub fn poll_transmit(&mut self) -> Option<Frame> {
        self.frames.pop()
    }

    /// What was found out next.
    pub fn poll_event(&mut self) -> Option<NdEvent> {
        self.events.pop()
    }

    /// Frames and events that had no room, because nobody took those before them.
    pub const fn lost(&self) -> u64 {
        self.frames.lost() + self.events.lost()
    }

    /// What was dropped, and why.
    pub const fn drops(&self) -> &Drops<NdDrop> {
        &self.drops
    }

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
        let received = self.received(header, message)?;
        match message.body {
            NdBody::NeighborSolicitation(body) => self.solicited(&received, body.target),
            NdBody::NeighborAdvertisement(body) => self.advertised(&received, &body),
            NdBody::RouterSolicitation => self.router_solicited(&received),
            NdBody::RouterAdvertisement(body) => {
                if !received.source.is_unicast_link_local() {
                    return Err(NdDrop::BadAddress);
                }
                self.mention(received.source, received.source_link);
                if body.router_lifetime_seconds > 0 {
                    self.solicitations = None;
                }
                let said = RouterAdvertised::new(received.source, &body, &message.options);
                self.events.push(NdEvent::Router(said));
                Ok(())
            }
            NdBody::Redirect(body) => self.redirected(&received, &body),
        }
    }

    /// What all messages have to fulfil (RFC 4861 6.1, 7.1, 8.1).
    fn received(
        &mut self,
        header: &Ipv6Header,
        message: &NdMessage<'_>,
    ) -> Result<Received, NdDrop> {
        let Ipv6Header { source, destination, .. } = *header;
        if source.is_multicast() || source.is_loopback() || destination.is_unspecified() {
            return Err(NdDrop::BadAddress);
        }
        let mut received = Received { source, destination, source_link: None, target_link: None };
        for option in message.options.iter() {
            match option {
                NdOption::SourceLinkAddress(address) => received.source_link = Some(address),
                NdOption::TargetLinkAddress(address) => received.target_link = Some(address),
                _ => {}
            }
        }
        let links = [received.source_link, received.target_link];
        if links.iter().flatten().any(|address| !is_interface(address)) {
            return Err(NdDrop::BadHardware);
        }
        let is_ours = |address: &LinkAddress| address.is_same_interface(&self.config.link);
        if links.iter().flatten().any(is_ours) {
            return Err(NdDrop::Own);
        }
        if self.is_ours(source) {
            self.events.push(NdEvent::Contested(source));
            return Err(NdDrop::BadAddress);
        }
        Ok(received)
    }

    /// Somebody asks for `target`, or whether it may have it (RFC 4861 7.2.3, RFC 4862 5.4.3).
    fn solicited(&mut self, received: &Received, target: Ipv6Addr) -> Result<(), NdDrop> {
        let Received { source, destination, source_link, .. } = *received;
        let is_detection = source.is_unspecified();
        let is_bad_detection =
            is_detection && (destination != solicited_node(target) || source_link.is_some());
        if target.is_multicast() || is_bad_detection {
            return Err(NdDrop::BadAddress);
        }
        match (self.own.get(&target), is_detection) {
            (None, _) | (Some(OwnState::Tentative { .. }), false) => Err(NdDrop::NotForUs),
            (Some(OwnState::Tentative { .. }), true) => {
                self.give_up(target);
                Ok(())
            }
            (Some(OwnState::Assigned), true) => {
                self.advertise(To::group_of(ALL_NODES.into()), target, ALL_NODES, false);
                Ok(())
            }
            (Some(OwnState::Assigned), false) => {
                self.mention(source, source_link);
                let to = source_link.map_or(To::Neighbor(source.into()), To::Link);
                self.advertise(to, target, source, true);
                Ok(())
            }
        }
    }

    /// Somebody says where it is (RFC 4861 7.2.5, RFC 4862 5.4.4).
    fn advertised(
        &mut self,
        received: &Received,
        body: &NeighborAdvertisement,
    ) -> Result<(), NdDrop> {
        let NeighborAdvertisement { router, solicited, override_cached, target } = *body;
        let is_bad = target.is_multicast() || received.source.is_unspecified();
        if is_bad || (solicited && received.destination.is_multicast()) {
            return Err(NdDrop::BadAddress);
        }
        match self.own.get(&target) {
            Some(OwnState::Tentative { .. }) => self.give_up(target),
            Some(OwnState::Assigned) => self.events.push(NdEvent::Contested(target)),
            None => {
                let kind = ClaimKind::Answer { solicited, override_cached };
                let claim = Claim { ip: target.into(), address: received.target_link, kind };
                self.events.push(NdEvent::Claim(claim));
                if !router {
                    self.events.push(NdEvent::NotRouter(target));
                }
            }
        }
        Ok(())
    }

    /// A node asks for routers. Whoever is one answers with what it was configured to say, which
    /// is not decided here; but the node can be remembered.
    fn router_solicited(&mut self, received: &Received) -> Result<(), NdDrop> {
        let Received { source, source_link, .. } = *received;
        if source.is_unspecified() && source_link.is_some() {
            return Err(NdDrop::BadAddress);
        }
        if self.config.is_router && !source.is_unspecified() {
            self.mention(source, source_link);
        }
        Ok(())
    }

    /// A router knows a better way (RFC 4861 8.1).
    fn redirected(&mut self, received: &Received, body: &Redirect) -> Result<(), NdDrop> {
        let Redirect { target, destination } = *body;
        let is_way = target == destination || target.is_unicast_link_local();
        let is_from_router = received.source.is_unicast_link_local();
        if !is_way || !is_from_router || destination.is_multicast() || self.is_ours(target) {
            return Err(NdDrop::BadAddress);
        }
        self.mention(target, received.target_link);
        self.events.push(NdEvent::Redirected { router: received.source, destination, target });
        Ok(())
    }

    fn give_up(&mut self, ip: Ipv6Addr) {
        self.own.remove(&ip);
        self.events.push(NdEvent::Duplicate(ip));
    }

    fn mention(&mut self, ip: Ipv6Addr, address: Option<LinkAddress>) {
        if address.is_some() {
            let ip = IpAddr::V6(ip);
            self.events.push(NdEvent::Claim(Claim { ip, address, kind: ClaimKind::Mention }));
        }
    }

    fn is_ours(&self, ip: Ipv6Addr) -> bool {
        self.own.get(&ip).is_some_and(OwnState::is_ours)
    }

    /// Asks once more whether anybody has `ip`, or takes it.
    fn detect(&mut self, now: Time, ip: Ipv6Addr) {
        let NdConfig { detections, retry_after, .. } = self.config;
        let Some(state) = self.own.get_mut(&ip) else { return };
        let (next, ask) = state.timed_out(now, detections, retry_after);
        *state = next;
        if ask {
            let group = solicited_node(ip);
            let body = NdBody::NeighborSolicitation(NeighborSolicitation { target: ip });
            self.send(To::group_of(group.into()), Ipv6Addr::UNSPECIFIED, group, body, &[]);
        }
        if next.is_ours() {
            self.events.push(NdEvent::Assigned(ip));
        }
    }

    fn advertise(&mut self, to: To, ip: Ipv6Addr, destination: Ipv6Addr, solicited: bool) {
        let body = NdBody::NeighborAdvertisement(NeighborAdvertisement {
            router: self.config.is_router,
            solicited,
            override_cached: true,
            target: ip,
        });
        let link = [NdOption::TargetLinkAddress(self.config.link)];
        self.send(to, ip, destination, body, &link);
    }

    /// From our link-local address if we have one already, else from nobody.
    fn send_router_solicitation(&mut self) {
        let mut ours = self.own.iter().filter(|(_, state)| state.is_ours());
        let local = ours.find(|(ip, _)| ip.is_unicast_link_local()).map(|(&ip, _)| ip);
        let link = [NdOption::SourceLinkAddress(self.config.link)];
        let options = if local.is_some() { &link[..] } else { &[] };
        let source = local.unwrap_or(Ipv6Addr::UNSPECIFIED);
        let to = To::group_of(ALL_ROUTERS.into());
        self.send(to, source, ALL_ROUTERS, NdBody::RouterSolicitation, options);
    }

    fn send(
        &mut self,
        to: To,
        source: Ipv6Addr,
        destination: Ipv6Addr,
        body: NdBody,
        options: &[NdOption<'_>],
    ) {
        let from = Sender { source, destination, hop_limit: HOP_LIMIT, router_alert: false };
        let message = Icmpv6Message::Nd(NdMessage { body, options: List::of(options) });
        if let Some(frame) = Frame::icmpv6(to, from, &message) {
            self.frames.push(frame);
        }
    }
}
