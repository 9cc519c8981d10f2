//! For drivers that move data by themselves, and leave the objects to this device: the library's
//! objects behind the handles.
//!
//! Such a driver implements [`Device`](pollux_verbs::Device) by calling that of [`Hca`] for all but
//! posts, polls and arms. Of an object whose rings it uses, it calls none of these here: the
//! library's own indices into the rings do not move.

use super::memory::index_of;
use super::{Hca, open};
use crate::error::HcaOpenError;
use ibverbs_sys as ffi;
use pollux_verbs::work::Bind;
use pollux_verbs::{Ah, Cq, Qp, QpState, Srq};

/// The form of `ibv_create_qp`.
pub type CreateQp =
    unsafe extern "C" fn(*mut ffi::ibv_pd, *mut ffi::ibv_qp_init_attr) -> *mut ffi::ibv_qp;

impl Hca {
    /// Opens a device that has at least `port` ports.
    pub fn open(name: &str, port: u8) -> Result<Self, HcaOpenError> {
        open(name, port)
    }

    /// From now on queue pairs are made by `create_qp`, in place of `ibv_create_qp`.
    ///
    /// # Safety
    /// `create_qp` may be called as `ibv_create_qp` for this device, and returns null or a queue
    /// pair for `ibv_destroy_qp`.
    pub unsafe fn set_create_qp(&mut self, create_qp: CreateQp) {
        self.create_qp = create_qp;
    }

    /// The context, live as long as the device. So are the other objects until they are destroyed
    /// by their verb.
    pub fn raw_context(&self) -> *mut ffi::ibv_context {
        self.context.raw()
    }

    pub fn raw_qp(&self, qp: Qp) -> Option<*mut ffi::ibv_qp> {
        self.qps.get(qp.0).map(|kept| kept.object.raw())
    }

    pub fn raw_cq(&self, cq: Cq) -> Option<*mut ffi::ibv_cq> {
        self.cqs.get(cq.0).map(|kept| kept.object.raw())
    }

    pub fn raw_srq(&self, srq: Srq) -> Option<*mut ffi::ibv_srq> {
        self.srqs.get(srq.0).map(|kept| kept.object.raw())
    }

    pub fn raw_ah(&self, ah: Ah) -> Option<*mut ffi::ibv_ah> {
        self.ahs.get(ah.0).map(|kept| kept.object.raw())
    }

    /// The state after the last change; the queue pair may have failed since.
    pub fn last_state(&self, qp: Qp) -> Option<QpState> {
        self.qps.get(qp.0).map(|kept| kept.state)
    }

    /// Whether the window and the region of a bind exist.
    pub fn can_bind(&self, bind: &Bind) -> bool {
        self.windows.contains_key(&index_of(bind.window))
            && self.regions.contains_key(&bind.region.0)
    }
}
