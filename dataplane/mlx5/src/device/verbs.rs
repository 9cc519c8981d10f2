//! The [`Device`] trait. libibverbs executes the verbs that change objects, and this file then
//! updates the rings.

use super::qpns::NO_QP;
use super::{Address, CompletionQueue, ConnectX, rings_of};
use pollux_ibverbs::HcaOpenError;
use pollux_mem::Memory;
use pollux_verbs::error::none;
use pollux_verbs::{
    Access, AddressVector, Ah, Arm, AsyncEvent, Completion, Cq, Device, DeviceAttributes, LKey,
    MemoryRegion, MemoryWindow, Pd, PortAttributes, PostError, Qp, QpAttributes, QpInit, QpState,
    RKey, RecvRequest, SendRequest, Srq, VerbsError,
};
use pollux_wire::address::{Gid, Lid, Qpn};
use pollux_wire::keys::PKey;
use std::collections::VecDeque;
use std::time::Duration;

/// Verbs that do not affect a ring, which libibverbs executes.
macro_rules! forward {
    ($(fn $verb:ident(&mut self $(, $argument:ident: $type:ty)*) -> $result:ty;)*) => {$(
        fn $verb(&mut self $(, $argument: $type)*) -> $result {
            Device::$verb(&mut self.hca $(, $argument)*)
        }
    )*};
}

impl Device for ConnectX {
    forward! {
        fn create_pd(&mut self) -> Result<Pd, VerbsError>;
        fn destroy_pd(&mut self, pd: Pd) -> Result<(), VerbsError>;
        fn register(&mut self, pd: Pd, memory: &Memory, access: Access)
            -> Result<MemoryRegion, VerbsError>;
        fn deregister(&mut self, region: LKey) -> Result<(), VerbsError>;
        fn create_window(&mut self, pd: Pd) -> Result<MemoryWindow, VerbsError>;
        fn destroy_window(&mut self, window: RKey) -> Result<(), VerbsError>;
        fn set_srq_limit(&mut self, srq: Srq, limit: u32) -> Result<(), VerbsError>;
        fn attach_multicast(&mut self, qp: Qp, mgid: Gid, mlid: Lid) -> Result<(), VerbsError>;
        fn detach_multicast(&mut self, qp: Qp, mgid: Gid, mlid: Lid) -> Result<(), VerbsError>;
        fn async_event(&mut self) -> Option<AsyncEvent>;
    }

    fn attributes(&self) -> DeviceAttributes {
        self.hca.attributes()
    }

    fn port(&self, port: u8) -> Result<PortAttributes, VerbsError> {
        Device::port(&self.hca, port)
    }

    fn gid(&self, port: u8, index: u8) -> Result<Gid, VerbsError> {
        Device::gid(&self.hca, port, index)
    }

    fn pkey(&self, port: u8, index: u16) -> Result<PKey, VerbsError> {
        Device::pkey(&self.hca, port, index)
    }

    fn qpn(&self, qp: Qp) -> Result<Qpn, VerbsError> {
        self.hca.qpn(qp)
    }

    fn query_qp(&self, qp: Qp) -> Result<(QpState, QpAttributes), VerbsError> {
        Device::query_qp(&self.hca, qp)
    }

    fn create_cq(&mut self, completions_max: u32) -> Result<Cq, VerbsError> {
        let cq = Device::create_cq(&mut self.hca, completions_max)?;
        match rings_of::completion_ring(&self.hca, cq) {
            Ok(ring) => {
                self.cqs.insert(cq.0, CompletionQueue { ring, settled: VecDeque::new() });
            }
            Err(error) => return Device::destroy_cq(&mut self.hca, cq).and(Err(error)),
        }
        Ok(cq)
    }

    fn destroy_cq(&mut self, cq: Cq) -> Result<(), VerbsError> {
        Device::destroy_cq(&mut self.hca, cq)?;
        self.cqs.remove(cq.0);
        Ok(())
    }

