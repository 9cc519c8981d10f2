//! Tests of the agent, with the requests of a subnet manager.

use super::*;
use crate::topology::{LinkRate, Topology};
use pollux_wire::address::Guid;
use pollux_wire::keys::PKey;
use pollux_wire::mad::notice::{Notice, TrapDetails, TrapNumber};
use pollux_wire::mad::smp::{MKey, MKeyProtection, PortPhysState, PortState, VlCap, VlWeight};
use pollux_wire::units::Mtu;
use proptest::prelude::*;

/// A host and its switch, with the link between them up.
fn host_and_switch() -> (SubnetNode, SubnetNode) {
    let topology = Topology::generate("single:2", 3).unwrap();
    let (mut switch, mut host) =
        (SubnetNode::new(&topology.nodes()[0]), SubnetNode::new(&topology.nodes()[1]));
    host.link_up(1, &switch.ports[1].info, LinkRate::default());
    switch.link_up(1, &host.ports[1].info, LinkRate::default());
    (host, switch)
}

const AT: MadArrival = MadArrival { now: Time::START, port: 1, slid: Lid(9) };

fn later(seconds: u64) -> MadArrival {
    MadArrival { now: Time::START + Duration::from_secs(seconds), ..AT }
}

fn request<A: Attribute>(method: Method, modifier: u32, m_key: u64, attribute: A) -> Mad {
    let header = MadHeader {
        attribute_modifier: modifier,
        ..MadHeader::new(MgmtClass::SUBN_LID_ROUTED, method, 77, A::ID)
    };
    LidSmp { header, m_key: MKey(m_key), data: attribute.to_data() }.emit()
}

fn ask<A: Attribute>(node: &mut SubnetNode, method: Method, modifier: u32, a: A) -> (MadStatus, A) {
    let (status, attribute, _) = ask_at(node, AT, &request(method, modifier, 0, a)).unwrap();
    (status, attribute)
}

/// The status and attribute of the answer, and the port whose link went down.
fn ask_at<A: Attribute>(
    node: &mut SubnetNode,
    at: MadArrival,
    mad: &Mad,
) -> Option<(MadStatus, A, Option<u8>)> {
    let Handled::Answer(answer, link_down) = handle(node, at, mad) else { return None };
    let smp = LidSmp::parse(&answer);
    assert_eq!((smp.header.method, smp.header.transaction_id), (Method::GET_RESP, 77));
    Some((smp.header.status, A::from_data(&smp.data), link_down))
}

fn port_info(node: &mut SubnetNode) -> PortInfo {
    ask(node, Method::GET, 1, PortInfo::default()).1
}

/// The Set with which a subnet manager assigns a LID to a port.
fn addressed(node: &mut SubnetNode) -> PortInfo {
    PortInfo {
        lid: Lid(4),
        master_sm_lid: Lid(1),
        port_state: PortState::NO_CHANGE,
        port_phys_state: PortPhysState::NO_CHANGE,
        ..port_info(node)
    }
}

#[test]
fn a_node_answers_with_its_identity() {
    let (mut host, mut switch) = host_and_switch();
    let (status, info) = ask(&mut host, Method::GET, 0, NodeInfo::default());
    assert_eq!((status, info.num_ports, info.local_port_num), (MadStatus::OK, 1, 1));
    assert_eq!((info.port_guid.0, info.partition_cap), (info.node_guid.0 + 1, 32));
    let (_, info) = ask(&mut switch, Method::GET, 0, NodeInfo::default());
    assert_eq!((info.port_guid, info.num_ports, info.local_port_num), (info.node_guid, 2, 1));
    let (_, description) = ask(&mut host, Method::GET, 0, NodeDescription::new(""));
    assert_eq!(description.text(), "host1");
    assert_eq!(ask(&mut host, Method::SET, 0, info).0, MadStatus::BAD_METHOD_ATTRIBUTE);
    assert_eq!(ask(&mut host, Method::SET, 0, description).0, MadStatus::BAD_METHOD_ATTRIBUTE);
}

