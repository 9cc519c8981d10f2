//! `dpdk-testpmd`: one core that forwards packets from a null device back to it.

use super::{PeerProgramError, RunConfig, bad_output, find_program, to_failure};
use crate::judgement::Estimate;
use crate::pair::{Process, with_priority};
use std::io::{BufRead, BufReader};
use std::process::Stdio;

const PROGRAM: &str = "dpdk-testpmd";
/// Measured seconds, after a warm-up second.
const SECONDS: usize = 3;

/// Forwarded packets per second.
pub fn forward(config: &RunConfig) -> Result<f64, PeerProgramError> {
    find_program(PROGRAM, "--peers")?;
    let mut command = with_priority(config.fifo, PROGRAM);
    // The first core runs the control thread, and the second core forwards.
    command.args(["-l", &format!("{},{}", config.cores[0], config.cores[1])]);
    command.args(["--no-huge", "-m", "256", "--no-pci", "--no-telemetry", "--vdev"]);
    command.args(["net_null0,size=64", "--file-prefix"]);
    command.arg(format!("pollux-perf-{}", std::process::id()));
    command.args(["--", "--forward-mode=mac", "--stats-period", "1", "--total-num-mbufs=8192"]);
    command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::null());
    let mut testpmd = Process(command.spawn().map_err(to_failure(PROGRAM))?);
    let Some(stdout) = testpmd.0.stdout.take() else { return Err(bad_output(PROGRAM, "")) };
    let lines = BufReader::new(stdout).lines().map_while(Result::ok);
    let rates = lines.filter_map(|line| {
        let (_, rest) = line.split_once("Rx-pps:")?;
        rest.split_whitespace().next()?.parse::<f64>().ok()
    });
    let rates: Vec<f64> = rates.filter(|rate| *rate > 0.0).skip(1).take(SECONDS).collect();
    let estimate = Estimate::of(rates);
    estimate.map(|one| one.median).ok_or_else(|| bad_output(PROGRAM, "no line with Rx-pps"))
}
