//! Translation of a library's answers, with a fake library (`fake`).

mod fake;

use fake::{Polls, Posted, Posts, Rest, Wc, device, fake_of};
use ffi::ibv_wc_flags as flags;
use ffi::ibv_wc_opcode as code;
use ffi::ibv_wc_status as status;
use ibverbs_sys as ffi;
use pollux_verbs::{
    Completion, CompletionKind, CompletionStatus, Data, Destination, LKey, PostRefusal, QpType,
    RKey, RecvRequest, Remote, SendFlags, SendOp, SendRequest, Sge, Source, VerbsError, With,
};
use pollux_wire::address::{Lid, Qpn};
use pollux_wire::keys::QKey;
use rustix::io::Errno;

const RC: Qpn = Qpn(0x11);
const UD: Qpn = Qpn(0x22);

/// A successful completion, as written by the driver.
fn good(opcode: u32, qpn: Qpn) -> Wc {
    let (status, qp_num) = (status::IBV_WC_SUCCESS, qpn.0);
    Wc { wr_id: 7, status, qp_num, opcode: Some(opcode), ..Wc::default() }
}

/// The translation of [`good`], without fields of the opcode.
fn expected(kind: CompletionKind, qpn: Qpn) -> Completion {
    let status = CompletionStatus::Success;
    Completion { id: 7, status, kind, qpn, ..Completion::NOTHING }
}

/// Completions with the fields that drivers write, and their translations.
fn cases() -> Vec<(Wc, Completion)> {
    use CompletionKind as kind;
    let flag = |flag: ffi::ibv_wc_flags| Some(flag.0);
    let mut cases = vec![
        (good(code::IBV_WC_SEND, RC), expected(kind::Send, RC)),
        (good(code::IBV_WC_SEND, UD), expected(kind::Send, UD)),
        // mlx5 sets this flag in the completion of the requester, without data.
        (
            Wc { wc_flags: flag(flags::IBV_WC_WITH_IMM), ..good(code::IBV_WC_RDMA_WRITE, RC) },
            expected(kind::Write, RC),
        ),
        (good(code::IBV_WC_BIND_MW, RC), expected(kind::Bind, RC)),
        (good(code::IBV_WC_LOCAL_INV, RC), expected(kind::LocalInvalidate, RC)),
    ];
    for (opcode, kind) in [
        (code::IBV_WC_RDMA_READ, kind::Read),
        (code::IBV_WC_COMP_SWAP, kind::CompareSwap),
        (code::IBV_WC_FETCH_ADD, kind::FetchAdd),
    ] {
        let raw = Wc { byte_len: Some(8), ..good(opcode, RC) };
        cases.push((raw, Completion { bytes: 8, ..expected(kind, RC) }));
    }
    let recv = |wc_flags, imm_data, with| {
        let raw = good(code::IBV_WC_RECV, RC);
        let raw = Wc { byte_len: Some(100), wc_flags: Some(wc_flags), imm_data, ..raw };
        (raw, Completion { bytes: 100, with, ..expected(kind::Recv, RC) })
    };
    let number = 0x0102_0304_u32;
    let is_data = flags::IBV_WC_WITH_IMM.0;
    cases.push(recv(0, None, With::Nothing));
    cases.push(recv(is_data, Some(number.to_be()), With::Imm(number)));
    let is_key = flags::IBV_WC_WITH_INV.0;
    cases.push(recv(is_key, Some(number), With::Invalidated(RKey(number))));
    let (raw, said) = recv(is_data, Some(number.to_be()), With::Imm(number));
    let opcode = Some(code::IBV_WC_RECV_RDMA_WITH_IMM);
    cases.push((Wc { opcode, ..raw }, Completion { kind: kind::RecvWriteImm, ..said }));
    for (wc_flags, has_grh) in [(0, false), (flags::IBV_WC_GRH.0, true)] {
        let (raw, said) = recv(wc_flags, None, With::Nothing);
        let raw = Wc { qp_num: UD.0, from: Some((5, 6, 7, 1)), ..raw };
        let (src_qp, slid, sl, dlid_path_bits, pkey_index) = (Qpn(5), Lid(6), 7, 1, 3);
        let from = Source { src_qp, slid, sl, dlid_path_bits, pkey_index, has_grh };
        cases.push((raw, Completion { qpn: UD, from: Some(from), ..said }));
    }
    for (raw, status) in [
        (status::IBV_WC_WR_FLUSH_ERR, CompletionStatus::Flushed),
        (status::IBV_WC_RETRY_EXC_ERR, CompletionStatus::RetryExceeded),
        (status::IBV_WC_RESP_TIMEOUT_ERR, CompletionStatus::General),
    ] {
        let raw = Wc { wr_id: 9, status: raw, qp_num: UD.0, vendor_err: 1, ..Wc::default() };
        cases.push((raw, Completion { id: 9, status, qpn: UD, ..Completion::NOTHING }));
    }
    cases
}

