//! A mirror of the kernel's routes by rtnetlink. Its output is changes for our own table.
//!
//! ```text
//!              poll_dump: links, addresses, nexthops, routes v4, v6
//!   +-------------------+   last Done    +------------+  handle_drained   +-----------+
//!   |      Dumping      |--------------->| CatchingUp |------------------>| Following |
//!   +-------------------+                +------------+   (publishes)     +-----------+
//!            ^  ^  dump interrupted: the         | overrun                       |
//!            |  |  same kind again               v                              |
//!            |  +--------------------------------+                              |
//!            +------------------------------------------------------------------+
//!       the timer: at once after an overrun, with a backoff if it happens again and again;
//!       200 ms after the last change of a link, loss of an address or of a nexthop object
//! ```
//!
//! Why dumps in addition to notifications: the kernel changes and deletes some routes without a
//! message. Carrier loss removes a nexthop object from its groups. The removal of the last IPv4
//! address of a link deletes the IPv4 routes through that link, and the removal of a nexthop group
//! deletes its routes. So nexthop objects are mirrored, and after each such cause all tables are
//! dumped again.
//!
//! Why notifications stay in the socket during a dump: a dump is not a snapshot. If a deletion were
//! applied before the dump reports the deleted route, the dump would restore the route.
//! Notifications are applied after the dump; all of them are idempotent.
//!
//! Why changes are published when the socket is drained and not for each message: daemons replace a
//! route by DELROUTE and NEWROUTE. Only the *net effect* of the messages is published, so there is
//! no gap. A caller that must stop before the socket is drained uses [`KernelRoutes::handle_busy`],
//! which publishes all changes except withdrawals.
//!
//! Why a deleted route stays for `WITHDRAWAL_DELAY`: the two messages of a replacement may be read
//! separately. A route is withdrawn at once if its links are down.
//!
//! After lost notifications (ENOBUFS), nothing is published until a dump has been read; the old
//! routes stay in use.

mod apply;
mod resolve;
mod table;

use pollux_verbs::time::Time;
use pollux_wire::netlink::request::DumpKind;
use pollux_wire::netlink::route::RouteProtocol;
use pollux_wire::netlink::{MessageFlags, NetlinkMessage, Payload};
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;
use table::{Changed, Tables};

/// The delay from the last cause of a dump to the dump: causes come in bursts.
const DUMP_DEBOUNCE: Duration = Duration::from_millis(200);
/// The longest delay from the first cause of a dump to the dump, even if more causes follow.
const DUMP_DELAY_MAX: Duration = Duration::from_secs(1);
/// The backoff between dumps after overruns: the first dump is at once, then the backoff doubles
/// from the minimum to the maximum.
const OVERRUN_BACKOFF_MIN: Duration = Duration::from_millis(100);
const OVERRUN_BACKOFF_MAX: Duration = Duration::from_secs(2);
/// After this time without an overrun, the next dump is at once again.
const OVERRUN_FORGET: Duration = Duration::from_secs(10);
/// The delay from a deletion to the withdrawal of the route: a daemon sends both messages of a
/// replacement in one system call.
const WITHDRAWAL_DELAY: Duration = Duration::from_millis(10);
/// How often an interrupted dump of one kind is repeated. Then its result is used, and a dump of
/// everything follows.
const DUMP_REPEATS_MAX: u32 = 5;

const EOPNOTSUPP: u32 = 95;

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct KernelRoutesConfig {
    /// Routing tables of the kernel, and the routing domain (VRF) that each fills.
    pub domains: BTreeMap<u32, u32>,
    /// Shadow netdevs in the kernel, and the interface that each stands for.
    pub interfaces: BTreeMap<String, String>,
    /// The interface to the kernel, for routes without a path through our interfaces. If there is
    /// none, such a route is unreachable. It is not left out, because packets would then match a
    /// wider route.
    pub kernel_port: Option<String>,
}

