//! The end of connections: by the peer, by us, after a failure or without use.

use super::pause::Failure;
use super::probe::Probe;
use super::{Attempt, Connections, PeerDrop, State};
use crate::cm::{ConnectionEnd, Role};
use crate::effects::{Action, ConnectionKey, WorkerId};
use pollux_verbs::time::Time;
use pollux_verbs::{QpAttributes, QpState, QpType};
use pollux_wire::ip::link_address::LinkAddress;
use pollux_wire::mad::cm::RejectReason;

impl Connections {
    /// Ends the connections of a neighbor that was removed (RFC 4755 3.4).
    pub fn forget(&mut self, now: Time, link: &LinkAddress) {
        let address = link.comparison_form();
        let Some(peer) = self.peers.get_mut(&address) else { return };
        peer.is_neighbor = false;
        for key in self.all.keys_of_peer(address) {
            self.end(now, key, PeerDrop::Forgotten);
        }
        self.workers().for_each(|worker| self.set_attempt(address, worker, Attempt::Idle));
        self.forget_peer(address);
    }

    /// Ends the connections of a peer that are not of the type `wanted`, after a change of its
    /// policy.
    pub fn end_others(&mut self, now: Time, link: &LinkAddress, wanted: Option<QpType>) {
        let all = self.all.of_peer(link.comparison_form());
        let others = all.filter(|(_, connection)| Some(connection.qp_type) != wanted);
        for key in others.map(|(key, _)| key).collect::<Vec<_>>() {
            self.end(now, key, PeerDrop::Policy);
        }
    }

    pub(super) fn end_all(&mut self, now: Time) {
        for key in self.all.iter().map(|(key, _)| key).collect::<Vec<_>>() {
            self.end(now, key, PeerDrop::Down);
        }
        self.due.clear();
        self.peers.retain(|address, _| self.all.of_peer(*address).next().is_some());
        let attempts = self.peers.values_mut().flat_map(|peer| &mut peer.attempts);
        attempts.for_each(|it| it.attempt = Attempt::Idle);
    }

    /// Ends a connection: disconnects from the peer, and destroys the queue pair.
    pub(super) fn end(&mut self, now: Time, key: ConnectionKey, why: PeerDrop) {
        let has_cm_connection =
            self.all.get(&key).is_some_and(|connection| connection.state.has_cm_connection());
        self.end_with(now, key, why, has_cm_connection);
    }

    fn end_with(&mut self, now: Time, key: ConnectionKey, why: PeerDrop, has_cm_connection: bool) {
        let private_data = self.private_data().padded();
        let Some(connection) = self.all.get_mut(&key).filter(|it| !it.is_ending()) else { return };
        let was_good = connection.is_open() && now >= connection.since + self.config.good_after;
        if has_cm_connection {
            // The CM may have closed the connection, and its event is not polled yet.
            let _gone = self.cm.disconnect(now, key, private_data);
        }
        let (address, worker, qpn) = (connection.peer, connection.worker, connection.state.qpn());
        let was = self.all.set_ending(now, key, State::Ending { why, has_cm_connection, qpn });
        self.drops.count(why);
        self.set_probe(key, Probe::Idle);
        self.retire(key, worker, was.as_ref(), has_cm_connection);
        let Some(attempts) = self.attempts_mut(address, worker) else { return };
        if was_good {
            (attempts.failures, attempts.refusals) = (0, 0);
        }
        if self.outstanding_request(address, worker) == Some(key) {
            self.set_attempt(address, worker, Attempt::Idle);
        } else {
            self.changed.push_back(LinkAddress::parse(&address));
        }
    }

    /// Takes the queue pair of an ending connection out of use. The queue pair is destroyed at once
    /// if the peer does not know the QPN or the CM has closed the connection, otherwise when the CM
    /// closes the connection.
    fn retire(
        &mut self,
        key: ConnectionKey,
        worker: WorkerId,
        was: Option<&State>,
        has_cm_connection: bool,
    ) {
        match was {
            Some(State::RepSent { .. } | State::Open { .. }) if has_cm_connection => {
                let state = Some(QpState::Err);
                self.modify(key, QpAttributes { state, ..QpAttributes::default() });
            }
            Some(State::ReqSent { .. }) if has_cm_connection => {}
            _ => self.actions.push_back(Action::Disconnect { worker, connection: key }),
        }
    }

