//! How an interface comes up and goes down (RFC 4391 5).
//!
//! ```text
//!           active    full member of the partition       joined
//!   NoPort ------> PortDown, NoPKey, LimitedMember ---> Joining -----> Up
//!                          ^                            |     ^        |
//!                          |                    refused |     | time   | the group is lost
//!                          |                            v     |        |
//!                          |                            Paused <-------+
//!                          +--- the port changed: from any, and up again from there
//! ```
//!
//! What the port is (its LID, its GID, its place in the partition) is taken together: when any of
//! it changes, so do link address and paths, and the interface goes down and up with all that hangs
//! on it. A new subnet manager changes nothing of that: memberships and paths are asked for anew
//! while traffic goes on. An interface that waits after refusals asks a new one at once, and counts
//! its refusals from the first.

use super::groups::Group;
use super::{Action, Interface, InterfaceDrop, Link, PortView, Purpose};
use crate::sa::{Membership, SaError, SaQuery, SaReply};
use pollux_verbs::time::Time;
use pollux_wire::address::{Gid, Lid};
use pollux_wire::ip::ipoib::ip_mtu;
use pollux_wire::ip::ipv4::IPV4_MTU_MIN;
use pollux_wire::ip::ipv6::IPV6_MTU_MIN;
use pollux_wire::ip::mgid::{GroupId, LinkGroup};
use pollux_wire::mad::notice::{NoticeReport, TrapDetails, TrapNumber};
use pollux_wire::mad::sa::{JoinState, McMemberRecord};
use pollux_wire::mad::smp::PortState;
use std::time::Duration;

/// The state of an interface.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum InterfaceState {
    /// Nothing is known of the port.
    NoPort,
    /// Whoever runs the interface has taken it down.
    Closed,
    /// The port carries no traffic.
    PortDown(PortState),
    /// The port's table has no key of the partition.
    NoPKey,
    /// The port is no full member of the partition.
    LimitedMember,
    /// The administrator was asked to let us into the broadcast group.
    Joining {
        /// And to make it.
        creates: bool,
        /// How often in a row it refused before, or did not answer.
        failures: u32,
    },
    /// It refused, or did not answer.
    Paused {
        /// Why.
        error: SaError,
        /// How often in a row.
        failures: u32,
        /// When it is asked again.
        until: Time,
    },
    /// The group's datagrams are too short for a version of IP that is to be spoken.
    TooSmall {
        /// The longest packet that they have room for.
        mtu: u32,
        /// What there must be room for.
        least: u32,
        /// When the group is looked at again.
        until: Time,
    },
    /// The interface is up.
    Up {
        /// What it is on its link.
        link: Box<Link>,
        /// How often in a row the administrator did not answer when the group was joined again.
        failures: u32,
        /// When the group is joined again.
        rejoin: Option<Time>,
    },
}

/// What an interface's place on the link depends on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct PortBinding {
    pub(super) pkey_index: u16,
    pub(super) lid: Lid,
    pub(super) lmc: u8,
    pub(super) gid: Gid,
    pub(super) port: u8,
}

/// Notices about groups, that senders follow (RFC 4391 10).
const NOTICES: [TrapNumber; 2] =
    [TrapNumber::MULTICAST_GROUP_CREATED, TrapNumber::MULTICAST_GROUP_DELETED];
/// How long until a subscription that was refused is tried again.
const SUBSCRIPTION_PAUSE: Duration = Duration::from_secs(60);

impl InterfaceState {
    /// When it changes by itself.
    pub(super) const fn due(&self) -> Option<Time> {
        match self {
            Self::Paused { until, .. } | Self::TooSmall { until, .. } => Some(*until),
            Self::Up { rejoin, .. } => *rejoin,
            _ => None,
        }
    }

    /// How often in a row the broadcast group was not joined.
    const fn failures(&self) -> u32 {
        match self {
            Self::Joining { failures, .. }
            | Self::Paused { failures, .. }
            | Self::Up { failures, .. } => *failures,
            _ => 0,
        }
    }
}

impl Interface {
    /// Whether packets come and go.
    pub const fn is_up(&self) -> bool {
        matches!(self.state, InterfaceState::Up { .. })
    }

