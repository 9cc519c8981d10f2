//! Signals: SIGINT and SIGTERM end a command; SIGHUP reloads the configuration of a node, and ends
//! other commands.

use pollux_node::node::Order;
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};
use std::io::Read;
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

/// The signals of a node. SIGHUP reloads its configuration; but after its terminal was closed, for
/// which the kernel also sends SIGHUP, the signal ends the node.
pub struct NodeSignals {
    has_terminal: bool,
    wake: UnixStream,
    is_over: Arc<AtomicBool>,
    reloads: Arc<AtomicBool>,
}

impl NodeSignals {
    pub fn catch() -> std::io::Result<Self> {
        let (is_over, reloads) = (Arc::default(), Arc::default());
        let wake = register([(SIGINT, &is_over), (SIGTERM, &is_over), (SIGHUP, &reloads)])?;
        wake.set_nonblocking(true)?;
        Ok(Self { has_terminal: has_terminal(), wake, is_over, reloads })
    }

    pub fn wake(&self) -> &UnixStream {
        &self.wake
    }

    pub fn next_order(&self) -> Order {
        while matches!((&self.wake).read(&mut [0; 64]), Ok(1..)) {}
        match self.is_over.load(Ordering::Relaxed) {
            true => Order::End,
            false if !self.reloads.swap(false, Ordering::Relaxed) => Order::Run,
            false if self.has_terminal && !has_terminal() => Order::End,
            false => Order::Reload,
        }
    }
}

fn has_terminal() -> bool {
    std::fs::File::open("/dev/tty").is_ok()
}

/// A stream that becomes readable on a signal that ends a command, and a flag that is set then.
pub fn signals() -> std::io::Result<(UnixStream, Arc<AtomicBool>)> {
    let is_over = Arc::default();
    let wake = register([SIGINT, SIGTERM, SIGHUP].map(|signal| (signal, &is_over)))?;
    Ok((wake, is_over))
}

/// Handles signals: each sets its flag, and makes the returned stream readable. SIGHUP stays
/// ignored in a process that ignores it (`nohup`).
fn register(signals: [(i32, &Arc<AtomicBool>); 3]) -> std::io::Result<UnixStream> {
    let (wake, signaled) = UnixStream::pair()?;
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    for (signal, flag) in signals {
        if signal == SIGHUP && is_ignored(&status, SIGHUP) {
            continue;
        }
        signal_hook::flag::register(signal, Arc::clone(flag))?;
        signal_hook::low_level::pipe::register(signal, signaled.try_clone()?)?;
    }
    Ok(wake)
}

/// Waits for this time, or until a signal.
pub fn wait(mut wake: &UnixStream, time: Duration) -> std::io::Result<()> {
    if !time.is_zero() {
        wake.set_read_timeout(Some(time))?;
        // `read` returns a timeout as an error.
        let _ = wake.read(&mut [0]);
    }
    Ok(())
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
    fn the_status_of_a_process_shows_ignored_signals() {
        let status = "Name:\tpollux\nSigBlk:\t0000000000000003\nSigIgn:\t0000000000001001\n";
        let ignored = [SIGHUP, SIGINT, 13, SIGTERM].map(|signal| is_ignored(status, signal));
        assert_eq!(ignored, [true, false, true, false]);
        assert!(!is_ignored("", SIGHUP));
    }
}
