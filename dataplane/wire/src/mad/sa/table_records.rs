//! Short records for management tools: links, subnet managers, and the tables of ports and switches
//! (IBA 15.2.5). Except for links, each record has fields that identify the port or block, and then
//! an attribute of subnet management.

use super::record;
use crate::address::Lid;
use crate::mad::smp::{
    LinearForwardingTable, MulticastForwardingTable, PKeyTable, SmInfo, SwitchInfo,
};

layout! {
    /// A link between two ports (IBA 15.2.5.13). Each link has two records, one for each direction.
    pub struct LinkRecord: 6 bytes {
        0:0  16  from_lid: Lid,
        2:0   8  from_port: u8,
        3:0   8  to_port: u8,
        4:0  16  to_lid: Lid,
    }
}

layout! {
    /// Forwarding capabilities and settings of a switch (IBA 15.2.5.5).
    pub struct SwitchInfoRecord: 24 bytes {
        0:0   16  lid: Lid,
        4:0  160  switch_info: SwitchInfo,
    }
}

layout! {
    /// A block of a switch's linear forwarding table (IBA 15.2.5.6).
    pub struct LftRecord: 72 bytes {
        0:0   16  lid: Lid,
        /// The block number; block n begins at entry 64 * n.
        2:0   16  block: u16,
        8:0  512  table: LinearForwardingTable,
    }
}

layout! {
    /// A block of a switch's multicast forwarding table (IBA 15.2.5.8).
    pub struct MftRecord: 72 bytes {
        0:0   16  lid: Lid,
        /// The port block; position n begins at port 16 * n.
        2:0    4  position: u8,
        /// The block number; block n begins at the LID [`Lid::MULTICAST_FIRST`] + 32 * n.
        2:7    9  block: u16,
        8:0  512  table: MulticastForwardingTable,
    }
}

layout! {
    /// A block of a port's P_Key table (IBA 15.2.5.11).
    pub struct PKeyTableRecord: 72 bytes {
        0:0   16  lid: Lid,
        /// The block number; block n begins at entry 32 * n.
        2:0   16  block: u16,
        /// The port; used for switches only.
        4:0    8  port_num: u8,
        8:0  512  table: PKeyTable,
    }
}

layout! {
    /// A subnet manager (IBA 15.2.5.10).
    pub struct SmInfoRecord: 25 bytes {
        0:0   16  lid: Lid,
        4:0  168  sm_info: SmInfo,
    }
}

record!(SwitchInfoRecord = 0x0014, SwitchInfoRecordMask { LID = 1 << 0 });
record!(LftRecord = 0x0015, LftRecordMask { LID = 1 << 0, BLOCK = 1 << 1 });
record!(MftRecord = 0x0017, MftRecordMask { LID = 1 << 0, POSITION = 1 << 1, BLOCK = 1 << 3 });
record!(SmInfoRecord = 0x0018, SmInfoRecordMask {
    LID = 1 << 0,
    GUID = 1 << 2,
    SM_KEY = 1 << 3,
    ACT_COUNT = 1 << 4,
    PRIORITY = 1 << 5,
    STATE = 1 << 6,
});
record!(LinkRecord = 0x0020, LinkRecordMask {
    FROM_LID = 1 << 0,
    FROM_PORT = 1 << 1,
    TO_PORT = 1 << 2,
    TO_LID = 1 << 3,
});
record!(PKeyTableRecord = 0x0033, PKeyTableRecordMask {
    LID = 1 << 0,
    BLOCK = 1 << 1,
    PORT_NUM = 1 << 2,
});

#[cfg(test)]
mod tests {
    use super::*;
    use crate::layout::Layout;
    use crate::mad::tests::{assert_bytes, counting};

    const LID: Lid = Lid(0x0102);

    /// An attribute whose bytes count up; reserved bits are zero.
    fn filled<T: Layout>() -> T {
        T::read(&counting::<64>(0x11)).unwrap().0
    }

    #[test]
    fn links() {
        let record = LinkRecord { from_lid: LID, from_port: 3, to_port: 4, to_lid: Lid(0x0506) };
        assert_bytes(&record, &[(0, &[1, 2, 3, 4, 5, 6])]);
    }

    #[test]
    fn switches() {
        let switch_info: SwitchInfo = filled();
        let record = SwitchInfoRecord { lid: LID, switch_info };
        assert_bytes(&record, &[(0, &[1, 2]), (4, &switch_info.emit())]);
    }

    #[test]
    fn tables_of_switches() {
        let bytes: [u8; 64] = counting(0x11);
        let record = LftRecord { lid: LID, block: 0x0304, table: filled() };
        assert_bytes(&record, &[(0, &[1, 2, 3, 4]), (8, &bytes)]);
        let record = MftRecord { lid: LID, position: 0xa, block: 0x1bc, table: filled() };
        assert_bytes(&record, &[(0, &[1, 2, 0xa1, 0xbc]), (8, &bytes)]);
    }

    #[test]
    fn tables_of_ports() {
        let bytes: [u8; 64] = counting(0x11);
        let record = PKeyTableRecord { lid: LID, block: 0x0304, port_num: 5, table: filled() };
        assert_bytes(&record, &[(0, &[1, 2, 3, 4, 5]), (8, &bytes)]);
    }

    #[test]
    fn subnet_managers() {
        let record = SmInfoRecord { lid: LID, sm_info: filled() };
        assert_bytes(&record, &[(0, &[1, 2]), (4, &counting::<21>(0x11))]);
    }
}
