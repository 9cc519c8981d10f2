//! The link addresses of next hops at an Ethernet interface. Control writes them, and workers read
//! them.

use super::ethernet::NextHopAddresses;
use pollux_dataplane::neighbor::{Peer, RouteTable};
use pollux_wire::address::Scope;
use pollux_wire::ethernet::MacAddress;
use pollux_wire::keys::PKey;
use std::collections::BTreeMap;
use std::net::IpAddr;

pub(super) struct NextHops {
    table: RouteTable<Option<MacAddress>>,
    peers: BTreeMap<IpAddr, Peer>,
    has_changed: bool,
}

impl NextHops {
    /// The seed must be secret.
    pub(super) fn new(seed: u64) -> Self {
        // The addresses of Ethernet groups are computed, so the table has no groups, and its
        // partition does not matter.
        let table = RouteTable::new(PKey::DEFAULT, Scope::LINK_LOCAL, seed);
        Self { table, peers: BTreeMap::new(), has_changed: false }
    }

    pub(super) fn reader(&self) -> NextHopAddresses {
        self.table.reader()
    }

    /// Sets the address of a next hop; `None` if it has none.
    pub(super) fn set(&mut self, ip: IpAddr, address: Option<MacAddress>) {
        self.has_changed = true;
        match (self.peers.get(&ip), address) {
            (Some(peer), Some(_)) => _ = self.table.set(*peer, address),
            (None, Some(_)) => {
                // If the table is full, control sends the packets to this next hop.
                let Some(peer) = self.table.add_peer(address) else { return };
                match self.table.bind(ip, peer) {
                    true => _ = self.peers.insert(ip, peer),
                    false => _ = self.table.remove_peer(peer),
                }
            }
            (_, None) => {
                if let Some(peer) = self.peers.remove(&ip) {
                    self.table.unbind(ip);
                    self.table.remove_peer(peer);
                }
            }
        }
    }

    pub(super) fn publish(&mut self) {
        if std::mem::take(&mut self.has_changed) {
            self.table.publish();
            self.table.reclaim();
        }
    }
}
