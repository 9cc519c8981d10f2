//! Paths through a net, for direct rings that bypass it.
//!
//! If the net would only forward between two adapters with shared memory, they can exchange frames
//! without it. A [`BypassPath`] lists the ports that would send, so that the traffic can be counted
//! there. The search for a path changes and counts nothing.

use super::{HOPS_MAX, Net};
use crate::link::Wire;
use crate::switch::{self, Transit};
use crate::topology::End;
use pollux_hca::head::FrameRoute;
use pollux_wire::address::Lid;

/// The ports that send a frame, in order, each with the port at the other end.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct BypassPath {
    links: Vec<[End; 2]>,
}

impl BypassPath {
    pub fn end(&self) -> Option<End> {
        self.links.last().map(|link| link[1])
    }
}

impl Net {
    /// The path of frames from an adapter. `None` if there is no path to another adapter, if links
    /// take time, or if anything on the path needs packets.
    pub fn bypass_path(&self, from: End, route: FrameRoute) -> Option<BypassPath> {
        if self.tap.is_some() || self.is_paced || self.has_routers || route.dlid.is_multicast() {
            return None;
        }
        let first = self.subnet.port(from);
        let mut vl = first.lane(route.sl).filter(|_| first.sends_data())?;
        let (mut at, mut links) = (from, Vec::new());
        loop {
            let (peer, _) = self.subnet.topology().peer(at)?;
            if !self.subnet.port(at).is_linked()
                || !is_plain(self.wire_at(at))
                || links.len() >= HOPS_MAX.into()
            {
                return None;
            }
            links.push([at, peer]);
            let next = &self.subnet.nodes()[peer.node as usize];
            if !next.is_switch() {
                return self.subnet.port(peer).takes_data().then_some(BypassPath { links });
            }
            let (FrameRoute { dlid, sl, p_key, .. }, slid) = (route, Lid::NONE);
            let in_port = peer.port;
            let transit = Transit { in_port, slid, dlid, sl, vl, p_key: Some(p_key) };
            let hop = switch::unicast_hop(next, &transit)?;
            (at, vl) = (End { node: peer.node, port: hop.port }, hop.vl);
        }
    }

    /// Counts packets and words that bypassed the net, at all ports of their path.
    pub fn count(&mut self, path: &BypassPath, packets: u64, words: u64) {
        for [from, to] in &path.links {
            self.subnet.port_mut(*from).counters.sent_many(packets, words, false);
            self.subnet.port_mut(*to).counters.received_many(packets, words, false);
        }
    }
}

/// Whether a link only forwards: it has no latency and no faults, and does not need packets.
fn is_plain(wire: &Wire) -> bool {
    let is_slow = !wire.latency.is_zero() || !wire.jitter.is_zero();
    !is_slow && !wire.packets_only && wire.faults.are_none()
}
