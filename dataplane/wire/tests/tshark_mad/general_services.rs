//! Common parts of general services: class port info, counters, vendors' datagrams, segmentation.

use crate::{ROUNDS, bytes, expect_header, header, list, sa};
use pollux_referee::frames::gmp;
use pollux_referee::tshark::{DissectedFrame, judge};
use pollux_wire::mad::class_port_info::ClassPortInfo;
use pollux_wire::mad::perf::{PortCounters, PortCountersExtended};
use pollux_wire::mad::rmpp::{RmppHeader, RmppStatus, RmppType, Segmentation};
use pollux_wire::mad::{Attribute, AttributeId, MAD_LEN, MadHeader, Method, MgmtClass};
use pollux_wire::units::TimeCode;

/// An attribute in a datagram of performance management.
fn perf<A: Attribute>(attribute: A) -> DissectedFrame {
    let header = header(MgmtClass::PERF, Method::GET_RESP, A::ID);
    // The data stand at byte 64 (IBA 16.1.1).
    let (mut mad, data) = ([0; MAD_LEN], attribute.to_data::<192>());
    mad[..MadHeader::LEN].copy_from_slice(&header.emit());
    mad[64..].copy_from_slice(&data);
    expect_header(DissectedFrame::new(A::NAME, gmp(&mad)), &header)
}

fn expect_class_port_info(frame: DissectedFrame, info: &ClassPortInfo) -> DissectedFrame {
    let ClassPortInfo { redirect, trap, .. } = info;
    // It has no name for the hop limits.
    let frame = frame
        .expect("infiniband.classportinfo.redirectgid", redirect.gid)
        .expect("infiniband.classportinfo.trapgid", trap.gid)
        .expect("infiniband.classportinfo.reserved", list([redirect.hop_limit, trap.hop_limit], 2));
    fields!(frame, "classportinfo",
        baseversion: 2 = info.base_version,
        classversion: 2 = info.class_version,
        capabilitymask: 4 = info.capability_mask.0,
        capabilitymask2: 8 = info.capability_mask2,
        resptimevalue: 2 = info.resp_time_value.0,
        redirecttc: 2 = redirect.traffic_class,
        redirectsl: 2 = redirect.service_level,
        redirectfl: 6 = redirect.flow_label,
        redirectlid: 4 = redirect.lid.0,
        redirectpkey: 4 = redirect.p_key.0,
        redirectqp: 6 = redirect.qp.0,
        redirectqkey: 8 = redirect.q_key.0,
        traptc: 2 = trap.traffic_class,
        trapsl: 2 = trap.service_level,
        trapfl: 6 = trap.flow_label,
        traplid: 4 = trap.lid.0,
        trappkey: 4 = trap.p_key.0,
        trapqp: 6 = trap.qp.0,
        trapqkey: 8 = trap.q_key.0,
    )
}

/// Adds tshark's decimal fields below a prefix.
macro_rules! counters {
    ($frame:expr, $prefix:literal, $( $field:ident = $value:expr ),* $(,)?) => {
        $frame $( .expect(concat!("infiniband.", $prefix, ".", stringify!($field)), $value) )*
    };
}

fn expect_counters(frame: DissectedFrame, counters: &PortCounters) -> DissectedFrame {
    // tshark does not dissect CounterSelect2, QP1Dropped and PortXmitWait.
    let frame = fields!(frame, "portcounters",
        portselect: 2 = counters.port_select,
        counterselect: 4 = counters.counter_select.0,
    );
    counters!(
        frame,
        "portcounters",
        symbolerrorcounter = counters.symbol_error_counter,
        linkerrorrecoverycounter = counters.link_error_recovery_counter,
        linkdownedcounter = counters.link_downed_counter,
        portrcverrors = counters.port_rcv_errors,
        portrcvremotephysicalerrors = counters.port_rcv_remote_physical_errors,
        portrcvswitchrelayerrors = counters.port_rcv_switch_relay_errors,
        portxmitdiscards = counters.port_xmit_discards,
        portxmitconstrainterrors = counters.port_xmit_constraint_errors,
        portrcvconstrainterrors = counters.port_rcv_constraint_errors,
        locallinkintegrityerrors = counters.local_link_integrity_errors,
        excessivebufferoverrunerrors = counters.excessive_buffer_overrun_errors,
        vl15dropped = counters.vl15_dropped,
        portxmitdata = counters.port_xmit_data,
        portrcvdata = counters.port_rcv_data,
        portxmitpkts = counters.port_xmit_pkts,
        portrcvpkts = counters.port_rcv_pkts,
    )
}

