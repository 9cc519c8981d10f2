//! The rows of the tables of `pollux show`: those of a node first, then those of a fabric.
//!
//! Every row has all fields of its table; an unknown or inapplicable value is null. Addresses of
//! the link layer, GIDs and GUIDs are text, as in the output of other InfiniBand tools.

pub use super::neighbor_rows::{NeighborState, NeighborStatus, NeighborTransport};
pub use super::socket_rows::{SocketStatus, TcpStatus};
pub use super::topology_rows::{CableCounters, CabledPort, NodeKind, TopologyNode};

use super::request::AdminTable;
use super::usual_drops::is_usual;
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::net::IpAddr;

/// A row of a table.
pub trait TableRow: Serialize + DeserializeOwned {
    /// The table of such rows.
    const TABLE: AdminTable;
}

macro_rules! tables {
    ($($row:ident: $table:ident,)*) => {
        $(impl TableRow for $row {
            const TABLE: AdminTable = AdminTable::$table;
        })*
    };
}

tables! {
    InterfaceStatus: Interfaces,
    NeighborStatus: Neighbors,
    ConnectionStatus: Connections,
    GroupStatus: Groups,
    WorkerStatus: Workers,
    RouteStatus: Routes,
    AclStatus: Acl,
    MulticastStatus: Multicast,
    DropCount: Drops,
    KernelStatus: Kernel,
    SocketStatus: Sockets,
    NodeStatus: Nodes,
    PortStatus: Ports,
    LinkStatus: Links,
    TopologyNode: Topology,
}

/// An interface of a node. If it does not run, the fields after `waits_for` are null.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct InterfaceStatus {
    /// The name in the configuration.
    pub interface: String,
    /// The device in the configuration.
    pub device: String,
    /// The routing domain.
    pub domain: String,
    /// `up`, `down`, `joining`, `waiting`, `closed`, `opening`, `missing` or `failed`.
    pub state: String,
    /// The reason for the state.
    pub why: String,
    /// The event after which the state changes.
    pub waits_for: Option<String>,
    /// The last action of control that the device refused.
    pub refused: Option<String>,
    /// The seconds since the state changed.
    pub seconds: Option<u64>,
    /// The link-layer address (RFC 4391 9.1.1), in hexadecimal.
    pub link: Option<String>,
    /// The LID of the port, while the interface is up.
    pub lid: Option<u16>,
    /// The MTU of datagrams, while the interface is up.
    pub mtu: Option<u32>,
    /// The IP addresses with their prefix lengths.
    pub addresses: Vec<String>,
    /// The state of DHCP, if it is configured.
    pub dhcp: Option<LeaseStatus>,
    /// The number of workers.
    pub workers: Option<usize>,
    /// Packets sent, by all workers.
    pub sent: Option<u64>,
    /// Packets received, by all workers.
    pub received: Option<u64>,
    /// Bytes of IP packets sent, by all workers.
    pub bytes_sent: Option<u64>,
    /// Bytes of IP packets received, by all workers.
    pub bytes_received: Option<u64>,
}

/// The state of DHCP at an interface.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct LeaseStatus {
    /// The state of the client (RFC 2131 4.4).
    pub state: String,
    /// The server of the lease.
    pub server: Option<String>,
    /// The seconds for which the lease is still valid.
    pub left: Option<u64>,
}

/// A route of a node. Of several routes to one prefix in a domain, the first that can be used is
/// active.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct RouteStatus {
    /// The routing domain that has the route.
    pub domain: String,
    /// The prefix of its destinations.
    pub to: String,
    /// `connected`; `admin` for a route of `pollux route`; `static` for a configured route; or
    /// `kernel` and the program that installed the route, as in `kernel, bgp`.
    pub source: String,
    /// `unicast`, `blackhole`, `unreachable` or `prohibit`.
    pub kind: String,
    /// Next hops that can be used.
    pub via: Vec<RouteHop>,
    /// The domain in which the destination is looked up again.
    pub next_domain: Option<String>,
    /// Whether packets use it.
    pub is_active: bool,
    /// The metric of a route of the kernel; the lowest is preferred.
    pub metric: Option<u32>,
    /// The kernel's routing table that has the route.
    pub table: Option<u32>,
    /// The seconds since the route last changed.
    pub seconds: u64,
    /// The reason why the route, or some of its next hops, are not used.
    pub why: Option<String>,
}

/// A next hop of a route.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct RouteHop {
    /// The interface that has the gateway on its link.
    pub interface: String,
    /// The gateway; without one, destinations are on the link.
    pub gateway: Option<IpAddr>,
    /// Its share of the flows, relative to the others.
    pub weight: u16,
}

