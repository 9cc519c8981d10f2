//! Limits: a bounded queue, a rate limit, and exponential backoff.

use pollux_verbs::time::Time;
use std::collections::VecDeque;
use std::time::Duration;

#[derive(Clone, Debug)]
pub struct BoundedQueue<T> {
    items: VecDeque<T>,
    max: usize,
    lost: u64,
}

impl<T> BoundedQueue<T> {
    pub const fn new(max: usize) -> Self {
        Self { items: VecDeque::new(), max, lost: 0 }
    }

    /// Appends an item, or counts it as lost if the queue is full.
    pub fn push(&mut self, item: T) {
        if self.items.len() < self.max {
            self.items.push_back(item);
        } else {
            self.lost += 1;
        }
    }

    pub fn pop(&mut self) -> Option<T> {
        self.items.pop_front()
    }

    pub const fn lost(&self) -> u64 {
        self.lost
    }
}

/// A token bucket, kept as the time of its next token (generic cell rate algorithm).
#[derive(Clone, Debug)]
pub struct RateLimit {
    interval: Duration,
    burst: u32,
    /// When the next token is due at an even rate; it may be ahead of the clock by the burst.
    next: Time,
}

impl RateLimit {
    /// Creates a full bucket; a rate of 0 allows nothing.
    pub fn new(per_second: u32, burst: u32) -> Self {
        let interval = Duration::from_secs(1).checked_div(per_second);
        Self { interval: interval.unwrap_or(Duration::MAX), burst, next: Time::START }
    }

    pub fn take(&mut self, now: Time) -> bool {
        if self.burst == 0 || self.interval == Duration::MAX {
            return false;
        }
        let start = self.next.max(now);
        let allowed = start <= now + self.interval * (self.burst - 1);
        if allowed {
            self.next = start + self.interval;
        }
        allowed
    }
}

/// Exponential backoff: a pause that doubles with each failure in a row.
#[derive(Clone, Copy, Debug)]
pub struct Backoff {
    pub min: Duration,
    pub max: Duration,
}

impl Backoff {
    pub fn pause(self, failures: u32) -> Duration {
        self.min.saturating_mul(1 << failures.saturating_sub(1).min(16)).min(self.max)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_queue_keeps_the_first_and_counts_the_rest() {
        let mut queue = BoundedQueue::new(2);
        for item in 0..5 {
            queue.push(item);
        }
        assert_eq!(
            (queue.pop(), queue.pop(), queue.pop(), queue.lost()),
            (Some(0), Some(1), None, 3)
        );
    }

    #[test]
    fn a_backoff_doubles_up_to_its_maximum() {
        let seconds = Duration::from_secs;
        let backoff = Backoff { min: seconds(1), max: seconds(30) };
        let pauses = [0, 1, 2, 3, 5, 6, 7, u32::MAX].map(|failures| backoff.pause(failures));
        assert_eq!(pauses, [1, 1, 2, 4, 16, 30, 30, 30].map(seconds));
    }

    #[test]
    fn a_rate_gives_its_burst_and_then_its_rate() {
        let mut rate = RateLimit::new(10, 3);
        let taken = |rate: &mut RateLimit, now| (0..100).filter(|_| rate.take(now)).count();
        let start = Time::START + Duration::from_secs(5);
        assert_eq!(taken(&mut rate, start), 3);
        assert_eq!(taken(&mut rate, start + Duration::from_millis(99)), 0);
        assert_eq!(taken(&mut rate, start + Duration::from_millis(100)), 1);
        assert_eq!(taken(&mut rate, start + Duration::from_secs(60)), 3, "a pause saves no more");
        assert_eq!(taken(&mut RateLimit::new(0, 3), start), 0);
        assert_eq!(taken(&mut RateLimit::new(3, 0), start), 0);
    }
}
