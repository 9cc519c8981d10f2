//! Two subnets with a router between them, each with a manager of its own.

use crate::net_world::{NetLink, NetWorld};
use crate::pair::{Connection, QKEY, Side, connect_by, side_of};
use pollux_fabric::link::Wire;
use pollux_fabric::net::Net;
use pollux_fabric::node::{NodeDrop, PKeys};
use pollux_fabric::sm::{Residents, SmConfig};
use pollux_fabric::subnet::Subnet;
use pollux_fabric::topology::{End, Topology};
use pollux_fabric::{Adapter, SoftDevice, Time};
use pollux_mem::Memory;
use pollux_verbs::*;
use pollux_wire::address::Gid;
use pollux_wire::keys::PKey;
use pollux_wire::packet::Packet;
use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};

const ELSEWHERE: u64 = 0xfec0_0000_0000_0002;

/// Hop limits of packets on links, by the sending end.
type Seen = Arc<Mutex<BTreeMap<End, u8>>>;

struct Routed {
    world: NetWorld,
    hosts: [End; 2],
    router: u32,
    seen: Seen,
}

impl Routed {
    fn new() -> Self {
        let topology = Topology::generate("routed:1x1", 1).unwrap();
        let named = |name: &str| topology.nodes().iter().position(|node| node.name == name);
        let [router, one, two, here, there] = ["router1", "switch1", "switch2", "host1", "host2"]
            .map(|name| named(name).unwrap() as u32);
        let mut subnet = Subnet::new(topology);
        let mut managers = Residents::default();
        for (node, prefix) in [(one, Gid::DEFAULT_PREFIX), (two, ELSEWHERE)] {
            let config = SmConfig { prefix, ..SmConfig::default() };
            managers.start(&mut subnet, End { node, port: 0 }, config);
        }
        managers.exchange(Time::START, &mut subnet, |_, _| {});
        let mut net = Net::new(subnet, 1, Wire::default());
        let seen = Seen::default();
        let noted = seen.clone();
        net.set_tap(Box::new(move |_, from, bytes| {
            let packet = Packet::parse(bytes).unwrap();
            assert!(packet.icrc_ok() && packet.vcrc_ok());
            let grh = packet.grh().expect("what crosses a router has one");
            noted.lock().unwrap().insert(from, grh.hop_lmt);
        }));
        let hosts = [here, there].map(|node| End { node, port: 1 });
        Self { world: NetWorld::new(net), hosts, router, seen }
    }

    fn side(&self, nth: usize, connection: &Connection) -> Side<NetLink> {
        let end = self.hosts[nth];
        let adapter = Adapter::new(self.world.net().port(end));
        let device = SoftDevice::new("soft", adapter, self.world.link(end));
        side_of(device, Memory::private(connection.memory_bytes).unwrap(), connection)
    }

    /// The path to the other host.
    fn path(&self, from: usize, hop_limit: u8) -> AddressVector {
        let net = self.world.net();
        let dgid = net.port(self.hosts[1 - from]).gids[0];
        let door = End { node: self.router, port: from as u8 + 1 };
        let grh = Some(GlobalRoute::to(dgid, hop_limit));
        AddressVector { dlid: net.port(door).lid, port: 1, grh, ..AddressVector::default() }
    }

    fn connected(&self, qp_type: QpType) -> [Side<NetLink>; 2] {
        let connection = Connection { qp_type, ..Connection::default() };
        let mut sides = [0, 1].map(|nth| self.side(nth, &connection));
        let qpns = [0, 1].map(|nth| sides[nth].device.qpn(sides[nth].qp).unwrap());
        for nth in [0, 1] {
            connect_by(&mut sides[nth], qpns[1 - nth], self.path(nth, 9), &connection);
        }
        sides
    }

    fn drops(&self, reason: NodeDrop) -> u64 {
        self.world.net().subnet().nodes()[self.router as usize].drops.of(reason)
    }

