//! Address resolution for IPv4 (RFC 826, RFC 4391 9.2), with its extensions: conflicts and
//! announcements (RFC 5227), inverse ARP (RFC 2390), and answers on behalf of registered hosts.
//!
//! Requests go to the broadcast group, or to the known address of a neighbor that is probed. Every
//! ARP reply goes to one link address by UD (RFC 4755 3), and carries our current link address. The
//! interface queues it until it has a path to the requester.
//!
//! A link without multicast can have an address server, as in classical IP over ATM: hosts are
//! registered at the server by configuration, and the server answers requests for them. On a link
//! with multicast the server does no harm, because the host itself gives the same answer.

mod own;
mod questions;
#[cfg(test)]
mod tests;

pub use own::{BRIEF_INTERVAL, BRIEF_PROBES, OwnState, Probes};
pub use questions::QUESTIONS_MAX;

use crate::frame::{LinkFrame, To};
use crate::link::InterfaceAddress;
use crate::neighbor::{Claim, ClaimKind};
use crate::output::{Output, output_methods};
use own::{AcdPacket, Conflict};
use pollux_verbs::reasons;
use pollux_verbs::rng::SeededRng;
use pollux_verbs::time::Time;
use pollux_wire::ethernet::EtherType;
use pollux_wire::ip::arp::{ArpOperation, ArpPacket};
use pollux_wire::ip::link_address::LinkAddress;
use pollux_wire::ip::mgid::GroupId;
use questions::{Due, Questions};
use std::collections::BTreeMap;
use std::net::Ipv4Addr;

pub const OWN_MAX: usize = 64;
pub const REGISTERED_MAX: usize = 4096;
const EVENTS_MAX: usize = 256;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ArpEvent<L = LinkAddress> {
    Claim(Claim<L>),
    /// This address is ours now: no other node has it, or it was not probed.
    Held(Ipv4Addr),
    /// Another node claims this address of ours, from this link address. We keep and defend the
    /// address.
    Contested(Ipv4Addr, L),
    /// Another node has this address, at this link address. We gave it up.
    Ceded(Ipv4Addr, L),
    /// The answer to an inverse request: the IP address at a link address.
    Inverse(L, Ipv4Addr),
    /// An inverse request to this link address had no answer.
    Unanswered(L),
}

reasons! {
    pub enum ArpDrop {
        Malformed = "malformed",
        BadHardware = "bad_hardware",
        BadProtocol = "bad_protocol",
        /// Our own packet, looped back.
        Own = "own",
        NotForUs = "not_for_us",
        Unasked = "unasked",
        Operation = "operation",
    }
}

pub struct Arp<L: InterfaceAddress = LinkAddress> {
    /// Our link address: UD queue pair, port, and flags (none while connected mode is off, RFC 4755
    /// 3.1).
    link: L,
    rng: SeededRng,
    own: BTreeMap<Ipv4Addr, OwnState>,
    registered: BTreeMap<Ipv4Addr, L>,
    questions: Questions<L>,
    output: Output<L, ArpEvent<L>, ArpDrop>,
}

impl<L: InterfaceAddress> Arp<L> {
    pub fn new(link: L, seed: u64) -> Self {
        Self {
            link,
            rng: SeededRng::secret(seed),
            own: BTreeMap::new(),
            registered: BTreeMap::new(),
            questions: Questions::default(),
            output: Output::new(EVENTS_MAX),
        }
    }

    /// Claims an address after `probes`. Returns `false` if there are already [`OWN_MAX`]
    /// addresses.
    pub fn add(&mut self, now: Time, ip: Ipv4Addr, probes: Probes) -> bool {
        if self.own.len() >= OWN_MAX && !self.own.contains_key(&ip) {
            return false;
        }
        let state = OwnState::first(now, probes, &mut self.rng);
        self.own.insert(ip, state);
        if state.is_ours() {
            self.output.report(ArpEvent::Held(ip));
        }
        true
    }

    /// Retries an address that was ceded to another node: claims it after a pause and full probes.
    pub fn retry(&mut self, now: Time, ip: Ipv4Addr) {
        self.own.insert(ip, OwnState::waiting(now, &mut self.rng));
    }

    pub fn remove(&mut self, ip: Ipv4Addr) {
        self.own.remove(&ip);
    }

    /// Sets a new link address. The interface adds its addresses again after a change, which
    /// announces it for each of them (RFC 4391 9.4).
    pub const fn set_link_address(&mut self, link: L) {
        self.link = link;
    }

