//! Management datagrams as packets: between nets that a foreign wire joins, on links with a tap,
//! and to the general services queue pair of an adapter.

use crate::managed::manage;
use crate::net_world::{NetLink, NetWorld};
use pollux_fabric::link::Wire;
use pollux_fabric::link::fault::Faults;
use pollux_fabric::net::Net;
use pollux_fabric::node::{NodeDrop, PKeys};
use pollux_fabric::subnet::{Datagram, Subnet};
use pollux_fabric::topology::{End, Topology};
use pollux_fabric::{Adapter, SoftDevice, Time};
use pollux_mem::Memory;
use pollux_verbs::work::Destination;
use pollux_verbs::*;
use pollux_wire::address::{Lid, Qpn};
use pollux_wire::keys::{PKey, QKey};
use pollux_wire::mad::smp::{DirectedSmp, NodeInfo, PortState};
use pollux_wire::mad::{Attribute, AttributeId, MadHeader, Method, MgmtClass};
use pollux_wire::packet::Packet;
use pollux_wire::psn::Psn;
use proptest::prelude::*;
use std::sync::{Arc, Mutex};
use std::time::Duration;

/// A switch with hosts at ports 1 and 2, and a wire at port 3.
const WIRE: End = End { node: 0, port: 3 };
const HOST: End = End { node: 1, port: 1 };

fn net(seed: u64, wire: Wire) -> Net {
    let mut topology = Topology::generate("single:2", seed).unwrap();
    topology.add_ports(WIRE);
    let mut net = Net::new(Subnet::new(topology), seed, wire);
    net.add_foreign(WIRE).unwrap();
    net
}

fn joined() -> [Net; 2] {
    let mut nets = [1, 2].map(|seed| net(seed, Wire::default()));
    nets.iter_mut().for_each(|net| net.set_foreign_up(WIRE, true));
    nets
}

/// Moves packets between the nets until none is left.
fn carry(nets: &mut [Net; 2]) {
    let mut now = Time::START;
    while nets.iter().any(|net| net.deadline().is_some() || net.has_foreign(WIRE)) {
        now = now + Duration::from_micros(1);
        nets.iter_mut().for_each(|net| net.advance(now));
        for (from, to) in [(0, 1), (1, 0)] {
            while let Some(bytes) = nets[from].poll_foreign(WIRE) {
                nets[to].receive_foreign(now, WIRE, &bytes);
            }
        }
    }
}

/// Handles all events of a net.
fn finish(net: &mut Net) {
    while let Some(due) = net.deadline() {
        net.advance(due);
    }
}

/// A Get to the node at the end of a path from the first host.
fn ask(net: &mut Net, path: &[u8]) {
    let header = MadHeader::new(MgmtClass::SUBN_DIRECTED_ROUTE, Method::GET, 5, NodeInfo::ID);
    let (dr_slid, dr_dlid) = (Lid::PERMISSIVE, Lid::PERMISSIVE);
    let mut smp = DirectedSmp { header, dr_slid, dr_dlid, ..DirectedSmp::default() };
    smp.set_hops(0, path.len() as u8);
    smp.initial_path[1..=path.len()].copy_from_slice(path);
    let (slid, dlid) = (Lid::PERMISSIVE, Lid::PERMISSIVE);
    let (src_qp, dest_qp) = (Qpn::SMI, Qpn::SMI);
    let (p_key, mad) = (PKey::DEFAULT, smp.emit());
    net.send_datagram(Time::START, HOST, Datagram { slid, dlid, src_qp, dest_qp, p_key, mad });
}

fn answer(net: &mut Net) -> Option<NodeInfo> {
    let delivery = net.poll_delivery()?;
    assert_eq!(delivery.at, HOST);
    Some(NodeInfo::from_data(&DirectedSmp::parse(&delivery.datagram.mad).data))
}

// req: iba-subnet-management
#[test]
fn directed_routes_lead_over_a_foreign_wire_and_back() {
    let mut nets = joined();
    for (path, node, port) in [(&[1, 3][..], 0, 3), (&[1, 3, 2], 2, 1)] {
        ask(&mut nets[0], path);
        assert!(nets[0].poll_delivery().is_none(), "answers come by the wire");
        carry(&mut nets);
        let info = answer(&mut nets[0]).unwrap();
        let asked = nets[1].subnet().nodes()[node].identity.node_guid;
        assert_eq!((info.node_guid, info.local_port_num), (asked, port));
    }
    let counters = &nets[1].subnet().nodes()[0].ports[3].counters;
    assert_eq!((counters.rcv_packets.long(), counters.xmit_packets.long()), (2, 2));
}

