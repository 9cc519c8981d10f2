//! An interface with a worker of its own: a thread that serves it, pinned to a core or not, and
//! sockets that any thread can hold.
//!
//! ```text
//!   application --octets, datagrams--> ring --> worker: stack, device
//!       |   \--------- bell ------------------>   |
//!       +<------------- ring <-- octets ----------+
//!       ^---------------- wake, if it sleeps -----/
//! ```
//!
//! Calls are those of the inline sockets ([`crate::Interface`]), and mean the same. Beside those
//! that wait there are `poll_...` and `..._async`, for tasks of any executor: one thread can wait
//! for many sockets. A call that waits looks again for a moment, and then its thread sleeps.
//!
//! On the way of octets nobody takes a lock that the other side takes, or asks the kernel for
//! anything, except to wake who sleeps. A socket's memory is allocated when it is made.
//!
//! | | inline | pinned |
//! |---|---|---|
//! | who serves | the thread that made the interface, in its calls | a thread of its own |
//! | sockets | stay in that thread | go to any thread, and are shared |
//! | peers wait | while that thread makes no call | never |
//! | tasks | no | yes |
//! | costs | nothing more | a ring each way, a core, two hops between cores for an answer |
//!
//! The worker ends when the interface and all its sockets are dropped; whoever drops the last one
//! waits until what was sent has left, as with an inline interface. If it ends before, since its
//! device is gone, every call that waits says so.
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
//! 1. [`tcp`], [`listener`], [`udp`]: the application's ends; `datagram`: what is in UDP's rings;
//! 2. `bell`, `waiters`, `call`: how one side learns that the other wants it;
//! 3. `worker`, `serving`: the other ends.

mod bell;
mod call;
mod datagram;
pub mod listener;
mod serving;
pub mod tcp;
pub mod udp;
mod waiters;
mod worker;

pub use listener::TcpListener;
pub use tcp::TcpStream;
pub use udp::UdpSocket;

use crate::error::UpError;
use crate::host::Neighbour;
use crate::interface::{self as inline, Patience, named};
use crate::stack::StackConfig;
use bell::{Bell, Heard};
use call::Asked;
use pollux_node::Opened;
use pollux_node::config::InterfaceSettings;
use std::future::poll_fn;
use std::io;
use std::net::{IpAddr, SocketAddr, ToSocketAddrs};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{Sender, channel};
use std::sync::{Arc, Mutex, PoisonError, Weak};
use std::thread::{Builder, JoinHandle};
use std::time::Duration;
use worker::Worker;

/// How an interface is served.
#[derive(Clone, Debug)]
pub struct Config {
    /// The core that the worker stays on; without one, the system moves it about.
    pub core: Option<usize>,
    /// What the worker does when there is nothing to do.
    pub idle: Idle,
    /// Sockets of any kind, at most.
    pub sockets_max: usize,
    /// Octets of a connection's ring, each way; made a power of two.
    pub tcp_ring_octets: usize,
    /// Octets of a UDP socket's ring, each way; made a power of two that has room for the longest
    /// datagram.
    pub udp_ring_octets: usize,
}

/// What a worker does when there is nothing to do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Idle {
    /// It looks again at once: nothing waits, and its core is busy for ever.
    Poll,
    /// It lets others run; and naps, when nothing comes for long: briefly at first, then longer. A
    /// call wakes it. What comes from the link waits for the end of the nap, a millisecond at
    /// most.
    Nap,
}

/// The longest that a ring can be made.
const RING_OCTETS_MAX: usize = 1 << 30;

impl Default for Config {
    fn default() -> Self {
        Self {
            core: None,
            idle: Idle::Nap,
            sockets_max: 65_536,
            tcp_ring_octets: 256 << 10,
            udp_ring_octets: udp::RING_OCTETS_MIN,
        }
    }
}

impl Config {
    fn rounded(self) -> Self {
        let ring =
            |octets: usize, min: usize| octets.clamp(min, RING_OCTETS_MAX).next_power_of_two();
        Self {
            tcp_ring_octets: ring(self.tcp_ring_octets, 4096),
            udp_ring_octets: ring(self.udp_ring_octets, udp::RING_OCTETS_MIN),
            ..self
        }
    }
}

/// An interface that a worker serves. Clones are the same one, in any thread.
#[derive(Clone)]
pub struct Interface {
    alive: Arc<Alive>,
}

