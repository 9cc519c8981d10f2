//! Work queue entries (WQEs) in the layout that libmlx5 writes.
//!
//! A send WQE consists of a control segment of 16 bytes, and up to 62 further units of 16 bytes,
//! whose layout depends on the operation. The send queue is a ring of basic blocks of 64 bytes. A
//! WQE starts at a block, and may wrap around the end of the ring. A receive WQE consists of data
//! segments; in a shared receive queue, a next-slot segment precedes them.
//!
//! All fields are big-endian. The adapter trusts no field: a WQE that does not match its queue
//! pair, or contradicts itself, is a [`WqeFault`], which is reported and fails the queue pair.

use pollux_verbs::work::Bind;
use pollux_verbs::{Access, AddressVector, GlobalRoute, LKey, RKey, Remote, SendFlags, Sge};
use pollux_wire::address::{Gid, Lid, Qpn};
use pollux_wire::keys::QKey;
use std::fmt;

/// The length of a basic block.
pub(crate) const BLOCK: usize = 64;
/// The length of a unit. The control segment gives the length of a WQE in units, in six bits.
pub(crate) const UNIT: usize = 16;
/// Data segments of a WQE, at most.
pub(crate) const SGES_MAX: usize = 32;
/// The L_Key that marks the end of a list of receive segments.
const TERMINATOR: u32 = 0x100;

/// Opcodes of send WQEs.
pub(crate) mod opcode {
    pub(crate) const NOP: u8 = 0x00;
    pub(crate) const SEND_INVAL: u8 = 0x01;
    pub(crate) const WRITE: u8 = 0x08;
    pub(crate) const WRITE_IMM: u8 = 0x09;
    pub(crate) const SEND: u8 = 0x0a;
    pub(crate) const SEND_IMM: u8 = 0x0b;
    pub(crate) const READ: u8 = 0x10;
    pub(crate) const CMP_SWAP: u8 = 0x11;
    pub(crate) const FETCH_ADD: u8 = 0x12;
    pub(crate) const UMR: u8 = 0x25;
}

/// The control segment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Control {
    pub(crate) opcode: u8,
    pub(crate) index: u16,
    pub(crate) qpn: Qpn,
    /// The length of the WQE, in units.
    pub(crate) units: usize,
    flags: u8,
    /// Immediate data, or the key that the operation invalidates or changes.
    imm: u32,
}

const FENCE: u8 = 0x80;
const CQE_ALWAYS: u8 = 0x08;
const SOLICITED: u8 = 0x02;

impl Control {
    pub(crate) fn parse(bytes: &[u8; UNIT]) -> Self {
        let (first, second) = (be32(bytes, 0), be32(bytes, 4));
        Self {
            opcode: first as u8,
            index: (first >> 8) as u16,
            qpn: Qpn(second >> 8),
            units: (second & 0x3f) as usize,
            flags: bytes[11],
            imm: be32(bytes, 12),
        }
    }

    pub(crate) fn bytes(&self) -> usize {
        self.units * UNIT
    }

    pub(crate) fn blocks(&self) -> u16 {
        self.bytes().div_ceil(BLOCK) as u16
    }

    pub(crate) fn send_flags(&self) -> SendFlags {
        let flag = |bit, flag| if self.flags & bit != 0 { flag } else { SendFlags::NONE };
        flag(CQE_ALWAYS, SendFlags::SIGNALED)
            | flag(SOLICITED, SendFlags::SOLICITED)
            | flag(FENCE, SendFlags::FENCE)
    }
}

/// The operation of a send WQE.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Operation {
    Nop,
    Send,
    SendImm(u32),
    SendInvalidate(RKey),
    Datagram(Datagram, Option<u32>),
    Write(Remote),
    WriteImm(Remote, u32),
    Read(Remote),
    CompareSwap { remote: Remote, compare: u64, swap: u64 },
    FetchAdd { remote: Remote, add: u64 },
    Bind(Bind),
    LocalInvalidate(RKey),
}

/// The address segment of a datagram.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Datagram {
    pub(crate) path: AddressVector,
    pub(crate) qpn: Qpn,
    pub(crate) qkey: QKey,
}

/// A data segment of a send WQE.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Segment {
    /// Inline data at an offset of the WQE.
    Inline {
        at: usize,
        bytes: usize,
    },
    Entry(Sge),
}

/// Why a WQE is invalid.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum WqeFault {
    Index {
        expected: u16,
        found: u16,
    },
    Qpn {
        expected: Qpn,
        found: Qpn,
    },
    Size {
        units: usize,
        needed: usize,
    },
    BeyondRecord {
        blocks: u16,
        rung: u16,
    },
    Opcode(u8),
    Segments,
    /// The WQE is longer than the send ring, or the queue pair has no send ring.
    TooLong,
}

