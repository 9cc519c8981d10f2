//! Links: network interfaces of the kernel (`struct ifinfomsg`, `IFLA_*`).
//!
//! Byte offsets: 0 family, 2 device type, 4 index, 8 flags, 12 mask of flags to change; then
//! attributes.

use super::AddressFamily;
use super::attribute::{AttributeWriter, Attributes, u16_at, u32_at};
use crate::layout::{WireError, split_header};

const HEADER_LEN: usize = 16;

const NAME: u16 = 3;
const MTU: u16 = 4;
const MASTER: u16 = 10;
const QUEUE_LEN: u16 = 13;
const OPERATIONAL_STATE: u16 = 16;
const FAMILY_SETTINGS: u16 = 26;
const CARRIER: u16 = 33;

/// In the IPv4 nest of `FAMILY_SETTINGS`: a nest of settings, with the numbers of `linux/ip.h`.
const IPV4_SETTINGS: u16 = 1;
const IPV4_RP_FILTER: u16 = 8;
const IPV4_PROMOTE_SECONDARIES: u16 = 20;
/// In the IPv6 nest of `FAMILY_SETTINGS` (`IFLA_INET6_ADDR_GEN_MODE`).
const IPV6_ADDR_GEN_MODE: u16 = 8;

flags! {
    /// Flags of a link (`IFF_*`).
    pub struct LinkFlags(u32) {
        /// The link is administratively up.
        UP = 1 << 0,
        BROADCAST = 1 << 1,
        LOOPBACK = 1 << 3,
        POINT_TO_POINT = 1 << 4,
        RUNNING = 1 << 6,
        NO_ARP = 1 << 7,
        MULTICAST = 1 << 12,
        /// The link has carrier.
        LOWER_UP = 1 << 16,
    }
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct LinkMessage<'a> {
    /// Unspecified, or `BRIDGE` for a message about a bridge port.
    pub family: AddressFamily,
    /// Device type (`ARPHRD_*`).
    pub device_type: u16,
    pub index: u32,
    pub flags: LinkFlags,
    /// The name; empty if absent.
    pub name: &'a [u8],
    /// The MTU in bytes; 0 if absent.
    pub mtu: u32,
    /// Index of the upper device, such as a bridge, a bond or a VRF; 0 if there is none.
    pub master: u32,
    /// Length of the transmit queue in packets; 0 if absent.
    pub queue_len: u32,
    /// Operational state of RFC 2863, in the numbers of Linux (`IF_OPER_*`): 0 is unknown, 6 is up.
    pub operational_state: u8,
}

impl<'a> LinkMessage<'a> {
    pub fn parse(body: &'a [u8]) -> Result<Self, WireError> {
        let (fixed, attributes) = split_header::<HEADER_LEN>("LinkMessage", body)?;
        let mut link = Self {
            family: AddressFamily(fixed[0]),
            device_type: u16_at(fixed, 2),
            index: u32_at(fixed, 4),
            flags: LinkFlags(u32_at(fixed, 8)),
            ..Self::default()
        };
        for attribute in Attributes::new(attributes) {
            let attribute = attribute?;
            match attribute.kind {
                NAME => link.name = attribute.text(),
                MTU => link.mtu = attribute.u32()?,
                MASTER => link.master = attribute.u32()?,
                QUEUE_LEN => link.queue_len = attribute.u32()?,
                OPERATIONAL_STATE => link.operational_state = attribute.u8()?,
                _ => {}
            }
        }
        Ok(link)
    }

    pub fn write(&self, out: &mut AttributeWriter<'_>) -> Result<(), WireError> {
        write_header(out, self.family, self.device_type, self.index, self.flags, LinkFlags::NONE)?;
        if !self.name.is_empty() {
            out.attribute(NAME, &[self.name, &[0]])?;
        }
        for (kind, value) in [(MTU, self.mtu), (MASTER, self.master), (QUEUE_LEN, self.queue_len)] {
            if value != 0 {
                out.u32(kind, value)?;
            }
        }
        out.attribute(OPERATIONAL_STATE, &[&[self.operational_state]])
    }
}

/// A request to change a link. Settings that are `None` stay unchanged.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct LinkChange {
    pub index: u32,
    pub up: Option<bool>,
    pub mtu: Option<u32>,
    /// Whether the link has carrier; for a TUN device, equivalent to `TUNSETCARRIER`.
    pub carrier: Option<bool>,
    pub queue_len: Option<u32>,
    /// IPv4 reverse path filter: 0 is off, 1 is strict, 2 is loose.
    pub rp_filter: Option<u32>,
    /// Whether the kernel promotes a secondary IPv4 address when the primary address of its subnet
    /// is removed. Otherwise, it removes the secondary addresses, too.
    pub promote_secondaries: Option<bool>,
    /// Generation of IPv6 link-local addresses: 0 is EUI-64, 1 is none, 2 is stable privacy, 3 is
    /// random.
    pub addr_gen_mode: Option<u8>,
}

impl LinkChange {
    pub fn write(&self, out: &mut AttributeWriter<'_>) -> Result<(), WireError> {
        let (flags, change) = match self.up {
            Some(true) => (LinkFlags::UP, LinkFlags::UP),
            Some(false) => (LinkFlags::NONE, LinkFlags::UP),
            None => (LinkFlags::NONE, LinkFlags::NONE),
        };
        write_header(out, AddressFamily::UNSPECIFIED, 0, self.index, flags, change)?;
        for (kind, value) in [(MTU, self.mtu), (QUEUE_LEN, self.queue_len)] {
            if let Some(value) = value {
                out.u32(kind, value)?;
            }
        }
        if let Some(carrier) = self.carrier {
            out.attribute(CARRIER, &[&[u8::from(carrier)]])?;
        }
        let has_ipv4 = self.rp_filter.is_some() || self.promote_secondaries.is_some();
        if !has_ipv4 && self.addr_gen_mode.is_none() {
            return Ok(());
        }
        out.nest(FAMILY_SETTINGS, |out| self.write_family_settings(out))
    }

    fn write_family_settings(&self, out: &mut AttributeWriter<'_>) -> Result<(), WireError> {
        let ipv4 = [
            (IPV4_RP_FILTER, self.rp_filter),
            (IPV4_PROMOTE_SECONDARIES, self.promote_secondaries.map(u32::from)),
        ];
        let mut ipv4 = ipv4.into_iter().filter_map(|(kind, value)| Some((kind, value?))).peekable();
        if ipv4.peek().is_some() {
            out.nest(u16::from(AddressFamily::IPV4.0), |out| {
                out.nest(IPV4_SETTINGS, |out| {
                    ipv4.try_for_each(|(kind, value)| out.u32(kind, value))
                })
            })?;
        }
        if let Some(mode) = self.addr_gen_mode {
            out.nest(u16::from(AddressFamily::IPV6.0), |out| {
                out.attribute(IPV6_ADDR_GEN_MODE, &[&[mode]])
            })?;
        }
        Ok(())
    }
}

fn write_header(
    out: &mut AttributeWriter<'_>,
    family: AddressFamily,
    device_type: u16,
    index: u32,
    flags: LinkFlags,
    change: LinkFlags,
) -> Result<(), WireError> {
    let [low, high] = device_type.to_ne_bytes();
    out.bytes(&[family.0, 0, low, high])?;
    out.bytes(&index.to_ne_bytes())?;
    out.bytes(&flags.0.to_ne_bytes())?;
    out.bytes(&change.0.to_ne_bytes())
}
