//! The adapter of this process. It is opened at the first use, shared by all contexts, and driven
//! by a thread.

use crate::abi::command;
use crate::commands::Call;
use crate::doorbell::{PAGE_BYTES, PAGES};
use crate::fd_set::FdSet;
use crate::hca::Hca;
use crate::panics::end_program_at_panic;
use crate::signals::without_signals;
use crate::store_trap;
use crate::user_memory::copy_out;
use crate::write_watch::WriteWatch;
use pollux_fabric::link::threads::Clock;
use pollux_fabric::process::{ProcessLink, open_in_group};
use pollux_hca::Link;
use pollux_verbs::Device;
use pollux_verbs::time::Time;
use pollux_wire::mad::smp::PortState;
use rustix::event::{EventfdFlags, PollFd, PollFlags, Timespec, eventfd, poll};
use rustix::io::Errno;
use std::cell::Cell;
use std::collections::BTreeMap;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, IntoRawFd, OwnedFd, RawFd};
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// The environment variable that names the port: `soft:PATH@NODE[:PORT]`.
pub(crate) const DEVICE_VARIABLE: &str = "POLLUX_DEVICE";
/// The environment variable with the group number that all processes at a shared port have.
pub(crate) const GROUP_VARIABLE: &str = "POLLUX_PORT_GROUP";
/// Waits of [`ACTIVE_WAIT`] for the port to become active when it is opened, at most.
const ACTIVE_WAITS_MAX: u32 = 1000;
const ACTIVE_WAIT: Duration = Duration::from_millis(5);
/// Turns without work before the thread sleeps.
const IDLE_TURNS_MAX: u32 = 200;
/// The longest sleep. It also limits how late receives are flushed that the program posts to a
/// queue pair in state ERR, because receives ring no doorbell.
const SLEEP_MAX: Duration = Duration::from_millis(10);
/// The sleep of the thread while the program drives the adapter. If the program has taken no turns
/// during the sleep, the thread drives the adapter again.
const PROGRAM_TURNS_EVERY: Duration = Duration::from_micros(500);
/// Turns that the program must take during that sleep if a completion queue is armed. Fewer turns
/// do not show that it polls all the time: a program also polls once or twice before it waits for a
/// notification.
const PROGRAM_TURNS_MIN: u32 = 16;
/// The longest sleep if doorbell pages are not watched, so that a doorbell cannot end it.
const UNWATCHED_SLEEP_MAX: Duration = Duration::from_millis(1);

/// The adapter and the open files of this process.
struct State {
    /// Created at the first open of the device.
    hca: Option<Hca<ProcessLink>>,
    /// Open files of the device, by descriptor.
    files: BTreeMap<RawFd, File>,
    /// An eventfd that ends the sleep of the thread. Created with `hca`.
    wake: Option<Arc<OwnedFd>>,
    /// The number of adapters created so far. Each has a thread, which ends when there is a newer
    /// adapter.
    adapters: u32,
}

impl State {
    /// The current adapter, if it has this number.
    fn hca_of(&mut self, adapter: u32) -> Option<&mut Hca<ProcessLink>> {
        self.hca.as_mut().filter(|_| self.adapters == adapter)
    }

    /// Ends a sleep of the thread.
    fn wake(&self) {
        if let Some(wake) = &self.wake {
            let _ = rustix::io::write(wake, &1_u64.to_ne_bytes());
        }
    }
}

struct File {
    context: u32,
    /// The program's descriptor of asynchronous events, until GET_CONTEXT returns it.
    events: Option<OwnedFd>,
}

static STATE: Mutex<State> =
    Mutex::new(State { hca: None, files: BTreeMap::new(), wake: None, adapters: 0 });
/// The number of calls that wait for the lock. They have precedence over the adapter's thread.
static WAITING: AtomicU32 = AtomicU32::new(0);
/// Turns that the program has taken since the thread last checked. Written under the lock.
static PROGRAM_TURNS: AtomicU32 = AtomicU32::new(0);
/// Whether the program's last turn has written completions.
static HAS_COMPLETED: AtomicBool = AtomicBool::new(false);
static FDS: FdSet = FdSet::new();

thread_local! {
    /// The lock, held by this thread during fork(2) or during a trapped store (`store_steps`).
    static HELD: Cell<Option<MutexGuard<'static, State>>> = const { Cell::new(None) };
}

/// Whether a descriptor is an open file of the device.
pub(crate) fn is_device(fd: RawFd) -> bool {
    FDS.contains(fd)
}

