//! The costs of the parts of `pollux-mem`, compared with the cost of a bare cache line transfer.
//!
//! `hop` is half a round trip between two threads pinned to two cores. Its reference is
//! `cache_line`: the same over two bare words, the fastest way for two cores to notify each other.
//! All other benches run on one thread, warm; `x32` counts 32 elements in each direction.
//!
//! Measured on a virtual machine with 2 cores of a 2.8 GHz Xeon, shared with other work. The
//! placement of the two cores changes from one minute to the next there. So the hops have two
//! columns: two hardware threads of one core, and two separate cores. The figures are nanoseconds,
//! medians of 2000 slices:
//!
//! | hop                | siblings       | apart           |
//! |--------------------|----------------|-----------------|
//! | bare cache line    | 22.9           | 150             |
//! | mpsc, `u64`        | 36.4 (1.59 x)  | 154 (1.03 x)    |
//!
//! On separate cores the transfer of the cache line dominates. Between siblings the instructions
//! around it dominate, such as the compare-and-swap of mpsc.
//!
//! | one thread                                   | ns an element |
//! |----------------------------------------------|---------------|
//! | mpsc `u64`, push and pop                     | 16.1          |
//! | pool, cached alloc and free                  | 2.0           |
//! | pool, 32 cached allocs, then 32 frees        | 3.1           |
//! | pool, alloc in one cache, free in another    | 6.8           |
//! | pool, alloc and drop without a cache         | 40            |
//! | snapshot, refresh with nothing new           | 0.7           |
//! | counter, add                                 | 2.6           |
#![allow(clippy::disallowed_methods, reason = "a bench reads the clock")]

use criterion::{Criterion, Throughput, criterion_group, criterion_main};
use pollux_mem::counters::SharedCounters;
use pollux_mem::snapshot::Publisher;
use pollux_mem::{CachePadded, Pool, PoolConfig, Words, mpsc};
use std::hint::black_box;
use std::mem;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::thread;
use std::time::Instant;

const ENTRIES: usize = 256;
const BATCH: usize = 32;
const CONFIG: PoolConfig = PoolConfig { buffers: 4096, buffer_bytes: 2048, headroom_bytes: 128 };

fn wait<T>(mut poll: impl FnMut() -> Option<T>) -> T {
    loop {
        if let Some(value) = poll() {
            return value;
        }
    }
}

/// The two sides of a round trip: `ask` starts it and waits for the reply, and `answer` is called
/// in a loop.
struct Pair {
    name: &'static str,
    ask: Box<dyn FnMut()>,
    answer: Box<dyn FnMut() + Send>,
    /// Nanoseconds per hop, one figure per slice.
    hops_ns: Vec<f64>,
}

impl Pair {
    fn new(
        name: &'static str,
        ask: impl FnMut() + 'static,
        answer: impl FnMut() + Send + 'static,
    ) -> Self {
        Self { name, ask: Box::new(ask), answer: Box::new(answer), hops_ns: Vec::new() }
    }

    /// The hop at this percentile of the slices. The figures must be sorted.
    fn percentile(&self, rank: usize) -> f64 {
        self.hops_ns[self.hops_ns.len() * rank / 100]
    }
}

fn cache_line() -> Pair {
    let lines = Arc::new([CachePadded(AtomicU64::new(0)), CachePadded(AtomicU64::new(0))]);
    let (mut count, mut last, theirs) = (0, 0, lines.clone());
    let ask = move || {
        count += 1;
        lines[0].store(count, Ordering::Release);
        wait(|| (lines[1].load(Ordering::Acquire) == count).then_some(()));
    };
    let answer = move || {
        let now = theirs[0].load(Ordering::Acquire);
        if now != last {
            last = now;
            theirs[1].store(now, Ordering::Release);
        }
    };
    Pair::new("cache_line", ask, answer)
}

fn mpsc() -> Pair {
    let (out, mut there) = mpsc::ring(ENTRIES).unwrap();
    let (back, mut inward) = mpsc::ring(ENTRIES).unwrap();
    let ask = move || {
        out.push(1u64).unwrap();
        black_box(wait(|| inward.pop()));
    };
    let answer = move || there.pop().into_iter().for_each(|value| back.push(value).unwrap());
    Pair::new("mpsc_u64", ask, answer)
}

