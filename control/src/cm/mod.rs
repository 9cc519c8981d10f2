//! The connection manager: how two queue pairs are connected, and how they end (IBA 12).
//!
//! ```text
//! active side                                  passive side
//!
//!   connect                                      (a REQ for a listener)
//!      | REQ                                        |
//!      v            MRA                             v
//!  REQ sent --> MRA(REQ) received               REQ received
//!      | REP            | REP                       | accept
//!      v                v                           | REP
//!  REP received --------+                           v           MRA
//!      | confirm                                 REP sent --> MRA(REP) received
//!      | RTU                                        | RTU, or data  | RTU, or data
//!      v                                            v               |
//!  established                                  established <-------+
//!
//!  established --disconnect: DREQ--> DREQ sent --DREP, DREQ, REJ, timeout--> time-wait
//!  REP sent, REP received, established --DREQ: DREP--> time-wait
//!  REP sent --timeout, disconnect: REJ and DREQ--> DREQ sent
//!  REQ sent, REQ received, REP received --timeout, reject, disconnect: REJ--> time-wait
//!  REQ received --ignore--> closed
//!  any --REJ--> time-wait, or closed before a REP
//!  time-wait --no more packets in flight--> closed
//! ```
//!
//! A connection in time-wait keeps its last message, for a peer that did not receive it. The QPN
//! must not be reused before [`CmEvent::Closed`].
//!
//! Two REQs that cross create two connections in the CM. The consumer breaks the tie
//! (`ipoib/connected/handshake.rs`), and chooses service IDs and private data.
//!
//! A message is accepted for a connection only from the port of its peer. Otherwise another port
//! could try communication IDs until it guesses both, of 32 bits each.

mod config;
mod connection;
mod event;
mod incoming;
mod index;
mod outbox;
mod terms;
#[cfg(test)]
mod tests;
mod timing;

pub use config::{CmConfig, LocalPort};
pub use connection::Phase;
pub use event::{CmDrop, CmEvent, ConnectionEnd};
pub use incoming::CmDatagram;
pub use terms::{Terms, as_requested, request_along, vector};
pub use timing::ack_timeout;

use crate::effects::ConnectionKey;
use crate::mad::{Envelope, MadAddress};
use connection::Connection;
use index::Index;
use outbox::Outbox;
use pollux_verbs::drops::Drops;
use pollux_verbs::rng::SeededRng;
use pollux_verbs::time::Time;
use pollux_wire::mad::cm::{Apr, CommId, Lap, RejectReason, Rep, Req};
use pollux_wire::mad::service_id::ServiceId;
use pollux_wire::units::TimeCode;
use std::collections::BTreeMap;
use std::sync::Arc;

/// Why a call of the consumer was refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum CmError {
    #[error("there is no connection {}", .0.comm_id())]
    NotThere(ConnectionKey),
    #[error("a connection in state '{0}' cannot do this")]
    WrongState(Phase),
    #[error(
        "the limit of connections or unpolled events is reached: end connections, or poll events"
    )]
    Full,
    #[error("the limit of listeners is reached: end listeners")]
    ListenersFull,
    #[error("there is a connection {} already: use a new key", .0.comm_id())]
    KeyInUse(ConnectionKey),
}

/// The side of a connection: requester or listener.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Role {
    Active,
    Passive,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Connect {
    pub to: MadAddress,
    /// The local communication ID and CA GUID are filled in; see [`request_along`].
    pub req: Req,
    pub packet_life_time: TimeCode,
}

/// The private data of a listener for rejections.
type ListenerData = Arc<[u8; 148]>;

#[derive(Debug)]
pub struct Cm {
    rng: SeededRng,
    listeners: BTreeMap<ServiceId, ListenerData>,
    port: LocalPort,
    connections: BTreeMap<CommId, Connection>,
    /// The number of keys assigned; the upper half of the last key.
    keys: u32,
    index: Index,
    out: Outbox,
}

impl Cm {
    pub fn new(config: CmConfig, mut rng: SeededRng) -> Self {
        let out = Outbox::new(config, rng.split());
        Self {
            rng,
            listeners: BTreeMap::new(),
            port: LocalPort::default(),
            connections: BTreeMap::new(),
            keys: 0,
            index: Index::default(),
            out,
        }
    }

