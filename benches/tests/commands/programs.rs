//! The command, and what it runs beside.

use serde_json::Value;
use std::fs;
use std::io::{BufRead, BufReader};
use std::path::PathBuf;
use std::process::{Child, ChildStderr, Command, Output, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

pub const PERF: &str = env!("CARGO_BIN_EXE_pollux-perf");

/// Of the tests of this process, one that has this runs alone among those that ask for it: their
/// figures depend on who has the cores.
pub fn alone() -> MutexGuard<'static, ()> {
    static ALONE: Mutex<()> = Mutex::new(());
    ALONE.lock().unwrap_or_else(PoisonError::into_inner)
}

/// A folder that is gone when dropped.
pub struct Folder(pub PathBuf);

impl Folder {
    pub fn new() -> Self {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        let next = NEXT.fetch_add(1, Ordering::Relaxed);
        let name = format!("pollux-perf-{}-{next}", std::process::id());
        let path = std::env::temp_dir().join(name);
        fs::create_dir_all(&path).expect("a folder");
        Self(path)
    }

    pub fn path(&self, name: &str) -> String {
        self.0.join(name).display().to_string()
    }

    /// Writes a file; returns its path.
    pub fn write(&self, name: &str, text: &str) -> String {
        fs::write(self.path(name), text).expect("it is written");
        self.path(name)
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

/// What the command prints; it has to succeed.
pub fn perf(arguments: &[&str]) -> String {
    printed(&Command::new(PERF).args(arguments).output().expect("it runs"))
}

pub fn printed(output: &Output) -> String {
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout.clone()).expect("it is text")
}

/// `pollux-perf serve` on core 0, at a free port.
pub struct Server {
    process: Child,
    pub at: String,
    pub said: BufReader<ChildStderr>,
}

impl Server {
    pub fn start(arguments: &[&str]) -> Self {
        Self::run(Command::new(PERF), "127.0.0.1", arguments)
    }

    /// By a command that runs it elsewhere, at an address of that place.
    pub fn run(mut command: Command, address: &str, arguments: &[&str]) -> Self {
        let listen = format!("{address}:0");
        command.args(["serve", "--listen", &listen, "--core", "0"]).args(arguments);
        let mut process = command.stderr(Stdio::piped()).spawn().expect("it starts");
        let mut said = BufReader::new(process.stderr.take().expect("it is piped"));
        let mut line = String::new();
        said.read_line(&mut line).expect("it says where it listens");
        let at = line.split_once("serves clients at ").and_then(|(_, at)| at.split_once(": "));
        let at = at.unwrap_or_else(|| panic!("{line}")).0.to_string();
        Self { process, at, said }
    }

    pub fn measure(&self, arguments: &str) -> Result<Value, String> {
        let mut command = Command::new(PERF);
        command.args(arguments.split(' ')).args(["--connect", &self.at]);
        command.args(["--cores", "0,0", "--duration", "0.05", "--rounds", "1", "--json"]);
        let output = command.output().expect("it runs");
        match output.status.success() {
            true => Ok(serde_json::from_slice(&output.stdout).expect("it is JSON")),
            false => Err(String::from_utf8_lossy(&output.stderr).into_owned()),
        }
    }
}

impl Drop for Server {
    /// A command that runs it elsewhere passes this on.
    fn drop(&mut self) {
        let _ = Command::new("kill").arg(self.process.id().to_string()).status();
        let _ = self.process.wait();
    }
}
