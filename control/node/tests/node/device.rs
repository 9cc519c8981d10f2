//! A device with faults, which tests inject while it runs.

use pollux_mem::Memory;
use pollux_node::device::Opened;
use pollux_node::open;
use pollux_verbs::*;
use pollux_wire::address::{Gid, Lid, Qpn};
use pollux_wire::keys::PKey;
use std::collections::VecDeque;
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

/// The faults of a device.
#[derive(Default)]
pub struct Illness {
    /// Events that it makes up.
    pub events: VecDeque<AsyncEvent>,
    /// Events that it keeps to itself.
    pub keeps: Option<fn(&AsyncEvent) -> bool>,
    /// Completions that are lost.
    pub loses: Option<fn(&Completion) -> bool>,
    /// A received packet is a byte shorter, or its completion says so.
    pub shortens: bool,
    /// Every completion is repeated.
    pub repeats: bool,
    /// Its send queues are full.
    pub is_full: bool,
    /// Shared receive queues take no receives.
    pub lacks_receives: bool,
    /// Queue pair 1 is not for programs.
    pub lacks_gsi: bool,
    /// Verbs that it refuses.
    pub refuses: Vec<&'static str>,
    /// Completion queues that were made.
    pub cqs: Vec<Cq>,
    /// Shared receive queues that were made.
    pub srqs: Vec<Srq>,
    /// Queue pairs that were made.
    pub qps: Vec<Qp>,
    /// The faults of the devices of the other workers, in order.
    pub beside: Vec<Arc<Mutex<Illness>>>,
}

/// A device with an illness that tests share.
pub struct Ailing {
    device: Box<dyn Device + Send>,
    illness: Arc<Mutex<Illness>>,
}

/// Opens a device without faults.
pub fn ailing(name: &str) -> (Opened, Arc<Mutex<Illness>>) {
    ail(open(name).expect("the port is free"))
}

/// The same for a device that is open.
pub fn ail(opened: Opened) -> (Opened, Arc<Mutex<Illness>>) {
    let Opened { device, port, fabric, management } = opened;
    let illness = Arc::default();
    let ailing = Ailing { device, illness: Arc::clone(&illness) };
    (Opened { device: Box::new(ailing), port, fabric, management }, illness)
}

impl Ailing {
    fn illness(&self) -> MutexGuard<'_, Illness> {
        self.illness.lock().expect("no test has panicked")
    }

    fn check(&self, verb: &'static str) -> Result<(), VerbsError> {
        match self.illness().refuses.contains(&verb) {
            true => Err(VerbsError::Unsupported { verb, capability: "will to do that" }),
            false => Ok(()),
        }
    }
}

impl Device for Ailing {
    fn attributes(&self) -> DeviceAttributes {
        let mut attributes = self.device.attributes();
        attributes.can.gsi &= !self.illness().lacks_gsi;
        attributes
    }

    fn port(&self, port: u8) -> Result<PortAttributes, VerbsError> {
        self.device.port(port)
    }

    fn gid(&self, port: u8, index: u8) -> Result<Gid, VerbsError> {
        self.device.gid(port, index)
    }

    fn pkey(&self, port: u8, index: u16) -> Result<PKey, VerbsError> {
        self.device.pkey(port, index)
    }

    fn create_pd(&mut self) -> Result<Pd, VerbsError> {
        self.device.create_pd()
    }

    fn destroy_pd(&mut self, pd: Pd) -> Result<(), VerbsError> {
        self.device.destroy_pd(pd)
    }

    fn register(
        &mut self,
        pd: Pd,
        memory: &Memory,
        access: Access,
    ) -> Result<MemoryRegion, VerbsError> {
        self.device.register(pd, memory, access)
    }

    fn deregister(&mut self, region: LKey) -> Result<(), VerbsError> {
        self.device.deregister(region)
    }

    fn create_window(&mut self, pd: Pd) -> Result<MemoryWindow, VerbsError> {
        self.device.create_window(pd)
    }

    fn destroy_window(&mut self, window: RKey) -> Result<(), VerbsError> {
        self.device.destroy_window(window)
    }

    fn create_cq(&mut self, completions_max: u32) -> Result<Cq, VerbsError> {
        let cq = self.device.create_cq(completions_max)?;
        self.illness().cqs.push(cq);
        Ok(cq)
    }

    fn destroy_cq(&mut self, cq: Cq) -> Result<(), VerbsError> {
        self.device.destroy_cq(cq)
    }

    fn create_srq(&mut self, pd: Pd, requests_max: u32, sges_max: u32) -> Result<Srq, VerbsError> {
        let srq = self.device.create_srq(pd, requests_max, sges_max)?;
        self.illness().srqs.push(srq);
        Ok(srq)
    }

