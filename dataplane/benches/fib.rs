//! Times of FIB operations, with one route up to a million routes.
//!
//! ```text
//! cargo bench -p pollux-dataplane --bench fib
//! ```
//!
//! Each figure is the best of six runs on Zen 3 with other load on the machine. Three of the runs
//! were without LTO. In the worst runs, look-ups took up to 2.6 times as long, and updates up to
//! 1.9 times.
//!
//! | routes | control: ms, MiB | version: ms, MiB | cold, hot ns | updates/s by 1,000, by one |
//! |---|---|---|---|---|
//! | 1 IPv4 | 0, 0 | 0, 0.1 | 6.2, 6.1 | - |
//! | 100,000 IPv4 | 13, 1.5 | 14, 5.2 | 15.8, 14.9 | 453,000, 143,000 |
//! | 1,000,000 IPv4 | 344, 12.2 | 33, 8.3 | 31, 22 | 191,000, 88,000 |
//! | 20,000 IPv6 | 5, - | 6, - | 59, 56 | 374,000, 85,000 |
//! | 250,000 IPv6 | 114, 10.2 | 79, 12.2 | 243, 86 | 105,000, 19,000 |
//!
//! Cold look-ups have a million destinations, hot ones 4,096, each within a random route. Memory is
//! the growth of the process. An update sets another group for a random route.
#![expect(clippy::disallowed_methods, reason = "it measures")]

use pollux_dataplane::fib::*;
use pollux_dataplane::forward::RouteLookup;
use pollux_dataplane::port::PortId;
use pollux_mem::snapshot::Publisher;
use pollux_verbs::rng::SeededRng;
use std::collections::BTreeSet;
use std::hint::black_box;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::time::{Duration, Instant};

/// The numbers of destinations that are looked up in turn: more than CPU caches hold, and a few
/// flows.
const COLD: usize = 1 << 20;
const HOT: usize = 1 << 12;
const GROUPS: usize = 64;
/// The number of updates per published version.
const BATCH: usize = 1000;
const VERSIONS: usize = 100;
const LOOK_UPS: usize = 1 << 22;

/// Prefix lengths and their shares in percent, as in the routing tables of the Internet.
const LENGTHS_V4: [(u8, u64); 10] =
    [(24, 61), (23, 10), (22, 12), (21, 5), (20, 4), (19, 3), (18, 1), (17, 1), (16, 2), (15, 1)];
const LENGTHS_V6: [(u8, u64); 9] =
    [(48, 47), (44, 12), (32, 10), (40, 8), (36, 6), (46, 6), (29, 4), (42, 4), (64, 3)];

type Prefix = (IpAddr, u8);

/// A table whose prefixes are clustered in blocks with common first bits.
struct Shape {
    routes: usize,
    blocks: u64,
    is_v4: bool,
}

fn main() {
    let shape = |is_v4, routes, blocks| Shape { routes, blocks, is_v4 };
    println!("            control's routes   first version   look-up, ns      updates a second");
    println!("routes             ms    MiB      ms    MiB     cold     hot   by {BATCH}   by one");
    for shape in [
        shape(true, 1, 1),
        shape(true, 100_000, 5_000),
        shape(true, 1_000_000, 42_000),
        shape(false, 20_000, 2_500),
        shape(false, 250_000, 24_000),
    ] {
        shape.measure();
    }
}

impl Shape {
    fn measure(&self) {
        let mut rng = SeededRng::new(1);
        let prefixes = self.prefixes(&mut rng);
        let mut fib = FibBuilder::new(2 * self.routes);
        let group =
            |port| fib.add_group(&[FibHop { port: PortId(port as u16), gateway: None, weight: 1 }]);
        let groups: Vec<_> = (0..GROUPS).map(group).collect();
        let empty = resident();
        let begun = Instant::now();
        for (at, (ip, len)) in prefixes.iter().enumerate() {
            fib.insert(*ip, *len, FibTarget::Group(groups[at % GROUPS])).expect("there is space");
        }
        let inserted = (begun.elapsed(), resident().saturating_sub(empty));
        let mut publisher = Publisher::new(fib.publish());
        let built = (begun.elapsed(), resident().saturating_sub(empty));
        let mut reader = publisher.reader();
        let cold = look_up_nanos(reader.refresh(), &self.destinations(&prefixes, COLD, &mut rng));
        let hot = look_up_nanos(reader.refresh(), &self.destinations(&prefixes, HOT, &mut rng));
        let mut updates = |batch: usize, versions: usize| {
            let mut version = || {
                let begun = Instant::now();
                for _ in 0..batch {
                    let (ip, len) = prefixes[rng.below(prefixes.len() as u64) as usize];
                    let group = groups[rng.below(GROUPS as u64) as usize];
                    fib.insert(ip, len, FibTarget::Group(group)).expect("there is space");
                }
                publisher.publish(fib.publish());
                reader.refresh();
                begun.elapsed()
            };
            let times = (0..versions).map(|_| version()).collect();
            batch as f64 / median(times).as_secs_f64()
        };
        let (batches, single) = (updates(BATCH, VERSIONS), updates(1, VERSIONS));
        let ms = |time: Duration| time.as_secs_f64() * 1e3;
        let mib = |bytes: u64| bytes as f64 / f64::from(1 << 20);
        let of_version = (built.0 - inserted.0, built.1 - inserted.1);
        let (routes, family) = (prefixes.len(), if self.is_v4 { 4 } else { 6 });
        println!(
            "{routes:7} IPv{family} {:8.0} {:6.1} {:7.0} {:6.1} {cold:8.1} {hot:7.1} {:9.0} {:8.0}",
            ms(inserted.0),
            mib(inserted.1),
            ms(of_version.0),
            mib(of_version.1),
            batches,
            single,
        );
        // Not freed, because the next shape would reuse the memory without growth of the process.
        std::mem::forget((fib, publisher));
    }

