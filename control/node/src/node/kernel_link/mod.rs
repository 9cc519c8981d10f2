//! The kernel beside a node: shadows of interfaces, and the routes that daemons install in the
//! routing tables of the kernel.
//!
//! ```text
//!   routing daemon <--> kernel <--> shadow of ib0 <--punt, inject--> interface ib0
//!         |                                            (its control plane)
//!         +--routes--> table --netlink--> mirror --> `Routing`
//! ```
//!
//! A shadow has the addresses, MTU and carrier of its interface. Packets to local addresses and
//! groups are punted into it. Packets from the kernel leave by the interface, or by another
//! interface if the routes of the node say so. When a program joins a group at the shadow, the node
//! joins it at the interface. Packets in transit never reach the shadow, so the kernel does not
//! forward them a second time.
//!
//! `followed` has the routes. If the kernel refuses a request, the node reports a notice, repeats
//! the request (`attempt`), and forwards meanwhile.
//!
//! A service manager keeps the descriptor of each shadow, so that the kernel's state survives a
//! restart: the next process takes the shadows over. For [`TAKE_OVER_MAX`], no address of such a
//! shadow is removed; for as long, the shadow keeps its carrier while its interface is not up.

mod attempt;
mod followed;

pub(super) use followed::KernelUpdate;

use super::opening::{ConfiguredInterface, Interfaces};
use crate::config::NodeConfig;
use crate::interface::IpoibLink;
use crate::kernel::KernelError;
use crate::kernel::route_watch::KernelRouteWatch;
use crate::kernel::shadow::open_shadow;
use crate::kernel::tun::{TunOptions, TunWritten};
use crate::kernel::tun_device::TunDevice;
use crate::node::notice::NodeNotice;
use crate::service::notify_socket::NotifySocket;
use attempt::Attempt;
use followed::Followed;
use pollux_control::router::group_reports::KernelPacket;
use pollux_control::router::kernel_routes::{KernelRoutes, KernelRoutesConfig};
use pollux_verbs::time::Time;
use rustix::event::{PollFd, PollFlags};
use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;
use std::time::Duration;

/// The pause before a request that the kernel refused is repeated.
const RETRY_EVERY: Duration = Duration::from_secs(2);
/// How long a shadow from an earlier process keeps its addresses, and its carrier without an
/// interface that is up.
pub(super) const TAKE_OVER_MAX: Duration = Duration::from_secs(10);
/// Maximum number of packets of a shadow in one step, in each direction.
const PACKETS_MAX: usize = 64;
const PACKET_BYTES_MAX: usize = u16::MAX as usize;

/// A service manager keeps the descriptor of a device by the device's name with this prefix.
const KEPT_PREFIX: &str = "shadow-";

pub(super) struct KernelLink {
    shadows: BTreeMap<String, InterfaceShadow>,
    pub(super) routes: Followed,
    buffer: Box<[u8]>,
    manager: Arc<NotifySocket>,
    /// Descriptors of shadows of an earlier process, by device.
    kept: BTreeMap<String, OwnedFd>,
}

struct InterfaceShadow {
    device: String,
    state: Attempt<TunDevice>,
    /// Groups that programs of this machine have joined at the shadow.
    groups: BTreeSet<IpAddr>,
    /// Which start of the interface those groups were joined at.
    joined_at: u64,
    /// Until when the device keeps the state of an earlier process, if it was taken over.
    taken_over_until: Option<Time>,
    /// Whether the service manager keeps a descriptor of the device.
    is_kept: bool,
}

impl KernelLink {
    pub(super) fn new() -> Self {
        Self {
            shadows: BTreeMap::new(),
            routes: Followed::new(),
            buffer: vec![0; PACKET_BYTES_MAX].into(),
            manager: Arc::default(),
            kept: BTreeMap::new(),
        }
    }

    /// Makes a service manager keep shadows. `kept` has those of an earlier process, by device.
    pub(super) fn set_manager(
        &mut self,
        manager: Arc<NotifySocket>,
        kept: BTreeMap<String, OwnedFd>,
    ) {
        (self.manager, self.kept) = (manager, kept);
    }

    /// Whether each shadow was opened, or its failure was reported.
    pub(super) fn is_tried(&self) -> bool {
        let is_tried = |one: &InterfaceShadow| {
            !matches!(one.state, Attempt::Pending { is_reported: false, .. })
        };
        self.shadows.values().all(is_tried)
    }

    /// The mirror of the kernel's tables, while they are followed.
    pub(super) fn mirror(&self) -> Option<&KernelRoutes> {
        self.routes.watch().map(KernelRouteWatch::routes)
    }

