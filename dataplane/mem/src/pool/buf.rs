//! [`Buf`]: the owning handle of a pool buffer. It has 16 bytes and is moved by value.
//!
//! A buffer has a *window*, the bytes of the packet. Before the window is headroom for further
//! headers, and after it tailroom. The bounds of the window are in the handle, not in the buffer,
//! so stripping a header accesses no buffer memory.
//!
//! ```text
//! |<- headroom ->|<- window: len ->|<- tailroom ->|
//! 0              offset            offset + len   buffer_bytes
//! ```
//!
//! Why the bytes are available as `&[u8]` although a device writes them: a device writes them only
//! while the buffer is posted, and then the device's queue owns the `Buf` and does not read the
//! bytes. No other process can write them, because a pool creates its memory itself, private or
//! sealed. The memory is zeroed when it is mapped, so all bytes are initialized whatever is
//! received.

use super::Core;
use std::fmt;
use std::mem::ManuallyDrop;
use std::ptr::NonNull;
use std::slice;

/// An owned buffer. Dropping it returns it to the pool's shared list; a worker returns it to its
/// [`Cache`](crate::Cache) instead, which is cheaper.
pub struct Buf {
    core: NonNull<Core>,
    index: u32,
    offset: u16,
    len: u16,
}

const _: () = {
    assert!(size_of::<Buf>() == 16);
    assert!(size_of::<Option<Buf>>() == 16);
};

// SAFETY: only the owner of a buffer accesses its bytes, and the buffer has a reference to its
// pool, which any thread may use and drop.
unsafe impl Send for Buf {}
// SAFETY: a shared reference returns the bytes for reading only.
unsafe impl Sync for Buf {}

impl Buf {
    /// A buffer with an empty window after the pool's headroom.
    ///
    /// # Safety
    /// `index` is below the pool's count, no other `Buf` stands for it and no list holds it, and
    /// its reference to the pool passes to the result.
    #[inline(always)]
    pub(super) unsafe fn new(core: NonNull<Core>, index: u32) -> Self {
        // SAFETY: the core is alive by the reference that passes to the result.
        let offset = unsafe { core.as_ref() }.config.headroom_bytes;
        Self { core, index, offset, len: 0 }
    }

    #[inline]
    pub fn bytes(&self) -> &[u8] {
        // SAFETY: the window lies within the buffer, as every change of it checks, and the buffer
        // within the region, which our reference keeps mapped. The bytes are initialized. No other
        // `Buf` has this index, so in this mapping only `&mut self` writes. The pool made the
        // region, so no other process maps the same pages. This process maps them a second time
        // only in the `Memory` that `Pool::registered` returns with the pool. Adapters write by
        // that mapping only while the buffer is posted, and then a queue owns `self`.
        unsafe { slice::from_raw_parts(self.address().as_ptr(), self.len()) }
    }

    #[inline]
    pub fn bytes_mut(&mut self) -> &mut [u8] {
        // SAFETY: as in `bytes`, and `&mut self` makes the borrow exclusive.
        unsafe { slice::from_raw_parts_mut(self.address().as_ptr(), self.len()) }
    }

    /// The start of the window, for a scatter/gather entry. Valid while the buffer is owned.
    #[inline]
    pub fn address(&self) -> NonNull<u8> {
        // SAFETY: index < count and offset <= buffer_bytes <= stride, so this stays within the
        // region, whose length was checked against count * stride.
        unsafe { self.pool_core().base.add(self.distance()) }
    }

    /// The offset of the window in the pool's memory, for a device that has this memory at another
    /// address.
    #[inline]
    pub fn distance(&self) -> usize {
        self.index as usize * self.pool_core().stride + usize::from(self.offset)
    }

    #[inline(always)]
    pub fn len(&self) -> usize {
        usize::from(self.len)
    }

    #[inline(always)]
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Free bytes before the window.
    #[inline(always)]
    pub fn headroom(&self) -> usize {
        usize::from(self.offset)
    }

    #[inline(always)]
    pub fn capacity(&self) -> usize {
        self.pool_core().config.buffer_bytes as usize
    }

    #[inline(always)]
    pub fn index(&self) -> u32 {
        self.index
    }

    /// Sets the window to the position of the packet, as a device reports it. `None`, and no
    /// change, if that is not within the buffer.
    #[inline]
    #[must_use]
    pub fn set_window(&mut self, offset: usize, len: usize) -> Option<&mut [u8]> {
        if offset.checked_add(len)? > self.capacity() {
            return None;
        }
        let window = (u16::try_from(offset).ok()?, u16::try_from(len).ok()?);
        (self.offset, self.len) = window;
        Some(self.bytes_mut())
    }

