//! Processes that share a ring and a cell and are killed with SIGKILL in the middle of it.
//!
//! The test starts itself again as the peer, which gets the segment as its standard input. It is
//! killed when the survivor has seen a certain number of entries, other in each round, so anywhere
//! in its loop; never after a certain time.
#![cfg(not(loom))]
#![forbid(unsafe_code)]

use pollux_mem::seq_cell::{self, SeqReader, SeqWriter};
use pollux_mem::shared_ring::{RingReceiver, RingSender, SharedRing};
use pollux_mem::{Segment, Words};
use std::env;
use std::os::fd::AsFd;
use std::os::unix::process::{ExitStatusExt, parent_id};
use std::process::{Child, Command, Stdio};
use std::thread::yield_now;

/// Eight words of the cell, so that a death between two of them is likely.
type Note = [u64; 8];

const ROUNDS: u64 = 50;
const SLOTS: usize = 64;
const ROLE: &str = "POLLUX_MEM_PEER";

fn note(number: u64) -> Note {
    std::array::from_fn(|word| number.rotate_left(8 * word as u32) ^ word as u64)
}

/// The number of a note, which must be whole.
fn number(read: &Note) -> u64 {
    assert_eq!(*read, note(read[0]), "half a note");
    read[0]
}

/// How many entries are let pass in a round before the kill: from 1 to 4096, all over.
fn progress(round: u64) -> u64 {
    (round + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 52 | 1
}

/// The cell's place and the ring's, the same in both processes.
fn places(segment: &Segment) -> (Words, Words) {
    let mut words = Words::over(segment.map().unwrap());
    (words.take(seq_cell::words_needed::<Note>()).unwrap(), words)
}

fn open(segment: &Segment) -> SharedRing {
    SharedRing::open(places(segment).1).unwrap()
}

/// A new segment with an empty ring and a first note in the cell.
fn segment() -> Segment {
    let segment = Segment::create("killed_peer", 64 << 10).unwrap();
    let (cell, ring) = places(&segment);
    SharedRing::create(ring, SLOTS).unwrap();
    SeqWriter::new(cell).unwrap().write(&note(0));
    segment
}

/// A running peer, which does not outlive the test.
struct Peer(Child);

impl Peer {
    fn start(role: &str, segment: &Segment) -> Self {
        let fd = segment.as_fd().try_clone_to_owned().unwrap();
        let mut command = Command::new(env::current_exe().unwrap());
        command.args(["--exact", "peer"]).env(ROLE, role).stdin(fd).stdout(Stdio::null());
        Self(command.spawn().unwrap())
    }

    /// To be called by who waits for the peer: fails if it ended by itself, lets it run otherwise.
    fn wait_on(&mut self) {
        assert_eq!(self.0.try_wait().unwrap(), None, "the peer gave up");
        yield_now();
    }

    fn kill(mut self) {
        self.0.kill().unwrap();
        assert_eq!(self.0.wait().unwrap().signal(), Some(9));
    }
}

impl Drop for Peer {
    fn drop(&mut self) {
        let _ = self.0.kill();
    }
}

/// Does nothing as a test. As a peer it runs until killed, or until the survivor is no more.
#[test]
fn peer() {
    #[expect(clippy::disallowed_methods, reason = "the only way to tell a child its part")]
    let Ok(role) = env::var(ROLE) else { return };
    let survivor = parent_id();
    let waiting = || {
        assert_eq!(parent_id(), survivor);
        yield_now();
    };
    let fd = std::io::stdin().as_fd().try_clone_to_owned().unwrap();
    let segment = Segment::from_fd(fd, 1..=1 << 20).unwrap();
    match role.as_str() {
        "sender" => send(&segment, waiting),
        "receiver" => receive(&segment, waiting),
        _ => panic!("no such role: {role}"),
    }
}

/// The bytes of an entry of a ring: from none to twenty slots of them, so that most deaths are
/// within one; the first are short, so that they lie before the rest of what a dead one began.
fn bytes(number: u64) -> Vec<u8> {
    vec![number as u8; (number * 619 % 2400) as usize]
}

fn send_one(sender: &mut RingSender, number: u64) -> bool {
    sender.send(0, &[number, !number], bytes(number).len(), |part| part.fill(number as u8))
}

/// The number of the oldest entry, which must be whole.
fn receive_one(receiver: &mut RingReceiver) -> Option<u64> {
    let mut found = None;
    receiver.receive(|entry| {
        let (number, mut read) = (entry.head()[0], Vec::new());
        entry.read(|part| read.extend_from_slice(part));
        assert_eq!((entry.head()[1], read), (!number, bytes(number)), "half an entry");
        found = Some(number);
    });
    found
}

/// Sends entries numbered from 0, and notes after each how many there are.
fn send(segment: &Segment, waiting: impl Fn()) {
    let mut sender = open(segment).sender();
    let mut cell = SeqWriter::<Note>::new(places(segment).0).unwrap();
    let mut next = 0;
    loop {
        match send_one(&mut sender, next) {
            true => next += 1,
            false => waiting(),
        }
        cell.write(&note(next));
    }
}

/// Receives entries, and insists that they are whole and without a gap.
fn receive(segment: &Segment, waiting: impl Fn()) {
    let mut receiver = open(segment).receiver();
    let mut last = None;
    loop {
        let Some(number) = receive_one(&mut receiver) else {
            waiting();
            continue;
        };
        assert!(last.is_none_or(|last| number == last + 1), "a gap before {number}");
        last = Some(number);
    }
}

/// Each sender goes on where the one before it died, in the same ring or in a new one.
#[test]
fn receiver_survives_its_senders() {
    let segment = segment();
    let cell = SeqReader::<Note>::new(places(&segment).0).unwrap();
    let mut receiver = open(&segment).receiver();
    for round in 0..ROUNDS {
        let mut peer = Peer::start("sender", &segment);
        let mut seen = 0;
        while seen < progress(round) {
            match receive_one(&mut receiver) {
                Some(number) => {
                    assert_eq!(number, seen);
                    seen += 1;
                }
                None => peer.wait_on(),
            }
            assert!(cell.try_read().is_none_or(|noted| noted == note(number(&noted))));
        }
        peer.kill();
        if round % 2 == 0 {
            let rest = std::iter::from_fn(|| receive_one(&mut receiver));
            rest.zip(seen..).for_each(|(number, expected)| assert_eq!(number, expected));
        } else {
            receiver = SharedRing::create(places(&segment).1, SLOTS).unwrap().receiver();
        }
        assert_eq!(receive_one(&mut receiver), None);
    }
}

/// Each receiver begins with the first entry that the one before did not release.
#[test]
fn sender_survives_its_receivers() {
    let segment = segment();
    let mut sender = open(&segment).sender();
    let mut sent = 0;
    for round in 0..ROUNDS {
        let mut peer = Peer::start("receiver", &segment);
        let goal = sent + SLOTS as u64 + progress(round);
        while sent < goal {
            match send_one(&mut sender, sent) {
                true => sent += 1,
                false => peer.wait_on(),
            }
        }
        peer.kill();
        while send_one(&mut sender, sent) {
            sent += 1;
        }
    }
    let mut successor = open(&segment).receiver();
    let rest: Vec<u64> = std::iter::from_fn(|| receive_one(&mut successor)).collect();
    assert!(rest.iter().copied().eq(sent - rest.len() as u64..sent) && !rest.is_empty());
}
