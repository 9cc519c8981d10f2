//! What connections have to say, to peers and to the consumer, until it is polled.

use super::state::Repeat;
use super::{CmConfig, CmDrop, CmEvent};
use crate::drops::Drops;
use crate::mad::{Envelope, MadAddress};
use pollux_verbs::rng::SeededRng;
use pollux_verbs::time::Time;
use pollux_wire::mad::cm::CmMessage;
use std::collections::VecDeque;
use std::time::Duration;

/// Messages and events that wait, and what was dropped.
#[derive(Debug)]
pub(super) struct Outbox {
    pub(super) config: CmConfig,
    rng: SeededRng,
    messages: VecDeque<Envelope>,
    events: VecDeque<CmEvent>,
    drops: Drops<CmDrop>,
}

impl Outbox {
    pub(super) fn new(config: CmConfig, rng: SeededRng) -> Self {
        let (messages, events) = (VecDeque::new(), VecDeque::new());
        Self { config, rng, messages, events, drops: Drops::default() }
    }

    /// Says something; if too much waits already, it is lost as if on the wire, and what matters
    /// is said again.
    pub(super) fn send(&mut self, to: &MadAddress, transaction_id: u64, message: &CmMessage) {
        if self.messages.len() >= self.config.messages_max {
            return self.count(CmDrop::OutgoingFull);
        }
        self.messages.push_back(Envelope { peer: *to, mad: message.emit_mad(transaction_id) });
    }

    /// Says something that is repeated until there is an answer: so long apart and so often.
    pub(super) fn begin_repeat(
        &mut self,
        now: Time,
        to: &MadAddress,
        message: CmMessage,
        transaction_id: u64,
        (interval, times_left): (Duration, u8),
    ) -> Repeat {
        self.send(to, transaction_id, &message);
        // What the peer asked for, as far as that is sensible.
        let interval = interval.max(self.config.response_time_min);
        let interval = interval.min(self.config.response_time_max);
        let (message, due) = (Box::new(message), self.later(now, interval));
        let pleas_left = self.config.pleas_max;
        Repeat { message, transaction_id, times_left, interval, due, pleas_left }
    }

    /// Says it again.
    pub(super) fn repeat(&mut self, now: Time, to: &MadAddress, repeat: &mut Repeat) {
        repeat.times_left = repeat.times_left.saturating_sub(1);
        repeat.due = self.later(now, repeat.interval);
        self.send(to, repeat.transaction_id, &repeat.message);
    }

    /// What many say at one moment, such as goodbyes, shall not all be said again at one moment.
    fn later(&mut self, now: Time, interval: Duration) -> Time {
        now + interval + self.rng.duration(interval / 8)
    }

    /// The peer has heard and asks for time: not for ever, and not for ever again.
    pub(super) fn be_patient(&mut self, now: Time, repeat: Repeat, wait: Duration) -> Repeat {
        if repeat.pleas_left == 0 {
            self.count(CmDrop::TooManyPleas);
            return repeat;
        }
        let due = (now + wait.min(self.config.plea_time_max)).max(repeat.due);
        Repeat { due, pleas_left: repeat.pleas_left - 1, ..repeat }
    }

    pub(super) fn tell(&mut self, event: CmEvent) {
        self.events.push_back(event);
    }

    /// Whether the consumer has fallen behind.
    pub(super) fn is_full(&self) -> bool {
        self.events.len() >= self.config.events_max
    }

    pub(super) fn poll_message(&mut self) -> Option<Envelope> {
        self.messages.pop_front()
    }

    pub(super) fn poll_event(&mut self) -> Option<CmEvent> {
        self.events.pop_front()
    }

    pub(super) fn count(&mut self, reason: CmDrop) {
        self.drops.count(reason);
    }

    pub(super) const fn drops(&self) -> &Drops<CmDrop> {
        &self.drops
    }
}
