//! Two adapters at a link, each with one connection to the other, in virtual time.

use crate::pair_world::{World, WorldLink};
use pollux_fabric::link::Link;
use pollux_fabric::link::Wire;
use pollux_fabric::{Adapter, Port, SoftDevice};
use pollux_mem::Memory;
use pollux_verbs::*;
use pollux_wire::address::{Gid, Guid, Lid, Qpn};
use pollux_wire::keys::QKey;
use pollux_wire::packet::RnrTimer;
use pollux_wire::psn::Psn;
use pollux_wire::units::{Mtu, TimeCode};

/// One end: an adapter and its objects.
pub struct Side<L: Link> {
    pub device: SoftDevice<L>,
    pub pd: Pd,
    pub cq: Cq,
    pub qp: Qp,
    pub memory: Memory,
    pub region: MemoryRegion,
}

/// The attributes of the connection.
#[derive(Clone, Copy)]
pub struct Connection {
    pub qp_type: QpType,
    pub mtu: Mtu,
    /// The first PSN, in both directions.
    pub psn: u32,
    pub memory_bytes: usize,
    pub retries: Retries,
    pub rnr_retries: Retries,
    pub timeout: TimeCode,
}

impl Default for Connection {
    fn default() -> Self {
        Self {
            qp_type: QpType::Rc,
            mtu: Mtu::BYTES_1024,
            psn: 0xff_fff0,
            memory_bytes: 1 << 16,
            retries: Retries::SEVEN,
            rnr_retries: Retries::SEVEN,
            timeout: TimeCode(10),
        }
    }
}

/// Two connected sides.
pub struct Pair {
    pub world: World,
    pub sides: [Side<WorldLink>; 2],
}

impl Pair {
    pub fn new(seed: u64, wire: Wire, connection: &Connection) -> Self {
        let (world, links) = World::new(seed, wire);
        Self { world, sides: connected(links, connection) }
    }

    /// Lets both sides make progress, and advances time if they have no work.
    pub fn step(&mut self) -> bool {
        for side in &mut self.sides {
            side.device.progress();
        }
        self.world.step()
    }

    /// The next completion of a side, if any.
    pub fn poll(&mut self, side: usize) -> Option<Completion> {
        self.sides[side].poll()
    }

    /// Waits for the next completion of a side.
    pub fn wait(&mut self, side: usize) -> Completion {
        loop {
            if let Some(completion) = self.poll(side) {
                return completion;
            }
            assert!(self.step(), "nothing will ever happen");
        }
    }
}

/// Two sides at these links, connected.
pub fn connected<L: Link>([link_a, link_b]: [L; 2], connection: &Connection) -> [Side<L>; 2] {
    let mut sides = [side(link_a, 1, connection), side(link_b, 2, connection)];
    let qpns = [0, 1].map(|i| sides[i].device.qpn(sides[i].qp).unwrap());
    connect(&mut sides[0], qpns[1], 2, connection);
    connect(&mut sides[1], qpns[0], 1, connection);
    sides
}

impl<L: Link> Side<L> {
    /// The next completion, if any.
    pub fn poll(&mut self) -> Option<Completion> {
        self.poll_at(self.cq)
    }

    /// The next completion at another queue.
    pub fn poll_at(&mut self, cq: Cq) -> Option<Completion> {
        let mut out = [Completion::NOTHING];
        (self.device.poll(cq, &mut out).unwrap() == 1).then_some(out[0])
    }

    /// One more queue pair, in INIT, that completes at these queues.
    pub fn initialised(&mut self, send_cq: Cq, recv_cq: Cq) -> Qp {
        let init = QpInit { send_cq, recv_cq, ..qp_init(QpType::Rc, self.pd, self.cq) };
        let qp = self.device.create_qp(&init).unwrap();
        self.device.modify_qp(qp, &to_init(QpType::Rc)).unwrap();
        qp
    }

    /// A scatter/gather entry for part of the side's memory.
    pub fn sge(&self, at: u64, bytes: u32) -> Sge {
        Sge { address: self.region.address + at, bytes, lkey: self.region.lkey }
    }

    /// The same memory as the target of a peer.
    pub fn remote(&self, at: u64) -> Remote {
        Remote { address: self.region.address + at, rkey: self.region.rkey }
    }

