//! Sleep of an idle worker at its device, where the device can wake it.

use super::Interface;
use super::port_driver::PortDriver;
use super::sockets::WorkerPort;
use pollux_verbs::Arm;
use std::time::Duration;

/// How often events of secondary workers are polled, at least.
const POLL_EVERY: Duration = Duration::from_millis(2);

impl Interface {
    /// Arms the device to end a sleep when something comes; `false` if it cannot. The caller polls
    /// once more before it sleeps.
    pub fn arm(&mut self) -> bool {
        self.driver.arm()
    }

    /// Sleeps at the device until something comes, at most for `longest`. With secondary workers
    /// the sleep is short, since their events wake no thread.
    pub fn wait(&mut self, longest: Duration) {
        let longest = if self.workers.is_empty() { longest } else { longest.min(POLL_EVERY) };
        // The next step returns the error, if there is one.
        let _ = self.driver.device.wait(longest);
    }

    /// Whether all packets that the interface accepted have left, here and at the device.
    pub fn is_drained(&self, now: pollux_verbs::time::Time) -> bool {
        let has_sent = self.workers.has_sent() && self.has_sent(now);
        self.failed.is_some() || has_sent && self.driver.netdev().has_sent()
    }
}

impl PortDriver {
    fn arm(&mut self) -> bool {
        let queues = [Some(self.netdev.cq()), self.management.cq()];
        let armed = queues.into_iter().flatten().map(|cq| self.device.arm(cq, Arm::Any));
        let is_armed = armed.fold(true, |all, one| all & one.is_ok());
        is_armed && self.device.attributes().can.sleep
    }
}
