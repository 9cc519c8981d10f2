//! An inline interface, which the application's own thread serves.
//!
//! A call that waits for one socket steps the host, and so serves all sockets of the interface. No
//! data crosses threads, so sockets stay in the thread that made them. The protocols of the link
//! run in the control thread (`control_thread`).
//!
//! An application may compute for any length of time. Once it has made no call for 10 ms, the
//! control thread steps the sockets (`stand_in`), until the next call. So peers still get answers
//! and acknowledgments, only later, and neighbors, groups and connections stay.
//!
//! An [`Interface`] drives a [`Host`], which has neither clock nor thread, by the system clock.

use crate::admin::ProgramAdmin;
use crate::clock::Clock;
use crate::control_requests::NeighborRoute;
use crate::control_thread::{ControlHandle, ControlThread};
use crate::error::UpError;
use crate::host::Host;
use crate::stack::StackConfig;
use crate::stand_in::{SharedHost, StandIn};
use crate::statistics::InterfaceStatistics;
use crate::timeout::CallTimeout;
use crate::yields::yield_core;
use pollux_control::thread_check::as_worker;
use pollux_node::Opened;
use pollux_node::config::InterfaceSettings;
use pollux_node::node::waker::Woken;
use pollux_verbs::time::Time;
use std::fmt;
use std::hash::{BuildHasher, RandomState};
use std::io;
use std::net::{IpAddr, SocketAddr, ToSocketAddrs};
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

/// When an interface is dropped: the maximum time to flush data while no peer acknowledges any, and
/// the maximum time to disconnect from peers afterwards.
pub(crate) const SHUTDOWN_MAX: Duration = Duration::from_secs(2);

/// How long to wait for challenge ACKs after resets. A peer answers a RST that is not at its next
/// expected sequence number with a challenge ACK (RFC 5961 3.2), and this host answers that with a
/// RST at that number. The peer's process may have to wait for a processor first.
const RESET_MAX: Duration = Duration::from_millis(500);

/// How long a blocking call polls before it sleeps, while yields are short.
const AWAKE: Duration = Duration::from_millis(1);

/// An interface. Clones refer to the same interface.
#[derive(Clone)]
pub struct Interface {
    inner: Rc<Inner>,
}

struct Inner {
    // Dropped first: this joins the control thread, which may be stepping the host.
    control: ControlThread,
    shared_host: Arc<SharedHost>,
    clock: Clock,
    /// Ends a sleep of the application in a call.
    woken: Woken,
}

impl Interface {
    pub(crate) fn open(
        opened: Opened,
        settings: &InterfaceSettings,
        config: &StackConfig,
        timeout: Duration,
        admin: Option<ProgramAdmin>,
    ) -> Result<Self, UpError> {
        let clock = Clock::begin();
        let settings = InterfaceSettings { workers: 1, ..settings.clone() };
        let (control, hosts) = Host::for_workers(clock.now(), opened, &settings, config, seed)
            .map_err(UpError::Device)?;
        let [host] = <[_; 1]>::try_from(hosts).ok().expect("there is one");
        let (stand_in, shared_host, woken) = StandIn::new(host).map_err(UpError::Thread)?;
        let control =
            ControlThread::start(control, clock, stand_in, admin).map_err(UpError::Thread)?;
        let interface = Self { inner: Rc::new(Inner { control, shared_host, clock, woken }) };
        interface.wait_until_up(&settings, timeout)?;
        Ok(interface)
    }

    fn wait_until_up(
        &self,
        settings: &InterfaceSettings,
        timeout: Duration,
    ) -> Result<(), UpError> {
        let answer = self.control().when_up(settings);
        let mut addresses: Option<Result<Vec<IpAddr>, UpError>> = None;
        let up = self.wait(CallTimeout::After(timeout), |host, _| {
            if addresses.is_none() {
                addresses = answer.poll()?;
            }
            Ok(addresses.take_if(|own| match own {
                Ok(own) => own.iter().all(|ip| host.owns(*ip)),
                Err(_) => true,
            }))
        });
        match up {
            Ok(addresses) => addresses.map(drop),
            Err(_) => Err(UpError::NotUp(self.control().state().unwrap_or_default())),
        }
    }

