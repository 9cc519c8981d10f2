//! Links between adapters, with captures and fault injection.
//!
//! An adapter knows only [`Link`]. A [`Wire`] has the properties of a link of a net, among them its
//! [`fault`] rules. [`threads`] joins two adapters in two threads.

pub mod fault;
pub mod threads;

pub use pollux_hca::{FrameSink, Link};

use fault::Faults;
use std::time::Duration;

/// The properties of a link of a net.
#[derive(Clone, Copy, Debug)]
pub struct Wire {
    /// The faults, in both directions.
    pub faults: Faults,
    /// The minimum latency of a frame.
    pub latency: Duration,
    /// The maximum random latency in addition; frames stay in order.
    pub jitter: Duration,
    /// Sends packets even where messages could bypass them.
    pub packets_only: bool,
}

impl Default for Wire {
    /// A link without faults.
    fn default() -> Self {
        Self {
            faults: Faults::default(),
            latency: Duration::from_nanos(500),
            jitter: Duration::ZERO,
            packets_only: false,
        }
    }
}
