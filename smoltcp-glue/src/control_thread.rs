//! The control thread of an interface, which runs its control plane.
//!
//! ```text
//!   application --ask--> requests --> control thread: IpoibLink --commands, frames--> worker
//!               <------ answer -----/        ^----- events, packets of protocols ----/
//! ```
//!
//! A request is a function. The thread calls it after each step of the control plane until it
//! returns an answer. This one mechanism serves queries (neighbors), commands (join a group) and
//! long operations (an echo request, all packets sent).
//!
//! The thread sleeps until an event of a worker, a request or a timer wakes it. A worker wakes it
//! only if it sleeps. The thread ends when all handles are dropped.

use crate::admin::{ProgramAdmin, SocketsRequest};
use crate::clock::Clock;
use pollux_node::interface as node;
use pollux_node::node::waker::{Waker, Woken, waker};
use pollux_verbs::time::Time;
use rustix::event::{PollFd, PollFlags};
use std::io;
use std::os::fd::BorrowedFd;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, RecvTimeoutError, SyncSender, TryRecvError, sync_channel};
use std::thread::{Builder, JoinHandle};
use std::time::Duration;

/// Maximum number of requests in the queue to the thread; while it is full, callers wait.
const REQUESTS_MAX: usize = 256;
/// Maximum number of steps of the control plane between two polls of requests.
const STEPS_MAX: usize = 64;
const SLEEP_MAX: Duration = Duration::from_secs(1);

/// A function that is called until it returns true.
type Request = Box<dyn FnMut(&mut node::IpoibLink, Time) -> bool + Send>;

/// The work of the control thread for the threads that serve sockets.
pub(crate) trait StepHooks: Send + 'static {
    /// Called after each step of the control plane, with the workers that got commands, one bit
    /// each. Returns whether there was anything to do.
    fn after_step(&mut self, now: Time, notified: u32) -> bool;

    /// Called after requests were answered.
    fn handle_answers(&self) {}

    /// Passes a request to a worker; `false` if there is no worker with this number.
    fn ask_sockets(&mut self, now: Time, worker: usize, request: SocketsRequest) -> bool;

    /// Arms the device at [`StepHooks::descriptor`], if there is one, to end a sleep of the thread.
    /// Another call of [`StepHooks::after_step`] follows before the sleep.
    fn arm(&mut self, _: Time) {}

    /// The longest sleep after [`StepHooks::arm`] and that step.
    fn sleep_max(&mut self, _: Time) -> Duration {
        Duration::MAX
    }

    fn descriptor(&self) -> Option<BorrowedFd<'_>> {
        None
    }
}

/// The thread. Dropping this joins the thread, which ends once all other handles are dropped too.
pub(crate) struct ControlThread {
    handle: Option<ControlHandle>,
    thread: Option<JoinHandle<()>>,
}

pub(crate) struct ControlHandle {
    // Dropped before the waker: dropping the waker wakes the thread, which then finds the queue
    // without senders.
    requests: SyncSender<Request>,
    waker: Waker,
}

/// The answer to a request. Dropping it cancels the request.
pub(crate) struct Answer<R> {
    receiver: Receiver<R>,
    /// The request ends once this is dropped.
    _wanted: Arc<()>,
}

impl ControlThread {
    pub(crate) fn start(
        interface: node::IpoibLink,
        clock: Clock,
        hooks: impl StepHooks,
        mut admin: Option<ProgramAdmin>,
    ) -> io::Result<Self> {
        let (waker, woken) = waker()?;
        if let Some(admin) = &mut admin {
            admin.wake_by(waker.share());
        }
        let (requests, received) = sync_channel(REQUESTS_MAX);
        let pending = Vec::new();
        let control =
            Control { interface, clock, requests: received, pending, woken, hooks, admin };
        let thread = Builder::new().name("pollux-control".into()).spawn(|| control.run())?;
        Ok(Self { handle: Some(ControlHandle { requests, waker }), thread: Some(thread) })
    }

    /// Makes the drop not join the thread, for a caller that the thread waits for.
    pub(crate) fn detach(&mut self) {
        self.thread = None;
    }

    pub(crate) fn handle(&self) -> &ControlHandle {
        self.handle.as_ref().expect("it is there until the drop")
    }
}

impl Drop for ControlThread {
    fn drop(&mut self) {
        drop(self.handle.take());
        // A panic was reported when it happened.
        let _ = self.thread.take().map(JoinHandle::join);
    }
}

