//! The instructions of a worker's breath on the null device, counted by callgrind. The bench fails
//! if they reach the limit.
//!
//! ```text
//! cargo bench -p pollux-dataplane --bench echo
//! ```
//!
//! A breath receives 62 or 63 datagrams of 64 bytes, decides their verdicts, looks up their routes
//! and sends them back. It takes 60,295 instructions, 973 per packet, including those of the
//! device. The count must be below 62,000.
//!
//! Why this is not part of `instructions`: code that is instantiated for two devices is inlined
//! differently, which increased the counts there by about eight.
#![expect(unused_qualifications, reason = "and name types in full")]

use gungraun::prelude::*;
use gungraun::{Callgrind, EventKind};
use pollux_dataplane::engine::counts::CountsWriter;
use pollux_dataplane::engine::echo::Echo;
use pollux_dataplane::engine::idle::Idle;
use pollux_dataplane::engine::{Handle, Worker, worker};
use pollux_fabric::null::NullDevice;
use pollux_verbs::time::Time;
use std::hint::black_box;
use std::net::Ipv4Addr;

/// The least number of packets of a breath: one or two of its 64 completions are of sends.
const ECHOED_MIN: u64 = 62;

fn below(instructions: u64) -> LibraryBenchmarkConfig {
    let mut callgrind = Callgrind::default();
    callgrind.hard_limits([(EventKind::Ir, instructions - 1)]);
    let mut config = LibraryBenchmarkConfig::default();
    config.tool(callgrind);
    config
}

struct Echoing {
    echo: Echo<NullDevice>,
    worker: Worker<()>,
    _handle: Handle<()>,
}

/// An echo worker after some breaths.
fn echo() -> Box<Echoing> {
    let echo = Echo::new(NullDevice::new(), Ipv4Addr::new(10, 0, 0, 1), 1000);
    let published = CountsWriter::nowhere().expect("there is memory");
    let (worker, handle) = worker(Idle::Poll, published, 7);
    let mut echoing =
        Box::new(Echoing { echo: echo.expect("it takes all"), worker, _handle: handle });
    for nanos in 1..=16 {
        echoing.worker.turn(Time::from_nanos(nanos), &mut echoing.echo);
    }
    echoing
}

#[library_benchmark(config = below(62_000))]
#[bench::ud(echo())]
fn echo_64(mut bench: Box<Echoing>) -> Box<impl Sized> {
    let before = bench.echo.echoed();
    let Echoing { echo, worker, .. } = &mut *bench;
    black_box(worker.turn(Time::from_nanos(17), echo));
    assert!(bench.echo.echoed() >= before + ECHOED_MIN);
    bench
}

library_benchmark_group!(name = engine, benchmarks = [echo_64]);
main!(library_benchmark_groups = engine);
