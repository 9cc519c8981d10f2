//! Entries of a client's ring up. Each is copied once, and the copy is checked, because the client
//! can change the entry at any time.

use crate::process::tag;
use pollux_hca::Frame;
use pollux_hca::head::{LEASED, WORDS_MAX};
use pollux_hca::violation::KeyViolation;
use pollux_mem::shared_ring::Entry;
use pollux_wire::packet::Packet;

pub(super) enum Up {
    Frame(Frame),
    Switch(u64),
    Closed(u64),
    Violation(KeyViolation),
    Invalid,
}

impl Up {
    /// Parses an entry, which may have any content.
    pub(super) fn of(entry: &Entry<'_>) -> Self {
        let bytes = || {
            let mut bytes = Vec::with_capacity(entry.bytes());
            entry.read(|part| bytes.extend_from_slice(part));
            bytes
        };
        match entry.tag() {
            tag::SWITCH => Self::Switch(entry.head()[0]),
            tag::CLOSED => Self::Closed(entry.head()[0]),
            tag::VIOLATION => {
                let violation = KeyViolation::read(entry.head()[0], &bytes());
                violation.map_or(Self::Invalid, Self::Violation)
            }
            tag::PACKET => {
                let bytes = bytes();
                if Packet::parse(&bytes).is_ok() {
                    Self::Frame(Frame::Packet(bytes))
                } else {
                    Self::Invalid
                }
            }
            // Leased messages must use direct rings, because only the receiver of such a ring can
            // read the leased memory.
            tag::MESSAGE
                if (3..=WORDS_MAX).contains(&entry.head_words())
                    && entry.first_words()[0] & LEASED == 0 =>
            {
                let mut head = entry.head();
                let head = &mut head[..entry.head_words()];
                // Clears the VL, which the net chooses, and unused bits.
                head[1] &= !(0xff << 24);
                head[2] &= 0xffff_ffff;
                let bytes = bytes();
                Self::Frame(Frame::message(head, bytes.len(), |all| all.copy_from_slice(&bytes)))
            }
            _ => Self::Invalid,
        }
    }
}
