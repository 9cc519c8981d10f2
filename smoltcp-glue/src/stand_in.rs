//! The control thread serves the sockets of an inline application that makes no calls.
//!
//! An inline application serves its sockets itself, in its calls. While the application computes,
//! the control thread serves them, so that no peer times out. The control thread also wakes an
//! application that sleeps in a call.

use crate::admin::SocketsRequest;
use crate::control_thread::StepHooks;
use crate::host::Host;
use pollux_node::node::waker::{Waker, Woken, waker};
use pollux_verbs::time::Time;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{Sender, channel};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

/// How long an application may make no call before the control thread serves its sockets.
const ABSENT_AFTER: Duration = Duration::from_millis(10);

/// How often the control thread checks whether a call has ended.
const CALL_CHECK_EVERY: Duration = Duration::from_millis(50);

/// A host that the application and the control thread serve in turn.
pub(crate) struct SharedHost {
    host: Mutex<Host>,
    /// The end of the last call, in nanoseconds; [`SharedHost::IN_CALL`] during a call.
    call_ended: AtomicU64,
}

impl SharedHost {
    const IN_CALL: u64 = u64::MAX;

    /// Locks the host for a call of the application.
    pub(crate) fn begin_call(&self) -> MutexGuard<'_, Host> {
        self.call_ended.store(Self::IN_CALL, Ordering::Relaxed);
        self.host.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn end_call(&self, now: Time) {
        self.call_ended.store(now.since_start().as_nanos() as u64, Ordering::Relaxed);
    }

    /// When the application counts as absent; `None` during a call.
    fn absent_at(&self) -> Option<Time> {
        let ended = self.call_ended.load(Ordering::Relaxed);
        let is_in_call = ended == Self::IN_CALL;
        (!is_in_call).then(|| Time::START + Duration::from_nanos(ended) + ABSENT_AFTER)
    }

    /// The host, if the application is absent and has not begun a call meanwhile.
    fn absent_host(&self, now: Time) -> Option<MutexGuard<'_, Host>> {
        self.absent_at().filter(|absent_at| *absent_at <= now)?;
        self.host.try_lock().ok()
    }
}

/// Steps the host of an absent application, and wakes an application that sleeps.
pub(crate) struct StandIn {
    shared_host: Arc<SharedHost>,
    waker: Waker,
    /// Requests to the host; the thread that steps it next answers them.
    requests: Sender<SocketsRequest>,
    /// The descriptor of the device. While `is_armed`, it ends a sleep of the control thread.
    descriptor: Option<OwnedFd>,
    /// Whether the device wakes the control thread, because the application is absent. Otherwise,
    /// it wakes the application.
    is_armed: bool,
}

impl StandIn {
    /// Also returns the shared host, and the end of the waker at which the application sleeps.
    pub(crate) fn new(mut host: Host) -> io::Result<(Self, Arc<SharedHost>, Woken)> {
        let (waker, woken) = waker()?;
        let descriptor = host.wake_descriptor();
        let (requests, asked) = channel();
        host.requests = Some(asked);
        let shared_host =
            Arc::new(SharedHost { host: Mutex::new(host), call_ended: AtomicU64::new(0) });
        let stand_in = Self {
            shared_host: Arc::clone(&shared_host),
            waker,
            requests,
            descriptor,
            is_armed: false,
        };
        Ok((stand_in, shared_host, woken))
    }
}

impl StepHooks for StandIn {
    fn after_step(&mut self, now: Time, notified: u32) -> bool {
        if notified != 0 {
            self.waker.wake_if_asleep();
        }
        let is_busy = self.shared_host.absent_host(now).is_some_and(|mut host| host.step(now));
        if is_busy {
            // The application may sleep outside of calls, at the descriptor of `smoltcp::Device`.
            self.waker.wake_if_asleep();
        }
        is_busy
    }

    fn handle_answers(&self) {
        self.waker.wake_if_asleep();
    }

    fn ask_sockets(&mut self, now: Time, worker: usize, request: SocketsRequest) -> bool {
        if worker > 0 {
            return false;
        }
        match self.shared_host.absent_host(now) {
            Some(host) => request.answer(now, &host.stack, |_| (0, 0)),
            None => {
                // The receiver is in the host, which `shared_host` keeps alive.
                let _ = self.requests.send(request);
                self.waker.wake_if_asleep();
            }
        }
        true
    }

    fn arm(&mut self, now: Time) {
        self.is_armed = self.shared_host.absent_host(now).is_some_and(|mut host| host.arm());
    }

    fn sleep_max(&mut self, now: Time) -> Duration {
        if let Some(mut host) = self.shared_host.absent_host(now).filter(|_| self.is_armed) {
            return host.sleep_max(now);
        }
        // The end of a call does not wake this thread, so it checks again later.
        self.shared_host
            .absent_at()
            .map_or(CALL_CHECK_EVERY, |absent_at| absent_at.since(now).max(ABSENT_AFTER))
    }

    fn descriptor(&self) -> Option<BorrowedFd<'_>> {
        self.descriptor.as_ref().filter(|_| self.is_armed).map(AsFd::as_fd)
    }
}
