//! Extended transport headers, between BTH and payload (IBA 9.2.1). The opcode determines them.

use super::{Aeth, AtomicAckEth, AtomicEth};
use crate::WireError;
use crate::{address::Qpn, keys::QKey};

layout! {
    /// In every packet of RD: the end-to-end context of the reliable connection (IBA 9.3.1).
    pub struct Rdeth: 4 bytes {
        1:0   24  ee_context: u32,
    }
}

layout! {
    /// In every packet of UD, and in requests of RD (IBA 9.3.2).
    pub struct Deth: 8 bytes {
        /// Must equal the Q_Key of the receiving queue pair.
        0:0   32  qkey: QKey,
        5:0   24  src_qp: Qpn,
    }
}

layout! {
    /// In the first packet of an RDMA WRITE, and in an RDMA READ request (IBA 9.3.3).
    pub struct Reth: 16 bytes {
        0:0   64  va: u64,
        8:0   32  rkey: u32,
        /// Length of the whole message in bytes.
        12:0  32  dma_len: u32,
    }
}

layout! {
    /// Immediate data: in the last packet of a message, behind all other headers (IBA 9.3.6).
    pub struct ImmDt: 4 bytes {
        0:0   32  data: u32,
    }
}

layout! {
    /// In the last packet of a SEND with invalidate (IBA 9.3.7).
    pub struct Ieth: 4 bytes {
        0:0   32  rkey: u32,
    }
}

/// The extended headers behind the BTH, in the order of the name. In RD, the [`RdHeaders`] precede
/// them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ExtendedKind {
    None,
    Imm,
    Ieth,
    Reth,
    RethImm,
    AtomicEth,
    Aeth,
    AethAtomicAckEth,
    Deth,
    DethImm,
}

impl ExtendedKind {
    #[inline]
    pub const fn bytes(self) -> usize {
        match self {
            Self::None => 0,
            Self::Imm => ImmDt::LEN,
            Self::Ieth => Ieth::LEN,
            Self::Reth => Reth::LEN,
            Self::RethImm => Reth::LEN + ImmDt::LEN,
            Self::AtomicEth => AtomicEth::LEN,
            Self::Aeth => Aeth::LEN,
            Self::AethAtomicAckEth => Aeth::LEN + AtomicAckEth::LEN,
            Self::Deth => Deth::LEN,
            Self::DethImm => Deth::LEN + ImmDt::LEN,
        }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
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

    /// Parses the headers of this kind at the front of `bytes`; also returns the rest of `bytes`.
    #[inline]
    pub fn read(kind: ExtendedKind, bytes: &[u8]) -> Result<(Self, &[u8]), WireError> {
        Ok(match kind {
            ExtendedKind::None => (Self::None, bytes),
            ExtendedKind::Imm => one(ImmDt::read(bytes)?, Self::Imm),
            ExtendedKind::Ieth => one(Ieth::read(bytes)?, Self::Ieth),
            ExtendedKind::Reth => one(Reth::read(bytes)?, Self::Reth),
            ExtendedKind::AtomicEth => one(AtomicEth::read(bytes)?, Self::AtomicEth),
            ExtendedKind::Aeth => one(Aeth::read(bytes)?, Self::Aeth),
            ExtendedKind::Deth => one(Deth::read(bytes)?, Self::Deth),
            ExtendedKind::RethImm => {
                let (reth, bytes) = Reth::read(bytes)?;
                one(ImmDt::read(bytes)?, |imm| Self::RethImm(reth, imm))
            }
            ExtendedKind::AethAtomicAckEth => {
                let (aeth, bytes) = Aeth::read(bytes)?;
                one(AtomicAckEth::read(bytes)?, |ack| Self::AethAtomicAckEth(aeth, ack))
            }
            ExtendedKind::DethImm => {
                let (deth, bytes) = Deth::read(bytes)?;
                one(ImmDt::read(bytes)?, |imm| Self::DethImm(deth, imm))
            }
        })
    }

    #[inline(always)]
    pub fn write<'a>(&self, out: &'a mut [u8]) -> Result<&'a mut [u8], WireError> {
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

/// The additional headers of RD, behind the BTH.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RdHeaders {
    pub rdeth: Rdeth,
    /// In requests only.
    pub deth: Option<Deth>,
}

impl RdHeaders {
    /// Parses the headers at the front of `bytes`; also returns the rest of `bytes`.
    pub fn read(is_request: bool, bytes: &[u8]) -> Result<(Self, &[u8]), WireError> {
        let (rdeth, bytes) = Rdeth::read(bytes)?;
        if !is_request {
            return Ok((Self { rdeth, deth: None }, bytes));
        }
        let (deth, bytes) = Deth::read(bytes)?;
        Ok((Self { rdeth, deth: Some(deth) }, bytes))
    }

    pub fn write<'a>(&self, out: &'a mut [u8]) -> Result<&'a mut [u8], WireError> {
        let out = self.rdeth.write(out)?;
        match self.deth {
            Some(deth) => deth.write(out),
            None => Ok(out),
        }
    }

    pub const fn bytes(is_request: bool) -> usize {
        if is_request { Rdeth::LEN + Deth::LEN } else { Rdeth::LEN }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn deth_reserves_its_byte_four() {
        let deth = Deth { qkey: QKey(0x0b1b), src_qp: Qpn(0x48) };
        assert_eq!(Deth::parse(&[0, 0, 0x0b, 0x1b, 0xff, 0, 0, 0x48]), deth);
        assert_eq!(deth.emit(), [0, 0, 0x0b, 0x1b, 0, 0, 0, 0x48]);
    }

    #[test]
    fn reth_matches_that_of_ibas_sample_packet() {
        let bytes =
            [0x01, 0x71, 0x0a, 0x1c, 0x01, 0x5d, 0x40, 0x02, 0x38, 0xf2, 0x7a, 0x05, 0, 0, 0, 14];
        let reth = Reth { va: 0x0171_0a1c_015d_4002, rkey: 0x38f2_7a05, dma_len: 14 };
        assert_eq!(Reth::parse(&bytes), reth);
        assert_eq!(reth.emit(), bytes);
    }
}
