//! The rings of objects that libmlx5 has created.
//!
//! The library returns the address and the length of a ring (`mlx5dv_init_obj`). A ring of an
//! unknown form is an error, and the caller destroys the object again.

use super::QueuePair;
use crate::bindings as ffi;
use crate::memory::{ArmRegister, Record, RingMemory, SendRegister};
use crate::rings::completion::CompletionRing;
use crate::rings::receive::{RecvLimits, RecvRing};
use crate::rings::send::{SendLimits, SendRing};
use crate::rings::shared::{SharedList, SharedRing};
use crate::wqe::{Av, BLOCK};
use ibverbs_sys as ibv;
use pollux_ibverbs::Hca;
use pollux_verbs::error::none;
use pollux_verbs::{Ah, Cq, Device as _, Qp, QpInit, QpState, Srq, VerbsError};
use std::mem::MaybeUninit;
use std::ptr;

/// Whether libmlx5 drives the device.
pub(super) fn is_supported(hca: &Hca) -> bool {
    // SAFETY: the context is open, so its device exists.
    unsafe { ffi::mlx5dv_is_supported((*hca.raw_context()).device) }
}

/// Sets the function that creates queue pairs, so that their rings can be used here. The device
/// must be supported.
pub(super) fn prepare(hca: &mut Hca) {
    // SAFETY: the function behaves as `ibv_create_qp`, and its result has the same destructor.
    unsafe { hca.set_create_qp(create_qp) };
}

/// Creates a queue pair as `ibv_create_qp` does, but the adapter does not put the data of short
/// messages into CQEs. In its own poll, libmlx5 would copy such data to the buffers.
///
/// # Safety
/// As for `ibv_create_qp`, for an mlx5 device.
unsafe extern "C" fn create_qp(
    pd: *mut ibv::ibv_pd,
    init: *mut ibv::ibv_qp_init_attr,
) -> *mut ibv::ibv_qp {
    // SAFETY: the caller passes a valid protection domain, and attributes that nothing else
    // accesses during the call.
    let (context, init) = unsafe { ((*pd).context, &mut *init) };
    let mut all = ibv::ibv_qp_init_attr_ex {
        qp_context: init.qp_context,
        send_cq: init.send_cq,
        recv_cq: init.recv_cq,
        srq: init.srq,
        cap: init.cap,
        qp_type: init.qp_type,
        sq_sig_all: init.sq_sig_all,
        comp_mask: ibv::IBV_QP_INIT_ATTR_PD,
        pd,
        ..ibv::ibv_qp_init_attr_ex::default()
    };
    let mut own = ffi::mlx5dv_qp_init_attr {
        comp_mask: ffi::MLX5DV_QP_INIT_ATTR_MASK_QP_CREATE_FLAGS.into(),
        create_flags: ffi::MLX5DV_QP_CREATE_DISABLE_SCATTER_TO_CQE,
        ..ffi::mlx5dv_qp_init_attr::default()
    };
    // SAFETY: the structures have all fields that their masks declare, and are accessed only during
    // the call.
    let made = unsafe { ffi::mlx5dv_create_qp(context, &raw mut all, &raw mut own) };
    init.cap = all.cap;
    made
}

/// Calls `mlx5dv_init_obj` for one object, which `of` sets together with the structure to fill.
fn init_obj(kind: u32, of: impl FnOnce(&mut ffi::mlx5dv_obj)) -> Result<(), VerbsError> {
    let mut object = ffi::mlx5dv_obj::default();
    of(&mut object);
    // SAFETY: the caller has set a valid object of this kind, and the structure to fill.
    let answer = unsafe { ffi::mlx5dv_init_obj(&raw mut object, kind.into()) };
    if answer == 0 { Ok(()) } else { Err(unknown("mlx5dv_init_obj refused the object")) }
}

#[cold]
fn unknown(why: &'static str) -> VerbsError {
    VerbsError::UnknownForm { what: "ring of a new object", why }
}

pub(super) fn completion_ring(hca: &Hca, cq: Cq) -> Result<CompletionRing, VerbsError> {
    let raw = hca.raw_cq(cq).ok_or(none("create_cq", "completion queue"))?;
    let mut out = ffi::mlx5dv_cq::default();
    init_obj(ffi::MLX5DV_OBJ_CQ, |object| {
        object.cq.in_ = raw;
        object.cq.out = &raw mut out;
    })?;
    let bytes = out.cqe_cnt as usize * out.cqe_size as usize;
    // SAFETY: libmlx5 returns the memory of the ring, which exists as long as the object. From now
    // on only this crate uses it.
    let places = unsafe {
        (RingMemory::new(out.buf, bytes), Record::new(out.dbrec), ArmRegister::new(out.cq_uar))
    };
    let (Some(memory), Some(record), Some(register)) = places else {
        return Err(unknown("a completion queue has no memory"));
    };
    CompletionRing::new(memory, record, register, out.cqn, out.cqe_size)
        .ok_or(unknown("a completion queue has entries of another size"))
}

