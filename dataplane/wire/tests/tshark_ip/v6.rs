//! IPv6, its extensions and its payloads.

use crate::link::{LINK_ADDRESS, emitted, frame, hex};
use pollux_referee::tshark::{DissectedFrame, judge};
use pollux_wire::ethernet::EtherType;
use pollux_wire::ip::IpProtocol;
use pollux_wire::ip::group_record::{GroupRecord, Querier, RecordType, floating_16};
use pollux_wire::ip::icmp::{IcmpEcho, Icmpv6Type};
use pollux_wire::ip::icmpv6::{
    self, Icmpv6Message, Icmpv6ParameterProblem, Icmpv6TimeExceeded, Icmpv6Unreachable,
};
use pollux_wire::ip::ipv6::Ipv6Header;
use pollux_wire::ip::ipv6_ext::{
    Extension, FragmentHeader, Ipv6Option, Ipv6OptionKind, OptionsHeader, RoutingHeader,
};
use pollux_wire::ip::link_address::LinkAddress;
use pollux_wire::ip::list::List;
use pollux_wire::ip::mld::MldMessage;
use pollux_wire::ip::nd::{
    NdBody, NdMessage, NeighborAdvertisement, NeighborSolicitation, Redirect, RouterAdvertisement,
};
use pollux_wire::ip::nd_option::{LinkLayerAddress, NdOption, NdOptionType, PrefixInformation};
use pollux_wire::ip::tcp::{self, TcpHeader, TcpOption};
use pollux_wire::ip::udp::{self, UdpHeader};
use std::net::Ipv6Addr;

const V6: Ipv6Addr = Ipv6Addr::new(0xfe80, 0, 0, 0, 2, 0xc903, 0, 0x1001);
const HOST: Ipv6Addr = Ipv6Addr::new(0xfe80, 0, 0, 0, 2, 0xc903, 0, 0x2001);
const NODES: Ipv6Addr = Ipv6Addr::new(0xff02, 0, 0, 0, 0, 0, 0, 1);
const GROUP: Ipv6Addr = Ipv6Addr::new(0xff02, 0, 0, 0, 0, 1, 0xff00, 0x1234);

fn header(next_header: IpProtocol, destination: Ipv6Addr) -> Ipv6Header {
    Ipv6Header { next_header, hop_limit: 255, source: V6, destination, ..Ipv6Header::default() }
}

fn ipv6(name: &'static str, header: Ipv6Header, payload: &[u8]) -> DissectedFrame {
    let mut out = vec![0; Ipv6Header::LEN + payload.len()];
    header.write_packet(payload.len(), &mut out).expect("it fits").copy_from_slice(payload);
    frame(name, header.destination.into(), EtherType::IPV6, &out)
}

#[test]
fn ipv6_with_every_field() {
    let header = Ipv6Header {
        dscp: 46,
        ecn: 1,
        flow_label: 0xabcde,
        hop_limit: 7,
        // Reserved for experiments, so tshark looks for no header inside.
        ..header(IpProtocol(253), HOST)
    };
    judge(
        "ipv6_with_every_field",
        &[ipv6("plain", header, &[0xff; 33])
            .expect("ipv6.version", 6)
            .expect("ipv6.tclass.dscp", 46)
            .expect("ipv6.tclass.ecn", 1)
            .expect("ipv6.flow", "0x0abcde")
            .expect("ipv6.plen", 33)
            .expect("ipv6.nxt", 253)
            .expect("ipv6.hlim", 7)
            .expect("ipv6.src", V6)
            .expect("ipv6.dst", HOST)],
    );
}

fn extended(name: &'static str, first: IpProtocol, extension: &Extension<'_>) -> DissectedFrame {
    let mut payload = vec![0xff; extension.wire_len() + 20];
    extension.write(&mut payload).expect("there is space");
    ipv6(name, header(first, HOST), &payload).expect("ipv6.nxt", first.0)
}

