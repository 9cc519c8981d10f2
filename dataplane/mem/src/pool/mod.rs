//! A pool of fixed-size buffers in one region, and the cache through which a worker uses it.
//!
//! A worker allocates from and frees to its own [`Cache`], a stack of indices that nobody else
//! sees. Only when that runs empty or over does it exchange half of it with the shared
//! [`FreeList`], by one swap. So the hot path touches no shared cache line, even if a buffer is
//! allocated by one worker and freed by another.
//!
//! A buffer is a [`Buf`]: one owner, moved by value, freed when dropped. The types rule out a
//! double free. They do not rule out a leak, so the pool counts the buffers in use
//! ([`Pool::outstanding`]) and [`Pool::close`] reports them.
//!
//! Why the memory cannot go before the last buffer: each index that is not on the shared list holds
//! one reference to the pool, taken and returned in the batches in which indices leave and return.
//! That gives every buffer a safe address without an atomic operation per buffer. A buffer that is
//! never returned keeps the memory mapped for ever, which is a leak and not a fault.
//!
//! Why the stride is an odd number of cache lines: with a power of two, the headers of all buffers
//! fall into the same few sets of the first-level cache (at 2 KiB, two of 64), where a batch evicts
//! itself. An odd stride walks through all of them.

pub mod buf;

use self::buf::Buf;
use crate::free_list::{FreeList, INDICES_MAX};
use crate::memory::Memory;
use crate::pad::CachePadded;
use crate::region::{Backing, MapError, Region};
use crate::segment::Segment;
use crate::sync::{AtomicUsize, Ordering};
use std::fmt;
use std::ptr::NonNull;

/// How many buffers a pool can have.
pub const BUFFERS_MAX: u32 = INDICES_MAX;
/// How long a buffer can be: a window begins and measures at most 2^16 - 1 bytes each.
pub const BUFFER_BYTES_MAX: u32 = 2 * u16::MAX as u32;

const LINE: u32 = 64;

/// What a pool consists of.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PoolConfig {
    /// How many buffers, from 1 to [`BUFFERS_MAX`].
    pub buffers: u32,
    /// How long each is with its headroom, from 1 to [`BUFFER_BYTES_MAX`].
    pub buffer_bytes: u32,
    /// How much of it a fresh buffer leaves free in front, for headers.
    pub headroom_bytes: u16,
}

impl PoolConfig {
    /// From one buffer to the next: an odd number of cache lines.
    fn stride(&self) -> usize {
        ((self.buffer_bytes.div_ceil(LINE) | 1) * LINE) as usize
    }

    /// How much memory it takes.
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

/// Why there is no pool.
#[derive(Debug)]
#[non_exhaustive]
pub enum PoolError {
    /// A number out of its range.
    BadConfig(PoolConfig),
    /// No memory.
    Map(MapError),
}

impl fmt::Display for PoolError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::BadConfig(PoolConfig { buffers, buffer_bytes, headroom_bytes }) => write!(
                f,
                "no pool of {buffers} buffers of {buffer_bytes} bytes, {headroom_bytes} of them \
                 headroom: at most {BUFFERS_MAX} buffers of {BUFFER_BYTES_MAX} bytes, none empty",
            ),
            Self::Map(error) => write!(f, "no memory for the pool: {error}"),
        }
    }
}

impl std::error::Error for PoolError {}

/// Buffers that were not given back when their pool was closed. Their memory stays mapped until
/// they are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Leak {
    /// How many.
    pub outstanding: usize,
}

impl fmt::Display for Leak {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} buffers are still out; drain the queues that hold them", self.outstanding)
    }
}

impl std::error::Error for Leak {}

/// A handle on a pool. Clones are handles on the same one.
///
/// It makes its memory itself. Memory that another process can write must not hold buffers, which
/// are given as slices:
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

/// What the handles, the caches and the buffers of one pool have in common. The first group of
/// fields is written once and then read by all; what changes lies on lines of its own.
struct Core {
    base: NonNull<u8>,
    stride: usize,
    config: PoolConfig,
    region: Region,
    free: FreeList,
    /// Handles, plus indices that are not on `free`.
    references: CachePadded<AtomicUsize>,
    /// Handles alone, for reports.
    handles: CachePadded<AtomicUsize>,
}

// SAFETY: a handle is a counted reference to a `Core`, which any thread may use and may take down:
// its bytes are reached only through a `Buf`, of which there is at most one an index, and all else
// in it is atomic or never written again.
unsafe impl Send for Pool {}
// SAFETY: as above.
unsafe impl Sync for Pool {}

impl Pool {
    /// A pool in private memory of its own.
    pub fn new(config: PoolConfig) -> Result<Self, PoolError> {
        config.check()?;
        let region = Region::anonymous(config.region_bytes()).map_err(PoolError::Map)?;
        Self::in_region(region, config)
    }

    /// A pool in memory that adapters can be told of, and that memory. It has what came from all
    /// peers and what goes to them, so no other process can map it.
    ///
    /// The memory is another mapping of the buffers, so that whoever has it is to them what a
    /// device is: it may be told to write into a buffer for as long as the buffer is posted, which
    /// means that a queue owns the [`Buf`] and makes no slice of it.
    pub fn registered(config: PoolConfig) -> Result<(Self, Memory), PoolError> {
        config.check()?;
        let segment = Segment::create("packets", config.region_bytes()).map_err(PoolError::Map)?;
        let [ours, adapters] = [segment.map(), segment.map()];
        let memory = Memory::over(adapters.map_err(PoolError::Map)?);
        Ok((Self::in_region(ours.map_err(PoolError::Map)?, config)?, memory))
    }

