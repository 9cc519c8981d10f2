//! Rules for stores to doorbell pages and doorbell records. Each store is checked at the moment
//! when it happens.
//!
//! - A store to the first word of a half of a register is a doorbell. Its value is the first word
//!   of a WQE in the ring of a queue pair that uses this register. The record of the queue pair is
//!   the index after this WQE. The half is not the one of the previous doorbell. The previous
//!   BlueFlame write to the register is complete.
//! - Stores to further words of the half (BlueFlame) are in ascending order. They have the values
//!   of the WQE in the ring, up to the end of its last block.
//! - A store to the register of completion queues has the value of the arm word in the record.
//! - When the record of a send queue is stored to, the ring already contains the WQEs up to it.
//!
//! A card may not notice a violation of these rules. The adapter here usually does not notice it
//! either, because it looks at rings and records later. `store_trap` therefore stops the program at
//! each store.

use crate::doorbell::StoreTarget;
use crate::hca::{Hca, low_24_bits};
use crate::objects::{Intake, QpObject};
use crate::wqe::{BLOCK, Control, be32};
use pollux_hca::Link;
use std::collections::BTreeMap;
use std::fmt;

/// The length of a word of a register.
pub(crate) const WORD: usize = 8;

/// The state of all registers, from the stores so far.
#[derive(Debug)]
pub(crate) struct Rules {
    /// Registers, by context and number.
    registers: BTreeMap<(u32, u32), Register>,
    pub(crate) counts: Counts,
}

/// The number of checked stores of each kind.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Counts {
    pub(crate) doorbells: u64,
    /// Words of BlueFlame writes after the first.
    pub(crate) words: u64,
    pub(crate) arms: u64,
    pub(crate) records: u64,
    /// Accesses that broke a rule, of any kind.
    pub(crate) wrong: u64,
}

impl Counts {
    const NONE: Self = Self { doorbells: 0, words: 0, arms: 0, records: 0, wrong: 0 };
}

impl fmt::Display for Counts {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { doorbells, words, arms, records, wrong } = self;
        let all = doorbells + words + arms + records;
        write!(
            f,
            "{all} stores judged ({doorbells} doorbells, {words} further words of WQEs, {arms} \
             arms, {records} records), {wrong} out of order"
        )
    }
}

#[derive(Debug, Default)]
struct Register {
    /// The half of the last doorbell.
    half: Option<usize>,
    /// Whether the program alternates between the halves. For doorbells of one word, it need not.
    uses_halves: bool,
    /// The progress of the last doorbell or BlueFlame write.
    last: Option<Written>,
}

/// A WQE that is being written to a register.
#[derive(Clone, Copy, Debug)]
struct Written {
    qpn: u32,
    index: u16,
    /// The length of the WQE's blocks.
    bytes: usize,
    /// The bytes stored so far.
    stored: usize,
}

impl Written {
    /// Whether the write is complete: a doorbell of one word, or a whole BlueFlame write.
    fn is_complete(&self) -> bool {
        self.stored == WORD || self.stored == self.bytes
    }
}

/// A violation of the rules.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum StoreFault {
    NoRegister { offset: usize },
    Load { offset: usize },
    NoQueuePair { qpn: u32, register: u32 },
    Register { qpn: u32, found: u32, own: u32 },
    Differs { qpn: u32, index: u16, at: usize },
    Record { qpn: u32, behind: u16, found: u16 },
    Half { register: u32, half: usize },
    Order { register: u32, at: usize },
    Cut { qpn: u32, index: u16, stored: usize, bytes: usize },
    NoCompletionQueue { cqn: u32 },
    Arm { cqn: u32, stored: u32, record: u32 },
    NoWqe { qpn: u32, index: u16, record: u16 },
}

