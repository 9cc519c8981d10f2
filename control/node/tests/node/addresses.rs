//! Addresses belong to the node: packets for one of them may come by any of its interfaces.

use crate::fabric::{Manager, Running};
use crate::running_node::{RunningNode, pause};
use pollux_node::admin::reply::PingOutcome;
use pollux_node::admin::request::AdminRequest;
use pollux_node::admin::rows::{InterfaceStatus, NeighborStatus};
use pollux_node::config::NodeConfig;
use std::path::Path;

const BYTES: usize = 56;

fn start(folder: &Path, name: &str, text: &str) -> RunningNode {
    let config = NodeConfig::read("test", text).expect("it is valid");
    RunningNode::start(&folder.join(name), config)
}

/// Whether an echo request is answered.
fn answers(from: &RunningNode, to: &str) -> bool {
    let to = to.parse().expect("an address");
    let request = AdminRequest::Ping { address: to, bytes: BYTES, ttl: None, interface: None };
    let outcome = from.client().ask(&request, &mut pause).expect("it answers");
    matches!(outcome, PingOutcome::Answered { .. })
}

#[test]
fn an_interface_takes_packets_for_addresses_of_the_others() {
    let fabric = Running::start("an_interface_takes_packets", 4, Manager::Ours);
    let folder = std::env::temp_dir().join(format!("pollux-{}-addresses", std::process::id()));
    std::fs::create_dir_all(&folder).expect("a folder");
    let interface = |nth: usize, port: usize, rest: &str| {
        let device = fabric.port(port);
        format!("[interface.ib{nth}]\ndevice = {device:?}\nmode = 'ud'\n{rest}\n")
    };
    let two = [
        interface(0, 1, "address = ['10.0.0.1/24', 'fd00::1/64']"),
        interface(1, 2, "address = ['10.0.1.1/24', 'fd01::1/64']"),
    ];
    let node = start(&folder, "node", &two.concat());
    let routed = "address = ['10.0.0.2/24', 'fd00::2/64']\nrouter = ['10.0.0.1', 'fd00::1']";
    let peer = start(&folder, "peer", &interface(0, 3, routed));
    // Both must be up before an outcome counts.
    for own in ["10.0.0.1", "fd00::1"] {
        assert!(answers(&peer, own), "{own}");
    }
    // Until duplicate address detection is over at ib1, its addresses are not assigned.
    for beyond in ["10.0.1.1", "fd01::1"] {
        assert!((0..3).any(|_| answers(&peer, beyond)), "{beyond}");
    }
    // The link of ib1 has other hosts, to which nothing is forwarded.
    assert!(!answers(&peer, "10.0.1.9"));
    // ARP answers at the interface that has the address only, though both are at one link.
    let wide = start(&folder, "wide", &interface(0, 4, "address = ['10.0.0.3/23']"));
    assert!(answers(&wide, "10.0.0.1"));
    // The reply leaves by the other interface, which has the route to 10.0.0.3.
    assert!(answers(&wide, "10.0.1.1"));
    let neighbors: Vec<NeighborStatus> = wide.client().show(&mut pause).expect("it answers");
    let interfaces: Vec<InterfaceStatus> = node.client().show(&mut pause).expect("it answers");
    for (nth, ip) in ["10.0.0.1", "10.0.1.1"].iter().enumerate() {
        let neighbor = neighbors.iter().find(|row| row.address.to_string() == *ip);
        let link = neighbor.and_then(|row| row.link.clone());
        assert_eq!(link, interfaces[nth].link, "{ip}");
    }
    drop((wide, peer, node));
    let _ = std::fs::remove_dir_all(&folder);
}
