//! A program at a port of a fabric, by the contract alone: a connection to another one, and queue
//! pair 1 for management datagrams.

use crate::running::TIMEOUT;
use pollux_mem::Memory;
use pollux_node::{Opened, open};
use pollux_verbs::work::Destination;
use pollux_verbs::*;
use pollux_wire::address::{Gid, Lid, Qpn};
use pollux_wire::keys::QKey;
use pollux_wire::mad::sa::{Record, SaMad};
use pollux_wire::mad::smp::PortState;
use pollux_wire::mad::{MAD_LEN, Method};
use pollux_wire::packet::RnrTimer;
use pollux_wire::psn::Psn;
use pollux_wire::units::{Mtu, TimeCode};
use std::collections::VecDeque;
use std::time::Instant;

/// Bytes of the memory, and where in it is what: datagrams are received behind space for a GRH.
const BYTES: usize = 1 << 20;
const GRH_LEN: usize = 40;
const SLOT: usize = 512;
const SLOTS: usize = 8;
const OUT: usize = SLOTS * SLOT;
const DATA: usize = OUT + SLOT;

const DATA_RECV: u64 = 100;
const DATA_SEND: u64 = 101;
const MAD_SEND: u64 = 102;

/// How often a record is queried from subnet administration, with [`TIMEOUT`] in all.
const ATTEMPTS: u32 = 30;

pub struct Program {
    pub device: Box<dyn Device + Send>,
    port: u8,
    pd: Pd,
    cq: Cq,
    /// For data; the first queue pair of every adapter has the same number.
    qp: Qp,
    gsi: Qp,
    memory: Memory,
    region: MemoryRegion,
    sent: u64,
    /// Questions to subnet administration so far, which number their transactions.
    asked: u64,
    /// Received datagrams, and their senders.
    mads: VecDeque<(Lid, [u8; MAD_LEN])>,
    /// What else has completed.
    pub done: VecDeque<Completion>,
    pub events: Vec<AsyncEvent>,
}

impl Program {
    /// Puts an adapter to a port, as soon as no other is there.
    pub fn new(name: &str) -> Self {
        let begun = Instant::now();
        loop {
            match open(name) {
                Ok(opened) => return Self::over(opened),
                // A server may not know yet that another client has died.
                Err(error) => assert!(begun.elapsed() < TIMEOUT, "{error}"),
            }
            std::thread::yield_now();
        }
    }

    /// A program with this device.
    pub fn over(opened: Opened) -> Self {
        let Opened { mut device, port, .. } = opened;
        let (pd, cq) = (device.create_pd().unwrap(), device.create_cq(256).unwrap());
        let memory = Memory::shared(BYTES).unwrap();
        let region = device.register(pd, &memory, Access::ALL).unwrap();
        let [qp, gsi] =
            [QpType::Rc, QpType::Gsi].map(|kind| device.create_qp(&init(kind, pd, cq)).unwrap());
        let (mads, done, events) = (VecDeque::new(), VecDeque::new(), Vec::new());
        let (sent, asked) = (0, 0);
        Self { device, port, pd, cq, qp, gsi, memory, region, sent, asked, mads, done, events }
    }

    /// The same, and waits until the port is active.
    pub fn at(name: &str) -> Self {
        let mut program = Self::new(name);
        program.begin();
        program
    }

    /// The device, with nothing left in it that was ours.
    pub fn into_device(self) -> Opened {
        let Self { mut device, port, pd, cq, qp, gsi, region, .. } = self;
        for qp in [qp, gsi] {
            device.destroy_qp(qp).unwrap();
        }
        device.deregister(region.lkey).unwrap();
        device.destroy_cq(cq).unwrap();
        device.destroy_pd(pd).unwrap();
        Opened { device, port, fabric: None, management: None }
    }

    /// Waits until the port is active, and begins to take datagrams of management.
    pub fn begin(&mut self) {
        self.until(|program| program.is_active());
        self.begin_management();
    }

    fn is_active(&self) -> bool {
        self.device.port(self.port).unwrap().state == PortState::ACTIVE
    }

    pub fn lid(&self) -> Lid {
        self.device.port(self.port).unwrap().lid
    }