impl fmt::Display for StoreFault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match *self {
            Self::NoRegister { offset } => write!(f, "no register is at {offset:#x}"),
            Self::Load { offset } => write!(f, "a load from a doorbell page, at {offset:#x}"),
            Self::NoQueuePair { qpn, register } => {
                write!(f, "queue pair {qpn:#x} of a doorbell at register {register} is not there")
            }
            Self::Register { qpn, found, own } => {
                write!(f, "queue pair {qpn:#x} has register {own}, and was rung at {found}")
            }
            Self::Differs { qpn, index, at } => {
                write!(f, "queue pair {qpn:#x}, WQE {index}: the ring has another byte {at}")
            }
            Self::Record { qpn, behind, found } => write!(
                f,
                "queue pair {qpn:#x}: the record is {found} at a doorbell for WQEs up to {behind}"
            ),
            Self::Half { register, half } => {
                write!(f, "register {register}: half {half} was rung twice in a row")
            }
            Self::Order { register, at } => {
                write!(f, "register {register}: byte {at} does not follow the store before")
            }
            Self::Cut { qpn, index, stored, bytes } => write!(
                f,
                "queue pair {qpn:#x}, WQE {index}: {stored} of {bytes} bytes were written to the \
                 register"
            ),
            Self::NoCompletionQueue { cqn } => {
                write!(f, "completion queue {cqn:#x}, which was armed, is not there")
            }
            Self::Arm { cqn, stored, record } => write!(
                f,
                "completion queue {cqn:#x}: armed by {stored:#x}, and the record is {record:#x}"
            ),
            Self::NoWqe { qpn, index, record } => write!(
                f,
                "queue pair {qpn:#x}: the record is {record}, and the ring has no WQE {index}"
            ),
        }
    }
}

type Judged = Result<(), StoreFault>;

impl Rules {
    pub(crate) const fn new() -> Self {
        Self { registers: BTreeMap::new(), counts: Counts::NONE }
    }

    /// Forgets the registers of a closed context.
    pub(crate) fn forget(&mut self, context: u32) {
        self.registers.retain(|(of, _), _| *of != context);
    }

    /// Checks a word that was stored to the doorbell pages of a context.
    pub(crate) fn store<L: Link>(
        &mut self,
        hca: &Hca<L>,
        context: u32,
        offset: usize,
        word: [u8; WORD],
    ) -> Judged {
        let target = StoreTarget::of(offset);
        match target {
            Some(StoreTarget::Send { at: 1.., .. }) => self.counts.words += 1,
            Some(StoreTarget::Arm) => self.counts.arms += 1,
            _ => self.counts.doorbells += 1,
        }
        let judged = match target {
            None => Err(StoreFault::NoRegister { offset }),
            Some(StoreTarget::Arm) => arm(hca, context, word),
            Some(StoreTarget::Send { register, half, at }) => {
                let kept = self.registers.entry((context, register)).or_default();
                match at {
                    0 => kept.begin(hca, (context, register), half, word),
                    _ => kept.go_on(hca, register, (half, at), word),
                }
            }
        };
        self.counts.wrong += u64::from(judged.is_err());
        judged
    }

    /// Counts a load from a doorbell page, which is always a violation.
    pub(crate) fn load(&mut self, offset: usize) -> Judged {
        self.counts.wrong += 1;
        Err(StoreFault::Load { offset })
    }

    /// Checks a store to the record of a queue pair, whose value was `before`.
    pub(crate) fn record(&mut self, qp: &QpObject, before: u16) -> Judged {
        let record = qp.record.word(1) as u16;
        // In state RESET, the library sets the record to 0.
        if record == before || qp.intake == Intake::Reset {
            return Ok(());
        }
        self.counts.records += 1;
        let qpn = qp.qpn.0;
        let mut index = before;
        while index != record {
            let left = record.wrapping_sub(index);
            let control = control_of(qp, index).filter(|control| {
                let is_next = control.index == index && control.qpn == qp.qpn;
                is_next && (1..=left).contains(&control.blocks())
            });
            let Some(control) = control else {
                self.counts.wrong += 1;
                return Err(StoreFault::NoWqe { qpn, index, record });
            };
            index = index.wrapping_add(control.blocks());
        }
        Ok(())
    }
}

