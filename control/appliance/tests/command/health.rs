//! What a node says of itself when all is well, and when its address is another's.

use crate::nodes::{Node, interface};
use crate::running::{Ending, Running, TIMEOUT, pollux};
use std::fs::File;
use std::time::{Duration, Instant};

#[test]
fn nodes_that_work_as_they_should_count_usual_drops_alone() {
    let fabric = Running::new("healthy", &["--topology", "single:2"]);
    let nodes = [1, 2].map(|host| Node::start(&fabric, host, "rc"));
    nodes.iter().for_each(Node::come_up);
    nodes[0].reach("10.0.0.2", "60000");
    nodes[1].reach("10.0.0.1", "56");
    for node in &nodes {
        let rows = node.show("drops");
        let counted = rows.as_array().expect("rows").iter().filter(|row| row["count"] != 0);
        let (usual, faults): (Vec<_>, Vec<_>) = counted.partition(|row| row["usual"] == true);
        assert!(!usual.is_empty() && faults.is_empty(), "{faults:?}");
    }
}

#[test]
fn one_of_two_nodes_with_an_address_does_not_use_it_and_says_whose_it_is() {
    let fabric = Running::new("duplicate", &["--topology", "single:2"]);
    let nodes = [1, 2].map(|host| {
        let file = fabric.path(&format!("node{host}.toml"));
        let text = interface(&fabric, host, "ib0", "10.0.0");
        std::fs::write(&file, text.replace("10.0.0.2", "10.0.0.1")).expect("there is a folder");
        let socket = fabric.path(&format!("node{host}"));
        let log = File::create(fabric.path(&format!("log{host}"))).expect("there is a folder");
        let mut run = pollux(&["run", &file, "--socket", &socket]);
        let node = Node { child: Ending(run.stdout(log).spawn().expect("it starts")), socket };
        node.come_up();
        node
    });
    let begun = Instant::now();
    let (loser, output) = loop {
        let rows = [0, 1].map(|nth| nodes[nth].show("interfaces")[0].clone());
        let output = [1, 0].map(|other: usize| {
            let link = rows[other]["link"].as_str().expect("a link address");
            format!("10.0.0.1 is not used, as another node has it: {link}")
        });
        let text = |nth: usize, key: &str| rows[nth][key].to_string();
        let has_it = |nth| text(nth, "addresses").contains("10.0.0.1/24");
        // The other one may still be probing.
        let has_lost = |nth: usize| text(nth, "why").contains(&output[nth]) && has_it(1 - nth);
        if let Some(loser) = (0..2).find(|&nth| has_lost(nth)) {
            assert!(!has_it(loser), "{rows:?}");
            break (loser, output[loser].clone());
        }
        assert!(begun.elapsed() < TIMEOUT, "{rows:?}");
        std::thread::sleep(Duration::from_millis(50));
    };
    // The log has a line of it, with the time.
    let log = std::fs::read_to_string(fabric.path(&format!("log{}", loser + 1)));
    let log = log.expect("it is there");
    let line = log.lines().find(|line| line.contains(&output)).expect("a line");
    assert!(line.starts_with("20") && line.contains("Z ib0: up: "), "{line}");
}
