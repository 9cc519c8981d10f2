//! A subnet from a file, and the picture that each of the public tools gives of it: the same,
//! whoever manages it.

use crate::managers::{assert_says, lid, start};
use crate::programs::{Ran, Served, wait_until};
use crate::tests::is_up;
use pollux_fabric::sm::SmConfig;
use pollux_fabric::topology::{End, Topology};
use pollux_referee::program;
use pollux_wire::mad::smp::MKey;
use std::collections::BTreeSet;

/// Two leaves and a spine, with links of several kinds, as `ibnetdiscover` prints them.
const RACK: &str = include_str!("rack.ibnetdiscover");
/// Where the manager is, who asks, and who is asked.
const MANAGER: &str = "db1";
const ASKER: &str = "web2";
const ASKED: &str = "web1";

/// A subnet that is up, and diagnosis tools.
struct Rack {
    test: &'static str,
    served: Served,
}

impl Rack {
    fn new(test: &'static str) -> Option<Self> {
        let topology = Topology::read("rack", RACK, 0).expect("a topology");
        Some(Self { test, served: Served::of(test, topology)? })
    }

    fn run(&self, tool: &str, arguments: &[&str]) -> Ran {
        let tool = program(self.test, tool).expect("all were there");
        self.served.run(ASKER, &tool, arguments)
    }

    fn says(&self, tool: &str, arguments: &[&str], expected: &[&str]) {
        assert_says(&self.run(tool, arguments), expected);
    }

    fn lid(&self, name: &'static str) -> String {
        lid(&self.served, name)
    }
}

/// All that are asked; `false` after having said that `test` is skipped.
fn are_there(test: &str) -> bool {
    const TOOLS: [&str; 10] = [
        "ibnetdiscover",
        "iblinkinfo",
        "smpquery",
        "perfquery",
        "saquery",
        "ibping",
        "ibtracert",
        "ibroute",
        "ibqueryerrors",
        "sminfo",
    ];
    TOOLS.iter().all(|tool| program(test, tool).is_some())
}

// req: iba-subnet-management, iba-counters
#[test]
fn tools_report_the_topology_under_our_manager() {
    let test = "tools_report_the_topology_under_our_manager";
    let Some(rack) = are_there(test).then(|| Rack::new(test)).flatten() else { return };
    // Gets need no key.
    start(&rack.served, MANAGER, SmConfig { m_key: MKey(0x5eed), ..SmConfig::default() });
    give_the_right_picture(&rack);
}

// req: iba-subnet-management, iba-counters
#[test]
fn tools_report_the_topology_under_opensm() {
    let test = "tools_report_the_topology_under_opensm";
    let Some(opensm) = program(test, "opensm") else { return };
    let Some(rack) = are_there(test).then(|| Rack::new(test)).flatten() else { return };
    let running = rack.served.start_opensm(MANAGER, &opensm);
    assert!(rack.served.becomes(is_up));
    assert_eq!(running.errors(), [""; 0], "it asks nothing that is not answered");
    give_the_right_picture(&rack);
}

fn give_the_right_picture(rack: &Rack) {
    assert!(rack.served.becomes(is_up), "all ports active, with addresses");
    of_the_whole(rack);
    of_nodes(rack);
    of_the_administrator(rack);
    of_ways(rack);
    of_errors(rack);
}

fn of_the_whole(rack: &Rack) {
    let ran = rack.run("ibnetdiscover", &[]);
    assert!(ran.is_ok, "{ran:?}");
    assert_eq!(records(&ran.output), records(RACK), "the file, but for LIDs");
    let ran = rack.run("iblinkinfo", &["-l"]);
    let links = ran.output.split_whitespace().collect::<Vec<_>>().join(" ");
    for (rate, ends) in [
        ("4X 53.125 Gbps", 4),
        ("4X 25.78125 Gbps", 4),
        ("4X 14.0625 Gbps", 2),
        ("1X 10.0 Gbps", 2),
        ("12X 5.0 Gbps", 2),
    ] {
        let up = format!("{rate} Active/ LinkUp");
        assert_eq!(links.matches(&up).count(), ends, "{rate} in {}", ran.output);
    }
    let master = rack.lid(MANAGER);
    let at = format!("sm lid {master} sm guid 0xe41d2d0300c10011, ");
    rack.says("sminfo", &[], &[&at, "state 3 SMINFO_MASTER"]);
}

