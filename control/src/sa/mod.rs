//! The SA client. An SA query gets paths, joins a multicast group, or subscribes to notices (IBA
//! 15).
//!
//! The caller sends a [`SaQuery`] under an ID of its choice. It gets one result, a [`SaReply`] or a
//! [`SaError`], unless it cancels the query. Queries wait while the subnet administrator (SA) is
//! unknown; after a change of the subnet manager, outstanding queries are sent to the new SA.
//!
//! A new subnet manager does not have the records of a port (memberships, subscriptions), and a
//! client reregister means that they were lost. In both cases, the users of the records request
//! them again. Notices of a subscription are [`SaEvent::Notice`], already acknowledged.

mod error;
mod query;

pub use error::SaError;
pub use query::{Membership, SaQuery, SaReply};

use crate::mad::{
    Envelope, Full, MadAddress, RetryPolicy, TransactionDrop, TransactionOutcome, Transactions,
};
use pollux_verbs::drops::Drops;
use pollux_verbs::reasons;
use pollux_verbs::rng::SeededRng;
use pollux_verbs::time::Time;
use pollux_wire::mad::notice::NoticeReport;
use pollux_wire::mad::sa::SaMad;
use pollux_wire::mad::{Method, MgmtClass};
use query::{read_record, read_table};
use std::collections::VecDeque;
use std::time::Duration;

const ACKNOWLEDGEMENTS_MAX: usize = 64;
/// Reports that are remembered to recognize repetitions.
const RECENT_MAX: usize = 64;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SaConfig {
    pub queries_in_flight_max: usize,
    /// Queued queries, at most, and separately results that are not polled yet.
    pub queries_queued_max: usize,
    pub notices_max: usize,
    pub table_bytes_max: usize,
    pub retry_policy: RetryPolicy,
}

impl Default for SaConfig {
    fn default() -> Self {
        Self {
            queries_in_flight_max: 16,
            queries_queued_max: 4096,
            notices_max: 256,
            table_bytes_max: 4 << 20,
            // 15 to 17 seconds in all. Linux fails after one to three seconds and starts over. With
            // the longer time, our callers need not retry.
            retry_policy: RetryPolicy {
                tries: 8,
                timeout: Duration::from_millis(200),
                timeout_max: Duration::from_secs(3),
            },
        }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct RequestId(pub u64);

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum SaEvent {
    Answered { id: RequestId, result: Result<SaReply, SaError> },
    Notice(Box<NoticeReport>),
}

reasons! {
    pub enum SaDrop {
        /// Of another class or class version.
        NotOurs = "not_ours",
        /// A request other than a report; clients answer no other requests.
        Request = "request",
        /// A report or an answer that is not from the administrator.
        Stranger = "stranger",
        /// A report without a notice.
        NoNotice = "no_notice",
        /// A repeated report, which is acknowledged again.
        Repeated = "repeated",
        /// Too many notices or acknowledgements are queued. The sender repeats the report.
        Full = "full",
    }
}

pub struct SaClient {
    config: SaConfig,
    transactions: Transactions<(RequestId, SaQuery)>,
    acknowledgements: VecDeque<Envelope>,
    notices: VecDeque<NoticeReport>,
    /// The last reports that were passed on, with their TIDs. They are cleared with a change of the
    /// administrator, because a new one may reuse TIDs.
    recent: VecDeque<(u64, NoticeReport)>,
    drops: Drops<SaDrop>,
    results: SaResults,
}

/// The number of queries that have ended, by result.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SaResults {
    pub answered: u64,
    /// Ended with an error status, an invalid answer or an aborted transfer.
    pub refused: u64,
    /// The answer to the last try was BUSY.
    pub busy: u64,
    pub unanswered: u64,
}

impl SaResults {
    const fn count(&mut self, result: &Result<SaReply, SaError>) {
        match result {
            Ok(_) => self.answered += 1,
            Err(SaError::NoResponse) => self.unanswered += 1,
            Err(SaError::Busy) => self.busy += 1,
            Err(_) => self.refused += 1,
        }
    }
}

impl SaClient {
    pub fn new(config: SaConfig, rng: SeededRng) -> Self {
        Self {
            config,
            transactions: Transactions::new(
                config.queries_in_flight_max,
                config.queries_queued_max,
                config.table_bytes_max,
                config.retry_policy,
                rng,
            ),
            acknowledgements: VecDeque::new(),
            notices: VecDeque::new(),
            recent: VecDeque::new(),
            drops: Drops::default(),
            results: SaResults::default(),
        }
    }

