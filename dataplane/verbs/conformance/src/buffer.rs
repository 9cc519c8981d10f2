//! Registered memory of a case, with bytes that tell where they belong.

use super::verdict::{Stop, fail};
use pollux_mem::Memory;
use pollux_verbs::memory::MemoryRegion;
use pollux_verbs::work::{Remote, Sge};

/// What memory holds before a message comes.
pub const UNTOUCHED: u8 = 0xee;

/// Memory, and the region that an adapter knows it by.
#[derive(Clone, Debug)]
pub struct Buffer {
    /// The bytes.
    pub memory: Memory,
    /// Its names.
    pub region: MemoryRegion,
}

/// `bytes` bytes of a pattern in which no two packets' worth are alike.
pub fn pattern(seed: u8, bytes: usize) -> Vec<u8> {
    let byte = |at: usize| (at ^ at >> 8 ^ at >> 16).wrapping_mul(167) as u8;
    (0..bytes).map(|at| byte(at).wrapping_add(seed)).collect()
}

impl Buffer {
    /// A stretch of it, for a request.
    pub fn sge(&self, at: usize, bytes: usize) -> Sge {
        let bytes = u32::try_from(bytes).expect("a case names stretches below 4 GiB");
        Sge { address: self.region.address + at as u64, bytes, lkey: self.region.lkey }
    }

    /// A place in it, for a peer's request.
    pub fn remote(&self, at: usize) -> Remote {
        Remote { address: self.region.address + at as u64, rkey: self.region.rkey }
    }

    /// How much is registered: pages, and so perhaps more than was asked for.
    pub fn bytes(&self) -> usize {
        self.memory.bytes()
    }

    /// Writes as the program.
    pub fn put(&self, at: usize, bytes: &[u8]) {
        assert!(self.memory.write(at, bytes), "a case writes within its memory");
    }

    /// Writes a number as the program, in the machine's own order, as atomic operations see it.
    pub fn put_u64(&self, at: usize, value: u64) {
        self.put(at, &value.to_ne_bytes());
    }

    /// Reads as the program.
    pub fn bytes_at(&self, at: usize, bytes: usize) -> Vec<u8> {
        let mut out = vec![0; bytes];
        assert!(self.memory.read(at, &mut out), "a case reads within its memory");
        out
    }

    /// Reads a number as the program.
    pub fn u64_at(&self, at: usize) -> u64 {
        let mut out = [0; 8];
        assert!(self.memory.read(at, &mut out), "a case reads within its memory");
        u64::from_ne_bytes(out)
    }

    /// Ends the case unless the bytes from `at` on are these.
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

    /// Ends the case unless nobody has written to these bytes.
    pub fn is_untouched(&self, at: usize, bytes: usize) -> Result<(), Stop> {
        self.holds(at, &vec![UNTOUCHED; bytes])
    }
}
