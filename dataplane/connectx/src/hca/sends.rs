//! Sends: takes WQEs from the program's send rings after their doorbells were rung.

use super::Hca;
use crate::cqe::WorkId;
use crate::objects::QpObject;
use crate::wqe::{BLOCK, Control, Datagram, Operation, SGES_MAX, Segment, WqeFault, parse};
use pollux_hca::Link;
use pollux_verbs::{
    Ah, Completion, CompletionStatus, Data, Destination, Device, Pd, PostRefusal, QpAttributes,
    QpState, SendOp, SendRequest, Sge, VerbsError,
};

/// Cached address handles, at most. When the cache is full, it is emptied.
const HANDLES_MAX: usize = 4096;
/// Fault messages that are printed, at most.
const FAULTS_REPORTED_MAX: u32 = 100;

impl<L: Link> Hca<L> {
    pub(super) fn take_doorbells(&mut self) -> bool {
        let mut rung = 0_u64;
        for (number, context) in self.contexts.iter() {
            let registers = (0..context.registers).filter(|one| context.pages.is_rung(*one));
            let bits: u64 = registers.fold(0_u64, |bits, register| bits | 1 << register);
            if bits != 0 {
                let of = |qp: &QpObject| qp.context == number && bits >> qp.register & 1 == 1;
                self.qps.iter_mut().filter(|(_, qp)| of(qp)).for_each(|(_, qp)| qp.intake.ring());
            }
            rung |= bits;
        }
        let mut any = rung != 0;
        if any || self.has_waiting_sends {
            self.has_waiting_sends = false;
            for index in 0..self.qp_numbers.len() {
                let number = self.qp_numbers[index];
                any |= self.take_sends(number);
            }
        }
        any | self.take_arms()
    }

    /// Takes the WQEs of a queue pair up to the index in its doorbell record.
    fn take_sends(&mut self, number: u32) -> bool {
        let mut any = false;
        loop {
            let Some(qp) = self.qps.get_mut(number) else { return any };
            let Some(index) = qp.intake.next() else { return any };
            let rung = qp.record.word(1) as u16;
            if rung == index {
                qp.intake.rest();
                return any;
            }
            let mut parts = std::mem::take(&mut self.parts);
            let outcome = match read_wqe(qp, index, rung, &mut parts.bytes) {
                Ok(control) => {
                    let outcome = self.post(number, &control, &mut parts);
                    outcome.map(|refusal| (refusal, control.blocks()))
                }
                Err(fault) => Err((0, fault)),
            };
            self.parts = parts;
            match outcome {
                Ok((Posted::Yes, blocks)) => {
                    let Some(qp) = self.qps.get_mut(number) else { return any };
                    qp.intake.take(blocks);
                    any = true;
                }
                Ok((Posted::Later, _)) => {
                    self.has_waiting_sends = true;
                    return any;
                }
                Err((opcode, fault)) => {
                    self.stop(number, opcode, index, fault);
                    return true;
                }
            }
        }
    }

    fn post(
        &mut self,
        number: u32,
        control: &Control,
        parts: &mut WqeParts,
    ) -> Result<Posted, (u8, WqeFault)> {
        let fault = |fault| (control.opcode, fault);
        let qp = self.qps.get(number).ok_or(fault(WqeFault::Segments))?;
        let (is_datagram, handle) = (qp.qp_type.is_datagram(), qp.qp);
        let WqeParts { bytes, segments, sges } = parts;
        let parsed = parse(control, bytes, is_datagram, qp.port, segments);
        let operation = parsed.map_err(fault)?;
        sges.clear();
        for segment in &*segments {
            add(sges, qp, control.index, segment).ok_or(fault(WqeFault::Segments))?;
        }
        let pd = qp.pd;
        let op = match operation {
            Operation::Nop if is_datagram => {
                return Err(fault(WqeFault::Opcode(control.opcode)));
            }
            Operation::Nop => SendOp::Nop,
            Operation::Send => SendOp::Send,
            Operation::SendImm(imm) => SendOp::SendImm(imm),
            Operation::SendInvalidate(key) => SendOp::SendInvalidate(key),
            Operation::Datagram(to, imm) => {
                let path = bytes[28..64].try_into().expect("a datagram has an address segment");
                let Ok(ah) = self.handle_of(pd, path, &to) else {
                    return Err(fault(WqeFault::Segments));
                };
                let to = Destination { ah, qpn: to.qpn, qkey: to.qkey };
                imm.map_or(SendOp::Datagram(to), |imm| SendOp::DatagramImm(to, imm))
            }
            Operation::Write(remote) => SendOp::Write(remote),
            Operation::WriteImm(remote, imm) => SendOp::WriteImm(remote, imm),
            Operation::Read(remote) => SendOp::Read(remote),
            Operation::CompareSwap { remote, compare, swap } => {
                SendOp::CompareSwap { remote, compare, swap }
            }
            Operation::FetchAdd { remote, add } => SendOp::FetchAdd { remote, add },
            Operation::Bind(bind) => SendOp::Bind(bind),
            Operation::LocalInvalidate(key) => SendOp::LocalInvalidate(key),
        };
        let id = WorkId::Send { opcode: control.opcode, index: control.index }.to_u64();
        let data = Data::Sges(sges);
        let request = SendRequest { id, op, flags: control.send_flags(), data };
        match self.device.post_send(handle, &[request]) {
            Ok(()) => Ok(Posted::Yes),
            Err(error) => match error.refusal {
                PostRefusal::Full | PostRefusal::State(_) => Ok(Posted::Later),
                _ => Err(fault(WqeFault::Segments)),
            },
        }
    }

