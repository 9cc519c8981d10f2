//! Several adapters at one port of a fabric of processes, each in its own thread: each continues
//! when another adapter or the server ends.

use crate::pair::{Connection, QKEY, changes, path, qp_init};
use crate::processes::runs_alone;
use crate::served::{Served, clock};
use pollux_fabric::PORT_CONTEXTS_MAX;
use pollux_fabric::process::open;
use pollux_fabric::{Adapter, Port, Time};
use pollux_mem::Memory;
use pollux_verbs::*;
use pollux_wire::address::{Gid, Guid, Lid, Qpn};
use pollux_wire::keys::PKey;
use pollux_wire::mad::smp::PortState;
use pollux_wire::packet::{Bth, Deth, Extended, Grh, Headers, Lrh, Opcode};
use pollux_wire::units::TimeCode;
use std::collections::BTreeSet;
use std::time::{Duration, Instant};

const WAIT_MAX: Duration = Duration::from_secs(60);
const MESSAGES: u64 = 2_000;
const BYTES: u64 = 4096;
const SLOTS: u64 = 16;
/// Hosts of `single:N` have the LIDs after the LID of their switch.
pub const LIDS: [u16; 2] = [2, 3];

fn connection() -> Connection {
    Connection { timeout: TimeCode(17), psn: 7, ..Connection::default() }
}

/// An adapter with one connection.
pub struct Endpoint {
    pub device: Box<dyn Device + Send>,
    pd: Pd,
    pub cq: Cq,
    pub qp: Qp,
    memory: Memory,
    region: MemoryRegion,
}

impl Endpoint {
    fn new(mut device: Box<dyn Device + Send>) -> Self {
        let pd = device.create_pd().unwrap();
        let cq = device.create_cq(64).unwrap();
        let memory = Memory::shared((BYTES * SLOTS) as usize).unwrap();
        let region = device.register(pd, &memory, Access::ALL).unwrap();
        let qp = device.create_qp(&qp_init(QpType::Rc, pd, cq)).unwrap();
        Self { device, pd, cq, qp, memory, region }
    }

    fn another(&mut self) -> Self {
        Self::new(self.device.open_shared().unwrap())
    }

    pub fn qpn(&self) -> Qpn {
        self.device.qpn(self.qp).unwrap()
    }

    fn connect(&mut self, peer: Qpn, lid: u16) {
        self.connect_with(peer, lid, &connection());
    }

    pub fn connect_with(&mut self, peer: Qpn, lid: u16, connection: &Connection) {
        self.await_port(PortState::ACTIVE);
        let reset = QpAttributes { state: Some(QpState::Reset), ..QpAttributes::default() };
        self.device.modify_qp(self.qp, &reset).unwrap();
        while self.poll().is_some() {}
        for change in changes(peer, path(lid), connection) {
            self.device.modify_qp(self.qp, &change).unwrap();
        }
    }

    fn await_port(&mut self, state: PortState) {
        let wait = Wait::begin();
        while self.device.port(1).unwrap().state != state {
            self.device.async_event();
            wait.check("the port");
        }
    }

    pub fn poll(&mut self) -> Option<Completion> {
        let mut out = [Completion::NOTHING];
        (self.device.poll(self.cq, &mut out).unwrap() == 1).then_some(out[0])
    }

    fn wait(&mut self, id: u64) {
        let wait = Wait::begin();
        loop {
            if let Some(done) = self.poll() {
                return assert_eq!((done.id, done.status), (id, CompletionStatus::Success));
            }
            wait.check("a completion");
        }
    }

    pub fn sge(&self, id: u64, bytes: u64) -> [Sge; 1] {
        let (address, lkey) = (self.region.address + id % SLOTS * BYTES, self.region.lkey);
        [Sge { address, bytes: bytes as u32, lkey }]
    }

    pub fn post_recv(&mut self, id: u64) {
        let sges = self.sge(id, BYTES);
        self.device.post_recv(self.qp, &[RecvRequest { id, sges: &sges }]).unwrap();
    }

