//! Peer programs with their fastest settings: pinned (except OpenSM), and busy-polling if possible.
//! Only the case that validates the harness uses blocking sockets.

pub mod iperf3;
pub mod l3fwd;
pub mod opensm;
pub mod sockperf;
pub mod testpmd;
pub mod ucx;

use crate::pair::{Process, with_priority};
use std::io;
use std::net::{Ipv4Addr, TcpListener, UdpSocket};
use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::time::Duration;

/// The pause before each attempt of a client to connect to its server.
const SERVER_READY_PAUSE: Duration = Duration::from_millis(400);
/// Attempts of a client to connect.
const SERVER_READY_TRIES: u32 = 10;

#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum PeerProgramError {
    /// The program, and the option of `host-setup` that installs it.
    #[error("{0} is not installed; run scripts/host-setup {1}")]
    Missing(&'static str, &'static str),
    /// The program did not run, or its output cannot be parsed.
    #[error("{0} has no figure: {1}")]
    Failed(&'static str, String),
}

#[derive(Clone, Copy, Debug)]
pub struct RunConfig {
    /// The cores of the two ends.
    pub cores: [usize; 2],
    /// The SCHED_FIFO priority; `None` for normal scheduling.
    pub fifo: Option<u8>,
    /// The duration of a measurement, for peers that can set it.
    pub duration: Duration,
}

impl RunConfig {
    /// A command that runs a program on the core of an end. Its standard streams are `/dev/null`.
    pub fn command(&self, end: usize, program: &str) -> Command {
        let mut command = with_priority(self.fifo, "taskset");
        command.args(["-c", &self.cores[end].to_string(), program]);
        command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
        command
    }

    fn seconds(&self) -> String {
        self.duration.as_secs().max(1).to_string()
    }
}

/// The path of a program, in the folders where packages install programs. `group` is the option of
/// `host-setup` that installs it.
fn find_program(program: &'static str, group: &'static str) -> Result<PathBuf, PeerProgramError> {
    let folders = ["/usr/bin", "/usr/sbin", "/usr/local/bin"].into_iter();
    let mut paths = folders.map(|folder| PathBuf::from(folder).join(program));
    paths.find(|path| path.is_file()).ok_or(PeerProgramError::Missing(program, group))
}

/// The versions that installed peers print. The programs of DPDK print none.
pub fn versions() -> Vec<String> {
    let say = [
        ("ucx_info", "-v"),
        ("sockperf", "--version"),
        ("iperf3", "--version"),
        ("opensm", "--version"),
    ];
    let of = |(program, option): (&'static str, &str)| {
        let path = find_program(program, "--peers").ok()?;
        let output = Command::new(path).arg(option).stdin(Stdio::null()).output().ok()?;
        let text = String::from_utf8_lossy(&output.stdout).into_owned();
        let line = text.lines().find(|line| line.contains(|one: char| one.is_ascii_digit()))?;
        Some(format!("{program}: {}", line.trim_start_matches(['#', ' '])))
    };
    say.into_iter().filter_map(of).collect()
}

fn to_failure<E: Into<io::Error>>(program: &'static str) -> impl Fn(E) -> PeerProgramError {
    move |error| PeerProgramError::Failed(program, error.into().to_string())
}

/// A port of the loopback interface that is free for TCP and UDP.
fn free_port(program: &'static str) -> Result<String, PeerProgramError> {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).map_err(to_failure(program))?;
    let port = listener.local_addr().map_err(to_failure(program))?.port();
    UdpSocket::bind((Ipv4Addr::LOCALHOST, port)).map_err(to_failure(program))?;
    Ok(port.to_string())
}

/// Runs a client against a server; returns the output of the client.
#[expect(clippy::disallowed_methods, reason = "the servers do not report that they listen")]
fn run_with_server(
    program: &'static str,
    mut server: Command,
    mut client: Command,
) -> Result<String, PeerProgramError> {
    let _server = Process(server.spawn().map_err(to_failure(program))?);
    client.stdout(Stdio::piped());
    let mut tries = SERVER_READY_TRIES;
    loop {
        std::thread::sleep(SERVER_READY_PAUSE);
        let ended = client.output().map_err(to_failure(program))?;
        let output = String::from_utf8_lossy(&ended.stdout).into_owned();
        tries -= 1;
        if ended.status.success() {
            return Ok(output);
        } else if tries == 0 || !output.contains("Connection refused") {
            return Err(PeerProgramError::Failed(program, last_line(&output)));
        }
    }
}

fn last_line(text: &str) -> String {
    text.lines().rfind(|line| !line.trim().is_empty()).unwrap_or("it printed nothing").trim().into()
}

fn bad_output(program: &'static str, output: &str) -> PeerProgramError {
    PeerProgramError::Failed(program, format!("its output ends with {:?}", last_line(output)))
}
