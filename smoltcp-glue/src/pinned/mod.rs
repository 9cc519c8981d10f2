//! An interface with worker threads, pinned to cores or not, and sockets for any thread.
//!
//! ```text
//!   application --bytes, datagrams--> ring --> worker: stack, device <==rings==> control thread
//!       |   \--------- doorbell ------------------>   |  ^
//!       +<------------- ring <-- bytes ----------+  ring: packets that are handed off
//!       ^---------------- wake, if it sleeps -----/  v
//!                                               other workers
//! ```
//!
//! The sockets have the calls of inline sockets ([`crate::Interface`]). In addition, `poll_...` and
//! `..._async` functions serve tasks of any executor, so one thread can wait for many sockets. A
//! blocking call polls for a moment, then its thread sleeps.
//!
//! On the data path, application and worker share no lock and make no system call, except to wake a
//! sleeping thread. The memory of a socket is allocated when the socket is opened.
//!
//! | | inline | pinned |
//! |---|---|---|
//! | served by | the thread that made the interface, in its calls | its own threads |
//! | sockets | stay in that thread | can be moved to any thread, and shared |
//! | while the application computes | peers are served slower | nothing changes |
//! | tasks | no | yes |
//! | costs | nothing more | a ring each way, a core, two hops between cores for an answer |
//!
//! The workers stop when the interface and all its sockets are dropped. Dropping the last of them
//! waits until sent data is flushed, as with an inline interface. If a worker fails because its
//! device is gone, all workers stop and every call returns an error. If the fabric or the cable is
//! gone, the link is down: calls wait until it is back or their timeout expires.
//!
//! By default, there is one worker. With several ([`Config::workers`]), each worker has its own
//! shard of the sockets and its own connections to each peer, so one interface can use several
//! cores. The API is the same.
//!
//! | | served by |
//! |---|---|
//! | an outgoing connection | workers in turn; the local port steers its packets to that worker |
//! | an incoming connection | the worker that both addresses and ports select |
//! | a listener | all workers, each with the full backlog; `accept` asks them in turn |
//! | a UDP socket | the worker that its port selects; workers in turn for port 0 |
//! | addresses, neighbors, groups, `ping` | the control thread |
//!
//! Packets from a peer with as many workers arrive at the worker of their flow. Packets from a peer
//! with fewer, such as Linux, and UD packets may arrive at another worker, which hands them off:
//! one more copy and one more hop ([`Interface::workers`] counts them).
//!
//! ```
//! use pollux::{Node, pinned};
//! use std::io::{Read, Write};
//! use std::net::SocketAddr;
//!
//! fn main() -> Result<(), Box<dyn std::error::Error>> {
//!     let up = |address| {
//!         let setup = Node::open("soft:")?.interface("ib0").address(address);
//!         setup.up_pinned(pinned::Config::default())
//!     };
//!     let (server, client) = (up("10.0.0.3/24")?, up("10.0.0.4/24")?);
//!     let at: SocketAddr = "10.0.0.3:7000".parse()?;
//!     let listener = server.tcp_listen(at, 128)?;
//!     let echo = std::thread::spawn(move || {
//!         let (mut stream, _) = listener.accept()?;
//!         let mut request = [0; 5];
//!         stream.read_exact(&mut request)?;
//!         stream.write_all(&request)
//!     });
//!     let mut stream = client.tcp_connect(at)?;
//!     stream.write_all(b"hello")?;
//!     let mut response = [0; 5];
//!     stream.read_exact(&mut response)?;
//!     assert_eq!(&response, b"hello");
//!     echo.join().expect("it does not panic")?;
//!     Ok(())
//! }
//! ```
//!
//! With the feature `tokio`, [`TcpStream`] implements tokio's `AsyncRead` and `AsyncWrite`, so that
//! hyper and similar libraries run over it. The feature `futures-io` adds the traits of that crate.
//!
//! 1. [`tcp`], [`listener`], [`udp`]: the sockets of the application; `async_traits`: the traits of
//!    tokio and futures-io; `tcp_line`: the state of a connection that application and worker
//!    share; `datagram`: the records of UDP rings;
//! 2. `doorbell`, `waiters`, `request`: notifications between application and worker;
//! 3. `worker`, `serving`: the worker and its side of each socket; `opening`, `common_state`: start
//!    and shutdown.

