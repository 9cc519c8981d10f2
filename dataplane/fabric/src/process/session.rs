//! A client at its port: the ring of each sent message, and the order of received messages.
//!
//! The client polls its rings in turn, the server's ring and the direct ones, and takes a limited
//! number of entries per turn. So a fast sender does not block other senders or the server.
//! Messages stay in order: a sender that returns from a direct ring to the server's ring first
//! writes CLOSED, so the receiver gets CLOSE before later messages from the server. At CLOSE, it
//! first takes the remaining entries of the direct ring.
//!
//! No entry waits in a ring: an invalid message, for example in memory that is not mapped, is
//! dropped. Senders lease only segments that the receiver has mapped ([`exposure`]).
//!
//! [`exposure`]: super::exposure

use super::control_message::ControlMessage;
use super::direct::{DirectReceiver, DirectSender, deliver};
use super::exposure::TransferMode;
use super::port_page::ClientPage;
use super::shared_leases::{PeerLeases, SharedLeases};
use super::sleep_rate::SleepRate;
use super::socket::{ReceivedMessage, Socket};
use super::tag;
use super::wake_socket::{self, WakeSet};
use crate::time::Time;
use pollux_hca::Adapter;
use pollux_hca::head::{is_management, route_bits};
use pollux_hca::violation::KeyViolation;
use pollux_mem::sleep_word::barrier;
use pollux_verbs::LKey;
use std::collections::{BTreeMap, VecDeque};
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::time::Duration;

/// Entries that a ring may deliver in a row while other rings wait.
const ENTRIES_PER_TURN: u32 = 16;

/// The longest sleep of a client if a sender cannot wake it.
const UNWOKEN_SLEEP_MAX: Duration = Duration::from_millis(1);

/// The error when the server has ended, or sent an invalid message.
#[derive(Debug)]
pub(super) struct Lost;

pub(super) struct Session {
    pub(super) socket: Socket,
    pub(super) page: ClientPage,
    leases: Arc<SharedLeases>,
    senders: Vec<DirectSender>,
    /// The last used sender.
    sender_last: usize,
    receivers: Vec<DirectReceiver>,
    /// The ring of this turn: an index of `receivers`; the length of `receivers` is the server's
    /// ring.
    turn: usize,
    turn_left: u32,
    /// Rings that wait for their OPEN.
    announced: BTreeMap<u64, DirectReceiver>,
    /// Answers to the senders of rings that are not sent yet, at most one for each ring.
    answers: VecDeque<ControlMessage>,
    /// Whether the server has announced a control message at the socket.
    is_notified: bool,
    wake_set: Arc<WakeSet>,
    /// The last received wake socket, for the next announced ring.
    new_wake_socket: Option<(u64, OwnedFd)>,
    /// Whether senders must wake this client.
    is_asleep: bool,
    sleep_rate: SleepRate,
    /// Whether the server can wake this client.
    is_server_watched: bool,
    /// Whether the server and all senders can wake this client.
    can_be_woken: bool,
    /// Whether the descriptor has ended this sleep at least once.
    was_notified: bool,
}

enum Path<'a> {
    Direct(&'a mut DirectSender),
    Server,
    /// No path now: SWITCH or CLOSED must precede the message, and the server's ring is full.
    Full,
}

impl Session {
    pub(super) fn new(
        socket: Socket,
        page: ClientPage,
        leases: Arc<SharedLeases>,
        wake_set: Arc<WakeSet>,
    ) -> Self {
        let is_server_watched = wake_set.watch(&socket, wake_socket::SERVER);
        Self {
            socket,
            page,
            leases,
            senders: Vec::new(),
            sender_last: 0,
            receivers: Vec::new(),
            turn: 0,
            turn_left: ENTRIES_PER_TURN,
            announced: BTreeMap::new(),
            answers: VecDeque::new(),
            is_notified: false,
            wake_set,
            new_wake_socket: None,
            is_asleep: false,
            sleep_rate: SleepRate::default(),
            is_server_watched,
            can_be_woken: is_server_watched,
            was_notified: false,
        }
    }

    #[inline]
    pub(super) fn wants_socket(&self) -> bool {
        self.is_notified || !self.answers.is_empty()
    }

