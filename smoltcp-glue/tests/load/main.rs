//! Hours of mixed traffic between hosts with faults, in virtual time and from a seed: streams are
//! not corrupted, no program is stuck, and no host leaks memory, connections or queue pairs.
//!
//! One test in a process of its own, since allocations are counted. `POLLUX_LOAD_HOURS=N` sets the
//! virtual time, `POLLUX_LOAD_SEED=N` the seed.
//!
//! [`world`]: hosts and time; [`device`]: counts queue pairs; [`traffic`]: the programs of hosts;
//! [`mixed`]: the faults and the invariants.

mod device;
mod mixed;
#[path = "../../../dataplane/fabric/tests/common/net_world.rs"]
#[allow(dead_code, reason = "time is virtual, and all processes run")]
mod net_world;
#[allow(dead_code, reason = "slow readers are for the limits")]
mod traffic;
#[allow(dead_code, reason = "links of single hosts are for the limits")]
mod world;

use pollux_counted::Counted;
use std::time::Duration;

#[global_allocator]
static MEMORY: Counted = Counted::new();

/// The default virtual time: two eras.
const TIME_DEFAULT: Duration = Duration::from_secs(1000);

#[expect(clippy::disallowed_methods, reason = "longer runs are set by hand")]
fn environment(name: &str) -> Option<u64> {
    std::env::var(name).ok().and_then(|value| value.parse().ok())
}

#[test]
fn faults_neither_corrupt_streams_nor_leak_resources() {
    let time =
        environment("POLLUX_LOAD_HOURS").map_or(TIME_DEFAULT, |it| Duration::from_secs(3600 * it));
    let seed = environment("POLLUX_LOAD_SEED").unwrap_or(1);
    println!("seed {seed}: POLLUX_LOAD_SEED={seed} replays it");
    mixed::run(seed, time);
}
