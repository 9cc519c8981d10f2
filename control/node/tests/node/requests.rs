//! Requests at the admin socket of nodes that run, by the typed client.

use crate::running_node::{RunningNode, pause};
use pollux_node::admin::rows::InterfaceStatus;
use pollux_node::config::NodeConfig;
use pollux_node::node::NodeRunner;
use std::os::unix::net::UnixStream;
use std::thread::spawn;

/// Interfaces of which a page has not all.
const MANY: usize = 600;

#[test]
fn a_table_of_many_interfaces_has_each_once() {
    let folder = std::env::temp_dir().join(format!("pollux-{}-many", std::process::id()));
    std::fs::create_dir_all(&folder).expect("a folder");
    let interface = |nth: usize| {
        let device = folder.join("nowhere");
        format!("[interface.ib{nth:04}]\ndevice = \"soft:{}@host{nth}\"\n", device.display())
    };
    let text: String = (0..MANY).map(interface).collect();
    let config = NodeConfig::read("test", &text).expect("it is valid");
    let node = RunningNode::start(&folder.join("a"), config);
    let rows: Vec<InterfaceStatus> = node.client().show(&mut pause).expect("it answers");
    let names = (0..MANY).map(|nth| format!("ib{nth:04}"));
    assert!(rows.iter().map(|row| row.interface.clone()).eq(names));
    assert!(rows.iter().all(|row| row.waits_for.as_deref() == Some("the device")));
    drop(node);
    let _ = std::fs::remove_dir_all(&folder);
}

#[test]
fn a_panic_of_the_control_thread_ends_the_node_and_its_workers() {
    let text = "[interface.ib0]\ndevice = \"soft:nowhere@host1\"\n";
    let config = NodeConfig::read("test", text).expect("it is valid");
    let node = NodeRunner::new(config, None).expect("it starts");
    let (_wake, woken) = UnixStream::pair().expect("a pair of sockets");
    // Otherwise it waits for its workers forever.
    let control = spawn(move || node.run(woken, || panic!("a broken invariant"), |_| {}));
    assert!(control.join().is_err(), "the panic goes on");
}