    // ---------------------------------------------------------------- sending

    #[inline(always)]
    pub(super) fn send_bytes(&mut self, head: &[u64], bytes: &[u8]) -> bool {
        match self.path(head) {
            Path::Direct(out) => out.send_bytes(head, bytes),
            Path::Full => false,
            Path::Server => {
                let sent = self.page.up.send_bytes(tag::MESSAGE, head, bytes);
                wake(&self.page, &self.socket);
                sent
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
                let sent = self.page.up.send(tag::MESSAGE, head, bytes, fill);
                wake(&self.page, &self.socket);
                sent
            }
        }
    }

    pub(super) fn send_packet(&mut self, bytes: &[u8]) -> bool {
        let sent = self.page.up.send_bytes(tag::PACKET, &[], bytes);
        wake(&self.page, &self.socket);
        sent
    }

    /// Reports a key violation to the server; drops the report if the ring is full.
    pub(super) fn report(&mut self, violation: &KeyViolation) {
        let number = u64::from(violation.trap_number.0);
        let bytes = violation.details().emit();
        let _ = self.page.up.send_bytes(tag::VIOLATION, &[number], &bytes);
        wake(&self.page, &self.socket);
    }

    /// Whether the receiver of a message with this head can copy the payload out of the regions
    /// with these keys. If not, exposes the next segment that the receiver needs.
    pub(super) fn can_lease(
        &mut self,
        head: [u64; 2],
        keys: &mut dyn Iterator<Item = LKey>,
    ) -> bool {
        if !matches!(self.path(&head), Path::Direct(_)) {
            return false;
        }
        let out = &mut self.senders[self.sender_last];
        let segment = match out.exposure.transfer_mode(&self.leases, keys) {
            TransferMode::Lease => return true,
            TransferMode::Copy => return false,
            TransferMode::CopyAndRequest(segment) => segment,
        };
        let message = ControlMessage::Expose { ring: out.number, segment };
        if self.leases.with_descriptor(segment, |fd| self.socket.send(&message, Some(fd)))
            == Some(true)
        {
            out.exposure.record_request(segment);
        }
        false
    }

    fn withdraw(&mut self) {
        for out in &mut self.senders {
            let Some(segment) = out.exposure.find_stale(&self.leases) else { continue };
            if self.socket.send(&ControlMessage::Withdraw { ring: out.number, segment }, None) {
                out.exposure.record_withdrawal(segment);
            }
        }
    }