    pub fn gid(&self) -> Gid {
        self.device.gid(self.port, 0).unwrap()
    }

    /// Takes completions until a condition holds.
    pub fn until(&mut self, is: impl Fn(&Self) -> bool) {
        let begun = Instant::now();
        while !is(self) {
            assert!(begun.elapsed() < TIMEOUT, "it never is; {:?}", self.events);
            self.step();
        }
    }

    /// Takes completions.
    pub fn step(&mut self) {
        let mut out = [Completion::NOTHING; 16];
        let count = self.device.poll(self.cq, &mut out).unwrap();
        for completion in &out[..count] {
            match completion.id {
                slot @ 0..DATA_RECV if completion.status == CompletionStatus::Success => {
                    self.take_mad(slot, completion);
                }
                0..DATA_RECV | MAD_SEND => {}
                _ => self.done.push_back(*completion),
            }
        }
        if count == 0 {
            std::thread::yield_now();
        }
        self.events.extend(std::iter::from_fn(|| self.device.async_event()));
    }

    // ---------------------------------------------------------------- management

    fn begin_management(&mut self) {
        let state = |state| QpAttributes { state: Some(state), ..QpAttributes::default() };
        let first = QpAttributes {
            pkey_index: Some(0),
            port: Some(self.port),
            qkey: Some(QKey::GSI),
            ..state(QpState::Init)
        };
        let last = QpAttributes { sq_psn: Some(Psn::new(0)), ..state(QpState::Rts) };
        for change in [first, state(QpState::Rtr), last] {
            self.device.modify_qp(self.gsi, &change).unwrap();
        }
        (0..SLOTS).for_each(|slot| self.receive_mad(slot as u64));
    }

    fn sge(&self, at: usize, bytes: usize) -> Sge {
        let address = self.region.address + at as u64;
        Sge { address, bytes: bytes as u32, lkey: self.region.lkey }
    }

    fn receive_mad(&mut self, slot: u64) {
        let sges = [self.sge(slot as usize * SLOT, GRH_LEN + MAD_LEN)];
        self.device.post_recv(self.gsi, &[RecvRequest { id: slot, sges: &sges }]).unwrap();
    }

    fn take_mad(&mut self, slot: u64, completion: &Completion) {
        let mut mad = [0; MAD_LEN];
        assert!(self.memory.read(slot as usize * SLOT + GRH_LEN, &mut mad));
        self.mads.push_back((completion.from.unwrap().slid, mad));
        self.receive_mad(slot);
    }

    /// Sends a datagram to another port's queue pair 1.
    pub fn send_mad(&mut self, dlid: Lid, mad: &[u8; MAD_LEN]) {
        assert!(self.memory.write(OUT, mad));
        let path = AddressVector::to_lid(dlid, self.port);
        let ah = self.device.create_ah(self.pd, &path).unwrap();
        let to = Destination { ah, qpn: Qpn::GSI, qkey: QKey::GSI };
        let (sges, flags) = ([self.sge(OUT, MAD_LEN)], SendFlags::SIGNALED);
        let (op, data) = (SendOp::Datagram(to), Data::Sges(&sges));
        self.device.post_send(self.gsi, &[SendRequest { id: MAD_SEND, op, flags, data }]).unwrap();
        self.device.destroy_ah(ah).unwrap();
    }

    /// The next datagram, and its source.
    pub fn mad(&mut self) -> (Lid, [u8; MAD_LEN]) {
        self.until(|program| !program.mads.is_empty());
        self.mads.pop_front().unwrap()
    }

    /// Asks subnet administration for one record. Datagrams of management may be lost, as while a
    /// manager has activated this port and not yet the links of the path: it queries again.
    pub fn ask<R: Record>(&mut self, method: Method, mask: R::Mask, record: R) -> (SaMad, R) {
        let mut question = SaMad::new(method, 0, mask, record);
        let manager = self.device.port(self.port).unwrap().sm_lid;
        for _ in 0..ATTEMPTS {
            self.asked += 1;
            question.header.transaction_id = self.asked;
            self.send_mad(manager, &question.emit());
            let sent = Instant::now();
            while sent.elapsed() < TIMEOUT / ATTEMPTS {
                self.step();
                let Some((from, mad)) = self.mads.pop_front() else { continue };
                let answer = SaMad::parse(&mad);
                assert_eq!((from, answer.header.method), (manager, method.response()));
                if answer.header.transaction_id == self.asked {
                    return (answer, R::from_data(&answer.data));
                }
            }
        }
        panic!("{manager:?} answers none of {ATTEMPTS} requests; {:?}", self.events);
    }

