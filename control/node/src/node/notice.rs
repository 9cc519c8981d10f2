//! Notices: what a node says as it happens, for logs of people and programs.

use serde::Serialize;
use std::fmt;

/// Something that happened.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct NodeNotice {
    /// Whether somebody has to look.
    pub level: NoticeLevel,
    /// The part of the node: an interface by its name, `reload`, `telemetry`.
    pub about: String,
    /// What happened.
    pub message: String,
}

/// How bad it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum NoticeLevel {
    /// As it should be.
    Info,
    /// Something does not work; the node goes on.
    Warning,
}

impl NodeNotice {
    /// A notice of this level.
    fn new(level: NoticeLevel, about: impl Into<String>, message: impl Into<String>) -> Self {
        Self { level, about: about.into(), message: message.into() }
    }

    /// One that nobody has to look at.
    pub fn info(about: impl Into<String>, message: impl Into<String>) -> Self {
        Self::new(NoticeLevel::Info, about, message)
    }

    /// One that somebody has to look at.
    pub fn warning(about: impl Into<String>, message: impl Into<String>) -> Self {
        Self::new(NoticeLevel::Warning, about, message)
    }
}

impl fmt::Display for NodeNotice {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.about, self.message)
    }
}
