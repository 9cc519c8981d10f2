//! Our own addresses. They are probed for duplicates when the interface comes up, and passed to the
//! data path once assigned (RFC 4862 5.4, RFC 5227).
//!
//! Addresses belong to the node: a packet for an address of another interface of the node is ours
//! too (the weak host model of RFC 1122 3.3.4.2, as in Linux). Link-local IPv6 addresses are an
//! exception, because they are valid on their own link only (RFC 4007 9).
//!
//! ARP and neighbor discovery answer for the addresses of their own interface only. RFC 4861 7.2.3
//! requires this of neighbor discovery. Linux's ARP answers for all addresses by default; with
//! `arp_ignore` 1 it behaves like ours. Why: two interfaces on one partition would both answer, and
//! peers would get the link address of either. A peer reaches an address of another interface
//! by a route through an address of this interface.

use super::{Action, InterfaceDrop, IpoibInterface};
use crate::address::{
    Address, AddressEvent, AddressState, InterfaceId, Lifetimes, Origin, subnet_broadcast,
};
use crate::arp::Probes;
use crate::membership::ALL_SYSTEMS;
use crate::nd::{ALL_NODES, solicited_node};
use pollux_verbs::time::Time;
use pollux_wire::ip::mgid::GroupId;
use std::collections::BTreeSet;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::sync::Arc;

impl IpoibInterface {
    /// Applies the configuration, before the port is known.
    pub(super) fn configure(&mut self, now: Time) {
        self.membership.join(now, ALL_SYSTEMS.into());
        if self.config.ipv6 {
            self.membership.join(now, ALL_NODES.into());
        }
        for (ip, len) in self.config.addresses.clone() {
            self.addresses.add(now, ip, len, Origin::Configured, Lifetimes::default());
        }
        self.set_prefixes();
        for ip in self.config.routers.clone() {
            self.routes.add_router(ip);
        }
    }

    /// Adds a configured address. Returns `false` if there are too many addresses or subnets.
    pub fn add_address(&mut self, now: Time, ip: IpAddr, prefix_len: u8) -> bool {
        let origin = Origin::Configured;
        let is_added = self.addresses.add(now, ip, prefix_len, origin, Lifetimes::default())
            && self.set_prefixes();
        self.pump(now);
        is_added
    }

    /// Removes an address of ours; its subnet stays on the link if another address is in it.
    pub fn remove_address(&mut self, now: Time, ip: IpAddr) {
        self.addresses.remove(ip);
        self.set_prefixes();
        self.pump(now);
    }

    /// Our assigned addresses at which packets may also arrive by other interfaces of the node.
    pub fn addresses_for_node(&self) -> impl Iterator<Item = IpAddr> {
        let is_link_local = |ip| matches!(ip, IpAddr::V6(ip) if ip.is_unicast_link_local());
        self.assigned().map(|(ip, _)| ip).filter(move |ip| !is_link_local(*ip))
    }

    /// The addresses that packets may be sent from, with their prefix lengths.
    pub fn assigned(&self) -> impl Iterator<Item = (IpAddr, u8)> {
        let all = self.addresses.iter().filter(|one| one.state.may_be_source());
        all.map(|one| (one.ip, one.prefix_len))
    }

    /// The subnets of configured addresses and of a lease, each as an address with its prefix
    /// length.
    pub fn subnets(&self) -> impl Iterator<Item = (IpAddr, u8)> {
        let configured = self.addresses.iter().filter(|one| one.origin == Origin::Configured);
        let leased = self.lease.iter().map(|lease| (IpAddr::V4(lease.ip), lease.prefix_len));
        configured.map(|one| (one.ip, one.prefix_len)).chain(leased)
    }

    /// Sets the addresses of all interfaces of the node. Returns `false` if it is the same set as
    /// before.
    pub fn set_node_addresses(&mut self, all: &Arc<BTreeSet<IpAddr>>) -> bool {
        if Arc::ptr_eq(self.addresses.of_node(), all) {
            return false;
        }
        let former = self.addresses.set_of_node(Arc::clone(all));
        let added = all.difference(&former).map(|&ip| Action::AddOwn(ip));
        let removed = former.difference(all).filter(|ip| !self.owned.contains_key(ip));
        self.actions.extend(added.chain(removed.map(|&ip| Action::RemoveOwn(ip))));
        true
    }

