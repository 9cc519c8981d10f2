//! The pages that the program stores to only step by step, and what each step has stored: doorbell
//! pages and records. `store_steps` stops the program there, `store_rules` judges.
//!
//! Doorbell pages are mapped without rights, so that loads are seen too. Pages of records stay
//! readable: the adapter reads them in the same place.
//!
//! What a store has written is found by its absence elsewhere: before it, the line is filled with a
//! word that no program stores.

use crate::doorbell::PAGE_BYTES;
use crate::hca::Hca;
use crate::store_rules::{Counts, Rules, StoreFault, WORD};
use crate::wqe::be32;
use pollux_hca::Link;
use rustix::mm::{MprotectFlags, mprotect};
use std::collections::{BTreeMap, BTreeSet};
use std::ffi::c_void;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

/// Lines about faults, at most.
const LINES_MAX: u64 = 20;
/// Bytes of a line: a store is within one.
const LINE_BYTES: u64 = 64;
/// The words of a line before a store.
const UNSTORED: u64 = 0x5ad1_f00d_5ad1_f00d;

static IS_ON: AtomicBool = AtomicBool::new(false);
/// Locked after the adapter, by a thread that has it.
static TRAP: Mutex<Trap> =
    Mutex::new(Trap { pages: BTreeMap::new(), rules: Rules::new(), step: None });

struct Trap {
    /// Closed pages by their address.
    pages: BTreeMap<u64, Page>,
    rules: Rules,
    /// The store that is being done, by the thread that has the adapter.
    step: Option<Step>,
}

/// What a closed page is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Page {
    /// Doorbells, at an offset of a context's.
    Doorbells { context: u32, offset: usize },
    /// Records of queue pairs, with others.
    Records,
}

impl Page {
    fn rights(self) -> MprotectFlags {
        match self {
            Self::Doorbells { .. } => MprotectFlags::empty(),
            Self::Records => MprotectFlags::READ,
        }
    }
}

type Line = [u64; LINE_BYTES as usize / WORD];

#[derive(Clone, Copy, Debug)]
struct Step {
    page: u64,
    kind: Page,
    /// The address of the line, and its words before.
    line: u64,
    before: Line,
    is_store: bool,
    /// The signals that the thread blocks.
    blocked: u64,
}

fn trap() -> MutexGuard<'static, Trap> {
    TRAP.lock().unwrap_or_else(PoisonError::into_inner)
}

pub(crate) fn is_on() -> bool {
    IS_ON.load(Ordering::Relaxed)
}

/// Begins: pages that are mapped from now on are closed.
pub(crate) fn turn_on() {
    IS_ON.store(true, Ordering::Relaxed);
}

/// Doorbell pages of a context were mapped without rights, from an offset of its file.
pub(crate) fn watch_doorbells(context: u32, address: u64, bytes: usize, offset: usize) {
    let mut trap = trap();
    for at in (0..bytes).step_by(PAGE_BYTES) {
        let page = Page::Doorbells { context, offset: offset + at };
        trap.pages.insert(address + at as u64, page);
    }
}

/// Closes the pages of records that queue pairs have, and opens those that none has any more.
pub(crate) fn watch_records<L: Link>(hca: &Hca<L>) {
    let mut trap = trap();
    let used: BTreeSet<u64> = hca.qps.iter().map(|(_, qp)| page_of(qp.record.address())).collect();
    trap.pages.retain(|address, page| {
        let is_kept = *page != Page::Records || used.contains(address);
        is_kept || {
            protect(*address, MprotectFlags::READ | MprotectFlags::WRITE);
            false
        }
    });
    for address in used {
        trap.pages.entry(address).or_insert_with(|| {
            protect(address, Page::Records.rights());
            Page::Records
        });
    }
}

/// A context is closed; its pages are unmapped.
pub(crate) fn forget(closed: u32) {
    let mut trap = trap();
    let is_of = |page: &Page| matches!(page, Page::Doorbells { context, .. } if *context == closed);
    trap.pages.retain(|_, page| !is_of(page));
    trap.rules.forget(closed);
}

/// Whether a page is closed that has this address.
pub(crate) fn is_closed(address: u64) -> bool {
    trap().pages.contains_key(&page_of(address))
}

/// Opens the page of an access, by the thread that has the adapter and blocks these signals. Says
/// whether it was closed.
pub(crate) fn open(address: u64, is_store: bool, blocked: u64) -> bool {
    trap().open(address, is_store, blocked).is_some()
}

