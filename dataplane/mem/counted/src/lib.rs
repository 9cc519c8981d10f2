//! A counting allocator for tests of memory use. A test declares `#[global_allocator] static
//! MEMORY: Counted = Counted::new();`.
//!
//! It counts the requested bytes, without the overhead of the system's allocator.
#![allow(unsafe_code, reason = "the trait of global allocators is unsafe to implement")]

use std::alloc::{GlobalAlloc, Layout, System};
use std::sync::atomic::{AtomicUsize, Ordering};

/// The system's allocator, with a count of the allocated bytes.
#[derive(Debug, Default)]
pub struct Counted {
    bytes: AtomicUsize,
    bytes_max: AtomicUsize,
}

impl Counted {
    pub const fn new() -> Self {
        Self { bytes: AtomicUsize::new(0), bytes_max: AtomicUsize::new(0) }
    }

    pub fn bytes(&self) -> usize {
        self.bytes.load(Ordering::Relaxed)
    }

    /// The largest number of bytes that were in use at once.
    pub fn bytes_max(&self) -> usize {
        self.bytes_max.load(Ordering::Relaxed)
    }

    fn add(&self, bytes: usize) {
        let now = self.bytes.fetch_add(bytes, Ordering::Relaxed) + bytes;
        self.bytes_max.fetch_max(now, Ordering::Relaxed);
    }

    fn remove(&self, bytes: usize) {
        self.bytes.fetch_sub(bytes, Ordering::Relaxed);
    }
}

// SAFETY: all memory comes from the system's allocator and is returned to it with its original
// layout. Counting changes neither.
unsafe impl GlobalAlloc for Counted {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        self.add(layout.size());
        // SAFETY: the caller guarantees a valid layout, which is all that the system's allocator
        // requires.
        unsafe { System.alloc(layout) }
    }

    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        self.add(layout.size());
        // SAFETY: as for `alloc`.
        unsafe { System.alloc_zeroed(layout) }
    }

    unsafe fn dealloc(&self, piece: *mut u8, layout: Layout) {
        self.remove(layout.size());
        // SAFETY: the caller returns memory that it got from this allocator with this layout, so
        // the memory is the system allocator's.
        unsafe { System.dealloc(piece, layout) }
    }

    unsafe fn realloc(&self, piece: *mut u8, layout: Layout, bytes: usize) -> *mut u8 {
        self.remove(layout.size());
        self.add(bytes);
        // SAFETY: as for `dealloc`. The caller guarantees that the new size is valid for a layout.
        unsafe { System.realloc(piece, layout, bytes) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_in_use_and_their_peak_are_counted() {
        let counted = Counted::new();
        let layout = Layout::from_size_align(100, 8).unwrap();
        let larger = Layout::from_size_align(300, 8).unwrap();
        // SAFETY: the layouts are not empty, and all memory is returned with its current layout.
        unsafe {
            let one = counted.alloc(layout);
            let other = counted.alloc_zeroed(layout);
            assert!(!one.is_null() && other.read() == 0);
            assert_eq!(counted.bytes(), 200);
            let one = counted.realloc(one, layout, larger.size());
            assert_eq!(counted.bytes(), 400);
            counted.dealloc(one, larger);
            counted.dealloc(other, layout);
        }
        assert_eq!((counted.bytes(), counted.bytes_max()), (0, 400));
    }
}
