//! Serves a connection: a received segment, a poll for segments to send, or an expired timer.
//!
//! In request-response traffic, work between a segment and its answer adds latency. So a received
//! segment causes only the necessary work: a connection without data to send is not polled for
//! segments, and its timer is computed later (`Tcp::handle_timeout`), after the answer was sent.

use super::connection::{Acceptance, Probe};
use super::{Event, Tcp, TcpError, TcpId, push};
use crate::stack::StackCounts;
use crate::stack::mtu::Mtus;
use crate::stack::outbox::{Outbox, PacketSink};
use pollux_verbs::time::Time;
use pollux_wire::ip::tcp::TcpSegment;
use smoltcp::socket::tcp::State;
use std::time::Duration;

/// By how much the TIME-WAIT of a connection with unread data is extended at a time.
const TIME_WAIT_EXTENSION: Duration = Duration::from_secs(1);
/// The delay before smoltcp is polled again after a poll without a segment.
const EMPTY_POLL_DELAY: Duration = Duration::from_millis(1);

impl Tcp {
    pub(super) fn receive(
        &mut self,
        now: Time,
        id: TcpId,
        (bytes, segment): (&[u8], &TcpSegment<'_>),
        mtus: &Mtus,
        out: &mut Outbox,
    ) {
        self.serve(now);
        let Some(connection) = self.connections.get_mut(id) else { return };
        let (before, first) = (connection.state(), connection.snd_una());
        let expected = connection.before_progress(now);
        let at = connection.at(now, mtus);
        let bytes = match connection.acceptance(first, segment) {
            Acceptance::Accept => bytes,
            Acceptance::AcceptText => {
                connection.renew(first, bytes, &mut self.renewed);
                self.renewed.bytes()
            }
            Acceptance::Challenge => {
                if connection.challenge(at, &mut self.engine, &mut self.draft) {
                    push(out, &self.draft);
                }
                return;
            }
            Acceptance::Drop => return,
        };
        let served = self.service_clock.at(now);
        connection.note_alive(served);
        let has_answer = self.engine.receive(at, &mut connection.sockets, bytes, &mut self.draft);
        let answer = has_answer.then_some(&mut self.draft);
        connection.note_received((at, before), segment, &mut self.engine, answer);
        if has_answer {
            push(out, &self.draft);
        }
        connection.note_progress((before, first));
        if expected.is_some_and(|expected| connection.has_progressed(now, first, expected)) {
            self.progress.push(connection.addresses().1.ip());
        }
        connection.postpone_give_up(served);
        if connection.state() == State::Listen {
            // smoltcp has not accepted the SYN.
            connection.socket().abort();
        }
        self.apply_event(id, Event { before, received: true });
        self.touch(id);
    }

    /// Polls ready connections until one has sent a packet or one is paused; returns whether a
    /// packet was sent.
    pub(in crate::stack) fn transmit(
        &mut self,
        now: Time,
        sink: &mut dyn PacketSink,
        mtus: &Mtus,
        counts: &mut StackCounts,
    ) -> bool {
        self.serve(now);
        while let Some(id) = self.ready.pop_front() {
            let Some(connection) = self.connections.get_mut(id) else { continue };
            if connection.is_detached {
                continue;
            }
            counts.tcp_polls += 1;
            let before = connection.state();
            let at = connection.at(now, mtus);
            let written = connection.transmit(at, &mut self.engine, sink, &mut self.draft);
            let is_sent = written.is_some();
            connection.had_nothing_to_send = !is_sent;
            if let Some(written) = written {
                let times = (now, self.service_clock.at(now));
                counts.tcp_retransmissions += u64::from(connection.note_sent(times, &written));
            }
            if connection.is_paused() && !is_sent {
                self.ready.push_back(id);
                return false;
            }
            connection.is_ready = is_sent && connection.may_transmit();
            match connection.is_ready {
                // Behind the other ready connections.
                true => self.ready.push_back(id),
                false => self.mark_timer_stale(id),
            }
            self.apply_event(id, Event { before, received: false });
            if before == State::TimeWait {
                self.retire(now, id);
            }
            if is_sent {
                return true;
            }
        }
        false
    }

    pub(in crate::stack) fn handle_timeout(
        &mut self,
        now: Time,
        mtus: &Mtus,
        (out, counts): (&mut Outbox, &mut StackCounts),
    ) {
        self.serve(now);
        self.time_waits.handle_timeout(now);
        while let Some(id) = self.stale_timers.pop_front() {
            self.update_timer(now, id, mtus);
        }
        if !self.to_probe.is_empty() {
            self.probe_moved(now, mtus, out);
        }
        while let Some(&(queued, id)) = self.timers.first() {
            if queued > now {
                return;
            }
            self.timers.pop_first();
            let Some(connection) = self.connections.get_mut(id) else { continue };
            connection.queued_deadline = None;
            match connection.deadline.take() {
                Some(due) if due <= now => {
                    self.handle_deadline(now, id, mtus, (out, counts));
                }
                later => self.set_deadline(id, later),
            }
        }
    }

    fn handle_deadline(
        &mut self,
        now: Time,
        id: TcpId,
        mtus: &Mtus,
        (out, counts): (&mut Outbox, &mut StackCounts),
    ) {
        let Some(connection) = self.connections.get_mut(id) else { return };
        if connection.is_kept_for_reader() {
            return self.set_deadline(id, Some(now + TIME_WAIT_EXTENSION));
        }
        let before = connection.state();
        let served = self.service_clock.at(now);
        if connection.give_up(served) {
            self.apply_event(id, Event { before, received: false });
        } else if connection.keepalive_due().is_some_and(|due| due <= served) {
            let at = connection.at(now, mtus);
            match connection.probe(at, &mut self.engine, &mut self.draft) {
                Probe::Written => push(out, &self.draft),
                Probe::Nothing => {}
                Probe::Dead => {
                    counts.keepalive_timeouts += 1;
                    self.abort(id, TcpError::TimedOut);
                }
            }
        } else {
            connection.handle_retransmission_timeout(connection.at(now, mtus), &mut self.engine);
        }
        self.make_ready(id);
    }

    fn update_timer(&mut self, now: Time, id: TcpId, mtus: &Mtus) {
        let Some(connection) = self.connections.get_mut(id) else { return };
        connection.is_timer_stale = false;
        if connection.is_ready || connection.is_detached {
            return;
        }
        let at = connection.at(now, mtus);
        let due = self.engine.due(at, &connection.sockets);
        let due = match due.filter(|due| *due <= now) {
            // The last poll had no segment to send, so the next one is delayed.
            Some(_) if connection.had_nothing_to_send => Some(now + EMPTY_POLL_DELAY),
            Some(_) => return self.make_ready(id),
            None => due,
        };
        let served_due = [connection.closing_due(), connection.keepalive_due()];
        let served_due =
            served_due.into_iter().flatten().min().map(|due| self.service_clock.when(due));
        let dues = [due, served_due, connection.retransmission_due(at)];
        self.set_deadline(id, dues.into_iter().flatten().min());
    }

    /// Makes a connection ready if it may have a segment to send at once. Otherwise, its timer is
    /// computed later, after more urgent work.
    pub(super) fn touch(&mut self, id: TcpId) {
        let Some(connection) = self.connections.get_mut(id) else { return };
        match connection.may_transmit() {
            true => self.make_ready(id),
            false => {
                connection.had_nothing_to_send = false;
                self.mark_timer_stale(id);
            }
        }
    }

    pub(super) fn mark_timer_stale(&mut self, id: TcpId) {
        if let Some(connection) = self.connections.get_mut(id)
            && !std::mem::replace(&mut connection.is_timer_stale, true)
        {
            self.stale_timers.push_back(id);
        }
    }

    pub(super) fn make_ready(&mut self, id: TcpId) {
        let Some(connection) = self.connections.get_mut(id) else { return };
        connection.had_nothing_to_send = false;
        if !std::mem::replace(&mut connection.is_ready, true) {
            self.ready.push_back(id);
        }
    }

    /// Sets the deadline. An earlier entry in the timer queue stays, because most deadlines are
    /// postponed many times and never expire.
    fn set_deadline(&mut self, id: TcpId, due: Option<Time>) {
        let Some(connection) = self.connections.get_mut(id) else { return };
        connection.deadline = due;
        let Some(due) = due else { return };
        if connection.queued_deadline.is_some_and(|queued| queued <= due) {
            return;
        }
        if let Some(queued) = connection.queued_deadline.replace(due) {
            self.timers.remove(&(queued, id));
        }
        self.timers.insert((due, id));
    }

    pub(super) fn cancel_timer(&mut self, id: TcpId) {
        let Some(connection) = self.connections.get_mut(id) else { return };
        connection.deadline = None;
        if let Some(queued) = connection.queued_deadline.take() {
            self.timers.remove(&(queued, id));
        }
    }
}
