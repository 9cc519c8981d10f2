//! Tables that are longer than a datagram, on their way in segments (IBA 13.6).
//!
//! ```text
//! Sending    start: one segment --ACK with a window--> as many as it allows --last ACK--> over
//!            no ACK in time: again from the first that is not acknowledged, or else ABORT
//!            STOP or ABORT: over
//! Receiving  the next segment: kept; ACK when the window is used up, and at the end
//!            a segment again: ACK again; one too far ahead is dropped, and will come again
//! ```

use crate::sma::Mad;
use crate::subnet::Datagram;
use crate::time::Time;
use pollux_wire::address::{Lid, Qpn};
use pollux_wire::keys::PKey;
use pollux_wire::mad::Method;
use pollux_wire::mad::rmpp::{RmppHeader, RmppStatus, RmppType, Segmentation};
use pollux_wire::mad::sa::{SaHeader, SaMad};
use pollux_wire::units::TimeCode;
use std::collections::{BTreeMap, VecDeque};
use std::time::Duration;

/// Transfers under way at a time.
pub const TRANSFERS_MAX: usize = 64;
/// Bytes of all of them.
pub const BYTES_MAX: usize = 64 << 20;
/// How long a receiver has to acknowledge.
const ACK_TIME: Duration = Duration::from_secs(2);
/// How often a segment is sent in all.
const TRIES_MAX: u8 = 4;
/// How soon we acknowledge: 4.096 us * 2^14, some 67 ms.
const RESPONSE_TIME: TimeCode = TimeCode(14);
/// Segments that a receiver takes before it has to acknowledge.
const WINDOW: u32 = 64;

/// Whom a transfer is with, and which one it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Key {
    peer: Lid,
    qp: Qpn,
    /// As in the question.
    p_key: PKey,
    transaction_id: u64,
}

impl Key {
    pub(super) fn of(datagram: &Datagram, transaction_id: u64) -> Self {
        let Datagram { slid: peer, src_qp: qp, p_key, .. } = *datagram;
        Self { peer, qp, p_key, transaction_id }
    }
}

/// A table on its way to somebody.
struct Transfer {
    /// What all segments have in common.
    head: SaMad,
    table: Vec<u8>,
    acknowledged: u32,
    sent: u32,
    /// The last that was ever sent, though it may have to be sent again.
    sent_last: u32,
    window_last: u32,
    deadline: Time,
    tries: u8,
}

impl Transfer {
    fn segmentation(&self) -> Segmentation {
        Segmentation::new(self.table.len(), SaHeader::LEN)
    }

    fn segment(&self, number: u32) -> Mad {
        let segmentation = self.segmentation();
        let mut mad = SaMad { rmpp: segmentation.header(number, RESPONSE_TIME), ..self.head };
        let data = &self.table[segmentation.data(number)];
        mad.data[..data.len()].copy_from_slice(data);
        mad.emit()
    }

    fn has_more(&self) -> bool {
        self.sent < self.window_last.min(self.segmentation().count())
    }
}

/// All tables on their way.
#[derive(Default)]
pub(super) struct Transfers {
    all: BTreeMap<Key, Transfer>,
    /// Those with a segment to send, in turns.
    ready: VecDeque<Key>,
    bytes: usize,
}

impl Transfers {
    /// Whether there is room for a table of any size that is allowed.
    pub(super) fn has_room(&self, bytes: usize) -> bool {
        self.all.len() < TRANSFERS_MAX && self.bytes + bytes <= BYTES_MAX
    }

    /// Whether a transfer is under way already: who asks again is answered once.
    pub(super) fn contains(&self, key: &Key) -> bool {
        self.all.contains_key(key)
    }

    pub(super) fn start(&mut self, now: Time, key: Key, head: SaMad, table: Vec<u8>) {
        self.bytes += table.len();
        let deadline = now + ACK_TIME;
        let (acknowledged, sent, sent_last, window_last) = (0, 0, 0, 1);
        let transfer = Transfer {
            head,
            table,
            acknowledged,
            sent,
            sent_last,
            window_last,
            deadline,
            tries: 1,
        };
        self.all.insert(key, transfer);
        self.ready.push_back(key);
    }

    fn end(&mut self, key: &Key) -> Option<SaMad> {
        let transfer = self.all.remove(key)?;
        self.bytes -= transfer.table.len();
        Some(transfer.head)
    }

    /// The next segment: of each transfer one in turn.
    pub(super) fn poll(&mut self, now: Time) -> Option<Datagram> {
        while let Some(key) = self.ready.pop_front() {
            let Some(transfer) = self.all.get_mut(&key) else { continue };
            if !transfer.has_more() {
                continue;
            }
            transfer.sent += 1;
            transfer.sent_last = transfer.sent_last.max(transfer.sent);
            transfer.deadline = now + ACK_TIME;
            let mad = transfer.segment(transfer.sent);
            if transfer.has_more() {
                self.ready.push_back(key);
            }
            return Some(to(&key, mad));
        }
        None
    }