fn lock() -> MutexGuard<'static, State> {
    WAITING.fetch_add(1, Ordering::Relaxed);
    let state = STATE.lock().unwrap_or_else(PoisonError::into_inner);
    WAITING.fetch_sub(1, Ordering::Relaxed);
    state
}

/// Locks the adapter for this thread until [`release`]. Used during fork(2), so that the child does
/// not inherit a lock that is held by a thread it does not have; and during a trapped store.
pub(crate) fn hold() {
    HELD.set(Some(lock()));
}

/// Calls a function with the adapter that this thread has locked by [`hold`]. Returns `None` if it
/// has not locked it.
#[cfg(target_arch = "x86_64")]
pub(crate) fn with_held<T>(call: impl FnOnce(Option<&Hca<ProcessLink>>) -> T) -> Option<T> {
    let state = HELD.take()?;
    let answer = call(state.hca.as_ref());
    HELD.set(Some(state));
    Some(answer)
}

/// Unlocks the adapter after [`hold`], and wakes its thread.
pub(crate) fn release() {
    if let Some(state) = HELD.take() {
        state.wake();
    }
}

/// Leaves the adapter to the parent, in the child of fork(2). The child inherits the descriptors of
/// the parent's files, but commands to them fail. If it opens the device again, it gets an adapter
/// of its own.
pub(crate) fn after_fork_in_child() {
    WAITING.store(0, Ordering::Relaxed);
    FDS.inherit();
    let Some(mut state) = HELD.take() else { return };
    if let Some(mut hca) = state.hca.take() {
        hca.device.link.leave_to_parent();
        let shared = hca.regions.values().filter_map(|region| region.pages.as_ref());
        shared.for_each(|pages| pages.leave_to_parent());
        // Keep the adapter's memory: the child may still store to the parent's doorbell pages.
        std::mem::forget(hca);
    }
    state.files.clear();
    state.wake = None;
}

/// Opens the device: `open` of `/dev/infiniband/uverbs0`.
pub(crate) fn open() -> Result<RawFd, Errno> {
    let mut state = lock();
    let state = &mut *state;
    let is_over = |hca: &Hca<ProcessLink>| hca.is_removed && state.files.is_empty();
    if state.hca.as_ref().is_none_or(is_over) {
        end_program_at_panic();
        let hca = open_adapter()?;
        let flags = EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK;
        let wake = Arc::new(eventfd(0, flags)?);
        state.adapters += 1;
        let (of_thread, adapter) = (wake.clone(), state.adapters);
        let thread = std::thread::Builder::new().name("pollux-connectx".into());
        without_signals(|| thread.spawn(move || run(adapter, of_thread)))
            .map_err(|_| Errno::AGAIN)?;
        (state.hca, state.wake) = (Some(hca), Some(wake));
    }
    let hca = state.hca.as_mut().filter(|hca| !hca.is_removed).ok_or(Errno::NODEV)?;
    let (context, events, file) = hca.open()?;
    if !FDS.insert(file.as_raw_fd()) {
        hca.close(context);
        return Err(Errno::MFILE);
    }
    let fd = file.into_raw_fd();
    state.files.insert(fd, File { context, events: Some(events) });
    Ok(fd)
}

#[expect(clippy::disallowed_methods, reason = "the library begins here: its variable, its clock")]
fn open_adapter() -> Result<Hca<ProcessLink>, Errno> {
    let name = std::env::var(DEVICE_VARIABLE).map_err(|_| Errno::NODEV)?;
    let start = Instant::now();
    let clock: Clock = Arc::new(move || Time::START + start.elapsed());
    let group = std::env::var(GROUP_VARIABLE).ok().and_then(|group| group.parse().ok());
    let opened = match group {
        Some(group) => open_in_group(&name, &clock, group),
        None => pollux_fabric::process::open(&name, clock),
    };
    match opened {
        Ok(mut device) => {
            device.link.end_with_server();
            // The port of a card is active before a program opens it. Here, the subnet manager
            // activates the port after the adapter attaches, so wait for that.
            for _ in 0..ACTIVE_WAITS_MAX {
                if device.adapter.port().state == PortState::ACTIVE {
                    break;
                }
                device.wait(ACTIVE_WAIT).map_err(|_| Errno::NODEV)?;
            }
            Ok(Hca::new(device))
        }
        Err(error) => {
            eprintln!("pollux-connectx: {error}");
            Err(Errno::NODEV)
        }
    }
}

/// Closes an open file of the device.
pub(crate) fn close(fd: RawFd) {
    let mut state = lock();
    FDS.remove(fd);
    let state = &mut *state;
    if let (Some(file), Some(hca)) = (state.files.remove(&fd), &mut state.hca) {
        hca.close(file.context);
        if store_trap::is_on() {
            store_trap::forget(file.context);
            store_trap::watch_records(hca);
        }
    }
}

