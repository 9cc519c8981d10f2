//! Opens the devices of interfaces, and retries until they exist.
//!
//! ```text
//!                        retry timer, and no interface runs at the device
//!   missing or failed -----------------------------------------------------> opening
//!     ^  ^  ^                                                                 |   |
//!     |  |  +------------------------- no device -----------------------------+   |
//!     |  |                                                                opened  |
//!     |  +-- the device refuses the interface -- setting up each interface <------+
//!     |                                                    |
//!     +-- the device fails -------- running <--------------+
//! ```
//!
//! A missing device is a state of its interfaces, with a reason, and no error: it may appear later.
//! Why a device is opened in a thread of its own: a fabric may take seconds to respond, while
//! control serves other interfaces.
//!
//! Interfaces at one device share only its port. If one fails, it is set up again while the others
//! run, which the diagram leaves out. The device itself is opened again only when no interface runs
//! there.

use super::REOPEN_EVERY;
use super::kinds::{LinkState, NodeInterface};
use super::notice::NodeNotice;
use super::outage::Outage;
use super::waker::Waker;
use super::worker_port::WorkerPort;
use crate::config::{InterfaceKind, InterfaceSettings, Mode};
use crate::device::{self, DeviceOpenError, Opened};
use crate::interface::port_driver::memory::WorkerMemory;
use crate::interface::{DeviceError, IpoibLink};
use crate::plain::PlainLink;
use crate::port::DevicePort;
use pollux_mem::pool::PoolError;
use pollux_verbs::time::Time;
use rustix::event::{PollFd, PollFlags};
use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, TryRecvError, sync_channel};
use std::thread::Builder;
use std::time::Duration;

/// The first retry interval. Each interval is twice as long as the one before, up to
/// [`REOPEN_EVERY`].
const RETRY_MIN: Duration = Duration::from_millis(50);

/// An interface of the configuration.
pub(super) struct ConfiguredInterface {
    pub(super) settings: InterfaceSettings,
    /// The interface, or the reason why it does not run.
    pub(super) interface: Result<NodeInterface, Outage>,
    retry: Retry,
    /// How often the interface was set up.
    pub(super) starts: u64,
    /// The state in the last notice, and how often the name of the noted state changed.
    pub(super) noted: Option<LinkState>,
    pub(super) state_changes: u64,
    /// Set while the interface leaves its link, to be removed or restarted.
    pub(super) leaving: Option<Leaving>,
}

/// The end of an interface that leaves its link.
pub(super) struct Leaving {
    pub(super) until: Time,
    /// The settings of its successor, if there is one.
    pub(super) next: Option<InterfaceSettings>,
}

/// The time of the next attempt, with backoff.
#[derive(Clone, Copy)]
struct Retry {
    at: Time,
    delay: Duration,
}

impl Retry {
    const fn new(at: Time) -> Self {
        Self { at, delay: RETRY_MIN }
    }

    /// Sets the next attempt after a success, if the interface fails then. The pause keeps an
    /// interface that always fails at once from a tight loop.
    fn succeeded(&mut self, now: Time) {
        *self = Self::new(now + REOPEN_EVERY);
    }

    fn later(&mut self, now: Time) {
        self.at = now + self.delay;
        self.delay = (self.delay * 2).min(REOPEN_EVERY);
    }
}

/// A device that IPoIB interfaces use.
struct SharedDevice {
    /// The libibumad port for the MADs of the device, if one is configured.
    management: Option<String>,
    state: DeviceState,
    retry: Retry,
}

enum DeviceState {
    Closed,
    /// The result of the thread that opens it.
    Opening(Receiver<Result<Opened, DeviceOpenError>>),
    /// Interfaces run at the port.
    Open(DevicePort),
}

/// Operations on worker threads that opening an interface needs.
pub(super) trait WorkerThreads {
    fn memory(
        &mut self,
        interface: &str,
        worker: u8,
        connects: bool,
    ) -> Result<Arc<WorkerMemory>, PoolError>;

    fn distribute(&mut self, interface: &str, ports: Vec<WorkerPort>);
}

