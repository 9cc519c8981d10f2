//! Foreign ports: ports of this net with a link, over a wire, to a node of another fabric.
//!
//! A net with foreign ports has no message bypass at any port. A wire carries packets only, and a
//! sender does not know whether a path leads to a wire.
//!
//! Captures and faults apply to a wire as to all links, in both directions.
//!
//! A net only queues frames for a wire; [`crate::wire_io`] moves them. The link of such a port is
//! up while the other end of the wire is connected.

use super::Net;
use super::flight::Flight;
use crate::node::NodeDrop;
use crate::time::Time;
use crate::topology::End;
use pollux_hca::Frame;
use pollux_wire::packet::crc::VCRC_LEN;
use pollux_wire::packet::{Lnh, Lrh, Packet, RawPacket};
use std::collections::VecDeque;
use std::time::Duration;

/// Bytes that may wait for a wire whose other end does not read. Further packets are dropped.
pub const WAITING_BYTES_MAX: usize = 64 << 20;

#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum NoForeign {
    #[error("the node has no port {}; name one it has", .0.port)]
    NoPort(End),
    /// The port is joined to this one.
    #[error("the port is joined to another; name a free one")]
    Joined(End),
    #[error("the port has a wire already; name another port")]
    Taken(End),
}

#[derive(Default)]
pub(super) struct Foreign {
    is_up: bool,
    waiting: VecDeque<Vec<u8>>,
    bytes: usize,
}

impl Net {
    /// Makes a port foreign. Its link is down at first.
    pub fn add_foreign(&mut self, end: End) -> Result<(), NoForeign> {
        let node = self.subnet.nodes().get(end.node as usize);
        let is_there = end.port > 0 && node.is_some_and(|node| end.port <= node.identity.num_ports);
        if !is_there {
            return Err(NoForeign::NoPort(end));
        }
        if let Some((peer, _)) = self.subnet.topology().peer(end) {
            return Err(NoForeign::Joined(peer));
        }
        if self.foreign.contains_key(&end) {
            return Err(NoForeign::Taken(end));
        }
        self.foreign.insert(end, Foreign::default());
        self.find_packet_links();
        Ok(())
    }

    /// Sets whether the other end of a wire is connected. A change drops the waiting frames.
    pub fn set_foreign_up(&mut self, end: End, is_up: bool) {
        let Some(foreign) = self.foreign.get_mut(&end) else { return };
        if foreign.is_up != is_up {
            *foreign = Foreign { is_up, ..Foreign::default() };
            self.subnet_mut().set_foreign(end, is_up);
        }
    }

    pub fn is_foreign(&self, end: End) -> bool {
        self.foreign.contains_key(&end)
    }

    pub fn poll_foreign(&mut self, end: End) -> Option<Vec<u8>> {
        let foreign = self.foreign.get_mut(&end)?;
        let bytes = foreign.waiting.pop_front()?;
        foreign.bytes -= bytes.len();
        Some(bytes)
    }

    pub fn has_foreign(&self, end: End) -> bool {
        self.foreign.get(&end).is_some_and(|foreign| !foreign.waiting.is_empty())
    }

    /// Handles bytes from a wire: one packet, with the length that its header has. Bytes after it
    /// are ignored.
    pub fn receive_foreign(&mut self, now: Time, end: End, bytes: &[u8]) {
        if !self.foreign.get(&end).is_some_and(|foreign| foreign.is_up) {
            return;
        }
        match checked_packet(bytes) {
            Ok(bytes) => {
                let frame = Frame::Packet(bytes.to_vec());
                if let Err(reason) = self.check_foreign(end, &frame) {
                    return self.count_drop(end, reason);
                }
                let wire = self.wire;
                self.apply_faults(now, end, Duration::ZERO, &wire, Flight::new(end, 1, frame));
            }
            Err(reason) => {
                self.count_drop(end, reason);
                self.subnet.port_mut(end).counters.rcv_errors.add(1);
            }
        }
    }

    pub(super) fn queue_for_wire(&mut self, now: Time, flight: Flight) {
        self.release(now, flight.credits);
        let (Some(foreign), Frame::Packet(bytes)) =
            (self.foreign.get_mut(&flight.to), flight.frame)
        else {
            return;
        };
        if !foreign.is_up || foreign.bytes + bytes.len() > WAITING_BYTES_MAX {
            let reason = if foreign.is_up { NodeDrop::Full } else { NodeDrop::PortState };
            self.count_drop(flight.to, reason);
            self.subnet.port_mut(flight.to).counters.xmit_discards.add(1);
            return;
        }
        foreign.bytes += bytes.len();
        foreign.waiting.push_back(bytes);
    }
}

