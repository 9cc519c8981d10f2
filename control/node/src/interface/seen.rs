//! Connections as they were when [`counters`](super::counters) looked at them last.

use pollux_control::interface::ConnectionKey;
use pollux_dataplane::ipoib::ConnectionUse;
use std::collections::BTreeMap;

#[derive(Default)]
pub(super) struct Seen {
    pub(super) uses: BTreeMap<ConnectionKey, ConnectionUse>,
    /// The oldest sends of those that wait for their peers, and how often each was seen again.
    pub(super) stalled: BTreeMap<ConnectionKey, (u32, u32)>,
}
