//! Our queue pairs with all that they need.

use crate::states::changes;
use pollux_mem::Memory;
use pollux_verbs::{
    Access, AddressVector, Arm, Completion, CompletionKind, CompletionStatus, Cq, Data,
    Destination, Device, MemoryRegion, Pd, Qp, QpInit, QpType, RecvRequest, SendFlags, SendOp,
    SendRequest, Sge, Srq,
};
use pollux_wire::address::{Lid, Qpn};
use pollux_wire::keys::QKey;
use pollux_wire::psn::Psn;
use std::time::Duration;

/// Of each queue.
pub const REQUESTS: u32 = 64;
/// The first packet of ours.
pub const PSN: u32 = 1;
/// That of all these programs.
const QKEY: QKey = QKey(0x1111_1111);
/// Bytes before a datagram.
const GRH: usize = 40;
/// Queue pairs with a shared receive queue.
const SHARED: usize = 16;
/// Longer messages are not sent inline.
const INLINE_BYTES_MAX: u32 = 64;
const POLLED: usize = 16;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    Rc,
    Uc,
    Ud,
    /// RC, with a shared receive queue.
    Srq,
}

impl Kind {
    fn qp_type(self) -> QpType {
        match self {
            Self::Rc | Self::Srq => QpType::Rc,
            Self::Uc => QpType::Uc,
            Self::Ud => QpType::Ud,
        }
    }
}

/// Of a queue pair.
#[derive(Clone, Copy, Debug)]
pub struct Address {
    pub lid: Lid,
    pub qpn: Qpn,
    pub psn: u32,
}

pub struct End {
    pub kind: Kind,
    device: Box<dyn Device + Send>,
    pd: Pd,
    cq: Cq,
    srq: Option<Srq>,
    qps: Vec<Qp>,
    qpns: Vec<Qpn>,
    memory: Memory,
    region: MemoryRegion,
    /// Bytes of a message, and of a buffer.
    pub bytes: usize,
    buffer: usize,
    /// Of datagrams.
    to: Option<Destination>,
}

/// What has completed.
#[derive(Clone, Debug)]
pub enum Done {
    /// A send of the queue pair at an index.
    Sent(usize),
    /// A message, of the queue pair at an index.
    Received(usize, Vec<u8>),
}

impl End {
    pub fn new(kind: Kind, bytes: usize) -> Self {
        let mut device = pollux_mlx5::open("mlx5_0").unwrap().device;
        let pd = device.create_pd().unwrap();
        let is_shared = kind == Kind::Srq;
        let count = if is_shared { SHARED } else { 1 };
        let cq = device.create_cq(2 * REQUESTS).unwrap();
        let srq = is_shared.then(|| device.create_srq(pd, REQUESTS, 1).unwrap());
        let init = QpInit {
            qp_type: kind.qp_type(),
            pd,
            send_cq: cq,
            recv_cq: cq,
            srq,
            send_requests_max: REQUESTS / count as u32,
            recv_requests_max: if is_shared { 0 } else { REQUESTS },
            send_sges_max: 1,
            recv_sges_max: 1,
            inline_bytes_max: INLINE_BYTES_MAX,
            signal_all: false,
        };
        let qps: Vec<_> = (0..count).map(|_| device.create_qp(&init).unwrap()).collect();
        let qpns = qps.iter().map(|qp| device.qpn(*qp).unwrap()).collect();
        let buffer = (GRH + bytes).next_multiple_of(64);
        let memory = Memory::private((REQUESTS as usize + count) * buffer).unwrap();
        let region = device.register(pd, &memory, Access::LOCAL_WRITE).unwrap();
        Self { kind, device, pd, cq, srq, qps, qpns, memory, region, bytes, buffer, to: None }
    }

    pub fn addresses(&self) -> Vec<Address> {
        let lid = self.device.port(1).unwrap().lid;
        self.qpns.iter().map(|qpn| Address { lid, qpn: *qpn, psn: PSN }).collect()
    }