    /// Sends messages of all lengths, each with the mark of its sender.
    fn send(&mut self, mark: u8) {
        for id in 0..MESSAGES {
            let bytes = bytes(id);
            let content = vec![mark ^ id as u8; bytes as usize];
            assert!(self.memory.write((id % SLOTS * BYTES) as usize, &content));
            let sges = self.sge(id, bytes);
            let (op, data) = (SendOp::Send, Data::Sges(&sges));
            let request = SendRequest { id, op, flags: SendFlags::SIGNALED, data };
            self.device.post_send(self.qp, &[request]).unwrap();
            if id + 1 >= SLOTS {
                self.wait(id + 1 - SLOTS);
            }
        }
        (MESSAGES + 1 - SLOTS..MESSAGES).for_each(|id| self.wait(id));
    }

    /// Receives the messages of `send`.
    fn receive(&mut self, mark: u8) {
        (0..SLOTS).for_each(|id| self.post_recv(id));
        for id in 0..MESSAGES {
            self.wait(id);
            let mut content = vec![0; bytes(id) as usize];
            assert!(self.memory.read((id % SLOTS * BYTES) as usize, &mut content));
            assert!(content.iter().all(|byte| *byte == mark ^ id as u8), "message {id}");
            self.post_recv(id + SLOTS);
        }
    }
}

/// The length of a message; the longest are leased.
fn bytes(id: u64) -> u64 {
    [1, 64, 500, BYTES][id as usize % 4]
}

struct Wait(Instant);

#[expect(clippy::disallowed_methods, reason = "threads are waited for by the clock")]
impl Wait {
    fn begin() -> Self {
        Self(Instant::now())
    }

    fn check(&self, what: &str) {
        assert!(self.0.elapsed() < WAIT_MAX, "waited for {what}");
        std::thread::yield_now();
    }
}

/// `count` adapters at the port of a host.
pub fn endpoints(served: &Served, host: u32, count: usize) -> Vec<Endpoint> {
    let mut endpoints = vec![Endpoint::new(Box::new(open(&served.name(host), clock()).unwrap()))];
    while endpoints.len() < count {
        let next = endpoints[0].another();
        endpoints.push(next);
    }
    endpoints
}

fn connect(a: &mut Endpoint, b: &mut Endpoint) {
    let (a_qpn, b_qpn) = (a.qpn(), b.qpn());
    a.connect(b_qpn, LIDS[1]);
    b.connect(a_qpn, LIDS[0]);
}

/// Sends from each adapter to its peer, all at the same time.
fn exchange(all: &mut [(&mut Endpoint, &mut Endpoint)]) {
    std::thread::scope(|scope| {
        for (mark, (a, b)) in (0x30..).zip(all) {
            let sender = scope.spawn(move || a.send(mark));
            scope.spawn(move || {
                b.receive(mark);
                // The last acknowledgement leaves in the next call.
                while !sender.is_finished() {
                    b.device.async_event();
                }
            });
        }
    });
}

