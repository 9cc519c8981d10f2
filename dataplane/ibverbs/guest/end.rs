//! One queue pair with its objects, for measurements and faults: created, named, connected.

use pollux_ibverbs::open;
use pollux_mem::Memory;
use pollux_verbs::{
    Access, AddressVector, Ah, Arm, Completion, CompletionStatus, Cq, Data, Destination, Device,
    GlobalRoute, MemoryRegion, Pd, Qp, QpAttributes, QpInit, QpState, QpType, RecvRequest, Retries,
    SendFlags, SendOp, SendRequest, Sge,
};
use pollux_wire::address::{Gid, Qpn};
use pollux_wire::keys::QKey;
use pollux_wire::packet::RnrTimer;
use pollux_wire::psn::Psn;
use pollux_wire::units::{Mtu, TimeCode};
use std::collections::BTreeSet;
use std::time::Duration;

/// Sends and receives that may be outstanding, as perftest has them.
pub const SENDS_MAX: u32 = 128;
pub const RECEIVES_MAX: u32 = 512;

/// Completions that are taken at once, as perftest does.
const POLLED_MAX: usize = 16;

/// How long a sleep may be.
const TIMEOUT: Duration = Duration::from_secs(10);

/// Room for a message behind the GRH of a datagram.
const BUFFER_BYTES: usize = 4096;
const GRH_BYTES: u32 = 40;
const QKEY: QKey = QKey(0x1111_1111);

/// A queue pair's name on the network.
pub type Name = (Gid, Qpn);

/// A name as a line of text, for the other process.
pub fn text_of((gid, qpn): Name) -> String {
    format!("{} {}", u128::from_be_bytes(gid.0), qpn.0)
}

/// The inverse.
pub fn name_of(text: &str) -> Name {
    let (gid, qpn) = text.trim().split_once(' ').expect("two numbers");
    let gid: u128 = gid.parse().expect("a GID");
    (Gid(gid.to_be_bytes()), Qpn(qpn.parse().expect("a number")))
}

/// A queue pair and its objects.
pub struct End {
    pub device: Box<dyn Device + Send>,
    pub send_cq: Cq,
    pub recv_cq: Cq,
    pub qp: Qp,
    qp_type: QpType,
    pd: Pd,
    region: MemoryRegion,
    to: Option<Destination>,
    /// Queues with a received event.
    rung: BTreeSet<Cq>,
}

impl End {
    /// A queue pair in INIT, with all receives posted.
    pub fn new(name: &str, qp_type: QpType) -> Self {
        let mut device = open(name).unwrap_or_else(|error| panic!("{error}")).device;
        let pd = device.create_pd().expect("a domain");
        let send_cq = device.create_cq(SENDS_MAX).expect("a queue for sends");
        let recv_cq = device.create_cq(RECEIVES_MAX).expect("a queue for receives");
        let memory = Memory::private(BUFFER_BYTES).expect("memory");
        let region = device.register(pd, &memory, Access::LOCAL_WRITE).expect("a region");
        let init = QpInit {
            qp_type,
            pd,
            send_cq,
            recv_cq,
            srq: None,
            send_requests_max: SENDS_MAX,
            recv_requests_max: RECEIVES_MAX,
            send_sges_max: 1,
            recv_sges_max: 1,
            inline_bytes_max: 0,
            signal_all: false,
        };
        let qp = device.create_qp(&init).expect("a queue pair");
        let is_ud = qp_type == QpType::Ud;
        let change = QpAttributes {
            state: Some(QpState::Init),
            pkey_index: Some(0),
            port: Some(1),
            access: (!is_ud).then_some(Access::NONE),
            qkey: is_ud.then_some(QKEY),
            ..QpAttributes::default()
        };
        device.modify_qp(qp, &change).expect("INIT");
        let (to, rung) = (None, BTreeSet::new());
        let mut end = Self { device, send_cq, recv_cq, qp, qp_type, pd, region, to, rung };
        for _ in 0..RECEIVES_MAX {
            end.receive();
        }
        end
    }

    pub fn name(&self) -> Name {
        let gid = self.device.gid(1, 0).expect("a GID");
        (gid, self.device.qpn(self.qp).expect("a number"))
    }

