//! Queue pair 1 of a port: management datagrams, as envelopes here and as work requests there
//! (IBA 13.5).
//!
//! All datagrams lie in one small memory, a slot each, and are copied out and in: there are a few
//! a second. Only when an interface with many connections goes down are there thousands; those
//! that find no slot wait for one, as many as control keeps ready at once, so that none of ours is
//! lost here. A queue pair that fails starts again once everything is back; what was under way is
//! lost, as datagrams may be.

use super::handles::Handles;
use pollux_control::mad::{Envelope, GlobalAddress, MadAddress};
use pollux_mem::Memory;
use pollux_verbs::time::Time;
use pollux_verbs::work::Destination;
use pollux_verbs::*;
use pollux_wire::keys::{PKey, QKey};
use pollux_wire::mad::MAD_LEN;
use pollux_wire::packet::Grh;
use pollux_wire::psn::Psn;
use std::collections::VecDeque;
use std::time::Duration;

/// Datagrams that may come between two polls.
const RECEIVES: usize = 128;
/// Datagrams that may be outstanding.
const SENDS: usize = 64;
/// Address handles that are kept: whoever exchanges datagrams exchanges several.
const HANDLES_MAX: usize = 64;
/// Datagrams that wait for a slot: more than connection management and the administrator's client
/// keep ready together.
const WAITING_MAX: usize = 8192;
/// How long the device may take to give back what it has, once the queue pair failed.
const BACK_MAX: Duration = Duration::from_secs(5);
/// Room for a datagram and its GRH, on cache lines of its own.
const RECEIVE_BYTES: usize = 320;
const SENDS_AT: usize = RECEIVES * RECEIVE_BYTES;
/// Of identifiers: a send, by its slot.
const SEND: u64 = 1 << 32;
/// An answer may go as far as anything (IBA 13.5.4.4).
const HOP_LIMIT: u8 = 0xff;

/// Queue pair 1 of a port.
#[derive(Debug)]
pub struct Gsi {
    port: u8,
    cq: Cq,
    qp: Qp,
    memory: Memory,
    region: MemoryRegion,
    /// Slots of sends that nothing is in.
    free: Vec<usize>,
    /// Slots of receives that are not posted.
    missing: Vec<usize>,
    waiting: VecDeque<Envelope>,
    state: State,
    handles: Handles,
    unsent: u64,
}

/// Why there is no interface at a genuine InfiniBand adapter, and what there is instead. Its queue
/// pair 1 is the kernel's; interfaces do not exchange MADs with the kernel (umad) yet.
pub const NO_GSI: &str = "queue pair 1 for programs, so an interface has no subnet management \
    there; adapters on InfiniBand carry no interfaces yet: use a port of a software fabric (soft: \
    or soft:PATH@NODE), or an adapter in RoCE mode";

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    Started,
    /// It failed: everything is to come back, by then.
    Stopping {
        until: Time,
    },
}

impl Gsi {
    /// Opens it, and begins to receive.
    pub fn new(device: &mut dyn Device, pd: Pd, port: u8) -> Result<Self, VerbsError> {
        if !device.attributes().can.gsi {
            return Err(VerbsError::Unsupported { verb: "general services", capability: NO_GSI });
        }
        let bytes = SENDS_AT + SENDS * MAD_LEN;
        let memory = Memory::shared(bytes).map_err(|error| VerbsError::Invalid {
            verb: "gsi",
            argument: "memory",
            reason: error.to_string(),
        })?;
        let cq = device.create_cq((RECEIVES + SENDS) as u32)?;
        let qp = device.create_qp(&QpInit {
            qp_type: QpType::Gsi,
            pd,
            send_cq: cq,
            recv_cq: cq,
            srq: None,
            send_requests_max: SENDS as u32,
            recv_requests_max: RECEIVES as u32,
            send_sges_max: 1,
            recv_sges_max: 1,
            inline_bytes_max: 0,
            signal_all: true,
        })?;
        let region = device.register(pd, &memory, Access::LOCAL_WRITE)?;
        let (free, handles) = ((0..SENDS).collect(), Handles::new(pd, HANDLES_MAX));
        let mut gsi = Self {
            port,
            cq,
            qp,
            memory,
            region,
            free,
            missing: (0..RECEIVES).collect(),
            waiting: VecDeque::new(),
            state: State::Started,
            handles,
            unsent: 0,
        };
        gsi.start(device)?;
        Ok(gsi)
    }

