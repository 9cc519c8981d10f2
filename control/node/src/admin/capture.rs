//! Requests and replies of `pollux capture`. A client begins a capture, reads packets again and
//! again, and ends it; one that is not read for [`CAPTURE_TIMEOUT`] ends by itself.

use serde::{Deserialize, Serialize};
use std::time::Duration;

/// How long a capture waits for its client.
pub const CAPTURE_TIMEOUT: Duration = Duration::from_secs(10);

/// The packets of a capture.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct CaptureRequest {
    /// Those at this interface; by default at all.
    #[serde(default)]
    pub interface: Option<String>,
    /// Only those that are dropped for this reason; by default those received and sent.
    #[serde(default)]
    pub reason: Option<String>,
    /// Those that pass this filter, in the syntax of pcap-filter(7).
    #[serde(default)]
    pub filter: String,
    /// At most so many bytes of each; by default all.
    #[serde(default)]
    pub snap_bytes: Option<usize>,
}

/// A capture that has begun.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct CaptureStatus {
    /// Its number, for further requests.
    pub capture: u64,
    /// The interfaces where it runs.
    pub interfaces: Vec<String>,
}

/// The packets since the request before.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct CapturedPackets {
    /// In the order of their times.
    pub packets: Vec<CapturedPacket>,
    /// Packets that were missed since the beginning: the buffer of their worker was full.
    pub missed: u64,
    /// Whether there are more already.
    pub has_more: bool,
}

/// A packet, what happened to it, and when.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct CapturedPacket {
    /// Where the node received, sent or dropped it.
    pub interface: String,
    /// Whether it was sent. A packet that was dropped was received before.
    pub is_sent: bool,
    /// The reason for which it was dropped.
    pub dropped: Option<String>,
    /// Nanoseconds since 1970.
    pub nanos: u64,
    /// Its length, with what was cut off.
    pub bytes: usize,
    /// Its beginning, from the IP header on, in hexadecimal.
    pub data: String,
}
