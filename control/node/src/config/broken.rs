//! Broken rules across the values of a configuration.

use super::error::{ConfigError, ConfigErrors};
use super::lines::Step;

#[derive(Debug)]
struct Broken {
    /// The path of the wrong value.
    path: Vec<Step>,
    reason: String,
}

#[derive(Debug, Default)]
pub(super) struct Faults(Vec<Broken>);

impl Faults {
    /// Adds a broken rule of the value at this path, unless it has one: others may follow from the
    /// first.
    pub(super) fn add(&mut self, path: &[Step], reason: String) {
        if self.0.iter().all(|other| other.path != path) {
            self.0.push(Broken { path: path.into(), reason });
        }
    }

    pub(super) fn refuse(&mut self, path: &[Step], reason: Option<String>) {
        reason.into_iter().for_each(|reason| self.add(path, reason));
    }

    pub(super) fn in_file(self, file: &str, text: &str) -> Result<(), ConfigErrors> {
        if self.0.is_empty() {
            return Ok(());
        }
        let error = |Broken { path, reason }| ConfigError::of_value(file, text, &path, reason);
        Err(ConfigErrors::new(self.0.into_iter().map(error).collect()))
    }
}
