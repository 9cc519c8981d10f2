//! Helpers for tests that compare formats with bytes written by hand.

use crate::address::Gid;
use crate::layout::Layout;
use std::vec;

/// Checks that `value` emits as, and parses from, zeros with the given bytes at the given offsets.
pub fn assert_bytes<L: Layout>(value: &L, places: &[(usize, &[u8])]) {
    let mut bytes = vec![0; L::LEN];
    for &(offset, part) in places {
        bytes[offset..offset + part.len()].copy_from_slice(part);
    }
    let mut emitted = vec![0xff; L::LEN];
    assert!(value.write(&mut emitted).unwrap().is_empty());
    assert_eq!(emitted, bytes, "{}", L::NAME);
    let (parsed, rest) = L::read(&bytes).unwrap();
    assert_eq!(parsed, *value);
    assert!(rest.is_empty());
}

/// A GID whose bytes count up from `first`, so that a test detects a wrong offset.
pub fn counting_gid(first: u8) -> Gid {
    Gid(counting(first))
}

/// Bytes that count up from `first`.
pub fn counting<const N: usize>(first: u8) -> [u8; N] {
    core::array::from_fn(|i| first.wrapping_add(i as u8))
}
