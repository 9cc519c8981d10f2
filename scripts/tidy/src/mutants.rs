//! Whether claims of the ledger are honest: rules broken one at a time, each of which the test that
//! claims its requirement has to notice.
//!
//! `control/mutants.toml` says where a rule is kept, and how it reads when it is broken. A copy of
//! the tree in `target/mutants` is built with one rule broken, and the claiming test runs there.
//! All tests run there once with nothing broken: one that fails anyway notices nothing. Every
//! requirement that a test claims has a mutant.

use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::path::{Path, PathBuf};
use std::process::Command;

use serde::Deserialize;

use crate::ledger::Ledger;
use crate::{Finding, Tree, tree};

const MUTANTS: &str = "control/mutants.toml";

/// A rule, how it is broken, and who has to notice.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Mutant {
    /// The requirement that the rule is of.
    pub req: String,
    /// A test that claims it.
    pub test: String,
    /// Where that is.
    pub test_file: String,
    /// Where the rule is kept.
    pub file: String,
    /// The text there, once.
    pub find: String,
    /// The text of the broken rule.
    pub put: String,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct List {
    mutant: Vec<Mutant>,
}

/// The outcome of the test of a mutant.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MutantOutcome {
    /// The test failed, as it has to.
    Noticed,
    /// The test passed: its claim is hollow.
    Survived,
    /// The broken rule is no program.
    NotBuilt,
}

impl Mutant {
    /// Its faults, as far as the tree shows them.
    fn faults(&self, tree: &Tree, ledger: &Ledger) -> Vec<String> {
        let Self { req, file, find, .. } = self;
        let mut faults = Vec::new();
        let text = tree.file(file).map_or("", |file| file.text.as_str());
        match text.matches(find.as_str()).count() {
            1 => {}
            count => faults.push(format!("{req}: `{find}` is in {file} {count} times, not once")),
        }
        let (path, name) = (self.test_file.as_str(), self.test.as_str());
        let is_named = |claim: &String| {
            let claim = claim.split_once(' ').map(|(at, claimed)| (at.split(':').next(), claimed));
            claim == Some((Some(path), name))
        };
        let requirement = ledger.requirements.iter().find(|known| known.id == *req);
        if !requirement.is_some_and(|known| known.tests.iter().any(is_named)) {
            faults.push(format!("{req} is not claimed by {name} in {path}"));
        }
        faults
    }
}

/// All mutants, and what is wrong with their list: a requirement that a test claims needs one.
pub fn read(tree: &Tree) -> (Vec<Mutant>, Vec<Finding>) {
    let text = tree.file(MUTANTS).map_or("", |file| file.text.as_str());
    let mutants = match toml::from_str::<List>(text) {
        Ok(list) => list.mutant,
        Err(error) => return (Vec::new(), vec![Finding::new(MUTANTS, 0, error.message())]),
    };
    let (ledger, _) = Ledger::read(tree);
    let faults = mutants.iter().flat_map(|mutant| mutant.faults(tree, &ledger));
    let has_mutant = |id: &String| mutants.iter().any(|mutant| mutant.req == *id);
    let claimed = ledger.requirements.iter().filter(|known| !known.tests.is_empty());
    let missing = claimed.filter(|known| !has_mutant(&known.id));
    let missing = missing.map(|known| format!("{} is claimed and has no mutant", known.id));
    let findings = faults.chain(missing).map(|fault| Finding::new(MUTANTS, 0, fault)).collect();
    (mutants, findings)
}

