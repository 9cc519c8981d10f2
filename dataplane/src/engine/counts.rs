//! Counters of workers, in shared memory that other processes can read.
//!
//! ```text
//! word 0    a magic number with the version of the layout
//!      1    the number of workers
//! then      for each worker a cell (`pollux_mem::seq_cell`) on its own cache lines, which has the
//!           fields of `WorkerCounts` in order
//! ```
//!
//! A worker writes its cell in housekeeping, and readers cannot delay it. The segment has no name:
//! a process with the permission opens it as `/proc/PID/fd/N`, and the node reports N. The counters
//! also show a worker that hangs, because its breaths do not increase.

use pollux_mem::region::MapError;
use pollux_mem::seq_cell::{self, SeqReader, SeqWriter};
use pollux_mem::{ReadWords, Segment, Words};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::atomic::Ordering;

/// Counters since the start of the worker.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct WorkerCounts {
    pub breaths: u64,
    pub busy_breaths: u64,
    pub packets: u64,
    pub sleeps: u64,
    pub asleep_nanos: u64,
    pub busy_nanos: u64,
    /// The time from the first breath to the last housekeeping.
    pub running_nanos: u64,
}

const WORDS: usize = 7;
type Cell = [u64; WORDS];

impl WorkerCounts {
    const fn to_words(self) -> Cell {
        let Self {
            breaths,
            busy_breaths,
            packets,
            sleeps,
            asleep_nanos,
            busy_nanos,
            running_nanos,
        } = self;
        [breaths, busy_breaths, packets, sleeps, asleep_nanos, busy_nanos, running_nanos]
    }

    const fn of_words(words: Cell) -> Self {
        let [breaths, busy_breaths, packets, sleeps, asleep_nanos, busy_nanos, running_nanos] =
            words;
        Self { breaths, busy_breaths, packets, sleeps, asleep_nanos, busy_nanos, running_nanos }
    }
}

pub const WORKERS_MAX: usize = 256;
const MARK: u64 = u64::from_be_bytes(*b"plxwrk\x00\x02");
/// The number of attempts to read a cell. A write in progress ends within a few of them; the write
/// of a dead worker never ends.
const TRIES: usize = 1000;
const PAGE_BYTES_MAX: usize = 1 << 16;

pub struct CountsWriter(SeqWriter<Cell>);

pub struct CountsSegment {
    segment: Segment,
    readers: Vec<SeqReader<Cell>>,
}

impl CountsSegment {
    /// Creates the memory, for at most [`WORKERS_MAX`] workers, and the writer of each worker.
    pub fn create(workers: usize) -> Result<(Self, Vec<CountsWriter>), MapError> {
        let workers = workers.min(WORKERS_MAX);
        let segment = Segment::create("pollux-workers", bytes(workers))?;
        let mut words = Words::over(segment.map()?);
        // After the seal, a receiver of the descriptor can only read. If the kernel cannot enforce
        // that (before Linux 5.1), a malicious reader can change the reported counters, but nothing
        // else.
        let _ = segment.seal();
        let head = words.take(2).expect("the segment has room");
        head.as_slice()[1].store(workers as u64, Ordering::Relaxed);
        head.as_slice()[0].store(MARK, Ordering::Release);
        let cells = cells(workers, |count| words.take(count)).expect("the segment has room");
        let writers = cells.into_iter().map(CountsWriter::over);
        let writers = writers.collect();
        Ok((Self::over(segment)?.expect("it was just made"), writers))
    }

    /// Opens the memory of another process. `None` if it has another layout.
    pub fn open(fd: OwnedFd) -> Result<Option<Self>, MapError> {
        Self::over(Segment::from_fd(fd, bytes(0)..=bytes(WORKERS_MAX) + PAGE_BYTES_MAX)?)
    }

    fn over(segment: Segment) -> Result<Option<Self>, MapError> {
        let mut words = ReadWords::of(&segment)?;
        let Some(head) = words.take(2) else { return Ok(None) };
        let mark = head.as_slice()[0].load_acquire();
        let workers = head.as_slice()[1].load();
        if mark != MARK || workers > WORKERS_MAX as u64 {
            return Ok(None);
        }
        let cells = cells(workers as usize, |count| words.take(count));
        let Some(cells) = cells else { return Ok(None) };
        let readers = cells.into_iter().map(SeqReader::new).collect::<Option<_>>();
        Ok(readers.map(|readers| Self { segment, readers }))
    }

    /// The counters of each worker. `None` for a worker that died during a write.
    pub fn read(&self) -> impl Iterator<Item = Option<WorkerCounts>> {
        self.readers.iter().map(|cell| cell.read(TRIES).map(WorkerCounts::of_words))
    }
}

impl AsFd for CountsSegment {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.segment.as_fd()
    }
}

impl CountsWriter {
    fn over(words: Words) -> Self {
        Self(SeqWriter::new(words).expect("the cell is large enough"))
    }

    /// A writer for a worker whose counters nobody reads.
    pub fn nowhere() -> Result<Self, MapError> {
        Words::private(seq_cell::words_needed::<Cell>()).map(Self::over)
    }

    pub(super) fn write(&mut self, counts: &WorkerCounts) {
        self.0.write(&counts.to_words());
    }
}

fn bytes(workers: usize) -> usize {
    let lines = |words: usize| words.next_multiple_of(pollux_mem::words::LINE_WORDS);
    8 * (lines(2) + workers * lines(seq_cell::words_needed::<Cell>()))
}

/// The aligned ranges of all workers, which `take` splits off one by one.
fn cells<W>(workers: usize, mut take: impl FnMut(usize) -> Option<W>) -> Option<Vec<W>> {
    (0..workers).map(|_| take(seq_cell::words_needed::<Cell>())).collect()
}
