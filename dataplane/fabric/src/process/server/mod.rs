//! The server: the subnet, its clients' ports, and what goes between them hop by hop.
//!
//! It moves what is between its clients and a [`Net`] that others have their part in too: as a wire
//! does, it receives and it sends. Lanes are polled while there is traffic, and sockets are looked
//! at now and then. Whoever runs it sleeps when there is none ([`Server::sleep`]), and then clients
//! wake it by their sockets. It decides little: [`super::grants`] does, and the net. Who comes and
//! goes by the sockets is in `clients`; what comes by their rings, in `up`.

mod clients;
mod naming;
mod up;

use super::board::ServerBoard;
use super::direct::Granted;
use super::grants::{Grants, Verdict};
use super::note::Note;
use super::socket::{Socket, listen_at, socket_path};
use super::tag;
use crate::frame::Frame;
use crate::head::{is_management, route_bits, route_of, seat_of_route, slid_of_route};
use crate::net::Net;
use crate::net::seats::Seat;
use crate::node::NodeDrop;
use crate::time::Time;
use crate::topology::End;
use rustix::event::{PollFd, PollFlags};
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::time::Duration;
use up::Up;

/// Clients at a time; each has a dozen descriptors at the most, but for what it lends.
pub const CLIENTS_MAX: usize = 256;
/// Sockets that nobody has said anything by; of more, the oldest is closed.
pub const STRANGERS_MAX: usize = 256;
/// Control messages that wait for a client. One that leaves so many is detached: a client that is
/// only slow, or stopped, is told less than that (`Server::consider` grants it no more lanes).
pub const SAID_MAX: usize = 1024;
/// Entries taken of a client in a turn, so that nobody who sends much keeps others from sending.
const BATCH: usize = 64;
/// Turns from one look at the sockets to the next.
const TURNS_PER_LOOK: u32 = 64;
/// How often lanes are asked what went by them, if nobody wants to know.
const SETTLE: Duration = Duration::from_secs(1);
/// Turns without anything to do before it is time to sleep: to be woken costs a client more than
/// these do.
const IDLE_TURNS: u32 = 64;
/// When a client whose lane is full is tried again; each next time it takes twice as long.
const RETRY_MIN: Duration = Duration::from_micros(50);
const RETRY_MAX: Duration = Duration::from_millis(50);

/// The processes at the ports of a net, which is the same in every call.
pub struct Server {
    path: PathBuf,
    listener: OwnedFd,
    clients: BTreeMap<u32, Client>,
    /// Those that have said nothing yet, the oldest first.
    strangers: VecDeque<Socket>,
    places: BTreeMap<End, Place>,
    /// Ports whose cables came out with their clients.
    unplugged: BTreeSet<End>,
    grants: Grants,
    lanes: BTreeMap<u64, Granted>,
    client_last: u32,
    /// The net as of then has been told to the clients.
    epoch: u64,
    settled: Time,
    turns: u32,
    /// Turns since there was anything to do.
    idle_turns: u32,
    /// How soon a client that takes nothing is tried again.
    retry: Duration,
}

/// A port that clients are at.
struct Place {
    /// What they have shown.
    secret: u64,
    /// Who they are.
    seats: BTreeMap<u8, u32>,
}

struct Client {
    socket: Socket,
    seat: Seat,
    board: ServerBoard,
    /// A frame that the lane down had no room for.
    held: Option<Frame>,
    /// How many of the frames that came for it are behind us, that one with them.
    taken: u64,
    /// Control messages that it has not been told yet.
    outbox: VecDeque<Said>,
    is_lost: bool,
}

/// A control message for a client.
struct Said {
    what: u8,
    lane: u64,
    /// How many frames had come for the client when it was said: they go first.
    behind: u64,
}

impl Server {
    /// Waits for clients that name this path; the socket is called so too, with `.ports` behind it.
    /// Fails if somebody else does.
    pub fn bind(path: &Path) -> io::Result<Self> {
        let path = socket_path(path);
        Ok(Self {
            listener: listen_at(&path)?,
            path,
            clients: BTreeMap::new(),
            strangers: VecDeque::new(),
            places: BTreeMap::new(),
            unplugged: BTreeSet::new(),
            grants: Grants::default(),
            lanes: BTreeMap::new(),
            client_last: 0,
            epoch: 0,
            settled: Time::START,
            turns: 0,
            idle_turns: 0,
            retry: RETRY_MIN,
        })
    }

    /// The process at a port, as far as the system says which one it is.
    pub fn process_at(&self, end: End) -> Option<u32> {
        let first = self.places.get(&end)?.seats.values().next()?;
        self.clients.get(first)?.socket.process()
    }

    /// How many clients there are, and direct lanes between them.
    pub fn census(&self) -> (usize, usize) {
        (self.clients.len(), self.lanes.len())
    }

    /// Takes what clients have sent, and who has come and gone, into the net.
    pub fn receive(&mut self, now: Time, net: &mut Net) {
        if self.turns == 0 {
            self.look(now, net);
        }
        self.turns = (self.turns + 1) % TURNS_PER_LOOK;
        self.idle_turns = (self.idle_turns + 1).min(IDLE_TURNS);
        let clients: Vec<u32> = self.clients.keys().copied().collect();
        for client in clients {
            if self.take_up(now, net, client, BATCH) {
                self.idle_turns = 0;
            }
        }
    }

