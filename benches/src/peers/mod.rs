//! Peer programs, each at its best: pinned, and busy-polling where possible.

pub mod iperf3;
pub mod l3fwd;
pub mod opensm;
pub mod sockperf;
pub mod testpmd;
pub mod ucx;

use crate::pair::{Process, prioritised};
use std::fmt;
use std::io;
use std::net::{Ipv4Addr, TcpListener, UdpSocket};
use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::time::Duration;

/// The pause between the starts of a server and its client, and the attempts of a client.
const SERVER_READY_PAUSE: Duration = Duration::from_millis(400);
const SERVER_READY_TRIES: u32 = 10;

/// The reason for which a peer has no figure.
#[derive(Debug)]
#[non_exhaustive]
pub enum NoFigure {
    /// It is not installed.
    Missing(&'static str, &'static str),
    /// It did not run, or its output is not as expected.
    Failed(&'static str, String),
}

impl fmt::Display for NoFigure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Missing(program, group) => {
                write!(f, "{program} is not installed; run scripts/host-setup {group}")
            }
            Self::Failed(program, why) => write!(f, "{program} has no figure: {why}"),
        }
    }
}

impl std::error::Error for NoFigure {}

/// The cores, priority and duration of peers.
#[derive(Clone, Copy, Debug)]
pub struct RunConfig {
    /// The cores of the two ends.
    pub cores: [usize; 2],
    /// The real-time priority.
    pub fifo: Option<u8>,
    /// The duration of a measurement, for peers that have one.
    pub duration: Duration,
}

impl RunConfig {
    /// A command that runs a program on the core of this end, without input and output.
    pub fn pinned(&self, end: usize, program: &str) -> Command {
        let mut command = prioritised(self.fifo, "taskset");
        command.args(["-c", &self.cores[end].to_string(), program]);
        command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
        command
    }

    /// The duration in seconds, at least one.
    fn seconds(&self) -> String {
        self.duration.as_secs().max(1).to_string()
    }
}

/// Finds a program where packages install it.
fn installed(program: &'static str, group: &'static str) -> Result<PathBuf, NoFigure> {
    let folders = ["/usr/bin", "/usr/sbin", "/usr/local/bin"].into_iter();
    let mut paths = folders.map(|folder| PathBuf::from(folder).join(program));
    paths.find(|path| path.is_file()).ok_or(NoFigure::Missing(program, group))
}

fn failed(program: &'static str) -> impl Fn(io::Error) -> NoFigure {
    move |error| NoFigure::Failed(program, error.to_string())
}

/// A port of the loopback interface that is free for TCP and UDP.
fn free_port(program: &'static str) -> Result<String, NoFigure> {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).map_err(failed(program))?;
    let port = listener.local_addr().map_err(failed(program))?.port();
    UdpSocket::bind((Ipv4Addr::LOCALHOST, port)).map_err(failed(program))?;
    Ok(port.to_string())
}

/// Starts a server and then a client, and returns the output of the client.
#[expect(clippy::disallowed_methods, reason = "the servers do not say when they listen")]
fn served(
    program: &'static str,
    mut server: Command,
    mut client: Command,
) -> Result<String, NoFigure> {
    let _server = Process(server.spawn().map_err(failed(program))?);
    client.stdout(Stdio::piped());
    let mut tries = SERVER_READY_TRIES;
    loop {
        // A server does not report when it listens, so a refused client is started again.
        std::thread::sleep(SERVER_READY_PAUSE);
        let output = client.output().map_err(failed(program))?;
        let said = String::from_utf8_lossy(&output.stdout).into_owned();
        tries -= 1;
        if output.status.success() {
            return Ok(said);
        } else if tries == 0 || !is_refused(&said) {
            return Err(NoFigure::Failed(program, last_line(&said)));
        }
    }
}

/// Whether the server did not listen yet.
fn is_refused(said: &str) -> bool {
    said.contains("Connection refused")
}

fn last_line(said: &str) -> String {
    said.lines().rfind(|line| !line.trim().is_empty()).unwrap_or("it printed nothing").trim().into()
}

fn unclear(program: &'static str, said: &str) -> NoFigure {
    NoFigure::Failed(program, format!("its output ends with {:?}", last_line(said)))
}
