//! Connections to a peer that is gone, or that may be another one by now, as control of the link
//! reports it.

use super::connection::Probe;
use super::{Tcp, TcpError, TcpId, push};
use crate::stack::Stack;
use crate::stack::mtu::Mtus;
use crate::stack::outbox::Outbox;
use pollux_verbs::time::Time;
use smoltcp::socket::tcp::State;
use std::net::IpAddr;

impl Stack {
    /// The peer is gone: its connections end.
    pub fn handle_peer_gone(&mut self, peer: IpAddr) {
        for id in self.tcp.connections_to(peer) {
            self.tcp.abort(id, TcpError::PeerGone);
        }
    }

    /// The peer may have restarted: its connections are probed. A peer that has lost them resets
    /// them; else they would learn that by their next segments, which may be far away.
    pub fn handle_peer_moved(&mut self, peer: IpAddr) {
        let ids = self.tcp.connections_to(peer);
        self.tcp.to_probe.extend(ids);
    }
}

impl Tcp {
    /// In the order of their creation, so that a seed replays.
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