    /// To RTS, with this peer.
    pub fn connect(&mut self, peer: Name) {
        let grh = GlobalRoute::to(peer.0, 64);
        let path = AddressVector { port: 1, grh: Some(grh), ..AddressVector::default() };
        let to = |state| QpAttributes { state: Some(state), ..QpAttributes::default() };
        let (rtr, rts) = if self.qp_type == QpType::Ud {
            let ah: Ah = self.device.create_ah(self.pd, &path).expect("an address handle");
            self.to = Some(Destination { ah, qpn: peer.1, qkey: QKEY });
            (to(QpState::Rtr), QpAttributes { sq_psn: Some(Psn::new(0)), ..to(QpState::Rts) })
        } else {
            (connected(path, peer.1), ready_to_send())
        };
        self.device.modify_qp(self.qp, &rtr).expect("RTR");
        self.device.modify_qp(self.qp, &rts).expect("RTS");
    }

    pub fn receive(&mut self) {
        let sge = Sge { bytes: 1024, ..self.sge() };
        let request = RecvRequest { id: 1, sges: &[sge] };
        self.device.post_recv(self.qp, &[request]).expect("room for a receive");
    }

    #[inline]
    pub fn send(&mut self, bytes: u32, flags: SendFlags) {
        let op = self.to.map_or(SendOp::Send, SendOp::Datagram);
        let sges = [Sge { bytes, ..self.sge() }];
        let request = SendRequest { id: 2, op, flags, data: Data::Sges(&sges) };
        self.device.post_send(self.qp, &[request]).expect("room for a send");
    }

    fn sge(&self) -> Sge {
        let address = self.region.address + u64::from(GRH_BYTES);
        Sge { address, bytes: 0, lkey: self.region.lkey }
    }

    /// The next completion, if any.
    #[inline]
    pub fn poll(&mut self, cq: Cq) -> Option<CompletionStatus> {
        let mut batch = [Completion::NOTHING];
        let count = self.device.poll(cq, &mut batch).expect("the queue is there");
        (count > 0).then_some(batch[0].status)
    }

    pub fn arm(&mut self) {
        for cq in [self.send_cq, self.recv_cq] {
            self.device.arm(cq, Arm::Any).expect("the queue is there");
        }
    }

    /// Sleeps as perftest does: until the queue's event, and arms it again only then.
    pub fn sleep(&mut self, cq: Cq) {
        // The two queues share a channel, and the other one's event may come first.
        while !self.rung.remove(&cq) {
            match self.device.wait(TIMEOUT).expect("a file") {
                Some(rung) => assert!(self.rung.insert(rung), "an event for each time it is armed"),
                // That the connection is established, for one.
                None => assert!(self.device.async_event().is_some(), "nothing has come"),
            }
        }
        self.device.arm(cq, Arm::Any).expect("the queue is there");
    }

    /// Polls completions, which must be successes; returns their number.
    #[inline]
    pub fn take(&mut self, cq: Cq) -> usize {
        let mut batch = [Completion::NOTHING; POLLED_MAX];
        let count = self.device.poll(cq, &mut batch).expect("the queue is there");
        assert!(batch[..count].iter().all(|one| one.status == CompletionStatus::Success));
        count
    }

    /// Waits for a completion that is a success.
    #[inline]
    pub fn done(&mut self, cq: Cq) {
        loop {
            if let Some(status) = self.poll(cq) {
                assert_eq!(status, CompletionStatus::Success);
                return;
            }
        }
    }
}

fn connected(path: AddressVector, dest_qp: Qpn) -> QpAttributes {
    QpAttributes {
        state: Some(QpState::Rtr),
        path: Some(path),
        path_mtu: Some(Mtu::BYTES_1024),
        dest_qp: Some(dest_qp),
        rq_psn: Some(Psn::new(0)),
        responder_resources: Some(1),
        min_rnr_timer: Some(RnrTimer(12)),
        ..QpAttributes::default()
    }
}

fn ready_to_send() -> QpAttributes {
    QpAttributes {
        state: Some(QpState::Rts),
        sq_psn: Some(Psn::new(0)),
        timeout: Some(TimeCode(14)),
        // Seven would be without end on rxe.
        retry_count: Retries::new(3),
        rnr_retry: Retries::new(7),
        initiator_depth: Some(1),
        ..QpAttributes::default()
    }
}
