//! Multicast routes: the tables that workers read, and the groups that interfaces join for them.
//!
//! An interface where packets to a group arrive is a full member of the group, since the link
//! delivers packets only to members (RFC 4391 5, 10). An interface where packets leave joins as a
//! send-only member when the first packet leaves.

use super::super::opening::{ConfiguredInterface, Interfaces};
use super::input::{Domain, Input, Link};
use crate::admin::rows::MulticastStatus;
use crate::config::{MulticastSettings, NodeConfig};
use pollux_dataplane::forward::{MulticastHop, MulticastRoute, MulticastTable};
use pollux_dataplane::port::PortId;
use pollux_verbs::time::Time;
use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::sync::Arc;

#[derive(Default)]
pub(super) struct Multicast {
    configured: Vec<MulticastSettings>,
    /// The interfaces for which tables and groups were made: name, port and domain name.
    links: Vec<(String, PortId, String)>,
    forwards: bool,
    tables: Arc<[MulticastTable]>,
    /// For each interface, the groups whose packets arrive there.
    groups: BTreeMap<String, Arc<BTreeSet<IpAddr>>>,
}

impl Multicast {
    /// Rebuilds the tables and groups if their input has changed. Returns whether it has.
    pub(super) fn update(&mut self, config: &NodeConfig, input: &Input) -> bool {
        let is_same_link = |((name, port, domain), link): (&(String, PortId, String), &Link)| {
            (name, *port) == (&link.name, link.port) && domain == input.domain_name(link.domain)
        };
        let is_same = self.configured == config.multicast
            && self.forwards == input.forwards
            && self.tables.len() == input.domains.len()
            && self.links.len() == input.links.len()
            && self.links.iter().zip(&input.links).all(is_same_link);
        if is_same {
            return false;
        }
        self.configured.clone_from(&config.multicast);
        self.forwards = input.forwards;
        let link =
            |link: &Link| (link.name.clone(), link.port, input.domain_name(link.domain).into());
        self.links = input.links.iter().map(link).collect();
        let table = |domain: &Domain| {
            let from_there = self.configured.iter().filter_map(|one| self.route(&domain.name, one));
            MulticastTable::new(from_there)
        };
        self.tables = input.domains.iter().map(table).collect();
        let mut groups = BTreeMap::<_, BTreeSet<_>>::new();
        for one in self.configured.iter().filter(|_| self.forwards) {
            groups.entry(one.from.clone()).or_default().insert(one.group);
        }
        // Unchanged groups keep their reference, which is all that interfaces then compare.
        let before = std::mem::take(&mut self.groups);
        let keep = |(name, groups): (String, BTreeSet<IpAddr>)| {
            let same = before.get(&name).filter(|before| ***before == groups).cloned();
            (name, same.unwrap_or_else(|| Arc::new(groups)))
        };
        self.groups = groups.into_iter().map(keep).collect();
        true
    }

    /// A configured route in the form of the tables, if it is in this domain.
    fn route(&self, domain: &str, one: &MulticastSettings) -> Option<MulticastRoute> {
        let MulticastSettings { group, source, ref from, ref to, ttl_threshold } = *one;
        let port = |wanted: &str| {
            let link = self.links.iter().find(|(name, _, of)| name == wanted && of == domain);
            link.map(|(_, port, _)| *port)
        };
        let hop = |name: &String| Some(MulticastHop { port: port(name)?, ttl_threshold });
        let to = to.iter().filter_map(hop).collect();
        Some(MulticastRoute { group, source, from: port(from)?, to })
    }

    pub(super) fn tables(&self) -> Arc<[MulticastTable]> {
        Arc::clone(&self.tables)
    }

    /// Makes interfaces join the groups whose packets arrive there, and leave others.
    pub(super) fn join_groups(&self, now: Time, interfaces: &mut Interfaces) {
        let none = Arc::default();
        for (name, named) in &mut interfaces.all {
            let Some(interface) = ConfiguredInterface::ipoib_mut(named) else { continue };
            match self.groups.get(name) {
                Some(groups) => interface.set_forwarded_groups(now, groups),
                None if interface.control().has_forwarded_groups() => {
                    interface.set_forwarded_groups(now, &none);
                }
                None => {}
            }
        }
    }

    pub(super) fn rows(&self, input: &Input) -> Vec<MulticastStatus> {
        let row = |one: &MulticastSettings| MulticastStatus {
            domain: self.domain_of(&one.from, input),
            group: one.group,
            source: one.source,
            from: one.from.clone(),
            to: one.to.clone(),
            ttl_threshold: one.ttl_threshold,
        };
        self.configured.iter().map(row).collect()
    }

    /// The name of the domain of an interface; empty once the interface is gone.
    fn domain_of(&self, interface: &str, input: &Input) -> String {
        let link = input.links.iter().find(|link| link.name == interface);
        link.map_or_else(String::new, |link| input.domain_name(link.domain).into())
    }
}
