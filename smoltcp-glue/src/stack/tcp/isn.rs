//! Initial sequence numbers (RFC 6528, RFC 9293 3.4.1): a clock, and a keyed hash of both ends.
//!
//! A number says nothing of those between other ends, and those between the same ends grow with
//! time, so that what is left of an earlier connection is before the next one. The clock is quicker
//! than the standard's, since links are: it goes round in 274 s, which is longer than anything
//! stays on its way here.

#![expect(deprecated, reason = "its successor may be another function in another version")]

use pollux_verbs::rng::SeededRng;
use pollux_verbs::time::Time;
use std::hash::{Hasher, SipHasher};
use std::net::{IpAddr, SocketAddr};

/// Binary digits of the clock's tick in nanoseconds: it is 64 ns.
const TICK_BITS: u32 = 6;

/// A keyed hash of addresses.
#[derive(Clone)]
pub(super) struct IsnSecret {
    keys: [u64; 2],
}

impl IsnSecret {
    pub(super) fn new(rng: &mut SeededRng) -> Self {
        Self { keys: [rng.next_u64(), rng.next_u64()] }
    }

    /// The number that a connection between two ends begins with.
    pub(super) fn isn(&self, now: Time, ends: (SocketAddr, SocketAddr)) -> u32 {
        let clock = (now.nanos() >> TICK_BITS) as u32;
        (self.hash(ends, [0; 2]) as u32).wrapping_add(clock)
    }

    /// A hash of both ends of a connection, and of other words.
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
