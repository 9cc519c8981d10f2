//! What control wants to be done at the device and in the tables.
//!
//! Nothing here fails as a whole: what is refused is counted, and of a connection control is told.
//! A route that names a handle is written before the handle that it named goes: handles wait until
//! no reader has a table that names them.

use super::mover::{BACK_MAX, Known, Mover};
use pollux_control::interface::{
    Action, ConnectionKey, ConnectionNews, DatagramWay, Link, PeerKey, Way,
};
use pollux_dataplane::neighbour::{Connected, Datagram, Route};
use pollux_verbs::time::Time;
use pollux_verbs::*;
use pollux_wire::ip::link_address::LinkAddress;

impl Mover {
    /// Does what control wants. What it changes in tables shows after [`Mover::show_changes`].
    pub fn carry_out(&mut self, now: Time, action: Action) {
        let done = match action {
            Action::Start(link) => self.start(link).is_ok(),
            Action::Stop => {
                self.link = None;
                self.station.stop(&mut *self.device).is_ok()
            }
            Action::Attach { mgid, mlid } => {
                let qp = self.station.datagram_qp();
                let is_heard = self.management.in_band().is_none_or(|it| it.hear(mgid));
                self.device.attach_multicast(qp, mgid, mlid).is_ok() && is_heard
            }
            Action::Detach { mgid, mlid } => {
                let qp = self.station.datagram_qp();
                if let Some(in_band) = self.management.in_band() {
                    in_band.hear_no_more(mgid);
                }
                self.device.detach_multicast(qp, mgid, mlid).is_ok()
            }
            Action::AddOwn(address) => {
                self.own.insert(address);
                true
            }
            Action::RemoveOwn(address) => {
                self.own.remove(address);
                true
            }
            Action::SetPeer { peer, way } => self.set_peer(peer, &way).is_some(),
            Action::RemovePeer { peer } => self.remove_peer(peer),
            Action::Bind { ip, peer } => {
                self.known(peer).is_some_and(|known| self.routes.bind(ip, known.peer))
            }
            Action::Unbind { ip } => self.routes.unbind(ip).is_some(),
            Action::BindGroup { mgid, peer } => {
                self.known(peer).is_some_and(|known| self.routes.bind_group(mgid, known.peer))
            }
            Action::UnbindGroup { mgid } => self.routes.unbind_group(mgid).is_some(),
            Action::Connect { connection, qp_type, peer, pkey_index } => {
                self.connect(connection, qp_type, peer, pkey_index)
            }
            Action::Modify { connection, attributes } => self.modify(connection, &attributes),
            Action::Disconnect { connection } => {
                self.leaving.push_back((now + BACK_MAX, connection));
                let id = self.connections.get(&connection);
                id.is_some_and(|id| self.station.disconnect(&mut *self.device, *id))
            }
        };
        self.counts.refused_actions += u64::from(!done);
    }

    /// Shows what was changed to whoever sends, and lets go of what nobody can name any more.
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

    /// A station that is started takes this as a change; in another partition, it has to stop
    /// first.
    fn start(&mut self, link: Link) -> Result<(), VerbsError> {
        let was = self.link.replace(link);
        let same_partition = was.is_some_and(|was| was.pkey_index == link.pkey_index);
        if self.station.is_stopped() {
            self.start_again()
        } else if same_partition {
            self.station.set_link(&mut *self.device, Self::station_link(&link))
        } else {
            self.station.stop(&mut *self.device)
        }
    }

    fn set_peer(&mut self, key: PeerKey, way: &Way) -> Option<()> {
        let known = match self.known(key) {
            Some(known) => known,
            None => {
                let (route, handle) = (Route::Unknown, None);
                Known { peer: self.routes.add_peer(route)?, route, handle }
            }
        };
        let vector = match way {
            Way::Datagram(way) | Way::Connected { fallback: Some(way), .. } => Some(way.vector),
            _ => None,
        };
        let handle = match (vector, known.handle) {
            (None, _) => None,
            (Some(vector), Some((same, ah))) if same == vector => Some((vector, ah)),
            (Some(vector), _) => {
                let ah = self.device.create_ah(self.pd, &vector);
                ah.ok().map(|ah| (vector, ah))
            }
        };
        if known.handle != handle {
            self.retired.extend(known.handle.map(|(_, ah)| ah));
        }
        let found = self.route(way, handle.map(|(_, ah)| ah));
        let route = found.unwrap_or(Route::Unreachable);
        self.routes.set(known.peer, route);
        self.peers.insert(key, Known { route, handle, ..known });
        found.map(drop)
    }

    fn route(&self, way: &Way, ah: Option<Ah>) -> Option<Route> {
        let datagram = |way: &DatagramWay| Some(Datagram { ah: ah?, qpn: way.qpn, mtu: way.mtu });
        Some(match way {
            Way::Unknown => Route::Unknown,
            Way::Pending => Route::Pending,
            Way::Unreachable => Route::Unreachable,
            Way::Datagram(way) => Route::Datagram(datagram(way)?),
            Way::Connected { connection, mtu, fallback } => Route::Connected(Connected {
                connection: *self.connections.get(connection)?,
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
        peer: LinkAddress,
        pkey_index: u16,
    ) -> bool {
        let Ok(id) = self.station.connect(&mut *self.device, peer, qp_type) else {
            self.news.push((key, ConnectionNews::Failed));
            return false;
        };
        self.connections.insert(key, id);
        self.keys.insert(id, key);
        let init = QpAttributes {
            state: Some(QpState::Init),
            pkey_index: Some(pkey_index),
            port: Some(self.port),
            access: Some(Access::NONE),
            ..QpAttributes::default()
        };
        let is_made = self.station.modify_connection(&mut *self.device, id, &init).is_ok();
        let news = match self.station.peering(id) {
            Some(peering) if is_made => ConnectionNews::Made { qpn: peering.qpn },
            _ => ConnectionNews::Failed,
        };
        self.news.push((key, news));
        is_made
    }

    fn modify(&mut self, key: ConnectionKey, attributes: &QpAttributes) -> bool {
        let Some(id) = self.connections.get(&key) else { return false };
        let is_done = self.station.modify_connection(&mut *self.device, *id, attributes).is_ok();
        if !is_done {
            self.news.push((key, ConnectionNews::Failed));
        }
        is_done
    }
}
