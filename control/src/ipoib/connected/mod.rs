//! Connections to peers: when they are made, which of several is used, and when they end
//! (RFC 4755 2, 3, 5, 8).
//!
//! ```text
//!   we ask:      CreatingForReq --queue pair--> ReqSent --REP: ready, RTU--> Open
//!   peer asks:   CreatingForRep --queue pair: ready, REP--> RepSent --RTU, or data--> Open
//!   any:         --refused, failed, replaced, disconnected--> Ending
//!   Ending       --closed at the CM, no packet in flight, buffers returned--> (none)
//! ```
//!
//! If the peer knows the QPN, the queue pair stays in the error state as long as packets for that
//! QPN may arrive, so that no other queue pair gets the QPN (IBA 12.9.8.4).
//!
//! The attempts of each of our workers to connect to a peer:
//!
//! ```text
//!   Idle --a packet--> UnderWay --Open--> Idle, and packets are sent by the connection
//!    ^                    | failed
//!    +- time, announced - Paused, with backoff; datagrams meanwhile: see `pause`
//! ```
//!
//! A peer is a link address without flags (RFC 4755 2.3). With the service IDs of the RFC, one
//! connection of a worker (see `worker`) serves both directions. When two REQs for it cross, the
//! side with the smaller address accepts the other's REQ and gives up its own (3.3). A connection
//! replaces an older one only after the RTU, because a REQ may be a delayed old one, which gets no
//! RTU. With the service IDs of Linux, each side sends by the connection that it requested, and
//! only receives by the other connection.
//!
//! Packets that fit a datagram do not wait for a connection.

mod config;
mod connection;
mod ending;
mod handshake;
mod migration;
mod pause;
mod probe;
mod rows;
mod table;
#[cfg(test)]
mod tests;
mod worker;

pub use config::{PeerConfig, Policy};
pub use connection::CONNECTION_STATES;
pub use pause::{Failure, Pause};
pub use rows::ConnectionRow;

use crate::cm::{Cm, CmDatagram, CmDrop, CmEvent, LocalPort};
use crate::effects::{Action, ConnectionKey, QueuePairEvent, WorkerId};
use crate::mad::{Envelope, MadAddress};
use connection::{Connection, State};
use pause::Attempt;
use pollux_verbs::drops::Drops;
use pollux_verbs::reasons;
use pollux_verbs::rng::SeededRng;
use pollux_verbs::time::Time;
use pollux_verbs::{QpAttributes, QpType};
use pollux_wire::address::{Gid, Qpn};
use pollux_wire::ip::link_address::LinkAddress;
use pollux_wire::keys::PKey;
use pollux_wire::mad::cm::Req;
use pollux_wire::mad::cm::ipoib::{Dialect, IpoibPrivateData};
use probe::Probe;
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use table::Table;
use worker::Attempts;

reasons! {
    pub enum PeerDrop {
        Full = "full",
        /// One of two REQs that crossed; the other one stands.
        Crossing = "crossing",
        NotOffered = "not_offered",
        BadPrivateData = "bad_private_data",
        Refused = "refused",
        /// Our REQ or a probe was not answered.
        NoResponse = "no_response",
        /// A queue pair could not be created, or failed.
        QueuePair = "queue_pair",
        /// The peer has opened another connection in its place.
        Replaced = "replaced",
        /// The peer ended the connection.
        PeerEnded = "peer_ended",
        Idle = "idle",
        /// The policy for the peer wants no connection now, or one of another type.
        Policy = "policy",
        Forgotten = "forgotten",
        Down = "down",
        /// Too many attempts failed, so traffic uses datagrams.
        GaveUp = "gave_up",
    }
}

/// A peer's link address in comparison form, without flags.
type Address = [u8; LinkAddress::LEN];

/// The link and port of an interface that is up.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LocalEnd {
    pub link: LinkAddress,
    pub p_key: PKey,
    pub pkey_index: u16,
    pub port: LocalPort,
    /// The longest IP packet of a datagram, in bytes. A connection with a smaller MTU is not used
    /// to send.
    pub datagram_mtu: u32,
}

/// The state of a peer in connected mode, for one of our workers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PeerState {
    Idle,
    /// A connection is being made, since this time.
    UnderWay(Time),
    /// The last attempt failed, or too many did; or the connection has a smaller MTU than
    /// datagrams.
    Paused,
    Open {
        connection: ConnectionKey,
        mtu: u32,
    },
}

