//! Path records: LIDs, rate and MTU between ports (IBA 15.2.5.16).
//!
//! Each path is traced through the forwarding tables, so a record has the properties of the links
//! that a packet uses.

use super::Administrator;
use crate::view::{PortRef, View};
use pollux_wire::address::{Gid, Guid, Lid};
use pollux_wire::keys::PKey;
use pollux_wire::mad::MadStatus;
use pollux_wire::mad::sa::{
    MultiPathRecord, MultiPathRecordMask, PathRecord, PathRecordMask as Mask, Selector,
};
use pollux_wire::mad::smp::{DirectedSmp, NodeType};
use pollux_wire::units::{Mtu, Rate, TimeCode};

pub const PATHS_MAX: usize = 1 << 16;
/// Paths for each pair of ports, if the query does not limit their number.
const PATHS_OF_A_PAIR: u8 = 127;
const HOP_LIMIT_ROUTED: u8 = u8::MAX;

/// One end of a path: a port, the GID for the record, and the LID if the query has one.
#[derive(Clone, Copy)]
struct PathEnd {
    at: PortRef,
    gid: Gid,
    lid: Option<Lid>,
    hop_limit: u8,
}

#[derive(Clone, Copy)]
struct TracedPath {
    mtu: Mtu,
    rate: Rate,
    is_loopback: bool,
}

impl Administrator {
    pub(super) fn paths(
        &self,
        view: &View,
        mask: Mask,
        wanted: &PathRecord,
        is_table: bool,
    ) -> Result<Vec<PathRecord>, MadStatus> {
        let has = |bit| mask.contains(bit);
        if has(Mask::DGID) && wanted.dgid.is_multicast() {
            return self.path_to_group(view, mask, wanted);
        }
        let sgid = has(Mask::SGID).then_some(wanted.sgid);
        let dgid = has(Mask::DGID).then_some(wanted.dgid);
        let sources = self.ends(view, sgid, has(Mask::SLID).then_some(wanted.slid))?;
        let destinations = self.ends(view, dgid, has(Mask::DLID).then_some(wanted.dlid))?;
        let per_pair = match (has(Mask::NUMB_PATH), is_table) {
            (_, false) => 1,
            (true, true) => wanted.numb_path,
            (false, true) => PATHS_OF_A_PAIR,
        };
        let mut paths = Vec::new();
        for from in &sources {
            for to in &destinations {
                self.pair(view, from, to, mask, wanted, per_pair, &mut paths);
                if paths.len() > PATHS_MAX {
                    return Err(MadStatus::SA_NO_RESOURCES);
                }
            }
        }
        Ok(paths)
    }

    pub(super) fn multi_paths(
        &self,
        view: &View,
        mask: MultiPathRecordMask,
        wanted: &MultiPathRecord,
    ) -> Result<Vec<PathRecord>, MadStatus> {
        type Multi = MultiPathRecordMask;
        let counts = Multi::SGID_COUNT.with(Multi::DGID_COUNT);
        let ends = wanted.ends().filter(|(from, to)| !from.is_empty() && !to.is_empty());
        let Some((from, to)) = ends.filter(|_| mask.contains(counts)) else {
            return Err(MadStatus::SA_INSUFFICIENT_COMPONENTS);
        };
        let same = [
            (Multi::REVERSIBLE, Mask::REVERSIBLE),
            (Multi::NUMB_PATH, Mask::NUMB_PATH),
            (Multi::P_KEY, Mask::P_KEY),
            (Multi::SL, Mask::SL),
            (Multi::MTU_SELECTOR, Mask::MTU_SELECTOR),
            (Multi::MTU, Mask::MTU),
            (Multi::RATE_SELECTOR, Mask::RATE_SELECTOR),
            (Multi::RATE, Mask::RATE),
            (Multi::PACKET_LIFE_TIME_SELECTOR, Mask::PACKET_LIFE_TIME_SELECTOR),
            (Multi::PACKET_LIFE_TIME, Mask::PACKET_LIFE_TIME),
        ];
        let given = same.into_iter().filter(|(multi, _)| mask.contains(*multi));
        let ends = Mask::SGID.with(Mask::DGID);
        let mask = given.fold(ends, |mask, (_, bit)| mask.with(bit));
        let mut paths = Vec::new();
        for (sgid, dgid) in from.iter().flat_map(|from| to.iter().map(move |to| (*from, *to))) {
            let wanted = PathRecord {
                sgid,
                dgid,
                reversible: wanted.reversible,
                numb_path: wanted.numb_path,
                p_key: wanted.p_key,
                sl: wanted.sl,
                mtu_selector: wanted.mtu_selector,
                mtu: wanted.mtu,
                rate_selector: wanted.rate_selector,
                rate: wanted.rate,
                packet_life_time_selector: wanted.packet_life_time_selector,
                packet_life_time: wanted.packet_life_time,
                ..PathRecord::default()
            };
            paths.extend(self.paths(view, mask, &wanted, true)?);
        }
        Ok(paths)
    }

