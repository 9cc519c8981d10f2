//! A byte ring between two threads, for a stream or for messages that become visible as a whole.
//!
//! ```text
//!      head                 tail                head + capacity
//!   ----|====================|----------------------|
//!          unread                 free
//! ```
//!
//! Only the reader accesses unread bytes, and only the writer free ones. Positions only increase.
//! They start shortly before they wrap, and byte `p` is at `p mod capacity`. Each end publishes its
//! own position, and loads the other end's position only when the bytes known from the last load
//! are used up. Why this ring has a tail where [`mpsc`](crate::mpsc) has turns: bytes have no slots
//! for a turn, and the purpose of this ring is to copy many bytes at once.
//!
//! Either end can also access the bytes in place, in the longest run that does not wrap
//! ([`Writer::fill`], [`Reader::drain`]).

use crate::cursor::{START, is_capacity};
use crate::pad::CachePadded;
use crate::sync::{Arc, AtomicU64, Ordering};
use store::Store;

pub struct Writer {
    ring: Arc<Ring>,
    position: u64,
    /// The first position that would overwrite an unread byte, by the last load of the head.
    limit: u64,
}

pub struct Reader {
    ring: Arc<Ring>,
    position: u64,
    /// The position after the last written byte, by the last load of the tail.
    end: u64,
}

struct Ring {
    head: CachePadded<AtomicU64>,
    tail: CachePadded<AtomicU64>,
    store: Store,
}

/// The number of bytes must be a power of two of at most 2^31; `None` otherwise. The pages of the
/// ring take no memory until they are first written.
pub fn ring(bytes: usize) -> Option<(Writer, Reader)> {
    if !is_capacity(bytes) {
        return None;
    }
    Some(Ring::over(Store::new(bytes)))
}

impl Ring {
    fn over(store: Store) -> (Writer, Reader) {
        let limit = START.wrapping_add(store.len() as u64);
        let ring = Arc::new(Self {
            head: CachePadded(AtomicU64::new(START)),
            tail: CachePadded(AtomicU64::new(START)),
            store,
        });
        let writer = Writer { ring: ring.clone(), position: START, limit };
        (writer, Reader { ring, position: START, end: START })
    }

    /// An empty ring in the memory of `ring`. `None` if the other end still exists.
    fn renew(ring: Arc<Self>) -> Option<(Writer, Reader)> {
        Arc::try_unwrap(ring).ok().map(|ring| Self::over(ring.store))
    }

    /// The index of a position, and the number of bytes from there to the end of the memory, at
    /// most `bytes`.
    #[inline(always)]
    fn run(&self, position: u64, bytes: usize) -> (usize, usize) {
        let at = position as usize & (self.store.len() - 1);
        (at, bytes.min(self.store.len() - at))
    }
}

impl Writer {
    /// An empty ring in the same memory. `None` if the reader still exists.
    pub fn renew(self) -> Option<(Self, Reader)> {
        Ring::renew(self.ring)
    }

    pub fn capacity(&self) -> usize {
        self.ring.store.len()
    }

    /// The number of free bytes. Loads the reader's position only if fewer than `wanted` are known.
    #[inline]
    pub fn space(&mut self, wanted: usize) -> usize {
        let known = self.limit.wrapping_sub(self.position) as usize;
        if known >= wanted {
            return known;
        }
        // Acquire, with the release in `Reader::advance`: bytes were read before they are
        // overwritten.
        let head = self.ring.head.load(Ordering::Acquire);
        self.limit = head.wrapping_add(self.capacity() as u64);
        self.limit.wrapping_sub(self.position) as usize
    }

    /// Whether the reader has read all bytes.
    pub fn is_drained(&self) -> bool {
        self.ring.head.load(Ordering::Acquire) == self.position
    }

    /// Appends the bytes that fit; returns their number.
    #[inline]
    pub fn write(&mut self, bytes: &[u8]) -> usize {
        let count = bytes.len().min(self.space(bytes.len()));
        self.put(&bytes[..count]);
        self.publish();
        count
    }

    /// Appends all parts, which become visible together. Returns `false` and appends none if they
    /// do not fit.
    #[inline]
    #[must_use]
    pub fn write_whole(&mut self, parts: &[&[u8]]) -> bool {
        let wanted = parts.iter().map(|part| part.len()).sum();
        let fits = self.space(wanted) >= wanted;
        if fits {
            parts.iter().for_each(|part| self.put(part));
            self.publish();
        }
        fits
    }

