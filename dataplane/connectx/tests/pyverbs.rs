//! rdma-core's own tests, as Debian has them beside pyverbs, on the ConnectX in software.
//!
//! Each module runs in a Python of its own, at a host of a fabric of this process; the table shows
//! what passed, what was left out and why, and what failed. `scripts/host-setup --hca` installs
//! pyverbs and the tests. The quick tier leaves this out: it takes a minute or two.
#![expect(clippy::disallowed_methods, reason = "other programs are waited for")]

use pollux_node::fabric::Embedded;
use pollux_node::programs::{ProgramEnvironment, find_library};
use std::collections::BTreeMap;
use std::fs;
use std::io::{Read, Write};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::thread::sleep;
use std::time::Duration;

const TESTS: &str = "/usr/share/doc/rdma-core/tests";
/// Debian's Python, which has pyverbs.
const PYTHON: &str = "/usr/bin/python3";
/// Modules that do not fit, and why.
const LEFT_OUT: [(&str, &str); 4] = [
    ("test_mlx5_dm_ops", "starts with a command of DEVX, and has no answer to its absence"),
    ("test_mlx5_timestamp", "maps the clock of the device"),
    ("test_mlx5_uar", "makes doorbell pages by ioctl"),
    ("test_shared_pd", "imports a context, of which libmlx5 makes the doorbell pages by ioctl"),
];
/// Ends a hang of a module; no healthy one comes near it, even with a fiftieth of a processor.
const LIMIT: Duration = Duration::from_secs(900);
const STEP: Duration = Duration::from_millis(50);

/// What a module of tests printed at its end.
#[derive(Debug, Default, PartialEq, Eq)]
struct Outcome {
    passed: usize,
    failed: usize,
    /// How many tests were left out for each reason.
    skipped: BTreeMap<String, usize>,
}

impl Outcome {
    /// From the output of Python's `unittest -v`. A module that does not end has failed.
    fn of(output: &str) -> Self {
        let number = |line: &str, before: &str| -> usize {
            let after = line.split_once(before).map_or("", |(_, after)| after);
            let digits = after.split(|c: char| !c.is_ascii_digit()).next();
            digits.and_then(|digits| digits.parse().ok()).unwrap_or(0)
        };
        let mut skipped = BTreeMap::new();
        for line in output.lines() {
            if let Some((_, reason)) = line.split_once("skipped ") {
                let reason = reason.trim_matches(['\'', '"']);
                *skipped.entry(reason.to_owned()).or_default() += 1;
            }
        }
        let Some(ran) = output.lines().find(|line| line.starts_with("Ran ")) else {
            return Self { failed: 1, skipped, passed: 0 };
        };
        let end = output.lines().rfind(|line| line.starts_with("OK") || line.starts_with("FAILED"));
        let end = end.unwrap_or("FAILED (failures=1)");
        let failed = number(end, "failures=") + number(end, "errors=");
        let passed = number(ran, "Ran ").saturating_sub(failed + number(end, "skipped="));
        Self { passed, failed, skipped }
    }
}

/// Cases of our own, a module beside the others.
const OWN: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/verbs.py");

/// The tests, unpacked.
fn unpacked() -> PathBuf {
    let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).join("pyverbs");
    let _ = fs::remove_dir_all(&folder);
    fs::create_dir_all(&folder).unwrap();
    assert!(Path::new(TESTS).exists(), "no {TESTS}; run scripts/host-setup --hca");
    let copied = Command::new("cp").arg("-r").arg(TESTS).arg(&folder).status();
    assert!(copied.unwrap().success());
    let files = files_of(&folder.join("tests"));
    let packed = files.iter().filter(|file| file.extension().is_some_and(|end| end == "gz"));
    assert!(Command::new("gzip").arg("-d").args(packed).status().unwrap().success());
    fs::copy(OWN, folder.join("tests/test_pollux.py")).unwrap();
    folder
}

fn files_of(folder: &Path) -> Vec<PathBuf> {
    let mut files: Vec<_> = fs::read_dir(folder).unwrap().map(|one| one.unwrap().path()).collect();
    files.sort();
    files
}

