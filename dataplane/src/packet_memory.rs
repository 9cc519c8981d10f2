//! Where packets lie: a pool of buffers in memory that adapters can be told of.
//!
//! The memory is mapped twice, as two processes would map it. Through one mapping programs own
//! buffers and lend their bytes as slices; the other is what is registered with adapters. So an
//! adapter in software is to the pool what one in hardware is: another party, which touches a
//! buffer only while it is posted. Peers in other processes of such an adapter's fabric may read
//! the memory, so that long packets are copied once; they cannot write to it.
//!
//! Every packet that was received begins [`PACKET_OFFSET`] bytes into its buffer, whatever stood
//! in front of it on the wire; so does every one that is made here. What lies in front is room for
//! the headers of any link that it may leave by.

use pollux_mem::pool::PoolError;
use pollux_mem::{Buf, Cache, Memory, Pool, PoolConfig};
use pollux_verbs::{Access, Device, LKey, MemoryRegion, Pd, Sge, VerbsError};
use pollux_wire::ip::ipoib::IpoibHeader;

/// Where in its buffer a packet begins: behind a cache line, and behind the four bytes that every
/// link has in front of it (RFC 4391 6). With these a message begins on a line, and with a GRH on a
/// word, so that an adapter in software moves words and has none to put together.
pub const PACKET_OFFSET: usize = 64 + IpoibHeader::LEN;

/// Buffers that are taken and returned together.
pub const BATCH: usize = 32;

/// Free buffers of a memory that a netdev keeps at hand, at the most.
pub const STOCK_MAX: usize = 2 * BATCH;

/// A pool of buffers, each with room for a packet of one size.
#[derive(Debug)]
pub struct PacketMemory {
    pool: Pool,
    memory: Memory,
}

impl PacketMemory {
    /// So many buffers for packets of at most so many bytes, headers of the link not counted.
    /// Takes `buffers * (packet_bytes_max + 68)` bytes, rounded up to an odd number of cache
    /// lines each.
    pub fn new(buffers: u32, packet_bytes_max: u32) -> Result<Self, PoolError> {
        let config = PoolConfig {
            buffers,
            buffer_bytes: packet_bytes_max.saturating_add(PACKET_OFFSET as u32),
            headroom_bytes: PACKET_OFFSET as u16,
        };
        let (pool, memory) = Pool::shared(config)?;
        Ok(Self { pool, memory })
    }

    /// The pool, for whoever makes packets.
    pub fn pool(&self) -> &Pool {
        &self.pool
    }

    /// The longest packet that a buffer has room for.
    pub fn packet_bytes_max(&self) -> u32 {
        self.pool.config().buffer_bytes - PACKET_OFFSET as u32
    }
}

/// A worker's stock of buffers of one memory, and those that it has posted as receives.
#[derive(Debug)]
pub(crate) struct Stock {
    pub(crate) cache: Cache,
    pub(crate) packet_bytes_max: usize,
    /// The pool's memory, as the adapter knows it.
    region: MemoryRegion,
    /// By their index.
    posted: Box<[Option<Buf>]>,
}

impl Stock {
    /// A stock of this memory, made known to the device.
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

    /// The window of a buffer as an entry of a request; `None` if it is not of this memory.
    #[inline]
    pub(crate) fn sge(&self, buf: &Buf) -> Option<Sge> {
        let address = self.region.address.wrapping_add(buf.distance() as u64);
        let sge = Sge { address, bytes: buf.len() as u32, lkey: self.region.lkey };
        self.holds(buf).then_some(sge)
    }

    /// Whether a buffer is of this memory.
    #[inline]
    pub(crate) fn holds(&self, buf: &Buf) -> bool {
        self.cache.is_of(buf)
    }

    /// Remembers a receive.
    #[inline]
    pub(crate) fn post(&mut self, buf: Buf) {
        let index = buf.index() as usize;
        self.posted[index] = Some(buf);
    }

    /// The receive of this number, if it is posted.
    #[inline]
    pub(crate) fn take(&mut self, index: u32) -> Option<Buf> {
        self.posted.get_mut(index as usize)?.take()
    }

    /// Buffers of the memory that are neither free nor posted as receives. It counts them all.
    pub(crate) fn in_use(&self) -> usize {
        let posted = self.posted.iter().flatten().count();
        self.cache.pool().outstanding().saturating_sub(self.cache.len() + posted)
    }

    /// What names the memory at the device.
    pub(crate) fn lkey(&self) -> LKey {
        self.region.lkey
    }

    /// Takes back what is posted, after the queues are gone.
    pub(crate) fn take_all(&mut self) {
        let posted = self.posted.iter_mut().filter_map(Option::take);
        posted.for_each(|buf| self.cache.free(buf));
    }
}

impl Drop for Stock {
    /// What is still posted the adapter may still write: nobody gets those buffers any more.
    fn drop(&mut self) {
        self.posted.iter_mut().filter_map(Option::take).for_each(Buf::leak);
    }
}
