//! A device that counts its queue pairs, in all of its contexts, for tests of leaks.

use pollux_mem::Memory;
use pollux_verbs::*;
use pollux_wire::address::{Gid, Lid, Qpn};
use pollux_wire::keys::PKey;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

/// A wrapper of a device, with the number of its queue pairs.
pub struct CountedDevice {
    inner: Box<dyn Device + Send>,
    /// Queue pairs of this context.
    own: usize,
    /// Queue pairs of all contexts.
    qps: Arc<AtomicUsize>,
}

impl CountedDevice {
    pub fn new(inner: Box<dyn Device + Send>, qps: Arc<AtomicUsize>) -> Self {
        Self { inner, own: 0, qps }
    }
}

impl Drop for CountedDevice {
    fn drop(&mut self) {
        self.qps.fetch_sub(self.own, Ordering::Relaxed);
    }
}

macro_rules! forward {
    ($($verb:ident($($name:ident: $kind:ty),*) -> $answer:ty;)*) => {
        $(fn $verb(&self, $($name: $kind),*) -> $answer {
            self.inner.$verb($($name),*)
        })*
    };
}
macro_rules! forward_mut {
    ($($verb:ident($($name:ident: $kind:ty),*) -> $answer:ty;)*) => {
        $(fn $verb(&mut self, $($name: $kind),*) -> $answer {
            self.inner.$verb($($name),*)
        })*
    };
}

impl Device for CountedDevice {
    fn create_qp(&mut self, init: &QpInit) -> Result<Qp, VerbsError> {
        let qp = self.inner.create_qp(init)?;
        self.own += 1;
        self.qps.fetch_add(1, Ordering::Relaxed);
        Ok(qp)
    }

    fn destroy_qp(&mut self, qp: Qp) -> Result<(), VerbsError> {
        self.inner.destroy_qp(qp)?;
        self.own -= 1;
        self.qps.fetch_sub(1, Ordering::Relaxed);
        Ok(())
    }

    fn open_shared(&mut self) -> Result<Box<dyn Device + Send>, VerbsError> {
        let inner = self.inner.open_shared()?;
        Ok(Box::new(Self::new(inner, Arc::clone(&self.qps))))
    }

    forward! {
        attributes() -> DeviceAttributes;
        port(port: u8) -> Result<PortAttributes, VerbsError>;
        gid(port: u8, index: u8) -> Result<Gid, VerbsError>;
        pkey(port: u8, index: u16) -> Result<PKey, VerbsError>;
        qpn(qp: Qp) -> Result<Qpn, VerbsError>;
        query_qp(qp: Qp) -> Result<(QpState, QpAttributes), VerbsError>;
    }
    forward_mut! {
        create_pd() -> Result<Pd, VerbsError>;
        destroy_pd(pd: Pd) -> Result<(), VerbsError>;
        register(pd: Pd, memory: &Memory, access: Access) -> Result<MemoryRegion, VerbsError>;
        deregister(region: LKey) -> Result<(), VerbsError>;
        create_window(pd: Pd) -> Result<MemoryWindow, VerbsError>;
        destroy_window(window: RKey) -> Result<(), VerbsError>;
        create_cq(completions_max: u32) -> Result<Cq, VerbsError>;
        destroy_cq(cq: Cq) -> Result<(), VerbsError>;
        create_srq(pd: Pd, requests_max: u32, sges_max: u32) -> Result<Srq, VerbsError>;
        set_srq_limit(srq: Srq, limit: u32) -> Result<(), VerbsError>;
        destroy_srq(srq: Srq) -> Result<(), VerbsError>;
        modify_qp(qp: Qp, change: &QpAttributes) -> Result<(), VerbsError>;
        create_ah(pd: Pd, address: &AddressVector) -> Result<Ah, VerbsError>;
        destroy_ah(ah: Ah) -> Result<(), VerbsError>;
        attach_multicast(qp: Qp, mgid: Gid, mlid: Lid) -> Result<(), VerbsError>;
        detach_multicast(qp: Qp, mgid: Gid, mlid: Lid) -> Result<(), VerbsError>;
        post_send(qp: Qp, batch: &[SendRequest<'_>]) -> Result<(), PostError>;
        post_recv(qp: Qp, batch: &[RecvRequest<'_>]) -> Result<(), PostError>;
        post_srq_recv(srq: Srq, batch: &[RecvRequest<'_>]) -> Result<(), PostError>;
        poll(cq: Cq, completions: &mut [Completion]) -> Result<usize, VerbsError>;
        arm(cq: Cq, arm: Arm) -> Result<(), VerbsError>;
        wait(timeout: Duration) -> Result<Option<Cq>, VerbsError>;
        async_event() -> Option<AsyncEvent>;
    }
}
