//! Notices (IBA 13.4.8.2).
//!
//! A notice has 64 bytes. It is sent as a trap to the subnet manager, and with the issuer's GID
//! behind it as a report to subscribers. The trap number determines the format of the last 54 bytes
//! (see [`TrapDetails`]).

mod details;

pub use details::{
    BadKeyTrap, BadMKeyTrap, BadPKeyAtSwitchTrap, CapabilityTrap, GidTrap, LinkStateTrap,
    LocalChanges, TrapDetails,
};

use super::attributes;
use crate::address::{Gid, Lid};

layout! {
    /// A trap or another event (IBA 13.4.8.2).
    pub struct Notice: 64 bytes {
        /// Whether the specification defines this notice; otherwise, a vendor does.
        0:0     1  is_generic: bool,
        0:1     7  notice_type: NoticeType,
        /// The type of the producer; in a vendor notice, the vendor ID.
        1:0    24  producer: ProducerType,
        /// The trap number; in a vendor notice, the device ID.
        4:0    16  trap_number: TrapNumber,
        6:0    16  issuer_lid: Lid,
        /// Alternates between successive notices that are read from a notice queue; 0 in traps.
        8:0     1  toggle: bool,
        /// Number of notices in a notice queue; 0 in traps.
        8:1    15  count: u16,
        10:0  432  data_details: [u8; 54],
    }
}

layout! {
    /// A notice that the SA reports to a subscriber (IBA 15.2.5.1).
    pub struct NoticeReport: 80 bytes {
        0:0   512  notice: Notice,
        64:0  128  issuer_gid: Gid,
    }
}

codes! {
    /// Severity of a notice (IBA 13.4.8.2).
    pub struct NoticeType(u8) {
        FATAL = 0,
        URGENT = 1,
        SECURITY = 2,
        SUBNET_MANAGEMENT = 3,
        INFORMATIONAL = 4,
        EMPTY = 0x7f,
    }
}

codes! {
    /// The producer of a notice: a node type, or a class manager (IBA 13.4.8.2).
    pub struct ProducerType(u32) {
        CHANNEL_ADAPTER = 1,
        SWITCH = 2,
        ROUTER = 3,
        CLASS_MANAGER = 4,
    }
}

codes! {
    /// Trap numbers (IBA 14.2.5.1).
    pub struct TrapNumber(u16) {
        GID_IN_SERVICE = 64,
        GID_OUT_OF_SERVICE = 65,
        MULTICAST_GROUP_CREATED = 66,
        MULTICAST_GROUP_DELETED = 67,
        LINK_STATE_CHANGED = 128,
        LOCAL_LINK_INTEGRITY = 129,
        EXCESSIVE_BUFFER_OVERRUN = 130,
        FLOW_CONTROL_WATCHDOG = 131,
        CAPABILITY_CHANGED = 144,
        SYSTEM_IMAGE_GUID_CHANGED = 145,
        BAD_M_KEY = 256,
        BAD_P_KEY = 257,
        BAD_Q_KEY = 258,
        BAD_P_KEY_AT_SWITCH = 259,
    }
}

impl Notice {
    pub fn details(&self) -> TrapDetails {
        if self.is_generic {
            TrapDetails::parse(self.trap_number, &self.data_details)
        } else {
            TrapDetails::Raw(self.data_details)
        }
    }
}

attributes!(Notice = 0x0002, NoticeReport = 0x0002);

#[cfg(test)]
mod tests {
    use super::*;
    use std::format;

    #[test]
    fn report_of_a_new_group() {
        let mgid = Gid([0xff, 0x12, 0x40, 0x1b, 0xff, 0xff, 0, 0, 0, 0, 0, 0, 0, 0, 0, 9]);
        let notice = Notice {
            is_generic: true,
            notice_type: NoticeType::INFORMATIONAL,
            producer: ProducerType::CLASS_MANAGER,
            trap_number: TrapNumber::MULTICAST_GROUP_CREATED,
            issuer_lid: Lid(0x0102),
            toggle: true,
            count: 0x0304,
            data_details: TrapDetails::Gid(GidTrap { gid: mgid }).emit(),
        };
        let issuer_gid = Gid(core::array::from_fn(|i| 0xa0 + i as u8));
        let bytes = NoticeReport { notice, issuer_gid }.emit();
        assert_eq!(bytes[..10], [0x84, 0, 0, 4, 0, 66, 1, 2, 0x83, 4]);
        assert_eq!((&bytes[10..16], &bytes[16..32]), (&[0; 6][..], &mgid.0[..]));
        assert_eq!(bytes[64..], issuer_gid.0);
        assert_eq!(NoticeReport::parse(&bytes).notice.details(), notice.details());
    }

    #[test]
    fn a_vendors_number_is_not_a_trap() {
        let data_details = [7; 54];
        let trap_number = TrapNumber::LINK_STATE_CHANGED;
        let notice = Notice { trap_number, data_details, ..Notice::default() };
        assert_eq!(notice.details(), TrapDetails::Raw(data_details));
    }

    #[test]
    fn traps_print_by_name() {
        assert_eq!(format!("{} {}", TrapNumber(144), TrapNumber(63)), "CAPABILITY_CHANGED 63");
    }
}
