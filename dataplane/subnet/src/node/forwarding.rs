//! The forwarding tables of a switch: LFT, random forwarding table and MFT (IBA 14.2.5.4, 14.2.5.8
//! to 12).
//!
//! Tables grow as blocks are written, so that the memory of a thousand switches is that of their
//! routes. A random table is kept as it was written, and is also expanded into a linear table, so
//! that a look-up is one load with both kinds.

use super::PortSet;
use super::port::default_lane;
use pollux_wire::address::Lid;
use pollux_wire::mad::smp::{
    LinearForwardingTable, MulticastForwardingTable, MulticastForwardingTableModifier,
    RandomForwardingEntry, RandomForwardingTable, SwitchInfo, VlCap,
};
use pollux_wire::units::TimeCode;

const GROUPS: u16 = 4096;
const RANDOM_ENTRIES: u16 = 1024;

#[derive(Clone, Debug)]
pub struct Forwarding {
    pub info: SwitchInfo,
    num_ports: u8,
    /// Output ports by LID, up to the last written block.
    unicast: Vec<u8>,
    /// The random table as written; empty at a switch with a linear table.
    random: Vec<RandomForwardingEntry>,
    /// Port sets by MLID, from the first MLID up to the last written block.
    groups: Vec<PortSet>,
    /// VLs by input port, output port and service level; empty until some are set.
    lanes: Vec<Option<[u8; 16]>>,
}

impl Forwarding {
    pub(super) fn new(num_ports: u8) -> Self {
        let info = SwitchInfo {
            linear_fdb_cap: Lid::UNICAST_LAST.0 + 1,
            multicast_fdb_cap: GROUPS,
            default_port: LinearForwardingTable::UNREACHABLE,
            default_multicast_primary_port: LinearForwardingTable::UNREACHABLE,
            default_multicast_not_primary_port: LinearForwardingTable::UNREACHABLE,
            life_time: TimeCode(18),
            lids_per_port: 0,
            partition_enforcement_cap: super::P_KEYS as u16,
            inbound_enforcement_cap: true,
            outbound_enforcement_cap: true,
            filter_raw_inbound_cap: true,
            filter_raw_outbound_cap: true,
            ..SwitchInfo::default()
        };
        let (unicast, random) = (Vec::new(), Vec::new());
        Self { info, num_ports, unicast, random, groups: Vec::new(), lanes: Vec::new() }
    }

    /// Makes the switch one with a random table instead of a linear table.
    pub fn use_random_table(&mut self) {
        self.info.linear_fdb_cap = 0;
        self.info.random_fdb_cap = RANDOM_ENTRIES;
        self.info.lids_per_port = 1 << 7;
        self.unicast.clear();
        self.random = vec![RandomForwardingEntry::default(); usize::from(RANDOM_ENTRIES)];
    }

    #[inline]
    pub fn port_of(&self, lid: Lid) -> Option<u8> {
        let written = self.unicast.get(usize::from(lid.0)).copied();
        let port = if self.random.is_empty() {
            written.filter(|_| lid <= self.info.linear_fdb_top)?
        } else {
            let written = written.filter(|port| *port != LinearForwardingTable::UNREACHABLE);
            written.unwrap_or(self.info.default_port)
        };
        (port != LinearForwardingTable::UNREACHABLE).then_some(port)
    }

    #[inline]
    pub fn group(&self, mlid: Lid) -> PortSet {
        let index = usize::from(mlid.0.wrapping_sub(Lid::MULTICAST_FIRST.0));
        self.groups.get(index).copied().unwrap_or(PortSet::EMPTY)
    }

    /// The VL of a packet with this service level. VL 15 means that the packet must be dropped.
    #[inline]
    pub fn lane(&self, input: u8, output: u8, sl: u8, output_vls: VlCap) -> u8 {
        let sl = sl & 15;
        match self.lanes.get(self.pair(input, output)) {
            Some(Some(lanes)) => lanes[usize::from(sl)],
            _ => default_lane(output_vls, sl),
        }
    }

    #[inline]
    fn pair(&self, input: u8, output: u8) -> usize {
        usize::from(input) * (usize::from(self.num_ports) + 1) + usize::from(output)
    }

    pub fn set_lanes(&mut self, input: u8, output: u8, lanes: [u8; 16]) {
        if self.lanes.is_empty() {
            let ports = usize::from(self.num_ports) + 1;
            self.lanes = vec![None; ports * ports];
        }
        let pair = self.pair(input, output);
        self.lanes[pair] = Some(lanes);
    }

    /// A block of the linear table; `None` beyond its end.
    pub fn linear_block(&self, block: u32) -> Option<LinearForwardingTable> {
        let first = self.linear_first(block)?;
        let port = |i| self.unicast.get(first + i).copied();
        let unreachable = LinearForwardingTable::UNREACHABLE;
        Some(LinearForwardingTable {
            ports: std::array::from_fn(|i| port(i).unwrap_or(unreachable)),
        })
    }

    /// Writes a block of the linear table; `false` beyond its end.
    pub fn set_linear_block(&mut self, block: u32, table: &LinearForwardingTable) -> bool {
        let Some(first) = self.linear_first(block) else { return false };
        write_at(&mut self.unicast, first, &table.ports, LinearForwardingTable::UNREACHABLE);
        true
    }

    fn linear_first(&self, block: u32) -> Option<usize> {
        (block < u32::from(self.info.linear_fdb_cap) / 64).then_some(block as usize * 64)
    }

    pub fn random_block(&self, block: u32) -> Option<RandomForwardingTable> {
        let entries = self.random.chunks_exact(16).nth(block as usize)?;
        Some(RandomForwardingTable { entries: std::array::from_fn(|i| entries[i]) })
    }

