//! Threads that exchange values as fast as they can, and sums that must be right.
//!
//! Bounded by counts and not by time. `loom.rs` checks the other orders of events.
#![cfg(not(loom))]
#![forbid(unsafe_code)]

use pollux_mem::seq_cell::{SeqReader, SeqWriter};
use pollux_mem::snapshot::Publisher;
use pollux_mem::{Buf, Pool, PoolConfig, Words, byte_ring, mpsc};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::thread::{scope, yield_now};

const VALUES: u64 = 1_000_000;

/// Runs `step` until it has done `count` things, giving way whenever it could do none.
fn until(count: u64, mut step: impl FnMut() -> u64) {
    let mut done = 0;
    while done < count {
        match step() {
            0 => yield_now(),
            more => done += more,
        }
    }
}

#[test]
fn bytes_in_order_and_whole() {
    let (mut writer, mut reader) = byte_ring::ring(256).unwrap();
    scope(|scope| {
        scope.spawn(move || {
            let mut next = 0u64;
            until(VALUES, || {
                let rest = [next as u8; 90];
                let rest = &rest[..next as usize % 90];
                let is_written = writer.write_whole(&[&next.to_ne_bytes(), rest]);
                next += u64::from(is_written);
                u64::from(is_written)
            });
        });
        let mut expected = 0u64;
        until(VALUES, || {
            let mut head = [0; 8];
            if !reader.peek(0, &mut head) {
                return 0;
            }
            assert_eq!(u64::from_ne_bytes(head), expected);
            reader.skip(8);
            let mut rest = [0; 90];
            let rest = &mut rest[..expected as usize % 90];
            assert_eq!(reader.read(rest), rest.len());
            assert!(rest.iter().all(|byte| *byte == expected as u8));
            expected += 1;
            1
        });
    });
}

#[test]
fn mpsc_loses_nothing_and_keeps_each_order() {
    const SENDERS: u64 = 3;
    let (sender, mut receiver) = mpsc::ring(64).unwrap();
    scope(|scope| {
        for lane in 0..SENDERS {
            let sender = sender.clone();
            scope.spawn(move || {
                let mut next = 0;
                until(VALUES / SENDERS, || {
                    let pushed = u64::from(sender.push((lane, Box::new(next))).is_ok());
                    next += pushed;
                    pushed
                });
            });
        }
        let mut expected = [0; SENDERS as usize];
        until(VALUES / SENDERS * SENDERS, || {
            let Some((lane, value)) = receiver.pop() else { return 0 };
            assert_eq!(*value, expected[lane as usize]);
            expected[lane as usize] += 1;
            1
        });
        assert!(receiver.pop().is_none());
    });
}

/// Buffers go around three workers by rings; each writes its mark and finds the mark of the one
/// before.
#[test]
fn buffers_cross_threads_and_come_home() {
    const WORKERS: usize = 3;
    let config = PoolConfig { buffers: 256, buffer_bytes: 64, headroom_bytes: 0 };
    let pool = Pool::new(config).unwrap();
    let (mut outs, ins): (Vec<_>, Vec<_>) =
        (0..WORKERS).map(|_| mpsc::ring::<Buf>(32).unwrap()).unzip();
    outs.rotate_left(1);
    let mark = |worker: usize, number: u64| ((worker as u64) << 32 | number).to_ne_bytes();
    scope(|scope| {
        for (worker, (out, mut inward)) in outs.into_iter().zip(ins).enumerate() {
            let mut cache = pool.cache(16);
            scope.spawn(move || {
                let (mut sent, mut received) = (0, 0);
                for _ in 0..VALUES / 4 {
                    for buf in inward.drain(8) {
                        assert_eq!(buf.bytes(), mark((worker + WORKERS - 1) % WORKERS, received));
                        received += 1;
                        cache.free(buf);
                    }
                    let Some(mut buf) = cache.alloc() else { continue };
                    buf.push_back(8).unwrap().copy_from_slice(&mark(worker, sent));
                    match out.push(buf) {
                        Ok(()) => sent += 1,
                        Err(buf) => cache.free(buf),
                    }
                }
            });
        }
    });
    assert_eq!(pool.outstanding(), 0);
}

#[test]
fn seq_cell_is_never_read_in_halves() {
    let words = Words::private(16).unwrap();
    let mut writer = SeqWriter::<[u64; 8]>::new(words.clone()).unwrap();
    let reader = SeqReader::<[u64; 8]>::new(words).unwrap();
    let done = &AtomicBool::new(false);
    scope(|scope| {
        scope.spawn(move || {
            (0..VALUES).for_each(|number| writer.write(&[number; 8]));
            done.store(true, Ordering::Relaxed);
        });
        let mut last = 0;
        while !done.load(Ordering::Relaxed) {
            let Some(value) = reader.try_read() else { continue };
            assert!(value == [value[0]; 8] && value[0] >= last);
            last = value[0];
        }
    });
    assert_eq!(reader.try_read(), Some([VALUES - 1; 8]));
}

/// A version that counts the live ones, and checks the thread that drops it.
struct Version {
    numbers: [u64; 2],
    publisher: std::thread::ThreadId,
    live: Arc<AtomicUsize>,
}

impl Drop for Version {
    fn drop(&mut self) {
        self.live.fetch_sub(1, Ordering::Relaxed);
        assert_eq!(std::thread::current().id(), self.publisher, "a reader freed a table");
    }
}

#[test]
fn snapshots_are_whole_newer_and_freed_by_the_publisher() {
    const READERS: usize = 2;
    let live = Arc::new(AtomicUsize::new(0));
    let version = |number: u64| {
        live.fetch_add(1, Ordering::Relaxed);
        let publisher = std::thread::current().id();
        Version { numbers: [number, !number], publisher, live: live.clone() }
    };
    let mut publisher = Publisher::new(version(0));
    let done = &AtomicBool::new(false);
    scope(|scope| {
        for _ in 0..READERS {
            let mut snapshot = publisher.reader();
            scope.spawn(move || {
                let mut last = 0;
                while !done.load(Ordering::Relaxed) {
                    let [number, inverse] = snapshot.refresh().numbers;
                    assert!(number == !inverse && number >= last);
                    last = number;
                }
            });
        }
        for number in 1..50_000 {
            publisher.publish(version(number));
            // The current one, and for each reader what it has and what it is changing to.
            assert!(live.load(Ordering::Relaxed) <= 1 + 2 * READERS);
        }
        done.store(true, Ordering::Relaxed);
    });
    assert_eq!((publisher.reclaim(), live.load(Ordering::Relaxed)), (0, 1));
}
