//! Two honest clients: messages of all lengths by all services, and queries to an agent. Each
//! detects lost, changed or reordered messages.

use crate::attacker::{OPEN_QPN, OWN_QKEY, OWN_QPN, QKEY, SECRET};
use crate::pair::{Connection, changes, path, qp_init};
use pollux_fabric::SoftDevice;
use pollux_fabric::process::{ProcessLink, open};
use pollux_mem::Memory;
use pollux_verbs::work::Destination;
use pollux_verbs::*;
use pollux_wire::address::Qpn;
use pollux_wire::keys::QKey;
use pollux_wire::mad::smp::PortState;
use pollux_wire::mad::{AttributeId, MadHeader, Method, MgmtClass};
use pollux_wire::psn::Psn;
use pollux_wire::units::TimeCode;
use std::time::{Duration, Instant};

/// The limit of every wait, far above the need on a busy machine: only a hang reaches it.
pub const WAIT_MAX: Duration = Duration::from_secs(120);
/// Hosts of `single:N` have the LIDs after the LID of their switch.
const LIDS: [u16; 2] = [2, 3];
const SWITCH_LID: u16 = 1;

const SLOT: usize = 300 << 10;
/// Messages of a service in flight.
const WINDOW: usize = 4;
const GRH: usize = 40;
const MAD: usize = 256;

/// A service, and the lengths of its messages.
#[derive(Clone, Copy)]
struct Service {
    qp_type: QpType,
    bytes: &'static [usize],
}

const SERVICES: [Service; 3] = [
    Service { qp_type: QpType::Rc, bytes: &[64, 0, 513, 4096, 65_520, 1, 300_000, 33] },
    Service { qp_type: QpType::Uc, bytes: &[64, 512, 4096, 20_000, 16] },
    Service { qp_type: QpType::Ud, bytes: &[64, 512, 2048, 17] },
];

fn connection(qp_type: QpType) -> Connection {
    Connection { qp_type, timeout: TimeCode(19), psn: 7, ..Connection::default() }
}

/// The queue pairs of one service at one client.
struct Ends {
    qp: Qp,
    cq: Cq,
    sent: usize,
    done: usize,
    came: usize,
}

pub struct Honest {
    pub device: SoftDevice<ProcessLink>,
    pd: Pd,
    memory: Memory,
    region: MemoryRegion,
    services: Vec<Ends>,
    to: Option<Ah>,
    gsi: Ends,
    to_switch: Option<Ah>,
    asked_at: Option<u64>,
    polls: u64,
    /// Datagrams of other clients to the open queue pair.
    pub strange: u64,
    pub answers: u64,
    pub repeated: u64,
    open: Ends,
}

/// The layout of the memory.
const SENDS: usize = 0;
const RECEIVES: usize = SERVICES.len() * WINDOW * SLOT;
const MADS: usize = 2 * RECEIVES;
const ALL: usize = MADS + (64 + 1) * 512;

impl Honest {
    /// The client at a host.
    pub fn new(name: &str) -> Self {
        let (start, begun) = (Instant::now(), Instant::now());
        let clock = std::sync::Arc::new(move || pollux_fabric::Time::START + start.elapsed());
        let mut device = loop {
            match open(name, clock.clone()) {
                Ok(device) => break device,
                Err(error) => assert!(begun.elapsed() < WAIT_MAX, "{error}"),
            }
            std::thread::yield_now();
        };
        let pd = device.create_pd().unwrap();
        let memory = Memory::shared(ALL).unwrap();
        let region = device.register(pd, &memory, Access::ALL).unwrap();
        let mut ends = |qp_type| {
            let cq = device.create_cq(256).unwrap();
            let qp = device.create_qp(&qp_init(qp_type, pd, cq)).unwrap();
            Ends { qp, cq, sent: 0, done: 0, came: 0 }
        };
        let services: Vec<Ends> = SERVICES.iter().map(|service| ends(service.qp_type)).collect();
        let (open, gsi) = (ends(QpType::Ud), ends(QpType::Gsi));
        let (to, to_switch, asked_at) = (None, None, None);
        let qpns = [services[2].qp, open.qp].map(|qp| u64::from(device.qpn(qp).unwrap().0));
        assert_eq!(qpns, [OWN_QPN, OPEN_QPN], "the hostile one would miss them");
        let (polls, strange, answers, repeated) = (0, 0, 0, 0);
        Self {
            device,
            pd,
            memory,
            region,
            services,
            to,
            gsi,
            to_switch,
            asked_at,
            polls,
            strange,
            answers,
            repeated,
            open,
        }
    }

