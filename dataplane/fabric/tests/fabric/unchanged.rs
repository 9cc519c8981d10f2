//! One scripted exchange of all kinds, captured: the capture's bytes are those of earlier versions.
//!
//! Every packet on every link counts, with its time and the port that sent it: RC sends, writes,
//! reads and atomics of several packets, UD datagrams to a group, subnet management and performance
//! management, on links that lose packets by seed; once without and once with rates, VL arbitration
//! and flow control. A change that is to keep behavior keeps the digests. Another change says why
//! in its commit, and sets the digests that the test prints.

use crate::managed::manage;
use crate::net_world::{NetLink, NetWorld};
use crate::pair::{Connection, QKEY, Side, connect, qp_init, side_of};
use pollux_fabric::link::Wire;
use pollux_fabric::link::fault::Faults;
use pollux_fabric::net::Net;
use pollux_fabric::subnet::{Datagram, Subnet};
use pollux_fabric::topology::{End, Topology};
use pollux_fabric::{Adapter, SoftDevice, sm};
use pollux_mem::Memory;
use pollux_verbs::*;
use pollux_wire::address::{Gid, Lid, Qpn};
use pollux_wire::capture::record;
use pollux_wire::keys::PKey;
use pollux_wire::mad::smp::{DirectedSmp, NodeInfo};
use pollux_wire::mad::{Attribute, AttributeId, MadHeader, Method, MgmtClass};
use pollux_wire::units::{Mtu, TimeCode};
use std::sync::{Arc, Mutex};
use std::time::Duration;

/// Bytes of one message: eleven packets.
const BYTES: u32 = 11_000;
const MGID: Gid = Gid([0xff, 0x12, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1]);
const MLID: Lid = Lid(0xc005);

/// The number of packets, and their FNV-1a hash.
type Digest = Arc<Mutex<(usize, u64)>>;

fn hash(digest: &mut u64, bytes: &[u8]) {
    for byte in bytes {
        *digest = (*digest ^ u64::from(*byte)).wrapping_mul(0x0100_0000_01b3);
    }
}

/// A packet without its virtual address, which differs between processes, and without the CRCs over
/// it.
fn placed(bytes: &[u8]) -> Vec<u8> {
    // Opcodes of RC with a RETH or an AtomicETH; the virtual address is behind LRH and BTH.
    let is_remote = matches!(bytes[8], 0x06 | 0x0a..=0x0c | 0x13 | 0x14);
    let mut bytes = bytes.to_vec();
    if is_remote {
        bytes[20..28].fill(0);
        bytes.truncate(bytes.len() - 6);
    }
    bytes
}

/// Three hosts at a switch, with LIDs 2, 3 and 4, whose links lose packets.
fn world(is_paced: bool) -> (NetWorld, Digest) {
    let mut subnet = Subnet::new(Topology::generate("single:3", 1).unwrap());
    manage(&mut subnet, 0, None);
    let faults = Faults {
        loss: 20_000,
        duplication: 10_000,
        reordering: 10_000,
        corruption: 10_000,
        delay_max: Duration::from_micros(20),
    };
    let wire = Wire { faults, jitter: Duration::from_nanos(300), ..Wire::default() };
    let mut net = Net::new(subnet, 7, wire);
    net.set_paced(is_paced);
    let digest = Digest::new(Mutex::new((0, 0xcbf2_9ce4_8422_2325)));
    let seen = digest.clone();
    net.set_tap(Box::new(move |now, from, bytes| {
        let (packets, digest) = &mut *seen.lock().unwrap();
        *packets += 1;
        hash(digest, &[from.node as u8, from.port]);
        hash(digest, &record(now.since_start(), bytes.len()).unwrap());
        hash(digest, &placed(bytes));
    }));
    (NetWorld::new(net), digest)
}

fn side(world: &NetWorld, node: u32, connection: &Connection) -> Side<NetLink> {
    let end = End { node, port: 1 };
    let adapter = Adapter::new(world.net().port(end));
    let device = SoftDevice::new("soft", adapter, world.link(end));
    side_of(device, Memory::private(connection.memory_bytes).unwrap(), connection)
}

/// Steps until side `nth` has a completion.
fn wait(world: &NetWorld, sides: &mut [Side<NetLink>], nth: usize) -> Completion {
    loop {
        sides.iter_mut().for_each(|side| side.device.progress());
        if let Some(completion) = sides[nth].poll() {
            return completion;
        }
        assert!(world.step(), "nothing will ever happen");
    }
}

/// Handles timers and frames for this long.
fn pass(world: &NetWorld, sides: &mut [Side<NetLink>], time: Duration) {
    let end = world.now() + time;
    while world.step_until(end) {
        for side in &mut *sides {
            side.device.progress();
            while side.poll().is_some() {}
        }
    }
}

fn post(side: &mut Side<NetLink>, qp: Qp, op: SendOp, bytes: u32) {
    let sges = [side.sge(0, bytes)];
    let request = SendRequest { id: 1, op, flags: SendFlags::SIGNALED, data: Data::Sges(&sges) };
    side.device.post_send(qp, &[request]).unwrap();
}

