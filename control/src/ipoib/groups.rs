//! Multicast groups of the link: full memberships, and send-only ones (RFC 4391 10).
//!
//! ```text
//!   wanted, or a packet --> Asked --joined--> Joined --deleted--> Asked if wanted, else Missing
//!                             |  \--refused--> Failed --time--> Asked
//!                             +--does not exist--> Missing --time, or a notice--> Asked
//!   Joined to send --wanted: full join--> Joined in full; if refused, as before, and retried
//!   any --unwanted, or the oldest send-only one of a full table--> (none), and a leave
//! ```
//!
//! A wanted group is created if it does not exist. A send-only group is not: while it does not
//! exist, its packets go to the all-routers group if that exists, and are dropped otherwise.
//! Notices of the SA report when that changes; the periodic retry covers lost notices.

use super::sa_queries::is_no_such_group;
use super::{
    Action, Adjacency, By, DatagramAdjacency, InterfaceDrop, IpoibInterface, OutgoingPacket,
    PeerKey, PendingPacket, Purpose,
};
use crate::nd::ALL_ROUTERS;
use crate::sa::{SaError, SaQuery, SaReply};
use pollux_verbs::AddressVector;
use pollux_verbs::time::Time;
use pollux_wire::address::{Gid, Lid, Qpn};
use pollux_wire::ip::mgid::GroupId;
use pollux_wire::mad::sa::{JoinState, McMemberRecord};
use std::collections::VecDeque;
use std::net::Ipv4Addr;
use std::time::Duration;

/// The retry interval of a missing group, unless a notice reports it.
const MISSING_PAUSE: Duration = Duration::from_secs(60);

pub(super) struct Group {
    pub(super) mgid: Gid,
    pub(super) peer: PeerKey,
    /// The group is wanted: full membership, not send-only.
    pub(super) is_wanted: bool,
    pub(super) state: GroupState,
    pub(super) since: Time,
    /// When to repeat the join of a joined group, after the SA did not answer the last one.
    rejoin: Option<Time>,
    /// The MLID that the queue pair is attached with.
    attached: Option<Lid>,
    pub(super) pending: VecDeque<PendingPacket>,
}

#[derive(Clone, Debug)]
pub(super) enum GroupState {
    Asked { failures: u32 },
    Joined { record: Box<McMemberRecord>, as_full: bool },
    Missing { until: Time },
    Failed { error: SaError, failures: u32, until: Time },
}

impl Group {
    pub(super) const fn due(&self) -> Option<Time> {
        match self.state {
            GroupState::Missing { until } | GroupState::Failed { until, .. } => Some(until),
            GroupState::Joined { .. } => self.rejoin,
            GroupState::Asked { .. } => None,
        }
    }

    pub(super) fn join_state(&self) -> Option<(Gid, JoinState)> {
        match self.state {
            GroupState::Joined { as_full, .. } => Some((self.mgid, join_state(as_full))),
            _ => None,
        }
    }

    /// The present membership, and that of an outstanding join.
    pub(super) fn may_be_joined(&self) -> impl Iterator<Item = (Gid, JoinState)> + use<> {
        let asked = match self.state {
            GroupState::Asked { .. } => Some(self.is_wanted),
            GroupState::Joined { as_full: false, .. } if self.is_wanted => Some(true),
            _ => None,
        };
        let asked = asked.map(|as_full| (self.mgid, join_state(as_full)));
        self.join_state().into_iter().chain(asked)
    }

    fn record(&self) -> Option<&McMemberRecord> {
        match &self.state {
            GroupState::Joined { record, .. } => Some(record),
            _ => None,
        }
    }
}

/// Not the send-only join state that keeps a group alive: not every SA supports it, and a group
/// without receivers is not needed.
const fn join_state(as_full: bool) -> JoinState {
    if as_full { JoinState::FULL_MEMBER } else { JoinState::SEND_ONLY_NON_MEMBER }
}

/// The group that gets packets of missing groups.
fn all_routers(id: GroupId) -> Option<GroupId> {
    match id {
        GroupId::V4(_) => GroupId::of(Ipv4Addr::new(224, 0, 0, 2).into()),
        GroupId::V6(_) => GroupId::of(ALL_ROUTERS.into()),
        GroupId::Broadcast => None,
    }
}