/// A rule of an access control list.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct AclStatus {
    /// The name of the list.
    pub acl: String,
    /// Its number in the list, from 1.
    pub rule: usize,
    /// `permit`, `deny` or `reject`.
    pub action: String,
    /// Packets that the rule decided on, at all interfaces with the list, since the list has these
    /// rules.
    pub packets: u64,
    /// Its conditions, in words.
    pub matches: String,
}

/// A multicast route of a node.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct MulticastStatus {
    /// The routing domain that has the route.
    pub domain: String,
    /// The group to which its packets are sent.
    pub group: IpAddr,
    /// The source of the packets. Without one, the route is for all sources without their own
    /// route.
    pub source: Option<IpAddr>,
    /// The interface where they arrive.
    pub from: String,
    /// The interfaces by which they leave.
    pub to: Vec<String>,
    /// Only packets with a TTL above this are forwarded.
    pub ttl_threshold: u8,
}

/// A routing table of the kernel, as the node follows it by netlink. Counters are of all tables.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct KernelStatus {
    /// The number of the table.
    pub table: u32,
    /// `following`; `reading`, while the tables are read anew, or will be soon; or `closed`.
    pub state: String,
    /// Routes that daemons and administrators put there, and that can be used.
    pub routes: usize,
    /// Messages that were read.
    pub messages: u64,
    /// Messages that could not be read.
    pub malformed: u64,
    /// How often notifications were lost, because more came than the receive buffer holds.
    pub overruns: u64,
    /// How often all tables were read.
    pub dumps: u64,
    /// Tables that changed while they were read.
    pub dumps_interrupted: u64,
    /// Tables that could not be read to their end.
    pub dumps_failed: u64,
    /// Routes that cannot be followed: by TOS or source, or of type throw.
    pub unsupported: u64,
}

/// A connection of an interface (RFC 4755).
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct ConnectionStatus {
    /// The interface that made it.
    pub interface: String,
    /// The number of the worker thread that has its queue pair.
    pub worker: usize,
    /// The link-layer address of the peer.
    pub peer: String,
    /// `RC` or `UC`.
    #[serde(rename = "type")]
    pub qp_type: String,
    /// Whether this end or the peer sent the REQ.
    pub role: ConnectionRole,
    /// The convention of its service ID.
    pub dialect: ServiceDialect,
    /// The state of connection management.
    pub state: String,
    /// The reason of the state.
    pub why: String,
    /// The seconds since the state changed.
    pub seconds: u64,
    /// The longest packet.
    pub mtu: u32,
    /// Our queue pair.
    pub qpn: Option<u32>,
    /// The alternate path: `loaded`, `none`, `queried` or `offered`.
    pub alternate: String,
    /// Path migrations.
    pub migrations: u64,
    /// Whether packets are sent by it; it always receives.
    pub sends: bool,
    /// Packets sent.
    pub sent: u64,
    /// Packets received.
    pub received: u64,
}

/// Which end of a connection sent the REQ: `active` is this end, `passive` the peer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub enum ConnectionRole {
    Active,
    Passive,
}

/// The convention of a service ID.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub enum ServiceDialect {
    /// RFC 4755 6.1.
    Rfc,
    /// The Linux kernel's.
    Linux,
}

/// A multicast group: a node's membership, or a fabric's tree.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(untagged)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub enum GroupStatus {
    Membership(MembershipStatus),
    Tree(MulticastTree),
}

/// A multicast group of an interface.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct MembershipStatus {
    /// The interface that is a member.
    pub interface: String,
    /// The MGID.
    pub group: String,
    /// The MLID in hexadecimal, if it is joined.
    pub lid: Option<String>,
    /// `joined`, `send-only`, `asked`, `missing` or `refused`.
    pub state: String,
    /// Whether the interface receives packets to the group, and does not only send.
    pub receives: bool,
    /// The reason of the state.
    pub why: String,
    /// The seconds since the state changed.
    pub seconds: u64,
    /// Packets that wait for the join.
    pub pending: usize,
}

/// A worker thread of a node. Counters are since its start.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct WorkerStatus {
    /// Its number.
    pub worker: usize,
    /// The core to which it is pinned.
    pub core: Option<usize>,
    /// The idle strategy: `poll`, `pause` or `adaptive`.
    pub idle: String,
    /// The interfaces whose packets it sends and receives.
    pub interfaces: Vec<String>,
    /// Poll iterations. If the number does not increase, the worker hangs or sleeps.
    pub breaths: u64,
    /// Poll iterations with something to do.
    pub busy_breaths: u64,
    /// Packets received and sent.
    pub packets: u64,
    /// How often it slept since it started.
    pub sleeps: u64,
    /// The time of sleeps, in milliseconds.
    pub asleep_ms: u64,
    /// The time of poll iterations with something to do, in milliseconds.
    pub busy_ms: u64,
    /// The time since its start, in milliseconds.
    pub running_ms: u64,
    /// The mean cost of a packet in nanoseconds: the time of poll iterations with something to do,
    /// divided by packets.
    pub ns_per_packet: Option<f64>,
    /// The mean batch size: packets in a poll iteration with something to do.
    pub batch_size: Option<f64>,
    /// The share of its time without anything to do, asleep or polling, in percent.
    pub idle_percent: Option<f64>,
    /// The file of these counters in shared memory.
    pub memory: String,
}

