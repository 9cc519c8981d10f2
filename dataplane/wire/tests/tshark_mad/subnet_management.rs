//! The attributes of subnet management, by LID and by directed route.

use crate::{ROUNDS, by_lid, bytes, expect_header, header, list, plain};
use pollux_referee::frames::smp;
use pollux_referee::tshark::{DissectedFrame, judge};
use pollux_wire::address::Lid;
use pollux_wire::mad::smp::*;
use pollux_wire::mad::{Attribute, MadStatus, Method, MgmtClass};

/// An attribute in the answer of a directed-route request.
fn by_path<A: Attribute>(name: &str, attribute: A) -> DissectedFrame {
    let mut header = header(MgmtClass::SUBN_DIRECTED_ROUTE, Method::GET_RESP, A::ID);
    header.status = MadStatus::BAD_FIELD.returning();
    let mut mad = DirectedSmp {
        header,
        m_key: MKey(0x0102_0304_0506_0708),
        dr_slid: Lid(0x1234),
        dr_dlid: Lid(0x5678),
        data: attribute.to_data(),
        initial_path: bytes(0),
        return_path: bytes(1),
    };
    mad.set_hops(4, 7);
    // tshark 4.0 reads the direction bit as 0 at all times: its mask is meant for the status, of
    // which smpstatus shows the bit as it is.
    let frame = expect_header(DissectedFrame::new(name, smp(&mad.emit())), &mad.header)
        .expect("infiniband.smpdirected.initialpath", plain(&mad.initial_path))
        .expect("infiniband.smpdirected.returnpath", plain(&mad.return_path));
    fields!(frame, "smpdirected",
        smpstatus: 4 = 0x801c_u16,
        hoppointer: 2 = 4_u8,
        hopcount: 2 = 7_u8,
        drslid: 4 = 0x1234_u16,
        drdlid: 4 = 0x5678_u16,
    )
}

/// The attribute in all rounds, by LID in one and by path in the next.
fn both_ways<A: Attribute>(
    expect: impl Fn(DissectedFrame, &A) -> DissectedFrame,
) -> Vec<DissectedFrame> {
    let frame = |round| {
        let attribute = A::from_data(&bytes::<64>(round));
        let frame = match round % 2 {
            0 => by_lid(A::NAME, Method::GET_RESP, attribute),
            _ => by_path(A::NAME, attribute),
        };
        expect(frame, &attribute)
    };
    (0..ROUNDS).map(frame).collect()
}

fn expect_node_info(frame: DissectedFrame, info: &NodeInfo) -> DissectedFrame {
    fields!(frame, "nodeinfo",
        baseversion: 2 = info.base_version,
        classversion: 2 = info.class_version,
        nodetype: 2 = info.node_type.0,
        numports: 2 = info.num_ports,
        systemimageguid: 16 = info.system_image_guid.0,
        nodeguid: 16 = info.node_guid.0,
        portguid: 16 = info.port_guid.0,
        partitioncap: 4 = info.partition_cap,
        deviceid: 4 = info.device_id,
        revision: 8 = info.revision,
        localportnum: 2 = info.local_port_num,
        vendorid: 6 = info.vendor_id,
    )
}

fn expect_switch_info(frame: DissectedFrame, info: &SwitchInfo) -> DissectedFrame {
    // tshark does not dissect MulticastFDBTop.
    fields!(frame, "switchinfo",
        linearfdbcap: 4 = info.linear_fdb_cap,
        randomfdbcap: 4 = info.random_fdb_cap,
        multicastfdbcap: 4 = info.multicast_fdb_cap,
        linearfdbtop: 4 = info.linear_fdb_top.0,
        defaultport: 2 = info.default_port,
        defaultmulticastprimaryport: 2 = info.default_multicast_primary_port,
        defaultmulticastnotprimaryport: 2 = info.default_multicast_not_primary_port,
        lifetimevalue: 2 = info.life_time.0,
        portstatechange: 2 = info.port_state_change,
        optimizedsltovlmappingprogramming: 2 = info.optimized_sl_to_vl,
        lidsperport: 4 = info.lids_per_port,
        partitionenforcementcap: 4 = info.partition_enforcement_cap,
        inboundenforcementcap: 2 = info.inbound_enforcement_cap,
        outboundenforcementcap: 2 = info.outbound_enforcement_cap,
        filterrawinboundcap: 2 = info.filter_raw_inbound_cap,
        filterrawoutboundcap: 2 = info.filter_raw_outbound_cap,
        enhancedportzero: 2 = info.enhanced_port_0,
    )
}