impl IpoibInterface {
    /// Joins a group as a full member.
    pub(super) fn want_group(&mut self, now: Time, id: GroupId) {
        if !self.is_up() || !self.enter_group(now, id) {
            return;
        }
        let Some(group) = self.groups.get_mut(&id) else { return };
        group.is_wanted = true;
        let is_member = matches!(group.state, GroupState::Joined { as_full: true, .. });
        if !is_member && id != GroupId::Broadcast {
            self.ask_group(now, id, true);
        }
    }

    /// Leaves a wanted group. A later packet to it joins it again, to send.
    pub(super) fn unwant_group(&mut self, now: Time, id: GroupId) {
        let Some(group) = self.groups.get(&id).filter(|group| group.is_wanted) else { return };
        let member = group.join_state();
        self.remove_group(id);
        self.leave_group(now, member);
    }

    /// Joins all groups, wanted and send-only, again.
    pub(super) fn join_all_groups(&mut self, now: Time) {
        let wanted: Vec<GroupId> = self.membership.link_groups().map(|(id, _)| id).collect();
        for id in wanted {
            if self.enter_group(now, id)
                && let Some(group) = self.groups.get_mut(&id)
            {
                group.is_wanted = true;
            }
        }
        let all = self.groups.iter().filter(|(id, _)| **id != GroupId::Broadcast);
        for (id, is_wanted) in all.map(|(&id, one)| (id, one.is_wanted)).collect::<Vec<_>>() {
            self.ask_group(now, id, is_wanted);
        }
    }

    pub(super) fn send_to_group(&mut self, now: Time, id: GroupId, pending: PendingPacket) {
        if !self.check_up() {
            return;
        }
        if !self.groups.contains_key(&id) {
            if !self.enter_group(now, id) {
                return;
            }
            self.ask_group(now, id, false);
        }
        let Some(group) = self.groups.get(&id) else { return };
        match &group.state {
            GroupState::Joined { record, .. } => {
                let adjacency = self.group_adjacency(group.mgid, record);
                self.send_datagram(now, pending, adjacency);
            }
            GroupState::Asked { .. } => {
                let Some(group) = self.groups.get_mut(&id) else { return };
                if group.pending.len() >= self.config.pending_per_destination_max {
                    group.pending.pop_front();
                    self.drops.count(InterfaceDrop::PendingFull);
                }
                group.pending.push_back(pending);
            }
            GroupState::Missing { .. } => match all_routers(id).filter(|routers| *routers != id) {
                Some(routers) => self.send_to_group(now, routers, pending),
                None => self.drops.count(InterfaceDrop::NoGroup),
            },
            GroupState::Failed { .. } => self.drops.count(InterfaceDrop::GroupRefused),
        }
    }

    /// Sends a packet by datagram, in fragments if it is too long.
    pub(super) fn send_datagram(
        &mut self,
        now: Time,
        pending: PendingPacket,
        adjacency: DatagramAdjacency,
    ) {
        let PendingPacket { ether_type, packet, from, .. } = pending;
        for packet in self.fit(now, packet, from, adjacency.mtu) {
            self.frames.push(OutgoingPacket { ether_type, packet, by: By::Datagram(adjacency) });
        }
    }

    pub(super) fn group_answered(
        &mut self,
        now: Time,
        id: GroupId,
        as_full: bool,
        result: Result<SaReply, SaError>,
    ) {
        let error = match result {
            Ok(SaReply::Group(record)) => return self.group_joined(now, id, as_full, record),
            Ok(_) => SaError::BadAnswer,
            Err(error) => error,
        };
        let Some(group) = self.groups.get(&id) else { return };
        if group.is_wanted != as_full {
            return self.ask_group(now, id, group.is_wanted);
        }
        let failures = match group.state {
            GroupState::Asked { failures } => failures.saturating_add(1),
            _ => 1,
        };
        let until = now + self.pause_after(failures);
        let rejoin = now + self.config.pause_max;
        // A refused full membership leaves the send-only one.
        if let Some(group) = self.groups.get_mut(&id)
            && let GroupState::Joined { as_full: is_full, .. } = group.state
            && (error.is_passing() || as_full && !is_full)
        {
            group.rejoin = Some(rejoin);
            return;
        }
        let state = match as_full {
            false if is_no_such_group(error) => GroupState::Missing { until: now + MISSING_PAUSE },
            _ => GroupState::Failed { error, failures, until },
        };
        self.set_group(now, id, state);
    }

