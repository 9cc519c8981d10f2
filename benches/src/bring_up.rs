//! Bring-up of an in-memory subnet by our subnet manager: from cables to active ports.

use pollux_fabric::Time;
use pollux_fabric::sm::{Residents, SmConfig};
use pollux_fabric::subnet::Subnet;
use pollux_fabric::topology::{End, Topology};
use pollux_wire::mad::smp::{NodeType, PortState};
use std::time::{Duration, Instant};

/// 63 leaf switches with 16 hosts each, and 16 spine switches: 1,008 hosts.
pub const THOUSAND: &str = "leaf-spine:63x16x16";

pub struct Managed {
    pub subnet: Subnet,
    /// One subnet manager, at the first host.
    pub managers: Residents,
}

/// Brings up the subnet of a topology specification. Returns it with the time that this took.
///
/// # Panics
/// If a port is not active afterward, or `spec` is invalid.
#[expect(clippy::disallowed_methods, reason = "this is what is measured")]
pub fn bring_up(spec: &str) -> (Managed, Duration) {
    let mut subnet = Subnet::new(Topology::generate(spec, 1).expect("a topology"));
    let mut managers = Residents::default();
    let at = host(&subnet, 0);
    let began = Instant::now();
    managers.start(&mut subnet, at, SmConfig::default());
    managers.exchange(Time::START, &mut subnet, |_, _| {});
    let took = began.elapsed();
    let ports = || subnet.nodes().iter().flat_map(|node| &node.ports[1..]);
    let is_up = ports().all(|port| port.info.port_state == PortState::ACTIVE);
    assert!(is_up, "all ports are active");
    (Managed { subnet, managers }, took)
}

/// The port of the nth host, counted from 0.
///
/// # Panics
/// If the subnet has fewer hosts.
pub fn host(subnet: &Subnet, number: usize) -> End {
    let nodes = (0..).zip(subnet.topology().nodes());
    let mut hosts = nodes.filter(|(_, node)| node.kind == NodeType::CHANNEL_ADAPTER);
    End { node: hosts.nth(number).expect("so many hosts").0, port: 1 }
}
