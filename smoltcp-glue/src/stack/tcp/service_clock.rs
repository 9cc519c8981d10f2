//! The clock by which peers are given up: it counts the time in which connections were served.
//!
//! A process may be stopped, suspended with its machine, or busy with other things. Its peers
//! answer meanwhile, and the answers wait in the device: that is no silence of the peers. So this
//! clock stands still while something is due and the owner does not come.

use pollux_verbs::time::Time;
use std::time::Duration;

/// An owner who comes later than this was away.
const LATE: Duration = Duration::from_secs(1);

#[derive(Clone, Copy, Debug, Default)]
pub(super) struct ServiceClock {
    last: Time,
    missed: Duration,
}

impl ServiceClock {
    /// Whether the owner may have been away since the last time.
    #[inline]
    pub(super) fn is_late(&self, now: Time) -> bool {
        now > self.last + LATE
    }

    /// The owner serves connections now.
    #[inline]
    pub(super) const fn note(&mut self, now: Time) {
        self.last = now;
    }

    /// The owner comes late, having had something to do then.
    #[cold]
    pub(super) fn note_late(&mut self, now: Time, due: Option<Time>) {
        let Some(due) = due.map(|due| due.max(self.last)) else { return };
        let missed = Duration::from_nanos(now.nanos().saturating_sub(due.nanos()));
        if missed > LATE {
            self.missed += missed;
        }
    }

    /// What this clock shows.
    #[inline]
    pub(super) fn at(&self, now: Time) -> Time {
        Time::from_nanos(now.nanos().saturating_sub(self.missed.as_nanos() as u64))
    }

    /// When it will show that, if nobody is away until then.
    #[inline]
    pub(super) fn when(&self, shown: Time) -> Time {
        shown + self.missed
    }
}
