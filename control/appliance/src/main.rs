//! The program `pollux`; all of it is in the library beside this file.

#![forbid(unsafe_code)]

fn main() -> std::process::ExitCode {
    pollux_appliance::run_command()
}
