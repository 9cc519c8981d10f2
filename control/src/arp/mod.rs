//! Address resolution for IPv4 (RFC 826, RFC 4391 9.2), with what grew around it: conflicts and
//! announcements (RFC 5227), inverse (RFC 2390) and reverse forms (RFC 903), and answers on behalf
//! of registered hosts.
//!
//! Requests go to the broadcast group, and every answer to one link address by UD (RFC 4755 3). An
//! answer carries our own link address as it is now; that it waits for a path to whoever asked is
//! the sender's business, who finds paths.
//!
//! A link that has no multicast can have an address server, in the manner of classical IP over ATM:
//! hosts are registered there by configuration, and it answers for them. Their own answers are as
//! good, so it does no harm where there is multicast.

mod own;
mod questions;
#[cfg(test)]
mod tests;

pub use own::OwnState;
pub use questions::QUESTIONS_MAX;

use crate::bounded::Queue;
use crate::drops::{Drops, reasons};
use crate::frame::{FRAMES_MAX, Frame, To, is_interface};
use crate::neighbor::{Claim, ClaimKind};
use own::{Conflict, Say};
use pollux_verbs::rng::SeededRng;
use pollux_verbs::time::Time;
use pollux_wire::ip::arp::{ArpOperation, ArpPacket};
use pollux_wire::ip::ipoib::EtherType;
use pollux_wire::ip::link_address::LinkAddress;
use pollux_wire::ip::mgid::GroupId;
use questions::{Due, Questions};
use std::collections::BTreeMap;
use std::net::Ipv4Addr;

/// Addresses of ours, at most.
pub const OWN_MAX: usize = 64;
/// Hosts that are answered for, at most.
pub const REGISTERED_MAX: usize = 4096;
/// What happened and was not taken yet, at most.
const EVENTS_MAX: usize = 256;

/// How ARP behaves.
#[derive(Clone, Copy, Debug)]
pub struct ArpConfig {
    /// Where we are: our UD queue pair, our port, and what we offer (nothing while connected mode
    /// is off, RFC 4755 3.1).
    pub link: LinkAddress,
    /// Whether an address is given up when another node insists on it, or kept (RFC 5227 2.4).
    pub cedes: bool,
}

/// What ARP found out.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ArpEvent {
    /// A neighbor says where it is.
    Claim(Claim),
    /// This address is ours now: nobody else has it, or it was not to be probed.
    Held(Ipv4Addr),
    /// Another node has this address of ours. We keep it.
    Contested(Ipv4Addr, LinkAddress),
    /// Another node has this address, and it is not ours, or not any more.
    Ceded(Ipv4Addr, LinkAddress),
    /// The interface at this link address has that address: an inverse question was answered.
    Inverse(LinkAddress, Ipv4Addr),
    /// This is our address, says a server: a reverse question was answered.
    Reverse(Ipv4Addr),
    /// Nobody answered an inverse or reverse question about this link address.
    Unanswered(LinkAddress),
}

reasons! {
    /// Why a packet was dropped.
    pub enum ArpDrop {
        /// It is no ARP packet of this kind of link.
        Malformed = "malformed",
        /// Its sender's link address is that of no interface.
        BadHardware = "bad_hardware",
        /// Its sender's address is that of no node.
        BadProtocol = "bad_protocol",
        /// It is our own, come back.
        Own = "own",
        /// It asks for what we do not have.
        NotForUs = "not_for_us",
        /// An answer that nobody waits for.
        Unasked = "unasked",
        /// An operation that nobody here knows.
        Operation = "operation",
    }
}

/// Address resolution on one interface.
pub struct Arp {
    config: ArpConfig,
    rng: SeededRng,
    own: BTreeMap<Ipv4Addr, OwnState>,
    registered: BTreeMap<Ipv4Addr, LinkAddress>,
    questions: Questions,
    frames: Queue<Frame>,
    events: Queue<ArpEvent>,
    drops: Drops<ArpDrop>,
}

impl Arp {
    /// One that has no address yet.
    pub fn new(config: ArpConfig, seed: u64) -> Self {
        Self {
            config,
            rng: SeededRng::secret(seed),
            own: BTreeMap::new(),
            registered: BTreeMap::new(),
            questions: Questions::default(),
            frames: Queue::new(FRAMES_MAX),
            events: Queue::new(EVENTS_MAX),
            drops: Drops::default(),
        }
    }

    /// Begins to claim an address: with `probe`, after asking whether another node has it. `false`
    /// if there are too many.
    pub fn add(&mut self, now: Time, ip: Ipv4Addr, probe: bool) -> bool {
        if self.own.len() >= OWN_MAX && !self.own.contains_key(&ip) {
            return false;
        }
        let state = match probe {
            true => OwnState::probing(now, &mut self.rng),
            false => OwnState::announcing(now),
        };
        self.own.insert(ip, state);
        if state.is_ours() {
            self.events.push(ArpEvent::Held(ip));
        }
        true
    }

