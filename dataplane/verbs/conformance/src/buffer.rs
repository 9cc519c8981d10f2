//! Registered memory of a case. Its bytes differ by position.

use super::verdict::{Stop, fail};
use pollux_mem::Memory;
use pollux_verbs::memory::MemoryRegion;
use pollux_verbs::work::{Remote, Sge};

/// The contents of memory before a message arrives.
pub const UNTOUCHED: u8 = 0xee;

/// Memory, and the region that an adapter has registered for it.
#[derive(Clone, Debug)]
pub struct Buffer {
    pub memory: Memory,
    pub region: MemoryRegion,
}

/// Bytes that depend on `seed` and position, and differ between the packets of a message.
pub fn pattern(seed: u8, bytes: usize) -> Vec<u8> {
    let byte = |at: usize| (at ^ at >> 8 ^ at >> 16).wrapping_mul(167) as u8;
    (0..bytes).map(|at| byte(at).wrapping_add(seed)).collect()
}

impl Buffer {
    pub fn sge(&self, at: usize, bytes: usize) -> Sge {
        let bytes = u32::try_from(bytes).expect("a case names stretches below 4 GiB");
        Sge { address: self.region.address + at as u64, bytes, lkey: self.region.lkey }
    }

    /// The address at offset `at`, for a request of a peer.
    pub fn remote(&self, at: usize) -> Remote {
        Remote { address: self.region.address + at as u64, rkey: self.region.rkey }
    }

    /// The registered length: whole pages, which can be more than the requested length.
    pub fn bytes(&self) -> usize {
        self.memory.bytes()
    }

    pub fn put(&self, at: usize, bytes: &[u8]) {
        assert!(self.memory.write(at, bytes), "a case writes within its memory");
    }

    /// Writes a number in native byte order, which atomic operations use.
    pub fn put_u64(&self, at: usize, value: u64) {
        self.put(at, &value.to_ne_bytes());
    }

    pub fn bytes_at(&self, at: usize, bytes: usize) -> Vec<u8> {
        let mut out = vec![0; bytes];
        assert!(self.memory.read(at, &mut out), "a case reads within its memory");
        out
    }

    pub fn u64_at(&self, at: usize) -> u64 {
        let mut out = [0; 8];
        assert!(self.memory.read(at, &mut out), "a case reads within its memory");
        u64::from_ne_bytes(out)
    }

    /// Fails the case unless the memory contains these bytes.
    pub fn holds(&self, at: usize, expected: &[u8]) -> Result<(), Stop> {
        let found = self.bytes_at(at, expected.len());
        match found.iter().zip(expected).position(|(found, expected)| found != expected) {
            None => Ok(()),
            Some(first) => fail(format!(
                "memory: expected {:#04x} at byte {first} of {}, found {:#04x}",
                expected[first],
                expected.len(),
                found[first],
            )),
        }
    }

    /// Fails the case unless these bytes are unchanged since the start.
    pub fn is_untouched(&self, at: usize, bytes: usize) -> Result<(), Stop> {
        self.holds(at, &vec![UNTOUCHED; bytes])
    }
}