    /// The ring for a message. Management uses the server's ring, because the agents of the port
    /// are at the server.
    #[inline(always)]
    fn path(&mut self, head: &[u64]) -> Path<'_> {
        if is_management(head[0]) {
            return Path::Server;
        }
        let route = route_bits(head[0], head[1]);
        let last = self.senders.get(self.sender_last);
        let is_last = last.is_some_and(|out| out.route == route && out.is_begun && out.is_open());
        if is_last {
            Path::Direct(&mut self.senders[self.sender_last])
        } else {
            self.find_path(route)
        }
    }

    #[cold]
    fn find_path(&mut self, route: u64) -> Path<'_> {
        let at = self.senders.iter().position(|out| out.route == route);
        let Some(at) = at else { return Path::Server };
        let out = &mut self.senders[at];
        let (number, is_open) = (out.number, out.is_open());
        let what = if is_open { tag::SWITCH } else { tag::CLOSED };
        if is_open && out.is_begun {
            self.sender_last = at;
            return Path::Direct(&mut self.senders[at]);
        }
        if !send_entry(&mut self.page, &self.socket, what, number) {
            // The server must get this entry before later messages, so they wait, too.
            return Path::Full;
        }
        if !is_open {
            self.senders.swap_remove(at);
            return Path::Server;
        }
        self.sender_last = at;
        let out = &mut self.senders[at];
        out.is_begun = true;
        Path::Direct(out)
    }

    // ---------------------------------------------------------------- sleeping

    /// Makes senders wake this client. The client must poll once more before it sleeps.
    #[cold]
    pub(super) fn fall_asleep(&mut self, now: Time) {
        self.take_notifications();
        let asks = self.sleep_rate.is_high(now);
        let mut needs_barrier = false;
        for from in &mut self.receivers {
            needs_barrier |= from.sleep.ask_for_fence(asks);
            from.sleep.fall_asleep();
        }
        // This has the fence that a sleep without a barrier needs.
        self.page.set_sleeps(true);
        (self.is_asleep, self.was_notified) = (true, false);
        let has_barrier = !needs_barrier || barrier();
        if !has_barrier {
            // Senders may not have seen the request for fences: the next sleep needs the barrier.
            self.receivers.iter_mut().for_each(|from| _ = from.sleep.ask_for_fence(false));
        }
        self.can_be_woken = has_barrier
            && self.is_server_watched
            && self.receivers.iter().all(|from| from.wake_socket.is_some());
    }

    /// Must be called when the descriptor has ended a sleep. The client polls next and mostly finds
    /// an entry, which ends the sleep for the senders, too. Without an entry, the second call ends
    /// it, because the sender of the notification does not end this sleep again. The next sleep
    /// takes the notification.
    pub(super) fn handle_wake_up(&mut self) {
        if std::mem::replace(&mut self.was_notified, true) {
            self.wake_up();
        }
    }

    /// Takes the notifications of all rings; only later ones end a sleep.
    fn take_notifications(&mut self) {
        let Self { wake_set, receivers, announced, is_notified, .. } = self;
        let rings = || receivers.iter().chain(announced.values());
        wake_set.ready(|number| match rings().find(|from| from.number == number) {
            Some(from) => from.wake_socket.iter().for_each(wake_socket::clear),
            None => *is_notified |= number == wake_socket::SERVER,
        });
    }

    pub(super) fn is_asleep(&self) -> bool {
        self.is_asleep
    }

    pub(super) fn sleep_max(&self) -> Duration {
        if self.is_asleep && self.can_be_woken { Duration::MAX } else { UNWOKEN_SLEEP_MAX }
    }

    #[cold]
    fn wake_up(&mut self) {
        self.receivers.iter_mut().for_each(|from| from.sleep.wake_up());
        self.page.set_sleeps(false);
        self.is_asleep = false;
    }

    // ---------------------------------------------------------------- receiving

    #[inline]
    pub(super) fn receive(&mut self, now: Time, adapter: &mut Adapter, buf: &mut Vec<u8>) -> bool {
        // Every direct ring once, and the server's ring.
        for _ in 0..=self.receivers.len() {
            if self.turn_left == 0 {
                self.turn = if self.turn < self.receivers.len() { self.turn + 1 } else { 0 };
                self.turn_left = ENTRIES_PER_TURN;
            }
            let took = match self.receivers.get_mut(self.turn) {
                Some(from) => from.receive(now, adapter, buf),
                None => self.page.down.has_entry() && self.receive_down(now, adapter, buf),
            };
            if took {
                if self.is_asleep {
                    self.wake_up();
                }
                self.turn_left = self.turn_left.saturating_sub(1);
                return true;
            }
            self.turn_left = 0;
        }
        false
    }

    #[cold]
    fn receive_down(&mut self, now: Time, adapter: &mut Adapter, buf: &mut Vec<u8>) -> bool {
        let mut control = None;
        let received = self.page.down.receive(|entry| match entry.tag() {
            tag::PACKET => {
                buf.clear();
                entry.read(|part| buf.extend_from_slice(part));
                adapter.handle_packet(now, buf);
            }
            tag::MESSAGE => deliver(entry, None, now, adapter, buf),
            other => control = Some((other, entry.head()[0])),
        });
        match control {
            Some((tag::OPEN, number)) => self.open_receiver(number),
            Some((tag::CLOSE, number)) => self.close_receiver(number, now, adapter, buf),
            Some((tag::NOTIFY, _)) => self.is_notified = true,
            _ => {}
        }
        received
    }

    fn open_receiver(&mut self, number: u64) {
        if !self.announced.contains_key(&number) {
            // The announcement was sent before OPEN. If the server is lost, the next read says so.
            let _ = self.read_socket();
        }
        self.receivers.extend(self.announced.remove(&number));
    }

    /// Receives the remaining entries of a ring, and removes it.
    fn close_receiver(&mut self, number: u64, now: Time, adapter: &mut Adapter, buf: &mut Vec<u8>) {
        let at = self.receivers.iter().position(|from| from.number == number);
        if at.is_none() && !self.announced.contains_key(&number) {
            // The announcement was sent before CLOSE; read later, it would never be removed.
            let _ = self.read_socket();
        }
        self.announced.remove(&number);
        let Some(at) = at else { return };
        let mut from = self.receivers.swap_remove(at);
        for _ in 0..super::port_page::SLOTS {
            if !from.receive(now, adapter, buf) {
                break;
            }
        }
    }

    // ---------------------------------------------------------------- the socket

    /// Handles the control messages of the server, and answers.
    pub(super) fn read_socket(&mut self) -> Result<(), Lost> {
        self.is_notified = false;
        loop {
            match self.socket.receive() {
                ReceivedMessage::Nothing => break,
                ReceivedMessage::End => return Err(Lost),
                ReceivedMessage::Message(message, descriptor) => {
                    self.handle_control(message, descriptor);
                }
                // A message without its descriptor is invalid.
                ReceivedMessage::Truncated(message) => self.handle_control(message, None),
            }
        }
        while let Some(answer) = self.answers.front() {
            if !self.socket.send(answer, None) {
                break;
            }
            self.answers.pop_front();
        }
        // A ring that the server has closed must end even if its sender has nothing to send.
        for at in (0..self.senders.len()).rev() {
            let out = &self.senders[at];
            if !out.is_open() && send_entry(&mut self.page, &self.socket, tag::CLOSED, out.number) {
                self.senders.swap_remove(at);
            }
        }
        self.withdraw();
        Ok(())
    }

    fn handle_control(&mut self, message: ControlMessage, descriptor: Option<OwnedFd>) {
        match (message, descriptor) {
            (ControlMessage::Sends { ring, route, slot }, Some(fd)) => {
                let wake = self.wake_socket_of(ring);
                let ends = self.page.rings.get(usize::from(slot)).zip(wake);
                self.senders.extend(
                    ends.and_then(|(at, wake)| DirectSender::open(fd, ring, route, at, wake)),
                );
            }
            (ControlMessage::Receives { ring, route }, Some(fd)) => {
                let wake = self.wake_socket_of(ring);
                let wake = wake.filter(|wake| self.wake_set.watch(wake, ring));
                self.announced
                    .extend(DirectReceiver::open(fd, ring, route, wake).map(|from| (ring, from)));
            }
            // The server wakes a client once for each sleep. Reading Wake ends the sleep, so that
            // the next sleep sets the word in the page again.
            (ControlMessage::Wake, _) => self.wake_up(),
            (ControlMessage::WakeSocket { ring }, Some(fd)) => {
                self.new_wake_socket = Some((ring, fd));
            }
            (ControlMessage::Expose { ring, segment }, fd) => {
                let peer_leases = self.peer_leases(ring);
                let is_mapped = peer_leases.zip(fd).is_some_and(|(by, fd)| by.map(segment, fd));
                self.answers.push_back(ControlMessage::Mapped { ring, segment, is_mapped });
            }
            (ControlMessage::Withdraw { ring, segment }, _) => {
                self.peer_leases(ring).into_iter().for_each(|by| by.unmap(segment));
                self.answers.push_back(ControlMessage::Mapped { ring, segment, is_mapped: false });
            }
            (ControlMessage::Mapped { ring, segment, is_mapped }, _) => {
                if let Some(out) = self.senders.iter_mut().find(|out| out.number == ring) {
                    out.exposure.handle_answer(segment, is_mapped, &self.leases);
                }
            }
            _ => {}
        }
    }

    fn wake_socket_of(&mut self, ring: u64) -> Option<OwnedFd> {
        let (of, wake) = self.new_wake_socket.take()?;
        (of == ring).then_some(wake)
    }

    fn peer_leases(&mut self, ring: u64) -> Option<&mut PeerLeases> {
        let from = self.receivers.iter_mut().chain(self.announced.values_mut());
        let mut of_ring = from.filter(|from| from.number == ring);
        of_ring.next().map(|from| &mut from.peer_leases)
    }
}