/// After the access: closes its page again, and judges what was stored; returns the signals that
/// the thread blocks. `None` without an access.
pub(crate) fn close<L: Link>(hca: Option<&Hca<L>>) -> Option<u64> {
    let mut trap = trap();
    let step = trap.step.take()?;
    let faults = trap.close(&step, hca);
    trap.report(&faults);
    Some(step.blocked)
}

pub(crate) fn counts() -> Counts {
    trap().rules.counts
}

fn page_of(address: u64) -> u64 {
    address / PAGE_BYTES as u64 * PAGE_BYTES as u64
}

fn protect(page: u64, rights: MprotectFlags) {
    // SAFETY: the page is libmlx5's, for doorbells or records alone. Its rights only decide whether
    // the handlers below are called.
    let _ = unsafe { mprotect(page as *mut c_void, PAGE_BYTES, rights) };
}

impl Trap {
    /// Opens a page for an access; `None` if it is not closed.
    fn open(&mut self, address: u64, is_store: bool, blocked: u64) -> Option<()> {
        let page = page_of(address);
        let kind = *self.pages.get(&page)?;
        protect(page, MprotectFlags::READ | MprotectFlags::WRITE);
        let line = address / LINE_BYTES * LINE_BYTES;
        // SAFETY: the line is in the page, which was opened.
        let before = unsafe { read_line(line) };
        if is_store && kind != Page::Records {
            // SAFETY: as above; the adapter, which reads it, is locked.
            unsafe { write_line(line, [Some(UNSTORED); _]) };
        }
        self.step = Some(Step { page, kind, line, before, is_store, blocked });
        Some(())
    }

    /// Closes the page of the access that was done, and judges that.
    fn close<L: Link>(&mut self, step: &Step, hca: Option<&Hca<L>>) -> Vec<StoreFault> {
        // SAFETY: the line is in the page, which is open until the end of this function.
        let after = unsafe { read_line(step.line) };
        let at = (step.line - step.page) as usize;
        let mut faults = Vec::new();
        match (step.kind, hca) {
            (Page::Doorbells { offset, .. }, _) if !step.is_store => {
                faults.extend(self.rules.load(offset + at).err());
            }
            (Page::Doorbells { context, offset }, hca) => {
                let is_stored = after.map(|word| word != UNSTORED);
                let words =
                    std::array::from_fn(|nth| (!is_stored[nth]).then_some(step.before[nth]));
                // SAFETY: as above, and as in `open`.
                unsafe { write_line(step.line, words) };
                for nth in (0..after.len()).filter(|nth| is_stored[*nth]) {
                    let Some(hca) = hca else { continue };
                    let (at, word) = (offset + at + nth * WORD, after[nth].to_ne_bytes());
                    faults.extend(self.rules.store(hca, context, at, word).err());
                }
            }
            (Page::Records, Some(hca)) => {
                let is_here = |address: u64| address / LINE_BYTES * LINE_BYTES == step.line;
                for (_, qp) in hca.qps.iter().filter(|(_, qp)| is_here(qp.record.address())) {
                    let nth = (qp.record.address() - step.line) as usize / WORD;
                    let before = be32(&step.before[nth].to_ne_bytes(), 4) as u16;
                    faults.extend(self.rules.record(qp, before).err());
                }
            }
            (Page::Records, None) => {}
        }
        protect(step.page, step.kind.rights());
        faults
    }

    fn report(&self, faults: &[StoreFault]) {
        let lines = LINES_MAX.saturating_sub(self.rules.counts.wrong - faults.len() as u64);
        for fault in faults.iter().take(lines as usize) {
            eprintln!("pollux-connectx: trap: {fault}");
        }
    }
}

/// # Safety
/// The line is mapped for reading.
unsafe fn read_line(line: u64) -> Line {
    let words = line as *const u64;
    // SAFETY: as our caller says.
    std::array::from_fn(|nth| unsafe { words.add(nth).read_volatile() })
}

/// Writes words of a line.
///
/// # Safety
/// The line is mapped for writing, and its words may be changed.
unsafe fn write_line(line: u64, line_words: [Option<u64>; LINE_BYTES as usize / WORD]) {
    let words = line as *mut u64;
    for (nth, word) in line_words.into_iter().enumerate() {
        if let Some(word) = word {
            // SAFETY: as our caller says.
            unsafe { words.add(nth).write_volatile(word) };
        }
    }
}
