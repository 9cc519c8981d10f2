//! Processes that share rings and lanes and are killed with SIGKILL in the middle of it.
//!
//! The test starts itself again as the peer, which gets the segment as its standard input. It is
//! killed when the survivor has seen a certain number of entries, other in each round, so anywhere
//! in its loop; never after a certain time.
#![cfg(not(loom))]
#![forbid(unsafe_code)]

use pollux_mem::lane::{Lane, LaneReceiver, LaneSender};
use pollux_mem::seq_cell::{self, SeqReader, SeqWriter};
use pollux_mem::shared_ring::SharedRing;
use pollux_mem::{Segment, Words};
use std::env;
use std::os::fd::AsFd;
use std::os::unix::process::{ExitStatusExt, parent_id};
use std::process::{Child, Command, Stdio};
use std::thread::yield_now;

/// Eight words, so that a death between two of them is likely.
type Entry = [u64; 8];

const ROUNDS: u64 = 50;
const ENTRIES: usize = 32;
const ROLE: &str = "POLLUX_MEM_PEER";

fn entry(number: u64) -> Entry {
    std::array::from_fn(|word| number.rotate_left(8 * word as u32) ^ word as u64)
}

/// The number of an entry, which must be whole.
fn number(entry_read: &Entry) -> u64 {
    assert_eq!(*entry_read, entry(entry_read[0]), "half an entry");
    entry_read[0]
}

/// How many entries are let pass in a round before the kill: from 1 to 4096, all over.
fn progress(round: u64) -> u64 {
    (round + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 52 | 1
}

/// The ring's place and the cell's, the same in both processes.
fn places(segment: &Segment) -> (Words, Words) {
    let mut words = Words::over(segment.map().unwrap());
    let ring = words.take(SharedRing::<Entry>::words(ENTRIES).unwrap()).unwrap();
    (ring, words.take(seq_cell::words_needed::<Entry>()).unwrap())
}

fn open(segment: &Segment) -> SharedRing<Entry> {
    SharedRing::open(places(segment).0).unwrap()
}

/// A new segment with an empty ring and a first value in the cell.
fn segment() -> Segment {
    let segment = Segment::create("killed_peer", 64 << 10).unwrap();
    let (ring, cell) = places(&segment);
    SharedRing::<Entry>::create(ring, ENTRIES).unwrap();
    SeqWriter::new(cell).unwrap().write(&entry(0));
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
        "producer" => produce(&segment, waiting),
        "consumer" => consume(&segment, waiting),
        "sender" => send(&segment, waiting),
        "receiver" => receive(&segment, waiting),
        _ => panic!("no such role: {role}"),
    }
}

/// Pushes entries numbered from 0, in batches of 1 to 7, and notes each batch in the cell.
fn produce(segment: &Segment, waiting: impl Fn()) {
    let mut producer = open(segment).producer();
    let mut cell = SeqWriter::<Entry>::new(places(segment).1).unwrap();
    let mut next = 0;
    loop {
        let batch: Vec<Entry> = (next..).map(entry).take(1 + next as usize % 7).collect();
        let pushed = producer.push_slice(&batch);
        next += pushed as u64;
        cell.write(&entry(next));
        if pushed == 0 {
            waiting();
        }
    }
}

/// Pops entries by all ways, and insists that they are whole and without a gap.
fn consume(segment: &Segment, waiting: impl Fn()) {
    let mut consumer = open(segment).consumer();
    let mut last = None;
    let mut check = |read: &Entry| {
        let number = number(read);
        assert!(last.is_none_or(|last| number == last + 1), "a gap before {number}");
        last = Some(number);
    };
    let mut batch = [[0; 8]; 5];
    loop {
        let popped = consumer.pop_into(&mut batch);
        batch[..popped].iter().chain(consumer.pop().as_ref()).for_each(&mut check);
        if popped == 0 {
            waiting();
        }
    }
}

/// A consumer that sees one producer after the other die. In every second round it resets the ring,
/// in the others the next producer goes on where the dead one stopped.
#[test]
fn consumer_survives_its_producers() {
    let segment = segment();
    let cell = SeqReader::<Entry>::new(places(&segment).1).unwrap();
    let mut consumer = open(&segment).consumer();
    for round in 0..ROUNDS {
        let mut peer = Peer::start("producer", &segment);
        let mut seen = 0;
        while seen < progress(round) {
            match consumer.pop() {
                Some(read) => {
                    assert_eq!(number(&read), seen);
                    seen += 1;
                }
                None => peer.wait_on(),
            }
            assert!(cell.try_read().is_none_or(|noted| noted == entry(number(&noted))));
        }
        peer.kill();
        if round % 2 == 0 {
            // What the dead one had published is there and whole, and then there is an end.
            let rest: Vec<Entry> = std::iter::from_fn(|| consumer.pop()).collect();
            assert!(rest.len() <= ENTRIES && rest.iter().map(number).eq((seen..).take(rest.len())));
        } else {
            let ring = consumer.into_ring();
            ring.reset();
            consumer = ring.consumer();
        }
        assert_eq!(consumer.pop(), None);
    }
}

