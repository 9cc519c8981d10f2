//! One end of a measurement between adapters: a device, its queue pairs and their memory.

use crate::error::PerfError;
use pollux_fabric::link::threads::{Clock, ThreadLink, pair};
use pollux_fabric::{Adapter, Port, SoftDevice, Time};
use pollux_mem::Memory;
use pollux_verbs::*;
use pollux_wire::address::{Gid, Guid, Lid, Qpn};
use pollux_wire::keys::QKey;
use pollux_wire::mad::smp::PortState;
use pollux_wire::packet::RnrTimer;
use pollux_wire::psn::Psn;
use pollux_wire::units::{Mtu, TimeCode};
use serde::{Deserialize, Serialize};
use std::sync::Arc;
use std::time::Instant;

pub const BYTES: usize = 8 << 20;
/// Bytes of the GRH, in front of the payload of a datagram.
pub const GRH_BYTES: u32 = 40;
/// Outstanding requests in each direction.
const REQUESTS_MAX: u32 = 1024;
/// Messages up to this length go inline.
pub const INLINE_BYTES: u32 = 64;
/// Empty polls before the core is yielded: the other end may share it.
const POLLS_AWAKE: u32 = 20_000;

#[derive(Clone, Copy, Debug)]
pub struct VerbsEndSetup {
    pub qp_type: QpType,
    /// The nth queue pair of one end is connected to the nth of the other.
    pub qps: usize,
    pub has_srq: bool,
}

impl VerbsEndSetup {
    /// One queue pair, with a receive queue of its own.
    pub const fn of(qp_type: QpType) -> Self {
        Self { qp_type, qps: 1, has_srq: false }
    }
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct EndAddress {
    lid: u16,
    gid: (u64, u64),
    qpns: Vec<u32>,
    /// The address and the key of its memory.
    memory: (u64, u32),
}

impl EndAddress {
    /// An offset of its memory.
    pub const fn remote(&self, at: usize) -> Remote {
        Remote { address: self.memory.0 + at as u64, rkey: RKey(self.memory.1) }
    }
}

/// On cache lines of its own: another thread has the other end.
#[repr(align(256))]
pub struct VerbsEnd<D: Device + ?Sized = dyn Device + Send> {
    pub device: Box<D>,
    pub cq: Cq,
    pub qps: Vec<Qp>,
    pub region: MemoryRegion,
    pd: Pd,
    port: u8,
    srq: Option<Srq>,
    qp_type: QpType,
    /// The destination of datagrams.
    to: Option<(Ah, Qpn)>,
}

/// With `packets_only`, all messages are sent as packets with CRCs, without message bypass.
#[expect(clippy::disallowed_methods, reason = "adapters between threads have a clock")]
pub fn devices(packets_only: bool) -> [SoftDevice<ThreadLink>; 2] {
    let start = Instant::now();
    let clock: Clock = Arc::new(move || Time::START + start.elapsed());
    let mut lid = 0;
    pair(&clock).map(|mut link| {
        lid += 1;
        if packets_only {
            link.set_packets_only();
        }
        let port = Port::active(Lid(lid), Guid(u64::from(lid)));
        SoftDevice::new("soft", Adapter::new(port), link)
    })
}

impl<D: Device + ?Sized> VerbsEnd<D> {
    /// Waits until the port is active.
    pub fn new(
        mut device: Box<D>,
        port: u8,
        memory: &Memory,
        setup: &VerbsEndSetup,
    ) -> Result<Self, PerfError> {
        let pd = device.create_pd()?;
        let cq = device.create_cq(4 * REQUESTS_MAX)?;
        while device.port(port)?.state != PortState::ACTIVE {
            device.poll(cq, &mut [Completion::NOTHING])?;
            std::thread::yield_now();
        }
        let region = device.register(pd, memory, Access::ALL)?;
        let srq = setup.has_srq.then(|| device.create_srq(pd, REQUESTS_MAX, 1)).transpose()?;
        let qp_type = setup.qp_type;
        let mut end =
            Self { device, cq, qps: Vec::new(), region, pd, port, srq, qp_type, to: None };
        for _ in 0..setup.qps {
            let qp = end.create_qp()?;
            end.qps.push(qp);
        }
        Ok(end)
    }

    /// The new queue pair is in state RESET.
    pub fn create_qp(&mut self) -> Result<Qp, PerfError> {
        Ok(self.device.create_qp(&QpInit {
            qp_type: self.qp_type,
            pd: self.pd,
            send_cq: self.cq,
            recv_cq: self.cq,
            srq: self.srq,
            send_requests_max: REQUESTS_MAX,
            recv_requests_max: REQUESTS_MAX,
            send_sges_max: 1,
            recv_sges_max: 1,
            inline_bytes_max: INLINE_BYTES,
            signal_all: false,
        })?)
    }

    pub fn address(&self) -> Result<EndAddress, PerfError> {
        let qpn = |qp: &Qp| Ok(self.device.qpn(*qp)?.0);
        let gid = self.device.gid(self.port, 0)?;
        Ok(EndAddress {
            lid: self.device.port(self.port)?.lid.0,
            gid: (gid.prefix(), gid.guid().0),
            qpns: self.qps.iter().map(qpn).collect::<Result<_, PerfError>>()?,
            memory: (self.region.address, self.region.rkey.0),
        })
    }

