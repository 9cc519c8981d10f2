//! Settings that change while the interface runs. Addresses keep their state, and neighbors and
//! connections stay, unless the change concerns them.

use super::{IpoibInterface, PeerKey};
use crate::ipoib::connected::Policy;
use crate::thread_check::assert_no_worker_thread;
use pollux_verbs::time::Time;
use pollux_wire::ip::link_address::LinkAddress;
use std::net::IpAddr;

impl IpoibInterface {
    /// Adds a default router. Returns `false` if there are too many.
    pub fn add_router(&mut self, now: Time, ip: IpAddr) -> bool {
        assert_no_worker_thread();
        let is_added = self.routes.add_router(ip);
        if is_added && !self.config.routers.contains(&ip) {
            self.config.routers.push(ip);
        }
        self.pump(now);
        is_added
    }

    /// Removes a default router, unless a lease names it too.
    pub fn remove_router(&mut self, now: Time, ip: IpAddr) {
        assert_no_worker_thread();
        self.config.routers.retain(|router| *router != ip);
        let leased = self.lease.iter().flat_map(|lease| &lease.routers);
        if !leased.copied().any(|router| IpAddr::V4(router) == ip) {
            self.routes.remove_router(ip);
        }
        self.pump(now);
    }

    /// Sets a static neighbor. Returns `false` if the neighbor table is full.
    pub fn set_neighbor(&mut self, now: Time, ip: IpAddr, link: LinkAddress) -> bool {
        assert_no_worker_thread();
        self.config.neighbors.retain(|(known, _)| *known != ip);
        self.config.neighbors.push((ip, link));
        let is_set = !self.is_up() || self.neighbors.set_permanent(now, ip, link);
        self.pump(now);
        is_set
    }

    /// Removes a static neighbor. The next packet to it starts address resolution.
    pub fn remove_neighbor(&mut self, now: Time, ip: IpAddr) {
        assert_no_worker_thread();
        self.config.neighbors.retain(|(known, _)| *known != ip);
        self.neighbors.remove(ip);
        self.pump(now);
    }

    /// Sets the policy of all peers without a policy of their own. It must not turn connected mode
    /// on or off, because our link address has announced the mode.
    pub fn set_policy(&mut self, now: Time, policy: Policy) {
        assert_no_worker_thread();
        debug_assert_eq!(policy == Policy::Ud, self.config.peer.policy == Policy::Ud);
        self.config.peer.policy = policy;
        self.apply_policies(now);
    }

    /// Sets the policy of the peer that an address leads to, or removes it.
    pub fn set_peer_policy(&mut self, now: Time, ip: IpAddr, policy: Option<Policy>) {
        assert_no_worker_thread();
        match policy {
            Some(policy) => drop(self.config.policies.insert(ip, policy)),
            None => drop(self.config.policies.remove(&ip)),
        }
        self.apply_policies(now);
    }

    /// Ends connections of another type than the policy wants. The next packets start new ones.
    fn apply_policies(&mut self, now: Time) {
        let peers: Vec<PeerKey> = self.peers.all.keys().copied().collect();
        for key in peers {
            let wanted = self.wants_connection(key);
            let Some(link) = self.peers.all.get(&key).map(|peer| peer.link) else { continue };
            self.connections.end_others(now, &link, wanted);
            self.handle_connection_events(now);
            self.update_adjacencies(now, key);
        }
        self.pump(now);
    }
}
