//! Memory barriers between this processor and the adapter, named for their use.
//!
//! | | x86-64 | aarch64 |
//! |---|---|---|
//! | [`to_device`] | compiler barrier: stores become visible in program order | `dmb oshst` |
//! | [`from_device`] | compiler barrier: loads execute in program order | `dmb oshld` |
//! | [`before_doorbell`], [`after_doorbell`] | `sfence` | `dsb st` |
//!
//! Why not `fence` of `std`: on aarch64 it orders accesses only among processors (the inner
//! shareable domain), to which the adapter does not belong.

use std::arch::asm;

#[cfg(not(any(target_arch = "x86_64", target_arch = "aarch64")))]
compile_error!("the barriers of this processor are not known here");

macro_rules! barrier {
    ($(#[$meta:meta])* $name:ident: $x86:literal, $arm:literal) => {
        $(#[$meta])*
        #[inline(always)]
        pub(crate) fn $name() {
            // SAFETY: the instruction orders memory accesses and has no other effect.
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
    /// Between the stores to ring entries and the store to the doorbell record: the adapter sees
    /// the stores before this barrier no later than the stores after it.
    to_device: "", "dmb oshst"
}

barrier! {
    /// Between the load of an entry's owner bit and the loads of the rest: the loads after this
    /// barrier see what the adapter had written before the value that was loaded before the
    /// barrier.
    from_device: "", "dmb oshld"
}

barrier! {
    /// Before a store to a doorbell, which goes through write-combining buffers: the doorbell does
    /// not pass an earlier store.
    before_doorbell: "sfence", "dsb st"
}

barrier! {
    /// Flushes the write-combining buffers, so that the doorbell is sent now and does not merge
    /// with a later one.
    after_doorbell: "sfence", "dsb st"
}
