//! Work requests on their way to the adapter.
//!
//! A batch is written on the stack, chained, and handed over with one call: one doorbell. Entries
//! are not copied: ours are laid out as the library's, which is checked below.
//!
//! What a request may not be is found here and not left to drivers, whose answers differ and are
//! bare numbers; the checks are a few comparisons beside some hundred instructions of a driver.

use super::memory::index_of;
use super::owned::errno_of;
use super::{Hca, QueuePair};
use crate::error::is_gone;
use ibverbs_sys as ffi;
use pollux_verbs::work::{Bind, MESSAGE_OCTETS_MAX};
use pollux_verbs::{
    Data, Destination, LKey, PostError, PostRefusal, Qp, QpState, RecvRequest, Remote, SendFlags,
    SendOp, SendRequest, Sge, Srq,
};
use rustix::io::Errno;
use std::mem::{MaybeUninit, offset_of};
use std::ptr;

/// Requests that go to the library at once. A longer batch goes in several.
const CHAIN: usize = 32;

const _: () = {
    assert!(size_of::<Sge>() == size_of::<ffi::ibv_sge>());
    assert!(align_of::<Sge>() == align_of::<ffi::ibv_sge>());
    assert!(offset_of!(Sge, address) == offset_of!(ffi::ibv_sge, addr));
    assert!(offset_of!(Sge, octets) == offset_of!(ffi::ibv_sge, length));
    assert!(offset_of!(Sge, lkey) == offset_of!(ffi::ibv_sge, lkey));
    assert!(size_of::<LKey>() == size_of::<u32>());
};

type SendWr = ffi::ibv_send_wr;
type RecvWr = ffi::ibv_recv_wr;

/// One entry for each inline request of a chain.
type InlineSges = [MaybeUninit<ffi::ibv_sge>; CHAIN];

