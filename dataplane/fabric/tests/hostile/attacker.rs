//! A client that attaches to a fabric, writes anything into all memory that it maps, sends anything
//! by its socket, and attaches again when it is detached.

use pollux_fabric::process::control_message::{Attach, ControlMessage};
use pollux_fabric::process::socket::{ReceivedMessage, Socket};
use pollux_mem::seq_cell::words_needed;
use pollux_mem::shared_ring::{RingReceiver, RingSender, SharedRing};
use pollux_mem::{Memory, Segment, Words};
use pollux_verbs::rng::SeededRng;
use pollux_wire::address::{Lid, Qpn};
use pollux_wire::keys::{PKey, QKey};
use pollux_wire::packet::{Bth, Deth, Extended, Headers, Lnh, Lrh, Opcode};
use pollux_wire::psn::Psn;
use std::os::fd::{AsFd, OwnedFd};
use std::path::Path;
use std::sync::atomic::Ordering;

/// The actions, by the names under which they are counted.
pub const ACTS: [&str; 17] = [
    "garbage",
    "messages",
    "packets",
    "broken-packets",
    "page",
    "rings",
    "flips",
    "saturate",
    "cycle",
    "hog",
    "expose",
    "lies",
    "leases",
    "nonsense",
    "deaf",
    "attach",
    "snoop",
];
/// The outcome.
pub const OUTCOMES: [&str; 5] = ["detached", "refused", "ring-to", "ring-from", "found"];

/// The prefix of the data of honest clients.
pub const SECRET: &[u8; 16] = b"nobody's concern";

const SLOTS: usize = 1024;
const LINE: usize = 16;
/// Words of a table of leases: epochs, then four words to a region.
const EPOCHS: usize = 1024;
const TABLE_BYTES: usize = (EPOCHS + 4096 * 4) * 8;
type PortWords = [u64; 2 + 8 + 64];

/// The tags of entries that a client may send.
const MESSAGE: u8 = 0;
const PACKET: u8 = 1;
const SWITCH: u8 = 2;
const CLOSED: u8 = 3;
/// Flags of a head's first word.
const WHOLE: u64 = 1 << 10;
const LEASED: u64 = 1 << 11;

/// A direct ring of the attacker.
struct Out {
    number: u64,
    route: u64,
    words: Words,
    ring: RingSender,
}

impl Out {
    /// The first words of a datagram to a queue pair, by the route that the ring was granted for.
    fn words_to(&self, dest_qp: u64) -> [u64; 2] {
        let route = self.route;
        let first = route & (0xff << 56 | 0xe0_0000 << 32 | 0xffff << 16);
        [0x64 | first | dest_qp << 32, route & 0xffff << 32 | 4 << 48]
    }
}

/// The state of one attachment.
pub struct Attacker {
    socket: Socket,
    page: Words,
    up: RingSender,
    down: RingReceiver,
    outs: Vec<Out>,
    /// All other descriptors that it has received.
    given: Vec<Words>,
    borrowed: Vec<Memory>,
    table: Option<(Words, Segment)>,
    is_out: bool,
}

/// The counters.
#[derive(Default)]
pub struct Counts {
    pub acts: [u64; ACTS.len()],
    pub outcomes: [u64; OUTCOMES.len()],
}

impl Attacker {
    /// Attaches to a port; `None` if the server refuses at present.
    pub fn attach(path: &Path, node: &str, context: u8) -> Option<Self> {
        let socket = Socket::connect(path).ok()?;
        let ask = Attach { node: node.into(), port: Some(1), context, secret: 4711 };
        if !socket.send(&ControlMessage::Attach(ask), None) {
            return None;
        }
        loop {
            match socket.receive() {
                ReceivedMessage::Nothing => std::thread::yield_now(),
                ReceivedMessage::Message(ControlMessage::Attached { .. }, Some(fd)) => {
                    return Self::at(socket, fd);
                }
                _ => return None,
            }
        }
    }

    fn at(socket: Socket, fd: OwnedFd) -> Option<Self> {
        let page = map(fd)?;
        let mut words = page.clone();
        let ring = SharedRing::words(SLOTS)?;
        words.take(LINE)?;
        words.take(words_needed::<PortWords>())?;
        let up = SharedRing::open(words.take(ring)?).ok()?.sender();
        let down = SharedRing::open(words.take(ring)?).ok()?.receiver();
        let (outs, given, borrowed) = (Vec::new(), Vec::new(), Vec::new());
        Some(Self { socket, page, up, down, outs, given, borrowed, table: None, is_out: false })
    }

    /// Whether the server has detached it.
    pub fn is_out(&self) -> bool {
        self.is_out
    }

