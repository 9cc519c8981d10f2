//! The messages between programs that use libibumad and a simulated fabric: the protocol of the
//! preloaded library `libumad2sim`, as of ibsim 0.10.
//!
//! There are control messages and data messages, each kind with a fixed length. A control message
//! is answered by a control message. Why the code is hand-written and not a table of offsets:
//! control messages are in the host's byte order, and data messages in network byte order.

use pollux_wire::address::{Lid, Qpn};
use pollux_wire::mad::MAD_LEN;

pub const CONTROL_LEN: usize = 80;
pub const CONTROL_DATA_LEN: usize = 64;
pub const DATA_LEN: usize = 288;
pub const NODE_NAME_LEN: usize = 32;

const MAGIC: u32 = 0xdead_beef;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u32)]
pub enum ControlKind {
    /// Only as an answer: refused.
    Refused = 0,
    /// A program connects; the answer has its client number.
    Connect = 1,
    Disconnect = 2,
    /// LID and state of its port.
    Port = 3,
    /// Vendor and revision of its node.
    Vendor = 4,
    /// First GID of its port.
    Gid = 5,
    /// GUID of its port.
    Guid = 6,
    NodeInfo = 7,
    PortInfo = 8,
    SetIsSm = 9,
    PKeys = 10,
}

impl ControlKind {
    const ALL: [Self; 11] = [
        Self::Refused,
        Self::Connect,
        Self::Disconnect,
        Self::Port,
        Self::Vendor,
        Self::Gid,
        Self::Guid,
        Self::NodeInfo,
        Self::PortInfo,
        Self::SetIsSm,
        Self::PKeys,
    ];
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Control {
    /// The client; 0 when it connects.
    pub client: u32,
    pub kind: ControlKind,
    /// Bytes of `data` in use.
    pub len: u32,
    pub data: [u8; CONTROL_DATA_LEN],
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ConnectArguments {
    /// The process ID, which is part of the socket's name.
    pub process: u32,
    pub is_sm: bool,
    /// The name of the node, up to the first zero.
    pub node: [u8; NODE_NAME_LEN],
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DataMessage {
    pub dlid: Lid,
    /// 0 from a program; the server sets it.
    pub slid: Lid,
    pub dest_qp: Qpn,
    pub src_qp: Qpn,
    /// 0, or [`DataMessage::TIMED_OUT`] of a returned request.
    pub status: u32,
    /// The length that the sender gave. It is forwarded unchanged, because receivers compute the
    /// number of records from it.
    pub len: u64,
    pub mad: [u8; MAD_LEN],
}

impl Control {
    pub fn parse(bytes: &[u8]) -> Option<Self> {
        let bytes: &[u8; CONTROL_LEN] = bytes.try_into().ok()?;
        let word = |at| u32::from_ne_bytes(chunk(bytes, at));
        let kind = *ControlKind::ALL.get(word(8) as usize)?;
        let data = chunk(bytes, 16);
        (word(0) == MAGIC).then_some(Self { client: word(4), kind, len: word(12), data })
    }

    pub fn emit(&self) -> [u8; CONTROL_LEN] {
        let mut bytes = [0; CONTROL_LEN];
        let words = [MAGIC, self.client, self.kind as u32, self.len];
        for (at, word) in bytes.chunks_exact_mut(4).zip(words) {
            at.copy_from_slice(&word.to_ne_bytes());
        }
        bytes[16..].copy_from_slice(&self.data);
        bytes
    }

    /// The answer with this data, truncated to the space of a message.
    pub fn answer(&self, data: &[u8]) -> Self {
        let len = data.len().min(CONTROL_DATA_LEN);
        let mut all = [0; CONTROL_DATA_LEN];
        all[..len].copy_from_slice(&data[..len]);
        Self { len: len as u32, data: all, ..*self }
    }

    /// A refusal. Every message needs an answer, because programs wait without a timeout.
    pub fn refusal(client: u32) -> Self {
        Self { client, kind: ControlKind::Refused, len: 0, data: [0; CONTROL_DATA_LEN] }
    }
}

impl ConnectArguments {
    pub fn parse(data: &[u8; CONTROL_DATA_LEN]) -> Self {
        let word = |at| u32::from_ne_bytes(chunk(data, at));
        Self { process: word(0), is_sm: word(8) != 0, node: chunk(data, 12) }
    }

    pub fn emit(&self) -> [u8; 44] {
        let mut bytes = [0; 44];
        bytes[..4].copy_from_slice(&self.process.to_ne_bytes());
        bytes[8..12].copy_from_slice(&u32::from(self.is_sm).to_ne_bytes());
        bytes[12..].copy_from_slice(&self.node);
        bytes
    }

    /// The name of the node, up to the first byte that is not UTF-8.
    pub fn node_name(&self) -> &str {
        let name = self.node.split(|&byte| byte == 0).next().unwrap_or_default();
        name.utf8_chunks().next().map_or("", |chunk| chunk.valid())
    }
}

impl DataMessage {
    /// The status of a returned request without a response: `ETIMEDOUT`.
    pub const TIMED_OUT: u32 = 110;

    /// Parses a message; `None` if its length is wrong. Bytes behind the datagram's length are
    /// uninitialized memory of the sender, and become zeros.
    pub fn parse(bytes: &[u8]) -> Option<Self> {
        let bytes: &[u8; DATA_LEN] = bytes.try_into().ok()?;
        let word = |at| u32::from_be_bytes(chunk(bytes, at));
        let lid = |at| Lid(u16::from_be_bytes(chunk(bytes, at)));
        let mut message = Self {
            dlid: lid(0),
            slid: lid(4),
            dest_qp: Qpn(word(8)),
            src_qp: Qpn(word(12)),
            status: word(16),
            len: u64::from_be_bytes(chunk(bytes, 24)),
            mad: chunk(bytes, 32),
        };
        let len = usize::try_from(message.len).unwrap_or(MAD_LEN).min(MAD_LEN);
        message.mad[len..].fill(0);
        Some(message)
    }

    pub fn emit(&self) -> [u8; DATA_LEN] {
        let mut bytes = [0; DATA_LEN];
        bytes[..2].copy_from_slice(&self.dlid.0.to_be_bytes());
        bytes[4..6].copy_from_slice(&self.slid.0.to_be_bytes());
        bytes[8..12].copy_from_slice(&self.dest_qp.0.to_be_bytes());
        bytes[12..16].copy_from_slice(&self.src_qp.0.to_be_bytes());
        bytes[16..20].copy_from_slice(&self.status.to_be_bytes());
        bytes[24..32].copy_from_slice(&self.len.to_be_bytes());
        bytes[32..].copy_from_slice(&self.mad);
        bytes
    }
}

/// The bytes from `at` on. All callers use constant offsets within bounds.
fn chunk<const N: usize>(bytes: &[u8], at: usize) -> [u8; N] {
    let mut chunk = [0; N];
    chunk.copy_from_slice(&bytes[at..at + N]);
    chunk
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn a_program_connects() {
        let mut bytes = [0; CONTROL_LEN];
        bytes[..4].copy_from_slice(&0xdead_beef_u32.to_ne_bytes());
        bytes[8..12].copy_from_slice(&1u32.to_ne_bytes());
        bytes[12..16].copy_from_slice(&44u32.to_ne_bytes());
        bytes[16..20].copy_from_slice(&4711u32.to_ne_bytes());
        bytes[24..28].copy_from_slice(&1u32.to_ne_bytes());
        bytes[28..33].copy_from_slice(b"host1");
        let message = Control::parse(&bytes).unwrap();
        assert_eq!((message.kind, message.client, message.len), (ControlKind::Connect, 0, 44));
        let connect = ConnectArguments::parse(&message.data);
        assert_eq!((connect.process, connect.is_sm, connect.node_name()), (4711, true, "host1"));
        assert_eq!(message.emit(), bytes);
        assert_eq!(message.answer(&connect.emit()), message);
    }

    #[test]
    fn lids_are_in_the_first_half_of_their_words() {
        let mut bytes = [0; DATA_LEN];
        bytes[..2].copy_from_slice(&[0x12, 0x34]);
        bytes[4..6].copy_from_slice(&[0xff, 0xff]);
        bytes[11] = 1;
        bytes[15] = 2;
        bytes[19] = 110;
        bytes[31] = 64;
        bytes[32] = 1;
        bytes[95] = 9;
        let message = DataMessage::parse(&bytes).unwrap();
        assert_eq!((message.dlid, message.slid), (Lid(0x1234), Lid::PERMISSIVE));
        assert_eq!((message.dest_qp, message.src_qp), (Qpn(1), Qpn(2)));
        assert_eq!((message.status, message.len), (DataMessage::TIMED_OUT, 64));
        assert_eq!(message.emit(), bytes);
        bytes[96] = 7;
        assert_eq!(DataMessage::parse(&bytes), Some(message), "behind the length");
    }

    #[test]
    fn malformed_messages_are_refused() {
        assert_eq!(Control::parse(&[0; CONTROL_LEN]), None);
        assert_eq!(DataMessage::parse(&[0; DATA_LEN - 1]), None);
        let mut bytes = Control::refusal(3).emit();
        assert!(Control::parse(&bytes).is_some() && Control::parse(&bytes[1..]).is_none());
        bytes[8..12].copy_from_slice(&11u32.to_ne_bytes());
        assert_eq!(Control::parse(&bytes), None);
    }

    proptest! {
        #[test]
        fn messages_survive(
            bytes in prop::collection::vec(any::<u8>(), DATA_LEN),
            kind in 0u32..12, len in 0u64..300,
        ) {
            let mut bytes = bytes;
            bytes[24..32].copy_from_slice(&len.to_be_bytes());
            let message = DataMessage::parse(&bytes).unwrap();
            prop_assert_eq!(DataMessage::parse(&message.emit()), Some(message));
            bytes[..4].copy_from_slice(&MAGIC.to_ne_bytes());
            bytes[8..12].copy_from_slice(&kind.to_ne_bytes());
            let control = Control::parse(&bytes[..CONTROL_LEN]);
            prop_assert_eq!(control.is_some(), kind < 11);
            if let Some(control) = control {
                prop_assert_eq!(&control.emit()[..], &bytes[..CONTROL_LEN]);
                let _ = ConnectArguments::parse(&control.data).node_name();
            }
        }
    }
}
