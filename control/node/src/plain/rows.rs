//! The rows of plain interfaces, from the state of their control planes and the counters of ports.

use super::PlainLink;
use super::counters::PlainCounters;
use crate::admin::page::{RowKey, rows_after};
use crate::admin::rows::{DropCount, InterfaceStatus, NeighborState, NeighborStatus};
use pollux_control::neighbor::NeighborRow;
use pollux_verbs::time::Time;
use pollux_wire::ethernet::MacAddress;
use std::collections::BTreeMap;
use std::net::IpAddr;

impl PlainLink {
    pub(crate) fn state(&self) -> (&'static str, String) {
        match self.control.why_down() {
            None => ("up", self.method()),
            Some(why) => ("down", why.into()),
        }
    }

    pub(crate) fn method(&self) -> String {
        self.device.method()
    }

    /// The row of the interface, without its names, state and addresses.
    pub(crate) fn status(&self, now: Time) -> InterfaceStatus {
        let (control, counters) = (&self.control, self.counters().collect::<Vec<_>>());
        InterfaceStatus {
            refused: self.refused.as_ref().map(|(why, _)| why.to_string()),
            seconds: Some(now.since(control.since()).as_secs()),
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

    pub(crate) fn neighbors(
        &self,
        now: Time,
        name: &str,
        after: Option<IpAddr>,
    ) -> (Vec<NeighborStatus>, Option<RowKey>) {
        let Some(link) = self.control.ethernet() else { return (Vec::new(), None) };
        let row = |row: NeighborRow<MacAddress>| NeighborStatus {
            interface: name.into(),
            address: row.ip,
            state: NeighborState::of(&row.state),
            link: row.state.address().map(|address| address.to_string()),
            by: None,
            mtu: row.state.address().map(|_| self.control.mtu()),
            why: row.why.into(),
            connection: None,
            seconds: now.since(row.since).as_secs(),
            pending: row.pending,
        };
        let rows = link.rows_after(after);
        let (rows, last) = rows_after(rows, |row| RowKey::Neighbor(row.ip), None);
        (rows.into_iter().map(row).collect(), last)
    }

    pub(crate) fn drops(&self, name: &str) -> Vec<DropCount> {
        let mut all = BTreeMap::new();
        let mut count = |of, why, count| *all.entry((of, why)).or_insert(0) += count;
        self.counters().for_each(|counters| of_port(&counters, &mut count));
        if self.control.ethernet().is_some() {
            self.counters().for_each(|counters| of_frames(&counters, &mut count));
        }
        let unsent = self.ports.iter().map(|port| port.frames_dropped).sum();
        count("port", "control_no_room", unsent);
        count("interface", "no_socket", self.no_socket);
        self.control.drop_rows().for_each(|(of, why, times)| count(of, why, times));
        all.into_iter().map(|((of, why), count)| DropCount::new(name, of, why, count)).collect()
    }
}

fn of_port(counters: &PlainCounters, count: &mut impl FnMut(&'static str, &'static str, u64)) {
    counters.forward_drops.iter().for_each(|(why, times)| count("forward", why, times));
    counters.drops.iter().for_each(|(why, times)| count("received", why, times));
    counters.port_drops.iter().for_each(|(why, times)| count("port", why, times));
}

fn of_frames(counters: &PlainCounters, count: &mut impl FnMut(&'static str, &'static str, u64)) {
    counters.frame_drops.iter().for_each(|(why, times)| count("frame", why, times));
    count("frame", "kernel_full", counters.kernel_full);
}
