//! Instructions per 64-byte message over message bypass, counted by callgrind. A count at or above
//! its limit fails the bench.
//!
//! ```text
//! cargo bench -p pollux-perf --bench instructions
//! ```
//!
//! One thread runs both ends, so each step is counted separately. The counts are for the release
//! profile of rustc 1.95 on baseline x86-64. Each count includes about 40 instructions of the bench
//! itself. The compiler does not inline the device's poll here, because it has several callers; in
//! a program with one caller it does, which saves about 10 instructions.
//!
//! | bench | RC | UD | must be below |
//! |---|---|---|---|
//! | `post_send`, inline | 440 | 357 | 480 |
//! | `poll_message` | 644 | 591 | 680 |
//! | `post_recv` | 88 | | 100 |
//! | `send_answer` | 413 | | 490 |
//! | `take_answer` | 523 | | 560 |
//! | `poll_nothing` | 152 | | 190 |
#![expect(unused_qualifications, reason = "and name types in full")]

mod ends;

use ends::{ThreadEnd, ends};
use gungraun::prelude::*;
use gungraun::{Callgrind, EventKind};
use pollux_perf::verbs::end::VerbsEndSetup;
use pollux_verbs::*;
use std::hint::black_box;

fn below(instructions: u64) -> LibraryBenchmarkConfig {
    let mut callgrind = Callgrind::default();
    callgrind.hard_limits([(EventKind::Ir, instructions - 1)]);
    let mut config = LibraryBenchmarkConfig::default();
    config.tool(callgrind);
    config
}

/// Two ends in one thread: end 0 sends, end 1 receives.
struct Both {
    ends: [ThreadEnd; 2],
}

impl Both {
    fn send(&mut self) {
        self.ends[0].send(64).expect("there is room");
    }

    fn poll(&mut self, end: usize) -> usize {
        let mut out = [Completion::NOTHING];
        let end = &mut self.ends[end];
        end.device.poll(end.cq, black_box(&mut out)).expect("it exists")
    }
}

/// Two warmed-up ends, with receives posted at end 1.
fn ready(qp_type: QpType) -> Box<Both> {
    let mut both = Box::new(Both { ends: ends(VerbsEndSetup::of(qp_type), false) });
    for _ in 0..100 {
        both.ends[1].recv(128).expect("there is room");
    }
    for _ in 0..50 {
        both.send();
        both.poll(1);
        both.poll(1);
        both.poll(0);
    }
    both
}

fn sent(qp_type: QpType) -> Box<Both> {
    let mut both = ready(qp_type);
    both.send();
    both
}

fn received(qp_type: QpType) -> Box<Both> {
    let mut both = sent(qp_type);
    both.poll(1);
    both
}

fn answered(qp_type: QpType) -> Box<Both> {
    let mut both = received(qp_type);
    both.poll(1);
    both
}

#[library_benchmark(config = below(480))]
#[bench::rc(ready(QpType::Rc))]
#[bench::ud(ready(QpType::Ud))]
fn post_send(mut both: Box<Both>) -> Box<impl Sized> {
    both.send();
    both
}

#[library_benchmark(config = below(680))]
#[bench::rc(sent(QpType::Rc))]
#[bench::ud(sent(QpType::Ud))]
fn poll_message(mut both: Box<Both>) -> Box<impl Sized> {
    assert_eq!(both.poll(1), 1);
    both
}

#[library_benchmark(config = below(100))]
#[bench::rc(ready(QpType::Rc))]
fn post_recv(mut both: Box<Both>) -> Box<impl Sized> {
    both.ends[1].recv(128).expect("there is room");
    both
}

#[library_benchmark(config = below(490))]
#[bench::rc(received(QpType::Rc))]
fn send_answer(mut both: Box<Both>) -> Box<impl Sized> {
    assert_eq!(both.poll(1), 0);
    both
}

#[library_benchmark(config = below(560))]
#[bench::rc(answered(QpType::Rc))]
fn take_answer(mut both: Box<Both>) -> Box<impl Sized> {
    assert_eq!(both.poll(0), 0);
    both
}

#[library_benchmark(config = below(190))]
#[bench::rc(ready(QpType::Rc))]
fn poll_nothing(mut both: Box<Both>) -> Box<impl Sized> {
    assert_eq!(both.poll(0), 0);
    both
}

library_benchmark_group!(
    name = message,
    benchmarks = [post_send, poll_message, post_recv, send_answer, take_answer, poll_nothing]
);
main!(library_benchmark_groups = message);
