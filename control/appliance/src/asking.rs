//! What all commands that ask a running node or fabric have in common: how long they wait for it,
//! and what they say meanwhile.

use crate::output::note;
use clap::Args;
use pollux_node::admin::client::{AskError, Client};
use serde_json::Value;
use std::path::Path;
use std::time::Duration;

/// How long a question waits.
#[derive(Args, Clone, Copy)]
pub struct Wait {
    /// How long to wait for a node or fabric that is just starting; 0 to not wait at all
    #[arg(long, value_name = "SECONDS", default_value = "5", value_parser = seconds, global = true)]
    wait: Duration,
}

/// Reads a number of seconds, which may have a fraction.
pub fn seconds(text: &str) -> Result<Duration, String> {
    let duration = text.parse().ok().and_then(|seconds| Duration::try_from_secs_f64(seconds).ok());
    duration.ok_or_else(|| "write a number of seconds, as 5 or 0.2".into())
}

/// Asks at a socket, and says on stderr why it has to wait, if it has to.
pub fn ask(socket: &Path, question: &str, wait: Wait) -> Result<Value, AskError> {
    let mut progress = Progress::default();
    Client::new(socket, wait.wait).ask(question, &mut |error, pause| {
        progress.say(error, wait.wait);
        #[expect(clippy::disallowed_methods, reason = "a process that starts takes its time")]
        std::thread::sleep(pause);
        true
    })
}

/// What was said about waiting.
#[derive(Default)]
pub struct Progress {
    attempts: u32,
    said: Option<String>,
}

impl Progress {
    /// Attempts of which nothing is said: what takes no longer nobody wants to read of.
    const QUIET: u32 = 4;

    /// Says why it takes longer, each reason once.
    pub fn say(&mut self, error: &AskError, wait: Duration) {
        self.attempts += 1;
        let why = match error {
            AskError::Absent(path, _) => format!("nothing listens at {} yet", path.display()),
            other => other.to_string(),
        };
        if self.attempts > Self::QUIET && self.said.as_ref() != Some(&why) {
            note(&format!("{why}; waiting (at most {} s in all)", wait.as_secs_f64()));
            self.said = Some(why);
        }
    }
}
