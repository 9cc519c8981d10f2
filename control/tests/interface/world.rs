//! A managed subnet with an interface at each of its hosts but the first, where the manager is.

use crate::port_driver::{PortDriver, QueuePair};
use pollux_control::ipoib::{
    Adjacency, By, ConnectionKey, InterfaceConfig, IpoibInterface, OutgoingPacket, PacketSource,
    PortView, QueuePairEvent, ReceivedPacket, WorkerId,
};
use pollux_control::mad::{Envelope, MadAddress};
use pollux_fabric::sm::{Residents, SmConfig};
use pollux_fabric::subnet::{Datagram, Subnet};
use pollux_fabric::topology::{End, Topology};
use pollux_verbs::rng::SeededRng;
use pollux_verbs::time::Time;
use pollux_verbs::{QpState, QpType};
use pollux_wire::address::Qpn;
use pollux_wire::ethernet::EtherType;
use pollux_wire::ip::ipv4::Ipv4Header;
use pollux_wire::ip::ipv6::Ipv6Header;
use pollux_wire::ip::{IpProtocol, mgid};
use pollux_wire::keys::{PKey, QKey};
use pollux_wire::mad::sa::PathRecord;
use pollux_wire::mad::smp::{NodeType, PortState};
use pollux_wire::mad::{Attribute, MadHeader, MadStatus, Method};
use std::collections::BTreeMap;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::time::Duration;

/// Faults of packets under way, in a million.
#[derive(Clone, Copy, Default)]
pub struct Weather {
    pub lost: u32,
    pub doubled: u32,
    pub delayed: u32,
}

/// A host with an interface.
pub struct Host {
    pub at: End,
    pub qpn: Qpn,
    pub interface: IpoibInterface,
    pub port_driver: PortDriver,
    /// Packets that local sockets got.
    pub got: Vec<Vec<u8>>,
    /// Packets that came by the link.
    pub seen: Vec<Vec<u8>>,
    /// Frames that left.
    pub sent: Vec<OutgoingPacket>,
    /// Packets of the host without a route, which were punted to control.
    pub slow_path: usize,
    reregistrations: u32,
}

#[derive(Clone)]
struct Flying {
    to: usize,
    ether_type: EtherType,
    packet: Vec<u8>,
    from: PacketSource,
    qkey: QKey,
}

pub struct World {
    pub subnet: Subnet,
    pub managers: Residents,
    pub hosts: Vec<Host>,
    pub now: Time,
    pub weather: Weather,
    /// The time that every packet takes.
    pub late: Duration,
    /// Management datagrams of a million that are lost between interfaces and administrator.
    pub mads_lost: u32,
    /// The status of all answers to path queries, if not the administrator's own.
    pub path_status: Option<MadStatus>,
    /// Management datagrams from interfaces to the administrator.
    pub questions: u64,
    /// Reports of the administrator that came to each host.
    pub reports: Vec<u64>,
    /// How interfaces see their ports.
    pub seen: fn(usize, PortView) -> PortView,
    rng: SeededRng,
    flying: BTreeMap<(Time, u64), Flying>,
    number: u64,
}

pub const fn v4(host: u8) -> IpAddr {
    IpAddr::V4(Ipv4Addr::new(10, 0, 0, host))
}

pub fn v6(host: u16) -> IpAddr {
    IpAddr::V6(Ipv6Addr::new(0xfd00, 0, 0, 0, 0, 0, 0, host))
}

/// A UDP packet, as far as anybody here looks.
pub fn packet(source: IpAddr, destination: IpAddr, payload: &[u8]) -> Vec<u8> {
    let mut packet = vec![0; 60 + payload.len()];
    match (source, destination) {
        (IpAddr::V4(source), IpAddr::V4(destination)) => {
            let protocol = IpProtocol::UDP;
            let header =
                Ipv4Header { protocol, source, destination, ttl: 64, ..Ipv4Header::default() };
            header.write_packet(&[], payload.len(), &mut packet).unwrap().copy_from_slice(payload);
            packet.truncate(Ipv4Header::LEN + payload.len());
        }
        (IpAddr::V6(source), IpAddr::V6(destination)) => {
            let next_header = IpProtocol::UDP;
            let header = Ipv6Header {
                next_header,
                source,
                destination,
                hop_limit: 64,
                ..Ipv6Header::default()
            };
            header.write_packet(payload.len(), &mut packet).unwrap().copy_from_slice(payload);
            packet.truncate(Ipv6Header::LEN + payload.len());
        }
        _ => unreachable!("one family"),
    }
    packet
}