fn send_entry(page: &mut ClientPage, socket: &Socket, what: u8, number: u64) -> bool {
    let sent = page.up.send_bytes(what, &[number], &[]);
    wake(page, socket);
    sent
}

/// Wakes the server for an entry in the ring up, if it sleeps.
#[inline]
fn wake(page: &ClientPage, socket: &Socket) {
    if page.take_wake_request() {
        // If the socket is full, its other messages wake the server.
        let _ = socket.send(&ControlMessage::Wake, None);
    }
}

#[cfg(test)]
mod tests {
    use super::super::direct::Granted;
    use super::super::port_page::{RingState, SLOTS, ServerPage};
    use super::super::socket::{accept, socket_path};
    use super::*;
    use crate::listen::listen_at;
    use pollux_hca::port::{DropReason, Port};
    use pollux_mem::{Memory, Segment, Words};
    use pollux_verbs::{
        Access, Completion, Cq, Qp, QpAttributes, QpInit, QpState, QpType, RecvRequest, Sge,
    };
    use pollux_wire::address::{Guid, Lid, Qpn};
    use pollux_wire::keys::{PKey, QKey};
    use pollux_wire::mad::smp::PortState;
    use pollux_wire::packet::{Deth, Opcode};
    use pollux_wire::psn::Psn;
    use rustix::net::SocketType;
    use std::os::fd::AsFd;
    use std::sync::atomic::{AtomicU64, Ordering};
    use std::sync::mpsc::{self, TryRecvError};