#[test]
fn every_extension_header() {
    let next_header = IpProtocol(253);
    let unknown = Ipv6Option { kind: Ipv6OptionKind(0x1e), data: &[1, 2, 3] };
    let options = [Ipv6Option::ROUTER_ALERT_MLD, unknown];
    let options = OptionsHeader { next_header, options: List::of(&options) };
    // Type 2, the one with a single home address.
    let mut data = [0; 20];
    data[4..].copy_from_slice(&HOST.octets());
    let routing = RoutingHeader { next_header, routing_type: 2, segments_left: 1, data: &data };
    let fragment = FragmentHeader {
        next_header,
        fragment_offset: 185,
        more_fragments: true,
        identification: 0xdead_beef,
    };
    judge(
        "every_extension_header",
        &[
            extended("hop by hop", IpProtocol::HOP_BY_HOP, &Extension::HopByHop(options))
                .expect("ipv6.hopopts.nxt", 253)
                .expect("ipv6.hopopts.len_oct", 16)
                .expect("ipv6.opt.type", "0x05,0x1e,0x01")
                .expect("ipv6.opt.router_alert", 0)
                .expect("ipv6.opt.experimental", "010203"),
            extended(
                "destination",
                IpProtocol::DESTINATION_OPTIONS,
                &Extension::Destination(options),
            )
            .expect("ipv6.dstopts.nxt", 253)
            .expect("ipv6.dstopts.len_oct", 16)
            .expect("ipv6.opt.type", "0x05,0x1e,0x01"),
            extended("routing", IpProtocol::ROUTING, &Extension::Routing(routing))
                .expect("ipv6.routing.nxt", 253)
                .expect("ipv6.routing.len_oct", 24)
                .expect("ipv6.routing.type", 2)
                .expect("ipv6.routing.segleft", 1)
                .expect("ipv6.routing.mipv6.home_address", HOST),
            extended("fragment", IpProtocol::FRAGMENT, &Extension::Fragment(fragment))
                .expect("ipv6.fraghdr.nxt", 253)
                .expect("ipv6.fraghdr.offset", 185)
                .expect("ipv6.fraghdr.more", 1)
                .expect("ipv6.fraghdr.ident", "0xdeadbeef"),
        ],
    );
}

/// A message with a good checksum, as payload of an IPv6 packet.
fn message_bytes(message: &Icmpv6Message<'_>, ip: &Ipv6Header) -> Vec<u8> {
    let mut out = vec![0; message.wire_len()];
    message.write(&mut out).expect("it is that long");
    icmpv6::fill_checksum(&mut out, &ip.pseudo_header()).expect("it has one");
    out
}

fn expect_icmpv6(frame: DissectedFrame, kind: Icmpv6Type, code: u8) -> DissectedFrame {
    frame
        .expect("icmpv6.type", kind.0)
        .expect("icmpv6.code", code)
        .expect("icmpv6.checksum.status", 1)
}

fn icmp(
    name: &'static str,
    message: &Icmpv6Message<'_>,
    kind: Icmpv6Type,
    code: u8,
) -> DissectedFrame {
    let ip = header(IpProtocol::ICMPV6, HOST);
    expect_icmpv6(ipv6(name, ip, &message_bytes(message, &ip)), kind, code)
}

