//! Multicast groups: their members and properties (IBA 15.2.5.17).
//!
//! A join of a full member or send-only full member with all required components creates a group.
//! The group ends with its last such member. The groups of partitions are permanent.

use super::paths::largest;
use crate::partitions::{IPV4, IPV6, Partitions, ipoib_gid};
use crate::view::View;
use pollux_wire::address::{Gid, Lid, Scope};
use pollux_wire::keys::PKey;
use pollux_wire::mad::MadStatus;
use pollux_wire::mad::sa::{JoinState, McMemberRecord, McMemberRecordMask as Mask, Selector};
use pollux_wire::units::{Mtu, Rate, TimeCode};
use std::collections::{BTreeMap, BTreeSet};

pub const GROUPS_MAX: usize = 4096;
pub const MEMBERS_MAX: usize = 1 << 20;

#[derive(Clone, Debug)]
struct Group {
    /// The properties of the group, without a member.
    record: McMemberRecord,
    members: BTreeMap<Gid, Member>,
    /// Whether the group stays without full members.
    is_permanent: bool,
}

#[derive(Clone, Copy, Debug)]
struct Member {
    join_state: JoinState,
    proxy_join: bool,
}

pub(super) struct Groups {
    all: BTreeMap<Gid, Group>,
    by_mlid: BTreeMap<Lid, Gid>,
    /// The size of the smallest MFT of the switches.
    capacity: usize,
    member_count: usize,
    changed: BTreeSet<Lid>,
    /// New (`true`) and removed groups, until they are reported.
    unreported: Vec<(Gid, bool)>,
}

pub(super) struct Requester {
    pub(super) is_member: bool,
    pub(super) p_keys: Vec<PKey>,
}

const KEEPS_GROUP: JoinState = JoinState::FULL_MEMBER.with(JoinState::SEND_ONLY_FULL_MEMBER);
const RECEIVES: JoinState = JoinState::FULL_MEMBER.with(JoinState::NON_MEMBER);

const CREATE: Mask = Mask::MGID
    .with(Mask::PORT_GID)
    .with(Mask::JOIN_STATE)
    .with(Mask::Q_KEY)
    .with(Mask::TRAFFIC_CLASS)
    .with(Mask::P_KEY)
    .with(Mask::FLOW_LABEL)
    .with(Mask::SL);

impl Groups {
    /// Creates the permanent groups of partitions.
    pub(super) fn new(partitions: &Partitions, life_time: TimeCode) -> Self {
        let mut groups = Self {
            all: BTreeMap::new(),
            by_mlid: BTreeMap::new(),
            capacity: GROUPS_MAX,
            member_count: 0,
            changed: BTreeSet::new(),
            unreported: Vec::new(),
        };
        for partition in partitions.all() {
            let Some(ipoib) = &partition.ipoib else { continue };
            for mgid in partition.broadcast_groups() {
                let Some(mlid) = groups.free_mlid() else { return groups };
                let scope = Scope(mgid.0[1] & 0xf);
                let record = McMemberRecord {
                    mgid,
                    mlid,
                    q_key: ipoib.q_key,
                    mtu: ipoib.mtu,
                    rate: ipoib.rate,
                    packet_life_time: life_time,
                    traffic_class: ipoib.traffic_class,
                    p_key: partition.p_key,
                    sl: partition.sl,
                    flow_label: ipoib.flow_label,
                    hop_limit: if scope == Scope::LINK_LOCAL { 0 } else { u8::MAX },
                    scope,
                    ..exactly(McMemberRecord::default())
                };
                groups.add(record, true);
            }
        }
        groups.unreported.clear();
        groups
    }

    pub(super) fn set_capacity(&mut self, capacity: usize) {
        self.capacity = capacity.min(GROUPS_MAX);
    }

    pub(super) fn by_mgid(&self, mgid: Gid) -> Option<&McMemberRecord> {
        self.all.get(&mgid).map(|group| &group.record)
    }

    pub(super) fn mlids(&self) -> impl Iterator<Item = Lid> {
        self.by_mlid.keys().copied()
    }

    /// The members of a group, each with whether it receives.
    pub(super) fn members(&self, mlid: Lid) -> impl Iterator<Item = (Gid, bool)> {
        let group = self.by_mlid.get(&mlid).and_then(|mgid| self.all.get(mgid));
        let members = group.into_iter().flat_map(|group| &group.members);
        members.map(|(gid, member)| (*gid, member.join_state.common(RECEIVES).0 != 0))
    }

    pub(super) fn has_changed(&self) -> bool {
        !self.changed.is_empty()
    }

    pub(super) fn take_changed(&mut self) -> BTreeSet<Lid> {
        std::mem::take(&mut self.changed)
    }

