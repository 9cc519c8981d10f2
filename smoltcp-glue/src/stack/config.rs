//! Limits and counters of a stack.

use super::mtu::MTU_MAX;
use std::time::Duration;

/// The shortest keep-alive time. Probes are made from challenge ACKs, at most five a second.
pub const KEEPALIVE_MIN: Duration = Duration::from_secs(1);

/// A stack's configuration.
#[derive(Clone, Debug)]
pub struct StackConfig {
    /// The MTU in bytes, unless a destination has a path MTU.
    pub mtu: u32,
    /// Maximum number of packets in the send queue. TCP data waits in the send buffers of its
    /// connections instead.
    pub packets_max: usize,
    /// Maximum number of UDP sockets.
    pub udp_sockets_max: usize,
    /// Maximum bytes in the receive queue of a UDP socket.
    pub udp_queue_bytes_max: usize,
    /// Whether checksums of received datagrams and segments are verified. Without it, corruption in
    /// a router or a host is not detected; the link has checksums of its own.
    pub verify_checksums: bool,
    /// The limits of TCP.
    pub tcp: TcpConfig,
}

/// The configuration of TCP.
#[derive(Clone, Debug)]
pub struct TcpConfig {
    /// Maximum number of connections. Connections in TIME-WAIT that the application has closed are
    /// counted apart, with the same limit.
    pub connections_max: usize,
    /// Maximum number of listeners.
    pub listeners_max: usize,
    /// Upper bound of the backlog of a listener.
    pub backlog_max: usize,
    /// Receive buffer of a connection in bytes: its window.
    pub receive_bytes: usize,
    /// Send buffer of a connection in bytes.
    pub send_bytes: usize,
    /// Whether the Nagle algorithm is on (RFC 9293 3.7.4).
    pub nagle: bool,
    /// How long unacknowledged data may wait before the connection times out: R2 of RFC 9293 3.8.3,
    /// which has to be at least 100 s, and three minutes for a SYN. Time in which the stack is not
    /// served does not count.
    pub user_timeout: Duration,
    /// Keep-alive time of idle connections (RFC 9293 3.8.4): a silent peer is probed after it, and
    /// the connection times out if no probe is answered for as long again. At least
    /// [`KEEPALIVE_MIN`].
    pub keepalive: Option<Duration>,
    /// Maximum time to flush written data when the interface is dropped, as long as peers
    /// acknowledge some of it every two seconds.
    pub flush_max: Duration,
}

impl Default for StackConfig {
    fn default() -> Self {
        Self {
            mtu: MTU_MAX,
            packets_max: 1024,
            udp_sockets_max: 65_536,
            udp_queue_bytes_max: 1 << 20,
            verify_checksums: true,
            tcp: TcpConfig::default(),
        }
    }
}

impl Default for TcpConfig {
    /// The buffers hold eight full-size packets: with a window of fewer than four, a loss is
    /// detected only by timeout (RFC 5681 3.2).
    ///
    /// Keep-alive is on, with a time of five minutes; the defaults of RFC 9293 3.8.4 are off and
    /// two hours. Why: TCP runs in the application's process, so a killed process sends nothing to
    /// its peers, like a host that loses power. Connections to it end within five seconds if its
    /// port leaves the subnet, as on the software fabric. If the port stays, as on an adapter, only
    /// keep-alive ends the idle ones. A process that does not run, but is not killed, loses its
    /// idle connections after ten minutes.
    fn default() -> Self {
        Self {
            connections_max: 65_536,
            listeners_max: 65_536,
            backlog_max: 4096,
            receive_bytes: 512 << 10,
            send_bytes: 512 << 10,
            nagle: false,
            user_timeout: Duration::from_secs(180),
            keepalive: Some(Duration::from_secs(300)),
            flush_max: Duration::from_secs(30),
        }
    }
}

/// The counters of a stack.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct StackCounts {
    /// Malformed packets, or packets with a wrong checksum.
    pub malformed: u64,
    /// Malformed fragments, and packets that were given up because fragments were missing or
    /// contradicted each other.
    pub reassemblies_failed: u64,
    /// Packets of unknown protocols, or with unsupported extension headers.
    pub unknown_protocol: u64,
    /// TCP segments to or from a group or broadcast address.
    pub not_one_to_one: u64,
    /// Datagrams dropped because the receive queue was full.
    pub udp_queue_full: u64,
    /// Datagrams for closed ports.
    pub udp_refused: u64,
    /// SYNs dropped because of the backlog or `connections_max`.
    pub backlog_full: u64,
    /// SYNs answered by a SYN cookie (RFC 4987 3.6).
    pub syn_cookies: u64,
    /// Connections opened by the acknowledgment of a SYN cookie.
    pub syn_cookies_accepted: u64,
    /// Idle connections that ended because no keep-alive probe was answered.
    pub keepalive_timeouts: u64,
    /// Segments without a connection or listener.
    pub tcp_refused: u64,
    /// Retransmitted segments, SYN and FIN included.
    pub tcp_retransmissions: u64,
    /// Polls of connections for segments to send.
    pub tcp_polls: u64,
    /// ICMP errors about packets that this stack did not send.
    pub icmp_errors_unmatched: u64,
}
