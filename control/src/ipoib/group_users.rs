//! The users of IP multicast groups at an interface: listeners of this host, and multicast routes
//! by which the node forwards packets that arrive here.
//!
//! Both make the interface a full member of the group, and report the group to multicast routers of
//! the link. Only packets to groups with listeners are delivered locally.

use super::{Action, IpoibInterface};
use crate::thread_check::assert_no_worker_thread;
use pollux_verbs::time::Time;
use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::sync::Arc;

#[derive(Default)]
pub(super) struct GroupUsers {
    /// The number of listeners of this host for each group.
    listeners: BTreeMap<IpAddr, usize>,
    /// Groups with listeners that the data path delivers locally; empty while the interface is
    /// down.
    local: BTreeSet<IpAddr>,
    /// Groups from which the node forwards packets that arrive here.
    forwarded: Arc<BTreeSet<IpAddr>>,
    /// The forwarded groups that are joined; beyond the limit of groups they are not.
    joined: BTreeSet<IpAddr>,
}

impl IpoibInterface {
    /// Joins a multicast group for a listener. Returns `false` if `group` is not a group, or if
    /// there are too many.
    pub fn join(&mut self, now: Time, group: IpAddr) -> bool {
        assert_no_worker_thread();
        let is_joined = self.membership.join(now, group);
        if is_joined {
            *self.group_users.listeners.entry(group).or_default() += 1;
            self.own_groups();
        }
        self.pump(now);
        is_joined
    }

    pub fn leave(&mut self, now: Time, group: IpAddr) {
        assert_no_worker_thread();
        let all = &mut self.group_users.listeners;
        let Some(listeners) = all.get_mut(&group) else { return };
        *listeners -= 1;
        if *listeners == 0 {
            all.remove(&group);
            if self.group_users.local.remove(&group) {
                self.actions.push_back(Action::RemoveOwn(group));
            }
        }
        self.membership.leave(now, group);
        self.pump(now);
    }

    pub(super) fn own_groups(&mut self) {
        if !self.is_up() {
            return;
        }
        let GroupUsers { listeners, local, .. } = &mut self.group_users;
        let added = listeners.keys().filter(|group| local.insert(**group));
        self.actions.extend(added.map(|group| Action::AddOwn(*group)));
    }

    /// Makes all groups non-local when the interface goes down.
    pub(super) fn disown_groups(&mut self) {
        let local = std::mem::take(&mut self.group_users.local);
        self.actions.extend(local.into_iter().map(Action::RemoveOwn));
    }

    /// Whether the node forwards multicast packets that arrive here.
    pub fn has_forwarded_groups(&self) -> bool {
        !self.group_users.forwarded.is_empty()
    }

    /// Joins the groups that the node forwards from here, and leaves the former ones. Returns
    /// whether the groups have changed.
    pub fn set_forwarded_groups(&mut self, now: Time, groups: &Arc<BTreeSet<IpAddr>>) -> bool {
        assert_no_worker_thread();
        if Arc::ptr_eq(&self.group_users.forwarded, groups) {
            return false;
        }
        self.group_users.forwarded = Arc::clone(groups);
        let joined = std::mem::take(&mut self.group_users.joined);
        for group in joined.difference(groups) {
            self.membership.leave(now, *group);
        }
        let is_member = |one: &mut Self, group: &IpAddr| {
            joined.contains(group) || one.membership.join(now, *group)
        };
        let members: BTreeSet<_> =
            groups.iter().filter(|group| is_member(self, group)).copied().collect();
        self.group_users.joined = members;
        self.pump(now);
        true
    }
}
