//! Received packets: passes each to its protocol or to local sockets.

use super::{Delivery, InterfaceDrop, IpoibInterface, PacketSource, PendingPacket, ReceivedPacket};
use crate::frame::source;
use crate::icmp::IcmpError;
use crate::no_listener::Answer;
use crate::thread_check::assert_no_worker_thread;
use pollux_verbs::time::Time;
use pollux_wire::address::{Gid, Lid, Qpn};
use pollux_wire::ethernet::EtherType;
use pollux_wire::ip::IpProtocol;
use pollux_wire::ip::arp::ArpPacket;
use pollux_wire::ip::icmp::Icmpv6Type;
use pollux_wire::ip::icmpv4::Icmpv4Type;
use pollux_wire::ip::ipv4::Ipv4Packet;
use pollux_wire::ip::ipv6::Ipv6Packet;
use pollux_wire::ip::ipv6_ext::UpperLayer;
use pollux_wire::ip::link_address::LinkAddress;
use pollux_wire::ip::nd::{NdBody, NdMessage};
use pollux_wire::ip::nd_option::{LinkLayerAddress, NdOption};
use pollux_wire::mad::sa::PathRecord;
use std::net::IpAddr;

enum Handler {
    Discovery,
    Membership,
    /// An echo request to one of our addresses.
    Echo,
    Sockets,
}

impl IpoibInterface {
    /// Handles a packet for control, or for one of our addresses or groups.
    pub fn handle_packet(&mut self, now: Time, received: ReceivedPacket<'_>) {
        assert_no_worker_thread();
        if self.check_up() {
            self.receive(now, received);
        }
        self.pump(now);
    }

    fn receive(
        &mut self,
        now: Time,
        ReceivedPacket { ether_type, packet, from }: ReceivedPacket<'_>,
    ) {
        if !self.is_claimed_by_sender(ether_type, packet, from) {
            return self.drops.count(InterfaceDrop::Imposter);
        }
        if let PacketSource::Datagram { qpn, lid, gid, .. } = from {
            self.check_lid(now, packet, gid, qpn, lid);
        }
        match ether_type {
            EtherType::ARP | EtherType::RARP => self.arp.handle_packet(now, packet),
            EtherType::IPV4 => self.receive_v4(now, packet),
            EtherType::IPV6 if self.config.ipv6 => self.receive_v6(now, packet),
            _ => self.drops.count(InterfaceDrop::Malformed),
        }
    }

    /// Whether a packet that claims a link address was sent by that interface, as far as its
    /// headers show. Without a GRH the sender's GID is unknown and the packet is accepted, so an
    /// address server can answer for other hosts (RFC 4391 9.3).
    fn is_claimed_by_sender(
        &self,
        ether_type: EtherType,
        packet: &[u8],
        from: PacketSource,
    ) -> bool {
        let sender = match from {
            PacketSource::Datagram { gid, qpn, .. } => gid.map(|gid| (gid, qpn)),
            PacketSource::Connection(key) => {
                self.connections.peer_of(key).map(|it| (it.gid, it.qpn))
            }
        };
        let claimed = match ether_type {
            EtherType::ARP | EtherType::RARP => {
                ArpPacket::parse(packet).ok().map(|arp| arp.sender_hardware)
            }
            EtherType::IPV6 => claimed_by_discovery(packet),
            _ => None,
        };
        sender.zip(claimed).is_none_or(|(sender, claimed)| sender == (claimed.gid, claimed.qpn))
    }

    /// Queries a path again if a datagram of the peer has another source LID. Without a GRH, the
    /// source IP address and the QPN identify the neighbor.
    fn check_lid(&mut self, now: Time, packet: &[u8], gid: Option<Gid>, qpn: Qpn, lid: Lid) {
        let of_neighbor = || {
            let link = self.neighbors.address(source(packet)?)?;
            (link.qpn == qpn).then_some(link.gid)
        };
        let Some(gid) = gid.or_else(of_neighbor) else { return };
        let lmc = self.lmc();
        let path = self.paths.get(gid).and_then(|path| path.record.as_deref());
        // The LID of a datagram from beyond a router is the router's.
        let is_other =
            |path: &PathRecord| path.hop_limit == 0 && path.dlid.0 >> lmc != lid.0 >> lmc;
        if path.is_some_and(is_other) {
            self.refresh_path(now, gid);
        }
    }