/// A producer that sees one consumer after the other die. Each begins with the first entry that the
/// one before did not release, so that in the end none is missing.
#[test]
fn producer_survives_its_consumers() {
    let segment = segment();
    let mut producer = open(&segment).producer();
    let mut pushed = 0;
    for round in 0..ROUNDS {
        let mut peer = Peer::start("consumer", &segment);
        let goal = pushed + ENTRIES as u64 + progress(round);
        while pushed < goal {
            match producer.push(&entry(pushed)) {
                true => pushed += 1,
                false => peer.wait_on(),
            }
        }
        peer.kill();
        while producer.push(&entry(pushed)) {
            pushed += 1;
        }
        assert!(!producer.is_broken());
    }
    let mut successor = open(&segment).consumer();
    let rest: Vec<u64> = std::iter::from_fn(|| successor.pop()).map(|read| number(&read)).collect();
    assert!(rest.iter().copied().eq(pushed - ENTRIES as u64..pushed), "a full ring, to the last");
    producer.into_ring().reset();
    let mut producer = open(&segment).producer();
    assert_eq!((producer.room(), open(&segment).consumer().pop()), (ENTRIES, None));
    assert!(producer.push(&entry(0)));
}

const SLOTS: usize = 64;

/// A new segment with an empty lane.
fn lane_segment() -> Segment {
    let segment = Segment::create("killed_peer_lane", 64 << 10).unwrap();
    Lane::create(Words::over(segment.map().unwrap()), SLOTS).unwrap();
    segment
}

fn open_lane(segment: &Segment) -> Lane {
    Lane::open(Words::over(segment.map().unwrap())).unwrap()
}

/// The octets of an entry of a lane: from none to twenty slots of them, so that most deaths are
/// within one; the first are short, so that they lie before the rest of what a dead one began.
fn octets(number: u64) -> Vec<u8> {
    vec![number as u8; (number * 619 % 2400) as usize]
}

fn send_one(sender: &mut LaneSender, number: u64) -> bool {
    sender.send(0, &[number, !number], octets(number).len(), |part| part.fill(number as u8))
}

/// The number of the oldest entry, which must be whole.
fn receive_one(receiver: &mut LaneReceiver) -> Option<u64> {
    let mut found = None;
    receiver.receive(|entry| {
        let (number, mut read) = (entry.head(0), Vec::new());
        entry.read(|part| read.extend_from_slice(part));
        assert_eq!((entry.head(1), read), (!number, octets(number)), "half an entry");
        found = Some(number);
    });
    assert_eq!(receiver.refused(), 0);
    found
}

/// Sends entries numbered from 0.
fn send(segment: &Segment, waiting: impl Fn()) {
    let mut sender = open_lane(segment).sender();
    let mut next = 0;
    loop {
        match send_one(&mut sender, next) {
            true => next += 1,
            false => waiting(),
        }
    }
}

/// Receives entries, and insists that they are whole and without a gap.
fn receive(segment: &Segment, waiting: impl Fn()) {
    let mut receiver = open_lane(segment).receiver();
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

/// Each sender goes on where the one before it died, with or without a reset.
#[test]
fn receiver_survives_its_senders() {
    let segment = lane_segment();
    let mut receiver = open_lane(&segment).receiver();
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
        }
        peer.kill();
        if round % 2 == 0 {
            let rest = std::iter::from_fn(|| receive_one(&mut receiver));
            rest.zip(seen..).for_each(|(number, expected)| assert_eq!(number, expected));
        } else {
            let lane = receiver.into_lane();
            lane.reset();
            receiver = lane.receiver();
        }
        assert_eq!(receive_one(&mut receiver), None);
    }
}

/// Each receiver begins with the first entry that the one before did not release.
#[test]
fn sender_survives_its_receivers() {
    let segment = lane_segment();
    let mut sender = open_lane(&segment).sender();
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
        assert!(!sender.is_broken());
    }
    let mut successor = open_lane(&segment).receiver();
    let rest: Vec<u64> = std::iter::from_fn(|| receive_one(&mut successor)).collect();
    assert!(rest.iter().copied().eq(sent - rest.len() as u64..sent) && !rest.is_empty());
}
