//! Multicast listener discovery, versions 1 and 2 (RFC 2710, RFC 3810): the counterpart of IGMP in
//! ICMPv6.
//!
//! Queries of both versions have the same type; version 2 queries are longer (RFC 3810 8.1).

use super::group_record::{self, GroupRecord, Querier};
use super::icmp::{IcmpHeader, Icmpv6Type};
use super::list::List;
use crate::layout::WireError;
use core::net::Ipv6Addr;

layout! {
    /// The header of all messages except version 2 reports (RFC 2710 3).
    pub struct MldHeader: 24 bytes {
        /// Maximum response time in milliseconds; in version 2, as a floating-point code.
        4:0   16  max_response_code: u16,
        /// The group; zero in general queries.
        8:0  128  group: Ipv6Addr,
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MldMessage<'a> {
    QueryV1 {
        max_response_ms: u16,
        group: Ipv6Addr,
    },
    QueryV2 {
        /// Maximum response time in milliseconds, as a [`group_record::floating_16`] code.
        max_response_code: u16,
        group: Ipv6Addr,
        querier: Querier<'a, Ipv6Addr>,
    },
    ReportV1(Ipv6Addr),
    Done(Ipv6Addr),
    ReportV2(List<'a, GroupRecord<'a, Ipv6Addr>>),
}

impl<'a> MldMessage<'a> {
    /// Parses the ICMPv6 message that fills `bytes`.
    pub fn parse(bytes: &'a [u8]) -> Result<Self, WireError> {
        let (IcmpHeader { kind, .. }, _) = IcmpHeader::read(bytes)?;
        if Icmpv6Type(kind) == Icmpv6Type::LISTENER_REPORT_V2 {
            return Ok(Self::ReportV2(group_record::read_report(bytes)?));
        }
        let (MldHeader { max_response_code, group }, rest) = MldHeader::read(bytes)?;
        Ok(match Icmpv6Type(kind) {
            Icmpv6Type::LISTENER_QUERY if rest.is_empty() => {
                Self::QueryV1 { max_response_ms: max_response_code, group }
            }
            Icmpv6Type::LISTENER_QUERY => {
                Self::QueryV2 { max_response_code, group, querier: Querier::read(rest)? }
            }
            Icmpv6Type::LISTENER_REPORT => Self::ReportV1(group),
            Icmpv6Type::LISTENER_DONE => Self::Done(group),
            _ => return Err(WireError::BadValue { format: "MldMessage", field: "type" }),
        })
    }

    pub fn wire_len(&self) -> usize {
        match self {
            Self::QueryV2 { querier, .. } => MldHeader::LEN + querier.wire_len(),
            Self::ReportV2(records) => IcmpHeader::LEN + records.wire_len(),
            _ => MldHeader::LEN,
        }
    }

    pub fn write<'o>(&self, out: &'o mut [u8]) -> Result<&'o mut [u8], WireError> {
        let (kind, max_response_code, group) = match *self {
            Self::QueryV1 { max_response_ms, group } => {
                (Icmpv6Type::LISTENER_QUERY, max_response_ms, group)
            }
            Self::QueryV2 { max_response_code, group, .. } => {
                (Icmpv6Type::LISTENER_QUERY, max_response_code, group)
            }
            Self::ReportV1(group) => (Icmpv6Type::LISTENER_REPORT, 0, group),
            Self::Done(group) => (Icmpv6Type::LISTENER_DONE, 0, group),
            Self::ReportV2(records) => {
                return group_record::write_report(Icmpv6Type::LISTENER_REPORT_V2.0, &records, out);
            }
        };
        let mut header = MldHeader { max_response_code, group }.emit();
        header[0] = kind.0;
        let rest = super::put("MldHeader", &header, out)?;
        match self {
            Self::QueryV2 { querier, .. } => querier.write(rest),
            _ => Ok(rest),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ip::group_record::RecordType;
    use std::vec;
    use std::vec::Vec;

    const GROUP: Ipv6Addr = Ipv6Addr::new(0xff02, 0, 0, 0, 0, 1, 0xff00, 0x1234);
    const SOURCES: [Ipv6Addr; 1] = [Ipv6Addr::LOCALHOST];

    fn written(message: &MldMessage<'_>) -> Vec<u8> {
        let mut out = vec![0xff; message.wire_len()];
        assert!(message.write(&mut out).unwrap().is_empty());
        out
    }

    #[test]
    fn report_of_version_2_matches_bytes_made_by_hand() {
        let records = [GroupRecord {
            kind: RecordType::CHANGE_TO_EXCLUDE_MODE,
            group: GROUP,
            sources: List::of(&SOURCES),
        }];
        let message = MldMessage::ReportV2(List::of(&records));
        let bytes = written(&message);
        assert_eq!(bytes[..12], [143, 0, 0, 0, 0, 0, 0, 1, 4, 0, 0, 1]);
        assert_eq!((&bytes[12..28], &bytes[28..]), (&GROUP.octets()[..], &SOURCES[0].octets()[..]));
        assert_eq!(MldMessage::parse(&bytes), Ok(message));
    }

    #[test]
    fn every_kind_round_trips() {
        let querier = Querier {
            suppress_router_processing: false,
            robustness: 7,
            interval_code: 125,
            sources: List::of(&SOURCES),
        };
        let messages = [
            (MldMessage::QueryV1 { max_response_ms: 10_000, group: GROUP }, 130),
            (MldMessage::QueryV2 { max_response_code: 0x8001, group: GROUP, querier }, 130),
            (MldMessage::ReportV1(GROUP), 131),
            (MldMessage::Done(GROUP), 132),
        ];
        for (message, kind) in messages {
            let bytes = written(&message);
            assert_eq!((bytes[0], &bytes[8..24]), (kind, &GROUP.octets()[..]));
            assert_eq!(MldMessage::parse(&bytes), Ok(message));
            assert!(MldMessage::parse(&bytes[..23]).is_err());
        }
        assert_eq!(written(&messages[0].0)[4..8], [0x27, 0x10, 0, 0]);
        assert_eq!(written(&messages[1].0)[24..28], [7, 125, 0, 1]);
    }
}
