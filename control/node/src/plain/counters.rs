//! The counters of a port of a plain interface.

use pollux_dataplane::reason::{ForwardDrops, PacketDrops};

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct PlainCounters {
    /// Packets received, and sent.
    pub(super) received: u64,
    pub(super) sent: u64,
    /// Bytes of those, from the IP header on.
    pub(super) bytes_received: u64,
    pub(super) bytes_sent: u64,
    /// Received packets that were dropped, by reason.
    pub(super) drops: PacketDrops,
    /// Packets in transit that were dropped, by reason.
    pub(super) forward_drops: ForwardDrops,
    /// All other drops.
    pub(super) counts: PlainCounts,
    /// Frames that were dropped, at a link of Ethernet.
    pub(super) frames: FrameCounts,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct FrameCounts {
    /// Shorter than its header.
    pub(super) runt: u64,
    pub(super) other_vlan: u64,
    /// To another interface of the link.
    pub(super) not_ours: u64,
    /// Of no protocol that is known here.
    pub(super) unknown_type: u64,
    /// Longer than the MTU: a device that merges packets makes such frames.
    pub(super) too_long: u64,
    /// The kernel had no space for it on its way here.
    pub(super) kernel_full: u64,
    /// Errors of the device, which is down.
    pub(super) device_errors: u64,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct PlainCounts {
    /// In transit, in a node that does not forward.
    pub(super) transit: u64,
    /// The device has no space for it now.
    pub(super) full: u64,
    /// The device refused it: it is down.
    pub(super) refused: u64,
    /// Its offloads cannot be done: a checksum outside of it, or a unit that is not of TCP.
    pub(super) bad_offload: u64,
    /// Control had no space for it.
    pub(super) punts_dropped: u64,
    /// Times that no buffer was free. The packets wait at the device.
    pub(super) starved: u64,
}
