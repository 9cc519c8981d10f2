//! Rules about Rust: how files open, how long they are, what must not be left in them, and where
//! `unsafe` may stand.

use crate::manifest::{self, Package};
use crate::rust::Line;
use crate::{Finding, Tree};

/// The longest file, without its unit tests.
const LINES_MAX: usize = 500;

/// The crates that may hold `unsafe`: the ones that share memory with a device or with threads,
/// and the allocator below `dataplane/mem` that tests count with.
const UNSAFE_CRATES: [&str; 4] =
    ["dataplane/connectx", "dataplane/mem", "dataplane/ibverbs", "dataplane/mlx5"];

/// Every file opens with `//!`: what it is, and why it is so.
pub fn opens_with_docs(tree: &Tree) -> Vec<Finding> {
    tree.rust()
        .filter(|file| !file.text.starts_with("//!") && !file.text.starts_with("#!/"))
        .map(|file| {
            Finding::new(&file.path, 1, "does not open with `//!`: say what it is, and why")
        })
        .collect()
}

/// Files stay under 500 lines, their unit tests not counted; what is a test as a whole is exempt.
pub fn length(tree: &Tree) -> Vec<Finding> {
    tree.rust()
        .filter(|file| !file.path.contains("/tests/") && !file.path.ends_with("/tests.rs"))
        .filter_map(|file| {
            let count = before_tests(&file.rust).len();
            (count > LINES_MAX).then(|| {
                let message = format!("{count} lines before its tests; split it at {LINES_MAX}");
                Finding::new(&file.path, 0, message)
            })
        })
        .collect()
}

/// The lines of a file above its test module.
pub fn before_tests(lines: &[Line]) -> &[Line] {
    // One with a body: `mod vector;` only names a file that tests share, and code follows it.
    let is_module = |line: &Line| {
        line.code.split_whitespace().any(|word| word == "mod") && line.code.contains('{')
    };
    let is_test = |line: &Line| {
        let code = line.code.trim();
        code == "#[cfg(test)]" || code.starts_with("#[cfg(all(test,")
    };
    let tests = lines.windows(2).position(|pair| is_test(&pair[0]) && is_module(&pair[1]));
    &lines[..tests.unwrap_or(lines.len())]
}

/// Nothing half done is left behind, no test is switched off, and no lint without a reason.
pub fn leftovers(tree: &Tree) -> Vec<Finding> {
    const MARKS: [(&str, &str); 4] = [
        ("dbg!", "prints for its author only"),
        ("todo!", "is not done"),
        ("unimplemented!", "is not done"),
        ("#[ignore", "is a test that nobody runs"),
    ];
    let mut findings = Vec::new();
    for file in tree.rust() {
        for (i, line) in file.rust.iter().enumerate() {
            for (mark, why) in MARKS.iter().filter(|(mark, _)| has_mark(&line.code, mark)) {
                findings.push(Finding::new(&file.path, i + 1, format!("`{mark}` {why}")));
            }
            if lifts_lint(&line.code) && !attribute(&file.rust[i..]).contains("reason =") {
                findings.push(Finding::new(&file.path, i + 1, "lifts a lint without `reason =`"));
            }
        }
    }
    findings
}

fn has_mark(code: &str, mark: &str) -> bool {
    code.match_indices(mark)
        .any(|(at, _)| !code[..at].ends_with(|c: char| c.is_alphanumeric() || c == '_'))
}

fn lifts_lint(code: &str) -> bool {
    ["#[allow(", "#![allow(", "#[expect(", "#![expect("].iter().any(|open| code.contains(open))
}

/// The code from here to the end of the attribute that begins on the first line.
fn attribute(lines: &[Line]) -> String {
    let mut code = String::new();
    for line in lines {
        code.push_str(&line.code);
        if line.code.contains(")]") {
            break;
        }
    }
    code
}

/// `unsafe` stands in the crates on the list only, and all others forbid it at their root.
pub fn unsafe_crates(tree: &Tree) -> Vec<Finding> {
    let packages = manifest::packages(tree);
    let mut findings = Vec::new();
    for file in tree.rust().filter(|file| !may_be_unsafe(&file.path)) {
        for (i, line) in file.rust.iter().enumerate() {
            if has_word(&line.code, "unsafe") {
                let message = format!("`unsafe` outside {}", UNSAFE_CRATES.join(", "));
                findings.push(Finding::new(&file.path, i + 1, message));
            }
        }
        let forbids = |line: &Line| line.code.trim() == "#![forbid(unsafe_code)]";
        if is_crate_root(&packages, &file.path) && !file.rust.iter().any(forbids) {
            findings.push(Finding::new(&file.path, 1, "a crate root that does not forbid unsafe"));
        }
    }
    findings
}

