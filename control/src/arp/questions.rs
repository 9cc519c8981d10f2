//! Inverse and reverse questions under way: asked a few times, then given up.

use pollux_verbs::time::Time;
use pollux_wire::ip::arp::ArpOperation;
use pollux_wire::ip::link_address::LinkAddress;
use std::collections::BTreeMap;
use std::time::Duration;

/// Questions that wait for an answer, at most.
pub const QUESTIONS_MAX: usize = 64;
/// How long they wait.
const QUESTION_TIME: Duration = Duration::from_secs(1);
/// How often they are asked.
const QUESTION_TRIES: u8 = 3;

#[derive(Clone, Copy, Debug)]
struct Question {
    operation: ArpOperation,
    about: LinkAddress,
    sent: u8,
    until: Time,
}

/// All of them, by the link address that they are about.
#[derive(Default)]
pub(super) struct Questions(BTreeMap<[u8; LinkAddress::LEN], Question>);

/// A question whose time has come.
pub(super) enum Due {
    /// To be asked, once more or first.
    Ask(ArpOperation, LinkAddress),
    /// Nobody answered.
    GiveUp(LinkAddress),
}

impl Questions {
    /// A new question, due at once. `false` if there are too many.
    pub(super) fn begin(&mut self, now: Time, about: LinkAddress, operation: ArpOperation) -> bool {
        let key = about.comparison_form();
        if self.0.len() >= QUESTIONS_MAX && !self.0.contains_key(&key) {
            return false;
        }
        self.0.insert(key, Question { operation, about, sent: 0, until: now });
        true
    }

    /// Takes out the question that was answered; `false` if nobody asked it.
    pub(super) fn answered(&mut self, about: LinkAddress, operation: ArpOperation) -> bool {
        let key = about.comparison_form();
        let is_asked = self.0.get(&key).is_some_and(|question| question.operation == operation);
        if is_asked {
            self.0.remove(&key);
        }
        is_asked
    }

    /// A question whose time has come, if there is one.
    pub(super) fn next_due(&mut self, now: Time) -> Option<Due> {
        let (&key, question) = self.0.iter_mut().find(|(_, question)| question.until <= now)?;
        let Question { operation, about, sent, .. } = *question;
        if sent >= QUESTION_TRIES {
            self.0.remove(&key);
            return Some(Due::GiveUp(about));
        }
        (question.sent, question.until) = (sent + 1, now + QUESTION_TIME);
        Some(Due::Ask(operation, about))
    }

    pub(super) fn poll_timeout(&self) -> Option<Time> {
        self.0.values().map(|question| question.until).min()
    }
}
