//! What the adapter does with a program that is wrong or hostile.

mod garbage;
mod program;
mod stores;

use super::async_events::{CQ_ERR, DEVICE_FATAL};

use crate::abi::{self, command};
use crate::cqe::CQE_BYTES;
use crate::wqe::opcode;
use pollux_fabric::link::threads::Clock;
use pollux_hca::Link;
use pollux_node::fabric::Embedded;
use pollux_verbs::Device;
use pollux_verbs::rng::SeededRng;
use pollux_verbs::time::Time;
use pollux_wire::mad::smp::PortState;
use program::{Cqe, LID, Program, ProgramCq, ProgramQp, control, map, segment, send};
use rustix::io::Errno;
use rustix::mm::ProtFlags;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;
use zerocopy::IntoBytes;

const RC: u8 = 2;
const UD: u8 = 4;
const ERR: u8 = 6;
const SENT: u8 = 0;
const RECEIVED: u8 = 2;
const SEND_ERROR: u8 = 13;
const RECV_ERROR: u8 = 14;
const FLUSHED: u8 = 5;

/// Two connected queue pairs of a program, with a completion queue each, and a region.
struct Pair {
    program: Program,
    pd: u32,
    cqs: [ProgramCq; 2],
    qps: [ProgramQp; 2],
    buffer: u64,
    lkey: u32,
}

const BUFFER_BYTES: u64 = 4096;

impl Pair {
    fn new(cq_entries: u32) -> Self {
        let mut program = Program::new();
        let pd = program.pd();
        let cqs = [0, 1].map(|_| program.cq(cq_entries));
        let qps = cqs.map(|cq| program.qp(RC, pd, &cq, 64));
        program.connect(&qps[0], qps[1].qpn).unwrap();
        program.connect(&qps[1], qps[0].qpn).unwrap();
        let buffer = program.take(BUFFER_BYTES);
        let (_, lkey) = program.region(pd, buffer, BUFFER_BYTES);
        Self { program, pd, cqs, qps, buffer, lkey }
    }

    fn poll(&mut self, end: usize) -> Option<Cqe> {
        self.program.poll(&mut self.cqs[end])
    }

    /// Whether a message arrives with its content.
    fn delivers(&mut self) -> bool {
        let Self { program, qps, buffer, lkey, .. } = self;
        program.store(*buffer, b"sent here");
        program.store(*buffer + 1024, &[0; 9]);
        program.receive(&mut qps[1], *buffer + 1024, 64, *lkey);
        let wqe = send(&qps[0], *buffer, 9, *lkey);
        program.post(&mut qps[0], &wqe);
        program.turns();
        let kinds = [0, 1].map(|end| self.poll(end).map(|cqe| cqe.kind));
        let content: [u8; 9] = self.program.load(self.buffer + 1024);
        kinds == [Some(SENT), Some(RECEIVED)] && content == *b"sent here"
    }
}

#[test]
fn a_message_arrives() {
    assert!(Pair::new(16).delivers());
}

#[test]
fn a_wrong_send_wqe_is_an_error_completion_and_a_line() {
    type Change = fn(&mut Vec<u8>);
    let changes: [(&str, Change); 7] = [
        ("index", |wqe| wqe[2] ^= 1),
        ("queue pair", |wqe| wqe[6] ^= 1),
        ("no size", |wqe| wqe[7] = 0),
        ("a size beyond the record", |wqe| wqe[7] = 63),
        ("opcode", |wqe| wqe[3] = 0x77),
        ("too short for its opcode", |wqe| wqe[3] = opcode::CMP_SWAP),
        ("inline data beyond its end", |wqe| wqe[16..20].copy_from_slice(&[0x80, 0, 3, 0])),
    ];
    for (what, change) in changes {
        let mut pair = Pair::new(16);
        let mut wqe = send(&pair.qps[0], pair.buffer, 9, pair.lkey);
        change(&mut wqe);
        pair.program.post(&mut pair.qps[0], &wqe);
        pair.program.turns();
        let cqe = pair.poll(0).unwrap_or_else(|| panic!("{what}: no completion"));
        assert_eq!((cqe.kind, cqe.qpn, cqe.index), (SEND_ERROR, pair.qps[0].qpn, 0), "{what}");
        assert_eq!(pair.program.hca.faults_reported, 1, "{what}");
        assert_eq!(pair.program.state(&pair.qps[0]), ERR, "{what}");
        assert_eq!(pair.poll(0), None, "{what}");
    }
}

