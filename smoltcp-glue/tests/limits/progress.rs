//! Neighbors of connections that make progress (RFC 4861 7.3.1).

use crate::traffic::{Client, Pace, Plan, Server, Shared};
use crate::world::{World, at};
use pollux::Mode;
use pollux::stack::StackConfig;
use pollux_fabric::link::Wire;
use pollux_wire::address::Qpn;
use pollux_wire::ethernet::EtherType;
use pollux_wire::ip::ipoib::IpoibHeader;
use pollux_wire::packet::{Opcode, Packet};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

const SECOND: Duration = Duration::from_secs(1);
const SLOW: u16 = 81;

/// Counts unicast ARP packets from now on.
fn unicast_arps(world: &World) -> Arc<AtomicU64> {
    let count = Arc::new(AtomicU64::new(0));
    let counter = Arc::clone(&count);
    world.net.net_mut().set_tap(Box::new(move |_, _, bytes| {
        let Ok(packet) = Packet::parse(bytes) else { return };
        let is_datagram = packet.bth().opcode == Opcode::UD_SEND_ONLY;
        let is_unicast = packet.bth().dest_qp != Qpn::MULTICAST;
        let ether_type = IpoibHeader::read(packet.payload()).map(|(header, _)| header.ether_type);
        if is_datagram && is_unicast && ether_type == Ok(EtherType::ARP) {
            counter.fetch_add(1, Ordering::Relaxed);
        }
    }));
    count
}

/// A stream in one direction of 10,000 bytes a second: TCP is the only evidence of reachability.
#[test]
fn progress_of_tcp_suppresses_neighbor_probes() {
    let wire = Wire { latency: Duration::from_micros(2), ..Wire::default() };
    let mut world = World::new(1, &[Mode::Ud, Mode::Ud], wire, &StackConfig::default());
    let counters = Shared::default();
    let pace = Pace { from: world.now(), bytes: 1000, every: SECOND / 10 };
    world.run(1, Server::slow(&counters, SLOW, pace));
    world.run(0, Client::new(Plan::new(1, at(1, SLOW), 4_000_000, 0), &counters));
    world.pass(10 * SECOND);
    let (arps, before) = (unicast_arps(&world), counters.borrow().bytes);
    world.pass(120 * SECOND);
    let bytes = counters.borrow().bytes - before;
    assert!(bytes > 1_000_000, "it makes progress: {bytes} bytes");
    assert_eq!(arps.load(Ordering::Relaxed), 0, "probes and their answers");
    for host in 0..2 {
        let control = world.slots[host].host().control().expect("it has one worker");
        let states: Vec<_> = control.neighbor_rows().map(|row| row.state.name()).collect();
        assert_eq!(states, ["reachable"]);
    }
}

#[test]
fn a_neighbor_without_progress_of_tcp_is_probed() {
    let wire = Wire { latency: Duration::from_micros(2), ..Wire::default() };
    let mut world = World::new(1, &[Mode::Ud, Mode::Ud], wire, &StackConfig::default());
    let counters = Shared::default();
    let pace = Pace { from: world.now() + 600 * SECOND, bytes: 1, every: SECOND };
    world.run(1, Server::slow(&counters, SLOW, pace));
    let plan = Plan { timeout: 600 * SECOND, ..Plan::new(1, at(1, SLOW), 4_000_000, 0) };
    world.run(0, Client::new(plan, &counters));
    world.pass(10 * SECOND);
    let arps = unicast_arps(&world);
    world.pass(120 * SECOND);
    assert!(arps.load(Ordering::Relaxed) >= 2, "a probe and its answer");
}