fn expect_port_info(frame: DissectedFrame, info: &PortInfo) -> DissectedFrame {
    // tshark does not dissect fields after version 1.2.1 of the specification: the suppression of
    // group P_Key traps, CapabilityMask2 and the extended speeds.
    let frame = expect_capabilities(frame, info.capability_mask);
    let frame = fields!(frame, "portinfo",
        m_key: 16 = info.m_key.0,
        guid: 16 = info.gid_prefix,
        lid: 4 = info.lid.0,
        mastersmlid: 4 = info.master_sm_lid.0,
        capabilitymask: 8 = info.capability_mask.0,
        diagcode: 4 = info.diag_code,
        m_keyleaseperiod: 4 = info.m_key_lease_period,
        localportnum: 2 = info.local_port_num,
        linkwidthenabled: 2 = info.link_width_enabled.0,
        linkwidthsupported: 2 = info.link_width_supported.0,
        linkwidthactive: 2 = info.link_width_active.0,
        linkspeedsupported: 2 = info.link_speed_supported.0,
        portstate: 2 = info.port_state.0,
        portphysicalstate: 2 = info.port_phys_state.0,
        linkdowndefaultstate: 2 = info.link_down_default_state.0,
        m_keyprotectbits: 2 = info.m_key_protection.0,
        lmc: 2 = info.lmc,
        linkspeedactive: 2 = info.link_speed_active.0,
        linkspeedenabled: 2 = info.link_speed_enabled.0,
        neighbormtu: 2 = info.neighbor_mtu.0,
        mastersmsl: 2 = info.master_sm_sl,
        vlcap: 2 = info.vl_cap.0,
        inittype: 2 = info.init_type,
    );
    fields!(frame, "portinfo",
        vlhighlimit: 2 = info.vl_high_limit,
        vlarbitrationhighcap: 2 = info.vl_arbitration_high_cap,
        vlarbitrationlowcap: 2 = info.vl_arbitration_low_cap,
        inittypereply: 2 = info.init_type_reply,
        mtucap: 2 = info.mtu_cap.0,
        vlstallcount: 2 = info.vl_stall_count,
        hoqlife: 2 = info.hoq_life.0,
        operationalvls: 2 = info.operational_vls.0,
        partitionenforcementinbound: 2 = info.partition_enforcement_inbound,
        partitionenforcementoutbound: 2 = info.partition_enforcement_outbound,
        filterrawinbound: 2 = info.filter_raw_inbound,
        filterrawoutbound: 2 = info.filter_raw_outbound,
        m_keyviolations: 4 = info.m_key_violations,
        p_keyviolations: 4 = info.p_key_violations,
        q_keyviolations: 4 = info.q_key_violations,
        guidcap: 2 = info.guid_cap,
        clientreregister: 2 = info.client_reregister,
        subnettimeout: 2 = info.subnet_timeout.0,
        resptimevalue: 2 = info.resp_time_value.0,
        localphyerrors: 2 = info.local_phy_errors,
        overrunerrors: 2 = info.overrun_errors,
        maxcredithint: 4 = info.max_credit_hint,
        linkroundtriplatency: 6 = info.link_round_trip_latency,
    )
}

/// The names of capabilities in tshark, which has none above bit 27.
fn expect_capabilities(frame: DissectedFrame, mask: CapabilityMask) -> DissectedFrame {
    let has = |capability: CapabilityMask| u32::from(mask.contains(capability));
    fields!(frame, "portinfo.capabilitymask",
        issm: 8 = has(CapabilityMask::SM),
        noticesupported: 8 = has(CapabilityMask::NOTICE),
        trapsupported: 8 = has(CapabilityMask::TRAP),
        optionalipdsupported: 8 = has(CapabilityMask::OPTIONAL_IPD),
        automaticmigrationsupported: 8 = has(CapabilityMask::AUTOMATIC_MIGRATION),
        slmappingsupported: 8 = has(CapabilityMask::SL_MAPPING),
        mkeynvram: 8 = has(CapabilityMask::M_KEY_NVRAM),
        pkeynvram: 8 = has(CapabilityMask::P_KEY_NVRAM),
        ledinfosupported: 8 = has(CapabilityMask::LED_INFO),
        smdisabled: 8 = has(CapabilityMask::SM_DISABLED),
        systemimageguidsupported: 8 = has(CapabilityMask::SYSTEM_IMAGE_GUID),
        pkeyswitchexternalporttrapsupported: 8 =
            has(CapabilityMask::P_KEY_SWITCH_EXTERNAL_PORT_TRAP),
        communicationmanagementsupported: 8 = has(CapabilityMask::COMMUNICATION_MANAGEMENT),
        snmptunnelingsupported: 8 = has(CapabilityMask::SNMP_TUNNELING),
        reinitsupported: 8 = has(CapabilityMask::REINIT),
        devicemanagementsupported: 8 = has(CapabilityMask::DEVICE_MANAGEMENT),
        vendorclasssupported: 8 = has(CapabilityMask::VENDOR_CLASS),
        drnoticesupported: 8 = has(CapabilityMask::DR_NOTICE),
        capabilitymasknoticesupported: 8 = has(CapabilityMask::CAPABILITY_MASK_NOTICE),
        bootmanagementsupported: 8 = has(CapabilityMask::BOOT_MANAGEMENT),
        linkroundtriplatencysupported: 8 = has(CapabilityMask::LINK_ROUND_TRIP_LATENCY),
        clientregistrationsupported: 8 = has(CapabilityMask::CLIENT_REREGISTRATION),
        otherlocalchangesnoticesupported: 8 = has(CapabilityMask::OTHER_LOCAL_CHANGES_NOTICE),
        linkspeedwidthpairstablesupported: 8 = has(CapabilityMask::LINK_SPEED_WIDTH_PAIRS_TABLE),
    )
}

