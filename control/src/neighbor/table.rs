//! The table of the neighbor cache: the entries, their indices, and the pending packets.
//!
//! To change an entry, a method removes it by [`Neighbors::take`] and inserts it again by
//! [`Neighbors::put`]. These two alone update the indices, so the indices always match the entries.

use super::state::{Ask, Input, Rules, Step};
use super::{NeighborDrop, NeighborEvent, Neighbors, Solicitation, State};
use crate::link::InterfaceAddress;
use pollux_verbs::time::Time;
use std::collections::VecDeque;
use std::mem::discriminant;
use std::net::IpAddr;

pub(super) struct Entry<P, L> {
    pub(super) state: State<L>,
    pub(super) since: Time,
    pub(super) why: &'static str,
    pub(super) used: Time,
    /// Packets with their serial numbers in `Neighbors::pending`.
    pub(super) pending: VecDeque<(u64, P)>,
}

/// The usefulness of an entry, which orders eviction; the least useful first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Usefulness {
    Failed,
    /// The link address was claimed, and never confirmed by an answer.
    Unconfirmed,
    Stale,
    Incomplete,
    InUse,
}

impl Usefulness {
    /// `None` if the entry is never evicted.
    const fn of<L>(state: &State<L>) -> Option<Self> {
        match state {
            State::Failed { .. } => Some(Self::Failed),
            State::Stale { is_confirmed: false, .. } => Some(Self::Unconfirmed),
            State::Stale { is_confirmed: true, .. } => Some(Self::Stale),
            State::Incomplete { .. } => Some(Self::Incomplete),
            State::Reachable { .. } | State::Delay { .. } | State::Probe { .. } => {
                Some(Self::InUse)
            }
            State::Permanent { .. } => None,
        }
    }
}

impl<P, L> Entry<P, L> {
    pub(super) const fn new(now: Time, state: State<L>, why: &'static str) -> Self {
        Self { state, since: now, why, used: now, pending: VecDeque::new() }
    }
}

impl<P, L: InterfaceAddress> Neighbors<P, L> {
    pub(super) fn take(&mut self, ip: IpAddr) -> Option<Entry<P, L>> {
        let entry = self.entries.remove(&ip)?;
        if let Some(due) = entry.state.due() {
            self.due.remove(&(due, ip));
        }
        if let Some(usefulness) = Usefulness::of(&entry.state) {
            self.order.remove(&(usefulness, entry.used, ip));
        }
        Some(entry)
    }

    pub(super) fn put(&mut self, ip: IpAddr, entry: Entry<P, L>) {
        if let Some(due) = entry.state.due() {
            self.due.insert((due, ip));
        }
        if let Some(usefulness) = Usefulness::of(&entry.state) {
            self.order.insert((usefulness, entry.used, ip));
        }
        self.entries.insert(ip, entry);
    }

    /// Creates an entry with a multicast request. `false` if the table is full.
    pub(super) fn insert_incomplete(&mut self, now: Time, ip: IpAddr) -> bool {
        if !self.make_space(Usefulness::InUse) {
            return false;
        }
        let step = self.rules().incomplete(now, 0, 0, 0);
        if let Some(state) = step.next {
            self.put(ip, Entry::new(now, state, "used"));
        }
        self.ask(ip, step);
        true
    }

    /// Creates an entry for a request of an unknown node. It evicts only an entry that failed or
    /// was never confirmed: a node can send requests from any number of addresses, and eviction
    /// ends connections.
    pub(super) fn insert_stale(&mut self, now: Time, ip: IpAddr, address: L) {
        if self.make_space(Usefulness::Unconfirmed) {
            let state = self.rules().stale(now, address, false);
            self.put(ip, Entry::new(now, state, "asked us"));
            self.report(ip, None);
        }
    }

