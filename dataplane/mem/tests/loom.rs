//! Loom models: every interleaving, and every stale value that the memory model allows.
//!
//! Run with `RUSTFLAGS="--cfg loom" cargo test -p pollux-mem --test loom --release`; without that
//! flag this file is empty. The snapshot is not modeled: its atomics are arc-swap's, which loom
//! does not see.
//!
//! The orderings of the rings, the free list, the cell and the lease were weakened one by one, and
//! a model failed each time. The exception is the release of the head in `shared_ring`: it keeps
//! loads before a store, and loom lets no load see a later store.
#![cfg(loom)]
#![allow(unsafe_code, reason = "loom's cell is the witness, and its access is unsafe")]

use loom::cell::UnsafeCell;
use loom::sync::Arc;
use loom::sync::atomic::{AtomicU64, Ordering};
use loom::thread;
use pollux_mem::free_list::FreeList;
use pollux_mem::lease::{Lease, LeaseReader};
use pollux_mem::seq_cell::{SeqReader, SeqWriter};
use pollux_mem::shared_ring::SharedRing;
use pollux_mem::sleep_word::{SleepWatch, SleepWord, barrier};
use pollux_mem::{Pool, PoolConfig, Words, byte_ring, mpsc};

/// Models with three threads are explored up to two forced switches; all orders would take hours.
fn bounded(model: impl Fn() + Sync + Send + 'static) {
    let mut builder = loom::model::Builder::new();
    builder.preemption_bound = Some(2);
    builder.check(model);
}

#[test]
fn bytes_come_in_order_and_messages_whole() {
    loom::model(|| {
        let (mut writer, mut reader) = byte_ring::ring(4).unwrap();
        let writing = thread::spawn(move || {
            // The second wraps, and has no room until some of the first was read.
            let mut written = writer.write(&[1, 2, 3]);
            written += 2 * usize::from(writer.write_whole(&[&[4], &[5]]));
            written
        });
        let (mut seen, mut first) = (Vec::new(), [0; 2]);
        if reader.peek(1, &mut first) {
            assert_eq!(first, [2, 3]);
            reader.drain(|run| (seen.extend_from_slice(&run[..2]), 2).1);
        }
        let mut rest = [0; 4];
        let count = reader.read(&mut rest);
        seen.extend_from_slice(&rest[..count]);
        let written = writing.join().unwrap();
        let count = reader.read(&mut rest);
        seen.extend_from_slice(&rest[..count]);
        assert_eq!(seen, [1, 2, 3, 4, 5][..written]);
    });
}

#[test]
fn shared_ring_hands_over_whole_entries_in_order() {
    loom::model(|| {
        let words = Words::private(1).unwrap().take(96).unwrap();
        let ring = SharedRing::create(words.clone(), 2).unwrap();
        let (mut sender, mut receiver) =
            (ring.sender(), SharedRing::open(words).unwrap().receiver());
        // The first takes both slots, so the second waits for it to be read.
        let sending = thread::spawn(move || {
            let first = sender.send_bytes(0, &[7], &[1; 136]);
            u32::from(first) + u32::from(sender.send_bytes(1, &[8], &[2; 8]))
        });
        let mut seen = 0;
        let mut look = || {
            receiver.receive(|entry| {
                assert_eq!((u32::from(entry.tag()), entry.head()[0]), (seen, 7 + u64::from(seen)));
                let mut bytes = Vec::new();
                entry.read(|part| bytes.extend_from_slice(part));
                assert!(bytes.iter().all(|byte| u32::from(*byte) == seen + 1));
                assert_eq!(bytes.len(), [136, 8][seen as usize]);
                seen += 1;
            })
        };
        look();
        look();
        let sent = sending.join().unwrap();
        while look() {}
        assert_eq!(seen, sent);
    });
}