/// Traps stores to doorbell pages that the program has mapped, from an offset of an open file.
pub(crate) fn watch_doorbells(fd: RawFd, address: u64, bytes: usize, offset: usize) {
    if let Some(file) = lock().files.get(&fd) {
        store_trap::watch_doorbells(file.context, address, bytes, offset);
    }
}

/// Executes a command, which is a `write` to an open file. Returns the address for the answer, and
/// the answer.
pub(crate) fn command(fd: RawFd, bytes: &[u8]) -> Result<(u64, Vec<u8>), Errno> {
    let call = Call::parse(bytes)?;
    // Write zeros to the answer first, so that a bad address fails before the command has effects.
    copy_out(call.answer, &vec![0; call.answer_bytes])?;
    call.fault_in()?;
    let mut state = lock();
    let state = &mut *state;
    // A file that was inherited from the parent is not in the table.
    let file = state.files.get_mut(&fd).ok_or(Errno::IO)?;
    let hca = state.hca.as_mut().ok_or(Errno::NODEV)?;
    let mut answer = match call.number {
        command::GET_CONTEXT if !hca.is_removed => {
            let events = file.events.take().ok_or(Errno::INVAL)?.into_raw_fd();
            hca.get_context(file.context, &call, events)?
        }
        _ => hca.command(file.context, &call)?,
    };
    if store_trap::is_on() {
        store_trap::watch_records(hca);
    }
    state.wake();
    answer.truncate(call.answer_bytes);
    Ok((call.answer, answer))
}

/// Whether the file of the device has a page at this offset.
pub(crate) const fn has_page(offset: u64) -> bool {
    offset < (PAGES * PAGE_BYTES) as u64
}

/// Takes a turn within a call of the program that polls for up to `completions_max` completions.
/// Does nothing if another thread has or waits for the lock.
pub(crate) fn take_turn(completions_max: u32) {
    if WAITING.load(Ordering::Relaxed) > 0 {
        return;
    }
    let Ok(mut state) = STATE.try_lock() else { return };
    let Some(hca) = &mut state.hca else { return };
    let has_completed = hca.turn_of_poll(completions_max);
    HAS_COMPLETED.store(has_completed, Ordering::Relaxed);
    PROGRAM_TURNS.store(PROGRAM_TURNS.load(Ordering::Relaxed) + 1, Ordering::Relaxed);
}

/// Whether the program's last turn has written completions, so that a poll may find some without
/// another turn.
pub(crate) fn has_completed() -> bool {
    HAS_COMPLETED.load(Ordering::Relaxed)
}

/// Takes a turn for a program that has armed a completion queue and may now sleep, and makes the
/// thread drive the adapter.
pub(crate) fn take_turn_and_leave() {
    let mut state = lock();
    if let Some(hca) = &mut state.hca {
        hca.turn();
        PROGRAM_TURNS.store(0, Ordering::Relaxed);
        state.wake();
    }
}

/// Requests short scheduler slices for this thread, so that it preempts a polling program when it
/// is woken. Linux before 6.12 ignores the request.
fn ask_for_short_slices() {
    const SLICE_NANOS: u64 = 100_000;
    // SAFETY: thread 0 is the calling thread. The kernel only reads the structure, which states its
    // own size.
    unsafe {
        let sched_nice = libc::getpriority(libc::PRIO_PROCESS, 0);
        let size = size_of::<libc::sched_attr>() as u32;
        let (sched_policy, sched_flags, sched_priority) = (libc::SCHED_OTHER as u32, 0, 0);
        let (sched_runtime, sched_deadline, sched_period) = (SLICE_NANOS, 0, 0);
        let asked = libc::sched_attr {
            size,
            sched_policy,
            sched_flags,
            sched_nice,
            sched_priority,
            sched_runtime,
            sched_deadline,
            sched_period,
        };
        libc::syscall(libc::SYS_sched_setattr, 0, &raw const asked, 0);
    }
}