    /// Registers a host: requests for its address are answered here. Returns `false` if there are
    /// already [`REGISTERED_MAX`] hosts.
    pub fn register(&mut self, ip: Ipv4Addr, address: L) -> bool {
        if self.registered.len() >= REGISTERED_MAX && !self.registered.contains_key(&ip) {
            return false;
        }
        self.registered.insert(ip, address);
        true
    }

    pub fn unregister(&mut self, ip: Ipv4Addr) {
        self.registered.remove(&ip);
    }

    pub fn own(&self) -> impl Iterator<Item = (Ipv4Addr, OwnState)> {
        self.own.iter().map(|(&ip, &state)| (ip, state))
    }

    /// Sends a request for `target`: to the link address `at` where it was last known, or by
    /// broadcast if `at` is `None` (RFC 1122 2.3.2.1).
    pub fn solicit(&mut self, source: Ipv4Addr, target: Ipv4Addr, at: Option<L>) {
        let to = at.map_or(To::Group(GroupId::Broadcast), To::Link);
        let own = (self.link, source);
        self.send(to, ArpOperation::REQUEST, own, (L::default(), target));
    }

    /// Starts an inverse request to `target` (RFC 2390). `false` if too many are outstanding.
    pub fn ask_inverse(&mut self, now: Time, target: L) -> bool {
        let has_begun = self.questions.begin(now, target);
        self.ask_due(now);
        has_begun
    }

