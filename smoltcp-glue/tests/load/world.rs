//! Hosts with sockets at the ports of a managed subnet, in virtual time, one thread and from a
//! seed.
//!
//! A host is all that an application links: sockets, interface, device. Programs ([`Program`]) run
//! on it, each a state machine that takes a turn after every event. When all are idle, the clock
//! advances to the next deadline of a host, a program or the network.

use crate::device::CountedDevice;
use crate::net_world::NetWorld;
use pollux::Mode;
use pollux::host::Host;
use pollux::stack::StackConfig;
use pollux_fabric::link::Wire;
use pollux_fabric::net::Net;
use pollux_fabric::sm;
use pollux_fabric::subnet::Subnet;
use pollux_fabric::topology::{End, Topology};
use pollux_fabric::{Adapter, SoftDevice};
use pollux_node::Opened;
use pollux_node::config::{
    AddressSetting, DEFAULT_DOMAIN, FrameAccess, InterfaceKind, InterfaceSettings, Prefix, RpfMode,
};
use pollux_verbs::rng::SeededRng;
use pollux_verbs::time::Time;
use pollux_wire::keys::PKey;
use pollux_wire::mad::smp::NodeType;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

/// The minimum interval at which an interface polls its control plane.
const CONTROL_POLL: Duration = Duration::from_micros(20);
/// The interval at which a host reads addresses and MTUs from its interface.
const HOST_POLL: Duration = Duration::from_millis(10);
/// The maximum number of steps without progress of time.
const STEPS_AT_A_TIME_MAX: u32 = 1_000_000;

/// The outcome of a program's turn.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Turn {
    /// The program did something.
    Busy,
    /// The program is idle until the next event, or until that time.
    Waits(Option<Time>),
    /// The program has ended.
    Over,
}

/// A program of a host.
pub trait Program {
    /// Does what can be done now.
    fn turn(&mut self, host: &mut Host, now: Time) -> Turn;
}

/// A port of the fabric, with or without a host.
pub struct HostSlot {
    pub end: End,
    pub settings: InterfaceSettings,
    pub config: StackConfig,
    pub host: Option<Host>,
    /// Its programs and their deadlines.
    programs: Vec<(Box<dyn Program>, Option<Time>)>,
    /// Queue pairs at its device.
    qps: Arc<AtomicUsize>,
}

/// The fabric with all hosts.
pub struct World {
    pub net: NetWorld,
    pub slots: Vec<HostSlot>,
    pub rng: SeededRng,
    /// The next polls of all hosts after an event.
    control_poll: Option<Time>,
    host_poll: Option<Time>,
    turns: u32,
}

/// The address of a host.
pub fn ip(nth: usize) -> IpAddr {
    Ipv4Addr::from(0x0a00_0001 + nth as u32).into()
}

/// A port of a host.
pub fn at(nth: usize, port: u16) -> SocketAddr {
    SocketAddr::new(ip(nth), port)
}

impl World {
    /// A switch with a manager and a host for each mode, all up.
    pub fn new(seed: u64, modes: &[Mode], wire: Wire, config: &StackConfig) -> Self {
        let spec = format!("single:{}", modes.len() + 1);
        let topology = Topology::generate(&spec, 1).expect("a topology");
        let nodes = (0..).zip(topology.nodes());
        let hosts = nodes.filter(|(_, node)| node.kind == NodeType::CHANNEL_ADAPTER);
        let ends: Vec<_> = hosts.map(|(node, _)| End { node, port: 1 }).collect();
        let mut rng = SeededRng::new(seed);
        let net = NetWorld::new(Net::new(Subnet::new(topology), rng.next_u64(), wire));
        net.start_manager(ends[0], sm::SmConfig::default());
        let slots = modes.iter().enumerate().map(|(nth, mode)| HostSlot {
            end: ends[nth + 1],
            settings: settings(nth, *mode),
            config: config.clone(),
            host: None,
            programs: Vec::new(),
            qps: Arc::default(),
        });
        let slots = slots.collect();
        let mut world = Self { net, slots, rng, control_poll: None, host_poll: None, turns: 0 };
        (0..modes.len()).for_each(|nth| world.start(nth));
        world.until("all are up", Duration::from_secs(60), |world| {
            world.slots.iter().all(HostSlot::is_up)
        });
        // Hosts learn their addresses.
        world.pass(2 * HOST_POLL);
        world
    }

    pub fn now(&self) -> Time {
        self.net.now()
    }

    /// Starts a host, with a new adapter.
    pub fn start(&mut self, nth: usize) {
        let seeds = [self.rng.next_u64(), self.rng.next_u64()];
        let (now, net) = (self.now(), &self.net);
        let slot = &mut self.slots[nth];
        let adapter = Adapter::new(net.net().port(slot.end));
        let soft = SoftDevice::new("soft", adapter, net.link(slot.end));
        let device = Box::new(CountedDevice::new(Box::new(soft), Arc::clone(&slot.qps)));
        let opened = Opened { device, port: 1, fabric: None, management: None };
        let host = Host::new(now, opened, &slot.settings, slot.config.clone(), seeds);
        slot.host = Some(host.expect("the adapter has all that it needs"));
        self.control_poll = Some(now);
    }

    /// Removes a host and its programs without a notice to its peers.
    pub fn kill(&mut self, nth: usize) {
        let slot = &mut self.slots[nth];
        slot.programs.clear();
        slot.host = None;
    }