    /// Sets the address of the SA: LID and service level of the master subnet manager, in the
    /// default partition. The caller also calls this if another manager takes over the same
    /// address.
    pub fn handle_sm_change(&mut self, now: Time, administrator: Option<MadAddress>) {
        self.recent.clear();
        self.transactions.handle_peer(now, administrator);
    }

    /// The address of the SA; `None` while queries wait for one.
    pub fn administrator(&self) -> Option<&MadAddress> {
        self.transactions.peer()
    }

    /// Sends a query. An ID that is used twice gets two results.
    pub fn ask(&mut self, now: Time, id: RequestId, query: SaQuery) -> Result<(), Full> {
        self.transactions.ask(now, (id, query), query.0.emit())
    }

    /// Cancels a query: it gets no result.
    pub fn cancel(&mut self, now: Time, id: RequestId) {
        self.transactions.cancel(now, |(known, _)| *known == id);
    }

    /// The numbers of queued and of outstanding queries.
    pub fn queries(&self) -> (usize, usize) {
        self.transactions.len()
    }

    pub fn handle_mad(&mut self, now: Time, envelope: &Envelope) {
        let mad = SaMad::parse(&envelope.mad);
        let header = &mad.header;
        let class = MgmtClass::SUBN_ADM;
        if header.mgmt_class != class || header.class_version != class.version() {
            return self.count(SaDrop::NotOurs);
        }
        let administrator = self.transactions.peer();
        let is_stranger = administrator.is_none_or(|known| !known.is_same_port(&envelope.peer));
        match header.method {
            method if is_stranger && (method == Method::REPORT || method.is_response()) => {
                self.count(SaDrop::Stranger);
            }
            Method::REPORT => self.handle_report(envelope, &mad),
            method if method.is_response() => {
                self.transactions.handle_answer(now, &envelope.mad);
            }
            _ => self.count(SaDrop::Request),
        }
    }

    /// Acknowledges each report, so that the sender stops, and passes it on once.
    fn handle_report(&mut self, envelope: &Envelope, mad: &SaMad) {
        let Ok((_, report)) = mad.record::<NoticeReport>() else {
            return self.count(SaDrop::NoNotice);
        };
        let is_full = self.notices.len() >= self.config.notices_max
            || self.acknowledgements.len() >= ACKNOWLEDGEMENTS_MAX;
        if is_full {
            return self.count(SaDrop::Full);
        }
        let mut answer = *mad;
        answer.header.method = Method::REPORT_RESP;
        self.acknowledgements.push_back(Envelope { peer: envelope.peer, mad: answer.emit() });
        let known = (mad.header.transaction_id, report);
        if self.recent.contains(&known) {
            return self.count(SaDrop::Repeated);
        }
        if self.recent.len() == RECENT_MAX {
            self.recent.pop_front();
        }
        self.recent.push_back(known);
        self.notices.push_back(report);
    }

    pub fn poll_transmit(&mut self) -> Option<Envelope> {
        self.acknowledgements.pop_front().or_else(|| self.transactions.poll_transmit())
    }

