//! The device on the ConnectX in software: [`equal`], [`traffic`] and [`mistakes`].
//!
//! A test starts this program again, in the environment in which libibverbs finds the adapter.

#[path = "../../../../connectx/tests/common/mod.rs"]
mod common;
mod equal;
#[cfg(target_arch = "x86_64")]
mod mistakes;
mod states;
mod traffic;

use common::{Hosts, finish, is_program};
use states::changes;

/// Runs a test of these files as a program at a host.
fn run(test: &str) {
    run_with(test, &[]);
}

/// The same with more variables; returns the output.
fn run_with(test: &str, variables: &[(&str, &str)]) -> String {
    let hosts = Hosts::new();
    let own = std::env::current_exe().unwrap();
    let test = format!("device::tests::{test}");
    let arguments = ["--exact", &test, "--nocapture"];
    let child = hosts.start_with(0, own.to_str().unwrap(), &arguments, variables);
    let (is_right, output) = finish(&test, child);
    assert!(is_right && output.contains("1 passed"), "{output}");
    output
}
