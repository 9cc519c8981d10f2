//! Output of commands. A closed pipe ends a command without a message, as with other Unix tools; a
//! full disk is an error.

use std::fmt;
use std::io::{self, ErrorKind, Write};

/// Exit status after a closed pipe: that of a process ended by SIGPIPE.
pub const READER_GONE: u8 = 128 + 13;

#[derive(Debug)]
pub struct OutputError(io::Error);

impl OutputError {
    pub fn is_reader_gone(&self) -> bool {
        self.0.kind() == ErrorKind::BrokenPipe
    }
}

impl fmt::Display for OutputError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "cannot write to standard output: {}", self.0)
    }
}

impl std::error::Error for OutputError {}

pub fn print(text: &str) -> Result<(), OutputError> {
    let mut stdout = io::stdout().lock();
    stdout.write_all(text.as_bytes()).and_then(|()| stdout.flush()).map_err(OutputError)
}

/// Prints a progress line. Write errors are ignored, so the command runs on without a reader.
pub fn say(line: &str) {
    let _ = writeln!(io::stdout(), "{line}");
}

pub fn note(line: &str) {
    let _ = writeln!(io::stderr(), "pollux: {line}");
}