#[test]
fn data_that_is_wrong_is_an_error_completion() {
    const LOCAL_PROTECTION: u8 = 4;
    const LOCAL_LENGTH: u8 = 1;
    type Wqe = fn(&Pair) -> Vec<u8>;
    let wrong: [(&str, u8, Wqe); 4] = [
        ("key", LOCAL_PROTECTION, |pair| send(&pair.qps[0], pair.buffer, 9, pair.lkey + 0x100)),
        ("address", LOCAL_PROTECTION, |pair| {
            send(&pair.qps[0], pair.buffer + BUFFER_BYTES, 9, pair.lkey)
        }),
        ("length", LOCAL_PROTECTION, |pair| send(&pair.qps[0], pair.buffer, 1 << 20, pair.lkey)),
        ("atomic of two bytes", LOCAL_LENGTH, |pair| {
            let head = control(opcode::FETCH_ADD, 0, pair.qps[0].qpn, 4);
            [head, vec![0; 32], segment(pair.buffer, 2, pair.lkey)].concat()
        }),
    ];
    for (what, syndrome, wqe) in wrong {
        let mut pair = Pair::new(16);
        let wqe = wqe(&pair);
        pair.program.post(&mut pair.qps[0], &wqe);
        pair.program.turns();
        let cqe = pair.poll(0).unwrap_or_else(|| panic!("{what}: no completion"));
        assert_eq!((cqe.kind, cqe.syndrome), (SEND_ERROR, syndrome), "{what}");
    }
}

/// A queue pair that failed does not keep others from their work, and works again after RESET.
#[test]
fn a_wrong_wqe_fails_its_own_queue_pair_until_a_reset() {
    let mut pair = Pair::new(16);
    let mut other = pair.program.qp(RC, pair.pd, &pair.cqs[0], 64);
    pair.program.connect(&other, other.qpn).unwrap();
    let wqe = control(0x77, 0, other.qpn, 1);
    pair.program.post(&mut other, &wqe);
    pair.program.turns();
    assert_eq!(pair.poll(0).map(|cqe| cqe.kind), Some(SEND_ERROR));
    assert!(pair.delivers());
    let reset = abi::ModifyQp { qp_handle: other.handle, attr_mask: 1, ..Default::default() };
    pair.program.modify(reset).unwrap();
    other.sent = 0;
    pair.program.store(other.record, &[0; 8]);
    pair.program.connect(&other, other.qpn).unwrap();
    pair.program.receive(&mut other, pair.buffer, 64, pair.lkey);
    let wqe = send(&other, pair.buffer, 9, pair.lkey);
    pair.program.post(&mut other, &wqe);
    pair.program.turns();
    let mut kinds = [0, 1].map(|_| pair.poll(0).map(|cqe| cqe.kind));
    kinds.sort_unstable();
    assert_eq!(kinds, [Some(SENT), Some(RECEIVED)]);
}

#[test]
fn a_completion_queue_that_is_never_polled_overruns() {
    let mut pair = Pair::new(4);
    for count in 1..=5 {
        pair.program.receive(&mut pair.qps[1], pair.buffer, 64, pair.lkey);
        let wqe = send(&pair.qps[0], pair.buffer, 9, pair.lkey);
        pair.program.post(&mut pair.qps[0], &wqe);
        pair.program.turns();
        // Those at the other end are polled.
        assert_eq!(pair.poll(0).map(|cqe| cqe.kind), Some(SENT), "{count}");
        let expected: &[u32] = if count <= 4 { &[] } else { &[CQ_ERR] };
        assert_eq!(pair.program.async_events(), expected, "{count}");
    }
    assert_eq!(pair.program.state(&pair.qps[1]), ERR);
    // The entries that were there are still the program's.
    let kinds = [(); 5].map(|()| pair.poll(1).map(|cqe| cqe.kind));
    assert_eq!(kinds, [Some(RECEIVED), Some(RECEIVED), Some(RECEIVED), Some(RECEIVED), None]);
}

