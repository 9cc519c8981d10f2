//! Rings in ordinary memory, where the tests play the adapter.

use super::completion::CompletionRing;
use super::receive::{RecvLimits, RecvRing};
use super::send::{SendLimits, SendRing};
use super::shared::{SharedList, SharedRing};
use crate::cqe::opcode;
use crate::memory::{ArmRegister, Record, RingMemory, SendRegister};
use crate::wqe::{BLOCK, UNIT};
use pollux_verbs::{
    Arm, Data, LKey, PostRefusal, RKey, RecvRequest, SendFlags, SendOp, SendRequest, Sge,
};
use std::ffi::c_void;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

/// The memory that an adapter would access.
struct Shared(Box<[AtomicU64]>);

impl Shared {
    fn new(bytes: usize) -> Self {
        Self((0..bytes / 8).map(|_| AtomicU64::new(0)).collect())
    }

    fn base(&self) -> *mut c_void {
        self.0.as_ptr().cast::<c_void>().cast_mut()
    }

    fn ring(&self) -> RingMemory {
        // SAFETY: each test has one ring in its memory, and ends before it.
        unsafe { RingMemory::new(self.base(), 8 * self.0.len()) }.unwrap()
    }

    fn record(&self) -> Record {
        // SAFETY: as above.
        unsafe { Record::new(self.base().cast()) }.unwrap()
    }

    fn bytes(&self, at: usize, count: usize) -> Vec<u8> {
        let all: Vec<u8> =
            self.0.iter().flat_map(|word| word.load(Relaxed).to_ne_bytes()).collect();
        all[at..at + count].to_vec()
    }

    fn be32(&self, at: usize) -> u32 {
        u32::from_be_bytes(self.bytes(at, 4).try_into().unwrap())
    }

    fn set(&self, at: usize, byte: u8) {
        let mut bytes = self.0[at / 8].load(Relaxed).to_ne_bytes();
        bytes[at % 8] = byte;
        self.0[at / 8].store(u64::from_ne_bytes(bytes), Relaxed);
    }
}

/// Bytes of half a register.
const HALF: usize = 256;

struct Sender {
    ring: SendRing,
    register: SendRegister,
    memory: Shared,
    record: Shared,
    page: Shared,
}

impl Sender {
    fn new(blocks: usize, requests_max: u32, half: usize) -> Self {
        let (memory, record) = (Shared::new(blocks * BLOCK), Shared::new(8));
        let page = Shared::new(2 * HALF);
        let limits = SendLimits { requests_max, signal_all: false };
        let ring = SendRing::new(memory.ring(), record.record(), 0x45, limits).unwrap();
        // SAFETY: as above.
        let register = unsafe { SendRegister::new(page.base(), half as u32) }.unwrap();
        Self { ring, register, memory, record, page }
    }

    fn post(&mut self, id: u64, op: SendOp, data: Data<'_>) -> Result<(), PostRefusal> {
        self.ring.write(&SendRequest { id, op, flags: SendFlags::SIGNALED, data }, None)?;
        self.ring.ring(true, &mut self.register);
        Ok(())
    }
}

const fn sge(bytes: u32) -> Sge {
    Sge { address: 0x1000, bytes, lkey: LKey(7) }
}

#[test]
fn a_doorbell_is_in_the_record_before_it_is_rung() {
    let mut sender = Sender::new(4, 4, 0);
    sender.post(1, SendOp::Send, Data::EMPTY).unwrap();
    assert_eq!((sender.record.be32(0), sender.record.be32(4)), (0, 1));
    // Opcode, index, QPN and length.
    assert_eq!((sender.page.be32(0), sender.page.be32(4)), (0x0a, 0x4501));
    sender.post(1, SendOp::Send, Data::EMPTY).unwrap();
    assert_eq!((sender.record.be32(4), sender.page.be32(0)), (2, 0x10a));
}

