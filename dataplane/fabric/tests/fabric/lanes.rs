//! Links with a rate: the time of packets, the shares of virtual lanes, and no loss when one lane
//! is blocked.

use pollux_fabric::link::Wire;
use pollux_fabric::net::Net;
use pollux_fabric::node::NodeDrop;
use pollux_fabric::subnet::Subnet;
use pollux_fabric::topology::{End, Topology};
use pollux_fabric::{Frame, LeaseTable, Time};
use pollux_wire::address::{Lid, Qpn};
use pollux_wire::keys::PKey;
use pollux_wire::mad::smp::{LinearForwardingTable, PortState, VlArbitrationTable, VlWeight};
use pollux_wire::packet::{Bth, Extended, Headers, Lrh, Opcode, Packet};
use std::sync::Arc;
use std::time::Duration;

const SWITCH: u32 = 0;

fn host(nth: u32) -> End {
    End { node: nth, port: 1 }
}

/// Three hosts at a switch; host n has LID n, at port n. Links have a rate and no latency.
fn net() -> Net {
    let mut subnet = Subnet::new(Topology::generate("single:3", 1).unwrap());
    for node in 0..4 {
        let node = subnet.node_mut(node);
        node.ports.iter_mut().for_each(|port| port.info.port_state = PortState::ACTIVE);
    }
    for nth in 1..4 {
        subnet.node_mut(nth).ports[1].info.lid = Lid(nth as u16);
    }
    let tables = subnet.node_mut(SWITCH).forwarding.as_mut().unwrap();
    let port = |lid: usize| if lid < 4 { lid as u8 } else { LinearForwardingTable::UNREACHABLE };
    let ports = std::array::from_fn(port);
    tables.set_linear_block(0, &LinearForwardingTable { ports });
    tables.info.linear_fdb_top = Lid(3);
    let mut net = Net::new(subnet, 1, Wire { latency: Duration::ZERO, ..Wire::default() });
    net.set_paced(true);
    for nth in 1..4 {
        net.attach(host(nth), &Arc::<LeaseTable>::default());
    }
    net
}

/// A packet of 2 KiB of payload to host 3.
fn packet(from: u32, sl: u8) -> Frame {
    let headers = Headers {
        lrh: Lrh { sl, dlid: Lid(3), slid: Lid(from as u16), ..Lrh::default() },
        grh: None,
        bth: Bth {
            opcode: Opcode::new(
                pollux_wire::packet::Transport::UC,
                pollux_wire::packet::Operation::SEND_ONLY,
            ),
            pkey: PKey::DEFAULT,
            dest_qp: Qpn(0x77),
            ..Bth::default()
        },
        rd: None,
        extended: Extended::None,
    };
    let mut bytes = vec![0; 4096];
    let len = headers.emit(&[0; 2048], &mut bytes).unwrap();
    bytes.truncate(len);
    Frame::Packet(bytes)
}

/// Bytes of such a packet, LRH to VCRC.
const BYTES: u64 = 8 + 12 + 2048 + 4 + 2;

fn sl_of(frame: &Frame) -> u8 {
    let Frame::Packet(bytes) = frame else { panic!("links with a rate carry packets") };
    let packet = Packet::parse(bytes).unwrap();
    assert!(packet.vcrc_ok() && packet.icrc_ok());
    packet.lrh().sl
}

/// Handles all events; returns the packets that arrived at host 3, in order.
fn run(net: &mut Net) -> (Time, Vec<u8>) {
    run_from(Time::START, net)
}

fn run_from(mut now: Time, net: &mut Net) -> (Time, Vec<u8>) {
    let mut came = Vec::new();
    while let Some(next) = net.deadline() {
        now = now.max(next);
        net.advance(now);
        came.extend(std::iter::from_fn(|| net.take(host(3))).map(|(_, frame)| sl_of(&frame)));
    }
    (now, came)
}

fn set_lanes(net: &mut Net, lanes: &[(u8, u8)]) {
    let entry = |nth: usize| {
        let (lane, weight) = lanes.get(nth).copied().unwrap_or_default();
        VlWeight { lane, weight }
    };
    let low = VlArbitrationTable { entries: std::array::from_fn(entry) };
    let none = VlArbitrationTable { entries: [VlWeight::default(); 32] };
    let port = &mut net.subnet_mut().node_mut(SWITCH).ports[3];
    port.arbitration = Some(Box::new([low, none, none, none]));
}

// req: iba-links
#[test]
fn packets_take_the_time_of_their_rate() {
    let mut net = net();
    net.send(Time::START, host(1), packet(1, 0));
    // 100 Gb/s, over two links, each rounded up to a nanosecond.
    let once = (BYTES * 8).div_ceil(100);
    assert_eq!(run(&mut net), (Time::from_nanos(2 * once), vec![0]));
    let mut net = self::net();
    for _ in 0..10 {
        net.send(Time::START, host(1), packet(1, 0));
    }
    assert_eq!(run(&mut net), (Time::from_nanos(11 * once), vec![0; 10]));
}

