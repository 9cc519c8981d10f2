//! Limits of a stack, and what it counts.

use super::mtu::MTU_MAX;
use std::time::Duration;

/// A stack's configuration.
#[derive(Clone, Debug)]
pub struct StackConfig {
    /// The longest packet on the link, unless a destination says otherwise.
    pub mtu: u32,
    /// Packets that wait to be sent, at most; those of TCP wait in their connections.
    pub packets_max: usize,
    /// UDP sockets, at most.
    pub udp_sockets_max: usize,
    /// Bytes that wait in a UDP socket to be received, at most.
    pub udp_queue_bytes_max: usize,
    /// Whether checksums of datagrams and segments that come are looked at. Without that, what a
    /// router or a host on the way has spoilt is not noticed; the link has checksums of its own.
    pub verify_checksums: bool,
    /// TCP.
    pub tcp: TcpConfig,
}

/// TCP's part of it.
#[derive(Clone, Debug)]
pub struct TcpConfig {
    /// Connections, at most, those included that wait for stragglers.
    pub connections_max: usize,
    /// Listeners, at most.
    pub listeners_max: usize,
    /// Connections that wait at a listener, at most, whatever it asks for.
    pub backlog_max: usize,
    /// Bytes that a connection takes before anybody reads them: its window.
    pub receive_bytes: usize,
    /// Bytes that a connection holds until they are acknowledged.
    pub send_bytes: usize,
    /// Whether small segments wait for acknowledgments of others (RFC 9293 3.7.4).
    pub nagle: bool,
    /// How long a peer may be silent that has something to acknowledge: R2 of RFC 9293 3.8.3, which
    /// wants 100 s at the least, and three minutes for a SYN. Time in which nobody serves the stack
    /// does not count.
    pub user_timeout: Duration,
    /// After how long without a word of its peer an idle connection is probed (RFC 9293 3.8.4), if
    /// it is; a peer that answers nothing for as long again is given up.
    pub keepalive: Option<Duration>,
    /// How long an interface that ends goes on to bring to peers what was written, as long as they
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
    /// Windows of eight of the longest packets: with fewer than four, a lost one is noticed by the
    /// clock only (RFC 5681 3.2).
    ///
    /// Keep-alive is on, and its time five minutes, against RFC 9293 3.8.4, which has it off and
    /// two hours: TCP runs in the application's process here, so a process that is killed says
    /// nothing to its peers, as a host does that loses power. Every restart would leave connections
    /// that nobody else ends. A process that is only stopped, or computes, has ten minutes.
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

/// What a stack counted.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    /// Packets that are none, or whose checksum is wrong.
    pub malformed: u64,
    /// Parts of packets, which are not put together here.
    pub fragments: u64,
    /// Packets of protocols, or with extensions, that nobody here speaks.
    pub unknown_protocol: u64,
    /// Segments for a group, or from one.
    pub not_one_to_one: u64,
    /// Datagrams for a socket whose queue is full.
    pub udp_queue_full: u64,
    /// Datagrams for ports without a socket.
    pub udp_refused: u64,
    /// SYNs beyond a listener's backlog, or beyond all connections that there may be.
    pub backlog_full: u64,
    /// SYNs that were answered without keeping anything of them (RFC 4987 3.6).
    pub syn_cookies: u64,
    /// Connections that began with the acknowledgment of such an answer.
    pub syn_cookies_accepted: u64,
    /// Idle connections whose peer answered no probe.
    pub keepalive_timeouts: u64,
    /// Segments that are nobody's.
    pub tcp_refused: u64,
    /// Times that a connection was asked what it has to send.
    pub tcp_polls: u64,
    /// Complaints about packets that nobody here sent.
    pub icmp_errors_unmatched: u64,
}