    /// Grows the window by `count` bytes at the front and returns them, for a header to be written.
    /// `None`, and no change, if the headroom is smaller.
    #[inline]
    #[must_use]
    pub fn push_front(&mut self, count: usize) -> Option<&mut [u8]> {
        // The end stays where it is, which is within the buffer.
        let count = u16::try_from(count).ok()?;
        (self.offset, self.len) = (self.offset.checked_sub(count)?, self.len.checked_add(count)?);
        Some(&mut self.bytes_mut()[..usize::from(count)])
    }

    /// Grows the window by `count` bytes at the end and returns them. `None`, and no change, if the
    /// tailroom is smaller.
    #[inline]
    #[must_use]
    pub fn push_back(&mut self, count: usize) -> Option<&mut [u8]> {
        let len = self.len();
        let window = self.set_window(self.headroom(), len.checked_add(count)?)?;
        Some(&mut window[len..])
    }

    /// Removes `count` bytes at the front, a header that was read. `None`, and no change, if the
    /// packet is shorter.
    #[inline]
    #[must_use]
    pub fn pull_front(&mut self, count: usize) -> Option<()> {
        let count = u16::try_from(count).ok()?;
        (self.len, self.offset) = (self.len.checked_sub(count)?, self.offset.checked_add(count)?);
        Some(())
    }

    /// Cuts the packet to `len` bytes if it is longer.
    #[inline]
    pub fn truncate(&mut self, len: usize) {
        // The new length fits in 16 bits, because it is at most the current length.
        self.len = self.len().min(len) as u16;
    }

    /// Withdraws the buffer from use forever, for a device that may still access it for an unknown
    /// time. The pool counts it as outstanding and stays mapped.
    pub fn leak(self) {
        self.into_index();
    }

    /// Ends the handle without freeing the buffer: the caller owns its index and its reference.
    #[inline(always)]
    pub(super) fn into_index(self) -> u32 {
        ManuallyDrop::new(self).index
    }

    #[inline(always)]
    pub(super) fn core(&self) -> NonNull<Core> {
        self.core
    }

    #[inline(always)]
    fn pool_core(&self) -> &Core {
        // SAFETY: the core is alive, because this buffer has a reference. Only the drop of the last
        // reference accesses the core exclusively.
        unsafe { self.core.as_ref() }
    }
}

impl Drop for Buf {
    fn drop(&mut self) {
        self.pool_core().put_back(&[self.index]);
        // SAFETY: this releases the one reference of this buffer, whose index is on the list now.
        unsafe { Core::release(self.core, 1) };
    }
}

impl fmt::Debug for Buf {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { index, offset, len, .. } = self;
        write!(f, "Buf {{ index: {index}, offset: {offset}, len: {len} }}")
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use crate::Buf;
    use crate::pool::{BUFFER_BYTES_MAX, Pool, PoolConfig, PoolError};

    const CONFIG: PoolConfig = PoolConfig { buffers: 8, buffer_bytes: 256, headroom_bytes: 64 };

    /// The number of bytes by which the window can grow at its end.
    fn tailroom(buf: &mut Buf) -> usize {
        let (offset, len) = (buf.headroom(), buf.len());
        let lens = (len..=buf.capacity()).rev();
        let longest = { lens }.find(|len| buf.set_window(offset, *len).is_some()).unwrap();
        assert!(buf.set_window(offset, len).is_some());
        longest - len
    }

    #[test]
    fn window_moves_within_the_buffer() {
        let pool = Pool::new(CONFIG).unwrap();
        let mut buf = pool.alloc().unwrap();
        assert_eq!((buf.headroom(), buf.len(), tailroom(&mut buf)), (64, 0, 192));
        buf.push_back(4).unwrap().copy_from_slice(b"data");
        buf.push_front(2).unwrap().copy_from_slice(b"h:");
        assert_eq!(buf.bytes(), b"h:data");
        assert_eq!(buf.pull_front(7), None);
        assert_eq!(buf.pull_front(2), Some(()));
        assert_eq!(buf.bytes(), b"data");
        assert_eq!(buf.push_front(65), None);
        assert_eq!(buf.push_back(189), None);
        assert_eq!(buf.push_back(usize::MAX), None);
        assert_eq!(buf.set_window(250, 7), None);
        assert_eq!(buf.set_window(usize::MAX, 2), None);
        assert_eq!(buf.bytes(), b"data", "a refusal changes nothing");
        buf.truncate(9);
        buf.truncate(3);
        assert_eq!(buf.bytes(), b"dat");
        assert_eq!(buf.set_window(0, 256).map(|window| window.len()), Some(256));
    }

