//! Two adapters at a link between threads, each with a queue pair for the other.

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

pub const NOTHING: Completion = Completion {
    id: 0,
    status: CompletionStatus::General,
    kind: CompletionKind::Send,
    qpn: Qpn(0),
    octets: 0,
    with: With::Nothing,
    from: None,
};

#[repr(align(256))]
pub struct End {
    pub device: SoftDevice<ThreadLink>,
    pub cq: Cq,
    pub qp: Qp,
    pub ah: Ah,
    pub region: MemoryRegion,
}

/// Two connected ends.
pub fn ends(qp_type: QpType) -> [End; 2] {
    let start = Instant::now();
    let clock: Clock = Arc::new(move || Time::START + start.elapsed());
    // Each in a thread of its own, as it would be, so that their allocations share no cache line.
    let [first, second] = pair(&clock);
    let mut ends = std::thread::scope(|scope| {
        let made = [(first, 1), (second, 2)]
            .map(|(link, lid)| scope.spawn(move || end(link, lid, qp_type)));
        made.map(|end| end.join().expect("it is made"))
    });
    let qpns = [0, 1].map(|i| ends[i].device.qpn(ends[i].qp).expect("it exists"));
    connect(&mut ends[0], qpns[1], 2, qp_type);
    connect(&mut ends[1], qpns[0], 1, qp_type);
    ends
}

fn end(link: ThreadLink, lid: u16, qp_type: QpType) -> End {
    let port = Port::active(Lid(lid), Guid(u64::from(lid)));
    let mut device = SoftDevice::new("soft", Adapter::new(port), link);
    let pd = device.create_pd().expect("there is room");
    let cq = device.create_cq(4096).expect("there is room");
    let memory = Memory::private(8 << 20).expect("there is memory");
    let region = device.register(pd, &memory, Access::ALL).expect("there is room");
    let init = QpInit {
        qp_type,
        pd,
        send_cq: cq,
        recv_cq: cq,
        srq: None,
        send_requests_max: 1024,
        recv_requests_max: 1024,
        send_sges_max: 1,
        recv_sges_max: 1,
        inline_octets_max: 64,
        signal_all: false,
    };
    let qp = device.create_qp(&init).expect("there is room");
    let path = AddressVector { dlid: Lid(3 - lid), port: 1, ..AddressVector::default() };
    let ah = device.create_ah(pd, &path).expect("there is room");
    End { device, cq, qp, ah, region }
}

fn connect(end: &mut End, peer: Qpn, peer_lid: u16, qp_type: QpType) {
    let (rc, ud) = (qp_type == QpType::Rc, qp_type == QpType::Ud);
    let path = AddressVector { dlid: Lid(peer_lid), port: 1, ..AddressVector::default() };
    let init = QpAttributes {
        state: Some(QpState::Init),
        pkey_index: Some(0),
        port: Some(1),
        access: (!ud).then_some(Access::ALL),
        qkey: ud.then_some(QKey(1)),
        ..QpAttributes::default()
    };
    let rtr = QpAttributes {
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
    for change in [init, rtr, rts] {
        end.device.modify_qp(end.qp, &change).expect("the table allows it");
    }
}

impl End {
    pub fn recv(&mut self, octets: u32) {
        let sge = [Sge { address: self.region.address, octets, lkey: self.region.lkey }];
        let request = RecvRequest { id: 0, sges: &sge };
        self.device.post_recv(self.qp, &[request]).expect("there is room");
    }

    /// Waits for a message.
    #[allow(dead_code, reason = "one of the two benches that use this needs it")]
    pub fn wait(&mut self) {
        let mut out = [NOTHING];
        loop {
            let count = self.device.poll(self.cq, &mut out).expect("it exists");
            if count == 1 && out[0].kind.is_recv() {
                return;
            }
        }
    }

    pub fn send_inline(&mut self, qp_type: QpType, peer: Qpn) {
        let to = Destination { ah: self.ah, qpn: peer, qkey: QKey(1) };
        let op = if qp_type == QpType::Ud { SendOp::Datagram(to) } else { SendOp::Send };
        let data = Data::Inline(&[7; 64]);
        let request = SendRequest { id: 0, op, flags: SendFlags::NONE, data };
        self.device.post_send(self.qp, &[request]).expect("there is room");
    }
}