    /// The cached address handle of a path, which is created at its first use.
    fn handle_of(&mut self, pd: u32, path: [u8; 36], to: &Datagram) -> Result<Ah, VerbsError> {
        if let Some(ah) = self.handles.get(&(pd, path)) {
            return Ok(*ah);
        }
        if self.handles.len() >= HANDLES_MAX {
            for (_, ah) in std::mem::take(&mut self.handles) {
                self.device.destroy_ah(ah)?;
            }
        }
        let ah = self.device.create_ah(Pd(pd), &to.path)?;
        self.handles.insert((pd, path), ah);
        Ok(ah)
    }

    /// Fails a queue pair with an invalid WQE: moves it to ERR, prints the fault, and writes an
    /// error completion.
    fn stop(&mut self, number: u32, opcode: u8, index: u16, fault: WqeFault) {
        let Some(qp) = self.qps.get_mut(number) else { return };
        qp.intake.stop();
        let (handle, qpn, send_cq) = (qp.qp, qp.qpn, qp.send_cq);
        if self.faults_reported < FAULTS_REPORTED_MAX {
            self.faults_reported += 1;
            eprintln!("pollux-connectx: queue pair {:#x}, WQE {index}: {fault}", qpn.0);
        }
        let error = QpAttributes { state: Some(QpState::Err), ..QpAttributes::default() };
        let _ = self.device.modify_qp(handle, &error);
        // The completions of earlier requests come first.
        self.move_completions();
        let id = WorkId::Send { opcode, index }.to_u64();
        let status = CompletionStatus::LocalQpOperation;
        self.write_completion(send_cq, &Completion { id, status, qpn, ..Completion::NOTHING });
    }
}

/// Whether the adapter has accepted a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Posted {
    Yes,
    /// The send queue is full, or the state of the queue pair does not allow sends.
    Later,
}

/// Reads and checks the WQE at an index of a queue pair. Its doorbell record is at `rung`.
fn read_wqe(
    qp: &QpObject,
    index: u16,
    rung: u16,
    bytes: &mut Vec<u8>,
) -> Result<Control, WqeFault> {
    let Some((ring, _)) = &qp.send_ring else { return Err(WqeFault::TooLong) };
    let at = qp.block_at(index);
    let mut head = [0; 16];
    if !ring.read(at, &mut head) {
        return Err(WqeFault::TooLong);
    }
    let control = Control::parse(&head);
    if control.index != index {
        return Err(WqeFault::Index { expected: index, found: control.index });
    }
    if control.qpn != qp.qpn {
        return Err(WqeFault::Qpn { expected: qp.qpn, found: control.qpn });
    }
    if control.units == 0 {
        return Err(WqeFault::Size { units: 0, needed: 1 });
    }
    let allowed = rung.wrapping_sub(index);
    if control.blocks() > allowed {
        let blocks = control.blocks();
        return Err(WqeFault::BeyondRecord { blocks, rung: allowed });
    }
    bytes.resize(control.bytes(), 0);
    let first = bytes.len().min(qp.send_blocks as usize * BLOCK - at);
    let (front, back) = bytes.split_at_mut(first);
    if !ring.read(at, front) || !ring.read(0, back) {
        return Err(WqeFault::TooLong);
    }
    Ok(control)
}

/// Buffers for a WQE and its parts, which are reused.
#[derive(Debug, Default)]
pub(super) struct WqeParts {
    bytes: Vec<u8>,
    segments: Vec<Segment>,
    sges: Vec<Sge>,
}

/// Adds a segment of the WQE at an index to the scatter-gather list. Inline data is sent from the
/// ring, where it stays until its completion was polled. If it wraps around the end of the ring, it
/// becomes two entries.
fn add(sges: &mut Vec<Sge>, qp: &QpObject, index: u16, segment: &Segment) -> Option<()> {
    let (at, bytes) = match *segment {
        Segment::Entry(sge) => return push(sges, sge),
        Segment::Inline { at, bytes } => (at, bytes),
    };
    let (ring, lkey) = qp.send_ring.as_ref()?;
    let size = qp.send_blocks as usize * BLOCK;
    let start = (qp.block_at(index) + at) % size;
    let front = bytes.min(size - start);
    for (at, bytes) in [(start, front), (0, bytes - front)] {
        if bytes > 0 {
            let address = ring.address + at as u64;
            push(sges, Sge { address, bytes: bytes as u32, lkey: *lkey })?;
        }
    }
    Some(())
}

fn push(sges: &mut Vec<Sge>, sge: Sge) -> Option<()> {
    (sges.len() < SGES_MAX).then(|| sges.push(sge))
}
