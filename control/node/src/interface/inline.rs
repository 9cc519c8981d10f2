//! A control plane and a worker in one thread, for callers without a control thread, such as tests
//! in virtual time.

use super::{InterfaceWorker, IpoibLink, Take};
use pollux_dataplane::port::PacketPort;
use pollux_verbs::VerbsError;
use pollux_verbs::time::Time;

/// A worker, and the control plane if it runs in this thread.
pub struct Inline {
    pub worker: InterfaceWorker,
    pub interface: Option<IpoibLink>,
}

impl Inline {
    /// Receives packets, each of which `take` gets first. Steps the control plane whenever the
    /// worker has polled its commands. Returns whether there was anything to do.
    #[inline]
    pub fn breathe(&mut self, now: Time, take: Take<'_>) -> bool {
        let busy = self.worker.breathe(now, take);
        match self.worker.has_turned(now) {
            true => self.step_control(now) | busy,
            false => busy,
        }
    }

    /// Polls commands and the device at once, without sockets, and steps the control plane.
    pub fn step(&mut self, now: Time) -> bool {
        self.worker.step(now) | self.step_control(now)
    }

    /// Steps the control plane; the worker carries out its commands at once. Returns whether there
    /// was anything to do.
    pub fn step_control(&mut self, now: Time) -> bool {
        let Some(interface) = &mut self.interface else { return false };
        let busy = interface.step(now);
        self.worker.carry_out_commands(now) | busy
    }

    /// The error that ended the interface, or the worker if the control plane runs elsewhere.
    pub fn failed(&self) -> Option<&VerbsError> {
        match &self.interface {
            Some(interface) => interface.failed(),
            None => self.worker.failed(),
        }
    }

    pub fn poll_timeout(&self) -> Option<Time> {
        let of_interface = self.interface.as_ref().and_then(IpoibLink::poll_timeout);
        of_interface.into_iter().chain(self.worker.poll_timeout()).min()
    }
}
