//! The completion channel and asynchronous events, for callers that sleep.
//!
//! All completion queues of a device share one channel, so that one wait covers them all. The
//! descriptors of channel and asynchronous events are non-blocking, so a read without an event
//! returns at once.

use super::owned::checked;
use super::{Hca, number_of};
use ibverbs_sys as ffi;
use pollux_verbs::{Arm, AsyncEvent, Cq, Qp, Srq, VerbsError};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use std::mem::MaybeUninit;
use std::os::fd::BorrowedFd;
use std::ptr;
use std::time::Duration;

impl Hca {
    pub(super) fn arm(&self, cq: Cq, arm: Arm) -> Result<(), VerbsError> {
        const VERB: &str = "arm";
        let queue = self.cq(VERB, cq)?.object.raw();
        // SAFETY: the queue is live: its handle is in the table.
        let answer = unsafe { (self.fast.req_notify_cq)(queue, i32::from(arm == Arm::Solicited)) };
        checked(answer).map_err(self.refused(VERB))
    }

    pub(super) fn wait(&self, timeout: Duration) -> Result<Option<Cq>, VerbsError> {
        const VERB: &str = "wait";
        // SAFETY: channel and context are live, and their descriptors stay open while `self` is
        // borrowed.
        let (channel, events) = unsafe {
            let channel = BorrowedFd::borrow_raw((*self.channel.raw()).fd);
            (channel, BorrowedFd::borrow_raw((*self.context.raw()).async_fd))
        };
        let mut files = [PollFd::new(&channel, PollFlags::IN), PollFd::new(&events, PollFlags::IN)];
        // A timeout beyond the system's limit means no timeout.
        let timeout = Timespec::try_from(timeout).ok();
        match poll(&mut files, timeout.as_ref()) {
            Ok(_) if files[0].revents().is_empty() => Ok(None),
            Ok(_) => self.take_completion_event(),
            // A signal ended the sleep; the caller polls and sleeps again.
            Err(Errno::INTR) => Ok(None),
            Err(error) => Err(self.refused(VERB)(error.raw_os_error())),
        }
    }

    /// Takes a notification from the channel, and returns its completion queue.
    fn take_completion_event(&self) -> Result<Option<Cq>, VerbsError> {
        let (mut queue, mut tag) = (ptr::null_mut(), ptr::null_mut());
        // SAFETY: the channel is live, and the library writes `queue` and `tag`.
        let answer =
            unsafe { ffi::ibv_get_cq_event(self.channel.raw(), &raw mut queue, &raw mut tag) };
        if answer != 0 {
            let errno = crate::error::last_errno();
            return match Errno::from_raw_os_error(errno) {
                Errno::AGAIN | Errno::INTR => Ok(None),
                _ => Err(self.refused("wait")(errno)),
            };
        }
        // SAFETY: the event is of this queue, which the library does not destroy before all of its
        // events are acknowledged.
        unsafe { ffi::ibv_ack_cq_events(queue, 1) };
        Ok(Some(Cq(number_of(tag))))
    }

    pub(super) fn async_event(&self) -> Option<AsyncEvent> {
        loop {
            let mut raw = MaybeUninit::<ffi::ibv_async_event>::zeroed();
            // SAFETY: the context is live, and the library writes at most one event to `raw`.
            let answer = unsafe { ffi::ibv_get_async_event(self.context.raw(), raw.as_mut_ptr()) };
            if answer != 0 {
                return None;
            }
            // SAFETY: the library has written the event, and zero is a value of all other bytes.
            let mut raw = unsafe { raw.assume_init() };
            let event = event(&raw);
            // SAFETY: the library returned this event above, and it is acknowledged once.
            unsafe { ffi::ibv_ack_async_event(&raw mut raw) };
            if event.is_some() {
                return event;
            }
        }
    }
}

/// Translates an event of the library; `None` for events of objects that this crate does not
/// create, such as work queues.
fn event(raw: &ffi::ibv_async_event) -> Option<AsyncEvent> {
    // SAFETY: each closure is called only for event types with this element. The object is live
    // until the event is acknowledged, and its context is the tag from its creation. A port is a
    // plain number.
    let qp = || Qp(number_of(unsafe { (*raw.element.qp).qp_context }));
    // SAFETY: as above.
    let cq = || Cq(number_of(unsafe { (*raw.element.cq).cq_context }));
    // SAFETY: as above.
    let srq = || Srq(number_of(unsafe { (*raw.element.srq).srq_context }));
    // SAFETY: as above.
    let port = || unsafe { raw.element.port_num } as u8;
    Some(match raw.event_type {
        ffi::IBV_EVENT_CQ_ERR => AsyncEvent::CqError(cq()),
        ffi::IBV_EVENT_QP_FATAL => AsyncEvent::QpFatal(qp()),
        ffi::IBV_EVENT_QP_REQ_ERR => AsyncEvent::QpRequestError(qp()),
        ffi::IBV_EVENT_QP_ACCESS_ERR => AsyncEvent::QpAccessError(qp()),
        ffi::IBV_EVENT_COMM_EST => AsyncEvent::ConnectionEstablished(qp()),
        ffi::IBV_EVENT_SQ_DRAINED => AsyncEvent::SendQueueDrained(qp()),
        ffi::IBV_EVENT_PATH_MIG => AsyncEvent::PathMigrated(qp()),
        ffi::IBV_EVENT_PATH_MIG_ERR => AsyncEvent::PathMigrationError(qp()),
        ffi::IBV_EVENT_QP_LAST_WQE_REACHED => AsyncEvent::LastWqeReached(qp()),
        ffi::IBV_EVENT_SRQ_ERR => AsyncEvent::SrqError(srq()),
        ffi::IBV_EVENT_SRQ_LIMIT_REACHED => AsyncEvent::SrqLimitReached(srq()),
        ffi::IBV_EVENT_PORT_ACTIVE => AsyncEvent::PortActive(port()),
        ffi::IBV_EVENT_PORT_ERR => AsyncEvent::PortError(port()),
        ffi::IBV_EVENT_LID_CHANGE => AsyncEvent::LidChange(port()),
        ffi::IBV_EVENT_PKEY_CHANGE => AsyncEvent::PkeyChange(port()),
        ffi::IBV_EVENT_GID_CHANGE => AsyncEvent::GidChange(port()),
        ffi::IBV_EVENT_SM_CHANGE => AsyncEvent::SmChange(port()),
        ffi::IBV_EVENT_CLIENT_REREGISTER => AsyncEvent::ClientReregister(port()),
        ffi::IBV_EVENT_DEVICE_FATAL => AsyncEvent::DeviceFatal,
        _ => return None,
    })
}
