//! A node: the machines of IP's slow protocols, tied together as an interface ties them.

use pollux_control::address::{
    AddressEvent, Addresses, InterfaceId, Lifetimes, NextHop, Origin, Routes,
};
use pollux_control::arp::{Arp, ArpConfig, ArpEvent};
use pollux_control::frame::{Frame, To};
use pollux_control::icmp::{Icmp, IcmpConfig, IcmpError};
use pollux_control::membership::{Membership, MembershipEvent};
use pollux_control::nd::{ALL_NODES, Nd, NdConfig, NdEvent, solicited_node};
use pollux_control::neighbor::{NeighborConfig, NeighborEvent, NeighborRow, Neighbors, Resolution};
use pollux_verbs::time::Time;
use pollux_wire::address::{Gid, Guid, Qpn};
use pollux_wire::ip::IpProtocol;
use pollux_wire::ip::icmp::Echo;
use pollux_wire::ip::icmpv4::{self, Icmpv4Message};
use pollux_wire::ip::icmpv6::{self, Icmpv6Message};
use pollux_wire::ip::ipoib::EtherType;
use pollux_wire::ip::ipv4::{Ipv4Header, Ipv4Packet};
use pollux_wire::ip::ipv6::{Ipv6Header, Ipv6Packet};
use pollux_wire::ip::ipv6_ext::UpperLayer;
use pollux_wire::ip::link_address::LinkAddress;
use pollux_wire::ip::mgid::GroupId;
use std::collections::BTreeSet;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::time::Duration;

/// Where the interface with this number and queue pair is.
pub fn link(number: u64, qpn: u32) -> LinkAddress {
    let gid = Gid::new(Gid::DEFAULT_PREFIX, Guid(0x0002_c903_0000_1000 | number));
    LinkAddress { rc: true, uc: false, qpn: Qpn(qpn), gid }
}

/// What became of the packets that somebody wanted to send.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Fates {
    pub wanted: usize,
    pub sent: usize,
    pub unreachable: usize,
    pub no_route: usize,
}

pub struct Node {
    pub link: LinkAddress,
    pub identifier: InterfaceId,
    pub arp: Arp,
    pub nd: Nd,
    pub neighbors: Neighbors<(EtherType, Vec<u8>)>,
    pub addresses: Addresses,
    pub routes: Routes,
    pub membership: Membership,
    pub icmp: Icmp,
    /// Groups of the link that it joined.
    pub groups: BTreeSet<GroupId>,
    pub fates: Fates,
    /// Whose answers to echoes came.
    pub echoes: Vec<IpAddr>,
    /// Addresses that turned out to be another's.
    pub duplicates: Vec<IpAddr>,
    /// ICMP errors that were made for whoever sends from here.
    pub errors: usize,
    out: Vec<Frame>,
}

impl Node {
    pub fn new(number: u64, qpn: u32, seed: u64) -> Self {
        let link = link(number, qpn);
        let nd =
            NdConfig { link, is_router: false, detections: 1, retry_after: Duration::from_secs(1) };
        Self {
            link,
            identifier: InterfaceId::of_port(link.gid.guid()),
            arp: Arp::new(ArpConfig { link, cedes: false }, seed),
            nd: Nd::new(nd, seed),
            neighbors: Neighbors::new(NeighborConfig::default(), seed),
            addresses: Addresses::new(),
            routes: Routes::new(),
            membership: Membership::new(seed),
            icmp: Icmp::new(&IcmpConfig::default()),
            groups: BTreeSet::from([GroupId::Broadcast]),
            fates: Fates::default(),
            echoes: Vec::new(),
            duplicates: Vec::new(),
            errors: 0,
            out: Vec::new(),
        }
    }

    /// Begins as an interface does: everyone's group, a link-local address, the search for routers.
    pub fn start(&mut self, now: Time) {
        self.membership.join(now, ALL_NODES.into());
        let own = self.identifier.link_local().into();
        self.addresses.add(now, own, 64, Origin::LinkLocal, Lifetimes::default());
        self.nd.solicit_routers(now);
    }

