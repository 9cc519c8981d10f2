//! The command as its users meet it: `pollux fabric` runs, answers, and ends when it is told to.

#![expect(clippy::disallowed_methods, reason = "programs take their time, and tests wait for them")]

use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::time::{Duration, Instant};

/// How long anything may take here. Nothing takes a tenth of it.
const PATIENCE: Duration = Duration::from_secs(30);

fn pollux(arguments: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_pollux"));
    command.args(arguments).stdin(Stdio::null());
    command
}

/// What the command says, and whether it was content.
fn said(arguments: &[&str]) -> (bool, String) {
    let Output { status, stdout, stderr } = pollux(arguments).output().expect("it starts");
    (status.success(), String::from_utf8_lossy(&[stdout, stderr].concat()).into())
}

fn folder(test: &str) -> PathBuf {
    std::env::temp_dir().join(format!("pollux-{}-{test}", std::process::id()))
}

/// A wire whose socket is in the folder of a test.
fn plug(test: &str) -> String {
    format!("switch1:9=stream:{}", folder(test).join("wire").display())
}

/// A fabric that runs, in a folder of its own.
struct Running {
    child: Child,
    folder: PathBuf,
}

impl Running {
    /// One that waits for OpenSM.
    fn unmanaged(test: &str, arguments: &[&str]) -> Self {
        Self::new(test, &[&["--sm", "none"], arguments].concat())
    }

    fn new(test: &str, arguments: &[&str]) -> Self {
        let folder = folder(test);
        std::fs::create_dir_all(&folder).expect("a folder");
        let mut child = pollux(&["fabric", "--socket", "socket"])
            .args(arguments)
            .current_dir(&folder)
            .stdout(Stdio::piped())
            .spawn()
            .expect("it starts");
        let mut line = String::new();
        let stdout = child.stdout.as_mut().expect("it is piped");
        BufReader::new(stdout).read_line(&mut line).expect("a line");
        assert!(line.starts_with("fabric "), "{line}");
        Self { child, folder }
    }

    fn path(&self, name: &str) -> String {
        self.folder.join(name).display().to_string()
    }

    fn ask(&self, question: &[&str]) -> (bool, String) {
        said(&[question, &["--socket", &self.path("socket")]].concat())
    }

    /// Asks until the answer has these words.
    fn until(&self, question: &[&str], words: &str) -> String {
        let start = Instant::now();
        loop {
            let (is_ok, answer) = self.ask(question);
            assert!(is_ok, "{answer}");
            if answer.contains(words) {
                return answer;
            }
            assert!(start.elapsed() < PATIENCE, "no {words} in {answer}");
            std::thread::sleep(Duration::from_millis(50));
        }
    }

    /// Ends it as a user does.
    fn end(mut self, signal: &str) {
        let id = self.child.id().to_string();
        assert!(Command::new("kill").args([signal, &id]).status().expect("kill").success());
        let start = Instant::now();
        let status = loop {
            if let Some(status) = self.child.try_wait().expect("it is ours") {
                break status;
            }
            assert!(start.elapsed() < PATIENCE, "it does not end");
            std::thread::sleep(Duration::from_millis(20));
        };
        assert!(status.success(), "{status}");
        assert!(!self.folder.join("socket").exists(), "it takes its socket away");
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
        let _ = std::fs::remove_dir_all(&self.folder);
    }
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
    let all = fabric.until(&["show", "ports", "--json"], "ACTIVE");
    assert!(!all.contains("INITIALIZE") && !all.contains("ARMED"), "{all}");
    let (_, groups) = fabric.ask(&["show", "groups"]);
    assert!(groups.lines().count() == 1, "nobody has joined: {groups}");

    let plug = plug("managed-near");
    let near = Running::new("managed-near", &["--wire", &plug]);
    let far = Running::unmanaged("managed-far", &["--wire", &plug, "--seed", "2"]);
    let start = Instant::now();
    while far.ask(&["show", "ports", "--json"]).1.matches("ACTIVE").count() < 8 {
        assert!(start.elapsed() < PATIENCE, "{:?}", far.ask(&["show", "ports"]));
        std::thread::sleep(Duration::from_millis(100));
    }
    near.until(&["show", "ports", "--json"], "wire (up)");
}

