//! A program in place of libibverbs and libmlx5: it writes whatever commands, work queue entries,
//! records and doorbells a test says.

use crate::abi::{self, attr, command};
use crate::commands::Call;
use crate::doorbell::{PAGE_BYTES, PAGES};
use crate::hca::Hca;
use crate::objects::ProgramMemory;
use crate::wqe::{BLOCK, be16, be32, opcode};
use pollux_fabric::Adapter;
use pollux_fabric::link::threads::{Clock, ThreadLink, pair};
use pollux_hca::{Link, Port, SoftDevice};
use pollux_mem::{Memory, Segment};
use pollux_verbs::time::Time;
use pollux_wire::address::{Guid, Lid};
use rustix::io::Errno;
use rustix::mm::{MapFlags, MprotectFlags, ProtFlags, mmap_anonymous, mprotect, munmap};
use std::ffi::c_void;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;
use zerocopy::IntoBytes;

pub(super) const LID: u16 = 1;
/// The memory of a program, whose pages are there once they are used. Behind it is none, so that no
/// number of 32 bits leads to memory of another test.
const ARENA_BYTES: u64 = 48 << 20;
const GUARD_BYTES: u64 = 1 << 32;

pub(super) struct Program<L: Link = ThreadLink> {
    pub(super) hca: Hca<L>,
    pub(super) context: u32,
    /// The end of the context's events that libibverbs has.
    pub(super) events: OwnedFd,
    /// Its mapping of the device's file.
    pub(super) doorbells: Memory,
    pub(super) arena: u64,
    used: u64,
}

#[derive(Clone, Copy, Debug)]
pub(super) struct ProgramCq {
    pub(super) handle: u32,
    pub(super) ring: u64,
    pub(super) record: u64,
    entries: u32,
    consumed: u32,
}

#[derive(Clone, Copy, Debug)]
pub(super) struct ProgramQp {
    pub(super) handle: u32,
    pub(super) qpn: u32,
    qp_type: u8,
    register: u32,
    recv_ring: u64,
    recv_slots: u32,
    pub(super) send_ring: u64,
    send_blocks: u32,
    pub(super) record: u64,
    pub(super) sent: u16,
    received: u16,
}

/// What a test reads of a completion queue entry.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Cqe {
    pub(super) kind: u8,
    pub(super) syndrome: u8,
    pub(super) qpn: u32,
    pub(super) index: u16,
}

impl<L: Link> Drop for Program<L> {
    fn drop(&mut self) {
        // The adapter accesses the memory of its objects at any time.
        self.hca.close(self.context);
        let bytes = ARENA_BYTES + GUARD_BYTES;
        // SAFETY: the pages were mapped by `of`, and the adapter has no object of this program.
        unsafe { munmap(self.arena as *mut c_void, bytes as usize) }.unwrap();
    }
}

/// Pages that nothing else uses.
pub(super) fn map(bytes: u64, protection: ProtFlags) -> u64 {
    let flags = MapFlags::PRIVATE | MapFlags::NORESERVE;
    // SAFETY: the kernel picks addresses that nothing uses.
    let mapped = unsafe { mmap_anonymous(std::ptr::null_mut(), bytes as usize, protection, flags) };
    mapped.unwrap() as u64
}

impl Program {
    pub(super) fn new() -> Self {
        let read = AtomicU64::new(0);
        let clock: Clock = Arc::new(move || {
            Time::START + Duration::from_micros(read.fetch_add(1, Ordering::Relaxed))
        });
        let [link, _] = pair(&clock);
        let adapter = Adapter::new(Port::active(Lid(LID), Guid(0x1234)));
        Self::of(SoftDevice::new("soft", adapter, link))
    }
}