impl World {
    pub fn new(seed: u64, hosts: usize) -> Self {
        Self::with(seed, hosts, SmConfig::default(), |config, _| config)
    }

    /// With other settings for the manager and the interfaces.
    pub fn with(
        seed: u64,
        hosts: usize,
        manager: SmConfig,
        adjust: impl Fn(InterfaceConfig, usize) -> InterfaceConfig,
    ) -> Self {
        println!("seed {seed}");
        let topology = Topology::generate(&format!("single:{}", hosts + 1), 1).unwrap();
        let mut subnet = Subnet::new(topology);
        let nodes = (0..).zip(subnet.topology().nodes());
        let ends = nodes.filter(|(_, node)| node.kind == NodeType::CHANNEL_ADAPTER);
        let mut ends = ends.map(|(node, _)| End { node, port: 1 }).collect::<Vec<_>>().into_iter();
        let mut managers = Residents::default();
        managers.start(&mut subnet, ends.next().unwrap(), manager);
        let host = |(nth, at): (usize, End)| {
            let qpn = Qpn(0x48 + nth as u32);
            let guid = subnet.nodes()[at.node as usize].gid(at.port).guid();
            let number = nth as u8 + 1;
            let config = InterfaceConfig::new(guid, qpn, PKey::DEFAULT)
                .address(v4(number), 24)
                .address(v6(number.into()), 64);
            let config = adjust(config, nth);
            let (made, secondary_workers) = (1000 * u32::from(number), config.workers - 1);
            let port_driver = PortDriver { made, secondary_workers, ..PortDriver::default() };
            let interface = IpoibInterface::new(Time::START, config, seed * 100 + nth as u64);
            Host {
                at,
                qpn,
                interface,
                port_driver,
                got: vec![],
                seen: vec![],
                sent: vec![],
                slow_path: 0,
                reregistrations: 0,
            }
        };
        let hosts: Vec<_> = ends.enumerate().map(host).collect();
        Self {
            questions: 0,
            reports: vec![0; hosts.len()],
            subnet,
            managers,
            hosts,
            now: Time::START,
            weather: Weather::default(),
            late: Duration::ZERO,
            mads_lost: 0,
            path_status: None,
            seen: |_, view| view,
            rng: SeededRng::new(!seed),
            flying: BTreeMap::new(),
            number: 0,
        }
    }

    /// A subnet whose interfaces are all up, with their addresses.
    pub fn up(seed: u64, hosts: usize) -> Self {
        let mut world = Self::new(seed, hosts);
        world.pass(Duration::from_secs(5));
        world.assert_up();
        world
    }

    pub fn assert_up(&self) {
        for (nth, host) in self.hosts.iter().enumerate() {
            assert!(host.interface.is_up(), "{nth}: {:?}", host.interface.row());
            assert!(host.port_driver.own.len() >= 3, "{nth}: {:?}", host.port_driver.own);
        }
    }

    /// How an interface's port is now.
    pub fn view(&self, nth: usize) -> PortView {
        let at = self.hosts[nth].at;
        let node = &self.subnet.nodes()[at.node as usize];
        let port = &node.ports[usize::from(at.port)];
        let view = PortView {
            number: at.port,
            state: port.info.port_state,
            lid: port.info.lid,
            lmc: port.info.lmc,
            sm_lid: port.info.master_sm_lid,
            sm_sl: port.info.master_sm_sl,
            mtu: port.info.neighbor_mtu,
            gids: vec![node.gid(at.port)],
            pkeys: port.p_keys.entries().to_vec(),
        };
        (self.seen)(nth, view)
    }

    /// A host begins anew, with another UD queue pair.
    pub fn restart(&mut self, nth: usize, qpn: Qpn) {
        self.restart_with(nth, qpn, |config| config);
    }

