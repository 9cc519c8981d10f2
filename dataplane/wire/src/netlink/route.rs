//! Routes of the kernel (`struct rtmsg`, `RTA_*`, `struct rtnexthop`).
//!
//! Byte offsets: 0 family, 1 destination length, 2 source length, 3 TOS, 4 table, 5 protocol,
//! 6 scope, 7 type, 8 flags; then attributes. A table number above 255 is in `RTA_TABLE` only.
//!
//! A route has one path in its own attributes, or several paths in `RTA_MULTIPATH`, or it refers to
//! a nexthop object with `RTA_NH_ID`. A route with a nexthop object may also contain copies of the
//! object's paths; the object takes precedence.

use super::AddressFamily;
use super::attribute::{AttributeWriter, Attributes, NetlinkAttribute, u16_at, u32_at};
use crate::layout::{WireError, split_header};
use core::net::IpAddr;

const HEADER_LEN: usize = 12;
const HOP_LEN: usize = 8;

const DESTINATION: u16 = 1;
const INTERFACE: u16 = 4;
const GATEWAY: u16 = 5;
const PRIORITY: u16 = 6;
const PREFERRED_SOURCE: u16 = 7;
const MULTIPATH: u16 = 9;
const TABLE: u16 = 15;
const VIA: u16 = 18;
const ENCAPSULATION: u16 = 22;
const NEXTHOP_ID: u16 = 30;

/// The value of `rtm_table` if the table number does not fit in it (`RT_TABLE_COMPAT`).
const TABLE_COMPAT: u8 = 252;

codes! {
    /// The type of a route (`RTN_*`).
    pub struct RouteType(u8) {
        UNSPECIFIED = 0,
        UNICAST = 1,
        LOCAL = 2,
        BROADCAST = 3,
        ANYCAST = 4,
        MULTICAST = 5,
        BLACKHOLE = 6,
        UNREACHABLE = 7,
        PROHIBIT = 8,
        THROW = 9,
    }
}

codes! {
    /// The origin of a route (`RTPROT_*`).
    pub struct RouteProtocol(u8) {
        REDIRECT = 1,
        KERNEL = 2,
        BOOT = 3,
        STATIC = 4,
        RA = 9,
        ZEBRA = 11,
        BIRD = 12,
        DHCP = 16,
        BGP = 186,
        ISIS = 187,
        OSPF = 188,
        RIP = 189,
    }
}