#[test]
fn a_foreign_port_is_up_while_the_other_end_is_connected() {
    let mut net = net(1, Wire::default());
    let state = |net: &Net| net.subnet().nodes()[0].ports[3].info.port_state;
    assert_eq!(state(&net), PortState::DOWN);
    ask(&mut net, &[1, 3]);
    assert!(!net.has_foreign(WIRE));
    net.set_foreign_up(WIRE, true);
    assert_eq!(state(&net), PortState::INITIALIZE);
    ask(&mut net, &[1, 3]);
    finish(&mut net);
    assert!(net.has_foreign(WIRE));
    net.set_foreign_up(WIRE, false);
    assert_eq!((state(&net), net.has_foreign(WIRE)), (PortState::DOWN, false));
    assert!(net.add_foreign(WIRE).is_err(), "it has a wire");
    assert!(net.add_foreign(End { node: 0, port: 1 }).is_err(), "a host is there");
    assert!(net.add_foreign(End { node: 0, port: 9 }).is_err(), "there is none");
}

/// Otherwise a storm of CM messages makes each client read its port again.
#[test]
fn subnet_management_counts_as_a_change_of_ports_and_general_services_do_not() {
    let mut net = net(1, Wire::default());
    let before = net.epoch();
    ask(&mut net, &[1, 2]);
    finish(&mut net);
    assert!(net.epoch() > before);
    let before = net.epoch();
    let mut mad = [0; 256];
    let header = MadHeader::new(MgmtClass::COMM_MGT, Method::SEND, 5, AttributeId(0x10));
    mad[..MadHeader::LEN].copy_from_slice(&header.emit());
    let (slid, dlid) = (Lid::PERMISSIVE, Lid::PERMISSIVE);
    let (src_qp, dest_qp) = (Qpn::GSI, Qpn::GSI);
    let (p_key, now) = (PKey::DEFAULT, Time::START);
    net.send_datagram(now, HOST, Datagram { slid, dlid, src_qp, dest_qp, p_key, mad });
    finish(&mut net);
    assert_eq!(net.epoch(), before);
}

#[test]
fn captures_and_faults_apply_to_management() {
    let mut net = net(1, Wire::default());
    let seen = Arc::new(Mutex::new(Vec::new()));
    let tapped = Arc::clone(&seen);
    net.set_tap(Box::new(move |_, end, bytes| {
        let packet = Packet::parse(bytes).unwrap();
        assert!(packet.icrc_ok() && packet.vcrc_ok());
        tapped.lock().unwrap().push((end, packet.lrh().vl, packet.bth().dest_qp));
    }));
    ask(&mut net, &[1, 2]);
    finish(&mut net);
    assert_eq!(answer(&mut net).unwrap().node_guid, net.subnet().nodes()[2].identity.node_guid);
    let ends: Vec<_> = seen
        .lock()
        .unwrap()
        .iter()
        .map(|(end, vl, qpn)| {
            assert_eq!((*vl, *qpn), (15, Qpn::SMI));
            (end.node, end.port)
        })
        .collect();
    assert_eq!(ends, [(1, 1), (0, 2), (2, 1), (0, 1)]);
    let faults = Faults { loss: 1_000_000, ..Faults::default() };
    net.set_wire(1, Wire { faults, ..Wire::default() });
    ask(&mut net, &[1, 2]);
    finish(&mut net);
    assert_eq!(answer(&mut net), None, "the link to the second host loses all");
}

#[test]
fn captures_and_faults_apply_to_a_foreign_wire_in_both_directions() {
    let mut nets = joined();
    let seen = Arc::new(Mutex::new(Vec::new()));
    let tapped = Arc::clone(&seen);
    nets[1].set_tap(Box::new(move |_, end, _| tapped.lock().unwrap().push(end)));
    ask(&mut nets[0], &[1, 3]);
    carry(&mut nets);
    assert!(answer(&mut nets[0]).is_some());
    assert_eq!(*seen.lock().unwrap(), [WIRE, WIRE]);
    let faults = Faults { loss: 1_000_000, ..Faults::default() };
    nets[1].set_wires(Wire { faults, ..Wire::default() });
    ask(&mut nets[0], &[1, 3]);
    carry(&mut nets);
    assert_eq!((answer(&mut nets[0]), seen.lock().unwrap().len()), (None, 3), "lost on the way in");
}

