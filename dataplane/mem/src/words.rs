//! Memory as atomic words: the only form in which this crate shares data between processes.
//!
//! A peer may write at any time, be killed during a write, or be malicious. If its bytes were read
//! as ordinary memory, the compiler could read them twice and get two different values, which is
//! undefined behavior. A relaxed load of an aligned word compiles to the same instruction and is
//! always defined. So a value is first copied word by word into private memory and validated there,
//! and everything built on words (rings, cells, counters) is safe code.
//!
//! Words that only a peer writes are mapped read-only, as [`ReadWords`], whose type has no store.
//!
//! Why [`Plain`]: any words that a peer writes must be a valid value of the type, and the type must
//! have no padding, which would leak private memory to the peer. zerocopy checks both.

use crate::pad::LINE_BYTES;
use crate::region::{MapError, Region};
use crate::segment::Segment;
use crate::sync::{AtomicU64, Ordering, fence};
use zerocopy::{FromBytes, Immutable, IntoBytes};

/// The alignment of ranges in words, so that two owners share no cache line.
pub const LINE_WORDS: usize = LINE_BYTES / size_of::<u64>();

const _: () = {
    assert!(size_of::<AtomicU64>() == 8 || cfg!(loom));
    assert!(align_of::<AtomicU64>() == 8 || cfg!(loom));
};

/// Values for shared memory: valid for any bytes, without padding, a multiple of 8 bytes long.
///
/// Types that derive zerocopy's `FromBytes`, `IntoBytes` and `Immutable`, and are `Copy`, implement
/// it. A wrong length is a compile error at the first use.
pub trait Plain: FromBytes + IntoBytes + Immutable + Copy + 'static {
    const WORDS: usize = {
        let bytes = size_of::<Self>();
        assert!(bytes > 0 && bytes.is_multiple_of(8), "a shared value has a multiple of 8 bytes");
        bytes / 8
    };
}

impl<T: FromBytes + IntoBytes + Immutable + Copy + 'static> Plain for T {}

/// A range of words on its own cache lines. A clone is another handle on the same words.
#[derive(Clone, Debug)]
pub struct Words {
    range: memory::Range,
}

/// A range of words that this process only reads. The type has no store:
///
/// ```compile_fail,E0599
/// use pollux_mem::{ReadWords, Segment};
/// use std::sync::atomic::Ordering;
///
/// let segment = Segment::create("theirs", 4096).unwrap();
/// let words = ReadWords::of(&segment).unwrap();
/// words.as_slice()[0].store(1, Ordering::Relaxed);
/// ```
#[derive(Clone, Debug)]
pub struct ReadWords {
    range: memory::Range,
}

/// A word that another process may write at any time.
#[derive(Debug)]
#[repr(transparent)]
pub struct ReadWord(pub(crate) AtomicU64);

impl ReadWord {
    #[inline(always)]
    pub fn load(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }

    /// Pairs with a store with `Release`.
    #[inline(always)]
    pub fn load_acquire(&self) -> u64 {
        // Why not a load with `Acquire`: the language allows only relaxed loads from read-only
        // pages, because other loads may be compiled to instructions that write.
        let value = self.load();
        fence(Ordering::Acquire);
        value
    }
}

impl Words {
    /// All complete cache lines of `region`.
    pub fn over(region: Region) -> Self {
        let range = memory::Range::lines(region);
        assert!(range.is_writable(), "regions that are only read stay in this crate");
        Self { range }
    }

    /// At least `count` zeroed words in private memory.
    pub fn private(count: usize) -> Result<Self, MapError> {
        let bytes = count.checked_mul(8).ok_or(MapError::BadSize { bytes: count })?;
        Region::anonymous(bytes).map(Self::over)
    }

    /// Splits a range of at least `count` words off the front. `None` if fewer are left.
    ///
    /// Two processes that split the same segment in the same order get the same ranges.
    #[must_use]
    pub fn take(&mut self, count: usize) -> Option<Self> {
        let count = count.checked_next_multiple_of(LINE_WORDS)?;
        Some(Self { range: self.range.cut(count)? })
    }

    #[inline(always)]
    pub fn as_slice(&self) -> &[AtomicU64] {
        self.range.targets()
    }
}

