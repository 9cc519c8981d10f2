//! Counters of the packets of a netdev: what it sends and receives, by transport.

/// Packet counters of a netdev.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Traffic {
    /// Packets posted as datagrams.
    pub datagrams_sent: u64,
    /// Packets posted on connections.
    pub connected_sent: u64,
    /// Packets received as datagrams.
    pub datagrams_received: u64,
    /// Packets received on connections.
    pub connected_received: u64,
    /// Bytes of the packets posted, without headers of the encapsulation.
    pub bytes_sent: u64,
    /// Bytes of the packets received, likewise.
    pub bytes_received: u64,
    /// Times that no buffer was free for a receive.
    pub starved: u64,
}