    pub fn await_port(&mut self) {
        let begun = Instant::now();
        while self.device.port(1).unwrap().state != PortState::ACTIVE {
            assert!(begun.elapsed() < WAIT_MAX, "the port stays down");
            self.device.progress();
        }
    }

    /// Connects every service to the same one of the peer; the open queue pair has no peer.
    pub fn connect(&mut self, nth: usize, peers: &[Qpn]) {
        let lid = LIDS[1 - nth];
        self.to = Some(self.device.create_ah(self.pd, &path(lid)).unwrap());
        self.to_switch = Some(self.device.create_ah(self.pd, &path(SWITCH_LID)).unwrap());
        for (which, service) in SERVICES.iter().enumerate() {
            let qp = self.services[which].qp;
            for mut change in changes(peers[which], path(lid), &connection(service.qp_type)) {
                // The queue pairs of honest clients are in their own partition.
                change.qkey = change.qkey.map(|_| OWN_QKEY);
                self.device.modify_qp(qp, &change).unwrap();
            }
            (0..WINDOW).for_each(|slot| self.receive(which, slot));
        }
        for (qp, qkey) in [(self.open.qp, QKEY), (self.gsi.qp, QKey::GSI)] {
            let state = |state| QpAttributes { state: Some(state), ..QpAttributes::default() };
            let init = QpAttributes {
                pkey_index: Some(1),
                port: Some(1),
                qkey: Some(qkey),
                ..state(QpState::Init)
            };
            let rts = QpAttributes { sq_psn: Some(Psn::new(0)), ..state(QpState::Rts) };
            for change in [init, state(QpState::Rtr), rts] {
                self.device.modify_qp(qp, &change).unwrap();
            }
            for slot in 0..32 {
                self.receive_mad(qp, slot);
            }
        }
    }

    pub fn qpns(&self) -> Vec<Qpn> {
        self.services.iter().map(|ends| self.device.qpn(ends.qp).unwrap()).collect()
    }

    fn sge(&self, at: usize, bytes: usize) -> Sge {
        let address = self.region.address + at as u64;
        Sge { address, bytes: bytes as u32, lkey: self.region.lkey }
    }

    fn receive(&mut self, which: usize, slot: usize) {
        let sges = [self.sge(RECEIVES + (which * WINDOW + slot) * SLOT, SLOT)];
        let request = RecvRequest { id: slot as u64, sges: &sges };
        self.device.post_recv(self.services[which].qp, &[request]).unwrap();
    }

    fn receive_mad(&mut self, qp: Qp, slot: u64) {
        let at = if qp == self.gsi.qp { slot } else { 32 + slot };
        let sges = [self.sge(MADS + at as usize * 512, 512)];
        self.device.post_recv(qp, &[RecvRequest { id: slot, sges: &sges }]).unwrap();
    }

    /// Makes progress with all services; `peer` has the number of messages of each that have
    /// arrived at the peer.
    pub fn step(&mut self, peer: &[usize]) {
        self.polls += 1;
        for (which, came) in peer.iter().enumerate() {
            let ends = &self.services[which];
            // Unordered messages without acknowledgement are sent when the peer has receives for
            // them.
            if ends.sent - ends.done < WINDOW && ends.sent - came < WINDOW {
                self.send(which);
            }
            self.poll(which);
        }
        self.poll_open();
        self.ask();
    }

    fn send(&mut self, which: usize) {
        let (service, nth) = (SERVICES[which], self.services[which].sent);
        let content = content(which, nth);
        let at = SENDS + (which * WINDOW + nth % WINDOW) * SLOT;
        assert!(self.memory.write(at, &content));
        let sges = [self.sge(at, content.len())];
        let op = match service.qp_type {
            QpType::Ud => {
                // The queue pairs of both were created in the same order, and have the same
                // numbers.
                let qpn = self.device.qpn(self.services[which].qp).unwrap();
                let to = Destination { ah: self.to.unwrap(), qpn, qkey: OWN_QKEY };
                SendOp::DatagramImm(to, nth as u32)
            }
            _ => SendOp::SendImm(nth as u32),
        };
        let (flags, data) = (SendFlags::SIGNALED, Data::Sges(&sges));
        let request = SendRequest { id: nth as u64, op, flags, data };
        self.device.post_send(self.services[which].qp, &[request]).unwrap();
        self.services[which].sent += 1;
    }

