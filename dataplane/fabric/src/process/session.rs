//! A client at its port: what it sends by which lane, and what it takes from which, in what order.
//!
//! Rings are polled in turn, the server's as one among the direct ones, and each may give several
//! entries before the next has its turn: so no sender, however fast, keeps the others or the server
//! out. Nothing overtakes by that. A sender that has come back from a direct lane to the server's
//! said CLOSED before, and so the server's ring says CLOSE before it shows what came later; CLOSE
//! takes what is left in the lane.
//!
//! Nothing waits in a ring either: what cannot be taken when it comes, such as a message out of
//! memory that is not mapped, is thrown away. Senders lend only what is mapped ([`exposure`]).
//!
//! [`exposure`]: super::exposure

use super::board::ClientBoard;
use super::direct::{In, Out};
use super::exposure::Reach;
use super::loans::{Borrowed, Loans};
use super::note::Note;
use super::socket::{Received, Socket};
use super::tag;
use crate::frame::Arrival;
use crate::hca::Adapter;
use crate::hca::violation::KeyViolation;
use crate::head::{is_management, route_bits};
use crate::lend::Lends;
use crate::time::Time;
use pollux_mem::shared_ring::Entry;
use pollux_verbs::LKey;
use std::collections::{BTreeMap, VecDeque};
use std::os::fd::OwnedFd;
use std::sync::Arc;

/// Entries that a ring may give in a row while others wait.
const IN_A_ROW: u32 = 16;

/// The server is gone, or makes no sense.
#[derive(Debug)]
pub(super) struct Lost;

/// A client at its port.
pub(super) struct Session {
    socket: Socket,
    pub(super) board: ClientBoard,
    /// What the adapter lends.
    loans: Arc<Loans>,
    outs: Vec<Out>,
    /// The one that was used last.
    out_last: usize,
    ins: Vec<In>,
    /// Whose turn it is: one of `ins`, or behind them the server.
    turn: usize,
    /// Entries that it may still give.
    turn_left: u32,
    /// Lanes that the server has not said OPEN of.
    coming: BTreeMap<u64, In>,
    /// What senders of lanes asked, answered, as far as the socket had no room: one a lane.
    answers: VecDeque<Note>,
    /// There is something at the socket.
    has_mail: bool,
}

/// Where a message goes.
enum Path<'a> {
    /// By this lane, past the server.
    Direct(&'a mut Out),
    Server,
    /// Nowhere now: the server has to be told something first, and has no room.
    Full,
}

impl Session {
    pub(super) fn new(socket: Socket, board: ClientBoard, loans: Arc<Loans>) -> Self {
        Self {
            socket,
            board,
            loans,
            outs: Vec::new(),
            out_last: 0,
            ins: Vec::new(),
            turn: 0,
            turn_left: IN_A_ROW,
            coming: BTreeMap::new(),
            answers: VecDeque::new(),
            has_mail: false,
        }
    }

    /// Whether the socket should be looked at before it is time to.
    #[inline]
    pub(super) fn wants_mail(&self) -> bool {
        self.has_mail || !self.answers.is_empty()
    }

    // ---------------------------------------------------------------- sending

    #[inline(always)]
    pub(super) fn send_bytes(&mut self, head: &[u64], bytes: &[u8]) -> bool {
        match self.path(head) {
            Path::Direct(out) => out.send_bytes(head, bytes),
            Path::Full => false,
            Path::Server => {
                let went = self.board.up.send_bytes(tag::MESSAGE, head, bytes);
                wake(&self.board, &self.socket);
                went
            }
        }
    }

    #[inline(always)]
    pub(super) fn send_message(
        &mut self,
        head: &[u64],
        bytes: usize,
        fill: impl FnMut(&mut [u8]),
    ) -> bool {
        match self.path(head) {
            Path::Direct(out) => out.send(head, bytes, fill),
            Path::Full => false,
            Path::Server => {
                let went = self.board.up.send(tag::MESSAGE, head, bytes, fill);
                wake(&self.board, &self.socket);
                went
            }
        }
    }

    pub(super) fn send_packet(&mut self, bytes: &[u8]) -> bool {
        let went = self.board.up.send_bytes(tag::PACKET, &[], bytes);
        wake(&self.board, &self.socket);
        went
    }

