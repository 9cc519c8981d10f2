//! Two adapters in two pinned threads, compared with the limits of the same cores and with UCX.
//!
//! ```text
//! cargo bench -p pollux-perf --bench threads [-- --json]
//! ```
//!
//! The measurements take turns, so that other load affects all of them alike; the bench prints
//! medians. The limits are measured on the same cores in the same run: the round trip of one cache
//! line; the round trip of two lines each way, as many as a 64-byte message with its header needs;
//! a copy of 1 MiB. If UCX is installed (`scripts/host-setup --peers`), `ucx_perftest` runs over
//! POSIX shared memory, pinned to the same cores.
//!
//! On two cores of a virtual machine (Xeon with AVX-512, 2.3 GHz), 21 November 2026, with other
//! load, at real-time priority (`chrt -f 50`), from three runs:
//!
//! | what | figure | reference | budget |
//! |---|---|---|---|
//! | half the round trip of a cache line | 90 to 96 ns | | |
//! | two lines each way, half | 194 to 208 ns | | |
//! | RC, 64 bytes, one way | 359 to 368 ns | 3.7 to 4.1 x the line; 1.8 x the two lines | 1.5 x |
//! | the same | | 0.73 to 0.75 x `tag_lat` of UCX | 1.0 x |
//! | UD, 64 bytes, one way | 404 ns | 4.2 to 4.5 x the line | 1.5 x |
//! | RC, 64 bytes, batches of 32 | 9.2 to 11.7 M/s | 1.2 to 1.9 x `tag_bw` of UCX | 2.0 x |
//! | the same on 1,000 queue pairs, one SRQ | 8.4 to 9.1 M/s | 1.1 to 1.3 x slower | 1.3 x |
//! | RC, 64 KiB | 30 GB/s | 1.3 to 1.4 x a copy | 0.8 x |
//! | RC, 1 MiB | 21 to 22 GB/s | 0.96 x a copy | 0.8 x |
//! | RC, 64 bytes, as packets | 1.0 us, 3.0 M/s | 2.6 x slower, 3 to 4 x fewer | |
//! | RC, 1 MiB, as packets | 1.1 GB/s | 19 x slower | |
//!
//! Cache line transfers between the cores bound short messages. The round trip of a cache line
//! moves one line that both sides write. A message cannot share a line with its reply, and it needs
//! two lines. The transfers alone take 200 ns per message, which is more than the budget of 1.5 x.
//! The instructions (see the bench `instructions`) add to this: with both ends in one thread,
//! posting a message takes 22 ns and receiving it 29 ns. The same transfers bound the rate: in one
//! thread, a message costs the sender 30 ns and the receiver 37 ns. Packets are slow because both
//! ends compute the variant CRC, at 0.8 bytes per clock cycle.
#![expect(clippy::disallowed_methods, reason = "a bench reads the clock, and its arguments")]

mod ends;

use core_affinity::CoreId;
use ends::{ThreadEnd, ends};
use pollux_perf::judgement::Estimate;
use pollux_perf::machine::{copy, lines, on_both};
use pollux_perf::peers::{RunConfig, ucx};
use pollux_perf::verbs::end::{GRH_BYTES, VerbsEndSetup};
use pollux_verbs::*;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

/// Runs of each measurement. The figure is their median.
const RUNS: usize = 7;
const ROUNDS: u32 = 10_000;

/// A measurement: its name, its unit, and a function that returns `None` if a program is missing.
type Figure = (&'static str, &'static str, Box<dyn Fn() -> Option<f64>>);

fn main() {
    let cores = core_affinity::get_core_ids().unwrap_or_default();
    let [CoreId { id: first }, CoreId { id: second }, ..] = cores[..] else {
        return println!("SKIP: there are not two cores");
    };
    let figures = figures([first, second]);
    let mut runs = vec![Vec::new(); figures.len()];
    for _ in 0..RUNS {
        for ((_, _, measure), runs) in figures.iter().zip(&mut runs) {
            runs.extend(measure());
        }
    }
    let medians: Vec<Option<f64>> =
        runs.into_iter().map(|run| Some(Estimate::of(run)?.median)).collect();
    let of = |name: &str| medians[figures.iter().position(|(other, ..)| *other == name)?];
    if std::env::args().any(|argument| argument == "--json") {
        return print_json(&figures, &medians, &of);
    }
    for ((name, unit, _), median) in figures.iter().zip(&medians) {
        match median {
            Some(median) => println!("{name:36} {median:10.2} {unit}"),
            None => println!("{name:36}          - {unit}   (not installed)"),
        }
    }
    println!();
    for (what, ratio, budget) in ratios(&of) {
        println!("{what:60} {ratio:6.2} x   {budget}");
    }
}

