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
//!
//! An [`Interface`] is a [`Host`], which has neither clock nor thread, on the machine's clock.

use crate::error::UpError;
use crate::stack::{Exit, Stack, StackConfig, UdpError, UdpId};
use crate::tcp::{TcpListener, TcpStream};
use crate::udp::UdpSocket;
use pollux_control::interface::Way;
use pollux_node::Opened;
use pollux_node::config::{InterfaceSettings, Mode};
use pollux_node::interface::echo::{EchoId, Outcome};
use pollux_node::interface::mover::DeviceError;
use pollux_node::interface::sending::{NotSent, destination};
use pollux_node::interface::{self as node, PingError};
use pollux_node::port::Place;
use pollux_verbs::QpType;
use pollux_verbs::time::Time;
use pollux_wire::ip::link_address::LinkAddress;
use std::cell::RefCell;
use std::collections::BTreeSet;
use std::hash::{BuildHasher, RandomState};
use std::io;
use std::net::{IpAddr, SocketAddr, ToSocketAddrs};
use std::rc::Rc;
use std::time::{Duration, Instant};

/// Packets that are sent before the device is looked at again.
const BURST_MAX: usize = 64;
/// Packets to ourselves that wait for the next step.
const LOOPED_MAX: usize = 256;
/// How often addresses and ways are asked for anew.
const LOOK_EVERY: Duration = Duration::from_millis(10);
/// How long an interface that ends waits for peers that have not acknowledged all or are still
/// looked for; and then as long for those that it takes leave of.
pub(crate) const LEAVE_MAX: Duration = Duration::from_secs(2);

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

/// What all sockets of an interface share. Time is passed in.
pub struct Host {
    node: node::Interface,
    /// Its sockets.
    pub stack: Stack,
    /// A packet that the device had no room for, and where those are written that it has no
    /// buffers for.
    held: Option<Vec<u8>>,
    spill: Vec<u8>,
    /// Packets to ourselves.
    looped: Vec<Vec<u8>>,
    own: BTreeSet<IpAddr>,
    connects: bool,
    look_at: Time,
}

