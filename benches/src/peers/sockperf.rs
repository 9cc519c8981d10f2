//! `sockperf`: sockets of the kernel on the loopback interface.

use super::{PeerProgramError, RunConfig, bad_output, find_program, free_port, run_with_server};

const PROGRAM: &str = "sockperf";
/// Attempts. With non-blocking sockets, sockperf sometimes fails on a pending connect (errno 115).
const TRIES_MAX: usize = 5;

/// Half the round trip of a message in nanoseconds: the median and the 99.9th percentile. With
/// `--nonblocked`, both ends busy-poll.
pub fn ping_pong(
    config: &RunConfig,
    bytes: u32,
    options: &[&str],
) -> Result<[f64; 2], PeerProgramError> {
    let mut result = ping_pong_once(config, bytes, options);
    for _ in 1..TRIES_MAX {
        match &result {
            Err(PeerProgramError::Failed(_, why)) if why.contains("errno=115") => {}
            _ => break,
        }
        result = ping_pong_once(config, bytes, options);
    }
    result
}

fn ping_pong_once(
    config: &RunConfig,
    bytes: u32,
    options: &[&str],
) -> Result<[f64; 2], PeerProgramError> {
    find_program(PROGRAM, "--peers")?;
    let port = free_port(PROGRAM)?;
    let [server, mut client] = ["server", "ping-pong"].map(|role| {
        let mut command = config.command(usize::from(role != "server"), PROGRAM);
        command.args([role, "-i", "127.0.0.1", "-p", &port]).args(options);
        command
    });
    client.args(["-t", &config.seconds(), "-m", &bytes.to_string()]);
    let output = run_with_server(PROGRAM, server, client)?;
    let percentile = |part: &str| {
        let line = output.lines().find(|line| line.contains(&format!("percentile {part} =")))?;
        line.split('=').nth(1)?.trim().parse::<f64>().ok()
    };
    match (percentile("50.000"), percentile("99.900")) {
        (Some(median), Some(late)) => Ok([median * 1e3, late * 1e3]),
        _ => Err(bad_output(PROGRAM, &output)),
    }
}
