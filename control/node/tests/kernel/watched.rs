//! A mirror of the kernel's routes in a namespace, beside what `ip` says.

use crate::namespace::Namespace;
use crate::shown::{Said, Table, shown};
use pollux_control::router::kernel_routes::{
    KernelRouteChange, KernelRouteKey, KernelRoutesConfig, KernelTarget,
};
use pollux_node::kernel::route_watch::KernelRouteWatch;
use pollux_node::kernel::shadow::open_shadow;
use pollux_node::kernel::tun_device::TunDevice;
use pollux_verbs::time::Time;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use std::collections::BTreeMap;
use std::net::{Ipv4Addr, Ipv6Addr};

pub struct Watched {
    pub namespace: Namespace,
    pub shadows: Vec<TunDevice>,
    pub watch: KernelRouteWatch,
    /// The sum of the changes.
    table: BTreeMap<KernelRouteKey, KernelTarget>,
    now: Time,
}

impl Watched {
    /// Four shadows with addresses and carrier, `ib1` to `ib4`, and a mirror of table `main`.
    pub fn start(test: &str, receive_bytes: usize) -> Option<Self> {
        let namespace = Namespace::enter(test)?;
        let shadows: Vec<_> = (1..=4).map(shadow).collect();
        let interfaces = (1..=4).map(|n| (format!("ib{n}"), format!("ib{n}"))).collect();
        let config =
            KernelRoutesConfig { domains: [(254, 0)].into(), interfaces, kernel_port: None };
        let watch = KernelRouteWatch::open(config, receive_bytes).expect("netlink sockets");
        let (table, now) = (BTreeMap::new(), Time::START);
        Some(Self { namespace, shadows, watch, table, now })
    }

    /// Lets the mirror read all there is; time passes only where it waits for a timer.
    pub fn step_until_idle(&mut self) -> Vec<KernelRouteChange> {
        let mut all = Vec::new();
        for _ in 0..10_000 {
            let turn = self.watch.turn(self.now).expect("netlink sockets work");
            all.extend(turn.changes);
            if let Some(timeout) = self.watch.poll_timeout() {
                self.now = self.now.max(timeout);
            } else if !turn.more && self.watch.routes().is_synchronized() {
                self.take(&all);
                return all;
            }
        }
        panic!("never synchronized: {:?}", self.watch.routes().counters());
    }

    /// Reads once, and lets no time pass; gives the changes.
    pub fn turn(&mut self) -> Vec<KernelRouteChange> {
        let turn = self.watch.turn(self.now).expect("netlink sockets work");
        self.take(&turn.changes);
        turn.changes
    }

    fn take(&mut self, changes: &[KernelRouteChange]) {
        for change in changes {
            match change {
                KernelRouteChange::Set(key, route) => {
                    self.table.insert(*key, route.target.clone());
                }
                KernelRouteChange::Remove(key) => {
                    assert!(self.table.remove(key).is_some(), "{key:?} was never there");
                }
            }
        }
    }

    /// Runs `ip`, then compares the mirror with what `ip` shows.
    pub fn step(&mut self, arguments: &str) {
        self.namespace.ip(arguments);
        self.step_until_idle();
        self.compare(arguments);
    }

    /// Both tables, which must be equal.
    pub fn compare(&mut self, after: &str) -> Table {
        let expected = shown(&self.namespace, |_| true);
        let mirrored = self.mirrored();
        assert_eq!(mirrored, expected, "after: {after}");
        mirrored
    }

    /// Sets the carrier of the shadow with this index, and waits until the kernel knows.
    pub fn set_carrier(&mut self, index: usize, carrier: bool) {
        self.shadows[index].set_carrier(carrier).expect("a carrier");
        let name = self.shadows[index].name().to_owned();
        self.wait(&format!("carrier of {name} is {carrier}"), |watched| {
            let link = watched.namespace.json(&format!("link show {name}")).remove(0);
            let flags = link["flags"].as_array().expect("flags").clone();
            flags.iter().any(|flag| flag == "LOWER_UP") == carrier
        });
        self.step_until_idle();
    }

    /// Waits for notifications until `condition` holds.
    pub fn wait(&mut self, what: &str, mut condition: impl FnMut(&mut Self) -> bool) {
        for _ in 0..600 {
            self.step_until_idle();
            if condition(self) {
                return;
            }
            let mut fds = [PollFd::from_borrowed_fd(self.watch.descriptor(), PollFlags::IN)];
            poll(&mut fds, Some(&Timespec { tv_sec: 0, tv_nsec: 100_000_000 })).expect("a poll");
        }
        panic!("a minute, and not yet: {what}: {:#?}", self.mirrored());
    }

    /// The routes of the mirror.
    pub fn mirrored(&self) -> Table {
        let published = self.watch.routes().routes();
        assert!(
            published.map(|(key, route)| (key, &route.target)).eq(&self.table),
            "changes add up to what is published"
        );
        let row = |(key, target): (&KernelRouteKey, &KernelTarget)| {
            let text = match target {
                KernelTarget::Blackhole => Said::Other("blackhole"),
                KernelTarget::Unreachable => Said::Other("unreachable"),
                KernelTarget::Prohibit => Said::Other("prohibit"),
                KernelTarget::Via(hops) => Said::Via(
                    hops.iter()
                        .map(|h| (h.interface.to_string(), h.gateway, u64::from(h.weight)))
                        .collect(),
                ),
            };
            ((key.destination, key.prefix_len, key.metric), text)
        };
        self.table.iter().map(row).collect()
    }
}

/// A shadow with addresses `10.0.N.1/24` and `2001:db8:N::1/64`.
fn shadow(n: u8) -> TunDevice {
    let mut shadow = open_shadow(&format!("ib{n}")).expect("a shadow");
    let v6 = Ipv6Addr::new(0x2001, 0xdb8, n.into(), 0, 0, 0, 0, 1);
    let addresses = [(Ipv4Addr::new(10, 0, n, 1).into(), 24), (v6.into(), 64)];
    shadow.set_addresses(&addresses.into()).expect("addresses");
    shadow.set_carrier(true).expect("carrier");
    shadow
}
