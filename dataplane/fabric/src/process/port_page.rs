//! The memory that a client shares with the server: the state of the port, and a ring in each
//! direction.
//!
//! ```text
//! line 0   word 0   counts changes of the port; the server writes
//!               1   whether the message bypass is off; the server writes
//!               2   whether the server sleeps and must be woken by the socket; the server writes
//!                   1, and the client that wakes it writes 0
//!               3   the same for the client
//! then     the state of the port, in a seqlock cell; the server writes
//!          the ring up (to the server), the ring down (to the client)
//!          two lines for each slot of a direct ring that the client sends on:
//!            the ring's number while it may be used, else 0; the server writes
//!            packets that messages replaced, and their words of four bytes; the client writes
//! ```
//!
//! The state of a direct ring is in this page and not in the ring's own segment, so that the
//! receiver of the ring cannot change it.
//!
//! A client can damage only its own traffic: the server reads only the client's sleep word, the
//! entries of the ring up, the counters of direct rings, and the read position of the ring down.

use super::PAGE_BYTES_MAX;
use super::grants::DIRECT_RINGS_MAX;
use pollux_hca::port::{DropCounts, LinkLayer, Port};
use pollux_mem::region::MapError;
use pollux_mem::seq_cell::{SeqReader, SeqWriter, words_needed};
use pollux_mem::shared_ring::{LONG_SLOTS_MAX, RingReceiver, RingSender, SharedRing};
use pollux_mem::words::LINE_WORDS;
use pollux_mem::{Segment, Words};
use pollux_wire::address::{Gid, Lid};
use pollux_wire::keys::PKey;
use pollux_wire::mad::smp::PortState;
use pollux_wire::units::Mtu;
use std::os::fd::OwnedFd;
use std::sync::atomic::{Ordering, fence};

/// Slots of a ring: enough for a burst, and few enough to stay in the caches.
pub(crate) const SLOTS: usize = 1024;
const _: () = assert!(SLOTS >= LONG_SLOTS_MAX);

const EPOCH: usize = 0;
const WANTS_PACKETS: usize = 1;
const SERVER_SLEEPS: usize = 2;
const CLIENT_SLEEPS: usize = 3;

const PKEYS: usize = 32;
const GIDS: usize = 32;
const PORT_WORDS: usize = 2 + PKEYS / 4 + GIDS * 2;

/// A port as words: two words of numbers, then P_Keys (four in a word), then GIDs (two words each).
type PortWords = [u64; PORT_WORDS];

fn words_of(port: &Port) -> PortWords {
    let mut words = [0; PORT_WORDS];
    words[0] = u64::from(port.state.0)
        | u64::from(port.lmc) << 8
        | u64::from(port.sm_sl) << 16
        | u64::from(port.mtu.0) << 24
        | u64::from(port.lid.0) << 32
        | u64::from(port.sm_lid.0) << 48;
    let (pkeys, gids) = (port.pkeys.len().min(PKEYS), port.gids.len().min(GIDS));
    words[1] = pkeys as u64 | (gids as u64) << 16 | u64::from(port.reregistrations) << 32;
    for (nth, pkey) in port.pkeys[..pkeys].iter().enumerate() {
        words[2 + nth / 4] |= u64::from(pkey.0) << (nth % 4 * 16);
    }
    for (nth, gid) in port.gids[..gids].iter().enumerate() {
        let (high, low) = ((u128::from_be_bytes(gid.0) >> 64) as u64, u128::from_be_bytes(gid.0));
        let at = 2 + PKEYS / 4 + nth * 2;
        (words[at], words[at + 1]) = (high, low as u64);
    }
    words
}

fn port_of(words: &PortWords) -> Port {
    let first = words[0];
    let (pkeys, gids) = (words[1] as u16 as usize, (words[1] >> 16) as u16 as usize);
    let pkey = |nth: usize| PKey((words[2 + nth / 4] >> (nth % 4 * 16)) as u16);
    let gid = |nth: usize| {
        let at = 2 + PKEYS / 4 + nth * 2;
        Gid((u128::from(words[at]) << 64 | u128::from(words[at + 1])).to_be_bytes())
    };
    Port {
        // All ports of a fabric are InfiniBand ports.
        link_layer: LinkLayer::InfiniBand,
        state: PortState(first as u8),
        lmc: (first >> 8) as u8,
        sm_sl: (first >> 16) as u8,
        mtu: Mtu((first >> 24) as u8),
        lid: Lid((first >> 32) as u16),
        sm_lid: Lid((first >> 48) as u16),
        pkeys: (0..pkeys.min(PKEYS)).map(pkey).collect(),
        gids: (0..gids.min(GIDS)).map(gid).collect(),
        reregistrations: (words[1] >> 32) as u32,
        drops: DropCounts::default(),
    }
}

