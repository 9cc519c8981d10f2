//! IP over InfiniBand and the IP family that it carries (RFC 4391, RFC 4755).
//!
//! The link: [`ipoib`] is the encapsulation header of every packet, [`link_address`] the hardware
//! address, and [`mgid`] the multicast GID of a group. [`arp`] and [`nd`] (options: [`nd_option`])
//! resolve link addresses.
//!
//! IP: [`ipv4`] and [`ipv6`] (extension headers: [`ipv6_ext`]) carry [`icmpv4`] and [`icmpv6`]
//! (common part: [`icmp`]), [`igmp`] and [`mld`] (common part: [`group_record`]), [`udp`] and
//! [`tcp`]. [`dhcp`] is carried by UDP.
//!
//! Others: [`vnet_header`] precedes packets of a TUN device, [`list`] iterates over lists in
//! messages, and [`checksum`] is the Internet checksum.
//!
//! Parsing checks lengths, versions and constant fields, but no checksums, because not every caller
//! needs them: every receiver and router verifies the IPv4 header checksum (RFC 1812 5.2.2), but
//! only the destination verifies the checksums of upper layers. `checksum_ok` verifies a checksum,
//! and `fill_checksum` computes it.
//!
//! The tables of [`mld`], [`nd`] and [`nd_option`] count bytes from the start of the ICMPv6 message
//! or option, like the figures of the RFCs. They omit the common fields, which are in
//! [`icmp::IcmpHeader`] and [`nd_option::NdOptionHeader`].

pub mod arp;
pub mod checksum;
pub mod dhcp;
pub mod group_record;
pub mod icmp;
pub mod icmpv4;
pub mod icmpv6;
pub mod igmp;
pub mod ipoib;
pub mod ipv4;
pub mod ipv6;
pub mod ipv6_ext;
pub mod link_address;
pub mod list;
pub mod mgid;
pub mod mld;
pub mod nd;
pub mod nd_option;
mod option;
pub mod tcp;
pub mod udp;
pub mod vnet_header;

use crate::layout::{Field, WireError};
use core::net::{Ipv4Addr, Ipv6Addr};

codes! {
    /// The next header behind an IPv4 header, an IPv6 header or an extension header (IANA protocol
    /// numbers).
    pub struct IpProtocol(u8) {
        HOP_BY_HOP = 0,
        ICMPV4 = 1,
        IGMP = 2,
        IPV4 = 4,
        TCP = 6,
        UDP = 17,
        IPV6 = 41,
        ROUTING = 43,
        FRAGMENT = 44,
        ESP = 50,
        AUTHENTICATION = 51,
        ICMPV6 = 58,
        NO_NEXT_HEADER = 59,
        DESTINATION_OPTIONS = 60,
    }
}

macro_rules! address_field {
    ($type:ty, $len:literal) => {
        impl Field for $type {
            const WIDTH_MAX: usize = $len * 8;
            #[inline(always)]
            fn load(bytes: &[u8], bit: usize, _width: usize) -> Self {
                let mut own = [0; $len];
                own.copy_from_slice(&bytes[bit / 8..bit / 8 + $len]);
                Self::from(own)
            }
            #[inline(always)]
            fn store(self, bytes: &mut [u8], bit: usize, _width: usize) {
                bytes[bit / 8..bit / 8 + $len].copy_from_slice(&self.octets());
            }
        }
    };
}
address_field!(Ipv4Addr, 4);
address_field!(Ipv6Addr, 16);

/// Splits `bytes` after `count` bytes.
#[inline(always)]
fn split<'a>(
    format: &'static str,
    bytes: &'a [u8],
    count: usize,
) -> Result<(&'a [u8], &'a [u8]), WireError> {
    bytes.split_at_checked(count).ok_or(WireError::Truncated {
        format,
        needed: count,
        have: bytes.len(),
    })
}

/// Splits `out` after `count` bytes.
#[inline(always)]
fn split_mut<'a>(
    format: &'static str,
    out: &'a mut [u8],
    count: usize,
) -> Result<(&'a mut [u8], &'a mut [u8]), WireError> {
    let have = out.len();
    out.split_at_mut_checked(count).ok_or(WireError::NoRoom { format, needed: count, have })
}

/// Copies `bytes` to the front of `out`; returns the rest of `out`.
fn put<'a>(
    format: &'static str,
    bytes: &[u8],
    out: &'a mut [u8],
) -> Result<&'a mut [u8], WireError> {
    let (head, rest) = split_mut(format, out, bytes.len())?;
    head.copy_from_slice(bytes);
    Ok(rest)
}
