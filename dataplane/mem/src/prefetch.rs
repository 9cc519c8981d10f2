//! Prefetches: loads of cache lines for which a thread does not wait.
//!
//! Why: while a load waits for memory, a processor executes later instructions only as far as its
//! reorder buffer reaches, and not past a mispredicted branch that depends on the load. A prefetch
//! instruction completes immediately, so a loop over a batch can have as many prefetches in
//! progress as the processor has line fill buffers.

use std::ptr;

/// Begins to load the cache lines of the first and of the last byte of a value.
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