    fn receive_v4(&mut self, now: Time, bytes: &[u8]) {
        let Ok(packet) = Ipv4Packet::parse(bytes) else {
            return self.drops.count(InterfaceDrop::Malformed);
        };
        if self.take_dhcp_packet(now, &packet, bytes) {
            return;
        }
        let header = packet.header();
        let first = packet.payload().first().copied().map(Icmpv4Type);
        let is_unfragmented = !header.is_fragment();
        match (header.protocol, first) {
            (IpProtocol::IGMP, _) => self.membership.handle_igmp(now, bytes),
            (IpProtocol::ICMPV4, Some(Icmpv4Type::ECHO_REQUEST)) if is_unfragmented => {
                self.deliver(now, EtherType::IPV4, header.destination.into(), bytes, Handler::Echo);
            }
            _ => {
                let handler = Handler::Sockets;
                self.deliver(now, EtherType::IPV4, header.destination.into(), bytes, handler);
            }
        }
    }

    fn receive_v6(&mut self, now: Time, bytes: &[u8]) {
        let Ok(packet) = Ipv6Packet::parse(bytes) else {
            return self.drops.count(InterfaceDrop::Malformed);
        };
        let header = packet.header();
        let Ok(upper) = UpperLayer::find(header.next_header, packet.payload()) else {
            return self.drops.count(InterfaceDrop::Malformed);
        };
        match classify_v6(&upper) {
            Handler::Discovery => self.nd.handle_packet(bytes),
            Handler::Membership => self.membership.handle_mld(now, bytes),
            handler => {
                self.deliver(now, EtherType::IPV6, header.destination.into(), bytes, handler);
            }
        }
    }

    fn deliver(
        &mut self,
        now: Time,
        ether_type: EtherType,
        destination: IpAddr,
        bytes: &[u8],
        handler: Handler,
    ) {
        let is_broadcast = matches!(destination, IpAddr::V4(ip) if self.addresses.is_broadcast(ip));
        let is_ours = self.addresses.is_of_node(destination)
            || is_broadcast
            || self.membership.has_listener(destination);
        if !is_ours {
            return self.drops.count(InterfaceDrop::Transit);
        }
        if matches!(handler, Handler::Echo) {
            if let Some(frame) = self.icmp.handle_echo(now, bytes, &self.addresses) {
                self.send_frame(now, frame.at_link());
            }
            return;
        }
        self.deliveries.push(Delivery { ether_type, packet: bytes.to_vec() });
    }

    /// Handles a packet to a port without a listener: answers with a TCP reset or an ICMP error.
    pub fn handle_no_listener(&mut self, now: Time, packet: &[u8]) {
        assert_no_worker_thread();
        match Answer::to(packet, &self.addresses) {
            Answer::Reset(reset) => self.route(now, PendingPacket::of(reset)),
            Answer::NoPort => self.send_icmp_error(now, packet, IcmpError::NoPort),
            Answer::Nothing => {}
        }
        self.pump(now);
    }
}

/// The link address option that a neighbor discovery message has for its sender. The target option
/// of a redirect is not the sender's but another interface's.
fn claimed_by_discovery(packet: &[u8]) -> Option<LinkAddress> {
    let packet = Ipv6Packet::parse(packet).ok()?;
    let upper = UpperLayer::find(packet.header().next_header, packet.payload()).ok()?;
    if !matches!(classify_v6(&upper), Handler::Discovery) {
        return None;
    }
    let message = NdMessage::parse(upper.payload).ok()?;
    let is_redirect = matches!(message.body, NdBody::Redirect(_));
    message.options.iter().find_map(|option| match option {
        NdOption::Source(LinkLayerAddress::InfiniBand(own)) => Some(own),
        NdOption::Target(LinkLayerAddress::InfiniBand(own)) if !is_redirect => Some(own),
        _ => None,
    })
}

fn classify_v6(upper: &UpperLayer<'_>) -> Handler {
    if upper.protocol != IpProtocol::ICMPV6 {
        return Handler::Sockets;
    }
    match upper.payload.first().copied() {
        Some(133..=137) => Handler::Discovery,
        Some(130..=132 | 143) => Handler::Membership,
        Some(kind) if Icmpv6Type(kind) == Icmpv6Type::ECHO_REQUEST && upper.fragment.is_none() => {
            Handler::Echo
        }
        _ => Handler::Sockets,
    }
}
