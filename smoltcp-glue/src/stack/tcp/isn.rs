//! Initial sequence numbers (RFC 6528, RFC 9293 3.4.1): a clock plus a keyed hash of both addresses
//! and ports.
//!
//! The number of one connection reveals nothing about those of other addresses and ports. For the
//! same addresses and ports, the number grows by one every 64 ns (RFC 9293: every 4 us), and wraps
//! in 274 s, which exceeds the lifetime of a segment here. A connection faster than 125 Mb/s uses
//! sequence numbers faster than this clock. So if the previous connection is still known, the next
//! one begins after its end (`Tcp::isn`).

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
