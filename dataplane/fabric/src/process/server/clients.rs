//! Who comes and goes at a server, and what clients say by their sockets.

use super::naming::find_port;
use super::{CLIENTS_MAX, Client, Place, STRANGERS_MAX, Server};
use crate::hca::SEATS_MAX;
use crate::net::Net;
use crate::net::seats::Seat;
use crate::node::NodeDrop;
use crate::process::board::{SLOTS, ServerBoard};
use crate::process::grants::LANES_MAX;
use crate::process::note::{Attach, Note};
use crate::process::socket::{Received, Socket, accept};
use crate::time::Time;
use pollux_mem::Segment;
use std::collections::{BTreeMap, VecDeque};
use std::os::fd::{AsFd, OwnedFd};

/// Connections taken in a look: as many as there may be clients and strangers. More wait outside.
const ACCEPTED_MAX: usize = CLIENTS_MAX + STRANGERS_MAX;
/// Why a client is refused where this process is at its limits.
const NO_ROOM: &str = "the fabric has no memory or no descriptors left";
/// Notes taken of a client at a time: more than the lanes that it may have.
const NOTES: usize = 4 * LANES_MAX;

impl Server {
    /// Looks at all sockets.
    pub(super) fn look(&mut self, now: Time, net: &mut Net) {
        let clients: Vec<u32> = self.clients.keys().copied().collect();
        for number in clients {
            self.read(net, number);
        }
        let clients: Vec<u32> = self.clients.keys().copied().collect();
        for number in clients {
            if self.clients.get(&number).is_some_and(|client| client.is_lost) {
                self.detach(now, net, number);
            }
        }
        // Behind those who left: their places are free.
        self.ask_strangers(net);
        for _ in 0..ACCEPTED_MAX {
            let Some(stranger) = accept(self.listener.as_fd()) else { break };
            let silent = self.ask_stranger(net, stranger);
            self.strangers.extend(silent);
            if self.strangers.len() > STRANGERS_MAX {
                // Only one that has still said nothing is closed.
                self.ask_strangers(net);
                if self.strangers.len() > STRANGERS_MAX {
                    self.strangers.pop_front();
                }
            }
        }
    }

    fn ask_strangers(&mut self, net: &mut Net) {
        for stranger in std::mem::take(&mut self.strangers) {
            let silent = self.ask_stranger(net, stranger);
            self.strangers.extend(silent);
        }
    }

    /// Attaches a stranger, or closes it, as soon as it has said what it wants; gives it back if it
    /// has not.
    fn ask_stranger(&mut self, net: &mut Net, stranger: Socket) -> Option<Socket> {
        let refuse = |stranger: &Socket, reason: &str| {
            // Without room for that it will find the socket closed.
            let _ = stranger.send(&Note::Refused { reason: reason.into() }, None);
        };
        match stranger.receive() {
            Received::Nothing => return Some(stranger),
            Received::Note(Note::Attach(ask), _) => {
                if let Err((stranger, reason)) = self.attach(net, stranger, &ask) {
                    refuse(&stranger, &reason);
                }
            }
            Received::Truncated(_) => refuse(&stranger, NO_ROOM),
            Received::Note(..) | Received::End => {}
        }
        None
    }

    /// Puts a client to a port.
    fn attach(
        &mut self,
        net: &mut Net,
        socket: Socket,
        ask: &Attach,
    ) -> Result<(), (Socket, String)> {
        let seat = match self.find_seat(net, ask) {
            Ok(seat) => seat,
            Err(reason) => return Err((socket, reason)),
        };
        let end = seat.end;
        if self.unplugged.remove(&end) {
            net.set_cable(end, true);
        }
        let Ok((board, fd)) = ServerBoard::create(&net.port(end)) else {
            return Err((socket, NO_ROOM.into()));
        };
        let number = self.free_number();
        if !socket.send(&Note::Attached { client: number }, Some(fd.as_fd())) {
            return Err((socket, "the socket is full".into()));
        }
        board.set_wants_packets(net.wants_packets());
        net.claim(seat);
        let (held, taken, outbox, is_lost) = (None, 0, VecDeque::new(), false);
        let client = Client { socket, seat, board, held, taken, outbox, is_lost };
        self.clients.insert(number, client);
        let secret = ask.secret;
        let place = self.places.entry(end).or_insert(Place { secret, seats: BTreeMap::new() });
        place.seats.insert(seat.number, number);
        Ok(())
    }

