//! Errors in a configuration: the position in the file, and what to do.

use super::lines::{Step, key_at, line_and_column, offset_of};
use std::collections::BTreeMap;

/// An error in a configuration: one sentence with the position and the remedy.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{file}{}: {reason}", line_column(.position.as_ref()))]
pub struct ConfigError {
    pub(super) file: String,
    /// Line and column, counted from 1, and the key there; none for an error of the file itself.
    pub position: Option<(usize, usize, String)>,
    /// The reason with the remedy, without the position.
    pub reason: String,
}

impl ConfigError {
    pub(super) fn of_file(file: &str, reason: String) -> Self {
        Self { file: file.into(), position: None, reason }
    }

    pub(super) fn at(file: &str, text: &str, at: usize, reason: String) -> Self {
        let (line, column) = line_and_column(text, at);
        let position = Some((line, column, key_at(text, at)));
        Self { file: file.into(), position, reason }
    }

    /// An error about the value at a path of keys.
    pub(crate) fn of_value(file: &str, text: &str, path: &[Step], reason: String) -> Self {
        match offset_of(text, path) {
            Some(at) => Self::at(file, text, at, reason),
            None => Self::of_file(file, reason),
        }
    }
}

fn line_column(position: Option<&(usize, usize, String)>) -> String {
    position.map_or_else(String::new, |(line, column, _)| format!(":{line}:{column}"))
}

/// All errors of a configuration, in the order of their positions; at least one.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{}", .0.iter().map(ToString::to_string).collect::<Vec<_>>().join("\n"))]
pub struct ConfigErrors(Vec<ConfigError>);

impl ConfigErrors {
    pub(super) fn new(mut errors: Vec<ConfigError>) -> Self {
        errors
            .sort_by_key(|error| error.position.as_ref().map(|(line, column, _)| (*line, *column)));
        Self(errors)
    }

    pub fn iter(&self) -> impl Iterator<Item = &ConfigError> {
        self.0.iter()
    }
}

impl From<ConfigError> for ConfigErrors {
    fn from(error: ConfigError) -> Self {
        Self(vec![error])
    }
}

/// Broken rules across the values of a configuration, each with the path of the wrong value.
#[derive(Debug, Default)]
pub(super) struct Faults(Vec<(Vec<Step>, String)>);

impl Faults {
    /// Adds a broken rule of the value at this path, unless the path already has one: later errors
    /// about a value may follow from the first.
    pub(super) fn add(&mut self, path: &[Step], reason: String) {
        if self.0.iter().all(|(other, _)| other != path) {
            self.0.push((path.into(), reason));
        }
    }

    pub(super) fn refuse(&mut self, path: &[Step], reason: Option<String>) {
        reason.into_iter().for_each(|reason| self.add(path, reason));
    }

    pub(super) fn in_file(self, file: &str, text: &str) -> Result<(), ConfigErrors> {
        if self.0.is_empty() {
            return Ok(());
        }
        let error =
            |(path, reason): (Vec<Step>, String)| ConfigError::of_value(file, text, &path, reason);
        Err(ConfigErrors::new(self.0.into_iter().map(error).collect()))
    }
}

/// Rewrites a message of the parser, so that it says what to write instead.
pub(super) fn explain(message: &str) -> String {
    if let Some(rest) = message.strip_prefix("invalid type: ") {
        return explain_type(rest);
    }
    if message.trim_end() == "invalid IP address syntax" {
        return "that is no IP address; write one as 10.0.0.1 or fd00::1".into();
    }
    let mut words = message.split('`');
    let (Some(what), Some(name)) = (words.next(), words.next()) else {
        return message.trim_end().replace('\n', "; ");
    };
    let known: Vec<_> = words.skip(1).step_by(2).collect();
    match what {
        "unknown field " => explain_key(name, &known),
        "unknown variant " => format!("`{name}` is not a value here; write {}", one_of(&known)),
        "missing field " => format!("the key `{name}` is missing here; write it"),
        _ => message.trim_end().replace('\n', "; "),
    }
}