    fn poll(&mut self, which: usize) {
        let mut out = [Completion::NOTHING];
        if self.device.poll(self.services[which].cq, &mut out).unwrap() == 0 {
            return;
        }
        let completion = out[0];
        let name = SERVICES[which].qp_type;
        assert_eq!(completion.status, CompletionStatus::Success, "{name:?}");
        if completion.kind != CompletionKind::Recv {
            self.services[which].done += 1;
            return;
        }
        let nth = self.services[which].came;
        assert_eq!(completion.with, With::Imm(nth as u32), "{name:?}: another was expected");
        let skip = if name == QpType::Ud { GRH } else { 0 };
        let mut found = vec![0; completion.bytes as usize];
        let at = RECEIVES + (which * WINDOW + nth % WINDOW) * SLOT;
        assert!(self.memory.read(at, &mut found));
        assert!(found[skip..] == content(which, nth), "{name:?}: message {nth} was changed");
        self.services[which].came += 1;
        self.receive(which, nth % WINDOW);
    }

    fn poll_open(&mut self) {
        let mut out = [Completion::NOTHING];
        if self.device.poll(self.open.cq, &mut out).unwrap() == 1 {
            self.strange += 1;
            self.receive_mad(self.open.qp, out[0].id);
        }
    }

    /// Queries the agent of the switch, and repeats the query after a while.
    fn ask(&mut self) {
        let mut out = [Completion::NOTHING];
        if self.device.poll(self.gsi.cq, &mut out).unwrap() == 1
            && out[0].kind == CompletionKind::Recv
        {
            let mut mad = [0; GRH + MAD];
            assert!(self.memory.read(MADS + out[0].id as usize * 512, &mut mad));
            let header = MadHeader::parse(mad[GRH..].first_chunk().unwrap());
            let is_answer =
                header.method == Method::GET_RESP && header.transaction_id == self.gsi.sent as u64;
            if is_answer && self.asked_at.take().is_some() {
                self.answers += 1;
            }
            self.receive_mad(self.gsi.qp, out[0].id);
        }
        const AGAIN: u64 = 20_000;
        match self.asked_at {
            Some(at) if self.polls < at + AGAIN => return,
            Some(_) => self.repeated += 1,
            None => self.gsi.sent += 1,
        }
        self.asked_at = Some(self.polls);
        let (class, tid) = (MgmtClass::PERF, self.gsi.sent as u64);
        let mut mad = [0; MAD];
        let header = MadHeader::new(class, Method::GET, tid, AttributeId(1));
        mad[..MadHeader::LEN].copy_from_slice(&header.emit());
        let at = MADS + 64 * 512;
        assert!(self.memory.write(at, &mad));
        let to = Destination { ah: self.to_switch.unwrap(), qpn: Qpn::GSI, qkey: QKey::GSI };
        let sges = [self.sge(at, MAD)];
        let (flags, data) = (SendFlags::NONE, Data::Sges(&sges));
        let request = SendRequest { id: 0, op: SendOp::Datagram(to), flags, data };
        self.device.post_send(self.gsi.qp, &[request]).unwrap();
    }

    /// The number of arrived messages, by service.
    pub fn came(&self) -> Vec<usize> {
        self.services.iter().map(|ends| ends.came).collect()
    }
}

/// The content of a message: all differ, and each begins with the prefix that no other client may
/// read.
fn content(which: usize, nth: usize) -> Vec<u8> {
    let lengths = SERVICES[which].bytes;
    let mut content = vec![(which * 89 + nth * 31 + 1) as u8; lengths[nth % lengths.len()]];
    if let Some(front) = content.first_chunk_mut::<24>() {
        front[..16].copy_from_slice(SECRET);
        front[16..].copy_from_slice(&(nth as u64).to_ne_bytes());
    }
    content
}
