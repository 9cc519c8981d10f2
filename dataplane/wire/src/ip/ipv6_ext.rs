//! Extension headers of IPv6, and the iteration over them to the upper layer (RFC 8200 4).
//!
//! The number of extension headers is limited to [`EXTENSIONS_MAX`], because a long chain is cheap
//! to send and expensive to receive. The supported extension headers are hop-by-hop options,
//! routing, fragment and destination options. Every other header counts as the upper layer,
//! including ESP and the authentication header.

use super::IpProtocol;
use super::list::{Item, List};
use super::{put, split};
use crate::layout::WireError;

/// Maximum number of extension headers in one packet. With the supported kinds, a packet that
/// follows the recommendations of RFC 8200 4.1 has at most five: destination options twice, all
/// others once.
pub const EXTENSIONS_MAX: usize = 8;

layout! {
    /// The common part of extension headers with variable length (RFC 8200 4.3, 4.4, 4.6).
    pub struct ExtensionHeader: 2 bytes {
        0:0    8  next_header: IpProtocol,
        /// Length in units of 8 bytes, without the first 8 bytes.
        1:0    8  length: u8,
    }
}

layout! {
    /// The fragment header (RFC 8200 4.5).
    pub struct FragmentHeader: 8 bytes {
        0:0    8  next_header: IpProtocol,
        /// Offset of this fragment, in units of 8 bytes.
        2:0   13  fragment_offset: u16,
        3:7    1  more_fragments: bool,
        4:0   32  identification: u32,
    }
}

/// Hop-by-hop options or destination options (RFC 8200 4.3, 4.6).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct OptionsHeader<'a> {
    pub next_header: IpProtocol,
    /// The options, without padding.
    pub options: List<'a, Ipv6Option<'a>>,
}

/// A routing header (RFC 8200 4.4).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RoutingHeader<'a> {
    pub next_header: IpProtocol,
    pub routing_type: u8,
    /// Number of remaining segments. If it is zero, a node ignores a header of unknown type.
    pub segments_left: u8,
    /// Type-specific data. Its length is 4 bytes more than a multiple of 8.
    pub data: &'a [u8],
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Extension<'a> {
    HopByHop(OptionsHeader<'a>),
    Routing(RoutingHeader<'a>),
    Fragment(FragmentHeader),
    Destination(OptionsHeader<'a>),
}

impl<'a> Extension<'a> {
    /// Reads the extension header of this kind at the front of `bytes`; also returns the rest.
    /// `None` if `kind` is not a supported extension header.
    pub fn read(kind: IpProtocol, bytes: &'a [u8]) -> Result<Option<(Self, &'a [u8])>, WireError> {
        if kind == IpProtocol::FRAGMENT {
            let (header, rest) = FragmentHeader::read(bytes)?;
            return Ok(Some((Self::Fragment(header), rest)));
        }
        if !kind.is_extension() {
            return Ok(None);
        }
        let (ExtensionHeader { next_header, length }, _) = ExtensionHeader::read(bytes)?;
        let (own, rest) = split("Extension", bytes, (usize::from(length) + 1) * 8)?;
        let body = &own[ExtensionHeader::LEN..];
        let extension = match kind {
            IpProtocol::ROUTING => Self::Routing(RoutingHeader {
                next_header,
                routing_type: body[0],
                segments_left: body[1],
                data: &body[2..],
            }),
            _ => {
                let header = OptionsHeader { next_header, options: List::filling(body)? };
                match kind {
                    IpProtocol::HOP_BY_HOP => Self::HopByHop(header),
                    _ => Self::Destination(header),
                }
            }
        };
        Ok(Some((extension, rest)))
    }

    pub const fn next_header(&self) -> IpProtocol {
        match self {
            Self::HopByHop(header) | Self::Destination(header) => header.next_header,
            Self::Routing(header) => header.next_header,
            Self::Fragment(header) => header.next_header,
        }
    }

    pub fn wire_len(&self) -> usize {
        let body = match self {
            Self::HopByHop(header) | Self::Destination(header) => header.options.wire_len(),
            Self::Routing(header) => 2 + header.data.len(),
            Self::Fragment(_) => return FragmentHeader::LEN,
        };
        (ExtensionHeader::LEN + body).next_multiple_of(8)
    }

    pub fn write<'o>(&self, out: &'o mut [u8]) -> Result<&'o mut [u8], WireError> {
        let bad_length = WireError::BadLength { format: "Extension" };
        let length = u8::try_from(self.wire_len() / 8 - 1).map_err(|_| bad_length)?;
        let header = ExtensionHeader { next_header: self.next_header(), length };
        match self {
            Self::Fragment(header) => header.write(out),
            Self::Routing(RoutingHeader { data, .. }) if data.len() % 8 != 4 => Err(bad_length),
            Self::Routing(RoutingHeader { routing_type, segments_left, data, .. }) => {
                let out =
                    put("RoutingHeader", &[*routing_type, *segments_left], header.write(out)?)?;
                put("RoutingHeader", data, out)
            }
            Self::HopByHop(OptionsHeader { options, .. })
            | Self::Destination(OptionsHeader { options, .. }) => {
                let padding = self.wire_len() - ExtensionHeader::LEN - options.wire_len();
                pad(padding, options.write(header.write(out)?)?)
            }
        }
    }
}

