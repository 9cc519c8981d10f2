//! Neighbor discovery (RFC 4861 4; RFC 4191 2.2 for the router's preference).
//!
//! Neighbor discovery resolves link addresses, and announces routers to hosts. The parser checks
//! that the code is zero and the options are complete. The caller, which has the IPv6 header, must
//! check that the hop limit is 255, so that messages from other links are dropped.

use super::icmp::{IcmpHeader, Icmpv6Type};
use super::list::List;
use super::nd_option::NdOption;
use super::put;
use crate::layout::WireError;
use core::net::Ipv6Addr;

layout! {
    /// Router advertisement (RFC 4861 4.2).
    pub struct RouterAdvertisement: 16 bytes {
        /// The hop limit that hosts should use; 0 if unspecified.
        4:0    8  cur_hop_limit: u8,
        /// DHCPv6 provides addresses.
        5:0    1  managed: bool,
        /// DHCPv6 provides other configuration.
        5:1    1  other_config: bool,
        /// Preference of this router: 1 is high, 0 is medium, 3 is low (RFC 4191 2.1).
        5:3    2  preference: u8,
        /// How long the sender is a default router; 0 if it is none.
        6:0   16  router_lifetime_seconds: u16,
        /// How long a neighbor is reachable after a confirmation; 0 if unspecified.
        8:0   32  reachable_time_ms: u32,
        /// Time between retransmitted solicitations; 0 if unspecified.
        12:0  32  retrans_timer_ms: u32,
    }
}

layout! {
    /// Neighbor solicitation (RFC 4861 4.3).
    pub struct NeighborSolicitation: 24 bytes {
        8:0  128  target: Ipv6Addr,
    }
}

layout! {
    /// Neighbor advertisement (RFC 4861 4.4).
    pub struct NeighborAdvertisement: 24 bytes {
        4:0    1  router: bool,
        4:1    1  solicited: bool,
        /// The receiver must replace a cached link address.
        4:2    1  override_cached: bool,
        8:0  128  target: Ipv6Addr,
    }
}

layout! {
    /// Redirect (RFC 4861 4.5).
    pub struct Redirect: 40 bytes {
        /// The better first hop; the destination itself if it is a neighbor.
        8:0  128  target: Ipv6Addr,
        24:0 128  destination: Ipv6Addr,
    }
}

/// The fixed part of a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NdBody {
    /// Router solicitation, which has no fields (RFC 4861 4.1).
    RouterSolicitation,
    RouterAdvertisement(RouterAdvertisement),
    NeighborSolicitation(NeighborSolicitation),
    NeighborAdvertisement(NeighborAdvertisement),
    Redirect(Redirect),
}

impl NdBody {
    fn read(bytes: &[u8]) -> Result<(Self, &[u8]), WireError> {
        let (IcmpHeader { kind, code, .. }, rest) = IcmpHeader::read(bytes)?;
        if code != 0 {
            return Err(WireError::BadValue { format: "NdMessage", field: "code" });
        }
        match Icmpv6Type(kind) {
            Icmpv6Type::ROUTER_SOLICITATION => Ok((Self::RouterSolicitation, rest)),
            Icmpv6Type::ROUTER_ADVERTISEMENT => RouterAdvertisement::read(bytes)
                .map(|(body, rest)| (Self::RouterAdvertisement(body), rest)),
            Icmpv6Type::NEIGHBOR_SOLICITATION => NeighborSolicitation::read(bytes)
                .map(|(body, rest)| (Self::NeighborSolicitation(body), rest)),
            Icmpv6Type::NEIGHBOR_ADVERTISEMENT => NeighborAdvertisement::read(bytes)
                .map(|(body, rest)| (Self::NeighborAdvertisement(body), rest)),
            Icmpv6Type::REDIRECT => {
                Redirect::read(bytes).map(|(body, rest)| (Self::Redirect(body), rest))
            }
            _ => Err(WireError::BadValue { format: "NdMessage", field: "type" }),
        }
    }

    const fn wire_len(&self) -> usize {
        match self {
            Self::RouterSolicitation => IcmpHeader::LEN,
            Self::RouterAdvertisement(_) => RouterAdvertisement::LEN,
            Self::NeighborSolicitation(_) => NeighborSolicitation::LEN,
            Self::NeighborAdvertisement(_) => NeighborAdvertisement::LEN,
            Self::Redirect(_) => Redirect::LEN,
        }
    }

