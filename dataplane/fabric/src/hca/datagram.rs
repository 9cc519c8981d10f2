//! Unreliable datagrams: one packet each, to anybody who has the key (IBA 9.8.2).

use super::Shared;
use super::port::Drop;
use super::qp::{QueuePair, message, packet, route};
use super::queue::{Kept, SendWork};
use crate::frame::{Arrival, Frame, Payload, Source, gather};
use pollux_verbs::work::SendOp;
use pollux_verbs::{
    Completion, CompletionKind, CompletionStatus, QpState, SendFlags, Source as From, With,
};
use pollux_wire::packet::{Bth, Deth, Extended, Grh, Headers, ImmDt, Opcode};

/// Octets at the front of every receive for the GRH.
const GRH_OCTETS: usize = Grh::LEN;

impl QueuePair {
    /// The next datagram, if one is posted.
    pub(super) fn poll_datagram(&mut self, shared: &mut Shared, shortcut: bool) -> Option<Frame> {
        while self.common.state == QpState::Rts {
            let work = self.requester.front()?;
            if work.octets as usize > shared.port.mtu.octets().unwrap_or(256) {
                // Nothing leaves, and nothing is said: what is too long for the wire is lost on it
                // (IBA C10-93.1.1).
                self.requester.finish_datagram(&self.common, shared);
                continue;
            }
            let sges = work.kept.sges();
            let mut pieces = Vec::new();
            if shared.memory.local(self.common.init.pd, sges, false, &mut pieces).is_err() {
                self.requester.fail(CompletionStatus::LocalProtection);
                self.settle(shared);
                return None;
            }
            let headers = self.datagram_headers(shared, work);
            let octets = work.octets as usize;
            let frame = match (&work.kept, shortcut) {
                (Kept::Inline(data), true) => message(headers, 1, Payload::small(&data[..octets])),
                (Kept::Inline(data), false) => {
                    packet(&headers, octets, |room| room.copy_from_slice(&data[..octets]))
                }
                (_, true) => message(headers, 1, Payload::copy(&pieces, octets)),
                (_, false) => packet(&headers, octets, |room| gather(&pieces, 0, room)),
            };
            self.requester.finish_datagram(&self.common, shared);
            return Some(frame);
        }
        None
    }

    fn datagram_headers(&self, shared: &Shared, work: &SendWork) -> Headers {
        let (to, imm) = match work.op {
            SendOp::DatagramImm(to, data) => (to, Some(ImmDt { data })),
            SendOp::Datagram(to) => (to, None),
            _ => unreachable!("posting takes only datagrams on this service"),
        };
        let own = self.common.attributes.qkey.unwrap_or_default();
        let qkey = if to.qkey.is_privileged() { own } else { to.qkey };
        let deth = Deth { qkey, src_qp: self.common.qpn };
        let (opcode, extended) = match imm {
            Some(imm) => (Opcode::UD_SEND_ONLY_IMM, Extended::DethImm(deth, imm)),
            None => (Opcode::UD_SEND_ONLY, Extended::Deth(deth)),
        };
        let bth = Bth {
            opcode,
            se: work.flags.has(SendFlags::SOLICITED),
            mig_req: true,
            pkey: self.common.pkey(&shared.port),
            dest_qp: to.qpn,
            psn: self.requester.psn(),
            ..Bth::default()
        };
        route(&shared.port, &work.path, bth, extended)
    }

    /// A datagram has come, for this queue pair or for a group that it is in.
    pub(super) fn receive(
        &mut self,
        shared: &mut Shared,
        arrival: &Arrival<'_>,
    ) -> Result<(), Drop> {
        let (Extended::Deth(deth) | Extended::DethImm(deth, _)) = arrival.extended else {
            return Err(Drop::Opcode);
        };
        if Some(deth.qkey) != self.common.attributes.qkey {
            return Err(Drop::QKey);
        }
        if arrival.payload.octets() > shared.port.mtu.octets().unwrap_or(256) {
            return Err(Drop::Length);
        }
        let octets = GRH_OCTETS + arrival.payload.octets();
        let room = self.common.next_recv_octets(&shared.srqs).ok_or(Drop::NoRecv)?;
        if octets as u64 > room {
            return Err(Drop::Length);
        }
        let work = self.common.take_recv(shared).ok_or(Drop::NoRecv)?;
        let (pd, mut pieces) = (self.common.recv_pd(shared), Vec::new());
        if shared.memory.local(pd, work.entries.as_slice(), true, &mut pieces).is_err() {
            self.common.complete_recv(shared, &work, CompletionStatus::LocalProtection);
            // As on a connection, this ends the queue pair (IBA 10.10.3.2).
            self.fail(shared);
            return Err(Drop::Access);
        }
        if let Some(grh) = arrival.grh {
            Source::Octets(&grh.emit()).copy_to(&pieces, 0);
        }
        arrival.payload.copy_to(&pieces, GRH_OCTETS);
        let with = match arrival.extended {
            Extended::DethImm(_, imm) => With::Imm(imm.data),
            _ => With::Nothing,
        };
        let port = &shared.port;
        let completion = Completion {
            id: work.id,
            status: CompletionStatus::Success,
            kind: CompletionKind::Recv,
            qpn: self.common.qpn,
            octets: octets as u32,
            with,
            from: Some(From {
                src_qp: deth.src_qp,
                slid: arrival.lrh.slid,
                sl: arrival.lrh.sl,
                dlid_path_bits: (arrival.lrh.dlid.0 & port.path_bits_max()) as u8,
                pkey_index: port.pkey_index(arrival.bth.pkey).unwrap_or(0),
                has_grh: arrival.grh.is_some(),
            }),
        };
        self.common.complete(shared, self.common.init.recv_cq, completion, arrival.bth.se);
        Ok(())
    }
}
