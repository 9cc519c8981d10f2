//! Initial sequence numbers (RFC 6528, RFC 9293 3.4.1): a clock, and a keyed hash of both ends.
//!
//! A number reveals nothing about those of other four-tuples. The number of one four-tuple grows by
//! one in 64 ns, where the standard has 4 us, and wraps in 274 s, longer than a segment lives here.
//! A connection faster than 125 Mb/s outruns it: while the old connection is known, the number of
//! the next is taken behind its end (`Tcp::isn`).

#![expect(deprecated, reason = "its successor, `DefaultHasher`, takes no keys")]

use pollux_verbs::rng::SeededRng;
use pollux_verbs::time::Time;
use std::hash::{Hasher, SipHasher};
use std::net::{IpAddr, SocketAddr};

/// The clock's tick is 64 ns.
const TICK_BITS: u32 = 6;

#[derive(Clone)]
pub(super) struct IsnSecret {
    keys: [u64; 2],
}

impl IsnSecret {
    pub(super) fn new(rng: &mut SeededRng) -> Self {
        Self { keys: [rng.next_u64(), rng.next_u64()] }
    }

    pub(super) fn isn(&self, now: Time, ends: (SocketAddr, SocketAddr)) -> u32 {
        let clock = (now.nanos() >> TICK_BITS) as u32;
        (self.hash(ends, [0; 2]) as u32).wrapping_add(clock)
    }

    /// A hash of both addresses and ports, and of `words`.
    pub(super) fn hash(&self, (local, remote): (SocketAddr, SocketAddr), words: [u64; 2]) -> u64 {
        let mut hasher = SipHasher::new_with_keys(self.keys[0], self.keys[1]);
        for end in [local, remote] {
            match end.ip() {
                IpAddr::V4(ip) => hasher.write(&ip.octets()),
                IpAddr::V6(ip) => hasher.write(&ip.octets()),
            }
            hasher.write(&end.port().to_be_bytes());
        }
        words.iter().for_each(|word| hasher.write(&word.to_be_bytes()));
        hasher.finish()
    }
}