fn post_recv(side: &mut Side<NetLink>, qp: Qp) {
    let sges = [side.sge(0x8000, 0x4000)];
    side.device.post_recv(qp, &[RecvRequest { id: 2, sges: &sges }]).unwrap();
}

/// Sends, writes, reads and atomics from the first side to the second, which also sends.
fn talk_rc(world: &NetWorld, sides: &mut [Side<NetLink>; 3]) {
    let qps = [0, 1].map(|nth| sides[nth].qp);
    for round in 0..6 {
        let remote = sides[1].remote(0x1000);
        for op in [SendOp::Write(remote), SendOp::Read(remote)] {
            post(&mut sides[0], qps[0], op, BYTES);
            assert_eq!(wait(world, sides, 0).status, CompletionStatus::Success);
        }
        post(&mut sides[0], qps[0], SendOp::FetchAdd { remote, add: round }, 8);
        assert_eq!(wait(world, sides, 0).status, CompletionStatus::Success);
        for (from, to) in [(0, 1), (1, 0)] {
            post_recv(&mut sides[to], qps[to]);
            post(&mut sides[from], qps[from], SendOp::Send, BYTES);
            assert_eq!(wait(world, sides, from).status, CompletionStatus::Success);
            assert_eq!(wait(world, sides, to).status, CompletionStatus::Success);
        }
    }
}

/// Datagrams of the first side to a group with all three as members.
fn talk_to_group(world: &NetWorld, sides: &mut [Side<NetLink>; 3]) {
    let qps = sides.each_mut().map(|side| {
        let qp = side.device.create_qp(&qp_init(QpType::Ud, side.pd, side.cq)).unwrap();
        let connection = Connection { qp_type: QpType::Ud, ..Connection::default() };
        let rc = std::mem::replace(&mut side.qp, qp);
        connect(side, Qpn(0), 0, &connection);
        side.qp = rc;
        side.device.attach_multicast(qp, MGID, MLID).unwrap();
        qp
    });
    for _ in 0..20 {
        sides.iter_mut().zip(qps).for_each(|(side, qp)| post_recv(side, qp));
        let ah = sides[0].ah_to_group(MGID, MLID);
        let to = Destination { ah, qpn: Qpn::MULTICAST, qkey: QKEY };
        post(&mut sides[0], qps[0], SendOp::Datagram(to), 200);
        pass(world, sides, Duration::from_micros(50));
    }
}

/// Gets of the first host to the switch, by directed route and by LID.
fn manage_nodes(world: &NetWorld, sides: &mut [Side<NetLink>; 3]) {
    let from = End { node: 1, port: 1 };
    for id in 1..20 {
        let header = |class, attribute| MadHeader::new(class, Method::GET, id, attribute);
        let header_of_smp = header(MgmtClass::SUBN_DIRECTED_ROUTE, NodeInfo::ID);
        let (dr_slid, dr_dlid) = (Lid::PERMISSIVE, Lid::PERMISSIVE);
        let mut smp =
            DirectedSmp { header: header_of_smp, dr_slid, dr_dlid, ..DirectedSmp::default() };
        smp.set_hops(0, 1);
        smp.initial_path[1] = 1;
        let lids = [Lid::PERMISSIVE, Lid::PERMISSIVE];
        send_mad(world, from, lids, Qpn::SMI, smp.emit());
        // PortCounters of a port.
        let mut mad = [0; 256];
        mad[..24].copy_from_slice(&header(MgmtClass::PERF, AttributeId(0x12)).emit());
        mad[65] = 1;
        send_mad(world, from, [Lid(2), Lid(1)], Qpn::GSI, mad);
        pass(world, sides, Duration::from_micros(50));
    }
}

fn send_mad(world: &NetWorld, from: End, [slid, dlid]: [Lid; 2], qp: Qpn, mad: [u8; 256]) {
    let p_key = PKey::DEFAULT;
    let datagram = Datagram { slid, dlid, src_qp: qp, dest_qp: qp, p_key, mad };
    let now = world.now();
    world.net_mut().send_datagram(now, from, datagram);
}

#[test]
fn captures_are_those_of_earlier_versions() {
    let digests = [false, true].map(|is_paced| {
        let (world, digest) = world(is_paced);
        let connection = Connection { mtu: Mtu::BYTES_1024, ..Connection::default() };
        let mut sides = [1, 2, 3].map(|node| side(&world, node, &connection));
        let qpns = [0, 1].map(|nth| sides[nth].device.qpn(sides[nth].qp).unwrap());
        connect(&mut sides[0], qpns[1], 3, &connection);
        connect(&mut sides[1], qpns[0], 2, &connection);
        talk_rc(&world, &mut sides);
        talk_to_group(&world, &mut sides);
        manage_nodes(&world, &mut sides);
        let config = sm::SmConfig { subnet_timeout: TimeCode(18), ..sm::SmConfig::default() };
        world.start_manager(End { node: 0, port: 0 }, config);
        pass(&world, &mut sides, Duration::from_millis(300));
        *digest.lock().unwrap()
    });
    assert_eq!(digests, [(1111, 15_092_803_496_039_445_734), (1056, 4_746_711_826_344_398_796)]);
}
