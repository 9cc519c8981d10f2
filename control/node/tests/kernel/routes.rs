//! The mirror equals the kernel's tables after each step: routes, nexthop objects, silent changes,
//! lost notifications.

use crate::shown::Said;
use crate::watched::Watched;
use pollux_control::router::kernel_routes::KernelRouteChange;
use pollux_node::kernel::route_watch::NOTIFICATION_BYTES;
use std::fmt::Write;

/// Four paths of the route, by gateways on the four shadows.
const FOUR: &str = "nexthop via 10.0.1.2 nexthop via 10.0.2.2 nexthop via 10.0.3.2 \
    nexthop via 10.0.4.2";

fn start(test: &str) -> Option<Watched> {
    let mut watched = Watched::start(test, NOTIFICATION_BYTES)?;
    watched.step_until_idle();
    let table = watched.compare("start");
    assert_eq!(table.len(), 8, "connected routes of four shadows, both families: {table:#?}");
    Some(watched)
}

fn steps(watched: &mut Watched, steps: &[&str]) {
    for step in steps {
        watched.step(step);
    }
}

fn paths(watched: &Watched, prefix: &str) -> usize {
    let (address, len) = prefix.split_once('/').expect("a prefix");
    let (address, len) = (address.parse().expect("an address"), len.parse().expect("a length"));
    let table = watched.mirrored();
    let found = table.iter().find(|((a, l, _), _)| (*a, *l) == (address, len));
    match found {
        Some((_, Said::Via(hops))) => hops.len(),
        _ => 0,
    }
}

#[test]
fn routes_of_ipv4_are_added_replaced_and_deleted() {
    let Some(mut watched) = start("routes v4") else { return };
    steps(
        &mut watched,
        &[
            "route add 198.51.100.0/24 via 10.0.1.2",
            "route replace 198.51.100.0/24 via 10.0.2.2",
            "route add 198.51.100.0/24 via 10.0.3.2 metric 5",
            "route append 198.51.100.0/24 via 10.0.4.2",
            "route prepend 198.51.100.0/24 via 10.0.3.3",
            "route replace 198.51.100.0/24 via 10.0.1.3",
            "route del 198.51.100.0/24 via 10.0.1.3",
            "route del 198.51.100.0/24 via 10.0.4.2",
            "route add default via 10.0.1.2",
            "route add 203.0.113.7 nexthop via 10.0.1.2 weight 1 nexthop via 10.0.2.2 weight 3",
            "route add blackhole 192.0.2.0/24",
            "route add unreachable 192.0.3.0/24",
            "route add prohibit 192.0.4.0/24",
            "route add 192.0.5.0/24 via inet6 2001:db8:1::2 dev ib1",
            "route add 192.0.6.0/24 dev lo",
            "route add 192.0.7.0/24 via 10.0.1.2 table 1000",
            "route replace blackhole 203.0.113.7",
            "route flush proto boot",
        ],
    );
}

#[test]
fn routes_of_ipv6_are_merged_and_taken_apart() {
    let Some(mut watched) = start("routes v6") else { return };
    steps(
        &mut watched,
        &[
            "-6 route add 2001:db8:51::/64 via 2001:db8:1::2",
            "-6 route append 2001:db8:51::/64 via 2001:db8:2::2",
            "-6 route append 2001:db8:51::/64 via 2001:db8:3::2",
            "-6 route del 2001:db8:51::/64 via 2001:db8:2::2",
            "-6 route replace 2001:db8:51::/64 via 2001:db8:4::2",
            "-6 route add 2001:db8:52::/64 nexthop via 2001:db8:1::2 weight 3 \
             nexthop via 2001:db8:2::2",
            "-6 route del 2001:db8:52::/64 via 2001:db8:1::2",
            "-6 route add 2001:db8:51::/64 via 2001:db8:1::2 metric 5",
            "-6 route add 2001:db8:53::/64 dev ib1",
            "-6 route append 2001:db8:53::/64 dev ib2",
            "-6 route del 2001:db8:53::/64 dev ib1",
            "-6 route add blackhole 2001:db8:54::/64",
            "-6 route add unreachable 2001:db8:55::/64",
            "-6 route add prohibit 2001:db8:56::/64",
            "-6 route add default via 2001:db8:1::2",
            "-6 route del 2001:db8:51::/64",
            "-6 route flush 2001:db8:52::/64",
            "-6 route flush proto boot",
        ],
    );
}

/// Cases 1, 4, 5 and 6: what happens to nexthop objects happens to routes without a message.
#[test]
fn routes_follow_their_nexthop_objects() {
    let Some(mut watched) = start("nexthops") else { return };
    for compat in ["1", "0"] {
        watched.namespace.set("net/ipv4/nexthop_compat_mode", compat);
        steps(
            &mut watched,
            &[
                "nexthop add id 1 via 10.0.1.2 dev ib1",
                "nexthop add id 2 via 10.0.2.2 dev ib2",
                "nexthop add id 3 via 10.0.3.2 dev ib3",
                "nexthop add id 6 via 2001:db8:1::2 dev ib1",
                "nexthop add id 10 group 1/2/3,7",
                "route add 198.51.100.0/24 nhid 10",
                "route add 198.51.101.0/24 nhid 1",
                "-6 route add 2001:db8:51::/64 nhid 6",
                "nexthop replace id 1 via 10.0.4.2 dev ib4",
                "nexthop replace id 10 group 1/3",
                "nexthop del id 3",
                "nexthop add id 20 blackhole",
                "route add 198.51.102.0/24 nhid 20",
                "nexthop replace id 10 group 2/1",
                "nexthop del id 10",
                "nexthop flush",
            ],
        );
    }
}

