//! A pool of fixed-size buffers in one region, and the cache through which a worker uses it.
//!
//! A worker allocates from and frees to its own [`Cache`], a stack of indices that no other thread
//! accesses.
//!
//! A buffer is a [`Buf`]: one owner, moved by value, freed when dropped. The types rule out a
//! double free. They do not rule out a leak, so the pool counts the buffers in use
//! ([`Pool::outstanding`]).
//!
//! Why the memory cannot be unmapped before the last buffer is freed: each index that is not on the
//! shared list holds one reference to the pool. References are counted in the same batches in which
//! indices leave and enter the list, so a buffer from a cache costs no atomic operation of its own.
//! A buffer that is never returned keeps the memory mapped forever, which is a leak and no fault.
//!
//! Why the stride is an odd number of cache lines: with a power of two, the headers of all buffers
//! fall into the same few sets of the first-level cache (at 2 KiB, two of 64), and a batch evicts
//! its own headers. An odd stride uses all sets.

pub mod buf;

use self::buf::Buf;
use crate::free_list::{FreeList, INDICES_MAX};
use crate::memory::Memory;
use crate::pad::CachePadded;
use crate::region::{MapError, Region};
use crate::segment::Segment;
use crate::sync::{AtomicUsize, Ordering};
use std::fmt;
use std::ptr::NonNull;

pub const BUFFERS_MAX: u32 = INDICES_MAX;
/// The maximum length of a buffer: the window's offset and length are at most 2^16 - 1 bytes each.
pub const BUFFER_BYTES_MAX: u32 = 2 * u16::MAX as u32;

const LINE: u32 = 64;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PoolConfig {
    /// The number of buffers: 1 to [`BUFFERS_MAX`].
    pub buffers: u32,
    /// The length of a buffer, including the headroom: 1 to [`BUFFER_BYTES_MAX`].
    pub buffer_bytes: u32,
    /// Free bytes in front of the window of a new buffer, for headers.
    pub headroom_bytes: u16,
}

impl PoolConfig {
    /// The distance between two buffers: an odd number of cache lines.
    fn stride(&self) -> usize {
        ((self.buffer_bytes.div_ceil(LINE) | 1) * LINE) as usize
    }

    pub fn region_bytes(&self) -> usize {
        self.buffers as usize * self.stride()
    }

    fn check(&self) -> Result<(), PoolError> {
        let buffers = (1..=BUFFERS_MAX).contains(&self.buffers);
        let bytes = (1..=BUFFER_BYTES_MAX).contains(&self.buffer_bytes);
        if buffers && bytes && u32::from(self.headroom_bytes) <= self.buffer_bytes {
            Ok(())
        } else {
            Err(PoolError::BadConfig(*self))
        }
    }
}

#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum PoolError {
    #[error(
        "no pool of {} buffers of {} bytes, {} of them headroom: at most {BUFFERS_MAX} buffers of \
         {BUFFER_BYTES_MAX} bytes, none empty",
        .0.buffers, .0.buffer_bytes, .0.headroom_bytes
    )]
    BadConfig(PoolConfig),
    #[error("no memory for the pool: {0}")]
    Map(MapError),
}

/// A handle on a pool. A clone is another handle on the same pool.
///
/// A pool creates its memory itself. Memory that another process can write must not hold buffers,
/// because the bytes of a buffer are available as a slice:
///
/// ```compile_fail,E0624
/// use pollux_mem::{Pool, PoolConfig, Segment};
///
/// let config = PoolConfig { buffers: 1, buffer_bytes: 64, headroom_bytes: 0 };
/// let theirs = Segment::create("theirs", config.region_bytes()).unwrap();
/// Pool::in_region(theirs.map().unwrap(), config);
/// ```
pub struct Pool {
    core: NonNull<Core>,
}

/// The common state of the handles, caches and buffers of a pool. The first fields are written once
/// and then only read. Fields that change are on cache lines of their own.
struct Core {
    base: NonNull<u8>,
    stride: usize,
    config: PoolConfig,
    /// Keeps the buffers mapped.
    _region: Region,
    free: FreeList,
    /// The number of handles, and of indices that are not on `free`.
    references: CachePadded<AtomicUsize>,
    /// The number of handles, for [`Pool::outstanding`].
    handles: CachePadded<AtomicUsize>,
}

