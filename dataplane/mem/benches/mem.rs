//! What the parts of `pollux-mem` cost, beside what the machine asks for the same.
//!
//! `round_trip` is between two threads pinned to two cores, so two hops. Its yardstick is
//! `cache_line`: the same over two bare words, as quick as two cores can tell each other anything.
//! All else is on one thread, per element, warm.
#![allow(missing_docs, reason = "criterion's macros make public functions")]

use criterion::{Criterion, Throughput, criterion_group, criterion_main};
use pollux_mem::counters::Counters;
use pollux_mem::shared_ring::{SharedConsumer, SharedProducer, SharedRing};
use pollux_mem::snapshot::Publisher;
use pollux_mem::{Buf, CachePadded, Pool, PoolConfig, Words, mpsc, spsc};
use std::hint::{black_box, spin_loop};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread;

/// A shared entry the size of a cache line: a descriptor with room for a small inline packet.
type Entry = [u64; 8];

const ENTRIES: usize = 256;
const BATCH: usize = 32;
const CONFIG: PoolConfig = PoolConfig { buffers: 4096, buffer_octets: 2048, headroom_octets: 128 };

fn shared() -> (SharedProducer<Entry>, SharedConsumer<Entry>) {
    let words = Words::private(SharedRing::<Entry>::words(ENTRIES).unwrap()).unwrap();
    let producer = SharedRing::create(words.clone(), ENTRIES).unwrap().producer().unwrap();
    (producer, SharedRing::open(words).unwrap().consumer().unwrap())
}

fn wait<T>(mut poll: impl FnMut() -> Option<T>) -> T {
    loop {
        if let Some(value) = poll() {
            return value;
        }
        spin_loop();
    }
}

/// Measures `ask`, which is a whole round trip, while `answer` is called without end on another core.
fn round_trip(
    criterion: &mut Criterion,
    name: &str,
    mut ask: impl FnMut(),
    mut answer: impl FnMut() + Send,
) {
    let cores = core_affinity::get_core_ids().unwrap_or_default();
    let (Some(&ours), Some(&theirs)) = (cores.first(), cores.get(1)) else {
        return println!("SKIP round_trip/{name}: needs two cores");
    };
    let done = AtomicBool::new(false);
    thread::scope(|scope| {
        scope.spawn(|| {
            core_affinity::set_for_current(theirs);
            while !done.load(Ordering::Relaxed) {
                answer();
            }
        });
        core_affinity::set_for_current(ours);
        criterion.bench_function(&format!("round_trip/{name}"), |bencher| bencher.iter(&mut ask));
        done.store(true, Ordering::Relaxed);
    });
}

fn round_trips(criterion: &mut Criterion) {
    let lines = [CachePadded(AtomicU64::new(0)), CachePadded(AtomicU64::new(0))];
    let [ping, pong] = &lines;
    let mut count = 0;
    let ask = || {
        count += 1;
        ping.store(count, Ordering::Release);
        wait(|| (pong.load(Ordering::Acquire) == count).then_some(()));
    };
    let mut last = 0;
    let answer = || {
        let now = ping.load(Ordering::Acquire);
        if now != last {
            last = now;
            pong.store(now, Ordering::Release);
        }
    };
    round_trip(criterion, "cache_line", ask, answer);

    let (mut out, mut there) = spsc::ring::<u64>(ENTRIES).unwrap();
    let (mut back, mut inward) = spsc::ring::<u64>(ENTRIES).unwrap();
    let ask = || {
        out.push(1).unwrap();
        black_box(wait(|| inward.pop()));
    };
    let answer = || drop(there.pop().map(|value| back.push(value).unwrap()));
    round_trip(criterion, "spsc_u64", ask, answer);

    let pool = Pool::new(CONFIG).unwrap();
    let mut travelling = pool.alloc();
    let (mut out, mut there) = spsc::ring::<Buf>(ENTRIES).unwrap();
    let (mut back, mut inward) = spsc::ring::<Buf>(ENTRIES).unwrap();
    let ask = || {
        out.push(travelling.take().unwrap()).unwrap();
        travelling = Some(wait(|| inward.pop()));
    };
    let answer = || drop(there.pop().map(|buf| back.push(buf).unwrap()));
    round_trip(criterion, "spsc_buf", ask, answer);

    let ((mut out, mut there), (mut back, mut inward)) = (shared(), shared());
    let ask = || {
        assert!(out.push(&[1; 8]));
        black_box(wait(|| inward.pop()));
    };
    let answer = || drop(there.pop().map(|entry| assert!(back.push(&entry))));
    round_trip(criterion, "shared_64_octets", ask, answer);

    let (out, mut there) = mpsc::ring::<u64>(ENTRIES).unwrap();
    let (back, mut inward) = mpsc::ring::<u64>(ENTRIES).unwrap();
    let ask = || {
        out.push(1).unwrap();
        black_box(wait(|| inward.pop()));
    };
    let answer = || drop(there.pop().map(|value| back.push(value).unwrap()));
    round_trip(criterion, "mpsc_u64", ask, answer);
}

