//! Connections through the connection manager, one after the other. Each measurement creates a
//! queue pair, connects it, sends a message each way, and disconnects it.
//!
//! ```text
//!   client                                     server
//!     creates a QP, REQ       ------------->     creates a QP, moves it to RTR and RTS
//!     moves it to RTR and RTS <-------------     REP
//!     RTU, and a message      ------------->
//!                             <-------------     the message echoed
//!     DREQ                    ------------->
//!                             <-------------     DREP
//! ```
//!
//! All of these are packets between the devices: MADs of queue pair 1 (IBA 12.6), and messages.
//! Both ends destroy their queue pairs after TIME-WAIT, when no late packet can arrive. The ends
//! exchange their LIDs over the control connection beforehand, so they query no path.

use super::end::{EndAddress, RecvId, VerbsEnd, VerbsEndSetup};
use super::{POLLS_IDLE, TIMEOUT};
use crate::error::PerfError;
use crate::exchange::Exchange;
use crate::payload::NumberedMessage;
use crate::plan::{EndRole, MeasurementOutcome, Plan};
use crate::samples::per_second;
use pollux_control::cm::{
    Cm, CmConfig, CmDatagram, CmError, CmEvent, Connect, ConnectionEnd, LocalPort, Terms,
    request_along,
};
use pollux_control::ipoib::ConnectionKey;
use pollux_control::mad::{Envelope, MadAddress};
use pollux_mem::Memory;
use pollux_node::device::Opened;
use pollux_node::port::{PortAccess, PortHandle};
use pollux_verbs::rng::SeededRng;
use pollux_verbs::time::Time;
use pollux_verbs::{Completion, CompletionStatus, Qp, QpAttributes, QpState, QpType, SendFlags};
use pollux_wire::address::Qpn;
use pollux_wire::keys::PKey;
use pollux_wire::mad::cm::{Rep, Req, TransportService};
use pollux_wire::mad::sa::PathRecord;
use pollux_wire::mad::service_id::ServiceId;
use pollux_wire::packet::RnrTimer;
use pollux_wire::psn::Psn;
use pollux_wire::units::TimeCode;
use std::collections::BTreeMap;
use std::time::Instant;

const SERVICE: ServiceId = ServiceId(0x0200_0000_0000_1bb3);
/// The packet lifetime, 17 ms, which suits a small fabric.
const LIFE_TIME: TimeCode = TimeCode(12);
/// The ACK delay, 134 ms, which is common for adapters. With this lifetime, it is also the duration
/// of TIME-WAIT.
const ACK_DELAY: TimeCode = TimeCode(15);
const RNR_TIMER: RnrTimer = RnrTimer(1);
/// Outstanding RDMA reads and atomics in each direction.
const RESOURCES: u8 = 4;
const RETRIES: u8 = 7;

/// Runs one end at a device. Only the client returns an outcome.
#[expect(clippy::disallowed_methods, reason = "this is what is measured")]
pub fn play(
    plan: &Plan,
    role: EndRole,
    mut opened: Opened,
    exchange: &mut Exchange,
) -> Result<Option<MeasurementOutcome>, PerfError> {
    let (device, number) = (opened.device.open_shared()?, opened.port);
    let memory = Memory::shared(2 * slot_bytes(plan)).map_err(|error| {
        PerfError::Plan(format!("no memory for two messages of {} bytes: {error}", plan.bytes))
    })?;
    let setup = VerbsEndSetup { qps: 0, ..VerbsEndSetup::of(plan.transport.qp_type()) };
    let end = VerbsEnd::new(device, number, &memory, &setup)?;
    let own = end.address()?;
    let other: EndAddress = exchange.swap(&own)?;
    let port = PortAccess::from(opened).context(PKey::DEFAULT, true)?;
    let mut connecting = ConnectingEnd::new(plan, end, port, memory, &own)?;
    exchange.begin(plan)?;
    let outcome = match role {
        EndRole::Client => {
            let begun = Instant::now();
            connecting.connect(&other)?;
            let first = begun.elapsed();
            let rate = per_second(plan.duration, || {
                connecting.connect(&other)?;
                Ok(1)
            })?;
            let first_ns = Some(first.as_nanos() as f64);
            Some(MeasurementOutcome::Connections { per_second: rate.per_second, first_ns })
        }
        EndRole::Server => {
            connecting.serve(exchange)?;
            None
        }
    };
    exchange.add_wrong_payloads(connecting.message.wrong());
    Ok(outcome)
}

/// The length of a buffer. The memory has one for sent and one for received messages.
fn slot_bytes(plan: &Plan) -> usize {
    (plan.bytes as usize).next_multiple_of(4096)
}

