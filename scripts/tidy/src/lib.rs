//! The rules of this tree that neither rustc nor clippy checks, and its requirements ledger.
//!
//! Each rule of the tree as a whole (the length of files, the crates with `unsafe`, the direction
//! of dependencies, a test for each format) is a function from the tree to findings, and `cargo
//! test` calls them all.
//!
//! Read in this order:
//!
//! 1. [`tree`]: the tracked files, as text;
//! 2. [`rust`]: a line of Rust, split into code and comment, without literals;
//! 3. [`text`], [`source`], [`manifest`], [`modules`], [`words`], [`docs`],
//!    [`layouts`], [`limits`], [`glossary`], [`tiers`]: the rules;
//! 4. [`ledger`]: the requirements, the tests that claim them, and the report;
//! 5. [`mutants`]: whether those tests notice when a rule is broken;
//! 6. [`sample`]: whether tests notice a change anywhere;
//! 7. [`size`]: how many lines the product has.
#![forbid(unsafe_code)]

use std::fmt;

pub mod docs;
pub mod glossary;
pub mod layouts;
pub mod ledger;
pub mod limits;
pub mod manifest;
pub mod modules;
pub mod mutants;
pub mod rust;
pub mod sample;
pub mod size;
pub mod source;
pub mod text;
pub mod tiers;
pub mod tree;
pub mod words;

pub use tree::Tree;

/// A place in the tree that breaks a rule.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Finding {
    /// The file, from the root of the tree.
    pub path: String,
    /// The line, from 1; 0 for the file as a whole.
    pub line: usize,
    /// What is wrong, and what to do about it.
    pub message: String,
}

impl Finding {
    /// A finding; `line` counts from 1, and 0 means the file as a whole.
    pub fn new(path: &str, line: usize, message: impl Into<String>) -> Self {
        Self { path: path.into(), line, message: message.into() }
    }
}

impl fmt::Display for Finding {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.line {
            0 => write!(f, "{}: {}", self.path, self.message),
            line => write!(f, "{}:{line}: {}", self.path, self.message),
        }
    }
}

/// Everything in `tree` that breaks a rule.
pub fn tidy(tree: &Tree) -> Vec<Finding> {
    const RULES: [fn(&Tree) -> Vec<Finding>; 21] = [
        text::columns,
        text::trailing_space,
        text::banned_words,
        text::scripts_say_their_usage,
        source::opens_with_docs,
        source::length,
        source::leftovers,
        source::unsafe_crates,
        manifest::direction,
        manifest::shared_lints,
        modules::no_circles,
        words::private,
        words::shared_names,
        words::no_prelude_names,
        docs::say_more_than_names,
        docs::crates_list_their_modules,
        layouts::all_are_tested,
        limits::stand_in_the_source,
        glossary::leads_to_the_code,
        tiers::hold_every_test,
        tiers::flaky_tests_are_mended,
    ];
    RULES.iter().flat_map(|rule| rule(tree)).collect()
}
