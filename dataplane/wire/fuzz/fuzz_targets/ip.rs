//! IPv4 and IPv6 with options, extension headers, ICMP, IGMP, UDP and TCP.
#![no_main]

use libfuzzer_sys::fuzz_target;
use pollux_wire::ip::icmpv4::Icmpv4Message;
use pollux_wire::ip::igmp::IgmpMessage;
use pollux_wire::ip::ipv4::Ipv4Packet;
use pollux_wire::ip::ipv6::Ipv6Packet;
use pollux_wire::ip::ipv6_ext::UpperLayer;
use pollux_wire::ip::tcp::TcpSegment;
use pollux_wire::ip::udp::UdpDatagram;
use pollux_wire_fuzz::round_trips;

fn upper(bytes: &[u8]) {
    round_trips!(bytes, Icmpv4Message, IgmpMessage);
    if let Ok(segment) = TcpSegment::parse(bytes) {
        let _ = (segment.header(), segment.options().count());
    }
    if let Ok(datagram) = UdpDatagram::parse(bytes) {
        let _ = datagram.header();
    }
}

fuzz_target!(|bytes: &[u8]| {
    upper(bytes);
    if let Ok(packet) = Ipv4Packet::parse(bytes) {
        let _ = (packet.checksum_ok(), packet.options().count());
        upper(packet.payload());
    }
    if let Ok(packet) = Ipv6Packet::parse(bytes)
        && let Ok(found) = UpperLayer::find(packet.header().next_header, packet.payload())
    {
        upper(found.payload);
    }
});
