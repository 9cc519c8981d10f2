//! Posting of work requests.
//!
//! The requests of a batch are written to an array, linked into a list, and posted with one call
//! for up to `CHAIN` of them, which rings one doorbell. Scatter/gather entries are not copied:
//! [`Sge`] has the layout of the library's type, which is checked below. The library copies the
//! list during the call, so the device keeps one array and reuses it.
//!
//! This file detects invalid requests, because drivers return different errnos for them. The checks
//! are a few comparisons; a driver's post takes a few hundred instructions.

use super::memory::{Region, Window, index_of};
use super::owned::errno_of;
use super::{AddressHandle, Hca, QueuePair};
use crate::batch::Batch;
use crate::error::is_gone;
use ibverbs_sys as ffi;
use pollux_verbs::table::Table;
use pollux_verbs::work::Bind;
use pollux_verbs::{
    Data, Destination, LKey, PostError, PostRefusal, Qp, QpState, RecvRequest, Remote, SendFlags,
    SendOp, SendRequest, Sge, Srq, check,
};
use rustix::io::Errno;
use std::collections::BTreeMap;
use std::mem::offset_of;
use std::ptr;

/// Requests of one call of the library, at most. A longer batch takes several calls.
const CHAIN: usize = 32;

const _: () = {
    assert!(size_of::<Sge>() == size_of::<ffi::ibv_sge>());
    assert!(align_of::<Sge>() == align_of::<ffi::ibv_sge>());
    assert!(offset_of!(Sge, address) == offset_of!(ffi::ibv_sge, addr));
    assert!(offset_of!(Sge, bytes) == offset_of!(ffi::ibv_sge, length));
    assert!(offset_of!(Sge, lkey) == offset_of!(ffi::ibv_sge, lkey));
    assert!(size_of::<LKey>() == size_of::<u32>());
};

type SendWr = ffi::ibv_send_wr;
type RecvWr = ffi::ibv_recv_wr;

pub(super) type Receives = Batch<RecvWr, CHAIN>;

pub(super) struct Sends {
    requests: Batch<SendWr, CHAIN>,
    /// One entry for each inline request, in the order of the requests.
    inline: Batch<ffi::ibv_sge, CHAIN>,
}

impl Sends {
    pub(super) fn new() -> Self {
        Self { requests: Batch::new(), inline: Batch::new() }
    }

    /// Links the written requests into a list, and sets the entries of inline requests; returns a
    /// pointer to the first request.
    #[inline]
    fn list(&mut self) -> *mut SendWr {
        let mut entry = self.inline.as_mut_ptr();
        for request in self.requests.filled_mut() {
            if request.send_flags & ffi::ibv_send_flags::IBV_SEND_INLINE.0 != 0 {
                request.sg_list = entry;
                entry = entry.wrapping_add(1);
            }
        }
        self.requests.list()
    }
}

/// The objects that a send refers to.
struct Sender<'a> {
    kept: &'a QueuePair,
    ahs: &'a Table<AddressHandle>,
    windows: &'a BTreeMap<u32, Window>,
    regions: &'a BTreeMap<u32, Region>,
}