#[derive(Clone)]
pub(crate) struct RingState {
    /// The ring's number while it may be used, else 0; the server writes.
    pub(crate) state: Words,
    /// Packets and words sent; the sender writes.
    pub(crate) counters: Words,
}

struct Layout {
    line: Words,
    port: Words,
    up: Words,
    down: Words,
    rings: Vec<RingState>,
}

fn bytes() -> usize {
    let ring = SharedRing::words(SLOTS).expect("a power of two");
    // The state and the counters of a direct ring take a line each. Three lines are for rounding up
    // the other parts to lines.
    let rings = 2 * DIRECT_RINGS_MAX * LINE_WORDS;
    (LINE_WORDS + words_needed::<PortWords>() + 2 * ring + 3 * LINE_WORDS + rings) * 8
}

fn layout(segment: &Segment) -> Result<Layout, MapError> {
    let mut words = Words::over(segment.map()?);
    let ring = SharedRing::words(SLOTS).expect("a power of two");
    let mut take = |count| words.take(count).expect("the segment's length was checked");
    Ok(Layout {
        line: take(LINE_WORDS),
        port: take(words_needed::<PortWords>()),
        up: take(ring),
        down: take(ring),
        rings: (0..DIRECT_RINGS_MAX)
            .map(|_| RingState { state: take(LINE_WORDS), counters: take(LINE_WORDS) })
            .collect(),
    })
}

pub(crate) struct ServerPage {
    line: Words,
    port: SeqWriter<PortWords>,
    written: PortWords,
    pub(crate) up: RingReceiver,
    pub(crate) down: RingSender,
    /// The slots of the direct rings that the client sends on.
    pub(crate) rings: Vec<RingState>,
}

impl ServerPage {
    pub(crate) fn create(port: &Port) -> Result<(Self, OwnedFd), MapError> {
        let segment = Segment::create("pollux-page", bytes())?;
        let Layout { line, port: cell, up, down, rings } = layout(&segment)?;
        let ring = |words| SharedRing::create(words, SLOTS).expect("the words are enough");
        let mut page = Self {
            line,
            port: SeqWriter::new(cell).expect("the words are enough"),
            written: [0; PORT_WORDS],
            up: ring(up).receiver(),
            down: ring(down).sender(),
            rings,
        };
        page.set_port(port);
        Ok((page, segment.into_fd()))
    }

    pub(crate) fn set_port(&mut self, port: &Port) {
        let words = words_of(port);
        if words == self.written {
            return;
        }
        self.written = words;
        self.port.write(&words);
        // Release: a client that reads the new count also reads the new port.
        self.line.as_slice()[EPOCH].fetch_add(1, Ordering::Release);
    }

    pub(crate) fn set_wants_packets(&self, wants: bool) {
        self.line.as_slice()[WANTS_PACKETS].store(wants.into(), Ordering::Release);
    }

    pub(crate) fn set_sleeps(&self, sleeps: bool) {
        set_sleeps(&self.line, SERVER_SLEEPS, sleeps);
    }

    /// Whether the client must be woken for a new entry of the ring down. True once for each sleep.
    pub(crate) fn take_wake_request(&self) -> bool {
        take_wake_request(&self.line, CLIENT_SLEEPS)
    }
}

/// Sets whether one side sleeps. After this call and before it sleeps, that side must poll its ring
/// once more: the poll finds every entry of a sender that did not see the store.
fn set_sleeps(line: &Words, word: usize, sleeps: bool) {
    line.as_slice()[word].store(sleeps.into(), Ordering::Relaxed);
    // Pairs with the fence of `take_wake_request`: either the load there sees this store, or the
    // next poll of this side sees the entry.
    fence(Ordering::SeqCst);
}

