//! Notices: events of a node, for logs that people or programs read.

use serde::Serialize;
use std::fmt;

#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct NodeNotice {
    /// Whether an administrator has to act.
    pub level: NoticeLevel,
    /// The part of the node: an interface by its name, or a word such as `reload`.
    pub about: String,
    pub message: String,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum NoticeLevel {
    Info,
    /// A part does not work, or a change was refused or taken back; the node runs on.
    Warning,
}

impl NodeNotice {
    fn new(level: NoticeLevel, about: impl Into<String>, message: impl Into<String>) -> Self {
        Self { level, about: about.into(), message: message.into() }
    }

    /// A notice that needs no action.
    pub fn info(about: impl Into<String>, message: impl Into<String>) -> Self {
        Self::new(NoticeLevel::Info, about, message)
    }

    /// A notice that an administrator should look at.
    pub fn warning(about: impl Into<String>, message: impl Into<String>) -> Self {
        Self::new(NoticeLevel::Warning, about, message)
    }
}

impl fmt::Display for NodeNotice {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.about, self.message)
    }
}
