//! The neighbor cache, from IP address to link address, for both families (RFC 826, RFC 4861 5 and
//! 7).
//!
//! What becomes of one entry is for its [`State`] to say; here are the table, the packets that
//! wait, and the limits. What ARP and neighbor discovery hear comes in as a [`Claim`]; whom they
//! have to ask goes out as a [`Solicitation`]. A claim that nobody asked for never makes an entry,
//! except that of a node which asked for us and so will hear from us (RFC 826, RFC 4861 7.2.3); and
//! to make room for that, no entry has to go of which more is known than that.
//!
//! Events are to be taken after every call: an entry makes a few at most each time.

mod state;
mod table;
#[cfg(test)]
mod tests;

pub use state::State;

use crate::bounded::{Queue, Rate};
use crate::drops::{Drops, reasons};
use pollux_verbs::rng::SeededRng;
use pollux_verbs::time::Time;
use pollux_wire::ip::ipv4::IPV4_MTU_MIN;
use pollux_wire::ip::ipv6::IPV6_MTU_MIN;
use pollux_wire::ip::link_address::LinkAddress;
use state::Input;
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::net::IpAddr;
use std::time::Duration;
use table::{Entry, Usefulness};

/// How patient a cache is, and how big.
#[derive(Clone, Debug)]
pub struct NeighborConfig {
    /// Entries, at most; configured ones count.
    pub entries_max: usize,
    /// Packets that wait for one neighbor, at most.
    pub pending_per_entry_max: usize,
    /// Packets that wait for all neighbors, at most.
    pub pending_max: usize,
    /// How long an answer counts, on average.
    pub reachable_for: Duration,
    /// How long an answer may take.
    pub retry_after: Duration,
    /// How long something above may confirm an entry before it is probed.
    pub delay_before_probe: Duration,
    /// How often everyone is asked for an address.
    pub broadcasts_max: u8,
    /// How often a neighbor is asked whether it is still there.
    pub probes_max: u8,
    /// The pause after nobody answered; it doubles each time.
    pub pause_min: Duration,
    /// The longest such pause.
    pub pause_max: Duration,
    /// When an unused entry is forgotten, and with it its connections; without that, never
    /// (RFC 4755 3.4).
    pub idle_for: Option<Duration>,
    /// How long a learnt path MTU counts.
    pub mtu_for: Duration,
    /// Questions to everyone in a second, at most.
    pub broadcasts_per_second_max: u32,
    /// How long a neighbor may take to say that it is still there when another port claims its
    /// address. It is asked as often as otherwise; an address that moves is lost for so long.
    pub contest_retry_after: Duration,
    /// How many neighbors are asked that in a second, at most.
    pub contests_per_second_max: u32,
    /// Entries of nodes that asked us something and that nobody here had asked for, in a second, at
    /// most.
    pub mentions_per_second_max: u32,
    /// Whether flags in link addresses mean anything: not while connected mode is off (RFC 4755
    /// 3.1).
    pub connected_mode: bool,
}

impl Default for NeighborConfig {
    /// As RFC 4861 10 has it, where it has it.
    fn default() -> Self {
        Self {
            entries_max: 16_384,
            pending_per_entry_max: 64,
            pending_max: 4096,
            reachable_for: Duration::from_secs(30),
            retry_after: Duration::from_secs(1),
            delay_before_probe: Duration::from_secs(5),
            broadcasts_max: 3,
            probes_max: 3,
            pause_min: Duration::from_secs(1),
            pause_max: Duration::from_secs(60),
            idle_for: Some(Duration::from_secs(300)),
            mtu_for: Duration::from_secs(600),
            broadcasts_per_second_max: 1000,
            contest_retry_after: Duration::from_millis(125),
            contests_per_second_max: 1000,
            mentions_per_second_max: 1000,
            connected_mode: true,
        }
    }
}

