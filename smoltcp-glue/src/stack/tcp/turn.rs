//! A connection's turn: a segment came for it, it may have one to send, or something is due.

use super::{Event, Tcp, TcpId, push};
use crate::stack::Counts;
use crate::stack::mtu::Mtus;
use crate::stack::outbox::{Exit, Outbox};
use pollux_verbs::time::Time;
use pollux_wire::ip::tcp::TcpSegment;
use smoltcp::socket::tcp::State;
use std::time::Duration;

/// How often smoltcp is kept from forgetting what came and nobody has read.
const KEPT_FOR_READER: Duration = Duration::from_secs(1);

impl Tcp {
    pub(super) fn receive(
        &mut self,
        now: Time,
        id: TcpId,
        (octets, segment): (&[u8], &TcpSegment<'_>),
        mtus: &Mtus,
        out: &mut Outbox,
    ) {
        let Some(connection) = self.connections.get_mut(id) else { return };
        let (before, first) = (connection.state(), connection.first());
        let at = connection.at(now, mtus);
        if connection.is_of_unsent(segment) {
            if connection.challenge(at, &mut self.engine, &mut self.draft) {
                push(out, &self.draft);
            }
            return;
        }
        let has_answer = self.engine.receive(at, connection.sockets(), octets, &mut self.draft);
        let answer = has_answer.then_some(&mut self.draft);
        connection.note_received((at, before), segment, &mut self.engine, answer);
        if has_answer {
            push(out, &self.draft);
        }
        connection.note_heard((before, first));
        connection.put_off(now);
        if connection.state() == State::Listen {
            // It was no SYN that a connection begins with.
            connection.socket().abort();
        }
        self.settle(id, Event { before, heard: true });
        self.make_ready(id);
    }

    /// Polls connections that are ready, until one has a packet, or took long without; says whether
    /// there is one.
    pub(in crate::stack) fn transmit(
        &mut self,
        now: Time,
        exit: &mut dyn Exit,
        mtus: &Mtus,
        counts: &mut Counts,
    ) -> bool {
        while let Some(id) = self.ready.pop_front() {
            let Some(connection) = self.connections.get_mut(id) else { continue };
            if connection.is_detached {
                continue;
            }
            counts.tcp_polls += 1;
            let before = connection.state();
            let at = connection.at(now, mtus);
            let written = connection.transmit(at, &mut self.engine, exit, &mut self.draft);
            let is_sent = written.is_some();
            if let Some(written) = written {
                connection.note_sent(now, &written);
                // It may have more, after everybody else had a turn.
                self.ready.push_back(id);
            } else if connection.is_paused() {
                self.ready.push_back(id);
                return false;
            } else {
                connection.is_ready = false;
                let due = self.engine.due(at, connection.sockets());
                let dues = [due, connection.closing_due(), connection.silence_due(at)];
                let due = dues.into_iter().flatten().min();
                self.set_due(id, due);
            }
            self.settle(id, Event { before, heard: false });
            if is_sent {
                return true;
            }
        }
        false
    }

    pub(in crate::stack) fn handle_timeout(&mut self, now: Time, mtus: &Mtus) {
        while let Some(&(due, id)) = self.due.first() {
            if due > now {
                return;
            }
            self.set_due(id, None);
            let Some(connection) = self.connections.get_mut(id) else { continue };
            if connection.is_kept_for_reader() {
                self.set_due(id, Some(now + KEPT_FOR_READER));
                continue;
            }
            let before = connection.state();
            if connection.give_up(now) {
                self.settle(id, Event { before, heard: false });
            } else {
                connection.handle_silence(connection.at(now, mtus), &mut self.engine);
            }
            self.make_ready(id);
        }
    }

    pub(super) fn make_ready(&mut self, id: TcpId) {
        if let Some(connection) = self.connections.get_mut(id)
            && !connection.is_ready
        {
            connection.is_ready = true;
            self.ready.push_back(id);
        }
    }

    pub(super) fn set_due(&mut self, id: TcpId, due: Option<Time>) {
        let Some(connection) = self.connections.get_mut(id) else { return };
        if let Some(old) = std::mem::replace(&mut connection.due, due) {
            self.due.remove(&(old, id));
        }
        self.due.extend(due.map(|due| (due, id)));
    }
}
