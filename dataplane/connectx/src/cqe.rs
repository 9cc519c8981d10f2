//! Completion queue entries (CQEs), in the big-endian layout that libmlx5 reads.
//!
//! An entry is valid when its owner bit matches the parity of the program's pass through the ring.
//! The word with the owner bit is therefore written last.

use pollux_verbs::{Completion, CompletionKind, CompletionStatus, With};

pub(crate) const CQE_BYTES: usize = 64;

/// Opcodes of CQEs.
mod kind {
    pub(super) const REQUESTER: u8 = 0;
    pub(super) const RECV_WRITE_IMM: u8 = 1;
    pub(super) const RECV: u8 = 2;
    pub(super) const RECV_IMM: u8 = 3;
    pub(super) const RECV_INVALIDATE: u8 = 4;
    pub(super) const RESIZED: u8 = 5;
    pub(super) const REQUESTER_ERROR: u8 = 13;
    pub(super) const RESPONDER_ERROR: u8 = 14;
}

/// The work request that a completion is for. It is encoded in the `id` that the adapter returns.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum WorkId {
    Send {
        opcode: u8,
        index: u16,
    },
    /// The index of a receive WQE, or its slot in a shared receive queue.
    Recv {
        index: u16,
    },
}

impl WorkId {
    const RECV: u64 = 1 << 32;

    pub(crate) fn to_u64(self) -> u64 {
        match self {
            Self::Send { opcode, index } => u64::from(opcode) << 16 | u64::from(index),
            Self::Recv { index } => Self::RECV | u64::from(index),
        }
    }

    pub(crate) fn from_u64(id: u64) -> Self {
        match id & Self::RECV {
            0 => Self::Send { opcode: (id >> 16) as u8, index: id as u16 },
            _ => Self::Recv { index: id as u16 },
        }
    }
}

/// Encodes a completion, with owner bit 0. In CQE version 1, `srqn_uidx` is the program's index of
/// the queue pair. In version 0, it is the number of the shared receive queue, or 0.
pub(crate) fn encode(completion: &Completion, srqn_uidx: u32) -> [u8; CQE_BYTES] {
    let mut cqe = [0; CQE_BYTES];
    let id = WorkId::from_u64(completion.id);
    let (opcode, index) = match id {
        WorkId::Send { opcode, index } => (opcode, index),
        WorkId::Recv { index } => (0, index),
    };
    put32(&mut cqe, 32, srqn_uidx);
    put32(&mut cqe, 56, u32::from(opcode) << 24 | completion.qpn.0);
    cqe[60..62].copy_from_slice(&index.to_be_bytes());
    let kind = match (completion.status, id) {
        (CompletionStatus::Success, WorkId::Send { .. }) => {
            put32(&mut cqe, 44, completion.bytes);
            kind::REQUESTER
        }
        (CompletionStatus::Success, WorkId::Recv { .. }) => encode_recv(&mut cqe, completion),
        (status, id) => {
            let syndrome = syndrome(status);
            (cqe[54], cqe[55]) = (vendor_syndrome(syndrome), syndrome);
            match id {
                WorkId::Send { .. } => kind::REQUESTER_ERROR,
                WorkId::Recv { .. } => kind::RESPONDER_ERROR,
            }
        }
    };
    cqe[63] = kind << 4;
    cqe
}

/// The location of a message that is scattered to its CQE.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Format {
    /// In the first 32 bytes of the entry.
    MessageInside = 0x04,
    /// In the 64 bytes before the CQE, which are the first half of an entry of 128 bytes.
    MessageBefore = 0x08,
}

pub(crate) fn set_format(cqe: &mut [u8; CQE_BYTES], format: Format) {
    cqe[63] |= format as u8;
}

/// The resize CQE, the last entry of a ring that is replaced by another one. Its owner bit is 0.
pub(crate) fn resized() -> [u8; CQE_BYTES] {
    let mut cqe = [0; CQE_BYTES];
    cqe[63] = kind::RESIZED << 4;
    cqe
}

fn encode_recv(cqe: &mut [u8; CQE_BYTES], completion: &Completion) -> u8 {
    put32(cqe, 44, completion.bytes);
    if let Some(from) = completion.from {
        cqe[17] = from.dlid_path_bits & 0x7f;
        cqe[22..24].copy_from_slice(&from.slid.0.to_be_bytes());
        let grh = u32::from(from.has_grh) << 28;
        put32(cqe, 24, grh | u32::from(from.sl) << 24 | from.src_qp.0);
        put32(cqe, 36, from.pkey_index.into());
    }
    match (completion.kind, completion.with) {
        (CompletionKind::RecvWriteImm, with) => {
            if let With::Imm(imm) = with {
                put32(cqe, 36, imm);
            }
            kind::RECV_WRITE_IMM
        }
        (_, With::Imm(imm)) => {
            put32(cqe, 36, imm);
            kind::RECV_IMM
        }
        (_, With::Invalidated(key)) => {
            put32(cqe, 36, key.0);
            kind::RECV_INVALIDATE
        }
        (_, With::Nothing) => kind::RECV,
    }
}

