//! The rule that the glossary leads to the code: each file it names exists and says the term, which
//! `grep` can find.

use crate::{Finding, Tree};

const GLOSSARY: &str = "control/README.md";

/// Each row `TERM | ... | FILE` of the glossary names a file of the tree whose head (its `//!`)
/// says the term. Rows of one term are told apart by a remark in parentheses.
pub fn leads_to_the_code(tree: &Tree) -> Vec<Finding> {
    let mut findings = Vec::new();
    for (i, line) in tree.file(GLOSSARY).iter().flat_map(|file| file.text.lines()).enumerate() {
        let cells: Vec<_> = line.trim_matches('|').split('|').map(str::trim).collect();
        let [term, .., file] = cells[..] else { continue };
        let Some(path) = file.strip_prefix('`').and_then(|file| file.strip_suffix('`')) else {
            continue;
        };
        let word = term.split(" (").next().unwrap_or_default();
        let message = match tree.file(path) {
            None => format!("there is no {path}"),
            _ if !word.chars().all(|c| c.is_alphanumeric() || " ,_-/".contains(c)) => {
                format!("`grep` takes `{word}` for a pattern; write it without operators")
            }
            Some(file) if !head(&file.text).contains(&word.to_lowercase()) => {
                format!("the head of {path} does not say `{word}`")
            }
            Some(_) => continue,
        };
        findings.push(Finding::new(GLOSSARY, i + 1, message));
    }
    findings
}

/// The text of a file's `//!` lines in lower case, joined by spaces.
fn head(text: &str) -> String {
    let lines = text.lines().map_while(|line| line.strip_prefix("//!"));
    lines.map(str::trim).collect::<Vec<_>>().join(" ").to_lowercase()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn found(row: &str) -> Vec<String> {
        let source = "//! Reliable messages, with the RNR\n//! timer.\nconst MFT: u8 = 1;\n";
        let tree = Tree::of(&[(GLOSSARY, row), ("a.rs", source)]);
        leads_to_the_code(&tree).iter().map(ToString::to_string).collect()
    }

    #[test]
    fn a_term_in_the_head_of_its_file_is_no_finding() {
        assert_eq!(found("| RNR timer | `a.rs` |"), [""; 0]);
        assert_eq!(found("| RNR timer | what it means | `a.rs` |"), [""; 0]);
        assert_eq!(found("| RNR timer (sent) | `a.rs` |"), [""; 0]);
        assert_eq!(found("| Transport | file |"), [""; 0]);
    }

    #[test]
    fn a_missing_file_or_term_is_found() {
        for (row, expected) in [
            ("| RNR timer | `b.rs` |", "there is no b.rs"),
            ("| MFT | `a.rs` |", "the head of a.rs does not say `MFT`"),
            (
                "| *timer | `a.rs` |",
                "`grep` takes `*timer` for a pattern; write it without operators",
            ),
        ] {
            assert_eq!(found(row), [format!("{GLOSSARY}:1: {expected}")]);
        }
    }
}
