//! A fabric with Linux in a guest at one port, and an interface of Pollux at another.

use crate::fabric::{Manager, Running};
use crate::guest::Guest;
use pollux::{Interface, Mode, Node};
use pollux_node::admin::request::{AdminRequest, AdminTable};
use std::net::SocketAddr;
use std::sync::{Condvar, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::Duration;

/// The timeout of every call; none takes a tenth of it.
pub const TIMEOUT: Duration = Duration::from_secs(60);
/// The sleep of an idle interface, which leaves the processor to the guest and the fabric.
const IDLE_SLEEP: Duration = Duration::from_micros(100);
pub const MODES: [(Mode, &str); 2] = [(Mode::Rc, "connected"), (Mode::Ud, "datagram")];

pub fn at(host: u8, port: u16) -> SocketAddr {
    SocketAddr::from(([10, 0, 0, host], port))
}

/// Testbeds that may still start. Blocking calls of an inline interface poll, so each testbed takes
/// a processor from the guests.
static FREE: Mutex<u32> = Mutex::new(2);
static FREED: Condvar = Condvar::new();

/// The right to run a testbed.
struct Permit;

impl Permit {
    fn wait() -> Self {
        let free = FREE.lock().unwrap_or_else(PoisonError::into_inner);
        let free = FREED.wait_while(free, |free| *free == 0);
        *free.unwrap_or_else(PoisonError::into_inner) -= 1;
        Self
    }
}

impl Drop for Permit {
    fn drop(&mut self) {
        *FREE.lock().unwrap_or_else(PoisonError::into_inner) += 1;
        FREED.notify_one();
    }
}

/// Linux and an interface of Pollux at a fabric.
pub struct Testbed {
    pub interface: Interface,
    guest: Option<Guest>,
    fabric: Running,
    _permit: Permit,
}

impl Testbed {
    pub fn start(test: &str, (mode, theirs): (Mode, &str)) -> Option<Self> {
        let permit = Permit::wait();
        let fabric = Running::start(&format!("{test}_{theirs}"), 2, Manager::Ours);
        let guest = Guest::start(test, &fabric.wire(1))?;
        let setup = Node::open(&fabric.port(1))
            .expect("a device")
            .interface("ib0")
            .mode(mode)
            .timeout(TIMEOUT);
        let interface = setup.address("10.0.0.1/24").up().expect("it comes up");
        let mut testbed = Self { interface, guest: Some(guest), fabric, _permit: permit };
        testbed.linux(&format!("ipoib_up 10.0.0.2/24 {theirs}"));
        testbed.linux("wait_for 10 ping -c1 -W1 10.0.0.1");
        Some(testbed)
    }

    /// Starts a command in the guest. The caller serves the sockets meanwhile.
    pub fn begin(&mut self, command: &str) -> JoinHandle<(Guest, String)> {
        let mut guest = self.guest.take().expect("no other command runs");
        guest.begin(command);
        let command = command.to_owned();
        std::thread::spawn(move || {
            let (status, output) = guest.answer();
            assert_eq!(status, 0, "{command}: {output}");
            (guest, output.trim().to_owned())
        })
    }

    /// Waits for the end of a command; returns its output.
    #[expect(clippy::disallowed_methods, reason = "the guest runs in real time")]
    pub fn end(&mut self, begun: JoinHandle<(Guest, String)>) -> String {
        while !begun.is_finished() {
            if !self.interface.step() {
                std::thread::sleep(IDLE_SLEEP);
            }
        }
        let (guest, output) = begun.join().expect("it succeeds");
        self.guest = Some(guest);
        output
    }

    pub fn linux(&mut self, command: &str) -> String {
        let begun = self.begin(command);
        self.end(begun)
    }

    /// Waits until Linux is a member of `count` groups.
    pub fn until_groups(&mut self, count: usize) {
        let found = (0..100).any(|_| {
            self.linux("sleep 0.1");
            self.groups_of_linux() == count
        });
        assert!(found, "{}", self.fabric.ask(&AdminRequest::Show(AdminTable::Groups)));
    }

    /// The number of groups with the guest's port as a member.
    pub fn groups_of_linux(&self) -> usize {
        self.fabric.ask(&AdminRequest::Show(AdminTable::Groups)).matches("switch1:3").count()
    }
}

/// A command that waits until a port is open in the guest.
pub fn wait_for(protocol: &str, port: u16) -> String {
    format!("wait_for 30 grep -q ':{port:04X} ' /proc/net/{protocol}")
}
