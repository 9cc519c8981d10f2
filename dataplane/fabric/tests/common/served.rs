//! A server of processes in its own thread, with a minimal subnet manager.

use crate::managed::manage;
use pollux_fabric::Time;
use pollux_fabric::link::Wire;
use pollux_fabric::link::threads::Clock;
use pollux_fabric::net::Net;
use pollux_fabric::process::Server;
use pollux_fabric::subnet::Subnet;
use pollux_fabric::topology::Topology;
use rustix::event::{Timespec, poll};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::mpsc::{Receiver, Sender, TryRecvError, channel, sync_channel};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// A closure for the thread of the server.
type Deed = Box<dyn FnOnce(&mut Serving) + Send>;

/// A server and its net.
pub struct Serving {
    server: Server,
    net: Net,
}

#[allow(dead_code, reason = "not every test needs all of it")]
impl Serving {
    /// The net, with the traffic of direct rings counted.
    pub fn net(&mut self) -> &Net {
        self.net_mut()
    }

    pub fn net_mut(&mut self) -> &mut Net {
        self.server.read_counters(&mut self.net);
        &mut self.net
    }

    /// The numbers of clients, and of direct rings between them.
    pub fn statistics(&self) -> (usize, usize) {
        self.server.statistics()
    }

    /// Writes changes for clients, and ends the rings of changed paths.
    pub fn tell_changes(&mut self) {
        self.server.publish_changes(&mut self.net);
    }

    /// Runs the server, which sleeps without traffic. Activates the ports that have come up.
    pub fn turn(&mut self, now: Time, ports: &mut u64) {
        let Self { server, net } = self;
        server.receive(now, net);
        net.advance(now);
        while let Some(delivery) = net.poll_delivery() {
            net.deliver_to_adapter(delivery);
        }
        // The manager runs only after a change of ports.
        if *ports != net.epoch() {
            manage(net.subnet_mut(), 0, None);
            *ports = net.epoch();
        }
        server.send(now, net);
        if !server.is_awake() {
            let nap = server.sleep(NAP_MAX);
            let nap = Timespec { tv_sec: 0, tv_nsec: nap.subsec_nanos().into() };
            let mut fds: Vec<_> = server.poll_fds().collect();
            poll(&mut fds, Some(&nap)).expect("it can wait");
            server.wake();
        }
    }
}

/// The longest sleep of the server: requests of tests do not wake it.
const NAP_MAX: Duration = Duration::from_micros(200);

/// A running server, stopped on drop.
pub struct Served {
    path: PathBuf,
    deeds: Option<Sender<Deed>>,
    thread: Option<JoinHandle<()>>,
}

/// The clock of the machine.
#[expect(clippy::disallowed_methods, reason = "processes need a clock")]
pub fn clock() -> Clock {
    let start = Instant::now();
    Arc::new(move || Time::START + start.elapsed())
}

/// A socket path that no other test uses.
pub fn path_of(name: &str) -> PathBuf {
    std::env::temp_dir().join(format!("pollux-{name}-{}", std::process::id()))
}

/// A server of this topology, on links that only forward; its subnet is managed.
pub fn server(path: &Path, topology: &str) -> Serving {
    let mut subnet = Subnet::new(Topology::generate(topology, 1).expect("the topology is one"));
    manage(&mut subnet, 0, None);
    let wire = Wire { latency: Duration::ZERO, ..Wire::default() };
    let server = Server::bind(path).expect("nobody else has the path");
    Serving { server, net: Net::new(subnet, 1, wire) }
}

impl Served {
    /// Starts a server.
    pub fn start(name: &str, topology: &'static str) -> Self {
        let path = path_of(name);
        let (deeds, asked) = channel();
        let (at, (ready, is_ready)) = (path.clone(), sync_channel(1));
        let thread = std::thread::spawn(move || {
            let server = server(&at, topology);
            ready.send(()).expect("somebody waits");
            serve(server, &asked);
        });
        is_ready.recv().expect("the server starts");
        Self { path, deeds: Some(deeds), thread: Some(thread) }
    }

    /// The name of a host's port.
    pub fn name(&self, host: u32) -> String {
        name(&self.path, host)
    }

    #[allow(dead_code, reason = "not every test needs it")]
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Runs a closure in the thread of the server; clients have its changes when this returns.
    pub fn ask<T: Send + 'static>(
        &self,
        deed: impl FnOnce(&mut Serving) -> T + Send + 'static,
    ) -> T {
        let (answer, answered) = sync_channel(1);
        let deed = move |serving: &mut Serving| {
            let done = deed(serving);
            serving.tell_changes();
            answer.send(done).expect("somebody waits");
        };
        let deeds = self.deeds.as_ref().expect("it runs");
        deeds.send(Box::new(deed)).expect("the server runs as long as we may ask");
        answered.recv().expect("the server answers")
    }
}

/// The name of a host's port.
pub fn name(path: &Path, host: u32) -> String {
    format!("soft:{}@host{host}", path.display())
}

fn serve(mut serving: Serving, asked: &Receiver<Deed>) {
    let (clock, mut ports) = (clock(), 0);
    loop {
        match asked.try_recv() {
            Ok(deed) => deed(&mut serving),
            Err(TryRecvError::Empty) => {}
            Err(TryRecvError::Disconnected) => return,
        }
        serving.turn(clock(), &mut ports);
    }
}

impl Drop for Served {
    fn drop(&mut self) {
        drop(self.deeds.take());
        if let Some(thread) = self.thread.take() {
            let ended = thread.join();
            assert!(ended.is_ok() || std::thread::panicking(), "the server panicked");
        }
    }
}
