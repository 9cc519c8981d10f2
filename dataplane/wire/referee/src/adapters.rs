//! Programs with the feature `hca`, for tests that run them in a guest or with libumad2sim.

use std::env;
use std::path::{Path, PathBuf};
use std::process::Command;

/// The folder with a package's programs; `what` has the arguments for cargo that select them.
///
/// If `POLLUX_PREBUILT` is set, scripts/check has built the programs in that folder. Otherwise this
/// function builds them, in a separate target directory: in a shared one, cargo would rebuild
/// crates each time their features change.
///
/// # Panics
/// If the programs do not build.
#[expect(clippy::disallowed_methods, reason = "what is built, and cargo itself, are told by it")]
pub fn built(package: &str, what: &[&str]) -> PathBuf {
    if let Some(folder) = env::var_os("POLLUX_PREBUILT") {
        return folder.into();
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
    target.join("debug")
}

/// The root of the repository.
pub fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../..")
}