/// The key of a route. Candidate routes of one prefix differ in the metric.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct KernelRouteKey {
    pub domain: u32,
    pub table: u32,
    pub destination: IpAddr,
    pub prefix_len: u8,
    /// The route with the lowest metric is used.
    pub metric: u32,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct KernelRoute {
    pub protocol: RouteProtocol,
    pub target: KernelTarget,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum KernelTarget {
    Via(Vec<KernelHop>),
    Blackhole,
    Unreachable,
    Prohibit,
}

#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct KernelHop {
    pub interface: Arc<str>,
    /// The next hop, of either family; `None` if the destination is on the link.
    pub gateway: Option<IpAddr>,
    pub weight: u32,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum KernelRouteChange {
    Set(KernelRouteKey, KernelRoute),
    Remove(KernelRouteKey),
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct KernelRoutesCounters {
    pub messages: u64,
    pub malformed: u64,
    /// How often notifications were lost (ENOBUFS).
    pub overruns: u64,
    pub dumps: u64,
    pub dumps_interrupted: u64,
    /// Dumps that ended early, and were repeated.
    pub dumps_failed: u64,
    /// Unsupported routes of mirrored tables: with a TOS or source prefix, or of type throw.
    pub routes_unsupported: u64,
}

#[derive(Debug)]
enum Synchronization {
    Dumping(Dump),
    CatchingUp,
    Following,
}

#[derive(Debug, Default)]
struct Dump {
    /// Index into [`DumpKind::ALL`].
    kind: usize,
    asked: bool,
    interrupted: bool,
    repeats: u32,
    fresh: Tables,
}

#[derive(Clone, Copy, Debug)]
struct DumpTimer {
    at: Time,
    at_most: Time,
}

#[derive(Debug)]
pub struct KernelRoutes {
    config: KernelRoutesConfig,
    synchronization: Synchronization,
    timer: Option<DumpTimer>,
    /// Notifications were lost, and no dump has begun since, so nothing is published.
    lossy: bool,
    overrun_backoff: Duration,
    overrun_at: Option<Time>,
    tables: Tables,
    changed: Changed,
    /// Links that went down since the last dump. They are not used before the next dump, because
    /// the kernel may have deleted routes through them without a message.
    links_were_down: BTreeSet<u32>,
    published: BTreeMap<KernelRouteKey, KernelRoute>,
    /// Deleted routes, in the order in which they are withdrawn.
    deleted: VecDeque<(Time, KernelRouteKey)>,
    names: BTreeMap<String, Arc<str>>,
    counters: KernelRoutesCounters,
}

impl KernelRoutes {
    pub fn new(config: KernelRoutesConfig) -> Self {
        let mut routes = Self {
            config: KernelRoutesConfig::default(),
            synchronization: Synchronization::Dumping(Dump::default()),
            timer: None,
            lossy: false,
            overrun_backoff: Duration::ZERO,
            overrun_at: None,
            tables: Tables::default(),
            changed: Changed::default(),
            links_were_down: BTreeSet::new(),
            published: BTreeMap::new(),
            deleted: VecDeque::new(),
            names: BTreeMap::new(),
            counters: KernelRoutesCounters::default(),
        };
        routes.set_config(config, Time::START);
        routes
    }

    /// Sets another configuration. If the mirrored tables change, all tables are dumped again.
    pub fn set_config(&mut self, config: KernelRoutesConfig, now: Time) {
        let names = config.interfaces.values().chain(&config.kernel_port);
        self.names = names.map(|name| (name.clone(), Arc::from(name.as_str()))).collect();
        if self.config.domains != config.domains {
            self.withdraw_tables(&config);
            self.dump_at(now, now);
        }
        self.config = config;
        self.changed.all = true;
    }

    /// Marks as changed the published routes of tables that are no longer mirrored, or now fill
    /// another domain.
    fn withdraw_tables(&mut self, config: &KernelRoutesConfig) {
        let moved = |key: &&KernelRouteKey| config.domains.get(&key.table) != Some(&key.domain);
        let keys: Vec<_> = self.published.keys().filter(moved).copied().collect();
        self.changed.keys.extend(keys);
    }

    pub const fn counters(&self) -> KernelRoutesCounters {
        self.counters
    }

    /// Whether the mirror is complete, except for notifications in the socket.
    pub fn is_synchronized(&self) -> bool {
        matches!(self.synchronization, Synchronization::Following)
            && self.timer.is_none()
            && self.deleted.is_empty()
            && !self.lossy
    }

    /// Whether the caller has to read notifications now. During a dump they stay in the socket.
    pub const fn wants_notifications(&self) -> bool {
        !matches!(self.synchronization, Synchronization::Dumping(_))
    }

    /// When to call [`Self::poll_dump`] and [`Self::handle_drained`] even without a message.
    pub fn poll_timeout(&self) -> Option<Time> {
        let deleted = self.deleted.front().map(|(at, _)| *at).filter(|_| self.publishes());
        self.timer.map(|timer| timer.at).into_iter().chain(deleted).min()
    }

    pub fn poll_dump(&mut self, now: Time) -> Option<DumpKind> {
        let due = self.timer.is_some_and(|timer| timer.at <= now);
        if due && !matches!(self.synchronization, Synchronization::Dumping(_)) {
            self.timer = None;
            self.lossy = false;
            self.changed.all |= !self.links_were_down.is_empty();
            self.links_were_down.clear();
            self.synchronization = Synchronization::Dumping(Dump::default());
        }
        match &mut self.synchronization {
            Synchronization::Dumping(dump) if !dump.asked => {
                dump.asked = true;
                Some(DumpKind::ALL[dump.kind])
            }
            _ => None,
        }
    }

    pub fn handle_dump(&mut self, message: &NetlinkMessage<'_>, now: Time) {
        let Synchronization::Dumping(dump) = &mut self.synchronization else { return };
        self.counters.messages += 1;
        dump.interrupted |= message.header.flags.contains(MessageFlags::DUMP_INTERRUPTED);
        match message.payload() {
            Ok(Payload::Done(0)) => self.handle_dump_done(now),
            // A kernel before 5.3 has no nexthop objects.
            Ok(Payload::Error(error))
                if error.errno == EOPNOTSUPP && DumpKind::ALL[dump.kind] == DumpKind::Nexthops =>
            {
                self.handle_dump_done(now);
            }
            Ok(Payload::Done(_) | Payload::Error(_) | Payload::Overrun) => {
                self.handle_dump_failure(now);
            }
            Ok(payload) => {
                let unsupported = dump.fresh.fill(&payload, &self.config);
                self.counters.routes_unsupported += u64::from(unsupported);
            }
            Err(_) => self.counters.malformed += 1,
        }
    }

    /// Handles a dump that could not be read to its end: it is repeated later.
    pub fn handle_dump_failure(&mut self, now: Time) {
        self.counters.dumps_failed += 1;
        self.back_off(now);
        self.synchronization = Synchronization::CatchingUp;
        self.lossy = true;
    }

    fn handle_dump_done(&mut self, now: Time) {
        let Synchronization::Dumping(dump) = &mut self.synchronization else { return };
        dump.asked = false;
        if dump.interrupted {
            self.counters.dumps_interrupted += 1;
            dump.interrupted = false;
            dump.repeats += 1;
            if dump.repeats <= DUMP_REPEATS_MAX {
                dump.fresh.clear(DumpKind::ALL[dump.kind]);
                return;
            }
            dump.repeats = 0;
            self.timer =
                Some(DumpTimer { at: now + DUMP_DELAY_MAX, at_most: now + DUMP_DELAY_MAX });
        }
        dump.kind += 1;
        if dump.kind == DumpKind::ALL.len() {
            let fresh = std::mem::take(&mut dump.fresh);
            self.tables.replace(fresh, &mut self.changed);
            self.synchronization = Synchronization::CatchingUp;
            self.counters.dumps += 1;
        }
    }

    pub fn handle_notification(&mut self, message: &NetlinkMessage<'_>, now: Time) {
        self.counters.messages += 1;
        let payload = match message.payload() {
            Ok(Payload::Overrun) => return self.handle_overrun(now),
            Ok(payload) => payload,
            Err(_) => {
                // The content of the message is lost, as in an overrun.
                self.counters.malformed += 1;
                return self.dump_at(now + DUMP_DEBOUNCE, now + DUMP_DELAY_MAX);
            }
        };
        let catching_up = matches!(self.synchronization, Synchronization::CatchingUp);
        let effect = self.tables.apply(
            &payload,
            message.header.flags,
            &self.config,
            &mut self.changed,
            &mut self.links_were_down,
        );
        self.counters.routes_unsupported += u64::from(effect.unsupported);
        if effect.needs_dump || catching_up && effect.ambiguous {
            self.dump_at(now + DUMP_DEBOUNCE, now + DUMP_DELAY_MAX);
        }
    }

    pub fn handle_overrun(&mut self, now: Time) {
        self.counters.overruns += 1;
        self.back_off(now);
        self.lossy = true;
    }

    fn back_off(&mut self, now: Time) {
        if self.overrun_at.is_none_or(|at| at + OVERRUN_FORGET < now) {
            self.overrun_backoff = Duration::ZERO;
        }
        self.overrun_at = Some(now);
        let at = now + self.overrun_backoff;
        self.dump_at(at, at);
        self.overrun_backoff =
            (2 * self.overrun_backoff).clamp(OVERRUN_BACKOFF_MIN, OVERRUN_BACKOFF_MAX);
    }

    fn dump_at(&mut self, at: Time, at_most: Time) {
        let at_most = self.timer.map_or(at_most, |timer| timer.at_most.min(at_most));
        self.timer = Some(DumpTimer { at: at.min(at_most), at_most });
    }

    /// Handles a drained socket: returns the net effect of the messages since the last call.
    pub fn handle_drained(&mut self, now: Time) -> Vec<KernelRouteChange> {
        if matches!(self.synchronization, Synchronization::CatchingUp) && !self.lossy {
            self.synchronization = Synchronization::Following;
        }
        let mut changes = self.publish(Some(now));
        self.withdraw_deleted(now, &mut changes);
        changes
    }

    /// Returns the changes for a caller that must stop before the socket is drained. Withdrawals
    /// are left out, because the next message may revoke them.
    pub fn handle_busy(&mut self) -> Vec<KernelRouteChange> {
        self.publish(None)
    }

    pub fn routes(&self) -> impl Iterator<Item = (&KernelRouteKey, &KernelRoute)> {
        self.published.iter()
    }

    /// The names of links that were set up since the last call. The kernel removed their IPv6
    /// addresses when they were set down.
    pub fn take_links_up(&mut self) -> BTreeSet<String> {
        std::mem::take(&mut self.changed.links_up)
    }

    const fn publishes(&self) -> bool {
        matches!(self.synchronization, Synchronization::Following) && !self.lossy
    }

    /// Publishes changed routes. At `withdraw_at` also withdraws routes that are no longer usable,
    /// and schedules the withdrawal of deleted routes. With `None`, both stay pending.
    fn publish(&mut self, withdraw_at: Option<Time>) -> Vec<KernelRouteChange> {
        let mut changes = Vec::new();
        if !self.publishes() {
            return changes;
        }
        let links_up = std::mem::take(&mut self.changed.links_up);
        let mut waiting = Changed { links_up, ..Changed::default() };
        for key in self.changed_keys() {
            match (self.resolve(&key), withdraw_at) {
                (Some(new), _) => {
                    if self.published.get(&key) != Some(&new) {
                        changes.push(KernelRouteChange::Set(key, new.clone()));
                        self.published.insert(key, new);
                    }
                }
                (None, None) => _ = waiting.keys.insert(key),
                (None, Some(_)) if !self.published.contains_key(&key) => {}
                (None, Some(now)) if self.tables.list(&key).is_empty() => {
                    self.deleted.push_back((now + WITHDRAWAL_DELAY, key));
                }
                (None, Some(_)) => {
                    self.published.remove(&key);
                    changes.push(KernelRouteChange::Remove(key));
                }
            }
        }
        self.changed = waiting;
        changes
    }

    /// Withdraws routes that were deleted `WITHDRAWAL_DELAY` ago, and not added since.
    fn withdraw_deleted(&mut self, now: Time, changes: &mut Vec<KernelRouteChange>) {
        while self.publishes()
            && let Some(&(_, key)) = self.deleted.front().filter(|(at, _)| *at <= now)
        {
            self.deleted.pop_front();
            if self.resolve(&key).is_none() && self.published.remove(&key).is_some() {
                changes.push(KernelRouteChange::Remove(key));
            }
        }
    }

    fn changed_keys(&self) -> BTreeSet<KernelRouteKey> {
        if self.changed.all {
            let published = self.published.keys();
            return self.tables.route_keys().chain(published).copied().collect();
        }
        let mut keys = self.changed.keys.clone();
        keys.extend(self.tables.users(&self.changed.nexthops));
        keys
    }
}