fn rings(criterion: &mut Criterion) {
    let mut group = criterion.benchmark_group("ring");
    group.throughput(Throughput::Elements(BATCH as u64));

    let (mut producer, mut consumer) = spsc::ring::<u64>(ENTRIES).unwrap();
    group.bench_function("spsc_u64_one_by_one_x32", |bencher| {
        bencher.iter(|| {
            (0..BATCH as u64).for_each(|value| producer.push(value).unwrap());
            (0..BATCH).for_each(|_| drop(black_box(consumer.pop())));
        });
    });
    let (values, mut out) = ([7u64; BATCH], [0u64; BATCH]);
    group.bench_function("spsc_u64_batch_x32", |bencher| {
        bencher.iter(|| {
            producer.push_slice(black_box(&values));
            consumer.pop_into(black_box(&mut out))
        });
    });
    let (mut producer, mut consumer) = shared();
    let (values, mut out) = ([[7; 8]; BATCH], [[0; 8]; BATCH]);
    group.bench_function("shared_64_octets_batch_x32", |bencher| {
        bencher.iter(|| {
            producer.push_slice(black_box(&values));
            consumer.pop_into(black_box(&mut out))
        });
    });
    let (sender, mut receiver) = mpsc::ring::<u64>(ENTRIES).unwrap();
    group.bench_function("mpsc_u64_x32", |bencher| {
        bencher.iter(|| {
            (0..BATCH as u64).for_each(|value| sender.push(value).unwrap());
            (0..BATCH).for_each(|_| drop(black_box(receiver.pop())));
        });
    });
}

fn pools(criterion: &mut Criterion) {
    let pool = Pool::new(CONFIG).unwrap();
    println!("{pool:?}");
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
    let mut kept = cache.alloc();
    group.bench_function("into_raw_claim", |bencher| {
        bencher.iter(|| kept = pool.claim(black_box(kept.take().unwrap().into_raw())));
    });
    group.throughput(Throughput::Elements(BATCH as u64));
    let mut held = Vec::with_capacity(8 * BATCH);
    group.bench_function("cache_alloc_x32_free_x32", |bencher| {
        bencher.iter(|| {
            cache.alloc_batch(&mut held, BATCH);
            held.drain(..).for_each(|buf| cache.free(buf));
        });
    });
    // One worker only allocates, another only frees: all that goes round passes the shared list.
    let mut other = pool.cache(4 * BATCH);
    group.bench_function("alloc_here_free_there_x32", |bencher| {
        bencher.iter(|| {
            cache.alloc_batch(&mut held, BATCH);
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
    let mut counters = Counters::new(Words::private(16).unwrap());
    criterion.bench_function("counter_add", |bencher| {
        bencher.iter(|| counters.add(black_box(3), 1));
    });
}

criterion_group! {
    name = benches;
    config = Criterion::default().without_plots();
    targets = round_trips, rings, pools, published
}
criterion_main!(benches);
