//! Devices of a worker's interfaces: opened when they are there, and looked for until then.
//!
//! ```text
//!              +-- nothing runs there, and it is time --> attempt, on a thread of its own --+
//!              |                                               |                            |
//!   missing, failed <-- no device ---------------------- opens or not                       |
//!      ^       ^                                               |                            |
//!      |       +-- the device refuses this one <-- set up, each by itself <-----------------+
//!      |                                               |
//!      +-- the device failed it <------------------ running
//! ```
//!
//! A device that is missing is a state of its interfaces, with a reason, and no error: it may come
//! later, and another may take its place. The thread of an attempt exists because a fabric may take
//! seconds to answer, in which the worker has other interfaces to move.
//!
//! Interfaces at one device share its port and nothing else. One that cannot be set up there, or
//! fails, is set up again beside the others, which stay. The device itself is opened again only
//! when no interface is left there.

use super::REOPEN_EVERY;
use crate::config::InterfaceSettings;
use crate::device::{self, OpenError, Opened};
use crate::interface::port_driver::DeviceError;
use crate::interface::{Interface, SecondaryWorker};
use crate::port::{PortAccess, SharedPort};
use pollux_control::interface::Worker;
use pollux_verbs::VerbsError;
use pollux_verbs::time::Time;
use std::collections::BTreeMap;
use std::fmt;
use std::net::IpAddr;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, SyncSender, TryRecvError, sync_channel};
use std::thread::Builder;
use std::time::Duration;

/// When a device is looked for again, the first time; each next time it takes twice as long.
const RETRY_MIN: Duration = Duration::from_millis(50);

/// An interface as the configuration names it.
pub(super) struct Named {
    pub(super) settings: InterfaceSettings,
    /// The interface, or why there is none.
    pub(super) interface: Result<Interface, Outage>,
    retry: Retry,
    /// What it was said to be last.
    pub(super) said: String,
}

/// Why an interface does not run. It is tried again.
#[derive(Clone, Debug)]
pub(super) enum Outage {
    /// Its device was not looked for yet.
    Pending,
    /// Its device cannot be opened.
    Missing(Arc<OpenError>),
    /// Its device was opened, but its port cannot be shared.
    Unusable(VerbsError),
    /// The device has not what the interface needs.
    Refused(Arc<DeviceError>),
    /// The device failed while the interface ran.
    Failed(VerbsError),
}

impl Outage {
    /// In a word.
    pub(super) const fn state(&self) -> &'static str {
        match self {
            Self::Pending => "opening",
            Self::Missing(_) => "missing",
            Self::Unusable(_) | Self::Refused(_) | Self::Failed(_) => "failed",
        }
    }
}

impl fmt::Display for Outage {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Pending => f.write_str("the device is being opened"),
            Self::Missing(error) => write!(f, "{error}; retrying"),
            Self::Refused(error) => write!(f, "{error}; retrying"),
            Self::Unusable(error) | Self::Failed(error) => write!(f, "{error}; retrying"),
        }
    }
}

/// When to try again: soon at first, then less often.
#[derive(Clone, Copy)]
struct Retry {
    at: Time,
    delay: Duration,
}

impl Retry {
    const fn new(at: Time) -> Self {
        Self { at, delay: RETRY_MIN }
    }

    /// It helped. If that is not for long, nobody is to try all the time.
    fn helped(&mut self, now: Time) {
        *self = Self::new(now + REOPEN_EVERY);
    }

    /// It did not help.
    fn later(&mut self, now: Time) {
        self.at = now + self.delay;
        self.delay = (self.delay * 2).min(REOPEN_EVERY);
    }
}

/// A device that interfaces are to be at.
struct Site {
    /// An attempt to open it, under way.
    attempt: Option<Receiver<Result<Opened, OpenError>>>,
    retry: Retry,
    /// Its port, if several interfaces are to share it and one of them does.
    shared: Option<SharedPort>,
}

/// Secondary workers on their way to a thread, at most: it is slow, or does no housekeeping.
const SECONDARIES_MAX: usize = 256;

/// A secondary worker, and the name of its interface.
pub(super) type NamedWorker = (String, SecondaryWorker);

