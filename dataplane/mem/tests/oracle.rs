//! Each ring and the pool against a model that is too simple to be wrong, under generated
//! operations. `forbid` also shows that the types of a ring's entries need no unsafe of their
//! owner.
#![cfg(not(loom))]
#![forbid(unsafe_code)]

use pollux_mem::shared_ring::{HEAD_WORDS_MAX, SharedRing, SharedRingError};
use pollux_mem::{Buf, Memory, Pool, PoolConfig, Words, byte_ring, mpsc};
use proptest::collection::vec;
use proptest::prelude::*;
use std::collections::{BTreeSet, VecDeque};
use std::sync::atomic::Ordering;

#[derive(Clone, Copy, Debug)]
enum RingOp {
    Push,
    PushBatch(usize),
    Pop,
    PopBatch(usize),
}

fn ring_op() -> impl Strategy<Value = RingOp> {
    prop_oneof![
        3 => Just(RingOp::Push),
        2 => (0..12usize).prop_map(RingOp::PushBatch),
        3 => Just(RingOp::Pop),
        2 => (0..12usize).prop_map(RingOp::PopBatch),
    ]
}

fn entries() -> impl Strategy<Value = usize> {
    (0..5u32).prop_map(|log| 1 << log)
}

/// A bounded queue. `next` numbers the values, so that order and loss show.
struct Model {
    queue: VecDeque<u64>,
    entries: usize,
    next: u64,
}

impl Model {
    fn new(entries: usize) -> Self {
        Self { queue: VecDeque::new(), entries, next: 0 }
    }

    /// The values to be pushed, and how many of them fit.
    fn push(&mut self, count: usize) -> (Vec<u64>, usize) {
        let values: Vec<u64> = (self.next..).take(count).collect();
        let fit = count.min(self.entries - self.queue.len());
        self.queue.extend(&values[..fit]);
        self.next += fit as u64;
        (values, fit)
    }

    fn pop(&mut self, count: usize) -> Vec<u64> {
        self.queue.drain(..count.min(self.queue.len())).collect()
    }
}

#[derive(Clone, Copy, Debug)]
enum BytesOp {
    Write(usize),
    WriteWhole(usize, usize),
    Fill(usize),
    Read(usize),
    Peek(usize, usize),
    Skip(usize),
    Drain(usize),
}

fn bytes_op() -> impl Strategy<Value = BytesOp> {
    prop_oneof![
        (0..24usize).prop_map(BytesOp::Write),
        (0..9usize, 0..9usize).prop_map(|(one, two)| BytesOp::WriteWhole(one, two)),
        (0..12usize).prop_map(BytesOp::Fill),
        (0..24usize).prop_map(BytesOp::Read),
        (0..5usize, 0..9usize).prop_map(|(behind, count)| BytesOp::Peek(behind, count)),
        (0..9usize).prop_map(BytesOp::Skip),
        (0..12usize).prop_map(BytesOp::Drain),
    ]
}