    fn ends(
        &self,
        view: &View,
        gid: Option<Gid>,
        lid: Option<Lid>,
    ) -> Result<Vec<PathEnd>, MadStatus> {
        let end = |at: PortRef, gid, hop_limit| PathEnd { at, gid, lid, hop_limit };
        let own = |at| end(at, self.gid_of(view, at), 0);
        match (gid, lid) {
            (Some(gid), lid) => {
                let here = view.by_gid(self.prefix, gid).map(|at| end(at, gid, 0));
                let found = here.or_else(|| {
                    let is_elsewhere = gid.prefix() != self.prefix && !gid.is_link_local();
                    let router = router(view).filter(|_| is_elsewhere && gid.guid() != Guid(0));
                    router.map(|at| end(at, gid, HOP_LIMIT_ROUTED))
                });
                let found = found.ok_or(MadStatus::SA_INVALID_GID)?;
                let is_its = lid.is_none_or(|lid| view.by_lid(lid) == Some(found.at));
                Ok(is_its.then_some(found).into_iter().collect())
            }
            (None, Some(lid)) => Ok(view.by_lid(lid).map(own).into_iter().collect()),
            (None, None) => Ok(view.ports_with_lid().map(|(at, _)| own(at)).collect()),
        }
    }

    #[expect(clippy::too_many_arguments, reason = "a query has two ends and many components")]
    fn pair(
        &self,
        view: &View,
        from: &PathEnd,
        to: &PathEnd,
        mask: Mask,
        wanted: &PathRecord,
        per_pair: u8,
        paths: &mut Vec<PathRecord>,
    ) {
        let Some((p_key, sl)) = self.partition_of(view, from.at, to.at, mask, wanted) else {
            return;
        };
        let (source, destination) = (view.port(from.at), view.port(to.at));
        let count = source.lid_count().max(destination.lid_count()).min(per_pair.into());
        for number in 0..count {
            let own = |lid: Lid, count: u16| Lid(lid.0.wrapping_add(number % count));
            let slid = from.lid.unwrap_or_else(|| own(source.lid, source.lid_count()));
            let dlid = to.lid.unwrap_or_else(|| own(destination.lid, destination.lid_count()));
            let Some(traced) = walk(view, from.at, to.at, dlid) else { continue };
            let is_one_way = walk(view, to.at, from.at, slid).is_none();
            if is_one_way && mask.contains(Mask::REVERSIBLE) && wanted.reversible {
                continue;
            }
            let life_time = if traced.is_loopback { TimeCode(0) } else { self.packet_life_time };
            let Some(fitting) = fit(mask, wanted, &traced, life_time) else { continue };
            paths.push(PathRecord {
                sgid: from.gid,
                dgid: to.gid,
                slid,
                dlid,
                p_key,
                sl,
                reversible: !is_one_way,
                hop_limit: from.hop_limit.max(to.hop_limit),
                ..fitting
            });
            // The query has both LIDs, so further paths would be the same.
            if from.lid.is_some() && to.lid.is_some() {
                break;
            }
        }
    }

    /// The P_Key and SL of a path: by the query's P_Key, or else by the first partition in which
    /// both ports may communicate.
    fn partition_of(
        &self,
        view: &View,
        from: PortRef,
        to: PortRef,
        mask: Mask,
        wanted: &PathRecord,
    ) -> Option<(PKey, u8)> {
        let (source, destination) = (view.port(from), view.port(to));
        let (one, other) = (source.p_keys.as_deref(), destination.p_keys.as_deref());
        let may_talk = |key: &PKey| may_talk(one, other, *key);
        let p_key = if mask.contains(Mask::P_KEY) {
            Some(wanted.p_key).filter(may_talk)
        } else {
            source.p_keys.iter().flatten().copied().map(PKey::full).find(may_talk)
        }?;
        let sl = self.partitions.of(p_key).map_or(0, |partition| partition.sl);
        let is_right = !mask.contains(Mask::SL) || wanted.sl == sl;
        is_right.then_some((p_key, sl))
    }

    fn path_to_group(
        &self,
        view: &View,
        mask: Mask,
        wanted: &PathRecord,
    ) -> Result<Vec<PathRecord>, MadStatus> {
        let group = self.groups.by_mgid(wanted.dgid).ok_or(MadStatus::SA_NO_RECORDS)?;
        let sgid = mask.contains(Mask::SGID).then_some(wanted.sgid);
        let slid = mask.contains(Mask::SLID).then_some(wanted.slid);
        if sgid.is_none() && slid.is_none() {
            return Err(MadStatus::SA_INSUFFICIENT_COMPONENTS);
        }
        let sources = self.ends(view, sgid, slid)?;
        let traced = TracedPath { mtu: group.mtu, rate: group.rate, is_loopback: false };
        let fitting = fit(mask, wanted, &traced, group.packet_life_time);
        let Some(fitting) = fitting else { return Ok(Vec::new()) };
        let path = |from: &PathEnd| PathRecord {
            sgid: from.gid,
            dgid: group.mgid,
            slid: from.lid.unwrap_or(view.port(from.at).lid),
            dlid: group.mlid,
            p_key: group.p_key,
            sl: group.sl,
            flow_label: group.flow_label,
            traffic_class: group.traffic_class,
            hop_limit: group.hop_limit,
            ..fitting
        };
        let members = sources.iter().filter(|from| view.port(from.at).shares(group.p_key));
        Ok(members.map(path).collect())
    }