    /// Tells clients of their ports, and sends them what has come for them.
    pub fn send(&mut self, now: Time, net: &mut Net) {
        self.tell_changes(net);
        let clients: Vec<u32> = self.clients.keys().copied().collect();
        for client in clients {
            if self.send_down(net, client) {
                self.idle_turns = 0;
            }
        }
        if now >= self.settled + SETTLE {
            self.settled = now;
            self.settle(net);
        }
    }

    /// Whether there is more to do at once, or may be.
    pub fn is_awake(&self) -> bool {
        self.idle_turns < IDLE_TURNS
    }

    // ---------------------------------------------------------------- sleeping

    /// What ends its sleep.
    pub fn poll_fds(&self) -> impl Iterator<Item = PollFd<'_>> {
        let sockets = self.clients.values().map(|client| &client.socket).chain(&self.strangers);
        let fds = sockets.map(AsFd::as_fd).chain([self.listener.as_fd()]);
        fds.map(|fd| PollFd::from_borrowed_fd(fd, PollFlags::IN))
    }

    /// How long it may sleep from now on, `longest` at the most: clients that send something wake
    /// it, until [`Server::wake`].
    pub fn sleep(&mut self, longest: Duration) -> Duration {
        if self.is_awake() {
            return Duration::ZERO;
        }
        self.clients.values().for_each(|client| client.board.set_sleeps(true));
        if self.clients.values().any(|client| client.board.up.has_entry()) {
            return Duration::ZERO;
        }
        let mut longest = if self.lanes.is_empty() { longest } else { longest.min(SETTLE) };
        if self.clients.values().any(Client::is_behind) {
            longest = longest.min(self.retry);
            self.retry = (self.retry * 2).min(RETRY_MAX);
        }
        longest
    }

    /// It has slept, or did not have to: its sockets are looked at next.
    pub fn wake(&mut self) {
        self.clients.values().for_each(|client| client.board.set_sleeps(false));
        self.turns = 0;
    }

    // ---------------------------------------------------------------- what changed

    /// Tells clients of their ports, and ends the lanes whose way is not what it was: now and not
    /// when something is sent next.
    pub fn tell_changes(&mut self, net: &mut Net) {
        if self.epoch == net.epoch() {
            return;
        }
        self.epoch = net.epoch();
        let clients = &self.clients;
        let changed = self.grants.all(|grant| {
            let from = clients.get(&grant.from).map(|client| client.seat.end);
            let from = from.filter(|from| net.has_lid(*from, slid_of_route(grant.route)));
            let way = from.and_then(|from| net.way(from, route_of(grant.route)));
            way.as_ref() != Some(&grant.way)
        });
        changed.into_iter().for_each(|lane| self.end_lane(net, lane));
        let wants_packets = net.wants_packets();
        for client in self.clients.values_mut() {
            client.board.set_port(&net.port(client.seat.end));
            client.board.set_wants_packets(wants_packets);
        }
    }

    /// Counts in the net what went past it since the last time.
    pub fn settle(&mut self, net: &mut Net) {
        for (number, lane) in &mut self.lanes {
            settle_lane(net, &mut self.grants, *number, lane);
        }
    }

    // ---------------------------------------------------------------- traffic

    /// Takes what a client has sent; says whether there was anything.
    fn take_up(&mut self, now: Time, net: &mut Net, number: u32, most: usize) -> bool {
        let mut was_busy = false;
        for _ in 0..most {
            let Some(client) = self.clients.get_mut(&number) else { break };
            let seat = client.seat;
            let mut up = None;
            if !client.board.up.receive(|entry| up = Some(Up::of(entry))) {
                break;
            }
            was_busy = true;
            match up {
                Some(Up::Frame(frame)) => {
                    if let Err(reason) = net.check_process(seat.end, &frame) {
                        net.count_drop(seat.end, reason);
                        continue;
                    }
                    let route = match &frame {
                        Frame::Message(message) => {
                            let is_data = !is_management(message.word(0));
                            is_data.then(|| route_bits(message.word(0), message.word(1)))
                        }
                        Frame::Packet(_) => None,
                    };
                    net.send(now, seat, frame);
                    if let Some(route) = route {
                        self.consider(net, number, seat.end, route);
                    }
                }
                Some(Up::Switch(lane)) => {
                    net.advance(now);
                    if let Some(to) = self.grants.begin(number, lane) {
                        self.say(net, to, tag::OPEN, lane);
                    }
                }
                Some(Up::Closed(lane)) => {
                    if self.grants.lane(lane).is_some_and(|grant| grant.from == number) {
                        self.end_lane(net, lane);
                    }
                }
                Some(Up::Violation(violation)) => net.key_violation(seat.end, &violation),
                Some(Up::Rubbish) | None => net.count_drop(seat.end, NodeDrop::Unclaimed),
            }
        }
        was_busy
    }

    /// Sends a client what has come for it, as far as there is room; says whether there was
    /// anything.
    fn send_down(&mut self, net: &mut Net, number: u32) -> bool {
        let Some(client) = self.clients.get_mut(&number) else { return false };
        let mut was_busy = false;
        for _ in 0..BATCH {
            let Some(next) = client.next(net) else { break };
            let down = &mut client.board.down;
            let went = match &next {
                Down::Said => {
                    let Said { what, lane, .. } = client.outbox[0];
                    down.send_bytes(what, &[lane], &[])
                }
                Down::Frame(Frame::Packet(bytes)) => down.send_bytes(tag::PACKET, &[], bytes),
                Down::Frame(Frame::Message(message)) => {
                    down.send_bytes(tag::MESSAGE, message.head(), message.payload())
                }
            };
            match next {
                Down::Frame(frame) if !went => client.held = Some(frame),
                Down::Said if went => drop(client.outbox.pop_front()),
                _ => {}
            }
            if !went {
                break;
            }
            (was_busy, self.retry) = (true, RETRY_MIN);
        }
        was_busy
    }

    /// Says something to a client behind all that has come for it.
    fn say(&mut self, net: &mut Net, number: u32, what: u8, lane: u64) {
        let Some(client) = self.clients.get_mut(&number).filter(|client| !client.is_lost) else {
            return;
        };
        // One look at the socket finds all that is there.
        if what == tag::MAIL && client.outbox.iter().any(|said| said.what == tag::MAIL) {
            return;
        }
        if client.outbox.len() == SAID_MAX {
            client.is_lost = true;
            return net.count_drop(client.seat.end, NodeDrop::Overrun);
        }
        client.outbox.push_back(Said { what, lane, behind: net.came(client.seat) });
    }

    /// Says something to a client by its socket. One that reads nothing there is no client.
    fn tell(&mut self, net: &mut Net, number: u32, note: &Note, beside: Option<&OwnedFd>) -> bool {
        let Some(client) = self.clients.get_mut(&number) else { return false };
        if !client.socket.send(note, beside.map(AsFd::as_fd)) {
            client.is_lost = true;
            return false;
        }
        self.say(net, number, tag::MAIL, 0);
        true
    }

    // ---------------------------------------------------------------- lanes

    /// Grants a lane for a route that has traffic, if one may be.
    fn consider(&mut self, net: &mut Net, from: u32, end: End, route: u64) {
        if self.grants.has(from, route) {
            return;
        }
        let Some(way) = net.way(end, route_of(route)) else { return };
        // What stays at the port never meets this way.
        let Some(to) = way.end().filter(|to| *to != end) else { return };
        let to = Seat { end: to, number: seat_of_route(route) };
        let Some(to) = client_at(&self.places, to) else { return };
        // Who does not take what is there gets no more to take.
        if self.clients.get(&to).is_none_or(|client| client.outbox.len() > BATCH) {
            return;
        }
        match self.grants.may(from, to, route) {
            Verdict::No => {}
            Verdict::TakeBack(lane) => {
                self.grants.take_back(lane);
                if let Some(granted) = self.lanes.get(&lane) {
                    granted.close();
                }
            }
            Verdict::Yes => {
                // Without memory everything goes on by the server.
                let Some((granted, fd)) = self.new_lane(from) else { return };
                let (slot, lane) = (granted.slot as u16, self.grants.grant(from, to, route, way));
                granted.open(lane);
                self.lanes.insert(lane, granted);
                let receives = Note::Receives { lane, route };
                let are_told = self.tell(net, to, &receives, Some(&fd))
                    && self.tell(net, from, &Note::Sends { lane, route, slot }, Some(&fd));
                if !are_told {
                    self.end_lane(net, lane);
                }
            }
        }
    }

    /// Memory for one more lane of a client's, which has fewer than it may have.
    fn new_lane(&self, from: u32) -> Option<(Granted, OwnedFd)> {
        let is_of = |number: &u64| self.grants.lane(*number).is_some_and(|lane| lane.from == from);
        let taken: BTreeSet<usize> =
            self.lanes.iter().filter(|(lane, _)| is_of(lane)).map(|(_, lane)| lane.slot).collect();
        let places = self.clients.get(&from)?.board.lanes.iter().enumerate();
        let (slot, place) = places.into_iter().find(|(slot, _)| !taken.contains(slot))?;
        Granted::create(slot, place.clone()).ok()
    }

    /// A lane ends now: what is in it is taken, and nothing more.
    fn end_lane(&mut self, net: &mut Net, number: u64) {
        if let Some(mut lane) = self.lanes.remove(&number) {
            lane.close();
            settle_lane(net, &mut self.grants, number, &mut lane);
        }
        if let Some(grant) = self.grants.end(number) {
            self.say(net, grant.to, tag::CLOSE, number);
        }
    }
}