// SAFETY: a handle is a counted reference to a `Core`, which any thread may use and drop: its bytes
// are accessed only through a `Buf`, of which there is at most one for each index, and its other
// fields are atomic or constant.
unsafe impl Send for Pool {}
// SAFETY: as above.
unsafe impl Sync for Pool {}

impl Pool {
    pub fn new(config: PoolConfig) -> Result<Self, PoolError> {
        config.check()?;
        let region = Region::anonymous(config.region_bytes()).map_err(PoolError::Map)?;
        Self::in_region(region, config)
    }

    /// A pool whose memory can be registered with adapters, and that memory. No other process can
    /// map the memory, because it holds the packets from and to all peers.
    ///
    /// The memory is a second mapping of the buffers, so its user has to behave like a device: it
    /// may write into a buffer only while the buffer is posted, that is, while a queue owns the
    /// [`Buf`] and makes no slice of it.
    pub fn registered(config: PoolConfig) -> Result<(Self, Memory), PoolError> {
        config.check()?;
        let segment = Segment::create("packets", config.region_bytes()).map_err(PoolError::Map)?;
        let [ours, adapters] = [segment.map(), segment.map()];
        let memory = Memory::over(adapters.map_err(PoolError::Map)?);
        Ok((Self::in_region(ours.map_err(PoolError::Map)?, config)?, memory))
    }

    /// A pool in a region that was made for it. This is private because a region may belong to a
    /// segment that another process writes, and the bytes of a buffer are available as a slice.
    fn in_region(region: Region, config: PoolConfig) -> Result<Self, PoolError> {
        assert!(region.is_writable() && region.bytes() >= config.region_bytes());
        let core = Box::new(Core {
            base: region.address(),
            stride: config.stride(),
            config,
            _region: region,
            free: FreeList::full(config.buffers).ok_or(PoolError::BadConfig(config))?,
            references: CachePadded(AtomicUsize::new(1)),
            handles: CachePadded(AtomicUsize::new(1)),
        });
        Ok(Self { core: NonNull::from(Box::leak(core)) })
    }

    pub fn config(&self) -> PoolConfig {
        self.core().config
    }

    /// A cache for one worker, which keeps up to `buffers_max` (at least 2) free buffers.
    ///
    /// Other workers cannot use the buffers of a cache, so the pool must have enough for all caches
    /// and queues together.
    pub fn cache(&self, buffers_max: usize) -> Cache {
        let buffers_max = buffers_max.max(2);
        Cache { pool: self.clone(), indices: Vec::with_capacity(buffers_max), buffers_max }
    }

    /// Allocates without a cache, for slow paths. `None` if no buffer is free.
    pub fn alloc(&self) -> Option<Buf> {
        let mut index = Vec::with_capacity(1);
        (self.core().lease(&mut index, 1) == 1).then(|| self.buf(index[0]))
    }

    /// Buffers that are not on the shared list: in use, or in a cache. Once the caches are dropped,
    /// these are the buffers in use.
    ///
    /// While others allocate, the number may be out of date.
    pub fn outstanding(&self) -> usize {
        let references = self.core().references.load(Ordering::Relaxed);
        references.saturating_sub(self.core().handles.load(Ordering::Relaxed))
    }

    /// The buffer of an index, which takes over the reference of that index.
    #[inline(always)]
    fn buf(&self, index: u32) -> Buf {
        // SAFETY: each caller has just taken `index` from the free list or a cache, with its
        // reference. Both return an index once, so no other `Buf` has it.
        unsafe { Buf::new(self.core, index) }
    }

    #[inline(always)]
    fn core(&self) -> &Core {
        // SAFETY: the core is alive, because this handle has a reference. Only the drop of the last
        // reference accesses the core exclusively.
        unsafe { self.core.as_ref() }
    }
}

