//! Multicast groups of the link: full memberships, and send-only ones (RFC 4391 10).
//!
//! ```text
//!   wanted, or a packet --> Asked --joined--> Joined --deleted--> joined again if wanted,
//!                             |  \--refused--> Failed --time--> Asked       else Missing
//!                             +--does not exist--> Missing --time, or a notice--> Asked
//!   Joined: SendOnly --wanted--> Upgrading --full join--> Full
//!           Upgrading --refused--> Upgrading, and retried
//!   any --unwanted, or the oldest send-only one of a full table--> (none), and a leave
//! ```
//!
//! A wanted group is created if it does not exist. A send-only group is not: while it does not
//! exist, packets for it go to the all-routers group if that exists, and are dropped otherwise. The
//! SA reports a new group by a notice; the periodic retry covers lost notices.

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

/// The retry interval of a missing group; a notice causes an earlier retry.
const MISSING_PAUSE: Duration = Duration::from_secs(60);

pub(super) struct Group {
    pub(super) mgid: Gid,
    pub(super) peer: PeerKey,
    pub(super) state: GroupState,
    pub(super) since: Time,
    pub(super) pending: VecDeque<PendingPacket>,
}

/// A wanted group has a full membership, or requests it; other groups are send-only.
#[derive(Clone, Debug)]
pub(super) enum GroupState {
    /// The first join is outstanding.
    Asked {
        is_wanted: bool,
        failures: u32,
    },
    Joined {
        record: Box<McMemberRecord>,
        membership: GroupMembership,
        /// When to join again, after the SA did not answer or refused the last join.
        rejoin: Option<Time>,
    },
    /// The group does not exist, and is not wanted.
    Missing {
        until: Time,
    },
    Failed {
        is_wanted: bool,
        error: SaError,
        failures: u32,
        until: Time,
    },
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum GroupMembership {
    SendOnly,
    /// Still send-only, but wanted: the full join is outstanding or will be retried.
    Upgrading,
    /// The queue pair is attached to the group.
    Full,
}

impl Group {
    pub(super) const fn is_wanted(&self) -> bool {
        match self.state {
            GroupState::Asked { is_wanted, .. } | GroupState::Failed { is_wanted, .. } => is_wanted,
            GroupState::Joined { membership, .. } => {
                !matches!(membership, GroupMembership::SendOnly)
            }
            GroupState::Missing { .. } => false,
        }
    }

    fn want(&mut self) {
        match &mut self.state {
            GroupState::Asked { is_wanted, .. } | GroupState::Failed { is_wanted, .. } => {
                *is_wanted = true;
            }
            GroupState::Joined { membership: known @ GroupMembership::SendOnly, .. } => {
                *known = GroupMembership::Upgrading;
            }
            GroupState::Joined { .. } => {}
            GroupState::Missing { .. } => {
                self.state = GroupState::Asked { is_wanted: true, failures: 0 };
            }
        }
    }

    pub(super) const fn is_full_member(&self) -> bool {
        matches!(self.state, GroupState::Joined { membership: GroupMembership::Full, .. })
    }

    pub(super) const fn due(&self) -> Option<Time> {
        match self.state {
            GroupState::Missing { until } | GroupState::Failed { until, .. } => Some(until),
            GroupState::Joined { rejoin, .. } => rejoin,
            GroupState::Asked { .. } => None,
        }
    }

    pub(super) fn join_state(&self) -> Option<(Gid, JoinState)> {
        self.record().map(|_| (self.mgid, join_state(self.is_full_member())))
    }

    /// The current membership, and the one that an outstanding join requests.
    pub(super) fn may_be_joined(&self) -> impl Iterator<Item = (Gid, JoinState)> + use<> {
        let asked = match self.state {
            GroupState::Asked { is_wanted, .. } => Some(is_wanted),
            GroupState::Joined { membership: GroupMembership::Upgrading, .. } => Some(true),
            _ => None,
        };
        let asked = asked.map(|as_full| (self.mgid, join_state(as_full)));
        self.join_state().into_iter().chain(asked)
    }

    pub(super) fn record(&self) -> Option<&McMemberRecord> {
        match &self.state {
            GroupState::Joined { record, .. } => Some(record),
            _ => None,
        }
    }