#[test]
fn a_port_is_brought_up_state_by_state() {
    let (mut host, _) = host_and_switch();
    let info = port_info(&mut host);
    assert_eq!(
        (info.port_state, info.port_phys_state),
        (PortState::INITIALIZE, PortPhysState::LINK_UP)
    );
    assert_eq!((info.neighbor_mtu, info.operational_vls), (Mtu::BYTES_4096, VlCap::VL0_7));
    let set = addressed(&mut host);
    let mut set_state = |port_state| {
        let (status, info) = ask(&mut host, Method::SET, 1, PortInfo { port_state, ..set });
        (status, info.port_state)
    };
    use PortState as S;
    assert_eq!(set_state(S::ACTIVE).0, MadStatus::BAD_FIELD, "not before it is armed");
    assert_eq!(set_state(S::INITIALIZE).0, MadStatus::BAD_FIELD);
    assert_eq!(set_state(S::NO_CHANGE), (MadStatus::OK, S::INITIALIZE));
    assert_eq!(set_state(S::ARMED), (MadStatus::OK, S::ARMED));
    assert_eq!(set_state(S::ARMED), (MadStatus::OK, S::ARMED));
    assert_eq!(set_state(S::ACTIVE), (MadStatus::OK, S::ACTIVE));
    assert_eq!(set_state(S::ACTIVE), (MadStatus::OK, S::ACTIVE));
    assert_eq!(set_state(S::ARMED).0, MadStatus::BAD_FIELD);
    assert_eq!(set_state(S::DOWN), (MadStatus::OK, S::DOWN));
    assert_eq!(set_state(S::ARMED).0, MadStatus::BAD_FIELD, "the link has to train first");
    assert_eq!(host.ports[1].info.lid, Lid(4));
}

#[test]
fn a_link_that_is_taken_down_is_reported() {
    let (mut host, mut switch) = host_and_switch();
    let mut down = addressed(&mut host);
    down.port_phys_state = PortPhysState::DISABLED;
    let mad = request(Method::SET, 1, 0, down);
    let (_, info, link_down) = ask_at::<PortInfo>(&mut host, AT, &mad).unwrap();
    assert_eq!((info.port_state, info.port_phys_state), (PortState::DOWN, PortPhysState::DISABLED));
    assert_eq!(link_down, Some(1));
    ask(
        &mut switch,
        Method::SET,
        0,
        SwitchInfo { port_state_change: true, ..SwitchInfo::default() },
    );
    assert!(!switch.forwarding.as_ref().unwrap().info.port_state_change, "cleared by writing 1");
    switch.link_down(1, PortPhysState::POLLING);
    assert!(ask(&mut switch, Method::GET, 0, SwitchInfo::default()).1.port_state_change);
}

#[test]
fn a_wrong_field_leaves_the_port_alone() {
    let (mut host, _) = host_and_switch();
    let set = addressed(&mut host);
    for wrong in [
        PortInfo { lid: Lid(0xc000), ..set },
        PortInfo { master_sm_lid: Lid::NONE, lid: Lid::PERMISSIVE, ..set },
        PortInfo { neighbor_mtu: Mtu(6), ..set },
        PortInfo { operational_vls: VlCap::VL0_14, ..set },
        PortInfo { port_state: PortState(5), ..set },
        PortInfo { port_phys_state: PortPhysState(4), ..set },
        PortInfo { link_down_default_state: PortPhysState(3), ..set },
        PortInfo { link_width_enabled: pollux_wire::mad::smp::LinkWidth(0x13), ..set },
    ] {
        let before = host.ports[1].info;
        assert_eq!(ask(&mut host, Method::SET, 1, wrong).0, MadStatus::BAD_FIELD, "{wrong:?}");
        assert_eq!(host.ports[1].info, before);
    }
    assert_eq!(ask(&mut host, Method::GET, 2, set).0, MadStatus::BAD_FIELD, "no such port");
}

