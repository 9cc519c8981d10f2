//! What it costs when a whole cluster starts at once and everybody talks to everybody, and what a
//! connection costs that nobody uses.
//!
//! One test in a process of its own, since all that is allocated is counted. `POLLUX_NODES=N` says
//! how many nodes the cluster has.

#[path = "../simulation/network.rs"]
#[allow(dead_code, reason = "nothing is lost or late here")]
mod network;
#[path = "../../../dataplane/tests/netdev/pair.rs"]
#[allow(dead_code, reason = "packets are sent elsewhere")]
mod pair;
#[path = "../../../dataplane/fabric/tests/common/pair_world.rs"]
mod pair_world;
#[path = "../interface/port_driver.rs"]
mod port_driver;
mod storm;
#[path = "../simulation/world.rs"]
#[allow(dead_code, reason = "nobody dies here")]
mod world;

use pair::{Pair, Setup};
use pollux_control::ipoib::connected::Policy;
use pollux_counted::Counted;
use pollux_dataplane::ipoib::NetdevConfig;
use pollux_verbs::QpType;

/// What an idle connection may cost at one end, beside its share of the receives of all and what
/// is kept of a peer that only datagrams go to.
///
/// Why more than 4,096, which it was before: connections are counted by port, unreliable ones are
/// probed, and the reason of a failure is kept, so 48 nodes measure 2,379 at control and 1,825 at
/// the device. Some of that is a node's, not a connection's: among 250 nodes it is less.
const CONNECTION_BYTES_MAX: usize = 4224;
/// Connections whose memory is looked at: many, since tables grow in steps.
const CONNECTIONS: u32 = 1000;

#[global_allocator]
static MEMORY: Counted = Counted::new();

/// Bytes of a connection's queue pair and its queues at the adapter in software.
fn bytes_at_the_device() -> usize {
    let config = NetdevConfig { connections_max: CONNECTIONS, ..Setup::default().config };
    let mut pair = Pair::new(1, Setup { config, ..Setup::default() });
    let before = MEMORY.bytes();
    for _ in 0..CONNECTIONS {
        pair.connect(QpType::Rc);
    }
    (MEMORY.bytes() - before) / CONNECTIONS as usize / 2
}

#[test]
fn a_cluster_starts_within_bounds_and_connections_cost_little() {
    let nodes = storm::nodes();
    let [datagrams, connected] = [Policy::Ud, Policy::Rc].map(|policy| {
        let storm = storm::start(nodes, policy);
        println!("{storm}");
        storm.bytes_of_a_peer
    });
    let (control, device) = (connected - datagrams, bytes_at_the_device());
    println!("an idle RC connection costs {control} bytes at control, {device} at the device");
    assert!(control + device <= CONNECTION_BYTES_MAX, "{control} and {device}");
}
