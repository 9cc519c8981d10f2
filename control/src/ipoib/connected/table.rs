//! The connection table of an interface. It counts the connections of each worker and of each port,
//! so that the cost of a REQ does not grow with the table. Only timers and operators walk over all
//! connections; tests count the walks.

use super::Address;
use super::connection::{Connection, State};
use crate::effects::{ConnectionKey, WorkerId};
use pollux_verbs::time::Time;
use pollux_wire::address::Gid;
use pollux_wire::ip::link_address::LinkAddress;
use std::collections::{BTreeMap, BTreeSet};

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Count {
    pub(super) live: usize,
    pub(super) ending: usize,
}

impl Count {
    pub(super) const fn total(self) -> usize {
        self.live + self.ending
    }

    const fn of(&mut self, connection: &Connection) -> &mut usize {
        match connection.is_ending() {
            true => &mut self.ending,
            false => &mut self.live,
        }
    }
}

#[derive(Debug, Default)]
pub(super) struct Table {
    all: BTreeMap<ConnectionKey, Connection>,
    of_peers: BTreeSet<(Address, ConnectionKey)>,
    of_workers: BTreeMap<WorkerId, Count>,
    of_ports: BTreeMap<(Gid, WorkerId), Count>,
    #[cfg(test)]
    walked: std::cell::Cell<usize>,
}

impl Table {
    pub(super) fn get(&self, key: &ConnectionKey) -> Option<&Connection> {
        self.all.get(key)
    }

    /// For a change to the ending state use [`Table::set_ending`].
    pub(super) fn get_mut(&mut self, key: &ConnectionKey) -> Option<&mut Connection> {
        self.all.get_mut(key)
    }

    pub(super) fn insert(&mut self, key: ConnectionKey, connection: Connection) {
        self.count(&connection, |count| *count += 1);
        self.of_peers.insert((connection.peer, key));
        self.all.insert(key, connection);
    }

    pub(super) fn remove(&mut self, key: ConnectionKey) -> Option<Connection> {
        let connection = self.all.remove(&key)?;
        self.of_peers.remove(&(connection.peer, key));
        self.count(&connection, |count| *count -= 1);
        Some(connection)
    }

    /// Sets the ending state of a connection; returns the previous one.
    pub(super) fn set_ending(
        &mut self,
        now: Time,
        key: ConnectionKey,
        ending: State,
    ) -> Option<State> {
        let mut connection = self.remove(key)?;
        let was = std::mem::replace(&mut connection.state, ending);
        connection.since = now;
        self.insert(key, connection);
        Some(was)
    }

    /// The connections of a peer, the oldest first.
    pub(super) fn of_peer(
        &self,
        peer: Address,
    ) -> impl DoubleEndedIterator<Item = (ConnectionKey, &Connection)> + Clone {
        let range = (peer, ConnectionKey(0))..=(peer, ConnectionKey(u64::MAX));
        self.of_peers.range(range).filter_map(|(_, key)| Some((*key, self.all.get(key)?)))
    }

    pub(super) fn keys_of_peer(&self, peer: Address) -> Vec<ConnectionKey> {
        self.of_peer(peer).map(|(key, _)| key).collect()
    }

    pub(super) fn len(&self) -> usize {
        self.all.len()
    }

    pub(super) fn of_worker(&self, worker: WorkerId) -> Count {
        self.of_workers.get(&worker).copied().unwrap_or_default()
    }

    /// Connections of a worker of ours with a port.
    pub(super) fn of_port(&self, gid: Gid, worker: WorkerId) -> Count {
        self.of_ports.get(&(gid, worker)).copied().unwrap_or_default()
    }

    /// All connections. The cost is linear.
    pub(super) fn iter(&self) -> impl Iterator<Item = (ConnectionKey, &Connection)> {
        #[cfg(test)]
        self.walked.set(self.walked.get() + self.all.len());
        self.all.iter().map(|(key, connection)| (*key, connection))
    }

    #[cfg(test)]
    pub(super) fn walked(&self) -> usize {
        self.walked.get()
    }

    fn count(&mut self, connection: &Connection, change: impl Fn(&mut usize)) {
        let Connection { peer, worker, .. } = *connection;
        let port = (gid_of(peer), worker);
        let of_port = self.of_ports.entry(port).or_default();
        change(of_port.of(connection));
        if of_port.total() == 0 {
            self.of_ports.remove(&port);
        }
        let of_worker = self.of_workers.entry(worker).or_default();
        change(of_worker.of(connection));
        if of_worker.total() == 0 {
            self.of_workers.remove(&worker);
        }
    }
}

fn gid_of(peer: Address) -> Gid {
    LinkAddress::parse(&peer).gid
}

#[cfg(test)]
impl Table {
    pub(super) fn check(&self) {
        let mut anew = Self::default();
        for connection in self.all.values() {
            anew.count(connection, |count| *count += 1);
        }
        assert_eq!((&anew.of_workers, &anew.of_ports), (&self.of_workers, &self.of_ports));
    }
}
