//! How often control has its device wake it.
//!
//! Arming a device of the fabric interrupts all busy workers of the machine
//! (`pollux_mem::sleep_word`), so a storm of MADs may not do it once for each MAD. Control that has
//! used up its share sleeps without: for moments while MADs arrive, then longer.

use pollux_control::bounded::{Backoff, RateLimit};
use pollux_verbs::time::Time;
use std::time::Duration;

/// How often a device is armed: so many times a second, and so many at once. An idle port is armed
/// some 20 times a second.
const PER_SECOND: u32 = 40;
const BURST: u32 = 10;
/// Sleeps in place of one with an armed device: the first after MADs arrived, and the longest.
const NAPS: Backoff = Backoff { min: Duration::from_micros(50), max: Duration::from_micros(1600) };

pub(super) struct Arming {
    rate: RateLimit,
    /// Sleeps since MADs arrived or the device was armed; 0 if it is armed.
    naps: u32,
}

impl Arming {
    pub(super) fn new() -> Self {
        Self { rate: RateLimit::new(PER_SECOND, BURST), naps: 0 }
    }

    /// Whether the device is armed for the next sleep.
    pub(super) fn take(&mut self, now: Time) -> bool {
        self.naps = if self.rate.take(now) { 0 } else { self.naps.saturating_add(1) };
        self.naps == 0
    }

    /// MADs arrived: naps begin with the shortest.
    pub(super) fn handle_mads(&mut self) {
        self.naps = 0;
    }

    /// The next sleep; `armed` is the longest one of an armed device. One that is not armed always
    /// says that it may have input.
    pub(super) fn sleep_max(&self, armed: Duration) -> Duration {
        if self.naps == 0 { armed } else { NAPS.pause(self.naps) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn naps_double_up_to_the_longest_until_mads_arrive_or_the_device_is_armed() {
        let (mut arming, now) = (Arming::new(), Time::START);
        let micros = |naps: [u64; 7]| naps.map(Duration::from_micros);
        let mut next = |now| {
            arming.take(now);
            arming.sleep_max(Duration::MAX)
        };
        assert_eq!((0..BURST).map(|_| next(now)).collect::<Vec<_>>(), [Duration::MAX; 10]);
        assert_eq!([(); 7].map(|()| next(now)), micros([50, 100, 200, 400, 800, 1600, 1600]));
        let later = now + Duration::from_secs(1) / PER_SECOND;
        assert_eq!(next(later), Duration::MAX, "armed again");
        assert_eq!([(); 2].map(|()| next(later)), [50, 100].map(Duration::from_micros));
        arming.handle_mads();
        arming.take(later);
        assert_eq!(arming.sleep_max(Duration::MAX), NAPS.min);
        assert_eq!(arming.sleep_max(Duration::ZERO), NAPS.min, "the device has input");
    }
}
