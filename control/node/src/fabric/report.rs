//! Responses of a fabric to requests, from the state of its nodes and links.

use super::cables::{kind, running};
use super::rule::Rules;
use crate::admin::reply::{AdminAnswer, AdminReply};
use crate::admin::request::{AdminRequest, AdminTable};
use crate::admin::rows::{
    FaultStatus, GroupStatus, LinkStatus, MulticastTree, NodeStatus, PortDetails, PortStatus,
};
use pollux_fabric::Fabric;
use pollux_fabric::net::Net;
use pollux_fabric::node::{NodePort, SubnetNode};
use pollux_fabric::process::Server;
use pollux_fabric::sa::GROUPS_MAX;
use pollux_fabric::topology::{End, LinkRate, PlannedNode};
use pollux_wire::address::Lid;
use pollux_wire::units::Rate;

pub fn respond(
    request: &AdminRequest,
    fabric: &mut Fabric,
    rules: &mut Rules,
) -> AdminReply<AdminAnswer> {
    if let Some(processes) = &mut fabric.processes {
        processes.read_counters(&mut fabric.net);
    }
    AdminReply::Ok(match request {
        AdminRequest::Show(AdminTable::Nodes) => AdminAnswer::Nodes(nodes(&fabric.net)),
        AdminRequest::Show(AdminTable::Ports) => AdminAnswer::Ports(ports(fabric)),
        AdminRequest::Port { node, port } => match Server::find_port(&fabric.net, node, *port) {
            Ok(end) => AdminAnswer::Port(Box::new(details(fabric, end))),
            Err(error) => return AdminReply::Error(error),
        },
        AdminRequest::Show(AdminTable::Links) => AdminAnswer::Links(links(fabric)),
        AdminRequest::Show(AdminTable::Topology) => AdminAnswer::Topology(running(fabric)),
        AdminRequest::Show(AdminTable::Groups) => AdminAnswer::Groups(groups(&fabric.net)),
        AdminRequest::ListFaults => {
            let row = |(number, rule): (u32, &str)| FaultStatus { number, rule: rule.into() };
            AdminAnswer::Faults(rules.iter().map(row).collect())
        }
        AdminRequest::AddFault(rule) => match rules.add(fabric.net.subnet().topology(), rule) {
            Ok(number) => {
                rules.apply(&mut fabric.net);
                AdminAnswer::Fault(number)
            }
            Err(error) => return AdminReply::Error(error),
        },
        AdminRequest::RemoveFault(number) if rules.remove(*number) => {
            rules.apply(&mut fabric.net);
            AdminAnswer::Fault(*number)
        }
        AdminRequest::RemoveFault(number) => {
            let why = format!("there is no rule {number}; list all with `pollux fault list`");
            return AdminReply::Error(why);
        }
        _ => {
            let why = "this is a fabric, not a node; it has `pollux show` nodes, ports, links, \
                       groups and topology, and `pollux fault`";
            return AdminReply::Error(why.into());
        }
    })
}

/// All nodes, with their plan and index.
fn all(net: &Net) -> impl Iterator<Item = (u32, &PlannedNode, &SubnetNode)> {
    let planned = net.subnet().topology().nodes();
    (0..)
        .zip(planned.iter().zip(net.subnet().nodes()))
        .map(|(index, (plan, node))| (index, plan, node))
}

fn nodes(net: &Net) -> Vec<NodeStatus> {
    let one = |(_, plan, node): (u32, &PlannedNode, &SubnetNode)| {
        let drops = node.drops.iter().filter(|(_, count)| *count > 0);
        NodeStatus {
            node: plan.name.clone(),
            kind: kind(plan),
            guid: plan.guid.to_string(),
            lid: node.lid(u8::from(!node.is_switch())).0,
            ports: plan.num_ports(),
            drops: drops.map(|(reason, count)| (reason.to_owned(), count)).collect(),
        }
    };
    all(net).map(one).collect()
}

fn peer(fabric: &Fabric, end: End) -> Option<String> {
    if let Some((peer, _)) = fabric.net.subnet().topology().peer(end) {
        return Some(name(&fabric.net, peer));
    }
    let wire = fabric.wires.iter().find(|wire| wire.end() == end)?;
    Some(format!("wire {}", if wire.is_up() { "(up)" } else { "(down)" }))
}

fn name(net: &Net, end: End) -> String {
    format!("{}:{}", net.subnet().topology().nodes()[end.node as usize].name, end.port)
}

fn ports(fabric: &Fabric) -> Vec<PortStatus> {
    let of_node = |(index, _, node): (u32, &PlannedNode, &SubnetNode)| {
        let numbers = if node.is_switch() { 0.. } else { 1.. };
        let numbers = numbers.take_while(|number| *number <= node.identity.num_ports);
        let values = numbers.map(|number| port(fabric, End { node: index, port: number }));
        values.collect::<Vec<_>>()
    };
    all(&fabric.net).flat_map(of_node).collect()
}