#[test]
fn a_client_reregisters_once_for_each_request() {
    let (mut host, _) = host_and_switch();
    let set = PortInfo { client_reregister: true, init_type_reply: 3, ..addressed(&mut host) };
    let (_, info, link_down) =
        ask_at::<PortInfo>(&mut host, AT, &request(Method::SET, 0, 0, set)).unwrap();
    assert_eq!((link_down, info.client_reregister, info.init_type_reply), (None, true, 3));
    assert_eq!((info.lid, info.master_sm_lid), (set.lid, set.master_sm_lid));
    assert_eq!(host.ports[1].reregistrations, 1);
    assert!(!port_info(&mut host).client_reregister);
    let again = PortInfo { client_reregister: false, ..set };
    assert!(!ask(&mut host, Method::SET, 0, again).1.client_reregister);
    assert_eq!(host.ports[1].reregistrations, 1);
}

// req: iba-addressing
#[test]
fn tables_are_read_as_they_were_written() {
    let (mut host, mut switch) = host_and_switch();
    let p_keys = PKeyTable { p_keys: std::array::from_fn(|i| PKey(i as u16 + 0x8001)) };
    assert_eq!(ask(&mut host, Method::SET, 0, p_keys), (MadStatus::OK, p_keys));
    assert_eq!(host.ports[1].p_keys.matching(PKey(0x0003)), Some(2));
    assert_eq!(ask(&mut host, Method::GET, 1, p_keys).0, MadStatus::BAD_FIELD, "no block 1");
    assert_eq!(ask(&mut switch, Method::SET, 2 << 16, p_keys), (MadStatus::OK, p_keys));
    assert_eq!(ask(&mut switch, Method::SET, 3 << 16, p_keys).0, MadStatus::BAD_FIELD);
    let guids = GuidInfo { guids: std::array::from_fn(|i| Guid(i as u64 + 1)) };
    let own = host.ports[1].guids[0];
    assert_eq!(ask(&mut host, Method::SET, 0, guids).1.guids[..2], [own, Guid(2)]);
    assert_eq!(ask(&mut host, Method::SET, 3, guids), (MadStatus::OK, guids));
    assert_eq!(ask(&mut host, Method::SET, 4, guids).0, MadStatus::BAD_FIELD);
    let lanes = SlToVlMappingTable { lanes: std::array::from_fn(|sl| 15 - sl as u8) };
    assert_eq!(ask(&mut host, Method::SET, 0, lanes), (MadStatus::OK, lanes));
    assert_eq!(ask(&mut switch, Method::SET, 0x0102, lanes), (MadStatus::OK, lanes));
    assert_ne!(ask(&mut switch, Method::GET, 0x0201, lanes), (MadStatus::OK, lanes));
    assert_eq!(ask(&mut switch, Method::SET, 0x1_0102, lanes).0, MadStatus::BAD_FIELD);
    let entries = std::array::from_fn(|i| VlWeight { lane: 1, weight: i as u8 });
    let turns = VlArbitrationTable { entries };
    assert_eq!(ask(&mut switch, Method::SET, 4 << 16 | 2, turns), (MadStatus::OK, turns));
    assert_ne!(ask(&mut switch, Method::GET, 3 << 16 | 2, turns).1, turns);
    assert_eq!(ask(&mut switch, Method::GET, 5 << 16 | 2, turns).0, MadStatus::BAD_FIELD);
    let ports = LinearForwardingTable { ports: [2; 64] };
    assert_eq!(ask(&mut switch, Method::SET, 1, ports), (MadStatus::OK, ports));
    assert_eq!(ask(&mut host, Method::GET, 0, ports).0, MadStatus::BAD_METHOD_ATTRIBUTE);
    let groups = MulticastForwardingTable { port_masks: [6; 32] };
    assert_eq!(ask(&mut switch, Method::SET, 2, groups), (MadStatus::OK, groups));
    assert_eq!(ask(&mut switch, Method::SET, 1 << 28, groups).0, MadStatus::BAD_FIELD);
    let random = RandomForwardingTable::default();
    assert_eq!(ask(&mut switch, Method::GET, 0, random).0, MadStatus::BAD_FIELD, "it is linear");
}

