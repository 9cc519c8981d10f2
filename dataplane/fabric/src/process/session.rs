//! A client at its port: what it sends by which lane, and what it takes from which, in what order.
//!
//! Direct lanes come before the server's: what a peer gave to the server it gave later than what is
//! in its direct lane, for it takes to a direct lane only once (see [`super`]). What is lent waits
//! at the head of its lane until its segment has been fetched, which takes a round trip to the
//! server once a segment.

use super::board::ClientBoard;
use super::direct::{In, Out};
use super::loans::{Borrowed, Loans, News, TABLE};
use super::note::Note;
use super::socket::{Received, Socket};
use super::tag;
use crate::frame::{Arrival, sges_of};
use crate::hca::Adapter;
use crate::hca::violation::KeyViolation;
use crate::head::{LENT, is_management, route_bits};
use crate::lend::Lends;
use crate::time::Time;
use pollux_mem::lane::Entry;
use std::collections::{BTreeMap, BTreeSet};
use std::os::fd::{AsFd, OwnedFd};

/// Lenders that are remembered; beyond that, those that are gone are forgotten.
const KNOWN_MAX: usize = 1024;

/// The server is gone, or makes no sense.
#[derive(Debug)]
pub(super) struct Lost;

/// A client at its port.
pub(super) struct Session {
    socket: Socket,
    pub(super) board: ClientBoard,
    outs: Vec<Out>,
    /// The one that was used last.
    out_last: usize,
    ins: Vec<In>,
    in_next: usize,
    /// Lanes that the server has not said OPEN of.
    coming: BTreeMap<u64, In>,
    lenders: Lenders,
    /// There is something at the socket.
    has_mail: bool,
}

/// Peers that have lent something.
#[derive(Default)]
struct Lenders {
    known: BTreeMap<u32, Borrowed>,
    /// Client and segment of what was asked for and has not come.
    asked: BTreeSet<(u32, u32)>,
    /// What is to be asked for.
    asks: Vec<(u32, u32)>,
}

impl Session {
    pub(super) fn new(socket: Socket, board: ClientBoard) -> Self {
        Self {
            socket,
            board,
            outs: Vec::new(),
            out_last: 0,
            ins: Vec::new(),
            in_next: 0,
            coming: BTreeMap::new(),
            lenders: Lenders::default(),
            has_mail: false,
        }
    }

    /// Whether the socket should be looked at before it is time to.
    #[inline]
    pub(super) fn wants_mail(&self) -> bool {
        self.has_mail || !self.lenders.asked.is_empty()
    }

    // ---------------------------------------------------------------- sending

    #[inline(always)]
    pub(super) fn send_octets(&mut self, head: &[u64], octets: &[u8]) -> bool {
        match self.direct(head) {
            Some(out) => out.send_octets(head, octets),
            None => {
                let went = self.board.up.send_octets(tag::MESSAGE, head, octets);
                wake(&self.board, &self.socket);
                went
            }
        }
    }

    #[inline(always)]
    pub(super) fn send_message(
        &mut self,
        loans: &Loans,
        head: &[u64],
        octets: usize,
        fill: impl FnMut(&mut [u8]),
    ) -> bool {
        if head[0] & LENT != 0 && !self.tell(loans) {
            return false;
        }
        match self.direct(head) {
            Some(out) => out.send(head, octets, fill),
            None => {
                let went = self.board.up.send(tag::MESSAGE, head, octets, fill);
                wake(&self.board, &self.socket);
                went
            }
        }
    }

    pub(super) fn send_packet(&mut self, octets: &[u8]) -> bool {
        let went = self.board.up.send_octets(tag::PACKET, &[], octets);
        wake(&self.board, &self.socket);
        went
    }

    /// Tells the server of a key that did not match. Without room for that it goes untold.
    pub(super) fn report(&mut self, violation: &KeyViolation) {
        let number = u64::from(violation.trap_number.0);
        let octets = violation.details().emit();
        let _ = self.board.up.send_octets(tag::VIOLATION, &[number], &octets);
        wake(&self.board, &self.socket);
    }

    /// Tells the server what is lent; says whether all is told. Who receives what is lent asks the
    /// server for it, which has to know it then.
    pub(super) fn tell(&self, loans: &Loans) -> bool {
        loans.tell(|news| match news {
            News::Lend(segment, lent) => {
                self.socket.send(&Note::Lend { segment: *segment }, Some(lent.as_fd()))
            }
            News::Forget(segment) => self.socket.send(&Note::Forget { segment: *segment }, None),
        })
    }

