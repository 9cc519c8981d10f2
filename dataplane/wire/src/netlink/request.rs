//! Requests to the kernel: dump requests, and complete messages with their headers.

use super::attribute::AttributeWriter;
use super::{AddressFamily, MessageFlags, MessageHeader, MessageType};
use crate::layout::WireError;

/// The kinds of objects that a dump request can ask for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum DumpKind {
    Links,
    Addresses,
    Nexthops,
    /// IPv4 routes of all tables.
    RoutesV4,
    /// IPv6 routes of all tables.
    RoutesV6,
}

impl DumpKind {
    /// All kinds; each kind follows the kinds that it refers to.
    pub const ALL: [Self; 5] =
        [Self::Links, Self::Addresses, Self::Nexthops, Self::RoutesV4, Self::RoutesV6];

    /// The message type, the family and the fixed header length of the request.
    const fn request(self) -> (MessageType, AddressFamily, usize) {
        match self {
            Self::Links => (MessageType::GET_LINK, AddressFamily::UNSPECIFIED, 16),
            Self::Addresses => (MessageType::GET_ADDRESS, AddressFamily::UNSPECIFIED, 8),
            Self::Nexthops => (MessageType::GET_NEXTHOP, AddressFamily::UNSPECIFIED, 8),
            Self::RoutesV4 => (MessageType::GET_ROUTE, AddressFamily::IPV4, 12),
            Self::RoutesV6 => (MessageType::GET_ROUTE, AddressFamily::IPV6, 12),
        }
    }

    /// Writes the dump request to the front of `out`; returns its length.
    pub fn write(self, sequence: u32, out: &mut [u8]) -> Result<usize, WireError> {
        let (message_type, family, len) = self.request();
        let header = MessageHeader { message_type, flags: MessageFlags::DUMP, sequence, port: 0 };
        write_message(&header, out, |out| {
            let mut fixed = [0; 16];
            fixed[0] = family.0;
            out.bytes(&fixed[..len])
        })
    }
}

/// Writes a message to the front of `out`; `body` writes the part behind the header. Returns the
/// length of the message in bytes.
pub fn write_message(
    header: &MessageHeader,
    out: &mut [u8],
    body: impl FnOnce(&mut AttributeWriter<'_>) -> Result<(), WireError>,
) -> Result<usize, WireError> {
    let mut writer = AttributeWriter::new(out);
    let [type_low, type_high] = header.message_type.0.to_ne_bytes();
    let [flags_low, flags_high] = header.flags.0.to_ne_bytes();
    writer.bytes(&[0; 4])?;
    writer.bytes(&[type_low, type_high, flags_low, flags_high])?;
    writer.bytes(&header.sequence.to_ne_bytes())?;
    writer.bytes(&header.port.to_ne_bytes())?;
    body(&mut writer)?;
    let len = writer.written();
    writer.put_u32(0, len as u32);
    Ok(len)
}