/// Hops between two pinned threads. The kinds alternate in slices far shorter than a time slice of
/// the scheduler, so other load affects all kinds alike and few slices of each.
fn hops(_: &mut Criterion) {
    const SLICES: usize = 2000;
    const TRIPS: u32 = 200;
    let cores = core_affinity::get_core_ids().unwrap_or_default();
    let &[ours, theirs, ..] = &cores[..] else { return println!("SKIP hop: needs two cores") };
    let mut pairs = [cache_line(), mpsc()];
    let mut answers: Vec<_> =
        pairs.iter_mut().map(|pair| mem::replace(&mut pair.answer, Box::new(|| ()))).collect();
    let turn = &AtomicUsize::new(0);
    thread::scope(|scope| {
        scope.spawn(move || {
            core_affinity::set_for_current(theirs);
            while let Some(answer) = answers.get_mut(turn.load(Ordering::Relaxed)) {
                answer();
            }
        });
        core_affinity::set_for_current(ours);
        for _ in 0..SLICES {
            for (index, pair) in pairs.iter_mut().enumerate() {
                turn.store(index, Ordering::Relaxed);
                (pair.ask)();
                let start = Instant::now();
                (0..TRIPS).for_each(|_| (pair.ask)());
                pair.hops_ns.push(start.elapsed().as_nanos() as f64 / f64::from(2 * TRIPS));
            }
        }
        turn.store(usize::MAX, Ordering::Relaxed);
    });
    pairs.iter_mut().for_each(|pair| pair.hops_ns.sort_by(f64::total_cmp));
    for pair in &pairs {
        let [low, median] = [10, 50].map(|rank| pair.percentile(rank));
        let [low_ratio, ratio] =
            [10, 50].map(|rank| pair.percentile(rank) / pairs[0].percentile(rank));
        let name = pair.name;
        println!(
            "hop/{name:18} p10 {low:7.1} ns ({low_ratio:.2} x)  \
             median {median:7.1} ns ({ratio:.2} x)"
        );
    }
}

fn rings(criterion: &mut Criterion) {
    let mut group = criterion.benchmark_group("ring");
    group.throughput(Throughput::Elements(BATCH as u64));

    let (sender, mut receiver) = mpsc::ring::<u64>(ENTRIES).unwrap();
    group.bench_function("mpsc_u64_x32", |bencher| {
        bencher.iter(|| {
            (0..BATCH as u64).for_each(|value| sender.push(value).unwrap());
            (0..BATCH).for_each(|_| assert!(black_box(receiver.pop()).is_some()));
        });
    });
}

/// KiB of this process on transparent and reserved huge pages.
fn huge_kib() -> u64 {
    let text = std::fs::read_to_string("/proc/self/smaps_rollup").unwrap_or_default();
    let huge = |line: &&str| line.starts_with("AnonHugePages") || line.contains("_Hugetlb");
    let kib = text.lines().filter(huge).filter_map(|line| line.split_whitespace().nth(1));
    kib.filter_map(|kib| kib.parse::<u64>().ok()).sum()
}

fn pools(criterion: &mut Criterion) {
    let pool = Pool::new(CONFIG).unwrap();
    println!("{pool:?}; {} KiB of the process on huge pages", huge_kib());
    let mut cache = pool.cache(4 * BATCH);
    let mut group = criterion.benchmark_group("pool");
    group.bench_function("cache_alloc_free", |bencher| {
        bencher.iter(|| {
            let buf = black_box(cache.alloc().unwrap());
            cache.free(buf);
        });
    });
    group.bench_function("without_cache_alloc_drop", |bencher| {
        bencher.iter(|| drop(black_box(pool.alloc())));
    });
    group.throughput(Throughput::Elements(BATCH as u64));
    let mut held = Vec::with_capacity(8 * BATCH);
    group.bench_function("cache_alloc_x32_free_x32", |bencher| {
        bencher.iter(|| {
            held.extend(std::iter::from_fn(|| cache.alloc()).take(BATCH));
            held.drain(..).for_each(|buf| cache.free(buf));
        });
    });
    // One worker only allocates and another only frees, so every buffer passes through the shared
    // list.
    let mut other = pool.cache(4 * BATCH);
    group.bench_function("alloc_here_free_there_x32", |bencher| {
        bencher.iter(|| {
            held.extend(std::iter::from_fn(|| cache.alloc()).take(BATCH));
            held.drain(..).for_each(|buf| other.free(buf));
        });
    });
}

fn published(criterion: &mut Criterion) {
    let publisher = Publisher::new([0u64; 64]);
    let mut snapshot = publisher.reader();
    criterion.bench_function("snapshot_refresh", |bencher| {
        bencher.iter(|| black_box(snapshot.refresh())[7]);
    });
    let mut counters = SharedCounters::new(Words::private(16).unwrap());
    criterion.bench_function("counter_add", |bencher| {
        bencher.iter(|| counters.add(black_box(3), 1));
    });
}

criterion_group! {
    name = benches;
    config = Criterion::default().without_plots();
    targets = hops, rings, pools, published
}
criterion_main!(benches);