impl Register {
    /// Checks a doorbell, which is a store to the first word of a half.
    fn begin<L: Link>(
        &mut self,
        hca: &Hca<L>,
        (context, register): (u32, u32),
        half: usize,
        word: [u8; WORD],
    ) -> Judged {
        let (last, before) = (self.last.take(), self.half.replace(half));
        self.uses_halves |= half != 0 || last.is_some_and(|last| last.stored > WORD);
        let mut head = [0; 16];
        head[..WORD].copy_from_slice(&word);
        let control = Control::parse(&head);
        let (qpn, index) = (control.qpn.0, control.index);
        let number = hca.by_qpn.get(&qpn);
        let qp = number.and_then(|number| hca.qps.get(*number));
        let qp = qp.filter(|qp| qp.context == context);
        let qp = qp.ok_or(StoreFault::NoQueuePair { qpn, register })?;
        let bytes = usize::from(control.blocks()) * BLOCK;
        self.last = Some(Written { qpn, index, bytes, stored: WORD });
        if let Some(Written { qpn, index, stored, bytes }) = last.filter(|one| !one.is_complete()) {
            return Err(StoreFault::Cut { qpn, index, stored, bytes });
        }
        if before == Some(half) && self.uses_halves {
            return Err(StoreFault::Half { register, half });
        }
        if qp.register != register {
            return Err(StoreFault::Register { qpn, found: register, own: qp.register });
        }
        is_in_ring(qp, index, 0, word)?;
        let behind = index.wrapping_add(control.blocks());
        match qp.record.word(1) as u16 {
            found if found == behind => Ok(()),
            found => Err(StoreFault::Record { qpn, behind, found }),
        }
    }

    /// Checks a further word of a BlueFlame write.
    fn go_on<L: Link>(
        &mut self,
        hca: &Hca<L>,
        register: u32,
        (half, at): (usize, usize),
        word: [u8; WORD],
    ) -> Judged {
        let is_half = self.half == Some(half);
        let next =
            self.last.as_mut().filter(|last| is_half && at == last.stored && at < last.bytes);
        let last = next.ok_or(StoreFault::Order { register, at })?;
        last.stored += WORD;
        let (qpn, index) = (last.qpn, last.index);
        let number = hca.by_qpn.get(&qpn);
        let qp = number.and_then(|number| hca.qps.get(*number));
        is_in_ring(qp.ok_or(StoreFault::NoQueuePair { qpn, register })?, index, at, word)
    }
}

/// Checks that the WQE at an index has this word at the offset `at`.
fn is_in_ring(qp: &QpObject, index: u16, at: usize, word: [u8; WORD]) -> Judged {
    match read_ring(qp, index, at) == Some(word) {
        true => Ok(()),
        false => Err(StoreFault::Differs { qpn: qp.qpn.0, index, at }),
    }
}

fn read_ring<const N: usize>(qp: &QpObject, index: u16, at: usize) -> Option<[u8; N]> {
    let (ring, _) = qp.send_ring.as_ref()?;
    let at = (qp.block_at(index) + at) % (qp.send_blocks as usize * BLOCK);
    let mut bytes = [0; N];
    ring.read(at, &mut bytes).then_some(bytes)
}

fn control_of(qp: &QpObject, index: u16) -> Option<Control> {
    read_ring(qp, index, 0).map(|head| Control::parse(&head))
}

fn arm<L: Link>(hca: &Hca<L>, context: u32, word: [u8; WORD]) -> Judged {
    let (stored, cqn) = (be32(&word, 0), be32(&word, 4));
    let mut all = hca.cqs.iter();
    let cq = all.find(|(number, cq)| cq.context == context && low_24_bits(*number) == cqn);
    let (_, cq) = cq.ok_or(StoreFault::NoCompletionQueue { cqn })?;
    let record = cq.record.word(1);
    match record == stored {
        true => Ok(()),
        false => Err(StoreFault::Arm { cqn, stored, record }),
    }
}
