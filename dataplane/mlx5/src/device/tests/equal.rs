//! WQEs of ours are those of libmlx5.
//!
//! The same requests are posted to two queues of one kind, to one by libmlx5 and to the other by
//! us, and their rings are compared. The queue pairs are in the error state, so that the adapter
//! flushes all requests and reads nothing but their control segments.

use super::super::{ConnectX, QueuePair, rings_of};
use super::{changes, is_program, run};
use crate::rings::shared::SharedRing;
use crate::wqe::{BLOCK, UNIT};
use pollux_mem::Memory;
use pollux_verbs::rng::SeededRng;
use pollux_verbs::work::Bind;
use pollux_verbs::{
    Access, AddressVector, Ah, Arm, Completion, Cq, Data, Destination, Device, GlobalRoute, LKey,
    MemoryRegion, MemoryWindow, Pd, Qp, QpAttributes, QpInit, QpState, QpType, RKey, RecvRequest,
    Remote, SendFlags, SendOp, SendRequest, Sge, Srq,
};
use pollux_wire::address::{Gid, Lid, Qpn};
use pollux_wire::keys::QKey;
use std::time::Duration;

const BYTES: usize = 4096;
const COMPLETIONS: u32 = 64;
/// Posts to each pair of queues: several laps through their rings.
const POSTS: usize = 150;

/// Objects of one device, in pairs: ours, and those that libmlx5 uses.
struct Pairs {
    device: ConnectX,
    pd: Pd,
    cqs: [Cq; 2],
    region: MemoryRegion,
    window: MemoryWindow,
    ahs: [Ah; 2],
    rng: SeededRng,
}

/// Who posts.
#[derive(Clone, Copy, Debug)]
enum By {
    Us,
    Libmlx5,
}

const BOTH: [By; 2] = [By::Us, By::Libmlx5];

impl Pairs {
    fn new() -> Self {
        let mut device = ConnectX::open("mlx5_0", 1).unwrap();
        let pd = device.create_pd().unwrap();
        let cqs = [device.create_cq(COMPLETIONS), device.hca.create_cq(COMPLETIONS)];
        let memory = Memory::private(BYTES).unwrap();
        let region = device.register(pd, &memory, Access::ALL).unwrap();
        let window = device.create_window(pd).unwrap();
        let path = AddressVector { dlid: Lid(9), sl: 3, port: 1, ..AddressVector::default() };
        let dgid = Gid([7; 16]);
        let route = GlobalRoute { dgid, flow_label: 5, hop_limit: 6, ..GlobalRoute::default() };
        let ahs = [path, AddressVector { grh: Some(route), ..path }]
            .map(|path| device.create_ah(pd, &path).unwrap());
        let (cqs, rng) = (cqs.map(Result::unwrap), SeededRng::new(1));
        Self { device, pd, cqs, region, window, ahs, rng }
    }

    fn of(&mut self, by: By) -> &mut dyn Device {
        match by {
            By::Us => &mut self.device,
            By::Libmlx5 => &mut self.device.hca,
        }
    }

    fn qp(&mut self, by: By, qp_type: QpType, signal_all: bool) -> (Qp, QpInit) {
        let init = QpInit {
            qp_type,
            pd: self.pd,
            send_cq: self.cqs[by as usize],
            recv_cq: self.cqs[by as usize],
            srq: None,
            send_requests_max: 8,
            recv_requests_max: 8,
            send_sges_max: 4,
            recv_sges_max: 3,
            inline_bytes_max: 200,
            signal_all,
        };
        let qp = self.of(by).create_qp(&init).unwrap();
        // libmlx5 has no room for sends before RTS.
        for change in changes(qp_type, (Lid(9), Qpn(9))) {
            self.of(by).modify_qp(qp, &change).unwrap();
        }
        let failed = QpAttributes { state: Some(QpState::Err), ..QpAttributes::default() };
        self.of(by).modify_qp(qp, &failed).unwrap();
        (qp, init)
    }

    /// The rings of a queue pair, whoever uses them.
    fn rings(&mut self, qp: Qp, init: &QpInit) -> QueuePair {
        rings_of::queue_pair(&self.device.hca, qp, init, &mut Vec::new()).unwrap()
    }

