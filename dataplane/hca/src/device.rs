//! An adapter and its link as a [`Device`] of `pollux-verbs`.
//!
//! The device makes progress only within calls: a post sends; a poll receives, handles timers and
//! sends. So two devices that poll can communicate without a thread between them.

use crate::link::Link;
use crate::{Adapter, LIMITS};
use pollux_mem::Memory;
use pollux_verbs::device::Capabilities;
use pollux_verbs::time::Time;
use pollux_verbs::{
    Access, AddressVector, Ah, Arm, AsyncEvent, Completion, Cq, Device, DeviceAttributes, LKey,
    MemoryRegion, MemoryWindow, Pd, PortAttributes, PostError, Qp, QpAttributes, QpInit, QpState,
    RKey, RecvRequest, SendRequest, Srq, VerbsError, WakeSource, check,
};
use pollux_wire::address::{Gid, Lid, Qpn};
use pollux_wire::keys::PKey;
use std::time::Duration;

/// The maximum number of frames received in a row, so that a busy peer does not keep this device
/// from sending.
const FRAMES_PER_TURN: usize = 64;

#[derive(Debug)]
pub struct SoftDevice<L: Link> {
    name: String,
    pub adapter: Adapter,
    pub link: L,
    /// The last clock reading, and the number of turns since.
    now: Time,
    turns: u32,
}

/// The longest sleep while frames wait for space on the link.
const UNSENT_NAP: Duration = Duration::from_micros(50);

/// The number of turns between clock readings. A reading costs more than an empty turn, and no
/// timer needs a resolution of nanoseconds.
const TURNS_PER_CLOCK: u32 = 16;

impl<L: Link> SoftDevice<L> {
    pub fn new(name: impl Into<String>, adapter: Adapter, mut link: L) -> Self {
        link.attach(adapter.leases());
        let now = link.now();
        Self { name: name.into(), adapter, link, now, turns: 0 }
    }

    /// Receives frames, handles timers, and sends.
    pub fn progress(&mut self) {
        self.receive(|_| false);
        self.transmit();
    }

    /// As [`SoftDevice::progress`], but stops receiving after `count` completions.
    pub fn progress_to_completions(&mut self, count: u64) {
        let before = self.adapter.completed();
        self.receive(|adapter| adapter.completed() - before >= count);
        self.transmit();
    }

    #[inline]
    fn receive(&mut self, is_enough: impl Fn(&Adapter) -> bool) {
        self.link.refresh(&mut self.adapter);
        let before = self.now;
        self.turns += 1;
        let reads_clock = self.turns >= TURNS_PER_CLOCK || self.link.is_virtual();
        if reads_clock {
            self.turns = 0;
            self.now = self.link.now();
        }
        for _ in 0..FRAMES_PER_TURN {
            if !self.link.receive(self.now, &mut self.adapter) || is_enough(&self.adapter) {
                break;
            }
        }
        while let Some(violation) = self.adapter.shared.violations.pop_front() {
            self.link.report(&violation);
        }
        if reads_clock {
            // A virtual clock is read at every post, so all start times are exact.
            let before = if self.link.is_virtual() { self.now } else { before };
            self.adapter.handle_timeouts(before, self.now);
        }
    }

    #[inline]
    fn transmit(&mut self) {
        let bypass = !self.link.wants_packets();
        self.transmit_by(bypass);
    }

    #[inline(always)]
    fn transmit_by(&mut self, bypass: bool) {
        if self.adapter.is_active() {
            self.adapter.transmit(self.now, bypass, &mut self.link);
        }
        if self.link.is_virtual() {
            self.link.set_deadline(self.adapter.deadline());
        }
    }

    /// The longest sleep: until the next timer, and [`UNSENT_NAP`] while frames wait for the link.
    fn sleep_max(&self) -> Duration {
        let until_timer = self.adapter.deadline().map_or(Duration::MAX, |due| due.since(self.now));
        let unsent = if self.adapter.is_active() { UNSENT_NAP } else { Duration::MAX };
        until_timer.min(unsent).min(self.link.sleep_max())
    }

