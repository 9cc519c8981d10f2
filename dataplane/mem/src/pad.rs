//! A value on cache lines of its own.
//!
//! Why 128 bytes where a line has 64: the adjacent-line prefetcher of x86 fetches lines in pairs,
//! so two cores still contend if one writes 64 bytes away from the other. Why not the `CachePadded`
//! of crossbeam-utils: its alignment depends on the target, and the layouts here assert a fixed
//! one.

use std::ops::{Deref, DerefMut};

/// The least distance in bytes between two values that different cores write.
pub const LINE_BYTES: usize = 128;

/// A value that shares neither its cache line nor the line prefetched with it with anything else.
#[derive(Clone, Copy, Debug, Default)]
#[repr(C, align(128))]
pub struct CachePadded<T>(pub T);

const _: () = {
    assert!(align_of::<CachePadded<u8>>() == LINE_BYTES);
    assert!(size_of::<CachePadded<u64>>() == LINE_BYTES);
    assert!(size_of::<CachePadded<[u8; 129]>>() == 2 * LINE_BYTES);
};

impl<T> Deref for CachePadded<T> {
    type Target = T;
    #[inline(always)]
    fn deref(&self) -> &T {
        &self.0
    }
}

impl<T> DerefMut for CachePadded<T> {
    #[inline(always)]
    fn deref_mut(&mut self) -> &mut T {
        &mut self.0
    }
}
