//! The clock of user timeouts: it counts the time in which connections were served.
//!
//! A process may be stopped, suspended with its machine, or busy with other work. Meanwhile,
//! answers of its peers wait in the device, so the peers are not silent. This clock stands still
//! while a timer is overdue because the caller does not handle it.

use pollux_verbs::time::Time;
use std::time::Duration;

/// A caller that does not serve the stack for longer than this was stopped or busy.
const LATE: Duration = Duration::from_secs(1);

#[derive(Clone, Copy, Debug, Default)]
pub(super) struct ServiceClock {
    last: Time,
    missed: Duration,
}

impl ServiceClock {
    #[inline]
    pub(super) fn is_late(&self, now: Time) -> bool {
        now > self.last + LATE
    }

    #[inline]
    pub(super) const fn note(&mut self, now: Time) {
        self.last = now;
    }

    /// The caller is late; `due` is the timer that it missed.
    #[cold]
    pub(super) fn note_late(&mut self, now: Time, due: Option<Time>) {
        let Some(due) = due.map(|due| due.max(self.last)) else { return };
        let missed = Duration::from_nanos(now.nanos().saturating_sub(due.nanos()));
        if missed > LATE {
            self.missed += missed;
        }
    }

    #[inline]
    pub(super) fn at(&self, now: Time) -> Time {
        Time::from_nanos(now.nanos().saturating_sub(self.missed.as_nanos() as u64))
    }

    /// The earliest time at which this clock can show `shown`.
    #[inline]
    pub(super) fn when(&self, shown: Time) -> Time {
        shown + self.missed
    }
}
