//! A packet's way through the tables, as `pollux trace` tells it, and what becomes of real ones.

use crate::router::{Net, R};
use serde_json::Value;

/// The steps of a trace at the router, as `step: result`.
fn steps(net: &Net, arguments: &str) -> Vec<String> {
    let (is_done, printed) = net.run("r", &format!("trace {arguments} --json"));
    assert!(is_done, "{printed}");
    let steps: Vec<Value> = serde_json::from_str(&printed).expect("it is JSON");
    assert!(steps.iter().all(|one| one["why"].as_str().is_some_and(|why| !why.is_empty())));
    let text = |one: &Value, key: &str| one[key].as_str().expect("text").to_owned();
    steps.iter().map(|one| format!("{}: {}", text(one, "step"), text(one, "result"))).collect()
}

#[test]
fn a_packet_is_traced_from_its_interface_to_its_neighbor() {
    let net = Net::new(
        "trace",
        &format!(
            "{R}[router]\n[[route]]\nto = \"10.9.0.0/16\"\n\
        via = [\"10.2.0.1\", \"10.1.0.1\"]\n[[route]]\nto = \"10.8.0.0/16\"\ntype = \"prohibit\"\n"
        ),
    );
    net.until("a", "10.2.0.1", "ttl=63");
    let link = |interface: &str| {
        let rows = net.rows("r", "neighbors");
        let row = rows.iter().find(|row| {
            row["interface"] == interface
                && row["address"].as_str().is_some_and(|it| it.ends_with(".1"))
        });
        row.expect("a neighbor")["link"].as_str().expect("resolved").to_owned()
    };
    let forwarded = steps(&net, "10.2.0.1 --from 10.1.0.1 --interface ib0");
    assert_eq!(forwarded[..3], ["origin: ib0", "verdict: transit", "route: 10.2.0.0/24"]);
    assert_eq!(forwarded[3], "next hop: 10.2.0.1 at ib1");
    assert!(forwarded[4].starts_with("neighbor: "), "{forwarded:?}");
    assert_eq!(forwarded[5], format!("path: datagrams to {}", link("ib1")));
    assert_eq!(forwarded[6..], ["mtu: 2044"]);
    let back = steps(&net, "10.1.0.1 --interface ib1");
    assert_eq!(back[5..], [format!("path: connection to {}", link("ib0")), "mtu: 65520".into()]);
    let both = steps(&net, "10.9.0.1 --interface ib0");
    assert!(both.contains(&"group: 2 next hops".into()), "{both:?}");
    assert!(both.contains(&"next hop: 10.1.0.1 at ib0".into()), "{both:?}");
    let unknown = steps(&net, "10.2.0.99");
    assert_eq!(
        unknown[1..],
        ["verdict: send", "route: 10.2.0.0/24", "next hop: 10.2.0.99 at ib1", "neighbor: unknown"]
    );
}

#[test]
fn a_trace_ends_where_packets_end() {
    let net = Net::new(
        "trace-ends",
        &format!(
            "{R}[router]\n[[route]]\nto = \"10.8.0.0/16\"\n\
        type = \"prohibit\"\n"
        ),
    );
    net.until("a", "10.8.0.1", "packet filtered");
    let last = |arguments: &str| steps(&net, arguments).pop().expect("a step");
    assert_eq!(last("10.8.0.1 --interface ib0"), "target: prohibit");
    assert_eq!(last("192.0.2.1 --interface ib0"), "route: none");
    assert_eq!(last("10.2.0.254 --interface ib0"), "verdict: local");
    assert_eq!(last("10.2.0.1 --from 127.0.0.1 --interface ib0"), "verdict: drop");
    assert_eq!(last("239.1.1.1 --interface ib0"), "verdict: group");
    let (is_done, printed) = net.run("r", "trace 10.2.0.1 --interface ib7");
    assert!(!is_done && printed.contains("there is no interface ib7; list them"), "{printed}");
    let (is_done, printed) = net.run("r", "trace 10.2.0.1 --from fd01::1");
    assert!(!is_done && printed.contains("of two families"), "{printed}");
    let denied = R.replacen("[interface.ib0]", "[interface.ib0]\nacl_in = \"web\"", 1);
    let denied = denied + "[router]\n[[acl.web]]\naction = \"deny\"\n";
    std::fs::write(net.folder.join("r.toml"), denied).expect("it is ours");
    assert!(net.run("r", "reload").0);
    let arguments = "10.2.0.1 --from 10.1.0.1 --interface ib0";
    assert_eq!(steps(&net, arguments), ["origin: ib0", "acl_in: web rule 1: deny"]);
    // Without forwarding, as the configuration says then.
    std::fs::write(net.folder.join("r.toml"), R).expect("it is ours");
    assert!(net.run("r", "reload").0);
    let (_, printed) = net.run("r", "trace 10.2.0.1 --interface ib0");
    assert!(printed.contains("drop") && printed.contains("has no [router]"), "{printed}");
}
