//! The forwarding decision of a switch: the output ports of a packet, or the reason of its drop
//! (IBA 18.2.4).
//!
//! The decision has no queues: it reads the packet's header fields and the node's LFT or MFT, lists
//! the output ports, and counts drops. Packets on VL 15 pass ports that are not active yet, and
//! have no partition.

use crate::node::{NodeDrop, SubnetNode};
use pollux_wire::address::Lid;
use pollux_wire::keys::PKey;
use pollux_wire::mad::notice::{BadPKeyAtSwitchTrap, TrapDetails, TrapNumber};
use pollux_wire::mad::smp::{LinearForwardingTable, PortState};
use pollux_wire::packet::Lrh;

/// The header fields that a switch reads.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Transit {
    /// The input port; 0 for a packet that the switch itself sends.
    pub in_port: u8,
    pub slid: Lid,
    pub dlid: Lid,
    pub sl: u8,
    pub vl: u8,
    /// `None` for a raw packet.
    pub p_key: Option<PKey>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Hop {
    /// The output port; 0 is the switch itself.
    pub port: u8,
    pub vl: u8,
}

/// Passes the output of each copy of a packet to `out`, and returns the number of copies. A dropped
/// packet is counted by reason, at the node and at a port.
pub fn forward(
    node: &mut SubnetNode,
    packet: &Transit,
    mut out: impl FnMut(Hop),
) -> Result<u32, NodeDrop> {
    admit(node, packet)?;
    if packet.dlid == Lid::PERMISSIVE && packet.vl == Lrh::VL_MANAGEMENT {
        out(Hop { port: 0, vl: packet.vl });
        return Ok(1);
    }
    if packet.dlid.is_multicast() {
        return replicate(node, packet, out);
    }
    let port = node.forwarding.as_ref().and_then(|tables| tables.port_of(packet.dlid));
    let Some(port) = port else { return Err(relay_error(node, packet, NodeDrop::NoRoute)) };
    if port == packet.in_port && port != 0 {
        return Err(relay_error(node, packet, NodeDrop::Reflected));
    }
    out(leave(node, packet, port)?);
    Ok(1)
}

/// Copies a packet to all ports of its group except its input port.
fn replicate(
    node: &mut SubnetNode,
    packet: &Transit,
    mut out: impl FnMut(Hop),
) -> Result<u32, NodeDrop> {
    let Some(tables) = &node.forwarding else {
        return Err(relay_error(node, packet, NodeDrop::NoRoute));
    };
    let mut ports = tables.group(packet.dlid);
    if ports.is_empty() {
        let (primary, other) = (
            tables.info.default_multicast_primary_port,
            tables.info.default_multicast_not_primary_port,
        );
        let port = if packet.in_port == primary { other } else { primary };
        if port != LinearForwardingTable::UNREACHABLE {
            ports.insert(port);
        }
    }
    ports.remove(packet.in_port);
    if ports.is_empty() {
        return Err(relay_error(node, packet, NodeDrop::NoMember));
    }
    let mut copies = 0;
    for port in ports.iter() {
        // `leave` counts a copy that cannot be sent. The other copies are still sent.
        if let Ok(hop) = leave(node, packet, port) {
            out(hop);
            copies += 1;
        }
    }
    Ok(copies)
}

/// The output port and VL of a unicast packet, without counting. `None` if the packet would be
/// dropped, or is for the switch itself.
pub fn unicast_hop(node: &SubnetNode, packet: &Transit) -> Option<Hop> {
    let port = node.forwarding.as_ref()?.port_of(packet.dlid)?;
    let is_open = !packet.dlid.is_multicast()
        && port != packet.in_port
        && may_enter(node, packet).is_ok()
        && port != 0;
    if is_open { may_leave(node, packet, port).ok() } else { None }
}

fn may_enter(node: &SubnetNode, packet: &Transit) -> Result<(), NodeDrop> {
    let port = node.ports.get(usize::from(packet.in_port)).ok_or(NodeDrop::NoPort)?;
    let info = &port.info;
    if packet.vl == Lrh::VL_MANAGEMENT || packet.in_port == 0 {
        return Ok(());
    }
    if !port.takes_data() {
        return Err(NodeDrop::PortState);
    }
    match packet.p_key {
        None if info.filter_raw_inbound => Err(NodeDrop::Raw),
        Some(p_key) if info.partition_enforcement_inbound && !port.p_keys.may_send(p_key) => {
            Err(NodeDrop::PKeyInbound)
        }
        _ => Ok(()),
    }
}

