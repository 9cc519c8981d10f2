//! The routes of the kernel that a node follows, and changes that routing has not taken yet.

use super::attempt::Attempt;
use crate::admin::rows::KernelStatus;
use crate::kernel::route_watch::{KernelRouteWatch, NOTIFICATION_BYTES};
use crate::node::notice::NodeNotice;
use pollux_control::router::kernel_routes::{
    KernelRoute, KernelRouteChange, KernelRouteKey, KernelRoutes, KernelRoutesConfig,
};
use pollux_verbs::time::Time;
use pollux_wire::netlink::route::RouteProtocol;
use std::collections::{BTreeMap, BTreeSet};

/// The mirror of the kernel's routes.
pub(in crate::node) struct Followed {
    config: KernelRoutesConfig,
    state: Attempt<KernelRouteWatch>,
    /// Changes that routing has not taken yet.
    update: KernelUpdate,
    /// Whether the mirror was opened again and has not been read completely. Until then, routing
    /// keeps its present routes.
    is_new: bool,
}

#[derive(Debug)]
pub(in crate::node) enum KernelUpdate {
    Changes(Vec<KernelRouteChange>),
    /// All routes, which replace the earlier ones.
    All(BTreeMap<KernelRouteKey, KernelRoute>),
}

impl Followed {
    pub(super) fn new() -> Self {
        Self {
            config: KernelRoutesConfig::default(),
            state: Attempt::Pending { at: Time::START, is_reported: false },
            update: KernelUpdate::default(),
            is_new: false,
        }
    }

    pub(super) const fn watch(&self) -> Option<&KernelRouteWatch> {
        self.state.running()
    }

    pub(in crate::node) fn take_update(&mut self) -> KernelUpdate {
        std::mem::take(&mut self.update)
    }

    /// A row for each table.
    pub(in crate::node) fn status(&self) -> Vec<KernelStatus> {
        let routes = self.state.running().map(KernelRouteWatch::routes);
        let counters = routes.map(KernelRoutes::counters).unwrap_or_default();
        let state = match routes {
            None => "closed",
            Some(routes) if routes.is_synchronized() => "following",
            Some(_) => "reading",
        };
        let mut used = BTreeMap::new();
        for (key, route) in routes.into_iter().flat_map(KernelRoutes::routes) {
            let is_used = route.protocol != RouteProtocol::KERNEL;
            *used.entry(key.table).or_insert(0) += usize::from(is_used);
        }
        let row = |&table: &u32| KernelStatus {
            table,
            state: state.into(),
            routes: used.get(&table).copied().unwrap_or(0),
            messages: counters.messages,
            malformed: counters.malformed,
            overruns: counters.overruns,
            dumps: counters.dumps,
            dumps_interrupted: counters.dumps_interrupted,
            dumps_failed: counters.dumps_failed,
            unsupported: counters.routes_unsupported,
        };
        self.config.domains.keys().map(row).collect()
    }

    /// Names of links that were set up since the last call.
    pub(super) fn take_links_up(&mut self) -> BTreeSet<String> {
        match &mut self.state {
            Attempt::Running(watch) => watch.take_links_up(),
            Attempt::Pending { .. } => BTreeSet::new(),
        }
    }

    pub(super) fn poll_timeout(&self) -> Option<Time> {
        match &self.state {
            _ if self.config.domains.is_empty() => None,
            Attempt::Running(watch) => watch.poll_timeout(),
            Attempt::Pending { at, .. } => Some(*at),
        }
    }

    /// Follows the tables of `config`; `None` stops that.
    pub(super) fn update(
        &mut self,
        now: Time,
        config: Option<KernelRoutesConfig>,
        say: &mut impl FnMut(&NodeNotice),
    ) {
        let Some(config) = config else {
            if !self.config.domains.is_empty() {
                self.config = KernelRoutesConfig::default();
                self.state = Attempt::Pending { at: now, is_reported: false };
                self.update = KernelUpdate::All(BTreeMap::new());
            }
            return;
        };
        let is_other = self.config != config;
        self.config = config;
        let config = &self.config;
        let what = || "the routes of the kernel".into();
        let is_new = &mut self.is_new;
        let open = || {
            *is_new = true;
            KernelRouteWatch::open(config.clone(), NOTIFICATION_BYTES)
        };
        if let Some(watch) = self.state.open(now, what, say, open)
            && is_other
        {
            watch.set_config(config.clone(), now);
        }
    }

    pub(super) fn step(&mut self, now: Time) -> bool {
        let Attempt::Running(watch) = &mut self.state else { return false };
        match watch.turn(now) {
            Ok(turn) if !self.is_new => {
                self.update.add(turn.changes);
                turn.more
            }
            Ok(turn) => {
                if !turn.changes.is_empty() || watch.routes().is_synchronized() {
                    let all = watch.routes().routes();
                    let all = all.map(|(key, route)| (*key, route.clone())).collect();
                    self.update = KernelUpdate::All(all);
                    self.is_new = false;
                }
                turn.more
            }
            Err(_) => {
                self.state = Attempt::Pending { at: now, is_reported: true };
                true
            }
        }
    }
}

impl KernelUpdate {
    fn add(&mut self, changes: Vec<KernelRouteChange>) {
        match self {
            Self::Changes(all) if all.is_empty() => *all = changes,
            Self::Changes(all) => all.extend(changes),
            Self::All(all) => changes.into_iter().for_each(|change| match change {
                KernelRouteChange::Set(key, route) => _ = all.insert(key, route),
                KernelRouteChange::Remove(key) => _ = all.remove(&key),
            }),
        }
    }
}

impl Default for KernelUpdate {
    fn default() -> Self {
        Self::Changes(Vec::new())
    }
}
