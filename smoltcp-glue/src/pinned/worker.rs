//! The worker: a thread that serves an interface and all of its sockets.
//!
//! ```text
//!   turn: device --> stack --events--> rings, wakers
//!         doorbell --> rings --> stack --> device
//! ```
//!
//! The worker serves only sockets with events. It takes no lock that an application holds for long,
//! and allocates only when a socket is opened.

use super::common_state::{SocketSlot, WORKER_ENDED};
use super::datagram::PAYLOAD_MAX;
use super::doorbell::{Doorbell, Inbox};
use super::listener::{ListenerLine, WorkerListener};
use super::serving::{EndState, ListenerEnd, SpareRings, TcpEnd, UdpEnd};
use super::tcp::TcpStream;
use super::tcp_line::ConnectionState;
use super::udp::UdpSocket;
use super::waiters::Waiters;
use super::{Alive, Config, Hold, Worker, WorkerRow, doorbell::SocketFlags};
use crate::admin::SocketsRequest;
use crate::clock::Clock;
use crate::control_thread::ControlHandle;
use crate::host::Host;
use crate::interface::{SHUTDOWN_MAX, disconnect, flush_sockets, hand_to_control};
use crate::stack::slab::SlabMap;
use crate::stack::{BindError, ListenerId, SocketId, TcpError, TcpId, TcpInfo};
use pollux_dataplane::engine::{self, Handle, Work};
use pollux_mem::mpsc;
use pollux_verbs::time::Time;
use std::collections::VecDeque;
use std::io;
use std::net::SocketAddr;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Weak};
use std::time::Duration;

/// Maximum number of notified sockets that are served in one turn.
const NOTIFIED_MAX: usize = 256;
/// Maximum number of requests that are handled in one turn.
const REQUESTS_MAX: usize = 16;
/// Maximum length of the accept queue to the application; further connections wait in the stack.
const HANDED_MAX: usize = 16;
const LOOK_EVERY: Duration = Duration::from_millis(10);