    /// Tells the server of a key that did not match. Without room for that it goes untold.
    pub(super) fn report(&mut self, violation: &KeyViolation) {
        let number = u64::from(violation.trap_number.0);
        let bytes = violation.details().emit();
        let _ = self.board.up.send_bytes(tag::VIOLATION, &[number], &bytes);
        wake(&self.board, &self.socket);
    }

    /// Whether the receiver of a message with this head can copy it out of the regions of these
    /// keys; if it could and was not asked yet, it is asked.
    pub(super) fn lends(&mut self, head: [u64; 2], keys: &mut dyn Iterator<Item = LKey>) -> bool {
        if !matches!(self.path(&head), Path::Direct(_)) {
            return false;
        }
        let out = &mut self.outs[self.out_last];
        let segment = match out.exposure.reach(&self.loans, keys) {
            Reach::Lease => return true,
            Reach::Copy => return false,
            Reach::Asks(segment) => segment,
        };
        let note = Note::Expose { lane: out.number, segment };
        if self.loans.show(segment, |fd| self.socket.send(&note, Some(fd))) == Some(true) {
            out.exposure.asked(segment);
        }
        false
    }

    /// Has receivers give up what is lent no more.
    fn withdraw(&mut self) {
        for out in &mut self.outs {
            let Some(segment) = out.exposure.stale(&self.loans) else { continue };
            if self.socket.send(&Note::Withdraw { lane: out.number, segment }, None) {
                out.exposure.withdrew(segment);
            }
        }
    }

    /// Where a message goes. Management goes by the server, where the agents of its port are.
    #[inline(always)]
    fn path(&mut self, head: &[u64]) -> Path<'_> {
        if is_management(head[0]) {
            return Path::Server;
        }
        let route = route_bits(head[0], head[1]);
        let last = self.outs.get(self.out_last);
        let is_last = last.is_some_and(|out| out.route == route && out.is_begun && out.is_open());
        if is_last { Path::Direct(&mut self.outs[self.out_last]) } else { self.find_path(route) }
    }

    #[cold]
    fn find_path(&mut self, route: u64) -> Path<'_> {
        let at = self.outs.iter().position(|out| out.route == route);
        let Some(at) = at else { return Path::Server };
        let out = &mut self.outs[at];
        let (number, is_open) = (out.number, out.is_open());
        let what = if is_open { tag::SWITCH } else { tag::CLOSED };
        if is_open && out.is_begun {
            self.out_last = at;
            return Path::Direct(&mut self.outs[at]);
        }
        if !say(&mut self.board, &self.socket, what, number) {
            // Nothing goes by the server before it knows, even if there should be room now.
            return Path::Full;
        }
        if !is_open {
            self.outs.swap_remove(at);
            return Path::Server;
        }
        self.out_last = at;
        let out = &mut self.outs[at];
        out.is_begun = true;
        Path::Direct(out)
    }

    // ---------------------------------------------------------------- receiving

    /// Hands the next thing that has come to the adapter; says whether there was any.
    #[inline]
    pub(super) fn receive(&mut self, now: Time, adapter: &mut Adapter, room: &mut Vec<u8>) -> bool {
        // Every ring once, and the server's.
        for _ in 0..=self.ins.len() {
            if self.turn_left == 0 {
                self.turn = if self.turn < self.ins.len() { self.turn + 1 } else { 0 };
                self.turn_left = IN_A_ROW;
            }
            let took = match self.ins.get_mut(self.turn) {
                Some(from) => from.receive(now, adapter, room),
                None => self.board.down.has_entry() && self.receive_down(now, adapter, room),
            };
            if took {
                self.turn_left = self.turn_left.saturating_sub(1);
                return true;
            }
            self.turn_left = 0;
        }
        false
    }

    /// The next thing that the server has sent.
    #[cold]
    fn receive_down(&mut self, now: Time, adapter: &mut Adapter, room: &mut Vec<u8>) -> bool {
        let mut said = None;
        let received = self.board.down.receive(|entry| match entry.tag() {
            tag::PACKET => {
                room.clear();
                entry.read(|part| room.extend_from_slice(part));
                adapter.handle_packet(now, room);
            }
            tag::MESSAGE => take(entry, None, now, adapter, room),
            other => said = Some((other, entry.head()[0])),
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
            if !from.receive(now, adapter, room) {
                break;
            }
        }
    }

    // ---------------------------------------------------------------- the socket

    /// Takes what the server has said by the socket, and answers.
    pub(super) fn read_mail(&mut self) -> Result<(), Lost> {
        self.has_mail = false;
        loop {
            match self.socket.receive() {
                Received::Nothing => break,
                Received::End => return Err(Lost),
                Received::Note(note, beside) => self.take_note(note, beside),
                // Without its descriptor, what it says is there is not.
                Received::Truncated(note) => self.take_note(note, None),
            }
        }
        while let Some(answer) = self.answers.front() {
            if !self.socket.send(answer, None) {
                // There will be room, or an end.
                break;
            }
            self.answers.pop_front();
        }
        // What the server has closed is given up also where nothing is sent.
        for at in (0..self.outs.len()).rev() {
            let out = &self.outs[at];
            if !out.is_open() && say(&mut self.board, &self.socket, tag::CLOSED, out.number) {
                self.outs.swap_remove(at);
            }
        }
        self.withdraw();
        Ok(())
    }

    fn take_note(&mut self, note: Note, beside: Option<OwnedFd>) {
        match (note, beside) {
            (Note::Sends { lane, route, slot }, Some(fd)) => {
                let place = self.board.lanes.get(usize::from(slot));
                self.outs.extend(place.and_then(|place| Out::open(fd, lane, route, place)));
            }
            (Note::Receives { lane, route }, Some(fd)) => {
                self.coming.extend(In::open(fd, lane, route).map(|from| (lane, from)));
            }
            (Note::Expose { lane, segment }, fd) => {
                let borrowed = self.borrowed(lane);
                let is_mapped = borrowed.zip(fd).is_some_and(|(by, fd)| by.map(segment, fd));
                self.answers.push_back(Note::Mapped { lane, segment, is_mapped });
            }
            (Note::Withdraw { lane, segment }, _) => {
                if let Some(borrowed) = self.borrowed(lane) {
                    borrowed.unmap(segment);
                }
                self.answers.push_back(Note::Mapped { lane, segment, is_mapped: false });
            }
            (Note::Mapped { lane, segment, is_mapped }, _) => {
                let out = self.outs.iter_mut().find(|out| out.number == lane);
                if let Some(out) = out {
                    out.exposure.answered(segment, is_mapped, &self.loans);
                }
            }
            _ => {}
        }
    }

    /// What the sender of a lane lets us read.
    fn borrowed(&mut self, lane: u64) -> Option<&mut Borrowed> {
        let from = self.ins.iter_mut().chain(self.coming.values_mut());
        let mut of_lane = from.filter(|from| from.number == lane);
        of_lane.next().map(|from| &mut from.borrowed)
    }
}

