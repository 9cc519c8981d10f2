//! Actions of an interface for its data path, and queue pair events in return.
//!
//! Control names peers and connections by keys, which are never used twice. The data path maps them
//! to address handles, queue pairs and table indices of the device.

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

/// The key of a connection everywhere: at the CM, which assigns it, in the policy of connected
/// mode, and at its queue pair. Later keys are greater.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ConnectionKey(pub u64);

impl ConnectionKey {
    /// Our communication ID of the connection.
    pub const fn comm_id(self) -> CommId {
        CommId(self.0 as u32)
    }
}

/// A worker of an interface, with its own queue pairs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct WorkerId(pub u8);

impl WorkerId {
    /// The primary worker: it receives datagrams, groups and management.
    pub const PRIMARY: Self = Self(0);
}

/// The state of a port.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PortView {
    /// Its number.
    pub number: u8,
    /// Whether it carries traffic.
    pub state: PortState,
    /// Its address.
    pub lid: Lid,
    /// How many low bits of that may vary.
    pub lmc: u8,
    /// Where the subnet manager is.
    pub sm_lid: Lid,
    /// The service level to reach it.
    pub sm_sl: u8,
    /// The largest payload that it carries now.
    pub mtu: Mtu,
    /// Its GIDs in the order of its table; the first is the interface's.
    pub gids: Vec<Gid>,
    /// Its P_Keys in the order of its table, entries that hold none included.
    pub pkeys: Vec<PKey>,
}

/// The link properties of a started interface.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Link {
    /// Which entry of the port's P_Key table is the link's.
    pub pkey_index: u16,
    /// The key of the broadcast group, which all datagrams show (RFC 4391 4.1).
    pub qkey: QKey,
    /// The port's address.
    pub lid: Lid,
    /// How many low bits of that may vary.
    pub lmc: u8,
    /// The port's name.
    pub gid: Gid,
    /// The longest IP packet of a datagram.
    pub mtu: u32,
}

/// The destination of a datagram.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DatagramAdjacency {
    /// The port or the group.
    pub vector: AddressVector,
    /// The queue pair; [`Qpn::MULTICAST`] for a group.
    pub qpn: Qpn,
    /// The IP MTU.
    pub mtu: u32,
}

/// The adjacency of a peer: how the data path sends packets to it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Adjacency {
    /// Unknown: punt packets to control.
    Unknown,
    /// Being resolved: punt packets that must not be lost.
    Pending,
    /// Unreachable: there is no path.
    Unreachable,
    /// By datagram.
    Datagram(DatagramAdjacency),
    /// By connection.
    Connected {
        /// The connection whose queue pair sends it.
        connection: ConnectionKey,
        /// The IP MTU.
        mtu: u32,
        /// The adjacency for packets that fit a datagram, once the connection is gone.
        fallback: Option<DatagramAdjacency>,
    },
}