    pub fn connect(&mut self, other: &EndAddress) -> Result<(), PerfError> {
        let path = self.path_to(other);
        for (qp, qpn) in self.qps.clone().into_iter().zip(&other.qpns) {
            self.connect_qp(qp, Qpn(*qpn), path)?;
        }
        let first = other.qpns.first().filter(|_| self.qp_type == QpType::Ud);
        if let Some(qpn) = first {
            self.to = Some((self.device.create_ah(self.pd, &path)?, Qpn(*qpn)));
        }
        Ok(())
    }

    /// The path to the other end: by LID in a subnet, by GID elsewhere.
    pub fn path_to(&self, other: &EndAddress) -> AddressVector {
        let dgid = Gid::new(other.gid.0, Guid(other.gid.1));
        let grh = GlobalRoute::to(dgid, 64);
        let grh = (!self.device.attributes().can.subnet).then_some(grh);
        AddressVector { dlid: Lid(other.lid), port: self.port, grh, ..AddressVector::default() }
    }

    /// Modifies a queue pair to RTS.
    pub fn connect_qp(&mut self, qp: Qp, to: Qpn, path: AddressVector) -> Result<(), PerfError> {
        let (rc, ud) = (self.qp_type == QpType::Rc, self.qp_type == QpType::Ud);
        let init = QpAttributes {
            state: Some(QpState::Init),
            pkey_index: Some(0),
            port: Some(self.port),
            access: (!ud).then_some(Access::ALL),
            qkey: ud.then_some(QKey(1)),
            ..QpAttributes::default()
        };
        let mtu = self.device.port(self.port)?.mtu;
        let rtr = QpAttributes {
            state: Some(QpState::Rtr),
            path: (!ud).then_some(path),
            path_mtu: (!ud).then_some(mtu.min(Mtu::BYTES_4096)),
            dest_qp: (!ud).then_some(to),
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
            self.device.modify_qp(qp, &change)?;
        }
        Ok(())
    }

    /// Bytes at an offset of the memory.
    pub fn sge(&self, at: usize, bytes: u32) -> Sge {
        Sge { address: self.region.address + at as u64, bytes, lkey: self.region.lkey }
    }

    pub fn recv(&mut self, bytes: u32) -> Result<(), PerfError> {
        self.recv_at(0, 0, bytes)
    }

    /// Posts a receive with a number, into the memory at an offset.
    pub fn recv_at(&mut self, id: u64, at: usize, bytes: u32) -> Result<(), PerfError> {
        let sge = [self.sge(at, bytes)];
        let request = [RecvRequest { id, sges: &sge }];
        match self.srq {
            Some(srq) => self.device.post_srq_recv(srq, &request)?,
            None => self.device.post_recv(self.qps[0], &request)?,
        }
        Ok(())
    }

    /// Sends a message of this length; inline up to [`INLINE_BYTES`].
    pub fn send(&mut self, bytes: u32) -> Result<(), PerfError> {
        let sge = [self.sge(0, bytes)];
        self.send_data(match bytes {
            0..=INLINE_BYTES => Data::Inline(&[7; INLINE_BYTES as usize][..bytes as usize]),
            _ => Data::Sges(&sge),
        })
    }

    /// Sends the message at an offset of the end's memory; inline up to [`INLINE_BYTES`].
    pub fn send_from(&mut self, memory: &Memory, at: usize, bytes: u32) -> Result<(), PerfError> {
        if bytes > INLINE_BYTES {
            return self.send_data(Data::Sges(&[self.sge(at, bytes)]));
        }
        let mut message = [0; INLINE_BYTES as usize];
        let message = &mut message[..bytes as usize];
        assert!(memory.read(at, message), "messages are within the memory");
        self.send_data(Data::Inline(message))
    }

    fn send_data(&mut self, data: Data<'_>) -> Result<(), PerfError> {
        let request = SendRequest { id: 0, op: self.op(), flags: SendFlags::NONE, data };
        Ok(self.device.post_send(self.qps[0], &[request])?)
    }

    /// The operation that sends a message to the other end.
    pub fn op(&self) -> SendOp {
        let destination = |(ah, qpn)| Destination { ah, qpn, qkey: QKey(1) };
        self.to.map_or(SendOp::Send, |to| SendOp::Datagram(destination(to)))
    }

    /// Returns the number of completions. A failed request is an error.
    pub fn poll(&mut self, out: &mut [Completion]) -> Result<usize, PerfError> {
        let count = self.device.poll(self.cq, out)?;
        let has_failed = |one: &&Completion| one.status != CompletionStatus::Success;
        match out[..count].iter().find(has_failed) {
            Some(bad) => Err(PerfError::Request(bad.status)),
            None => Ok(count),
        }
    }

    /// Waits for a message; `None` if `is_over` is true before it arrives.
    pub fn wait(
        &mut self,
        mut is_over: impl FnMut() -> bool,
    ) -> Result<Option<Completion>, PerfError> {
        let mut out = [Completion::NOTHING];
        for poll in 1u32.. {
            if self.poll(&mut out)? == 1 && out[0].kind.is_recv() {
                return Ok(Some(out[0]));
            }
            if poll.is_multiple_of(POLLS_AWAKE) {
                std::thread::yield_now();
                if is_over() {
                    break;
                }
            }
        }
        Ok(None)
    }
}