fn check_cases(rest: Rest) {
    for (raw, expected) in cases() {
        let mut hca = device();
        let cq = hca.fake_cq(rest, vec![Ok(vec![raw])]);
        let pd = hca.fake_pd();
        hca.fake_qp(QpType::Rc, pd, cq, RC);
        hca.fake_qp(QpType::Ud, pd, cq, UD);
        let mut out = [Completion::NOTHING; 2];
        assert_eq!(hca.poll(cq, &mut out).unwrap(), 1, "{raw:?}");
        assert_eq!(out[0], expected, "{raw:?}");
        assert_eq!(out[1], Completion::NOTHING);
    }
}

/// Guards against reading garbage as length, data or source: drivers write only the fields of a
/// completion that its status and opcode define.
#[test]
fn only_defined_fields_of_a_completion_are_read() {
    check_cases(Rest::Garbage);
}

/// As above, for valgrind (`scripts/check memcheck`), which detects uses of uninitialized memory.
#[test]
fn of_a_completion_nothing_is_read_that_was_never_written() {
    check_cases(Rest::Unwritten);
}

#[test]
fn completions_keep_their_order_through_many_polls() {
    let raw =
        |wr_id| Wc { wr_id, byte_len: Some(wr_id as u32), ..good(code::IBV_WC_RDMA_READ, RC) };
    let mut hca = device();
    let polls = vec![Ok((0..70).map(raw).collect()), Ok((70..75).map(raw).collect())];
    let cq = hca.fake_cq(Rest::Garbage, polls);
    let mut out = [Completion::NOTHING; 100];
    assert_eq!(hca.poll(cq, &mut out).unwrap(), 70, "the library gives 32 at a time, then 6");
    assert_eq!(hca.poll(cq, &mut out[70..]).unwrap(), 5);
    assert_eq!(hca.poll(cq, &mut out[75..]).unwrap(), 0);
    for (nth, completion) in out[..75].iter().enumerate() {
        assert_eq!((completion.id, completion.bytes), (nth as u64, nth as u32));
    }
}

#[test]
fn completions_before_a_broken_poll_are_not_lost() {
    let mut hca = device();
    let completions = vec![good(code::IBV_WC_SEND, RC); 32];
    let cq = hca.fake_cq(Rest::Garbage, vec![Ok(completions), Err(-1)]);
    let mut out = [Completion::NOTHING; 40];
    assert_eq!(hca.poll(cq, &mut out).unwrap(), 32);
    // The system does not list the fake device, so the error is as for an unplugged one.
    assert_eq!(hca.poll(cq, &mut out), Err(VerbsError::Gone));
}

fn sge(address: u64) -> Sge {
    Sge { address, bytes: 16, lkey: LKey(0x99) }
}

#[test]
fn sends_of_any_number_arrive_in_lists_that_end() {
    let mut hca = device();
    let cq = hca.fake_cq(Rest::Garbage, Vec::new());
    let pd = hca.fake_pd();
    let qp = hca.fake_qp(QpType::Rc, pd, cq, RC);
    let sges: Vec<_> = (0..71).map(|nth| [sge(nth), sge(nth + 1000)]).collect();
    let bytes: Vec<_> = (0..71_u8).map(|nth| [nth; 8]).collect();
    let batch: Vec<_> = (0..71)
        .map(|nth| {
            let data = match nth % 3 {
                0 => Data::Inline(&bytes[nth][..nth % 9]),
                1 => Data::Sges(&sges[nth]),
                _ => Data::EMPTY,
            };
            let remote = Remote { address: nth as u64, rkey: RKey(1) };
            let op = if nth.is_multiple_of(2) { SendOp::Send } else { SendOp::Write(remote) };
            SendRequest { id: nth as u64, op, flags: SendFlags::SIGNALED, data }
        })
        .collect();
    hca.post_send(qp, &batch).unwrap();
    let posted = |nth: usize| {
        use ffi::ibv_wr_opcode::{IBV_WR_RDMA_WRITE, IBV_WR_SEND};
        let (inline, entries) = match nth % 3 {
            0 => (bytes[nth][..nth % 9].to_vec(), Vec::new()),
            1 => (Vec::new(), sges[nth].map(|sge| (sge.address, 16, 0x99)).to_vec()),
            _ => (Vec::new(), Vec::new()),
        };
        let opcode = if nth.is_multiple_of(2) { IBV_WR_SEND } else { IBV_WR_RDMA_WRITE };
        Posted { id: nth as u64, opcode, inline, sges: entries }
    };
    let expected: Vec<Vec<_>> =
        [0..32, 32..64, 64..71].map(|part| part.map(posted).collect()).into();
    assert_eq!(hca.posts(qp).lists, expected);
}

