//! What an operator does in the first minutes, in any order: commands that are started together,
//! pipes that end, processes that are stopped, terminals that close.

use crate::running::{Ending, TIMEOUT, folder, output_of, pollux};
use serde_json::Value;
use std::fs::File;
use std::os::unix::net::UnixStream;
use std::path::PathBuf;
use std::process::{Child, Command, Output, Stdio};
use std::time::{Duration, Instant};

/// A folder in which commands run. What they name in it has no path.
struct Desk(PathBuf);

impl Desk {
    fn new(test: &str) -> Self {
        let folder = folder(test);
        std::fs::create_dir(&folder).expect("no other test has this folder");
        for (name, host) in [("a", 1), ("b", 2)] {
            let text = format!(
                "[interface.ib0]\ndevice = \"soft:fabric.sock@host{host}\"\n\
                 address = [\"10.0.0.{host}/24\"]\nmode = \"rc\"\n"
            );
            std::fs::write(folder.join(format!("{name}.toml")), text).expect("it is ours");
        }
        Self(folder)
    }

    fn command(&self, arguments: &[&str]) -> Command {
        let mut command = pollux(arguments);
        command.current_dir(&self.0).stdout(Stdio::piped()).stderr(Stdio::piped());
        command
    }

    /// Runs beside the test until that ends.
    fn start(&self, arguments: &[&str]) -> Ending {
        let mut command = pollux(arguments);
        command.current_dir(&self.0).stdout(Stdio::null()).stderr(Stdio::null());
        Ending(command.spawn().expect("it starts"))
    }

    fn node(&self, name: &str) -> Ending {
        self.start(&["run", &format!("{name}.toml"), "--socket", &format!("{name}.sock")])
    }

    fn fabric(&self) -> Ending {
        self.start(&["fabric", "--topology", "single:2", "--socket", "fabric.sock"])
    }

    /// Waits until a socket is there, or is not.
    fn until_socket(&self, socket: &str, is_there: bool) {
        let begun = Instant::now();
        while self.0.join(socket).exists() != is_there {
            assert!(begun.elapsed() < TIMEOUT, "{socket} is there: {}", !is_there);
            std::thread::yield_now();
        }
    }

    fn run(&self, arguments: &[&str]) -> (Option<i32>, String, String) {
        outcome(self.command(arguments).output().expect("it starts"))
    }

    /// The only interface of a node.
    fn interface(&self, name: &str) -> Value {
        let socket = format!("{name}.sock");
        let (code, rows, message) =
            self.run(&["show", "interfaces", "--json", "--socket", &socket]);
        assert_eq!(code, Some(0), "{message}");
        let mut rows: Value = serde_json::from_str(&rows).expect("it is JSON");
        assert_eq!(rows.as_array().map(Vec::len), Some(1), "{rows}");
        rows[0].take()
    }

    /// The same, once it is in this state and ends with this text: it may not be there yet.
    fn until(&self, name: &str, state: &str, why: &str) -> Value {
        let begun = Instant::now();
        loop {
            let row = self.interface(name);
            if row["state"] == state && row["why"].as_str().is_some_and(|it| it.ends_with(why)) {
                return row;
            }
            assert!(begun.elapsed() < TIMEOUT, "not {state}: {row}");
        }
    }
}

