//! An adapter at a link, behind the contract of `pollux-verbs`.
//!
//! It makes its progress where it is called: a post sends what it can, a poll takes what has come,
//! sees to what is due, and sends. Two callers that poll need no thread between them.

use crate::hca::{Adapter, LIMITS};
use crate::link::Link;
use crate::time::Time;
use pollux_mem::Memory;
use pollux_verbs::device::Capabilities;
use pollux_verbs::{
    Access, AddressVector, Ah, Arm, AsyncEvent, Completion, Cq, Device, DeviceAttributes, LKey,
    MemoryRegion, MemoryWindow, Pd, PortAttributes, PostError, Qp, QpAttributes, QpInit, QpState,
    RKey, RecvRequest, SendRequest, Srq, VerbsError,
};
use pollux_wire::address::{Gid, Lid, Qpn};
use pollux_wire::keys::PKey;
use std::time::Duration;

/// Frames taken off the link at once, so that nobody who sends much keeps us from sending.
const FRAMES_PER_TURN: usize = 64;

/// A channel adapter in software, at a link.
#[derive(Debug)]
pub struct SoftDevice<L: Link> {
    name: String,
    adapter: Adapter,
    link: L,
    /// What time it was when the clock was last read, and how many turns ago that is.
    now: Time,
    turns: u32,
}

/// Turns without anything to do after which the clock is read again: reading it costs more than an
/// empty turn, and nothing here is due to the nanosecond.
const TURNS_PER_CLOCK: u32 = 16;

impl<L: Link> SoftDevice<L> {
    /// Puts an adapter to a link.
    pub fn new(name: impl Into<String>, adapter: Adapter, mut link: L) -> Self {
        link.attach(adapter.lender());
        let now = link.now();
        Self { name: name.into(), adapter, link, now, turns: 0 }
    }

    /// The adapter, for whoever manages it.
    pub fn adapter_mut(&mut self) -> &mut Adapter {
        &mut self.adapter
    }

    /// The adapter.
    pub fn adapter(&self) -> &Adapter {
        &self.adapter
    }

    /// The link, for whoever manages that.
    pub fn link_mut(&mut self) -> &mut L {
        &mut self.link
    }

    /// Takes what has come, sees to what is due, and sends what may be sent.
    pub fn progress(&mut self) {
        self.receive(|_| false);
        self.transmit();
    }

    /// Takes what has come, until that is enough.
    #[inline]
    fn receive(&mut self, is_enough: impl Fn(&Adapter) -> bool) {
        self.link.refresh(&mut self.adapter);
        let before = self.now;
        self.turns += 1;
        let looks = self.turns >= TURNS_PER_CLOCK || self.link.is_virtual();
        if looks {
            self.turns = 0;
            self.now = self.link.now();
        }
        for _ in 0..FRAMES_PER_TURN {
            if !self.link.receive(self.now, &mut self.adapter) || is_enough(&self.adapter) {
                break;
            }
        }
        while let Some(violation) = self.adapter.poll_violation() {
            self.link.report(&violation);
        }
        if looks {
            // A clock that is cheap to ask for is asked whenever something begins.
            let before = if self.link.is_virtual() { self.now } else { before };
            self.adapter.handle_timeouts(before, self.now);
        }
    }

    #[inline]
    fn transmit(&mut self) {
        let shortcut = !self.link.wants_packets();
        if self.adapter.is_active() {
            self.adapter.transmit(self.now, shortcut, &mut self.link);
        }
        if self.link.is_virtual() {
            self.link.set_deadline(self.adapter.deadline());
        }
    }

    fn check_port(&self, verb: &'static str, port: u8) -> Result<(), VerbsError> {
        if port == 1 {
            return Ok(());
        }
        let reason = format!("{} has one port, number 1", self.name);
        Err(VerbsError::Invalid { verb, argument: "port", reason })
    }
}

impl<L: Link> Drop for SoftDevice<L> {
    /// Answers that were to leave with the next call leave with this one.
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
                sleep: false,
            },
        }
    }

    fn port(&self, port: u8) -> Result<PortAttributes, VerbsError> {
        self.check_port("port", port)?;
        let port = self.adapter.port();
        Ok(PortAttributes {
            state: port.state,
            lid: port.lid,
            lmc: port.lmc,
            sm_lid: port.sm_lid,
            sm_sl: port.sm_sl,
            mtu_max: port.mtu,
            mtu: port.mtu,
            gids: port.gids.len() as u8,
            pkeys: port.pkeys.len() as u16,
        })
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
        // Answers that wait would go with the state.
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
        let shortcut = (!self.link.wants_packets()).then_some(&mut self.link);
        let posted = self.adapter.post_send(self.now, qp, batch, shortcut);
        self.transmit();
        posted
    }

    fn post_recv(&mut self, qp: Qp, batch: &[RecvRequest<'_>]) -> Result<(), PostError> {
        self.adapter.post_recv(qp, batch)
    }

    fn post_srq_recv(&mut self, srq: Srq, batch: &[RecvRequest<'_>]) -> Result<(), PostError> {
        self.adapter.post_srq_recv(srq, batch)
    }

    fn poll(&mut self, cq: Cq, completions: &mut [Completion]) -> Result<usize, VerbsError> {
        // What the caller waits for goes first: answers to what comes now leave with its next
        // call, and those that are ready leave now.
        self.transmit();
        self.receive(|adapter| adapter.has_completions(cq, completions.len()));
        let count = self.adapter.poll(cq, completions)?;
        if count == 0 {
            self.transmit();
        }
        Ok(count)
    }

    fn arm(&mut self, cq: Cq, arm: Arm) -> Result<(), VerbsError> {
        self.link.rest();
        self.adapter.arm(cq, arm)
    }

    fn wait(&mut self, timeout: Duration) -> Result<Option<Cq>, VerbsError> {
        let end = self.link.now() + timeout;
        loop {
            self.turns = TURNS_PER_CLOCK;
            self.progress();
            if let Some(cq) = self.adapter.take_rung() {
                return Ok(Some(cq));
            }
            if self.adapter.has_event() || self.link.now() >= end {
                return Ok(None);
            }
            self.link.idle(end);
        }
    }

    fn async_event(&mut self) -> Option<AsyncEvent> {
        self.progress();
        self.adapter.async_event()
    }

    fn open_shared(&mut self) -> Result<Box<dyn Device + Send>, VerbsError> {
        self.link.open_shared(&self.name)
    }
}