    pub fn handle_port(&mut self, port: LocalPort) {
        self.port = port;
    }

    /// Listens to a service ID. `private_data` is for rejections that the CM sends without asking
    /// the consumer (RFC 4755 6).
    pub fn listen(
        &mut self,
        service_id: ServiceId,
        private_data: [u8; 148],
    ) -> Result<(), CmError> {
        if self.listeners.len() >= self.out.config.listeners_max {
            return Err(CmError::ListenersFull);
        }
        self.listeners.insert(service_id, Arc::new(private_data));
        Ok(())
    }

    pub fn unlisten(&mut self, service_id: ServiceId) {
        self.listeners.remove(&service_id);
    }

    /// A key for a new connection. The upper half counts keys, so a later key is greater until the
    /// count wraps after 2^32. The lower half is a random communication ID that no connection has.
    pub fn new_key(&mut self) -> ConnectionKey {
        self.keys = self.keys.wrapping_add(1);
        loop {
            let comm_id = CommId(self.rng.next_u64() as u32);
            if comm_id != CommId(0) && !self.connections.contains_key(&comm_id) {
                return ConnectionKey(u64::from(self.keys) << 32 | u64::from(comm_id.0));
            }
        }
    }

    /// Requests a connection under a new key; events with the key report the result.
    pub fn connect(
        &mut self,
        now: Time,
        key: ConnectionKey,
        mut connect: Connect,
    ) -> Result<(), CmError> {
        if self.connections.contains_key(&key.comm_id()) {
            return Err(CmError::KeyInUse(key));
        }
        if self.is_full() {
            return Err(CmError::Full);
        }
        connect.req.local_comm_id = key.comm_id();
        connect.req.local_ca_guid = self.out.config.ca_guid;
        let transaction_id = self.transaction_id();
        let connection = Connection::active(now, key, transaction_id, connect, &mut self.out);
        self.enter(connection);
        Ok(())
    }

    /// Drops a request, as if its REQ was lost.
    pub fn ignore(&mut self, now: Time, key: ConnectionKey) {
        let _gone = self.change(now, key, |connection, out| connection.ignore(out));
    }

    /// Probes an established connection: repeats the REQ of the active side, or the REP of the
    /// passive side. A peer without the connection handles a REQ as a new request, and rejects a
    /// REP. A peer with the connection answers a repetition (IBA 12.9.8), which
    /// [`CmEvent::Remembered`] reports.
    pub fn probe(&mut self, now: Time, key: ConnectionKey) -> Result<(), CmError> {
        self.change(now, key, |connection, out| connection.probe(out))?
    }

    /// Accepts a REQ; the communication IDs and our CA GUID are filled in. The queue pair must be
    /// ready to receive: data may arrive before [`CmEvent::Established`].
    pub fn accept(&mut self, now: Time, key: ConnectionKey, rep: Rep) -> Result<(), CmError> {
        self.change(now, key, |connection, out| connection.accept(now, out, rep))?
    }

    /// Confirms a REP by an RTU: the connection is established.
    pub fn confirm(
        &mut self,
        now: Time,
        key: ConnectionKey,
        private_data: [u8; 224],
    ) -> Result<(), CmError> {
        self.change(now, key, |connection, out| connection.confirm(out, private_data))?
    }

    /// Rejects a REQ or a REP. `info` is additional reject information, of which at most 72 bytes
    /// are sent.
    pub fn reject(
        &mut self,
        now: Time,
        key: ConnectionKey,
        reason: RejectReason,
        info: &[u8],
        private_data: [u8; 148],
    ) -> Result<(), CmError> {
        self.change(now, key, |connection, out| {
            connection.reject(now, out, reason, info, private_data)
        })?
    }

    /// Handles data received before the RTU: it counts as an RTU (IBA 12.9.6).
    pub fn handle_data(&mut self, now: Time, key: ConnectionKey) -> Result<(), CmError> {
        self.change(now, key, |connection, out| connection.handle_data(out))?
    }