impl<L: Link> Program<L> {
    pub(super) fn of(device: SoftDevice<L>) -> Self {
        let mut hca = Hca::new(device);
        let (context, events, file) = hca.open().unwrap();
        let bytes = PAGES * PAGE_BYTES;
        let doorbells = Segment::from_fd(file, bytes..=bytes).unwrap().map().unwrap();
        let arena = map(ARENA_BYTES + GUARD_BYTES, ProtFlags::empty());
        let rights = MprotectFlags::READ | MprotectFlags::WRITE;
        // SAFETY: the pages were mapped above, and nothing uses them.
        unsafe { mprotect(arena as *mut c_void, ARENA_BYTES as usize, rights) }.unwrap();
        Self { hca, context, events, doorbells: Memory::over(doorbells), arena, used: 0 }
    }

    pub(super) fn take(&mut self, bytes: u64) -> u64 {
        let address = self.arena + self.used;
        self.used += bytes.next_multiple_of(4096);
        assert!(self.used <= ARENA_BYTES);
        address
    }

    pub(super) fn store(&self, address: u64, bytes: &[u8]) {
        assert!(ProgramMemory::at(address, bytes.len() as u64).unwrap().write(0, bytes));
    }

    pub(super) fn load<const N: usize>(&self, address: u64) -> [u8; N] {
        let mut bytes = [0; N];
        assert!(ProgramMemory::at(address, N as u64).unwrap().read(0, &mut bytes));
        bytes
    }

    /// A `write` to the device.
    pub(super) fn write(&mut self, bytes: &[u8]) -> Result<Vec<u8>, Errno> {
        let call = Call::parse(bytes)?;
        call.fault_in()?;
        self.hca.command(self.context, &call)
    }

    pub(super) fn command(
        &mut self,
        number: u32,
        body: &[&[u8]],
        answer_bytes: usize,
    ) -> Result<Vec<u8>, Errno> {
        self.write(&bytes_of(number, body, answer_bytes))
    }

    pub(super) fn create(&mut self, number: u32, body: &[&[u8]], answer: usize) -> [u32; 2] {
        let answer = self.command(number, body, answer).unwrap();
        [0, 4].map(|at| u32::from_ne_bytes(answer[at..at + 4].try_into().unwrap()))
    }

    pub(super) fn pd(&mut self) -> u32 {
        self.create(command::ALLOC_PD, &[], 8)[0]
    }

    /// The key of a region, for all kinds of access.
    pub(super) fn region(&mut self, pd_handle: u32, start: u64, length: u64) -> (u32, u32) {
        let body = abi::RegMr { start, length, hca_va: start, pd_handle, access_flags: 0x1f };
        let [handle, lkey] = self.create(command::REG_MR, &[body.as_bytes()], 12);
        (handle, lkey)
    }

    pub(super) fn cq(&mut self, entries: u32) -> ProgramCq {
        let (ring, record) = (self.take(u64::from(entries) * 64), self.take(8));
        const INVALID: u8 = 0xf0;
        for entry in 1..=u64::from(entries) {
            self.store(ring + entry * 64 - 1, &[INVALID]);
        }
        let body = abi::CreateCq {
            user_handle: record,
            cqe: entries - 1,
            comp_channel: -1,
            ..Default::default()
        };
        let own = abi::CreateCqDriver {
            buf_addr: ring,
            db_addr: record,
            cqe_size: 64,
            ..Default::default()
        };
        let body = [body.as_bytes(), own.as_bytes()];
        let [handle, _] = self.create(command::CREATE_CQ, &body, 16);
        ProgramCq { handle, ring, record, entries, consumed: 0 }
    }

    /// A queue pair, of a type in the kernel's numbers.
    pub(super) fn qp(&mut self, qp_type: u8, pd: u32, cq: &ProgramCq, blocks: u32) -> ProgramQp {
        const RECV_SLOTS: u32 = 16;
        let recv_bytes = u64::from(RECV_SLOTS) * 64;
        let ring = self.take(recv_bytes + u64::from(blocks) * BLOCK as u64);
        let record = self.take(8);
        let body = abi::CreateQp {
            user_handle: record,
            pd_handle: pd,
            send_cq_handle: cq.handle,
            recv_cq_handle: cq.handle,
            qp_type,
            ..Default::default()
        };
        let own = abi::CreateQpDriver {
            buf_addr: ring,
            db_addr: record,
            sq_wqe_count: blocks,
            rq_wqe_count: RECV_SLOTS,
            rq_wqe_shift: 6,
            ..Default::default()
        };
        let body = [body.as_bytes(), own.as_bytes()];
        let answer = self.command(command::CREATE_QP, &body, 72).unwrap();
        let word = |at: usize| u32::from_ne_bytes(answer[at..at + 4].try_into().unwrap());
        let index = word(32);
        ProgramQp {
            handle: word(0),
            qpn: word(4),
            qp_type,
            register: index / 4 * 2 + index % 4,
            recv_ring: ring,
            recv_slots: RECV_SLOTS,
            send_ring: ring + recv_bytes,
            send_blocks: blocks,
            record,
            sent: 0,
            received: 0,
        }
    }