fn figures(cores: [usize; 2]) -> Vec<Figure> {
    use QpType::{Rc, Uc, Ud};
    let config = RunConfig { cores, fifo: None, duration: Duration::from_millis(200) };
    let of = |qp_type| (VerbsEndSetup::of(qp_type), false);
    let packets = (VerbsEndSetup::of(Rc), true);
    let thousand = (VerbsEndSetup { qps: 1000, has_srq: true, ..VerbsEndSetup::of(Rc) }, false);
    let one_way = |setup, bytes| move || Some(one_way(cores, setup, bytes));
    let many = |setup, bytes, batch| move || Some(rate(cores, setup, bytes, batch) * 1e-6);
    let bandwidth =
        |setup, bytes: u32| move || Some(rate(cores, setup, bytes, 4) * f64::from(bytes) * 1e-9);
    vec![
        ("cache line to and fro, half", "ns", Box::new(move || Some(lines(cores, false)))),
        ("two lines each way, half", "ns", Box::new(move || Some(lines(cores, true)))),
        ("copy of 1 MiB", "GB/s", Box::new(|| Some(copy() * 1e-9))),
        ("RC 64 bytes one way", "ns", Box::new(one_way(of(Rc), 64))),
        ("UC 64 bytes one way", "ns", Box::new(one_way(of(Uc), 64))),
        ("UD 64 bytes one way", "ns", Box::new(one_way(of(Ud), 64))),
        ("RC 64 bytes one way, packets", "ns", Box::new(one_way(packets, 64))),
        ("UCX tag_lat 64 bytes", "ns", Box::new(move || ucx::tag_lat(&config, 64).ok())),
        ("RC 2 KiB one way", "ns", Box::new(one_way(of(Rc), 2048))),
        ("UC 2 KiB one way", "ns", Box::new(one_way(of(Uc), 2048))),
        ("UD 2 KiB one way", "ns", Box::new(one_way(of(Ud), 2048))),
        ("RC 2 KiB one way, packets", "ns", Box::new(one_way(packets, 2048))),
        ("RC 64 bytes, batches of 32", "M/s", Box::new(many(of(Rc), 64, 32))),
        ("the same on 1,000 queue pairs, SRQ", "M/s", Box::new(many(thousand, 64, 32))),
        ("RC 64 bytes, batches, packets", "M/s", Box::new(many(packets, 64, 32))),
        (
            "UCX tag_bw 64 bytes",
            "M/s",
            Box::new(move || Some(ucx::tag_bw(&config, 64).ok()? * 1e-6)),
        ),
        ("RC 64 KiB", "GB/s", Box::new(bandwidth(of(Rc), 64 << 10))),
        ("RC 1 MiB", "GB/s", Box::new(bandwidth(of(Rc), 1 << 20))),
        ("RC 1 MiB, packets", "GB/s", Box::new(bandwidth(packets, 1 << 20))),
    ]
}

/// Ratios of two figures each, with their budgets.
fn ratios(of: &dyn Fn(&str) -> Option<f64>) -> Vec<(String, f64, &'static str)> {
    let line = "cache line to and fro, half";
    let beside = [
        ("RC 64 bytes one way", line, "<= 1.5"),
        ("UD 64 bytes one way", line, "<= 1.5"),
        ("RC 64 bytes one way", "two lines each way, half", ""),
        ("RC 64 bytes one way", "UCX tag_lat 64 bytes", "<= 1.0"),
        ("RC 64 bytes, batches of 32", "UCX tag_bw 64 bytes", ">= 2.0"),
        ("RC 64 bytes, batches of 32", "the same on 1,000 queue pairs, SRQ", "<= 1.3"),
        ("RC 64 KiB", "copy of 1 MiB", ">= 0.8"),
        ("RC 1 MiB", "copy of 1 MiB", ">= 0.8"),
        ("RC 64 bytes one way, packets", "RC 64 bytes one way", ""),
        ("RC 2 KiB one way, packets", "RC 2 KiB one way", ""),
        ("RC 64 bytes, batches of 32", "RC 64 bytes, batches, packets", ""),
        ("RC 1 MiB", "RC 1 MiB, packets", ""),
    ];
    let ratio =
        |(ours, peer, budget)| Some((format!("{ours} / {peer}"), of(ours)? / of(peer)?, budget));
    beside.into_iter().filter_map(ratio).collect()
}

