//! The server: the ports of its clients, and the traffic between clients and the net.
//!
//! The server moves frames between its clients and a [`Net`] that also has other users. It polls
//! rings while there is traffic, and sockets less often. Its thread sleeps without traffic
//! ([`Server::sleep`]), and clients wake it by their sockets. The decisions are in
//! [`super::grants`] and in the net. `naming` finds the port of a name, `clients` handles the
//! sockets, `up` the entries of clients' rings, and `agents` management agents.

mod agents;
mod clients;
mod naming;
mod up;

use super::control_message::ControlMessage;
use super::direct::Granted;
use super::grants::{Grants, RingDecision};
use super::port_page::ServerPage;
use super::socket::{Socket, socket_path};
use super::{tag, wake_socket};
use crate::listen::listen_at;
use crate::net::Net;
use crate::net::shared_port::PortContext;
use crate::node::NodeDrop;
use crate::time::Time;
use crate::topology::End;
use agents::AgentClients;
use pollux_hca::Frame;
use pollux_hca::head::{is_management, route_bits, route_of};
use rustix::event::{PollFd, PollFlags};
use rustix::net::SocketType;
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::time::Duration;
use up::Up;

/// Clients with adapters at a time, and clients with agents.
pub const CLIENTS_MAX: usize = 512;
/// Connections that have not sent a message yet. Beyond this limit, the oldest one is closed.
pub const UNATTACHED_MAX: usize = 256;
/// Notifications that may wait for a client. Beyond this limit, the client is detached. A client
/// that is only slow or stopped does not reach it, because `Server::grant_ring` grants it no more
/// rings.
pub const NOTIFICATIONS_MAX: usize = 1024;
/// Entries taken from a client in a turn, so that a busy client does not block others.
const BATCH: usize = 64;
/// Turns between reads of the sockets.
const TURNS_PER_SOCKET_READ: u32 = 64;
/// The interval at which the counters of rings are read.
const COUNTERS_EVERY: Duration = Duration::from_secs(1);
/// Idle turns before the server sleeps: waking it costs a client more than these turns cost.
const IDLE_TURNS: u32 = 64;
/// The interval of retries if a client's ring is full. It doubles from the minimum to the maximum.
const RETRY_MIN: Duration = Duration::from_micros(50);
const RETRY_MAX: Duration = Duration::from_millis(50);

/// The processes at the ports of a net. Every call must have the same net.
pub struct Server {
    path: PathBuf,
    listener: OwnedFd,
    clients: BTreeMap<u32, Client>,
    agents: AgentClients,
    /// Connections that have not sent a message yet, the oldest first.
    unattached: VecDeque<Socket>,
    ports: BTreeMap<End, AttachedPort>,
    /// Ports whose cables were unplugged with their clients.
    unplugged: BTreeSet<End>,
    grants: Grants,
    rings: BTreeMap<u64, Granted>,
    client_last: u32,
    /// The epoch of the net that was last published to the clients.
    epoch: u64,
    counters_read: Time,
    turns: u32,
    /// Turns since there was anything to do.
    idle_turns: u32,
    /// The retry interval for a client whose ring is full.
    retry: Duration,
}

struct AttachedPort {
    secret: u64,
    /// The clients by context.
    contexts: BTreeMap<u8, u32>,
    /// The number of connections of agents.
    agents: u32,
}

impl AttachedPort {
    fn new(secret: u64) -> Self {
        Self { secret, contexts: BTreeMap::new(), agents: 0 }
    }
}

struct Client {
    socket: Socket,
    context: PortContext,
    page: ServerPage,
    /// A frame that the ring down had no space for.
    held: Option<Frame>,
    /// The number of its frames that were taken out of the net, including `held`.
    taken: u64,
    outbox: VecDeque<Notification>,
    /// Whether its socket was full at least once since the counters of rings were last read.
    is_full: bool,
    is_lost: bool,
}

struct Notification {
    kind: u8,
    ring: u64,
    /// The number of frames that arrived for the client before this notification. They precede it.
    behind: u64,
}

impl Server {
    /// Listens for clients of the fabric with this path. The path of the socket has the suffix
    /// `.ports` in addition. Fails if another process listens there.
    pub fn bind(path: &Path) -> io::Result<Self> {
        let path = socket_path(path);
        Ok(Self {
            listener: listen_at(&path, SocketType::SEQPACKET)?,
            path,
            clients: BTreeMap::new(),
            agents: AgentClients::default(),
            unattached: VecDeque::new(),
            ports: BTreeMap::new(),
            unplugged: BTreeSet::new(),
            grants: Grants::default(),
            rings: BTreeMap::new(),
            client_last: 0,
            epoch: 0,
            counters_read: Time::START,
            turns: 0,
            idle_turns: 0,
            retry: RETRY_MIN,
        })
    }

    /// The process at a port, if the system knows it.
    pub fn process_at(&self, end: End) -> Option<u32> {
        let port = self.ports.get(&end)?;
        let first = port.contexts.values().next().and_then(|first| self.clients.get(first));
        first.map_or_else(|| self.agents.process_at(end), |client| client.socket.process())
    }

    /// The number of clients, and the number of direct rings between them.
    pub fn statistics(&self) -> (usize, usize) {
        (self.clients.len(), self.rings.len())
    }

    /// Moves frames of clients into the net, and handles new and ended clients.
    pub fn receive(&mut self, now: Time, net: &mut Net) {
        if self.turns == 0 {
            self.read_sockets(now, net);
        }
        self.turns = (self.turns + 1) % TURNS_PER_SOCKET_READ;
        self.idle_turns = (self.idle_turns + 1).min(IDLE_TURNS);
        let clients: Vec<u32> = self.clients.keys().copied().collect();
        for client in clients {
            if self.receive_from(now, net, client, BATCH) {
                self.idle_turns = 0;
            }
        }
    }

    /// Writes the state of ports for clients, and sends them their frames.
    pub fn send(&mut self, now: Time, net: &mut Net) {
        self.publish_changes(net);
        self.agents.flush();
        let clients: Vec<u32> = self.clients.keys().copied().collect();
        for client in clients {
            if self.send_to(net, client) {
                self.idle_turns = 0;
            }
        }
        if now >= self.counters_read + COUNTERS_EVERY {
            self.counters_read = now;
            self.read_counters(net);
            self.grants.overdue().into_iter().for_each(|ring| self.end_ring(net, ring));
            self.clients.values_mut().for_each(|client| client.is_full = false);
        }
    }

    /// Whether there was work in recent turns, so that the server must not sleep yet.
    pub fn is_awake(&self) -> bool {
        self.idle_turns < IDLE_TURNS
    }

    // ---------------------------------------------------------------- sleeping

