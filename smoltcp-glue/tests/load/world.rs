//! Hosts with sockets at the ports of a managed subnet, in virtual time, one thread and from a
//! seed.
//!
//! A host is all that an application links: sockets, interface, device. Programs ([`Program`]) run
//! on it, each a state machine that is asked what it has to do whenever something happened. When
//! nobody has anything to do, the clock moves to whatever is due next: at a host, with a program or
//! on the way.

use crate::device::Tallied;
use pollux::Mode;
use pollux::host::Host;
use pollux::stack::StackConfig;
use pollux_fabric::link::Wire;
use pollux_fabric::net::Net;
use pollux_fabric::net::world::NetWorld;
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

/// An interface looks at its control side this long after it did, at the earliest.
const SETTLE: Duration = Duration::from_micros(20);
/// And a host at what its interface has decided.
const LOOK: Duration = Duration::from_millis(10);
/// Turns at one moment after which time stands still.
const TURNS_AT_A_MOMENT_MAX: u32 = 1_000_000;

/// What a program says of itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Turn {
    /// It did something.
    Busy,
    /// There is nothing to do for it before something happens, or before that moment.
    Waits(Option<Time>),
    /// It has come to its end.
    Over,
}

/// What runs on a host.
pub trait Program {
    /// Does what can be done now.
    fn turn(&mut self, host: &mut Host, now: Time) -> Turn;
}

/// A place for a host, which may be there or not.
pub struct HostSlot {
    pub end: End,
    pub settings: InterfaceSettings,
    pub config: StackConfig,
    pub host: Option<Host>,
    /// Its programs, and when they are to be asked though nothing happens.
    programs: Vec<(Box<dyn Program>, Option<Time>)>,
    /// Queue pairs at its device.
    qps: Arc<AtomicUsize>,
}

/// All there is.
pub struct World {
    pub net: NetWorld,
    pub slots: Vec<HostSlot>,
    pub rng: SeededRng,
    /// When all are to be looked at again, since something happened.
    settle: Option<Time>,
    look: Option<Time>,
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
        let mut world = Self { net, slots, rng, settle: None, look: None, turns: 0 };
        (0..modes.len()).for_each(|nth| world.start(nth));
        world.until("all are up", Duration::from_secs(60), |world| {
            world.slots.iter().all(HostSlot::is_up)
        });
        // Hosts see that soon after.
        world.pass(2 * LOOK);
        world
    }

    pub fn now(&self) -> Time {
        self.net.now()
    }

    /// A host begins, at an adapter that knows nothing of any before.
    pub fn start(&mut self, nth: usize) {
        let seeds = [self.rng.next_u64(), self.rng.next_u64()];
        let (now, net) = (self.now(), &self.net);
        let slot = &mut self.slots[nth];
        let adapter = Adapter::new(net.net().port(slot.end));
        let soft = SoftDevice::new("soft", adapter, net.link(slot.end));
        let device = Box::new(Tallied::new(Box::new(soft), Arc::clone(&slot.qps)));
        let opened = Opened { device, port: 1, fabric: None, management: None };
        let host = Host::new(now, opened, &slot.settings, slot.config.clone(), seeds);
        slot.host = Some(host.expect("the adapter has all that it needs"));
        self.settle = Some(now);
    }

    /// A host is gone at once, with all its programs, and tells nobody.
    pub fn kill(&mut self, nth: usize) {
        let slot = &mut self.slots[nth];
        slot.programs.clear();
        slot.host = None;
    }

    /// A program begins on a host, if that is there.
    pub fn run(&mut self, nth: usize, program: impl Program + 'static) {
        let now = self.now();
        let slot = &mut self.slots[nth];
        if slot.host.is_some() {
            slot.programs.push((Box::new(program), Some(now)));
            self.settle = Some(now);
        }
    }

    /// A host's cable is pulled, or put back.
    pub fn set_cable(&mut self, nth: usize, is_in: bool) {
        self.net.net_mut().set_cable(self.slots[nth].end, is_in);
        self.settle = Some(self.now());
    }

    /// Programs that have not come to their end.
    pub fn programs(&self) -> usize {
        self.slots.iter().map(|slot| slot.programs.len()).sum()
    }

    /// Lets so much time pass.
    pub fn pass(&mut self, time: Duration) {
        let end = self.now() + time;
        while self.step(end) {}
    }

    /// Goes on until something is so, which may take so long.
    pub fn until(&mut self, what: &str, limit: Duration, mut is: impl FnMut(&mut Self) -> bool) {
        let end = self.now() + limit;
        while !is(self) {
            assert!(self.step(end), "{what}: not within {limit:?}");
        }
    }

    /// All do what they can, and time moves on; says whether it is not over yet.
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
        let next = due.chain([self.settle, self.look, Some(end)].into_iter().flatten()).min();
        let has_happened = self.net.step_until(next.unwrap_or(end).max(now));
        let then = self.now();
        for moment in [&mut self.settle, &mut self.look] {
            moment.take_if(|moment| *moment <= then);
        }
        if has_happened {
            self.note(then);
        }
        self.turns = if then > now { 0 } else { self.turns + 1 };
        assert!(self.turns < TURNS_AT_A_MOMENT_MAX, "time stands still at {now:?}");
        true
    }

    /// Something happened: whoever looks only now and then is to do so.
    fn note(&mut self, now: Time) {
        self.settle.get_or_insert(now + SETTLE);
        self.look.get_or_insert(now + LOOK);
    }
}

impl HostSlot {
    pub fn is_up(&self) -> bool {
        let control = self.host.as_ref().and_then(|host| host.control());
        control.is_some_and(|it| it.is_up() && it.addresses().source_for(ip(0)).is_some())
    }

    /// The host, which is there.
    pub fn host(&mut self) -> &mut Host {
        self.host.as_mut().expect("the host is there")
    }

    /// The link at its port.
    pub fn link(&self, net: &Net) -> u32 {
        let node = &net.subnet().topology().nodes()[self.end.node as usize];
        node.ports[usize::from(self.end.port)].link.expect("it has one")
    }

    /// Queue pairs at its device.
    pub fn qps(&self) -> usize {
        self.qps.load(Ordering::Relaxed)
    }

    /// Does what can be done now; says whether that was anything.
    fn turn(&mut self, now: Time) -> bool {
        let Some(host) = &mut self.host else { return false };
        let mut busy = false;
        loop {
            // Time stands still while MADs wait for control.
            let mut goes_on = host.step(now) | host.step_control(now);
            let is_new = goes_on;
            self.programs.retain_mut(|(program, due)| {
                if !is_new && due.is_none_or(|due| due > now) {
                    return true;
                }
                match program.turn(host, now) {
                    Turn::Busy => (*due, goes_on) = (Some(now), true),
                    Turn::Waits(until) => *due = until,
                    Turn::Over => {
                        goes_on = true;
                        return false;
                    }
                }
                true
            });
            if !goes_on {
                let failed = host.failed();
                assert!(failed.is_none(), "an interface does not run any more: {failed:?}");
                return busy;
            }
            busy = true;
        }
    }

    /// When it is to be looked at though nothing comes.
    fn due(&self, now: Time) -> Option<Time> {
        let host = self.host.as_ref()?.poll_timeout();
        // What was due and was not done waits for the interface to look.
        let host = host.map(|due| if due > now { due } else { now + SETTLE });
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
