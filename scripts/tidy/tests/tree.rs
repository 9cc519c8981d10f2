//! The rules and the ledger, applied to this tree.

use pollux_tidy::ledger::Ledger;
use pollux_tidy::{Finding, Tree, mutants, sample, tidy, tree};

fn this_tree() -> Tree {
    Tree::read(&tree::root()).expect("the tree can be read")
}

fn assert_none(findings: &[Finding]) {
    let list: Vec<_> = findings.iter().map(ToString::to_string).collect();
    assert!(list.is_empty(), "\n{}\n", list.join("\n"));
}

#[test]
fn the_tree_is_tidy() {
    assert_none(&tidy(&this_tree()));
}

#[test]
fn the_ledger_is_sound() {
    assert_none(&Ledger::read(&this_tree()).1);
}

#[test]
fn every_mutant_has_its_place_and_its_test() {
    assert_none(&mutants::read(&this_tree()).1);
}

#[test]
fn every_listed_survivor_has_a_file_and_a_reason() {
    assert_none(&sample::read(&this_tree()).1);
}
