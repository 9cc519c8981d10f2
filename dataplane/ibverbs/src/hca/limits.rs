//! Limits and capabilities of a device: reported ones, and ones that must be probed.
//!
//! The library reports most limits. It does not report the limit of inline data, whether UC is
//! supported, or whether UC supports shared receive queues. To find out, this module creates a few
//! queue pairs when the device is opened, and destroys them at once.

use super::owned::{Owned, checked};
use ibverbs_sys as ffi;
use pollux_verbs::DeviceAttributes;
use pollux_verbs::device::{Capabilities, Limits};
use pollux_wire::address::Guid;
use std::mem::{MaybeUninit, zeroed};
use std::ptr;

/// The verb that failed, and its errno.
pub(super) type Failed = (&'static str, i32);

pub(super) struct Probe {
    inline_bytes_max: u32,
    uc: bool,
    uc_srq: bool,
}

/// Sizes of inline data to try, largest first; a driver rounds up a size that it accepts.
const INLINE_BYTES: [u32; 7] = [1024, 768, 512, 256, 128, 64, 0];

/// The objects that a trial queue pair needs.
struct Trial {
    srq: Option<Owned<ffi::ibv_srq>>,
    cq: Owned<ffi::ibv_cq>,
    pd: Owned<ffi::ibv_pd>,
}

impl Probe {
    pub(super) fn of(context: &Owned<ffi::ibv_context>) -> Result<Self, Failed> {
        let trial = Trial::new(context)?;
        let rc = ffi::ibv_qp_type::IBV_QPT_RC;
        let uc = ffi::ibv_qp_type::IBV_QPT_UC;
        let inline = INLINE_BYTES.iter().find_map(|&bytes| trial.try_qp(rc, bytes, None));
        Ok(Self {
            inline_bytes_max: inline.unwrap_or(0),
            uc: trial.try_qp(uc, 0, None).is_some(),
            uc_srq: trial.srq.as_ref().is_some_and(|srq| trial.try_qp(uc, 0, Some(srq)).is_some()),
        })
    }
}

impl Trial {
    fn new(context: &Owned<ffi::ibv_context>) -> Result<Self, Failed> {
        // SAFETY: the context is live and outlives this value. The objects are dropped in the order
        // of the fields (on an error, of the locals in reverse), so the queues before the domain.
        // Each object is passed with the verb that destroys it.
        unsafe {
            let pd = Owned::new(ffi::ibv_alloc_pd(context.raw()), ffi::ibv_dealloc_pd)
                .map_err(|errno| ("ibv_alloc_pd", errno))?;
            let made = ffi::ibv_create_cq(context.raw(), 1, ptr::null_mut(), ptr::null_mut(), 0);
            let cq =
                Owned::new(made, ffi::ibv_destroy_cq).map_err(|errno| ("ibv_create_cq", errno))?;
            let mut init: ffi::ibv_srq_init_attr = zeroed();
            init.attr.max_wr = 1;
            init.attr.max_sge = 1;
            let made = ffi::ibv_create_srq(pd.raw(), &raw mut init);
            let srq = Owned::new(made, ffi::ibv_destroy_srq).ok();
            Ok(Self { srq, cq, pd })
        }
    }

    /// Creates a queue pair with these attributes and destroys it at once. Returns its limit of
    /// inline bytes; `None` if the driver refuses the queue pair.
    fn try_qp(
        &self,
        qp_type: ffi::ibv_qp_type::Type,
        inline_bytes: u32,
        srq: Option<&Owned<ffi::ibv_srq>>,
    ) -> Option<u32> {
        // SAFETY: all zero is a value of this structure of numbers and pointers.
        let mut init: ffi::ibv_qp_init_attr = unsafe { zeroed() };
        init.send_cq = self.cq.raw();
        init.recv_cq = self.cq.raw();
        init.srq = srq.map_or(ptr::null_mut(), Owned::raw);
        init.qp_type = qp_type;
        init.cap.max_send_wr = 1;
        init.cap.max_recv_wr = u32::from(srq.is_none());
        init.cap.max_send_sge = 1;
        init.cap.max_recv_sge = 1;
        init.cap.max_inline_data = inline_bytes;
        // SAFETY: the parents of the queue pair are live and outlive it: it is destroyed when this
        // function returns.
        let made = unsafe {
            let made = ffi::ibv_create_qp(self.pd.raw(), &raw mut init);
            Owned::new(made, ffi::ibv_destroy_qp)
        };
        made.ok().map(|_| init.cap.max_inline_data)
    }
}

pub(super) fn attributes(
    name: &str,
    context: &Owned<ffi::ibv_context>,
    port: u8,
    probe: &Probe,
) -> Result<DeviceAttributes, Failed> {
    let mut raw = MaybeUninit::<ffi::ibv_device_attr>::zeroed();
    // SAFETY: the context is live, and the library writes at most one structure.
    let answer = unsafe { ffi::ibv_query_device(context.raw(), raw.as_mut_ptr()) };
    checked(answer).map_err(|errno| ("ibv_query_device", errno))?;
    // SAFETY: the structure was zeroed, which is a valid value, before the library wrote to it.
    let raw = unsafe { raw.assume_init() };
    Ok(DeviceAttributes {
        name: name.to_owned(),
        node_guid: Guid(u64::from_be(raw.node_guid)),
        ports: raw.phys_port_cnt,
        limits: limits(&raw, probe),
        can: capabilities(&raw, probe, is_infiniband(context, port)),
    })
}

fn limits(raw: &ffi::ibv_device_attr, probe: &Probe) -> Limits {
    let count = |number: i32| u32::try_from(number).unwrap_or(0);
    let byte = |number: i32| u8::try_from(number.clamp(0, 255)).unwrap_or(u8::MAX);
    // A driver without a limit on address handles reports 0.
    let ahs_max = if raw.max_ah > 0 { count(raw.max_ah) } else { 1 << 23 };
    Limits {
        pds_max: count(raw.max_pd),
        regions_max: count(raw.max_mr),
        windows_max: count(raw.max_mw),
        cqs_max: count(raw.max_cq),
        completions_max: count(raw.max_cqe),
        srqs_max: count(raw.max_srq),
        srq_requests_max: count(raw.max_srq_wr),
        qps_max: count(raw.max_qp),
        requests_max: count(raw.max_qp_wr),
        // The contract has one limit for all kinds of queues.
        sges_max: count(raw.max_sge.min(raw.max_srq_sge)),
        inline_bytes_max: probe.inline_bytes_max,
        ahs_max,
        multicast_attachments_max: count(raw.max_total_mcast_qp_attach),
        responder_resources_max: byte(raw.max_qp_rd_atom),
        initiator_depth_max: byte(raw.max_qp_init_rd_atom),
    }
}

/// The vendor ID of Soft-RoCE. Four of its features do not work, so this module reports them as
/// missing (the drain was tested on Linux 6.12 only, the window and the event also on 6.1; the
/// alternate path is by reading its source):
///
/// - a peer can access the whole region through a window: the window's bounds are not checked;
/// - a drained send queue does not continue when the queue pair returns to RTS, and the event is
///   raised even if it was not requested;
/// - a refused request raises no event at the responder;
/// - an alternate path is stored, but never used.
const RXE_VENDOR_ID: u32 = 0xff_ffff;

fn capabilities(raw: &ffi::ibv_device_attr, probe: &Probe, subnet: bool) -> Capabilities {
    let windows = ffi::IBV_DEVICE_MEM_WINDOW_TYPE_2A | ffi::IBV_DEVICE_MEM_WINDOW_TYPE_2B;
    let has = |flags: u32| raw.device_cap_flags & flags != 0;
    let is_rxe = raw.vendor_id == RXE_VENDOR_ID;
    Capabilities {
        uc: probe.uc,
        uc_srq: probe.uc_srq,
        atomics: raw.atomic_cap != ffi::IBV_ATOMIC_NONE,
        windows: has(windows) && raw.max_mw > 0 && !is_rxe,
        send_invalidate: has(ffi::IBV_DEVICE_MEM_MGT_EXTENSIONS),
        srq_limit: raw.max_srq > 0,
        multicast: raw.max_mcast_grp > 0,
        drain: !is_rxe,
        migration: has(ffi::IBV_DEVICE_AUTO_PATH_MIG) && !is_rxe,
        refusal_events: !is_rxe,
        subnet,
        // The kernel owns the GSI; programs access its datagrams through umad.
        gsi: false,
        acks_when_polled: false,
        sleep: true,
    }
}

/// Whether packets of a port are routed by LID. The ports of one device can differ, for example
/// those of a ConnectX-3.
fn is_infiniband(context: &Owned<ffi::ibv_context>, port: u8) -> bool {
    let layer = query_port(context, port).map_or(0, |port| port.link_layer);
    u32::from(layer) == ffi::IBV_LINK_LAYER_INFINIBAND || layer == 0
}

pub(super) fn query_port(
    context: &Owned<ffi::ibv_context>,
    port: u8,
) -> Result<ffi::ibv_port_attr, i32> {
    let mut raw = MaybeUninit::<ffi::ibv_port_attr>::zeroed();
    // SAFETY: the context is live. This function of the library writes the first version of the
    // structure, which is a prefix of this one; the other fields stay zero.
    let answer = unsafe { ffi::ibv_query_port(context.raw(), port, raw.as_mut_ptr().cast()) };
    checked(answer)?;
    // SAFETY: the structure was zeroed, which is a valid value, before the library wrote to it.
    Ok(unsafe { raw.assume_init() })
}