impl ReadWords {
    /// All complete cache lines of a segment, mapped read-only.
    pub fn of(segment: &Segment) -> Result<Self, MapError> {
        segment.map_to_read().map(Self::over)
    }

    pub(crate) fn over(region: Region) -> Self {
        Self { range: memory::Range::lines(region) }
    }

    /// Splits a range off the front, as [`Words::take`] does.
    #[must_use]
    pub fn take(&mut self, count: usize) -> Option<Self> {
        let count = count.checked_next_multiple_of(LINE_WORDS)?;
        Some(Self { range: self.range.cut(count)? })
    }

    #[inline(always)]
    pub fn as_slice(&self) -> &[ReadWord] {
        self.range.sources()
    }

    /// Empty if the pages are mapped read-only.
    #[inline(always)]
    pub(crate) fn targets(&self) -> &[AtomicU64] {
        self.range.targets()
    }
}

impl From<Words> for ReadWords {
    fn from(words: Words) -> Self {
        Self { range: words.range }
    }
}

/// Writes a value as relaxed words. The caller is responsible for ordering.
#[inline(always)]
pub(crate) fn store<T: Plain>(words: &[AtomicU64], value: &T) {
    for (word, bytes) in words[..T::WORDS].iter().zip(value.as_bytes().chunks_exact(8)) {
        let bytes = bytes.try_into().expect("chunks of 8 bytes");
        word.store(u64::from_ne_bytes(bytes), Ordering::Relaxed);
    }
}

/// Reads relaxed words as a value, each word once.
#[inline(always)]
pub(crate) fn load<T: Plain>(words: &[ReadWord]) -> T {
    let mut value = T::new_zeroed();
    for (word, bytes) in words[..T::WORDS].iter().zip(value.as_mut_bytes().chunks_exact_mut(8)) {
        bytes.copy_from_slice(&word.load().to_ne_bytes());
    }
    value
}

#[cfg(not(loom))]
mod memory {
    //! Words in a region.

    use super::{LINE_WORDS, ReadWord};
    use crate::pad::LINE_BYTES;
    use crate::region::Region;
    use crate::sync::{Arc, AtomicU64};
    use std::ptr::NonNull;
    use std::slice;

    /// A range of a region's words. It holds their address, because they are accessed often.
    #[derive(Clone, Debug)]
    pub(super) struct Range {
        first: NonNull<AtomicU64>,
        count: usize,
        /// The number of writable words: `count` if the region is writable, otherwise 0.
        writable: usize,
        /// Keeps the words mapped.
        _region: Arc<Region>,
    }

    // SAFETY: the range shares its region, which any thread may drop, and accesses it by atomic
    // operations only.
    unsafe impl Send for Range {}
    // SAFETY: as above; a shared range returns only shared atomic words.
    unsafe impl Sync for Range {}

    impl Range {
        /// The complete lines of a region.
        pub(super) fn lines(region: Region) -> Self {
            let count = region.bytes() / LINE_BYTES * LINE_WORDS;
            let writable = if region.is_writable() { count } else { 0 };
            Self { first: region.address().cast(), count, writable, _region: Arc::new(region) }
        }

        pub(super) fn is_writable(&self) -> bool {
            self.writable == self.count
        }

        pub(super) fn cut(&mut self, count: usize) -> Option<Self> {
            let rest = self.count.checked_sub(count)?;
            let is_writable = self.is_writable();
            let writable = |count| if is_writable { count } else { 0 };
            let cut = Self { count, writable: writable(count), ..self.clone() };
            // SAFETY: `count` is at most the words of this range, so the result is within the
            // region, or just after its end when none is left.
            self.first = unsafe { self.first.add(count) };
            (self.count, self.writable) = (rest, writable(rest));
            Some(cut)
        }

        /// Empty if the region is mapped read-only.
        #[inline(always)]
        pub(super) fn targets(&self) -> &[AtomicU64] {
            // SAFETY: `lines` and `cut` keep the words within the region. It is page-aligned, so
            // they are aligned; `_region` keeps it mapped; and any bytes are a word. `writable` is
            // not 0 only if the region is mapped for writing, so a store raises no signal. The
            // region was moved in here and is shared only as words, so this process accesses this
            // mapping by atomic operations only. Other mappings of the same segment count as other
            // processes (see `region`).
            unsafe { slice::from_raw_parts(self.first.as_ptr(), self.writable) }
        }

