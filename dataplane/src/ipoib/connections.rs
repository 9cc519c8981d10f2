//! The connections of a netdev, which control creates, changes and ends (RFC 4755 2.2, 3).
//!
//! ```text
//!   create --> Open -- request failed (own or peer's), ERR ------> Failed
//!               |                                                    |
//!               +------------- disconnect --> Ending <---------------+
//!                                               |
//!           all outstanding requests are back,  +--> destroyed, ConnectionEnded
//!           or are given up after a timeout:
//! ```
//!
//! Why the end of a connection takes time: a receive that the queue pair has taken from the SRQ is
//! returned by a completion, and the adapter reports the last-WQE-reached event when there are no
//! more. If the queue pair were destroyed before that, the buffer would be leaked. With an adapter
//! that reports neither, the buffer is lost.

use super::queue::{Receives, SendQueue};
use super::request::{GENERATION_BITS, Request, SLOT_BITS};
use super::send::free;
use super::{Netdev, NetdevConfig, NetdevEvent};
use crate::neighbor::ConnectionId;
use pollux_mem::Buf;
use pollux_verbs::*;
use pollux_wire::address::Qpn;
use std::collections::BTreeMap;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Peering {
    /// The key that the caller of [`Netdev::connect`] has chosen.
    pub key: u64,
    /// RC or UC.
    pub qp_type: QpType,
    pub qp: Qp,
    pub qpn: Qpn,
}

/// Packet counters of a connection, by which control finds idle connections.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ConnectionUse {
    pub sent: u64,
    pub received: u64,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    Open,
    Failed,
    Ending,
}

#[derive(Debug)]
pub(super) struct Connection {
    pub(super) peering: Peering,
    pub(super) sends: SendQueue,
    pub(super) counts: ConnectionUse,
    generation: u32,
    state: State,
    /// The receives of a connection that does not use the SRQ.
    pub(super) own: Option<Receives>,
    /// Whether the connection is in `Connections::wanting`.
    is_wanting: bool,
    /// The last-WQE-reached event arrived: no receive from the SRQ is outstanding.
    last_wqe_reached: bool,
    /// The connection no longer waits for its outstanding requests.
    is_given_up: bool,
}

impl Connection {
    /// Whether a request ID, which has the low bits of a generation, belongs to this connection.
    #[inline]
    pub(super) fn is_of(&self, generation: u32) -> bool {
        self.generation & ((1 << GENERATION_BITS) - 1) == generation
    }

    /// The request ID of the connection's sends, with number 0.
    #[inline]
    pub(super) fn request(&self, slot: u32) -> Request {
        Request::Connected { slot, generation: self.generation, number: 0 }
    }

    fn is_drained(&self) -> bool {
        let no_receives = match self.own {
            Some(receives) => receives.posted == 0,
            None => self.last_wqe_reached,
        };
        no_receives && self.sends.is_drained()
    }
}

#[derive(Debug)]
pub(super) struct Connections {
    /// `None` if connections are disabled.
    pub(super) srq: Option<Srq>,
    pub(super) shared: Receives,
    slots: Vec<Option<Connection>>,
    free: Vec<u32>,
    generation: u32,
    by_qpn: BTreeMap<Qpn, u32>,
    by_qp: BTreeMap<Qp, u32>,
    /// The result of the last lookup in `by_qpn`, because the next completion is often of the same
    /// connection.
    last: (Qpn, u32),
    pub(super) ending: Vec<u32>,
    /// Slots of connections with their own receives that may need more.
    pub(super) wanting: Vec<u32>,
}

impl Connections {
    pub(super) fn new<D: Device + ?Sized>(
        device: &mut D,
        pd: Pd,
        config: &NetdevConfig,
    ) -> Result<Self, VerbsError> {
        let receives = config.connected_receives;
        let srq = match receives {
            0 => None,
            _ => Some(device.create_srq(pd, receives, 1)?),
        };
        Ok(Self {
            srq,
            shared: Receives::new(receives),
            slots: Vec::new(),
            free: Vec::new(),
            generation: 0,
            by_qpn: BTreeMap::new(),
            by_qp: BTreeMap::new(),
            last: (Qpn(u32::MAX), 0),
            ending: Vec::new(),
            wanting: Vec::new(),
        })
    }

