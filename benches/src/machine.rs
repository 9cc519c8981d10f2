//! Limits of two cores that hold for any program.
#![expect(clippy::disallowed_methods, reason = "this is what is measured")]

use core_affinity::CoreId;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Instant;

const ROUNDS: u32 = 10_000;

/// Runs one closure on each core at the same time. Returns the result of the first closure.
pub fn on_both<T: Send>(
    cores: [usize; 2],
    first: impl FnOnce() -> T + Send,
    second: impl FnOnce() + Send,
) -> T {
    std::thread::scope(|scope| {
        scope.spawn(|| run_pinned(cores[1], second));
        run_pinned(cores[0], first)
    })
}

pub fn run_pinned<T: Send>(core: usize, what: impl FnOnce() -> T + Send) -> T {
    std::thread::scope(|scope| {
        let pinned = scope.spawn(|| {
            core_affinity::set_for_current(CoreId { id: core });
            what()
        });
        pinned.join().expect("the thread does not panic")
    })
}

/// Two cache lines, as in a slot of a message ring.
#[derive(Default)]
#[repr(align(128))]
struct Slot([AtomicU64; 16]);

/// Half the round trip between two cores, in nanoseconds. Both sides write the same cache line;
/// with `as_messages`, each side writes slots of its own instead, a new one each time, and as many
/// words as a 64-byte message has with its header.
pub fn lines(cores: [usize; 2], as_messages: bool) -> f64 {
    let slots = || (0..if as_messages { 1024 } else { 1 }).map(|_| Slot::default()).collect();
    let (there, back): (Vec<Slot>, Vec<Slot>) = (slots(), slots());
    let back = if as_messages { &back } else { &there };
    let turn = |mine: u64, to: &[Slot], from: &[Slot]| {
        let (mut sum, begun) = (0, Instant::now());
        for round in 0..u64::from(ROUNDS) {
            let at = round as usize % to.len();
            for turn in 0..2 {
                let value = round * 2 + turn + 1;
                let [first, rest @ ..] = if turn == mine { &to[at].0 } else { &from[at].0 };
                let rest = if as_messages { &rest[..12] } else { &[] };
                if turn == mine {
                    rest.iter().for_each(|word| word.store(round, Ordering::Relaxed));
                    first.store(value, Ordering::Release);
                } else {
                    while first.load(Ordering::Acquire) != value {
                        std::hint::spin_loop();
                    }
                    sum += rest.iter().map(|word| word.load(Ordering::Relaxed)).sum::<u64>();
                }
            }
        }
        std::hint::black_box(sum);
        begun.elapsed().as_nanos() as f64 / f64::from(ROUNDS) / 2.0
    };
    on_both(
        cores,
        || turn(0, &there, back),
        || {
            turn(1, back, &there);
        },
    )
}

/// Bytes per second that one core copies, 1 MiB at a time.
pub fn copy() -> f64 {
    let (from, mut to) = (vec![1u8; 1 << 20], vec![0u8; 1 << 20]);
    let begun = Instant::now();
    for _ in 0..500 {
        to.copy_from_slice(std::hint::black_box(&from));
        std::hint::black_box(&mut to);
    }
    500.0 * f64::from(1 << 20) / begun.elapsed().as_secs_f64()
}
