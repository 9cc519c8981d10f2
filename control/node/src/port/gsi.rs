//! The MAD transport of queue pair 1, the general services interface (IBA 13.5).
//!
//! MADs are copied to and from slots of a small memory, since there are only a few per second. An
//! interface with many connections sends thousands when it goes down; they wait for slots. The
//! queue holds as many as control queues at once, so that none is dropped. A failed queue pair is
//! started again once the device has returned all requests; the MADs in them are lost, as any
//! datagram may be.

use super::MadDrops;
use super::address_handles::AddressHandles;
use super::port_tables::{pkey_index, sgid_index};
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

/// Posted receives: MADs that may arrive between two polls.
const RECEIVES: usize = 128;
const SENDS: usize = 64;
/// Maximum number of cached address handles. A peer usually gets several MADs.
const HANDLES_MAX: usize = 64;
/// Maximum number of MADs that wait for a slot: more than the CM and SA clients queue together.
const WAITING_MAX: usize = 8192;
/// Timeout for the device to return all requests of a failed queue pair.
const BACK_MAX: Duration = Duration::from_secs(5);
/// Bytes of a receive slot: a GRH and a MAD, rounded up to cache lines.
const RECEIVE_BYTES: usize = 320;
const SENDS_AT: usize = RECEIVES * RECEIVE_BYTES;
/// The bit that marks sends in request identifiers; the rest is the slot.
const SEND: u64 = 1 << 32;
/// The hop limit of responses (IBA 13.5.4.4).
const HOP_LIMIT: u8 = 0xff;

/// Queue pair 1 of a port.
#[derive(Debug)]
pub struct Gsi {
    port: u8,
    pub(super) cq: Cq,
    pub(super) qp: Qp,
    memory: Memory,
    region: MemoryRegion,
    /// Free slots of sends.
    free: Vec<usize>,
    /// Slots of receives that are not posted.
    missing: Vec<usize>,
    waiting: VecDeque<Envelope>,
    state: State,
    handles: AddressHandles,
    pub(super) drops: MadDrops,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    Started,
    /// It failed, and the device has to return all requests by `until`.
    Stopping {
        until: Time,
    },
}

impl Gsi {
    pub fn new(device: &mut dyn Device, pd: Pd, port: u8) -> Result<Self, VerbsError> {
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
        let (free, handles) = ((0..SENDS).collect(), AddressHandles::new(pd, HANDLES_MAX));
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
            drops: MadDrops::default(),
        };
        gsi.start(device)?;
        Ok(gsi)
    }

    pub fn is_idle(&self) -> bool {
        self.waiting.is_empty() && self.free.len() == SENDS
    }

    /// Polls completions. Returns whether there were any.
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
                let (what, why) = ("queue pair 1", "the device does not return its requests");
                return Err(VerbsError::Lost { what, why });
            }
            State::Stopping { .. } => {}
        }
        self.send_waiting(device);
        Ok(count > 0)
    }

    /// Sends a MAD as soon as there is a slot. A MAD that the device refuses is lost; transactions
    /// retry.
    pub fn send(&mut self, device: &mut dyn Device, envelope: &Envelope) {
        if self.waiting.len() < WAITING_MAX {
            self.waiting.push_back(*envelope);
            self.send_waiting(device);
        } else {
            self.drops.unsent += 1;
        }
    }

    fn start(&mut self, device: &mut dyn Device) -> Result<(), VerbsError> {
        let to = |state| QpAttributes { state: Some(state), ..QpAttributes::default() };
        let init = QpAttributes {
            pkey_index: pkey_index(device, self.port, PKey::DEFAULT),
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

    /// Handles a completion. Completions of requests that are not outstanding are ignored.
    fn complete(
        &mut self,
        now: Time,
        device: &mut dyn Device,
        completion: &Completion,
        received: &mut Vec<Envelope>,
    ) {
        let is_success = completion.status == CompletionStatus::Success;
        if !is_success && self.state == State::Started {
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
            if is_success {
                let envelope = self.read(device, slot, completion);
                self.drops.malformed += u64::from(envelope.is_none());
                received.extend(envelope);
            }
        }
    }

    /// The MAD in a slot, and its source.
    fn read(&self, device: &dyn Device, slot: usize, completion: &Completion) -> Option<Envelope> {
        let source = completion.from?;
        let (mut grh, mut mad) = ([0; Grh::LEN], [0; MAD_LEN]);
        let at = slot * RECEIVE_BYTES;
        let is_complete = completion.bytes as usize == Grh::LEN + MAD_LEN
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
        is_complete.then_some(Envelope { peer, mad })
    }

    fn send_waiting(&mut self, device: &mut dyn Device) {
        while self.state == State::Started
            && !self.free.is_empty()
            && let Some(envelope) = self.waiting.pop_front()
        {
            self.drops.unsent += u64::from(self.try_send(device, &envelope).is_none());
        }
    }

    fn try_send(&mut self, device: &mut dyn Device, envelope: &Envelope) -> Option<()> {
        let slot = *self.free.last()?;
        let at = SENDS_AT + slot * MAD_LEN;
        let is_written = self.memory.write(at, &envelope.mad);
        debug_assert!(is_written, "the memory has all slots");
        let ah = self.handle(device, &envelope.peer)?;
        let to = Destination { ah, qpn: envelope.peer.qpn, qkey: QKey::GSI };
        let sges = [self.sge(at, MAD_LEN as u32)];
        let pkey_index = pkey_index(device, self.port, envelope.peer.p_key)?;
        let (op, data) = (SendOp::DatagramIn(to, pkey_index), Data::Sges(&sges));
        let request = SendRequest { id: SEND | slot as u64, op, flags: SendFlags::SIGNALED, data };
        device.post_send(self.qp, &[request]).ok()?;
        self.free.pop();
        Some(())
    }

    fn handle(&mut self, device: &mut dyn Device, peer: &MadAddress) -> Option<Ah> {
        let grh =
            peer.global.map(|global| global.route(sgid_index(device, self.port, global.local_gid)));
        let address = AddressVector {
            dlid: peer.lid,
            sl: peer.sl,
            src_path_bits: peer.path_bits,
            static_rate: 0,
            port: self.port,
            grh,
        };
        self.handles.of(device, &address).ok()
    }
}