#[test]
fn partitions_come_from_a_file() {
    let folder = folder("partitions-file");
    std::fs::create_dir_all(&folder).expect("a folder");
    let file = folder.join("partitions.conf");
    std::fs::write(&file, "Default=0x7fff, ipoib: ALL=full;\nblue=0x12: ALL;\nred=0x99999: ALL;\n")
        .expect("a file");
    let (is_ok, said) = said(&["fabric", "--partitions", &file.display().to_string()]);
    assert!(!is_ok && said.contains("partitions.conf:3") && said.contains("0x99999"), "{said}");
    let _ = std::fs::remove_dir_all(&folder);
}

#[test]
fn faults_come_and_go() {
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
fn two_fabrics_are_joined_by_a_wire_that_comes_again() {
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

/// The library that programs are run with; `None` after having said that `test` is skipped.
fn preload(test: &str) -> Option<PathBuf> {
    let folders = std::fs::read_dir("/usr/lib").ok()?.flatten();
    let paths = folders.map(|folder| folder.path().join("umad2sim/libumad2sim.so"));
    let opensm = Path::new("/usr/sbin/opensm");
    let found = paths.into_iter().find(|path| path.is_file()).filter(|_| opensm.is_file());
    if found.is_none() {
        let required = std::env::var_os("POLLUX_REFEREES");
        let is_required = required.is_some_and(|value| value == "required");
        assert!(!is_required, "{test} needs OpenSM and libumad2sim.so; run scripts/host-setup");
        println!("SKIP {test}: no OpenSM or no libumad2sim.so (scripts/host-setup --referees)");
    }
    found
}

/// OpenSM at a host of one fabric manages the nodes of another one, which it knows by a wire only.
// req: iba-subnet-management
#[test]
fn opensm_manages_nodes_behind_a_wire() {
    let Some(preload) = preload("opensm_manages_nodes_behind_a_wire") else { return };
    let plug = plug("managing");
    let name = format!("pollux-{}-managed", std::process::id());
    let one = Running::unmanaged("managing", &["--wire", &plug, "--umad", &name]);
    let other = Running::unmanaged("managed", &["--wire", &plug, "--seed", "2"]);
    let opensm = Command::new("/usr/sbin/opensm")
        .args(["-e", "-f", "osm.log", "-d", "2", "-s", "1"])
        .current_dir(&one.folder)
        .env("LD_PRELOAD", preload)
        .env("IBSIM_SOCKNAME", name)
        .env("SIM_HOST", "host1")
        .env("OSM_TMP_DIR", ".")
        .env("OSM_CACHE_DIR", ".")
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn();
    let _opensm = Ending(opensm.expect("OpenSM starts"));
    let states = |fabric: &Running| fabric.ask(&["show", "ports", "--json"]).1;
    let start = Instant::now();
    while [&one, &other].iter().any(|fabric| states(fabric).matches("ACTIVE").count() < 8) {
        assert!(start.elapsed() < PATIENCE, "{}\n{}", states(&one), states(&other));
        std::thread::sleep(Duration::from_millis(100));
    }
}

/// A program that ends with its test.
struct Ending(Child);

impl Drop for Ending {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
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
        (&["--sm", "none", "--partitions", "x"], "--sm embedded"),
        (&["--partitions", "/nonexistent"], "partitions /nonexistent cannot be read"),
        (&["--capture", "/nonexistent/file"], "capture /nonexistent/file"),
        (&["--sockets", "x"], "--socket"),
    ] {
        let (is_ok, said) = said(&[&["fabric"], arguments].concat());
        assert!(!is_ok && said.contains(advice), "{arguments:?}: {said}");
    }
    let (is_ok, said) = said(&["show", "nodes", "--socket", "/nonexistent"]);
    assert!(!is_ok && said.contains("start one with --socket"), "{said}");
}
