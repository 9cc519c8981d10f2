//! An interface of ours at a port, and the machine's clock.

use pollux_control::ipoib as control;
use pollux_control::ipoib::connected::ConnectionRow;
use pollux_node::config::{InterfaceSettings, NodeConfig};
use pollux_node::interface::echo::{EchoId, EchoOutcome, EchoRequest};
use pollux_node::interface::port_driver::PortDriver;
use pollux_node::interface::{Inline, InterfaceWorker, IpoibLink, NotSent, PingError};
use pollux_node::port::{DevicePort, PortAccess};
use pollux_node::{Opened, open};
use pollux_verbs::VerbsError;
use pollux_verbs::time::Time;
use std::net::IpAddr;
use std::time::{Duration, Instant};

/// The timeout of each step, ten times what a step takes.
pub const TIMEOUT: Duration = Duration::from_secs(30);

/// How long idle hosts leave the processor to the guest and the fabric, which they wait for.
const IDLE_SLEEP: Duration = Duration::from_micros(100);

/// An interface whose first worker runs in the thread of its control plane.
pub struct Host(pub Inline);

impl Host {
    /// An interface, and its other workers.
    pub fn with_workers(
        now: Time,
        access: impl Into<PortAccess>,
        settings: &InterfaceSettings,
        seed: u64,
    ) -> (Self, Vec<InterfaceWorker>) {
        let opened = IpoibLink::new(now, access, settings, seed);
        let (interface, mut workers) = opened.expect("it has all it needs");
        let worker = workers.remove(0);
        (Self(Inline { worker, interface: Some(interface) }), workers)
    }

    pub fn interface(&self) -> &IpoibLink {
        self.0.interface.as_ref().expect("it is there")
    }

    pub fn interface_mut(&mut self) -> &mut IpoibLink {
        self.0.interface.as_mut().expect("it is there")
    }

    pub fn control(&self) -> &control::IpoibInterface {
        self.interface().control()
    }

    pub const fn driver(&self) -> &PortDriver {
        self.0.worker.driver()
    }

    pub fn failed(&self) -> Option<&VerbsError> {
        self.0.failed()
    }

    pub fn step(&mut self, now: Time) -> bool {
        self.0.step(now)
    }

    pub fn send(&mut self, now: Time, packet: &[u8]) -> Result<(), NotSent> {
        self.0.worker.send(now, packet)
    }

    pub fn ping(
        &mut self,
        now: Time,
        to: IpAddr,
        bytes: usize,
        timeout: Duration,
    ) -> Result<EchoId, PingError> {
        self.interface_mut().ping(now, EchoRequest::new(to, bytes, timeout))
    }

    pub fn echo(&mut self, id: EchoId) -> Option<EchoOutcome> {
        self.interface_mut().echo(id).map(|(outcome, _)| outcome)
    }

    pub fn leave(&mut self, now: Time) {
        self.interface_mut().leave(now);
    }

    pub fn has_left(&self) -> bool {
        self.interface().has_disconnected()
    }
}

/// Interfaces of ours, on one clock.
pub struct Hosts {
    pub hosts: Vec<Host>,
    start: Instant,
    skipped: Duration,
}

impl Hosts {
    /// An interface at each of these devices, with its address, of this mode.
    pub fn at(devices: &[(String, &str)], mode: &str) -> Self {
        Self::with(devices, &format!("mode = {mode:?}"))
    }

