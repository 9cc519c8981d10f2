//! The head of a frame: the header fields that an adapter needs, in a few 64-bit words.
//!
//! A packet has the headers of the wire format ([`pollux_wire::packet`]). A message that bypasses
//! packets ([`message_bypass`](crate::message_bypass)) has this head instead, with the same fields.
//! Another process may write any values into the words, so the parser accepts or rejects every
//! input without a panic.
//!
//! ```text
//! word 0   opcode 8 | flags 8 | P_Key 16 | destination QP 24 | SL 8
//!      1   PSN 24 | VL 8 | DLID 16 | SLID 16
//!      2   number of PSNs 32
//!      3 ...  extended headers, as the opcode demands: 0 to 4 words
//!        ...  GRH: 5 words
//! ```

use crate::qpn::{CONTEXT_BITS, context_of};
use pollux_wire::address::{Lid, Qpn};
use pollux_wire::keys::{PKey, QKey};
use pollux_wire::packet::{
    Aeth, AtomicAckEth, AtomicEth, Bth, Deth, Extended, ExtendedKind, Grh, Headers, Ieth, ImmDt,
    Lrh, Opcode, Packet, Reth,
};
use pollux_wire::psn::Psn;

pub const WORDS_MAX: usize = 3 + 4 + GRH_WORDS;
const GRH_WORDS: usize = Grh::LEN / 8;

#[derive(Clone, Copy, Debug)]
pub struct Head {
    pub(crate) opcode: Opcode,
    pub(crate) se: bool,
    /// MigReq: the sender has no alternate path, or has migrated to it (IBA 17.2.8).
    pub(crate) mig_req: bool,
    pub(crate) ack_req: bool,
    /// An unsegmented message, which may be longer than the path MTU.
    pub(crate) unsegmented: bool,
    /// The payload is a descriptor of leased memory of the sender, which has the bytes.
    pub(crate) leased: bool,
    pub pkey: PKey,
    pub dest_qp: Qpn,
    pub(crate) psn: Psn,
    /// The number of PSNs that the frame takes.
    pub packets: u32,
    pub dlid: Lid,
    pub slid: Lid,
    pub sl: u8,
}

/// Flags and fields of the first word.
pub(crate) const SE: u64 = 1 << 8;
pub(crate) const ACK_REQ: u64 = 1 << 9;
pub(crate) const SL: u64 = 0xff << 56;
/// The mask of the destination's shared-port context, which is part of the destination QPN.
const CONTEXT: u64 = (CONTEXT_BITS as u64) << 32;
const UNSEGMENTED: u64 = 1 << 10;
pub const LEASED: u64 = 1 << 11;
const HAS_GRH: u64 = 1 << 12;
/// MigReq is 0. The flag is inverted because MigReq is 1 in most heads, which then have no flag
/// set.
pub(crate) const NO_MIG_REQ: u64 = 1 << 13;

/// The first word without the SL, and without the flags other than UNSEGMENTED.
pub(crate) fn first_word(opcode: Opcode, pkey: PKey, dest_qp: Qpn, unsegmented: bool) -> u64 {
    u64::from(opcode.0)
        | if unsegmented { UNSEGMENTED } else { 0 }
        | u64::from(pkey.0) << 16
        | u64::from(dest_qp.0) << 32
}

/// The fields of the first two words that decide forwarding: P_Key, SL, DLID and the context at the
/// destination, and in the low 16 bits the SLID. The SLID is included so that a direct ring, which
/// the fabric server assigns to one route, cannot carry another source address.
#[inline(always)]
pub const fn route_bits(first: u64, second: u64) -> u64 {
    first & (SL | CONTEXT | 0xffff << 16) | second & 0xffff << 32 | second >> 48
}

/// Whether a frame with this first word is for queue pair 0 or 1.
#[inline(always)]
pub const fn is_management(first: u64) -> bool {
    first >> 33 & 0x7f_ffff == 0
}

/// The fields that decide forwarding. All frames with the same values take the same path.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FrameRoute {
    pub slid: Lid,
    pub dlid: Lid,
    /// The shared-port context at the destination.
    pub context: u8,
    pub p_key: PKey,
    pub sl: u8,
}

/// The fields of [`route_bits`].
pub const fn route_of(bits: u64) -> FrameRoute {
    FrameRoute {
        slid: Lid(bits as u16),
        dlid: Lid((bits >> 32) as u16),
        context: context_of(Qpn((bits >> 32) as u32)),
        p_key: PKey((bits >> 16) as u16),
        sl: (bits >> 56) as u8 & 0xf,
    }
}

