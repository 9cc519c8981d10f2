//! SMInfo: the state and priority of a subnet manager (IBA 14.2.5.13).

use super::SmKey;
use crate::address::Guid;

layout! {
    pub struct SmInfo: 21 bytes {
        0:0   64  guid: Guid,
        /// The SM_Key; 0 in responses to untrusted subnet managers.
        8:0   64  sm_key: SmKey,
        /// Activity counter: increases while the subnet manager is alive.
        16:0  32  act_count: u32,
        /// The subnet manager with the highest priority becomes master.
        20:0   4  priority: u8,
        20:4   4  state: SmState,
    }
}

codes! {
    /// State of a subnet manager (IBA 14.4.1).
    pub struct SmState(u8) {
        NOT_ACTIVE = 0,
        DISCOVERING = 1,
        STANDBY = 2,
        MASTER = 3,
    }
}

codes! {
    /// A control packet to another subnet manager: the attribute modifier of a Set of [`SmInfo`]
    /// (IBA 14.4.1).
    pub struct SmControl(u32) {
        HANDOVER = 1,
        ACKNOWLEDGE = 2,
        DISABLE = 3,
        STANDBY = 4,
        DISCOVER = 5,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fields_are_where_the_specification_has_them() {
        let info = SmInfo {
            guid: Guid(0x1011_1213_1415_1617),
            sm_key: SmKey(0x2021_2223_2425_2627),
            act_count: 0x3031_3233,
            priority: 14,
            state: SmState::MASTER,
        };
        let bytes = [
            0x10, 0x11, 0x12, 0x13, 0x14, 0x15, 0x16, 0x17, 0x20, 0x21, 0x22, 0x23, 0x24, 0x25,
            0x26, 0x27, 0x30, 0x31, 0x32, 0x33, 0xe3,
        ];
        assert_eq!(info.emit(), bytes);
        assert_eq!(SmInfo::parse(&bytes), info);
    }
}