    /// Its completion queue.
    pub fn cq(&self) -> Cq {
        self.cq
    }

    /// The queue pair.
    pub fn qp(&self) -> Qp {
        self.qp
    }

    /// Datagrams that could not be sent.
    pub fn unsent(&self) -> u64 {
        self.unsent
    }

    /// Whether all is sent.
    pub fn is_idle(&self) -> bool {
        self.waiting.is_empty() && self.free.len() == SENDS
    }

    /// Takes what has come; says whether anything was done.
    pub fn poll(
        &mut self,
        now: Time,
        device: &mut dyn Device,
        received: &mut Vec<Envelope>,
    ) -> Result<bool, VerbsError> {
        let mut completions = [Completion::NOTHING; 32];
        let count = device.poll(self.cq, &mut completions)?;
        for completion in &completions[..count] {
            self.complete(now, device, completion, received);
        }
        match self.state {
            State::Started => self.replenish(device),
            State::Stopping { .. } if self.is_drained() => {
                let reset = QpAttributes { state: Some(QpState::Reset), ..QpAttributes::default() };
                device.modify_qp(self.qp, &reset)?;
                self.start(device)?;
            }
            State::Stopping { until } if until <= now => {
                let (what, why) = ("queue pair 1", "what it was given does not come back");
                return Err(VerbsError::Lost { what, why });
            }
            State::Stopping { .. } => {}
        }
        self.send_waiting(device);
        Ok(count > 0)
    }

    /// Sends a datagram as soon as there is a slot. One that cannot be sent is lost: who wants an
    /// answer will send it again.
    pub fn send(&mut self, device: &mut dyn Device, envelope: &Envelope) {
        if self.waiting.len() < WAITING_MAX {
            self.waiting.push_back(*envelope);
            self.send_waiting(device);
        } else {
            self.unsent += 1;
        }
    }

    /// Ends it, and what it has at the device.
    pub fn close(self, device: &mut dyn Device) -> Result<(), VerbsError> {
        device.destroy_qp(self.qp)?;
        self.handles.close(device)?;
        device.deregister(self.region.lkey)?;
        device.destroy_cq(self.cq)
    }

    fn start(&mut self, device: &mut dyn Device) -> Result<(), VerbsError> {
        let to = |state| QpAttributes { state: Some(state), ..QpAttributes::default() };
        let init = QpAttributes {
            pkey_index: self.place_of(device, PKey::DEFAULT),
            port: Some(self.port),
            qkey: Some(QKey::GSI),
            ..to(QpState::Init)
        };
        let send = QpAttributes { sq_psn: Some(Psn::new(0)), ..to(QpState::Rts) };
        for change in [init, to(QpState::Rtr), send] {
            device.modify_qp(self.qp, &change)?;
        }
        self.state = State::Started;
        self.replenish(device);
        Ok(())
    }

    fn is_drained(&self) -> bool {
        self.missing.len() == RECEIVES && self.free.len() == SENDS
    }

    /// Where the port's table has a partition, as a full member if it is one anywhere. The
    /// administrator hears a port that has not its partition yet by the first of its keys.
    fn place_of(&self, device: &dyn Device, p_key: PKey) -> Option<u16> {
        let partition = p_key.partition();
        let entries = device.port(self.port).map_or(0, |port| port.pkeys);
        let known = (0..entries).filter_map(|at| Some((at, device.pkey(self.port, at).ok()?)));
        let same = known.filter(|(_, known)| known.partition() == partition);
        let best = same.min_by_key(|(_, known)| !known.is_full()).map(|(at, _)| at);
        best.or((partition == PKey::DEFAULT.partition()).then_some(0))
    }

    fn replenish(&mut self, device: &mut dyn Device) {
        let bytes = (Grh::LEN + MAD_LEN) as u32;
        while let Some(&slot) = self.missing.last() {
            let sges = [self.sge(slot * RECEIVE_BYTES, bytes)];
            let request = RecvRequest { id: slot as u64, sges: &sges };
            if device.post_recv(self.qp, &[request]).is_err() {
                return;
            }
            self.missing.pop();
        }
    }

