//! The two CRCs at the end of a packet (IBA 7.8).
//!
//! The *invariant* CRC protects a packet from end to end. It is the CRC-32 of Ethernet, computed
//! with all bits of variant fields set, because switches and routers change these fields. Without a
//! GRH, the variant fields are the VL and the BTH byte with the congestion bits. With a GRH, they
//! also include the whole LRH and the GRH's traffic class, flow label and hop limit. The *variant*
//! CRC protects a packet on one link, and masks no field. Both CRCs are complemented and stored
//! least significant byte first.

use super::lrh::Lnh;

pub const ICRC_LEN: usize = 4;
pub const VCRC_LEN: usize = 2;

const LRH: usize = 8;
const GRH: usize = 40;
const BTH: usize = 12;
/// The offset of the BTH byte with the congestion bits. This byte was reserved before the bits were
/// defined, so the invariant CRC masks all of it.
const BTH_CONGESTION: usize = 4;

/// The invariant CRC of a packet. `covered` begins at the LRH and ends with the last pad byte.
/// `None` for raw packets, which have no such CRC, and for packets that are too short.
pub fn icrc(covered: &[u8]) -> Option<u32> {
    match Lnh(covered.get(1)? & 3) {
        Lnh::LOCAL => {
            let (head, rest) = covered.split_first_chunk::<{ LRH + BTH }>()?;
            let mut head = *head;
            head[0] |= 0xf0;
            head[LRH + BTH_CONGESTION] = 0xff;
            Some(crc32(&head, rest))
        }
        Lnh::GLOBAL => {
            let (head, rest) = covered.split_first_chunk::<{ LRH + GRH + BTH }>()?;
            let mut head = *head;
            head[..LRH].fill(0xff);
            head[LRH] |= 0x0f;
            head[LRH + 1..LRH + 4].fill(0xff);
            head[LRH + 7] = 0xff;
            head[LRH + GRH + BTH_CONGESTION] = 0xff;
            Some(crc32(&head, rest))
        }
        _ => None,
    }
}

#[inline]
fn crc32(head: &[u8], rest: &[u8]) -> u32 {
    let mut hasher = crc32fast::Hasher::new();
    hasher.update(head);
    hasher.update(rest);
    hasher.finalize()
}

/// The variant CRC (polynomial 0x100B) of a packet. `covered` begins at the LRH and ends with the
/// byte before this CRC.
///
/// The loop handles 16 bytes per iteration, with one table per byte position (8 KiB in total). Why
/// not carry-less multiplication: the only crate with a 16-bit CRC by that method is faster only
/// from 256 bytes up.
pub fn vcrc(covered: &[u8]) -> u16 {
    let mut crc = 0xffff_u16;
    let (blocks, rest) = covered.as_chunks::<16>();
    for block in blocks {
        let mut block = *block;
        block[0] ^= crc as u8;
        block[1] ^= (crc >> 8) as u8;
        crc = block
            .iter()
            .zip(VCRC_TABLES.iter().rev())
            .fold(0, |crc, (&byte, table)| crc ^ table[usize::from(byte)]);
    }
    for &byte in rest {
        crc = crc >> 8 ^ VCRC_TABLES[0][usize::from(crc as u8 ^ byte)];
    }
    !crc
}