    // ---------------------------------------------------------------- data

    /// Connects it to the queue pair for data of the program at a port; anew, if it was connected.
    pub fn connect(&mut self, dlid: Lid) {
        // Half a second, seven times: the peer may have to wait for a processor.
        self.connect_with(dlid, TimeCode(17));
    }

    /// The same, and waits this long for a response before it queries again.
    pub fn connect_with(&mut self, dlid: Lid, timeout: TimeCode) {
        let state = |state| QpAttributes { state: Some(state), ..QpAttributes::default() };
        let path = AddressVector::to_lid(dlid, self.port);
        let psn = Some(Psn::new(7));
        let changes = [
            state(QpState::Reset),
            QpAttributes {
                pkey_index: Some(0),
                port: Some(self.port),
                access: Some(Access::ALL),
                ..state(QpState::Init)
            },
            QpAttributes {
                path: Some(path),
                path_mtu: Some(Mtu::BYTES_2048),
                dest_qp: Some(self.device.qpn(self.qp).unwrap()),
                rq_psn: psn,
                responder_resources: Some(4),
                min_rnr_timer: Some(RnrTimer(1)),
                ..state(QpState::Rtr)
            },
            QpAttributes {
                sq_psn: psn,
                timeout: Some(timeout),
                retry_count: Some(Retries::SEVEN),
                rnr_retry: Some(Retries::SEVEN),
                initiator_depth: Some(4),
                ..state(QpState::Rts)
            },
        ];
        for change in changes {
            self.device.modify_qp(self.qp, &change).unwrap();
        }
        self.done.clear();
    }

    pub fn receive(&mut self) {
        let sges = [self.sge(DATA, 4096)];
        self.device.post_recv(self.qp, &[RecvRequest { id: DATA_RECV, sges: &sges }]).unwrap();
    }

    /// Sends a message, when the last one has completed. Messages are numbered.
    pub fn send(&mut self) {
        assert!(self.memory.write(DATA + 4096, &self.sent.to_be_bytes()));
        self.sent += 1;
        let (sges, flags) = ([self.sge(DATA + 4096, 4096)], SendFlags::SIGNALED);
        let (op, data) = (SendOp::Send, Data::Sges(&sges));
        self.device.post_send(self.qp, &[SendRequest { id: DATA_SEND, op, flags, data }]).unwrap();
    }

    /// The number of the last received message.
    pub fn number(&self) -> u64 {
        let mut bytes = [0; 8];
        assert!(self.memory.read(DATA, &mut bytes));
        u64::from_be_bytes(bytes)
    }

    /// What completes next, and how.
    pub fn completed(&mut self) -> (CompletionKind, CompletionStatus) {
        self.until(|program| !program.done.is_empty());
        let completion = self.done.pop_front().unwrap();
        (completion.kind, completion.status)
    }
}

fn init(qp_type: QpType, pd: Pd, cq: Cq) -> QpInit {
    QpInit {
        qp_type,
        pd,
        send_cq: cq,
        recv_cq: cq,
        srq: None,
        send_requests_max: 64,
        recv_requests_max: 64,
        send_sges_max: 1,
        recv_sges_max: 1,
        inline_bytes_max: 0,
        signal_all: false,
    }
}

/// Takes messages from one to the other, so many.
pub fn exchange(from: &mut Program, to: &mut Program, messages: usize) {
    for _ in 0..messages {
        to.receive();
        from.send();
        let begun = Instant::now();
        while from.done.is_empty() || to.done.is_empty() {
            assert!(begun.elapsed() < TIMEOUT, "it does not come");
            from.step();
            to.step();
        }
        for (program, kind) in [(&mut *from, CompletionKind::Send), (to, CompletionKind::Recv)] {
            assert_eq!(program.completed(), (kind, CompletionStatus::Success));
        }
    }
}
