//! Options of neighbor discovery (RFC 4861 4.6, RFC 8106 5.1; RFC 4391 9.3 for link addresses).
//!
//! The length of an option is in units of 8 bytes, and includes type and length. A length of zero
//! makes the message invalid (RFC 4861 4.6). An option with an unknown type, or with a wrong length
//! for its type, is an [`NdOption::Unknown`]. Receivers skip it, so that future options do not
//! break them. The length of a link address option tells InfiniBand from Ethernet.

use super::link_address::LinkAddress;
use super::list::{Item, List};
use super::{put, split};
use crate::ethernet::MacAddress;
use crate::layout::WireError;
use core::net::Ipv6Addr;

layout! {
    /// The header of an option (RFC 4861 4.6).
    pub struct NdOptionHeader: 2 bytes {
        0:0    8  kind: NdOptionType,
        /// Length of the option in units of 8 bytes.
        1:0    8  length: u8,
    }
}

codes! {
    /// Types of options (IANA).
    pub struct NdOptionType(u8) {
        SOURCE_LINK_LAYER_ADDRESS = 1,
        TARGET_LINK_LAYER_ADDRESS = 2,
        PREFIX_INFORMATION = 3,
        REDIRECTED_HEADER = 4,
        MTU = 5,
        RECURSIVE_DNS_SERVER = 25,
    }
}

layout! {
    /// A link address option of InfiniBand, with two zero bytes before the address (RFC 4391 9.3).
    pub struct LinkAddressOption: 24 bytes {
        4:0  160  address: LinkAddress,
    }
}

layout! {
    /// A link address option of Ethernet (RFC 4861 4.6.1, RFC 2464 6).
    pub struct MacAddressOption: 8 bytes {
        2:0   48  address: MacAddress,
    }
}

layout! {
    /// A prefix of the link (RFC 4861 4.6.2).
    pub struct PrefixInformation: 32 bytes {
        2:0    8  prefix_length: u8,
        3:0    1  on_link: bool,
        /// Hosts may form addresses from the prefix (RFC 4862).
        3:1    1  autonomous: bool,
        /// How long the prefix is on the link; all ones is infinity.
        4:0   32  valid_lifetime_seconds: u32,
        /// How long addresses from the prefix are preferred; all ones is infinity.
        8:0   32  preferred_lifetime_seconds: u32,
        /// The prefix; bits behind its length are ignored.
        16:0 128  prefix: Ipv6Addr,
    }
}

layout! {
    /// The link's MTU (RFC 4861 4.6.4).
    pub struct MtuOption: 8 bytes {
        4:0   32  mtu: u32,
    }
}

layout! {
    /// The header of a list of DNS servers (RFC 8106 5.1).
    pub struct RecursiveDnsServerHeader: 8 bytes {
        4:0   32  lifetime_seconds: u32,
    }
}

/// The address in a source or target link address option; the option length determines the kind.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LinkLayerAddress {
    InfiniBand(LinkAddress),
    Ethernet(MacAddress),
}

impl LinkLayerAddress {
    fn parse(option: &[u8]) -> Option<Self> {
        if let Ok(option) = option.try_into() {
            return Some(Self::Ethernet(MacAddressOption::parse(option).address));
        }
        Some(Self::InfiniBand(LinkAddressOption::parse(option.try_into().ok()?).address))
    }

    const fn option_len(self) -> usize {
        match self {
            Self::InfiniBand(_) => LinkAddressOption::LEN,
            Self::Ethernet(_) => MacAddressOption::LEN,
        }
    }

    fn write(self, out: &mut [u8]) -> Result<&mut [u8], WireError> {
        match self {
            Self::InfiniBand(address) => LinkAddressOption { address }.write(out),
            Self::Ethernet(address) => MacAddressOption { address }.write(out),
        }
    }
}

impl From<LinkAddress> for LinkLayerAddress {
    fn from(address: LinkAddress) -> Self {
        Self::InfiniBand(address)
    }
}

impl From<MacAddress> for LinkLayerAddress {
    fn from(address: MacAddress) -> Self {
        Self::Ethernet(address)
    }
}

/// An option of neighbor discovery.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NdOption<'a> {
    Source(LinkLayerAddress),
    Target(LinkLayerAddress),
    Prefix(PrefixInformation),
    /// The beginning of the redirected packet, padded to a multiple of 8 bytes.
    RedirectedHeader(&'a [u8]),
    Mtu(u32),
    RecursiveDnsServers {
        lifetime_seconds: u32,
        /// The servers, at least one.
        servers: List<'a, Ipv6Addr>,
    },
    Unknown {
        kind: NdOptionType,
        /// The value, without type and length. Its length is 2 bytes less than a multiple of 8.
        body: &'a [u8],
    },
}

