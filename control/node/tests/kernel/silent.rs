//! Changes of routes for which the kernel sends few messages or none: a node that runs has the
//! routes that `ip` shows after each step.

use crate::nodes::NodeInNamespace;
use pollux_node::admin::client::Client;
use pollux_node::admin::request::AdminRequest;
use pollux_node::fabric::Embedded;
use std::time::Duration;

/// An event.
#[derive(Clone, Copy, Debug)]
enum Step {
    /// `ip` with these arguments.
    Ip(&'static str),
    /// The cable of the first link is pulled.
    Unplug,
    /// It is there again.
    Plug,
}
use Step::{Ip, Plug, Unplug};

/// A change without a message, and the paths that a route has in the end.
struct Case {
    what: &'static str,
    steps: &'static [Step],
    left: &'static [(&'static str, usize)],
}

const OBJECTS: [Step; 4] = [
    Ip("nexthop add id 1 via 10.0.1.2 dev ib1"),
    Ip("nexthop add id 2 via 10.0.2.2 dev ib2"),
    Ip("nexthop add id 10 group 1/2"),
    Ip("route add 198.51.100.0/24 nhid 10"),
];

const CASES: [Case; 11] = [
    Case {
        what: "carrier goes: its nexthop leaves the group, and does not return",
        steps: &[OBJECTS[0], OBJECTS[1], OBJECTS[2], OBJECTS[3], Unplug, Plug],
        left: &[("198.51.100.0/24", 1)],
    },
    Case {
        what: "a link is set down: its routes of IPv4 are gone",
        steps: &[
            Ip("route add 198.51.100.0/24 via 10.0.1.2"),
            Ip("-6 route add 2001:db8:51::/64 via 2001:db8:1::2"),
            Ip("link set ib1 down"),
            Ip("link set ib1 up"),
        ],
        left: &[("198.51.100.0/24", 0), ("2001:db8:51::/64", 0)],
    },
    Case {
        what: "one link of several is set down and up: its path is dead, and lives again",
        steps: &[
            Ip("route add 198.51.100.0/24 nexthop via 10.0.1.2 nexthop via 10.0.2.2 weight 3"),
            Ip("link set ib2 down"),
            Ip("link set ib2 up"),
        ],
        left: &[("198.51.100.0/24", 2)],
    },
    Case {
        what: "a nexthop of a group is deleted",
        steps: &[OBJECTS[0], OBJECTS[1], OBJECTS[2], OBJECTS[3], Ip("nexthop del id 2")],
        left: &[("198.51.100.0/24", 1)],
    },
    Case {
        what: "a nexthop is replaced",
        steps: &[
            OBJECTS[0],
            OBJECTS[1],
            OBJECTS[2],
            OBJECTS[3],
            Ip("nexthop replace id 1 via 10.0.3.2 dev ib3"),
            Ip("nexthop replace id 10 group 1,5/2,2"),
        ],
        left: &[("198.51.100.0/24", 2)],
    },
    Case {
        what: "a group is deleted: the routes by it are gone",
        steps: &[OBJECTS[0], OBJECTS[1], OBJECTS[2], OBJECTS[3], Ip("nexthop del id 10")],
        left: &[("198.51.100.0/24", 0)],
    },
    Case {
        what: "a deletion of IPv6 is of paths, and not of the route",
        steps: &[
            Ip("-6 route add 2001:db8:51::/64 via 2001:db8:1::2"),
            Ip("-6 route append 2001:db8:51::/64 via 2001:db8:2::2"),
            Ip("-6 route append 2001:db8:51::/64 via 2001:db8:3::2"),
            Ip("-6 route del 2001:db8:51::/64 via 2001:db8:2::2"),
        ],
        left: &[("2001:db8:51::/64", 2)],
    },
    Case {
        what: "routes of IPv4 to one prefix are a list, of which the first counts",
        steps: &[
            Ip("route add 198.51.100.0/24 via 10.0.1.2"),
            Ip("route append 198.51.100.0/24 via 10.0.2.2"),
            Ip("route prepend 198.51.100.0/24 via 10.0.3.2"),
            Ip("route replace 198.51.100.0/24 via 10.0.4.2"),
            Ip("route del 198.51.100.0/24 via 10.0.4.2"),
        ],
        left: &[("198.51.100.0/24", 1)],
    },
    Case {
        what: "a route with another metric is another route, also when it replaces",
        steps: &[
            Ip("route add 198.51.100.0/24 via 10.0.1.2 metric 5"),
            Ip("route replace 198.51.100.0/24 via 10.0.2.2 metric 4"),
            Ip("route replace unreachable 198.51.100.0/24 metric 6"),
            Ip("route del 198.51.100.0/24 via 10.0.2.2 metric 4"),
        ],
        left: &[("198.51.100.0/24", 1)],
    },
    Case {
        what: "a preferred source address goes: the routes with it are gone",
        steps: &[
            Ip("address add 10.0.9.9/32 dev ib4"),
            Ip("route add 198.51.100.0/24 via 10.0.2.2 src 10.0.9.9"),
            Ip("address del 10.0.9.9/32 dev ib4"),
        ],
        left: &[("198.51.100.0/24", 0)],
    },
    Case {
        what: "the last IPv4 address of a link goes: the routes through gateways there are gone",
        steps: &[
            Ip("address add 10.0.1.9/32 dev ib1"),
            Ip("route add 198.51.100.0/24 via 10.0.1.2"),
            Ip("address del 10.0.1.9/32 dev ib1"),
            Ip("address del 10.0.1.1/24 dev ib1"),
        ],
        left: &[("198.51.100.0/24", 0)],
    },
];

