//! What a worker has moved and not moved, as a value that another thread can show; and which
//! connections that was by, which control wants to know.

use super::port_driver::{Counts, PortDriver};
use pollux_control::interface::{ConnectionKey, QueuePairEvent};
use pollux_dataplane::ipoib::{ConnectionUse, Traffic};
use pollux_dataplane::reason::{PacketDrops, Refusals};
use pollux_verbs::QpType;
use std::collections::BTreeMap;

/// How often a connection is seen again with the same oldest send before it has failed. Looks are
/// [`USES_EVERY`](super::USES_EVERY) apart, so a peer that computes for two seconds is waited for.
const STALLED_MAX: u32 = 2;

/// What a worker has moved.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct DriverCounters {
    /// Packets.
    pub traffic: Traffic,
    /// What was dropped, by reason.
    pub drops: PacketDrops,
    /// What was not taken, by reason.
    pub refusals: Refusals,
    /// What was not moved besides.
    pub counts: Counts,
    /// Management datagrams that could not be sent.
    pub mads_unsent: u64,
    /// How much connections were used.
    pub uses: BTreeMap<ConnectionKey, ConnectionUse>,
    /// Why something that control wants is not done.
    pub refused: Option<String>,
}

impl PortDriver {
    /// What it has moved.
    pub fn counters(&self) -> DriverCounters {
        DriverCounters {
            traffic: self.netdev.traffic(),
            drops: self.netdev.drops().clone(),
            refusals: self.netdev.refusals().clone(),
            counts: self.counts,
            mads_unsent: self.mads_unsent(),
            uses: self.connection_uses(),
            refused: self.undone().next().map(|(_, why)| why.to_string()),
        }
    }

    /// Tells, at the next poll, which connections were used since this was called last.
    pub fn report_uses(&mut self) {
        let uses = self.connection_uses();
        let before = |key| self.seen.uses.get(key).copied().unwrap_or_default();
        let used = uses.iter().map(|(key, after)| (*key, before(key), after));
        let used = used.filter(|(_, before, after)| before != *after);
        self.connection_events.extend(used.map(|(key, before, after)| {
            (key, QueuePairEvent::Used { received: before.received != after.received })
        }));
        self.seen.uses = uses;
        self.watch_sends();
    }

    /// Reports reliable connections as failed whose peers have taken nothing for long, though they
    /// acknowledge: a peer without receives is waited for by RNR NAK after RNR NAK, and would keep
    /// buffers for ever. Observations are counted, not time: a process that was stopped itself has
    /// not looked.
    fn watch_sends(&mut self) {
        let mut stalled = std::mem::take(&mut self.seen.stalled);
        for (key, id) in &self.connections {
            let is_reliable = self.netdev.peering(*id).is_some_and(|it| it.qp_type == QpType::Rc);
            let Some(oldest) = self.netdev.oldest_send(*id).filter(|_| is_reliable) else {
                continue;
            };
            let times = stalled.remove(key).filter(|(before, _)| *before == oldest);
            let times = times.map_or(0, |(_, times)| times + 1);
            if times == STALLED_MAX {
                self.connection_events.push((*key, QueuePairEvent::Failed));
            }
            self.seen.stalled.insert(*key, (oldest, times));
        }
    }

    fn connection_uses(&self) -> BTreeMap<ConnectionKey, ConnectionUse> {
        let all = self.connections.iter();
        all.filter_map(|(key, id)| Some((*key, self.netdev.connection_use(*id)?))).collect()
    }
}
