//! Loss recovery between smoltcp and the link: tracks the sequence numbers of a connection in both
//! directions, and runs [`Recovery`] after a loss.
//!
//! smoltcp retransmits in one way: its timer expires, and it writes everything again from the first
//! unacknowledged byte. So when the scoreboard has a loss, smoltcp is polled with a clock past that
//! timer, and only the segments that the scoreboard selects are sent. No byte is stored twice, and
//! a link without losses costs nothing more. Forged acknowledgments limit new data: smoltcp
//! receives the last acknowledgment of the peer again, with a smaller window. A late acknowledgment
//! of a busy peer starts recovery too, so recovery ends after enough segments without a loss.

use super::Connection;
use super::recovery::Recovery;
use super::round_trip::RoundTripTimer;
use super::window::Window;
use crate::stack::outbox::Packet;
use crate::stack::packet::header_len;
use crate::stack::tcp::cookie::{MSS_DEFAULT, SCALE_MAX};
use crate::stack::tcp::engine::{At, Engine, Written, seal};
use crate::stack::tcp::segment::{set_sequence_number, write_segment};
use crate::stack::{Stack, TcpId};
use pollux_verbs::time::Time;
use pollux_wire::ip::tcp::{TcpHeader, TcpOption, TcpSegment};
use smoltcp::socket::tcp::{CongestionControl, State};
use std::time::Duration;

/// The first retransmission timeout of a connection outside of recovery, if the peer acknowledges
/// at once.
const FIRST_TIMEOUT: Duration = Duration::from_millis(10);
/// The same if a single segment is in flight, so that the peer may delay its acknowledgment.
const FIRST_TIMEOUT_OF_SINGLE: Duration = Duration::from_millis(50);
/// Acknowledgments are delayed again after this many segments without an immediate answer. On a
/// lossy path, losses come more often than that, and the sender waits for each acknowledgment.
const DELAYED_ACKS_AFTER: u32 = 1 << 14;
/// The first segments of a new connection, which are acknowledged at once: meanwhile, the peer's
/// congestion window doubles four times.
const QUICK_AT_FIRST: u32 = 16;
/// The delay of acknowledgments, on smoltcp's clock: 2 ms of real time.
const ACK_DELAY: smoltcp::time::Duration = smoltcp::time::Duration::from_millis(10);
/// The minimum MSS of a peer, as in smoltcp.
const MSS_MIN: u16 = 48;

#[derive(Debug, Default)]
pub(in crate::stack::tcp) struct LossRecovery {
    /// The sequence number after all bytes that the application has written.
    pub(super) given_to: u32,
    /// SND.MAX.
    pub(in crate::stack::tcp) sent_to: u32,
    /// The peer's sequence number after all bytes that the application has read.
    pub(super) read_to: u32,
    /// The number of bytes that the application has written.
    pub(super) written: u64,
    /// The number of bytes that the application has read.
    pub(super) read: u64,
    /// Retransmitted segments and bytes.
    pub(super) retransmitted: (u64, u64),
    pub(super) timer: RoundTripTimer,
    /// The window scale in the peer's SYN.
    shift: u8,
    /// The MSS in the peer's SYN.
    mss: Option<u16>,
    /// The peer's last window field, unscaled.
    pub(super) window: u16,
    /// The number of SYNs sent, and the time of the last one.
    syn: (u32, Time),
    /// The round-trip time of the SYN, if only one was sent.
    opening: Duration,
    /// Bytes received since the last segment was sent.
    unanswered: usize,
    /// The last acknowledgment that was sent.
    pub(in crate::stack::tcp) answered_to: u32,
    /// The number of next segments that are acknowledged at once.
    quick_for: u32,
    /// The first unacknowledged byte and SND.MAX, and when they last changed.
    moved: Option<(u32, u32, Time)>,
    pub(super) active: Option<Box<ActiveRecovery>>,
    /// The congestion window after the last recovery.
    pub(super) window_kept: Option<Window>,
    pub(super) sent_at: Time,
}