fn print_json(figures: &[Figure], medians: &[Option<f64>], of: &dyn Fn(&str) -> Option<f64>) {
    let figures = figures.iter().zip(medians).map(|((name, unit, _), median)| {
        let median = median.map_or("null".to_string(), |median| format!("{median:.3}"));
        format!(r#"    {{"id": "{name}", "median": {median}, "unit": "{unit}"}}"#)
    });
    let ratios = ratios(of).into_iter().map(|(what, ratio, budget)| {
        format!(r#"    {{"id": "{what}", "ratio": {ratio:.3}, "budget": "{budget}"}}"#)
    });
    let join = |rows: Vec<String>| rows.join(",\n");
    let (figures, ratios) = (join(figures.collect()), join(ratios.collect()));
    println!("{{\n  \"figures\": [\n{figures}\n  ],\n  \"ratios\": [\n{ratios}\n  ]\n}}");
}

/// Half the round trip of a message, in nanoseconds. Short messages are sent inline.
fn one_way(cores: [usize; 2], (setup, packets_only): (VerbsEndSetup, bool), bytes: u32) -> f64 {
    let [mut a, mut b] = ends(setup, packets_only);
    let room = bytes + GRH_BYTES;
    for end in [&mut a, &mut b] {
        (0..64).for_each(|_| end.recv(room).expect("there is room"));
    }
    let turns = |end: &mut ThreadEnd, begins: bool| {
        for _ in 0..ROUNDS {
            if begins {
                end.send(bytes).expect("there is room");
            }
            end.wait(|| false).expect("all goes well");
            if !begins {
                end.send(bytes).expect("there is room");
            }
            end.recv(room).expect("there is room");
        }
    };
    let begun = Instant::now();
    on_both(cores, || turns(&mut a, true), || turns(&mut b, false));
    begun.elapsed().as_nanos() as f64 / f64::from(ROUNDS) / 2.0
}

/// Messages per second in one direction. Each batch is posted to the next queue pair.
fn rate(
    cores: [usize; 2],
    (setup, packets_only): (VerbsEndSetup, bool),
    bytes: u32,
    batch: usize,
) -> f64 {
    let [mut a, mut b] = ends(setup, packets_only);
    let total = if bytes > 4096 { 400 } else { 200_000 / batch * batch };
    let over = AtomicBool::new(false);
    (0..512).for_each(|_| b.recv(bytes).expect("there is room"));
    let sge = [Sge { address: a.region.address, bytes, lkey: a.region.lkey }];
    let request = |flags| SendRequest { id: 0, op: SendOp::Send, flags, data: Data::Sges(&sge) };
    let mut requests = vec![request(SendFlags::NONE); batch];
    requests[batch - 1] = request(SendFlags::SIGNALED);
    let elapsed = on_both(
        cores,
        || {
            let begun = Instant::now();
            let (mut sent, mut done, mut out) = (0, 0, [Completion::NOTHING; 16]);
            let mut qps = a.qps.clone().into_iter().cycle();
            while done < total {
                if sent < total && sent - done + batch <= 256 {
                    let qp = qps.next().expect("there is one at least");
                    a.device.post_send(qp, &requests).expect("there is room");
                    sent += batch;
                }
                done += batch * a.device.poll(a.cq, &mut out).expect("it exists");
            }
            over.store(true, Ordering::Release);
            begun.elapsed()
        },
        || {
            let mut out = [Completion::NOTHING; 64];
            let mut came = 0;
            while came < total || !over.load(Ordering::Acquire) {
                let count = b.device.poll(b.cq, &mut out).expect("it exists");
                came += count;
                (0..count).for_each(|_| b.recv(bytes).expect("there is room"));
            }
        },
    );
    total as f64 / elapsed.as_secs_f64()
}
