//! The clock that every thread of an interface reads.

use pollux_verbs::time::Time;
use std::time::Instant;

/// The system clock, as the time since [`Clock::begin`].
#[derive(Clone, Copy)]
pub(crate) struct Clock {
    start: Instant,
}

impl Clock {
    #[expect(
        clippy::disallowed_methods,
        reason = "the only reading of the system clock for protocols"
    )]
    pub(crate) fn begin() -> Self {
        Self { start: Instant::now() }
    }

    pub(crate) fn now(self) -> Time {
        Time::START + self.start.elapsed()
    }
}
