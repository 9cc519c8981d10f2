//! Memory regions and windows, and the checks before every access (IBA 10.6).
//!
//! A region's key has the index of its table slot in the upper 24 bits and the generation of the
//! slot in the low 8 bits. A window's key has the window number there and a variant that the
//! consumer chooses: a bind may change only the low 8 bits.

use pollux_mem::Memory;
use pollux_verbs::error::{none, over};
use pollux_verbs::table::Table;
use pollux_verbs::work::Bind;
use pollux_verbs::{Access, LKey, MemoryRegion, Pd, RKey, Sge, VerbsError, check};
use std::collections::BTreeMap;

#[derive(Debug)]
pub(crate) struct MemoryTable {
    regions: Table<Region>,
    /// By [`window_number`] of their keys.
    windows: BTreeMap<u32, Window>,
    window_last: u32,
    windows_max: u32,
}

#[derive(Debug)]
struct Region {
    pd: Pd,
    memory: Memory,
    range: MemoryRange,
    access: Access,
    /// The number of windows bound to the region. While it is not 0, the region cannot be
    /// deregistered.
    windows: u32,
}

/// The registered part of a memory, and its address in scatter/gather entries and requests of
/// peers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MemoryRange {
    /// The offset of the first byte in the memory.
    pub at: usize,
    pub bytes: u64,
    /// The address of the first byte, which the consumer may choose (IBA 10.6.3.2).
    pub address: u64,
}

/// The changes of a re-registered region. `None` keeps the current value.
#[derive(Clone, Copy, Debug, Default)]
pub struct RegionChange<'a> {
    pub pd: Option<Pd>,
    pub memory: Option<(&'a Memory, MemoryRange)>,
    pub access: Option<Access>,
}

#[derive(Debug)]
struct Window {
    pd: Pd,
    key: u8,
    bound: Option<Bound>,
}

#[derive(Clone, Copy, Debug)]
struct Bound {
    region: u32,
    address: u64,
    bytes: u64,
    access: Access,
}

/// A scatter/gather list that has passed the access checks.
#[derive(Clone, Copy)]
pub struct Pieces<'a> {
    table: &'a MemoryTable,
    sges: &'a [Sge],
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Denied;

/// Set in the keys of windows and clear in the keys of regions.
const WINDOW: u32 = 0x8000_0000;

impl MemoryTable {
    pub(crate) fn new(regions_max: u32, windows_max: u32) -> Self {
        Self {
            regions: Table::new(regions_max),
            windows: BTreeMap::new(),
            window_last: 0,
            windows_max,
        }
    }

    pub(crate) fn register(
        &mut self,
        pd: Pd,
        memory: &Memory,
        range: MemoryRange,
        access: Access,
        regions_max: u32,
    ) -> Result<MemoryRegion, VerbsError> {
        check::access(access)?;
        let MemoryRange { address, bytes, .. } = range;
        let region = Region { pd, memory: memory.clone(), range, access, windows: 0 };
        let number = self.regions.insert(region);
        let key = key_of(number.map_err(|_| over("register", "regions_max", regions_max))?);
        Ok(MemoryRegion { address, bytes, lkey: LKey(key), rkey: RKey(key) })
    }

    pub(crate) fn reregister(
        &mut self,
        key: LKey,
        change: RegionChange<'_>,
    ) -> Result<(), VerbsError> {
        const VERB: &str = "reregister";
        change.access.map_or(Ok(()), check::access)?;
        let region = self.regions.get_mut(number_of(key.0)).ok_or(none(VERB, "region"))?;
        if region.windows > 0 {
            return Err(VerbsError::Busy { verb: VERB, by: "a window bound to it" });
        }
        region.pd = change.pd.unwrap_or(region.pd);
        region.access = change.access.unwrap_or(region.access);
        if let Some((memory, range)) = change.memory {
            (region.memory, region.range) = (memory.clone(), range);
        }
        Ok(())
    }

    pub(crate) fn deregister(&mut self, key: LKey) -> Result<(), VerbsError> {
        let number = number_of(key.0);
        let region = self.regions.get(number).ok_or(none("deregister", "region"))?;
        if region.windows > 0 {
            return Err(VerbsError::Busy { verb: "deregister", by: "a window bound to it" });
        }
        self.regions.remove(number);
        Ok(())
    }

    pub(crate) fn create_window(&mut self, pd: Pd) -> Result<RKey, VerbsError> {
        if self.windows.len() as u32 >= self.windows_max {
            return Err(over("create_window", "windows_max", self.windows_max));
        }
        // There are fewer windows than numbers, so a number is free.
        loop {
            self.window_last = (self.window_last + 1) % (1 << 23);
            if !self.windows.contains_key(&self.window_last) {
                break;
            }
        }
        self.windows.insert(self.window_last, Window { pd, key: 0, bound: None });
        Ok(RKey(WINDOW | self.window_last << 8))
    }

