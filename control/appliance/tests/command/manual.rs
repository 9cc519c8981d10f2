//! Manual pages and completions, which the example `pages` makes of what the command accepts.

#[expect(dead_code, reason = "its main function is that of the example")]
#[path = "../../examples/pages.rs"]
pub mod pages;

use crate::running::folder;
use std::collections::BTreeSet;
use std::path::Path;
use std::process::{Command, Stdio};

/// The output of a program that reads a file: empty for a valid one. `None`, with a printed reason,
/// if the test is skipped.
fn says(test: &str, program: &[&str], file: &Path) -> Option<String> {
    pollux_referee::program(test, program[0])?;
    let mut command = Command::new(program[0]);
    command.args(&program[1..]).arg(file).stdin(Stdio::null()).env("LC_ALL", "C.UTF-8");
    // Long words of usage lines are no fault of a page.
    command.env("MANWIDTH", "250");
    let output = command.output().expect("it starts");
    let printed = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(output.status.success() || !printed.is_empty(), "{program:?}: {}", output.status);
    Some(printed)
}

/// The names of a command and of those below it.
fn names(command: &clap::Command, name: &str, all: &mut BTreeSet<String>) {
    all.insert(name.into());
    for subcommand in command.get_subcommands() {
        names(subcommand, &format!("{name}-{}", subcommand.get_name()), all);
    }
}

#[test]
fn every_command_has_a_manual_page_that_formatters_take_without_warnings() {
    let test = "every_command_has_a_manual_page";
    let folder = folder("manual");
    let files = pages::write(&folder, "2026-01-01").expect("there is space");
    let is_page = |file: &&std::path::PathBuf| file.extension().is_some_and(|it| it == "1");
    let found: BTreeSet<_> = files.iter().filter(is_page).collect();
    let mut wanted = BTreeSet::new();
    names(&pollux_appliance::command(), "pollux", &mut wanted);
    let wanted: BTreeSet<_> = wanted.iter().map(|name| folder.join(format!("{name}.1"))).collect();
    assert_eq!(found, wanted.iter().collect());
    let groff = ["man", "--warnings", "-E", "UTF-8", "-Tutf8", "-Z", "-l"];
    let mandoc = ["mandoc", "-T", "lint", "-W", "warning"];
    for file in found {
        for program in [&groff[..], &mandoc] {
            let printed = says(test, program, file).unwrap_or_default();
            assert_eq!(printed, "", "{}", file.display());
        }
        let text = std::fs::read_to_string(file).expect("it was written");
        assert!(text.contains("2026\\-01\\-01") || text.contains("2026-01-01"), "{text}");
    }
    let _ = std::fs::remove_dir_all(&folder);
}

#[test]
fn completions_are_programs_of_their_shells() {
    let test = "completions_are_programs_of_their_shells";
    let folder = folder("completions");
    pages::write(&folder, "2026-01-01").expect("there is space");
    for (shell, file) in [("bash", "pollux.bash"), ("zsh", "_pollux"), ("fish", "pollux.fish")] {
        let Some(printed) = says(test, &[shell, "-n"], &folder.join(file)) else { continue };
        assert_eq!(printed, "", "{shell}");
    }
    // What a user gets after `pollux fa` and a tab.
    let script = "source \"$1\"; COMP_WORDS=(pollux fa) COMP_CWORD=1; \
        _pollux pollux fa pollux; echo \"${COMPREPLY[*]}\"";
    let file = folder.join("pollux.bash");
    let bash = Command::new("bash").args(["-c", script, "bash"]).arg(file).output();
    let output = bash.expect("it starts");
    let printed = String::from_utf8_lossy(&output.stdout).into_owned();
    assert_eq!(printed, "fabric fault\n", "{}", String::from_utf8_lossy(&output.stderr));
    let _ = std::fs::remove_dir_all(&folder);
}
