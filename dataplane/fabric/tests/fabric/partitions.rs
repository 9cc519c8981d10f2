//! Partitions from a file to the wire: the subnet manager writes the P_Keys, adapters and switches
//! drop packets with other keys, count them and report them.

use crate::net_world::{NetLink, NetWorld};
use crate::pair::{Connection, QKEY, Side, connect, side_of};
use pollux_fabric::link::Wire;
use pollux_fabric::net::Net;
use pollux_fabric::node::{NodeDrop, SubnetNode};
use pollux_fabric::sm::{Partitions, SmConfig};
use pollux_fabric::subnet::{Datagram, Subnet};
use pollux_fabric::topology::{End, Topology};
use pollux_fabric::{Adapter, DropReason, SoftDevice};
use pollux_mem::Memory;
use pollux_verbs::work::Destination;
use pollux_verbs::*;
use pollux_wire::address::Qpn;
use pollux_wire::keys::{PKey, QKey};
use pollux_wire::mad::class_port_info::ClassPortInfo;
use pollux_wire::mad::notice::{Notice, TrapNumber};
use pollux_wire::mad::smp::{LidSmp, MKey, PKeyTable, PortState};
use pollux_wire::mad::{Attribute, MAD_LEN, MadHeader, Method, MgmtClass};
use pollux_wire::packet::Packet;
use std::collections::BTreeSet;
use std::sync::{Arc, Mutex};
use std::time::Duration;

/// Two limited members at different switches, a full member, and the manager, also a full member.
const LIMITED: [usize; 2] = [0, 2];
const FULL: usize = 1;
const MANAGER: usize = 3;

const M_KEY: MKey = MKey(0x1234_5678_9abc_def0);

/// The management datagrams on the links: method, and trap number if any.
type Traps = Arc<Mutex<BTreeSet<(u8, u16)>>>;

/// Four hosts at two leaves, after the manager has written their P_Keys.
struct Hosts {
    world: NetWorld,
    ends: Vec<End>,
    traps: Traps,
}

impl Hosts {
    fn new(switches_enforce_partitions: bool, wire: Wire) -> Self {
        let topology = Topology::generate("leaf-spine:2x1x2", 1).unwrap();
        let nodes = (0..).zip(topology.nodes());
        let hosts = nodes.filter(|(_, node)| node.name.starts_with("host"));
        let ends: Vec<End> = hosts.map(|(node, _)| End { node, port: 1 }).collect();
        let guid = topology.nodes()[ends[FULL].node as usize].ports[1].guid.0;
        let file = format!("Default=0x7fff, ipoib : ALL=limited, SELF=full, {guid:#x}=full ;");
        let partitions = Partitions::read("partitions.conf", &file).unwrap();
        let config = SmConfig {
            partitions,
            switches_enforce_partitions,
            m_key: M_KEY,
            ..SmConfig::default()
        };
        let mut net = Net::new(Subnet::new(topology), 1, wire);
        let traps = Traps::default();
        if wire.packets_only {
            net.set_tap(tap(&traps));
        }
        let world = NetWorld::new(net);
        world.start_manager(ends[MANAGER], config);
        let hosts = Self { world, ends, traps };
        while hosts.ends.iter().any(|end| hosts.port(*end).state != PortState::ACTIVE) {
            assert!(hosts.world.step());
        }
        hosts
    }

    fn port(&self, end: End) -> pollux_fabric::Port {
        self.world.net().port(end)
    }

    fn node<T>(&self, host: usize, ask: impl Fn(&SubnetNode) -> T) -> T {
        ask(&self.world.net().subnet().nodes()[self.ends[host].node as usize])
    }

    fn side(&self, host: usize, connection: &Connection) -> Side<NetLink> {
        let end = self.ends[host];
        let device = SoftDevice::new("soft", Adapter::new(self.port(end)), self.world.link(end));
        side_of(device, Memory::private(1 << 16).unwrap(), connection)
    }