    /// Opens and closes shadows as configured, and gives each the state of its interface.
    pub(super) fn update(
        &mut self,
        now: Time,
        config: &NodeConfig,
        interfaces: &mut Interfaces,
        say: &mut impl FnMut(&NodeNotice),
    ) {
        let wanted = config.interfaces.iter();
        let wanted = wanted.filter_map(|(name, one)| Some((name, one.shadow.as_ref()?)));
        let wanted: BTreeMap<_, _> = wanted.collect();
        let Self { shadows, manager, kept, .. } = self;
        let is_wanted = |name: &String, one: &mut InterfaceShadow| {
            wanted.get(name).is_some_and(|device| **device == one.device)
        };
        for (_, mut gone) in shadows.extract_if(.., |name, one| !is_wanted(name, one)) {
            gone.drop_kept(manager);
        }
        for (name, device) in wanted {
            let shadow = shadows
                .entry(name.clone())
                .or_insert_with(|| InterfaceShadow::new(now, device, kept.remove(device)));
            shadow.update(now, name, interfaces.all.get_mut(name), manager, say);
        }
        // Devices that the earlier process had, and this configuration has not.
        while let Some((device, _)) = kept.pop_first() {
            manager.drop_kept(&kept_name(&device));
        }
        for (name, named) in &mut interfaces.all {
            if let Some(interface) = named.ipoib_mut() {
                let shadow = self.shadows.get(name);
                let is_there = shadow.is_some_and(|one| one.state.running().is_some());
                interface.keep_for_kernel(is_there);
            }
        }
        let of_router = config.router.and_then(|router| router.kernel_table);
        let of_domains = config.domains.values().filter_map(|domain| domain.kernel_table);
        // Routing finds the domain of a table itself.
        let tables = of_router.into_iter().chain(of_domains).map(|table| (table, table));
        let links = self.shadows.iter().map(|(name, one)| (one.device.clone(), name.clone()));
        let config = KernelRoutesConfig {
            domains: tables.collect(),
            interfaces: links.collect(),
            kernel_port: None,
        };
        let config = (!config.domains.is_empty()).then_some(config);
        self.routes.update(now, config, say);
    }

    /// Moves packets between shadows and interfaces, and reads routes. Returns whether there was
    /// anything to do.
    pub(super) fn step(&mut self, now: Time, interfaces: &mut Interfaces) -> bool {
        let Self { shadows, routes, buffer, .. } = self;
        let mut busy = false;
        for (name, shadow) in shadows.iter_mut() {
            let interface = interfaces.all.get_mut(name).and_then(ConfiguredInterface::ipoib_mut);
            if let Some(interface) = interface {
                busy |= shadow.step(now, interface, buffer);
            }
        }
        busy |= routes.step(now);
        for device in routes.take_links_up() {
            let mut shadows = shadows.values_mut().filter(|one| one.device == device);
            if let Some(Attempt::Running(shadow)) = shadows.next().map(|one| &mut one.state) {
                shadow.forget_addresses();
            }
        }
        busy
    }

    pub(super) fn poll_fds(&self) -> impl Iterator<Item = PollFd<'_>> {
        let shadows = self.shadows.values().filter_map(|one| one.state.running());
        let routes = self.routes.watch();
        let fds = shadows.map(AsFd::as_fd).chain(routes.map(KernelRouteWatch::descriptor));
        fds.map(|fd| PollFd::from_borrowed_fd(fd, PollFlags::IN))
    }

    pub(super) fn poll_timeout(&self) -> Option<Time> {
        let shadows = self.shadows.values();
        let shadows = shadows.flat_map(|one| [one.state.retry_at(), one.taken_over_until]);
        let shadows = shadows.flatten();
        shadows.chain(self.routes.poll_timeout()).min()
    }
}

impl InterfaceShadow {
    /// A shadow that is to be opened, or that is taken over by the descriptor of an earlier
    /// process.
    fn new(now: Time, device: &str, kept: Option<OwnedFd>) -> Self {
        let is_kept = kept.is_some();
        let take_over = |fd| TunDevice::take_over(fd, device, TunOptions::default());
        let taken = kept.and_then(|fd| take_over(fd).ok().flatten());
        let taken_over_until = taken.is_some().then(|| now + TAKE_OVER_MAX);
        let state = match taken {
            Some(shadow) => Attempt::Running(shadow),
            None => Attempt::Pending { at: now, is_reported: false },
        };
        Self {
            device: device.into(),
            state,
            groups: BTreeSet::new(),
            joined_at: 0,
            taken_over_until,
            is_kept,
        }
    }