pub(super) struct Interfaces {
    pub(super) all: BTreeMap<String, ConfiguredInterface>,
    devices: BTreeMap<String, SharedDevice>,
    /// The addresses of all interfaces of each domain. All interfaces of the domain accept packets
    /// to them.
    addresses: BTreeMap<String, Arc<BTreeSet<IpAddr>>>,
    /// Wakes control when an attempt is complete.
    waker: Waker,
}

impl Interfaces {
    pub(super) fn new(waker: Waker) -> Self {
        Self { all: BTreeMap::new(), devices: BTreeMap::new(), addresses: BTreeMap::new(), waker }
    }

    /// Registers the device of an IPoIB interface. If its management has changed, the device is
    /// replaced, and opened again.
    pub(super) fn register_device(&mut self, now: Time, settings: &InterfaceSettings) {
        if settings.kind != InterfaceKind::Ipoib {
            return;
        }
        let management = settings.management.as_ref().map(|one| one.port().to_owned());
        let known = self.devices.get(&settings.device);
        if known.is_none_or(|shared| shared.management != management) {
            let (state, retry) = (DeviceState::Closed, Retry::new(now));
            let shared = SharedDevice { management, state, retry };
            self.devices.insert(settings.device.clone(), shared);
        }
    }

    pub(super) fn drop_unused_devices(&mut self) {
        let all = &self.all;
        self.devices.retain(|device, _| all.values().any(|named| named.settings.device == *device));
    }

    pub(super) fn running(&mut self) -> impl Iterator<Item = &mut NodeInterface> {
        self.all.values_mut().flat_map(|named| &mut named.interface)
    }

    /// Steps all interfaces, and opens missing ones. Returns whether there was anything to do.
    pub(super) fn step(&mut self, now: Time, threads: &mut dyn WorkerThreads) -> bool {
        let (mut busy, mut all_run, mut is_leaving) = (false, true, false);
        for (name, named) in &mut self.all {
            busy |= named.step(now);
            if named.is_to_open(now) {
                busy |= named.open_plain(now, name, threads);
            }
            all_run &= named.interface.is_ok();
            is_leaving |= named.leaving.is_some();
        }
        if is_leaving {
            busy |= self.finish_leaving(now);
        }
        let Self { all, devices, waker, .. } = self;
        if !all_run {
            for (device, shared) in devices {
                busy |= shared.step(now, device, all, waker, threads);
            }
        }
        busy
    }

    /// Gives each interface the addresses in its domain whose packets may arrive at other
    /// interfaces. Returns whether any interface got a new set.
    pub(super) fn share_addresses(&mut self, now: Time) -> bool {
        let Self { all, addresses, .. } = self;
        let mut of_domains: BTreeMap<&str, BTreeSet<IpAddr>> = BTreeMap::new();
        for named in all.values() {
            let own = named.interface.iter().flat_map(|one| one.addresses_for_node());
            of_domains.entry(&named.settings.domain).or_default().extend(own);
        }
        addresses.retain(|domain, _| of_domains.contains_key(&**domain));
        for (domain, own) in of_domains {
            if addresses.get(domain).is_none_or(|known| **known != own) {
                addresses.insert(domain.into(), Arc::new(own));
            }
        }
        all.values_mut().fold(false, |busy, named| {
            let (interface, own) = (&mut named.interface, &addresses[&named.settings.domain]);
            interface.as_mut().is_ok_and(|one| one.set_node_addresses(now, own)) | busy
        })
    }

    fn ports(&self) -> impl Iterator<Item = &DevicePort> {
        self.devices.values().filter_map(|shared| match &shared.state {
            DeviceState::Open(port) => Some(port),
            DeviceState::Closed | DeviceState::Opening(_) => None,
        })
    }

    /// Arms the ports. Input from now on ends a sleep; the caller steps once more for earlier
    /// input.
    pub(super) fn arm(&self) {
        self.ports().for_each(DevicePort::arm);
    }

    pub(super) fn sleep_max(&self) -> Option<Duration> {
        self.ports().map(DevicePort::sleep_max).min()
    }

