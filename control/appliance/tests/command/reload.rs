//! Configurations that change while a node runs.

use crate::running::{Ending, TIMEOUT, folder, pollux};
use serde_json::Value;
use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::time::Instant;

/// Reloads while pings go through the interface that does not change.
const RELOADS: usize = 10;

/// A fabric, the nodes a and b, and the folder of their files.
pub struct Net {
    folder: PathBuf,
    _processes: Vec<Ending>,
}

/// The partitions of the subnet, those of ib0 and ib1.
const PARTITIONS: &str = "Default=0x7fff, ipoib, defmember=full : ALL=full, SELF=full;\n\
    one=0x1, ipoib, defmember=full : ALL=full, SELF=full;\n";

/// Settings of node b, which does not change.
const B: &str = "[interface.ib0]\ndevice = \"soft:fabric.sock@host2\"\nmode = \"rc\"\n\
    address = [\"10.0.0.2/24\"]\n\
    [interface.ib1]\ndevice = \"soft:fabric.sock@host2\"\npkey = 0x8001\nmode = \"rc\"\n\
    address = [\"10.1.0.2/24\"]\n";

/// The interface of node a that does not change.
pub const IB0: &str = "[interface.ib0]\ndevice = \"soft:fabric.sock@host1\"\nmode = \"rc\"\n\
    address = [\"10.0.0.1/24\"]\n";

/// Its other interface, with an address and more settings.
fn ib1(address: &str, more: &str) -> String {
    format!(
        "[interface.ib1]\ndevice = \"soft:fabric.sock@host1\"\npkey = 0x8001\n\
         address = [\"{address}\"]\n{more}"
    )
}

impl Net {
    pub fn new(test: &str, a: &str) -> Self {
        let folder = folder(test);
        std::fs::create_dir(&folder).expect("no other test has this folder");
        let net = |arguments: &[&str]| {
            let mut command = pollux(arguments);
            let command = command.current_dir(&folder).stdout(Stdio::null());
            Ending(command.stderr(Stdio::null()).spawn().expect("it starts"))
        };
        std::fs::write(folder.join("a.toml"), a).expect("it is ours");
        std::fs::write(folder.join("b.toml"), B).expect("it is ours");
        std::fs::write(folder.join("partitions.conf"), PARTITIONS).expect("it is ours");
        let partitions = ["--partitions", "partitions.conf"];
        let fabric = ["fabric", "--topology", "single:2", "--socket", "fabric.sock"];
        let processes = vec![
            net(&[&fabric[..], &partitions].concat()),
            net(&["run", "a.toml", "--socket", "a.sock"]),
            net(&["run", "b.toml", "--socket", "b.sock"]),
        ];
        Self { folder, _processes: processes }
    }

    /// A command for node a: whether it succeeds, and what it prints.
    fn run(&self, arguments: &[&str]) -> (bool, String) {
        let mut command = pollux(arguments);
        command.args(["--socket", "a.sock"]).current_dir(&self.folder);
        let output = command.output().expect("it starts");
        let printed = [output.stdout, output.stderr].concat();
        (output.status.success(), String::from_utf8_lossy(&printed).into_owned())
    }

    fn write(&self, text: &str) {
        std::fs::write(self.folder.join("a.toml"), text).expect("it is ours");
    }

    /// Reloads another configuration; the lines that it prints.
    fn reload(&self, text: &str) -> Vec<String> {
        self.write(text);
        let (is_done, printed) = self.run(&["reload"]);
        assert!(is_done, "{printed}");
        printed.lines().map(String::from).collect()
    }

    fn rows(&self, table: &str) -> Vec<Value> {
        let (is_done, printed) = self.run(&["show", table, "--json"]);
        assert!(is_done, "{printed}");
        serde_json::from_str(&printed).expect("it is JSON")
    }

    /// What tells the connections of ib0 from later ones.
    fn connections_of_ib0(&self) -> Vec<Value> {
        let mut rows = self.rows("connections");
        rows.retain(|row| row["interface"] == "ib0");
        rows.iter().map(|row| row["qpn"].clone()).collect()
    }

