//! Two ends joined in virtual time, and consumers that do what consumers do.

mod world;

mod handshake;
mod hostile;
mod rules;
mod table;
mod weather;

use super::connection::Connection;
use super::{Cm, Phase};
use crate::effects::ConnectionKey;

impl Cm {
    fn connections(&self) -> impl Iterator<Item = &Connection> {
        self.connections.values()
    }

    fn phase(&self, key: ConnectionKey) -> Option<Phase> {
        self.get(key).map(|connection| connection.state.phase())
    }

    /// The keys of all connections.
    pub(crate) fn keys(&self) -> impl Iterator<Item = ConnectionKey> {
        self.connections.values().map(|connection| connection.key)
    }
}
