//! A control plane in the thread of one of its workers: where no other thread drives it, as in
//! virtual time.

use super::{InterfaceWorker, IpoibLink, Take};
use pollux_dataplane::port::PacketPort;
use pollux_verbs::VerbsError;
use pollux_verbs::time::Time;

/// A worker, and the control plane if this thread has it.
pub struct Inline {
    /// Moves packets in the thread of its caller.
    pub worker: InterfaceWorker,
    /// The control plane of its interface.
    pub interface: Option<IpoibLink>,
}

impl Inline {
    /// Receives packets. `take` gets each first. Returns whether there was anything to do.
    #[inline]
    pub fn breathe(&mut self, now: Time, take: Take<'_>) -> bool {
        let busy = self.worker.breathe(now, take);
        match self.worker.has_turned(now) {
            true => self.step_control(now) | busy,
            false => busy,
        }
    }

    /// The same without sockets.
    pub fn step(&mut self, now: Time) -> bool {
        self.worker.step(now) | self.step_control(now)
    }

    /// Steps the control plane, whose commands the worker carries out at once. Returns whether
    /// there was anything to do.
    pub fn step_control(&mut self, now: Time) -> bool {
        let Some(interface) = &mut self.interface else { return false };
        let busy = interface.step(now);
        self.worker.carry_out_commands(now) | busy
    }

    /// The error that ended the interface; without a control plane, the one that ended the worker.
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
