//! Polling of completions.
//!
//! A driver writes only the fields of a completion that its status and opcode define, and leaves
//! the other fields unchanged (`ibv_poll_cq(3)`; mlx5 writes no length for a send, and sets the
//! flag of immediate data without the data). So each field is read only if it is defined:
//!
//! | fields | defined in |
//! |---|---|
//! | id, status, queue pair | every completion |
//! | opcode | success |
//! | length | receives, reads, atomics |
//! | flags, and the immediate data or key that they announce | receives |
//! | source | receives of datagrams |

use super::{CompletionQueue, Hca};
use crate::batch::Batch;
use ffi::ibv_wc_flags as flags;
use ffi::ibv_wc_opcode as code;
use ffi::ibv_wc_status as status;
use ibverbs_sys as ffi;
use pollux_verbs::error::none;
use pollux_verbs::{
    Completion, CompletionKind, CompletionStatus, Cq, RKey, Source, VerbsError, With,
};
use pollux_wire::address::{Lid, Qpn};
use rustix::io::Errno;

/// Completions of one call of the library, at most.
const BATCH: usize = 32;

pub(super) type Polled = Batch<ffi::ibv_wc, BATCH>;

impl Hca {
    pub(super) fn poll(&mut self, cq: Cq, out: &mut [Completion]) -> Result<usize, VerbsError> {
        let queue = self.cqs.get(cq.0).ok_or(none("poll", "completion queue"))?;
        let mut done = 0;
        for part in out.chunks_mut(BATCH) {
            let (first, asked) = (self.polled.as_mut_ptr(), part.len() as i32);
            // SAFETY: the queue is live, and the batch has at least `asked` elements, since `part`
            // has at most `BATCH`. The batch is not used between taking the pointer and the call.
            let got = unsafe { (self.fast.poll_cq)(queue.object.raw(), asked, first) };
            if got < 0 {
                // Returns the earlier completions; the next poll fails again and returns the error.
                return if done > 0 { Ok(done) } else { Err(self.poll_error()) };
            }
            let got = (got as usize).min(part.len());
            for (slot, raw) in part.iter_mut().zip(self.polled.first(got)) {
                *slot = completion(queue, raw);
            }
            done += got;
            if got < part.len() {
                break;
            }
        }
        Ok(done)
    }

    /// The error of a failed poll. The library returns no errno; an asynchronous event has the
    /// reason.
    #[cold]
    fn poll_error(&self) -> VerbsError {
        let error = self.refused("poll")(Errno::IO.raw_os_error());
        let VerbsError::System { verb, errno, .. } = error else { return error };
        let name = &self.attributes.name;
        let advice =
            format!("{name}: the queue is broken, perhaps overrun: destroy it and create another");
        VerbsError::System { verb, errno, advice }
    }
}

#[inline]
fn completion(queue: &CompletionQueue, raw: &ffi::ibv_wc) -> Completion {
    let (id, qpn) = (raw.wr_id(), Qpn(raw.qp_num));
    if let Some((status, _)) = raw.error() {
        return Completion { id, qpn, status: status_of(status), ..Completion::NOTHING };
    }
    let kind = kind_of(raw.opcode());
    let status = CompletionStatus::Success;
    let common = Completion { id, qpn, status, kind, ..Completion::NOTHING };
    match kind {
        CompletionKind::Recv | CompletionKind::RecvWriteImm => Completion {
            bytes: raw.len() as u32,
            with: with(raw),
            from: source(queue, qpn, raw),
            ..common
        },
        CompletionKind::Read | CompletionKind::CompareSwap | CompletionKind::FetchAdd => {
            Completion { bytes: raw.len() as u32, ..common }
        }
        CompletionKind::Send
        | CompletionKind::Write
        | CompletionKind::Bind
        | CompletionKind::LocalInvalidate => common,
    }
}

/// The immediate data or the invalidated key of a receive.
fn with(raw: &ffi::ibv_wc) -> With {
    // Immediate data is in network byte order, a key in host byte order.
    if raw.wc_flags.0 & flags::IBV_WC_WITH_IMM.0 != 0 {
        With::Imm(u32::from_be(raw.imm_data))
    } else if raw.wc_flags.0 & flags::IBV_WC_WITH_INV.0 != 0 {
        With::Invalidated(RKey(raw.imm_data))
    } else {
        With::Nothing
    }
}

/// The source of a received datagram; `None` if the queue pair is not UD.
fn source(queue: &CompletionQueue, qpn: Qpn, raw: &ffi::ibv_wc) -> Option<Source> {
    let at = queue.datagram_qps.binary_search_by_key(&qpn, |(qpn, _)| *qpn).ok()?;
    Some(Source {
        src_qp: Qpn(raw.src_qp),
        slid: Lid(raw.slid),
        sl: raw.sl,
        dlid_path_bits: raw.dlid_path_bits,
        pkey_index: queue.datagram_qps[at].1,
        has_grh: raw.wc_flags.0 & flags::IBV_WC_GRH.0 != 0,
    })
}

const fn kind_of(opcode: code::Type) -> CompletionKind {
    match opcode {
        code::IBV_WC_RDMA_WRITE => CompletionKind::Write,
        code::IBV_WC_RDMA_READ => CompletionKind::Read,
        code::IBV_WC_COMP_SWAP => CompletionKind::CompareSwap,
        code::IBV_WC_FETCH_ADD => CompletionKind::FetchAdd,
        code::IBV_WC_BIND_MW => CompletionKind::Bind,
        code::IBV_WC_LOCAL_INV => CompletionKind::LocalInvalidate,
        code::IBV_WC_RECV => CompletionKind::Recv,
        code::IBV_WC_RECV_RDMA_WITH_IMM => CompletionKind::RecvWriteImm,
        // This crate posts no operations with other opcodes.
        _ => CompletionKind::Send,
    }
}

const fn status_of(raw: status::Type) -> CompletionStatus {
    match raw {
        status::IBV_WC_SUCCESS => CompletionStatus::Success,
        status::IBV_WC_LOC_LEN_ERR => CompletionStatus::LocalLength,
        status::IBV_WC_LOC_QP_OP_ERR => CompletionStatus::LocalQpOperation,
        status::IBV_WC_LOC_PROT_ERR => CompletionStatus::LocalProtection,
        status::IBV_WC_WR_FLUSH_ERR => CompletionStatus::Flushed,
        status::IBV_WC_MW_BIND_ERR => CompletionStatus::WindowBind,
        status::IBV_WC_BAD_RESP_ERR => CompletionStatus::BadResponse,
        status::IBV_WC_LOC_ACCESS_ERR => CompletionStatus::LocalAccess,
        status::IBV_WC_REM_INV_REQ_ERR => CompletionStatus::RemoteInvalidRequest,
        status::IBV_WC_REM_ACCESS_ERR => CompletionStatus::RemoteAccess,
        status::IBV_WC_REM_OP_ERR => CompletionStatus::RemoteOperation,
        status::IBV_WC_RETRY_EXC_ERR => CompletionStatus::RetryExceeded,
        status::IBV_WC_RNR_RETRY_EXC_ERR => CompletionStatus::RnrRetryExceeded,
        status::IBV_WC_REM_ABORT_ERR => CompletionStatus::RemoteAborted,
        _ => CompletionStatus::General,
    }
}
