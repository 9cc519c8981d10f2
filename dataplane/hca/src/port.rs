//! A port of the adapter: addresses, keys, and drop counters (IBA 14.2.5.6, 9.6.1).

use pollux_verbs::PortAttributes;
use pollux_wire::WireError;
use pollux_wire::address::{Gid, Guid, Lid};
use pollux_wire::keys::PKey;
use pollux_wire::mad::smp::PortState;
use pollux_wire::units::Mtu;
use std::collections::BTreeMap;

/// The link layer of a port, which decides the addressing of packets.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LinkLayer {
    /// InfiniBand: packets are routed by LID.
    InfiniBand,
    /// Ethernet: no LIDs; every packet has a GRH and is routed by it (IBA A17).
    Ethernet,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Port {
    pub link_layer: LinkLayer,
    pub state: PortState,
    pub lid: Lid,
    /// The LMC: the number of low bits of the LID that may vary, at most 7.
    pub lmc: u8,
    pub sm_lid: Lid,
    pub sm_sl: u8,
    pub mtu: Mtu,
    /// The GID table. Entry 0 is the GID of the port itself.
    pub gids: Vec<Gid>,
    pub pkeys: Vec<PKey>,
    /// The number of client reregistrations so far.
    pub reregistrations: u32,
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

    pub fn ethernet(gids: Vec<Gid>) -> Self {
        let port = Self::active(Lid::NONE, Guid(0));
        Self { link_layer: LinkLayer::Ethernet, gids, ..port }
    }

    #[inline]
    pub fn is_ethernet(&self) -> bool {
        self.link_layer == LinkLayer::Ethernet
    }

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

    #[inline]
    pub fn pkey(&self, index: u16) -> PKey {
        self.pkeys.get(usize::from(index)).copied().unwrap_or(PKey::INVALID)
    }

    /// The index of the first P_Key table entry that matches the P_Key of a packet.
    #[inline]
    pub fn pkey_index(&self, pkey: PKey) -> Option<u16> {
        self.pkeys.iter().position(|own| own.matches(pkey)).map(|index| index as u16)
    }

    /// Whether the port has this GID, with its prefix or the link-local one (IBA 4.1.1).
    pub fn has_gid(&self, gid: Gid) -> bool {
        self.gids.iter().any(|own| *own == gid || own.guid() == gid.guid() && gid.is_link_local())
    }
}

/// Why a packet was dropped.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, thiserror::Error)]
#[non_exhaustive]
pub enum DropReason {
    #[error("{0}")]
    Malformed(&'static str),
    #[error("crc")]
    Crc,
    #[error("dlid")]
    Dlid,
    /// A GRH with a wrong GID, no GRH where one is required, or a GRH where none is expected.
    #[error("grh")]
    Grh,
    /// A source that is not the queue pair's peer.
    #[error("slid")]
    Slid,
    /// A packet with MigReq, while migration is armed, that did not arrive by the alternate path.
    #[error("migration")]
    Migration,
    #[error("no_qp")]
    NoQp,
    /// A transport other than the queue pair's.
    #[error("transport")]
    Transport,
    #[error("qp_state")]
    QpState,
    #[error("pkey")]
    PKey,
    #[error("qkey")]
    QKey,
    #[error("no_recv")]
    NoRecv,
    /// A datagram that is longer than the receive or the MTU.
    #[error("length")]
    Length,
    /// Out of sequence: a duplicate, a gap, an answer without a request, or a message without its
    /// first packet.
    #[error("sequence")]
    Sequence,
    /// A request to a queue pair whose queue of answers is full; the peer sends it again.
    #[error("busy")]
    Busy,
    #[error("opcode")]
    Opcode,
    /// A multicast group without local members.
    #[error("no_member")]
    NoMember,
    /// A request or a receive whose memory access was refused. On RC also every other request that
    /// was refused with a fatal NAK.
    #[error("access")]
    Access,
    #[error("port_down")]
    PortDown,
    /// A leased message whose sender has revoked the lease.
    #[error("revoked")]
    Revoked,
}

impl From<WireError> for DropReason {
    fn from(error: WireError) -> Self {
        Self::Malformed(error.reason())
    }
}

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct DropCounts {
    counts: BTreeMap<DropReason, u64>,
}

impl DropCounts {
    pub fn count(&mut self, reason: DropReason) {
        *self.counts.entry(reason).or_default() += 1;
    }

    pub fn of(&self, reason: DropReason) -> u64 {
        self.counts.get(&reason).copied().unwrap_or(0)
    }

    pub fn iter(&self) -> impl Iterator<Item = (DropReason, u64)> {
        self.counts.iter().map(|(&reason, &count)| (reason, count))
    }
}
