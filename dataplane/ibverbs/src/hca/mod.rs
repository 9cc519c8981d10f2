//! A hardware adapter and its objects.
//!
//! The device owns all objects and returns handles, as the contract requires. So no object outlives
//! its parent, and none is destroyed twice. The device knows which objects use another one, and
//! checks that before it calls the library, which would return only an errno.
//!
//! The files: [`open`](mod@open) opens a device, and `limits` determines its limits and
//! capabilities; `memory`, `queues`, `qp` and `address` create and destroy objects; `post` and
//! `poll` are the fast path; `events` is for callers that sleep; `direct` is for drivers with their
//! own fast path.

mod address;
mod device;
mod direct;
mod events;
mod limits;
mod memory;
mod open;
mod owned;
mod poll;
mod post;
mod qp;
mod queues;
#[cfg(test)]
mod tests;

pub use direct::CreateQp;
pub use open::open;
pub(crate) use open::{LOAD, names};

use crate::error;
use ibverbs_sys as ffi;
use memory::{Region, Window};
use owned::Owned;
use poll::Polled;
use pollux_verbs::error::{none, over};
use pollux_verbs::table::Table;
use pollux_verbs::{
    Ah, Cq, DeviceAttributes, Pd, Qp, QpAttributes, QpInit, QpState, QpType, Srq, VerbsError,
};
use pollux_wire::address::{Gid, Lid, Qpn};
use post::{Receives, Sends};
use std::collections::{BTreeMap, BTreeSet};

/// A device of libibverbs.
///
/// The library requires that an object is destroyed before its parent. Rust drops fields in order
/// of declaration, so each object is declared before its parent.
pub struct Hca {
    memberships: BTreeSet<(Qp, Gid, Lid)>,
    /// Before queue pairs: the system refuses to destroy a queue pair with a bound window.
    windows: BTreeMap<u32, Window>,
    qps: Table<QueuePair>,
    ahs: Table<AddressHandle>,
    srqs: Table<SharedQueue>,
    cqs: Table<CompletionQueue>,
    regions: BTreeMap<u32, Region>,
    pds: Table<Owned<ffi::ibv_pd>>,
    channel: Owned<ffi::ibv_comp_channel>,
    fast: Fast,
    create_qp: CreateQp,
    sends: Sends,
    receives: Receives,
    polled: Polled,
    attributes: DeviceAttributes,
    context: Owned<ffi::ibv_context>,
}

/// Function pointers of the context, which inline functions of the library's headers call.
#[derive(Clone, Copy)]
struct Fast {
    post_send: Post<ffi::ibv_qp, ffi::ibv_send_wr>,
    post_recv: Post<ffi::ibv_qp, ffi::ibv_recv_wr>,
    post_srq_recv: Post<ffi::ibv_srq, ffi::ibv_recv_wr>,
    poll_cq: unsafe extern "C" fn(*mut ffi::ibv_cq, i32, *mut ffi::ibv_wc) -> i32,
    req_notify_cq: unsafe extern "C" fn(*mut ffi::ibv_cq, i32) -> i32,
}

type Post<Queue, Request> =
    unsafe extern "C" fn(*mut Queue, *mut Request, *mut *mut Request) -> i32;

struct CompletionQueue {
    object: Owned<ffi::ibv_cq>,
    /// Number of uses by queue pairs, as send or receive queue.
    qps: u32,
    /// UD queue pairs that receive here, with their P_Key index, sorted by QPN. A completion has
    /// neither the transport nor a valid P_Key index, except for management.
    datagram_qps: Vec<(Qpn, u16)>,
}

struct SharedQueue {
    object: Owned<ffi::ibv_srq>,
    pd: Pd,
    requests_max: u32,
    sges_max: u32,
    qps: u32,
}

struct QueuePair {
    object: Owned<ffi::ibv_qp>,
    qpn: Qpn,
    init: QpInit,
    /// The state after the last change. The queue pair may have failed since, but posts are valid
    /// in the error state too.
    state: QpState,
    attributes: QpAttributes,
}

struct AddressHandle {
    object: Owned<ffi::ibv_ah>,
    pd: Pd,
}

impl Hca {
    fn new(
        context: Owned<ffi::ibv_context>,
        channel: Owned<ffi::ibv_comp_channel>,
        fast: Fast,
        attributes: DeviceAttributes,
    ) -> Self {
        let limits = attributes.limits;
        Self {
            memberships: BTreeSet::new(),
            windows: BTreeMap::new(),
            qps: Table::new(limits.qps_max),
            ahs: Table::new(limits.ahs_max),
            srqs: Table::new(limits.srqs_max),
            cqs: Table::new(limits.cqs_max),
            regions: BTreeMap::new(),
            pds: Table::new(limits.pds_max),
            channel,
            fast,
            create_qp: ffi::ibv_create_qp,
            sends: Sends::new(),
            receives: Receives::new(),
            polled: Polled::new(),
            attributes,
            context,
        }
    }

