//! Details of traps: the last 54 bytes of a notice (IBA 14.2.5.1, 15.2.5.1).

use super::TrapNumber;
use crate::address::{Gid, Lid, Qpn};
use crate::keys::PKey;
use crate::mad::smp::{CapabilityMask, CapabilityMask2, MKey};
use crate::mad::{AttributeId, Method};

/// Details of a notice, by trap number.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TrapDetails {
    /// 64 and 65: a port entered or left the subnet. 66 and 67: a multicast group was created or
    /// deleted.
    Gid(GidTrap),
    /// 128: a link of a switch changed its state.
    LinkState(LinkStateTrap),
    /// 144: attributes of a port changed locally.
    Capability(CapabilityTrap),
    /// 256: an M_Key violation.
    BadMKey(BadMKeyTrap),
    /// 257 and 258: a P_Key or Q_Key violation at the receiver.
    BadKey(BadKeyTrap),
    /// 259: a P_Key violation at a switch.
    BadPKeyAtSwitch(BadPKeyAtSwitchTrap),
    Raw([u8; 54]),
}

impl TrapDetails {
    pub const LEN: usize = 54;

    pub fn parse(trap: TrapNumber, bytes: &[u8; 54]) -> Self {
        match trap {
            TrapNumber::GID_IN_SERVICE
            | TrapNumber::GID_OUT_OF_SERVICE
            | TrapNumber::MULTICAST_GROUP_CREATED
            | TrapNumber::MULTICAST_GROUP_DELETED => Self::Gid(GidTrap::parse(bytes)),
            TrapNumber::LINK_STATE_CHANGED => Self::LinkState(LinkStateTrap::parse(bytes)),
            TrapNumber::CAPABILITY_CHANGED => Self::Capability(CapabilityTrap::parse(bytes)),
            TrapNumber::BAD_M_KEY => Self::BadMKey(BadMKeyTrap::parse(bytes)),
            TrapNumber::BAD_P_KEY | TrapNumber::BAD_Q_KEY => Self::BadKey(BadKeyTrap::parse(bytes)),
            TrapNumber::BAD_P_KEY_AT_SWITCH => {
                Self::BadPKeyAtSwitch(BadPKeyAtSwitchTrap::parse(bytes))
            }
            _ => Self::Raw(*bytes),
        }
    }

    pub fn emit(&self) -> [u8; 54] {
        match self {
            Self::Gid(details) => details.emit(),
            Self::LinkState(details) => details.emit(),
            Self::Capability(details) => details.emit(),
            Self::BadMKey(details) => details.emit(),
            Self::BadKey(details) => details.emit(),
            Self::BadPKeyAtSwitch(details) => details.emit(),
            Self::Raw(bytes) => *bytes,
        }
    }
}

layout! {
    /// Traps 64 to 67: the port or multicast group.
    pub struct GidTrap: 54 bytes {
        6:0   128  gid: Gid,
    }
}

layout! {
    /// Trap 128: the switch with a changed link state.
    pub struct LinkStateTrap: 54 bytes {
        0:0    16  lid: Lid,
    }
}

layout! {
    /// Trap 144: changed attributes of a port.
    pub struct CapabilityTrap: 54 bytes {
        2:0    16  lid: Lid,
        /// Whether `changes` is valid; otherwise, the capabilities changed.
        5:7     1  other_local_changes: bool,
        6:0    32  capability_mask: CapabilityMask,
        10:0   16  changes: LocalChanges,
        12:0   16  capability_mask2: CapabilityMask2,
    }
}

flags! {
    /// Changes of a port other than of its capabilities (IBA 14.2.5.1).
    pub struct LocalChanges(u16) {
        NODE_DESCRIPTION = 1 << 0,
        LINK_WIDTH_ENABLED = 1 << 1,
        LINK_SPEED_ENABLED = 1 << 2,
        SM_PRIORITY = 1 << 3,
        HIERARCHY_INFO = 1 << 4,
        CAPABILITY_MASK2 = 1 << 5,
    }
}

layout! {
    /// Trap 256: an M_Key violation.
    pub struct BadMKeyTrap: 54 bytes {
        2:0    16  lid: Lid,
        4:0    16  dr_slid: Lid,
        6:0     8  method: Method,
        8:0    16  attribute_id: AttributeId,
        10:0   32  attribute_modifier: u32,
        14:0   64  m_key: MKey,
        23:0    1  is_directed: bool,
        /// Whether the path does not fit in `return_path`.
        23:1    1  path_truncated: bool,
        /// Number of hops in `return_path`.
        23:2    6  hop_count: u8,
        24:0  240  return_path: [u8; 30],
    }
}