/// Says something of a lane.
fn say(board: &mut ClientBoard, socket: &Socket, what: u8, number: u64) -> bool {
    let went = board.up.send_bytes(what, &[number], &[]);
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
    fn receive(&mut self, now: Time, adapter: &mut Adapter, room: &mut Vec<u8>) -> bool {
        let Self { route, borrowed, lane, .. } = self;
        lane.receive(|entry| {
            let [first, second, ..] = entry.first_words();
            if entry.tag() != tag::MESSAGE || route_bits(first, second) != *route {
                adapter.handle_message(now, None);
                return;
            }
            take(entry, Some(borrowed), now, adapter, room);
        })
    }
}

/// Hands a message to the adapter. What is lent is taken from its lender, if there is one.
#[inline(always)]
fn take(
    entry: &Entry<'_>,
    lender: Option<&Borrowed>,
    now: Time,
    adapter: &mut Adapter,
    room: &mut Vec<u8>,
) {
    if !adapter.take_usual(now, entry) {
        // Management goes by the server, where its agents are, and never past it.
        let is_misplaced = lender.is_some() && is_management(entry.first_words()[0]);
        let lender = lender.map(|borrowed| borrowed as &dyn Lends);
        let arrival = Arrival::of_entry(entry, lender, room).filter(|_| !is_misplaced);
        adapter.handle_message(now, arrival.as_ref());
    }
}

