//! A stream of datagrams at a constant rate from one host to another, through routers that are
//! processes. Each datagram has its number, so that a test knows which are lost.

use crate::running::{Ending, Running, TIMEOUT, folder, pollux};
use pollux::{Interface, Mode, Node};
use pollux_node::admin::client::{AskError, Client};
use pollux_node::admin::request::AdminRequest;
use pollux_node::admin::rows::{ChangeStatus, TableRow};
use pollux_wire::keys::PKey;
use std::collections::BTreeMap;
use std::path::PathBuf;
use std::process::Stdio;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::thread::{scope, sleep};
use std::time::{Duration, Instant};

/// From a datagram to the next.
const INTERVAL: Duration = Duration::from_millis(1);
/// A sender that is late by more than this leaves datagrams out, instead of a burst of them.
const LATE_MAX: Duration = Duration::from_millis(20);
/// Flows of a stream: so many ports of the sender.
const FLOWS: usize = 32;
/// Without a datagram for so long, the rest of a stream is lost.
const SILENCE: Duration = Duration::from_secs(3);
/// The port of the receiver.
const PORT: u16 = 7000;

/// Routers at a fabric with three partitions: the default one, `0x8001` and `0x8002`.
pub struct Site {
    pub folder: PathBuf,
    pub fabric: Running,
    routers: Mutex<BTreeMap<&'static str, Ending>>,
}

/// A host at an end of a stream, in the process of the test.
#[derive(Clone, Copy, Debug)]
pub struct Host {
    pub host: u32,
    pub partition: u16,
    pub mode: Mode,
    pub address: &'static str,
    pub router: &'static str,
}

/// The sender and the receiver of a stream through a router between two partitions.
pub const FROM: Host = Host {
    host: 1,
    partition: 0xffff,
    mode: Mode::Rc,
    address: "10.1.0.1/24",
    router: "10.1.0.254",
};
pub const TO: Host = Host {
    host: 2,
    partition: 0x8001,
    mode: Mode::Rc,
    address: "10.2.0.1/24",
    router: "10.2.0.254",
};

/// A stream while it runs.
#[derive(Default)]
pub struct Stream {
    is_warm: AtomicBool,
    is_over: AtomicBool,
    has_ended: AtomicBool,
    sent: AtomicUsize,
    received: AtomicUsize,
    arrived: Mutex<Vec<bool>>,
}

/// What became of it.
#[derive(Debug)]
pub struct Outcome {
    pub sent: usize,
    /// The numbers of datagrams that are lost.
    pub lost: Vec<usize>,
}

fn pause(_: &AskError, time: Duration) -> bool {
    sleep(time);
    true
}

impl Site {
    pub fn new(test: &str) -> Self {
        let folder = folder(test);
        std::fs::create_dir(&folder).expect("no other test has this folder");
        let partition = |name: &str, key: &str| {
            format!("{name}={key}, ipoib, defmember=full : ALL=full, SELF=full;\n")
        };
        let all = [("Default", "0x7fff"), ("one", "0x1"), ("two", "0x2")];
        let all: String = all.map(|(name, key)| partition(name, key)).concat();
        std::fs::write(folder.join("partitions"), all).expect("it is ours");
        let arguments = ["--topology", "single:8", "--partitions", "partitions"];
        let fabric = Running::new(test, &arguments);
        Self { folder, fabric, routers: Mutex::default() }
    }

    /// Writes the configuration of a router.
    pub fn write(&self, name: &str, text: &str) {
        std::fs::write(self.folder.join(format!("{name}.toml")), text).expect("it is ours");
    }

    /// Starts a router by its configuration.
    pub fn start(&self, name: &'static str) {
        let mut command = pollux(&["run", &format!("{name}.toml"), "--socket", name]);
        let command = command.current_dir(&self.folder);
        let command = command.stdout(Stdio::null()).stderr(Stdio::null());
        self.routers().insert(name, Ending(command.spawn().expect("it starts")));
    }

    /// Kills a router, which does not disconnect.
    pub fn kill(&self, name: &str) {
        drop(self.routers().remove(name).expect("it runs"));
    }

