//! An interface that an application runs itself: its thread is the worker.
//!
//! Every call on a socket makes a step for all sockets of the interface, so whoever waits for one
//! serves the others; an application that calls none for long lets its peers wait, and is to call
//! [`Interface::step`] then. Nothing is handed from thread to thread, which is why sockets stay in
//! the thread that made them.
//!
//! An [`Interface`] is a [`Host`], which has neither clock nor thread, on the machine's clock.

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

/// How long an interface that ends waits for peers that acknowledge nothing or are still looked
/// for; and then as long for those that it takes leave of.
pub(crate) const SHUTDOWN_MAX: Duration = Duration::from_secs(2);

/// How long peers may doubt a reset: one whose number is not the next that they expect they answer
/// by a challenge ACK (RFC 5961 3.2), which makes us send the right one.
const RESET_MAX: Duration = Duration::from_millis(100);

/// An interface. Clones are the same one.
#[derive(Clone)]
pub struct Interface {
    inner: Rc<RefCell<Host>>,
    clock: Clock,
}

/// The machine's clock, as hosts count time.
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

    /// Serves all sockets once; says whether there was anything to do.
    pub fn step(&self) -> bool {
        self.inner.borrow_mut().step(self.now())
    }

    /// Addresses that sockets can have.
    pub fn addresses(&self) -> Vec<IpAddr> {
        self.inner.borrow().addresses()
    }

    /// A UDP socket at an address of the interface, or at `0.0.0.0` or `::` for all; port 0 is any.
    pub fn udp_bind(&self, local: impl ToSocketAddrs) -> io::Result<UdpSocket> {
        let id = self.inner.borrow_mut().stack.udp_bind(named(local)?)?;
        Ok(UdpSocket::new(self.clone(), id))
    }

    /// A listener, with room for so many connections that nobody has accepted yet.
    pub fn tcp_listen(&self, local: impl ToSocketAddrs, backlog: usize) -> io::Result<TcpListener> {
        let id = self.inner.borrow_mut().stack.tcp_listen(named(local)?, backlog)?;
        Ok(TcpListener::new(self.clone(), id))
    }

    /// A connection, once the peer has agreed to it. A peer that says nothing is given up after
    /// three minutes ([`crate::stack::TcpConfig`]).
    pub fn tcp_connect(&self, to: impl ToSocketAddrs) -> io::Result<TcpStream> {
        self.tcp_connect_within(to, CallTimeout::Never)
    }

    /// The same, if the peer agrees in so short a time.
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

    /// A connection that the peer is being asked for: it can be written to as soon as it is open.
    pub fn tcp_begin(&self, to: impl ToSocketAddrs) -> io::Result<TcpStream> {
        let to = named(to)?;
        let id = {
            let mut inner = self.inner.borrow_mut();
            let (now, from) = (self.now(), inner.source_for(to.ip())?);
            inner.stack.tcp_connect(now, SocketAddr::new(from, 0), to)?
        };
        Ok(TcpStream::new(self.clone(), id))
    }

    /// Asks a node for an echo of so many bytes, and says how long that took. The first may be
    /// slow: a neighbor has to be resolved, and perhaps to be connected to.
    pub fn ping(&self, to: IpAddr, bytes: usize, timeout: Duration) -> io::Result<Duration> {
        let id = self.with(|inner, now| inner.begin_ping(now, to, bytes, timeout))?;
        self.wait(CallTimeout::Never, |inner, _| inner.ping_outcome(id).transpose())
    }

    /// Neighbors that packets can be sent to now, and how they go.
    pub fn neighbors(&self) -> Vec<Neighbor> {
        self.inner.borrow().neighbors()
    }

    /// Lets somebody do something with the sockets, between two steps.
    pub(crate) fn with<R>(&self, f: impl FnOnce(&mut Host, Time) -> R) -> R {
        f(&mut self.inner.borrow_mut(), self.now())
    }

    /// Asks until there is an answer, and serves all sockets meanwhile.
    pub(crate) fn wait<R>(
        &self,
        timeout: CallTimeout,
        mut ask: impl FnMut(&mut Host, Time) -> io::Result<Option<R>>,
    ) -> io::Result<R> {
        let mut inner = self.inner.borrow_mut();
        let begun = self.now();
        // A turn reads the clock once; the first one has that already. And whether the last one
        // did anything.
        let (mut now, mut was_busy) = (begun, None);
        loop {
            if let Some(answer) = ask(&mut inner, now).transpose() {
                // What the answer makes possible, such as a wider window, is told at once; and who
                // only ever sends, or is refused, serves the others, too.
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

/// A number that the system gives to nobody else.
pub(crate) fn seed() -> u64 {
    RandomState::new().hash_one(0)
}

/// The address that a text names, or whatever else stands for one.
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
    /// With the last one, what sockets have sent is still brought to their peers, and the link is
    /// left in order; but nobody is waited for long.
    fn drop(&mut self) {
        if Rc::strong_count(&self.inner) > 1 {
            return;
        }
        let mut host = self.inner.borrow_mut();
        settle(&mut host, self.clock);
        disconnect(&mut host, self.clock);
    }
}

/// Brings what sockets have sent to their peers, for as long as peers take something and the
/// configuration allows. A peer that has not got all by then is told so by a reset: otherwise it
/// would wait for the rest.
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

/// Leaves the link in order.
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
