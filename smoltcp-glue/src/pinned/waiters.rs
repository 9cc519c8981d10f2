//! Waiters of a socket: tasks and threads, which are woken in the same way.
//!
//! ```text
//!   waiter:  enter the list, set the flag, fence, check again, sleep
//!   waker:   change the state,             fence, read the flag: wake the list
//! ```
//!
//! Either the waker sees the flag, or the waiter sees the new state. Without waiters, waking costs
//! the fence and a read of the flag. The lock of the list is taken only before a sleep and to wake.

use super::lock;
use crate::timeout::CallTimeout;
use crate::yields::yield_core;
use std::collections::BTreeMap;
use std::collections::btree_map::OccupiedEntry;
use std::future::poll_fn;
use std::io;
use std::sync::atomic::{AtomicBool, Ordering, fence};
use std::sync::{Arc, Mutex, MutexGuard};
use std::task::{Context, Poll, Wake, Waker};
use std::thread::Thread;
use std::time::Instant;

/// How often a call yields and checks again before its thread sleeps. Why no spin hints: the worker
/// may have to run on the same core, and a yield without another thread to run costs 0.3 us.
const YIELDS_MAX: u32 = 50;

/// The waiters for the same event.
#[derive(Default)]
pub(super) struct Waiters {
    is_any: AtomicBool,
    list: Mutex<List>,
}

/// Wakers by number, in order of arrival. Dropping a [`Waiting`] removes its waker, so a cancelled
/// call leaves no entry.
#[derive(Default)]
struct List {
    next: u64,
    wakers: BTreeMap<u64, Waker>,
}

/// The entry of one task or thread, for as long as it waits.
struct Waiting<'w> {
    waiters: &'w Waiters,
    slot: TaskSlot,
}

/// The number of an entry in the list, if there is one. Only one task at a time polls with a slot,
/// so only the last waker is kept.
#[derive(Debug, Default)]
pub(super) struct TaskSlot(Option<u64>);

impl Waiters {
    fn list(&self) -> MutexGuard<'_, List> {
        lock(&self.list)
    }

    /// An entry for a task or thread that begins to wait.
    const fn waiting(&self) -> Waiting<'_> {
        Waiting { waiters: self, slot: TaskSlot(None) }
    }

    pub(super) fn wake(&self) {
        fence(Ordering::SeqCst);
        if self.is_any.load(Ordering::Relaxed) && self.is_any.swap(false, Ordering::AcqRel) {
            self.wake_all();
        }
    }

    /// Wakes the waiters that are on the list now, in order. Later ones stay on the list.
    #[cold]
    fn wake_all(&self) {
        let end = self.list().next;
        loop {
            // The lock is released first, since a waker may run any code.
            let first = {
                let mut list = self.list();
                let first = list.wakers.first_entry().filter(|first| *first.key() < end);
                first.map(OccupiedEntry::remove)
            };
            let Some(first) = first else { return };
            first.wake();
        }
    }

    /// Asks; without an answer, registers the task to be woken at the next change. The `poll_...`
    /// functions of sockets use this. They keep no entry, so a waker stays on the list until the
    /// next change, even if its task is gone.
    pub(super) fn poll<R>(
        &self,
        context: &Context<'_>,
        ask: impl FnMut() -> io::Result<Option<R>>,
    ) -> Poll<io::Result<R>> {
        let waker = context.waker();
        self.ask_or_enter(ask, |list| {
            if !list.wakers.values().any(|one| one.will_wake(waker)) {
                list.insert(waker);
            }
        })
    }

    /// Like [`Waiters::poll`], but keeps only the waker of the last call with this slot.
    pub(super) fn poll_slot<R>(
        &self,
        TaskSlot(number): &mut TaskSlot,
        context: &Context<'_>,
        ask: impl FnMut() -> io::Result<Option<R>>,
    ) -> Poll<io::Result<R>> {
        self.ask_or_enter(ask, |list| {
            match number.and_then(|number| list.wakers.get_mut(&number)) {
                Some(waker) => waker.clone_from(context.waker()),
                None => *number = Some(list.insert(context.waker())),
            }
        })
    }

    /// Asks; without an answer, enters the list, and asks once more.
    fn ask_or_enter<R>(
        &self,
        mut ask: impl FnMut() -> io::Result<Option<R>>,
        enter: impl FnOnce(&mut List),
    ) -> Poll<io::Result<R>> {
        if let Some(answer) = ask().transpose() {
            return Poll::Ready(answer);
        }
        enter(&mut self.list());
        self.is_any.store(true, Ordering::Release);
        // Pairs with the fence in `wake`: `wake` sees the flag, or `ask` sees the new state.
        fence(Ordering::SeqCst);
        ask().transpose().map_or(Poll::Pending, Poll::Ready)
    }

    /// Asks until there is an answer, for a task.
    pub(super) async fn wait_async<R>(
        &self,
        mut ask: impl FnMut() -> io::Result<Option<R>>,
    ) -> io::Result<R> {
        let mut waiting = self.waiting();
        poll_fn(|context| waiting.poll(context, &mut ask)).await
    }

    /// Asks until there is an answer or the timeout expires.
    #[expect(clippy::disallowed_methods, reason = "a timeout is by the machine's clock")]
    pub(super) fn wait<R>(
        &self,
        timeout: CallTimeout,
        mut ask: impl FnMut() -> io::Result<Option<R>>,
    ) -> io::Result<R> {
        if let Some(answer) = ask()? {
            return Ok(answer);
        }
        if timeout == CallTimeout::Immediate {
            return Err(io::ErrorKind::WouldBlock.into());
        }
        let begun = Instant::now();
        for _ in 0..YIELDS_MAX {
            if !yield_core() {
                break;
            }
            if let Some(answer) = ask()? {
                return Ok(answer);
            }
        }
        let waker = waker_of_this_thread();
        let context = Context::from_waker(&waker);
        let mut waiting = self.waiting();
        loop {
            if let Poll::Ready(answer) = waiting.poll(&context, &mut ask) {
                return answer;
            }
            let CallTimeout::After(timeout) = timeout else {
                std::thread::park();
                continue;
            };
            match timeout.checked_sub(begun.elapsed()).filter(|left| !left.is_zero()) {
                Some(left) => std::thread::park_timeout(left),
                None => return Err(io::ErrorKind::TimedOut.into()),
            }
        }
    }
}