fn may_be_unsafe(path: &str) -> bool {
    UNSAFE_CRATES.iter().any(|directory| path.starts_with(&format!("{directory}/")))
}

fn has_word(code: &str, word: &str) -> bool {
    code.split(|c: char| !c.is_alphanumeric() && c != '_').any(|found| found == word)
}

fn is_crate_root(packages: &[Package], path: &str) -> bool {
    packages.iter().any(|package| {
        let inside = path.strip_prefix(package.directory).and_then(|rest| rest.strip_prefix('/'));
        inside.is_some_and(|path| {
            ["src/lib.rs", "src/main.rs"].contains(&path) || path.starts_with("src/bin/")
        })
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    const PACKAGE: (&str, &str) = ("a/Cargo.toml", "[package]\nname = \"pollux-a\"\n");

    fn found(rule: fn(&Tree) -> Vec<Finding>, path: &str, text: &str) -> Vec<usize> {
        rule(&Tree::of(&[PACKAGE, (path, text)])).iter().map(|finding| finding.line).collect()
    }

    #[test]
    fn a_file_without_docs_is_found() {
        assert_eq!(found(opens_with_docs, "a/src/b.rs", "// b\n"), [1]);
        assert_eq!(found(opens_with_docs, "a/src/b.rs", "//! b\n"), []);
        assert_eq!(found(opens_with_docs, "a/b.rs", "#!/usr/bin/env cargo\n"), []);
    }

    #[test]
    fn a_long_file_is_found() {
        let body = "fn f() {}\n".repeat(500);
        let tests = "#[cfg(test)]\nmod tests {\n}\n";
        assert_eq!(found(length, "a/src/b.rs", &format!("{body}{tests}")), []);
        assert_eq!(found(length, "a/src/b.rs", &format!("//! b\n{body}{tests}")), [0]);
        let early = format!("#[cfg(test)]\nextern crate std;\n{body}{tests}");
        assert_eq!(found(length, "a/src/b.rs", &early), [0], "not every cfg(test) is the tests");
        let early = format!("#[cfg(test)]\nmod vector;\n{body}{tests}");
        assert_eq!(found(length, "a/src/b.rs", &early), [0], "nor is every module");
        assert_eq!(found(length, "a/tests/b.rs", &format!("{body}{body}")), []);
    }

    #[test]
    fn leftovers_are_found() {
        for bad in [
            "dbg!(x);",
            "todo!()",
            "unimplemented!()",
            "#[ignore]",
            "#[ignore = \"slow\"]",
            "#[allow(dead_code)]",
            "#![allow(\n    dead_code\n)]",
            "#[expect(dead_code)]",
        ] {
            assert_eq!(found(leftovers, "a/src/b.rs", bad), [1], "{bad}");
        }
    }

    #[test]
    fn leftovers_in_words_are_not() {
        for good in [
            "// dbg!(x)",
            "\"todo!()\"",
            "my_dbg!(x)",
            "#[allow(dead_code, reason = \"a\")]",
            "#[allow(\n    dead_code,\n    reason = \"a\"\n)]",
        ] {
            assert_eq!(found(leftovers, "a/src/b.rs", good), [], "{good}");
        }
    }

    #[test]
    fn unsafe_is_found_outside_its_crates() {
        let code = "#![forbid(unsafe_code)]\nfn f() {\n    unsafe { g() }\n}\n";
        assert_eq!(found(unsafe_crates, "a/src/lib.rs", code), [3]);
        assert_eq!(found(unsafe_crates, "a/tests/t.rs", "unsafe fn f() {}"), [1]);
        assert_eq!(found(unsafe_crates, "dataplane/mem/src/lib.rs", "unsafe fn f() {}"), []);
        assert_eq!(found(unsafe_crates, "dataplane/memory/src/lib.rs", "unsafe fn f() {}"), [1]);
        assert_eq!(found(unsafe_crates, "a/src/b.rs", "// unsafe\nf(\"unsafe\")"), []);
    }

    #[test]
    fn a_root_that_does_not_forbid_unsafe_is_found() {
        for root in ["a/src/lib.rs", "a/src/main.rs", "a/src/bin/tool.rs"] {
            assert_eq!(found(unsafe_crates, root, "//! A.\n"), [1], "{root}");
        }
        assert_eq!(found(unsafe_crates, "a/src/b.rs", "//! A.\n"), []);
        assert_eq!(found(unsafe_crates, "fuzz/src/lib.rs", "//! No package.\n"), []);
    }
}
