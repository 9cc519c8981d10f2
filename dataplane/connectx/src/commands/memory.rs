//! Commands about memory: protection domains, memory regions, and memory windows.

use super::{Answer, Call, NO_ANSWER, errno};
use crate::abi::{self, command};
use crate::hca::{Hca, low_24_bits};
use crate::objects::{PAGE, ProgramMemory, RegionObject};
use crate::qp_attributes::access_of_bits;
use crate::shared_pages::SharedPages;
use pollux_fabric::process::shared_leases::SEGMENTS_MAX;
use pollux_hca::{Link, MemoryRange, RegionChange};
use pollux_verbs::{Access, Device, LKey, Pd, RKey};
use rustix::io::Errno;
use std::sync::Arc;
use zerocopy::IntoBytes;

/// Flags of REREG_MR: the attributes of a region to change.
mod change {
    pub(super) const TRANSLATION: u32 = 1;
    pub(super) const PD: u32 = 2;
    pub(super) const ACCESS: u32 = 4;
}

impl Call<'_> {
    /// Faults in the memory of a registration. The caller does this before it takes the lock,
    /// because it may take long.
    pub(crate) fn fault_in(&self) -> Result<(), Errno> {
        let (start, length, flags) = match self.number {
            command::REG_MR => {
                let asked: abi::RegMr = self.only()?;
                (asked.start, asked.length, asked.access_flags)
            }
            command::REREG_MR => {
                let asked: abi::ReregMr = self.only()?;
                if asked.flags & change::TRANSLATION == 0 {
                    return Ok(());
                }
                let has_access = asked.flags & change::ACCESS != 0;
                (asked.start, asked.length, if has_access { asked.access_flags } else { 0 })
            }
            _ => return Ok(()),
        };
        let is_written = access_of(flags)?.has(Access::LOCAL_WRITE);
        ProgramMemory::at(start, length).ok_or(Errno::INVAL)?.fault_in(is_written)
    }
}

impl<L: Link> Hca<L> {
    pub(super) fn alloc_pd(&mut self, context: u32, call: &Call<'_>) -> Answer {
        let Pd(pd) = self.device.create_pd().map_err(errno)?;
        self.contexts.get_mut(context).ok_or(Errno::BADF)?.pds.push(pd);
        let answer = abi::AllocPdResp { pd_handle: pd, pdn: low_24_bits(pd) };
        Ok(call.answer(&answer, &[]))
    }

    pub(super) fn dealloc_pd(&mut self, context: u32, pd: u32) -> Answer {
        self.forget_handles();
        self.device.destroy_pd(Pd(pd)).map_err(errno)?;
        if let Some(context) = self.contexts.get_mut(context) {
            context.pds.retain(|one| *one != pd);
        }
        Ok(NO_ANSWER)
    }

    pub(super) fn reg_mr(&mut self, context: u32, call: &Call<'_>) -> Answer {
        let asked: abi::RegMr = call.only()?;
        let access = access_of(asked.access_flags)?;
        let (program, range) = mapped(asked.start, asked.length, asked.hca_va)?;
        let pages = self.shared_pages(asked.start, asked.length);
        let (memory, range) = match &pages {
            Some(pages) => (&pages.memory, MemoryRange { at: 0, ..range }),
            None => (&program.memory, range),
        };
        let (pd, adapter) = (Pd(asked.pd_handle), &mut self.device.adapter);
        let region = adapter.register_range(pd, memory, range, access).map_err(errno)?;
        let (lkey, address) = (region.lkey, range.address);
        let object = RegionObject { context, lkey, pages, memory: program, address };
        let (mr_handle, lkey, rkey) = (region.lkey.0, region.lkey.0, region.rkey.0);
        self.regions.insert(mr_handle, object);
        Ok(abi::RegMrResp { mr_handle, lkey, rkey }.as_bytes().to_vec())
    }

    /// Makes a range of the program's memory mappable for peers, or reuses the pages of a region
    /// with the same range. `None` if the range stays private.
    fn shared_pages(&self, start: u64, bytes: u64) -> Option<Arc<SharedPages>> {
        let mut all = self.regions.values().filter_map(|region| region.pages.as_ref());
        if all.clone().count() >= SEGMENTS_MAX {
            return None;
        }
        let known = all.find(|pages| pages.are_at(start, bytes)).cloned();
        known.or_else(|| SharedPages::replace(start, bytes).map(Arc::new))
    }