/// A program with queue pair 1 of a host.
struct Program {
    device: SoftDevice<NetLink>,
    memory: Memory,
    region: MemoryRegion,
    pd: Pd,
    cq: Cq,
    qp: Qp,
}

impl Program {
    fn new(world: &NetWorld, node: u32) -> Self {
        let end = End { node, port: 1 };
        let port = world.net().port(end);
        let mut device = SoftDevice::new("soft", Adapter::new(port), world.link(end));
        let (pd, cq) = (device.create_pd().unwrap(), device.create_cq(16).unwrap());
        let memory = Memory::private(1024).unwrap();
        let region = device.register(pd, &memory, Access::LOCAL_WRITE).unwrap();
        let init = crate::pair::qp_init(QpType::Gsi, pd, cq);
        let qp = device.create_qp(&init).unwrap();
        let another = device.create_qp(&init).unwrap_err().to_string();
        assert!(another.contains("GSI queue pairs"), "{another}");
        let state = |state| QpAttributes { state: Some(state), ..QpAttributes::default() };
        let first = QpAttributes { pkey_index: Some(0), port: Some(1), ..state(QpState::Init) };
        let wrong = QpAttributes { qkey: Some(QKey(7)), ..first };
        assert!(device.modify_qp(qp, &wrong).is_err(), "everybody knows the key");
        device.modify_qp(qp, &QpAttributes { qkey: Some(QKey::GSI), ..first }).unwrap();
        device.modify_qp(qp, &state(QpState::Rtr)).unwrap();
        let psn = Some(Psn::new(0));
        device.modify_qp(qp, &QpAttributes { sq_psn: psn, ..state(QpState::Rts) }).unwrap();
        Self { device, memory, region, pd, cq, qp }
    }

    fn sge(&self, at: u64, bytes: u32) -> Sge {
        Sge { address: self.region.address + at, bytes, lkey: self.region.lkey }
    }

    fn receive(&mut self) {
        let sge = self.sge(512, 296);
        self.device.post_recv(self.qp, &[RecvRequest { id: 1, sges: &[sge] }]).unwrap();
    }

    fn send(&mut self, dlid: Lid, class: MgmtClass, method: Method) {
        let mut mad = [0; 256];
        let header = MadHeader::new(class, method, 9, AttributeId(1));
        mad[..MadHeader::LEN].copy_from_slice(&header.emit());
        assert!(self.memory.write(0, &mad));
        let path = AddressVector::to_lid(dlid, 1);
        let ah = self.device.create_ah(self.pd, &path).unwrap();
        self.post(SendOp::Datagram(Destination { ah, qpn: Qpn::GSI, qkey: QKey::GSI })).unwrap();
    }

    fn post(&mut self, op: SendOp) -> Result<(), PostError> {
        let sges = [self.sge(0, 256)];
        let (data, flags) = (Data::Sges(&sges), SendFlags::SIGNALED);
        self.device.post_send(self.qp, &[SendRequest { id: 2, op, data, flags }])
    }

    /// The sender and the method of a received datagram.
    fn received(&mut self) -> Option<(Lid, Qpn, Method)> {
        loop {
            let mut out = [Completion::NOTHING];
            if self.device.poll(self.cq, &mut out).unwrap() == 0 {
                return None;
            }
            if out[0].kind == CompletionKind::Recv {
                let from = out[0].from.unwrap();
                let mut mad = [0; 296];
                assert!(self.memory.read(512, &mut mad));
                return Some((from.slid, from.src_qp, Method(mad[43])));
            }
        }
    }
}

