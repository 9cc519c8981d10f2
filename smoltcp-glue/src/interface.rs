//! An interface that an application runs itself: its thread is the worker.
//!
//! ```text
//!   socket call --> step: device --> node::Interface --> Stack --> node::Interface --> device
//! ```
//!
//! Every call on a socket makes a step for all sockets of the interface, so whoever waits for one
//! serves the others; an application that calls none for long lets its peers wait, and is to call
//! [`Interface::step`] then. Nothing is handed from thread to thread, which is why sockets stay in
//! the thread that made them.

use crate::error::UpError;
use crate::stack::{Stack, StackConfig};
use crate::tcp::{TcpListener, TcpStream};
use crate::udp::UdpSocket;
use pollux_node::config::{InterfaceSettings, Mode};
use pollux_node::interface::sending::{NotSent, destination};
use pollux_node::interface::{self as node};
use pollux_verbs::time::Time;
use std::cell::RefCell;
use std::collections::BTreeSet;
use std::hash::{BuildHasher, RandomState};
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::rc::Rc;
use std::time::{Duration, Instant};

/// Packets that are sent before the device is looked at again.
const BURST_MAX: usize = 64;
/// How often addresses and ways are asked for anew.
const LOOK_EVERY: Duration = Duration::from_millis(10);
/// How long peers are waited for that have not acknowledged all, when an interface ends.
const LEAVE_MAX: Duration = Duration::from_millis(500);

/// An interface. Clones are the same one.
#[derive(Clone)]
pub struct Interface {
    inner: Rc<RefCell<Inner>>,
}

/// What all sockets of an interface share.
pub(crate) struct Inner {
    node: node::Interface,
    pub(crate) stack: Stack,
    start: Instant,
    /// A packet that the device had no room for.
    held: Option<Vec<u8>>,
    /// Packets to ourselves.
    looped: Vec<Vec<u8>>,
    own: BTreeSet<IpAddr>,
    connects: bool,
    look_at: Time,
}

/// How long a call waits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Patience {
    /// Not at all.
    None,
    /// So long.
    For(Duration),
    /// For ever.
    Endless,
}

impl Interface {
    #[expect(clippy::disallowed_methods, reason = "the application's thread is the worker")]
    pub(crate) fn open(
        settings: &InterfaceSettings,
        config: StackConfig,
        patience: Duration,
    ) -> Result<Self, UpError> {
        let start = Instant::now();
        // Seeded by the system anew in every process.
        let seed = |salt: u8| RandomState::new().hash_one(salt);
        let opened = pollux_node::open(&settings.device).map_err(UpError::Open)?;
        let mut node = node::Interface::new(Time::START, opened, settings, seed(1))
            .map_err(UpError::Device)?;
        node.keep_deliveries();
        let inner = Inner {
            node,
            stack: Stack::new(config, seed(2)),
            start,
            held: None,
            looped: Vec::new(),
            own: BTreeSet::new(),
            connects: settings.mode != Mode::Ud,
            look_at: Time::START,
        };
        let interface = Self { inner: Rc::new(RefCell::new(inner)) };
        interface.wait_until_up(settings, patience)?;
        Ok(interface)
    }

    fn wait_until_up(
        &self,
        settings: &InterfaceSettings,
        patience: Duration,
    ) -> Result<(), UpError> {
        let up = self.wait(Patience::For(patience), |inner, _| {
            let has = |ip: &IpAddr| inner.own.contains(ip);
            let control = inner.node.control();
            let has_lease = control.has_lease() || !settings.asks_for_address();
            let has_all = has_lease && settings.fixed_addresses().all(|one| has(&one.ip));
            Ok((control.is_up() && has_all).then_some(()))
        });
        up.map_err(|_| {
            let row = self.inner.borrow().node.control().row();
            UpError::NotUp(format!("{}: {}", row.state, row.why))
        })
    }

    /// Serves all sockets once; says whether there was anything to do.
    pub fn step(&self) -> bool {
        let mut inner = self.inner.borrow_mut();
        let now = inner.now();
        inner.step(now)
    }

    /// Addresses that sockets can have.
    pub fn addresses(&self) -> Vec<IpAddr> {
        self.inner.borrow().own.iter().copied().collect()
    }

    /// A UDP socket at an address of the interface, or at `0.0.0.0` or `::` for all; port 0 is any.
    pub fn udp_bind(&self, local: impl Into<SocketAddr>) -> io::Result<UdpSocket> {
        let id = self.inner.borrow_mut().stack.udp_bind(local.into())?;
        Ok(UdpSocket::new(self.clone(), id))
    }

    /// A listener, with room for so many connections that nobody has accepted yet.
    pub fn tcp_listen(
        &self,
        local: impl Into<SocketAddr>,
        backlog: usize,
    ) -> io::Result<TcpListener> {
        let id = self.inner.borrow_mut().stack.tcp_listen(local.into(), backlog)?;
        Ok(TcpListener::new(self.clone(), id))
    }

