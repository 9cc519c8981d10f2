//! TCP (RFC 9293): demultiplexing of segments, and scheduling of connections.
//!
//! ```text
//!   segment --by both addresses--> connection --> ready --poll--> packets
//!      |                               ^    \         |
//!      +--SYN, by our address--> listener    v        v
//!      +--else--> RST                  stale timers --> timers, in order --> ready
//! ```
//!
//! smoltcp implements the protocol and the buffers of a connection ([`engine`]). This module costs
//! one lookup for each segment, and nothing for an idle connection.

mod calls;
mod connection;
mod cookie;
mod engine;
mod isn;
mod listener;
mod passive;
mod peers;
mod progress;
mod scoreboard;
mod segment;
mod service_clock;
mod time_wait;
mod turn;

pub use connection::{Connection, TcpError, TcpInfo};
pub use listener::{Listener, ListenerId};

use super::config::TcpConfig;
use super::mtu::Mtus;
use super::outbox::{Outbox, Packet};
use super::packet::IpPacket;
use super::slab::{Key, Slab};
use super::{BindError, Events, Lookup, SocketId, StackCounts};
use connection::{Holder, SpareSockets, is_after};
use engine::{At, Engine};
use isn::IsnSecret;
use pollux_control::bounded::BoundedQueue;
use pollux_verbs::rng::SeededRng;
use pollux_verbs::time::Time;
use pollux_wire::ip::tcp::TcpSegment;
use progress::REPORTS_MAX;
use service_clock::ServiceClock;
use smoltcp::iface::SocketSet;
use smoltcp::socket::tcp::State;
use std::collections::{BTreeSet, VecDeque};
use std::net::{IpAddr, SocketAddr};
use time_wait::TimeWaits;

/// Identifies a connection; invalid after it is closed.
pub type TcpId = Key<Connection>;

pub(super) struct Tcp {
    config: TcpConfig,
    engine: Engine,
    secret: IsnSecret,
    service_clock: ServiceClock,
    pub(super) connections: Slab<Connection>,
    spare: SpareSockets,
    time_waits: TimeWaits,
    /// Keyed by local and remote address.
    by_addresses: Lookup<(SocketAddr, SocketAddr), TcpId>,
    pub(super) listeners: Slab<Listener>,
    listening: Lookup<SocketAddr, ListenerId>,
    ready: VecDeque<TcpId>,
    stale_timers: VecDeque<TcpId>,
    /// Connections to probe, because their peer may have restarted.
    to_probe: VecDeque<TcpId>,
    timers: BTreeSet<(Time, TcpId)>,
    /// An empty set, with which smoltcp refuses every segment.
    no_sockets: SocketSet<'static>,
    draft: Packet,
    /// The buffer for a received segment that is changed: it gets a newer acknowledgment, or is the
    /// replayed SYN of a cookie.
    renewed: Packet,
    verify_checksums: bool,
    pub(super) events: Events,
    pub(super) progress: BoundedQueue<IpAddr>,
}

/// An event of a connection: the state before, and whether a packet was received.
#[derive(Clone, Copy)]
struct Event {
    before: State,
    received: bool,
}

impl Tcp {
    pub(super) fn new(config: TcpConfig, verify_checksums: bool, mut rng: SeededRng) -> Self {
        Self {
            secret: IsnSecret::new(&mut rng),
            service_clock: ServiceClock::default(),
            engine: Engine::new(rng),
            connections: Slab::new(config.connections_max),
            spare: SpareSockets::default(),
            time_waits: TimeWaits::new(config.connections_max),
            by_addresses: Lookup::default(),
            listeners: Slab::new(config.listeners_max),
            listening: Lookup::default(),
            ready: VecDeque::new(),
            stale_timers: VecDeque::new(),
            to_probe: VecDeque::new(),
            timers: BTreeSet::new(),
            no_sockets: SocketSet::new(Vec::new()),
            draft: Packet::default(),
            renewed: Packet::default(),
            verify_checksums,
            config,
            events: Events::default(),
            progress: BoundedQueue::new(REPORTS_MAX),
        }
    }

    pub(super) fn connect(
        &mut self,
        now: Time,
        (local, remote): (SocketAddr, SocketAddr),
        mtus: &Mtus,
    ) -> Result<TcpId, BindError> {
        if self.by_addresses.contains_key(&(local, remote)) {
            return Err(BindError::InUse);
        }
        let earlier = self.time_waits.end((local, remote));
        let isn = self.isn(now, (local, remote), earlier);
        let (ends, spare) = ((local, remote), &mut self.spare);
        let mut connection = Connection::new(&self.config, ends, Holder::Application, spare);
        if !connection.connect(now, mtus.of(now, remote.ip()), isn) {
            return Err(BindError::AddressNotAvailable);
        }
        let id = self.insert(connection).ok_or(BindError::Full)?;
        self.make_ready(id);
        Ok(id)
    }

