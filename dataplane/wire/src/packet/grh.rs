//! Global route header: in packets between subnets and in all multicast packets (IBA 8.3).

use crate::address::Gid;

layout! {
    /// The global route header, in the form of an IPv6 header (IBA 8.3).
    pub struct Grh: 40 bytes {
        0:0    4  ip_ver: u8,
        0:4    8  tclass: u8,
        /// Identifies packets that must stay in order.
        1:4   20  flow_label: u32,
        /// Number of bytes from the end of this header to the end of the invariant CRC.
        4:0   16  pay_len: u16,
        /// [`Grh::NXT_HDR_IBA`]; in raw packets, an IP protocol.
        6:0    8  nxt_hdr: u8,
        7:0    8  hop_lmt: u8,
        8:0  128  sgid: Gid,
        24:0 128  dgid: Gid,
    }
}

impl Grh {
    pub const IP_VER: u8 = 6;
    pub const NXT_HDR_IBA: u8 = 0x1b;
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::address::Guid;

    #[test]
    fn every_field_is_at_its_offset() {
        let sgid = Gid::new(Gid::DEFAULT_PREFIX, Guid(0x0002_c903_0000_1001));
        let grh = Grh {
            ip_ver: 6,
            tclass: 0xab,
            flow_label: 0xcdef1,
            pay_len: 84,
            nxt_hdr: Grh::NXT_HDR_IBA,
            hop_lmt: 9,
            sgid,
            dgid: Gid([0x11; 16]),
        };
        let bytes = grh.emit();
        assert_eq!(bytes[..8], [0x6a, 0xbc, 0xde, 0xf1, 0, 84, 0x1b, 9]);
        assert_eq!((&bytes[8..24], &bytes[24..]), (&sgid.0[..], &[0x11; 16][..]));
        assert_eq!(Grh::parse(&bytes), grh);
    }
}
