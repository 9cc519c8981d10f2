//! How connections end: by a peer's word, by ours, by failure and by disuse.

use super::pause::Failure;
use super::probe::Probe;
use super::{Attempt, Connections, PeerDrop, State};
use crate::cm::{ConnectionId, End, Role};
use crate::interface::{Action, ConnectionKey};
use pollux_verbs::time::Time;
use pollux_verbs::{QpAttributes, QpState};
use pollux_wire::ip::link_address::LinkAddress;
use pollux_wire::mad::cm::RejectReason;

impl Connections {
    /// The neighbor was forgotten: its connections end with it (RFC 4755 3.4).
    pub fn forget(&mut self, now: Time, link: &LinkAddress) {
        let address = link.comparison_form();
        let Some(peer) = self.peers.get_mut(&address) else { return };
        peer.is_neighbor = false;
        for key in peer.connections.clone() {
            self.end(now, key, PeerDrop::Forgotten);
        }
        self.workers().for_each(|worker| self.set_attempt(address, worker, Attempt::Idle));
        self.forget_peer(address);
    }

    /// Everything ends.
    pub(super) fn end_all(&mut self, now: Time) {
        for key in self.all.iter().map(|(key, _)| key).collect::<Vec<_>>() {
            self.end(now, key, PeerDrop::Down);
        }
        self.due.clear();
        self.peers.retain(|_, peer| !peer.connections.is_empty());
        let lanes = self.peers.values_mut().flat_map(|peer| &mut peer.lanes);
        lanes.for_each(|lane| lane.attempt = Attempt::Idle);
    }

    /// Ends one: the peer hears of it, and the queue pair goes.
    pub(super) fn end(&mut self, now: Time, key: ConnectionKey, why: PeerDrop) {
        let words = self.own_words();
        let Some(connection) = self.all.get_mut(&key) else { return };
        if matches!(connection.state, State::Ending(_)) {
            return;
        }
        let was = connection.state;
        let was_good = was == State::Open && now >= connection.since + self.config.good_after;
        if let Some(id) = connection.id {
            // One that connection management has ended already may be gone there.
            let _gone = self.cm.disconnect(now, id, words);
        }
        let (address, worker, id) = (connection.peer, connection.worker, connection.id);
        self.all.set_ending(now, key, why);
        self.drops.count(why);
        self.set_probe(key, Probe::Idle);
        self.retire(key, was, id.is_some());
        let Some(lane) = self.lane_mut(address, worker) else { return };
        if was_good {
            (lane.failures, lane.refusals) = (0, 0);
        }
        if self.asks_by(address, worker) == Some(key) {
            self.set_attempt(address, worker, Attempt::Idle);
        } else {
            self.changed.push_back(LinkAddress::parse(&address));
        }
    }

    /// What ends neither sends nor receives. Its queue pair goes at once if nobody knows its number
    /// or all is over, else when connection management says so.
    fn retire(&mut self, key: ConnectionKey, was: State, is_known: bool) {
        match was {
            State::Accepted | State::Open if is_known => {
                let state = Some(QpState::Err);
                let attributes = Box::new(QpAttributes { state, ..QpAttributes::default() });
                self.actions.push_back(Action::Modify { connection: key, attributes });
            }
            State::Asked if is_known => {}
            _ => self.actions.push_back(Action::Disconnect { connection: key }),
        }
    }

    /// Nothing is left of a connection at the peer, nor on the wire.
    pub(super) fn closed(&mut self, now: Time, id: ConnectionId) {
        let Some(key) = self.by_id.remove(&id) else { return };
        let Some(connection) = self.all.get_mut(&key) else { return };
        connection.id = None;
        match connection.state {
            State::Ending(_) => self.actions.push_back(Action::Disconnect { connection: key }),
            _ => self.end(now, key, PeerDrop::PeerEnded),
        }
    }

    /// Connection management says that one is over.
    pub(super) fn told_the_end(&mut self, now: Time, id: ConnectionId, end: End) {
        let Some(&key) = self.by_id.get(&id) else { return };
        let Some(connection) = self.all.get(&key) else { return };
        if matches!(connection.state, State::Ending(_)) {
            return;
        }
        let was_asked = connection.state == State::Asked;
        let was_good = now >= connection.since + self.config.good_after;
        match end {
            End::Rejected(rej) if was_asked => match rej.reason {
                RejectReason::INVALID_SERVICE_ID => self.try_other_dialect(now, key),
                reason => self.vain(now, key, Failure::rejected(reason)),
            },
            End::TimedOut if was_asked => {
                self.suspected.push_back(LinkAddress::parse(&connection.peer));
                self.vain(now, key, PeerDrop::Silence);
            }
            End::TimedOut => self.end(now, key, PeerDrop::Silence),
            End::Rejected(_) => self.end(now, key, PeerDrop::Refused),
            End::Asked(_) if !was_good => self.vain(now, key, PeerDrop::PeerEnded),
            End::Asked(_) | End::Answered(_) | End::Stale => {
                self.end(now, key, PeerDrop::PeerEnded);
            }
        }
    }

    /// A queue pair could not be made, or failed. One that worked for a while is made again for the
    /// next packet; one that did not is a vain attempt.
    pub(super) fn failed(&mut self, now: Time, key: ConnectionKey) {
        let Some(connection) = self.all.get(&key) else { return };
        let was_good =
            connection.state == State::Open && now >= connection.since + self.config.good_after;
        let (role, was_made) = (connection.role(), connection.qpn.is_some());
        match role {
            _ if matches!(connection.state, State::Ending(_)) => {}
            Role::Active if !was_good => self.vain(now, key, PeerDrop::QueuePair),
            _ => self.end(now, key, PeerDrop::QueuePair),
        }
        if !was_made {
            // Nothing may be there that could end.
            self.ended(key);
        }
    }

    /// The queue pair is no more.
    pub(super) fn ended(&mut self, key: ConnectionKey) {
        self.set_probe(key, Probe::Idle);
        let Some(connection) = self.all.remove(key) else { return };
        connection.id.map(|id| self.by_id.remove(&id));
        connection.ways.due.map(|due| self.seeking.remove(&(due, key)));
        let peer = connection.peer;
        if let Some(known) = self.peers.get_mut(&peer) {
            known.connections.remove(&key);
        }
        self.forget_peer(peer);
    }

    /// Ends what nobody used, of those who are no neighbors; with neighbors it goes by theirs.
    pub(super) fn end_idle(&mut self, now: Time) {
        let Some(idle_for) = self.config.idle_for else { return };
        if self.sweep.is_none_or(|sweep| now < sweep) {
            return;
        }
        let is_idle = self.all.iter().filter(|(_, known)| {
            let is_neighbor = self.peers.get(&known.peer).is_some_and(|peer| peer.is_neighbor);
            known.state == State::Open && !is_neighbor && now >= known.used + idle_for
        });
        for key in is_idle.map(|(key, _)| key).collect::<Vec<_>>() {
            self.end(now, key, PeerDrop::Idle);
        }
        self.sweep = (self.all.len() > 0).then(|| now + idle_for / 4);
    }

    fn forget_peer(&mut self, address: [u8; LinkAddress::LEN]) {
        let is_over = |peer: &super::Peer| !peer.is_neighbor && peer.connections.is_empty();
        if self.peers.get(&address).is_some_and(is_over)
            && let Some(peer) = self.peers.remove(&address)
        {
            for (worker, lane) in self.workers().zip(&peer.lanes) {
                lane.attempt.due().map(|due| self.due.remove(&(due, address, worker)));
            }
        }
    }
}
