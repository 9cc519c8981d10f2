//! Two adapters in two threads of one process, joined by a ring each way.

use super::Link;
use crate::frame::Frame;
use crate::time::Time;
use pollux_mem::spsc::{self, Consumer, Producer};
use std::sync::Arc;

/// Frames that a ring holds: a burst, and no more than the caches do.
const RING_FRAMES: usize = 1024;

/// What tells the time to links between threads; given by whoever may read a clock.
pub type Clock = Arc<dyn Fn() -> Time + Send + Sync>;

/// One end of a link between threads.
pub struct ThreadLink {
    to: Producer<Frame>,
    from: Consumer<Frame>,
    clock: Clock,
}

/// Two joined ends.
///
/// # Panics
/// Never: the ring's size is a power of two.
pub fn pair(clock: &Clock) -> [ThreadLink; 2] {
    let ring = || spsc::ring(RING_FRAMES).expect("a power of two");
    let ((to_b, from_a), (to_a, from_b)) = (ring(), ring());
    let link = |to, from| ThreadLink { to, from, clock: clock.clone() };
    [link(to_b, from_b), link(to_a, from_a)]
}

impl Link for ThreadLink {
    fn now(&self) -> Time {
        (self.clock)()
    }

    fn is_virtual(&self) -> bool {
        false
    }

    fn send(&mut self, frame: Frame) -> Result<(), Frame> {
        self.to.push(frame)
    }

    fn receive(&mut self) -> Option<Frame> {
        self.from.pop()
    }

    fn wants_packets(&self) -> bool {
        false
    }

    fn set_deadline(&mut self, _: Option<Time>) {}

    fn idle(&mut self, _: Time) {
        std::thread::yield_now();
    }
}
