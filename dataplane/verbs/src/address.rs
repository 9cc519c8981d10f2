//! Address vectors: the path of a packet to another port (IBA 11.2.2.1).

use pollux_wire::address::{Gid, Lid};

/// The path to a port or a multicast group.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct AddressVector {
    /// Destination LID.
    pub dlid: Lid,
    /// Service level.
    pub sl: u8,
    /// The low LMC bits of the source LID.
    pub src_path_bits: u8,
    /// Rate limit, as a rate code; 0 is the rate of the port.
    pub static_rate: u8,
    /// The local port.
    pub port: u8,
    /// The GRH, if any; required across subnets and for multicast.
    pub grh: Option<GlobalRoute>,
}

/// The contents of a GRH.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct GlobalRoute {
    /// Destination GID.
    pub dgid: Gid,
    /// Index of the source GID in the port's GID table.
    pub sgid_index: u8,
    /// Packets with the same flow label stay in order.
    pub flow_label: u32,
    /// The most routers on the path.
    pub hop_limit: u8,
    /// Traffic class.
    pub traffic_class: u8,
}
