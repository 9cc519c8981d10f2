//! `pollux show drops` has every reason for which anything is dropped.

use crate::nodes::{Node, interface};
use crate::running::Running;
use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

/// Counters that are not of an enumeration of reasons.
const SINGLE: [(&str, &str); 21] = [
    ("arp", "outgoing_full"),
    ("dhcp", "outgoing_full"),
    ("interface", "deliveries_full"),
    ("interface", "frames_full"),
    ("interface", "no_socket"),
    ("interface", "transfers_full"),
    ("kernel", "full"),
    ("kernel", "malformed"),
    ("kernel", "refused"),
    ("mad_transport", "malformed"),
    ("mad_transport", "unsent"),
    ("membership", "outgoing_full"),
    ("nd", "outgoing_full"),
    ("neighbor", "solicitations_full"),
    ("port_driver", "control_no_room"),
    ("port_driver", "given_up"),
    ("port_driver", "no_receive_buffer"),
    ("port_driver", "no_room"),
    ("port_driver", "punts_dropped"),
    ("port_driver", "refused_actions"),
    ("port_driver", "transit"),
];

/// Counters that a healthy node counts, too: the entries of `admin::usual_drops`, but for three of
/// Ethernet and one of plain interfaces.
const USUAL: usize = 25;

/// The names of reasons in all `reasons!` of the sources below a path, one list for each.
fn reasons(path: &Path) -> Vec<Vec<String>> {
    if path.is_dir() {
        let entries = std::fs::read_dir(path).expect("it is there");
        let entries = entries.map(|entry| entry.expect("it is there").path());
        return entries.flat_map(|path| reasons(&path)).collect();
    }
    let text = std::fs::read_to_string(path).expect("it is there");
    let blocks = text.split("\nreasons! {\n").skip(1);
    let names = |block: &str| {
        let lines = block.lines().take_while(|line| !line.starts_with('}'));
        let name = |line: &str| Some(line.split_once(" = \"")?.1.strip_suffix("\",")?.to_owned());
        lines.filter_map(name).collect::<Vec<_>>()
    };
    blocks.map(names).collect()
}

#[test]
fn every_reason_of_every_protocol_has_a_row() {
    let root = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../..");
    // Those of `plain` and `ethernet` are of interfaces of other kinds.
    let mut control = reasons(&root.join("control/src"));
    for others in ["control/src/plain", "control/src/ethernet"] {
        let others = reasons(&root.join(others));
        assert_eq!(others.len(), 1, "{others:?}");
        control.retain(|reasons| !others.contains(reasons));
    }
    let data_path = reasons(&root.join("dataplane/src/reason.rs"));
    assert!(control.len() >= 13 && data_path.len() == 3, "{control:?} {data_path:?}");

    let fabric = Running::new("reasons", &["--topology", "single:2"]);
    let text = interface(&fabric, 1, "ib0", "10.0.0").replace("[\"", "[\"dhcp\", \"");
    let node = Node::with(&fabric, 1, &text);
    node.come_up();
    let rows = node.show("drops");
    let rows = rows.as_array().expect("rows").iter();
    // Each entry names a counter.
    assert_eq!(rows.clone().filter(|row| row["usual"] == true).count(), USUAL);
    let rows =
        rows.map(|row| (row["of"].as_str().expect("text"), row["why"].as_str().expect("text")));
    let mut rows: BTreeSet<_> = rows.collect();
    for row in &SINGLE {
        assert!(rows.remove(row), "there is no {row:?}");
    }
    let all: Vec<_> = control.iter().chain(&data_path).collect();
    for reason in all.iter().copied().flatten() {
        assert!(rows.iter().any(|(_, why)| why == reason), "no row of {reason}");
    }
    // Names repeat between protocols, so their number counts.
    let count: usize = all.iter().map(|reasons| reasons.len()).sum();
    assert_eq!(rows.len(), count, "{rows:?}");

    let table = |arguments: &[&str]| {
        let (is_ok, table) = node.ask(&[&["show", "drops"][..], arguments].concat());
        assert!(is_ok, "{table}");
        table
    };
    assert_eq!(table(&["--all"]).lines().count(), 1 + SINGLE.len() + count);
    let is_zero = |line: &str| line.ends_with(" 0");
    assert!(!table(&[]).lines().any(is_zero), "{}", table(&[]));
    assert!(table(&["--all", "--interface", "ib0"]).lines().any(is_zero));
}

#[test]
fn tables_of_one_interface_have_only_its_rows() {
    let fabric = Running::new("one_interface", &["--topology", "single:3"]);
    let both = [("ib0", 1, "10.0.0"), ("ib1", 2, "10.0.1")];
    let both =
        both.map(|(name, host, subnet)| interface(&fabric, host, name, subnet) + "mode = \"rc\"\n");
    let node = Node::with(&fabric, 1, &both.concat());
    let other = Node::start(&fabric, 3, "rc");
    [&node, &other].into_iter().for_each(Node::come_up);
    node.reach("10.0.0.3", "60000");
    let interfaces = |arguments: &[&str]| {
        let question = [&["show", "connections", "--json"][..], arguments].concat();
        let (is_ok, rows) = node.ask(&question);
        assert!(is_ok, "{rows}");
        rows.matches("\"interface\":\"ib0\"").count()
    };
    assert_eq!(interfaces(&[]), 1);
    assert_eq!(interfaces(&["--interface", "ib0"]), 1);
    assert_eq!(interfaces(&["--interface", "ib1"]), 0);
    for table in ["interfaces", "neighbors", "groups", "workers", "drops"] {
        let (is_ok, rows) = node.ask(&["show", table, "--json", "--interface", "ib1"]);
        assert!(is_ok && !rows.contains("\"interface\":\"ib0\""), "{table}: {rows}");
    }
    let (is_ok, output) = node.ask(&["show", "connections", "--interface", "ib7"]);
    assert!(!is_ok && output.contains("there is no interface ib7; list them with"), "{output}");
    let (is_ok, output) = fabric.ask(&["show", "ports", "--interface", "ib0"]);
    assert!(!is_ok && output.contains("this is a fabric, not a node"), "{output}");
}
