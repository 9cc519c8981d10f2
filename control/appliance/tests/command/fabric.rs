//! `pollux fabric` runs, answers, and ends at a signal.

use crate::running::{Running, TIMEOUT, folder, output_of, preload};
use std::time::{Duration, Instant};

/// A wire whose socket is in the folder of a test.
fn plug(test: &str) -> String {
    format!("switch1:9=stream:{}", folder(test).join("wire").display())
}

#[test]
fn a_fabric_shows_what_it_has_and_ends_on_a_signal() {
    let fabric = Running::unmanaged("shows", &["--topology", "single:2", "--capture", "all.pcap"]);
    let (_, nodes) = fabric.ask(&["show", "nodes"]);
    assert_eq!(nodes.lines().count(), 4, "{nodes}");
    assert!(nodes.contains("switch1") && nodes.contains("host2"), "{nodes}");
    let (_, ports) = fabric.ask(&["show", "ports", "--json"]);
    assert!(ports.contains(r#""peer":"host2:1""#) && ports.contains("INITIALIZE"), "{ports}");
    let (_, links) = fabric.ask(&["show", "links"]);
    assert!(links.contains("4x"), "{links}");
    assert_eq!(fabric.ask(&["show", "groups"]), (true, "lid  ports\n".into()));
    let header = std::fs::read(fabric.folder.join("all.pcap")).expect("the capture");
    assert_eq!(header[..4], [0xa1, 0xb2, 0x3c, 0x4d]);
    fabric.end("-INT");
}

#[test]
fn a_fabric_manages_itself_and_the_nodes_behind_its_wires() {
    let fabric = Running::new("managed-self", &["--topology", "fat-tree:4"]);
    // Switches' own ports are active from the start.
    let is_managed = |all: &str| !all.contains("INITIALIZE") && !all.contains("ARMED");
    fabric.until_it(&["show", "ports", "--json"], "end of ports that wait", is_managed);
    let (_, groups) = fabric.ask(&["show", "groups"]);
    assert!(groups.lines().count() == 1, "nobody has joined: {groups}");

    let plug = plug("managed-near");
    let near = Running::new("managed-near", &["--wire", &plug]);
    let grant = ["--managers", "switch1:9", "--seed", "2"];
    let far = Running::unmanaged("managed-far", &[&["--wire", &plug], &grant[..]].concat());
    let start = Instant::now();
    while far.ask(&["show", "ports", "--json"]).1.matches("ACTIVE").count() < 8 {
        assert!(start.elapsed() < TIMEOUT, "{:?}", far.ask(&["show", "ports"]));
        std::thread::sleep(Duration::from_millis(100));
    }
    near.until(&["show", "ports", "--json"], "wire (up)");
}

#[test]
fn warnings_of_the_tool_above_a_dump_are_skipped_and_reported() {
    let folder = folder("warnings");
    std::fs::create_dir_all(&folder).expect("a folder");
    let file = folder.join("rack.topo");
    let dump = "ibwarn: [3364] mad_rpc: _do_madrpc failed; dport (DR path slid 0; dlid 0; 0,1)\n\
        src/query_smp.c:196; umad (DR path slid 0; dlid 0; 0,1,17 Attr 0x15:1) bad status 110\n\
        #\n# Topology file: generated on Sun Nov 22 20:00:00 2026\n#\n\nvendid=0x2c9\n\
        Switch 8 \"S-1\" # \"leaf\"\n[1] \"H-1\"[1]\nCa 1 \"H-1\" # \"host\"\n";
    std::fs::write(&file, dump).expect("a file");
    let file = file.display().to_string();
    // What is wrong with the plug is found out when the topology is known.
    let (is_ok, output) = output_of(&["fabric", "--topology", &file, "--wire", "spine:1=stream:x"]);
    let lines: Vec<_> = output.lines().collect();
    assert!(!is_ok && lines.len() == 2, "{output}");
    assert!(lines[0].contains("rack.topo:1: skipped 'ibwarn: [3364]"), "{output}");
    assert!(lines[0].contains("and 1 more before the first node"), "{output}");
    assert!(lines[1].contains("the nodes are called leaf, host"), "{output}");
    let _ = std::fs::remove_dir_all(&folder);
}

#[test]
fn partitions_are_read_from_a_file() {
    let folder = folder("partitions-file");
    std::fs::create_dir_all(&folder).expect("a folder");
    let file = folder.join("partitions.conf");
    std::fs::write(&file, "Default=0x7fff, ipoib: ALL=full;\nblue=0x12: ALL;\nred=0x99999: ALL;\n")
        .expect("a file");
    let (is_ok, output) = output_of(&["fabric", "--partitions", &file.display().to_string()]);
    assert!(
        !is_ok && output.contains("partitions.conf:3") && output.contains("0x99999"),
        "{output}"
    );
    let _ = std::fs::remove_dir_all(&folder);
}

#[test]
fn faults_are_added_and_removed() {
    let fabric = Running::new("faults", &["--fault", "host1:1/loss=1%"]);
    assert_eq!(fabric.ask(&["fault", "add", "loss=100ppm"]), (true, "2\n".into()));
    let (_, list) = fabric.ask(&["fault", "list"]);
    assert!(list.contains("host1:1/loss=1%") && list.contains("loss=100ppm"), "{list}");
    assert_eq!(fabric.ask(&["fault", "del", "1"]), (true, String::new()));
    let (is_ok, again) = fabric.ask(&["fault", "del", "1"]);
    assert!(!is_ok && again.contains("fault list"), "{again}");
    fabric.end("-TERM");
}

#[test]
fn two_fabrics_are_joined_by_a_wire_that_reconnects() {
    let plug = plug("wire-one");
    let one = Running::unmanaged("wire-one", &["--wire", &plug]);
    one.until(&["show", "links"], "DOWN");
    let other = Running::unmanaged("wire-other", &["--wire", &plug, "--seed", "2"]);
    one.until(&["show", "links"], "wire");
    other.until(&["show", "ports", "--json"], "wire (up)");
    one.until(&["show", "ports", "--json"], "wire (up)");
    other.end("-TERM");
    one.until(&["show", "ports", "--json"], "wire (down)");
    let again = Running::unmanaged("wire-again", &["--wire", &plug, "--seed", "3"]);
    again.until(&["show", "ports", "--json"], "wire (up)");
    one.until(&["show", "ports", "--json"], "wire (up)");
}

/// OpenSM at a host of one fabric manages the nodes of another one, which it knows by a wire only.
// req: iba-subnet-management
#[test]
fn opensm_manages_nodes_behind_a_wire() {
    let Some(preload) = preload("opensm_manages_nodes_behind_a_wire") else { return };
    let plug = plug("managing");
    let name = format!("pollux-{}-managed", std::process::id());
    let one = Running::unmanaged("managing", &["--wire", &plug, "--umad", &name]);
    let grant = ["--managers", "switch1:9", "--seed", "2"];
    let other = Running::unmanaged("managed", &[&["--wire", &plug], &grant[..]].concat());
    let _opensm = one.opensm(&preload, &name, "host1", &[]);
    let states = |fabric: &Running| fabric.ask(&["show", "ports", "--json"]).1;
    let start = Instant::now();
    while [&one, &other].iter().any(|fabric| states(fabric).matches("ACTIVE").count() < 8) {
        assert!(start.elapsed() < TIMEOUT, "{}\n{}", states(&one), states(&other));
        std::thread::sleep(Duration::from_millis(100));
    }
}

#[test]
fn what_cannot_be_is_refused_with_advice() {
    for (arguments, advice) in [
        (&["--topology", "rings:3"][..], "there is no file"),
        (&["--wire", "switch1:9"], "NODE:PORT=stream:PATH"),
        (&["--wire", "switch1:1=udp:127.0.0.1:9"], "name a free one"),
        (&["--wire", "nobody:1=udp:127.0.0.1:9"], "switch1, host1"),
        (&["--fault", "loss=2"], "loss=1%"),
        (&["--fault", "reorder=1%,delay=18446744073709551615s"], "too long; write at most 60s"),
        (&["--sm", "none", "--partitions", "x"], "--sm embedded"),
        (&["--sm", "none", "--lmc", "1"], "--sm embedded"),
        (&["--sm", "none", "--m-key", "1"], "--sm embedded"),
        (&["--m-key", "secret"], "as in 0x1234"),
        (&["--managers", "host9"], "'host9' is not a port"),
        (&["--lmc", "8"], "from 0 to 7"),
        (&["--partitions", "/nonexistent"], "cannot read the partitions /nonexistent"),
        (&["--capture", "/nonexistent/file"], "capture /nonexistent/file"),
        (&["--sockets", "x"], "--socket"),
    ] {
        let (is_ok, output) = output_of(&[&["fabric"], arguments].concat());
        assert!(!is_ok && output.contains(advice), "{arguments:?}: {output}");
    }
    let (is_ok, output) = output_of(&["show", "nodes", "--socket", "/nonexistent", "--wait", "0"]);
    assert!(!is_ok && output.contains("start one with `pollux run FILE --socket"), "{output}");
}
