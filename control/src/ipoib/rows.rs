//! Rows for operators: each state with its reason, its start time, and what it waits for.

use super::groups::{GroupMembership, GroupState};
use super::{
    Adjacency, InterfaceState, IpoibInterface, LinkProperties, PeerKey, Purpose, WorkerId,
};
use crate::icmp::IcmpCounters;
use crate::ipoib::connected::{ConnectionRow, Pause};
use crate::neighbor::NeighborRow;
use crate::output::drop_rows;
use crate::sa::SaResults;
use pollux_verbs::drops::Drops;
use pollux_verbs::time::Time;
use pollux_wire::address::{Gid, Lid};
use pollux_wire::ip::link_address::LinkAddress;
use pollux_wire::mad::sa::PathRecord;
use std::net::IpAddr;

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct InterfaceRow {
    pub state: &'static str,
    pub why: String,
    pub waits_for: Option<&'static str>,
    pub since: Time,
    pub until: Option<Time>,
    pub address: LinkAddress,
    pub link: Option<LinkProperties>,
}

/// The names of all states of a group.
pub const GROUP_STATES: [&str; 5] = ["asked", "joined", "send-only", "missing", "refused"];

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct GroupRow {
    pub mgid: Gid,
    pub mlid: Option<Lid>,
    /// Whether a full membership is wanted, which may not exist yet.
    pub is_wanted: bool,
    /// Whether packets to the group are received.
    pub is_full_member: bool,
    pub state: &'static str,
    pub why: String,
    pub since: Time,
    /// When the join is repeated.
    pub until: Option<Time>,
    pub pending: usize,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PathRow {
    pub gid: Gid,
    pub record: Option<PathRecord>,
    /// Whether an SA query is outstanding.
    pub is_asked: bool,
    /// The error of the last query.
    pub why: String,
    pub since: Time,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PeerRow {
    pub peer: PeerKey,
    pub link: LinkAddress,
    pub ips: Vec<IpAddr>,
    /// The adjacency of the primary worker.
    pub adjacency: Adjacency,
    pub since: Time,
    pub pending: usize,
}

/// The sizes of an interface's tables, for cost and leak checks.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Load {
    pub neighbors: usize,
    pub peers: usize,
    pub paths: usize,
    pub groups: usize,
    /// Connections, including those that are ending.
    pub connections: usize,
    /// Connections of the connection manager, including those in TIME-WAIT.
    pub managed: usize,
    /// The numbers of queued and of outstanding SA queries.
    pub sa_queries: (usize, usize),
    /// Packets that wait for a neighbor, a path or a group.
    pub pending: usize,
}

impl InterfaceState {
    /// Name, reason, and what the state waits for.
    fn words(&self, has_administrator: bool) -> (&'static str, String, Option<&'static str>) {
        const ADMINISTRATOR: &str = "the subnet administrator";
        match self {
            Self::NoPort => ("down", "the port state is not known yet".into(), Some("the port")),
            Self::Closed => {
                ("closed", "set down by the operator".into(), Some("an operator to set it up"))
            }
            Self::PortDown(state) => {
                let why = format!("the port carries no traffic: its state is {state:?}");
                ("down", why, Some("a link, and a subnet manager that makes it active"))
            }
            Self::NoPKey => {
                let why = "the port's table has no key of the partition".into();
                ("down", why, Some("the subnet manager to give the port the key"))
            }
            Self::LimitedMember => {
                let why = "the port is only a limited member of the partition".into();
                ("down", why, Some("the subnet manager to make it a full member"))
            }
            Self::Joining { .. } if !has_administrator => {
                ("joining", "the port knows no subnet manager".into(), Some("a subnet manager"))
            }
            Self::Joining { creates: false, .. } => {
                ("joining", "the broadcast group is being joined".into(), Some(ADMINISTRATOR))
            }
            Self::Joining { creates: true, .. } => {
                ("joining", "the broadcast group is being created".into(), Some(ADMINISTRATOR))
            }
            Self::Paused { error, failures, .. } => {
                let why = format!("the broadcast group was not joined, {failures} times: {error}");
                ("waiting", why, Some("the next join retry"))
            }
            Self::TooSmall { mtu, least, .. } => {
                let why = format!(
                    "the link's datagrams take packets of {mtu} bytes, and {least} are needed: \
                     make the broadcast group's MTU larger, or turn IPv6 off"
                );
                ("waiting", why, Some("the next check of the MTU"))
            }
            Self::Up { .. } => ("up", "the broadcast group is joined".into(), None),
        }
    }
}

impl IpoibInterface {
    pub fn row(&self) -> InterfaceRow {
        let (state, why, waits_for) = self.state.words(self.sa.administrator().is_some());
        let (since, until) = (self.since, self.state.due());
        let (address, link) = (self.link_address(), self.link().copied());
        InterfaceRow { state, why, waits_for, since, until, address, link }
    }

    pub const fn state(&self) -> &InterfaceState {
        &self.state
    }

    pub fn neighbor_rows(&self) -> impl Iterator<Item = NeighborRow> {
        self.neighbors.rows()
    }

    /// Whether a neighbor is not known to be unreachable.
    pub fn may_be_reachable(&self, ip: IpAddr) -> bool {
        self.neighbors.may_be_reachable(ip)
    }

    pub fn neighbor_rows_after(&self, ip: Option<IpAddr>) -> impl Iterator<Item = NeighborRow> {
        self.neighbors.rows_after(ip)
    }

    /// The link address of a neighbor, and the adjacency of the primary worker to it, if it is
    /// resolved.
    pub fn adjacency_to(&self, neighbor: &NeighborRow) -> Option<(LinkAddress, Adjacency)> {
        let key = self.peers.find(&neighbor.state.address()?)?;
        let peer = self.peers.all.get(&key).filter(|peer| peer.ips.contains(&neighbor.ip))?;
        Some((peer.link, peer.adjacency()))
    }

    /// The port of a neighbor, and the path there, as far as both are known.
    pub fn port_of(&self, neighbor: IpAddr) -> Option<(Gid, Option<PathRecord>)> {
        let gid = self.neighbors.address(neighbor)?.gid;
        Some((gid, self.paths.get(gid).and_then(|path| path.record.as_deref().copied())))
    }

    pub fn group_rows(&self) -> impl Iterator<Item = GroupRow> {
        self.groups.values().map(|group| {
            let (state, why) = match &group.state {
                GroupState::Asked { .. } => ("asked", "the administrator is asked".into()),
                GroupState::Joined { membership: GroupMembership::Full, .. } => {
                    ("joined", String::new())
                }
                GroupState::Joined { .. } => ("send-only", String::new()),
                GroupState::Missing { .. } => ("missing", "it has no members".into()),
                GroupState::Failed { error, .. } => ("refused", error.to_string()),
            };
            GroupRow {
                mgid: group.mgid,
                mlid: group.record().map(|record| record.mlid),
                is_wanted: group.is_wanted(),
                is_full_member: group.is_full_member(),
                state,
                why,
                since: group.since,
                until: group.due(),
                pending: group.pending.len(),
            }
        })
    }

    pub fn path_rows(&self) -> impl Iterator<Item = PathRow> {
        self.paths.iter().map(|(gid, path)| PathRow {
            gid,
            record: path.record.as_deref().copied(),
            is_asked: self.is_asked(Purpose::Path(gid)),
            why: path.failure.map_or_else(String::new, |failure| failure.error.to_string()),
            since: path.since,
        })
    }

    pub fn peer_rows(&self) -> impl Iterator<Item = PeerRow> {
        self.peers.all.iter().map(|(&peer, known)| PeerRow {
            peer,
            link: known.link,
            ips: known.ips.iter().copied().collect(),
            adjacency: known.adjacency(),
            since: known.since,
            pending: known.pending.len(),
        })
    }

    pub fn connection_rows(&self) -> impl Iterator<Item = ConnectionRow> {
        self.connections.rows()
    }

    pub fn pause_of(&self, peer: &LinkAddress, worker: WorkerId) -> Option<Pause> {
        self.connections.pause_of(peer, worker)
    }

    pub fn load(&self) -> Load {
        let of_peers: usize = self.peers.all.values().map(|peer| peer.pending.len()).sum();
        let of_groups: usize = self.groups.values().map(|group| group.pending.len()).sum();
        let (neighbors, of_neighbors) = self.neighbors.load();
        let (connections, managed) = self.connections.load();
        Load {
            neighbors,
            peers: self.peers.all.len(),
            paths: self.paths.len(),
            groups: self.groups.len(),
            connections,
            managed,
            sa_queries: self.sa.queries(),
            pending: of_neighbors + of_peers + of_groups + self.pending_for_paths(),
        }
    }

    /// All drop counters: protocol, reason and count.
    pub fn drop_rows(&self) -> impl Iterator<Item = (&'static str, &'static str, u64)> {
        let lost = [
            ("interface", "frames_full", self.frames.lost()),
            ("interface", "deliveries_full", self.deliveries.lost()),
            ("interface", "transfers_full", self.routing.transfers.lost()),
            ("neighbor", "solicitations_full", self.neighbors.lost()),
            ("arp", "outgoing_full", self.arp.lost()),
            ("nd", "outgoing_full", self.nd.lost()),
            ("membership", "outgoing_full", self.membership.lost()),
        ];
        let dhcp = self.dhcp.iter().flat_map(|dhcp| {
            drop_rows("dhcp", dhcp.drops()).chain([("dhcp", "outgoing_full", dhcp.lost())])
        });
        drop_rows("interface", &self.drops)
            .chain(lost)
            .chain(drop_rows("neighbor", self.neighbors.drops()))
            .chain(drop_rows("arp", self.arp.drops()))
            .chain(drop_rows("nd", self.nd.drops()))
            .chain(drop_rows("membership", self.membership.drops()))
            .chain(drop_rows("address", self.addresses.drops()))
            .chain(drop_rows("route", self.routes.drops()))
            .chain(drop_rows("icmp", self.icmp.drops()))
            .chain(dhcp)
            .chain(drop_rows("connection", self.connections.drops()))
            .chain(drop_rows("cm", self.connections.cm_drops()))
            .chain(drop_rows("sa", self.sa.drops()))
            .chain(drop_rows("mad", self.sa.answer_drops()))
    }

    pub const fn icmp_counters(&self) -> &IcmpCounters {
        self.icmp.counters()
    }

    /// The number of SA queries that have ended, by result.
    pub const fn sa_results(&self) -> &SaResults {
        self.sa.results()
    }

    pub const fn drops(&self) -> &Drops<super::InterfaceDrop> {
        &self.drops
    }
}
