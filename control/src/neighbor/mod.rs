//! The neighbor cache, from IP address to link address, for both families (RFC 826, RFC 4861 5 and
//! 7).
//!
//! [`State`] is the state machine of one entry; this module has the table, the pending packets, and
//! the limits. ARP and neighbor discovery report link addresses as [`Claim`]s, and send the
//! requests that come out as [`Solicitation`]s. An unsolicited claim never creates an entry, with
//! one exception: a request for our own address, because it will be answered (RFC 826, RFC 4861
//! 7.2.3). Such an entry evicts only entries that failed or were never confirmed.
//!
//! The caller drains the events after every call, because their queue has no limit; each entry adds
//! only a few per call.

mod state;
mod table;
#[cfg(test)]
mod tests;

pub use state::State;

use crate::bounded::{BoundedQueue, RateLimit};
use crate::link::InterfaceAddress;
use pollux_verbs::drops::Drops;
use pollux_verbs::reasons;
use pollux_verbs::rng::SeededRng;
use pollux_verbs::time::Time;
use pollux_wire::ip::link_address::LinkAddress;
use state::Input;
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::net::IpAddr;
use std::ops::Bound;
use std::time::Duration;
use table::{Entry, Usefulness};

#[derive(Clone, Debug)]
pub struct NeighborConfig {
    /// Entries, permanent ones included.
    pub entries_max: usize,
    pub pending_per_entry_max: usize,
    pub pending_max: usize,
    /// The mean time that an answer is valid.
    pub reachable_for: Duration,
    /// The retransmit timer.
    pub retry_after: Duration,
    /// The time for an upper protocol to confirm an entry before it is probed.
    pub delay_before_probe: Duration,
    /// Multicast requests per resolution.
    pub broadcasts_max: u8,
    /// Unicast probes before a neighbor counts as unreachable.
    pub probes_max: u8,
    /// The pause after a failed resolution; it doubles each time.
    pub pause_min: Duration,
    pub pause_max: Duration,
    /// How long an unused entry and its connections are kept; `None`: forever (RFC 4755 3.4).
    pub idle_for: Option<Duration>,
    pub broadcasts_per_second_max: u32,
    /// The retransmit timer of probes when another port claims the address. An address that moves
    /// is unreachable for `probes_max` times this.
    pub contest_retry_after: Duration,
    /// Claims of other ports that may start probes, per second, for all neighbors together.
    pub contests_per_second_max: u32,
    /// New entries per second for requests of unknown nodes.
    pub unsolicited_entries_per_second_max: u32,
    /// Whether the flags in link addresses are used; they have no meaning while connected mode is
    /// off (RFC 4755 3.1).
    pub connected_mode: bool,
}