    pub fn poll_fds(&self) -> impl Iterator<Item = PollFd<'_>> {
        let sockets = self.clients.values().map(|client| &client.socket).chain(&self.unattached);
        let fds = sockets.map(AsFd::as_fd).chain([self.listener.as_fd()]);
        let fds = fds.map(|fd| PollFd::from_borrowed_fd(fd, PollFlags::IN));
        fds.chain(self.agents.poll_fds())
    }

    /// Prepares a sleep: clients that send wake the server from now on, until [`Server::wake`].
    /// Returns how long the server may sleep, `longest` at most.
    pub fn sleep(&mut self, longest: Duration) -> Duration {
        if self.is_awake() {
            return Duration::ZERO;
        }
        self.clients.values().for_each(|client| client.page.set_sleeps(true));
        if self.clients.values().any(|client| client.page.up.has_entry()) {
            return Duration::ZERO;
        }
        let mut longest = if self.rings.is_empty() { longest } else { longest.min(COUNTERS_EVERY) };
        if self.clients.values().any(Client::is_behind) {
            longest = longest.min(self.retry);
            self.retry = (self.retry * 2).min(RETRY_MAX);
        }
        longest
    }

    /// Ends a sleep; the next [`Server::receive`] reads the sockets.
    pub fn wake(&mut self) {
        self.clients.values().for_each(|client| client.page.set_sleeps(false));
        self.turns = 0;
    }

    // ---------------------------------------------------------------- changes

    /// Writes changed port states into the pages of clients, and ends rings that have another path
    /// now.
    pub fn publish_changes(&mut self, net: &mut Net) {
        if self.epoch == net.epoch() {
            return;
        }
        self.epoch = net.epoch();
        let clients = &self.clients;
        let changed = self.grants.numbers_where(|grant| {
            let from = clients.get(&grant.from).map(|client| client.context.end);
            let route = route_of(grant.route);
            let from = from.filter(|from| net.has_lid(*from, route.slid));
            let path = from.and_then(|from| net.bypass_path(from, route));
            path.as_ref() != Some(&grant.path)
        });
        changed.into_iter().for_each(|ring| self.end_ring(net, ring));
        let wants_packets = net.wants_packets();
        for client in self.clients.values_mut() {
            client.page.set_port(&net.port(client.context.end));
            client.page.set_wants_packets(wants_packets);
            client.wake();
        }
    }

    /// Adds the traffic of direct rings since the last call to the counters of the net.
    pub fn read_counters(&mut self, net: &mut Net) {
        for (number, ring) in &mut self.rings {
            read_counters_of(net, &mut self.grants, *number, ring);
        }
    }

    // ---------------------------------------------------------------- traffic

    /// Takes entries of a client; returns whether there were any.
    fn receive_from(&mut self, now: Time, net: &mut Net, number: u32, most: usize) -> bool {
        let mut was_busy = false;
        for _ in 0..most {
            let Some(client) = self.clients.get_mut(&number) else { break };
            let context = client.context;
            let mut up = None;
            if !client.page.up.receive(|entry| up = Some(Up::of(entry))) {
                break;
            }
            was_busy = true;
            match up {
                Some(Up::Frame(frame)) => {
                    if let Err(reason) = net.check_process(context.end, &frame) {
                        net.count_drop(context.end, reason);
                        continue;
                    }
                    let route = match &frame {
                        Frame::Message(message) => {
                            let [first, second, ..] = message.first_words();
                            (!is_management(first)).then(|| route_bits(first, second))
                        }
                        Frame::Packet(_) => None,
                    };
                    net.send(now, context, frame);
                    if let Some(route) = route {
                        self.grant_ring(net, number, context.end, route);
                    }
                }
                Some(Up::Switch(ring)) => {
                    net.advance(now);
                    if let Some(to) = self.grants.open(number, ring) {
                        self.notify(net, to, tag::OPEN, ring);
                    }
                }
                Some(Up::Closed(ring)) => {
                    if self.grants.ring(ring).is_some_and(|grant| grant.from == number) {
                        self.end_ring(net, ring);
                    }
                }
                Some(Up::Violation(violation)) => net.key_violation(context.end, &violation),
                Some(Up::Invalid) | None => net.count_drop(context.end, NodeDrop::Unclaimed),
            }
        }
        was_busy
    }

    /// Sends a client its frames, as far as its ring has space; returns whether there were any.
    fn send_to(&mut self, net: &mut Net, number: u32) -> bool {
        let Some(client) = self.clients.get_mut(&number) else { return false };
        let mut was_busy = false;
        for _ in 0..BATCH {
            let Some(next) = client.next(net) else { break };
            let down = &mut client.page.down;
            let sent = match &next {
                Down::Notification => {
                    let Notification { kind, ring, .. } = client.outbox[0];
                    down.send_bytes(kind, &[ring], &[])
                }
                Down::Frame(Frame::Packet(bytes)) => down.send_bytes(tag::PACKET, &[], bytes),
                Down::Frame(Frame::Message(message)) => {
                    down.send_bytes(tag::MESSAGE, message.head(), message.payload())
                }
            };
            match next {
                Down::Frame(frame) if !sent => client.held = Some(frame),
                Down::Notification if sent => drop(client.outbox.pop_front()),
                _ => {}
            }
            if !sent {
                break;
            }
            (was_busy, self.retry) = (true, RETRY_MIN);
        }
        if was_busy {
            client.wake();
        }
        was_busy
    }

    /// Queues a control message for a client, behind its arrived frames.
    fn notify(&mut self, net: &mut Net, number: u32, kind: u8, ring: u64) {
        let Some(client) = self.clients.get_mut(&number).filter(|client| !client.is_lost) else {
            return;
        };
        // One read of the socket finds all messages.
        if kind == tag::NOTIFY && client.outbox.iter().any(|next| next.kind == tag::NOTIFY) {
            return;
        }
        if client.outbox.len() == NOTIFICATIONS_MAX {
            client.is_lost = true;
            return net.count_drop(client.context.end, NodeDrop::Overrun);
        }
        client.outbox.push_back(Notification { kind, ring, behind: net.arrivals(client.context) });
    }

    /// Sends a control message to a client by its socket. `false` if the socket is full. The caller
    /// may then end a ring, but must not detach the client, which may just be stopped while another
    /// client causes many messages.
    fn send_control(
        &mut self,
        net: &mut Net,
        number: u32,
        message: &ControlMessage,
        descriptor: Option<&OwnedFd>,
    ) -> bool {
        let Some(client) = self.clients.get_mut(&number) else { return false };
        if !client.socket.send(message, descriptor.map(AsFd::as_fd)) {
            client.is_full = true;
            return false;
        }
        self.notify(net, number, tag::NOTIFY, 0);
        true
    }

    // ---------------------------------------------------------------- rings

    /// Grants a ring for a route that has traffic, if that is possible.
    fn grant_ring(&mut self, net: &mut Net, from: u32, end: End, route: u64) {
        if self.grants.has(from, route) {
            return;
        }
        let Some(path) = net.bypass_path(end, route_of(route)) else { return };
        // Traffic within the port needs no ring.
        let Some(to) = path.end().filter(|to| *to != end) else { return };
        let Some(port) = self.ports.get(&to) else { return };
        let Some(&to) = port.contexts.get(&route_of(route).context) else { return };
        // A client that does not read its notifications and control messages gets no more rings.
        let reads = |client: &Client| client.outbox.len() <= BATCH && !client.is_full;
        if ![from, to].iter().all(|end| self.clients.get(end).is_some_and(reads)) {
            return;
        }
        match self.grants.decide(from, to, route) {
            RingDecision::Refuse => {}
            RingDecision::TakeBack(ring) => {
                self.grants.take_back(ring);
                if let Some(granted) = self.rings.get(&ring) {
                    granted.close();
                }
                // The sender confirms with CLOSED; it may be asleep.
                let sender = self.grants.ring(ring).and_then(|grant| self.clients.get(&grant.from));
                sender.into_iter().for_each(Client::wake);
            }
            RingDecision::Grant => {
                // Without memory or descriptors, the traffic stays with the server.
                let Some((granted, fd)) = self.new_ring(from) else { return };
                let Ok((near, far)) = wake_socket::pair() else { return };
                let (slot, ring) = (granted.slot as u16, self.grants.grant(from, to, route, path));
                granted.open(ring);
                self.rings.insert(ring, granted);
                let (wake_socket, receives) =
                    (ControlMessage::WakeSocket { ring }, ControlMessage::Receives { ring, route });
                let sends = ControlMessage::Sends { ring, route, slot };
                let are_sent = self.send_control(net, to, &wake_socket, Some(&near))
                    && self.send_control(net, to, &receives, Some(&fd))
                    && self.send_control(net, from, &wake_socket, Some(&far))
                    && self.send_control(net, from, &sends, Some(&fd));
                if !are_sent {
                    self.end_ring(net, ring);
                }
            }
        }
    }

    /// Memory and a slot for a new ring of a client.
    fn new_ring(&self, from: u32) -> Option<(Granted, OwnedFd)> {
        let is_of = |number: &u64| self.grants.ring(*number).is_some_and(|ring| ring.from == from);
        let taken: BTreeSet<usize> =
            self.rings.iter().filter(|(ring, _)| is_of(ring)).map(|(_, ring)| ring.slot).collect();
        let mut slots = self.clients.get(&from)?.page.rings.iter().enumerate();
        let (slot, state) = slots.find(|(slot, _)| !taken.contains(slot))?;
        Granted::create(slot, state.clone()).ok()
    }

    /// Ends a ring. The receiver takes the entries that are in it, and no later ones.
    fn end_ring(&mut self, net: &mut Net, number: u64) {
        if let Some(mut ring) = self.rings.remove(&number) {
            ring.close();
            read_counters_of(net, &mut self.grants, number, &mut ring);
        }
        if let Some(grant) = self.grants.end(number) {
            self.clients.get(&grant.from).into_iter().for_each(Client::wake);
            self.notify(net, grant.to, tag::CLOSE, number);
        }
    }
}

