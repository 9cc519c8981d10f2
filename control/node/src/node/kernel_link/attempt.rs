//! An object of the kernel that is opened again after a failure.

use super::RETRY_EVERY;
use crate::kernel::KernelError;
use crate::node::notice::NodeNotice;
use pollux_verbs::time::Time;

/// An object of the kernel, or the time of the next attempt, and whether the failure was reported.
pub(super) enum Attempt<T> {
    Running(T),
    Pending { at: Time, is_reported: bool },
}

impl<T> Attempt<T> {
    pub(super) const fn running(&self) -> Option<&T> {
        match self {
            Self::Running(it) => Some(it),
            Self::Pending { .. } => None,
        }
    }

    pub(super) const fn retry_at(&self) -> Option<Time> {
        match self {
            Self::Running(_) => None,
            Self::Pending { at, .. } => Some(*at),
        }
    }

    /// Returns the object if it is open. Opens it first if an attempt is due.
    pub(super) fn open(
        &mut self,
        now: Time,
        what: impl Fn() -> String,
        say: &mut impl FnMut(&NodeNotice),
        open: impl FnOnce() -> Result<T, KernelError>,
    ) -> Option<&mut T> {
        if let Self::Pending { at, is_reported } = *self
            && at <= now
        {
            match open() {
                Ok(it) => {
                    if is_reported {
                        say(&NodeNotice::info(what(), "there again"));
                    }
                    *self = Self::Running(it);
                }
                Err(error) => self.fail(now, what, say, &error),
            }
        }
        match self {
            Self::Running(it) => Some(it),
            Self::Pending { .. } => None,
        }
    }

    /// Closes an object that the kernel refused to change, and opens it again later. The reason is
    /// reported once.
    pub(super) fn fail(
        &mut self,
        now: Time,
        what: impl Fn() -> String,
        say: &mut impl FnMut(&NodeNotice),
        error: &KernelError,
    ) {
        if !matches!(self, Self::Pending { is_reported: true, .. }) {
            say(&NodeNotice::warning(what(), format!("{error}; retrying")));
        }
        *self = Self::Pending { at: now + RETRY_EVERY, is_reported: true };
    }
}