/// What a neighbor says of itself, as ARP or neighbor discovery heard it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Claim {
    /// Who says it.
    pub ip: IpAddr,
    /// Where it is.
    pub address: Option<LinkAddress>,
    /// How it came to say so.
    pub kind: ClaimKind,
}

/// How a neighbor came to say where it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ClaimKind {
    /// It was asked, or it tells everyone. Makes no entry.
    Answer {
        /// It was asked, and so hears us.
        solicited: bool,
        /// An address known before is wrong.
        override_cached: bool,
    },
    /// It asked us something. Makes an entry, since it will be answered.
    Mention,
}

/// A question to be asked by ARP or neighbor discovery.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Solicitation {
    /// About whom.
    pub ip: IpAddr,
    /// Whom to ask; everyone, if nobody is named.
    pub at: Option<LinkAddress>,
}

/// What becomes of a packet.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Resolution<P> {
    /// It can go there.
    Known(LinkAddress, P),
    /// It waits, and comes back with an event.
    Waits,
    /// Nobody answered lately.
    Unreachable(P),
}

/// What changed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum NeighborEvent<P> {
    /// A neighbor has a link address; these packets waited for it.
    Resolved(IpAddr, LinkAddress, Vec<P>),
    /// It has another one, or other flags, than this.
    Changed(IpAddr, LinkAddress, LinkAddress),
    /// It does not answer at the address that it had; everyone is asked.
    Lost(IpAddr, LinkAddress),
    /// Nobody answers; these packets cannot be sent.
    Unreachable(IpAddr, Vec<P>),
    /// It was not used for long, had to make room, or was taken out; so it was last.
    Forgotten(IpAddr, Option<LinkAddress>, Vec<P>),
}

reasons! {
    /// Why something was dropped or put off.
    pub enum NeighborDrop {
        /// A packet made room for a later one to the same neighbor.
        PendingPerEntry = "pending_per_entry",
        /// A packet made room for a later one to any neighbor.
        PendingInAll = "pending_in_all",
        /// A packet to a neighbor that does not answer.
        Unreachable = "unreachable",
        /// No entry could be made: all are configured or in better use.
        TableFull = "table_full",
        /// An entry made room for another.
        Evicted = "evicted",
        /// A question to everyone was put off: too many in a second.
        BroadcastPutOff = "broadcast_put_off",
        /// A node that asked us something was not remembered: too many in a second.
        MentionPutOff = "mention_put_off",
        /// A claim about somebody who is of no interest.
        ClaimUnasked = "claim_unasked",
        /// A claim that contradicts what was configured.
        ClaimAgainstPermanent = "claim_against_permanent",
    }
}

/// An entry, for people.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NeighborRow {
    /// Who.
    pub ip: IpAddr,
    /// How it is; says by itself what it waits for, and until when.
    pub state: State,
    /// Since when it is so.
    pub since: Time,
    /// Why.
    pub why: &'static str,
    /// When somebody sent to it last.
    pub used: Time,
    /// Packets that wait.
    pub pending: usize,
    /// The path MTU learnt for it.
    pub mtu: Option<u32>,
}

/// The cache. `P` is a packet, in whatever form its owner keeps it.
pub struct Neighbors<P> {
    config: NeighborConfig,
    rng: SeededRng,
    broadcasts: Rate,
    contests: Rate,
    mentions: Rate,
    entries: BTreeMap<IpAddr, Entry<P>>,
    /// When something happens to whom.
    due: BTreeSet<(Time, IpAddr)>,
    /// Who goes first when there is no room: the least useful, then the one unused for longest.
    order: BTreeSet<(Usefulness, Time, IpAddr)>,
    /// For whom each waiting packet waits, oldest first.
    pending: BTreeMap<u64, IpAddr>,
    packets: u64,
    asks: Queue<Solicitation>,
    events: VecDeque<NeighborEvent<P>>,
    drops: Drops<NeighborDrop>,
}

