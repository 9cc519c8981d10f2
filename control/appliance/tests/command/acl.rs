//! Access control lists and source checks of a router between two partitions.

use crate::router::{Net, R};
use crate::running::TIMEOUT;
use std::time::Instant;

/// The router, with keys of its first interface and of its second one.
fn router(ib0: &str, ib1: &str, rest: &str) -> String {
    let (first, second) = R.split_once("[interface.ib1]\n").expect("it has two interfaces");
    format!("{first}{ib0}\n[interface.ib1]\n{ib1}\n{second}[router]\n{rest}")
}

const LISTS: &str = "[[acl.arriving]]\naction = \"reject\"\nprotocol = \"icmp\"\nicmp_type = 8\n\
    destination = \"10.2.0.0/24\"\n\
    [[acl.arriving]]\naction = \"deny\"\ndestination = \"10.1.0.254/32\"\n\
    [[acl.arriving]]\naction = \"deny\"\nprotocol = \"icmpv6\"\nicmp_type = 128\n\
    destination = \"fd01::fe/128\"\n\
    [[acl.leaving]]\naction = \"deny\"\nsource = \"fd01::/64\"\n";

/// The packets of a rule.
fn packets(net: &Net, acl: &str, rule: u64) -> u64 {
    let rows = net.rows("r", "acl");
    let is_it = |row: &&serde_json::Value| row["acl"] == acl && row["rule"] == rule;
    rows.iter().find(is_it).and_then(|row| row["packets"].as_u64()).expect("a row of each")
}

#[test]
fn lists_filter_what_arrives_and_what_leaves_and_count_it() {
    let net = Net::new("acl", &router("", "", LISTS));
    for to in ["10.2.0.1", "fd02::1", "10.1.0.254", "fd01::fe"] {
        net.until("a", to, "ttl=6");
    }
    let printed = net.reload(&router("acl_in = \"arriving\"", "acl_out = \"leaving\"", LISTS));
    assert!(printed.contains("ib0: acl_in arriving"), "{printed}");
    assert!(!printed.contains("restart"), "{printed}");
    net.until("a", "10.2.0.1", "From 10.1.0.254: icmp_seq=1 packet filtered");
    // To the router itself: neighbor discovery still works, and other addresses of it answer.
    net.until("a", "10.1.0.254", "no answer");
    net.until("a", "fd01::fe", "no answer");
    net.until("a", "fd02::fe", "ttl=64");
    // What leaves by the other interface; an ICMP type is not a port, and b's requests pass.
    net.until("a", "fd02::1", "no answer");
    net.until("b", "10.1.0.1", "ttl=63");
    assert!(packets(&net, "arriving", 1) > 0 && packets(&net, "arriving", 2) > 0);
    assert!(packets(&net, "arriving", 3) > 0 && packets(&net, "leaving", 1) > 0);
    let begun = Instant::now();
    let counted = |interface, why, least| net.drops(interface, "forward", why) >= least;
    // What would leave by ib1 arrived at ib0, where it is counted.
    while !(counted("ib0", "acl_in", 3) && counted("ib0", "acl_out", 1)) {
        assert!(begun.elapsed() < TIMEOUT, "{:?}", net.rows("r", "drops"));
    }
    let (is_done, table) = net.run("r", "show acl");
    assert!(is_done && table.contains("icmp type 8 to 10.2.0.0/24"), "{table}");
    // A list whose rules stay keeps its counters; the other begins anew.
    let before = packets(&net, "arriving", 1);
    let other = LISTS.replace("source = \"fd01::/64\"", "source = \"fd09::/64\"");
    net.reload(&router("acl_in = \"arriving\"", "acl_out = \"leaving\"", &other));
    net.until("a", "fd02::1", "ttl=63");
    assert_eq!((packets(&net, "arriving", 1), packets(&net, "leaving", 1)), (before, 0));
    let printed = net.reload(&router("", "", LISTS));
    assert!(printed.contains("ib0: no acl_in"), "{printed}");
    net.until("a", "10.2.0.1", "ttl=63");
}

/// The source of a's packets has a route by ib0; a route to it by ib1 makes it one that is forged.
#[test]
fn a_source_without_a_route_back_is_dropped_and_counted() {
    let elsewhere = "[[route]]\nto = \"10.1.0.1/32\"\nvia = [\"10.2.0.1\"]\n";
    let nowhere = "[[route]]\nto = \"10.1.0.1/32\"\ntype = \"blackhole\"\n";
    let net = Net::new("rpf", &router("rpf = \"strict\"", "rpf = \"strict\"", ""));
    net.until("a", "10.2.0.1", "ttl=63");
    net.until("b", "fd01::1", "ttl=63");
    let dropped = || net.drops("ib0", "forward", "reverse_path");
    let drops_with = |rest: &str, rpf: &str| {
        net.reload(&router(rpf, "", rest));
        let (before, begun) = (dropped(), Instant::now());
        loop {
            net.run("a", "ping 10.2.0.1 --count 1");
            if dropped() > before {
                break;
            }
            assert!(begun.elapsed() < TIMEOUT, "{:?}", net.rows("r", "drops"));
        }
    };
    drops_with(elsewhere, "rpf = \"strict\"");
    drops_with(nowhere, "rpf = \"loose\"");
    // A route by the other interface is enough for loose.
    let before = dropped();
    let printed = net.reload(&router("rpf = \"loose\"", "", elsewhere));
    assert!(printed.contains("route: 10.1.0.1/32 via 10.2.0.1"), "{printed}");
    let received = || net.rows("b", "interfaces")[0]["received"].as_u64().expect("a number");
    let (first, begun) = (received(), Instant::now());
    while received() < first + 2 {
        net.run("a", "ping 10.2.0.1 --count 1");
        assert!(begun.elapsed() < TIMEOUT, "{:?}", net.rows("r", "drops"));
    }
    assert_eq!(dropped(), before);
}
