//! What a client and its server say by the socket, a message each; descriptors travel beside.
//!
//! ```text
//! word 0   version 32 | kind 32
//!      1   first number
//!      2   second number, or two of 32 bits
//!      3 ...  a name or a reason, UTF-8
//! ```
//!
//! Words are in the machine's order: both ends are on one machine. Reading is total.

/// Both ends have to be of the same.
pub const VERSION: u32 = 4;
/// Bytes of a note, at the most.
pub const BYTES_MAX: usize = HEAD + TEXT_MAX;
/// Bytes of a name or a reason, at the most.
pub const TEXT_MAX: usize = 512;
const HEAD: usize = 24;
/// The number of a lane, where a slot is in the same word.
const LANE: u64 = (1 << 48) - 1;

/// What a client wants to have.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Attach {
    /// The node's name, or its GUID.
    pub node: String,
    /// Its port; without one, the first that has a cable.
    pub port: Option<u8>,
    /// The seat there.
    pub seat: u8,
    /// What those who share a port know, and nobody else.
    pub secret: u64,
}

/// What is said.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Note {
    /// Client: puts an adapter to a port.
    Attach(Attach),
    /// The sender of a direct lane to its receiver: it may read this segment, which comes beside;
    /// number 0 is the sender's table of leases.
    Expose {
        /// The lane.
        lane: u64,
        /// The sender's number of the segment.
        segment: u32,
    },
    /// The sender of a direct lane to its receiver: there is nothing more to be read there.
    Withdraw {
        /// The lane.
        lane: u64,
        /// The sender's number of the segment.
        segment: u32,
    },
    /// The receiver of a direct lane to its sender, who says nothing of other segments before this:
    /// whether it has the segment mapped now.
    Mapped {
        /// The lane.
        lane: u64,
        /// The sender's number of the segment.
        segment: u32,
        /// Whether it is.
        is_mapped: bool,
    },
    /// Client: there is something in its lane, and the server sleeps.
    Wake,
    /// Server: the client is at its port. Beside it, the board.
    Attached {
        /// What it is called.
        client: u32,
    },
    /// Server: it cannot be.
    Refused {
        /// Why.
        reason: String,
    },
    /// Server: the client may send by this lane, which comes beside.
    Sends {
        /// Its number.
        lane: u64,
        /// What may go by it, as the bits of a head.
        route: u64,
        /// Which of the places in the board is its own.
        slot: u16,
    },
    /// Server: the client will receive by this lane, which comes beside.
    Receives {
        /// Its number.
        lane: u64,
        /// What may come by it, as the bits of a head.
        route: u64,
    },
}

impl Note {
    /// Writes it.
    pub fn emit(&self) -> Vec<u8> {
        let (kind, first, second, text) = match self {
            Self::Attach(Attach { node, port, seat, secret }) => {
                let port = port.unwrap_or(0);
                (1, u64::from(port) | u64::from(*seat) << 8, *secret, node.as_str())
            }
            Self::Expose { lane, segment } => (2, *lane, u64::from(*segment), ""),
            Self::Withdraw { lane, segment } => (3, *lane, u64::from(*segment), ""),
            Self::Mapped { lane, segment, is_mapped } => {
                (4, *lane, u64::from(*segment) | u64::from(*is_mapped) << 32, "")
            }
            Self::Attached { client } => (5, u64::from(*client), 0, ""),
            Self::Refused { reason } => (6, 0, 0, reason.as_str()),
            Self::Sends { lane, route, slot } => {
                // Lanes are counted from 1, and a slot has sixteen bits.
                (7, *lane & LANE | u64::from(*slot) << LANE.count_ones(), *route, "")
            }
            Self::Receives { lane, route } => (8, *lane, *route, ""),
            Self::Wake => (9, 0, 0, ""),
        };
        let head = [u64::from(VERSION) | kind << 32, first, second];
        let mut bytes: Vec<u8> = head.iter().flat_map(|word| word.to_ne_bytes()).collect();
        bytes.extend_from_slice(&text.as_bytes()[..text.floor_char_boundary(TEXT_MAX)]);
        bytes
    }

    /// Reads one; none if it is none.
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
                let [port, seat] = u16::try_from(first).ok()?.to_le_bytes();
                let port = Some(port).filter(|port| *port > 0);
                Self::Attach(Attach { node: text()?, port, seat, secret: second })
            }
            2 => Self::Expose { lane: first, segment: second as u32 },
            3 => Self::Withdraw { lane: first, segment: second as u32 },
            4 => {
                let (segment, is_mapped) = (second as u32, second >> 32 & 1 != 0);
                Self::Mapped { lane: first, segment, is_mapped }
            }
            5 => Self::Attached { client: first as u32 },
            6 => Self::Refused { reason: text()? },
            7 => {
                let slot = (first >> LANE.count_ones()) as u16;
                Self::Sends { lane: first & LANE, route: second, slot }
            }
            8 => Self::Receives { lane: first, route: second },
            9 => Self::Wake,
            _ => return None,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn notes_are_read_as_they_were_written() {
        let (client, segment, lane, route) = (7, 9, 1 << 40, 0x0500_0003_ffff_1234);
        for note in [
            Note::Attach(Attach { node: "H-1".into(), port: Some(2), seat: 3, secret: u64::MAX }),
            Note::Attach(Attach { node: "0x2c9".into(), port: None, seat: 0, secret: 0 }),
            Note::Expose { lane, segment },
            Note::Withdraw { lane, segment },
            Note::Mapped { lane, segment, is_mapped: true },
            Note::Mapped { lane, segment, is_mapped: false },
            Note::Attached { client },
            Note::Refused { reason: "no such node".into() },
            Note::Sends { lane, route, slot: 63 },
            Note::Receives { lane, route },
            Note::Wake,
        ] {
            assert_eq!(Note::parse(&note.emit()), Some(note));
        }
    }

    proptest! {
        #[test]
        fn any_bytes_are_a_note_or_none(kind in 0u32..13, rest: Vec<u8>) {
            let mut bytes = [VERSION.to_ne_bytes(), kind.to_ne_bytes()].concat();
            bytes.extend(rest);
            if let Some(note) = Note::parse(&bytes) {
                prop_assert_eq!(Note::parse(&note.emit()), Some(note));
            }
        }
    }
}