impl<P> Neighbors<P> {
    /// An empty cache.
    pub fn new(config: NeighborConfig, seed: u64) -> Self {
        let per_second = config.broadcasts_per_second_max;
        let contests = config.contests_per_second_max;
        let mentions = config.mentions_per_second_max;
        Self {
            broadcasts: Rate::new(per_second, per_second),
            contests: Rate::new(contests, contests),
            mentions: Rate::new(mentions, mentions),
            // Each entry has one question under way.
            asks: Queue::new(config.entries_max),
            config,
            rng: SeededRng::secret(seed),
            entries: BTreeMap::new(),
            due: BTreeSet::new(),
            order: BTreeSet::new(),
            pending: BTreeMap::new(),
            packets: 0,
            events: VecDeque::new(),
            drops: Drops::default(),
        }
    }

    /// Somebody wants to send `packet` to the neighbor `ip`.
    pub fn resolve(&mut self, now: Time, ip: IpAddr, packet: P) -> Resolution<P> {
        if !self.entries.contains_key(&ip) && !self.insert_incomplete(now, ip) {
            return Resolution::Unreachable(packet);
        }
        self.handle_use(now, ip);
        match self.entries.get(&ip).map(|entry| entry.state) {
            Some(State::Incomplete { .. }) => {
                self.wait(ip, packet);
                Resolution::Waits
            }
            Some(state) => match state.address() {
                Some(address) => Resolution::Known(address, packet),
                None => {
                    self.drops.count(NeighborDrop::Unreachable);
                    Resolution::Unreachable(packet)
                }
            },
            None => Resolution::Unreachable(packet),
        }
    }

    /// Packets went to the neighbor without asking here.
    pub fn handle_use(&mut self, now: Time, ip: IpAddr) {
        if let Some(entry) = self.take(ip) {
            self.put(ip, Entry { used: now, ..entry });
            self.step(now, ip, Input::Use, "used");
        }
    }

    /// A neighbor said where it is. The caller sees to it that the claim is about an address on
    /// the link that is not ours.
    pub fn handle_claim(&mut self, now: Time, claim: Claim) {
        let address = claim.address.map(|address| self.with_flags_that_count(address));
        match (self.entries.get(&claim.ip), claim.kind, address) {
            (Some(Entry { state: State::Permanent { address: known }, .. }), _, address) => {
                if address.is_some_and(|address| !address.is_same_interface(known)) {
                    self.drops.count(NeighborDrop::ClaimAgainstPermanent);
                }
            }
            (Some(_), ClaimKind::Answer { solicited, override_cached }, address) => {
                let input = Input::Answer { address, solicited, override_cached };
                let why = if solicited { "answered" } else { "announced" };
                self.step(now, claim.ip, input, why);
            }
            (Some(_), ClaimKind::Mention, Some(address)) => {
                self.step(now, claim.ip, Input::Mention { address }, "asked us");
            }
            // It is answered all the same, and asked for when there is a packet for it.
            (None, ClaimKind::Mention, Some(_)) if !self.mentions.take(now) => {
                self.drops.count(NeighborDrop::MentionPutOff);
            }
            (None, ClaimKind::Mention, Some(address)) => {
                self.insert_stale(now, claim.ip, address);
            }
            _ => self.drops.count(NeighborDrop::ClaimUnasked),
        }
    }

    /// Something above heard from the neighbor what it only could have said after hearing us.
    pub fn handle_confirmation(&mut self, now: Time, ip: IpAddr) {
        self.step(now, ip, Input::Confirmation, "confirmed from above");
    }

    /// Something above has doubts: no path, a broken connection.
    pub fn handle_stale_hint(&mut self, now: Time, ip: IpAddr) {
        self.step(now, ip, Input::Suspicion, "doubted from above");
    }

    /// The path to `destination` bears no more than `mtu` bytes.
    pub fn handle_mtu(&mut self, now: Time, destination: IpAddr, mtu: u32) {
        let least = if destination.is_ipv4() { IPV4_MTU_MIN } else { IPV6_MTU_MIN };
        let until = now + self.config.mtu_for;
        if let Some(entry) = self.entries.get_mut(&destination) {
            entry.mtu = Some((mtu.max(least), until));
        }
    }

