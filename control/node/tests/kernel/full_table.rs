//! A table of BGP that is learned and withdrawn at once, as with a session to the Internet, while
//! packets are forwarded by one of its routes.

use crate::bird::Bird;
use crate::churn::{count, under_traffic};
use crate::nodes::{NodeInNamespace, until};
use pollux_node::fabric::Embedded;
use std::fmt::Write;

/// The network behind the peer, whose route stays.
const BEHIND: &str = "10.2.0.0/16";
/// An address there.
const TO: &str = "10.2.0.1";
/// How often the other routes come and go.
const TIMES: usize = 2;

/// The peer's protocols: the route that stays, and `full`, which has so many others.
fn peer(routes: usize) -> String {
    let mut text = format!("protocol static {{ ipv4; route {BEHIND} blackhole; }}\n");
    text += "protocol static full { disabled; ipv4;\n";
    for n in 0..routes {
        let (a, b, c) = (16 + (n >> 16), n >> 8 & 255, n & 255);
        writeln!(text, "route 172.{a}.{b}.{c}/32 blackhole;").expect("text");
    }
    text + "}\nprotocol bgp { local 10.0.0.2 as 65002; neighbor 10.0.0.1 as 65001; \
            ipv4 { import none; export all; next hop self; }; connect delay time 1; }\n"
}

/// Those of the router.
const ROUTER: &str = "protocol kernel { ipv4 { export where source = RTS_BGP; }; }\n\
    protocol bgp { local 10.0.0.1 as 65001; neighbor 10.0.0.2 as 65002; \
    ipv4 { import all; export none; }; connect delay time 1; }\n";

#[test]
fn no_packet_is_lost_while_thousands_of_bgp_routes_change() {
    let test = "BGP beside packets";
    let fabric = Embedded::start("single:4").expect("it starts");
    let start = |text: &str, devices: &[u8]| {
        let device = |text: String, nth: &u8| {
            let port = fabric.port(&format!("host{nth}"));
            text.replacen("DEVICE", &port, 1)
        };
        NodeInNamespace::start(test, &devices.iter().fold(text.to_owned(), device))
    };
    let router = "[router]\nkernel_table = 254\n\
        [interface.ib0]\ndevice = \"DEVICE\"\nshadow = \"ib0\"\naddress = [\"10.0.0.1/24\"]\n\
        [interface.ib1]\ndevice = \"DEVICE\"\nshadow = \"ib1\"\naddress = [\"10.1.0.1/16\"]\n";
    let beyond = "[interface.ib0]\ndevice = \"DEVICE\"\nshadow = \"ib0\"\n\
        address = [\"10.0.0.2/24\", \"10.2.0.1/16\"]\nrouter = [\"10.0.0.1\"]\n";
    let host = "[interface.ib0]\ndevice = \"DEVICE\"\naddress = [\"10.1.0.5/16\"]\n\
        router = [\"10.1.0.1\"]\n";
    let Some(router) = start(router, &[1, 2]) else { return };
    let Some(beyond) = start(beyond, &[3]) else { return };
    let Some(sender) = start(host, &[4]) else { return };
    router.wait_for_ping("10.0.0.2", &[]);
    let routes = count(3000);
    let Some(_bird) = Bird::start(test, &router, 1, ROUTER) else { return };
    let Some(bird) = Bird::start(test, &beyond, 2, &peer(routes)) else { return };
    router.wait_for_route(BEHIND, "kernel, bird", &["10.0.0.2"]);
    until("a reply", || if sender.ping(TO) { Ok(()) } else { Err("none".into()) });
    let wait_for = |routes: usize| {
        until(&format!("{routes} routes"), || {
            let kernel = router.kernel();
            let is_it = kernel.routes == routes && kernel.state == "following";
            if is_it { Ok(()) } else { Err(format!("{kernel:?}")) }
        });
    };
    under_traffic(&sender, &[TO], || {
        for _ in 0..TIMES {
            bird.say("enable full");
            wait_for(routes + 1);
            bird.say("disable full");
            wait_for(1);
        }
        bird.say("enable full");
        wait_for(routes + 1);
    });
    router.wait_for_equal_routes("a table of BGP that came and went");
}