    /// Makes the service manager close its descriptor, so that the device can go away.
    fn drop_kept(&mut self, manager: &NotifySocket) {
        if std::mem::take(&mut self.is_kept) {
            manager.drop_kept(&kept_name(&self.device));
        }
    }

    fn update(
        &mut self,
        now: Time,
        name: &str,
        named: Option<&mut ConfiguredInterface>,
        manager: &NotifySocket,
        say: &mut impl FnMut(&NodeNotice),
    ) {
        if self.state.running().is_none() {
            self.drop_kept(manager);
        }
        let Self { device, state, groups, joined_at, taken_over_until, is_kept } = self;
        let starts = named.as_ref().map_or(0, |named| named.starts);
        let mut interface = named.and_then(ConfiguredInterface::ipoib_mut);
        if let Some(interface) = &mut interface
            && *joined_at != starts
        {
            groups.iter().for_each(|group| _ = interface.join_group(now, *group));
            *joined_at = starts;
        }
        let what = || format!("{name}: its shadow {device}");
        let Some(shadow) = state.open(now, what, say, || open_shadow(device)) else { return };
        if !std::mem::replace(is_kept, true) {
            manager.keep(&kept_name(device), &*shadow);
        }
        *taken_over_until = taken_over_until.filter(|until| now < *until);
        if let Err(error) = follow(shadow, interface.as_deref(), taken_over_until.is_some()) {
            state.fail(now, what, say, &error);
        }
    }

    /// Moves packets both ways. Returns whether there were any.
    fn step(&mut self, now: Time, interface: &mut IpoibLink, buffer: &mut [u8]) -> bool {
        let Self { state, groups, .. } = self;
        let Attempt::Running(shadow) = state else { return false };
        let mut busy = false;
        for _ in 0..PACKETS_MAX {
            let Some(packet) = interface.poll_for_kernel() else { break };
            match shadow.queue().write(&packet) {
                Ok(TunWritten::Taken) => {}
                Ok(TunWritten::Full) => interface.kernel_drops.full += 1,
                Ok(TunWritten::Refused) | Err(_) => interface.kernel_drops.refused += 1,
            }
            busy = true;
        }
        for _ in 0..PACKETS_MAX {
            let len = match shadow.queue().read(buffer) {
                Ok(Some(len)) => len,
                Ok(None) => break,
                // The device was removed, so it is created again.
                Err(_) => {
                    *state = Attempt::Pending { at: now, is_reported: true };
                    return true;
                }
            };
            let packet = &buffer[..len];
            match KernelPacket::parse(packet) {
                KernelPacket::Program => interface.send_packet(now, packet.to_vec()),
                KernelPacket::Report(all) => set_groups(now, groups, &all, interface),
                KernelPacket::OfTheLink => {}
                KernelPacket::Malformed => interface.kernel_drops.malformed += 1,
            }
            busy = true;
        }
        busy
    }
}

/// Gives a shadow the addresses, the MTU and the carrier of its interface. A shadow that was just
/// taken over loses nothing, since its interface, with duplicate address detection, is only
/// starting.
fn follow(
    shadow: &mut TunDevice,
    interface: Option<&IpoibLink>,
    is_taken_over: bool,
) -> Result<(), KernelError> {
    let control = interface.map(IpoibLink::control).filter(|control| control.is_up());
    if let Some(control) = control {
        let mut addresses: BTreeSet<_> = control.assigned().collect();
        if is_taken_over {
            addresses.extend(shadow.addresses());
        }
        shadow.set_addresses(&addresses)?;
        if let Some(link) = control.link() {
            shadow.set_mtu(link.mtu)?;
        }
    }
    let is_to_come = is_taken_over && control.is_none() && shadow.carrier().is_none();
    if is_to_come { Ok(()) } else { shadow.set_carrier(control.is_some()) }
}

/// The name by which a service manager keeps the shadow `device`.
fn kept_name(device: &str) -> String {
    format!("{KEPT_PREFIX}{device}")
}

/// The device of a shadow that a service manager has kept by this name.
pub(super) fn kept_device(name: &str) -> Option<&str> {
    name.strip_prefix(KEPT_PREFIX)
}

/// Joins and leaves the groups at the interface that programs join and leave at the shadow.
fn set_groups(
    now: Time,
    groups: &mut BTreeSet<IpAddr>,
    reports: &[(IpAddr, bool)],
    interface: &mut IpoibLink,
) {
    for &(group, listens) in reports {
        if listens && !groups.contains(&group) && interface.join_group(now, group) {
            groups.insert(group);
        }
        if !listens && groups.remove(&group) {
            interface.leave_group(now, group);
        }
    }
}
