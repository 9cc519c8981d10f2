//! ServiceRecord: services that ports have registered with the SA (IBA 15.2.5.14).

use super::record;
use crate::address::Gid;
use crate::keys::PKey;
use crate::mad::service_id::ServiceId;

layout! {
    pub struct ServiceRecord: 176 bytes {
        0:0     64  service_id: ServiceId,
        8:0    128  service_gid: Gid,
        24:0    16  service_p_key: PKey,
        28:0    32  service_lease_s: u32,
        /// The key that is required to change the registration.
        32:0   128  service_key: [u8; 16],
        /// A human-readable name, padded with zeros.
        48:0   512  service_name: [u8; 64],
        112:0  128  data8: [u8; 16],
        128:0  128  data16: [u16; 8],
        144:0  128  data32: [u32; 4],
        160:0  128  data64: [u64; 2],
    }
}

record!(ServiceRecord = 0x0031, ServiceRecordMask {
    SERVICE_ID = 1 << 0,
    SERVICE_GID = 1 << 1,
    SERVICE_P_KEY = 1 << 2,
    SERVICE_LEASE = 1 << 4,
    SERVICE_KEY = 1 << 5,
    SERVICE_NAME = 1 << 6,
    /// One bit per element, as in the next three masks.
    DATA8 = 0xffff << 7,
    DATA16 = 0xff << 23,
    DATA32 = 0xf << 31,
    DATA64 = 0x3 << 35,
});

impl ServiceRecord {
    pub const LEASE_INDEFINITE: u32 = u32::MAX;
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::mad::tests::{assert_bytes, counting, counting_gid};

    #[test]
    fn every_field_is_where_the_specification_has_it() {
        let record = ServiceRecord {
            service_id: ServiceId(0x0102_0304_0506_0708),
            service_gid: counting_gid(0x10),
            service_p_key: PKey(0x8123),
            service_lease_s: 0x2122_2324,
            service_key: counting(0x30),
            service_name: counting(0x40),
            data8: counting(0x80),
            data16: core::array::from_fn(|i| 0x9091 + 0x202 * i as u16),
            data32: [0xa0a1_a2a3, 0xa4a5_a6a7, 0xa8a9_aaab, 0xacad_aeaf],
            data64: [0xb0b1_b2b3_b4b5_b6b7, 0xb8b9_babb_bcbd_bebf],
        };
        assert_bytes(
            &record,
            &[
                (0, &counting::<8>(1)),
                (8, &counting::<16>(0x10)),
                (24, &[0x81, 0x23, 0, 0, 0x21, 0x22, 0x23, 0x24]),
                (32, &counting::<16>(0x30)),
                (48, &counting::<64>(0x40)),
                (112, &counting::<64>(0x80)),
            ],
        );
    }

    #[test]
    fn masks_meet_without_gap_or_overlap() {
        let all = ServiceRecordMask::NAMES.iter().map(|(mask, _)| mask.0);
        assert_eq!(all.clone().sum::<u64>(), all.fold(0, |bits, mask| bits | mask));
        assert_eq!(ServiceRecordMask::DATA8.with(ServiceRecordMask::DATA16).0, 0x7fff_ff80);
        assert_eq!(ServiceRecordMask::DATA32.with(ServiceRecordMask::DATA64).0, 0x1f_8000_0000);
    }
}
