//! Bindings to the functions and structures of libmlx5, generated from the installed header.
//!
//! Assertions check all definitions on which the other files rely, so that a different header fails
//! the build. Structures that libmlx5 fills may become longer in later releases, so their sizes are
//! only checked to be large enough.

#[allow(
    non_camel_case_types,
    non_snake_case,
    non_upper_case_globals,
    dead_code,
    unsafe_op_in_unsafe_fn,
    unused_qualifications,
    clippy::all,
    clippy::undocumented_unsafe_blocks,
    reason = "names and forms of C"
)]
mod header {
    include!(concat!(env!("OUT_DIR"), "/mlx5dv.rs"));
}

use crate::{cqe, wqe};
pub(crate) use header::*;

/// `at!(STRUCT { FIELD = OFFSET, ... })` asserts the offset of each field.
macro_rules! at {
    ($structure:ident { $($($field:ident).+ = $at:literal),* $(,)? }) => {
        $(assert!(std::mem::offset_of!($structure, $($field).+) == $at);)*
    };
}

/// `same! { OURS => THEIRS, ... }` asserts that our constants equal those of the header.
macro_rules! same {
    ($($ours:expr => $theirs:ident),* $(,)?) => {
        $(assert!($ours as u64 == $theirs as u64);)*
    };
}

/// The structures by which libmlx5 describes its rings.
const _: () = {
    at!(mlx5dv_qp { dbrec = 0, sq.buf = 8, sq.wqe_cnt = 16, sq.stride = 20 });
    at!(mlx5dv_qp { rq.buf = 24, rq.wqe_cnt = 32, rq.stride = 36, bf.reg = 40, bf.size = 48 });
    at!(mlx5dv_qp { comp_mask = 56 });
    at!(mlx5dv_cq { buf = 0, dbrec = 8, cqe_cnt = 16, cqe_size = 20, cq_uar = 24, cqn = 32 });
    at!(mlx5dv_cq { comp_mask = 40 });
    at!(mlx5dv_srq { buf = 0, dbrec = 8, stride = 16, head = 20, tail = 24, comp_mask = 32 });
    at!(mlx5dv_ah { av = 0, comp_mask = 8 });
    at!(mlx5dv_obj { qp = 0, cq = 16, srq = 32, ah = 80 });
    at!(mlx5dv_qp_init_attr { comp_mask = 0, create_flags = 8, send_ops_flags = 32 });
    assert!(size_of::<mlx5dv_qp>() >= 64 && size_of::<mlx5dv_cq>() == 48);
    assert!(size_of::<mlx5dv_srq>() >= 40 && size_of::<mlx5dv_ah>() == 16);
};