    /// The same with other settings.
    pub fn restart_with(
        &mut self,
        nth: usize,
        qpn: Qpn,
        adjust: impl Fn(InterfaceConfig) -> InterfaceConfig,
    ) {
        let host = &mut self.hosts[nth];
        let guid = self.subnet.nodes()[host.at.node as usize].gid(host.at.port).guid();
        let number = nth as u8 + 1;
        let config = InterfaceConfig::new(guid, qpn, PKey::DEFAULT).address(v4(number), 24);
        let config = adjust(config);
        host.qpn = qpn;
        host.port_driver =
            PortDriver { secondary_workers: config.workers - 1, ..PortDriver::default() };
        host.interface = IpoibInterface::new(self.now, config, u64::from(qpn.0));
    }

    /// A host sends a packet: as its tables say, else by asking control.
    pub fn send(&mut self, nth: usize, packet: Vec<u8>) {
        self.send_by(nth, WorkerId::PRIMARY, packet);
    }

    /// The same by one of its workers.
    pub fn send_by(&mut self, nth: usize, worker: WorkerId, packet: Vec<u8>) {
        let host = &mut self.hosts[nth];
        let destination: IpAddr = match packet[0] >> 4 {
            4 => <[u8; 4]>::try_from(&packet[16..20]).unwrap().into(),
            _ => <[u8; 16]>::try_from(&packet[24..40]).unwrap().into(),
        };
        let peer = match mgid::GroupId::of(destination) {
            None => host.port_driver.bound.get(&destination),
            Some(id) => {
                let (p_key, scope) = (PKey::DEFAULT, pollux_wire::address::Scope::LINK_LOCAL);
                host.port_driver.groups.get(&mgid::LinkGroup { id, p_key, scope }.mgid())
            }
        };
        let adjacency = peer.map(|peer| (*peer, host.port_driver.peers[&(*peer, worker)]));
        match adjacency {
            Some((_, Adjacency::Datagram(adjacency))) if packet.len() > adjacency.mtu as usize => {
                host.interface.handle_too_big(self.now, &packet, adjacency.mtu);
            }
            Some((_, Adjacency::Connected { mtu, .. })) if packet.len() > mtu as usize => {
                host.interface.handle_too_big(self.now, &packet, mtu);
            }
            Some((peer, Adjacency::Datagram(_) | Adjacency::Connected { .. })) => {
                host.interface.handle_use(self.now, destination);
                let ether_type =
                    if packet[0] >> 4 == 4 { EtherType::IPV4 } else { EtherType::IPV6 };
                self.fly(nth, worker, OutgoingPacket { ether_type, packet, by: By::Peer(peer) });
            }
            _ => {
                host.slow_path += 1;
                host.interface.handle_miss(self.now, worker, packet);
            }
        }
        self.settle();
    }

    /// Where the subnet manager is.
    pub fn manager(&self) -> End {
        let nodes = (0..).zip(self.subnet.topology().nodes());
        let mut ends = nodes.filter(|(_, node)| node.kind == NodeType::CHANNEL_ADAPTER);
        ends.next().map(|(node, _)| End { node, port: 1 }).unwrap()
    }

    /// Whether a host's sockets, or what forwards for others there, got a packet.
    pub fn heard(&self, nth: usize, packet: &[u8]) -> bool {
        self.hosts[nth].got.iter().any(|got| got == packet)
            || self.hosts[nth].seen.iter().any(|seen| seen == packet)
    }

    /// Injects a datagram.
    pub fn inject(&mut self, nth: usize, ether_type: EtherType, packet: &[u8]) {
        let from =
            PacketSource::Datagram { qpn: Qpn(7), lid: self.view(nth).lid, gid: None, group: None };
        let received = ReceivedPacket { ether_type, packet, from };
        self.hosts[nth].interface.handle_packet(self.now, received);
        self.settle();
    }

    /// Lets everybody do what is to be done now.
    pub fn settle(&mut self) {
        loop {
            let mut arrived = Vec::new();
            self.managers.exchange(self.now, &mut self.subnet, |at, datagram| {
                arrived.push((at, datagram));
            });
            for (at, datagram) in arrived {
                self.mad_arrives(at, &datagram);
            }
            let landing: Vec<_> =
                self.flying.range(..=(self.now, u64::MAX)).map(|it| *it.0).collect();
            let has_landed = !landing.is_empty();
            for key in landing {
                self.land(key);
            }
            if !self.transmit() && !has_landed {
                return;
            }
        }
    }