/// With messages and with packets: programs reach each other, and agents answer their classes.
#[test]
fn a_program_owns_general_services_beside_the_agents() {
    for packets_only in [false, true] {
        let topology = Topology::generate("single:2", 1).unwrap();
        let mut subnet = Subnet::new(topology);
        manage(&mut subnet, 0, None);
        let wire = Wire { packets_only, ..Wire::default() };
        let world = NetWorld::new(Net::new(subnet, 1, wire));
        let mut programs = [1, 2].map(|node| Program::new(&world, node));
        let mut ask = |dlid, class, method, taker: usize| {
            programs.iter_mut().for_each(Program::receive);
            programs[0].send(Lid(dlid), class, method);
            for _ in 0..100 {
                world.step();
                if let Some(received) = programs[taker].received() {
                    return Some(received);
                }
            }
            None
        };
        let (cm, perf) = (MgmtClass::COMM_MGT, MgmtClass::PERF);
        let (get, answered) = (Method::GET, Method::GET_RESP);
        assert_eq!(ask(3, cm, Method::SEND, 1), Some((Lid(2), Qpn::GSI, Method::SEND)));
        assert_eq!(ask(2, cm, Method::SEND, 0), Some((Lid(2), Qpn::GSI, Method::SEND)), "own");
        assert_eq!(ask(3, perf, get, 0), Some((Lid(3), Qpn::GSI, answered)), "of the agent");
        assert_eq!(ask(2, perf, get, 0), Some((Lid(2), Qpn::GSI, answered)), "of the own one");
        assert_eq!(ask(1, perf, get, 0), Some((Lid(1), Qpn::GSI, answered)), "of the switch");
        assert_eq!(ask(3, MgmtClass::SUBN_LID_ROUTED, get, 1), None, "not by this queue pair");
        assert_eq!(world.net().subnet().nodes()[2].drops.of(NodeDrop::Malformed), 1);
    }
}

/// Queue pair 1 sends and receives in each partition of its port.
#[test]
fn a_program_chooses_the_partition_of_each_datagram() {
    let mut subnet = Subnet::new(Topology::generate("single:2", 1).unwrap());
    manage(&mut subnet, 0, None);
    // The switch does not enforce partitions, and the receiver has the same keys in another order.
    for (node, keys) in [(1, [0xffff, 0x8001, 0x8002]), (2, [0x8002, 0xffff, 0x8001])] {
        let mut entries = [PKey(0); 32];
        entries[..3].copy_from_slice(&keys.map(PKey));
        subnet.node_mut(node).ports[1].p_keys = PKeys::new(entries);
    }
    let world = NetWorld::new(Net::new(subnet, 1, Wire::default()));
    let mut programs = [1, 2].map(|node| Program::new(&world, node));
    let path = AddressVector::to_lid(Lid(3), 1);
    let ah = programs[0].device.create_ah(programs[0].pd, &path).unwrap();
    let to = Destination { ah, qpn: Qpn::GSI, qkey: QKey::GSI };
    let header = MadHeader::new(MgmtClass::COMM_MGT, Method::SEND, 9, AttributeId(1));
    assert!(programs[0].memory.write(0, &header.emit()));
    for (sent, came) in [(0, 1), (1, 2), (2, 0)] {
        programs[1].receive();
        programs[0].post(SendOp::DatagramIn(to, sent)).unwrap();
        let mut out = [Completion::NOTHING];
        for _ in 0..100 {
            world.step();
            if programs[1].device.poll(programs[1].cq, &mut out).unwrap() > 0 {
                break;
            }
        }
        assert_eq!(out[0].from.map(|from| from.pkey_index), Some(came));
    }
    let refusal = programs[0].post(SendOp::DatagramIn(to, 32)).unwrap_err().refusal;
    assert_eq!(refusal, PostRefusal::BadOperation, "the table has no such place");
}

proptest! {
    #[test]
    fn hostile_wires_are_survived(
        frames in prop::collection::vec(prop::collection::vec(any::<u8>(), 0..400), 1..6),
        place in 0usize..300, bit in 0u8..8, seal: bool,
    ) {
        let mut net = net(1, Wire::default());
        net.set_foreign_up(WIRE, true);
        // One of them is an answer with one flipped bit.
        let mut other = joined();
        ask(&mut other[0], &[1, 3, 1]);
        finish(&mut other[0]);
        let mut good = other[0].poll_foreign(WIRE).unwrap();
        let place = place % (good.len() - 6);
        good[place] ^= 1 << bit;
        if seal {
            pollux_wire::packet::seal(&mut good);
        }
        for bytes in frames.iter().chain([&good]) {
            net.receive_foreign(Time::START, WIRE, bytes);
        }
        finish(&mut net);
        if !seal {
            prop_assert!(net.subnet().nodes()[0].drops.total() > 0);
        }
    }
}