proptest! {
    #[test]
    fn bytes_are_a_bounded_queue(log in 0..6u32, ops in vec(bytes_op(), 0..300)) {
        let (mut writer, mut reader) = byte_ring::ring(1 << log).unwrap();
        let (mut queue, mut next) = (VecDeque::<u8>::new(), 0u8);
        for op in ops {
            let room = (1 << log) - queue.len();
            let mut fresh = |count: usize| -> Vec<u8> {
                (0..count).map(|_| { next = next.wrapping_add(1); next }).collect()
            };
            match op {
                BytesOp::Write(count) => {
                    let values = fresh(count);
                    prop_assert_eq!(writer.write(&values), count.min(room));
                    queue.extend(&values[..count.min(room)]);
                }
                BytesOp::WriteWhole(one, two) => {
                    let (first, second) = (fresh(one), fresh(two));
                    let fits = one + two <= room;
                    prop_assert_eq!(writer.write_whole(&[&first, &second]), fits);
                    if fits {
                        queue.extend(first.into_iter().chain(second));
                    }
                }
                BytesOp::Fill(count) => {
                    let values = fresh(count);
                    let filled = writer.fill(|run| {
                        let count = values.len().min(run.len());
                        run[..count].copy_from_slice(&values[..count]);
                        count
                    });
                    prop_assert!(filled > 0 || count == 0 || room == 0);
                    queue.extend(&values[..filled]);
                }
                BytesOp::Read(count) => {
                    let mut buffer = vec![0; count];
                    let read = reader.read(&mut buffer);
                    let expected: Vec<u8> = queue.drain(..count.min(queue.len())).collect();
                    prop_assert_eq!(&buffer[..read], &expected[..]);
                }
                BytesOp::Peek(behind, count) => {
                    let mut buffer = vec![0; count];
                    let is_there = reader.peek(behind, &mut buffer);
                    prop_assert_eq!(is_there, queue.len() >= behind + count);
                    let expected = queue.iter().skip(behind).take(count);
                    prop_assert!(!is_there || buffer.iter().eq(expected));
                }
                BytesOp::Skip(count) => {
                    reader.skip(count);
                    queue.drain(..count.min(queue.len()));
                }
                BytesOp::Drain(count) => {
                    let mut seen = Vec::new();
                    reader.drain(|run| {
                        seen.extend_from_slice(&run[..count.min(run.len())]);
                        seen.len()
                    });
                    let expected: Vec<u8> = queue.drain(..seen.len()).collect();
                    prop_assert!(!seen.is_empty() || count == 0 || queue.is_empty());
                    prop_assert_eq!(seen, expected);
                }
            }
            prop_assert_eq!(reader.len(usize::MAX), queue.len());
            let is_empty = queue.is_empty();
            prop_assert_eq!((reader.is_empty(), writer.is_drained()), (is_empty, is_empty));
        }
    }

    #[test]
    fn mpsc_is_a_bounded_queue(entries in entries(), ops in vec(ring_op(), 0..200)) {
        let (sender, mut receiver) = mpsc::ring::<u64>(entries).unwrap();
        let senders = [sender.clone(), sender];
        let mut model = Model::new(entries);
        for op in ops {
            match op {
                RingOp::Push => {
                    let (values, fit) = model.push(1);
                    let sender = &senders[values[0] as usize % 2];
                    prop_assert_eq!(sender.push(values[0]).is_ok(), fit == 1);
                }
                RingOp::PushBatch(count) => {
                    let (values, fit) = model.push(count);
                    let pushed = values.iter().filter(|&&n| senders[0].push(n).is_ok()).count();
                    prop_assert_eq!(pushed, fit);
                }
                RingOp::Pop => prop_assert_eq!(receiver.pop(), model.pop(1).pop()),
                RingOp::PopBatch(count) => {
                    let popped: Vec<u64> = receiver.drain(count).collect();
                    prop_assert_eq!(popped, model.pop(count));
                }
            }
            prop_assert_eq!(receiver.is_empty(), model.queue.is_empty());
            prop_assert_eq!(senders[0].has_room(), model.queue.len() < entries);
        }
    }

    #[test]
    fn pool_conserves_its_buffers(
        ops in vec((0..6u8, 0..40usize), 0..300),
        cache_max in 1..9usize,
    ) {
        let config = PoolConfig { buffers: 24, buffer_bytes: 100, headroom_bytes: 10 };
        let pool = Pool::new(config).unwrap();
        let mut caches = [pool.cache(cache_max), pool.cache(cache_max)];
        let mut held: Vec<Buf> = Vec::new();
        let mut leaked: Vec<u32> = Vec::new();
        for (op, number) in ops {
            let cache = &mut caches[number % 2];
            match op {
                0 | 1 => held.extend(cache.alloc().map(marked)),
                2 => held.extend(pool.alloc().map(marked)),
                3 if !held.is_empty() => cache.free(held.swap_remove(number % held.len())),
                4 if !held.is_empty() => drop(held.swap_remove(number % held.len())),
                5 if !held.is_empty() => {
                    let buf = held.swap_remove(number % held.len());
                    leaked.push(buf.index());
                    buf.leak();
                }
                _ => {}
            }
            let cached: usize = caches.iter().map(|cache| cache.len()).sum();
            prop_assert_eq!(pool.outstanding(), held.len() + leaked.len() + cached);
            let out: BTreeSet<u32> =
                held.iter().map(Buf::index).chain(leaked.iter().copied()).collect();
            prop_assert_eq!(out.len(), held.len() + leaked.len(), "an index is out twice");
            prop_assert!(held.iter().all(|buf| buf.bytes() == mark(buf.index())));
        }
        drop(caches);
        // All that is not out can be had, and no more.
        let out = held.len() + leaked.len();
        held.extend(std::iter::from_fn(|| pool.alloc()));
        prop_assert_eq!(held.len() + leaked.len(), 24);
        prop_assert!(held.len() >= 24 - out);
        drop(held);
        prop_assert_eq!(pool.outstanding(), leaked.len());
    }
}

