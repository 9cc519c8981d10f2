//! The server: the subnet, its clients' ports, and what goes between them hop by hop.
//!
//! Whoever runs it calls [`Server::turn`] as long as there is something to do, and [`Server::wait`]
//! when there is not. Lanes are polled; sockets are looked at now and then. It decides little:
//! [`super::grants`] does, and the [`Net`]. Who comes and goes by the sockets is in `clients`.

mod clients;

use super::board::ServerBoard;
use super::direct::Granted;
use super::grants::{Grants, Verdict};
use super::note::Note;
use super::socket::{Socket, listen_at};
use super::tag;
use crate::frame::Frame;
use crate::head::{LENT, WORDS_MAX, route_bits, route_of};
use crate::net::Net;
use crate::time::Time;
use crate::topology::End;
use pollux_mem::lane::Entry;
use pollux_wire::packet::Packet;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::time::Duration;

/// Clients at a time; each has a dozen descriptors at the most, but for what it lends.
pub const CLIENTS_MAX: usize = 256;
/// Sockets that nobody has said anything by.
const STRANGERS_MAX: usize = 64;
/// Entries taken of a client in a turn, so that nobody who sends much keeps others from sending.
const BATCH: usize = 64;
/// Turns from one look at the sockets to the next.
const TURNS_PER_LOOK: u32 = 64;
/// How often lanes are asked what went by them, if nobody wants to know.
const SETTLE: Duration = Duration::from_secs(1);
/// The first nap when there is nothing to do; each next one is twice as long.
const NAP: Duration = Duration::from_micros(20);

/// A subnet, and the processes at its ports.
pub struct Server {
    path: PathBuf,
    listener: OwnedFd,
    net: Net,
    clients: BTreeMap<u32, Client>,
    strangers: VecDeque<Socket>,
    places: BTreeMap<End, u32>,
    /// Ports whose cables came out with their clients.
    unplugged: BTreeSet<End>,
    /// Who wants which segment of whom.
    fetches: Vec<(u32, u32, u32)>,
    grants: Grants,
    lanes: BTreeMap<u64, Granted>,
    client_last: u32,
    /// The net as of then has been told to the clients.
    epoch: u64,
    /// Somebody may have changed the net since.
    is_changed: bool,
    settled: Time,
    turns: u32,
    nap: Duration,
}

struct Client {
    socket: Socket,
    end: End,
    board: ServerBoard,
    /// What it lends, by number, and who has it. The first is the table.
    lent: BTreeMap<u32, (OwnedFd, BTreeSet<u32>)>,
    /// What the lane down had no room for.
    outbox: VecDeque<Down>,
    is_lost: bool,
}

/// Something for a client.
enum Down {
    Frame(End, Frame),
    Say(u8, u64),
}

/// Something of a client.
enum Up {
    Frame(Frame),
    Switch(u64),
    Closed(u64),
    Rubbish,
}

impl Server {
    /// Serves a net at a path. Fails if somebody else does.
    pub fn bind(path: &Path, net: Net) -> io::Result<Self> {
        Ok(Self {
            path: path.into(),
            listener: listen_at(path)?,
            net,
            clients: BTreeMap::new(),
            strangers: VecDeque::new(),
            places: BTreeMap::new(),
            unplugged: BTreeSet::new(),
            fetches: Vec::new(),
            grants: Grants::default(),
            lanes: BTreeMap::new(),
            client_last: 0,
            epoch: 0,
            is_changed: true,
            settled: Time::START,
            turns: 0,
            nap: NAP,
        })
    }

    /// The net, with everything counted that went past it.
    pub fn net(&mut self) -> &Net {
        self.settle();
        &self.net
    }

    /// The net, to be changed: clients are told in the next turn.
    pub fn net_mut(&mut self) -> &mut Net {
        self.settle();
        self.is_changed = true;
        &mut self.net
    }

    /// How many clients there are, and direct lanes between them.
    pub fn census(&self) -> (usize, usize) {
        (self.clients.len(), self.lanes.len())
    }

