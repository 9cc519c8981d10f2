//! What commands print. A reader that has gone ends a command that prints for it, without a word,
//! as other tools of Unix end; a full disk is an error.

use std::fmt;
use std::io::{self, ErrorKind, Write};

/// The status of a command whose reader has gone: that of a process that SIGPIPE has ended.
pub const READER_GONE: u8 = 128 + 13;

/// What standard output does not take.
#[derive(Debug)]
pub struct OutputError(io::Error);

impl OutputError {
    /// Whether nobody reads any more.
    pub fn is_reader_gone(&self) -> bool {
        self.0.kind() == ErrorKind::BrokenPipe
    }
}

impl fmt::Display for OutputError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "standard output: {}", self.0)
    }
}

impl std::error::Error for OutputError {}

/// Prints a text, whole.
pub fn print(text: &str) -> Result<(), OutputError> {
    let mut stdout = io::stdout().lock();
    stdout.write_all(text.as_bytes()).and_then(|()| stdout.flush()).map_err(OutputError)
}

/// A line of progress of what runs on whether or not it is read.
pub fn say(line: &str) {
    let _ = writeln!(io::stdout(), "{line}");
}

/// A line for people beside the output.
pub fn note(line: &str) {
    let _ = writeln!(io::stderr(), "pollux: {line}");
}