    /// Sends one message of a service from a host to another; returns the completions at both ends
    /// and the drops of the receiver.
    fn send(&self, from: usize, to: usize, qp_type: QpType, q_key: QKey) -> Sent {
        let connection = Connection { qp_type, ..Connection::default() };
        let mut sides = [from, to].map(|host| self.side(host, &connection));
        let lids = [from, to].map(|host| self.port(self.ends[host]).lid.0);
        let qpns = [0, 1].map(|nth| sides[nth].device.qpn(sides[nth].qp).unwrap());
        for nth in [0, 1] {
            connect(&mut sides[nth], qpns[1 - nth], lids[1 - nth], &connection);
        }
        let sges = [sides[1].sge(0, 1024)];
        sides[1].device.post_recv(sides[1].qp, &[RecvRequest { id: 1, sges: &sges }]).unwrap();
        let op = match qp_type {
            QpType::Ud => {
                let ah = sides[0].ah(lids[1]);
                SendOp::Datagram(Destination { ah, qpn: qpns[1], qkey: q_key })
            }
            _ => SendOp::Send,
        };
        let (sges, flags) = ([sides[0].sge(0, 64)], SendFlags::SIGNALED);
        let request = SendRequest { id: 2, op, data: Data::Sges(&sges), flags };
        sides[0].device.post_send(sides[0].qp, &[request]).unwrap();
        // A node sends one trap a second.
        let until = self.world.now() + Duration::from_secs(5);
        while self.world.now() < until {
            sides.iter_mut().for_each(|side| side.device.progress());
            assert!(self.world.step());
        }
        let [sent, came] = [0, 1].map(|nth| sides[nth].poll().map(|one| one.status));
        let drops = sides[1].device.adapter.port().drops.clone();
        Sent {
            sent,
            came,
            drops: [DropReason::PKey, DropReason::QKey].map(|reason| drops.of(reason)),
        }
    }

    /// Packets that switches dropped at their output ports, which enforce the keys of the receiver.
    fn switch_drops(&self) -> u64 {
        let net = self.world.net();
        net.subnet().nodes().iter().map(|node| node.drops.of(NodeDrop::PKeyOutbound)).sum()
    }

    /// Whether the manager received a trap of this number and repressed it.
    fn has_heard(&self, trap: TrapNumber) -> bool {
        let traps = self.traps.lock().unwrap();
        [Method::TRAP, Method::TRAP_REPRESS]
            .iter()
            .all(|method| traps.contains(&(method.0, trap.0)))
    }
}

/// Records every trap and every TrapRepress on the links.
fn tap(traps: &Traps) -> pollux_fabric::net::Tap {
    let traps = Arc::clone(traps);
    Box::new(move |_, _, bytes| {
        let packet = Packet::parse(bytes).unwrap();
        let Ok(mad) = <&[u8; MAD_LEN]>::try_from(packet.payload()) else { return };
        let Ok((header, _)) = MadHeader::read(mad) else { return };
        if header.mgmt_class == MgmtClass::SUBN_LID_ROUTED && header.attribute_id == Notice::ID {
            let notice = Notice::from_data(&LidSmp::parse(mad).data);
            traps.lock().unwrap().insert((header.method.0, notice.trap_number.0));
        }
    })
}

/// The outcome of a message.
#[derive(Debug, PartialEq, Eq)]
struct Sent {
    sent: Option<CompletionStatus>,
    came: Option<CompletionStatus>,
    /// Drops for the P_Key and for the Q_Key.
    drops: [u64; 2],
}

const OK: Option<CompletionStatus> = Some(CompletionStatus::Success);

fn wires() -> [Wire; 2] {
    [Wire::default(), Wire { packets_only: true, ..Wire::default() }]
}

/// The number of packets: eight for a connection with seven retries, one for a datagram.
fn attempts(qp_type: QpType) -> u64 {
    if qp_type == QpType::Rc { 8 } else { 1 }
}

/// The outcome of dropped packets: a connection fails, and a datagram is lost.
fn lost(qp_type: QpType) -> Option<CompletionStatus> {
    if qp_type == QpType::Rc { Some(CompletionStatus::RetryExceeded) } else { OK }
}