    /// Does what there is to do; says whether there was anything.
    pub fn turn(&mut self, now: Time) -> bool {
        if self.turns == 0 {
            self.look(now);
        }
        self.turns = (self.turns + 1) % TURNS_PER_LOOK;
        self.tell_changes();
        let mut was_busy = false;
        let clients: Vec<u32> = self.clients.keys().copied().collect();
        for &client in &clients {
            was_busy |= self.take_up(now, client, BATCH);
        }
        self.net.advance(now);
        for &client in &clients {
            was_busy |= self.send_down(client);
        }
        if now >= self.settled + SETTLE {
            self.settled = now;
            self.settle();
        }
        if was_busy {
            self.nap = NAP;
        }
        was_busy
    }

    /// Waits until a socket has something, but no longer than for a nap, since what comes by lane
    /// wakes nobody. Naps grow up to `longest` while nothing happens.
    pub fn wait(&mut self, longest: Duration) -> io::Result<()> {
        let nap = self.nap.min(longest);
        self.nap = (self.nap * 2).min(longest.max(NAP));
        let sockets = self.clients.values().map(|client| &client.socket).chain(&self.strangers);
        let fds = sockets.map(AsFd::as_fd).chain([self.listener.as_fd()]);
        let mut fds: Vec<_> = fds.map(|fd| PollFd::from_borrowed_fd(fd, PollFlags::IN)).collect();
        let nap = Timespec { tv_sec: nap.as_secs() as i64, tv_nsec: nap.subsec_nanos().into() };
        match poll(&mut fds, Some(&nap)) {
            Ok(0) | Err(rustix::io::Errno::INTR) => Ok(()),
            Ok(_) => {
                self.turns = 0;
                Ok(())
            }
            Err(error) => Err(error.into()),
        }
    }

    // ---------------------------------------------------------------- what changed

    /// Counts what may have changed ports.
    pub fn epoch(&self) -> u64 {
        self.net.epoch()
    }

    /// Tells clients of their ports, and ends the lanes whose way is not what it was: now and not
    /// with the next turn.
    pub fn tell_changes(&mut self) {
        if !self.is_changed && self.epoch == self.net.epoch() {
            return;
        }
        (self.is_changed, self.epoch) = (false, self.net.epoch());
        let (net, clients) = (&self.net, &self.clients);
        let changed = self.grants.all(|grant| {
            let from = clients.get(&grant.from).map(|client| client.end);
            let way = from.and_then(|from| net.way(from, route_of(grant.route)));
            way.as_ref() != Some(&grant.way)
        });
        changed.into_iter().for_each(|lane| self.end_lane(lane));
        let wants_packets = self.net.wants_packets();
        for client in self.clients.values_mut() {
            client.board.set_port(&self.net.port(client.end));
            client.board.set_wants_packets(wants_packets);
        }
    }

    /// Counts what went past the net since the last time.
    fn settle(&mut self) {
        for (number, lane) in &mut self.lanes {
            settle_lane(&mut self.net, &mut self.grants, *number, lane);
        }
    }

    // ---------------------------------------------------------------- traffic

    /// Takes what a client has sent; says whether there was anything.
    fn take_up(&mut self, now: Time, number: u32, most: usize) -> bool {
        let mut was_busy = false;
        for _ in 0..most {
            let Some(client) = self.clients.get_mut(&number) else { break };
            let end = client.end;
            let mut up = None;
            if !client.board.up.receive(|entry| up = Some(up_of(entry))) {
                break;
            }
            was_busy = true;
            match up {
                Some(Up::Frame(frame)) => {
                    let route = match &frame {
                        Frame::Message(message) => {
                            Some(route_bits(message.word(0), message.word(1)))
                        }
                        Frame::Packet(_) => None,
                    };
                    self.net.send(now, end, frame);
                    if let Some(route) = route {
                        self.consider(number, end, route);
                    }
                }
                Some(Up::Switch(lane)) => {
                    self.net.advance(now);
                    if let Some(to) = self.grants.begin(number, lane) {
                        self.say(to, tag::OPEN, lane);
                    }
                }
                Some(Up::Closed(lane)) => {
                    if self.grants.lane(lane).is_some_and(|grant| grant.from == number) {
                        self.end_lane(lane);
                    }
                }
                Some(Up::Rubbish) | None => {
                    let node = self.net.subnet_mut().node_mut(end.node);
                    node.drops.count(crate::node::NodeDrop::Unclaimed);
                }
            }
        }
        was_busy
    }

