//! Completion queue entries (CQEs), as the adapter writes them: 64 bytes, big-endian. An entry of
//! 128 bytes has them in its last 64.
//!
//! | at | bytes | content |
//! |---|---|---|
//! | 17 | 1 | low bits of the DLID |
//! | 22 | 2 | SLID |
//! | 24 | 4 | 29..28 GRH present, 27..24 SL, 23..0 QPN of the source |
//! | 36 | 4 | immediate data, or the R_Key that was invalidated |
//! | 44 | 4 | length of the message |
//! | 55 | 1 | syndrome of an error |
//! | 56 | 4 | 23..0 QPN |
//! | 60 | 2 | index of the WQE, or its slot in a shared receive queue |
//! | 63 | 1 | 7..4 opcode, 3..2 format, 0 owner |
//!
//! The owner bit is the low bit of the number of the adapter's pass through the ring, which is 0 in
//! the first pass.

use pollux_verbs::{Completion, CompletionKind, CompletionStatus, RKey, Source, With};
use pollux_wire::address::{Lid, Qpn};

/// The length of an entry of 64 bytes, and of the used half of an entry of 128 bytes.
pub(crate) const CQE_BYTES: usize = 64;
pub(crate) const OWNER: u8 = 1;

/// An entry, in the byte order of memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Cqe(pub(crate) [u64; CQE_BYTES / 8]);

/// Opcodes of entries.
pub(crate) mod opcode {
    pub(crate) const REQUESTER: u8 = 0;
    pub(crate) const RECV_WRITE_IMM: u8 = 1;
    pub(crate) const RECV: u8 = 2;
    pub(crate) const RECV_IMM: u8 = 3;
    pub(crate) const RECV_INVALIDATE: u8 = 4;
    pub(crate) const REQUESTER_ERROR: u8 = 13;
    pub(crate) const RESPONDER_ERROR: u8 = 14;
    /// The opcode of an entry that the adapter has not written yet.
    pub(crate) const INVALID: u8 = 15;
}

/// The kind of request that an entry completes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Completed {
    Send,
    Recv,
    FailedSend,
    FailedRecv,
    /// An entry of a form that this driver has not enabled: with another opcode, compressed, or
    /// with the data of the message in it.
    Foreign(u8),
}

impl Cqe {
    #[inline]
    fn word(&self, at: usize) -> u32 {
        let pair = u64::from_be(self.0[at / 8]);
        (if at.is_multiple_of(8) { pair >> 32 } else { pair }) as u32
    }

    #[inline]
    fn opcode_owner(&self) -> u8 {
        self.word(60) as u8
    }

    #[inline]
    pub(crate) fn completed(&self) -> Completed {
        const FORMAT: u8 = 0x0c;
        let byte = self.opcode_owner();
        if byte & FORMAT != 0 {
            return Completed::Foreign(byte);
        }
        match byte >> 4 {
            opcode::REQUESTER => Completed::Send,
            opcode::RECV_WRITE_IMM..=opcode::RECV_INVALIDATE => Completed::Recv,
            opcode::REQUESTER_ERROR => Completed::FailedSend,
            opcode::RESPONDER_ERROR => Completed::FailedRecv,
            _ => Completed::Foreign(byte),
        }
    }

    #[inline]
    pub(crate) fn qpn(&self) -> Qpn {
        Qpn(self.word(56) & 0xff_ffff)
    }

    /// The index of the WQE, or its slot in a shared receive queue.
    #[inline]
    pub(crate) fn index(&self) -> u16 {
        (self.word(60) >> 16) as u16
    }

    #[inline]
    pub(crate) fn bytes(&self) -> u32 {
        self.word(44)
    }

    /// The completion of a successful send request of this kind.
    #[inline]
    pub(crate) fn sent(&self, id: u64, kind: CompletionKind) -> Completion {
        let bytes = match kind {
            CompletionKind::Read | CompletionKind::CompareSwap | CompletionKind::FetchAdd => {
                self.bytes()
            }
            _ => 0,
        };
        let (qpn, status) = (self.qpn(), CompletionStatus::Success);
        Completion { id, status, kind, qpn, bytes, ..Completion::NOTHING }
    }

    /// The completion of a successful receive. With `datagram_pkey`, the P_Key index of a datagram
    /// queue pair, it includes the source.
    #[inline]
    pub(crate) fn received(&self, id: u64, datagram_pkey: Option<u16>) -> Completion {
        let (kind, with) = match self.opcode_owner() >> 4 {
            opcode::RECV_WRITE_IMM => (CompletionKind::RecvWriteImm, With::Imm(self.word(36))),
            opcode::RECV_IMM => (CompletionKind::Recv, With::Imm(self.word(36))),
            opcode::RECV_INVALIDATE => {
                (CompletionKind::Recv, With::Invalidated(RKey(self.word(36))))
            }
            _ => (CompletionKind::Recv, With::Nothing),
        };
        Completion {
            id,
            status: CompletionStatus::Success,
            kind,
            qpn: self.qpn(),
            bytes: self.bytes(),
            with,
            from: datagram_pkey.map(|pkey_index| self.source(pkey_index)),
        }
    }