    pub fn configure(&mut self, now: Time, ip: &str, len: u8) {
        let ip = ip.parse().unwrap();
        self.addresses.add(now, ip, len, Origin::Configured, Lifetimes::default());
        let configured = self.addresses.iter().filter(|one| one.origin == Origin::Configured);
        self.routes.set_own(configured.map(|one| (one.ip, one.prefix_len)));
    }

    /// Sends an echo request.
    pub fn ping(&mut self, now: Time, to: IpAddr) {
        let Some(source) = self.addresses.source_for(to) else { return };
        let echo = Echo { identifier: 1, sequence: 2, data: b"hello" };
        let (ether_type, packet) = match (source, to) {
            (IpAddr::V4(source), IpAddr::V4(destination)) => {
                let message = Icmpv4Message::EchoRequest(echo);
                let mut payload = vec![0; message.wire_len()];
                message.write(&mut payload).unwrap();
                icmpv4::fill_checksum(&mut payload).unwrap();
                let protocol = IpProtocol::ICMPV4;
                let header =
                    Ipv4Header { ttl: 64, protocol, source, destination, ..Ipv4Header::default() };
                let mut packet = vec![0; Ipv4Header::LEN + payload.len()];
                let room = header.write_packet(&[], payload.len(), &mut packet).unwrap();
                room.copy_from_slice(&payload);
                (EtherType::IPV4, packet)
            }
            (IpAddr::V6(source), IpAddr::V6(destination)) => {
                let message = Icmpv6Message::EchoRequest(echo);
                let next_header = IpProtocol::ICMPV6;
                let header = Ipv6Header {
                    next_header,
                    hop_limit: 64,
                    source,
                    destination,
                    ..Ipv6Header::default()
                };
                let mut packet = vec![0; Ipv6Header::LEN + message.wire_len()];
                let room = header.write_packet(message.wire_len(), &mut packet).unwrap();
                message.write(room).unwrap();
                icmpv6::fill_checksum(room, &header.pseudo_header()).unwrap();
                (EtherType::IPV6, packet)
            }
            _ => return,
        };
        self.route(now, ether_type, packet);
    }

    /// Sends a packet to whoever is next on its way.
    fn route(&mut self, now: Time, ether_type: EtherType, packet: Vec<u8>) {
        self.fates.wanted += 1;
        let destination: IpAddr = match Ipv4Packet::parse(&packet) {
            Ok(packet) => packet.header().destination.into(),
            Err(_) => Ipv6Packet::parse(&packet).unwrap().header().destination.into(),
        };
        let neighbors = &self.neighbors;
        let hop =
            self.routes.next_hop(now, destination, |router| neighbors.may_be_reachable(router));
        match hop {
            None => {
                self.fates.no_route += 1;
                self.send_icmp_error(now, &packet, IcmpError::NoRoute);
            }
            Some(NextHop::Group(group)) => {
                self.transmit(To::group_of(group), ether_type, packet);
            }
            Some(NextHop::OnLink(ip) | NextHop::Via(ip)) => {
                self.resolve(now, ip, ether_type, packet);
            }
        }
    }

    fn resolve(&mut self, now: Time, ip: IpAddr, ether_type: EtherType, packet: Vec<u8>) {
        match self.neighbors.resolve(now, ip, (ether_type, packet)) {
            Resolution::Waits => {}
            Resolution::Known(address, (ether_type, packet)) => {
                self.transmit(To::Link(address), ether_type, packet);
            }
            Resolution::Unreachable((_, packet)) => self.give_up(now, &packet),
        }
    }

    fn transmit(&mut self, to: To, ether_type: EtherType, packet: Vec<u8>) {
        self.fates.sent += 1;
        self.out.push(Frame { to, ether_type, packet });
    }

    fn give_up(&mut self, now: Time, packet: &[u8]) {
        self.fates.unreachable += 1;
        self.send_icmp_error(now, packet, IcmpError::NoAnswer);
    }

    fn send_icmp_error(&mut self, now: Time, packet: &[u8], error: IcmpError) {
        let error = self.icmp.error_about(now, packet, false, error, &self.addresses);
        self.errors += error.iter().count();
    }