fn port(fabric: &Fabric, end: End) -> PortStatus {
    let port = fabric.net.subnet().port(end);
    let (info, counters) = (&port.info, &port.counters);
    PortStatus {
        port: name(&fabric.net, end),
        state: info.port_state.to_string(),
        lid: info.lid.0,
        lmc: info.lmc,
        mtu: info.neighbor_mtu.bytes(),
        peer: peer(fabric, end),
        process: fabric.processes.as_ref().and_then(|processes| processes.process_at(end)),
        sent: counters.xmit_packets.long(),
        received: counters.rcv_packets.long(),
        errors: counters.rcv_errors.long(),
        discards: counters.xmit_discards.long(),
    }
}

fn details(fabric: &Fabric, end: End) -> PortDetails {
    let NodePort { info, counters, .. } = fabric.net.subnet().port(end);
    let link = LinkRate {
        width: info.link_width_active,
        speed: info.link_speed_active,
        speed_ext: info.link_speed_ext_active,
    };
    PortDetails {
        state: info.port_state.0,
        physical_state: info.port_phys_state.0,
        lid: info.lid.0,
        lmc: info.lmc,
        sm_lid: info.master_sm_lid.0,
        sm_sl: info.master_sm_sl,
        megabits: info.rate().and_then(Rate::megabits),
        link: link.to_string(),
        capability_mask: info.capability_mask.0,
        counters: counters.by_linux_name().map(|(name, count)| (name.into(), count)).into(),
    }
}

fn links(fabric: &Fabric) -> Vec<LinkStatus> {
    let net = &fabric.net;
    let state = |end: End| {
        let port = net.subnet().port(end);
        port.info.port_state.to_string()
    };
    let planned = net.subnet().topology().links().iter().map(|link| {
        let [a, b] = link.ends;
        LinkStatus {
            from: name(net, a),
            to: name(net, b),
            rate: Some(link.rate.to_string()),
            state: state(a),
            ..LinkStatus::default()
        }
    });
    let foreign = fabric.wires.iter().map(|wire| {
        let counts = wire.counts();
        LinkStatus {
            from: name(net, wire.end()),
            to: "wire".into(),
            rate: None,
            state: state(wire.end()),
            sent: Some(counts.sent),
            received: Some(counts.received),
            ignored: Some(counts.ignored),
            broken: Some(counts.broken),
        }
    });
    planned.chain(foreign).collect()
}

/// The multicast trees, from the MFTs of switches.
fn groups(net: &Net) -> Vec<GroupStatus> {
    let first = Lid::MULTICAST_FIRST.0;
    let lids = (first..first + GROUPS_MAX as u16).map(Lid);
    let one = |lid: Lid| {
        let ports = all(net).flat_map(|(index, _, node)| {
            let ports = node
                .forwarding
                .iter()
                .flat_map(move |tables| tables.group(lid).iter().collect::<Vec<_>>());
            ports.map(move |port| name(net, End { node: index, port }))
        });
        let ports: Vec<_> = ports.collect();
        let lid = format!("{:#06x}", lid.0);
        (!ports.is_empty()).then_some(GroupStatus::Tree(MulticastTree { lid, ports }))
    };
    lids.filter_map(one).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use pollux_fabric::link::Wire;
    use pollux_fabric::subnet::Subnet;
    use pollux_fabric::topology::Topology;
    use pollux_wire::mad::smp::{MulticastForwardingTable, MulticastForwardingTableModifier};

    #[test]
    fn the_first_and_the_last_group_of_a_switch_are_listed() {
        let topology = Topology::generate("single:2", 1).expect("a topology");
        let mut net = Net::new(Subnet::new(topology), 1, Wire::default());
        let switch = net.subnet().nodes().iter().position(SubnetNode::is_switch);
        let node = net.subnet_mut().node_mut(switch.expect("a switch") as u32);
        let tables = node.forwarding.as_mut().expect("a switch has tables");
        for (block, nth) in [(0, 0), (127, 31)] {
            let mut table = MulticastForwardingTable { port_masks: [0; 32] };
            table.port_masks[nth] = 1 << 2;
            let which = MulticastForwardingTableModifier { position: 0, block };
            assert!(tables.set_multicast_block(which, &table));
        }
        let lids = groups(&net).into_iter().map(|group| match group {
            GroupStatus::Tree(tree) => tree.lid,
            other => panic!("{other:?}"),
        });
        assert_eq!(lids.collect::<Vec<_>>(), ["0xc000", "0xcfff"]);
    }
}
