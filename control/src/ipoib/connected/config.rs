//! Settings and limits of connected mode.

use crate::cm::CmConfig;
use pollux_verbs::QpType;
use pollux_wire::address::Guid;
use pollux_wire::ip::link_address::LinkAddress;
use pollux_wire::mad::cm::ipoib::Dialect;
use pollux_wire::packet::RnrTimer;
use pollux_wire::units::TimeCode;
use std::time::Duration;

/// The transport to peers that offer connected mode (RFC 4755 3.1).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Policy {
    /// By datagram. As an interface's policy it turns connected mode off.
    #[default]
    Ud,
    /// By reliable connection where that is offered, else by datagram.
    Rc,
    /// By unreliable connection where that is offered, else by datagram.
    Uc,
    /// By the best connection that is offered: reliable, or else unreliable; else by datagram.
    Auto,
}

impl Policy {
    /// The type of connection to a peer with these flags; `None` for datagrams only.
    pub const fn wants(self, peer: &LinkAddress) -> Option<QpType> {
        match self {
            Self::Rc | Self::Auto if peer.rc => Some(QpType::Rc),
            Self::Uc | Self::Auto if peer.uc => Some(QpType::Uc),
            _ => None,
        }
    }
}

#[derive(Clone, Debug)]
pub struct PeerConfig {
    pub policy: Policy,
    /// Whether reliable connections are offered and accepted, unless connected mode is off.
    pub offers_rc: bool,
    pub offers_uc: bool,
    /// The longest message that we receive, in bytes, header included (RFC 4755 5.1).
    pub receive_mtu: u32,
    /// The service-ID convention of the first REQ to a peer. Linux rejects the RFC's service ID at
    /// once, and then gets a REQ with its own. In the opposite order, two nodes that support both
    /// would take each other for Linux.
    pub dialect_first: Dialect,
    /// Connections of each worker of ours, those that are ending included.
    pub connections_max: usize,
    /// Connections of one peer, for each of the peer's workers that requests them.
    pub connections_per_peer_max: usize,
    /// Connections of all peers at one port, for each worker of ours. A peer that has connections
    /// for another of its workers may use only half of this limit, to leave space for other peers.
    pub connections_per_port_max: usize,
    /// Ending connections of all peers at one port, for each worker of ours.
    pub ending_per_port_max: usize,
    /// Refused or unanswered attempts in a row before traffic uses datagrams for `give_up_for` (RFC
    /// 4755 8).
    pub attempts_max: u32,
    /// The pause after a failed attempt; it doubles each time.
    pub pause_min: Duration,
    pub pause_max: Duration,
    /// How long traffic uses datagrams after `attempts_max` refused or unanswered attempts.
    pub give_up_for: Duration,
    /// A connection that fails sooner counts as a failed attempt.
    pub good_after: Duration,
    /// How long a packet that is too long for a datagram waits for a connection.
    pub long_packet_timeout: Duration,
    /// How long an unreliable connection sends without receiving before the peer is probed. If the
    /// peer has restarted, its packets are lost until the probes fail.
    pub probe_after: Duration,
    pub probe_interval: Duration,
    /// Probes without an answer before the connection ends.
    pub probes_max: u8,
    /// How long a connection to a peer that is not a neighbor may be unused before it ends; `None`:
    /// forever (RFC 4755 3.4).
    pub idle_for: Option<Duration>,
    /// Whether queue pairs here can migrate to an alternate path when their path fails.
    pub migrates: bool,
    /// How long a connection is open before the search for an alternate path. The pause until the
    /// next search doubles each time.
    pub alternate_after: Duration,
    pub alternate_pause_max: Duration,
    /// How long the peer may take for an ACK. With all retries, the default is less than TCP's
    /// retransmission timeout (RFC 4755 7.1).
    pub ack_timeout: TimeCode,
    pub retry_count: u8,
    /// Retries after an RNR NAK (the peer has no receive); 7 is forever.
    pub rnr_retry_count: u8,
    /// The RNR timer: how long a peer waits after it found no receive here.
    pub min_rnr_timer: RnrTimer,
    pub ca_ack_delay: TimeCode,
    pub cm_retries: u8,
    pub cm_response_timeout: TimeCode,
    pub cm: CmConfig,
}

impl PeerConfig {
    /// The default settings, with connected mode off.
    pub const fn of(ca_guid: Guid) -> Self {
        Self {
            policy: Policy::Ud,
            offers_rc: true,
            offers_uc: true,
            receive_mtu: 65_524,
            dialect_first: Dialect::Rfc,
            connections_max: 4096,
            connections_per_peer_max: 4,
            connections_per_port_max: 16,
            ending_per_port_max: 64,
            attempts_max: 5,
            pause_min: Duration::from_secs(1),
            pause_max: Duration::from_secs(32),
            give_up_for: Duration::from_secs(600),
            good_after: Duration::from_secs(5),
            long_packet_timeout: Duration::from_secs(2),
            probe_after: Duration::from_secs(2),
            probe_interval: Duration::from_millis(500),
            probes_max: 4,
            idle_for: Some(Duration::from_secs(600)),
            migrates: false,
            alternate_after: Duration::from_secs(5),
            alternate_pause_max: Duration::from_secs(600),
            // 16.8 ms eight times is 134 ms; TCP waits for 200 ms at least.
            ack_timeout: TimeCode(12),
            retry_count: 7,
            rnr_retry_count: 7,
            min_rnr_timer: RnrTimer(12),
            ca_ack_delay: TimeCode(8),
            cm_retries: 5,
            cm_response_timeout: TimeCode(16),
            cm: CmConfig::of(ca_guid),
        }
    }

    /// The default settings for a software adapter, which acknowledges only when its process polls
    /// it. Eight times 134 ms is 1.07 s, longer than TCP waits, unlike RFC 4755 7.1. Why: when a
    /// shorter retry period ends, the peer's process is usually busy and no packet was lost. A
    /// process that computes for half a second must not lose packets or connections.
    pub const fn of_polled(ca_guid: Guid) -> Self {
        Self { ack_timeout: TimeCode(15), ..Self::of(ca_guid) }
    }

    pub fn is_on(&self) -> bool {
        self.policy != Policy::Ud
    }

    /// The flags of the link address: zero while connected mode is off (RFC 4755 3.1).
    pub fn offers(&self) -> (bool, bool) {
        (self.is_on() && self.offers_rc, self.is_on() && self.offers_uc)
    }
}