#[test]
fn mpsc_keeps_each_producers_order() {
    bounded(|| {
        let (sender, mut receiver) = mpsc::ring::<Box<u32>>(2).unwrap();
        let push_two = |sender: mpsc::Sender<Box<u32>>, base| {
            move || (0..2u32).take_while(|n| sender.push(Box::new(base + n)).is_ok()).count() as u32
        };
        let one = thread::spawn(push_two(sender.clone(), 10));
        let two = thread::spawn(push_two(sender, 20));
        let mut seen: Vec<u32> = receiver.pop().into_iter().map(|value| *value).collect();
        let (ones, twos) = (one.join().unwrap(), two.join().unwrap());
        seen.extend(receiver.drain(9).map(|value| *value));
        let of = |base: u32| seen.iter().copied().filter(move |n| n / 10 * 10 == base);
        assert!(of(10).eq(10..10 + ones) && of(20).eq(20..20 + twos), "{seen:?}");
    });
}

#[test]
fn mpsc_fills_a_slot_again_when_it_is_empty() {
    loom::model(|| fill_a_slot_again(1));
    loom::model(|| fill_a_slot_again(2));
}

/// The producer yields, because loom begins with one order of events and reorders conflicts that it
/// sees there: an order in which slots are filled twice must be among them.
fn fill_a_slot_again(entries: usize) {
    let (sender, mut receiver) = mpsc::ring::<Box<u32>>(entries).unwrap();
    let popping = thread::spawn(move || {
        let seen: Vec<u32> = (0..2).filter_map(|_| receiver.pop()).map(|value| *value).collect();
        (seen, receiver)
    });
    let mut pushed = (0..2).filter(|&n| sender.push(Box::new(n)).is_ok()).count() as u32;
    thread::yield_now();
    let has_room = sender.has_room();
    let is_pushed = sender.push(Box::new(pushed)).is_ok();
    assert!(is_pushed || !has_room);
    pushed += u32::from(is_pushed);
    let (mut seen, mut receiver) = popping.join().unwrap();
    assert_eq!(receiver.is_empty(), seen.len() as u32 == pushed);
    seen.extend(receiver.drain(9).map(|value| *value));
    assert_eq!(seen, (0..pushed).collect::<Vec<_>>());
}

#[test]
fn mpsc_drops_remaining_values() {
    loom::model(|| {
        let (sender, mut receiver) = mpsc::ring::<Arc<()>>(2).unwrap();
        let value = Arc::new(());
        let pushing = {
            let value = value.clone();
            thread::spawn(move || sender.push(value).unwrap())
        };
        drop(receiver.pop());
        drop(receiver);
        pushing.join().unwrap();
        assert_eq!(Arc::strong_count(&value), 1);
    });
}

#[test]
fn free_list_gives_an_index_to_one_at_a_time() {
    bounded(|| {
        let list = Arc::new(FreeList::full(3).unwrap());
        // What an index stands for: loom fails when two hold it at once or one sees stale contents.
        let owned: Arc<Vec<_>> = Arc::new((0..3).map(|_| UnsafeCell::new(0)).collect());
        let round = |list: Arc<FreeList>, owned: Arc<Vec<UnsafeCell<u32>>>| {
            move || {
                let mut mine = Vec::new();
                list.pop(&mut mine, 2);
                // SAFETY: the index is ours alone until pushed; loom checks just that.
                mine.iter().for_each(|&i| owned[i as usize].with_mut(|n| unsafe { *n += 1 }));
                // One at a time and in another order, to provoke what the tag is there for.
                mine.iter().for_each(|&i| list.push(&[i]));
            }
        };
        let threads: Vec<_> =
            (0..2).map(|_| thread::spawn(round(list.clone(), owned.clone()))).collect();
        round(list.clone(), owned)();
        threads.into_iter().for_each(|thread| thread.join().unwrap());
        let mut all = Vec::new();
        assert_eq!(list.pop(&mut all, 9), 3);
        all.sort_unstable();
        assert_eq!(all, [0, 1, 2]);
    });
}

#[test]
fn pool_goes_with_the_last_buffer_wherever_that_is() {
    loom::model(|| {
        let config = PoolConfig { buffers: 2, buffer_bytes: 64, headroom_bytes: 0 };
        let pool = Pool::new(config).unwrap();
        let mut buf = pool.alloc().unwrap();
        buf.push_back(1).unwrap()[0] = 7;
        let dropping = thread::spawn(move || {
            assert_eq!(buf.bytes(), [7]);
            drop(buf);
        });
        let mut cache = pool.cache(2);
        let other = cache.alloc();
        drop(pool);
        drop(cache);
        drop(other);
        dropping.join().unwrap();
    });
}