    pub(super) fn poll_fds(&self) -> impl Iterator<Item = PollFd<'_>> {
        let descriptors = self.ports().flat_map(DevicePort::descriptors);
        descriptors.map(|fd| PollFd::from_borrowed_fd(fd, PollFlags::IN))
    }

    pub(super) fn poll_timeout(&self) -> Option<Time> {
        let due = |named: &ConfiguredInterface| match &named.interface {
            Ok(interface) => {
                interface.poll_timeout().into_iter().chain(named.leaving_until()).min()
            }
            Err(_) if named.leaving.is_some() => named.leaving_until(),
            Err(_) if named.is_plain() => Some(named.retry.at),
            Err(_) => {
                let shared = self.devices.get(&named.settings.device)?;
                match &shared.state {
                    DeviceState::Closed => Some(shared.retry.at),
                    // The thread that opens it wakes the control thread.
                    DeviceState::Opening(_) => None,
                    DeviceState::Open(_) => Some(named.retry.at),
                }
            }
        };
        self.all.values().filter_map(due).min()
    }
}

impl SharedDevice {
    /// Continues to open interfaces at this device. Returns whether one was opened.
    fn step(
        &mut self,
        now: Time,
        device: &str,
        all: &mut BTreeMap<String, ConfiguredInterface>,
        waker: &Waker,
        threads: &mut dyn WorkerThreads,
    ) -> bool {
        let is_here =
            |named: &ConfiguredInterface| named.settings.device == device && !named.is_plain();
        // An interface that leaves uses the port as long as it runs.
        let uses_port =
            |named: &ConfiguredInterface| named.leaving.is_none() || named.interface.is_ok();
        let here = all.iter_mut().filter(|(_, named)| is_here(named) && uses_port(named));
        let mut here: Vec<_> = here.collect();
        if here.iter().any(|(_, named)| named.interface.is_ok()) {
            return self.set_up_stopped(now, &mut here, threads);
        }
        if let DeviceState::Open(_) = self.state {
            // A port cannot be open twice, so the old one is closed first.
            self.state = DeviceState::Closed;
        }
        let Some(opened) = self.open(now, device, waker) else { return false };
        let port = opened
            .map_err(|error| Outage::Missing(Arc::new(error)))
            .and_then(|opened| DevicePort::new(opened).map_err(Outage::Unusable));
        match port {
            Err(outage) => {
                here.iter_mut().for_each(|(_, named)| named.interface = Err(outage.clone()));
            }
            Ok(port) => {
                for (name, named) in &mut here {
                    named.set_up(now, name, &port, threads);
                }
                self.state = DeviceState::Open(port);
            }
        }
        let is_used = here.iter().any(|(_, named)| named.interface.is_ok());
        match is_used {
            true => self.retry.succeeded(now),
            false => self.retry.later(now),
        }
        is_used
    }

    /// Retries interfaces that do not run, at the port that the running ones use.
    fn set_up_stopped(
        &mut self,
        now: Time,
        here: &mut [(&String, &mut ConfiguredInterface)],
        threads: &mut dyn WorkerThreads,
    ) -> bool {
        let DeviceState::Open(port) = &self.state else { return false };
        let running = here.iter().filter(|(_, named)| named.interface.is_ok());
        let taken: BTreeSet<_> = running.map(|(_, named)| named.partition()).collect();
        let mut busy = false;
        for (name, named) in here {
            // The partition of an interface that still leaves is free later.
            let is_free = !taken.contains(&named.partition());
            if named.interface.is_err() && named.retry.at <= now && is_free {
                busy |= named.set_up(now, name, port, threads);
            }
        }
        busy
    }

    /// Returns the result of an attempt that is complete. Begins an attempt when one is due.
    fn open(
        &mut self,
        now: Time,
        device: &str,
        waker: &Waker,
    ) -> Option<Result<Opened, DeviceOpenError>> {
        let DeviceState::Opening(attempt) = &self.state else {
            if self.retry.at <= now {
                self.begin_attempt(now, device, waker.share());
            }
            return None;
        };
        let outcome = match attempt.try_recv() {
            Err(TryRecvError::Empty) => return None,
            Err(TryRecvError::Disconnected) => None,
            Ok(outcome) => Some(outcome),
        };
        self.state = DeviceState::Closed;
        if outcome.is_none() {
            self.retry.later(now);
        }
        outcome
    }

