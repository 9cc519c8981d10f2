//! The suite of `pollux-verbs` through our rings, on the ConnectX in software.
//!
//! Each test starts this program again, in the environment in which libibverbs finds the adapter.
//! `POLLUX_CASES` selects cases by a part of their name.
#![expect(clippy::disallowed_methods, reason = "programs of a test are told so by variables")]

#[path = "../../../connectx/tests/common/mod.rs"]
mod common;
#[path = "../../../ibverbs/guest/conformance.rs"]
#[allow(dead_code, reason = "the adapters of Soft-RoCE are not for this driver")]
mod conformance;
#[path = "../../../ibverbs/guest/differences.rs"]
#[allow(dead_code, reason = "those of other drivers")]
mod differences;

use common::{Hosts, finish, is_program};
use conformance::{Backend, CONNECTX};

const MLX5: Backend =
    Backend { name: "mlx5", open: pollux_mlx5::open, differences: &[], ..CONNECTX };

/// Runs a test of this file as a program at a host; returns its output.
fn run(program: &str, variables: &[(&str, &str)]) -> String {
    let executable = std::env::current_exe().unwrap();
    let arguments = ["--exact", program, "--nocapture"];
    let hosts = Hosts::new();
    let child = hosts.start_with(0, executable.to_str().unwrap(), &arguments, variables);
    let (is_right, output) = finish(program, child);
    println!("{output}");
    assert!(is_right && output.contains("1 passed"), "{output}");
    output
}

/// The same, with each store to a doorbell or a record judged at its instant.
#[cfg(target_arch = "x86_64")]
fn run_judged(program: &str) {
    use common::{TRAP, stores_of};
    const STORES_MIN: u64 = 10_000;
    let (judged, wrong) = stores_of(&run(program, &[TRAP]));
    assert!(judged > STORES_MIN && wrong == 0, "{judged} stores judged, {wrong} out of order");
}

fn suite(is_one_device: bool) {
    let cases = std::env::var("POLLUX_CASES").unwrap_or_default();
    assert!(conformance::run(&MLX5, is_one_device, &cases));
}

#[test]
fn program_of_one_device() {
    if is_program() {
        suite(true);
    }
}

#[test]
fn one_device_honors_the_contract() {
    run("program_of_one_device", &[]);
}

#[test]
#[cfg(target_arch = "x86_64")]
fn stores_of_one_device_are_in_order() {
    run_judged("program_of_one_device");
}

#[test]
fn program_of_two_devices() {
    if is_program() {
        suite(false);
    }
}

#[test]
fn two_devices_honor_the_contract() {
    run("program_of_two_devices", &[]);
}

#[test]
#[cfg(target_arch = "x86_64")]
fn stores_of_two_devices_are_in_order() {
    run_judged("program_of_two_devices");
}
