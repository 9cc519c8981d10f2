//! What running commands have in common: they say how they go, and end when a signal says so.

use signal_hook::consts::{SIGINT, SIGTERM};
use std::io::Write;
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

/// A line of progress. That nobody reads it any more is no reason to end.
pub fn say(line: &str) {
    let _ = writeln!(std::io::stdout(), "{line}");
}

/// What wakes on a signal that is to end us, and says so.
pub fn signals() -> std::io::Result<(UnixStream, Arc<AtomicBool>)> {
    let (wake, signalled) = UnixStream::pair()?;
    let is_over = Arc::new(AtomicBool::new(false));
    for signal in [SIGINT, SIGTERM] {
        signal_hook::flag::register(signal, Arc::clone(&is_over))?;
        signal_hook::low_level::pipe::register(signal, signalled.try_clone()?)?;
    }
    Ok((wake, is_over))
}
