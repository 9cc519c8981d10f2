//! Connections to a peer that is gone or may have restarted, as reported by the control plane.

use super::connection::Probe;
use super::{Tcp, TcpError, TcpId, push};
use crate::stack::Stack;
use crate::stack::mtu::Mtus;
use crate::stack::outbox::Outbox;
use pollux_verbs::time::Time;
use smoltcp::socket::tcp::State;
use std::net::IpAddr;

impl Stack {
    /// Ends all connections to a peer that is gone.
    pub fn handle_peer_gone(&mut self, peer: IpAddr) {
        for id in self.tcp.connections_to(peer) {
            self.tcp.abort(id, TcpError::PeerGone);
        }
    }

    /// Probes all connections to a peer that may have restarted. A peer that has lost them answers
    /// with resets. Without the probes, an idle connection would stay open until its next segment.
    pub fn handle_peer_moved(&mut self, peer: IpAddr) {
        let ids = self.tcp.connections_to(peer);
        self.tcp.to_probe.extend(ids);
    }
}

impl Tcp {
    /// The connections to a peer, in the order of their IDs, so that a seed replays.
    fn connections_to(&self, peer: IpAddr) -> Vec<TcpId> {
        let to_peer = self.by_addresses.iter().filter(|((_, remote), _)| remote.ip() == peer);
        let mut ids: Vec<_> = to_peer.map(|(_, id)| *id).collect();
        ids.sort_unstable();
        ids
    }

    /// Probes connections, as many as the outbox has space for. The others wait.
    #[cold]
    pub(super) fn probe_moved(&mut self, now: Time, mtus: &Mtus, out: &mut Outbox) {
        while out.has_space()
            && let Some(id) = self.to_probe.pop_front()
        {
            let Some(connection) = self.connections.get_mut(id) else { continue };
            let is_open = !matches!(connection.state(), State::SynSent | State::SynReceived);
            if !is_open || connection.is_detached {
                continue;
            }
            let at = connection.at(now, mtus);
            if connection.probe(at, &mut self.engine, &mut self.draft) == Probe::Written {
                push(out, &self.draft);
            }
        }
    }
}