#[test]
fn loss_of_carrier_removes_paths_and_its_return_restores_those_of_the_kernel() {
    let Some(mut watched) = start("carrier") else { return };
    steps(
        &mut watched,
        &[
            "nexthop add id 1 via 10.0.1.2 dev ib1",
            "nexthop add id 2 via 10.0.2.2 dev ib2",
            "nexthop add id 10 group 1/2",
            "route add 198.51.100.0/24 nhid 10",
            &format!("route add 198.51.101.0/24 {FOUR}"),
        ],
    );
    assert_eq!(paths(&watched, "198.51.101.0/24"), 4);
    for (carrier, classic) in [(false, 3), (true, 4)] {
        watched.set_carrier(0, carrier);
        watched.compare("carrier");
        assert_eq!(paths(&watched, "198.51.101.0/24"), classic);
    }
}

/// Cases 2 and 3.
#[test]
fn a_link_that_is_set_down_takes_routes_along_without_a_message() {
    let Some(mut watched) = start("down") else { return };
    steps(
        &mut watched,
        &[
            "route add 198.51.100.0/24 via 10.0.1.2",
            &format!("route add 198.51.101.0/24 {FOUR}"),
            "-6 route add 2001:db8:51::/64 via 2001:db8:1::2",
            "link set ib1 down",
            "link set ib1 up",
        ],
    );
    assert_eq!(paths(&watched, "198.51.100.0/24"), 0);
    // Down and up before the mirror reads either: the routes by it are gone all the same.
    watched.namespace.ip("route add 198.51.102.0/24 via 10.0.2.2");
    watched.step_until_idle();
    watched.namespace.ip("link set ib2 down");
    watched.namespace.ip("link set ib2 up");
    watched.turn();
    assert_eq!(paths(&watched, "198.51.102.0/24"), 0, "not used before the dump");
    watched.step_until_idle();
    watched.compare("down and up");
}

/// Cases 10 and 11.
#[test]
fn the_last_address_of_a_link_takes_routes_along_without_a_message() {
    let Some(mut watched) = start("addresses") else { return };
    steps(
        &mut watched,
        &[
            "route add 198.51.100.0/24 via 10.0.1.2",
            "route add 198.51.101.0/24 via 10.0.2.2 src 10.0.1.1",
            "address add 10.0.1.9/32 dev ib1",
            "address del 10.0.1.9/32 dev ib1",
            "address del 10.0.1.1/24 dev ib1",
        ],
    );
    assert_eq!(paths(&watched, "198.51.100.0/24"), 0);
    steps(&mut watched, &["link del ib3"]);
}

/// DELROUTE, then NEWROUTE: one change comes out, and at no time no route.
#[test]
fn a_replacement_in_two_messages_leaves_no_gap() {
    let Some(mut watched) = start("gap") else { return };
    watched.step("-6 route add 2001:db8:51::/64 via 2001:db8:1::2");
    watched.namespace.ip("-6 route del 2001:db8:51::/64");
    watched.namespace.ip("-6 route add 2001:db8:51::/64 via 2001:db8:2::2");
    let changes = watched.step_until_idle();
    assert!(matches!(changes[..], [KernelRouteChange::Set(..)]), "{changes:?}");
    watched.compare("replacement");
    watched.namespace.ip("-6 route del 2001:db8:51::/64");
    watched.namespace.ip("-6 route add 2001:db8:51::/64 via 2001:db8:2::2");
    assert_eq!(watched.step_until_idle(), [], "what is as it was is no change");
}

#[test]
fn lost_notifications_are_made_up_for_by_a_dump() {
    let Some(mut watched) = Watched::start("overrun", 4096) else { return };
    watched.step_until_idle();
    let mut batch = String::new();
    for n in 0..10_000 {
        let (a, b) = (n / 256, n % 256);
        writeln!(batch, "route add 172.16.{b}.{a}/32 via 10.0.{}.2", n % 4 + 1).expect("text");
    }
    watched.namespace.batch(&batch);
    watched.step_until_idle();
    let counters = watched.watch.routes().counters();
    assert!(counters.overruns >= 1 && counters.dumps >= 2, "{counters:?}");
    assert_eq!(watched.compare("overrun").len(), 10_008);
    watched.namespace.batch(&batch.replace("add", "del"));
    // Before the dump was read, the old routes stay in use.
    assert_eq!(watched.turn(), []);
    assert_eq!(watched.mirrored().len(), 10_008);
    watched.step_until_idle();
    assert_eq!(watched.compare("deletion of all").len(), 8);
}