    /// Waits for so many completions.
    fn drain(&mut self, by: By, mut count: usize) {
        let cq = self.cqs[by as usize];
        let mut out = [Completion::NOTHING; 8];
        while count > 0 {
            let done = self.of(by).poll(cq, &mut out).unwrap();
            count = count.checked_sub(done).expect("no more than were posted");
            if done == 0 {
                self.of(by).arm(cq, Arm::Any).unwrap();
                let done = self.of(by).poll(cq, &mut out).unwrap();
                count = count.checked_sub(done).expect("no more than were posted");
                if done == 0 {
                    // The device counts notifications of its own queues.
                    self.device.wait(Duration::from_secs(1)).unwrap();
                }
            }
        }
    }

    fn draw<T: Copy>(&mut self, of: &[T]) -> T {
        of[self.rng.below(of.len() as u64) as usize]
    }

    fn sges(&mut self, max: u64) -> Vec<Sge> {
        let count = self.rng.below(max + 1);
        let MemoryRegion { address, lkey, .. } = self.region;
        let one = |nth: u64, bytes| Sge { address: address + nth * 64, bytes, lkey };
        (0..count).map(|nth| one(nth, self.draw(&[0, 1, 8, 64]))).collect()
    }

    fn op(&mut self, qp_type: QpType) -> SendOp {
        let MemoryRegion { address, rkey, lkey, .. } = self.region;
        let (remote, imm) = (Remote { address: address + 8, rkey }, self.rng.next_u64() as u32);
        if qp_type == QpType::Ud {
            let (ah, qpn) = (self.draw(&self.ahs.clone()), Qpn(imm & 0xff_ffff));
            let to = Destination { ah, qpn, qkey: QKey(imm) };
            return self.draw(&[SendOp::Datagram(to), SendOp::DatagramImm(to, imm)]);
        }
        let window = self.window.rkey;
        let (access, bytes) = (Access::REMOTE_READ | Access::REMOTE_WRITE, self.draw(&[0, 64]));
        let bind = Bind { window, rkey: RKey(window.0 ^ 5), region: lkey, address, bytes, access };
        let (compare, swap, add) = (1, u64::from(imm), 3);
        let mut all = vec![
            SendOp::Send,
            SendOp::SendImm(imm),
            SendOp::Write(remote),
            SendOp::WriteImm(remote, imm),
            SendOp::Bind(bind),
            SendOp::LocalInvalidate(window),
        ];
        if qp_type == QpType::Rc {
            all.push(SendOp::SendInvalidate(RKey(imm)));
            all.push(SendOp::Read(remote));
            all.push(SendOp::CompareSwap { remote, compare, swap });
            all.push(SendOp::FetchAdd { remote, add });
        }
        self.draw(&all)
    }
}

/// Bytes of a WQE around the end of its ring, without the QPNs, and without what libmlx5 leaves as
/// it was: the second operand of an addition, the padding after inline data, and fields of an mkey
/// that the mask leaves out.
fn wqe(ring: &QueuePair, at: usize, bytes: usize, op: &SendOp, data: Data<'_>) -> Vec<u8> {
    let memory = ring.send.memory();
    let mut all = memory.copy();
    all.rotate_left(at);
    all.truncate(bytes);
    all[4..7].fill(0);
    match (op, data) {
        (SendOp::FetchAdd { .. }, _) => all[40..48].fill(0),
        (SendOp::Bind(Bind { bytes: 1.., .. }), _) => {
            for unwritten in [65..66, 67..71, 72..80, 96..128] {
                all[unwritten].fill(0);
            }
        }
        (SendOp::Bind(_) | SendOp::LocalInvalidate(_), _) => {
            for unwritten in [65..68, 72..128] {
                all[unwritten].fill(0);
            }
        }
        (_, Data::Inline(inline @ [_, ..])) => {
            let padding = (4 + inline.len()).next_multiple_of(UNIT) - (4 + inline.len());
            all[bytes - padding..].fill(0);
        }
        _ => {}
    }
    all
}