    #[inline]
    pub(super) fn at(&mut self, slot: u32) -> Option<&mut Connection> {
        self.slots.get_mut(slot as usize)?.as_mut()
    }

    fn find(&self, id: ConnectionId) -> Option<&Connection> {
        let connection = self.slots.get(id.slot as usize)?.as_ref();
        connection.filter(|connection| connection.generation == id.generation)
    }

    fn get(&mut self, id: ConnectionId) -> Option<&mut Connection> {
        self.at(id.slot).filter(|connection| connection.generation == id.generation)
    }

    #[inline]
    pub(super) fn is_open(&self, id: ConnectionId) -> bool {
        matches!(
            self.slots.get(id.slot as usize),
            Some(Some(one)) if one.generation == id.generation && one.state == State::Open
        )
    }

    #[inline]
    pub(super) fn has_space(&self, slot: u32) -> bool {
        let one = self.slots.get(slot as usize).and_then(Option::as_ref);
        one.is_some_and(|one| one.sends.free_slots() > 0)
    }

    #[inline]
    pub(super) fn of_qpn(&mut self, qpn: Qpn) -> Option<u32> {
        if self.last.0 != qpn {
            self.last = (qpn, *self.by_qpn.get(&qpn)?);
        }
        Some(self.last.1)
    }

    fn of_qp(&self, qp: Qp) -> Option<u32> {
        self.by_qp.get(&qp).copied()
    }

    pub(super) fn id(&self, slot: u32) -> Option<ConnectionId> {
        let generation = self.slots.get(slot as usize)?.as_ref()?.generation;
        Some(ConnectionId { slot, generation })
    }

    pub(super) fn have_sent(&self) -> bool {
        self.slots.iter().flatten().all(|one| one.sends.is_drained())
    }

    pub(super) fn is_empty(&self) -> bool {
        self.by_qpn.is_empty()
    }

    /// Counts a completed receive of a connection with its own receives.
    pub(super) fn own_taken(&mut self, slot: u32) {
        if let Some(receives) = self.at(slot).and_then(|one| one.own.as_mut()) {
            receives.posted = receives.posted.saturating_sub(1);
        }
        self.want(slot);
    }

    /// Adds a connection to `wanting`, if it has its own receives.
    pub(super) fn want(&mut self, slot: u32) {
        let connection = self.at(slot).filter(|one| one.own.is_some() && !one.is_wanting);
        if let Some(connection) = connection {
            connection.is_wanting = true;
            self.wanting.push(slot);
        }
    }

    /// Marks a connection as removed from `wanting`. Returns its receives if it is open.
    pub(super) fn no_longer_wanting(&mut self, slot: u32) -> Option<(Qp, &mut Receives)> {
        let connection = self.at(slot)?;
        connection.is_wanting = false;
        let is_open = connection.state == State::Open;
        let receives = connection.own.as_mut().filter(|_| is_open)?;
        Some((connection.peering.qp, receives))
    }

    /// Counts a packet received on a connection; returns the connection's ID.
    #[inline]
    pub(super) fn received(&mut self, slot: u32) -> Option<ConnectionId> {
        let connection = self.at(slot)?;
        connection.counts.received += 1;
        Some(ConnectionId { slot, generation: connection.generation })
    }

    fn insert(&mut self, connection: Connection) -> ConnectionId {
        let generation = connection.generation;
        let slot = self.free.pop().unwrap_or(self.slots.len() as u32);
        self.by_qpn.insert(connection.peering.qpn, slot);
        self.by_qp.insert(connection.peering.qp, slot);
        match self.slots.get_mut(slot as usize) {
            Some(entry) => *entry = Some(connection),
            None => self.slots.push(Some(connection)),
        }
        ConnectionId { slot, generation }
    }

