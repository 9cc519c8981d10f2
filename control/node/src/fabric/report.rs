//! What a fabric says of itself: answers to questions, as JSON.

use super::rule::Rules;
use pollux_fabric::net::Net;
use pollux_fabric::node::{Node, NodeDrop};
use pollux_fabric::process::Server;
use pollux_fabric::topology::{End, PlannedNode};
use pollux_fabric::wire_io::ForeignWire;
use pollux_wire::address::Lid;
use pollux_wire::mad::smp::NodeType;
use serde_json::{Value, json};

/// Multicast LIDs that a report looks at: as many as switches have.
const GROUPS: u16 = 4096;

/// What is at a net from outside.
pub struct Neighbors<'a> {
    /// Wires to others' nodes.
    pub wires: &'a [ForeignWire],
    /// Processes at ports.
    pub processes: Option<&'a Server>,
}

/// Answers a question. Any text has an answer.
pub fn answer(question: &str, net: &mut Net, others: &Neighbors<'_>, rules: &mut Rules) -> String {
    let words: Vec<&str> = question.split_whitespace().collect();
    let answer = match words[..] {
        ["show", "nodes"] => Ok(nodes(net)),
        ["show", "ports"] => Ok(ports(net, others)),
        ["show", "links"] => Ok(links(net, others)),
        ["show", "groups"] => Ok(groups(net)),
        ["fault", "list"] => Ok(fault_list(rules)),
        ["fault", "add", rule] => {
            rules.add(net.subnet().topology(), rule).map(|number| json!(number))
        }
        ["fault", "del", number] => {
            let is_gone = number.parse().is_ok_and(|number| rules.remove(number));
            let missing =
                || format!("there is no rule {number}; list all with `pollux fault list`");
            is_gone.then(|| json!(number)).ok_or_else(missing)
        }
        _ => Err(format!(
            "unknown query '{question}'; a fabric answers: show nodes, ports, links or groups, or \
             fault add RULE, del NUMBER or list"
        )),
    };
    if matches!(words[..], ["fault", "add" | "del", _]) && answer.is_ok() {
        rules.apply(net);
    }
    match answer {
        Ok(ok) => json!({ "ok": ok }).to_string(),
        Err(error) => json!({ "error": error }).to_string(),
    }
}

fn fault_list(rules: &Rules) -> Value {
    rules.iter().map(|(number, rule)| json!({ "number": number, "rule": rule })).collect()
}

/// Nodes as planned and as they are, with their places.
fn all(net: &Net) -> impl Iterator<Item = (u32, &PlannedNode, &Node)> {
    let planned = net.subnet().topology().nodes();
    (0..)
        .zip(planned.iter().zip(net.subnet().nodes()))
        .map(|(index, (plan, node))| (index, plan, node))
}

fn nodes(net: &Net) -> Value {
    let one = |(_, plan, node): (u32, &PlannedNode, &Node)| {
        let drops = NodeDrop::ALL.into_iter().filter(|reason| node.drops.of(*reason) > 0);
        let drops = drops.map(|reason| (reason.name().to_owned(), node.drops.of(reason).into()));
        let kind = match plan.kind {
            NodeType::SWITCH => "switch",
            NodeType::ROUTER => "router",
            _ => "host",
        };
        let lid = node.lid(u8::from(!node.is_switch())).0;
        json!({
            "node": plan.name, "kind": kind, "guid": plan.guid.to_string(), "lid": lid,
            "ports": plan.num_ports(), "drops": Value::Object(drops.collect()),
        })
    };
    all(net).map(one).collect()
}

/// What a port is joined to.
fn peer(net: &Net, others: &Neighbors<'_>, end: End) -> Option<String> {
    let topology = net.subnet().topology();
    if let Some((peer, _)) = topology.peer(end) {
        return Some(name(net, peer));
    }
    let wire = others.wires.iter().find(|wire| wire.end() == end)?;
    Some(format!("wire {}", if wire.is_up() { "(up)" } else { "(down)" }))
}

fn name(net: &Net, end: End) -> String {
    format!("{}:{}", net.subnet().topology().nodes()[end.node as usize].name, end.port)
}

fn ports(net: &Net, others: &Neighbors<'_>) -> Value {
    let of_node = |(index, _, node): (u32, &PlannedNode, &Node)| {
        let numbers = if node.is_switch() { 0.. } else { 1.. };
        let numbers = numbers.take_while(|number| *number <= node.identity.num_ports);
        let values = numbers.map(|number| port(net, others, End { node: index, port: number }));
        values.collect::<Vec<_>>()
    };
    all(net).flat_map(of_node).collect()
}

fn port(net: &Net, others: &Neighbors<'_>, end: End) -> Value {
    let port = &net.subnet().nodes()[end.node as usize].ports[usize::from(end.port)];
    let (info, counters) = (&port.info, &port.counters);
    json!({
        "port": name(net, end),
        "state": info.port_state.to_string(),
        "lid": info.lid.0,
        "lmc": info.lmc,
        "mtu": info.neighbor_mtu.bytes(),
        "peer": peer(net, others, end),
        "process": others.processes.and_then(|processes| processes.process_at(end)),
        "sent": counters.xmit_packets.long(),
        "received": counters.rcv_packets.long(),
        "errors": counters.rcv_errors.long(),
        "discards": counters.xmit_discards.long(),
    })
}

fn links(net: &Net, others: &Neighbors<'_>) -> Value {
    let state = |end: End| {
        let port = &net.subnet().nodes()[end.node as usize].ports[usize::from(end.port)];
        port.info.port_state.to_string()
    };
    let planned = net.subnet().topology().links().iter().map(|link| {
        let [a, b] = link.ends;
        json!({
            "from": name(net, a), "to": name(net, b), "rate": link.rate.to_string(),
            "state": state(a),
        })
    });
    let foreign = others.wires.iter().map(|wire| {
        let counts = wire.counts();
        json!({
            "from": name(net, wire.end()), "to": "wire", "rate": null, "state": state(wire.end()),
            "sent": counts.sent, "received": counts.received,
            "ignored": counts.ignored, "broken": counts.broken,
        })
    });
    planned.chain(foreign).collect()
}

/// Groups as switches know them: by which ports they go.
fn groups(net: &Net) -> Value {
    let first = Lid::MULTICAST_FIRST.0;
    let lids = (first..first + GROUPS - 1).map(Lid);
    let one = |lid: Lid| {
        let ports = all(net).flat_map(|(index, _, node)| {
            let ports = node
                .forwarding
                .iter()
                .flat_map(move |tables| tables.group(lid).iter().collect::<Vec<_>>());
            ports.map(move |port| name(net, End { node: index, port }))
        });
        let ports: Vec<_> = ports.collect();
        (!ports.is_empty()).then(|| json!({ "lid": format!("{:#06x}", lid.0), "ports": ports }))
    };
    lids.filter_map(one).collect()
}
