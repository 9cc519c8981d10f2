//! Who waits for a socket: tasks and threads, which are the same to whoever wakes them.
//!
//! ```text
//!   waits:  put yourself on the list, raise the flag, fence, look again, sleep
//!   wakes:  change what is waited for,              fence, look at the flag: wake the list
//! ```
//!
//! Whatever the order, one of the two sees the other. Where nobody waits, waking costs the fence
//! and a look at the flag; the list has a lock, which only those touch who are about to sleep or
//! who have seen somebody asleep.

use crate::interface::Patience;
use std::io;
use std::sync::atomic::{AtomicBool, Ordering, fence};
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context, Poll, Wake, Waker};
use std::thread::Thread;
use std::time::Instant;

/// Entries of a list. Who comes after that many wakes the first, who then asks again.
const WAITERS_MAX: usize = 64;
/// How often a call looks again before its thread sleeps: at first at once, then after others had
/// their turn.
const LOOKS_AT_ONCE: u32 = 200;
const LOOKS_IN_TURN: u32 = 50;

/// Those who wait for the same.
#[derive(Default)]
pub(super) struct Waiters {
    is_any: AtomicBool,
    list: Mutex<Vec<Waker>>,
}

impl Waiters {
    /// From now on whoever changes what is waited for wakes this one, once. It has to look again
    /// after this.
    fn add(&self, waker: &Waker) {
        let mut list = self.list.lock().unwrap_or_else(PoisonError::into_inner);
        let mut displaced = None;
        if !list.iter().any(|one| one.will_wake(waker)) {
            displaced = (list.len() >= WAITERS_MAX).then(|| list.remove(0));
            list.push(waker.clone());
        }
        drop(list);
        self.is_any.store(true, Ordering::Release);
        // With the fence in `wake`: one of the two sees the other.
        fence(Ordering::SeqCst);
        displaced.into_iter().for_each(Waker::wake);
    }

    /// What they wait for may have come.
    pub(super) fn wake(&self) {
        fence(Ordering::SeqCst);
        if self.is_any.load(Ordering::Relaxed) && self.is_any.swap(false, Ordering::AcqRel) {
            self.wake_all();
        }
    }

    /// Wakes those who are on the list now, the first first: who comes meanwhile is behind them.
    #[cold]
    fn wake_all(&self) {
        let list = || self.list.lock().unwrap_or_else(PoisonError::into_inner);
        let count = list().len();
        for _ in 0..count {
            // The lock is given back before, since a waker may do anything.
            let first = {
                let mut list = list();
                (!list.is_empty()).then(|| list.remove(0))
            };
            first.into_iter().for_each(Waker::wake);
        }
    }

    /// Asks once, and sees to it that the task is woken when asking again is worth it.
    pub(super) fn poll<R>(
        &self,
        context: &Context<'_>,
        mut ask: impl FnMut() -> io::Result<Option<R>>,
    ) -> Poll<io::Result<R>> {
        if let Some(answer) = ask().transpose() {
            return Poll::Ready(answer);
        }
        self.add(context.waker());
        ask().transpose().map_or(Poll::Pending, Poll::Ready)
    }

    /// Asks until there is an answer, for as long as there is patience.
    #[expect(clippy::disallowed_methods, reason = "a timeout is by the machine's clock")]
    pub(super) fn wait<R>(
        &self,
        patience: Patience,
        mut ask: impl FnMut() -> io::Result<Option<R>>,
    ) -> io::Result<R> {
        if let Some(answer) = ask()? {
            return Ok(answer);
        }
        if patience == Patience::None {
            return Err(io::ErrorKind::WouldBlock.into());
        }
        let begun = Instant::now();
        for look in 0..LOOKS_AT_ONCE + LOOKS_IN_TURN {
            match look < LOOKS_AT_ONCE {
                true => std::hint::spin_loop(),
                false => std::thread::yield_now(),
            }
            if let Some(answer) = ask()? {
                return Ok(answer);
            }
        }
        let waker = waker_of_this_thread();
        let context = Context::from_waker(&waker);
        loop {
            if let Poll::Ready(answer) = self.poll(&context, &mut ask) {
                return answer;
            }
            let Patience::For(whole) = patience else {
                std::thread::park();
                continue;
            };
            match whole.checked_sub(begun.elapsed()).filter(|left| !left.is_zero()) {
                Some(left) => std::thread::park_timeout(left),
                None => return Err(io::ErrorKind::TimedOut.into()),
            }
        }
    }
}

/// Wakes a thread that sleeps in [`Waiters::wait`].
struct Unpark(Thread);

impl Wake for Unpark {
    fn wake(self: Arc<Self>) {
        self.0.unpark();
    }

    fn wake_by_ref(self: &Arc<Self>) {
        self.0.unpark();
    }
}

fn waker_of_this_thread() -> Waker {
    thread_local! {
        static WAKER: Waker = Waker::from(Arc::new(Unpark(std::thread::current())));
    }
    WAKER.with(Waker::clone)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::AtomicUsize;
    use std::time::Duration;

    #[derive(Default)]
    struct Counts(AtomicUsize);

    impl Wake for Counts {
        fn wake(self: Arc<Self>) {
            self.0.fetch_add(1, Ordering::Relaxed);
        }
    }

    #[test]
    fn whoever_waits_is_woken_once_and_nobody_is_forgotten() {
        let waiters = Waiters::default();
        let counts: Vec<_> = (0..WAITERS_MAX + 2).map(|_| Arc::new(Counts::default())).collect();
        for one in &counts {
            let waker = Waker::from(one.clone());
            for _ in 0..2 {
                let polled = waiters.poll(&Context::from_waker(&waker), || Ok(None::<()>));
                assert!(polled.is_pending());
            }
        }
        waiters.wake();
        waiters.wake();
        assert!(counts.iter().all(|one| one.0.load(Ordering::Relaxed) == 1));
    }

    #[test]
    fn no_change_is_missed_by_a_thread_that_falls_asleep() {
        let (there, back) = (AtomicUsize::new(0), AtomicUsize::new(0));
        let (ready, answered) = (Waiters::default(), Waiters::default());
        let reached = |count: &AtomicUsize, turn: usize| {
            Ok((count.load(Ordering::Relaxed) >= turn).then_some(()))
        };
        let patience = Patience::For(Duration::from_secs(30));
        std::thread::scope(|scope| {
            scope.spawn(|| {
                for turn in 1..=2000 {
                    ready.wait(patience, || reached(&there, turn)).expect("it is woken");
                    back.store(turn, Ordering::Relaxed);
                    answered.wake();
                }
            });
            for turn in 1..=2000 {
                // Every so often, long enough for the other to sleep.
                if turn % 100 == 0 {
                    std::thread::park_timeout(Duration::from_millis(2));
                }
                there.store(turn, Ordering::Relaxed);
                ready.wake();
                answered.wait(patience, || reached(&back, turn)).expect("it is woken");
            }
        });
    }

    #[test]
    fn patience_ends() {
        let waiters = Waiters::default();
        let kind = |patience| waiters.wait(patience, || Ok(None::<()>)).expect_err("none").kind();
        assert_eq!(kind(Patience::None), io::ErrorKind::WouldBlock);
        assert_eq!(kind(Patience::For(Duration::from_millis(3))), io::ErrorKind::TimedOut);
        assert_eq!(kind(Patience::For(Duration::ZERO)), io::ErrorKind::TimedOut);
    }
}