impl ControlHandle {
    /// Asks the control plane: the thread calls `ask` after each step until `ask` returns a value
    /// or the [`Answer`] is dropped.
    pub(crate) fn ask<R: Send + 'static>(
        &self,
        mut ask: impl FnMut(&mut node::IpoibLink, Time) -> Option<R> + Send + 'static,
    ) -> Answer<R> {
        let (sender, receiver) = sync_channel(1);
        let wanted = Arc::new(());
        let is_wanted = Arc::downgrade(&wanted);
        self.request(Box::new(move |interface, now| {
            if is_wanted.strong_count() == 0 {
                return true;
            }
            let answer = ask(interface, now);
            let is_answered = answer.is_some();
            if let Some(answer) = answer {
                // The answer may have been dropped meanwhile.
                let _ = sender.send(answer);
            }
            is_answered
        }));
        Answer { receiver, _wanted: wanted }
    }

    /// Has the thread run a function on the control plane, without an answer.
    pub(crate) fn run(&self, mut act: impl FnMut(&mut node::IpoibLink, Time) + Send + 'static) {
        self.request(Box::new(move |interface, now| {
            act(interface, now);
            true
        }));
    }

    /// Wakes the thread if it sleeps, after a worker has sent events to it.
    pub(crate) fn wake_if_asleep(&self) {
        self.waker.wake_if_asleep();
    }

    /// If the thread has ended, the request is dropped, which ends the wait for its answer.
    fn request(&self, request: Request) {
        let _ = self.requests.send(request);
        self.waker.wake_if_asleep();
    }
}

impl Clone for ControlHandle {
    fn clone(&self) -> Self {
        Self { requests: self.requests.clone(), waker: self.waker.share() }
    }
}

struct Control<A> {
    interface: node::IpoibLink,
    clock: Clock,
    requests: Receiver<Request>,
    /// Requests without an answer yet.
    pending: Vec<Request>,
    woken: Woken,
    hooks: A,
    admin: Option<ProgramAdmin>,
}

impl<A: StepHooks> Control<A> {
    fn run(mut self) {
        while let Ok(has_requests) = self.take_requests() {
            self.woken.clear();
            let is_busy = self.step_until_idle() | has_requests;
            self.answer();
            if let Some(admin) = &mut self.admin {
                let (now, hooks) = (self.clock.now(), &mut self.hooks);
                admin.turn(now, |worker, request| hooks.ask_sockets(now, worker, request));
            }
            if !is_busy {
                self.sleep();
            }
        }
    }

    /// Takes new requests. Returns whether there were any; fails once all handles are dropped.
    fn take_requests(&mut self) -> Result<bool, TryRecvError> {
        let before = self.pending.len();
        loop {
            match self.requests.try_recv() {
                Ok(request) => self.pending.push(request),
                Err(TryRecvError::Empty) => return Ok(self.pending.len() > before),
                Err(gone) => return Err(gone),
            }
        }
    }

    /// Steps until there is nothing to do, at most [`STEPS_MAX`] times. Returns whether there may
    /// be more to do.
    fn step_until_idle(&mut self) -> bool {
        let mut steps = 0;
        while steps < STEPS_MAX && self.step() {
            steps += 1;
        }
        steps == STEPS_MAX
    }

    fn step(&mut self) -> bool {
        let now = self.clock.now();
        let is_busy = self.interface.step(now);
        let notified = self.interface.take_notified();
        self.hooks.after_step(now, notified) | is_busy
    }

    /// Calls all pending requests. If the interface has failed, drops those that have no answer,
    /// so that their callers get an error.
    fn answer(&mut self) {
        let (now, interface) = (self.clock.now(), &mut self.interface);
        let before = self.pending.len();
        self.pending.retain_mut(|request| !request(interface, now));
        if self.pending.len() < before {
            self.hooks.handle_answers();
        }
        if interface.failed().is_some() {
            self.pending.clear();
        }
    }

    fn sleep(&mut self) {
        let now = self.clock.now();
        self.woken.fall_asleep();
        self.interface.sleep_port().arm();
        self.hooks.arm(now);
        if !matches!(self.take_requests(), Ok(false)) || self.step() {
            return;
        }
        let Self { interface, hooks, admin, .. } = self;
        let until_timer =
            interface.poll_timeout().map_or(SLEEP_MAX, |due| due.since(now).min(SLEEP_MAX));
        let port = interface.sleep_port();
        let longest = until_timer.min(port.sleep_max()).min(hooks.sleep_max(now));
        let descriptors = port.descriptors().chain(hooks.descriptor());
        let descriptors = descriptors.map(|fd| PollFd::from_borrowed_fd(fd, PollFlags::IN));
        let longest = admin.as_ref().map_or(longest, |admin| admin.sleep_max(now).min(longest));
        let all = descriptors.chain(admin.iter().flat_map(ProgramAdmin::poll_fds));
        self.woken.sleep_polling(all, longest);
    }
}

impl<R> Answer<R> {
    pub(crate) fn poll(&self) -> io::Result<Option<R>> {
        match self.receiver.try_recv() {
            Ok(answer) => Ok(Some(answer)),
            Err(TryRecvError::Empty) => Ok(None),
            Err(TryRecvError::Disconnected) => Err(ended_error()),
        }
    }

    pub(crate) fn wait_for(self, timeout: Duration) -> io::Result<R> {
        self.receiver.recv_timeout(timeout).map_err(|why| match why {
            RecvTimeoutError::Timeout => io::ErrorKind::TimedOut.into(),
            RecvTimeoutError::Disconnected => ended_error(),
        })
    }

    pub(crate) fn wait(self) -> io::Result<R> {
        self.receiver.recv().map_err(|_| ended_error())
    }
}

/// The error if the request was dropped: the thread has ended, or the interface has failed.
fn ended_error() -> io::Error {
    io::Error::other("the interface has ended")
}