/// Tries the mutants of the given requirements (of all, if none is given) in a copy of the tree,
/// and prints a line for each. The findings are the mutants that no test noticed.
pub fn run(root: &Path, requirements: &[&str]) -> io::Result<Vec<Finding>> {
    let tree = Tree::read(root)?;
    let (mut mutants, mut findings) = read(&tree);
    for id in requirements {
        if mutants.iter().all(|mutant| mutant.req != *id) {
            findings.push(Finding::new(MUTANTS, 0, format!("{id} has no mutant")));
        }
    }
    if !findings.is_empty() {
        return Ok(findings);
    }
    mutants.retain(|mutant| requirements.is_empty() || requirements.contains(&&*mutant.req));
    let bench = Bench { tree: &tree, at: root.join("target/mutants") };
    copy(root, &bench.at)?;
    let suites: BTreeMap<Vec<String>, BTreeSet<&str>> =
        mutants.iter().fold(BTreeMap::new(), |mut suites, mutant| {
            let names = suites.entry(bench.suite(&mutant.test_file)).or_default();
            names.insert(mutant.test.as_str());
            suites
        });
    for (suite, names) in suites {
        if bench.test(&suite, &names)? != MutantOutcome::Survived {
            let message = format!("tests of cargo test {} fail anyway", suite.join(" "));
            return Ok(vec![Finding::new(MUTANTS, 0, message)]);
        }
    }
    for mutant in &mutants {
        let outcome = bench.try_mutant(mutant)?;
        let Mutant { req, test, test_file, file, .. } = mutant;
        println!("{:<9} {req:<28} {test_file} {test}", format!("{outcome:?}").to_lowercase());
        if outcome != MutantOutcome::Noticed {
            let message = format!("{req}: {outcome:?} though {file} is broken");
            findings.push(Finding::new(test_file, 0, message));
        }
    }
    println!("{} rules broken, {} of that unnoticed", mutants.len(), findings.len());
    Ok(findings)
}

/// A copy of the tree to break things in. Cargo builds it in a place of its own: it takes packages
/// of two trees for the same, and would serve the tree's own tests with what was built of the copy.
struct Bench<'a> {
    tree: &'a Tree,
    at: PathBuf,
}

impl Bench<'_> {
    /// Which package and target of cargo's a file with tests belongs to.
    fn suite(&self, path: &str) -> Vec<String> {
        let (package, target) = match (path.split_once("/src/"), path.split_once("/tests/")) {
            (Some((package, _)), _) => (package, "--lib"),
            (None, Some((package, rest))) => (package, rest.split(['/', '.']).next().unwrap_or("")),
            (None, None) => (path, "--lib"),
        };
        let manifest = self.tree.file(&format!("{package}/Cargo.toml"));
        let lines = manifest.map_or("", |file| file.text.as_str()).lines();
        let name = lines.filter_map(|line| line.strip_prefix("name = \"")).next().unwrap_or("");
        let mut suite = vec!["--package".into(), name.trim_end_matches('"').into()];
        match target {
            "--lib" => suite.push(target.into()),
            target => suite.extend(["--test".into(), target.into()]),
        }
        suite
    }

    fn try_mutant(&self, mutant: &Mutant) -> io::Result<MutantOutcome> {
        let at = self.at.join(&mutant.file);
        let whole = std::fs::read_to_string(&at)?;
        std::fs::write(&at, whole.replacen(&mutant.find, &mutant.put, 1))?;
        let names = BTreeSet::from([mutant.test.as_str()]);
        let outcome = self.test(&self.suite(&mutant.test_file), &names);
        std::fs::write(&at, whole)?;
        outcome
    }

    /// Runs tests of a target by their names: built quickly, and suites that repeat themselves by
    /// seed run once.
    fn test(&self, suite: &[String], names: &BTreeSet<&str>) -> io::Result<MutantOutcome> {
        let mut cargo = Command::new("cargo");
        cargo.args(["test", "--quiet"]);
        cargo.args(quick_builds().flat_map(|setting| ["--config".into(), setting]));
        if suite.last().is_some_and(|target| target == "conformance") {
            cargo.env("POLLUX_SEEDS", "1");
        }
        cargo.args(suite).arg("--").args(names);
        cargo.current_dir(&self.at);
        cargo.env_remove("CARGO_TARGET_DIR").env("RUST_BACKTRACE", "0");
        let output = cargo.output()?;
        let said = String::from_utf8_lossy(&output.stdout);
        let has_run = !said.contains(" 0 passed; 0 failed");
        Ok(match (output.status.success(), said.contains("test result: ")) {
            (true, true) if has_run => MutantOutcome::Survived,
            (false, true) => MutantOutcome::Noticed,
            _ => {
                eprintln!("{}", String::from_utf8_lossy(&output.stderr));
                MutantOutcome::NotBuilt
            }
        })
    }
}

