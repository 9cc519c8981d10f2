//! The end of a program in which this library broke an invariant of its own.
//!
//! The adapter's thread works for all threads of the program. Without it they would wait for ever,
//! or for the adapter's lock; so a panic ends the program, as an assertion of libc does.

use std::panic::PanicHookInfo;

/// Has any later panic of this library end the program by SIGABRT. The program's own panics have
/// another hook, also if it is in Rust.
pub(crate) fn end_program_at_panic() {
    std::panic::set_hook(Box::new(|panic| {
        eprintln!("{}", report(panic));
        std::process::abort();
    }));
}

/// One line: what happened, where, and what to do about it.
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

    /// The variable of a process that is to panic.
    const PANICS: &str = "POLLUX_TEST_PANICS";

    /// In a process of its own, which the next test makes.
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