    /// The same with these keys of their configuration.
    pub fn with<'a>(devices: &[(String, &'a str)], keys: &str) -> Self {
        let opened = |(name, address): &(String, &'a str)| (open_soon(name), *address);
        Self::opened(devices.iter().map(opened).collect(), keys)
    }

    /// The same at devices that are open.
    #[expect(clippy::disallowed_methods, reason = "processes at a fabric go by the clock")]
    pub fn opened(devices: Vec<(Opened, &str)>, keys: &str) -> Self {
        let start = Instant::now();
        let host = |((opened, address), seed): ((Opened, &str), u64)| {
            let settings = settings("soft:", address, keys);
            Host::with_workers(Time::START, opened, &settings, seed).0
        };
        let hosts = devices.into_iter().zip(1..).map(host).collect();
        Self { hosts, start, skipped: Duration::ZERO }
    }

    /// Interfaces that share a device, each with its address and other keys of its configuration.
    pub fn sharing(device: &str, interfaces: &[(&str, &str)]) -> Self {
        let mut hosts = Self::with(&[], "");
        let port = DevicePort::new(open(device).expect("the port is free")).expect("it is whole");
        for ((address, keys), seed) in interfaces.iter().zip(100..) {
            let settings = settings(device, address, keys);
            let context = port.context(settings.pkey).expect("it has space");
            hosts.hosts.push(Host::with_workers(Time::START, context, &settings, seed).0);
        }
        hosts
    }

    /// An interface with several workers at a device, in whose time these are, too.
    pub fn with_workers(device: &str, address: &str, keys: &str) -> (Host, Vec<InterfaceWorker>) {
        let settings = settings(device, address, keys);
        Host::with_workers(Time::START, open_soon(device), &settings, 7)
    }

    /// When their time began.
    pub const fn start(&self) -> Instant {
        self.start
    }

    /// Adds other hosts to these.
    pub fn join(&mut self, others: Self) {
        self.hosts.extend(others.hosts);
    }

    pub fn now(&self) -> Time {
        Time::START + self.start.elapsed() + self.skipped
    }

    /// So much time has gone by, as far as they can see.
    pub fn skip(&mut self, time: Duration) {
        self.skipped += time;
    }

    /// Lets all do what they can.
    #[expect(clippy::disallowed_methods, reason = "guests and fabrics go by the clock")]
    pub fn step(&mut self) {
        let now = self.now();
        let mut busy = false;
        for host in &mut self.hosts {
            busy |= host.step(now);
            assert_eq!(host.failed(), None);
        }
        if !busy {
            std::thread::sleep(IDLE_SLEEP);
        }
    }

    /// Goes on until something is so.
    pub fn until(&mut self, what: &str, mut is: impl FnMut(&mut Self) -> bool) {
        let begun = self.start.elapsed();
        while !is(self) {
            let rows: Vec<_> = self.hosts.iter().map(|host| host.control().row()).collect();
            assert!(self.start.elapsed() < begun + TIMEOUT, "{what}: never; {rows:?}");
            self.step();
        }
    }

    /// Waits until all are up, and their addresses are theirs.
    pub fn come_up(&mut self) {
        self.until("up", |hosts| {
            let is_ready = |host: &Host| {
                let addresses = host.control().addresses();
                host.control().is_up() && addresses.iter().all(|one| one.state.may_be_source())
            };
            hosts.hosts.iter().all(is_ready)
        });
    }

    /// The address that a host's port gives it.
    pub fn link_local(&self, host: usize) -> String {
        self.hosts[host].control().addresses().link_local().expect("it is up").to_string()
    }

    /// The outcome of an echo request.
    pub fn ping(&mut self, from: usize, to: &str, bytes: usize) -> EchoOutcome {
        let to: IpAddr = to.parse().expect("an address");
        let now = self.now();
        let id = self.hosts[from].ping(now, to, bytes, Duration::from_secs(5));
        let id = id.expect("it is up, and has an address");
        let mut outcome = None;
        self.until("an answer, or none", |hosts| {
            outcome = hosts.hosts[from].echo(id);
            outcome.is_some()
        });
        outcome.expect("waited for")
    }

    /// Connections of a host by which packets are sent or received.
    pub fn connections(&self, host: usize) -> Vec<ConnectionRow> {
        let rows = self.hosts[host].control().connection_rows();
        rows.filter(|row| row.state == "open").collect()
    }

    /// An echo of so many bytes must come back. A machine that stands still for longer than the
    /// retries of a connection last costs that connection, and the next one is not asked for at
    /// once: until then long packets are refused, and are sent again here.
    pub fn must_answer(&mut self, from: usize, to: &str, bytes: usize) {
        let begun = self.now();
        loop {
            match self.ping(from, to, bytes) {
                EchoOutcome::Answered { bytes: received, .. } => {
                    return assert_eq!(received, bytes + 8);
                }
                EchoOutcome::NotSent(NotSent::TooBig(_)) if self.now() < begun + TIMEOUT => {
                    self.step();
                }
                other => panic!("{to}, {bytes} bytes: {other:?}"),
            }
        }
    }
}

/// Opens a port. An earlier process is gone as soon as the fabric has noticed.
#[expect(clippy::disallowed_methods, reason = "the fabric goes by the clock")]
fn open_soon(name: &str) -> Opened {
    let start = Instant::now();
    loop {
        match open(name) {
            Ok(opened) => return opened,
            Err(error) => assert!(start.elapsed() < TIMEOUT, "{error}"),
        }
        std::thread::yield_now();
    }
}

/// The settings of an interface.
pub fn settings(device: &str, address: &str, keys: &str) -> InterfaceSettings {
    let text = format!("[interface.ib0]\ndevice = {device:?}\naddress = [{address:?}]\n{keys}\n");
    let mut config = NodeConfig::read("test", &text).expect("it is a configuration");
    config.interfaces.remove("ib0").expect("it is there")
}
