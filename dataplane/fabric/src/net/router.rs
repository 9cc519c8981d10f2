//! Routers: packets between subnets, by destination GID (IBA 19.2.3).
//!
//! A router is an end node of each of its subnets. When a packet to one of its ports has the GID of
//! another subnet, the router sends it from the port that has the prefix of that GID, and sets the
//! LIDs for that subnet. Hardware would query the SA of that subnet for the LID; this router reads
//! the nodes.
//!
//! Limits: multicast does not cross routers, and a router forwards to its own subnets only, not to
//! those behind another router.

use super::Net;
use super::flight::Flight;
use crate::node::{NodeDrop, SubnetNode};
use crate::time::Time;
use crate::topology::End;
use pollux_hca::Frame;
use pollux_wire::address::{Gid, Lid};
use pollux_wire::mad::smp::NodeType;
use pollux_wire::packet::{Grh, Lnh, Lrh, Packet, seal_hop};

impl Net {
    /// Whether the destination GID of a frame at a router is not a GID of its input port.
    pub(super) fn is_routed(&self, at: End, frame: &Frame) -> bool {
        let node = &self.subnet.nodes()[at.node as usize];
        let grh = is_router(node).then(|| grh_of(frame)).flatten();
        grh.is_some_and(|grh| !self.subnet.port(at).has_gid(grh.dgid))
    }

    pub(super) fn route(&mut self, now: Time, mut flight: Flight) {
        let at = flight.to;
        match self.rewrite(at, &mut flight.frame) {
            Ok(port) => {
                flight.to.port = port;
                self.transmit(now, flight);
            }
            Err(reason) => self.count_drop(at, reason),
        }
    }

    /// Rewrites a packet for the next subnet; returns its output port.
    fn rewrite(&self, at: End, frame: &mut Frame) -> Result<u8, NodeDrop> {
        let Frame::Packet(bytes) = frame else { return Err(NodeDrop::NoRoute) };
        let packet = Packet::parse(bytes).map_err(|_| NodeDrop::Malformed)?;
        if !packet.vcrc_ok() {
            return Err(NodeDrop::Crc);
        }
        let (mut lrh, grh, p_key) = (packet.lrh(), packet.grh(), packet.bth().pkey);
        let mut grh = grh.ok_or(NodeDrop::NoRoute)?;
        let node = &self.subnet.nodes()[at.node as usize];
        let input = self.subnet.port(at);
        let output = (1..=u8::MAX)
            .zip(&node.ports[1..])
            .find(|(number, port)| *number != at.port && port.info.gid_prefix == grh.dgid.prefix());
        let (number, port) = output.ok_or(NodeDrop::NoRoute)?;
        if !input.takes_data() || !port.sends_data() {
            return Err(NodeDrop::PortState);
        }
        if input.p_keys.matching(p_key).is_none() {
            return Err(NodeDrop::PKeyInbound);
        }
        if port.p_keys.matching(p_key).is_none() {
            return Err(NodeDrop::PKeyOutbound);
        }
        grh.hop_lmt = grh.hop_lmt.checked_sub(1).filter(|left| *left > 0).ok_or(NodeDrop::Hops)?;
        lrh.dlid = self.lid_of(grh.dgid).ok_or(NodeDrop::NoRoute)?;
        lrh.slid = port.info.lid;
        lrh.vl = port.lane(lrh.sl).ok_or(NodeDrop::NoLane)?;
        // The invariant CRC excludes all fields changed here (IBA 7.8.1), so only the VCRC changes.
        bytes[..Lrh::LEN].copy_from_slice(&lrh.emit());
        bytes[Lrh::LEN..Lrh::LEN + Grh::LEN].copy_from_slice(&grh.emit());
        seal_hop(bytes);
        Ok(number)
    }

    fn lid_of(&self, gid: Gid) -> Option<Lid> {
        let ports = self.subnet.nodes().iter().flat_map(|node| {
            let numbers = if node.is_switch() { 0..1 } else { 1..node.ports.len() };
            &node.ports[numbers]
        });
        ports
            .filter(|port| port.has_gid(gid))
            .map(|port| port.info.lid)
            .find(|lid| *lid != Lid::NONE)
    }
}

pub(super) fn is_router(node: &SubnetNode) -> bool {
    node.identity.node_type == NodeType::ROUTER
}

fn grh_of(frame: &Frame) -> Option<Grh> {
    let Frame::Packet(bytes) = frame else { return None };
    let (lrh, rest) = Lrh::read(bytes).ok()?;
    let (grh, _) = Grh::read(rest).ok().filter(|_| lrh.lnh == Lnh::GLOBAL)?;
    Some(grh)
}