#[test]
fn memory_that_a_program_may_not_use_is_refused() {
    let mut program = Program::new();
    let pd = program.pd();
    let (good, record) = (program.take(4096), program.take(8));
    let read_only = map(4096, ProtFlags::READ);
    let nothing = map(4096, ProtFlags::empty());
    // No address of a program on any machine.
    let beyond = 0x7fff_ffff_0000_0000;
    const LOCAL_WRITE: u32 = 1;
    let (length, pd_handle) = (4096, pd);
    let mut register = |start, access_flags| {
        let body = abi::RegMr { start, length, hca_va: start, pd_handle, access_flags };
        program.command(command::REG_MR, &[body.as_bytes()], 12).map(drop)
    };
    assert_eq!(register(good, LOCAL_WRITE), Ok(()));
    assert_eq!(register(read_only, 0), Ok(()));
    for (start, access) in [(read_only, LOCAL_WRITE), (nothing, 0), (beyond, 0)] {
        assert_eq!(register(start, access), Err(Errno::FAULT), "{start:#x} {access}");
    }
    let mut cq = |buf_addr, db_addr| {
        let body = abi::CreateCq { cqe: 63, comp_channel: -1, ..Default::default() };
        let own = abi::CreateCqDriver {
            buf_addr,
            db_addr,
            cqe_size: CQE_BYTES as u32,
            ..Default::default()
        };
        program.command(command::CREATE_CQ, &[body.as_bytes(), own.as_bytes()], 16)
    };
    for (ring, record) in
        [(read_only, record), (nothing, record), (good, nothing), (beyond, record)]
    {
        assert_eq!(cq(ring, record), Err(Errno::FAULT), "{ring:#x} {record:#x}");
    }
    let answer = cq(good, record).unwrap();
    let number = u32::from_ne_bytes(answer[..4].try_into().unwrap());
    let mut qp = |buf_addr, db_addr| {
        let body = abi::CreateQp {
            pd_handle: pd,
            send_cq_handle: number,
            recv_cq_handle: number,
            qp_type: RC,
            ..Default::default()
        };
        let own = abi::CreateQpDriver {
            buf_addr,
            db_addr,
            sq_wqe_count: 32,
            rq_wqe_count: 32,
            rq_wqe_shift: 6,
            ..Default::default()
        };
        program.command(command::CREATE_QP, &[body.as_bytes(), own.as_bytes()], 72).map(drop)
    };
    for (ring, record) in [(nothing, record), (good, nothing), (beyond, record)] {
        assert_eq!(qp(ring, record), Err(Errno::FAULT), "{ring:#x} {record:#x}");
    }
    assert_eq!(qp(good, record), Ok(()));
    let mut srq = |buf_addr, db_addr| {
        let (max_wr, max_sge) = (63, 1);
        let body = abi::CreateSrq { pd_handle: pd, max_wr, max_sge, ..Default::default() };
        let own = abi::CreateSrqDriver { buf_addr, db_addr, ..Default::default() };
        program.command(command::CREATE_SRQ, &[body.as_bytes(), own.as_bytes()], 24).map(drop)
    };
    assert_eq!(srq(nothing, record), Err(Errno::FAULT));
    assert_eq!(srq(good, nothing), Err(Errno::FAULT));
    assert_eq!(srq(good, record), Ok(()));
}

#[test]
fn a_region_does_not_move_to_memory_that_a_program_may_not_use() {
    let mut program = Program::new();
    let pd_handle = program.pd();
    let (first, second) = (program.take(4096), program.take(4096));
    let (mr_handle, _) = program.region(pd_handle, first, 4096);
    const TRANSLATION: u32 = 1;
    let mut moved = |start| {
        let flags = TRANSLATION;
        let body = abi::ReregMr {
            mr_handle,
            flags,
            start,
            length: 4096,
            hca_va: start,
            ..Default::default()
        };
        program.command(command::REREG_MR, &[body.as_bytes()], 8).map(drop)
    };
    assert_eq!(moved(map(4096, ProtFlags::empty())), Err(Errno::FAULT));
    assert_eq!(moved(second), Ok(()));
}

#[test]
fn ten_thousand_regions_are_registered_and_end_with_their_context() {
    const REGIONS: u64 = 10_000;
    let mut program = Program::new();
    let pd = program.pd();
    let start = program.take(REGIONS * 4096);
    let regions: Vec<_> =
        (0..REGIONS).map(|nth| program.region(pd, start + nth * 4096, 4096)).collect();
    let mut keys: Vec<_> = regions.iter().map(|(_, lkey)| *lkey).collect();
    keys.sort_unstable();
    keys.dedup();
    assert_eq!(keys.len() as u64, REGIONS);
    for (handle, _) in &regions[..100] {
        program.command(command::DEREG_MR, &[handle.as_bytes()], 0).unwrap();
    }
    let again = program.command(command::DEREG_MR, &[regions[0].0.as_bytes()], 0);
    assert_eq!(again, Err(Errno::INVAL));
    program.hca.close(program.context);
    assert!(program.has_no_objects());
}