flags! {
    /// Flags of a route (`RTM_F_*`) and of a path (`RTNH_F_*`).
    pub struct RouteFlags(u32) {
        /// The link is down, so the path is not used.
        DEAD = 1 << 0,
        /// The gateway is on the link, even if no prefix of the link contains it.
        ON_LINK = 1 << 2,
        /// The link has no carrier.
        LINK_DOWN = 1 << 4,
        /// An entry of the kernel's route cache.
        CLONED = 1 << 9,
    }
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RoutePath {
    /// Index of the output link; 0 if absent.
    pub interface: u32,
    /// The next hop, which may have another family than the route (RFC 5549); `None` if the
    /// destination is on the link.
    pub gateway: Option<IpAddr>,
    /// Relative share of the flows, from 1 to 256.
    pub weight: u16,
    pub flags: RouteFlags,
    /// Whether packets on this path are encapsulated; the encapsulation itself is not parsed.
    pub encapsulated: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RouteMessage<'a> {
    pub family: AddressFamily,
    /// The destination; bits behind the prefix may be nonzero.
    pub destination: IpAddr,
    pub prefix_len: u8,
    /// Length of the source prefix in bits; not 0 in a source-specific route.
    pub source_len: u8,
    /// The TOS that packets must have; 0 for any.
    pub tos: u8,
    pub table: u32,
    pub protocol: RouteProtocol,
    /// Distance to the destination: 0 is anywhere, 253 is on the link, 254 is on this host.
    pub scope: u8,
    pub route_type: RouteType,
    pub flags: RouteFlags,
    /// The metric; the route with the lowest metric wins.
    pub priority: u32,
    /// The ID of the nexthop object; 0 for none.
    pub nexthop_id: u32,
    pub preferred_source: Option<IpAddr>,
    pub paths: Paths<'a>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Paths<'a> {
    /// One path; both link and gateway can be absent.
    Single(RoutePath),
    Multiple(Multipath<'a>),
}

impl<'a> Paths<'a> {
    /// Iterates over the paths. A single path without link and gateway is omitted.
    pub fn iter(&self) -> impl Iterator<Item = RoutePath> + use<'a> {
        let (single, multiple) = match *self {
            Self::Single(hop) => (Some(hop), None),
            Self::Multiple(multiple) => (None, Some(multiple)),
        };
        let single = single.filter(|hop| hop.interface != 0 || hop.gateway.is_some());
        single.into_iter().chain(multiple.into_iter().flat_map(|multiple| multiple.iter()))
    }
}

/// The checked paths of `RTA_MULTIPATH`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Multipath<'a> {
    pub(super) bytes: &'a [u8],
    pub(super) family: AddressFamily,
}

impl<'a> Multipath<'a> {
    fn parse(bytes: &'a [u8], family: AddressFamily) -> Result<Self, WireError> {
        let mut rest = bytes;
        while !rest.is_empty() {
            rest = read_hop(rest, family)?.1;
        }
        Ok(Self { bytes, family })
    }

    pub fn iter(&self) -> impl Iterator<Item = RoutePath> + use<'a> {
        let (mut rest, family) = (self.bytes, self.family);
        core::iter::from_fn(move || {
            let (hop, after) = if rest.is_empty() { None } else { read_hop(rest, family).ok() }?;
            rest = after;
            Some(hop)
        })
    }
}

/// Reads one path: u16 length, u8 flags, u8 weight - 1, u32 link index, attributes; also returns
/// the rest.
fn read_hop(bytes: &[u8], family: AddressFamily) -> Result<(RoutePath, &[u8]), WireError> {
    let (fixed, _) = split_header::<HOP_LEN>("Multipath", bytes)?;
    let len = usize::from(u16_at(fixed, 0));
    if len < HOP_LEN || len > bytes.len() {
        return Err(WireError::BadLength { format: "Multipath" });
    }
    let mut hop = RoutePath {
        interface: u32_at(fixed, 4),
        weight: u16::from(fixed[3]) + 1,
        flags: RouteFlags(u32::from(fixed[2])),
        ..RoutePath::default()
    };
    for attribute in Attributes::new(&bytes[HOP_LEN..len]) {
        hop.apply(&attribute?, family)?;
    }
    Ok((hop, bytes.get(super::attribute::align(len)..).unwrap_or(&[])))
}

impl RoutePath {
    fn apply(
        &mut self,
        attribute: &NetlinkAttribute<'_>,
        family: AddressFamily,
    ) -> Result<(), WireError> {
        match attribute.kind {
            INTERFACE => self.interface = attribute.u32()?,
            GATEWAY => self.gateway = Some(attribute.address(family)?),
            // A gateway of a family other than IP (MPLS) makes the path unusable, like an
            // encapsulation.
            VIA => match attribute.via() {
                Ok(gateway) => self.gateway = Some(gateway),
                Err(WireError::BadValue { .. }) => self.encapsulated = true,
                Err(error) => return Err(error),
            },
            ENCAPSULATION => self.encapsulated = true,
            _ => {}
        }
        Ok(())
    }

    pub(super) fn write(
        &self,
        out: &mut AttributeWriter<'_>,
        family: AddressFamily,
    ) -> Result<(), WireError> {
        out.gateway((GATEWAY, VIA), family, self.gateway)?;
        if self.encapsulated { out.attribute(ENCAPSULATION, &[]) } else { Ok(()) }
    }
}

