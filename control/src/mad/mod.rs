//! Management datagrams as control passes them on: the octets, and who is at the other end.
//!
//! What moves datagrams puts into an [`Envelope`] what a completion and a GRH said of a datagram
//! that came, and takes out of one what a work request and an address handle need for one that is
//! to go. An answer goes back in the envelope of its question: by the same service level, in the
//! same partition, and with a GRH exactly if the question had one, since peers drop it otherwise.

mod table;
mod transactions;

pub use table::{Reception, SegmentOutcome};
pub use transactions::{Full, Outcome, Patience, Request, TransactionDrop, Transactions};

use pollux_verbs::GlobalRoute;
use pollux_wire::address::{Gid, Lid, Qpn};
use pollux_wire::keys::PKey;
use pollux_wire::mad::MAD_LEN;

/// The octets of a management datagram.
pub type Mad = [u8; MAD_LEN];

/// A management datagram and the other end of its way.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Envelope {
    /// Where it came from, or is to go to.
    pub peer: MadAddress,
    /// What it says.
    pub mad: Mad,
}

/// Where a management datagram came from; the same brings the answer back.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MadAddress {
    /// The peer's port, or the router before it.
    pub lid: Lid,
    /// Which of our port's LIDs it is sent to or from: the bits below the mask.
    pub path_bits: u8,
    /// Service level.
    pub sl: u8,
    /// The peer's queue pair.
    pub qpn: Qpn,
    /// The partition.
    pub p_key: PKey,
    /// What the GRH says, if there is one.
    pub global: Option<GlobalAddress>,
}

/// What a GRH says, seen from our end.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct GlobalAddress {
    /// The peer's port.
    pub remote_gid: Gid,
    /// Our port.
    pub local_gid: Gid,
    /// Packets of one flow stay in order.
    pub flow_label: u32,
    /// Routers that may be crossed.
    pub hop_limit: u8,
    /// Traffic class.
    pub traffic_class: u8,
}

impl MadAddress {
    /// The general services queue pair of a port in our subnet.
    pub const fn gsi(lid: Lid, sl: u8, p_key: PKey) -> Self {
        Self { lid, path_bits: 0, sl, qpn: Qpn::GSI, p_key, global: None }
    }

    /// Whether the two are one port, as far as headers tell. A router's LID stands for all that is
    /// beyond it, so where both have a GRH it decides.
    pub fn is_same_port(&self, other: &Self) -> bool {
        match (self.global, other.global) {
            (Some(own), Some(others)) => own.remote_gid == others.remote_gid,
            _ => self.lid == other.lid,
        }
    }
}

impl GlobalAddress {
    /// For an address handle; what moves datagrams knows which of its GIDs `local_gid` is.
    pub const fn route(&self, sgid_index: u8) -> GlobalRoute {
        let Self { remote_gid, flow_label, hop_limit, traffic_class, .. } = *self;
        GlobalRoute { dgid: remote_gid, sgid_index, flow_label, hop_limit, traffic_class }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn beyond_a_router(guid: u8) -> MadAddress {
        let global = GlobalAddress { remote_gid: Gid([guid; 16]), ..GlobalAddress::default() };
        MadAddress { global: Some(global), ..MadAddress::gsi(Lid(7), 0, PKey::DEFAULT) }
    }

    #[test]
    fn behind_one_router_gids_tell_ports_apart() {
        assert!(beyond_a_router(1).is_same_port(&beyond_a_router(1)));
        assert!(!beyond_a_router(1).is_same_port(&beyond_a_router(2)));
        let near = MadAddress::gsi(Lid(7), 3, PKey(0x8001));
        assert!(near.is_same_port(&MadAddress::gsi(Lid(7), 0, PKey::DEFAULT)));
        assert!(!near.is_same_port(&MadAddress::gsi(Lid(8), 3, PKey(0x8001))));
    }
}
