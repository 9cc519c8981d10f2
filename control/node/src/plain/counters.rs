//! The counters of a port of a plain interface.

use pollux_dataplane::reason::{ForwardDrops, PacketDrops};
use pollux_verbs::drops::Drops;
use pollux_verbs::reasons;

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
    pub(super) port_drops: Drops<PortDrop>,
    /// Frames that were dropped, at a link of Ethernet.
    pub(super) frame_drops: Drops<FrameDrop>,
    /// Frames for which the kernel had no space.
    pub(super) kernel_full: u64,
}

reasons! {
    pub enum FrameDrop {
        /// Shorter than its header.
        Runt = "runt",
        OtherVlan = "other_vlan",
        /// To another interface of the link.
        NotOurs = "not_ours",
        /// Of no protocol that is known here.
        UnknownType = "unknown_type",
        /// Longer than the MTU: a device that merges packets makes such frames.
        TooLong = "too_long",
        /// Errors of the device, which is down.
        DeviceError = "device_error",
    }
}

reasons! {
    pub enum PortDrop {
        /// In transit, in a node that does not forward.
        Transit = "transit",
        /// The device has no space for it now.
        Full = "full",
        /// The device refused it: it is down.
        Refused = "refused",
        /// Its offloads cannot be done: a checksum outside of it, or a unit that is not of TCP.
        BadOffload = "bad_offload",
        /// Control had no space for it.
        PuntsDropped = "punts_dropped",
        /// Times that no buffer was free. The packets wait at the device.
        NoReceiveBuffer = "no_receive_buffer",
    }
}
