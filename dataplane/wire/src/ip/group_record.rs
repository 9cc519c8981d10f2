//! The common part of IGMPv3 and MLDv2: sources in queries, and group records in reports (RFC 3376
//! 4.1 and 4.2, RFC 3810 5.1 and 5.2). The formats differ only in the length of an address.

use super::list::{Item, List};
use crate::layout::WireError;

layout! {
    /// The part of a query behind the group (RFC 3376 4.1, RFC 3810 5.1).
    pub struct QuerierHeader: 4 bytes {
        0:4    1  suppress_router_processing: bool,
        0:5    3  robustness: u8,
        1:0    8  interval_code: u8,
        2:0   16  source_count: u16,
    }
}

/// The part that IGMPv3 and MLDv2 add to queries: robustness, interval and sources.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Querier<'a, A: Item<'a>> {
    /// Routers that receive the query must not update their timers.
    pub suppress_router_processing: bool,
    /// The robustness variable of the querier; 0 if it is greater than 7.
    pub robustness: u8,
    /// The query interval in seconds, as a [`floating`] code.
    pub interval_code: u8,
    /// The queried sources; empty if the query is about the whole group.
    pub sources: List<'a, A>,
}

impl<'a, A: Item<'a>> Querier<'a, A> {
    pub(super) fn read(bytes: &'a [u8]) -> Result<Self, WireError> {
        let (header, rest) = QuerierHeader::read(bytes)?;
        let (sources, _) = List::counted("Querier", rest, usize::from(header.source_count))?;
        let QuerierHeader { suppress_router_processing, robustness, interval_code, .. } = header;
        Ok(Self { suppress_router_processing, robustness, interval_code, sources })
    }

    pub(super) fn wire_len(&self) -> usize {
        QuerierHeader::LEN + self.sources.wire_len()
    }

    pub(super) fn write<'o>(&self, out: &'o mut [u8]) -> Result<&'o mut [u8], WireError> {
        let Self { suppress_router_processing, robustness, interval_code, sources } = *self;
        let source_count = count("Querier", &sources)?;
        let header =
            QuerierHeader { suppress_router_processing, robustness, interval_code, source_count };
        sources.write(header.write(out)?)
    }
}

codes! {
    /// The type of a group record (RFC 3376 4.2.12, RFC 3810 5.2.12).
    pub struct RecordType(u8) {
        MODE_IS_INCLUDE = 1,
        MODE_IS_EXCLUDE = 2,
        CHANGE_TO_INCLUDE_MODE = 3,
        CHANGE_TO_EXCLUDE_MODE = 4,
        ALLOW_NEW_SOURCES = 5,
        BLOCK_OLD_SOURCES = 6,
    }
}

layout! {
    /// The header of a group record; the group follows, then its sources.
    pub struct GroupRecordHeader: 4 bytes {
        0:0    8  kind: RecordType,
        /// Length of auxiliary data behind the sources, in 32-bit words; no auxiliary data is
        /// defined.
        1:0    8  auxiliary_words: u8,
        2:0   16  source_count: u16,
    }
}

/// The membership of a node in one group.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct GroupRecord<'a, A: Item<'a>> {
    pub kind: RecordType,
    pub group: A,
    pub sources: List<'a, A>,
}

impl<'a, A: Item<'a>> Item<'a> for GroupRecord<'a, A> {
    fn read(bytes: &'a [u8]) -> Result<Option<(Self, &'a [u8])>, WireError> {
        let format = "GroupRecord";
        let (GroupRecordHeader { kind, auxiliary_words, source_count }, rest) =
            GroupRecordHeader::read(bytes)?;
        let (group, rest) = read_group(format, rest)?;
        let (sources, rest) = List::counted(format, rest, usize::from(source_count))?;
        // Auxiliary data is ignored on receipt and never sent.
        let (_, rest) = super::split(format, rest, usize::from(auxiliary_words) * 4)?;
        Ok(Some((Self { kind, group, sources }, rest)))
    }

    fn wire_len(&self) -> usize {
        GroupRecordHeader::LEN + self.group.wire_len() + self.sources.wire_len()
    }

    fn write<'o>(&self, out: &'o mut [u8]) -> Result<&'o mut [u8], WireError> {
        let Self { kind, group, sources } = self;
        let source_count = count("GroupRecord", sources)?;
        let header = GroupRecordHeader { kind: *kind, auxiliary_words: 0, source_count };
        sources.write(group.write(header.write(out)?)?)
    }
}

layout! {
    /// The header of a report of IGMPv3 or MLDv2; the records follow.
    pub struct ReportHeader: 8 bytes {
        6:0   16  record_count: u16,
    }
}

/// Reads the records of the report that fills `bytes`.
pub(super) fn read_report<'a, A: Item<'a>>(
    bytes: &'a [u8],
) -> Result<List<'a, GroupRecord<'a, A>>, WireError> {
    let (ReportHeader { record_count }, rest) = ReportHeader::read(bytes)?;
    Ok(List::counted("GroupRecord", rest, usize::from(record_count))?.0)
}

/// Writes a report of type `kind` without its checksum; returns the rest.
pub(super) fn write_report<'a, 'o, A: Item<'a>>(
    kind: u8,
    records: &List<'a, GroupRecord<'a, A>>,
    out: &'o mut [u8],
) -> Result<&'o mut [u8], WireError> {
    let mut header = ReportHeader { record_count: count("GroupRecord", records)? }.emit();
    header[0] = kind;
    records.write(super::put("ReportHeader", &header, out)?)
}

/// Decodes an 8-bit code: up to 127, the code is the value; otherwise, it has 3 bits of exponent
/// and 4 bits of mantissa. Used for the response time of IGMPv3 and for the query interval of
/// IGMPv3 and MLDv2 (RFC 3376 4.1.1, RFC 3810 5.1.9).
pub const fn floating(code: u8) -> u32 {
    if code < 0x80 { code as u32 } else { (code as u32 & 0x0f | 0x10) << ((code >> 4 & 7) + 3) }
}

/// Decodes a 16-bit code: up to 32,767, the code is the value; otherwise, it has 3 bits of exponent
/// and 12 bits of mantissa. Used for the response time of MLDv2 (RFC 3810 5.1.3).
pub const fn floating_16(code: u16) -> u32 {
    if code < 0x8000 {
        code as u32
    } else {
        (code as u32 & 0x0fff | 0x1000) << ((code >> 12 & 7) + 3)
    }
}

fn read_group<'a, A: Item<'a>>(
    format: &'static str,
    bytes: &'a [u8],
) -> Result<(A, &'a [u8]), WireError> {
    if bytes.is_empty() {
        return Err(WireError::BadLength { format });
    }
    A::read(bytes)?.ok_or(WireError::BadLength { format })
}

fn count<'a, T: Item<'a>>(format: &'static str, list: &List<'a, T>) -> Result<u16, WireError> {
    u16::try_from(list.iter().count()).map_err(|_| WireError::BadLength { format })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn floating_codes_meet_the_plain_ones() {
        assert_eq!((floating(127), floating(0x80), floating(0x8f)), (127, 128, 248));
        assert_eq!((floating(0x90), floating(0xff)), (256, 31_744));
        assert_eq!((floating_16(0x7fff), floating_16(0x8000)), (32_767, 32_768));
        assert_eq!(floating_16(0xffff), 8_387_584);
    }
}