    /// Whether an outgoing connection may use this local port.
    pub(super) fn is_free(&self, local: SocketAddr, remote: SocketAddr) -> bool {
        !self.time_waits.contains((local, remote)) && self.is_reusable(local, remote)
    }

    /// Like [`Tcp::is_free`], but also for the port of a connection in TIME-WAIT: the sequence
    /// numbers of the new connection begin after those of the old one (RFC 9293 3.6.1).
    pub(super) fn is_reusable(&self, local: SocketAddr, remote: SocketAddr) -> bool {
        !self.by_addresses.contains_key(&(local, remote)) && self.has_no_listener(local)
    }

    pub(super) fn has_no_listener(&self, local: SocketAddr) -> bool {
        !self.listening.contains_key(&local)
    }

    fn insert(&mut self, connection: Connection) -> Option<TcpId> {
        let addresses = connection.addresses();
        let id = self.connections.insert(connection)?;
        self.by_addresses.insert(addresses, id);
        Some(id)
    }

    pub(super) fn abort(&mut self, id: TcpId, why: TcpError) {
        let Some(connection) = self.connections.get_mut(id) else { return };
        let before = connection.state();
        connection.abort(why);
        self.apply_event(id, Event { before, received: false });
        self.make_ready(id);
    }

    pub(super) fn handle(
        &mut self,
        now: Time,
        (packet, bytes): (&IpPacket<'_>, &[u8]),
        mtus: &Mtus,
        (out, counts): (&mut Outbox, &mut StackCounts),
    ) {
        let segment = TcpSegment::parse(packet.payload).ok();
        let is_intact =
            |one: &TcpSegment<'_>| !self.verify_checksums || one.checksum_ok(&packet.pseudo);
        let Some(segment) = segment.filter(is_intact) else {
            counts.malformed += 1;
            return;
        };
        let header = segment.header();
        let local = SocketAddr::new(packet.destination, header.destination_port);
        let remote = SocketAddr::new(packet.source, header.source_port);
        if local.port() == 0 || remote.port() == 0 {
            counts.malformed += 1;
            return;
        }
        let ends = (local, remote);
        let is_syn = header.syn && !header.ack && !header.rst;
        let mut known = self.by_addresses.get(&ends).copied();
        let mut earlier = None;
        if is_syn && let Some(id) = known {
            earlier = self.replace_time_wait(id, header.sequence_number);
            known = known.filter(|_| earlier.is_none());
        }
        if let Some(id) = known {
            return self.receive(now, id, (bytes, &segment), mtus, out);
        }
        if known.is_none() && earlier.is_none() && self.time_waits.contains(ends) {
            earlier =
                is_syn.then(|| self.time_waits.replace(ends, header.sequence_number)).flatten();
            if earlier.is_none() {
                if self.time_waits.receive(now, ends, &segment, &mut self.draft) {
                    push(out, &self.draft);
                }
                return;
            }
        }
        let received = (bytes, &segment);
        let is_taken = match is_syn {
            true => self.handle_syn(now, (ends, earlier), received, mtus, (out, counts)),
            false => self.handle_cookie(now, ends, received, mtus, (out, counts)),
        };
        if !is_taken {
            self.refuse(now, local, bytes, (out, counts));
        }
    }

    /// Removes a connection in TIME-WAIT if a new SYN with sequence number `first` arrives: its
    /// number is after all that the connection received, while that of an old duplicate is not (RFC
    /// 9293 3.6.1). Returns SND.MAX of the removed connection.
    fn replace_time_wait(&mut self, id: TcpId, first: u32) -> Option<u32> {
        let connection = self.connections.get_mut(id)?;
        let is_new = is_after(first, connection.receive_next());
        if connection.state() != State::TimeWait || !is_new {
            return None;
        }
        let sent_to = connection.loss_recovery.sent_to;
        connection.socket().abort();
        connection.end.get_or_insert(TcpError::ShutDown);
        self.forget(id);
        Some(sent_to)
    }

    /// Moves a connection in TIME-WAIT that the application has closed to `time_waits`, which frees
    /// its buffers, once everything that it received is acknowledged.
    fn retire(&mut self, now: Time, id: TcpId) {
        let Some(connection) = self.connections.get_mut(id) else { return };
        let (sent_to, next) = (connection.loss_recovery.sent_to, connection.receive_next());
        if connection.state() != State::TimeWait
            || connection.holder != Holder::None
            || connection.loss_recovery.answered_to != next
        {
            return;
        }
        self.time_waits.add(now, connection.addresses(), sent_to, next);
        connection.socket().abort();
        self.forget(id);
    }

    fn refuse(
        &mut self,
        now: Time,
        local: SocketAddr,
        bytes: &[u8],
        (out, counts): (&mut Outbox, &mut StackCounts),
    ) {
        counts.tcp_refused += 1;
        let at = At { now, local: local.ip(), mtu: super::mtu::MTU_MIN };
        if self.engine.receive(at, &mut self.no_sockets, bytes, &mut self.draft) {
            push(out, &self.draft);
        }
    }

    #[inline]
    fn serve(&mut self, now: Time) {
        if self.service_clock.is_late(now) {
            self.service_clock.note_late(now, self.poll_timeout());
        }
        self.service_clock.note(now);
    }

    pub(super) fn poll_timeout(&self) -> Option<Time> {
        match self.ready.is_empty() && self.stale_timers.is_empty() && self.to_probe.is_empty() {
            true => {
                let first = self.timers.first().map(|(due, _)| *due);
                first.into_iter().chain(self.time_waits.due()).min()
            }
            false => Some(Time::START),
        }
    }

    /// Handles an ICMP error about a segment. An established connection ignores it (RFC 5461 4); a
    /// connection attempt ends.
    pub(super) fn handle_icmp_error(
        &mut self,
        (local, remote): (SocketAddr, SocketAddr),
        why: TcpError,
    ) {
        let Some(&id) = self.by_addresses.get(&(local, remote)) else { return };
        let is_opening = |one: &Connection| one.state() == State::SynSent;
        if self.connections.get(id).is_some_and(is_opening) {
            self.abort(id, why);
        }
    }

    /// Whether a segment with this number was sent between these addresses and is unacknowledged
    /// (RFC 5927 4.1).
    pub(super) fn is_in_flight(
        &self,
        local: SocketAddr,
        remote: SocketAddr,
        sequence_number: u32,
    ) -> bool {
        let id = self.by_addresses.get(&(local, remote));
        let connection = id.and_then(|id| self.connections.get(*id));
        connection.is_some_and(|connection| connection.is_in_flight(sequence_number))
    }

    /// Updates holder, events and tables after an event of a connection.
    fn apply_event(&mut self, id: TcpId, event: Event) {
        let Some(connection) = self.connections.get_mut(id) else { return };
        let state = connection.state();
        let is_open = !matches!(state, State::Listen | State::SynReceived | State::Closed);
        if let Holder::HalfOpen(listener_id) = connection.holder
            && is_open
            && let Some(listener) = self.listeners.get_mut(listener_id)
        {
            connection.holder = Holder::Queued(listener_id);
            listener.half_open -= 1;
            listener.open.push_back(id);
            self.events.push(SocketId::Listener(listener_id));
        }
        if connection.holder == Holder::Application && (event.received || state != event.before) {
            self.events.push(SocketId::Tcp(id));
        }
        if state == State::Closed && event.before != State::Closed {
            connection.end.get_or_insert(Connection::reason(event.before, event.received));
        }
        if connection.is_over() {
            self.forget(id);
        }
    }

    /// Removes a closed connection from the tables. The application can still query a connection
    /// that it holds.
    fn forget(&mut self, id: TcpId) {
        self.cancel_timer(id);
        let Some(connection) = self.connections.get_mut(id) else { return };
        if !std::mem::replace(&mut connection.is_detached, true) {
            self.by_addresses.remove(&connection.addresses());
        }
        match connection.holder {
            Holder::Application => return,
            Holder::None => {}
            Holder::HalfOpen(listener_id) => {
                if let Some(listener) = self.listeners.get_mut(listener_id) {
                    listener.half_open -= 1;
                }
            }
            Holder::Queued(listener_id) => {
                if let Some(listener) = self.listeners.get_mut(listener_id) {
                    listener.open.retain(|waiting| *waiting != id);
                }
            }
        }
        self.remove(id);
    }

    fn remove(&mut self, id: TcpId) {
        if let Some(connection) = self.connections.remove(id) {
            self.spare.keep(connection);
        }
    }
}

/// Queues an immediate answer; it is lost if the outbox is full.
fn push(out: &mut Outbox, answer: &Packet) {
    if let Some(buffer) = out.push(answer.bytes().len()) {
        buffer.copy_from_slice(answer.bytes());
    }
}
