//! Local route header: routes a packet within one subnet (IBA 7.7).

use crate::address::Lid;

layout! {
    pub struct Lrh: 8 bytes {
        /// Virtual lane. Switches rewrite it, so the invariant CRC does not cover it.
        0:0    4  vl: u8,
        /// Link version: 0.
        0:4    4  lver: u8,
        /// Service level: unchanged from end to end.
        1:0    4  sl: u8,
        1:6    2  lnh: Lnh,
        2:0   16  dlid: Lid,
        /// Length from the LRH to the end of the invariant CRC, in units of 4 bytes.
        4:5   11  pkt_len: u16,
        6:0   16  slid: Lid,
    }
}

codes! {
    /// Link next header (IBA 7.7.5).
    pub struct Lnh(u8) {
        /// A raw packet with an EtherType.
        RAW = 0,
        /// A raw IPv6 packet.
        IPV6 = 1,
        /// InfiniBand transport without a GRH.
        LOCAL = 2,
        /// InfiniBand transport behind a GRH.
        GLOBAL = 3,
    }
}

impl Lrh {
    /// The VL of subnet management; it has no flow control.
    pub const VL_MANAGEMENT: u8 = 15;
    pub const PKT_LEN_MAX: usize = 0x7ff;

    /// The length in bytes that `pkt_len` states: from the LRH to the end of the invariant CRC.
    #[inline]
    pub const fn packet_bytes(&self) -> usize {
        self.pkt_len as usize * 4
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reads_the_header_of_ibas_sample_packet() {
        let bytes = [0x70, 0x12, 0x37, 0x5c, 0x00, 0x0e, 0x17, 0xd2];
        let lrh = Lrh {
            vl: 7,
            lver: 0,
            sl: 1,
            lnh: Lnh::LOCAL,
            dlid: Lid(0x375c),
            pkt_len: 14,
            slid: Lid(0x17d2),
        };
        assert_eq!(Lrh::parse(&bytes), lrh);
        assert_eq!(lrh.emit(), bytes);
        assert_eq!(lrh.packet_bytes(), 56);
    }
}