impl Drop for Desk {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

/// Its status, its standard output, and its standard error.
fn outcome(output: Output) -> (Option<i32>, String, String) {
    let text = |bytes: Vec<u8>| String::from_utf8_lossy(&bytes).into_owned();
    (output.status.code(), text(output.stdout), text(output.stderr))
}

fn signal(child: &Child, signal: &str) {
    let id = child.id().to_string();
    assert!(Command::new("kill").args([signal, &id]).status().expect("kill").success());
}

/// Waits until its only thread, or all of them, are stopped.
fn stop(child: &Child) {
    signal(child, "-STOP");
    let begun = Instant::now();
    let stat = format!("/proc/{}/stat", child.id());
    while !std::fs::read_to_string(&stat).expect("it is there").contains(") T ") {
        assert!(begun.elapsed() < TIMEOUT, "it does not stop");
    }
}

#[test]
fn lines_that_are_pasted_together_work_in_any_order() {
    let desk = Desk::new("pasted");
    // The shell starts all of it before any of it is ready.
    let script = "pollux fabric --topology fat-tree:4 --socket fabric.sock >/dev/null & F=$!\n\
        pollux run a.toml --socket a.sock >/dev/null & A=$!\n\
        pollux run b.toml --socket b.sock >/dev/null & B=$!\n\
        pollux ping 10.0.0.2 --size 60000 --count 3 --socket a.sock; RC=$?\n\
        pollux show connections --socket a.sock || RC=$?\n\
        pollux show ports --socket fabric.sock || RC=$?\n\
        kill $F $A $B; wait; exit $RC\n";
    let binary = PathBuf::from(env!("CARGO_BIN_EXE_pollux"));
    let path = format!(
        "{}:{}",
        binary.parent().expect("a folder").display(),
        std::env::var("PATH").unwrap_or_default()
    );
    let mut shell = Command::new("sh");
    shell.args(["-c", script]).env("PATH", path).current_dir(&desk.0);
    let (code, printed, message) = outcome(shell.output().expect("it starts"));
    assert_eq!(code, Some(0), "{printed}{message}");
    assert!(printed.contains("\n60008 bytes from 10.0.0.2: icmp_seq=1 "), "{printed}{message}");
    assert!(printed.contains(" RC    open "), "{printed}");
}

#[test]
fn a_node_waits_for_its_fabric_and_says_so() {
    let desk = Desk::new("waits");
    let nodes = [desk.node("a"), desk.node("b")];
    let missing = desk.until("a", "missing", "; retrying");
    assert_eq!(missing["waits_for"], "the device");
    let why = missing["why"].as_str().expect("a reason");
    assert!(why.contains("no fabric listens at fabric.sock"), "{why}");
    let (_, table, _) = desk.run(&["show", "interfaces", "--socket", "a.sock"]);
    let words = "start one with `pollux fabric --socket fabric.sock`; retrying";
    assert!(table.contains("ib0        missing") && table.contains(words), "{table}");
    // A command waits no longer than --wait, and prints the reason.
    let ping = ["ping", "10.0.0.2", "--count", "2", "--interval", "0.1", "--socket", "a.sock"];
    let (code, _, message) = desk.run(&[&ping[..], &["--wait", "0"]].concat());
    assert_eq!(code, Some(2));
    assert!(message.contains("ib0 is missing: soft:fabric.sock@host1"), "{message}");
    // A ping that began before the fabric succeeds once there is one.
    let begun = Instant::now();
    let waiting = desk.command(&ping).spawn().expect("it starts");
    std::thread::sleep(Duration::from_millis(300));
    let waited = begun.elapsed();
    let _fabric = desk.fabric();
    let (code, printed, message) = outcome(waiting.wait_with_output().expect("it ends"));
    let pinged = begun.elapsed() - waited;
    assert_eq!(code, Some(0), "{printed}{message}");
    assert!(printed.contains("2 packets transmitted"), "{printed}");
    // The time of the output begins with the first request, and not with the wait for the node.
    let time = printed.split_once(", time ").and_then(|(_, rest)| rest.split_once("ms"));
    let time = time.and_then(|(ms, _)| ms.parse().ok()).expect("a time");
    assert!(Duration::from_millis(time) <= pinged, "{printed}, but {pinged:?} since the wait");
    assert_eq!(desk.interface("a")["state"], "up");
    drop(nodes);
}

#[test]
fn a_command_waits_for_a_missing_socket_as_long_as_wait_says() {
    let desk = Desk::new("nobody");
    let (code, printed, message) =
        desk.run(&["show", "ports", "--socket", "fabric.sock", "--wait", "0.3"]);
    assert_eq!((code, &*printed), (Some(1), ""));
    assert!(message.contains("pollux: no node or fabric at fabric.sock yet; waiting"), "{message}");
    assert!(message.contains("start one with `pollux run FILE --socket fabric.sock`"), "{message}");
    let (code, _, message) = desk.run(&["show", "ports", "--socket", "fabric.sock", "--wait", "0"]);
    assert!(code == Some(1) && message.lines().count() == 1, "{message}");
    let (code, _, message) = desk.run(&["show", "ports", "--socket", "fabric.sock", "--wait=-1"]);
    assert!(code == Some(2) && message.contains("write a number such as 5 or 0.2"), "{message}");
}

#[test]
fn a_process_that_is_stopped_is_called_so() {
    let desk = Desk::new("called-stopped");
    let (node, fabric) = (desk.node("a"), desk.fabric());
    desk.interface("a");
    let question = |socket: &str| desk.run(&["show", "ports", "--socket", socket]);
    assert_eq!(question("fabric.sock").0, Some(0));
    for (child, socket) in [(&node.0, "a.sock"), (&fabric.0, "fabric.sock")] {
        stop(child);
        let (code, printed, message) = question(socket);
        assert_eq!((code, &*printed), (Some(1), ""));
        let id = child.id();
        let silent = format!(
            "pollux: the node or fabric at {socket} (process {id}) accepts requests, but has not \
             answered within "
        );
        assert!(message.starts_with(&silent), "{message}");
        assert!(message.ends_with(&format!("it is stopped; resume it with `kill -CONT {id}`\n")));
        signal(child, "-CONT");
    }
    assert_eq!(question("fabric.sock").0, Some(0), "it goes on");
}

#[test]
fn forty_pings_are_served_beside_silent_connections() {
    let desk = Desk::new("many");
    let (_fabric, _nodes) = (desk.fabric(), [desk.node("a"), desk.node("b")]);
    let ping = |to: &str| {
        desk.command(&["ping", to, "--count", "1", "--socket", "a.sock"])
            .spawn()
            .expect("it starts")
    };
    // Each is up after its own ping, whatever the state of the other.
    for (from, to) in [("b.sock", "10.0.0.1"), ("a.sock", "10.0.0.2")] {
        desk.run(&["ping", to, "--count", "1", "--socket", from]);
    }
    let _silent: Vec<_> =
        (0..16).map(|_| UnixStream::connect(desk.0.join("a.sock")).expect("it listens")).collect();
    let all: Vec<_> = (101..=140).map(|host| ping(&format!("10.0.0.{host}"))).collect();
    let (code, printed, message) =
        desk.run(&["ping", "10.0.0.2", "--count", "1", "--socket", "a.sock"]);
    assert_eq!(code, Some(0), "{printed}{message}");
    assert_eq!(desk.interface("a")["state"], "up");
    for one in all {
        let (code, printed, message) = outcome(one.wait_with_output().expect("it ends"));
        assert_eq!((code, &*message), (Some(1), ""), "{printed}");
        assert!(printed.contains("1 packets transmitted, 0 received"), "{printed}");
    }
}

#[test]
fn a_closed_pipe_ends_a_command_quietly_and_a_full_disk_with_an_error() {
    let desk = Desk::new("pipes");
    let _fabric = desk.fabric();
    assert_eq!(desk.run(&["fault", "add", "loss=1ppm", "--socket", "fabric.sock"]).1, "1\n");
    for question in [&["show", "ports"][..], &["show", "nodes", "--json"], &["fault", "list"]] {
        let question = [question, &["--socket", "fabric.sock"]].concat();
        let (reader, writer) = std::io::pipe().expect("a pipe");
        drop(reader);
        let mut command = desk.command(&question);
        let (code, _, message) = outcome(command.stdout(writer).output().expect("it starts"));
        assert_eq!((code, &*message), (Some(141), ""), "{question:?}");
        let full = File::options().write(true).open("/dev/full").expect("it is there");
        let (code, _, message) =
            outcome(desk.command(&question).stdout(full).output().expect("it starts"));
        let no_space =
            "pollux: cannot write to standard output: No space left on device (os error 28)\n";
        assert_eq!((code, &*message), (Some(1), no_space), "{question:?}");
    }
}

#[test]
fn a_terminal_that_closes_ends_a_node_and_a_fabric_as_they_end_otherwise() {
    let desk = Desk::new("hangup");
    let commands = [
        ("a.sock", "run a.toml --socket a.sock"),
        ("fabric.sock", "fabric --topology single:2 --socket fabric.sock"),
    ];
    for (socket, command) in commands {
        // It gives the command a terminal of its own, which closes with it.
        let mut script = Command::new("script");
        let command = format!("{} {command}", env!("CARGO_BIN_EXE_pollux"));
        script.args(["--quiet", "--command", &command, "/dev/null"]).current_dir(&desk.0);
        let script = script.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
        let terminal = Ending(script.spawn().expect("it starts"));
        desk.until_socket(socket, true);
        drop(terminal);
        desk.until_socket(socket, false);
    }
}

#[test]
fn a_process_that_is_to_outlive_its_terminal_does() {
    let desk = Desk::new("nohup");
    let mut nohup = Command::new("nohup");
    nohup.arg(env!("CARGO_BIN_EXE_pollux")).args(["run", "a.toml", "--socket", "a.sock"]);
    let quiet = nohup.current_dir(&desk.0).stdin(Stdio::null()).stdout(Stdio::null());
    let node = Ending(quiet.stderr(Stdio::null()).spawn().expect("it starts"));
    desk.interface("a");
    signal(&node.0, "-HUP");
    desk.until("a", "missing", "; retrying");
}

/// A dump of a cluster in which two hosts have one name, and one is connected by its second port.
const DUMP: &str = "\
switchguid=0x10
Switch 3 \"S-10\" # \"core\" base port 0 lid 1 lmc 0
[1] \"H-20\"[1] # \"one\" lid 2 4xQDR
[2] \"H-30\"[1] # \"one\" lid 3 4xQDR
[3] \"H-40\"[2] # \"two\" lid 4 4xQDR

caguid=0x20
Ca 1 \"H-20\" # \"one\"
[1](21) \"S-10\"[1] # lid 2 lmc 0 \"core\" lid 1 4xQDR

caguid=0x30
Ca 1 \"H-30\" # \"one\"
[1](31) \"S-10\"[2] # lid 3 lmc 0 \"core\" lid 1 4xQDR

caguid=0x40
Ca 2 \"H-40\" # \"two\"
[2](42) \"S-10\"[3] # lid 4 lmc 0 \"core\" lid 1 4xQDR
";

#[test]
fn a_name_of_two_nodes_is_ambiguous_and_a_port_without_a_cable_is_passed_over() {
    let desk = Desk::new("names");
    std::fs::write(desk.0.join("dump"), DUMP).expect("it is ours");
    let _fabric = desk.start(&["fabric", "--topology", "dump", "--socket", "fabric.sock"]);
    let configure = |name: &str, host: &str| {
        let file = desk.0.join(format!("{name}.toml"));
        let text = std::fs::read_to_string(&file).expect("it is ours");
        std::fs::write(file, text.replace("@host1", host).replace("@host2", host)).expect("ours");
    };
    configure("b", "@one");
    let node = desk.node("b");
    let why = "2 nodes are called 'one'; write the GUID of one in its place: \
               0x0000000000000020, 0x0000000000000030; retrying";
    desk.until("b", "missing", why);
    drop(node);
    configure("a", "@0x30");
    std::fs::copy(desk.0.join("a.toml"), desk.0.join("b.toml")).expect("it is ours");
    let text = std::fs::read_to_string(desk.0.join("b.toml")).expect("it is ours");
    let text = text.replace("@0x30", "@two").replace("10.0.0.1/", "10.0.0.2/");
    std::fs::write(desk.0.join("b.toml"), text).expect("it is ours");
    let _nodes = [desk.node("a"), desk.node("b")];
    for (from, to) in [("a.sock", "10.0.0.2"), ("b.sock", "10.0.0.1")] {
        let (code, printed, message) =
            desk.run(&["ping", to, "--count", "10", "--interval", "0.1", "--socket", from]);
        assert_eq!(code, Some(0), "{printed}{message}");
    }
}

#[test]
fn a_count_of_nothing_is_refused() {
    let ping = ["ping", "10.0.0.2", "--socket", "x"];
    for (option, value) in [("--count", "0"), ("--interval", "-1"), ("--interval", "NaN")] {
        let (is_ok, message) = output_of(&[&ping[..], &[&format!("{option}={value}")]].concat());
        assert!(
            !is_ok && message.contains(&format!("invalid value '{value}' for '{option}")),
            "{message}"
        );
    }
}

/// Whatever the machine has, and whatever this build can do with it.
#[test]
fn the_doctor_has_a_remedy_for_what_is_not_good() {
    let doctor = |arguments: &[&str]| {
        let output = pollux(arguments).output().expect("it starts");
        (output.status.code(), String::from_utf8(output.stdout).expect("it is text"))
    };
    let (code, text) = doctor(&["doctor"]);
    assert!(text.lines().any(|line| line.contains(" memlock: ")), "{text}");
    let (other_code, findings) = doctor(&["doctor", "--json"]);
    let findings: Value = serde_json::from_str(&findings).expect("it is JSON");
    let findings = findings.as_array().expect("a list");
    assert_eq!((findings.len(), other_code), (text.lines().count(), code), "{findings:?}");
    for finding in findings {
        let is_good = finding["verdict"] == "good";
        assert_eq!(finding["remedy"] == "", is_good, "{finding}");
    }
    let stops = findings.iter().any(|finding| finding["verdict"] == "bad");
    assert_eq!(code, Some(i32::from(stops)), "{text}");
}
