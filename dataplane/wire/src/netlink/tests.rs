//! Tests that messages round-trip, and that parsing any bytes does not panic.

use super::attribute::AttributeWriter;
use super::ip_address::{AddressFlags, AddressMessage};
use super::link::{LinkChange, LinkFlags, LinkMessage};
use super::nexthop::{GroupMember, Nexthop, NexthopGroup, NexthopMessage};
use super::request::{DumpKind, write_message};
use super::route::{
    Multipath, Paths, RouteFlags, RouteMessage, RoutePath, RouteProtocol, RouteType,
};
use super::{
    AddressFamily, ErrorMessage, MessageFlags, MessageHeader, MessageType, NetlinkMessage,
};
use super::{NetlinkMessages, Payload};
use crate::layout::WireError;
use core::net::IpAddr;
use proptest::prelude::*;
use std::vec::Vec;

/// The message body that `write` writes.
fn body(write: impl FnOnce(&mut AttributeWriter<'_>) -> Result<(), WireError>) -> Vec<u8> {
    let mut out = [0; 2048];
    let mut writer = AttributeWriter::new(&mut out);
    write(&mut writer).expect("there is space");
    let len = writer.written();
    out[..len].to_vec()
}

fn walk(bytes: &[u8]) {
    for message in NetlinkMessages::new(bytes).flatten() {
        match message.payload() {
            Ok(Payload::NewRoute(route) | Payload::DelRoute(route)) => {
                assert!(route.paths.iter().count() <= bytes.len());
            }
            Ok(Payload::NewNexthop(NexthopMessage { nexthop: Nexthop::Group(group), .. })) => {
                assert!(group.iter().all(|member| member.weight > 0));
            }
            _ => {}
        }
    }
}

fn addresses() -> impl Strategy<Value = IpAddr> {
    prop_oneof![any::<[u8; 4]>().prop_map(IpAddr::from), any::<[u8; 16]>().prop_map(IpAddr::from)]
}

prop_compose! {
    fn hops()(
        interface in 1..100_u32,
        gateway in proptest::option::of(addresses()),
        weight in 1..=256_u16,
        flags in prop_oneof![Just(RouteFlags::NONE), Just(RouteFlags::DEAD)],
        encapsulated: bool,
    ) -> RoutePath {
        RoutePath { interface, gateway, weight, flags, encapsulated }
    }
}

/// Writes the value of `RTA_MULTIPATH` for `hops` to the front of `out`.
fn write_multipath<'o>(
    hops: &[RoutePath],
    family: AddressFamily,
    out: &'o mut [u8],
) -> Result<Paths<'o>, WireError> {
    let mut writer = AttributeWriter::new(out);
    for hop in hops {
        let start = writer.written();
        let weight = u8::try_from(hop.weight.saturating_sub(1)).unwrap_or(u8::MAX);
        writer.bytes(&[0, 0, hop.flags.0 as u8, weight])?;
        writer.bytes(&hop.interface.to_ne_bytes())?;
        hop.write(&mut writer, family)?;
        let len = writer.written() - start;
        writer.put_u16(start, len as u16);
    }
    let len = writer.written();
    Ok(Paths::Multiple(Multipath { bytes: &out[..len], family }))
}

proptest! {
    #[test]
    fn any_bytes_are_read_without_a_panic(
        bytes in proptest::collection::vec(any::<u8>(), 0..300),
    ) {
        walk(&bytes);
    }

    /// Random bodies behind a valid header reach more code than random datagrams.
    #[test]
    fn any_body_is_read_without_a_panic(
        types in proptest::sample::select(MessageType::ALL),
        family in prop_oneof![Just(2_u8), Just(10)],
        lengths in proptest::collection::vec((0..40_u16, 0..40_u16), 0..20),
        flags: u16,
    ) {
        let header = MessageHeader {
            message_type: types, flags: MessageFlags(flags), ..MessageHeader::default()
        };
        let mut out = [0; 512];
        let len = write_message(&header, &mut out, |out| {
            out.bytes(&[family, 0, 0, 0])?;
            lengths.iter().try_for_each(|(len, kind)| {
                let ([a, b], [c, d]) = (len.to_ne_bytes(), kind.to_ne_bytes());
                out.bytes(&[a, b, c, d])
            })
        }).expect("there is space");
        walk(&out[..len]);
    }

    #[test]
    fn a_route_is_read_as_it_was_written(
        destination in addresses(),
        many in proptest::collection::vec(hops(), 0..5),
        one in hops(),
        (table, priority, nexthop_id) in any::<(u32, u32, u32)>(),
        prefix_len in 1..=32_u8,
    ) {
        let family = AddressFamily::of(destination);
        let mut paths = [0; 512];
        let one = RoutePath { weight: 1, flags: RouteFlags::NONE, ..one };
        let paths = if many.is_empty() {
            Paths::Single(one)
        } else {
            write_multipath(&many, family, &mut paths).expect("there is space")
        };
        let written = RouteMessage {
            table, priority, nexthop_id, paths, route_type: RouteType::PROHIBIT,
            protocol: RouteProtocol::BGP, preferred_source: Some(destination), tos: 8,
            ..RouteMessage::unicast(destination, prefix_len, one)
        };
        let bytes = body(|out| written.write(out));
        let read = RouteMessage::parse(&bytes).expect("a route");
        prop_assert_eq!(read, written);
        let expected = if many.is_empty() { std::vec![one] } else { many };
        prop_assert_eq!(read.paths.iter().collect::<Vec<_>>(), expected);
    }

    #[test]
    fn a_nexthop_is_read_as_it_was_written(
        hop in hops(),
        id in 1..u32::MAX,
        members in proptest::collection::vec((1..u32::MAX, 1..=0x1_0000_u32), 0..6),
    ) {
        let members: Vec<_> =
            members.iter().map(|&(id, weight)| GroupMember { id, weight }).collect();
        let mut out = [0; 64];
        let family = hop.gateway.map_or(AddressFamily::IPV4, AddressFamily::of);
        let nexthop = if members.is_empty() {
            Nexthop::Path(RoutePath { weight: 1, ..hop })
        } else {
            Nexthop::Group(NexthopGroup::write(&members, &mut out).expect("there is space"))
        };
        let written = NexthopMessage { id, family, protocol: RouteProtocol::ZEBRA, nexthop };
        let bytes = body(|out| written.write(out));
        let read = NexthopMessage::parse(&bytes).expect("a nexthop");
        prop_assert_eq!(read, written);
        if let Nexthop::Group(group) = read.nexthop {
            prop_assert_eq!(group.iter().collect::<Vec<_>>(), members);
        }
    }

    #[test]
    fn links_and_addresses_are_read_as_they_were_written(
        address in addresses(), prefix_len in 0..=32_u8,
        index: u32, flags: u32, mtu: u32, scope: u8,
    ) {
        let link = LinkMessage {
            index, flags: LinkFlags(flags), name: b"ib0", mtu, master: 7, queue_len: 500,
            operational_state: 6, device_type: 65534, family: AddressFamily::UNSPECIFIED,
        };
        let bytes = body(|out| link.write(out));
        prop_assert_eq!(LinkMessage::parse(&bytes), Ok(link));
        let flags = AddressFlags(flags);
        let address = AddressMessage { index, address, prefix_len, flags, scope };
        let bytes = body(|out| address.write(out));
        prop_assert_eq!(AddressMessage::parse(&bytes), Ok(address));
    }
}