    pub(super) fn take_unreported(&mut self) -> Vec<(Gid, bool)> {
        std::mem::take(&mut self.unreported)
    }

    fn free_mlid(&self) -> Option<Lid> {
        let first = Lid::MULTICAST_FIRST.0;
        let mut mlids = (first..first.saturating_add(self.capacity as u16)).map(Lid);
        mlids.find(|mlid| !self.by_mlid.contains_key(mlid))
    }

    fn add(&mut self, record: McMemberRecord, is_permanent: bool) {
        self.by_mlid.insert(record.mlid, record.mgid);
        self.unreported.push((record.mgid, true));
        self.all.insert(record.mgid, Group { record, members: BTreeMap::new(), is_permanent });
    }

    /// Adds a port to a group, and creates the group if necessary. `port` has the MTU, the rate and
    /// the P_Keys of the port.
    pub(super) fn join(
        &mut self,
        mask: Mask,
        wanted: &McMemberRecord,
        requester: &Requester,
        port: (Mtu, Rate, &[PKey]),
    ) -> Result<McMemberRecord, MadStatus> {
        let (invalid, state) = (MadStatus::SA_REQUEST_INVALID, wanted.join_state);
        if !mask.contains(Mask::PORT_GID.with(Mask::JOIN_STATE)) || state.0 == 0 {
            return Err(MadStatus::SA_INSUFFICIENT_COMPONENTS);
        }
        let mut mgid = wanted.mgid;
        let group = self.all.get(&mgid);
        let is_new = group.is_none_or(|group| !group.members.contains_key(&wanted.port_gid));
        if is_new && self.member_count >= MEMBERS_MAX {
            return Err(MadStatus::SA_NO_RESOURCES);
        }
        match group {
            Some(group) => {
                let may = requester.is_member
                    || wanted.proxy_join && has_key(&requester.p_keys, group.record.p_key);
                if !is_new && !may {
                    return Err(invalid);
                }
                let record = &group.record;
                if !matches(mask, wanted, record) || !is_able(port, record) {
                    return Err(invalid);
                }
            }
            None => mgid = self.create(mask, wanted, port)?,
        }
        let group = self.all.get_mut(&mgid).ok_or(invalid)?;
        let before = group.members.len();
        let member = group
            .members
            .entry(wanted.port_gid)
            .or_insert(Member { join_state: JoinState::NONE, proxy_join: false });
        member.join_state = member.join_state.with(state);
        member.proxy_join = mask.contains(Mask::PROXY_JOIN) && wanted.proxy_join;
        self.changed.insert(group.record.mlid);
        let answer = with_member(&group.record, wanted.port_gid, member);
        self.member_count += group.members.len() - before;
        Ok(answer)
    }

    fn create(
        &mut self,
        mask: Mask,
        wanted: &McMemberRecord,
        port: (Mtu, Rate, &[PKey]),
    ) -> Result<Gid, MadStatus> {
        let invalid = MadStatus::SA_REQUEST_INVALID;
        // Without an MGID, the group gets a generated one. All other components are required.
        let is_nameless = !mask.contains(Mask::MGID) || wanted.mgid == Gid::NONE;
        let needed = if is_nameless { CREATE.without(Mask::MGID) } else { CREATE };
        if !mask.contains(needed) {
            return Err(MadStatus::SA_INSUFFICIENT_COMPONENTS);
        }
        if wanted.join_state.common(KEEPS_GROUP).0 == 0 {
            return Err(invalid);
        }
        let mlid = self.free_mlid().ok_or(MadStatus::SA_NO_RESOURCES)?;
        let scope = if mask.contains(Mask::SCOPE) { wanted.scope } else { Scope::LINK_LOCAL };
        let mgid = if is_nameless { generate_mgid(scope, mlid) } else { wanted.mgid };
        if !mgid.is_multicast() || self.all.contains_key(&mgid) {
            return Err(invalid);
        }
        let (mtu, rate, _) = port;
        let selector =
            |bit, selector| if mask.contains(bit) { selector } else { Selector::EXACTLY };
        let mtu = match mask.contains(Mask::MTU) {
            true => largest(
                mtu,
                wanted.mtu,
                selector(Mask::MTU_SELECTOR, wanted.mtu_selector),
                Mtu::ALL,
            ),
            false => Some(mtu),
        };
        let rate = match mask.contains(Mask::RATE) {
            true => largest(
                rate,
                wanted.rate,
                selector(Mask::RATE_SELECTOR, wanted.rate_selector),
                Rate::ALL,
            ),
            false => Some(rate),
        };
        let life_time = mask.contains(Mask::PACKET_LIFE_TIME).then_some(wanted.packet_life_time);
        let record = exactly(McMemberRecord {
            mgid,
            mlid,
            mtu: mtu.ok_or(invalid)?,
            rate: rate.ok_or(invalid)?,
            packet_life_time: life_time.unwrap_or(TimeCode(18)),
            p_key: wanted.p_key.full(),
            scope: Scope(mgid.0[1] & 0xf),
            port_gid: Gid::NONE,
            join_state: JoinState::NONE,
            proxy_join: false,
            hop_limit: if mask.contains(Mask::HOP_LIMIT) { wanted.hop_limit } else { 0 },
            ..*wanted
        });
        if !is_able(port, &record) || !self.fits_broadcast_group(&record) {
            return Err(invalid);
        }
        self.add(record, false);
        Ok(mgid)
    }

