//! BTH opcodes: three bits of transport service, five bits of operation; and the extended headers
//! of each opcode (IBA 9.2.1).

use super::extended::{ExtendedKind, RdHeaders};
use core::fmt;

codes! {
    /// Transport services: the top three bits of an opcode (IBA table 35).
    pub struct Transport(u8) {
        RC = 0x00,
        UC = 0x20,
        RD = 0x40,
        UD = 0x60,
        CNP = 0x80,
        XRC = 0xa0,
    }
}

codes! {
    /// Operations: the low five bits of an opcode (IBA table 35).
    pub struct Operation(u8) {
        SEND_FIRST = 0x00,
        SEND_MIDDLE = 0x01,
        SEND_LAST = 0x02,
        SEND_LAST_IMM = 0x03,
        SEND_ONLY = 0x04,
        SEND_ONLY_IMM = 0x05,
        WRITE_FIRST = 0x06,
        WRITE_MIDDLE = 0x07,
        WRITE_LAST = 0x08,
        WRITE_LAST_IMM = 0x09,
        WRITE_ONLY = 0x0a,
        WRITE_ONLY_IMM = 0x0b,
        READ_REQUEST = 0x0c,
        READ_RESPONSE_FIRST = 0x0d,
        READ_RESPONSE_MIDDLE = 0x0e,
        READ_RESPONSE_LAST = 0x0f,
        READ_RESPONSE_ONLY = 0x10,
        ACKNOWLEDGE = 0x11,
        ATOMIC_ACKNOWLEDGE = 0x12,
        COMPARE_SWAP = 0x13,
        FETCH_ADD = 0x14,
        /// RD only: resynchronizes the sequence numbers of an end-to-end context.
        RESYNC = 0x15,
        SEND_LAST_INVALIDATE = 0x16,
        SEND_ONLY_INVALIDATE = 0x17,
    }
}

#[derive(Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Opcode(pub u8);

/// The payload length that an operation allows (IBA 9.2.1, 9.7.4.1.3).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PayloadRule {
    Empty,
    UpToMtu,
    /// One byte to the path MTU: the last packet of a message of several packets.
    OneToMtu,
    /// Exactly the path MTU: all packets but the last of a message of several packets.
    ExactlyMtu,
}

impl PayloadRule {
    #[inline]
    pub const fn allows(self, len: usize, mtu: usize) -> bool {
        match self {
            Self::Empty => len == 0,
            Self::UpToMtu => len <= mtu,
            Self::OneToMtu => len >= 1 && len <= mtu,
            Self::ExactlyMtu => len == mtu,
        }
    }
}

impl Opcode {
    pub const UD_SEND_ONLY: Self = Self::new(Transport::UD, Operation::SEND_ONLY);
    pub const UD_SEND_ONLY_IMM: Self = Self::new(Transport::UD, Operation::SEND_ONLY_IMM);

    pub const fn new(transport: Transport, operation: Operation) -> Self {
        Self(transport.0 & 0xe0 | operation.0 & 0x1f)
    }

    #[inline]
    pub const fn transport(self) -> Transport {
        Transport(self.0 & 0xe0)
    }

    #[inline]
    pub const fn operation(self) -> Operation {
        Operation(self.0 & 0x1f)
    }

    /// The extended headers behind the BTH; `None` for an invalid or unsupported opcode.
    #[inline]
    pub const fn extended(self) -> Option<ExtendedKind> {
        EXTENDED[self.0 as usize]
    }

    /// Length of all headers between BTH and payload in bytes, including those of RD; 0 if
    /// [`Opcode::extended`] is `None`.
    #[inline]
    pub const fn extended_len(self) -> usize {
        EXTENDED_LEN[self.0 as usize] as usize
    }

    #[inline]
    pub const fn is_request(self) -> bool {
        !matches!(self.0 & 0x1f, 0x0d..=0x12)
    }
}

impl Operation {
    /// Whether the packet is part of a SEND.
    #[inline]
    pub const fn is_send(self) -> bool {
        matches!(self.0, 0x00..=0x05 | 0x16 | 0x17)
    }

    /// Whether the packet is part of an RDMA WRITE.
    #[inline]
    pub const fn is_write(self) -> bool {
        matches!(self.0, 0x06..=0x0b)
    }