    fn routers(&self) -> MutexGuard<'_, BTreeMap<&'static str, Ending>> {
        self.routers.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The process of a router.
    pub fn id(&self, name: &str) -> u32 {
        self.routers()[name].0.id()
    }

    /// A client of a router, or of the `fabric`.
    pub fn client(&self, name: &str) -> Client {
        Client::new(&self.folder.join(name), TIMEOUT)
    }

    pub fn rows<R: TableRow>(&self, name: &str) -> Vec<R> {
        self.client(name).show(&mut pause).expect("it answers")
    }

    /// Has a router read another configuration.
    pub fn reload(&self, name: &str, text: &str) {
        self.write(name, text);
        let request = AdminRequest::Reload { is_trial: false, timeout_ms: None };
        let changes = self.client(name).ask::<Vec<ChangeStatus>>(&request, &mut pause);
        changes.expect("it is valid");
    }

    /// What a command prints for a router, whether it succeeds or not.
    pub fn run(&self, name: &str, arguments: &[&str]) -> String {
        let mut command = pollux(arguments);
        let command = command.args(["--socket", name]).current_dir(&self.folder);
        let output = command.output().expect("it starts");
        String::from_utf8_lossy(&[output.stdout, output.stderr].concat()).into_owned()
    }

    /// Opens a host.
    pub fn open(&self, host: &Host) -> Interface {
        let setup = Node::open(&self.fabric.port(host.host)).expect("a device").interface("ib0");
        let setup = setup.partition(PKey(host.partition)).mode(host.mode).timeout(TIMEOUT);
        let setup = setup.address(host.address).router(host.router.parse().expect("an address"));
        setup.up().expect("it comes up")
    }

    /// Runs a stream from one host to another while `meanwhile` does what it does; it begins with
    /// the stream.
    pub fn stream<T>(
        &self,
        from: &Host,
        to: &Host,
        meanwhile: impl FnOnce(&Stream) -> T,
    ) -> (T, Outcome) {
        let stream = Stream::default();
        let done = scope(|scope| {
            let receiver = scope.spawn(|| stream.receive(&self.open(to)));
            let to = to.address.split_once('/').expect("a length").0;
            let sender = scope.spawn(|| stream.send(&self.open(from), to));
            let end = End(&stream);
            stream.wait("it begins", |stream| stream.sent.load(Ordering::Relaxed) > 0);
            let done = meanwhile(&stream);
            drop(end);
            sender.join().expect("it sends");
            receiver.join().expect("it receives");
            done
        });
        let Stream { sent, arrived, .. } = stream;
        let arrived = arrived.into_inner().unwrap_or_else(PoisonError::into_inner);
        let sent = sent.into_inner();
        let lost = (0..sent).filter(|number| !arrived.get(*number).copied().unwrap_or(false));
        (done, Outcome { sent, lost: lost.collect() })
    }
}

/// Ends the stream, also when a test fails.
struct End<'a>(&'a Stream);

impl Drop for End<'_> {
    fn drop(&mut self) {
        self.0.is_over.store(true, Ordering::Relaxed);
    }
}

impl Stream {
    /// Datagrams so far.
    pub fn sent(&self) -> usize {
        self.sent.load(Ordering::Relaxed)
    }

    /// Of these, those that were received.
    pub fn received(&self) -> usize {
        self.received.load(Ordering::Relaxed)
    }

    /// Waits until something holds of it.
    pub fn wait(&self, what: &str, mut holds: impl FnMut(&Self) -> bool) {
        let begun = Instant::now();
        while !holds(self) {
            let is_over = self.has_ended.load(Ordering::Relaxed);
            assert!(begun.elapsed() < TIMEOUT && !is_over, "never: {what}");
            sleep(INTERVAL);
        }
    }

    /// Waits until so many further datagrams were sent.
    pub fn go_on(&self, count: usize) {
        let enough = self.sent() + count;
        self.wait("it goes on", |stream| stream.sent() >= enough);
    }

    /// Waits until all datagrams from this number to the last one so far have arrived.
    pub fn arrive_from(&self, first: usize) {
        let numbers = first..self.sent();
        self.wait("all of them arrive", |stream| {
            let arrived = stream.arrived.lock().unwrap_or_else(PoisonError::into_inner);
            numbers.clone().all(|number| arrived.get(number) == Some(&true))
        });
    }

    fn send(&self, interface: &Interface, to: &str) {
        let _end = HasEnded(&self.has_ended);
        let bind = |_| interface.udp_bind("0.0.0.0:0").expect("a port is free");
        let sockets: Vec<_> = (0..FLOWS).map(bind).collect();
        let to = (to, PORT);
        // Until one arrives, they have no numbers.
        let begun = Instant::now();
        while !self.is_warm.load(Ordering::Relaxed) {
            assert!(begun.elapsed() < TIMEOUT, "nothing arrives");
            sockets[0].send_to(&[], to).expect("it is sent");
            sleep(10 * INTERVAL);
        }
        let mut next = Instant::now();
        while !self.is_over.load(Ordering::Relaxed) {
            let number = self.sent();
            sockets[number % FLOWS].send_to(&number.to_be_bytes(), to).expect("it is sent");
            self.sent.store(number + 1, Ordering::Relaxed);
            next += INTERVAL;
            let now = Instant::now();
            if next + LATE_MAX < now {
                next = now;
            }
            sleep(next.saturating_duration_since(now));
        }
    }

    fn receive(&self, interface: &Interface) {
        let socket = interface.udp_bind(("0.0.0.0", PORT)).expect("the port is free");
        socket.set_read_timeout(Some(100 * INTERVAL)).unwrap();
        let mut last = Instant::now();
        loop {
            let has_ended = self.has_ended.load(Ordering::Relaxed);
            if has_ended && (self.received() == self.sent() || last.elapsed() > SILENCE) {
                return;
            }
            let mut number = [0; size_of::<usize>()];
            match socket.recv_from(&mut number) {
                Ok((0, _)) => self.is_warm.store(true, Ordering::Relaxed),
                Ok(_) => {
                    last = Instant::now();
                    self.note(usize::from_be_bytes(number));
                }
                Err(_) => {}
            }
        }
    }

    fn note(&self, number: usize) {
        let mut arrived = self.arrived.lock().unwrap_or_else(PoisonError::into_inner);
        if arrived.len() <= number {
            arrived.resize(number + 1, false);
        }
        assert!(!std::mem::replace(&mut arrived[number], true), "{number} comes twice");
        self.received.fetch_add(1, Ordering::Relaxed);
    }
}

/// Says that a sender has ended, also when it fails.
struct HasEnded<'a>(&'a AtomicBool);

impl Drop for HasEnded<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}