impl Clone for Pool {
    fn clone(&self) -> Self {
        self.core().handles.fetch_add(1, Ordering::Relaxed);
        // Relaxed: the new reference comes from one that we hold.
        self.core().references.fetch_add(1, Ordering::Relaxed);
        Self { core: self.core }
    }
}

impl Drop for Pool {
    fn drop(&mut self) {
        self.core().handles.fetch_sub(1, Ordering::Relaxed);
        // SAFETY: this releases the one reference of this handle, which is not used afterwards.
        unsafe { Core::release(self.core, 1) };
    }
}

impl fmt::Debug for Pool {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Pool")
            .field("config", &self.config())
            .field("outstanding", &self.outstanding())
            .finish()
    }
}

impl Core {
    /// Takes indices from the shared list, each with a reference to the pool.
    fn lease(&self, out: &mut Vec<u32>, count_max: usize) -> usize {
        let count = self.free.pop(out, count_max);
        // Relaxed: the caller has a reference, so the count is not 0.
        self.references.fetch_add(count, Ordering::Relaxed);
        count
    }

    /// Returns indices to the shared list. The caller releases their references.
    fn put_back(&self, indices: &[u32]) {
        self.free.push(indices);
    }

    /// Releases `count` references, and destroys the pool with the last one.
    ///
    /// # Safety
    /// The caller holds `count` references and does not access the pool through any of them
    /// afterwards.
    unsafe fn release(core: NonNull<Self>, count: usize) {
        // SAFETY: the core is alive, because the caller's references are released only below.
        let references = unsafe { &core.as_ref().references };
        // Release, and acquire for the last reference: all uses of the pool precede its drop.
        if references.fetch_sub(count, Ordering::Release) == count {
            references.load(Ordering::Acquire);
            // SAFETY: that was the last reference, and the box was leaked in `Pool::in_region`.
            drop(unsafe { Box::from_raw(core.as_ptr()) });
        }
    }
}

/// A worker's own stack of free buffers.
pub struct Cache {
    pool: Pool,
    /// Free buffers. Each index holds one reference to the pool.
    indices: Vec<u32>,
    buffers_max: usize,
}

impl Cache {
    /// An empty buffer with the pool's headroom. `None` if no buffer is free. The bytes outside of
    /// the window have their previous contents.
    #[inline]
    pub fn alloc(&mut self) -> Option<Buf> {
        if self.indices.is_empty() && !self.refill() {
            return None;
        }
        self.indices.pop().map(|index| self.pool.buf(index))
    }

    #[inline]
    pub fn is_of(&self, buf: &Buf) -> bool {
        buf.core() == self.pool.core
    }

    /// Frees a buffer. A buffer of another pool returns to its own pool.
    #[inline]
    pub fn free(&mut self, buf: Buf) {
        if !self.is_of(&buf) {
            drop(buf);
            return;
        }
        if self.indices.len() == self.buffers_max {
            self.spill(self.buffers_max / 2);
        }
        self.indices.push(buf.into_index());
    }

    pub fn pool(&self) -> &Pool {
        &self.pool
    }

    pub fn len(&self) -> usize {
        self.indices.len()
    }

    /// Whether the cache is empty; the pool may still have free buffers.
    pub fn is_empty(&self) -> bool {
        self.indices.is_empty()
    }

    /// Takes indices from the shared list, up to half of the limit; returns whether there were any.
    #[cold]
    fn refill(&mut self) -> bool {
        self.pool.core().lease(&mut self.indices, self.buffers_max / 2) > 0
    }

    /// Moves the `count` oldest indices to the shared list: the buffers of the others are still in
    /// a CPU cache.
    #[cold]
    fn spill(&mut self, count: usize) {
        self.pool.core().put_back(&self.indices[..count]);
        self.indices.drain(..count);
        // SAFETY: these are the references of the indices that are on the list now.
        unsafe { Core::release(self.pool.core, count) };
    }
}

impl Drop for Cache {
    fn drop(&mut self) {
        self.spill(self.indices.len());
    }
}

impl fmt::Debug for Cache {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Cache").field("pool", &self.pool).field("len", &self.len()).finish()
    }
}
