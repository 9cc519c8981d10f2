//! Memory regions and windows.

use super::Hca;
use super::owned::Owned;
use ibverbs_sys as ffi;
use pollux_mem::Memory;
use pollux_verbs::error::{none, over};
use pollux_verbs::{Access, LKey, MemoryRegion, MemoryWindow, Pd, RKey, VerbsError, check};
use rustix::io::Errno;
use std::ptr;

pub(super) struct Region {
    pub(super) object: Owned<ffi::ibv_mr>,
    pub(super) pd: Pd,
    /// Dropped after `object`, so that memory is never unmapped while it is registered.
    _memory: Memory,
}

/// A window. The upper 24 bits of its key identify it; the low eight bits change with each bind.
pub(super) struct Window {
    pub(super) object: Owned<ffi::ibv_mw>,
    pub(super) pd: Pd,
}

/// The constant bits of a window's key.
pub(super) const fn index_of(rkey: RKey) -> u32 {
    rkey.0 >> 8
}

/// Rights in the library's format, which has the same bits (checked below).
pub(super) fn raw_access(access: Access) -> u32 {
    access.bits().into()
}

const _: () = {
    use ffi::ibv_access_flags as flags;
    assert!(Access::LOCAL_WRITE.bits() as u32 == flags::IBV_ACCESS_LOCAL_WRITE.0);
    assert!(Access::REMOTE_WRITE.bits() as u32 == flags::IBV_ACCESS_REMOTE_WRITE.0);
    assert!(Access::REMOTE_READ.bits() as u32 == flags::IBV_ACCESS_REMOTE_READ.0);
    assert!(Access::REMOTE_ATOMIC.bits() as u32 == flags::IBV_ACCESS_REMOTE_ATOMIC.0);
    assert!(Access::BIND.bits() as u32 == flags::IBV_ACCESS_MW_BIND.0);
};

impl Hca {
    pub(super) fn register(
        &mut self,
        pd: Pd,
        memory: &Memory,
        access: Access,
    ) -> Result<MemoryRegion, VerbsError> {
        const VERB: &str = "register";
        let raw_pd = self.pd(VERB, pd)?;
        check::access(access)?;
        let regions_max = self.attributes.limits.regions_max;
        if self.regions.len() >= regions_max as usize {
            return Err(over(VERB, "regions_max", regions_max));
        }
        let (address, bytes) = (memory.address(), memory.bytes());
        let start = ptr::with_exposed_provenance_mut(address as usize);
        // SAFETY: the memory is mapped, and stays mapped while the region exists, because `Region`
        // keeps it. This process accesses it only by atomic words, so the adapter may write to it
        // at any time. The domain is live, and the region is destroyed before it (order of the
        // fields; `destroy_pd` refuses while a region uses the domain).
        let made = unsafe {
            let made = ffi::ibv_reg_mr(raw_pd, start, bytes, raw_access(access) as i32);
            Owned::new(made, ffi::ibv_dereg_mr)
        };
        let object = made.map_err(self.refused(VERB))?;
        // SAFETY: the object is live, and its keys do not change.
        let (lkey, rkey) = unsafe { ((*object.raw()).lkey, (*object.raw()).rkey) };
        self.regions.insert(lkey, Region { object, pd, _memory: memory.clone() });
        Ok(MemoryRegion { address, bytes: bytes as u64, lkey: LKey(lkey), rkey: RKey(rkey) })
    }

    pub(super) fn deregister(&mut self, lkey: LKey) -> Result<(), VerbsError> {
        const VERB: &str = "deregister";
        let region = self.regions.get_mut(&lkey.0).ok_or(none(VERB, "memory region"))?;
        let pd = region.pd;
        region.object.end().map_err(|errno| {
            let may_be_bound = self.windows.values().any(|window| window.pd == pd);
            match Errno::from_raw_os_error(errno) {
                // Some drivers refuse because of a bound window, and return EINVAL.
                Errno::BUSY | Errno::INVAL if may_be_bound => {
                    VerbsError::Busy { verb: VERB, by: "a memory window" }
                }
                _ => self.refused(VERB)(errno),
            }
        })?;
        self.regions.remove(&lkey.0);
        Ok(())
    }

    pub(super) fn create_window(&mut self, pd: Pd) -> Result<MemoryWindow, VerbsError> {
        const VERB: &str = "create_window";
        let raw_pd = self.pd(VERB, pd)?;
        let windows_max = self.attributes.limits.windows_max;
        if self.windows.len() >= windows_max as usize {
            return Err(over(VERB, "windows_max", windows_max));
        }
        // SAFETY: the context is live, and its function table does not change.
        let ops = unsafe { (*self.context.raw()).ops };
        let (Some(alloc), Some(dealloc)) = (ops.alloc_mw, ops.dealloc_mw) else {
            return Err(VerbsError::Unsupported { verb: VERB, capability: "memory windows" });
        };
        // SAFETY: the domain is live, and the window is destroyed before it (order of the fields;
        // `destroy_pd` refuses while a window uses the domain).
        let made = unsafe { Owned::new(alloc(raw_pd, ffi::IBV_MW_TYPE_2), dealloc) };
        let object = made.map_err(self.refused(VERB))?;
        // SAFETY: the object is live.
        let rkey = RKey(unsafe { (*object.raw()).rkey });
        self.windows.insert(index_of(rkey), Window { object, pd });
        Ok(MemoryWindow { rkey })
    }

    pub(super) fn destroy_window(&mut self, rkey: RKey) -> Result<(), VerbsError> {
        const VERB: &str = "destroy_window";
        let index = index_of(rkey);
        let window = self.windows.get_mut(&index).ok_or(none(VERB, "memory window"))?;
        window.object.end().map_err(|errno| self.refused(VERB)(errno))?;
        self.windows.remove(&index);
        Ok(())
    }
}
