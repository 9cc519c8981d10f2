//! Rules about words: the field's own, one word for one concept, one public type for one name.
//!
//! A private word costs every reader a look-up, and a search for the field's word does not find it.
//! The words of the table are banned, and so are types with a name of std's prelude. Names that
//! several types share are counted; the count may go down, and never up.

use std::collections::BTreeMap;

use crate::source::before_tests;
use crate::tree::SourceFile;
use crate::{Finding, Tree};

/// Banned words, and their replacements.
const PRIVATE: [(&str, &str); 31] = [
    ("bell", "doorbell, or what it notifies of"),
    ("borrower", "receiver"),
    ("census", "statistics"),
    ("chair", "group of shared contexts"),
    ("colleague", "worker"),
    ("colleagues", "workers"),
    ("complaint", "ICMP error"),
    ("complaints", "ICMP errors"),
    ("crew", "worker group"),
    ("dice", "RNG"),
    ("duty", "worker task"),
    ("lend", "lease"),
    ("lends", "leases"),
    ("lent", "leased"),
    ("loan", "lease"),
    ("mention", "unsolicited request"),
    ("mentions", "unsolicited requests"),
    ("mover", "port driver"),
    ("neighbour", "neighbor"),
    ("neighbours", "neighbors"),
    ("octet", "byte"),
    ("octets", "bytes"),
    ("parcel", "pending packet"),
    ("patience", "timeout, retry policy"),
    ("plea", "retry policy, MRA"),
    ("rope", "dirty flag"),
    ("seat", "shared-port context"),
    ("seats", "shared-port contexts"),
    ("stragglers", "TIME-WAIT entries"),
    ("tally", "counters"),
    ("vain", "failed"),
];

/// How many names of public types are still given to more than one: those of inline and pinned
/// sockets, and `Device`, as smoltcp has the word too.
const SHARED_NAMES: usize = 5;

/// Names of std's prelude: a type of this name makes readers ask each time which one is meant.
const PRELUDE: [&str; 16] = [
    "AsRef", "Box", "Clone", "Copy", "Default", "Drop", "Extend", "From", "Into", "Iterator",
    "Option", "Result", "Send", "String", "Sync", "Vec",
];

/// This file, the requirements, which are not ours to word, and what others' programs print.
const EXEMPT: [&str; 3] =
    ["scripts/tidy/src/words.rs", "control/requirements.toml", "dataplane/wire/referee/"];

/// No private word stands anywhere.
pub fn private(tree: &Tree) -> Vec<Finding> {
    let mut findings = Vec::new();
    for file in tree.files.iter().filter(|file| is_worded(file)) {
        for (i, line) in file.text.lines().enumerate().filter(|(_, line)| !names_requirement(line))
        {
            for word in words(line) {
                let Some((_, instead)) = PRIVATE.iter().find(|(private, _)| *private == word)
                else {
                    continue;
                };
                let message = format!("`{word}` is not a word of the field; use {instead} instead");
                findings.push(Finding::new(&file.path, i + 1, message));
            }
        }
    }
    findings
}

/// Whether a line names a requirement, whose name is not ours to choose.
fn names_requirement(line: &str) -> bool {
    let line = line.trim_start();
    line.starts_with("// req: ") || line.starts_with("req = ")
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

/// No public type has a name of std's prelude.
pub fn no_prelude_names(tree: &Tree) -> Vec<Finding> {
    let mut findings = Vec::new();
    for file in tree.rust().filter(|file| is_library(&file.path)) {
        for (i, line) in before_tests(&file.rust).iter().enumerate() {
            if let Some(name) = public_type(&line.code).filter(|name| PRELUDE.contains(name)) {
                let message = format!("`{name}` is a name of std's prelude; choose another");
                findings.push(Finding::new(&file.path, i + 1, message));
            }
        }
    }
    findings
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
    fn a_name_of_the_prelude_is_found() {
        let shadowing = "pub enum From {}\npub struct Drop;\npub trait Clone {}\n";
        assert_eq!(no_prelude_names(&Tree::of(&[("a/src/a.rs", shadowing)])).len(), 3);
        let others = "pub struct Dropped;\nenum From {}\nimpl Drop for A {}\n".repeat(3);
        assert_eq!(no_prelude_names(&Tree::of(&[("a/src/a.rs", &others)])), []);
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