impl IpProtocol {
    /// Whether this is an extension header that [`Extensions`] iterates over.
    #[inline]
    const fn is_extension(self) -> bool {
        matches!(
            self,
            Self::HOP_BY_HOP | Self::ROUTING | Self::FRAGMENT | Self::DESTINATION_OPTIONS
        )
    }
}

/// An iterator over the extension headers of a packet. It ends after the first error.
#[derive(Clone, Copy, Debug)]
pub struct Extensions<'a> {
    next_header: IpProtocol,
    rest: &'a [u8],
    count: usize,
}

impl<'a> Extensions<'a> {
    /// Begins with the next header and the payload of the fixed header.
    #[inline]
    pub const fn new(next_header: IpProtocol, payload: &'a [u8]) -> Self {
        Self { next_header, rest: payload, count: 0 }
    }

    fn read_next(&mut self) -> Result<Option<Extension<'a>>, WireError> {
        let Some((extension, rest)) = Extension::read(self.next_header, self.rest)? else {
            return Ok(None);
        };
        // RFC 8200 4.1: hop-by-hop options may only follow the fixed header.
        if self.next_header == IpProtocol::HOP_BY_HOP && self.count > 0 {
            return Err(WireError::BadValue { format: "Extensions", field: "next_header" });
        }
        if self.count == EXTENSIONS_MAX {
            return Err(WireError::BadLength { format: "Extensions" });
        }
        self.count += 1;
        self.rest = rest;
        self.next_header = match extension {
            // The payload of a fragment other than the first does not begin with a header.
            Extension::Fragment(header) if header.fragment_offset != 0 => {
                IpProtocol::NO_NEXT_HEADER
            }
            _ => extension.next_header(),
        };
        Ok(Some(extension))
    }
}

impl<'a> Iterator for Extensions<'a> {
    type Item = Result<Extension<'a>, WireError>;

    fn next(&mut self) -> Option<Self::Item> {
        let next = self.read_next().transpose();
        if matches!(next, Some(Err(_))) {
            self.next_header = IpProtocol::NO_NEXT_HEADER;
        }
        next
    }
}

/// The upper-layer payload of a packet, behind all extensions.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct UpperLayer<'a> {
    pub protocol: IpProtocol,
    /// The payload; in a fragment other than the first, bytes from the middle of it.
    pub payload: &'a [u8],
    pub fragment: Option<FragmentHeader>,
}

impl<'a> UpperLayer<'a> {
    /// Skips extension headers, from the next header of the fixed header to the upper layer.
    #[inline]
    pub fn find(next_header: IpProtocol, payload: &'a [u8]) -> Result<Self, WireError> {
        let mut found = Self { protocol: next_header, payload, fragment: None };
        if next_header.is_extension() {
            let mut extensions = Extensions::new(next_header, payload);
            while let Some(extension) = extensions.next().transpose()? {
                found.protocol = extension.next_header();
                found.payload = extensions.rest;
                if let Extension::Fragment(header) = extension {
                    found.fragment = Some(header);
                }
            }
        }
        Ok(found)
    }
}