fn take_wake_request(line: &Words, word: usize) -> bool {
    fence(Ordering::SeqCst);
    let sleeps = &line.as_slice()[word];
    sleeps.load(Ordering::Relaxed) != 0 && sleeps.swap(0, Ordering::Relaxed) != 0
}

pub(crate) struct ClientPage {
    line: Words,
    port: SeqReader<PortWords>,
    seen: u64,
    pub(crate) up: RingSender,
    pub(crate) down: RingReceiver,
    pub(crate) rings: Vec<RingState>,
}

impl ClientPage {
    /// Maps the page of a server; `None` if it is invalid.
    pub(crate) fn open(fd: OwnedFd) -> Option<Self> {
        let segment = Segment::from_fd(fd, bytes()..=bytes() + PAGE_BYTES_MAX).ok()?;
        let Layout { line, port, up, down, rings } = layout(&segment).ok()?;
        let port = SeqReader::new(port)?;
        let (up, down) =
            (SharedRing::open(up).ok()?.sender(), SharedRing::open(down).ok()?.receiver());
        Some(Self { line, port, seen: 0, up, down, rings })
    }

    /// The port, if it has changed since the last call.
    #[inline]
    pub(crate) fn changed_port(&mut self) -> Option<Port> {
        let epoch = self.line.as_slice()[EPOCH].load(Ordering::Acquire);
        if epoch == self.seen {
            return None;
        }
        // If the server is writing now, the next call reads the port.
        let words = self.port.try_read()?;
        self.seen = epoch;
        Some(port_of(&words))
    }

    #[inline]
    pub(crate) fn wants_packets(&self) -> bool {
        self.line.as_slice()[WANTS_PACKETS].load(Ordering::Relaxed) != 0
    }

    /// Whether the server must be woken for a new entry of the ring up. True once for each sleep.
    pub(crate) fn take_wake_request(&self) -> bool {
        take_wake_request(&self.line, SERVER_SLEEPS)
    }

    pub(crate) fn set_sleeps(&self, sleeps: bool) {
        set_sleeps(&self.line, CLIENT_SLEEPS, sleeps);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use pollux_wire::address::Guid;

    #[test]
    fn a_port_comes_out_as_it_went_in() {
        let mut port = Port::active(Lid(0x1234), Guid(0x0102_0304_0506_0708));
        (port.lmc, port.sm_lid, port.sm_sl, port.reregistrations) = (3, Lid(7), 5, 9);
        port.pkeys = (0..PKEYS as u16).map(|nth| PKey(0x8000 | nth)).collect();
        port.gids = (0..GIDS as u64).map(|nth| Gid::new(Gid::DEFAULT_PREFIX, Guid(nth))).collect();
        assert_eq!(port_of(&words_of(&port)), port);

        let (mut server, fd) = ServerPage::create(&port).unwrap();
        let mut client = ClientPage::open(fd).unwrap();
        assert_eq!(client.changed_port(), Some(port.clone()));
        server.set_port(&port);
        assert!(client.changed_port().is_none(), "nothing has changed");
        port.state = PortState::DOWN;
        server.set_port(&port);
        server.set_wants_packets(true);
        assert_eq!(client.changed_port(), Some(port));
        assert!(client.wants_packets());
        assert!(!client.take_wake_request());
        server.set_sleeps(true);
        assert!(client.take_wake_request() && !client.take_wake_request(), "once");
        assert!(!server.take_wake_request());
        client.set_sleeps(true);
        assert!(server.take_wake_request() && !server.take_wake_request(), "once");
    }

    #[test]
    fn rings_go_both_ways() {
        let port = Port::active(Lid(1), Guid(1));
        let (mut server, fd) = ServerPage::create(&port).unwrap();
        let mut client = ClientPage::open(fd).unwrap();
        assert!(client.up.send_bytes(1, &[7], b"up") && server.down.send_bytes(2, &[8], b""));
        assert!(server.up.receive(|entry| assert_eq!((entry.tag(), entry.head()[0]), (1, 7))));
        assert!(client.down.receive(|entry| assert_eq!((entry.tag(), entry.head()[0]), (2, 8))));
        assert!(ClientPage::open(Segment::create("x", 4096).unwrap().into_fd()).is_none());
    }
}
