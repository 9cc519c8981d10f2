//! The conformance suite of `pollux-verbs` on the ConnectX in software, through `pollux-ibverbs`,
//! the genuine libibverbs and libmlx5. What differs by libmlx5 is in `guest/differences.rs` there.
//!
//! The quick tier leaves this out: it takes minutes.

mod common;

use common::{Hosts, finish};
use pollux_referee::adapters;
use std::io::Write;

/// Runs the suite on one context of the adapter, or between two, for the test of this name.
fn run(test: &str, contexts: &str) {
    let folder = adapters::built("pollux-ibverbs", &["--example", "rxe-guest"]);
    let program = folder.join("examples/rxe-guest").display().to_string();
    let hosts = Hosts::new();
    let child = hosts.start(0, &program, &["connectx", contexts]);
    let (success, output) = finish("connectx", child);
    let counts = output.lines().rfind(|line| line.contains(" passed, "));
    let (_, counts) = counts.and_then(|line| line.split_once(": ")).expect(&output);
    let text = format!("{output}judge {test}: {counts}\n");
    // Not by a macro: what was skipped and why is also part of a run that passes.
    std::io::stdout().write_all(text.as_bytes()).unwrap();
    assert!(success, "{output}");
}

mod conformance_suite {
    use super::run;

    #[test]
    fn passes_on_one_context() {
        run("conformance_suite::passes_on_one_context", "one");
    }

    #[test]
    fn passes_between_two_contexts() {
        run("conformance_suite::passes_between_two_contexts", "two");
    }
}
