//! The output of `pollux check`: errors and warnings about a configuration file.

use serde::{Deserialize, Serialize};

/// The findings of `pollux check` about a configuration file.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct CheckReport {
    /// The path of the file, as it was given.
    pub file: String,
    /// Whether `pollux run` accepts the file.
    pub is_valid: bool,
    /// The names of the interfaces, if the file is valid.
    pub interfaces: Vec<String>,
    /// Errors and warnings.
    pub findings: Vec<CheckFinding>,
}

/// An error or a warning.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct CheckFinding {
    /// Whether it is an error or a warning.
    pub severity: CheckSeverity,
    /// The line in the file, counted from 1.
    pub line: Option<usize>,
    /// The column in the line, counted from 1.
    pub column: Option<usize>,
    /// The key, with dots between tables.
    pub key: Option<String>,
    /// What is wrong, and what to do.
    pub message: String,
}

/// The severity of a finding.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub enum CheckSeverity {
    /// The file cannot be used.
    Error,
    /// The file can be used, but a part of it does not work now.
    Warning,
}

display_as_serialized!(CheckSeverity);
