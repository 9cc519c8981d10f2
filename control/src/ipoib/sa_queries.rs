//! SA queries: the purpose of each outstanding query, and the handler of its reply.

use super::{InterfaceDrop, IpoibInterface};
use crate::sa::{RequestId, SaError, SaEvent, SaQuery, SaReply};
use pollux_verbs::time::Time;
use pollux_wire::address::Gid;
use pollux_wire::ip::mgid::GroupId;
use pollux_wire::mad::notice::TrapNumber;
use std::collections::{BTreeMap, VecDeque};

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Purpose {
    Broadcast,
    Group {
        id: GroupId,
        as_full: bool,
    },
    Leave(Gid),
    Path(Gid),
    Paths(Gid),
    /// The path to a port that a REQ names, to verify the sender.
    Requester(Gid),
    Subscription(TrapNumber),
    Unsubscription(TrapNumber),
}

#[derive(Default)]
pub(super) struct SaQueries {
    by_id: BTreeMap<RequestId, Purpose>,
    purposes: BTreeMap<Purpose, usize>,
    asked: u64,
    /// Queries that the client refused because its queue is full. They are handled like failed
    /// replies.
    refused: VecDeque<Purpose>,
}

impl SaQueries {
    fn insert(&mut self, id: RequestId, purpose: Purpose) {
        self.by_id.insert(id, purpose);
        *self.purposes.entry(purpose).or_default() += 1;
    }

    fn remove(&mut self, id: RequestId) -> Option<Purpose> {
        let purpose = self.by_id.remove(&id)?;
        if let Some(count) = self.purposes.get_mut(&purpose) {
            *count -= 1;
            if *count == 0 {
                self.purposes.remove(&purpose);
            }
        }
        Some(purpose)
    }

    pub(super) fn clear(&mut self) -> impl Iterator<Item = RequestId> + use<> {
        self.purposes.clear();
        std::mem::take(&mut self.by_id).into_keys()
    }
}

impl IpoibInterface {
    pub(super) fn handle_sa_events(&mut self, now: Time) -> bool {
        let mut has_progress = false;
        while let Some(event) = self.sa.poll_event() {
            has_progress = true;
            let (id, result) = match event {
                SaEvent::Notice(report) => {
                    self.handle_notice(now, &report);
                    continue;
                }
                SaEvent::Answered { id, result } => (id, result),
            };
            if let Some(purpose) = self.sa_queries.remove(id) {
                self.handle_reply(now, purpose, result);
            }
        }
        while let Some(purpose) = self.sa_queries.refused.pop_front() {
            has_progress = true;
            self.handle_reply(now, purpose, Err(SaError::NoResources));
        }
        has_progress
    }

    fn handle_reply(&mut self, now: Time, purpose: Purpose, result: Result<SaReply, SaError>) {
        match purpose {
            Purpose::Broadcast => self.handle_broadcast_reply(now, result),
            Purpose::Group { id, as_full } => self.handle_group_reply(now, id, as_full, result),
            Purpose::Path(gid) => self.handle_path_reply(now, gid, result),
            Purpose::Paths(gid) => self.handle_paths_reply(now, gid, result),
            Purpose::Requester(gid) => self.handle_requester_reply(now, gid, result),
            Purpose::Subscription(trap) => self.handle_subscription_reply(now, trap, result.err()),
            // The interface is closed, so there is nothing to do. Opening it cancels the query.
            Purpose::Unsubscription(_) => {}
            Purpose::Leave(mgid) => self.handle_leave_reply(now, mgid),
        }
    }

    /// Sends an SA query. If the client's queue is full, the query fails as if by a reply.
    pub(super) fn ask(&mut self, now: Time, purpose: Purpose, query: SaQuery) {
        self.sa_queries.asked += 1;
        let id = RequestId(self.sa_queries.asked);
        match self.sa.ask(now, id, query) {
            Ok(()) => self.sa_queries.insert(id, purpose),
            Err(_) => {
                self.drops.count(InterfaceDrop::QueriesFull);
                self.sa_queries.refused.push_back(purpose);
            }
        }
    }

    /// Whether a query is outstanding, or was refused and is not handled yet.
    pub(super) fn is_asked(&self, purpose: Purpose) -> bool {
        let SaQueries { purposes, refused, .. } = &self.sa_queries;
        purposes.contains_key(&purpose) || refused.contains(&purpose)
    }
}

pub(super) const fn is_no_such_group(error: SaError) -> bool {
    matches!(error, SaError::NoRecords | SaError::InsufficientComponents | SaError::RequestInvalid)
}