codes! {
    /// Kinds of hop-by-hop and destination options (IANA).
    pub struct Ipv6OptionKind(u8) {
        PAD1 = 0,
        PADN = 1,
        ROUTER_ALERT = 5,
        JUMBO_PAYLOAD = 0xc2,
    }
}

/// An option that is not padding.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Ipv6Option<'a> {
    /// The top two bits tell a node how to handle an unknown option.
    pub kind: Ipv6OptionKind,
    /// The value, without kind and length.
    pub data: &'a [u8],
}

impl Ipv6Option<'_> {
    /// Asks every router to examine the packet (RFC 2711). MLD messages have it, with value 0.
    pub const ROUTER_ALERT_MLD: Self = Self { kind: Ipv6OptionKind::ROUTER_ALERT, data: &[0, 0] };
}

impl<'a> Item<'a> for Ipv6Option<'a> {
    fn read(mut bytes: &'a [u8]) -> Result<Option<(Self, &'a [u8])>, WireError> {
        loop {
            let (&kind, rest) = match bytes.split_first() {
                None => return Ok(None),
                Some((&0, rest)) => {
                    bytes = rest;
                    continue;
                }
                Some(other) => other,
            };
            let with_len = rest.split_first();
            let data = with_len.and_then(|(&len, rest)| rest.split_at_checked(usize::from(len)));
            let (data, rest) = data.ok_or(WireError::BadLength { format: "Ipv6Option" })?;
            bytes = rest;
            if Ipv6OptionKind(kind) != Ipv6OptionKind::PADN {
                return Ok(Some((Self { kind: Ipv6OptionKind(kind), data }, rest)));
            }
        }
    }

    fn wire_len(&self) -> usize {
        2 + self.data.len()
    }

    fn write<'o>(&self, out: &'o mut [u8]) -> Result<&'o mut [u8], WireError> {
        let len = u8::try_from(self.data.len())
            .map_err(|_| WireError::BadLength { format: "Ipv6Option" })?;
        put("Ipv6Option", self.data, put("Ipv6Option", &[self.kind.0, len], out)?)
    }
}

