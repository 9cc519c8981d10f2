//! The line of a file that a key is in, from the spans of the parser: the same letters may also
//! stand in a comment, a value or another key.

use toml::Spanned;
use toml::de::{DeTable, DeValue};

/// A step on the way to a value.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Step {
    /// The key of a table.
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

/// The line of the value at a path, or of as much of the path as the file has; 0 for an empty path.
pub(super) fn line_of(text: &str, path: &[Step]) -> usize {
    let Ok(table) = DeTable::parse(text) else { return 0 };
    let (span, table) = (table.span(), table.into_inner());
    let (mut at, mut line) = (Spanned::new(span, DeValue::Table(table)), 0);
    for step in path {
        let Some((start, value)) = enter(at.into_inner(), step) else { break };
        (at, line) = (value, line_at(text, start));
    }
    line
}

/// Where a part of a value begins, and that part.
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

/// The line of a byte of a text.
pub(super) fn line_at(text: &str, at: usize) -> usize {
    text[..at].matches('\n').count() + 1
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_path_has_the_line_of_its_last_step_that_is_there() {
        let text = "# cores of ib1\n[interface.ib10]\ncores = 1\n[interface.ib1]\n\
                    list = [\n  1,\n  2, # ib1\n]\n[[interface.ib1.peer]]\na = 1\n\n\
                    [[interface.ib1.peer]]\na = 2\n[interface.'a b'.c]\n";
        let line = |path: &[Step]| line_of(text, path);
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
        assert_eq!(line_of("[unfinished", &ib1), 0);
    }
}
