//! What workers count, in memory that other processes can read.
//!
//! ```text
//! word 0    how the rest is to be read: a mark, with a version in it
//!      1    how many workers there are
//! then      for each a cell (`pollux_mem::seq_cell`) on lines of its own, of the words of
//!           `WorkerCounts` in their order
//! ```
//!
//! A worker writes its cell when it keeps house, and nobody who reads can delay it. The segment has
//! no name; whoever may look into the process opens it as `/proc/PID/fd/N`, and whoever asks the
//! node is told which that is. A worker that hangs is seen from outside that way as well: its
//! breaths stand still.

use pollux_mem::region::MapError;
use pollux_mem::seq_cell::{self, SeqReader, SeqWriter};
use pollux_mem::{ReadWords, Segment, Words};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::atomic::Ordering;

/// What a worker did since it began.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct WorkerCounts {
    /// Breaths.
    pub breaths: u64,
    /// Those in which there was something to do.
    pub busy_breaths: u64,
    /// Packets that came and went.
    pub packets: u64,
    /// Sleeps and naps.
    pub sleeps: u64,
    /// How long they took together.
    pub asleep_nanos: u64,
    /// How long breaths took in which there was something to do.
    pub busy_nanos: u64,
}

/// Words of a cell's value.
const WORDS: usize = 6;
type Cell = [u64; WORDS];

impl WorkerCounts {
    const fn to_words(self) -> Cell {
        let Self { breaths, busy_breaths, packets, sleeps, asleep_nanos, busy_nanos } = self;
        [breaths, busy_breaths, packets, sleeps, asleep_nanos, busy_nanos]
    }

    const fn of_words(words: Cell) -> Self {
        let [breaths, busy_breaths, packets, sleeps, asleep_nanos, busy_nanos] = words;
        Self { breaths, busy_breaths, packets, sleeps, asleep_nanos, busy_nanos }
    }
}

/// Workers of a node, at most.
pub const WORKERS_MAX: usize = 256;
const MARK: u64 = u64::from_be_bytes(*b"plxwrk\x00\x01");
/// A writer at work is done after a few tries; one that died in it never is.
const TRIES: usize = 1000;
const PAGE_BYTES_MAX: usize = 1 << 16;

/// The side that writes: one worker's.
pub struct CountsWriter(SeqWriter<Cell>);

/// The memory of all workers, which can be read.
pub struct Counts {
    segment: Segment,
    readers: Vec<SeqReader<Cell>>,
}

impl Counts {
    /// Memory for so many workers, at most [`WORKERS_MAX`], and what each writes by.
    pub fn create(workers: usize) -> Result<(Self, Vec<CountsWriter>), MapError> {
        let workers = workers.min(WORKERS_MAX);
        let segment = Segment::create("pollux-workers", bytes(workers))?;
        let mut words = Words::over(segment.map()?);
        // Whoever is given the descriptor reads. Where the kernel cannot see to that (before Linux
        // 5.1), a reader that lies harms what is told of the workers, and nothing else.
        let _ = segment.seal();
        let head = words.take(2).expect("the segment has room");
        head.as_slice()[1].store(workers as u64, Ordering::Relaxed);
        head.as_slice()[0].store(MARK, Ordering::Release);
        let cells = cells(workers, |count| words.take(count)).expect("the segment has room");
        let writers = cells.into_iter().map(CountsWriter::over);
        let writers = writers.collect();
        Ok((Self::over(segment)?.expect("it was just made"), writers))
    }

    /// That of another process; `None` if it is none.
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

    /// What each worker said last; `None` for one that died while it said something.
    pub fn read(&self) -> impl Iterator<Item = Option<WorkerCounts>> {
        self.readers.iter().map(|cell| cell.read(TRIES).map(WorkerCounts::of_words))
    }
}

impl AsFd for Counts {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.segment.as_fd()
    }
}

impl CountsWriter {
    fn over(words: Words) -> Self {
        Self(SeqWriter::new(words).expect("the place is large enough"))
    }

    /// For a worker of which nobody wants to know.
    pub fn nowhere() -> Result<Self, MapError> {
        Words::private(seq_cell::words_needed::<Cell>()).map(Self::over)
    }

    /// Shows what was counted.
    pub(super) fn write(&mut self, counts: &WorkerCounts) {
        self.0.write(&counts.to_words());
    }
}

/// Bytes of the head and so many cells.
fn bytes(workers: usize) -> usize {
    let lines = |words: usize| words.next_multiple_of(pollux_mem::words::LINE_WORDS);
    8 * (lines(2) + workers * lines(seq_cell::words_needed::<Cell>()))
}

/// A place for each worker, as `take` cuts it.
fn cells<W>(workers: usize, mut take: impl FnMut(usize) -> Option<W>) -> Option<Vec<W>> {
    (0..workers).map(|_| take(seq_cell::words_needed::<Cell>())).collect()
}