    /// Sends a client what has come for it, as far as there is room; says whether there was
    /// anything.
    fn send_down(&mut self, number: u32) -> bool {
        let Some(client) = self.clients.get_mut(&number) else { return false };
        let mut was_busy = false;
        for _ in 0..BATCH {
            if client.outbox.is_empty() {
                let taken = self.net.take(client.end);
                client.outbox.extend(taken.map(|(origin, frame)| Down::Frame(origin, frame)));
            }
            let Some(next) = client.outbox.front() else { break };
            let down = &mut client.board.down;
            let went = match next {
                Down::Say(what, lane) => down.send_octets(*what, &[*lane], &[]),
                Down::Frame(_, Frame::Packet(octets)) => down.send_octets(tag::PACKET, &[], octets),
                Down::Frame(origin, Frame::Message(message)) => {
                    let mut head = [0; WORDS_MAX];
                    let head = &mut head[..message.words()];
                    head.copy_from_slice(message.head());
                    if head[0] & LENT != 0 {
                        let lender = self.places.get(origin).copied().unwrap_or(0);
                        head[2] = head[2] & 0xffff_ffff | u64::from(lender) << 32;
                    }
                    down.send_octets(tag::MESSAGE, head, message.payload())
                }
            };
            if !went {
                break;
            }
            client.outbox.pop_front();
            was_busy = true;
        }
        was_busy
    }

    /// Says something to a client behind all that has come for it.
    fn say(&mut self, number: u32, what: u8, lane: u64) {
        let Some(client) = self.clients.get_mut(&number) else { return };
        while let Some((origin, frame)) = self.net.take(client.end) {
            client.outbox.push_back(Down::Frame(origin, frame));
        }
        client.outbox.push_back(Down::Say(what, lane));
    }

    /// Says something to a client by its socket. One that reads nothing there is no client.
    fn tell(&mut self, number: u32, note: &Note, beside: Option<&OwnedFd>) -> bool {
        let Some(client) = self.clients.get_mut(&number) else { return false };
        if !client.socket.send(note, beside.map(AsFd::as_fd)) {
            client.is_lost = true;
            return false;
        }
        self.say(number, tag::MAIL, 0);
        true
    }

    // ---------------------------------------------------------------- lanes

    /// Grants a lane for a route that has traffic, if one may be.
    fn consider(&mut self, from: u32, end: End, route: u64) {
        if self.grants.has(from, route) {
            return;
        }
        let Some(way) = self.net.way(end, route_of(route)) else { return };
        let to = way.end().and_then(|end| self.places.get(&end)).copied();
        let Some(to) = to else { return };
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
                let Ok((granted, fd)) = Granted::create() else { return };
                let lane = self.grants.grant(from, to, route, way);
                self.lanes.insert(lane, granted);
                let receives = Note::Receives { lane, route, client: from };
                let are_told = self.tell(to, &receives, Some(&fd))
                    && self.tell(from, &Note::Sends { lane, route }, Some(&fd));
                if !are_told {
                    self.end_lane(lane);
                }
            }
        }
    }

    /// A lane ends now: what is in it is taken, and nothing more.
    fn end_lane(&mut self, number: u64) {
        if let Some(mut lane) = self.lanes.remove(&number) {
            lane.close();
            settle_lane(&mut self.net, &mut self.grants, number, &mut lane);
        }
        if let Some(grant) = self.grants.end(number) {
            self.say(grant.to, tag::CLOSE, number);
        }
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        // Nobody else may have taken the path, as long as the listener is there.
        let _ = rustix::fs::unlink(&self.path);
    }
}

fn settle_lane(net: &mut Net, grants: &mut Grants, number: u64, lane: &mut Granted) {
    let [packets, words] = lane.went();
    if let Some(grant) = grants.lane(number).filter(|_| packets > 0) {
        net.count(&grant.way, packets, words);
    }
    grants.used(number, packets);
}