    /// Makes the subnets of configured addresses and of a lease on-link; other prefixes come from
    /// router advertisements. Returns `false` if there are too many.
    pub(super) fn set_prefixes(&mut self) -> bool {
        let subnets: Vec<_> = self.subnets().collect();
        self.routes.set_own(subnets.into_iter())
    }

    /// Claims all addresses when the interface has come up.
    pub(super) fn claim_addresses(&mut self, now: Time) {
        let link = self.link_address();
        self.arp.set_link_address(link);
        self.nd.set_link_address(link);
        for (ip, link) in self.config.neighbors.clone() {
            self.neighbors.set_permanent(now, ip, link);
        }
        if self.config.ipv6 {
            let local = self.interface_id().link_local().into();
            self.addresses.add(now, local, 64, Origin::LinkLocal, Lifetimes::default());
        }
        self.own_groups();
        let all: Vec<_> = self.addresses.iter().copied().collect();
        for address in all {
            match (address.state, address.ip) {
                (AddressState::Duplicate, IpAddr::V4(ip)) => self.arp.retry(now, ip),
                (AddressState::Duplicate, IpAddr::V6(_)) => {}
                (_, ip) => self.claim(now, ip),
            }
        }
        if self.config.ipv6 {
            self.nd.solicit_routers(now);
        }
        self.ask_for_lease(now);
    }

    /// Ends probes, announcements and answers for all addresses when the interface goes down.
    pub(super) fn give_up_addresses(&mut self) {
        for ip in self.addresses.iter().map(|address| address.ip).collect::<Vec<_>>() {
            self.disown(ip);
        }
        self.disown_groups();
    }

    pub(super) fn interface_id(&self) -> InterfaceId {
        InterfaceId::of_port(self.link_address().gid.guid())
    }

    pub(super) fn handle_address_events(&mut self, now: Time) -> bool {
        let mut has_progress = false;
        while let Some(event) = self.addresses.poll_event() {
            has_progress = true;
            match event {
                AddressEvent::Tentative(ip) if self.is_up() => self.claim(now, ip),
                AddressEvent::Tentative(_) => {}
                AddressEvent::Preferred(ip) | AddressEvent::Deprecated(ip) => {
                    self.own(ip);
                    self.lease_is_free(now, ip);
                }
                AddressEvent::Duplicate(ip) => {
                    self.disown(ip);
                    // A lease is declined. An IPv6 address stays unused (RFC 4862 5.4.5).
                    match ip {
                        IpAddr::V4(ip) if !self.is_leased(ip.into()) => self.arp.retry(now, ip),
                        _ => self.lease_is_taken(now, ip),
                    }
                }
                AddressEvent::Removed(ip) => {
                    self.disown(ip);
                    self.leave_solicited_node(now, ip);
                }
            }
        }
        has_progress
    }

    /// Probes an address for duplicates. An IPv4 address that was ours before the interface went
    /// down is announced at once instead; a lease among these is confirmed by its server.
    fn claim(&mut self, now: Time, ip: IpAddr) {
        let probes = match self.is_leased(ip) {
            _ if self.addresses.is_ours(ip) => Probes::None,
            true => Probes::Full,
            false => Probes::Brief,
        };
        let is_taken = match ip {
            IpAddr::V4(ip) => self.arp.add(now, ip, probes),
            IpAddr::V6(ip) => {
                let group = IpAddr::V6(solicited_node(ip));
                if !self.membership.has_listener(group) {
                    self.membership.join(now, group);
                }
                self.detect(now, ip)
            }
        };
        if !is_taken {
            self.drops.count(InterfaceDrop::AddressesFull);
        }
        // There is no event for an address that was ours before the interface went down.
        if self.addresses.is_ours(ip) {
            self.own(ip);
        }
    }