    /// What the interface is on its link, while it is up.
    pub fn link(&self) -> Option<&Link> {
        match &self.state {
            InterfaceState::Up { link, .. } => Some(link),
            _ => None,
        }
    }

    pub(super) fn apply_port(&mut self, now: Time, port: &PortView) {
        let sm = |port: &PortView| (port.sm_lid, port.sm_sl);
        let is_new_manager = self.port.as_ref().map(sm) != Some(sm(port));
        self.port = Some(port.clone());
        if is_new_manager {
            self.sa.handle_sm_change(now, self.administrator());
        }
        if self.state == InterfaceState::Closed {
            return;
        }
        match self.check_port(port) {
            Ok(binding) if self.binding == Some(binding) => {
                if is_new_manager {
                    self.renew(now);
                }
            }
            Ok(binding) => {
                self.go_down(now, InterfaceState::NoPort);
                self.binding = Some(binding);
                self.join_broadcast(now);
            }
            Err(state) if self.state != state => self.go_down(now, state),
            Err(_) => {}
        }
    }

    /// What the port is good for, or why for nothing.
    fn check_port(&self, port: &PortView) -> Result<PortBinding, InterfaceState> {
        if !matches!(port.state, PortState::ACTIVE | PortState::ACTIVE_DEFER) {
            return Err(InterfaceState::PortDown(port.state));
        }
        let gid = port.gids.first().copied().unwrap_or(Gid::NONE);
        if !port.lid.is_unicast() || gid == Gid::NONE {
            return Err(InterfaceState::PortDown(port.state));
        }
        let partition = self.config.p_key.partition();
        let mut keys = (0..).zip(&port.pkeys).filter(|(_, key)| key.partition() == partition);
        let is_known = keys.clone().next().is_some();
        match keys.find(|(_, key)| key.is_full()) {
            Some((pkey_index, _)) => {
                let PortView { lid, lmc, number, .. } = *port;
                Ok(PortBinding { pkey_index, lid, lmc, gid, port: number })
            }
            None if is_known => Err(InterfaceState::LimitedMember),
            None => Err(InterfaceState::NoPKey),
        }
    }

    pub(super) fn open(&mut self, now: Time) {
        if self.state == InterfaceState::Closed {
            self.set_state(now, InterfaceState::NoPort);
            if let Some(port) = self.port.clone() {
                self.apply_port(now, &port);
            }
        }
    }

    /// The groups are left in good order and subscriptions taken back, which the administrator
    /// hears though nobody waits for its answer. It may have granted what it was asked for a moment
    /// ago: that is left as well.
    pub(super) fn close(&mut self, now: Time) {
        let (was_up, has_port) = (self.is_up(), self.binding.is_some());
        let mut joined: Vec<_> = self.groups.values().flat_map(Group::may_be_joined).collect();
        let is_narrow = matches!(self.state, InterfaceState::TooSmall { .. });
        if is_narrow || !was_up && self.is_asked(Purpose::Broadcast) {
            joined.push((self.mgid(GroupId::Broadcast), JoinState::FULL_MEMBER));
        }
        let members: Vec<_> =
            joined.into_iter().map(|(mgid, how)| self.member(mgid, how)).collect();
        self.go_down(now, InterfaceState::Closed);
        for member in members {
            self.ask(now, Purpose::Leave(member.mgid), SaQuery::leave(member));
        }
        for trap in NOTICES.into_iter().filter(|_| has_port) {
            self.ask(now, Purpose::Unsubscription(trap), SaQuery::subscription(trap, false));
        }
    }

    fn set_state(&mut self, now: Time, state: InterfaceState) {
        (self.state, self.since) = (state, now);
    }

    fn go_down(&mut self, now: Time, state: InterfaceState) {
        let was_up = self.is_up();
        self.set_state(now, state);
        self.binding = None;
        for id in self.sa_queries.clear() {
            self.sa.cancel(now, id);
        }
        self.requests.clear();
        if was_up {
            self.subscriptions.clear();
            self.connections.handle_place(now, None);
            self.give_up_addresses();
            self.forget_neighbors(now);
            self.forget_groups();
            self.actions.push_back(Action::Stop);
        }
    }

