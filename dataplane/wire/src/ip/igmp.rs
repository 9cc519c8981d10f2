//! IGMP, all three versions (RFC 1112 appendix I, RFC 2236, RFC 3376).
//!
//! Queries of all versions have the same type. In version 1, the response time is zero; in version
//! 3, the query is longer than 8 bytes (RFC 3376 7.1).

use super::checksum::{self, Sum};
use super::group_record::{self, GroupRecord, Querier};
use super::list::List;
use crate::layout::WireError;
use core::net::Ipv4Addr;

layout! {
    /// The header of all messages except version 3 reports (RFC 2236 2).
    pub struct IgmpHeader: 8 bytes {
        0:0    8  kind: IgmpType,
        /// Maximum response time in tenths of a second; in version 3, as a floating-point code.
        1:0    8  max_response_code: u8,
        2:0   16  checksum: u16,
        /// The group; zero in general queries.
        4:0   32  group: Ipv4Addr,
    }
}

impl IgmpHeader {
    const CHECKSUM_AT: usize = 2;
}

codes! {
    /// Message types (IANA).
    pub struct IgmpType(u8) {
        QUERY = 0x11,
        REPORT_V1 = 0x12,
        REPORT_V2 = 0x16,
        LEAVE = 0x17,
        REPORT_V3 = 0x22,
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum IgmpMessage<'a> {
    QueryV1,
    /// A query for one group, or a general query.
    QueryV2 {
        /// Maximum response time in tenths of a second; never zero.
        max_response_tenths: u8,
        group: Ipv4Addr,
    },
    QueryV3 {
        /// Maximum response time in tenths of a second, as a [`group_record::floating`] code.
        max_response_code: u8,
        group: Ipv4Addr,
        querier: Querier<'a, Ipv4Addr>,
    },
    ReportV1(Ipv4Addr),
    ReportV2(Ipv4Addr),
    Leave(Ipv4Addr),
    ReportV3(List<'a, GroupRecord<'a, Ipv4Addr>>),
}

impl<'a> IgmpMessage<'a> {
    pub fn parse(bytes: &'a [u8]) -> Result<Self, WireError> {
        let (IgmpHeader { kind, max_response_code, group, .. }, rest) = IgmpHeader::read(bytes)?;
        Ok(match kind {
            IgmpType::QUERY if !rest.is_empty() => {
                Self::QueryV3 { max_response_code, group, querier: Querier::read(rest)? }
            }
            IgmpType::QUERY if max_response_code == 0 => Self::QueryV1,
            IgmpType::QUERY => Self::QueryV2 { max_response_tenths: max_response_code, group },
            IgmpType::REPORT_V1 => Self::ReportV1(group),
            IgmpType::REPORT_V2 => Self::ReportV2(group),
            IgmpType::LEAVE => Self::Leave(group),
            IgmpType::REPORT_V3 => Self::ReportV3(group_record::read_report(bytes)?),
            _ => return Err(WireError::BadValue { format: "IgmpMessage", field: "type" }),
        })
    }

    pub fn wire_len(&self) -> usize {
        IgmpHeader::LEN
            + match self {
                Self::QueryV3 { querier, .. } => querier.wire_len(),
                Self::ReportV3(records) => records.wire_len(),
                _ => 0,
            }
    }

    pub fn write<'o>(&self, out: &'o mut [u8]) -> Result<&'o mut [u8], WireError> {
        let (kind, max_response_code, group) = match *self {
            Self::QueryV1 => (IgmpType::QUERY, 0, Ipv4Addr::UNSPECIFIED),
            Self::QueryV2 { max_response_tenths, group } => {
                (IgmpType::QUERY, max_response_tenths, group)
            }
            Self::QueryV3 { max_response_code, group, .. } => {
                (IgmpType::QUERY, max_response_code, group)
            }
            Self::ReportV1(group) => (IgmpType::REPORT_V1, 0, group),
            Self::ReportV2(group) => (IgmpType::REPORT_V2, 0, group),
            Self::Leave(group) => (IgmpType::LEAVE, 0, group),
            Self::ReportV3(records) => {
                return group_record::write_report(IgmpType::REPORT_V3.0, &records, out);
            }
        };
        let rest = IgmpHeader { kind, max_response_code, checksum: 0, group }.write(out)?;
        match self {
            Self::QueryV3 { querier, .. } => querier.write(rest),
            _ => Ok(rest),
        }
    }
}

