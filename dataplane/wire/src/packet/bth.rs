//! Base transport header: destination queue pair and operation (IBA 9.2).

use super::opcode::Opcode;
use crate::{address::Qpn, keys::PKey, psn::Psn};

layout! {
    pub struct Bth: 12 bytes {
        0:0    8  opcode: Opcode,
        /// Solicited event: notifies a receiver that waits for solicited events only.
        1:0    1  se: bool,
        /// MigReq: set in the migrated state, which is the usual state of a connection.
        1:1    1  mig_req: bool,
        /// Number of bytes that pad the payload to a multiple of four.
        1:2    2  pad_cnt: u8,
        /// Transport version: 0.
        1:4    4  tver: u8,
        2:0   16  pkey: PKey,
        4:0    1  fecn: bool,
        4:1    1  becn: bool,
        5:0   24  dest_qp: Qpn,
        8:0    1  ack_req: bool,
        9:0   24  psn: Psn,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reads_the_header_of_ibas_sample_packet() {
        let bytes = [0x0a, 0x20, 0x24, 0x87, 0x00, 0x87, 0xb1, 0xb3, 0x00, 0x0d, 0xec, 0x2a];
        let bth = Bth::parse(&bytes);
        assert_eq!(bth.opcode, Opcode(0x0a));
        assert_eq!((bth.se, bth.mig_req, bth.pad_cnt, bth.tver), (false, false, 2, 0));
        assert_eq!((bth.pkey, bth.dest_qp), (PKey(0x2487), Qpn(0x87_b1b3)));
        assert_eq!((bth.ack_req, bth.psn), (false, Psn::new(0x0d_ec2a)));
        assert_eq!(bth.emit(), bytes);
    }

    #[test]
    fn flags_are_at_their_offsets() {
        let flags = |bytes: [u8; 12]| {
            let b = Bth::parse(&bytes);
            [b.se, b.mig_req, b.fecn, b.becn, b.ack_req]
        };
        for (byte, bit, which) in
            [(1, 0x80, 0), (1, 0x40, 1), (4, 0x80, 2), (4, 0x40, 3), (8, 0x80, 4)]
        {
            let mut bytes = [0; 12];
            bytes[byte] = bit;
            assert_eq!(flags(bytes), core::array::from_fn(|i| i == which));
        }
    }
}
