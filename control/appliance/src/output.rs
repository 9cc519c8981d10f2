//! Output of commands. A closed pipe ends a command without a message, as with other Unix tools;
//! lines of progress ignore it. A full disk is an error.

use serde::Serialize;
use std::error::Error;
use std::io::{self, ErrorKind, Write};

/// Exit status after a closed pipe: that of a process ended by SIGPIPE.
pub const READER_GONE: u8 = 128 + 13;

#[derive(Debug, thiserror::Error)]
#[error("cannot write to standard output: {0}")]
pub struct OutputError(io::Error);

impl OutputError {
    pub fn is_reader_gone(&self) -> bool {
        self.0.kind() == ErrorKind::BrokenPipe
    }
}

pub fn print(text: &str) -> Result<(), OutputError> {
    let mut stdout = io::stdout().lock();
    stdout.write_all(text.as_bytes()).and_then(|()| stdout.flush()).map_err(OutputError)
}

/// Prints a value as a line of JSON, or as text.
pub fn print_value<T: Serialize>(
    is_json: bool,
    value: T,
    text: impl FnOnce(T) -> String,
) -> Result<(), Box<dyn Error>> {
    let text = match is_json {
        true => serde_json::to_string(&value)? + "\n",
        false => text(value),
    };
    Ok(print(&text)?)
}

/// Prints a line of progress or of a log. Write errors are ignored, so the command continues
/// without a reader.
pub fn say(line: &str) {
    let _ = writeln!(io::stdout(), "{line}");
}

pub fn note(line: &str) {
    let _ = writeln!(io::stderr(), "pollux: {line}");
}
