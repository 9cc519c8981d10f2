//! Two adapters that have queue pairs for each other: at a link between threads, or at any other.

use pollux_fabric::link::Link;
use pollux_fabric::link::threads::{Clock, ThreadLink, pair};
use pollux_fabric::{Adapter, Port, SoftDevice, Time};
use pollux_mem::Memory;
use pollux_verbs::*;
use pollux_wire::address::{Guid, Lid, Qpn};
use pollux_wire::keys::QKey;
use pollux_wire::packet::RnrTimer;
use pollux_wire::psn::Psn;
use pollux_wire::units::{Mtu, TimeCode};
use std::sync::Arc;
use std::time::Instant;

/// How the two are to be joined.
#[derive(Clone, Copy)]
pub struct Setup {
    pub qp_type: QpType,
    /// Queue pairs of each end, the nth of one connected to the nth of the other.
    pub qps: usize,
    /// They take their receives from one queue.
    pub has_srq: bool,
    /// Packets with their CRCs, and no shortcut.
    pub packets_only: bool,
}

impl Setup {
    /// One queue pair each, and the shortcut.
    pub const fn of(qp_type: QpType) -> Self {
        Self { qp_type, qps: 1, has_srq: false, packets_only: false }
    }
}

/// One end; on cache lines of its own, as the other is another thread's.
#[repr(align(256))]
pub struct End<L: Link = ThreadLink> {
    pub device: SoftDevice<L>,
    pub cq: Cq,
    pub qps: Vec<Qp>,
    pub srq: Option<Srq>,
    pub ah: Ah,
    pub region: MemoryRegion,
    qp_type: QpType,
    peers: Vec<Qpn>,
}

/// Two connected ends.
pub fn ends(setup: Setup) -> [End; 2] {
    let start = Instant::now();
    let clock: Clock = Arc::new(move || Time::START + start.elapsed());
    // Each in a thread of its own, as it would be, so that their allocations share no cache line.
    let [first, second] = pair(&clock);
    let mut ends = std::thread::scope(|scope| {
        let made = [(first, 1), (second, 2)]
            .map(|(link, lid)| scope.spawn(move || end(link, lid, &setup)));
        made.map(|end| end.join().expect("it is made"))
    });
    let qpns = [0, 1].map(|i| {
        let qpn = |qp: &Qp| ends[i].device.qpn(*qp).expect("it exists");
        ends[i].qps.iter().map(qpn).collect::<Vec<_>>()
    });
    let [first, second] = qpns;
    connect(&mut ends[0], second, 2);
    connect(&mut ends[1], first, 1);
    ends
}

fn end(mut link: ThreadLink, lid: u16, setup: &Setup) -> End {
    if setup.packets_only {
        link.set_packets_only();
    }
    let port = Port::active(Lid(lid), Guid(u64::from(lid)));
    let device = SoftDevice::new("soft", Adapter::new(port), link);
    let memory = Memory::private(OCTETS).expect("there is memory");
    end_of(device, memory, 3 - lid, setup)
}

/// Octets of an end's memory.
pub const OCTETS: usize = 8 << 20;

/// An end with this device and this memory, and a handle of its peer's address.
pub fn end_of<L: Link>(
    mut device: SoftDevice<L>,
    memory: Memory,
    peer_lid: u16,
    setup: &Setup,
) -> End<L> {
    let pd = device.create_pd().expect("there is room");
    let cq = device.create_cq(4096).expect("there is room");
    let region = device.register(pd, &memory, Access::ALL).expect("there is room");
    let srq = setup.has_srq.then(|| device.create_srq(pd, 1024, 1).expect("there is room"));
    let init = QpInit {
        qp_type: setup.qp_type,
        pd,
        send_cq: cq,
        recv_cq: cq,
        srq,
        send_requests_max: 1024,
        recv_requests_max: 1024,
        send_sges_max: 1,
        recv_sges_max: 1,
        inline_octets_max: 64,
        signal_all: false,
    };
    let qps = (0..setup.qps).map(|_| device.create_qp(&init).expect("there is room")).collect();
    let path = AddressVector { dlid: Lid(peer_lid), port: 1, ..AddressVector::default() };
    let ah = device.create_ah(pd, &path).expect("there is room");
    End { device, cq, qps, srq, ah, region, qp_type: setup.qp_type, peers: Vec::new() }
}

/// Connects the queue pairs of an end to those of its peer.
pub fn connect<L: Link>(end: &mut End<L>, peers: Vec<Qpn>, peer_lid: u16) {
    let (rc, ud) = (end.qp_type == QpType::Rc, end.qp_type == QpType::Ud);
    let path = AddressVector { dlid: Lid(peer_lid), port: 1, ..AddressVector::default() };
    let init = QpAttributes {
        state: Some(QpState::Init),
        pkey_index: Some(0),
        port: Some(1),
        access: (!ud).then_some(Access::ALL),
        qkey: ud.then_some(QKey(1)),
        ..QpAttributes::default()
    };
    let rtr = |peer| QpAttributes {
        state: Some(QpState::Rtr),
        path: (!ud).then_some(path),
        path_mtu: (!ud).then_some(Mtu::OCTETS_4096),
        dest_qp: (!ud).then_some(peer),
        rq_psn: (!ud).then_some(Psn::new(0)),
        responder_resources: rc.then_some(4),
        min_rnr_timer: rc.then_some(RnrTimer(1)),
        ..QpAttributes::default()
    };
    let rts = QpAttributes {
        state: Some(QpState::Rts),
        sq_psn: Some(Psn::new(0)),
        timeout: rc.then_some(TimeCode(18)),
        retry_count: rc.then_some(Retries::SEVEN),
        rnr_retry: rc.then_some(Retries::SEVEN),
        initiator_depth: rc.then_some(4),
        ..QpAttributes::default()
    };
    for (&qp, &peer) in end.qps.iter().zip(&peers) {
        for change in [init, rtr(peer), rts] {
            end.device.modify_qp(qp, &change).expect("the table allows it");
        }
    }
    end.peers = peers;
}

impl<L: Link> End<L> {
    /// Posts a receive.
    pub fn recv(&mut self, octets: u32) {
        let sge = [Sge { address: self.region.address, octets, lkey: self.region.lkey }];
        let request = [RecvRequest { id: 0, sges: &sge }];
        let posted = match self.srq {
            Some(srq) => self.device.post_srq_recv(srq, &request),
            None => self.device.post_recv(self.qps[0], &request),
        };
        posted.expect("there is room");
    }

    /// Waits for a message.
    #[allow(dead_code, reason = "one of the two benches that use this needs it")]
    pub fn wait(&mut self) {
        let mut out = [Completion::NOTHING];
        loop {
            let count = self.device.poll(self.cq, &mut out).expect("it exists");
            if count == 1 && out[0].kind.is_recv() {
                return;
            }
        }
    }

    /// Sends a message of these octets, or of so many of the registered memory.
    pub fn send(&mut self, data: Data<'_>) {
        let to = Destination { ah: self.ah, qpn: self.peers[0], qkey: QKey(1) };
        let op = if self.qp_type == QpType::Ud { SendOp::Datagram(to) } else { SendOp::Send };
        let request = SendRequest { id: 0, op, flags: SendFlags::NONE, data };
        self.device.post_send(self.qps[0], &[request]).expect("there is room");
    }
}