    fn begin_attempt(&mut self, now: Time, device: &str, waker: Waker) {
        let (sender, attempt) = sync_channel(1);
        let (name, management) = (device.to_owned(), self.management.clone());
        let thread = Builder::new().name("open".into()).spawn(move || {
            // The node may have ended.
            let _ = sender.try_send(device::open_managed(&name, management.as_deref()));
            waker.wake();
        });
        match thread {
            Ok(_) => self.state = DeviceState::Opening(attempt),
            Err(_) => self.retry.later(now),
        }
    }
}

impl ConfiguredInterface {
    pub(super) const fn new(now: Time, settings: InterfaceSettings) -> Self {
        let (interface, retry) = (Err(Outage::Pending), Retry::new(now));
        Self { settings, interface, retry, starts: 0, noted: None, state_changes: 0, leaving: None }
    }

    /// The interface, if it runs and is an IPoIB interface.
    pub(super) fn ipoib_mut(&mut self) -> Option<&mut IpoibLink> {
        self.interface.as_mut().ok()?.ipoib_mut()
    }

    fn partition(&self) -> u16 {
        self.settings.pkey.partition()
    }

    /// Sets the interface up. Returns whether it runs now.
    fn set_up(
        &mut self,
        now: Time,
        name: &str,
        port: &DevicePort,
        threads: &mut dyn WorkerThreads,
    ) -> bool {
        let settings = &self.settings;
        let context = port.context(settings.pkey).map_err(DeviceError::from);
        let connects = settings.mode != Mode::Ud;
        let memory = &mut |worker| threads.memory(name, worker, connects);
        let opened = context.and_then(|context| {
            IpoibLink::with_memory(now, context, settings, super::seed(), memory)
        });
        let opened = opened.map(|(interface, workers)| {
            let ports = workers.into_iter().map(WorkerPort::Ipoib).collect();
            (NodeInterface::Ipoib(Box::new(interface)), ports)
        });
        let opened = opened.map_err(|error| Outage::Refused(Arc::new(error)));
        self.finish_opening(now, name, opened, threads)
    }

    /// Whether the device is one of the kernel. Such a device is opened without a thread.
    const fn is_plain(&self) -> bool {
        !matches!(self.settings.kind, InterfaceKind::Ipoib)
    }

    fn is_to_open(&self, now: Time) -> bool {
        let is_due = self.interface.is_err() && self.retry.at <= now;
        is_due && self.is_plain() && self.leaving.is_none()
    }

    /// Opens the kernel's device. Returns whether the interface runs now.
    fn open_plain(&mut self, now: Time, name: &str, threads: &mut dyn WorkerThreads) -> bool {
        // The longest packets of the kernel need long buffers.
        let memory = &mut |worker| threads.memory(name, worker, true);
        let (settings, seed) = (&self.settings, super::seed());
        let opened = match settings.kind {
            InterfaceKind::Ethernet => PlainLink::open_ethernet(now, settings, seed, memory),
            _ => PlainLink::open(now, settings, seed, memory),
        };
        let opened = opened.map(|(link, ports)| {
            let ports = ports.into_iter().map(WorkerPort::Plain).collect();
            (NodeInterface::Plain(Box::new(link)), ports)
        });
        let opened = opened.map_err(|error| Outage::NoLink(Arc::new(error)));
        self.finish_opening(now, name, opened, threads)
    }

    /// Handles the outcome of setting up an interface. Returns whether the interface runs now.
    fn finish_opening(
        &mut self,
        now: Time,
        name: &str,
        opened: Result<(NodeInterface, Vec<WorkerPort>), Outage>,
        threads: &mut dyn WorkerThreads,
    ) -> bool {
        match opened {
            Ok((interface, ports)) => {
                threads.distribute(name, ports);
                self.interface = Ok(interface);
                self.starts += 1;
                self.retry.succeeded(now);
            }
            Err(outage) => {
                self.interface = Err(outage);
                self.retry.later(now);
            }
        }
        self.interface.is_ok()
    }

