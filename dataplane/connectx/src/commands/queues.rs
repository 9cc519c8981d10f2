//! Commands about completion queues, completion channels, and shared receive queues.

use super::{Answer, Call, NO_ANSWER, driver, errno, ring};
use crate::abi;
use crate::cqe::resized;
use crate::events::EventQueue;
use crate::hca::completions::{put, waiting};
use crate::hca::{Hca, SrqRing, low_24_bits};
use crate::objects::{CqObject, ProgramMemory, QpObject, Record, RecvSlots, SrqObject};
use pollux_hca::Link;
use pollux_verbs::{Device, Pd};
use rustix::io::Errno;
use std::os::fd::IntoRawFd;
use zerocopy::IntoBytes;

impl<L: Link> Hca<L> {
    pub(super) fn create_channel(&mut self, context: u32, _: &Call<'_>) -> Answer {
        let context = self.contexts.get_mut(context).ok_or(Errno::BADF)?;
        let (queue, program) = EventQueue::new()?;
        let fd = program.into_raw_fd();
        context.channels.insert(fd, queue);
        Ok((fd as u32).as_bytes().to_vec())
    }

    pub(super) fn create_cq(&mut self, context: u32, call: &Call<'_>) -> Answer {
        let (asked, flags, part) = create_cq_parts(call)?;
        let own: abi::CreateCqDriver = driver(part);
        if asked.comp_vector >= COMPLETION_VECTORS {
            return Err(Errno::INVAL);
        }
        if own.cqe_comp_en != 0 || own.flags & !UAR_PAGE_INDEX != 0 || flags & !IGNORE_OVERRUN != 0
        {
            return Err(Errno::OPNOTSUPP);
        }
        let (entries, entry_bytes, ring) = cq_ring(asked.cqe, own.cqe_size, own.buf_addr)?;
        let record = Record::at(own.db_addr)?;
        let channel = (asked.comp_channel >= 0).then_some(asked.comp_channel);
        let channels = &self.contexts.get(context).ok_or(Errno::BADF)?.channels;
        if channel.is_some_and(|fd| !channels.contains_key(&fd)) {
            return Err(Errno::INVAL);
        }
        let cq = self.device.create_cq(entries).map_err(errno)?;
        let object = CqObject {
            context,
            cq,
            user_handle: asked.user_handle,
            channel,
            ring,
            record,
            entries,
            entry_bytes,
            produced: 0,
            is_dead: false,
            ignores_overrun: flags & IGNORE_OVERRUN != 0,
            arm_seen: 0,
            armed: None,
            last_solicited: 0,
        };
        let number = self.cqs.insert(object).map_err(|_| Errno::NOMEM)?;
        self.cq_numbers.push(number);
        let answer = abi::CreateCqResp { cq_handle: number, cqe: asked.cqe };
        Ok(call.answer(&answer, [low_24_bits(number), 0].as_bytes()))
    }

    /// Moves a completion queue to another ring. The last entry in the old ring is a resize CQE.
    /// libmlx5 advances its consumer index by one for the resize CQE. So it copies each entry
    /// before it to the new ring at an index that is one higher than in the old ring.
    pub(super) fn resize_cq(&mut self, call: &Call<'_>) -> Answer {
        let (asked, part): (abi::ResizeCq, _) = call.parts()?;
        let own: abi::ResizeCqDriver = driver(part);
        // Write finished completions to the old ring.
        self.turn();
        let cq = self.cqs.get_mut(asked.cq_handle).ok_or(Errno::INVAL)?;
        let answer = abi::ResizeCqResp { cqe: asked.cqe, reserved: 0 };
        let answer = call.answer(&answer, &[]);
        if asked.cqe == cq.entries - 1 {
            return Ok(answer);
        }
        let (entries, entry_bytes, ring) = cq_ring(asked.cqe, own.cqe_size.into(), own.buf_addr)?;
        let waiting = waiting(cq);
        if entry_bytes != cq.entry_bytes || waiting >= entries.min(cq.entries) {
            return Err(Errno::INVAL);
        }
        self.device.adapter.resize_cq(cq.cq, entries).map_err(errno)?;
        put(cq, resized());
        cq.last_solicited = cq.last_solicited.wrapping_add(1);
        (cq.ring, cq.entries) = (ring, entries);
        Ok(answer)
    }

    pub(super) fn destroy_cq(&mut self, call: &Call<'_>) -> Answer {
        let number: u32 = call.only()?;
        let cq = self.cqs.get(number).ok_or(Errno::INVAL)?;
        let (handle, channel, owner) = (cq.user_handle, cq.channel, cq.context);
        let by_qp = |qp: &QpObject| qp.send_cq == number || qp.recv_cq == number;
        if self.qps.iter().any(|(_, qp)| by_qp(qp)) {
            return Err(Errno::BUSY);
        }
        self.remove_cq(number);
        let context = self.contexts.get_mut(owner).ok_or(Errno::BADF)?;
        let queue = channel.and_then(|fd| context.channels.get_mut(&fd));
        let notified = queue.map_or(0, |queue| queue.end(handle));
        Ok([notified, context.events.end(handle)].as_bytes().to_vec())
    }

    pub(super) fn remove_cq(&mut self, number: u32) {
        let Some(cq) = self.cqs.remove(number) else { return };
        self.cq_numbers.retain(|one| *one != number);
        let _ = self.device.destroy_cq(cq.cq);
    }

