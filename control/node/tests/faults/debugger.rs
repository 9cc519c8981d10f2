//! A debugger that stops one thread of this process, as `gdb` does, and lets the others run.
//!
//! Why a program of its own: a process cannot trace itself.

use std::io::{BufRead, BufReader};
use std::process::{Child, Command, Stdio};

/// Seizes the thread (ptrace(2): `PTRACE_SEIZE`, `PTRACE_INTERRUPT`), waits until it stands
/// (waitpid with `__WALL`), says so, and lets it go when its input ends.
const PROGRAM: &str = "\
    ($call, $thread) = @ARGV; $call += 0; $thread += 0; $| = 1; \
    if (syscall($call, 0x4206, $thread, 0, 0) < 0) { print \"refused: $!\\n\"; exit } \
    syscall($call, 0x4207, $thread, 0, 0); \
    waitpid($thread, 0x40000000); print \"stopped\\n\"; \
    <STDIN>";

/// A thread that stands until this is dropped.
pub struct Stopped(Child);

/// The number of the system call.
const fn ptrace() -> &'static str {
    if cfg!(target_arch = "x86_64") { "101" } else { "117" }
}

#[expect(clippy::disallowed_methods, reason = "a test is told what has to be there")]
fn is_required() -> bool {
    std::env::var_os("POLLUX_REFEREES").is_some_and(|value| value == "required")
}

/// Stops the only thread of this name. `None`, with a printed reason, if the system allows no
/// process to trace this one.
pub fn stop(test: &str, name: &str) -> Option<Stopped> {
    let thread = thread(name);
    let mut debugger = Command::new("perl")
        .args(["-e", PROGRAM, ptrace(), &thread])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .expect("perl is there");
    let mut message = String::new();
    let stdout = debugger.stdout.take().expect("it is piped");
    BufReader::new(stdout).read_line(&mut message).expect("it says something");
    let stopped = Stopped(debugger);
    if message == "stopped\n" {
        return Some(stopped);
    }
    assert!(!is_required(), "{test} needs ptrace(2): {message}");
    println!("SKIP {test}: no process may trace this one: {message}");
    None
}

fn thread(name: &str) -> String {
    let tasks = std::fs::read_dir("/proc/self/task").expect("it is there").flatten();
    let named = tasks.filter(|task| {
        let message = std::fs::read_to_string(task.path().join("comm")).unwrap_or_default();
        message.trim_end() == name
    });
    let threads: Vec<_> = named.map(|task| task.file_name()).collect();
    let [thread] = &threads[..] else { panic!("{} threads are called {name}", threads.len()) };
    thread.to_string_lossy().into_owned()
}

impl Drop for Stopped {
    fn drop(&mut self) {
        drop(self.0.stdin.take());
        let _ = self.0.wait();
    }
}
