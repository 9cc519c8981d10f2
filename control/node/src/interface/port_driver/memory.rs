//! The packet memory of a worker thread. All its ports share the memory, which is registered at the
//! device of each port, so that a packet is forwarded from one port to another without a copy.
//!
//! The memory is made for a number of ports, so that each has buffers for its receives and its
//! sends. A port beyond that number needs another memory, and packets between the two are copied.

use super::{CONNECTED_RECEIVES, CONNECTED_SENDS};
use pollux_control::ipoib::connected::PeerConfig;
use pollux_dataplane::ipoib::RECEIVE_MTU_MAX;
use pollux_dataplane::packet_memory::PacketMemory;
use pollux_mem::pool::PoolError;
use pollux_wire::address::Guid;
use pollux_wire::ip::ipoib::ip_mtu;
use std::sync::Arc;

/// Length of a datagram buffer in bytes: the largest MTU of datagrams.
const SMALL_BYTES: u32 = 4092;
/// Buffers of each size that a port needs, for receives, sends and the stock.
const SMALL_BUFFERS: u32 = 1024;
const LARGE_BUFFERS: u32 = 512;
/// Limits of the buffers that a peer port can block: a sixteenth of the receives, by messages that
/// it does not finish, and a third of the send buffers, if it receives nothing.
const _: () = {
    let of_port = PeerConfig::of(Guid(0)).connections_per_port_max as u32;
    assert!(16 * of_port <= CONNECTED_RECEIVES);
    assert!(3 * CONNECTED_SENDS <= LARGE_BUFFERS - CONNECTED_RECEIVES);
};

pub struct WorkerMemory {
    pub(super) small: PacketMemory,
    pub(super) large: PacketMemory,
    ports: usize,
    has_large: bool,
}

impl WorkerMemory {
    pub fn new(ports: usize, connects: bool) -> Result<Arc<Self>, PoolError> {
        let count = ports.clamp(1, 64) as u32;
        let small = PacketMemory::new(count * SMALL_BUFFERS, SMALL_BYTES)?;
        let large = match connects {
            true => PacketMemory::new(count * LARGE_BUFFERS, ip_mtu(RECEIVE_MTU_MAX))?,
            false => PacketMemory::new(1, SMALL_BYTES)?,
        };
        Ok(Arc::new(Self { small, large, ports, has_large: connects }))
    }

    pub(crate) const fn small(&self) -> &PacketMemory {
        &self.small
    }

    pub(crate) const fn large(&self) -> &PacketMemory {
        &self.large
    }

    pub fn has_room(self: &Arc<Self>, connects: bool) -> bool {
        Arc::strong_count(self) <= self.ports && (self.has_large || !connects)
    }
}