#[cfg(any(feature = "tokio", feature = "futures-io"))]
mod async_traits;
mod common_state;
mod datagram;
mod doorbell;
pub mod listener;
mod opening;
mod request;
mod serving;
pub mod tcp;
mod tcp_line;
pub mod udp;
mod waiters;
mod worker;

pub use listener::TcpListener;
pub(crate) use opening::Plan;
pub use tcp::TcpStream;
pub use udp::UdpSocket;

use crate::clock::Clock;
use crate::control_requests::NeighborRoute;
use crate::control_thread::{ControlHandle, ControlThread};
use crate::error::UpError;
use crate::hand_off::HandOffCounts;
use crate::host::Host;
use crate::interface::resolve;
use crate::stack::slab::SlabMap;
use crate::stack::{ListenerId, SocketId, TcpId};
use crate::statistics::InterfaceStatistics;
use crate::timeout::CallTimeout;
use doorbell::{Doorbell, Inbox};
use pollux_dataplane::engine::Handle;
pub use pollux_dataplane::engine::idle::Idle;
use pollux_dataplane::flow::FlowSteering;
use pollux_verbs::time::Time;
use request::{WorkerRequest, ask};
use serving::{ListenerEnd, SpareRings, TcpEnd, UdpEnd};
use std::collections::VecDeque;
use std::future::poll_fn;
use std::io;
use std::net::{IpAddr, SocketAddr, ToSocketAddrs};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};
use waiters::Waiters;

/// How an interface is served.
#[derive(Clone, Debug)]
pub struct Config {
    /// Worker threads (1 to 8); connections are spread over them. A larger number in the
    /// configuration file wins.
    pub workers: u8,
    /// Cores to pin workers to, in order. Workers without one are not pinned.
    pub cores: Vec<usize>,
    /// How an idle worker waits.
    pub idle: Idle,
    /// Maximum number of sockets; a listener counts once per worker.
    pub sockets_max: usize,
    /// Bytes of a connection's ring in each direction, rounded up to a power of two.
    pub tcp_ring_bytes: usize,
    /// Bytes of a UDP socket's ring in each direction, rounded up to a power of two that fits the
    /// longest datagram.
    pub udp_ring_bytes: usize,
}

const RING_BYTES_MAX: usize = 1 << 30;

impl Default for Config {
    fn default() -> Self {
        Self {
            workers: 1,
            cores: Vec::new(),
            idle: Idle::default(),
            sockets_max: 65_536,
            tcp_ring_bytes: 256 << 10,
            udp_ring_bytes: udp::RING_BYTES_MIN,
        }
    }
}

impl Config {
    fn round_rings(self) -> Self {
        let ring = |bytes: usize, min: usize| bytes.clamp(min, RING_BYTES_MAX).next_power_of_two();
        Self {
            tcp_ring_bytes: ring(self.tcp_ring_bytes, 4096),
            udp_ring_bytes: ring(self.udp_ring_bytes, udp::RING_BYTES_MIN),
            ..self
        }
    }
}

/// An interface that workers serve. Clones refer to the same interface, in any thread.
#[derive(Clone)]
pub struct Interface {
    alive: Arc<Alive>,
}

/// The statistics of a worker.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct WorkerRow {
    /// UDP sockets and TCP connections, including those in accept queues.
    pub sockets: usize,
    /// Listeners.
    pub listeners: usize,
    /// Packets handed off between workers.
    pub handed: HandOffCounts,
}

