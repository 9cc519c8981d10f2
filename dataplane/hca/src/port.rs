//! A port of the adapter: addresses, keys, and drop counters (IBA 14.2.5.6, 9.6.1).

use pollux_verbs::PortAttributes;
use pollux_wire::WireError;
use pollux_wire::address::{Gid, Guid, Lid};
use pollux_wire::keys::PKey;
use pollux_wire::mad::smp::PortState;
use pollux_wire::units::Mtu;
use std::collections::BTreeMap;
use std::fmt;

/// The link layer of a port, which decides the addressing of packets.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LinkLayer {
    /// InfiniBand: packets are routed by LID.
    InfiniBand,
    /// Ethernet: no LIDs; every packet has a GRH and is routed by it (IBA A17).
    Ethernet,
}

/// The state of a port.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Port {
    /// InfiniBand or Ethernet.
    pub link_layer: LinkLayer,
    /// Whether it carries traffic.
    pub state: PortState,
    /// Its address.
    pub lid: Lid,
    /// The LMC: the number of low bits of the LID that may vary, at most 7.
    pub lmc: u8,
    /// Where the subnet manager is, and the service level to reach it.
    pub sm_lid: Lid,
    /// And the service level to reach it.
    pub sm_sl: u8,
    /// The largest payload that it carries.
    pub mtu: Mtu,
    /// Its GIDs; the first is the port's own.
    pub gids: Vec<Gid>,
    /// Its P_Key table.
    pub pkeys: Vec<PKey>,
    /// The number of client reregistrations so far.
    pub reregistrations: u32,
    /// Drop counters.
    pub drops: DropCounts,
}

impl Port {
    /// A port that is up, in the default partition.
    pub fn active(lid: Lid, guid: Guid) -> Self {
        Self {
            link_layer: LinkLayer::InfiniBand,
            state: PortState::ACTIVE,
            lid,
            lmc: 0,
            sm_lid: Lid::NONE,
            sm_sl: 0,
            mtu: Mtu::BYTES_4096,
            gids: vec![Gid::new(Gid::DEFAULT_PREFIX, guid)],
            pkeys: vec![PKey::DEFAULT],
            reregistrations: 0,
            drops: DropCounts::default(),
        }
    }

    /// A port on Ethernet that is up, with these addresses.
    pub fn ethernet(gids: Vec<Gid>) -> Self {
        let port = Self::active(Lid::NONE, Guid(0));
        Self { link_layer: LinkLayer::Ethernet, gids, ..port }
    }

    /// Whether it is on Ethernet.
    #[inline]
    pub fn is_ethernet(&self) -> bool {
        self.link_layer == LinkLayer::Ethernet
    }

    /// The attributes for a query of the port.
    pub fn attributes(&self) -> PortAttributes {
        PortAttributes {
            state: self.state,
            lid: self.lid,
            lmc: self.lmc,
            sm_lid: self.sm_lid,
            sm_sl: self.sm_sl,
            mtu_max: self.mtu,
            mtu: self.mtu,
            gids: self.gids.len() as u8,
            pkeys: self.pkeys.len() as u16,
        }
    }

    /// A key of the P_Key table as it is now.
    #[inline]
    pub fn pkey(&self, index: u16) -> PKey {
        self.pkeys.get(usize::from(index)).copied().unwrap_or(PKey::INVALID)
    }

    /// The entry of the P_Key table that a packet's key matches.
    #[inline]
    pub fn pkey_index(&self, pkey: PKey) -> Option<u16> {
        self.pkeys.iter().position(|own| own.matches(pkey)).map(|index| index as u16)
    }

    /// Whether the port has this GID, with its prefix or the link-local one (IBA 4.1.1).
    pub fn has_gid(&self, gid: Gid) -> bool {
        self.gids.iter().any(|own| *own == gid || own.guid() == gid.guid() && gid.is_link_local())
    }
}

/// Why packets were dropped.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[non_exhaustive]
pub enum DropReason {
    /// A malformed packet.
    Malformed(&'static str),
    /// A CRC that does not match.
    Crc,
    /// The DLID of another port.
    Dlid,
    /// A GID that is not ours, or no GRH where one is required.
    Grh,
    /// A source that is not the queue pair's peer.
    Slid,
    /// A request of the peer to migrate that did not come by the alternate path.
    Migration,
    /// An unknown destination queue pair.
    NoQp,
    /// A transport other than the queue pair's.
    Transport,
    /// A queue pair that is not ready.
    QpState,
    /// A P_Key mismatch.
    PKey,
    /// A Q_Key mismatch.
    QKey,
    /// No receive was posted.
    NoRecv,
    /// Longer than the receive, or than a packet may be.
    Length,
    /// Out of sequence: an answer without a request, a message without its first packet.
    Sequence,
    /// An invalid request or answer.
    Opcode,
    /// A multicast group without local members.
    NoMember,
    /// A request without access to the memory, on an unreliable connection.
    Access,
    /// The port is down.
    PortDown,
    /// A leased message whose sender has revoked the lease.
    Revoked,
}

impl From<WireError> for DropReason {
    fn from(error: WireError) -> Self {
        Self::Malformed(error.reason())
    }
}

impl fmt::Display for DropReason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Malformed(reason) => reason,
            Self::Crc => "crc",
            Self::Dlid => "dlid",
            Self::Grh => "grh",
            Self::Slid => "slid",
            Self::Migration => "migration",
            Self::NoQp => "no_qp",
            Self::Transport => "transport",
            Self::QpState => "qp_state",
            Self::PKey => "pkey",
            Self::QKey => "qkey",
            Self::NoRecv => "no_recv",
            Self::Length => "length",
            Self::Sequence => "sequence",
            Self::Opcode => "opcode",
            Self::NoMember => "no_member",
            Self::Access => "access",
            Self::PortDown => "port_down",
            Self::Revoked => "revoked",
        })
    }
}

/// Counts of drops by reason.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct DropCounts {
    counts: BTreeMap<DropReason, u64>,
}

impl DropCounts {
    /// Counts one.
    pub fn count(&mut self, reason: DropReason) {
        *self.counts.entry(reason).or_default() += 1;
    }

    /// The count of a reason.
    pub fn of(&self, reason: DropReason) -> u64 {
        self.counts.get(&reason).copied().unwrap_or(0)
    }

    /// All reasons with a count.
    pub fn iter(&self) -> impl Iterator<Item = (DropReason, u64)> {
        self.counts.iter().map(|(&reason, &count)| (reason, count))
    }
}
