//! UCX: `ucx_perftest` over POSIX shared memory, with and without cross-memory attach (`cma`),
//! where the kernel copies from one process to the other. The better figure counts: short messages
//! are faster without `cma`, long messages with it.

use super::{PeerProgramError, RunConfig, bad_output, find_program, free_port, run_with_server};

const PROGRAM: &str = "ucx_perftest";
/// Values of `UCX_TLS`.
const TRANSPORTS: [&str; 2] = ["posix,self", "posix,cma,self"];

/// The median of half the round trip of a message, in nanoseconds.
pub fn tag_lat(config: &RunConfig, bytes: u32) -> Result<f64, PeerProgramError> {
    let count = 20_000 * config.duration.as_millis().clamp(200, 2000) as u32 / 200;
    least(config, "tag_lat", bytes, count, 1).map(|microseconds| microseconds * 1e3)
}

/// Like [`tag_lat`], for an operation of UCX's transport layer (UCT) over shared memory.
pub fn uct_lat(config: &RunConfig, test: &str, bytes: u32) -> Result<f64, PeerProgramError> {
    let count = 20_000 * config.duration.as_millis().clamp(200, 2000) as u32 / 200;
    let options = ["-d", "memory", "-x", "posix"];
    column_by(config, ("all", &options), test, (bytes, count), 1)
        .map(|microseconds| microseconds * 1e3)
}

/// Messages per second.
pub fn tag_bw(config: &RunConfig, bytes: u32) -> Result<f64, PeerProgramError> {
    let count = if bytes > 4096 { 5_000 } else { 1_000_000 };
    least(config, "tag_bw", bytes, count, 3).map(|microseconds| 1e6 / microseconds)
}

/// A column of [`column_by`], with the faster of the two transports.
fn least(
    config: &RunConfig,
    test: &str,
    bytes: u32,
    count: u32,
    column: usize,
) -> Result<f64, PeerProgramError> {
    let of = |transports| column_by(config, (transports, &[]), test, (bytes, count), column);
    let [posix, cma] = TRANSPORTS.map(of);
    // If the system forbids cross-memory attach, that run has no figure.
    Ok(posix?.min(cma.unwrap_or(f64::INFINITY)))
}

/// A column of the last output line. Column 0 is the message count; columns 1 to 3 are the median,
/// average and overall average in microseconds per message.
fn column_by(
    config: &RunConfig,
    (transports, options): (&str, &[&str]),
    test: &str,
    (bytes, count): (u32, u32),
    column: usize,
) -> Result<f64, PeerProgramError> {
    find_program(PROGRAM, "--peers")?;
    let port = free_port(PROGRAM)?;
    let (bytes, count) = (bytes.to_string(), count.to_string());
    let [server, mut client] = [0, 1].map(|end| {
        let mut command = config.command(end, PROGRAM);
        command.args(["-p", &port, "-t", test, "-s", &bytes, "-n", &count, "-f"]).args(options);
        command.env("UCX_TLS", transports);
        command
    });
    client.arg("127.0.0.1");
    let output = run_with_server(PROGRAM, server, client)?;
    let last = output.lines().last().unwrap_or_default();
    let value = last.split_whitespace().nth(column).and_then(|value| value.parse().ok());
    value.ok_or_else(|| bad_output(PROGRAM, &output))
}
