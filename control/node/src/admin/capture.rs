//! Requests and replies of `pollux capture`. A client begins a capture, reads its packets
//! repeatedly, and ends it. If the client does not read for [`CAPTURE_TIMEOUT`], the node ends the
//! capture.

use serde::{Deserialize, Serialize};
use std::time::Duration;

/// A capture ends if its client does not read it for this long.
pub const CAPTURE_TIMEOUT: Duration = Duration::from_secs(10);

/// The packets of a capture.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct CaptureRequest {
    /// The interface to capture at; by default all interfaces.
    #[serde(default)]
    pub interface: Option<String>,
    /// Captures only packets that are dropped for this reason; by default received and sent
    /// packets.
    #[serde(default)]
    pub reason: Option<String>,
    /// Captures only packets that match this filter, in the syntax of pcap-filter(7).
    #[serde(default)]
    pub filter: String,
    /// Maximum number of bytes captured of each packet; by default all.
    #[serde(default)]
    pub snap_bytes: Option<usize>,
}

/// A capture that has begun.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct CaptureStatus {
    /// The number of the capture, for further requests.
    pub capture: u64,
    /// The interfaces where the capture runs.
    pub interfaces: Vec<String>,
}

/// The packets captured since the previous request.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct CapturedPackets {
    /// The packets, in the order of their times.
    pub packets: Vec<CapturedPacket>,
    /// Packets that were missed since the beginning because the buffer of a worker was full.
    pub missed: u64,
    /// Whether more packets are available now.
    pub has_more: bool,
}

/// A captured packet.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct CapturedPacket {
    /// The interface that received, sent or dropped the packet.
    pub interface: String,
    /// Whether the packet was sent. A dropped packet was received before.
    pub is_sent: bool,
    /// The reason why the packet was dropped, if it was.
    pub dropped: Option<String>,
    /// The time of capture, in nanoseconds since 1970.
    pub nanos: u64,
    /// The length of the packet, including bytes that were not captured.
    pub bytes: usize,
    /// The captured bytes, from the IP header on, in hexadecimal.
    pub data: String,
}
