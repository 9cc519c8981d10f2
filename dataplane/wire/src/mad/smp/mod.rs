//! Subnet management packets and their attributes (IBA 14.2).
//!
//! SMPs use queue pair 0 and VL 15, without partitions. They are routed by LID ([`LidSmp`]), or,
//! before LIDs are assigned, by a list of output ports ([`DirectedSmp`]). Both kinds carry 64 bytes
//! of data, with one of these attributes:
//!
//! 1. nodes: [`NodeInfo`], [`NodeDescription`];
//! 2. ports: [`PortInfo`], [`GuidInfo`], [`PKeyTable`], [`SlToVlMappingTable`],
//!    [`VlArbitrationTable`];
//! 3. switches: [`SwitchInfo`], [`LinearForwardingTable`] and the other forwarding tables;
//! 4. subnet managers: [`SmInfo`].
//!
//! A table that is longer than 64 bytes is sent in blocks. The attribute modifier contains the
//! block number. Modifiers with several fields are layouts, too (such as [`PKeyTableModifier`]).

mod forwarding_table;
mod guid_info;
mod key;
mod node_description;
mod node_info;
mod pkey_table;
mod port_capability;
mod port_info;
mod port_link;
mod sl_to_vl;
mod sm_info;
mod switch_info;
mod vl_arbitration;

pub use forwarding_table::{
    LinearForwardingTable, MulticastForwardingTable, MulticastForwardingTableModifier,
    RandomForwardingEntry, RandomForwardingTable,
};
pub use guid_info::GuidInfo;
pub use key::{MKey, SmKey};
pub use node_description::NodeDescription;
pub use node_info::{NodeInfo, NodeType};
pub use pkey_table::{PKeyTable, PKeyTableModifier};
pub use port_capability::{CapabilityMask, CapabilityMask2};
pub use port_info::{MKeyProtection, PortInfo, PortInfoModifier, VlCap};
pub use port_link::{LinkSpeed, LinkSpeedExt, LinkWidth, PortPhysState, PortState};
pub use sl_to_vl::{SlToVlMappingTable, SlToVlModifier};
pub use sm_info::{SmControl, SmInfo, SmState};
pub use switch_info::SwitchInfo;
pub use vl_arbitration::{VlArbitrationModifier, VlArbitrationTable, VlPart, VlWeight};

use super::{MadHeader, attributes};
use crate::address::Lid;

attributes! {
    NodeDescription = 0x0010,
    NodeInfo = 0x0011,
    SwitchInfo = 0x0012,
    GuidInfo = 0x0014,
    PortInfo = 0x0015,
    PKeyTable = 0x0016,
    SlToVlMappingTable = 0x0017,
    VlArbitrationTable = 0x0018,
    LinearForwardingTable = 0x0019,
    RandomForwardingTable = 0x001a,
    MulticastForwardingTable = 0x001b,
    SmInfo = 0x0020,
}

layout! {
    /// A LID-routed SMP (IBA 14.2.1.1).
    pub struct LidSmp: 256 bytes {
        0:0    192  header: MadHeader,
        /// The M_Key of the receiving port.
        24:0    64  m_key: MKey,
        64:0   512  data: [u8; 64],
    }
}

layout! {
    /// A directed-route SMP: it contains its route as a list of ports (IBA 14.2.1.2).
    pub struct DirectedSmp: 256 bytes {
        0:0    192  header: MadHeader,
        24:0    64  m_key: MKey,
        /// The LID of the requester if the directed route is preceded by a LID-routed part;
        /// otherwise permissive.
        32:0    16  dr_slid: Lid,
        /// The LID of the responder if the directed route is followed by a LID-routed part;
        /// otherwise permissive.
        34:0    16  dr_dlid: Lid,
        64:0   512  data: [u8; 64],
        /// Entry n is the output port for hop n; there is no hop 0.
        128:0  512  initial_path: [u8; 64],
        /// Entry n is the input port of hop n, which is the output port of the response.
        192:0  512  return_path: [u8; 64],
    }
}

impl DirectedSmp {
    pub const HOPS_MAX: u8 = 63;

    /// The current hop: the upper half of the class-specific field of the common header.
    pub const fn hop_pointer(&self) -> u8 {
        (self.header.class_specific >> 8) as u8
    }

    /// The number of hops. A packet with more than [`Self::HOPS_MAX`] must be dropped.
    pub const fn hop_count(&self) -> u8 {
        self.header.class_specific as u8
    }

    pub fn set_hops(&mut self, hop_pointer: u8, hop_count: u8) {
        self.header.class_specific = u16::from_be_bytes([hop_pointer, hop_count]);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::mad::{Attribute, MadStatus, MgmtClass};

    #[test]
    fn directed_route_uses_two_fields_of_the_common_header() {
        let mut smp = DirectedSmp::default();
        smp.header.mgmt_class = MgmtClass::SUBN_DIRECTED_ROUTE;
        smp.header.status = MadStatus::BUSY.returning();
        smp.set_hops(2, 3);
        let bytes = smp.emit();
        assert_eq!(bytes[4..8], [0x80, 1, 2, 3]);
        let smp = DirectedSmp::parse(&bytes);
        assert_eq!((smp.hop_pointer(), smp.hop_count()), (2, 3));
        assert_eq!(smp.header.status, MadStatus::BUSY.returning());
    }

    #[test]
    fn parts_of_a_directed_packet() {
        let bytes = core::array::from_fn(|i| i as u8);
        let smp = DirectedSmp::parse(&bytes);
        assert_eq!(smp.m_key, MKey(0x1819_1a1b_1c1d_1e1f));
        assert_eq!((smp.dr_slid, smp.dr_dlid), (Lid(0x2021), Lid(0x2223)));
        assert!((0..64).all(|i| smp.data[i] == 64 + i as u8));
        assert!((0..64).all(|i| smp.initial_path[i] == 128 + i as u8));
        assert!((0..64).all(|i| smp.return_path[i] == 192 + i as u8));
        assert_eq!(LidSmp::parse(&bytes).m_key, smp.m_key);
        assert_eq!(LidSmp::parse(&bytes).data, smp.data);
    }

    #[test]
    fn attributes_stand_at_the_front_of_the_data() {
        let info = NodeInfo { num_ports: 2, ..NodeInfo::default() };
        let smp = LidSmp { data: info.to_data(), ..LidSmp::default() };
        assert_eq!(smp.emit()[64 + 3], 2);
        assert_eq!(NodeInfo::from_data(&smp.data), info);
    }
}
