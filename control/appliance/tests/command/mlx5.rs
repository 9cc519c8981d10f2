//! Nodes on `mlx5_0:1`, the ConnectX in software: the genuine libibverbs, libmlx5 and libibumad in
//! the node's own process, its work queues by `pollux-mlx5`, its MADs by libibumad.

use crate::nodes::{Node, interface};
use crate::running::{Ending, Running, pollux};
use std::process::{Command, Stdio};

/// A node that `pollux exec` has started, and ends when it is told to.
struct ExecNode(Node);

impl Drop for ExecNode {
    fn drop(&mut self) {
        let id = self.0.child.0.id().to_string();
        let _ = Command::new("kill").arg(id).status();
        let _ = self.0.child.0.wait();
    }
}

/// A command in place of a program of rdma-core, at a host.
fn exec(fabric: &Running, host: u32, arguments: &[&str]) -> Command {
    let (socket, host) = (fabric.path("socket"), format!("host{host}"));
    let program = [env!("CARGO_BIN_EXE_pollux")];
    pollux(
        &[&["exec", "--fabric", &socket, "--node", &host, "--"], &program[..], arguments].concat(),
    )
}

/// A node on the adapter of a host, whose interface has this mode.
fn start(fabric: &Running, host: u32, mode: &str) -> ExecNode {
    let (config, socket) =
        (fabric.path(&format!("node{host}.toml")), fabric.path(&format!("node{host}")));
    let device = "device = \"mlx5_0:1\"";
    let text =
        format!("[interface.ib0]\n{device}\naddress = [\"10.0.0.{host}/24\"]\nmode = {mode:?}\n");
    std::fs::write(&config, text).expect("there is a folder");
    let mut command = exec(fabric, host, &["run", &config, "--socket", &socket]);
    let child = command.stdout(Stdio::null()).spawn();
    ExecNode(Node { child: Ending(child.expect("it starts")), socket })
}

#[test]
fn a_node_on_a_connectx_and_one_of_the_fabric_reach_each_other() {
    let test = "a_node_on_a_connectx_and_one_of_the_fabric";
    let Some(_) = pollux_referee::program_of(test, "ibv_devinfo", "--hca") else { return };
    let fabric = Running::new("mlx5", &["--topology", "single:2"]);
    let on_adapter = start(&fabric, 1, "rc");
    let text = interface(&fabric, 2, "ib0", "10.0.0");
    let theirs = Node::with(&fabric, 2, &format!("{text}mode = \"rc\"\n"));
    let ours = &on_adapter.0;
    [ours, &theirs].into_iter().for_each(Node::come_up);
    ours.reach("10.0.0.2", "56");
    theirs.reach("10.0.0.1", "60000");
    let connections = ours.show("connections").to_string();
    assert!(connections.contains("\"open\""), "{connections}");
}

#[test]
fn the_doctor_misses_nothing_of_the_adapter() {
    let test = "the_doctor_misses_nothing_of_the_adapter";
    let Some(_) = pollux_referee::program_of(test, "ibv_devinfo", "--hca") else { return };
    let fabric = Running::new("mlx5-doctor", &["--topology", "single:1"]);
    let output = exec(&fabric, 1, &["doctor"]).output().expect("it starts");
    let printed = String::from_utf8_lossy(&output.stdout);
    for part in ["ib_uverbs: ", "ib_umad: ", "mlx5_0: nodes use it by work queues of our own\n"] {
        assert!(printed.contains(&format!("\nok   {part}")), "{printed}");
    }
}
