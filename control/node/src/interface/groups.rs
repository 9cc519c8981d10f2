//! Multicast groups of an interface: for sockets, and for packets that the node forwards.

use super::IpoibLink;
use pollux_verbs::time::Time;
use std::collections::BTreeSet;
use std::net::IpAddr;
use std::sync::Arc;

impl IpoibLink {
    /// Joins a group for a socket. `false` if it is no group, or there are too many.
    pub fn join_group(&mut self, now: Time, group: IpAddr) -> bool {
        let is_joined = self.control_mut().join(now, group);
        self.drain(now);
        is_joined
    }

    /// Leaves a group for a socket.
    pub fn leave_group(&mut self, now: Time, group: IpAddr) {
        self.control_mut().leave(now, group);
        self.drain(now);
    }

    /// Joins the groups whose packets the node forwards from here, and leaves others.
    pub(crate) fn set_forwarded_groups(&mut self, now: Time, groups: &Arc<BTreeSet<IpAddr>>) {
        if self.control.set_forwarded_groups(now, groups) {
            self.control_is_due = true;
            self.drain(now);
        }
    }
}
