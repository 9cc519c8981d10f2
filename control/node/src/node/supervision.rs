//! A node under a service manager: readiness, status and watchdog.

use super::kernel_link::{KernelLink, kept_device};
use super::opening::Interfaces;
use super::outage::Outage;
use crate::service::ServiceManager;
use crate::service::notify_socket::NotifySocket;
use crate::service::watchdog::Watchdog;
use pollux_dataplane::engine::counts::CountsSegment;
use pollux_verbs::time::Time;
use std::sync::Arc;

/// The state that was reported to the service manager. Without a manager, nothing is reported.
#[derive(Default)]
pub(super) struct Supervision {
    pub(super) socket: Arc<NotifySocket>,
    watchdog: Option<Watchdog>,
    is_ready: bool,
    status: String,
}

impl Supervision {
    /// The supervision of a node that `manager` has started. `kernel` gets the descriptors of
    /// shadows that the manager has kept from an earlier process.
    pub(super) fn new(now: Time, manager: ServiceManager, kernel: &mut KernelLink) -> Self {
        let ServiceManager { socket, watchdog, kept } = manager;
        let shadows = kept.into_iter();
        let shadows = shadows.filter_map(|(name, fd)| Some((kept_device(&name)?.to_owned(), fd)));
        kernel.set_manager(Arc::clone(&socket), shadows.collect());
        let watchdog = watchdog.map(|timeout| Watchdog::new(timeout, now));
        Self { socket, watchdog, is_ready: false, status: String::new() }
    }

    /// Reports changes to the manager.
    pub(super) fn update(
        &mut self,
        now: Time,
        interfaces: &Interfaces,
        kernel: &KernelLink,
        counts: &CountsSegment,
    ) {
        if !self.socket.is_there() {
            return;
        }
        let is_tried = !interfaces.all.values().any(|named| {
            // The thread that opens the device has not finished its first attempt.
            matches!(named.interface, Err(Outage::Pending))
        });
        if !self.is_ready && is_tried && kernel.is_tried() {
            self.status = status(interfaces);
            self.is_ready = self.socket.ready(&self.status).is_ok();
        } else if self.is_ready {
            let status = status(interfaces);
            if status != self.status {
                self.socket.status(&status);
                self.status = status;
            }
        }
        let breaths = || counts.read().map(|counts| counts.map(|counts| counts.breaths));
        if self.watchdog.as_mut().is_some_and(|watchdog| watchdog.turn(now, breaths())) {
            self.socket.alive();
        }
    }

    pub(super) fn poll_timeout(&self) -> Option<Time> {
        self.watchdog.as_ref().map(Watchdog::due)
    }
}

/// How many interfaces are up, and the state of each that is not.
fn status(interfaces: &Interfaces) -> String {
    let states = interfaces.all.iter().map(|(name, named)| (name, named.noted_state()));
    let (up, others): (Vec<_>, Vec<_>) = states.partition(|(_, state)| *state == "up");
    let mut text = format!("{} of {} interfaces are up", up.len(), interfaces.all.len());
    for (number, (name, state)) in others.iter().enumerate() {
        text += &format!("{} {name} is {state}", if number == 0 { ":" } else { "," });
    }
    text
}