    /// Steps until a side has a completion; `None` if no event is left.
    fn wait(&self, sides: &mut [Side<NetLink>; 2], nth: usize) -> Option<Completion> {
        loop {
            let mut found = [Completion::NOTHING];
            let cqs = [sides[0].cq, sides[1].cq];
            if sides[nth].device.poll(cqs[nth], &mut found).unwrap() == 1 {
                return Some(found[0]);
            }
            sides[1 - nth].device.progress();
            if !self.world.step() {
                return None;
            }
        }
    }
}

fn send(side: &mut Side<NetLink>, bytes: u32, op: SendOp) {
    let sges = [side.sge(0, bytes)];
    let request = SendRequest { id: 1, op, data: Data::Sges(&sges), flags: SendFlags::SIGNALED };
    side.device.post_send(side.qp, &[request]).unwrap();
}

fn receive(side: &mut Side<NetLink>) {
    let sges = [side.sge(0x8000, 0x4000)];
    side.device.post_recv(side.qp, &[RecvRequest { id: 2, sges: &sges }]).unwrap();
}

// req: iba-subnet
#[test]
fn a_connection_crosses_a_router() {
    let routed = Routed::new();
    let mut sides = routed.connected(QpType::Rc);
    for (from, to) in [(0, 1), (1, 0)] {
        assert!(sides[from].memory.write(0, &[from as u8 + 1; 10_000]));
        receive(&mut sides[to]);
        send(&mut sides[from], 10_000, SendOp::Send);
        let came = routed.wait(&mut sides, to).expect("it comes");
        assert_eq!((came.status, came.bytes), (CompletionStatus::Success, 10_000));
        let done = routed.wait(&mut sides, from).expect("it is acknowledged");
        assert_eq!(done.status, CompletionStatus::Success);
        let mut bytes = [0; 10_000];
        assert!(sides[to].memory.read(0x8000, &mut bytes));
        assert!(bytes.iter().all(|byte| *byte == from as u8 + 1));
    }
    let seen = routed.seen.lock().unwrap();
    for port in [1, 2] {
        assert_eq!(seen[&End { node: routed.router, port }], 8, "one less than was sent");
    }
    assert!(routed.hosts.iter().all(|host| seen[host] == 9));
}

#[test]
fn packets_that_must_not_cross_a_router_are_counted_drops() {
    let routed = Routed::new();
    let mut sides = routed.connected(QpType::Ud);
    let qpn = sides[1].device.qpn(sides[1].qp).unwrap();
    let mut arrives = |path: AddressVector| {
        receive(&mut sides[1]);
        let ah = sides[0].device.create_ah(sides[0].pd, &path).unwrap();
        send(&mut sides[0], 100, SendOp::Datagram(Destination { ah, qpn, qkey: QKEY }));
        assert!(routed.wait(&mut sides, 0).is_some(), "a datagram is sent");
        routed.wait(&mut sides, 1).is_some()
    };
    assert!(arrives(routed.path(0, 2)));

    assert!(!arrives(routed.path(0, 1)));
    assert_eq!(routed.drops(NodeDrop::Hops), 1);

    let to = |dgid| {
        let path = routed.path(0, 9);
        AddressVector { grh: path.grh.map(|grh| GlobalRoute { dgid, ..grh }), ..path }
    };
    let [here, there] = routed.hosts.map(|host| routed.world.net().port(host).gids[0].guid());
    assert!(!arrives(to(Gid::new(ELSEWHERE + 1, there))), "no such subnet");
    assert!(!arrives(to(Gid::new(ELSEWHERE, here))), "no such port");
    assert_eq!(routed.drops(NodeDrop::NoRoute), 2);

    for (port, reason) in [(2, NodeDrop::PKeyOutbound), (1, NodeDrop::PKeyInbound)] {
        let mut keys = [PKey::INVALID; 32];
        keys[0] = PKey(0x8001);
        let mut net = routed.world.net_mut();
        net.subnet_mut().node_mut(routed.router).ports[port].p_keys = PKeys::new(keys);
        drop(net);
        assert!(!arrives(routed.path(0, 9)));
        assert_eq!(routed.drops(reason), 1);
    }
}
