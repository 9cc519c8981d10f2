//! The reasons why a node drops packets and datagrams, and their counters.

use pollux_verbs::drops::Drops;
use pollux_verbs::reasons;

pub type NodeDrops = Drops<NodeDrop>;

reasons! {
    pub enum NodeDrop {
        /// A directed route with an invalid hop pointer or hop count.
        DirectedRoute = "directed_route",
        MKey = "m_key",
        /// A response without a request, or a request without an agent or manager.
        Unclaimed = "unclaimed",
        NoPort = "no_port",
        /// The link of the port is down, or not yet ready for data.
        PortState = "port_state",
        NoRoute = "no_route",
        Hops = "hops",
        /// The output port is the input port.
        Reflected = "reflected",
        /// A multicast packet to a group without ports other than the input port.
        NoMember = "no_member",
        PKeyInbound = "p_key_inbound",
        PKeyOutbound = "p_key_outbound",
        Raw = "raw",
        /// A service level without a VL.
        NoLane = "no_lane",
        Full = "full",
        Malformed = "malformed",
        Crc = "crc",
        /// A general services datagram with another Q_Key, or of another partition.
        Key = "key",
        /// A process sent with a source LID that is not its port's.
        SourceLid = "source_lid",
        /// A Set of subnet management from a port without the grant.
        NotManager = "not_manager",
        /// A process that did not read its control messages, and was detached.
        Overrun = "overrun",
        /// A process leases a segment, but the fabric has no descriptor left to forward it.
        NoDescriptor = "no_descriptor",
    }
}
