//! Sets `POLLUX_COMMIT`, so that a run records the commit that it was built from.

use std::process::Command;

fn git(arguments: &[&str]) -> Option<String> {
    let output = Command::new("git").args(arguments).output().ok()?;
    let text = String::from_utf8(output.stdout).ok()?;
    (output.status.success() && !text.trim().is_empty()).then(|| text.trim().to_string())
}

fn main() {
    println!("cargo:rerun-if-changed=build.rs");
    if let Some(log) = git(&["rev-parse", "--git-path", "logs/HEAD"]) {
        println!("cargo:rerun-if-changed={log}");
    }
    let commit = git(&["describe", "--always", "--abbrev=12", "--dirty", "--exclude=*"]);
    println!("cargo:rustc-env=POLLUX_COMMIT={}", commit.unwrap_or("unknown".into()));
}
