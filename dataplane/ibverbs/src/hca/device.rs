//! The contract, verb by verb; each verb's implementation is in the file of its subject.

use super::{Hca, open};
use crate::error::HcaOpenError;
use pollux_mem::Memory;
use pollux_verbs::{
    Access, AddressVector, Ah, Arm, AsyncEvent, Completion, Cq, Device, DeviceAttributes, LKey,
    MemoryRegion, MemoryWindow, Pd, PortAttributes, PostError, Qp, QpAttributes, QpInit, QpState,
    RKey, RecvRequest, SendRequest, Srq, VerbsError,
};
use pollux_wire::address::{Gid, Lid, Qpn};
use pollux_wire::keys::PKey;
use std::time::Duration;

impl Device for Hca {
    fn attributes(&self) -> DeviceAttributes {
        self.attributes.clone()
    }

    fn port(&self, port: u8) -> Result<PortAttributes, VerbsError> {
        self.port("port", port)
    }

    fn gid(&self, port: u8, index: u8) -> Result<Gid, VerbsError> {
        self.gid(port, index)
    }

    fn pkey(&self, port: u8, index: u16) -> Result<PKey, VerbsError> {
        self.pkey(port, index)
    }

    fn create_pd(&mut self) -> Result<Pd, VerbsError> {
        self.create_pd()
    }

    fn destroy_pd(&mut self, pd: Pd) -> Result<(), VerbsError> {
        self.destroy_pd(pd)
    }

    fn register(
        &mut self,
        pd: Pd,
        memory: &Memory,
        access: Access,
    ) -> Result<MemoryRegion, VerbsError> {
        self.register(pd, memory, access)
    }

    fn deregister(&mut self, region: LKey) -> Result<(), VerbsError> {
        self.deregister(region)
    }

    fn create_window(&mut self, pd: Pd) -> Result<MemoryWindow, VerbsError> {
        self.create_window(pd)
    }

    fn destroy_window(&mut self, window: RKey) -> Result<(), VerbsError> {
        self.destroy_window(window)
    }

    fn create_cq(&mut self, completions_max: u32) -> Result<Cq, VerbsError> {
        self.create_cq(completions_max)
    }

    fn destroy_cq(&mut self, cq: Cq) -> Result<(), VerbsError> {
        self.destroy_cq(cq)
    }

    fn create_srq(&mut self, pd: Pd, requests_max: u32, sges_max: u32) -> Result<Srq, VerbsError> {
        self.create_srq(pd, requests_max, sges_max)
    }

    fn set_srq_limit(&mut self, srq: Srq, limit: u32) -> Result<(), VerbsError> {
        self.set_srq_limit(srq, limit)
    }

    fn destroy_srq(&mut self, srq: Srq) -> Result<(), VerbsError> {
        self.destroy_srq(srq)
    }

    fn create_qp(&mut self, init: &QpInit) -> Result<Qp, VerbsError> {
        self.create_qp(init)
    }

    fn qpn(&self, qp: Qp) -> Result<Qpn, VerbsError> {
        self.qp("qpn", qp).map(|kept| kept.qpn)
    }

    fn modify_qp(&mut self, qp: Qp, change: &QpAttributes) -> Result<(), VerbsError> {
        self.modify_qp(qp, change)
    }

    fn query_qp(&self, qp: Qp) -> Result<(QpState, QpAttributes), VerbsError> {
        self.query_qp(qp)
    }

    fn destroy_qp(&mut self, qp: Qp) -> Result<(), VerbsError> {
        self.destroy_qp(qp)
    }

    fn create_ah(&mut self, pd: Pd, address: &AddressVector) -> Result<Ah, VerbsError> {
        self.create_ah(pd, address)
    }

    fn destroy_ah(&mut self, ah: Ah) -> Result<(), VerbsError> {
        self.destroy_ah(ah)
    }

    fn attach_multicast(&mut self, qp: Qp, mgid: Gid, mlid: Lid) -> Result<(), VerbsError> {
        self.attach_multicast(qp, mgid, mlid)
    }

    fn detach_multicast(&mut self, qp: Qp, mgid: Gid, mlid: Lid) -> Result<(), VerbsError> {
        self.detach_multicast(qp, mgid, mlid)
    }

    fn post_send(&mut self, qp: Qp, batch: &[SendRequest<'_>]) -> Result<(), PostError> {
        Self::post_send(self, qp, batch)
    }

    fn post_recv(&mut self, qp: Qp, batch: &[RecvRequest<'_>]) -> Result<(), PostError> {
        Self::post_recv(self, qp, batch)
    }

    fn post_srq_recv(&mut self, srq: Srq, batch: &[RecvRequest<'_>]) -> Result<(), PostError> {
        Self::post_srq_recv(self, srq, batch)
    }

    fn poll(&mut self, cq: Cq, completions: &mut [Completion]) -> Result<usize, VerbsError> {
        Self::poll(self, cq, completions)
    }

    fn arm(&mut self, cq: Cq, arm: Arm) -> Result<(), VerbsError> {
        Self::arm(self, cq, arm)
    }

    fn wait(&mut self, timeout: Duration) -> Result<Option<Cq>, VerbsError> {
        Self::wait(self, timeout)
    }

    fn async_event(&mut self) -> Option<AsyncEvent> {
        Self::async_event(self)
    }

    /// A separate context: the kernel and the adapter separate the objects of contexts.
    fn open_shared(&mut self) -> Result<Box<dyn Device + Send>, VerbsError> {
        let name = &self.attributes.name;
        match open(name, 1) {
            Ok(hca) => Ok(Box::new(hca)),
            Err(HcaOpenError::System { verb, errno, .. }) => Err(self.refused(verb)(errno)),
            // It was there, and is not on the list any more.
            Err(_) => Err(VerbsError::Gone),
        }
    }
}