#[cfg(test)]
mod tests {
    use super::super::board::{LanePlace, SLOTS, ServerBoard};
    use super::super::direct::Granted;
    use super::super::socket::{accept, listen_at, socket_path};
    use super::*;
    use crate::hca::port::{Drop as Reason, Port};
    use pollux_mem::{Memory, Segment, Words};
    use pollux_verbs::{
        Access, Completion, Cq, Qp, QpAttributes, QpInit, QpState, QpType, RecvRequest, Sge,
    };
    use pollux_wire::address::{Guid, Lid, Qpn};
    use pollux_wire::keys::{PKey, QKey};
    use pollux_wire::packet::{Deth, Opcode};
    use pollux_wire::psn::Psn;
    use std::os::fd::AsFd;
    use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

    const QKEY: QKey = QKey(0x1234);
    /// Partitions that the victim is a full member of; the sender is one of the first only.
    const PARTITIONS: [PKey; 2] = [PKey(0x8001), PKey(0x8002)];
    const LID: u64 = 2;

    /// A client with a server that only keeps both ends of what they share.
    fn session(name: &str) -> (Session, ServerBoard, Socket) {
        let path = std::env::temp_dir().join(format!("pollux-{name}-{}", std::process::id()));
        let listener = listen_at(&socket_path(&path)).unwrap();
        let socket = Socket::connect(&path).unwrap();
        let server = accept(listener.as_fd()).unwrap();
        std::fs::remove_file(socket_path(&path)).unwrap();
        let (board, fd) = ServerBoard::create(&port()).unwrap();
        let loans = Arc::new(Loans::new().unwrap());
        (Session::new(socket, ClientBoard::open(fd).unwrap(), loans), board, server)
    }

    fn port() -> Port {
        let mut port = Port::active(Lid(LID as u16), Guid(LID));
        port.pkeys = PARTITIONS.to_vec();
        port
    }

    /// An adapter with a queue pair for datagrams in each partition.
    struct Victim {
        adapter: Adapter,
        qps: [(Qp, Cq); 2],
        sge: Sge,
    }

    fn victim() -> Victim {
        let mut adapter = Adapter::new(port());
        let pd = adapter.create_pd().unwrap();
        let memory = Memory::private(4096).unwrap();
        let region = adapter.register(pd, &memory, Access::LOCAL_WRITE).unwrap();
        let sge = Sge { address: region.address, bytes: 128, lkey: region.lkey };
        let qps = [0, 1].map(|partition| {
            let cq = adapter.create_cq(4096).unwrap();
            let init = QpInit {
                qp_type: QpType::Ud,
                pd,
                send_cq: cq,
                recv_cq: cq,
                srq: None,
                send_requests_max: 1,
                recv_requests_max: 1,
                send_sges_max: 1,
                recv_sges_max: 1,
                inline_bytes_max: 0,
                signal_all: false,
            };
            let qp = adapter.create_qp(&init).unwrap();
            let to = |state| QpAttributes { state: Some(state), ..QpAttributes::default() };
            let init = QpAttributes {
                pkey_index: Some(partition),
                port: Some(1),
                qkey: Some(QKEY),
                ..to(QpState::Init)
            };
            adapter.modify_qp(qp, &init).unwrap();
            adapter.modify_qp(qp, &to(QpState::Rtr)).unwrap();
            let rts = QpAttributes { sq_psn: Some(Psn::new(0)), ..to(QpState::Rts) };
            adapter.modify_qp(qp, &rts).unwrap();
            adapter.post_recv(qp, &[RecvRequest { id: 0, sges: &[sge] }]).unwrap();
            (qp, cq)
        });
        Victim { adapter, qps, sge }
    }

    impl Victim {
        /// How many datagrams have come to the queue pair in a partition, where the next may come.
        fn came(&mut self, partition: usize) -> usize {
            let (qp, cq) = self.qps[partition];
            let mut out = [Completion::NOTHING];
            let came = self.adapter.poll(cq, &mut out).unwrap();
            if came > 0 {
                let request = RecvRequest { id: 0, sges: &[self.sge] };
                self.adapter.post_recv(qp, &[request]).unwrap();
            }
            came
        }

        /// The head of a datagram to the queue pair in a partition.
        fn datagram(&self, partition: usize) -> [u64; 4] {
            let dest_qp = self.adapter.qpn(self.qps[partition].0).unwrap();
            let opcode = u64::from(Opcode::UD_SEND_ONLY.0);
            let first = opcode | u64::from(PARTITIONS[partition].0) << 16;
            let deth = crate::head::deth_word(Deth { qkey: QKEY, src_qp: Qpn(0x99) });
            [first | u64::from(dest_qp.0) << 32, LID << 32 | 1 << 48, 1, deth]
        }
    }