#[test]
fn a_refused_send_reports_the_number_of_posted_ones() {
    let mut hca = device();
    let cq = hca.fake_cq(Rest::Garbage, Vec::new());
    let pd = hca.fake_pd();
    let qp = hca.fake_qp(QpType::Ud, pd, cq, UD);
    let to = Destination { ah: hca.fake_ah(pd), qpn: Qpn(5), qkey: QKey(6) };
    let request = |id, data| {
        let op = SendOp::Datagram(to);
        SendRequest { id, op, flags: SendFlags::SIGNALED, data }
    };
    // Refused by the device: nine bytes exceed the inline limit.
    let mut batch: Vec<_> = (0..40).map(|id| request(id, Data::Inline(b"12345678"))).collect();
    batch[35].data = Data::Inline(b"123456789");
    let error = hca.post_send(qp, &batch).unwrap_err();
    assert_eq!((error.accepted, error.refusal), (35, PostRefusal::InlineTooLong));
    assert_eq!(hca.posts(qp).lists.iter().map(Vec::len).collect::<Vec<_>>(), [32, 3]);
    // Refused by the library: its queue is full.
    let batch: Vec<_> = (40..80).map(|id| request(id, Data::EMPTY)).collect();
    hca.posts(qp).refused = Some((74, Errno::NOMEM.raw_os_error()));
    let error = hca.post_send(qp, &batch).unwrap_err();
    assert_eq!((error.accepted, error.refusal), (34, PostRefusal::Full));
}

#[test]
fn receives_of_any_number_arrive_in_lists_that_end() {
    let mut hca = device();
    let cq = hca.fake_cq(Rest::Garbage, Vec::new());
    let pd = hca.fake_pd();
    let qp = hca.fake_qp(QpType::Rc, pd, cq, RC);
    let sges: Vec<_> = (0..40).map(|nth| [sge(nth), sge(nth + 1000), sge(0)]).collect();
    let receive = |nth: usize, count| RecvRequest { id: nth as u64, sges: &sges[nth][..count] };
    let batch: Vec<_> = (0..40).map(|nth| receive(nth, nth % 3)).collect();
    hca.post_recv(qp, &batch).unwrap();
    let posted = |nth: usize| {
        let sges = sges[nth][..nth % 3].iter().map(|sge| (sge.address, 16, 0x99)).collect();
        Posted { id: nth as u64, opcode: 0, inline: Vec::new(), sges }
    };
    let expected: Vec<Vec<_>> = [0..32, 32..40].map(|part| part.map(posted).collect()).into();
    assert_eq!(hca.posts(qp).lists, expected);

    hca.posts(qp).lists.clear();
    let batch: Vec<_> = (0..40).map(|nth| receive(nth, if nth == 33 { 3 } else { 1 })).collect();
    let error = hca.post_recv(qp, &batch).unwrap_err();
    assert_eq!((error.accepted, error.refusal), (33, PostRefusal::TooManySges));
    assert_eq!(hca.posts(qp).lists.iter().map(Vec::len).collect::<Vec<_>>(), [32, 1]);
}

/// Guards against an object of the library that has lost its handle, and against one that is
/// destroyed twice.
#[test]
fn a_failed_destroy_can_be_repeated() {
    const BUSY: i32 = Errno::BUSY.raw_os_error();
    let mut hca = device();
    let cq = hca.fake_cq(Rest::Garbage, Vec::new());
    let pd = hca.fake_pd();
    let ah = hca.fake_ah(pd);
    let qp = hca.fake_qp(QpType::Ud, pd, cq, UD);
    let is_busy = |result| matches!(result, Err(VerbsError::System { errno: BUSY, .. }));
    let is_none = |result| matches!(result, Err(VerbsError::NoSuch { .. }));
    macro_rules! ends_at_the_second_try {
        ($destroy:ident($handle:ident), $object:expr, $script:ty) => {{
            // SAFETY: the object was made by `fake` with this script, and is never freed.
            let fake = unsafe { fake_of::<_, $script>($object) };
            fake.refusals.push_back(BUSY);
            assert!(is_busy(hca.$destroy($handle)));
            assert_eq!(fake.ends, 1, "{} was tried twice", stringify!($destroy));
            assert!(hca.$destroy($handle).is_ok());
            assert_eq!(fake.ends, 2);
            assert!(is_none(hca.$destroy($handle)));
            assert_eq!(fake.ends, 2, "{} after the end", stringify!($destroy));
        }};
    }
    ends_at_the_second_try!(destroy_ah(ah), &hca.ahs.get(ah.0).unwrap().object, ());
    let number = |hca: &super::Hca| hca.cqs.get(cq.0).unwrap().datagram_qps.len();
    {
        // SAFETY: as above.
        let fake = unsafe { fake_of::<_, Posts>(&hca.qps.get(qp.0).unwrap().object) };
        fake.refusals.push_back(BUSY);
        assert!(is_busy(hca.destroy_qp(qp)));
        assert_eq!((fake.ends, number(&hca)), (1, 1));
        let by = hca.destroy_cq(cq);
        assert!(matches!(by, Err(VerbsError::Busy { .. })), "the queue pair is still there");
        assert!(hca.destroy_qp(qp).is_ok());
        assert_eq!((fake.ends, number(&hca)), (2, 0));
        assert!(is_none(hca.destroy_qp(qp)));
    }
    ends_at_the_second_try!(destroy_cq(cq), &hca.cqs.get(cq.0).unwrap().object, Polls);
    ends_at_the_second_try!(destroy_pd(pd), hca.pds.get(pd.0).unwrap(), ());
}