    /// A pool in a region that was made for it. Why nobody else may hand one in: a region may be of
    /// a segment that another process writes, and buffers are given as slices.
    fn in_region(region: Region, config: PoolConfig) -> Result<Self, PoolError> {
        assert!(region.is_writable() && region.bytes() >= config.region_bytes());
        let core = Box::new(Core {
            base: region.address(),
            stride: config.stride(),
            config,
            region,
            free: FreeList::full(config.buffers).ok_or(PoolError::BadConfig(config))?,
            references: CachePadded(AtomicUsize::new(1)),
            handles: CachePadded(AtomicUsize::new(1)),
        });
        Ok(Self { core: NonNull::from(Box::leak(core)) })
    }

    /// What it was made of.
    pub fn config(&self) -> PoolConfig {
        self.core().config
    }

    /// What pages it lies on. It reads a file of the kernel's: for a report, not for a loop.
    pub fn backing(&self) -> Backing {
        self.core().region.backing()
    }

    /// A cache for one worker, which keeps up to `buffers_max` (at least 2) buffers at hand.
    ///
    /// What caches keep, others cannot have: size the pool for the sum of them and the queues.
    pub fn cache(&self, buffers_max: usize) -> Cache {
        let buffers_max = buffers_max.max(2);
        Cache { pool: self.clone(), indices: Vec::with_capacity(buffers_max), buffers_max }
    }

    /// One buffer without a cache, for a slow path. `None` when none is free.
    pub fn alloc(&self) -> Option<Buf> {
        let mut index = Vec::with_capacity(1);
        (self.core().lease(&mut index, 1) == 1).then(|| self.buf(index[0]))
    }

    /// How many buffers are away from the shared list: in somebody's hands, or in a cache.
    /// Once the caches are dropped, this is how many are not given back.
    ///
    /// While others allocate it is a figure of the recent past.
    pub fn outstanding(&self) -> usize {
        let references = self.core().references.load(Ordering::Relaxed);
        references.saturating_sub(self.core().handles.load(Ordering::Relaxed))
    }

    /// Gives up this handle and reports what is still out. For the last handle, after the caches.
    pub fn close(self) -> Result<(), Leak> {
        match self.outstanding() {
            0 => Ok(()),
            outstanding => Err(Leak { outstanding }),
        }
    }

    /// The buffer of an index whose lease the caller holds and hands over.
    #[inline(always)]
    fn buf(&self, index: u32) -> Buf {
        // SAFETY: each caller has just got `index` from the free list with its lease, or from a
        // cache that keeps it with its lease. Both hand an index out once, so no other `Buf` stands
        // for it.
        unsafe { Buf::new(self.core, index) }
    }

    #[inline(always)]
    fn core(&self) -> &Core {
        // SAFETY: this handle holds a reference, so the core is alive; nobody has it exclusively
        // before the last reference is gone.
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
        // SAFETY: the reference of this handle, which is not used after this.
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
    /// Takes indices off the shared list, each with a reference to the pool.
    fn lease(&self, out: &mut Vec<u32>, count_max: usize) -> usize {
        let count = self.free.pop(out, count_max);
        // Relaxed: whoever calls this holds a reference, so the count is not at its end.
        self.references.fetch_add(count, Ordering::Relaxed);
        count
    }

    /// Puts indices back on the shared list. Their references are the caller's to release.
    fn put_back(&self, indices: &[u32]) {
        self.free.push(indices);
    }

    /// Gives back `count` references and takes the pool down with the last.
    ///
    /// # Safety
    /// The caller holds that many references and touches the pool through none of them any more.
    unsafe fn release(core: NonNull<Self>, count: usize) {
        // SAFETY: alive, because the caller's references are not given back before this line.
        let references = unsafe { &core.as_ref().references };
        // Release, and acquire in who comes last: all use of the pool, by whomever, is over before
        // it goes.
        if references.fetch_sub(count, Ordering::Release) == count {
            references.load(Ordering::Acquire);
            // SAFETY: that was the last reference and the box was leaked in `Pool::in_region`.
            drop(unsafe { Box::from_raw(core.as_ptr()) });
        }
    }
}

/// A worker's own stock of free buffers.
pub struct Cache {
    pool: Pool,
    /// Free indices, each with its reference to the pool.
    indices: Vec<u32>,
    buffers_max: usize,
}

impl Cache {
    /// An empty buffer with the pool's headroom, or `None` when none is free. Its bytes are
    /// whatever they were.
    #[inline]
    pub fn alloc(&mut self) -> Option<Buf> {
        if self.indices.is_empty() && !self.refill() {
            return None;
        }
        self.indices.pop().map(|index| self.pool.buf(index))
    }

    /// Whether a buffer is of this cache's pool.
    #[inline]
    pub fn is_of(&self, buf: &Buf) -> bool {
        buf.core() == self.pool.core
    }

    /// Takes a buffer back. One of another pool goes home to that one.
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

    /// The pool behind it.
    pub fn pool(&self) -> &Pool {
        &self.pool
    }

    /// How many buffers it has at hand.
    pub fn len(&self) -> usize {
        self.indices.len()
    }

    /// Whether it has none at hand; the pool may still have some.
    pub fn is_empty(&self) -> bool {
        self.indices.is_empty()
    }

    /// Takes half of what fits from the shared list; says whether it got any.
    #[cold]
    fn refill(&mut self) -> bool {
        self.pool.core().lease(&mut self.indices, self.buffers_max / 2) > 0
    }

    /// Gives the `count` indices that have lain here longest to the shared list: the others are
    /// warm.
    #[cold]
    fn spill(&mut self, count: usize) {
        self.pool.core().put_back(&self.indices[..count]);
        self.indices.drain(..count);
        // SAFETY: the references of those indices, which are on the list now.
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