    /// Changes the range, protection domain or access of a region. The region keeps its keys.
    pub(super) fn rereg_mr(&mut self, asked: abi::ReregMr) -> Answer {
        use change::{ACCESS, PD, TRANSLATION};
        let has = |flag| asked.flags & flag != 0;
        if asked.flags == 0 || has(TRANSLATION) && asked.start % PAGE != asked.hca_va % PAGE {
            return Err(Errno::INVAL);
        }
        if has(!(TRANSLATION | PD | ACCESS)) {
            return Err(Errno::OPNOTSUPP);
        }
        let LKey(lkey) = self.regions.get(&asked.mr_handle).ok_or(Errno::INVAL)?.lkey;
        let memory = match has(TRANSLATION) {
            true => Some(mapped(asked.start, asked.length, asked.hca_va)?),
            false => None,
        };
        let change = RegionChange {
            pd: has(PD).then_some(Pd(asked.pd_handle)),
            memory: memory.as_ref().map(|(memory, range)| (&memory.memory, *range)),
            access: if has(ACCESS) { Some(access_of(asked.access_flags)?) } else { None },
        };
        self.device.adapter.reregister(LKey(lkey), change).map_err(errno)?;
        if let (Some(region), Some((memory, range))) = (self.regions.get_mut(&lkey), memory) {
            region.pages = None;
            (region.memory, region.address) = (memory, range.address);
        }
        Ok(abi::ReregMrResp { lkey, rkey: lkey }.as_bytes().to_vec())
    }

    pub(super) fn dereg_mr(&mut self, handle: u32) -> Answer {
        let region = self.regions.get(&handle).ok_or(Errno::INVAL)?;
        self.device.deregister(region.lkey).map_err(errno)?;
        self.regions.remove(&handle);
        Ok(NO_ANSWER)
    }

    pub(super) fn alloc_mw(&mut self, context: u32, call: &Call<'_>) -> Answer {
        let asked: abi::AllocMw = call.only()?;
        if !matches!(asked.mw_type, 1 | 2) {
            return Err(Errno::INVAL);
        }
        let window = self.device.create_window(Pd(asked.pd_handle)).map_err(errno)?;
        let RKey(key) = window.rkey;
        self.windows.insert(key, context);
        Ok(abi::AllocMwResp { mw_handle: key, rkey: key }.as_bytes().to_vec())
    }

    pub(super) fn dealloc_mw(&mut self, handle: u32) -> Answer {
        self.windows.get(&handle).ok_or(Errno::INVAL)?;
        self.remove_window(handle)?;
        self.windows.remove(&handle);
        Ok(NO_ANSWER)
    }

    /// Destroys the window that had this key at creation. Binds change the key.
    pub(super) fn remove_window(&mut self, handle: u32) -> Result<(), Errno> {
        let key = self.device.adapter.window_key(RKey(handle)).ok_or(Errno::INVAL)?;
        self.device.destroy_window(key).map_err(errno)
    }
}

/// A range of the program's memory, to register under the address `address`.
fn mapped(start: u64, bytes: u64, address: u64) -> Result<(ProgramMemory, MemoryRange), Errno> {
    let memory = ProgramMemory::at(start, bytes).ok_or(Errno::INVAL)?;
    address.checked_add(bytes).ok_or(Errno::INVAL)?;
    let range = memory.range(address);
    Ok((memory, range))
}

fn access_of(flags: u32) -> Result<Access, Errno> {
    const ZERO_BASED: u32 = 1 << 5;
    const ON_DEMAND: u32 = 1 << 6;
    const OPTIONAL: u32 = 0x3ff0_0000;
    const HUGETLB: u32 = 1 << 7;
    if flags & ON_DEMAND != 0 {
        return Err(Errno::OPNOTSUPP);
    }
    if flags & !(0x1f | ZERO_BASED | HUGETLB | OPTIONAL) != 0 {
        return Err(Errno::INVAL);
    }
    Ok(access_of_bits(flags))
}
