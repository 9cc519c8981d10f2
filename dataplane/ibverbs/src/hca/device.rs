//! Implements [`Device`]. Most verbs forward to the method of the same name in another file.

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

/// Defines verbs that call the method of the same name.
macro_rules! forward {
    ($(fn $verb:ident(&mut self $(, $argument:ident: $type:ty)*) -> $result:ty;)*) => {$(
        fn $verb(&mut self $(, $argument: $type)*) -> $result {
            Self::$verb(self $(, $argument)*)
        }
    )*};
}

impl Device for Hca {
    forward! {
        fn create_pd(&mut self) -> Result<Pd, VerbsError>;
        fn destroy_pd(&mut self, pd: Pd) -> Result<(), VerbsError>;
        fn register(&mut self, pd: Pd, memory: &Memory, access: Access)
            -> Result<MemoryRegion, VerbsError>;
        fn deregister(&mut self, region: LKey) -> Result<(), VerbsError>;
        fn create_window(&mut self, pd: Pd) -> Result<MemoryWindow, VerbsError>;
        fn destroy_window(&mut self, window: RKey) -> Result<(), VerbsError>;
        fn create_cq(&mut self, completions_max: u32) -> Result<Cq, VerbsError>;
        fn destroy_cq(&mut self, cq: Cq) -> Result<(), VerbsError>;
        fn create_srq(&mut self, pd: Pd, requests_max: u32, sges_max: u32)
            -> Result<Srq, VerbsError>;
        fn set_srq_limit(&mut self, srq: Srq, limit: u32) -> Result<(), VerbsError>;
        fn destroy_srq(&mut self, srq: Srq) -> Result<(), VerbsError>;
        fn create_qp(&mut self, init: &QpInit) -> Result<Qp, VerbsError>;
        fn modify_qp(&mut self, qp: Qp, change: &QpAttributes) -> Result<(), VerbsError>;
        fn destroy_qp(&mut self, qp: Qp) -> Result<(), VerbsError>;
        fn create_ah(&mut self, pd: Pd, address: &AddressVector) -> Result<Ah, VerbsError>;
        fn destroy_ah(&mut self, ah: Ah) -> Result<(), VerbsError>;
        fn attach_multicast(&mut self, qp: Qp, mgid: Gid, mlid: Lid) -> Result<(), VerbsError>;
        fn detach_multicast(&mut self, qp: Qp, mgid: Gid, mlid: Lid) -> Result<(), VerbsError>;
        fn post_send(&mut self, qp: Qp, batch: &[SendRequest<'_>]) -> Result<(), PostError>;
        fn post_recv(&mut self, qp: Qp, batch: &[RecvRequest<'_>]) -> Result<(), PostError>;
        fn post_srq_recv(&mut self, srq: Srq, batch: &[RecvRequest<'_>]) -> Result<(), PostError>;
        fn poll(&mut self, cq: Cq, completions: &mut [Completion]) -> Result<usize, VerbsError>;
        fn arm(&mut self, cq: Cq, arm: Arm) -> Result<(), VerbsError>;
        fn wait(&mut self, timeout: Duration) -> Result<Option<Cq>, VerbsError>;
        fn async_event(&mut self) -> Option<AsyncEvent>;
    }

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

    fn qpn(&self, qp: Qp) -> Result<Qpn, VerbsError> {
        self.qp("qpn", qp).map(|kept| kept.qpn)
    }

    fn query_qp(&self, qp: Qp) -> Result<(QpState, QpAttributes), VerbsError> {
        self.query_qp(qp)
    }

    /// Opens a separate context of the adapter; kernel and adapter separate the objects of
    /// contexts.
    fn open_shared(&mut self) -> Result<Box<dyn Device + Send>, VerbsError> {
        let name = &self.attributes.name;
        match open(name, 1) {
            Ok(hca) => Ok(Box::new(hca)),
            Err(HcaOpenError::System { verb, errno, .. }) => Err(self.refused(verb)(errno)),
            // The device was open, but the library does not list it any more.
            Err(_) => Err(VerbsError::Gone),
        }
    }
}
