//! A port of the adapter: its addresses and keys, and what it dropped (IBA 14.2.5.6, 9.6.1).

use pollux_wire::WireError;
use pollux_wire::address::{Gid, Guid, Lid};
use pollux_wire::keys::PKey;
use pollux_wire::mad::smp::PortState;
use pollux_wire::units::Mtu;
use std::collections::BTreeMap;
use std::fmt;

/// What a port is attached to, and so how packets say where they go.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LinkLayer {
    /// A subnet: ports have LIDs, and go by them.
    InfiniBand,
    /// There are no LIDs: every packet has a GRH, and goes by that (IBA A17).
    Ethernet,
}

/// How a port is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Port {
    /// What it is attached to.
    pub link_layer: LinkLayer,
    /// Whether it carries traffic.
    pub state: PortState,
    /// Its address.
    pub lid: Lid,
    /// How many low bits of that may vary: at most 7, for there are three bits to say so.
    pub lmc: u8,
    /// Where the subnet manager is, and the service level to reach it.
    pub sm_lid: Lid,
    /// And the service level to reach it.
    pub sm_sl: u8,
    /// The largest payload that it carries.
    pub mtu: Mtu,
    /// Its names; the first is the port's own.
    pub gids: Vec<Gid>,
    /// What partitions it is in, as the subnet manager says.
    pub pkeys: Vec<PKey>,
    /// How often the subnet manager has said that it forgot who joined what.
    pub reregistrations: u32,
    /// What it dropped, by reason.
    pub drops: Drops,
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
            drops: Drops::default(),
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

    /// The low bits of the LID that may vary, all set.
    #[inline]
    pub fn path_bits_max(&self) -> u16 {
        (1 << (self.lmc & 7)) - 1
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

    /// Whether the port has this name, by its prefix or by the link-local one (IBA 4.1.1).
    pub fn has_gid(&self, gid: Gid) -> bool {
        self.gids.iter().any(|own| *own == gid || own.guid() == gid.guid() && gid.is_link_local())
    }
}

/// Why packets were dropped.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[non_exhaustive]
pub enum Drop {
    /// Bytes that are no packet.
    Malformed(&'static str),
    /// A CRC that does not match.
    Crc,
    /// For another port.
    Dlid,
    /// For a GID that is not ours, or without the GRH that there should be.
    Grh,
    /// From another port than the queue pair's peer.
    Slid,
    /// A peer's request to migrate that did not come by the alternate path.
    Migration,
    /// For a queue pair that does not exist.
    NoQp,
    /// Of another transport than the queue pair's.
    Transport,
    /// For a queue pair that is not ready.
    QpState,
    /// Of another partition.
    PKey,
    /// Without the queue pair's key.
    QKey,
    /// No receive was posted.
    NoRecv,
    /// Longer than the receive, or than a packet may be.
    Length,
    /// Out of sequence: an answer that nobody asked for, a message that lost its beginning.
    Sequence,
    /// An answer or a request that makes no sense here.
    Opcode,
    /// To a group that nobody here has joined.
    NoMember,
    /// A request of a peer that may not touch the memory; on unreliable connections.
    Access,
    /// The port is down.
    PortDown,
    /// A message by the shortcut whose sender took back the memory that it is in.
    Revoked,
}

impl From<WireError> for Drop {
    fn from(error: WireError) -> Self {
        Self::Malformed(error.reason())
    }
}

impl fmt::Display for Drop {
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
pub struct Drops {
    counts: BTreeMap<Drop, u64>,
}

impl Drops {
    /// Counts one.
    pub fn count(&mut self, reason: Drop) {
        *self.counts.entry(reason).or_default() += 1;
    }

    /// How often packets were dropped for this reason.
    pub fn of(&self, reason: Drop) -> u64 {
        self.counts.get(&reason).copied().unwrap_or(0)
    }

    /// All reasons that were met.
    pub fn iter(&self) -> impl Iterator<Item = (Drop, u64)> {
        self.counts.iter().map(|(&reason, &count)| (reason, count))
    }
}