/// What the interface and all its sockets hold. When it goes, the worker does.
pub(crate) struct Alive {
    bell: Arc<Bell>,
    thread: Mutex<Option<JoinHandle<()>>>,
}

impl Drop for Alive {
    fn drop(&mut self) {
        self.bell.leave();
        let thread = self.thread.get_mut().unwrap_or_else(PoisonError::into_inner).take();
        // The worker itself may be the one who drops the last socket.
        if let Some(thread) = thread.filter(|one| one.thread().id() != std::thread::current().id())
        {
            // If it panicked, that was said.
            let _ = thread.join();
        }
    }
}

impl Interface {
    pub(crate) fn open(mut plan: Plan) -> Result<Self, UpError> {
        plan.config = plan.config.rounded();
        let full = || UpError::Worker(format!("{} sockets are too many", plan.config.sockets_max));
        let (bell, heard) = Bell::new(plan.config.sockets_max).ok_or_else(full)?;
        let bell = Arc::new(bell);
        let alive = Arc::new(Alive { bell: bell.clone(), thread: Mutex::new(None) });
        let (tell, told) = channel();
        let weak = Arc::downgrade(&alive);
        let serve = move || plan.serve((bell, heard), weak, &tell);
        let thread = Builder::new().name("pollux-worker".into()).spawn(serve);
        let thread = thread.map_err(|why| UpError::Worker(why.to_string()))?;
        *alive.thread.lock().unwrap_or_else(PoisonError::into_inner) = Some(thread);
        match told.recv() {
            Ok(outcome) => outcome.map(|()| Self { alive }),
            Err(_) => Err(UpError::Worker("it panicked".into())),
        }
    }

    /// Addresses that sockets can have.
    pub fn addresses(&self) -> io::Result<Vec<IpAddr>> {
        Asked::new(&self.alive.bell, |worker, _| Ok(worker.inner.addresses())).wait()
    }

    /// Neighbours that packets can be sent to now, and how they go.
    pub fn neighbours(&self) -> io::Result<Vec<Neighbour>> {
        Asked::new(&self.alive.bell, |worker, _| Ok(worker.inner.neighbours())).wait()
    }

    /// A UDP socket at an address of the interface, or at `0.0.0.0` or `::` for all; port 0 is any.
    pub fn udp_bind(&self, local: impl ToSocketAddrs) -> io::Result<UdpSocket> {
        let local = named(local)?;
        Asked::new(&self.alive.bell, move |worker, _| worker.udp_bind(local)).wait()
    }

    /// A listener, with room for so many connections that nobody has accepted yet.
    pub fn tcp_listen(&self, local: impl ToSocketAddrs, backlog: usize) -> io::Result<TcpListener> {
        let local = named(local)?;
        Asked::new(&self.alive.bell, move |worker, _| worker.tcp_listen(local, backlog)).wait()
    }

    /// A connection, once the peer has agreed to it.
    pub fn tcp_connect(&self, to: impl ToSocketAddrs) -> io::Result<TcpStream> {
        self.tcp_connect_within(to, Patience::Endless)
    }

    /// The same, if the peer agrees in so short a time.
    pub fn tcp_connect_timeout(
        &self,
        to: impl ToSocketAddrs,
        timeout: Duration,
    ) -> io::Result<TcpStream> {
        self.tcp_connect_within(to, Patience::For(timeout))
    }

    fn tcp_connect_within(
        &self,
        to: impl ToSocketAddrs,
        patience: Patience,
    ) -> io::Result<TcpStream> {
        let stream = self.tcp_begin(to)?;
        stream.wait_until_open(patience)?;
        Ok(stream)
    }

    /// As [`Interface::tcp_connect`], for a task: with an address, since to look one up may take
    /// its time.
    pub async fn tcp_connect_async(&self, to: impl Into<SocketAddr>) -> io::Result<TcpStream> {
        let to = to.into();
        let stream = Asked::new(&self.alive.bell, move |worker, now| worker.tcp_begin(now, to));
        let stream = stream.await?;
        poll_fn(|context| stream.poll_open(context)).await?;
        Ok(stream)
    }

    /// A connection that the peer is being asked for: it can be written to as soon as it is open.
    pub fn tcp_begin(&self, to: impl ToSocketAddrs) -> io::Result<TcpStream> {
        let to = named(to)?;
        Asked::new(&self.alive.bell, move |worker, now| worker.tcp_begin(now, to)).wait()
    }