    /// A frame came by the link.
    pub fn receive(&mut self, now: Time, ether_type: EtherType, packet: &[u8]) {
        match ether_type {
            EtherType::ARP | EtherType::RARP => self.arp.handle_packet(now, packet),
            EtherType::IPV4 => self.receive_v4(now, packet),
            _ => self.receive_v6(now, packet),
        }
    }

    fn receive_v4(&mut self, now: Time, bytes: &[u8]) {
        let Ok(packet) = Ipv4Packet::parse(bytes) else { return };
        let header = packet.header();
        if header.protocol == IpProtocol::IGMP {
            return self.membership.handle_igmp(now, bytes);
        }
        if !self.addresses.is_ours(header.destination.into()) {
            return;
        }
        if let Some(answer) = self.icmp.handle_echo(now, bytes, &self.addresses) {
            self.route(now, answer.ether_type, answer.packet);
        } else if let Ok(Icmpv4Message::EchoReply(_)) = Icmpv4Message::parse(packet.payload()) {
            self.echoes.push(header.source.into());
        }
    }

    fn receive_v6(&mut self, now: Time, bytes: &[u8]) {
        let Ok(packet) = Ipv6Packet::parse(bytes) else { return };
        let header = packet.header();
        let destination = IpAddr::V6(header.destination);
        if !self.addresses.is_ours(destination) && !self.membership.hears(destination) {
            return;
        }
        let Ok(upper) = UpperLayer::find(header.next_header, packet.payload()) else { return };
        match Icmpv6Message::parse(upper.payload) {
            Ok(Icmpv6Message::Nd(_)) => self.nd.handle_packet(bytes),
            Ok(Icmpv6Message::Mld(_)) => self.membership.handle_mld(now, bytes),
            Ok(Icmpv6Message::EchoReply(_)) => self.echoes.push(header.source.into()),
            _ => {
                if let Some(answer) = self.icmp.handle_echo(now, bytes, &self.addresses) {
                    self.route(now, answer.ether_type, answer.packet);
                }
            }
        }
    }

    pub fn handle_timeout(&mut self, now: Time) {
        self.arp.handle_timeout(now);
        self.nd.handle_timeout(now);
        self.neighbors.handle_timeout(now);
        self.addresses.handle_timeout(now);
        self.routes.handle_timeout(now);
        self.membership.handle_timeout(now);
    }

    pub fn poll_timeout(&self) -> Option<Time> {
        let all = [
            self.arp.poll_timeout(),
            self.nd.poll_timeout(),
            self.neighbors.poll_timeout(),
            self.addresses.poll_timeout(),
            self.routes.poll_timeout(),
            self.membership.poll_timeout(),
        ];
        all.into_iter().flatten().min()
    }

    /// Carries events from machine to machine until there are none; gives what is to be sent.
    pub fn drain(&mut self, now: Time) -> Vec<Frame> {
        loop {
            let before = self.out.len();
            let carried = self.carry(now);
            self.collect(now);
            if !carried && self.out.len() == before {
                return std::mem::take(&mut self.out);
            }
        }
    }

    fn carry(&mut self, now: Time) -> bool {
        let mut carried = false;
        while let Some(event) = self.addresses.poll_event() {
            self.handle_address(now, event);
            carried = true;
        }
        while let Some(event) = self.arp.poll_event() {
            match event {
                ArpEvent::Claim(claim) => self.neighbors.handle_claim(now, claim),
                ArpEvent::Held(ip) => self.addresses.handle_assigned(now, ip.into()),
                ArpEvent::Ceded(ip, _) => self.addresses.handle_duplicate(now, ip.into()),
                _ => {}
            }
            carried = true;
        }
        while let Some(event) = self.nd.poll_event() {
            self.handle_nd(now, event);
            carried = true;
        }
        while let Some(event) = self.neighbors.poll_event() {
            self.handle_neighbor(now, event);
            carried = true;
        }
        while let Some(event) = self.membership.poll_event() {
            match event {
                MembershipEvent::Join(id) => assert!(self.groups.insert(id)),
                MembershipEvent::Leave(id) => assert!(self.groups.remove(&id)),
            }
            carried = true;
        }
        carried
    }

