//! `iperf3`: one TCP flow through the kernel, over the loopback interface.

use super::{NoFigure, RunConfig, free_port, installed, served, unclear};

const PROGRAM: &str = "iperf3";

/// Received bits per second.
pub fn stream(config: &RunConfig) -> Result<f64, NoFigure> {
    installed(PROGRAM, "--peers")?;
    let port = free_port(PROGRAM)?;
    let (mut server, mut client) = (config.pinned(0, PROGRAM), config.pinned(1, PROGRAM));
    server.args(["-s", "-1", "-p", &port]);
    client.args(["-c", "127.0.0.1", "-p", &port, "-t", &config.seconds(), "-J"]);
    let said = served(PROGRAM, server, client)?;
    let read: Option<serde_json::Value> = serde_json::from_str(&said).ok();
    let rate = read.and_then(|read| read["end"]["sum_received"]["bits_per_second"].as_f64());
    rate.ok_or_else(|| unclear(PROGRAM, &said))
}