#[derive(Debug)]
struct Peer {
    /// The peer is a neighbor, so it is kept even without a connection.
    is_neighbor: bool,
    /// When the peer last announced itself, or opened a connection that it requested.
    last_seen: Option<Time>,
    dialect: Option<Dialect>,
    /// The attempts of each worker of ours.
    attempts: Vec<Attempts>,
}

pub struct Connections {
    config: PeerConfig,
    workers: u8,
    cm: Cm,
    rng: SeededRng,
    local: Option<LocalEnd>,
    peers: BTreeMap<Address, Peer>,
    /// The ends of pauses.
    due: BTreeSet<(Time, Address, WorkerId)>,
    all: Table,
    /// The time of the next search for unused connections.
    sweep: Option<Time>,
    /// When to look for alternate paths.
    alternates_due: BTreeSet<(Time, ConnectionKey)>,
    /// Ports to which all paths are to be queried from the SA.
    path_queries: VecDeque<Gid>,
    /// The deadlines of probes.
    probes: BTreeSet<(Time, ConnectionKey)>,
    /// Peers that did not answer CM messages or probes.
    suspected: VecDeque<LinkAddress>,
    actions: VecDeque<Action>,
    changed: VecDeque<LinkAddress>,
    drops: Drops<PeerDrop>,
}

impl Connections {
    /// `workers` is at least 1.
    pub fn new(config: PeerConfig, workers: u8, seed: u64) -> Self {
        let mut rng = SeededRng::secret(seed);
        Self {
            cm: Cm::new(config.cm, rng.split()),
            config,
            workers: workers.max(1),
            rng,
            local: None,
            peers: BTreeMap::new(),
            due: BTreeSet::new(),
            all: Table::default(),
            sweep: None,
            alternates_due: BTreeSet::new(),
            path_queries: VecDeque::new(),
            probes: BTreeSet::new(),
            suspected: VecDeque::new(),
            actions: VecDeque::new(),
            changed: VecDeque::new(),
            drops: Drops::default(),
        }
    }

    /// Sets the link and port when the interface has come up. `None`: the interface has gone down,
    /// and all connections end (RFC 4755 3.4).
    pub fn set_local_end(&mut self, now: Time, local: Option<LocalEnd>) {
        if self.local == local {
            return;
        }
        if let Some(qpn) = self.local.as_ref().map(|before| before.link.qpn) {
            Dialect::ALL.iter().for_each(|it| self.cm.unlisten(it.service_id(qpn)));
            self.end_all(now);
            self.local = None;
        }
        if let Some(local) = local.filter(|_| self.config.is_on()) {
            self.cm.handle_port(local.port.clone());
            let qpn = local.link.qpn;
            self.local = Some(local);
            let private_data = self.private_data().padded();
            for dialect in Dialect::ALL {
                // Two listeners are within any sensible limit; without them, we can only request
                // connections.
                let _full = self.cm.listen(dialect.service_id(qpn), private_data);
            }
        }
    }

    fn may_send(&self, connection: &Connection) -> bool {
        let least = self.local.as_ref().map_or(0, |local| local.datagram_mtu);
        connection.is_open() && connection.serves_us() && connection.mtu >= least
    }

    /// Handles a datagram of the CM class.
    ///
    /// While the interface is down, a REQ is not answered, and the peer repeats it. A REJ would
    /// look like that of a node with the service IDs of the other convention.
    pub fn handle_mad(&mut self, now: Time, datagram: &CmDatagram) {
        let is_early = self.local.is_none() && self.config.is_on();
        if is_early && datagram.req().is_some() {
            return self.drops.count(PeerDrop::Down);
        }
        self.cm.handle_mad(now, datagram);
        self.handle_cm_events(now);
    }

    pub fn handle_event(&mut self, now: Time, key: ConnectionKey, event: &QueuePairEvent) {
        match *event {
            QueuePairEvent::Made { qpn } => self.handle_made(now, key, qpn),
            QueuePairEvent::Failed => self.handle_failed(now, key),
            QueuePairEvent::Used { received } => self.handle_used(now, key, received),
            QueuePairEvent::DataCame => {
                self.handle_used(now, key, true);
                if let Some(State::RepSent { .. }) = self.all.get(&key).map(|it| &it.state) {
                    // A connection that has just ended needs no confirmation.
                    let _gone = self.cm.handle_data(now, key);
                }
            }
            QueuePairEvent::Migrated => self.handle_migrated(now, key),
            QueuePairEvent::AlternateRefused => self.handle_alternate_refused(now, key),
            QueuePairEvent::Ended => {
                // A queue pair can end without a request.
                self.end(now, key, PeerDrop::QueuePair);
                self.handle_queue_pair_end(key);
            }
        }
        self.handle_cm_events(now);
    }

