//! A fake library: objects without an adapter, and functions with scripted results, for behavior
//! that a real adapter does not show on request.
//!
//! The fake writes a completion as drivers do: only the fields that its status and opcode define
//! (`ibv_poll_cq(3)`). A test chooses the content of the other fields.

use crate::hca::owned::Owned;
use crate::hca::{AddressHandle, CompletionQueue, Fast, Hca, QueuePair};
use ibverbs_sys as ffi;
use pollux_verbs::device::{Capabilities, DeviceAttributes, Limits};
use pollux_verbs::{Ah, Cq, Pd, Qp, QpAttributes, QpInit, QpState, QpType};
use pollux_wire::address::{Guid, Qpn};
use std::collections::VecDeque;
use std::ffi::c_int;
use std::mem::{MaybeUninit, offset_of, zeroed};
use std::ptr;

/// An object of the library, and the script of its destruction.
#[repr(C)]
pub(super) struct Fake<T, S> {
    raw: T,
    pub(super) script: S,
    /// The errnos of the next attempts to destroy the object.
    pub(super) refusals: VecDeque<c_int>,
    /// Number of attempts to destroy the object.
    pub(super) ends: usize,
}

impl<T, S> Fake<T, S> {
    /// An object that lives until the test process ends, so that a test can inspect it.
    fn object(script: S) -> Owned<T> {
        // SAFETY: all zero is a value of the library's structures of numbers and pointers.
        let raw: T = unsafe { zeroed() };
        let fake = Self { raw, script, refusals: VecDeque::new(), ends: 0 };
        let raw: *mut Self = Box::into_raw(Box::new(fake));
        // SAFETY: the object is live, only this value destroys it, and `end` is written for a
        // `Fake` of these types.
        unsafe { Owned::new(raw.cast(), end::<T, S>) }.expect("a box is somewhere")
    }

    /// # Safety
    /// `raw` must be from this type's `object`, and there must be no other reference to it.
    unsafe fn of<'a>(raw: *mut T) -> &'a mut Self {
        // SAFETY: by the caller's contract; `raw` is the first field of a `repr(C)` struct.
        unsafe { &mut *raw.cast::<Self>() }
    }
}

unsafe extern "C" fn end<T, S>(raw: *mut T) -> c_int {
    // SAFETY: `object` passes this function to `Owned` with an object of this type.
    let fake = unsafe { Fake::<T, S>::of(raw) };
    fake.ends += 1;
    fake.refusals.pop_front().unwrap_or(0)
}

/// The content of fields that a driver does not write.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Rest {
    /// A pattern that shows in the result if it is read.
    Garbage,
    /// Uninitialized memory, whose use valgrind reports.
    Unwritten,
}

/// Completions, one list for each poll.
pub(super) struct Polls {
    rest: Rest,
    next: VecDeque<Result<Vec<Wc>, c_int>>,
}

/// A completion as a driver writes it.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Wc {
    pub(super) wr_id: u64,
    pub(super) status: ffi::ibv_wc_status::Type,
    pub(super) qp_num: u32,
    pub(super) vendor_err: u32,
    pub(super) opcode: Option<ffi::ibv_wc_opcode::Type>,
    pub(super) byte_len: Option<u32>,
    pub(super) wc_flags: Option<u32>,
    pub(super) imm_data: Option<u32>,
    /// Source queue pair, LID, service level and path bits.
    pub(super) from: Option<(u32, u16, u8, u8)>,
}

/// The layout of the library's structure, which has private fields.
#[repr(C)]
struct RawWc {
    wr_id: u64,
    status: u32,
    opcode: u32,
    vendor_err: u32,
    byte_len: u32,
    imm_data: u32,
    qp_num: u32,
    src_qp: u32,
    wc_flags: u32,
    pkey_index: u16,
    slid: u16,
    sl: u8,
    dlid_path_bits: u8,
}

const _: () = {
    assert!(size_of::<RawWc>() == size_of::<ffi::ibv_wc>());
    assert!(offset_of!(RawWc, qp_num) == offset_of!(ffi::ibv_wc, qp_num));
    assert!(offset_of!(RawWc, wc_flags) == offset_of!(ffi::ibv_wc, wc_flags));
    assert!(offset_of!(RawWc, dlid_path_bits) == offset_of!(ffi::ibv_wc, dlid_path_bits));
};

