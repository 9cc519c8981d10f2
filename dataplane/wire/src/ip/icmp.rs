//! The common part of ICMPv4 and ICMPv6 (RFC 792, RFC 4443 2.1).

layout! {
    /// The header of all messages; data may follow.
    pub struct IcmpHeader: 8 bytes {
        0:0    8  kind: u8,
        1:0    8  code: u8,
        /// Covers the message; for ICMPv6, also the pseudo-header.
        2:0   16  checksum: u16,
        /// The format depends on the type.
        4:0   32  rest: [u8; 4],
    }
}

impl IcmpHeader {
    pub(super) const CHECKSUM_AT: usize = 2;

    /// A header with a zero checksum.
    pub(super) const fn new(kind: u8, code: u8, rest: [u8; 4]) -> Self {
        Self { kind, code, checksum: 0, rest }
    }
}

codes! {
    /// Types of ICMPv6 messages, including neighbor and listener discovery (IANA).
    pub struct Icmpv6Type(u8) {
        DESTINATION_UNREACHABLE = 1,
        PACKET_TOO_BIG = 2,
        TIME_EXCEEDED = 3,
        PARAMETER_PROBLEM = 4,
        ECHO_REQUEST = 128,
        ECHO_REPLY = 129,
        LISTENER_QUERY = 130,
        LISTENER_REPORT = 131,
        LISTENER_DONE = 132,
        ROUTER_SOLICITATION = 133,
        ROUTER_ADVERTISEMENT = 134,
        NEIGHBOR_SOLICITATION = 135,
        NEIGHBOR_ADVERTISEMENT = 136,
        REDIRECT = 137,
        LISTENER_REPORT_V2 = 143,
    }
}

impl Icmpv6Type {
    /// Whether messages of this type report errors. An error message must not trigger another error
    /// message (RFC 4443 2.4).
    pub const fn is_error(self) -> bool {
        self.0 < 128
    }
}

/// The content of an echo request or echo reply.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct IcmpEcho<'a> {
    pub identifier: u16,
    pub sequence: u16,
    pub data: &'a [u8],
}

impl<'a> IcmpEcho<'a> {
    pub(super) const fn new([a, b, c, d]: [u8; 4], data: &'a [u8]) -> Self {
        let (identifier, sequence) = (u16::from_be_bytes([a, b]), u16::from_be_bytes([c, d]));
        Self { identifier, sequence, data }
    }

    pub(super) const fn rest(&self) -> [u8; 4] {
        ((self.identifier as u32) << 16 | self.sequence as u32).to_be_bytes()
    }
}
