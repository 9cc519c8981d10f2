//! Memberships of sockets in multicast groups, for any source or for certain sources (RFC 4607).
//!
//! A datagram to a group is delivered to every member that is bound to the destination port and
//! accepts the sender as a source.

use super::{Udp, UdpId, UdpState};
use crate::stack::{Stack, StackCounts, UdpError};
use std::collections::BTreeSet;
use std::net::{IpAddr, SocketAddr};

/// Maximum number of sources of one membership (on Linux, 10 for IPv4 and 64 for IPv6 by default).
const SOURCES_MAX: usize = 64;

/// The senders whose datagrams a member gets.
pub(super) enum GroupSources {
    Any,
    Only(BTreeSet<IpAddr>),
}

impl GroupSources {
    fn contains(&self, source: IpAddr) -> bool {
        match self {
            Self::Any => true,
            Self::Only(sources) => sources.contains(&source),
        }
    }
}

impl UdpState {
    fn hears(&self, group: IpAddr, source: IpAddr) -> bool {
        let is_bound_to_it = !self.local.ip().is_multicast() || self.local.ip() == group;
        is_bound_to_it && self.groups.get(&group).is_some_and(|sources| sources.contains(source))
    }
}

impl Udp {
    pub(super) fn deliver_to_group(
        &mut self,
        from: SocketAddr,
        to: SocketAddr,
        payload: &[u8],
        counts: &mut StackCounts,
    ) {
        for index in 0..self.joined.get(&to).map_or(0, Vec::len) {
            let id = self.joined[&to][index];
            if self.sockets.get(id).is_some_and(|socket| socket.hears(to.ip(), from.ip())) {
                self.deliver(id, from, to.ip(), payload, counts);
            }
        }
    }

    /// The socket, if it has the address family of the group.
    fn member(&mut self, id: UdpId, group: IpAddr) -> Result<&mut UdpState, UdpError> {
        let socket = self.sockets.get_mut(id).ok_or(UdpError::Closed)?;
        match group.is_multicast() && group.is_ipv4() == socket.local.is_ipv4() {
            true => Ok(socket),
            false => Err(UdpError::BadAddress),
        }
    }
}

impl Stack {
    /// Joins a group for all sources; returns whether the socket was not a member before. If so,
    /// the caller joins the group on the link.
    pub fn udp_join(&mut self, id: UdpId, group: IpAddr) -> Result<bool, UdpError> {
        let socket = self.udp.member(id, group)?;
        let is_new = socket.groups.insert(group, GroupSources::Any).is_none();
        let port = socket.local.port();
        if is_new {
            self.udp.joined.entry(SocketAddr::new(group, port)).or_default().push(id);
        }
        Ok(is_new)
    }

    /// Joins a group for the datagrams of one source, in addition to the sources of earlier calls.
    /// Returns whether the socket was not a member before, as [`Stack::udp_join`] does.
    pub fn udp_join_source(
        &mut self,
        id: UdpId,
        group: IpAddr,
        source: IpAddr,
    ) -> Result<bool, UdpError> {
        let socket = self.udp.member(id, group)?;
        if source.is_multicast() || source.is_unspecified() || source.is_ipv4() != group.is_ipv4() {
            return Err(UdpError::BadAddress);
        }
        match socket.groups.get_mut(&group) {
            // A member for all sources has to leave the group first, as on Linux.
            Some(GroupSources::Any) => return Err(UdpError::BadAddress),
            Some(GroupSources::Only(sources)) if sources.len() >= SOURCES_MAX => {
                return Err(UdpError::Full);
            }
            Some(GroupSources::Only(sources)) => {
                sources.insert(source);
                return Ok(false);
            }
            None => {}
        }
        let is_new = self.udp_join(id, group)?;
        let sources = GroupSources::Only(BTreeSet::from([source]));
        self.udp.member(id, group)?.groups.insert(group, sources);
        Ok(is_new)
    }

    /// Removes one source of a membership. If it was the last one, the socket leaves the group, and
    /// the call returns `true`.
    pub fn udp_leave_source(
        &mut self,
        id: UdpId,
        group: IpAddr,
        source: IpAddr,
    ) -> Result<bool, UdpError> {
        let Some(GroupSources::Only(sources)) = self.udp.member(id, group)?.groups.get_mut(&group)
        else {
            return Err(UdpError::BadAddress);
        };
        if !sources.remove(&source) {
            return Err(UdpError::BadAddress);
        }
        Ok(sources.is_empty() && self.udp_leave(id, group))
    }

    /// Leaves a group; returns whether the socket was a member.
    pub fn udp_leave(&mut self, id: UdpId, group: IpAddr) -> bool {
        let Some(socket) = self.udp.sockets.get_mut(id) else { return false };
        let was_member = socket.groups.remove(&group).is_some();
        let address = SocketAddr::new(group, socket.local.port());
        if let Some(members) = self.udp.joined.get_mut(&address) {
            members.retain(|member| *member != id);
            if members.is_empty() {
                self.udp.joined.remove(&address);
            }
        }
        was_member
    }

    /// The joined groups.
    pub fn udp_groups(&self, id: UdpId) -> Vec<IpAddr> {
        let socket = self.udp.sockets.get(id);
        socket.map_or(Vec::new(), |socket| socket.groups.keys().copied().collect())
    }

    /// Whether multicast datagrams of a socket are looped back: its loop option is on, and the
    /// group has members at the destination port. If the port belongs to another worker, its
    /// members are unknown, and `has_listeners` decides: whether the group has any member.
    pub(crate) fn udp_loops(&self, id: UdpId, to: SocketAddr, has_listeners: bool) -> bool {
        let loops = self.udp.sockets.get(id).is_some_and(|socket| socket.options.multicast_loop);
        loops
            && match self.shard.has_port(to.port()) {
                true => self.udp.joined.contains_key(&to),
                false => has_listeners,
            }
    }
}