#[derive(Debug)]
pub(super) struct ActiveRecovery {
    pub(super) recovery: Recovery,
    /// The last acknowledgment and window sent to the peer.
    pub(super) last_ack: Option<(u32, u16)>,
    /// The next expected sequence number of the peer.
    pub(super) peer_next: Option<u32>,
    /// The time that was last passed to smoltcp to make its timer expire; reset when data is
    /// acknowledged.
    pub(super) ran_out: Time,
    first: u32,
    /// The buffer of the forged acknowledgment, which passes a window to smoltcp.
    forged_ack: Packet,
    /// Acknowledgment and window of smoltcp's answer to the forged acknowledgment, if that was not
    /// sent yet.
    pub(super) pending_ack: Option<(u32, u16)>,
    /// Set while output is paused, after many discarded segments: whether smoltcp had started its
    /// retransmission.
    pub(super) paused: Option<bool>,
}

/// Whether `one` is after `other` in sequence space.
pub(in crate::stack::tcp) const fn is_after(one: u32, other: u32) -> bool {
    one.wrapping_sub(other).cast_signed() > 0
}

pub(super) const fn is_opening(state: State) -> bool {
    matches!(state, State::Listen | State::SynSent | State::SynReceived)
}

impl LossRecovery {
    pub(super) fn new() -> Self {
        Self { quick_for: QUICK_AT_FIRST, ..Self::default() }
    }

    /// Notes a segment that smoltcp wrote; returns whether it is a retransmission.
    pub(super) fn note_written(&mut self, now: Time, written: &Written) -> bool {
        (self.unanswered, self.sent_at) = (0, now);
        self.answered_to = written.acknowledgment_number;
        let (start, end, before) = (written.sequence_number, written.end(), self.sent_to);
        if written.syn {
            let is_again = self.syn.0 > 0;
            self.syn = (self.syn.0 + 1, now);
            (self.given_to, self.sent_to) = (end, end);
            self.retransmitted.0 += u64::from(is_again);
            return is_again;
        }
        if is_after(end, before) && !written.rst {
            self.sent_to = end;
            self.timer.note_sent(now, end);
        }
        start != before && self.note_repeated(before, written)
    }

    /// Notes a segment that does not begin at `before`, the previous SND.MAX. Returns whether it is
    /// a retransmission.
    #[cold]
    fn note_repeated(&mut self, before: u32, written: &Written) -> bool {
        let start = written.sequence_number;
        let is_again = written.bytes > 0 && is_after(before, start);
        if is_again {
            // A FIN is not data.
            let data = written.bytes.min(self.given_to.wrapping_sub(start));
            self.retransmitted.0 += 1;
            self.retransmitted.1 += u64::from(data.min(before.wrapping_sub(start)));
            self.timer.note_retransmitted();
        }
        is_again
    }

    fn note_syn(&mut self, segment: &TcpSegment<'_>) {
        self.read_to = segment.header().sequence_number.wrapping_add(1);
        for option in segment.options().map_while(Result::ok) {
            match option {
                TcpOption::WindowScale(shift) => self.shift = shift.min(SCALE_MAX),
                TcpOption::MaximumSegmentSize(bytes) if bytes > 0 => {
                    self.mss = Some(bytes.max(MSS_MIN));
                }
                _ => {}
            }
        }
        // The window of a SYN is not scaled (RFC 7323 2.2).
        self.window = segment.header().window.div_ceil(1 << self.shift);
    }

    pub(super) fn first_timeout(&self, is_single: bool) -> Duration {
        (self.opening * 2).max(if is_single { FIRST_TIMEOUT_OF_SINGLE } else { FIRST_TIMEOUT })
    }
}

impl Stack {
    /// Whether a connection is in loss recovery ([`TcpInfo::is_in_loss_recovery`]). Each segment
    /// costs more then.
    ///
    /// [`TcpInfo::is_in_loss_recovery`]: crate::stack::TcpInfo::is_in_loss_recovery
    pub fn tcp_is_in_loss_recovery(&self, id: TcpId) -> bool {
        self.tcp
            .connections
            .get(id)
            .is_some_and(|connection| connection.loss_recovery.active.is_some())
    }
}

impl Connection {
    /// The first unacknowledged byte.
    pub(in crate::stack::tcp) fn snd_una(&self) -> u32 {
        match self.state() {
            State::FinWait2 | State::TimeWait | State::Closed => self.loss_recovery.sent_to,
            _ => self.loss_recovery.given_to.wrapping_sub(self.unacknowledged() as u32),
        }
    }

