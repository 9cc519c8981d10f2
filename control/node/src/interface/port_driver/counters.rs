//! The counters of a worker, as a value for another thread; and reports of the use of connections
//! to control.

use super::{Counts, PortDriver};
use pollux_control::ipoib::{ConnectionKey, QueuePairEvent};
use pollux_dataplane::ipoib::{ConnectionUse, Traffic};
use pollux_dataplane::reason::{ForwardDrops, PacketDrops, Refusals};
use pollux_verbs::QpType;
use std::collections::BTreeMap;

/// Checks of a connection with the same oldest send before it fails. Checks are `USES_EVERY` apart,
/// so a peer may pause for two seconds.
const STALLED_MAX: u32 = 2;

/// The counters of a worker.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct DriverCounters {
    /// Packets.
    pub traffic: Traffic,
    /// Dropped packets, by reason.
    pub drops: PacketDrops,
    /// Refused packets, by reason.
    pub refusals: Refusals,
    /// Dropped packets in transit, by reason.
    pub forward_drops: ForwardDrops,
    /// All other drops.
    pub counts: Counts,
    /// The packet counters of connections.
    pub uses: BTreeMap<ConnectionKey, ConnectionUse>,
    /// The reason for which an action of control is refused.
    pub refused: Option<String>,
}

/// The state of connections at the last check.
#[derive(Default)]
pub(super) struct Seen {
    uses: BTreeMap<ConnectionKey, ConnectionUse>,
    /// The oldest sends of connections that wait for their peers, and the checks that found each.
    stalled: BTreeMap<ConnectionKey, (u32, u32)>,
}

impl PortDriver {
    /// The counters of this worker.
    pub fn counters(&self) -> DriverCounters {
        DriverCounters {
            traffic: self.netdev.traffic(),
            drops: self.netdev.drops().clone(),
            refusals: self.netdev.refusals().clone(),
            forward_drops: self.forward_drops.clone(),
            counts: self.counts,
            uses: self.connection_uses(),
            refused: self.undone().next().map(|(_, why)| why.to_string()),
        }
    }

    /// Adds events of connections that were used since the last call.
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

    /// Reports reliable connections as failed whose peers have received nothing for long: a peer
    /// without posted receives would answer with RNR NAKs forever, and keep buffers. Checks are
    /// counted instead of time, since this process may have been stopped itself.
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