    const QKEY: QKey = QKey(0x1234);
    /// Partitions that the victim is a full member of. The sender is a member of the first only.
    const PARTITIONS: [PKey; 2] = [PKey(0x8001), PKey(0x8002)];
    const LID: u64 = 2;

    /// A client, and the server's ends of page and socket.
    fn session(name: &str) -> (Session, ServerPage, Socket) {
        let path = std::env::temp_dir().join(format!("pollux-{name}-{}", std::process::id()));
        let listener = listen_at(&socket_path(&path), SocketType::SEQPACKET).unwrap();
        let socket = Socket::connect(&path).unwrap();
        let server = accept(listener.as_fd()).unwrap();
        std::fs::remove_file(socket_path(&path)).unwrap();
        let (page, fd) = ServerPage::create(&port()).unwrap();
        let leases = Arc::new(SharedLeases::new().unwrap());
        let wake_set = Arc::new(WakeSet::new().unwrap());
        (Session::new(socket, ClientPage::open(fd).unwrap(), leases, wake_set), page, server)
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
        /// The number of datagrams that the queue pair in a partition has received; posts a
        /// receive.
        fn received(&mut self, partition: usize) -> usize {
            let (qp, cq) = self.qps[partition];
            let mut out = [Completion::NOTHING];
            let count = self.adapter.poll(cq, &mut out).unwrap();
            if count > 0 {
                let request = RecvRequest { id: 0, sges: &[self.sge] };
                self.adapter.post_recv(qp, &[request]).unwrap();
            }
            count
        }

        /// The head of a datagram to the queue pair in a partition.
        fn datagram(&self, partition: usize) -> [u64; 4] {
            let dest_qp = self.adapter.qpn(self.qps[partition].0).unwrap();
            let opcode = u64::from(Opcode::UD_SEND_ONLY.0);
            let first = opcode | u64::from(PARTITIONS[partition].0) << 16;
            let deth = pollux_hca::head::deth_word(Deth { qkey: QKEY, src_qp: Qpn(0x99) });
            [first | u64::from(dest_qp.0) << 32, LID << 32 | 1 << 48, 1, deth]
        }
    }

    fn ring() -> (OwnedFd, RingState) {
        let line = || Words::private(16).unwrap();
        let place = RingState { state: line(), counters: line() };
        (Granted::create(0, place.clone()).unwrap().1, place)
    }

    /// The words of a direct ring's segment, for a hostile sender.
    fn words_of(fd: &OwnedFd) -> Words {
        let segment = Segment::from_fd(fd.try_clone().unwrap(), 1..=1 << 30).unwrap();
        Words::over(segment.map().unwrap())
    }