/// Somebody on the link, and how packets go there.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Neighbour {
    /// Its addresses, and groups that it stands for.
    pub addresses: Vec<IpAddr>,
    /// Where it is on the link.
    pub link: LinkAddress,
    /// The kind of connection that packets go by; none if they go by datagram.
    pub connection: Option<QpType>,
    /// The longest packet.
    pub mtu: u32,
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
    pub(crate) fn open(
        opened: Opened,
        settings: &InterfaceSettings,
        config: StackConfig,
        patience: Duration,
    ) -> Result<Self, UpError> {
        let clock = Clock::begin();
        // Seeded by the system anew in every process.
        let seed = |salt: u8| RandomState::new().hash_one(salt);
        let host = Host::new(Time::START, opened, settings, config, [seed(1), seed(2)])
            .map_err(UpError::Device)?;
        let interface = Self { inner: Rc::new(RefCell::new(host)), clock };
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

    pub(crate) const fn clock(&self) -> Clock {
        self.clock
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

    /// A connection, once the peer has agreed to it.
    pub fn tcp_connect(&self, to: impl ToSocketAddrs) -> io::Result<TcpStream> {
        let stream = self.tcp_begin(to)?;
        stream.wait_until_open()?;
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

    /// Asks a node for an echo of so many octets, and says how long that took. The first may be
    /// slow: a neighbour has to be resolved, and perhaps to be connected to.
    pub fn ping(&self, to: IpAddr, octets: usize, patience: Duration) -> io::Result<Duration> {
        let id = self.with(|inner, now| inner.begin_ping(now, to, octets, patience))?;
        self.wait(Patience::Endless, |inner, _| inner.ping_outcome(id).transpose())
    }

    /// Neighbours that packets can be sent to now, and how they go.
    pub fn neighbours(&self) -> Vec<Neighbour> {
        self.inner.borrow().neighbours()
    }

    /// Lets somebody do something with the sockets, between two steps.
    pub(crate) fn with<R>(&self, f: impl FnOnce(&mut Host, Time) -> R) -> R {
        f(&mut self.inner.borrow_mut(), self.now())
    }

    /// Asks until there is an answer, and serves all sockets meanwhile.
    pub(crate) fn wait<R>(
        &self,
        patience: Patience,
        mut ask: impl FnMut(&mut Host, Time) -> io::Result<Option<R>>,
    ) -> io::Result<R> {
        let mut inner = self.inner.borrow_mut();
        let (begun, mut busy) = (self.now(), true);
        let mut now = begun;
        loop {
            if let Some(answer) = ask(&mut inner, now)? {
                // What the answer makes possible, such as a wider window, is told at once.
                inner.transmit(now);
                return Ok(answer);
            }
            match patience {
                Patience::None if now > begun => return Err(io::ErrorKind::WouldBlock.into()),
                Patience::For(patience) if now >= begun + patience => {
                    return Err(io::ErrorKind::TimedOut.into());
                }
                _ if busy => {}
                _ => std::thread::yield_now(),
            }
            now = self.now().max(now + Duration::from_nanos(1));
            busy = inner.step(now);
            if let Some(error) = inner.node.failed() {
                return Err(io::Error::other(error.to_string()));
            }
        }
    }
}

/// The address that a text names, or whatever else stands for one.
pub(crate) fn named(address: impl ToSocketAddrs) -> io::Result<SocketAddr> {
    address.to_socket_addrs()?.next().ok_or_else(|| io::ErrorKind::InvalidInput.into())
}

impl Clock {
    #[expect(clippy::disallowed_methods, reason = "this is where the machine's clock comes in")]
    fn begin() -> Self {
        Self { start: Instant::now() }
    }

    pub(crate) fn now(self) -> Time {
        Time::START + self.start.elapsed()
    }
}

impl Host {
    /// A host with an interface at a device, which comes up as soon as it can. The seeds are to be
    /// unknown to others.
    pub fn new(
        now: Time,
        place: impl Into<Place>,
        settings: &InterfaceSettings,
        config: StackConfig,
        [seed, stack_seed]: [u64; 2],
    ) -> Result<Self, DeviceError> {
        let mut node = node::Interface::new(now, place, settings, seed)?;
        node.keep_deliveries();
        Ok(Self {
            node,
            stack: Stack::new(config, stack_seed),
            held: None,
            spill: Vec::new(),
            looped: Vec::new(),
            own: BTreeSet::new(),
            connects: settings.mode != Mode::Ud,
            look_at: now,
        })
    }

    /// The interface, to be shown.
    pub const fn node(&self) -> &node::Interface {
        &self.node
    }

    /// Why there is no device any more, if that is so.
    pub(crate) fn failed(&self) -> Option<String> {
        self.node.failed().map(ToString::to_string)
    }

    pub(crate) fn addresses(&self) -> Vec<IpAddr> {
        self.own.iter().copied().collect()
    }

    pub(crate) fn neighbours(&self) -> Vec<Neighbour> {
        let control = self.node.control();
        let connections: Vec<_> = control.connection_rows().collect();
        let connection = |key| connections.iter().find(|row| row.connection == key);
        let rows = control.peer_rows().filter_map(|row| {
            let (connection, mtu) = match row.way {
                Way::Datagram(way) => (None, way.mtu),
                Way::Connected { connection: key, mtu, .. } => {
                    (connection(key).map(|row| row.qp_type), mtu)
                }
                _ => return None,
            };
            Some(Neighbour { addresses: row.ips, link: row.link, connection, mtu })
        });
        rows.collect()
    }

    pub(crate) fn begin_ping(
        &mut self,
        now: Time,
        to: IpAddr,
        octets: usize,
        patience: Duration,
    ) -> io::Result<EchoId> {
        let asked = self.node.ping(now, to, octets, patience);
        asked.map_err(|why| match why {
            PingError::TooMany => io::ErrorKind::QuotaExceeded.into(),
            PingError::Down => io::ErrorKind::NetworkDown.into(),
            _ => io::ErrorKind::AddrNotAvailable.into(),
        })
    }

    /// What became of a request, once that is known.
    pub(crate) fn ping_outcome(&mut self, id: EchoId) -> Option<io::Result<Duration>> {
        let failed = match self.node.echo(id)? {
            Outcome::Answered { after, .. } => return Some(Ok(after)),
            Outcome::Silence => io::ErrorKind::TimedOut,
            Outcome::NotSent(NotSent::TooBig(_)) => io::ErrorKind::InvalidInput,
            Outcome::NotSent(_) | Outcome::Unreachable => io::ErrorKind::HostUnreachable,
        };
        Some(Err(failed.into()))
    }

    /// An address of ours from which packets go there.
    pub fn source_for(&self, to: IpAddr) -> io::Result<IpAddr> {
        let source = self.node.control().addresses().source_for(to);
        source.ok_or_else(|| io::ErrorKind::AddrNotAvailable.into())
    }

    /// A socket hears a group. `false` if it is none, or there are too many.
    pub fn join_group(&mut self, now: Time, group: IpAddr) -> bool {
        self.node.join_group(now, group)
    }

    /// A socket hears a group no more.
    pub fn leave_group(&mut self, now: Time, group: IpAddr) {
        self.node.leave_group(now, group);
    }

    /// Serves all sockets once; says whether there was anything to do. Then it is to be called
    /// again soon, and otherwise when something comes and when [`Host::poll_timeout`] says so.
    pub fn step(&mut self, now: Time) -> bool {
        let stack = &mut self.stack;
        let mut busy = self.node.breathe(now, &mut |packet| stack.take_packet(now, packet));
        if self.look_at <= now {
            self.look(now);
            self.look_at = now + LOOK_EVERY;
        }
        while let Some(delivery) = self.node.poll_delivery() {
            self.stack.handle_packet(now, &delivery.packet);
        }
        for packet in self.looped.drain(..) {
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

    /// Sends a datagram of a socket. There is no room while others wait to leave.
    pub fn udp_send(
        &mut self,
        now: Time,
        id: UdpId,
        to: SocketAddr,
        payload: &[u8],
    ) -> io::Result<()> {
        if !self.has_room() {
            return Err(UdpError::Full.into());
        }
        let local = self.stack.udp_local(id);
        let from = match local.is_some_and(|local| local.ip().is_unspecified()) {
            true => self.source_for(to.ip()).ok(),
            false => None,
        };
        let mut sheet = Sheet { node: &mut self.node, spill: &mut self.spill, has_spilt: false };
        self.stack.udp_send_to(now, id, (from, to), payload, &mut sheet)?;
        let has_spilt = sheet.has_spilt;
        self.dispatch(now, has_spilt);
        Ok(())
    }

    /// When there is something to do though nothing comes.
    pub fn poll_timeout(&self) -> Option<Time> {
        [self.node.poll_timeout(), self.stack.poll_timeout()].into_iter().flatten().min()
    }

    /// Whether all that sockets have sent is with their peers, or lost.
    pub fn has_sent(&self, now: Time) -> bool {
        let has_sent = self.held.is_none() && self.node.has_sent(now);
        self.node.failed().is_some() || has_sent && self.stack.tcp_is_flushed()
    }

    /// Takes leave of the link. [`Host::has_left`] tells when the others know.
    pub fn leave(&mut self, now: Time) {
        self.node.leave(now);
    }

    /// Whether all that the link is to know of our leaving is said.
    pub fn has_left(&self) -> bool {
        self.node.has_left()
    }

    pub(crate) fn has_room(&self) -> bool {
        self.held.is_none() && self.looped.len() < LOOPED_MAX && self.node.has_room()
    }

    /// Hands what sockets have to the device; says whether there was anything.
    pub fn transmit(&mut self, now: Time) -> bool {
        if let Some(packet) = self.held.take()
            && self.node.send(now, &packet) == Err(NotSent::Full)
        {
            self.held = Some(packet);
            return false;
        }
        let mut sent = 0;
        while sent < BURST_MAX && self.has_room() {
            let mut sheet =
                Sheet { node: &mut self.node, spill: &mut self.spill, has_spilt: false };
            if !self.stack.transmit_to(now, &mut sheet) {
                break;
            }
            let has_spilt = sheet.has_spilt;
            self.dispatch(now, has_spilt);
            sent += 1;
        }
        self.node.flush();
        sent > 0
    }

    /// Sends the packet that was just written: to ourselves, or by the device.
    fn dispatch(&mut self, now: Time, has_spilt: bool) {
        let packet = if has_spilt { &self.spill[..] } else { self.node.drafted() };
        let Some((_, to)) = destination(packet) else { return };
        if self.own.contains(&to) {
            self.looped.push(packet.to_vec());
            return;
        }
        let sent = match has_spilt {
            true => self.node.send(now, &self.spill),
            false => self.node.send_draft(now),
        };
        match sent {
            Err(NotSent::Full) if has_spilt => self.held = Some(self.spill.clone()),
            Err(NotSent::TooBig(mtu)) => self.stack.handle_too_big(now, to, mtu),
            // Resolution complains, where there is a reason to.
            Ok(()) | Err(_) => {}
        }
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

/// Where a packet is written that leaves: a buffer of the device's, or else our own memory.
struct Sheet<'a> {
    node: &'a mut node::Interface,
    spill: &'a mut Vec<u8>,
    has_spilt: bool,
}

impl Exit for Sheet<'_> {
    fn room(&mut self, len: usize) -> &mut [u8] {
        match self.node.draft(len) {
            Some(room) => room,
            None => {
                self.has_spilt = true;
                self.spill.clear();
                self.spill.resize(len, 0);
                self.spill
            }
        }
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
        let mut now = self.now();
        let end = now + LEAVE_MAX;
        while now < end && !host.has_sent(now) {
            host.step(now);
            now = self.now();
        }
        host.leave(now);
        let end = now + LEAVE_MAX;
        while now < end && !host.has_left() {
            host.node.step(now);
            now = self.now();
        }
    }
}