    /// The MLID with which the queue pair is attached to the group.
    fn attached(&self) -> Option<Lid> {
        self.record().filter(|_| self.is_full_member()).map(|record| record.mlid)
    }
}

/// The join state of a membership. The send-only state that would keep a group alive is not used:
/// not every SA supports it, and a group without receivers is not needed.
const fn join_state(as_full: bool) -> JoinState {
    if as_full { JoinState::FULL_MEMBER } else { JoinState::SEND_ONLY_NON_MEMBER }
}

/// The all-routers group, which gets the packets for missing groups.
fn all_routers(id: GroupId) -> Option<GroupId> {
    match id {
        GroupId::V4(_) => GroupId::of(Ipv4Addr::new(224, 0, 0, 2).into()),
        GroupId::V6(_) => GroupId::of(ALL_ROUTERS.into()),
        GroupId::Broadcast => None,
    }
}

impl IpoibInterface {
    pub(super) fn want_group(&mut self, now: Time, id: GroupId) {
        if !self.is_up() || !self.enter_group(now, id) {
            return;
        }
        let Some(group) = self.groups.get_mut(&id) else { return };
        group.want();
        if !group.is_full_member() && id != GroupId::Broadcast {
            self.ask_group(now, id);
        }
    }

    /// Leaves a wanted group. A later packet to the group joins it again as send-only.
    pub(super) fn unwant_group(&mut self, now: Time, id: GroupId) {
        let Some(group) = self.groups.get(&id).filter(|group| group.is_wanted()) else { return };
        let member = group.join_state();
        self.remove_group(id);
        self.leave_group(now, member);
    }

    pub(super) fn join_all_groups(&mut self, now: Time) {
        let wanted: Vec<GroupId> = self.membership.link_groups().map(|(id, _)| id).collect();
        for id in wanted {
            if self.enter_group(now, id)
                && let Some(group) = self.groups.get_mut(&id)
            {
                group.want();
            }
        }
        let all = self.groups.keys().copied().filter(|id| *id != GroupId::Broadcast);
        for id in all.collect::<Vec<_>>() {
            self.ask_group(now, id);
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
            self.ask_group(now, id);
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

    pub(super) fn handle_group_reply(
        &mut self,
        now: Time,
        id: GroupId,
        as_full: bool,
        result: Result<SaReply, SaError>,
    ) {
        let error = match result {
            Ok(SaReply::Group(record)) => {
                return self.handle_group_joined(now, id, as_full, record);
            }
            Ok(_) => SaError::BadAnswer,
            Err(error) => error,
        };
        let rejoin_at = now + self.config.pause_max;
        let Some(group) = self.groups.get_mut(&id) else { return };
        if group.is_wanted() != as_full {
            return self.ask_group(now, id);
        }
        let failures = match &mut group.state {
            // If the full membership is refused, the send-only membership stays.
            GroupState::Joined { membership, rejoin, .. }
                if error.is_passing() || *membership == GroupMembership::Upgrading =>
            {
                *rejoin = Some(rejoin_at);
                return;
            }
            GroupState::Asked { failures, .. } => failures.saturating_add(1),
            _ => 1,
        };
        let until = now + self.pause_after(failures);
        let state = match as_full {
            false if is_no_such_group(error) => GroupState::Missing { until: now + MISSING_PAUSE },
            is_wanted => GroupState::Failed { is_wanted, error, failures, until },
        };
        self.set_group(now, id, state);
    }

    pub(super) fn handle_group_joined(
        &mut self,
        now: Time,
        id: GroupId,
        as_full: bool,
        record: McMemberRecord,
    ) {
        let group = self.groups.get(&id);
        let membership = match (as_full, group.map(Group::is_wanted)) {
            // The group was left meanwhile, or is send-only now.
            (_, None) | (true, Some(false)) => {
                return self.leave_group(now, Some((record.mgid, join_state(as_full))));
            }
            (true, Some(true)) => GroupMembership::Full,
            // The reply to an earlier send-only join.
            (false, _) if group.is_some_and(Group::is_full_member) => return,
            (false, Some(true)) => GroupMembership::Upgrading,
            (false, Some(false)) => GroupMembership::SendOnly,
        };
        let record = Box::new(record);
        self.set_group(now, id, GroupState::Joined { record, membership, rejoin: None });
        match membership {
            GroupMembership::SendOnly => {}
            GroupMembership::Upgrading => self.ask_group(now, id),
            GroupMembership::Full => self.detect_waiting(now, id),
        }
    }

    pub(super) fn is_full_member(&self, id: GroupId) -> bool {
        self.groups.get(&id).is_some_and(Group::is_full_member)
    }

    pub(super) fn handle_group_created(&mut self, now: Time, id: GroupId) {
        let Some(group) = self.groups.get(&id) else { return };
        if matches!(group.state, GroupState::Missing { .. } | GroupState::Failed { .. }) {
            self.ask_group(now, id);
        }
    }

    pub(super) fn handle_group_deleted(&mut self, now: Time, id: GroupId) {
        let Some(group) = self.groups.get(&id) else { return };
        if group.is_wanted() {
            self.ask_group(now, id);
        } else if matches!(group.state, GroupState::Joined { .. }) {
            self.set_group(now, id, GroupState::Missing { until: now + MISSING_PAUSE });
        }
    }

    /// The traffic class of the broadcast group, which path queries use.
    pub(super) fn traffic_class(&self) -> u8 {
        let broadcast = self.groups.get(&GroupId::Broadcast).and_then(Group::record);
        broadcast.map_or(0, |record| record.traffic_class)
    }

    pub(super) fn retry_groups(&mut self, now: Time) {
        let due = self.groups.iter().filter(|(_, one)| one.due().is_some_and(|due| due <= now));
        for id in due.map(|(&id, _)| id).collect::<Vec<_>>() {
            self.ask_group(now, id);
        }
    }

    pub(super) fn forget_groups(&mut self) {
        for id in self.groups.keys().copied().collect::<Vec<_>>() {
            self.remove_group(id);
        }
    }

    /// Ensures that the group has an entry. Returns `false` if the table is full.
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
            state: GroupState::Asked { is_wanted: false, failures: 0 },
            since: now,
            pending: VecDeque::new(),
        };
        self.groups.insert(id, group);
        self.publish_adjacency(peer, Adjacency::Pending);
        self.actions.push_back(Action::BindGroup { mgid, peer });
        true
    }

