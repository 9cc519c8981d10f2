//! Counters of the packets of a netdev: what it sends and receives, by transport.

/// Packet counters of a netdev.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Traffic {
    /// Posted as datagrams.
    pub datagrams_sent: u64,
    /// Posted on connections.
    pub connected_sent: u64,
    pub datagrams_received: u64,
    pub connected_received: u64,
    /// Bytes of the posted packets, without the encapsulation header.
    pub bytes_sent: u64,
    /// Bytes of the received packets, without the encapsulation header.
    pub bytes_received: u64,
    /// Times that no buffer was free for a receive.
    pub starved: u64,
}
