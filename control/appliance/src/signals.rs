//! Signals that end a command in order.

use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

/// A stream that becomes readable on a signal that ends the process, and a flag that is set then.
/// SIGHUP, of a closed terminal, is one unless the parent ignores it (`nohup`).
pub fn signals() -> std::io::Result<(UnixStream, Arc<AtomicBool>)> {
    let (wake, signaled) = UnixStream::pair()?;
    let is_over = Arc::new(AtomicBool::new(false));
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    for signal in [SIGINT, SIGTERM, SIGHUP] {
        if signal == SIGHUP && is_ignored(&status, SIGHUP) {
            continue;
        }
        signal_hook::flag::register(signal, Arc::clone(&is_over))?;
        signal_hook::low_level::pipe::register(signal, signaled.try_clone()?)?;
    }
    Ok((wake, is_over))
}

/// Whether a process with this status ignores a signal (proc_pid_status(5)).
fn is_ignored(status: &str, signal: i32) -> bool {
    let mask = status.lines().find_map(|line| line.strip_prefix("SigIgn:"));
    let mask = mask.and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok()).unwrap_or(0);
    mask >> (signal - 1) & 1 != 0
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_status_of_a_process_says_what_it_ignores() {
        let status = "Name:\tpollux\nSigBlk:\t0000000000000003\nSigIgn:\t0000000000001001\n";
        let ignored = [SIGHUP, SIGINT, 13, SIGTERM].map(|signal| is_ignored(status, signal));
        assert_eq!(ignored, [true, false, true, false]);
        assert!(!is_ignored("", SIGHUP));
    }
}