fn syndrome(status: CompletionStatus) -> u8 {
    match status {
        CompletionStatus::LocalLength => 0x01,
        CompletionStatus::LocalQpOperation => 0x02,
        CompletionStatus::LocalProtection => 0x04,
        CompletionStatus::Flushed => FLUSHED,
        CompletionStatus::WindowBind => 0x06,
        CompletionStatus::BadResponse => 0x10,
        CompletionStatus::LocalAccess => 0x11,
        CompletionStatus::RemoteInvalidRequest => 0x12,
        CompletionStatus::RemoteAccess => 0x13,
        CompletionStatus::RemoteOperation => 0x14,
        CompletionStatus::RetryExceeded => 0x15,
        CompletionStatus::RnrRetryExceeded => 0x16,
        CompletionStatus::RemoteAborted => 0x22,
        _ => 0xff,
    }
}

const FLUSHED: u8 = 0x05;

/// The vendor syndrome, which programs print but do not interpret: for flushed requests, the value
/// of real cards; otherwise, the syndrome again.
fn vendor_syndrome(syndrome: u8) -> u8 {
    if syndrome == FLUSHED { 0xf9 } else { syndrome }
}

fn put32(bytes: &mut [u8], at: usize, value: u32) {
    bytes[at..at + 4].copy_from_slice(&value.to_be_bytes());
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::wqe::opcode;
    use pollux_verbs::Source;
    use pollux_wire::address::{Lid, Qpn};

    const SRQN_UIDX: u32 = 0x77;

    #[test]
    fn a_send_completes_with_its_opcode_and_index() {
        let id = WorkId::Send { opcode: opcode::SEND, index: 0x1234 }.to_u64();
        let (status, qpn) = (CompletionStatus::Success, Qpn(0x45));
        let cqe = encode(&Completion { id, status, qpn, ..Completion::NOTHING }, SRQN_UIDX);
        assert_eq!((&cqe[56..64], cqe[35]), (&[0x0a, 0, 0, 0x45, 0x12, 0x34, 0, 0][..], 0x77));
    }

    #[test]
    fn a_datagram_has_its_source_at_the_bytes_of_the_format() {
        let id = WorkId::Recv { index: 3 }.to_u64();
        let from = Source {
            src_qp: Qpn(0x0a_0b0c),
            slid: Lid(0x1122),
            sl: 5,
            dlid_path_bits: 1,
            pkey_index: 2,
            has_grh: true,
        };
        let completion = Completion {
            id,
            status: CompletionStatus::Success,
            kind: CompletionKind::Recv,
            bytes: 140,
            from: Some(from),
            ..Completion::NOTHING
        };
        let cqe = encode(&completion, SRQN_UIDX);
        assert_eq!((cqe[17], &cqe[22..28]), (1, &[0x11, 0x22, 0x15, 0x0a, 0x0b, 0x0c][..]));
        assert_eq!((cqe[39], cqe[47], &cqe[60..62]), (2, 140, &[0, 3][..]));
        assert_eq!(cqe[63], kind::RECV << 4);
    }

    #[test]
    fn a_message_is_found_by_the_format_beside_the_opcode() {
        for (format, bits) in [(Format::MessageInside, 0x24), (Format::MessageBefore, 0x28)] {
            let id = WorkId::Recv { index: 3 }.to_u64();
            let (status, kind) = (CompletionStatus::Success, CompletionKind::Recv);
            let completion = Completion { id, status, kind, ..Completion::NOTHING };
            let mut cqe = encode(&completion, SRQN_UIDX);
            set_format(&mut cqe, format);
            assert_eq!(cqe[63], bits);
        }
    }

    #[test]
    fn the_last_entry_of_a_ring_has_no_other_content() {
        assert_eq!((resized()[63], resized()[..63].iter().max()), (0x50, Some(&0)));
    }

    #[test]
    fn an_error_has_its_syndrome() {
        let id = WorkId::Send { opcode: opcode::READ, index: 1 }.to_u64();
        let status = CompletionStatus::RemoteAccess;
        let cqe = encode(&Completion { id, status, ..Completion::NOTHING }, SRQN_UIDX);
        assert_eq!((cqe[55], cqe[63] >> 4), (0x13, kind::REQUESTER_ERROR));
    }
}