/// The output of a module of tests.
fn run(folder: &Path, module: &str, environment: &ProgramEnvironment) -> String {
    let variables = environment.variables().iter().map(|(name, value)| (name, value));
    let mut child = Command::new(PYTHON)
        .args(["tests/run_tests.py", "-v", &format!("tests.{module}")])
        .current_dir(folder)
        .envs(variables)
        .stdout(Stdio::null())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap_or_else(|error| panic!("{PYTHON}: {error}; run scripts/host-setup --hca"));
    let mut pipe = child.stderr.take().unwrap();
    let reader = std::thread::spawn(move || {
        let mut output = Vec::new();
        pipe.read_to_end(&mut output).unwrap();
        String::from_utf8_lossy(&output).into_owned()
    });
    for _ in 0..LIMIT.as_millis() / STEP.as_millis() {
        if child.try_wait().unwrap().is_some() {
            return reader.join().unwrap();
        }
        sleep(STEP);
    }
    child.kill().unwrap();
    child.wait().unwrap();
    format!("{}\n{module}: not within {LIMIT:?}\n", reader.join().unwrap())
}

mod pyverbs {
    use super::*;

    #[test]
    fn tests_of_rdma_core_pass() {
        let folder = unpacked();
        let fabric = Embedded::start("single:1").unwrap();
        let library = find_library().unwrap();
        let environment =
            ProgramEnvironment::new(&fabric.port("host1"), "mlx5_0", &library).unwrap();
        let mut failures = String::new();
        let mut table = format!("{:<24}{:>8}{:>8}{:>8}\n", "module", "passed", "skipped", "failed");
        let mut reasons = BTreeMap::<String, usize>::new();
        let (mut passed, mut skipped, mut failed) = (0, 0, 0);
        for file in files_of(&folder.join("tests")) {
            let name = file.file_stem().unwrap().to_str().unwrap();
            if !name.starts_with("test_") {
                continue;
            }
            if let Some((_, why)) = LEFT_OUT.iter().find(|(left_out, _)| *left_out == name) {
                table.push_str(&format!("{name:<24}left out: {why}\n"));
                continue;
            }
            let output = run(&folder, name, &environment);
            let outcome = Outcome::of(&output);
            let left_out: usize = outcome.skipped.values().sum();
            let row =
                format!("{name:<24}{:>8}{left_out:>8}{:>8}\n", outcome.passed, outcome.failed);
            table.push_str(&row);
            passed += outcome.passed;
            skipped += left_out;
            failed += outcome.failed;
            outcome
                .skipped
                .into_iter()
                .for_each(|(why, count)| *reasons.entry(why).or_default() += count);
            if outcome.failed > 0 {
                failures.push_str(&output);
            }
        }
        for (reason, count) in reasons {
            table.push_str(&format!("skipped {count:>4}: {reason}\n"));
        }
        let counts = format!("{passed} passed, {skipped} skipped, {failed} failed");
        table.push_str(&format!("judge pyverbs::tests_of_rdma_core_pass: {counts}\n"));
        // Not by a macro: the table is also part of a run that passes.
        std::io::stdout().write_all(table.as_bytes()).unwrap();
        assert!(failures.is_empty(), "{failures}");
        assert!(passed > 0, "no test ran");
    }
}

#[test]
fn the_end_of_a_module_is_read() {
    let output = "test_a (tests.test_x.X.test_a) ... ok\ntest_b ... skipped 'No XRC'\n\
        test_c ... skipped \"No XRC\"\ntest_d ... ERROR\n\nRan 4 tests in 0.1s\n\n\
        FAILED (failures=0, errors=1, skipped=2)\n";
    let skipped = BTreeMap::from([("No XRC".to_owned(), 2)]);
    assert_eq!(Outcome::of(output), Outcome { passed: 1, failed: 1, skipped });
    assert_eq!(Outcome::of("test_a ... "), Outcome { failed: 1, ..Outcome::default() });
}
