//! The RMPP sender: all transfers of a subnet administrator, in round-robin order (IBA 13.6.6.2).
//!
//! The key `K` of a transfer is its peer, or peer and transaction if a peer can have several
//! transfers.

use super::{Mad, RESPONSE_TIME};
use crate::time::Time;
use pollux_wire::mad::rmpp::{RmppHeader, RmppStatus, RmppType, Segmentation};
use pollux_wire::mad::sa::{SaHeader, SaMad};
use std::collections::{BTreeMap, VecDeque};
use std::time::Duration;

/// Transfers in progress, at most.
pub const TRANSFERS_MAX: usize = 64;
/// Bytes of all transfers in progress, at most.
pub const TRANSFER_BYTES_MAX: usize = 64 << 20;
/// The ACK timeout.
const ACK_TIME: Duration = Duration::from_secs(2);
/// How often a segment is sent, at most, the first time included.
const TRIES_MAX: u8 = 4;

struct Transfer {
    /// The headers that all segments share.
    head: SaMad,
    table: Vec<u8>,
    acknowledged: u32,
    sent: u32,
    /// The highest segment ever sent, even if it has to be sent again.
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

/// All transfers in progress at the sender.
pub struct Transfers<K> {
    all: BTreeMap<K, Transfer>,
    /// Transfers that may have a segment to send, in round-robin order.
    ready: VecDeque<K>,
    bytes: usize,
}

impl<K> Default for Transfers<K> {
    fn default() -> Self {
        Self { all: BTreeMap::new(), ready: VecDeque::new(), bytes: 0 }
    }
}

impl<K: Ord + Copy> Transfers<K> {
    /// Whether a transfer of `bytes` bytes may start.
    pub fn can_start(&self, bytes: usize) -> bool {
        self.all.len() < TRANSFERS_MAX && self.bytes + bytes <= TRANSFER_BYTES_MAX
    }

    /// Whether this transfer is in progress: then a repeated query must not start another.
    pub fn contains(&self, peer: &K) -> bool {
        self.all.contains_key(peer)
    }

    /// Starts a transfer of `table` in MADs with the headers of `head`, if
    /// [`can_start`](Self::can_start) permits it.
    pub fn start(&mut self, now: Time, peer: K, head: SaMad, table: Vec<u8>) {
        self.bytes += table.len();
        let transfer = Transfer {
            head,
            table,
            acknowledged: 0,
            sent: 0,
            sent_last: 0,
            window_last: 1,
            deadline: now + ACK_TIME,
            tries: 1,
        };
        self.all.insert(peer, transfer);
        self.ready.push_back(peer);
    }

    fn end(&mut self, peer: &K) -> Option<SaMad> {
        let transfer = self.all.remove(peer)?;
        self.bytes -= transfer.table.len();
        Some(transfer.head)
    }

    /// The next segment to send, in round-robin order of transfers.
    pub fn poll_transmit(&mut self, now: Time) -> Option<(K, Mad)> {
        while let Some(peer) = self.ready.pop_front() {
            let Some(transfer) = self.all.get_mut(&peer) else { continue };
            if !transfer.has_more() {
                continue;
            }
            transfer.sent += 1;
            transfer.sent_last = transfer.sent_last.max(transfer.sent);
            transfer.deadline = now + ACK_TIME;
            let mad = transfer.segment(transfer.sent);
            if transfer.has_more() {
                self.ready.push_back(peer);
            }
            return Some((peer, mad));
        }
        None
    }

    /// Handles an ACK, STOP or ABORT of the receiver. For an invalid ACK, ends the transfer and
    /// returns an ABORT.
    pub fn handle_reply(&mut self, now: Time, peer: K, rmpp: &RmppHeader) -> Option<(K, Mad)> {
        let transfer = self.all.get_mut(&peer)?;
        let (acknowledged, window) = (rmpp.segment_number, rmpp.payload_length_or_window);
        if rmpp.rmpp_type != RmppType::ACK {
            self.end(&peer);
            return None;
        }
        if acknowledged > transfer.sent_last {
            return self.abort(peer, RmppStatus::SEGMENT_NUMBER_TOO_BIG);
        }
        if window < acknowledged {
            return self.abort(peer, RmppStatus::NEW_WINDOW_LAST_TOO_SMALL);
        }
        if acknowledged == transfer.segmentation().count() {
            self.end(&peer);
            return None;
        }
        if acknowledged > transfer.acknowledged {
            transfer.acknowledged = acknowledged;
            transfer.sent = transfer.sent.max(acknowledged);
            (transfer.deadline, transfer.tries) = (now + ACK_TIME, 1);
        }
        transfer.window_last = transfer.window_last.max(window);
        make_ready(&mut self.ready, peer);
        None
    }

    fn abort(&mut self, peer: K, status: RmppStatus) -> Option<(K, Mad)> {
        let head = self.end(&peer)?;
        let rmpp = RmppHeader::end(RmppType::ABORT, status);
        Some((peer, SaMad { rmpp, ..head }.emit()))
    }

    /// The time at which [`handle_timeout`](Self::handle_timeout) is due.
    pub fn poll_timeout(&self) -> Option<Time> {
        self.all.values().map(|transfer| transfer.deadline).min()
    }