    /// Pings until an answer comes, and until one connection is left if two have crossed.
    fn must_reach(&self, to: &str) {
        let begun = Instant::now();
        while !self.run(&["ping", to, "--count", "1"]).0 || self.connections_of_ib0().len() > 1 {
            assert!(begun.elapsed() < TIMEOUT, "{to} does not answer by one connection");
        }
    }

    /// Pings until none comes.
    fn must_not_reach(&self, to: &str) {
        let begun = Instant::now();
        while self.run(&["ping", to, "--count", "1"]).0 {
            assert!(begun.elapsed() < TIMEOUT, "{to} answers");
        }
    }
}

impl Drop for Net {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.folder);
    }
}

#[test]
fn a_reload_changes_what_is_other_and_leaves_the_rest_alone() {
    let net = Net::new("reload", IB0);
    net.must_reach("10.0.0.2");
    let before = net.connections_of_ib0();
    assert_eq!(before.len(), 1, "{before:?}");
    assert_eq!(net.reload(IB0), ["nothing has changed"]);
    // The pings are sent beside all reloads, and none of them may be lost.
    let mut pings = pollux(&["ping", "10.0.0.2", "--count", "200", "--interval", "0.01"]);
    pings.args(["--socket", "a.sock"]).current_dir(&net.folder).stdout(Stdio::piped());
    let pings = pings.spawn().expect("it starts");
    for _ in 0..RELOADS {
        let with = [IB0, &ib1("10.1.0.1/24", "mode = \"rc\"\n")].concat();
        assert_eq!(net.reload(&with), ["ib1: add, at soft:fabric.sock@host1"]);
        net.must_reach("10.1.0.2");
        let moved = [IB0, &ib1("10.1.0.7/24", "mode = \"rc\"\n")].concat();
        let changes = ["ib1: remove address 10.1.0.1", "ib1: address 10.1.0.7/24"];
        assert_eq!(net.reload(&moved), changes);
        net.must_reach("10.1.0.2");
        let other = [IB0, &ib1("10.1.0.7/24", "mode = \"ud\"\n")].concat();
        assert_eq!(net.reload(&other), ["ib1: restart, since it has another mode"]);
        net.must_reach("10.1.0.2");
        assert_eq!(net.reload(IB0), ["ib1: remove"]);
        net.must_not_reach("10.1.0.2");
    }
    let output = pings.wait_with_output().expect("it ends");
    let printed = String::from_utf8_lossy(&output.stdout);
    assert!(printed.contains("200 packets transmitted, 200 received"), "{printed}");
    assert_eq!(net.connections_of_ib0(), before, "its connection is another one");
}

#[test]
fn a_peer_with_another_mode_loses_its_connection_and_nothing_else() {
    let net = Net::new("modes", IB0);
    net.must_reach("10.0.0.2");
    assert_eq!(net.connections_of_ib0().len(), 1);
    let ud = format!("{IB0}[[interface.ib0.peer]]\naddress = \"10.0.0.2\"\nmode = \"ud\"\n");
    assert_eq!(net.reload(&ud), ["ib0: peer 10.0.0.2 with mode ud"]);
    net.must_reach("10.0.0.2");
    assert_eq!(net.reload(IB0), ["ib0: peer 10.0.0.2 with the mode of the interface"]);
    net.must_reach("10.0.0.2");
    let drops = net.rows("drops");
    let ended = drops.iter().find(|row| row["interface"] == "ib0" && row["why"] == "policy");
    assert_eq!(ended.expect("it is counted")["count"], 1);
}

#[test]
fn a_file_with_errors_changes_nothing_and_a_dry_run_neither() {
    let net = Net::new("errors", IB0);
    net.must_reach("10.0.0.2");
    let before = net.connections_of_ib0();
    net.write(&IB0.replace("mode", "mood"));
    let (is_done, printed) = net.run(&["reload"]);
    assert!(!is_done && printed.contains("a.toml:3:1: unknown key `mood`"), "{printed}");
    assert!(printed.contains("did you mean `mode`"), "{printed}");
    net.write(&[IB0, &ib1("10.1.0.1/24", "")].concat());
    let (is_done, printed) = net.run(&["reload", "--dry-run"]);
    assert!(is_done && printed == "ib1: add, at soft:fabric.sock@host1\n", "{printed}");
    assert_eq!(net.rows("interfaces").len(), 1);
    assert_eq!(net.connections_of_ib0(), before);
    let cores = format!("[workers]\ncores = [0]\n{IB0}");
    assert_eq!(net.reload(&cores), ["workers: cores 0 with the next start"]);
}