/// An action for the device or the tables of the data path, to be done in order. Group actions are
/// for the primary worker, connection actions for the worker of the connection, all others for all
/// workers unless they name one.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Action {
    /// Start sending and receiving datagrams, or change the link of a started netdev.
    Start(Link),
    /// Stop sending and receiving datagrams.
    Stop,
    /// Attach the UD queue pair to a multicast group.
    Attach {
        /// The group.
        mgid: Gid,
        /// The multicast LID that the SA assigned.
        mlid: Lid,
    },
    /// Detach the UD queue pair from a multicast group.
    Detach {
        /// The group.
        mgid: Gid,
        /// The multicast LID that it had.
        mlid: Lid,
    },
    /// Accept packets to this address for local sockets.
    AddOwn(IpAddr),
    /// Accept them no longer.
    RemoveOwn(IpAddr),
    /// Create a peer, or change its adjacency.
    SetPeer {
        /// By which worker.
        worker: WorkerId,
        /// Which.
        peer: PeerKey,
        /// How.
        adjacency: Adjacency,
    },
    /// Remove a peer; no next hop or group is bound to it any more.
    RemovePeer {
        /// Which.
        peer: PeerKey,
    },
    /// Bind a next hop to a peer, replacing its former binding.
    Bind {
        /// The next hop.
        ip: IpAddr,
        /// The peer.
        peer: PeerKey,
    },
    /// Unbind a next hop: punt its packets.
    Unbind {
        /// The next hop.
        ip: IpAddr,
    },
    /// Bind a multicast group to a peer.
    BindGroup {
        /// The group.
        mgid: Gid,
        /// The peer.
        peer: PeerKey,
    },
    /// Unbind a multicast group: punt its packets.
    UnbindGroup {
        /// The group.
        mgid: Gid,
    },
    /// A queue pair is to be made and brought to INIT, with receives at hand; then
    /// [`QueuePairEvent::Made`] or [`QueuePairEvent::Failed`] is to be told.
    Connect {
        /// Its worker.
        worker: WorkerId,
        /// Which connection it is for.
        connection: ConnectionKey,
        /// RC or UC.
        qp_type: QpType,
        /// Which entry of the port's P_Key table to use.
        pkey_index: u16,
    },
    /// The queue pair is to be like this.
    Modify {
        /// The worker of the connection.
        worker: WorkerId,
        /// The connection whose queue pair changes.
        connection: ConnectionKey,
        /// From INIT to RTR, from RTR to RTS, or to ERR, when it shall neither send nor receive;
        /// or, in RTS, another path to go on by.
        attributes: Box<QpAttributes>,
    },
    /// Destroys the queue pair. [`QueuePairEvent::Ended`] follows when its buffers are back.
    Disconnect {
        /// The worker of the connection.
        worker: WorkerId,
        /// The connection that has ended.
        connection: ConnectionKey,
    },
}

/// Events of a queue pair.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum QueuePairEvent {
    /// It is made and in INIT.
    Made {
        /// Its number.
        qpn: Qpn,
    },
    /// It could not be made or changed, or it failed under way. What there is of it goes by
    /// [`Action::Disconnect`].
    Failed,
    /// The first packet came, which counts as the RTU if that is lost (RFC 4755 3.2).
    DataCame,
    /// It has sent or received packets since the last such event.
    Used {
        /// Whether any came.
        received: bool,
    },
    /// Its path failed, and it went on by the other one that it was given (IBA 17.2.8).
    Migrated,
    /// It did not take that other path, and is as good as before.
    AlternateRefused,
    /// It is no more.
    Ended,
}

/// A packet to be sent.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Outgoing {
    /// The protocol that gets it.
    pub ether_type: EtherType,
    /// The packet, without the header of the link.
    pub packet: Vec<u8>,
    /// The transport.
    pub by: By,
}

/// The transport of a packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum By {
    /// By datagram, whatever connections there are.
    Datagram(DatagramAdjacency),
    /// As packets to this peer go now.
    Peer(PeerKey),
}

/// A packet for local sockets.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Delivery {
    /// The protocol of the packet.
    pub ether_type: EtherType,
    /// The packet, from its IP header on.
    pub packet: Vec<u8>,
}

impl Delivery {
    /// Whether it has a whole header of UDP or TCP: its sender learns that no socket has the port.
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

/// A packet that came, and that is control's or for one of our addresses.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Received<'a> {
    /// The protocol that it is for.
    pub ether_type: EtherType,
    /// The packet, without the header of the link.
    pub packet: &'a [u8],
    /// How it came.
    pub from: PacketSource,
}

/// How a packet came.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PacketSource {
    /// As a datagram.
    Datagram {
        /// The sending queue pair.
        qpn: Qpn,
        /// The sending port within the subnet.
        lid: Lid,
        /// The same among subnets, if there was a GRH.
        gid: Option<Gid>,
        /// The group that it was sent to, if it was to one.
        group: Option<Gid>,
    },
    /// By a connection.
    Connection(ConnectionKey),
}