fn compare_sends(qp_type: QpType, signal_all: bool) {
    let mut pairs = Pairs::new();
    let qps = BOTH.map(|by| pairs.qp(by, qp_type, signal_all));
    let rings = qps.map(|(qp, init)| pairs.rings(qp, &init));
    let mut at = 0;
    for nth in 0..POSTS {
        let op = pairs.op(qp_type);
        let flags = pairs.rng.below(8);
        let flags = [SendFlags::SIGNALED, SendFlags::SOLICITED, SendFlags::FENCE]
            .iter()
            .enumerate()
            .filter(|(bit, _)| flags >> bit & 1 != 0)
            .fold(SendFlags::NONE, |all, (_, flag)| all | *flag);
        let answer = [Sge { address: pairs.region.address, bytes: 8, lkey: pairs.region.lkey }];
        let sges = pairs.sges(if qp_type == QpType::Ud { 4 } else { 3 });
        let inline = vec![nth as u8 | 1; pairs.draw(&[0, 1, 12, 13, 28, 60, 64, 77, 200])];
        let may_be_inline = !op.is_answered() && pairs.rng.happens(500_000);
        let data = match op {
            SendOp::CompareSwap { .. } | SendOp::FetchAdd { .. } => Data::Sges(&answer),
            SendOp::Bind(_) | SendOp::LocalInvalidate(_) => Data::EMPTY,
            _ if may_be_inline => Data::Inline(&inline),
            _ => Data::Sges(&sges),
        };
        let request = SendRequest { id: nth as u64, op, flags, data };
        for (by, (qp, _)) in BOTH.into_iter().zip(qps) {
            let posted = pairs.of(by).post_send(qp, &[request]);
            assert_eq!(posted, Ok(()), "{nth}: {request:?} of {qp_type} by {by:?}");
            pairs.drain(by, 1);
        }
        let memory = rings[0].send.memory().copy();
        let bytes = usize::from(memory[at + 7] & 0x3f) * UNIT;
        let [ours, theirs] = rings.each_ref().map(|ring| wqe(ring, at, bytes, &op, data));
        assert_eq!(ours, theirs, "{nth}: {request:?} of {qp_type}");
        at = (at + bytes.next_multiple_of(BLOCK)) % memory.len();
    }
}

fn compare_receives() {
    let mut pairs = Pairs::new();
    let qps = BOTH.map(|by| pairs.qp(by, QpType::Rc, false));
    let rings = qps.map(|(qp, init)| pairs.rings(qp, &init));
    for nth in 0..POSTS {
        let sges = pairs.sges(3);
        for (by, (qp, _)) in BOTH.into_iter().zip(qps) {
            pairs.of(by).post_recv(qp, &[RecvRequest { id: nth as u64, sges: &sges }]).unwrap();
            pairs.drain(by, 1);
        }
        let [ours, theirs] =
            rings.each_ref().map(|ring| ring.recv.as_ref().unwrap().memory().copy());
        assert_eq!(ours, theirs, "{nth}: {sges:?}");
    }
}

fn compare_shared_receives() {
    let mut pairs = Pairs::new();
    let pd = pairs.pd;
    let srqs: [Srq; 2] = BOTH.map(|by| pairs.of(by).create_srq(pd, 16, 3).unwrap());
    let rings: [SharedRing; 2] =
        srqs.map(|srq| rings_of::shared_ring(&pairs.device.hca, srq, 3).unwrap());
    for nth in 0..16 {
        // Not without bytes: libmlx5 writes such an entry here, which is one of 2^31 bytes.
        let mut sges = pairs.sges(3);
        sges.iter_mut().for_each(|sge| sge.bytes |= 1);
        for (by, srq) in BOTH.into_iter().zip(srqs) {
            pairs.of(by).post_srq_recv(srq, &[RecvRequest { id: nth, sges: &sges }]).unwrap();
        }
        let [ours, theirs] = rings.each_ref().map(|ring| ring.memory().copy());
        assert_eq!(ours, theirs, "{nth}: {sges:?}");
    }
    let lkey = LKey(0x100);
    assert_ne!(pairs.region.lkey, lkey, "that of the terminator");
}

#[test]
fn program_that_compares_rings() {
    if !is_program() {
        return;
    }
    for qp_type in [QpType::Rc, QpType::Uc, QpType::Ud] {
        for signal_all in [false, true] {
            compare_sends(qp_type, signal_all);
        }
    }
    compare_receives();
    compare_shared_receives();
}

#[test]
fn wqes_are_those_of_libmlx5() {
    run("equal::program_that_compares_rings");
}
