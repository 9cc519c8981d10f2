//! PortInfoRecord: the ports of the subnet (IBA 15.2.5.3).

use super::record;
use crate::address::Lid;
use crate::mad::smp::PortInfo;

layout! {
    pub struct PortInfoRecord: 68 bytes {
        /// The LID of the port. All ports of a switch have the LID of port 0.
        0:0   16  lid: Lid,
        2:0    8  port_num: u8,
        /// How the SA matches bit masks; 0 for equality.
        3:0    8  options: u8,
        4:0  512  port_info: PortInfo,
    }
}

record!(PortInfoRecord = 0x0012, PortInfoRecordMask {
    LID = 1 << 0,
    PORT_NUM = 1 << 1,
    OPTIONS = 1 << 2,
    M_KEY = 1 << 3,
    GID_PREFIX = 1 << 4,
    BASE_LID = 1 << 5,
    MASTER_SM_LID = 1 << 6,
    CAPABILITY_MASK = 1 << 7,
    DIAG_CODE = 1 << 8,
    M_KEY_LEASE_PERIOD = 1 << 9,
    LOCAL_PORT_NUM = 1 << 10,
    LINK_WIDTH_ENABLED = 1 << 11,
    LINK_WIDTH_SUPPORTED = 1 << 12,
    LINK_WIDTH_ACTIVE = 1 << 13,
    LINK_SPEED_SUPPORTED = 1 << 14,
    PORT_STATE = 1 << 15,
    PORT_PHYS_STATE = 1 << 16,
    LINK_DOWN_DEFAULT_STATE = 1 << 17,
    M_KEY_PROTECTION = 1 << 18,
    LMC = 1 << 20,
    LINK_SPEED_ACTIVE = 1 << 21,
    LINK_SPEED_ENABLED = 1 << 22,
    NEIGHBOR_MTU = 1 << 23,
    MASTER_SM_SL = 1 << 24,
    VL_CAP = 1 << 25,
    INIT_TYPE = 1 << 26,
    VL_HIGH_LIMIT = 1 << 27,
    VL_ARBITRATION_HIGH_CAP = 1 << 28,
    VL_ARBITRATION_LOW_CAP = 1 << 29,
    INIT_TYPE_REPLY = 1 << 30,
    MTU_CAP = 1 << 31,
    VL_STALL_COUNT = 1 << 32,
    HOQ_LIFE = 1 << 33,
    OPERATIONAL_VLS = 1 << 34,
    PARTITION_ENFORCEMENT_INBOUND = 1 << 35,
    PARTITION_ENFORCEMENT_OUTBOUND = 1 << 36,
    FILTER_RAW_INBOUND = 1 << 37,
    FILTER_RAW_OUTBOUND = 1 << 38,
    M_KEY_VIOLATIONS = 1 << 39,
    P_KEY_VIOLATIONS = 1 << 40,
    Q_KEY_VIOLATIONS = 1 << 41,
    GUID_CAP = 1 << 42,
    CLIENT_REREGISTER = 1 << 43,
    MULTICAST_P_KEY_TRAP_SUPPRESSION = 1 << 44,
    SUBNET_TIMEOUT = 1 << 45,
    RESP_TIME_VALUE = 1 << 47,
    LOCAL_PHY_ERRORS = 1 << 48,
    OVERRUN_ERRORS = 1 << 49,
    MAX_CREDIT_HINT = 1 << 50,
    LINK_ROUND_TRIP_LATENCY = 1 << 52,
    CAPABILITY_MASK2 = 1 << 53,
    LINK_SPEED_EXT_ACTIVE = 1 << 54,
    LINK_SPEED_EXT_SUPPORTED = 1 << 55,
    LINK_SPEED_EXT_ENABLED = 1 << 57,
});

#[cfg(test)]
mod tests {
    use super::*;
    use crate::mad::tests::{assert_bytes, counting};

    #[test]
    fn every_field_is_where_the_specification_has_it() {
        let mut bytes = [0; PortInfo::LEN];
        bytes[..34].copy_from_slice(&counting::<34>(0x11));
        let record = PortInfoRecord {
            lid: Lid(0x0102),
            port_num: 3,
            options: 4,
            port_info: PortInfo::parse(&bytes),
        };
        assert_bytes(&record, &[(0, &[1, 2, 3, 4]), (4, &counting::<34>(0x11))]);
    }
}