    pub(super) fn group_joined(
        &mut self,
        now: Time,
        id: GroupId,
        as_full: bool,
        record: McMemberRecord,
    ) {
        match self.groups.get(&id) {
            // It was left, or is send-only now.
            None => self.leave_group(now, Some((record.mgid, join_state(as_full)))),
            // The reply to an earlier send-only join.
            Some(Group { state: GroupState::Joined { as_full: true, .. }, .. }) if !as_full => {}
            Some(group) => {
                let asks_more = group.is_wanted && !as_full;
                self.set_group(now, id, GroupState::Joined { record: Box::new(record), as_full });
                if asks_more {
                    self.ask_group(now, id, true);
                }
                if as_full {
                    self.detect_waiting(now, id);
                }
            }
        }
    }

    /// Whether we are a full member of a group.
    pub(super) fn is_full_member(&self, id: GroupId) -> bool {
        let group = self.groups.get(&id);
        group.is_some_and(|group| matches!(group.state, GroupState::Joined { as_full: true, .. }))
    }

    pub(super) fn group_appeared(&mut self, now: Time, id: GroupId) {
        let Some(group) = self.groups.get(&id) else { return };
        if matches!(group.state, GroupState::Missing { .. } | GroupState::Failed { .. }) {
            self.ask_group(now, id, group.is_wanted);
        }
    }

    pub(super) fn group_vanished(&mut self, now: Time, id: GroupId) {
        let Some(group) = self.groups.get(&id) else { return };
        if group.is_wanted {
            self.ask_group(now, id, true);
        } else if matches!(group.state, GroupState::Joined { .. }) {
            self.set_group(now, id, GroupState::Missing { until: now + MISSING_PAUSE });
        }
    }

    /// The traffic class of the link, by which paths are asked for.
    pub(super) fn traffic_class(&self) -> u8 {
        let broadcast = self.groups.get(&GroupId::Broadcast).and_then(Group::record);
        broadcast.map_or(0, |record| record.traffic_class)
    }

    pub(super) fn retry_groups(&mut self, now: Time) {
        let due = self.groups.iter().filter(|(_, one)| one.due().is_some_and(|due| due <= now));
        for (id, is_wanted) in due.map(|(&id, one)| (id, one.is_wanted)).collect::<Vec<_>>() {
            self.ask_group(now, id, is_wanted);
        }
    }

    pub(super) fn forget_groups(&mut self) {
        for id in self.groups.keys().copied().collect::<Vec<_>>() {
            self.remove_group(id);
        }
    }

    /// Ensures an entry. `false` if the table is full.
    fn enter_group(&mut self, now: Time, id: GroupId) -> bool {
        if self.groups.contains_key(&id) {
            return true;
        }
        if self.groups.len() >= self.config.groups_max && !self.evict_group(now) {
            self.drops.count(InterfaceDrop::GroupsFull);
            return false;
        }
        let (mgid, peer) = (self.mgid(id), PeerKey(self.new_key()));
        let group = Group {
            mgid,
            peer,
            is_wanted: false,
            state: GroupState::Asked { failures: 0 },
            since: now,
            rejoin: None,
            attached: None,
            pending: VecDeque::new(),
        };
        self.groups.insert(id, group);
        self.publish_adjacency(peer, Adjacency::Pending);
        self.actions.push_back(Action::BindGroup { mgid, peer });
        true
    }

    /// Evicts the oldest send-only group.
    fn evict_group(&mut self, now: Time) -> bool {
        let sent_to = self.groups.iter().filter(|(_, group)| !group.is_wanted);
        let oldest = sent_to.min_by_key(|(_, group)| group.since);
        let Some((&id, group)) = oldest else { return false };
        let member = group.join_state();
        self.remove_group(id);
        self.leave_group(now, member);
        true
    }

    fn remove_group(&mut self, id: GroupId) {
        let Some(group) = self.groups.remove(&id) else { return };
        let Group { mgid, peer, attached, pending, .. } = group;
        pending.iter().for_each(|_| self.drops.count(InterfaceDrop::PeerGone));
        if let Some(mlid) = attached {
            self.actions.push_back(Action::Detach { mgid, mlid });
        }
        self.actions.push_back(Action::UnbindGroup { mgid });
        self.actions.push_back(Action::RemovePeer { peer });
    }

    fn leave_group(&mut self, now: Time, member: Option<(Gid, JoinState)>) {
        if let Some((mgid, how)) = member {
            let query = SaQuery::leave(self.member(mgid, how));
            self.ask(now, Purpose::Leave(mgid), query);
        }
    }

