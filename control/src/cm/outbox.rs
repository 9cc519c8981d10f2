//! Outgoing messages and events of all connections, until they are polled.

use super::{CmConfig, CmDrop, CmEvent};
use crate::mad::{Envelope, MadAddress};
use pollux_verbs::drops::Drops;
use pollux_verbs::rng::SeededRng;
use pollux_verbs::time::Time;
use pollux_wire::mad::cm::CmMessage;
use std::collections::VecDeque;
use std::time::Duration;

/// A message that is sent again until it is answered or its retries are used up.
#[derive(Clone, Debug)]
pub(super) struct Repeat {
    pub(super) message: Box<CmMessage>,
    pub(super) transaction_id: u64,
    pub(super) times_left: u8,
    pub(super) interval: Duration,
    pub(super) due: Time,
    /// The number of MRAs that the peer may still send for the message.
    pub(super) mras_left: u8,
}

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

    /// Queues a message. If the queue is full, the message is dropped as if lost on the wire; the
    /// retry timer covers messages that matter.
    pub(super) fn send(&mut self, to: &MadAddress, transaction_id: u64, message: &CmMessage) {
        if self.messages.len() >= self.config.messages_max {
            return self.count(CmDrop::OutgoingFull);
        }
        self.messages.push_back(Envelope { peer: *to, mad: message.emit_mad(transaction_id) });
    }

    /// Sends a message and arms its retry timer, with this interval and number of retries.
    pub(super) fn begin_repeat(
        &mut self,
        now: Time,
        to: &MadAddress,
        message: CmMessage,
        transaction_id: u64,
        (interval, times_left): (Duration, u8),
    ) -> Repeat {
        self.send(to, transaction_id, &message);
        // The response time that the peer announced, within our limits.
        let interval = interval.max(self.config.response_time_min);
        let interval = interval.min(self.config.response_time_max);
        let (message, due) = (Box::new(message), self.later(now, interval));
        let mras_left = self.config.mras_max;
        Repeat { message, transaction_id, times_left, interval, due, mras_left }
    }

    pub(super) fn repeat(&mut self, now: Time, to: &MadAddress, repeat: &mut Repeat) {
        repeat.times_left = repeat.times_left.saturating_sub(1);
        repeat.due = self.later(now, repeat.interval);
        self.send(to, repeat.transaction_id, &repeat.message);
    }

    /// When a message is due again, with jitter of up to an eighth of the interval, so that
    /// messages sent together are not retransmitted together.
    fn later(&mut self, now: Time, interval: Duration) -> Time {
        now + interval + self.rng.duration(interval / 8)
    }

    /// Extends the retry timer after an MRA. The duration and the number of MRAs are limited.
    pub(super) fn extend_due(&mut self, now: Time, repeat: Repeat, wait: Duration) -> Repeat {
        if repeat.mras_left == 0 {
            self.count(CmDrop::TooManyMras);
            return repeat;
        }
        let due = (now + wait.min(self.config.mra_time_max)).max(repeat.due);
        Repeat { due, mras_left: repeat.mras_left - 1, ..repeat }
    }

    pub(super) fn emit_event(&mut self, event: CmEvent) {
        self.events.push_back(event);
    }

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
