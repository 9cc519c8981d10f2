//! ARP, IPv4 and its payloads.

use crate::link::{GID, LINK_ADDRESS, emitted, frame, hex};
use pollux_referee::tshark::{DissectedFrame, judge};
use pollux_wire::address::{Lid, Qpn};
use pollux_wire::ethernet::EtherType;
use pollux_wire::ip::IpProtocol;
use pollux_wire::ip::arp::{ArpOperation, ArpPacket, HardwareAddress};
use pollux_wire::ip::group_record::{GroupRecord, Querier, RecordType};
use pollux_wire::ip::icmp::IcmpEcho;
use pollux_wire::ip::icmpv4::{
    self, Icmpv4Message, Icmpv4RedirectScope, Icmpv4TimeExceeded, Icmpv4Type, Icmpv4Unreachable,
};
use pollux_wire::ip::igmp::{self, IgmpMessage};
use pollux_wire::ip::ipv4::{Ipv4Header, Ipv4Option, Ipv4OptionKind, Ipv4Packet};
use pollux_wire::ip::link_address::{DraftLinkAddress, LinkAddress};
use pollux_wire::ip::list::List;
use pollux_wire::ip::tcp::{self, SackBlock, SackBlocks, TcpHeader, TcpOption};
use pollux_wire::ip::udp::{self, UdpHeader};
use pollux_wire::keys::QKey;
use std::net::Ipv4Addr;

const V4: Ipv4Addr = Ipv4Addr::new(10, 0, 0, 1);
const HOST: Ipv4Addr = Ipv4Addr::new(10, 0, 0, 2);
const GROUP: Ipv4Addr = Ipv4Addr::new(239, 1, 2, 3);

/// A header from [`V4`].
fn v4_header(protocol: IpProtocol, destination: Ipv4Addr) -> Ipv4Header {
    Ipv4Header { ttl: 64, protocol, source: V4, destination, ..Ipv4Header::default() }
}