pub fn checksum_ok(bytes: &[u8]) -> bool {
    Sum::of(bytes).is_ok()
}

pub fn fill_checksum(bytes: &mut [u8]) -> Result<(), WireError> {
    checksum::fill("IgmpHeader", bytes, IgmpHeader::CHECKSUM_AT, Sum::default()).map(drop)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ip::group_record::RecordType;
    use proptest::prelude::*;
    use std::vec;
    use std::vec::Vec;

    const GROUP: Ipv4Addr = Ipv4Addr::new(239, 1, 2, 3);
    const SOURCES: [Ipv4Addr; 2] = [Ipv4Addr::new(10, 0, 0, 1), Ipv4Addr::new(10, 0, 0, 2)];

    fn written(message: &IgmpMessage<'_>) -> Vec<u8> {
        let mut out = vec![0xff; message.wire_len()];
        assert!(message.write(&mut out).unwrap().is_empty());
        fill_checksum(&mut out).unwrap();
        assert!(checksum_ok(&out));
        out
    }

    #[test]
    fn report_of_version_2_matches_bytes_made_by_hand() {
        let bytes = [0x16, 0, 0xf8, 0xfa, 239, 1, 2, 3];
        assert_eq!(written(&IgmpMessage::ReportV2(GROUP)), bytes);
        assert_eq!(IgmpMessage::parse(&bytes), Ok(IgmpMessage::ReportV2(GROUP)));
    }

    #[test]
    fn report_of_version_3_matches_bytes_made_by_hand() {
        let records = [
            GroupRecord {
                kind: RecordType::CHANGE_TO_EXCLUDE_MODE,
                group: GROUP,
                sources: List::of(&[]),
            },
            GroupRecord {
                kind: RecordType::ALLOW_NEW_SOURCES,
                group: GROUP,
                sources: List::of(&SOURCES),
            },
        ];
        let message = IgmpMessage::ReportV3(List::of(&records));
        let mut bytes = written(&message);
        assert_eq!(bytes[8..16], [4, 0, 0, 0, 239, 1, 2, 3]);
        assert_eq!(bytes[16..], [5, 0, 0, 2, 239, 1, 2, 3, 10, 0, 0, 1, 10, 0, 0, 2]);
        assert_eq!((bytes[0], &bytes[4..8]), (0x22, &[0, 0, 0, 2][..]));
        assert_eq!(IgmpMessage::parse(&bytes), Ok(message));

        // The first record gets one word of auxiliary data.
        bytes[9] = 1;
        bytes.splice(16..16, [1, 2, 3, 4]);
        assert_eq!(IgmpMessage::parse(&bytes), Ok(message));
    }

    #[test]
    fn every_kind_round_trips() {
        let querier = Querier {
            suppress_router_processing: true,
            robustness: 2,
            interval_code: 125,
            sources: List::of(&SOURCES),
        };
        let messages = [
            IgmpMessage::QueryV1,
            IgmpMessage::QueryV2 { max_response_tenths: 100, group: GROUP },
            IgmpMessage::QueryV3 { max_response_code: 0, group: GROUP, querier },
            IgmpMessage::ReportV1(GROUP),
            IgmpMessage::ReportV2(GROUP),
            IgmpMessage::Leave(GROUP),
        ];
        for message in messages {
            assert_eq!(IgmpMessage::parse(&written(&message)), Ok(message));
        }
        assert_eq!(written(&messages[2])[8..12], [0x0a, 125, 0, 2]);
    }

    proptest! {
        #[test]
        fn parsing_any_bytes_never_panics(
            kind in prop_oneof![any::<u8>(), Just(0x11), Just(0x22)],
            few: bool,
            mut bytes in proptest::collection::vec(any::<u8>(), 12..80),
        ) {
            bytes[0] = kind;
            if few {
                // Plausible counts.
                (bytes[6], bytes[7]) = (0, bytes[7] & 3);
                (bytes[10], bytes[11]) = (0, bytes[11] & 3);
            }
            if let Ok(message) = IgmpMessage::parse(&bytes) {
                let mut out = vec![0; message.wire_len()];
                message.write(&mut out).unwrap();
                let again = IgmpMessage::parse(&out);
                prop_assert_eq!(again, Ok(message));
            }
            prop_assert!(IgmpMessage::parse(&bytes[..7]).is_err());
        }
    }
}