#[test]
fn nodes_and_ports() {
    let name = NodeDescription::new("spine-1 HCA-2");
    let mut frames = vec![
        by_lid("NodeDescription", Method::SET, name)
            .expect("infiniband.nodedescription.nodestring", "spine-1 HCA-2"),
        by_path("NodeDescription", name)
            .expect("infiniband.nodedescription.nodestring", "spine-1 HCA-2"),
    ];
    frames.extend(both_ways(expect_node_info));
    frames.extend(both_ways(expect_switch_info));
    frames.extend(both_ways(expect_port_info));
    frames.extend(both_ways(|frame, info: &GuidInfo| {
        // It has the GUIDs under the name of another attribute.
        frame.expect("infiniband.switchinfo.guid", list(info.guids.map(|guid| guid.0), 16))
    }));
    frames.extend(both_ways(|frame, info: &SmInfo| {
        fields!(frame, "sminfo",
            guid: 16 = info.guid.0,
            sm_key: 16 = info.sm_key.0,
            actcount: 8 = info.act_count,
            priority: 2 = info.priority,
            smstate: 2 = info.state.0,
        )
    }));
    judge("nodes_and_ports", &frames);
}

#[test]
fn tables() {
    let mut frames = Vec::new();
    frames.extend(both_ways(|frame, table: &PKeyTable| {
        let membership = table.p_keys.map(|p_key| p_key.is_full());
        frame.expect("infiniband.p_keytable.membershiptype", list(membership, 2)).expect(
            "infiniband.p_keytable.p_keybase",
            list(table.p_keys.map(|p_key| p_key.partition()), 4),
        )
    }));
    frames.extend(both_ways(|frame, table: &SlToVlMappingTable| {
        let every_other = |first| list(table.lanes.into_iter().skip(first).step_by(2), 2);
        frame
            .expect("infiniband.sltovlmappingtable.sltovlhighbits", every_other(0))
            .expect("infiniband.sltovlmappingtable.sltovllowbits", every_other(1))
    }));
    frames.extend(both_ways(|frame, table: &VlArbitrationTable| {
        frame
            .expect("infiniband.vlarbitrationtable.vl", list(table.entries.map(|e| e.lane), 2))
            .expect(
                "infiniband.vlarbitrationtable.weight",
                list(table.entries.map(|e| e.weight), 2),
            )
    }));
    frames.extend(both_ways(|frame, table: &LinearForwardingTable| {
        frame.expect("infiniband.linearforwardingtable.port", list(table.ports, 2))
    }));
    frames.extend(both_ways(|frame, table: &RandomForwardingTable| {
        let entries = table.entries;
        frame
            .expect("infiniband.randomforwardingtable.lid", list(entries.map(|e| e.lid.0), 4))
            .expect("infiniband.randomforwardingtable.valid", list(entries.map(|e| e.is_valid), 2))
            .expect("infiniband.randomforwardingtable.lmc", list(entries.map(|e| e.lmc), 2))
            .expect("infiniband.randomforwardingtable.port", list(entries.map(|e| e.port), 2))
    }));
    frames.extend(both_ways(|frame, table: &MulticastForwardingTable| {
        // tshark 4.0 stops after 16 of the 32 masks, at half of the data.
        let first_half = table.port_masks.into_iter().take(16);
        frame.expect("infiniband.multicastforwardingtable.portmask", list(first_half, 4))
    }));
    judge("tables", &frames);
}
