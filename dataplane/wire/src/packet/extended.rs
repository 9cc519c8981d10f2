//! Extended transport headers between BTH and payload, by opcode (IBA 9.2.1).

use super::{Aeth, AtomicAckEth, AtomicEth, Deth, Ieth, ImmDt, Rdeth, Reth};
use crate::WireError;

/// The extended headers behind the BTH, in this order. In RD, the RDETH and in requests the DETH
/// precede them.
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

    /// Takes the headers of this kind off the front of `bytes`; returns the rest as well.
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

/// The additional headers of reliable datagrams, behind the BTH.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RdHeaders {
    pub rdeth: Rdeth,
    /// In requests only.
    pub deth: Option<Deth>,
}

impl RdHeaders {
    /// Takes them off the front of `bytes`; returns the rest as well.
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