/// The state that the interface and all its sockets share. Dropping it ends the workers.
pub(crate) struct Alive {
    doorbells: Arc<[Arc<Doorbell>]>,
    steering: FlowSteering,
    /// Counts the sockets without a fixed worker, which the workers get in turn.
    turn: AtomicUsize,
    threads: Mutex<Vec<JoinHandle<()>>>,
    control: ControlThread,
}

type Command = Box<dyn FnOnce(&mut Worker<'_>, Time) + Send>;

/// The state of a worker, which serves an interface and all of its sockets (`worker`).
struct Worker<'a> {
    inner: &'a mut Host,
    clock: Clock,
    /// The doorbells of all workers, in order.
    doorbells: Arc<[Arc<Doorbell>]>,
    /// The doorbell of this worker.
    doorbell: Arc<Doorbell>,
    inbox: Inbox,
    /// Each new socket gets a strong reference.
    alive: Weak<Alive>,
    control: ControlHandle,
    config: Config,
    /// How long a peer may take to acknowledge data after the application dropped the connection.
    user_timeout: Duration,
    udp: SlabMap<UdpEnd>,
    tcp: SlabMap<TcpEnd>,
    listeners: SlabMap<ListenerEnd>,
    /// UDP sockets with more to send.
    again: VecDeque<SocketId>,
    /// Connections that the application dropped while its ring had unsent data. Some of them may
    /// have ended since.
    draining: Vec<TcpId>,
    /// Listeners with connections that wait because there are too many sockets.
    starved: Vec<ListenerId>,
    scratch: Vec<u8>,
    rings: SpareRings,
    look_at: Time,
    /// Stops the loop of the worker.
    engine: Handle<()>,
}

pub(super) struct Hold {
    doorbell: Arc<Doorbell>,
    alive: Arc<Alive>,
}

impl Hold {
    fn control(&self) -> &ControlHandle {
        self.alive.control.handle()
    }
}

impl Alive {
    fn next_worker(&self) -> &Arc<Doorbell> {
        let turn = self.turn.fetch_add(1, Ordering::Relaxed);
        &self.doorbells[turn % self.doorbells.len()]
    }
}

impl Drop for Alive {
    fn drop(&mut self) {
        self.doorbells[0].common().shut_down();
        self.doorbells.iter().for_each(|doorbell| doorbell.wake());
        let threads = std::mem::take(&mut *lock(&self.threads));
        // A worker that drops the last socket cannot wait for itself.
        let own = std::thread::current().id();
        if threads.iter().any(|one| one.thread().id() == own) {
            return self.control.detach();
        }
        for thread in threads {
            // A panic was reported.
            let _ = thread.join();
        }
    }
}

impl Interface {
    pub(crate) fn open(plan: Plan) -> Result<Self, UpError> {
        let (settings, timeout) = (plan.settings.clone(), plan.timeout);
        let interface = Self { alive: opening::open(plan)? };
        let control = interface.alive.control.handle();
        let Ok(addresses) = control.when_up(&settings).wait_for(timeout) else {
            return Err(UpError::NotUp(control.state().unwrap_or_default()));
        };
        interface.wait_for_workers(&addresses?, timeout)?;
        Ok(interface)
    }

    /// Waits until all workers know these addresses.
    #[expect(clippy::disallowed_methods, reason = "a timeout is by the machine's clock")]
    fn wait_for_workers(&self, addresses: &[IpAddr], timeout: Duration) -> Result<(), UpError> {
        let begun = Instant::now();
        loop {
            let known = self.known_addresses().map_err(|why| UpError::Worker(why.to_string()))?;
            if known.iter().all(|known| addresses.iter().all(|ip| known.contains(ip))) {
                return Ok(());
            }
            if begun.elapsed() > timeout {
                return Err(UpError::Worker("a worker did not get the addresses in time".into()));
            }
            std::thread::yield_now();
        }
    }

