//! Times of the hot formats, for information only; the bench `instructions` enforces limits.
//!
//! ```text
//! cargo bench -p pollux-wire --bench times
//! ```
//!
//! Results on a shared virtual machine with two cores (Xeon with AVX-512, 2.3 GHz):
//!
//! | bench | time | bytes per clock cycle |
//! |---|---|---|
//! | `parse` | 9 ns | |
//! | `emit` | 4 ns | |
//! | `icrc` of a packet with 2 KiB of payload | 74 to 93 ns | 10 to 12 |
//! | `vcrc` of the same packet | 1.1 us | 0.8 |
//! | `ipv4 checksum update`, each depending on the previous one | 14 ns | |

mod frame;

use criterion::{BenchmarkId, Criterion, Throughput, criterion_group, criterion_main};
use frame::Flow;
use pollux_wire::ip::ipv4::Ipv4Header;
use pollux_wire::packet::{Packet, crc};
use std::hint::black_box;

fn headers(criterion: &mut Criterion) {
    let packet = Flow::BROADCAST.packet();
    criterion.bench_function("parse", |bencher| {
        bencher.iter(|| Packet::parse(black_box(&packet)).ok().and_then(|p| Flow::of(&p)));
    });
    let mut out = [0; frame::LEN];
    criterion.bench_function("emit", |bencher| {
        bencher.iter(|| black_box(&Flow::BROADCAST).write_headers(&mut out));
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

fn checksum_update(criterion: &mut Criterion) {
    let mut header = Ipv4Header { ttl: 64, ..Ipv4Header::default() }.emit();
    criterion.bench_function("ipv4 checksum update", |bencher| {
        bencher.iter(|| Ipv4Header::decrement_ttl(black_box(&mut header)));
    });
}

criterion_group!(times, headers, crcs, checksum_update);
criterion_main!(times);
