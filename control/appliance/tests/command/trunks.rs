//! Cables of a running fat tree are pulled under a connection between two processes, and OpenSM
//! finds other ways.

use crate::processes::sender;
use crate::program::Program;
use crate::running::{Running, TIMEOUT, preload};
use pollux_verbs::{CompletionKind, CompletionStatus};
use std::ops::Range;
use std::time::{Duration, Instant};

/// Messages from one change to the next.
const MESSAGES: u64 = 200;

/// Takes messages of these numbers: none is lost, none comes twice.
fn take(receiver: &mut Program, numbers: Range<u64>) {
    for number in numbers {
        receiver.receive();
        assert_eq!(receiver.completed(), (CompletionKind::Recv, CompletionStatus::Success));
        assert_eq!(receiver.number(), number);
    }
}

/// Waits until all ports are active.
fn wait_for_active(fabric: &Running) {
    let begun = Instant::now();
    loop {
        let (_, ports) = fabric.ask(&["show", "ports", "--json"]);
        if ports.matches("\"state\"").count() == ports.matches("\"ACTIVE\"").count() {
            return;
        }
        assert!(begun.elapsed() < TIMEOUT, "{ports}");
        std::thread::sleep(Duration::from_millis(50));
    }
}

// req: iba-subnet-management, iba-links
#[test]
fn a_connection_survives_failed_trunks_under_opensm() {
    let Some(preload) = preload("a_connection_survives_failed_trunks_under_opensm") else {
        return;
    };
    let name = format!("pollux-{}-trunks", std::process::id());
    let fabric = Running::unmanaged("trunks", &["--topology", "fat-tree:4", "--umad", &name]);
    let _opensm = fabric.opensm(&preload, &name, "host4", &[]);
    wait_for_active(&fabric);
    let mut receiver = Program::at(&fabric.port(16));
    let senders_lid = Program::at(&fabric.port(1)).lid();
    receiver.connect(senders_lid);
    let _sender = sender(&fabric.port(1), receiver.lid());
    let pull = |port: &str| fabric.ask(&["fault", "add", &format!("pod1-edge1:{port}/down")]).1;
    let put_back = |rule: &str| assert!(fabric.ask(&["fault", "del", rule.trim()]).0);
    take(&mut receiver, 0..MESSAGES);
    // The sender's switch has two links to others: what was left is then what fails.
    let first = pull("3");
    take(&mut receiver, MESSAGES..2 * MESSAGES);
    let second = pull("4");
    put_back(&first);
    take(&mut receiver, 2 * MESSAGES..3 * MESSAGES);
    put_back(&second);
    wait_for_active(&fabric);
    take(&mut receiver, 3 * MESSAGES..4 * MESSAGES);
}