    /// Asks a node for an echo of so many octets, and says how long that took. The first may be
    /// slow: a neighbour has to be resolved, and perhaps to be connected to.
    pub fn ping(&self, to: IpAddr, octets: usize, patience: Duration) -> io::Result<Duration> {
        let asked = Asked::later(&self.alive.bell, move |worker, now, answer| {
            worker.ping(now, (to, octets, patience), answer);
        });
        asked.wait()
    }
}

/// What a worker is told when it begins.
pub(crate) struct Plan {
    pub(crate) opened: Opened,
    pub(crate) settings: InterfaceSettings,
    pub(crate) stack: StackConfig,
    pub(crate) patience: Duration,
    pub(crate) config: Config,
}

impl Plan {
    /// The worker's thread.
    fn serve(
        self,
        bell: (Arc<Bell>, Heard),
        alive: Weak<Alive>,
        tell: &Sender<Result<(), UpError>>,
    ) {
        let Self { opened, settings, stack, patience, config } = self;
        if let Some(core) = config.core
            && !stay_on(core)
        {
            // Whoever does not listen has gone.
            let _ = tell.send(Err(UpError::Core(core)));
            return;
        }
        let silence_max = stack.tcp.patience;
        let interface = match inline::Interface::open(opened, &settings, stack, patience) {
            Ok(interface) => interface,
            Err(why) => {
                let _ = tell.send(Err(why));
                return;
            }
        };
        let clock = interface.clock();
        interface.with(|inner, _| {
            let worker = Worker::new((inner, clock), bell, alive, (config, silence_max));
            let _ = tell.send(Ok(()));
            worker.run();
        });
    }
}

/// Pins this thread; says whether that could be done.
fn stay_on(core: usize) -> bool {
    let cores = core_affinity::get_core_ids().unwrap_or_default();
    cores.into_iter().find(|one| one.id == core).is_some_and(core_affinity::set_for_current)
}

/// How long calls of a socket wait, as any thread may say.
struct SharedPatience(AtomicU64);

impl SharedPatience {
    const ENDLESS: u64 = u64::MAX;
    const NONE: u64 = u64::MAX - 1;

    fn get(&self) -> Patience {
        match self.0.load(Ordering::Relaxed) {
            Self::ENDLESS => Patience::Endless,
            Self::NONE => Patience::None,
            nanoseconds => Patience::For(Duration::from_nanos(nanoseconds)),
        }
    }

    fn set_timeout(&self, timeout: Option<Duration>) {
        let nanoseconds = timeout.map(|time| time.as_nanos().min(u128::from(Self::NONE - 1)));
        let word = nanoseconds.map_or(Self::ENDLESS, |nanoseconds| nanoseconds as u64);
        self.0.store(word, Ordering::Relaxed);
    }

    fn set_nonblocking(&self, is_nonblocking: bool) {
        let word = if is_nonblocking { Self::NONE } else { Self::ENDLESS };
        self.0.store(word, Ordering::Relaxed);
    }
}

impl Default for SharedPatience {
    fn default() -> Self {
        Self(AtomicU64::new(Self::ENDLESS))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Node;

    #[test]
    fn a_worker_that_panics_leaves_nobody_waiting() {
        let setup = Node::open("soft:").expect("a device").interface("ib0").address("10.0.0.1/24");
        let setup = setup.patience(Duration::from_secs(30));
        let interface = setup.up_pinned(Config::default()).expect("it comes up");
        let at = SocketAddr::from(([10, 0, 0, 1], 7));
        let socket = interface.udp_bind(at).expect("the port is free");
        let listener = interface.tcp_listen(at, 1).expect("the port is free");
        std::thread::scope(|scope| {
            let calls = [
                scope.spawn(|| socket.recv_from(&mut [0; 9]).map(drop)),
                scope.spawn(|| listener.accept().map(drop)),
            ];
            let asked = Asked::<()>::new(&interface.alive.bell, |_, _| {
                std::panic::resume_unwind(Box::new("as it is to"))
            });
            assert!(asked.wait().is_err());
            let ended = calls.map(|call| call.join().expect("it does not panic").expect_err("end"));
            assert!(ended.iter().all(|why| why.to_string().contains("worker has ended")));
        });
        assert!(interface.addresses().is_err() && interface.tcp_begin(at).is_err());
    }
}