    /// The direct lane for a message, if there is one now. Management goes by the server, where
    /// the agents of its port are.
    #[inline(always)]
    fn direct(&mut self, head: &[u64]) -> Option<&mut Out> {
        if is_management(head[0]) {
            return None;
        }
        let route = route_bits(head[0], head[1]);
        let last = self.outs.get(self.out_last);
        let is_last = last.is_some_and(|out| out.route == route && out.is_begun && out.is_open());
        let at = if is_last { self.out_last } else { self.find_out(route)? };
        self.out_last = at;
        self.outs.get_mut(at)
    }

    #[cold]
    fn find_out(&mut self, route: u64) -> Option<usize> {
        let at = self.outs.iter().position(|out| out.route == route)?;
        let out = &mut self.outs[at];
        if !out.is_open() {
            if say(&mut self.board, &self.socket, tag::CLOSED, out.number) {
                self.outs.swap_remove(at);
            }
            return None;
        }
        // Without room the server's lane is stuck, and nothing goes past it.
        out.is_begun = out.is_begun || say(&mut self.board, &self.socket, tag::SWITCH, out.number);
        out.is_begun.then_some(at)
    }

    // ---------------------------------------------------------------- receiving

    /// Hands the next thing that has come to the adapter; says whether there was any.
    #[inline]
    pub(super) fn receive(&mut self, now: Time, adapter: &mut Adapter, room: &mut Vec<u8>) -> bool {
        for _ in 0..self.ins.len() {
            if self.in_next >= self.ins.len() {
                self.in_next = 0;
            }
            let from = &mut self.ins[self.in_next];
            self.in_next += 1;
            if from.receive(now, adapter, &mut self.lenders, room) {
                return true;
            }
        }
        self.board.down.has_entry() && self.receive_down(now, adapter, room)
    }

    /// The next thing that the server has sent.
    #[cold]
    fn receive_down(&mut self, now: Time, adapter: &mut Adapter, room: &mut Vec<u8>) -> bool {
        // One may have become ready just before what the server sent.
        if self.ins.iter().any(|from| from.lane.has_entry()) {
            return false;
        }
        let (lenders, mut said) = (&mut self.lenders, None);
        let received = self.board.down.receive_if(|entry| match entry.tag() {
            tag::PACKET => {
                room.clear();
                entry.read(|part| room.extend_from_slice(part));
                adapter.handle_packet(now, room);
                true
            }
            tag::MESSAGE => {
                // Whom it comes from stands where the receiver looks for nothing.
                let client = (entry.head(2) >> 32) as u32;
                take(entry, client, now, adapter, lenders, room)
            }
            other => {
                said = Some((other, entry.head(0)));
                true
            }
        });
        match said {
            Some((tag::OPEN, number)) => self.begin_in(number),
            Some((tag::CLOSE, number)) => self.end_in(number, now, adapter, room),
            Some((tag::MAIL, _)) => self.has_mail = true,
            _ => {}
        }
        received
    }

    /// A lane begins to be looked at.
    fn begin_in(&mut self, number: u64) {
        if !self.coming.contains_key(&number) {
            // It was sent before this was said. If the server is lost, the next look will tell.
            let _ = self.read_mail();
        }
        self.ins.extend(self.coming.remove(&number));
    }

    /// A lane ends with what is in it.
    fn end_in(&mut self, number: u64, now: Time, adapter: &mut Adapter, room: &mut Vec<u8>) {
        self.coming.remove(&number);
        let Some(at) = self.ins.iter().position(|from| from.number == number) else { return };
        let mut from = self.ins.swap_remove(at);
        for _ in 0..super::board::SLOTS {
            if !from.receive(now, adapter, &mut self.lenders, room) {
                break;
            }
        }
    }

    // ---------------------------------------------------------------- the socket

    /// Takes what the server has said by the socket, and asks for what is needed.
    pub(super) fn read_mail(&mut self) -> Result<(), Lost> {
        self.has_mail = false;
        loop {
            match self.socket.receive() {
                Received::Nothing => break,
                Received::End => return Err(Lost),
                Received::Note(note, beside) => self.take_note(note, beside),
            }
        }
        for (client, segment) in std::mem::take(&mut self.lenders.asks) {
            if !self.socket.send(&Note::Fetch { client, segment }, None) {
                // There will be room, or an end.
                self.lenders.asks.push((client, segment));
            }
        }
        // What the server has closed is given up also where nothing is sent.
        for at in (0..self.outs.len()).rev() {
            let out = &self.outs[at];
            if !out.is_open() && say(&mut self.board, &self.socket, tag::CLOSED, out.number) {
                self.outs.swap_remove(at);
            }
        }
        Ok(())
    }

