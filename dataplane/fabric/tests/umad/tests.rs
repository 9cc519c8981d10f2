//! The output of unmodified programs.

use crate::programs::Served;
use pollux_fabric::Fabric;
use pollux_fabric::node::NodePort;
use pollux_fabric::topology::{End, Topology};
use pollux_referee::program;
use pollux_wire::mad::smp::PortState;
use std::fs;
use std::path::Path;

/// infiniband-diags at an unmanaged subnet: all by directed route.
#[test]
fn diagnostics_read_an_unmanaged_subnet() {
    let test = "diagnostics_read_an_unmanaged_subnet";
    let Some(ibnetdiscover) = program(test, "ibnetdiscover") else { return };
    let Some(smpquery) = program(test, "smpquery") else { return };
    let Some(served) = Served::new(test, "single:3") else { return };
    let ran = served.run("host1", &ibnetdiscover, &[]);
    assert!(ran.is_ok, "{ran:?}");
    let seen = Topology::read("ibnetdiscover", &ran.output, 0).expect("it prints our format");
    let made = Topology::generate("single:3", 1).unwrap();
    assert_eq!((seen.nodes().len(), seen.links().len()), (4, 3), "{}", ran.output);
    for node in made.nodes() {
        let same = seen.nodes().iter().find(|other| other.guid == node.guid).expect("the node");
        assert_eq!(
            (&same.name, same.kind, same.num_ports()),
            (&node.name, node.kind, node.num_ports())
        );
    }
    assert!(seen.links().iter().all(|link| link.rate.to_string() == "4xEDR"), "{}", ran.output);
    let asked = [
        ("nodedesc", "0,1,2", "host2"),
        ("nodeinfo", "0,1", "NodeType:........................Switch"),
        ("portinfo", "0,1,3", "LinkState:.......................Initialize"),
        ("switchinfo", "0,1", "LinearFdbCap:....................49152"),
        ("pkeys", "0,1,3", "0xffff"),
        ("guidinfo", "0,1,3", "0x0250"),
        ("sl2vl", "0,1,3", "SL: | 0| 1| 2|"),
        ("vlarb", "0,1,3", "Low priority VL Arbitration Table"),
    ];
    for (attribute, path, expected) in asked {
        let ran = served.run("host1", &smpquery, &[attribute, "-D", path]);
        assert!(ran.is_ok && ran.output.contains(expected), "{attribute}: {ran:?}");
    }
    let ran = served.run("host1", &smpquery, &["nodeinfo", "-D", "0,7"]);
    assert!(!ran.is_ok, "a port that is not there: {ran:?}");
}

/// OpenSM brings the subnet up; the other programs then use LIDs.
fn opensm_brings_up(test: &str, spec: &str, last_host: &str) {
    let Some(opensm) = program(test, "opensm") else { return };
    let Some(sminfo) = program(test, "sminfo") else { return };
    let Some(smpquery) = program(test, "smpquery") else { return };
    let Some(perfquery) = program(test, "perfquery") else { return };
    let Some(served) = Served::new(test, spec) else { return };
    let running = served.start_opensm("host1", &opensm);
    let ran = served.run(last_host, &sminfo, &[]);
    assert!(ran.is_ok && ran.output.contains("SMINFO_MASTER"), "{ran:?}");
    let ran = served.run(last_host, &smpquery, &["nodedesc", "1"]);
    assert!(ran.is_ok && ran.output.contains("host1"), "{ran:?}");
    let ran = served.run(last_host, &perfquery, &["-x", "1", "1"]);
    let packets = ran.output.lines().find(|line| line.starts_with("PortXmitPkts"));
    let packets = packets.and_then(|line| line.rsplit('.').next()?.parse::<u64>().ok());
    assert!(ran.is_ok && packets.is_some_and(|packets| packets > 20), "{ran:?}");
    assert!(served.becomes(is_up), "all ports active, with addresses");
    assert_eq!(running.errors(), [""; 0]);
    // A cable is unplugged and plugged in: OpenSM learns it only by the trap of the switch.
    let host =
        served.with(|fabric| End { node: fabric.net.subnet().nodes().len() as u32 - 1, port: 1 });
    served.with(move |fabric| fabric.net.subnet_mut().set_cable(host, false));
    let ran = served.run(last_host, &sminfo, &[]);
    assert!(!ran.is_ok, "nobody is reached over it: {ran:?}");
    let was_up = served.with(move |fabric| {
        fabric.net.subnet_mut().set_cable(host, true);
        is_up(fabric)
    });
    assert!(!was_up, "until OpenSM sees to it");
    assert!(served.becomes(is_up), "OpenSM hears the trap");
    assert!(served.becomes(|fabric| fabric.net.subnet().traps_due().is_none()), "and represses it");
    drop(running);
}