    /// Schedules unacknowledged segments again. After the last try, ends the transfer and returns
    /// an ABORT. The caller repeats the call until it returns `None`.
    pub fn handle_timeout(&mut self, now: Time) -> Option<(K, Mad)> {
        let overdue = self.all.iter_mut().filter(|(_, transfer)| transfer.deadline <= now);
        let mut expired = None;
        for (peer, transfer) in overdue {
            if transfer.tries == TRIES_MAX {
                expired = Some(*peer);
                break;
            }
            transfer.tries += 1;
            transfer.deadline = now + ACK_TIME;
            transfer.sent = transfer.acknowledged;
            make_ready(&mut self.ready, *peer);
        }
        self.abort(expired?, RmppStatus::TOO_MANY_RETRIES)
    }
}

fn make_ready<K: PartialEq>(ready: &mut VecDeque<K>, peer: K) {
    if !ready.contains(&peer) {
        ready.push_back(peer);
    }
}

#[cfg(test)]
mod tests {
    use super::super::{Reception, SegmentOutcome};
    use super::*;
    use pollux_wire::mad::Method;
    use pollux_wire::mad::sa::{PathRecord, PathRecordMask};
    use pollux_wire::units::TimeCode;
    use proptest::prelude::*;

    const PEER: u8 = 4;

    fn head() -> SaMad {
        let (mask, record) = (PathRecordMask::NONE, PathRecord::default());
        SaMad { data: [0; 200], ..SaMad::new(Method::GET_TABLE_RESP, 7, mask, record) }
    }

    fn transfers(len: usize) -> (Transfers<u8>, Vec<u8>) {
        let mut transfers = Transfers::default();
        let table: Vec<u8> = (0..len).map(|i| (i * 7) as u8).collect();
        transfers.start(Time::START, PEER, head(), table.clone());
        (transfers, table)
    }

    /// A receiver that makes no progress must not keep its transfer, or its turns.
    #[test]
    fn repeated_acks_neither_keep_a_transfer_nor_grow_the_queue() {
        let (mut transfers, _) = transfers(2000);
        let mut now = Time::START;
        assert!(transfers.poll_transmit(now).is_some());
        let ack = RmppHeader::ack(1, 2, TimeCode(18));
        for _ in 0..2 * u32::from(TRIES_MAX) {
            for _ in 0..100 {
                transfers.handle_reply(now, PEER, &ack);
            }
            assert!(transfers.ready.len() <= 1, "{} entries", transfers.ready.len());
            while transfers.poll_transmit(now).is_some() {}
            now = now + ACK_TIME;
            while transfers.handle_timeout(now).is_some() {}
        }
        assert!(!transfers.contains(&PEER));
    }

    proptest! {
        /// Whatever is lost, the table arrives complete or the transfer ends.
        #[test]
        fn tables_arrive_complete(len in 0usize..20_000, losses: [bool; 64]) {
            let (mut transfers, table) = transfers(len);
            let (mut reception, mut complete) = (Reception::default(), false);
            let mut losses = losses.into_iter().chain([false]).cycle();
            let mut now = Time::START;
            while !transfers.all.is_empty() {
                while let Some((_, segment)) = transfers.poll_transmit(now) {
                    if losses.next() == Some(true) {
                        continue;
                    }
                    let reply = match reception.receive(&SaMad::parse(&segment), 1 << 20) {
                        SegmentOutcome::Ignored | SegmentOutcome::Kept => continue,
                        SegmentOutcome::Complete(reply) => { complete = true; reply }
                        SegmentOutcome::Acknowledged(reply) => reply,
                        _ => { prop_assert!(!complete); return Ok(()) }
                    };
                    let reply = SaMad::parse(&reply);
                    prop_assert_eq!(reply.header.method, Method(0x12));
                    if losses.next() == Some(false) {
                        prop_assert!(transfers.handle_reply(now, PEER, &reply.rmpp).is_none());
                    }
                }
                now = now + ACK_TIME;
                while transfers.handle_timeout(now).is_some() {}
            }
            prop_assert_eq!(transfers.bytes, 0);
            if complete {
                prop_assert_eq!(reception.into_table(), table);
            }
        }

        #[test]
        fn any_reply_is_survived(replies in prop::collection::vec(any::<[u8; 12]>(), 0..20)) {
            let (mut transfers, _) = transfers(2000);
            for bytes in replies {
                transfers.poll_transmit(Time::START);
                transfers.handle_reply(Time::START, PEER, &RmppHeader::parse(&bytes));
            }
        }
    }

    #[test]
    fn silence_ends_a_transfer() {
        let (mut transfers, _) = transfers(1000);
        let mut now = Time::START;
        for _ in 1..TRIES_MAX {
            assert!(
                transfers.poll_transmit(now).is_some() && transfers.poll_transmit(now).is_none()
            );
            now = transfers.poll_timeout().unwrap();
            assert!(transfers.handle_timeout(now).is_none());
        }
        let abort = transfers.handle_timeout(transfers.poll_timeout().unwrap()).unwrap();
        let rmpp = SaMad::parse(&abort.1).rmpp;
        assert_eq!((rmpp.rmpp_type, rmpp.status), (RmppType::ABORT, RmppStatus::TOO_MANY_RETRIES));
        assert!(transfers.poll_timeout().is_none() && transfers.poll_transmit(now).is_none());
    }

    #[test]
    fn an_acknowledgement_of_an_unsent_segment_aborts() {
        let (mut transfers, _) = transfers(1000);
        transfers.poll_transmit(Time::START);
        let heard = transfers.handle_reply(Time::START, PEER, &RmppHeader::ack(2, 9, TimeCode(0)));
        let status = SaMad::parse(&heard.unwrap().1).rmpp.status;
        assert_eq!(status, RmppStatus::SEGMENT_NUMBER_TOO_BIG);
        assert!(!transfers.contains(&PEER));
    }
}
