//! Access to the library's objects behind the handles, for drivers that implement the fast path
//! themselves and leave the management of objects to [`Hca`].
//!
//! Such a driver implements [`Device`](pollux_verbs::Device): it handles posts, polls and arms
//! itself, and forwards all other verbs to [`Hca`]. For an object with rings that the driver uses,
//! it must not call post, poll or arm of [`Hca`], because the library's own indices into the rings
//! do not advance.

use super::memory::index_of;
use super::{Hca, open};
use crate::error::HcaOpenError;
use ibverbs_sys as ffi;
use pollux_verbs::work::Bind;
use pollux_verbs::{Ah, Cq, Qp, QpState, Srq};

/// The type of `ibv_create_qp`.
pub type CreateQp =
    unsafe extern "C" fn(*mut ffi::ibv_pd, *mut ffi::ibv_qp_init_attr) -> *mut ffi::ibv_qp;

impl Hca {
    /// Opens a device; fails if it has fewer than `port` ports.
    pub fn open(name: &str, port: u8) -> Result<Self, HcaOpenError> {
        open(name, port)
    }

    /// Makes the device create queue pairs with `create_qp` instead of `ibv_create_qp`.
    ///
    /// # Safety
    /// It must be sound to call `create_qp` in place of `ibv_create_qp` for this device. It must
    /// return null, or a queue pair that `ibv_destroy_qp` can destroy.
    pub unsafe fn set_create_qp(&mut self, create_qp: CreateQp) {
        self.create_qp = create_qp;
    }

    /// The context, which is live as long as the device. The objects that the methods below return
    /// are live until their verb destroys them.
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

    /// The state after the last change by a verb; the queue pair may have failed since.
    pub fn last_state(&self, qp: Qp) -> Option<QpState> {
        self.qps.get(qp.0).map(|kept| kept.state)
    }

    /// Whether the window and the region of a bind exist.
    pub fn can_bind(&self, bind: &Bind) -> bool {
        self.windows.contains_key(&index_of(bind.window))
            && self.regions.contains_key(&bind.region.0)
    }
}
