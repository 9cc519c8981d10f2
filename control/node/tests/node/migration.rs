//! Two nodes at different leaves, whose ports have two addresses each, one by each of two spines,
//! and a link that swallows all it gets: no event reports that, so only the queue pairs can
//! migrate.

use crate::fabric::Running;
use crate::host::Hosts;
use pollux_control::ipoib::ConnectionKey;
use pollux_node::admin::request::AdminRequest;
use std::time::Duration;

/// How long a connection stands, or lacks a second path, before one is looked for.
const SOUGHT_AFTER: Duration = Duration::from_secs(6);

/// The state of the only connection of a host: which it is, how it is with a second path, and
/// how often it went on by one.
fn row(hosts: &Hosts, host: usize) -> (ConnectionKey, &'static str, u64) {
    let rows = hosts.connections(host);
    let [row] = &rows[..] else { panic!("{rows:?}") };
    (row.connection, row.alternate, row.migrations)
}

/// Waits until both ends have a second path that they may go on by: packets both ways show each
/// that the other one has it, too.
fn until_protected(hosts: &mut Hosts) {
    hosts.skip(SOUGHT_AFTER);
    hosts.until("a second path", |hosts| (0..2).all(|host| row(hosts, host).1 == "loaded"));
    for _ in 0..2 {
        hosts.must_answer(0, "10.0.0.2", 9000);
        hosts.must_answer(1, "10.0.0.1", 9000);
    }
}

// req: cm-path-migration
#[test]
fn traffic_migrates_to_the_second_path_and_back() {
    let fabric = Running::spread("traffic_goes_on_by_the_second_path", "leaf-spine:2x2x1", 1);
    let mut hosts =
        Hosts::at(&[(fabric.port(1), "10.0.0.1/24"), (fabric.port(2), "10.0.0.2/24")], "rc");
    hosts.come_up();
    hosts.must_answer(1, "10.0.0.1", 9000);
    let first = [0, 1].map(|host| row(&hosts, host).0);
    for round in 0..4 {
        until_protected(&mut hosts);
        let before = [0, 1].map(|host| row(&hosts, host).2);
        // The links of leaf1 behind that to its host. The subnet manager is at spine1, and whoever
        // asks it for paths is at leaf2.
        fabric.ask(&AdminRequest::AddFault(format!("leaf1:{}/loss=100%", 2 + round % 2)));
        for bytes in [9000, 65_520 - 28, 56] {
            hosts.must_answer(0, "10.0.0.2", bytes);
            hosts.must_answer(1, "10.0.0.1", bytes);
        }
        for (host, (before, first)) in before.into_iter().zip(first).enumerate() {
            let (key, _, after) = row(&hosts, host);
            assert_eq!(key, first, "the connection is the one it was");
            // It begins by one of the two spines: the first failure may be of the other.
            assert!(after == before + 1 || round == 0 && after == before, "round {round}");
        }
        fabric.ask(&AdminRequest::RemoveFault(round + 1));
    }
    for host in 0..2 {
        let ended = hosts.hosts[host].control().drop_rows().filter(|row| row.1 == "queue_pair");
        assert_eq!(ended.map(|row| row.2).sum::<u64>(), 0, "no queue pair has failed");
    }
}
