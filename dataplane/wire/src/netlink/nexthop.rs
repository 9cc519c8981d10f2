//! Nexthop objects: paths and groups of paths to which routes refer by ID (`struct nhmsg`,
//! `NHA_*`).
//!
//! Byte offsets: 0 family, 1 scope, 2 protocol, 4 flags; then attributes.

use super::AddressFamily;
use super::attribute::{AttributeWriter, Attributes, u32_at};
use super::route::{RouteFlags, RoutePath, RouteProtocol};
use crate::layout::{WireError, split_header};

const HEADER_LEN: usize = 8;
const MEMBER_LEN: usize = 8;

const ID: u16 = 1;
const GROUP: u16 = 2;
const BLACKHOLE: u16 = 4;
const INTERFACE: u16 = 5;
const GATEWAY: u16 = 6;
const ENCAPSULATION: u16 = 8;
const FDB: u16 = 11;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NexthopMessage<'a> {
    pub id: u32,
    /// Family of the gateway; unspecified for a group.
    pub family: AddressFamily,
    pub protocol: RouteProtocol,
    pub nexthop: Nexthop<'a>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Nexthop<'a> {
    Path(RoutePath),
    Group(NexthopGroup<'a>),
    Blackhole,
    /// An entry of a bridge's forwarding table, which is not a path for IP.
    BridgeEntry,
}

/// A nexthop object in a group.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct GroupMember {
    pub id: u32,
    /// Relative share of the flows, at least 1.
    pub weight: u32,
}

/// The members of a group. Each member has u32 ID, u8 low byte and u8 high byte of weight - 1, and
/// u16 reserved.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NexthopGroup<'a> {
    bytes: &'a [u8],
}

impl<'a> NexthopGroup<'a> {
    fn parse(bytes: &'a [u8]) -> Result<Self, WireError> {
        if bytes.is_empty() || !bytes.len().is_multiple_of(MEMBER_LEN) {
            return Err(WireError::BadLength { format: "NexthopGroup" });
        }
        Ok(Self { bytes })
    }

    pub fn iter(&self) -> impl Iterator<Item = GroupMember> + use<'a> {
        self.bytes.chunks_exact(MEMBER_LEN).map(|member| GroupMember {
            id: u32_at(member, 0),
            weight: u32::from(u16::from_le_bytes([member[4], member[5]])) + 1,
        })
    }

    /// Writes a group of `members` to the front of `out`.
    pub fn write(members: &[GroupMember], out: &'a mut [u8]) -> Result<Self, WireError> {
        let mut writer = AttributeWriter::new(out);
        for member in members {
            let [low, high, ..] = member.weight.saturating_sub(1).to_le_bytes();
            writer.bytes(&member.id.to_ne_bytes())?;
            writer.bytes(&[low, high, 0, 0])?;
        }
        let len = writer.written();
        Self::parse(&out[..len])
    }
}

impl<'a> NexthopMessage<'a> {
    pub fn parse(body: &'a [u8]) -> Result<Self, WireError> {
        let (fixed, attributes) = split_header::<HEADER_LEN>("NexthopMessage", body)?;
        let family = AddressFamily(fixed[0]);
        let flags = RouteFlags(u32_at(fixed, 4));
        let mut hop = RoutePath { weight: 1, flags, ..RoutePath::default() };
        let (mut id, mut other, mut bridge_entry) = (0, None, false);
        for attribute in Attributes::new(attributes) {
            let attribute = attribute?;
            match attribute.kind {
                ID => id = attribute.u32()?,
                GROUP => other = Some(Nexthop::Group(NexthopGroup::parse(attribute.value)?)),
                BLACKHOLE => other = Some(Nexthop::Blackhole),
                FDB => bridge_entry = true,
                INTERFACE => hop.interface = attribute.u32()?,
                GATEWAY => hop.gateway = Some(attribute.address(family)?),
                ENCAPSULATION => hop.encapsulated = true,
                _ => {}
            }
        }
        if id == 0 {
            return Err(WireError::BadValue { format: "NexthopMessage", field: "id" });
        }
        let nexthop = match other {
            _ if bridge_entry => Nexthop::BridgeEntry,
            Some(other) => other,
            None => Nexthop::Path(hop),
        };
        Ok(Self { id, family, protocol: RouteProtocol(fixed[2]), nexthop })
    }

    pub fn write(&self, out: &mut AttributeWriter<'_>) -> Result<(), WireError> {
        let flags = if let Nexthop::Path(hop) = self.nexthop { hop.flags.0 } else { 0 };
        out.bytes(&[self.family.0, 0, self.protocol.0, 0])?;
        out.bytes(&flags.to_ne_bytes())?;
        out.u32(ID, self.id)?;
        match self.nexthop {
            Nexthop::Group(group) => out.attribute(GROUP, &[group.bytes]),
            Nexthop::Blackhole => out.attribute(BLACKHOLE, &[]),
            Nexthop::BridgeEntry => out.attribute(FDB, &[]),
            Nexthop::Path(hop) => {
                if hop.interface != 0 {
                    out.u32(INTERFACE, hop.interface)?;
                }
                if let Some(gateway) = hop.gateway {
                    out.address(GATEWAY, gateway)?;
                }
                if hop.encapsulated { out.attribute(ENCAPSULATION, &[]) } else { Ok(()) }
            }
        }
    }
}
