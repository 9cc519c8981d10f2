//! Port names: `NODE[:PORT]` of `soft:PATH@NODE[:PORT]`.
//!
//! `NODE` is the name of a node in the topology, or its GUID. Names need not be unique, for example
//! in a dump of a cluster; the name of several hosts is an error. Without a port number, the name
//! means the first port with a cable, because adapters with two ports are often connected by the
//! second one only.

use crate::topology::{End, PlannedNode, Topology};
use pollux_wire::address::Guid;
use pollux_wire::mad::smp::NodeType;

const LISTED_MAX: usize = 8;

/// The port with this name; without a number, the first one that `has_cable`.
pub(super) fn find_port(
    topology: &Topology,
    has_cable: impl Fn(End) -> bool,
    name: &str,
    port: Option<u8>,
) -> Result<End, String> {
    let (index, node) = find_host(topology.nodes(), name)?;
    let last = node.num_ports();
    let end = |port| End { node: index as u32, port };
    match port {
        Some(port) if !(1..=last).contains(&port) => {
            Err(format!("node '{name}' has no port {port}; ports go from 1 to {last}"))
        }
        Some(port) => Ok(end(port)),
        // If no port has a cable, one may be plugged in later.
        None => Ok((1..=last).map(end).find(|end| has_cable(*end)).unwrap_or(end(1))),
    }
}

fn find_host<'a>(nodes: &'a [PlannedNode], name: &str) -> Result<(usize, &'a PlannedNode), String> {
    let named: Vec<_> = nodes.iter().enumerate().filter(|(_, node)| node.name == name).collect();
    let with_guid = || {
        let guid = guid(name)?;
        nodes.iter().enumerate().find(|(_, node)| node.guid == guid)
    };
    let is_not_host = |node: &PlannedNode| node.kind != NodeType::CHANNEL_ADAPTER;
    let hosts: Vec<_> = named.iter().filter(|(_, node)| !is_not_host(node)).copied().collect();
    let found = match (&hosts[..], &named[..]) {
        ([host], _) => Some(*host),
        ([], [other, ..]) => Some(*other),
        ([], []) => with_guid(),
        (several, _) => return Err(ambiguous(name, several)),
    };
    match found {
        None => Err(format!("the fabric has no node of this name or GUID: '{name}'")),
        Some((_, node)) if is_not_host(node) => {
            Err(format!("node '{name}' is no host, and programs are at hosts"))
        }
        Some(host) => Ok(host),
    }
}

fn ambiguous(name: &str, nodes: &[(usize, &PlannedNode)]) -> String {
    let guid = |(_, node): &(usize, &PlannedNode)| format!("{:#018x}", node.guid.0);
    let mut guids: Vec<_> = nodes.iter().take(LISTED_MAX).map(guid).collect();
    if nodes.len() > LISTED_MAX {
        guids.push("...".into());
    }
    let (count, guids) = (nodes.len(), guids.join(", "));
    format!("{count} nodes are called '{name}'; write the GUID of one in its place: {guids}")
}

/// Parses a GUID that is written as `0x0002c90300001001`.
fn guid(text: &str) -> Option<Guid> {
    u64::from_str_radix(text.strip_prefix("0x")?, 16).ok().map(Guid)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Two hosts with the same name, and a host that has no cable at its first port and the same
    /// name as the switch.
    const DUMP: &str = "\
switchguid=0x10
Switch 3 \"S-10\" # \"two\" base port 0 lid 1 lmc 0
[1] \"H-20\"[1] # \"one\" lid 2 4xQDR
[2] \"H-30\"[1] # \"one\" lid 3 4xQDR
[3] \"H-40\"[2] # \"two\" lid 4 4xQDR

caguid=0x20
Ca 1 \"H-20\" # \"one\"
[1](21) \"S-10\"[1] # lid 2 lmc 0 \"two\" lid 1 4xQDR

caguid=0x30
Ca 1 \"H-30\" # \"one\"
[1](31) \"S-10\"[2] # lid 3 lmc 0 \"two\" lid 1 4xQDR

caguid=0x40
Ca 2 \"H-40\" # \"two\"
[2](42) \"S-10\"[3] # lid 4 lmc 0 \"two\" lid 1 4xQDR
";

    #[test]
    fn a_name_means_one_port_or_is_an_error_with_a_reason() {
        let topology = Topology::read("dump", DUMP, 1).expect("it is one");
        let find = |name: &str, port| {
            let found = find_port(&topology, |end| topology.peer(end).is_some(), name, port);
            found.map(|end| (topology.nodes()[end.node as usize].guid.0, end.port))
        };
        let both = "2 nodes are called 'one'; write the GUID of one in its place: \
                    0x0000000000000020, 0x0000000000000030";
        assert_eq!(find("one", None), Err(both.into()));
        assert_eq!(find("0x0000000000000030", None), Ok((0x30, 1)));
        assert_eq!(find("0x20", Some(1)), Ok((0x20, 1)));
        assert_eq!(find("two", None), Ok((0x40, 2)), "the host, at the port with the cable");
        assert_eq!(find("two", Some(1)), Ok((0x40, 1)));
        let refusal = |name, port| find(name, port).expect_err(name);
        assert_eq!(refusal("two", Some(3)), "node 'two' has no port 3; ports go from 1 to 2");
        assert_eq!(refusal("0x10", None), "node '0x10' is no host, and programs are at hosts");
        let unknown = "the fabric has no node of this name or GUID: 'three'";
        assert_eq!(refusal("three", None), unknown);
        let nothing = find_port(&topology, |_| false, "two", None);
        assert_eq!(nothing.map(|end| end.port), Ok(1));
    }

    #[test]
    fn a_list_of_many_namesakes_fits_a_message() {
        let dump: String = (1..=300u32)
            .map(|nth| format!("caguid={nth:#x}\nCa 1 \"H-{nth:x}\" # \"one\"\n\n"))
            .collect();
        let topology = Topology::read("dump", &dump, 1).expect("it is one");
        let error = find_port(&topology, |_| true, "one", None).unwrap_err();
        assert!(
            error.starts_with("300 nodes are called 'one'") && error.ends_with("8, ..."),
            "{error}"
        );
        assert!(error.len() <= crate::process::control_message::TEXT_MAX, "{}", error.len());
    }
}
