//! The conformance suite of `pollux-verbs` on the ConnectX in software, through `pollux-ibverbs`,
//! the genuine libibverbs and libmlx5. What differs by libmlx5 is in `guest/differences.rs` there.
//!
//! The quick tier leaves this out: it takes minutes.

mod common;

use common::{Hosts, finish_within};
use pollux_referee::adapters;
use std::io::Write;
use std::time::Duration;

/// Ends a hang; no healthy run comes near it.
const LIMIT: Duration = Duration::from_secs(900);

/// Runs the suite on one context of the adapter, or between two.
fn run(contexts: &str) {
    let folder = adapters::built("pollux-ibverbs", &["--example", "rxe-guest"]);
    let program = folder.join("examples/rxe-guest").display().to_string();
    let hosts = Hosts::new();
    let child = hosts.start(0, &program, &["connectx", contexts]);
    let (success, output) = finish_within(LIMIT, "connectx", child);
    assert!(success, "{output}");
    // Not by a macro: what was skipped and why is also part of a run that passes.
    std::io::stdout().write_all(output.as_bytes()).unwrap();
    assert!(output.lines().any(|line| line.contains(" passed, ")), "{output}");
}

#[test]
fn one_context_passes_the_suite() {
    run("one");
}

#[test]
fn two_contexts_pass_the_suite() {
    run("two");
}
