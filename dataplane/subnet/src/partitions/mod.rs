//! Partitions, their members, and their multicast groups for IPoIB.
//!
//! A file in the syntax of OpenSM's `partitions.conf` ([`Partitions::read`]) defines them. Without
//! a file, all ports are full members of the default partition, which has IPoIB.

mod error;
mod read;

pub use error::{PartitionError, PartitionProblem};

use pollux_wire::address::{Gid, Guid, Scope};
use pollux_wire::keys::{PKey, QKey};
use pollux_wire::mad::smp::NodeType;
use pollux_wire::units::{Mtu, Rate};

/// Partitions of a subnet, at most.
pub const PARTITIONS_MAX: usize = 4096;

/// All partitions of a subnet. The first one is always the default partition.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Partitions {
    pub(crate) all: Vec<Partition>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Partition {
    /// The key of a full member.
    pub p_key: PKey,
    pub sl: u8,
    pub ipoib: Option<IpoibGroups>,
    /// Whether its key precedes the keys of other partitions in the tables of its members.
    pub is_first: bool,
    /// The rules of membership. For a port, the last rule that names this port applies, or else the
    /// last rule for a kind of ports or all ports.
    pub members: Vec<(Members, MembershipKind)>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct IpoibGroups {
    pub mtu: Mtu,
    /// The minimum rate of members.
    pub rate: Rate,
    pub q_key: QKey,
    pub traffic_class: u8,
    pub flow_label: u32,
    /// The scopes; each has its own groups.
    pub scopes: Vec<Scope>,
}

/// The ports that a membership rule applies to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Members {
    All,
    Kind(NodeType),
    /// The port of the subnet manager.
    Manager,
    Port(Guid),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MembershipKind {
    Full,
    Limited,
    /// Both keys.
    Both,
}

impl Default for IpoibGroups {
    fn default() -> Self {
        Self {
            mtu: Mtu::BYTES_2048,
            rate: Rate::GBPS_10,
            q_key: QKey::IPOIB_OPENSM,
            traffic_class: 0,
            flow_label: 0,
            scopes: vec![Scope::LINK_LOCAL],
        }
    }
}

impl Default for Partitions {
    fn default() -> Self {
        let members = vec![(Members::All, MembershipKind::Full)];
        let ipoib = Some(IpoibGroups::default());
        Self { all: vec![Partition { ipoib, members, ..Partition::default_one() }] }
    }
}

impl Partition {
    /// The default partition if a file does not define it: all ports are limited members.
    fn default_one() -> Self {
        Self {
            p_key: PKey::DEFAULT,
            sl: 0,
            ipoib: None,
            is_first: false,
            members: vec![(Members::All, MembershipKind::Limited)],
        }
    }

    fn membership(&self, port: &Candidate) -> Option<MembershipKind> {
        let rule = |is_one: bool| {
            let mut rules = self.members.iter().rev();
            rules.find(|(members, _)| members.is_one() == is_one && members.include(port))
        };
        let is_default = self.p_key == PKey::DEFAULT;
        if is_default && port.is_manager {
            return Some(MembershipKind::Full);
        }
        rule(true).or_else(|| rule(false)).map(|(_, membership)| *membership)
    }

    /// Its permanent multicast groups: IPv4 broadcast and IPv6 all-nodes, in every scope.
    pub fn broadcast_groups(&self) -> Vec<Gid> {
        let scopes = self.ipoib.iter().flat_map(|groups| &groups.scopes);
        let of = |scope: &Scope| {
            [ipoib_gid(*scope, IPV4, self.p_key, u32::MAX), ipoib_gid(*scope, IPV6, self.p_key, 1)]
        };
        scopes.flat_map(of).collect()
    }
}

/// Signatures in the MGIDs of IP over InfiniBand (RFC 4391 4).
pub(crate) const IPV4: u16 = 0x401b;
pub(crate) const IPV6: u16 = 0x601b;

/// The MGID of an IP group (RFC 4391 4). `group` is its low 32 bits; the upper ones are zero.
pub(crate) fn ipoib_gid(scope: Scope, signature: u16, p_key: PKey, group: u32) -> Gid {
    let mut gid = [0; 16];
    gid[..2].copy_from_slice(&[0xff, 0x10 | scope.0]);
    gid[2..4].copy_from_slice(&signature.to_be_bytes());
    gid[4..6].copy_from_slice(&p_key.0.to_be_bytes());
    gid[12..].copy_from_slice(&group.to_be_bytes());
    Gid(gid)
}

#[derive(Clone, Copy, Debug)]
pub(crate) struct Candidate {
    pub(crate) guid: Guid,
    pub(crate) kind: NodeType,
    pub(crate) is_manager: bool,
}

impl Members {
    fn is_one(self) -> bool {
        matches!(self, Self::Port(_) | Self::Manager)
    }

    fn include(self, port: &Candidate) -> bool {
        match self {
            Self::All => true,
            Self::Kind(kind) => port.kind == kind,
            Self::Manager => port.is_manager,
            Self::Port(guid) => port.guid == guid,
        }
    }
}

impl Partitions {
    pub fn all(&self) -> &[Partition] {
        &self.all
    }

    /// The partition of a key, with or without the membership bit.
    pub(crate) fn of(&self, p_key: PKey) -> Option<&Partition> {
        self.all.iter().find(|partition| partition.p_key == p_key.full())
    }

    /// The keys of a port, in the order of its P_Key table.
    pub(crate) fn keys(&self, port: &Candidate) -> Vec<PKey> {
        let mut order: Vec<_> = self.all.iter().collect();
        order.sort_by_key(|partition| !partition.is_first);
        let mut keys = Vec::new();
        for partition in order {
            let (full, limited) = (partition.p_key, PKey(partition.p_key.partition()));
            match partition.membership(port) {
                Some(MembershipKind::Full) => keys.push(full),
                Some(MembershipKind::Limited) => keys.push(limited),
                Some(MembershipKind::Both) => keys.extend([full, limited]),
                None => {}
            }
        }
        keys
    }
}