    fn mad_arrives(&mut self, at: End, datagram: &Datagram) {
        let Some(nth) = self.hosts.iter().position(|host| host.at == at) else { return };
        let host = &mut self.hosts[nth];
        let mut mad = datagram.mad;
        let (mut header, _) = MadHeader::read(&mad).unwrap();
        if let Some(status) = self.path_status
            && header.attribute_id == PathRecord::ID
        {
            header.status = status;
            mad[..MadHeader::LEN].copy_from_slice(&header.emit());
        }
        self.reports[nth] += u64::from(header.method == Method::REPORT);
        if datagram.dest_qp == Qpn::GSI && !self.rng.happens(self.mads_lost) {
            let peer = MadAddress::gsi(datagram.slid, 0, PKey::DEFAULT);
            host.interface.handle_mad(self.now, &Envelope { peer, mad });
        }
    }

    fn land(&mut self, key: (Time, u64)) {
        let Some(Flying { to, ether_type, packet, from, qkey }) = self.flying.remove(&key) else {
            return;
        };
        let host = &mut self.hosts[to];
        if host.port_driver.link.is_some_and(|link| link.qkey == qkey) {
            let received = ReceivedPacket { ether_type, packet: &packet, from };
            host.seen.push(packet.clone());
            host.interface.handle_packet(self.now, received);
        }
    }

    fn transmit(&mut self) -> bool {
        let mut has_news = false;
        for nth in 0..self.hosts.len() {
            let host = &mut self.hosts[nth];
            // Frames and MADs leave only after all actions before them are carried out.
            loop {
                while let Some(action) = host.interface.poll_action() {
                    has_news = true;
                    host.port_driver.act(action);
                }
                if host.port_driver.events.is_empty() {
                    break;
                }
                for (key, events) in std::mem::take(&mut host.port_driver.events) {
                    host.interface.handle_connection(self.now, key, &events);
                }
            }
            while let Some(delivery) = host.interface.poll_delivery() {
                host.got.push(delivery.packet);
            }
            while let Some(Envelope { peer, mad }) = self.hosts[nth].interface.poll_mad() {
                has_news = true;
                if self.rng.happens(self.mads_lost) {
                    continue;
                }
                let view = self.view(nth);
                let slid = view.lid;
                self.questions += u64::from(peer.lid == view.sm_lid);
                let (src_qp, dest_qp, dlid) = (Qpn::GSI, peer.qpn, peer.lid);
                let p_key = peer.p_key;
                let datagram = Datagram { slid, dlid, src_qp, dest_qp, p_key, mad };
                self.subnet.send(self.now, self.hosts[nth].at, datagram);
            }
            while let Some(outgoing) = self.hosts[nth].interface.poll_frame() {
                has_news = true;
                self.hosts[nth].sent.push(outgoing.clone());
                self.fly(nth, WorkerId::PRIMARY, outgoing);
            }
        }
        has_news
    }

    fn fly(&mut self, nth: usize, worker: WorkerId, outgoing: OutgoingPacket) {
        let host = &self.hosts[nth];
        if let Some(connection) = host.port_driver.connection(worker, &outgoing) {
            return self.fly_connected(nth, connection, outgoing);
        }
        let adjacency = host.port_driver.adjacency(worker, &outgoing);
        let Some((adjacency, link)) = adjacency.zip(host.port_driver.link) else { return };
        if outgoing.packet.len() > adjacency.mtu as usize {
            assert!(matches!(outgoing.by, By::Peer(_)), "control sends what does not fit");
            // It was to go by a connection that is not there any more.
            let packet = outgoing.packet;
            return self.hosts[nth].interface.handle_too_big(self.now, &packet, adjacency.mtu);
        }
        let group = adjacency.vector.grh.map(|grh| grh.dgid).filter(|gid| gid.is_multicast());
        let gid = adjacency.vector.grh.map(|_| link.gid);
        let from = PacketSource::Datagram { qpn: host.qpn, lid: link.lid, gid, group };
        let receivers: Vec<usize> = (0..self.hosts.len())
            .filter(|&to| {
                to != nth && self.hosts[to].port_driver.hears(self.hosts[to].qpn, &adjacency)
            })
            .collect();
        let OutgoingPacket { ether_type, packet, .. } = outgoing;
        for to in receivers {
            let copies = 1 + u32::from(self.rng.happens(self.weather.doubled));
            for _ in 0..copies {
                if self.rng.happens(self.weather.lost) {
                    continue;
                }
                let delay = match self.rng.happens(self.weather.delayed) {
                    true => self.rng.duration(Duration::from_millis(200)),
                    false => Duration::ZERO,
                };
                self.number += 1;
                let (packet, qkey) = (packet.clone(), link.qkey);
                let flying = Flying { to, ether_type, packet, from, qkey };
                self.flying.insert((self.now + self.late + delay, self.number), flying);
            }
        }
    }

