//! The pages whose accesses are trapped: doorbell pages, and pages of doorbell records.
//! `store_steps` stops the program at an access, this module finds what it stored, and
//! `store_rules` checks it.
//!
//! Doorbell pages are mapped without access rights, so that loads are trapped, too. Pages of
//! records stay readable, because the adapter reads the records in the same pages.
//!
//! To find which words of a doorbell page a store has written, its cache line is filled with
//! [`UNSTORED`] before the store. Words that differ afterward were stored.

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

/// Fault messages that are printed, at most.
const LINES_MAX: u64 = 20;
/// The length of a cache line. A store does not cross its end.
const LINE_BYTES: u64 = 64;
/// The value of all words of a line before a store. No program stores it.
const UNSTORED: u64 = 0x5ad1_f00d_5ad1_f00d;

static IS_ON: AtomicBool = AtomicBool::new(false);
/// If a thread needs both locks, it takes the adapter's lock first.
static TRAP: Mutex<Trap> =
    Mutex::new(Trap { pages: BTreeMap::new(), rules: Rules::new(), step: None });

struct Trap {
    /// Closed pages, by address.
    pages: BTreeMap<u64, Page>,
    rules: Rules,
    /// The access in progress, of the thread that has locked the adapter.
    step: Option<Step>,
}

/// The kind of a closed page.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Page {
    /// A doorbell page, at an offset of the context's file.
    Doorbells { context: u32, offset: usize },
    /// A page with records of queue pairs, and perhaps of other objects.
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
    /// The address of the line that is accessed.
    line: u64,
    /// The words of the line before the access.
    before: Line,
    is_store: bool,
    /// The thread's signal mask before the access.
    blocked: u64,
}

fn trap() -> MutexGuard<'static, Trap> {
    TRAP.lock().unwrap_or_else(PoisonError::into_inner)
}

pub(crate) fn is_on() -> bool {
    IS_ON.load(Ordering::Relaxed)
}

/// Turns trapping on, for pages that are mapped from now on.
pub(crate) fn turn_on() {
    IS_ON.store(true, Ordering::Relaxed);
}

/// Adds doorbell pages of a context, which the caller has mapped without access rights, from an
/// offset of the context's file.
pub(crate) fn watch_doorbells(context: u32, address: u64, bytes: usize, offset: usize) {
    let mut trap = trap();
    for at in (0..bytes).step_by(PAGE_BYTES) {
        let page = Page::Doorbells { context, offset: offset + at };
        trap.pages.insert(address + at as u64, page);
    }
}

/// Closes the pages that contain records of queue pairs, and opens pages that no longer do.
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

/// Removes the doorbell pages of a closed context.
pub(crate) fn forget(closed: u32) {
    let mut trap = trap();
    let is_of = |page: &Page| matches!(page, Page::Doorbells { context, .. } if *context == closed);
    trap.pages.retain(|_, page| !is_of(page));
    trap.rules.forget(closed);
}

/// Whether the page of an address is closed.
pub(crate) fn is_closed(address: u64) -> bool {
    trap().pages.contains_key(&page_of(address))
}

/// Opens the page for an access of this thread, which must have locked the adapter. `blocked` is
/// the thread's signal mask before the access. Returns `false` if the page is not closed.
pub(crate) fn open(address: u64, is_store: bool, blocked: u64) -> bool {
    trap().open(address, is_store, blocked).is_some()
}

/// Closes the page again after an access, and checks what was stored. Returns the thread's signal
/// mask before the access; `None` if there is no access in progress.
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
    // SAFETY: the page is one of libmlx5's, which contains only doorbells or records. If the rights
    // do not allow an access, it raises SIGSEGV. The handler in `store_steps` then opens the page,
    // and the access is repeated.
    let _ = unsafe { mprotect(page as *mut c_void, PAGE_BYTES, rights) };
}

impl Trap {
    /// Opens the page of an access; `None` if it is not closed.
    fn open(&mut self, address: u64, is_store: bool, blocked: u64) -> Option<()> {
        let page = page_of(address);
        let kind = *self.pages.get(&page)?;
        protect(page, MprotectFlags::READ | MprotectFlags::WRITE);
        let line = address / LINE_BYTES * LINE_BYTES;
        // SAFETY: the line is in the page, which is open now.
        let before = unsafe { read_line(line) };
        if is_store && kind != Page::Records {
            // SAFETY: the page is open. The adapter, which reads the line, is locked by this
            // thread.
            unsafe { write_line(line, [Some(UNSTORED); _]) };
        }
        self.step = Some(Step { page, kind, line, before, is_store, blocked });
        Some(())
    }

    /// Closes the page of an access, and checks what was stored.
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
                // SAFETY: the page is open, and the adapter is locked, as in `open`.
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
    // SAFETY: the line is readable by our contract, and `nth` is within it.
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
            // SAFETY: the line is writable by our contract, and `nth` is within it.
            unsafe { words.add(nth).write_volatile(word) };
        }
    }
}