/// Length of type, length and reserved bytes before the packet in a redirected header option.
const REDIRECTED_HEADER_LEN: usize = 8;

impl<'a> NdOption<'a> {
    /// Parses the option that fills `bytes`; `None` if the type is unknown or the length is wrong.
    fn known(kind: NdOptionType, bytes: &'a [u8]) -> Option<Self> {
        match kind {
            NdOptionType::SOURCE_LINK_LAYER_ADDRESS => {
                LinkLayerAddress::parse(bytes).map(Self::Source)
            }
            NdOptionType::TARGET_LINK_LAYER_ADDRESS => {
                LinkLayerAddress::parse(bytes).map(Self::Target)
            }
            NdOptionType::PREFIX_INFORMATION => {
                Some(Self::Prefix(PrefixInformation::parse(bytes.try_into().ok()?)))
            }
            NdOptionType::REDIRECTED_HEADER => {
                Some(Self::RedirectedHeader(&bytes[REDIRECTED_HEADER_LEN..]))
            }
            NdOptionType::MTU => Some(Self::Mtu(MtuOption::parse(bytes.try_into().ok()?).mtu)),
            NdOptionType::RECURSIVE_DNS_SERVER => {
                let (header, servers) = RecursiveDnsServerHeader::read(bytes).ok()?;
                let servers = List::filling(servers).ok().filter(|_| !servers.is_empty())?;
                let RecursiveDnsServerHeader { lifetime_seconds } = header;
                Some(Self::RecursiveDnsServers { lifetime_seconds, servers })
            }
            _ => None,
        }
    }

    const fn kind(&self) -> NdOptionType {
        match self {
            Self::Source(_) => NdOptionType::SOURCE_LINK_LAYER_ADDRESS,
            Self::Target(_) => NdOptionType::TARGET_LINK_LAYER_ADDRESS,
            Self::Prefix(_) => NdOptionType::PREFIX_INFORMATION,
            Self::RedirectedHeader(_) => NdOptionType::REDIRECTED_HEADER,
            Self::Mtu(_) => NdOptionType::MTU,
            Self::RecursiveDnsServers { .. } => NdOptionType::RECURSIVE_DNS_SERVER,
            Self::Unknown { kind, .. } => *kind,
        }
    }
}

