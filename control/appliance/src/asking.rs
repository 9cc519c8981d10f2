//! Requests of all commands to a running node or fabric: the wait for one that is starting, and
//! progress messages meanwhile.

use crate::output::note;
use clap::Args;
use pollux_node::admin::client::{AskError, Client};
use pollux_node::admin::request::AdminRequest;
use pollux_node::admin::rows::TableRow;
use serde::de::DeserializeOwned;
use std::path::{Path, PathBuf};
use std::time::Duration;

/// The option `--wait`.
#[derive(Args, Clone, Copy)]
pub struct Wait {
    /// How long to wait for a node or fabric that is starting; 0 for no wait
    #[arg(long, value_name = "SECONDS", default_value = "5", value_parser = seconds, global = true)]
    wait: Duration,
}

// Without a doc comment, which would be the help text of the command.
#[derive(Args)]
pub struct NodeSocket {
    /// Socket of the node
    #[arg(long, value_name = "PATH")]
    pub socket: PathBuf,
    #[command(flatten)]
    wait: Wait,
}

impl NodeSocket {
    pub fn ask<T: DeserializeOwned>(&self, request: &AdminRequest) -> Result<T, AskError> {
        ask(&self.socket, self.wait, request)
    }
}

impl Wait {
    /// No wait, for requests that are repeated anyway.
    pub const fn without(self) -> Self {
        Self { wait: Duration::ZERO }
    }
}

/// Reads a number of seconds, which may have a fraction.
pub fn seconds(text: &str) -> Result<Duration, String> {
    let duration = text.parse().ok().and_then(|seconds| Duration::try_from_secs_f64(seconds).ok());
    duration.ok_or_else(|| "not a number of seconds; write a number such as 5 or 0.2".into())
}

/// Sends a request to a socket. Prints the reason for a wait to standard error.
pub fn ask<T: DeserializeOwned>(
    socket: &Path,
    wait: Wait,
    request: &AdminRequest,
) -> Result<T, AskError> {
    let mut progress = Progress::default();
    Client::new(socket, wait.wait).ask(request, &mut |error, pause| {
        progress.say(error, wait.wait);
        #[expect(clippy::disallowed_methods, reason = "a process that starts takes its time")]
        std::thread::sleep(pause);
        true
    })
}

pub fn rows<R: TableRow>(socket: &Path, wait: Wait) -> Result<Vec<R>, AskError> {
    ask(socket, wait, &AdminRequest::Show(R::TABLE))
}

/// Progress messages about a wait.
#[derive(Default)]
pub struct Progress {
    attempts: u32,
    printed: Option<String>,
}

impl Progress {
    /// Attempts without a message, because a short wait needs none.
    const QUIET: u32 = 4;

    /// Prints the reason for the wait, each reason once.
    pub fn say(&mut self, error: &AskError, wait: Duration) {
        self.attempts += 1;
        let why = match error {
            AskError::Absent(path, _) => format!("no node or fabric at {} yet", path.display()),
            other => other.to_string(),
        };
        if self.attempts > Self::QUIET && self.printed.as_ref() != Some(&why) {
            note(&format!("{why}; waiting (at most {} s in all)", wait.as_secs_f64()));
            self.printed = Some(why);
        }
    }
}