    /// Passes the longest free run to `fill`, and appends as many bytes as it returns.
    ///
    /// # Panics
    /// If it returns more than the length of the run.
    #[inline]
    pub fn fill(&mut self, fill: impl FnOnce(&mut [u8]) -> usize) -> usize {
        let free = self.space(self.capacity());
        let (at, len) = self.ring.run(self.position, free);
        // SAFETY: `len` bytes from this position on are free: the reader does not access them
        // before `publish`, and this is the only writer.
        let count = unsafe { self.ring.store.with_mut(at, len, fill) };
        assert!(count <= len, "{count} bytes in a run of {len}");
        self.position = self.position.wrapping_add(count as u64);
        self.publish();
        count
    }

    /// Writes bytes for which the caller has checked the space.
    #[inline(always)]
    fn put(&mut self, bytes: &[u8]) {
        let (at, first) = self.ring.run(self.position, bytes.len());
        let (now, wrapped) = bytes.split_at(first);
        // SAFETY: the callers have checked that these bytes are free: the reader does not access
        // them before `publish`, and this is the only writer.
        unsafe {
            self.ring.store.with_mut(at, now.len(), |run| run.copy_from_slice(now));
            self.ring.store.with_mut(0, wrapped.len(), |run| run.copy_from_slice(wrapped));
        }
        self.position = self.position.wrapping_add(bytes.len() as u64);
    }

    #[inline(always)]
    fn publish(&self) {
        // Release, with the acquire in `Reader::len`: the bytes are written before they are
        // readable.
        self.ring.tail.store(self.position, Ordering::Release);
    }
}

impl Reader {
    /// An empty ring in the same memory. `None` if the writer still exists.
    pub fn renew(self) -> Option<(Writer, Self)> {
        Ring::renew(self.ring)
    }

    pub fn capacity(&self) -> usize {
        self.ring.store.len()
    }

    /// The number of readable bytes. Loads the writer's position only if fewer than `wanted` are
    /// known.
    #[inline]
    pub fn len(&mut self, wanted: usize) -> usize {
        let known = self.end.wrapping_sub(self.position) as usize;
        if known >= wanted {
            return known;
        }
        // Acquire, with the release in `Writer::publish`: the bytes are written.
        self.end = self.ring.tail.load(Ordering::Acquire);
        self.end.wrapping_sub(self.position) as usize
    }

    /// Whether no byte is readable. The writer may append at any time.
    #[inline]
    pub fn is_empty(&self) -> bool {
        self.end == self.position && self.ring.tail.load(Ordering::Acquire) == self.position
    }

    /// Reads as many bytes as fit in the buffer; returns their number.
    #[inline]
    pub fn read(&mut self, buffer: &mut [u8]) -> usize {
        let count = buffer.len().min(self.len(buffer.len()));
        self.copy(0, &mut buffer[..count]);
        self.advance(count);
        count
    }

    /// Copies bytes from offset `behind` on without consuming them. Returns `false` if fewer are
    /// readable.
    #[inline]
    #[must_use]
    pub fn peek(&mut self, behind: usize, buffer: &mut [u8]) -> bool {
        let wanted = behind + buffer.len();
        let is_written = self.len(wanted) >= wanted;
        if is_written {
            self.copy(behind, buffer);
        }
        is_written
    }

    /// Skips `bytes` bytes, or all readable ones if there are fewer.
    #[inline]
    pub fn skip(&mut self, bytes: usize) {
        let count = bytes.min(self.len(bytes));
        self.advance(count);
    }

    /// Passes the longest readable run to `take`, and consumes as many bytes as it returns.
    ///
    /// # Panics
    /// If it returns more than the length of the run.
    #[inline]
    pub fn drain(&mut self, take: impl FnOnce(&[u8]) -> usize) -> usize {
        let unread = self.len(usize::MAX);
        let (at, len) = self.ring.run(self.position, unread);
        // SAFETY: `len` bytes from this position on are written and unread: the writer does not
        // access them before `advance`, and this is the only reader.
        let count = unsafe { self.ring.store.with(at, len, take) };
        assert!(count <= len, "{count} bytes of a run of {len}");
        self.advance(count);
        count
    }

    /// Copies unread bytes from offset `behind` on.
    #[inline(always)]
    fn copy(&self, behind: usize, buffer: &mut [u8]) {
        let position = self.position.wrapping_add(behind as u64);
        let (at, first) = self.ring.run(position, buffer.len());
        let (now, wrapped) = buffer.split_at_mut(first);
        // SAFETY: the callers have checked that these bytes are unread: the writer does not access
        // them before `advance`, and this is the only reader.
        unsafe {
            self.ring.store.with(at, now.len(), |run| now.copy_from_slice(run));
            self.ring.store.with(0, wrapped.len(), |run| wrapped.copy_from_slice(run));
        }
    }

