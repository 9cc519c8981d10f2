//! Two nodes of ours at one fabric.

use crate::fabric::{Manager, Running};
use crate::host::Hosts;
use pollux_node::interface::echo::Outcome;
use pollux_node::interface::sending::NotSent;
use pollux_referee::tshark::dissect;

/// Two interfaces that are up.
fn two(fabric: &Running) -> Hosts {
    let mut hosts = Hosts::at(&[(fabric.port(1), "10.0.0.1/24"), (fabric.port(2), "10.0.0.2/24")]);
    hosts.come_up();
    hosts
}

#[test]
fn two_nodes_resolve_and_answer_each_other_by_datagrams() {
    let test = "two_nodes_resolve_and_answer_each_other_by_datagrams";
    let fabric = Running::start(test, 2, Manager::Ours);
    let mut hosts = two(&fabric);
    for octets in [0, 1, 56, 2044 - 28] {
        hosts.must_answer(0, "10.0.0.2", octets);
        hosts.must_answer(1, "10.0.0.1", octets);
    }
    let peer = hosts.link_local(1);
    for octets in [56, 2044 - 48] {
        hosts.must_answer(0, &peer, octets);
    }
    drop(hosts);
    let packets = fabric.end();
    let octets: Vec<_> = packets.iter().map(Vec::as_slice).collect();
    let Some(rows) = dissect(test, &octets, &["arp.hw.type", "icmp.type", "icmpv6.type"]) else {
        return;
    };
    let malformed: Vec<_> = rows.iter().filter(|row| !row.malformed.is_empty()).collect();
    assert!(
        malformed.is_empty(),
        "{} of {}: {}",
        malformed.len(),
        rows.len(),
        malformed[0].malformed
    );
    let seen = |field: usize, value: &str| rows.iter().any(|row| row.values[field] == value);
    assert!(seen(0, "32") && seen(1, "0") && seen(1, "8") && seen(2, "129") && seen(2, "135"));
}

#[test]
fn what_is_too_long_or_for_nobody_is_said_to_be() {
    let fabric = Running::start("what_is_too_long_or_for_nobody_is_said_to_be", 2, Manager::Ours);
    let mut hosts = two(&fabric);
    hosts.must_answer(0, "10.0.0.2", 56);
    let too_big = Outcome::NotSent(NotSent::TooBig(2044));
    assert_eq!(hosts.ping(0, "10.0.0.2", 2044 - 28 + 1), too_big);
    assert_eq!(hosts.ping(0, "10.0.0.9", 56), Outcome::Unreachable);
}
