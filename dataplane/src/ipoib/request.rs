//! The request ID (`wr_id`), which identifies the queue, connection and request of a completion.
//!
//! A completion is matched to its request by shifts and masks, and an unknown ID matches no
//! request. Sends of a connection carry its generation, so a completion after the end of the
//! connection does not match the next connection in its slot.

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Request {
    /// The send's number.
    Datagram(u32),
    Connected {
        slot: u32,
        generation: u32,
        number: u32,
    },
    DatagramReceive(u32),
    SharedReceive(u32),
    OwnReceive {
        slot: u32,
        buffer: u32,
    },
}

/// The number of bits of a slot, which are below the generation.
pub(super) const SLOT_BITS: u32 = 20;
/// The number of bits of a generation, which are below the kind.
pub(super) const GENERATION_BITS: u32 = 9;

impl Request {
    #[inline]
    pub(super) fn id(self) -> u64 {
        let (kind, generation, slot, low) = match self {
            Self::Datagram(number) => (0, 0, 0, number),
            Self::Connected { slot, generation, number } => (1, generation, slot, number),
            Self::DatagramReceive(buffer) => (2, 0, 0, buffer),
            Self::SharedReceive(buffer) => (3, 0, 0, buffer),
            Self::OwnReceive { slot, buffer } => (4, 0, slot, buffer),
        };
        let generation = u64::from(generation & ((1 << GENERATION_BITS) - 1));
        kind << 61 | generation << (32 + SLOT_BITS) | u64::from(slot) << 32 | u64::from(low)
    }

    #[inline]
    pub(super) fn of(id: u64) -> Option<Self> {
        let low = id as u32;
        let slot = (id >> 32) as u32 & ((1 << SLOT_BITS) - 1);
        let generation = (id >> (32 + SLOT_BITS)) as u32 & ((1 << GENERATION_BITS) - 1);
        Some(match id >> 61 {
            0 => Self::Datagram(low),
            1 => Self::Connected { slot, generation, number: low },
            2 => Self::DatagramReceive(low),
            3 => Self::SharedReceive(low),
            4 => Self::OwnReceive { slot, buffer: low },
            _ => return None,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_request_is_decoded_from_its_id() {
        let (slot, generation, number) = ((1 << SLOT_BITS) - 1, (1 << GENERATION_BITS) - 1, !0);
        for request in [
            Request::Datagram(7),
            Request::Connected { slot, generation, number },
            Request::DatagramReceive(!0),
            Request::SharedReceive(9),
            Request::OwnReceive { slot, buffer: 1 },
        ] {
            assert_eq!(Request::of(request.id()), Some(request));
        }
        assert_eq!(Request::of(!0), None);
    }
}
