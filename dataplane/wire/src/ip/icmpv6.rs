//! ICMPv6 (RFC 4443), including neighbor discovery and listener discovery.

use super::IpProtocol;
use super::checksum::{self, PseudoHeader, Sum};
use super::icmp::{IcmpEcho, IcmpHeader, Icmpv6Type};
use super::mld::MldMessage;
use super::nd::NdMessage;
use super::put;
use crate::layout::WireError;

codes! {
    /// Why a destination is unreachable (RFC 4443 3.1).
    pub struct Icmpv6Unreachable(u8) {
        NO_ROUTE = 0,
        PROHIBITED = 1,
        BEYOND_SCOPE = 2,
        ADDRESS = 3,
        PORT = 4,
        SOURCE_POLICY = 5,
        REJECT_ROUTE = 6,
    }
}

codes! {
    /// The limit that was exceeded: hop limit or reassembly timeout (RFC 4443 3.3).
    pub struct Icmpv6TimeExceeded(u8) {
        HOP_LIMIT = 0,
        REASSEMBLY = 1,
    }
}

codes! {
    /// The code of a parameter problem (RFC 4443 3.4).
    pub struct Icmpv6ParameterProblem(u8) {
        HEADER_FIELD = 0,
        NEXT_HEADER = 1,
        OPTION = 2,
    }
}