pub(super) fn shared_ring(hca: &Hca, srq: Srq, sges_max: u32) -> Result<SharedRing, VerbsError> {
    let raw = hca.raw_srq(srq).ok_or(none("create_srq", "shared receive queue"))?;
    let mut out = ffi::mlx5dv_srq::default();
    init_obj(ffi::MLX5DV_OBJ_SRQ, |object| {
        object.srq.in_ = raw;
        object.srq.out = &raw mut out;
    })?;
    let bytes = (out.tail as usize + 1) * out.stride as usize;
    // SAFETY: as for a completion queue. In a new list the tail is the last slot, so there are
    // `tail + 1` slots.
    let places = unsafe { (RingMemory::new(out.buf, bytes), Record::new(out.dbrec)) };
    let (Some(memory), Some(record)) = places else {
        return Err(unknown("a shared receive queue has no memory"));
    };
    let list = SharedList { head: out.head, tail: out.tail, stride: out.stride, sges_max };
    SharedRing::new(memory, record, list).ok_or(unknown("a shared receive queue has other links"))
}

pub(super) fn address_vector(hca: &Hca, ah: Ah) -> Result<Av, VerbsError> {
    let raw = hca.raw_ah(ah).ok_or(none("create_ah", "address handle"))?;
    let mut out = ffi::mlx5dv_ah::default();
    init_obj(ffi::MLX5DV_OBJ_AH, |object| {
        object.ah.in_ = raw;
        object.ah.out = &raw mut out;
    })?;
    let mut av = MaybeUninit::<Av>::uninit();
    // SAFETY: libmlx5 returns the address of its address vector, which has the size of ours.
    unsafe {
        ptr::copy_nonoverlapping(out.av.cast::<u8>(), av.as_mut_ptr().cast(), size_of::<Av>());
        Ok(av.assume_init())
    }
}

/// The rings of a queue pair. Adds its doorbell register to `registers`, unless it is in there.
pub(super) fn queue_pair(
    hca: &Hca,
    qp: Qp,
    init: &QpInit,
    registers: &mut Vec<SendRegister>,
) -> Result<QueuePair, VerbsError> {
    let raw = hca.raw_qp(qp).ok_or(none("create_qp", "queue pair"))?;
    let mut out = ffi::mlx5dv_qp::default();
    init_obj(ffi::MLX5DV_OBJ_QP, |object| {
        object.qp.in_ = raw;
        object.qp.out = &raw mut out;
    })?;
    if out.sq.stride as usize != BLOCK {
        return Err(unknown("a send queue has blocks of another size"));
    }
    let qpn = hca.qpn(qp)?;
    // SAFETY: as for a completion queue.
    let places = unsafe {
        let memory = RingMemory::new(out.sq.buf, out.sq.wqe_cnt as usize * BLOCK);
        (memory, Record::new(out.dbrec), SendRegister::new(out.bf.reg, out.bf.size))
    };
    let (Some(memory), Some(record), Some(register)) = places else {
        return Err(unknown("a send queue has no memory"));
    };
    let limits = SendLimits { requests_max: init.send_requests_max, signal_all: init.signal_all };
    let send = SendRing::new(memory, record, qpn.0, limits);
    let send = send.ok_or(unknown("a send queue has another length"))?;
    let recv = match init.srq {
        None if init.recv_requests_max > 0 => Some(recv_ring(&out, init)?),
        _ => None,
    };
    let known = registers.iter().position(|known| known.address() == register.address());
    let register = known.unwrap_or_else(|| {
        registers.push(register);
        registers.len() - 1
    });
    let pkey_index = init.qp_type.is_datagram().then_some(0);
    Ok(QueuePair { init: *init, qpn, state: QpState::Reset, pkey_index, send, recv, register })
}

fn recv_ring(out: &ffi::mlx5dv_qp, init: &QpInit) -> Result<RecvRing, VerbsError> {
    let bytes = out.rq.wqe_cnt as usize * out.rq.stride as usize;
    // SAFETY: as for a completion queue. The send queue uses the other word of the same doorbell
    // record.
    let places = unsafe { (RingMemory::new(out.rq.buf, bytes), Record::new(out.dbrec)) };
    let (Some(memory), Some(record)) = places else {
        return Err(unknown("a receive queue has no memory"));
    };
    let (requests_max, sges_max) = (init.recv_requests_max, init.recv_sges_max);
    let limits = RecvLimits { requests_max, sges_max, stride: out.rq.stride };
    RecvRing::new(memory, record, limits).ok_or(unknown("a receive queue has another length"))
}

#[cfg(test)]
mod tests {
    use super::unknown;

    #[test]
    fn a_ring_of_an_unknown_form_is_not_lost() {
        let error = unknown("a completion queue has entries of another size").to_string();
        let expected = "the ring of a new object has an unknown form: a completion queue has \
                        entries of another size; use the device by libibverbs alone (verbs:NAME)";
        assert_eq!(error, expected);
    }
}
