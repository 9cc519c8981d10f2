//! Transactions with one peer: a window of outstanding requests, with retry and exponential backoff
//! (IBA 13.4.6.3).
//!
//! ```text
//! ask          the request is queued
//! window free  the next request is sent, under an unpredictable TID
//! response     matched by TID, class, method and attribute: the transaction ends
//! segment      of an RMPP transfer: appended; the last one ends the transaction
//! BUSY         not a response: retried when the timeout expires
//! timeout      retried with a doubled timeout; after the last try it fails
//! peer gone    all requests return to the queue, and are sent to the next peer
//! ```
//!
//! Why only the lower half of the TID is compared: a layer between us and the wire may use the
//! upper half.

use super::{Envelope, Mad, MadAddress};
use crate::bounded::Backoff;
use pollux_verbs::drops::Drops;
use pollux_verbs::reasons;
use pollux_verbs::rmpp::{Reception, SegmentOutcome};
use pollux_verbs::rng::SeededRng;
use pollux_verbs::time::Time;
use pollux_wire::mad::rmpp::RmppStatus;
use pollux_wire::mad::sa::SaMad;
use pollux_wire::mad::{MadHeader, MadStatus, Method, MgmtClass};
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::time::Duration;

/// Completed RMPP transfers of which the last ACK is kept, to answer a repeated segment.
const FINISHED_MAX: usize = 16;
const FINISHED_TIME: Duration = Duration::from_secs(10);
/// Remembered TIDs of ended requests to which more answers may come.
const LATE_MAX: usize = 64;
/// ACKs that may be queued in addition to the requests.
const REPLIES_MAX: usize = 64;

