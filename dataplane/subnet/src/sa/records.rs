//! Records from the view: nodes, ports, links, and the tables of switches (IBA 15.2.5).
//!
//! The component mask of a query has a bit for each field of the record's layout, and for each gap
//! between fields. [`Wanted::new`] converts it into a byte mask, with which any record is compared.

use super::Administrator;
use crate::view::{PortRef, SeenNode, SeenPort, SeenSwitch, View};
use pollux_wire::address::{Guid, Lid};
use pollux_wire::keys::PKey;
use pollux_wire::layout::{FieldSpec, store_bits};
use pollux_wire::mad::MadStatus;
use pollux_wire::mad::sa::{
    InformInfo, InformInfoRecord, LftRecord, LinkRecord, MftRecord, NodeRecord, PKeyTableRecord,
    PortInfoRecord, Record, SmInfoRecord, SwitchInfoRecord, write_record,
};
use pollux_wire::mad::smp::{
    LinearForwardingTable, MKey, MulticastForwardingTable, NodeInfo, PKeyTable, PortInfo, SmInfo,
    SmKey,
};
use std::ops::RangeInclusive;

pub const TABLE_BYTES_MAX: usize = 16 << 20;

pub(super) struct Wanted {
    bytes: Vec<u8>,
    mask: Vec<u8>,
    lid: Option<Lid>,
}