/// An IPv4 packet.
fn ipv4(header: Ipv4Header, options: &[Ipv4Option<'_>], payload: &[u8]) -> Vec<u8> {
    let mut out = vec![0; Ipv4Header::LEN_MAX + payload.len()];
    let space = header.write_packet(options, payload.len(), &mut out).expect("it fits");
    space.copy_from_slice(payload);
    let parsed = Ipv4Packet::parse(&out).expect("it was just written");
    out.truncate(usize::from(parsed.header().total_length));
    out
}

fn arp<A: HardwareAddress>(operation: ArpOperation, sender: A, target: A) -> DissectedFrame {
    let packet = ArpPacket {
        operation,
        sender_hardware: sender,
        sender_protocol: V4,
        target_hardware: target,
        target_protocol: HOST,
    };
    let mut out = vec![0; ArpPacket::<A>::LEN];
    packet.write(&mut out).expect("it is that long");
    let reverse = [ArpOperation::REVERSE_REQUEST, ArpOperation::REVERSE_REPLY];
    let ether_type = if reverse.contains(&operation) { EtherType::RARP } else { EtherType::ARP };
    let destination = match operation {
        ArpOperation::REQUEST | ArpOperation::REVERSE_REQUEST => Ipv4Addr::BROADCAST,
        _ => HOST,
    };
    let name = format!("{operation} with {} bytes", A::LEN);
    frame(name, destination.into(), ether_type, &out)
        .expect("arp.hw.type", 32)
        .expect("arp.proto.type", "0x0800")
        .expect("arp.hw.size", A::LEN)
        .expect("arp.proto.size", 4)
        .expect("arp.opcode", operation.0)
        .expect("arp.src.hw", hex(&emitted(sender)))
        .expect("arp.src.proto_ipv4", V4)
        .expect("arp.dst.hw", hex(&emitted(target)))
        .expect("arp.dst.proto_ipv4", HOST)
}

#[test]
fn every_arp_operation_and_address_length() {
    let draft = DraftLinkAddress {
        lid: Lid(1),
        rc: true,
        qpn_demultiplexing: true,
        qpn: Qpn(0x48),
        q_key: QKey(0x0b1b),
        gid: GID,
        ..DraftLinkAddress::default()
    };
    let mut frames = Vec::new();
    for &operation in ArpOperation::ALL {
        frames.push(arp(operation, LINK_ADDRESS, LinkAddress { qpn: Qpn(0x49), ..LINK_ADDRESS }));
        frames.push(arp(operation, draft, DraftLinkAddress { lid: Lid(2), ..draft }));
    }
    assert_eq!(frames.len(), 12);
    judge("every_arp_operation_and_address_length", &frames);
}

#[test]
fn ipv4_with_every_field_and_options() {
    let header = Ipv4Header {
        dscp: 46,
        ecn: 1,
        identification: 0xbeef,
        more_fragments: true,
        fragment_offset: 185,
        ttl: 7,
        // Reserved for experiments, so tshark looks for no header inside.
        protocol: IpProtocol(253),
        ..v4_header(IpProtocol::UDP, HOST)
    };
    let route = [12, 10, 0, 0, 7, 10, 0, 0, 8, 0, 0, 0, 0];
    let options = [
        Ipv4Option::ROUTER_ALERT,
        Ipv4Option { kind: Ipv4OptionKind::RECORD_ROUTE, data: &route },
        Ipv4Option { kind: Ipv4OptionKind::TIMESTAMP, data: &[9, 0x50, 0, 0, 0, 1] },
    ];
    let with_options = ipv4(header, &options, &[0xff; 33]);
    let unfragmented = Ipv4Header { dont_fragment: true, ..header };
    let unfragmented =
        Ipv4Header { more_fragments: false, fragment_offset: 0, ttl: 64, ..unfragmented };
    let expect = |name, packet: &[u8]| {
        frame(name, HOST.into(), EtherType::IPV4, packet)
            .expect("ip.version", 4)
            .expect("ip.dsfield.dscp", 46)
            .expect("ip.dsfield.ecn", 1)
            .expect("ip.id", "0xbeef")
            .expect("ip.proto", 253)
            .expect("ip.checksum.status", 1)
            .expect("ip.src", V4)
            .expect("ip.dst", HOST)
    };
    judge(
        "ipv4_with_every_field_and_options",
        &[
            expect("fragment with options", &with_options)
                .expect("ip.hdr_len", 48)
                .expect("ip.len", 48 + 33)
                .expect("ip.flags.df", 0)
                .expect("ip.flags.mf", 1)
                .expect("ip.frag_offset", 185)
                .expect("ip.ttl", 7)
                .expect("ip.opt.type", "148,7,68,0")
                .expect("ip.opt.type.copy", "1,0,0,0")
                .expect("ip.opt.len", "4,15,8")
                .expect("ip.opt.ra", 0)
                .expect("ip.rec_rt", "10.0.0.7,10.0.0.8"),
            expect("plain", &ipv4(unfragmented, &[], &[0xff; 20]))
                .expect("ip.hdr_len", 20)
                .expect("ip.len", 40)
                .expect("ip.flags.df", 1)
                .expect("ip.flags.mf", 0)
                .expect("ip.frag_offset", 0)
                .expect("ip.ttl", 64),
        ],
    );
}

/// The front of a packet, as errors quote it.
fn original() -> Vec<u8> {
    let udp = UdpHeader { source_port: 0x8001, destination_port: 0x8002, length: 8, checksum: 0 };
    ipv4(v4_header(IpProtocol::UDP, HOST), &[], &udp.emit())
}

fn icmp(
    name: &'static str,
    message: &Icmpv4Message<'_>,
    kind: Icmpv4Type,
    code: u8,
) -> DissectedFrame {
    let mut out = vec![0; message.wire_len()];
    message.write(&mut out).expect("it is that long");
    icmpv4::fill_checksum(&mut out).expect("it has one");
    let packet = ipv4(v4_header(IpProtocol::ICMPV4, HOST), &[], &out);
    frame(name, HOST.into(), EtherType::IPV4, &packet)
        .expect("icmp.type", kind.0)
        .expect("icmp.code", code)
        .expect("icmp.checksum.status", 1)
}

#[test]
fn every_icmpv4_message() {
    let original = &original()[..];
    let echo = IcmpEcho { identifier: 0x1234, sequence: 0x5678, data: &[0xff; 33] };
    let expect_echo =
        |frame: DissectedFrame| frame.expect("icmp.ident", 0x1234).expect("icmp.seq", 0x5678);
    let mut frames = vec![
        expect_echo(icmp(
            "request",
            &Icmpv4Message::EchoRequest(echo),
            Icmpv4Type::ECHO_REQUEST,
            0,
        )),
        expect_echo(icmp("reply", &Icmpv4Message::EchoReply(echo), Icmpv4Type::ECHO_REPLY, 0)),
    ];
    for &code in Icmpv4Unreachable::ALL {
        let fragmentation = code == Icmpv4Unreachable::FRAGMENTATION_NEEDED;
        let next_hop_mtu = if fragmentation { 2044 } else { 0 };
        let message = Icmpv4Message::DestinationUnreachable { code, next_hop_mtu, original };
        let frame = icmp("unreachable", &message, Icmpv4Type::DESTINATION_UNREACHABLE, code.0);
        let mtu = if fragmentation { "2044" } else { "" };
        frames.push(frame.expect("icmp.mtu", mtu).expect("udp.srcport", 0x8001));
    }
    for &code in Icmpv4RedirectScope::ALL {
        let gateway = Ipv4Addr::new(10, 0, 0, 254);
        let message = Icmpv4Message::Redirect { code, gateway, original };
        let frame = icmp("redirect", &message, Icmpv4Type::REDIRECT, code.0);
        frames.push(frame.expect("icmp.redir_gw", gateway).expect("udp.dstport", 0x8002));
    }
    for &code in Icmpv4TimeExceeded::ALL {
        let message = Icmpv4Message::TimeExceeded { code, original };
        let frame = icmp("time exceeded", &message, Icmpv4Type::TIME_EXCEEDED, code.0);
        frames.push(frame.expect("udp.dstport", 0x8002));
    }
    let message = Icmpv4Message::ParameterProblem { code: 0, pointer: 20, original };
    let problem = icmp("parameter problem", &message, Icmpv4Type::PARAMETER_PROBLEM, 0);
    frames.push(problem.expect("icmp.pointer", 20).expect("udp.dstport", 0x8002));
    judge("every_icmpv4_message", &frames);
}

fn igmp(name: &'static str, message: &IgmpMessage<'_>, version: u8, kind: u8) -> DissectedFrame {
    let mut out = vec![0; message.wire_len()];
    message.write(&mut out).expect("it is that long");
    igmp::fill_checksum(&mut out).expect("it has one");
    let header = Ipv4Header { ttl: 1, ..v4_header(IpProtocol::IGMP, GROUP) };
    let packet = ipv4(header, &[Ipv4Option::ROUTER_ALERT], &out);
    frame(name, GROUP.into(), EtherType::IPV4, &packet)
        .expect("infiniband.grh.dgid", "ff12:401b:ffff::f01:203")
        .expect("ip.opt.ra", 0)
        .expect("igmp.version", version)
        .expect("igmp.type", format!("{kind:#04x}"))
        .expect("igmp.checksum.status", 1)
}

#[test]
fn every_igmp_message() {
    let sources = [Ipv4Addr::new(10, 0, 0, 7), Ipv4Addr::new(10, 0, 0, 8)];
    let querier = Querier {
        suppress_router_processing: true,
        robustness: 2,
        interval_code: 125,
        sources: List::of(&sources),
    };
    let group = GROUP;
    let record = |kind, sources| GroupRecord { kind, group, sources };
    let records = [
        record(RecordType::CHANGE_TO_EXCLUDE_MODE, List::of(&[])),
        record(RecordType::ALLOW_NEW_SOURCES, List::of(&sources)),
    ];
    let query_v2 = IgmpMessage::QueryV2 { max_response_tenths: 100, group };
    let query_v3 = IgmpMessage::QueryV3 { max_response_code: 100, group, querier };
    let report_v3 = IgmpMessage::ReportV3(List::of(&records));
    judge(
        "every_igmp_message",
        &[
            igmp("query 1", &IgmpMessage::QueryV1, 1, 0x11).expect("igmp.maddr", "0.0.0.0"),
            igmp("report 1", &IgmpMessage::ReportV1(group), 1, 0x12).expect("igmp.maddr", group),
            igmp("query 2", &query_v2, 2, 0x11)
                .expect("igmp.max_resp", 100)
                .expect("igmp.maddr", group),
            igmp("report 2", &IgmpMessage::ReportV2(group), 2, 0x16).expect("igmp.maddr", group),
            igmp("leave", &IgmpMessage::Leave(group), 2, 0x17).expect("igmp.maddr", group),
            igmp("query 3", &query_v3, 3, 0x11)
                .expect("igmp.max_resp", 100)
                .expect("igmp.maddr", group)
                .expect("igmp.s", 1)
                .expect("igmp.qrv", 2)
                .expect("igmp.qqic", 125)
                .expect("igmp.num_src", 2)
                .expect("igmp.saddr", "10.0.0.7,10.0.0.8"),
            igmp("report 3", &report_v3, 3, 0x22)
                .expect("igmp.num_grp_recs", 2)
                .expect("igmp.record_type", "4,5")
                .expect("igmp.aux_data_len", "0,0")
                .expect("igmp.num_src", "0,2")
                .expect("igmp.maddr", "239.1.2.3,239.1.2.3")
                .expect("igmp.saddr", "10.0.0.7,10.0.0.8"),
        ],
    );
}

#[test]
fn udp_over_ipv4() {
    let header = v4_header(IpProtocol::UDP, HOST);
    // Ports that no dissector claims; an odd length, so that the link pads.
    let udp = UdpHeader { source_port: 0x8001, destination_port: 0x8002, ..UdpHeader::default() };
    let mut out = [0; 8 + 33];
    udp.write_datagram(33, &mut out).expect("it fits").fill(0xff);
    let expect = |name, out: &[u8], status| {
        frame(name, HOST.into(), EtherType::IPV4, &ipv4(header, &[], out))
            .expect("udp.srcport", 0x8001)
            .expect("udp.dstport", 0x8002)
            .expect("udp.length", 41)
            // 1 is good, 3 is that there is none.
            .expect("udp.checksum.status", status)
    };
    let without = expect("without checksum", &out, 3);
    udp::fill_checksum(&mut out, &header.pseudo_header()).expect("it has one");
    judge("udp_over_ipv4", &[without, expect("with checksum", &out, 1)]);
}

fn segment(header: &TcpHeader, options: &[TcpOption<'_>], payload: &[u8]) -> DissectedFrame {
    let mut out = [0; 200];
    let space = header.write_segment(options, payload.len(), &mut out).expect("it fits");
    space.copy_from_slice(payload);
    let header_len =
        usize::from(TcpHeader::read(&out).expect("it was just written").0.data_offset) * 4;
    let out = &mut out[..header_len + payload.len()];
    let ip = v4_header(IpProtocol::TCP, HOST);
    tcp::fill_checksum(out, &ip.pseudo_header()).expect("it has one");
    frame("segment", HOST.into(), EtherType::IPV4, &ipv4(ip, &[], out))
        .expect("tcp.srcport", header.source_port)
        .expect("tcp.dstport", header.destination_port)
        .expect("tcp.seq_raw", header.sequence_number)
        .expect("tcp.ack_raw", header.acknowledgment_number)
        .expect("tcp.window_size_value", header.window)
        .expect("tcp.checksum.status", 1)
        .expect("tcp.urgent_pointer", header.urgent_pointer)
        .expect("tcp.len", payload.len())
}

#[test]
fn tcp_with_every_option_and_flag() {
    let syn = TcpHeader {
        source_port: 0x8001,
        destination_port: 0x8002,
        sequence_number: 0xdead_beef,
        syn: true,
        window: 65_535,
        ..TcpHeader::default()
    };
    let opening = [
        TcpOption::MaximumSegmentSize(2004),
        TcpOption::SackPermitted,
        TcpOption::Timestamps { value: 0x0a0b_0c0d, echo_reply: 0 },
        TcpOption::WindowScale(7),
    ];
    let data = TcpHeader {
        sequence_number: 0xdead_bef0,
        acknowledgment_number: 0x1234_5678,
        ack: true,
        syn: false,
        ..syn
    };
    let blocks = [
        SackBlock { left_edge: 0x1234_6000, right_edge: 0x1234_7000 },
        SackBlock { left_edge: 0x1234_8000, right_edge: 0x1234_9000 },
    ];
    let sack = SackBlocks::new(&blocks).expect("two fit");
    let clocks = TcpOption::Timestamps { value: 5, echo_reply: 6 };
    let all = TcpHeader {
        sequence_number: 0x8000_0000,
        urg: true,
        psh: true,
        ece: true,
        cwr: true,
        fin: true,
        rst: true,
        urgent_pointer: 3,
        ..data
    };
    let numbers = |of: fn(&SackBlock) -> u32| format!("{},{}", of(&blocks[0]), of(&blocks[1]));
    judge(
        "tcp_with_every_option_and_flag",
        &[
            segment(&syn, &opening, &[])
                .expect("tcp.hdr_len", 40)
                .expect("tcp.flags", "0x0002")
                .expect("tcp.option_kind", "2,4,8,3,0")
                .expect("tcp.options.mss_val", 2004)
                .expect("tcp.options.wscale.shift", 7)
                .expect("tcp.options.timestamp.tsval", 0x0a0b_0c0d)
                .expect("tcp.options.timestamp.tsecr", 0),
            segment(&data, &[clocks, TcpOption::Sack(sack)], &[0xff; 33])
                .expect("tcp.hdr_len", 48)
                .expect("tcp.flags", "0x0010")
                .expect("tcp.option_kind", "8,5")
                .expect("tcp.options.sack.count", 2)
                // tshark prints edges relative to the stream's first acknowledgment number.
                .expect("tcp.options.sack_le", numbers(|block| block.left_edge - 0x1234_5677))
                .expect("tcp.options.sack_re", numbers(|block| block.right_edge - 0x1234_5677)),
            segment(&all, &[], &[0xff; 5]).expect("tcp.hdr_len", 20).expect("tcp.flags", "0x00fd"),
        ],
    );
}