    /// Whether a group of IP over InfiniBand has the properties of the broadcast group of its
    /// partition (RFC 4391 4). Other groups always fit.
    fn fits_broadcast_group(&self, record: &McMemberRecord) -> bool {
        let signature = u16::from_be_bytes([record.mgid.0[2], record.mgid.0[3]]);
        if signature != IPV4 && signature != IPV6 {
            return true;
        }
        let p_key = PKey(u16::from_be_bytes([record.mgid.0[4], record.mgid.0[5]]));
        let broadcast = ipoib_gid(record.scope, IPV4, p_key, u32::MAX);
        self.by_mgid(broadcast).is_some_and(|own| {
            own.p_key == record.p_key
                && own.q_key == record.q_key
                && own.sl == record.sl
                && record.mtu <= own.mtu
        })
    }

    pub(super) fn leave(
        &mut self,
        mask: Mask,
        wanted: &McMemberRecord,
        requester: &Requester,
    ) -> Result<McMemberRecord, MadStatus> {
        let needed = Mask::MGID.with(Mask::PORT_GID).with(Mask::JOIN_STATE);
        if !mask.contains(needed) || wanted.join_state.0 == 0 {
            return Err(MadStatus::SA_INSUFFICIENT_COMPONENTS);
        }
        let invalid = MadStatus::SA_REQUEST_INVALID;
        let group = self.all.get_mut(&wanted.mgid).ok_or(invalid)?;
        let member = group.members.get_mut(&wanted.port_gid).ok_or(invalid)?;
        let may = requester.is_member
            || member.proxy_join && has_key(&requester.p_keys, group.record.p_key);
        if !may || !member.join_state.contains(wanted.join_state) {
            return Err(invalid);
        }
        member.join_state = member.join_state.without(wanted.join_state);
        let answer = with_member(&group.record, wanted.port_gid, member);
        if member.join_state == JoinState::NONE {
            group.members.remove(&wanted.port_gid);
            self.member_count -= 1;
        }
        self.changed.insert(group.record.mlid);
        self.end_if_left(wanted.mgid);
        Ok(answer)
    }

    fn end_if_left(&mut self, mgid: Gid) {
        let Some(group) = self.all.get(&mgid) else { return };
        let keeps = |member: &Member| member.join_state.common(KEEPS_GROUP).0 != 0;
        if group.is_permanent || group.members.values().any(keeps) {
            return;
        }
        if let Some(group) = self.all.remove(&mgid) {
            self.by_mlid.remove(&group.record.mlid);
            self.member_count -= group.members.len();
            self.changed.insert(group.record.mlid);
            self.unreported.push((mgid, false));
        }
    }

    pub(super) fn retain(&mut self, view: &View, prefix: u64) {
        let mgids: Vec<Gid> = self.all.keys().copied().collect();
        for mgid in mgids {
            let Some(group) = self.all.get_mut(&mgid) else { continue };
            let before = group.members.len();
            group.members.retain(|gid, _| view.by_gid(prefix, *gid).is_some());
            let gone = before - group.members.len();
            self.member_count -= gone;
            if gone > 0 {
                self.changed.insert(group.record.mlid);
                self.end_if_left(mgid);
            }
        }
    }

    /// Records that match a query: one of each group, or one of each member if the requester is
    /// trusted or the query has a port GID.
    pub(super) fn records(
        &self,
        mask: Mask,
        wanted: &McMemberRecord,
        sees_members: bool,
    ) -> Vec<McMemberRecord> {
        let named = mask.contains(Mask::MGID).then(|| self.all.get(&wanted.mgid));
        let groups: Vec<&Group> = match named {
            Some(group) => group.into_iter().collect(),
            None => self.all.values().collect(),
        };
        let mut records = Vec::new();
        for group in groups.into_iter().filter(|group| matches(mask, wanted, &group.record)) {
            if !sees_members && !mask.contains(Mask::PORT_GID) {
                records.push(group.record);
                continue;
            }
            let of = |(gid, member): (&Gid, &Member)| {
                let record = with_member(&group.record, *gid, member);
                let is_it = !mask.contains(Mask::PORT_GID) || *gid == wanted.port_gid;
                let is_so = !mask.contains(Mask::JOIN_STATE)
                    || member.join_state.contains(wanted.join_state);
                (is_it && is_so).then_some(record)
            };
            records.extend(group.members.iter().filter_map(of));
        }
        records
    }
}