/// An ICMPv6 message. `original` is the beginning of the packet that caused an error message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Icmpv6Message<'a> {
    DestinationUnreachable {
        code: Icmpv6Unreachable,
        original: &'a [u8],
    },
    PacketTooBig {
        mtu: u32,
        original: &'a [u8],
    },
    TimeExceeded {
        code: Icmpv6TimeExceeded,
        original: &'a [u8],
    },
    ParameterProblem {
        code: Icmpv6ParameterProblem,
        /// Offset of the wrong byte in the packet.
        pointer: u32,
        original: &'a [u8],
    },
    EchoRequest(IcmpEcho<'a>),
    EchoReply(IcmpEcho<'a>),
    Nd(NdMessage<'a>),
    Mld(MldMessage<'a>),
    Unknown {
        kind: Icmpv6Type,
        code: u8,
        /// The second four bytes of the header.
        rest: [u8; 4],
        data: &'a [u8],
    },
}

impl<'a> Icmpv6Message<'a> {
    pub fn parse(bytes: &'a [u8]) -> Result<Self, WireError> {
        let (IcmpHeader { kind, code, rest, .. }, data) = IcmpHeader::read(bytes)?;
        Ok(match Icmpv6Type(kind) {
            Icmpv6Type::DESTINATION_UNREACHABLE => {
                Self::DestinationUnreachable { code: Icmpv6Unreachable(code), original: data }
            }
            Icmpv6Type::PACKET_TOO_BIG => {
                Self::PacketTooBig { mtu: u32::from_be_bytes(rest), original: data }
            }
            Icmpv6Type::TIME_EXCEEDED => {
                Self::TimeExceeded { code: Icmpv6TimeExceeded(code), original: data }
            }
            Icmpv6Type::PARAMETER_PROBLEM => Self::ParameterProblem {
                code: Icmpv6ParameterProblem(code),
                pointer: u32::from_be_bytes(rest),
                original: data,
            },
            Icmpv6Type::ECHO_REQUEST => Self::EchoRequest(IcmpEcho::new(rest, data)),
            Icmpv6Type::ECHO_REPLY => Self::EchoReply(IcmpEcho::new(rest, data)),
            Icmpv6Type::LISTENER_QUERY
            | Icmpv6Type::LISTENER_REPORT
            | Icmpv6Type::LISTENER_DONE
            | Icmpv6Type::LISTENER_REPORT_V2 => Self::Mld(MldMessage::parse(bytes)?),
            Icmpv6Type::ROUTER_SOLICITATION
            | Icmpv6Type::ROUTER_ADVERTISEMENT
            | Icmpv6Type::NEIGHBOR_SOLICITATION
            | Icmpv6Type::NEIGHBOR_ADVERTISEMENT
            | Icmpv6Type::REDIRECT => Self::Nd(NdMessage::parse(bytes)?),
            kind => Self::Unknown { kind, code, rest, data },
        })
    }

    pub fn wire_len(&self) -> usize {
        match self {
            Self::Nd(message) => message.wire_len(),
            Self::Mld(message) => message.wire_len(),
            Self::DestinationUnreachable { original: data, .. }
            | Self::PacketTooBig { original: data, .. }
            | Self::TimeExceeded { original: data, .. }
            | Self::ParameterProblem { original: data, .. }
            | Self::EchoRequest(IcmpEcho { data, .. })
            | Self::EchoReply(IcmpEcho { data, .. })
            | Self::Unknown { data, .. } => IcmpHeader::LEN + data.len(),
        }
    }

    pub fn write<'o>(&self, out: &'o mut [u8]) -> Result<&'o mut [u8], WireError> {
        let (kind, code, rest, data) = match *self {
            Self::Nd(message) => return message.write(out),
            Self::Mld(message) => return message.write(out),
            Self::DestinationUnreachable { code, original } => {
                (Icmpv6Type::DESTINATION_UNREACHABLE, code.0, [0; 4], original)
            }
            Self::PacketTooBig { mtu, original } => {
                (Icmpv6Type::PACKET_TOO_BIG, 0, mtu.to_be_bytes(), original)
            }
            Self::TimeExceeded { code, original } => {
                (Icmpv6Type::TIME_EXCEEDED, code.0, [0; 4], original)
            }
            Self::ParameterProblem { code, pointer, original } => {
                (Icmpv6Type::PARAMETER_PROBLEM, code.0, pointer.to_be_bytes(), original)
            }
            Self::EchoRequest(echo) => (Icmpv6Type::ECHO_REQUEST, 0, echo.rest(), echo.data),
            Self::EchoReply(echo) => (Icmpv6Type::ECHO_REPLY, 0, echo.rest(), echo.data),
            Self::Unknown { kind, code, rest, data } => (kind, code, rest, data),
        };
        put("IcmpHeader", data, IcmpHeader::new(kind.0, code, rest).write(out)?)
    }
}

pub fn checksum_ok(bytes: &[u8], pseudo: &PseudoHeader) -> bool {
    pseudo.sum(IpProtocol::ICMPV6, bytes.len()).then(Sum::of(bytes)).is_ok()
}

pub fn fill_checksum(bytes: &mut [u8], pseudo: &PseudoHeader) -> Result<(), WireError> {
    let before = pseudo.sum(IpProtocol::ICMPV6, bytes.len());
    checksum::fill("IcmpHeader", bytes, IcmpHeader::CHECKSUM_AT, before).map(drop)
}

#[cfg(test)]
mod tests {
    use super::*;
    use core::net::Ipv6Addr;
    use proptest::prelude::*;
    use std::vec;

    const PSEUDO: PseudoHeader = PseudoHeader::V6 {
        source: Ipv6Addr::new(0xfe80, 0, 0, 0, 0, 0, 0, 1),
        destination: Ipv6Addr::new(0xfe80, 0, 0, 0, 0, 0, 0, 2),
    };

    #[test]
    fn echo_request_matches_bytes_made_by_hand() {
        let echo = IcmpEcho { identifier: 0x1234, sequence: 1, data: &[] };
        let mut out = [0xff; 8];
        Icmpv6Message::EchoRequest(echo).write(&mut out).unwrap();
        fill_checksum(&mut out, &PSEUDO).unwrap();
        // fe80 + 1 + fe80 + 2 + 8 + 3a + 8000 + 1234 + 1 = 28f7a, folded 8f7c; the checksum is the
        // complement.
        assert_eq!(out, [128, 0, 0x70, 0x83, 0x12, 0x34, 0, 1]);
        assert!(checksum_ok(&out, &PSEUDO));
        out[7] ^= 1;
        assert!(!checksum_ok(&out, &PSEUDO));
    }

    #[test]
    fn every_kind_round_trips() {
        let original = &[0x60; 48][..];
        let messages = [
            (
                Icmpv6Message::DestinationUnreachable {
                    code: Icmpv6Unreachable::ADDRESS,
                    original,
                },
                [1, 3],
            ),
            (Icmpv6Message::PacketTooBig { mtu: 2044, original }, [2, 0]),
            (Icmpv6Message::TimeExceeded { code: Icmpv6TimeExceeded::HOP_LIMIT, original }, [3, 0]),
            (
                Icmpv6Message::ParameterProblem {
                    code: Icmpv6ParameterProblem::OPTION,
                    pointer: 0x0001_0028,
                    original,
                },
                [4, 2],
            ),
            (
                Icmpv6Message::EchoReply(IcmpEcho { identifier: 1, sequence: 2, data: original }),
                [129, 0],
            ),
            (
                Icmpv6Message::Unknown {
                    kind: Icmpv6Type(200),
                    code: 7,
                    rest: [1, 2, 3, 4],
                    data: original,
                },
                [200, 7],
            ),
        ];
        for (message, kind_and_code) in messages {
            let mut out = vec![0; message.wire_len()];
            assert!(message.write(&mut out).unwrap().is_empty());
            assert_eq!(out[..2], kind_and_code);
            assert_eq!(Icmpv6Message::parse(&out), Ok(message));
        }
        assert!(Icmpv6Type::PACKET_TOO_BIG.is_error() && !Icmpv6Type::ECHO_REPLY.is_error());
    }

    proptest! {
        #[test]
        fn parsing_any_bytes_never_panics(
            kind in prop_oneof![any::<u8>(), 1u8..5, 128u8..144],
            plausible: bool,
            mut bytes in proptest::collection::vec(any::<u8>(), 28..120),
        ) {
            bytes[0] = kind;
            if plausible {
                // Code zero, and plausible counts of records and sources.
                bytes[1] = 0;
                (bytes[6], bytes[7]) = (0, bytes[7] & 3);
                (bytes[10], bytes[11]) = (0, bytes[11] & 3);
                (bytes[26], bytes[27]) = (0, bytes[27] & 3);
            }
            prop_assert!(Icmpv6Message::parse(&bytes[..7]).is_err());
            checksum_ok(&bytes, &PSEUDO);
            if let Ok(message) = Icmpv6Message::parse(&bytes) {
                let mut out = vec![0; message.wire_len()];
                message.write(&mut out).unwrap();
                prop_assert_eq!(Icmpv6Message::parse(&out), Ok(message));
            }
        }
    }
}
