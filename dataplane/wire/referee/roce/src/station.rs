//! A host on an Ethernet, as far as RoCEv2 needs one. It has no I/O: it converts packets of the
//! adapter to frames, and received frames to packets.
//!
//! The station answers requests for its addresses and resolves the addresses of other hosts (RFC
//! 826; RFC 4861 7.2), with its table of [`neighbors`](super::neighbors). Every destination is on
//! the link: there are no routes. Frames of other protocols are counted and dropped.

use super::FRAME_BYTES_MAX;
use super::neighbors::{Lookup, Question, RoceNeighbors};
use super::packet::{IP_LEN_MAX, RocePacket, gid_of_ipv4, ipv4_of_gid, write_ip};
use pollux_fabric::Time;
use pollux_wire::WireError;
use pollux_wire::address::Gid;
use pollux_wire::ethernet::EtherType;
use pollux_wire::ethernet::{EthernetHeader, MacAddress};
use pollux_wire::ip::IpProtocol;
use pollux_wire::ip::arp::{ArpOperation, ArpPacket};
use pollux_wire::ip::icmpv6;
use pollux_wire::ip::ipv6::{Ipv6Header, Ipv6Packet};
use pollux_wire::ip::list::List;
use pollux_wire::ip::nd::{NdBody, NdMessage, NeighborAdvertisement, NeighborSolicitation};
use pollux_wire::ip::nd_option::{LinkLayerAddress, NdOption};
use pollux_wire::packet::{PACKET_LEN_MAX, Packet};
use std::collections::{BTreeMap, VecDeque};
use std::net::{Ipv4Addr, Ipv6Addr};

