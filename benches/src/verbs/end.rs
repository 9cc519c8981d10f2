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
use std::time::{Duration, Instant};

pub const BYTES: usize = 8 << 20;
/// Bytes of the GRH in front of the payload of a received datagram.
pub const GRH_BYTES: u32 = 40;
/// Outstanding requests in each direction, by default.
const REQUESTS_MAX: u32 = 1024;
/// Messages up to this length are sent inline by default.
pub const INLINE_BYTES: u32 = 64;
/// The longest inline message of the harness; adapters may take longer ones.
const INLINE_BYTES_MAX: u32 = 1024;
/// Empty polls before an end yields its core, which the other end may share.
const POLLS_AWAKE: u32 = 20_000;
/// The longest sleep until a completion.
const SLEEP_MAX: Duration = Duration::from_millis(50);

#[derive(Clone, Copy, Debug)]
pub struct VerbsEndSetup {
    pub qp_type: QpType,
    /// The number of queue pairs. The nth queue pair of one end connects to the nth of the other.
    pub qps: usize,
    pub has_srq: bool,
    /// Outstanding sends and receives of each queue pair, at most.
    pub requests: [u32; 2],
    pub inline_bytes: u32,
    /// Whether [`VerbsEnd::poll_or_sleep`] sleeps until a completion.
    pub sleeps: bool,
}

impl VerbsEndSetup {
    /// One queue pair, with a receive queue of its own.
    pub const fn of(qp_type: QpType) -> Self {
        let requests = [REQUESTS_MAX; 2];
        let (inline_bytes, sleeps) = (INLINE_BYTES, false);
        Self { qp_type, qps: 1, has_srq: false, requests, inline_bytes, sleeps }
    }
}

/// The ID of a receive request: its queue pair, and the slot of the buffer that it fills.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RecvId {
    pub qp: usize,
    pub slot: u32,
}

impl RecvId {
    pub const fn of(received: &Completion) -> Self {
        Self { qp: (received.id >> 32) as usize, slot: received.id as u32 }
    }

    const fn to_bits(self) -> u64 {
        (self.qp as u64) << 32 | self.slot as u64
    }
}

/// The ID of a send request: its queue pair, and how many requests its completion stands for, which
/// are itself and the unsignaled ones before it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SendId {
    pub qp: usize,
    pub requests: u32,
}

impl SendId {
    pub const fn of(sent: &Completion) -> Self {
        Self { qp: (sent.id >> 32) as usize, requests: sent.id as u32 }
    }

    pub const fn to_bits(self) -> u64 {
        (self.qp as u64) << 32 | self.requests as u64
    }
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct EndAddress {
    lid: u16,
    gid: (u64, u64),
    qpns: Vec<u32>,
    /// The address and the R_Key of the end's memory.
    memory: (u64, u32),
}

impl EndAddress {
    pub const fn lid(&self) -> Lid {
        Lid(self.lid)
    }

    pub const fn gid(&self) -> Gid {
        Gid::new(self.gid.0, Guid(self.gid.1))
    }

    /// The remote address of an offset in the end's memory.
    pub const fn remote(&self, at: usize) -> Remote {
        Remote { address: self.memory.0 + at as u64, rkey: RKey(self.memory.1) }
    }
}

/// One end. The alignment keeps it on cache lines of its own, because another thread may use the
/// other end.
#[repr(align(256))]
pub struct VerbsEnd<D: Device + ?Sized = dyn Device + Send> {
    pub device: Box<D>,
    pub cq: Cq,
    pub qps: Vec<Qp>,
    pub region: MemoryRegion,
    pd: Pd,
    port: u8,
    srq: Option<Srq>,
    setup: VerbsEndSetup,
    /// The destinations of datagrams, by queue pair.
    to: Vec<(Ah, Qpn)>,
}

/// Two linked adapters for two threads. With `packets_only`, they send all messages as packets with
/// CRCs, without message bypass.
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
    /// Waits until the port is active, registers the memory, and creates the queue pairs.
    pub fn new(
        mut device: Box<D>,
        port: u8,
        memory: &Memory,
        setup: &VerbsEndSetup,
    ) -> Result<Self, PerfError> {
        let inline_max = device.attributes().limits.inline_bytes_max.min(INLINE_BYTES_MAX);
        if setup.inline_bytes > inline_max {
            let why = format!("--inline-size: up to {inline_max} bytes go inline on this adapter");
            return Err(PerfError::Plan(why));
        }
        let pd = device.create_pd()?;
        let completions = match setup.has_srq {
            true => 0,
            false => setup.requests.iter().sum::<u32>() * setup.qps as u32,
        };
        let cq = device.create_cq(completions.max(4 * REQUESTS_MAX))?;
        while device.port(port)?.state != PortState::ACTIVE {
            device.poll(cq, &mut [Completion::NOTHING])?;
            std::thread::yield_now();
        }
        let region = device.register(pd, memory, Access::ALL)?;
        let srq = setup.has_srq.then(|| device.create_srq(pd, REQUESTS_MAX, 1)).transpose()?;
        let (qps, to, setup) = (Vec::new(), Vec::new(), *setup);
        let mut end = Self { device, cq, qps, region, pd, port, srq, setup, to };
        for _ in 0..setup.qps {
            let qp = end.create_qp()?;
            end.qps.push(qp);
        }
        Ok(end)
    }