impl<'a> Worker<'a> {
    pub(super) fn new(
        (inner, clock): (&'a mut Host, Clock),
        (doorbells, inbox): (Arc<[Arc<Doorbell>]>, Inbox),
        (alive, control): (Weak<Alive>, ControlHandle),
        (config, user_timeout): (Config, Duration),
        engine: Handle<()>,
    ) -> Self {
        let doorbell = doorbells[usize::from(inner.stack.shard().worker)].clone();
        inner.stack.enable_events();
        let rings = SpareRings::new(config.tcp_ring_bytes);
        let mut worker = Self {
            inner,
            clock,
            doorbells,
            doorbell,
            inbox,
            alive,
            control,
            config,
            user_timeout,
            udp: SlabMap::new(),
            tcp: SlabMap::new(),
            listeners: SlabMap::new(),
            again: VecDeque::new(),
            draining: Vec::new(),
            starved: Vec::new(),
            scratch: vec![0; PAYLOAD_MAX],
            rings,
            look_at: Time::START,
            engine,
        };
        worker.turn(clock.now());
        worker
    }

    /// Serves until all handles of the interface are dropped, or the interface fails.
    pub(super) fn run(mut self, mut engine: engine::Worker<()>) {
        let clock = self.clock;
        engine.run(&mut self, || clock.now());
    }

    /// Whether this worker has failed, or another one has ended.
    fn has_ended(&self) -> bool {
        if let Some(why) = self.inner.failed() {
            self.doorbell.common().end(format!("the interface has no device any more: {why}"));
        }
        self.doorbell.check().is_err()
    }

    /// Sends the remaining data of sockets, within a time limit.
    fn finish(&mut self) {
        let mut now = self.clock.now();
        let (mut end, last) = (now + SHUTDOWN_MAX, now + self.inner.stack.flush_max());
        let mut busy = true;
        while (busy || !self.draining.is_empty() || !self.again.is_empty())
            && !self.has_ended()
            && now < end.min(last)
        {
            busy = self.handle_notifications(now);
            now = self.clock.now();
            if self.turn(now) {
                end = now + SHUTDOWN_MAX;
            }
        }
        // Data that is still in a ring is lost, and the reset reports that to the peer.
        for id in std::mem::take(&mut self.draining) {
            self.inner.stack.tcp_abort(now, id);
        }
        let end = now + SHUTDOWN_MAX;
        flush_sockets(self.inner, &self.control, self.clock);
        let common = self.doorbell.common().clone();
        common.finish();
        // Until the other workers have finished, packets of their flows may arrive at this one.
        while !common.is_finished() && !self.has_ended() && self.clock.now() < end + SHUTDOWN_MAX {
            if !self.turn(self.clock.now()) {
                std::thread::yield_now();
            }
        }
        // Waits until all packets of all workers are sent.
        flush_sockets(self.inner, &self.control, self.clock);
        disconnect(self.inner, &self.control, self.clock);
    }

    fn turn(&mut self, now: Time) -> bool {
        let mut busy = self.inner.step(now);
        while let Some(socket) = self.inner.stack.poll_event() {
            self.serve(now, socket);
            busy = true;
        }
        busy |= self.handle_notifications(now);
        busy |= self.serve_again(now);
        if busy {
            self.inner.transmit(now);
            self.notify_others();
        }
        self.hand_to_control();
        self.look_if_due(now);
        busy
    }

    /// Wakes the workers with new hand-offs.
    fn notify_others(&mut self) {
        let mut to_wake = self.inner.take_to_wake();
        while to_wake > 0 {
            self.doorbells[to_wake.trailing_zeros() as usize].wake();
            to_wake &= to_wake - 1;
        }
    }

    pub(super) fn hand_to_control(&mut self) {
        hand_to_control(self.inner, &self.control);
    }

    /// Handles notified sockets and requests; returns whether there were any.
    fn handle_notifications(&mut self, now: Time) -> bool {
        let mut busy = false;
        for _ in 0..NOTIFIED_MAX {
            let Some(socket) = self.inbox.next_touched() else { break };
            match socket {
                SocketId::Udp(id) => {
                    self.udp.get_mut(id).into_iter().for_each(UdpEnd::handle_notification);
                }
                SocketId::Tcp(id) => {
                    self.tcp.get_mut(id).into_iter().for_each(TcpEnd::handle_notification);
                }
                SocketId::Listener(id) => self.handle_listener_notification(now, id),
            }
            self.serve(now, socket);
            busy = true;
        }
        for _ in 0..REQUESTS_MAX {
            let Some(request) = self.inbox.next_request() else { break };
            request(self, now);
            busy = true;
        }
        busy || self.inbox.has_requests()
    }

    /// Serves sockets that had more to send than there was space for.
    fn serve_again(&mut self, now: Time) -> bool {
        let count = self.again.len();
        for _ in 0..count {
            if !self.inner.can_send() {
                break;
            }
            let Some(socket) = self.again.pop_front() else { break };
            if let SocketId::Udp(id) = socket
                && let Some(end) = self.udp.get_mut(id)
            {
                end.is_again = false;
            }
            self.serve(now, socket);
        }
        count > 0
    }

    fn look_if_due(&mut self, now: Time) {
        if self.look_at <= now {
            self.look(now);
            self.look_at = now + LOOK_EVERY;
        }
    }

    /// Aborts dropped connections that make no progress, and retries starved listeners.
    fn look(&mut self, now: Time) {
        for id in std::mem::take(&mut self.draining) {
            let Some(end) = self.tcp.get_mut(id) else { continue };
            if end.is_lost(now, self.user_timeout) {
                self.inner.stack.tcp_abort(now, id);
                self.remove_tcp(id);
            } else {
                self.draining.push(id);
            }
        }
        for id in std::mem::take(&mut self.starved) {
            self.hand_over(now, id);
        }
    }

    fn remove_tcp(&mut self, id: TcpId) {
        if let Some(end) = self.tcp.remove(id) {
            self.rings.keep(end);
        }
    }

    fn serve(&mut self, now: Time, socket: SocketId) {
        match socket {
            SocketId::Udp(id) => {
                let Some(end) = self.udp.get_mut(id) else { return };
                match end.serve(now, self.inner, &mut self.scratch) {
                    EndState::HasMore if !end.is_again => {
                        end.is_again = true;
                        self.again.push_back(socket);
                    }
                    EndState::Ended => drop(self.udp.remove(id)),
                    _ => {}
                }
            }
            SocketId::Tcp(id) => {
                let Some(end) = self.tcp.get_mut(id) else { return };
                match end.serve(now, self.inner) {
                    EndState::Draining => self.draining.push(id),
                    EndState::Ended => self.remove_tcp(id),
                    _ => {}
                }
            }
            SocketId::Listener(id) => self.hand_over(now, id),
        }
    }
}

impl Worker<'_> {
    pub(super) fn udp_bind(&mut self, local: SocketAddr, shares: bool) -> io::Result<UdpSocket> {
        let (hold, slot) = self.reserve_socket()?;
        let id = match shares {
            true => self.inner.stack.udp_bind_shared(local)?,
            false => self.inner.stack.udp_bind(local)?,
        };
        let local = self.inner.stack.udp_local(id).unwrap_or(local);
        let Some((end, ends)) = UdpEnd::new((id, slot), self.config.udp_ring_bytes) else {
            self.inner.stack.udp_close(id);
            return Err(BindError::Full.into());
        };
        let socket = UdpSocket::new(hold, end.line.clone(), ends, (id, local));
        self.udp.insert(id, end);
        Ok(socket)
    }

