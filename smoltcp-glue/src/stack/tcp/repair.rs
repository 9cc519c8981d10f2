//! Between smoltcp and a link that loses: what a connection keeps of its streams' places, and what
//! it does once it has to be repaired.
//!
//! smoltcp has one way to send something again: its clock runs out, and it says all again from the
//! first octet that is not acknowledged. That is the door taken here. The clock it is shown jumps
//! ahead when the scoreboard knows of something lost; of what smoltcp says then only that is let
//! through. So no octet is kept twice, and what a link without losses costs stays as it was. What
//! smoltcp may send that is new it is told as the peer's window, by acknowledgments that we write
//! ourselves: they say what the peer has said, but for a window that is smaller.

use super::bare::{Bare, set_sequence_number, write_bare};
use super::connection::Connection;
use super::engine::{At, Engine, Written, seal};
use super::recovery::{Recovery, Verdict};
use crate::stack::outbox::{Exit, Packet};
use pollux_verbs::time::Time;
use pollux_wire::ip::tcp::{TcpOption, TcpSegment};
use smoltcp::socket::tcp::{CongestionControl, State};
use std::time::Duration;

/// How long the first silence is that a connection is repaired after, when an acknowledgment is due
/// at once, and when the peer may keep it back.
const SILENCE: Duration = Duration::from_millis(10);
const SILENCE_OF_SINGLE: Duration = Duration::from_millis(50);
/// By then smoltcp's clock has run out, whatever it was wound to (60 s of its own).
const RUN_OUT: Duration = Duration::from_secs(13);
/// The most that a peer's window is scaled by (RFC 7323 2.3).
const SHIFT_MAX: u8 = 14;
/// A peer's longest segment if it says nothing (RFC 9293 3.7.1), and the shortest that is believed,
/// by smoltcp as well.
const MSS_DEFAULT: u16 = 536;
const MSS_MIN: u16 = 48;
const HEADERS_V4: usize = 40;
const HEADERS_V6: usize = 60;

/// What a connection knows for its repair.
#[derive(Debug, Default)]
pub(super) struct Repair {
    /// The place after all that the application gave.
    given_to: u32,
    /// The place after all that was sent.
    sent_to: u32,
    /// What the peer said in its SYN.
    shift: u8,
    mss: Option<u16>,
    /// The window it said last, before it is scaled.
    window: u16,
    /// Where things stood when they last moved, and when.
    moved: Option<(u32, u32, Time)>,
    /// Since the first loss.
    active: Option<Box<Active>>,
}

/// What it knows besides once it is repaired.
#[derive(Debug)]
struct Active {
    recovery: Recovery,
    /// What was last acknowledged to the peer, and the window it was told.
    said: Option<(u32, u16)>,
    /// The place in the peer's stream that the next from there has.
    heard_to: Option<u32>,
    /// What smoltcp's clock was last shown to make it run out, if nothing moved since.
    ran_out: Time,
    first: u32,
    /// Where smoltcp is told of windows.
    letter: Packet,
}

impl Repair {
    /// A segment was sent.
    pub(super) const fn note_written(&mut self, written: &Written) {
        let end = written.end();
        if written.syn {
            (self.given_to, self.sent_to) = (end, end);
        } else if end.wrapping_sub(self.sent_to).cast_signed() > 0 && !written.rst {
            self.sent_to = end;
        }
    }

    /// The application gave so many octets.
    pub(super) const fn note_given(&mut self, octets: usize) {
        self.given_to = self.given_to.wrapping_add(octets as u32);
    }

    fn note_syn(&mut self, segment: &TcpSegment<'_>) {
        for option in segment.options().map_while(Result::ok) {
            match option {
                TcpOption::WindowScale(shift) => self.shift = shift.min(SHIFT_MAX),
                TcpOption::MaximumSegmentSize(octets) if octets > 0 => {
                    self.mss = Some(octets.max(MSS_MIN));
                }
                _ => {}
            }
        }
    }
}

impl Connection {
    /// The first octet that the peer has not acknowledged.
    fn first(&self) -> u32 {
        match self.state() {
            State::FinWait2 | State::TimeWait | State::Closed => self.repair.sent_to,
            _ => self.repair.given_to.wrapping_sub(self.unacknowledged() as u32),
        }
    }

    /// Whether something was sent that the peer may not have.
    fn is_waiting(&self) -> bool {
        let is_open = !matches!(self.state(), State::Listen | State::SynSent | State::SynReceived);
        is_open && self.first() != self.repair.sent_to
    }

    /// Octets of a segment, of packets of this length.
    fn segment(&self, mtu: u32) -> usize {
        let headers = if self.addresses().0.is_ipv4() { HEADERS_V4 } else { HEADERS_V6 };
        let theirs = self.repair.mss.unwrap_or(MSS_DEFAULT);
        (mtu as usize).saturating_sub(headers).clamp(usize::from(MSS_MIN), usize::from(theirs))
    }