    /// Executes an action of the kind `act`, and reads arrived entries unless it is deaf.
    pub fn act(&mut self, act: usize, rng: &mut SeededRng, counts: &mut Counts) {
        counts.acts[act] += 1;
        match ACTS[act] {
            "garbage" => self.garbage(rng),
            "messages" => self.messages(rng),
            "packets" => self.packet(rng, false),
            "broken-packets" => self.packet(rng, true),
            "page" => scribble(&self.page, rng),
            "rings" => {
                let outs = self.outs.iter().map(|out| &out.words);
                outs.chain(&self.given).for_each(|words| scribble(words, rng));
            }
            "flips" => self.flip(rng),
            "saturate" => self.saturate(),
            "cycle" => self.cycle(rng),
            "hog" => self.hog(rng),
            "expose" => self.expose(rng),
            "lies" => self.lie(rng),
            "leases" => self.lease(rng),
            "nonsense" => self.say(&ControlMessage::Refused { reason: "you".into() }, None),
            "deaf" => {
                // To itself; no client receives it.
                for _ in 0..200 {
                    let head = [0x64 | 0xffff << 16 | 0x40 << 32, 4 << 32 | 4 << 48, 1, 0];
                    let _ = self.up.send_bytes(MESSAGE, &head, &[7; 8192]);
                }
                return;
            }
            "snoop" => counts.outcomes[4] += u64::from(self.finds_a_secret()),
            _ => self.is_out = true,
        }
        self.say(&ControlMessage::Wake, None);
        self.read(rng, counts);
    }

    fn garbage(&mut self, rng: &mut SeededRng) {
        let head: Vec<u64> = (0..rng.below(15)).map(|_| rng.next_u64()).collect();
        let bytes: Vec<u8> = (0..rng.below(16_384)).map(|_| rng.next_u64() as u8).collect();
        let _ = self.up.send_bytes(rng.below(10) as u8, &head, &bytes);
    }

    /// A head to a client, in the common partition or in one that is not its own.
    fn head(&self, rng: &mut SeededRng) -> Vec<u64> {
        let opcodes = [0x04, 0x24, 0x64, 0x06, 0x0a, 0x0c, 0x10, 0x11, 0x12, 0x13, 0x14, 0x00];
        let key = [0xffff, 0xffff, 0x8001][rng.below(3) as usize];
        let dest_qp = [0x41, 0x42, OWN_QPN, OPEN_QPN, 1, 0, 0xff_ffff][rng.below(7) as usize];
        let first = opcodes[rng.below(12) as usize] | rng.below(64) << 8 | key << 16;
        let second = rng.below(1 << 24) | (2 + rng.below(3)) << 32 | 4 << 48;
        let third = [1, 1, rng.next_u64()][rng.below(3) as usize];
        let mut head = vec![first | dest_qp << 32, second, third];
        head.extend((0..rng.below(6)).map(|_| rng.next_u64()));
        if rng.below(2) == 0 && head.len() > 3 {
            head[3] = deth(QKEY);
        }
        head
    }

    fn messages(&mut self, rng: &mut SeededRng) {
        for _ in 0..8 {
            let (head, bytes) = (self.head(rng), vec![7; rng.below(5000) as usize]);
            let _ = self.up.send_bytes(MESSAGE, &head, &bytes);
            self.open(rng.below(2), 0, 0xffff);
        }
    }

    fn packet(&mut self, rng: &mut SeededRng, breaks: bool) {
        let is_gsi = rng.below(2) == 0;
        let dlid = Lid([1, 2, 3, 4][rng.below(4) as usize]);
        let dest_qp = Qpn(if is_gsi { 1 } else { 0x40 + rng.below(4) as u32 });
        let qkey = if is_gsi { QKey::GSI } else { QKEY };
        let bth = Bth {
            opcode: Opcode::UD_SEND_ONLY,
            mig_req: true,
            pkey: PKey(0xffff),
            ..Bth::default()
        };
        let headers = Headers {
            lrh: Lrh { lnh: Lnh::LOCAL, dlid, slid: Lid(4), ..Lrh::default() },
            grh: None,
            bth: Bth { dest_qp, psn: Psn::new(1), ..bth },
            rd: None,
            extended: Extended::Deth(Deth { qkey, src_qp: Qpn(1) }),
        };
        let mut mad: Vec<u8> = (0..256).map(|_| rng.next_u64() as u8).collect();
        mad[0] = 1;
        mad[1] = [3, 4, 7, 0x32, 1][rng.below(5) as usize];
        let mut bytes = vec![0; 512];
        let Ok(len) = headers.emit(&mad, &mut bytes) else { return };
        if breaks {
            bytes[rng.below(len as u64) as usize] ^= 1 << rng.below(8);
        }
        let _ = self.up.send_bytes(PACKET, &[], &bytes[..len]);
    }