impl fmt::Display for WqeFault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Index { expected, found } => {
                write!(f, "its index is {found}, the next one is {expected}")
            }
            Self::Qpn { expected, found } => {
                write!(f, "it names queue pair {:#x}, this is {:#x}", found.0, expected.0)
            }
            Self::Size { units, needed } => {
                write!(f, "it has {units} units of 16 bytes where {needed} belong")
            }
            Self::BeyondRecord { blocks, rung } => {
                write!(f, "it has {blocks} blocks, the doorbell record allows {rung}")
            }
            Self::Opcode(opcode) => write!(f, "this adapter has no opcode {opcode:#04x}"),
            Self::Segments => f.write_str("its segments are invalid"),
            Self::TooLong => f.write_str("it is longer than the queue"),
        }
    }
}

pub(crate) fn be16(bytes: &[u8], at: usize) -> u16 {
    u16::from_be_bytes([bytes[at], bytes[at + 1]])
}

pub(crate) fn be32(bytes: &[u8], at: usize) -> u32 {
    u32::from(be16(bytes, at)) << 16 | u32::from(be16(bytes, at + 2))
}

pub(crate) fn be64(bytes: &[u8], at: usize) -> u64 {
    u64::from(be32(bytes, at)) << 32 | u64::from(be32(bytes, at + 4))
}

/// Parses the units after the control segment. Returns the operation, and stores the data segments
/// in `segments`. `bytes` is the whole WQE, and `is_datagram` tells whether the queue pair is UD.
pub(crate) fn parse(
    control: &Control,
    bytes: &[u8],
    is_datagram: bool,
    port: u8,
    segments: &mut Vec<Segment>,
) -> Result<Operation, WqeFault> {
    segments.clear();
    let need = |units: usize| {
        let short = WqeFault::Size { units: control.units, needed: units };
        if control.units >= units { Ok(units * UNIT) } else { Err(short) }
    };
    let remote = || Remote { address: be64(bytes, 16), rkey: RKey(be32(bytes, 24)) };
    let (operation, data_at) = match control.opcode {
        opcode::NOP => return Ok(Operation::Nop),
        opcode::SEND | opcode::SEND_IMM if is_datagram => {
            let at = need(4)?;
            let imm = (control.opcode == opcode::SEND_IMM).then_some(control.imm);
            (Operation::Datagram(Datagram::parse(&bytes[UNIT..at], port), imm), at)
        }
        opcode::SEND => (Operation::Send, need(1)?),
        opcode::SEND_IMM => (Operation::SendImm(control.imm), need(1)?),
        opcode::SEND_INVAL => (Operation::SendInvalidate(RKey(control.imm)), need(1)?),
        opcode::WRITE => {
            let at = need(2)?;
            (Operation::Write(remote()), at)
        }
        opcode::WRITE_IMM => {
            let at = need(2)?;
            (Operation::WriteImm(remote(), control.imm), at)
        }
        opcode::READ => {
            let at = need(2)?;
            (Operation::Read(remote()), at)
        }
        opcode::CMP_SWAP => {
            let at = need(3)?;
            let (swap, compare) = (be64(bytes, 32), be64(bytes, 40));
            (Operation::CompareSwap { remote: remote(), compare, swap }, at)
        }
        opcode::FETCH_ADD => {
            let at = need(3)?;
            (Operation::FetchAdd { remote: remote(), add: be64(bytes, 32) }, at)
        }
        opcode::UMR => return parse_umr(control, bytes, need),
        other => return Err(WqeFault::Opcode(other)),
    };
    parse_data(bytes, data_at, segments)?;
    Ok(operation)
}

impl Datagram {
    fn parse(av: &[u8], port: u8) -> Self {
        let rate_sl = av[12];
        let grh = be32(av, 28);
        let mut dgid = [0; 16];
        dgid.copy_from_slice(&av[32..48]);
        let route = GlobalRoute {
            dgid: Gid(dgid),
            sgid_index: (grh >> 20) as u8,
            flow_label: grh & 0xf_ffff,
            hop_limit: av[27],
            traffic_class: av[26],
        };
        Self {
            path: AddressVector {
                dlid: Lid(be16(av, 14)),
                sl: rate_sl & 0xf,
                src_path_bits: av[13] & 0x7f,
                static_rate: rate_sl >> 4,
                port,
                grh: (grh & 1 << 30 != 0).then_some(route),
            },
            qpn: Qpn(be32(av, 8) & 0xff_ffff),
            qkey: QKey(be32(av, 0)),
        }
    }
}

