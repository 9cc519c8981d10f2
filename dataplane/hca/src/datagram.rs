//! The UD service: each datagram is one packet, to any queue pair with the right Q_Key (IBA 9.8.3).

use super::Shared;
use super::common::{Common, Sent, head_to};
use super::outlet::Outlet;
use super::port::DropReason;
use super::qp::QueuePair;
use super::queue::{SendWork, StoredData};
use super::requester::Requester;
use crate::frame::{Arrival, FrameToSend, Payload};
use crate::head::Head;
use crate::sink::FrameSink;
use pollux_verbs::work::SendOp;
use pollux_verbs::{
    Completion, CompletionKind, CompletionStatus, QpState, SendFlags, Source as From, With,
};
use pollux_wire::packet::{Deth, Extended, Grh, ImmDt, Opcode};

/// The bytes at the front of every receive that are reserved for the GRH.
const GRH_BYTES: usize = Grh::LEN;

impl Requester {
    #[inline]
    pub(super) fn transmit_datagram(
        &mut self,
        common: &Common,
        shared: &mut Shared,
        bypass: bool,
        outlet: &mut Outlet<'_, impl FrameSink>,
    ) -> Sent {
        if common.state != QpState::Rts {
            return Sent::All;
        }
        let Some(work) = self.queue.front() else { return Sent::All };
        let bytes = work.bytes as usize;
        if bytes > shared.port.mtu.bytes().unwrap_or(256) {
            // A datagram beyond the MTU would be lost on the wire, so it is dropped here and
            // completes without an error (IBA C10-93.1.1).
            self.finish_datagram(common, shared);
            return Sent::More;
        }
        let Ok(pieces) = shared.memory.local(common.init.pd, work.data.sges(), false) else {
            self.failed = Some(CompletionStatus::LocalProtection);
            return Sent::All;
        };
        let payload = match work.data {
            StoredData::Inline(slot) => Payload::Bytes(self.inline.get(slot, bytes)),
            StoredData::Sges(_) => Payload::Copied { pieces, skip: 0, bytes },
        };
        let (head, grh, extended) = self.datagram_head(common, shared, work);
        if !outlet.send(&FrameToSend { head, grh, extended, payload, as_packet: !bypass }) {
            return Sent::Stalled;
        }
        self.finish_datagram(common, shared);
        Sent::More
    }

    #[inline(always)]
    fn datagram_head(
        &self,
        common: &Common,
        shared: &Shared,
        work: &SendWork,
    ) -> (Head, Option<Grh>, Extended) {
        let own_pkey = common.pkey(&shared.port);
        let (to, imm, pkey) = match work.op {
            SendOp::DatagramImm(to, data) => (to, Some(ImmDt { data }), own_pkey),
            SendOp::Datagram(to) => (to, None, own_pkey),
            SendOp::DatagramIn(to, index) => (to, None, shared.port.pkey(index)),
            _ => unreachable!("posting takes only datagrams on this service"),
        };
        let own = common.attributes.qkey.unwrap_or_default();
        let qkey = if to.qkey.is_privileged() { own } else { to.qkey };
        let deth = Deth { qkey, src_qp: common.qpn };
        let (opcode, extended) = match imm {
            Some(imm) => (Opcode::UD_SEND_ONLY_IMM, Extended::DethImm(deth, imm)),
            None => (Opcode::UD_SEND_ONLY, Extended::Deth(deth)),
        };
        let (mut head, grh) = head_to(&shared.port, &work.path, pkey, to.qpn, opcode, self.psn);
        head.se = work.flags.has(SendFlags::SOLICITED);
        (head, grh, extended)
    }
}

impl QueuePair {
    /// Handles a datagram to this queue pair or to one of its multicast groups.
    pub(super) fn receive(
        &mut self,
        shared: &mut Shared,
        arrival: &Arrival<'_>,
    ) -> Result<(), DropReason> {
        let (Extended::Deth(deth) | Extended::DethImm(deth, _)) = arrival.extended else {
            return Err(DropReason::Opcode);
        };
        if Some(deth.qkey) != self.common.attributes.qkey {
            return Err(DropReason::QKey);
        }
        if arrival.payload.bytes() > shared.port.mtu.bytes().unwrap_or(256) {
            return Err(DropReason::Length);
        }
        let bytes = GRH_BYTES + arrival.payload.bytes();
        let recv_bytes = self.common.next_recv_bytes(&mut shared.srqs).ok_or(DropReason::NoRecv)?;
        if bytes as u64 > recv_bytes {
            return Err(DropReason::Length);
        }
        let work = self.common.take_recv(shared).ok_or(DropReason::NoRecv)?;
        let pd = self.common.recv_pd(shared);
        let Ok(pieces) = shared.memory.local(pd, work.entries.as_slice(), true) else {
            self.common.complete_recv(shared, &work, CompletionStatus::LocalProtection);
            // As on a connection, this moves the queue pair to the error state (IBA 10.10.3.2).
            self.fail(shared);
            return Err(DropReason::Access);
        };
        if let Some(grh) = arrival.grh {
            pieces.write(0, &grh.emit());
        }
        if !arrival.payload.copy_to(&pieces, GRH_BYTES) {
            self.common.give_back_recv(shared, work);
            return Err(DropReason::Revoked);
        }
        let with = match arrival.extended {
            Extended::DethImm(_, imm) => With::Imm(imm.data),
            _ => With::Nothing,
        };
        let port = &shared.port;
        let from = Some(From {
            src_qp: deth.src_qp,
            slid: arrival.head.slid,
            sl: arrival.head.sl,
            dlid_path_bits: arrival.head.dlid.path_bits(port.lmc),
            pkey_index: port.pkey_index(arrival.head.pkey).unwrap_or(0),
            has_grh: arrival.grh.is_some(),
        });
        let (status, kind) = (CompletionStatus::Success, CompletionKind::Recv);
        let completion = self.common.completion(work.id, status, kind);
        let completion = Completion { bytes: bytes as u32, with, from, ..completion };
        self.common.complete(shared, self.common.init.recv_cq, completion, arrival.head.se);
        Ok(())
    }
}