    /// Handles the close of a connection at the CM: no packet of it is in flight.
    pub(super) fn handle_closed(&mut self, now: Time, key: ConnectionKey) {
        let Some(connection) = self.all.get_mut(&key) else { return };
        match &mut connection.state {
            State::Ending { has_cm_connection, .. } => {
                *has_cm_connection = false;
                let worker = connection.worker;
                self.actions.push_back(Action::Disconnect { worker, connection: key });
            }
            _ => self.end_with(now, key, PeerDrop::PeerEnded, false),
        }
    }

    pub(super) fn handle_connection_end(
        &mut self,
        now: Time,
        key: ConnectionKey,
        end: ConnectionEnd,
    ) {
        let Some(connection) = self.all.get(&key).filter(|it| !it.is_ending()) else { return };
        let was_requesting = matches!(connection.state, State::ReqSent { .. });
        let was_good = now >= connection.since + self.config.good_after;
        match end {
            ConnectionEnd::Rejected(rej) if was_requesting => match rej.reason {
                RejectReason::INVALID_SERVICE_ID => self.try_other_dialect(now, key),
                reason => self.fail_attempt(now, key, Failure::rejected(reason)),
            },
            ConnectionEnd::TimedOut if was_requesting => {
                self.suspected.push_back(LinkAddress::parse(&connection.peer));
                self.fail_attempt(now, key, PeerDrop::NoResponse);
            }
            ConnectionEnd::TimedOut => self.end(now, key, PeerDrop::NoResponse),
            ConnectionEnd::Rejected(_) => self.end(now, key, PeerDrop::Refused),
            ConnectionEnd::Asked if !was_good => self.fail_attempt(now, key, PeerDrop::PeerEnded),
            ConnectionEnd::Asked | ConnectionEnd::Answered | ConnectionEnd::Stale => {
                self.end(now, key, PeerDrop::PeerEnded);
            }
        }
    }

    /// Handles a queue pair that failed or could not be created. If the connection was not open for
    /// `good_after`, a request of ours counts as a failed attempt. Otherwise the next packet
    /// requests another connection.
    pub(super) fn handle_failed(&mut self, now: Time, key: ConnectionKey) {
        let Some(connection) = self.all.get(&key) else { return };
        let was_good = connection.is_open() && now >= connection.since + self.config.good_after;
        let was_made = connection.state.qpn().is_some();
        match connection.role {
            _ if connection.is_ending() => {}
            Role::Active if !was_good => self.fail_attempt(now, key, PeerDrop::QueuePair),
            _ => self.end(now, key, PeerDrop::QueuePair),
        }
        if !was_made {
            // There may be no queue pair, and then no event reports its end.
            self.handle_queue_pair_end(key);
        }
    }

    pub(super) fn handle_queue_pair_end(&mut self, key: ConnectionKey) {
        self.set_probe(key, Probe::Idle);
        let Some(connection) = self.all.remove(key) else { return };
        connection.paths.due.map(|due| self.alternates_due.remove(&(due, key)));
        let peer = connection.peer;
        self.forget_peer(peer);
    }

    /// Ends unused connections of peers that are not neighbors. Those of neighbors end with the
    /// neighbor.
    pub(super) fn end_idle(&mut self, now: Time) {
        let Some(idle_for) = self.config.idle_for else { return };
        if self.sweep.is_none_or(|sweep| now < sweep) {
            return;
        }
        let is_idle = self.all.iter().filter(|(_, known)| {
            let is_neighbor = self.peers.get(&known.peer).is_some_and(|peer| peer.is_neighbor);
            known.is_open() && !is_neighbor && now >= known.used + idle_for
        });
        for key in is_idle.map(|(key, _)| key).collect::<Vec<_>>() {
            self.end(now, key, PeerDrop::Idle);
        }
        self.sweep = (self.all.len() > 0).then(|| now + idle_for / 4);
    }

    fn forget_peer(&mut self, address: [u8; LinkAddress::LEN]) {
        let is_unconnected = self.all.of_peer(address).next().is_none();
        let is_over = |peer: &super::Peer| !peer.is_neighbor && is_unconnected;
        if self.peers.get(&address).is_some_and(is_over)
            && let Some(peer) = self.peers.remove(&address)
        {
            for (worker, attempts) in self.workers().zip(&peer.attempts) {
                attempts.attempt.due().map(|due| self.due.remove(&(due, address, worker)));
            }
        }
    }
}