    fn step(&mut self, now: Time) -> bool {
        let Ok(interface) = &mut self.interface else { return false };
        let busy = interface.step(now);
        if let Some(outage) = interface.failed() {
            self.interface = Err(outage);
        }
        busy
    }

    pub(super) fn state(&self) -> LinkState {
        match &self.interface {
            Err(outage) => LinkState { name: outage.state(), why: outage.to_string() },
            Ok(interface) => interface.state(),
        }
    }

    pub(super) fn notice(&self, name: &str, state: &LinkState) -> NodeNotice {
        let has_duplicates = self.interface.as_ref().is_ok_and(NodeInterface::has_duplicates);
        let is_well = matches!(state.name, "up" | "joining") && !has_duplicates;
        let message = state.to_string();
        if is_well { NodeNotice::info(name, message) } else { NodeNotice::warning(name, message) }
    }

    /// The name of the state in the last notice.
    pub(super) fn noted_state(&self) -> &'static str {
        self.noted.as_ref().map_or("opening", |noted| noted.name)
    }

    /// Whether the interface may get more addresses or routes: it is not up, or it uses DHCP and
    /// has no IPv4 address.
    pub(super) fn is_coming_up(&self) -> bool {
        let Ok(interface) = &self.interface else { return true };
        let has_ipv4 = || interface.addresses().iter().any(|one| one.ip.is_ipv4());
        !interface.is_up() || self.settings.uses_dhcp() && !has_ipv4()
    }

    /// Whether the interface may have a route to this address, by its settings or by DHCP.
    pub(super) fn may_lead_to(&self, to: IpAddr) -> bool {
        let is_of_family = |ip: &IpAddr| ip.is_ipv4() == to.is_ipv4();
        let settings = &self.settings;
        let is_local = matches!(to, IpAddr::V6(ip) if ip.is_unicast_link_local());
        is_local && settings.ipv6
            || settings.fixed_addresses().any(|prefix| prefix.contains(to))
            || settings.router.iter().any(is_of_family)
            || settings.uses_dhcp() && to.is_ipv4()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::NodeConfig;
    use crate::fabric::Embedded;
    use crate::node::waker::waker;

    /// The control of a node, and workers without threads.
    struct Alone {
        now: Time,
        interfaces: Interfaces,
        workers: Vec<(String, WorkerPort)>,
    }

    struct NoThreads<'a>(&'a mut Vec<(String, WorkerPort)>);

    impl WorkerThreads for NoThreads<'_> {
        fn memory(
            &mut self,
            _: &str,
            _: u8,
            connects: bool,
        ) -> Result<Arc<WorkerMemory>, PoolError> {
            WorkerMemory::new(1, connects)
        }

        fn distribute(&mut self, name: &str, ports: Vec<WorkerPort>) {
            self.0.extend(ports.into_iter().map(|worker| (name.to_owned(), worker)));
        }
    }

    impl Alone {
        fn new(text: &str) -> Self {
            let (waker, _woken) = waker().expect("the system has sockets");
            let interfaces = Interfaces::new(waker);
            let mut alone = Self { now: Time::START, interfaces, workers: Vec::new() };
            alone.change(&NodeConfig::default(), text);
            alone
        }

        fn change(&mut self, old: &NodeConfig, text: &str) {
            let new = NodeConfig::read("test", text).expect("a configuration");
            for change in old.diff(&new) {
                self.interfaces.make(self.now, &change);
            }
        }

        fn step(&mut self, after: Duration) {
            self.now = self.now + after;
            let mut threads = NoThreads(&mut self.workers);
            self.interfaces.step(self.now, &mut threads);
        }

        fn count(&self, of: &str) -> usize {
            self.workers.iter().filter(|(name, _)| name == of).count()
        }

        /// Steps until all attempts at devices are over.
        fn step_until_idle(&mut self) {
            self.step(Duration::ZERO);
            let is_opening =
                |shared: &SharedDevice| matches!(shared.state, DeviceState::Opening(_));
            while self.interfaces.devices.values().any(is_opening) {
                std::thread::yield_now();
                self.step(Duration::ZERO);
            }
        }

        fn outage(&self, name: &str) -> String {
            match &self.interfaces.all[name].interface {
                Ok(_) => String::new(),
                Err(outage) => format!("{}: {outage}", outage.state()),
            }
        }

        /// The QPN, which differs between an interface and its successor of the same name.
        fn qpn(&self, name: &str) -> Option<pollux_wire::address::Qpn> {
            let interface = self.interfaces.all[name].interface.as_ref();
            Some(interface.ok()?.ipoib()?.control().row().address.qpn)
        }
    }

    /// Interfaces at one port of a fabric, each in its own partition, with these numbers of
    /// workers.
    fn at_one_port(fabric: &Embedded, workers: &[u8]) -> String {
        let device = format!("soft:{}@host1", fabric.path().display());
        let interface = |(nth, workers): (usize, &u8)| {
            let p_key = [0xffff, 0x8001, 0x8002, 0x8003][nth];
            format!(
                "[interface.ib{nth}]\ndevice = {device:?}\nworkers = {workers}\npkey = {p_key}\n"
            )
        };
        workers.iter().enumerate().map(interface).collect()
    }

    #[test]
    fn an_interface_that_cannot_be_set_up_leaves_those_beside_it_alone() {
        let fabric = Embedded::start("single:1").expect("it starts");
        // The port has 32 contexts: one for control, and 31 for workers.
        let mut node = Alone::new(&at_one_port(&fabric, &[8, 8, 8, 8]));
        assert_eq!(node.outage("ib0"), "opening: the device is being opened");
        node.step_until_idle();
        let healthy = node.qpn("ib0");
        assert!(healthy.is_some() && node.count("ib0") == 8, "{}", node.outage("ib0"));
        for _ in 0..20 {
            assert!(node.outage("ib3").starts_with("failed: no space at the device for"));
            node.step(REOPEN_EVERY);
            assert_eq!((node.qpn("ib0"), node.count("ib0")), (healthy, 8));
        }
    }

    #[test]
    fn an_interface_that_fails_is_set_up_again_while_another_runs() {
        let fabric = Embedded::start("single:1").expect("it starts");
        let mut node = Alone::new(&at_one_port(&fabric, &[2, 1]));
        node.step_until_idle();
        let (first, healthy) = (node.qpn("ib0"), node.qpn("ib1"));
        assert!(first.is_some() && healthy.is_some());
        // An interface fails when its workers are dropped.
        node.workers.retain(|(name, _)| name != "ib0");
        node.step(Duration::ZERO);
        assert!(node.outage("ib0").starts_with("failed: "), "{}", node.outage("ib0"));
        node.step(REOPEN_EVERY);
        assert_eq!((node.outage("ib0"), node.count("ib0")), (String::new(), 2));
        assert_eq!(node.qpn("ib1"), healthy);
    }

    #[test]
    fn a_device_that_is_missing_is_waited_for_and_found() {
        let fabric = Embedded::start("single:1").expect("it starts");
        let link = std::env::temp_dir().join(format!("opening-{}", std::process::id()));
        let device = format!("soft:{}@host1", link.display());
        let mut node = Alone::new(&format!("[interface.ib0]\ndevice = {device:?}\n"));
        let mut due = Vec::new();
        for _ in 0..8 {
            node.step_until_idle();
            let output = node.outage("ib0");
            assert!(
                output.contains("no fabric listens at") && output.ends_with("; retrying"),
                "{output}"
            );
            assert!(output.starts_with("missing: soft:"), "{output}");
            let next = node.interfaces.poll_timeout().expect("it tries again");
            due.push(next.since_start() - node.now.since_start());
            node.now = next;
        }
        let ms = Duration::from_millis;
        let expected = [50, 100, 200, 400, 800, 1000, 1000, 1000].map(ms);
        assert_eq!(due, expected);
        let ports = |path: &std::path::Path| {
            path.with_file_name({
                let name = path.file_name().expect("it has one").to_string_lossy().into_owned();
                name + ".ports"
            })
        };
        std::os::unix::fs::symlink(ports(&fabric.path()), ports(&link)).expect("it is ours");
        node.step_until_idle();
        assert_eq!(node.outage("ib0"), "");
        let _ = std::fs::remove_file(ports(&link));
    }
}
