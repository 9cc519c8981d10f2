//! A remote-controlled end of a connection on any adapter, for tests.
//!
//! A test of two adapters on different machines sends commands to both ends: one is local, and the
//! other is, for example, behind a serial line of a virtual machine. [`mod@line`] has all commands.
//! An end has one queue pair at a time and one memory region.
//!
//! An end has no clock and does not sleep: its driver calls [`RemoteEnd::step`] until there is a
//! reply.

pub mod line;

use line::{Command, Reply};
use pollux_mem::Memory;
use pollux_verbs::*;
use pollux_wire::address::{Gid, Guid, Lid, Qpn};
use pollux_wire::keys::QKey;
use pollux_wire::packet::RnrTimer;
use pollux_wire::psn::Psn;
use pollux_wire::units::{Mtu, TimeCode};
use std::ops::DerefMut;
use std::time::Duration;

pub const MEMORY_BYTES: usize = 4 << 20;

/// Outstanding requests of each queue, at most.
const REQUESTS_MAX: u32 = 64;

pub const QKEY: QKey = QKey(0x1234);

/// Codes of requests in commands.
pub mod op {
    pub const SEND: u64 = 0;
    pub const SEND_IMM: u64 = 1;
    pub const WRITE: u64 = 2;
    pub const WRITE_IMM: u64 = 3;
    pub const READ: u64 = 4;
    pub const COMPARE_SWAP: u64 = 5;
    pub const FETCH_ADD: u64 = 6;
    pub const DATAGRAM: u64 = 7;
    pub const DATAGRAM_IMM: u64 = 8;
}

/// The code of a status in a reply is its index in this array.
pub const STATUSES: [CompletionStatus; 15] = [
    CompletionStatus::Success,
    CompletionStatus::LocalLength,
    CompletionStatus::LocalQpOperation,
    CompletionStatus::LocalProtection,
    CompletionStatus::Flushed,
    CompletionStatus::WindowBind,
    CompletionStatus::BadResponse,
    CompletionStatus::LocalAccess,
    CompletionStatus::RemoteInvalidRequest,
    CompletionStatus::RemoteAccess,
    CompletionStatus::RemoteOperation,
    CompletionStatus::RetryExceeded,
    CompletionStatus::RnrRetryExceeded,
    CompletionStatus::RemoteAborted,
    CompletionStatus::General,
];

/// Pseudo-random bytes that depend on `seed`.
pub fn pattern(seed: u64, bytes: usize) -> Vec<u8> {
    let mut state = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
    let mut next = || {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        state as u8
    };
    (0..bytes).map(|_| next()).collect()
}

/// The checksum of bytes in a reply (FNV-1a).
pub fn sum(bytes: &[u8]) -> u64 {
    bytes.iter().fold(0xcbf2_9ce4_8422_2325, |sum, &byte| {
        (sum ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3)
    })
}

/// A remote end that uses the device behind `P`.
pub struct RemoteEnd<P> {
    device: P,
    gid_index: u8,
    pd: Pd,
    cq: Cq,
    memory: Memory,
    region: MemoryRegion,
    qp: Option<OwnQp>,
    group: Option<Gid>,
    poll_deadline: Option<Duration>,
    reply: Option<Result<Reply, String>>,
}

#[derive(Clone, Copy)]
struct OwnQp {
    qp: Qp,
    qp_type: QpType,
    qkey: QKey,
    to: Option<(Ah, Qpn)>,
}

impl<P: DerefMut<Target: Device>> RemoteEnd<P> {
    /// Uses port 1 of the device.
    pub fn new(mut device: P) -> Result<Self, VerbsError> {
        let pd = device.create_pd()?;
        let cq = device.create_cq(4 * REQUESTS_MAX)?;
        let no_memory = |error| VerbsError::Invalid {
            verb: "register",
            argument: "memory",
            reason: format!("there is none: {error}"),
        };
        let memory = Memory::private(MEMORY_BYTES).map_err(no_memory)?;
        let region = device.register(pd, &memory, Access::ALL)?;
        let (qp, group, poll_deadline, reply) = (None, None, None, None);
        Ok(Self { device, gid_index: 0, pd, cq, memory, region, qp, group, poll_deadline, reply })
    }

    pub fn device_mut(&mut self) -> &mut P::Target {
        &mut self.device
    }

    /// Starts a command. `now` may be the time of any clock, the same as in [`step`](Self::step).
    pub fn begin(&mut self, now: Duration, command: Command) {
        self.reply = None;
        self.poll_deadline = None;
        if let Command::Poll { timeout_ms } = command {
            self.poll_deadline = Some(now + Duration::from_millis(timeout_ms));
            return;
        }
        self.reply = Some(self.carry_out(command));
    }

    /// Lets the device make progress; returns the reply when the command is done. An error says why
    /// the command failed.
    pub fn step(&mut self, now: Duration) -> Option<Result<Reply, String>> {
        if let Some(end) = self.poll_deadline {
            self.reply = match self.poll() {
                Ok(None) if now < end => return None,
                Ok(None) => Some(Ok(Reply::Nothing {})),
                Ok(Some(completion)) => Some(Ok(completed(&completion))),
                Err(error) => Some(Err(error.to_string())),
            };
            self.poll_deadline = None;
        } else {
            while let Some(_event) = self.device.async_event() {}
        }
        self.reply.take()
    }