    /// The seat that a client may have: any of a port where nobody is, and of others those that are
    /// free, if it knows what those know who are there.
    fn find_seat(&self, net: &Net, ask: &Attach) -> Result<Seat, String> {
        let topology = net.subnet().topology();
        let has_cable = |end| topology.peer(end).is_some() || net.is_foreign(end);
        let end = find_port(topology, has_cable, &ask.node, ask.port)?;
        if ask.seat >= SEATS_MAX {
            return Err("an adapter is not opened so often".into());
        }
        let place = self.places.get(&end);
        let is_free =
            |place: &Place| place.secret == ask.secret && !place.seats.contains_key(&ask.seat);
        if !place.is_none_or(is_free) {
            return Err("somebody is at this port".into());
        }
        if self.clients.len() >= CLIENTS_MAX {
            return Err("the fabric has as many clients as it may have".into());
        }
        Ok(Seat { end, number: ask.seat })
    }

    /// Numbers have sixteen bits, and 0 is nobody. There are fewer clients, so one is free.
    fn free_number(&mut self) -> u32 {
        loop {
            self.client_last = self.client_last % 0xffff + 1;
            if !self.clients.contains_key(&self.client_last) {
                return self.client_last;
            }
        }
    }

    /// Takes what a client says by its socket.
    fn read(&mut self, net: &mut Net, number: u32) {
        for _ in 0..NOTES {
            let Some(client) = self.clients.get_mut(&number) else { return };
            match client.socket.receive() {
                Received::Nothing => return,
                Received::Note(note @ (Note::Expose { .. } | Note::Withdraw { .. }), fd) => {
                    if !self.pass_question(net, number, &note, fd) {
                        self.lose(number);
                        return;
                    }
                }
                Received::Note(note @ Note::Mapped { .. }, _) => {
                    self.pass_answer(net, number, &note);
                }
                // Its lane is looked at next.
                Received::Note(Note::Wake, _) => {}
                // It lends, and we have no descriptor left for that: no fault of its own.
                Received::Truncated(note @ Note::Expose { .. }) => {
                    net.count_drop(client.seat.end, NodeDrop::NoDescriptor);
                    if !self.pass_question(net, number, &note, None) {
                        self.lose(number);
                        return;
                    }
                }
                Received::Note(..) | Received::Truncated(_) | Received::End => {
                    client.is_lost = true;
                    return;
                }
            }
        }
    }

    /// Passes on what the sender of a lane says to its receiver about a segment. False if that is
    /// not its lane, if the receiver has not answered what was said before, or if others could
    /// write to the segment.
    fn pass_question(
        &mut self,
        net: &mut Net,
        from: u32,
        note: &Note,
        beside: Option<OwnedFd>,
    ) -> bool {
        let (lane, segment) = match *note {
            Note::Expose { lane, segment } | Note::Withdraw { lane, segment } => (lane, segment),
            _ => return false,
        };
        // One that has ended meanwhile has nobody at its other end.
        let Some(grant) = self.grants.lane(lane) else { return true };
        let Some(granted) = self.lanes.get_mut(&lane) else { return true };
        let to = grant.to;
        if grant.from != from || !granted.ask(segment) {
            return false;
        }
        let is_exposed = matches!(note, Note::Expose { .. });
        if is_exposed && beside.is_none() {
            // There was no descriptor left for it to come by, which is not the client's fault.
            let answer = Note::Mapped { lane, segment, is_mapped: false };
            granted.answer(segment);
            return self.tell(net, from, &answer, None);
        }
        let Some(fd) = beside.filter(|_| is_exposed) else {
            self.tell(net, to, note, None);
            return true;
        };
        let sent = Segment::from_fd(fd, 1..=usize::MAX);
        let Some(sealed) = sent.ok().filter(Segment::is_sealed) else { return false };
        self.tell(net, to, note, Some(&sealed.into_fd()));
        true
    }

    /// Passes on what the receiver of a lane answers, if it was asked.
    fn pass_answer(&mut self, net: &mut Net, to: u32, note: &Note) {
        let Note::Mapped { lane, segment, .. } = *note else { return };
        let Some(grant) = self.grants.lane(lane).filter(|grant| grant.to == to) else { return };
        let from = grant.from;
        if self.lanes.get_mut(&lane).is_some_and(|granted| granted.answer(segment)) {
            self.tell(net, from, note, None);
        }
    }

    fn lose(&mut self, number: u32) {
        if let Some(client) = self.clients.get_mut(&number) {
            client.is_lost = true;
        }
    }

    /// A client is no more: what it sent goes on. Its cable comes out with the last at the port.
    fn detach(&mut self, now: Time, net: &mut Net, number: u32) {
        self.take_up(now, net, number, SLOTS);
        net.advance(now);
        self.grants.of_client(number).into_iter().for_each(|lane| self.end_lane(net, lane));
        let Some(client) = self.clients.remove(&number) else { return };
        net.detach(client.seat);
        let end = client.seat.end;
        let Some(place) = self.places.get_mut(&end) else { return };
        place.seats.remove(&client.seat.number);
        if place.seats.is_empty() {
            self.places.remove(&end);
            net.set_cable(end, false);
            self.unplugged.insert(end);
        }
    }
}
