//! SwitchInfo: forwarding capabilities and settings of a switch (IBA 14.2.5.4).

use crate::address::Lid;
use crate::units::TimeCode;

layout! {
    pub struct SwitchInfo: 20 bytes {
        0:0   16  linear_fdb_cap: u16,
        2:0   16  random_fdb_cap: u16,
        4:0   16  multicast_fdb_cap: u16,
        /// The last LID in the linear forwarding table.
        6:0   16  linear_fdb_top: Lid,
        /// The output port for LIDs that are not in the random forwarding table.
        8:0    8  default_port: u8,
        /// The output port for unknown multicast groups, unless the packet entered at this port.
        9:0    8  default_multicast_primary_port: u8,
        /// The output port for unknown multicast groups if the packet entered at the primary port.
        10:0   8  default_multicast_not_primary_port: u8,
        /// How long a packet can stay in the switch; codes above 19 are no limit.
        11:0   5  life_time: TimeCode,
        /// The state of a port has changed. Writing 1 clears this bit.
        11:5   1  port_state_change: bool,
        /// Bit 0: one Set can change the SL to VL mapping tables of many ports.
        11:6   2  optimized_sl_to_vl: u8,
        /// Number of LIDs that a port can have in the random forwarding table.
        12:0  16  lids_per_port: u16,
        /// Number of entries in each external port's P_Key table.
        14:0  16  partition_enforcement_cap: u16,
        16:0   1  inbound_enforcement_cap: bool,
        16:1   1  outbound_enforcement_cap: bool,
        16:2   1  filter_raw_inbound_cap: bool,
        16:3   1  filter_raw_outbound_cap: bool,
        /// Port 0 has the capabilities of an adapter port.
        16:4   1  enhanced_port_0: bool,
        /// The last LID in the multicast forwarding table.
        18:0  16  multicast_fdb_top: Lid,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fields_are_where_the_specification_has_them() {
        let info = SwitchInfo {
            linear_fdb_cap: 0xc000,
            random_fdb_cap: 0x0102,
            multicast_fdb_cap: 0x1000,
            linear_fdb_top: Lid(0x0304),
            default_port: 5,
            default_multicast_primary_port: 6,
            default_multicast_not_primary_port: 7,
            life_time: TimeCode(18),
            port_state_change: true,
            optimized_sl_to_vl: 1,
            lids_per_port: 0x0809,
            partition_enforcement_cap: 0x0a0b,
            inbound_enforcement_cap: true,
            outbound_enforcement_cap: false,
            filter_raw_inbound_cap: true,
            filter_raw_outbound_cap: false,
            enhanced_port_0: true,
            multicast_fdb_top: Lid(0xc00c),
        };
        let bytes =
            [0xc0, 0, 1, 2, 0x10, 0, 3, 4, 5, 6, 7, 0x95, 8, 9, 10, 11, 0xa8, 0, 0xc0, 0x0c];
        assert_eq!(info.emit(), bytes);
        assert_eq!(SwitchInfo::parse(&bytes), info);
    }
}
