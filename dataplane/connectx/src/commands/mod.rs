//! Executes the commands that the verbs library writes to `/dev/infiniband/uverbsN`, in place of
//! the kernel.
//!
//! This file parses and dispatches commands. `device`, `memory`, `queues` and `qp` execute the
//! commands about their objects. `ownership` checks that handles belong to the context.

mod device;
mod memory;
mod ownership;
mod qp;
mod queues;

use crate::abi::command::Form;
use crate::abi::{self, command};
use crate::doorbell::DoorbellPages;
use crate::events::EventQueue;
use crate::hca::Hca;
use crate::objects::{Context, ProgramMemory, SrqObject};
use pollux_hca::Link;
use pollux_verbs::{Device, Pd, VerbsError};
use rustix::io::Errno;
use std::os::fd::OwnedFd;
use zerocopy::{FromBytes, Immutable, IntoBytes};

/// A parsed command.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Call<'a> {
    pub(crate) number: u32,
    pub(crate) is_extended: bool,
    /// The parts after the header and the address of the answer.
    body: &'a [u8],
    /// The length of the fixed part, which only an extended header contains.
    fixed: Option<usize>,
    /// The address in the program to write the answer to.
    pub(crate) answer: u64,
    /// The space for the fixed part of the answer, in bytes.
    pub(crate) answer_fixed: usize,
    /// The space for the whole answer, in bytes.
    pub(crate) answer_bytes: usize,
}

impl<'a> Call<'a> {
    /// Parses the bytes of a `write`, and checks their lengths as the kernel does.
    pub(crate) fn parse(bytes: &'a [u8]) -> Result<Self, Errno> {
        let (header, rest) = abi::CmdHdr::read_from_prefix(bytes).map_err(|_| Errno::INVAL)?;
        let number = header.command & command::NUMBER;
        let is_extended = header.command & command::EXTENDED != 0;
        if header.command & !(command::NUMBER | command::EXTENDED) != 0 {
            return Err(Errno::INVAL);
        }
        let forms: &[Form] = if is_extended { &command::EXTENDED_FORMS } else { &command::FORMS };
        let form = forms.iter().find(|form| form.number == number).ok_or(Errno::OPNOTSUPP)?;
        match is_extended {
            true => Self::parse_extended(form, header, rest),
            false => Self::parse_plain(form, header, bytes.len(), rest),
        }
    }

    fn parse_plain(
        form: &Form,
        header: abi::CmdHdr,
        bytes: usize,
        rest: &'a [u8],
    ) -> Result<Self, Errno> {
        if usize::from(header.in_words) * 4 != bytes {
            return Err(Errno::INVAL);
        }
        let (answer, body) = match form.out_bytes {
            0 => (0, rest),
            _ => u64::read_from_prefix(rest).map_err(|_| Errno::NOSPC)?,
        };
        let answer_bytes = usize::from(header.out_words) * 4;
        if body.len() < form.in_bytes || answer_bytes < form.out_bytes {
            return Err(Errno::NOSPC);
        }
        let (number, is_extended, fixed) = (form.number, false, None);
        let answer_fixed = answer_bytes;
        Ok(Self { number, is_extended, body, fixed, answer, answer_fixed, answer_bytes })
    }

    fn parse_extended(form: &Form, header: abi::CmdHdr, rest: &'a [u8]) -> Result<Self, Errno> {
        let (extended, body) = abi::ExCmdHdr::read_from_prefix(rest).map_err(|_| Errno::INVAL)?;
        let fixed = usize::from(header.in_words) * 8;
        let answer_fixed = usize::from(header.out_words) * 8;
        let answer_bytes = answer_fixed + usize::from(extended.provider_out_words) * 8;
        if fixed + usize::from(extended.provider_in_words) * 8 != body.len()
            || extended.reserved != 0
            || (extended.response == 0) != (answer_bytes == 0)
        {
            return Err(Errno::INVAL);
        }
        // The header counts in words of 8 bytes, but a form may have another size.
        if fixed < form.in_bytes || answer_bytes > 0 && answer_fixed < form.out_bytes {
            return Err(Errno::NOSPC);
        }
        Ok(Self {
            number: form.number,
            is_extended: true,
            body,
            fixed: Some(fixed),
            answer: extended.response,
            answer_fixed,
            answer_bytes,
        })
    }