    /// How much the path to `destination` bears, if that was learnt lately.
    pub fn mtu(&self, now: Time, destination: IpAddr) -> Option<u32> {
        self.entries.get(&destination)?.mtu.filter(|&(_, until)| now < until).map(|(mtu, _)| mtu)
    }

    /// Where a neighbor is, without using or asking it.
    pub fn address(&self, ip: IpAddr) -> Option<LinkAddress> {
        self.entries.get(&ip)?.state.address()
    }

    /// Whether the neighbor is not known to be away: of routers such a one is preferred
    /// (RFC 4861 6.3.6).
    pub fn may_be_reachable(&self, ip: IpAddr) -> bool {
        let state = self.entries.get(&ip).map(|entry| entry.state);
        !matches!(state, Some(State::Failed { .. } | State::Incomplete { failures: 1.., .. }))
    }

    /// Configures a neighbor, which then is not asked for. `false` if there is no room.
    pub fn set_permanent(&mut self, now: Time, ip: IpAddr, address: LinkAddress) -> bool {
        if !self.entries.contains_key(&ip) && !self.make_room(Usefulness::InUse) {
            return false;
        }
        let state = State::Permanent { address: self.with_flags_that_count(address) };
        let entry = self.take(ip);
        let before = entry.as_ref().map(|entry| entry.state);
        let entry = entry.unwrap_or_else(|| Entry::new(now, state, "configured"));
        self.put(ip, Entry { state, since: now, why: "configured", ..entry });
        self.report(ip, before);
        true
    }

    /// Takes a neighbor out, a configured one as well.
    pub fn remove(&mut self, ip: IpAddr) {
        if let Some(entry) = self.take(ip) {
            self.forget(ip, entry);
        }
    }

    /// Takes out all that was learnt: the link went down.
    pub fn flush(&mut self) {
        let learnt: Vec<IpAddr> = self.order.iter().map(|&(_, _, ip)| ip).collect();
        for ip in learnt {
            self.remove(ip);
        }
    }

    /// What routers say of how long answers count and may take (RFC 4861 6.3.4).
    pub fn set_times(&mut self, reachable_for: Option<Duration>, retry_after: Option<Duration>) {
        self.config.reachable_for = reachable_for.unwrap_or(self.config.reachable_for);
        self.config.retry_after = retry_after.unwrap_or(self.config.retry_after);
    }

    /// Does what is due by now.
    pub fn handle_timeout(&mut self, now: Time) {
        while let Some(&(_, ip)) = self.due.first().filter(|(at, _)| *at <= now) {
            self.step(now, ip, Input::Due, "time");
        }
    }

    /// When something is due.
    pub fn poll_timeout(&self) -> Option<Time> {
        self.due.first().map(|&(at, _)| at)
    }

    /// The next question to ask.
    pub fn poll_transmit(&mut self) -> Option<Solicitation> {
        self.asks.pop()
    }

    /// What changed next.
    pub fn poll_event(&mut self) -> Option<NeighborEvent<P>> {
        self.events.pop_front()
    }

    /// Questions that had no room, because nobody took those before them.
    pub const fn lost(&self) -> u64 {
        self.asks.lost()
    }

    /// What was dropped or put off, and why.
    pub const fn drops(&self) -> &Drops<NeighborDrop> {
        &self.drops
    }

    /// How many entries there are, and how many packets wait for them.
    pub fn load(&self) -> (usize, usize) {
        (self.entries.len(), self.pending.len())
    }

    /// Every entry, by address.
    pub fn rows(&self, now: Time) -> impl Iterator<Item = NeighborRow> {
        self.entries.iter().map(move |(&ip, entry)| NeighborRow {
            ip,
            state: entry.state,
            since: entry.since,
            why: entry.why,
            used: entry.used,
            pending: entry.pending.len(),
            mtu: self.mtu(now, ip),
        })
    }
}
