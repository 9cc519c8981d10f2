//! What a program has made through its contexts: queues, regions and channels.

use crate::doorbell::DoorbellPages;
use crate::events::EventQueue;
use crate::wqe::{BLOCK, be32};
use pollux_hca::MemoryRange;
use pollux_mem::Memory;
use pollux_mem::region::Region;
use pollux_verbs::{Ah, Cq, LKey, Qp, QpState, QpType, Srq};
use pollux_wire::address::Qpn;
use rustix::mm::{MsyncFlags, msync};
use std::collections::BTreeMap;
use std::ptr::NonNull;
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

const PAGE: u64 = 4096;

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

    /// Whether all of its pages are mapped.
    pub(crate) fn is_mapped(&self) -> bool {
        let pages = self.memory.address() as *mut std::ffi::c_void;
        // SAFETY: an asynchronous `msync` reads and writes nothing; the kernel only checks that the
        // pages are there.
        unsafe { msync(pages, self.memory.bytes(), MsyncFlags::ASYNC) }.is_ok()
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
    pub(crate) fn at(address: u64) -> Option<Self> {
        ProgramMemory::at(address, 8).map(Self)
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
    pub(crate) pds: Vec<u32>,
}

#[derive(Debug)]
pub(crate) struct RegionObject {
    pub(crate) context: u32,
    pub(crate) lkey: LKey,
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
    pub(crate) is_armed: bool,
}

#[derive(Debug)]
pub(crate) struct SrqObject {
    pub(crate) context: u32,
    pub(crate) srq: Srq,
    pub(crate) user_handle: u64,
    pub(crate) ring: ProgramMemory,
    pub(crate) record: Record,
    pub(crate) slots: u32,
    pub(crate) slot_bytes: usize,
    /// The next slot to take, and the number taken.
    pub(crate) head: u32,
    pub(crate) taken: u16,
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
    pub(crate) recv_ring: Option<ProgramMemory>,
    pub(crate) recv_slots: u32,
    pub(crate) recv_slot_bytes: usize,
    pub(crate) record: Record,
    pub(crate) intake: Intake,
    pub(crate) caps: [u32; 5],
    pub(crate) signals_all: bool,
}

/// How far the rings of a queue pair were taken.
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
/// In Rung, the send ring is looked at in each turn, also while the adapter has no space for more.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Intake {
    /// Nothing is taken. Both rings begin again at index 0.
    Reset,
    Idle(Taken),
    Rung(Taken),
    /// Receives only, which are flushed.
    Stopped(Taken),
}

/// Indexes of the next WQEs: blocks of the send ring, and receives. They wrap around.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Taken {
    pub(crate) sends: u16,
    pub(crate) recvs: u16,
}

impl Intake {
    /// The queue pair was modified to a state.
    pub(crate) fn enter(&mut self, state: QpState) {
        *self = match *self {
            _ if state == QpState::Reset => Self::Reset,
            Self::Reset => Self::Idle(Taken::default()),
            other => other,
        };
    }

    /// The doorbell of its register was rung.
    pub(crate) fn ring(&mut self) {
        if let Self::Idle(taken) = *self {
            *self = Self::Rung(taken);
        }
    }

    /// All that the record allows was taken.
    pub(crate) fn rest(&mut self) {
        if let Self::Rung(taken) = *self {
            *self = Self::Idle(taken);
        }
    }

    /// A send WQE was wrong.
    pub(crate) fn stop(&mut self) {
        if let Self::Idle(taken) | Self::Rung(taken) = *self {
            *self = Self::Stopped(taken);
        }
    }

    /// The index of the next send WQE, if its doorbell was rung.
    pub(crate) fn next_send(&self) -> Option<u16> {
        if let Self::Rung(taken) = self { Some(taken.sends) } else { None }
    }

    pub(crate) fn take_send(&mut self, blocks: u16) {
        if let Self::Rung(taken) = self {
            taken.sends = taken.sends.wrapping_add(blocks);
        }
    }

    /// The index of the next receive.
    pub(crate) fn next_recv(&self) -> Option<u16> {
        match self {
            Self::Reset => None,
            Self::Idle(taken) | Self::Rung(taken) | Self::Stopped(taken) => Some(taken.recvs),
        }
    }

    pub(crate) fn take_recv(&mut self) {
        if let Self::Idle(taken) | Self::Rung(taken) | Self::Stopped(taken) = self {
            taken.recvs = taken.recvs.wrapping_add(1);
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
        let taken = Taken { sends: 5, recvs: 7 };
        let (idle, rung, stopped) =
            (Intake::Idle(taken), Intake::Rung(taken), Intake::Stopped(taken));
        let fresh = Intake::Idle(Taken::default());
        let sent = Intake::Rung(Taken { sends: 8, recvs: 7 });
        let received = Taken { sends: 5, recvs: 8 };
        let events: [fn(&mut Intake); 7] = [
            |state| state.enter(QpState::Reset),
            |state| state.enter(QpState::Err),
            Intake::ring,
            Intake::rest,
            Intake::stop,
            |state| state.take_send(3),
            Intake::take_recv,
        ];
        let reset = Intake::Reset;
        for (from, to) in [
            (reset, [reset, fresh, reset, reset, reset, reset, reset]),
            (idle, [reset, idle, rung, idle, stopped, idle, Intake::Idle(received)]),
            (rung, [reset, rung, rung, idle, stopped, sent, Intake::Rung(received)]),
            (
                stopped,
                [reset, stopped, stopped, stopped, stopped, stopped, Intake::Stopped(received)],
            ),
        ] {
            let after = events.map(|event| {
                let mut state = from;
                event(&mut state);
                state
            });
            assert_eq!(after, to, "from {from:?}");
        }
        let all = [reset, idle, rung, stopped];
        assert_eq!(all.map(|state| state.next_send()), [None, None, Some(5), None]);
        assert_eq!(all.map(|state| state.next_recv()), [None, Some(7), Some(7), Some(7)]);
    }

    #[test]
    fn indexes_wrap_around() {
        let mut state = Intake::Rung(Taken { sends: 65_535, recvs: 65_535 });
        state.take_send(2);
        state.take_recv();
        assert_eq!(state, Intake::Rung(Taken { sends: 1, recvs: 0 }));
    }
}
