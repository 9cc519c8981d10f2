//! Counters of dropped and refused packets, by reason.
//!
//! A dropped packet is lost. A refused packet is returned to the caller, which may send it again.

use pollux_verbs::drops::Drops;
use pollux_verbs::reasons;

pub type PacketDrops = Drops<PacketDrop>;
pub type Refusals = Drops<Refusal>;
pub type ForwardDrops = Drops<ForwardDrop>;

reasons! {
    /// Why a packet was dropped.
    pub enum PacketDrop {
        /// The receive failed: the message was too long, or the adapter may not write the memory.
        ReceiveFailed = "receive_failed",
        /// The peer sent an RDMA write instead of a message, which is not allowed.
        NotAMessage = "not_a_message",
        /// Too short for the encapsulation header.
        Runt = "runt",
        /// An EtherType that IPoIB does not carry.
        EtherType = "ether_type",
        /// Shorter than the minimum header of its type.
        Truncated = "truncated",
        /// The IP version differs from the EtherType.
        Version = "version",
        /// Lengths in the IP header that contradict each other or the length of the packet.
        BadLength = "bad_length",
        /// A wrong checksum of an IPv4 header.
        Checksum = "checksum",
        /// An invalid GRH.
        Grh = "grh",
        /// A multicast packet of this interface, which the fabric has delivered to its sender.
        Echo = "echo",
        /// A completion that matches no outstanding request.
        Stray = "stray",
        /// Posted on a connection that failed or ended before the packet was sent.
        ConnectionLost = "connection_lost",
        /// Posted as a datagram that the adapter could not send.
        DatagramFailed = "datagram_failed",
    }
}

reasons! {
    /// Why a packet was refused.
    pub enum Refusal {
        /// Longer than the MTU: to be fragmented, or answered with an ICMP error.
        TooBig = "too_big",
        /// The send queue is full: poll, then send again.
        Full = "full",
        /// The connection has ended and the packet is too long for a datagram. Send it again when
        /// control has made another connection, or has failed to.
        Disconnected = "disconnected",
        /// The next hop is not resolved, and no request is pending.
        Unknown = "unknown",
        Pending = "pending",
        /// The resolution of the next hop failed.
        Unreachable = "unreachable",
        /// The route is from an older table, and its address handle was destroyed.
        Stale = "stale",
        /// The netdev is stopped, or recovering from an error.
        Down = "down",
        /// The buffer is not in registered memory, and the packet is too long to be sent inline.
        Foreign = "foreign",
        /// The buffer has no headroom for the encapsulation header.
        NoHeadroom = "no_headroom",
    }
}

reasons! {
    /// Why a packet in transit was dropped, or a packet to the node itself that the access control
    /// list denies.
    pub enum ForwardDrop {
        /// A source address that a packet in transit must not have (RFC 1812 5.3.7).
        MartianSource = "martian_source",
        /// A destination address that a packet in transit must not have.
        MartianDestination = "martian_destination",
        /// Malformed IPv4 options. The sender gets an ICMP error.
        BadOption = "bad_option",
        /// An IPv4 source route option (RFC 7126 4.3).
        SourceRoute = "source_route",
        /// A multicast packet without a route to another port.
        Multicast = "multicast",
        /// A multicast packet that did not arrive at the port of its route.
        MulticastRpf = "multicast_rpf",
        /// The route drops packets silently.
        Blackhole = "blackhole",
        /// No route. The sender gets an ICMP error.
        NoRoute = "no_route",
        /// The route rejects packets. The sender gets an ICMP error.
        Rejected = "rejected",
        /// The TTL expired. The sender gets an ICMP error.
        TimeExceeded = "time_exceeded",
        /// Denied or rejected by the access control list of the port of arrival.
        AclIn = "acl_in",
        /// Denied or rejected by the access control list of the outgoing port.
        AclOut = "acl_out",
        /// No valid reverse path to its source (RFC 3704 2).
        ReversePath = "reverse_path",
        /// The port of arrival is not in the tables, or the worker does not have the port of the
        /// next hop.
        PortAway = "port_away",
        /// No buffer is free for a copy of a multicast packet.
        NoBuffer = "no_buffer",
    }
}
