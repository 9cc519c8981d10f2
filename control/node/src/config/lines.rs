//! Finds the position of a key in a file, and the key at a position, by the spans of the parser. A
//! text search for the name would also match comments, values and other keys.

use toml::Spanned;
use toml::de::{DeTable, DeValue};

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Step {
    Key(String),
    /// The element of a list, counted from 0.
    Nth(usize),
}

impl From<&str> for Step {
    fn from(key: &str) -> Self {
        Self::Key(key.into())
    }
}

impl From<usize> for Step {
    fn from(nth: usize) -> Self {
        Self::Nth(nth)
    }
}

/// The offset of the key or list element at a path. If the file lacks it, the offset of the last
/// step of the path that the file has.
pub(super) fn offset_of(text: &str, path: &[Step]) -> Option<usize> {
    let table = DeTable::parse(text).ok()?;
    let (span, table) = (table.span(), table.into_inner());
    let (mut at, mut offset) = (Spanned::new(span, DeValue::Table(table)), None);
    for step in path {
        let Some((start, value)) = enter(at.into_inner(), step) else { break };
        (at, offset) = (value, Some(start));
    }
    offset
}

/// The path of the key whose name or value contains a byte, with dots between tables. Empty if the
/// text is not TOML.
pub(super) fn key_at(text: &str, at: usize) -> String {
    let mut keys = Vec::new();
    if let Ok(table) = DeTable::parse(text) {
        push_keys(&DeValue::Table(table.into_inner()), at, &mut keys);
    }
    keys.join(".")
}

/// Appends the keys that lead to the byte at `at`. Returns whether one of the keys in this value
/// contains it.
fn push_keys(value: &DeValue<'_>, at: usize, keys: &mut Vec<String>) -> bool {
    match value {
        DeValue::Table(table) => table.iter().any(|(key, value)| {
            keys.push(key.get_ref().to_string());
            // The span of a table covers only its header, so the keys in the table are tried, too.
            let is_it = key.span().contains(&at)
                || push_keys(value.get_ref(), at, keys)
                || value.span().contains(&at);
            if !is_it {
                keys.pop();
            }
            is_it
        }),
        DeValue::Array(list) => list.iter().any(|one| push_keys(one.get_ref(), at, keys)),
        _ => false,
    }
}

/// The part of a value that `step` selects, and its offset.
fn enter<'i>(value: DeValue<'i>, step: &Step) -> Option<(usize, Spanned<DeValue<'i>>)> {
    match (value, step) {
        (DeValue::Table(table), Step::Key(key)) => {
            let (name, value) = table.into_iter().find(|(name, _)| name.get_ref() == key)?;
            Some((name.span().start, value))
        }
        (DeValue::Array(list), Step::Nth(nth)) => {
            let value = list.into_iter().nth(*nth)?;
            Some((value.span().start, value))
        }
        _ => None,
    }
}

/// The line and column of a byte of a text, counted from 1.
pub(super) fn line_and_column(text: &str, at: usize) -> (usize, usize) {
    let before = &text[..at];
    let begin = before.rfind('\n').map_or(0, |newline| newline + 1);
    (before.matches('\n').count() + 1, before[begin..].chars().count() + 1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_path_has_the_line_of_its_last_step_that_is_there() {
        let text = "# cores of ib1\n[interface.ib10]\ncores = 1\n[interface.ib1]\n\
                    list = [\n  1,\n  2, # ib1\n]\n[[interface.ib1.peer]]\na = 1\n\n\
                    [[interface.ib1.peer]]\na = 2\n[interface.'a b'.c]\n";
        let line = |path: &[Step]| {
            offset_of(text, path).map_or(0, |offset| line_and_column(text, offset).0)
        };
        let ib1 = ["interface".into(), "ib1".into()];
        assert_eq!(line(&[]), 0);
        assert_eq!(line(&["nothing".into()]), 0);
        assert_eq!(line(&["interface".into(), "ib10".into(), "cores".into()]), 3);
        assert_eq!(line(&ib1), 4);
        assert_eq!(line(&[&ib1[..], &["list".into(), 1.into()]].concat()), 7);
        assert_eq!(line(&[&ib1[..], &["list".into(), 7.into()]].concat()), 5);
        assert_eq!(line(&[&ib1[..], &["peer".into(), 1.into()]].concat()), 12);
        let second = [&ib1[..], &["peer".into(), 1.into(), "a".into()]].concat();
        assert_eq!(line(&second), 13);
        assert_eq!(line(&["interface".into(), "a b".into(), "c".into()]), 14);
        assert_eq!(offset_of("[unfinished", &ib1), None);
    }
}