fn expect_counters_extended(
    frame: DissectedFrame,
    counters: &PortCountersExtended,
) -> DissectedFrame {
    let frame = fields!(frame, "portcounters_ext",
        portselect: 2 = counters.port_select,
        counterselect: 4 = counters.counter_select.0,
    );
    counters!(
        frame,
        "portcounters_ext",
        portxmitdata = counters.port_xmit_data,
        portrcvdata = counters.port_rcv_data,
        portxmitpkts = counters.port_xmit_pkts,
        portrcvpkts = counters.port_rcv_pkts,
        portunicastxmitpkts = counters.port_unicast_xmit_pkts,
        portunicastrcvpkts = counters.port_unicast_rcv_pkts,
        portmulticastxmitpkts = counters.port_multicast_xmit_pkts,
        portmulticastrcvpkts = counters.port_multicast_rcv_pkts,
    )
}

#[test]
fn general_services() {
    let mut frames = Vec::new();
    for round in 0..ROUNDS {
        let data = bytes::<192>(round);
        let info = ClassPortInfo::from_data(&data);
        frames.push(expect_class_port_info(perf(info), &info));
        frames.push(expect_class_port_info(sa("of the SA", Method::GET_RESP, info), &info));
        let counters = PortCounters::from_data(&data);
        frames.push(expect_counters(perf(counters), &counters));
        let counters = PortCountersExtended::from_data(&data);
        frames.push(expect_counters_extended(perf(counters), &counters));
    }
    judge("general_services", &frames);
}

/// A datagram of subnet administration with this segmentation header.
fn segment(name: &str, rmpp: RmppHeader) -> DissectedFrame {
    let node_record = AttributeId(0x0011);
    let mut mad = [0; MAD_LEN];
    let header = header(MgmtClass::SUBN_ADM, Method::GET_TABLE_RESP, node_record);
    mad[..24].copy_from_slice(&header.emit());
    mad[24..36].copy_from_slice(&rmpp.emit());
    // tshark 4.0 cuts the byte of response time and flags in the middle, where it is five bits and
    // three.
    let byte = mad[26];
    let frame = DissectedFrame::new(name, gmp(&mad));
    fields!(frame, "rmpp",
        rmppversion: 2 = rmpp.version,
        rmpptype: 2 = rmpp.rmpp_type.0,
        rresptime: 2 = byte >> 4,
        rmppflags: 2 = byte & 0xf,
        rmppstatus: 2 = rmpp.status.0,
    )
}

#[test]
fn segmented_transactions() {
    let cut = Segmentation::new(520, 20);
    let mut frames = Vec::new();
    for (name, number, payload_length) in
        [("first", 1, 580_u32), ("middle", 2, 0), ("last", 3, 140)]
    {
        let frame = segment(name, cut.header(number, TimeCode(0x15)));
        frames.push(fields!(frame, "rmpp",
            segmentnumber: 8 = number,
            payloadlength: 8 = payload_length,
        ));
    }
    let ack = segment("ACK", RmppHeader::ack(0x0102_0304, 0x0506_0708, TimeCode(0x0a)));
    frames.push(fields!(ack, "rmpp",
        segmentnumber: 8 = 0x0102_0304_u32,
        newwindowlast: 8 = 0x0506_0708_u32,
    ));
    for &status in RmppStatus::ALL {
        frames.push(segment("STOP", RmppHeader::end(RmppType::STOP, status)));
        frames.push(segment("ABORT", RmppHeader::end(RmppType::ABORT, status)));
    }
    judge("segmented_transactions", &frames);
}