    /// Whether the command destroys an object, which a program may do after the adapter was
    /// removed.
    fn is_destroy(&self) -> bool {
        matches!(
            self.number,
            command::DEALLOC_PD
                | command::DEREG_MR
                | command::DEALLOC_MW
                | command::DESTROY_CQ
                | command::DESTROY_SRQ
                | command::DESTROY_QP
                | command::DETACH_MCAST
        )
    }

    /// The fixed part and the driver's part.
    fn parts<T: FromBytes>(&self) -> Result<(T, &'a [u8]), Errno> {
        let (fixed, rest) = T::read_from_prefix(self.body).map_err(|_| Errno::NOSPC)?;
        let driver = self.fixed.map_or(Some(rest), |fixed| self.body.get(fixed..));
        Ok((fixed, driver.ok_or(Errno::INVAL)?))
    }

    fn only<T: FromBytes>(&self) -> Result<T, Errno> {
        self.parts().map(|(fixed, _)| fixed)
    }

    /// Composes an answer from its fixed part and its driver's part.
    fn answer(&self, fixed: &(impl IntoBytes + Immutable), driver: &[u8]) -> Vec<u8> {
        let mut bytes = fixed.as_bytes().to_vec();
        if self.is_extended {
            let response_length = (bytes.len() + size_of::<abi::ExTail>()) as u32;
            bytes.extend_from_slice(abi::ExTail { comp_mask: 0, response_length }.as_bytes());
            bytes.resize(self.answer_fixed, 0);
        }
        bytes.extend_from_slice(driver);
        bytes
    }
}

/// The driver's part of a command. Bytes that an older library does not write are zero.
fn driver<T: FromBytes + IntoBytes + Immutable + Default>(bytes: &[u8]) -> T {
    let mut part = T::default();
    let mut whole = vec![0; size_of::<T>()];
    let count = whole.len().min(bytes.len());
    whole[..count].copy_from_slice(&bytes[..count]);
    if let Ok(read) = T::read_from_bytes(&whole) {
        part = read;
    }
    part
}

fn errno(error: VerbsError) -> Errno {
    match error {
        VerbsError::NoSuch { .. } | VerbsError::Invalid { .. } => Errno::INVAL,
        VerbsError::Limit { .. } => Errno::NOMEM,
        VerbsError::Busy { .. } => Errno::BUSY,
        VerbsError::Unsupported { .. } => Errno::OPNOTSUPP,
        VerbsError::System { errno, .. } => Errno::from_raw_os_error(errno),
        _ => Errno::IO,
    }
}

type Answer = Result<Vec<u8>, Errno>;

const NO_ANSWER: Vec<u8> = Vec::new();

impl<L: Link> Hca<L> {
    /// Creates the context for one `open` of the device. Returns its number, and the program's
    /// descriptors of its events and of the device file.
    pub(crate) fn open(&mut self) -> Result<(u32, OwnedFd, OwnedFd), Errno> {
        let (events, program) = EventQueue::new()?;
        let (pages, file) = DoorbellPages::new()?;
        let context = Context {
            pages,
            events,
            channels: Default::default(),
            cqe_version: 0,
            next_register: 1,
            registers: 0,
            pds: Vec::new(),
        };
        let number = self.contexts.insert(context).map_err(|_| Errno::MFILE)?;
        self.context_numbers.push(number);
        Ok((number, program, file))
    }

