//! Instruction counts of the hot formats, measured by callgrind. A count at or above its limit is
//! a failure.
//!
//! ```text
//! cargo bench -p pollux-wire --bench instructions
//! ```
//!
//! The counts below are from rustc 1.95 with the bench profile, for x86-64 without additional CPU
//! features. Each count includes about fifteen instructions of the bench itself.
//!
//! | bench | instructions | must be below |
//! |---|---|---|
//! | `parse` | 146 | 150 |
//! | `emit` | 52 | 150 |
//! | `icrc` of 2 KiB | 1490 | 2000 |
//! | `ipv4_checksum_update` | 42 | 50 |
#![expect(unused_qualifications, reason = "and name types in full")]

mod frame;

use frame::Flow;
use gungraun::prelude::*;
use gungraun::{Callgrind, EventKind};
use pollux_wire::ip::ipv4::Ipv4Header;
use pollux_wire::packet::{Packet, crc};
use std::hint::black_box;

fn below(instructions: u64) -> LibraryBenchmarkConfig {
    let mut callgrind = Callgrind::default();
    callgrind.hard_limits([(EventKind::Ir, instructions - 1)]);
    let mut config = LibraryBenchmarkConfig::default();
    config.tool(callgrind);
    config
}

// Checks of LRH, GRH, BTH, DETH and encapsulation, and the fields that a receiver needs.
#[library_benchmark(config = below(150))]
#[bench::broadcast(Box::new(Flow::BROADCAST.packet()))]
fn parse(packet: Box<[u8; frame::LEN]>) -> Box<impl Sized> {
    if let Ok(packet) = Packet::parse(black_box(&packet[..])) {
        black_box(&Flow::of(&packet));
        black_box(packet.payload());
    }
    packet
}

// The headers of a datagram, from the fields of an address handle and a queue pair.
#[library_benchmark(config = below(150))]
#[bench::broadcast(Box::new((Flow::BROADCAST, [0; frame::LEN])))]
fn emit(mut frame: Box<(Flow, [u8; frame::LEN])>) -> Box<impl Sized> {
    let (flow, out) = black_box(&mut *frame);
    black_box(flow.write_headers(&mut out[..]));
    frame
}

#[library_benchmark(config = below(2000))]
#[bench::two_kib(Box::new([3; 60 + 2048]))]
fn icrc(packet: Box<[u8; 60 + 2048]>) -> Box<impl Sized> {
    black_box(crc::icrc(black_box(&packet[..])));
    packet
}

// The TTL and checksum update by which a router forwards an IPv4 packet.
#[library_benchmark(config = below(50))]
#[bench::ttl(Box::new(Ipv4Header { ttl: 64, ..Ipv4Header::default() }.emit()))]
fn ipv4_checksum_update(mut header: Box<[u8; Ipv4Header::LEN]>) -> Box<impl Sized> {
    black_box(Ipv4Header::decrement_ttl(black_box(&mut header)));
    header
}

library_benchmark_group!(name = formats, benchmarks = [parse, emit, icrc, ipv4_checksum_update]);
main!(library_benchmark_groups = formats);