    /// `bytes` is an ARP packet without its link header.
    pub fn handle_packet(&mut self, now: Time, bytes: &[u8]) {
        if let Err(reason) = self.handle(now, bytes) {
            self.output.count(reason);
        }
    }

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
                self.output.report(ArpEvent::Held(ip));
            }
            match say {
                Some(AcdPacket::Probe) => self.solicit(Ipv4Addr::UNSPECIFIED, ip, None),
                Some(AcdPacket::Announcement) => self.solicit(ip, ip, None),
                None => {}
            }
        }
        self.ask_due(now);
    }

    pub fn poll_timeout(&self) -> Option<Time> {
        let own = self.own.values().filter_map(OwnState::due);
        own.chain(self.questions.poll_timeout()).min()
    }

    output_methods!(L, ArpEvent<L>, ArpDrop);

    fn handle(&mut self, now: Time, bytes: &[u8]) -> Result<(), ArpDrop> {
        let packet = ArpPacket::<L>::parse(bytes).map_err(|_| ArpDrop::Malformed)?;
        let hardware = packet.sender_hardware;
        if !hardware.is_interface() {
            return Err(ArpDrop::BadHardware);
        }
        if hardware.is_same(&self.link) {
            return Err(ArpDrop::Own);
        }
        match packet.operation {
            ArpOperation::REQUEST => self.handle_request(now, &packet),
            ArpOperation::REPLY => self.handle_reply(now, &packet),
            ArpOperation::INVERSE_REQUEST => self.handle_inverse_request(&packet),
            ArpOperation::INVERSE_REPLY => self.handle_inverse_reply(&packet),
            _ => Err(ArpDrop::Operation),
        }
    }

    /// Handles a request, also a gratuitous one. The target's link address in a request has no
    /// meaning (RFC 4391 9.2).
    fn handle_request(&mut self, now: Time, packet: &ArpPacket<L>) -> Result<(), ArpDrop> {
        let ArpPacket { sender_protocol: sender, target_protocol: target, .. } = *packet;
        let is_probe = sender.is_unspecified();
        if !is_probe {
            self.check_sender(now, packet)?;
        } else if self.own.get(&target).is_some_and(|state| !state.is_ours()) {
            // Both nodes probe the address before use (RFC 5227 2.1.1).
            self.contest(now, target, packet.sender_hardware);
            return Ok(());
        }
        let is_ours = self.is_ours(target);
        if !is_probe {
            let kind = if is_ours { ClaimKind::Request } else { ANNOUNCED };
            self.claim(packet, kind);
        }
        let answer = match self.registered.get(&target) {
            _ if is_ours => self.link,
            _ if sender == target => return Ok(()),
            // A registered host may have restarted with another queue pair, and probe its own
            // address: an answer would look like a conflict.
            Some(registered) if registered.is_same_port(&packet.sender_hardware) => return Ok(()),
            Some(&registered) => registered,
            _ => return Err(ArpDrop::NotForUs),
        };
        let asker = (packet.sender_hardware, sender);
        self.send(To::Link(asker.0), ArpOperation::REPLY, (answer, target), asker);
        Ok(())
    }

    fn handle_reply(&mut self, now: Time, packet: &ArpPacket<L>) -> Result<(), ArpDrop> {
        self.check_sender(now, packet)?;
        let is_to_us =
            self.is_ours(packet.target_protocol) && packet.target_hardware.is_same(&self.link);
        self.claim(packet, if is_to_us { ANSWERED } else { ANNOUNCED });
        Ok(())
    }

    /// Handles an inverse request. It is for us if the target's link address is ours.
    fn handle_inverse_request(&mut self, packet: &ArpPacket<L>) -> Result<(), ArpDrop> {
        let ours = self.own.iter().find(|(_, state)| state.is_ours()).map(|(&ip, _)| ip);
        match ours {
            Some(ip) if packet.target_hardware.is_same(&self.link) => {
                let asker = (packet.sender_hardware, packet.sender_protocol);
                let own = (self.link, ip);
                self.send(To::Link(asker.0), ArpOperation::INVERSE_REPLY, own, asker);
                Ok(())
            }
            _ => Err(ArpDrop::NotForUs),
        }
    }

    fn handle_inverse_reply(&mut self, packet: &ArpPacket<L>) -> Result<(), ArpDrop> {
        let address = packet.sender_hardware;
        if !self.questions.end(address) {
            return Err(ArpDrop::Unasked);
        }
        if !is_host(packet.sender_protocol) {
            return Err(ArpDrop::BadProtocol);
        }
        self.output.report(ArpEvent::Inverse(address, packet.sender_protocol));
        Ok(())
    }

    fn check_sender(&mut self, now: Time, packet: &ArpPacket<L>) -> Result<(), ArpDrop> {
        let sender = packet.sender_protocol;
        if self.own.contains_key(&sender) {
            self.contest(now, sender, packet.sender_hardware);
        }
        // If `contest` ceded the address, it is the neighbor's now, and the packet is valid.
        if !is_host(sender) || self.own.contains_key(&sender) {
            return Err(ArpDrop::BadProtocol);
        }
        Ok(())
    }

    fn contest(&mut self, now: Time, ip: Ipv4Addr, by: L) {
        let Some(state) = self.own.get_mut(&ip) else { return };
        match state.conflict(now) {
            Conflict::Defend => {
                self.solicit(ip, ip, None);
                self.output.report(ArpEvent::Contested(ip, by));
            }
            Conflict::Ignore => {}
            Conflict::Cede => {
                self.own.remove(&ip);
                self.output.report(ArpEvent::Ceded(ip, by));
            }
        }
    }

    fn is_ours(&self, ip: Ipv4Addr) -> bool {
        self.own.get(&ip).is_some_and(OwnState::is_ours)
    }

    fn claim(&mut self, packet: &ArpPacket<L>, kind: ClaimKind) {
        let address = Some(packet.sender_hardware);
        let ip = packet.sender_protocol.into();
        self.output.report(ArpEvent::Claim(Claim { ip, address, kind }));
    }

    fn ask_due(&mut self, now: Time) {
        while let Some(due) = self.questions.next_due(now) {
            let about = match due {
                Due::Ask(about) => about,
                Due::GiveUp(about) => {
                    self.output.report(ArpEvent::Unanswered(about));
                    continue;
                }
            };
            let ours = self.own.iter().find(|(_, state)| state.is_ours());
            let source = ours.map_or(Ipv4Addr::UNSPECIFIED, |(&ip, _)| ip);
            let own = (self.link, source);
            let target = (about, Ipv4Addr::UNSPECIFIED);
            self.send(To::Link(about), ArpOperation::INVERSE_REQUEST, own, target);
        }
    }

    fn send(
        &mut self,
        to: To<L>,
        operation: ArpOperation,
        (sender_hardware, sender_protocol): (L, Ipv4Addr),
        (target_hardware, target_protocol): (L, Ipv4Addr),
    ) {
        let packet = ArpPacket {
            operation,
            sender_hardware,
            sender_protocol,
            target_hardware,
            target_protocol,
        };
        let mut bytes = vec![0; ArpPacket::<L>::LEN];
        if packet.write(&mut bytes).is_ok() {
            self.output.send(LinkFrame { to, ether_type: EtherType::ARP, packet: bytes });
        }
    }
}

/// The claim of a packet that answers no request of ours. It replaces a known address (RFC 826).
const ANNOUNCED: ClaimKind = ClaimKind::Answer { solicited: false, override_cached: true };
const ANSWERED: ClaimKind = ClaimKind::Answer { solicited: true, override_cached: true };

fn is_host(ip: Ipv4Addr) -> bool {
    !(ip.is_unspecified() || ip.is_multicast() || ip.is_broadcast() || ip.is_loopback())
}
