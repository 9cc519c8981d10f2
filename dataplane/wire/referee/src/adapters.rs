//! Examples with the feature `hca`, for tests that run them in a guest or beside libumad2sim.

use std::env;
use std::path::{Path, PathBuf};
use std::process::Command;

/// The folder with a package's programs; `what` are the arguments of cargo that select them.
///
/// It is `POLLUX_PREBUILT`, where scripts/check has built all. Otherwise cargo builds them now, in
/// a target directory of its own: features of one crate in another's build would make cargo build
/// everything twice.
///
/// # Panics
/// If they do not build.
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