/// Each adapter has its own direct rings to its peer, and can end at any time.
#[test]
fn adapters_at_one_port_have_separate_traffic() {
    if runs_alone("shared_port::adapters_at_one_port_have_separate_traffic") {
        return;
    }
    let served = Served::start("shared-port", "single:2");
    let (mut ours, mut theirs) = (endpoints(&served, 1, 3), endpoints(&served, 2, 3));
    let numbers: BTreeSet<Qpn> = ours.iter().map(Endpoint::qpn).collect();
    assert_eq!(numbers.len(), 3);
    let mut pairs: Vec<_> = ours.iter_mut().zip(&mut theirs).collect();
    pairs.iter_mut().for_each(|(a, b)| connect(a, b));
    exchange(&mut pairs);
    let statistics = served.ask(|server| server.statistics());
    assert_eq!(statistics, (6, 6), "a ring each way of each connection");

    // The first ends, and the others keep the port: other clients are refused.
    let (pd, cq) = (ours[1].pd, ours[1].cq);
    let refused = ours[1].device.create_qp(&qp_init(QpType::Gsi, pd, cq)).unwrap_err();
    assert!(refused.to_string().contains("QP1 (GSI)"), "{refused}");
    drop((ours.remove(0), theirs.remove(0)));
    let error = open(&served.name(1), clock()).err().expect("somebody is there").to_string();
    assert!(error.contains("is at this port"), "{error}");
    let next = ours[0].another();
    drop(next);
    let mut pairs: Vec<_> = ours.iter_mut().zip(&mut theirs).collect();
    pairs.iter_mut().for_each(|(a, b)| connect(a, b));
    exchange(&mut pairs);
    assert!(
        ours.iter_mut().all(|endpoint| endpoint.device.port(1).unwrap().state == PortState::ACTIVE)
    );
    drop(ours);
    let wait = Wait::begin();
    while open(&served.name(1), clock()).is_err() {
        wait.check("the port to be free");
    }
}

/// The 33rd adapter at a port is refused.
#[test]
fn a_port_has_at_most_32_contexts() {
    if runs_alone("shared_port::a_port_has_at_most_32_contexts") {
        return;
    }
    let served = Served::start("contexts", "single:2");
    let mut ours = endpoints(&served, 1, PORT_CONTEXTS_MAX.into());
    let error = ours[0].device.open_shared().err().expect("all are taken");
    assert!(matches!(error, VerbsError::Limit { max: 32, .. }), "{error}");
    ours.remove(4);
    assert!(ours[0].device.open_shared().is_ok());
    drop(served);
    let error = ours[0].device.open_shared().err().expect("there is no server");
    assert_eq!(error, VerbsError::Gone);
}

/// A group datagram is delivered to all contexts; if none is a member, only context 0 counts a
/// drop.
#[test]
fn a_datagram_to_a_group_without_members_is_dropped_once() {
    let mgid = Gid([0xff; 16]);
    let headers = Headers {
        lrh: Lrh { dlid: Lid(0xc000), slid: Lid(9), ..Lrh::default() },
        grh: Some(Grh {
            ip_ver: Grh::IP_VER,
            nxt_hdr: Grh::NXT_HDR_IBA,
            dgid: mgid,
            ..Grh::default()
        }),
        bth: Bth {
            opcode: Opcode::UD_SEND_ONLY,
            pkey: PKey::DEFAULT,
            dest_qp: Qpn::MULTICAST,
            ..Bth::default()
        },
        rd: None,
        extended: Extended::Deth(Deth { qkey: QKEY, src_qp: Qpn(0x99) }),
    };
    let mut packet = [0; 512];
    let len = headers.emit(&[7; 8], &mut packet).unwrap();
    let dropped = |context| {
        let mut adapter = Adapter::in_context(Port::active(Lid(2), Guid(2)), context);
        adapter.handle_packet(Time::START, &packet[..len]);
        adapter.port().drops.iter().collect::<Vec<_>>()
    };
    assert_eq!(dropped(0), [(pollux_fabric::DropReason::NoMember, 1)]);
    assert_eq!((1..PORT_CONTEXTS_MAX).flat_map(dropped).count(), 0);
}

/// Each context attaches to the next server by itself, in any order.
#[test]
fn adapters_at_one_port_attach_again_in_any_order() {
    if runs_alone("shared_port::adapters_at_one_port_attach_again_in_any_order") {
        return;
    }
    let served = Served::start("back", "single:2");
    let (mut ours, mut theirs) = (endpoints(&served, 1, 2), endpoints(&served, 2, 2));
    drop(served);
    for endpoint in ours.iter_mut().chain(&mut theirs) {
        endpoint.await_port(PortState::DOWN);
    }
    let _served = Served::start("back", "single:2");
    for nth in [1, 0] {
        connect(&mut ours[nth], &mut theirs[nth]);
        exchange(&mut [(&mut ours[nth], &mut theirs[nth])]);
    }
}
