//! The output of a control protocol: frames to send, events for the interface, and drop counters.
//!
//! Both queues are bounded, because packets of neighbors cause frames and events. The interface
//! drains the queues after each call, so a queue fills up only if one call has too much output.
//! Excess frames and events are counted as lost.

use crate::bounded::BoundedQueue;
use crate::frame::LinkFrame;
use pollux_verbs::drops::{Drops, Reason};

/// Frames of one protocol.
pub(crate) const FRAMES_MAX: usize = 256;

/// The output of a protocol with link addresses `L`, events `E` and drop reasons `R`.
pub(crate) struct Output<L, E, R: Reason> {
    pub(crate) frames: BoundedQueue<LinkFrame<L>>,
    pub(crate) events: BoundedQueue<E>,
    pub(crate) drops: Drops<R>,
}

impl<L, E, R: Reason> Output<L, E, R> {
    pub(crate) fn new(events_max: usize) -> Self {
        let (frames, events) = (BoundedQueue::new(FRAMES_MAX), BoundedQueue::new(events_max));
        Self { frames, events, drops: Drops::default() }
    }

    pub(crate) fn send(&mut self, frame: LinkFrame<L>) {
        self.frames.push(frame);
    }

    pub(crate) fn report(&mut self, event: E) {
        self.events.push(event);
    }

    pub(crate) fn count(&mut self, reason: R) {
        self.drops.count(reason);
    }
}

/// The methods that drain the `output` field of a protocol.
macro_rules! output_methods {
    ($link:ty, $event:ty, $drop:ty) => {
        pub fn poll_transmit(&mut self) -> Option<$crate::frame::LinkFrame<$link>> {
            self.output.frames.pop()
        }

        pub fn poll_event(&mut self) -> Option<$event> {
            self.output.events.pop()
        }

        /// Frames and events lost because their queues were full.
        pub const fn lost(&self) -> u64 {
            self.output.frames.lost() + self.output.events.lost()
        }

        pub const fn drops(&self) -> &pollux_verbs::drops::Drops<$drop> {
            &self.output.drops
        }
    };
}
pub(crate) use output_methods;

/// Drop counters as rows: the part that counts, the reason and the count.
pub(crate) fn drop_rows<R: Reason>(
    of: &'static str,
    drops: &Drops<R>,
) -> impl Iterator<Item = (&'static str, &'static str, u64)> {
    drops.iter().map(move |(why, times)| (of, why, times))
}