    /// Whether a request packet of this operation is the first or only packet of its request.
    #[inline]
    pub const fn begins(self) -> bool {
        !matches!(
            self,
            Self::SEND_MIDDLE
                | Self::SEND_LAST
                | Self::SEND_LAST_IMM
                | Self::SEND_LAST_INVALIDATE
                | Self::WRITE_MIDDLE
                | Self::WRITE_LAST
                | Self::WRITE_LAST_IMM
        )
    }

    #[inline]
    pub const fn ends(self) -> bool {
        !matches!(
            self,
            Self::SEND_FIRST | Self::SEND_MIDDLE | Self::WRITE_FIRST | Self::WRITE_MIDDLE
        )
    }

    pub const fn payload(self) -> PayloadRule {
        match self {
            Self::SEND_FIRST
            | Self::SEND_MIDDLE
            | Self::WRITE_FIRST
            | Self::WRITE_MIDDLE
            | Self::READ_RESPONSE_FIRST
            | Self::READ_RESPONSE_MIDDLE => PayloadRule::ExactlyMtu,
            Self::SEND_LAST
            | Self::SEND_LAST_IMM
            | Self::SEND_LAST_INVALIDATE
            | Self::WRITE_LAST
            | Self::WRITE_LAST_IMM
            | Self::READ_RESPONSE_LAST => PayloadRule::OneToMtu,
            Self::SEND_ONLY
            | Self::SEND_ONLY_IMM
            | Self::SEND_ONLY_INVALIDATE
            | Self::WRITE_ONLY
            | Self::WRITE_ONLY_IMM
            | Self::READ_RESPONSE_ONLY => PayloadRule::UpToMtu,
            _ => PayloadRule::Empty,
        }
    }
}

/// Extended headers by opcode: a table, because every packet needs a look-up. It is computed at
/// compile time from the rules below.
static EXTENDED: [Option<ExtendedKind>; 256] = {
    let mut table = [None; 256];
    let mut opcode = 0;
    while opcode < 256 {
        table[opcode] = extended_of(Opcode(opcode as u8));
        opcode += 1;
    }
    table
};

static EXTENDED_LEN: [u8; 256] = {
    let mut table = [0; 256];
    let mut number = 0;
    while number < 256 {
        let opcode = Opcode(number as u8);
        if let Some(kind) = extended_of(opcode) {
            let is_rd = opcode.transport().0 == Transport::RD.0;
            let rd_len = if is_rd { RdHeaders::bytes(opcode.is_request()) } else { 0 };
            table[number] = (rd_len + kind.bytes()) as u8;
        }
        number += 1;
    }
    table
};

const fn extended_of(opcode: Opcode) -> Option<ExtendedKind> {
    match (opcode.transport(), opcode.operation()) {
        (Transport::RC, Operation::RESYNC) => None,
        (Transport::RC, operation) => extended_of_connected(operation),
        // UC has no acknowledgements, RDMA READs or atomics.
        (Transport::UC, operation) if operation.0 <= Operation::WRITE_ONLY_IMM.0 => {
            extended_of_connected(operation)
        }
        // RD has no SEND with invalidate.
        (Transport::RD, operation) if operation.0 <= Operation::RESYNC.0 => {
            extended_of_connected(operation)
        }
        (Transport::UD, Operation::SEND_ONLY) => Some(ExtendedKind::Deth),
        (Transport::UD, Operation::SEND_ONLY_IMM) => Some(ExtendedKind::DethImm),
        _ => None,
    }
}

const fn extended_of_connected(operation: Operation) -> Option<ExtendedKind> {
    Some(match operation {
        Operation::SEND_FIRST
        | Operation::SEND_MIDDLE
        | Operation::SEND_LAST
        | Operation::SEND_ONLY
        | Operation::WRITE_MIDDLE
        | Operation::WRITE_LAST
        | Operation::READ_RESPONSE_MIDDLE
        | Operation::RESYNC => ExtendedKind::None,
        Operation::SEND_LAST_IMM | Operation::SEND_ONLY_IMM | Operation::WRITE_LAST_IMM => {
            ExtendedKind::Imm
        }
        Operation::WRITE_FIRST | Operation::WRITE_ONLY | Operation::READ_REQUEST => {
            ExtendedKind::Reth
        }
        Operation::WRITE_ONLY_IMM => ExtendedKind::RethImm,
        Operation::READ_RESPONSE_FIRST
        | Operation::READ_RESPONSE_LAST
        | Operation::READ_RESPONSE_ONLY
        | Operation::ACKNOWLEDGE => ExtendedKind::Aeth,
        Operation::ATOMIC_ACKNOWLEDGE => ExtendedKind::AethAtomicAckEth,
        Operation::COMPARE_SWAP | Operation::FETCH_ADD => ExtendedKind::AtomicEth,
        Operation::SEND_LAST_INVALIDATE | Operation::SEND_ONLY_INVALIDATE => ExtendedKind::Ieth,
        _ => return None,
    })
}

