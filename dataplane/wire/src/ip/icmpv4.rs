//! ICMP for IPv4 (RFC 792; RFC 1191 for the next-hop MTU, RFC 1812 5.2.7 for codes).

use super::checksum::{self, Sum};
use super::icmp::{IcmpEcho, IcmpHeader};
use super::put;
use crate::layout::WireError;
use core::net::Ipv4Addr;

codes! {
    /// Message types (IANA).
    pub struct Icmpv4Type(u8) {
        ECHO_REPLY = 0,
        DESTINATION_UNREACHABLE = 3,
        REDIRECT = 5,
        ECHO_REQUEST = 8,
        TIME_EXCEEDED = 11,
        PARAMETER_PROBLEM = 12,
    }
}

codes! {
    /// Why a destination is unreachable (RFC 792, RFC 1812 5.2.7.1).
    pub struct Icmpv4Unreachable(u8) {
        NET = 0,
        HOST = 1,
        PROTOCOL = 2,
        PORT = 3,
        FRAGMENTATION_NEEDED = 4,
        SOURCE_ROUTE_FAILED = 5,
        NET_PROHIBITED = 9,
        HOST_PROHIBITED = 10,
        COMMUNICATION_PROHIBITED = 13,
    }
}

codes! {
    /// The code of a redirect (RFC 792).
    pub struct Icmpv4RedirectScope(u8) {
        NET = 0,
        HOST = 1,
        SERVICE_AND_NET = 2,
        SERVICE_AND_HOST = 3,
    }
}

codes! {
    /// The time limit that was exceeded: the TTL or the reassembly timeout (RFC 792).
    pub struct Icmpv4TimeExceeded(u8) {
        IN_TRANSIT = 0,
        REASSEMBLY = 1,
    }
}

/// An ICMP message. `original` is the beginning of the packet that caused an error message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Icmpv4Message<'a> {
    EchoRequest(IcmpEcho<'a>),
    EchoReply(IcmpEcho<'a>),
    DestinationUnreachable {
        code: Icmpv4Unreachable,
        /// The MTU of the next hop, with code `FRAGMENTATION_NEEDED` (RFC 1191 4).
        next_hop_mtu: u16,
        original: &'a [u8],
    },
    Redirect {
        code: Icmpv4RedirectScope,
        gateway: Ipv4Addr,
        original: &'a [u8],
    },
    TimeExceeded {
        code: Icmpv4TimeExceeded,
        original: &'a [u8],
    },
    ParameterProblem {
        /// 0 if `pointer` is valid.
        code: u8,
        /// Offset of the wrong byte in the packet.
        pointer: u8,
        original: &'a [u8],
    },
    Unknown {
        kind: Icmpv4Type,
        code: u8,
        /// The second four bytes of the header.
        rest: [u8; 4],
        data: &'a [u8],
    },
}

impl<'a> Icmpv4Message<'a> {
    pub fn parse(bytes: &'a [u8]) -> Result<Self, WireError> {
        let (IcmpHeader { kind, code, rest, .. }, data) = IcmpHeader::read(bytes)?;
        Ok(match Icmpv4Type(kind) {
            Icmpv4Type::ECHO_REQUEST => Self::EchoRequest(IcmpEcho::new(rest, data)),
            Icmpv4Type::ECHO_REPLY => Self::EchoReply(IcmpEcho::new(rest, data)),
            Icmpv4Type::DESTINATION_UNREACHABLE => Self::DestinationUnreachable {
                code: Icmpv4Unreachable(code),
                next_hop_mtu: u16::from_be_bytes([rest[2], rest[3]]),
                original: data,
            },
            Icmpv4Type::REDIRECT => Self::Redirect {
                code: Icmpv4RedirectScope(code),
                gateway: rest.into(),
                original: data,
            },
            Icmpv4Type::TIME_EXCEEDED => {
                Self::TimeExceeded { code: Icmpv4TimeExceeded(code), original: data }
            }
            Icmpv4Type::PARAMETER_PROBLEM => {
                Self::ParameterProblem { code, pointer: rest[0], original: data }
            }
            kind => Self::Unknown { kind, code, rest, data },
        })
    }

    pub const fn wire_len(&self) -> usize {
        IcmpHeader::LEN + self.parts().1.len()
    }

    pub fn write<'o>(&self, out: &'o mut [u8]) -> Result<&'o mut [u8], WireError> {
        let (header, data) = self.parts();
        put("IcmpHeader", data, header.write(out)?)
    }

    const fn parts(&self) -> (IcmpHeader, &'a [u8]) {
        let (kind, code, rest, data) = match *self {
            Self::EchoRequest(echo) => (Icmpv4Type::ECHO_REQUEST, 0, echo.rest(), echo.data),
            Self::EchoReply(echo) => (Icmpv4Type::ECHO_REPLY, 0, echo.rest(), echo.data),
            Self::DestinationUnreachable { code, next_hop_mtu, original } => {
                let rest = (next_hop_mtu as u32).to_be_bytes();
                (Icmpv4Type::DESTINATION_UNREACHABLE, code.0, rest, original)
            }
            Self::Redirect { code, gateway, original } => {
                (Icmpv4Type::REDIRECT, code.0, gateway.octets(), original)
            }
            Self::TimeExceeded { code, original } => {
                (Icmpv4Type::TIME_EXCEEDED, code.0, [0; 4], original)
            }
            Self::ParameterProblem { code, pointer, original } => {
                (Icmpv4Type::PARAMETER_PROBLEM, code, [pointer, 0, 0, 0], original)
            }
            Self::Unknown { kind, code, rest, data } => (kind, code, rest, data),
        };
        (IcmpHeader::new(kind.0, code, rest), data)
    }
}