    fn poll(&mut self) -> Result<Option<Completion>, VerbsError> {
        let mut out = [Completion::NOTHING];
        Ok((self.device.poll(self.cq, &mut out)? == 1).then_some(out[0]))
    }

    fn carry_out(&mut self, command: Command) -> Result<Reply, String> {
        let text = |error: VerbsError| error.to_string();
        let done = |()| Reply::Done {};
        match command {
            Command::Hello { gid_index } => self.hello(gid_index as u8).map_err(text),
            Command::Create { .. } => self.create(command).map_err(text),
            Command::Connect { .. } => self.connect(command).map(done).map_err(text),
            Command::Join { prefix, guid } => {
                self.join(Gid::new(prefix, Guid(guid))).map(done).map_err(text)
            }
            Command::Fill { at, bytes, seed } => {
                let written = self.memory.write(at as usize, &pattern(seed, bytes as usize));
                written.then_some(Reply::Done {}).ok_or("beyond the memory".into())
            }
            Command::Sum { at, bytes } => {
                self.bytes(at, bytes).map(|bytes| Reply::Value { value: sum(&bytes) })
            }
            Command::Word { at } => self.bytes(at, 8).map(|bytes| {
                let word = bytes.first_chunk().map_or(0, |word| u64::from_ne_bytes(*word));
                Reply::Value { value: word }
            }),
            Command::Recv { id, at, bytes } => {
                let qp = self.own_qp()?.qp;
                let sges = [self.sge(at, bytes)];
                let batch = [RecvRequest { id, sges: &sges }];
                let posted = self.device.post_recv(qp, &batch);
                posted.map(done).map_err(|error| error.to_string())
            }
            Command::Send { .. } => self.send(command).map(done),
            Command::State {} => {
                let (state, _) = self.device.query_qp(self.own_qp()?.qp).map_err(text)?;
                Ok(Reply::Value { value: state as u64 })
            }
            Command::Poll { .. } => Err("begin handles polls".into()),
        }
    }

    fn hello(&mut self, gid_index: u8) -> Result<Reply, VerbsError> {
        let gid = self.device.gid(1, gid_index)?;
        self.gid_index = gid_index;
        Ok(Reply::Hello {
            prefix: gid.prefix(),
            guid: gid.guid().0,
            address: self.region.address,
            rkey: self.region.rkey.0.into(),
            bytes: MEMORY_BYTES as u64,
        })
    }

    fn own_qp(&self) -> Result<OwnQp, String> {
        self.qp.ok_or("there is no queue pair".into())
    }

    fn bytes(&self, at: u64, bytes: u64) -> Result<Vec<u8>, String> {
        let mut out = vec![0; bytes.min(MEMORY_BYTES as u64) as usize];
        let read = self.memory.read(at as usize, &mut out);
        read.then_some(out).ok_or("beyond the memory".into())
    }

    fn sge(&self, at: u64, bytes: u64) -> Sge {
        let address = self.region.address.wrapping_add(at);
        Sge { address, bytes: bytes as u32, lkey: self.region.lkey }
    }

    /// Creates a queue pair, after destroying the previous one and its address handle.
    fn create(&mut self, command: Command) -> Result<Reply, VerbsError> {
        let Command::Create { service, pkey_index, access, qkey } = command else {
            unreachable!("called for this command")
        };
        if let Some(old) = self.qp.take() {
            if let Some(group) = self.group.take() {
                self.device.detach_multicast(old.qp, group, Lid::NONE)?;
            }
            self.device.destroy_qp(old.qp)?;
            if let Some((ah, _)) = old.to {
                self.device.destroy_ah(ah)?;
            }
            while self.poll()?.is_some() {}
        }
        let qp_type = match service {
            0 => QpType::Rc,
            1 => QpType::Uc,
            _ => QpType::Ud,
        };
        let qp = self.device.create_qp(&QpInit {
            qp_type,
            pd: self.pd,
            send_cq: self.cq,
            recv_cq: self.cq,
            srq: None,
            send_requests_max: REQUESTS_MAX,
            recv_requests_max: REQUESTS_MAX,
            send_sges_max: 1,
            recv_sges_max: 1,
            inline_bytes_max: 0,
            signal_all: false,
        })?;
        let (is_ud, qkey) = (qp_type == QpType::Ud, QKey(qkey as u32));
        self.qp = Some(OwnQp { qp, qp_type, qkey, to: None });
        self.device.modify_qp(
            qp,
            &QpAttributes {
                state: Some(QpState::Init),
                pkey_index: Some(pkey_index as u16),
                port: Some(1),
                access: (!is_ud).then_some(rights(access)),
                qkey: is_ud.then_some(qkey),
                ..QpAttributes::default()
            },
        )?;
        Ok(Reply::Created { qpn: self.device.qpn(qp)?.0.into() })
    }

