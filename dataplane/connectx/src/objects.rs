//! What a program has made through its contexts: queues, regions and channels.

use crate::doorbell::DoorbellPages;
use crate::events::EventQueue;
use crate::shared_pages::SharedPages;
use crate::wqe::{BLOCK, SGES_MAX, be32};
use pollux_hca::MemoryRange;
use pollux_mem::Memory;
use pollux_mem::region::Region;
use pollux_verbs::{Ah, Arm, Cq, LKey, Qp, QpState, QpType, Srq};
use pollux_wire::address::{Gid, Lid, Qpn};
use rustix::io::Errno;
use rustix::mm::{Advice, MsyncFlags, madvise, msync};
use std::collections::BTreeMap;
use std::ffi::c_void;
use std::ptr::NonNull;
use std::sync::Arc;
use std::sync::atomic::{Ordering, fence};

/// A range of the program's own memory: a ring, a doorbell record, or a registered region.
#[derive(Clone, Debug)]
pub(crate) struct ProgramMemory {
    pub(crate) memory: Memory,
    /// The first byte of the range in the memory, which is complete pages.
    pub(crate) at: usize,
    pub(crate) bytes: usize,
    pub(crate) address: u64,
}

pub(crate) const PAGE: u64 = 4096;

impl ProgramMemory {
    /// `None` if the range is empty, or not in the lower half of the address space.
    pub(crate) fn at(address: u64, bytes: u64) -> Option<Self> {
        let end = address.checked_add(bytes)?.checked_next_multiple_of(PAGE)?;
        let start = address / PAGE * PAGE;
        if bytes == 0 || end > i64::MAX as u64 {
            return None;
        }
        let pages = NonNull::new(start as *mut u8)?;
        // SAFETY: the range is page-aligned. The program named it to its adapter, which reads and
        // writes it at any time; a program that unmaps it meanwhile accepts the fault, as its
        // documentation says (`lib.rs`). Its own code is not Rust that we compile, or has to treat
        // registered memory as what a device accesses.
        let region = unsafe { Region::borrowed(pages, (end - start) as usize) };
        let (at, bytes) = ((address - start) as usize, bytes as usize);
        Some(Self { memory: Memory::over(region), at, bytes, address })
    }

    /// Faults its pages in, as a driver pins them for a card. EFAULT if the program may not read
    /// them, or not write them where the adapter writes.
    pub(crate) fn fault_in(&self, is_written: bool) -> Result<(), Errno> {
        let (pages, bytes) = (self.memory.address() as *mut c_void, self.memory.bytes());
        let advice =
            if is_written { Advice::LinuxPopulateWrite } else { Advice::LinuxPopulateRead };
        // SAFETY: faulting pages in changes no content. No page is none: that is an error only
        // where the advice is unknown.
        let (done, is_known) = unsafe {
            let done = madvise(pages, bytes, advice);
            (done, done != Err(Errno::INVAL) || madvise(pages, 0, advice).is_ok())
        };
        let done = match is_known {
            true => done,
            // Linux before 5.14 only says whether they are mapped.
            // SAFETY: an asynchronous `msync` reads and writes nothing.
            false => unsafe { msync(pages, bytes, MsyncFlags::ASYNC) },
        };
        done.map_err(|_| Errno::FAULT)
    }

    /// The range, registered under an address that the program chose.
    pub(crate) fn range(&self, address: u64) -> MemoryRange {
        MemoryRange { at: self.at, bytes: self.bytes as u64, address }
    }

    /// Returns `false` if the bytes are not all within the range.
    pub(crate) fn read(&self, at: usize, out: &mut [u8]) -> bool {
        at.checked_add(out.len()).is_some_and(|end| end <= self.bytes)
            && self.memory.read(self.at + at, out)
    }

    pub(crate) fn write(&self, at: usize, bytes: &[u8]) -> bool {
        at.checked_add(bytes.len()).is_some_and(|end| end <= self.bytes)
            && self.memory.write(self.at + at, bytes)
    }
}

/// A doorbell record: two words.
#[derive(Clone, Debug)]
pub(crate) struct Record(ProgramMemory);