    /// Ends a connection in any state. An established one is ended by a DREQ, and
    /// [`CmEvent::Ended`] reports the answer. A handshake is ended by a REJ, or after our REP by a
    /// REJ and a DREQ; no [`CmEvent::Ended`] follows.
    pub fn disconnect(
        &mut self,
        now: Time,
        key: ConnectionKey,
        private_data: [u8; 220],
    ) -> Result<(), CmError> {
        let transaction_id = self.transaction_id();
        self.change(now, key, |connection, out| {
            connection.disconnect(now, out, transaction_id, private_data);
        })
    }

    /// Offers an alternate path of an established connection; the communication IDs and the peer's
    /// queue pair are filled in.
    pub fn offer_path(&mut self, now: Time, key: ConnectionKey, lap: Lap) -> Result<(), CmError> {
        let transaction_id = self.transaction_id();
        self.change(now, key, |connection, out| {
            connection.offer_path(now, out, transaction_id, lap)
        })?
    }

    /// Answers an alternate path that the peer offered; the communication IDs are filled in.
    pub fn answer_path(&mut self, now: Time, key: ConnectionKey, apr: Apr) -> Result<(), CmError> {
        self.change(now, key, |connection, out| connection.answer_path(out, apr))?
    }

    /// The REQ of a connection, and the address of the peer's CM.
    pub fn request(&self, key: ConnectionKey) -> Option<(&Req, &MadAddress)> {
        self.get(key).map(|connection| (&*connection.req, &connection.peer))
    }

    /// The negotiated terms of a connection, after the REP.
    pub fn terms(&self, key: ConnectionKey) -> Option<Terms> {
        let connection = self.get(key)?;
        let rep = connection.rep.as_ref()?;
        let (req, peer) = (&connection.req, &connection.peer);
        Some(match connection.role {
            Role::Active => Terms::active(req, rep, peer, &self.port, connection.packet_life_time),
            Role::Passive => Terms::passive(req, rep, peer, &self.port),
        })
    }

    /// The number of connections, those in time-wait included.
    pub fn count(&self) -> usize {
        self.connections.len()
    }

    pub fn poll_transmit(&mut self) -> Option<Envelope> {
        self.out.poll_message()
    }

    pub fn poll_event(&mut self) -> Option<CmEvent> {
        self.out.poll_event()
    }

    pub fn poll_timeout(&self) -> Option<Time> {
        self.index.next_due().map(|(due, _)| due)
    }

    pub fn handle_timeout(&mut self, now: Time) {
        while let Some((_, key)) = self.index.next_due().filter(|(due, _)| *due <= now) {
            let known =
                self.change(now, key, |connection, out| connection.handle_timeout(now, out));
            debug_assert!(known.is_ok(), "what is in the index is a connection");
        }
    }

    pub const fn drops(&self) -> &Drops<CmDrop> {
        self.out.drops()
    }

    fn is_full(&self) -> bool {
        self.connections.len() >= self.out.config.connections_max || self.out.is_full()
    }

    fn get(&self, key: ConnectionKey) -> Option<&Connection> {
        self.connections.get(&key.comm_id()).filter(|it| it.key == key)
    }

    /// Changes a connection, and updates the index.
    fn change<R>(
        &mut self,
        now: Time,
        key: ConnectionKey,
        change: impl FnOnce(&mut Connection, &mut Outbox) -> R,
    ) -> Result<R, CmError> {
        let connection = self.connections.get_mut(&key.comm_id()).filter(|it| it.key == key);
        let connection = connection.ok_or(CmError::NotThere(key))?;
        let (keys, phase) = (connection.keys(), connection.state.phase());
        let result = change(connection, &mut self.out);
        self.index.replace(key, &keys, &connection.keys());
        let phase_now = connection.state.phase();
        if phase_now != phase {
            connection.since = now;
        }
        if phase_now == Phase::Closed {
            self.connections.remove(&key.comm_id());
        }
        Ok(result)
    }

    fn enter(&mut self, connection: Connection) {
        self.index.replace(connection.key, &index::Keys::default(), &connection.keys());
        self.connections.insert(connection.key.comm_id(), connection);
    }

    /// A random transaction ID in the lower 32 bits. The MAD transport uses the upper 32 bits.
    fn transaction_id(&mut self) -> u64 {
        self.rng.next_u64() & u64::from(u32::MAX)
    }
}
