//! Seeded random numbers for faults, schedules and identifiers.
//!
//! Why not a crate: these ten lines suffice, and a seed must replay a failed run with any version
//! of any dependency.
//!
//! Identifiers on the wire must not reveal later identifiers: use [`SeededRng::secret`] for them.

#![expect(deprecated, reason = "its successor may be another function in another version")]

use std::hash::{Hasher, SipHasher};
use std::time::Duration;

/// A random number generator that gives the same numbers for the same seed.
#[derive(Clone, Debug)]
pub struct SeededRng(Kind);

#[derive(Clone, Debug)]
enum Kind {
    /// SplitMix64. A number reveals the state.
    Quick(u64),
    /// SipHash-2-4 of a counter, keyed by the seed.
    Secret { seed: u64, count: u64 },
}

impl SeededRng {
    /// A generator for numbers that need not be secret.
    pub const fn new(seed: u64) -> Self {
        Self(Kind::Quick(seed))
    }

    /// A generator whose numbers do not reveal later numbers to a peer that does not know the seed.
    pub const fn secret(seed: u64) -> Self {
        Self(Kind::Secret { seed, count: 0 })
    }

    /// Another generator of the same kind, seeded by this one.
    #[must_use]
    pub fn split(&mut self) -> Self {
        let seed = self.next_u64();
        match self.0 {
            Kind::Quick(_) => Self::new(seed),
            Kind::Secret { .. } => Self::secret(seed),
        }
    }

    pub fn next_u64(&mut self) -> u64 {
        match &mut self.0 {
            Kind::Quick(state) => split_mix(state),
            Kind::Secret { seed, count } => {
                *count += 1;
                let mut hasher = SipHasher::new_with_keys(*seed, KEY);
                hasher.write(&count.to_le_bytes());
                hasher.finish()
            }
        }
    }

    /// A number below `end`; 0 if `end` is 0.
    pub fn below(&mut self, end: u64) -> u64 {
        self.next_u64().checked_rem(end).unwrap_or(0)
    }

    /// A duration below `end`. If `end` is zero, returns zero and draws no number.
    pub fn duration(&mut self, end: Duration) -> Duration {
        let nanos = end.as_nanos() as u64;
        Duration::from_nanos(if nanos == 0 { 0 } else { self.below(nanos) })
    }

    /// True with a probability of `per_million` in a million.
    pub fn happens(&mut self, per_million: u32) -> bool {
        per_million > 0 && self.below(1_000_000) < u64::from(per_million)
    }
}

/// The half of the key that is not secret.
const KEY: u64 = 0x9e37_79b9_7f4a_7c15;

fn split_mix(state: &mut u64) -> u64 {
    *state = state.wrapping_add(0x9e37_79b9_7f4a_7c15);
    let mut mixed = *state;
    mixed = (mixed ^ mixed >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    mixed = (mixed ^ mixed >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
    mixed ^ mixed >> 31
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Inverts SplitMix64: the state after it has returned `number`.
    fn state_after(number: u64) -> u64 {
        let unshift = |number: u64, by: u32| {
            (1..)
                .map(|times| by * times)
                .take_while(|shift| *shift < 64)
                .fold(0, |so_far, shift| so_far ^ number >> shift)
                ^ number
        };
        let invert = |odd: u64| {
            (0..6).fold(odd, |so_far, _| {
                so_far.wrapping_mul(2u64.wrapping_sub(odd.wrapping_mul(so_far)))
            })
        };
        let mixed = unshift(number, 31).wrapping_mul(invert(0x94d0_49bb_1331_11eb));
        let mixed = unshift(mixed, 27).wrapping_mul(invert(0xbf58_476d_1ce4_e5b9));
        unshift(mixed, 30)
    }

    fn next_is_known(mut rng: SeededRng) -> bool {
        let mut copy = SeededRng::new(state_after(rng.next_u64()));
        copy.next_u64() == rng.next_u64()
    }

    #[test]
    fn a_secret_generator_does_not_reveal_its_next_number() {
        assert!(next_is_known(SeededRng::new(7)), "which is why there are others");
        assert!(!next_is_known(SeededRng::secret(7)));
        assert!(!next_is_known(SeededRng::secret(7).split()));
    }

    #[test]
    fn the_same_seed_gives_the_same_numbers() {
        for make in [SeededRng::new, SeededRng::secret] {
            let rolls =
                |mut rng: SeededRng| [rng.next_u64(), rng.next_u64(), rng.split().next_u64()];
            assert_eq!(rolls(make(5)), rolls(make(5)));
            assert_ne!(rolls(make(5)), rolls(make(6)));
        }
    }
}