impl Wc {
    /// # Safety
    /// `to` must be valid for writing a completion.
    unsafe fn write(&self, to: *mut RawWc, rest: Rest) {
        let nothing = Box::<RawWc>::new_uninit();
        // SAFETY: by the caller's contract. The copy is of `MaybeUninit`, so the bytes may be
        // uninitialized, and all fields are plain numbers.
        unsafe {
            match rest {
                Rest::Garbage => ptr::write_bytes(to, 0xa5, 1),
                Rest::Unwritten => {
                    to.cast::<MaybeUninit<RawWc>>().copy_from(&raw const *nothing, 1);
                }
            }
            (*to).wr_id = self.wr_id;
            (*to).status = self.status;
            (*to).qp_num = self.qp_num;
            (*to).vendor_err = self.vendor_err;
            if let Some(opcode) = self.opcode {
                (*to).opcode = opcode;
            }
            if let Some(byte_len) = self.byte_len {
                (*to).byte_len = byte_len;
            }
            if let Some(wc_flags) = self.wc_flags {
                (*to).wc_flags = wc_flags;
            }
            if let Some(imm_data) = self.imm_data {
                (*to).imm_data = imm_data;
            }
            if let Some((src_qp, slid, sl, path_bits)) = self.from {
                (*to).src_qp = src_qp;
                (*to).slid = slid;
                (*to).sl = sl;
                (*to).dlid_path_bits = path_bits;
            }
        }
    }
}

unsafe extern "C" fn poll_cq(cq: *mut ffi::ibv_cq, asked: c_int, to: *mut ffi::ibv_wc) -> c_int {
    // SAFETY: the queue was made by `fake_cq`.
    let polls = unsafe { &mut Fake::<_, Polls>::of(cq).script };
    let Some(next) = polls.next.front_mut() else { return 0 };
    match next {
        Ok(completions) => {
            let count = completions.len().min(asked as usize);
            for (nth, completion) in completions.drain(..count).enumerate() {
                // SAFETY: the caller has space for `asked` completions, and `count` is not above
                // that.
                unsafe { completion.write(to.cast::<RawWc>().add(nth), polls.rest) };
            }
            if completions.is_empty() {
                polls.next.pop_front();
            }
            count as c_int
        }
        Err(answer) => *answer,
    }
}

unsafe extern "C" fn req_notify_cq(_: *mut ffi::ibv_cq, _: c_int) -> c_int {
    0
}

/// Requests posted to a queue pair.
#[derive(Default)]
pub(super) struct Posts {
    /// Lists of requests, one for each call.
    pub(super) lists: Vec<Vec<Posted>>,
    /// The ID of a request to refuse, and the errno to return.
    pub(super) refused: Option<(u64, c_int)>,
}

/// A posted request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Posted {
    pub(super) id: u64,
    /// The opcode; 0 for a receive.
    pub(super) opcode: u32,
    /// The bytes of an inline request.
    pub(super) inline: Vec<u8>,
    /// Address, length and key of each entry, if the request is not inline.
    pub(super) sges: Vec<(u64, u32, u32)>,
}

/// # Safety
/// There must be `count` live entries at `first`.
unsafe fn entries<'a>(first: *const ffi::ibv_sge, count: c_int) -> &'a [ffi::ibv_sge] {
    if count == 0 {
        return &[];
    }
    // SAFETY: the caller's promise.
    unsafe { std::slice::from_raw_parts(first, count as usize) }
}

/// A request of a list, as the library sees it.
trait Request: Sized {
    fn next(&self) -> *mut Self;
    /// # Safety
    /// Everything that the request points to must be live.
    unsafe fn posted(&self) -> Posted;
}

impl Request for ffi::ibv_send_wr {
    fn next(&self) -> *mut Self {
        self.next
    }

    unsafe fn posted(&self) -> Posted {
        // SAFETY: the caller's promise.
        let sges = unsafe { entries(self.sg_list, self.num_sge) };
        let is_inline = self.send_flags & ffi::ibv_send_flags::IBV_SEND_INLINE.0 != 0;
        let bytes = sges.iter().filter(|_| is_inline).flat_map(|sge| {
            let first = ptr::with_exposed_provenance::<u8>(sge.addr as usize);
            // SAFETY: an entry of an inline request has address and length of live memory.
            unsafe { std::slice::from_raw_parts(first, sge.length as usize) }.to_vec()
        });
        let inline = bytes.collect();
        let sges = if is_inline { &[] } else { sges };
        let sges = sges.iter().map(|sge| (sge.addr, sge.length, sge.lkey)).collect();
        Posted { id: self.wr_id, opcode: self.opcode, inline, sges }
    }
}

impl Request for ffi::ibv_recv_wr {
    fn next(&self) -> *mut Self {
        self.next
    }

    unsafe fn posted(&self) -> Posted {
        // SAFETY: the caller's promise.
        let sges = unsafe { entries(self.sg_list, self.num_sge) };
        let sges = sges.iter().map(|sge| (sge.addr, sge.length, sge.lkey)).collect();
        Posted { id: self.wr_id, opcode: 0, inline: Vec::new(), sges }
    }
}