    /// Gives an address up.
    pub fn remove(&mut self, ip: Ipv4Addr) {
        self.own.remove(&ip);
    }

    /// Our link address changed: everyone is told, for each address (RFC 4391 9.4).
    pub fn set_link_address(&mut self, now: Time, link: LinkAddress) {
        self.config.link = link;
        for state in self.own.values_mut().filter(|state| state.is_ours()) {
            *state = OwnState::announcing(now);
        }
    }

    /// Answers for a host that is registered here. `false` if there are too many.
    pub fn register(&mut self, ip: Ipv4Addr, address: LinkAddress) -> bool {
        if self.registered.len() >= REGISTERED_MAX && !self.registered.contains_key(&ip) {
            return false;
        }
        self.registered.insert(ip, address);
        true
    }

    /// Answers for it no more.
    pub fn unregister(&mut self, ip: Ipv4Addr) {
        self.registered.remove(&ip);
    }

    /// How far our addresses are.
    pub fn own(&self) -> impl Iterator<Item = (Ipv4Addr, OwnState)> {
        self.own.iter().map(|(&ip, &state)| (ip, state))
    }

    /// Asks who has `target`: everyone, or who had it (RFC 1122 2.3.2.1).
    pub fn solicit(&mut self, source: Ipv4Addr, target: Ipv4Addr, at: Option<LinkAddress>) {
        let to = at.map_or(To::Group(GroupId::Broadcast), To::Link);
        self.ask(to, ArpOperation::REQUEST, source, LinkAddress::default(), target);
    }

    /// Asks which address the interface at `target` has (RFC 2390). `false` if too many questions
    /// are under way.
    pub fn ask_inverse(&mut self, now: Time, target: LinkAddress) -> bool {
        self.begin(now, target, ArpOperation::INVERSE_REQUEST)
    }

    /// Asks everyone which address we have (RFC 903). `false` if too many questions are under way.
    pub fn ask_reverse(&mut self, now: Time) -> bool {
        self.begin(now, self.config.link, ArpOperation::REVERSE_REQUEST)
    }

    /// An ARP or RARP packet came, without the header of the link.
    pub fn handle_packet(&mut self, now: Time, bytes: &[u8]) {
        if let Err(reason) = self.handle(now, bytes) {
            self.drops.count(reason);
        }
    }

    /// Does what is due by now.
    pub fn handle_timeout(&mut self, now: Time) {
        let due = |state: &OwnState| state.due().is_some_and(|due| due <= now);
        let addresses: Vec<Ipv4Addr> =
            self.own.iter().filter(|(_, state)| due(state)).map(|(&ip, _)| ip).collect();
        for ip in addresses {
            let Some(state) = self.own.get_mut(&ip) else { continue };
            let was_ours = state.is_ours();
            let (next, say) = state.timed_out(now, &mut self.rng);
            *state = next;
            if next.is_ours() && !was_ours {
                self.events.push(ArpEvent::Held(ip));
            }
            match say {
                Some(Say::Probe) => self.solicit(Ipv4Addr::UNSPECIFIED, ip, None),
                Some(Say::Announcement) => self.solicit(ip, ip, None),
                None => {}
            }
        }
        self.ask_due(now);
    }

    /// When something is due.
    pub fn poll_timeout(&self) -> Option<Time> {
        let own = self.own.values().filter_map(OwnState::due);
        own.chain(self.questions.poll_timeout()).min()
    }

    /// The next frame to send.
    pub fn poll_transmit(&mut self) -> Option<Frame> {
        self.frames.pop()
    }

    /// What was found out next.
    pub fn poll_event(&mut self) -> Option<ArpEvent> {
        self.events.pop()
    }

    /// Frames and events that had no room, because nobody took those before them.
    pub const fn lost(&self) -> u64 {
        self.frames.lost() + self.events.lost()
    }

    /// What was dropped, and why.
    pub const fn drops(&self) -> &Drops<ArpDrop> {
        &self.drops
    }

