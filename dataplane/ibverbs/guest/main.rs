//! The program for the machine of `scripts/rxe-vm`, since a guest has no cargo.
//!
//! `rxe-guest conformance one|two [FILTER]` runs the suite, `faults` breaks things, `speed`
//! measures beside perftest, and `peer DEVICE PORT` is one end of a connection, controlled by a
//! serial port. `connectx one|two [FILTER]` runs the suite on the ConnectX in software.
#![expect(clippy::disallowed_methods, reason = "a program reads its arguments and the clock")]

mod conformance;
mod differences;
mod end;
mod faults;
mod peer;
mod speed;

use std::process::ExitCode;

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let arguments: Vec<&str> = arguments.iter().map(String::as_str).collect();
    let passed = match arguments[..] {
        ["conformance", devices @ ("one" | "two"), ref filter @ ..] => {
            let filter = filter.first().copied().unwrap_or_default();
            conformance::run(&conformance::RXE, devices == "one", filter)
        }
        ["connectx", devices @ ("one" | "two"), ref filter @ ..] => {
            let filter = filter.first().copied().unwrap_or_default();
            conformance::run(&conformance::CONNECTX, devices == "one", filter)
        }
        ["faults"] => faults::run(),
        ["victim"] => faults::victim(),
        ["speed"] => speed::run(),
        ["speed-peer", qp_type, what, count] => speed::peer(qp_type, what, count),
        ["peer", device, port] => peer::run(device, port),
        _ => {
            eprintln!(
                "usage: rxe-guest conformance|connectx one|two [FILTER] | faults | speed | peer \
                 DEVICE PORT"
            );
            return ExitCode::from(2);
        }
    };
    if passed { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}
