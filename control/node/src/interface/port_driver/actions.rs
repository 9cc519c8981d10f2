//! Carries out actions of control, at the device and in the tables.
//!
//! If the device refuses an action on a connection, control gets an event, and retries after a
//! pause. If it refuses to start or stop the UD queue pair, the interface fails, and is opened
//! again. All other refused actions are kept with the reason, and retried every second.
//!
//! Why address handles are destroyed later: readers may still have an older route table that names
//! them.

use super::counters::DriverConnection;
use super::{BACK_MAX, Known, PortDriver};
use pollux_control::ipoib::{
    Action, Adjacency, ConnectionKey, DatagramAdjacency, LinkProperties, PeerKey, QueuePairEvent,
};
use pollux_dataplane::neighbor::{Connected, DatagramRoute, Route};
use pollux_verbs::time::Time;
use pollux_verbs::*;
use pollux_wire::address::{Gid, Qpn};
use std::net::IpAddr;

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Subject {
    Peer(PeerKey),
    Next(IpAddr),
    Group(Gid),
    Membership(Gid),
}

impl Subject {
    /// The subject of an action; `None` for actions on connections and on the netdev.
    const fn of(action: &Action) -> Option<Self> {
        Some(match *action {
            Action::SetPeer { peer, .. } | Action::RemovePeer { peer } => Self::Peer(peer),
            Action::Bind { ip, .. } | Action::Unbind { ip } => Self::Next(ip),
            Action::BindGroup { mgid, .. } | Action::UnbindGroup { mgid } => Self::Group(mgid),
            Action::Attach { mgid, .. } | Action::Detach { mgid, .. } => Self::Membership(mgid),
            _ => return None,
        })
    }
}

/// Whether an action undoes an earlier one. If the earlier one was refused, nothing is left to
/// undo.
const fn undoes(action: &Action) -> bool {
    matches!(
        action,
        Action::RemovePeer { .. }
            | Action::Unbind { .. }
            | Action::UnbindGroup { .. }
            | Action::Detach { .. }
    )
}

impl PortDriver {
    /// Carries out an action. [`PortDriver::show_changes`] publishes changes of tables.
    pub fn carry_out(&mut self, now: Time, action: Action) {
        let subject = Subject::of(&action);
        let undone = subject.and_then(|subject| self.undone.remove(&subject));
        let Err(why) = self.try_out(now, &action) else { return };
        if undoes(&action) && undone.is_some() {
            return;
        }
        self.counts.refused_actions += 1;
        match (action, subject) {
            (Action::Start(_) | Action::Stop, _) => self.broken = Some(why),
            (action, Some(subject)) => _ = self.undone.insert(subject, (action, why)),
            _ => {}
        }
    }

    pub fn retry(&mut self, now: Time) {
        if self.undone.is_empty() {
            return;
        }
        for (_, (action, _)) in std::mem::take(&mut self.undone) {
            self.carry_out(now, action);
        }
        self.show_changes();
    }

    fn try_out(&mut self, now: Time, action: &Action) -> Result<(), VerbsError> {
        match action {
            Action::Start(link) => self.start(*link),
            Action::Stop => {
                self.link = None;
                self.netdev.stop(&mut *self.device)
            }
            Action::Attach { mgid, mlid } => {
                let qp = self.netdev.datagram_qp();
                self.device.attach_multicast(qp, *mgid, *mlid)?;
                self.attached.insert((*mgid, *mlid));
                Ok(())
            }
            Action::Detach { mgid, mlid } => {
                let qp = self.netdev.datagram_qp();
                self.attached.remove(&(*mgid, *mlid));
                self.device.detach_multicast(qp, *mgid, *mlid)
            }
            Action::AddOwn(address) => {
                self.own.insert(*address);
                Ok(())
            }
            Action::RemoveOwn(address) => {
                self.own.remove(*address);
                Ok(())
            }
            Action::SetPeer { peer, adjacency, .. } => self.set_peer(*peer, adjacency),
            Action::RemovePeer { peer } => there("peer", self.remove_peer(*peer)),
            Action::Bind { ip, peer } => {
                let known = self.known(*peer);
                full(known.is_some_and(|known| self.routes.bind(*ip, known.peer)))
            }
            Action::Unbind { ip } => there("next hop", self.routes.unbind(*ip).is_some()),
            Action::BindGroup { mgid, peer } => {
                let known = self.known(*peer);
                let is_bound = known.is_some_and(|known| self.routes.bind_group(*mgid, known.peer));
                full(is_bound)
            }
            Action::UnbindGroup { mgid } => {
                there("group", self.routes.unbind_group(*mgid).is_some())
            }
            Action::Connect { connection, qp_type, pkey_index, .. } => {
                self.connect(*connection, *qp_type, *pkey_index)
            }
            Action::Modify { connection, attributes, .. } => self.modify(*connection, attributes),
            Action::Disconnect { connection, .. } => {
                self.leaving.push_back((now + BACK_MAX, *connection));
                let known = self.connections.get(connection);
                let ends = known.is_some_and(|it| self.netdev.disconnect(&mut *self.device, it.id));
                there("connection", ends)
            }
        }
    }

    /// Publishes changed tables, and destroys handles that no reader uses any more.
    pub fn show_changes(&mut self) {
        self.routes.publish();
        self.reader.refresh();
        if self.routes.reclaim() == 0 {
            for ah in self.retired.drain(..) {
                self.counts.refused_actions += u64::from(self.device.destroy_ah(ah).is_err());
            }
        }
    }

