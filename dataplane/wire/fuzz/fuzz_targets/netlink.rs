//! Netlink: datagrams of the kernel, including the paths of routes and the members of groups.
#![no_main]

use libfuzzer_sys::fuzz_target;
use pollux_wire::netlink::attribute::AttributeWriter;
use pollux_wire::netlink::nexthop::{Nexthop, NexthopMessage};
use pollux_wire::netlink::route::RouteMessage;
use pollux_wire::netlink::{NetlinkMessages, Payload};

fuzz_target!(|bytes: &[u8]| {
    for message in NetlinkMessages::new(bytes).flatten() {
        match message.payload() {
            Ok(Payload::NewRoute(route) | Payload::DelRoute(route)) => again(&route),
            Ok(Payload::NewNexthop(NexthopMessage { nexthop: Nexthop::Group(group), .. })) => {
                assert!(group.iter().all(|member| member.weight > 0));
            }
            Ok(payload) => drop(format!("{payload:?}")),
            Err(_) => {}
        }
    }
});

/// Writing a parsed route and parsing it again gives the same paths.
fn again(route: &RouteMessage<'_>) {
    let mut out = vec![0; 0x2_0000];
    let mut writer = AttributeWriter::new(&mut out);
    if route.write(&mut writer).is_ok() {
        let len = writer.written();
        let read = RouteMessage::parse(&out[..len]).expect("what was written");
        let hops = read.paths.iter().map(|hop| (hop.interface, hop.gateway));
        assert!(hops.eq(route.paths.iter().map(|hop| (hop.interface, hop.gateway))));
    }
}