/// The tries and timeouts of a request. The timeout doubles with each try.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RetryPolicy {
    /// Tries in all, at least 1.
    pub tries: u8,
    pub timeout: Duration,
    pub timeout_max: Duration,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum TransactionOutcome {
    /// A response, of any status.
    Answered(Box<Mad>),
    Table {
        bytes: Vec<u8>,
        /// The distance from one record to the next, in units of 8 bytes.
        attribute_offset: u16,
    },
    /// The peer or we aborted the RMPP transfer.
    Aborted(RmppStatus),
    /// The peer answered BUSY to each try.
    Busy,
    /// No response came to any try.
    NoResponse,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Full;

reasons! {
    pub enum TransactionDrop {
        /// An answer without a request, or a second one to a single request.
        NotAsked = "not_asked",
        /// An answer to a request that was sent again, cancelled or given up before.
        Late = "late",
        /// An answer with the TID of a request, but with another attribute, method or class.
        OtherQuestion = "other_question",
        /// An RMPP segment out of order.
        Segment = "segment",
        /// A request or an ACK was dropped because the queue of outgoing datagrams was full.
        OutgoingFull = "outgoing_full",
    }
}

struct Request<K> {
    /// Returned with the outcome.
    purpose: K,
    /// The TID is filled in when the request is sent.
    mad: Mad,
}

struct Sent<K> {
    request: Request<K>,
    tries: u8,
    deadline: Time,
    is_busy: bool,
    reception: Option<Reception>,
}

struct Finished {
    id: u32,
    until: Time,
    acknowledgement: Mad,
}

/// Queued and outstanding requests; each has a purpose of type `K`.
pub struct Transactions<K> {
    peer: Option<MadAddress>,
    rng: SeededRng,
    /// Outstanding requests, at most.
    window: usize,
    queued_max: usize,
    table_bytes_max: usize,
    retry_policy: RetryPolicy,
    waiting: VecDeque<Request<K>>,
    sent: BTreeMap<u32, Sent<K>>,
    deadlines: BTreeSet<(Time, u32)>,
    finished: VecDeque<Finished>,
    /// TIDs of ended requests to which more answers may come.
    late: VecDeque<u32>,
    outgoing: VecDeque<Envelope>,
    ended: VecDeque<(K, TransactionOutcome)>,
    drops: Drops<TransactionDrop>,
}

impl<K> Transactions<K> {
    pub fn new(
        window: usize,
        queued_max: usize,
        table_bytes_max: usize,
        retry_policy: RetryPolicy,
        rng: SeededRng,
    ) -> Self {
        Self {
            peer: None,
            rng,
            window: window.max(1),
            queued_max,
            table_bytes_max,
            retry_policy,
            waiting: VecDeque::new(),
            sent: BTreeMap::new(),
            deadlines: BTreeSet::new(),
            finished: VecDeque::new(),
            late: VecDeque::new(),
            outgoing: VecDeque::new(),
            ended: VecDeque::new(),
            drops: Drops::default(),
        }
    }

    pub fn peer(&self) -> Option<&MadAddress> {
        self.peer.as_ref()
    }

    /// Sets the peer; `None` while there is no peer. Outstanding requests start over with the new
    /// peer.
    pub fn handle_peer(&mut self, now: Time, peer: Option<MadAddress>) {
        self.peer = peer;
        self.outgoing.clear();
        self.finished.clear();
        self.deadlines.clear();
        for (id, sent) in std::mem::take(&mut self.sent).into_iter().rev() {
            self.expect_late(id);
            self.waiting.push_front(sent.request);
        }
        self.fill(now);
    }

    /// Queues a request; it is sent when there is a peer and the window has space.
    pub fn ask(&mut self, now: Time, purpose: K, mad: Mad) -> Result<(), Full> {
        if self.waiting.len() >= self.queued_max || self.ended.len() >= self.queued_max {
            return Err(Full);
        }
        self.waiting.push_back(Request { purpose, mad });
        self.fill(now);
        Ok(())
    }

    /// Cancels requests by their purpose; they have no outcome.
    pub fn cancel(&mut self, now: Time, is_cancelled: impl Fn(&K) -> bool) {
        self.waiting.retain(|request| !is_cancelled(&request.purpose));
        self.ended.retain(|(purpose, _)| !is_cancelled(purpose));
        let cancelled = self.sent.extract_if(.., |_, sent| is_cancelled(&sent.request.purpose));
        for (id, sent) in cancelled.collect::<Vec<_>>() {
            self.deadlines.remove(&(sent.deadline, id));
            self.expect_late(id);
        }
        self.fill(now);
    }

    /// The numbers of queued and of outstanding requests.
    pub fn len(&self) -> (usize, usize) {
        (self.waiting.len(), self.sent.len())
    }

    pub fn poll_transmit(&mut self) -> Option<Envelope> {
        self.outgoing.pop_front()
    }

    pub fn poll_event(&mut self) -> Option<(K, TransactionOutcome)> {
        self.ended.pop_front()
    }

    pub fn poll_timeout(&self) -> Option<Time> {
        self.deadlines.first().map(|(deadline, _)| *deadline)
    }

    pub const fn drops(&self) -> &Drops<TransactionDrop> {
        &self.drops
    }

    fn count(&mut self, reason: TransactionDrop) {
        self.drops.count(reason);
    }

    pub fn handle_answer(&mut self, now: Time, mad: &Mad) {
        let (header, _) = MadHeader::read(mad).expect("a datagram is longer than its header");
        let id = header.transaction_id as u32;
        let Some(sent) = self.sent.get_mut(&id) else {
            return self.handle_finished(now, id, &header);
        };
        if !answers(&sent.request.mad, &header) {
            return self.count(TransactionDrop::OtherQuestion);
        }
        if header.status == MadStatus::BUSY {
            sent.is_busy = true;
            return;
        }
        let segment = SaMad::parse(mad);
        let is_segment = header.mgmt_class == MgmtClass::SUBN_ADM && segment.rmpp.active;
        if is_segment && header.status == MadStatus::OK {
            self.handle_segment(now, id, &segment);
        } else {
            self.end(now, id, TransactionOutcome::Answered(Box::new(*mad)));
        }
    }

    /// Handles an answer without an outstanding request. A segment of a completed transfer is
    /// acknowledged again, because the last ACK was lost.
    fn handle_finished(&mut self, now: Time, id: u32, header: &MadHeader) {
        self.finished.retain(|finished| finished.until > now);
        let known = self.finished.iter().find(|finished| finished.id == id);
        match known.map(|finished| finished.acknowledgement) {
            Some(mad) if header.method == Method::GET_TABLE_RESP => self.transmit(mad),
            _ if self.late.contains(&id) => self.count(TransactionDrop::Late),
            _ => self.count(TransactionDrop::NotAsked),
        }
    }

    fn handle_segment(&mut self, now: Time, id: u32, segment: &SaMad) {
        let Some(sent) = self.sent.get_mut(&id) else { return };
        let reception = sent.reception.get_or_insert_default();
        match reception.receive(segment, self.table_bytes_max) {
            SegmentOutcome::Ignored => return self.count(TransactionDrop::Segment),
            SegmentOutcome::Kept => {}
            SegmentOutcome::Acknowledged(mad) => self.transmit(mad),
            SegmentOutcome::Complete(acknowledgement) => {
                let bytes = sent.reception.take().unwrap_or_default().into_table();
                self.transmit(acknowledgement);
                if self.finished.len() == FINISHED_MAX {
                    self.finished.pop_front();
                }
                let until = now + FINISHED_TIME;
                self.finished.push_back(Finished { id, until, acknowledgement });
                let attribute_offset = segment.sa.attribute_offset;
                return self.end(now, id, TransactionOutcome::Table { bytes, attribute_offset });
            }
            SegmentOutcome::Aborted(status, mad) => {
                self.transmit(mad);
                return self.end(now, id, TransactionOutcome::Aborted(status));
            }
            SegmentOutcome::Ended(status) => {
                return self.end(now, id, TransactionOutcome::Aborted(status));
            }
        }
        self.restart_timeout(now, id);
    }

    fn restart_timeout(&mut self, now: Time, id: u32) {
        let Some(sent) = self.sent.get_mut(&id) else { return };
        self.deadlines.remove(&(sent.deadline, id));
        sent.deadline = now + self.retry_policy.timeout_max;
        self.deadlines.insert((sent.deadline, id));
    }

    fn transmit(&mut self, mad: Mad) {
        let Some(peer) = self.peer else { return };
        if self.outgoing.len() >= REPLIES_MAX + self.window {
            return self.count(TransactionDrop::OutgoingFull);
        }
        self.outgoing.push_back(Envelope { peer, mad });
    }

    fn end(&mut self, now: Time, id: u32, outcome: TransactionOutcome) {
        if let Some(sent) = self.sent.remove(&id) {
            self.deadlines.remove(&(sent.deadline, id));
            if sent.tries > 1 {
                self.expect_late(id);
            }
            self.ended.push_back((sent.request.purpose, outcome));
        }
        self.fill(now);
    }

    fn expect_late(&mut self, id: u32) {
        if self.late.len() == LATE_MAX {
            self.late.pop_front();
        }
        self.late.push_back(id);
    }

    /// Retries overdue requests, or fails them after their last try.
    pub fn handle_timeout(&mut self, now: Time) {
        while let Some((deadline, id)) = self.deadlines.first().copied() {
            if deadline > now {
                break;
            }
            self.deadlines.pop_first();
            let Some(sent) = self.sent.remove(&id) else { continue };
            if sent.tries < self.retry_policy.tries {
                // A peer in the middle of an RMPP transfer would take a request with the same TID
                // for part of the transfer.
                let next = if sent.reception.is_some() { self.unused_id() } else { id };
                if next != id {
                    self.expect_late(id);
                }
                self.send(now, next, sent.request, sent.tries);
            } else {
                self.expect_late(id);
                let outcome = if sent.is_busy {
                    TransactionOutcome::Busy
                } else {
                    TransactionOutcome::NoResponse
                };
                self.ended.push_back((sent.request.purpose, outcome));
            }
        }
        self.fill(now);
    }

    fn fill(&mut self, now: Time) {
        while self.peer.is_some() && self.sent.len() < self.window {
            let Some(request) = self.waiting.pop_front() else { break };
            let id = self.unused_id();
            self.send(now, id, request, 0);
        }
    }

    fn unused_id(&mut self) -> u32 {
        loop {
            let id = self.rng.next_u64() as u32;
            let is_used = self.finished.iter().any(|finished| finished.id == id);
            if id != 0 && !is_used && !self.late.contains(&id) && !self.sent.contains_key(&id) {
                return id;
            }
        }
    }

    fn send(&mut self, now: Time, id: u32, mut request: Request<K>, tries: u8) {
        request.mad[8..16].copy_from_slice(&u64::from(id).to_be_bytes());
        self.transmit(request.mad);
        let RetryPolicy { timeout, timeout_max, .. } = self.retry_policy;
        let backoff = Backoff { min: timeout, max: timeout_max };
        let wait = backoff.pause(u32::from(tries) + 1);
        // Jitter, so that requests sent together are not all retried together.
        let deadline = now + wait + self.rng.duration(wait / 8);
        let (tries, reception) = (tries + 1, None);
        self.deadlines.insert((deadline, id));
        self.sent.insert(id, Sent { request, tries, deadline, is_busy: false, reception });
    }
}

/// Whether a header with the same TID is the response to the request.
fn answers(request: &Mad, header: &MadHeader) -> bool {
    let (asked, _) = MadHeader::read(request).expect("a datagram is longer than its header");
    header.mgmt_class == asked.mgmt_class
        && header.method == asked.method.response()
        && header.attribute_id == asked.attribute_id
}

#[cfg(test)]
mod tests {
    use super::*;
    use pollux_wire::address::Lid;
    use pollux_wire::keys::PKey;
    use pollux_wire::mad::rmpp::{RmppHeader, RmppType, Segmentation};
    use pollux_wire::mad::sa::{PathRecord, PathRecordMask, SaHeader};
    use pollux_wire::units::TimeCode;
    use proptest::prelude::*;

    const PEER: MadAddress = MadAddress::gsi(Lid(1), 0, PKey::DEFAULT);
    const RETRY_POLICY: RetryPolicy = RetryPolicy {
        tries: 3,
        timeout: Duration::from_secs(1),
        timeout_max: Duration::from_secs(3),
    };

    fn transactions() -> Transactions<u32> {
        let mut transactions = Transactions::new(2, 4, 1000, RETRY_POLICY, SeededRng::new(1));
        transactions.handle_peer(Time::START, Some(PEER));
        transactions
    }

    fn ask(transactions: &mut Transactions<u32>, purpose: u32, method: Method) -> Result<(), Full> {
        let record = PathRecord::default();
        let mad = SaMad::new(method, 0, PathRecordMask::NONE, record).emit();
        transactions.ask(Time::START, purpose, mad)
    }

    fn answer(asked: &Envelope) -> SaMad {
        let mut mad = SaMad::parse(&asked.mad);
        mad.header.method = mad.header.method.response();
        mad
    }

    fn segments(asked: &Envelope, table: &[u8]) -> Vec<SaMad> {
        let cut = Segmentation::new(table.len(), SaHeader::LEN);
        let segment = |number| {
            let mut mad = SaMad { rmpp: cut.header(number, TimeCode(0)), ..answer(asked) };
            let data = &table[cut.data(number)];
            mad.data[..data.len()].copy_from_slice(data);
            mad
        };
        (1..=cut.count()).map(segment).collect()
    }

    #[test]
    fn the_window_and_the_queue_have_their_limits() {
        let mut transactions = transactions();
        let taken = (0..8).filter(|purpose| ask(&mut transactions, *purpose, Method::GET).is_ok());
        assert_eq!((taken.count(), transactions.len()), (6, (4, 2)));
        let sent: Vec<_> = std::iter::from_fn(|| transactions.poll_transmit()).collect();
        assert_eq!(sent.len(), 2);
        transactions.handle_answer(Time::START, &answer(&sent[1]).emit());
        assert_eq!(transactions.poll_event().map(|(purpose, _)| purpose), Some(1));
        assert!(transactions.poll_transmit().is_some(), "the next in the queue");
    }

    #[test]
    fn only_the_answer_ends_a_request_and_only_once() {
        let mut transactions = transactions();
        ask(&mut transactions, 5, Method::GET).unwrap();
        let asked = transactions.poll_transmit().unwrap();
        let good = answer(&asked);
        let mut handle = |edit: fn(&mut MadHeader)| {
            let mut mad = good;
            edit(&mut mad.header);
            transactions.handle_answer(Time::START, &mad.emit());
            transactions.poll_event().is_some()
        };
        assert!(!handle(|header| header.transaction_id ^= 1));
        assert!(!handle(|header| header.mgmt_class = MgmtClass::PERF));
        assert!(!handle(|header| header.method = Method::DELETE_RESP));
        assert!(!handle(|header| header.attribute_id.0 ^= 1));
        // The transport may use the upper half.
        assert!(handle(|header| header.transaction_id |= 7 << 32));
        assert!(!handle(|_| ()), "late");
        assert_eq!(transactions.drops().of(TransactionDrop::NotAsked), 2);
        assert_eq!(transactions.drops().of(TransactionDrop::OtherQuestion), 3);
    }

    #[test]
    fn a_second_answer_is_late_if_the_request_was_sent_twice() {
        let mut transactions = transactions();
        let drops = |transactions: &Transactions<u32>| {
            [TransactionDrop::Late, TransactionDrop::NotAsked]
                .map(|reason| transactions.drops().of(reason))
        };
        ask(&mut transactions, 5, Method::GET).unwrap();
        let asked = transactions.poll_transmit().unwrap();
        let now = transactions.poll_timeout().unwrap();
        transactions.handle_timeout(now);
        for expected in [[0, 0], [1, 0]] {
            transactions.handle_answer(now, &answer(&asked).emit());
            assert_eq!(drops(&transactions), expected);
        }
        // A request that is cancelled before its answer arrives.
        ask(&mut transactions, 6, Method::GET).unwrap();
        let cancelled = std::iter::from_fn(|| transactions.poll_transmit()).last().unwrap();
        transactions.cancel(now, |purpose| *purpose == 6);
        transactions.handle_answer(now, &answer(&cancelled).emit());
        assert_eq!(drops(&transactions), [2, 0]);
    }

    #[test]
    fn retries_back_off_and_keep_the_transaction_id() {
        let mut transactions = transactions();
        ask(&mut transactions, 5, Method::GET).unwrap();
        let mut waits = Vec::new();
        let mut tids = Vec::new();
        let mut now = Time::START;
        while let Some(due) = transactions.poll_timeout() {
            let sent = transactions.poll_transmit().unwrap();
            tids.push(SaMad::parse(&sent.mad).header.transaction_id);
            waits.push((due.since_start() - now.since_start()).as_secs());
            now = due;
            transactions.handle_timeout(now);
        }
        assert_eq!(
            (waits, transactions.poll_event()),
            (vec![1, 2, 3], Some((5, TransactionOutcome::NoResponse)))
        );
        assert!(tids.windows(2).all(|two| two[0] == two[1]), "a late answer counts");
        assert_eq!(transactions.len(), (0, 0));
    }

    #[test]
    fn a_complete_table_is_acknowledged_again() {
        let mut transactions = transactions();
        ask(&mut transactions, 5, Method::GET_TABLE).unwrap();
        let asked = transactions.poll_transmit().unwrap();
        let segments = segments(&asked, &[7; 300]);
        for segment in &segments {
            transactions.handle_answer(Time::START, &segment.emit());
        }
        let (bytes, attribute_offset) = (vec![7; 300], 0);
        assert_eq!(
            transactions.poll_event(),
            Some((5, TransactionOutcome::Table { bytes, attribute_offset }))
        );
        let acks = |transactions: &mut Transactions<u32>| {
            let acks = std::iter::from_fn(|| transactions.poll_transmit());
            acks.map(|ack| SaMad::parse(&ack.mad).rmpp.segment_number).collect::<Vec<_>>()
        };
        assert_eq!(acks(&mut transactions), [1, 2]);
        transactions.handle_answer(Time::START, &segments[1].emit());
        assert_eq!(acks(&mut transactions), [2]);
        transactions.handle_answer(Time::START + FINISHED_TIME, &segments[1].emit());
        assert_eq!(acks(&mut transactions), []);
    }

    #[test]
    fn an_interrupted_table_is_requested_under_another_tid() {
        let mut transactions = transactions();
        ask(&mut transactions, 5, Method::GET_TABLE).unwrap();
        let asked = transactions.poll_transmit().unwrap();
        transactions.handle_answer(Time::START, &segments(&asked, &[7; 300])[0].emit());
        transactions.poll_transmit().unwrap();
        let due = transactions.poll_timeout().unwrap();
        assert_eq!(due, Time::START + RETRY_POLICY.timeout_max);
        transactions.handle_timeout(due);
        let again = transactions.poll_transmit().unwrap();
        let tid = |sent: &Envelope| SaMad::parse(&sent.mad).header.transaction_id;
        assert_ne!(tid(&again), tid(&asked));
        for segment in segments(&again, &[8; 300]) {
            transactions.handle_answer(due, &segment.emit());
        }
        let ended = transactions.poll_event();
        assert!(
            matches!(ended, Some((5, TransactionOutcome::Table { bytes, .. })) if bytes == [8; 300])
        );
    }

    #[test]
    fn an_abort_ends_a_transaction() {
        let mut transactions = transactions();
        ask(&mut transactions, 5, Method::GET_TABLE).unwrap();
        let asked = transactions.poll_transmit().unwrap();
        let rmpp = RmppHeader::end(RmppType::ABORT, RmppStatus::TOO_MANY_RETRIES);
        transactions.handle_answer(Time::START, &SaMad { rmpp, ..answer(&asked) }.emit());
        let outcome = TransactionOutcome::Aborted(RmppStatus::TOO_MANY_RETRIES);
        assert_eq!(transactions.poll_event(), Some((5, outcome)));
    }

    proptest! {
        #[test]
        fn any_answers_are_survived_within_limits(
            answers in prop::collection::vec((any::<[u8; 32]>(), any::<[u8; 24]>()), 0..40),
        ) {
            let mut transactions = transactions();
            for (number, (head, tail)) in (0..).zip(answers) {
                let _full = ask(&mut transactions, number, Method::GET_TABLE);
                let Some(&known) = transactions.sent.keys().next() else { break };
                let mut mad = [0; 256];
                mad[..32].copy_from_slice(&head);
                mad[32..56].copy_from_slice(&tail);
                mad[..4].copy_from_slice(&[1, 3, 2, 0x92]);
                mad[4..8].fill(0);
                mad[12..16].copy_from_slice(&known.to_be_bytes());
                mad[16..18].copy_from_slice(&[0, 0x35]);
                transactions.handle_answer(Time::START, &mad);
                prop_assert!(transactions.outgoing.len() <= REPLIES_MAX + 2);
                prop_assert!(transactions.sent.len() <= 2 && transactions.ended.len() <= 4 + 4 + 2);
            }
        }
    }
}