    fn connect(&mut self, command: Command) -> Result<(), VerbsError> {
        let Command::Connect { qpn, prefix, guid, mtu, rq_psn, sq_psn, .. } = command else {
            unreachable!("called for this command")
        };
        let Command::Connect { timeout, retries, rnr_retries, rnr_timer, depth, .. } = command
        else {
            unreachable!("called for this command")
        };
        let Some(own) = &mut self.qp else { return Ok(()) };
        let grh = GlobalRoute {
            dgid: Gid::new(prefix, Guid(guid)),
            sgid_index: self.gid_index,
            hop_limit: 64,
            ..GlobalRoute::default()
        };
        let path = AddressVector { dlid: Lid::NONE, port: 1, grh: Some(grh), ..Default::default() };
        let (rc, ud) = (own.qp_type == QpType::Rc, own.qp_type == QpType::Ud);
        if ud {
            own.to = Some((self.device.create_ah(self.pd, &path)?, Qpn(qpn as u32)));
        }
        let rtr = QpAttributes {
            state: Some(QpState::Rtr),
            path: (!ud).then_some(path),
            path_mtu: (!ud).then_some(Mtu(mtu as u8)),
            dest_qp: (!ud).then_some(Qpn(qpn as u32)),
            rq_psn: (!ud).then_some(Psn::new(rq_psn as u32)),
            responder_resources: rc.then_some(depth as u8),
            min_rnr_timer: rc.then_some(RnrTimer(rnr_timer as u8)),
            ..QpAttributes::default()
        };
        let count = |count: u64| Retries::new(count as u8).unwrap_or(Retries::SEVEN);
        let rts = QpAttributes {
            state: Some(QpState::Rts),
            sq_psn: Some(Psn::new(sq_psn as u32)),
            timeout: rc.then_some(TimeCode(timeout as u8)),
            retry_count: rc.then_some(count(retries)),
            rnr_retry: rc.then_some(count(rnr_retries)),
            initiator_depth: rc.then_some(depth as u8),
            ..QpAttributes::default()
        };
        self.device.modify_qp(own.qp, &rtr)?;
        self.device.modify_qp(own.qp, &rts)
    }

    fn join(&mut self, group: Gid) -> Result<(), VerbsError> {
        let Some(own) = self.qp else { return Ok(()) };
        self.device.attach_multicast(own.qp, group, Lid::NONE)?;
        self.group = Some(group);
        Ok(())
    }

    fn send(&mut self, command: Command) -> Result<(), String> {
        let Command::Send { id, op: which, at, bytes, address, rkey, first, second } = command
        else {
            unreachable!("called for this command")
        };
        let own = self.own_qp()?;
        let remote = Remote { address, rkey: RKey(rkey as u32) };
        let destination = || {
            let (ah, qpn) = own.to.ok_or("datagrams need a peer")?;
            let qkey = if rkey == 0 { own.qkey } else { QKey(rkey as u32) };
            Ok::<_, String>(Destination { ah, qpn, qkey })
        };
        let send_op = match which {
            op::SEND => SendOp::Send,
            op::SEND_IMM => SendOp::SendImm(first as u32),
            op::WRITE => SendOp::Write(remote),
            op::WRITE_IMM => SendOp::WriteImm(remote, first as u32),
            op::READ => SendOp::Read(remote),
            op::COMPARE_SWAP => SendOp::CompareSwap { remote, compare: first, swap: second },
            op::FETCH_ADD => SendOp::FetchAdd { remote, add: first },
            op::DATAGRAM => SendOp::Datagram(destination()?),
            op::DATAGRAM_IMM => SendOp::DatagramImm(destination()?, first as u32),
            other => return Err(format!("there is no request {other}")),
        };
        let sges = [self.sge(at, bytes)];
        let data = Data::Sges(if bytes == 0 { &[] } else { &sges });
        let request = SendRequest { id, op: send_op, flags: SendFlags::SIGNALED, data };
        self.device.post_send(own.qp, &[request]).map_err(|error| error.to_string())
    }
}

fn rights(bits: u64) -> Access {
    let all =
        [Access::LOCAL_WRITE, Access::REMOTE_WRITE, Access::REMOTE_READ, Access::REMOTE_ATOMIC];
    let given = all.into_iter().enumerate().filter(|(nth, _)| bits & 1 << nth != 0);
    given.fold(Access::NONE, |rights, (_, right)| rights | right)
}

fn completed(completion: &Completion) -> Reply {
    let status = STATUSES.iter().position(|&status| status == completion.status);
    let (has_imm, imm) = match completion.with {
        With::Imm(imm) => (1, imm.into()),
        _ => (0, 0),
    };
    Reply::Completed {
        id: completion.id,
        status: status.unwrap_or(STATUSES.len() - 1) as u64,
        is_recv: completion.kind.is_recv().into(),
        bytes: completion.bytes.into(),
        has_imm,
        imm,
        src_qp: completion.from.map_or(0, |from| from.src_qp.0.into()),
    }
}