fn may_leave(node: &SubnetNode, packet: &Transit, number: u8) -> Result<Hop, NodeDrop> {
    let port = node.ports.get(usize::from(number)).ok_or(NodeDrop::NoPort)?;
    let info = &port.info;
    if number == 0 || packet.vl == Lrh::VL_MANAGEMENT {
        let is_up = number == 0 || port.is_linked();
        return if is_up {
            Ok(Hop { port: number, vl: packet.vl })
        } else {
            Err(NodeDrop::PortState)
        };
    }
    if !port.sends_data() {
        return Err(NodeDrop::PortState);
    }
    match packet.p_key {
        None if info.filter_raw_outbound => return Err(NodeDrop::Raw),
        Some(p_key)
            if info.partition_enforcement_outbound && port.p_keys.matching(p_key).is_none() =>
        {
            return Err(NodeDrop::PKeyOutbound);
        }
        _ => {}
    }
    let vls = info.operational_vls;
    let tables = node.forwarding.as_ref();
    let vl = tables.map_or(0, |tables| tables.lane(packet.in_port, number, packet.sl, vls));
    if vls.lanes().is_none_or(|lanes| vl >= lanes) {
        return Err(NodeDrop::NoLane);
    }
    Ok(Hop { port: number, vl })
}

fn admit(node: &mut SubnetNode, packet: &Transit) -> Result<(), NodeDrop> {
    let entered = may_enter(node, packet);
    let Some(port) = node.ports.get_mut(usize::from(packet.in_port)) else {
        return Err(count(node, NodeDrop::NoPort));
    };
    // A data packet on an armed link shows that the other end is active (IBA 7.2.7).
    if packet.vl != Lrh::VL_MANAGEMENT && packet.in_port != 0 && port.takes_data() {
        port.info.port_state = PortState::ACTIVE;
    }
    let counters = &mut port.counters;
    match entered {
        Ok(()) => Ok(()),
        Err(drop @ (NodeDrop::Raw | NodeDrop::PKeyInbound)) => {
            counters.rcv_constraint_errors.add(1);
            Err(violation(node, packet, packet.in_port, drop))
        }
        Err(drop) => {
            counters.rcv_errors.add(1);
            Err(count(node, drop))
        }
    }
}

fn leave(node: &mut SubnetNode, packet: &Transit, number: u8) -> Result<Hop, NodeDrop> {
    let drop = match may_leave(node, packet, number) {
        Ok(hop) => return Ok(hop),
        Err(drop) => drop,
    };
    let Some(port) = node.ports.get_mut(usize::from(number)) else {
        return Err(relay_error(node, packet, drop));
    };
    let counters = &mut port.counters;
    match drop {
        NodeDrop::Raw | NodeDrop::PKeyOutbound => {
            counters.xmit_constraint_errors.add(1);
            return Err(violation(node, packet, number, drop));
        }
        _ if packet.vl == Lrh::VL_MANAGEMENT => counters.vl15_dropped.add(1),
        _ => counters.xmit_discards.add(1),
    }
    Err(count(node, drop))
}

fn count(node: &mut SubnetNode, drop: NodeDrop) -> NodeDrop {
    node.drops.count(drop);
    drop
}

/// Counts a packet that cannot be forwarded, at its input port and at the node.
fn relay_error(node: &mut SubnetNode, packet: &Transit, drop: NodeDrop) -> NodeDrop {
    node.ports[usize::from(packet.in_port)].counters.rcv_switch_relay_errors.add(1);
    count(node, drop)
}