// req: iba-partitions
#[test]
fn members_communicate_if_one_of_them_is_full() {
    for wire in wires() {
        let hosts = Hosts::new(true, wire);
        for (host, key) in [(LIMITED[0], 0x7fff), (FULL, 0xffff), (LIMITED[1], 0x7fff)] {
            let keys = hosts.port(hosts.ends[host]).pkeys;
            assert_eq!(keys[..2], [PKey(key), PKey::INVALID], "as the file says");
        }
        for qp_type in [QpType::Ud, QpType::Rc] {
            for (from, to) in [(LIMITED[0], FULL), (FULL, LIMITED[1])] {
                let sent = hosts.send(from, to, qp_type, QKEY);
                assert_eq!(sent, Sent { sent: OK, came: OK, drops: [0, 0] }, "{qp_type:?}");
            }
        }
        assert_eq!(hosts.switch_drops(), 0);
    }
}

// req: iba-partitions
#[test]
fn a_switch_drops_and_reports_traffic_between_limited_members() {
    for wire in wires() {
        for qp_type in [QpType::Ud, QpType::Rc] {
            let hosts = Hosts::new(true, wire);
            let sent = hosts.send(LIMITED[0], LIMITED[1], qp_type, QKEY);
            assert_eq!(sent, Sent { sent: lost(qp_type), came: None, drops: [0, 0] });
            assert_eq!(hosts.switch_drops(), attempts(qp_type), "{qp_type:?}");
            let is_heard = hosts.has_heard(TrapNumber::BAD_P_KEY_AT_SWITCH);
            assert_eq!(is_heard, wire.packets_only, "only packets show it");
            assert!(hosts.world.net().subnet().traps_due().is_none(), "all are heard");
        }
    }
}

// req: iba-partitions
#[test]
fn an_adapter_drops_and_reports_traffic_between_limited_members() {
    for wire in wires() {
        for qp_type in [QpType::Ud, QpType::Rc] {
            let hosts = Hosts::new(false, wire);
            let sent = hosts.send(LIMITED[0], LIMITED[1], qp_type, QKEY);
            let attempts = attempts(qp_type);
            assert_eq!(sent, Sent { sent: lost(qp_type), came: None, drops: [attempts, 0] });
            let counted = hosts.node(LIMITED[1], |node| node.ports[1].info.p_key_violations);
            assert_eq!((u64::from(counted), hosts.switch_drops()), (attempts, 0));
            assert_eq!(hosts.has_heard(TrapNumber::BAD_P_KEY), wire.packets_only);
            assert!(hosts.world.net().subnet().traps_due().is_none(), "all are heard");
        }
    }
}

#[test]
fn a_wrong_q_key_is_dropped_counted_and_trapped() {
    for wire in wires() {
        let hosts = Hosts::new(true, wire);
        let sent = hosts.send(LIMITED[0], FULL, QpType::Ud, QKey(0x4321));
        assert_eq!(sent, Sent { sent: OK, came: None, drops: [0, 1] });
        let counted = hosts.node(FULL, |node| node.ports[1].info.q_key_violations);
        assert_eq!(counted, 1);
        assert_eq!(hosts.has_heard(TrapNumber::BAD_Q_KEY), wire.packets_only);
        assert!(hosts.world.net().subnet().traps_due().is_none(), "all are heard");
    }
}

/// Sends a Set of the P_Key table to the agent of a host, which only the manager may do.
fn set_keys(hosts: &Hosts, from: usize, to: usize, m_key: MKey) {
    let (slid, dlid) = (hosts.port(hosts.ends[from]).lid, hosts.port(hosts.ends[to]).lid);
    let class = MgmtClass::SUBN_LID_ROUTED;
    let header = MadHeader::new(class, Method::SET, 5, PKeyTable::ID);
    let mut table = PKeyTable::default();
    table.p_keys[0] = PKey::DEFAULT;
    let mad = LidSmp { header, m_key, data: table.to_data() }.emit();
    let (src_qp, p_key) = (Qpn::SMI, PKey::DEFAULT);
    let datagram = Datagram { slid, dlid, src_qp, dest_qp: src_qp, p_key, mad };
    let now = hosts.world.now();
    hosts.world.net_mut().send_datagram(now, hosts.ends[from], datagram);
    (0..20).for_each(|_| assert!(hosts.world.step()));
}

