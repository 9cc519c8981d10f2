//! Commands about queue pairs and their multicast groups.

use super::{Answer, Call, NO_ANSWER, driver, errno, ring};
use crate::abi;
use crate::doorbell::{REGISTERS, bfreg_index};
use crate::hca::{Hca, RecvRing};
use crate::objects::{Intake, ProgramMemory, QpObject, Record, RecvSlots};
use crate::qp_attributes::{change_of, response_of};
use crate::wqe::{BLOCK, SGES_MAX, UNIT};
use pollux_hca::Link;
use pollux_verbs::{Access, Device, LKey, Pd, QpInit, QpType};
use pollux_wire::address::{Gid, Lid, Qpn};
use rustix::io::Errno;
use zerocopy::IntoBytes;

impl<L: Link> Hca<L> {
    pub(super) fn create_qp(&mut self, context: u32, call: &Call<'_>) -> Answer {
        let (asked, part): (abi::CreateQp, _) = call.parts()?;
        let own: abi::CreateQpDriver = driver(part);
        check_flags(call, own.flags)?;
        let init = self.qp_init(&asked, &own)?;
        let rings = Rings::of(&own, init.srq.is_some())?;
        let record = Record::at(own.db_addr)?;
        let send_ring = match rings.send {
            Some(ring) => Some(self.register_ring(init.pd, ring)?),
            None => None,
        };
        let created = self.device.create_qp(&init);
        if let (Err(_), Some((_, lkey))) = (&created, &send_ring) {
            let _ = self.device.deregister(*lkey);
        }
        let qp = created.map_err(errno)?;
        let qpn = self.device.qpn(qp).map_err(errno)?;
        let (count, bytes) = (own.rq_wqe_count, 1 << own.rq_wqe_shift);
        let recv_slots = rings.recv.map(|ring| RecvSlots { ring, count, bytes });
        if let Some(slots) = recv_slots.clone() {
            let ring = RecvRing::new(slots, record.clone());
            self.device.adapter.set_recv_source(qp, Box::new(ring));
        }
        let context_object = self.contexts.get_mut(context).ok_or(Errno::BADF)?;
        let register = context_object.next_register;
        context_object.next_register = (register + 1) % REGISTERS;
        context_object.registers = context_object.registers.max(register + 1);
        let object = QpObject {
            context,
            qp,
            qpn,
            qp_type: init.qp_type,
            pd: asked.pd_handle,
            port: 1,
            user_handle: asked.user_handle,
            user_index: own.uidx,
            register,
            send_cq: asked.send_cq_handle,
            recv_cq: asked.recv_cq_handle,
            srq: (asked.is_srq != 0).then_some(asked.srq_handle),
            send_ring,
            send_blocks: own.sq_wqe_count,
            record,
            intake: Intake::Reset,
            recv_slots,
            signals_all: asked.sq_sig_all != 0,
            groups: Vec::new(),
            scatters_receives: own.flags & SCATTER_TO_CQE != 0 && !init.qp_type.is_datagram(),
        };
        let number = self.qps.insert(object).map_err(|_| Errno::NOMEM)?;
        self.qp_numbers.push(number);
        self.by_qpn.insert(qpn.0, number);
        let fixed = abi::CreateQpResp {
            qp_handle: number,
            qpn: qpn.0,
            max_send_wr: asked.max_send_wr,
            max_recv_wr: asked.max_recv_wr,
            max_send_sge: asked.max_send_sge,
            max_recv_sge: asked.max_recv_sge,
            max_inline_data: asked.max_inline_data,
            reserved: 0,
        };
        let bfreg_index = bfreg_index(register);
        let part = abi::CreateQpRespDriver { bfreg_index, ..Default::default() };
        Ok(call.answer(&fixed, part.as_bytes()))
    }

    fn qp_init(&self, asked: &abi::CreateQp, own: &abi::CreateQpDriver) -> Result<QpInit, Errno> {
        let cq = |number| self.cqs.get(number).map(|cq| cq.cq).ok_or(Errno::INVAL);
        let srq = |number| self.srqs.get(number).map(|srq| srq.srq).ok_or(Errno::INVAL);
        Ok(QpInit {
            qp_type: match asked.qp_type {
                2 => QpType::Rc,
                3 => QpType::Uc,
                4 => QpType::Ud,
                _ => return Err(Errno::OPNOTSUPP),
            },
            pd: Pd(asked.pd_handle),
            send_cq: cq(asked.send_cq_handle)?,
            recv_cq: cq(asked.recv_cq_handle)?,
            srq: if asked.is_srq != 0 { Some(srq(asked.srq_handle)?) } else { None },
            send_requests_max: own.sq_wqe_count,
            recv_requests_max: own.rq_wqe_count,
            send_sges_max: SGES_MAX as u32,
            recv_sges_max: SGES_MAX as u32,
            // Inline data is sent from the send ring, as a data segment.
            inline_bytes_max: 0,
            // libmlx5 sets the flag for a completion in each WQE.
            signal_all: false,
        })
    }

    /// Registers a send ring. It needs an L_Key because inline data is sent from it.
    fn register_ring(
        &mut self,
        pd: Pd,
        ring: ProgramMemory,
    ) -> Result<(ProgramMemory, LKey), Errno> {
        let (range, adapter) = (ring.range(ring.address), &mut self.device.adapter);
        let region = adapter.register_range(pd, &ring.memory, range, Access::NONE);
        Ok((ring, region.map_err(errno)?.lkey))
    }