/// Parses a UMR WQE, which changes an mkey: it binds or invalidates a memory window.
fn parse_umr(
    control: &Control,
    bytes: &[u8],
    need: impl Fn(usize) -> Result<usize, WqeFault>,
) -> Result<Operation, WqeFault> {
    const FREE: u8 = 0x40;
    need(8)?;
    let (umr, context) = (&bytes[16..64], &bytes[64..128]);
    let key = RKey(control.imm);
    if context[0] & FREE != 0 {
        return Ok(Operation::LocalInvalidate(key));
    }
    let entries = be16(umr, 4);
    let mut access = Access::NONE;
    for (bit, right) in [
        (0x08, Access::LOCAL_WRITE),
        (0x10, Access::REMOTE_READ),
        (0x20, Access::REMOTE_WRITE),
        (0x40, Access::REMOTE_ATOMIC),
    ] {
        access = if context[2] & bit != 0 { access | right } else { access };
    }
    let region = if entries == 0 { 0 } else { be32(&bytes[need(9)? - UNIT..], 4) };
    let bind = Bind {
        window: key,
        rkey: RKey(key.0 & !0xff | u32::from(context[7])),
        region: LKey(region),
        address: be64(context, 16),
        bytes: be64(context, 24),
        access,
    };
    Ok(Operation::Bind(bind))
}

/// Parses data segments. Inline data and entries may be mixed: UCX sends its header inline before
/// an entry for the user's memory.
fn parse_data(bytes: &[u8], mut at: usize, segments: &mut Vec<Segment>) -> Result<(), WqeFault> {
    const INLINE: u32 = 0x8000_0000;
    while at < bytes.len() {
        let header = be32(bytes, at);
        let (segment, length, is_empty) = if header & INLINE != 0 {
            let (at, bytes) = (at + 4, (header & 0x3ff) as usize);
            (Segment::Inline { at, bytes }, (4 + bytes).next_multiple_of(UNIT), bytes == 0)
        } else {
            let entry = parse_segment(&bytes[at..at + UNIT]);
            (Segment::Entry(entry), UNIT, entry.bytes == 0)
        };
        at += length;
        if at > bytes.len() {
            return Err(WqeFault::Segments);
        }
        if is_empty {
            continue;
        }
        if segments.len() == SGES_MAX {
            return Err(WqeFault::Segments);
        }
        segments.push(segment);
    }
    Ok(())
}

fn parse_segment(bytes: &[u8]) -> Sge {
    Sge { bytes: be32(bytes, 0), lkey: LKey(be32(bytes, 4)), address: be64(bytes, 8) }
}