/// Frames that wait for the wire before the station accepts no more packets.
const OUTBOX_FRAMES_MAX: usize = 128;

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum StationDrop {
    /// Malformed bytes, with the reason.
    Malformed(&'static str),
    /// A frame or a packet to another destination.
    NotOurs,
    /// An unsupported protocol.
    Other,
    Unresolved,
    /// Too many frames wait for the neighbor or for the wire, or too many neighbors are being
    /// resolved.
    Full,
}

impl From<WireError> for StationDrop {
    fn from(error: WireError) -> Self {
        Self::Malformed(error.reason())
    }
}

#[derive(Debug)]
pub struct Station {
    mac: MacAddress,
    gids: Vec<Gid>,
    neighbors: RoceNeighbors,
    outbox: VecDeque<Vec<u8>>,
    drops: BTreeMap<StationDrop, u64>,
}

impl Station {
    /// A station with the addresses of its adapter's port.
    pub fn new(mac: MacAddress, gids: Vec<Gid>) -> Self {
        let (neighbors, outbox) = (RoceNeighbors::default(), VecDeque::new());
        Self { mac, gids, neighbors, outbox, drops: BTreeMap::new() }
    }

    pub fn drops(&self) -> impl Iterator<Item = (StationDrop, u64)> {
        self.drops.iter().map(|(&reason, &count)| (reason, count))
    }

    /// Whether the station accepts no more packets until frames are sent.
    pub fn is_full(&self) -> bool {
        self.outbox.len() >= OUTBOX_FRAMES_MAX
    }

    pub fn poll_transmit(&mut self) -> Option<Vec<u8>> {
        self.outbox.pop_front()
    }

    /// The time at which [`handle_timeout`](Self::handle_timeout) is due.
    pub fn deadline(&self) -> Option<Time> {
        self.neighbors.deadline()
    }

    /// Repeats requests that are due, and removes neighbors that do not answer.
    pub fn handle_timeout(&mut self, now: Time) {
        if self.deadline().is_none_or(|due| due > now) {
            return;
        }
        let (questions, lost) = self.neighbors.handle_timeout(now);
        for question in questions {
            let asked = self.ask(question);
            self.count(asked);
        }
        for _ in 0..lost {
            self.count(Err(StationDrop::Unresolved));
        }
    }

    /// Handles a packet of the adapter, LRH to VCRC.
    pub fn handle_packet(&mut self, now: Time, bytes: &[u8]) {
        let outcome = self.send_packet(now, bytes);
        self.count(outcome);
    }

    /// Handles a received frame. Returns whether it is for the adapter; then its packet is in
    /// `packet`, LRH to VCRC.
    pub fn handle_frame(&mut self, now: Time, frame: &[u8], packet: &mut Vec<u8>) -> bool {
        let outcome = self.receive(now, frame, packet);
        self.count(outcome.map(|_| ()));
        outcome == Ok(true)
    }

    fn count(&mut self, outcome: Result<(), StationDrop>) {
        if let Err(reason) = outcome {
            *self.drops.entry(reason).or_default() += 1;
        }
    }

    fn send_packet(&mut self, now: Time, bytes: &[u8]) -> Result<(), StationDrop> {
        let packet = Packet::parse(bytes)?;
        let grh = packet.grh().ok_or(StationDrop::Malformed("grh"))?;
        let ether_type =
            if ipv4_of_gid(grh.dgid).is_some() { EtherType::IPV4 } else { EtherType::IPV6 };
        let write = |destination, source| {
            let header = EthernetHeader { destination, source, ether_type };
            framed(&header, IP_LEN_MAX, |room| write_ip(&packet, room))
        };
        if grh.dgid.is_multicast() {
            let frame = write(MacAddress::of_group(grh.dgid), self.mac)?;
            return self.send(frame);
        }
        match self.neighbors.look_up(now, grh.sgid, grh.dgid) {
            Lookup::Known(mac) => {
                let frame = write(mac, self.mac)?;
                self.send(frame)
            }
            Lookup::Full => Err(StationDrop::Full),
            Lookup::Unknown { ask } => {
                let frame = write(MacAddress::default(), self.mac)?;
                let waits = self.neighbors.wait(grh.dgid, frame);
                if ask {
                    self.ask(Question { source: grh.sgid, target: grh.dgid })?;
                }
                if waits { Ok(()) } else { Err(StationDrop::Full) }
            }
        }
    }

    fn send(&mut self, frame: Vec<u8>) -> Result<(), StationDrop> {
        // The answer of a neighbor can release many frames at once, so there is space for more
        // frames than the adapter may fill.
        if self.outbox.len() >= 2 * OUTBOX_FRAMES_MAX {
            return Err(StationDrop::Full);
        }
        self.outbox.push_back(frame);
        Ok(())
    }

    fn ask(&mut self, Question { source, target }: Question) -> Result<(), StationDrop> {
        let frame = match (ipv4_of_gid(source), ipv4_of_gid(target)) {
            (Some(source), Some(target)) => {
                let to = (MacAddress::default(), target);
                self.arp(MacAddress::BROADCAST, ArpOperation::REQUEST, source, to)
            }
            _ => self.solicitation(Ipv6Addr::from(source.0), Ipv6Addr::from(target.0)),
        };
        self.send(frame?)
    }

    fn receive(
        &mut self,
        now: Time,
        frame: &[u8],
        packet: &mut Vec<u8>,
    ) -> Result<bool, StationDrop> {
        let (header, bytes) = EthernetHeader::read(frame)?;
        if header.destination != self.mac && !header.destination.is_group() {
            return Err(StationDrop::NotOurs);
        }
        if header.ether_type == EtherType::ARP {
            return self.handle_arp(now, bytes).map(|()| false);
        }
        if let Some(came) = RocePacket::parse(header.ether_type, bytes)? {
            let grh = came.grh();
            if !self.gids.contains(&grh.dgid) && !grh.dgid.is_multicast() {
                return Err(StationDrop::NotOurs);
            }
            packet.clear();
            packet.resize(PACKET_LEN_MAX, 0);
            let len = came.write_native(packet)?;
            packet.truncate(len);
            self.neighbors.confirm(now, grh.sgid, header.source);
            return Ok(true);
        }
        if header.ether_type == EtherType::IPV6 {
            return self.handle_nd(now, header.source, bytes).map(|()| false);
        }
        Err(StationDrop::Other)
    }

    /// Learns the address of a neighbor.
    fn learn(&mut self, now: Time, gid: Gid, mac: MacAddress) -> Result<(), StationDrop> {
        if mac.is_group() {
            return Err(StationDrop::Malformed("bad_value"));
        }
        for mut frame in self.neighbors.learn(now, gid, mac) {
            frame[..MacAddress::LEN].copy_from_slice(&mac.0);
            self.send(frame)?;
        }
        Ok(())
    }

    fn handle_arp(&mut self, now: Time, bytes: &[u8]) -> Result<(), StationDrop> {
        let came = ArpPacket::<MacAddress>::parse(bytes)?;
        let sender = came.sender_hardware;
        self.learn(now, gid_of_ipv4(came.sender_protocol), sender)?;
        if came.operation != ArpOperation::REQUEST {
            return Ok(());
        }
        if !self.gids.contains(&gid_of_ipv4(came.target_protocol)) {
            return Err(StationDrop::NotOurs);
        }
        let to = (sender, came.sender_protocol);
        let answer = self.arp(sender, ArpOperation::REPLY, came.target_protocol, to)?;
        self.send(answer)
    }

    fn arp(
        &self,
        destination: MacAddress,
        operation: ArpOperation,
        source: Ipv4Addr,
        (target_hardware, target_protocol): (MacAddress, Ipv4Addr),
    ) -> Result<Vec<u8>, StationDrop> {
        let header = EthernetHeader { destination, source: self.mac, ether_type: EtherType::ARP };
        let packet = ArpPacket {
            operation,
            sender_hardware: self.mac,
            sender_protocol: source,
            target_hardware,
            target_protocol,
        };
        const LEN: usize = ArpPacket::<MacAddress>::LEN;
        framed(&header, LEN, |room| packet.write(room).map(|_| LEN))
    }

    fn handle_nd(&mut self, now: Time, from: MacAddress, bytes: &[u8]) -> Result<(), StationDrop> {
        let packet = Ipv6Packet::parse(bytes)?;
        let ip = packet.header();
        // A hop limit below 255 means that a router has forwarded the packet (RFC 4861 7.1).
        if ip.next_header != IpProtocol::ICMPV6 || ip.hop_limit != 255 {
            return Err(StationDrop::Other);
        }
        if !icmpv6::checksum_ok(packet.payload(), &ip.pseudo_header()) {
            return Err(StationDrop::Malformed("bad_checksum"));
        }
        let message = NdMessage::parse(packet.payload())?;
        match message.body {
            NdBody::NeighborSolicitation(NeighborSolicitation { target }) => {
                let source = message.options.iter().find_map(|option| match option {
                    NdOption::Source(LinkLayerAddress::Ethernet(mac)) => Some(mac),
                    _ => None,
                });
                let source = source.unwrap_or(from);
                self.learn(now, Gid(ip.source.octets()), source)?;
                if !self.gids.contains(&Gid(target.octets())) {
                    return Err(StationDrop::NotOurs);
                }
                let answer = self.advertisement(target, ip.source, source)?;
                self.send(answer)
            }
            NdBody::NeighborAdvertisement(NeighborAdvertisement { target, .. }) => {
                let mac = message.options.iter().find_map(|option| match option {
                    NdOption::Target(LinkLayerAddress::Ethernet(mac)) => Some(mac),
                    _ => None,
                });
                self.learn(now, Gid(target.octets()), mac.unwrap_or(from))
            }
            _ => Err(StationDrop::Other),
        }
    }

    /// A frame that solicits the MAC address of `target` (RFC 4861 4.3).
    fn solicitation(&self, source: Ipv6Addr, target: Ipv6Addr) -> Result<Vec<u8>, StationDrop> {
        let [.., a, b, c] = target.octets();
        let group =
            Ipv6Addr::new(0xff02, 0, 0, 0, 0, 1, 0xff00 | u16::from(a), u16::from_be_bytes([b, c]));
        let body = NdBody::NeighborSolicitation(NeighborSolicitation { target });
        let to = (MacAddress::of_group(Gid(group.octets())), group);
        self.nd(to, source, body, NdOption::Source(self.mac.into()))
    }

    /// A frame that answers a solicitation. Its destination is all nodes if the soliciting host has
    /// no address yet (RFC 4861 7.2.4).
    fn advertisement(
        &self,
        target: Ipv6Addr,
        asker: Ipv6Addr,
        mac: MacAddress,
    ) -> Result<Vec<u8>, StationDrop> {
        const ALL_NODES: Ipv6Addr = Ipv6Addr::new(0xff02, 0, 0, 0, 0, 0, 0, 1);
        let solicited = !asker.is_unspecified();
        let to = match solicited {
            true => (mac, asker),
            false => (MacAddress::of_group(Gid(ALL_NODES.octets())), ALL_NODES),
        };
        let body = NdBody::NeighborAdvertisement(NeighborAdvertisement {
            router: false,
            solicited,
            override_cached: true,
            target,
        });
        self.nd(to, target, body, NdOption::Target(self.mac.into()))
    }

    fn nd(
        &self,
        (destination_mac, destination): (MacAddress, Ipv6Addr),
        source: Ipv6Addr,
        body: NdBody,
        option: NdOption<'_>,
    ) -> Result<Vec<u8>, StationDrop> {
        let options = [option];
        let message = NdMessage { body, options: List::of(&options) };
        let header = EthernetHeader {
            destination: destination_mac,
            source: self.mac,
            ether_type: EtherType::IPV6,
        };
        let ip = Ipv6Header {
            next_header: IpProtocol::ICMPV6,
            hop_limit: 255,
            source,
            destination,
            ..Ipv6Header::default()
        };
        let len = message.wire_len();
        framed(&header, Ipv6Header::LEN + len, |room| {
            let payload = ip.write_packet(len, room)?;
            message.write(payload)?;
            icmpv6::fill_checksum(payload, &ip.pseudo_header())?;
            Ok(Ipv6Header::LEN + len)
        })
    }
}

/// A frame with this header and the output of `write`, which is at most `bytes_max` bytes.
fn framed(
    header: &EthernetHeader,
    bytes_max: usize,
    write: impl FnOnce(&mut [u8]) -> Result<usize, WireError>,
) -> Result<Vec<u8>, StationDrop> {
    let mut frame = vec![0; (EthernetHeader::LEN + bytes_max).min(FRAME_BYTES_MAX)];
    let written = write(header.write(&mut frame)?)?;
    frame.truncate(EthernetHeader::LEN + written);
    Ok(frame)
}

#[cfg(test)]
mod tests {
    use super::*;
    use pollux_wire::address::Qpn;
    use pollux_wire::keys::{PKey, QKey};
    use pollux_wire::packet::{Bth, Deth, Extended, Grh, Headers, Lrh, Opcode};
    use proptest::prelude::*;

    const OURS: MacAddress = MacAddress([2, 0, 0, 0, 0, 1]);
    const THEIRS: MacAddress = MacAddress([2, 0, 0, 0, 0, 2]);
    const NOW: Time = Time::START;

    fn gids(last: u8) -> Vec<Gid> {
        let v6 = Ipv6Addr::new(0xfe80, 0, 0, 0, 0, 0, 0, last.into());
        vec![Gid(v6.octets()), gid_of_ipv4(Ipv4Addr::new(10, 0, 0, last))]
    }

    fn stations() -> [Station; 2] {
        [Station::new(OURS, gids(1)), Station::new(THEIRS, gids(2))]
    }

    fn packet(sgid: Gid, dgid: Gid) -> Vec<u8> {
        let grh = Grh { ip_ver: 6, nxt_hdr: Grh::NXT_HDR_IBA, sgid, dgid, ..Grh::default() };
        let bth = Bth {
            opcode: Opcode::UD_SEND_ONLY,
            pkey: PKey::DEFAULT,
            dest_qp: Qpn(0x49),
            ..Bth::default()
        };
        let extended = Extended::Deth(Deth { qkey: QKey(1), src_qp: Qpn(0x48) });
        let headers = Headers { lrh: Lrh::default(), grh: Some(grh), bth, rd: None, extended };
        let mut out = vec![0; 200];
        let len = headers.emit(b"bytes", &mut out).unwrap();
        out.truncate(len);
        out
    }

    /// Transfers frames between the stations until both outboxes are empty; returns the packets.
    fn carry(stations: &mut [Station; 2]) -> Vec<(usize, Vec<u8>)> {
        let mut came = Vec::new();
        while let Some(from) = (0..2).find(|&from| !stations[from].outbox.is_empty()) {
            let frame = stations[from].poll_transmit().unwrap();
            let mut packet = Vec::new();
            if stations[1 - from].handle_frame(NOW, &frame, &mut packet) {
                came.push((1 - from, packet));
            }
        }
        came
    }

    fn no_drops(stations: &[Station; 2]) {
        for station in stations {
            assert_eq!(station.drops().collect::<Vec<_>>(), []);
        }
    }

    #[test]
    fn the_first_packet_waits_for_its_neighbor_unchanged() {
        for family in [0, 1] {
            let mut stations = stations();
            let sent = packet(gids(1)[family], gids(2)[family]);
            for _ in 0..3 {
                stations[0].handle_packet(NOW, &sent);
            }
            assert_eq!(stations[0].outbox.len(), 1, "one question");
            assert_eq!(carry(&mut stations), vec![(1, sent.clone()); 3]);
            stations[0].handle_packet(NOW, &sent);
            assert_eq!(stations[0].outbox[0][..6], THEIRS.0);
            assert_eq!(carry(&mut stations), [(1, sent)]);
            no_drops(&stations);
        }
    }

    #[test]
    fn groups_need_no_question() {
        let mut stations = stations();
        let group = Gid(Ipv6Addr::new(0xff02, 0, 0, 0, 0, 0, 0, 0x99).octets());
        let sent = packet(gids(1)[0], group);
        stations[0].handle_packet(NOW, &sent);
        assert_eq!(stations[0].outbox[0][..6], [0x33, 0x33, 0, 0, 0, 0x99]);
        assert_eq!(carry(&mut stations), [(1, sent)]);
    }

    #[test]
    fn a_missing_neighbor_is_asked_three_times_and_its_packets_are_dropped() {
        let [mut station, _] = stations();
        station.handle_packet(NOW, &packet(gids(1)[1], gids(9)[1]));
        let mut questions = 0;
        while let Some(due) = station.deadline() {
            station.handle_timeout(due);
            questions += std::iter::from_fn(|| station.poll_transmit()).count();
        }
        assert_eq!(questions, 3);
        assert_eq!(station.drops().collect::<Vec<_>>(), [(StationDrop::Unresolved, 1)]);
    }

    #[test]
    fn duplicate_address_detection_is_answered() {
        let [mut station, other] = stations();
        let target = Ipv6Addr::from(gids(1)[0].0);
        let probe = other.solicitation(Ipv6Addr::UNSPECIFIED, target).unwrap();
        assert!(!station.handle_frame(NOW, &probe, &mut Vec::new()));
        let answer = station.poll_transmit().unwrap();
        assert_eq!(answer[..6], [0x33, 0x33, 0, 0, 0, 1], "everybody is told");
    }

    #[test]
    fn questions_for_others_are_not_answered() {
        let [mut station, other] = stations();
        for family in [0, 1] {
            let mut asker = Station::new(THEIRS, other.gids.clone());
            let question = Question { source: gids(2)[family], target: gids(3)[family] };
            asker.ask(question).unwrap();
            let frame = asker.poll_transmit().unwrap();
            assert!(!station.handle_frame(NOW, &frame, &mut Vec::new()));
            assert_eq!(station.poll_transmit(), None);
        }
        assert_eq!(station.drops().collect::<Vec<_>>(), [(StationDrop::NotOurs, 2)]);
    }

    #[test]
    fn a_slow_wire_ends_what_is_taken_and_is_counted() {
        let [mut station, _] = stations();
        let group = Gid(Ipv6Addr::new(0xff02, 0, 0, 0, 0, 0, 0, 0x99).octets());
        for _ in 0..1000 {
            station.handle_packet(NOW, &packet(gids(1)[0], group));
        }
        assert!(station.is_full() && station.outbox.len() == 2 * OUTBOX_FRAMES_MAX);
        let lost = 1000 - station.outbox.len() as u64;
        assert_eq!(station.drops().collect::<Vec<_>>(), [(StationDrop::Full, lost)]);
    }

    proptest! {
        /// Any frame is handled, or counted as dropped.
        #[test]
        fn hostile_frames_do_no_harm(
            kind in 0usize..5, at in 0usize..120, value: u8, cut in 0usize..200,
            noise in proptest::collection::vec(any::<u8>(), 0..100),
        ) {
            let [mut station, mut other] = stations();
            let (source, target) = (gids(2)[kind % 2], gids(1)[kind % 2]);
            match kind {
                0 | 1 => other.ask(Question { source, target }).unwrap(),
                2 | 3 => {
                    other.neighbors.look_up(NOW, source, target);
                    other.learn(NOW, target, OURS).unwrap();
                    other.handle_packet(NOW, &packet(source, target));
                }
                _ => other.outbox.push_back(noise.clone()),
            }
            let mut frame = other.poll_transmit().unwrap();
            if let Some(byte) = frame.get_mut(at) {
                *byte = value;
            }
            frame.truncate(cut);
            let mut native = Vec::new();
            if station.handle_frame(NOW, &frame, &mut native) {
                prop_assert!(Packet::parse(&native).is_ok());
            }
            station.handle_packet(NOW, &noise);
        }
    }
}