impl List {
    fn insert(&mut self, waker: &Waker) -> u64 {
        let number = self.next;
        self.next += 1;
        self.wakers.insert(number, waker.clone());
        number
    }
}

impl Waiting<'_> {
    /// Like [`Waiters::poll`], but dropping this removes the waker.
    fn poll<R>(
        &mut self,
        context: &Context<'_>,
        ask: impl FnMut() -> io::Result<Option<R>>,
    ) -> Poll<io::Result<R>> {
        self.waiters.poll_slot(&mut self.slot, context, ask)
    }
}

impl Drop for Waiting<'_> {
    fn drop(&mut self) {
        if let TaskSlot(Some(number)) = self.slot {
            self.waiters.list().wakers.remove(&number);
        }
    }
}

/// Wakes a thread that sleeps in [`Waiters::wait`].
struct Unpark(Thread);

impl Wake for Unpark {
    fn wake(self: Arc<Self>) {
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
    use crate::wake_count::WakeCount;
    use std::sync::atomic::AtomicUsize;
    use std::time::Duration;

    const COUNTS: [usize; 4] = [1, 64, 65, 1000];

    fn counting(count: usize) -> (Vec<Arc<WakeCount>>, Vec<Waker>) {
        let counts: Vec<_> = (0..count).map(|_| Arc::new(WakeCount::default())).collect();
        let wakers = counts.iter().map(|one| Waker::from(one.clone())).collect();
        (counts, wakers)
    }

    fn nothing() -> io::Result<Option<()>> {
        Ok(None)
    }

    #[test]
    fn a_slot_keeps_the_last_waker_alone() {
        let (waiters, mut slot) = (Waiters::default(), TaskSlot::default());
        let (counts, wakers) = counting(100);
        for change in 1..=3 {
            for waker in &wakers {
                let polled = waiters.poll_slot(&mut slot, &Context::from_waker(waker), nothing);
                assert!(polled.is_pending());
            }
            waiters.wake();
            let woken: Vec<_> = counts.iter().map(|one| one.taken()).collect();
            let sum: usize = woken.iter().sum();
            assert_eq!((woken[99], sum), (1, 1), "change {change}");
        }
    }

    #[test]
    fn every_waiter_is_woken_once_for_each_change() {
        for count in COUNTS {
            let waiters = Waiters::default();
            let (counts, wakers) = counting(count);
            let mut waiting: Vec<_> = (0..count).map(|_| waiters.waiting()).collect();
            for change in 0..5 {
                for (one, waker) in waiting.iter_mut().zip(&wakers) {
                    for _ in 0..2 {
                        assert!(one.poll(&Context::from_waker(waker), nothing).is_pending());
                    }
                }
                let woken: usize = counts.iter().map(|one| one.taken()).sum();
                assert_eq!(woken, 0, "nothing changed, change {change} of {count}");
                waiters.wake();
                waiters.wake();
                assert!(counts.iter().all(|one| one.taken() == 1), "change {change} of {count}");
            }
        }
    }

    #[test]
    fn every_task_that_polls_is_woken_once_for_each_change() {
        for count in COUNTS {
            let waiters = Waiters::default();
            let (counts, wakers) = counting(count);
            for _ in 0..3 {
                for waker in wakers.iter().chain(&wakers) {
                    assert!(waiters.poll(&Context::from_waker(waker), nothing).is_pending());
                }
                waiters.wake();
                assert!(counts.iter().all(|one| one.taken() == 1), "{count}");
            }
        }
    }

    #[test]
    fn a_cancelled_waiter_is_removed_and_not_woken() {
        let waiters = Waiters::default();
        let (counts, wakers) = counting(100);
        let mut waiting: Vec<_> = (0..100).map(|_| waiters.waiting()).collect();
        for (one, waker) in waiting.iter_mut().zip(&wakers) {
            assert!(one.poll(&Context::from_waker(waker), nothing).is_pending());
        }
        waiting.truncate(10);
        assert_eq!(waiters.list().wakers.len(), 10);
        waiters.wake();
        let woken: Vec<_> = counts.iter().map(|one| one.taken()).collect();
        assert_eq!((woken[..10].iter().sum(), woken[10..].iter().sum()), (10, 0));
        drop(waiting);
        assert!(waiters.list().wakers.is_empty());
    }

    /// A task may have another waker at each poll.
    #[test]
    fn the_waker_of_the_last_poll_is_woken() {
        let waiters = Waiters::default();
        let (counts, wakers) = counting(3);
        let mut waiting = waiters.waiting();
        for waker in &wakers {
            assert!(waiting.poll(&Context::from_waker(waker), nothing).is_pending());
        }
        waiters.wake();
        assert_eq!([0, 1, 2].map(|nth: usize| counts[nth].taken()), [0, 0, 1]);
    }

    #[test]
    fn a_thread_that_falls_asleep_misses_no_change() {
        let (asked, replied) = (AtomicUsize::new(0), AtomicUsize::new(0));
        let (ready, answered) = (Waiters::default(), Waiters::default());
        let reached = |count: &AtomicUsize, turn: usize| {
            Ok((count.load(Ordering::Relaxed) >= turn).then_some(()))
        };
        let timeout = CallTimeout::After(Duration::from_secs(30));
        std::thread::scope(|scope| {
            scope.spawn(|| {
                for turn in 1..=2000 {
                    ready.wait(timeout, || reached(&asked, turn)).expect("it is woken");
                    replied.store(turn, Ordering::Relaxed);
                    answered.wake();
                }
            });
            for turn in 1..=2000 {
                // Long enough for the other thread to sleep.
                if turn % 100 == 0 {
                    std::thread::park_timeout(Duration::from_millis(2));
                }
                asked.store(turn, Ordering::Relaxed);
                ready.wake();
                answered.wait(timeout, || reached(&replied, turn)).expect("it is woken");
            }
        });
    }

    #[test]
    fn a_wait_times_out() {
        let waiters = Waiters::default();
        let kind = |timeout| waiters.wait(timeout, || Ok(None::<()>)).expect_err("none").kind();
        assert_eq!(kind(CallTimeout::Immediate), io::ErrorKind::WouldBlock);
        assert_eq!(kind(CallTimeout::After(Duration::from_millis(3))), io::ErrorKind::TimedOut);
        assert_eq!(kind(CallTimeout::After(Duration::ZERO)), io::ErrorKind::TimedOut);
    }
}
