//! Times of the hot formats, for people to read; `instructions` is what is held to a limit.
//!
//! ```text
//! cargo bench -p pollux-wire --bench times
//! ```

mod frame;

use criterion::{BenchmarkId, Criterion, Throughput, criterion_group, criterion_main};
use frame::Flow;
use pollux_wire::packet::{Packet, crc};
use std::hint::black_box;

fn headers(criterion: &mut Criterion) {
    let packet = Flow::BROADCAST.packet();
    criterion.bench_function("parse", |bencher| {
        bencher.iter(|| Packet::parse(black_box(&packet)).ok().and_then(|p| Flow::of(&p)));
    });
    let mut out = [0; frame::LEN];
    criterion.bench_function("emit", |bencher| {
        bencher.iter(|| black_box(&Flow::BROADCAST).headers().write(60, &mut out).is_ok());
    });
}

fn crcs(criterion: &mut Criterion) {
    for payload in [0, 256, 2048, 4096] {
        let packet = vec![3; 60 + payload];
        let mut group = criterion.benchmark_group("crc");
        group.throughput(Throughput::Bytes(packet.len() as u64));
        group.bench_with_input(BenchmarkId::new("icrc", payload), &packet, |bencher, packet| {
            bencher.iter(|| crc::icrc(black_box(packet)));
        });
        group.bench_with_input(BenchmarkId::new("vcrc", payload), &packet, |bencher, packet| {
            bencher.iter(|| crc::vcrc(black_box(packet)));
        });
    }
}

criterion_group!(times, headers, crcs);
criterion_main!(times);