    pub(super) fn tcp_listen(
        &mut self,
        local: SocketAddr,
        backlog: usize,
        accepters: Arc<Waiters>,
    ) -> io::Result<(WorkerListener, mpsc::Receiver<TcpStream>)> {
        let (hold, slot) = self.reserve_socket()?;
        // Connections in the accept queue to the application count toward the backlog. The length
        // of the queue is a power of two.
        let handed = 1 << (backlog / 2).clamp(1, HANDED_MAX).ilog2();
        let (ready, arrived) = mpsc::ring(handed).ok_or(BindError::Full)?;
        let backlog = backlog.saturating_sub(handed).max(1);
        let id = self.inner.stack.tcp_listen(local, backlog)?;
        let line = ListenerLine::new(SocketFlags::new(SocketId::Listener(id)), accepters);
        let line = Arc::new(line);
        self.listeners.insert(id, ListenerEnd { _slot: slot, line: line.clone(), ready });
        Ok((WorkerListener::new(hold, line), arrived))
    }

    pub(super) fn tcp_begin(&mut self, now: Time, to: SocketAddr) -> io::Result<TcpStream> {
        let slot = self.reserve_socket()?;
        let from = SocketAddr::new(self.inner.source_for(to.ip())?, 0);
        let id = self.inner.stack.tcp_connect(now, from, to)?;
        let stream = self.stream(now, id, slot).ok_or(BindError::Full)?;
        stream.set_linger(true);
        Ok(stream)
    }

    pub(super) fn answer(&mut self, now: Time, request: SocketsRequest) {
        let Self { inner, tcp, udp, .. } = self;
        request.answer(now, &inner.stack, |socket| match socket {
            SocketId::Tcp(id) => tcp.get_mut(id).map(TcpEnd::queued).unwrap_or_default(),
            SocketId::Udp(id) => udp.get_mut(id).map(UdpEnd::queued).unwrap_or_default(),
            SocketId::Listener(_) => (0, 0),
        });
    }

    /// The state of a connection. The queues include the rings.
    pub(super) fn tcp_info(&mut self, now: Time, id: TcpId) -> Result<TcpInfo, TcpError> {
        let mut info = self.inner.stack.tcp_info(now, id)?;
        if let Some(end) = self.tcp.get_mut(id) {
            let (unsent, unread) = end.queued();
            (info.send_queue, info.receive_queue) =
                (info.send_queue + unsent, info.receive_queue + unread);
        }
        Ok(info)
    }

    pub(super) fn row(&self) -> WorkerRow {
        let listeners = self.listeners.len();
        let sockets = self.udp.len() + self.tcp.len();
        WorkerRow { sockets, listeners, handed: self.inner.hand_off_counts() }
    }