    /// Creates a queue pair in state RESET.
    pub fn create_qp(&mut self) -> Result<Qp, PerfError> {
        Ok(self.device.create_qp(&QpInit {
            qp_type: self.setup.qp_type,
            pd: self.pd,
            send_cq: self.cq,
            recv_cq: self.cq,
            srq: self.srq,
            send_requests_max: self.setup.requests[0],
            recv_requests_max: self.setup.requests[1],
            send_sges_max: 1,
            recv_sges_max: 1,
            inline_bytes_max: self.setup.inline_bytes,
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
        if self.setup.qp_type == QpType::Ud {
            let ah = self.device.create_ah(self.pd, &path)?;
            self.to = other.qpns.iter().map(|qpn| (ah, Qpn(*qpn))).collect();
        }
        Ok(())
    }

    /// The path to the other end: by LID in a subnet, by GID elsewhere.
    pub fn path_to(&self, other: &EndAddress) -> AddressVector {
        let grh = GlobalRoute::to(other.gid(), 64);
        let grh = (!self.device.attributes().can.subnet).then_some(grh);
        AddressVector { dlid: other.lid(), port: self.port, grh, ..AddressVector::default() }
    }

    /// Moves a queue pair from RESET to INIT.
    pub fn initialize(&mut self, qp: Qp) -> Result<(), PerfError> {
        let ud = self.setup.qp_type == QpType::Ud;
        let init = QpAttributes {
            state: Some(QpState::Init),
            pkey_index: Some(0),
            port: Some(self.port),
            access: (!ud).then_some(Access::ALL),
            qkey: ud.then_some(QKey(1)),
            ..QpAttributes::default()
        };
        Ok(self.device.modify_qp(qp, &init)?)
    }

    /// Moves a queue pair from RESET to RTS.
    pub fn connect_qp(&mut self, qp: Qp, to: Qpn, path: AddressVector) -> Result<(), PerfError> {
        self.initialize(qp)?;
        let qp_type = self.setup.qp_type;
        let (rc, ud) = (qp_type == QpType::Rc, qp_type == QpType::Ud);
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
        for change in [rtr, rts] {
            self.device.modify_qp(qp, &change)?;
        }
        Ok(())
    }

    /// A scatter-gather entry for bytes at an offset of the memory.
    pub fn sge(&self, at: usize, bytes: u32) -> Sge {
        Sge { address: self.region.address + at as u64, bytes, lkey: self.region.lkey }
    }

    pub fn recv(&mut self, bytes: u32) -> Result<(), PerfError> {
        self.recv_at(RecvId { qp: 0, slot: 0 }, 0, bytes)
    }

    /// Posts a receive with an ID to its queue pair, into the memory at an offset.
    pub fn recv_at(&mut self, id: RecvId, at: usize, bytes: u32) -> Result<(), PerfError> {
        let sge = [self.sge(at, bytes)];
        let request = [RecvRequest { id: id.to_bits(), sges: &sge }];
        match self.srq {
            Some(srq) => self.device.post_srq_recv(srq, &request)?,
            None => self.device.post_recv(self.qps[id.qp], &request)?,
        }
        Ok(())
    }

    /// Sends a message of this length on the first queue pair. Short messages are sent inline.
    pub fn send(&mut self, bytes: u32) -> Result<(), PerfError> {
        let sge = [self.sge(0, bytes)];
        let data = match bytes <= INLINE_BYTES {
            true => Data::Inline(&[7; INLINE_BYTES as usize][..bytes as usize]),
            false => Data::Sges(&sge),
        };
        let request = SendRequest { id: 0, op: self.op(0), flags: SendFlags::NONE, data };
        Ok(self.device.post_send(self.qps[0], &[request])?)
    }

    /// Posts a request for bytes at an offset of the memory. Short messages are sent inline, if the
    /// operation can.
    pub fn post_from(
        &mut self,
        (qp, op, flags): (usize, SendOp, SendFlags),
        memory: &Memory,
        (at, bytes): (usize, u32),
    ) -> Result<(), PerfError> {
        let can_be_inline = matches!(op, SendOp::Send | SendOp::Datagram(_) | SendOp::Write(_));
        if can_be_inline && self.takes_inline(bytes) {
            return match bytes <= INLINE_BYTES {
                true => self.post_inline::<{ INLINE_BYTES as usize }>(
                    (qp, op, flags),
                    memory,
                    at,
                    bytes,
                ),
                false => self.post_inline::<{ INLINE_BYTES_MAX as usize }>(
                    (qp, op, flags),
                    memory,
                    at,
                    bytes,
                ),
            };
        }
        self.post_data((qp, op, flags), Data::Sges(&[self.sge(at, bytes)]))
    }

    fn post_inline<const MOST: usize>(
        &mut self,
        what: (usize, SendOp, SendFlags),
        memory: &Memory,
        at: usize,
        bytes: u32,
    ) -> Result<(), PerfError> {
        let mut message = [0; MOST];
        let message = &mut message[..bytes as usize];
        assert!(memory.read(at, message), "messages are within the memory");
        self.post_data(what, Data::Inline(message))
    }

    fn post_data(
        &mut self,
        (qp, op, flags): (usize, SendOp, SendFlags),
        data: Data<'_>,
    ) -> Result<(), PerfError> {
        let id = SendId { qp, requests: 1 }.to_bits();
        let request = SendRequest { id, op, flags, data };
        Ok(self.device.post_send(self.qps[qp], &[request])?)
    }

    /// Whether messages of this length are sent inline.
    pub const fn takes_inline(&self, bytes: u32) -> bool {
        bytes <= self.setup.inline_bytes
    }

    /// The operation that sends a message to the other end: a datagram for UD, otherwise a send.
    pub fn op(&self, qp: usize) -> SendOp {
        let destination = |(ah, qpn)| Destination { ah, qpn, qkey: QKey(1) };
        self.to.get(qp).map_or(SendOp::Send, |to| SendOp::Datagram(destination(*to)))
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

    /// Like [`VerbsEnd::poll`]. If the setup asks for it, an end without completions sleeps until
    /// the next one, but at most 50 ms.
    pub fn poll_or_sleep(&mut self, out: &mut [Completion]) -> Result<usize, PerfError> {
        let count = self.poll(out)?;
        if count > 0 || !self.setup.sleeps {
            return Ok(count);
        }
        self.device.arm(self.cq, Arm::Any)?;
        match self.poll(out)? {
            0 => {
                self.device.wait(SLEEP_MAX)?;
                self.poll(out)
            }
            count => Ok(count),
        }
    }

    /// The number of empty calls of [`VerbsEnd::poll_or_sleep`] after which an end counts as idle:
    /// one call if the calls sleep, otherwise `polls`.
    pub const fn idle_polls(&self, polls: u32) -> u32 {
        if self.setup.sleeps { 1 } else { polls }
    }

    /// Waits for a message. Returns `None` if `is_over` returns true first.
    pub fn wait(
        &mut self,
        mut is_over: impl FnMut() -> bool,
    ) -> Result<Option<Completion>, PerfError> {
        let mut out = [Completion::NOTHING];
        for poll in 1u32.. {
            if self.poll_or_sleep(&mut out)? == 1 && out[0].kind.is_recv() {
                return Ok(Some(out[0]));
            }
            if self.setup.sleeps || poll.is_multiple_of(POLLS_AWAKE) {
                std::thread::yield_now();
                if is_over() {
                    break;
                }
            }
        }
        Ok(None)
    }
}