impl Head {
    pub(crate) fn of_packet(packet: &Packet<'_>) -> Self {
        let (lrh, bth) = (packet.lrh(), packet.bth());
        Self {
            opcode: bth.opcode,
            se: bth.se,
            mig_req: bth.mig_req,
            ack_req: bth.ack_req,
            unsegmented: false,
            leased: false,
            pkey: bth.pkey,
            dest_qp: bth.dest_qp,
            psn: bth.psn,
            packets: 1,
            dlid: lrh.dlid,
            slid: lrh.slid,
            sl: lrh.sl,
        }
    }

    /// The headers of the equivalent packet.
    pub(crate) fn headers(&self, grh: Option<Grh>, extended: Extended) -> Headers {
        let lrh = Lrh { sl: self.sl, dlid: self.dlid, slid: self.slid, ..Lrh::default() };
        let bth = Bth {
            opcode: self.opcode,
            se: self.se,
            mig_req: self.mig_req,
            pkey: self.pkey,
            dest_qp: self.dest_qp,
            ack_req: self.ack_req,
            psn: self.psn,
            ..Bth::default()
        };
        Headers { lrh, grh, bth, rd: None, extended }
    }

    /// The first two words, without fields that [`route_bits`] and [`is_management`] do not use.
    pub(crate) fn route_words(&self) -> [u64; 2] {
        let first = first_word(self.opcode, self.pkey, self.dest_qp, self.unsegmented);
        let second = u64::from(self.dlid.0) << 32 | u64::from(self.slid.0) << 48;
        [first | u64::from(self.sl) << 56, second]
    }

    #[inline(always)]
    pub(crate) fn write(
        &self,
        grh: Option<&Grh>,
        extended: &Extended,
        out: &mut [u64; WORDS_MAX],
    ) -> usize {
        let flag = |set: bool, bit: u64| if set { bit } else { 0 };
        out[0] = first_word(self.opcode, self.pkey, self.dest_qp, self.unsegmented)
            | flag(self.se, SE)
            | flag(!self.mig_req, NO_MIG_REQ)
            | flag(self.ack_req, ACK_REQ)
            | flag(self.leased, LEASED)
            | flag(grh.is_some(), HAS_GRH)
            | u64::from(self.sl) << 56;
        out[1] =
            u64::from(self.psn.get()) | u64::from(self.dlid.0) << 32 | u64::from(self.slid.0) << 48;
        out[2] = u64::from(self.packets);
        let extended_words = write_extended(extended, &mut out[3..]);
        let mut count = 3 + extended_words;
        if let Some(grh) = grh {
            for (word, bytes) in out[count..].iter_mut().zip(grh.emit().as_chunks::<8>().0) {
                *word = u64::from_be_bytes(*bytes);
            }
            count += GRH_WORDS;
        }
        count
    }

    #[inline(always)]
    pub(crate) fn of_words(first: u64, second: u64, third: u64) -> Self {
        Self {
            opcode: Opcode(first as u8),
            se: first & SE != 0,
            mig_req: first & NO_MIG_REQ == 0,
            ack_req: first & ACK_REQ != 0,
            unsegmented: first & UNSEGMENTED != 0,
            leased: first & LEASED != 0,
            pkey: PKey((first >> 16) as u16),
            dest_qp: Qpn((first >> 32) as u32 & 0xff_ffff),
            sl: (first >> 56) as u8 & 0xf,
            psn: Psn::new(second as u32 & 0xff_ffff),
            dlid: Lid((second >> 32) as u16),
            slid: Lid((second >> 48) as u16),
            packets: third as u32,
        }
    }

    /// Parses a head of `words` words. `None` if the opcode is unknown, if the number of words is
    /// wrong, or if a segmented frame has another number of PSNs than 1.
    #[inline(always)]
    pub(crate) fn read(
        words: usize,
        word: impl Fn(usize) -> u64,
    ) -> Option<(Self, Option<Grh>, Extended)> {
        let head = Self::of_words(word(0), word(1), word(2));
        let (extended, extended_words) = read_extended(head.opcode.extended()?, &word);
        let has_grh = word(0) & HAS_GRH != 0;
        let count = 3 + extended_words + if has_grh { GRH_WORDS } else { 0 };
        if words != count || !head.unsegmented && head.packets != 1 {
            return None;
        }
        let grh = has_grh.then(|| read_grh(3 + extended_words, &word));
        Some((head, grh, extended))
    }
}

fn read_grh(at: usize, word: &impl Fn(usize) -> u64) -> Grh {
    let mut bytes = [0; Grh::LEN];
    for (index, bytes) in bytes.as_chunks_mut::<8>().0.iter_mut().enumerate() {
        *bytes = word(at + index).to_be_bytes();
    }
    Grh::parse(&bytes)
}