    /// A receiver has said something. What ends a transfer for reasons of ours is in the answer.
    pub(super) fn heard(&mut self, now: Time, key: Key, rmpp: &RmppHeader) -> Option<Datagram> {
        let transfer = self.all.get_mut(&key)?;
        let (acknowledged, window) = (rmpp.segment_number, rmpp.payload_length_or_window);
        if rmpp.rmpp_type != RmppType::ACK {
            self.end(&key);
            return None;
        }
        if acknowledged > transfer.sent_last {
            return self.abort(&key, RmppStatus::SEGMENT_NUMBER_TOO_BIG);
        }
        if window < acknowledged {
            return self.abort(&key, RmppStatus::NEW_WINDOW_LAST_TOO_SMALL);
        }
        if acknowledged == transfer.segmentation().count() {
            self.end(&key);
            return None;
        }
        if acknowledged >= transfer.acknowledged {
            transfer.acknowledged = acknowledged;
            transfer.sent = transfer.sent.max(acknowledged);
            transfer.window_last = transfer.window_last.max(window);
            (transfer.deadline, transfer.tries) = (now + ACK_TIME, 1);
            self.ready.push_back(key);
        }
        None
    }

    fn abort(&mut self, key: &Key, status: RmppStatus) -> Option<Datagram> {
        let head = self.end(key)?;
        let rmpp = RmppHeader::end(RmppType::ABORT, status);
        Some(to(key, SaMad { rmpp, ..head }.emit()))
    }

    pub(super) fn due(&self) -> Option<Time> {
        self.all.values().map(|transfer| transfer.deadline).min()
    }

    /// Sends again what was not acknowledged, or gives up; what there is to say then.
    pub(super) fn timeout(&mut self, now: Time) -> Option<Datagram> {
        let overdue = self.all.iter_mut().filter(|(_, transfer)| transfer.deadline <= now);
        let mut silent = None;
        for (key, transfer) in overdue {
            if transfer.tries == TRIES_MAX {
                silent = Some(*key);
                break;
            }
            transfer.tries += 1;
            transfer.deadline = now + ACK_TIME;
            transfer.sent = transfer.acknowledged;
            self.ready.push_back(*key);
        }
        self.abort(&silent?, RmppStatus::TOO_MANY_RETRIES)
    }
}

fn to(key: &Key, mad: Mad) -> Datagram {
    let (dlid, dest_qp) = (key.peer, key.qp);
    Datagram { slid: Lid::NONE, dlid, src_qp: Qpn::GSI, dest_qp, p_key: key.p_key, mad }
}

/// A table that comes in.
#[derive(Debug, Default)]
pub struct Reception {
    table: Vec<u8>,
    received: u32,
    window_last: u32,
    is_whole: bool,
}

/// What comes of a segment.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Received {
    /// Nothing to say yet.
    Nothing,
    /// This is to be said.
    Reply(Box<Mad>),
    /// The table is whole, and this is to be said.
    Whole(Box<Mad>),
    /// It cannot be, and this is to be said; forget it.
    Aborted(Box<Mad>),
}

impl Reception {
    /// A segment has come; `bytes_max` is how long the table may be.
    pub fn receive(&mut self, mad: &SaMad, bytes_max: usize) -> Received {
        let rmpp = &mad.rmpp;
        let abort = |status| {
            Received::Aborted(Box::new(reply(mad, RmppHeader::end(RmppType::ABORT, status))))
        };
        match rmpp.rmpp_type {
            RmppType::DATA if rmpp.version == RmppHeader::VERSION => {}
            RmppType::DATA => return abort(RmppStatus::UNSUPPORTED_VERSION),
            RmppType::STOP | RmppType::ABORT => return abort(RmppStatus::UNSPECIFIED),
            _ => return abort(RmppStatus::BAD_TYPE),
        }
        if (rmpp.segment_number == 1) != rmpp.first {
            return abort(RmppStatus::INCONSISTENT_FIRST_AND_SEGMENT_NUMBER);
        }
        if rmpp.segment_number == 0 || rmpp.segment_number > self.received + 1 {
            return Received::Nothing;
        }
        if rmpp.segment_number <= self.received {
            return Received::Reply(Box::new(self.acknowledgement(mad)));
        }
        // An only segment says the length of all, which is its own.
        let Ok(len) = rmpp.data_len(SaHeader::LEN) else {
            return abort(RmppStatus::INCONSISTENT_LAST_AND_PAYLOAD_LENGTH);
        };
        if self.table.len() + len > bytes_max {
            return abort(RmppStatus::RESOURCES_EXHAUSTED);
        }
        self.table.extend_from_slice(&mad.data[..len]);
        self.received += 1;
        self.is_whole = rmpp.last;
        if !rmpp.last && rmpp.segment_number > 1 && rmpp.segment_number < self.window_last {
            return Received::Nothing;
        }
        let reply = Box::new(self.acknowledgement(mad));
        if rmpp.last { Received::Whole(reply) } else { Received::Reply(reply) }
    }

