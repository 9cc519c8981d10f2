//! The objects that a program has created through its contexts: queues, regions and channels.

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
    /// All pages of the range.
    pub(crate) memory: Memory,
    /// The offset of the range in `memory`.
    pub(crate) at: usize,
    pub(crate) bytes: usize,
    pub(crate) address: u64,
}

pub(crate) const PAGE: u64 = 4096;

impl ProgramMemory {
    /// Returns `None` if the range is empty, or not in the lower half of the address space.
    pub(crate) fn at(address: u64, bytes: u64) -> Option<Self> {
        let end = address.checked_add(bytes)?.checked_next_multiple_of(PAGE)?;
        let start = address / PAGE * PAGE;
        if bytes == 0 || end > i64::MAX as u64 {
            return None;
        }
        let pages = NonNull::new(start as *mut u8)?;
        // SAFETY: the range is page-aligned. The program passed it to its adapter, which may read
        // and write it at any time. If the program unmaps it, an access faults, as `lib.rs`
        // documents. Concurrent accesses are those of a device: code of the program in Rust has to
        // expect them for registered memory, and code in other languages is not subject to Rust's
        // rules.
        let region = unsafe { Region::borrowed(pages, (end - start) as usize) };
        let (at, bytes) = ((address - start) as usize, bytes as usize);
        Some(Self { memory: Memory::over(region), at, bytes, address })
    }

    /// Faults in the pages, where the driver of a card would pin them. Fails with EFAULT if the
    /// program may not read them; or, with `is_written`, may not write them.
    pub(crate) fn fault_in(&self, is_written: bool) -> Result<(), Errno> {
        let (pages, bytes) = (self.memory.address() as *mut c_void, self.memory.bytes());
        let advice =
            if is_written { Advice::LinuxPopulateWrite } else { Advice::LinuxPopulateRead };
        // SAFETY: faulting in pages changes no content. The second call covers 0 bytes, so it fails
        // only if the kernel does not know the advice.
        let (done, is_known) = unsafe {
            let done = madvise(pages, bytes, advice);
            (done, done != Err(Errno::INVAL) || madvise(pages, 0, advice).is_ok())
        };
        let done = match is_known {
            true => done,
            // Linux before 5.14 does not know it. There, only check that the pages are mapped.
            // SAFETY: an asynchronous `msync` neither reads nor writes memory.
            false => unsafe { msync(pages, bytes, MsyncFlags::ASYNC) },
        };
        done.map_err(|_| Errno::FAULT)
    }

    /// The range for registration under an address that the program chose.
    pub(crate) fn range(&self, address: u64) -> MemoryRange {
        MemoryRange { at: self.at, bytes: self.bytes as u64, address }
    }

    /// Returns `false` if any byte is outside of the range.
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

    /// Reads a word. Everything that the program wrote before it is visible after the call
    /// (acquire).
    pub(crate) fn word(&self, nth: usize) -> u32 {
        let mut bytes = [0; 4];
        let _ = self.0.read(nth * 4, &mut bytes);
        fence(Ordering::Acquire);
        be32(&bytes, 0)
    }
}

/// A context, created by one `open` of `uverbsN`.
#[derive(Debug)]
pub(crate) struct Context {
    pub(crate) pages: DoorbellPages,
    pub(crate) events: EventQueue<16>,
    /// Completion channels, by the program's descriptor.
    pub(crate) channels: BTreeMap<i32, EventQueue<8>>,
    pub(crate) cqe_version: u8,
    /// The register of the next queue pair. Register 0 has no BlueFlame.
    pub(crate) next_register: u32,
    /// Registers from this number on were never assigned to a queue pair.
    pub(crate) registers: u32,
    pub(crate) pds: Vec<u32>,
}

#[derive(Debug)]
pub(crate) struct RegionObject {
    pub(crate) context: u32,
    pub(crate) lkey: LKey,
    /// The pages of the region, if peers can map them.
    pub(crate) pages: Option<Arc<SharedPages>>,
    pub(crate) memory: ProgramMemory,
    /// The address that work requests use for the first byte.
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
    /// The number of written entries. Doorbell records hold only its lowest 24 bits.
    pub(crate) produced: u32,
    /// Whether the queue has overrun.
    pub(crate) is_dead: bool,
    pub(crate) ignores_overrun: bool,
    /// The last arm word of the record that was handled.
    pub(crate) arm_seen: u32,
    pub(crate) armed: Option<Arm>,
    /// The value of `produced` after the last entry that was solicited or has an error.
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

/// The length of the next-slot segment, which precedes the data segments in the slots of shared
/// receive queues.
pub(crate) const NEXT: usize = 16;

/// Bytes of a slot that are read, at most.
const SLOT_BYTES_MAX: usize = NEXT + 16 * SGES_MAX;

impl RecvSlots {
    /// Copies the receive WQE at an index to `slot`.
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
    /// The send ring, and its L_Key for inline data, which is sent from the ring.
    pub(crate) send_ring: Option<(ProgramMemory, LKey)>,
    pub(crate) send_blocks: u32,
    pub(crate) record: Record,
    pub(crate) intake: Intake,
    /// The receive ring; `None` with a shared receive queue.
    pub(crate) recv_slots: Option<RecvSlots>,
    pub(crate) signals_all: bool,
    /// Multicast groups that the queue pair is attached to.
    pub(crate) groups: Vec<(Gid, Lid)>,
    /// Whether the CQEs of short received messages contain the message (scatter to CQE).
    pub(crate) scatters_receives: bool,
}

/// The state of a send ring: the index of the next block to take, modulo 2^16.
///
/// ```text
///            modified to another state          doorbell
///   Reset ---------------------------> Idle ----------------> Rung
///     ^                                  ^ <----------------    |
///     |                                  |   record reached     | invalid WQE
///     |                                  |                      v
///     +---- modified to Reset, from all -+------------------ Stopped
/// ```
///
/// In Rung, each turn tries to take WQEs, also while the adapter accepts none.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Intake {
    /// No WQEs are taken. The ring restarts at index 0.
    Reset,
    Idle(u16),
    Rung(u16),
    Stopped,
}

impl Intake {
    /// Handles a change of the queue pair's state.
    pub(crate) fn enter(&mut self, state: QpState) {
        *self = match *self {
            _ if state == QpState::Reset => Self::Reset,
            Self::Reset => Self::Idle(0),
            other => other,
        };
    }

    /// Handles a doorbell at the register of the queue pair.
    pub(crate) fn ring(&mut self) {
        if let Self::Idle(next) = *self {
            *self = Self::Rung(next);
        }
    }

    /// Ends Rung, after all WQEs up to the doorbell record were taken.
    pub(crate) fn rest(&mut self) {
        if let Self::Rung(next) = *self {
            *self = Self::Idle(next);
        }
    }

    /// Stops taking WQEs, after an invalid one.
    pub(crate) fn stop(&mut self) {
        if let Self::Idle(_) | Self::Rung(_) = *self {
            *self = Self::Stopped;
        }
    }

    /// The index of the next WQE to take in Rung.
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
    /// The offset of a block in the send ring.
    pub(crate) fn block_at(&self, index: u16) -> usize {
        (u32::from(index) & (self.send_blocks.max(1) - 1)) as usize * BLOCK
    }
}

/// Cached address handles, by protection domain and the path in the datagram segment of a WQE.
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