impl Wanted {
    /// `nested` has the layouts of fields that consist of fields themselves.
    fn new<R: Record>(
        mask: u64,
        record: &R,
        nested: &[(&str, &'static [FieldSpec])],
    ) -> Result<Self, MadStatus> {
        let mut bytes = vec![0; R::LEN];
        record.write(&mut bytes).map_err(|_| MadStatus::SA_REQUEST_INVALID)?;
        let mut bits = vec![0; R::LEN];
        for (number, span) in (0..).zip(components(R::FIELDS, 0, nested)) {
            if let Some((mut bit, mut width)) =
                span.filter(|_| number < 64 && mask >> number & 1 != 0)
            {
                while width > 0 {
                    let step = width.min(32);
                    store_bits(&mut bits, bit, step, u64::MAX);
                    (bit, width) = (bit + step, width - step);
                }
            }
        }
        let has_lid = R::FIELDS[0].name == "lid" && mask & 1 != 0;
        let lid = has_lid.then(|| Lid(u16::from_be_bytes([bytes[0], bytes[1]])));
        Ok(Self { bytes, mask: bits, lid })
    }

    fn is(&self, bytes: &[u8]) -> bool {
        let differs = |((own, wanted), mask): ((&u8, &u8), &u8)| (own ^ wanted) & mask != 0;
        !bytes.iter().zip(&self.bytes).zip(&self.mask).any(differs)
    }
}

/// Offsets and widths of the components of a record, in bits; `None` for reserved bits.
fn components(
    fields: &[FieldSpec],
    first: usize,
    nested: &[(&str, &'static [FieldSpec])],
) -> Vec<Option<(usize, usize)>> {
    let mut spans = Vec::new();
    let mut end = 0;
    for field in fields {
        if field.bit > end {
            spans.push(None);
        }
        match nested.iter().find(|(name, _)| *name == field.name) {
            Some((_, inner)) => spans.extend(components(inner, first + field.bit, &[])),
            None => spans.push(Some((first + field.bit, field.width))),
        }
        end = field.bit + field.width;
    }
    spans
}

pub(super) struct Table {
    wanted: Wanted,
    pub(super) bytes: Vec<u8>,
    pub(super) count: usize,
    is_full: bool,
}

impl Table {
    fn new(wanted: Wanted) -> Self {
        Self { wanted, bytes: Vec::new(), count: 0, is_full: false }
    }

    fn push<R: Record>(&mut self, record: R) {
        let start = self.bytes.len();
        if start + R::STRIDE > TABLE_BYTES_MAX {
            self.is_full = true;
            return;
        }
        self.bytes.resize(start + R::STRIDE, 0);
        let is_wanted = write_record(record, &mut self.bytes[start..]).is_ok()
            && self.wanted.is(&self.bytes[start..]);
        if is_wanted {
            self.count += 1;
        } else {
            self.bytes.truncate(start);
        }
    }

    fn finish(self) -> Result<Self, MadStatus> {
        if self.is_full { Err(MadStatus::SA_NO_RESOURCES) } else { Ok(self) }
    }
}

pub(super) fn table_of<R: Record>(records: &[R]) -> Result<Vec<u8>, MadStatus> {
    if records.len() * R::STRIDE > TABLE_BYTES_MAX {
        return Err(MadStatus::SA_NO_RESOURCES);
    }
    let mut bytes = vec![0; records.len() * R::STRIDE];
    let mut rest = &mut bytes[..];
    for record in records {
        rest = write_record(*record, rest).map_err(|_| MadStatus::SA_NO_RESOURCES)?;
    }
    Ok(bytes)
}

type Answer = Result<Table, MadStatus>;

/// The port with the LID of a query, or all ports with a LID if the query has none.
fn managed<'a>(
    view: &'a View,
    wanted: &Wanted,
) -> impl Iterator<Item = (PortRef, &'a SeenPort)> + use<'a> {
    let named = wanted.lid.map(|lid| view.by_lid(lid));
    let one = named.flatten().map(|at| (at, view.port(at)));
    let all = named.is_none().then(|| view.ports_with_lid());
    one.into_iter().chain(all.into_iter().flatten())
}

fn switches<'a>(
    view: &'a View,
    wanted: &Wanted,
) -> impl Iterator<Item = (Lid, &'a SeenNode, &'a SeenSwitch)> + use<'a> {
    managed(view, wanted).filter_map(|(at, port)| {
        let node = view.node(at.node);
        Some((port.lid, node, node.switch.as_deref()?))
    })
}

/// All ports of a switch; at other nodes, only the port itself.
fn port_numbers(node: &SeenNode, at: PortRef) -> RangeInclusive<u8> {
    if node.is_switch() { 0..=node.info.num_ports } else { at.port..=at.port }
}

impl Administrator {
    pub(super) fn node_records(view: &View, mask: u64, wanted: &NodeRecord) -> Answer {
        let mut table = Table::new(Wanted::new(mask, wanted, &[("node_info", NodeInfo::FIELDS)])?);
        for (at, port) in managed(view, &table.wanted) {
            let node = view.node(at.node);
            let local_port_num = if node.is_switch() { node.info.local_port_num } else { at.port };
            let node_info = NodeInfo { port_guid: port.guid, local_port_num, ..node.info };
            let node_description = node.description;
            table.push(NodeRecord { lid: port.lid, node_info, node_description });
        }
        table.finish()
    }

    /// With `by_capability`, a port matches if it has at least the capabilities of the query.
    pub(super) fn port_info_records(
        view: &View,
        mask: u64,
        wanted: &PortInfoRecord,
        by_capability: bool,
        is_trusted: bool,
    ) -> Answer {
        const CAPABILITY: u64 = 1 << 7;
        let capability = wanted.port_info.capability_mask;
        let by_capability = by_capability && mask & CAPABILITY != 0;
        let mask = if by_capability { mask & !CAPABILITY } else { mask };
        let mut table = Table::new(Wanted::new(mask, wanted, &[("port_info", PortInfo::FIELDS)])?);
        for (at, port) in managed(view, &table.wanted) {
            let node = view.node(at.node);
            for port_num in port_numbers(node, at) {
                let Some(info) = node.ports[usize::from(port_num)].info else { continue };
                let m_key = if is_trusted { info.m_key } else { MKey(0) };
                let port_info = PortInfo { m_key, ..info };
                if !by_capability || port_info.capability_mask.contains(capability) {
                    table.push(PortInfoRecord { lid: port.lid, port_num, options: 0, port_info });
                }
            }
        }
        table.finish()
    }

    pub(super) fn link_records(view: &View, mask: u64, wanted: &LinkRecord) -> Answer {
        let mut table = Table::new(Wanted::new(mask, wanted, &[])?);
        let lid = |at: PortRef| {
            let node = view.node(at.node);
            node.ports[usize::from(node.managed_port(at.port))].lid
        };
        for (index, node) in (0..).zip(&view.nodes) {
            for (from_port, port) in (0..).zip(&node.ports) {
                let Some(to) = port.peer else { continue };
                let from_lid = lid(PortRef { node: index, port: from_port });
                table.push(LinkRecord { from_lid, from_port, to_port: to.port, to_lid: lid(to) });
            }
        }
        table.finish()
    }

    pub(super) fn switch_info_records(view: &View, mask: u64, wanted: &SwitchInfoRecord) -> Answer {
        let mut table = Table::new(Wanted::new(mask, wanted, &[])?);
        for (lid, _, switch) in switches(view, &table.wanted) {
            table.push(SwitchInfoRecord { lid, switch_info: switch.info });
        }
        table.finish()
    }

    pub(super) fn lft_records(view: &View, mask: u64, wanted: &LftRecord) -> Answer {
        let mut table = Table::new(Wanted::new(mask, wanted, &[])?);
        for (lid, _, switch) in switches(view, &table.wanted) {
            for block in 0..=view.lid_last().0 / 64 {
                let ports = switch.wanted_block(block);
                table.push(LftRecord { lid, block, table: LinearForwardingTable { ports } });
            }
        }
        table.finish()
    }

    pub(super) fn mft_records(view: &View, mask: u64, wanted: &MftRecord) -> Answer {
        let mut table = Table::new(Wanted::new(mask, wanted, &[])?);
        for (lid, node, switch) in switches(view, &table.wanted) {
            let Some((last, _)) = switch.groups_written.last_key_value() else { continue };
            let last = MulticastForwardingTable::locate(*last).map_or(0, |(block, _)| block);
            for block in 0..=last {
                for position in 0..=node.info.num_ports / 16 {
                    let mask = |i: usize| {
                        let mlid = Lid(Lid::MULTICAST_FIRST.0 + block * 32 + i as u16);
                        switch.groups_written.get(&mlid).map_or(0, |set| set.sixteen(position))
                    };
                    let port_masks = std::array::from_fn(mask);
                    let group_table = MulticastForwardingTable { port_masks };
                    table.push(MftRecord { lid, position, block, table: group_table });
                }
            }
        }
        table.finish()
    }

    pub(super) fn p_key_records(view: &View, mask: u64, wanted: &PKeyTableRecord) -> Answer {
        let mut table = Table::new(Wanted::new(mask, wanted, &[])?);
        for (at, port) in managed(view, &table.wanted) {
            let node = view.node(at.node);
            for port_num in port_numbers(node, at) {
                let keys = &node.ports[usize::from(port_num)].p_keys;
                for (block, keys) in (0..).zip(keys.iter().flat_map(|keys| keys.chunks(32))) {
                    let key = |i: usize| keys.get(i).copied().unwrap_or(PKey::INVALID);
                    let keys = PKeyTable { p_keys: std::array::from_fn(key) };
                    table.push(PKeyTableRecord { lid: port.lid, block, port_num, table: keys });
                }
            }
        }
        table.finish()
    }

    pub(super) fn sm_info_records(
        &self,
        view: &View,
        mask: u64,
        wanted: &SmInfoRecord,
        is_trusted: bool,
    ) -> Answer {
        let mut table = Table::new(Wanted::new(mask, wanted, &[("sm_info", SmInfo::FIELDS)])?);
        for own in self.managers.iter().copied() {
            let sm_key = if is_trusted { own.sm_key } else { SmKey(0) };
            let sm_info = SmInfo { sm_key, ..own };
            let at = view.by_port_guid(sm_info.guid).filter(|_| sm_info.guid != Guid(0));
            let lid = at.map_or(Lid::NONE, |at| view.port(at).lid);
            table.push(SmInfoRecord { lid, sm_info });
        }
        table.finish()
    }

    pub(super) fn inform_info_records(&self, mask: u64, wanted: &InformInfoRecord) -> Answer {
        let nested = [("inform_info", InformInfo::FIELDS)];
        let mut table = Table::new(Wanted::new(mask, wanted, &nested)?);
        self.subscriptions.records().for_each(|record| table.push(record));
        table.finish()
    }
}
