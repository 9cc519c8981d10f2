//! Packets of an IP over InfiniBand link, for tests that have them dissected.

use pollux_referee::frames::{ud, ud_multicast};
use pollux_referee::tshark::Frame;
use pollux_wire::ip::IpProtocol;
use pollux_wire::ip::ipoib::{EtherType, IpoibHeader};
use pollux_wire::ip::ipv4::{Ipv4Header, Ipv4Option};
use pollux_wire::ip::mgid::{GroupId, LinkGroup, Scope};
use pollux_wire::keys::PKey;
use std::net::{IpAddr, Ipv4Addr};

/// The sender.
pub const V4: Ipv4Addr = Ipv4Addr::new(10, 0, 0, 1);
/// A receiver.
pub const HOST: Ipv4Addr = Ipv4Addr::new(10, 0, 0, 2);
/// A group of receivers.
pub const GROUP_V4: Ipv4Addr = Ipv4Addr::new(239, 1, 2, 3);
/// All receivers.
pub const EVERYONE_V4: IpAddr = IpAddr::V4(Ipv4Addr::BROADCAST);

/// `octets` as tshark prints them.
pub fn hex(octets: &[u8]) -> String {
    octets.iter().map(|octet| format!("{octet:02x}")).collect()
}

/// A datagram to `destination`, to its group if it is one, LRH to VCRC.
pub fn on_link(destination: IpAddr, ether_type: EtherType, packet: &[u8]) -> Vec<u8> {
    let payload = [&IpoibHeader { ether_type }.emit()[..], packet].concat();
    match GroupId::of(destination) {
        Some(id) => {
            let group = LinkGroup { id, p_key: PKey::DEFAULT, scope: Scope::LINK_LOCAL };
            ud_multicast(group.mgid(), &payload)
        }
        None => ud(&payload),
    }
}

/// The same, to be judged.
pub fn frame(
    name: impl Into<String>,
    destination: IpAddr,
    ether_type: EtherType,
    packet: &[u8],
) -> Frame {
    Frame::new(name, on_link(destination, ether_type, packet))
}

/// A header from [`V4`].
pub fn v4_header(protocol: IpProtocol, destination: Ipv4Addr) -> Ipv4Header {
    Ipv4Header { ttl: 64, protocol, source: V4, destination, ..Ipv4Header::default() }
}

/// An IPv4 packet.
pub fn ipv4(header: Ipv4Header, options: &[Ipv4Option<'_>], payload: &[u8]) -> Vec<u8> {
    let mut out = vec![0; Ipv4Header::LEN_MAX + payload.len()];
    let room = header.write_packet(options, payload.len(), &mut out).expect("it fits");
    room.copy_from_slice(payload);
    let parsed = pollux_wire::ip::ipv4::Ipv4Packet::parse(&out).expect("it was just written");
    out.truncate(usize::from(parsed.header().total_length));
    out
}