// req: iba-lanes
#[test]
fn lanes_share_a_link_by_their_weights_and_wait_for_credits() {
    let mut net = net();
    // A packet is 32.4 units, and a lane with any weight left sends another: turns of 1 and 3
    // packets.
    set_lanes(&mut net, &[(0, 32), (1, 97)]);
    for _ in 0..400 {
        net.send(Time::START, host(1), packet(1, 0));
        net.send(Time::START, host(2), packet(2, 1));
    }
    let (_, came) = run(&mut net);
    assert_eq!(came.len(), 800, "nothing is lost, however much comes at once");
    // While both lanes have packets, one in four is of the first.
    let first = came[..400].iter().filter(|sl| **sl == 0).count();
    assert!((95..=105).contains(&first), "{first} of 400");
    assert!(net.subnet().nodes()[1].ports[1].counters.xmit_wait.long() > 0);
    assert_eq!(net.subnet().nodes()[SWITCH as usize].drops.total(), 0);
}

#[test]
fn a_blocked_lane_does_not_block_another() {
    let mut net = net();
    set_lanes(&mut net, &[(1, 1)]);
    for _ in 0..100 {
        net.send(Time::START, host(1), packet(1, 0));
    }
    for _ in 0..50 {
        net.send(Time::START, host(1), packet(1, 1));
    }
    let (now, came) = run(&mut net);
    assert_eq!(came, [1; 50]);
    // The first lane has used its credits at the switch, and the rest waits at the host.
    set_lanes(&mut net, &[(0, 1), (1, 1)]);
    net.send(now, host(2), packet(2, 1));
    let (_, came) = run(&mut net);
    assert_eq!(came.iter().filter(|sl| **sl == 0).count(), 100);
}

#[test]
fn service_levels_without_a_lane_are_dropped() {
    let mut net = net();
    net.subnet_mut().node_mut(1).ports[1].sl_to_vl[5] = 15;
    net.send(Time::START, host(1), packet(1, 5));
    assert_eq!(run(&mut net).1, []);
    assert_eq!(net.subnet().nodes()[1].drops.of(NodeDrop::NoLane), 1);
}

#[test]
fn waiting_frames_are_lost_with_the_cable() {
    let mut net = net();
    for _ in 0..10 {
        net.send(Time::START, host(1), packet(1, 0));
    }
    net.set_cable(host(1), false);
    assert_eq!(run(&mut net).1, []);
    assert_eq!(net.subnet().nodes()[1].ports[1].counters.xmit_discards.long(), 9);
}

#[test]
fn frames_that_are_lost_with_a_cable_return_their_credits() {
    let mut net = net();
    set_lanes(&mut net, &[(1, 1)]);
    for _ in 0..100 {
        net.send(Time::START, host(1), packet(1, 0));
    }
    // Lane 0 waits at the switch for host 3, without credits for more from host 1.
    let (now, came) = run(&mut net);
    assert_eq!(came, []);
    net.set_cable(host(3), false);
    let (now, _) = run_from(now, &mut net);
    let discards = net.subnet().nodes()[SWITCH as usize].ports[3].counters.xmit_discards.long();
    assert_eq!(discards, 100, "the rest leaves host 1, and the switch drops it");
    plug_in(&mut net, 3);
    set_lanes(&mut net, &[(0, 1)]);
    for _ in 0..50 {
        net.send(now, host(1), packet(1, 0));
    }
    assert_eq!(run_from(now, &mut net).1, [0; 50]);
}

#[test]
fn frames_from_before_a_cable_was_plugged_in_return_no_credits() {
    let mut net = net();
    set_lanes(&mut net, &[(1, 1)]);
    for _ in 0..100 {
        net.send(Time::START, host(1), packet(1, 0));
    }
    let (mut now, _) = run(&mut net);
    let sent = |net: &Net| net.subnet().nodes()[1].ports[1].counters.xmit_packets.long();
    let before = sent(&net);
    net.set_cable(host(1), false);
    plug_in(&mut net, 1);
    for _ in 0..100 {
        net.send(now, host(1), packet(1, 0));
    }
    let (begun, _) = run_from(now, &mut net);
    assert_eq!(sent(&net), 2 * before, "as many wait at the switch again");
    set_lanes(&mut net, &[(0, 1)]);
    // A packet of another host has the switch look at its tables again.
    net.send(begun, host(2), packet(2, 0));
    let mut arrived = 0;
    while arrived < before {
        now = begun.max(net.deadline().expect("a packet is on its way"));
        net.advance(now);
        arrived += std::iter::from_fn(|| net.take(host(3))).count() as u64;
    }
    // The next packet has left the switch before the last of these arrives.
    let more = sent(&net) - 2 * before;
    assert!(more <= 2, "{more} packets have the credits of {before} earlier ones");
    assert_eq!(arrived + run_from(now, &mut net).1.len() as u64, before + 101);
}

/// A process may send at a time up to which not all events are handled yet.
#[test]
fn frames_are_sent_before_earlier_events_are_handled() {
    let mut net = net();
    let at = |nth: u64| Time::START + Duration::from_millis(nth);
    for nth in 0..20 {
        net.send(at(nth), host(1), packet(1, 0));
    }
    assert_eq!(run_from(at(20), &mut net).1, [0; 20]);
}

/// Plugs in the cable of a host, and activates the ports of that link.
fn plug_in(net: &mut Net, number: u32) {
    net.set_cable(host(number), true);
    for end in [host(number), End { node: SWITCH, port: number as u8 }] {
        let port = &mut net.subnet_mut().node_mut(end.node).ports[usize::from(end.port)];
        port.info.port_state = PortState::ACTIVE;
    }
}