    /// A packet by a connection: it arrives, or the connection fails.
    fn fly_connected(&mut self, nth: usize, key: ConnectionKey, outgoing: OutgoingPacket) {
        let Some(own) = self.hosts[nth].port_driver.connections.get(&key).copied() else { return };
        if own.state == QpState::Err {
            return;
        }
        assert_eq!(own.state, QpState::Rts, "a packet for what cannot send");
        self.hosts[nth].port_driver.events.push((key, QueuePairEvent::Used { received: false }));
        let ends = self.hosts.iter().enumerate().flat_map(|(to, host)| {
            host.port_driver.connections.iter().map(move |(key, qp)| (to, *key, *qp))
        });
        let is_other_end = |qp: &QueuePair| {
            Some(qp.qpn) == own.dest_qp
                && qp.dest_qp == Some(own.qpn)
                && matches!(qp.state, QpState::Rtr | QpState::Rts)
        };
        let Some((to, there, _)) = ends.into_iter().find(|(_, _, qp)| is_other_end(qp)) else {
            // Nobody tells of what an unreliable connection loses.
            if own.qp_type == QpType::Rc {
                self.hosts[nth].port_driver.fail(key);
            }
            return;
        };
        let OutgoingPacket { ether_type, packet, .. } = outgoing;
        self.hosts[to].port_driver.events.push((there, QueuePairEvent::DataCame));
        let qkey = self.hosts[to].port_driver.link.map_or(QKey(0), |link| link.qkey);
        self.number += 1;
        let flying = Flying { to, ether_type, packet, from: PacketSource::Connection(there), qkey };
        self.flying.insert((self.now, self.number), flying);
    }

    /// Advances the time in steps shorter than all timers.
    pub fn pass(&mut self, time: Duration) {
        let until = self.now + time;
        while self.now < until {
            self.now = self.now + Duration::from_millis(20);
            self.managers.timeout(self.now);
            self.tell_ports();
            for host in &mut self.hosts {
                if host.interface.poll_timeout().is_some_and(|due| due <= self.now) {
                    host.interface.handle_timeout(self.now);
                }
            }
            self.settle();
        }
    }

    /// Interfaces read their ports, and get client reregisters.
    fn tell_ports(&mut self) {
        for nth in 0..self.hosts.len() {
            let view = self.view(nth);
            let host = &mut self.hosts[nth];
            host.interface.handle_port(self.now, &view);
            let End { node, port } = host.at;
            let port = &self.subnet.nodes()[node as usize].ports[usize::from(port)];
            let before = std::mem::replace(&mut host.reregistrations, port.reregistrations);
            if port.reregistrations != before && view.state == PortState::ACTIVE {
                host.interface.handle_reregister(self.now);
            }
        }
    }

    /// Whether a packet from one host gets to another, within some time.
    pub fn reaches(&mut self, from: usize, to: usize, packet: &[u8], within: Duration) -> bool {
        self.reaches_by(from, WorkerId::PRIMARY, to, packet, within)
    }

    /// The same by one of its workers.
    pub fn reaches_by(
        &mut self,
        from: usize,
        worker: WorkerId,
        to: usize,
        packet: &[u8],
        within: Duration,
    ) -> bool {
        let until = self.now + within;
        self.hosts[to].got.clear();
        while self.now < until {
            self.send_by(from, worker, packet.to_vec());
            if self.hosts[to].got.iter().any(|got| got == packet) {
                return true;
            }
            self.pass(Duration::from_millis(100));
        }
        self.hosts[to].got.iter().any(|got| got == packet)
    }
}
