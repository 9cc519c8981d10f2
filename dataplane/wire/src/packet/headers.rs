//! How headers stand together, and the whole packet around a payload (IBA 5.2, 9.2.1).

use super::opcode::{ExtendedKind, Transport};
use super::{
    Aeth, AtomicAckEth, AtomicEth, Bth, Deth, Grh, Ieth, ImmDt, Lnh, Lrh, Rdeth, Reth, crc,
};
use crate::WireError;

/// ICRC and VCRC.
pub const TRAILER_LEN: usize = crc::ICRC_LEN + crc::VCRC_LEN;

/// The longest headers there are: an atomic request of RD behind a GRH.
pub const HEADERS_LEN_MAX: usize =
    Lrh::LEN + Grh::LEN + Bth::LEN + Rdeth::LEN + Deth::LEN + AtomicEth::LEN;

/// The longest packet: the headers, a payload of 4096 octets, and the CRCs.
pub const PACKET_LEN_MAX: usize = HEADERS_LEN_MAX + 4096 + TRAILER_LEN;

/// The headers that an opcode brings along behind the BTH.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[expect(missing_docs, reason = "the names are those of the headers")]
pub enum Extended {
    None,
    Imm(ImmDt),
    Ieth(Ieth),
    Reth(Reth),
    RethImm(Reth, ImmDt),
    AtomicEth(AtomicEth),
    Aeth(Aeth),
    AethAtomicAckEth(Aeth, AtomicAckEth),
    Deth(Deth),
    DethImm(Deth, ImmDt),
}

impl Extended {
    /// Which headers these are.
    #[inline]
    pub const fn kind(&self) -> ExtendedKind {
        match self {
            Self::None => ExtendedKind::None,
            Self::Imm(_) => ExtendedKind::Imm,
            Self::Ieth(_) => ExtendedKind::Ieth,
            Self::Reth(_) => ExtendedKind::Reth,
            Self::RethImm(..) => ExtendedKind::RethImm,
            Self::AtomicEth(_) => ExtendedKind::AtomicEth,
            Self::Aeth(_) => ExtendedKind::Aeth,
            Self::AethAtomicAckEth(..) => ExtendedKind::AethAtomicAckEth,
            Self::Deth(_) => ExtendedKind::Deth,
            Self::DethImm(..) => ExtendedKind::DethImm,
        }
    }

    #[inline]
    fn read(kind: ExtendedKind, octets: &[u8]) -> Result<(Self, &[u8]), WireError> {
        Ok(match kind {
            ExtendedKind::None => (Self::None, octets),
            ExtendedKind::Imm => one(ImmDt::read(octets)?, Self::Imm),
            ExtendedKind::Ieth => one(Ieth::read(octets)?, Self::Ieth),
            ExtendedKind::Reth => one(Reth::read(octets)?, Self::Reth),
            ExtendedKind::AtomicEth => one(AtomicEth::read(octets)?, Self::AtomicEth),
            ExtendedKind::Aeth => one(Aeth::read(octets)?, Self::Aeth),
            ExtendedKind::Deth => one(Deth::read(octets)?, Self::Deth),
            ExtendedKind::RethImm => {
                let (reth, octets) = Reth::read(octets)?;
                one(ImmDt::read(octets)?, |imm| Self::RethImm(reth, imm))
            }
            ExtendedKind::AethAtomicAckEth => {
                let (aeth, octets) = Aeth::read(octets)?;
                one(AtomicAckEth::read(octets)?, |ack| Self::AethAtomicAckEth(aeth, ack))
            }
            ExtendedKind::DethImm => {
                let (deth, octets) = Deth::read(octets)?;
                one(ImmDt::read(octets)?, |imm| Self::DethImm(deth, imm))
            }
        })
    }

    #[inline]
    fn write<'a>(&self, out: &'a mut [u8]) -> Result<&'a mut [u8], WireError> {
        match self {
            Self::None => Ok(out),
            Self::Imm(imm) => imm.write(out),
            Self::Ieth(ieth) => ieth.write(out),
            Self::Reth(reth) => reth.write(out),
            Self::RethImm(reth, imm) => imm.write(reth.write(out)?),
            Self::AtomicEth(atomic) => atomic.write(out),
            Self::Aeth(aeth) => aeth.write(out),
            Self::AethAtomicAckEth(aeth, ack) => ack.write(aeth.write(out)?),
            Self::Deth(deth) => deth.write(out),
            Self::DethImm(deth, imm) => imm.write(deth.write(out)?),
        }
    }
}

#[inline(always)]
fn one<T>(
    (header, rest): (T, &[u8]),
    as_extended: impl FnOnce(T) -> Extended,
) -> (Extended, &[u8]) {
    (as_extended(header), rest)
}

