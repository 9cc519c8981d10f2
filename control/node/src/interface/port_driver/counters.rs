//! The counters of a worker, copied for another thread, and reports to control about the use of
//! connections.

use super::{Counts, PortDriver};
use pollux_control::ipoib::{ConnectionKey, QueuePairEvent};
use pollux_dataplane::ipoib::{ConnectionId, ConnectionUse, Traffic};
use pollux_dataplane::reason::{ForwardDrops, PacketDrops, Refusals};
use pollux_verbs::QpType;
use std::collections::BTreeMap;

/// A connection fails at this many checks that find the same oldest send as the check before.
/// Checks are `USES_EVERY` apart, so a peer may pause for two seconds.
const STALLED_MAX: u32 = 2;

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct DriverCounters {
    pub traffic: Traffic,
    pub drops: PacketDrops,
    pub refusals: Refusals,
    pub forward_drops: ForwardDrops,
    pub counts: Counts,
    pub uses: BTreeMap<ConnectionKey, ConnectionUse>,
    /// The reason why the device refuses an action of control.
    pub refused: Option<String>,
}

/// A connection of control at the netdev.
pub(super) struct DriverConnection {
    pub(super) id: ConnectionId,
    /// Its counters at the last check.
    seen: ConnectionUse,
    /// The oldest send that a reliable peer has not acknowledged, and how many checks have found it
    /// again.
    stalled: Option<(u32, u32)>,
}

impl DriverConnection {
    pub(super) fn new(id: ConnectionId) -> Self {
        Self { id, seen: ConnectionUse::default(), stalled: None }
    }
}

impl PortDriver {
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

    /// Reports connections that were used since the last call. Fails a reliable connection if its
    /// oldest send stays unacknowledged: a peer that posts no receives would answer with RNR NAKs
    /// forever, and block send buffers. Checks are counted instead of time, since this process may
    /// have been stopped itself.
    pub fn report_uses(&mut self) {
        for (key, connection) in &mut self.connections {
            let id = connection.id;
            let Some(peering) = self.netdev.peering(id) else { continue };
            let after = self.netdev.connection_use(id).unwrap_or_default();
            let before = std::mem::replace(&mut connection.seen, after);
            if before != after {
                let used = QueuePairEvent::Used { received: before.received != after.received };
                self.connection_events.push((*key, used));
            }
            let is_reliable = peering.qp_type == QpType::Rc;
            let oldest = self.netdev.oldest_send(id).filter(|_| is_reliable);
            let before = connection.stalled;
            connection.stalled = oldest.map(|oldest| {
                let same = before.filter(|(before, _)| *before == oldest);
                (oldest, same.map_or(0, |(_, checks)| checks + 1))
            });
            if connection.stalled.is_some_and(|(_, checks)| checks == STALLED_MAX) {
                self.connection_events.push((*key, QueuePairEvent::Failed));
            }
        }
    }

    fn connection_uses(&self) -> BTreeMap<ConnectionKey, ConnectionUse> {
        let all = self.connections.iter();
        all.filter_map(|(key, one)| Some((*key, self.netdev.connection_use(one.id)?))).collect()
    }
}
