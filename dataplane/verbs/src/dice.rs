//! Random numbers for faults, choices of schedule and identifiers, from a seed.
//!
//! Why not a crate: no more quality is needed than these ten lines have, and a run that failed runs
//! again from its seed whatever version of what is installed.
//!
//! Numbers that others see, as identifiers on the wire, must not tell them what comes next: those
//! are rolled with [`Dice::secret`].

#![expect(deprecated, reason = "its successor may be another function in another version")]

use std::hash::{Hasher, SipHasher};
use std::time::Duration;

/// Numbers that look random, the same for the same seed.
#[derive(Clone, Debug)]
pub struct Dice(Kind);

#[derive(Clone, Debug)]
enum Kind {
    /// SplitMix64, from whose numbers its seed can be computed.
    Quick(u64),
    /// SipHash-2-4 of a counter, keyed by the seed.
    Secret { seed: u64, count: u64 },
}

impl Dice {
    /// Dice for whatever nobody wants to guess.
    pub const fn new(seed: u64) -> Self {
        Self(Kind::Quick(seed))
    }

    /// Dice whose numbers can be shown: who does not know the seed can tell none from others.
    pub const fn secret(seed: u64) -> Self {
        Self(Kind::Secret { seed, count: 0 })
    }

    /// Other dice of the same kind, with a seed that these have rolled.
    #[must_use]
    pub fn split(&mut self) -> Self {
        let seed = self.roll();
        match self.0 {
            Kind::Quick(_) => Self::new(seed),
            Kind::Secret { .. } => Self::secret(seed),
        }
    }

    /// Any number.
    pub fn roll(&mut self) -> u64 {
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

    /// A number below `end`; 0 if that is 0.
    pub fn below(&mut self, end: u64) -> u64 {
        self.roll().checked_rem(end).unwrap_or(0)
    }

    /// A time below `end`; none if that is none, and then without a roll.
    pub fn duration(&mut self, end: Duration) -> Duration {
        let nanos = end.as_nanos() as u64;
        Duration::from_nanos(if nanos == 0 { 0 } else { self.below(nanos) })
    }

    /// Whether something happens that happens so many times in a million.
    pub fn happens(&mut self, per_million: u32) -> bool {
        per_million > 0 && self.below(1_000_000) < u64::from(per_million)
    }
}

/// The half of the key that is no secret.
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

    /// SplitMix64 undone: the state after a number.
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

    fn next_is_known(mut dice: Dice) -> bool {
        let mut copy = Dice::new(state_after(dice.roll()));
        copy.roll() == dice.roll()
    }

    #[test]
    fn a_number_of_secret_dice_does_not_tell_the_next() {
        assert!(next_is_known(Dice::new(7)), "which is why there are others");
        assert!(!next_is_known(Dice::secret(7)));
        assert!(!next_is_known(Dice::secret(7).split()));
    }

    #[test]
    fn dice_fall_the_same_for_the_same_seed() {
        for make in [Dice::new, Dice::secret] {
            let rolls = |mut dice: Dice| [dice.roll(), dice.roll(), dice.split().roll()];
            assert_eq!(rolls(make(5)), rolls(make(5)));
            assert_ne!(rolls(make(5)), rolls(make(6)));
        }
    }
}
