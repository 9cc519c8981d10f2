//! A network namespace for a test: its thread moves there, and commands it starts are in it too.

use rustix::thread::{LinkNameSpaceType, move_into_link_name_space};
use serde_json::Value;
use std::fs::File;
use std::io::Write;
use std::os::fd::AsFd;
use std::process::{Command, Output, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};

/// A namespace that is gone when dropped.
#[derive(Debug)]
pub struct Namespace {
    name: String,
}

impl Namespace {
    /// Makes one and moves the calling thread into it. `None`, with a printed reason, where `test`
    /// may not.
    ///
    /// # Panics
    /// If it cannot be made although `POLLUX_REFEREES` is `required`.
    pub fn enter(test: &str) -> Option<Self> {
        let namespace = Self::make(test)?;
        namespace.join();
        Some(namespace)
    }

    /// Makes one; the calling thread stays where it is.
    ///
    /// # Panics
    /// If it cannot be made although `POLLUX_REFEREES` is `required`.
    pub fn make(test: &str) -> Option<Self> {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        pollux_referee::program_of(test, "ip", "--vm")?;
        let next = NEXT.fetch_add(1, Ordering::Relaxed);
        let name = format!("pollux-{}-{next}", std::process::id());
        let made = Command::new("ip").args(["netns", "add", &name]).output().expect("ip runs");
        if !made.status.success() {
            pollux_referee::skip(test, "network namespaces need root");
            return None;
        }
        let namespace = Self { name };
        namespace.ip("link set lo up");
        Some(namespace)
    }

    /// Moves the calling thread into it.
    pub fn join(&self) {
        let file = File::open(format!("/run/netns/{}", self.name)).expect("it was made");
        move_into_link_name_space(file.as_fd(), Some(LinkNameSpaceType::Network))
            .expect("root may move");
    }

    /// Its name, which no other has.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// A command that runs in it, whichever thread starts it.
    pub fn command(&self, program: &str) -> Command {
        let mut command = Command::new("ip");
        command.args(["netns", "exec", &self.name, program]);
        command
    }

    /// Writes a setting of the kernel, such as `net/ipv4/nexthop_compat_mode`.
    pub fn set(&self, setting: &str, value: &str) {
        let write = format!("echo {value} > /proc/sys/{setting}");
        let done = self.command("sh").args(["-c", &write]).status().expect("sh runs");
        assert!(done.success(), "{write}");
    }

    /// Notifications of netlink for which receive buffers had no space (`Drops`), so far.
    pub fn lost_notifications(&self) -> u64 {
        let output = self.command("cat").arg("/proc/net/netlink").output().expect("cat runs");
        let table = String::from_utf8_lossy(&output.stdout).into_owned();
        let mut lines = table.lines().map(str::split_whitespace);
        let titles = lines.next().expect("a line of titles");
        let drops = titles.into_iter().position(|title| title == "Drops").expect("a column");
        lines.filter_map(|mut line| line.nth(drops)?.parse::<u64>().ok()).sum()
    }

    /// Runs `ip -batch` with these lines, which must succeed.
    pub fn batch(&self, lines: &str) {
        let mut ip = Command::new("ip");
        let ip = ip.args(["-n", &self.name, "-batch", "-"]).stdin(Stdio::piped());
        let mut ip = ip.spawn().expect("ip runs");
        let mut stdin = ip.stdin.take().expect("a pipe");
        stdin.write_all(lines.as_bytes()).expect("ip reads");
        drop(stdin);
        assert!(ip.wait().expect("ip ends").success());
    }

    /// Runs `ip` with `arguments`, which must succeed.
    pub fn ip(&self, arguments: &str) {
        let output = self.run(arguments);
        let error = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "ip {arguments}: {error}");
    }

    /// Runs `ip -j` with `arguments`; gives what it printed.
    pub fn json(&self, arguments: &str) -> Vec<Value> {
        let output = self.run(&format!("-j {arguments}"));
        let text = String::from_utf8_lossy(&output.stdout);
        if text.trim().is_empty() {
            return Vec::new();
        }
        serde_json::from_str(&text).unwrap_or_else(|error| panic!("{error}: {text}"))
    }

    fn run(&self, arguments: &str) -> Output {
        let arguments = arguments.split_whitespace();
        Command::new("ip").args(["-n", &self.name]).args(arguments).output().expect("ip runs")
    }
}

impl Drop for Namespace {
    fn drop(&mut self) {
        let _ = Command::new("ip").args(["netns", "del", &self.name]).status();
    }
}