    #[test]
    fn longest_buffer_can_be_filled_from_any_offset() {
        let config = PoolConfig { buffers: 2, buffer_bytes: BUFFER_BYTES_MAX, headroom_bytes: 0 };
        let pool = Pool::new(config).unwrap();
        let mut buf = pool.alloc().unwrap();
        assert_eq!(tailroom(&mut buf), 0xffff);
        assert!(buf.set_window(0xffff, 0xffff).is_some());
        assert_eq!(tailroom(&mut buf), 0);
        assert_eq!(buf.push_back(1), None);
        assert_eq!(buf.set_window(0x1_0000, 0), None);
    }

    #[test]
    fn a_buffer_that_a_device_may_use_is_never_reused() {
        let pool = Pool::new(CONFIG).unwrap();
        let buf = pool.alloc().unwrap();
        let index = buf.index();
        buf.leak();
        let rest: Vec<_> = std::iter::from_fn(|| pool.alloc()).collect();
        assert_eq!(rest.len(), 7);
        assert!(rest.iter().all(|buf| buf.index() != index));
        drop(rest);
        assert_eq!(pool.outstanding(), 1);
    }

    #[test]
    fn no_other_process_can_map_the_buffers_of_a_registered_pool() {
        let (pool, memory) = Pool::registered(CONFIG).unwrap();
        assert!(memory.segment().is_none(), "a peer can map it");
        let mut buf = pool.alloc().unwrap();
        buf.push_back(4).unwrap().copy_from_slice(b"here");
        let mut out = [0; 4];
        assert!(memory.read(buf.distance(), &mut out));
        assert_eq!(&out, b"here");
        assert!(memory.write(buf.distance(), b"come"));
        assert_eq!(buf.bytes(), b"come", "an adapter writes while the buffer is posted");
    }

    #[test]
    fn buffers_outlive_their_pool_and_count_as_outstanding() {
        let pool = Pool::new(CONFIG).unwrap();
        let mut cache = pool.cache(4);
        let mut buf = cache.alloc().unwrap();
        assert_eq!((cache.len(), pool.outstanding()), (1, 2));
        drop(cache);
        assert_eq!(pool.outstanding(), 1);
        drop(pool);
        buf.push_back(3).unwrap().copy_from_slice(b"yes");
        assert_eq!(buf.bytes(), b"yes");
    }

    #[test]
    fn exhaustion_is_an_answer_and_ends() {
        let pool = Pool::new(CONFIG).unwrap();
        let (mut one, mut other) = (pool.cache(4), pool.cache(4));
        let mut bufs: Vec<_> = std::iter::from_fn(|| one.alloc()).take(9).collect();
        assert_eq!(bufs.len(), 8);
        assert!(one.alloc().is_none() && other.alloc().is_none() && pool.alloc().is_none());
        bufs.drain(..3).for_each(|buf| other.free(buf));
        assert!(one.alloc().is_none(), "what another cache keeps is not to be had");
        bufs.drain(..).for_each(|buf| other.free(buf));
        assert!(one.alloc().is_some());
    }

    #[test]
    fn a_cache_sends_strangers_home() {
        let (pool, stranger) = (Pool::new(CONFIG).unwrap(), Pool::new(CONFIG).unwrap());
        let mut cache = pool.cache(4);
        cache.free(stranger.alloc().unwrap());
        assert_eq!((cache.len(), stranger.outstanding()), (0, 0));
    }

    #[test]
    fn bad_configurations_are_refused() {
        for config in [
            PoolConfig { buffers: 0, ..CONFIG },
            PoolConfig { buffers: u32::MAX, ..CONFIG },
            PoolConfig { buffer_bytes: 0, headroom_bytes: 0, ..CONFIG },
            PoolConfig { buffer_bytes: u32::MAX, ..CONFIG },
            PoolConfig { headroom_bytes: 257, ..CONFIG },
        ] {
            assert!(matches!(Pool::new(config), Err(PoolError::BadConfig(bad)) if bad == config));
        }
        assert!(Pool::registered(PoolConfig { buffers: 0, ..CONFIG }).is_err());
    }
}
