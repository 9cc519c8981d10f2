//! Capability masks of a port (IBA 14.2.5.6).

flags! {
    pub struct CapabilityMask(u32) {
        SM = 1 << 1,
        NOTICE = 1 << 2,
        TRAP = 1 << 3,
        OPTIONAL_IPD = 1 << 4,
        AUTOMATIC_MIGRATION = 1 << 5,
        SL_MAPPING = 1 << 6,
        M_KEY_NVRAM = 1 << 7,
        P_KEY_NVRAM = 1 << 8,
        LED_INFO = 1 << 9,
        SM_DISABLED = 1 << 10,
        SYSTEM_IMAGE_GUID = 1 << 11,
        P_KEY_SWITCH_EXTERNAL_PORT_TRAP = 1 << 12,
        EXTENDED_SPEEDS = 1 << 14,
        CAPABILITY_MASK2 = 1 << 15,
        COMMUNICATION_MANAGEMENT = 1 << 16,
        SNMP_TUNNELING = 1 << 17,
        REINIT = 1 << 18,
        DEVICE_MANAGEMENT = 1 << 19,
        VENDOR_CLASS = 1 << 20,
        DR_NOTICE = 1 << 21,
        CAPABILITY_MASK_NOTICE = 1 << 22,
        BOOT_MANAGEMENT = 1 << 23,
        LINK_ROUND_TRIP_LATENCY = 1 << 24,
        CLIENT_REREGISTRATION = 1 << 25,
        OTHER_LOCAL_CHANGES_NOTICE = 1 << 26,
        LINK_SPEED_WIDTH_PAIRS_TABLE = 1 << 27,
        VENDOR_SPECIFIC_MADS_TABLE = 1 << 28,
        MULTICAST_P_KEY_TRAP_SUPPRESSION = 1 << 29,
        MULTICAST_FDB_TOP = 1 << 30,
        HIERARCHY_INFO = 1 << 31,
    }
}

flags! {
    /// Further capabilities of a port, if [`CapabilityMask::CAPABILITY_MASK2`] is set (IBA
    /// 14.2.5.6).
    pub struct CapabilityMask2(u16) {
        SET_NODE_DESCRIPTION = 1 << 0,
        PORT_INFO_EXTENDED = 1 << 1,
        VIRTUALIZATION = 1 << 2,
        SWITCH_PORT_STATE_TABLE = 1 << 3,
        LINK_WIDTH_2X = 1 << 4,
        LINK_SPEED_HDR = 1 << 5,
        LINK_SPEED_NDR = 1 << 10,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::format;

    #[test]
    fn capabilities_print_by_name() {
        let mask = CapabilityMask::SM.with(CapabilityMask::CLIENT_REREGISTRATION);
        assert_eq!(mask.0, 0x0200_0002);
        assert_eq!(format!("{mask:?}"), "CapabilityMask(SM|CLIENT_REREGISTRATION)");
        assert_eq!(format!("{}", CapabilityMask(0x2001 | 1 << 31)), "HIERARCHY_INFO|0x2001");
    }

    #[test]
    fn sets_of_capabilities() {
        let mask = CapabilityMask::TRAP.with(CapabilityMask::NOTICE);
        assert!(mask.contains(CapabilityMask::TRAP));
        assert_eq!(mask.without(CapabilityMask::TRAP), CapabilityMask::NOTICE);
        assert_eq!(mask.common(CapabilityMask::TRAP), CapabilityMask::TRAP);
        assert!(!mask.contains(CapabilityMask::TRAP.with(CapabilityMask::SM)));
    }
}