/// An end with one connection at a time, and the queue pairs of connections in TIME-WAIT.
struct ConnectingEnd<'p> {
    plan: &'p Plan,
    end: VerbsEnd,
    port: PortHandle,
    local: LocalPort,
    own: PathRecord,
    memory: Memory,
    cm: Cm,
    rng: SeededRng,
    started: Instant,
    received: Vec<Envelope>,
    message: NumberedMessage,
    /// The queue pair of each connection. It is destroyed after TIME-WAIT.
    qps: BTreeMap<ConnectionKey, Qp>,
}

impl<'p> ConnectingEnd<'p> {
    #[expect(clippy::disallowed_methods, reason = "connections have timers")]
    fn new(
        plan: &'p Plan,
        end: VerbsEnd,
        port: PortHandle,
        memory: Memory,
        own: &EndAddress,
    ) -> Result<Self, PerfError> {
        let view = port.view()?;
        let local =
            LocalPort { number: view.number, lid: view.lid, lmc: view.lmc, gids: view.gids };
        let guid = end.device.attributes().node_guid;
        let mut rng = SeededRng::new(guid.0 ^ u64::from(std::process::id()));
        let mut cm = Cm::new(CmConfig::of(guid), rng.split());
        cm.handle_port(local.clone());
        let listening = cm.listen(SERVICE, [0; 148]);
        listening.map_err(|error| PerfError::Local(error.to_string()))?;
        let own = PathRecord {
            sgid: own.gid(),
            slid: own.lid(),
            p_key: PKey::DEFAULT,
            mtu: view.mtu,
            packet_life_time: LIFE_TIME,
            ..PathRecord::default()
        };
        Ok(Self {
            plan,
            end,
            port,
            local,
            own,
            memory,
            cm,
            rng,
            started: Instant::now(),
            received: Vec::new(),
            message: NumberedMessage::new(plan.bytes as usize, !plan.unchecked),
            qps: BTreeMap::new(),
        })
    }

    fn now(&self) -> Time {
        Time::START + self.started.elapsed()
    }

    fn psn(&mut self) -> Psn {
        Psn::new(self.rng.next_u64() as u32)
    }

    /// Opens a connection, exchanges a message on it, and disconnects it.
    fn connect(&mut self, to: &EndAddress) -> Result<(), PerfError> {
        let path = PathRecord { dgid: to.gid(), dlid: to.lid(), ..self.own };
        let key = self.cm.new_key();
        let req = Req {
            service_id: SERVICE,
            transport_service: match self.plan.transport.qp_type() {
                QpType::Uc => TransportService::UC,
                _ => TransportService::RC,
            },
            local_qpn: self.make_qp(key)?,
            starting_psn: self.psn(),
            responder_resources: RESOURCES,
            initiator_depth: RESOURCES,
            retry_count: RETRIES,
            rnr_retry_count: RETRIES,
            ..request_along(&path, ACK_DELAY)
        };
        let to = MadAddress::gsi(path.dlid, 0, PKey::DEFAULT);
        let connect = Connect { to, req, packet_life_time: LIFE_TIME };
        self.cm.connect(self.now(), key, connect).map_err(refused)?;
        self.wait_for(|event| matches!(event, CmEvent::Reply { .. }))?;
        let terms = self.cm.terms(key).ok_or_else(no_answer)?;
        self.make_ready(&terms)?;
        self.cm.confirm(self.now(), key, [0; 224]).map_err(refused)?;
        self.message.renew();
        self.send()?;
        self.receive()?;
        self.message.check_answer();
        self.cm.disconnect(self.now(), key, [0; 220]).map_err(refused)?;
        self.wait_for(|event| matches!(event, CmEvent::Ended { .. }))
    }

    /// Accepts connections and echoes their messages, until the client has finished.
    fn serve(&mut self, exchange: &mut Exchange) -> Result<(), PerfError> {
        let mut idle = 0;
        loop {
            idle += 1;
            match self.turn()? {
                Some(CmEvent::Request { key, req }) => self.accept(key, &req)?,
                // Other events need no action: the message shows that the connection is
                // established, and `turn` handles its end.
                Some(_) => {}
                None if idle >= POLLS_IDLE => {
                    idle = 0;
                    std::thread::yield_now();
                    if exchange.is_over() {
                        return Ok(());
                    }
                }
                None => {}
            }
            if self.has_received()? {
                self.read();
                self.send()?;
                self.message.check_request();
                idle = 0;
            }
        }
    }

    fn accept(&mut self, key: ConnectionKey, req: &Req) -> Result<(), PerfError> {
        let rep = Rep {
            local_qpn: self.make_qp(key)?,
            starting_psn: self.psn(),
            responder_resources: RESOURCES,
            initiator_depth: RESOURCES,
            target_ack_delay: ACK_DELAY,
            rnr_retry_count: RETRIES,
            ..Rep::default()
        };
        let (_, from) = self.cm.request(key).ok_or_else(no_answer)?;
        let terms = Terms::passive(req, &rep, from, &self.local);
        self.make_ready(&terms)?;
        self.cm.accept(self.now(), key, rep).map_err(refused)
    }