impl fmt::Display for Opcode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match (self.transport().name(), self.operation().name(), self.extended()) {
            (Some(transport), Some(operation), Some(_)) => write!(f, "{transport} {operation}"),
            _ => write!(f, "{:#04x}", self.0),
        }
    }
}

debug_by_display!(Opcode);
number_field!(Opcode(u8));

#[cfg(test)]
mod tests {
    use super::*;
    use std::format;

    #[test]
    fn each_service_has_its_operations() {
        let count = |transport: Transport| {
            (0..32).filter(|&op| Opcode::new(transport, Operation(op)).extended().is_some()).count()
        };
        assert_eq!(count(Transport::RC), 23);
        assert_eq!(count(Transport::UC), 12);
        assert_eq!(count(Transport::RD), 22);
        assert_eq!(count(Transport::UD), 2);
        assert_eq!(count(Transport::XRC) + count(Transport::CNP) + count(Transport(0xe0)), 0);
    }

    /// Length of the headers behind the BTH in bytes, and the payload rule, by operation.
    const OPERATIONS: [(usize, PayloadRule); 24] = {
        use PayloadRule::*;
        [
            (0, ExactlyMtu), // SEND
            (0, ExactlyMtu),
            (0, OneToMtu),
            (4, OneToMtu),
            (0, UpToMtu),
            (4, UpToMtu),
            (16, ExactlyMtu), // RDMA WRITE
            (0, ExactlyMtu),
            (0, OneToMtu),
            (4, OneToMtu),
            (16, UpToMtu),
            (20, UpToMtu),
            (16, Empty), // RDMA READ
            (4, ExactlyMtu),
            (0, ExactlyMtu),
            (4, OneToMtu),
            (4, UpToMtu),
            (4, Empty), // acknowledgements and atomics
            (12, Empty),
            (28, Empty),
            (28, Empty),
            (0, Empty),    // RESYNC
            (4, OneToMtu), // SEND with invalidate
            (4, UpToMtu),
        ]
    };

    #[test]
    fn every_operation_has_its_headers_and_payload() {
        for (operation, (len, payload)) in (0..).map(Operation).zip(OPERATIONS) {
            assert_eq!(operation.payload(), payload, "{operation}");
            for transport in [Transport::RC, Transport::UC, Transport::RD] {
                let opcode = Opcode::new(transport, operation);
                // RD has an RDETH, and in requests a DETH.
                let rd_len = if opcode.is_request() { 4 + 8 } else { 4 };
                let rd_len = if transport == Transport::RD { rd_len } else { 0 };
                let expected = opcode.extended().map_or(0, |_| rd_len + len);
                assert_eq!(opcode.extended_len(), expected, "{opcode}");
            }
        }
        assert_eq!(Opcode::UD_SEND_ONLY.extended_len(), 8);
        assert_eq!(Opcode::UD_SEND_ONLY_IMM.extended_len(), 12);
    }

    #[test]
    fn numbers_are_the_specifications() {
        assert_eq!(Opcode::UD_SEND_ONLY.0, 0x64);
        assert_eq!(Opcode::UD_SEND_ONLY_IMM.0, 0x65);
        assert_eq!(Opcode::new(Transport::RC, Operation::ACKNOWLEDGE).0, 0x11);
        assert_eq!(format!("{} {}", Opcode(0x2b), Opcode(0x6c)), "UC WRITE_ONLY_IMM 0x6c");
    }

    #[test]
    fn answers_are_not_requests() {
        let answers = (0..32).filter(|&op| !Opcode(op).is_request());
        assert!(answers.eq(0x0d..=0x12));
    }

    #[test]
    fn payload_rules() {
        let mtu = 256;
        for (rule, fits) in [
            (PayloadRule::Empty, [true, false, false, false]),
            (PayloadRule::UpToMtu, [true, true, true, false]),
            (PayloadRule::OneToMtu, [false, true, true, false]),
            (PayloadRule::ExactlyMtu, [false, false, true, false]),
        ] {
            assert_eq!([0, 1, 256, 257].map(|len| rule.allows(len, mtu)), fits, "{rule:?}");
        }
    }
}