/// `VCRC_TABLES[n][byte]`: the effect of `byte` on the CRC register after `n` more bytes.
static VCRC_TABLES: [[u16; 256]; 16] = {
    // 0x100B with its bits reversed, because the least significant bit is sent first.
    const POLYNOMIAL: u16 = 0xd008;
    let mut tables = [[0; 256]; 16];
    let mut byte = 0;
    while byte < 256 {
        let mut crc = byte as u16;
        let mut bit = 0;
        while bit < 8 {
            crc = if crc & 1 != 0 { crc >> 1 ^ POLYNOMIAL } else { crc >> 1 };
            bit += 1;
        }
        tables[0][byte] = crc;
        byte += 1;
    }
    let mut n = 1;
    while n < 16 {
        let mut byte = 0;
        while byte < 256 {
            let before = tables[n - 1][byte];
            tables[n][byte] = before >> 8 ^ tables[0][(before & 0xff) as usize];
            byte += 1;
        }
        n += 1;
    }
    tables
};

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::vec::Vec;

    fn bytes(hex: &str) -> Vec<u8> {
        let digits: Vec<u8> = hex.bytes().filter(u8::is_ascii_hexdigit).collect();
        let digit = |d: u8| (d as char).to_digit(16).unwrap() as u8;
        digits.chunks(2).map(|pair| digit(pair[0]) << 4 | digit(pair[1])).collect()
    }

    /// Checks both CRCs of a packet, given as the bytes on the wire.
    fn check(covered: &str, icrc_bytes: &str, vcrc_bytes: &str) {
        let mut packet = bytes(covered);
        let icrc = icrc(&packet).unwrap().to_le_bytes();
        assert_eq!(icrc[..], bytes(icrc_bytes)[..], "ICRC");
        packet.extend(icrc);
        assert_eq!(vcrc(&packet).to_le_bytes()[..], bytes(vcrc_bytes)[..], "VCRC");
    }

    #[test]
    fn sample_packet_of_the_specification() {
        check(
            "7012375C000E17D2 0A2024870087B1B3000DEC2A 01710A1C015D400238F27A050000000E
             BB884D85FD5CFBA4728BC0690ED40000",
            "9625B75A",
            "45FA",
        );
    }

    // req: iba-packets
    #[test]
    fn broadcast_arp_with_grh() {
        check(
            "0003c00000210001 6000000000541b00fe800000000000000002c90300001001
             ff12401bffff000000000000ffffffff 6400ffff00ffffff00000000 00000b1b00000048 08060000
             0020080014040001 80000048fe800000000000000002c903000010010a000001
             00000000000000000000000000000000000000000a000002",
            "dd9a038b",
            "3be3",
        );
    }

    #[test]
    fn acknowledgement_and_padded_datagram() {
        check("0002000200070001 1100ffff0000004900000005 1f000006", "69b42baa", "eaf6");
        check(
            "00020002000a0001 643080010000004980000007 00000b1b00000048 68656c6c6f000000",
            "edf85d41",
            "3eaa",
        );
    }

    #[test]
    fn raw_and_short_packets_have_no_icrc() {
        assert_eq!(icrc(&[]), None);
        assert_eq!(icrc(&[0; 64]), None, "LNH 0");
        assert_eq!(icrc(&[0, 1, 2, 3]), None);
        let mut short = [0; 59];
        short[1] = 3;
        assert_eq!(icrc(&short), None);
    }

    /// An independent implementation: masks bit by bit, and computes with another crate.
    fn icrc_oracle(covered: &[u8]) -> u32 {
        let mut masked = covered.to_vec();
        let mut ones = |from: usize, bits: core::ops::Range<usize>| {
            bits.for_each(|bit| masked[from + bit / 8] |= 0x80 >> (bit % 8));
        };
        if covered[1] & 3 == 2 {
            ones(0, 0..4);
            ones(8, 32..40);
        } else {
            ones(0, 0..64);
            ones(8, 4..12);
            ones(8, 12..32);
            ones(8, 56..64);
            ones(48, 32..40);
        }
        crc::Crc::<u32>::new(&crc::CRC_32_ISO_HDLC).checksum(&masked)
    }

    const VCRC_ALGORITHM: crc::Algorithm<u16> = crc::Algorithm {
        width: 16,
        poly: 0x100b,
        init: 0xffff,
        refin: true,
        refout: true,
        xorout: 0xffff,
        check: 0,
        residue: 0,
    };

    proptest! {
        #[test]
        fn agrees_with_another_crate(
            mut packet in proptest::collection::vec(any::<u8>(), 60..2300),
            global: bool,
        ) {
            packet[1] = packet[1] & !3 | 2 | u8::from(global);
            prop_assert_eq!(icrc(&packet), Some(icrc_oracle(&packet)));
            let oracle = crc::Crc::<u16>::new(&VCRC_ALGORITHM);
            prop_assert_eq!(vcrc(&packet), oracle.checksum(&packet));
        }

        #[test]
        fn fields_that_routers_change_leave_the_icrc_unchanged(
            mut packet in proptest::collection::vec(any::<u8>(), 60..100),
            lane: u8, hops: u8, dlid: u16,
        ) {
            packet[1] = packet[1] & !3 | 3;
            let before = icrc(&packet);
            packet[0] = lane;
            packet[2..4].copy_from_slice(&dlid.to_be_bytes());
            packet[15] = hops;
            prop_assert_eq!(icrc(&packet), before);
        }
    }
}
