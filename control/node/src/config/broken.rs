//! A rule across the values of a configuration that is broken, and which value breaks it.

use super::ConfigError;
use super::lines::Step;

/// A broken rule.
#[derive(Debug)]
pub(super) struct Broken {
    /// The path of the wrong value.
    path: Vec<Step>,
    reason: String,
}

pub(super) type Checked = Result<(), Broken>;

impl Broken {
    pub(super) fn new(path: &[Step], reason: String) -> Self {
        Self { path: path.into(), reason }
    }

    /// The error, with its place.
    pub(super) fn in_file(self, file: &str, text: &str) -> ConfigError {
        ConfigError::of_value(file, text, &self.path, self.reason)
    }
}

/// Fails with the path of a value if there is a reason to.
pub(super) fn refuse(path: &[Step], reason: Option<String>) -> Checked {
    reason.map_or(Ok(()), |reason| Err(Broken::new(path, reason)))
}
