//! Assignment of LIDs to ports (IBA 14.3.10).
//!
//! LIDs are stable: a port gets its LID in the table of earlier sweeps and runs, or else the LID
//! that it has already, if that LID is free. Other ports get the lowest free LIDs.

use crate::config::SmConfig;
use crate::view::{PortRef, View};
use pollux_wire::address::{Guid, Lid};
use std::collections::BTreeMap;

/// Assigns LIDs to all ports, and writes them into `table`. Returns the number of ports that get no
/// LID, because none is left.
pub(super) fn assign(view: &mut View, config: &SmConfig, table: &mut BTreeMap<Guid, Lid>) -> usize {
    let lmc = config.lmc.min(7);
    let mut unassigned: Vec<_> = view.ports_with_lid().map(|(at, port)| (port.guid, at)).collect();
    // The order is fixed, so that of two ports with the same LID, always the same one keeps it.
    unassigned.sort();
    let mut taken = vec![false; usize::from(Lid::UNICAST_LAST.0) + 1];
    taken[0] = true;
    let mut given: Vec<(PortRef, Guid, Lid, u8)> = Vec::with_capacity(unassigned.len());
    for is_by_table in [true, false] {
        for (guid, at) in std::mem::take(&mut unassigned) {
            let lmc = if view.node(at.node).is_switch() { 0 } else { lmc };
            let present = view.port(at).info.map(|info| info.lid);
            let wanted = if is_by_table { table.get(&guid).copied() } else { present };
            match wanted.filter(|lid| take(&mut taken, *lid, lmc)) {
                Some(lid) => given.push((at, guid, lid, lmc)),
                None => unassigned.push((guid, at)),
            }
        }
    }
    let mut next = 1;
    let mut without = 0;
    for (guid, at) in unassigned {
        let lmc = if view.node(at.node).is_switch() { 0 } else { lmc };
        match free(&mut taken, &mut next, lmc) {
            Some(lid) => given.push((at, guid, lid, lmc)),
            None => without += 1,
        }
    }
    for (at, guid, lid, lmc) in given {
        view.assign_lid(at, lid, lmc);
        table.insert(guid, lid);
    }
    without
}

/// Takes 2^lmc LIDs from `lid` on, if they are unicast, aligned and free.
fn take(taken: &mut [bool], lid: Lid, lmc: u8) -> bool {
    let (first, count) = (usize::from(lid.0), 1 << lmc);
    let Some(range) = taken.get_mut(first..first + count) else { return false };
    let is_free = first.is_multiple_of(count) && !range.contains(&true);
    if is_free {
        range.fill(true);
    }
    is_free
}

/// Takes the lowest free LIDs. All LIDs below `next` are taken.
fn free(taken: &mut [bool], next: &mut usize, lmc: u8) -> Option<Lid> {
    let count = 1 << lmc;
    while taken.get(*next).is_some_and(|taken| *taken) {
        *next += 1;
    }
    let aligned = (next.next_multiple_of(count)..taken.len()).step_by(count);
    let lids = aligned.map(|first| Lid(first as u16));
    lids.into_iter().find(|lid| take(taken, *lid, lmc))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::view::Path;
    use pollux_wire::mad::smp::{NodeInfo, NodeType, PortInfo};

    /// A view of a switch, and of adapters with these LIDs.
    fn view(present: &[u16]) -> View {
        let mut view = View::default();
        for (index, lid) in (0u32..).zip([&[0], present].concat()) {
            let is_switch = index == 0;
            let node_type = if is_switch { NodeType::SWITCH } else { NodeType::CHANNEL_ADAPTER };
            let node_guid = Guid(u64::from(index) + 1);
            let info = NodeInfo { node_type, node_guid, num_ports: 1, ..NodeInfo::default() };
            let node = view.add(info, Path::HERE);
            let at = PortRef { node, port: u8::from(!is_switch) };
            view.set_guid(at, node_guid);
            view.port_mut(at).info = Some(PortInfo { lid: Lid(lid), ..PortInfo::default() });
        }
        view
    }

    fn lids(config: &SmConfig, present: &[u16], table: &mut BTreeMap<Guid, Lid>) -> Vec<u16> {
        let mut view = view(present);
        assert_eq!(assign(&mut view, config, table), 0);
        view.ports_with_lid().map(|(_, port)| port.lid.0).collect()
    }

    #[test]
    fn addresses_stay_and_gaps_are_filled() {
        let table = &mut BTreeMap::new();
        assert_eq!(lids(&SmConfig::default(), &[2, 0, 5, 5, 0xc000], table), [1, 2, 3, 5, 4, 6]);
        assert_eq!(table[&Guid(4)], Lid(5));
        assert_eq!(
            lids(&SmConfig::default(), &[0; 5], table),
            [1, 2, 3, 5, 4, 6],
            "from the table"
        );
    }

    #[test]
    fn ranges_are_aligned_and_switches_have_one_address() {
        let config = SmConfig { lmc: 2, ..SmConfig::default() };
        assert_eq!(lids(&config, &[6, 8, 0], &mut BTreeMap::new()), [1, 4, 8, 12]);
    }

    #[test]
    fn there_are_so_many_only() {
        let mut view = view(&[0; 400]);
        let config = SmConfig { lmc: 7, ..SmConfig::default() };
        let without = assign(&mut view, &config, &mut BTreeMap::new());
        // 384 ranges of 128: the first contains the reserved LID 0 and the LID of the switch.
        assert_eq!(without, 400 - 383);
    }
}