/// What a packet of reliable datagrams has between its BTH and the rest.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RdHeaders {
    /// The end-to-end context.
    pub rdeth: Rdeth,
    /// Queue pair and key; in requests only.
    pub deth: Option<Deth>,
}

/// All headers of a packet of InfiniBand transport.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Headers {
    /// Local route.
    pub lrh: Lrh,
    /// Global route.
    pub grh: Option<Grh>,
    /// Base transport.
    pub bth: Bth,
    /// Reliable datagrams only.
    pub rd: Option<RdHeaders>,
    /// What the opcode demands.
    pub extended: Extended,
}

impl Headers {
    /// Takes the headers off the front of a packet; gives what follows as well.
    #[inline]
    pub fn read(octets: &[u8]) -> Result<(Self, &[u8]), WireError> {
        let (lrh, octets) = Lrh::read(octets)?;
        if lrh.lver != 0 {
            return Err(WireError::BadValue { format: "Lrh", field: "lver" });
        }
        let (grh, octets) = match lrh.lnh {
            Lnh::LOCAL => (None, octets),
            Lnh::GLOBAL => {
                let (grh, octets) = read_grh(octets)?;
                (Some(grh), octets)
            }
            _ => return Err(WireError::BadValue { format: "Lrh", field: "lnh" }),
        };
        let (bth, rd, extended, octets) = read_transport(octets)?;
        Ok((Self { lrh, grh, bth, rd, extended }, octets))
    }

    /// Writes the whole packet around a payload that `fill` puts in place, and gives its length.
    ///
    /// LNH, all lengths, the pad and both CRCs are made here; what the headers say of them is ignored.
    /// Everything else is as given, so that tests can make packets that are wrong.
    #[inline]
    pub fn emit_with(
        &self,
        payload_len: usize,
        out: &mut [u8],
        fill: impl FnOnce(&mut [u8]),
    ) -> Result<usize, WireError> {
        let have = out.len();
        let room = self.write(payload_len, out)?;
        let headers_len = have - room.len();
        let padded_len = payload_len.next_multiple_of(4);
        let needed = headers_len + padded_len + TRAILER_LEN;
        if have < needed {
            return Err(WireError::NoRoom { format: "Packet", needed, have });
        }
        fill(&mut room[..payload_len]);
        room[payload_len..padded_len].fill(0);
        seal(&mut out[..needed]);
        Ok(needed)
    }

    /// Writes the whole packet around `payload`, and gives its length.
    #[inline]
    pub fn emit(&self, payload: &[u8], out: &mut [u8]) -> Result<usize, WireError> {
        self.emit_with(payload.len(), out, |room| room.copy_from_slice(payload))
    }

    /// Writes the headers for a payload of this length; gives what follows.
    #[inline]
    pub fn write<'a>(
        &self,
        payload_len: usize,
        out: &'a mut [u8],
    ) -> Result<&'a mut [u8], WireError> {
        let padded_len = payload_len.next_multiple_of(4);
        let transport_len = self.transport_len() + padded_len + crc::ICRC_LEN;
        let grh_len = if self.grh.is_some() { Grh::LEN } else { 0 };
        let packet_len = Lrh::LEN + grh_len + transport_len;
        if packet_len / 4 > 0x7ff {
            return Err(WireError::BadLength { format: "Packet" });
        }
        let lnh = if self.grh.is_some() { Lnh::GLOBAL } else { Lnh::LOCAL };
        let mut out = Lrh { lnh, pkt_len: (packet_len / 4) as u16, ..self.lrh }.write(out)?;
        if let Some(grh) = self.grh {
            out = Grh { pay_len: transport_len as u16, ..grh }.write(out)?;
        }
        let bth = Bth { pad_cnt: (padded_len - payload_len) as u8, ..self.bth };
        self.write_transport(&bth, out)
    }

    /// Octets of the BTH and all that follows it up to the payload.
    #[inline]
    fn transport_len(&self) -> usize {
        let extended = match self.extended.kind() {
            ExtendedKind::None => 0,
            ExtendedKind::Imm | ExtendedKind::Ieth | ExtendedKind::Aeth => 4,
            ExtendedKind::Reth => Reth::LEN,
            ExtendedKind::RethImm => Reth::LEN + ImmDt::LEN,
            ExtendedKind::AtomicEth => AtomicEth::LEN,
            ExtendedKind::AethAtomicAckEth => Aeth::LEN + AtomicAckEth::LEN,
            ExtendedKind::Deth => Deth::LEN,
            ExtendedKind::DethImm => Deth::LEN + ImmDt::LEN,
        };
        let rd = match self.rd {
            None => 0,
            Some(RdHeaders { deth: None, .. }) => Rdeth::LEN,
            Some(RdHeaders { deth: Some(_), .. }) => Rdeth::LEN + Deth::LEN,
        };
        Bth::LEN + rd + extended
    }

    #[inline]
    fn write_transport<'a>(&self, bth: &Bth, out: &'a mut [u8]) -> Result<&'a mut [u8], WireError> {
        let mut out = bth.write(out)?;
        if let Some(RdHeaders { rdeth, deth }) = self.rd {
            out = rdeth.write(out)?;
            if let Some(deth) = deth {
                out = deth.write(out)?;
            }
        }
        self.extended.write(out)
    }
}