/// Brings a copy of the tree up to date. Files that are the same stay as they are, so that cargo
/// need not build them again; files that the tree does not have any more go.
pub(crate) fn copy(root: &Path, to: &Path) -> io::Result<()> {
    let paths = tree::paths(root)?;
    for path in &paths {
        let Ok(bytes) = std::fs::read(root.join(path)) else { continue };
        let to_path = to.join(path);
        if std::fs::read(&to_path).ok().as_ref() != Some(&bytes) {
            std::fs::create_dir_all(to_path.parent().unwrap_or(to))?;
            std::fs::write(to_path, bytes)?;
        }
    }
    for path in tree::paths(to)? {
        if paths.binary_search(&path).is_err() {
            std::fs::remove_file(to.join(path))?;
        }
    }
    Ok(())
}

/// Settings of cargo's by which changed crates are built quickly rather than well.
pub(crate) fn quick_builds() -> impl Iterator<Item = String> {
    ["pollux-control", "pollux-fabric", "pollux-hca", "pollux-subnet"].into_iter().flat_map(
        |package| {
            let setting = move |setting| format!("profile.dev.package.{package}.{setting}");
            ["debug=false", "opt-level=0"].into_iter().map(setting)
        },
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    const LIST: &str = "[[req]]\nid = \"a\"\nsource = \"s\"\nlevel = \"must\"\ntext = \"t\"\n";
    const MUTANT: &str = "[[mutant]]\nreq = \"a\"\ntest = \"holds\"\n\
        test_file = \"x/src/b.rs\"\nfile = \"x/src/c.rs\"\nfind = \"1\"\nput = \"2\"\n";

    fn read_with(claim: &str, rule: &str, mutant: &str) -> Vec<String> {
        let files = [
            ("control/requirements.toml", LIST),
            (MUTANTS, mutant),
            ("x/src/b.rs", claim),
            ("x/src/c.rs", rule),
        ];
        let (_, findings) = read(&Tree::of(&files));
        findings.iter().map(|finding| finding.message.clone()).collect()
    }

    #[test]
    fn a_claim_has_a_mutant_that_breaks_one_place_and_names_the_test() {
        let claim = "// req: a\n#[test]\nfn holds() {}\n";
        assert_eq!(read_with(claim, "f(1)", MUTANT), [""; 0]);
        let twice = "a: `1` is in x/src/c.rs 2 times, not once";
        assert_eq!(read_with(claim, "f(1, 1)", MUTANT), [twice]);
        let unclaimed = "a is not claimed by holds in x/src/b.rs";
        assert_eq!(read_with("#[test]\nfn holds() {}\n", "f(1)", MUTANT), [unclaimed]);
        assert_eq!(read_with(claim, "f(1)", "mutant = []"), ["a is claimed and has no mutant"]);
        assert_eq!(read_with(claim, "f(1)", "mutant = 1").len(), 1);
    }

    #[test]
    fn a_file_of_tests_belongs_to_a_target() {
        let manifest = "[package]\nname = \"own-x\"\n";
        let tree = Tree::of(&[("x/y/Cargo.toml", manifest)]);
        let bench = Bench { tree: &tree, at: PathBuf::new() };
        assert_eq!(bench.suite("x/y/src/a/b.rs"), ["--package", "own-x", "--lib"]);
        let suite = ["--package", "own-x", "--test", "z"];
        assert_eq!(bench.suite("x/y/tests/z/a.rs"), suite);
        assert_eq!(bench.suite("x/y/tests/z.rs"), suite);
    }
}
