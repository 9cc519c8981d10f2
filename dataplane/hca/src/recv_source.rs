//! Receives in a consumer's own memory, which the adapter fetches, as hardware does.
//!
//! A consumer that posts by a store to its memory does not call the adapter, and a message may
//! arrive right after the store. So the adapter fetches what was posted before it finds that a
//! queue has no receive.

use pollux_verbs::RecvRequest;
use std::fmt::Debug;

pub trait RecvSource: Debug + Send {
    /// Passes on up to `count_max` receives that were posted since the last call, oldest first.
    /// None has more entries than the queue takes.
    fn fetch(&mut self, count_max: usize, take: &mut dyn FnMut(&RecvRequest<'_>));

    /// The queue pair was reset: its ring begins anew.
    fn reset(&mut self);
}