    fn write<'o>(&self, out: &'o mut [u8]) -> Result<&'o mut [u8], WireError> {
        // The layouts omit the common ICMPv6 header, so its bytes, including the type, are zero.
        let with_type = |kind: Icmpv6Type, bytes: &mut [u8], out: &'o mut [u8]| {
            bytes[0] = kind.0;
            put("NdMessage", bytes, out)
        };
        match self {
            Self::RouterSolicitation => {
                with_type(Icmpv6Type::ROUTER_SOLICITATION, &mut [0; IcmpHeader::LEN], out)
            }
            Self::RouterAdvertisement(body) => {
                with_type(Icmpv6Type::ROUTER_ADVERTISEMENT, &mut body.emit(), out)
            }
            Self::NeighborSolicitation(body) => {
                with_type(Icmpv6Type::NEIGHBOR_SOLICITATION, &mut body.emit(), out)
            }
            Self::NeighborAdvertisement(body) => {
                with_type(Icmpv6Type::NEIGHBOR_ADVERTISEMENT, &mut body.emit(), out)
            }
            Self::Redirect(body) => with_type(Icmpv6Type::REDIRECT, &mut body.emit(), out),
        }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NdMessage<'a> {
    pub body: NdBody,
    pub options: List<'a, NdOption<'a>>,
}

impl<'a> NdMessage<'a> {
    /// Parses the ICMPv6 message that fills `bytes`.
    pub fn parse(bytes: &'a [u8]) -> Result<Self, WireError> {
        let (body, options) = NdBody::read(bytes)?;
        Ok(Self { body, options: List::filling(options)? })
    }

    pub fn wire_len(&self) -> usize {
        self.body.wire_len() + self.options.wire_len()
    }

    pub fn write<'o>(&self, out: &'o mut [u8]) -> Result<&'o mut [u8], WireError> {
        self.options.write(self.body.write(out)?)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::address::{Gid, Guid, Qpn};
    use crate::ip::link_address::LinkAddress;
    use std::vec;
    use std::vec::Vec;

    fn written(message: &NdMessage<'_>) -> Vec<u8> {
        let mut out = vec![0xff; message.wire_len()];
        assert!(message.write(&mut out).unwrap().is_empty());
        out
    }

    fn address() -> LinkAddress {
        let gid = Gid::new(Gid::DEFAULT_PREFIX, Guid(0x0002_c903_0000_1001));
        LinkAddress { rc: true, uc: false, qpn: Qpn(0x48), gid }
    }

    #[test]
    fn advertisement_matches_bytes_made_by_hand() {
        let options = [NdOption::Target(address().into())];
        let target: Ipv6Addr = "fe80::202:c903:0:1001".parse().unwrap();
        let body = NdBody::NeighborAdvertisement(NeighborAdvertisement {
            router: false,
            solicited: true,
            override_cached: true,
            target,
        });
        let message = NdMessage { body, options: List::of(&options) };
        let bytes = written(&message);
        assert_eq!(bytes[..8], [136, 0, 0, 0, 0x60, 0, 0, 0]);
        assert_eq!(bytes[8..24], target.octets());
        assert_eq!((bytes.len(), &bytes[24..28]), (48, &[2, 3, 0, 0][..]));
        assert_eq!(NdMessage::parse(&bytes), Ok(message));
    }

    #[test]
    fn every_kind_round_trips() {
        let options = [NdOption::Source(address().into()), NdOption::Mtu(2044)];
        let advertisement = RouterAdvertisement {
            cur_hop_limit: 64,
            managed: false,
            other_config: true,
            preference: 3,
            router_lifetime_seconds: 1800,
            reachable_time_ms: 30_000,
            retrans_timer_ms: 1000,
        };
        let target = Ipv6Addr::LOCALHOST;
        let bodies = [
            (NdBody::RouterSolicitation, 133),
            (NdBody::RouterAdvertisement(advertisement), 134),
            (NdBody::NeighborSolicitation(NeighborSolicitation { target }), 135),
            (
                NdBody::Redirect(Redirect { target, destination: "2001:db8::1".parse().unwrap() }),
                137,
            ),
        ];
        for (body, kind) in bodies {
            let message = NdMessage { body, options: List::of(&options) };
            let bytes = written(&message);
            assert_eq!(bytes[0], kind);
            assert_eq!(NdMessage::parse(&bytes), Ok(message));
            assert!(NdMessage::parse(&bytes[..body.wire_len() - 1]).is_err());
            assert!(NdMessage::parse(&bytes[..bytes.len() - 1]).is_err());
        }
        assert_eq!(
            advertisement.emit()[4..],
            [64, 0x58, 0x07, 0x08, 0, 0, 0x75, 0x30, 0, 0, 0x03, 0xe8]
        );
    }

    #[test]
    fn other_codes_and_empty_options_void_a_message() {
        let options = [NdOption::Mtu(2044)];
        let body = NdBody::RouterSolicitation;
        let bytes = written(&NdMessage { body, options: List::of(&options) });
        for (byte, value) in [(0, 1), (1, 1), (9, 0), (9, 2)] {
            let mut other = bytes.clone();
            other[byte] = value;
            assert!(NdMessage::parse(&other).is_err(), "byte {byte} is {value}");
        }
    }
}