    /// Sends messages of the granted route by a ring, and overwrites their route while they are
    /// received: also with a partition that it is not in, and with the right keys of a queue pair
    /// there.
    fn flip(&mut self, rng: &mut SeededRng) {
        for out in &mut self.outs {
            let [first, second] = out.words_to(OPEN_QPN);
            let granted = [first, second, 1, deth(QKEY)];
            for _ in 0..64 {
                let _ = out.ring.send_bytes(MESSAGE, &granted, b"flip");
            }
            let own = 0x64 | 0x8001 << 16 | OWN_QPN << 32;
            let others = [
                [own, second, 1, deth(OWN_QKEY)],
                [first ^ 0x60_0000 << 32, second, 1, deth(QKEY)],
                [own ^ 1 << 32, second ^ 1 << 32, 1, deth(OWN_QKEY)],
                [rng.next_u64(), rng.next_u64(), rng.next_u64(), rng.next_u64()],
            ];
            let words = &out.words.as_slice()[2 * LINE..];
            for head in others.into_iter().flat_map(|other| [other, granted]).cycle().take(40) {
                for slot in words.chunks_exact(LINE).take(SLOTS) {
                    for (word, value) in slot[2..].iter().zip(head) {
                        word.store(value, Ordering::Relaxed);
                    }
                }
            }
        }
    }

    fn saturate(&mut self) {
        for out in &mut self.outs {
            let [first, second] = out.words_to(OPEN_QPN);
            while out.ring.send_bytes(MESSAGE, &[first, second, 1, deth(QKEY)], b"more") {}
        }
        let head = [0x64 | 0xffff << 16 | OPEN_QPN << 32, 2 << 32 | 4 << 48, 1, deth(QKEY)];
        while self.up.send_bytes(MESSAGE, &head, b"more") {}
    }

    /// Closes a ring, and the rings for its next datagrams before their receiver has read the
    /// announcement.
    fn cycle(&mut self, rng: &mut SeededRng) {
        let Some(out) = self.outs.pop() else { return };
        let _ = self.up.send_bytes(CLOSED, &[out.number], &[]);
        for next in 1..=24 {
            self.open(rng.below(2), 0, 0xffff);
            let _ = self.up.send_bytes(CLOSED, &[out.number + next], &[]);
        }
    }

    /// Requests rings to one client for all routes, and keeps them.
    fn hog(&mut self, rng: &mut SeededRng) {
        let to = rng.below(2);
        for top in 0..256 {
            self.open(to, top, 0xffff);
            self.open(to, top, 0x7fff);
        }
    }

    /// Sends messages of a ring's granted route.
    fn open(&mut self, to: u64, top: u64, key: u64) {
        let first = 0x64 | key << 16 | OPEN_QPN << 32 | top << 56;
        let _ = self.up.send_bytes(MESSAGE, &[first, (2 + to) << 32 | 4 << 48, 1, 0], b"open");
    }

    fn expose(&mut self, rng: &mut SeededRng) {
        let ring = self.ring(rng);
        let segment = rng.below(70) as u32;
        let bytes = [1, 4096, 1 << 20, 1 << 36][rng.below(4) as usize];
        // A segment of this length without accesses takes no memory.
        let Ok(one) = Segment::create("x", bytes) else { return };
        if rng.below(4) > 0 {
            let _ = one.seal();
        }
        self.say(&ControlMessage::Expose { ring, segment }, Some(&one));
    }

    fn lie(&mut self, rng: &mut SeededRng) {
        let (ring, segment) = (self.ring(rng), rng.below(70) as u32);
        for is_mapped in [true, false] {
            self.say(&ControlMessage::Mapped { ring, segment, is_mapped }, None);
        }
        self.say(&ControlMessage::Withdraw { ring, segment }, None);
    }

    fn ring(&self, rng: &mut SeededRng) -> u64 {
        match self.outs.get(rng.below(4) as usize) {
            Some(out) => out.number,
            None => rng.below(40),
        }
    }

