//! The watchdog messages of a node of which a thread is stopped.

use crate::debugger;
use crate::host::TIMEOUT;
use crate::pair::alone;
use crate::running_node::RunningNode;
use pollux_node::config::NodeConfig;
use pollux_node::fabric::Embedded;
use pollux_node::service::ServiceManager;
use std::os::unix::net::UnixDatagram;
use std::time::Duration;

/// The manager's time, and a silence in which it would have restarted the node.
const WATCHDOG: Duration = Duration::from_secs(1);
const SILENCE: Duration = Duration::from_secs(3);

/// Messages of the watchdog until there is none for this time.
fn heard(manager: &UnixDatagram, silence: Duration) -> usize {
    manager.set_read_timeout(Some(silence)).expect("it is not zero");
    let (mut count, mut bytes) = (0, [0; 256]);
    while let Ok(len) = manager.recv(&mut bytes) {
        count += usize::from(&bytes[..len] == b"WATCHDOG=1");
    }
    count
}

/// Waits for a message of the watchdog.
fn wait(manager: &UnixDatagram) {
    manager.set_read_timeout(Some(TIMEOUT)).expect("it is not zero");
    let mut bytes = [0; 256];
    while manager.recv(&mut bytes).map(|len| &bytes[..len]).expect("a message") != b"WATCHDOG=1" {}
}

#[test]
fn a_worker_or_a_control_thread_that_stands_still_silences_the_watchdog() {
    let test = "a_worker_or_a_control_thread_that_stands_still_silences_the_watchdog";
    let _alone = alone();
    let fabric = Embedded::start("single:2").expect("it starts");
    let text = format!("[interface.ib0]\ndevice = {:?}\n", fabric.port("host1"));
    let config = NodeConfig::read("test", &text).expect("it is valid");
    let folder = std::env::temp_dir().join(format!("pollux-{}-watchdog", std::process::id()));
    std::fs::create_dir_all(&folder).expect("a folder");
    let socket = UnixDatagram::bind(folder.join("notify")).expect("it is free");
    let address = folder.join("notify").display().to_string();
    let variable = |name: &str| match name {
        "NOTIFY_SOCKET" => Some(address.clone()),
        "WATCHDOG_USEC" => Some(WATCHDOG.as_micros().to_string()),
        _ => None,
    };
    let manager = ServiceManager::from_variables(variable, 1).expect("a manager");
    let node = RunningNode::supervised(&folder.join("node"), config, manager);
    wait(&socket);

    let stall = node.stall();
    heard(&socket, Duration::from_millis(1));
    assert_eq!(heard(&socket, SILENCE), 0, "control stands still");
    drop(stall);
    wait(&socket);

    if let Some(stopped) = debugger::stop(test, "worker0") {
        heard(&socket, Duration::from_millis(1));
        // It may have breathed after the last message.
        assert!(heard(&socket, SILENCE) <= 1, "a worker stands still");
        drop(stopped);
        wait(&socket);
        wait(&socket);
    }
    drop(node);
    let _ = std::fs::remove_dir_all(&folder);
}