    pub(crate) fn destroy_window(&mut self, key: RKey) -> Result<(), VerbsError> {
        let window = self.window(key).ok_or(none("destroy_window", "window with this key"))?;
        let bound = window.bound.take();
        self.unbind(bound);
        self.windows.remove(&window_number(key));
        Ok(())
    }

    /// The current key of a window. `key` may be any key that the window has had.
    pub(crate) fn window_key(&self, key: RKey) -> Option<RKey> {
        let window = self.windows.get(&window_number(key))?;
        Some(RKey(key.0 & !0xff | u32::from(window.key)))
    }

    pub(crate) fn uses(&self, pd: Pd) -> bool {
        self.regions.iter().any(|(_, region)| region.pd == pd)
            || self.windows.values().any(|window| window.pd == pd)
    }

    /// Binds a window to part of a region (IBA 10.6.7.2).
    pub(crate) fn bind(&mut self, pd: Pd, bind: &Bind) -> Result<(), Denied> {
        let region_number = number_of(bind.region.0);
        let region = self.regions.get(region_number).ok_or(Denied)?;
        // A window with remote write access needs a region with local write access.
        let has_local_write = region.access.has(Access::LOCAL_WRITE);
        let consistent = has_local_write || bind.access.is_consistent();
        let in_reach = region.reaches(bind.address, bind.bytes);
        let allowed = region.pd == pd
            && (bind.bytes == 0 || region.access.has(Access::BIND) && in_reach)
            && consistent
            && bind.rkey.0 >> 8 == bind.window.0 >> 8;
        let window = self.window(bind.window).ok_or(Denied)?;
        if !allowed || window.pd != pd {
            return Err(Denied);
        }
        let before = window.bound.take();
        window.key = bind.rkey.0 as u8;
        if bind.bytes > 0 {
            let (address, bytes, access) = (bind.address, bind.bytes, bind.access);
            window.bound = Some(Bound { region: region_number, address, bytes, access });
            if let Some(region) = self.regions.get_mut(region_number) {
                region.windows += 1;
            }
        }
        self.unbind(before);
        Ok(())
    }

    pub(crate) fn invalidate(&mut self, pd: Pd, key: RKey) -> Result<(), Denied> {
        let window = self.window(key).filter(|window| window.pd == pd).ok_or(Denied)?;
        let bound = window.bound.take().ok_or(Denied)?;
        self.unbind(Some(bound));
        Ok(())
    }

    fn unbind(&mut self, bound: Option<Bound>) {
        if let Some(region) = bound.and_then(|bound| self.regions.get_mut(bound.region)) {
            region.windows -= 1;
        }
    }

    fn window(&mut self, key: RKey) -> Option<&mut Window> {
        let window = self.windows.get_mut(&window_number(key));
        window.filter(|window| key.0 & WINDOW != 0 && window.key == key.0 as u8)
    }

    /// Checks the scatter/gather list of a request. Entries of length 0 are not checked.
    #[inline(always)]
    pub(crate) fn local<'a>(
        &'a self,
        pd: Pd,
        sges: &'a [Sge],
        write: bool,
    ) -> Result<Pieces<'a>, Denied> {
        let need = if write { Access::LOCAL_WRITE } else { Access::NONE };
        for sge in sges.iter().filter(|sge| sge.bytes > 0) {
            self.region(pd, sge.lkey.0, sge.address, sge.bytes.into(), need)?;
        }
        Ok(self.pieces(sges))
    }

    /// Checks a scatter/gather entry. Returns its memory, and the offset of its first byte there.
    #[inline(always)]
    pub(crate) fn locate(
        &self,
        pd: Pd,
        sge: &Sge,
        write: bool,
    ) -> Result<(&Memory, usize), Denied> {
        let need = if write { Access::LOCAL_WRITE } else { Access::NONE };
        let region = self.region(pd, sge.lkey.0, sge.address, sge.bytes.into(), need)?;
        Ok((&region.memory, region.offset(sge)))
    }

    /// Checks the range and the R_Key of a peer's request. A request of length 0 is not checked
    /// (IBA 9.7.4.1.4).
    pub(crate) fn remote(
        &self,
        pd: Pd,
        key: RKey,
        address: u64,
        bytes: u32,
        need: Access,
    ) -> Result<Sge, Denied> {
        let lkey = match key.0 & WINDOW {
            _ if bytes == 0 => LKey(0),
            0 => self.region(pd, key.0, address, bytes.into(), need).map(|_| LKey(key.0))?,
            _ => self.through_window(pd, key, address, bytes.into(), need)?,
        };
        Ok(Sge { address, bytes, lkey })
    }

    /// The pieces of a scatter/gather list whose entries have passed the checks.
    #[inline(always)]
    pub(crate) fn pieces<'a>(&'a self, sges: &'a [Sge]) -> Pieces<'a> {
        Pieces { table: self, sges }
    }

    #[inline(always)]
    fn region(
        &self,
        pd: Pd,
        key: u32,
        address: u64,
        bytes: u64,
        need: Access,
    ) -> Result<&Region, Denied> {
        let region = self.regions.get(number_of(key)).ok_or(Denied)?;
        if region.pd != pd || !region.access.has(need) || !region.reaches(address, bytes) {
            return Err(Denied);
        }
        Ok(region)
    }

    fn through_window(
        &self,
        pd: Pd,
        key: RKey,
        address: u64,
        bytes: u64,
        need: Access,
    ) -> Result<LKey, Denied> {
        let window = self.windows.get(&window_number(key)).ok_or(Denied)?;
        let bound = window.bound.as_ref().ok_or(Denied)?;
        let end = address.checked_add(bytes).ok_or(Denied)?;
        let inside = address >= bound.address && end <= bound.address + bound.bytes;
        if window.pd != pd || window.key != key.0 as u8 || !inside || !bound.access.has(need) {
            return Err(Denied);
        }
        Ok(LKey(key_of(bound.region)))
    }
}

