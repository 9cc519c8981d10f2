//! Aborts the program when this library panics, which means that an invariant of its own is broken.
//!
//! Why: all threads of the program depend on the adapter's thread. Without it they would wait
//! forever for completions or for the adapter's lock. So a panic ends the program, as a failed
//! assertion in libc does.

use std::panic::PanicHookInfo;

/// Makes later panics of this library end the program with SIGABRT. A program in Rust has its own
/// copy of the standard library, so its panics use another hook.
pub(crate) fn end_program_at_panic() {
    std::panic::set_hook(Box::new(|panic| {
        eprintln!("{}", report(panic));
        std::process::abort();
    }));
}

/// The message for a panic, in one line: what happened, where, and what to do about it.
fn report(panic: &PanicHookInfo<'_>) -> String {
    let what = panic.payload_as_str().unwrap_or("no message").replace('\n', " ");
    let at = panic.location().map_or("somewhere".into(), ToString::to_string);
    let version = env!("CARGO_PKG_VERSION");
    format!(
        "pollux-connectx {version}: internal error at {at}: {what}; the program ends; please \
         report this line as an issue of Pollux"
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use rustix::process::Signal;
    use std::os::unix::process::ExitStatusExt;
    use std::process::Command;

    /// The environment variable that makes [`panics_in_a_thread`] panic.
    const PANICS: &str = "POLLUX_TEST_PANICS";

    /// Runs in a process that the next test starts. Otherwise, it does nothing.
    #[test]
    #[expect(clippy::disallowed_methods, reason = "the next test sets it")]
    fn panics_in_a_thread() {
        if std::env::var_os(PANICS).is_none() {
            return;
        }
        end_program_at_panic();
        let thread = std::thread::Builder::new().spawn(|| panic!("two\nlines")).unwrap();
        let _ = thread.join();
    }

    #[test]
    fn a_panic_of_any_thread_ends_the_program_with_one_line() {
        let mut child = Command::new(std::env::current_exe().unwrap());
        child
            .args(["--exact", "panics::tests::panics_in_a_thread", "--nocapture"])
            .env(PANICS, "1");
        let ended = child.output().unwrap();
        assert_eq!(ended.status.signal(), Some(Signal::ABORT.as_raw()));
        let text = String::from_utf8(ended.stderr).unwrap();
        assert_eq!(text.lines().count(), 1, "{text}");
        for part in ["internal error at dataplane/connectx/src/panics.rs:", "two lines", "report"] {
            assert!(text.contains(part), "no {part:?} in {text}");
        }
    }
}
