//! Yields the core in calls of the application that wait.

use crate::clock::Clock;
use pollux_dataplane::engine::idle::Yields;
use std::cell::Cell;

thread_local! {
    static YIELDS: (Clock, Cell<Yields>) = (Clock::begin(), Cell::default());
}

/// Yields the core to other threads. For some time after a yield that took long ([`Yields`]),
/// returns `false` at once, and the caller sleeps instead.
pub(crate) fn yield_core() -> bool {
    YIELDS.with(|(clock, yields)| {
        let mut all = yields.get();
        let is_begun = all.begin(clock.now());
        if is_begun {
            std::thread::yield_now();
            all.end(clock.now());
        }
        yields.set(all);
        is_begun
    })
}
