//! Barriers between this processor and the adapter, named for their use.
//!
//! | | x86-64 | aarch64 |
//! |---|---|---|
//! | [`to_device`] | of the compiler: stores are seen in their order | `dmb oshst` |
//! | [`from_device`] | of the compiler: loads are done in their order | `dmb oshld` |
//! | [`before_doorbell`], [`after_doorbell`] | `sfence` | `dsb st` |
//!
//! Why not `fence` of `std`: on aarch64 it is a barrier among processors (inner shareable), and the
//! adapter is none.

use std::arch::asm;

#[cfg(not(any(target_arch = "x86_64", target_arch = "aarch64")))]
compile_error!("the barriers of this processor are not known here");

macro_rules! barrier {
    ($(#[$meta:meta])* $name:ident: $x86:literal, $arm:literal) => {
        $(#[$meta])*
        #[inline(always)]
        pub(crate) fn $name() {
            // SAFETY: the instruction orders memory accesses, and has no other effect.
            #[cfg(target_arch = "x86_64")]
            unsafe {
                asm!($x86, options(nostack, preserves_flags));
            }
            // SAFETY: as above.
            #[cfg(target_arch = "aarch64")]
            unsafe {
                asm!($arm, options(nostack, preserves_flags));
            }
        }
    };
}

barrier! {
    /// The adapter sees stores before this no later than those after it: entries of a ring, and the
    /// doorbell record that hands them over.
    to_device: "", "dmb oshst"
}

barrier! {
    /// Loads after this see what the adapter wrote before what a load before this saw: the rest of
    /// an entry, and its owner bit.
    from_device: "", "dmb oshld"
}

barrier! {
    /// The doorbell, which is stored next by way of write-combining buffers, passes no earlier
    /// store.
    before_doorbell: "sfence", "dsb st"
}

barrier! {
    /// Empties the write-combining buffers: the doorbell goes out now, and no later one merges with
    /// it.
    after_doorbell: "sfence", "dsb st"
}
