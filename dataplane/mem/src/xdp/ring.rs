//! A ring of an AF_XDP socket, between this process and the kernel.
//!
//! Each side publishes its position by a store with release order, and reads the position of the
//! other side by a load with acquire order: so a slot is written before it is read, and read before
//! it is written again (`linux/if_xdp.h`).

use crate::region::Region;
use crate::system_call::CallError;
use rustix::mm::ProtFlags;
use rustix::net::xdp::XdpRingOffset;
use std::marker::PhantomData;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::atomic::{AtomicU32, Ordering};

/// Offsets of the rings in the socket (`XDP_PGOFF_*`).
pub(super) const RECEIVE: u64 = 0;
pub(super) const TRANSMIT: u64 = 0x8000_0000;
pub(super) const FILL: u64 = 0x1_0000_0000;
pub(super) const COMPLETION: u64 = 0x1_8000_0000;

/// `XDP_RING_NEED_WAKEUP`: the kernel processes the ring only when it is called.
const NEED_WAKEUP: u32 = 1;

/// `struct xdp_desc`.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub(super) struct Descriptor {
    /// The first byte, as an offset in the memory.
    pub(super) address: u64,
    pub(super) len: u32,
    pub(super) options: u32,
}

const _: () = assert!(size_of::<Descriptor>() == 16);

/// Types for which every bit pattern is a valid value.
pub(super) trait Slot: Copy {}
impl Slot for u64 {}
impl Slot for Descriptor {}

#[derive(Debug)]
pub(super) struct Ring<T> {
    region: Region,
    producer: usize,
    consumer: usize,
    flags: Option<usize>,
    slots_at: usize,
    slots: u32,
    /// The position of this side.
    own: u32,
    /// The position of the kernel, by the last load.
    kernel: u32,
    kind: PhantomData<T>,
}

impl<T: Slot> Ring<T> {
    /// `slots` must be a power of two.
    pub(super) fn map(
        fd: &OwnedFd,
        begin: u64,
        at: &XdpRingOffset,
        slots: u32,
    ) -> Result<Self, CallError> {
        let slots_at = at.desc as usize;
        let bytes = slots_at + slots as usize * size_of::<T>();
        let protection = ProtFlags::READ | ProtFlags::WRITE;
        let region = Region::of_file_at(fd.as_fd(), begin, bytes, protection)
            .map_err(CallError::no_memory)?;
        let ring = Self {
            region,
            producer: at.producer as usize,
            consumer: at.consumer as usize,
            flags: at.flags.map(|at| at as usize),
            slots_at,
            slots,
            own: 0,
            kernel: 0,
            kind: PhantomData,
        };
        let words = [ring.producer, ring.consumer, ring.flags.unwrap_or(0)];
        assert!(
            words.iter().all(|at| at.is_multiple_of(4) && at + 4 <= slots_at),
            "as the kernel has it"
        );
        assert!(slots_at.is_multiple_of(align_of::<T>()) && slots.is_power_of_two());
        Ok(ring)
    }

    fn word(&self, at: usize) -> &AtomicU32 {
        // SAFETY: the offset is aligned and within the mapping, as `map` asserts. The kernel writes
        // the word by atomic operations too.
        unsafe { self.region.address().add(at).cast().as_ref() }
    }

    fn slot(&self, index: u32) -> *mut T {
        let slot = (index & (self.slots - 1)) as usize;
        // The mask keeps the slot within the mapping.
        self.region.address().as_ptr().wrapping_add(self.slots_at).cast::<T>().wrapping_add(slot)
    }

    /// Whether the kernel has to be called.
    pub(super) fn needs_wakeup(&self) -> bool {
        self.flags.is_none_or(|at| self.word(at).load(Ordering::Relaxed) & NEED_WAKEUP != 0)
    }

    /// As producer: writes a value. `false` if the ring is full.
    pub(super) fn push(&mut self, value: T) -> bool {
        if self.own.wrapping_sub(self.kernel) == self.slots {
            self.kernel = self.word(self.consumer).load(Ordering::Acquire);
            if self.own.wrapping_sub(self.kernel) >= self.slots {
                return false;
            }
        }
        // SAFETY: the slot is in the mapping and aligned. The kernel has read the old value, and
        // does not read the slot again before the next `publish`.
        unsafe { self.slot(self.own).write(value) };
        self.own = self.own.wrapping_add(1);
        true
    }

    /// As producer: whether the kernel has taken all values.
    pub(super) fn is_taken(&self) -> bool {
        self.word(self.consumer).load(Ordering::Acquire) == self.own
    }

    /// As producer: publishes the pushed values.
    pub(super) fn publish(&self) {
        self.word(self.producer).store(self.own, Ordering::Release);
    }

    /// As consumer: takes the next value.
    pub(super) fn pop(&mut self) -> Option<T> {
        if self.own == self.kernel {
            self.kernel = self.word(self.producer).load(Ordering::Acquire);
            if self.own == self.kernel {
                return None;
            }
        }
        // SAFETY: the slot is in the mapping and aligned, any bytes are a value, and the kernel
        // does not write it before `release`.
        let value = unsafe { self.slot(self.own).read() };
        self.own = self.own.wrapping_add(1);
        Some(value)
    }

    /// As consumer: returns the slots of taken values to the kernel.
    pub(super) fn release(&self) {
        self.word(self.consumer).store(self.own, Ordering::Release);
    }
}