fn exactly(record: McMemberRecord) -> McMemberRecord {
    McMemberRecord {
        mtu_selector: Selector::EXACTLY,
        rate_selector: Selector::EXACTLY,
        packet_life_time_selector: Selector::EXACTLY,
        ..record
    }
}

fn with_member(record: &McMemberRecord, port_gid: Gid, member: &Member) -> McMemberRecord {
    let Member { join_state, proxy_join } = *member;
    McMemberRecord { port_gid, join_state, proxy_join, ..*record }
}

fn has_key(keys: &[PKey], p_key: PKey) -> bool {
    keys.iter().any(|key| key.matches(p_key))
}

/// The MGID of a group that was created without one. It has a signature of its own, and the MLID.
fn generate_mgid(scope: Scope, mlid: Lid) -> Gid {
    ipoib_gid(scope, 0xa01b, PKey::DEFAULT, mlid.0.into())
}

fn is_able(port: (Mtu, Rate, &[PKey]), record: &McMemberRecord) -> bool {
    let (mtu, rate, keys) = port;
    mtu >= record.mtu && rate >= record.rate && has_key(keys, record.p_key)
}

fn matches(mask: Mask, wanted: &McMemberRecord, own: &McMemberRecord) -> bool {
    let is = |bit: Mask, equal: bool| !mask.contains(bit) || equal;
    let is_given = |value: Mask, selector: Mask| mask.contains(value.with(selector));
    is(Mask::Q_KEY, wanted.q_key == own.q_key)
        && is(Mask::MLID, wanted.mlid == own.mlid)
        && is(Mask::P_KEY, wanted.p_key.partition() == own.p_key.partition())
        && is(Mask::TRAFFIC_CLASS, wanted.traffic_class == own.traffic_class)
        && is(Mask::SL, wanted.sl == own.sl)
        && is(Mask::FLOW_LABEL, wanted.flow_label == own.flow_label)
        && is(Mask::HOP_LIMIT, wanted.hop_limit == own.hop_limit)
        && is(Mask::SCOPE, wanted.scope == own.scope)
        && (!is_given(Mask::MTU, Mask::MTU_SELECTOR)
            || compares(wanted.mtu_selector, own.mtu, wanted.mtu))
        && (!is_given(Mask::RATE, Mask::RATE_SELECTOR)
            || compares(wanted.rate_selector, own.rate, wanted.rate))
        && (!is_given(Mask::PACKET_LIFE_TIME, Mask::PACKET_LIFE_TIME_SELECTOR)
            || compares(
                wanted.packet_life_time_selector,
                own.packet_life_time,
                wanted.packet_life_time,
            ))
}

fn compares<T: Ord>(selector: Selector, own: T, wanted: T) -> bool {
    match selector {
        Selector::GREATER_THAN => own > wanted,
        Selector::LESS_THAN => own < wanted,
        Selector::EXACTLY => own == wanted,
        _ => true,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use pollux_wire::address::Guid;

    #[test]
    fn members_join_again_at_the_limit() {
        let partitions = Partitions::default();
        let mut groups = Groups::new(&partitions, TimeCode(18));
        let mgid = partitions.all()[0].broadcast_groups()[0];
        let requester = Requester { is_member: true, p_keys: vec![PKey::DEFAULT] };
        let join = |guid: u64, groups: &mut Groups| {
            let port_gid = Gid::new(Gid::DEFAULT_PREFIX, Guid(guid));
            let join_state = JoinState::FULL_MEMBER;
            let wanted = McMemberRecord { mgid, port_gid, join_state, ..Default::default() };
            let mask = Mask::MGID.with(Mask::PORT_GID).with(Mask::JOIN_STATE);
            let port = (Mtu::BYTES_4096, Rate::GBPS_100, &[PKey::DEFAULT][..]);
            groups.join(mask, &wanted, &requester, port).map(|record| record.mlid)
        };
        let mlid = join(1, &mut groups).unwrap();
        groups.member_count = MEMBERS_MAX;
        assert_eq!(join(1, &mut groups), Ok(mlid));
        assert_eq!(join(2, &mut groups), Err(MadStatus::SA_NO_RESOURCES));
    }
}
