//! Address vectors: the path of a packet to another port (IBA 11.2.2.1).

use pollux_wire::address::{Gid, Lid};
use pollux_wire::mad::sa::{McMemberRecord, PathRecord};

/// The path to a port or a multicast group.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct AddressVector {
    pub dlid: Lid,
    pub sl: u8,
    /// The low LMC bits of the source LID.
    pub src_path_bits: u8,
    /// Rate limit, as a rate code; 0 is the rate of the port.
    pub static_rate: u8,
    pub port: u8,
    /// The GRH, if any; required across subnets and for multicast.
    pub grh: Option<GlobalRoute>,
}

impl AddressVector {
    /// The path to a LID of the subnet, with service level 0 and no GRH.
    pub fn to_lid(dlid: Lid, port: u8) -> Self {
        Self { dlid, port, ..Self::default() }
    }

    /// The path of a path record, from a port with this LMC.
    pub fn along(record: &PathRecord, port: u8, lmc: u8) -> Self {
        Self {
            dlid: record.dlid,
            sl: record.sl,
            src_path_bits: record.slid.path_bits(lmc),
            static_rate: record.rate.0,
            port,
            grh: GlobalRoute::along(record),
        }
    }

    /// The path to a multicast group, always with a GRH (RFC 4391 6).
    pub fn to_group(dgid: Gid, record: &McMemberRecord, port: u8) -> Self {
        let &McMemberRecord { flow_label, hop_limit, traffic_class, .. } = record;
        Self {
            dlid: record.mlid,
            sl: record.sl,
            src_path_bits: 0,
            static_rate: record.rate.0,
            port,
            grh: Some(GlobalRoute { dgid, sgid_index: 0, flow_label, hop_limit, traffic_class }),
        }
    }
}

/// The contents of a GRH.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct GlobalRoute {
    pub dgid: Gid,
    /// Index of the source GID in the port's GID table.
    pub sgid_index: u8,
    /// Packets with the same flow label stay in order.
    pub flow_label: u32,
    /// The most routers on the path.
    pub hop_limit: u8,
    pub traffic_class: u8,
}

impl GlobalRoute {
    /// From the first GID of the port to `dgid`, beyond at most `hop_limit` routers.
    pub fn to(dgid: Gid, hop_limit: u8) -> Self {
        Self { dgid, hop_limit, ..Self::default() }
    }

    /// The GRH of a path; a path without hops has none (IBA 15.2.5.16).
    pub fn along(record: &PathRecord) -> Option<Self> {
        let &PathRecord { dgid, flow_label, hop_limit, traffic_class, .. } = record;
        let route = Self { dgid, sgid_index: 0, flow_label, hop_limit, traffic_class };
        (hop_limit > 0).then_some(route)
    }
}
