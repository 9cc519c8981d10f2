//! OpenSM, on a subnet that `ibsim` simulates.

use super::{PeerProgramError, find_program, to_failure};
use crate::pair::Process;
use pollux_fabric::topology::Topology;
use pollux_wire::mad::smp::NodeType;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

const PROGRAM: &str = "opensm";

/// The time of one sweep, from the start of OpenSM until it logs SUBNET UP.
pub fn bring_up(spec: &str) -> Result<Duration, PeerProgramError> {
    let opensm = find_program(PROGRAM, "--referees")?;
    let ibsim = find_program("ibsim", "--referees")?;
    let preload = preload().ok_or(PeerProgramError::Missing("libumad2sim.so", "--referees"))?;
    let name = format!("pollux-perf-{}", std::process::id());
    let folder = std::env::temp_dir().join(&name);
    fs::create_dir_all(&folder).map_err(to_failure(PROGRAM))?;
    let swept = sweep(spec, &folder, &name, [&opensm, &ibsim, &preload]);
    let _ = fs::remove_dir_all(&folder);
    swept
}

/// The preloaded library that connects a program to the simulator instead of an adapter.
fn preload() -> Option<PathBuf> {
    let folders = fs::read_dir("/usr/lib").ok()?.flatten();
    let mut paths = folders.map(|folder| folder.path().join("umad2sim/libumad2sim.so"));
    paths.find(|path| path.is_file())
}

#[expect(clippy::disallowed_methods, reason = "this is what is measured")]
fn sweep(
    spec: &str,
    folder: &Path,
    name: &str,
    [opensm, ibsim, preload]: [&Path; 3],
) -> Result<Duration, PeerProgramError> {
    let topology = Topology::generate(spec, 1).expect("a topology");
    fs::write(folder.join("net"), topology.to_string()).map_err(to_failure(PROGRAM))?;
    let mut nodes = topology.nodes().iter();
    let first = nodes.find(|node| node.kind == NodeType::CHANNEL_ADAPTER).expect("a host");
    let first = format!("H-{:016x}", first.guid.0);
    let mut command = Command::new(ibsim);
    // The default tables of ibsim are too small for this subnet.
    command.args(["-s", "-n", "-N", "2000", "-S", "200", "-P", "20000", "-L", "50000", "net"]);
    let _simulator = start(command.env("IBSIM_SOCKNAME", name), folder)?;
    let mut command = Command::new(opensm);
    command.args(["-o", "-e", "-f", "osm.log", "-d", "2"]).env("LD_PRELOAD", preload);
    command.env("IBSIM_SOCKNAME", name).env("SIM_HOST", first);
    command.env("OSM_TMP_DIR", ".").env("OSM_CACHE_DIR", ".");
    // The simulator takes a while to read the topology; an early client would wait two seconds.
    std::thread::sleep(Duration::from_secs(1));
    let began = Instant::now();
    let _ = start(&mut command, folder)?.0.wait();
    let took = began.elapsed();
    let log = fs::read_to_string(folder.join("osm.log")).unwrap_or_default();
    match log.contains("SUBNET UP") {
        true => Ok(took),
        false => Err(PeerProgramError::Failed(PROGRAM, "its log does not say SUBNET UP".into())),
    }
}

fn start(command: &mut Command, folder: &Path) -> Result<Process, PeerProgramError> {
    command.current_dir(folder).stdin(Stdio::null()).stdout(Stdio::null());
    command.stderr(Stdio::null()).spawn().map(Process).map_err(to_failure(PROGRAM))
}