/// Counts a partition violation, and raises a trap if the packet has a P_Key.
fn violation(node: &mut SubnetNode, packet: &Transit, port: u8, drop: NodeDrop) -> NodeDrop {
    let info = &mut node.ports[usize::from(port)].info;
    info.p_key_violations = info.p_key_violations.saturating_add(1);
    if let Some(p_key) = packet.p_key {
        let trap = BadPKeyAtSwitchTrap {
            // Only the first four fields are valid, because a switch does not parse the others.
            data_valid: 0xf,
            lid1: packet.slid,
            lid2: packet.dlid,
            p_key,
            service_level: packet.sl,
            switch_lid: node.lid(0),
            port,
            ..BadPKeyAtSwitchTrap::default()
        };
        let details = TrapDetails::BadPKeyAtSwitch(trap);
        node.raise(0, TrapNumber::BAD_P_KEY_AT_SWITCH, details);
    }
    count(node, drop)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sma;
    use crate::time::Time;
    use crate::topology::{LinkRate, Topology};
    use pollux_wire::mad::smp::{
        MulticastForwardingTable, MulticastForwardingTableModifier, PortPhysState, VlCap,
    };
    use proptest::prelude::*;

    /// A switch with the active ports 1 to 4. LID n leads to port n, and group 0xc000 to the ports
    /// 0, 1, 2 and 4.
    fn switch() -> SubnetNode {
        let mut node = SubnetNode::new(&Topology::generate("single:5", 0).unwrap().nodes()[0]);
        let peer = node.ports[1].info;
        for port in 1..=4 {
            node.link_up(port, &peer, LinkRate::default());
            node.ports[usize::from(port)].info.port_state = PortState::ACTIVE;
        }
        let tables = node.forwarding.as_mut().unwrap();
        let ports = LinearForwardingTable {
            ports: std::array::from_fn(|lid| if lid < 7 { lid as u8 } else { 0xff }),
        };
        tables.set_linear_block(0, &ports);
        tables.info.linear_fdb_top = Lid(63);
        let which = MulticastForwardingTableModifier::default();
        let mut groups = MulticastForwardingTable::default();
        groups.port_masks[0] = 0b10111;
        tables.set_multicast_block(which, &groups);
        node
    }

    const PACKET: Transit = Transit {
        in_port: 1,
        slid: Lid(1),
        dlid: Lid(2),
        sl: 0,
        vl: 0,
        p_key: Some(PKey::DEFAULT),
    };

    fn hops(node: &mut SubnetNode, packet: Transit) -> Result<Vec<(u8, u8)>, NodeDrop> {
        let mut hops = Vec::new();
        let copies = forward(node, &packet, |hop| hops.push((hop.port, hop.vl)))?;
        assert_eq!(copies as usize, hops.len());
        Ok(hops)
    }

    // req: iba-switching
    #[test]
    fn unicast_goes_by_the_table() {
        let mut node = switch();
        let mut to =
            |dlid, in_port| hops(&mut node, Transit { dlid: Lid(dlid), in_port, ..PACKET });
        assert_eq!(to(2, 1), Ok(vec![(2, 0)]));
        assert_eq!(to(2, 0), Ok(vec![(2, 0)]), "the switch's own");
        assert_eq!(to(9, 1), Err(NodeDrop::NoRoute));
        assert_eq!(to(2, 2), Err(NodeDrop::Reflected));
        assert_eq!(to(5, 1), Err(NodeDrop::PortState));
        assert_eq!(to(6, 1), Err(NodeDrop::NoPort));
        assert_eq!(to(2, 5), Err(NodeDrop::PortState));
        assert_eq!(to(2, 99), Err(NodeDrop::NoPort));
        assert_eq!(node.ports[1].counters.rcv_switch_relay_errors.long(), 2);
        assert_eq!(node.ports[2].counters.rcv_switch_relay_errors.long(), 1);
        assert_eq!(node.ports[5].counters.xmit_discards.long(), 1);
        assert_eq!(node.drops.total(), 6);
    }

    #[test]
    fn a_way_is_where_a_packet_would_go() {
        for (dlid, in_port, partition) in
            [(2, 1, 0), (2, 0, 0), (9, 1, 0), (2, 2, 0), (5, 1, 0), (6, 1, 0), (2, 5, 0), (2, 1, 1)]
        {
            let mut node = switch();
            let p_key = Some(PKey(0x7fff - partition));
            let packet = Transit { dlid: Lid(dlid), in_port, p_key, ..PACKET };
            for port in &mut node.ports {
                port.info.partition_enforcement_outbound = true;
            }
            let way = unicast_hop(&node, &packet);
            assert_eq!(node.drops.total(), 0);
            let goes = hops(&mut node, packet).ok();
            assert_eq!(way.map(|hop| vec![(hop.port, hop.vl)]), goes, "{packet:?}");
        }
    }

    // req: iba-switching
    #[test]
    fn multicast_goes_to_all_but_where_it_came_from() {
        let mut node = switch();
        let group = Transit { dlid: Lid(0xc000), ..PACKET };
        assert_eq!(hops(&mut node, group), Ok(vec![(0, 0), (2, 0), (4, 0)]));
        assert_eq!(hops(&mut node, Transit { in_port: 3, ..group }).unwrap().len(), 4);
        node.ports[4].info.port_state = PortState::ARMED;
        assert_eq!(hops(&mut node, group), Ok(vec![(0, 0), (2, 0)]));
        assert_eq!(node.drops.of(NodeDrop::PortState), 1);
        let unknown = Transit { dlid: Lid(0xc001), ..PACKET };
        assert_eq!(hops(&mut node, unknown), Err(NodeDrop::NoMember));
        let info = &mut node.forwarding.as_mut().unwrap().info;
        info.default_multicast_primary_port = 1;
        info.default_multicast_not_primary_port = 3;
        assert_eq!(hops(&mut node, unknown), Ok(vec![(3, 0)]));
        assert_eq!(hops(&mut node, Transit { in_port: 2, ..unknown }), Ok(vec![(1, 0)]));
    }

    #[test]
    fn data_arm_a_port_and_management_needs_no_state() {
        let mut node = switch();
        node.ports[1].info.port_state = PortState::INITIALIZE;
        assert_eq!(hops(&mut node, PACKET), Err(NodeDrop::PortState));
        let management = Transit { vl: 15, ..PACKET };
        assert_eq!(hops(&mut node, management), Ok(vec![(2, 15)]));
        let direct = Transit { dlid: Lid::PERMISSIVE, ..management };
        assert_eq!(hops(&mut node, direct), Ok(vec![(0, 15)]));
        node.ports[1].info.port_state = PortState::ARMED;
        assert!(hops(&mut node, PACKET).is_ok());
        assert_eq!(node.ports[1].info.port_state, PortState::ACTIVE);
        node.link_down(2, PortPhysState::POLLING);
        assert_eq!(hops(&mut node, management), Err(NodeDrop::PortState));
    }

    // req: iba-partitions
    #[test]
    fn packets_of_other_partitions_are_dropped_counted_and_trapped() {
        let mut node = switch();
        node.ports[0].info.master_sm_lid = Lid(1);
        let stranger = Transit { p_key: Some(PKey(0x8123)), ..PACKET };
        assert!(hops(&mut node, stranger).is_ok(), "nobody asked to enforce");
        node.ports[2].info.partition_enforcement_outbound = true;
        assert_eq!(hops(&mut node, stranger), Err(NodeDrop::PKeyOutbound));
        assert!(hops(&mut node, PACKET).is_ok());
        node.ports[1].info.partition_enforcement_inbound = true;
        assert_eq!(hops(&mut node, stranger), Err(NodeDrop::PKeyInbound));
        assert_eq!(node.ports[2].counters.xmit_constraint_errors.long(), 1);
        assert_eq!(node.ports[1].counters.rcv_constraint_errors.long(), 1);
        assert_eq!((node.ports[1].info.p_key_violations, node.traps.waiting.len()), (1, 2));
        let (port, dlid, _) = sma::poll_trap(&mut node, Time::START).unwrap();
        assert_eq!((port, dlid), (0, Lid(1)));
        let raw = Transit { p_key: None, ..PACKET };
        assert!(hops(&mut node, raw).is_ok());
        node.ports[2].info.filter_raw_outbound = true;
        assert_eq!(hops(&mut node, raw), Err(NodeDrop::Raw));
        node.ports[1].info.filter_raw_inbound = true;
        assert_eq!(hops(&mut node, raw), Err(NodeDrop::Raw));
    }

    #[test]
    fn service_levels_choose_lanes() {
        let mut node = switch();
        let packet = Transit { sl: 5, ..PACKET };
        assert_eq!(hops(&mut node, packet), Ok(vec![(2, 5)]));
        node.ports[2].info.operational_vls = VlCap::VL0_3;
        assert_eq!(hops(&mut node, packet), Ok(vec![(2, 1)]));
        node.forwarding.as_mut().unwrap().set_lanes(1, 2, [15; 16]);
        assert_eq!(hops(&mut node, packet), Err(NodeDrop::NoLane));
    }

    proptest! {
        #[test]
        fn any_packet_is_forwarded_or_counted(
            in_port in 0u8..8, dlid in prop_oneof![0u16..10, 0xbffeu16..=0xc002, any::<u16>()],
            sl: u8, vl in prop_oneof![Just(0u8), Just(15), any::<u8>()], p_key: Option<u16>,
        ) {
            let mut node = switch();
            let p_key = p_key.map(PKey);
            let packet = Transit { in_port, slid: Lid(1), dlid: Lid(dlid), sl, vl, p_key };
            let result = hops(&mut node, packet);
            if let Ok(hops) = &result {
                let is_fit = |&(port, _): &(u8, u8)| port == 0 || port < 6 && port != in_port;
                prop_assert!(hops.iter().all(is_fit));
            }
            prop_assert_eq!(result.is_err(), node.drops.total() > 0);
        }
    }
}
