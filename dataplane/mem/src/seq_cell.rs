//! A sequence lock: a small value in shared memory with one writer and any number of readers, which
//! never delay the writer.
//!
//! A sequence number frames each write: odd during the write, even before and after. A reader
//! copies the value between two loads of the number and discards the copy if they differ. A write
//! costs two extra stores for any number of readers. A reader costs the writer only the transfer of
//! the cache line.
//!
//! Why a read has a limit of attempts: a writer that is killed during a write leaves the number odd
//! until its successor writes, and a malicious writer may never stop.

use crate::sync::{Ordering, fence};
use crate::words::{self, Plain, ReadWords, Words};
use std::marker::PhantomData;

const SEQUENCE_WORD: usize = 0;
const VALUE_WORD: usize = 1;

/// The writer of a cell. Only one process may have it at a time.
pub struct SeqWriter<T> {
    words: Words,
    sequence: u64,
    value: PhantomData<T>,
}

pub struct SeqReader<T> {
    words: ReadWords,
    value: PhantomData<T>,
}

/// The number of words that a cell of `T` takes.
pub const fn words_needed<T: Plain>() -> usize {
    VALUE_WORD + T::WORDS
}

impl<T: Plain> SeqWriter<T> {
    /// The writer of the cell in `words`. In fresh memory the value is zero. `None` if `words` is
    /// too short.
    ///
    /// The successor of a dead writer continues its sequence; a half-written value stays hidden
    /// until the next write.
    pub fn new(words: Words) -> Option<Self> {
        if words.as_slice().len() < words_needed::<T>() {
            return None;
        }
        let sequence = words.as_slice()[SEQUENCE_WORD].load(Ordering::Relaxed);
        Some(Self { words, sequence, value: PhantomData })
    }

    #[inline]
    pub fn write(&mut self, value: &T) {
        let words = self.words.as_slice();
        let writing = self.sequence | 1;
        words[SEQUENCE_WORD].store(writing, Ordering::Relaxed);
        // Release fence: a reader that loads any word of the new value, and then passes the acquire
        // fence in `try_read`, loads an odd number or a later one.
        fence(Ordering::Release);
        words::store(&words[VALUE_WORD..], value);
        self.sequence = writing.wrapping_add(1);
        // Release: a reader of the even number reads all of the value.
        words[SEQUENCE_WORD].store(self.sequence, Ordering::Release);
    }
}

impl<T: Plain> SeqReader<T> {
    /// A reader of the cell in `words`, which may be mapped read-only. `None` if `words` is too
    /// short.
    pub fn new(words: impl Into<ReadWords>) -> Option<Self> {
        let words = words.into();
        let is_enough = words.as_slice().len() >= words_needed::<T>();
        is_enough.then_some(Self { words, value: PhantomData })
    }

    /// Reads the value. `None` if a write was in progress.
    #[inline]
    pub fn try_read(&self) -> Option<T> {
        let words = self.words.as_slice();
        let before = words[SEQUENCE_WORD].load_acquire();
        let value = words::load(&words[VALUE_WORD..]);
        // The fence orders the loads of the value before the load of the number below. An acquire
        // load of the number would order only the loads after it.
        fence(Ordering::Acquire);
        let after = words[SEQUENCE_WORD].load();
        (before == after && before.is_multiple_of(2)).then_some(value)
    }

    /// `None` if a write is in progress at each of `tries` attempts.
    pub fn read(&self, tries: usize) -> Option<T> {
        (0..tries).find_map(|_| self.try_read())
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use crate::Segment;

    fn cell() -> (SeqWriter<[u64; 4]>, SeqReader<[u64; 4]>, Words) {
        let segment = Segment::create("cell", 4096).unwrap();
        let place = || Words::over(segment.map().unwrap());
        let writer = SeqWriter::new(place()).unwrap();
        (writer, SeqReader::new(place()).unwrap(), place())
    }

    #[test]
    fn a_written_value_is_read() {
        let (mut writer, reader, _) = cell();
        assert_eq!(reader.try_read(), Some([0; 4]));
        writer.write(&[1, 2, 3, 4]);
        assert_eq!(reader.read(1), Some([1, 2, 3, 4]));
    }

    #[test]
    fn a_writer_that_died_hides_its_half_until_a_successor_writes() {
        let (mut writer, reader, words) = cell();
        writer.write(&[1; 4]);
        words.as_slice()[SEQUENCE_WORD].fetch_add(1, Ordering::Relaxed);
        assert_eq!(reader.read(1000), None);
        let mut successor = SeqWriter::<[u64; 4]>::new(words).unwrap();
        assert_eq!(reader.try_read(), None);
        successor.write(&[2; 4]);
        assert_eq!(reader.try_read(), Some([2; 4]));
    }
}