#[test]
fn a_wqe_goes_to_each_half_of_the_register_in_turn() {
    let mut sender = Sender::new(8, 8, HALF);
    for (nth, half) in [(0, 0), (1, HALF), (2, 0)] {
        let bytes = [nth; 70];
        sender.post(1, SendOp::Send, Data::Inline(&bytes)).unwrap();
        let wqe = sender.memory.bytes(usize::from(nth) * 2 * BLOCK, 2 * BLOCK);
        assert_eq!(sender.page.bytes(half, 2 * BLOCK), wqe);
        assert_eq!((wqe[20], wqe[20 + 69]), (nth, nth));
    }
    // Too long for half of the register, which gets only the first eight bytes.
    let before = sender.page.bytes(HALF + 8, HALF - 8);
    sender.ring.complete(2);
    sender.ring.complete(4);
    sender.post(1, SendOp::Send, Data::Inline(&[9; 250])).unwrap();
    assert_eq!((sender.page.be32(HALF), sender.page.be32(HALF + 4) >> 8), (0x60a, 0x45));
    assert_eq!(sender.page.bytes(HALF + 8, HALF - 8), before);
}

#[test]
fn a_wqe_goes_on_at_the_beginning_of_the_ring() {
    let mut sender = Sender::new(4, 4, HALF);
    for _ in 0..3 {
        sender.post(1, SendOp::Send, Data::EMPTY).unwrap();
    }
    sender.ring.complete(2);
    let bytes: Vec<u8> = (1..=100).collect();
    sender.post(2, SendOp::Send, Data::Inline(&bytes)).unwrap();
    assert_eq!(sender.memory.be32(3 * BLOCK), 0x30a);
    let found = [sender.memory.bytes(3 * BLOCK + 20, 44), sender.memory.bytes(0, 56)].concat();
    assert_eq!(found, bytes);
    // So it does in the register.
    assert_eq!(sender.page.bytes(HALF + 20, 100), bytes);
}

#[test]
fn a_send_queue_is_full_by_requests_and_by_blocks() {
    let mut sender = Sender::new(4, 2, HALF);
    sender.post(1, SendOp::Send, Data::EMPTY).unwrap();
    sender.post(2, SendOp::Send, Data::EMPTY).unwrap();
    assert_eq!(sender.post(3, SendOp::Send, Data::EMPTY), Err(PostRefusal::Full));
    // The second is complete, and so is the unsignaled first.
    assert_eq!(sender.ring.complete(1).id, 2);
    let long = [0; 130];
    sender.post(3, SendOp::Send, Data::Inline(&long)).unwrap();
    assert_eq!(sender.post(4, SendOp::Send, Data::Inline(&long)), Err(PostRefusal::Full));
    assert_eq!(sender.post(4, SendOp::Send, Data::EMPTY), Ok(()));
    assert_eq!(sender.record.be32(4), 6);
}

#[test]
fn counters_of_a_send_queue_go_around() {
    let mut sender = Sender::new(4, 4, 0);
    for nth in 0..70_000u32 {
        sender.post(u64::from(nth), SendOp::Send, Data::EMPTY).unwrap();
        assert_eq!(sender.record.be32(4), (nth + 1) & 0xffff);
        assert_eq!(sender.ring.complete(nth as u16).id, u64::from(nth));
    }
}

#[test]
fn a_reset_send_queue_starts_at_its_beginning() {
    let mut sender = Sender::new(4, 4, 0);
    sender.post(1, SendOp::LocalInvalidate(RKey(0x100)), Data::EMPTY).unwrap();
    sender.ring.reset();
    assert_eq!(sender.record.be32(4), 0);
    sender.post(2, SendOp::Send, Data::EMPTY).unwrap();
    // Index 0, and no fence, because the reset discarded the invalidation.
    assert_eq!((sender.memory.be32(0), sender.memory.be32(8)), (0x0a, 0x08));
}