    /// The first word of the head of each entry.
    fn heads(words: &Words) -> impl Iterator<Item = &AtomicU64> {
        let all = words.as_slice();
        let identity = u64::from_be_bytes(*b"PLXRING2");
        let ring = all.iter().position(|word| word.load(Ordering::Relaxed) == identity).unwrap();
        all[ring + 32..].iter().skip(2).step_by(16).take(SLOTS)
    }

    #[test]
    fn a_client_that_the_server_cannot_wake_sleeps_briefly() {
        let (mut session, _page, _server) = session("unwatched");
        session.fall_asleep(Time::START);
        assert_eq!(session.sleep_max(), Duration::MAX);
        let Session { socket, page, leases, wake_set, .. } = session;
        // The set has the socket already, so it refuses it.
        let mut session = Session::new(socket, page, leases, wake_set);
        session.fall_asleep(Time::START);
        assert_eq!(session.sleep_max(), UNWOKEN_SLEEP_MAX);
    }

    /// The server wakes a client once for each sleep. Once the notification is taken, the client
    /// must not count as asleep: a later entry would not wake it.
    #[test]
    fn a_notification_of_the_server_ends_a_sleep_for_any_reader() {
        let (mut session, mut page, server) = session("notified");
        session.page.changed_port();
        session.fall_asleep(Time::START);
        page.set_port(&Port { state: PortState::DOWN, ..port() });
        assert!(page.take_wake_request() && server.send(&ControlMessage::Wake, None));
        session.read_socket().unwrap();
        assert!(!session.is_asleep(), "it would sleep, and nobody would wake it again");
        session.fall_asleep(Time::START);
        assert!(session.page.changed_port().is_some() && page.take_wake_request());
    }

    /// The receiver has taken the entry already when it falls asleep, and the sender sees the sleep
    /// only then.
    #[test]
    fn a_notification_without_an_entry_ends_a_sleep_once_and_the_next_entry_ends_one() {
        let (mut session, _page, _server) = session("late");
        let mut senders = Vec::new();
        for number in [1, 2] {
            let ((near, far), (fd, place)) = (wake_socket::pair().unwrap(), ring());
            assert!(session.wake_set.watch(&near, number));
            let receiver =
                DirectReceiver::open(fd.try_clone().unwrap(), number, number, Some(near)).unwrap();
            session.receivers.push(receiver);
            senders.push(DirectSender::open(fd, number, number, &place, far).unwrap());
        }
        let ready = |session: &Session| {
            let mut ready = Vec::new();
            session.wake_set.ready(|number| ready.push(number));
            ready
        };
        session.fall_asleep(Time::START);
        for (sender, receiver) in senders.iter_mut().zip(&mut session.receivers) {
            assert!(sender.send_bytes(&[0, 0, 1], b"four"));
            assert!(receiver.ring.receive(|_| ()));
        }
        // As a device that waits.
        for _ in 0..3 {
            match session.is_asleep() {
                true => {
                    session.wake_set.sleep(Duration::from_secs(60));
                    session.handle_wake_up();
                }
                false => session.fall_asleep(Time::START),
            }
        }
        assert!(session.is_asleep() && ready(&session).is_empty(), "sleeps would end at once");
        assert!(senders[1].send_bytes(&[0, 0, 1], b"four"));
        assert_eq!(ready(&session), [2], "a lost wake-up");
    }