    fn create_srq(&mut self, pd: Pd, requests_max: u32, sges_max: u32) -> Result<Srq, VerbsError> {
        let srq = Device::create_srq(&mut self.hca, pd, requests_max, sges_max)?;
        match rings_of::shared_ring(&self.hca, srq, sges_max) {
            Ok(ring) => self.srqs.insert(srq.0, ring),
            Err(error) => return Device::destroy_srq(&mut self.hca, srq).and(Err(error)),
        }
        Ok(srq)
    }

    fn destroy_srq(&mut self, srq: Srq) -> Result<(), VerbsError> {
        Device::destroy_srq(&mut self.hca, srq)?;
        self.srqs.remove(srq.0);
        Ok(())
    }

    fn create_qp(&mut self, init: &QpInit) -> Result<Qp, VerbsError> {
        let qp = Device::create_qp(&mut self.hca, init)?;
        match rings_of::queue_pair(&self.hca, qp, init, &mut self.registers) {
            Ok(kept) => {
                self.qpns.set(kept.qpn, qp);
                self.qps.insert(qp.0, kept);
            }
            Err(error) => return Device::destroy_qp(&mut self.hca, qp).and(Err(error)),
        }
        Ok(qp)
    }

    /// A failed change may have changed the state, so the state is updated in any case.
    fn modify_qp(&mut self, qp: Qp, change: &QpAttributes) -> Result<(), VerbsError> {
        let changed = Device::modify_qp(&mut self.hca, qp, change);
        let state = self.hca.last_state(qp);
        let kept = self.qps.get_mut(qp.0).zip(state);
        let (kept, state) = kept.ok_or(none("modify_qp", "queue pair"))?;
        kept.state = state;
        changed?;
        if let Some(index) = change.pkey_index {
            kept.pkey_index = kept.pkey_index.and(Some(index));
        }
        if state == QpState::Reset {
            let init = kept.init;
            self.settle(&init);
            if let Some(kept) = self.qps.get_mut(qp.0) {
                kept.reset();
            }
        }
        Ok(())
    }

    fn destroy_qp(&mut self, qp: Qp) -> Result<(), VerbsError> {
        Device::destroy_qp(&mut self.hca, qp)?;
        let kept = self.qps.get(qp.0).ok_or(none("destroy_qp", "queue pair"))?;
        let (init, qpn) = (kept.init, kept.qpn);
        self.settle(&init);
        self.qpns.set(qpn, NO_QP);
        self.qps.remove(qp.0);
        Ok(())
    }

    fn create_ah(&mut self, pd: Pd, address: &AddressVector) -> Result<Ah, VerbsError> {
        let ah = Device::create_ah(&mut self.hca, pd, address)?;
        match rings_of::address_vector(&self.hca, ah) {
            Ok(av) => self.ahs.insert(ah.0, Address { pd, av }),
            Err(error) => return Device::destroy_ah(&mut self.hca, ah).and(Err(error)),
        }
        Ok(ah)
    }

    fn destroy_ah(&mut self, ah: Ah) -> Result<(), VerbsError> {
        Device::destroy_ah(&mut self.hca, ah)?;
        self.ahs.remove(ah.0);
        Ok(())
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
        self.cqs.get(cq.0).ok_or(none("arm", "completion queue"))?.ring.arm(arm);
        Ok(())
    }

    fn wait(&mut self, timeout: Duration) -> Result<Option<Cq>, VerbsError> {
        let cq = Device::wait(&mut self.hca, timeout)?;
        if let Some(queue) = cq.and_then(|cq| self.cqs.get_mut(cq.0)) {
            queue.ring.notified();
        }
        Ok(cq)
    }

    /// Opens a separate context. The kernel and the adapter keep the objects of contexts separate.
    fn open_shared(&mut self) -> Result<Box<dyn Device + Send>, VerbsError> {
        let name = self.attributes().name;
        match Self::open(&name, 1) {
            Ok(device) => Ok(Box::new(device)),
            Err(HcaOpenError::System { verb, errno, advice, .. }) => {
                Err(VerbsError::System { verb, errno, advice: format!("{name}: {advice}") })
            }
            // The device existed before, but is no longer in the list.
            Err(_) => Err(VerbsError::Gone),
        }
    }
}