    pub(super) fn gid_of(&self, view: &View, at: PortRef) -> Gid {
        Gid::new(self.prefix, view.port(at).guid)
    }
}

/// Whether two ports may communicate in the partition of a key: both are members, and at least one
/// is a full member.
fn may_talk(one: Option<&[PKey]>, other: Option<&[PKey]>, p_key: PKey) -> bool {
    let of = |keys: Option<&[PKey]>| {
        let keys = keys.unwrap_or_default().iter();
        let mut own = keys.filter(|key| key.partition() == p_key.partition()).copied();
        let first = own.next();
        own.find(|key| key.is_full()).or(first)
    };
    matches!((of(one), of(other)), (Some(one), Some(other)) if one.matches(other))
}

/// The router port for paths to other subnets: the one with the lowest GUID.
fn router(view: &View) -> Option<PortRef> {
    let is_router = |at: &PortRef| view.node(at.node).info.node_type == NodeType::ROUTER;
    let ports = view.ports_with_lid().filter(|(at, _)| is_router(at));
    ports.min_by_key(|(_, port)| port.guid).map(|(at, _)| at)
}

/// Traces the path of a LID through the tables, starting at a port. Returns the rate and MTU of the
/// path, if it leads to the port `to`.
fn walk(view: &View, from: PortRef, to: PortRef, dlid: Lid) -> Option<TracedPath> {
    let start = view.port(from).info?;
    let mut traced = TracedPath { mtu: start.mtu_cap, rate: Rate(0), is_loopback: from == to };
    let mut here = from;
    if from == to {
        traced.rate = start.rate().unwrap_or(Rate::GBPS_2_5);
        return Some(traced);
    }
    for hop in 0..DirectedSmp::HOPS_MAX {
        let node = view.node(here.node);
        let out = match &node.switch {
            Some(switch) => match switch.port_of(dlid)? {
                0 => return (PortRef { port: 0, ..here } == to).then_some(traced),
                port => PortRef { port, ..here },
            },
            None if hop == 0 => here,
            None => return (here == to).then_some(traced),
        };
        let port = view.port(out);
        let info = port.info?;
        let rate = info.rate()?;
        traced.mtu = traced.mtu.min(info.neighbor_mtu);
        traced.rate = if traced.rate == Rate(0) { rate } else { traced.rate.min(rate) };
        here = port.peer?;
    }
    None
}

/// A record with only the MTU, rate and lifetime of a path, under the selectors of a query; `None`
/// if the path cannot satisfy them.
fn fit(
    mask: Mask,
    wanted: &PathRecord,
    traced: &TracedPath,
    life_time: TimeCode,
) -> Option<PathRecord> {
    let selected = |value, selector| mask.contains(value) && mask.contains(selector);
    let mut mtu = traced.mtu;
    if selected(Mask::MTU, Mask::MTU_SELECTOR) {
        mtu = largest(mtu, wanted.mtu, wanted.mtu_selector, Mtu::ALL)?;
    }
    let mut rate = traced.rate;
    if selected(Mask::RATE, Mask::RATE_SELECTOR) {
        rate = largest(rate, wanted.rate, wanted.rate_selector, Rate::ALL)?;
    }
    let mut packet_life_time = life_time;
    if selected(Mask::PACKET_LIFE_TIME, Mask::PACKET_LIFE_TIME_SELECTOR) {
        let wish = wanted.packet_life_time;
        packet_life_time = match wanted.packet_life_time_selector {
            Selector::GREATER_THAN => (life_time > wish).then_some(life_time),
            Selector::LESS_THAN => (life_time < wish).then_some(life_time),
            // A packet that lives shorter does not live longer than `wish` either. A port has a
            // lifetime of zero to itself.
            Selector::EXACTLY if !traced.is_loopback => (life_time <= wish).then_some(wish),
            Selector::EXACTLY => (life_time == wish).then_some(wish),
            _ => Some(life_time),
        }?;
    }
    Some(PathRecord {
        mtu_selector: Selector::EXACTLY,
        mtu,
        rate_selector: Selector::EXACTLY,
        rate,
        packet_life_time_selector: Selector::EXACTLY,
        packet_life_time,
        ..PathRecord::default()
    })
}

/// The largest value that both the path and a selector allow.
pub(super) fn largest<T: Copy + Ord>(
    have: T,
    wanted: T,
    selector: Selector,
    all: &[T],
) -> Option<T> {
    match selector {
        Selector::GREATER_THAN => (have > wanted).then_some(have),
        Selector::LESS_THAN => {
            all.iter().copied().filter(|one| *one < wanted && *one <= have).max()
        }
        Selector::EXACTLY => (have >= wanted).then_some(wanted),
        _ => Some(have),
    }
}
