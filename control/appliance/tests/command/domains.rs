//! A router with two routing domains, which have a subnet and addresses in common.

use crate::router::Net;
use crate::running::TIMEOUT;
use serde_json::json;
use std::time::Instant;

/// A host in the default partition, beyond whose router is the default domain.
const A: &str = "[interface.ib0]\ndevice = \"soft:fabric.sock@host1\"\n\
    address = [\"192.168.0.1/24\", \"10.1.0.1/24\", \"fd01::1/64\"]\n\
    router = [\"10.1.0.254\", \"fd01::fe\"]\n";

/// A host in the other partition, beyond whose router is the domain red.
const B: &str = "[interface.ib0]\ndevice = \"soft:fabric.sock@host2\"\npkey = 0x8001\n\
    address = [\"192.168.0.1/24\", \"10.2.0.1/24\", \"fd02::1/64\"]\n\
    router = [\"10.2.0.254\", \"fd02::fe\"]\n";

/// The router, which has 192.168.0.254 in both.
const R: &str = "[router]\n[domain.red]\n\
    [interface.ib0]\ndevice = \"soft:fabric.sock@host3\"\n\
    address = [\"192.168.0.254/24\", \"10.1.0.254/24\", \"fd01::fe/64\"]\n\
    [interface.ib1]\ndevice = \"soft:fabric.sock@host3\"\npkey = 0x8001\ndomain = \"red\"\n\
    address = [\"192.168.0.254/24\", \"10.2.0.254/24\", \"fd02::fe/64\"]\n";

/// Routes from the default domain into red, and back.
const INTO: &str = "[[route]]\nto = \"10.2.0.0/24\"\nnext_domain = \"red\"\n\
    [[route]]\nto = \"fd02::/64\"\nnext_domain = \"red\"\n";
const BACK: &str = "[[route]]\ndomain = \"red\"\nto = \"10.1.0.0/24\"\nnext_domain = \"default\"\n\
    [[route]]\ndomain = \"red\"\nto = \"fd01::/64\"\nnext_domain = \"default\"\n";

#[test]
fn nothing_crosses_between_domains_without_a_route_and_a_leak_works_as_configured() {
    let net = Net::of("domains", [A, B, R]);
    // Both have the same address, and so have both hosts.
    for node in ["a", "b"] {
        net.until(node, "192.168.0.254", "ttl=64");
    }
    for interface in ["ib0", "ib1"] {
        net.until("r", &format!("192.168.0.1 --from {interface}"), "ttl=64");
    }
    let unreachable = "icmp_seq=1 destination host unreachable";
    // Neither hosts of the other domain nor the router's own addresses there.
    for to in ["10.2.0.1", "10.2.0.254"] {
        net.until("a", to, &format!("From 10.1.0.254: {unreachable}"));
    }
    net.until("b", "10.1.0.1", &format!("From 10.2.0.254: {unreachable}"));
    net.until("a", "fd02::1", &format!("From fd01::fe: {unreachable}"));
    // One way only: the reply finds no route.
    let printed = net.reload(&format!("{R}{INTO}"));
    assert!(printed.contains("route: 10.2.0.0/24 by domain red"), "{printed}");
    let no_route = || net.drops("ib1", "forward", "no_route");
    let (before, begun) = (no_route(), Instant::now());
    while no_route() == before {
        net.until("a", "10.2.0.1", "no answer");
        assert!(begun.elapsed() < TIMEOUT, "{:?}", net.rows("r", "drops"));
    }
    // Both ways.
    net.reload(&format!("{R}{INTO}{BACK}"));
    for (node, to) in [("a", "10.2.0.1"), ("b", "10.1.0.1"), ("a", "fd02::1"), ("b", "fd01::1")] {
        net.until(node, to, "ttl=63");
        let (is_done, printed) = net.run(node, &format!("ping {to} --count 20 --interval 0.002"));
        assert!(is_done && printed.contains("20 received"), "{printed}");
    }
    // The subnet that both have is still each one's own.
    net.until("b", "192.168.0.254", "ttl=64");
    let printed = net.reload(&format!("{R}{INTO}"));
    assert!(printed.contains("route: remove 10.1.0.0/24 in red"), "{printed}");
    net.until("b", "10.1.0.1", &format!("From 10.2.0.254: {unreachable}"));
}

#[test]
fn a_leak_may_have_gateways_and_an_interface_changes_its_domain_while_it_runs() {
    let by_gateway = "[[route]]\nto = \"10.9.0.0/16\"\nvia = [\"10.2.0.1\"]\n\
        next_domain = \"red\"\n";
    let net = Net::of("domains-gateways", [A, B, &format!("{R}{by_gateway}{INTO}{BACK}")]);
    net.until("a", "10.2.0.1", "ttl=63");
    let row = |to: &str, domain: &str| {
        let rows = net.rows("r", "routes");
        let is_it = |row: &&serde_json::Value| row["to"] == to && row["domain"] == domain;
        rows.iter().find(is_it).unwrap_or_else(|| panic!("no {to}: {rows:?}")).clone()
    };
    let found = row("10.9.0.0/16", "default");
    assert_eq!(found["via"], json!([{ "interface": "ib1", "gateway": "10.2.0.1", "weight": 1 }]));
    assert_eq!(row("10.2.0.0/24", "default")["next_domain"], "red");
    assert_eq!(row("192.168.0.0/24", "red")["via"][0]["interface"], "ib1");
    // b has no such address, and sends it back, until the TTL runs out between the two.
    net.until("a", "10.9.0.1 --ttl 1", "From 10.1.0.254: icmp_seq=1 time to live exceeded");
    let (_, printed) = net.run("r", "route get 10.2.0.1");
    assert!(
        printed.contains("on the link of ib1") && printed.contains("in domain red"),
        "{printed}"
    );
    let (_, printed) = net.run("r", "route get 10.1.0.254 --domain red");
    assert!(printed.starts_with("10.1.0.254: forward"), "{printed}");
    let (is_done, printed) = net.run("r", "route add 10.1.0.0/24 prohibit --domain red");
    assert!(is_done && printed.contains("prohibit 10.1.0.0/24 in red"), "{printed}");
    net.until("b", "10.1.0.1", "packet filtered");
    assert!(net.run("r", "route del 10.1.0.0/24 --domain red").0);
    net.until("b", "10.1.0.1", "ttl=63");
    // In one domain, the two need no leak; the address that both have is one too many.
    let one = R.replace("domain = \"red\"\n", "").replacen("\"192.168.0.254/24\", ", "", 1);
    let printed = net.reload(&one);
    assert!(printed.contains("ib1: domain default"), "{printed}");
    assert!(!printed.contains("restart"), "{printed}");
    net.until("a", "10.2.0.1", "ttl=63");
    let rows = net.rows("r", "interfaces");
    assert!(rows.iter().all(|row| row["domain"] == "default"), "{rows:?}");
}
