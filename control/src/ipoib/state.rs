//! The state machine of an interface (RFC 4391 5).
//!
//! ```text
//!           active    full member of the partition       joined
//!   NoPort ------> PortDown, NoPKey, LimitedMember ---> Joining -----> Up
//!                          ^                            |     ^        |
//!                          |                    refused |     | time   | the group is lost
//!                          |                            v     |        |
//!                          |                     Paused, TooSmall <----+
//!                          +--- the port changed: from any, and up again from there
//! ```
//!
//! From `Joining` on, a state has the [`PortBinding`] of its port, because joins and paths depend
//! on it.
//!
//! P_Key change, LID change, GID change: each changes our link address or the paths, so the
//! interface goes down, and comes up again with the new [`PortBinding`].
//!
//! Client reregister, or a new subnet manager: the interface stays up, and joins its groups and
//! queries its paths again while traffic goes on.
//!
//! Broadcast join retry: `Paused` waits with exponential backoff before it joins the broadcast
//! group again. A new subnet manager ends the wait and resets the count of failures.

use super::groups::Group;
use super::sa_queries::is_no_such_group;
use super::{Action, InterfaceDrop, IpoibInterface, LinkProperties, PortView, Purpose};
use crate::bounded::Backoff;
use crate::cm::LocalPort;
use crate::ipoib::connected::LocalEnd;
use crate::sa::{Membership, SaError, SaQuery, SaReply};
use pollux_verbs::time::Time;
use pollux_wire::address::{Gid, Lid, Scope};
use pollux_wire::ip::ipoib::ip_mtu;
use pollux_wire::ip::ipv4::IPV4_MTU_MIN;
use pollux_wire::ip::ipv6::IPV6_MTU_MIN;
use pollux_wire::ip::mgid::{GroupId, LinkGroup};
use pollux_wire::mad::notice::{NoticeReport, TrapDetails, TrapNumber};
use pollux_wire::mad::sa::{JoinState, McMemberRecord};
use pollux_wire::mad::smp::PortState;
use std::time::Duration;

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum InterfaceState {
    NoPort,
    Closed,
    /// The port carries no traffic.
    PortDown(PortState),
    NoPKey,
    LimitedMember,
    /// The SA query to join the broadcast group is outstanding.
    Joining {
        binding: PortBinding,
        /// Whether the query may create the group.
        creates: bool,
        /// Failed joins in a row.
        failures: u32,
    },
    Paused {
        binding: PortBinding,
        error: SaError,
        /// Failed joins in a row.
        failures: u32,
        until: Time,
    },
    /// The MTU of the broadcast group is below the minimum of IPv4 or IPv6.
    TooSmall {
        binding: PortBinding,
        /// The longest IP packet of a datagram, in bytes.
        mtu: u32,
        /// The minimum, in bytes.
        least: u32,
        until: Time,
    },
    Up {
        binding: PortBinding,
        link: Box<LinkProperties>,
        /// Consecutive rejoins that failed because the SA was busy or did not answer.
        failures: u32,
        /// When the group is joined again.
        rejoin: Option<Time>,
    },
}

/// The attributes of the port on which an interface depends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PortBinding {
    pub pkey_index: u16,
    pub lid: Lid,
    pub lmc: u8,
    pub gid: Gid,
    pub port: u8,
}

/// Notices that a multicast group was created or deleted, which senders to the group need (RFC 4391
/// 10).
const NOTICES: [TrapNumber; 2] =
    [TrapNumber::MULTICAST_GROUP_CREATED, TrapNumber::MULTICAST_GROUP_DELETED];
const SUBSCRIPTION_PAUSE: Duration = Duration::from_secs(60);

impl InterfaceState {
    pub(super) const fn due(&self) -> Option<Time> {
        match self {
            Self::Paused { until, .. } | Self::TooSmall { until, .. } => Some(*until),
            Self::Up { rejoin, .. } => *rejoin,
            _ => None,
        }
    }

    pub(super) const fn binding(&self) -> Option<PortBinding> {
        match self {
            Self::Joining { binding, .. }
            | Self::Paused { binding, .. }
            | Self::TooSmall { binding, .. }
            | Self::Up { binding, .. } => Some(*binding),
            _ => None,
        }
    }

    const fn failures(&self) -> u32 {
        match self {
            Self::Joining { failures, .. }
            | Self::Paused { failures, .. }
            | Self::Up { failures, .. } => *failures,
            _ => 0,
        }
    }
}

impl IpoibInterface {
    pub const fn is_up(&self) -> bool {
        matches!(self.state, InterfaceState::Up { .. })
    }

    pub fn link(&self) -> Option<&LinkProperties> {
        match &self.state {
            InterfaceState::Up { link, .. } => Some(link),
            _ => None,
        }
    }

    fn local_end(&self) -> Option<LocalEnd> {
        let (link, port) = self.link().zip(self.port.as_ref())?;
        let PortView { number, lid, lmc, .. } = *port;
        let port = LocalPort { number, lid, lmc, gids: port.gids.clone() };
        let (p_key, pkey_index) = (self.config.p_key, link.pkey_index);
        let datagram_mtu = link.mtu;
        Some(LocalEnd { link: self.link_address(), p_key, pkey_index, port, datagram_mtu })
    }