/// One worker's way to all of a node's, itself counted.
pub(super) struct WorkerSenders {
    own: usize,
    all: Vec<SyncSender<NamedWorker>>,
}

/// The ways of so many workers to each other, and where secondary workers arrive.
pub(super) fn worker_senders(count: usize) -> Vec<(WorkerSenders, Receiver<NamedWorker>)> {
    let (all, arrivals): (Vec<_>, Vec<_>) =
        (0..count).map(|_| sync_channel(SECONDARIES_MAX)).unzip();
    let of = |(own, arrivals)| (WorkerSenders { own, all: all.clone() }, arrivals);
    arrivals.into_iter().enumerate().map(of).collect()
}

impl WorkerSenders {
    /// The number, among the node's, of one of the workers of an interface of this one's.
    pub(super) fn number(&self, worker: Worker) -> usize {
        (self.own + usize::from(worker.0)) % self.all.len()
    }

    /// Sends each secondary worker to its thread. Without space there it is dropped, and its
    /// interface fails.
    fn distribute(&self, name: &str, secondaries: Vec<SecondaryWorker>) {
        for secondary in secondaries {
            let _ = self.all[self.number(secondary.worker())].try_send((name.into(), secondary));
        }
    }
}

/// A worker's interfaces by name, and their devices.
pub(super) struct Interfaces {
    pub(super) all: BTreeMap<String, Named>,
    sites: BTreeMap<String, Site>,
}

impl Interfaces {
    /// They are to be; nothing is opened yet.
    pub(super) fn new(now: Time, settings: BTreeMap<String, InterfaceSettings>) -> Self {
        let site = || Site { attempt: None, retry: Retry::new(now), shared: None };
        let sites = settings.values().map(|one| (one.device.clone(), site())).collect();
        let named = |(name, settings)| {
            let (interface, retry) = (Err(Outage::Pending), Retry::new(now));
            (name, Named { settings, interface, retry, said: String::new() })
        };
        Self { all: settings.into_iter().map(named).collect(), sites }
    }

    /// Whether all are at one device.
    pub(super) fn have_one_device(&self) -> bool {
        self.sites.len() == 1
    }

    pub(super) fn running(&mut self) -> impl Iterator<Item = &mut Interface> {
        self.all.values_mut().flat_map(|named| &mut named.interface)
    }

    /// Does what there is to do; says whether that was anything.
    pub(super) fn step(&mut self, now: Time, senders: &WorkerSenders) -> bool {
        let Self { all, sites } = self;
        let mut busy = false;
        let mut all_run = true;
        for named in all.values_mut() {
            busy |= named.step(now);
            all_run &= named.interface.is_ok();
        }
        if !all_run {
            for (device, site) in sites {
                busy |= site.step(now, device, all, senders);
            }
        }
        busy
    }

    /// When there is something to do though nothing comes.
    pub(super) fn poll_timeout(&self) -> Option<Time> {
        let due = |named: &Named| match &named.interface {
            Ok(interface) => interface.poll_timeout(),
            Err(_) => {
                let site = self.sites.get(&named.settings.device)?;
                let is_next = site.shared.is_none();
                // The thread of an attempt wakes this one.
                if is_next && site.attempt.is_some() {
                    return None;
                }
                Some(if is_next { site.retry.at } else { named.retry.at })
            }
        };
        self.all.values().filter_map(due).min()
    }
}

impl Site {
    /// Goes on with what does not run at this device; says whether anything came of it.
    fn step(
        &mut self,
        now: Time,
        device: &str,
        all: &mut BTreeMap<String, Named>,
        senders: &WorkerSenders,
    ) -> bool {
        let here = all.iter_mut().filter(|(_, named)| named.settings.device == device);
        let mut here: Vec<_> = here.collect();
        if here.iter().any(|(_, named)| named.interface.is_ok()) {
            return self.set_up_beside(now, &mut here, senders);
        }
        // A port is opened once: whatever is left of it goes first.
        self.shared = None;
        let Some(opened) = self.open(now, device) else { return false };
        let accesses = opened
            .map_err(|error| Outage::Missing(Arc::new(error)))
            .and_then(|opened| self.accesses(opened, &here).map_err(Outage::Unusable));
        let mut is_used = false;
        match accesses {
            Err(outage) => {
                here.iter_mut().for_each(|(_, named)| named.interface = Err(outage.clone()));
            }
            Ok(accesses) => {
                for ((name, named), access) in here.iter_mut().zip(accesses) {
                    is_used |= named.set_up(now, name, access, senders);
                }
            }
        }
        match is_used {
            true => self.retry.helped(now),
            false => self.retry.later(now),
        }
        is_used
    }