/// The data segments of a receive WQE up to the terminator, without empty ones. `bytes` begin at
/// the first one.
pub(crate) fn recv_segments(bytes: &[u8]) -> impl Iterator<Item = Sge> {
    let segments = bytes.chunks_exact(UNIT).map(parse_segment);
    let used = segments.take_while(|sge| sge.bytes > 0 || sge.lkey.0 != TERMINATOR);
    used.filter(|sge| sge.bytes > 0)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The big-endian bytes of words.
    fn bytes(words: &[u32]) -> Vec<u8> {
        words.iter().flat_map(|word| word.to_be_bytes()).collect()
    }

    fn parsed(words: &[u32], is_datagram: bool) -> (Control, Operation, Vec<Sge>) {
        let bytes = bytes(words);
        let control = Control::parse(bytes[..16].try_into().unwrap());
        assert_eq!(control.bytes(), bytes.len());
        let mut segments = Vec::new();
        let operation = parse(&control, &bytes, is_datagram, 1, &mut segments).unwrap();
        let entry = |segment: &Segment| match segment {
            Segment::Entry(sge) => *sge,
            inline => panic!("{inline:?}"),
        };
        (control, operation, segments.iter().map(entry).collect())
    }

    /// The words were captured from libmlx5 44.
    #[test]
    fn a_send_of_libmlx5_has_its_data_segment() {
        let (control, operation, data) = parsed(
            &[0x0000_010a, 0x0000_6702, 0x0000_0008, 0, 8, 0x2117, 0x7f9d, 0x20b9_d000],
            false,
        );
        assert_eq!((control.index, control.qpn, control.blocks()), (1, Qpn(0x67), 1));
        assert_eq!(control.send_flags(), SendFlags::SIGNALED);
        assert_eq!(operation, Operation::Send);
        let sge = Sge { address: 0x7f9d_20b9_d000, bytes: 8, lkey: LKey(0x2117) };
        assert_eq!(data, [sge]);
    }

    #[test]
    fn atomics_of_libmlx5_have_both_operands() {
        let words = [
            0x11,
            0x4404,
            8,
            0,
            0x7fb1,
            0x089a_8008,
            0x1017,
            0,
            0,
            9,
            0,
            7,
            8,
            0x1117,
            0x7fb1,
            0x089a_7008,
        ];
        let (_, operation, data) = parsed(&words, false);
        let remote = Remote { address: 0x7fb1_089a_8008, rkey: RKey(0x1017) };
        assert_eq!(operation, Operation::CompareSwap { remote, compare: 7, swap: 9 });
        assert_eq!((data.len(), data[0].bytes), (1, 8));
    }

    #[test]
    fn a_datagram_of_libmlx5_has_its_address() {
        let words = [
            0x0a,
            0x4405,
            8,
            0,
            0x1234_5678,
            0,
            0x8000_0045,
            1,
            0,
            0,
            0,
            0,
            0,
            0,
            0,
            0,
            0x64,
            0x1017,
            0x7efd,
            0xe900_1000,
        ];
        let (_, operation, data) = parsed(&words, true);
        let Operation::Datagram(datagram, None) = operation else { panic!("{operation:?}") };
        assert_eq!((datagram.qpn, datagram.qkey), (Qpn(0x45), QKey(0x1234_5678)));
        assert_eq!((datagram.path.dlid, datagram.path.grh), (Lid(1), None));
        assert_eq!((data.len(), data[0].bytes), (1, 100));
    }

    #[test]
    fn a_bind_of_libmlx5_has_region_and_new_key() {
        let mut words = vec![0x25, 0x450c, 8, 0x1100, 0xb000_0000, 0x0004_0000, 0, 0x203c_6041];
        words.extend([0; 8]);
        words.extend([0x7000, 0x4501, 0, 0, 0x7f06, 0xf7fc_8000, 0, 1000, 0, 0, 0, 0, 0, 0, 0, 0]);
        words.extend([1000, 0x1017, 0x7f06, 0xf7fc_8000, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0]);
        let (control, operation, _) = parsed(&words, false);
        assert_eq!(control.blocks(), 3);
        let access = Access::REMOTE_READ | Access::REMOTE_WRITE | Access::REMOTE_ATOMIC;
        let (address, bytes) = (0x7f06_f7fc_8000, 1000);
        let (window, rkey, region) = (RKey(0x1100), RKey(0x1101), LKey(0x1017));
        let bind = Bind { window, rkey, region, address, bytes, access };
        assert_eq!(operation, Operation::Bind(bind));
    }

    #[test]
    fn a_wqe_that_is_too_short_for_its_operation_is_a_fault() {
        let bytes = bytes(&[0x10, 0x4401, 8, 0]);
        let control = Control::parse(bytes[..16].try_into().unwrap());
        let fault = WqeFault::Size { units: 1, needed: 2 };
        assert_eq!(parse(&control, &bytes, false, 1, &mut Vec::new()), Err(fault));
    }

    #[test]
    fn inline_data_longer_than_the_wqe_is_a_fault() {
        let bytes = bytes(&[0x0a, 0x4402, 8, 0, 0x8000_000d, 0, 0, 0]);
        let control = Control::parse(bytes[..16].try_into().unwrap());
        assert_eq!(parse(&control, &bytes, false, 1, &mut Vec::new()), Err(WqeFault::Segments));
    }

    #[test]
    fn inline_data_and_entries_are_taken_in_their_order() {
        let entry = |address: u32| [8, 0x17, 0, address];
        let inline = [0x8000_0011, 0, 0, 0, 0, 0, 0, 0];
        let head = [0x0a, 0x4406, 8, 0];
        let bytes = bytes(&[&head[..], &entry(0x1000), &inline, &[0; 4], &entry(0x2000)].concat());
        let control = Control::parse(bytes[..16].try_into().unwrap());
        let mut segments = Vec::new();
        assert_eq!(parse(&control, &bytes, false, 1, &mut segments), Ok(Operation::Send));
        let entry = |address| Segment::Entry(Sge { address, bytes: 8, lkey: LKey(0x17) });
        let inline = Segment::Inline { at: 36, bytes: 17 };
        assert_eq!(segments, [entry(0x1000), inline, entry(0x2000)]);
    }

    #[test]
    fn receive_segments_end_at_the_terminator() {
        let words = bytes(&[64, 0x17, 0, 0x1000, 0, 0x100, 0, 0, 64, 0x17, 0, 0x2000]);
        let sge = Sge { address: 0x1000, bytes: 64, lkey: LKey(0x17) };
        assert!(recv_segments(&words).eq([sge]));
    }
}
