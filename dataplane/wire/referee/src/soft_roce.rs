//! Soft-RoCE, in the virtual machine of `scripts/rxe-vm`.

use crate::adapters::{self, root};
use std::ffi::OsStr;
use std::path::PathBuf;
use std::process::Command;

/// The folder with a package's programs for the machine (see [`adapters::built`]). If something is
/// missing, prints what and returns `None`.
///
/// # Panics
/// If the programs do not build, or something is missing and `POLLUX_REFEREES` is `required`.
pub fn built(test: &str, package: &str, what: &[&str]) -> Option<PathBuf> {
    is_there(test).then(|| adapters::built(package, what))
}

/// Whether the machine can be started; if not, prints what is missing.
///
/// # Panics
/// If something is missing and `POLLUX_REFEREES` is `required`.
pub fn is_there(test: &str) -> bool {
    let mut needed = ["qemu-system-x86_64", "cmake", "ib_send_lat", "cpio"].into_iter();
    needed.all(|needed| crate::program_of(test, needed, "--hca --vm").is_some())
}

/// Copies `programs` into the machine, runs `command` there, and returns its output.
///
/// # Panics
/// If the command fails, or takes longer than `seconds`.
pub fn run(programs: &[impl AsRef<OsStr>], seconds: u32, command: &str) -> String {
    let mut machine = machine();
    for program in programs {
        machine.arg("--program").arg(program);
    }
    let output = machine.args(["--timeout", &seconds.to_string(), command]).output();
    let output = output.expect("scripts/rxe-vm runs");
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{command}: {}\n{text}\n{errors}", output.status);
    text
}

/// The command that starts the machine, for further arguments.
pub fn machine() -> Command {
    Command::new(root().join("scripts/rxe-vm"))
}