/// A program with one of each object, as handles with the commands that destroy them.
fn one_of_each(pair: &mut Pair) -> Vec<(u32, u32)> {
    let program = &mut pair.program;
    let (ring, record) = (program.take(8192), program.take(8));
    let srq = abi::CreateSrq { pd_handle: pair.pd, max_wr: 63, max_sge: 1, ..Default::default() };
    let own = abi::CreateSrqDriver { buf_addr: ring, db_addr: record, ..Default::default() };
    let [srq, _] = program.create(command::CREATE_SRQ, &[srq.as_bytes(), own.as_bytes()], 24);
    let window = abi::AllocMw { pd_handle: pair.pd, mw_type: 1, reserved: [0; 3] };
    let [window, _] = program.create(command::ALLOC_MW, &[window.as_bytes()], 8);
    let (region, _) = program.region(pair.pd, pair.buffer, BUFFER_BYTES);
    // A datagram has an address handle made.
    let mut datagrams = program.qp(UD, pair.pd, &pair.cqs[0], 64);
    program.connect(&datagrams, 0).unwrap();
    let mut address = vec![0; 48];
    address[10..12].copy_from_slice(&[0x44, 0x55]);
    address[14..16].copy_from_slice(&LID.to_be_bytes());
    let data = segment(pair.buffer, 9, pair.lkey);
    let wqe = [control(opcode::SEND, 0, datagrams.qpn, 5), address, data].concat();
    program.post(&mut datagrams, &wqe);
    program.turns();
    assert_eq!(program.hca.handles.len(), 1);
    let mut all = vec![
        (command::DESTROY_SRQ, srq),
        (command::DEALLOC_MW, window),
        (command::DEREG_MR, region),
        (command::DEALLOC_PD, pair.pd),
        (command::DESTROY_QP, datagrams.handle),
    ];
    all.extend(pair.qps.map(|qp| (command::DESTROY_QP, qp.handle)));
    all.extend(pair.cqs.map(|cq| (command::DESTROY_CQ, cq.handle)));
    let regions: Vec<_> = program.hca.regions.keys().map(|key| (command::DEREG_MR, *key)).collect();
    all.extend(regions.into_iter().filter(|(_, key)| *key != region));
    all
}

fn destroy<L: Link>(program: &mut Program<L>, number: u32, handle: u32) -> Result<(), Errno> {
    let answer = match number {
        command::DESTROY_CQ => 8,
        command::DESTROY_QP | command::DESTROY_SRQ => 4,
        _ => 0,
    };
    let padding: &[u8] = if answer > 0 { &[0; 4] } else { &[] };
    program.command(number, &[handle.as_bytes(), padding], answer).map(drop)
}

#[test]
fn objects_end_in_any_order_and_those_in_use_are_busy() {
    for seed in 0..50 {
        let mut rng = SeededRng::new(seed);
        let mut pair = Pair::new(16);
        let mut left = one_of_each(&mut pair);
        let mut busy = 0;
        while !left.is_empty() {
            let nth = rng.below(left.len() as u64) as usize;
            let (number, handle) = left[nth];
            match destroy(&mut pair.program, number, handle) {
                Ok(()) => _ = left.swap_remove(nth),
                Err(Errno::BUSY) => busy += 1,
                Err(error) => panic!("seed {seed}: command {number}: {error}"),
            }
            assert!(busy < 10_000, "seed {seed}: {left:?} stay busy");
        }
        assert!(pair.program.has_no_objects(), "seed {seed}");
        pair.program.hca.close(pair.program.context);
        assert_eq!(pair.program.hca.contexts.iter().count(), 0);
    }
}

#[test]
fn a_context_that_is_closed_takes_all_with_it() {
    let mut pair = Pair::new(16);
    let objects = one_of_each(&mut pair);
    let datagrams = objects.iter().find(|(number, _)| *number == command::DESTROY_QP).unwrap().1;
    let mut gid = [0; 16];
    gid[..2].copy_from_slice(&[0xff, 0x12]);
    let group = abi::AttachMcast { gid, qp_handle: datagrams, mlid: 0xc001, reserved: 0 };
    let program = &mut pair.program;
    program.command(command::ATTACH_MCAST, &[group.as_bytes()], 0).unwrap();
    assert_eq!(destroy(program, command::DESTROY_QP, datagrams), Err(Errno::BUSY));
    program.hca.close(program.context);
    assert!(program.has_no_objects());
    // The adapter has none either: none of them is found by the next context.
    let (context, _events, _file) = program.hca.open().unwrap();
    program.context = context;
    for (number, handle) in objects {
        assert_eq!(destroy(program, number, handle), Err(Errno::INVAL), "command {number}");
    }
}

