//! NodeInfo: the identity of a node (IBA 14.2.5.3).

use crate::address::Guid;

layout! {
    /// NodeInfo: the identity of a node, and the port that received the request (IBA 14.2.5.3).
    pub struct NodeInfo: 40 bytes {
        0:0    8  base_version: u8,
        1:0    8  class_version: u8,
        2:0    8  node_type: NodeType,
        /// Number of physical ports, without port 0 of a switch.
        3:0    8  num_ports: u8,
        /// Identical in all nodes of one system.
        4:0   64  system_image_guid: Guid,
        12:0  64  node_guid: Guid,
        /// GUID of the port that received the request; in a switch, of port 0.
        20:0  64  port_guid: Guid,
        /// Number of entries in each port's P_Key table.
        28:0  16  partition_cap: u16,
        30:0  16  device_id: u16,
        32:0  32  revision: u32,
        /// Number of the port that received the request.
        36:0   8  local_port_num: u8,
        /// IEEE OUI of the vendor.
        37:0  24  vendor_id: u32,
    }
}

codes! {
    /// Node types (IBA 14.2.5.3).
    pub struct NodeType(u8) {
        CHANNEL_ADAPTER = 1,
        SWITCH = 2,
        ROUTER = 3,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fields_are_where_the_specification_has_them() {
        let info = NodeInfo {
            base_version: 1,
            class_version: 2,
            node_type: NodeType::SWITCH,
            num_ports: 36,
            system_image_guid: Guid(0x1011_1213_1415_1617),
            node_guid: Guid(0x2021_2223_2425_2627),
            port_guid: Guid(0x3031_3233_3435_3637),
            partition_cap: 0x4041,
            device_id: 0x5051,
            revision: 0x6061_6263,
            local_port_num: 0x70,
            vendor_id: 0x80_8182,
        };
        let bytes = [
            1, 2, 2, 36, 0x10, 0x11, 0x12, 0x13, 0x14, 0x15, 0x16, 0x17, 0x20, 0x21, 0x22, 0x23,
            0x24, 0x25, 0x26, 0x27, 0x30, 0x31, 0x32, 0x33, 0x34, 0x35, 0x36, 0x37, 0x40, 0x41,
            0x50, 0x51, 0x60, 0x61, 0x62, 0x63, 0x70, 0x80, 0x81, 0x82,
        ];
        assert_eq!(info.emit(), bytes);
        assert_eq!(NodeInfo::parse(&bytes), info);
    }
}