pub fn checksum_ok(bytes: &[u8]) -> bool {
    Sum::of(bytes).is_ok()
}

pub fn fill_checksum(bytes: &mut [u8]) -> Result<(), WireError> {
    checksum::fill("IcmpHeader", bytes, IcmpHeader::CHECKSUM_AT, Sum::default()).map(drop)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::vec;

    #[test]
    fn echo_request_matches_bytes_made_by_hand() {
        let echo = IcmpEcho { identifier: 0x1234, sequence: 1, data: b"ab" };
        let mut out = [0xff; 10];
        Icmpv4Message::EchoRequest(echo).write(&mut out).unwrap();
        fill_checksum(&mut out).unwrap();
        // 0800 + 1234 + 0001 + 6162 = 7b97; the checksum is the complement.
        assert_eq!(out, [8, 0, 0x84, 0x68, 0x12, 0x34, 0, 1, b'a', b'b']);
        assert!(checksum_ok(&out));
        out[9] ^= 1;
        assert!(!checksum_ok(&out));
    }

    #[test]
    fn every_kind_round_trips() {
        let original = &[0x45; 28][..];
        let messages = [
            (
                Icmpv4Message::EchoReply(IcmpEcho { identifier: 1, sequence: 2, data: original }),
                [0, 0],
            ),
            (
                Icmpv4Message::DestinationUnreachable {
                    code: Icmpv4Unreachable::FRAGMENTATION_NEEDED,
                    next_hop_mtu: 2044,
                    original,
                },
                [3, 4],
            ),
            (
                Icmpv4Message::Redirect {
                    code: Icmpv4RedirectScope::HOST,
                    gateway: Ipv4Addr::new(10, 0, 0, 254),
                    original,
                },
                [5, 1],
            ),
            (
                Icmpv4Message::TimeExceeded { code: Icmpv4TimeExceeded::IN_TRANSIT, original },
                [11, 0],
            ),
            (Icmpv4Message::ParameterProblem { code: 0, pointer: 20, original }, [12, 0]),
            (
                Icmpv4Message::Unknown {
                    kind: Icmpv4Type(13),
                    code: 0,
                    rest: [1, 2, 3, 4],
                    data: original,
                },
                [13, 0],
            ),
        ];
        for (message, kind_and_code) in messages {
            let mut out = vec![0; message.wire_len()];
            assert!(message.write(&mut out).unwrap().is_empty());
            assert_eq!(out[..2], kind_and_code);
            assert_eq!(Icmpv4Message::parse(&out), Ok(message));
        }
    }

    #[test]
    fn next_hop_mtu_is_in_the_last_two_bytes_before_the_packet() {
        let bytes = [3, 4, 0, 0, 0xff, 0xff, 0x07, 0xfc];
        let Ok(Icmpv4Message::DestinationUnreachable { next_hop_mtu, .. }) =
            Icmpv4Message::parse(&bytes)
        else {
            panic!("it is one");
        };
        assert_eq!(next_hop_mtu, 2044);
    }

    proptest! {
        #[test]
        fn parsing_any_bytes_never_panics(bytes in proptest::collection::vec(any::<u8>(), 0..40)) {
            checksum_ok(&bytes);
            if let Ok(message) = Icmpv4Message::parse(&bytes) {
                let mut out = vec![0; message.wire_len()];
                message.write(&mut out).unwrap();
                prop_assert_eq!(Icmpv4Message::parse(&out).unwrap().wire_len(), bytes.len());
            }
            let mut bytes = bytes;
            prop_assert_eq!(fill_checksum(&mut bytes).is_ok(), bytes.len() >= 4);
        }
    }
}