impl<'a> Item<'a> for NdOption<'a> {
    fn read(bytes: &'a [u8]) -> Result<Option<(Self, &'a [u8])>, WireError> {
        let (NdOptionHeader { kind, length }, _) = NdOptionHeader::read(bytes)?;
        if length == 0 {
            return Err(WireError::BadLength { format: "NdOption" });
        }
        let (own, rest) = split("NdOption", bytes, usize::from(length) * 8)?;
        let unknown = Self::Unknown { kind, body: &own[NdOptionHeader::LEN..] };
        Ok(Some((Self::known(kind, own).unwrap_or(unknown), rest)))
    }

    fn wire_len(&self) -> usize {
        let len = match self {
            Self::Source(address) | Self::Target(address) => address.option_len(),
            Self::Prefix(_) => PrefixInformation::LEN,
            Self::RedirectedHeader(packet) => REDIRECTED_HEADER_LEN + packet.len(),
            Self::Mtu(_) => MtuOption::LEN,
            Self::RecursiveDnsServers { servers, .. } => {
                RecursiveDnsServerHeader::LEN + servers.wire_len()
            }
            Self::Unknown { body, .. } => NdOptionHeader::LEN + body.len(),
        };
        len.next_multiple_of(8)
    }

    fn write<'o>(&self, out: &'o mut [u8]) -> Result<&'o mut [u8], WireError> {
        let format = "NdOption";
        let length =
            u8::try_from(self.wire_len() / 8).map_err(|_| WireError::BadLength { format })?;
        let (own, after) = super::split_mut(format, out, self.wire_len())?;
        own.fill(0);
        match self {
            Self::Source(address) | Self::Target(address) => {
                address.write(own)?;
            }
            Self::Prefix(prefix) => {
                prefix.write(own)?;
            }
            Self::RedirectedHeader(packet) => {
                put(format, packet, &mut own[REDIRECTED_HEADER_LEN..])?;
            }
            Self::Mtu(mtu) => {
                MtuOption { mtu: *mtu }.write(own)?;
            }
            Self::RecursiveDnsServers { lifetime_seconds, servers } => {
                let lifetime_seconds = *lifetime_seconds;
                servers.write(RecursiveDnsServerHeader { lifetime_seconds }.write(own)?)?;
            }
            Self::Unknown { body, .. } => {
                put(format, body, &mut own[NdOptionHeader::LEN..])?;
            }
        }
        // The layouts above write zeros here, so the header must be written last.
        NdOptionHeader { kind: self.kind(), length }.write(own)?;
        Ok(after)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::address::{Gid, Guid, Qpn};
    use crate::ip::list::Items;
    use proptest::prelude::*;
    use std::vec;
    use std::vec::Vec;

    fn written(option: &NdOption<'_>) -> Vec<u8> {
        let mut out = vec![0xff; option.wire_len()];
        assert!(option.write(&mut out).unwrap().is_empty());
        out
    }

    // req: ud-nd-option
    #[test]
    fn link_address_option_has_three_units_and_two_zeros_before_the_address() {
        let gid = Gid::new(Gid::DEFAULT_PREFIX, Guid(0x0002_c903_0000_1001));
        let address = LinkAddress { rc: true, uc: false, qpn: Qpn(0x48), gid }.into();
        for (option, kind) in [(NdOption::Source(address), 1), (NdOption::Target(address), 2)] {
            let bytes = written(&option);
            assert_eq!(bytes[..8], [kind, 3, 0, 0, 0x80, 0, 0, 0x48]);
            assert_eq!((bytes.len(), &bytes[8..]), (24, &gid.0[..]));
            assert_eq!(NdOption::read(&bytes), Ok(Some((option, &[][..]))));
        }
    }

    #[test]
    fn an_address_of_ethernet_has_one_unit() {
        let address = MacAddress([2, 0, 0x5e, 0, 0, 1]).into();
        for (option, kind) in [(NdOption::Source(address), 1), (NdOption::Target(address), 2)] {
            let bytes = written(&option);
            assert_eq!(bytes[..], [kind, 1, 2, 0, 0x5e, 0, 0, 1]);
            assert_eq!(NdOption::read(&bytes), Ok(Some((option, &[][..]))));
        }
    }

    #[test]
    fn prefix_and_mtu_match_bytes_made_by_hand() {
        let prefix = PrefixInformation {
            prefix_length: 64,
            on_link: true,
            autonomous: true,
            valid_lifetime_seconds: 0x0102_0304,
            preferred_lifetime_seconds: 0x0506_0708,
            prefix: "2001:db8::".parse().unwrap(),
        };
        let bytes = written(&NdOption::Prefix(prefix));
        assert_eq!(bytes[..16], [3, 4, 64, 0xc0, 1, 2, 3, 4, 5, 6, 7, 8, 0, 0, 0, 0]);
        assert_eq!(bytes[16..], prefix.prefix.octets());
        assert_eq!(written(&NdOption::Mtu(2044)), [5, 1, 0, 0, 0, 0, 0x07, 0xfc]);
    }

    #[test]
    fn every_kind_round_trips() {
        let servers = [Ipv6Addr::LOCALHOST, Ipv6Addr::UNSPECIFIED];
        let options = [
            NdOption::Prefix(PrefixInformation::default()),
            NdOption::RedirectedHeader(&[0x60; 48]),
            NdOption::Mtu(2044),
            NdOption::RecursiveDnsServers { lifetime_seconds: 60, servers: List::of(&servers) },
            NdOption::Unknown { kind: NdOptionType(31), body: &[1, 2, 3, 4, 5, 6] },
        ];
        let mut out = vec![0; options.iter().map(NdOption::wire_len).sum()];
        List::of(&options).write(&mut out).unwrap();
        assert_eq!(List::filling(&out), Ok(List::of(&options)));
        assert!(NdOption::RedirectedHeader(&[0; 2033]).write(&mut [0; 2048]).is_err());
        assert_eq!(NdOption::RedirectedHeader(&[1; 3]).wire_len(), 16);
    }

    #[test]
    fn known_types_of_other_lengths_are_skipped_and_a_zero_is_an_error() {
        // A link address option with a length of two units.
        let (option, _) =
            NdOption::read(&[1, 2, 2, 0, 0, 0, 0, 1, 0, 0, 0, 0, 0, 0, 0, 0]).unwrap().unwrap();
        assert!(matches!(option, NdOption::Unknown { kind: NdOptionType(1), .. }));
        let (option, _) = NdOption::read(&[25, 1, 0, 0, 0, 0, 0, 1]).unwrap().unwrap();
        assert!(matches!(option, NdOption::Unknown { .. }), "no server");
        assert!(NdOption::read(&[1, 0, 0, 0, 0, 0, 0, 0]).is_err());
        assert!(NdOption::read(&[1]).is_err() && NdOption::read(&[1, 3, 0, 0]).is_err());
    }

    proptest! {
        #[test]
        fn any_bytes_walk_to_their_end(
            bytes in proptest::collection::vec(prop_oneof![any::<u8>(), 0u8..6, Just(25)], 0..200),
        ) {
            for option in Items::<NdOption<'_>>::new(&bytes).flatten() {
                let again = written(&option);
                prop_assert_eq!(NdOption::read(&again), Ok(Some((option, &[][..]))));
            }
        }
    }
}