    fn remove(&mut self, slot: u32) -> Option<Connection> {
        let connection = self.slots.get_mut(slot as usize)?.take()?;
        self.free.push(slot);
        self.by_qpn.remove(&connection.peering.qpn);
        self.by_qp.remove(&connection.peering.qp);
        self.last = (Qpn(u32::MAX), 0);
        Some(connection)
    }

    pub(super) fn destroy<D: Device + ?Sized>(
        &mut self,
        device: &mut D,
        mut free: impl FnMut(Buf),
    ) -> Result<(), VerbsError> {
        for connection in self.slots.iter_mut().filter_map(Option::as_mut) {
            device.destroy_qp(connection.peering.qp)?;
            connection.sends.clear(&mut free);
        }
        self.slots.clear();
        self.srq.take().map_or(Ok(()), |srq| device.destroy_srq(srq))
    }
}

impl Netdev {
    /// Creates a connection with this key, and its queue pair in RESET. [`Netdev::peering`] returns
    /// the QPN for the REQ or the REP.
    pub fn connect<D: Device + ?Sized>(
        &mut self,
        device: &mut D,
        key: u64,
        qp_type: QpType,
    ) -> Result<ConnectionId, VerbsError> {
        let limit = self.config.connections_max.min(1 << SLOT_BITS);
        let connections = &mut self.connections;
        let count = connections.slots.len() - connections.free.len();
        let (verb, max) = ("connect", u64::from(limit));
        if count as u64 >= max {
            return Err(VerbsError::Limit { verb, limit: "connections_max", max });
        }
        let Some(srq) = connections.srq else {
            return Err(VerbsError::Unsupported {
                verb,
                capability: "connections (connected_receives is 0)",
            });
        };
        let shares = qp_type == QpType::Rc || self.config.uc_shares;
        let qp = device.create_qp(&QpInit {
            qp_type,
            pd: self.pd,
            send_cq: self.cq,
            recv_cq: self.cq,
            srq: shares.then_some(srq),
            send_requests_max: SendQueue::capacity(self.config.connected_sends),
            recv_requests_max: if shares { 0 } else { self.config.own_receives },
            send_sges_max: 1,
            recv_sges_max: 1,
            inline_bytes_max: self.config.inline_bytes_max,
            signal_all: false,
        })?;
        connections.generation = connections.generation.wrapping_add(1);
        let connection = Connection {
            sends: SendQueue::new(self.config.connected_sends),
            counts: ConnectionUse::default(),
            generation: connections.generation,
            state: State::Open,
            peering: Peering { key, qp_type, qp, qpn: device.qpn(qp)? },
            is_wanting: false,
            own: (!shares).then_some(Receives::new(self.config.own_receives)),
            last_wqe_reached: false,
            is_given_up: false,
        };
        Ok(connections.insert(connection))
    }

    /// Modifies a connection's queue pair. From INIT on the queue pair has receives, so it can be
    /// in RTR before the peer learns its QPN. A change to ERR makes the connection fail without an
    /// event. The connection keeps its QPN until it ends.
    pub fn modify_connection<D: Device + ?Sized>(
        &mut self,
        device: &mut D,
        id: ConnectionId,
        change: &QpAttributes,
    ) -> Result<(), VerbsError> {
        let what = VerbsError::NoSuch { verb: "modify_connection", what: "connection" };
        let connection = self.connections.get(id).ok_or(what)?;
        if change.state == Some(QpState::Err) && connection.state == State::Open {
            connection.state = State::Failed;
        }
        device.modify_qp(connection.peering.qp, change)?;
        self.connections.want(id.slot);
        self.replenish(device);
        Ok(())
    }