impl Region {
    #[inline(always)]
    fn reaches(&self, address: u64, bytes: u64) -> bool {
        let base = self.range.address;
        let end = address.checked_add(bytes);
        address >= base && end.is_some_and(|end| end <= base + self.range.bytes)
    }

    /// The offset of an entry in the region's memory. The entry must be within the region.
    #[inline(always)]
    fn offset(&self, sge: &Sge) -> usize {
        (sge.address - self.range.address) as usize + self.range.at
    }
}

impl<'a> Pieces<'a> {
    /// The entries that are not empty.
    pub(crate) fn sges(&self) -> impl Iterator<Item = &'a Sge> + use<'a> {
        self.sges.iter().filter(|sge| sge.bytes > 0)
    }

    /// Fills `out` with the bytes from offset `skip` on.
    #[inline(always)]
    pub(crate) fn read(&self, skip: usize, out: &mut [u8]) {
        self.walk(skip, out.len(), |memory, at, done, bytes| {
            memory.read(at, &mut out[done..done + bytes])
        });
    }

    /// Writes `bytes` from offset `skip` on. Returns `false` if the pieces are too short.
    #[inline(always)]
    pub(crate) fn write(&self, skip: usize, bytes: &[u8]) -> bool {
        self.walk(skip, bytes.len(), |memory, at, done, count| {
            memory.write(at, &bytes[done..done + count])
        })
    }

    /// Writes `bytes` bytes of another memory from offset `skip` on. Returns `false` if the pieces
    /// or the other memory are too short.
    pub(crate) fn copy_from(&self, skip: usize, from: &Memory, at: usize, bytes: usize) -> bool {
        self.walk(skip, bytes, |memory, to, done, count| memory.copy(to, from, at + done, count))
    }

    /// Updates the 8 bytes at the first entry atomically and returns the old value.
    pub(crate) fn update(&self, change: impl Fn(u64) -> u64) -> Option<u64> {
        let sge = self.sges.first()?;
        let region = self.table.regions.get(number_of(sge.lkey.0))?;
        region.memory.update(region.offset(sge), change)
    }

    /// Splits the `bytes` bytes from offset `skip` on into runs that are contiguous in memory, and
    /// calls `each` for each run. Its arguments are the memory, the offset there, the number of
    /// bytes before this run, and the length of the run. Returns `false` if a call does, or if the
    /// pieces are too short.
    #[inline(always)]
    fn walk(
        &self,
        mut skip: usize,
        bytes: usize,
        mut each: impl FnMut(&Memory, usize, usize, usize) -> bool,
    ) -> bool {
        let mut done = 0;
        for sge in self.sges {
            if done == bytes {
                return true;
            }
            let length = sge.bytes as usize;
            if skip >= length {
                skip -= length;
                continue;
            }
            let Some(region) = self.table.regions.get(number_of(sge.lkey.0)) else { return false };
            let at = region.offset(sge) + skip;
            let count = (length - skip).min(bytes - done);
            if !each(&region.memory, at, done, count) {
                return false;
            }
            done += count;
            skip = 0;
        }
        done == bytes
    }
}

/// The index of a region in its adapter's table. An invalid key gives an index beyond every table.
pub const fn region_of(key: LKey) -> usize {
    (number_of(key.0) as usize & 0xff_ffff).wrapping_sub(1)
}

pub(crate) const fn is_window(key: RKey) -> bool {
    key.0 & WINDOW != 0
}

/// A number of the table as a key: the generation moves from the high to the low 8 bits.
const fn key_of(number: u32) -> u32 {
    number.rotate_left(8) & !WINDOW
}

const fn number_of(key: u32) -> u32 {
    key.rotate_right(8)
}

const fn window_number(key: RKey) -> u32 {
    (key.0 & !WINDOW) >> 8
}