#[test]
fn every_icmpv6_message() {
    // The front of a packet, as errors quote it.
    let udp = UdpHeader { source_port: 0x8001, destination_port: 0x8002, length: 8, checksum: 1 };
    let mut original = [0; 48];
    let ip = header(IpProtocol::UDP, V6);
    ip.write_packet(8, &mut original).expect("it fits").copy_from_slice(&udp.emit());
    let original = &original[..];

    let echo = IcmpEcho { identifier: 0x1234, sequence: 0x5678, data: &[0xff; 33] };
    let expect_echo = |frame: DissectedFrame| {
        frame
            .expect("icmpv6.echo.identifier", "0x1234")
            .expect("icmpv6.echo.sequence_number", 0x5678)
    };
    let request = Icmpv6Message::EchoRequest(echo);
    let reply = Icmpv6Message::EchoReply(echo);
    let too_big = Icmpv6Message::PacketTooBig { mtu: 2044, original };
    let mut frames = vec![
        expect_echo(icmp("request", &request, Icmpv6Type::ECHO_REQUEST, 0)),
        expect_echo(icmp("reply", &reply, Icmpv6Type::ECHO_REPLY, 0)),
        icmp("too big", &too_big, Icmpv6Type::PACKET_TOO_BIG, 0)
            .expect("icmpv6.mtu", 2044)
            .expect("udp.dstport", 0x8002),
    ];
    for &code in Icmpv6Unreachable::ALL {
        let message = Icmpv6Message::DestinationUnreachable { code, original };
        let frame = icmp("unreachable", &message, Icmpv6Type::DESTINATION_UNREACHABLE, code.0);
        frames.push(frame.expect("udp.dstport", 0x8002));
    }
    for &code in Icmpv6TimeExceeded::ALL {
        let message = Icmpv6Message::TimeExceeded { code, original };
        let frame = icmp("time exceeded", &message, Icmpv6Type::TIME_EXCEEDED, code.0);
        frames.push(frame.expect("udp.dstport", 0x8002));
    }
    for &code in Icmpv6ParameterProblem::ALL {
        let message = Icmpv6Message::ParameterProblem { code, pointer: 40, original };
        let frame = icmp("parameter problem", &message, Icmpv6Type::PARAMETER_PROBLEM, code.0);
        frames.push(frame.expect("icmpv6.pointer", 40).expect("udp.dstport", 0x8002));
    }
    judge("every_icmpv6_message", &frames);
}

