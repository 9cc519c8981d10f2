//! NodeRecord: the nodes of the subnet (IBA 15.2.5.2).

use super::record;
use crate::address::Lid;
use crate::mad::smp::{NodeDescription, NodeInfo};

layout! {
    pub struct NodeRecord: 108 bytes {
        0:0   16  lid: Lid,
        4:0  320  node_info: NodeInfo,
        44:0 512  node_description: NodeDescription,
    }
}

record!(NodeRecord = 0x0011, NodeRecordMask {
    LID = 1 << 0,
    BASE_VERSION = 1 << 2,
    CLASS_VERSION = 1 << 3,
    NODE_TYPE = 1 << 4,
    NUM_PORTS = 1 << 5,
    SYSTEM_IMAGE_GUID = 1 << 6,
    NODE_GUID = 1 << 7,
    PORT_GUID = 1 << 8,
    PARTITION_CAP = 1 << 9,
    DEVICE_ID = 1 << 10,
    REVISION = 1 << 11,
    LOCAL_PORT_NUM = 1 << 12,
    VENDOR_ID = 1 << 13,
    NODE_DESCRIPTION = 1 << 14,
});

#[cfg(test)]
mod tests {
    use super::*;
    use crate::address::Guid;
    use crate::mad::tests::{assert_bytes, counting};

    #[test]
    fn every_field_is_where_the_specification_has_it() {
        let record = NodeRecord {
            lid: Lid(0x0102),
            node_info: NodeInfo {
                base_version: 0x11,
                port_guid: Guid(0x2122_2324_2526_2728),
                vendor_id: 0x31_3233,
                ..NodeInfo::default()
            },
            node_description: NodeDescription { bytes: counting(0x41) },
        };
        assert_bytes(
            &record,
            &[
                (0, &[1, 2]),
                (4, &[0x11]),
                (4 + 20, &counting::<8>(0x21)),
                (4 + 37, &[0x31, 0x32, 0x33]),
                (44, &counting::<64>(0x41)),
            ],
        );
    }
}