/// The packet at the start of the bytes, if headers, lengths and VCRC are valid.
fn checked_packet(bytes: &[u8]) -> Result<&[u8], NodeDrop> {
    let (lrh, _) = Lrh::read(bytes).map_err(|_| NodeDrop::Malformed)?;
    if matches!(lrh.lnh, Lnh::LOCAL | Lnh::GLOBAL) {
        let packet = Packet::parse(bytes).map_err(|_| NodeDrop::Malformed)?;
        return if packet.vcrc_ok() { Ok(packet.bytes()) } else { Err(NodeDrop::Crc) };
    }
    let packet = RawPacket::parse(bytes).map_err(|_| NodeDrop::Malformed)?;
    if packet.vcrc_ok() { Ok(&bytes[..lrh.packet_bytes() + VCRC_LEN]) } else { Err(NodeDrop::Crc) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::link::Wire;
    use crate::net::packet_of;
    use crate::subnet::{Datagram, Subnet};
    use crate::topology::Topology;
    use pollux_wire::address::{Lid, Qpn};
    use pollux_wire::keys::PKey;
    use pollux_wire::mad::smp::{DirectedSmp, LinearForwardingTable};
    use pollux_wire::mad::{Attribute, MadHeader, Method, MgmtClass};
    use pollux_wire::packet::seal_hop;
    use pollux_wire::psn::Psn;

    const END: End = End { node: 0, port: 2 };

    /// Sends an SMP to the switch over its wire; returns the number of packets that come back.
    fn answers(net: &mut Net, method: Method) -> usize {
        let class = MgmtClass::SUBN_DIRECTED_ROUTE;
        let header = MadHeader::new(class, method, 5, LinearForwardingTable::ID);
        let (dr_slid, dr_dlid) = (Lid::PERMISSIVE, Lid::PERMISSIVE);
        let data = LinearForwardingTable { ports: [1; 64] }.to_data();
        let mut smp = DirectedSmp { header, dr_slid, dr_dlid, data, ..DirectedSmp::default() };
        smp.set_hops(1, 1);
        let (slid, src_qp, p_key) = (Lid::PERMISSIVE, Qpn::SMI, PKey::DEFAULT);
        let mad = smp.emit();
        let datagram = Datagram { slid, dlid: slid, src_qp, dest_qp: src_qp, p_key, mad };
        let Frame::Packet(bytes) = packet_of(&datagram, Psn::new(1)) else {
            unreachable!("datagrams are packets")
        };
        net.receive_foreign(Time::START, END, &bytes);
        while let Some(due) = net.deadline() {
            net.advance(due);
        }
        std::iter::from_fn(|| net.poll_foreign(END)).count()
    }

    #[test]
    fn a_set_from_a_wire_needs_the_grant() {
        let mut topology = Topology::generate("single:1", 1).unwrap();
        topology.add_ports(END);
        let mut net = Net::new(Subnet::new(topology), 1, Wire::default());
        net.add_foreign(END).unwrap();
        net.set_foreign_up(END, true);
        let has_route = |net: &Net| {
            let tables = net.subnet().nodes()[0].forwarding.as_ref().unwrap();
            tables.linear_block(0).unwrap().ports == [1; 64]
        };
        let refused = |net: &Net| net.subnet().nodes()[0].drops.of(NodeDrop::NotManager);
        assert_eq!((answers(&mut net, Method::GET), refused(&net)), (1, 0));
        assert_eq!((answers(&mut net, Method::SET), refused(&net)), (0, 1));
        assert_eq!((answers(&mut net, Method::TRAP_REPRESS), refused(&net)), (0, 2));
        assert_eq!((answers(&mut net, Method::GET_RESP), refused(&net)), (0, 2), "a node answers");
        assert!(!has_route(&net));
        net.grant_management(END);
        assert_eq!((answers(&mut net, Method::SET), refused(&net)), (1, 2));
        assert!(has_route(&net));
    }

    /// A packet without a BTH has no destination queue pair.
    #[test]
    fn only_packets_to_queue_pair_0_come_by_vl_15() {
        let mut topology = Topology::generate("single:1", 1).unwrap();
        topology.add_ports(END);
        let mut net = Net::new(Subnet::new(topology), 1, Wire::default());
        net.add_foreign(END).unwrap();
        net.set_foreign_up(END, true);
        let datagram = Datagram {
            slid: Lid(7),
            dlid: Lid(1),
            src_qp: Qpn::GSI,
            dest_qp: Qpn::GSI,
            p_key: PKey::DEFAULT,
            mad: [0; 256],
        };
        let mut data = packet_of(&datagram, Psn::new(1));
        data.set_lane(15);
        let smp = Datagram { src_qp: Qpn::SMI, dest_qp: Qpn::SMI, ..datagram };
        let mut management = packet_of(&smp, Psn::new(1));
        management.set_lane(0);
        let mut raw = vec![0xf0, 0, 0, 1, 0, 4, 0, 7, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0];
        seal_hop(&mut raw);
        for frame in [data, management, Frame::Packet(raw)] {
            let Frame::Packet(bytes) = frame else { unreachable!("they are packets") };
            net.receive_foreign(Time::START, END, &bytes);
        }
        let drops = &net.subnet().nodes()[0].drops;
        assert_eq!((drops.of(NodeDrop::Malformed), drops.total()), (3, 3));
        assert_eq!(net.deadline(), None);
    }
}