#[test]
fn what_follows_a_change_of_an_mkey_waits_for_it() {
    let mut sender = Sender::new(16, 16, 0);
    sender.post(1, SendOp::LocalInvalidate(RKey(0x100)), Data::EMPTY).unwrap();
    for (block, expected) in [(2, 0x28), (3, 0x08)] {
        sender.post(1, SendOp::Send, Data::EMPTY).unwrap();
        assert_eq!(sender.memory.be32(block * BLOCK + 8), expected);
    }
}

#[test]
fn an_entry_that_would_look_like_inline_data_is_refused() {
    let mut sender = Sender::new(4, 4, 0);
    let data = [sge(1 << 31)];
    let answer = sender.post(1, SendOp::Send, Data::Sges(&data));
    assert_eq!(answer, Err(PostRefusal::TooLong));
}

#[test]
fn rings_of_another_form_are_refused() {
    let limits = SendLimits { requests_max: 1, signal_all: false };
    for bytes in [3 * BLOCK, BLOCK / 2] {
        let memory = Shared::new(bytes);
        // SAFETY: as above.
        assert!(unsafe { RingMemory::new(memory.base(), bytes) }.is_none(), "{bytes}");
    }
    let (memory, record) = (Shared::new((1 << 16) * BLOCK), Shared::new(8));
    assert!(SendRing::new(memory.ring(), record.record(), 1, limits).is_none());
    let limits = RecvLimits { requests_max: 1, sges_max: 2, stride: 16 };
    let memory = Shared::new(64);
    assert!(RecvRing::new(memory.ring(), record.record(), limits).is_none());
    // Links that leave the ring.
    let list = SharedList { head: 0, tail: 1, stride: 32, sges_max: 1 };
    memory.set(3, 9);
    assert!(SharedRing::new(memory.ring(), record.record(), list).is_none());
}

#[test]
fn a_receive_ends_at_its_terminator() {
    let (memory, record) = (Shared::new(2 * 64), Shared::new(8));
    let limits = RecvLimits { requests_max: 2, sges_max: 3, stride: 64 };
    let mut ring = RecvRing::new(memory.ring(), record.record(), limits).unwrap();
    let sges = [sge(8), sge(0), sge(9)];
    ring.write(&RecvRequest { id: 7, sges: &sges }).unwrap();
    assert_eq!(record.be32(0), 0, "not handed over yet");
    ring.ring();
    assert_eq!((record.be32(0), record.be32(4)), (1, 0));
    assert_eq!((memory.be32(0), memory.be32(UNIT), memory.be32(UNIT + 4)), (8, 9, 7));
    assert_eq!((memory.be32(2 * UNIT), memory.be32(2 * UNIT + 4)), (0, 0x100));
    ring.write(&RecvRequest { id: 8, sges: &[] }).unwrap();
    assert_eq!(memory.be32(64 + 4), 0x100);
    let (too_many, one) = ([sge(1); 4], RecvRequest { id: 9, sges: &[] });
    let too_many = ring.write(&RecvRequest { id: 9, sges: &too_many });
    assert_eq!(too_many, Err(PostRefusal::TooManySges));
    assert_eq!(ring.write(&one), Err(PostRefusal::Full));
    assert_eq!(ring.complete(0), 7);
    ring.write(&one).unwrap();
    assert_eq!((ring.complete(1), ring.complete(2)), (8, 9));
    ring.reset();
    assert_eq!(record.be32(0), 0);
}

/// A list of slots of 32 bytes, as libmlx5 creates it.
fn shared_ring(slots: u8) -> (SharedRing, Shared, Shared) {
    let (memory, record) = (Shared::new(32 * usize::from(slots)), Shared::new(8));
    for slot in 0..slots - 1 {
        memory.set(usize::from(slot) * 32 + 3, slot + 1);
    }
    let list = SharedList { head: 0, tail: u32::from(slots) - 1, stride: 32, sges_max: 1 };
    let ring = SharedRing::new(memory.ring(), record.record(), list).unwrap();
    (ring, memory, record)
}