    /// The longest packet for it, on a way that takes these.
    pub(super) fn mtu(&self, of_way: u32) -> u32 {
        self.repair.active.as_ref().map_or(of_way, |active| active.recovery.mtu(of_way))
    }

    /// smoltcp has taken a segment of the peer's, which came in this state.
    pub(super) fn note_received(
        &mut self,
        (at, before): (At, State),
        segment: &TcpSegment<'_>,
        engine: &mut Engine,
        answer: Option<&mut Packet>,
    ) {
        let header = segment.header();
        if self.repair.active.is_none() {
            self.repair.window = header.window;
        }
        if answer.is_some() && !segment.payload().is_empty() {
            // Something is missing, or came twice: a sender that repairs needs every word. Also,
            // smoltcp would wait for as much as one of our longest segments, and they are shorter.
            self.socket().set_ack_delay(None);
        }
        let has_options = header.data_offset > 5;
        if header.syn {
            let is_first = matches!(before, State::Listen | State::SynSent | State::SynReceived);
            if is_first {
                self.repair.note_syn(segment);
            }
        } else if self.repair.active.is_some() || has_options {
            self.receive_repaired(at, segment, engine, answer);
        }
    }

    /// The same of a connection that is repaired, or of a segment with options.
    #[cold]
    fn receive_repaired(
        &mut self,
        at: At,
        segment: &TcpSegment<'_>,
        engine: &mut Engine,
        answer: Option<&mut Packet>,
    ) {
        let header = segment.header();
        let first = self.first();
        if let Some(answer) = answer {
            self.note_answer(answer);
        }
        // What is older than what smoltcp knows, or strange, says nothing.
        if !header.ack || header.rst || header.acknowledgment_number != first {
            return;
        }
        let blocks = segment.options().map_while(Result::ok).find_map(|option| match option {
            TcpOption::Sack(blocks) => Some(blocks),
            _ => None,
        });
        let blocks = blocks.iter().flat_map(|blocks| blocks.as_slice());
        let blocks = blocks.map(|block| (block.left_edge, block.right_edge));
        let sent_to = self.repair.sent_to;
        let is_news = |(left, right): (u32, u32)| {
            let [left, right] = [left, right].map(|edge| edge.wrapping_sub(first));
            left < right && right <= sent_to.wrapping_sub(first)
        };
        if self.repair.active.is_none() {
            if !self.is_waiting() || !blocks.clone().any(is_news) {
                return;
            }
            self.begin(at, false);
        }
        let peer_window = usize::from(header.window) << self.repair.shift;
        let segment_octets = self.segment(at.mtu);
        let Some(active) = &mut self.repair.active else { return };
        self.repair.window = header.window;
        let payload = segment.payload().len() as u32 + u32::from(header.fin);
        let heard_to = header.sequence_number.wrapping_add(payload);
        let is_later = |before: u32| heard_to.wrapping_sub(before).cast_signed() > 0;
        if active.heard_to.is_none_or(is_later) {
            active.heard_to = Some(heard_to);
        }
        if first != active.first {
            (active.first, active.ran_out) = (first, Time::START);
        }
        active.recovery.set_segment(segment_octets);
        active.recovery.heard(at.now, first, blocks, peer_window);
        self.tell_window(at, engine);
    }

    /// From now on it is repaired.
    fn begin(&mut self, at: At, is_silent: bool) {
        self.socket().set_congestion_control(CongestionControl::None);
        let first = self.first();
        let sent = (first, self.repair.sent_to);
        let recovery = Recovery::new(at.now, sent, self.segment(at.mtu), is_silent);
        self.repair.active = Some(Box::new(Active {
            recovery,
            said: None,
            heard_to: None,
            ran_out: Time::START,
            first,
            letter: Packet::default(),
        }));
    }

    /// An acknowledgment at once goes after all that was sent, wherever smoltcp is.
    fn note_answer(&mut self, answer: &mut Packet) {
        let sent_to = self.repair.sent_to;
        let Some(active) = &mut self.repair.active else { return };
        let Some(written) = seal(answer.octets_mut()).filter(|written| !written.rst) else {
            return;
        };
        active.say(&written);
        if written.sequence_number != sent_to {
            set_sequence_number(answer.octets_mut(), sent_to);
            seal(answer.octets_mut());
        }
    }