    fn refused(&self, verb: &'static str) -> impl Fn(i32) -> VerbsError {
        let name = self.attributes.name.clone();
        move |errno| error::refused(&name, verb, errno)
    }

    fn pd(&self, verb: &'static str, pd: Pd) -> Result<*mut ffi::ibv_pd, VerbsError> {
        self.pds.get(pd.0).map(Owned::raw).ok_or(none(verb, "protection domain"))
    }

    fn cq(&self, verb: &'static str, cq: Cq) -> Result<&CompletionQueue, VerbsError> {
        self.cqs.get(cq.0).ok_or(none(verb, "completion queue"))
    }

    fn srq(&self, verb: &'static str, srq: Srq) -> Result<&SharedQueue, VerbsError> {
        self.srqs.get(srq.0).ok_or(none(verb, "shared receive queue"))
    }

    fn qp(&self, verb: &'static str, qp: Qp) -> Result<&QueuePair, VerbsError> {
        self.qps.get(qp.0).ok_or(none(verb, "queue pair"))
    }

    fn ah(&self, ah: Ah) -> Option<&AddressHandle> {
        self.ahs.get(ah.0)
    }

    fn create_pd(&mut self) -> Result<Pd, VerbsError> {
        const VERB: &str = "create_pd";
        let limits = self.attributes.limits;
        // SAFETY: the context is live, and the domain is destroyed before it (order of the fields).
        let made =
            unsafe { Owned::new(ffi::ibv_alloc_pd(self.context.raw()), ffi::ibv_dealloc_pd) };
        let kept = self.pds.insert(made.map_err(self.refused(VERB))?);
        kept.map(Pd).map_err(|_| over(VERB, "pds_max", limits.pds_max))
    }

    fn destroy_pd(&mut self, pd: Pd) -> Result<(), VerbsError> {
        const VERB: &str = "destroy_pd";
        self.pd(VERB, pd)?;
        let by = if self.regions.values().any(|region| region.pd == pd) {
            "a memory region"
        } else if self.windows.values().any(|window| window.pd == pd) {
            "a memory window"
        } else if self.qps.iter().any(|(_, qp)| qp.init.pd == pd) {
            "a queue pair"
        } else if self.srqs.iter().any(|(_, srq)| srq.pd == pd) {
            "a shared receive queue"
        } else if self.ahs.iter().any(|(_, ah)| ah.pd == pd) {
            "an address handle"
        } else {
            let ended = end_in(&mut self.pds, pd.0, |pd| pd);
            return ended.map(drop).map_err(self.refused(VERB));
        };
        Err(VerbsError::Busy { verb: VERB, by })
    }
}

/// Destroys an unused object of a table and removes it. If the system refuses, the object stays in
/// the table under its number, and the caller can try again.
fn end_in<T, R>(
    table: &mut Table<T>,
    number: u32,
    object: impl FnOnce(&mut T) -> &mut Owned<R>,
) -> Result<Option<T>, i32> {
    let Some(entry) = table.get_mut(number) else { return Ok(None) };
    object(entry).end()?;
    Ok(table.remove(number))
}

/// An object's number as the user context of the library's object; events return that context.
fn tag(number: u32) -> *mut std::ffi::c_void {
    std::ptr::without_provenance_mut(number as usize)
}

fn number_of(tag: *mut std::ffi::c_void) -> u32 {
    tag.addr() as u32
}

fn raw_type(qp_type: QpType) -> Option<ffi::ibv_qp_type::Type> {
    match qp_type {
        QpType::Rc => Some(ffi::ibv_qp_type::IBV_QPT_RC),
        QpType::Uc => Some(ffi::ibv_qp_type::IBV_QPT_UC),
        QpType::Ud => Some(ffi::ibv_qp_type::IBV_QPT_UD),
        _ => None,
    }
}

impl Drop for Hca {
    /// Detaches queue pairs from multicast groups, because an attached one cannot be destroyed.
    fn drop(&mut self) {
        for (qp, mgid, mlid) in std::mem::take(&mut self.memberships) {
            self.memberships.insert((qp, mgid, mlid));
            // A refusal is ignored, because the context is closed next.
            let _ = self.detach_multicast(qp, mgid, mlid);
        }
    }
}
