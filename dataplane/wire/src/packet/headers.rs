//! Writes packets: headers, payload, pad and CRCs (IBA 5.2, 9.2.1).

use super::{Bth, Extended, Grh, Lnh, Lrh, RdHeaders, TRAILER_LEN, crc};
use crate::WireError;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Headers {
    pub lrh: Lrh,
    pub grh: Option<Grh>,
    pub bth: Bth,
    /// Reliable datagrams only.
    pub rd: Option<RdHeaders>,
    pub extended: Extended,
}

impl Headers {
    /// Writes a packet with this payload; returns the length of the packet in bytes.
    #[inline]
    pub fn emit(&self, payload: &[u8], out: &mut [u8]) -> Result<usize, WireError> {
        self.emit_with(payload.len(), out, |space| space.copy_from_slice(payload))
    }

    /// Writes a packet whose payload `fill` writes; returns the length of the packet in bytes.
    ///
    /// This function computes LNH, all lengths, the pad and both CRCs, and ignores their values in
    /// the headers. It emits all other fields as given, so that tests can make invalid packets.
    #[inline]
    pub fn emit_with(
        &self,
        payload_len: usize,
        out: &mut [u8],
        fill: impl FnOnce(&mut [u8]),
    ) -> Result<usize, WireError> {
        let have = out.len();
        let rest = self.write(payload_len, out)?;
        let padded_len = payload_len.next_multiple_of(4);
        let needed = have - rest.len() + padded_len + TRAILER_LEN;
        if have < needed {
            return Err(WireError::NoRoom { format: "Packet", needed, have });
        }
        fill(&mut rest[..payload_len]);
        rest[payload_len..padded_len].fill(0);
        seal(&mut out[..needed]);
        Ok(needed)
    }

    /// Writes the headers for a payload of this length; returns the rest of `out`.
    ///
    /// Always inlined: most fields of a sender are constants, which then cost no instructions.
    #[inline(always)]
    pub fn write<'a>(
        &self,
        payload_len: usize,
        out: &'a mut [u8],
    ) -> Result<&'a mut [u8], WireError> {
        let padded_len = payload_len.next_multiple_of(4);
        let rd_len = self.rd.map_or(0, |rd| RdHeaders::bytes(rd.deth.is_some()));
        let extended_len = self.extended.kind().bytes();
        let transport_len = Bth::LEN + rd_len + extended_len + padded_len + crc::ICRC_LEN;
        let grh_len = if self.grh.is_some() { Grh::LEN } else { 0 };
        let words = (Lrh::LEN + grh_len + transport_len) / 4;
        if words > Lrh::PKT_LEN_MAX {
            return Err(WireError::BadLength { format: "Packet" });
        }
        let lnh = if self.grh.is_some() { Lnh::GLOBAL } else { Lnh::LOCAL };
        let mut out = Lrh { lnh, pkt_len: words as u16, ..self.lrh }.write(out)?;
        if let Some(grh) = self.grh {
            out = Grh { pay_len: transport_len as u16, ..grh }.write(out)?;
        }
        let bth = Bth { pad_cnt: (padded_len - payload_len) as u8, ..self.bth };
        let mut out = bth.write(out)?;
        if let Some(rd) = self.rd {
            out = rd.write(out)?;
        }
        self.extended.write(out)
    }
}

/// Fills in the two CRCs at the end of an otherwise complete packet.
pub fn seal(packet: &mut [u8]) {
    let Some(icrc_at) = packet.len().checked_sub(TRAILER_LEN) else { return };
    if let Some(icrc) = crc::icrc(&packet[..icrc_at]) {
        packet[icrc_at..icrc_at + crc::ICRC_LEN].copy_from_slice(&icrc.to_le_bytes());
    }
    seal_hop(packet);
}

/// Fills in the variant CRC at the end of a packet, after a hop has changed a field.
pub fn seal_hop(packet: &mut [u8]) {
    let Some(vcrc_at) = packet.len().checked_sub(crc::VCRC_LEN) else { return };
    let vcrc = crc::vcrc(&packet[..vcrc_at]);
    packet[vcrc_at..].copy_from_slice(&vcrc.to_le_bytes());
}