    fn take_note(&mut self, note: Note, beside: Option<OwnedFd>) {
        match (note, beside) {
            (Note::Sends { lane, route }, Some(fd)) => {
                self.outs.extend(Out::open(fd, lane, route));
            }
            (Note::Receives { lane, route, client }, Some(fd)) => {
                // The number may be that of one who is gone, given anew.
                self.lenders.known.retain(|other, known| *other != client || !known.is_gone());
                self.coming.extend(In::open(fd, lane, route, client).map(|from| (lane, from)));
            }
            (Note::Lent { client, segment }, fd) => self.lenders.take(client, segment, fd),
            (Note::Gone { client, segment: TABLE }, _) => self.lenders.lose(client),
            (Note::Gone { client, segment }, _) => self.lenders.take(client, segment, None),
            _ => {}
        }
    }
}

/// Says something of a lane.
fn say(board: &mut ClientBoard, socket: &Socket, what: u8, number: u64) -> bool {
    let went = board.up.send_octets(what, &[number], &[]);
    wake(board, socket);
    went
}

/// Wakes the server if it sleeps: there is something in the lane up.
#[inline]
fn wake(board: &ClientBoard, socket: &Socket) {
    if board.takes_waking() {
        // Without room the server has enough to wake it.
        let _ = socket.send(&Note::Wake, None);
    }
}

impl In {
    /// Hands the next message to the adapter; says whether there was any.
    #[inline(always)]
    fn receive(
        &mut self,
        now: Time,
        adapter: &mut Adapter,
        lenders: &mut Lenders,
        room: &mut Vec<u8>,
    ) -> bool {
        let (route, client) = (self.route, self.client);
        self.lane.receive_if(|entry| {
            let is_granted = route_bits(entry.head(0), entry.head(1)) == route;
            if entry.tag() != tag::MESSAGE || !is_granted {
                adapter.handle_message(now, None);
                return true;
            }
            take(entry, client, now, adapter, lenders, room)
        })
    }
}

/// Hands a message to the adapter; says whether it is done with. One that is lent waits for its
/// segment.
#[inline(always)]
fn take(
    entry: &Entry<'_>,
    client: u32,
    now: Time,
    adapter: &mut Adapter,
    lenders: &mut Lenders,
    room: &mut Vec<u8>,
) -> bool {
    if adapter.take_usual(now, entry) {
        return true;
    }
    if entry.head(0) & LENT == 0 {
        adapter.handle_message(now, Arrival::of_entry(entry, None, room).as_ref());
        return true;
    }
    take_lent(entry, client, now, adapter, lenders, room)
}

#[cold]
fn take_lent(
    entry: &Entry<'_>,
    client: u32,
    now: Time,
    adapter: &mut Adapter,
    lenders: &mut Lenders,
    room: &mut Vec<u8>,
) -> bool {
    room.clear();
    entry.read(|part| room.extend_from_slice(part));
    if !lenders.are_ready(client, room) {
        return false;
    }
    let lender = lenders.known.get(&client).map(|borrowed| borrowed as &dyn Lends);
    adapter.handle_message(now, Arrival::of_entry(entry, lender, room).as_ref());
    true
}

impl Lenders {
    /// Whether what a message names can be looked at; asks for what is missing.
    fn are_ready(&mut self, client: u32, wheres: &[u8]) -> bool {
        let borrowed = self.known.entry(client).or_default();
        let missing = sges_of(wheres).find_map(|sge| borrowed.missing(sge.lkey));
        let Some(segment) = missing else { return true };
        if self.asked.insert((client, segment)) {
            self.asks.push((client, segment));
        }
        false
    }

    /// A lender is no more. What of it still comes is lost, and asks for nothing.
    fn lose(&mut self, client: u32) {
        self.asked.retain(|(other, _)| *other != client);
        if self.known.len() >= KNOWN_MAX {
            self.known.retain(|_, known| !known.is_gone());
        }
        let mut gone = Borrowed::default();
        gone.take(TABLE, None);
        self.known.insert(client, gone);
    }

    /// What was asked for has come, or there is none.
    fn take(&mut self, client: u32, segment: u32, fd: Option<OwnedFd>) {
        let was_asked = self.asked.remove(&(client, segment));
        match self.known.get_mut(&client) {
            Some(borrowed) => borrowed.take(segment, fd),
            // Nobody waits for what nothing was borrowed from.
            None if was_asked => self.known.entry(client).or_default().take(segment, fd),
            None => {}
        }
    }
}