/// A node with four links, whose addresses end in `N::1` and `N.1`.
fn start(test: &str, fabric: &Embedded) -> Option<NodeInNamespace> {
    let mut config = String::from("[router]\nkernel_table = 254\n");
    for n in 1..=4 {
        let device = fabric.port(&format!("host{n}"));
        config += &format!(
            "[interface.ib{n}]\ndevice = {device:?}\nshadow = \"ib{n}\"\n\
             address = [\"10.0.{n}.1/24\", \"2001:db8:{n}::1/64\"]\n"
        );
    }
    let node = NodeInNamespace::start(test, &config)?;
    node.wait_for_links(4);
    Some(node)
}

fn run(node: &NodeInNamespace, fabric: &Embedded, step: Step, rule: &mut Option<u32>) {
    let client = Client::new(&fabric.path(), Duration::from_secs(60));
    match step {
        Ip(arguments) => node.namespace.ip(arguments),
        Unplug => {
            let down = AdminRequest::AddFault("host1:1/down".into());
            *rule = Some(client.ask(&down, &mut |_, _| false).expect("a rule"));
            node.wait_for_links(3);
        }
        Plug => {
            let number = rule.take().expect("it was unplugged");
            client
                .ask::<u32>(&AdminRequest::RemoveFault(number), &mut |_, _| false)
                .expect("it is there");
            node.wait_for_links(4);
        }
    }
}

#[test]
fn silent_changes_of_the_kernel_are_noticed() {
    let test = "silent changes";
    for compat in ["1", "0"] {
        let fabric = Embedded::start("single:4").expect("it starts");
        let Some(node) = start(test, &fabric) else { return };
        node.namespace.set("net/ipv4/nexthop_compat_mode", compat);
        let mut rule = None;
        for Case { what, steps, left } in &CASES {
            for step in *steps {
                run(&node, &fabric, *step, &mut rule);
                node.wait_for_equal_routes(&format!("{what}: {step:?}"));
            }
            for (to, paths) in *left {
                let routes = node.route(to);
                let found: usize = routes.iter().map(|(_, via)| via.len()).sum();
                assert_eq!(found, *paths, "{what}: paths to {to}: {routes:?}");
            }
            for clean in ["nexthop flush", "route flush proto boot", "-6 route flush proto boot"] {
                node.namespace.ip(clean);
            }
            node.wait_for_equal_routes(&format!("{what}: and all is removed"));
        }
    }
}