    /// Whether it is likely to have a segment to send. An established connection has none if it has
    /// sent all data, owes no acknowledgment of more than a segment (RFC 9293 3.8.6.3) and is not
    /// in recovery. Window updates are sent by a timer.
    pub(in crate::stack::tcp) fn may_transmit(&self) -> bool {
        let recovery = &self.loss_recovery;
        let owes = recovery.unanswered > usize::from(recovery.mss.unwrap_or(MSS_DEFAULT));
        let is_quiet = recovery.given_to == recovery.sent_to && !owes && recovery.active.is_none();
        !is_quiet || self.state() != State::Established
    }

    /// Whether sent data is unacknowledged.
    pub(super) fn is_waiting(&self) -> bool {
        !is_opening(self.state()) && is_after(self.loss_recovery.sent_to, self.snd_una())
    }

    pub(super) const fn has_zero_window(&self) -> bool {
        self.loss_recovery.window == 0
    }

    pub(super) fn peer_window(&self) -> usize {
        usize::from(self.loss_recovery.window) << self.loss_recovery.shift
    }

    pub(super) fn segment(&self, mtu: u32) -> usize {
        let headers = header_len(self.addresses().1.ip()) + TcpHeader::LEN;
        let theirs = self.loss_recovery.mss.unwrap_or(MSS_DEFAULT);
        (mtu as usize).saturating_sub(headers).clamp(usize::from(MSS_MIN), usize::from(theirs))
    }

    pub(super) fn mtu(&self, path_mtu: u32) -> u32 {
        self.loss_recovery.active.as_ref().map_or(path_mtu, |active| active.recovery.mtu(path_mtu))
    }

    /// Notes a segment of the peer that smoltcp has processed. `before` is the state before it.
    pub(in crate::stack::tcp) fn note_received(
        &mut self,
        (at, before): (At, State),
        segment: &TcpSegment<'_>,
        engine: &mut Engine,
        answer: Option<&mut Packet>,
    ) {
        let header = segment.header();
        if is_opening(before) {
            self.note_opening(at.now, before, segment);
        } else if self.loss_recovery.active.is_none()
            && header.ack
            && header.acknowledgment_number == self.snd_una()
        {
            self.loss_recovery.window = header.window;
        }
        if self.loss_recovery.timer.is_timing() {
            let first = self.snd_una();
            self.loss_recovery.timer.note_acknowledged(at.now, first);
        }
        if !segment.payload().is_empty() {
            let unanswered = self.loss_recovery.unanswered + segment.payload().len();
            self.loss_recovery.unanswered = if answer.is_some() { 0 } else { unanswered };
            self.note_order(answer.is_some());
        }
        let has_options = header.data_offset > 5;
        if !header.syn && (self.loss_recovery.active.is_some() || has_options) {
            self.receive_in_recovery(at, segment, engine, answer);
        }
    }

    fn note_opening(&mut self, now: Time, before: State, segment: &TcpSegment<'_>) {
        let state = self.state();
        if state == before {
            return;
        }
        let recovery = &mut self.loss_recovery;
        if segment.header().syn {
            recovery.note_syn(segment);
        } else {
            recovery.window = segment.header().window;
        }
        // An answer after a retransmission is ambiguous (RFC 6298 3).
        if let (1, since) = recovery.syn
            && !is_opening(state)
        {
            recovery.opening = now.since(since);
            // A connection of a SYN cookie has no sample.
            if recovery.opening > Duration::ZERO {
                recovery.timer.round_trip.sample(recovery.opening);
            }
        }
    }

    /// Notes received data; smoltcp answers data out of order at once.
    fn note_order(&mut self, is_answered: bool) {
        if is_answered {
            // A gap or a duplicate: a sender in recovery needs every acknowledgment. A delayed one
            // would also wait for the bytes of this host's longest segment, and the peer's segments
            // are shorter.
            self.socket().set_ack_delay(None);
            self.loss_recovery.quick_for = DELAYED_ACKS_AFTER;
        } else if self.loss_recovery.quick_for > 0 {
            self.loss_recovery.quick_for -= 1;
            if self.loss_recovery.quick_for == 0 {
                self.socket().set_ack_delay(Some(ACK_DELAY));
            }
        }
    }

