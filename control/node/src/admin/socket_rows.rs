//! The rows of `pollux show sockets`: the sockets of a program that uses the library `pollux`.

use serde::{Deserialize, Serialize};

/// A socket of a program.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct SocketStatus {
    /// The interface that has it.
    pub interface: String,
    /// The number of the worker that serves it.
    pub worker: usize,
    /// `tcp` or `udp`.
    pub protocol: String,
    /// The address and port to which it is bound.
    pub local: String,
    /// The peer, if it is connected.
    pub peer: Option<String>,
    /// The state of a connection or a listener (RFC 9293 3.3.2).
    pub state: Option<String>,
    /// Bytes that the program has not read; of a listener, connections that it has not accepted.
    pub receive_queue: usize,
    /// Bytes that are not acknowledged, of a UDP socket not sent; of a listener, its backlog.
    pub send_queue: usize,
    /// The measurements and counters of a TCP connection.
    pub tcp: Option<TcpStatus>,
}

/// The measurements and counters of a TCP connection. Sizes are in bytes of data; counters start
/// with the connection.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct TcpStatus {
    /// The smoothed round-trip time in microseconds, after the first sample.
    pub rtt_us: Option<f64>,
    /// Its variation in microseconds (RFC 6298 2).
    pub rtt_variation_us: f64,
    /// The retransmission timeout in microseconds.
    pub rto_us: f64,
    /// The congestion window, if a loss has set it.
    pub congestion_window: Option<usize>,
    /// The slow start threshold, if a loss has set it.
    pub slow_start_threshold: Option<usize>,
    /// Whether the connection is in loss recovery.
    pub is_in_loss_recovery: bool,
    /// The window that the peer offers.
    pub send_window: usize,
    /// The free space of the receive buffer.
    pub receive_window: usize,
    /// The longest segment.
    pub mss: usize,
    /// The MTU of the path to the peer.
    pub path_mtu: u32,
    /// Sent, and not acknowledged.
    pub bytes_in_flight: usize,
    /// Sent, retransmissions included.
    pub bytes_sent: u64,
    /// Acknowledged by the peer.
    pub bytes_acknowledged: u64,
    /// Received in order.
    pub bytes_received: u64,
    /// Retransmitted, a part of `bytes_sent`.
    pub bytes_retransmitted: u64,
    /// Retransmitted segments, SYN and FIN included.
    pub retransmissions: u64,
}
