//! An interface that the application's own thread serves.
//!
//! Every call on a socket runs one step for all sockets of the interface, so a call that waits for
//! one socket serves the others too. An application that makes no calls for a while keeps its peers
//! waiting, and has to call [`Interface::step`]. No data crosses threads, so sockets stay in the
//! thread that made them.
//!
//! An [`Interface`] drives a [`Host`], which has neither clock nor thread, by the system clock.

use crate::error::UpError;
use crate::host::{Host, Neighbor};
use crate::stack::StackConfig;
use crate::tcp::{TcpListener, TcpStream};
use crate::udp::UdpSocket;
use pollux_node::Opened;
use pollux_node::config::InterfaceSettings;
use pollux_verbs::time::Time;
use std::cell::RefCell;
use std::hash::{BuildHasher, RandomState};
use std::io;
use std::net::{IpAddr, SocketAddr, ToSocketAddrs};
use std::rc::Rc;
use std::time::{Duration, Instant};

/// Maximum time to flush data on drop while no peer acknowledges any; and again to disconnect from
/// peers.
pub(crate) const SHUTDOWN_MAX: Duration = Duration::from_secs(2);

/// How long to wait for challenge ACKs after resets: a peer answers a RST that is not at its next
/// expected number by a challenge ACK (RFC 5961 3.2), and we answer that by the right RST.
const RESET_MAX: Duration = Duration::from_millis(100);

/// An interface. Clones refer to the same interface.
#[derive(Clone)]
pub struct Interface {
    inner: Rc<RefCell<Host>>,
    clock: Clock,
}

/// The system clock, in the time of [`Host`].
#[derive(Clone, Copy)]
pub(crate) struct Clock {
    start: Instant,
}

/// The timeout of a blocking call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum CallTimeout {
    /// Non-blocking: the call returns `WouldBlock` instead of waiting.
    Immediate,
    /// The call returns `TimedOut` after this time.
    After(Duration),
    /// The call waits indefinitely.
    Never,
}

impl Interface {
    pub(crate) fn open(
        opened: Opened,
        settings: &InterfaceSettings,
        config: StackConfig,
        timeout: Duration,
    ) -> Result<Self, UpError> {
        let clock = Clock::begin();
        let host = Host::new(Time::START, opened, settings, config, [seed(), seed()])
            .map_err(UpError::Device)?;
        let interface = Self { inner: Rc::new(RefCell::new(host)), clock };
        interface.wait_until_up(settings, timeout)?;
        Ok(interface)
    }

    fn wait_until_up(
        &self,
        settings: &InterfaceSettings,
        timeout: Duration,
    ) -> Result<(), UpError> {
        let up = self
            .wait(CallTimeout::After(timeout), |inner, _| Ok(inner.is_up(settings).then_some(())));
        up.map_err(|_| self.inner.borrow().not_up())
    }

    fn now(&self) -> Time {
        self.clock.now()
    }

    /// Serves all sockets once. Returns whether there was anything to do.
    pub fn step(&self) -> bool {
        self.inner.borrow_mut().step(self.now())
    }

    /// The addresses of the interface.
    pub fn addresses(&self) -> Vec<IpAddr> {
        self.inner.borrow().addresses()
    }

    /// Binds a UDP socket to an address of the interface, or to all by `0.0.0.0` or `::`. Port 0
    /// picks a free port.
    pub fn udp_bind(&self, local: impl ToSocketAddrs) -> io::Result<UdpSocket> {
        let id = self.inner.borrow_mut().stack.udp_bind(named(local)?)?;
        Ok(UdpSocket::new(self.clone(), id))
    }

    /// Listens for TCP connections. At most `backlog` connections wait to be accepted.
    pub fn tcp_listen(&self, local: impl ToSocketAddrs, backlog: usize) -> io::Result<TcpListener> {
        let id = self.inner.borrow_mut().stack.tcp_listen(named(local)?, backlog)?;
        Ok(TcpListener::new(self.clone(), id))
    }

    /// Opens a TCP connection, and waits until it is established. By default the attempt times out
    /// after three minutes ([`crate::stack::TcpConfig::user_timeout`]).
    pub fn tcp_connect(&self, to: impl ToSocketAddrs) -> io::Result<TcpStream> {
        self.tcp_connect_within(to, CallTimeout::Never)
    }

    /// As [`Interface::tcp_connect`], with a timeout.
    pub fn tcp_connect_timeout(
        &self,
        to: impl ToSocketAddrs,
        timeout: Duration,
    ) -> io::Result<TcpStream> {
        self.tcp_connect_within(to, CallTimeout::After(timeout))
    }

    fn tcp_connect_within(
        &self,
        to: impl ToSocketAddrs,
        timeout: CallTimeout,
    ) -> io::Result<TcpStream> {
        let stream = self.tcp_begin(to)?;
        stream.wait_until_open(timeout)?;
        Ok(stream)
    }

