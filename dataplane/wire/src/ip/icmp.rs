//! What ICMPv4 and ICMPv6 have in common: four bytes, four more that the type gives a meaning to,
//! and data (RFC 792, RFC 4443 2.1).

layout! {
    /// What every message begins with; the shortest are no longer.
    pub struct IcmpHeader: 8 bytes {
        /// What the message is; the versions number differently.
        0:0    8  kind: u8,
        /// Which sort of that.
        1:0    8  code: u8,
        /// Of the whole message; in version 6 of a pseudo header too.
        2:0   16  checksum: u16,
        /// What the type makes of it.
        4:0   32  rest: [u8; 4],
    }
}

impl IcmpHeader {
    /// Where the checksum is.
    pub(super) const CHECKSUM_AT: usize = 2;

    /// A header without its checksum.
    pub(super) const fn new(kind: u8, code: u8, rest: [u8; 4]) -> Self {
        Self { kind, code, checksum: 0, rest }
    }
}

/// An echo request, or the reply that returns it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Echo<'a> {
    /// Who asked.
    pub identifier: u16,
    /// Which time.
    pub sequence: u16,
    /// What comes back as it was.
    pub data: &'a [u8],
}

impl<'a> Echo<'a> {
    pub(super) const fn new([a, b, c, d]: [u8; 4], data: &'a [u8]) -> Self {
        let (identifier, sequence) = (u16::from_be_bytes([a, b]), u16::from_be_bytes([c, d]));
        Self { identifier, sequence, data }
    }

    pub(super) const fn rest(&self) -> [u8; 4] {
        ((self.identifier as u32) << 16 | self.sequence as u32).to_be_bytes()
    }
}