    fn known(&self, peer: PeerKey) -> Option<Known> {
        self.peers.get(&peer).copied()
    }

    /// Starts the netdev, or changes its link. For another partition, it stops first.
    fn start(&mut self, link: LinkProperties) -> Result<(), VerbsError> {
        let was = self.link.replace(link);
        let same_partition = was.is_some_and(|was| was.pkey_index == link.pkey_index);
        if self.netdev.is_stopped() {
            self.start_again()
        } else if same_partition {
            self.netdev.set_link(&mut *self.device, Self::netdev_link(&link))
        } else {
            self.netdev.stop(&mut *self.device)
        }
    }

    /// Sets the route of a peer. Without a handle or a connection, the peer is unreachable.
    fn set_peer(&mut self, key: PeerKey, adjacency: &Adjacency) -> Result<(), VerbsError> {
        let known = match self.known(key) {
            Some(known) => known,
            None => {
                let (route, handle) = (Route::Unknown, None);
                let peer = self.routes.add_peer(route).ok_or(FULL)?;
                Known { peer, route, handle }
            }
        };
        let vector = match adjacency {
            Adjacency::Datagram(adjacency)
            | Adjacency::Connected { fallback: Some(adjacency), .. } => Some(adjacency.vector),
            _ => None,
        };
        let handle = match (vector, known.handle) {
            (None, _) => Ok(None),
            (Some(vector), Some((same, ah))) if same == vector => Ok(Some((vector, ah))),
            (Some(vector), _) => {
                self.device.create_ah(self.pd, &vector).map(|ah| Some((vector, ah)))
            }
        };
        let refused = handle.as_ref().err().cloned();
        let handle = handle.ok().flatten();
        if known.handle != handle {
            self.retired.extend(known.handle.map(|(_, ah)| ah));
        }
        let found = self.route(adjacency, handle.map(|(_, ah)| ah));
        let route = found.unwrap_or(Route::Unreachable);
        self.routes.set(known.peer, route);
        self.peers.insert(key, Known { route, handle, ..known });
        refused.map_or(there("connection", found.is_some()), Err)
    }

    fn route(&self, adjacency: &Adjacency, ah: Option<Ah>) -> Option<Route> {
        let datagram = |adjacency: &DatagramAdjacency| {
            Some(DatagramRoute { ah: ah?, qpn: adjacency.qpn, mtu: adjacency.mtu })
        };
        Some(match adjacency {
            Adjacency::Unknown => Route::Unknown,
            Adjacency::Pending => Route::Pending,
            Adjacency::Unreachable => Route::Unreachable,
            Adjacency::Datagram(adjacency) => Route::Datagram(datagram(adjacency)?),
            Adjacency::Connected { connection, mtu, fallback } => Route::Connected(Connected {
                connection: self.connections.get(connection)?.id,
                mtu: *mtu,
                fallback: fallback.as_ref().and_then(datagram),
            }),
        })
    }

    fn remove_peer(&mut self, key: PeerKey) -> bool {
        let Some(known) = self.peers.remove(&key) else { return false };
        self.retired.extend(known.handle.map(|(_, ah)| ah));
        self.routes.remove_peer(known.peer)
    }

    fn connect(
        &mut self,
        key: ConnectionKey,
        qp_type: QpType,
        pkey_index: u16,
    ) -> Result<(), VerbsError> {
        let made = self.make(key, qp_type, pkey_index);
        let event = match &made {
            Ok(qpn) => QueuePairEvent::Made { qpn: *qpn },
            Err(_) => QueuePairEvent::Failed,
        };
        self.connection_events.push((key, event));
        made.map(drop)
    }

    fn make(
        &mut self,
        key: ConnectionKey,
        qp_type: QpType,
        pkey_index: u16,
    ) -> Result<Qpn, VerbsError> {
        let id = self.netdev.connect(&mut *self.device, key.0, qp_type)?;
        self.connections.insert(key, DriverConnection::new(id));
        self.awaiting_first_packet.insert(id);
        let init = QpAttributes {
            state: Some(QpState::Init),
            pkey_index: Some(pkey_index),
            port: Some(self.port),
            access: Some(Access::NONE),
            ..QpAttributes::default()
        };
        self.netdev.modify_connection(&mut *self.device, id, &init)?;
        let peering = self.netdev.peering(id);
        peering.map(|peering| peering.qpn).ok_or(NOT_THERE)
    }

    fn modify(&mut self, key: ConnectionKey, attributes: &QpAttributes) -> Result<(), VerbsError> {
        let id = self.connections.get(&key).ok_or(NOT_THERE)?.id;
        let done = self.netdev.modify_connection(&mut *self.device, id, attributes);
        if done.is_err() {
            // A connection continues without its alternate path.
            let is_second_path = attributes.state.is_none() && attributes.alternate_path.is_some();
            let refused = QueuePairEvent::AlternateRefused;
            self.connection_events
                .push((key, if is_second_path { refused } else { QueuePairEvent::Failed }));
        }
        done
    }
}

const NOT_THERE: VerbsError = VerbsError::NoSuch { verb: "action", what: "connection" };
const FULL: VerbsError = VerbsError::Busy { verb: "route", by: "as many others as there may be" };

fn there(what: &'static str, is_there: bool) -> Result<(), VerbsError> {
    if is_there { Ok(()) } else { Err(VerbsError::NoSuch { verb: "action", what }) }
}

fn full(has_room: bool) -> Result<(), VerbsError> {
    if has_room { Ok(()) } else { Err(FULL) }
}
