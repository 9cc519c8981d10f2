//! Connections in TIME-WAIT that the application has closed (RFC 9293 3.6.1): two sequence numbers
//! each, without buffers.

use super::connection::is_after;
use super::segment::{Ends, write_segment};
use crate::stack::lookup::Lookup;
use crate::stack::outbox::Packet;
use pollux_verbs::time::Time;
use pollux_wire::ip::tcp::{TcpHeader, TcpSegment};
use std::collections::VecDeque;
use std::time::Duration;

/// Twice the lifetime of a segment on these links.
const TIME_WAIT: Duration = Duration::from_secs(2);

#[derive(Clone, Copy)]
struct Ended {
    sent_to: u32,
    receive_next: u32,
    until: Time,
}

pub(super) struct TimeWaits {
    all: Lookup<Ends, Ended>,
    /// In order of time. If the wait of a connection was extended, the time here is too early.
    timers: VecDeque<(Time, Ends)>,
    count_max: usize,
}

impl TimeWaits {
    pub(super) fn new(count_max: usize) -> Self {
        Self { all: Lookup::default(), timers: VecDeque::new(), count_max }
    }

    pub(super) fn len(&self) -> usize {
        self.all.len()
    }

    pub(super) fn contains(&self, ends: Ends) -> bool {
        self.all.contains_key(&ends)
    }

    /// Adds a connection. At the limit, removes the oldest one.
    pub(super) fn add(&mut self, now: Time, ends: Ends, sent_to: u32, receive_next: u32) {
        if self.timers.len() >= self.count_max
            && let Some((_, oldest)) = self.timers.pop_front()
        {
            self.all.remove(&oldest);
        }
        let until = now + TIME_WAIT;
        self.all.insert(ends, Ended { sent_to, receive_next, until });
        self.timers.push_back((until, ends));
    }

    /// Ends the wait for a new SYN, and returns SND.MAX of the connection. Returns `None` for an
    /// old SYN: its sequence number is not after all that the connection received.
    pub(super) fn replace(&mut self, ends: Ends, syn: u32) -> Option<u32> {
        self.all.get(&ends).filter(|ended| is_after(syn, ended.receive_next))?;
        self.end(ends)
    }

    /// Ends the wait; returns SND.MAX of the connection.
    pub(super) fn end(&mut self, ends: Ends) -> Option<u32> {
        self.all.remove(&ends).map(|ended| ended.sent_to)
    }

    /// Handles a segment of a connection in TIME-WAIT: acknowledges data, a SYN or a FIN once more,
    /// with a packet in `draft`. Returns whether it wrote one.
    pub(super) fn receive(
        &mut self,
        now: Time,
        ends: Ends,
        segment: &TcpSegment<'_>,
        draft: &mut Packet,
    ) -> bool {
        let Some(ended) = self.all.get_mut(&ends) else { return false };
        let header = segment.header();
        // A reset would end the wait too early (RFC 1337).
        if header.rst || !(header.fin || header.syn || !segment.payload().is_empty()) {
            return false;
        }
        if header.fin {
            ended.until = now + TIME_WAIT;
        }
        let answer = TcpHeader {
            sequence_number: ended.sent_to,
            acknowledgment_number: ended.receive_next,
            window: u16::MAX,
            ack: true,
            ..TcpHeader::default()
        };
        write_segment(draft, ends, answer, &[]).is_some()
    }

    pub(super) fn due(&self) -> Option<Time> {
        self.timers.front().map(|(due, _)| *due)
    }

    pub(super) fn handle_timeout(&mut self, now: Time) {
        while let Some((_, ends)) = self.timers.pop_front_if(|(due, _)| *due <= now) {
            match self.all.get(&ends).map(|ended| ended.until) {
                Some(until) if until > now => self.timers.push_back((until, ends)),
                _ => drop(self.all.remove(&ends)),
            }
        }
    }
}