fn explain_type(message: &str) -> String {
    let (found, wanted) = message.trim_end().split_once(", expected ").unwrap_or((message, ""));
    let text = found.strip_prefix("string ").map(|text| text.trim_matches('"'));
    let found = match found.split([' ', '`']).next() {
        Some("string") => "text",
        Some("integer" | "floating") => "a number",
        Some("boolean") => "true or false",
        Some("sequence") => "a list",
        Some("map") => "a table",
        _ => found,
    };
    let wanted = match (wanted, text) {
        ("a string" | "string", _) => "text in quotes".into(),
        ("a boolean", _) => "true or false".into(),
        ("a sequence", Some(text)) => format!("a list in brackets, as in [\"{text}\"]"),
        ("a sequence", None) => "a list in brackets".into(),
        ("u8" | "u16" | "u32" | "u64" | "usize", Some(text)) => {
            format!("a number without quotes, as in {text}")
        }
        ("u8" | "u16" | "u32" | "u64" | "usize", None) => "a number".into(),
        (other, _) if other.starts_with("struct ") || other == "a map" => "a table".into(),
        (other, _) => other.into(),
    };
    format!("{found} does not go here; write {wanted}")
}

/// A list of words: the last two have an `or` between them.
fn one_of(words: &[&str]) -> String {
    match words {
        [first @ .., last] if !first.is_empty() => format!("{} or {last}", first.join(", ")),
        _ => words.join(""),
    }
}

fn explain_key(unknown: &str, known: &[&str]) -> String {
    match nearest(known.iter().copied(), unknown) {
        Some(nearest) => format!("unknown key `{unknown}`; did you mean `{nearest}`?"),
        None => format!("unknown key `{unknown}`; the keys here are {}", known.join(", ")),
    }
}

/// The error about a value that names a table `[KIND.NAME]` that does not exist.
pub(super) fn unknown_table<T>(
    what: &str,
    kind: &str,
    name: &str,
    known: &BTreeMap<String, T>,
) -> String {
    let advice = match nearest(known.keys().map(String::as_str), name) {
        Some(nearest) => format!("did you mean {nearest:?}?"),
        None => format!("write [{kind}.{name}]"),
    };
    format!("{what} names the {kind} {name:?}, which does not exist; {advice}")
}

/// The known word that is most similar to `unknown`, if `unknown` may be a misspelling of it.
fn nearest<'a>(known: impl Iterator<Item = &'a str>, unknown: &str) -> Option<&'a str> {
    let nearest = known.min_by_key(|known| distance(known, unknown))?;
    (distance(nearest, unknown) <= 1 + unknown.len() / 3).then_some(nearest)
}

/// The edit distance (Levenshtein) of two words.
fn distance(one: &str, other: &str) -> usize {
    let other: Vec<_> = other.chars().collect();
    let mut row: Vec<usize> = (0..=other.len()).collect();
    for (nth, letter) in one.chars().enumerate() {
        let mut diagonal = std::mem::replace(&mut row[0], nth + 1);
        for (at, known) in other.iter().enumerate() {
            let changed = diagonal + usize::from(letter != *known);
            diagonal = row[at + 1];
            row[at + 1] = changed.min(row[at] + 1).min(diagonal + 1);
        }
    }
    row[other.len()]
}

#[cfg(test)]
mod tests {
    use super::super::NodeConfig;

    fn position_of(text: &str) -> (usize, usize, String) {
        let errors = NodeConfig::read("f", text).expect_err("it is refused");
        let error = errors.iter().next().expect("there is one");
        let (line, column, key) = error.position.clone().expect("a position");
        let expected = format!("f:{line}:{column}: {}", error.reason);
        assert_eq!(error.to_string(), expected);
        (line, column, key)
    }

    #[test]
    fn an_error_has_line_column_and_key() {
        let at = |line, column, key: &str| (line, column, key.to_owned());
        let interface = "[interface.ib0]\ndevice = 'null:'\n";
        let with = |line: &str| position_of(&format!("{interface}{line}\n"));
        assert_eq!(with("  mood = 'rc'"), at(3, 3, "interface.ib0.mood"));
        assert_eq!(with("mtu = 5"), at(3, 7, "interface.ib0.mtu"));
        assert_eq!(with("address = ['10.0.0.1/24', 'x']"), at(3, 11, "interface.ib0.address"));
        let twice = "address = ['10.0.0.1/24',\n '10.0.0.1/24']";
        assert_eq!(with(twice), at(4, 2, "interface.ib0.address"));
        let route = "[[route]]\nto = '10.0.0.0/8'\nvia = ['fd00::1']";
        assert_eq!(with(route), at(5, 1, "route.via"));
        assert_eq!(with("mtu = "), at(3, 7, ""));
        assert_eq!(position_of("[interface.\u{fc}]\n'\u{fc}' = 1"), at(1, 12, ""));
    }
}
