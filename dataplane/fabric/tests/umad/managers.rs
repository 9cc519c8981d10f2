//! Our subnet manager: the output of programs at its subnet, and elections with OpenSM.

use crate::programs::{Ran, Served};
use crate::tests::is_up;
use pollux_fabric::Fabric;
use pollux_fabric::sm::SmConfig;
use pollux_fabric::topology::End;
use pollux_referee::program;
use pollux_wire::mad::smp::SmState;
use std::path::PathBuf;
use std::time::Duration;

/// The port of a node by its name.
fn port(fabric: &Fabric, name: &str) -> End {
    let nodes = fabric.net.subnet().topology().nodes();
    let node = nodes.iter().position(|node| node.name == name).expect("the node");
    End { node: node as u32, port: 1 }
}

pub fn start(served: &Served, name: &'static str, config: SmConfig) {
    served.with(move |fabric| fabric.start_manager(port(fabric, name), config));
}

fn state(fabric: &Fabric, name: &str) -> Option<SmState> {
    fabric.managers.at(port(fabric, name)).map(|manager| manager.state())
}

pub fn lid(served: &Served, name: &'static str) -> String {
    let lid = move |fabric: &mut Fabric| {
        let at = port(fabric, name);
        fabric.net.subnet().nodes()[at.node as usize].lid(at.port).to_string()
    };
    served.with(lid)
}

/// Asserts that an output has these texts, in this order.
pub fn assert_says(ran: &Ran, expected: &[&str]) {
    assert!(ran.is_ok, "{ran:?}");
    let mut rest = ran.output.as_str();
    for text in expected {
        let Some((_, behind)) = rest.split_once(text) else { panic!("no {text} in {rest}") };
        rest = behind;
    }
}

#[test]
fn saquery_is_answered() {
    let test = "saquery_is_answered";
    let Some(saquery) = program(test, "saquery") else { return };
    let Some(served) = Served::new(test, "leaf-spine:2x2x2") else { return };
    start(&served, "host1", SmConfig::default());
    assert!(served.becomes(is_up), "our manager brings it up");
    let (first, last) = (lid(&served, "host1"), lid(&served, "host4"));
    let ask = |arguments: &[&str]| served.run("host4", &saquery, arguments);
    assert_says(&ask(&["NR", &first]), &["NodeDescription.........host1"]);
    assert_says(&ask(&["PIR", &format!("{last}/1")]), &["PortInfoRecord", "Active"]);
    let ran = ask(&["--src-to-dst", &format!("{first}:{last}")]);
    assert_says(
        &ran,
        &["PathRecord dump", "mtu.....................0x85", "rate....................0x90"],
    );
    let ran = ask(&["-g"]);
    assert_says(&ran, &["ff12:401b:ffff::ffff:ffff", "ff12:601b:ffff::1"]);
    let ran = ask(&["SR"]);
    assert!(ran.is_ok && !ran.errors.contains("failed"), "{ran:?}");
    assert_says(&ask(&["CPI"]), &["Capability mask"]);
    let ran = ask(&["SMIR"]);
    assert_says(&ran, &["SMInfoRecord dump", "SMState...............3"]);
}

/// Settings of OpenSM for a short master timeout.
const QUICK: &str = "sminfo_polling_timeout 300\npolling_retry_number 2\n";

fn quick(priority: u8) -> SmConfig {
    let poll_interval = Duration::from_millis(200);
    SmConfig { priority, poll_interval, polls_missed_max: 2, ..SmConfig::default() }
}

/// OpenSM at one end and ours at the other; `arguments` are OpenSM's.
fn beside_opensm(test: &str) -> Option<(Served, PathBuf)> {
    let opensm = program(test, "opensm")?;
    let served = Served::new(test, "leaf-spine:2x2x2")?;
    served.write("opensm.conf", QUICK);
    Some((served, opensm))
}

fn is(at: &'static str, state_wanted: SmState) -> impl Fn(&Fabric) -> bool + Copy + Send {
    move |fabric| state(fabric, at) == Some(state_wanted)
}

/// Whether the master SM LID of all ports is that of this node.
fn serves(name: &'static str) -> impl Fn(&Fabric) -> bool + Copy + Send {
    move |fabric| {
        let at = port(fabric, name);
        let master = fabric.net.subnet().nodes()[at.node as usize].lid(at.port);
        is_up(fabric)
            && fabric
                .net
                .subnet()
                .nodes()
                .iter()
                .all(|node| node.ports[usize::from(!node.is_switch())].info.master_sm_lid == master)
    }
}

// req: iba-sm-election
#[test]
fn an_opensm_stands_by_and_takes_over_from_another() {
    let test = "an_opensm_stands_by_and_takes_over_from_another";
    let Some((served, opensm)) = beside_opensm(test) else { return };
    let first = served.start_opensm_with("host1", &opensm, &["-p", "9", "-F", "opensm.conf"]);
    first.wait_for("SUBNET UP");
    let second = served.start_opensm_with("host4", &opensm, &["-p", "3", "-F", "opensm.conf"]);
    second.wait_for("Entering STANDBY state");
    assert!(served.becomes(serves("host1")));
    drop(first);
    assert!(served.becomes(serves("host4")), "the second takes over");
    second.wait_for("Entering MASTER state");
}

// req: iba-sm-election
#[test]
fn our_manager_is_the_master_of_an_opensm_with_lower_priority() {
    let test = "our_manager_is_the_master_of_an_opensm_with_lower_priority";
    let Some((served, opensm)) = beside_opensm(test) else { return };
    // OpenSM starts first, and hands over.
    let running = served.start_opensm_with("host1", &opensm, &["-p", "3", "-F", "opensm.conf"]);
    running.wait_for("SUBNET UP");
    assert!(served.becomes(serves("host1")));
    start(&served, "host4", quick(9));
    assert!(served.becomes(is("host4", SmState::MASTER)), "OpenSM hands over");
    assert!(served.becomes(serves("host4")));
    running.wait_for("STANDBY");
    // Ours stops; OpenSM detects that, and takes over.
    served.with(|fabric| {
        let at = port(fabric, "host4");
        fabric.managers.stop(fabric.net.subnet_mut(), at);
    });
    assert!(served.becomes(serves("host1")), "OpenSM takes over");
    drop(running);
}

// req: iba-sm-election
#[test]
fn our_manager_stands_by_for_an_opensm_with_higher_priority() {
    let test = "our_manager_stands_by_for_an_opensm_with_higher_priority";
    let Some((served, opensm)) = beside_opensm(test) else { return };
    // Ours starts first, and hands over.
    start(&served, "host4", quick(3));
    assert!(served.becomes(serves("host4")));
    let running = served.start_opensm_with("host1", &opensm, &["-p", "9", "-F", "opensm.conf"]);
    assert!(served.becomes(is("host4", SmState::STANDBY)), "ours hands over");
    assert!(served.becomes(serves("host1")));
    // OpenSM stops; ours detects that, and takes over.
    drop(running);
    assert!(served.becomes(is("host4", SmState::MASTER)), "ours takes over");
    assert!(served.becomes(serves("host4")));
}