fn mark(index: u32) -> [u8; 90] {
    [index as u8 + 1; 90]
}

/// Fills a buffer up with what only it should hold: overlapping buffers would show.
fn marked(mut buf: Buf) -> Buf {
    assert_eq!((buf.headroom(), buf.len()), (10, 0));
    let index = buf.index();
    buf.push_back(90).unwrap().copy_from_slice(&mark(index));
    buf
}

#[test]
fn rings_refuse_invalid_capacities() {
    assert!([0, 3, 6, 1 << 32].iter().all(|&entries| mpsc::ring::<u8>(entries).is_none()));
}

#[test]
fn rings_drop_remaining_values() {
    let value = std::sync::Arc::new(());
    let (sender, mut receiver) = mpsc::ring(4).unwrap();
    (0..4).for_each(|_| sender.push(value.clone()).unwrap());
    assert!(sender.push(value.clone()).is_err());
    drop((receiver.pop(), sender, receiver));
    assert_eq!(std::sync::Arc::strong_count(&value), 1);
}

/// An entry of a ring: its tag, the words of its head, and its bytes.
type RingEntry = (u8, Vec<u64>, Vec<u8>);

fn ring_entry() -> impl Strategy<Value = RingEntry> {
    let bytes = prop_oneof![
        4 => vec(any::<u8>(), 0..130), 4 => vec(any::<u8>(), 100..700),
        1 => vec(any::<u8>(), 2000..4000)
    ];
    (any::<u8>(), vec(any::<u64>(), 0..=HEAD_WORDS_MAX), bytes)
}

/// One slot, if the bytes fit beside the head; else as many as have so many bytes elsewhere.
fn slots_of((_, head, bytes): &RingEntry) -> usize {
    let is_long = bytes.len() > (HEAD_WORDS_MAX - head.len()) * 8;
    if is_long { bytes.len().div_ceil(128) } else { 1 }
}

proptest! {
    #[test]
    fn a_shared_ring_keeps_entries_whole_and_in_order(
        ops in vec(prop_oneof![3 => ring_entry().prop_map(Some), 2 => Just(None)], 0..80),
        slots in (3..6u32).prop_map(|log| 1usize << log),
        at in 0..64usize,
    ) {
        let ring = SharedRing::private(slots).unwrap();
        let (mut sender, mut receiver) = (ring.other_side().sender(), ring.receiver());
        let mut model: VecDeque<RingEntry> = VecDeque::new();
        let memory = Memory::private(8192).unwrap();
        for op in ops {
            let Some(entry) = op else {
                let expected = model.pop_front();
                prop_assert_eq!(receiver.has_entry(), expected.is_some());
                let came = receiver.receive(|entry| {
                    let (tag, head, bytes) = expected.as_ref().expect("there is one");
                    assert_eq!((entry.tag(), entry.head_words()), (*tag, head.len()));
                    let (words, all) = (entry.first_words(), entry.head());
                    let (copied, rest) = all.split_at(head.len());
                    assert!(copied == head && rest.iter().all(|word| *word == 0));
                    let first = head.len().min(words.len());
                    assert_eq!(words[..first], head[..first]);
                    let mut read = Vec::new();
                    entry.read(|part| read.extend_from_slice(part));
                    assert_eq!((&read, entry.bytes()), (bytes, bytes.len()));
                    assert!(entry.copy_to(&memory, at));
                    read.fill(0);
                    assert!(memory.read(at, &mut read));
                    assert_eq!(&read, bytes);
                    assert!(entry.copy_by(
                        |bytes| memory.write(0, bytes),
                        |done, from, at, bytes| memory.copy(done, from, at, bytes),
                    ));
                    read.fill(0);
                    assert!(memory.read(0, &mut read));
                    assert_eq!(&read, bytes);
                    assert_eq!(entry.copy_to(&memory, 8192), bytes.is_empty());
                });
                prop_assert_eq!(came, expected.is_some());
                continue;
            };
            let used: usize = model.iter().map(slots_of).sum();
            let (tag, head, bytes) = &entry;
            let went = if tag % 2 == 0 {
                sender.send_bytes(*tag, head, bytes)
            } else {
                let mut rest = bytes.as_slice();
                sender.send(*tag, head, bytes.len(), |part| {
                    let (now, later) = rest.split_at(part.len());
                    part.copy_from_slice(now);
                    rest = later;
                })
            };
            prop_assert_eq!(went, used + slots_of(&entry) <= slots);
            if went {
                model.push_back(entry);
            }
        }
    }

    /// Whatever a peer leaves in the memory, the receiver stays within it and comes to an end.
    #[test]
    fn a_shared_ring_of_a_liar_gives_rubbish_at_worst(
        lies in vec((0..160usize, any::<u64>()), 0..40),
        shape in any::<u64>(),
    ) {
        let words = Words::private(SharedRing::words(8).unwrap()).unwrap();
        let ring = SharedRing::create(words.clone(), 8).unwrap();
        let (mut sender, mut receiver) = (ring.other_side().sender(), ring.receiver());
        prop_assert!(sender.send_bytes(1, &[1, 2], &[3; 300]));
        prop_assert!(sender.send_bytes(1, &[], &[]));
        // The shape of the first entry, wherever its slot is, and anything anywhere.
        for slot in 0..8 {
            words.as_slice()[32 + slot * 16 + 1].store(shape, Ordering::Relaxed);
        }
        for (at, lie) in lies {
            words.as_slice()[at].store(lie, Ordering::Relaxed);
        }
        let mut bytes = 0;
        for _ in 0..20 {
            receiver.receive(|entry| entry.read(|part| bytes += part.len()));
        }
        prop_assert!(bytes <= 20 * 8 * 128);
    }
}