fn nd(
    name: &'static str,
    body: NdBody,
    options: &[NdOption<'_>],
    kind: Icmpv6Type,
) -> DissectedFrame {
    let message = Icmpv6Message::Nd(NdMessage { body, options: List::of(options) });
    let ip = header(IpProtocol::ICMPV6, NODES);
    expect_icmpv6(ipv6(name, ip, &message_bytes(&message, &ip)), kind, 0)
        .expect("infiniband.grh.dgid", "ff12:601b:ffff::1")
}

/// tshark 4.0 takes the two zero bytes before an address of 20 for its first two, and so prints
/// 22.
fn printed(address: LinkAddress) -> String {
    format!("0000{}", hex(&emitted(address)))
}

const SOURCE: [NdOption<'_>; 1] = [NdOption::Source(LinkLayerAddress::InfiniBand(LINK_ADDRESS))];
const TARGET: [NdOption<'_>; 1] = [NdOption::Target(LinkLayerAddress::InfiniBand(LINK_ADDRESS))];

#[test]
fn router_advertisement_with_every_option() {
    let prefix = PrefixInformation {
        prefix_length: 64,
        on_link: true,
        autonomous: true,
        valid_lifetime_seconds: 86_400,
        preferred_lifetime_seconds: 3_600,
        prefix: Ipv6Addr::new(0x2001, 0xdb8, 0, 0, 0, 0, 0, 0),
    };
    let servers = [HOST, V6];
    let options = [
        SOURCE[0],
        NdOption::Mtu(2044),
        NdOption::Prefix(prefix),
        NdOption::RecursiveDnsServers { lifetime_seconds: 600, servers: List::of(&servers) },
        NdOption::Unknown { kind: NdOptionType(253), body: &[0xff; 6] },
    ];
    let body = NdBody::RouterAdvertisement(RouterAdvertisement {
        cur_hop_limit: 64,
        managed: true,
        other_config: false,
        preference: 1,
        router_lifetime_seconds: 1800,
        reachable_time_ms: 30_000,
        retrans_timer_ms: 1000,
    });
    judge(
        "router_advertisement_with_every_option",
        &[nd("RA", body, &options, Icmpv6Type::ROUTER_ADVERTISEMENT)
            .expect("icmpv6.nd.ra.cur_hop_limit", 64)
            .expect("icmpv6.nd.ra.flag.m", 1)
            .expect("icmpv6.nd.ra.flag.o", 0)
            .expect("icmpv6.nd.ra.flag.prf", 1)
            .expect("icmpv6.nd.ra.router_lifetime", 1800)
            .expect("icmpv6.nd.ra.reachable_time", 30_000)
            .expect("icmpv6.nd.ra.retrans_timer", 1000)
            .expect("icmpv6.opt.type", "1,5,3,25,253")
            .expect("icmpv6.opt.length", "3,1,4,5,1")
            .expect("icmpv6.opt.src_linkaddr", printed(LINK_ADDRESS))
            .expect("icmpv6.opt.mtu", 2044)
            .expect("icmpv6.opt.prefix.length", 64)
            .expect("icmpv6.opt.prefix.flag.l", 1)
            .expect("icmpv6.opt.prefix.flag.a", 1)
            .expect("icmpv6.opt.prefix.valid_lifetime", 86_400)
            .expect("icmpv6.opt.prefix.preferred_lifetime", 3_600)
            .expect("icmpv6.opt.prefix", prefix.prefix)
            .expect("icmpv6.opt.rdnss.lifetime", 600)
            .expect("icmpv6.opt.rdnss", format!("{HOST},{V6}"))],
    );
}

#[test]
fn every_other_discovery_message() {
    let solicitation = NdBody::NeighborSolicitation(NeighborSolicitation { target: HOST });
    let advertisement = NdBody::NeighborAdvertisement(NeighborAdvertisement {
        router: true,
        solicited: false,
        override_cached: true,
        target: V6,
    });
    let redirect = NdBody::Redirect(Redirect { target: HOST, destination: GROUP });
    let mut original = [0; 64];
    header(IpProtocol(253), V6).write_packet(24, &mut original).expect("it fits");
    let better = [TARGET[0], NdOption::RedirectedHeader(&original)];
    let address = printed(LINK_ADDRESS);
    judge(
        "every_other_discovery_message",
        &[
            nd("RS", NdBody::RouterSolicitation, &SOURCE, Icmpv6Type::ROUTER_SOLICITATION)
                .expect("icmpv6.opt.type", 1)
                .expect("icmpv6.opt.length", 3)
                .expect("icmpv6.opt.src_linkaddr", &address),
            nd("NS", solicitation, &SOURCE, Icmpv6Type::NEIGHBOR_SOLICITATION)
                .expect("icmpv6.nd.ns.target_address", HOST)
                .expect("icmpv6.opt.src_linkaddr", &address),
            nd("NA", advertisement, &TARGET, Icmpv6Type::NEIGHBOR_ADVERTISEMENT)
                .expect("icmpv6.nd.na.flag.r", 1)
                .expect("icmpv6.nd.na.flag.s", 0)
                .expect("icmpv6.nd.na.flag.o", 1)
                .expect("icmpv6.nd.na.target_address", V6)
                .expect("icmpv6.opt.type", 2)
                .expect("icmpv6.opt.target_linkaddr", &address),
            nd("redirect", redirect, &better, Icmpv6Type::REDIRECT)
                .expect("icmpv6.nd.rd.target_address", HOST)
                .expect("icmpv6.rd.na.destination_address", GROUP)
                .expect("icmpv6.opt.type", "2,4")
                .expect("icmpv6.opt.length", "3,9")
                .expect("ipv6.dst", format!("{NODES},{V6}")),
        ],
    );
}

fn mld(name: &'static str, message: MldMessage<'_>, kind: Icmpv6Type) -> DissectedFrame {
    let ip = Ipv6Header { hop_limit: 1, ..header(IpProtocol::ICMPV6, GROUP) };
    let message = message_bytes(&Icmpv6Message::Mld(message), &ip);
    let alert = [Ipv6Option::ROUTER_ALERT_MLD];
    let alert = Extension::HopByHop(OptionsHeader {
        next_header: IpProtocol::ICMPV6,
        options: List::of(&alert),
    });
    let mut payload = vec![0; alert.wire_len()];
    alert.write(&mut payload).expect("it is that long");
    payload.extend(message);
    let ip = Ipv6Header { next_header: IpProtocol::HOP_BY_HOP, ..ip };
    expect_icmpv6(ipv6(name, ip, &payload), kind, 0)
        .expect("ipv6.opt.router_alert", 0)
        .expect("infiniband.grh.dgid", "ff12:601b:ffff::1:ff00:1234")
}

#[test]
fn every_listener_message() {
    let group = GROUP;
    let sources = [HOST, V6];
    let querier = Querier {
        suppress_router_processing: true,
        robustness: 2,
        interval_code: 125,
        sources: List::of(&sources),
    };
    let record = |kind, sources| GroupRecord { kind, group, sources };
    let records = [
        record(RecordType::CHANGE_TO_EXCLUDE_MODE, List::of(&[])),
        record(RecordType::BLOCK_OLD_SOURCES, List::of(&sources)),
    ];
    let query_v1 = MldMessage::QueryV1 { max_response_ms: 10_000, group };
    let query_v2 = MldMessage::QueryV2 { max_response_code: 0x8001, group, querier };
    let report_v2 = MldMessage::ReportV2(List::of(&records));
    judge(
        "every_listener_message",
        &[
            mld("query 1", query_v1, Icmpv6Type::LISTENER_QUERY)
                .expect("icmpv6.mld.maximum_response_delay", 10_000)
                .expect("icmpv6.mld.multicast_address", group),
            mld("report 1", MldMessage::ReportV1(group), Icmpv6Type::LISTENER_REPORT)
                .expect("icmpv6.mld.multicast_address", group),
            mld("done", MldMessage::Done(group), Icmpv6Type::LISTENER_DONE)
                .expect("icmpv6.mld.multicast_address", group),
            mld("query 2", query_v2, Icmpv6Type::LISTENER_QUERY)
                .expect("icmpv6.mld.maximum_response_code", floating_16(0x8001))
                .expect("icmpv6.mld.multicast_address", group)
                .expect("icmpv6.mld.flag.s", 1)
                .expect("icmpv6.mld.flag.qrv", 2)
                .expect("icmpv6.mld.qqi", 125)
                .expect("icmpv6.mld.nb_sources", 2)
                .expect("icmpv6.mld.source_address", format!("{HOST},{V6}")),
            mld("report 2", report_v2, Icmpv6Type::LISTENER_REPORT_V2)
                .expect("icmpv6.mldr.nb_mcast_records", 2)
                .expect("icmpv6.mldr.mar.record_type", "4,6")
                .expect("icmpv6.mldr.mar.aux_data_len", "0,0")
                .expect("icmpv6.mldr.mar.nb_sources", "0,2")
                .expect("icmpv6.mldr.mar.multicast_address", format!("{group},{group}"))
                .expect("icmpv6.mldr.mar.source_address", format!("{HOST},{V6}")),
        ],
    );
}

#[test]
fn udp_and_tcp_over_ipv6() {
    let ip = header(IpProtocol::UDP, HOST);
    let udp = UdpHeader { source_port: 0x8001, destination_port: 0x8002, ..UdpHeader::default() };
    let mut datagram = [0; 8 + 33];
    udp.write_datagram(33, &mut datagram).expect("it fits").fill(0xff);
    udp::fill_checksum(&mut datagram, &ip.pseudo_header()).expect("it has one");

    let tcp = TcpHeader { source_port: 0x8001, destination_port: 0x8002, ..TcpHeader::default() };
    let mut segment = [0; 24];
    let options = [TcpOption::MaximumSegmentSize(1984)];
    TcpHeader { syn: true, ..tcp }.write_segment(&options, 0, &mut segment).expect("it fits");
    tcp::fill_checksum(&mut segment, &ip.pseudo_header()).expect("it has one");
    judge(
        "udp_and_tcp_over_ipv6",
        &[
            ipv6("UDP", ip, &datagram).expect("udp.length", 41).expect("udp.checksum.status", 1),
            ipv6("TCP", Ipv6Header { next_header: IpProtocol::TCP, ..ip }, &segment)
                .expect("tcp.options.mss_val", 1984)
                .expect("tcp.checksum.status", 1),
        ],
    );
}
