//! The checked view of a received packet (IBA 5.2, 7, 8, 9.2).

use super::extended::ExtendedKind;
use super::opcode::Transport;
use super::{Bth, Deth, Extended, Grh, Headers, Lnh, Lrh, RdHeaders, TRAILER_LEN, crc};
use crate::WireError;
use crate::layout::split_header;

/// A view of an InfiniBand transport packet with valid versions, headers and lengths.
///
/// The view borrows the bytes and parses headers on request, so a receiver that drops a packet
/// early does not parse the rest. [`Packet::parse`] does not verify the CRCs: a link verifies the
/// variant CRC, an adapter the invariant CRC, and a forwarder none.
#[derive(Clone, Copy, Debug)]
pub struct Packet<'a> {
    lrh: &'a [u8; Lrh::LEN],
    grh: Option<&'a [u8; Grh::LEN]>,
    bth: &'a [u8; Bth::LEN],
    kind: ExtendedKind,
    extended: &'a [u8],
    payload: &'a [u8],
    /// LRH to VCRC.
    bytes: &'a [u8],
}

impl<'a> Packet<'a> {
    /// Parses the packet at the front of `frame`, which may be longer than the packet.
    #[inline]
    pub fn parse(frame: &'a [u8]) -> Result<Self, WireError> {
        let (lrh, _) = split_header::<{ Lrh::LEN }>("Lrh", frame)?;
        let Lrh { lver, lnh, .. } = Lrh::parse(lrh);
        if lver != 0 {
            return Err(WireError::BadValue { format: "Lrh", field: "lver" });
        }
        let covered_len = Lrh::parse(lrh).packet_bytes();
        let (needed, have) = (covered_len + crc::VCRC_LEN, frame.len());
        let bytes =
            frame.get(..needed).ok_or(WireError::Truncated { format: "Packet", needed, have })?;
        let bad_length = WireError::BadLength { format: "Packet" };
        let rest = bytes.get(Lrh::LEN..).ok_or(bad_length)?;
        let (grh, rest) = split_grh(lnh, rest)?;
        if let Some(grh) = grh
            && usize::from(Grh::parse(grh).pay_len) + Lrh::LEN + Grh::LEN != covered_len
        {
            return Err(bad_length);
        }
        let (bth, rest) = split_header::<{ Bth::LEN }>("Bth", rest)?;
        let Bth { opcode, tver, pad_cnt, .. } = Bth::parse(bth);
        if tver != 0 {
            return Err(WireError::BadValue { format: "Bth", field: "tver" });
        }
        let Some(kind) = opcode.extended() else {
            return Err(WireError::BadValue { format: "Bth", field: "opcode" });
        };
        let split = rest.split_at_checked(opcode.extended_len());
        let (extended, rest) = split.ok_or(bad_length)?;
        let trailer_len = usize::from(pad_cnt) + TRAILER_LEN;
        let payload_len = rest.len().checked_sub(trailer_len).ok_or(bad_length)?;
        Ok(Self { lrh, grh, bth, kind, extended, payload: &rest[..payload_len], bytes })
    }

    #[inline(always)]
    pub fn lrh(&self) -> Lrh {
        Lrh::parse(self.lrh)
    }

    #[inline(always)]
    pub fn grh(&self) -> Option<Grh> {
        self.grh.map(Grh::parse)
    }

    #[inline(always)]
    pub fn bth(&self) -> Bth {
        Bth::parse(self.bth)
    }

    /// The DETH of a UD packet; `None` for other services.
    #[inline(always)]
    pub fn deth(&self) -> Option<Deth> {
        match self.kind {
            ExtendedKind::Deth | ExtendedKind::DethImm => {
                self.extended.first_chunk().map(Deth::parse)
            }
            _ => None,
        }
    }

    /// The extended headers, without the RDETH and DETH of RD (see [`Packet::rd`]).
    #[inline]
    pub fn extended(&self) -> Extended {
        let own = &self.extended[self.extended.len() - self.kind.bytes()..];
        let read = Extended::read(self.kind, own);
        read.expect("parse has checked the length").0
    }

    /// The additional headers of RD; `None` for other services.
    pub fn rd(&self) -> Option<RdHeaders> {
        let opcode = self.bth().opcode;
        if opcode.transport() != Transport::RD {
            return None;
        }
        RdHeaders::read(opcode.is_request(), self.extended).ok().map(|(rd, _)| rd)
    }

    pub fn headers(&self) -> Headers {
        Headers {
            lrh: self.lrh(),
            grh: self.grh(),
            bth: self.bth(),
            rd: self.rd(),
            extended: self.extended(),
        }
    }