    pub(super) fn member(&self, mgid: Gid, join_state: JoinState) -> Membership {
        let port_gid = self.binding.map_or(Gid::NONE, |binding| binding.gid);
        Membership { mgid, port_gid, p_key: self.config.p_key.full(), join_state }
    }

    pub(super) fn mgid(&self, id: GroupId) -> Gid {
        LinkGroup { id, p_key: self.config.p_key, scope: self.config.scope }.mgid()
    }

    fn join_broadcast(&mut self, now: Time) {
        let member = self.member(self.mgid(GroupId::Broadcast), JoinState::FULL_MEMBER);
        match &mut self.state {
            InterfaceState::Up { rejoin, .. } => *rejoin = None,
            state => {
                let failures = state.failures();
                self.set_state(now, InterfaceState::Joining { creates: false, failures });
            }
        }
        if !self.is_asked(Purpose::Broadcast) {
            self.ask(now, Purpose::Broadcast, SaQuery::join(member));
        }
    }

    fn create_broadcast(&mut self, now: Time, like: &McMemberRecord) {
        let member = self.member(self.mgid(GroupId::Broadcast), JoinState::FULL_MEMBER);
        let failures = self.state.failures();
        self.set_state(now, InterfaceState::Joining { creates: true, failures });
        self.ask(now, Purpose::Broadcast, SaQuery::join_or_create(member, like));
    }

    pub(super) fn broadcast_answered(&mut self, now: Time, result: Result<SaReply, SaError>) {
        let error = match result {
            Ok(SaReply::Group(record)) => return self.broadcast_joined(now, record),
            Ok(_) => SaError::BadAnswer,
            Err(error) => error,
        };
        let terms = self.config.create.filter(|_| is_no_such_group(error));
        match (&self.state, terms) {
            (InterfaceState::Joining { creates: false, .. }, Some(terms)) => {
                let like = McMemberRecord {
                    q_key: terms.q_key,
                    mtu: terms.mtu,
                    rate: terms.rate,
                    sl: terms.sl,
                    ..McMemberRecord::default()
                };
                self.create_broadcast(now, &like);
            }
            _ => self.pause(now, error),
        }
    }

    /// Waits before it asks again, longer each time. An administrator that is silent or busy takes
    /// nothing away from who is up; one that refuses does.
    fn pause(&mut self, now: Time, error: SaError) {
        let failures = self.state.failures().saturating_add(1);
        let until = now + self.pause_after(failures);
        if let InterfaceState::Up { failures: known, rejoin, .. } = &mut self.state
            && error.is_passing()
        {
            (*known, *rejoin) = (failures, Some(until));
            return;
        }
        let binding = self.binding;
        if self.is_up() {
            self.go_down(now, InterfaceState::NoPort);
        }
        self.binding = binding;
        self.set_state(now, InterfaceState::Paused { error, failures, until });
    }

    /// How long to wait after so many failures in a row.
    pub(super) fn pause_after(&self, failures: u32) -> Duration {
        let doubled = self.config.pause_min.saturating_mul(1 << failures.saturating_sub(1).min(16));
        doubled.min(self.config.pause_max)
    }

    pub(super) fn handle_state_timeout(&mut self, now: Time) {
        if self.state.due().is_some_and(|due| due <= now) && self.binding.is_some() {
            self.join_broadcast(now);
        }
    }