    fn acknowledgement(&mut self, mad: &SaMad) -> Mad {
        self.window_last = self.received + if self.is_whole { 0 } else { WINDOW };
        reply(mad, RmppHeader::ack(self.received, self.window_last, RESPONSE_TIME))
    }

    /// What has come.
    pub fn into_table(self) -> Vec<u8> {
        self.table
    }
}

/// To the sender of a segment: the method has the other direction.
fn reply(mad: &SaMad, rmpp: RmppHeader) -> Mad {
    const RESPONSE: u8 = 0x80;
    let mut header = mad.header;
    header.method = Method(header.method.0 ^ RESPONSE);
    SaMad { header, rmpp, sa: mad.sa, data: [0; 200] }.emit()
}

#[cfg(test)]
mod tests {
    use super::*;
    use pollux_wire::mad::sa::{PathRecord, PathRecordMask};
    use proptest::prelude::*;

    const KEY: Key = Key { peer: Lid(4), qp: Qpn::GSI, p_key: PKey::DEFAULT, transaction_id: 7 };

    fn head() -> SaMad {
        let (mask, record) = (PathRecordMask::NONE, PathRecord::default());
        SaMad { data: [0; 200], ..SaMad::new(Method::GET_TABLE_RESP, 7, mask, record) }
    }

    fn transfers(len: usize) -> (Transfers, Vec<u8>) {
        let mut transfers = Transfers::default();
        let table: Vec<u8> = (0..len).map(|i| (i * 7) as u8).collect();
        transfers.start(Time::START, KEY, head(), table.clone());
        (transfers, table)
    }

    proptest! {
        /// Whatever is lost on the way: the table arrives whole, or the transfer ends.
        #[test]
        fn tables_arrive_whole(len in 0usize..20_000, losses: [bool; 64]) {
            let (mut transfers, table) = transfers(len);
            let (mut reception, mut whole) = (Reception::default(), false);
            let mut losses = losses.into_iter().chain([false]).cycle();
            let mut now = Time::START;
            while !transfers.all.is_empty() {
                while let Some(segment) = transfers.poll(now) {
                    if losses.next() == Some(true) {
                        continue;
                    }
                    let said = match reception.receive(&SaMad::parse(&segment.mad), 1 << 20) {
                        Received::Nothing => continue,
                        Received::Whole(said) => { whole = true; said }
                        Received::Reply(said) => said,
                        Received::Aborted(_) => { prop_assert!(!whole); return Ok(()) }
                    };
                    let said = SaMad::parse(&said);
                    prop_assert_eq!(said.header.method, Method(0x12));
                    if losses.next() == Some(false) {
                        prop_assert!(transfers.heard(now, KEY, &said.rmpp).is_none());
                    }
                }
                now = now + ACK_TIME;
                while transfers.timeout(now).is_some() {}
            }
            prop_assert_eq!(transfers.bytes, 0);
            if whole {
                prop_assert_eq!(reception.into_table(), table);
            }
        }

        #[test]
        fn any_reply_is_survived(replies in prop::collection::vec(any::<[u8; 12]>(), 0..20)) {
            let (mut transfers, _) = transfers(2000);
            for bytes in replies {
                transfers.poll(Time::START);
                transfers.heard(Time::START, KEY, &RmppHeader::parse(&bytes));
            }
        }

        #[test]
        fn any_segment_is_survived(
            segments in prop::collection::vec((any::<[u8; 12]>(), 0u8..5, 0u32..4), 0..20),
        ) {
            let mut reception = Reception::default();
            for (bytes, kind, number) in segments {
                let rmpp = RmppHeader {
                    rmpp_type: RmppType(kind),
                    segment_number: number,
                    version: 1,
                    ..RmppHeader::parse(&bytes)
                };
                reception.receive(&SaMad { rmpp, ..head() }, 1000);
                prop_assert!(reception.table.len() <= 1000);
            }
        }
    }

    #[test]
    fn silence_ends_a_transfer() {
        let (mut transfers, _) = transfers(1000);
        let mut now = Time::START;
        for _ in 1..TRIES_MAX {
            assert!(transfers.poll(now).is_some() && transfers.poll(now).is_none());
            now = transfers.due().unwrap();
            assert!(transfers.timeout(now).is_none());
        }
        let abort = transfers.timeout(transfers.due().unwrap()).unwrap();
        let rmpp = SaMad::parse(&abort.mad).rmpp;
        assert_eq!((rmpp.rmpp_type, rmpp.status), (RmppType::ABORT, RmppStatus::TOO_MANY_RETRIES));
        assert!(transfers.due().is_none() && transfers.poll(now).is_none());
    }

    #[test]
    fn an_acknowledgement_of_what_was_not_sent_aborts() {
        let (mut transfers, _) = transfers(1000);
        transfers.poll(Time::START);
        let heard = transfers.heard(Time::START, KEY, &RmppHeader::ack(2, 9, TimeCode(0)));
        let status = SaMad::parse(&heard.unwrap().mad).rmpp.status;
        assert_eq!(status, RmppStatus::SEGMENT_NUMBER_TOO_BIG);
        assert!(!transfers.contains(&KEY));
    }
}