    /// Tries those again that do not run beside those that do, whose port it is, too.
    fn set_up_beside(
        &mut self,
        now: Time,
        here: &mut [(&String, &mut Named)],
        senders: &WorkerSenders,
    ) -> bool {
        let Some(port) = &self.shared else { return false };
        let mut busy = false;
        for (name, named) in here {
            if named.interface.is_err() && named.retry.at <= now {
                let access = port.context(named.settings.pkey).into();
                busy |= named.set_up(now, name, access, senders);
            }
        }
        busy
    }

    /// The device, or why there is none, once an attempt is over; begins one when it is time.
    fn open(&mut self, now: Time, device: &str) -> Option<Result<Opened, OpenError>> {
        let Some(attempt) = &self.attempt else {
            if self.retry.at <= now {
                self.begin_attempt(now, device);
            }
            return None;
        };
        let outcome = match attempt.try_recv() {
            Err(TryRecvError::Empty) => return None,
            Err(TryRecvError::Disconnected) => None,
            Ok(outcome) => Some(outcome),
        };
        self.attempt = None;
        if outcome.is_none() {
            self.retry.later(now);
        }
        outcome
    }

    fn begin_attempt(&mut self, now: Time, device: &str) {
        let (sender, attempt) = sync_channel(1);
        let (name, worker) = (device.to_owned(), std::thread::current());
        let thread = Builder::new().name("open".into()).spawn(move || {
            // Whoever wanted it may have ended.
            let _ = sender.try_send(device::open(&name));
            worker.unpark();
        });
        match thread {
            Ok(_) => self.attempt = Some(attempt),
            Err(_) => self.retry.later(now),
        }
    }

    /// A place for each interface.
    fn accesses(
        &mut self,
        opened: Opened,
        here: &[(&String, &mut Named)],
    ) -> Result<Vec<PortAccess>, VerbsError> {
        if let [_alone] = here {
            return Ok(vec![opened.into()]);
        }
        let port = self.shared.insert(SharedPort::new(opened)?);
        Ok(here.iter().map(|(_, named)| port.context(named.settings.pkey).into()).collect())
    }
}

impl Named {
    /// Sets its interface up; says whether it runs now.
    fn set_up(
        &mut self,
        now: Time,
        name: &str,
        access: PortAccess,
        senders: &WorkerSenders,
    ) -> bool {
        match Interface::with_workers(now, access, &self.settings, super::seed()) {
            Ok((interface, secondaries)) => {
                senders.distribute(name, secondaries);
                self.interface = Ok(interface);
                self.retry.helped(now);
            }
            Err(error) => {
                self.interface = Err(Outage::Refused(Arc::new(error)));
                self.retry.later(now);
            }
        }
        self.interface.is_ok()
    }

    fn step(&mut self, now: Time) -> bool {
        let Ok(interface) = &mut self.interface else { return false };
        let busy = interface.step(now);
        if let Some(error) = interface.failed() {
            self.interface = Err(Outage::Failed(error.clone()));
        }
        busy
    }

    pub(super) fn state(&self) -> String {
        match &self.interface {
            Err(outage) => format!("{}: {outage}", outage.state()),
            Ok(interface) => {
                let row = interface.control().row();
                format!("{}: {}", row.state, row.why)
            }
        }
    }

    /// Whether it may get addresses or routes that it has not: it is not up, or asks a server.
    pub(super) fn is_coming_up(&self) -> bool {
        let Ok(interface) = &self.interface else { return true };
        let control = interface.control();
        let has_lease = || control.addresses().iter().any(|one| one.ip.is_ipv4());
        !control.is_up() || self.settings.asks_for_address() && !has_lease()
    }

