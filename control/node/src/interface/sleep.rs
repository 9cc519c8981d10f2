//! What ends the sleep of a worker that has nothing to do: its devices, where they can.

use super::Interface;
use super::port_driver::PortDriver;
use super::sockets::WorkerPort;
use pollux_verbs::Arm;
use std::time::Duration;

/// How often secondary workers are heard, at the least.
const HEAR_EVERY: Duration = Duration::from_millis(2);

impl Interface {
    /// Asks the device to wake who sleeps there when something comes; says whether it can. Whoever
    /// sleeps looks once more before.
    pub fn arm(&mut self) -> bool {
        self.driver.arm()
    }

    /// Sleeps at the device until something comes, and not longer than this; with secondary workers not for
    /// long, for what they tell wakes nobody.
    pub fn wait(&mut self, longest: Duration) {
        let longest = if self.workers.is_empty() { longest } else { longest.min(HEAR_EVERY) };
        // What went wrong there the next step says.
        let _ = self.driver.device.wait(longest);
    }

    /// Whether nothing is left that was given to it to be sent, here or at the device.
    pub fn is_drained(&self, now: pollux_verbs::time::Time) -> bool {
        let has_sent = self.workers.has_sent() && self.has_sent(now);
        self.failed.is_some() || has_sent && self.driver.station().has_sent()
    }
}

impl PortDriver {
    fn arm(&mut self) -> bool {
        let queues = [Some(self.station.cq()), self.management.cq()];
        let armed = queues.into_iter().flatten().map(|cq| self.device.arm(cq, Arm::Any));
        let is_armed = armed.fold(true, |all, one| all & one.is_ok());
        is_armed && self.device.attributes().can.sleep
    }
}