enum Down {
    Frame(Frame),
    /// The first notification of the client's outbox.
    Notification,
}

impl Client {
    /// The next item for the client, in order of arrival; takes a frame out of the net.
    fn next(&mut self, net: &mut Net) -> Option<Down> {
        if let Some(frame) = self.held.take() {
            return Some(Down::Frame(frame));
        }
        if self.outbox.front().is_some_and(|next| next.behind <= self.taken) {
            return Some(Down::Notification);
        }
        let frame = net.take(self.context).map(|(_, frame)| frame)?;
        self.taken += 1;
        Some(Down::Frame(frame))
    }

    /// Wakes the client, if it sleeps: the ring down has an entry, or a direct ring was closed.
    fn wake(&self) {
        if self.page.take_wake_request() {
            // If the socket is full, its other messages wake the client.
            let _ = self.socket.send(&ControlMessage::Wake, None);
        }
    }

    /// Whether an entry waits for space in the ring down.
    fn is_behind(&self) -> bool {
        self.held.is_some() || !self.outbox.is_empty()
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        // No other process can have the path while the listener exists.
        let _ = rustix::fs::unlink(&self.path);
    }
}

fn read_counters_of(net: &mut Net, grants: &mut Grants, number: u64, ring: &mut Granted) {
    let [packets, words] = ring.traffic();
    if let Some(grant) = grants.ring(number).filter(|_| packets > 0) {
        net.count(&grant.path, packets, words);
    }
    grants.record_traffic(number, packets);
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::link::Wire;
    use crate::link::fault::SeededRng;
    use crate::process::control_message::Attach;
    use crate::process::port_page::{ClientPage, SLOTS};
    use crate::process::socket::ReceivedMessage;
    use crate::subnet::Datagram;
    use crate::subnet::Subnet;
    use crate::topology::Topology;
    use pollux_hca::head::LEASED;
    use pollux_mem::Segment;
    use pollux_wire::address::{Lid, Qpn};
    use pollux_wire::keys::{PKey, QKey};
    use pollux_wire::mad::smp::{DirectedSmp, LidSmp, LinearForwardingTable, PortState};
    use pollux_wire::mad::{Attribute, MadHeader, Method, MgmtClass};
    use pollux_wire::packet::{Bth, Deth, Extended, Headers, Lrh, Opcode};
    use pollux_wire::psn::Psn;

    /// Two hosts at a switch; the switch forwards to LID 1 by port 1, and to LID 2 by port 2.
    fn server(name: &str) -> (Server, Net) {
        of("single:2", name)
    }

    /// A server with this topology; the switch forwards to each LID by the port of that number.
    fn of(topology: &str, name: &str) -> (Server, Net) {
        let mut subnet = Subnet::new(Topology::generate(topology, 1).unwrap());
        for node in 0..subnet.nodes().len() as u32 {
            let ports = subnet.node_mut(node).ports.iter_mut();
            ports.for_each(|port| port.info.port_state = PortState::ACTIVE);
        }
        let tables = subnet.node_mut(0).forwarding.as_mut().unwrap();
        let ports = LinearForwardingTable { ports: std::array::from_fn(|lid| lid as u8) };
        assert!(tables.set_linear_block(0, &ports));
        tables.info.linear_fdb_top = Lid(63);
        let wire = Wire { latency: Duration::ZERO, ..Wire::default() };
        let path = std::env::temp_dir().join(format!("pollux-{name}-{}", std::process::id()));
        (Server::bind(&path).unwrap(), Net::new(subnet, 1, wire))
    }

    fn attached(server: &mut Server, net: &mut Net, host: u32) -> (Socket, ClientPage) {
        in_context(server, net, host, 0, 1).expect("it is attached")
    }

    fn in_context(
        server: &mut Server,
        net: &mut Net,
        host: u32,
        context: u8,
        secret: u64,
    ) -> Result<(Socket, ClientPage), String> {
        Request { host, context, secret }.send(server, net, Server::read_sockets)
    }

    /// The request of a client for a context at a port.
    struct Request {
        host: u32,
        context: u8,
        secret: u64,
    }

    impl Request {
        /// Sends the request; returns the answer after the server has read its sockets by `read`.
        fn send(
            &self,
            server: &mut Server,
            net: &mut Net,
            read: fn(&mut Server, Time, &mut Net),
        ) -> Result<(Socket, ClientPage), String> {
            let socket = Socket::connect(&server.path.with_extension("")).unwrap();
            let node = format!("host{}", self.host);
            let Self { context, secret, .. } = *self;
            let ask = Attach { node, port: Some(1), context, secret };
            assert!(socket.send(&ControlMessage::Attach(ask), None));
            read(server, Time::START, net);
            match socket.receive() {
                ReceivedMessage::Message(ControlMessage::Attached { .. }, Some(fd)) => {
                    Ok((socket, ClientPage::open(fd).unwrap()))
                }
                ReceivedMessage::Message(ControlMessage::Refused { reason }, None) => Err(reason),
                other => panic!("{other:?}"),
            }
        }
    }

    /// A client without the secret gets no context, and no client gets a taken one.
    #[test]
    fn a_shared_port_needs_the_secret() {
        let (mut server, mut net) = server("contexts");
        let mut ask = |context, secret| in_context(&mut server, &mut net, 1, context, secret);
        let refused = |answer: Result<_, String>| answer.err().expect("it is refused");
        let name = std::fs::read_to_string("/proc/self/comm").unwrap();
        let who = format!("process {} ({})", std::process::id(), name.trim_end());
        let taken = format!("{who} is at this port; stop it, or open another port");
        let first = ask(0, 7).unwrap();
        let third = ask(2, 7).unwrap();
        for (context, secret) in [(0, 7), (0, 8), (1, 8), (1, 0), (2, 7)] {
            assert_eq!(refused(ask(context, secret)), taken);
        }
        let beyond = refused(ask(pollux_hca::PORT_CONTEXTS_MAX, 7));
        assert!(beyond.contains("context 32 of this port does not exist"), "{beyond}");
        drop(first);
        assert_eq!(refused(ask(0, 8)), taken);
        let first = ask(0, 7).unwrap();
        drop((first, third));
        let _others = ask(1, 8).unwrap();
        assert_eq!(server.statistics(), (1, 0));
        assert_eq!(server.process_at(End { node: 1, port: 1 }), Some(std::process::id()));
    }

    /// The cable is unplugged with the last client, and a context gets only its own traffic.
    #[test]
    fn a_client_that_dies_leaves_the_port_to_the_others() {
        let (mut server, mut net) = server("dies");
        let end = End { node: 1, port: 1 };
        let first = attached(&mut server, &mut net, 1);
        let (_socket, mut page) = in_context(&mut server, &mut net, 1, 1, 1).unwrap();
        let (_peer, mut peers) = attached(&mut server, &mut net, 2);
        let ports = |net: &mut Net| {
            for node in 0..3 {
                let ports = net.subnet_mut().node_mut(node).ports.iter_mut();
                ports.for_each(|port| port.info.port_state = PortState::ACTIVE);
            }
        };
        ports(&mut net);
        drop(first);
        server.read_sockets(Time::START, &mut net);
        assert!(net.subnet().nodes()[1].ports[1].is_linked());
        assert_eq!(net.free_context(end).map(|free| free.vhca_index), Some(2));
        // To its queue pairs, to those of a context without an adapter, and to management.
        for dest_qp in [1 << 19 | 0x41, 0x41, 2 << 19 | 0x41, 1] {
            let words = [0xffff << 16 | dest_qp << 32, 1 << 32, 1];
            assert!(peers.up.send_bytes(tag::MESSAGE, &words, b"four"));
        }
        server.receive(Time::START, &mut net);
        net.advance(Time::START);
        while let Some(delivery) = net.poll_delivery() {
            net.deliver_to_adapter(delivery);
        }
        server.send(Time::START, &mut net);
        let mut came = Vec::new();
        while page.down.receive(|entry| came.push((entry.tag(), entry.head()[0] >> 32))) {}
        came.retain(|(what, _)| *what == tag::MESSAGE);
        assert_eq!(came, [(tag::MESSAGE, 1 << 19 | 0x41)]);
        assert!(net.subnet().nodes()[1].drops.total() >= 2, "nobody is there for the others");
        drop((_socket, page));
        server.read_sockets(Time::START, &mut net);
        assert!(!net.subnet().nodes()[1].ports[1].is_linked());
        assert_eq!(net.free_context(end).map(|free| free.vhca_index), Some(1));
    }

    #[test]
    fn keys_that_did_not_match_are_counted_if_that_makes_sense() {
        let (mut server, mut net) = server("violations");
        let (_socket, mut page) = attached(&mut server, &mut net, 1);
        let details = [0; 54];
        for (trap, bytes) in [(257, 54), (258, 54), (259, 54), (257, 53), (1 << 32 | 257, 54)] {
            assert!(page.up.send_bytes(tag::VIOLATION, &[trap], &details[..bytes]));
        }
        server.receive(Time::START, &mut net);
        let node = &net.subnet().nodes()[1];
        let info = &node.ports[1].info;
        assert_eq!((info.p_key_violations, info.q_key_violations), (1, 1));
        assert_eq!(node.drops.of(NodeDrop::Unclaimed), 3);
    }

    /// Invalid data in rings and at sockets affects only the client that wrote it.
    #[test]
    fn invalid_entries_of_a_client_are_counted_or_dropped() {
        let ((mut server, mut net), mut rng) = (server("rubbish"), SeededRng::new(1));
        for _ in 0..200 {
            let (socket, mut page) = attached(&mut server, &mut net, 1);
            let (_victim, _page) = attached(&mut server, &mut net, 2);
            let other = in_context(&mut server, &mut net, 1, 1 + rng.below(7) as u8, 1);
            for _ in 0..100 {
                let head: Vec<u64> = (0..rng.below(15)).map(|_| rng.next_u64()).collect();
                let bytes: Vec<u8> = (0..rng.below(600)).map(|_| rng.next_u64() as u8).collect();
                let _ = page.up.send_bytes(rng.below(8) as u8, &head, &bytes);
                // To the other host, by its LID.
                let words = [rng.next_u64(), 2 << 32 | rng.below(1 << 24), rng.next_u64()];
                let _ = page.up.send_bytes(tag::MESSAGE, &words, &bytes);
                server.receive(Time::START, &mut net);
                net.advance(Time::START);
                server.send(Time::START, &mut net);
            }
            assert!(server.statistics().1 <= super::super::grants::DIRECT_RINGS_MAX);
            let segment = rng.next_u64() as u32;
            let message = match rng.below(6) {
                0 => ControlMessage::Expose { ring: rng.below(8), segment },
                1 => ControlMessage::Withdraw { ring: rng.below(8), segment },
                2 => ControlMessage::Mapped { ring: rng.below(8), segment, is_mapped: true },
                3 => ControlMessage::Wake,
                4 => ControlMessage::Attach(Attach {
                    node: "host2".into(),
                    port: Some(1),
                    context: segment as u8,
                    secret: rng.next_u64(),
                }),
                _ => ControlMessage::Attached { client: segment },
            };
            let _ = socket.send(&message, None);
            server.read_sockets(Time::START, &mut net);
            drop((socket, _victim, other));
            server.read_sockets(Time::START, &mut net);
            assert_eq!(server.statistics(), (0, 0));
            for node in 0..3 {
                let ports = net.subnet_mut().node_mut(node).ports.iter_mut();
                ports.for_each(|port| port.info.port_state = PortState::ACTIVE);
            }
        }
    }

    /// Clients of all hosts connect before the server reads its sockets.
    #[test]
    fn all_clients_that_attach_at_once_are_served() {
        const HOSTS: u32 = 240;
        let (mut server, mut net) = of("single:240", "at-once");
        let sockets = (1..=HOSTS).map(|host| {
            let socket = Socket::connect(&server.path.with_extension(""));
            let socket = socket.unwrap_or_else(|error| panic!("host{host}: {error}"));
            let ask = Attach { node: format!("host{host}"), port: Some(1), context: 0, secret: 1 };
            assert!(socket.send(&ControlMessage::Attach(ask), None));
            socket
        });
        let sockets: Vec<Socket> = sockets.collect();
        server.read_sockets(Time::START, &mut net);
        for (host, socket) in (1..).zip(&sockets) {
            let said = socket.receive();
            assert!(
                matches!(said, ReceivedMessage::Message(ControlMessage::Attached { .. }, Some(_))),
                "{host}: {said:?}"
            );
        }
        assert_eq!(server.statistics(), (HOSTS as usize, 0));
    }

    /// Only connections without a message are closed for new ones.
    #[test]
    fn the_oldest_silent_connections_are_closed() {
        let (mut server, mut net) = server("silent");
        let connect = |server: &Server| Socket::connect(&server.path.with_extension("")).unwrap();
        let first = connect(&server);
        server.read_sockets(Time::START, &mut net);
        let silent: Vec<_> = (0..UNATTACHED_MAX).map(|_| connect(&server)).collect();
        let ask = Attach { node: "host1".into(), port: Some(1), context: 0, secret: 1 };
        assert!(first.send(&ControlMessage::Attach(ask), None));
        server.read_sockets(Time::START, &mut net);
        assert!(matches!(
            first.receive(),
            ReceivedMessage::Message(ControlMessage::Attached { .. }, Some(_))
        ));
        assert_eq!((server.statistics().0, server.unattached.len()), (1, UNATTACHED_MAX));
        let last = connect(&server);
        server.read_sockets(Time::START, &mut net);
        assert_eq!(server.unattached.len(), UNATTACHED_MAX);
        assert!(matches!(silent[0].receive(), ReceivedMessage::End), "the oldest");
        assert!(matches!(silent[1].receive(), ReceivedMessage::Nothing));
        assert!(matches!(last.receive(), ReceivedMessage::Nothing));
    }

    /// Notifications and frames stay in order.
    #[test]
    fn a_control_message_follows_frames_that_came_before_it() {
        let (mut server, mut net) = server("order");
        let (_socket, mut page) = attached(&mut server, &mut net, 1);
        let (_peer, mut peer) = attached(&mut server, &mut net, 2);
        let mut send = |server: &mut Server, net: &mut Net, psn: u64| {
            let words = [0xffff << 16 | 0x41 << 32, 1 << 32 | psn, 1];
            assert!(peer.up.send_bytes(tag::MESSAGE, &words, b"four"));
            server.receive(Time::START, net);
            net.advance(Time::START);
        };
        // More than the ring has space for, so that some wait and one is held.
        for round in 0..2 * u64::from(SLOTS as u32) {
            send(&mut server, &mut net, 2 * round);
            server.notify(&mut net, 1, tag::CLOSE, 2 * round + 1);
            server.send(Time::START, &mut net);
            if round % 4 == 0 {
                server.clients.get_mut(&1).unwrap().outbox.retain(|next| next.kind == tag::CLOSE);
            }
            if server.clients[&1].outbox.len() == NOTIFICATIONS_MAX {
                break;
            }
        }
        let mut came = Vec::new();
        loop {
            let before = came.len();
            while page.down.receive(|entry| match entry.tag() {
                tag::MESSAGE => came.push(entry.head()[1] & 0xff_ffff),
                tag::CLOSE => came.push(entry.head()[0]),
                _ => {}
            }) {}
            server.send(Time::START, &mut net);
            if came.len() == before {
                break;
            }
        }
        let expected: Vec<u64> = (0..came.len() as u64).collect();
        assert!(came.len() > 2 * SLOTS, "{}", came.len());
        assert!(came == expected, "not in order: {:?}", &came[..8]);
    }

    #[test]
    fn a_client_that_reads_nothing_is_detached_at_a_limit() {
        let (mut server, mut net) = server("overrun");
        let (_socket, _page) = attached(&mut server, &mut net, 1);
        let overruns = |net: &Net| net.subnet().nodes()[1].drops.of(NodeDrop::Overrun);
        for ring in 0..NOTIFICATIONS_MAX as u64 {
            server.notify(&mut net, 1, tag::CLOSE, ring);
        }
        server.read_sockets(Time::START, &mut net);
        assert_eq!((server.statistics().0, overruns(&net)), (1, 0));
        (0..3).for_each(|ring| server.notify(&mut net, 1, tag::CLOSE, ring));
        server.read_sockets(Time::START, &mut net);
        assert_eq!((server.statistics().0, overruns(&net)), (0, 1));
    }

    /// A client is stopped while another client gets one ring after the other to it.
    #[test]
    fn a_client_that_stands_still_stays_while_a_neighbor_cycles_rings() {
        let (mut server, mut net) = server("throws");
        let ([(neighbor, mut page), (stopped, _page)], _) = with_ring(&mut server, &mut net);
        let words = [0xffff << 16 | 0x41 << 32, 2 << 32, 1];
        let mut was_full = false;
        for second in 1..10 {
            for _ in 0..200 {
                let rings: Vec<u64> = server.rings.keys().copied().collect();
                for ring in rings {
                    assert!(page.up.send_bytes(tag::CLOSED, &[ring], &[]));
                }
                assert!(page.up.send_bytes(tag::MESSAGE, &words, b"four"));
                server.receive(Time::START, &mut net);
                while !matches!(neighbor.receive(), ReceivedMessage::Nothing) {}
                while page.down.receive(|_| ()) {}
            }
            server.read_sockets(Time::START, &mut net);
            assert_eq!(server.statistics().0, 2, "it has been thrown out");
            was_full |= server.clients[&2].is_full;
            server.send(Time::START + Duration::from_secs(second), &mut net);
        }
        assert!(was_full);
        // Once the stopped client reads again, it gets rings again.
        while !matches!(stopped.receive(), ReceivedMessage::Nothing) {}
        server.clients.get_mut(&2).unwrap().outbox.clear();
        server.send(Time::START + Duration::from_secs(20), &mut net);
        assert!(page.up.send_bytes(tag::MESSAGE, &words, b"four"));
        server.receive(Time::START, &mut net);
        assert_eq!(server.statistics(), (2, 1));
    }

    /// One notification announces any number of messages at the socket.
    #[test]
    fn many_control_messages_cause_one_notification() {
        let (mut server, mut net) = server("asks");
        let (_socket, _page) = attached(&mut server, &mut net, 1);
        for segment in 0..100 {
            assert!(server.send_control(
                &mut net,
                1,
                &ControlMessage::Withdraw { ring: 1, segment },
                None
            ));
        }
        assert_eq!((server.statistics().0, server.clients[&1].outbox.len()), (1, 1));
    }

    #[test]
    fn a_client_speaks_for_its_own_port_only() {
        let (mut server, mut net) = server("source");
        for (node, lid) in [(1, 4), (2, 2)] {
            let info = &mut net.subnet_mut().node_mut(node).ports[1].info;
            (info.lid, info.lmc) = (Lid(lid), if node == 1 { 1 } else { 0 });
        }
        let (_socket, mut page) = attached(&mut server, &mut net, 1);
        let (_peer, _peers) = attached(&mut server, &mut net, 2);
        // Its own two LIDs, its peer's LID, no LID, and the permissive LID on a data VL.
        for slid in [4u64, 5, 2, 0, 0xffff] {
            let words = [0xffff << 16 | 0x41 << 32, 2 << 32 | slid << 48, 1];
            assert!(page.up.send_bytes(tag::MESSAGE, &words, b"four"));
        }
        server.receive(Time::START, &mut net);
        net.advance(Time::START);
        let node = &net.subnet().nodes()[1];
        assert_eq!((node.drops.of(NodeDrop::SourceLid), node.drops.total()), (3, 3));
        assert_eq!(net.arrivals(End { node: 2, port: 1 }), 2);
    }

    /// A direct ring has one source LID; traffic from another LID of the port gets another ring,
    /// and both end when the LIDs of the port change.
    #[test]
    fn a_direct_ring_is_of_one_source() {
        let (mut server, mut net) = server("one-source");
        let set_lid = |net: &mut Net, lid| {
            let info = &mut net.subnet_mut().node_mut(1).ports[1].info;
            (info.lid, info.lmc) = (Lid(lid), 1);
        };
        set_lid(&mut net, 4);
        let (socket, mut page) = attached(&mut server, &mut net, 1);
        let (_peer, _peers) = attached(&mut server, &mut net, 2);
        let mut routes = Vec::new();
        for slid in [4, 5, 4] {
            let words = [0xffff << 16 | 0x41 << 32, 2 << 32 | slid << 48, 1];
            assert!(page.up.send_bytes(tag::MESSAGE, &words, b"four"));
            server.receive(Time::START, &mut net);
            while let ReceivedMessage::Message(message, _) = socket.receive() {
                let ControlMessage::Sends { route, .. } = message else { continue };
                routes.push((route_of(route).slid, route_of(route).dlid));
            }
        }
        assert_eq!(routes, [(Lid(4), Lid(2)), (Lid(5), Lid(2))]);
        assert_eq!(server.statistics(), (2, 2));
        set_lid(&mut net, 8);
        server.publish_changes(&mut net);
        assert_eq!(server.statistics(), (2, 0));
    }

    /// A packet from a host to the switch, by directed route or by LID. The SMP would route all
    /// LIDs by port 2.
    fn set_routes(is_directed: bool, method: Method) -> Frame {
        let table = LinearForwardingTable { ports: [2; 64] };
        let class =
            if is_directed { MgmtClass::SUBN_DIRECTED_ROUTE } else { MgmtClass::SUBN_LID_ROUTED };
        let header = MadHeader::new(class, method, 5, LinearForwardingTable::ID);
        let smp = LidSmp { header, data: table.to_data(), ..LidSmp::default() };
        let (mut mad, mut slid, mut dlid) = (smp.emit(), Lid(1), Lid(9));
        if is_directed {
            let mut smp = DirectedSmp::parse(&mad);
            (slid, dlid) = (Lid::PERMISSIVE, Lid::PERMISSIVE);
            (smp.dr_slid, smp.dr_dlid) = (slid, dlid);
            smp.set_hops(0, 1);
            smp.initial_path[1] = 1;
            mad = smp.emit();
        }
        let (src_qp, p_key) = (Qpn::SMI, PKey::DEFAULT);
        let datagram = Datagram { slid, dlid, src_qp, dest_qp: src_qp, p_key, mad };
        crate::net::packet_of(&datagram, Psn::new(1))
    }

    /// An attached client is a host: its Sets need the grant.
    #[test]
    fn a_process_manages_the_subnet_only_if_that_was_granted() {
        let (mut server, mut net) = server("manages");
        let end = End { node: 1, port: 1 };
        net.subnet_mut().node_mut(0).ports[0].info.lid = Lid(9);
        let tables = net.subnet_mut().node_mut(0).forwarding.as_mut().unwrap();
        let mut ports = tables.linear_block(0).unwrap();
        (ports.ports[1], ports.ports[9]) = (1, 0);
        tables.set_linear_block(0, &ports);
        net.subnet_mut().node_mut(1).ports[1].info.lid = Lid(1);
        let (_socket, mut page) = attached(&mut server, &mut net, 1);
        let mut send = |net: &mut Net, is_directed, method| {
            let Frame::Packet(bytes) = set_routes(is_directed, method) else { unreachable!() };
            assert!(page.up.send_bytes(tag::PACKET, &[], &bytes));
            let before = net.arrivals(end);
            server.receive(Time::START, net);
            net.advance(Time::START);
            while let Some(delivery) = net.poll_delivery() {
                net.deliver_to_adapter(delivery);
            }
            net.arrivals(end) - before
        };
        let route =
            |net: &Net| net.subnet().nodes()[0].forwarding.as_ref().unwrap().port_of(Lid(1));
        let refused = |net: &Net| net.subnet().nodes()[1].drops.of(NodeDrop::NotManager);
        assert_eq!(send(&mut net, false, Method::GET), 1, "an answer");
        for is_directed in [false, true] {
            for method in [Method::SET, Method::TRAP, Method::TRAP_REPRESS, Method::GET_RESP] {
                assert_eq!(send(&mut net, is_directed, method), 0);
            }
        }
        assert_eq!((route(&net), refused(&net)), (Some(1), 8));
        assert_eq!(net.subnet().nodes()[1].drops.total(), 8, "and nothing else is dropped");
        net.grant_management(end);
        send(&mut net, false, Method::SET);
        assert_eq!((route(&net), refused(&net)), (Some(2), 8));
    }

    /// VL 15 passes ports that are not active, and its packets need no partition.
    #[test]
    fn only_packets_to_queue_pair_0_use_vl_15() {
        let (mut server, mut net) = server("vl-15");
        net.subnet_mut().node_mut(1).ports[1].info.lid = Lid(1);
        let (_socket, mut page) = attached(&mut server, &mut net, 1);
        let (_peer, _peers) = attached(&mut server, &mut net, 2);
        for (vl, dest_qp) in [(15, Qpn(0x41)), (15, Qpn::GSI), (0, Qpn::SMI)] {
            let lrh = Lrh { vl, slid: Lid(1), dlid: Lid(2), ..Lrh::default() };
            let (opcode, pkey) = (Opcode::UD_SEND_ONLY, PKey::DEFAULT);
            let bth = Bth { opcode, pkey, dest_qp, ..Bth::default() };
            let extended = Extended::Deth(Deth { qkey: QKey(0), src_qp: Qpn(0x99) });
            let headers = Headers { lrh, grh: None, bth, rd: None, extended };
            let mut bytes = [0; 128];
            let len = headers.emit(b"four", &mut bytes).unwrap();
            assert!(page.up.send_bytes(tag::PACKET, &[], &bytes[..len]));
        }
        server.receive(Time::START, &mut net);
        net.advance(Time::START);
        let drops = &net.subnet().nodes()[1].drops;
        assert_eq!((drops.of(NodeDrop::Malformed), drops.total()), (3, 3));
        assert_eq!(net.arrivals(End { node: 2, port: 1 }), 0);
    }

    /// The environment variable that the second test below sets for the process that it starts.
    const ROLE: &str = "POLLUX_FEW_DESCRIPTORS";

    /// The process that the test below starts with few descriptors.
    #[test]
    #[expect(clippy::disallowed_methods, reason = "a process that a test starts is told so")]
    fn in_a_process_of_few_descriptors() {
        if std::env::var(ROLE).is_err() {
            return;
        }
        let (mut server, mut net) = server("descriptors");
        let ([(sender, _a), (receiver, _b)], ring) = with_ring(&mut server, &mut net);
        let leased = sealed();
        let lease =
            |segment| sender.send(&ControlMessage::Expose { ring, segment }, Some(leased.as_fd()));
        let mut others = Vec::new();
        while let Ok(other) = leased.as_fd().try_clone_to_owned() {
            others.push(other);
        }
        assert!(lease(1));
        server.read_sockets(Time::START, &mut net);
        let drops = |net: &Net| net.subnet().nodes()[1].drops.of(NodeDrop::NoDescriptor);
        assert_eq!((server.statistics().0, drops(&net)), (2, 1), "it is no fault of the client's");
        let refused = ControlMessage::Mapped { ring, segment: 1, is_mapped: false };
        assert_eq!(messages_of(&sender), (vec![refused], 0));
        others.clear();
        assert!(lease(2));
        server.read_sockets(Time::START, &mut net);
        assert_eq!((messages_of(&receiver).1, drops(&net)), (1, 1));
    }

    #[test]
    fn a_client_that_leases_to_a_server_without_descriptors_stays_attached() {
        let name = "process::server::tests::in_a_process_of_few_descriptors";
        let ran = std::process::Command::new("sh")
            .args(["-c", "ulimit -n 64 && exec \"$0\" \"$@\""])
            .arg(std::env::current_exe().unwrap())
            .args(["--exact", name, "--test-threads=1"])
            .env(ROLE, "1")
            .output()
            .unwrap();
        let output = String::from_utf8_lossy(&ran.stdout);
        assert!(ran.status.success() && output.contains("1 passed"), "{output}");
    }

    /// The received control messages, without those about rings, and their descriptors.
    fn messages_of(socket: &Socket) -> (Vec<ControlMessage>, usize) {
        let (mut messages, mut descriptors) = (Vec::new(), 0);
        while let ReceivedMessage::Message(message, fd) = socket.receive() {
            let is_of_ring = matches!(
                message,
                ControlMessage::Sends { .. }
                    | ControlMessage::Receives { .. }
                    | ControlMessage::WakeSocket { .. }
            );
            if !is_of_ring {
                descriptors += usize::from(fd.is_some());
                messages.push(message);
            }
        }
        (messages, descriptors)
    }

    /// Two clients with a direct ring from the first to the second, and the number of the ring.
    fn with_ring(server: &mut Server, net: &mut Net) -> ([(Socket, ClientPage); 2], u64) {
        let mut ends = [1, 2].map(|host| attached(server, net, host));
        let words = [0xffff << 16 | 0x41 << 32, 2 << 32, 1];
        assert!(ends[0].1.up.send_bytes(tag::MESSAGE, &words, b"four"));
        server.receive(Time::START, net);
        let rings: Vec<u64> = server.rings.keys().copied().collect();
        assert_eq!(rings.len(), 1);
        ends.iter().for_each(|(socket, _)| assert_eq!(messages_of(socket), (vec![], 0)));
        (ends, rings[0])
    }

    fn sealed() -> Segment {
        let segment = Segment::create("test", 4096).unwrap();
        segment.seal().unwrap();
        segment
    }

    /// Only the receiver of the sender's ring gets a leased segment.
    #[test]
    fn a_segment_reaches_only_the_receiver_of_its_senders_ring() {
        let (mut server, mut net) = server("segments");
        let ([(sender, _a), (receiver, _b)], ring) = with_ring(&mut server, &mut net);
        let (snooper, _c) = in_context(&mut server, &mut net, 2, 1, 1).unwrap();
        let segment = 7;
        let expose = ControlMessage::Expose { ring, segment };
        assert!(sender.send(&expose, Some(sealed().as_fd())));
        assert!(snooper.send(&ControlMessage::Mapped { ring, segment, is_mapped: true }, None));
        server.read_sockets(Time::START, &mut net);
        assert_eq!(messages_of(&receiver), (vec![expose.clone()], 1));
        assert_eq!((messages_of(&snooper), messages_of(&sender)), ((vec![], 0), (vec![], 0)));

        let mapped = ControlMessage::Mapped { ring, segment, is_mapped: true };
        let of_other = ControlMessage::Mapped { ring, segment: 8, is_mapped: true };
        for answer in [&of_other, &mapped, &mapped] {
            assert!(receiver.send(answer, None));
        }
        server.read_sockets(Time::START, &mut net);
        assert_eq!(messages_of(&sender), (vec![mapped], 0), "what was asked, and once");
        let withdraw = ControlMessage::Withdraw { ring, segment };
        assert!(sender.send(&withdraw, None));
        server.read_sockets(Time::START, &mut net);
        assert_eq!(messages_of(&receiver), (vec![withdraw], 0));
        assert_eq!(server.statistics(), (3, 1));
        // Withdraw is a request, too, so its answer is forwarded.
        let unmapped = ControlMessage::Mapped { ring, segment, is_mapped: false };
        assert!(receiver.send(&unmapped, None));
        server.read_sockets(Time::START, &mut net);
        assert_eq!(messages_of(&sender), (vec![unmapped], 0));

        // A request for a ring that does not exist is ignored; one for another client's ring
        // detaches the client.
        assert!(
            snooper
                .send(&ControlMessage::Expose { ring: ring + 1, segment }, Some(sealed().as_fd()))
        );
        server.read_sockets(Time::START, &mut net);
        assert_eq!(server.statistics(), (3, 1));
        assert!(snooper.send(&expose, Some(sealed().as_fd())));
        server.read_sockets(Time::START, &mut net);
        assert_eq!((server.statistics(), messages_of(&receiver)), ((2, 1), (vec![], 0)));
    }

    /// A client that sends more than one message on segments before the receiver answers, or leases
    /// a segment that others could write to, is detached; the receiver is not.
    #[test]
    fn a_sender_cannot_flood_its_receiver_with_segments() {
        for what in ["twice", "unsealed", "no segment"] {
            let (mut server, mut net) = server("floods");
            let ([(sender, _a), (receiver, _b)], ring) = with_ring(&mut server, &mut net);
            let open = Segment::create("test", 4096).unwrap();
            let file = std::fs::File::open("/proc/self/exe").unwrap();
            let (first, fd, came) = match what {
                "twice" => (Some(sealed()), sealed().into_fd(), 1),
                "unsealed" => (None, open.into_fd(), 0),
                _ => (None, file.into(), 0),
            };
            if let Some(first) = first {
                assert!(
                    sender.send(&ControlMessage::Expose { ring, segment: 1 }, Some(first.as_fd()))
                );
            }
            assert!(sender.send(&ControlMessage::Expose { ring, segment: 2 }, Some(fd.as_fd())));
            server.read_sockets(Time::START, &mut net);
            assert_eq!((server.statistics(), messages_of(&receiver).1), ((1, 0), came), "{what}");
        }
    }

    /// The server cannot forward leased memory, so it drops leased messages.
    #[test]
    fn leased_messages_do_not_use_the_server() {
        let (mut server, mut net) = server("leased");
        let ([(_sender, mut a), (_receiver, mut b)], _) = with_ring(&mut server, &mut net);
        net.advance(Time::START);
        server.send(Time::START, &mut net);
        while b.down.receive(|_| ()) {}
        let before = net.subnet().nodes()[1].drops.of(NodeDrop::Unclaimed);
        let words = [LEASED | 0xffff << 16 | 0x41 << 32, 2 << 32, 1];
        assert!(a.up.send_bytes(tag::MESSAGE, &words, &[0; 24]));
        server.receive(Time::START, &mut net);
        net.advance(Time::START);
        server.send(Time::START, &mut net);
        assert_eq!(net.subnet().nodes()[1].drops.of(NodeDrop::Unclaimed), before + 1);
        assert!(!b.down.has_entry());
    }

    #[test]
    fn a_place_that_was_left_is_free_at_once() {
        let (mut server, mut net) = server("left");
        drop(attached(&mut server, &mut net, 1));
        let _next = attached(&mut server, &mut net, 1);
        assert_eq!(server.statistics(), (1, 0));
    }

    /// A client ends and another one attaches just after the server has read the clients' sockets.
    #[test]
    fn a_place_that_was_left_during_a_look_is_free() {
        for (others_context, secret) in [(None, 8), (Some(5), 7)] {
            let (mut server, mut net) = server("left-meanwhile");
            let other = others_context.map(|it| in_context(&mut server, &mut net, 1, it, 7));
            assert!(other.as_ref().is_none_or(Result::is_ok));
            drop(in_context(&mut server, &mut net, 1, 3, 7).unwrap());
            let request = Request { host: 1, context: 3, secret };
            let _next = request.send(&mut server, &mut net, Server::accept_connections).unwrap();
        }
    }

    /// An entry in a ring keeps the server awake, or wakes it.
    #[test]
    fn a_client_wakes_a_server_that_sleeps() {
        let (mut server, mut net) = server("sleeps");
        let (socket, mut page) = attached(&mut server, &mut net, 1);
        let hour = Duration::from_secs(3600);
        for _ in 0..IDLE_TURNS {
            assert_eq!((server.is_awake(), server.sleep(hour)), (true, Duration::ZERO));
            server.receive(Time::START, &mut net);
            server.send(Time::START, &mut net);
        }
        assert_eq!(server.sleep(hour), hour);
        assert!(page.up.send_bytes(99, &[1], &[]) && page.take_wake_request());
        assert_eq!(server.sleep(hour), Duration::ZERO, "there is something");
        server.wake();
        assert!(!page.take_wake_request());
        server.receive(Time::START, &mut net);
        assert!(server.is_awake() && socket.send(&ControlMessage::Wake, None));
        server.receive(Time::START, &mut net);
        assert_eq!(server.statistics(), (1, 0), "which is no reason to lose a client");
        assert_eq!(server.process_at(End { node: 1, port: 1 }), Some(std::process::id()));
    }
}
