//! Referees: independent programs that check the packets of Pollux.
//!
//! For tests only. A test finds such a program with [`program`]. If the program is missing, the
//! test prints `SKIP name: reason` and passes, or fails if `POLLUX_REFEREES` is `required`.
//! [`tshark`] dissects packets, which [`frames`] builds; [`soft_roce`] runs programs in a virtual
//! machine with the kernel's RDMA transport, and [`adapters`] builds programs of Pollux that use an
//! adapter; [`browser`] displays web pages.
#![forbid(unsafe_code)]

pub mod adapters;
pub mod browser;
pub mod frames;
pub mod soft_roce;
pub mod tshark;

use std::env;
use std::path::PathBuf;

/// The path of the program `name`; if it is missing, prints that `test` is skipped and returns
/// `None`.
///
/// # Panics
/// If the program is missing and `POLLUX_REFEREES` is `required`.
pub fn program(test: &str, name: &str) -> Option<PathBuf> {
    program_of(test, name, "--referees")
}

/// As [`program`], for a program from other `groups` of `scripts/host-setup`.
///
/// # Panics
/// If the program is missing and `POLLUX_REFEREES` is `required`.
#[expect(clippy::disallowed_methods, reason = "what is installed is the environment's to say")]
pub fn program_of(test: &str, name: &str, groups: &str) -> Option<PathBuf> {
    let path = env::var_os("PATH").unwrap_or_default();
    let found = env::split_paths(&path)
        .chain(["/usr/sbin".into(), "/sbin".into()])
        .map(|folder| folder.join(name))
        .find(|program| program.is_file());
    if found.is_none() {
        assert!(
            env::var_os("POLLUX_REFEREES").is_none_or(|value| value != "required"),
            "{test} needs {name}, which is not installed; run scripts/host-setup {groups}"
        );
        println!("SKIP {test}: {name} is not installed (scripts/host-setup {groups} installs it)");
    }
    found
}

/// Prints that `test` is skipped, because of a property of this machine.
///
/// # Panics
/// If `POLLUX_REFEREES` is `required`.
#[expect(clippy::disallowed_methods, reason = "whether tests may be skipped is in the environment")]
pub fn skip(test: &str, reason: &str) {
    let required = env::var_os("POLLUX_REFEREES").is_some_and(|value| value == "required");
    assert!(!required, "{test} cannot run: {reason}");
    println!("SKIP {test}: {reason}");
}