    /// Tells smoltcp how much it may send.
    fn tell_window(&mut self, at: At, engine: &mut Engine) {
        let is_last = self.state() == State::LastAck;
        let (local, remote) = self.addresses();
        let Some(active) = &mut self.repair.active else { return };
        // It takes no acknowledgment for a window when it waits for its last.
        let Some(heard_to) = active.heard_to.filter(|_| !is_last) else {
            return;
        };
        let allowed = active.recovery.allowed();
        let unit = 1 << self.repair.shift;
        let field = match allowed.is_least {
            true => allowed.octets.div_ceil(unit),
            false => allowed.octets / unit,
        };
        let field = u16::try_from(field).unwrap_or(u16::MAX).max(1).min(self.repair.window);
        let bare =
            Bare { sequence_number: heard_to, acknowledgment_number: active.first, window: field };
        if write_bare(&mut active.letter, (remote, local), bare).is_some() {
            // What smoltcp answers to that is for nobody.
            let (letter, answer) = (active.letter.octets(), &mut Packet::default());
            engine.receive(at, &mut self.sockets, letter, answer);
        }
    }

    /// Writes what is next to be sent, if there is anything.
    pub(super) fn transmit(
        &mut self,
        at: At,
        engine: &mut Engine,
        exit: &mut dyn Exit,
        draft: &mut Packet,
    ) -> Option<Written> {
        match self.repair.active {
            None => engine.transmit(at, &mut self.sockets, exit),
            Some(_) => self.transmit_repaired(at, engine, exit, draft),
        }
    }

    #[cold]
    fn transmit_repaired(
        &mut self,
        at: At,
        engine: &mut Engine,
        exit: &mut dyn Exit,
        draft: &mut Packet,
    ) -> Option<Written> {
        let (mut clock, mut has_begun_again) = (at, false);
        loop {
            let written = engine.draft(clock, &mut self.sockets, draft);
            clock = at;
            match written {
                Some(written) if self.lets_through(at, written, draft) => {
                    let written = seal(draft.octets_mut())?;
                    exit.room(draft.octets().len()).copy_from_slice(draft.octets());
                    let active = self.repair.active.as_mut()?;
                    let is_first = active.heard_to.is_none();
                    active.say(&written);
                    if is_first {
                        self.repair.note_written(&written);
                        self.tell_window(at, engine);
                    }
                    return Some(written);
                }
                Some(_) => {}
                None => {
                    let active = self.repair.active.as_mut()?;
                    if has_begun_again || !active.recovery.has_lost() {
                        return None;
                    }
                    has_begun_again = true;
                    active.ran_out = active.ran_out.max(at.now) + RUN_OUT;
                    clock.now = active.ran_out;
                }
            }
        }
    }

    /// Whether a segment that smoltcp has written is to be sent, if only for what it acknowledges.
    fn lets_through(&mut self, at: At, written: Written, draft: &mut Packet) -> bool {
        let sent_to = self.repair.sent_to;
        let (local, remote) = self.addresses();
        let Some(active) = &mut self.repair.active else { return true };
        if written.syn || written.rst {
            return true;
        }
        if written.octets == 0 {
            set_sequence_number(draft.octets_mut(), sent_to);
            return true;
        }
        let (start, end) = (written.sequence_number, written.end());
        match active.recovery.judge(at.now, start, end) {
            Verdict::Send => true,
            Verdict::Drop => {
                let Written { acknowledgment_number, window, .. } = written;
                if active.said == Some((acknowledgment_number, window)) {
                    return false;
                }
                let bare = Bare { sequence_number: sent_to, acknowledgment_number, window };
                write_bare(draft, (local, remote), bare).is_some()
            }
        }
    }

    /// When silence is to be answered.
    pub(super) fn silence_due(&mut self, at: At) -> Option<Time> {
        if let Some(active) = &self.repair.active {
            return active.recovery.due();
        }
        if !self.is_waiting() || self.repair.window == 0 {
            self.repair.moved = None;
            return None;
        }
        let (first, sent_to) = (self.first(), self.repair.sent_to);
        let since = match self.repair.moved {
            Some((first_then, sent_then, since)) if (first_then, sent_then) == (first, sent_to) => {
                since
            }
            _ => at.now,
        };
        self.repair.moved = Some((first, sent_to, since));
        let is_single = sent_to.wrapping_sub(first) as usize <= self.segment(at.mtu);
        Some(since + if is_single { SILENCE_OF_SINGLE } else { SILENCE })
    }

    /// Answers silence, if it is time to.
    pub(super) fn handle_silence(&mut self, at: At, engine: &mut Engine) {
        let is_due = self.silence_due(at).is_some_and(|due| due <= at.now);
        if !is_due {
            return;
        }
        if self.repair.active.is_none() {
            self.begin(at, true);
        }
        let segment_octets = self.segment(at.mtu);
        if let Some(active) = &mut self.repair.active {
            active.recovery.set_segment(segment_octets);
            active.recovery.handle_timeout(at.now);
        }
        self.tell_window(at, engine);
    }
}

impl Active {
    /// The peer is told what it is acknowledged, which is just what came from it.
    const fn say(&mut self, written: &Written) {
        self.said = Some((written.acknowledgment_number, written.window));
        self.heard_to = Some(written.acknowledgment_number);
    }
}
