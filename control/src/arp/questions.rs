//! Outstanding inverse ARP requests, with retries.

use crate::link::InterfaceAddress;
use pollux_verbs::time::Time;
use std::collections::BTreeMap;
use std::time::Duration;

pub const QUESTIONS_MAX: usize = 64;
const QUESTION_TIME: Duration = Duration::from_secs(1);
const QUESTION_TRIES: u8 = 3;

#[derive(Clone, Copy, Debug)]
struct Question<L> {
    about: L,
    sent: u8,
    until: Time,
}

/// The outstanding requests, by the key of the link address that each asks for.
pub(super) struct Questions<L: InterfaceAddress>(BTreeMap<L::Key, Question<L>>);

pub(super) enum Due<L> {
    /// Send a request to this link address, the first one or a retry.
    Ask(L),
    GiveUp(L),
}

impl<L: InterfaceAddress> Default for Questions<L> {
    fn default() -> Self {
        Self(BTreeMap::new())
    }
}

impl<L: InterfaceAddress> Questions<L> {
    /// Adds a request, due at once. Returns `false` if there are already [`QUESTIONS_MAX`].
    pub(super) fn begin(&mut self, now: Time, about: L) -> bool {
        let key = about.key();
        if self.0.len() >= QUESTIONS_MAX && !self.0.contains_key(&key) {
            return false;
        }
        self.0.insert(key, Question { about, sent: 0, until: now });
        true
    }

    pub(super) fn end(&mut self, about: L) -> bool {
        self.0.remove(&about.key()).is_some()
    }

    pub(super) fn next_due(&mut self, now: Time) -> Option<Due<L>> {
        let (&key, question) = self.0.iter_mut().find(|(_, question)| question.until <= now)?;
        let Question { about, sent, .. } = *question;
        if sent >= QUESTION_TRIES {
            self.0.remove(&key);
            return Some(Due::GiveUp(about));
        }
        (question.sent, question.until) = (sent + 1, now + QUESTION_TIME);
        Some(Due::Ask(about))
    }

    pub(super) fn poll_timeout(&self) -> Option<Time> {
        self.0.values().map(|question| question.until).min()
    }
}
