//! Netlink and rtnetlink: messages from and to the Linux kernel about links, addresses, routes and
//! nexthop objects (RFC 3549; `linux/netlink.h`, `linux/rtnetlink.h`).
//!
//! A datagram is a sequence of messages. [`NetlinkMessages`] iterates over them, and
//! [`NetlinkMessage::payload`] parses one message. [`attribute`] reads and writes the attributes of
//! [`link`], [`ip_address`], [`route`] and [`nexthop`] messages. [`request`] writes dump requests
//! and complete messages.
//!
//! Numbers are in native byte order, and addresses in network byte order. [`mod@crate::layout`]
//! does not support native byte order, so this module parses headers by hand.
//!
//! Why not the crate `netlink-packet-route`: it has no nexthop messages, allocates for every
//! attribute, and its parser is not total on hostile lengths. Only a few messages are needed here.
//!
//! Unneeded attributes are skipped. If a message has a different meaning with such an attribute
//! (encapsulation, source-specific routes), a field tells that the attribute is present.

pub mod attribute;
pub mod ip_address;
pub mod link;
pub mod nexthop;
pub mod request;
pub mod route;

use crate::layout::{WireError, split_header};
use attribute::{Attributes, u16_at, u32_at};
use core::net::IpAddr;
use ip_address::AddressMessage;
use link::LinkMessage;
use nexthop::NexthopMessage;
use route::RouteMessage;

codes! {
    /// Message types (`nlmsg_type`).
    pub struct MessageType(u16) {
        NOOP = 1,
        ERROR = 2,
        DONE = 3,
        OVERRUN = 4,
        NEW_LINK = 16,
        DEL_LINK = 17,
        GET_LINK = 18,
        SET_LINK = 19,
        NEW_ADDRESS = 20,
        DEL_ADDRESS = 21,
        GET_ADDRESS = 22,
        NEW_ROUTE = 24,
        DEL_ROUTE = 25,
        GET_ROUTE = 26,
        NEW_NEXTHOP = 104,
        DEL_NEXTHOP = 105,
        GET_NEXTHOP = 106,
    }
}

flags! {
    /// Message flags (`nlmsg_flags`). The bits from 0x100 on have one meaning in a create request,
    /// and another in a dump request.
    pub struct MessageFlags(u16) {
        REQUEST = 1 << 0,
        MULTI = 1 << 1,
        ACK = 1 << 2,
        /// The table changed while it was dumped (`NLM_F_DUMP_INTR`).
        DUMP_INTERRUPTED = 1 << 4,
        /// Replace an existing object; in a dump request, return the whole table (`NLM_F_ROOT`).
        REPLACE = 1 << 8,
        /// Fail if the object exists; in a dump request, return all matches (`NLM_F_MATCH`).
        EXCLUSIVE = 1 << 9,
        CREATE = 1 << 10,
        APPEND = 1 << 11,
    }
}

impl MessageFlags {
    /// The flags of a request for all objects of a kind (`NLM_F_REQUEST` and `NLM_F_DUMP`).
    pub const DUMP: Self = Self::REQUEST.with(Self::REPLACE).with(Self::EXCLUSIVE);
    /// In an error message: only the header of the request is included (`NLM_F_CAPPED`).
    const CAPPED: Self = Self::REPLACE;
    /// In an error message: attributes follow (`NLM_F_ACK_TLVS`).
    const EXPLAINED: Self = Self::EXCLUSIVE;
}

codes! {
    pub struct AddressFamily(u8) {
        UNSPECIFIED = 0,
        IPV4 = 2,
        BRIDGE = 7,
        IPV6 = 10,
        IPV4_MULTICAST = 128,
        IPV6_MULTICAST = 129,
    }
}

impl AddressFamily {
    pub const fn of(address: IpAddr) -> Self {
        if address.is_ipv4() { Self::IPV4 } else { Self::IPV6 }
    }

    /// Length of an address in bits; `None` for families other than IP.
    pub(crate) const fn address_bits(self) -> Option<u8> {
        match self {
            Self::IPV4 => Some(32),
            Self::IPV6 => Some(128),
            _ => None,
        }
    }

    pub(crate) const fn any(self) -> Option<IpAddr> {
        match self {
            Self::IPV4 => Some(IpAddr::V4(core::net::Ipv4Addr::UNSPECIFIED)),
            Self::IPV6 => Some(IpAddr::V6(core::net::Ipv6Addr::UNSPECIFIED)),
            _ => None,
        }
    }
}

/// The header of every message (`struct nlmsghdr`), without its length.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct MessageHeader {
    pub message_type: MessageType,
    pub flags: MessageFlags,
    /// In a response, the sequence number of the request; 0 in a notification.
    pub sequence: u32,
    /// Netlink port of the socket; 0 for the kernel.
    pub port: u32,
}

impl MessageHeader {
    pub const LEN: usize = 16;
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NetlinkMessage<'a> {
    pub header: MessageHeader,
    pub body: &'a [u8],
}

/// An iterator over the messages of a datagram. It ends after the first error.
#[derive(Clone, Copy, Debug)]
pub struct NetlinkMessages<'a> {
    rest: &'a [u8],
}