    fn prefixes(&self, rng: &mut SeededRng) -> Vec<Prefix> {
        let (width, block_len) = if self.is_v4 { (32, 16) } else { (128, 32) };
        let block = |rng: &mut SeededRng| match self.is_v4 {
            // A block is a part of a /16 in IPv4, and within one of a few /12 in IPv6.
            true => u128::from((1 + rng.below(222)) << 24 | rng.below(1 << 24)) << 96,
            false => {
                let registry = [0x2001, 0x2400, 0x2600, 0x2800, 0x2a00][rng.below(5) as usize];
                u128::from(registry + rng.below(13)) << 112 | u128::from(rng.below(1 << 16)) << 96
            }
        };
        let blocks: Vec<u128> = (0..self.blocks).map(|_| block(rng)).collect();
        let lengths: &[_] = if self.is_v4 { &LENGTHS_V4 } else { &LENGTHS_V6 };
        let mut all = BTreeSet::new();
        while all.len() < self.routes {
            let block = blocks[rng.below(self.blocks) as usize];
            let mut nth = rng.below(100);
            let in_share = |(_, share): &&(u8, u64)| {
                let is_in = nth < *share;
                nth = nth.saturating_sub(*share);
                is_in
            };
            let len = lengths.iter().find(in_share).map_or(24, |(len, _)| *len);
            let random = u128::from(rng.next_u64()) << 64 | u128::from(rng.next_u64());
            // Prefixes of a block are random from bit 18 on (IPv6: bit 34), so its IPv4 /24s form a
            // cluster of six bits.
            let near = random >> block_len & (u128::MAX >> (block_len + 2)) | block;
            let bits = near & u128::MAX << (128 - u32::from(len));
            all.insert((address(self.is_v4, bits), len.min(width)));
        }
        let set = all;
        let mut all: Vec<_> = set.iter().copied().collect();
        std::mem::forget(set);
        for at in 1..all.len() {
            all.swap(at, rng.below(at as u64 + 1) as usize);
        }
        all
    }

    /// Addresses in random prefixes.
    fn destinations(&self, all: &[Prefix], count: usize, rng: &mut SeededRng) -> Vec<IpAddr> {
        let destination = |_| {
            let (ip, len) = all[rng.below(all.len() as u64) as usize];
            let random = u128::from(rng.next_u64()) << 64 | u128::from(rng.next_u64());
            let host = random.checked_shr(len.into()).unwrap_or(0);
            match ip {
                IpAddr::V4(ip) => address(true, u128::from(ip.to_bits()) << 96 | host),
                IpAddr::V6(ip) => address(false, ip.to_bits() | host),
            }
        };
        (0..count).map(destination).collect()
    }
}

fn address(is_v4: bool, bits: u128) -> IpAddr {
    match is_v4 {
        true => Ipv4Addr::from_bits((bits >> 96) as u32).into(),
        false => Ipv6Addr::from_bits(bits).into(),
    }
}

fn look_up_nanos(fib: &Fib, destinations: &[IpAddr]) -> f64 {
    let run = |piece: &[IpAddr]| {
        let begun = Instant::now();
        for destination in piece {
            black_box(fib.look_up(*destination, || 0));
        }
        begun.elapsed()
    };
    let rounds = (0..LOOK_UPS / destinations.len()).flat_map(|_| destinations.chunks(HOT));
    median(rounds.map(run).collect()).as_secs_f64() * 1e9 / HOT as f64
}

/// Unlike the mean, the median excludes the time of other programs.
fn median(mut times: Vec<Duration>) -> Duration {
    times.sort_unstable();
    times[times.len() / 2]
}

/// Resident bytes of the process.
fn resident() -> u64 {
    let statm = std::fs::read_to_string("/proc/self/statm").unwrap_or_default();
    let pages = statm.split(' ').nth(1).and_then(|pages| pages.parse().ok()).unwrap_or(0_u64);
    pages * 4096
}