    pub(super) fn modify(&mut self, change: abi::ModifyQp) -> Result<(), Errno> {
        self.command(command::MODIFY_QP, &[change.as_bytes()], 0).map(drop)
    }

    /// Brings a queue pair to RTS, one of a connection to another at the same port.
    pub(super) fn connect(&mut self, qp: &ProgramQp, dest_qp_num: u32) -> Result<(), Errno> {
        let lid = self.hca.device.adapter.port().lid.0;
        let base = abi::ModifyQp { qp_handle: qp.handle, port_num: 1, ..Default::default() };
        let dest = abi::QpDest { dlid: lid, port_num: 1, ..Default::default() };
        let init = attr::STATE | attr::PKEY_INDEX | attr::PORT | attr::ACCESS_FLAGS;
        let rtr = attr::STATE | attr::AV | attr::PATH_MTU | attr::DEST_QPN | attr::RQ_PSN;
        let rtr = rtr | attr::MAX_DEST_RD_ATOMIC | attr::MIN_RNR_TIMER;
        let rts = attr::STATE | attr::TIMEOUT | attr::RETRY_CNT | attr::RNR_RETRY | attr::SQ_PSN;
        let rts = rts | attr::MAX_QP_RD_ATOMIC;
        let masks = match qp.qp_type {
            super::RC => [init, rtr, rts],
            _ => [init & !attr::ACCESS_FLAGS | attr::QKEY, attr::STATE, attr::STATE | attr::SQ_PSN],
        };
        for (qp_state, attr_mask) in (1..).zip(masks) {
            let change = abi::ModifyQp {
                qp_state,
                attr_mask,
                qp_access_flags: 0xf,
                dest,
                dest_qp_num,
                path_mtu: 5,
                max_rd_atomic: 4,
                max_dest_rd_atomic: 4,
                timeout: 10,
                retry_cnt: 7,
                rnr_retry: 7,
                ..base
            };
            self.modify(change)?;
        }
        Ok(())
    }

    /// The state of a queue pair, in the kernel's numbers.
    pub(super) fn state(&mut self, qp: &ProgramQp) -> u8 {
        const QP_STATE: usize = 108;
        self.command(command::QUERY_QP, &[qp.handle.as_bytes(), &[0; 4]], 128).unwrap()[QP_STATE]
    }

    pub(super) fn receive(&mut self, qp: &mut ProgramQp, address: u64, bytes: u32, lkey: u32) {
        let slot = u64::from(u32::from(qp.received) % qp.recv_slots);
        let end = segment(0, 0, 0x100);
        self.store(qp.recv_ring + slot * 64, &[segment(address, bytes, lkey), end].concat());
        qp.received += 1;
        self.store(qp.record, &u32::from(qp.received).to_be_bytes());
    }

    /// Posts a send WQE, whatever it says, and rings the doorbell for it.
    pub(super) fn post(&mut self, qp: &mut ProgramQp, wqe: &[u8]) {
        for (unit, bytes) in wqe.chunks(16).enumerate() {
            let size = qp.send_blocks as usize * BLOCK;
            let at = (usize::from(qp.sent) * BLOCK + unit * 16) % size;
            self.store(qp.send_ring + at as u64, bytes);
        }
        qp.sent = qp.sent.wrapping_add(wqe.len().div_ceil(BLOCK) as u16);
        self.store(qp.record + 4, &u32::from(qp.sent).to_be_bytes());
        self.ring(qp.register, wqe[..8].try_into().unwrap());
    }