type Edit = fn(&mut Mad);

#[test]
fn unsupported_requests_have_their_status() {
    let (mut host, _) = host_and_switch();
    let with = |edit: Edit| {
        let mut mad = request(Method::GET, 0, 0, NodeInfo::default());
        edit(&mut mad);
        mad
    };
    let cases: [(Edit, MadStatus); 5] = [
        (|mad| mad[0] = 2, MadStatus::BAD_VERSION),
        (|mad| mad[2] = 2, MadStatus::BAD_VERSION),
        (|mad| mad[3] = 0x12, MadStatus::BAD_METHOD),
        (|mad| mad[17] = 0x30, MadStatus::BAD_METHOD_ATTRIBUTE),
        (|mad| mad[17] = 0x20, MadStatus::BAD_METHOD_ATTRIBUTE),
    ];
    for (edit, expected) in cases {
        let Handled::Answer(answer, _) = handle(&mut host, AT, &with(edit)) else { panic!() };
        assert_eq!(LidSmp::parse(&answer).header.status, expected);
    }
    let trap = with(|mad| mad[3] = Method::TRAP.0);
    assert_eq!(handle(&mut host, AT, &trap), Handled::Nothing);
    assert_eq!(host.drops.of(NodeDrop::Unclaimed), 1);
    host.set_capability(1, host.ports[1].info.capability_mask.with(CapabilityMask::SM));
    assert_eq!(handle(&mut host, AT, &trap), Handled::Manager);
    assert_eq!(handle(&mut host, AT, &with(|mad| mad[17] = 0x20)), Handled::Manager);
    assert_eq!(handle(&mut host, AT, &with(|mad| mad[3] = 0x81)), Handled::Manager);
}

#[test]
fn the_m_key_decides_about_reads_and_sets() {
    use MKeyProtection as P;
    for (protection, reads, sees_key) in
        [(P::NONE, true, true), (P::KEY_HIDDEN, true, false), (P::NO_READ, false, false)]
    {
        let (mut host, _) = host_and_switch();
        let set = PortInfo { m_key: MKey(5), m_key_protection: protection, ..addressed(&mut host) };
        assert_eq!(ask(&mut host, Method::SET, 1, set).0, MadStatus::OK);
        for (key, is_right) in [(5, true), (0, false), (6, false)] {
            let get = request(Method::GET, 1, key, set);
            let read = ask_at::<PortInfo>(&mut host, AT, &get).map(|(_, info, _)| info.m_key);
            let expected =
                (is_right || reads).then_some(if is_right || sees_key { MKey(5) } else { MKey(0) });
            assert_eq!(read, expected, "{protection} {key}");
            let set = request(Method::SET, 1, key, set);
            assert_eq!(handle(&mut host, AT, &set) != Handled::Nothing, is_right);
        }
        let refused = if reads { 2 } else { 4 };
        assert_eq!(u64::from(host.ports[1].info.m_key_violations), refused);
        assert_eq!(host.drops.of(NodeDrop::MKey), refused, "{protection}");
    }
}