    pub fn poll_event(&mut self) -> Option<SaEvent> {
        if let Some(report) = self.notices.pop_front() {
            return Some(SaEvent::Notice(Box::new(report)));
        }
        let ((id, query), outcome) = self.transactions.poll_event()?;
        let result = match outcome {
            TransactionOutcome::Answered(mad) => read_record(&query, &SaMad::parse(&mad)),
            TransactionOutcome::Table { bytes, attribute_offset } => {
                read_table(&query, &bytes, attribute_offset)
            }
            TransactionOutcome::Aborted(status) => Err(SaError::Aborted(status)),
            TransactionOutcome::Busy => Err(SaError::Busy),
            TransactionOutcome::NoResponse => Err(SaError::NoResponse),
        };
        self.results.count(&result);
        Some(SaEvent::Answered { id, result })
    }

    pub fn poll_timeout(&self) -> Option<Time> {
        self.transactions.poll_timeout()
    }

    pub fn handle_timeout(&mut self, now: Time) {
        self.transactions.handle_timeout(now);
    }

    pub const fn results(&self) -> &SaResults {
        &self.results
    }

    pub const fn drops(&self) -> &Drops<SaDrop> {
        &self.drops
    }

    pub const fn answer_drops(&self) -> &Drops<TransactionDrop> {
        self.transactions.drops()
    }

    fn count(&mut self, reason: SaDrop) {
        self.drops.count(reason);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use pollux_wire::address::{Gid, Lid};
    use pollux_wire::keys::PKey;
    use pollux_wire::mad::MAD_LEN;
    use pollux_wire::mad::notice::TrapNumber;
    use pollux_wire::mad::sa::JoinState;
    use proptest::prelude::*;

    proptest! {
        /// For any answers of the administrator, each query has one result.
        #[test]
        fn any_datagrams_of_the_administrator_are_survived(
            datagrams in prop::collection::vec(
                (prop::collection::vec(any::<u8>(), MAD_LEN), 0u8..4, any::<bool>()),
                0..60,
            ),
        ) {
            let mut client = SaClient::new(SaConfig::default(), SeededRng::new(1));
            let (now, peer) = (Time::START, MadAddress::gsi(Lid(1), 0, PKey::DEFAULT));
            client.handle_sm_change(now, Some(peer));
            let join_state = JoinState::FULL_MEMBER;
            let (p_key, [mgid, port_gid]) = (PKey::DEFAULT, [Gid::NONE; 2]);
            let member = Membership { mgid, port_gid, p_key, join_state };
            let (mut asked, mut ended) = (0, 0);
            for (bytes, kind, is_valid) in datagrams {
                let query = match kind {
                    0 => SaQuery::path(Gid::NONE, Gid::NONE, PKey::DEFAULT, 0),
                    1 => SaQuery::paths(Gid::NONE, Gid::NONE, PKey::DEFAULT),
                    2 => SaQuery::leave(member),
                    _ => SaQuery::subscription(TrapNumber::MULTICAST_GROUP_CREATED, true),
                };
                client.ask(now, RequestId(asked), query).unwrap();
                asked += 1;
                let mut mad: [u8; MAD_LEN] = bytes.try_into().unwrap();
                let method = if kind == 3 { Method::REPORT } else { Method::GET_RESP };
                mad[..4].copy_from_slice(&[1, 3, 2, method.0]);
                while let Some(Envelope { mad: sent, .. }) = client.poll_transmit() {
                    let sent = SaMad::parse(&sent).header;
                    if is_valid && kind != 3 {
                        mad[3] = sent.method.response().0;
                        mad[4..6].fill(0);
                        mad[8..18].copy_from_slice(&sent.emit()[8..18]);
                    }
                }
                client.handle_mad(now, &Envelope { peer, mad });
                while let Some(event) = client.poll_event() {
                    if let SaEvent::Answered { id, .. } = event {
                        prop_assert!(id.0 < asked);
                        ended += 1;
                    }
                }
            }
            while let Some(due) = client.poll_timeout() {
                client.handle_timeout(due);
                while client.poll_transmit().is_some() {}
                ended += std::iter::from_fn(|| client.poll_event()).count() as u64;
            }
            prop_assert_eq!(ended, asked);
            let SaResults { answered, refused, busy, unanswered } = *client.results();
            prop_assert_eq!(answered + refused + busy + unanswered, asked);
        }
    }
}