impl Default for NeighborConfig {
    /// The values of RFC 4861 10, where it defines one.
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
            broadcasts_per_second_max: 1000,
            contest_retry_after: Duration::from_millis(125),
            contests_per_second_max: 1000,
            unsolicited_entries_per_second_max: 1000,
            connected_mode: true,
        }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Claim<L = LinkAddress> {
    pub ip: IpAddr,
    pub address: Option<L>,
    pub kind: ClaimKind,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ClaimKind {
    /// An answer or an announcement. It creates no entry.
    Answer {
        /// It answers a request, so the neighbor is reachable.
        solicited: bool,
        /// It replaces a known address.
        override_cached: bool,
    },
    /// A request to us. It creates an entry, because it will be answered.
    Request,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Solicitation<L = LinkAddress> {
    pub ip: IpAddr,
    /// The link address to send to; multicast if `None`.
    pub at: Option<L>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Resolution<P, L = LinkAddress> {
    Known(L, P),
    /// The packet is queued; an event returns it later.
    Waits,
    Unreachable(P),
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum NeighborEvent<P, L = LinkAddress> {
    /// The neighbor's link address is known now; these packets waited for it.
    Resolved(IpAddr, L, Vec<P>),
    /// The link address changed from the first to the second; they may differ in flags alone.
    Changed(IpAddr, L, L),
    /// The neighbor no longer answers at this link address, and is resolved again.
    Lost(IpAddr, L),
    Unreachable(IpAddr, Vec<P>),
    /// The entry expired, was evicted or was removed; with its last address and pending packets.
    Forgotten(IpAddr, Option<L>, Vec<P>),
}

reasons! {
    pub enum NeighborDrop {
        /// A packet was replaced by a later one to the same neighbor.
        PendingPerEntry = "pending_per_entry",
        /// A packet was replaced by a later one to any neighbor.
        PendingInAll = "pending_in_all",
        Unreachable = "unreachable",
        /// No entry could be evicted.
        TableFull = "table_full",
        Evicted = "evicted",
        /// A multicast request was delayed: too many in a second.
        BroadcastPutOff = "broadcast_put_off",
        /// A request of an unknown node created no entry: too many in a second.
        UnsolicitedPutOff = "unsolicited_put_off",
        ClaimUnasked = "claim_unasked",
        ClaimAgainstPermanent = "claim_against_permanent",
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NeighborRow<L = LinkAddress> {
    pub ip: IpAddr,
    pub state: State<L>,
    pub since: Time,
    /// The cause of the last change of state.
    pub why: &'static str,
    pub used: Time,
    pub pending: usize,
}

/// The neighbor cache. `P` is the type of a packet.
pub struct Neighbors<P, L = LinkAddress> {
    config: NeighborConfig,
    rng: SeededRng,
    broadcasts: RateLimit,
    contests: RateLimit,
    unsolicited: RateLimit,
    entries: BTreeMap<IpAddr, Entry<P, L>>,
    due: BTreeSet<(Time, IpAddr)>,
    /// The order of eviction: the least useful first; among equals, the least recently used first.
    order: BTreeSet<(Usefulness, Time, IpAddr)>,
    /// The neighbor of each pending packet, oldest first.
    pending: BTreeMap<u64, IpAddr>,
    packets: u64,
    asks: BoundedQueue<Solicitation<L>>,
    events: VecDeque<NeighborEvent<P, L>>,
    drops: Drops<NeighborDrop>,
}

impl<P, L: InterfaceAddress> Neighbors<P, L> {
    pub fn new(config: NeighborConfig, seed: u64) -> Self {
        let per_second = config.broadcasts_per_second_max;
        let contests = config.contests_per_second_max;
        let unsolicited = config.unsolicited_entries_per_second_max;
        Self {
            broadcasts: RateLimit::new(per_second, per_second),
            contests: RateLimit::new(contests, contests),
            unsolicited: RateLimit::new(unsolicited, unsolicited),
            // Each entry has one outstanding request.
            asks: BoundedQueue::new(config.entries_max),
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

    /// Returns `packet` with the link address of the neighbor `ip`, or queues it until the
    /// resolution is done.
    pub fn resolve(&mut self, now: Time, ip: IpAddr, packet: P) -> Resolution<P, L> {
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

    /// Handles a report that packets were sent to the neighbor.
    pub fn handle_use(&mut self, now: Time, ip: IpAddr) {
        if let Some(entry) = self.take(ip) {
            self.put(ip, Entry { used: now, ..entry });
            self.step(now, ip, Input::Use, "used");
        }
    }

    /// Handles a claim. The caller checks that the claim is about an address on the link that is
    /// not ours.
    pub fn handle_claim(&mut self, now: Time, claim: Claim<L>) {
        let address = claim.address.map(|address| self.effective_address(address));
        match (self.entries.get(&claim.ip), claim.kind, address) {
            (Some(Entry { state: State::Permanent { address: known }, .. }), _, address) => {
                if address.is_some_and(|address| !address.is_same(known)) {
                    self.drops.count(NeighborDrop::ClaimAgainstPermanent);
                }
            }
            (Some(_), ClaimKind::Answer { solicited, override_cached }, address) => {
                let input = Input::Answer { address, solicited, override_cached };
                let why = if solicited { "answered" } else { "announced" };
                self.step(now, claim.ip, input, why);
            }
            (Some(_), ClaimKind::Request, Some(address)) => {
                self.step(now, claim.ip, Input::Request { address }, "asked us");
            }
            // The request is still answered. The neighbor is resolved when there is a packet for
            // it.
            (None, ClaimKind::Request, Some(_)) if !self.unsolicited.take(now) => {
                self.drops.count(NeighborDrop::UnsolicitedPutOff);
            }
            (None, ClaimKind::Request, Some(address)) => {
                self.insert_stale(now, claim.ip, address);
            }
            _ => self.drops.count(NeighborDrop::ClaimUnasked),
        }
    }

    /// Handles proof from an upper protocol that the neighbor receives our packets.
    pub fn handle_confirmation(&mut self, now: Time, ip: IpAddr) {
        self.step(now, ip, Input::Confirmation, "confirmed from above");
    }

    /// Handles a hint that the neighbor may be unreachable: no path, a broken connection.
    pub fn handle_stale_hint(&mut self, now: Time, ip: IpAddr) {
        self.step(now, ip, Input::StaleHint, "stale by a hint from an upper protocol");
    }

    /// The known address of a neighbor; does not count as use.
    pub fn address(&self, ip: IpAddr) -> Option<L> {
        self.entries.get(&ip)?.state.address()
    }

    /// `false` if the last resolution of `ip` failed. Other routers are then preferred (RFC 4861
    /// 6.3.6).
    pub fn may_be_reachable(&self, ip: IpAddr) -> bool {
        let state = self.entries.get(&ip).map(|entry| entry.state);
        !matches!(state, Some(State::Failed { .. } | State::Incomplete { failures: 1.., .. }))
    }

    /// Configures a permanent entry. `false` if the table is full.
    pub fn set_permanent(&mut self, now: Time, ip: IpAddr, address: L) -> bool {
        if !self.entries.contains_key(&ip) && !self.make_space(Usefulness::InUse) {
            return false;
        }
        let state = State::Permanent { address: self.effective_address(address) };
        let entry = self.take(ip);
        let before = entry.as_ref().map(|entry| entry.state);
        let entry = entry.unwrap_or_else(|| Entry::new(now, state, "configured"));
        self.put(ip, Entry { state, since: now, why: "configured", ..entry });
        self.report(ip, before);
        true
    }

    /// Removes an entry, also a permanent one.
    pub fn remove(&mut self, ip: IpAddr) {
        if let Some(entry) = self.take(ip) {
            self.forget(ip, entry);
        }
    }

    /// Removes all learned entries.
    pub fn flush(&mut self) {
        let learnt: Vec<IpAddr> = self.order.iter().map(|&(_, _, ip)| ip).collect();
        for ip in learnt {
            self.remove(ip);
        }
    }

    /// Sets the reachable time and the retransmit timer that routers advertise (RFC 4861 6.3.4).
    pub fn set_times(&mut self, reachable_for: Option<Duration>, retry_after: Option<Duration>) {
        self.config.reachable_for = reachable_for.unwrap_or(self.config.reachable_for);
        self.config.retry_after = retry_after.unwrap_or(self.config.retry_after);
    }

    pub fn handle_timeout(&mut self, now: Time) {
        while let Some(&(_, ip)) = self.due.first().filter(|(at, _)| *at <= now) {
            self.step(now, ip, Input::Due, "time");
        }
    }

    pub fn poll_timeout(&self) -> Option<Time> {
        self.due.first().map(|&(at, _)| at)
    }

    pub fn poll_transmit(&mut self) -> Option<Solicitation<L>> {
        self.asks.pop()
    }

    pub fn poll_event(&mut self) -> Option<NeighborEvent<P, L>> {
        self.events.pop_front()
    }

    pub const fn lost(&self) -> u64 {
        self.asks.lost()
    }

    pub const fn drops(&self) -> &Drops<NeighborDrop> {
        &self.drops
    }

    /// The numbers of entries and of pending packets.
    pub fn load(&self) -> (usize, usize) {
        (self.entries.len(), self.pending.len())
    }

    pub fn rows(&self) -> impl Iterator<Item = NeighborRow<L>> {
        self.rows_after(None)
    }

    pub fn rows_after(&self, ip: Option<IpAddr>) -> impl Iterator<Item = NeighborRow<L>> {
        let first = ip.map_or(Bound::Unbounded, Bound::Excluded);
        self.entries.range((first, Bound::Unbounded)).map(|(&ip, entry)| NeighborRow {
            ip,
            state: entry.state,
            since: entry.since,
            why: entry.why,
            used: entry.used,
            pending: entry.pending.len(),
        })
    }
}
