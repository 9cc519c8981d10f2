//! The sleep rate of a client. A client that sleeps often asks its senders to use a fence, so that
//! it need not interrupt all processors with a barrier at each sleep.

use pollux_verbs::time::Time;
use std::time::Duration;

const WINDOW: Duration = Duration::from_secs(1);
/// Sleeps in a window up to which the rate is low: an idle client has about 20.
const SLEEPS_MAX: u32 = 30;

#[derive(Debug, Default)]
pub(super) struct SleepRate {
    begun: Time,
    sleeps: u32,
    is_high: bool,
}

impl SleepRate {
    /// Counts a sleep; returns whether the rate is high in this window or was in the one before.
    pub(super) fn is_high(&mut self, now: Time) -> bool {
        if now >= self.begun + WINDOW {
            let is_next = now < self.begun + 2 * WINDOW;
            self.is_high = is_next && self.sleeps > SLEEPS_MAX;
            (self.begun, self.sleeps) = (now, 0);
        }
        self.sleeps = self.sleeps.saturating_add(1);
        self.is_high |= self.sleeps > SLEEPS_MAX;
        self.is_high
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_rate_is_high_until_a_window_has_few_sleeps() {
        let at = |ms: u64| Time::START + Duration::from_millis(ms);
        let mut rate = SleepRate::default();
        // Sleeps `per_second` times a second, for `seconds` from the millisecond `begin` on.
        let mut sleeps = |begin: u64, per_second: u64, seconds: u64| -> Vec<bool> {
            let all = (0..per_second * seconds).map(|nth| begin + nth * 1000 / per_second);
            all.map(|ms| rate.is_high(at(ms))).collect()
        };
        assert!(sleeps(10_000, 25, 4).iter().all(|is_high| !is_high));
        let many = sleeps(20_000, 1000, 4);
        assert!(many[..30].iter().all(|is_high| !is_high) && many[30..].iter().all(|it| *it));
        let few = sleeps(24_000, 10, 4);
        assert!(few[..10].iter().all(|it| *it) && few[10..].iter().all(|is_high| !is_high));
        // After a long time without sleeps, the rate is low at once.
        assert!(sleeps(30_000, 1000, 1)[999] && !sleeps(40_000, 1, 1)[0]);
    }
}