    pub(super) fn create_srq(&mut self, context: u32, call: &Call<'_>) -> Answer {
        let (asked, part): (abi::CreateSrq, _) = call.parts()?;
        let own: abi::CreateSrqDriver = driver(part);
        if asked.max_wr >= 1 << 15 || asked.max_sge > 31 {
            return Err(Errno::INVAL);
        }
        // The flags request signatures, with which WQEs have another layout.
        if own.flags != 0 {
            return Err(Errno::OPNOTSUPP);
        }
        let count = (asked.max_wr + 1).next_power_of_two();
        let bytes = (16 + 16 * asked.max_sge as usize).next_power_of_two().max(32);
        let ring = ring(own.buf_addr, count as usize * bytes, false)?;
        let slots = RecvSlots { ring, count, bytes };
        let record = Record::at(own.db_addr)?;
        let pd = Pd(asked.pd_handle);
        let srq = self.device.create_srq(pd, count, asked.max_sge).map_err(errno)?;
        let ring = SrqRing::new(slots.clone(), record);
        self.device.adapter.set_srq_source(srq, Box::new(ring));
        let object = SrqObject {
            context,
            srq,
            user_handle: asked.user_handle,
            slots,
            sges_max: asked.max_sge,
            limit: 0,
        };
        let number = self.srqs.insert(object).map_err(|_| Errno::NOMEM)?;
        let srqn = low_24_bits(number);
        let (srq_handle, max_wr, max_sge) = (number, count - 1, asked.max_sge);
        let answer = abi::CreateSrqResp { srq_handle, max_wr, max_sge, srqn };
        Ok(call.answer(&answer, [srqn, 0].as_bytes()))
    }

    pub(super) fn modify_srq(&mut self, asked: abi::ModifySrq) -> Answer {
        const LIMIT: u32 = 2;
        let srq = self.srqs.get_mut(asked.srq_handle).ok_or(Errno::INVAL)?;
        if asked.attr_mask & !LIMIT != 0 {
            return Err(Errno::INVAL);
        }
        if asked.attr_mask & LIMIT != 0 {
            self.device.set_srq_limit(srq.srq, asked.srq_limit).map_err(errno)?;
            srq.limit = asked.srq_limit;
        }
        Ok(NO_ANSWER)
    }

    pub(super) fn query_srq(&mut self, call: &Call<'_>) -> Answer {
        let number: u32 = call.only()?;
        let srq = self.srqs.get(number).ok_or(Errno::INVAL)?;
        let (max_wr, max_sge, srq_limit) = (srq.slots.count - 1, srq.sges_max, srq.limit);
        Ok(abi::QuerySrqResp { max_wr, max_sge, srq_limit, reserved: 0 }.as_bytes().to_vec())
    }

    pub(super) fn destroy_srq(&mut self, call: &Call<'_>) -> Answer {
        let number: u32 = call.only()?;
        let srq = self.srqs.get(number).ok_or(Errno::INVAL)?;
        let (handle, context) = (srq.user_handle, srq.context);
        self.remove_srq(number)?;
        self.events_read(context, handle)
    }

    pub(super) fn remove_srq(&mut self, number: u32) -> Result<(), Errno> {
        let srq = self.srqs.get(number).ok_or(Errno::INVAL)?;
        self.device.destroy_srq(srq.srq).map_err(errno)?;
        self.srqs.remove(number);
        Ok(())
    }
}

/// Completion vectors of a context. The answer to GET_CONTEXT contains this number.
pub(super) const COMPLETION_VECTORS: u32 = 1;
/// The maximum number of entries of a completion queue.
pub(super) const CQ_ENTRIES_MAX: u32 = 1 << 20;

const IGNORE_OVERRUN: u32 = 1 << 1;
/// A flag of the driver's part: its field `uar_page_index` is valid. The field is ignored, because
/// only page 0 has a CQ doorbell.
const UAR_PAGE_INDEX: u16 = 1 << 1;

/// A ring of `cqe + 1` entries. Returns their number, the bytes of each, and the memory.
fn cq_ring(cqe: u32, entry_bytes: u32, address: u64) -> Result<(u32, usize, ProgramMemory), Errno> {
    let entries = cqe.wrapping_add(1);
    let is_size = matches!(entry_bytes, 64 | 128);
    if !entries.is_power_of_two() || entries > CQ_ENTRIES_MAX || !is_size {
        return Err(Errno::INVAL);
    }
    let bytes = entry_bytes as usize;
    Ok((entries, bytes, ring(address, entries as usize * bytes, true)?))
}

/// Parses the plain or extended form of CREATE_CQ. Returns its fixed part in the plain form, its
/// flags, and the driver's part.
fn create_cq_parts<'a>(call: &Call<'a>) -> Result<(abi::CreateCq, u32, &'a [u8]), Errno> {
    if !call.is_extended {
        let (asked, part) = call.parts()?;
        return Ok((asked, 0, part));
    }
    let (asked, part): (abi::ExCreateCq, _) = call.parts()?;
    if asked.comp_mask != 0 || asked.reserved != 0 {
        return Err(Errno::INVAL);
    }
    let abi::ExCreateCq { user_handle, cqe, comp_vector, comp_channel, flags, .. } = asked;
    let plain = abi::CreateCq { user_handle, cqe, comp_vector, comp_channel, reserved: 0 };
    Ok((plain, flags, part))
}
