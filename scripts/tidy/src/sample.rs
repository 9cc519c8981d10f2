//! Whether tests notice arbitrary changes: a sample of those that cargo-mutants makes.
//!
//! [`mutants`] breaks the rules that requirements state. This replaces any function's value, or any
//! operator, in the parts of the tree whose rules are decisions, and runs the tests of their crate.
//! A seed says which changes are tried, so that other runs try others and a run can be repeated.
//!
//! A change that no test notices is a rule without a test, or changes nothing that anybody could
//! see. `control/survivors.toml` lists those of the second kind, each with a reason; any other one
//! is a finding.

use std::collections::BTreeMap;
use std::io;
use std::path::Path;
use std::process::Command;

use serde::Deserialize;

use crate::mutants::{copy, quick_builds};
use crate::{Finding, Tree};

#[cfg(doc)]
use crate::mutants;

const SURVIVORS: &str = "control/survivors.toml";

/// A part of the tree that is sampled, and the tests that are to notice.
struct Part {
    package: &'static str,
    test_package: &'static str,
    files: &'static str,
    tests: &'static [&'static str],
    /// Tests that wait by the clock for minutes where a change breaks something.
    skipped: &'static [&'static str],
}

const PARTS: [Part; 3] = [
    Part {
        package: "pollux-control",
        test_package: "pollux-control",
        files: "control/src/**",
        tests: &["--lib", "--test=interface", "--test=ip"],
        skipped: &[],
    },
    Part {
        package: "pollux-hca",
        test_package: "pollux-fabric",
        files: "dataplane/hca/src/**",
        tests: &["--lib", "--test=fabric", "--test=conformance"],
        skipped: &["processes::", "threads::", "wired::"],
    },
    Part {
        package: "pollux",
        test_package: "pollux",
        files: "smoltcp-glue/src/**",
        tests: &["--lib", "--test=stack", "--test=nodes", "--test=pinned"],
        skipped: &[],
    },
];

/// Changes of what people read are not tried: no rule says how that is worded.
const EXCLUDED: &str = "impl (fmt::)?(Debug|Display) for";