    /// Closes a context, and destroys all objects that were created through it.
    pub(crate) fn close(&mut self, context: u32) {
        for number in self.qp_numbers.clone() {
            if self.qps.get(number).is_some_and(|qp| qp.context == context) {
                self.leave_groups(number);
                let _ = self.remove_qp(number);
            }
        }
        let is_own = |(number, srq): (u32, &SrqObject)| (srq.context == context).then_some(number);
        for number in self.srqs.iter().filter_map(is_own).collect::<Vec<_>>() {
            let _ = self.remove_srq(number);
        }
        for number in self.cq_numbers.clone() {
            if self.cqs.get(number).is_some_and(|cq| cq.context == context) {
                self.remove_cq(number);
            }
        }
        for (&handle, _) in self.windows.clone().iter().filter(|(_, of)| **of == context) {
            let _ = self.remove_window(handle);
            self.windows.remove(&handle);
        }
        let regions: Vec<_> =
            self.regions.iter().filter(|(_, one)| one.context == context).collect();
        let regions: Vec<_> = regions.into_iter().map(|(key, one)| (*key, one.lkey)).collect();
        for (key, lkey) in regions {
            let _ = self.device.deregister(lkey);
            self.regions.remove(&key);
        }
        self.context_numbers.retain(|one| *one != context);
        if let Some(context) = self.contexts.remove(context) {
            self.forget_handles();
            for pd in context.pds {
                let _ = self.device.destroy_pd(Pd(pd));
            }
        }
    }

    /// Destroys the cached address handles, which would keep protection domains in use.
    fn forget_handles(&mut self) {
        for (_, ah) in std::mem::take(&mut self.handles) {
            let _ = self.device.destroy_ah(ah);
        }
    }

    pub(crate) fn command(&mut self, context: u32, call: &Call<'_>) -> Answer {
        if self.is_removed && !call.is_destroy() {
            return Err(Errno::IO);
        }
        if self.has_foreign_handle(context, call) {
            return Err(Errno::INVAL);
        }
        match call.number {
            command::QUERY_DEVICE => self.query_device(call),
            command::QUERY_PORT => self.query_port(call),
            command::ALLOC_PD => self.alloc_pd(context, call),
            command::DEALLOC_PD => self.dealloc_pd(context, call.only()?),
            command::REG_MR => self.reg_mr(context, call),
            command::REREG_MR => self.rereg_mr(call.only()?),
            command::DEREG_MR => self.dereg_mr(call.only()?),
            command::ALLOC_MW => self.alloc_mw(context, call),
            command::DEALLOC_MW => self.dealloc_mw(call.only()?),
            command::CREATE_COMP_CHANNEL => self.create_channel(context, call),
            command::CREATE_CQ => self.create_cq(context, call),
            command::RESIZE_CQ => self.resize_cq(call),
            command::DESTROY_CQ => self.destroy_cq(call),
            command::CREATE_SRQ => self.create_srq(context, call),
            command::MODIFY_SRQ => self.modify_srq(call.only()?),
            command::QUERY_SRQ => self.query_srq(call),
            command::DESTROY_SRQ => self.destroy_srq(call),
            command::CREATE_QP => self.create_qp(context, call),
            command::MODIFY_QP => self.modify_qp(call),
            command::QUERY_QP => self.query_qp(call),
            command::DESTROY_QP => self.destroy_qp(call),
            command::ATTACH_MCAST => self.attach(call.only()?, true),
            command::DETACH_MCAST => self.attach(call.only()?, false),
            _ => Err(Errno::OPNOTSUPP),
        }
    }

    /// The answer to a destroy command: the number of the object's events that the program has
    /// read.
    fn events_read(&mut self, context: u32, handle: u64) -> Answer {
        let context = self.contexts.get_mut(context).ok_or(Errno::BADF)?;
        Ok(context.events.end(handle).as_bytes().to_vec())
    }
}

