//! The results of cases, and their reports.

use pollux_verbs::error::{PostError, PostRefusal, VerbsError};
use std::fmt;

/// Why a case ended early.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Stop {
    /// The adapters do not support the subject of the case.
    Skip(String),
    /// The adapters did not behave as expected; the text has the expected and the actual behavior.
    Fail(String),
}

impl From<VerbsError> for Stop {
    fn from(error: VerbsError) -> Self {
        Self::Fail(format!("expected the verb to succeed, found: {error}"))
    }
}

impl From<PostError> for Stop {
    fn from(error: PostError) -> Self {
        Self::Fail(format!("expected the post to succeed, found: {error}"))
    }
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Outcome {
    Passed,
    Skipped(String),
    Failed(String),
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Report {
    /// `theme/name`.
    pub name: String,
    /// The clause that the case checks.
    pub about: &'static str,
    pub outcome: Outcome,
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.outcome {
            Outcome::Passed => write!(f, "pass {}", self.name),
            Outcome::Skipped(reason) => write!(f, "SKIP {}: {reason}", self.name),
            Outcome::Failed(text) => write!(f, "FAIL {} ({}): {text}", self.name, self.about),
        }
    }
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Summary {
    pub passed: u32,
    pub skipped: u32,
    pub failed: u32,
}

impl Summary {
    pub fn count(&mut self, report: &Report) {
        match report.outcome {
            Outcome::Passed => self.passed += 1,
            Outcome::Skipped(_) => self.skipped += 1,
            Outcome::Failed(_) => self.failed += 1,
        }
    }
}

impl fmt::Display for Summary {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} passed, {} skipped, {} failed", self.passed, self.skipped, self.failed)
    }
}

pub(super) fn fail<T>(text: impl Into<String>) -> Result<T, Stop> {
    Err(Stop::Fail(text.into()))
}

pub(super) fn skip<T>(reason: impl Into<String>) -> Result<T, Stop> {
    Err(Stop::Skip(reason.into()))
}

/// Fails the case unless `found` is `expected`.
pub(super) fn equal<T: PartialEq + fmt::Debug>(
    what: &str,
    found: T,
    expected: T,
) -> Result<(), Stop> {
    if found == expected {
        return Ok(());
    }
    fail(format!("{what}: expected {expected:?}, found {found:?}"))
}

/// Fails the case unless the verb refused, with an error for which `fits` is true.
pub(super) fn refused<T: fmt::Debug>(
    what: &str,
    answer: Result<T, VerbsError>,
    fits: impl Fn(&VerbsError) -> bool,
) -> Result<(), Stop> {
    match answer {
        Err(error) if fits(&error) => Ok(()),
        Err(error) => fail(format!("{what}: refused as it should be, but for: {error}")),
        Ok(made) => fail(format!("{what}: expected a refusal, found {made:?}")),
    }
}

/// Fails the case unless the verb reported that the object does not exist.
pub(super) fn no_such<T: fmt::Debug>(
    what: &str,
    answer: Result<T, VerbsError>,
) -> Result<(), Stop> {
    refused(what, answer, |error| matches!(error, VerbsError::NoSuch { .. }))
}

/// Fails the case unless the verb reported an invalid argument.
pub(super) fn invalid<T: fmt::Debug>(
    what: &str,
    answer: Result<T, VerbsError>,
) -> Result<(), Stop> {
    refused(what, answer, |error| matches!(error, VerbsError::Invalid { .. }))
}

/// Fails the case unless the verb reported that the object is in use.
pub(super) fn busy<T: fmt::Debug>(what: &str, answer: Result<T, VerbsError>) -> Result<(), Stop> {
    refused(what, answer, |error| matches!(error, VerbsError::Busy { .. }))
}

/// Fails the case unless the verb reported a limit.
pub(super) fn limited<T: fmt::Debug>(
    what: &str,
    answer: Result<T, VerbsError>,
) -> Result<(), Stop> {
    refused(what, answer, |error| matches!(error, VerbsError::Limit { .. }))
}

/// Fails the case unless the post accepted `accepted` requests and refused the next one for one of
/// these reasons.
pub(super) fn post_refused(
    what: &str,
    answer: Result<(), PostError>,
    accepted: usize,
    refusals: &[PostRefusal],
) -> Result<(), Stop> {
    match answer {
        Ok(()) => fail(format!("{what}: expected a refusal with {refusals:?}, found none")),
        Err(PostError { refusal, .. }) if !refusals.contains(&refusal) => {
            fail(format!("{what}: expected {refusals:?}, found {refusal:?}"))
        }
        Err(error) => equal("requests accepted", error.accepted, accepted),
    }
}