    #[inline(always)]
    fn advance(&mut self, bytes: usize) {
        self.position = self.position.wrapping_add(bytes as u64);
        // Release, with the acquire in `Writer::space`: the bytes were read before they are free.
        self.ring.head.store(self.position, Ordering::Release);
    }
}

/// The bytes of a ring. Two threads access them, but never the same byte at the same time.
#[cfg(not(loom))]
mod store {
    use std::cell::UnsafeCell;

    pub(super) struct Store(Box<[UnsafeCell<u8>]>);

    // SAFETY: head and tail assign each byte to one thread at a time, and any thread may access a
    // byte.
    unsafe impl Sync for Store {}

    impl Store {
        pub(super) fn new(bytes: usize) -> Self {
            // SAFETY: a cell has the layout of its byte, and zero is a valid byte.
            Self(unsafe { Box::new_zeroed_slice(bytes).assume_init() })
        }

        #[inline(always)]
        pub(super) fn len(&self) -> usize {
            self.0.len()
        }

        /// # Safety
        /// No other thread writes these bytes during the call.
        #[inline(always)]
        pub(super) unsafe fn with<R>(
            &self,
            at: usize,
            len: usize,
            f: impl FnOnce(&[u8]) -> R,
        ) -> R {
            let run = &self.0[at..at + len];
            // SAFETY: the run is in bounds and its bytes are initialized; the caller guarantees
            // that no thread writes them.
            f(unsafe { std::slice::from_raw_parts(run.as_ptr().cast(), len) })
        }

        /// # Safety
        /// No other thread accesses these bytes during the call.
        #[inline(always)]
        pub(super) unsafe fn with_mut<R>(
            &self,
            at: usize,
            len: usize,
            f: impl FnOnce(&mut [u8]) -> R,
        ) -> R {
            let run = &self.0[at..at + len];
            // SAFETY: the run is in bounds, and its bytes are initialized and in cells; the caller
            // guarantees that no other thread accesses them.
            f(unsafe { std::slice::from_raw_parts_mut(run.as_ptr().cast_mut().cast(), len) })
        }
    }
}

/// The bytes of a ring, each in a loom cell.
#[cfg(loom)]
mod store {
    use crate::sync::UnsafeCell;

    pub(super) struct Store(Box<[UnsafeCell<u8>]>);

    // SAFETY: head and tail assign each byte to one thread at a time, and loom checks that.
    unsafe impl Sync for Store {}
    // SAFETY: any thread may own bytes.
    unsafe impl Send for Store {}

    impl Store {
        pub(super) fn new(bytes: usize) -> Self {
            Self((0..bytes).map(|_| UnsafeCell::new(0)).collect())
        }

        pub(super) fn len(&self) -> usize {
            self.0.len()
        }

        pub(super) unsafe fn with<R>(
            &self,
            at: usize,
            len: usize,
            f: impl FnOnce(&[u8]) -> R,
        ) -> R {
            let cells = self.0[at..at + len].iter();
            // SAFETY: guaranteed by the caller, and checked by loom.
            let run: Vec<u8> = cells.map(|cell| cell.with(|byte| unsafe { *byte })).collect();
            f(&run)
        }

        pub(super) unsafe fn with_mut<R>(
            &self,
            at: usize,
            len: usize,
            f: impl FnOnce(&mut [u8]) -> R,
        ) -> R {
            let mut run = vec![0; len];
            let result = f(&mut run);
            for (cell, value) in self.0[at..at + len].iter().zip(run) {
                // SAFETY: guaranteed by the caller, and checked by loom.
                cell.with_mut(|byte| unsafe { *byte = value });
            }
            result
        }
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn a_ring_is_renewed_empty_once_its_other_end_is_gone() {
        let (mut writer, reader) = ring(8).unwrap();
        assert_eq!(writer.write(b"unread"), 6);
        assert!(reader.renew().is_none(), "there is a writer");
        let (mut writer, mut reader) = writer.renew().expect("the reader is gone");
        assert!(reader.is_empty() && writer.capacity() == 8);
        assert_eq!(writer.write(b"new"), 3);
        let mut bytes = [0; 8];
        assert_eq!(reader.read(&mut bytes), 3);
        assert_eq!(&bytes[..3], b"new");
        drop(writer);
        assert!(reader.renew().is_some());
    }
}