/// A change that no test can notice.
#[derive(Clone, Debug, Deserialize, PartialEq, Eq)]
#[serde(deny_unknown_fields)]
pub struct Survivor {
    /// The changed file.
    pub file: String,
    /// The change as cargo-mutants names it, without its line and column.
    pub change: String,
    /// Why nothing that a test could see depends on it.
    pub reason: String,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct List {
    #[serde(default)]
    survivor: Vec<Survivor>,
}

/// The listed survivors, and what is wrong with their list.
pub fn read(tree: &Tree) -> (Vec<Survivor>, Vec<Finding>) {
    let text = tree.file(SURVIVORS).map_or("", |file| file.text.as_str());
    let listed = match toml::from_str::<List>(text) {
        Ok(list) => list.survivor,
        Err(error) => return (Vec::new(), vec![Finding::new(SURVIVORS, 0, error.message())]),
    };
    let faults = listed.iter().filter_map(|survivor| {
        let Survivor { file, change, reason } = survivor;
        match tree.file(file) {
            None => Some(format!("`{change}` is in {file}, which is not there")),
            Some(_) if reason.trim().is_empty() => Some(format!("`{change}` has no reason")),
            Some(_) => None,
        }
    });
    let findings = faults.map(|fault| Finding::new(SURVIVORS, 0, fault)).collect();
    (listed, findings)
}

/// Tries about `count` changes of each part in a copy of the tree, chosen by `seed`, and prints the
/// outcome. If `packages` names any, only those are sampled. The findings are the changes that no
/// test noticed and that are not listed.
pub fn run(
    root: &Path,
    (count, seed): (usize, usize),
    packages: &[&str],
) -> io::Result<Vec<Finding>> {
    let (listed, mut findings) = read(&Tree::read(root)?);
    let version = Command::new("cargo").args(["mutants", "--version"]).output()?;
    if !version.status.success() {
        let message = "cargo-mutants is not installed; run scripts/host-setup --mutants";
        findings.push(Finding::new(SURVIVORS, 0, message));
    }
    if !findings.is_empty() {
        return Ok(findings);
    }
    let at = root.join("target/mutants");
    copy(root, &at)?;
    let repeated = format!("sample {count} {seed} {}", packages.join(" "));
    println!("seed {seed}: `cargo run -p pollux-tidy -- {}` repeats this", repeated.trim_end());
    let is_chosen = |part: &&Part| packages.is_empty() || packages.contains(&part.package);
    for part in PARTS.iter().filter(is_chosen) {
        findings.extend(part.sample(root, &at, &listed, (count, seed))?);
    }
    Ok(findings)
}

impl Part {
    fn sample(
        &self,
        root: &Path,
        at: &Path,
        listed: &[Survivor],
        (count, seed): (usize, usize),
    ) -> io::Result<Vec<Finding>> {
        let Self { package, test_package, files, tests, skipped } = *self;
        let mutants = || {
            let mut cargo = Command::new("cargo");
            cargo.args(["mutants", "--package", package, "--file", files]);
            cargo.args(["--test-package", test_package]);
            cargo.args(["--exclude-re", EXCLUDED, "--colors", "never"]).current_dir(at);
            cargo.env_remove("CARGO_TARGET_DIR").env("RUST_BACKTRACE", "0");
            cargo.env("POLLUX_SEEDS", "1");
            cargo
        };
        let all = mutants().arg("--list").output()?;
        let all = String::from_utf8_lossy(&all.stdout).lines().count();
        let shards = all.div_ceil(count.max(1)).max(1);
        let shard = seed % shards;
        println!("{package}: {} of {all} changes", (shard..all).step_by(shards).len());
        // The output of an earlier run would be taken for that of this run.
        let output = root.join("target/sample").join(package);
        std::fs::create_dir_all(&output)?;
        let mut cargo = mutants();
        cargo.args(["--in-place", "--sharding", "round-robin"]);
        cargo.args(["--shard", &format!("{shard}/{shards}"), "--no-times"]);
        let to_cargo = quick_builds().map(|setting| format!("--config={setting}"));
        let to_cargo = to_cargo.chain(tests.iter().map(ToString::to_string));
        cargo.args(to_cargo.map(|argument| format!("--cargo-arg={argument}")));
        // Exit codes 2 and 3: something was missed, or took too long, which is noticed.
        cargo.args(["--timeout-multiplier", "3"]).arg("--output").arg(&output).args(["--", "--"]);
        cargo.args(skipped.iter().flat_map(|name| ["--skip", name]));
        let status = cargo.status()?;
        if !matches!(status.code(), Some(0 | 2 | 3)) {
            let message = format!("cargo mutants of {package} fails: {status}");
            return Ok(vec![Finding::new(files, 0, message)]);
        }
        let missed = std::fs::read_to_string(output.join("mutants.out/missed.txt"))?;
        Ok(unlisted(&missed, listed))
    }
}

/// The changes that were missed and that are not listed.
fn unlisted(missed: &str, listed: &[Survivor]) -> Vec<Finding> {
    let reasons: BTreeMap<_, _> =
        listed.iter().map(|it| ((it.file.as_str(), it.change.as_str()), &it.reason)).collect();
    let mut findings = Vec::new();
    for line in missed.lines() {
        // The path, the line, the column and the change.
        let parts: Vec<&str> = line.splitn(4, ':').collect();
        let [path, number, _, change] = parts[..] else {
            findings.push(Finding::new(SURVIVORS, 0, format!("cannot read `{line}`")));
            continue;
        };
        let change = change.trim();
        match reasons.get(&(path, change)) {
            Some(reason) => println!("listed {line}: {reason}"),
            None => {
                let message = format!("no test notices: {change}");
                findings.push(Finding::new(path, number.parse().unwrap_or(0), message));
            }
        }
    }
    findings
}

#[cfg(test)]
mod tests {
    use super::*;

    const LIST: &str = "[[survivor]]\nfile = \"a/b.rs\"\nchange = \"replace < with <= in f\"\n\
        reason = \"a hint of how much room to reserve\"\n";

    fn faults_of(list: &str) -> Vec<String> {
        let (_, findings) = read(&Tree::of(&[(SURVIVORS, list), ("a/b.rs", "")]));
        findings.iter().map(|finding| finding.message.clone()).collect()
    }

    #[test]
    fn a_survivor_has_a_file_and_a_reason() {
        assert_eq!(faults_of(LIST), [""; 0]);
        let elsewhere = "`replace < with <= in f` is in a/c.rs, which is not there";
        assert_eq!(faults_of(&LIST.replace("b.rs", "c.rs")), [elsewhere]);
        let bare = LIST.replace("a hint of how much room to reserve", " ");
        assert_eq!(faults_of(&bare), ["`replace < with <= in f` has no reason"]);
    }

    #[test]
    fn only_changes_that_are_not_listed_are_findings() {
        let (listed, _) = read(&Tree::of(&[(SURVIVORS, LIST), ("a/b.rs", "")]));
        let missed = "a/b.rs:7:5: replace < with <= in f\na/b.rs:9:1: replace g::h -> u8 with 0\n";
        let found = Finding::new("a/b.rs", 9, "no test notices: replace g::h -> u8 with 0");
        assert_eq!(unlisted(missed, &listed), [found]);
        assert_eq!(unlisted("", &listed), []);
    }
}