    fn sge(&self, at: usize, bytes: u32) -> Sge {
        Sge { address: self.region.address + at as u64, bytes, lkey: self.region.lkey }
    }

    /// What completes though it was not outstanding is nothing.
    fn complete(
        &mut self,
        now: Time,
        device: &mut dyn Device,
        completion: &Completion,
        received: &mut Vec<Envelope>,
    ) {
        let is_well = completion.status == CompletionStatus::Success;
        if !is_well && self.state == State::Started {
            let error = QpAttributes { state: Some(QpState::Err), ..QpAttributes::default() };
            if device.modify_qp(self.qp, &error).is_ok() {
                self.state = State::Stopping { until: now + BACK_MAX };
            }
        }
        let slot = (completion.id & !SEND) as usize;
        if completion.id & SEND != 0 {
            if slot < SENDS && !self.free.contains(&slot) {
                self.free.push(slot);
            }
        } else if slot < RECEIVES && !self.missing.contains(&slot) {
            self.missing.push(slot);
            if is_well && let Some(envelope) = self.read(device, slot, completion) {
                received.push(envelope);
            }
        }
    }

    /// The datagram in a slot, and where it came from.
    fn read(&self, device: &dyn Device, slot: usize, completion: &Completion) -> Option<Envelope> {
        let source = completion.from?;
        let (mut grh, mut mad) = ([0; Grh::LEN], [0; MAD_LEN]);
        let at = slot * RECEIVE_BYTES;
        let is_whole = completion.bytes as usize == Grh::LEN + MAD_LEN
            && self.memory.read(at, &mut grh)
            && self.memory.read(at + Grh::LEN, &mut mad);
        let grh = source.has_grh.then(|| Grh::parse(&grh));
        let peer = MadAddress {
            lid: source.slid,
            path_bits: source.dlid_path_bits,
            sl: source.sl,
            qpn: source.src_qp,
            p_key: device.pkey(self.port, source.pkey_index).ok()?,
            global: grh.map(|grh| GlobalAddress {
                remote_gid: grh.sgid,
                local_gid: grh.dgid,
                flow_label: grh.flow_label,
                hop_limit: HOP_LIMIT,
                traffic_class: grh.tclass,
            }),
        };
        is_whole.then_some(Envelope { peer, mad })
    }

    fn send_waiting(&mut self, device: &mut dyn Device) {
        while self.state == State::Started
            && !self.free.is_empty()
            && let Some(envelope) = self.waiting.pop_front()
        {
            self.unsent += u64::from(self.try_send(device, &envelope).is_none());
        }
    }

    fn try_send(&mut self, device: &mut dyn Device, envelope: &Envelope) -> Option<()> {
        let slot = *self.free.last()?;
        let at = SENDS_AT + slot * MAD_LEN;
        let is_written = self.memory.write(at, &envelope.mad);
        debug_assert!(is_written, "it has room for all slots");
        let ah = self.handle(device, &envelope.peer)?;
        let to = Destination { ah, qpn: envelope.peer.qpn, qkey: QKey::GSI };
        let sges = [self.sge(at, MAD_LEN as u32)];
        let place = self.place_of(device, envelope.peer.p_key)?;
        let (op, data) = (SendOp::DatagramIn(to, place), Data::Sges(&sges));
        let request = SendRequest { id: SEND | slot as u64, op, flags: SendFlags::SIGNALED, data };
        device.post_send(self.qp, &[request]).ok()?;
        self.free.pop();
        Some(())
    }

    fn handle(&mut self, device: &mut dyn Device, peer: &MadAddress) -> Option<Ah> {
        let gids = device.port(self.port).ok()?.gids;
        let own_gid = |global: &GlobalAddress| {
            let is_own = |index: &u8| device.gid(self.port, *index) == Ok(global.local_gid);
            (0..gids).find(is_own).unwrap_or(0)
        };
        let address = AddressVector {
            dlid: peer.lid,
            sl: peer.sl,
            src_path_bits: peer.path_bits,
            static_rate: 0,
            port: self.port,
            grh: peer.global.map(|global| global.route(own_gid(&global))),
        };
        self.handles.of(device, &address).ok()
    }
}