impl<'a> NetlinkMessages<'a> {
    /// Begins at the front of `datagram`, which is the result of one receive call.
    pub const fn new(datagram: &'a [u8]) -> Self {
        Self { rest: datagram }
    }

    fn take(&mut self) -> Result<NetlinkMessage<'a>, WireError> {
        let bytes = core::mem::take(&mut self.rest);
        let (fixed, _) = split_header::<{ MessageHeader::LEN }>("NetlinkMessage", bytes)?;
        let len = u32_at(fixed, 0) as usize;
        if len < MessageHeader::LEN || len > bytes.len() {
            return Err(WireError::BadLength { format: "NetlinkMessage" });
        }
        let header = MessageHeader {
            message_type: MessageType(u16_at(fixed, 4)),
            flags: MessageFlags(u16_at(fixed, 6)),
            sequence: u32_at(fixed, 8),
            port: u32_at(fixed, 12),
        };
        self.rest = bytes.get(attribute::align(len)..).unwrap_or(&[]);
        Ok(NetlinkMessage { header, body: &bytes[MessageHeader::LEN..len] })
    }
}

impl<'a> Iterator for NetlinkMessages<'a> {
    type Item = Result<NetlinkMessage<'a>, WireError>;

    fn next(&mut self) -> Option<Self::Item> {
        if self.rest.is_empty() { None } else { Some(self.take()) }
    }
}

impl core::iter::FusedIterator for NetlinkMessages<'_> {}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Payload<'a> {
    NewLink(LinkMessage<'a>),
    DelLink(LinkMessage<'a>),
    NewAddress(AddressMessage),
    DelAddress(AddressMessage),
    /// A route was added or replaced, or an IPv6 route has an additional path.
    NewRoute(RouteMessage<'a>),
    /// A route was removed, or the listed paths of an IPv6 route were removed.
    DelRoute(RouteMessage<'a>),
    NewNexthop(NexthopMessage<'a>),
    DelNexthop(NexthopMessage<'a>),
    /// A dump is complete. A negative number is the negated errno of a dump that ended early.
    Done(i32),
    Error(ErrorMessage<'a>),
    /// Messages were lost (`NLMSG_OVERRUN`).
    Overrun,
    Other(MessageType),
}

impl<'a> NetlinkMessage<'a> {
    pub fn payload(&self) -> Result<Payload<'a>, WireError> {
        let body = self.body;
        Ok(match self.header.message_type {
            MessageType::NEW_LINK => Payload::NewLink(LinkMessage::parse(body)?),
            MessageType::DEL_LINK => Payload::DelLink(LinkMessage::parse(body)?),
            MessageType::NEW_ADDRESS => Payload::NewAddress(AddressMessage::parse(body)?),
            MessageType::DEL_ADDRESS => Payload::DelAddress(AddressMessage::parse(body)?),
            MessageType::NEW_ROUTE | MessageType::DEL_ROUTE if !RouteMessage::is_of_ip(body) => {
                Payload::Other(self.header.message_type)
            }
            MessageType::NEW_ROUTE => Payload::NewRoute(RouteMessage::parse(body)?),
            MessageType::DEL_ROUTE => Payload::DelRoute(RouteMessage::parse(body)?),
            MessageType::NEW_NEXTHOP => Payload::NewNexthop(NexthopMessage::parse(body)?),
            MessageType::DEL_NEXTHOP => Payload::DelNexthop(NexthopMessage::parse(body)?),
            MessageType::DONE => {
                Payload::Done(body.first_chunk().map_or(0, |&n| i32::from_ne_bytes(n)))
            }
            MessageType::ERROR => Payload::Error(ErrorMessage::parse(self)?),
            MessageType::OVERRUN => Payload::Overrun,
            other => Payload::Other(other),
        })
    }
}

/// The response to a request: an acknowledgment, or an errno with an explanation (`NLMSG_ERROR`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ErrorMessage<'a> {
    /// The errno as a positive number; 0 for an acknowledgment.
    pub errno: u32,
    /// The kernel's explanation; empty if it gave none.
    pub text: &'a [u8],
}

impl<'a> ErrorMessage<'a> {
    const TEXT: u16 = 1;

    fn parse(message: &NetlinkMessage<'a>) -> Result<Self, WireError> {
        let body = message.body;
        let (code, _) = split_header("ErrorMessage", body)?;
        let mut error = Self { errno: i32::from_ne_bytes(*code).unsigned_abs(), text: &[] };
        if !message.header.flags.contains(MessageFlags::EXPLAINED) {
            return Ok(error);
        }
        // The request precedes the explanation. In a capped response, only its header does.
        let capped = message.header.flags.contains(MessageFlags::CAPPED);
        let request = if capped || body.len() < 8 { 16 } else { u32_at(body, 4) as usize };
        let offset = attribute::align(request.min(body.len())) + 4;
        for attribute in Attributes::new(body.get(offset..).unwrap_or(&[])) {
            let attribute = attribute?;
            if attribute.kind == Self::TEXT {
                error.text = attribute.text();
            }
        }
        Ok(error)
    }
}

#[cfg(test)]
mod tests;