#[inline]
fn read_grh(octets: &[u8]) -> Result<(Grh, &[u8]), WireError> {
    let (grh, octets) = Grh::read(octets)?;
    if grh.ip_ver != Grh::IP_VER {
        return Err(WireError::BadValue { format: "Grh", field: "ip_ver" });
    }
    if grh.nxt_hdr != Grh::NXT_HDR_IBA {
        return Err(WireError::BadValue { format: "Grh", field: "nxt_hdr" });
    }
    Ok((grh, octets))
}

type TransportHeaders<'a> = (Bth, Option<RdHeaders>, Extended, &'a [u8]);

#[inline]
fn read_transport(octets: &[u8]) -> Result<TransportHeaders<'_>, WireError> {
    let (bth, octets) = Bth::read(octets)?;
    if bth.tver != 0 {
        return Err(WireError::BadValue { format: "Bth", field: "tver" });
    }
    let Some(kind) = bth.opcode.extended() else {
        return Err(WireError::BadValue { format: "Bth", field: "opcode" });
    };
    let (rd, octets) = if bth.opcode.transport() == Transport::RD {
        let (rd, octets) = read_rd(octets, bth.opcode.is_request())?;
        (Some(rd), octets)
    } else {
        (None, octets)
    };
    let (extended, octets) = Extended::read(kind, octets)?;
    Ok((bth, rd, extended, octets))
}

fn read_rd(octets: &[u8], is_request: bool) -> Result<(RdHeaders, &[u8]), WireError> {
    let (rdeth, octets) = Rdeth::read(octets)?;
    if !is_request {
        return Ok((RdHeaders { rdeth, deth: None }, octets));
    }
    let (deth, octets) = Deth::read(octets)?;
    Ok((RdHeaders { rdeth, deth: Some(deth) }, octets))
}

/// Puts both CRCs at the end of a packet that is complete but for them.
pub fn seal(packet: &mut [u8]) {
    let Some(icrc_at) = packet.len().checked_sub(TRAILER_LEN) else { return };
    if let Some(icrc) = crc::icrc(&packet[..icrc_at]) {
        packet[icrc_at..icrc_at + crc::ICRC_LEN].copy_from_slice(&icrc.to_le_bytes());
    }
    seal_hop(packet);
}

/// Puts a new variant CRC at the end of a packet in which a hop has changed something.
pub fn seal_hop(packet: &mut [u8]) {
    let Some(vcrc_at) = packet.len().checked_sub(crc::VCRC_LEN) else { return };
    let vcrc = crc::vcrc(&packet[..vcrc_at]);
    packet[vcrc_at..].copy_from_slice(&vcrc.to_le_bytes());
}

/// A whole packet of InfiniBand transport whose lengths agree.
///
/// CRCs are looked at on request: a link checks the variant one, an adapter the invariant one, and
/// whoever only forwards neither again.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Packet<'a> {
    /// Its headers.
    pub headers: Headers,
    /// What they carry, without the pad.
    pub payload: &'a [u8],
    /// LRH to VCRC.
    octets: &'a [u8],
}

impl<'a> Packet<'a> {
    /// Looks at a frame that begins with a packet. The frame may be longer: PktLen rules.
    #[inline]
    pub fn parse(frame: &'a [u8]) -> Result<Self, WireError> {
        let (headers, rest) = Headers::read(frame)?;
        let headers_len = frame.len() - rest.len();
        let covered_len = headers.lrh.packet_octets();
        let needed = covered_len + crc::VCRC_LEN;
        if needed > frame.len() {
            return Err(WireError::Truncated { format: "Packet", needed, have: frame.len() });
        }
        let bad_length = WireError::BadLength { format: "Packet" };
        let trailer_len = usize::from(headers.bth.pad_cnt) + crc::ICRC_LEN;
        let payload_len = covered_len.checked_sub(headers_len + trailer_len).ok_or(bad_length)?;
        if let Some(grh) = headers.grh
            && usize::from(grh.pay_len) + Lrh::LEN + Grh::LEN != covered_len
        {
            return Err(bad_length);
        }
        Ok(Self { headers, payload: &rest[..payload_len], octets: &frame[..needed] })
    }