impl Hca {
    pub(super) fn post_send(&self, qp: Qp, batch: &[SendRequest<'_>]) -> Result<(), PostError> {
        let refused = |accepted, refusal| Err(PostError { accepted, refusal });
        let Some(kept) = self.qps.get(qp.0) else {
            return refused(0, PostRefusal::NoSuchQueue);
        };
        if matches!(kept.state, QpState::Reset | QpState::Init | QpState::Rtr) && !batch.is_empty()
        {
            return refused(0, PostRefusal::State(kept.state));
        }
        for (nth, part) in batch.chunks(CHAIN).enumerate() {
            self.post_send_part(kept, part)
                .or_else(|error| refused(nth * CHAIN + error.accepted, error.refusal))?;
        }
        Ok(())
    }

    fn post_send_part(&self, kept: &QueuePair, part: &[SendRequest<'_>]) -> Result<(), PostError> {
        let mut chain = [const { MaybeUninit::<SendWr>::uninit() }; CHAIN];
        let mut inline: InlineSges = [const { MaybeUninit::uninit() }; CHAIN];
        let first = chain.as_mut_ptr().cast::<SendWr>();
        let mut written = 0;
        let mut refusal = None;
        for ((request, place), sge) in part.iter().zip(&mut chain).zip(&mut inline) {
            let next = first.wrapping_add(written + 1);
            match self.write_send(kept, request, place, sge, next) {
                Ok(()) => written += 1,
                Err(reason) => {
                    refusal = Some(reason);
                    break;
                }
            }
        }
        if written > 0 {
            let last = first.wrapping_add(written - 1);
            let mut bad = ptr::null_mut();
            // SAFETY: `written` requests were written at `first`, each pointing to the next; the
            // last is made to end the chain. What they point to (entries, inline octets, handles)
            // is borrowed until after the call, which copies it. The queue pair is live.
            let answer = unsafe {
                (*last).next = ptr::null_mut();
                (self.fast.post_send)(kept.object.raw(), first, &raw mut bad)
            };
            if answer != 0 {
                return Err(self.post_refused(answer, taken(first, bad, written)));
            }
        }
        match refusal {
            None => Ok(()),
            Some(refusal) => Err(PostError { accepted: written, refusal }),
        }
    }

    /// Writes one request, or says why it cannot be one.
    #[inline]
    fn write_send(
        &self,
        kept: &QueuePair,
        request: &SendRequest<'_>,
        place: &mut MaybeUninit<SendWr>,
        inline: &mut MaybeUninit<ffi::ibv_sge>,
        next: *mut SendWr,
    ) -> Result<(), PostRefusal> {
        let init = &kept.init;
        let wr = place.as_mut_ptr();
        let mut flags = raw_flags(request.flags);
        let (sges, count) = match request.data {
            Data::Inline(octets) => {
                if is_answered(&request.op) {
                    return Err(PostRefusal::BadOperation);
                }
                if octets.len() > init.inline_octets_max as usize {
                    return Err(PostRefusal::InlineTooLong);
                }
                flags |= ffi::ibv_send_flags::IBV_SEND_INLINE.0;
                let addr = octets.as_ptr().expose_provenance() as u64;
                inline.write(ffi::ibv_sge { addr, length: octets.len() as u32, lkey: 0 });
                // No octets: no entry, as drivers expect.
                (inline.as_mut_ptr(), i32::from(!octets.is_empty()))
            }
            Data::Sges(sges) => {
                if sges.len() > init.send_sges_max as usize {
                    return Err(PostRefusal::TooManySges);
                }
                if request.data.octets() > MESSAGE_OCTETS_MAX {
                    return Err(PostRefusal::TooLong);
                }
                (sges.as_ptr().cast::<ffi::ibv_sge>().cast_mut(), sges.len() as i32)
            }
        };
        // SAFETY: the place is ours to write, and each field is written before anything reads it;
        // those that the operation does not have are never read by the library.
        unsafe {
            (*wr).wr_id = request.id;
            (*wr).next = next;
            (*wr).sg_list = sges;
            (*wr).num_sge = count;
            (*wr).send_flags = flags;
        }
        self.write_op(kept, &request.op, wr)
    }

    /// Writes what is the operation's own.
    #[inline]
    fn write_op(&self, kept: &QueuePair, op: &SendOp, wr: *mut SendWr) -> Result<(), PostRefusal> {
        use ffi::ibv_wr_opcode as code;
        if !kept.init.qp_type.has(op) {
            return Err(PostRefusal::BadOperation);
        }
        // SAFETY: `wr` points to a request that the caller owns; each arm writes the fields of its
        // operation only.
        unsafe {
            (*wr).opcode = match *op {
                SendOp::Send => code::IBV_WR_SEND,
                SendOp::SendImm(imm) => {
                    (*wr).__bindgen_anon_1.imm_data = imm.to_be();
                    code::IBV_WR_SEND_WITH_IMM
                }
                SendOp::SendInvalidate(rkey) => {
                    (*wr).__bindgen_anon_1.invalidate_rkey = rkey.0;
                    code::IBV_WR_SEND_WITH_INV
                }
                SendOp::Datagram(to) => {
                    self.write_destination(kept, to, wr)?;
                    code::IBV_WR_SEND
                }
                SendOp::DatagramImm(to, imm) => {
                    self.write_destination(kept, to, wr)?;
                    (*wr).__bindgen_anon_1.imm_data = imm.to_be();
                    code::IBV_WR_SEND_WITH_IMM
                }
                // Queue pair 1 is the kernel's.
                SendOp::DatagramIn(..) => return Err(PostRefusal::BadOperation),
                SendOp::Write(remote) => {
                    write_remote(remote, wr);
                    code::IBV_WR_RDMA_WRITE
                }
                SendOp::WriteImm(remote, imm) => {
                    write_remote(remote, wr);
                    (*wr).__bindgen_anon_1.imm_data = imm.to_be();
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
                    (*wr).__bindgen_anon_1.invalidate_rkey = rkey.0;
                    code::IBV_WR_LOCAL_INV
                }
            };
        }
        Ok(())
    }

    fn write_destination(
        &self,
        kept: &QueuePair,
        to: Destination,
        wr: *mut SendWr,
    ) -> Result<(), PostRefusal> {
        let ah = self.ah(to.ah).filter(|ah| ah.pd == kept.init.pd);
        let ah = ah.filter(|_| to.qpn.0 <= 0xff_ffff).ok_or(PostRefusal::BadOperation)?;
        // SAFETY: the caller's request; a field of numbers and a pointer.
        unsafe {
            (*wr).wr.ud = ffi::ibv_send_wr__bindgen_ty_2__bindgen_ty_3 {
                ah: ah.object.raw(),
                remote_qpn: to.qpn.0,
                remote_qkey: to.qkey.0,
            };
        }
        Ok(())
    }

    fn write_bind(&self, bind: &Bind, wr: *mut SendWr) -> Result<(), PostRefusal> {
        let window = self.windows.get(&index_of(bind.window)).ok_or(PostRefusal::BadOperation)?;
        let region = self.regions.get(&bind.region.0).ok_or(PostRefusal::BadOperation)?;
        let mw = window.object.raw();
        // SAFETY: the window is live and used by one thread; drivers read its present key there.
        // The request is the caller's, and the field is of numbers and pointers.
        unsafe {
            (*mw).rkey = bind.window.0;
            (*wr).__bindgen_anon_2.bind_mw = ffi::ibv_send_wr__bindgen_ty_4__bindgen_ty_1 {
                mw,
                rkey: bind.rkey.0,
                bind_info: ffi::ibv_mw_bind_info {
                    mr: region.object.raw(),
                    addr: bind.address,
                    length: bind.octets,
                    mw_access_flags: super::memory::raw_access(bind.access),
                },
            };
        }
        Ok(())
    }

    pub(super) fn post_recv(&self, qp: Qp, batch: &[RecvRequest<'_>]) -> Result<(), PostError> {
        let refused = |refusal| Err(PostError { accepted: 0, refusal });
        let Some(kept) = self.qps.get(qp.0) else { return refused(PostRefusal::NoSuchQueue) };
        if kept.state == QpState::Reset && !batch.is_empty() {
            return refused(PostRefusal::State(kept.state));
        }
        if kept.init.srq.is_some() {
            return refused(PostRefusal::BadOperation);
        }
        let queue = kept.object.raw();
        self.post_receives(batch, kept.init.recv_sges_max, |first, bad| {
            // SAFETY: the queue pair is live, and so is the chain, which the library copies.
            unsafe { (self.fast.post_recv)(queue, first, bad) }
        })
    }

    pub(super) fn post_srq_recv(
        &self,
        srq: Srq,
        batch: &[RecvRequest<'_>],
    ) -> Result<(), PostError> {
        let kept = self.srqs.get(srq.0);
        let kept = kept.ok_or(PostError { accepted: 0, refusal: PostRefusal::NoSuchQueue })?;
        let queue = kept.object.raw();
        self.post_receives(batch, kept.sges_max, |first, bad| {
            // SAFETY: the queue is live, and so is the chain, which the library copies.
            unsafe { (self.fast.post_srq_recv)(queue, first, bad) }
        })
    }

    /// Hands over receives, a chain at a time.
    fn post_receives(
        &self,
        batch: &[RecvRequest<'_>],
        sges_max: u32,
        mut post: impl FnMut(*mut RecvWr, *mut *mut RecvWr) -> i32,
    ) -> Result<(), PostError> {
        for (nth, part) in batch.chunks(CHAIN).enumerate() {
            let done = nth * CHAIN;
            let fit =
                part.iter().take_while(|request| request.sges.len() <= sges_max as usize).count();
            let mut chain = [const { MaybeUninit::<RecvWr>::uninit() }; CHAIN];
            let first = chain.as_mut_ptr().cast::<RecvWr>();
            for (at, (request, place)) in part[..fit].iter().zip(&mut chain).enumerate() {
                let is_last = at + 1 == fit;
                place.write(RecvWr {
                    wr_id: request.id,
                    next: if is_last { ptr::null_mut() } else { first.wrapping_add(at + 1) },
                    sg_list: request.sges.as_ptr().cast::<ffi::ibv_sge>().cast_mut(),
                    num_sge: request.sges.len() as i32,
                });
            }
            let mut bad = ptr::null_mut();
            let answer = if fit > 0 { post(first, &raw mut bad) } else { 0 };
            if answer != 0 {
                return Err(self.post_refused(answer, done + taken(first, bad, fit)));
            }
            if fit < part.len() {
                return Err(PostError { accepted: done + fit, refusal: PostRefusal::TooManySges });
            }
        }
        Ok(())
    }

    /// What a driver's number means for a post.
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

/// How many of a chain were taken before the bad one.
fn taken<T>(first: *mut T, bad: *mut T, count: usize) -> usize {
    let at = bad.addr().wrapping_sub(first.addr()) / size_of::<T>();
    // A driver that names none, or nonsense, has taken none that we could count on.
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

/// # Safety
/// `wr` points to a request that the caller owns.
unsafe fn write_remote(remote: Remote, wr: *mut SendWr) {
    let rdma = ffi::ibv_send_wr__bindgen_ty_2__bindgen_ty_1 {
        remote_addr: remote.address,
        rkey: remote.rkey.0,
    };
    // SAFETY: the caller's promise; the field is of numbers.
    unsafe { (*wr).wr.rdma = rdma };
}

/// # Safety
/// `wr` points to a request that the caller owns.
unsafe fn write_atomic(remote: Remote, compare_add: u64, swap: u64, wr: *mut SendWr) {
    let atomic = ffi::ibv_send_wr__bindgen_ty_2__bindgen_ty_2 {
        remote_addr: remote.address,
        compare_add,
        swap,
        rkey: remote.rkey.0,
    };
    // SAFETY: the caller's promise; the field is of numbers.
    unsafe { (*wr).wr.atomic = atomic };
}

/// Whether the peer's answer comes into the request's own memory.
const fn is_answered(op: &SendOp) -> bool {
    matches!(op, SendOp::Read(_) | SendOp::CompareSwap { .. } | SendOp::FetchAdd { .. })
}