impl Hca {
    pub(super) fn post_send(&mut self, qp: Qp, batch: &[SendRequest<'_>]) -> Result<(), PostError> {
        let refused = |accepted, refusal| Err(PostError { accepted, refusal });
        let Self { qps, ahs, windows, regions, sends, fast, .. } = self;
        let Some(kept) = qps.get(qp.0) else {
            return refused(0, PostRefusal::NoSuchQueue);
        };
        if !batch.is_empty() {
            check::send_state(kept.state).or_else(|refusal| refused(0, refusal))?;
        }
        let sender = Sender { kept, ahs, windows, regions };
        for (nth, part) in batch.chunks(CHAIN).enumerate() {
            let done = nth * CHAIN;
            let wrong = sender.write_all(part, sends).err();
            let count = sends.requests.len();
            if count > 0 {
                let (queue, first, mut bad) = (kept.object.raw(), sends.list(), ptr::null_mut());
                // SAFETY: the queue pair is live, and the list has the requests that were written
                // above. Everything that they point to (entries, inline bytes, objects) is borrowed
                // until after the call, and the driver copies it during the call.
                let answer = unsafe { (fast.post_send)(queue, first, &raw mut bad) };
                if answer != 0 {
                    return Err(self.post_refused(answer, done + taken(first, bad, count)));
                }
            }
            if let Some(refusal) = wrong {
                return refused(done + count, refusal);
            }
        }
        Ok(())
    }

    pub(super) fn post_recv(&mut self, qp: Qp, batch: &[RecvRequest<'_>]) -> Result<(), PostError> {
        let refused = |refusal| Err(PostError { accepted: 0, refusal });
        let Some(kept) = self.qps.get(qp.0) else { return refused(PostRefusal::NoSuchQueue) };
        if kept.state == QpState::Reset && !batch.is_empty() {
            return refused(PostRefusal::State(kept.state));
        }
        if kept.init.srq.is_some() {
            return refused(PostRefusal::BadOperation);
        }
        let (queue, post) = (kept.object.raw(), self.fast.post_recv);
        self.post_receives(batch, kept.init.recv_sges_max, |first, bad| {
            // SAFETY: the queue pair is live. The list and the entries that it points to are live
            // during the call, which copies them.
            unsafe { post(queue, first, bad) }
        })
    }

    pub(super) fn post_srq_recv(
        &mut self,
        srq: Srq,
        batch: &[RecvRequest<'_>],
    ) -> Result<(), PostError> {
        let kept = self.srqs.get(srq.0);
        let kept = kept.ok_or(PostError { accepted: 0, refusal: PostRefusal::NoSuchQueue })?;
        let (queue, post) = (kept.object.raw(), self.fast.post_srq_recv);
        self.post_receives(batch, kept.sges_max, |first, bad| {
            // SAFETY: the queue is live. The list and the entries that it points to are live during
            // the call, which copies them.
            unsafe { post(queue, first, bad) }
        })
    }

    /// Posts receives, in lists of up to [`CHAIN`] requests.
    fn post_receives(
        &mut self,
        batch: &[RecvRequest<'_>],
        sges_max: u32,
        mut post: impl FnMut(*mut RecvWr, *mut *mut RecvWr) -> i32,
    ) -> Result<(), PostError> {
        for (nth, part) in batch.chunks(CHAIN).enumerate() {
            let done = nth * CHAIN;
            self.receives.clear();
            let written = part.iter().try_for_each(|request| {
                self.receives.fill(|wr| {
                    if request.sges.len() > sges_max as usize {
                        return Err(PostRefusal::TooManySges);
                    }
                    wr.wr_id = request.id;
                    wr.sg_list = request.sges.as_ptr().cast::<ffi::ibv_sge>().cast_mut();
                    wr.num_sge = request.sges.len() as i32;
                    Ok(())
                })
            });
            let count = self.receives.len();
            let (first, mut bad) = (self.receives.list(), ptr::null_mut());
            let answer = if count > 0 { post(first, &raw mut bad) } else { 0 };
            if answer != 0 {
                return Err(self.post_refused(answer, done + taken(first, bad, count)));
            }
            written.map_err(|refusal| PostError { accepted: done + count, refusal })?;
        }
        Ok(())
    }

    /// Translates the errno that a driver returned from a post.
    #[cold]
    fn post_refused(&self, answer: i32, accepted: usize) -> PostError {
        let errno = errno_of(answer);
        let refusal = match Errno::from_raw_os_error(errno) {
            Errno::NOMEM | Errno::AGAIN | Errno::NOSPC | Errno::NOBUFS => PostRefusal::Full,
            Errno::NODEV | Errno::IO if is_gone(&self.attributes.name) => PostRefusal::Gone,
            Errno::INVAL | Errno::OPNOTSUPP => PostRefusal::BadOperation,
            _ => PostRefusal::System(errno),
        };
        PostError { accepted, refusal }
    }
}

impl Sender<'_> {
    /// Writes requests up to the first invalid one; the error is the refusal of that request.
    #[inline]
    fn write_all(&self, part: &[SendRequest<'_>], to: &mut Sends) -> Result<(), PostRefusal> {
        let Sends { requests, inline } = to;
        requests.clear();
        inline.clear();
        part.iter().try_for_each(|request| requests.fill(|wr| self.write(request, wr, inline)))
    }

    /// Writes one request, or returns why it is invalid.
    ///
    /// Fields that the operation does not use keep old values; the library does not read them.
    #[inline]
    fn write(
        &self,
        request: &SendRequest<'_>,
        wr: &mut SendWr,
        inline: &mut Batch<ffi::ibv_sge, CHAIN>,
    ) -> Result<(), PostRefusal> {
        check::send(request, &self.kept.init)?;
        wr.wr_id = request.id;
        wr.send_flags = raw_flags(request.flags);
        match request.data {
            Data::Inline(bytes) => {
                let addr = bytes.as_ptr().expose_provenance() as u64;
                inline.fill(|entry| {
                    *entry = ffi::ibv_sge { addr, length: bytes.len() as u32, lkey: 0 };
                    Ok(())
                })?;
                wr.send_flags |= ffi::ibv_send_flags::IBV_SEND_INLINE.0;
                // Drivers expect no entry in an empty inline request, so its entry is not counted.
                // `Sends::list` sets the pointer to the entry.
                wr.num_sge = i32::from(!bytes.is_empty());
            }
            Data::Sges(sges) => {
                wr.sg_list = sges.as_ptr().cast::<ffi::ibv_sge>().cast_mut();
                wr.num_sge = sges.len() as i32;
            }
        }
        self.write_op(&request.op, wr)
    }

    #[inline]
    fn write_op(&self, op: &SendOp, wr: &mut SendWr) -> Result<(), PostRefusal> {
        use ffi::ibv_wr_opcode as code;
        wr.opcode = match *op {
            SendOp::Send => code::IBV_WR_SEND,
            SendOp::SendImm(imm) => {
                wr.__bindgen_anon_1.imm_data = imm.to_be();
                code::IBV_WR_SEND_WITH_IMM
            }
            SendOp::SendInvalidate(rkey) => {
                wr.__bindgen_anon_1.invalidate_rkey = rkey.0;
                code::IBV_WR_SEND_WITH_INV
            }
            SendOp::Datagram(to) => {
                self.write_destination(to, wr)?;
                code::IBV_WR_SEND
            }
            SendOp::DatagramImm(to, imm) => {
                self.write_destination(to, wr)?;
                wr.__bindgen_anon_1.imm_data = imm.to_be();
                code::IBV_WR_SEND_WITH_IMM
            }
            // Only the GSI has this operation, and the kernel owns its queue pair.
            SendOp::DatagramIn(..) => return Err(PostRefusal::BadOperation),
            SendOp::Write(remote) => {
                write_remote(remote, wr);
                code::IBV_WR_RDMA_WRITE
            }
            SendOp::WriteImm(remote, imm) => {
                write_remote(remote, wr);
                wr.__bindgen_anon_1.imm_data = imm.to_be();
                code::IBV_WR_RDMA_WRITE_WITH_IMM
            }
            SendOp::Read(remote) => {
                write_remote(remote, wr);
                code::IBV_WR_RDMA_READ
            }
            SendOp::CompareSwap { remote, compare, swap } => {
                write_atomic(remote, compare, swap, wr);
                code::IBV_WR_ATOMIC_CMP_AND_SWP
            }
            SendOp::FetchAdd { remote, add } => {
                write_atomic(remote, add, 0, wr);
                code::IBV_WR_ATOMIC_FETCH_AND_ADD
            }
            SendOp::Bind(bind) => {
                self.write_bind(&bind, wr)?;
                code::IBV_WR_BIND_MW
            }
            SendOp::LocalInvalidate(rkey) => {
                wr.__bindgen_anon_1.invalidate_rkey = rkey.0;
                code::IBV_WR_LOCAL_INV
            }
            SendOp::Nop => return Err(PostRefusal::BadOperation),
        };
        Ok(())
    }

    fn write_destination(&self, to: Destination, wr: &mut SendWr) -> Result<(), PostRefusal> {
        let ah = self.ahs.get(to.ah.0).filter(|ah| ah.pd == self.kept.init.pd);
        let ah = ah.ok_or(PostRefusal::BadOperation)?;
        wr.wr.ud = ffi::ibv_send_wr__bindgen_ty_2__bindgen_ty_3 {
            ah: ah.object.raw(),
            remote_qpn: to.qpn.0,
            remote_qkey: to.qkey.0,
        };
        Ok(())
    }

    fn write_bind(&self, bind: &Bind, wr: &mut SendWr) -> Result<(), PostRefusal> {
        let window = self.windows.get(&index_of(bind.window)).ok_or(PostRefusal::BadOperation)?;
        let region = self.regions.get(&bind.region.0).ok_or(PostRefusal::BadOperation)?;
        let mw = window.object.raw();
        // SAFETY: the window is live, and only the thread that uses this device accesses it.
        // Drivers read the window's current key from this field.
        unsafe { (*mw).rkey = bind.window.0 };
        wr.__bindgen_anon_2.bind_mw = ffi::ibv_send_wr__bindgen_ty_4__bindgen_ty_1 {
            mw,
            rkey: bind.rkey.0,
            bind_info: ffi::ibv_mw_bind_info {
                mr: region.object.raw(),
                addr: bind.address,
                length: bind.bytes,
                mw_access_flags: super::memory::raw_access(bind.access),
            },
        };
        Ok(())
    }
}

/// The number of requests of a list that were accepted before the refused one.
fn taken<T>(first: *mut T, bad: *mut T, count: usize) -> usize {
    let at = bad.addr().wrapping_sub(first.addr()) / size_of::<T>();
    // If the driver's pointer is not to a request of the list, counts none as accepted.
    if bad.is_null() || at >= count { 0 } else { at }
}

#[inline]
fn raw_flags(flags: SendFlags) -> u32 {
    use ffi::ibv_send_flags as raw;
    let one = |flag: SendFlags, bit: ffi::ibv_send_flags| if flags.has(flag) { bit.0 } else { 0 };
    one(SendFlags::SIGNALED, raw::IBV_SEND_SIGNALED)
        | one(SendFlags::SOLICITED, raw::IBV_SEND_SOLICITED)
        | one(SendFlags::FENCE, raw::IBV_SEND_FENCE)
}

fn write_remote(remote: Remote, wr: &mut SendWr) {
    wr.wr.rdma = ffi::ibv_send_wr__bindgen_ty_2__bindgen_ty_1 {
        remote_addr: remote.address,
        rkey: remote.rkey.0,
    };
}

fn write_atomic(remote: Remote, compare_add: u64, swap: u64, wr: &mut SendWr) {
    wr.wr.atomic = ffi::ibv_send_wr__bindgen_ty_2__bindgen_ty_2 {
        remote_addr: remote.address,
        compare_add,
        swap,
        rkey: remote.rkey.0,
    };
}
