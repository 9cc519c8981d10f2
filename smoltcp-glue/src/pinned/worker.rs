//! The worker: a thread that serves an interface and all of its sockets.
//!
//! ```text
//!   turn: device --> stack --news--> rings, wakers
//!         doorbell --> rings --> stack --> device
//! ```
//!
//! It visits sockets that something happened to, and no others. It takes no lock that an
//! application holds for long, and allocates only where sockets are made.

use super::doorbell::{Doorbell, Inbox};
use super::listener::{ListenerLine, WorkerListener};
use super::request::Reply;
use super::serving::{Fate, ListenerEnd, TcpEnd, UdpEnd, scratch};
use super::tcp::{ConnectionState, TcpStream};
use super::udp::UdpSocket;
use super::waiters::Waiters;
use super::worker_group::SocketSlot;
use super::{Alive, Config, Hold, Idle, WorkerRow, doorbell::DirtyFlag};
use crate::host::Host;
use crate::interface::{Clock, SHUTDOWN_MAX, disconnect, settle};
use crate::stack::slab::SlabMap;
use crate::stack::{BindError, ListenerId, SocketId, TcpId};
use pollux_mem::spsc;
use pollux_node::interface::echo::EchoId;
use pollux_verbs::time::Time;
use std::collections::VecDeque;
use std::io;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::sync::atomic::Ordering;
use std::sync::{Arc, Weak};
use std::time::Duration;

/// Something that is done between two turns.
pub(super) type Command = Box<dyn FnOnce(&mut Worker<'_>, Time) + Send>;

/// Sockets that rang, and questions, that are seen to in one turn.
const NOTIFIED_MAX: usize = 256;
const COMMANDS_MAX: usize = 16;
/// Connections that are on their way to who accepts them; others wait in the stack.
const HANDED_MAX: usize = 16;
/// Turns without anything to do before the first nap.
const TURNS_AWAKE: u32 = 1000;
const NAP_MIN: Duration = Duration::from_micros(20);
const NAP_MAX: Duration = Duration::from_millis(1);
/// How often it is looked at what is not urgent.
const LOOK_EVERY: Duration = Duration::from_millis(10);

/// What a worker has.
pub(super) struct Worker<'a> {
    pub(super) inner: &'a mut Host,
    clock: Clock,
    /// All workers', in their order, and the own one.
    doorbells: Arc<[Arc<Doorbell>]>,
    doorbell: Arc<Doorbell>,
    inbox: Inbox,
    /// What holders of new sockets hold.
    alive: Weak<Alive>,
    config: Config,
    /// How long a peer may take to acknowledge what was sent before its connection was left.
    user_timeout: Duration,
    udp: SlabMap<UdpEnd>,
    tcp: SlabMap<TcpEnd>,
    listeners: SlabMap<ListenerEnd>,
    /// Sockets of UDP that have more to send.
    again: VecDeque<SocketId>,
    /// Connections that were left with something to send; some have sent it since.
    draining: Vec<TcpId>,
    /// Listeners whose connections wait because there are too many sockets.
    starved: Vec<ListenerId>,
    pings: Vec<(EchoId, Reply<Duration>)>,
    scratch: Vec<u8>,
    /// How often it was rung for since questions were answered.
    notified: usize,
    look_at: Time,
}