    /// Leases memory that it keeps changing, in more pieces and regions than exist.
    fn lease(&mut self, rng: &mut SeededRng) {
        if self.table.is_none() {
            let Ok(segment) = Segment::create("t", TABLE_BYTES) else { return };
            let Ok(words) = segment.map() else { return };
            let _ = segment.seal();
            self.table = Some((Words::over(words), segment));
        }
        let Some((table, segment)) = &self.table else { return };
        let Some(out) = self.outs.first_mut() else { return };
        let message = ControlMessage::Expose { ring: out.number, segment: rng.below(3) as u32 };
        let is_there = self.socket.send(&message, Some(segment.as_fd()));
        let mut descriptor = vec![0; 8];
        for nth in 0..[1, 4, 33, 200][rng.below(4) as usize] {
            let key = (nth as u64 + 1) << 8;
            let address = [0x1000, rng.next_u64()][rng.below(2) as usize];
            descriptor.extend(address.to_le_bytes());
            descriptor.extend(
                (key | [16, 4096, u32::MAX.into()][rng.below(3) as usize] << 32).to_le_bytes(),
            );
            let words = &table.as_slice()[EPOCHS + nth * 4..];
            words[1].store(rng.below(3), Ordering::Relaxed);
            words[2].store(0x1000, Ordering::Relaxed);
            words[0].store(1 << 32 | key, Ordering::Release);
        }
        let first = 0x04 | WHOLE | LEASED | out.route & 0xffff << 16 | 0x41 << 32;
        let head = [first, out.route & 0xffff << 32 | rng.below(1 << 24), 1];
        let _ = out.ring.send_bytes(MESSAGE, &head, &descriptor);
        for word in table.as_slice().iter().take(EPOCHS + 800) {
            word.store(rng.next_u64(), Ordering::Relaxed);
        }
        self.is_out |= !is_there;
    }

    /// Whether any mapped memory has data that honest clients sent to each other.
    fn finds_a_secret(&self) -> bool {
        let mut bytes = Vec::new();
        let words = self.given.iter().chain([&self.page]);
        for word in words.flat_map(|words| words.as_slice()) {
            bytes.extend(word.load(Ordering::Relaxed).to_ne_bytes());
        }
        for memory in &self.borrowed {
            let from = bytes.len();
            bytes.resize(from + memory.bytes().min(1 << 22), 0);
            let _ = memory.read(0, &mut bytes[from..]);
        }
        bytes.windows(SECRET.len()).any(|part| part == SECRET)
    }

    fn say(&mut self, message: &ControlMessage, descriptor: Option<&Segment>) {
        self.is_out |= !self.socket.send(message, descriptor.map(AsFd::as_fd));
    }

    /// Takes arrived entries, control messages and descriptors.
    fn read(&mut self, rng: &mut SeededRng, counts: &mut Counts) {
        for _ in 0..SLOTS {
            if !self.down.receive(|_| ()) {
                break;
            }
        }
        loop {
            let (message, fd) = match self.socket.receive() {
                ReceivedMessage::Nothing => return,
                ReceivedMessage::End => return self.is_out = true,
                ReceivedMessage::Message(message, fd) => (message, fd),
                ReceivedMessage::Truncated(message) => (message, None),
            };
            match (message, fd.and_then(map)) {
                (ControlMessage::Sends { ring, route, .. }, Some(words)) => {
                    counts.outcomes[2] += 1;
                    let Ok(at) = SharedRing::open(words.clone()) else { continue };
                    let _ = self.up.send_bytes(SWITCH, &[ring], &[]);
                    self.outs.push(Out { number: ring, route, words, ring: at.sender() });
                }
                (ControlMessage::Receives { .. }, Some(words)) => {
                    counts.outcomes[3] += 1;
                    self.given.push(words);
                }
                (ControlMessage::Expose { ring, segment }, words) => {
                    self.given.extend(words);
                    let is_mapped = rng.below(2) == 0;
                    self.say(&ControlMessage::Mapped { ring, segment, is_mapped }, None);
                }
                _ => {}
            }
        }
    }
}

/// The Q_Key of the queue pairs that are open to it, the fourth of their adapters.
pub const QKEY: QKey = QKey(0x1234);
pub const OPEN_QPN: u64 = 0x44;
/// The Q_Key of the queue pairs for datagrams between honest clients, the third; the attacker knows
/// it.
pub const OWN_QKEY: QKey = QKey(0x4711);
pub const OWN_QPN: u64 = 0x43;

/// The DETH of a datagram with the right Q_Key.
fn deth(qkey: QKey) -> u64 {
    u64::from(qkey.0) | 0x40 << 32
}

fn map(fd: OwnedFd) -> Option<Words> {
    let segment = Segment::from_fd(fd, 1..=1 << 30).ok()?;
    segment.map().ok().map(Words::over)
}

/// Writes random words to random offsets.
fn scribble(words: &Words, rng: &mut SeededRng) {
    let all = words.as_slice();
    for _ in 0..rng.below(100) {
        let value = [rng.next_u64(), rng.below(4096), u64::MAX, 0][rng.below(4) as usize];
        all[rng.below(all.len() as u64) as usize].store(value, Ordering::Relaxed);
    }
}
