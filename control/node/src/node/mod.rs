//! A node on the machine's clock: its interfaces, and the socket at which it is asked (`report`).
//!
//! One thread does it all, and naps when there is nothing to do: briefly at first, since traffic
//! comes in runs, then longer. An adapter in software has nothing that would wake it.

mod opening;
mod report;

use crate::admin::Admin;
use crate::config::NodeConfig;
use crate::device::OpenError;
use crate::interface::Interface;
use crate::interface::echo::EchoId;
use crate::interface::mover::DeviceError;
use opening::Named;
use pollux_verbs::time::Time;
use std::collections::BTreeMap;
use std::fmt;
use std::hash::{BuildHasher, RandomState};
use std::io;
use std::path::Path;
use std::time::{Duration, Instant};

/// Turns without anything to do before the first nap.
const TURNS_AWAKE: u32 = 1000;
const NAP_MIN: Duration = Duration::from_micros(20);
const NAP_MAX: Duration = Duration::from_millis(1);
/// How often a device is looked for that is gone.
const REOPEN_EVERY: Duration = Duration::from_secs(1);
/// How long leave is taken at the most.
const LEAVE_MAX: Duration = Duration::from_millis(500);
/// How often the socket is looked at, in turns with something to do.
const TURNS_PER_LOOK: u32 = 64;

/// Interfaces that run while somebody calls [`Node::run`].
pub struct Node {
    interfaces: BTreeMap<String, Named>,
    admin: Option<Admin>,
    /// Echo requests of those who ask, by the numbers of their questions.
    pings: BTreeMap<u64, (String, EchoId)>,
    start: Instant,
}

/// Why a node does not start: one sentence, and what to do.
#[derive(Debug)]
#[non_exhaustive]
pub enum StartError {
    /// A device cannot be opened.
    Open(String, OpenError),
    /// A device has not what an interface needs.
    Device(String, DeviceError),
    /// Another interface there failed, so its device is opened again.
    Beside(String, String),
    /// Nobody can ask.
    Socket(String, io::Error),
    /// There is nothing to run.
    Empty,
}

impl fmt::Display for StartError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Open(name, error) => write!(f, "interface {name}: {error}"),
            Self::Device(name, error) => write!(f, "interface {name}: {error}"),
            Self::Beside(name, device) => {
                write!(f, "interface {name}: {device} failed for another interface there")
            }
            Self::Socket(path, error) => write!(f, "socket {path}: {error}"),
            Self::Empty => f.write_str("the configuration has no interface; write [interface.ib0]"),
        }
    }
}

impl std::error::Error for StartError {}

impl Node {
    /// Opens all devices, and the socket.
    #[expect(clippy::disallowed_methods, reason = "this is where the machine's clock comes in")]
    pub fn new(config: NodeConfig, socket: Option<&Path>) -> Result<Self, StartError> {
        if config.interfaces.is_empty() {
            return Err(StartError::Empty);
        }
        let start = Instant::now();
        let interfaces = opening::open_all(Time::START + start.elapsed(), config.interfaces)?;
        let listen = |path: &Path| {
            let failed = |error| StartError::Socket(path.display().to_string(), error);
            Admin::listen(path).map_err(failed)
        };
        let admin = socket.map(listen).transpose()?;
        Ok(Self { interfaces, admin, pings: BTreeMap::new(), start })
    }

    /// Runs until `is_over` says so, and takes leave of peers and groups then. `say` hears what
    /// becomes of interfaces.
    pub fn run(&mut self, is_over: impl Fn() -> bool, mut say: impl FnMut(&str)) {
        let mut idle = 0;
        while !is_over() {
            let mut busy = false;
            for _ in 0..TURNS_PER_LOOK {
                busy = self.step();
                if !busy {
                    break;
                }
            }
            self.answer();
            self.tell(&mut say);
            idle = if busy { 0 } else { idle + 1 };
            nap(idle);
        }
        self.leave();
    }

    /// What others know of us they shall not find out by silence; but nobody is waited for long.
    fn leave(&mut self) {
        let (begun, all) = (self.now(), self.interfaces.values_mut());
        all.flat_map(|named| &mut named.interface).for_each(|interface| interface.leave(begun));
        let is_done = |node: &Self| {
            let mut all = node.interfaces.values().flat_map(|named| &named.interface);
            all.all(Interface::has_left)
        };
        while !is_done(self) && self.now() < begun + LEAVE_MAX {
            self.step();
        }
    }

    fn now(&self) -> Time {
        Time::START + self.start.elapsed()
    }

    fn step(&mut self) -> bool {
        let now = self.now();
        let all = self.interfaces.iter_mut();
        let busy = all.fold(false, |busy, (name, named)| named.step(now, name) | busy);
        busy | opening::reopen(now, &mut self.interfaces)
    }

    /// Answers questions.
    fn answer(&mut self) {
        let now = self.now();
        let Some(admin) = &mut self.admin else { return };
        let mut asked = report::Asked { interfaces: &mut self.interfaces, pings: &mut self.pings };
        admin.turn(now, &mut |number, question| asked.answer(now, number, question));
    }

    /// Says what has become of interfaces, where that is not what was said last.
    fn tell(&mut self, say: &mut impl FnMut(&str)) {
        for (name, named) in &mut self.interfaces {
            let state = named.state();
            if state != named.said {
                say(&format!("{name}: {state}"));
                named.said = state;
            }
        }
    }
}

/// Longer the longer nothing happens.
#[expect(clippy::disallowed_methods, reason = "this is how an idle node sleeps")]
fn nap(idle: u32) {
    if idle > TURNS_AWAKE {
        let nap = NAP_MIN * (idle - TURNS_AWAKE).min(50);
        std::thread::sleep(nap.min(NAP_MAX));
    }
}

/// Something that nobody else knows: the standard library's hashers begin with it.
fn seed() -> u64 {
    RandomState::new().hash_one(())
}
