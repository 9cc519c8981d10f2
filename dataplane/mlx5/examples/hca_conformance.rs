//! Runs the conformance suite of `pollux-verbs` on hardware adapters: one adapter with itself, or
//! two.
//!
//! `hca_conformance rings|verbs DEVICE [DEVICE [PART]]`: `rings` uses our own work queues, which
//! need a ConnectX, and `verbs` uses libibverbs. With `PART`, only the cases whose name contains it
//! run.
#![expect(clippy::disallowed_methods, reason = "a program reads its arguments and the clock")]

#[path = "../../ibverbs/guest/conformance.rs"]
#[allow(dead_code, reason = "the adapters of Soft-RoCE are not for this program")]
mod conformance;
#[path = "../../ibverbs/guest/differences.rs"]
#[allow(dead_code, reason = "those of other drivers")]
mod differences;

use conformance::{Backend, CONNECTX};
use std::process::ExitCode;

const USAGE: &str = "usage: hca_conformance rings|verbs DEVICE [DEVICE [PART]]";

fn main() -> ExitCode {
    // Leaked, because a backend is used until the program ends.
    let arguments: Vec<&'static str> =
        std::env::args().skip(1).map(|one| &*String::leak(one)).collect();
    let (driver, devices, part) = match arguments[..] {
        [driver, device] => (driver, [device; 2], ""),
        [driver, first, second] => (driver, [first, second], ""),
        [driver, first, second, part] => (driver, [first, second], part),
        _ => return usage(),
    };
    let backend = match driver {
        "rings" => Backend { name: "rings", open: pollux_mlx5::open, differences: &[], ..CONNECTX },
        "verbs" => Backend { name: "verbs", ..CONNECTX },
        _ => return usage(),
    };
    let backend = Box::leak(Box::new(Backend { devices, ..backend }));
    match conformance::run(backend, arguments.len() == 2, part) {
        true => ExitCode::SUCCESS,
        false => ExitCode::FAILURE,
    }
}

fn usage() -> ExitCode {
    eprintln!("{USAGE}");
    ExitCode::from(2)
}
