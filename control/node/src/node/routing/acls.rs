//! The access control lists of a node, compiled for its workers, with their counters.
//!
//! A list whose rules stay the same keeps its counters when the configuration changes.

use crate::admin::rows::AclStatus;
use crate::config::{AclSettings, NodeConfig};
use pollux_dataplane::acl::{Acl, AclRule};
use std::collections::BTreeMap;
use std::sync::Arc;

pub(super) struct Acls {
    all: BTreeMap<String, (Vec<AclSettings>, Arc<Acl>)>,
    workers: usize,
}

impl Acls {
    pub(super) const fn new(workers: usize) -> Self {
        Self { all: BTreeMap::new(), workers }
    }

    /// Compiles the lists of a configuration that are new or have other rules. Returns whether any
    /// list has changed.
    pub(super) fn update(&mut self, config: &NodeConfig) -> bool {
        let Self { all, workers } = self;
        let before = all.len();
        all.retain(|name, (rules, _)| config.acls.get(name).is_some_and(|new| new == rules));
        let mut has_changed = all.len() != before;
        for (name, settings) in &config.acls {
            if !all.contains_key(name) {
                let rules: Vec<AclRule> = settings.iter().map(AclSettings::rule).collect();
                let acl = Arc::new(Acl::new(&rules, *workers));
                all.insert(name.clone(), (settings.clone(), acl));
                has_changed = true;
            }
        }
        has_changed
    }

    pub(super) fn find(&self, name: Option<&String>) -> Option<Arc<Acl>> {
        self.all.get(name?).map(|(_, acl)| Arc::clone(acl))
    }

    pub(super) fn rows(&self) -> Vec<AclStatus> {
        let of_list = |(name, (rules, acl)): (&String, &(Vec<AclSettings>, Arc<Acl>))| {
            let rows = rules.iter().zip(acl.packets()).zip(1..);
            let row = |((settings, packets), rule): ((&AclSettings, u64), usize)| AclStatus {
                acl: name.clone(),
                rule,
                action: settings.action.to_string(),
                packets,
                matches: settings.to_string(),
            };
            rows.map(row).collect::<Vec<_>>()
        };
        self.all.iter().flat_map(of_list).collect()
    }
}