impl Record {
    pub(crate) fn at(address: u64) -> Result<Self, Errno> {
        let words = ProgramMemory::at(address, 8).ok_or(Errno::INVAL)?;
        words.fault_in(false).map(|()| Self(words))
    }

    pub(crate) fn address(&self) -> u64 {
        self.0.address
    }

    /// A word. What the program wrote before it is visible from now on.
    pub(crate) fn word(&self, nth: usize) -> u32 {
        let mut bytes = [0; 4];
        let _ = self.0.read(nth * 4, &mut bytes);
        fence(Ordering::Acquire);
        be32(&bytes, 0)
    }
}

/// An opened device: what one `open` of `uverbsN` has.
#[derive(Debug)]
pub(crate) struct Context {
    pub(crate) pages: DoorbellPages,
    pub(crate) events: EventQueue<16>,
    /// By the descriptor of the program.
    pub(crate) channels: BTreeMap<i32, EventQueue<8>>,
    pub(crate) cqe_version: u8,
    /// The register of the next queue pair. Register 0 has no BlueFlame.
    pub(crate) next_register: u32,
    /// Registers from the first to the last that a queue pair has.
    pub(crate) registers: u32,
    pub(crate) pds: Vec<u32>,
}

#[derive(Debug)]
pub(crate) struct RegionObject {
    pub(crate) context: u32,
    pub(crate) lkey: LKey,
    /// Its pages, if peers can map them.
    pub(crate) pages: Option<Arc<SharedPages>>,
    pub(crate) memory: ProgramMemory,
    /// The address in requests of its first byte.
    pub(crate) address: u64,
}

#[derive(Debug)]
pub(crate) struct CqObject {
    pub(crate) context: u32,
    pub(crate) cq: Cq,
    pub(crate) user_handle: u64,
    pub(crate) channel: Option<i32>,
    pub(crate) ring: ProgramMemory,
    pub(crate) record: Record,
    pub(crate) entries: u32,
    pub(crate) entry_bytes: usize,
    /// Entries written, of which the lowest 24 bits count.
    pub(crate) produced: u32,
    pub(crate) is_dead: bool,
    pub(crate) ignores_overrun: bool,
    /// The last arm word of the record that was acted on.
    pub(crate) arm_seen: u32,
    pub(crate) armed: Option<Arm>,
    /// Entries written when the last one was solicited or of a failed request.
    pub(crate) last_solicited: u32,
}

/// The slots of a receive ring.
#[derive(Clone, Debug)]
pub(crate) struct RecvSlots {
    pub(crate) ring: ProgramMemory,
    /// A power of two.
    pub(crate) count: u32,
    pub(crate) bytes: usize,
}

/// The bytes of a shared queue's slot before its segments.
pub(crate) const NEXT: usize = 16;

/// Bytes of a slot that count.
const SLOT_BYTES_MAX: usize = NEXT + 16 * SGES_MAX;

impl RecvSlots {
    /// Reads the slot of a receive.
    pub(crate) fn read(&self, index: u16, slot: &mut Vec<u8>) -> bool {
        let at = (u32::from(index) & (self.count - 1)) as usize * self.bytes;
        slot.resize(self.bytes.min(SLOT_BYTES_MAX), 0);
        self.ring.read(at, slot)
    }
}

#[derive(Debug)]
pub(crate) struct SrqObject {
    pub(crate) context: u32,
    pub(crate) srq: Srq,
    pub(crate) user_handle: u64,
    pub(crate) slots: RecvSlots,
    pub(crate) sges_max: u32,
    pub(crate) limit: u32,
}