    fn handle(&mut self, now: Time, bytes: &[u8]) -> Result<(), ArpDrop> {
        let packet = ArpPacket::<LinkAddress>::parse(bytes).map_err(|_| ArpDrop::Malformed)?;
        let hardware = packet.sender_hardware;
        if !is_interface(&hardware) {
            return Err(ArpDrop::BadHardware);
        }
        if hardware.is_same_interface(&self.config.link) {
            return Err(ArpDrop::Own);
        }
        match packet.operation {
            ArpOperation::REQUEST => self.requested(now, &packet),
            ArpOperation::REPLY => self.replied(now, &packet),
            ArpOperation::INVERSE_REQUEST => self.inverse_requested(&packet),
            ArpOperation::INVERSE_REPLY => self.inverse_replied(&packet),
            ArpOperation::REVERSE_REQUEST => self.reverse_requested(&packet),
            ArpOperation::REVERSE_REPLY => self.reverse_replied(&packet),
            _ => Err(ArpDrop::Operation),
        }
    }

    /// Somebody asks for an address, or tells everyone of its own by asking for that. The target's
    /// link address means nothing (RFC 4391 9.2).
    fn requested(&mut self, now: Time, packet: &ArpPacket<LinkAddress>) -> Result<(), ArpDrop> {
        let ArpPacket { sender_protocol: sender, target_protocol: target, .. } = *packet;
        let is_probe = sender.is_unspecified();
        if !is_probe {
            self.check_sender(now, packet)?;
        } else if self.own.get(&target).is_some_and(|state| !state.is_ours()) {
            // Both want it (RFC 5227 2.1.1).
            self.contest(now, target, packet.sender_hardware);
            return Ok(());
        }
        let is_ours = self.is_ours(target);
        if !is_probe {
            let kind = if is_ours { ClaimKind::Mention } else { ANNOUNCED };
            self.claim(packet, kind);
        }
        let answer = match self.registered.get(&target) {
            _ if is_ours => self.config.link,
            _ if sender == target => return Ok(()),
            // A registered host may come back with another queue pair and probe its address.
            Some(registered) if registered.gid == packet.sender_hardware.gid => return Ok(()),
            Some(&registered) => registered,
            _ => return Err(ArpDrop::NotForUs),
        };
        self.reply(ArpOperation::REPLY, answer, target, packet);
        Ok(())
    }

    /// Somebody answers us, or tells everyone.
    fn replied(&mut self, now: Time, packet: &ArpPacket<LinkAddress>) -> Result<(), ArpDrop> {
        self.check_sender(now, packet)?;
        let is_to_us = self.is_ours(packet.target_protocol)
            && packet.target_hardware.is_same_interface(&self.config.link);
        self.claim(packet, if is_to_us { ANSWERED } else { ANNOUNCED });
        Ok(())
    }

    /// Somebody asks which address we have. Only here does the target's link address count.
    fn inverse_requested(&mut self, packet: &ArpPacket<LinkAddress>) -> Result<(), ArpDrop> {
        let ours = self.own.iter().find(|(_, state)| state.is_ours()).map(|(&ip, _)| ip);
        match ours {
            Some(ip) if packet.target_hardware.is_same_interface(&self.config.link) => {
                self.reply(ArpOperation::INVERSE_REPLY, self.config.link, ip, packet);
                Ok(())
            }
            _ => Err(ArpDrop::NotForUs),
        }
    }

    fn inverse_replied(&mut self, packet: &ArpPacket<LinkAddress>) -> Result<(), ArpDrop> {
        let address = packet.sender_hardware;
        if !self.questions.answered(address, ArpOperation::INVERSE_REQUEST) {
            return Err(ArpDrop::Unasked);
        }
        if !is_host(packet.sender_protocol) {
            return Err(ArpDrop::BadProtocol);
        }
        self.events.push(ArpEvent::Inverse(address, packet.sender_protocol));
        Ok(())
    }

    /// Somebody asks which address the target has: a server knows that of registered hosts.
    fn reverse_requested(&mut self, packet: &ArpPacket<LinkAddress>) -> Result<(), ArpDrop> {
        let is_asked = |address: &LinkAddress| address.is_same_interface(&packet.target_hardware);
        let found = self.registered.iter().find(|(_, address)| is_asked(address));
        let ours = self.own.iter().find(|(_, state)| state.is_ours());
        let ((&target, _), (&ip, _)) = found.zip(ours).ok_or(ArpDrop::NotForUs)?;
        let answer = ArpPacket { sender_protocol: target, ..*packet };
        self.reply(ArpOperation::REVERSE_REPLY, self.config.link, ip, &answer);
        Ok(())
    }

    fn reverse_replied(&mut self, packet: &ArpPacket<LinkAddress>) -> Result<(), ArpDrop> {
        if !packet.target_hardware.is_same_interface(&self.config.link) {
            return Err(ArpDrop::NotForUs);
        }
        if !self.questions.answered(packet.target_hardware, ArpOperation::REVERSE_REQUEST) {
            return Err(ArpDrop::Unasked);
        }
        if !is_host(packet.target_protocol) {
            return Err(ArpDrop::BadProtocol);
        }
        self.events.push(ArpEvent::Reverse(packet.target_protocol));
        Ok(())
    }