/// The main function of the adapter's thread.
fn run(adapter: u32, wake: Arc<OwnedFd>) {
    ask_for_short_slices();
    // Trapped stores wake the thread in `release`, so they need no watch.
    let watch = if store_trap::is_on() { None } else { WriteWatch::new() };
    let mut sleeper = Sleeper { wake, watch, watched: BTreeMap::new() };
    let mut idle = 0;
    loop {
        while WAITING.load(Ordering::Relaxed) > 0 {
            std::thread::yield_now();
        }
        let mut state = STATE.lock().unwrap_or_else(PoisonError::into_inner);
        let Some(hca) = state.hca_of(adapter) else { return };
        let turns = PROGRAM_TURNS.load(Ordering::Relaxed);
        if turns >= if hca.is_armed() { PROGRAM_TURNS_MIN } else { 1 } {
            PROGRAM_TURNS.store(0, Ordering::Relaxed);
            drop(state);
            sleep_at(&sleeper.wake, [].into_iter(), PROGRAM_TURNS_EVERY);
            continue;
        }
        if hca.turn() {
            idle = 0;
            continue;
        }
        idle += 1;
        if idle < IDLE_TURNS_MAX {
            continue;
        }
        if let Some((fd, longest)) = sleeper.prepare(hca) {
            drop(state);
            sleeper.sleep(&fd, longest);
            state = STATE.lock().unwrap_or_else(PoisonError::into_inner);
        }
        if let Some(hca) = state.hca_of(adapter) {
            sleeper.set_protected(hca, false);
            // Consume the notification that ended the sleep.
            let _ = hca.device.wait(Duration::ZERO);
        }
    }
}

/// The sleep of the thread, which ends at a doorbell, a frame, a command or a timer.
struct Sleeper {
    wake: Arc<OwnedFd>,
    watch: Option<WriteWatch>,
    /// The registered mappings of doorbell pages, by context: their addresses and lengths.
    watched: BTreeMap<u32, Vec<(u64, u64)>>,
}

impl Sleeper {
    /// Prepares a sleep. Returns the descriptor to wait for and the longest sleep; `None` if there
    /// is work.
    fn prepare(&mut self, hca: &mut Hca<ProcessLink>) -> Option<(OwnedFd, Duration)> {
        let is_watched = self.set_protected(hca, true);
        if hca.contexts.iter().any(|(_, context)| context.pages.has_store()) {
            return None;
        }
        hca.device.link.fall_asleep();
        let source = hca.device.wake_source()?;
        let fd = source.fd.try_clone_to_owned().ok()?;
        let limit = if is_watched { SLEEP_MAX } else { UNWATCHED_SLEEP_MAX };
        let longest = source.longest.min(limit).min(hca.sleep_max());
        // Handle what has arrived so far. If a frame was received since `fall_asleep`, the link is
        // no longer asleep. Otherwise, the next frame makes the descriptor readable.
        let is_busy = hca.turn() || !hca.device.link.is_asleep();
        (!is_busy).then_some((fd, longest))
    }

    /// Protects all doorbell pages from writing, or removes the protection. Returns whether all
    /// pages of all contexts are covered.
    fn set_protected(&mut self, hca: &Hca<ProcessLink>, is_protected: bool) -> bool {
        let Some(watch) = &self.watch else { return false };
        self.watched.retain(|number, _| hca.contexts.get(*number).is_some());
        let mut all = true;
        for (number, context) in hca.contexts.iter() {
            let mappings = self.watched.entry(number).or_default();
            let is_complete = |mappings: &[(u64, u64)]| {
                mappings.iter().map(|(_, bytes)| bytes).sum::<u64>() >= (PAGES * PAGE_BYTES) as u64
            };
            if is_protected && !is_complete(mappings) {
                *mappings = context.pages.mappings();
                mappings.retain(|(start, bytes)| watch.register(*start, *bytes));
            }
            all &= is_complete(mappings);
            let count = mappings.len();
            // Forget mappings for which this fails: the program has unmapped them.
            mappings.retain(|(start, bytes)| watch.set_protected(*start, *bytes, is_protected));
            all &= mappings.len() == count;
        }
        all
    }

    fn sleep(&self, fd: &OwnedFd, longest: Duration) {
        let others = self.watch.iter().map(AsFd::as_fd);
        sleep_at(&self.wake, [fd.as_fd()].into_iter().chain(others), longest);
    }
}

/// Sleeps until a descriptor is readable, the thread is woken, or `longest` has passed.
fn sleep_at<'a>(
    wake: &'a OwnedFd,
    others: impl Iterator<Item = BorrowedFd<'a>>,
    longest: Duration,
) {
    let timeout =
        Timespec { tv_sec: longest.as_secs() as i64, tv_nsec: longest.subsec_nanos().into() };
    let all = [wake.as_fd()].into_iter().chain(others);
    let mut fds: Vec<_> = all.map(|fd| PollFd::from_borrowed_fd(fd, PollFlags::IN)).collect();
    // A signal ends a sleep early, which is harmless.
    let _ = poll(&mut fds, Some(&timeout));
    let _ = rustix::io::read(wake, &mut [0; 8]);
}