    /// Whether packets to this address are to go by it, once it runs, as far as its settings say.
    pub(super) fn may_lead_to(&self, to: IpAddr) -> bool {
        let is_of_family = |ip: &IpAddr| ip.is_ipv4() == to.is_ipv4();
        let settings = &self.settings;
        let is_local = matches!(to, IpAddr::V6(ip) if ip.is_unicast_link_local());
        is_local && settings.ipv6
            || settings.fixed_addresses().any(|prefix| prefix.contains(to))
            || settings.router.iter().any(is_of_family)
            || settings.asks_for_address() && to.is_ipv4()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::NodeConfig;
    use crate::fabric::Embedded;

    /// A worker that is alone, and a fabric.
    struct Alone {
        now: Time,
        interfaces: Interfaces,
        senders: WorkerSenders,
        arrivals: Receiver<NamedWorker>,
        secondaries: Vec<NamedWorker>,
    }

    impl Alone {
        fn new(text: &str) -> Self {
            let settings = NodeConfig::read("test", text).expect("a configuration").interfaces;
            let mut workers = worker_senders(1);
            let (senders, arrivals) = workers.remove(0);
            let (now, secondaries) = (Time::START, Vec::new());
            let interfaces = Interfaces::new(now, settings);
            Self { now, interfaces, senders, arrivals, secondaries }
        }

        fn step(&mut self, after: Duration) {
            self.now = self.now + after;
            self.interfaces.step(self.now, &self.senders);
            self.secondaries.extend(self.arrivals.try_iter());
        }

        /// Steps until all attempts at devices are over.
        fn settle(&mut self) {
            self.step(Duration::ZERO);
            while self.interfaces.sites.values().any(|site| site.attempt.is_some()) {
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

        /// What tells one interface of a name from the next.
        fn qpn(&self, name: &str) -> Option<pollux_wire::address::Qpn> {
            let interface = self.interfaces.all[name].interface.as_ref();
            interface.ok().map(|interface| interface.driver().qpn())
        }
    }

    /// Two interfaces at a port of a fabric, with so many workers each.
    fn two_at(fabric: &Embedded, workers: [u8; 2]) -> String {
        let device = format!("soft:{}@host1", fabric.path().display());
        let [one, other] = workers;
        format!(
            "[interface.ib0]\ndevice = {device:?}\nworkers = {one}\n\
             [interface.ib1]\ndevice = {device:?}\nworkers = {other}\npkey = 0x8001\n"
        )
    }

    #[test]
    fn an_interface_that_cannot_be_set_up_leaves_the_one_beside_it_alone() {
        let fabric = Embedded::start("single:1").expect("it starts");
        let mut node = Alone::new(&two_at(&fabric, [8, 2]));
        assert_eq!(node.outage("ib0"), "opening: the device is being opened");
        node.settle();
        let (healthy, secondaries) = (node.qpn("ib0"), node.secondaries.len());
        assert!(healthy.is_some() && secondaries == 7, "{}", node.outage("ib0"));
        for _ in 0..20 {
            assert!(node.outage("ib1").starts_with("failed: no space at the device for"));
            node.step(REOPEN_EVERY);
            assert_eq!((node.qpn("ib0"), node.secondaries.len()), (healthy, secondaries));
        }
    }

    #[test]
    fn an_interface_that_fails_comes_back_beside_the_one_that_does_not() {
        let fabric = Embedded::start("single:1").expect("it starts");
        let mut node = Alone::new(&two_at(&fabric, [2, 1]));
        node.settle();
        let (first, healthy) = (node.qpn("ib0"), node.qpn("ib1"));
        assert!(first.is_some() && healthy.is_some());
        // Its second worker ends, without which it cannot go on.
        node.secondaries.clear();
        node.step(Duration::ZERO);
        assert!(node.outage("ib0").starts_with("failed: "), "{}", node.outage("ib0"));
        node.step(REOPEN_EVERY);
        assert_eq!((node.outage("ib0"), node.secondaries.len()), (String::new(), 1));
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
            node.settle();
            let said = node.outage("ib0");
            assert!(
                said.contains("no fabric listens at") && said.ends_with("; retrying"),
                "{said}"
            );
            assert!(said.starts_with("missing: soft:"), "{said}");
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
        node.settle();
        assert_eq!(node.outage("ib0"), "");
        let _ = std::fs::remove_file(ports(&link));
    }
}
