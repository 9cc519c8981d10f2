//! Prefetches: loads of cache lines that a thread does not wait for.
//!
//! Why: a processor runs ahead of a load that waits for memory only as far as its reorder buffer
//! reaches, and not past a branch that it predicted wrongly and that waits for the load. A prefetch
//! is done at once, so a loop over a batch has as many of them under way as there are line buffers.

use std::ptr;

/// Begins to load the cache line of the first byte of a value, and of its last.
#[inline(always)]
pub fn prefetch<T>(value: &T) {
    #[cfg(all(target_arch = "x86_64", not(miri)))]
    {
        use std::arch::x86_64::{_MM_HINT_T0, _mm_prefetch};
        let first = ptr::from_ref(value).cast::<i8>();
        // SAFETY: a prefetch reads nothing that the program sees, and faults at no address.
        unsafe { _mm_prefetch::<_MM_HINT_T0>(first) };
        if size_of::<T>() > align_of::<T>() {
            let last = first.wrapping_add(size_of::<T>() - 1);
            // SAFETY: as above.
            unsafe { _mm_prefetch::<_MM_HINT_T0>(last) };
        }
    }
    #[cfg(not(all(target_arch = "x86_64", not(miri))))]
    let _ = ptr::from_ref(value);
}