/// A ring in the program's memory. Fails if it is not mapped with the rights that the adapter
/// needs.
fn ring(address: u64, bytes: usize, is_written: bool) -> Result<ProgramMemory, Errno> {
    let ring = ProgramMemory::at(address, bytes as u64).ok_or(Errno::INVAL)?;
    ring.fault_in(is_written).map(|()| ring)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Captured from libmlx5 44: resizes to 2 entries of 64 bytes at 0x22de_0000.
    const RESIZE_CQ: &str = "130000000a000200 d81d29a8fd7f0000 01000000 01000000 \
        0000de2200000000 4000 0000 00000000";
    /// Captured from libmlx5 44: changes the access of a region.
    const REREG_MR: &str = "0b0000000e000200 481d29a8fd7f0000 03020000 04000000 \
        0000000000000000 0000000000000000 0000000000000000 00000000 03000000";
    /// Captured from libmlx5 44: creates a queue of 16 entries that ignores overruns.
    const CREATE_CQ_EX: &str = "1200008004000200 901829a8fd7f0000 0400 0100 00000000 \
        d0c0e42200000000 0f000000 00000000 ffffffff 00000000 02000000 00000000 \
        00d0ea2200000000 00a0e02200000000 40000000 00000000 0000000000000000";

    fn bytes(digits: &str) -> Vec<u8> {
        let digits: Vec<_> = digits.bytes().filter(|c| !c.is_ascii_whitespace()).collect();
        let byte = |pair| u8::from_str_radix(std::str::from_utf8(pair).unwrap(), 16).unwrap();
        digits.chunks(2).map(byte).collect()
    }

    #[test]
    fn commands_of_libmlx5_have_their_parts() {
        let resize = bytes(RESIZE_CQ);
        let call = Call::parse(&resize).unwrap();
        assert_eq!((call.number, call.answer_bytes), (command::RESIZE_CQ, 8));
        assert_eq!(call.answer, 0x7ffd_a829_1dd8);
        let (asked, part): (abi::ResizeCq, _) = call.parts().unwrap();
        let own: abi::ResizeCqDriver = driver(part);
        assert_eq!((asked.cq_handle, asked.cqe), (1, 1));
        assert_eq!((own.buf_addr, own.cqe_size), (0x22de_0000, 64));

        let rereg = bytes(REREG_MR);
        let asked: abi::ReregMr = Call::parse(&rereg).unwrap().only().unwrap();
        assert_eq!((asked.mr_handle, asked.flags, asked.access_flags), (0x203, 4, 3));

        let create = bytes(CREATE_CQ_EX);
        let call = Call::parse(&create).unwrap();
        assert_eq!((call.is_extended, call.answer_fixed, call.answer_bytes), (true, 16, 24));
        let (asked, part): (abi::ExCreateCq, _) = call.parts().unwrap();
        let own: abi::CreateCqDriver = driver(part);
        assert_eq!((asked.cqe, asked.comp_channel, asked.flags), (15, -1, 2));
        assert_eq!((own.buf_addr, own.cqe_size), (0x22ea_d000, 64));
    }

    #[test]
    fn a_command_of_another_length_is_refused_as_by_the_kernel() {
        let parse = |bytes: &[u8]| Call::parse(bytes).map(|_| ());
        for good in [RESIZE_CQ, REREG_MR, CREATE_CQ_EX].map(bytes) {
            assert_eq!(parse(&good), Ok(()));
            assert_eq!(parse(&good[..good.len() - 8]), Err(Errno::INVAL));
            assert_eq!(parse(&good[..6]), Err(Errno::INVAL));
        }
        // The header matches the length, but the fixed part is too short.
        let mut short = bytes(REREG_MR)[..48].to_vec();
        short[4] = 12;
        assert_eq!(parse(&short), Err(Errno::NOSPC));
        let mut no_answer = bytes(RESIZE_CQ);
        no_answer[6] = 1;
        assert_eq!(parse(&no_answer), Err(Errno::NOSPC));
        let mut flags = bytes(RESIZE_CQ);
        flags[1] = 1;
        assert_eq!(parse(&flags), Err(Errno::INVAL));
        // An extended command that exists only in the plain form.
        let mut extended = bytes(CREATE_CQ_EX);
        extended[0] = 0x13;
        assert_eq!(parse(&extended), Err(Errno::OPNOTSUPP));
        let mut nowhere = bytes(CREATE_CQ_EX);
        nowhere[8..16].fill(0);
        assert_eq!(parse(&nowhere), Err(Errno::INVAL));
    }
}