    /// Addresses that each worker knows of.
    fn known_addresses(&self) -> io::Result<Vec<Vec<IpAddr>>> {
        self.ask_workers(|worker| worker.inner.addresses())
    }

    fn ask_workers<R: Send + 'static>(&self, row: fn(&mut Worker<'_>) -> R) -> io::Result<Vec<R>> {
        let doorbells = self.alive.doorbells.iter();
        doorbells.map(|doorbell| ask(doorbell, move |worker, _| Ok(row(worker)))).collect()
    }

    /// Counters of each worker, in order.
    pub fn workers(&self) -> io::Result<Vec<WorkerRow>> {
        self.ask_workers(|worker| worker.row())
    }

    /// The counters of the interface: traffic, sockets, retransmissions and drops.
    pub fn statistics(&self) -> io::Result<InterfaceStatistics> {
        let counts = self.ask_workers(|worker| worker.inner.counts())?;
        Ok(InterfaceStatistics::new(&counts, self.alive.control.handle().link_counts()?))
    }

    /// The addresses that sockets can bind: those that all workers know.
    pub fn addresses(&self) -> io::Result<Vec<IpAddr>> {
        let known = self.known_addresses()?;
        let is_known = |ip: &IpAddr| known.iter().all(|one| one.contains(ip));
        Ok(known[0].iter().copied().filter(is_known).collect())
    }

    /// The neighbors with a route, with link address, connection and MTU.
    pub fn neighbors(&self) -> io::Result<Vec<NeighborRoute>> {
        self.alive.control.handle().neighbors()
    }

    /// Binds a UDP socket to an address of the interface, to all addresses of a family (`0.0.0.0`
    /// or `::`), or to a multicast group. Port 0 picks a free port. A socket bound to a group
    /// receives only datagrams to this group, once it has joined it.
    pub fn udp_bind(&self, local: impl ToSocketAddrs) -> io::Result<UdpSocket> {
        self.udp_bind_as(resolve(local)?, false)
    }

    /// Like [`Interface::udp_bind`], but several sockets can bind the same address and port if all
    /// of them use this call (`SO_REUSEADDR`). A multicast datagram goes to every socket that
    /// joined its group; a unicast datagram goes to the socket that was bound last.
    pub fn udp_bind_shared(&self, local: impl ToSocketAddrs) -> io::Result<UdpSocket> {
        self.udp_bind_as(resolve(local)?, true)
    }

    fn udp_bind_as(&self, local: SocketAddr, shares: bool) -> io::Result<UdpSocket> {
        let doorbell = match local.port() {
            0 => self.alive.next_worker(),
            port => &self.alive.doorbells[usize::from(self.alive.steering.port(port))],
        };
        ask(doorbell, move |worker, _| worker.udp_bind(local, shares))
    }

    /// Listens for TCP connections; port 0 picks a free port. At most `backlog` connections wait to
    /// be accepted at each worker: the connection of a peer arrives at the worker of its flow.
    pub fn tcp_listen(&self, local: impl ToSocketAddrs, backlog: usize) -> io::Result<TcpListener> {
        let mut local = resolve(local)?;
        if local.port() == 0 {
            let pick =
                move |worker: &mut Worker<'_>, _| Ok(worker.inner.stack.tcp_free_port(local)?);
            local = ask(&self.alive.doorbells[0], pick)?;
        }
        let accepters = Arc::new(Waiters::default());
        // All callers ask the workers in the same order. So if two callers want the same address,
        // one of them gets it at all workers. An error drops the listeners that were made before.
        let listeners = self.alive.doorbells.iter().map(|doorbell| {
            let accepters = accepters.clone();
            ask(doorbell, move |worker, _| worker.tcp_listen(local, backlog, accepters))
        });
        let listeners = listeners.collect::<io::Result<Vec<_>>>()?;
        Ok(TcpListener::new(listeners, accepters, local))
    }

    /// Opens a TCP connection, and waits until it is established.
    pub fn tcp_connect(&self, to: impl ToSocketAddrs) -> io::Result<TcpStream> {
        self.tcp_begin(to)?.wait_until_open(CallTimeout::Never)
    }

    /// Like [`Interface::tcp_connect`], but with a timeout.
    pub fn tcp_connect_timeout(
        &self,
        to: impl ToSocketAddrs,
        timeout: Duration,
    ) -> io::Result<TcpStream> {
        self.tcp_begin(to)?.wait_until_open(CallTimeout::After(timeout))
    }

    /// Like [`Interface::tcp_connect`], but for a task. It takes an address, because the resolution
    /// of a name would block.
    pub async fn tcp_connect_async(&self, to: impl Into<SocketAddr>) -> io::Result<TcpStream> {
        let to = to.into();
        let doorbell = self.alive.next_worker();
        let stream =
            WorkerRequest::new(doorbell, move |worker, now| worker.tcp_begin(now, to)).await?;
        poll_fn(|context| stream.poll_open(context)).await?;
        Ok(stream)
    }

    /// Starts to open a TCP connection, and returns at once. Writes wait until it is established.
    pub fn tcp_begin(&self, to: impl ToSocketAddrs) -> io::Result<TcpStream> {
        let to = resolve(to)?;
        ask(self.alive.next_worker(), move |worker, now| worker.tcp_begin(now, to))
    }

    /// Sends an ICMP echo request with this many bytes of data, and returns the round-trip time.
    /// The first ping may be slow: it resolves the neighbor, and may connect to it.
    pub fn ping(&self, to: IpAddr, bytes: usize, timeout: Duration) -> io::Result<Duration> {
        self.alive.control.handle().ping(to, bytes, timeout).wait()?
    }
}

