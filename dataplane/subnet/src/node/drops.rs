//! Why a node dropped what came in or was to go out, and how often.

use pollux_verbs::drops::Drops;
use pollux_verbs::reasons;

/// Counts by reason.
pub type NodeDrops = Drops<NodeDrop>;

reasons! {
    /// Why a node dropped a packet or a datagram.
    pub enum NodeDrop {
        /// A directed route with an invalid hop pointer or hop count.
        DirectedRoute = "directed_route",
        /// A management datagram without the key, or without the right one.
        MKey = "m_key",
        /// A response without a request, or a request without an agent or manager.
        Unclaimed = "unclaimed",
        /// A port that the node does not have.
        NoPort = "no_port",
        /// The link of the port is down, or not yet ready for data.
        PortState = "port_state",
        /// The forwarding table has no port for this address.
        NoRoute = "no_route",
        /// The hop limit is used up.
        Hops = "hops",
        /// The output port is the input port.
        Reflected = "reflected",
        /// A multicast group without other ports.
        NoMember = "no_member",
        /// The input port is not in the partition.
        PKeyInbound = "p_key_inbound",
        /// The output port is not in the partition.
        PKeyOutbound = "p_key_outbound",
        /// A raw packet at a port that filters them.
        Raw = "raw",
        /// A service level without a VL.
        NoLane = "no_lane",
        /// A full queue.
        Full = "full",
        /// A malformed packet or management datagram.
        Malformed = "malformed",
        /// A CRC that does not match.
        Crc = "crc",
        /// A general services datagram without the well-known Q_Key, or of a partition that the
        /// port is
        /// not in.
        Key = "key",
        /// A process sent with a source LID that is not its port's.
        SourceLid = "source_lid",
        /// A Set of subnet management from a port without the grant.
        NotManager = "not_manager",
        /// A process that did not read its control messages, and was detached.
        Overrun = "overrun",
        /// A process leases a segment, and the fabric has no descriptor left to forward it.
        NoDescriptor = "no_descriptor",
    }
}