/// Whether every linked port is active, and has a LID if ports of its kind have one.
pub fn is_up(fabric: &Fabric) -> bool {
    let is_active = |port: &NodePort| port.info.port_state == PortState::ACTIVE;
    let has_address =
        |port: &NodePort| port.info.lid.is_unicast() && port.info.master_sm_lid.is_unicast();
    fabric.net.subnet().nodes().iter().all(|node| {
        let mut linked = node.ports[1..].iter().filter(|port| port.is_linked());
        match node.is_switch() {
            true => has_address(&node.ports[0]) && linked.all(is_active),
            false => linked.all(|port| is_active(port) && has_address(port)),
        }
    })
}

#[test]
fn opensm_brings_up_a_switch_with_hosts() {
    opensm_brings_up("opensm_brings_up_a_switch_with_hosts", "single:3", "host3");
}

// req: iba-counters, iba-subnet-management
#[test]
fn opensm_brings_up_a_fat_tree() {
    opensm_brings_up("opensm_brings_up_a_fat_tree", "fat-tree:4", "host16");
}

/// Two switches in a ring have two links between them; larger rings have two paths.
// req: iba-subnet-management
#[test]
fn opensm_brings_up_rings() {
    for spec in ["ring:2", "ring:5"] {
        let topology = Topology::generate(spec, 1).unwrap();
        is_brought_up("opensm_brings_up_rings", topology);
    }
}

/// The example files of ibsim.
// req: iba-subnet-management
#[test]
fn opensm_brings_up_nets_of_ibsim() {
    let test = "opensm_brings_up_nets_of_ibsim";
    let Some(_) = program(test, "ibsim") else { return };
    let folder = Path::new("/usr/share/doc/ibsim-utils/net-examples");
    let counts =
        [("net", 4, 4), ("net.1", 3, 2), ("net.2sw2path", 4, 4), ("net.2sw2path4hca2port", 4, 6)];
    for (name, nodes, links) in counts {
        // The program may be installed without its documentation.
        let Ok(text) = fs::read_to_string(folder.join(name)) else {
            println!("SKIP {test}: {name} is not installed");
            continue;
        };
        let topology = Topology::read(name, &text, 1).unwrap_or_else(|error| panic!("{error}"));
        assert_eq!((topology.nodes().len(), topology.links().len()), (nodes, links), "{name}");
        is_brought_up(test, topology);
    }
}

/// OpenSM brings the subnet up without an error, with the group for IP over InfiniBand.
fn is_brought_up(test: &str, topology: Topology) {
    let Some(opensm) = program(test, "opensm") else { return };
    let Some(saquery) = program(test, "saquery") else { return };
    let Some(served) = Served::of(test, topology) else { return };
    let running = served.start_opensm("", &opensm);
    assert!(served.becomes(is_up), "all ports active, with addresses");
    assert_eq!(running.errors(), [""; 0]);
    let ran = served.run("", &saquery, &["MCMR"]);
    assert!(ran.is_ok, "{ran:?}");
    for said in [
        "MGID....................ff12:401b:ffff::ffff:ffff",
        "mlid....................0xc000",
        "mtu.....................0x84",
        "rate....................0x83",
        "pkey....................0xffff",
        "qkey....................0xb1b",
    ] {
        assert!(ran.output.contains(said), "no {said} in {}", ran.output);
    }
}