#[test]
fn slots_of_a_shared_queue_are_reused_in_the_order_of_their_ends() {
    let (mut ring, memory, record) = shared_ring(4);
    let post = |ring: &mut SharedRing, id| {
        let sges = [sge(id as u32)];
        let written = ring.write(&RecvRequest { id, sges: &sges });
        ring.ring();
        written
    };
    for id in 1..=3 {
        post(&mut ring, id).unwrap();
        assert_eq!(memory.be32((id as usize - 1) * 32 + UNIT), id as u32);
    }
    // The tail is not filled.
    assert_eq!((post(&mut ring, 4), record.be32(0)), (Err(PostRefusal::Full), 3));
    assert_eq!(ring.complete(1), Some(2));
    assert_eq!(ring.complete(0), Some(1));
    assert_eq!(ring.complete(4), None, "there is no such slot");
    // The adapter goes from the old tail to slot 1, and from that to slot 0.
    assert_eq!((memory.be32(3 * 32), memory.be32(32)), (1, 0));
    for (id, slot) in [(5, 3), (6, 1)] {
        post(&mut ring, id).unwrap();
        assert_eq!(memory.be32(slot * 32 + UNIT), id as u32);
    }
    assert_eq!((post(&mut ring, 7), record.be32(0)), (Err(PostRefusal::Full), 5));
}

/// Two entries of this length, marked as not yet written.
fn completion_ring(stride: usize) -> (CompletionRing, Shared, Shared, Shared) {
    let (memory, record) = (Shared::new(2 * stride), Shared::new(8));
    let page = Shared::new(4096);
    // SAFETY: as above.
    let register = unsafe { ArmRegister::new(page.base()) }.unwrap();
    for entry in [1, 2] {
        memory.set(entry * stride - 1, opcode::INVALID << 4 | 1);
    }
    let ring = CompletionRing::new(memory.ring(), record.record(), register, 0x401, stride as u32);
    (ring.unwrap(), memory, record, page)
}

#[test]
fn entries_are_taken_by_their_owner_lap_after_lap() {
    for stride in [64, 128] {
        let (mut ring, memory, record, _) = completion_ring(stride);
        assert_eq!(ring.entry(0), None);
        for nth in 0..9usize {
            let (end, owner) = ((nth % 2 + 1) * stride, (nth / 2 % 2) as u8);
            memory.set(end - 3, nth as u8);
            memory.set(end - 1, opcode::RECV << 4 | owner);
            let entry = ring.entry(0).unwrap();
            assert_eq!(usize::from(entry.index()), nth);
            assert_eq!(ring.entry(1), None, "of the lap before");
            ring.take(1);
            assert_eq!(ring.entry(0), None, "of the lap before");
            assert_eq!(record.be32(0) as usize, nth + 1);
        }
    }
}

#[test]
fn an_entry_without_content_is_not_taken() {
    let (ring, memory, ..) = completion_ring(64);
    memory.set(63, opcode::INVALID << 4);
    assert_eq!(ring.entry(0), None);
}

#[test]
fn an_arm_is_in_record_and_register_with_the_count_of_notifications() {
    let (mut ring, memory, record, page) = completion_ring(64);
    ring.arm(Arm::Any);
    assert_eq!((record.be32(4), page.be32(0x20), page.be32(0x24)), (0, 0, 0x401));
    memory.set(63, opcode::RECV << 4);
    ring.entry(0).unwrap();
    ring.take(1);
    ring.notified();
    ring.arm(Arm::Solicited);
    assert_eq!((record.be32(4), page.be32(0x20)), (0x1100_0001, 0x1100_0001));
    for _ in 0..3 {
        ring.notified();
    }
    ring.arm(Arm::Any);
    assert_eq!(page.be32(0x20), 1, "the count has two bits");
}