// req: iba-partitions
#[test]
fn only_the_m_key_allows_writing_p_keys() {
    let hosts = Hosts::new(true, Wire { packets_only: true, ..Wire::default() });
    let victim = LIMITED[1];
    for (nth, wrong) in (1..).zip([MKey(0), MKey(M_KEY.0 ^ 1)]) {
        set_keys(&hosts, LIMITED[0], victim, wrong);
        assert_eq!(hosts.port(hosts.ends[victim]).pkeys[0], PKey(0x7fff));
        assert_eq!(hosts.node(victim, |node| node.drops.of(NodeDrop::MKey)), nth);
    }
    assert!(hosts.has_heard(TrapNumber::BAD_M_KEY));
    set_keys(&hosts, LIMITED[0], victim, M_KEY);
    assert_eq!(hosts.port(hosts.ends[victim]).pkeys[0], PKey::DEFAULT, "it is the key that counts");
}

/// Sends a query to the performance agent of a host, with this key. Returns the key of the answer,
/// if any, and the drops of all nodes for keys: at input ports, at output ports, and at the agent.
fn ask_agent(hosts: &Hosts, from: usize, to: usize, p_key: u16) -> (Option<PKey>, [u64; 3]) {
    let (slid, dlid) = (hosts.port(hosts.ends[from]).lid, hosts.port(hosts.ends[to]).lid);
    let header = MadHeader::new(MgmtClass::PERF, Method::GET, 5, ClassPortInfo::ID);
    let mut mad = [0; MAD_LEN];
    mad[..MadHeader::LEN].copy_from_slice(&header.emit());
    let (src_qp, p_key) = (Qpn::GSI, PKey(p_key));
    let datagram = Datagram { slid, dlid, src_qp, dest_qp: src_qp, p_key, mad };
    // The manager has no more to send.
    hosts.world.step_until(hosts.world.now() + Duration::from_secs(1));
    let now = hosts.world.now();
    let mut net = hosts.world.net_mut();
    net.send_datagram(now, hosts.ends[from], datagram);
    while let Some(due) = net.deadline() {
        net.advance(due);
    }
    // Datagrams for the manager, such as traps of violations, are repeated.
    let mut all = std::iter::from_fn(|| net.poll_delivery());
    let answer = all.find(|delivery| delivery.datagram.mad[1] == MgmtClass::PERF.0);
    assert!(answer.as_ref().is_none_or(|answer| answer.at == hosts.ends[from]));
    let dropped = |reason| net.subnet().nodes().iter().map(|node| node.drops.of(reason)).sum();
    let reasons = [NodeDrop::PKeyInbound, NodeDrop::PKeyOutbound, NodeDrop::Key];
    (answer.map(|answer| answer.datagram.p_key), reasons.map(dropped))
}

// req: iba-partitions
#[test]
fn general_services_are_accepted_by_their_p_key() {
    for wire in wires() {
        let hosts = Hosts::new(true, wire);
        let ask = |from, to, key| ask_agent(&hosts, from, to, key);
        let (limited, full) = (PKey(0x7fff), PKey::DEFAULT);
        assert_eq!(ask(LIMITED[0], FULL, 0x7fff), (Some(full), [0, 0, 0]));
        assert_eq!(ask(FULL, LIMITED[0], 0xffff), (Some(limited), [0, 0, 0]));
        assert_eq!(ask(LIMITED[0], LIMITED[1], 0x7fff), (None, [0, 1, 0]), "at the last switch");
        assert_eq!(ask(FULL, LIMITED[0], 0x8001), (None, [1, 1, 0]), "at the first switch");
        let leaf = hosts.world.net().subnet().topology().peer(hosts.ends[FULL]).unwrap().0.node;
        let net = hosts.world.net();
        let first = &net.subnet().nodes()[leaf as usize].drops;
        assert_eq!(first.of(NodeDrop::PKeyInbound), 1, "which is the one at the sender");
    }
}

// req: iba-partitions
#[test]
fn agents_refuse_keys_that_switches_forward() {
    for wire in wires() {
        let hosts = Hosts::new(false, wire);
        let refused = ask_agent(&hosts, LIMITED[0], LIMITED[1], 0x7fff);
        assert_eq!(refused, (None, [0, 0, 1]));
        assert_eq!(ask_agent(&hosts, FULL, LIMITED[1], 0x8001), (None, [0, 0, 2]));
    }
}
