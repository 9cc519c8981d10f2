//! A hash map from addresses to numbers: open addressing, at most half full, with a hash of one
//! multiplication.
//!
//! Why not `HashMap`: its hash costs more than the rest of a lookup, and its iteration order
//! differs from run to run. The seed is secret, so that no peer on the link can choose addresses
//! that collide.

use pollux_wire::address::Gid;
use std::net::IpAddr;

pub(crate) type Key = u128;

/// The key of an address. An IPv4 address has the key of its IPv4-mapped IPv6 address.
#[inline]
pub(crate) fn key_of(address: IpAddr) -> Key {
    match address {
        IpAddr::V4(address) => 0xffff_0000_0000 | Key::from(address.to_bits()),
        IpAddr::V6(address) => address.to_bits(),
    }
}

/// The key of a group. Its MGID differs from every unicast address.
#[inline]
pub(crate) fn key_of_group(mgid: Gid) -> Key {
    Key::from_be_bytes(mgid.0)
}

const NOTHING: u32 = u32::MAX;

#[derive(Clone, Copy, Debug)]
struct Slot {
    key: Key,
    value: u32,
}

const FREE: Slot = Slot { key: 0, value: NOTHING };

/// A map from keys to numbers below 2^32 - 1.
#[derive(Clone, Debug)]
pub(crate) struct KeyMap {
    /// The number of slots is a power of two; at most half of them are in use.
    slots: Box<[Slot]>,
    len: usize,
    seed: u64,
}

/// A multiplicative hash; neither factor is near zero.
#[inline]
pub(crate) fn hash(key: Key, seed: u64) -> u64 {
    let (low, high) = (key as u64, (key >> 64) as u64);
    let mixed = low ^ seed ^ 0x9e37_79b9_7f4a_7c15;
    let product = u128::from(mixed) * u128::from(high.wrapping_add(seed) ^ 0xd6e8_feb8_6659_fd93);
    product as u64 ^ (product >> 64) as u64
}

impl KeyMap {
    pub(crate) fn new(seed: u64) -> Self {
        Self { slots: Box::new([FREE; 4]), len: 0, seed }
    }

    #[inline]
    pub(crate) fn find(&self, key: Key) -> Option<u32> {
        self.find_hashed(key, hash(key, self.seed))
    }

    /// As [`KeyMap::find`], with the hash of the key.
    #[inline]
    pub(crate) fn find_hashed(&self, key: Key, hash: u64) -> Option<u32> {
        let mask = self.slots.len() - 1;
        let mut at = hash as usize & mask;
        loop {
            let slot = self.slots[at & mask];
            if slot.value == NOTHING {
                return None;
            }
            if slot.key == key {
                return Some(slot.value);
            }
            at += 1;
        }
    }

    /// Returns the previous value of the key.
    pub(crate) fn insert(&mut self, key: Key, value: u32) -> Option<u32> {
        debug_assert_ne!(value, NOTHING);
        if 2 * (self.len + 1) > self.slots.len() {
            self.grow();
        }
        let at = self.slot_for(key);
        let former = std::mem::replace(&mut self.slots[at], Slot { key, value });
        self.len += usize::from(former.value == NOTHING);
        (former.value != NOTHING).then_some(former.value)
    }

    /// Returns the previous value of the key.
    pub(crate) fn remove(&mut self, key: Key) -> Option<u32> {
        let mask = self.slots.len() - 1;
        let mut hole = self.slot_for(key);
        let removed = std::mem::replace(&mut self.slots[hole], FREE);
        if removed.value == NOTHING {
            return None;
        }
        self.len -= 1;
        // Moves later entries of the probe sequence into the hole, so that a lookup still finds
        // them.
        let mut at = (hole + 1) & mask;
        while self.slots[at].value != NOTHING {
            let home = hash(self.slots[at].key, self.seed) as usize & mask;
            if at.wrapping_sub(home) & mask >= at.wrapping_sub(hole) & mask {
                self.slots[hole] = std::mem::replace(&mut self.slots[at], FREE);
                hole = at;
            }
            at = (at + 1) & mask;
        }
        Some(removed.value)
    }

    /// The slot of a key, or the slot for its insertion.
    fn slot_for(&self, key: Key) -> usize {
        let mask = self.slots.len() - 1;
        let mut at = hash(key, self.seed) as usize & mask;
        while self.slots[at].value != NOTHING && self.slots[at].key != key {
            at = (at + 1) & mask;
        }
        at
    }

    fn grow(&mut self) {
        let larger = vec![FREE; 2 * self.slots.len()].into_boxed_slice();
        for slot in std::mem::replace(&mut self.slots, larger) {
            if slot.value != NOTHING {
                let at = self.slot_for(slot.key);
                self.slots[at] = slot;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::BTreeMap;

    proptest! {
        #[test]
        fn a_standard_map_agrees(
            seed: u64,
            operations in prop::collection::vec((any::<bool>(), 0u128..40, 0u32..100), 0..400),
        ) {
            let (mut map, mut model) = (KeyMap::new(seed), BTreeMap::new());
            for (inserts, key, value) in operations {
                if inserts {
                    prop_assert_eq!(map.insert(key, value), model.insert(key, value));
                } else {
                    prop_assert_eq!(map.remove(key), model.remove(&key));
                }
                prop_assert_eq!(map.len, model.len());
                for key in 0..40 {
                    prop_assert_eq!(map.find(key), model.get(&key).copied());
                }
            }
        }
    }

    #[test]
    fn consecutive_addresses_rarely_collide() {
        let mut map = KeyMap::new(7);
        for nth in 0..10_000u32 {
            map.insert(key_of(std::net::Ipv4Addr::from_bits(0x0a00_0000 + nth).into()), nth);
        }
        let mask = map.slots.len() - 1;
        let distance =
            |(at, slot): (usize, &Slot)| at.wrapping_sub(hash(slot.key, map.seed) as usize) & mask;
        let taken = map.slots.iter().enumerate().filter(|(_, slot)| slot.value != NOTHING);
        let distances: usize = taken.map(distance).sum();
        assert!(distances < 10_000, "{distances} slots of distance, for 10,000 keys");
    }
}