    /// To RTS, with these peers and all receives.
    pub fn connect(&mut self, peers: &[Address]) {
        for (nth, peer) in peers[..self.qps.len()].iter().enumerate() {
            let [mut init, mut rtr, rts] = changes(self.kind.qp_type(), (peer.lid, peer.qpn));
            init.qkey = init.qkey.and(Some(QKEY));
            rtr.rq_psn = rtr.rq_psn.and(Some(Psn::new(peer.psn)));
            assert_eq!(rts.sq_psn, Some(Psn::new(PSN)));
            self.device.modify_qp(self.qps[nth], &init).unwrap();
            if nth == 0 {
                (0..REQUESTS.into()).for_each(|buffer| self.receive(buffer));
            }
            self.device.modify_qp(self.qps[nth], &rtr).unwrap();
            self.device.modify_qp(self.qps[nth], &rts).unwrap();
            if self.kind == Kind::Ud {
                let path = AddressVector { dlid: peer.lid, port: 1, ..AddressVector::default() };
                let ah = self.device.create_ah(self.pd, &path).unwrap();
                self.to = Some(Destination { ah, qpn: peer.qpn, qkey: QKEY });
            }
        }
    }

    pub fn qps(&self) -> usize {
        self.qps.len()
    }

    fn sge(&self, buffer: usize, bytes: usize) -> Sge {
        let address = self.region.address + (buffer * self.buffer) as u64;
        Sge { address, bytes: bytes as u32, lkey: self.region.lkey }
    }

    fn receive(&mut self, id: u64) {
        let sges = [self.sge(id as usize, self.buffer)];
        let batch = [RecvRequest { id, sges: &sges }];
        match self.srq {
            Some(srq) => self.device.post_srq_recv(srq, &batch),
            None => self.device.post_recv(self.qps[0], &batch),
        }
        .unwrap();
    }

    /// Sends the message of a number: inline if it is short, out of a buffer otherwise.
    pub fn send(&mut self, nth_qp: usize, number: usize) {
        let message = self.message(number);
        let buffer = REQUESTS as usize + nth_qp;
        assert!(self.memory.write(buffer * self.buffer, &message));
        let sges = [self.sge(buffer, message.len())];
        let is_inline = message.len() <= INLINE_BYTES_MAX as usize;
        let data = if is_inline { Data::Inline(&message) } else { Data::Sges(&sges) };
        let op = self.to.map_or(SendOp::Send, SendOp::Datagram);
        let request = SendRequest { id: 0, op, flags: SendFlags::SIGNALED, data };
        self.device.post_send(self.qps[nth_qp], &[request]).unwrap();
    }

    pub fn message(&self, number: usize) -> Vec<u8> {
        (0..self.bytes).map(|at| (number * 31 + at) as u8).collect()
    }

    /// What has completed next, at which it sleeps. Receives are posted again.
    pub fn done(&mut self) -> Vec<Done> {
        let mut out = [Completion::NOTHING; POLLED];
        let count = loop {
            self.device.arm(self.cq, Arm::Any).unwrap();
            match self.device.poll(self.cq, &mut out).unwrap() {
                0 => _ = self.device.wait(Duration::from_secs(1)).unwrap(),
                count => break count,
            }
        };
        out[..count].iter().map(|completion| self.take(completion)).collect()
    }

    fn take(&mut self, completion: &Completion) -> Done {
        assert_eq!(completion.status, CompletionStatus::Success, "{completion:?}");
        let nth = self.qpns.iter().position(|qpn| *qpn == completion.qpn).unwrap();
        if completion.kind != CompletionKind::Recv {
            return Done::Sent(nth);
        }
        let before = if self.kind == Kind::Ud { GRH } else { 0 };
        assert_eq!(completion.bytes as usize, before + self.bytes);
        let mut message = vec![0; self.bytes];
        let at = completion.id as usize * self.buffer + before;
        assert!(self.memory.read(at, &mut message));
        self.receive(completion.id);
        Done::Received(nth, message)
    }
}
