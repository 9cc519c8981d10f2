//! The rows of plain interfaces, from the state of their control planes and the counters of ports.
//!
//! Why structs are taken apart without `..` here: a new counter does not compile until it has a
//! row.

use super::PlainLink;
use super::counters::{FrameCounts, PlainCounters, PlainCounts};
use crate::admin::page::{RowKey, rows_after};
use crate::admin::rows::{DropCount, InterfaceStatus, NeighborState, NeighborStatus};
use pollux_control::neighbor::NeighborRow;
use pollux_dataplane::reason::{ForwardDrop, PacketDrop};
use pollux_verbs::time::Time;
use pollux_wire::ethernet::MacAddress;
use std::collections::BTreeMap;

impl PlainLink {
    /// Its state, and the reason of that.
    pub(crate) fn state(&self) -> (&'static str, String) {
        match self.control.why_down() {
            None => ("up", self.method()),
            Some(why) => ("down", why.into()),
        }
    }

    /// The method by which packets pass.
    pub(crate) fn method(&self) -> String {
        self.device.method()
    }

    /// Its row, but for its names, state and addresses.
    pub(crate) fn status(&self, now: Time) -> InterfaceStatus {
        let (control, counters) = (&self.control, self.counters().collect::<Vec<_>>());
        let since = now.since_start().saturating_sub(control.since().since_start());
        InterfaceStatus {
            refused: self.refused.as_ref().map(|(why, _)| why.to_string()),
            seconds: Some(since.as_secs()),
            mtu: control.is_up().then_some(control.mtu()),
            link: control.ethernet().map(|link| link.address().to_string()),
            workers: Some(counters.len()),
            sent: Some(counters.iter().map(|one| one.sent).sum()),
            received: Some(counters.iter().map(|one| one.received).sum()),
            bytes_sent: Some(counters.iter().map(|one| one.bytes_sent).sum()),
            bytes_received: Some(counters.iter().map(|one| one.bytes_received).sum()),
            ..InterfaceStatus::default()
        }
    }

    /// The neighbors after this one, as many as a page has; and the last, if there are more.
    pub(crate) fn neighbors(
        &self,
        now: Time,
        name: &str,
        after: Option<RowKey>,
    ) -> (Vec<NeighborStatus>, Option<RowKey>) {
        let Some(link) = self.control.ethernet() else { return (Vec::new(), None) };
        let first = match after {
            Some(RowKey::Neighbor(ip)) => Some(ip),
            _ => None,
        };
        let row = |row: NeighborRow<MacAddress>| NeighborStatus {
            interface: name.into(),
            address: row.ip,
            state: NeighborState::of(&row.state),
            link: row.state.address().map(|address| address.to_string()),
            by: None,
            mtu: row.state.address().map(|_| self.control.mtu()),
            why: row.why.into(),
            connection: None,
            seconds: now.since_start().saturating_sub(row.since.since_start()).as_secs(),
            pending: row.pending,
        };
        let (rows, last) =
            rows_after(link.rows_after(first), |row| RowKey::Neighbor(row.ip), after);
        (rows.into_iter().map(row).collect(), last)
    }

    /// Its drop counters, zeros included.
    pub(crate) fn drops(&self, name: &str) -> Vec<DropCount> {
        let mut all = BTreeMap::new();
        let mut count = |of, why, count| *all.entry((of, why)).or_insert(0) += count;
        self.counters().for_each(|counters| of_port(&counters, &mut count));
        if self.control.ethernet().is_some() {
            self.counters().for_each(|counters| of_frames(&counters.frames, &mut count));
        }
        let unsent = self.ports.iter().map(|port| port.frames_dropped).sum();
        count("port", "control_no_room", unsent);
        count("interface", "no_socket", self.no_socket);
        self.control.drop_rows().for_each(|(of, why, times)| count(of, why, times));
        all.into_iter().map(|((of, why), count)| DropCount::new(name, of, why, count)).collect()
    }
}

fn of_port(counters: &PlainCounters, count: &mut impl FnMut(&'static str, &'static str, u64)) {
    let PlainCounters {
        received: _,
        sent: _,
        bytes_received: _,
        bytes_sent: _,
        drops,
        forward_drops,
        counts,
        frames: _,
    } = counters;
    ForwardDrop::ALL.iter().for_each(|&why| count("forward", why.name(), forward_drops.of(why)));
    PacketDrop::ALL.iter().for_each(|&why| count("received", why.name(), drops.of(why)));
    let PlainCounts { transit, full, refused, bad_offload, punts_dropped, starved } = *counts;
    let port = [
        ("transit", transit),
        ("full", full),
        ("refused", refused),
        ("bad_offload", bad_offload),
        ("punts_dropped", punts_dropped),
        ("no_receive_buffer", starved),
    ];
    port.into_iter().for_each(|(why, times)| count("port", why, times));
}

fn of_frames(frames: &FrameCounts, count: &mut impl FnMut(&'static str, &'static str, u64)) {
    let FrameCounts {
        runt,
        other_vlan,
        not_ours,
        unknown_type,
        too_long,
        kernel_full,
        device_errors,
    } = *frames;
    let all = [
        ("runt", runt),
        ("other_vlan", other_vlan),
        ("not_ours", not_ours),
        ("unknown_type", unknown_type),
        ("too_long", too_long),
        ("kernel_full", kernel_full),
        ("device_error", device_errors),
    ];
    all.into_iter().for_each(|(why, times)| count("frame", why, times));
}