/// The structures that the adapter reads.
const _: () = {
    at!(mlx5_wqe_av { dqp_dct = 8, stat_rate_sl = 12, grh_gid_fl = 28, rgid = 32 });
    at!(mlx5_wqe_raddr_seg { raddr = 0, rkey = 8 });
    at!(mlx5_wqe_atomic_seg { swap_add = 0, compare = 8 });
    at!(mlx5_wqe_data_seg { byte_count = 0, lkey = 4, addr = 8 });
    at!(mlx5_wqe_srq_next_seg { next_wqe_index = 2 });
    at!(mlx5_wqe_umr_ctrl_seg { flags = 0, klm_octowords = 4, mkey_mask = 8 });
    at!(mlx5_wqe_mkey_context_seg { free = 0, access_flags = 2, qpn_mkey = 4 });
    at!(mlx5_wqe_mkey_context_seg { start_addr = 16, len = 24 });
    at!(mlx5_wqe_umr_klm_seg { byte_count = 0, mkey = 4, address = 8 });
    assert!(size_of::<mlx5_wqe_ctrl_seg>() == wqe::UNIT);
    assert!(size_of::<mlx5_wqe_raddr_seg>() == wqe::UNIT);
    assert!(size_of::<mlx5_wqe_atomic_seg>() == wqe::UNIT);
    assert!(size_of::<mlx5_wqe_data_seg>() == wqe::UNIT);
    assert!(size_of::<mlx5_wqe_srq_next_seg>() == wqe::UNIT);
    assert!(size_of::<mlx5_wqe_av>() == size_of::<wqe::Av>());
    assert!(size_of::<mlx5_wqe_inl_data_seg>() == 4);
    assert!(size_of::<mlx5_wqe_umr_ctrl_seg>() == 48);
    assert!(size_of::<mlx5_wqe_mkey_context_seg>() == 64);
    use wqe::{flag, opcode, umr};
    same! {
        wqe::BLOCK => MLX5_SEND_WQE_BB,
        opcode::NOP => MLX5_OPCODE_NOP,
        opcode::SEND_INVAL => MLX5_OPCODE_SEND_INVAL,
        opcode::WRITE => MLX5_OPCODE_RDMA_WRITE,
        opcode::WRITE_IMM => MLX5_OPCODE_RDMA_WRITE_IMM,
        opcode::SEND => MLX5_OPCODE_SEND,
        opcode::SEND_IMM => MLX5_OPCODE_SEND_IMM,
        opcode::READ => MLX5_OPCODE_RDMA_READ,
        opcode::CMP_SWAP => MLX5_OPCODE_ATOMIC_CS,
        opcode::FETCH_ADD => MLX5_OPCODE_ATOMIC_FA,
        opcode::UMR => MLX5_OPCODE_UMR,
        flag::SOLICITED => MLX5_WQE_CTRL_SOLICITED,
        flag::CQE_ALWAYS => MLX5_WQE_CTRL_CQ_UPDATE,
        flag::SMALL_FENCE => MLX5_WQE_CTRL_INITIATOR_SMALL_FENCE,
        flag::FENCE => MLX5_WQE_CTRL_FENCE,
        wqe::INLINE => MLX5_INLINE_SEG,
        wqe::EXTENDED_AV => MLX5_EXTENDED_UD_AV,
        wqe::INVALID_LKEY => MLX5_INVALID_LKEY,
        umr::INLINE => MLX5_WQE_UMR_CTRL_FLAG_INLINE,
        umr::CHECK_FREE => MLX5_WQE_UMR_CTRL_FLAG_CHECK_FREE,
        umr::TRANSLATION_OFFSET => MLX5_WQE_UMR_CTRL_FLAG_TRNSLATION_OFFSET,
        umr::CHECK_QPN => MLX5_WQE_UMR_CTRL_FLAG_CHECK_QPN,
        umr::FREE => MLX5_WQE_MKEY_CONTEXT_FREE,
        umr::LOCAL_WRITE => MLX5_WQE_MKEY_CONTEXT_ACCESS_FLAGS_LOCAL_WRITE,
        umr::REMOTE_READ => MLX5_WQE_MKEY_CONTEXT_ACCESS_FLAGS_REMOTE_READ,
        umr::REMOTE_WRITE => MLX5_WQE_MKEY_CONTEXT_ACCESS_FLAGS_REMOTE_WRITE,
        umr::ATOMIC => MLX5_WQE_MKEY_CONTEXT_ACCESS_FLAGS_ATOMIC,
    };
    assert!(
        umr::MASK_STATE
            == (MLX5_WQE_UMR_CTRL_MKEY_MASK_MKEY
                | MLX5_WQE_UMR_CTRL_MKEY_MASK_QPN
                | MLX5_WQE_UMR_CTRL_MKEY_MASK_FREE) as u64
    );
    assert!(
        umr::MASK_RANGE
            == (MLX5_WQE_UMR_CTRL_MKEY_MASK_LEN
                | MLX5_WQE_UMR_CTRL_MKEY_MASK_START_ADDR
                | MLX5_WQE_UMR_CTRL_MKEY_MASK_ACCESS_LOCAL_WRITE
                | MLX5_WQE_UMR_CTRL_MKEY_MASK_ACCESS_REMOTE_READ
                | MLX5_WQE_UMR_CTRL_MKEY_MASK_ACCESS_REMOTE_WRITE
                | MLX5_WQE_UMR_CTRL_MKEY_MASK_ACCESS_ATOMIC) as u64
    );
};

/// The structures that the adapter writes.
const _: () = {
    at!(mlx5_cqe64 { srqn_uidx = 32, imm_inval_pkey = 36, byte_cnt = 44, sop_drop_qpn = 56 });
    at!(mlx5_cqe64 { wqe_counter = 60, op_own = 63 });
    at!(mlx5_err_cqe { vendor_err_synd = 54, syndrome = 55, s_wqe_opcode_qpn = 56 });
    at!(mlx5_err_cqe { wqe_counter = 60, op_own = 63 });
    assert!(size_of::<mlx5_cqe64>() == cqe::CQE_BYTES);
    assert!(size_of::<mlx5_err_cqe>() == cqe::CQE_BYTES);
    use cqe::opcode;
    same! {
        cqe::OWNER => MLX5_CQE_OWNER_MASK,
        opcode::REQUESTER => MLX5_CQE_REQ,
        opcode::RECV_WRITE_IMM => MLX5_CQE_RESP_WR_IMM,
        opcode::RECV => MLX5_CQE_RESP_SEND,
        opcode::RECV_IMM => MLX5_CQE_RESP_SEND_IMM,
        opcode::RECV_INVALIDATE => MLX5_CQE_RESP_SEND_INV,
        opcode::REQUESTER_ERROR => MLX5_CQE_REQ_ERR,
        opcode::RESPONDER_ERROR => MLX5_CQE_RESP_ERR,
        opcode::INVALID => MLX5_CQE_INVALID,
    };
};