    /// Evicts the oldest send-only group.
    fn evict_group(&mut self, now: Time) -> bool {
        let sent_to = self.groups.iter().filter(|(_, group)| !group.is_wanted());
        let oldest = sent_to.min_by_key(|(_, group)| group.since);
        let Some((&id, group)) = oldest else { return false };
        let member = group.join_state();
        self.remove_group(id);
        self.leave_group(now, member);
        true
    }

    fn remove_group(&mut self, id: GroupId) {
        let Some(group) = self.groups.remove(&id) else { return };
        let Group { mgid, peer, ref pending, .. } = group;
        pending.iter().for_each(|_| self.drops.count(InterfaceDrop::PeerGone));
        if let Some(mlid) = group.attached() {
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
    /// handled the join before the leave, so the join is repeated.
    pub(super) fn handle_leave_reply(&mut self, now: Time, mgid: Gid) {
        let joined = self.groups.iter().find(|(_, group)| group.mgid == mgid);
        if let Some((&id, _)) = joined {
            self.ask_group(now, id);
        }
    }

    /// Sends a join, unless one is outstanding.
    fn ask_group(&mut self, now: Time, id: GroupId) {
        let broadcast = self.groups.get(&GroupId::Broadcast).and_then(Group::record).copied();
        let Some((group, like)) = self.groups.get_mut(&id).zip(broadcast) else { return };
        let (mgid, is_wanted) = (group.mgid, group.is_wanted());
        let failures = match &mut group.state {
            GroupState::Joined { rejoin, .. } => {
                *rejoin = None;
                None
            }
            GroupState::Failed { failures, .. } | GroupState::Asked { failures, .. } => {
                Some(*failures)
            }
            GroupState::Missing { .. } => Some(0),
        };
        if let Some(failures) = failures {
            (group.state, group.since) = (GroupState::Asked { is_wanted, failures }, now);
        }
        let member = self.member(mgid, join_state(is_wanted));
        let query = match is_wanted {
            true => SaQuery::join_or_create(member, &like),
            false => SaQuery::join(member),
        };
        let purpose = Purpose::Group { id, as_full: is_wanted };
        if !self.is_asked(purpose) {
            self.ask(now, purpose, query);
        }
        self.update_group_adjacency(id);
    }

    /// Sets the state of a group, and sends its pending packets.
    fn set_group(&mut self, now: Time, id: GroupId, state: GroupState) {
        let Some(group) = self.groups.get_mut(&id) else { return };
        let before = group.attached();
        (group.state, group.since) = (state, now);
        let (mgid, mlid) = (group.mgid, group.attached());
        if before != mlid {
            let detach = before.map(|mlid| Action::Detach { mgid, mlid });
            let attach = mlid.map(|mlid| Action::Attach { mgid, mlid });
            self.actions.extend(detach.into_iter().chain(attach));
        }
        let pending = std::mem::take(&mut group.pending);
        self.update_group_adjacency(id);
        for pending in pending {
            self.send_to_group(now, id, pending);
        }
        // Packets for missing groups use the all-routers group, so the adjacencies of these groups
        // change too.
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
                    // Control joins the all-routers group when a packet for it is punted.
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
        let port = self.state.binding().map_or(1, |binding| binding.port);
        let mtu = self.link().map_or(0, |link| link.mtu);
        let vector = AddressVector::to_group(mgid, record, port);
        DatagramAdjacency { vector, qpn: Qpn::MULTICAST, mtu }
    }
}
