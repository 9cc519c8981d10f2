//! The counters of a port of a plain interface.

use pollux_dataplane::reason::{ForwardDrops, PacketDrops};
use pollux_verbs::drops::Drops;
use pollux_verbs::reasons;

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct PlainCounters {
    /// Packets received, and sent.
    pub(super) received: u64,
    pub(super) sent: u64,
    /// Bytes of valid packets, from the IP header on.
    pub(super) bytes_received: u64,
    pub(super) bytes_sent: u64,
    /// Received packets that were dropped, by reason.
    pub(super) drops: PacketDrops,
    /// Packets in transit that were dropped, by reason.
    pub(super) forward_drops: ForwardDrops,
    /// Other dropped packets, by reason.
    pub(super) port_drops: Drops<PortDrop>,
    /// Dropped frames of an Ethernet device, by reason.
    pub(super) frame_drops: Drops<FrameDrop>,
    /// Frames that the kernel dropped for lack of space.
    pub(super) kernel_full: u64,
}

reasons! {
    pub enum FrameDrop {
        /// Shorter than its header.
        Runt = "runt",
        OtherVlan = "other_vlan",
        /// To the address of another host.
        NotOurs = "not_ours",
        /// Neither ARP nor IP.
        UnknownType = "unknown_type",
        /// Longer than the MTU, such as a frame of a device that merges packets.
        TooLong = "too_long",
        /// The device could not receive, because it is down. Counts calls, not frames.
        DeviceError = "device_error",
    }
}

reasons! {
    pub enum PortDrop {
        /// In transit, in a node that does not forward.
        Transit = "transit",
        /// The device has no space for it now.
        Full = "full",
        /// The device refused it: the device is down, or the packet is too long or invalid.
        Refused = "refused",
        /// A packet of a TUN device with invalid offloads: a checksum field outside of the packet,
        /// or segmentation of a packet that is not TCP.
        BadOffload = "bad_offload",
        /// Control had no space for it.
        PuntsDropped = "punts_dropped",
        /// No buffer was free for a packet of an Ethernet device, received or to be sent. A TUN
        /// device keeps its packets until one is free.
        NoReceiveBuffer = "no_receive_buffer",
    }
}