    /// Reserves a slot for another socket, with the references that its handle holds.
    fn reserve_socket(&self) -> io::Result<(Hold, SocketSlot)> {
        let slot = self.alive.upgrade().zip(SocketSlot::take(self.doorbell.common()));
        let (alive, slot) = slot.ok_or(BindError::Full)?;
        Ok((Hold { doorbell: self.doorbell.clone(), alive }, slot))
    }

    /// Makes both ends of a connection of the stack: the application's stream and the worker's end.
    fn stream(
        &mut self,
        now: Time,
        id: TcpId,
        (hold, slot): (Hold, SocketSlot),
    ) -> Option<TcpStream> {
        let ends = TcpEnd::new((id, slot), ConnectionState::Opening, &mut self.rings);
        let addresses = self.inner.stack.tcp_addresses(id);
        let Some(((end, rings), addresses)) = ends.zip(addresses) else {
            self.inner.stack.tcp_abort(now, id);
            return None;
        };
        let stream = TcpStream::new(hold, end.line.clone(), rings, addresses);
        self.tcp.insert(id, end);
        // The worker has ignored the events of data that arrived before.
        self.serve(now, SocketId::Tcp(id));
        Some(stream)
    }

    /// Moves connections to the accept queue, while it has space.
    fn hand_over(&mut self, now: Time, id: ListenerId) {
        while let Some(end) = self.listeners.get_mut(id)
            && end.has_space()
            && self.inner.stack.tcp_is_waited_for(id)
        {
            let Ok(slot) = self.reserve_socket() else { return self.starved.push(id) };
            let Ok(Some(accepted)) = self.inner.stack.tcp_accept(id) else { return };
            let stream = self.stream(now, accepted, slot);
            if let (Some(stream), Some(end)) = (stream, self.listeners.get_mut(id)) {
                let is_pushed = end.ready.push(stream);
                debug_assert!(is_pushed.is_ok(), "there was space");
                end.line.accepters.wake();
            }
        }
    }

    fn handle_listener_notification(&mut self, now: Time, id: ListenerId) {
        let Some(end) = self.listeners.get_mut(id) else { return };
        end.line.flags.clear_dirty();
        if end.line.is_dropped.load(Ordering::Acquire) {
            // Connections in the accept queue are dropped with the listener, and notify the worker.
            self.listeners.remove(id);
            self.inner.stack.tcp_unlisten(id);
            self.inner.transmit(now);
        }
    }
}

impl Drop for Worker<'_> {
    /// Wakes all threads and tasks that wait for the worker, also if it panicked.
    fn drop(&mut self) {
        self.doorbell.common().end(WORKER_ENDED.into());
        self.inbox.drop_requests();
        for end in self.udp.values() {
            end.line.readers.wake();
            end.line.writers.wake();
        }
        for end in self.tcp.values() {
            end.line.readers.wake();
            end.line.writers.wake();
        }
        self.listeners.values().for_each(|end| end.line.accepters.wake());
    }
}

impl Work for Worker<'_> {
    type Command = ();

    fn breathe(&mut self, now: Time) -> bool {
        let busy = self.turn(now);
        if self.doorbell.common().is_shut_down() || self.has_ended() {
            self.engine.stop();
        }
        busy
    }

    fn housekeeping(&mut self, _: Time) {}

    fn packets(&mut self) -> u64 {
        0
    }

    fn poll_timeout(&self) -> Option<Time> {
        let has_more = !self.draining.is_empty() || !self.starved.is_empty();
        has_more.then_some(self.look_at)
    }

    fn handle_command(&mut self, _: Time, (): ()) {}

    fn arm(&mut self) -> bool {
        self.inbox.woken.fall_asleep();
        self.inner.arm()
    }

    fn wait(&mut self, longest: Duration) {
        self.inner.sleep(self.clock.now(), &self.inbox.woken, longest);
    }

    fn end(&mut self, _: Time) -> bool {
        if !self.has_ended() {
            self.finish();
        }
        true
    }
}
