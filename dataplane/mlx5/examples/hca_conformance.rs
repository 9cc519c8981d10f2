//! The suite of `pollux-verbs` on an adapter in hardware, against itself or another one.
//!
//! `hca_conformance rings|verbs DEVICE [DEVICE [PART]]`: by our own work queues, which need a
//! ConnectX, or by libibverbs; with a `PART`, the cases that have it in their name.
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
    // A backend lives as long as the program.
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