    /// The payload, without the pad.
    #[inline(always)]
    pub const fn payload(&self) -> &'a [u8] {
        self.payload
    }

    /// LRH to VCRC.
    pub const fn bytes(&self) -> &'a [u8] {
        self.bytes
    }

    /// Whether the invariant CRC matches: the packet was not corrupted on its path.
    pub fn icrc_ok(&self) -> bool {
        let (covered, trailer) = self.bytes.split_at(self.bytes.len() - TRAILER_LEN);
        crc::icrc(covered).is_some_and(|icrc| icrc.to_le_bytes() == trailer[..crc::ICRC_LEN])
    }

    /// Whether the variant CRC matches: the last link did not corrupt the packet.
    pub fn vcrc_ok(&self) -> bool {
        let (covered, trailer) = self.bytes.split_at(self.bytes.len() - crc::VCRC_LEN);
        crc::vcrc(covered).to_le_bytes() == trailer
    }
}

type GrhAndRest<'a> = (Option<&'a [u8; Grh::LEN]>, &'a [u8]);

/// Splits off and checks the GRH, if there is one; also returns the rest.
#[inline]
fn split_grh(lnh: Lnh, bytes: &[u8]) -> Result<GrhAndRest<'_>, WireError> {
    match lnh {
        Lnh::LOCAL => Ok((None, bytes)),
        Lnh::GLOBAL => {
            let (grh, rest) = split_header::<{ Grh::LEN }>("Grh", bytes)?;
            let Grh { ip_ver, nxt_hdr, .. } = Grh::parse(grh);
            if ip_ver != Grh::IP_VER {
                return Err(WireError::BadValue { format: "Grh", field: "ip_ver" });
            }
            if nxt_hdr != Grh::NXT_HDR_IBA {
                return Err(WireError::BadValue { format: "Grh", field: "nxt_hdr" });
            }
            Ok((Some(grh), rest))
        }
        _ => Err(WireError::BadValue { format: "Lrh", field: "lnh" }),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::address::{Gid, Lid, Qpn};
    use crate::keys::{PKey, QKey};
    use crate::packet::*;
    use crate::psn::Psn;
    use proptest::prelude::*;
    use std::vec::Vec;

    const SAMPLE: [u8; 58] = [
        0x70, 0x12, 0x37, 0x5c, 0x00, 0x0e, 0x17, 0xd2, 0x0a, 0x20, 0x24, 0x87, 0x00, 0x87, 0xb1,
        0xb3, 0x00, 0x0d, 0xec, 0x2a, 0x01, 0x71, 0x0a, 0x1c, 0x01, 0x5d, 0x40, 0x02, 0x38, 0xf2,
        0x7a, 0x05, 0x00, 0x00, 0x00, 0x0e, 0xbb, 0x88, 0x4d, 0x85, 0xfd, 0x5c, 0xfb, 0xa4, 0x72,
        0x8b, 0xc0, 0x69, 0x0e, 0xd4, 0x00, 0x00, 0x96, 0x25, 0xb7, 0x5a, 0x45, 0xfa,
    ];

    #[test]
    fn sample_packet_of_the_specification_round_trips() {
        let packet = Packet::parse(&SAMPLE).unwrap();
        assert!(packet.icrc_ok() && packet.vcrc_ok());
        assert_eq!(packet.payload().len(), 14);
        assert!(matches!(packet.extended(), Extended::Reth(Reth { dma_len: 14, .. })));
        let mut out = [0xee; 58];
        assert_eq!(packet.headers().emit(packet.payload(), &mut out), Ok(58));
        assert_eq!(out, SAMPLE);
    }

    #[test]
    fn a_flipped_bit_fails_the_crcs() {
        let mut bytes = SAMPLE;
        bytes[40] ^= 1;
        let packet = Packet::parse(&bytes).unwrap();
        assert!(!packet.icrc_ok() && !packet.vcrc_ok());
    }

    #[test]
    fn a_hop_changes_the_lane_and_only_the_variant_crc() {
        let mut bytes = SAMPLE;
        bytes[0] = 0x30;
        assert!(Packet::parse(&bytes).unwrap().icrc_ok());
        assert!(!Packet::parse(&bytes).unwrap().vcrc_ok());
        seal_hop(&mut bytes);
        assert!(Packet::parse(&bytes).unwrap().vcrc_ok());
    }

    #[test]
    fn lengths_that_disagree_are_refused() {
        let refused = |at: usize, byte: u8| {
            let mut bytes = SAMPLE;
            bytes[at] = byte;
            Packet::parse(&bytes).unwrap_err()
        };
        assert_eq!(refused(5, 15).reason(), "truncated");
        assert_eq!(refused(5, 9), WireError::BadLength { format: "Packet" });
        assert_eq!(refused(0, 0x71), WireError::BadValue { format: "Lrh", field: "lver" });
        assert_eq!(refused(1, 0x10), WireError::BadValue { format: "Lrh", field: "lnh" });
        assert_eq!(refused(8, 0x18), WireError::BadValue { format: "Bth", field: "opcode" });
        assert_eq!(refused(9, 0x21), WireError::BadValue { format: "Bth", field: "tver" });
    }

    /// Headers for every supported opcode, with and without a GRH.
    fn every_kind() -> Vec<Headers> {
        let lrh = Lrh { sl: 3, dlid: Lid(2), slid: Lid(1), ..Lrh::default() };
        let grh = Grh {
            ip_ver: 6,
            nxt_hdr: Grh::NXT_HDR_IBA,
            sgid: Gid([1; 16]),
            dgid: Gid([2; 16]),
            ..Grh::default()
        };
        let deth = Deth { qkey: QKey(0x0b1b), src_qp: Qpn(0x48) };
        let imm = ImmDt { data: 0xfeed };
        let reth = Reth { va: 1 << 40, rkey: 7, dma_len: 99 };
        let aeth = Aeth { syndrome: Syndrome::Ack(Credits(5)), msn: Psn::new(9) };
        let mut all = Vec::new();
        for opcode in (0..=255).map(Opcode) {
            let Some(kind) = opcode.extended() else { continue };
            let extended = match kind {
                ExtendedKind::None => Extended::None,
                ExtendedKind::Imm => Extended::Imm(imm),
                ExtendedKind::Ieth => Extended::Ieth(Ieth { rkey: 8 }),
                ExtendedKind::Reth => Extended::Reth(reth),
                ExtendedKind::RethImm => Extended::RethImm(reth, imm),
                ExtendedKind::AtomicEth => Extended::AtomicEth(AtomicEth::default()),
                ExtendedKind::Aeth => Extended::Aeth(aeth),
                ExtendedKind::AethAtomicAckEth => {
                    Extended::AethAtomicAckEth(aeth, AtomicAckEth { original: 3 })
                }
                ExtendedKind::Deth => Extended::Deth(deth),
                ExtendedKind::DethImm => Extended::DethImm(deth, imm),
            };
            let rd = (opcode.transport() == Transport::RD).then(|| RdHeaders {
                rdeth: Rdeth { ee_context: 0x123 },
                deth: opcode.is_request().then_some(deth),
            });
            let bth = Bth { opcode, pkey: PKey::DEFAULT, dest_qp: Qpn(0x49), ..Bth::default() };
            for grh in [None, Some(grh)] {
                all.push(Headers { lrh, grh, bth, rd, extended });
            }
        }
        all
    }

    #[test]
    fn every_opcode_round_trips_with_every_pad() {
        for headers in every_kind() {
            for payload in [&b""[..], b"1", b"12", b"123", b"1234"] {
                let mut out = [0xee; PACKET_LEN_MAX];
                let len = headers.emit(payload, &mut out).unwrap();
                let packet = Packet::parse(&out[..len]).unwrap();
                assert!(packet.icrc_ok() && packet.vcrc_ok());
                assert_eq!(packet.payload(), payload);
                let read = packet.headers();
                assert_eq!((read.extended, read.rd), (headers.extended, headers.rd));
                assert_eq!(packet.deth().is_some(), read.bth.opcode.transport() == Transport::UD);
                assert_eq!(read.lrh.packet_bytes() + 2, len);
                let mut again = [0xdd; PACKET_LEN_MAX];
                assert_eq!(read.emit(payload, &mut again), Ok(len));
                assert_eq!(out[..len], again[..len]);
            }
        }
    }

    #[test]
    fn a_short_output_reports_the_needed_length() {
        let headers = every_kind()[0];
        for have in 0..30 {
            let error = headers.emit(b"12345", &mut [0; 64][..have]).unwrap_err();
            assert_eq!(error.reason(), "no_room", "{have}: {error}");
        }
    }

    #[test]
    fn the_longest_headers_are_as_long_as_stated() {
        let len = |headers: &Headers| {
            let mut out = [0; PACKET_LEN_MAX];
            headers.emit(&[], &mut out).unwrap() - TRAILER_LEN
        };
        assert_eq!(every_kind().iter().map(len).max(), Some(HEADERS_LEN_MAX));
    }

    proptest! {
        #[test]
        fn any_bytes_are_a_packet_or_an_error(
            mut bytes in proptest::collection::vec(any::<u8>(), 0..200),
            plausible: bool,
        ) {
            if plausible && bytes.len() > 60 {
                bytes[0] &= 0xf0;
                bytes[1] |= 2;
                bytes[4] = 0;
                bytes[5] &= 0x3f;
            }
            if let Ok(packet) = Packet::parse(&bytes) {
                let _ = (packet.icrc_ok(), packet.vcrc_ok(), packet.headers());
                prop_assert!(packet.bytes().len() <= bytes.len());
            }
        }
    }
}
