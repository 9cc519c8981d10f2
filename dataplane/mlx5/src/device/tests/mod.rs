//! The device on the ConnectX in software: [`equal`] and [`traffic`].
//!
//! A test starts this program again, in the environment in which libibverbs finds the adapter.

#[path = "../../../../connectx/tests/common/mod.rs"]
mod common;
mod equal;
mod states;
mod traffic;

use common::{Hosts, finish, is_program};
use states::changes;

/// Runs a test of these files as a program at a host.
fn run(test: &str) {
    let hosts = Hosts::new();
    let own = std::env::current_exe().unwrap();
    let test = format!("device::tests::{test}");
    let child = hosts.start(0, own.to_str().unwrap(), &["--exact", &test, "--nocapture"]);
    let (is_right, output) = finish(&test, child);
    assert!(is_right && output.contains("1 passed"), "{output}");
}
