//! `iperf3`: one TCP flow through the kernel, over the loopback interface.

use super::{PeerProgramError, RunConfig, bad_output, find_program, free_port, run_with_server};

const PROGRAM: &str = "iperf3";

/// Received bits per second.
pub fn stream(config: &RunConfig) -> Result<f64, PeerProgramError> {
    find_program(PROGRAM, "--peers")?;
    let port = free_port(PROGRAM)?;
    let (mut server, mut client) = (config.command(0, PROGRAM), config.command(1, PROGRAM));
    server.args(["-s", "-1", "-p", &port]);
    client.args(["-c", "127.0.0.1", "-p", &port, "-t", &config.seconds(), "-J"]);
    let output = run_with_server(PROGRAM, server, client)?;
    let read: Option<serde_json::Value> = serde_json::from_str(&output).ok();
    let rate = read.and_then(|read| read["end"]["sum_received"]["bits_per_second"].as_f64());
    rate.ok_or_else(|| bad_output(PROGRAM, &output))
}
