//! Fabrics that run as processes of their own, and OpenSM at them.

use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::time::{Duration, Instant};

/// The timeout of each step, ten times what a step takes.
pub const TIMEOUT: Duration = Duration::from_secs(30);

/// The command. The test may itself run below nohup, and a program that inherits that would ignore
/// SIGHUP.
pub fn pollux(arguments: &[&str]) -> Command {
    let mut command = Command::new("env");
    command.args(["--default-signal=HUP", env!("CARGO_BIN_EXE_pollux")]);
    command.args(arguments).stdin(Stdio::null());
    command
}

/// Whether the command succeeded, and its output.
pub fn output_of(arguments: &[&str]) -> (bool, String) {
    let Output { status, stdout, stderr } = pollux(arguments).output().expect("it starts");
    (status.success(), String::from_utf8_lossy(&[stdout, stderr].concat()).into())
}

pub fn folder(test: &str) -> PathBuf {
    std::env::temp_dir().join(format!("pollux-{}-{test}", std::process::id()))
}

/// A fabric that runs, in a folder of its own.
pub struct Running {
    child: Child,
    pub folder: PathBuf,
    arguments: Vec<String>,
}

impl Running {
    /// One that waits for OpenSM.
    pub fn unmanaged(test: &str, arguments: &[&str]) -> Self {
        Self::new(test, &[&["--sm", "none"], arguments].concat())
    }

    pub fn new(test: &str, arguments: &[&str]) -> Self {
        let folder = folder(test);
        std::fs::create_dir_all(&folder).expect("a folder");
        let arguments: Vec<_> = arguments.iter().map(|&argument| argument.to_owned()).collect();
        Self { child: start(&folder, &arguments), folder, arguments }
    }

    /// Kills it, and starts another one like it.
    pub fn replace(&mut self) {
        self.replace_after(Duration::ZERO);
    }

    /// The same, with so long an outage between the two.
    pub fn replace_after(&mut self, outage: Duration) {
        self.child.kill().expect("it is ours");
        self.child.wait().expect("it is ours");
        std::thread::sleep(outage);
        self.child = start(&self.folder, &self.arguments);
    }

    /// The name of a host's port.
    pub fn port(&self, host: u32) -> String {
        format!("soft:{}@host{host}", self.path("socket"))
    }

    /// OpenSM at a host of a fabric that programs know by this name.
    pub fn opensm(&self, preload: &Path, name: &str, host: &str, arguments: &[&str]) -> Ending {
        let opensm = Command::new("/usr/sbin/opensm")
            .args(["-e", "-f", "osm.log", "-d", "2", "-s", "1", "-t", "2000"])
            .args(arguments)
            .current_dir(&self.folder)
            .env("LD_PRELOAD", preload)
            .env("IBSIM_SOCKNAME", name)
            .env("SIM_HOST", host)
            .env("OSM_TMP_DIR", ".")
            .env("OSM_CACHE_DIR", ".")
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn();
        Ending(opensm.expect("OpenSM starts"))
    }

    pub fn path(&self, name: &str) -> String {
        self.folder.join(name).display().to_string()
    }

    pub fn ask(&self, question: &[&str]) -> (bool, String) {
        output_of(&[question, &["--socket", &self.path("socket")]].concat())
    }

    /// Asks until the answer has this text.
    pub fn until(&self, question: &[&str], words: &str) -> String {
        self.until_it(question, words, |answer| answer.contains(words))
    }

    /// Asks until the answer meets a condition.
    pub fn until_it(&self, question: &[&str], what: &str, is: impl Fn(&str) -> bool) -> String {
        let start = Instant::now();
        loop {
            let (is_ok, answer) = self.ask(question);
            assert!(is_ok, "{answer}");
            if is(&answer) {
                return answer;
            }
            assert!(start.elapsed() < TIMEOUT, "no {what} in {answer}");
            std::thread::sleep(Duration::from_millis(50));
        }
    }

    pub fn signal(&self, signal: &str) {
        let id = self.child.id().to_string();
        assert!(Command::new("kill").args([signal, &id]).status().expect("kill").success());
    }

    /// Ends it as a user does.
    pub fn end(mut self, signal: &str) {
        self.signal(signal);
        let start = Instant::now();
        let status = loop {
            if let Some(status) = self.child.try_wait().expect("it is ours") {
                break status;
            }
            assert!(start.elapsed() < TIMEOUT, "it does not end");
            std::thread::sleep(Duration::from_millis(20));
        };
        assert!(status.success(), "{status}");
        assert!(!self.folder.join("socket").exists(), "it takes its socket away");
    }
}

/// Starts a fabric in a folder, and waits until it says so.
fn start(folder: &Path, arguments: &[String]) -> Child {
    let mut child = pollux(&["fabric", "--socket", "socket"])
        .args(arguments)
        .current_dir(folder)
        .stdout(Stdio::piped())
        .spawn()
        .expect("it starts");
    let mut line = String::new();
    let stdout = child.stdout.as_mut().expect("it is piped");
    BufReader::new(stdout).read_line(&mut line).expect("a line");
    assert!(line.starts_with("fabric "), "{line}");
    child
}

impl Drop for Running {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
        let _ = std::fs::remove_dir_all(&self.folder);
    }
}

/// A program that ends with its test.
pub struct Ending(pub Child);

impl Drop for Ending {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// The library that programs are run with; `None` with a printed reason, if `test` is skipped.
pub fn preload(test: &str) -> Option<PathBuf> {
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
