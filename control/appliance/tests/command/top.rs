//! `pollux top`: as a table, as JSON, and in a terminal that it has to leave as it was.

use crate::nodes::{Node, interface};
use crate::running::{Ending, Running, TIMEOUT};
use pollux_referee::program_of;
use serde_json::Value;
use std::io::Read;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

#[test]
fn without_a_terminal_it_prints_a_view_once() {
    let fabric = Running::new("top", &["--topology", "single:3"]);
    let down = interface(&fabric, 9, "ib1", "10.0.1");
    let node = Node::with(&fabric, 1, &(interface(&fabric, 1, "ib0", "10.0.0") + &down));
    node.come_up();
    let (is_done, output) = node.ask(&["top", "--interval", "0.2"]);
    assert!(is_done, "{output}");
    let mut lines = output.lines();
    assert!(lines.next().is_some_and(|line| line.starts_with("interface  state")), "{output}");
    assert!(lines.next().is_some_and(|line| line.starts_with("ib0        up ")), "{output}");
    assert!(output.contains("\nworker  core  idle"), "{output}");
    assert!(output.contains("\nib1 is missing: "), "a warning: {output}");

    let (is_done, output) = node.ask(&["top", "--json", "--interval", "0.2", "--view", "routes"]);
    let json: Value = serde_json::from_str(&output).expect("it is JSON");
    let routes = json["views"]["routes"].as_array().expect("rows");
    assert!(is_done && routes.iter().any(|row| row["source"] == "connected"), "{output}");
    assert!(json["seconds"].as_f64() >= Some(0.2), "{output}");
    for view in ["interfaces", "workers", "neighbors", "connections", "drops"] {
        assert!(node.ask(&["top", "--once", "--interval", "0", "--view", view]).0);
    }
    let (is_done, output) = fabric.ask(&["top", "--once"]);
    assert!(!is_done && output.contains("this is a fabric, not a node"), "{output}");
}

#[test]
fn a_signal_leaves_the_terminal_as_it_was() {
    let test = "a_signal_leaves_the_terminal_as_it_was";
    let Some(script) = program_of(test, "script", "--referees") else { return };
    let fabric = Running::new("top_signal", &["--topology", "single:2"]);
    let node = Node::start(&fabric, 1, "ud");
    node.come_up();
    let process = fabric.path("process");
    let own = env!("CARGO_BIN_EXE_pollux");
    let top = format!("echo $$ >{process}; exec {own} top --socket {}", node.socket);
    let line = format!("stty rows 24 cols 80; sh -c '{top}'; stty -a");
    let child = Command::new(script)
        .args(["-qfc", &line, "/dev/null"])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn();
    let mut child = Ending(child.expect("it starts"));
    let mut stdout = child.0.stdout.take().expect("it is piped");
    let (mut output, mut bytes) = (String::new(), [0; 4096]);
    let begun = Instant::now();
    while !output.contains("interfaces") {
        let len = stdout.read(&mut bytes).expect("it draws");
        assert!(len > 0 && begun.elapsed() < TIMEOUT, "{output:?}");
        output.push_str(&String::from_utf8_lossy(&bytes[..len]));
    }
    let id = std::fs::read_to_string(&process).expect("it is there");
    assert!(Command::new("kill").args(["-TERM", id.trim()]).status().expect("kill").success());
    let mut rest = Vec::new();
    stdout.read_to_end(&mut rest).expect("it ends");
    output.push_str(&String::from_utf8_lossy(&rest));
    let (_, after) = output.split_once("\x1b[?1049h").expect("the other screen");
    let (_, after) = after.split_once("\x1b[?1049l").expect("and back");
    assert!(after.contains(" icanon") && after.contains(" echo "), "{output:?}");
    while child.0.try_wait().expect("it is ours").is_none() {
        assert!(begun.elapsed() < TIMEOUT, "it does not end");
        std::thread::sleep(Duration::from_millis(20));
    }
}