#[derive(Debug)]
pub(crate) struct QpObject {
    pub(crate) context: u32,
    pub(crate) qp: Qp,
    pub(crate) qpn: Qpn,
    pub(crate) qp_type: QpType,
    pub(crate) pd: u32,
    pub(crate) port: u8,
    pub(crate) user_handle: u64,
    pub(crate) user_index: u32,
    pub(crate) register: u32,
    pub(crate) send_cq: u32,
    pub(crate) recv_cq: u32,
    pub(crate) srq: Option<u32>,
    /// The send ring, which inline data is read from, and its key.
    pub(crate) send_ring: Option<(ProgramMemory, LKey)>,
    pub(crate) send_blocks: u32,
    pub(crate) record: Record,
    pub(crate) intake: Intake,
    /// Without a shared receive queue.
    pub(crate) recv_slots: Option<RecvSlots>,
    pub(crate) signals_all: bool,
    /// Multicast groups that it is attached to.
    pub(crate) groups: Vec<(Gid, Lid)>,
    /// Short messages that it receives are also in their completion queue entries.
    pub(crate) scatters_receives: bool,
}

/// How far the send ring of a queue pair was taken: the index of the next block, which wraps
/// around.
///
/// ```text
///            modified to another state          doorbell
///   Reset ---------------------------> Idle ----------------> Rung
///     ^                                  ^ <----------------    |
///     |                                  |   record reached     | a WQE is wrong
///     |                                  |                      v
///     +---- modified to Reset, from all -+------------------ Stopped
/// ```
///
/// In Rung, the ring is looked at in each turn, also while the adapter has no space for more.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Intake {
    /// Nothing is taken. The ring begins again at index 0.
    Reset,
    Idle(u16),
    Rung(u16),
    Stopped,
}

impl Intake {
    /// The queue pair was modified to a state.
    pub(crate) fn enter(&mut self, state: QpState) {
        *self = match *self {
            _ if state == QpState::Reset => Self::Reset,
            Self::Reset => Self::Idle(0),
            other => other,
        };
    }

    /// The doorbell of its register was rung.
    pub(crate) fn ring(&mut self) {
        if let Self::Idle(next) = *self {
            *self = Self::Rung(next);
        }
    }

    /// All that the record allows was taken.
    pub(crate) fn rest(&mut self) {
        if let Self::Rung(next) = *self {
            *self = Self::Idle(next);
        }
    }

    /// A WQE was wrong.
    pub(crate) fn stop(&mut self) {
        if let Self::Idle(_) | Self::Rung(_) = *self {
            *self = Self::Stopped;
        }
    }

    /// The index of the next WQE, if its doorbell was rung.
    pub(crate) fn next(&self) -> Option<u16> {
        if let Self::Rung(next) = *self { Some(next) } else { None }
    }

    pub(crate) fn take(&mut self, blocks: u16) {
        if let Self::Rung(next) = self {
            *next = next.wrapping_add(blocks);
        }
    }
}

impl QpObject {
    /// The byte of the send ring at which a block begins.
    pub(crate) fn block_at(&self, index: u16) -> usize {
        (u32::from(index) & (self.send_blocks.max(1) - 1)) as usize * BLOCK
    }
}

/// Address handles of datagrams, which name their path anew in each WQE.
pub(crate) type Handles = BTreeMap<(u32, [u8; 36]), Ah>;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_event_of_each_state_leads_where_the_diagram_says() {
        use Intake::{Idle, Reset, Rung, Stopped};
        let events: [fn(&mut Intake); 6] = [
            |state| state.enter(QpState::Reset),
            |state| state.enter(QpState::Err),
            Intake::ring,
            Intake::rest,
            Intake::stop,
            |state| state.take(3),
        ];
        for (from, to) in [
            (Reset, [Reset, Idle(0), Reset, Reset, Reset, Reset]),
            (
                Idle(65_535),
                [Reset, Idle(65_535), Rung(65_535), Idle(65_535), Stopped, Idle(65_535)],
            ),
            (Rung(65_535), [Reset, Rung(65_535), Rung(65_535), Idle(65_535), Stopped, Rung(2)]),
            (Stopped, [Reset, Stopped, Stopped, Stopped, Stopped, Stopped]),
        ] {
            let after = events.map(|event| {
                let mut state = from;
                event(&mut state);
                state
            });
            assert_eq!(after, to, "from {from:?}");
        }
        assert_eq!(
            [Reset, Idle(5), Rung(5), Stopped].map(|state| state.next()),
            [None, None, Some(5), None]
        );
    }
}