    fn handle_address(&mut self, now: Time, event: AddressEvent) {
        match event {
            AddressEvent::Tentative(IpAddr::V4(ip)) => assert!(self.arp.add(now, ip, true)),
            AddressEvent::Tentative(IpAddr::V6(ip)) => {
                self.membership.join(now, solicited_node(ip).into());
                assert!(self.nd.add(now, ip));
            }
            AddressEvent::Duplicate(ip) | AddressEvent::Removed(ip) => {
                if event == AddressEvent::Duplicate(ip) {
                    self.duplicates.push(ip);
                }
                match ip {
                    IpAddr::V4(ip) => self.arp.remove(ip),
                    IpAddr::V6(ip) => {
                        self.nd.remove(ip);
                        self.membership.leave(now, solicited_node(ip).into());
                    }
                }
            }
            AddressEvent::Preferred(_) | AddressEvent::Deprecated(_) => {
                let v6 = self.addresses.link_local().unwrap_or(Ipv6Addr::UNSPECIFIED);
                self.membership.set_sources(Ipv4Addr::UNSPECIFIED, v6);
            }
        }
    }

    fn handle_nd(&mut self, now: Time, event: NdEvent) {
        match event {
            NdEvent::Claim(claim) => self.neighbors.handle_claim(now, claim),
            NdEvent::Assigned(ip) => self.addresses.handle_assigned(now, ip.into()),
            NdEvent::Duplicate(ip) => self.addresses.handle_duplicate(now, ip.into()),
            NdEvent::NotRouter(ip) => self.routes.handle_not_router(ip),
            NdEvent::Router(said) => {
                self.routes.handle_router(now, &said);
                self.neighbors.set_times(said.reachable_for, said.retry_after);
                for prefix in &said.prefixes {
                    self.addresses.handle_prefix(now, prefix, self.identifier);
                }
            }
            NdEvent::Redirected { router, destination, target } => {
                let neighbors = &self.neighbors;
                self.routes.handle_redirect(now, router, destination, target, |ip| {
                    neighbors.may_be_reachable(ip)
                });
            }
            NdEvent::Contested(_) => {}
        }
    }

    fn handle_neighbor(&mut self, now: Time, event: NeighborEvent<(EtherType, Vec<u8>)>) {
        match event {
            NeighborEvent::Resolved(_, address, packets) => {
                for (ether_type, packet) in packets {
                    self.transmit(To::Link(address), ether_type, packet);
                }
            }
            NeighborEvent::Unreachable(_, packets) | NeighborEvent::Forgotten(_, _, packets) => {
                for (_, packet) in packets {
                    self.give_up(now, &packet);
                }
            }
            NeighborEvent::Changed(..) | NeighborEvent::Lost(..) => {}
        }
    }

    /// Collects what the machines have to send.
    fn collect(&mut self, now: Time) {
        while let Some(ask) = self.neighbors.poll_transmit() {
            match (ask.ip, self.addresses.source_for(ask.ip)) {
                (IpAddr::V4(ip), Some(IpAddr::V4(own))) => self.arp.solicit(own, ip, ask.at),
                (IpAddr::V6(ip), Some(IpAddr::V6(own))) => self.nd.solicit(own, ip, ask.at),
                _ => {}
            }
        }
        let mut frames: Vec<Frame> = std::iter::from_fn(|| self.arp.poll_transmit()).collect();
        frames.extend(std::iter::from_fn(|| self.nd.poll_transmit()));
        frames.extend(std::iter::from_fn(|| self.membership.poll_transmit()));
        for frame in frames {
            match frame.to {
                To::Group(_) | To::Link(_) => self.out.push(frame),
                To::Neighbor(ip) => {
                    self.fates.wanted += 1;
                    self.resolve(now, ip, frame.ether_type, frame.packet);
                }
                To::Route => panic!("resolution goes by UD: {frame:?}"),
            }
        }
    }

    pub fn rows(&self, now: Time) -> Vec<NeighborRow> {
        self.neighbors.rows(now).collect()
    }
}
