//! What a device says that it has lost, and what it has kept for too long: every wait for it has an
//! end, and without what an interface needs there, it is opened anew.

use super::port_driver::PortDriver;
use pollux_verbs::time::Time;
use pollux_verbs::*;
use std::time::Duration;

/// How long a device may take to give back what it has of a queue pair that ends.
pub(super) const BACK_MAX: Duration = Duration::from_secs(5);

impl PortDriver {
    /// What the device says is lost for good; nothing of the interface can go on without it.
    pub(super) fn check_loss(&self, event: &AsyncEvent) -> Result<(), VerbsError> {
        let lost = |what, why| Err(VerbsError::Lost { what, why });
        match *event {
            AsyncEvent::DeviceFatal => lost("adapter", "it says that it failed"),
            AsyncEvent::CqError(cq)
                if cq == self.netdev.cq() || Some(cq) == self.management.cq() =>
            {
                lost("completion queue", "it overran")
            }
            AsyncEvent::SrqError(srq) if Some(srq) == self.netdev.srq() => {
                lost("shared receive queue", "it failed")
            }
            AsyncEvent::QpFatal(qp)
                if qp == self.netdev.datagram_qp() || self.management.is_its_qp(qp) =>
            {
                lost("queue pair of datagrams", "it failed")
            }
            _ => Ok(()),
        }
    }

    /// A connection that takes too long to end is given up; a device that even so does not end it,
    /// or that keeps what it has of datagrams, is of no use.
    pub(super) fn check_patience(&mut self, now: Time) -> Result<(), VerbsError> {
        const LATE: VerbsError =
            VerbsError::Lost { what: "queue pair", why: "what it was given does not come back" };
        while let Some(&(until, key)) = self.leaving.front() {
            let known = self.connections.get(&key).copied();
            if known.is_some() && now < until {
                break;
            }
            self.leaving.pop_front();
            let Some(id) = known else { continue };
            if !self.netdev.give_up(id) {
                return Err(LATE);
            }
            self.counts.given_up += 1;
            self.leaving.push_back((now + BACK_MAX, key));
        }
        if self.netdev.is_settled() {
            self.settled_by = None;
            return Ok(());
        }
        let by = *self.settled_by.get_or_insert(now + BACK_MAX);
        if now < by { Ok(()) } else { Err(LATE) }
    }
}