    /// Starts a program, if there is a host.
    pub fn run(&mut self, nth: usize, program: impl Program + 'static) {
        let now = self.now();
        let slot = &mut self.slots[nth];
        if slot.host.is_some() {
            slot.programs.push((Box::new(program), Some(now)));
            self.control_poll = Some(now);
        }
    }

    /// Plugs or unplugs the cable of a host.
    pub fn set_cable(&mut self, nth: usize, is_in: bool) {
        self.net.net_mut().set_cable(self.slots[nth].end, is_in);
        self.control_poll = Some(self.now());
    }

    /// The number of running programs.
    pub fn programs(&self) -> usize {
        self.slots.iter().map(|slot| slot.programs.len()).sum()
    }

    /// Steps until the time has passed.
    pub fn pass(&mut self, time: Duration) {
        let end = self.now() + time;
        while self.step(end) {}
    }

    /// Steps until `is` holds, within `limit`.
    pub fn until(&mut self, what: &str, limit: Duration, mut is: impl FnMut(&mut Self) -> bool) {
        let end = self.now() + limit;
        while !is(self) {
            assert!(self.step(end), "{what}: not within {limit:?}");
        }
    }

    /// Steps all hosts, then advances the time, until `end`; returns whether that is still ahead.
    pub fn step(&mut self, end: Time) -> bool {
        let now = self.now();
        let is_busy = self.slots.iter_mut().fold(false, |busy, slot| slot.turn(now) | busy);
        if is_busy {
            self.note(now);
        }
        if now >= end {
            return false;
        }
        let due = self.slots.iter().filter_map(|slot| slot.due(now));
        let next =
            due.chain([self.control_poll, self.host_poll, Some(end)].into_iter().flatten()).min();
        let has_happened = self.net.step_until(next.unwrap_or(end).max(now));
        let then = self.now();
        for poll in [&mut self.control_poll, &mut self.host_poll] {
            poll.take_if(|poll| *poll <= then);
        }
        if has_happened {
            self.note(then);
        }
        self.turns = if then > now { 0 } else { self.turns + 1 };
        assert!(self.turns < STEPS_AT_A_TIME_MAX, "no progress of time at {now:?}");
        true
    }

    /// After an event: schedules the polls of hosts.
    fn note(&mut self, now: Time) {
        self.control_poll.get_or_insert(now + CONTROL_POLL);
        self.host_poll.get_or_insert(now + HOST_POLL);
    }
}

impl HostSlot {
    pub fn is_up(&self) -> bool {
        let control = self.host.as_ref().and_then(|host| host.control());
        control.is_some_and(|it| it.is_up() && it.addresses().source_for(ip(0)).is_some())
    }

    /// The host.
    pub fn host(&mut self) -> &mut Host {
        self.host.as_mut().expect("the host is there")
    }

    /// The link at its port.
    pub fn link(&self, net: &Net) -> u32 {
        let node = &net.subnet().topology().nodes()[self.end.node as usize];
        node.ports[usize::from(self.end.port)].link.expect("a link")
    }

    /// Queue pairs at its device.
    pub fn qps(&self) -> usize {
        self.qps.load(Ordering::Relaxed)
    }

    /// Steps the host and its programs until all are idle; returns whether there was anything to
    /// do.
    fn turn(&mut self, now: Time) -> bool {
        let Some(host) = &mut self.host else { return false };
        let mut busy = false;
        loop {
            // MADs for the control plane are handled at the same time.
            let mut is_active = host.step(now) | host.step_control(now);
            let is_new = is_active;
            self.programs.retain_mut(|(program, due)| {
                if !is_new && due.is_none_or(|due| due > now) {
                    return true;
                }
                match program.turn(host, now) {
                    Turn::Busy => (*due, is_active) = (Some(now), true),
                    Turn::Waits(until) => *due = until,
                    Turn::Over => {
                        is_active = true;
                        return false;
                    }
                }
                true
            });
            if !is_active {
                let failed = host.failed();
                assert!(failed.is_none(), "an interface has failed: {failed:?}");
                return busy;
            }
            busy = true;
        }
    }

    /// The next deadline of the host and its programs.
    fn due(&self, now: Time) -> Option<Time> {
        let host = self.host.as_ref()?.poll_timeout();
        // A deadline that has passed waits for the next poll of the control plane.
        let host = host.map(|due| if due > now { due } else { now + CONTROL_POLL });
        let programs = self.programs.iter().filter_map(|(_, due)| *due).min();
        [host, programs].into_iter().flatten().min()
    }
}

fn settings(nth: usize, mode: Mode) -> InterfaceSettings {
    InterfaceSettings {
        kind: InterfaceKind::Ipoib,
        device: String::new(),
        management: None,
        pkey: PKey::DEFAULT,
        mode,
        mtu: StackConfig::default().mtu,
        workers: 1,
        peer: Vec::new(),
        address: vec![AddressSetting::Fixed(Prefix { ip: ip(nth), len: 24 })],
        router: Vec::new(),
        neighbor: Vec::new(),
        ipv6: false,
        domain: DEFAULT_DOMAIN.into(),
        acl_in: None,
        acl_out: None,
        rpf: RpfMode::Off,
        shadow: None,
        kernel_address: Vec::new(),
        vlan: None,
        frames: FrameAccess::Auto,
    }
}
