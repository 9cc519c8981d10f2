//! Faults of a link, by rule and seed: loss, duplication, reordering, corruption.
//!
//! A rule has a rate for each kind of fault, and a maximum delay. All faults follow from one seed,
//! so a failed run can be replayed.

pub use pollux_verbs::rng::SeededRng;
use std::time::Duration;

/// The faults of a link; rates are per million packets.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Faults {
    pub loss: u32,
    pub duplication: u32,
    pub reordering: u32,
    pub corruption: u32,
    /// Reordered packets and duplicates are delayed by less than this.
    pub delay_max: Duration,
}

/// The effect of the faults on one packet.
#[derive(Debug, Default)]
pub struct Fate {
    /// The index of the flipped bit.
    pub flipped_bit: Option<usize>,
    /// The delay of each copy: a lost packet has no copy, a duplicated packet has two.
    pub delays: Vec<Duration>,
}

impl Faults {
    /// Whether all rates are 0. With faults, messages may not bypass packets.
    pub const fn are_none(&self) -> bool {
        self.loss | self.duplication | self.reordering | self.corruption == 0
    }

    pub fn decide(&self, rng: &mut SeededRng, bytes: usize) -> Fate {
        if rng.happens(self.loss) {
            return Fate::default();
        }
        let flips = rng.happens(self.corruption);
        let flipped_bit = flips.then(|| rng.below(bytes as u64 * 8) as usize);
        let late = |rng: &mut SeededRng, happens: bool| {
            let max = self.delay_max.as_nanos() as u64;
            if happens { Duration::from_nanos(rng.below(max.max(1))) } else { Duration::ZERO }
        };
        let reordered = rng.happens(self.reordering);
        let mut delays = vec![late(rng, reordered)];
        if rng.happens(self.duplication) {
            delays.push(late(rng, true));
        }
        Fate { flipped_bit, delays }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_same_seed_gives_the_same_faults() {
        let faults = Faults { loss: 300_000, corruption: 300_000, ..Faults::default() };
        let run = |seed| {
            let mut rng = SeededRng::new(seed);
            (0..50).map(|_| format!("{:?}", faults.decide(&mut rng, 100))).collect::<Vec<_>>()
        };
        assert_eq!(run(7), run(7));
        assert_ne!(run(7), run(8));
    }

    #[test]
    fn fault_rates_are_as_configured() {
        let faults = Faults { loss: 100_000, duplication: 50_000, ..Faults::default() };
        let mut rng = SeededRng::new(1);
        let mut copies = [0; 3];
        for _ in 0..100_000 {
            copies[faults.decide(&mut rng, 64).delays.len()] += 1;
        }
        assert!((9_500..10_500).contains(&copies[0]), "{copies:?}");
        assert!((4_100..4_900).contains(&copies[2]), "{copies:?}");
    }
}
