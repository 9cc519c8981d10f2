//! Ways through a net, for whoever carries frames past it.
//!
//! Two adapters that reach each other's memory need no net between them as long as it would only
//! hand things on. A [`Way`] says that it would: which ports send, one after the other, so that
//! what goes past can be counted where it would have gone. Finding one changes and counts nothing.

use super::{HOPS_MAX, Net};
use crate::link::world::Wire;
use crate::switch::{self, Transit};
use crate::topology::End;
use pollux_wire::address::Lid;
use pollux_wire::keys::PKey;

/// By what a frame is sent on; all with the same go the same way.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Route {
    /// Where to.
    pub dlid: Lid,
    /// Its partition.
    pub p_key: PKey,
    /// Its service level.
    pub sl: u8,
}

/// The ports that send a frame, one after the other, each with the one at the other end.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Way {
    links: Vec<[End; 2]>,
}

impl Way {
    /// Where it leads.
    pub fn end(&self) -> Option<End> {
        self.links.last().map(|link| link[1])
    }
}

impl Net {
    /// The way of frames from an adapter; none if they do not all arrive at once, or if anything on
    /// the way wants to see packets.
    pub fn way(&self, from: End, route: Route) -> Option<Way> {
        if self.tap.is_some() || self.is_paced || self.has_routers || route.dlid.is_multicast() {
            return None;
        }
        let first = &self.subnet.nodes()[from.node as usize].ports[usize::from(from.port)];
        let mut vl = first.lane(route.sl).filter(|_| first.sends_data())?;
        let (mut at, mut links) = (from, Vec::new());
        loop {
            let port = &self.subnet.nodes()[at.node as usize].ports[usize::from(at.port)];
            let (peer, _) = self.subnet.topology().peer(at)?;
            if !port.is_linked() || !is_plain(self.wire_at(at)) || links.len() >= HOPS_MAX.into() {
                return None;
            }
            links.push([at, peer]);
            let next = &self.subnet.nodes()[peer.node as usize];
            if !next.is_switch() {
                return next.ports[usize::from(peer.port)].takes_data().then_some(Way { links });
            }
            let (Route { dlid, sl, p_key }, slid) = (route, Lid::NONE);
            let in_port = peer.port;
            let transit = Transit { in_port, slid, dlid, sl, vl, p_key: Some(p_key) };
            let hop = switch::way(next, &transit)?;
            (at, vl) = (End { node: peer.node, port: hop.port }, hop.vl);
        }
    }

    /// So many packets of so many words have gone past the net, where they would have gone by it.
    pub fn count(&mut self, way: &Way, packets: u64, words: u64) {
        for [from, to] in &way.links {
            let port = |end: &End| (end.node, usize::from(end.port));
            let ((node, number), (peer, peers)) = (port(from), port(to));
            let sender = &mut self.subnet.node_mut(node).ports[number];
            sender.counters.sent_many(packets, words, false);
            let receiver = &mut self.subnet.node_mut(peer).ports[peers];
            receiver.counters.received_many(packets, words, false);
        }
    }

    fn wire_at(&self, end: End) -> &Wire {
        let node = &self.subnet.topology().nodes()[end.node as usize];
        let link = node.ports[usize::from(end.port)].link;
        link.and_then(|link| self.wires.get(&link)).unwrap_or(&self.wire)
    }
}

/// Whether a link does nothing but hand on.
fn is_plain(wire: &Wire) -> bool {
    let is_slow = !wire.latency.is_zero() || !wire.jitter.is_zero();
    !is_slow && !wire.packets_only && wire.faults.are_none()
}