    /// Creates the queue pair of a connection, moves it to INIT, and posts a receive.
    fn make_qp(&mut self, key: ConnectionKey) -> Result<Qpn, PerfError> {
        let qp = self.end.create_qp()?;
        self.qps.insert(key, qp);
        self.end.initialize(qp)?;
        self.end.qps = vec![qp];
        self.end.recv_at(RecvId { qp: 0, slot: 0 }, slot_bytes(self.plan), self.plan.bytes)?;
        Ok(self.end.device.qpn(qp)?)
    }

    /// Moves the current queue pair to RTR and RTS.
    fn make_ready(&mut self, terms: &Terms) -> Result<(), PerfError> {
        let qp = self.end.qps[0];
        self.end.device.modify_qp(qp, &terms.to_receive(RNR_TIMER))?;
        Ok(self.end.device.modify_qp(qp, &terms.to_send())?)
    }

    fn send(&mut self) -> Result<(), PerfError> {
        assert!(self.memory.write(0, &self.message.bytes), "it has space for the message");
        let what = (0, self.end.op(0), SendFlags::NONE);
        self.end.post_from(what, &self.memory, (0, self.plan.bytes))
    }

    fn receive(&mut self) -> Result<(), PerfError> {
        let deadline = self.now() + TIMEOUT;
        while !self.has_received()? {
            self.turn()?;
            if self.now() > deadline {
                return Err(PerfError::OtherEnd(format!("no message for {TIMEOUT:?}")));
            }
        }
        self.read();
        Ok(())
    }

    /// Polls once, and returns whether a message was received. Flushed requests are no error: when
    /// a queue pair is disconnected, its last send may still wait for an acknowledgment, although
    /// the other end has received and echoed the message.
    fn has_received(&mut self) -> Result<bool, PerfError> {
        let mut out = [Completion::NOTHING];
        let count = self.end.device.poll(self.end.cq, &mut out)?;
        match out[0].status {
            _ if count == 0 => Ok(false),
            CompletionStatus::Success => Ok(out[0].kind.is_recv()),
            CompletionStatus::Flushed => Ok(false),
            bad => Err(PerfError::Request(bad)),
        }
    }

    fn read(&mut self) {
        let at = slot_bytes(self.plan);
        assert!(self.memory.read(at, &mut self.message.bytes), "it has space for the message");
    }

    /// Waits for an event of the connection manager. It is an error if the connection ends first.
    fn wait_for(&mut self, is_it: impl Fn(&CmEvent) -> bool) -> Result<(), PerfError> {
        let deadline = self.now() + TIMEOUT;
        for turn in 1u32.. {
            match self.turn()? {
                Some(event) if is_it(&event) => return Ok(()),
                Some(CmEvent::Ended { end: ConnectionEnd::Rejected(rej), .. }) => {
                    let why = format!("it rejects connections, with reason {}", rej.reason.0);
                    return Err(PerfError::OtherEnd(why));
                }
                Some(CmEvent::Ended { .. }) => break,
                _ => {}
            }
            // A software adapter processes packets only when it is polled.
            self.has_received()?;
            if turn.is_multiple_of(POLLS_IDLE) {
                std::thread::yield_now();
                if self.now() > deadline {
                    break;
                }
            }
        }
        Err(no_answer())
    }

    /// Receives and sends MADs, and runs timers. Returns the next event of the connection manager,
    /// and updates the queue pair if it ends the connection or its TIME-WAIT.
    fn turn(&mut self) -> Result<Option<CmEvent>, PerfError> {
        let now = self.now();
        self.port.poll(now, &mut self.received)?;
        for envelope in self.received.drain(..) {
            self.cm.handle_mad(now, &CmDatagram::parse(&envelope));
        }
        self.cm.handle_timeout(now);
        while let Some(envelope) = self.cm.poll_transmit() {
            if self.port.send(&envelope).is_some() {
                let why = "connections need queue pair 1, which Ethernet has not";
                return Err(PerfError::Plan(why.into()));
            }
        }
        let event = self.cm.poll_event();
        match event {
            Some(CmEvent::Ended { key, .. }) => {
                let error = QpAttributes { state: Some(QpState::Err), ..QpAttributes::default() };
                if let Some(qp) = self.qps.get(&key) {
                    self.end.device.modify_qp(*qp, &error)?;
                }
            }
            Some(CmEvent::Closed { key }) => {
                if let Some(qp) = self.qps.remove(&key) {
                    self.end.device.destroy_qp(qp)?;
                }
            }
            _ => {}
        }
        Ok(event)
    }
}

fn refused(error: CmError) -> PerfError {
    PerfError::OtherEnd(format!("a connection failed: {error}"))
}

fn no_answer() -> PerfError {
    PerfError::OtherEnd("its connection manager does not answer".into())
}
