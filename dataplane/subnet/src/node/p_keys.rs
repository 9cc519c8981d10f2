//! The P_Key table of a port, with an index for look-ups (IBA 10.9).
//!
//! Beside the table of the subnet manager, a hash index by partition with open addressing and half
//! of its slots free makes a look-up one or two loads.

use pollux_wire::keys::PKey;

/// Entries of every port's table: one block of the attribute.
pub const P_KEYS: usize = 32;
const SLOTS: usize = 2 * P_KEYS;

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PKeys {
    entries: [PKey; P_KEYS],
    /// Positions in `entries`, counted from 1, by hash of the partition; 0 is free.
    slots: [u8; SLOTS],
}

impl Default for PKeys {
    /// Full member of the default partition: the state of an unmanaged port.
    fn default() -> Self {
        let mut entries = [PKey::INVALID; P_KEYS];
        entries[0] = PKey::DEFAULT;
        Self::new(entries)
    }
}

impl PKeys {
    pub fn new(entries: [PKey; P_KEYS]) -> Self {
        let mut slots = [0; SLOTS];
        for (index, entry) in entries.iter().enumerate().filter(|(_, entry)| entry.is_valid()) {
            let mut slot = hash(*entry);
            while slots[slot] != 0 {
                slot = (slot + 1) % SLOTS;
            }
            slots[slot] = index as u8 + 1;
        }
        Self { entries, slots }
    }

    pub fn entries(&self) -> &[PKey; P_KEYS] {
        &self.entries
    }

    /// The entry that lets a packet with this key through, if there is one.
    #[inline]
    pub fn matching(&self, p_key: PKey) -> Option<u16> {
        let mut slot = hash(p_key);
        // Half of the slots are free, so this ends.
        while let Some(index) = usize::from(self.slots[slot]).checked_sub(1) {
            if self.entries[index].matches(p_key) {
                return Some(index as u16);
            }
            slot = (slot + 1) % SLOTS;
        }
        None
    }

    /// Whether the port may send a packet with this key: a full member may use both keys of its
    /// partition, a limited member its own. The receiver checks its own table.
    pub fn may_send(&self, p_key: PKey) -> bool {
        // Matching is symmetric.
        let others = if p_key.is_full() { PKey(p_key.partition()) } else { p_key.full() };
        self.matching(others).is_some()
    }
}

#[inline]
fn hash(p_key: PKey) -> usize {
    usize::from(p_key.partition().wrapping_mul(0x9e35) >> 10) % SLOTS
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// Few partitions, so that they meet.
    fn any_key() -> impl Strategy<Value = u16> {
        prop_oneof![0u16..8, 0x8000u16..0x8008, any::<u16>()]
    }

    proptest! {
        #[test]
        fn what_a_scan_finds_is_found(
            keys in prop::collection::vec(any_key(), P_KEYS),
            wanted in any_key(),
        ) {
            let entries: [PKey; P_KEYS] = std::array::from_fn(|i| PKey(keys[i]));
            let table = PKeys::new(entries);
            for wanted in keys.iter().copied().chain([wanted]).map(PKey) {
                let found = table.matching(wanted);
                prop_assert_eq!(found.is_some(), entries.iter().any(|own| own.matches(wanted)));
                prop_assert!(found.is_none_or(|index| entries[usize::from(index)].matches(wanted)));
            }
        }
    }

    #[test]
    fn a_port_sends_with_its_own_keys() {
        let mut entries = [PKey::INVALID; P_KEYS];
        entries[..2].copy_from_slice(&[PKey(0x8001), PKey(0x0002)]);
        let table = PKeys::new(entries);
        for (key, may) in [(0x8001, true), (1, true), (2, true), (0x8002, false), (3, false)] {
            assert_eq!(table.may_send(PKey(key)), may, "{key:#x}");
        }
        assert!(!table.may_send(PKey::INVALID) && !table.may_send(PKey(0x8000)));
    }

    #[test]
    fn a_new_port_is_in_the_default_partition_only() {
        let table = PKeys::default();
        assert_eq!(table.matching(PKey(0x7fff)), Some(0));
        assert_eq!((table.matching(PKey(0x8001)), table.matching(PKey::INVALID)), (None, None));
    }
}