impl<'a> RouteMessage<'a> {
    /// Makes a route to `destination`/`prefix_len` in table `main`, with one path.
    pub fn unicast(destination: IpAddr, prefix_len: u8, hop: RoutePath) -> Self {
        Self {
            family: AddressFamily::of(destination),
            destination,
            prefix_len,
            source_len: 0,
            tos: 0,
            table: 254,
            protocol: RouteProtocol::STATIC,
            scope: 0,
            route_type: RouteType::UNICAST,
            flags: RouteFlags::NONE,
            priority: 0,
            nexthop_id: 0,
            preferred_source: None,
            paths: Paths::Single(hop),
        }
    }

    /// Whether the body of a route message is for IPv4 or IPv6, and not, for example, for multicast
    /// routing. An empty body counts as IP, so that parsing reports its length.
    pub(crate) fn is_of_ip(body: &[u8]) -> bool {
        body.first().is_none_or(|&family| AddressFamily(family).address_bits().is_some())
    }

    pub fn parse(body: &'a [u8]) -> Result<Self, WireError> {
        const BAD_FAMILY: WireError =
            WireError::BadValue { format: "RouteMessage", field: "family" };
        let (fixed, attributes) = split_header::<HEADER_LEN>("RouteMessage", body)?;
        let family = AddressFamily(fixed[0]);
        let (Some(bits), Some(any)) = (family.address_bits(), family.any()) else {
            return Err(BAD_FAMILY);
        };
        if fixed[1] > bits || fixed[2] > bits {
            return Err(WireError::BadLength { format: "RouteMessage" });
        }
        let flags = RouteFlags(u32_at(fixed, 8));
        let mut route = Self {
            source_len: fixed[2],
            tos: fixed[3],
            table: u32::from(fixed[4]),
            protocol: RouteProtocol(fixed[5]),
            scope: fixed[6],
            route_type: RouteType(fixed[7]),
            flags,
            ..Self::unicast(any, fixed[1], RoutePath { weight: 1, flags, ..RoutePath::default() })
        };
        route.read_attributes(attributes)?;
        Ok(route)
    }

    fn read_attributes(&mut self, bytes: &'a [u8]) -> Result<(), WireError> {
        let family = self.family;
        let mut hop = RoutePath { weight: 1, flags: self.flags, ..RoutePath::default() };
        let mut multipath = None;
        for attribute in Attributes::new(bytes) {
            let attribute = attribute?;
            match attribute.kind {
                DESTINATION => self.destination = attribute.address(family)?,
                PRIORITY => self.priority = attribute.u32()?,
                PREFERRED_SOURCE => self.preferred_source = Some(attribute.address(family)?),
                MULTIPATH => multipath = Some(Multipath::parse(attribute.value, family)?),
                TABLE => self.table = attribute.u32()?,
                NEXTHOP_ID => self.nexthop_id = attribute.u32()?,
                _ => hop.apply(&attribute, family)?,
            }
        }
        self.paths = multipath.map_or(Paths::Single(hop), Paths::Multiple);
        Ok(())
    }

    pub fn write(&self, out: &mut AttributeWriter<'_>) -> Result<(), WireError> {
        let table = u8::try_from(self.table).unwrap_or(TABLE_COMPAT);
        out.bytes(&[self.family.0, self.prefix_len, self.source_len, self.tos])?;
        out.bytes(&[table, self.protocol.0, self.scope, self.route_type.0])?;
        out.bytes(&self.flags.0.to_ne_bytes())?;
        if self.prefix_len > 0 {
            out.address(DESTINATION, self.destination)?;
        }
        out.u32(TABLE, self.table)?;
        for (kind, value) in [(PRIORITY, self.priority), (NEXTHOP_ID, self.nexthop_id)] {
            if value != 0 {
                out.u32(kind, value)?;
            }
        }
        if let Some(source) = self.preferred_source {
            out.address(PREFERRED_SOURCE, source)?;
        }
        match self.paths {
            Paths::Multiple(multiple) => out.attribute(MULTIPATH, &[multiple.bytes]),
            Paths::Single(hop) => {
                if hop.interface != 0 {
                    out.u32(INTERFACE, hop.interface)?;
                }
                hop.write(out, self.family)
            }
        }
    }
}