    fn set_srq_limit(&mut self, srq: Srq, limit: u32) -> Result<(), VerbsError> {
        self.device.set_srq_limit(srq, limit)
    }

    fn destroy_srq(&mut self, srq: Srq) -> Result<(), VerbsError> {
        self.device.destroy_srq(srq)
    }

    fn create_qp(&mut self, init: &QpInit) -> Result<Qp, VerbsError> {
        let qp = self.device.create_qp(init)?;
        self.illness().qps.push(qp);
        Ok(qp)
    }

    fn qpn(&self, qp: Qp) -> Result<Qpn, VerbsError> {
        self.device.qpn(qp)
    }

    fn modify_qp(&mut self, qp: Qp, change: &QpAttributes) -> Result<(), VerbsError> {
        self.device.modify_qp(qp, change)
    }

    fn query_qp(&self, qp: Qp) -> Result<(QpState, QpAttributes), VerbsError> {
        self.device.query_qp(qp)
    }

    fn destroy_qp(&mut self, qp: Qp) -> Result<(), VerbsError> {
        self.device.destroy_qp(qp)
    }

    fn create_ah(&mut self, pd: Pd, address: &AddressVector) -> Result<Ah, VerbsError> {
        self.check("create_ah")?;
        self.device.create_ah(pd, address)
    }

    fn destroy_ah(&mut self, ah: Ah) -> Result<(), VerbsError> {
        self.device.destroy_ah(ah)
    }

    fn attach_multicast(&mut self, qp: Qp, mgid: Gid, mlid: Lid) -> Result<(), VerbsError> {
        self.check("attach_multicast")?;
        self.device.attach_multicast(qp, mgid, mlid)
    }

    fn detach_multicast(&mut self, qp: Qp, mgid: Gid, mlid: Lid) -> Result<(), VerbsError> {
        self.device.detach_multicast(qp, mgid, mlid)
    }

    fn post_send(&mut self, qp: Qp, batch: &[SendRequest<'_>]) -> Result<(), PostError> {
        if self.illness().is_full {
            return Err(PostError { accepted: 0, refusal: PostRefusal::Full });
        }
        self.device.post_send(qp, batch)
    }

    fn post_recv(&mut self, qp: Qp, batch: &[RecvRequest<'_>]) -> Result<(), PostError> {
        self.device.post_recv(qp, batch)
    }

    fn post_srq_recv(&mut self, srq: Srq, batch: &[RecvRequest<'_>]) -> Result<(), PostError> {
        if self.illness().lacks_receives {
            return Err(PostError { accepted: 0, refusal: PostRefusal::Full });
        }
        self.device.post_srq_recv(srq, batch)
    }

    fn poll(&mut self, cq: Cq, completions: &mut [Completion]) -> Result<usize, VerbsError> {
        let Illness { loses, repeats, shortens, .. } = *self.illness();
        let room = if repeats { completions.len() / 2 } else { completions.len() };
        let count = self.device.poll(cq, &mut completions[..room])?;
        if shortens {
            completions[..count].iter_mut().for_each(|it| it.bytes = it.bytes.saturating_sub(1));
        }
        let mut kept = 0;
        for at in 0..count {
            if !loses.is_some_and(|loses| loses(&completions[at])) {
                completions[kept] = completions[at];
                kept += 1;
            }
        }
        if repeats {
            completions.copy_within(..kept, kept);
            kept *= 2;
        }
        Ok(kept)
    }

    fn arm(&mut self, cq: Cq, arm: Arm) -> Result<(), VerbsError> {
        self.device.arm(cq, arm)
    }

    fn wait(&mut self, timeout: Duration) -> Result<Option<Cq>, VerbsError> {
        self.device.wait(timeout)
    }

    fn async_event(&mut self) -> Option<AsyncEvent> {
        if let Some(event) = self.illness().events.pop_front() {
            return Some(event);
        }
        let keeps = self.illness().keeps;
        std::iter::from_fn(|| self.device.async_event())
            .find(|event| !keeps.is_some_and(|keeps| keeps(event)))
    }

    fn open_shared(&mut self) -> Result<Box<dyn Device + Send>, VerbsError> {
        self.check("open_shared")?;
        let refuses = self.illness().refuses.clone();
        let illness = Arc::new(Mutex::new(Illness { refuses, ..Illness::default() }));
        let device = self.device.open_shared()?;
        self.illness().beside.push(Arc::clone(&illness));
        Ok(Box::new(Self { device, illness }))
    }
}