impl<'a> Worker<'a> {
    pub(super) fn new(
        (inner, clock): (&'a mut Host, Clock),
        (doorbells, inbox): (Arc<[Arc<Doorbell>]>, Inbox),
        alive: Weak<Alive>,
        (config, user_timeout): (Config, Duration),
    ) -> Self {
        let doorbell = doorbells[usize::from(inner.stack.shard().worker)].clone();
        inner.stack.enable_events();
        doorbell.begin();
        let mut worker = Self {
            inner,
            clock,
            doorbells,
            doorbell,
            inbox,
            alive,
            config,
            user_timeout,
            udp: SlabMap::new(),
            tcp: SlabMap::new(),
            listeners: SlabMap::new(),
            again: VecDeque::new(),
            draining: Vec::new(),
            starved: Vec::new(),
            pings: Vec::new(),
            scratch: scratch(),
            notified: 0,
            look_at: Time::START,
        };
        worker.turn();
        worker
    }

    /// Serves until nobody has the interface any more, or there is none.
    pub(super) fn run(mut self) {
        let mut idle = 0;
        while !self.doorbell.group().is_shut_down() {
            let busy = self.turn();
            if self.has_ended() {
                return;
            }
            idle = if busy { 0 } else { idle + 1 };
            match self.config.idle {
                Idle::Poll => std::hint::spin_loop(),
                Idle::Nap if idle == 0 => {}
                Idle::Nap if idle <= TURNS_AWAKE => std::thread::yield_now(),
                Idle::Nap => self.nap(NAP_MIN * (idle - TURNS_AWAKE).min(50)),
            }
        }
        self.finish();
    }

    /// Whether there is no interface any more, or another worker has ended.
    fn has_ended(&self) -> bool {
        if let Some(why) = self.inner.failed() {
            self.doorbell.group().end(format!("the interface has no device any more: {why}"));
        }
        self.doorbell.check().is_err()
    }

    /// Sleeps for so long, if there is nothing to do after all; who wants it wakes it.
    fn nap(&mut self, nap: Duration) {
        self.doorbell.fall_asleep();
        if !self.turn() && !self.doorbell.group().is_shut_down() {
            std::thread::park_timeout(nap.min(NAP_MAX));
        }
        self.doorbell.wake_up();
    }

    /// What sockets were given still goes out, but nobody is waited for long.
    fn finish(&mut self) {
        let mut now = self.clock.now();
        let (mut end, last) = (now + SHUTDOWN_MAX, now + self.inner.stack.flush_max());
        let mut busy = true;
        while (busy || !self.draining.is_empty() || !self.again.is_empty())
            && !self.has_ended()
            && now < end.min(last)
        {
            busy = self.handle_notifications(now);
            if self.turn() {
                end = now + SHUTDOWN_MAX;
            }
            now = self.clock.now();
        }
        // What is still in a ring is lost, and the peer is to know that.
        for id in std::mem::take(&mut self.draining) {
            self.inner.stack.tcp_abort(now, id);
        }
        let end = now + SHUTDOWN_MAX;
        settle(self.inner, self.clock);
        let group = self.doorbell.group().clone();
        group.finish();
        // What others have to hear may come to this one.
        while !group.is_finished() && !self.has_ended() && self.clock.now() < end + SHUTDOWN_MAX {
            if !self.turn() {
                std::thread::yield_now();
            }
        }
        // What others had no way for they have given to this one.
        settle(self.inner, self.clock);
        disconnect(self.inner, self.clock);
    }

    fn turn(&mut self) -> bool {
        let now = self.clock.now();
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
        if self.look_at <= now {
            self.look(now);
            self.look_at = now + LOOK_EVERY;
        }
        busy
    }

    /// Wakes the workers with new hand-offs, and has the first worker leave unused groups.
    fn notify_others(&mut self) {
        let mut to_wake = self.inner.take_to_wake();
        while to_wake > 0 {
            self.doorbells[to_wake.trailing_zeros() as usize].wake();
            to_wake &= to_wake - 1;
        }
        while let Some(group) = self.inner.take_left_group() {
            // The lead asks nobody, so this one does not wait for ever.
            self.doorbells[0]
                .submit(Box::new(move |primary, now| primary.inner.leave_group(now, group)));
        }
    }

    /// Sees to who rang and who asks; says whether there was anybody.
    fn handle_notifications(&mut self, now: Time) -> bool {
        let mut busy = false;
        for _ in 0..NOTIFIED_MAX {
            let Some(socket) = self.inbox.touched.pop() else {
                self.notified = usize::MAX;
                break;
            };
            self.notified = self.notified.saturating_add(1);
            match socket {
                SocketId::Udp(id) => self.udp.get_mut(id).into_iter().for_each(UdpEnd::notified),
                SocketId::Tcp(id) => self.tcp.get_mut(id).into_iter().for_each(TcpEnd::notified),
                SocketId::Listener(id) => self.handle_listener_notification(now, id),
            }
            self.serve(now, socket);
            busy = true;
        }
        // Who drops a socket and then asks for another at its address finds that free: questions
        // wait for all who may have rung before.
        if self.notified >= self.sockets() {
            self.notified = 0;
            for _ in 0..COMMANDS_MAX {
                let Some(command) = self.inbox.commands.pop() else { break };
                command(self, now);
                busy = true;
            }
        }
        if !self.pings.is_empty() {
            self.reply_to_pings();
        }
        busy
    }

    /// Sockets that had more to send than there was room for.
    fn serve_again(&mut self, now: Time) -> bool {
        let count = self.again.len();
        for _ in 0..count {
            if !self.inner.has_room() {
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

    /// What is not urgent.
    fn look(&mut self, now: Time) {
        self.doorbell.set_mtu(self.inner.stack.path_mtu(now, IpAddr::V4(Ipv4Addr::UNSPECIFIED)));
        for id in std::mem::take(&mut self.draining) {
            let Some(end) = self.tcp.get_mut(id) else { continue };
            if end.is_lost(now, self.user_timeout) {
                self.inner.stack.tcp_abort(now, id);
                self.tcp.remove(id);
            } else {
                self.draining.push(id);
            }
        }
        for id in std::mem::take(&mut self.starved) {
            self.hand_over(now, id);
        }
    }

    fn serve(&mut self, now: Time, socket: SocketId) {
        match socket {
            SocketId::Udp(id) => {
                let Some(end) = self.udp.get_mut(id) else { return };
                match end.serve(now, self.inner, &mut self.scratch) {
                    Fate::Again if !end.is_again => {
                        end.is_again = true;
                        self.again.push_back(socket);
                    }
                    Fate::Gone => drop(self.udp.remove(id)),
                    _ => {}
                }
            }
            SocketId::Tcp(id) => {
                let Some(end) = self.tcp.get_mut(id) else { return };
                match end.serve(now, self.inner) {
                    Fate::Drains => self.draining.push(id),
                    Fate::Gone => drop(self.tcp.remove(id)),
                    _ => {}
                }
            }
            SocketId::Listener(id) => self.hand_over(now, id),
        }
    }

    fn reply_to_pings(&mut self) {
        for (id, reply) in std::mem::take(&mut self.pings) {
            match self.inner.ping_outcome(id) {
                Some(outcome) => reply.send(outcome),
                None => self.pings.push((id, reply)),
            }
        }
    }
}

/// Sockets that are made, and listeners.
impl Worker<'_> {
    pub(super) fn ping(
        &mut self,
        now: Time,
        (to, bytes, timeout): (IpAddr, usize, Duration),
        reply: Reply<Duration>,
    ) {
        match self.inner.begin_ping(now, to, bytes, timeout) {
            Ok(id) => self.pings.push((id, reply)),
            Err(why) => reply.send(Err(why)),
        }
    }

    pub(super) fn udp_bind(&mut self, local: SocketAddr) -> io::Result<UdpSocket> {
        let (hold, slot) = self.room()?;
        let id = self.inner.stack.udp_bind(local)?;
        let local = self.inner.stack.udp_local(id).unwrap_or(local);
        let Some((end, ends)) = UdpEnd::new((id, slot), self.config.udp_ring_bytes) else {
            self.inner.stack.udp_close(id);
            return Err(BindError::Full.into());
        };
        let socket = UdpSocket::new(hold, end.line.clone(), ends, (id, local));
        self.udp.insert(id, end);
        Ok(socket)
    }

    /// Hears connections for a listener.
    pub(super) fn tcp_listen(
        &mut self,
        local: SocketAddr,
        backlog: usize,
        accepters: Arc<Waiters>,
    ) -> io::Result<(WorkerListener, spsc::Consumer<TcpStream>)> {
        let (hold, slot) = self.room()?;
        // Those on their way to who accepts them are part of those that may wait; a power of two.
        let handed = 1 << (backlog / 2).clamp(1, HANDED_MAX).ilog2();
        let (ready, arrived) = spsc::ring(handed).ok_or(BindError::Full)?;
        let backlog = backlog.saturating_sub(handed).max(1);
        let id = self.inner.stack.tcp_listen(local, backlog)?;
        let line = ListenerLine::new(DirtyFlag::new(SocketId::Listener(id)), accepters);
        let line = Arc::new(line);
        self.listeners.insert(id, ListenerEnd { _slot: slot, line: line.clone(), ready });
        Ok((WorkerListener::new(hold, line), arrived))
    }

    pub(super) fn tcp_begin(&mut self, now: Time, to: SocketAddr) -> io::Result<TcpStream> {
        let room = self.room()?;
        let from = SocketAddr::new(self.inner.source_for(to.ip())?, 0);
        let id = self.inner.stack.tcp_connect(now, from, to)?;
        let stream = self.stream(now, id, room).ok_or(BindError::Full)?;
        stream.set_linger(true);
        Ok(stream)
    }

    /// What it has, to be shown.
    pub(super) fn row(&self) -> WorkerRow {
        let listeners = self.listeners.len();
        let sockets = self.udp.len() + self.tcp.len();
        WorkerRow { sockets, listeners, handed: self.inner.handed() }
    }

    const fn sockets(&self) -> usize {
        self.udp.len() + self.tcp.len() + self.listeners.len()
    }

    /// Whether there may be another socket; and what its holder is to hold.
    fn room(&self) -> io::Result<(Hold, SocketSlot)> {
        let room = self.alive.upgrade().zip(SocketSlot::take(self.doorbell.group()));
        let (alive, slot) = room.ok_or(BindError::Full)?;
        Ok((Hold { doorbell: self.doorbell.clone(), alive }, slot))
    }

    /// Both ends of a connection of the stack's.
    fn stream(
        &mut self,
        now: Time,
        id: TcpId,
        (hold, slot): (Hold, SocketSlot),
    ) -> Option<TcpStream> {
        let ends = TcpEnd::new((id, slot), ConnectionState::Opening, self.config.tcp_ring_bytes);
        let addresses = self.inner.stack.tcp_addresses(id);
        let Some(((end, rings), addresses)) = ends.zip(addresses) else {
            self.inner.stack.tcp_abort(now, id);
            return None;
        };
        let stream = TcpStream::new(hold, end.line.clone(), rings, addresses);
        self.tcp.insert(id, end);
        // What came before it had somebody was no news.
        self.serve(now, SocketId::Tcp(id));
        Some(stream)
    }

    /// Hands connections to who accepts them, as long as there is room.
    fn hand_over(&mut self, now: Time, id: ListenerId) {
        while let Some(end) = self.listeners.get_mut(id)
            && end.has_room()
            && self.inner.stack.tcp_is_waited_for(id)
        {
            let Ok(room) = self.room() else { return self.starved.push(id) };
            let Ok(Some(accepted)) = self.inner.stack.tcp_accept(id) else { return };
            let stream = self.stream(now, accepted, room);
            if let (Some(stream), Some(end)) = (stream, self.listeners.get_mut(id)) {
                let is_pushed = end.ready.push(stream);
                debug_assert!(is_pushed.is_ok(), "there was room");
                end.line.accepters.wake();
            }
        }
    }

    /// An application has rung for a listener.
    fn handle_listener_notification(&mut self, now: Time, id: ListenerId) {
        let Some(end) = self.listeners.get_mut(id) else { return };
        end.line.dirty.clear();
        if end.line.is_dropped.load(Ordering::Acquire) {
            // Connections in its ring ring for themselves when they go with it.
            self.listeners.remove(id);
            self.inner.stack.tcp_unlisten(id);
            self.inner.transmit(now);
        }
    }
}

impl Drop for Worker<'_> {
    /// Nobody waits for a worker that is no more, whatever ended it.
    fn drop(&mut self) {
        self.doorbell.group().end("the interface's worker has ended".into());
        while let Some(command) = self.inbox.commands.pop() {
            drop(command);
        }
        self.pings.clear();
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