    fn check_port(&self, verb: &'static str, port: u8) -> Result<(), VerbsError> {
        check::port(verb, &self.name, port, 1)
    }
}

impl<L: Link> Drop for SoftDevice<L> {
    /// Sends queued answers, which would otherwise wait for the next call.
    fn drop(&mut self) {
        self.transmit();
    }
}

impl<L: Link> Device for SoftDevice<L> {
    fn attributes(&self) -> DeviceAttributes {
        let port = self.adapter.port();
        DeviceAttributes {
            name: self.name.clone(),
            node_guid: port.gids.first().copied().unwrap_or_default().guid(),
            ports: 1,
            limits: LIMITS,
            can: Capabilities {
                uc: true,
                uc_srq: true,
                atomics: true,
                windows: true,
                send_invalidate: true,
                srq_limit: true,
                multicast: true,
                drain: true,
                migration: !port.is_ethernet(),
                refusal_events: true,
                subnet: !port.is_ethernet(),
                gsi: !port.is_ethernet(),
                acks_when_polled: true,
                sleep: self.link.wake_descriptor().is_some(),
            },
        }
    }

    fn port(&self, port: u8) -> Result<PortAttributes, VerbsError> {
        self.check_port("port", port)?;
        Ok(self.adapter.port().attributes())
    }

    fn gid(&self, port: u8, index: u8) -> Result<Gid, VerbsError> {
        self.check_port("gid", port)?;
        let gid = self.adapter.port().gids.get(usize::from(index));
        gid.copied().ok_or(VerbsError::NoSuch { verb: "gid", what: "entry of the GID table" })
    }

    fn pkey(&self, port: u8, index: u16) -> Result<PKey, VerbsError> {
        self.check_port("pkey", port)?;
        let pkey = self.adapter.port().pkeys.get(usize::from(index));
        pkey.copied().ok_or(VerbsError::NoSuch { verb: "pkey", what: "entry of the P_Key table" })
    }

    fn create_pd(&mut self) -> Result<Pd, VerbsError> {
        self.adapter.create_pd()
    }

    fn destroy_pd(&mut self, pd: Pd) -> Result<(), VerbsError> {
        self.adapter.destroy_pd(pd)
    }

    fn register(
        &mut self,
        pd: Pd,
        memory: &Memory,
        access: Access,
    ) -> Result<MemoryRegion, VerbsError> {
        self.adapter.register(pd, memory, access)
    }

    fn deregister(&mut self, region: LKey) -> Result<(), VerbsError> {
        self.adapter.deregister(region)
    }

    fn create_window(&mut self, pd: Pd) -> Result<MemoryWindow, VerbsError> {
        self.adapter.create_window(pd)
    }

    fn destroy_window(&mut self, window: RKey) -> Result<(), VerbsError> {
        self.adapter.destroy_window(window)
    }

    fn create_cq(&mut self, completions_max: u32) -> Result<Cq, VerbsError> {
        self.adapter.create_cq(completions_max)
    }

    fn destroy_cq(&mut self, cq: Cq) -> Result<(), VerbsError> {
        self.adapter.destroy_cq(cq)
    }

    fn create_srq(&mut self, pd: Pd, requests_max: u32, sges_max: u32) -> Result<Srq, VerbsError> {
        self.adapter.create_srq(pd, requests_max, sges_max)
    }

    fn set_srq_limit(&mut self, srq: Srq, limit: u32) -> Result<(), VerbsError> {
        self.adapter.set_srq_limit(srq, limit)
    }

    fn destroy_srq(&mut self, srq: Srq) -> Result<(), VerbsError> {
        self.adapter.destroy_srq(srq)
    }

    fn create_qp(&mut self, init: &QpInit) -> Result<Qp, VerbsError> {
        self.adapter.create_qp(init)
    }

    fn qpn(&self, qp: Qp) -> Result<Qpn, VerbsError> {
        self.adapter.qpn(qp)
    }