    pub fn set_random_block(&mut self, block: u32, table: &RandomForwardingTable) -> bool {
        let Some(entries) = self.random.chunks_exact_mut(16).nth(block as usize) else {
            return false;
        };
        entries.copy_from_slice(&table.entries);
        self.unicast.clear();
        let unreachable = LinearForwardingTable::UNREACHABLE;
        for entry in self.random.iter().filter(|entry| entry.is_valid && entry.lid.is_unicast()) {
            let first = entry.lid.0 >> entry.lmc << entry.lmc;
            let ports = [entry.port; 1 << 7];
            let count = 1 << entry.lmc;
            write_at(&mut self.unicast, first.into(), &ports[..count], unreachable);
        }
        true
    }

    /// A block of the multicast table, for 16 ports; `None` beyond its end.
    pub fn multicast_block(
        &self,
        which: MulticastForwardingTableModifier,
    ) -> Option<MulticastForwardingTable> {
        let first = self.multicast_first(which)?;
        let group = |i| self.groups.get(first + i).copied().unwrap_or(PortSet::EMPTY);
        let port_masks = std::array::from_fn(|i| group(i).sixteen(which.position));
        Some(MulticastForwardingTable { port_masks })
    }

    pub fn set_multicast_block(
        &mut self,
        which: MulticastForwardingTableModifier,
        table: &MulticastForwardingTable,
    ) -> bool {
        let Some(first) = self.multicast_first(which) else { return false };
        if self.groups.len() < first + 32 {
            self.groups.resize(first + 32, PortSet::EMPTY);
        }
        for (group, ports) in self.groups[first..].iter_mut().zip(table.port_masks) {
            group.set_sixteen(which.position, ports);
        }
        true
    }

    fn multicast_first(&self, which: MulticastForwardingTableModifier) -> Option<usize> {
        let positions = self.num_ports / 16 + 1;
        let is_there = which.block < GROUPS / 32 && which.position < positions;
        is_there.then_some(usize::from(which.block) * 32)
    }
}

fn write_at<T: Copy>(table: &mut Vec<T>, first: usize, values: &[T], empty: T) {
    let end = first + values.len();
    if table.len() < end {
        table.resize(end, empty);
    }
    table[first..end].copy_from_slice(values);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_linear_table_ends_at_its_top() {
        let mut tables = Forwarding::new(36);
        let ports = LinearForwardingTable { ports: std::array::from_fn(|i| i as u8) };
        assert!(tables.set_linear_block(2, &ports));
        assert_eq!(tables.port_of(Lid(0x85)), None, "behind the top");
        tables.info.linear_fdb_top = Lid(0x85);
        assert_eq!((tables.port_of(Lid(0x85)), tables.port_of(Lid(0x86))), (Some(5), None));
        assert_eq!(tables.port_of(Lid(5)), None, "never written");
        assert_eq!(tables.linear_block(2), Some(ports));
        assert_eq!(tables.linear_block(767).unwrap().ports, [0xff; 64]);
        assert!(!tables.set_linear_block(768, &ports) && tables.linear_block(u32::MAX).is_none());
        assert!(tables.random_block(0).is_none());
    }

    #[test]
    fn a_random_table_names_ranges_and_has_a_default() {
        let mut tables = Forwarding::new(8);
        tables.use_random_table();
        tables.info.default_port = 8;
        let mut table = RandomForwardingTable::default();
        table.entries[3] =
            RandomForwardingEntry { lid: Lid(0x14), is_valid: true, lmc: 2, port: 3 };
        assert!(tables.set_random_block(1, &table) && !tables.set_random_block(64, &table));
        let ports = [0x13, 0x14, 0x17, 0x18].map(|lid| tables.port_of(Lid(lid)).unwrap());
        assert_eq!(ports, [8, 3, 3, 8]);
        assert_eq!((tables.random_block(1), tables.linear_block(0)), (Some(table), None));
        assert!(tables.set_random_block(1, &RandomForwardingTable::default()));
        assert_eq!(tables.port_of(Lid(0x14)), Some(8));
    }

    #[test]
    fn groups_are_written_sixteen_ports_at_a_time() {
        let mut tables = Forwarding::new(36);
        let which = |position, block| MulticastForwardingTableModifier { position, block };
        let mut table = MulticastForwardingTable::default();
        table.port_masks[1] = 0x8001;
        assert!(tables.set_multicast_block(which(0, 1), &table));
        assert!(tables.set_multicast_block(which(2, 1), &table));
        assert!(tables.group(Lid(0xc021)).iter().eq([0, 15, 32, 47]));
        assert_eq!(tables.group(Lid(0xc020)), PortSet::EMPTY);
        assert_eq!(tables.group(Lid(1)), PortSet::EMPTY);
        assert_eq!(tables.multicast_block(which(2, 1)), Some(table));
        assert!(!tables.set_multicast_block(which(3, 1), &table), "no such ports");
        assert!(!tables.set_multicast_block(which(0, 128), &table), "no such groups");
    }

    #[test]
    fn lanes_follow_service_levels_until_they_are_set() {
        let mut tables = Forwarding::new(2);
        assert_eq!(tables.lane(1, 2, 9, VlCap::VL0_3), 1);
        tables.set_lanes(1, 2, [15; 16]);
        assert_eq!(tables.lane(1, 2, 9, VlCap::VL0_7), 15);
        assert_eq!(tables.lane(2, 1, 9, VlCap::VL0_1), 1);
        assert_eq!(tables.lane(2, 1, 9, VlCap::VL0), 0);
    }
}