    fn broadcast_joined(&mut self, now: Time, record: McMemberRecord) {
        let Some(binding) = self.binding else { return };
        let room = ip_mtu(record.mtu.bytes().unwrap_or(0) as u32);
        let least = if self.config.ipv6 { IPV6_MTU_MIN } else { IPV4_MTU_MIN };
        let PortBinding { pkey_index, lid, lmc, gid, .. } = binding;
        let mtu = room.min(self.config.mtu_max);
        let link = Link { pkey_index, qkey: record.q_key, lid, lmc, gid, mtu };
        if self.link().is_some_and(|known| *known != link) {
            // The group was made anew, otherwise.
            self.go_down(now, InterfaceState::NoPort);
            self.binding = Some(binding);
        }
        if room < least {
            let until = now + self.config.pause_max;
            return self.set_state(now, InterfaceState::TooSmall { mtu: room, least, until });
        }
        let comes_up = !self.is_up();
        match &mut self.state {
            InterfaceState::Up { failures, .. } => *failures = 0,
            _ => {
                let link = Box::new(link);
                self.set_state(now, InterfaceState::Up { link, failures: 0, rejoin: None });
            }
        }
        if comes_up {
            self.actions.push_back(Action::Start(link));
        }
        self.want_group(now, GroupId::Broadcast);
        self.group_joined(now, GroupId::Broadcast, true, record);
        if comes_up {
            self.connections.handle_place(now, self.place());
            self.join_all_groups(now);
            self.claim_addresses(now);
            self.subscribe(now);
        }
    }

    /// The administrator has forgotten us, or is another one: what it refused or did not answer
    /// before counts no more.
    pub(super) fn renew(&mut self, now: Time) {
        match &mut self.state {
            // The client asks the new one by itself.
            InterfaceState::Joining { failures, .. } => return *failures = 0,
            InterfaceState::Paused { failures, .. } => {
                *failures = 0;
                return self.join_broadcast(now);
            }
            InterfaceState::TooSmall { .. } => return self.join_broadcast(now),
            InterfaceState::Up { failures, .. } => *failures = 0,
            _ => return,
        }
        self.join_broadcast(now);
        self.join_all_groups(now);
        self.renew_paths(now);
        self.subscribe(now);
    }

    fn subscribe(&mut self, now: Time) {
        for trap in NOTICES {
            self.subscribe_to(now, trap);
        }
    }

    fn subscribe_to(&mut self, now: Time, trap: TrapNumber) {
        self.subscriptions.remove(&trap);
        let purpose = Purpose::Subscription(trap);
        if !self.is_asked(purpose) {
            self.ask(now, purpose, SaQuery::subscription(trap, true));
        }
    }

    /// A subscription was taken back. If there is to be one again meanwhile, the administrator may
    /// have heard of the one before the other.
    pub(super) fn unsubscribed(&mut self, now: Time, trap: TrapNumber) {
        if self.is_up() {
            self.subscribe_to(now, trap);
        }
    }

    pub(super) fn subscription_answered(
        &mut self,
        now: Time,
        trap: TrapNumber,
        error: Option<SaError>,
    ) {
        if error.is_some() {
            self.subscriptions.insert(trap, now + SUBSCRIPTION_PAUSE);
        }
    }

    pub(super) fn retry_subscriptions(&mut self, now: Time) {
        let due = self.subscriptions.iter().filter(|(_, due)| **due <= now);
        for trap in due.map(|(&trap, _)| trap).collect::<Vec<_>>() {
            self.subscribe_to(now, trap);
        }
    }

    pub(super) fn handle_notice(&mut self, now: Time, report: &NoticeReport) {
        let TrapDetails::Gid(subject) = report.notice.details() else { return };
        let Ok(group) = LinkGroup::from_mgid(subject.gid) else { return };
        if !self.is_up() || self.mgid(group.id) != subject.gid {
            return;
        }
        match report.notice.trap_number {
            TrapNumber::MULTICAST_GROUP_CREATED => self.group_appeared(now, group.id),
            TrapNumber::MULTICAST_GROUP_DELETED if group.id == GroupId::Broadcast => {
                self.join_broadcast(now);
            }
            TrapNumber::MULTICAST_GROUP_DELETED => self.group_vanished(now, group.id),
            _ => {}
        }
    }

    /// Counts a packet that cannot go since the interface is not up; says whether it is.
    pub(super) fn check_up(&mut self) -> bool {
        if !self.is_up() {
            self.drops.count(InterfaceDrop::Down);
        }
        self.is_up()
    }
}

/// What administrators say of a group that is not there.
pub(super) const fn is_no_such_group(error: SaError) -> bool {
    matches!(error, SaError::NoRecords | SaError::InsufficientComponents | SaError::RequestInvalid)
}
