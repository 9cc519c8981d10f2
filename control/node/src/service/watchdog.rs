//! The watchdog of a service manager: when a node reports that it lives.
//!
//! ```text
//!   half of the manager's time after the last message --> due
//!        all workers have breathed since that message --> WATCHDOG=1
//!        one has not --> examined again a sixteenth of the time later, until it has
//! ```
//!
//! If a worker is stuck, the messages end, and the manager restarts the node. A worker that sleeps
//! breathes ten times a second.

use pollux_verbs::time::Time;
use std::time::Duration;

#[derive(Debug)]
pub struct Watchdog {
    /// The watchdog timeout of the manager.
    timeout: Duration,
    due: Time,
    /// The breaths of each worker at the last message.
    breaths: Vec<u64>,
}

impl Watchdog {
    /// A watchdog that starts now, before any breath.
    pub fn new(timeout: Duration, now: Time) -> Self {
        Self { timeout, due: now + timeout / 2, breaths: Vec::new() }
    }

    /// When to call [`Self::turn`].
    pub const fn due(&self) -> Time {
        self.due
    }

    /// Whether to send the message now. `breaths` are those of each worker so far; `None` is a
    /// worker whose count cannot be read.
    pub fn turn(&mut self, now: Time, breaths: impl Iterator<Item = Option<u64>>) -> bool {
        if now < self.due {
            return false;
        }
        let Some(breaths) = breaths.collect::<Option<Vec<_>>>() else {
            return self.look_again(now);
        };
        let before = self.breaths.iter().chain(std::iter::repeat(&0));
        if breaths.iter().zip(before).any(|(breaths, before)| breaths <= before) {
            return self.look_again(now);
        }
        self.breaths = breaths;
        self.due = now + self.timeout / 2;
        true
    }

    fn look_again(&mut self, now: Time) -> bool {
        self.due = now + self.timeout / 16;
        false
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The seconds of the messages of a watchdog of 8 seconds that is polled ten times a second.
    fn spoken(breaths: impl Fn(u64) -> [Option<u64>; 2]) -> Vec<f64> {
        let mut watchdog = Watchdog::new(Duration::from_secs(8), Time::START);
        let at = |tenth: u64| Time::START + Duration::from_millis(100 * tenth);
        let speaks = |tenth: &u64| watchdog.turn(at(*tenth), breaths(*tenth).into_iter());
        (0..200).filter(speaks).map(|tenth| tenth as f64 / 10.0).collect()
    }

    #[test]
    fn two_messages_are_sent_in_a_timeout_while_all_workers_breathe() {
        let spoken = spoken(|tenth| [Some(1 + tenth), Some(1000 + tenth)]);
        assert_eq!(spoken, [4.0, 8.0, 12.0, 16.0]);
    }

    #[test]
    fn no_message_is_sent_while_a_worker_is_stuck() {
        let stuck = |tenth: u64| if (50..101).contains(&tenth) { 50 } else { tenth };
        let spoken = spoken(|tenth| [Some(1 + tenth), Some(1 + stuck(tenth))]);
        // Up to the fifth second it has breathed once more than at the fourth.
        assert_eq!(spoken, [4.0, 8.0, 12.0, 16.0]);
        let stuck = |tenth: u64| if (30..101).contains(&tenth) { 30 } else { tenth };
        let spoken = self::spoken(|tenth| [Some(1 + tenth), Some(1 + stuck(tenth))]);
        assert_eq!(spoken, [4.0, 10.5, 14.5, 18.5]);
        let torn = |tenth: u64| (!(30..101).contains(&tenth)).then_some(1 + tenth);
        assert_eq!(self::spoken(|tenth| [Some(1 + tenth), torn(tenth)]), [4.5 + 6.0, 14.5, 18.5]);
        assert_eq!(self::spoken(|_| [Some(7), Some(0)]), [0.0; 0], "one never breathed");
    }
}
