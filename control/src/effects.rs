//! Actions of an interface for its data path, such as a new adjacency, and queue pair events in
//! return.
//!
//! Control names peers and connections by keys that are never reused. The data path maps them to
//! address handles, queue pairs and table indices of the device.

use pollux_verbs::{AddressVector, QpAttributes, QpType};
use pollux_wire::address::{Gid, Lid, Qpn};
use pollux_wire::ethernet::EtherType;
use pollux_wire::ip::IpProtocol;
use pollux_wire::ip::ipv4::Ipv4Packet;
use pollux_wire::ip::ipv6::Ipv6Packet;
use pollux_wire::ip::ipv6_ext::UpperLayer;
use pollux_wire::keys::{PKey, QKey};
use pollux_wire::mad::cm::CommId;
use pollux_wire::mad::smp::PortState;
use pollux_wire::units::Mtu;
use std::net::IpAddr;

/// The key of a peer: an interface or a multicast group of the link.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct PeerKey(pub u64);

/// The key of a connection, which the CM assigns, and which connected mode and the data path use as
/// well. A later key is greater, until the count of connections wraps after 2^32.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ConnectionKey(pub u64);

impl ConnectionKey {
    /// Our communication ID of the connection.
    pub const fn comm_id(self) -> CommId {
        CommId(self.0 as u32)
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct WorkerId(pub u8);

impl WorkerId {
    /// The primary worker, which receives datagrams, multicast packets and MADs.
    pub const PRIMARY: Self = Self(0);
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PortView {
    pub number: u8,
    pub state: PortState,
    pub lid: Lid,
    /// The number of low LID bits that are path bits.
    pub lmc: u8,
    pub sm_lid: Lid,
    pub sm_sl: u8,
    pub mtu: Mtu,
    /// The GIDs in the order of the port's table; the first is the interface's.
    pub gids: Vec<Gid>,
    /// The P_Keys in the order of the port's table, invalid entries included.
    pub pkeys: Vec<PKey>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LinkProperties {
    pub pkey_index: u16,
    /// The Q_Key of the broadcast group, for all datagrams (RFC 4391 4.1).
    pub qkey: QKey,
    pub lid: Lid,
    /// The number of low LID bits that are path bits.
    pub lmc: u8,
    pub gid: Gid,
    /// The IP MTU of datagrams, in bytes.
    pub mtu: u32,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DatagramAdjacency {
    pub vector: AddressVector,
    /// The destination QPN; [`Qpn::MULTICAST`] for a group.
    pub qpn: Qpn,
    pub mtu: u32,
}

/// The adjacency of a peer: how the data path sends packets to it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Adjacency {
    /// Unknown: punt packets to control.
    Unknown,
    /// The peer is being resolved: punt packets that must not be lost.
    Pending,
    Unreachable,
    Datagram(DatagramAdjacency),
    Connected {
        connection: ConnectionKey,
        mtu: u32,
        /// The adjacency after the connection has ended, for packets that fit a datagram.
        fallback: Option<DatagramAdjacency>,
    },
}

/// An action for the device or the tables of the data path. Actions apply in order. Group actions
/// are for the primary worker, and connection actions for the worker of the connection. All others
/// are for all workers, unless they name one.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Action {
    /// Start sending and receiving datagrams, or change the link properties of a started netdev.
    Start(LinkProperties),
    Stop,
    Attach {
        mgid: Gid,
        mlid: Lid,
    },
    Detach {
        mgid: Gid,
        mlid: Lid,
    },
    /// Accept packets to this address for local sockets.
    AddOwn(IpAddr),
    RemoveOwn(IpAddr),
    /// Create a peer, or change its adjacency.
    SetPeer {
        worker: WorkerId,
        peer: PeerKey,
        adjacency: Adjacency,
    },
    /// Remove a peer. No next hop or group is bound to the peer any more.
    RemovePeer {
        peer: PeerKey,
    },
    /// Bind a next hop to a peer; replaces a former binding.
    Bind {
        ip: IpAddr,
        peer: PeerKey,
    },
    /// Unbind a next hop: punt its packets.
    Unbind {
        ip: IpAddr,
    },
    BindGroup {
        mgid: Gid,
        peer: PeerKey,
    },
    /// Unbind a multicast group: punt its packets.
    UnbindGroup {
        mgid: Gid,
    },
    /// Create a queue pair in INIT, with receives posted. [`QueuePairEvent::Made`] or
    /// [`QueuePairEvent::Failed`] follows.
    Connect {
        worker: WorkerId,
        connection: ConnectionKey,
        qp_type: QpType,
        pkey_index: u16,
    },
    Modify {
        worker: WorkerId,
        connection: ConnectionKey,
        /// The attributes of a transition to RTR, RTS or ERR, or of an alternate path in RTS.
        attributes: Box<QpAttributes>,
    },
    /// Destroy the queue pair. [`QueuePairEvent::Ended`] follows when its buffers are back.
    Disconnect {
        worker: WorkerId,
        connection: ConnectionKey,
    },
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum QueuePairEvent {
    Made {
        qpn: Qpn,
    },
    /// The queue pair could not be created or modified, or failed later. Control still has to
    /// destroy it by [`Action::Disconnect`].
    Failed,
    /// The first packet arrived; it counts as the RTU if that was lost (RFC 4755 3.2).
    DataCame,
    /// The queue pair has sent or received packets since the last such event.
    Used {
        received: bool,
    },
    /// The path failed, and the queue pair migrated to the alternate path (IBA 17.2.8).
    Migrated,
    /// The device refused the alternate path, and the queue pair still uses the former path.
    AlternateRefused,
    Ended,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OutgoingPacket {
    pub ether_type: EtherType,
    /// The packet, without the header of the link.
    pub packet: Vec<u8>,
    pub by: By,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum By {
    Datagram(DatagramAdjacency),
    /// By the current adjacency of the peer.
    Peer(PeerKey),
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Delivery {
    pub ether_type: EtherType,
    /// The packet, from its IP header on.
    pub packet: Vec<u8>,
}

impl Delivery {
    /// Whether the packet has a UDP or TCP header, so that a packet to a port without a socket gets
    /// an answer. Later IPv4 fragments and all IPv6 fragments count as having none.
    pub fn has_port(&self) -> bool {
        let has_port = |protocol| matches!(protocol, IpProtocol::UDP | IpProtocol::TCP);
        match self.ether_type {
            EtherType::IPV4 => Ipv4Packet::parse(&self.packet).is_ok_and(|packet| {
                let header = packet.header();
                has_port(header.protocol) && header.fragment_offset == 0
            }),
            EtherType::IPV6 => Ipv6Packet::parse(&self.packet).is_ok_and(|packet| {
                let upper = UpperLayer::find(packet.header().next_header, packet.payload());
                upper.is_ok_and(|it| has_port(it.protocol) && it.fragment.is_none())
            }),
            _ => false,
        }
    }
}

/// A received packet for control or for one of our addresses.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ReceivedPacket<'a> {
    pub ether_type: EtherType,
    /// The packet, without the header of the link.
    pub packet: &'a [u8],
    pub from: PacketSource,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PacketSource {
    Datagram {
        qpn: Qpn,
        lid: Lid,
        /// The GID of the sending port, from the GRH.
        gid: Option<Gid>,
        group: Option<Gid>,
    },
    Connection(ConnectionKey),
}
