//! Segments written without a stack.

use crate::world::World;
use pollux_wire::ip::IpProtocol;
use pollux_wire::ip::ipv4::Ipv4Header;
use pollux_wire::ip::tcp::{TcpHeader, TcpOption, TcpSegment, fill_checksum};
use std::net::{IpAddr, SocketAddr};

/// An IPv4 packet with a segment. The header's ports are filled in.
pub fn segment(
    (from, to): (SocketAddr, SocketAddr),
    header: TcpHeader,
    options: &[TcpOption<'_>],
    payload: &[u8],
) -> Vec<u8> {
    let (IpAddr::V4(source), IpAddr::V4(destination)) = (from.ip(), to.ip()) else {
        panic!("{from} and {to} are not of IPv4");
    };
    let header = TcpHeader { source_port: from.port(), destination_port: to.port(), ..header };
    let mut buffer = [0; 2 * TcpHeader::LEN_MAX];
    header.write_segment(options, 0, &mut buffer).expect("there is space");
    let len = usize::from(buffer[12] >> 4) * 4;
    let mut segment = [&buffer[..len], payload].concat();
    let protocol = IpProtocol::TCP;
    let ip = Ipv4Header { ttl: 9, protocol, source, destination, ..Ipv4Header::default() };
    fill_checksum(&mut segment, &ip.pseudo_header()).expect("it is a segment");
    let mut packet = vec![0; Ipv4Header::LEN + segment.len()];
    let rest = ip.write_packet(&[], segment.len(), &mut packet).expect("there is space");
    rest.copy_from_slice(&segment);
    packet
}

/// The header of the segment in an IPv4 packet.
pub fn header_of(packet: &[u8]) -> TcpHeader {
    TcpSegment::parse(&packet[Ipv4Header::LEN..]).expect("it is a segment").header()
}

/// Headers of all segments that a host sends now.
pub fn sent_by(world: &mut World, host: usize) -> Vec<TcpHeader> {
    let now = world.now;
    let next = || world.hosts[host].poll_transmit(now).map(header_of);
    std::iter::from_fn(next).collect()
}
