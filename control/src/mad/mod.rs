//! Management datagrams (MADs) with the address of their peer.
//!
//! The caller fills an [`Envelope`] from the completion and the GRH of a received datagram, and
//! makes a work request and an address handle from an outgoing one. A response uses the envelope of
//! its request: the same service level and partition, and a GRH if and only if the request had one,
//! because peers drop it otherwise.

mod transactions;

pub use transactions::{Full, RetryPolicy, TransactionDrop, TransactionOutcome, Transactions};

use pollux_verbs::GlobalRoute;
use pollux_wire::address::{Gid, Lid, Qpn};
use pollux_wire::keys::PKey;
use pollux_wire::mad::MAD_LEN;
use pollux_wire::mad::sa::PathRecord;

pub type Mad = [u8; MAD_LEN];

/// A management datagram with the address of its other end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Envelope {
    pub peer: MadAddress,
    pub mad: Mad,
}

/// The source of a received management datagram, and the destination of its answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MadAddress {
    /// The LID of the peer's port, or of the router on the path to it.
    pub lid: Lid,
    /// The path bits of our port's LID.
    pub path_bits: u8,
    pub sl: u8,
    pub qpn: Qpn,
    pub p_key: PKey,
    pub global: Option<GlobalAddress>,
}

/// A GRH, seen from our end.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct GlobalAddress {
    pub remote_gid: Gid,
    pub local_gid: Gid,
    pub flow_label: u32,
    pub hop_limit: u8,
    pub traffic_class: u8,
}

impl MadAddress {
    /// The GSI (QP1) of a port in our subnet.
    pub const fn gsi(lid: Lid, sl: u8, p_key: PKey) -> Self {
        Self { lid, path_bits: 0, sl, qpn: Qpn::GSI, p_key, global: None }
    }

    /// The GSI (QP1) at the end of a path; `lmc` is that of our port.
    pub fn gsi_along(path: &PathRecord, lmc: u8) -> Self {
        Self {
            path_bits: path.slid.path_bits(lmc),
            global: (path.hop_limit > 0).then_some(GlobalAddress {
                remote_gid: path.dgid,
                local_gid: path.sgid,
                flow_label: path.flow_label,
                hop_limit: path.hop_limit,
                traffic_class: path.traffic_class,
            }),
            ..Self::gsi(path.dlid, path.sl, path.p_key)
        }
    }

    /// Whether the other end is in another subnet, by its GRH. Link-local GIDs do not cross routers
    /// (IBA 4.1.1).
    pub fn is_beyond_router(&self) -> bool {
        self.global.is_some_and(|GlobalAddress { remote_gid, local_gid, .. }| {
            let is_local = remote_gid.is_link_local() || local_gid.is_link_local();
            !is_local && remote_gid.prefix() != local_gid.prefix()
        })
    }

    /// Whether both addresses are of the same port, by their headers. All ports beyond a router
    /// share its LID, so the GRH decides there. Within the subnet the LID decides, because a GRH is
    /// easily forged.
    pub fn is_same_port(&self, other: &Self) -> bool {
        let gids = self.global.zip(other.global);
        let is_same_gid = gids.is_none_or(|(own, others)| own.remote_gid == others.remote_gid);
        match (self.is_beyond_router(), other.is_beyond_router()) {
            (true, true) => is_same_gid,
            (false, false) => is_same_gid && self.lid == other.lid,
            _ => false,
        }
    }
}

impl GlobalAddress {
    /// The GRH of an address vector; the caller looks up `sgid_index`, the index of `local_gid`.
    pub const fn route(&self, sgid_index: u8) -> GlobalRoute {
        let Self { remote_gid, flow_label, hop_limit, traffic_class, .. } = *self;
        GlobalRoute { dgid: remote_gid, sgid_index, flow_label, hop_limit, traffic_class }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use pollux_wire::address::Guid;

    /// The address of a port, seen from subnet 0x0001.
    fn at(lid: u16, prefix: u64, guid: u64) -> MadAddress {
        let remote_gid = Gid::new(prefix, Guid(guid));
        let local_gid = Gid::new(0x0001, Guid(9));
        let global = GlobalAddress { remote_gid, local_gid, ..GlobalAddress::default() };
        MadAddress { global: Some(global), ..MadAddress::gsi(Lid(lid), 0, PKey::DEFAULT) }
    }

    #[test]
    fn behind_one_router_gids_distinguish_ports() {
        assert!(at(7, 0x0002, 1).is_beyond_router());
        assert!(at(7, 0x0002, 1).is_same_port(&at(7, 0x0002, 1)));
        assert!(at(7, 0x0002, 1).is_same_port(&at(8, 0x0002, 1)), "by another router");
        assert!(!at(7, 0x0002, 1).is_same_port(&at(7, 0x0002, 2)));
        assert!(!at(7, 0x0002, 1).is_same_port(&MadAddress::gsi(Lid(7), 0, PKey::DEFAULT)));
    }

    #[test]
    fn within_the_subnet_a_grh_does_not_change_the_port() {
        let near = MadAddress::gsi(Lid(7), 3, PKey(0x8001));
        assert!(near.is_same_port(&MadAddress::gsi(Lid(7), 0, PKey::DEFAULT)));
        assert!(!near.is_same_port(&MadAddress::gsi(Lid(8), 3, PKey(0x8001))));
        for prefix in [0x0001, Gid::DEFAULT_PREFIX] {
            assert!(!at(7, prefix, 1).is_beyond_router());
            assert!(at(7, prefix, 1).is_same_port(&at(7, prefix, 1)));
            assert!(!at(7, prefix, 1).is_same_port(&at(8, prefix, 1)), "from another LID");
            assert!(!at(7, prefix, 1).is_same_port(&at(7, prefix, 2)), "two ports at one LID");
            assert!(at(7, prefix, 1).is_same_port(&near), "with and without a GRH");
        }
    }
}
