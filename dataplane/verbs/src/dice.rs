//! Random numbers for faults, choices of schedule and identifiers, from a seed.
//!
//! Why not a crate: no more quality is needed than these ten lines have, and a run that failed runs
//! again from its seed whatever version of what is installed.

use std::time::Duration;

/// Numbers that look random: SplitMix64.
#[derive(Clone, Debug)]
pub struct Dice(u64);

impl Dice {
    /// Dice that fall the same for the same seed.
    pub const fn new(seed: u64) -> Self {
        Self(seed)
    }

    /// Any number.
    pub fn roll(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = self.0;
        mixed = (mixed ^ mixed >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ mixed >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ mixed >> 31
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