#[inline(always)]
fn write_extended(extended: &Extended, out: &mut [u64]) -> usize {
    match *extended {
        Extended::None => 0,
        Extended::Imm(imm) => put(out, [imm.data.into()]),
        Extended::Ieth(ieth) => put(out, [ieth.rkey.into()]),
        Extended::Reth(reth) => put(out, reth_words(reth)),
        Extended::RethImm(reth, imm) => {
            let [va, rest] = reth_words(reth);
            put(out, [va, rest, imm.data.into()])
        }
        Extended::AtomicEth(atomic) => {
            put(out, [atomic.va, atomic.rkey.into(), atomic.swap_or_add, atomic.compare])
        }
        Extended::Aeth(aeth) => put(out, [aeth_word(aeth)]),
        Extended::AethAtomicAckEth(aeth, ack) => put(out, [aeth_word(aeth), ack.original]),
        Extended::Deth(deth) => put(out, [deth_word(deth)]),
        Extended::DethImm(deth, imm) => put(out, [deth_word(deth), imm.data.into()]),
    }
}

#[inline(always)]
fn put<const N: usize>(out: &mut [u64], words: [u64; N]) -> usize {
    out[..N].copy_from_slice(&words);
    N
}

#[inline(always)]
fn read_extended(kind: ExtendedKind, word: &impl Fn(usize) -> u64) -> (Extended, usize) {
    let imm = |at| ImmDt { data: word(at) as u32 };
    match kind {
        ExtendedKind::None => (Extended::None, 0),
        ExtendedKind::Imm => (Extended::Imm(imm(3)), 1),
        ExtendedKind::Ieth => (Extended::Ieth(Ieth { rkey: word(3) as u32 }), 1),
        ExtendedKind::Reth => (Extended::Reth(reth_of([word(3), word(4)])), 2),
        ExtendedKind::RethImm => (Extended::RethImm(reth_of([word(3), word(4)]), imm(5)), 3),
        ExtendedKind::AtomicEth => {
            let (va, rkey) = (word(3), word(4) as u32);
            let atomic = AtomicEth { va, rkey, swap_or_add: word(5), compare: word(6) };
            (Extended::AtomicEth(atomic), 4)
        }
        ExtendedKind::Aeth => (Extended::Aeth(aeth_of(word(3))), 1),
        ExtendedKind::AethAtomicAckEth => {
            let original = AtomicAckEth { original: word(4) };
            (Extended::AethAtomicAckEth(aeth_of(word(3)), original), 2)
        }
        ExtendedKind::Deth => (Extended::Deth(deth_of(word(3))), 1),
        ExtendedKind::DethImm => (Extended::DethImm(deth_of(word(3)), imm(4)), 2),
    }
}

#[inline(always)]
fn reth_words(reth: Reth) -> [u64; 2] {
    [reth.va, u64::from(reth.rkey) | u64::from(reth.dma_len) << 32]
}

#[inline(always)]
fn reth_of([va, rest]: [u64; 2]) -> Reth {
    Reth { va, rkey: rest as u32, dma_len: (rest >> 32) as u32 }
}

#[inline(always)]
pub(crate) fn aeth_word(aeth: Aeth) -> u64 {
    u32::from_be_bytes(aeth.emit()).into()
}

#[inline(always)]
pub(crate) fn aeth_of(word: u64) -> Aeth {
    Aeth::parse(&(word as u32).to_be_bytes())
}

#[inline(always)]
pub fn deth_word(deth: Deth) -> u64 {
    u64::from(deth.qkey.0) | u64::from(deth.src_qp.0) << 32
}

#[inline(always)]
pub(crate) fn deth_of(word: u64) -> Deth {
    Deth { qkey: QKey(word as u32), src_qp: Qpn((word >> 32) as u32 & 0xff_ffff) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use pollux_wire::packet::{Operation, Transport};

    #[test]
    fn a_route_has_all_that_something_is_sent_on_by_and_its_source() {
        let (opcode, p_key) = (Opcode::new(Transport::RC, Operation::SEND_ONLY), PKey(0x8123));
        let first = first_word(opcode, p_key, Qpn(5 << 19 | 0x41), true) | 7 << 56;
        let second = 0xabcdef | 9 << 24 | 0x1234 << 32 | 0x5678 << 48;
        let bits = route_bits(first, second);
        let (slid, dlid) = (Lid(0x5678), Lid(0x1234));
        assert_eq!(route_of(bits), FrameRoute { slid, dlid, context: 5, p_key, sl: 7 });
        let other = route_bits(first | SE | ACK_REQ, second ^ 0xffff_ffff);
        assert_eq!(bits, other, "the rest is none of it");
        for (word, bit) in [(0, 16), (0, 31), (0, 56), (0, 53), (1, 32), (1, 47), (1, 48), (1, 63)]
        {
            let mut words = [first, second];
            words[word] ^= 1 << bit;
            assert_ne!(route_bits(words[0], words[1]), bits, "bit {bit} of word {word}");
        }
    }
}