/// Locks a mutex. Its state is usable even after a panic of another thread.
fn lock<T>(end: &Mutex<T>) -> MutexGuard<'_, T> {
    end.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Node;

    #[test]
    fn a_worker_without_a_core_is_not_pinned() {
        let cores = || core_affinity::get_core_ids().unwrap_or_default();
        let all = cores();
        let Some(first) = all.first() else { return };
        let setup = Node::open("soft:").expect("a device").interface("ib0");
        let config = Config { workers: 2, cores: vec![first.id], ..Config::default() };
        let interface = setup.address("10.0.0.9/24").up_pinned(config).expect("it comes up");
        let stays =
            |worker: usize| ask(&interface.alive.doorbells[worker], move |_, _| Ok(cores()));
        assert_eq!(stays(0).expect("it serves"), [*first]);
        assert_eq!(stays(1).expect("it serves"), all);
    }

    #[test]
    fn a_panic_of_a_worker_ends_every_waiting_call() {
        for (workers, dies) in [(1, 0), (2, 0), (2, 1)] {
            let setup = Node::open("soft:").expect("a device").interface("ib0");
            let setup = setup.address("10.0.0.1/24").timeout(Duration::from_secs(30));
            let config = Config { workers, ..Config::default() };
            let interface = setup.up_pinned(config).expect("it comes up");
            let at = SocketAddr::from(([10, 0, 0, 1], 7));
            let socket = interface.udp_bind(at).expect("the port is free");
            let listener = interface.tcp_listen(at, 1).expect("the port is free");
            std::thread::scope(|scope| {
                let calls = [
                    scope.spawn(|| socket.recv_from(&mut [0; 9]).map(drop)),
                    scope.spawn(|| listener.accept().map(drop)),
                ];
                let asked = ask::<()>(&interface.alive.doorbells[dies], |_, _| {
                    std::panic::resume_unwind(Box::new("a panic of the test"))
                });
                assert!(asked.is_err());
                let ended = calls.map(|call| call.join().expect("no panic").expect_err("an end"));
                assert!(ended.iter().all(|why| why.to_string().contains("worker has ended")));
            });
            assert!(interface.addresses().is_err() && interface.tcp_begin(at).is_err());
        }
    }
}