/// What a client has sent, whatever it wrote.
fn up_of(entry: &Entry<'_>) -> Up {
    let octets = || {
        let mut octets = Vec::with_capacity(entry.octets());
        entry.read(|part| octets.extend_from_slice(part));
        octets
    };
    match entry.tag() {
        tag::SWITCH => Up::Switch(entry.head(0)),
        tag::CLOSED => Up::Closed(entry.head(0)),
        tag::PACKET => {
            let octets = octets();
            if Packet::parse(&octets).is_ok() {
                Up::Frame(Frame::Packet(octets))
            } else {
                Up::Rubbish
            }
        }
        tag::MESSAGE if (3..=WORDS_MAX).contains(&entry.head_words()) => {
            let mut head = [0; WORDS_MAX];
            let head = &mut head[..entry.head_words()];
            head.iter_mut().enumerate().for_each(|(nth, word)| *word = entry.head(nth));
            // Management goes as packets, and whom it comes from is not the client's to say.
            head[1] &= !(0xff << 24);
            head[2] &= 0xffff_ffff;
            let octets = octets();
            Up::Frame(Frame::message(head, octets.len(), |all| all.copy_from_slice(&octets)))
        }
        _ => Up::Rubbish,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::link::fault::Dice;
    use crate::link::world::Wire;
    use crate::process::board::ClientBoard;
    use crate::process::loans::Loans;
    use crate::process::socket::Received;
    use crate::subnet::Subnet;
    use crate::topology::Topology;
    use pollux_wire::address::Lid;
    use pollux_wire::mad::smp::{LinearForwardingTable, PortState};

    /// Two hosts at a switch, with the LIDs 1 and 2 behind the ports of these numbers.
    fn server(name: &str) -> Server {
        let mut subnet = Subnet::new(Topology::generate("single:2", 1).unwrap());
        for node in 0..3 {
            let ports = subnet.node_mut(node).ports.iter_mut();
            ports.for_each(|port| port.info.port_state = PortState::ACTIVE);
        }
        let tables = subnet.node_mut(0).forwarding.as_mut().unwrap();
        let ports = LinearForwardingTable { ports: std::array::from_fn(|lid| lid as u8) };
        assert!(tables.set_linear_block(0, &ports));
        tables.info.linear_fdb_top = Lid(63);
        let wire = Wire { latency: Duration::ZERO, ..Wire::default() };
        let path = std::env::temp_dir().join(format!("pollux-{name}-{}", std::process::id()));
        Server::bind(&path, Net::new(subnet, 1, wire)).unwrap()
    }

    fn attached(server: &mut Server, host: u32) -> (Socket, ClientBoard) {
        let socket = Socket::connect(&server.path).unwrap();
        let node = format!("host{host}");
        let loans = Loans::new().unwrap();
        assert!(socket.send(&Note::Attach { node, port: 1 }, Some(loans.as_fd())));
        server.look(Time::START);
        let Received::Note(Note::Attached { .. }, Some(fd)) = socket.receive() else {
            panic!("it is not attached")
        };
        (socket, ClientBoard::open(fd).unwrap())
    }

    /// Rubbish in lanes and at sockets stops nobody but who wrote it.
    #[test]
    fn whatever_a_client_writes_is_counted_or_thrown_away() {
        let (mut server, mut dice) = (server("rubbish"), Dice::new(1));
        for _ in 0..200 {
            let (socket, mut board) = attached(&mut server, 1);
            let (_victim, _board) = attached(&mut server, 2);
            for _ in 0..100 {
                let head: Vec<u64> = (0..dice.below(15)).map(|_| dice.roll()).collect();
                let octets: Vec<u8> = (0..dice.below(600)).map(|_| dice.roll() as u8).collect();
                let _ = board.up.send_octets(dice.below(8) as u8, &head, &octets);
                // To the other host, by its LID.
                let words = [dice.roll(), 2 << 32 | dice.below(1 << 24), dice.roll()];
                let _ = board.up.send_octets(tag::MESSAGE, &words, &octets);
                server.turn(Time::START);
            }
            assert!(server.census().1 <= super::super::grants::LANES_MAX);
            let segment = dice.roll() as u32;
            let note = match dice.below(4) {
                0 => Note::Fetch { client: segment % 8, segment: segment >> 16 },
                1 => Note::Lend { segment },
                2 => Note::Forget { segment },
                _ => Note::Attached { client: segment },
            };
            let _ = socket.send(&note, None);
            server.look(Time::START);
            drop((socket, _victim));
            server.look(Time::START);
            assert_eq!(server.census(), (0, 0));
            for node in 0..3 {
                let ports = server.net_mut().subnet_mut().node_mut(node).ports.iter_mut();
                ports.for_each(|port| port.info.port_state = PortState::ACTIVE);
            }
        }
    }
}