    /// Our GID, which identifies our port to the SA.
    pub(super) fn port_gid(&self) -> Gid {
        self.state.binding().map_or(Gid::NONE, |binding| binding.gid)
    }

    /// The number of low LID bits that select a path to one port.
    pub(super) fn lmc(&self) -> u8 {
        self.state.binding().map_or(0, |binding| binding.lmc.min(7))
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
            Ok(binding) if self.state.binding() == Some(binding) => {
                if is_new_manager {
                    self.renew(now);
                }
            }
            Ok(binding) => {
                self.restart(now, binding);
                self.join_broadcast(now);
            }
            Err(state) if self.state != state => self.go_down(now, state),
            Err(_) => {}
        }
    }

    /// The binding of the port, or the state of an interface that cannot use the port.
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

    /// Leaves all groups and removes the subscriptions, without waiting for replies. A join that is
    /// still outstanding may have succeeded: that group is left as well.
    pub(super) fn close(&mut self, now: Time) {
        let has_port = self.state.binding().is_some();
        let mut joined: Vec<_> = self.groups.values().flat_map(Group::may_be_joined).collect();
        if matches!(self.state, InterfaceState::Joining { .. } | InterfaceState::TooSmall { .. }) {
            joined.push((self.mgid(GroupId::Broadcast), JoinState::FULL_MEMBER));
        }
        let members: Vec<_> =
            joined.into_iter().map(|(mgid, how)| self.member(mgid, how)).collect();
        self.go_down(now, InterfaceState::Closed);
        for member in members {
            self.ask(now, Purpose::Leave(member.mgid), SaQuery::leave(member));
        }
        for trap in self.notices().filter(|_| has_port) {
            self.ask(now, Purpose::Unsubscription(trap), SaQuery::subscription(trap, false));
        }
    }

    fn set_state(&mut self, now: Time, state: InterfaceState) {
        (self.state, self.since) = (state, now);
    }

    /// Goes down into `Joining`, as with a new port.
    fn restart(&mut self, now: Time, binding: PortBinding) {
        self.go_down(now, InterfaceState::Joining { binding, creates: false, failures: 0 });
    }

    fn go_down(&mut self, now: Time, state: InterfaceState) {
        let was_up = self.is_up();
        self.set_state(now, state);
        for id in self.sa_queries.clear() {
            self.sa.cancel(now, id);
        }
        self.requests.clear();
        if was_up {
            self.subscriptions.clear();
            self.connections.set_local_end(now, None);
            self.give_up_addresses();
            self.forget_neighbors(now);
            self.forget_groups();
            self.actions.push_back(Action::Stop);
        }
    }

    pub(super) fn member(&self, mgid: Gid, join_state: JoinState) -> Membership {
        let port_gid = self.port_gid();
        Membership { mgid, port_gid, p_key: self.config.p_key.full(), join_state }
    }

    fn broadcast_member(&self) -> Membership {
        self.member(self.mgid(GroupId::Broadcast), JoinState::FULL_MEMBER)
    }

    pub(super) fn mgid(&self, id: GroupId) -> Gid {
        LinkGroup { id, p_key: self.config.p_key, scope: Scope::LINK_LOCAL }.mgid()
    }

    fn join_broadcast(&mut self, now: Time) {
        let binding = self.state.binding();
        match (&mut self.state, binding) {
            (InterfaceState::Up { rejoin, .. }, _) => *rejoin = None,
            (state, Some(binding)) => {
                let failures = state.failures();
                self.set_state(now, InterfaceState::Joining { binding, creates: false, failures });
            }
            (_, None) => return,
        }
        if !self.is_asked(Purpose::Broadcast) {
            self.ask(now, Purpose::Broadcast, SaQuery::join(self.broadcast_member()));
        }
    }

    pub(super) fn handle_broadcast_reply(&mut self, now: Time, result: Result<SaReply, SaError>) {
        let error = match result {
            Ok(SaReply::Group(record)) => return self.handle_broadcast_joined(now, record),
            Ok(_) => SaError::BadAnswer,
            Err(error) => error,
        };
        let terms = self.config.create.filter(|_| is_no_such_group(error));
        match (&self.state, terms) {
            (&InterfaceState::Joining { binding, creates: false, failures }, Some(terms)) => {
                let like = McMemberRecord {
                    q_key: terms.q_key,
                    mtu: terms.mtu,
                    rate: terms.rate,
                    sl: terms.sl,
                    ..McMemberRecord::default()
                };
                self.set_state(now, InterfaceState::Joining { binding, creates: true, failures });
                let query = SaQuery::join_or_create(self.broadcast_member(), &like);
                self.ask(now, Purpose::Broadcast, query);
            }
            _ => self.pause(now, error),
        }
    }

    /// Broadcast join retry: waits before the next join, with backoff. An interface that is up
    /// stays up while the SA is busy or does not answer, and goes down if the SA refuses.
    fn pause(&mut self, now: Time, error: SaError) {
        let Some(binding) = self.state.binding() else { return };
        let failures = self.state.failures().saturating_add(1);
        let until = now + self.pause_after(failures);
        let paused = InterfaceState::Paused { binding, error, failures, until };
        match &mut self.state {
            InterfaceState::Up { failures: known, rejoin, .. } if error.is_passing() => {
                (*known, *rejoin) = (failures, Some(until));
            }
            InterfaceState::Up { .. } => self.go_down(now, paused),
            _ => self.set_state(now, paused),
        }
    }

    pub(super) fn pause_after(&self, failures: u32) -> Duration {
        let backoff = Backoff { min: self.config.pause_min, max: self.config.pause_max };
        backoff.pause(failures)
    }

    pub(super) fn handle_state_timeout(&mut self, now: Time) {
        if self.state.due().is_some_and(|due| due <= now) {
            self.join_broadcast(now);
        }
    }

    fn handle_broadcast_joined(&mut self, now: Time, record: McMemberRecord) {
        let Some(binding) = self.state.binding() else { return };
        let group_mtu = ip_mtu(record.mtu.bytes().unwrap_or(0) as u32);
        let least = if self.config.ipv6 { IPV6_MTU_MIN } else { IPV4_MTU_MIN };
        let PortBinding { pkey_index, lid, lmc, gid, .. } = binding;
        let mtu = group_mtu.min(self.config.mtu_max);
        let link = LinkProperties { pkey_index, qkey: record.q_key, lid, lmc, gid, mtu };
        if self.link().is_some_and(|known| *known != link) {
            // The group was created again with other attributes.
            self.restart(now, binding);
        }
        if group_mtu < least {
            let (mtu, until) = (group_mtu, now + self.config.pause_max);
            return self.set_state(now, InterfaceState::TooSmall { binding, mtu, least, until });
        }
        let comes_up = !self.is_up();
        match &mut self.state {
            InterfaceState::Up { failures, .. } => *failures = 0,
            _ => {
                let link = Box::new(link);
                let up = InterfaceState::Up { binding, link, failures: 0, rejoin: None };
                self.set_state(now, up);
            }
        }
        if comes_up {
            self.actions.push_back(Action::Start(link));
        }
        self.want_group(now, GroupId::Broadcast);
        self.handle_group_joined(now, GroupId::Broadcast, true, record);
        if comes_up {
            self.connections.set_local_end(now, self.local_end());
            self.join_all_groups(now);
            self.claim_addresses(now);
            self.out_of_service.handle_up();
            self.subscribe(now);
        }
    }

    /// Handles a client reregister or a new subnet manager: requests everything again, and resets
    /// the count of failures.
    pub(super) fn renew(&mut self, now: Time) {
        match &mut self.state {
            // The SA client repeats the query by itself.
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

    pub(super) fn subscribe(&mut self, now: Time) {
        for trap in self.notices() {
            self.subscribe_to(now, trap);
        }
    }

    fn notices(&self) -> impl Iterator<Item = TrapNumber> + use<> {
        let departures = self.out_of_service.is_watched().then_some(TrapNumber::GID_OUT_OF_SERVICE);
        NOTICES.into_iter().chain(departures)
    }

    fn subscribe_to(&mut self, now: Time, trap: TrapNumber) {
        self.subscriptions.remove(&trap);
        let purpose = Purpose::Subscription(trap);
        if !self.is_asked(purpose) {
            self.ask(now, purpose, SaQuery::subscription(trap, true));
        }
    }

    pub(super) fn handle_subscription_reply(
        &mut self,
        now: Time,
        trap: TrapNumber,
        error: Option<SaError>,
    ) {
        if error.is_some() {
            self.subscriptions.insert(trap, now + SUBSCRIPTION_PAUSE);
        } else if trap == TrapNumber::GID_OUT_OF_SERVICE {
            self.handle_departures_reported(now);
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
        if report.notice.trap_number == TrapNumber::GID_OUT_OF_SERVICE && self.is_up() {
            return self.handle_gid_out_of_service(now, subject.gid);
        }
        let Ok(group) = LinkGroup::from_mgid(subject.gid) else { return };
        if !self.is_up() || self.mgid(group.id) != subject.gid {
            return;
        }
        match report.notice.trap_number {
            TrapNumber::MULTICAST_GROUP_CREATED => self.handle_group_created(now, group.id),
            TrapNumber::MULTICAST_GROUP_DELETED if group.id == GroupId::Broadcast => {
                self.join_broadcast(now);
            }
            TrapNumber::MULTICAST_GROUP_DELETED => self.handle_group_deleted(now, group.id),
            _ => {}
        }
    }

    /// Returns whether the interface is up; counts a dropped packet if not.
    pub(super) fn check_up(&mut self) -> bool {
        if !self.is_up() {
            self.drops.count(InterfaceDrop::Down);
        }
        self.is_up()
    }
}
