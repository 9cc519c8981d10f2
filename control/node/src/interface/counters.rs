//! What a worker has moved and not moved, as a value that another thread can show; and which
//! connections that was by, which control wants to know.

use super::port_driver::{Counts, PortDriver};
use pollux_control::interface::{ConnectionKey, QueuePairEvent};
use pollux_dataplane::ipoib::{ConnectionUse, Traffic};
use pollux_dataplane::reason::{PacketDrops, Refusals};
use std::collections::BTreeMap;

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
        let before = |key| self.uses.get(key).copied().unwrap_or_default();
        let used = uses.iter().map(|(key, after)| (*key, before(key), after));
        let used = used.filter(|(_, before, after)| before != *after);
        self.connection_events.extend(used.map(|(key, before, after)| {
            (key, QueuePairEvent::Used { received: before.received != after.received })
        }));
        self.uses = uses;
    }

    fn connection_uses(&self) -> BTreeMap<ConnectionKey, ConnectionUse> {
        let all = self.connections.iter();
        all.filter_map(|(key, id)| Some((*key, self.netdev.connection_use(*id)?))).collect()
    }
}
