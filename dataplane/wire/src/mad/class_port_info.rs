//! ClassPortInfo: the capabilities and redirection of a management class (IBA 13.4.8.1).

use super::attributes;
use crate::address::{Gid, Lid, Qpn};
use crate::keys::{PKey, QKey};
use crate::units::TimeCode;

layout! {
    pub struct ClassPortInfo: 72 bytes {
        0:0     8  base_version: u8,
        1:0     8  class_version: u8,
        /// Capabilities common to all classes; the upper byte is class-specific.
        2:0    16  capability_mask: ClassCapabilities,
        /// Further class-specific capabilities.
        4:0    27  capability_mask2: u32,
        /// The maximum response time.
        7:3     5  resp_time_value: TimeCode,
        /// The destination of requests, if it is not this port.
        8:0   256  redirect: ClassAddress,
        40:0  256  trap: ClassAddress,
    }
}

layout! {
    /// A complete address of an agent, in [`ClassPortInfo`].
    pub struct ClassAddress: 32 bytes {
        0:0   128  gid: Gid,
        16:0    8  traffic_class: u8,
        17:0    4  service_level: u8,
        17:4   20  flow_label: u32,
        /// The LID; 0 if the requester must query a path to the GID.
        20:0   16  lid: Lid,
        22:0   16  p_key: PKey,
        /// Hop limit; defined in the trap address only.
        24:0    8  hop_limit: u8,
        25:0   24  qp: Qpn,
        28:0   32  q_key: QKey,
    }
}

flags! {
    /// Capabilities common to all classes (IBA 13.4.8.1). Bits 8 to 15 are class-specific.
    pub struct ClassCapabilities(u16) {
        TRAP = 1 << 0,
        GET_NOTICE = 1 << 1,
    }
}

attributes!(ClassPortInfo = 0x0001);

#[cfg(test)]
mod tests {
    use super::*;

    /// All 72 bytes are different, so that a wrong offset is detected.
    #[test]
    fn fields_are_where_the_specification_has_them() {
        let bytes = core::array::from_fn(|i| i as u8 + 0x10);
        let info = ClassPortInfo::parse(&bytes);
        assert_eq!((info.base_version, info.class_version), (0x10, 0x11));
        assert_eq!(info.capability_mask, ClassCapabilities(0x1213));
        assert_eq!(info.capability_mask2, 0x1415_1617 >> 5);
        assert_eq!(info.resp_time_value, TimeCode(0x17));
        assert_eq!(info.redirect.gid.guid().0, 0x2021_2223_2425_2627);
        assert_eq!((info.redirect.traffic_class, info.redirect.service_level), (0x28, 2));
        assert_eq!(info.redirect.flow_label, 0x9_2a2b);
        assert_eq!((info.redirect.lid, info.redirect.p_key), (Lid(0x2c2d), PKey(0x2e2f)));
        assert_eq!((info.redirect.hop_limit, info.redirect.qp), (0x30, Qpn(0x31_3233)));
        assert_eq!(info.redirect.q_key, QKey(0x3435_3637));
        assert_eq!(info.trap.gid.prefix(), 0x3839_3a3b_3c3d_3e3f);
        assert_eq!((info.trap.hop_limit, info.trap.qp), (0x50, Qpn(0x51_5253)));
        assert_eq!(info.trap.q_key, QKey(0x5455_5657));
        assert_eq!(info.emit(), bytes);
    }
}
