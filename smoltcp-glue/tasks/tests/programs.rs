//! Runs the programs: each checks what it receives.

use std::process::Command;

fn runs(program: &str, says: &str) {
    let output = Command::new(program).output().expect("it starts");
    let (out, errors) =
        (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    assert!(output.status.success() && out.contains(says), "{out}{errors}");
}

#[test]
fn grpc_calls_are_answered() {
    runs(env!("CARGO_BIN_EXE_grpc"), "1000 calls were answered");
}

#[test]
fn a_redis_client_finds_its_values() {
    runs(env!("CARGO_BIN_EXE_redis"), "were set and read");
}

#[test]
fn a_proxy_passes_bytes_both_ways() {
    runs(env!("CARGO_BIN_EXE_proxy"), "20 clients got 300000 bytes back each");
}