    pub(crate) fn control(&self) -> &ControlHandle {
        self.inner.control.handle()
    }

    /// The end of the waker that the control thread wakes.
    pub(crate) fn woken(&self) -> &Woken {
        &self.inner.woken
    }

    fn now(&self) -> Time {
        self.inner.clock.now()
    }

    /// Serves all sockets once. Returns whether there was anything to do.
    pub fn step(&self) -> bool {
        self.with(Host::step)
    }

    /// The addresses of the interface.
    pub fn addresses(&self) -> Vec<IpAddr> {
        self.with(|host, _| host.addresses())
    }

    /// Sends an ICMP echo request with this many bytes of data, and returns the round-trip time.
    /// The first ping may be slow: it resolves the neighbor, and may connect to it.
    pub fn ping(&self, to: IpAddr, bytes: usize, timeout: Duration) -> io::Result<Duration> {
        let answer = self.control().ping(to, bytes, timeout);
        self.wait(CallTimeout::Never, |_, _| answer.poll())?
    }

    /// The counters of the interface: traffic, sockets, retransmissions and drops.
    pub fn statistics(&self) -> io::Result<InterfaceStatistics> {
        let counts = self.with(|host, _| host.counts());
        Ok(InterfaceStatistics::new(&[counts], self.control().link_counts()?))
    }

    /// The neighbors with a route, with link address, connection and MTU.
    pub fn neighbors(&self) -> Vec<NeighborRoute> {
        self.control().neighbors().unwrap_or_default()
    }

    /// Runs a function on the host, between two steps.
    pub(crate) fn with<R>(&self, f: impl FnOnce(&mut Host, Time) -> R) -> R {
        self.call(|host, now| (f(host, now), now))
    }

    /// Locks the host for the application while `f` runs. `f` also returns its last reading of the
    /// clock, as the end of the call.
    fn call<R>(&self, f: impl FnOnce(&mut Host, Time) -> (R, Time)) -> R {
        let Inner { shared_host, control, .. } = &*self.inner;
        let mut host = shared_host.begin_call();
        let now = self.now();
        let (result, now) = as_worker(|| f(&mut host, now));
        hand_to_control(&mut host, control.handle());
        drop(host);
        shared_host.end_call(now);
        result
    }

    /// Polls `ask` until it returns a value or the timeout expires; serves all sockets meanwhile.
    pub(crate) fn wait<R>(
        &self,
        timeout: CallTimeout,
        ask: impl FnMut(&mut Host, Time) -> io::Result<Option<R>>,
    ) -> io::Result<R> {
        self.call(|host, now| self.wait_from(host, now, timeout, ask))
    }

    /// Each iteration reads the clock once; the first one uses `begun`. Also returns the last
    /// reading.
    fn wait_from<R>(
        &self,
        host: &mut Host,
        begun: Time,
        timeout: CallTimeout,
        mut ask: impl FnMut(&mut Host, Time) -> io::Result<Option<R>>,
    ) -> (io::Result<R>, Time) {
        let mut now = begun;
        // `was_busy`: whether the last step did anything; `None` before the first step.
        let (mut was_busy, mut idle_since, mut is_armed) = (None, begun, false);
        let result = loop {
            if let Some(answer) = ask(host, now).transpose() {
                // Sends packets that the call has caused, such as a window update. An overdue step
                // is made here, so that callers that never wait serve the other sockets too.
                let _ = if host.is_due(now) { host.step(now) } else { host.transmit(now) };
                break answer;
            }
            if let Some(was_busy) = was_busy {
                match timeout {
                    CallTimeout::Immediate => break Err(io::ErrorKind::WouldBlock.into()),
                    CallTimeout::After(timeout) if now >= begun + timeout => {
                        break Err(io::ErrorKind::TimedOut.into());
                    }
                    _ if was_busy => (idle_since, is_armed) = (now, false),
                    _ if now < idle_since + AWAKE && yield_core() => {}
                    // Another step follows before the sleep, for packets that arrived before.
                    _ if !is_armed => is_armed = self.arm(host),
                    _ => {
                        let left = timeout.left(now, begun);
                        host.sleep(now, &self.inner.woken, left);
                        is_armed = false;
                    }
                }
                now = self.now();
            }
            was_busy = Some(host.step(now));
            hand_to_control(host, self.control());
            if let Some(why) = host.failed() {
                break Err(io::Error::other(why));
            }
        };
        (result, now)
    }