#[test]
fn a_hangup_signal_reloads_a_node_without_a_terminal() {
    let net = Net::new("hangup-reload", IB0);
    net.must_reach("10.0.0.2");
    net.write(&[IB0, &ib1("10.1.0.1/24", "")].concat());
    let node = net._processes[1].0.id().to_string();
    assert!(Command::new("kill").args(["-HUP", &node]).status().expect("kill").success());
    net.must_reach("10.1.0.2");
}

#[test]
fn a_reload_that_is_not_confirmed_is_taken_back() {
    let net = Net::new("unconfirmed", IB0);
    net.must_reach("10.0.0.2");
    let before = net.connections_of_ib0();
    let both = [IB0, &ib1("10.1.0.1/24", "")].concat();
    net.write(&both);
    let (is_done, printed) = net.run(&["reload", "--timeout", "0.5"]);
    assert!(is_done && printed.contains("ib1: add"), "{printed}");
    assert!(printed.contains("run `pollux confirm --socket a.sock` within 0.5 s"), "{printed}");
    let begun = Instant::now();
    while net.rows("interfaces").len() == 2 {
        assert!(begun.elapsed() < TIMEOUT, "it is not taken back");
    }
    let (is_done, printed) = net.run(&["confirm"]);
    assert!(!is_done && printed.contains("no reload waits for confirmation"), "{printed}");
    // The file still has the changes. Confirmed, they stay.
    let (is_done, printed) = net.run(&["reload", "--timeout", "3600"]);
    assert!(is_done, "{printed}");
    let (is_done, printed) = net.run(&["reload"]);
    assert!(!is_done && printed.contains("not confirmed; run `pollux confirm`"), "{printed}");
    let (is_done, printed) = net.run(&["confirm"]);
    assert!(is_done && printed == "ib1: add, at soft:fabric.sock@host1\n", "{printed}");
    assert_eq!(net.rows("interfaces").len(), 2);
    // Taken back at once, by hand.
    net.write(IB0);
    assert!(net.run(&["reload", "--timeout", "3600"]).0);
    let (is_done, printed) = net.run(&["confirm", "--undo"]);
    assert!(is_done && printed == "ib1: add, at soft:fabric.sock@host1\n", "{printed}");
    assert_eq!(net.connections_of_ib0(), before, "its connection is another one");
}

/// There is no space for so many addresses.
#[test]
fn a_reload_of_which_a_change_fails_changes_nothing() {
    let net = Net::new("half-way", IB0);
    net.must_reach("10.0.0.2");
    let before = (net.connections_of_ib0(), net.rows("interfaces")[0]["addresses"].clone());
    let addresses: Vec<_> = (1..=70).map(|nth| format!("\"10.9.{nth}.1/24\"")).collect();
    let own = "address = [\"10.0.0.1/24\"";
    assert!(IB0.contains(own), "{IB0}");
    let many = IB0.replace(own, &format!("{own}, {}", addresses.join(", ")));
    net.write(&[&many, &ib1("10.1.0.1/24", "")[..]].concat());
    let (is_done, printed) = net.run(&["reload"]);
    assert!(
        !is_done && printed.contains(": no space for it; taken back: ib0: remove"),
        "{printed}"
    );
    let after = (net.connections_of_ib0(), net.rows("interfaces")[0]["addresses"].clone());
    assert_eq!(after, before);
    assert_eq!(net.rows("interfaces").len(), 1);
    net.write(IB0);
    assert_eq!(net.run(&["reload"]), (true, "nothing has changed\n".into()));
    net.must_reach("10.0.0.2");
}