unsafe extern "C" fn post<R: Request>(
    qp: *mut ffi::ibv_qp,
    first: *mut R,
    bad: *mut *mut R,
) -> c_int {
    // SAFETY: the queue pair was made by `fake_qp`.
    let posts = unsafe { &mut Fake::<_, Posts>::of(qp).script };
    let (mut list, mut answer, mut at) = (Vec::new(), 0, first);
    while !at.is_null() {
        // SAFETY: a posted list is live, and ends with null.
        let posted = unsafe { (*at).posted() };
        if let Some((id, refusal)) = posts.refused
            && id == posted.id
        {
            // SAFETY: the caller passes a valid pointer for the refused request.
            unsafe { *bad = at };
            answer = refusal;
            break;
        }
        list.push(posted);
        // SAFETY: as above.
        at = unsafe { (*at).next() };
    }
    posts.lists.push(list);
    answer
}

unsafe extern "C" fn post_srq(
    _: *mut ffi::ibv_srq,
    _: *mut ffi::ibv_recv_wr,
    _: *mut *mut ffi::ibv_recv_wr,
) -> c_int {
    0
}

/// A device of this library. Tests add objects with the methods below, and destroy them by verbs.
pub(super) fn device() -> Hca {
    let count = 1000;
    let limits = Limits {
        pds_max: count,
        regions_max: count,
        windows_max: count,
        cqs_max: count,
        completions_max: count,
        srqs_max: count,
        srq_requests_max: count,
        qps_max: count,
        requests_max: count,
        sges_max: 4,
        inline_bytes_max: 64,
        ahs_max: count,
        multicast_attachments_max: count,
        responder_resources_max: 1,
        initiator_depth_max: 1,
    };
    let attributes = DeviceAttributes {
        name: "fake_0".into(),
        node_guid: Guid(1),
        ports: 1,
        limits,
        can: Capabilities::default(),
    };
    let fast = Fast {
        post_send: post::<ffi::ibv_send_wr>,
        post_recv: post::<ffi::ibv_recv_wr>,
        post_srq_recv: post_srq,
        poll_cq,
        req_notify_cq,
    };
    Hca::new(Fake::object(()), Fake::object(()), fast, attributes)
}

impl Hca {
    /// A completion queue with these results of polls.
    pub(super) fn fake_cq(&mut self, rest: Rest, polls: Vec<Result<Vec<Wc>, c_int>>) -> Cq {
        let object = Fake::object(Polls { rest, next: polls.into() });
        let queue = CompletionQueue { object, qps: 0, datagram_qps: Vec::new() };
        Cq(self.cqs.insert(queue).ok().expect("there is room"))
    }

    pub(super) fn fake_pd(&mut self) -> Pd {
        Pd(self.pds.insert(Fake::object(())).ok().expect("there is room"))
    }

    pub(super) fn fake_ah(&mut self, pd: Pd) -> Ah {
        Ah(self.ahs.insert(AddressHandle { object: Fake::object(()), pd }).ok().expect("room"))
    }

    /// A queue pair that is ready to send.
    pub(super) fn fake_qp(&mut self, qp_type: QpType, pd: Pd, cq: Cq, qpn: Qpn) -> Qp {
        let init = QpInit {
            qp_type,
            pd,
            send_cq: cq,
            recv_cq: cq,
            srq: None,
            send_requests_max: 100,
            recv_requests_max: 100,
            send_sges_max: 2,
            recv_sges_max: 2,
            inline_bytes_max: 8,
            signal_all: false,
        };
        let (object, state) = (Fake::object(Posts::default()), QpState::Rts);
        let kept = QueuePair { object, qpn, init, state, attributes: QpAttributes::default() };
        let number = self.qps.insert(kept).ok().expect("there is room");
        self.count_qp(&init, 1);
        if qp_type == QpType::Ud {
            self.cqs.get_mut(cq.0).expect("it is live").datagram_qps.push((qpn, 3));
        }
        Qp(number)
    }

    /// The requests posted to a queue pair so far.
    pub(super) fn posts(&mut self, qp: Qp) -> &mut Posts {
        let raw = self.qps.get(qp.0).expect("it is live").object.raw();
        // SAFETY: the queue pair was made by `fake_qp`; a device is used by one thread at a time.
        unsafe { &mut Fake::of(raw).script }
    }
}

/// The fake of an object.
///
/// # Safety
/// The object must be made by this file with a script of type `S`, and there must be no other
/// reference to it.
pub(super) unsafe fn fake_of<'a, T, S>(object: &Owned<T>) -> &'a mut Fake<T, S> {
    // SAFETY: the caller's promise.
    unsafe { Fake::of(object.raw()) }
}
