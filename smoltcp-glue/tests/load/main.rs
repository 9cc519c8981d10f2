//! Hours of mixed traffic between hosts to which things happen, in virtual time and from a seed:
//! every byte of a stream is right, nothing is stuck, and nothing is lost of what a host has.
//!
//! One test in a process of its own, since all that is allocated is counted. `POLLUX_LOAD_HOURS=N`
//! says for how long, `POLLUX_LOAD_SEED=N` with which seed.
//!
//! [`world`] has hosts and time, [`device`] counts what they have, [`traffic`] is what they do, and
//! [`mixed`] what happens to them and what has to hold.

mod device;
mod mixed;
#[allow(dead_code, reason = "slow readers are for the limits")]
mod traffic;
#[allow(dead_code, reason = "links of single hosts are for the limits")]
mod world;

use pollux_counted::Counted;
use std::time::Duration;

#[global_allocator]
static MEMORY: Counted = Counted::new();

/// How long without being told: two eras.
const USUALLY: Duration = Duration::from_secs(1000);

#[expect(clippy::disallowed_methods, reason = "longer runs are asked for by hand")]
fn asked(name: &str) -> Option<u64> {
    std::env::var(name).ok().and_then(|value| value.parse().ok())
}

#[test]
fn whatever_happens_streams_are_whole_and_nothing_is_left_over() {
    let time = asked("POLLUX_LOAD_HOURS").map_or(USUALLY, |it| Duration::from_secs(3600 * it));
    let seed = asked("POLLUX_LOAD_SEED").unwrap_or(1);
    println!("seed {seed}: POLLUX_LOAD_SEED={seed} replays it");
    mixed::run(seed, time);
}