    /// Handles a new or changed neighbor, which is kept without a connection. If it no longer
    /// offers unreliable connections, those end. Reliable ones would fail by themselves.
    pub fn handle_neighbor(&mut self, now: Time, link: &LinkAddress) {
        if !self.config.is_on() {
            return;
        }
        let address = link.comparison_form();
        self.enter_peer(address).is_neighbor = true;
        for key in self.all.keys_of_peer(address) {
            let is_gone = |it: &Connection| it.qp_type == QpType::Uc && it.is_open();
            if !link.uc && self.all.get(&key).is_some_and(is_gone) {
                self.end(now, key, PeerDrop::NotOffered);
            }
        }
    }

    pub fn handle_timeout(&mut self, now: Time) {
        self.cm.handle_timeout(now);
        self.handle_cm_events(now);
        while let Some(&(at, peer, worker)) = self.due.first().filter(|(at, ..)| *at <= now) {
            self.due.remove(&(at, peer, worker));
            self.set_attempt(peer, worker, Attempt::Idle);
        }
        self.handle_probes(now);
        self.query_alternates(now);
        self.end_idle(now);
    }

    pub fn poll_timeout(&self) -> Option<Time> {
        let pauses = self.due.first().map(|&(at, ..)| at);
        let alternates = self.alternates_due.first().map(|&(at, _)| at);
        let probes = self.probes.first().map(|&(at, _)| at);
        [self.cm.poll_timeout(), pauses, self.sweep, alternates, probes].into_iter().flatten().min()
    }

    pub fn poll_action(&mut self) -> Option<Action> {
        self.actions.pop_front()
    }

    pub fn poll_changed(&mut self) -> Option<LinkAddress> {
        self.changed.pop_front()
    }

    pub fn poll_mad(&mut self) -> Option<Envelope> {
        self.cm.poll_transmit()
    }

    pub const fn drops(&self) -> &Drops<PeerDrop> {
        &self.drops
    }

    /// Whether a connection of the port that sent a REQ has the communication ID of the REQ.
    pub fn is_of_peer(&self, from: &MadAddress, req: &Req) -> bool {
        self.cm.is_of_peer(from, req)
    }

    pub const fn cm_drops(&self) -> &Drops<CmDrop> {
        self.cm.drops()
    }

    fn handle_cm_events(&mut self, now: Time) {
        while let Some(event) = self.cm.poll_event() {
            match event {
                CmEvent::Request { key, req } => self.handle_request(now, key, &req),
                CmEvent::Reply { key, rep } => self.handle_reply(now, key, &rep),
                CmEvent::Established { key } => self.handle_established(now, key),
                CmEvent::Remembered { key } => self.set_probe(key, Probe::Idle),
                CmEvent::Ended { key, end } => self.handle_connection_end(now, key, end),
                CmEvent::PathOffered { key, lap } => self.handle_path_offer(now, key, &lap),
                CmEvent::PathAnswered { key, apr } => {
                    self.handle_path_answer(now, key, apr.as_deref());
                }
                CmEvent::Closed { key } => self.handle_closed(now, key),
            }
        }
    }

    /// Our private data, in all messages (RFC 4755 6).
    fn private_data(&self) -> IpoibPrivateData {
        let ud_qpn = self.local.as_ref().map_or(Qpn::default(), |local| local.link.qpn);
        IpoibPrivateData { ud_qpn, receive_mtu: self.config.receive_mtu }
    }

    fn enter_peer(&mut self, peer: Address) -> &mut Peer {
        let workers = usize::from(self.workers);
        self.peers.entry(peer).or_insert_with(|| Peer {
            is_neighbor: false,
            last_seen: None,
            dialect: None,
            attempts: vec![Attempts::default(); workers],
        })
    }

    /// Adds a connection, and requests its queue pair.
    fn enter(&mut self, now: Time, key: ConnectionKey, connection: Connection) {
        let pkey_index = self.local.as_ref().map_or(0, |local| local.pkey_index);
        let (worker, qp_type) = (connection.worker, connection.qp_type);
        self.actions.push_back(Action::Connect { worker, connection: key, qp_type, pkey_index });
        self.enter_peer(connection.peer);
        self.all.insert(key, connection);
        self.sweep = self.sweep.or(self.config.idle_for.map(|idle_for| now + idle_for / 4));
    }

    fn modify(&mut self, key: ConnectionKey, attributes: QpAttributes) {
        let Some(worker) = self.all.get(&key).map(|it| it.worker) else { return };
        let attributes = Box::new(attributes);
        self.actions.push_back(Action::Modify { worker, connection: key, attributes });
    }
}
