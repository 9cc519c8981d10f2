//! The adapter of this crate on Soft-RoCE, in the virtual machine of `scripts/rxe-vm`.
//!
//! The program that runs there is built here, in a target directory of its own: features of one
//! crate in another's build would make cargo build everything twice.

use std::path::{Path, PathBuf};
use std::process::Command;

/// The root of the repository.
fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

/// The program for the guest; `None` after having said what is missing.
fn guest(test: &str) -> Option<PathBuf> {
    for needed in ["qemu-system-x86_64", "cmake", "ib_send_lat", "cpio"] {
        pollux_referee::program_of(test, needed, "--hca --vm")?;
    }
    let target = Path::new(env!("CARGO_TARGET_TMPDIR")).join("hca");
    let status = Command::new(env!("CARGO"))
        .args(["build", "--quiet", "--package", "pollux-ibverbs", "--features", "hca"])
        .args(["--example", "rxe-guest", "--target-dir"])
        .arg(&target)
        .current_dir(root())
        .status()
        .expect("cargo runs");
    assert!(status.success(), "the guest's program does not build; its errors are above");
    Some(target.join("debug/examples/rxe-guest"))
}

/// Runs a command in the machine; it must succeed.
fn run(program: &Path, command: &str) -> String {
    let output = Command::new(root().join("scripts/rxe-vm"))
        .arg("--program")
        .arg(program)
        .args(["--timeout", "600", command])
        .output()
        .expect("scripts/rxe-vm runs");
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{command}: {}\n{text}\n{errors}", output.status);
    text
}

#[test]
fn soft_roce_honours_the_contract_where_it_can() {
    let test = "soft_roce_honours_the_contract_where_it_can";
    let Some(program) = guest(test) else { return };
    let command = "rxe-guest conformance one && rxe-guest conformance two";
    let text = run(&program, command);
    print!("{text}");
    let summaries = text.lines().filter(|line| line.starts_with("rxe, ")).count();
    assert_eq!(summaries, 2, "{text}");
}