    pub(super) fn modify_qp(&mut self, call: &Call<'_>) -> Answer {
        let asked: abi::ModifyQp = call.only()?;
        // Take the WQEs that were posted before this command, in the old state.
        self.turn();
        let qp = self.qps.get_mut(asked.qp_handle).ok_or(Errno::INVAL)?;
        let change = change_of(&asked)?;
        self.device.modify_qp(qp.qp, &change).map_err(errno)?;
        qp.port = change.port.unwrap_or(qp.port);
        if let Some(state) = change.state {
            qp.intake.enter(state);
        }
        let answer = if call.is_extended { [0_u32, 8].as_bytes().to_vec() } else { NO_ANSWER };
        Ok(answer)
    }

    pub(super) fn query_qp(&mut self, call: &Call<'_>) -> Answer {
        let number: u32 = call.only()?;
        let qp = self.qps.get(number).ok_or(Errno::INVAL)?;
        let (state, attributes) = self.device.query_qp(qp.qp).map_err(errno)?;
        let mut answer = response_of(state, &attributes);
        // The library itself fills in the capacity of the send ring.
        if let Some(slots) = &qp.recv_slots {
            answer.max_recv_wr = slots.count;
            answer.max_recv_sge = (slots.bytes / UNIT) as u32;
        }
        answer.sq_sig_all = qp.signals_all.into();
        Ok(answer.as_bytes().to_vec())
    }

    pub(super) fn destroy_qp(&mut self, call: &Call<'_>) -> Answer {
        let number: u32 = call.only()?;
        let qp = self.qps.get(number).ok_or(Errno::INVAL)?;
        let (handle, context) = (qp.user_handle, qp.context);
        // Write the completions of finished requests before the queue pair is gone.
        self.turn();
        self.remove_qp(number)?;
        self.events_read(context, handle)
    }

    /// Fails with EBUSY while the queue pair is attached to a multicast group.
    pub(super) fn remove_qp(&mut self, number: u32) -> Result<(), Errno> {
        let qp = self.qps.get(number).ok_or(Errno::INVAL)?;
        self.device.destroy_qp(qp.qp).map_err(errno)?;
        let qp = self.qps.remove(number).ok_or(Errno::INVAL)?;
        self.qp_numbers.retain(|one| *one != number);
        if let Some((_, lkey)) = qp.send_ring {
            let _ = self.device.deregister(lkey);
        }
        let Qpn(qpn) = qp.qpn;
        self.by_qpn.remove(&qpn);
        Ok(())
    }

    pub(super) fn attach(&mut self, asked: abi::AttachMcast, is_attach: bool) -> Answer {
        let qp = self.qps.get_mut(asked.qp_handle).ok_or(Errno::INVAL)?;
        let (mgid, mlid) = (Gid(asked.gid), Lid(asked.mlid));
        match is_attach {
            true => self.device.attach_multicast(qp.qp, mgid, mlid),
            false => self.device.detach_multicast(qp.qp, mgid, mlid),
        }
        .map_err(errno)?;
        qp.groups.retain(|group| *group != (mgid, mlid));
        if is_attach {
            qp.groups.push((mgid, mlid));
        }
        Ok(NO_ANSWER)
    }

    pub(super) fn leave_groups(&mut self, number: u32) {
        let Some(qp) = self.qps.get_mut(number) else { return };
        for (mgid, mlid) in std::mem::take(&mut qp.groups) {
            let _ = self.device.detach_multicast(qp.qp, mgid, mlid);
        }
    }
}

/// A flag of the driver's part: received messages may be scattered to their CQEs.
const SCATTER_TO_CQE: u32 = 1 << 1;

/// Checks the flags of an extended command, none of which is supported, and the flags of the
/// driver's part, of which only those about scatter to CQE are supported.
fn check_flags(call: &Call<'_>, driver_flags: u32) -> Result<(), Errno> {
    const INDIRECTION_TABLE: u32 = 1;
    /// Also scatter responses to reads and atomics, if the adapter can. This one does not.
    const OF_REQUESTER: u32 = 1 << 8;
    const KNOWN: u32 = 0xfff;
    let tail = call.body.get(size_of::<abi::CreateQp>()..call.fixed.unwrap_or(0));
    let tail: abi::ExCreateQpTail = driver(tail.unwrap_or_default());
    if tail.comp_mask & !INDIRECTION_TABLE != 0 || driver_flags & !KNOWN != 0 {
        return Err(Errno::INVAL);
    }
    let is_plain = tail.comp_mask == 0 && tail.create_flags == 0;
    match is_plain && driver_flags & !(SCATTER_TO_CQE | OF_REQUESTER) == 0 {
        true => Ok(()),
        false => Err(Errno::OPNOTSUPP),
    }
}

/// The rings of a queue pair. They share a buffer of the program: first the receive ring, then the
/// send ring.
struct Rings {
    send: Option<ProgramMemory>,
    recv: Option<ProgramMemory>,
}

impl Rings {
    fn of(own: &abi::CreateQpDriver, has_srq: bool) -> Result<Self, Errno> {
        let is_count = |count: u32| count == 0 || count.is_power_of_two() && count <= 32_768;
        if !is_count(own.sq_wqe_count) || !is_count(own.rq_wqe_count) || own.rq_wqe_shift > 16 {
            return Err(Errno::INVAL);
        }
        let recv_bytes = (own.rq_wqe_count as usize) << own.rq_wqe_shift;
        let send_bytes = own.sq_wqe_count as usize * BLOCK;
        let send_at = own.buf_addr.checked_add(recv_bytes as u64).ok_or(Errno::INVAL)?;
        let ring_of =
            |at, bytes| if bytes > 0 { ring(at, bytes, false).map(Some) } else { Ok(None) };
        Ok(Self {
            send: ring_of(send_at, send_bytes)?,
            recv: ring_of(own.buf_addr, if has_srq { 0 } else { recv_bytes })?,
        })
    }
}
