//! The rule that the table of limits is true: names, values and tests are in the source.

use crate::{Finding, Tree};

const TABLE: &str = "control/LIMITS.md";

/// Each row `NAME | VALUE | FILE` of the table stands in a line of that file, and each function
/// that a row names is one of the tree.
pub fn stand_in_the_source(tree: &Tree) -> Vec<Finding> {
    let mut findings = Vec::new();
    for (i, line) in tree.file(TABLE).iter().flat_map(|file| file.text.lines()).enumerate() {
        let cells: Vec<_> = line.split('|').map(str::trim).collect();
        let [_, name, value, file, _, tried, _, _] = cells[..] else { continue };
        if let [Some(name), Some(value), Some(file)] = [name, value, file].map(quoted)
            && !has(tree, file, name, value)
        {
            let message = format!("`{name}` is not `{value}` in {file}");
            findings.push(Finding::new(TABLE, i + 1, message));
        }
        // Between quotes stands every other piece.
        for test in tried.split('`').skip(1).step_by(2).filter(|word| is_function(word)) {
            let definition = format!("fn {test}(");
            if !tree.rust().any(|file| file.text.contains(&definition)) {
                let message = format!("there is no function `{test}`");
                findings.push(Finding::new(TABLE, i + 1, message));
            }
        }
    }
    findings
}

fn quoted(cell: &str) -> Option<&str> {
    cell.strip_prefix('`')?.strip_suffix('`')
}

/// Whether a line of the file gives the name this value.
fn has(tree: &Tree, file: &str, name: &str, value: &str) -> bool {
    tree.file(file)
        .iter()
        .flat_map(|file| file.text.lines())
        .any(|line| behind(line, name).is_some_and(|rest| behind(rest, value).is_some()))
}

/// The rest of a line behind a word, or words.
fn behind<'a>(line: &'a str, words: &str) -> Option<&'a str> {
    let is_part = |c: Option<char>| c.is_some_and(|c| c.is_alphanumeric() || c == '_');
    line.match_indices(words).find_map(|(at, _)| {
        let (before, rest) = (&line[..at], &line[at + words.len()..]);
        let is_whole = !is_part(before.chars().next_back()) && !is_part(rest.chars().next());
        is_whole.then_some(rest)
    })
}

/// Names of tests are sentences, so they have underscores; commands have spaces or dashes.
fn is_function(word: &str) -> bool {
    word.contains('_')
        && word.chars().all(|c| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '_')
}

#[cfg(test)]
mod tests {
    use super::*;

    fn found(row: &str) -> Vec<String> {
        let source = "//! A.\nconst FRAMES_MAX: usize = 256;\nfn it_holds() {}\n";
        let tree = Tree::of(&[(TABLE, row), ("a.rs", source)]);
        stand_in_the_source(&tree).iter().map(ToString::to_string).collect()
    }

    #[test]
    fn a_row_that_the_source_bears_out_is_well() {
        assert_eq!(
            found("| `FRAMES_MAX` | `256` | `a.rs` | memory | `it_holds` | well |"),
            [""; 0]
        );
        assert_eq!(found("| echoes | none | `a.rs` | nothing | `a b` | well |"), [""; 0]);
    }

    #[test]
    fn another_value_file_or_test_is_found() {
        for (row, expected) in [
            ("| `FRAMES_MAX` | `25` | `a.rs` | - | - | - |", "`FRAMES_MAX` is not `25` in a.rs"),
            ("| `RAMES_MAX` | `256` | `a.rs` | - | - | - |", "`RAMES_MAX` is not `256` in a.rs"),
            ("| `FRAMES_MAX` | `256` | `b.rs` | - | - | - |", "`FRAMES_MAX` is not `256` in b.rs"),
            ("| a | b | c | - | `it_breaks` | - |", "there is no function `it_breaks`"),
        ] {
            assert_eq!(found(row), [format!("{TABLE}:1: {expected}")]);
        }
    }
}
