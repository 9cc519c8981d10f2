//! How a packet finds another port (IBA 11.2.2.1).

use pollux_wire::address::{Gid, Lid};

/// The way to a port, or to a group.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct AddressVector {
    /// Where to, within the subnet.
    pub dlid: Lid,
    /// Service level.
    pub sl: u8,
    /// Which of our port's LIDs to send from: the bits below the mask.
    pub src_path_bits: u8,
    /// How fast at the most, as a rate code; 0: as fast as the port goes.
    pub static_rate: u8,
    /// The port to send from.
    pub port: u8,
    /// What the GRH says, if there is to be one: across subnets and to groups there must.
    pub grh: Option<GlobalRoute>,
}

/// What a GRH says.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct GlobalRoute {
    /// Where to.
    pub dgid: Gid,
    /// Which of our port's GIDs to send from.
    pub sgid_index: u8,
    /// Packets of one flow stay in order.
    pub flow_label: u32,
    /// Routers that may be crossed.
    pub hop_limit: u8,
    /// Traffic class.
    pub traffic_class: u8,
}
