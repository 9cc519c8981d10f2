//! Programs of others: a guest that runs Linux, at the wire of a fabric
//! (`scripts/linux-peer`), and OpenSM at one of its hosts.

use crate::fabric::Running;
use serde_json::{Value, json};
use std::io::{BufRead, BufReader, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};

/// A running guest. It ends when this does.
pub struct Guest {
    child: Child,
    asked: ChildStdin,
    output: BufReader<ChildStdout>,
}

/// The folder of the workspace, whose crates are at several depths.
fn top() -> &'static Path {
    let mut above = Path::new(env!("CARGO_MANIFEST_DIR")).ancestors();
    above.find(|folder| folder.join("scripts/linux-peer").is_dir()).expect("it has one")
}

/// Where `scripts/linux-peer/build` has put what a guest is made of.
#[expect(clippy::disallowed_methods, reason = "where that is, the environment says")]
fn is_built() -> bool {
    let target = std::env::var_os("CARGO_TARGET_DIR").map_or(top().join("target"), PathBuf::from);
    let cache = std::env::var_os("LINUX_PEER_CACHE");
    cache.map_or(target.join("linux-peer"), PathBuf::from).join("ready").exists()
}

#[expect(clippy::disallowed_methods, reason = "whether there is an excuse, the environment says")]
fn is_required() -> bool {
    std::env::var_os("POLLUX_REFEREES").is_some_and(|value| value == "required")
}

impl Guest {
    /// Starts one; `None` with a printed reason, if `test` is skipped.
    pub fn start(test: &str, wire: &Path) -> Option<Self> {
        Self::with(test, wire, 1, "")
    }

    /// The same with a number, which makes its GUID, and parameters of its adapter.
    pub fn with(test: &str, wire: &Path, number: u32, params: &str) -> Option<Self> {
        for needed in ["qemu-system-x86_64", "python3"] {
            pollux_referee::program_of(test, needed, "--vm")?;
        }
        if !is_built() {
            assert!(!is_required(), "{test} needs a guest; run scripts/linux-peer/build");
            println!("SKIP {test}: there is no guest (scripts/linux-peer/build makes one)");
            return None;
        }
        let mut child = Command::new("python3")
            .arg(top().join("scripts/linux-peer/linux_peer.py"))
            .args(["serve", "--number", &number.to_string(), "--params", params, "--wire"])
            .arg(wire)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .expect("it starts");
        let asked = child.stdin.take().expect("it is piped");
        let output = BufReader::new(child.stdout.take().expect("it is piped"));
        let mut guest = Self { child, asked, output };
        assert_eq!(guest.answer(), (0, "ready".into()));
        Some(guest)
    }

    /// Begins a command, whose end [`Guest::answer`] reports.
    pub fn begin(&mut self, command: &str) {
        let question = json!({ "run": command, "timeout": 60 });
        writeln!(self.asked, "{question}").expect("it listens");
    }

    /// Begins to pull its cable, or to plug it in; [`Guest::answer`] reports the end of that, too.
    pub fn begin_cable(&mut self, is_in: bool) {
        writeln!(self.asked, "{}", json!({ "link": is_in })).expect("it listens");
    }

    /// Ends it at once. The script ends the machine with itself.
    pub fn kill(&mut self) {
        if self.child.try_wait().is_ok_and(|ended| ended.is_some()) {
            return;
        }
        let id = self.child.id().to_string();
        let _ = Command::new("kill").arg(id).status();
        let _ = self.child.wait();
    }

    /// The status and the output of a command.
    pub fn answer(&mut self) -> (i64, String) {
        let mut line = String::new();
        self.output.read_line(&mut line).expect("it answers");
        let answer: Value = serde_json::from_str(&line).expect("it speaks JSON");
        let output = answer["output"].as_str().unwrap_or_default();
        (answer["status"].as_i64().expect("a number"), output.into())
    }
}

impl Drop for Guest {
    fn drop(&mut self) {
        self.kill();
    }
}

/// OpenSM at the last host of a fabric. It ends when this does.
pub struct Opensm(Child);

impl Opensm {
    /// Starts it; `None` with a printed reason, if `test` is skipped.
    pub fn start(test: &str, fabric: &Running) -> Option<Self> {
        let opensm = pollux_referee::program(test, "opensm")?;
        let folders = std::fs::read_dir("/usr/lib").ok()?.flatten();
        let libraries = folders.map(|folder| folder.path().join("umad2sim/libumad2sim.so"));
        let Some(library) = libraries.into_iter().find(|path| path.is_file()) else {
            assert!(!is_required(), "{test} needs libumad2sim.so; run scripts/host-setup");
            println!("SKIP {test}: no libumad2sim.so (scripts/host-setup --referees)");
            return None;
        };
        let child = Command::new(opensm)
            .args(["-e", "-f", "osm.log", "-d", "2", "-s", "1", "-t", "2000"])
            .current_dir(&fabric.folder)
            .env("LD_PRELOAD", library)
            .env("IBSIM_SOCKNAME", fabric.umad())
            .env("SIM_HOST", "host2")
            .env("OSM_TMP_DIR", ".")
            .env("OSM_CACHE_DIR", ".")
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn();
        Some(Self(child.expect("OpenSM starts")))
    }
}

impl Drop for Opensm {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}