/// A drop counter of an interface: the sum over all its workers.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct DropCount {
    /// The interface that dropped them.
    pub interface: String,
    /// The protocol or the part of the data path.
    pub of: String,
    /// The reason.
    pub why: String,
    /// The number of drops since the interface started. Drops of `mad_transport` are those of all
    /// interfaces at the port.
    pub count: u64,
    /// Whether the drops indicate no fault: a healthy node counts them, too.
    pub usual: bool,
}

impl DropCount {
    pub(crate) fn new(interface: &str, of: &str, why: &str, count: u64) -> Self {
        let usual = is_usual(of, why);
        Self { interface: interface.into(), of: of.into(), why: why.into(), count, usual }
    }
}

/// A change of a configuration that was reloaded.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct ChangeStatus {
    /// The interface; none for a change of the node.
    pub interface: Option<String>,
    /// The change, in words.
    pub change: String,
    /// Whether the change takes effect only when the node starts next.
    pub needs_start: bool,
}

/// A node of a fabric.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct NodeStatus {
    /// The name in the topology.
    pub node: String,
    /// Host, switch or router.
    pub kind: NodeKind,
    /// The node GUID.
    pub guid: String,
    /// The LID of port 1; the LID of port 0 for a switch.
    pub lid: u16,
    /// The number of ports.
    pub ports: u8,
    /// Dropped packets by reason, without reasons that never occurred.
    pub drops: BTreeMap<String, u64>,
}

/// A port of a fabric.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct PortStatus {
    /// NODE:PORT.
    pub port: String,
    /// The port state (IBA 14.2.5.6).
    pub state: String,
    /// The base LID.
    pub lid: u16,
    /// The LMC.
    pub lmc: u8,
    /// The neighbor MTU in bytes.
    pub mtu: Option<usize>,
    /// NODE:PORT at the other end of the link, or the state of the wire.
    pub peer: Option<String>,
    /// The process that has the port open.
    pub process: Option<u32>,
    /// PortXmitPkts.
    pub sent: u64,
    /// PortRcvPkts.
    pub received: u64,
    /// PortRcvErrors.
    pub errors: u64,
    /// PortXmitDiscards.
    pub discards: u64,
}

/// The attributes of a port of a fabric (IBA 14.2.5.6), and its counters.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct PortDetails {
    /// The port state: 1 is down, 2 initialized, 3 armed, 4 active.
    pub state: u8,
    /// The physical state: 2 is polling, 3 disabled, 5 link up.
    pub physical_state: u8,
    /// The base LID.
    pub lid: u16,
    /// The LMC.
    pub lmc: u8,
    /// The LID of the master subnet manager.
    pub sm_lid: u16,
    /// The SL to the master subnet manager.
    pub sm_sl: u8,
    /// The nominal rate in Mb/s.
    pub megabits: Option<u32>,
    /// The width and speed.
    pub link: String,
    /// The capability mask.
    pub capability_mask: u32,
    /// Counters by their names in Linux's sysfs. Data counters are in units of 4 bytes.
    pub counters: BTreeMap<String, u64>,
}

/// A link of a fabric, or a wire to an external node. Only a wire has counters.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct LinkStatus {
    /// NODE:PORT of one end.
    pub from: String,
    /// NODE:PORT of the other end, or `wire`.
    pub to: String,
    /// The width and speed.
    pub rate: Option<String>,
    /// The port state of the first end.
    pub state: String,
    /// Packets sent.
    pub sent: Option<u64>,
    /// Packets received.
    pub received: Option<u64>,
    /// Frames that are no packets.
    pub ignored: Option<u64>,
    /// Streams that were closed for their framing.
    pub broken: Option<u64>,
}

/// A multicast tree of a fabric.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct MulticastTree {
    /// The MLID in hexadecimal.
    pub lid: String,
    /// The switch ports in the MFTs.
    pub ports: Vec<String>,
}

/// A fault rule of a fabric.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct FaultStatus {
    /// The number by which it can be removed.
    pub number: u32,
    /// The rule, as it was added.
    pub rule: String,
}

display_as_serialized!(ConnectionRole ServiceDialect);