    /// An address handle for a port.
    pub fn ah(&mut self, lid: u16) -> Ah {
        self.device.create_ah(self.pd, &path(lid)).unwrap()
    }

    /// An address handle for a group.
    pub fn ah_to_group(&mut self, mgid: Gid, mlid: Lid) -> Ah {
        let grh = Some(GlobalRoute::to(mgid, 1));
        self.device.create_ah(self.pd, &AddressVector { grh, ..path(mlid.0) }).unwrap()
    }

    pub fn state(&self) -> QpState {
        self.device.query_qp(self.qp).unwrap().0
    }
}

/// Of datagrams.
pub const QKEY: QKey = QKey(0x1234);

pub fn path(lid: u16) -> AddressVector {
    AddressVector::to_lid(Lid(lid), 1)
}

/// A side at a link, with its queue pair in RESET.
pub fn side<L: Link>(link: L, lid: u16, connection: &Connection) -> Side<L> {
    let port = Port::active(Lid(lid), Guid(u64::from(lid)));
    let device = SoftDevice::new("soft", Adapter::new(port), link);
    let memory = Memory::private(connection.memory_bytes).unwrap();
    side_of(device, memory, connection)
}

/// A side with this device and this memory.
pub fn side_of<L: Link>(
    mut device: SoftDevice<L>,
    memory: Memory,
    connection: &Connection,
) -> Side<L> {
    let pd = device.create_pd().unwrap();
    let cq = device.create_cq(1024).unwrap();
    let region = device.register(pd, &memory, Access::ALL).unwrap();
    let qp = device.create_qp(&qp_init(connection.qp_type, pd, cq)).unwrap();
    Side { device, pd, cq, qp, memory, region }
}

pub fn qp_init(qp_type: QpType, pd: Pd, cq: Cq) -> QpInit {
    QpInit {
        qp_type,
        pd,
        send_cq: cq,
        recv_cq: cq,
        srq: None,
        send_requests_max: 256,
        recv_requests_max: 256,
        send_sges_max: 4,
        recv_sges_max: 4,
        inline_bytes_max: 64,
        signal_all: false,
    }
}

fn to_init(qp_type: QpType) -> QpAttributes {
    let connected = qp_type != QpType::Ud;
    QpAttributes {
        state: Some(QpState::Init),
        pkey_index: Some(0),
        port: Some(1),
        access: connected.then_some(Access::ALL),
        qkey: (!connected).then_some(QKEY),
        ..QpAttributes::default()
    }
}

/// Connects a side to a peer, up to RTS.
pub fn connect<L: Link>(side: &mut Side<L>, peer: Qpn, peer_lid: u16, connection: &Connection) {
    connect_by(side, peer, path(peer_lid), connection);
}

/// The same by any path.
pub fn connect_by<L: Link>(
    side: &mut Side<L>,
    peer: Qpn,
    path: AddressVector,
    connection: &Connection,
) {
    for change in changes(peer, path, connection) {
        side.device.modify_qp(side.qp, &change).unwrap();
    }
}

/// The attributes that take a queue pair from RESET to RTS.
pub fn changes(peer: Qpn, path: AddressVector, connection: &Connection) -> [QpAttributes; 3] {
    let reliable = connection.qp_type == QpType::Rc;
    let connected = connection.qp_type != QpType::Ud;
    let rtr = QpAttributes {
        state: Some(QpState::Rtr),
        path: connected.then_some(path),
        path_mtu: connected.then_some(connection.mtu),
        dest_qp: connected.then_some(peer),
        rq_psn: connected.then_some(Psn::new(connection.psn)),
        responder_resources: reliable.then_some(4),
        min_rnr_timer: reliable.then_some(RnrTimer(1)),
        ..QpAttributes::default()
    };
    let rts = QpAttributes {
        state: Some(QpState::Rts),
        sq_psn: Some(Psn::new(connection.psn)),
        timeout: reliable.then_some(connection.timeout),
        retry_count: reliable.then_some(connection.retries),
        rnr_retry: reliable.then_some(connection.rnr_retries),
        initiator_depth: reliable.then_some(4),
        ..QpAttributes::default()
    };
    [to_init(connection.qp_type), rtr, rts]
}