    /// Arms the device and the waker. If the device cannot end a sleep, returns `false`, and the
    /// application keeps polling.
    fn arm(&self, host: &mut Host) -> bool {
        self.inner.woken.fall_asleep();
        let is_armed = host.arm();
        if !is_armed {
            self.inner.woken.clear();
            std::thread::yield_now();
        }
        is_armed
    }
}

impl fmt::Debug for Interface {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Interface").field("addresses", &self.addresses()).finish_non_exhaustive()
    }
}

/// Passes left groups to the control thread, and wakes it if the host has sent events to it.
pub(crate) fn hand_to_control(host: &mut Host, control: &ControlHandle) {
    while let Some(group) = host.take_left_group() {
        control.leave_group(group);
    }
    if host.take_has_events() {
        control.wake_if_asleep();
    }
}

pub(crate) fn seed() -> u64 {
    RandomState::new().hash_one(0)
}

pub(crate) fn resolve(address: impl ToSocketAddrs) -> io::Result<SocketAddr> {
    address.to_socket_addrs()?.next().ok_or_else(|| io::ErrorKind::InvalidInput.into())
}

impl Drop for Inner {
    /// Flushes written data, then disconnects from peers. Both have time limits.
    fn drop(&mut self) {
        let control = self.control.handle();
        let mut host = self.shared_host.begin_call();
        flush_sockets(&mut host, control, self.clock);
        disconnect(&mut host, control, self.clock);
    }
}

/// Flushes written data for as long as peers acknowledge some of it, at most for `flush_max`. Then
/// resets the connections that are not flushed, so that their peers do not wait for the rest.
pub(crate) fn flush_sockets(host: &mut Host, control: &ControlHandle, clock: Clock) {
    let mut now = clock.now();
    let last = now + host.stack.flush_max();
    let (mut end, mut left) = (now + SHUTDOWN_MAX, host.stack.tcp_unflushed());
    let mut drained = None;
    while now < end.min(last) {
        if !host.has_sent() {
            drained = None;
        } else if !matches!(drained.get_or_insert_with(|| control.when_drained()).poll(), Ok(None))
        {
            break;
        }
        now = step(host, control, clock);
        let left_now = host.stack.tcp_unflushed();
        if left_now < left {
            (end, left) = (now + SHUTDOWN_MAX, left_now);
        }
    }
    if host.stack.tcp_abort_unflushed() == 0 {
        return;
    }
    let end = now + RESET_MAX;
    while clock.now() < end {
        step(host, control, clock);
    }
}

/// Disconnects from all peers, within [`SHUTDOWN_MAX`].
pub(crate) fn disconnect(host: &mut Host, control: &ControlHandle, clock: Clock) {
    let end = clock.now() + SHUTDOWN_MAX;
    let left = control.leave();
    while matches!(left.poll(), Ok(None)) && step(host, control, clock) < end {}
}

/// Steps the host, and yields the core if there was nothing to do. Returns the time.
fn step(host: &mut Host, control: &ControlHandle, clock: Clock) -> Time {
    if !host.step(clock.now()) {
        std::thread::yield_now();
    }
    hand_to_control(host, control);
    clock.now()
}