    /// Starts duplicate address detection for an address, once its solicited-node group is joined
    /// (RFC 4862 5.4.2). Returns `false` if there are too many addresses.
    fn detect(&mut self, now: Time, ip: Ipv6Addr) -> bool {
        let group = GroupId::of(solicited_node(ip).into());
        let is_joined = group.is_some_and(|id| self.is_full_member(id));
        if is_joined {
            return self.probe(now, ip);
        }
        self.undetected.insert(ip);
        true
    }

    /// Starts the detections that waited for a group, when it is joined.
    pub(super) fn detect_waiting(&mut self, now: Time, id: GroupId) {
        let is_of = |ip: &&Ipv6Addr| GroupId::of(solicited_node(**ip).into()) == Some(id);
        for ip in self.undetected.iter().filter(is_of).copied().collect::<Vec<_>>() {
            self.undetected.remove(&ip);
            if !self.probe(now, ip) {
                self.drops.count(InterfaceDrop::AddressesFull);
            }
        }
    }

    fn probe(&mut self, now: Time, ip: Ipv6Addr) -> bool {
        let is_configured = |one: &Address| one.ip == ip && one.origin == Origin::Configured;
        let is_brief = self.addresses.iter().any(is_configured);
        self.nd.add(now, ip, is_brief)
    }

    fn own(&mut self, ip: IpAddr) {
        let known = self.addresses.iter().find(|address| address.ip == ip);
        let Some(len) = known.map(|address| address.prefix_len) else { return };
        if self.is_up() && self.owned.insert(ip, len).is_none() {
            self.actions.push_back(Action::AddOwn(ip));
            if let Some(all) = self.broadcast_of(ip)
                && let Some(group) = self.groups.get(&GroupId::Broadcast)
            {
                self.actions.push_back(Action::Bind { ip: all, peer: group.peer });
            }
        }
        self.set_sources();
    }

    fn disown(&mut self, ip: IpAddr) {
        match ip {
            IpAddr::V4(ip) => self.arp.remove(ip),
            IpAddr::V6(ip) => {
                self.undetected.remove(&ip);
                self.nd.remove(ip);
            }
        }
        let all = self.broadcast_of(ip);
        if self.owned.remove(&ip).is_some() {
            if !self.addresses.of_node().contains(&ip) {
                self.actions.push_back(Action::RemoveOwn(ip));
            }
            let is_shared = self.owned.keys().any(|&other| self.broadcast_of(other) == all);
            if let Some(ip) = all.filter(|_| !is_shared) {
                self.actions.push_back(Action::Unbind { ip });
            }
        }
        self.set_sources();
    }

    /// The broadcast address of the subnet of an address of ours.
    fn broadcast_of(&self, ip: IpAddr) -> Option<IpAddr> {
        let IpAddr::V4(own) = ip else { return None };
        let prefix_len = self.owned.get(&ip)?;
        subnet_broadcast(own, *prefix_len).map(IpAddr::V4)
    }

    /// Leaves the solicited-node group of an address, unless another address uses it: addresses
    /// with the same last 24 bits share the group.
    fn leave_solicited_node(&mut self, now: Time, ip: IpAddr) {
        let group_of = |ip| match ip {
            IpAddr::V4(_) => None,
            IpAddr::V6(ip) => Some(solicited_node(ip)),
        };
        let Some(group) = group_of(ip) else { return };
        if self.addresses.iter().all(|other| group_of(other.ip) != Some(group)) {
            self.membership.leave(now, group.into());
        }
    }

    fn set_sources(&mut self) {
        let v4 = self.owned.keys().find_map(|ip| match ip {
            IpAddr::V4(ip) => Some(*ip),
            IpAddr::V6(_) => None,
        });
        let v6 = self.addresses.link_local();
        self.membership
            .set_sources(v4.unwrap_or(Ipv4Addr::UNSPECIFIED), v6.unwrap_or(Ipv6Addr::UNSPECIFIED));
    }
}
