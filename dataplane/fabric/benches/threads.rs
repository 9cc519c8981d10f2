//! Two adapters in two pinned threads, against what the same cores can do at best.
//!
//! ```text
//! cargo bench -p pollux-fabric --bench threads
//! ```
//!
//! Each figure stands beside a bare one of the same run: half the round trip of a cache line
//! between the two cores, and the bandwidth of a copy. Runs are interleaved, and medians are shown.
//!
//! On two cores of a virtual machine (Xeon with AVX-512, clock of 2.3 GHz), from six runs:
//!
//! | what | figure | beside the bare one | wanted |
//! |---|---|---|---|
//! | half a cache line's round trip | 82 to 101 ns | | |
//! | RC, 64 octets inline, one way | 690 to 1200 ns | 8 to 13 x | 1.5 x |
//! | UD, 64 octets inline, one way | 570 to 980 ns | 7 to 10 x | 1.5 x |
//! | RC, 64 octets, batches of 32 | 2.2 to 3.1 M/s | | |
//! | RC, 1 MiB | 16 to 19 GB/s | 0.64 to 0.79 x | 0.8 x |
//!
//! What bounds the small ones is our own work: callgrind counts 4,900 instructions for a message,
//! its acknowledgement and the receive that is posted again, a quarter of them copies of frames and
//! requests of 200 to 400 octets on their way through the layers.
#![expect(clippy::disallowed_methods, reason = "a bench reads the clock")]

mod two;

use core_affinity::CoreId;
use pollux_verbs::*;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};
use two::{NOTHING, ends};

/// Interleaved runs, of which the median counts.
const RUNS: usize = 5;
const ROUNDS: u32 = 20_000;

fn main() {
    let cores = core_affinity::get_core_ids().filter(|cores| cores.len() >= 2);
    let Some(cores) = cores else { return println!("SKIP: there are not two cores") };
    let mut rows = [const { Vec::new() }; 6];
    for _ in 0..RUNS {
        rows[0].push(cache_line(&cores));
        rows[1].push(ping_pong(&cores, QpType::Rc));
        rows[2].push(ping_pong(&cores, QpType::Ud));
        rows[3].push(rate(&cores, 64, 32) * 1e-6);
        rows[4].push(rate(&cores, 1 << 20, 4) * f64::from(1 << 20) * 1e-9);
        rows[5].push(copy() * 1e-9);
    }
    let [line, rc, ud, rate, bandwidth, copy] = rows.map(median);
    println!("half a cache line's round trip   {line:8.1} ns");
    println!("RC 64 octets inline, one way     {rc:8.1} ns   {:.2} x", rc / line);
    println!("UD 64 octets inline, one way     {ud:8.1} ns   {:.2} x", ud / line);
    println!("RC 64 octets, batches of 32      {rate:8.2} M/s");
    println!("RC 1 MiB                         {bandwidth:8.2} GB/s {:.2} x", bandwidth / copy);
    println!("copy of 1 MiB                    {copy:8.2} GB/s");
}

fn median(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    values[values.len() / 2]
}

/// Runs one closure on each core, and gives what the first says.
fn on_both<T: Send>(
    cores: &[CoreId],
    first: impl FnOnce() -> T + Send,
    second: impl FnOnce() + Send,
) -> T {
    std::thread::scope(|scope| {
        let pinned = scope.spawn(|| {
            core_affinity::set_for_current(cores[0]);
            first()
        });
        scope.spawn(|| {
            core_affinity::set_for_current(cores[1]);
            second();
        });
        pinned.join().expect("the first thread does not panic")
    })
}

fn cache_line(cores: &[CoreId]) -> f64 {
    let line = AtomicU64::new(0);
    let turn = |mine: u64| {
        for round in 0..u64::from(ROUNDS) {
            let expected = round * 2 + mine;
            while line.load(Ordering::Acquire) != expected {
                std::hint::spin_loop();
            }
            line.store(expected + 1, Ordering::Release);
        }
    };
    let begun = Instant::now();
    on_both(cores, || turn(0), || turn(1));
    begun.elapsed().as_nanos() as f64 / f64::from(ROUNDS) / 2.0
}

fn copy() -> f64 {
    let (from, mut to) = (vec![1u8; 1 << 20], vec![0u8; 1 << 20]);
    let begun = Instant::now();
    for _ in 0..500 {
        to.copy_from_slice(std::hint::black_box(&from));
        std::hint::black_box(&mut to);
    }
    500.0 * f64::from(1 << 20) / begun.elapsed().as_secs_f64()
}

/// Half the round trip of a message.
fn ping_pong(cores: &[CoreId], qp_type: QpType) -> f64 {
    let [mut a, mut b] = ends(qp_type);
    let [qpn_a, qpn_b] = [&a, &b].map(|end| end.device.qpn(end.qp).expect("it exists"));
    for _ in 0..64 {
        a.recv(128);
        b.recv(128);
    }
    let begun = Instant::now();
    on_both(
        cores,
        || {
            for _ in 0..ROUNDS {
                a.send_inline(qp_type, qpn_b);
                a.wait();
                a.recv(128);
            }
        },
        || {
            for _ in 0..ROUNDS {
                b.wait();
                b.send_inline(qp_type, qpn_a);
                b.recv(128);
            }
        },
    );
    begun.elapsed().as_nanos() as f64 / f64::from(ROUNDS) / 2.0
}

/// Messages a second, one way, in batches.
fn rate(cores: &[CoreId], octets: u32, batch: usize) -> f64 {
    let [mut a, mut b] = ends(QpType::Rc);
    let total = if octets > 4096 { 400 } else { 400_000 };
    let over = AtomicBool::new(false);
    for _ in 0..512 {
        b.recv(octets);
    }
    let sge = [Sge { address: a.region.address, octets, lkey: a.region.lkey }];
    let request = |flags| SendRequest { id: 0, op: SendOp::Send, flags, data: Data::Sges(&sge) };
    let mut requests = vec![request(SendFlags::NONE); batch];
    requests[batch - 1] = request(SendFlags::SIGNALED);
    let elapsed = on_both(
        cores,
        || {
            let begun = Instant::now();
            let (mut sent, mut done, mut out) = (0, 0, [NOTHING; 16]);
            while done < total {
                if sent < total && sent - done + batch <= 256 {
                    a.device.post_send(a.qp, &requests).expect("there is room");
                    sent += batch;
                }
                done += batch * a.device.poll(a.cq, &mut out).expect("it exists");
            }
            over.store(true, Ordering::Release);
            begun.elapsed()
        },
        || {
            let mut out = [NOTHING; 64];
            let mut came = 0;
            while came < total || !over.load(Ordering::Acquire) {
                let count = b.device.poll(b.cq, &mut out).expect("it exists");
                came += count;
                for _ in 0..count {
                    b.recv(octets);
                }
            }
        },
    );
    per_second(total, elapsed)
}

fn per_second(count: usize, elapsed: Duration) -> f64 {
    count as f64 / elapsed.as_secs_f64()
}