    /// Begins to end a connection. Outstanding packets are lost and counted.
    /// [`NetdevEvent::ConnectionEnded`] follows when all buffers are returned. Returns `false` if
    /// there is no such connection or it is ending already.
    pub fn disconnect<D: Device + ?Sized>(&mut self, device: &mut D, id: ConnectionId) -> bool {
        let connections = &mut self.connections;
        let Some(connection) = connections.get(id) else { return false };
        if connection.state == State::Ending {
            return false;
        }
        connection.state = State::Ending;
        let error = QpAttributes { state: Some(QpState::Err), ..QpAttributes::default() };
        let qp = connection.peering.qp;
        let was = device.query_qp(qp).map(|(state, _)| state);
        let is_in_error = device.modify_qp(qp, &error).is_ok();
        // Before RTR the queue pair has taken no receive, and there may be no last-WQE-reached
        // event.
        let took_none = matches!(was, Ok(QpState::Reset | QpState::Init)) || !is_in_error;
        connection.last_wqe_reached |= took_none;
        connections.ending.push(id.slot);
        true
    }

    /// Makes the next poll destroy an ending connection even if not all of its buffers are
    /// returned. Control calls it after a timeout. A receive that the adapter does not return is
    /// leaked. Returns `false` if the connection is not ending or was given up before.
    pub fn give_up(&mut self, id: ConnectionId) -> bool {
        let connection = self.connections.get(id);
        let Some(connection) = connection.filter(|one| one.state == State::Ending) else {
            return false;
        };
        !std::mem::replace(&mut connection.is_given_up, true)
    }

    /// `None` if connections are disabled.
    pub fn srq(&self) -> Option<Srq> {
        self.connections.srq
    }

    pub fn connection_of(&self, qp: Qp) -> Option<ConnectionId> {
        self.connections.id(self.connections.of_qp(qp)?)
    }

    pub fn peering(&self, id: ConnectionId) -> Option<Peering> {
        self.connections.find(id).map(|connection| connection.peering)
    }

    pub fn connection_use(&self, id: ConnectionId) -> Option<ConnectionUse> {
        self.connections.find(id).map(|connection| connection.counts)
    }

    /// The number of a connection's oldest outstanding send. While it stays the same, the peer
    /// acknowledges nothing.
    pub fn oldest_send(&self, id: ConnectionId) -> Option<u32> {
        self.connections.find(id)?.sends.oldest()
    }

    /// Handles an async event. Returns whether it concerns a connection of this netdev.
    pub fn handle_event(&mut self, event: &AsyncEvent) -> bool {
        let (AsyncEvent::QpFatal(qp)
        | AsyncEvent::QpRequestError(qp)
        | AsyncEvent::QpAccessError(qp)
        | AsyncEvent::LastWqeReached(qp)) = *event
        else {
            return false;
        };
        let Some(slot) = self.connections.of_qp(qp) else { return false };
        if matches!(event, AsyncEvent::LastWqeReached(_))
            && let Some(connection) = self.connections.at(slot)
        {
            connection.last_wqe_reached = true;
        }
        // After each of these events, the queue pair is in the error state.
        self.fail(slot, None);
        true
    }

    /// Marks an open connection as failed, and queues an event.
    pub(super) fn fail(&mut self, slot: u32, status: Option<CompletionStatus>) {
        let Some(id) = self.connections.id(slot) else { return };
        let Some(connection) = self.connections.get(id) else { return };
        if connection.state == State::Open {
            connection.state = State::Failed;
            let peering = connection.peering;
            let event = NetdevEvent::ConnectionFailed { connection: id, peering, status };
            self.events.push_back(event);
        }
    }

    /// Destroys ending connections whose buffers are returned. The completion queue must be empty.
    pub(super) fn reap<D: Device + ?Sized>(&mut self, device: &mut D) {
        for slot in std::mem::take(&mut self.connections.ending) {
            let Some(id) = self.connections.id(slot) else { continue };
            let Some(connection) = self.connections.at(slot) else { continue };
            let peering = connection.peering;
            let is_over = connection.is_drained() || connection.is_given_up;
            if !is_over || device.destroy_qp(peering.qp).is_err() {
                self.connections.ending.push(slot);
                continue;
            }
            let Self { small, large, .. } = self;
            if let Some(mut ended) = self.connections.remove(slot) {
                ended.sends.clear(|buf| free(small, large, buf));
            }
            self.events.push_back(NetdevEvent::ConnectionEnded { connection: id, peering });
        }
    }
}
