//! Rules about words: the field's own, one word for one concept, one public type for one name.
//!
//! A private word costs every reader a look-up, and finds nothing when it is searched for. The
//! tables here count what is left of the old ones; a count may go down, and never up. A word whose
//! count is 0 is banned.

use std::collections::BTreeMap;

use crate::source::before_tests;
use crate::tree::SourceFile;
use crate::{Finding, Tree};

/// Private words, what to say instead, and how often they still stand in the tree.
const PRIVATE: [(&str, &str, usize); 31] = [
    ("bell", "doorbell, or what it notifies of", 0),
    ("borrower", "receiver", 1),
    ("census", "statistics", 35),
    ("chair", "group of shared contexts", 24),
    ("colleague", "worker", 0),
    ("colleagues", "workers", 0),
    ("complaint", "ICMP error", 4),
    ("complaints", "ICMP errors", 10),
    ("crew", "worker group", 0),
    ("dice", "RNG", 0),
    ("duty", "worker task", 0),
    ("lend", "lease", 38),
    ("lends", "leases", 60),
    ("lent", "leased", 147),
    ("loan", "lease", 0),
    ("mention", "unsolicited request", 36),
    ("mentions", "unsolicited requests", 12),
    ("mover", "port driver", 126),
    ("neighbour", "neighbor", 0),
    ("neighbours", "neighbors", 0),
    ("octet", "byte", 2),
    ("octets", "bytes", 0),
    ("parcel", "pending packet", 0),
    ("patience", "timeout, retry policy", 150),
    ("plea", "retry policy, MRA", 2),
    ("rope", "dirty flag", 0),
    ("seat", "shared-port context", 248),
    ("seats", "shared-port contexts", 109),
    ("stragglers", "TIME-WAIT entries", 7),
    ("tally", "counters", 106),
    ("vain", "failed", 28),
];

/// How many names of public types are still given to more than one.
const SHARED_NAMES: usize = 57;

/// This file, the requirements, which are not ours to word, and what others' programs print.
const EXEMPT: [&str; 3] =
    ["scripts/tidy/src/words.rs", "control/requirements.toml", "dataplane/wire/referee/"];

/// Private words stand nowhere more often than `PRIVATE` says.
pub fn private(tree: &Tree) -> Vec<Finding> {
    let mut found: BTreeMap<String, Vec<(&str, usize)>> = BTreeMap::new();
    for file in tree.files.iter().filter(|file| is_worded(file)) {
        for (i, line) in file.text.lines().enumerate() {
            for word in words(line) {
                if PRIVATE.iter().any(|(private, ..)| *private == word) {
                    found.entry(word).or_default().push((&file.path, i + 1));
                }
            }
        }
    }
    let mut findings = Vec::new();
    for (word, instead, count_max) in PRIVATE {
        let places = found.remove(word).unwrap_or_default();
        if let (count, Some((path, line))) = (places.len(), places.last())
            && count > count_max
        {
            let message =
                format!("`{word}` stands {count} times, {count_max} may; say {instead} instead");
            findings.push(Finding::new(path, *line, message));
        }
    }
    findings
}

/// No more names are shared by public types than `SHARED_NAMES`.
pub fn shared_names(tree: &Tree) -> Vec<Finding> {
    let names = names_of_several(tree);
    if names.len() <= SHARED_NAMES {
        return Vec::new();
    }
    let message = format!(
        "{} names have more than one public type, {SHARED_NAMES} may: {}",
        names.len(),
        names.join(", ")
    );
    vec![Finding::new("Cargo.toml", 0, message)]
}

fn names_of_several(tree: &Tree) -> Vec<&str> {
    let mut counts: BTreeMap<&str, usize> = BTreeMap::new();
    for file in tree.rust().filter(|file| is_library(&file.path)) {
        for name in before_tests(&file.rust).iter().filter_map(|line| public_type(&line.code)) {
            *counts.entry(name).or_default() += 1;
        }
    }
    counts.into_iter().filter(|(_, count)| *count > 1).map(|(name, _)| name).collect()
}

fn is_worded(file: &SourceFile) -> bool {
    let kinds = [".rs", ".md", ".toml"];
    let is_ours = file.is_script() || kinds.iter().any(|kind| file.path.ends_with(kind));
    is_ours && !EXEMPT.iter().any(|exempt| file.path.starts_with(exempt))
}

/// Whether other crates can use it: neither a test nor a program.
fn is_library(path: &str) -> bool {
    path.contains("/src/") && !path.contains("/tests") && !path.contains("/bin/")
}

/// The type that a line makes public to other crates.
fn public_type(code: &str) -> Option<&str> {
    let item = code.trim_start().strip_prefix("pub ")?;
    let kinds = ["struct ", "enum ", "trait ", "union "];
    let name = kinds.iter().find_map(|kind| item.strip_prefix(kind))?;
    // A macro's `$name` is none.
    name.split(|c: char| !c.is_alphanumeric() && c != '_').next().filter(|name| !name.is_empty())
}

/// The words of a line in lower case, those inside of identifiers among them. A call of a method
/// of `std` is not ours.
fn words(line: &str) -> impl Iterator<Item = String> + '_ {
    let line = line.replace(".octets()", "").replace("from_octets", "");
    let mut words = vec![String::new()];
    let mut was_lower = false;
    for c in line.chars() {
        if !c.is_alphabetic() || (c.is_uppercase() && was_lower) {
            words.push(String::new());
        }
        was_lower = c.is_lowercase();
        if c.is_alphabetic() {
            words.last_mut().into_iter().for_each(|word| word.extend(c.to_lowercase()));
        }
    }
    words.into_iter().filter(|word| !word.is_empty())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_private_word_is_found_in_names_and_in_prose() {
        for text in ["fn keep_dice() {}", "struct ParcelRing;", "// The crew does it."] {
            assert_eq!(private(&Tree::of(&[("a/src/a.rs", text)])).len(), 1, "{text}");
        }
        for text in ["ip.octets()", "fn recrew() {}", "let dicey = 1;"] {
            assert_eq!(private(&Tree::of(&[("a/src/a.rs", text)])), [], "{text}");
        }
        assert_eq!(private(&Tree::of(&[("control/requirements.toml", "crew")])), []);
    }

    #[test]
    fn a_name_that_two_public_types_have_is_found() {
        let one = ("a/src/a.rs", "pub struct Node;\n");
        for (text, expected) in [
            ("pub enum Node {}\n", &["Node"][..]),
            ("pub(crate) struct Node;\nstruct Node;\npub struct Nodes;\n", &[]),
            ("#[cfg(test)]\nmod tests {\n    pub struct Node;\n}\n", &[]),
        ] {
            assert_eq!(names_of_several(&Tree::of(&[one, ("b/src/b.rs", text)])), expected);
        }
    }
}
