//! IP multicast membership, with IGMP and MLD (RFC 4391 10, RFC 3376, RFC 3810).
//!
//! Reception of a group requires that the interface joins the link's multicast group at the subnet
//! administrator as a full member. Multicast routers learn of the IP group by IGMP or MLD. The
//! interface joins at the first local join, and leaves at the last local leave. One group of the
//! link carries all IPv6 groups with the same lower 80 bits: the interface joins it once for all of
//! them, and filters received packets by [`InterfaceGroups::has_listener`].

mod message;
mod reporter;
#[cfg(test)]
mod tests;

use crate::frame::NoLink;
use crate::output::{Output, output_methods};
use message::ReceivedMessage;
use pollux_verbs::reasons;
use pollux_verbs::rng::SeededRng;
use pollux_verbs::time::Time;
use pollux_wire::ip::mgid::GroupId;
use reporter::Reporter;
use std::collections::BTreeMap;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

/// One join and one leave of each group.
const EVENTS_MAX: usize = 2 * GROUPS_MAX;
pub const GROUPS_MAX: usize = 1024;
pub(crate) const ALL_SYSTEMS: Ipv4Addr = Ipv4Addr::new(224, 0, 0, 1);

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MembershipEvent {
    Join(GroupId),
    Leave(GroupId),
}

reasons! {
    pub enum MembershipDrop {
        Malformed = "malformed",
        Checksum = "checksum",
        BadAddress = "bad_address",
        NoRouterAlert = "no_router_alert",
        NotForHosts = "not_for_hosts",
        Full = "full",
    }
}

pub struct InterfaceGroups {
    rng: SeededRng,
    /// The number of local listeners of each group.
    listeners: BTreeMap<IpAddr, usize>,
    /// The number of IP groups that each group of the link carries.
    link_groups: BTreeMap<GroupId, usize>,
    igmp: Reporter,
    mld: Reporter,
    v4_source: Ipv4Addr,
    v6_source: Ipv6Addr,
    output: Output<NoLink, MembershipEvent, MembershipDrop>,
}

impl InterfaceGroups {
    pub fn new(seed: u64) -> Self {
        Self {
            rng: SeededRng::secret(seed),
            listeners: BTreeMap::new(),
            link_groups: BTreeMap::new(),
            igmp: Reporter::new(),
            mld: Reporter::new(),
            v4_source: Ipv4Addr::UNSPECIFIED,
            v6_source: Ipv6Addr::UNSPECIFIED,
            output: Output::new(EVENTS_MAX),
        }
    }

    /// Sets the source addresses of reports: for IPv6 a link-local one or the unspecified one.
    pub const fn set_sources(&mut self, v4: Ipv4Addr, v6: Ipv6Addr) {
        (self.v4_source, self.v6_source) = (v4, v6);
    }

    /// Adds a local listener to a group. Returns `false` if the address is not a group, or if there
    /// are already [`GROUPS_MAX`] groups.
    pub fn join(&mut self, now: Time, group: IpAddr) -> bool {
        let Some(id) = GroupId::of(group).filter(|id| *id != GroupId::Broadcast) else {
            return false;
        };
        if let Some(listeners) = self.listeners.get_mut(&group) {
            *listeners += 1;
            return true;
        }
        if self.listeners.len() >= GROUPS_MAX {
            self.output.count(MembershipDrop::Full);
            return false;
        }
        self.listeners.insert(group, 1);
        let carried = self.link_groups.entry(id).or_default();
        *carried += 1;
        if *carried == 1 {
            self.output.report(MembershipEvent::Join(id));
        }
        if is_reported(group) {
            self.reporter(group).set(now, group, true);
        }
        true
    }

    pub fn leave(&mut self, now: Time, group: IpAddr) {
        let Some(listeners) = self.listeners.get_mut(&group) else { return };
        *listeners -= 1;
        if *listeners > 0 {
            return;
        }
        self.listeners.remove(&group);
        if is_reported(group) {
            self.reporter(group).set(now, group, false);
        }
        let Some(id) = GroupId::of(group) else { return };
        let Some(carried) = self.link_groups.get_mut(&id) else { return };
        *carried -= 1;
        if *carried == 0 {
            self.link_groups.remove(&id);
            self.output.report(MembershipEvent::Leave(id));
        }
    }

    pub fn has_listener(&self, group: IpAddr) -> bool {
        self.listeners.contains_key(&group)
    }

    /// The joined groups of the link and the number of IP groups that each carries.
    pub fn link_groups(&self) -> impl Iterator<Item = (GroupId, usize)> {
        self.link_groups.iter().map(|(&id, &carried)| (id, carried))
    }

    pub fn handle_igmp(&mut self, now: Time, bytes: &[u8]) {
        match message::read_igmp(bytes) {
            Ok(ReceivedMessage::Query(query)) => self.igmp.handle_query(now, query, &mut self.rng),
            Ok(ReceivedMessage::Report(group)) => self.igmp.handle_report(now, group),
            Err(reason) => self.output.count(reason),
        }
    }

    pub fn handle_mld(&mut self, now: Time, bytes: &[u8]) {
        match message::read_mld(bytes) {
            Ok(ReceivedMessage::Query(query)) => self.mld.handle_query(now, query, &mut self.rng),
            Ok(ReceivedMessage::Report(group)) => self.mld.handle_report(now, group),
            Err(reason) => self.output.count(reason),
        }
    }

    pub fn handle_timeout(&mut self, now: Time) {
        let Self { rng, igmp, mld, output, v4_source, v6_source, .. } = self;
        if igmp.due().is_some_and(|due| due <= now) {
            for report in igmp.next(now, rng) {
                message::write_igmp(*v4_source, &report).into_iter().for_each(|it| output.send(it));
            }
        }
        if mld.due().is_some_and(|due| due <= now) {
            for report in mld.next(now, rng) {
                message::write_mld(*v6_source, &report).into_iter().for_each(|it| output.send(it));
            }
        }
    }

    pub fn poll_timeout(&self) -> Option<Time> {
        self.igmp.due().into_iter().chain(self.mld.due()).min()
    }

    output_methods!(NoLink, MembershipEvent, MembershipDrop);

    const fn reporter(&mut self, group: IpAddr) -> &mut Reporter {
        if group.is_ipv4() { &mut self.igmp } else { &mut self.mld }
    }
}

/// Whether a group is reported to routers: not the all-systems and all-nodes groups, and not those
/// of node-local scope (RFC 3376 5, RFC 3810 6).
fn is_reported(group: IpAddr) -> bool {
    match group {
        IpAddr::V4(group) => group != ALL_SYSTEMS,
        IpAddr::V6(group) => group != crate::nd::ALL_NODES && group.octets()[1] & 0x0f > 1,
    }
}