    /// Handles the reply to a leave. If the group was joined again meanwhile, the SA may have
    /// handled the two in the other order, so it is joined once more.
    pub(super) fn group_left(&mut self, now: Time, mgid: Gid) {
        let mut joined = self.groups.iter().filter(|(_, group)| group.mgid == mgid);
        if let Some((id, is_wanted)) = joined.next().map(|(&id, group)| (id, group.is_wanted)) {
            self.ask_group(now, id, is_wanted);
        }
    }

    /// Sends a join, unless one is outstanding.
    fn ask_group(&mut self, now: Time, id: GroupId, as_full: bool) {
        let broadcast = self.groups.get(&GroupId::Broadcast).and_then(Group::record).copied();
        let Some((group, like)) = self.groups.get_mut(&id).zip(broadcast) else { return };
        group.rejoin = None;
        let failures = match group.state {
            GroupState::Failed { failures, .. } | GroupState::Asked { failures } => failures,
            _ => 0,
        };
        if !matches!(group.state, GroupState::Joined { .. }) {
            (group.state, group.since) = (GroupState::Asked { failures }, now);
        }
        let mgid = group.mgid;
        let member = self.member(mgid, join_state(as_full));
        let query = match as_full {
            true => SaQuery::join_or_create(member, &like),
            false => SaQuery::join(member),
        };
        let purpose = Purpose::Group { id, as_full };
        if !self.is_asked(purpose) {
            self.ask(now, purpose, query);
        }
        self.update_group_adjacency(id);
    }

    /// Sets the state of a group, and sends its pending packets.
    fn set_group(&mut self, now: Time, id: GroupId, state: GroupState) {
        let Some(group) = self.groups.get_mut(&id) else { return };
        (group.state, group.since) = (state, now);
        let mlid = match &group.state {
            GroupState::Joined { record, as_full: true } if group.is_wanted => Some(record.mlid),
            _ => None,
        };
        let mgid = group.mgid;
        if group.attached != mlid {
            let before = std::mem::replace(&mut group.attached, mlid);
            let detach = before.map(|mlid| Action::Detach { mgid, mlid });
            let attach = mlid.map(|mlid| Action::Attach { mgid, mlid });
            self.actions.extend(detach.into_iter().chain(attach));
        }
        let pending = std::mem::take(&mut group.pending);
        self.update_group_adjacency(id);
        for pending in pending {
            self.send_to_group(now, id, pending);
        }
        // Packets of missing groups use the all-routers group, so their adjacencies change too.
        if all_routers(id) == Some(id) {
            let missing = self.groups.iter().filter(|(other, group)| {
                all_routers(**other) == Some(id)
                    && matches!(group.state, GroupState::Missing { .. })
            });
            for other in missing.map(|(&other, _)| other).collect::<Vec<_>>() {
                self.update_group_adjacency(other);
            }
        }
    }

    fn update_group_adjacency(&mut self, id: GroupId) {
        let Some(group) = self.groups.get(&id) else { return };
        let peer = group.peer;
        let joined = match &group.state {
            GroupState::Missing { .. } => {
                let routers = all_routers(id).filter(|routers| *routers != id);
                let Some(routers) = routers.and_then(|routers| self.groups.get(&routers)) else {
                    // Control joins the routers' group as soon as there is a packet for it.
                    let adjacency = if all_routers(id) == Some(id) {
                        Adjacency::Unreachable
                    } else {
                        Adjacency::Unknown
                    };
                    return self.publish_adjacency(peer, adjacency);
                };
                routers
            }
            _ => group,
        };
        let adjacency = match &joined.state {
            GroupState::Joined { record, .. } => {
                Adjacency::Datagram(self.group_adjacency(joined.mgid, record))
            }
            GroupState::Asked { .. } => Adjacency::Pending,
            GroupState::Missing { .. } | GroupState::Failed { .. } => Adjacency::Unreachable,
        };
        self.publish_adjacency(peer, adjacency);
    }

    fn group_adjacency(&self, mgid: Gid, record: &McMemberRecord) -> DatagramAdjacency {
        let port = self.binding.map_or(1, |binding| binding.port);
        let mtu = self.link().map_or(0, |link| link.mtu);
        let vector = AddressVector::to_group(mgid, record, port);
        DatagramAdjacency { vector, qpn: Qpn::MULTICAST, mtu }
    }
}
