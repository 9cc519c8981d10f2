//! The sleep between two steps.

use super::Host;
use pollux_dataplane::port::PacketPort;
use pollux_node::node::waker::Woken;
use pollux_verbs::WakeSource;
use pollux_verbs::time::Time;
use std::os::fd::OwnedFd;
use std::time::Duration;

/// How often a device that cannot end a sleep is polled.
const POLL_EVERY: Duration = Duration::from_millis(1);

impl Host {
    /// Arms the device: a packet that arrives from now on ends a sleep. Returns `false` if the
    /// device cannot do that. The caller steps once more before it sleeps, for packets that arrived
    /// before.
    pub(crate) fn arm(&mut self) -> bool {
        self.answer_requests(self.stepped_at);
        self.node.worker.arm()
    }

    /// The longest sleep after that step. Nothing may poll the device between this call and the
    /// sleep; otherwise, a packet that arrives in between would not end the sleep.
    pub(crate) fn sleep_max(&mut self, now: Time) -> Duration {
        self.sleep_end(now).1
    }

    /// The source that ends a sleep, and the longest sleep. The call polls the device, so there is
    /// one call for each sleep.
    fn sleep_end(&mut self, now: Time) -> (Option<WakeSource<'_>>, Duration) {
        let until_timer = self.until_timer(now);
        let source = self.node.worker.wake_source();
        (source, until_timer.min(source.map_or(POLL_EVERY, |source| source.longest)))
    }

    fn until_timer(&self, now: Time) -> Duration {
        self.poll_timeout().map_or(Duration::MAX, |due| due.since(now))
    }

    /// The descriptor that ends a sleep, for another thread that sleeps instead of this one.
    pub(crate) fn wake_descriptor(&mut self) -> Option<OwnedFd> {
        self.node.worker.wake_source()?.fd.try_clone_to_owned().ok()
    }

    /// Sleeps until a packet, a timer or a waker ends it, at most for `longest`.
    pub(crate) fn sleep(&mut self, now: Time, woken: &Woken, longest: Duration) {
        let (source, until_due) = self.sleep_end(now);
        woken.sleep_at(source.map(|source| source.fd), longest.min(until_due));
        woken.clear();
        self.node.worker.woken();
    }

    /// Clears the notification of the device after a sleep at its descriptor.
    pub(crate) fn woken(&mut self) {
        self.node.worker.woken();
    }
}
