//! Where they meet: a fabric with Linux at a wire of it, and an interface of ours.

use crate::fabric::{Manager, Running};
use crate::guest::Guest;
use pollux::{Interface, Mode, Node};
use pollux_node::admin::request::{AdminRequest, AdminTable};
use std::net::SocketAddr;
use std::sync::{Condvar, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::Duration;

/// How long anything may take here. Nothing takes a tenth of it.
pub const TIMEOUT: Duration = Duration::from_secs(60);
/// How long an idle interface leaves the processor to the guest and the fabric.
const IDLE_SLEEP: Duration = Duration::from_micros(100);
pub const MODES: [(Mode, &str); 2] = [(Mode::Rc, "connected"), (Mode::Ud, "datagram")];

pub fn at(host: u8, port: u16) -> SocketAddr {
    SocketAddr::from(([10, 0, 0, host], port))
}

/// Meetings that may still begin beside those under way. Calls that block poll without a pause, as
/// an inline interface does, so each takes a processor from the guests.
static FREE: Mutex<u32> = Mutex::new(2);
static FREED: Condvar = Condvar::new();

/// One of those that may run at a time.
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

/// Linux at a fabric, and an interface of ours.
pub struct Meeting {
    pub interface: Interface,
    guest: Option<Guest>,
    fabric: Running,
    _permit: Permit,
}

impl Meeting {
    pub fn arrange(test: &str, (mode, theirs): (Mode, &str)) -> Option<Self> {
        let permit = Permit::wait();
        let fabric = Running::start(&format!("{test}_{theirs}"), 2, Manager::Ours);
        let guest = Guest::start(test, &fabric.wire(1))?;
        let setup = Node::open(&fabric.port(1))
            .expect("a device")
            .interface("ib0")
            .mode(mode)
            .timeout(TIMEOUT);
        let interface = setup.address("10.0.0.1/24").up().expect("it comes up");
        let mut meeting = Self { interface, guest: Some(guest), fabric, _permit: permit };
        meeting.linux(&format!("ipoib_up 10.0.0.2/24 {theirs}"));
        meeting.linux("wait_for 10 ping -c1 -W1 10.0.0.1");
        Some(meeting)
    }

    /// Has the guest begin something, while our sockets are served by whoever uses them.
    pub fn begin(&mut self, command: &str) -> JoinHandle<(Guest, String)> {
        let mut guest = self.guest.take().expect("it does one thing at a time");
        guest.begin(command);
        let command = command.to_owned();
        std::thread::spawn(move || {
            let (status, output) = guest.answer();
            assert_eq!(status, 0, "{command}: {output}");
            (guest, output.trim().to_owned())
        })
    }

    /// What the guest said in the end.
    #[expect(clippy::disallowed_methods, reason = "the guest goes by the clock")]
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

    /// Waits until Linux is in so many groups.
    pub fn until_groups(&mut self, count: usize) {
        let found = (0..100).any(|_| {
            self.linux("sleep 0.1");
            self.groups_of_linux() == count
        });
        assert!(found, "{}", self.fabric.ask(&AdminRequest::Show(AdminTable::Groups)));
    }

    /// How many groups' packets go to the port of the guest's wire.
    pub fn groups_of_linux(&self) -> usize {
        self.fabric.ask(&AdminRequest::Show(AdminTable::Groups)).matches("switch1:3").count()
    }
}

/// Waits until somebody in the guest is at a port.
pub fn wait_for(protocol: &str, port: u16) -> String {
    format!("wait_for 30 grep -q ':{port:04X} ' /proc/net/{protocol}")
}
