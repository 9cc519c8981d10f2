//! Rules about the tiers of tests: that each test is in one, and that none is flaky for ever.
//!
//! The tier `quick` runs all tests but those that `.config/nextest.toml` leaves out by name; the
//! tier `deep` runs all. So a test is in no tier only if a manifest keeps cargo from running its
//! target.

use serde::Deserialize;

use crate::{Finding, Tree};

const CHECK: &str = "scripts/check";
const NEXTEST: &str = ".config/nextest.toml";
const FLAKY: &str = "scripts/flaky.toml";

/// The command by which the tier `deep` runs all tests.
const ALL: &str = "cargo test --workspace --all-features --no-fail-fast\"\n";
/// Settings by which cargo does not run a target's tests. Fuzz targets have none.
const OPT_OUTS: [&str; 3] = ["test = false", "doctest = false", "autotests = false"];
const FUZZ: &str = "dataplane/wire/fuzz/Cargo.toml";
/// Entries of a test that are not mended, at which it has to be.
const ENTRIES_MAX: usize = 3;

/// Each test is in the tier `deep`, and what the tier `quick` leaves out is there.
pub fn hold_every_test(tree: &Tree) -> Vec<Finding> {
    let mut findings = Vec::new();
    let Some(check) = tree.file(CHECK) else { return findings };
    let is_deep = |line: &str| line.starts_with("deep_steps=(") && line.contains("workspace");
    if !check.text.contains(ALL) || !check.text.lines().any(is_deep) {
        findings.push(Finding::new(CHECK, 0, "the tier `deep` does not run all tests"));
    }
    for file in tree.files.iter().filter(|file| file.path.ends_with("Cargo.toml")) {
        for (i, line) in file.text.lines().enumerate() {
            if file.path != FUZZ && OPT_OUTS.contains(&line.trim()) {
                let message = "tests of this target run in no tier";
                findings.push(Finding::new(&file.path, i + 1, message));
            }
        }
    }
    let lines = tree.file(NEXTEST).into_iter().flat_map(|file| file.text.lines());
    for (i, line) in lines.enumerate() {
        for binary in binaries(line).filter(|binary| !is_target(tree, binary)) {
            findings.push(Finding::new(NEXTEST, i + 1, format!("there is no `{binary}`")));
        }
    }
    findings
}

/// The test binaries that a line of a filter names.
fn binaries(line: &str) -> impl Iterator<Item = &str> {
    line.split("binary_id(").skip(1).filter_map(|rest| Some(rest.split_once(')')?.0))
}

/// Whether a package, of this name or with a program of this name, has a test target.
fn is_target(tree: &Tree, binary: &str) -> bool {
    let Some((package, target)) = binary.split_once("::") else { return false };
    let name = format!("name = \"{package}\"");
    let manifests = tree.files.iter().filter(|file| file.text.lines().any(|line| line == name));
    manifests.filter_map(|file| file.path.strip_suffix("Cargo.toml")).any(|folder| {
        let file = tree.file(&format!("{folder}tests/{target}.rs"));
        file.or_else(|| tree.file(&format!("{folder}tests/{target}/main.rs"))).is_some()
    })
}

/// That a test failed and then passed alone.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Entry {
    /// As scripts/test-quick prints it: binary and name.
    test: String,
    date: String,
    /// The cause, as far as it is known.
    known: String,
    /// The change that mended it.
    mended: Option<String>,
}

#[derive(Default, Deserialize)]
#[serde(deny_unknown_fields)]
struct List {
    #[serde(default)]
    flaky: Vec<Entry>,
}

/// Each entry of the list of flaky tests is of a test that exists, and none has its third.
pub fn flaky_tests_are_mended(tree: &Tree) -> Vec<Finding> {
    let text = tree.file(FLAKY).map_or("", |file| file.text.as_str());
    let list = match toml::from_str::<List>(text) {
        Ok(list) => list.flaky,
        Err(error) => return vec![Finding::new(FLAKY, 0, error.message())],
    };
    let mut findings = Vec::new();
    let mut add = |message| findings.push(Finding::new(FLAKY, 0, message));
    for (nth, Entry { test, date, known, .. }) in list.iter().enumerate() {
        let function = format!("fn {}(", test.rsplit([' ', ':']).next().unwrap_or_default());
        if !tree.rust().any(|file| file.text.contains(&function)) {
            add(format!("there is no test `{test}`; delete its entry"));
        }
        if date.is_empty() || known.is_empty() {
            add(format!("`{test}` says no date, or not what is known"));
        }
        let is_open = |entry: &&Entry| entry.test == *test && entry.mended.is_none();
        if list[..=nth].iter().filter(is_open).count() == ENTRIES_MAX {
            add(format!("`{test}` was flaky {ENTRIES_MAX} times; mend it"));
        }
    }
    findings
}

#[cfg(test)]
mod tests {
    use super::*;

    const DEEP: &str = "deep_steps=(workspace loom)\n";

    fn found(rule: fn(&Tree) -> Vec<Finding>, files: &[(&str, &str)]) -> Vec<String> {
        rule(&Tree::of(files)).iter().map(ToString::to_string).collect()
    }

    #[test]
    fn a_target_that_is_not_run_or_does_not_exist_is_found() {
        let check = format!("#!/bin/sh\n{DEEP}{ALL}");
        let package = "[package]\nname = \"a\"\n";
        let filter = "default-filter = 'not binary_id(a::long)'\n";
        let files = [
            (CHECK, check.as_str()),
            ("a/Cargo.toml", package),
            ("a/tests/long.rs", ""),
            (NEXTEST, filter),
        ];
        assert_eq!(found(hold_every_test, &files), [""; 0]);

        assert_eq!(
            found(hold_every_test, &[files[0], files[1], files[3]]),
            [".config/nextest.toml:1: there is no `a::long`"]
        );
        let opted_out = format!("{package}autotests = false\n");
        assert_eq!(
            found(hold_every_test, &[files[0], ("a/Cargo.toml", &opted_out)]),
            ["a/Cargo.toml:3: tests of this target run in no tier"]
        );
        assert_eq!(
            found(hold_every_test, &[(CHECK, DEEP)]),
            ["scripts/check: the tier `deep` does not run all tests"]
        );
    }

    #[test]
    fn a_test_that_is_flaky_for_the_third_time_is_found_unless_mended() {
        let source = ("a.rs", "fn it_holds() {}\n");
        let entry = "[[flaky]]\ntest = 'a::b c::it_holds'\ndate = '2026-11-26'\nknown = 'load'\n";
        let thrice = entry.repeat(3);
        assert_eq!(found(flaky_tests_are_mended, &[source, (FLAKY, &entry.repeat(2))]), [""; 0]);
        assert_eq!(
            found(flaky_tests_are_mended, &[source, (FLAKY, &thrice)]),
            ["scripts/flaky.toml: `a::b c::it_holds` was flaky 3 times; mend it"]
        );
        let mended = format!("{thrice}mended = 'abc'\n");
        assert_eq!(found(flaky_tests_are_mended, &[source, (FLAKY, &mended)]), [""; 0]);
        assert_eq!(
            found(flaky_tests_are_mended, &[(FLAKY, entry)]),
            ["scripts/flaky.toml: there is no test `a::b c::it_holds`; delete its entry"]
        );
    }
}
