//! Our stack on `mlx5_0:1`, the ConnectX in software, with Linux in a guest as the peer: a node of
//! `pollux run`, and a program that links the library.
//!
//! The genuine libibverbs, libmlx5 and libibumad run in both; the work queues are those of
//! `pollux-mlx5`.

#[allow(dead_code, reason = "the tests of nodes use the rest")]
#[path = "../../../node/tests/node/fabric.rs"]
mod fabric;
#[allow(dead_code, reason = "the tests of nodes use the rest")]
#[path = "../../../node/tests/node/guest.rs"]
mod guest;

use fabric::{Manager, Running};
use guest::{Guest, Opensm};
use pollux_referee::adapters;
use std::path::Path;
use std::process::{Child, Command, Output, Stdio};

/// Options of iperf3 of Linux: a stream of 4 MiB each way.
const STREAMS: [&str; 2] = ["-n 4M", "-n 4M -R"];

/// A program that ends with its test.
struct Ending(Child);

impl Drop for Ending {
    fn drop(&mut self) {
        // `pollux exec` passes this on to its program.
        let id = self.0.id().to_string();
        let _ = Command::new("kill").arg(id).status();
        let _ = self.0.wait();
    }
}

/// Linux at a fabric, and programs at the adapter of its first host.
struct Testbed {
    guest: Guest,
    fabric: Running,
    _opensm: Option<Opensm>,
}

impl Testbed {
    fn start(test: &str, manager: Manager) -> Option<Self> {
        pollux_referee::program_of(test, "ibv_devinfo", "--hca")?;
        let fabric = Running::start(test, 2, manager);
        let opensm = match manager {
            Manager::Umad => Some(Opensm::start(test, &fabric)?),
            _ => None,
        };
        let guest = Guest::start(test, &fabric.wire(1))?;
        Some(Self { guest, fabric, _opensm: opensm })
    }

    fn exec(&self, program: &Path, arguments: &[&str]) -> Ending {
        let mut command = Command::new(env!("CARGO_BIN_EXE_pollux"));
        let folder = &self.fabric.folder;
        command.args(["exec", "--fabric"]).arg(folder.join("socket"));
        command.args(["--node", "host1", "--"]).arg(program).args(arguments);
        let child = command.current_dir(folder).stdin(Stdio::null()).spawn();
        Ending(child.expect("it starts"))
    }

    /// A node of ours, with this mode.
    fn node(&self, mode: &str) -> Ending {
        let text = format!(
            "[interface.ib0]\ndevice = \"mlx5_0:1\"\naddress = [\"10.0.0.1/24\"]\nmode = {mode:?}\n"
        );
        std::fs::write(self.fabric.folder.join("node.toml"), text).expect("there is a folder");
        let pollux = Path::new(env!("CARGO_BIN_EXE_pollux"));
        self.exec(pollux, &["run", "node.toml", "--socket", "node"])
    }

    /// Has a node of ours ask Linux.
    fn ping(&self, bytes: usize) {
        let output = Command::new(env!("CARGO_BIN_EXE_pollux"))
            .args(["ping", "10.0.0.2", "--count", "3", "--size", &bytes.to_string()])
            .arg("--socket")
            .arg(self.fabric.folder.join("node"))
            .output()
            .expect("it starts");
        assert!(output.status.success(), "{output:?}");
    }

    fn linux(&mut self, command: &str) -> String {
        self.guest.begin(command);
        let (status, output) = self.guest.answer();
        assert_eq!(status, 0, "{command}: {output}");
        output
    }

    /// Linux with this mode, when it has an answer from us.
    fn meet(&mut self, mode: &str) {
        self.linux("ip link set ib0 down");
        self.linux(&format!("ipoib_up 10.0.0.2/24 {mode}; ip neigh flush dev ib0"));
        self.linux("wait_for 30 ping -c1 -W1 10.0.0.1");
    }

    fn end(mut self) {
        assert_eq!(self.linux("counter port_rcv_errors").trim(), "0");
    }
}

fn nodes_reach_linux(test: &str, manager: Manager) {
    let Some(mut testbed) = Testbed::start(test, manager) else { return };
    for (ours, theirs, sizes) in
        [("ud", "datagram", [56, 2044 - 28]), ("rc", "connected", [56, 65_000])]
    {
        let _node = testbed.node(ours);
        testbed.meet(theirs);
        for bytes in sizes {
            testbed.ping(bytes);
            testbed.linux(&format!("ping -c3 -i0.2 -W2 -s{bytes} 10.0.0.1"));
        }
    }
    testbed.end();
}

#[test]
fn a_node_and_linux_reach_each_other() {
    nodes_reach_linux("a_node_and_linux_reach_each_other", Manager::Ours);
}

#[test]
fn a_node_and_linux_reach_each_other_under_opensm() {
    nodes_reach_linux("a_node_and_linux_reach_each_other_under_opensm", Manager::Umad);
}

#[test]
fn a_program_of_the_library_has_streams_with_linux() {
    let test = "a_program_of_the_library_has_streams";
    let Some(mut testbed) = Testbed::start(test, Manager::Ours) else { return };
    let iperf3 = adapters::built("pollux", &["--example", "iperf3"]).join("examples/iperf3");
    let server = testbed.exec(&iperf3, &["mlx5_0:1", "10.0.0.1/24"]);
    testbed.meet("connected");
    for options in STREAMS {
        let report = testbed.linux(&format!("iperf3 -c 10.0.0.1 -J {options}"));
        let report: serde_json::Value = serde_json::from_str(&report).expect("it is JSON");
        let bytes = |end: &str| report["end"][end]["bytes"].as_u64().expect("a number");
        println!("{options}: {} bytes, {}", bytes("sum_received"), report["end"]["sum_received"]);
        assert!(bytes("sum_received") >= 4 << 20, "{report}");
        assert_eq!(bytes("sum_received"), bytes("sum_sent"), "{report}");
    }
    drop(server);
    testbed.end();
}

/// On one adapter by itself, as it is meant to run on a card.
#[test]
fn the_first_run_on_a_card_passes() {
    let test = "the_first_run_on_a_card_passes";
    for program in ["ibv_devinfo", "ib_send_lat"] {
        let Some(_) = pollux_referee::program_of(test, program, "--hca") else { return };
    }
    let programs = [
        ("pollux-mlx5", ["--example", "hca_conformance"]),
        ("pollux-perf", ["--bin", "pollux-perf"]),
        ("pollux-appliance", ["--bin", "pollux"]),
    ]
    .map(|(package, what)| adapters::built(package, &what));
    let mut command = Command::new(env!("CARGO_BIN_EXE_pollux"));
    command.args(["exec", "--", "scripts/hca-first-run", "--yes", "--rounds", "1", "--programs"]);
    let output = command.arg(&programs[0]).current_dir(adapters::root()).output();
    let Output { status, stdout, stderr } = output.expect("it starts");
    let printed = String::from_utf8_lossy(&stdout);
    println!("{printed}{}", String::from_utf8_lossy(&stderr));
    assert!(status.success() && printed.matches(" ok, ").count() == 6, "{printed}");
}