    /// A connection, once the peer has agreed to it.
    pub fn tcp_connect(&self, to: impl Into<SocketAddr>) -> io::Result<TcpStream> {
        let to = to.into();
        let id = {
            let mut inner = self.inner.borrow_mut();
            let (now, from) = (inner.now(), inner.source_for(to.ip())?);
            inner.stack.tcp_connect(now, SocketAddr::new(from, 0), to)?
        };
        let stream = TcpStream::new(self.clone(), id);
        stream.wait_until_open()?;
        Ok(stream)
    }

    /// Lets somebody do something with the sockets, between two steps.
    pub(crate) fn with<R>(&self, f: impl FnOnce(&mut Inner, Time) -> R) -> R {
        let mut inner = self.inner.borrow_mut();
        let now = inner.now();
        f(&mut inner, now)
    }

    /// Asks until there is an answer, and serves all sockets meanwhile.
    pub(crate) fn wait<R>(
        &self,
        patience: Patience,
        mut ask: impl FnMut(&mut Inner, Time) -> io::Result<Option<R>>,
    ) -> io::Result<R> {
        let mut inner = self.inner.borrow_mut();
        let begun = inner.now();
        loop {
            let now = inner.now();
            let busy = inner.step(now);
            if let Some(error) = inner.node.failed() {
                return Err(io::Error::other(error.to_string()));
            }
            if let Some(answer) = ask(&mut inner, now)? {
                // What the answer makes possible, such as a wider window, is told at once.
                inner.transmit(now);
                return Ok(answer);
            }
            match patience {
                Patience::None => return Err(io::ErrorKind::WouldBlock.into()),
                Patience::For(patience) if now >= begun + patience => {
                    return Err(io::ErrorKind::TimedOut.into());
                }
                _ if busy => {}
                _ => std::thread::yield_now(),
            }
        }
    }
}

impl Inner {
    fn now(&self) -> Time {
        Time::START + self.start.elapsed()
    }

    /// An address of ours from which packets go there.
    pub(crate) fn source_for(&self, to: IpAddr) -> io::Result<IpAddr> {
        let source = self.node.control().addresses().source_for(to);
        source.ok_or_else(|| io::ErrorKind::AddrNotAvailable.into())
    }

    pub(crate) fn join_group(&mut self, now: Time, group: IpAddr) -> bool {
        self.node.join_group(now, group)
    }

    pub(crate) fn leave_group(&mut self, now: Time, group: IpAddr) {
        self.node.leave_group(now, group);
    }

    fn step(&mut self, now: Time) -> bool {
        let mut busy = self.node.step(now);
        if self.look_at <= now {
            self.look(now);
            self.look_at = now + LOOK_EVERY;
        }
        while let Some(delivery) = self.node.poll_delivery() {
            self.stack.handle_packet(now, &delivery.packet);
        }
        for packet in std::mem::take(&mut self.looped) {
            self.stack.handle_packet(now, &packet);
            busy = true;
        }
        while let Some(packet) = self.stack.poll_unheard() {
            self.node.refuse(now, &packet);
        }
        if self.stack.poll_timeout().is_some_and(|due| due <= now) {
            self.stack.handle_timeout(now);
        }
        self.transmit(now) | busy
    }

    /// Hands what sockets have to the device; says whether there was anything.
    pub(crate) fn transmit(&mut self, now: Time) -> bool {
        if let Some(packet) = self.held.take()
            && self.node.send(now, &packet) == Err(NotSent::Full)
        {
            self.held = Some(packet);
            return false;
        }
        for sent in 0..BURST_MAX {
            let Some(packet) = self.stack.poll_transmit(now) else { return sent > 0 };
            let Some((_, to)) = destination(packet) else { continue };
            if self.own.contains(&to) {
                self.looped.push(packet.to_vec());
                continue;
            }
            match self.node.send(now, packet) {
                Err(NotSent::Full) => {
                    self.held = Some(packet.to_vec());
                    return true;
                }
                Err(NotSent::TooBig(mtu)) => self.stack.handle_too_big(now, to, mtu),
                // Resolution complains, where there is a reason to.
                Ok(()) | Err(_) => {}
            }
        }
        true
    }

    /// Looks at what control has decided since.
    fn look(&mut self, now: Time) {
        let control = self.node.control();
        let usable = control.addresses().iter().filter(|one| one.state.may_be_source());
        let own: BTreeSet<_> = usable.map(|one| one.ip).collect();
        if own != self.own {
            self.stack.set_addresses(own.iter().copied());
            self.own = own;
        }
        // A connection takes longer packets than the link; where there is none, a way says so.
        if let (Some(link), false) = (control.link(), self.connects) {
            self.stack.set_mtu(link.mtu);
        }
        for to in self.stack.path_mtus() {
            if let Some(mtu) = self.node.route_mtu(to) {
                self.stack.set_path_mtu(now, to, mtu);
            }
        }
    }
}

impl Drop for Inner {
    /// What sockets have sent is still brought to their peers, and the link is left in order; but
    /// nobody is waited for long.
    fn drop(&mut self) {
        let end = self.now() + LEAVE_MAX;
        while self.now() < end && self.node.failed().is_none() && !self.stack.tcp_is_flushed() {
            let now = self.now();
            self.step(now);
        }
        self.node.leave(self.now());
        while self.now() < end && !self.node.has_left() {
            self.node.step(self.now());
        }
    }
}