    fn modify_qp(&mut self, qp: Qp, change: &QpAttributes) -> Result<(), VerbsError> {
        // A change of state may drop queued answers, so they are sent first.
        self.transmit();
        self.adapter.modify_qp(qp, change)?;
        self.transmit();
        Ok(())
    }

    fn query_qp(&self, qp: Qp) -> Result<(QpState, QpAttributes), VerbsError> {
        self.adapter.query_qp(qp)
    }

    fn destroy_qp(&mut self, qp: Qp) -> Result<(), VerbsError> {
        self.transmit();
        self.adapter.destroy_qp(qp)
    }

    fn create_ah(&mut self, pd: Pd, address: &AddressVector) -> Result<Ah, VerbsError> {
        self.adapter.create_ah(pd, address)
    }

    fn destroy_ah(&mut self, ah: Ah) -> Result<(), VerbsError> {
        self.adapter.destroy_ah(ah)
    }

    fn attach_multicast(&mut self, qp: Qp, mgid: Gid, mlid: Lid) -> Result<(), VerbsError> {
        self.adapter.attach_multicast(qp, mgid, mlid)
    }

    fn detach_multicast(&mut self, qp: Qp, mgid: Gid, mlid: Lid) -> Result<(), VerbsError> {
        self.adapter.detach_multicast(qp, mgid, mlid)
    }

    fn post_send(&mut self, qp: Qp, batch: &[SendRequest<'_>]) -> Result<(), PostError> {
        if self.link.is_virtual() {
            self.now = self.link.now();
        }
        let bypass = !self.link.wants_packets();
        let link = bypass.then_some(&mut self.link);
        let posted = self.adapter.post_send(self.now, qp, batch, link);
        self.transmit_by(bypass);
        posted
    }

    fn post_recv(&mut self, qp: Qp, batch: &[RecvRequest<'_>]) -> Result<(), PostError> {
        self.adapter.post_recv(qp, batch)
    }

    fn post_srq_recv(&mut self, srq: Srq, batch: &[RecvRequest<'_>]) -> Result<(), PostError> {
        self.adapter.post_srq_recv(srq, batch)
    }

    fn poll(&mut self, cq: Cq, completions: &mut [Completion]) -> Result<usize, VerbsError> {
        // Queued answers are sent now. Answers to the frames received below wait until the caller's
        // next call, so that the caller gets its completions first; without a completion, they are
        // sent below.
        self.transmit();
        self.receive(|adapter| adapter.has_completions(cq, completions.len()));
        let count = self.adapter.poll(cq, completions)?;
        if count == 0 {
            self.transmit();
        }
        Ok(count)
    }

    fn arm(&mut self, cq: Cq, arm: Arm) -> Result<(), VerbsError> {
        self.link.fall_asleep();
        self.adapter.arm(cq, arm)
    }

    fn wait(&mut self, timeout: Duration) -> Result<Option<Cq>, VerbsError> {
        let end = self.link.now() + timeout;
        loop {
            self.turns = TURNS_PER_CLOCK;
            self.progress();
            if let Some(cq) = self.adapter.take_notified() {
                return Ok(Some(cq));
            }
            if self.adapter.has_event() || self.link.now() >= end {
                return Ok(None);
            }
            if self.link.is_asleep() {
                let longest = self.sleep_max();
                self.link.idle(end.min(self.now + longest));
            } else {
                self.link.fall_asleep();
            }
        }
    }

    fn wake_source(&mut self) -> Option<WakeSource<'_>> {
        self.turns = TURNS_PER_CLOCK;
        self.progress();
        let may_sleep = self.link.is_asleep() && !self.adapter.has_event();
        let longest = if may_sleep { self.sleep_max() } else { Duration::ZERO };
        // The next call must read the clock, because the caller may sleep before it.
        self.turns = TURNS_PER_CLOCK;
        Some(WakeSource { fd: self.link.wake_descriptor()?, longest })
    }

    fn async_event(&mut self) -> Option<AsyncEvent> {
        self.progress();
        self.adapter.async_event()
    }

    fn open_shared(&mut self) -> Result<Box<dyn Device + Send>, VerbsError> {
        self.link.open_shared(&self.name)
    }
}
