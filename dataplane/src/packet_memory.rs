//! Packet memory: a pool of buffers in memory that is registered with adapters.
//!
//! The memory is mapped twice, as two processes would map it. Through one mapping, programs own
//! buffers and borrow their bytes as slices. The other mapping is registered with adapters. So a
//! software adapter uses the pool like a hardware adapter, and accesses a buffer only while it is
//! posted. No other process can map the memory, because it holds packets of all peers. So a long
//! packet between two processes is copied twice.
//!
//! Every packet, received or created, begins [`PACKET_OFFSET`] bytes into its buffer. The headroom
//! before it is enough for the headers of every link.

use pollux_mem::pool::PoolError;
use pollux_mem::{Buf, Cache, Memory, Pool, PoolConfig};
use pollux_verbs::{Access, Device, LKey, MemoryRegion, Pd, Sge, VerbsError};
use pollux_wire::ip::ipoib::IpoibHeader;

/// The offset of a packet in its buffer: a cache line and the encapsulation header (RFC 4391 6). So
/// a message with this header begins on a cache line, and a message with a GRH on a word boundary,
/// and a software adapter copies aligned words.
pub const PACKET_OFFSET: usize = 64 + IpoibHeader::LEN;

pub const BATCH: usize = 32;

/// The maximum number of free buffers of each memory that a netdev caches.
pub const STOCK_MAX: usize = 2 * BATCH;

#[derive(Debug)]
pub struct PacketMemory {
    pool: Pool,
    memory: Memory,
}

impl PacketMemory {
    /// Creates a memory of `buffers` buffers. `packet_bytes_max` does not include link-layer
    /// headers. Each buffer takes `packet_bytes_max + 68` bytes, rounded up to an odd number of
    /// cache lines.
    pub fn new(buffers: u32, packet_bytes_max: u32) -> Result<Self, PoolError> {
        let config = PoolConfig {
            buffers,
            buffer_bytes: packet_bytes_max.saturating_add(PACKET_OFFSET as u32),
            headroom_bytes: PACKET_OFFSET as u16,
        };
        let (pool, memory) = Pool::registered(config)?;
        Ok(Self { pool, memory })
    }

    pub fn pool(&self) -> &Pool {
        &self.pool
    }

    pub fn packet_bytes_max(&self) -> u32 {
        self.pool.config().buffer_bytes - PACKET_OFFSET as u32
    }
}

/// A worker's free buffers of one memory, and its posted receives.
#[derive(Debug)]
pub(crate) struct Stock {
    pub(crate) cache: Cache,
    pub(crate) packet_bytes_max: usize,
    region: MemoryRegion,
    posted: Box<[Option<Buf>]>,
}

impl Stock {
    pub(crate) fn new<D: Device + ?Sized>(
        device: &mut D,
        pd: Pd,
        packets: &PacketMemory,
    ) -> Result<Self, VerbsError> {
        Ok(Self {
            cache: packets.pool.cache(STOCK_MAX),
            packet_bytes_max: packets.packet_bytes_max() as usize,
            region: device.register(pd, &packets.memory, Access::LOCAL_WRITE)?,
            posted: (0..packets.pool.config().buffers).map(|_| None).collect(),
        })
    }

    /// The scatter/gather entry of a buffer's window. `None` if the buffer belongs to another
    /// memory.
    #[inline]
    pub(crate) fn sge(&self, buf: &Buf) -> Option<Sge> {
        let address = self.region.address.wrapping_add(buf.distance() as u64);
        let sge = Sge { address, bytes: buf.len() as u32, lkey: self.region.lkey };
        self.holds(buf).then_some(sge)
    }

    #[inline]
    pub(crate) fn holds(&self, buf: &Buf) -> bool {
        self.cache.is_of(buf)
    }

    #[inline]
    pub(crate) fn post(&mut self, buf: Buf) {
        let index = buf.index() as usize;
        self.posted[index] = Some(buf);
    }

    /// Takes the buffer of the posted receive with this index.
    #[inline]
    pub(crate) fn take(&mut self, index: u32) -> Option<Buf> {
        self.posted.get_mut(index as usize)?.take()
    }

    /// The number of buffers that are neither free nor posted as receives. Takes time linear in the
    /// size of the pool.
    pub(crate) fn in_use(&self) -> usize {
        let posted = self.posted.iter().flatten().count();
        self.cache.pool().outstanding().saturating_sub(self.cache.len() + posted)
    }

    pub(crate) fn lkey(&self) -> LKey {
        self.region.lkey
    }

    /// Frees all posted receives, after the queues are destroyed.
    pub(crate) fn take_all(&mut self) {
        let posted = self.posted.iter_mut().filter_map(Option::take);
        posted.for_each(|buf| self.cache.free(buf));
    }
}

impl Drop for Stock {
    /// The adapter may still write posted buffers, so they are leaked, not reused.
    fn drop(&mut self) {
        self.posted.iter_mut().filter_map(Option::take).for_each(Buf::leak);
    }
}