    /// Ensures space for one more entry, by eviction of an entry that is at most as useful as
    /// `at_most`. Returns `false` if the table stays full.
    pub(super) fn make_space(&mut self, at_most: Usefulness) -> bool {
        if self.entries.len() < self.config.entries_max {
            return true;
        }
        match self.order.first() {
            Some(&(usefulness, _, ip)) if usefulness <= at_most => {
                self.drops.count(NeighborDrop::Evicted);
                self.remove(ip);
                true
            }
            _ => {
                self.drops.count(NeighborDrop::TableFull);
                false
            }
        }
    }

    pub(super) fn step(&mut self, now: Time, ip: IpAddr, input: Input<L>, why: &'static str) {
        let Some(entry) = self.take(ip) else { return };
        let before = entry.state;
        let step = before.after(now, input, &mut self.rules());
        let Some(state) = step.next else { return self.forget(ip, entry) };
        let entry = match discriminant(&before) == discriminant(&state) {
            true => Entry { state, ..entry },
            false => Entry { state, since: now, why, ..entry },
        };
        self.put(ip, entry);
        self.ask(ip, step);
        self.report(ip, Some(before));
    }

    pub(super) fn wait(&mut self, ip: IpAddr, packet: P) {
        let pending_here = self.entries.get(&ip).map_or(0, |entry| entry.pending.len());
        if pending_here >= self.config.pending_per_entry_max {
            self.drop_oldest(ip, NeighborDrop::PendingPerEntry);
        } else if self.pending.len() >= self.config.pending_max
            && let Some((_, &oldest)) = self.pending.first_key_value()
        {
            self.drop_oldest(oldest, NeighborDrop::PendingInAll);
        }
        if let Some(entry) = self.entries.get_mut(&ip) {
            self.packets += 1;
            self.pending.insert(self.packets, ip);
            entry.pending.push_back((self.packets, packet));
        }
    }

    pub(super) fn forget(&mut self, ip: IpAddr, entry: Entry<P, L>) {
        let packets = self.release(entry.pending);
        self.events.push_back(NeighborEvent::Forgotten(ip, entry.state.address(), packets));
    }

    pub(super) fn report(&mut self, ip: IpAddr, before: Option<State<L>>) {
        let Some(entry) = self.entries.get_mut(&ip) else { return };
        let known = before.and_then(|before| before.address());
        let was_failed = matches!(before, Some(State::Failed { .. }));
        let event = match (known, entry.state.address()) {
            (None, Some(address)) => {
                let pending = std::mem::take(&mut entry.pending);
                NeighborEvent::Resolved(ip, address, self.release(pending))
            }
            (Some(before), Some(address)) if before != address => {
                NeighborEvent::Changed(ip, before, address)
            }
            (Some(before), None) => NeighborEvent::Lost(ip, before),
            (None, None) if matches!(entry.state, State::Failed { .. }) && !was_failed => {
                let pending = std::mem::take(&mut entry.pending);
                NeighborEvent::Unreachable(ip, self.release(pending))
            }
            _ => return,
        };
        self.events.push_back(event);
    }

    pub(super) fn effective_address(&self, address: L) -> L {
        if self.config.connected_mode { address } else { address.without_flags() }
    }

    fn rules(&mut self) -> Rules<'_> {
        let Self { config, rng, broadcasts, contests, .. } = self;
        Rules { config, rng, broadcasts, contests }
    }

    fn ask(&mut self, ip: IpAddr, step: Step<L>) {
        let at = match step.ask {
            Some(Ask::Everyone) => None,
            Some(Ask::At(address)) => Some(address),
            Some(Ask::Later) => return self.drops.count(NeighborDrop::BroadcastPutOff),
            None => return,
        };
        self.asks.push(Solicitation { ip, at });
    }

    fn drop_oldest(&mut self, ip: IpAddr, reason: NeighborDrop) {
        let Some(entry) = self.entries.get_mut(&ip) else { return };
        if let Some((number, _)) = entry.pending.pop_front() {
            self.pending.remove(&number);
            self.drops.count(reason);
        }
    }

    fn release(&mut self, pending: VecDeque<(u64, P)>) -> Vec<P> {
        let freed = pending.into_iter().inspect(|(number, _)| {
            self.pending.remove(number);
        });
        freed.map(|(_, packet)| packet).collect()
    }
}