    /// Whether the sender's address is one that a node can have, and is not ours.
    fn check_sender(&mut self, now: Time, packet: &ArpPacket<LinkAddress>) -> Result<(), ArpDrop> {
        let sender = packet.sender_protocol;
        if self.own.contains_key(&sender) {
            self.contest(now, sender, packet.sender_hardware);
        }
        // One that was just ceded is a neighbor's.
        if !is_host(sender) || self.own.contains_key(&sender) {
            return Err(ArpDrop::BadProtocol);
        }
        Ok(())
    }

    fn contest(&mut self, now: Time, ip: Ipv4Addr, by: LinkAddress) {
        let Some(state) = self.own.get_mut(&ip) else { return };
        match state.conflict(now, self.config.cedes) {
            Conflict::Defend => {
                self.solicit(ip, ip, None);
                self.events.push(ArpEvent::Contested(ip, by));
            }
            Conflict::Bear => {}
            Conflict::Cede => {
                self.own.remove(&ip);
                self.events.push(ArpEvent::Ceded(ip, by));
            }
        }
    }

    fn is_ours(&self, ip: Ipv4Addr) -> bool {
        self.own.get(&ip).is_some_and(OwnState::is_ours)
    }

    fn claim(&mut self, packet: &ArpPacket<LinkAddress>, kind: ClaimKind) {
        let address = Some(packet.sender_hardware);
        self.events.push(ArpEvent::Claim(Claim {
            ip: packet.sender_protocol.into(),
            address,
            kind,
        }));
    }

    fn begin(&mut self, now: Time, about: LinkAddress, operation: ArpOperation) -> bool {
        let begun = self.questions.begin(now, about, operation);
        self.ask_due(now);
        begun
    }

    fn ask_due(&mut self, now: Time) {
        while let Some(due) = self.questions.next_due(now) {
            let (operation, about) = match due {
                Due::Ask(operation, about) => (operation, about),
                Due::GiveUp(about) => {
                    self.events.push(ArpEvent::Unanswered(about));
                    continue;
                }
            };
            let ours = self.own.iter().find(|(_, state)| state.is_ours());
            let source = ours.map_or(Ipv4Addr::UNSPECIFIED, |(&ip, _)| ip);
            let to = match operation {
                ArpOperation::INVERSE_REQUEST => To::Link(about),
                _ => To::Group(GroupId::Broadcast),
            };
            self.ask(to, operation, source, about, Ipv4Addr::UNSPECIFIED);
        }
    }

    fn ask(
        &mut self,
        to: To,
        operation: ArpOperation,
        source: Ipv4Addr,
        target_hardware: LinkAddress,
        target_protocol: Ipv4Addr,
    ) {
        self.send(
            to,
            &ArpPacket {
                operation,
                sender_hardware: self.config.link,
                sender_protocol: source,
                target_hardware,
                target_protocol,
            },
        );
    }

    /// Answers `request` by UD: `address` is where `ip` is.
    fn reply(
        &mut self,
        operation: ArpOperation,
        address: LinkAddress,
        ip: Ipv4Addr,
        request: &ArpPacket<LinkAddress>,
    ) {
        let target_hardware = match operation {
            ArpOperation::REVERSE_REPLY => request.target_hardware,
            _ => request.sender_hardware,
        };
        self.send(
            To::Link(request.sender_hardware),
            &ArpPacket {
                operation,
                sender_hardware: address,
                sender_protocol: ip,
                target_hardware,
                target_protocol: request.sender_protocol,
            },
        );
    }

    fn send(&mut self, to: To, packet: &ArpPacket<LinkAddress>) {
        let mut bytes = vec![0; ArpPacket::<LinkAddress>::LEN];
        let is_reverse =
            matches!(packet.operation, ArpOperation::REVERSE_REQUEST | ArpOperation::REVERSE_REPLY);
        let ether_type = if is_reverse { EtherType::RARP } else { EtherType::ARP };
        if packet.write(&mut bytes).is_ok() {
            self.frames.push(Frame { to, ether_type, packet: bytes });
        }
    }
}

/// What a neighbor says of itself to everyone: a later word than any before it (RFC 826).
const ANNOUNCED: ClaimKind = ClaimKind::Answer { solicited: false, override_cached: true };
const ANSWERED: ClaimKind = ClaimKind::Answer { solicited: true, override_cached: true };

/// Whether a node can have this address.
fn is_host(ip: Ipv4Addr) -> bool {
    !(ip.is_unspecified() || ip.is_multicast() || ip.is_broadcast() || ip.is_loopback())
}
