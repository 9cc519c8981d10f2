//! The word by which a receiver informs senders in other processes that it sleeps.
//!
//! ```text
//!   receiver                                  sender
//!   1. the word becomes odd                   1. publishes an entry
//!   2. barrier, in all threads                2. looks at the word
//!   3. looks at the ring once more            3. wakes the receiver, if the word is odd
//!   4. sleeps on a descriptor
//! ```
//!
//! Either the receiver in step 3 or the sender in step 2 sees the other's first step. The receiver
//! bears the cost: its barrier (`membarrier`) takes effect in all running threads of all registered
//! processes. So a sender needs no fence and only loads a word that is usually in its cache. A
//! sender uses a fence of its own while its kernel does not support the barrier or has not enabled
//! it yet. A receiver whose kernel does not support the barrier must not sleep for long.
//!
//! The barrier interrupts all registered processes. So a receiver that sleeps often sets a bit of
//! the word instead, by which it requests a fence from senders. The first sleep with this bit still
//! needs the barrier, so that all senders have seen the bit. Later sleeps need only a fence.
//!
//! Each sleep has its own odd number, and a sender wakes the receiver once for each number. The
//! sender never stores to the word. A sender may also be late, and wake the receiver for an entry
//! that it has taken already. So a receiver that was woken without an entry must begin another
//! sleep.

use crate::sync::{Ordering, fence};
use crate::words::Words;

/// The bit by which the receiver requests a fence from senders.
const ASKS_FOR_FENCE: u64 = 1 << 63;

#[derive(Debug)]
pub struct SleepWord {
    words: Words,
    /// The value of the word without the bit; odd during a sleep.
    number: u64,
    asks_for_fence: bool,
}

#[derive(Debug)]
pub struct SleepWatch {
    words: Words,
    /// The number of the last sleep that this sender ended.
    woken: u64,
    has_fence: bool,
}

/// Whether barriers of other processes take effect in this one. `false` if the kernel has no such
/// barrier (before Linux 4.16), does not allow it, or has not enabled it yet. Enabling takes a
/// dozen milliseconds, so a thread of its own waits for it.
#[cfg(not(loom))]
fn takes_part() -> bool {
    use rustix::thread::{MembarrierCommand, membarrier};
    use std::sync::{Once, OnceLock};
    static BEGIN: Once = Once::new();
    static TAKES_PART: OnceLock<bool> = OnceLock::new();
    let enable = || {
        let is_enabled = membarrier(MembarrierCommand::RegisterGlobalExpedited).is_ok();
        let _ = TAKES_PART.set(is_enabled);
    };
    BEGIN.call_once(|| {
        if std::thread::Builder::new().name("barriers".into()).spawn(enable).is_err() {
            enable();
        }
    });
    TAKES_PART.get().copied().unwrap_or_default()
}

/// loom has no such barrier, so in its models both sides use fences.
#[cfg(loom)]
fn takes_part() -> bool {
    false
}

/// The receiver's barrier, after its words became odd and before its last check of the rings.
/// `false` if the kernel does not support it: then a wake-up may be lost, and sleeps must be short.
#[cfg(not(loom))]
#[must_use]
pub fn barrier() -> bool {
    use rustix::thread::{MembarrierCommand, membarrier};
    fence(Ordering::SeqCst);
    membarrier(MembarrierCommand::GlobalExpedited).is_ok()
}

#[cfg(loom)]
#[must_use]
pub fn barrier() -> bool {
    fence(Ordering::SeqCst);
    true
}

impl SleepWord {
    /// A word of a receiver that is awake.
    pub fn new(words: Words) -> Self {
        Self { words, number: 0, asks_for_fence: false }
    }

    /// Sets whether senders have to use a fence from the next sleep on. Returns whether that sleep
    /// needs the [`barrier`]. If not, a fence of the receiver is enough.
    #[must_use]
    pub fn ask_for_fence(&mut self, asks: bool) -> bool {
        let asked = std::mem::replace(&mut self.asks_for_fence, asks);
        !(asks && asked)
    }

    /// Begins a sleep. The caller must execute [`barrier`] or a fence next.
    pub fn fall_asleep(&mut self) {
        self.store(self.number.wrapping_add(1) | 1);
    }

    /// Ends a sleep. No barrier is needed: a sender that sees the new value late only causes a
    /// needless wake-up.
    pub fn wake_up(&mut self) {
        self.store(self.number.wrapping_add(1) & !1);
    }

    fn store(&mut self, number: u64) {
        self.number = number;
        let asks = if self.asks_for_fence { ASKS_FOR_FENCE } else { 0 };
        self.words.as_slice()[0].store(number | asks, Ordering::Relaxed);
    }
}

impl SleepWatch {
    pub fn new(words: Words) -> Self {
        Self { words, woken: 0, has_fence: !takes_part() }
    }

    /// A sender without its own fence, for models of receivers that request one.
    #[cfg(loom)]
    pub fn without_fence(words: Words) -> Self {
        Self { words, woken: 0, has_fence: false }
    }

    #[cold]
    fn fence(&mut self) {
        fence(Ordering::SeqCst);
        self.has_fence = !takes_part();
    }

    /// Whether the receiver must be woken after an entry was published. True once for each sleep.
    #[inline(always)]
    pub fn must_wake(&mut self) -> bool {
        if self.has_fence {
            self.fence();
        }
        // The barrier of the receiver orders the instructions of this thread. This fence keeps the
        // compiler from reordering them.
        #[cfg(not(loom))]
        std::sync::atomic::compiler_fence(Ordering::SeqCst);
        let mut number = self.words.as_slice()[0].load(Ordering::Relaxed);
        if number & ASKS_FOR_FENCE != 0 {
            fence(Ordering::SeqCst);
            number = self.words.as_slice()[0].load(Ordering::Relaxed);
        }
        if number & 1 == 0 || number == self.woken {
            return false;
        }
        self.woken = number;
        true
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use crate::segment::Segment;

    fn sides() -> (SleepWord, SleepWatch) {
        let segment = Segment::create("test", 4096).unwrap();
        let words = || Words::over(segment.map().unwrap());
        (SleepWord::new(words()), SleepWatch::new(words()))
    }

    #[test]
    fn each_sleep_is_ended_once() {
        let (mut word, mut watch) = sides();
        assert!(!watch.must_wake(), "it is awake");
        for _ in 0..3 {
            word.fall_asleep();
            assert!(watch.must_wake() && !watch.must_wake(), "once");
            word.wake_up();
            assert!(!watch.must_wake());
        }
        word.fall_asleep();
        assert!(watch.must_wake());
        word.fall_asleep();
        assert!(watch.must_wake(), "another sleep, without an end of the one before");
    }

    #[test]
    fn a_receiver_that_asks_for_a_fence_needs_one_barrier_and_is_woken_as_before() {
        let (mut word, mut watch) = sides();
        for (asks, needs_barrier) in [
            (false, true),
            (false, true),
            (true, true),
            (true, false),
            (true, false),
            (false, true),
        ] {
            assert_eq!(word.ask_for_fence(asks), needs_barrier);
            word.fall_asleep();
            assert!(watch.must_wake() && !watch.must_wake(), "once");
            word.wake_up();
            assert!(!watch.must_wake());
        }
    }
}