/// The record of each node in a file, without LIDs; unordered.
fn records(text: &str) -> BTreeSet<Vec<String>> {
    let is_lid = |words: &[&str], at: usize| at > 0 && words[at - 1] == "lid";
    let without_lids = |line: &str| {
        let words: Vec<_> = line.split_whitespace().collect();
        let kept = (0..words.len()).filter(|at| !is_lid(&words, *at));
        kept.map(|at| words[at]).collect::<Vec<_>>().join(" ")
    };
    let records = text.split("\n\n").filter(|record| record.trim_start().starts_with("vendid"));
    records.map(|record| record.trim().lines().map(without_lids).collect()).collect()
}

fn of_nodes(rack: &Rack) {
    let (asked, master) = (rack.lid(ASKED), rack.lid(MANAGER));
    rack.says("smpquery", &["nodedesc", &asked], &[ASKED]);
    let said = ["Channel Adapter", "NumPorts:........................1", "0xe41d2d0300c30011"];
    rack.says("smpquery", &["nodeinfo", &asked], &said);
    let own = format!("\nLid:.............................{asked}\n");
    let manager = format!("SMLid:...........................{master}\n");
    let said = [&own, &manager, "Active", "LinkUp", "14.0625 Gbps"];
    rack.says("smpquery", &["portinfo", &asked, "1"], &said);
    rack.says("smpquery", &["pkeys", &asked, "1"], &["0xffff 0x0000"]);
    let said = ["PortSelect:......................1", "PortXmitPkts", "PortRcvPkts"];
    rack.says("perfquery", &["-x", &asked, "1"], &said);
}

fn of_the_administrator(rack: &Rack) {
    let (asked, asker) = (rack.lid(ASKED), rack.lid(ASKER));
    rack.says("saquery", &["NR", &asked], &["0xe41d2d0300c30011", ASKED]);
    let lids = format!("dlid....................{asked}\n\t\tslid....................{asker}\n");
    let said = [lids.as_str(), "mtu.....................0x85", "rate....................0x83"];
    rack.says("saquery", &["--src-to-dst", &format!("{asker}:{asked}")], &said);
    rack.says("saquery", &["-g"], &["ff12:401b:ffff::ffff:ffff", "0xC000"]);
}

fn of_ways(rack: &Rack) {
    let (asked, asker) = (rack.lid(ASKED), rack.lid(ASKER));
    let said = ["From ca", ASKER, "\"leaf2\"", "\"spine1\"", "\"leaf1\"", "To ca", ASKED];
    rack.says("ibtracert", &[&asker, &asked], &said);
    let said = [&format!("{:#06x} 002", asked.parse::<u16>().unwrap()), ASKED, "lids dumped"];
    rack.says("ibroute", &[&rack.lid("leaf1")], &said);
    let ibping = program(rack.test, "ibping").expect("it was there");
    let start = || rack.served.start(&format!("{ASKED}/50"), &ibping, &["-S"]);
    let mut server = start();
    // A server does not report that it has started, and fails on an earlier ping.
    let is_answered = || {
        if server.has_ended() {
            server = start();
        }
        rack.run("ibping", &["-c", "1", &asked]).output.contains("1 received, 0% packet loss")
    };
    assert!(wait_until(is_answered), "a ping is answered");
    rack.says("ibping", &["-c", "2", &asked], &["Pong from", "Pong from", "2 received, 0% packet"]);
}

/// A cable is unplugged and plugged in: the tools report that error and no other.
fn of_errors(rack: &Rack) {
    rack.says("ibqueryerrors", &[], &["7 nodes checked, 0 bad nodes found", "52 ports checked"]);
    rack.served.with(|fabric| {
        let nodes = fabric.net.subnet().topology().nodes();
        let node = nodes.iter().position(|node| node.name == "db2").expect("the node") as u32;
        for is_in in [false, true] {
            fabric.net.subnet_mut().set_cable(End { node, port: 2 }, is_in);
        }
    });
    assert!(rack.served.becomes(is_up), "it comes back");
    let ran = rack.run("ibqueryerrors", &[]);
    for said in [
        "GUID 0xe41d2d0300c20012 port 2: [LinkDownedCounter == 1]",
        "GUID 0x7cfe900300a20010 port 1: [LinkDownedCounter == 1]",
        "7 nodes checked, 2 bad nodes found",
    ] {
        assert!(ran.output.contains(said), "no {said} in {}", ran.output);
    }
    let said = ["LinkDownedCounter:...............1", "PortXmitDiscards:................0"];
    rack.says("perfquery", &[&rack.lid("leaf2"), "1"], &said);
}