layout! {
    /// Traps 257 and 258: a P_Key or Q_Key violation at the receiver. Fields with suffix 1 are of
    /// the sender, those with suffix 2 of the receiver.
    pub struct BadKeyTrap: 54 bytes {
        2:0    16  lid1: Lid,
        4:0    16  lid2: Lid,
        /// The Q_Key, or the P_Key in the lower half.
        6:0    32  key: u32,
        10:0    4  service_level: u8,
        11:0   24  qp1: Qpn,
        15:0   24  qp2: Qpn,
        /// Zero if the packet had no GRH.
        18:0  128  gid1: Gid,
        34:0  128  gid2: Gid,
    }
}

layout! {
    /// Trap 259: a P_Key violation at a switch. Fields with suffix 1 are of the sender, those with
    /// suffix 2 of the receiver.
    pub struct BadPKeyAtSwitchTrap: 54 bytes {
        /// Flags of the valid fields, one bit per field.
        0:0    16  data_valid: u16,
        2:0    16  lid1: Lid,
        4:0    16  lid2: Lid,
        6:0    16  p_key: PKey,
        8:0     4  service_level: u8,
        9:0    24  qp1: Qpn,
        13:0   24  qp2: Qpn,
        16:0  128  gid1: Gid,
        32:0  128  gid2: Gid,
        48:0   16  switch_lid: Lid,
        50:0    8  port: u8,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// Bytes that are all different, so that a test detects a wrong offset.
    fn counting() -> [u8; TrapDetails::LEN] {
        core::array::from_fn(|i| i as u8 + 0x40)
    }

    fn gid_at(first: u8) -> Gid {
        Gid(core::array::from_fn(|i| i as u8 + first))
    }

    #[test]
    fn short_traps() {
        assert_eq!(GidTrap::parse(&counting()).gid, gid_at(0x46));
        assert_eq!(LinkStateTrap::parse(&counting()).lid, Lid(0x4041));
    }

    #[test]
    fn capability_trap() {
        let expected = CapabilityTrap {
            lid: Lid(0x4243),
            other_local_changes: true,
            capability_mask: CapabilityMask(0x4647_4849),
            changes: LocalChanges(0x4a4b),
            capability_mask2: CapabilityMask2(0x4c4d),
        };
        assert_eq!(CapabilityTrap::parse(&counting()), expected);
    }

    #[test]
    fn m_key_trap() {
        let expected = BadMKeyTrap {
            lid: Lid(0x4243),
            dr_slid: Lid(0x4445),
            method: Method(0x46),
            attribute_id: AttributeId(0x4849),
            attribute_modifier: 0x4a4b_4c4d,
            m_key: MKey(0x4e4f_5051_5253_5455),
            is_directed: false,
            path_truncated: true,
            hop_count: 0x17,
            return_path: core::array::from_fn(|i| i as u8 + 0x58),
        };
        assert_eq!(BadMKeyTrap::parse(&counting()), expected);
    }

    #[test]
    fn key_traps() {
        let expected = BadKeyTrap {
            lid1: Lid(0x4243),
            lid2: Lid(0x4445),
            key: 0x4647_4849,
            service_level: 4,
            qp1: Qpn(0x4b_4c4d),
            qp2: Qpn(0x4f_5051),
            gid1: gid_at(0x52),
            gid2: gid_at(0x62),
        };
        assert_eq!(BadKeyTrap::parse(&counting()), expected);
        let expected = BadPKeyAtSwitchTrap {
            data_valid: 0x4041,
            lid1: Lid(0x4243),
            lid2: Lid(0x4445),
            p_key: PKey(0x4647),
            service_level: 4,
            qp1: Qpn(0x49_4a4b),
            qp2: Qpn(0x4d_4e4f),
            gid1: gid_at(0x50),
            gid2: gid_at(0x60),
            switch_lid: Lid(0x7071),
            port: 0x72,
        };
        assert_eq!(BadPKeyAtSwitchTrap::parse(&counting()), expected);
    }

    proptest! {
        #[test]
        fn details_round_trip(
            number in prop_oneof![60u16..150, 250u16..260, any::<u16>()],
            bytes: [u8; TrapDetails::LEN],
        ) {
            let trap = TrapNumber(number);
            let details = TrapDetails::parse(trap, &bytes);
            prop_assert_eq!(TrapDetails::parse(trap, &details.emit()), details);
        }
    }
}