#[test]
fn an_attribute_longer_than_its_message_is_refused() {
    let hop = RoutePath { interface: 2, weight: 1, ..RoutePath::default() };
    let route = RouteMessage::unicast([10, 0, 0, 0].into(), 8, hop);
    let mut bytes = body(|out| route.write(out));
    let last = bytes.len() - 8;
    for len in [0, 3, 9, u16::MAX] {
        bytes[last..last + 2].copy_from_slice(&len.to_ne_bytes());
        let refused = Err(WireError::BadLength { format: "NetlinkAttribute" });
        assert_eq!(RouteMessage::parse(&bytes), refused, "length {len}");
    }
}

#[test]
fn a_message_longer_than_its_datagram_ends_the_walk() {
    let mut out = [0; 64];
    let len = DumpKind::Links.write(1, &mut out).expect("there is space");
    assert_eq!(len, 32);
    assert_eq!(NetlinkMessages::new(&out[..len]).count(), 1);
    let cut: Vec<_> = NetlinkMessages::new(&out[..len - 1]).collect();
    assert_eq!(cut, [Err(WireError::BadLength { format: "NetlinkMessage" })]);
}

#[test]
fn a_dump_request_is_what_the_kernel_expects() {
    let mut out = [0; 64];
    let len = DumpKind::RoutesV6.write(7, &mut out).expect("there is space");
    let message = NetlinkMessages::new(&out[..len]).next().expect("one").expect("a message");
    assert_eq!(message.header.message_type, MessageType::GET_ROUTE);
    assert_eq!((message.header.flags, message.header.sequence), (MessageFlags(0x301), 7));
    assert_eq!((message.body.len(), message.body[0]), (12, 10));
}

/// The nests of `IFLA_AF_SPEC` in an `RTM_SETLINK` with reverse path filter and address generation
/// mode.
#[test]
fn settings_of_a_link_are_nested_by_family() {
    let change = LinkChange {
        index: 3,
        rp_filter: Some(2),
        addr_gen_mode: Some(1),
        ..LinkChange::default()
    };
    let bytes = body(|out| change.write(out));
    let words: Vec<u16> = bytes[16..].chunks(2).map(|b| u16::from_ne_bytes([b[0], b[1]])).collect();
    let nested = 0x8000;
    let ipv4 = [16, nested | 2, 12, nested | 1, 8, 8, 2, 0];
    // The attribute has five bytes, and three bytes of padding.
    let ipv6 = [12, nested | 10, 5, 8, 1, 0];
    let expected = [[32, nested | 26].as_slice(), &ipv4, &ipv6].concat();
    assert_eq!(words, expected);
    let change = LinkChange { promote_secondaries: Some(true), ..LinkChange::default() };
    let bytes = body(|out| change.write(out));
    let words: Vec<u16> = bytes[16..].chunks(2).map(|b| u16::from_ne_bytes([b[0], b[1]])).collect();
    assert_eq!(words, [20, nested | 26, 16, nested | 2, 12, nested | 1, 8, 20, 1, 0]);
}

/// A response of the kernel: errno 17 (EEXIST), the header of the request, and the explanation.
#[test]
fn an_error_carries_its_explanation() {
    let header = MessageHeader {
        message_type: MessageType::ERROR,
        flags: MessageFlags(0x300),
        ..MessageHeader::default()
    };
    let bytes = body(|out| {
        out.bytes(&(-17_i32).to_ne_bytes())?;
        out.bytes(&[0; 16])?;
        out.attribute(1, &[b"Nexthop id exists\0"])
    });
    let message = NetlinkMessage { header, body: &bytes };
    let error = ErrorMessage { errno: 17, text: b"Nexthop id exists" };
    assert_eq!(message.payload(), Ok(Payload::Error(error)));
    let plain =
        NetlinkMessage { header: MessageHeader { flags: MessageFlags::NONE, ..header }, ..message };
    assert_eq!(plain.payload(), Ok(Payload::Error(ErrorMessage { errno: 17, text: b"" })));
}