    /// Starts to open a TCP connection without waiting. It accepts writes once it is established.
    pub fn tcp_begin(&self, to: impl ToSocketAddrs) -> io::Result<TcpStream> {
        let to = named(to)?;
        let id = {
            let mut inner = self.inner.borrow_mut();
            let (now, from) = (self.now(), inner.source_for(to.ip())?);
            inner.stack.tcp_connect(now, SocketAddr::new(from, 0), to)?
        };
        Ok(TcpStream::new(self.clone(), id))
    }

    /// Sends an ICMP echo request of so many bytes, and returns the round-trip time. The first ping
    /// may be slow: it resolves the neighbor, and may connect to it.
    pub fn ping(&self, to: IpAddr, bytes: usize, timeout: Duration) -> io::Result<Duration> {
        let id = self.with(|inner, now| inner.begin_ping(now, to, bytes, timeout))?;
        self.wait(CallTimeout::Never, |inner, _| inner.ping_outcome(id).transpose())
    }

    /// The reachable neighbors, with link address, connection and MTU.
    pub fn neighbors(&self) -> Vec<Neighbor> {
        self.inner.borrow().neighbors()
    }

    /// Runs a function on the host, between two steps.
    pub(crate) fn with<R>(&self, f: impl FnOnce(&mut Host, Time) -> R) -> R {
        f(&mut self.inner.borrow_mut(), self.now())
    }

    /// Polls `ask` until it returns a value or the timeout ends, and serves all sockets meanwhile.
    pub(crate) fn wait<R>(
        &self,
        timeout: CallTimeout,
        mut ask: impl FnMut(&mut Host, Time) -> io::Result<Option<R>>,
    ) -> io::Result<R> {
        let mut inner = self.inner.borrow_mut();
        let begun = self.now();
        // Each turn reads the clock once; the first turn has its time already. `was_busy`: whether
        // the last turn did anything.
        let (mut now, mut was_busy) = (begun, None);
        loop {
            if let Some(answer) = ask(&mut inner, now).transpose() {
                // Sends at once what the call made possible, such as a window update. A step that
                // is overdue is made here, so callers that never wait serve other sockets too.
                let _ = if inner.is_due(now) { inner.step(now) } else { inner.transmit(now) };
                return answer;
            }
            if let Some(was_busy) = was_busy {
                match timeout {
                    CallTimeout::Immediate => return Err(io::ErrorKind::WouldBlock.into()),
                    CallTimeout::After(timeout) if now >= begun + timeout => {
                        return Err(io::ErrorKind::TimedOut.into());
                    }
                    _ if was_busy => {}
                    _ => std::thread::yield_now(),
                }
                now = self.now();
            }
            was_busy = Some(inner.step(now));
            if let Some(why) = inner.failed() {
                return Err(io::Error::other(why));
            }
        }
    }
}

/// A random seed from the system.
pub(crate) fn seed() -> u64 {
    RandomState::new().hash_one(0)
}

/// The first address of a name.
pub(crate) fn named(address: impl ToSocketAddrs) -> io::Result<SocketAddr> {
    address.to_socket_addrs()?.next().ok_or_else(|| io::ErrorKind::InvalidInput.into())
}

impl Clock {
    #[expect(clippy::disallowed_methods, reason = "this is where the machine's clock comes in")]
    pub(crate) fn begin() -> Self {
        Self { start: Instant::now() }
    }

    pub(crate) fn now(self) -> Time {
        Time::START + self.start.elapsed()
    }
}

impl Drop for Interface {
    /// The last clone flushes what sockets have sent and disconnects from peers, with a time limit.
    fn drop(&mut self) {
        if Rc::strong_count(&self.inner) > 1 {
            return;
        }
        let mut host = self.inner.borrow_mut();
        settle(&mut host, self.clock);
        disconnect(&mut host, self.clock);
    }
}

/// Flushes what sockets have sent, while peers acknowledge some of it and `flush_max` allows. Then
/// it resets the connections that are not flushed, so that their peers do not wait for the rest.
pub(crate) fn settle(host: &mut Host, clock: Clock) {
    let mut now = clock.now();
    let last = now + host.stack.flush_max();
    let (mut end, mut left) = (now + SHUTDOWN_MAX, host.stack.tcp_unflushed());
    while now < end.min(last) && !host.has_sent(now) {
        if !host.step(now) {
            std::thread::yield_now();
        }
        now = clock.now();
        let left_now = host.stack.tcp_unflushed();
        if left_now < left {
            (end, left) = (now + SHUTDOWN_MAX, left_now);
        }
    }
    if host.stack.tcp_abort_unflushed() == 0 {
        return;
    }
    let end = now + RESET_MAX;
    while now < end {
        host.step(now);
        std::thread::yield_now();
        now = clock.now();
    }
}

/// Disconnects from all peers, within [`SHUTDOWN_MAX`].
pub(crate) fn disconnect(host: &mut Host, clock: Clock) {
    let mut now = clock.now();
    let end = now + SHUTDOWN_MAX;
    host.disconnect(now);
    while now < end && !host.is_disconnected() {
        if !host.node.step(now) {
            std::thread::yield_now();
        }
        now = clock.now();
    }
}