#[test]
fn a_handle_of_another_context_is_none() {
    let mut pair = Pair::new(16);
    let objects = one_of_each(&mut pair);
    let program = &mut pair.program;
    let own = program.context;
    let (other, ..) = program.hca.open().unwrap();
    program.context = other;
    for (number, handle) in objects {
        assert_eq!(destroy(program, number, handle), Err(Errno::INVAL), "command {number}");
    }
    let reset = abi::ModifyQp { qp_handle: pair.qps[0].handle, attr_mask: 1, ..Default::default() };
    assert_eq!(program.modify(reset), Err(Errno::INVAL));
    let window = abi::AllocMw { pd_handle: pair.pd, mw_type: 1, reserved: [0; 3] };
    let window = program.command(command::ALLOC_MW, &[window.as_bytes()], 8);
    assert_eq!(window, Err(Errno::INVAL));
    program.hca.close(other);
    program.context = own;
    assert!(pair.delivers());
}

#[test]
fn a_receive_that_is_posted_to_a_failed_queue_pair_is_flushed() {
    let mut pair = Pair::new(16);
    let wqe = control(0x77, 0, pair.qps[1].qpn, 1);
    pair.program.post(&mut pair.qps[1], &wqe);
    pair.program.turns();
    assert_eq!(pair.poll(1).map(|cqe| cqe.kind), Some(SEND_ERROR));
    pair.program.receive(&mut pair.qps[1], pair.buffer, 64, pair.lkey);
    pair.program.turns();
    let cqe = pair.poll(1).map(|cqe| (cqe.kind, cqe.syndrome));
    assert_eq!(cqe, Some((RECV_ERROR, FLUSHED)));
}

/// The fabric's end is that of the adapter: requests are flushed, and all that is left is to
/// destroy what there is.
#[test]
fn a_program_survives_the_end_of_its_fabric() {
    const WAITS_MAX: u32 = 10_000;
    let fabric = Embedded::start("single:1").unwrap();
    let read = AtomicU64::new(0);
    let clock: Clock =
        Arc::new(move || Time::START + Duration::from_micros(read.fetch_add(1, Ordering::Relaxed)));
    let mut device = pollux_fabric::process::open(&fabric.port("host1"), clock).unwrap();
    device.link.end_with_server();
    while device.adapter.port().state != PortState::ACTIVE {
        device.wait(Duration::from_millis(1)).unwrap();
    }
    let mut program = Program::of(device);
    let pd = program.pd();
    let mut cq = program.cq(16);
    let mut qp = program.qp(RC, pd, &cq, 64);
    program.connect(&qp, 0x99).unwrap();
    let buffer = program.take(4096);
    let (_, lkey) = program.region(pd, buffer, 4096);
    program.receive(&mut qp, buffer, 64, lkey);
    program.turns();
    drop(fabric);
    let mut events = Vec::new();
    for _ in 0..WAITS_MAX {
        program.hca.device.link.fall_asleep();
        program.turns();
        events.extend(program.async_events());
        if program.hca.is_removed {
            break;
        }
        std::thread::yield_now();
    }
    assert!(events.contains(&DEVICE_FATAL), "{events:?}");
    let flushed = |cqe: Cqe| (cqe.kind, cqe.syndrome);
    assert_eq!(program.poll(&mut cq).map(flushed), Some((RECV_ERROR, FLUSHED)));
    // A later request is flushed as well, and a command is refused.
    let wqe = send(&qp, buffer, 9, lkey);
    program.post(&mut qp, &wqe);
    program.turns();
    assert_eq!(program.poll(&mut cq).map(flushed), Some((SEND_ERROR, FLUSHED)));
    assert_eq!(program.command(command::ALLOC_PD, &[], 8), Err(Errno::IO));
    assert!(program.hca.device.wake_source().unwrap().longest > Duration::from_secs(1));
    for (number, handle) in [(command::DESTROY_QP, qp.handle), (command::DESTROY_CQ, cq.handle)] {
        assert_eq!(destroy(&mut program, number, handle), Ok(()));
    }
    program.hca.close(program.context);
    assert!(program.has_no_objects());
}