#[test]
fn a_shared_ring_reports_invalid_memory() {
    let words = Words::private(SharedRing::words(8).unwrap()).unwrap();
    let opened = SharedRing::open(words.clone()).map(drop);
    assert_eq!(opened, Err(SharedRingError::NotARing));
    assert!(matches!(
        SharedRing::create(words.clone(), 6),
        Err(SharedRingError::BadCapacity { slots: 6 })
    ));
    assert!(matches!(
        SharedRing::create(words.clone(), 1 << 20),
        Err(SharedRingError::TooSmall { .. })
    ));
    let ring = SharedRing::create(words.clone(), 8).unwrap();
    let mut sender = ring.sender();
    assert!(sender.send_bytes(7, &[1], &[2]));
    // Another sender and another receiver find what was sent before them.
    let mut sender = SharedRing::open(words.clone()).unwrap().sender();
    assert!(sender.send_bytes(8, &[], &[]));
    let mut receiver = SharedRing::open(words).unwrap().receiver();
    let mut tags = Vec::new();
    while receiver.receive(|entry| tags.push(entry.tag())) {}
    assert_eq!(tags, [7, 8]);
}

#[test]
fn half_an_entry_of_a_dead_sender_is_none() {
    let ring = SharedRing::private(64).unwrap();
    let mut dead = ring.other_side().sender();
    let mut parts = 0;
    let dying = std::panic::AssertUnwindSafe(|| {
        dead.send(1, &[], 8000, |part| {
            part.fill(0xff);
            parts += 1;
            assert!(parts < 4, "killed while it writes the last part");
        })
    });
    assert!(std::panic::catch_unwind(dying).is_err());
    let mut receiver = ring.other_side().receiver();
    assert!(!receiver.receive(|_| ()));
    let mut successor = ring.other_side().sender();
    assert!(successor.send_bytes(2, &[], &[7; 8]));
    let mut tags = Vec::new();
    while receiver.receive(|entry| tags.push(entry.tag())) {}
    assert_eq!(tags, [2]);
    // A third one goes on behind what is whole, however long.
    assert!(successor.send_bytes(3, &[], &[7; 500]));
    assert!(ring.sender().send_bytes(4, &[], &[]));
    let mut tags = Vec::new();
    while receiver.receive(|entry| tags.push(entry.tag())) {}
    assert_eq!(tags, [3, 4]);
}
