//! Receives that the consumer posts in its own memory. The adapter fetches them, as hardware does.
//!
//! Such a consumer posts by a store to memory, without a call to the adapter, and a message may
//! arrive right after the store. So the adapter fetches new receives before it concludes that a
//! queue is empty.

use pollux_verbs::RecvRequest;
use std::fmt::Debug;

pub trait RecvSource: Debug + Send {
    /// Passes up to `count_max` receives that were posted since the last call to `take`, oldest
    /// first. No receive has more scatter/gather entries than the queue allows.
    fn fetch(&mut self, count_max: usize, take: &mut dyn FnMut(&RecvRequest<'_>));

    /// Restarts the ring from its beginning, after the queue pair was reset.
    fn reset(&mut self);
}