/// Writes `len` bytes of padding; `len` must be less than 8.
fn pad(len: usize, out: &mut [u8]) -> Result<&mut [u8], WireError> {
    match len {
        0 => Ok(out),
        1 => put("Ipv6Option", &[Ipv6OptionKind::PAD1.0], out),
        _ => Ipv6Option { kind: Ipv6OptionKind::PADN, data: &[0; 8][..len - 2] }.write(out),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::vec;
    use std::vec::Vec;

    fn chain(extensions: &[Extension<'_>], upper: &[u8]) -> Vec<u8> {
        let len = extensions.iter().map(Extension::wire_len).sum::<usize>() + upper.len();
        let mut bytes = vec![0xff; len];
        let rest = extensions.iter().fold(&mut bytes[..], |out, ext| ext.write(out).unwrap());
        rest.copy_from_slice(upper);
        bytes
    }

    #[test]
    fn router_alert_of_a_listener_report() {
        let options = [Ipv6Option::ROUTER_ALERT_MLD];
        let next_header = IpProtocol::ICMPV6;
        let header = OptionsHeader { next_header, options: List::of(&options) };
        let bytes = chain(&[Extension::HopByHop(header)], &[131]);
        assert_eq!(bytes, [58, 0, 5, 2, 0, 0, 1, 0, 131]);
        let upper = UpperLayer::find(IpProtocol::HOP_BY_HOP, &bytes).unwrap();
        assert_eq!((upper.protocol, upper.payload), (IpProtocol::ICMPV6, &[131][..]));
    }

    #[test]
    fn a_chain_of_every_kind_is_walked_to_its_end() {
        let unknown = Ipv6Option { kind: Ipv6OptionKind(0x9e), data: &[1, 2, 3] };
        let options = [Ipv6Option::ROUTER_ALERT_MLD, unknown];
        let fragment = FragmentHeader {
            next_header: IpProtocol::DESTINATION_OPTIONS,
            fragment_offset: 0,
            more_fragments: true,
            identification: 0xdead_beef,
        };
        let extensions = [
            Extension::HopByHop(OptionsHeader {
                next_header: IpProtocol::ROUTING,
                options: List::of(&options),
            }),
            Extension::Routing(RoutingHeader {
                next_header: IpProtocol::FRAGMENT,
                routing_type: 4,
                segments_left: 1,
                data: &[9; 20],
            }),
            Extension::Fragment(fragment),
            Extension::Destination(OptionsHeader {
                next_header: IpProtocol::UDP,
                options: List::of(&options[1..]),
            }),
        ];
        let bytes = chain(&extensions, b"upper");
        let walk = Extensions::new(IpProtocol::HOP_BY_HOP, &bytes);
        assert!(walk.eq(extensions.map(Ok)));
        let upper = UpperLayer::find(IpProtocol::HOP_BY_HOP, &bytes).unwrap();
        let fragment = Some(fragment);
        assert_eq!(upper, UpperLayer { protocol: IpProtocol::UDP, payload: b"upper", fragment });
    }

    #[test]
    fn the_middle_of_a_packet_is_not_taken_for_a_header() {
        let fragment = FragmentHeader {
            next_header: IpProtocol::DESTINATION_OPTIONS,
            fragment_offset: 3,
            more_fragments: false,
            identification: 1,
        };
        let bytes = chain(&[Extension::Fragment(fragment)], &[0xff; 9]);
        assert_eq!(bytes[..8], [60, 0, 0, 24, 0, 0, 0, 1]);
        let upper = UpperLayer::find(IpProtocol::FRAGMENT, &bytes).unwrap();
        assert_eq!(upper.protocol, IpProtocol::DESTINATION_OPTIONS);
        assert_eq!((upper.payload, upper.fragment), (&[0xff; 9][..], Some(fragment)));
    }

    #[test]
    fn chains_too_long_or_out_of_order_are_refused() {
        let link = [60, 0, 1, 4, 0, 0, 0, 0];
        let last = [17, 0, 1, 4, 0, 0, 0, 0];
        let longest = [&link.repeat(EXTENSIONS_MAX - 1)[..], &last].concat();
        assert!(UpperLayer::find(IpProtocol::DESTINATION_OPTIONS, &longest).is_ok());
        let longer = [&link[..], &longest].concat();
        assert!(UpperLayer::find(IpProtocol::DESTINATION_OPTIONS, &longer).is_err());

        let late = [[0, 0, 1, 4, 0, 0, 0, 0], last].concat();
        assert!(UpperLayer::find(IpProtocol::DESTINATION_OPTIONS, &late).is_err());
        assert!(UpperLayer::find(IpProtocol::ROUTING, &[17, 1, 0, 0, 0, 0, 0, 0]).is_err());
        let odd = RoutingHeader {
            next_header: IpProtocol::UDP,
            routing_type: 0,
            segments_left: 0,
            data: &[0; 5],
        };
        assert!(Extension::Routing(odd).write(&mut [0; 64]).is_err());
    }

    proptest! {
        #[test]
        fn any_bytes_are_walked_without_a_panic(
            bytes in proptest::collection::vec(
                prop_oneof![any::<u8>(), Just(0), Just(43), Just(44), Just(60)], 0..200),
            first in prop_oneof![Just(0u8), Just(43), Just(44), Just(60)],
        ) {
            let first = IpProtocol(first);
            let walk: Vec<_> = Extensions::new(first, &bytes).collect();
            prop_assert!(walk.len() <= EXTENSIONS_MAX + 1);
            let upper = UpperLayer::find(first, &bytes);
            prop_assert_eq!(upper.is_ok(), walk.iter().all(Result::is_ok));
            for extension in walk.into_iter().flatten() {
                // The original may have had different padding, so only the values are compared.
                let mut out = vec![0; extension.wire_len()];
                extension.write(&mut out).unwrap();
                let kind = match extension {
                    Extension::HopByHop(_) => IpProtocol::HOP_BY_HOP,
                    Extension::Routing(_) => IpProtocol::ROUTING,
                    Extension::Fragment(_) => IpProtocol::FRAGMENT,
                    Extension::Destination(_) => IpProtocol::DESTINATION_OPTIONS,
                };
                prop_assert_eq!(Extension::read(kind, &out), Ok(Some((extension, &[][..]))));
            }
        }
    }
}
