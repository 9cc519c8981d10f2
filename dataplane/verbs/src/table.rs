//! A table of objects by handle, for implementations of [`Device`](crate::Device). A stale handle
//! does not find a newer object.

use std::collections::VecDeque;

/// Objects by 32-bit number: 24 bits of slot and 8 bits of generation, which counts the earlier
/// uses of the slot. A stale number is detected until its slot has been reused 256 times, or fewer
/// times with fewer bits of generation.
#[derive(Debug)]
pub struct Table<T> {
    slots: Vec<Slot<T>>,
    /// Free slots, the longest unused first, so that a number is reused as late as possible.
    free: VecDeque<u32>,
    slots_max: u32,
    generation_max: u8,
}

#[derive(Debug)]
struct Slot<T> {
    generation: u8,
    object: Option<T>,
}

const SLOT_BITS: u32 = 24;
const SLOT_MASK: u32 = (1 << SLOT_BITS) - 1;

impl<T> Table<T> {
    /// An empty table of `slots_max` slots, at most 2^24 - 1.
    pub fn new(slots_max: u32) -> Self {
        Self::with_generations(slots_max, 8)
    }

    /// An empty table with generations of `bits` bits, 1 to 8, for shorter numbers.
    pub fn with_generations(slots_max: u32, bits: u32) -> Self {
        let (slots, free) = (Vec::new(), VecDeque::new());
        let generation_max = u8::MAX >> (8 - bits.clamp(1, 8));
        Self { slots, free, slots_max: slots_max.min(SLOT_MASK), generation_max }
    }

    /// The number of the next inserted object; `None` if the table is full.
    pub fn next_number(&self) -> Option<u32> {
        let slot = match self.free.front() {
            Some(slot) => *slot,
            None if self.slots.len() < self.slots_max as usize => self.slots.len() as u32,
            None => return None,
        };
        Some(number(slot, self.slots.get(slot as usize).map_or(0, |kept| kept.generation)))
    }

    /// Inserts an object; returns its number, or the object if the table is full.
    pub fn insert(&mut self, object: T) -> Result<u32, T> {
        let Some(number) = self.next_number() else { return Err(object) };
        let slot = slot_of(number);
        if slot == self.slots.len() {
            self.slots.push(Slot { generation: 0, object: None });
        } else {
            self.free.pop_front();
        }
        self.slots[slot].object = Some(object);
        Ok(number)
    }

    #[inline]
    pub fn get(&self, number: u32) -> Option<&T> {
        let kept = self.slots.get(slot_of(number))?;
        if kept.generation == generation_of(number) { kept.object.as_ref() } else { None }
    }

    #[inline]
    pub fn get_mut(&mut self, number: u32) -> Option<&mut T> {
        let kept = self.slots.get_mut(slot_of(number))?;
        if kept.generation == generation_of(number) { kept.object.as_mut() } else { None }
    }

    pub fn remove(&mut self, number: u32) -> Option<T> {
        let slot = slot_of(number);
        let kept = self.slots.get_mut(slot)?;
        if kept.generation != generation_of(number) {
            return None;
        }
        let object = kept.object.take()?;
        kept.generation = kept.generation.wrapping_add(1) & self.generation_max;
        self.free.push_back(slot as u32);
        Some(object)
    }

    pub fn iter(&self) -> impl Iterator<Item = (u32, &T)> {
        self.slots.iter().enumerate().filter_map(|(slot, kept)| {
            Some((number(slot as u32, kept.generation), kept.object.as_ref()?))
        })
    }

    pub fn iter_mut(&mut self) -> impl Iterator<Item = (u32, &mut T)> {
        self.slots.iter_mut().enumerate().filter_map(|(slot, kept)| {
            Some((number(slot as u32, kept.generation), kept.object.as_mut()?))
        })
    }
}

/// Values by the numbers of a [`Table`] of another component.
#[derive(Debug)]
pub struct SideTable<T> {
    slots: Vec<Option<(u32, T)>>,
}

impl<T> Default for SideTable<T> {
    fn default() -> Self {
        Self { slots: Vec::new() }
    }
}

impl<T> SideTable<T> {
    /// Adds the value for a number; replaces the value of any number with the same slot.
    pub fn insert(&mut self, number: u32, value: T) {
        let slot = slot_of(number);
        if self.slots.len() <= slot {
            self.slots.resize_with(slot + 1, || None);
        }
        self.slots[slot] = Some((number, value));
    }

    #[inline]
    pub fn get(&self, number: u32) -> Option<&T> {
        match self.slots.get(slot_of(number)) {
            Some(Some((found, value))) if *found == number => Some(value),
            _ => None,
        }
    }

    #[inline]
    pub fn get_mut(&mut self, number: u32) -> Option<&mut T> {
        match self.slots.get_mut(slot_of(number)) {
            Some(Some((found, value))) if *found == number => Some(value),
            _ => None,
        }
    }

    pub fn remove(&mut self, number: u32) -> Option<T> {
        self.get(number)?;
        self.slots[slot_of(number)].take().map(|(_, value)| value)
    }
}

/// Numbers start at 1, so that 0 is never valid.
const fn number(slot: u32, generation: u8) -> u32 {
    (generation as u32) << SLOT_BITS | (slot + 1)
}

const fn slot_of(number: u32) -> usize {
    (number & SLOT_MASK).wrapping_sub(1) as usize
}

const fn generation_of(number: u32) -> u8 {
    (number >> SLOT_BITS) as u8
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_stale_number_finds_nothing() {
        let mut table = Table::new(2);
        let first = table.insert("first").unwrap();
        assert_eq!(table.get(first), Some(&"first"));
        assert_eq!(table.get(0), None);
        assert_eq!(table.remove(first), Some("first"));
        let second = table.insert("second").unwrap();
        assert_ne!(first, second);
        assert_eq!(table.remove(first), None);
        assert_eq!(table.get(first), None);
        assert_eq!(table.get(second), Some(&"second"));
        table.insert("third").unwrap();
        assert_eq!(table.insert("fourth"), Err("fourth"));
    }

    #[test]
    fn a_number_is_reused_after_all_generations() {
        for (mut table, others) in [(Table::new(1), 255), (Table::with_generations(1, 5), 31)] {
            let mut again = || {
                let number = table.insert(()).unwrap();
                table.remove(number).map(|()| number)
            };
            let first = again();
            assert!((0..others).all(|_| again() != first));
            assert_eq!(again(), first);
        }
    }

    #[test]
    fn a_side_table_knows_a_number_by_its_generation() {
        let (mut table, mut side) = (Table::new(1), SideTable::default());
        let first = table.insert(()).unwrap();
        side.insert(first, "first");
        assert_eq!((side.get(first), side.get(0)), (Some(&"first"), None));
        table.remove(first);
        let second = table.insert(()).unwrap();
        assert_eq!(side.remove(second), None);
        side.insert(second, "second");
        assert_eq!(side.get_mut(first), None);
        assert_eq!(side.get_mut(second), Some(&mut "second"));
        assert_eq!((side.remove(second), side.remove(second)), (Some("second"), None));
    }

    #[test]
    fn the_next_number_is_known_before_the_insertion() {
        let mut table = Table::new(2);
        for _ in 0..600 {
            let number = table.next_number().unwrap();
            assert_eq!(table.get(number), None);
            assert_eq!(table.insert(()), Ok(number));
            assert_eq!(table.remove(number), Some(()));
        }
        assert_eq!((table.insert(()).is_ok(), table.insert(()).is_ok()), (true, true));
        assert_eq!(table.next_number(), None);
    }
}