    /// LRH to VCRC.
    pub const fn octets(&self) -> &'a [u8] {
        self.octets
    }

    /// Whether it is as its sender made it.
    pub fn icrc_ok(&self) -> bool {
        let (covered, trailer) = self.octets.split_at(self.octets.len() - TRAILER_LEN);
        crc::icrc(covered).is_some_and(|icrc| icrc.to_le_bytes() == trailer[..crc::ICRC_LEN])
    }

    /// Whether it is as the last hop sent it.
    pub fn vcrc_ok(&self) -> bool {
        let (covered, trailer) = self.octets.split_at(self.octets.len() - crc::VCRC_LEN);
        crc::vcrc(covered).to_le_bytes() == trailer
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::address::{Gid, Lid, Qpn};
    use crate::keys::{PKey, QKey};
    use crate::packet::{Credits, Opcode, Syndrome};
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
    fn sample_packet_of_the_specification_comes_back_to_the_octet() {
        let packet = Packet::parse(&SAMPLE).unwrap();
        assert!(packet.icrc_ok() && packet.vcrc_ok());
        assert_eq!(packet.payload.len(), 14);
        assert!(matches!(packet.headers.extended, Extended::Reth(Reth { dma_len: 14, .. })));
        let mut out = [0xee; 58];
        assert_eq!(packet.headers.emit(packet.payload, &mut out), Ok(58));
        assert_eq!(out, SAMPLE);
    }

    #[test]
    fn a_flipped_bit_fails_the_crcs() {
        let mut octets = SAMPLE;
        octets[40] ^= 1;
        let packet = Packet::parse(&octets).unwrap();
        assert!(!packet.icrc_ok() && !packet.vcrc_ok());
    }

    #[test]
    fn a_hop_changes_the_lane_and_only_the_variant_crc() {
        let mut octets = SAMPLE;
        octets[0] = 0x30;
        assert!(Packet::parse(&octets).unwrap().icrc_ok());
        assert!(!Packet::parse(&octets).unwrap().vcrc_ok());
        seal_hop(&mut octets);
        assert!(Packet::parse(&octets).unwrap().vcrc_ok());
    }

    #[test]
    fn lengths_that_disagree_are_refused() {
        let refused = |at: usize, octet: u8| {
            let mut octets = SAMPLE;
            octets[at] = octet;
            Packet::parse(&octets).unwrap_err()
        };
        assert_eq!(refused(5, 15).reason(), "truncated");
        assert_eq!(refused(5, 9), WireError::BadLength { format: "Packet" });
        assert_eq!(refused(0, 0x71), WireError::BadValue { format: "Lrh", field: "lver" });
        assert_eq!(refused(1, 0x10), WireError::BadValue { format: "Lrh", field: "lnh" });
        assert_eq!(refused(8, 0x18), WireError::BadValue { format: "Bth", field: "opcode" });
        assert_eq!(refused(9, 0x21), WireError::BadValue { format: "Bth", field: "tver" });
    }

    /// One set of headers for every opcode that exists, with and without a GRH.
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
    fn every_opcode_survives_with_every_pad() {
        for headers in every_kind() {
            for payload in [&b""[..], b"1", b"12", b"123", b"1234"] {
                let mut out = [0xee; PACKET_LEN_MAX];
                let len = headers.emit(payload, &mut out).unwrap();
                let packet = Packet::parse(&out[..len]).unwrap();
                assert!(packet.icrc_ok() && packet.vcrc_ok());
                assert_eq!(packet.payload, payload);
                let read = packet.headers;
                assert_eq!((read.extended, read.rd), (headers.extended, headers.rd));
                assert_eq!(read.lrh.packet_octets() + 2, len);
                let mut again = [0xdd; PACKET_LEN_MAX];
                assert_eq!(read.emit(payload, &mut again), Ok(len));
                assert_eq!(out[..len], again[..len]);
            }
        }
    }

    #[test]
    fn too_little_room_says_how_much_is_needed() {
        let headers = every_kind()[0];
        for have in 0..30 {
            let error = headers.emit(b"12345", &mut [0; 64][..have]).unwrap_err();
            assert_eq!(error.reason(), "no_room", "{have}: {error}");
        }
    }

    #[test]
    fn the_longest_headers_are_as_long_as_stated() {
        let lens = every_kind().iter().map(|h| Lrh::LEN + h.transport_len() + 40).max();
        assert_eq!(lens, Some(HEADERS_LEN_MAX));
    }

    proptest! {
        #[test]
        fn any_octets_are_a_packet_or_an_error(
            mut octets in proptest::collection::vec(any::<u8>(), 0..200),
            plausible: bool,
        ) {
            if plausible && octets.len() > 60 {
                octets[0] &= 0xf0;
                octets[1] |= 2;
                octets[4] = 0;
                octets[5] &= 0x3f;
            }
            if let Ok(packet) = Packet::parse(&octets) {
                let _ = (packet.icrc_ok(), packet.vcrc_ok());
                prop_assert!(packet.octets().len() <= octets.len());
            }
        }
    }
}