    #[inline]
    fn source(&self, pkey_index: u16) -> Source {
        let grh_sl_qpn = self.word(24);
        Source {
            src_qp: Qpn(grh_sl_qpn & 0xff_ffff),
            slid: Lid(self.word(20) as u16),
            sl: (grh_sl_qpn >> 24) as u8 & 0xf,
            dlid_path_bits: (self.word(16) >> 16) as u8 & 0x7f,
            pkey_index,
            has_grh: grh_sl_qpn >> 28 & 3 != 0,
        }
    }

    /// The completion of a failed request.
    #[cold]
    pub(crate) fn failed(&self, id: u64) -> Completion {
        let status = status(self.word(52) as u8);
        Completion { id, status, qpn: self.qpn(), ..Completion::NOTHING }
    }
}

fn status(syndrome: u8) -> CompletionStatus {
    match syndrome {
        0x01 => CompletionStatus::LocalLength,
        0x02 => CompletionStatus::LocalQpOperation,
        0x04 => CompletionStatus::LocalProtection,
        0x05 => CompletionStatus::Flushed,
        0x06 => CompletionStatus::WindowBind,
        0x10 => CompletionStatus::BadResponse,
        0x11 => CompletionStatus::LocalAccess,
        0x12 => CompletionStatus::RemoteInvalidRequest,
        0x13 => CompletionStatus::RemoteAccess,
        0x14 => CompletionStatus::RemoteOperation,
        0x15 => CompletionStatus::RetryExceeded,
        0x16 => CompletionStatus::RnrRetryExceeded,
        0x22 => CompletionStatus::RemoteAborted,
        _ => CompletionStatus::General,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// An entry with these bytes, and 0 elsewhere.
    fn cqe(bytes: &[(usize, &[u8])]) -> Cqe {
        let mut all = [0; CQE_BYTES];
        for (at, part) in bytes {
            all[*at..*at + part.len()].copy_from_slice(part);
        }
        let words = all.chunks(8).map(|word| u64::from_ne_bytes(word.try_into().unwrap()));
        Cqe(words.collect::<Vec<_>>().try_into().unwrap())
    }

    #[test]
    fn a_send_has_its_queue_pair_and_its_wqe() {
        let cqe = cqe(&[(44, &[0, 0, 1, 0]), (56, &[0x0a, 0, 0x12, 0x45, 0x12, 0x34, 0, 0x01])]);
        assert_eq!(
            (cqe.completed(), cqe.qpn(), cqe.index()),
            (Completed::Send, Qpn(0x1245), 0x1234)
        );
        // The adapter writes no length for a send.
        assert_eq!(cqe.sent(7, CompletionKind::Send).bytes, 0);
        let read = cqe.sent(7, CompletionKind::Read);
        assert_eq!((read.id, read.kind, read.bytes), (7, CompletionKind::Read, 256));
    }

    #[test]
    fn a_datagram_has_its_source() {
        let cqe = cqe(&[
            (17, &[0x81]),
            (22, &[0x11, 0x22, 0x15, 0x0a, 0x0b, 0x0c]),
            (47, &[140]),
            (63, &[0x22]),
        ]);
        let from = Source {
            src_qp: Qpn(0x0a_0b0c),
            slid: Lid(0x1122),
            sl: 5,
            dlid_path_bits: 1,
            pkey_index: 2,
            has_grh: true,
        };
        let got = cqe.received(9, Some(2));
        assert_eq!((got.from, got.bytes, got.with), (Some(from), 140, With::Nothing));
        assert_eq!(cqe.received(9, None).from, None);
    }

    #[test]
    fn a_receive_has_its_data_by_the_opcode() {
        for (opcode, kind, with) in [
            (1, CompletionKind::RecvWriteImm, With::Imm(0x0102_0304)),
            (2, CompletionKind::Recv, With::Nothing),
            (3, CompletionKind::Recv, With::Imm(0x0102_0304)),
            (4, CompletionKind::Recv, With::Invalidated(RKey(0x0102_0304))),
        ] {
            let cqe = cqe(&[(36, &[1, 2, 3, 4]), (63, &[opcode << 4])]);
            assert_eq!(cqe.completed(), Completed::Recv);
            let got = cqe.received(1, None);
            assert_eq!((got.kind, got.with), (kind, with));
        }
    }

    #[test]
    fn an_error_has_its_status_and_its_side() {
        let failed = |opcode: u8| cqe(&[(55, &[0x13]), (63, &[opcode << 4 | 1])]);
        assert_eq!(failed(13).completed(), Completed::FailedSend);
        assert_eq!(failed(14).completed(), Completed::FailedRecv);
        let got = failed(13).failed(3);
        assert_eq!((got.id, got.status), (3, CompletionStatus::RemoteAccess));
        assert_eq!(status(0x99), CompletionStatus::General);
    }

    #[test]
    fn entries_that_nobody_asked_for_are_foreign() {
        for byte in [0x50, 0x60, 0xc0, 0xf0, 0x24, 0x28, 0x2c] {
            assert_eq!(cqe(&[(63, &[byte])]).completed(), Completed::Foreign(byte));
        }
    }
}