    /// A sender overwrites the P_Key of an entry while the receiver checks it.
    #[test]
    fn an_entry_is_received_only_with_the_route_that_was_checked() {
        const EACH: usize = 5_000;
        let ((mut session, _page, _server), mut victim) = (session("flips"), victim());
        let (granted, other) = (victim.datagram(0), victim.datagram(1));
        let (fd, place) = ring();
        let route = route_bits(granted[0], granted[1]);
        assert_ne!(route, route_bits(other[0], other[1]));
        session
            .receivers
            .push(DirectReceiver::open(fd.try_clone().unwrap(), 1, route, None).unwrap());
        let words = words_of(&fd);
        let wake_socket = wake_socket::pair().unwrap().1;
        let mut sender = DirectSender::open(fd, 1, route, &place, wake_socket).unwrap();
        let (going_on, is_over) = mpsc::channel::<()>();
        let (mut sent, mut taken, mut under_other, mut refused) = (0, 0, 0, 0);
        std::thread::scope(|scope| {
            // Dropped at the end of this scope, also by a panic: that ends the thread.
            let _going_on = going_on;
            scope.spawn(move || {
                while is_over.try_recv() == Err(TryRecvError::Empty) {
                    for head in [&other, &granted] {
                        heads(&words).for_each(|word| word.store(head[0], Ordering::Relaxed));
                    }
                }
            });
            // Until the changes have come before the check often enough, and after it often enough.
            while taken < EACH || refused < EACH {
                assert!(sender.send_bytes(&granted, b"four"));
                assert!(session.receive(Time::START, &mut victim.adapter, &mut Vec::new()));
                sent += 1;
                (taken, under_other) =
                    (taken + victim.received(0), under_other + victim.received(1));
                refused = victim.adapter.port().drops.of(DropReason::Malformed("message")) as usize;
            }
        });
        assert_eq!((taken + refused, under_other), (sent, 0));
    }

    /// The server opens and ends rings before a client reads its socket.
    #[test]
    fn a_ring_that_ends_before_its_announcement_was_read_leaves_no_state() {
        let ((mut session, mut page, server), mut victim) = (session("ended-unread"), victim());
        let head = victim.datagram(0);
        let route = route_bits(head[0], head[1]);
        for number in 1..=3 {
            let ((near, _far), (fd, _)) = (wake_socket::pair().unwrap(), ring());
            let wake_socket = ControlMessage::WakeSocket { ring: number };
            assert!(server.send(&wake_socket, Some(near.as_fd())));
            if number < 3 {
                let receives = ControlMessage::Receives { ring: number, route };
                assert!(server.send(&receives, Some(fd.as_fd())));
            }
            assert!(page.down.send_bytes(tag::CLOSE, &[number], &[]));
        }
        while session.receive(Time::START, &mut victim.adapter, &mut Vec::new()) {}
        session.read_socket().unwrap();
        assert!(session.receivers.is_empty() && session.announced.is_empty());
        // The wake socket of a ring that was never announced stays until the next one replaces it.
        assert_eq!(session.new_wake_socket.as_ref().map(|(ring, _)| *ring), Some(3));
    }

    /// Direct rings that are never empty do not block entries of the server.
    #[test]
    fn a_continuous_sender_does_not_block_the_servers_ring() {
        let ((mut session, mut page, _server), mut victim) = (session("fair"), victim());
        let head = victim.datagram(0);
        let route = route_bits(head[0], head[1]);
        let mut senders: Vec<DirectSender> = (1..=4)
            .map(|number| {
                let (fd, place) = ring();
                session.receivers.push(
                    DirectReceiver::open(fd.try_clone().unwrap(), number, route, None).unwrap(),
                );
                DirectSender::open(fd, number, route, &place, wake_socket::pair().unwrap().1)
                    .unwrap()
            })
            .collect();
        // The server's ring has OPEN, CLOSE, NOTIFY, and a datagram for the other partition.
        let (fd, _) = ring();
        session.announced.insert(5, DirectReceiver::open(fd, 5, route, None).unwrap());
        for (what, number) in [(tag::OPEN, 5), (tag::CLOSE, 5), (tag::NOTIFY, 0)] {
            assert!(page.down.send_bytes(what, &[number], &[]));
        }
        assert!(page.down.send_bytes(tag::MESSAGE, &victim.datagram(1), b"four"));
        for sender in &mut senders {
            while sender.send_bytes(&head, b"four") {}
        }
        let mut polls = 0;
        while victim.received(1) == 0 {
            polls += 1;
            assert!(polls <= 4 * ENTRIES_PER_TURN + 4, "the server's ring has no turn");
            assert!(session.receive(Time::START, &mut victim.adapter, &mut Vec::new()));
            for sender in &mut senders {
                // `false` means that the ring is full, which the test needs.
                let _ = sender.send_bytes(&head, b"four");
            }
        }
        assert!(session.is_notified && session.receivers.len() == 4);
    }
}