    pub(super) fn ring(&self, register: u32, value: [u8; 8]) {
        let page = register as usize / 2 * PAGE_BYTES;
        assert!(self.doorbells.write(page + 0x800 + register as usize % 2 * 512, &value));
    }

    pub(super) fn turns(&mut self) {
        // More than the adapter needs between two queue pairs of its own.
        (0..100).for_each(|_| _ = self.hca.turn());
    }

    pub(super) fn poll(&mut self, cq: &mut ProgramCq) -> Option<Cqe> {
        let slot = u64::from(cq.consumed & (cq.entries - 1));
        let bytes: [u8; 64] = self.load(cq.ring + slot * 64);
        let owner = u8::from(cq.consumed & cq.entries != 0);
        if bytes[63] >> 4 == 0xf || bytes[63] & 1 != owner {
            return None;
        }
        cq.consumed += 1;
        self.store(cq.record, &(cq.consumed & 0xff_ffff).to_be_bytes());
        Some(Cqe {
            kind: bytes[63] >> 4,
            syndrome: bytes[55],
            qpn: be32(&bytes, 56) & 0xff_ffff,
            index: be16(&bytes, 60),
        })
    }

    /// The asynchronous events that have arrived, in the kernel's numbers.
    pub(super) fn async_events(&self) -> Vec<u32> {
        let mut record = [0; 16];
        let flags = rustix::net::RecvFlags::DONTWAIT;
        let next = || rustix::net::recv(&self.events, &mut record, flags).ok().map(|_| record);
        std::iter::from_fn(next)
            .map(|of| u32::from_ne_bytes(of[8..12].try_into().unwrap()))
            .collect()
    }

    /// Whether the adapter has no object of any context but those that are open.
    pub(super) fn has_no_objects(&self) -> bool {
        let Hca { regions, windows, cqs, srqs, qps, by_qpn, handles, .. } = &self.hca;
        let pds = self.hca.contexts.iter().map(|(_, one)| one.pds.len()).sum::<usize>();
        let numbers = [&self.hca.cq_numbers, &self.hca.qp_numbers];
        regions.is_empty()
            && windows.is_empty()
            && (cqs.iter().count(), srqs.iter().count(), qps.iter().count()) == (0, 0, 0)
            && by_qpn.is_empty()
            && handles.is_empty()
            && pds == 0
            && numbers.iter().all(|numbers| numbers.is_empty())
    }
}

/// The bytes of a command. The address of its answer is only passed on.
pub(super) fn bytes_of(number: u32, body: &[&[u8]], answer_bytes: usize) -> Vec<u8> {
    let answer: &[u8] = if answer_bytes > 0 { &[0; 8] } else { &[] };
    let rest = [answer, &body.concat()].concat();
    let (in_words, out_words) = ((8 + rest.len()) / 4, answer_bytes / 4);
    let header =
        abi::CmdHdr { command: number, in_words: in_words as u16, out_words: out_words as u16 };
    [header.as_bytes(), &rest].concat()
}

/// A data segment.
pub(super) fn segment(address: u64, bytes: u32, lkey: u32) -> Vec<u8> {
    [&bytes.to_be_bytes()[..], &lkey.to_be_bytes(), &address.to_be_bytes()].concat()
}

/// A control segment that asks for a completion.
pub(super) fn control(opcode: u8, index: u16, qpn: u32, units: u8) -> Vec<u8> {
    let first = u32::from(index) << 8 | u32::from(opcode);
    let second = qpn << 8 | u32::from(units);
    let words = [first, second, 0x8, 0];
    words.iter().flat_map(|word| word.to_be_bytes()).collect()
}

/// The next send of a queue pair, of one segment.
pub(super) fn send(qp: &ProgramQp, address: u64, bytes: u32, lkey: u32) -> Vec<u8> {
    [control(opcode::SEND, qp.sent, qp.qpn, 2), segment(address, bytes, lkey)].concat()
}