#[test]
fn protection_ends_with_the_lease() {
    let (mut host, _) = host_and_switch();
    let set = PortInfo {
        m_key: MKey(5),
        m_key_protection: MKeyProtection::NO_READ,
        m_key_lease_period: 10,
        ..addressed(&mut host)
    };
    ask(&mut host, Method::SET, 1, set);
    let read = |host: &mut SubnetNode, seconds, key| {
        ask_at::<PortInfo>(host, later(seconds), &request(Method::GET, 1, key, set)).is_some()
    };
    assert!(!read(&mut host, 1, 0), "starts the lease");
    assert!(read(&mut host, 5, 5), "a request with the key ends it");
    assert!(!read(&mut host, 12, 0), "starts it anew");
    assert!(!read(&mut host, 21, 0));
    assert!(read(&mut host, 22, 0));
    assert_eq!(host.ports[1].info.m_key_protection, MKeyProtection::NONE);
}

#[test]
fn a_refusal_is_trapped_and_the_trap_repressed() {
    let (mut host, _) = host_and_switch();
    let set = PortInfo { m_key: MKey(5), ..addressed(&mut host) };
    ask(&mut host, Method::SET, 1, set);
    assert_eq!(handle(&mut host, AT, &request(Method::SET, 1, 6, set)), Handled::Nothing);
    let (port, dlid, mad) = poll_trap(&mut host, Time::START).unwrap();
    assert_eq!((port, dlid), (1, Lid(1)));
    let smp = LidSmp::parse(&mad);
    let notice = Notice::from_data(&smp.data);
    assert_eq!((notice.trap_number, notice.issuer_lid), (TrapNumber::BAD_M_KEY, Lid(4)));
    let TrapDetails::BadMKey(details) = notice.details() else { panic!() };
    assert_eq!((details.lid, details.method, details.m_key), (Lid(9), Method::SET, MKey(6)));
    assert_eq!(poll_trap(&mut host, Time::START), None, "no more often than the timeout");
    let mut repress = mad;
    repress[3] = Method::TRAP_REPRESS.0;
    assert_eq!(handle(&mut host, AT, &repress), Handled::Nothing);
    assert_eq!(
        (host.traps.waiting.len(), host.drops.of(NodeDrop::MKey)),
        (2, 2),
        "not without the key"
    );
    repress[24..32].copy_from_slice(&5u64.to_be_bytes());
    handle(&mut host, AT, &repress);
    assert_eq!(host.traps.waiting.len(), 1);
}

#[test]
fn a_light_can_be_switched_on() {
    let (mut host, _) = host_and_switch();
    let mut mad = request(Method::SET, 0, 0, NodeInfo::default());
    (mad[17], mad[64]) = (LED_INFO.0 as u8, 0x80);
    let Handled::Answer(answer, _) = handle(&mut host, AT, &mad) else { panic!() };
    assert_eq!((answer[64], host.ports[1].led), (0x80, true));
}

proptest! {
    #[test]
    fn any_datagram_is_answered_claimed_or_counted(
        bytes in prop::collection::vec(any::<u8>(), MAD_LEN),
        method in prop_oneof![Just(1u8), Just(2), Just(2), any::<u8>()],
        attribute in prop_oneof![0x10u8..0x22, 0x10u8..0x22, any::<u8>()],
        modifier in prop_oneof![0u32..4, any::<u32>(), (0u32..8).prop_map(|part| part << 16 | 1)],
        is_directed: bool, is_wellformed: bool, is_switch: bool,
    ) {
        let mut mad: Mad = bytes.try_into().unwrap();
        if is_wellformed {
            (mad[0], mad[1], mad[2], mad[3]) = (1, if is_directed { 0x81 } else { 1 }, 1, method);
            (mad[16], mad[17]) = (0, attribute);
            mad[20..24].copy_from_slice(&modifier.to_be_bytes());
        }
        let (host, switch) = host_and_switch();
        let mut node = if is_switch { switch } else { host };
        for _ in 0..2 {
            let before = node.drops.total();
            let handled = handle(&mut node, AT, &mad);
            let is_counted = node.drops.total() > before;
            prop_assert_eq!(is_counted, handled == Handled::Nothing);
        }
    }
}