    /// Handles a segment of a connection in recovery, or a segment with options, which may start
    /// recovery.
    #[cold]
    fn receive_in_recovery(
        &mut self,
        at: At,
        segment: &TcpSegment<'_>,
        engine: &mut Engine,
        answer: Option<&mut Packet>,
    ) {
        let header = segment.header();
        let first = self.snd_una();
        if let Some(answer) = answer {
            self.note_answer(answer);
        }
        // Older and invalid segments are ignored.
        if !header.ack || header.rst || header.acknowledgment_number != first {
            return;
        }
        let blocks = segment.options().map_while(Result::ok).find_map(|option| match option {
            TcpOption::Sack(blocks) => Some(blocks),
            _ => None,
        });
        let blocks = blocks.iter().flat_map(|blocks| blocks.as_slice());
        let blocks = blocks.map(|block| (block.left_edge, block.right_edge));
        let sent_to = self.loss_recovery.sent_to;
        let is_new = |(left, right): (u32, u32)| {
            let [left, right] = [left, right].map(|edge| edge.wrapping_sub(first));
            left < right && right <= sent_to.wrapping_sub(first)
        };
        if self.loss_recovery.active.is_none() {
            if !self.is_waiting() || !blocks.clone().any(is_new) {
                return;
            }
            self.begin_recovery(at, false);
        }
        let peer_window = usize::from(header.window) << self.loss_recovery.shift;
        let segment_bytes = self.segment(at.mtu);
        let Some(active) = &mut self.loss_recovery.active else { return };
        self.loss_recovery.window = header.window;
        let payload = segment.payload().len() as u32 + u32::from(header.fin);
        let peer_next = header.sequence_number.wrapping_add(payload);
        if active.peer_next.is_none_or(|before| is_after(peer_next, before)) {
            active.peer_next = Some(peer_next);
        }
        if first != active.first {
            (active.first, active.ran_out) = (first, Time::START);
        }
        active.recovery.set_segment(segment_bytes);
        active.recovery.handle_ack(at.now, first, blocks, peer_window);
        let is_recovered = active.recovery.is_recovered();
        match is_recovered && first == sent_to && self.state() == State::Established {
            true => self.end_recovery(at, engine),
            false => self.tell_window(at, engine),
        }
    }

    /// Lets smoltcp send within the peer's window again, without the scoreboard.
    fn end_recovery(&mut self, at: At, engine: &mut Engine) {
        self.write_forged_ack(at, engine, self.loss_recovery.window);
        let active = self.loss_recovery.active.as_ref();
        if let Some(active) = active
            && active.pending_ack.is_none()
            && active.paused.is_none()
        {
            self.loss_recovery.window_kept = Some(active.recovery.window());
            (self.loss_recovery.active, self.loss_recovery.moved) = (None, None);
        }
    }

    fn begin_recovery(&mut self, at: At, by_timeout: bool) {
        self.socket().set_congestion_control(CongestionControl::None);
        let first = self.snd_una();
        let sent = (first, self.loss_recovery.sent_to);
        let kind = (self.segment(at.mtu), self.loss_recovery.opening);
        let recovery = Recovery::new(at.now, sent, kind, by_timeout);
        self.loss_recovery.window_kept = None;
        self.loss_recovery.active = Some(Box::new(ActiveRecovery {
            recovery,
            last_ack: None,
            peer_next: None,
            ran_out: Time::START,
            first,
            forged_ack: Packet::default(),
            pending_ack: None,
            paused: None,
        }));
    }

    /// Starts recovery without a loss, to limit the connection to a congestion window.
    pub(super) fn begin_within(&mut self, at: At, window: Window, engine: &mut Engine) {
        self.begin_recovery(at, false);
        let (peer_next, peer_window) = (self.receive_next(), self.peer_window());
        if let Some(active) = &mut self.loss_recovery.active {
            active.peer_next = Some(peer_next);
            active.recovery.set_window(window, peer_window);
        }
        self.tell_window(at, engine);
    }

    pub(super) fn has_unsent(&self) -> bool {
        self.unacknowledged() > self.loss_recovery.sent_to.wrapping_sub(self.snd_una()) as usize
    }

