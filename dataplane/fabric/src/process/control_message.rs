//! Control messages between a client and the server, over the socket, each with up to one
//! descriptor.
//!
//! ```text
//! word 0   version 32 | kind 32
//!      1   first number, or two (port 8 | context or is_sm; ring 48 | slot 16)
//!      2   second number, or two (segment 32 | is_mapped 32)
//!      3 ...  a name or a reason, UTF-8
//! ```
//!
//! Words are in native byte order: both ends are on one machine. The parser takes any bytes, and
//! returns `None` for those that are no message.

/// The version of the protocol; both ends must have the same.
pub const VERSION: u32 = 5;
pub const BYTES_MAX: usize = HEAD + TEXT_MAX;
/// Bytes of a name or a reason, at most.
pub const TEXT_MAX: usize = 512;
const HEAD: usize = 24;
/// The bits of a word for the ring number, if it shares the word with a slot.
const RING: u64 = (1 << 48) - 1;

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Attach {
    /// The node's name or GUID.
    pub node: String,
    /// The port; `None` for the first one with a cable.
    pub port: Option<u8>,
    pub context: u8,
    /// The common secret of the clients that share a port.
    pub secret: u64,
}

/// Attaches management agents to a port. Their later messages have
/// [another format](super::agent_message).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AttachAgents {
    pub node: String,
    pub port: Option<u8>,
    pub secret: u64,
    /// Whether the port gets IsSM in its capability mask.
    pub is_sm: bool,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ControlMessage {
    /// Client: attaches an adapter to a port.
    Attach(Attach),
    /// Client: attaches management agents to a port.
    AttachAgents(AttachAgents),
    /// The sender of a direct ring to its receiver, with a descriptor: the receiver may map this
    /// segment. Number 0 is the sender's table of leases.
    Expose {
        ring: u64,
        /// The sender's number of the segment.
        segment: u32,
    },
    /// The sender of a direct ring to its receiver: the segment has no leases any more.
    Withdraw { ring: u64, segment: u32 },
    /// Answers [`Self::Expose`] and [`Self::Withdraw`]: whether the receiver of the direct ring has
    /// mapped the segment now. If the descriptor was lost, the server answers in its place. Before
    /// the answer, the sender sends no other Expose or Withdraw for this ring.
    Mapped { ring: u64, segment: u32, is_mapped: bool },
    /// Wakes the other end, which polls: the ring to it has an entry, or one of its direct rings
    /// was closed.
    Wake,
    /// Server, with the client's end of a direct ring's wake socket. It precedes [`Self::Sends`] or
    /// [`Self::Receives`] of that ring.
    WakeSocket { ring: u64 },
    /// Server: the client is attached. An adapter gets the descriptor of the shared port page.
    Attached { client: u32 },
    /// Server: the client is refused.
    Refused { reason: String },
    /// Server, with the descriptor of a direct ring: the client may send on it.
    Sends {
        ring: u64,
        /// The route of its messages, as [`route_bits`](pollux_hca::head::route_bits).
        route: u64,
        /// The slot of its state in the shared port page.
        slot: u16,
    },
    /// Server, with the descriptor of a direct ring: the client will receive from it.
    Receives { ring: u64, route: u64 },
}

impl ControlMessage {
    pub fn emit(&self) -> Vec<u8> {
        let (kind, first, second, text) = match self {
            Self::Attach(Attach { node, port, context, secret }) => {
                let port = port.unwrap_or(0);
                (1, u64::from(port) | u64::from(*context) << 8, *secret, node.as_str())
            }
            Self::Expose { ring, segment } => (2, *ring, u64::from(*segment), ""),
            Self::Withdraw { ring, segment } => (3, *ring, u64::from(*segment), ""),
            Self::Mapped { ring, segment, is_mapped } => {
                (4, *ring, u64::from(*segment) | u64::from(*is_mapped) << 32, "")
            }
            Self::Attached { client } => (5, u64::from(*client), 0, ""),
            Self::Refused { reason } => (6, 0, 0, reason.as_str()),
            Self::Sends { ring, route, slot } => {
                // Ring numbers grow from 1, so 48 bits are enough; a slot has 16 bits.
                (7, *ring & RING | u64::from(*slot) << RING.count_ones(), *route, "")
            }
            Self::Receives { ring, route } => (8, *ring, *route, ""),
            Self::Wake => (9, 0, 0, ""),
            Self::WakeSocket { ring } => (10, *ring, 0, ""),
            Self::AttachAgents(AttachAgents { node, port, secret, is_sm }) => {
                let port = port.unwrap_or(0);
                (11, u64::from(port) | u64::from(*is_sm) << 8, *secret, node.as_str())
            }
        };
        let head = [u64::from(VERSION) | kind << 32, first, second];
        let mut bytes: Vec<u8> = head.iter().flat_map(|word| word.to_ne_bytes()).collect();
        bytes.extend_from_slice(&text.as_bytes()[..text.floor_char_boundary(TEXT_MAX)]);
        bytes
    }