        #[inline(always)]
        pub(super) fn sources(&self) -> &[ReadWord] {
            // SAFETY: as in `targets`, but the pages may be mapped read-only: a `ReadWord`, which
            // has the layout of its word, has relaxed loads only, which are allowed there.
            unsafe { slice::from_raw_parts(self.first.as_ptr().cast(), self.count) }
        }
    }
}

#[cfg(loom)]
mod memory {
    //! Words that loom tracks. It cannot track a mapping, so only the size of the region is used.

    use super::ReadWord;
    use crate::region::Region;
    use crate::sync::{Arc, AtomicU64};
    use std::ptr;

    #[derive(Clone, Debug)]
    pub(super) struct Range {
        words: Arc<Vec<AtomicU64>>,
        first: usize,
        count: usize,
        is_writable: bool,
    }

    /// Enough for a model; loom allows no more than a few thousand tracked objects.
    const WORDS: usize = 128;

    impl Range {
        pub(super) fn lines(region: Region) -> Self {
            let words = (0..WORDS).map(|_| AtomicU64::new(0)).collect();
            let is_writable = region.is_writable();
            let count = region.bytes() / size_of::<u64>();
            Self { words: Arc::new(words), first: 0, count, is_writable }
        }

        pub(super) fn is_writable(&self) -> bool {
            self.is_writable
        }

        pub(super) fn cut(&mut self, count: usize) -> Option<Self> {
            let rest = self.count.checked_sub(count)?;
            let cut = Self { count, ..self.clone() };
            (self.first, self.count) = (self.first + count, rest);
            Some(cut)
        }

        pub(super) fn targets(&self) -> &[AtomicU64] {
            if self.is_writable { &self.words[self.first..self.first + self.count] } else { &[] }
        }

        pub(super) fn sources(&self) -> &[ReadWord] {
            let words = &self.words[self.first..self.first + self.count];
            // SAFETY: a `ReadWord` is a transparent wrapper, so it has the layout of its word.
            unsafe { &*(ptr::from_ref(words) as *const [ReadWord]) }
        }
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn places_are_cut_on_lines_until_none_is_left() {
        let mut words = Words::private(4096 / 8).unwrap();
        let (one, two) = (words.take(1).unwrap(), words.take(17).unwrap());
        assert_eq!((one.as_slice().len(), two.as_slice().len()), (16, 32));
        let distance = two.as_slice().as_ptr().addr() - one.as_slice().as_ptr().addr();
        assert_eq!(distance, LINE_BYTES);
        assert!(words.take(usize::MAX).is_none() && words.take(4096 / 8 - 47).is_none());
        assert_eq!(words.take(4096 / 8 - 48).unwrap().as_slice().len(), 4096 / 8 - 48);
        assert!(words.take(1).is_none());
    }

    #[test]
    fn values_come_back_as_they_went() {
        let words = Words::private(3).unwrap();
        let value: [u32; 6] = [1, 2, 3, 4, 5, u32::MAX];
        store(words.as_slice(), &value);
        assert_eq!(load::<[u32; 6]>(ReadWords::from(words).as_slice()), value);
    }

    #[test]
    fn words_of_a_sealed_segment_are_read_and_have_no_place_to_write() {
        let segment = Segment::create("test", 4096).unwrap();
        let words = Words::over(segment.map().unwrap());
        segment.seal().unwrap();
        assert!(segment.map().is_err(), "nobody maps it for writing any more");
        let mut seen = ReadWords::of(&segment).unwrap();
        let first = seen.take(1).unwrap();
        assert_eq!((first.as_slice().len(), seen.as_slice().len()), (16, 512 - 16));
        assert!(first.targets().is_empty() && seen.targets().is_empty());
        words.as_slice()[16].store(7, Ordering::Release);
        assert_eq!((seen.as_slice()[0].load_acquire(), first.as_slice()[15].load()), (7, 0));
        assert_eq!(ReadWords::from(words).targets().len(), 512);
    }
}
