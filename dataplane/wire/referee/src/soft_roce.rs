//! Soft-RoCE, in the virtual machine of `scripts/rxe-vm`.
//!
//! Programs that run there are built by the tests that want them, with the feature `hca`, in a
//! target directory of its own: features of one crate in another's build would make cargo build
//! everything twice. `scripts/check hca` shares it.

use std::env;
use std::path::{Path, PathBuf};
use std::process::Command;

/// Where a package's programs for the machine are, once they are built; `what` says which, as cargo
/// is told it. `None` after having said what is missing.
///
/// # Panics
/// If they do not build, or something is missing and `POLLUX_REFEREES` is `required`.
#[expect(clippy::disallowed_methods, reason = "cargo says by the environment where it is")]
pub fn built(test: &str, package: &str, what: &[&str]) -> Option<PathBuf> {
    for needed in ["qemu-system-x86_64", "cmake", "ib_send_lat", "cpio"] {
        crate::program_of(test, needed, "--hca --vm")?;
    }
    let target = env::current_exe().expect("a test has a file");
    let target = target.ancestors().nth(3).expect("target/PROFILE/deps/TEST").join("hca");
    let status = Command::new(env::var_os("CARGO").expect("cargo runs the tests"))
        .args(["build", "--quiet", "--package", package, "--features", "hca"])
        .args(what)
        .arg("--target-dir")
        .arg(&target)
        .current_dir(root())
        .status()
        .expect("cargo runs");
    assert!(status.success(), "programs of {package} do not build; their errors are above");
    Some(target.join("debug"))
}

/// What a command prints that runs in the machine beside these programs; it must succeed within so
/// many seconds.
///
/// # Panics
/// If it does not.
pub fn run(programs: &[PathBuf], seconds: u32, command: &str) -> String {
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

/// The machine, for whoever has more to say to it.
pub fn machine() -> Command {
    Command::new(root().join("scripts/rxe-vm"))
}

/// The root of the repository.
fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../..")
}