    /// Notes smoltcp's immediate acknowledgment in recovery, and sets its sequence number to
    /// SND.MAX: while smoltcp rewrites data, its own number is smaller.
    pub(super) fn note_answer(&mut self, answer: &mut Packet) {
        let sent_to = self.loss_recovery.sent_to;
        let Some(active) = &mut self.loss_recovery.active else { return };
        let Some(written) = seal(answer.bytes_mut()).filter(|written| !written.rst) else {
            return;
        };
        active.note_ack(&written);
        if written.sequence_number != sent_to {
            set_sequence_number(answer.bytes_mut(), sent_to);
            seal(answer.bytes_mut());
        }
    }

    pub(super) fn tell_window(&mut self, at: At, engine: &mut Engine) {
        let Some(active) = &self.loss_recovery.active else { return };
        let allowed = active.recovery.window_limit();
        let unit = 1 << self.loss_recovery.shift;
        let field = (allowed.bytes / unit).max(allowed.least.div_ceil(unit));
        let field = u16::try_from(field).unwrap_or(u16::MAX).max(1).min(self.loss_recovery.window);
        self.write_forged_ack(at, engine, field);
    }

    fn write_forged_ack(&mut self, at: At, engine: &mut Engine, field: u16) {
        let is_last = self.state() == State::LastAck;
        let (local, remote) = self.addresses();
        let Some(active) = &mut self.loss_recovery.active else { return };
        // In LAST-ACK, smoltcp accepts no window update.
        let Some(peer_next) = active.peer_next.filter(|_| !is_last) else {
            return;
        };
        let header = TcpHeader {
            sequence_number: peer_next,
            acknowledgment_number: active.first,
            window: field,
            ack: true,
            ..TcpHeader::default()
        };
        if write_segment(&mut active.forged_ack, (remote, local), header, &[]).is_none() {
            return;
        }
        let (forged_ack, mut answer) = (active.forged_ack.bytes(), Packet::default());
        if engine.receive(at, &mut self.sockets, forged_ack, &mut answer) {
            let sent = seal(answer.bytes_mut()).filter(|answer| !answer.rst);
            active.pending_ack = sent.map(|sent| (sent.acknowledgment_number, sent.window));
        }
    }

    pub(in crate::stack::tcp) fn retransmission_due(&mut self, at: At) -> Option<Time> {
        let (first, sent_to) = (self.snd_una(), self.loss_recovery.sent_to);
        let has_unsent = self.has_unsent();
        if let Some(active) = &mut self.loss_recovery.active {
            active.recovery.set_unsent(at.now, has_unsent);
            return active.recovery.due();
        }
        if !self.is_waiting() || self.loss_recovery.window == 0 {
            self.loss_recovery.moved = None;
            return None;
        }
        let since = match self.loss_recovery.moved {
            Some((first_then, sent_then, since)) if (first_then, sent_then) == (first, sent_to) => {
                since
            }
            _ => at.now,
        };
        self.loss_recovery.moved = Some((first, sent_to, since));
        let is_single = sent_to.wrapping_sub(first) as usize <= self.segment(at.mtu);
        Some(since + self.loss_recovery.first_timeout(is_single))
    }

    pub(in crate::stack::tcp) fn handle_retransmission_timeout(
        &mut self,
        at: At,
        engine: &mut Engine,
    ) {
        let is_due = self.retransmission_due(at).is_some_and(|due| due <= at.now);
        if !is_due {
            return;
        }
        if self.loss_recovery.active.is_none() {
            self.begin_recovery(at, true);
        }
        let segment_bytes = self.segment(at.mtu);
        if let Some(active) = &mut self.loss_recovery.active {
            active.recovery.set_segment(segment_bytes);
            active.recovery.handle_timeout(at.now);
        }
        self.tell_window(at, engine);
    }
}

impl ActiveRecovery {
    /// Notes an acknowledgment that was sent: it is the next sequence number expected of the peer.
    pub(super) const fn note_ack(&mut self, written: &Written) {
        self.last_ack = Some((written.acknowledgment_number, written.window));
        self.peer_next = Some(written.acknowledgment_number);
    }
}