    fn lane() -> (OwnedFd, LanePlace) {
        let line = || Words::private(16).unwrap();
        let place = LanePlace { state: line(), counters: line() };
        (Granted::create(0, place.clone()).unwrap().1, place)
    }

    /// The words of a direct lane's segment, as a sender without manners has them.
    fn words_of(fd: &OwnedFd) -> Words {
        let segment = Segment::from_fd(fd.try_clone().unwrap(), 1..=1 << 30).unwrap();
        Words::over(segment.map().unwrap())
    }

    /// The first word of the head of each entry.
    fn heads(words: &Words) -> impl Iterator<Item = &AtomicU64> {
        let all = words.as_slice();
        let identity = u64::from_be_bytes(*b"PLXLANE1");
        let lane = all.iter().position(|word| word.load(Ordering::Relaxed) == identity).unwrap();
        all[lane + 32..].iter().skip(2).step_by(16).take(SLOTS)
    }

    /// A sender that writes another partition over the one that was judged, in the middle of it.
    #[test]
    fn no_entry_is_taken_under_another_route_than_the_one_that_was_judged() {
        const EACH: usize = 5_000;
        let ((mut session, _board, _server), mut victim) = (session("flips"), victim());
        let (granted, other) = (victim.datagram(0), victim.datagram(1));
        let (fd, place) = lane();
        let route = route_bits(granted[0], granted[1]);
        assert_ne!(route, route_bits(other[0], other[1]));
        session.ins.push(In::open(fd.try_clone().unwrap(), 1, route).unwrap());
        let words = words_of(&fd);
        let mut sender = Out::open(fd, 1, route, &place).unwrap();
        let is_over = AtomicBool::new(false);
        let (mut sent, mut taken, mut under_other, mut refused) = (0, 0, 0, 0);
        std::thread::scope(|scope| {
            scope.spawn(|| {
                while !is_over.load(Ordering::Relaxed) {
                    for head in [&other, &granted] {
                        heads(&words).for_each(|word| word.store(head[0], Ordering::Relaxed));
                    }
                }
            });
            // Until the sender's changes have met enough entries before, and enough after the look.
            while taken < EACH || refused < EACH {
                assert!(sender.send_bytes(&granted, b"four"));
                assert!(session.receive(Time::START, &mut victim.adapter, &mut Vec::new()));
                sent += 1;
                (taken, under_other) = (taken + victim.came(0), under_other + victim.came(1));
                refused = victim.adapter.port().drops.of(Reason::Malformed("message")) as usize;
            }
            is_over.store(true, Ordering::Relaxed);
        });
        assert_eq!((taken + refused, under_other), (sent, 0));
    }

    /// Lanes that are never empty, and what the server says in between.
    #[test]
    fn a_sender_that_never_stops_keeps_nobody_from_the_servers_ring() {
        let ((mut session, mut board, _server), mut victim) = (session("fair"), victim());
        let head = victim.datagram(0);
        let route = route_bits(head[0], head[1]);
        let mut senders: Vec<Out> = (1..=4)
            .map(|number| {
                let (fd, place) = lane();
                session.ins.push(In::open(fd.try_clone().unwrap(), number, route).unwrap());
                Out::open(fd, number, route, &place).unwrap()
            })
            .collect();
        // A lane that opens, one that ends, word of mail, and a datagram for the other partition.
        let (fd, _) = lane();
        session.coming.insert(5, In::open(fd, 5, route).unwrap());
        for (what, number) in [(tag::OPEN, 5), (tag::CLOSE, 5), (tag::MAIL, 0)] {
            assert!(board.down.send_bytes(what, &[number], &[]));
        }
        assert!(board.down.send_bytes(tag::MESSAGE, &victim.datagram(1), b"four"));
        for sender in &mut senders {
            while sender.send_bytes(&head, b"four") {}
        }
        let mut polls = 0;
        while victim.came(1) == 0 {
            polls += 1;
            assert!(polls <= 4 * IN_A_ROW + 4, "the server's ring has no turn");
            assert!(session.receive(Time::START, &mut victim.adapter, &mut Vec::new()));
            for sender in &mut senders {
                // Without room it is full, as it shall be.
                let _ = sender.send_bytes(&head, b"four");
            }
        }
        assert!(session.has_mail && session.ins.len() == 4);
    }
}