    pub fn parse(bytes: &[u8]) -> Option<Self> {
        let (head, text) = bytes.split_at_checked(HEAD)?;
        let (words, _) = head.as_chunks::<8>();
        let [zeroth, first, second] = [0, 1, 2].map(|at: usize| u64::from_ne_bytes(words[at]));
        if zeroth as u32 != VERSION || text.len() > TEXT_MAX {
            return None;
        }
        let text = || str::from_utf8(text).ok().map(str::to_owned);
        Some(match zeroth >> 32 {
            1 => {
                let [port, context] = u16::try_from(first).ok()?.to_le_bytes();
                let port = Some(port).filter(|port| *port > 0);
                Self::Attach(Attach { node: text()?, port, context, secret: second })
            }
            2 => Self::Expose { ring: first, segment: second as u32 },
            3 => Self::Withdraw { ring: first, segment: second as u32 },
            4 => {
                let (segment, is_mapped) = (second as u32, second >> 32 & 1 != 0);
                Self::Mapped { ring: first, segment, is_mapped }
            }
            5 => Self::Attached { client: first as u32 },
            6 => Self::Refused { reason: text()? },
            7 => {
                let slot = (first >> RING.count_ones()) as u16;
                Self::Sends { ring: first & RING, route: second, slot }
            }
            8 => Self::Receives { ring: first, route: second },
            9 => Self::Wake,
            10 => Self::WakeSocket { ring: first },
            11 => {
                let [port, is_sm] = u16::try_from(first).ok()?.to_le_bytes();
                let port = Some(port).filter(|port| *port > 0);
                let (secret, is_sm) = (second, is_sm != 0);
                Self::AttachAgents(AttachAgents { node: text()?, port, secret, is_sm })
            }
            _ => return None,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn messages_are_read_as_they_were_written() {
        let (client, segment, ring, route) = (7, 9, 1 << 40, 0x0500_0003_ffff_1234);
        for message in [
            ControlMessage::Attach(Attach {
                node: "H-1".into(),
                port: Some(2),
                context: 3,
                secret: u64::MAX,
            }),
            ControlMessage::AttachAgents(AttachAgents {
                node: "H-1".into(),
                port: Some(1),
                secret: u64::MAX,
                is_sm: true,
            }),
            ControlMessage::Attach(Attach {
                node: "0x2c9".into(),
                port: None,
                context: 0,
                secret: 0,
            }),
            ControlMessage::Expose { ring, segment },
            ControlMessage::Withdraw { ring, segment },
            ControlMessage::Mapped { ring, segment, is_mapped: true },
            ControlMessage::Mapped { ring, segment, is_mapped: false },
            ControlMessage::Attached { client },
            ControlMessage::Refused { reason: "no such node".into() },
            ControlMessage::Sends { ring, route, slot: 63 },
            ControlMessage::Receives { ring, route },
            ControlMessage::Wake,
            ControlMessage::WakeSocket { ring },
        ] {
            assert_eq!(ControlMessage::parse(&message.emit()), Some(message));
        }
    }

    proptest! {
        #[test]
        fn any_bytes_are_a_message_or_none(kind in 0u32..13, rest: Vec<u8>) {
            let mut bytes = [VERSION.to_ne_bytes(), kind.to_ne_bytes()].concat();
            bytes.extend(rest);
            if let Some(message) = ControlMessage::parse(&bytes) {
                prop_assert_eq!(ControlMessage::parse(&message.emit()), Some(message));
            }
        }
    }
}