#[test]
fn seq_cell_is_read_whole() {
    loom::model(|| {
        let words = Words::private(1).unwrap().take(3).unwrap();
        let mut writer = SeqWriter::<[u64; 2]>::new(words.clone()).unwrap();
        let reader = SeqReader::<[u64; 2]>::new(words).unwrap();
        let writing = thread::spawn(move || {
            writer.write(&[1, 1]);
            writer.write(&[2, 2]);
        });
        assert!(matches!(reader.try_read(), None | Some([0, 0] | [1, 1] | [2, 2])));
        writing.join().unwrap();
        assert_eq!(reader.try_read(), Some([2, 2]));
    });
}

/// Two words of an owner's memory, and the lease on it, which begins as 1.
fn leased() -> Arc<[AtomicU64; 3]> {
    Arc::new([AtomicU64::new(1), AtomicU64::new(7), AtomicU64::new(7)])
}

#[test]
fn a_copy_with_writes_after_the_revocation_does_not_count() {
    loom::model(|| {
        let words = leased();
        let owner = words.clone();
        let owning = thread::spawn(move || {
            Lease::of(&owner[0]).revoke(0);
            owner[1].store(8, Ordering::Relaxed);
            owner[2].store(8, Ordering::Relaxed);
        });
        let lease = LeaseReader::of(&words[0]);
        let before = lease.now();
        let copy = [1, 2].map(|at: usize| words[at].load(Ordering::Relaxed));
        if before == 1 && lease.is_still(before) {
            assert_eq!(copy, [7, 7]);
        }
        owning.join().unwrap();
    });
}

#[test]
fn a_reader_of_a_lease_sees_its_memory() {
    loom::model(|| {
        let words = Arc::new([AtomicU64::new(0), AtomicU64::new(0)]);
        let owner = words.clone();
        let owning = thread::spawn(move || {
            owner[1].store(7, Ordering::Relaxed);
            Lease::of(&owner[0]).grant(1);
        });
        let lease = LeaseReader::of(&words[0]);
        if lease.now() == 1 {
            assert_eq!(words[1].load(Ordering::Relaxed), 7);
        }
        owning.join().unwrap();
    });
}

#[test]
fn no_wake_up_is_lost() {
    loom::model(|| {
        let words = Words::private(1).unwrap().take(1).unwrap();
        no_wake_up_is_lost_by(SleepWord::new(words.clone()), SleepWatch::new(words));
    });
}

/// All senders have seen the bit, as after the barrier of an earlier sleep.
#[test]
fn no_wake_up_is_lost_by_a_sender_that_is_asked_for_a_fence() {
    loom::model(|| {
        let words = Words::private(1).unwrap().take(1).unwrap();
        let mut word = SleepWord::new(words.clone());
        assert!(word.ask_for_fence(true));
        word.wake_up();
        no_wake_up_is_lost_by(word, SleepWatch::without_fence(words));
    });
}

/// A receiver that sleeps although there is an entry is woken. A number stands for the descriptor.
fn no_wake_up_is_lost_by(mut word: SleepWord, mut watch: SleepWatch) {
    let ring = SharedRing::create(Words::private(1).unwrap().take(96).unwrap(), 2).unwrap();
    let (mut sender, mut receiver) = (ring.other_side().sender(), ring.receiver());
    let descriptor = Arc::new(AtomicU64::new(0));
    let sending = {
        let descriptor = descriptor.clone();
        thread::spawn(move || {
            for entry in [1, 2] {
                assert!(sender.send_bytes(1, &[entry], &[]));
                if watch.must_wake() {
                    descriptor.fetch_add(1, Ordering::Relaxed);
                }
            }
        })
    };
    let mut is_asleep = false;
    while !is_asleep {
        descriptor.swap(0, Ordering::Relaxed);
        word.fall_asleep();
        assert!(barrier());
        is_asleep = !receiver.receive(|_| ());
        if !is_asleep {
            word.wake_up();
        }
    }
    sending.join().unwrap();
    let wakes = descriptor.load(Ordering::Relaxed);
    assert!(!receiver.has_entry() || wakes > 0, "nobody wakes it");
    assert!(wakes <= 2);
}
