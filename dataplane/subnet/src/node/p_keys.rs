//! The P_Key table of a port, with an index for look-ups (IBA 10.9).
//!
//! In addition to the table of the subnet manager, there is a hash index by partition, with open
//! addressing. At least half of its slots are free, so a look-up usually takes one or two loads.

use pollux_wire::keys::PKey;

/// Entries of every port's table: one block of the attribute.
pub const P_KEYS: usize = 32;
const SLOTS: usize = 2 * P_KEYS;

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PKeys {
    entries: [PKey; P_KEYS],
    /// Positions in `entries`, counted from 1, by hash of the partition; 0 marks a free slot.
    slots: [u8; SLOTS],
}

impl Default for PKeys {
    /// The table of an unmanaged port: a full member of the default partition.
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

    /// The index of the entry that accepts a packet with this key, if there is one.
    #[inline]
    pub fn matching(&self, p_key: PKey) -> Option<u16> {
        let mut slot = hash(p_key);
        // At least half of the slots are free, so the loop ends.
        while let Some(index) = usize::from(self.slots[slot]).checked_sub(1) {
            if self.entries[index].matches(p_key) {
                return Some(index as u16);
            }
            slot = (slot + 1) % SLOTS;
        }
        None
    }

    /// Whether the port may send a packet with this key: a full member may use both keys of its
    /// partition, and a limited member only the limited key. The receiver checks its own table.
    pub fn may_send(&self, p_key: PKey) -> bool {
        // Only a full member matches the limited key, and any member matches the full key.
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

    /// Keys of few partitions, so that several keys of a partition occur.
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
