//! How many lines the product has, by crate, and whether its modules use each other in circles.
//!
//! Lines are a cost that the next reader pays, so it is known what they are. Tests, benches,
//! examples, the conformance suite, the referees and this crate are not counted: they judge the
//! product.

use std::fmt::{self, Write};

use crate::source::before_tests;
use crate::tree::SourceFile;
use crate::{Tree, manifest, modules};

/// Crates that judge the product.
const JUDGES: [&str; 5] = ["conformance", "referee", "counted", "fuzz", "tidy"];

/// Lines of code and of comment; what is neither is blank.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Size {
    files: usize,
    lines: usize,
    code: usize,
    comment: usize,
}

impl Size {
    fn add(&mut self, file: &SourceFile) {
        self.files += 1;
        for line in before_tests(&file.rust) {
            self.lines += 1;
            if !line.code.trim().is_empty() {
                self.code += 1;
            } else if !line.comment.trim().is_empty() {
                self.comment += 1;
            }
        }
    }
}

impl fmt::Display for Size {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { files, lines, code, comment } = self;
        write!(f, "{files} | {lines} | {code} | {comment} |")
    }
}

/// A table in Markdown: the product's files and lines by crate, and the number of circles.
pub fn report(tree: &Tree) -> String {
    let mut table =
        String::from("| crate | files | lines | code | comment |\n|---|---|---|---|---|\n");
    let mut all = Size::default();
    let mut row = |name: &str, size: Size| writeln!(table, "| `{name}` | {size}");
    for package in manifest::packages(tree) {
        let directory = package.directory;
        if JUDGES.iter().any(|judge| directory.split('/').any(|part| part == *judge)) {
            continue;
        }
        let source = format!("{directory}/src/");
        let mut size = Size::default();
        for file in tree.rust().filter(|file| is_product(file, &source)) {
            size.add(file);
            all.add(file);
        }
        // Writing to a string does not fail.
        let _written = row(directory, size);
    }
    let circles = modules::no_circles(tree).len();
    let _written = writeln!(table, "| all | {all}\n\nCircles of modules: {circles}");
    table
}

fn is_product(file: &SourceFile, source: &str) -> bool {
    let inside = file.path.strip_prefix(source);
    inside.is_some_and(|path| !path.ends_with("tests.rs") && !path.contains("tests/"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_of_the_product_are_counted_and_tests_are_not() {
        let manifest = "[package]\nname = \"a\"";
        let tree = Tree::of(&[
            ("a/Cargo.toml", manifest),
            ("a/src/lib.rs", "//! A.\n\nfn a() {} // so\n\n#[cfg(test)]\nmod tests {\n}\n"),
            ("a/src/b/tests.rs", "fn b() {}\n"),
            ("a/tests/c.rs", "fn c() {}\n"),
            ("scripts/tidy/Cargo.toml", manifest),
            ("scripts/tidy/src/lib.rs", "fn d() {}\n"),
        ]);
        let rows: Vec<_> = report(&tree).lines().skip(2).map(str::to_owned).collect();
        let (size, circles) = ("1 | 4 | 1 | 1 |", "Circles of modules: 0");
        assert_eq!(
            rows,
            [format!("| `a` | {size}"), format!("| all | {size}"), String::new(), circles.into()]
        );
    }
}