/// What a client gets next.
enum Down {
    Frame(Frame),
    /// What is first in its outbox.
    Said,
}

impl Client {
    /// What the client gets next, in the order in which it came; a frame is taken out by this.
    fn next(&mut self, net: &mut Net) -> Option<Down> {
        if let Some(frame) = self.held.take() {
            return Some(Down::Frame(frame));
        }
        if self.outbox.front().is_some_and(|said| said.behind <= self.taken) {
            return Some(Down::Said);
        }
        let frame = net.take(self.seat).map(|(_, frame)| frame)?;
        self.taken += 1;
        Some(Down::Frame(frame))
    }

    /// Whether something waits for room in its lane.
    fn is_behind(&self) -> bool {
        self.held.is_some() || !self.outbox.is_empty()
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        // Nobody else may have taken the path, as long as the listener is there.
        let _ = rustix::fs::unlink(&self.path);
    }
}

/// The client at a seat.
fn client_at(places: &BTreeMap<End, Place>, seat: Seat) -> Option<u32> {
    places.get(&seat.end)?.seats.get(&seat.number).copied()
}

fn settle_lane(net: &mut Net, grants: &mut Grants, number: u64, lane: &mut Granted) {
    let [packets, words] = lane.went();
    if let Some(grant) = grants.lane(number).filter(|_| packets > 0) {
        net.count(&grant.way, packets, words);
    }
    grants.used(number, packets);
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::head::LENT;
    use crate::link::fault::SeededRng;
    use crate::link::world::Wire;
    use crate::process::board::{ClientBoard, SLOTS};
    use crate::process::note::Attach;
    use crate::process::socket::Received;
    use crate::subnet::Datagram;
    use crate::subnet::Subnet;
    use crate::topology::Topology;
    use pollux_mem::Segment;
    use pollux_wire::address::{Lid, Qpn};
    use pollux_wire::keys::PKey;
    use pollux_wire::mad::smp::{DirectedSmp, LidSmp, LinearForwardingTable, PortState};
    use pollux_wire::mad::{Attribute, MadHeader, Method, MgmtClass};
    use pollux_wire::psn::Psn;

    /// Two hosts at a switch, with the LIDs 1 and 2 behind the ports of these numbers.
    fn server(name: &str) -> (Server, Net) {
        of("single:2", name)
    }

    /// So many hosts at a switch, managed so far.
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

    /// Looks until only so many clients are left. A test beside this one may start a program, and
    /// from fork to exec that holds a copy of every socket, so the server sees an end that late.
    fn look_until(server: &mut Server, net: &mut Net, clients: usize) {
        for _ in 0..1_000_000 {
            server.look(Time::START, net);
            if server.census().0 == clients {
                return;
            }
            std::thread::yield_now();
        }
        panic!("{} clients are left, not {clients}", server.census().0);
    }

    fn attached(server: &mut Server, net: &mut Net, host: u32) -> (Socket, ClientBoard) {
        seated(server, net, host, 0, 1).expect("it is attached")
    }

    fn seated(
        server: &mut Server,
        net: &mut Net,
        host: u32,
        seat: u8,
        secret: u64,
    ) -> Result<(Socket, ClientBoard), String> {
        let socket = Socket::connect(&server.path.with_extension("")).unwrap();
        let node = format!("host{host}");
        let ask = Attach { node, port: Some(1), seat, secret };
        assert!(socket.send(&Note::Attach(ask), None));
        server.look(Time::START, net);
        match socket.receive() {
            Received::Note(Note::Attached { .. }, Some(fd)) => {
                Ok((socket, ClientBoard::open(fd).unwrap()))
            }
            Received::Note(Note::Refused { reason }, None) => Err(reason),
            other => panic!("{other:?}"),
        }
    }

    /// Who does not know the secret gets no seat, and nobody gets one that is taken.
    #[test]
    fn a_seat_is_for_those_who_know_the_secret() {
        let (mut server, mut net) = server("seats");
        let mut ask = |seat, secret| seated(&mut server, &mut net, 1, seat, secret);
        let refused = |answer: Result<_, String>| answer.err().expect("it is refused");
        let first = ask(0, 7).unwrap();
        let third = ask(2, 7).unwrap();
        for (seat, secret) in [(0, 7), (0, 8), (1, 8), (1, 0), (2, 7)] {
            assert_eq!(refused(ask(seat, secret)), "somebody is at this port");
        }
        assert!(refused(ask(8, 7)).contains("so often"));
        drop(first);
        assert_eq!(refused(ask(0, 8)), "somebody is at this port");
        let first = ask(0, 7).unwrap();
        drop((first, third));
        let _others = ask(1, 8).unwrap();
        assert_eq!(server.census(), (1, 0));
        assert_eq!(server.process_at(End { node: 1, port: 1 }), Some(std::process::id()));
    }

    /// The cable comes out with the last, and what is for a seat comes to that one.
    #[test]
    fn one_that_dies_leaves_the_port_to_the_others() {
        let (mut server, mut net) = server("dies");
        let end = End { node: 1, port: 1 };
        let first = attached(&mut server, &mut net, 1);
        let (_socket, mut board) = seated(&mut server, &mut net, 1, 1, 1).unwrap();
        let (_peer, mut peers) = attached(&mut server, &mut net, 2);
        let ports = |net: &mut Net| {
            for node in 0..3 {
                let ports = net.subnet_mut().node_mut(node).ports.iter_mut();
                ports.for_each(|port| port.info.port_state = PortState::ACTIVE);
            }
        };
        ports(&mut net);
        let left = server.census().0 - 1;
        drop(first);
        look_until(&mut server, &mut net, left);
        assert!(net.subnet().nodes()[1].ports[1].is_linked() && net.has_adapter(end));
        // Of its queue pairs, of those of a seat where nobody is, and of management.
        for dest_qp in [1 << 21 | 0x41, 0x41, 2 << 21 | 0x41, 1] {
            let words = [0xffff << 16 | dest_qp << 32, 1 << 32, 1];
            assert!(peers.up.send_bytes(tag::MESSAGE, &words, b"four"));
        }
        server.receive(Time::START, &mut net);
        net.advance(Time::START);
        while let Some(delivery) = net.poll_delivery() {
            net.give(delivery);
        }
        server.send(Time::START, &mut net);
        let mut came = Vec::new();
        while board.down.receive(|entry| came.push((entry.tag(), entry.head()[0] >> 32))) {}
        came.retain(|(what, _)| *what == tag::MESSAGE);
        assert_eq!(came, [(tag::MESSAGE, 1 << 21 | 0x41)]);
        assert!(net.subnet().nodes()[1].drops.total() >= 2, "nobody is there for the others");
        let left = server.census().0 - 1;
        drop((_socket, board));
        look_until(&mut server, &mut net, left);
        assert!(!net.subnet().nodes()[1].ports[1].is_linked() && !net.has_adapter(end));
    }

    #[test]
    fn keys_that_did_not_match_are_counted_if_that_makes_sense() {
        let (mut server, mut net) = server("violations");
        let (_socket, mut board) = attached(&mut server, &mut net, 1);
        let details = [0; 54];
        for (trap, bytes) in [(257, 54), (258, 54), (259, 54), (257, 53), (1 << 32 | 257, 54)] {
            assert!(board.up.send_bytes(tag::VIOLATION, &[trap], &details[..bytes]));
        }
        server.receive(Time::START, &mut net);
        let node = &net.subnet().nodes()[1];
        let info = &node.ports[1].info;
        assert_eq!((info.p_key_violations, info.q_key_violations), (1, 1));
        assert_eq!(node.drops.of(NodeDrop::Unclaimed), 3);
    }

    /// Rubbish in lanes and at sockets stops nobody but who wrote it.
    #[test]
    fn whatever_a_client_writes_is_counted_or_thrown_away() {
        let ((mut server, mut net), mut rng) = (server("rubbish"), SeededRng::new(1));
        for _ in 0..200 {
            let (socket, mut board) = attached(&mut server, &mut net, 1);
            let (_victim, _board) = attached(&mut server, &mut net, 2);
            let beside = seated(&mut server, &mut net, 1, 1 + rng.below(7) as u8, 1);
            for _ in 0..100 {
                let head: Vec<u64> = (0..rng.below(15)).map(|_| rng.next_u64()).collect();
                let bytes: Vec<u8> = (0..rng.below(600)).map(|_| rng.next_u64() as u8).collect();
                let _ = board.up.send_bytes(rng.below(8) as u8, &head, &bytes);
                // To the other host, by its LID.
                let words = [rng.next_u64(), 2 << 32 | rng.below(1 << 24), rng.next_u64()];
                let _ = board.up.send_bytes(tag::MESSAGE, &words, &bytes);
                server.receive(Time::START, &mut net);
                net.advance(Time::START);
                server.send(Time::START, &mut net);
            }
            assert!(server.census().1 <= super::super::grants::LANES_MAX);
            let segment = rng.next_u64() as u32;
            let note = match rng.below(6) {
                0 => Note::Expose { lane: rng.below(8), segment },
                1 => Note::Withdraw { lane: rng.below(8), segment },
                2 => Note::Mapped { lane: rng.below(8), segment, is_mapped: true },
                3 => Note::Wake,
                4 => Note::Attach(Attach {
                    node: "host2".into(),
                    port: Some(1),
                    seat: segment as u8,
                    secret: rng.next_u64(),
                }),
                _ => Note::Attached { client: segment },
            };
            let _ = socket.send(&note, None);
            server.look(Time::START, &mut net);
            drop((socket, _victim, beside));
            look_until(&mut server, &mut net, 0);
            assert_eq!(server.census(), (0, 0));
            for node in 0..3 {
                let ports = net.subnet_mut().node_mut(node).ports.iter_mut();
                ports.for_each(|port| port.info.port_state = PortState::ACTIVE);
            }
        }
    }

    /// As many as there are hosts ask before the server has looked once.
    #[test]
    fn all_who_come_at_once_are_served() {
        const HOSTS: u32 = 240;
        let (mut server, mut net) = of("single:240", "at-once");
        let sockets = (1..=HOSTS).map(|host| {
            let socket = Socket::connect(&server.path.with_extension(""));
            let socket = socket.unwrap_or_else(|error| panic!("host{host}: {error}"));
            let ask = Attach { node: format!("host{host}"), port: Some(1), seat: 0, secret: 1 };
            assert!(socket.send(&Note::Attach(ask), None));
            socket
        });
        let sockets: Vec<Socket> = sockets.collect();
        server.look(Time::START, &mut net);
        for (host, socket) in (1..).zip(&sockets) {
            let said = socket.receive();
            assert!(
                matches!(said, Received::Note(Note::Attached { .. }, Some(_))),
                "{host}: {said:?}"
            );
        }
        assert_eq!(server.census(), (HOSTS as usize, 0));
    }

    /// Strangers that say nothing make room for others, and for none that has said something.
    #[test]
    fn of_those_who_are_silent_the_oldest_go() {
        let (mut server, mut net) = server("silent");
        let connect = |server: &Server| Socket::connect(&server.path.with_extension("")).unwrap();
        let first = connect(&server);
        server.look(Time::START, &mut net);
        let silent: Vec<_> = (0..STRANGERS_MAX).map(|_| connect(&server)).collect();
        let ask = Attach { node: "host1".into(), port: Some(1), seat: 0, secret: 1 };
        assert!(first.send(&Note::Attach(ask), None));
        server.look(Time::START, &mut net);
        assert!(matches!(first.receive(), Received::Note(Note::Attached { .. }, Some(_))));
        assert_eq!((server.census().0, server.strangers.len()), (1, STRANGERS_MAX));
        let last = connect(&server);
        server.look(Time::START, &mut net);
        assert_eq!(server.strangers.len(), STRANGERS_MAX);
        assert!(matches!(silent[0].receive(), Received::End), "the oldest");
        assert!(matches!(silent[1].receive(), Received::Nothing));
        assert!(matches!(last.receive(), Received::Nothing));
    }

    /// What is said to a client keeps its place among the frames that come for it.
    #[test]
    fn what_is_said_comes_behind_what_came_before_it() {
        let (mut server, mut net) = server("order");
        let (_socket, mut board) = attached(&mut server, &mut net, 1);
        let (_peer, mut peer) = attached(&mut server, &mut net, 2);
        let mut send = |server: &mut Server, net: &mut Net, psn: u64| {
            let words = [0xffff << 16 | 0x41 << 32, 1 << 32 | psn, 1];
            assert!(peer.up.send_bytes(tag::MESSAGE, &words, b"four"));
            server.receive(Time::START, net);
            net.advance(Time::START);
        };
        // More than there is room for in the lane, so that some wait and one is held.
        for round in 0..2 * u64::from(SLOTS as u32) {
            send(&mut server, &mut net, 2 * round);
            server.say(&mut net, 1, tag::CLOSE, 2 * round + 1);
            server.send(Time::START, &mut net);
            if round % 4 == 0 {
                server.clients.get_mut(&1).unwrap().outbox.retain(|said| said.what == tag::CLOSE);
            }
            if server.clients[&1].outbox.len() == SAID_MAX {
                break;
            }
        }
        let mut came = Vec::new();
        loop {
            let before = came.len();
            while board.down.receive(|entry| match entry.tag() {
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
    fn a_client_that_takes_nothing_is_told_so_much_and_then_detached() {
        let (mut server, mut net) = server("overrun");
        let (_socket, _board) = attached(&mut server, &mut net, 1);
        let overruns = |net: &Net| net.subnet().nodes()[1].drops.of(NodeDrop::Overrun);
        for lane in 0..SAID_MAX as u64 {
            server.say(&mut net, 1, tag::CLOSE, lane);
        }
        server.look(Time::START, &mut net);
        assert_eq!((server.census().0, overruns(&net)), (1, 0));
        (0..3).for_each(|lane| server.say(&mut net, 1, tag::CLOSE, lane));
        server.look(Time::START, &mut net);
        assert_eq!((server.census().0, overruns(&net)), (0, 1));
    }

    /// What is at the socket is one control message, however much it is.
    #[test]
    fn a_client_that_is_told_much_has_one_control_message_waiting() {
        let (mut server, mut net) = server("asks");
        let (_socket, _board) = attached(&mut server, &mut net, 1);
        for segment in 0..100 {
            assert!(server.tell(&mut net, 1, &Note::Withdraw { lane: 1, segment }, None));
        }
        assert_eq!((server.census().0, server.clients[&1].outbox.len()), (1, 1));
    }

    #[test]
    fn a_client_speaks_for_its_own_port_only() {
        let (mut server, mut net) = server("source");
        for (node, lid) in [(1, 4), (2, 2)] {
            let info = &mut net.subnet_mut().node_mut(node).ports[1].info;
            (info.lid, info.lmc) = (Lid(lid), if node == 1 { 1 } else { 0 });
        }
        let (_socket, mut board) = attached(&mut server, &mut net, 1);
        let (_peer, _peers) = attached(&mut server, &mut net, 2);
        // Its own two addresses, its peer's, none, and that of directed routes on a lane of data.
        for slid in [4u64, 5, 2, 0, 0xffff] {
            let words = [0xffff << 16 | 0x41 << 32, 2 << 32 | slid << 48, 1];
            assert!(board.up.send_bytes(tag::MESSAGE, &words, b"four"));
        }
        server.receive(Time::START, &mut net);
        net.advance(Time::START);
        let node = &net.subnet().nodes()[1];
        assert_eq!((node.drops.of(NodeDrop::SourceLid), node.drops.total()), (3, 3));
        assert_eq!(net.came(End { node: 2, port: 1 }), 2);
    }

    /// A direct lane is for one source; with another address of the port begins another lane, and
    /// both end when the port has other addresses.
    #[test]
    fn a_direct_lane_is_of_one_source() {
        let (mut server, mut net) = server("one-source");
        let set_lid = |net: &mut Net, lid| {
            let info = &mut net.subnet_mut().node_mut(1).ports[1].info;
            (info.lid, info.lmc) = (Lid(lid), 1);
        };
        set_lid(&mut net, 4);
        let (socket, mut board) = attached(&mut server, &mut net, 1);
        let (_peer, _peers) = attached(&mut server, &mut net, 2);
        let mut routes = Vec::new();
        for slid in [4, 5, 4] {
            let words = [0xffff << 16 | 0x41 << 32, 2 << 32 | slid << 48, 1];
            assert!(board.up.send_bytes(tag::MESSAGE, &words, b"four"));
            server.receive(Time::START, &mut net);
            while let Received::Note(note, _) = socket.receive() {
                let Note::Sends { route, .. } = note else { continue };
                routes.push((slid_of_route(route), route_of(route).dlid));
            }
        }
        assert_eq!(routes, [(Lid(4), Lid(2)), (Lid(5), Lid(2))]);
        assert_eq!(server.census(), (2, 2));
        set_lid(&mut net, 8);
        server.tell_changes(&mut net);
        assert_eq!(server.census(), (2, 0));
    }

    /// A packet of a host with a datagram of subnet management that would have all packets to a LID
    /// go by port 2: by directed route over its own port, or to the switch's LID.
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
        Frame::of_datagram(&datagram, Psn::new(1))
    }

    /// Who merely attaches is a host: it reads, and sets nothing unless it was granted.
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
        let (_socket, mut board) = attached(&mut server, &mut net, 1);
        let mut send = |net: &mut Net, is_directed, method| {
            let Frame::Packet(bytes) = set_routes(is_directed, method) else { unreachable!() };
            assert!(board.up.send_bytes(tag::PACKET, &[], &bytes));
            let before = net.came(end);
            server.receive(Time::START, net);
            net.advance(Time::START);
            while let Some(delivery) = net.poll_delivery() {
                net.give(delivery);
            }
            net.came(end) - before
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

    /// Says to a process that a test starts which part it plays.
    const ROLE: &str = "POLLUX_FEW_DESCRIPTORS";

    /// The part of the process that the test below starts with few descriptors.
    #[test]
    #[expect(clippy::disallowed_methods, reason = "a process that a test starts is told so")]
    fn in_a_process_of_few_descriptors() {
        if std::env::var(ROLE).is_err() {
            return;
        }
        let (mut server, mut net) = server("descriptors");
        let ([(sender, _a), (receiver, _b)], lane) = with_lane(&mut server, &mut net);
        let lent = sealed();
        let lend = |segment| sender.send(&Note::Expose { lane, segment }, Some(lent.as_fd()));
        let mut others = Vec::new();
        while let Ok(other) = lent.as_fd().try_clone_to_owned() {
            others.push(other);
        }
        assert!(lend(1));
        server.look(Time::START, &mut net);
        let drops = |net: &Net| net.subnet().nodes()[1].drops.of(NodeDrop::NoDescriptor);
        assert_eq!((server.census().0, drops(&net)), (2, 1), "it is no fault of the client's");
        let refused = Note::Mapped { lane, segment: 1, is_mapped: false };
        assert_eq!(mail(&sender), (vec![refused], 0));
        others.clear();
        assert!(lend(2));
        server.look(Time::START, &mut net);
        assert_eq!((mail(&receiver).1, drops(&net)), (1, 1));
    }

    #[test]
    fn who_lends_to_a_server_without_descriptors_keeps_its_place() {
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

    /// All that has come by a socket, but for lanes.
    fn mail(socket: &Socket) -> (Vec<Note>, usize) {
        let (mut notes, mut beside) = (Vec::new(), 0);
        while let Received::Note(note, fd) = socket.receive() {
            if !matches!(note, Note::Sends { .. } | Note::Receives { .. }) {
                beside += usize::from(fd.is_some());
                notes.push(note);
            }
        }
        (notes, beside)
    }

    /// Two clients with a lane from the first to the second, and its number.
    fn with_lane(server: &mut Server, net: &mut Net) -> ([(Socket, ClientBoard); 2], u64) {
        let mut ends = [1, 2].map(|host| attached(server, net, host));
        let words = [0xffff << 16 | 0x41 << 32, 2 << 32, 1];
        assert!(ends[0].1.up.send_bytes(tag::MESSAGE, &words, b"four"));
        server.receive(Time::START, net);
        let lanes: Vec<u64> = server.lanes.keys().copied().collect();
        assert_eq!(lanes.len(), 1);
        ends.iter().for_each(|(socket, _)| assert_eq!(mail(socket), (vec![], 0)));
        (ends, lanes[0])
    }

    fn sealed() -> Segment {
        let segment = Segment::create("test", 4096).unwrap();
        segment.seal().unwrap();
        segment
    }

    /// What a sender lends goes to the receiver of its lane, and whoever else asks gets nothing.
    #[test]
    fn a_segment_reaches_nobody_but_the_receiver_of_its_senders_lane() {
        let (mut server, mut net) = server("segments");
        let ([(sender, _a), (receiver, _b)], lane) = with_lane(&mut server, &mut net);
        let (snooper, _c) = seated(&mut server, &mut net, 2, 1, 1).unwrap();
        let segment = 7;
        let expose = Note::Expose { lane, segment };
        assert!(sender.send(&expose, Some(sealed().as_fd())));
        assert!(snooper.send(&Note::Mapped { lane, segment, is_mapped: true }, None));
        server.look(Time::START, &mut net);
        assert_eq!(mail(&receiver), (vec![expose.clone()], 1));
        assert_eq!((mail(&snooper), mail(&sender)), ((vec![], 0), (vec![], 0)));

        let mapped = Note::Mapped { lane, segment, is_mapped: true };
        let of_other = Note::Mapped { lane, segment: 8, is_mapped: true };
        for answer in [&of_other, &mapped, &mapped] {
            assert!(receiver.send(answer, None));
        }
        server.look(Time::START, &mut net);
        assert_eq!(mail(&sender), (vec![mapped], 0), "what was asked, and once");
        let withdraw = Note::Withdraw { lane, segment };
        assert!(sender.send(&withdraw, None));
        server.look(Time::START, &mut net);
        assert_eq!(mail(&receiver), (vec![withdraw], 0));
        assert_eq!(server.census(), (3, 1));

        // Another one's lane, and one that there is not.
        assert!(snooper.send(&Note::Expose { lane: lane + 1, segment }, Some(sealed().as_fd())));
        server.look(Time::START, &mut net);
        assert_eq!(server.census(), (3, 1));
        assert!(snooper.send(&expose, Some(sealed().as_fd())));
        server.look(Time::START, &mut net);
        assert_eq!((server.census(), mail(&receiver)), ((2, 1), (vec![], 0)));
    }

    /// Whoever says more than one thing of segments before the receiver answers, or lends what
    /// others could write to, is lost; the receiver is not.
    #[test]
    fn a_sender_cannot_flood_its_receiver_with_segments() {
        for what in ["twice", "unsealed", "no segment"] {
            let (mut server, mut net) = server("floods");
            let ([(sender, _a), (receiver, _b)], lane) = with_lane(&mut server, &mut net);
            let open = Segment::create("test", 4096).unwrap();
            let file = std::fs::File::open("/proc/self/exe").unwrap();
            let (first, fd, came) = match what {
                "twice" => (Some(sealed()), sealed().into_fd(), 1),
                "unsealed" => (None, open.into_fd(), 0),
                _ => (None, file.into(), 0),
            };
            if let Some(first) = first {
                assert!(sender.send(&Note::Expose { lane, segment: 1 }, Some(first.as_fd())));
            }
            assert!(sender.send(&Note::Expose { lane, segment: 2 }, Some(fd.as_fd())));
            server.look(Time::START, &mut net);
            assert_eq!((server.census(), mail(&receiver).1), ((1, 0), came), "{what}");
        }
    }

    /// The server cannot let others take what a client lends it, and takes none of it.
    #[test]
    fn what_is_lent_does_not_go_by_the_server() {
        let (mut server, mut net) = server("lent");
        let ([(_sender, mut a), (_receiver, mut b)], _) = with_lane(&mut server, &mut net);
        net.advance(Time::START);
        server.send(Time::START, &mut net);
        while b.down.receive(|_| ()) {}
        let before = net.subnet().nodes()[1].drops.of(NodeDrop::Unclaimed);
        let words = [LENT | 0xffff << 16 | 0x41 << 32, 2 << 32, 1];
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
        assert_eq!(server.census(), (1, 0));
    }

    /// What is in a lane keeps the server from sleeping, or wakes it.
    #[test]
    fn a_client_wakes_a_server_that_sleeps() {
        let (mut server, mut net) = server("sleeps");
        let (socket, mut board) = attached(&mut server, &mut net, 1);
        let hour = Duration::from_secs(3600);
        for _ in 0..IDLE_TURNS {
            assert_eq!((server.is_awake(), server.sleep(hour)), (true, Duration::ZERO));
            server.receive(Time::START, &mut net);
            server.send(Time::START, &mut net);
        }
        assert_eq!(server.sleep(hour), hour);
        assert!(board.up.send_bytes(99, &[1], &[]) && board.takes_waking());
        assert_eq!(server.sleep(hour), Duration::ZERO, "there is something");
        server.wake();
        assert!(!board.takes_waking());
        server.receive(Time::START, &mut net);
        assert!(server.is_awake() && socket.send(&Note::Wake, None));
        server.receive(Time::START, &mut net);
        assert_eq!(server.census(), (1, 0), "which is no reason to lose a client");
        assert_eq!(server.process_at(End { node: 1, port: 1 }), Some(std::process::id()));
    }
}
